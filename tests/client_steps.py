"""What both client scripts do once they are connected."""

from collections.abc import Awaitable, Callable
from typing import Any


async def use_tools(call: Callable[..., Awaitable[Any]]) -> dict[str, Any]:
    """The answers to a call of each tool, on an empty memory first."""
    empty = await call("recall", query="anything"), await call("list")
    stored = await call("store", content="We deploy on Fridays.", scope="global")
    return {
        "empty": empty,
        "store": stored,
        "recall": await call("recall", query="when do we deploy?", limit=3),
        "list": await call("list", scope="all"),
        "forget": await call("forget", id=stored["id"]),
        "refused": await call("forget", id=stored["id"]),
    }

"""What both client scripts do once they are connected."""

import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


def care(program: list[str]) -> None:
    """What a person does from a shell while a server is used."""
    copy = str(Path.home() / "copy.db")
    for words in (["backup", copy], ["reindex"], ["doctor"], ["restore", copy]):
        subprocess.run([*program, *words], check=True, capture_output=True)


async def use_tools(call: Callable[..., Awaitable[Any]], program: list[str]) -> dict[str, Any]:
    """The answers to a call of each tool, on an empty memory first."""
    empty = await call("recall", query="anything"), await call("list")
    stored = await call("store", content="We deploy on Fridays.", scope="global")
    if os.environ.get("CARE"):
        care(program)
    return {
        "empty": empty,
        "store": stored,
        "recall": await call("recall", query="when do we deploy?", limit=3),
        "list": await call("list", scope="all"),
        "forget": await call("forget", id=stored["id"]),
        "refused": await call("forget", id=stored["id"]),
    }

"""Runs in an environment with mcp 2.3: uses each tool of a server, prints what came back.

    python client_mcp2.py MODE COMMAND...
    python client_mcp2.py MODE URL PROGRAM...

MODE is how to open: auto, legacy (the handshake), or a stateless revision.
"""

# pyright: reportMissingImports=false

import asyncio
import json
import os
import sys
from typing import Any

from client_steps import use_tools
from mcp import Client, StdioServerParameters


async def use(client: Client, program: list[str]) -> dict[str, Any]:
    """What the server says of itself, its tools, and the answer to a call of each."""

    async def call(tool: str, **arguments: Any) -> Any:
        result = await client.call_tool(tool, arguments)
        text = result.content[0].text
        assert result.is_error or json.loads(text) == result.structured_content
        return text if result.is_error else result.structured_content

    tools = (await client.list_tools()).tools
    return {
        "name": client.server_info.name if client.server_info else None,
        "version": client.protocol_version,
        "instructions": client.instructions,
        "tools": [tool.name for tool in tools],
        **await use_tools(call, program),
    }


async def main() -> None:
    mode, command, *arguments = sys.argv[1:]
    server, program = command, arguments
    if not command.startswith("http:"):
        server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
        program = [command, *arguments[:-1]]
    async with Client(server, mode=mode) as client:
        print(json.dumps(await use(client, program)))


asyncio.run(main())

"""Runs in an environment with mcp 1.30: uses each tool of a server, prints what came back.

python client_mcp1.py COMMAND...
python client_mcp1.py URL PROGRAM...
"""

# pyright: reportMissingImports=false

import asyncio
import json
import os
import sys
from typing import Any

from client_steps import use_tools
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client


async def use(session: ClientSession, program: list[str]) -> dict[str, Any]:
    """What the server says of itself, its tools, and the answer to a call of each."""

    async def call(tool: str, **arguments: Any) -> Any:
        result = await session.call_tool(tool, arguments)
        text = result.content[0].text
        assert result.isError or json.loads(text) == result.structuredContent
        return text if result.isError else result.structuredContent

    opened = await session.initialize()
    await session.send_ping()
    tools = (await session.list_tools()).tools
    return {
        "name": opened.serverInfo.name,
        "version": opened.protocolVersion,
        "instructions": opened.instructions,
        "tools": [tool.name for tool in tools],
        **await use_tools(call, program),
    }


async def main() -> None:
    command, *arguments = sys.argv[1:]
    if command.startswith("http:"):
        opened, program = streamablehttp_client(command), arguments
    else:
        server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
        opened, program = stdio_client(server), [command, *arguments[:-1]]
    async with opened as (read, write, *_), ClientSession(read, write) as session:
        print(json.dumps(await use(session, program)))


asyncio.run(main())

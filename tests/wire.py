"""The lowest kind of MCP client: lines of JSON to and from a real server process."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warm import Warm

ROOT = Path(__file__).resolve().parent.parent
PYZ = os.environ.get("SEDIMENT_PYZ") or str(ROOT / "dist" / "sediment.pyz")  # what is tried
TIMEOUT = 60  # s; nothing here takes long, but a loaded machine may stall
ANSWER_MAX = 10_000  # characters of a tool's answer

META = "io.modelcontextprotocol/"
STATELESS = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}


def server_command() -> list[str]:
    """How the server is started."""
    return [sys.executable, PYZ, "serve"]


def small_env(home: Path, **more: str) -> dict[str, str]:
    """As little as clients pass on."""
    return {"HOME": str(home), "PATH": os.environ["PATH"], **more}


def parse(line: bytes) -> Any:
    """One line of the server's, which must be a whole message in ASCII and strict JSON."""
    assert line.endswith(b"\n"), line
    assert line.isascii(), line

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    message = json.loads(line, parse_constant=refuse)
    assert message["jsonrpc"] == "2.0"
    assert ("result" in message) != ("error" in message)
    return message


class Wire:
    """A server process and its two pipes; forked by a warm process if one is given."""

    def __init__(
        self, cwd: Path, env: dict[str, str], *options: str, warm: Warm | None = None
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        forked = warm and warm.start(["serve", *options], env, cwd, self._log.fileno())
        self.process = forked or subprocess.Popen(
            [*server_command(), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=cwd,
            env=env,
        )
        self.pid = self.process.pid
        self.meta: dict[str, Any] = {}  # sent with every request
        self._ids = itertools.count(1)
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, *messages: Any) -> None:
        """Send messages, all in one go."""
        self.send_bytes(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def receive(self) -> Any:
        """The next message."""
        line = self._lines.get(timeout=TIMEOUT)
        assert line, f"the server is gone: {self.log()}"
        return parse(line)

    def request(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Ask one thing; returns the whole response."""
        message = self.message(method, params)
        self.send(message)
        answer = self.receive()
        assert answer["id"] == message["id"]
        return answer

    def message(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """A request with a new id, not sent."""
        given = dict(params or {})
        if self.meta:
            given["_meta"] = self.meta
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": given}

    def call_message(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A tool call with a new id, not sent."""
        return self.message("tools/call", {"name": tool, "arguments": arguments})

    def handshake(self, version: str = "2025-11-25") -> Any:
        """Open as clients up to 2025-11-25 do; returns the server's result."""
        client = {"name": "wire", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
        result = self.request("initialize", params)["result"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool; returns its structured answer."""
        return answer_of(self.request("tools/call", {"name": tool, "arguments": arguments}))

    def refusal(self, tool: str, **arguments: Any) -> str:
        """Call a tool that must refuse; returns the text of the refusal."""
        result = self.request("tools/call", {"name": tool, "arguments": arguments})["result"]
        assert result["isError"] is True
        assert "structuredContent" not in result
        return result["content"][0]["text"]

    def end(self) -> list[Any]:
        """Close stdin; returns what still came before the server went, which must be cleanly."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.rest()

    def rest(self) -> list[Any]:
        """What still comes from a server that is ending."""
        messages = []
        while line := self._lines.get(timeout=TIMEOUT):
            messages.append(parse(line))
        assert self.process.wait(TIMEOUT) == 0, self.log()
        return messages

    def log(self) -> str:
        """What the server has written to stderr."""
        self._log.seek(0)
        return self._log.read().decode()

    def kill(self) -> None:
        """End the server whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for pipe in filter(None, (self.process.stdin, self.process.stdout)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._log.close()


def answer_of(response: Any) -> Any:
    """A tool's answer, once as text and once structured: the same, and neither too long."""
    result = response["result"]
    assert "isError" not in result, result
    (content,) = result["content"]
    assert content["type"] == "text"
    structured = result["structuredContent"]
    assert json.loads(content["text"]) == structured
    assert len(content["text"]) <= ANSWER_MAX
    assert len(json.dumps(structured, ensure_ascii=False, separators=(",", ":"))) <= ANSWER_MAX
    return structured


@contextlib.contextmanager
def http_server(
    cwd: Path, env: dict[str, str], *options: str, address: str = "0"
) -> Iterator[tuple[str, int]]:
    """The program on HTTP at a free port, for as long as the block lasts; it must end by a signal,
    and have told no fault."""
    command = [*server_command()[:-1], *options, "serve", "--http", address]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, cwd=cwd, env=env
        )
        assert process.stderr
        try:
            told = process.stderr.readline().decode()
            found = re.search(r"http://(.*):(\d+) ", told)
            assert found, told
            yield found[1], int(found[2])
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT)
            ended = process.poll()
            process.kill()
            rest = process.stderr.read().decode()
        assert ended == 0, rest
        assert "Traceback" not in rest, rest

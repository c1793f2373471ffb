"""What clients' sessions do to the program: thousands of prompts, and transcripts that grow.

`prompts` asks the hook of one server, which must leave nothing behind: no memory, no open file, no
process. `growing` lets sessions go on side by side while the server and the readers of what was
said are killed; in the end each turn must be kept once, word for word.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_corpus import PROJECT, Corpus, fill, stored_vectors
from fuzz_wire import memory_of
from storage import consistent, open_memory
from wire import TIMEOUT, Wire, server_command, small_env

REAL = 300  # memories that the encoder reads; the others are made from theirs
STEADY = 400  # prompts after which a server has loaded what it keeps and its caches are nearly full
GROWTH = 1.05  # of the resident memory since then
Row = dict[str, Any]


def told(wire: Wire, event: Row) -> str:
    """What the hook of a server says to an event; "" for nothing."""
    result = wire.request("tools/call", {"name": "hook", "arguments": event})["result"]
    answer = json.loads(result["content"][0]["text"])
    return answer["hookSpecificOutput"]["additionalContext"] if answer else ""


def prompts(folder: Path, memories: int, count: int, seed: int, **env: str) -> Row:
    """So many prompts, each in a session of its own, to one server; returns figures."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "memory.db"
    questions = filled(file, memories, count, seed)
    facts = {"SEDIMENT_DB": str(file), "SEDIMENT_PROJECT": PROJECT, "SEDIMENT_RATE_LIMIT": "0"}
    wire = Wire(folder, small_env(folder, **facts, **env))
    try:
        wire.handshake()
        shown, steady, before = 0, 0, (0, 0)
        first = min(STEADY, count // 2)
        for number, question in enumerate(questions):
            if number == first:
                steady, before = memory_of(wire.pid), held(wire.pid)
            event = {"hook_event_name": "UserPromptSubmit", "prompt": question}
            shown += bool(told(wire, event | {"session_id": f"s{number}", "cwd": str(folder)}))
        resident, after = memory_of(wire.pid), held(wire.pid)
        assert wire.end() == []
        assert wire.log() == ""
    finally:
        wire.kill()
    assert resident <= GROWTH * steady, f"{steady:,} to {resident:,} bytes"
    assert after == before, f"open files, children: {before} to {after}"
    return {
        "prompts": len(questions),
        "memories": memories,
        "prompts with a memory": shown,
        f"KB after {first} prompts": steady // 1000,
        "KB at the end": resident // 1000,
        "open files at the end": after[0],
        "children at the end": after[1],
    }


def filled(file: Path, memories: int, count: int, seed: int) -> list[str]:
    """Fill a database as the bench does; returns questions to it."""
    with open_memory(file, PROJECT) as memory:
        corpus = Corpus(memory.encoder.model.folder / "tokenizer.json", seed)
        memos = corpus.memos(max(REAL, count))
        memory.import_rows({"content": memo.text} for memo in memos[:REAL])
        memory.embed_pending()
        parents = stored_vectors(memory)[1]
        fill(memory, corpus.texts(memories - REAL), parents, seed)
    return [memo.question for memo in memos[:count]]


def held(pid: int) -> tuple[int, int]:
    """Open files and children of a process."""
    process = Path(f"/proc/{pid}")
    children = (process / "task" / str(pid) / "children").read_text().split()
    return len(list((process / "fd").iterdir())), len(children)


class Session:
    """A session of Claude Code that goes on, and its file."""

    def __init__(self, home: Path, name: str, turns: int, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.path = home / ".claude" / "projects" / "-p" / f"{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        spoken = [
            (f"Where is the {name} boat number {n}?", "I look.", f"At pier {n} of {name}.")
            for n in range(turns)
        ]
        self.said = [f"User: {asked}\n\nAssistant: {a}\n\n{b}" for asked, a, b in spoken]
        self.left = b"".join(self._line(text, n) for n, text in enumerate(sum(spoken, ())))

    def _line(self, text: str, number: int) -> bytes:
        """A message as Claude Code writes it: each third one is a prompt."""
        role = "assistant" if number % 3 else "user"
        message = {"role": role, "content": [{"type": "text", "text": text}]}
        facts = {"timestamp": "2026-11-20T10:00:00Z", "cwd": str(self.folder)}
        line = {"uuid": f"u{number}", "type": role, **facts, "message": message}
        return json.dumps(line).encode() + b"\n"

    def grow(self, size: int) -> None:
        """Write so many bytes more, which may end within a line."""
        with open(self.path, "ab") as file:
            file.write(self.left[:size])
        self.left = self.left[size:]

    def event(self, name: str = "Stop") -> Row:
        facts = {"session_id": self.name, "transcript_path": str(self.path)}
        return {"hook_event_name": name, "cwd": str(self.folder), **facts}


class Growing:
    """Sessions side by side, with one server that hears of them, and what is killed."""

    def __init__(self, folder: Path, seed: int, **env: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.file = folder, folder / "memory.db"
        self.env = small_env(folder, SEDIMENT_DB=str(self.file), **env)
        self.random = random.Random(seed)
        self.killed = {"server": 0, "reader": 0}
        self.wire = self._server()

    def _server(self) -> Wire:
        wire = Wire(self.folder, self.env)
        wire.handshake()
        return wire

    def run(self, sessions: int, turns: int, until: float) -> Row:
        """Let each session grow to its end, in pieces and out of order; returns figures."""
        all = [Session(self.folder, f"s{n}", turns, self.folder) for n in range(sessions)]
        hooks = 0
        try:
            self.wire.call("store", content="The encoder is loaded by this.")
            while open_ones := [one for one in all if one.left and time.monotonic() < until]:
                one = self.random.choice(open_ones)
                one.grow(self.random.randrange(200, 1_500))
                told(self.wire, one.event())
                hooks += 1
                self._kill_something()
            for one in all:
                one.grow(len(one.left))
                told(self.wire, one.event("SessionEnd"))
            assert self.wire.end() == []
            assert self.wire.log() == ""
        finally:
            self.wire.kill()
        self._read_the_rest()
        self._compare(all)
        return {
            "sessions": sessions,
            "turns, each kept once": sessions * turns,
            "hooks": hooks + sessions,
            "servers killed": self.killed["server"],
            "readers killed": self.killed["reader"],
        }

    def _kill_something(self) -> None:
        """Every now and then the server, or whoever reads transcripts now."""
        chance = self.random.random()
        if chance < 0.1:
            self.wire.kill()
            self.killed["server"] += 1
            self.wire = self._server()
        elif chance < 0.6:
            time.sleep(0.4 * self.random.random())
            for pid in self._readers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed["reader"] += 1

    def _readers(self) -> Iterator[int]:
        """The readers of this database: hooks start them, and they outlive these."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"--capture" in words and str(self.file).encode() in words:
                    yield int(process.name)

    def _read_the_rest(self) -> None:
        reader = [*server_command()[:-1], "--db", str(self.file), "hook", "--capture"]
        end = time.monotonic() + TIMEOUT
        while any(self._readers()) or self._values("SELECT count(*) FROM captures") != [0]:
            assert time.monotonic() < end, "sessions wait for ever"
            subprocess.run(reader, env=self.env, check=True, timeout=TIMEOUT)

    def _values(self, sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.file)) as connection:
            return [value for (value,) in connection.execute(sql)]

    def _compare(self, sessions: list[Session]) -> None:
        """What is kept of each session, in its order, is what its file says."""
        for one in sessions:
            kept = self._values(
                "SELECT content FROM items WHERE file = (SELECT id FROM files"
                f" WHERE path = 'claude:{one.name}') ORDER BY first_line"
            )
            assert kept == one.said, f"{one.name}: {len(kept)} of {len(one.said)} turns"
        said = self._values("SELECT count(*) FROM items WHERE content_type = 'conversation'")
        assert said == [sum(len(one.said) for one in sessions)]
        with open_memory(self.file) as memory:
            consistent(memory)


def growing(folder: Path, sessions: int, turns: int, seed: int, **options: Any) -> Row:
    """So many sessions; `options` are `until` and what the environment has more."""
    until = options.pop("until", float("inf"))
    return Growing(folder, seed, **options).run(sessions, turns, until)

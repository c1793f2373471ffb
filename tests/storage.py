"""What the tests of the storage side share: memories, child processes, and one great audit."""

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sediment
from sediment import Encoder, Memory, Shown, sha256
from sediment_ext.doctor import check_contents

CACHE = tempfile.TemporaryDirectory()  # notes about checked models, for this process's children
TIMEOUT = 120  # s; nothing here takes long, but a loaded machine may stall

PRELUDE = """
import json, os, sys, threading, time
from pathlib import Path
import sediment
from sediment import Database, Memory

def said(*words):
    print(*words, flush=True)
"""


class Remembering(Encoder):
    """Makes each vector once: the same texts come in test after test, and have the same vectors."""

    @functools.lru_cache(20_000)  # noqa: B019 - there is one of them
    def embed(self, text: str) -> bytes:
        return super().embed(text)

    def embed_query(self, text: str, weights: Sequence[float]) -> bytes:
        return self._embed_query(text, tuple(weights))

    @functools.lru_cache(20_000)  # noqa: B019
    def _embed_query(self, text: str, weights: tuple[float, ...]) -> bytes:
        return super().embed_query(text, weights)


@functools.cache
def shared_encoder() -> Encoder:
    """One encoder for all tests, of the bundled model whatever is set: loading it costs."""
    os.environ["SEDIMENT_CACHE"] = CACHE.name
    return Remembering(sediment.model_dir())


def open_memory(path: Path, project: str = "demo") -> Memory:
    """A real memory in a real file."""
    memory = Memory(path, project=project)
    memory._encoder = shared_encoder()
    return memory


def child(script: str, *args: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Another process of Python that can import the module under test; talks by lines."""
    clean = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(sediment.__file__).parent),
        "PYTHONPYCACHEPREFIX": CACHE.name,  # so that only the first compiles
        "SEDIMENT_CACHE": CACHE.name,
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-c", PRELUDE + script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **{"env": clean, **options},
    )


def finish(process: subprocess.Popen[str], say: str = "") -> str:
    """What a child printed until its end, which must be a good one."""
    out, err = process.communicate(say, timeout=TIMEOUT)
    assert process.returncode == 0, err
    return out


def hear(process: subprocess.Popen[str]) -> str:
    """The next line of a child."""
    assert process.stdout
    with in_time(process):
        line = process.stdout.readline()
    if not line:
        assert process.stderr
        raise AssertionError(process.stderr.read())
    return line.strip()


@contextlib.contextmanager
def in_time(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process that goes on for too long, so that nobody waits for its words for ever."""
    timer = threading.Timer(TIMEOUT, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def tell(process: subprocess.Popen[str], line: str = "go") -> None:
    """Say a line to a child."""
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


def kill(process: subprocess.Popen[str]) -> None:
    """End a child without a warning."""
    process.kill()
    process.communicate()


def rows_of(memory: Memory, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """All of a table."""
    return memory.database.rows(f"SELECT {columns} FROM {table} ORDER BY rowid")


def values(memory: Memory, sql: str) -> list[Any]:
    """The first column of a query."""
    return [row[0] for row in memory.database.rows(sql)]


def lines(rows: Iterable[Any]) -> list[str]:
    """Rows as JSON Lines."""
    return [json.dumps(row) for row in rows]


def shown(*ids: str, question: str = "") -> Shown:
    """An answer to a question, all of which fits."""
    return Shown(sha256(question.encode())[:8], list(ids), list(ids))


def consistent(memory: Memory) -> None:
    """All tables agree with each other and with the texts, and SQLite with the file."""
    wrong = [
        check for check in check_contents(memory.database, memory.encoder) if check.status != "ok"
    ]
    assert not wrong, wrong
    assert not memory.database.rows("PRAGMA foreign_key_check")
    with memory.database.transaction() as connection:
        connection.execute("INSERT INTO words(words, rank) VALUES('integrity-check', 0)")

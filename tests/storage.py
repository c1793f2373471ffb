"""What the tests of the storage side share: memories, child processes, and one great audit."""

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw

import sediment
from sediment import Encoder, Memory

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


@functools.cache
def shared_encoder() -> Encoder:
    """One encoder for all tests: loading is what costs."""
    os.environ["SEDIMENT_CACHE"] = CACHE.name
    return Encoder()


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
        "PYTHONDONTWRITEBYTECODE": "1",
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
    line = process.stdout.readline()
    if not line:
        assert process.stderr
        raise AssertionError(process.stderr.read())
    return line.strip()


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


# Rows that nothing may be left of: each query must give none.
_ORPHANS = {
    "an item without chunks": "SELECT id FROM items WHERE seq NOT IN (SELECT item FROM chunks)",
    "a chunk without an item": "SELECT id FROM chunks WHERE item NOT IN (SELECT seq FROM items)",
    "a chunk with neither vector nor a place in the queue, or with both": """
        SELECT id FROM chunks WHERE (id IN (SELECT chunk FROM vectors))
        = (id IN (SELECT chunk FROM pending))""",
    "a vector without a chunk": "SELECT chunk FROM vectors EXCEPT SELECT id FROM chunks",
    "a pending row without a chunk": "SELECT chunk FROM pending EXCEPT SELECT id FROM chunks",
    "words without a chunk": "SELECT id FROM words_docsize EXCEPT SELECT id FROM chunks",
    "a chunk without words": "SELECT id FROM chunks EXCEPT SELECT id FROM words_docsize",
    "an item without its graph node": """
        SELECT id, coalesce(project_id, '') FROM items EXCEPT
        SELECT id, project_id FROM graph_nodes""",
    "a graph node without an item": "SELECT id FROM graph_nodes EXCEPT SELECT id FROM items",
    "an edge to nowhere": """
        SELECT from_id FROM graph_edges UNION SELECT to_id FROM graph_edges
        EXCEPT SELECT id FROM items""",
    "an access row of nothing": "SELECT item_id FROM access_log EXCEPT SELECT id FROM items",
    "a queued pair of nothing": """
        SELECT item_id_a FROM consolidation_queue UNION SELECT item_id_b FROM consolidation_queue
        EXCEPT SELECT id FROM items""",
    "a queued pair that is not in order": """
        SELECT item_id_a FROM consolidation_queue WHERE item_id_a >= item_id_b""",
    "history of nothing": """
        SELECT item_id FROM history UNION SELECT other_id FROM history WHERE other_id IS NOT NULL
        EXCEPT SELECT id FROM items""",
    "an item that ended without a successor, or one that did not end with one": """
        SELECT id FROM items WHERE (ended_at IS NULL) != (successor IS NULL)""",
}


def consistent(memory: Memory) -> None:
    """All tables agree with each other and with the texts."""
    for what, sql in _ORPHANS.items():
        assert not memory.database.rows(sql), what
    # Asked anew: FTS5 takes what another process wrote for damage in a connection it knew.
    with contextlib.closing(apsw.Connection(str(memory.database.path))) as fresh:
        assert fresh.pragma("integrity_check") == "ok"
    assert not memory.database.rows("PRAGMA foreign_key_check")
    with memory.database.transaction() as connection:
        connection.execute("INSERT INTO words(words, rank) VALUES('integrity-check', 0)")
    size = 4 * memory.encoder.model.dimension
    assert set(values(memory, "SELECT length(vector) FROM vectors")) <= {size}
    _spans_agree(memory)
    assert _terms(memory.database.reader()) == _expected_terms(memory)


def _spans_agree(memory: Memory) -> None:
    """Chunks are numbered from 0, lie in their text, and leave out only white space."""
    for seq, content in memory.database.rows("SELECT seq, content FROM items"):
        sql = 'SELECT position, start, "end" FROM chunks WHERE item = ? ORDER BY position'
        spans = memory.database.rows(sql, seq)
        assert [span[0] for span in spans] == list(range(len(spans)))
        covered = 0
        for _, start, end in spans:
            assert start < end <= len(content)
            assert not content[covered:start].strip()
            covered = max(covered, end)
        assert not content[covered:].strip()


def _terms(connection: apsw.Connection) -> list[tuple[Any, ...]]:
    """Everything that a word index holds: term, row, column, offset."""
    connection.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, words, instance)")
    try:
        return sorted(connection.execute("SELECT * FROM temp.terms"))
    finally:
        connection.execute("DROP TABLE temp.terms")


def _expected_terms(memory: Memory) -> list[tuple[Any, ...]]:
    """The same of an index that is made anew from the texts."""
    fresh = apsw.Connection(":memory:")
    sediment.m001_initial(fresh)
    sql = """SELECT c.id, i.content, c.start, c."end", c.context
        FROM chunks c JOIN items i ON i.seq = c.item"""
    for id, content, start, end, context in memory.database.rows(sql):
        words = sediment.spaced(content[start:end]), sediment.spaced(context)
        fresh.execute("INSERT INTO words(rowid, text, context) VALUES(?, ?, ?)", (id, *words))
    return _terms(fresh)

"""Leave nothing of erased texts in the pages of the file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator

import sediment as core

SEARCHED_BYTES = 1 << 20  # of the file that are read at once, to look for what was erased
_CHARACTERS = 24  # of an erased text's beginning, middle and end that are looked for
_PARTS_MAX = 60  # 0.1 s each among 100,000 memories; with more the file is written anew


def wipe(database: core.Database, texts: Iterable[str]) -> None:
    """Leave nothing of erased texts in the file. SQLite zeroes what it deletes, but not copies that
    it left when it moved rows: then the file is written anew, if there is room for that."""
    database.checkpoint()
    parts = [part for text in texts for part in _telling_parts(text)]
    if len(parts) > _PARTS_MAX or holds(database, parts):
        with contextlib.suppress(core.DatabaseError), database.translate_errors():
            database.writer().execute("VACUUM")
        database.checkpoint()


def holds(database: core.Database, parts: list[str]) -> bool:
    """Whether the file's bytes have one of these parts that no row has. They are read through
    SQLite: closing the file beside it would drop all locks of this process (POSIX)."""
    sql = "SELECT value FROM json_each(?) WHERE NOT EXISTS(SELECT 1 FROM items"
    rows = database.rows(f"{sql} WHERE instr(content, value))", json.dumps(parts))
    sought = [part.encode() for (part,) in rows]
    size, before, longest = database.size(), b"", max(map(len, sought), default=0)
    for start in range(0, size if sought else 0, SEARCHED_BYTES):
        length = min(SEARCHED_BYTES, size - start)
        data = before + database.reader().read("main", 0, start, length)[1]
        if any(part in data for part in sought):
            return True
        before = data[-longest:]
    return False


def _telling_parts(text: str) -> Iterator[str]:
    """Its beginning, middle and end, which tell a text from others, if they are long enough."""
    for start in {0, len(text) // 2, max(0, len(text) - _CHARACTERS)}:
        if len(part := text[start : start + _CHARACTERS]) >= _CHARACTERS // 2:
            yield part

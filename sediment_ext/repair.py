"""Mend a damaged database (`doctor --repair`).

What is derived is made anew from the texts. Where pages are damaged, all that can still be read
of them, and of the log beside them, goes into a new file; what is lost is named.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw

import sediment as core
from sediment_ext import conversations, doctor
from sediment_ext.sync import kept as sync_kept
from sediment_ext.sync import machines


def _read_again(connection: apsw.Connection, items: Iterable[int]) -> None:
    """Delete those of these items that are parts of files, and have the files read again."""
    rows = [(item,) for item in items]
    is_part = f"seq = ? AND file IS NOT NULL AND content_type <> '{core.CONVERSATION}'"
    sql = f"UPDATE files SET digest = x'' WHERE id = (SELECT file FROM items WHERE {is_part})"
    connection.executemany(sql, rows)
    connection.executemany(f"DELETE FROM items WHERE {is_part}", rows)


def mend_chunks(connection: apsw.Connection, encoder: core.Encoder) -> None:
    """Cut the texts anew that `check_spans` finds, and put all chunks in order of their items."""
    wrong = doctor.check_spans(connection)
    for item in wrong:
        connection.execute("DELETE FROM chunks WHERE item = ?", (item,))
        content = connection.execute("SELECT content FROM items WHERE seq = ?", (item,)).get
        chunks = core.split_text(content, encoder.fits)
        connection.executemany(
            'INSERT INTO chunks(item, position, start, "end", context) VALUES(?, ?, ?, ?, ?)',
            [(item, position, *chunk) for position, chunk in enumerate(chunks)],
        )
    if wrong or core.fetch(
        connection, doctor.row_checks()["chunks out of the order of their items"]
    ):
        # Long-lived processes that cache chunks rely on ids in the order of their items.
        sql = "SELECT c.*, v.vector FROM chunks c LEFT JOIN vectors v ON v.chunk = c.id"
        connection.execute(f"CREATE TEMP TABLE again AS {sql}")
        core.replace_chunks(connection, "again")
        connection.execute("DROP TABLE again")


# Reading a damaged file, by the description at https://www.sqlite.org/fileformat2.html.


class Rescued(core.NamedTuple):
    """What can be read of a damaged file."""

    rows: dict[str, dict[int, list[Any]]]  # of each table, values by rowid
    meta: dict[str, str]  # the tables `meta` and `projects`, whose rows look alike
    named: set[str]  # ids that stand in an index
    tokens: list[list[Any]]
    missing: int  # pages that the file has lost
    changed: set[str]  # ids of texts that are not what was stored

    def lost(self) -> list[str]:
        """The ids that an index names and whose rows could not be read."""
        found = {values[1] for values in self.rows["items"].values()}
        return sorted(self.named - found - _FTS5_NAMES)


# Tables by the kinds of value in their columns, by which a row on a page is told to be of them.
_SHAPES = {
    "items": ("n", "s", "s", "s", "sn", "i", "i", "in", "sn", "sn", "i", "in", "in", "in"),
    "chunks": ("n", "i", "i", "i", "i", "s"),
    "vectors": ("n", "b"),
    "access_log": ("s", "i", "in", "i", "i"),
    "graph_edges": ("s", "s", "s", "fi", "s", "i", "i", "i", "b"),
    "history": ("n", "s", "s", "sn", "i", "s"),
    "sources": ("n", "s", "s", "s"),
    "files": ("n", "i", "s", "s", "i", "i", "i", "i", "b", "i"),
    "reviews": ("s", "s", "fi", "i"),
    "clock": ("i", "s", "s", "i", "i", "s", "s"),
    "replica": ("s", "s", "in", "sn", "in", "sn", "sn", "in", "sn", "i", "s", "in", "sn", "s"),
    "marks": ("i", "s", "i"),
}
_KINDS = {type(None): "n", str: "s", int: "i", float: "f", bytes: "b"}
_VECTOR_MIN = 256  # bytes; tables of the word index have such rows too, shorter ones
_SQLITE = b"SQLite format 3\0"  # the first bytes of a file
_PAGE_SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768)
_FTS5_NAMES = {"version", "secure-delete", "pgsz", "rank", "automerge"}  # of its settings
_TABLE_LEAF, _INDEX_PAGES = 0x0D, {0x02: 4, 0x0A: 0}  # and the bytes before a cell's size


def rescue(data: bytes) -> Rescued:
    """All rows of ours that can be read in the pages of a file."""
    size = int.from_bytes(data[16:18], "big")
    if size not in _PAGE_SIZES:  # the first page is damaged
        size = core.PAGE_BYTES
    # SQLite wrote the number of pages if the two counters beside it agree.
    is_sound = data.startswith(_SQLITE) and data[24:28] == data[92:96]
    pages = int.from_bytes(data[28:32], "big") if is_sound else 0
    missing = max(0, pages - len(data) // size)
    found = Rescued({table: {} for table in _SHAPES}, {}, set(), [], missing, set())
    for number, values in _rows_of_pages(data, size):
        if number is not None:
            if table := _table_of(values):
                found.rows[table][number] = values
            continue
        if any(map(_is_undecoded, values)):
            continue
        if (table := _table_of(values)) in ("replica", "marks"):
            # They have no row numbers, as an index has none.
            found.rows[table][len(found.rows[table])] = values
            continue
        kinds = list(map(type, values))
        if kinds == [str, int]:
            found.named.add(values[0])
        elif kinds == [str, str]:
            found.meta[values[0]] = values[1]
        elif kinds in ([str, bytes, int, str, int], [str, bytes, int, type(None), int]):
            found.tokens.append(values)
    _look_at_texts(found)
    return found


def _is_undecoded(value: Any) -> bool:
    """Whether a text is not all UTF-8: `_value` puts U+FFFD for other bytes."""
    return isinstance(value, str) and "\ufffd" in value


def _look_at_texts(found: Rescued) -> None:
    """Leave out the NULs of texts that were written in part, and note changed texts."""
    items = found.rows["items"]
    for number, values in list(items.items()):
        values[_CONTENT] = values[_CONTENT].replace("\0", "")
        if not values[_CONTENT].strip():
            found.named.add(values[1])
            del items[number]
        elif _is_kept(values) and values[_TEXT_HASH] != core.text_hash(values[_CONTENT]):
            found.changed.add(values[1])


def _table_of(values: list[Any]) -> str | None:
    """The table whose rows look like this one."""
    kinds = [_KINDS[type(value)] for value in values]
    others = (value for place, value in enumerate(values) if place != _CONTENT)
    if any("\0" in value for value in others if isinstance(value, str)):
        return None
    for table, shape in _SHAPES.items():
        if len(kinds) == len(shape) and all(map(str.__contains__, shape, kinds)):
            is_word = table == "vectors" and len(values[1]) < _VECTOR_MIN
            # Rows that are not of items can be done without.
            is_unreadable = table != "items" and any(map(_is_undecoded, values))
            return None if is_word or is_unreadable else table
    return None


def _rows_of_pages(data: bytes, size: int) -> Iterator[tuple[int | None, list[Any]]]:
    """(row number, values) of each row of each table, and (None, values) of each index entry."""
    for start in range(0, len(data), size):
        page = data[start : start + size]
        head = 100 if start == 0 else 0
        if len(page) < size or (kind := page[head]) not in (_TABLE_LEAF, *_INDEX_PAGES):
            continue
        first = head + (12 if kind == 0x02 else 8)
        count = int.from_bytes(page[head + 3 : head + 5], "big")
        if first + 2 * count > size:
            continue  # noise
        for place in struct.unpack_from(f">{count}H", page, first):
            with contextlib.suppress(IndexError, ValueError):  # what cannot be read is lost
                yield _cell(data, page, kind, place)


def _cell(data: bytes, page: bytes, kind: int, place: int) -> tuple[int | None, list[Any]]:
    """One cell: its row number, if it is of a table, and its values."""
    size = len(page)  # all of it is used: no extension of ours reserves any
    rowid = None
    length, place = _varint(page, place + _INDEX_PAGES.get(kind, 0))
    if kind == _TABLE_LEAF:
        rowid, place = _varint(page, place)
    most = size - 35 if kind == _TABLE_LEAF else (size - 12) * 64 // 255 - 23
    local = length
    if length > most:
        least = (size - 12) * 32 // 255 - 23
        local = least + (length - least) % (size - 4)
        local = least if local > most else local
    payload = page[place : place + local]
    after = int.from_bytes(page[place + local : place + local + 4], "big")
    return rowid, _values(payload + _overflow(data, after, length - local, size))


def _overflow(data: bytes, page: int, missing: int, size: int) -> bytes:
    """The rest of a long row, from the chain of pages that holds it."""
    parts: list[bytes] = []
    while missing > 0:
        start = (page - 1) * size
        if page < 1 or start + size > len(data):
            raise ValueError("the chain leads out of the file")
        parts.append(data[start + 4 : start + min(size, 4 + missing)])
        missing -= len(parts[-1])
        page = int.from_bytes(data[start : start + 4], "big")
    return b"".join(parts)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for count in range(8):
        value = value << 7 | data[place + count] & 0x7F
        if data[place + count] < 0x80:
            return value, place + count + 1
    return value << 8 | data[place + 8], place + 9


def _values(payload: bytes) -> list[Any]:
    """The values of a record. Raises ValueError where it is not a whole one."""
    end, place = _varint(payload, 0)
    values, at = [], end
    while place < end:
        kind, place = _varint(payload, place)
        length = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[kind] if kind < 12 else (kind - 12) // 2
        part = payload[at : at + length]
        if len(part) < length:
            raise ValueError("a record that ends too early")
        values.append(_value(kind, part))
        at += length
    return values


def _value(kind: int, part: bytes) -> Any:
    """A value of a record, by its serial type."""
    if kind >= 12:
        return part.decode(errors="replace") if kind % 2 else part
    if kind == 7:
        return struct.unpack(">d", part)[0]
    if kind in (8, 9):
        return kind - 8
    return int.from_bytes(part, "big", signed=True) if kind else None


def rebuild(found: Rescued, connection: apsw.Connection, encoder: core.Encoder) -> None:
    """Write what was rescued into a new file; vectors that are missing are queued."""
    model = [row for row in found.meta.items() if row[0] in _MODEL_FACTS]
    notes = [row for row in found.meta.items() if row[0].startswith(_META_KEPT)]
    connection.executemany("INSERT OR IGNORE INTO meta VALUES(?, ?)", model + notes)
    places = [row for row in found.meta.items() if row[0].startswith(core.PROJECT_KEY_KINDS)]
    connection.executemany("INSERT OR IGNORE INTO projects VALUES(?, ?)", places)
    connection.executemany("INSERT OR IGNORE INTO tokens VALUES(?, ?, ?, ?, ?)", found.tokens)
    # Of a model that is noted in part no vector is kept; where nothing is noted, it is today's.
    vectors = found.rows["vectors"] if len(model) in (0, len(_MODEL_FACTS)) else {}
    parts: dict[int, list[tuple[int, core.Chunk, bytes]]] = {}
    for number, (_, item, position, *chunk) in found.rows["chunks"].items():
        _, vector = vectors.get(number, (None, b""))
        parts.setdefault(item, []).append((position, core.Chunk(*chunk), vector))
    marks: dict[int, dict[str, int]] = {}
    for item, name, value in found.rows["marks"].values():
        marks.setdefault(item, {})[name] = value
    sessions = _rescued_sessions(found, connection)
    for number, values in sorted(found.rows["items"].items()):
        if _is_kept(values):  # others `index` reads again
            item = _rescued_item(values, sorted(parts.get(number, [])), encoder)
            own = [] if item.id in found.changed else item.vectors  # else of another text
            file = sessions.get(item.file or 0)
            core.insert_item(connection, item._replace(file=file, vectors=own))
            core.set_marks(connection, item.id, marks.get(number, {}))
    for table in ("access_log", "graph_edges", "history", "sources", "reviews"):
        places = ", ".join("?" * len(_SHAPES[table]))
        sql = f"INSERT OR IGNORE INTO {table} VALUES({places})"
        connection.executemany(sql, found.rows[table].values())
    if found.rows["replica"]:
        _rebuild_sync(found, connection)


def _rebuild_sync(found: Rescued, connection: apsw.Connection) -> None:
    """Keep the states of memories, above all of forgotten ones, so that the next `sync --to` brings
    none back."""
    clocks = sorted(found.rows["clock"].values())
    t, machine, mark, *_ = clocks[-1] if clocks else (0, core.new_id()[:8], "")
    connection.execute(
        core.asset("schema/sync.sql"), {"machine": machine, "mark": mark, "place": ""}
    )
    # A page that is no longer in use may hold an earlier state: the later one is written last.
    states = sorted(
        found.rows["replica"].values(), key=lambda row: (row[9] != 0, max(row[2] or 0, row[4] or 0))
    )
    sql = f"INSERT OR REPLACE INTO replica VALUES({', '.join('?' * len(_SHAPES['replica']))})"
    connection.executemany(sql, states)
    gone = [(id, project, at) for id, project, *_, at, _, _, _, _ in states if at]
    own = [(machine, mark.partition(":")[0], "", 1)]
    sync_kept.sync_as(connection, [(t, machine, mark, 0, 0, "", "{}")], [], own, gone)


# The places of these columns in a row of items.
_CONTENT, _TYPE, _PROJECT, _ENDED_AT, _TEXT_HASH, _FILE = 2, 3, 4, 7, 10, 11
_MODEL_FACTS = ("model_name", "model_digest", "dimension")
# How those keys of `meta` begin whose values can be made from nothing else.
_META_KEPT = (
    core.HOOKS_OFF,
    conversations.UNKEPT,
    core.FORGOTTEN,
    "copy:",
    "model_probe",
    "sent:",
)


def _rescued_sessions(found: Rescued, connection: apsw.Connection) -> dict[int, int | None]:
    """Note sessions again, to be read from the beginning; forgotten ones are not. Returns new rows
    by old."""
    sessions = {  # one whose row is lost gets a name by which its turns can be forgotten
        values[_FILE]: (f"rescued:{values[_FILE]}", values[_PROJECT] or "", 0)
        for values in found.rows["items"].values()
        if _is_part(values) and values[_TYPE] == core.CONVERSATION
    }
    for number, (_, _, path, project, size, *_) in found.rows["files"].items():
        if not os.path.isabs(path):
            sessions[number] = path, project, min(size, 0)
    return {
        number: conversations.write_session(connection, *facts)
        for number, facts in sessions.items()
    }


def _is_part(values: list[Any]) -> bool:
    """Whether a row of items is a part of a file or a turn."""
    return values[_FILE] is not None


def _is_kept(values: list[Any]) -> bool:
    """Whether a row of items is a memory or a turn, which stands nowhere else."""
    return not _is_part(values) or values[_TYPE] == core.CONVERSATION


def _counted_as(values: list[Any]) -> str:
    """As what `count_items` counts a row of items."""
    if _is_part(values):
        return "turns" if values[_TYPE] == core.CONVERSATION else "file_parts"
    return "items" if values[_ENDED_AT] is None else "hidden_versions"


def _rescued_item(
    values: list[Any], parts: list[tuple[int, core.Chunk, bytes]], encoder: core.Encoder
) -> core.Item:
    """An item as it was, with its chunks and vectors if all of them were found."""
    _, id, content, kind, project, created, _, ended, by, successor, *_ = values
    chunks, vectors = [part[1] for part in parts], [part[2] for part in parts]
    if not doctor.spans_cover(content, [(part[0], part[1].start, part[1].end) for part in parts]):
        chunks, vectors = core.split_text(content, encoder.fits), []
    vectors = vectors if all(vectors) else []
    facts = id, content, kind, project, created, chunks, vectors, ended, by, successor
    return core.Item(*facts, *values[_FILE:])


def refuse_others(path: Path) -> None:
    """DatabaseError for a sound database of another program or version."""
    with (
        contextlib.suppress(apsw.Error),
        contextlib.closing(core.open_connection(path)) as connection,
    ):
        tables = {name for (name,) in core.fetch(connection, "SELECT name FROM sqlite_schema")}
        is_ours = not tables or "items" in tables
        fault = core.version_fault(connection, path) if is_ours else core.another_programs(path)
        if fault and not core.check_pages(connection):
            raise fault


def repair_database(database: core.Database, encoder: core.Encoder) -> dict[str, Any]:
    """Mend the model and the file, each if it is broken."""
    refuse_others(database.path)
    core.remove_abandoned_drafts(database.path)
    healthy, remark = _mend_model(encoder)
    if _has_sound_contents(database, encoder):
        return {"healthy": healthy, "message": remark or "Nothing is broken."}
    answer = _mend_file(database, encoder)
    healthy = healthy and _has_sound_contents(database, encoder)
    message = f"{answer['message']} The file from before is {answer['kept']}. {remark}".rstrip()
    return {"healthy": healthy, **answer, "message": message}


def _mend_file(database: core.Database, encoder: core.Encoder) -> dict[str, Any]:
    """Mend the contents, or rebuild page by page if the pages or the schema are damaged."""
    if _has_sound_pages(database):
        with contextlib.suppress(core.DamagedError):
            return _mend_contents(database, encoder)
    return _mend_pages(database, encoder)


def _has_sound_contents(database: core.Database, encoder: core.Encoder) -> bool:
    return all(check.status != "broken" for check in doctor.check_contents(database, encoder))


def _has_sound_pages(database: core.Database) -> bool:
    with contextlib.suppress(core.DatabaseError):
        return doctor.fault_of_pages(database) is None
    return False


def _mend_model(encoder: core.Encoder) -> tuple[bool, str]:
    """Unpack the bundled model again if it is broken: whether it is sound now, and a remark."""
    try:
        encoder.model.check(full=True)
        return True, ""
    except core.ModelError as error:
        reason = f"Not repaired: {error}."
    if core.takes_bundled_model() and core.restore_program():
        with contextlib.suppress(core.ModelError):
            encoder.model.check(full=True)
            return True, "Restored the model."
    return False, reason


def _mend_contents(database: core.Database, encoder: core.Encoder) -> dict[str, Any]:
    """Make a copy of the file, then make anew what is derived from its texts."""
    kept = core.aside(database.path, "before-repair")
    core.copy_database(database.reader(), kept)
    with database.transaction() as connection, machines.unsynced(connection):
        _mend_unreadable(connection)
        damaged, lost = _take_as_stored(connection)
        rebuild_derived(connection, encoder)
        machines.prefer_others(connection, damaged, lost)
        core.note_copy(connection, kept)
    message = "Rebuilt everything that did not match the texts."
    message += f" Of texts {_lost_phrase(lost)}." if lost else ""
    message += _damaged_texts_message(damaged)
    return {"kept": str(kept), "lost": lost, "message": message}


def _mend_unreadable(connection: apsw.Connection) -> None:
    """Put U+FFFD for what is not UTF-8: a text is not what was stored then."""
    for table, column, data, _ in list(core.unreadable_texts(connection)):
        sql = f"UPDATE {table} SET {column} = ? WHERE {column} = CAST(? AS TEXT)"
        connection.execute(sql, (data.decode(errors="replace"), data))


def _take_as_stored(connection: apsw.Connection) -> tuple[set[str], list[str]]:
    """Accept changed texts as they are, without NULs and vectors. Returns their ids, and those of
    texts of which nothing is left. Files are read again."""
    found = doctor.check_texts(connection)
    _read_again(connection, found.values())
    taken, lost = set[str](), list[str]()
    for id, seq in found.items():
        content = connection.execute("SELECT content FROM items WHERE seq = ?", (seq,)).get
        if content is None:  # it was a part of a file
            continue
        content = content.replace("\0", "")
        if not content.strip():
            core.erase_item(connection, id, alone=True)
            lost.append(id)
            continue
        sql = "UPDATE items SET content = ?, text_hash = ? WHERE seq = ?"
        connection.execute(sql, (content, core.text_hash(content), seq))
        sql = "DELETE FROM vectors WHERE chunk IN (SELECT id FROM chunks WHERE item = ?)"
        connection.execute(sql, (seq,))
        taken.add(id)
    return taken, lost


def _mend_pages(database: core.Database, encoder: core.Encoder) -> dict[str, Any]:
    """Put what can be read of a damaged file into a new one, which takes its place."""
    live = database.path
    draft, kept = core.draft_of(core.aside(live, "rescued")), core.aside(live, "damaged")
    with database.translate_errors(), _nobody_writes(database):
        found = rescue(remains_of(live))
        try:
            with contextlib.closing(core.Database(draft)) as new, new.transaction() as connection:
                rebuild(found, connection, encoder)
                with machines.unsynced(connection):
                    rebuild_derived(connection, encoder)
                machines.prefer_others(connection, found.changed, ())
                core.note_copy(connection, kept)
            core.exchange_file(database, draft, kept)
        finally:
            draft.unlink(missing_ok=True)
    counts = dict(Counter(map(_counted_as, found.rows["items"].values())))
    rescued, lost = counts.pop("items", 0), found.lost()
    message = (
        f"Rescued {core.counts_phrase({'items': rescued} | counts)} from the pages that can be read"
    )
    message += f"; {_lost_phrase(lost)}."
    if found.missing:
        message += f" The file is {found.missing} pages shorter than it was, and what stood"
        message += " there is lost, too."
    message += _damaged_texts_message(found.changed)
    if not (rescued or counts or lost):
        message = "No memory could be read: the database is new and empty."
    if "file_parts" in counts:
        message += " Run `index` to read parts of files again."
    if found.rows["replica"]:
        message += " It no longer syncs: run `sync --to` and `sync --share` again."
    return {"kept": str(kept), "rescued": rescued, "lost": lost, **counts, "message": message}


@contextlib.contextmanager
def _nobody_writes(database: core.Database) -> Iterator[None]:
    """Lock a damaged file, as far as SQLite can read it, until a new one has its name."""
    database.close()
    with contextlib.closing(core.open_connection(database.path)) as connection:
        connection.set_busy_handler(core.make_busy_handler())
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # its log is left as it is
        with contextlib.suppress(apsw.Error):
            connection.execute("BEGIN IMMEDIATE")
        yield


def _lost_phrase(ids: list[str]) -> str:
    if not ids:
        return "nothing is lost"
    more = len(ids) - core.REFUSED_SHOWN
    rest = f" and {more} more (--json names them all)" if more > 0 else ""
    return f"{len(ids)} could not be: {', '.join(ids[: core.REFUSED_SHOWN])}{rest}"


def _damaged_texts_message(ids: Collection[str]) -> str:
    """Which texts a person should look at."""
    shown = core.some_of(sorted(ids), core.REFUSED_SHOWN)
    return f" Of {len(ids)} the text is not what was stored: look at {shown}." if ids else ""


def remains_of(path: Path) -> bytes:
    """The bytes of a damaged file. DamagedError if nothing shows that it was ever ours."""
    data = _merged(path)
    mark = core.APPLICATION_ID.to_bytes(4, "big")
    is_ours = data.startswith(_SQLITE) and data[68:72] == mark
    if data and not is_ours and not rescue(data).rows["items"]:
        reason = "is not a Sediment database, damaged or not: choose another with --db"
        raise core.DamagedError(f"{path} {reason}, or move it away")
    return data


def _merged(path: Path) -> bytes:
    """The bytes of a damaged file with the pages that were committed to its log. The log is read
    first: a server that ends writes it into the file and deletes it."""
    log = b""
    try:
        with contextlib.suppress(FileNotFoundError):
            log = Path(f"{path}-wal").read_bytes()
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise core.DatabaseError(f"{path} cannot be read ({error.strerror})") from None
    size, waiting = int.from_bytes(log[8:12], "big"), list[tuple[int, bytes]]()
    for at in range(32, len(log) - size - 23, size + 24):
        number, is_commit, salts = struct.unpack_from(">II8s", log, at)
        if salts != log[16:24]:  # what follows is of an earlier log
            break
        waiting.append(((number - 1) * size, log[at + 24 : at + 24 + size]))
        for start, page in waiting if is_commit else ():
            data.extend(bytes(max(0, start - len(data))))
            data[start : start + size] = page
        waiting = [] if is_commit else waiting
    return bytes(data)


def rebuild_derived(connection: apsw.Connection, encoder: core.Encoder) -> None:
    """Make anew what is derived and does not agree with the texts, within a transaction of the
    caller. Chunks without a vector are queued."""
    connection.execute(core.asset("sql/mend_files.sql"))
    _read_again(connection, doctor.check_spans(connection))
    for table, column in core.MENTIONS:
        connection.execute(f"DELETE FROM {table} WHERE {column} NOT IN (SELECT id FROM items)")
    connection.execute(core.asset("sql/mend_items.sql"))
    mend_chunks(connection, encoder)
    dimension = core.vector_dimension(connection, encoder)
    wrong = [(chunk,) for chunk in doctor.check_vectors(connection, dimension)]
    connection.executemany("DELETE FROM vectors WHERE chunk = ?", wrong)
    connection.execute("""
        DELETE FROM vectors WHERE chunk NOT IN (SELECT id FROM chunks);
        DELETE FROM pending;
        INSERT INTO pending SELECT id FROM chunks WHERE id NOT IN (SELECT chunk FROM vectors);
    """)
    core.fill_words(connection)
    core.new_generation(connection)

"""Memories as JSON Lines, in and out: one memory a line, with its id, so that a second import of a
file changes nothing."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apsw

import sediment as core

_ENDED = ("ended_at", "ended_by", "successor")


def export_rows(database: core.Database) -> Iterator[dict[str, Any]]:
    """Every item of the database by seq, replaced ones and other projects' included, but no parts
    of files. What is added meanwhile is left out: the caller may import these rows here."""
    span = "seq > ? AND seq <= ? AND file IS NULL"
    sql = f"SELECT {core.ITEM_COLUMNS} FROM items i WHERE {span} ORDER BY seq LIMIT 500"
    last, decisions = 0, _decisions(database)
    end = database.value("SELECT coalesce(max(seq), 0) FROM items")
    while rows := [core.item_from(row) for row in database.rows(sql, last, end)]:
        for row in rows:
            yield core.shared_facts(row) | decisions.get(row["id"], {})
        last = rows[-1]["seq"]


def _decisions(database: core.Database) -> dict[str, dict[str, Any]]:
    """What people decided about items, by id: how often they confirmed one, and the ids that they
    took apart from it or kept beside it."""
    sql = "SELECT item_id, validation_count FROM access_log WHERE validation_count > 0"
    counts = database.rows(sql)
    found: dict[str, dict[str, Any]] = {id: {"confirmed": count} for id, count in counts}
    apart = (
        "SELECT item_id AS one, other_id AS other FROM history WHERE action = 'undo'"
        " UNION ALL SELECT old_id, new_id FROM reviews WHERE kept"
    )
    pairs = database.rows(
        f"SELECT DISTINCT a.id, b.id FROM ({apart}) JOIN items a ON a.id IN (one, other)"
        " JOIN items b ON b.id IN (one, other) AND b.id <> a.id"
        " WHERE a.successor IS NOT b.id AND b.successor IS NOT a.id ORDER BY b.id"
    )
    for id, other in pairs:
        found.setdefault(id, {}).setdefault("kept_apart", []).append(other)
    return found


def _adopt_decisions(connection: apsw.Connection, row: dict[str, Any]) -> None:
    """Store what `_decisions` exported of an item that came by import."""
    if row["confirmed"]:
        core.add_counts(connection, row["id"], 0, row["confirmed"])
    for other in row["kept_apart"]:
        is_here = connection.execute("SELECT 1 FROM items WHERE id = ?", (other,)).get
        if is_here and not connection.execute(core.taken_apart(), (row["id"], other)).get:
            core.keep_apart(connection, other, row["id"])  # nothing came back here by an undo


_IMPORTED = {
    *("id", "content", "created", "created_at", "scope", "project"),
    *("ended", *_ENDED, "confirmed", "kept_apart", "tags", "expires", "expires_at"),
}


def rows_in(lines: Iterable[Any]) -> Iterator[tuple[int, object]]:
    """(line number, row) of JSON Lines; the row is None for what is not JSON. A list given instead
    of a line has several rows, of one line of another program's file."""
    for number, line in enumerate(lines, 1):
        if isinstance(line, list):
            yield from ((number, row) for row in line)
        elif not isinstance(line, str):
            yield number, line
        elif line.strip():
            try:
                yield number, core.parse_json(line)
            except (ValueError, RecursionError):
                yield number, None


def too_large(what: str) -> core.InvalidInput:
    reason = f"is too large: the limit is {core.DOCUMENT_MAX / 1e6:.0f} MB"
    return core.InvalidInput(f"{what} {reason}; what came before is kept")


# Whether the chain of successors that begins at ?1 leads to ?2.
_COMES_BACK = (
    "WITH RECURSIVE ahead(id) AS (SELECT ?1 UNION"
    " SELECT i.successor FROM items i JOIN ahead USING (id) WHERE i.successor IS NOT NULL)"
    " SELECT 1 FROM ahead WHERE id = ?2"
)


class Importer:
    """Reads JSON Lines into items; each batch is committed before the next is read.

    project        what rows that name no project get
    allow_secrets  whether what looks like a credential is kept
    """

    def __init__(
        self,
        database: core.Database,
        encoder: core.Encoder,
        project: str | None,
        allow_secrets: bool,
    ) -> None:
        self.database, self.encoder = database, encoder
        self.project, self.allow_secrets = project, allow_secrets
        self.counts = Counter(stored=0, existing=0)  # rows by what became of them
        self.refused: list[tuple[int, str]] = []  # (line, reason)
        self.redacted: Counter[str] = Counter()  # by kind
        self.unknown: Counter[str] = Counter()  # fields that were not kept
        self._nameless: Counter[tuple[Any, ...]] = Counter()  # rows without an id, by what they say
        # All rows without a time get the same: that a line came later makes it no newer.
        self._moment = core.present()
        self._batch: dict[str, str] = {}  # texts by id, of the batch that is being read
        self._synced = core.is_synced(database)

    def run(
        self, lines: Iterable[str | dict[str, Any]], progress: core.Progress | None = None
    ) -> dict[str, Any]:
        """Import all lines (or rows), and return what became of them; calls `progress` after each
        commit with the number of its rows."""
        from concurrent.futures import ThreadPoolExecutor

        with self.encoder.parallel_encoding() as count, ThreadPoolExecutor(count) as workers:
            for batch in core.batches(rows_in(lines), core.IMPORT_BATCH):
                new = list(self._new_rows(batch))
                self._store(new, workers.map(self._item, (row for _, row in new)))
                if progress:
                    progress(len(batch))
        return self._answer()

    def foresee(self, lines: Iterable[str | dict[str, Any]]) -> dict[str, Any]:
        """What `run` would answer; nothing is stored."""
        self.counts["stored"] = sum(1 for _ in self._new_rows(rows_in(lines)))
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        refused = [{"line": line, "reason": reason} for line, reason in sorted(self.refused)]
        remarks = {
            "hidden_versions": self.counts.pop("hidden", 0),
            "redacted": dict(self.redacted),
            "forgotten": self.counts.pop("forgotten", 0),
            "unknown_fields": dict(self.unknown),
        }
        answer = {"success": not refused, **self.counts, "refused": refused}
        return answer | {name: value for name, value in remarks.items() if value}

    def _new_rows(
        self, batch: Iterable[tuple[int, object]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number, checked row) of the rows that can be stored and are not there yet."""
        for number, value in batch:
            try:
                row = self._checked(value)
                if not self._is_new(row):
                    continue
            except core.SedimentError as error:
                self.refused.append((number, str(error)))
                continue
            self.redacted.update(row["redacted"])
            self.unknown.update(row["unknown"])
            yield number, row

    def _checked(self, row: object) -> dict[str, Any]:
        """A row as it is stored. Raises a SedimentError that says what is wrong with it."""
        if isinstance(row, core.SedimentError):  # why there is no row
            raise row
        if not isinstance(row, dict):
            raise core.InvalidInput("not a JSON object in one line")
        if row.keys() & {"position", "pages"} or row.keys() >= {"source", "created_at"}:
            raise core.InvalidInput(
                "this is a part of something longer: import what `export` writes"
            )
        content = core.check_text(row.get("content"), "content", core.CONTENT_MAX)
        content, kinds = core.cleaned(content, self.allow_secrets)
        for name in ("id", "project", "successor"):
            core.refuse_credential(name, str(row.get(name)), self.allow_secrets)
        created, ended = _time_of(row, "created"), _time_of(row, "ended")
        by, successor = row.get("ended_by"), row.get("successor")
        by = by if by is None else core.check_scope(by, core.WHY_ENDED, "ended_by")
        project, id = self._project_of(row), row.get("id")
        if (ended is None or by == core.PRUNED) != (successor is None):
            raise core.InvalidInput("ended_at and successor go together: give both or neither")
        return {
            "redacted": kinds,
            "unknown": row.keys() - _IMPORTED,
            "id": self._derived_id(content, project, created) if id is None else core.check_id(id),
            "content": content,
            "project": project,
            "created_at": self._moment if created is None else created,
            "ended_at": ended,
            "ended_by": by if ended is not None else None,
            "successor": None if successor is None else core.check_id(successor),
            "marks": self._marks_of(row),
            **_decided(row),
        }

    def _marks_of(self, row: dict[str, Any]) -> dict[str, int]:
        """The tags and the end of a row, which may be past. Other programs have tags of several
        words."""
        given = row.get("tags") or []
        if not isinstance(given, list):
            raise core.InvalidInput(f"tags must be a list, not {core.shown_value(given)}")
        tags = core.check_tags(re.sub("""[\\s,'"]+""", "-", str(tag).strip()) for tag in given)
        for tag in tags:
            core.refuse_credential("tag", tag, self.allow_secrets)
        return {core.EXPIRY: _time_of(row, "expires") or 0} | dict.fromkeys(tags, 1)

    def _project_of(self, row: dict[str, Any]) -> str | None:
        """The project that a row names, or is to be in where it names none."""
        if row.get("scope") is not None and core.check_scope(row["scope"]) == "global":
            return None
        return self.project if row.get("project") is None else core.check_project(row["project"])

    def _derived_id(self, content: str, project: str | None, created: int | None) -> str:
        """The id of a row without one: the same for the n-th row of a project with this text and
        time, in any file."""
        facts = project, content, *([] if created is None else [created])
        self._nameless[facts] += 1
        name = core.to_json(["sediment", self._nameless[facts], *facts])
        return str(uuid.uuid5(uuid.NAMESPACE_OID, name))

    def _is_new(self, row: dict[str, Any]) -> bool:
        """Whether a row is to be stored; else it is counted. Raises Conflict where its id is that
        of another memory."""
        id = row["id"]
        sql = "SELECT content FROM items WHERE id = ?"
        stored = self._batch.get(id) or self.database.value(sql, id)
        forgotten = "SELECT 1 FROM replica WHERE id = ? AND gone"
        if stored is None and self._synced and self.database.value(forgotten, id):
            self.counts["forgotten"] += 1
            return False
        if stored is None:
            self._batch[id] = row["content"]
            return True
        if stored != row["content"]:
            raise core.Conflict(f"another memory has the id {id}: forget it, or change this id")
        self.counts["existing"] += 1
        return False

    def _store(self, rows: list[tuple[int, dict[str, Any]]], made: Iterable[core.Item]) -> None:
        """Write the items made of the rows of a batch, in one transaction."""
        items = list(made)
        self._batch.clear()
        with self.database.transaction() as connection:
            vectors = any(item.vectors for item in items)
            usable = vectors and core.claim_model(connection, self.encoder.model)
            for (number, row), item in zip(rows, items, strict=True):
                chain = item.successor, item.id
                if item.successor and connection.execute(_COMES_BACK, chain).get:
                    self.refused.append((number, f"{item.id} would be hidden behind itself"))
                elif core.insert_item(connection, item if usable else item._replace(vectors=[])):
                    _adopt_decisions(connection, row)
                    core.set_marks(connection, row["id"], row["marks"])
                    self.counts.update(stored=1, hidden=item.ended_at is not None)
                else:  # another process stored it a moment ago
                    try:
                        self._is_new(row)
                    except core.Conflict as error:
                        self.refused.append((number, str(error)))

    def _item(self, row: dict[str, Any]) -> core.Item:
        facts = row["id"], row["content"], row["project"], row["created_at"]
        # A service makes the vectors later, many with one request.
        database = None if self.encoder.model.destination else self.database
        item = core.prepare_item(database, self.encoder, *facts)
        return item._replace(stored_at=self._moment, **{name: row[name] for name in _ENDED})


def _time_of(row: dict[str, Any], name: str) -> int | None:
    """A row's time in unix seconds, from the field `name`_at or from `name`."""
    given = row.get(name) if row.get(f"{name}_at") is None else row[f"{name}_at"]
    return None if given is None else core.parse_moment(given)


def _decided(row: dict[str, Any]) -> dict[str, Any]:
    """The checked fields of `_decisions`: confirmed and kept_apart."""
    confirmed, ids = row.get("confirmed") or 0, row.get("kept_apart") or []
    if type(confirmed) is not int or not 0 <= confirmed < 2**31:
        raise core.InvalidInput(
            f"confirmed must be a whole number, not {core.shown_value(confirmed)}"
        )
    if not isinstance(ids, list):
        raise core.InvalidInput(f"kept_apart must be a list of ids, not {core.shown_value(ids)}")
    return {"confirmed": confirmed, "kept_apart": list(map(core.check_id, ids))}


def text_lines(file: Any) -> Iterator[str]:
    """The lines of a binary file of JSON Lines. Bytes that are not UTF-8 become lone surrogates, so
    that only their row is refused. Raises InvalidInput for a line that is too large, or UTF-16."""
    is_first = True
    while line := file.readline(core.DOCUMENT_MAX + 1):
        if len(line) > core.DOCUMENT_MAX:
            raise too_large("a line of the file")
        if is_first and (reason := core.why_not_utf8(line)):
            raise core.InvalidInput(f"the file {reason}")
        is_first = False
        yield line.removeprefix(core.UTF8_MARK).decode("utf-8", "surrogateescape")

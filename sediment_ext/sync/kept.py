"""What sync adds to restoring, forgetting and pruning: the core calls it by `late`."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import apsw

import sediment as core


def keep_sync(database: core.Database, copy: apsw.Connection) -> str:
    """Let a copy sync as this database does, or not at all, so that somebody else's copy does not
    sync with their machines; and bring back nothing that was forgotten here. Returns a remark."""
    here: dict[str, list[Any]] = {}
    with contextlib.suppress(core.DamagedError):
        if core.is_synced(database):
            here = {name: database.rows(f"SELECT * FROM {name}") for name in ("spaces", "machines")}
            sql = "SELECT id, project, gone FROM replica WHERE gone"
            here |= {"gone": database.rows(sql), "clock": database.rows("SELECT * FROM clock")}
    if not copy.execute("SELECT 1 FROM sqlite_schema WHERE name = 'replica'").get:
        if "clock" not in here:
            return ""
        me = {"machine": here["clock"][0][1], "mark": "", "place": ""}
        copy.execute(core.asset("schema/sync.sql"), me)
    elif "clock" not in here:
        place = copy.execute("SELECT place FROM clock").get
        core.stop_syncing(copy)
        remedy = "`sync --to` and `sync --share` have this file do so"
        return f" The copy syncs with {place}: {remedy}." if place else ""
    with copy:
        forgotten = sync_as(copy, **here)
    return f" Forgotten since, and not brought back: {forgotten}." if forgotten else ""


def sync_as(
    copy: apsw.Connection, clock: list[Any], spaces: list[Any], machines: list[Any], gone: list[Any]
) -> int:
    """Have a copy sync as these rows say, and send all again. Returns how many of its memories
    were erased, since they were forgotten later."""
    t, machine, mark, number, _, place, _ = clock[0]
    copy.execute(
        "UPDATE clock SET t = max(t, ?), number = max(number, ?) + 1, machine = ?, mark = ?,"
        " place = ?, cursor = '{}', applying = 1",
        (t, number, machine, mark, place),
    )
    copy.execute("UPDATE replica SET number = (SELECT number FROM clock)")
    copy.execute("DELETE FROM spaces; DELETE FROM machines")
    copy.executemany("INSERT INTO spaces VALUES(?, ?)", spaces)
    copy.executemany("INSERT INTO machines VALUES(?, ?, ?, ?)", machines)
    forgotten = sum(core.erase_item(copy, id, alone=True) for id, *_ in gone)
    columns = "replica(id, project, gone, number)"
    sql = f"INSERT OR REPLACE INTO {columns} SELECT ?, ?, ?, number FROM clock"
    copy.executemany(sql, gone)
    copy.execute("UPDATE clock SET applying = 0")
    return forgotten


_ENDED_HERE = (
    " AND NOT EXISTS(SELECT 1 FROM replica r WHERE r.id = i.id AND r.project ="
    " coalesce(i.project_id, '') AND r.end_w NOT IN (SELECT name FROM machines WHERE mine))"
)


def own_endings(database: core.Database) -> str:
    """SQL: what others have pruned is theirs to erase, unless they moved it to where none here sees
    it."""
    return _ENDED_HERE if core.is_synced(database) else ""


def remark_on_forgotten(database: core.Database, ids: list[str]) -> str:
    """What happens on other machines to memories that are forgotten here."""
    if not core.is_synced(database):
        return ""
    sql = (
        "SELECT number IS NULL, project IN (SELECT project FROM spaces) FROM replica"
        " WHERE id IN (SELECT value FROM json_each(?))"
    )
    rows = database.rows(sql, json.dumps(ids))
    if any(shared for _, shared in rows):
        return " Where it was sent it goes with the next `sync`; `sync --status` says where."
    if any(sent for sent, _ in rows):
        if not database.value("SELECT place FROM clock"):
            return " It stays where it was sent until this memory syncs there again."
        return " It stays where it was sent until the project is shared again: `sync --share NAME`."
    return ""

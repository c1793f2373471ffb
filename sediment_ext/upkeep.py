"""Upkeep by hand: make all vectors again (`reindex`), hide what is old (`prune`) and erase it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apsw

import sediment as core
from sediment_ext.sync import kept as sync_kept

_UNSTAGED = (
    f"SELECT seq, content, file IS NOT NULL AND content_type <> '{core.CONVERSATION}' FROM items"
    " WHERE seq > ? AND seq <= ?"
    " AND NOT EXISTS(SELECT 1 FROM staged WHERE item = seq) ORDER BY seq"
)

_STAGE = (  # unless the item was forgotten meanwhile
    "INSERT OR IGNORE INTO staged SELECT ?1, ?2, ?3, ?4, ?5, ?6"
    " WHERE EXISTS(SELECT 1 FROM items WHERE seq = ?1)"
)

_STAGE_LATE = (  # what was stored meanwhile, without its vectors if they are of another model
    'INSERT INTO staged SELECT c.item, c.position, c.start, c."end", c.context,'
    " coalesce(v.vector, x'') FROM chunks c LEFT JOIN vectors v ON v.chunk = c.id AND ?"
    " WHERE c.item NOT IN (SELECT item FROM staged)"
)


def reindex(
    database: core.Database, encoder: core.Encoder, progress: core.Progress, stop: core.Stop
) -> dict[str, Any]:
    """Stage new chunks and vectors of all items that are there now, then replace the old ones.
    What is stored meanwhile keeps its own vectors or is left pending, so that this comes to an end.
    Raises DatabaseError where another process does the same for another model."""
    database.must_exist()
    goal = f"{encoder.model.digest} {core.CHUNKER}"
    with database.transaction() as connection:
        if core.meta_value(connection, "reindex") != goal:
            connection.execute("DELETE FROM staged")
            core.set_meta(connection, "reindex", goal)
    last, end = 0, database.value("SELECT coalesce(max(seq), 0) FROM items")
    progress(database.value("SELECT count(DISTINCT item) FROM staged"))
    while batch := database.rows(f"{_UNSTAGED} LIMIT {core.REINDEX_BATCH}", last, end):
        if stop():
            return {"success": False, "message": "Interrupted. Run `reindex` again to continue."}
        rows = _staged_rows(database, encoder, batch)
        with database.transaction() as connection:
            _check_goal(connection, goal)
            connection.executemany(_STAGE, rows)
        progress(len(batch))
        last = batch[-1][0]
    _switch(database, goal, encoder.model)
    chunks, counts = database.value("SELECT count(*) FROM chunks"), core.database_counts(database)
    made = f"{core.number_of(chunks, 'chunk')} of {core.counts_phrase(counts)}"
    message = f"Reindexed {made} with {encoder.model.name}."
    return {"success": True, **counts, "chunks": chunks, "message": message}


def _staged_rows(
    database: core.Database, encoder: core.Encoder, items: list[tuple[int, str, bool]]
) -> list[tuple[Any, ...]]:
    rows, texts = [], []
    for item, content, is_part in items:
        if not is_part:
            chunks = core.split_text(content, encoder.fits)
        else:  # it cannot be cut without the rest of its file: `index` looks again
            sql = 'SELECT start, "end", context FROM chunks WHERE item = ? ORDER BY position'
            chunks = [core.Chunk(*row) for row in database.rows(sql, item)]
        rows += [(item, position, *chunk) for position, chunk in enumerate(chunks)]
        texts += [core.embedding_text(content, chunk) for chunk in chunks]
    vectors = encoder.embed_all(texts, patient=True)
    return [(*row, vector) for row, vector in zip(rows, vectors, strict=True)]


def _check_goal(connection: apsw.Connection, goal: str) -> None:
    """DatabaseError when what is staged is by now for another model or chunker."""
    if core.meta_value(connection, "reindex") != goal:
        raise core.DatabaseError("another process has reindexed meanwhile: see `status`")


def _switch(database: core.Database, goal: str, model: core.Model) -> None:
    """Replace all chunks and vectors by those staged, and add what was stored meanwhile."""
    with database.transaction() as connection:
        _check_goal(connection, goal)
        connection.execute(_STAGE_LATE, (core.claim_model(connection, model),))
        core.replace_chunks(connection, "staged")
        connection.execute("""
            INSERT INTO pending SELECT id FROM chunks WHERE id NOT IN (SELECT chunk FROM vectors);
            DELETE FROM staged;
            DELETE FROM embeddings;
            UPDATE files SET digest = x'';
            DELETE FROM meta WHERE key IN
                ('model_name', 'model_digest', 'model_probe', 'dimension', 'reindex');
        """)
        core.fill_words(connection)
        core.new_generation(connection)
        core.claim_model(connection, model)


def prune(
    projects: core.Projects,
    scope: str,
    before: int,
    confirmed: bool,
    all_machines: bool,
    dry_run: bool,
) -> dict[str, Any]:
    """Hide what is older than a time (unix seconds) in a scope, and was not shown since."""
    database, where = projects.database, core.in_scope(scope, projects.current())
    return pruned(
        database, lambda: prunable(database, before, where, confirmed, all_machines), dry_run
    )


Prunable = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # what is to be hidden, what stays


def pruned(database: core.Database, found: Callable[[], Prunable], dry_run: bool) -> dict[str, Any]:
    """Hide what is found: {count, items, kept, dry_run?}."""
    doomed, kept = found()
    if not dry_run and doomed:
        with database.transaction() as connection:
            doomed, kept = found()  # by now
            for row in doomed:
                core.prune_item(connection, row["id"])
    answer = {"count": len(doomed), "items": doomed, "kept": kept}
    return answer | ({"dry_run": True} if dry_run else {})


_SHARED = "shared"  # why something is not pruned: nobody here knows who recalled it elsewhere


def prunable(
    database: core.Database,
    before: int,
    scope: tuple[str, tuple[str | None, ...]],
    confirmed: bool,
    all_machines: bool,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is older than a time: what is to be hidden, and what stays, with the reasons."""
    where, values = scope
    spaces = (
        "SELECT project FROM spaces" if core.is_synced(database) and not all_machines else "NULL"
    )
    sql = (
        f"SELECT {core.ITEM_COLUMNS}, a.last_accessed_at, a.validation_count,"
        " EXISTS(SELECT 1 FROM items o WHERE o.successor = i.id),"
        f" coalesce(coalesce(i.project_id, '') IN ({spaces}), false)"
        " FROM items i LEFT JOIN access_log a ON a.item_id = i.id"
        f" WHERE {where} AND i.created_at < {before:d} ORDER BY i.created_at, i.seq"
    )
    doomed, kept = [], []
    for *columns, shown, validations, newer, in_space in database.rows(sql, *values):
        reasons = [f"recalled {core.iso_time(shown)[:10]}"] if (shown or 0) >= before else []
        reasons += ["confirmed"] if validations and not confirmed else []
        reasons += ["replaced another"] if newer and not confirmed else []
        reasons += [_SHARED] if in_space else []
        row = core.listed_facts(core.item_from(tuple(columns)))
        kept.append(row | {"why": ", ".join(reasons)}) if reasons else doomed.append(row)
    return doomed, kept


def purge(projects: core.Projects, scope: str, dry_run: bool) -> dict[str, Any]:
    """Erase what `prune` has hidden in a scope, or only list it."""
    database, project = projects.database, None if scope == "global" else projects.current()
    if project is None and scope == "project":
        return {"count": 0, "message": "Erased nothing: there is no project here."}
    sql = (
        f"SELECT {core.ITEM_COLUMNS} FROM items i WHERE project_id IS ? AND (ended_at IS NULL"
        f" AND seq IN past OR ended_by = '{core.PRUNED}' AND ended_at IS NOT NULL)"
        f"{sync_kept.own_endings(database)}"
        " ORDER BY created_at, seq"
    )
    rows = list(map(core.item_from, database.rows(sql, project)))
    texts = core.texts_of(database.reader(), [row["id"] for row in rows])
    if rows and not dry_run:
        with database.transaction() as connection:
            rows = list(map(core.item_from, core.fetch(connection, sql, project)))  # by now
            texts = core.texts_of(connection, [row["id"] for row in rows])
            for row in rows:
                core.erase_item(connection, row["id"])
        core.wipe(database, texts)
    count = f"{core.number_of(len(rows), 'memory')}{core.and_versions(len(texts) - len(rows))}"
    if dry_run:
        message = f"Would erase {count}."
        items = list(map(core.listed_facts, rows))
        return {"count": len(rows), "items": items, "dry_run": True, "message": message}
    message = f"Erased {count}."
    return {"count": len(rows), **core.left_in_copies(database), "message": message}


def render_pruned(answer: dict[str, Any]) -> Iterator[str]:
    """What was hidden or erased, or would be; and what stays though it is as old."""
    yield from map(core.memory_line, answer.get("items", ()))
    if "kept" not in answer:
        yield from core.render_forgotten(answer)
        return
    count, kept = answer["count"], answer["kept"]
    done = "would be hidden" if answer.get("dry_run") else "hidden"
    done += "; `undo ID` restores one" if count and done == "hidden" else ""
    yield f"{core.number_of(count, 'memory')} {done}." if count or kept else "Nothing is that old."
    yield from ["Old, but kept:"] if kept else []
    lines = [f"{core.memory_line(row)}  ({row['why']})" for row in kept]
    yield from core.first_lines(lines, "and {} more: see --json")
    if shared := sum(_SHARED in row["why"].split(", ") for row in kept):
        remedy = "`--all-machines` hides them everywhere"
        yield f"Other machines share {shared} of these and may still recall them: {remedy}."

"""What only the page asks: all projects at once, many memories with one step, and care.

Each function takes a Memory and gives plain data; `http.py` has the routes. "Everywhere" means all
projects, as far as recall may cross them.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sediment as core
from sediment_ext import activity

BULK_MAX = 1000  # memories that one step changes; 500 take 0.2 s
GRAPH_NODES = 300  # of the whole graph; a browser lays so many out in 0.1 s
QUEUED_BY_SYNC = 0.5  # the probability that `queue_pairs_of` notes; no model gives just that
MOST_RECALLED = 10  # in the figures
BACKUP_PIECE = 2**20  # bytes


def overview(memory: core.Memory) -> dict[str, Any]:
    """{projects: [{project, name, memories}], here?, global, to_settle}: `here` is the project of
    the folder, and to_settle the number of pairs."""
    projects, here = memory.projects, memory.projects.current()
    known = activity.known_projects(projects)
    if here and here not in {row["project"] for row in known}:
        name = projects.root.name if projects.root else here
        known.append({"project": here, "name": name, "memories": 0})
    return {
        "projects": known,
        **({"here": here} if here else {}),
        "global": _count(projects, core.Wanted("global")),
        "to_settle": len(_open_pairs(projects)),
    }


def _count(projects: core.Projects, wanted: core.Wanted) -> int:
    where, values = core.rows_wanted(projects, wanted)
    return projects.database.value(f"SELECT count(*) {where}", *values)


def _told_words(text: str) -> list[str]:
    """The words of a text that tell something: no function words of its language, no short ones
    but numbers."""
    words = list(dict.fromkeys(re.findall(r"[^\W_]{3,}|\d+", text.lower())))
    language = core.language_of(words)
    return [word for word in words if language not in core.languages_of().get(word, ())]


# Finding


def list_memories(
    memory: core.Memory, *, limit: int = 30, page: int = 1, oldest: bool = False, **wanted: Any
) -> dict[str, Any]:
    """What `Memory.list_items` returns, and weeks: [[Monday, count]] of all that have the same
    scope, kind and state, whenever they were created; and tags: [[tag, count]] of the scope."""
    chosen = _wanted(**wanted)
    answer = core.listed_items(memory.projects, chosen, core.check_limit(limit), page, oldest)
    where, values = core.rows_wanted(memory.projects, chosen._replace(span=(0, core.TIME_MAX)))
    sql = f"SELECT date(i.created_at, 'unixepoch', '-6 days', 'weekday 1'), count(*) {where}"
    weeks = memory.database.rows(f"{sql} GROUP BY 1 ORDER BY 1", *values)
    where, values = core.in_scope(chosen.scope, memory.projects.current())
    sql = f"SELECT name, count(*) FROM marks JOIN items i ON i.seq = item WHERE {where}"
    tags = memory.database.rows(f"{sql} AND name <> '{core.EXPIRY}' GROUP BY 1 ORDER BY 1", *values)
    return answer | {"weeks": list(map(list, weeks)), "tags": list(map(list, tags))}


def list_ids(memory: core.Memory, *, oldest: bool = False, **wanted: Any) -> dict[str, Any]:
    """{ids, total}: the first BULK_MAX of what the list has."""
    where, values = core.rows_wanted(memory.projects, _wanted(**wanted))
    way = "ASC" if oldest else "DESC"
    sql = f"SELECT i.id {where} ORDER BY i.created_at {way}, i.seq {way} LIMIT {BULK_MAX}"
    total = memory.database.value(f"SELECT count(*) {where}", *values)
    return {"ids": [id for (id,) in memory.database.rows(sql, *values)], "total": total}


def _wanted(
    scope: str = "everywhere",
    kind: str = "memory",
    since: object = 0,
    until: object = core.TIME_MAX,
    replaced: bool = False,
    never_recalled: bool = False,
    tag: str = "",
) -> core.Wanted:
    scope = core.check_scope(scope, (*core.SCOPES, "all", "everywhere"))
    span = core.parse_moment(since), core.parse_moment(until, end=True)
    kind = core.check_scope(kind, core.ITEM_KINDS, "kind")
    tags = core.check_tags([tag] if tag else [])
    return core.Wanted(scope, kind, span, replaced, never_recalled, tags)


def search(
    memory: core.Memory, query: str, *, limit: int = 20, everywhere: bool = False
) -> dict[str, Any]:
    """What `Memory.recall` returns with its explanation, of all projects or of this one alone, and
    words: those of the query that tell something."""
    with core.keep_to_one_project(core.kept_to_one_project() or not everywhere):
        answer = memory.recall(query, limit=limit, explain=True, record=False)
    return answer | {"words": _told_words(query)}


def read(memory: core.Memory, id: str) -> dict[str, Any]:
    """{item, versions, events, nodes, edges, recalled, confirmed}: all that is known of one."""
    seen = _seen_from(memory, id)
    item, past, near = seen.get(id), seen.history(id), seen.graph(id)
    sql = "SELECT access_count, validation_count FROM access_log WHERE item_id = ?"
    recalled, confirmed = [*memory.database.rows(sql, item["id"]), (0, 0)][0]
    around = {"nodes": _labelled(near["nodes"]), "edges": near["edges"]}
    counts = {"recalled": recalled, "confirmed": confirmed}
    return {"item": item, "versions": past["versions"], "events": past["events"], **around} | counts


def _seen_from(memory: core.Memory, id: str) -> core.Memory:
    """The memory as the project of an item sees it, as far as the client may."""
    row = core.find_item(memory.database, id)
    if row is None or row["project_id"] is None or not core.crosses_projects():
        return memory
    return memory.of_project(row["project_id"])


# Many at once


def confirm_many(memory: core.Memory, ids: Sequence[str], *, undo: bool = False) -> dict[str, Any]:
    """Count that somebody looked at each and that it holds, or take that back: {count, lasting?}.
    Where a file syncs it is lasting: other machines may have it already."""
    is_synced = core.is_synced(memory.database)
    if undo and is_synced:
        raise core.InvalidInput("other machines may know of it already: it stays")

    def confirm(connection: Any, projects: core.Projects, id: str) -> None:
        row = core.own_item(projects, id, "confirm")
        if undo:
            core.add_counts(connection, row["id"], 0, -1)
            connection.execute(_UNCONFIRM, (row["id"],))
        else:
            core.count_validation(connection, row["id"])
            core.add_history(connection, "confirm", row["id"])

    return _each(memory, ids, confirm) | ({"lasting": True} if is_synced else {})


_UNCONFIRM = (
    "DELETE FROM history WHERE id = (SELECT max(id) FROM history WHERE item_id = ?"
    " AND action = 'confirm')"
)


def move_many(memory: core.Memory, ids: Sequence[str], to: str = "") -> dict[str, Any]:
    """Move memories to a project or, without one, to every project: {count, moved: {id: project
    before, or ""}, refused?: why, by id}. What is there already is left alone."""
    target = core.check_project(to) if to else None
    before: dict[str, str] = {}

    def move(connection: Any, projects: core.Projects, id: str) -> None:
        row = core.own_item(projects, id, "move")
        if row["project_id"] != target:
            before[core.move_versions(connection, projects, id, target)] = row["project_id"] or ""

    return _each(memory, ids, move) | {"count": len(before), "moved": before}


def _each(
    memory: core.Memory, ids: Sequence[str], change: Callable[[Any, core.Projects, str], object]
) -> dict[str, Any]:
    """Change memories in one transaction, each as its own project sees it; those that cannot be
    changed are left as they are, and `refused` says why."""
    refused: dict[str, str] = {}
    views = {id: _seen_from(memory, id).projects for id in _checked(ids)}
    with memory.database.transaction(create=False) as connection:
        for id, projects in views.items():
            try:
                change(connection, projects, id)
            except (core.NotFound, core.Conflict, core.InvalidInput) as error:
                refused[id] = str(error)
    answer: dict[str, Any] = {"count": len(views) - len(refused)}
    return answer | ({"refused": refused} if refused else {})


def _checked(ids: Sequence[str]) -> list[str]:
    if not 0 < len(ids) <= BULK_MAX:
        raise core.InvalidInput(f"choose 1 to {BULK_MAX} memories, not {len(ids)}")
    return list(dict.fromkeys(map(core.check_id, ids)))


def forget_many(memory: core.Memory, ids: Sequence[str]) -> dict[str, Any]:
    """Erase memories, with the versions that they replaced: {count}."""
    views: dict[str | None, tuple[core.Memory, list[str]]] = {}
    for id in _checked(ids):
        seen = _seen_from(memory, id)
        views.setdefault(seen.projects.current(), (seen, []))[1].append(id)
    answers = [seen.forget(*chosen) for seen, chosen in views.values()]
    return {"count": sum(len(answer["ids"]) for answer in answers)}


def export_many(memory: core.Memory, ids: Sequence[str]) -> dict[str, Any]:
    """{rows}: what `import` takes, of memories and the versions that they replaced."""
    wanted = set()
    for id in _checked(ids):
        wanted.update(row["id"] for row in _seen_from(memory, id).history(id)["versions"])
    return {"rows": [row for row in memory.export_rows() if row["id"] in wanted]}


# What is linked, and what contradicts


def whole_graph(memory: core.Memory, *, everywhere: bool = False) -> dict[str, Any]:
    """{nodes: [{id, content, created, project?, label, theme}], edges: [{from, to, type}], linked}:
    the memories with the most links, and how many have any. A label has the words that set a memory
    apart from the others; its theme, those that it shares with some."""
    where, values = core.in_scope("everywhere" if everywhere else "all", memory.projects.current())
    among = f"(SELECT i.id FROM items i WHERE {where})"
    kinds = ", ".join(f"'{kind}'" for kind in LINKS)
    edges = memory.database.rows(
        f"SELECT from_id, to_id, edge_type FROM graph_edges WHERE edge_type IN ({kinds})"
        f" AND from_id IN {among} AND to_id IN {among} ORDER BY 1, 2, 3",
        *(*values, *values),
    )
    links = Counter(id for start, end, _ in edges for id in (start, end))
    rows = [core.find_item(memory.database, id) for id, _ in links.most_common(GRAPH_NODES)]
    nodes = [
        node | {"content": node["content"][:300]}
        for node in _labelled([core.shared_facts(row) for row in rows if row])
    ]
    shown = {node["id"] for node in nodes}
    told = [_told_words(node["content"]) for node in nodes]
    held = Counter(word for words in told for word in words)
    themes = ([word for word in words if held[word] > 1 and word.isalpha()] for words in told)
    return {
        "nodes": [node | {"theme": theme} for node, theme in zip(nodes, themes, strict=True)],
        "edges": [
            {"from": start, "to": end, "type": kind}
            for start, end, kind in edges
            if {start, end} <= shown
        ],
        "linked": len(links),
    }


LINKS = ("related", "co_accessed")


def _labels(texts: Sequence[str]) -> list[str]:
    """For each text the three words that fewest others have, in their order; where a text has no
    such words, its beginning."""
    told = [_told_words(text[:1000]) for text in texts]
    held = Counter(word for words in told for word in words)
    labels = []
    for text, words in zip(texts, told, strict=True):
        rare = sorted(words, key=lambda word: held[word] - min(len(word), 12) / 100)[:3]
        kept = [word for word in words if word in rare]
        labels.append(" ".join(kept) or core.one_line(text, 24))
    return labels


def _labelled(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    labels = _labels([node["content"] for node in nodes])
    return [node | {"label": label} for node, label in zip(nodes, labels, strict=True)]


def pairs(memory: core.Memory, *, everywhere: bool = False) -> dict[str, Any]:
    """{pairs: [{old, new, probability?, alike?, rivals?}]}: what is left to decide, with the
    authors of what came from other machines; rivals were put in one's place on two of them."""
    found = []
    for ids, why, share in _open_pairs(memory.projects, everywhere):
        rows = [row for id in ids if (row := core.find_item(memory.database, id))]
        if len(rows) == 2:
            old, new = core.items_as_returned(memory.projects, rows)
            are_rivals = why == "probability" and share == QUEUED_BY_SYNC
            told = {"old": old, "new": new, why: share}
            found.append(told | ({"rivals": True} if are_rivals else {}))
    return {"pairs": found}


def reopen_pair(memory: core.Memory, old: str, new: str) -> dict[str, Any]:
    """Take back that somebody decided to keep both: {success}."""
    with memory.database.transaction(create=False) as connection:
        for id in (old, new):
            core.own_item(_seen_from(memory, id).projects, id, "replace")
        connection.execute(
            "UPDATE reviews SET kept = 0 WHERE old_id = ? AND new_id = ?", (old, new)
        )
        connection.execute("DELETE FROM reviews WHERE probability = 0 AND NOT kept")
    return {"success": True}


def _open_pairs(
    projects: core.Projects, everywhere: bool = True
) -> list[tuple[list[str], str, float]]:
    """([old id, new id], "probability" or "alike", how much) of each pair that may be seen."""
    scope = "everywhere" if everywhere else "all"
    where, values = core.in_scope(scope, projects.current())
    sql = f"SELECT i.id FROM items i WHERE {where} AND i.id IN (SELECT value FROM json_each(?))"
    found = core.reviewable(projects.database)
    ends = core.to_json([id for old, new, *_ in found for id in (old, new)])
    seen = {id for (id,) in projects.database.rows(sql, *values, ends)}
    return [([old, new], why, share) for old, new, why, share in found if {old, new} <= seen]


# Figures and care


def figures(memory: core.Memory, *, everywhere: bool = False) -> dict[str, Any]:
    """{weeks, projects, counts, most: [{id, content, recalls, last}], never}: the memories that
    were recalled most, and how many never were."""
    projects, scope = memory.projects, "everywhere" if everywhere else "all"
    where, values = core.in_scope(scope, projects.current())
    sql = (
        "SELECT i.id, i.content, a.access_count, a.last_accessed_at FROM access_log a"
        f" JOIN items i ON i.id = a.item_id WHERE {where} AND a.access_count > 0"
        " ORDER BY a.access_count DESC, a.last_accessed_at DESC LIMIT ?"
    )
    most = [
        {"id": id, "content": text[:300], "recalls": count, "last": core.iso_time(last)}
        for id, text, count, last in memory.database.rows(sql, *values, MOST_RECALLED)
    ]
    wanted = {
        "memories": core.Wanted(scope),
        "hidden": core.Wanted(scope, replaced=True),
        "file_parts": core.Wanted(scope, "file"),
        "turns": core.Wanted(scope, "conversation"),
        "never_recalled": core.Wanted(scope, never_recalled=True),
    }
    counts = {name: _count(projects, one) for name, one in wanted.items()}
    return activity.activity_of(projects, scope) | {"counts": counts, "most": most}


def care(memory: core.Memory) -> dict[str, Any]:
    """{bytes, syncs, count, tokens}: what a person looks after, but for what takes time."""
    where = core.is_synced(memory.database) and memory.database.value("SELECT place FROM clock")
    return {"bytes": memory.database.size(), "syncs": bool(where), **memory.tokens()}


def back_up(memory: core.Memory) -> Iterator[bytes]:
    """A checked copy of the database, in pieces."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "sediment.db"
        memory.backup(copy)
        with copy.open("rb") as file:
            while piece := file.read(BACKUP_PIECE):
                yield piece

"""What the page shows of all memories: what happened to them week by week, and the projects."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

import sediment as core

_HAPPENED = {"stored": "i.created_at", "recalled": "a.last_accessed_at", "hidden": "i.ended_at"}


def activity_of(projects: core.Projects, scope: str = "all") -> dict[str, Any]:
    """What happened to memories, week by week: what `Memory.activity` returns."""
    weeks: dict[str, dict[str, int]] = {}
    for name, moment in _HAPPENED.items():
        where, values = core.in_scope(scope, projects.current(), f"{moment} > 0 AND i.file IS NULL")
        sql = (  # by the Monday of each week
            f"SELECT date({moment}, 'unixepoch', '-6 days', 'weekday 1'), count(*)"
            " FROM items i NOT INDEXED LEFT JOIN access_log a ON a.item_id = i.id"
            f" WHERE {where} GROUP BY 1"
        )
        for week, count in projects.database.rows(sql, *values):
            weeks.setdefault(week, dict.fromkeys(_HAPPENED, 0))[name] = count
    counts = [{"week": week, **counts} for week, counts in sorted(weeks.items())]
    return {"weeks": counts, "projects": known_projects(projects)}


def known_projects(projects: core.Projects) -> list[dict[str, Any]]:
    """The projects that have memories and may be seen: {project, name, memories}."""
    sql = (
        "SELECT i.project_id, count(*), (SELECT location FROM projects p WHERE p.project_id ="
        f" i.project_id ORDER BY location LIMIT 1) FROM items i NOT INDEXED WHERE {core.IS_MEMORY}"
        " AND i.project_id IS NOT NULL AND (?1 OR i.project_id = ?2) GROUP BY 1 ORDER BY 2 DESC"
    )
    known = projects.database.rows(sql, core.crosses_projects(), projects.current())
    return [
        {"project": id, "name": name, "memories": count}
        for (id, count, _), name in zip(known, _project_names(known), strict=True)
    ]


def _project_names(known: list[list[Any]]) -> list[str]:
    """Names of projects, given as (id, count, place): each its folder's, behind as many of those
    above it as tell it from the others."""
    found = ((core.KEY_FOLDER.fullmatch(place or ""), id) for id, _, place in known)
    paths = [re.split(r"[/\\]", key[1] if key else id) for key, id in found]
    ends = [["/".join(path[-count:]) for count in range(1, len(path) + 1)] for path in paths]
    uses = Counter(itertools.chain(*ends))
    return [next((end for end in each if uses[end] == 1), each[0]) for each in ends]

"""Follow rules of how long memories are kept: a small TOML file beside the database."""

from __future__ import annotations

import re
import time
import tomllib
from typing import Any

import sediment as core
from sediment_ext import upkeep

_KEYS = {"older_than": str, "tag": str, "scope": str, "confirmed": bool, "all_machines": bool}
FOLLOWED = "retention"  # the key of `meta` with the day on which a server last looked at the rules


def rules_of(database: core.Database) -> dict[str, Any]:
    """The file with the rules, checked: {daily, rule: [{older_than, …}]}."""
    path = core.rules_file(database)
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        remedy = "give --older-than AGE or --purge, or write rules into it"
        raise core.NotFound(f"there is no {path}: {remedy}") from None
    except (OSError, ValueError) as error:  # of which a wrong TOML is one
        raise core.InvalidInput(f"{path} cannot be read ({error})") from None
    rules = found.get("rule", [])
    unknown = found.keys() - {"daily", "rule"}
    if unknown or type(found.get("daily", False)) is not bool or not isinstance(rules, list):
        raise core.InvalidInput(f"{path}: it has daily = true or false, and [[rule]]s")
    for number, rule in enumerate(rules, 1):
        _check(f"{path}: rule {number}", rule)
    return found


def _check(place: str, rule: Any) -> None:
    """InvalidInput for what is no rule."""
    if not isinstance(rule, dict) or "older_than" not in rule:
        raise core.InvalidInput(f'{place} needs an age: older_than = "90d"')
    for key, value in rule.items():
        if type(value) is not _KEYS.get(key):
            known = ", ".join(_KEYS)
            raise core.InvalidInput(f"{place}: {key} = {core.shown_value(value)}; it has {known}")
    try:
        core.parse_age(rule["older_than"])
        core.check_tags([rule["tag"]] if "tag" in rule else [])
        if not re.fullmatch("global|project:.+", rule.get("scope", "global")):
            raise core.InvalidInput('scope is "global" or "project:ID"')
    except core.InvalidInput as error:
        raise core.InvalidInput(f"{place}: {error}") from None


def prune_by_rules(database: core.Database, dry_run: bool = False) -> dict[str, Any]:
    """Hide what the rules say, as `prune` does: {count, items, kept, dry_run?}."""
    rules = rules_of(database).get("rule", [])

    def found() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        doomed: dict[str, dict[str, Any]] = {}
        kept: dict[str, dict[str, Any]] = {}
        for rule in rules:
            flags = [rule.get(name, False) for name in ("confirmed", "all_machines")]
            age = core.parse_age(rule["older_than"])
            ends, stays = upkeep.prunable(database, age, _where(rule), *flags)
            doomed |= {row["id"]: row for row in ends}
            kept |= {row["id"]: row for row in stays}
        return [*doomed.values()], [row for id, row in kept.items() if id not in doomed]

    return upkeep.pruned(database, found, dry_run)


def _where(rule: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The SQL condition of the memories of a rule, and its parameters."""
    scope = rule.get("scope", "")
    tags = core.tagged(core.check_tags([rule["tag"]] if "tag" in rule else []))
    if not scope:
        return core.IS_MEMORY + tags, ()
    project = None if scope == "global" else core.check_project(scope.removeprefix("project:"))
    return f"{core.IS_MEMORY}{tags} AND i.project_id IS ?", (project,)


def prune_daily(database: core.Database) -> None:
    """Follow the rules where they ask for that; one process a day does."""
    today = time.strftime("%Y-%m-%d")
    with database.transaction(create=False) as connection:
        if core.meta_value(connection, FOLLOWED) == today:
            return
        core.set_meta(connection, FOLLOWED, today)
    if rules_of(database).get("daily"):
        prune_by_rules(database)


def is_due(database: core.Database) -> bool:
    """Whether nobody has looked at the rules today."""
    return core.meta_value(database.reader(), FOLLOWED) != time.strftime("%Y-%m-%d")

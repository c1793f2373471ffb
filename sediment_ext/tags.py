"""What people do with the tags and the expiration of memories that are there (`tag`, `expire`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

import sediment as core

# Those of the project, and global ones; and of them those with a tag.
_OWN = f"FROM marks m JOIN items i ON i.seq = m.item WHERE {core.IN_OWN_SCOPE}"


def tags_of(projects: core.Projects) -> dict[str, Any]:
    """How many live memories have each tag: what `Memory.tags` returns."""
    sql = (
        f"SELECT name, count(*) {_OWN} AND {core.IS_MEMORY} AND name <> '{core.EXPIRY}'"
        " GROUP BY name ORDER BY name"
    )
    rows = projects.database.rows(sql, projects.current())
    return {"count": len(rows), "tags": [{"tag": tag, "count": count} for tag, count in rows]}


def tag_item(
    projects: core.Projects, id: str, add: Iterable[str], remove: Iterable[str]
) -> dict[str, Any]:
    """Change the tags of a memory: what `Memory.tag` returns."""
    for tag in add:
        core.refuse_credential("tag", tag)
    with projects.database.transaction(create=False) as connection:
        row = core.own_item(projects, id, "tag")
        marks = dict.fromkeys(remove, 0) | dict.fromkeys(add, 1)
        core.set_marks(connection, row["id"], marks)
        tags = core.find_item(projects.database, row["id"])
    shown = core.shared_facts(tags or row).get("tags", [])
    message = f"{core.short_id(row['id'])} has {', '.join(shown) or 'no tags'}."
    return {"success": True, "id": row["id"], "tags": shown, "message": message}


def rename_tag(projects: core.Projects, old: str, new: str) -> dict[str, Any]:
    """Give all that have a tag another one, hidden versions too: what `Memory.rename_tag`
    returns."""
    core.refuse_credential("tag", new)
    with projects.database.transaction(create=False) as connection:
        ids = core.fetch(connection, f"SELECT i.id {_OWN} AND name = ?", projects.current(), old)
        for (id,) in ids:
            core.set_marks(connection, id, {old: 0, new: 1})
    if not ids:
        raise core.NotFound(f"no memory here has the tag {old}: see `tag list`")
    told = core.number_of(len(ids), "memory")
    return {"success": True, "count": len(ids), "message": f"{told}: {old} is now {new}."}


def expire_item(projects: core.Projects, id: str, moment: int) -> dict[str, Any]:
    """Set when a memory expires, with 0 that it never does: what `Memory.expire` returns."""
    with projects.database.transaction(create=False) as connection:
        row = core.own_item(projects, id, "expire")
        core.set_marks(connection, row["id"], {core.EXPIRY: moment})
    told, answer = core.short_id(row["id"]), {"success": True, "id": row["id"]}
    if not moment:
        return answer | {"message": f"{told} no longer expires."}
    answer |= core.with_time("expires", moment)
    return answer | {"message": f"{told} expires on {core.local_time(answer['expires'], 16)}."}


def render_tags(answer: dict[str, Any]) -> Iterator[str]:
    """A line for each tag, with the number of its memories."""
    yield from (f"{row['count']:5}  {core.printable_name(row['tag'])}" for row in answer["tags"])
    if not answer["tags"]:
        yield "No tags here: `sediment store --tag NAME` gives one."


_USAGE = {"add": "ID TAG...", "remove": "ID TAG...", "rename": "OLD NEW"}


@click.command("tag")
@click.argument("action", type=click.Choice(("list", *_USAGE)), default="list")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@core.pass_shared
def tag_command(shared: core.Context, action: str, names: tuple[str, ...]) -> None:
    """Count the tags, change those of a memory, or rename one."""
    if action != "list" and (len(names) < 2 or (action == "rename" and names[2:])):
        raise click.UsageError(f"tag {action} takes {_USAGE[action]}")
    with shared.memory() as memory:
        if action == "list":
            return shared.show(memory.tags(), render_tags)
        if action == "rename":
            answer = memory.rename_tag(*names)
        else:
            answer = memory.tag(names[0], **{action: names[1:]})
        shared.show(answer, core.render_message)

"""The commands `sync` and `hub`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import sediment as core
from sediment_ext import systems
from sediment_ext.sync import places


def render_synced(answer: dict[str, Any]) -> Iterator[str]:
    """A line for each space; what a person has to decide; what went wrong; who has what."""
    if "machine" in answer:
        listed = ("spaces", "machines", "remarks")
        yield from core.render_facts({key: answer[key] for key in answer if key not in listed})
    width = max([0, *(len(row["space"][:12]) for row in answer["spaces"])])
    for row in answer["spaces"]:
        yield core.printable_name(f"{row['space'][:12]:<{width}}  {_counts_of_space(row)}")
    if not answer["spaces"]:
        yield "Nothing is shared yet. `sediment sync --share` shares this project."
    for row in answer.get("look_at", ()):
        yield from _lines_to_decide(row)
    yield from map(_machine_line, answer.get("machines", ()))
    yield from _remarks(answer)


def _counts_of_space(row: dict[str, Any]) -> str:
    parts = [f"{key} {row[key]:,}" for key in ("sent", "received") if key in row]
    counts = ("replaced", "pruned", "forgotten", "refused")
    more = [f"{row[key]:,} {key}" for key in counts if row.get(key)]
    done = ", ".join(parts) + (f" ({', '.join(more)})" if more else "")
    waiting = f"{row['waiting']:,} not sent yet" if row["waiting"] else "all sent"
    held = f"; {row['held_back']:,} not sent: like a credential" if row.get("held_back") else ""
    here = core.number_of(row["here"], "memory")
    return f"{done}{', ' if done else ''}{here} here, {waiting}{held}"


def _lines_to_decide(row: dict[str, Any]) -> Iterator[str]:
    """What machines put in the place of one memory, and how to settle it."""
    text = core.one_line(row["content"], 60)
    yield core.printable(f'Machines decided differently about {row["id"][:8]} "{text}":')
    for version in row["versions"]:
        who, text = version.get("author", "here"), core.one_line(version["content"], 60)
        yield core.printable(f"    {version['id'][:8]}  {who:<14}  {text}")
    yield "  All are kept. To settle it: `store … --replace ID`, `replace` or `forget`."


def _machine_line(row: dict[str, Any]) -> str:
    seen = core.local_time(core.iso_time(row["seen"])) if row["seen"] else "never"
    texts = core.counts_phrase({"forgotten_texts": row["to_erase"]})
    late = f", has {texts} to erase" if texts else ""
    who = "".join(f"{name}, " for name in (row["person"], row["host"]) if name)
    return core.printable_name(f"{row['machine']}  {who}seen {seen}{late}")


def render_sync_set(answer: dict[str, Any]) -> Iterator[str]:
    yield from core.render_message(answer)
    yield from _remarks(answer)


def _remarks(answer: dict[str, Any]) -> Iterator[str]:
    return (core.printable_name(f"note: {remark}") for remark in answer.get("remarks", ()))


def start_sync(database: Path) -> None:
    """Start a process that syncs as long as this one lives. It must not ask for passwords."""
    env = core.environment(left_out="SSH_ASKPASS") | {"SSH_ASKPASS_REQUIRE": "never"}
    words = "sync", "--watch", "--quiet", "--with-parent"
    systems.start_beside(database, *words, start_new_session=True, env=env)


@click.command("sync")
@click.option("--to", "place", metavar="PLACE")
@click.option("--share", is_flag=False, flag_value="", metavar="[NAME]")
@click.option("--share-global", is_flag=True)
@click.option("--unshare", is_flag=True)
@click.option("--status", is_flag=True)
@click.option("--again", is_flag=True)
@click.option("--leave", is_flag=True)
@click.option("--erase", is_flag=True)
@click.option("--watch", is_flag=True)
@click.option("--with-parent", is_flag=True, hidden=True)
@click.option("--quiet", is_flag=True)
@core.pass_shared
def sync_command(shared: core.Context, quiet: bool, again: bool, **asked: Any) -> None:
    """Sync with other machines, or set up how."""
    if asked.pop("with_parent"):
        systems.end_with_parent()
    if asked.pop("watch"):
        return _follow_sync(shared, quiet)
    with shared.memory(resident=True) as memory:
        try:
            settings = _sync_settings(memory, **asked)
            answer = settings or memory.sync(again=again)
        except places.Unreachable as error:
            if quiet and not isinstance(error, places.Refused):
                return
            raise
        if not quiet:
            shared.show(answer, render_sync_set if "message" in answer else render_synced)
        core.finish_pending(memory)


def _follow_sync(shared: core.Context, quiet: bool) -> None:
    """Print each sync that sent or received something, or whose remarks are new."""
    stop = core.interrupted()
    remarks: object = None
    with shared.memory(resident=True) as memory, contextlib.suppress(KeyboardInterrupt):
        for answer in memory.follow_sync(stop=stop):
            moved = any(row.get("sent") or row.get("received") for row in answer["spaces"])
            if not quiet and (moved or answer["remarks"] != remarks):
                shared.show(answer, render_synced)
            remarks = answer["remarks"]
            with contextlib.suppress(core.ServiceError):  # the vectors are made another time
                memory.embed_pending()
            memory.database.close_thread()


@click.command("hub")
@click.argument("action", type=click.Choice(("init", "add", "remove")))
@click.argument("person", required=False, default="")
@click.argument("space", required=False, default="")
@click.option("--at", "place", metavar="URL", default="")
@click.option("--reads", is_flag=True)
@click.option("--recall", is_flag=True)
@core.pass_shared
def hub_command(shared: core.Context, action: str, person: str, space: str, **options: Any) -> None:
    """Set up a hub, or let people in and out."""
    if action != "init" and not space:
        raise click.UsageError(f"hub {action} takes PERSON and SPACE")
    with shared.memory() as memory:
        shared.show(memory.hub(action, person, space, **options), core.render_message)


def _sync_settings(
    memory: core.Memory, place: str | None, share: str | None, share_global: bool, unshare: bool,
    status: bool, leave: bool, erase: bool,
) -> dict[str, Any] | None:  # fmt: skip
    """Apply the options that say how to sync, and return the answer; None if there are none."""
    answer = None if place is None else memory.sync_to(place)
    if unshare:
        return memory.unshare(everywhere=share_global)
    if share is not None or share_global:
        remarks = {"remarks": answer["remarks"]} if answer and "remarks" in answer else {}
        return memory.share(share or None, everywhere=share_global) | remarks
    if leave:
        return memory.leave_sync(erase=erase)
    return memory.sync_status() if status else answer

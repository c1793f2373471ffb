"""Follow changes of indexed files until told to stop."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

import sediment as core
from sediment_ext import files, walking


def watch(
    memory: core.Memory,
    paths: str | Path | Iterable[str | Path],
    debounce: int,
    stop: threading.Event | None,
    failed: Callable[[core.SedimentError], object],
    options: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """What `Memory.watch` does. A file that is skipped is told of only while that is news."""
    stop = stop or threading.Event()
    chosen = functools.partial(files.files_of_scope, memory.projects, memory.encoder)
    wanted = files.as_list(paths)
    yield (answer := memory.index(wanted, **options))
    tops = {
        scope: list(map(core.whole_path, wanted)) or [one.path for one in chosen(scope).sources()]
        for scope in files.scopes_to_index(memory, options.get("scope"), not wanted)
    }

    def index_again() -> dict[str, Any]:
        answers = (files.index_what_is_there(chosen(scope), tops[scope]) for scope in tops)
        found = list(filter(None, answers))
        return files.sum_indexed(found) if found else {}

    for _ in changed_tops([*itertools.chain(*tops.values())], debounce, stop):
        new = until_done(index_again, stop, failed)
        if new and (new["changes"] or new["skipped"] != answer["skipped"]):
            told = answer["skipped"]
            yield new | {"skipped": [row for row in new["skipped"] if row not in told]}
        answer = new or answer


def changed_tops(tops: list[Path], debounce: int, stop: threading.Event) -> Iterator[None]:
    """Yields when these files or folders, or a .gitignore above, may have changed, `debounce` ms
    later."""
    while not stop.is_set():
        folders = [top for top in tops if os.path.isdir(top)]
        rules = {above / ".gitignore" for top in folders for above in walking.folders_above(top)}
        looked_at = [*tops, *rules]
        seen, first = list(map(_identity, looked_at)), True
        for changes in _events(folders, debounce, stop):
            now = list(map(_identity, looked_at))
            if changes or first or now != seen:  # at first, for changes before the watch began
                yield
            if now != seen:
                break
            first = False


def until_done(
    work: Callable[[], dict[str, Any]],
    stop: threading.Event,
    failed: Callable[[core.SedimentError], object],
) -> dict[str, Any]:
    """What `work` returns. It is tried again after errors, until `stop` is set; `failed` gets each
    new error."""
    before = ""
    while not stop.is_set():
        try:
            return work()
        except core.SedimentError as error:
            if str(error) != before:
                failed(error)
            before = str(error)
        stop.wait(core.WATCH_POLL / 1000)
    return {}


def _identity(top: Path) -> tuple[int, ...]:
    """A value that changes when a watched folder is replaced, or a watched file changes."""
    try:
        facts = top.stat()
    except OSError:
        return ()
    inode = (facts.st_dev, facts.st_ino)
    return inode if stat.S_ISDIR(facts.st_mode) else (*inode, facts.st_mtime_ns, facts.st_size)


def _events(folders: list[Path], debounce: int, stop: threading.Event) -> Iterator[Any]:
    """Sets of changes in folders, and every WATCH_POLL ms an empty one."""
    from watchfiles import watch

    def matters(_: object, name: str) -> bool:
        below = [core.beneath(Path(name), top) for top in folders if core.is_in(Path(name), top)]
        return not all(re.search(r"(?:^|/)\.(?!gitignore$)", path) for path in below)

    with contextlib.suppress(FileNotFoundError):  # gone since: it is waited for
        try:
            if folders:
                yield from watch(
                    *folders,
                    watch_filter=matters,
                    step=debounce,
                    debounce=4 * debounce,
                    rust_timeout=core.WATCH_POLL,
                    yield_on_timeout=True,
                    stop_event=stop,
                    ignore_permission_denied=True,
                )
                return
        except RuntimeError:  # the system watches no more folders: look from time to time
            while not stop.wait(max(debounce, core.WATCH_POLL) / 1000):
                yield folders
    stop.wait(core.WATCH_POLL / 1000)
    yield ()


def run_watch(
    shared: core.Context,
    paths: tuple[str, ...] = (),
    debounce_ms: int = core.WATCH_DEBOUNCE,
) -> None:
    """Print what was indexed at first, then what has changed."""

    def failed(error: core.SedimentError) -> None:
        click.echo(f"{core.printable_name(str(error))} (the watch goes on)", err=True)

    stop = core.interrupted()
    with shared.memory(resident=True) as memory, contextlib.suppress(KeyboardInterrupt):
        render = files.render_indexed
        options: dict[str, Any] = {"debounce_ms": debounce_ms, "stop": stop, "failed": failed}
        for answer in memory.watch(paths, **options):
            lines = [core.to_json(answer)] if shared.json else render(answer)
            for line in lines:
                click.echo(line)
            render = files.render_changes

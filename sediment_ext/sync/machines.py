"""The name of this file among the machines that sync, and what they are not to be told."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

import apsw

import sediment as core


def name_machine(connection: apsw.Connection, path: Path) -> None:
    """Give the copy of a file that syncs a machine name of its own; a file that was only moved
    keeps its name."""
    name, mark = core.fetch(connection, "SELECT machine, mark FROM clock")[0]
    if mark == (here := file_mark(path)):
        return
    name = name if not mark or _is_same_machine(mark, here) else core.new_id()[:8]
    connection.execute("UPDATE clock SET machine = ?, mark = ?", (name, here))
    sql = "INSERT OR REPLACE INTO machines VALUES(?, ?, '', 1)"
    connection.execute(sql, (name, here.partition(":")[0]))


def file_mark(path: Path) -> str:
    """The file and its computer, as HOST:INODE:PATH."""
    file = os.path.realpath(path)
    return f"{platform.node()}:{os.stat(file).st_ino}:{file}"


def _is_same_machine(before: str, now: str) -> bool:
    """Whether two marks are of one file, and not of a file and its copy. It may have been exchanged
    or moved, or its computer renamed (a container has a new name each time)."""
    old_host, old_inode, old_path = _FILE_MARK.fullmatch(before).groups()
    host, inode, path = _FILE_MARK.fullmatch(now).groups()
    if path == old_path:
        return host == old_host or inode == old_inode
    return host == old_host and not os.path.exists(old_path)


_FILE_MARK = core.LazyPattern(r"(?s)([^:]*):(\d+):(.*)")


def stop_syncing(connection: apsw.Connection) -> None:
    """Let the file sync with no place, though what was forgotten stays known."""
    connection.execute("UPDATE clock SET place = '', cursor = '{}'; DELETE FROM spaces")


@contextlib.contextmanager
def unsynced(connection: apsw.Connection) -> Iterator[None]:
    """Changes within are nobody's decision, and other machines are not told of them."""
    synced = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'replica'").get
    sql = "UPDATE clock SET applying = ?"
    connection.execute(sql, (1,)) if synced else None
    yield
    connection.execute(sql, (0,)) if synced else None


def prefer_others(connection: apsw.Connection, damaged: Iterable[str], lost: Iterable[str]) -> None:
    """Let the next `sync` put sound texts of other machines in the place of damaged and lost ones:
    a damaged text counts as a little older than the sound one."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'replica'").get:
        return
    sql = "UPDATE replica SET put_t = put_t - 1 WHERE id = ?"
    connection.executemany(sql, [(id,) for id in damaged])
    connection.executemany("DELETE FROM replica WHERE id = ?", [(id,) for id in lost])
    read_anew(connection)


def read_anew(connection: apsw.Connection) -> None:
    """Have all that is there read again; how large this machine left its own files stays known."""
    machine, cursor = core.fetch(connection, "SELECT machine, cursor FROM clock")[0]
    own = {key: tag for key, tag in json.loads(cursor).items() if key.startswith(f"{machine}/")}
    sizes = {key: tag.partition(":")[0] + ":" for key, tag in own.items() if isinstance(tag, str)}
    connection.execute("UPDATE clock SET cursor = ?", (core.to_json(sizes),))

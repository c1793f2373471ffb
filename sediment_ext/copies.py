"""Copy the database into one file (`backup`), and put a copy in its place (`restore`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

import sediment as core
from sediment_ext import conversations, encryption, repair
from sediment_ext.sync import kept as sync_kept


def backup_database(
    database: core.Database, path: str | Path, key: str | Sequence[str] | None = None
) -> dict[str, Any]:
    """Copy the database into one file, and read that back; encrypt it where a key is given."""
    target = core.check_name(core.absolute_path(path))
    if target.name == "-" or target.is_dir():
        raise core.InvalidInput(f"{target} is not a file name: give another")
    database.must_exist()
    database.refuse_own(target)
    if not target.parent.is_dir():
        raise core.DatabaseError(f"cannot write {target}: there is no folder {target.parent}")
    if os.path.lexists(target):
        raise core.DatabaseError(f"{target} is there already: choose another name")
    with contextlib.suppress(core.DatabaseError):  # a file that cannot be written is copied too
        _note_copy(database, target)  # before, since the process may be killed on the way
    is_plain = key is None
    counts = _copy_checked(database, target) if is_plain else _copy_encrypted(database, target, key)
    done = "verified the copy." if is_plain else "encrypted the copy, after it was verified."
    message = f"Copied {core.counts_phrase(counts)} to {target} and {done}"
    facts = {"path": str(target), "bytes": target.stat().st_size, **counts}
    return {"success": True, **facts, "message": message}


def _copy_checked(database: core.Database, target: Path) -> dict[str, int]:
    with database.translate_errors():
        core.copy_database(database.reader(), target, core.unreadable_phrase)
    with contextlib.closing(core.open_connection(target)) as copy:  # which stays as it is
        return core.count_items(copy)


def _copy_encrypted(
    database: core.Database, target: Path, key: str | Sequence[str]
) -> dict[str, int]:
    """Encrypt a copy that stands, for a moment, where the database does: nowhere else it is
    readable."""
    draft = core.draft_of(core.aside(database.path, "backup"))
    try:
        counts = _copy_checked(database, draft)
        encryption.seal_file(draft, target, key)
    finally:
        draft.unlink(missing_ok=True)
    return counts


def _note_copy(database: core.Database, copy: Path) -> None:
    with database.transaction() as connection:
        core.note_copy(connection, copy)


def restore_database(
    database: core.Database, path: str | Path, key: str | Sequence[str] | None = None
) -> dict[str, Any]:
    """Put a copy in the place of the database, of which another is made before; the key opens an
    encrypted one."""
    source, live = core.check_name(core.absolute_path(path)), database.path
    if not source.is_file():
        raise core.NotFound(f"there is no file {source}")
    database.refuse_own(source)
    core.remove_abandoned_drafts(live)
    draft, opened = (core.draft_of(core.aside(live, why)) for why in ("restoring", "opened"))
    try:
        is_encrypted = encryption.is_encrypted_file(source)
        if is_encrypted:
            encryption.open_file(source, opened, key)
        remarks = _draft_of_copy(database, source, opened if is_encrypted else source, draft)
        kept = _take_contents(database, draft)
    finally:
        for file in (draft, opened):
            file.unlink(missing_ok=True)
    counts = core.database_counts(database)
    message = f"Restored {core.counts_phrase(counts)} from {source}."
    answer = {"success": True, "path": str(source), **counts}
    if kept:
        answer["kept"] = str(kept)
        message += f" The previous database is in {kept}."
    return answer | {"message": message + remarks}


def _draft_of_copy(database: core.Database, source: Path, opened: Path, draft: Path) -> str:
    """Write a copy with today's schema, and pages of the size that this database has. `opened` is
    what `source` holds. Returns remarks on where it syncs, and on what stays forgotten."""
    with (
        database.translate_errors(source),
        contextlib.closing(core.open_connection(opened)) as given,
    ):
        core.check_compatible(given, source)
        if not given.pragma("user_version"):
            raise core.DatabaseError(f"{source} is empty: choose another file")
        if found := core.check_pages(given) or core.unreadable_phrase(given):
            raise core.DatabaseError(f"{source} {core.DAMAGED_COPY.format(source)} ({found})")
        core.copy_database(given, draft)
    size = core.PAGE_BYTES
    with contextlib.suppress(core.DamagedError):
        size = database.reader().pragma("page_size")
    with database.translate_errors(), contextlib.closing(core.open_connection(draft)) as copy:
        copy.pragma("journal_mode", "off")  # no other process has it, and a failure deletes it
        core.upgrade(copy)
        core.new_generation(copy)
        copy.pragma("foreign_keys", True)
        _keep_what_is_newer(database, copy, source)
        remarks = sync_kept.keep_sync(database, copy) + conversations.keep_forgotten(database, copy)
        if remarks or copy.pragma("page_size") != size:  # no page keeps what was forgotten
            copy.execute(f"PRAGMA page_size = {size}; VACUUM")
    return remarks


def _keep_what_is_newer(database: core.Database, copy: apsw.Connection, source: Path) -> None:
    """Give a copy the tokens of today: one that was revoked since stays so, and those of somebody
    else's copy open nothing. Let `forget` name all copies, also later ones."""
    copy.execute("DELETE FROM tokens")
    core.note_copy(copy, source)
    with contextlib.suppress(core.DamagedError):
        rows = database.rows("SELECT * FROM tokens")
        copy.executemany("INSERT INTO tokens VALUES(?, ?, ?, ?, ?)", rows)
        for name in core.copies(database):
            core.note_copy(copy, Path(name))


def _take_contents(database: core.Database, new: Path) -> Path | None:
    """Put the contents of another file into the database. Returns where a copy of those before is,
    or None if there was no file."""
    live = database.path
    kept = core.aside(live, "before-restore") if live.exists() else None
    if kept:
        with contextlib.suppress(core.DatabaseError):  # before, since it may be killed on the way
            _note_copy(database, kept)
    try:
        connection = database.writer()
        with (
            database.translate_errors(),
            contextlib.closing(core.open_read_only(new)) as source,
            connection.backup("main", source, "main") as backup,
        ):
            backup.step(0)  # from here on nobody else writes
            if kept:
                with contextlib.closing(core.open_connection(live)) as before:
                    core.copy_database(before, kept)
            backup.step()
    except core.DamagedError:
        if kept is None or os.path.lexists(kept):
            raise
        repair.remains_of(live)
        core.exchange_file(database, new, kept)  # what is there cannot even be read
    if kept:
        _note_copy(database, kept)
    return kept

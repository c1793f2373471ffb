"""Index files that people edit.

The files are the truth; items are made of their parts and follow them. The id of a part is a hash
of its place and its text, so that the same files give the same ids in any database. A text that
was encoded is not encoded again when its file moves.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import apsw
import click

import sediment as core
from sediment_ext import markdown, systems, walking

FILE_MAX = 5_000_000  # bytes of an indexed file; the longest changelogs have 2 million
FILE_GLOBS = ("*.[Mm][Dd]", "*.[Mm][Dd][Xx]", "*.markdown")
CACHED_VECTORS = 20_000  # 30 MB of vectors of texts that left their files, for when they come back
VECTORS_KEPT_EVERY = 64  # vectors of one file, after which an interruption loses none of them
RACY = 2 * 10**9  # ns; a file that was read this soon after its time may have changed within it
NEW_FILES, NEW_SIZE = 20, 50_000  # new files and bytes that a recall indexes: half a second
FILE_TRIES = 5  # readings of a file that changes while it is read
MISSING_SIZE = -1  # the noted size of a file that was not there when a recall looked


def map_ahead(
    workers: ThreadPoolExecutor, count: int, work: Callable[[Any], Any], items: Iterable[Any]
) -> Iterator[tuple[Any, Future[Any]]]:
    """Each item with the future of `work(item)`, in order, while `count` items ahead are worked
    on."""
    begun: deque[tuple[Any, Future[Any]]] = deque()
    for item in items:
        begun.append((item, workers.submit(work, item)))
        if len(begun) > count:
            yield begun.popleft()
    yield from begun


class Source(core.NamedTuple):
    """A file or folder that somebody asked to index."""

    id: int
    path: Path
    options: walking.Options


class Skipped(core.InvalidInput):
    """Why a file is not indexed."""


class FileStat(core.NamedTuple):
    """A file's size in bytes, and its times in ns."""

    size: int
    changed_at: int  # when its content changed
    touched_at: int  # when anything of it changed, be it its name


def stat_file(path: Path) -> FileStat:
    """The size and times of an indexed file; Skipped says why it is not to be read."""
    if not walking.has_no_link(path):
        raise Skipped(f"is behind a link now: index {os.path.realpath(path)} if that is meant")
    try:
        facts = path.lstat()
    except OSError as error:
        raise Skipped(f"cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(facts.st_mode):
        raise Skipped("is not a regular file")
    check_size(facts.st_size)
    return FileStat(facts.st_size, facts.st_mtime_ns, systems.change_time(facts))


def check_size(size: int) -> None:
    if size > FILE_MAX:
        raise Skipped(f"is too large ({size / 1e6:.0f} MB; the limit is {FILE_MAX / 1e6:.0f} MB)")


class Contents(core.NamedTuple):
    """A file as it was read; its text has plain newlines."""

    seen: FileStat
    text: str
    data: bytes
    is_utf8: bool  # all of it


def read_file(path: Path) -> Contents:
    """The contents of an indexed file; Skipped says why it is not to be read."""
    seen = stat_file(path)
    try:
        with open(path, "rb", opener=systems.open_plain) as file:
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        raise Skipped(f"cannot be read ({error.strerror})") from None
    text, is_utf8 = decode_text(data)
    return Contents(seen, text, data, is_utf8)


def decode_text(data: bytes) -> tuple[str, bool]:
    """The text of a file's bytes, with plain newlines, and whether all of it is UTF-8."""
    if reason := core.why_not_utf8(data) or ("is not text" if b"\0" in data[:8192] else ""):
        raise Skipped(reason)
    text = data.decode("utf-8-sig", "replace")
    is_utf8 = "\ufffd" not in text or "\ufffd".encode() in data
    return plain_newlines(text).replace("\0", "\ufffd"), is_utf8


def plain_newlines(text: str) -> str:
    """A text whose lines end in a newline alone, whatever system wrote it."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


class FileRecord(core.NamedTuple):
    """What the database has of a file as it was when it was read."""

    seen: FileStat
    read_at: int  # ns
    digest: bytes  # SHA-256


class ParsedFile(core.NamedTuple):
    """A file that was read, as it is to be written into the database."""

    path: Path
    seen: FileStat
    digest: bytes
    kind: str
    parts: dict[str, markdown.Part]  # by id
    vectors: dict[str, bytes]  # of the new parts, by id
    embedded: int  # how many vectors had to be made


def _file_record(row: list[Any]) -> FileRecord:
    return FileRecord(FileStat(*row[:3]), *row[3:])


Plan = list[tuple[Source, list[Path], list[Path]]]  # a source, paths in it, and the files there


class FileTree:
    """What was asked to be indexed for one project, or globally: its sources, the files that are
    there, and those that the index has."""

    def __init__(self, projects: core.Projects, project: str | None) -> None:
        self.projects, self.database, self.project = projects, projects.database, project or ""
        # The folders that were walked, with the times that tell whether anything has come into one
        # or has left it; see `take_in_new`.
        self._folders: dict[Source, dict[str, int]] = {}
        self.skipped: list[dict[str, str]] = []
        self.warnings: list[dict[str, str]] = []

    def sources(self) -> list[Source]:
        """What was asked to be indexed for this project."""
        sql = (
            "SELECT id, path, options FROM sources WHERE project_id = ?"
            f" AND path <> '{core.CONVERSATIONS}' ORDER BY path"
        )
        return [
            Source(id, Path(path), _options(options))
            for id, path, options in self.database.rows(sql, self.project)
        ]

    def indexed_path(self, given: str | Path) -> Path:
        """The path without links by which something is indexed. A source that became a link is not
        followed."""
        named = Path(os.path.abspath(core.absolute_path(given))) if str(given) else None
        return (
            named if named in [source.path for source in self.sources()] else core.whole_path(given)
        )

    def existing_path(self, given: str | Path) -> Path:
        """The same, but NotFound where nothing is there or in the index."""
        path = core.check_name(walking.check_not_root(self.indexed_path(given)))
        if not self.is_there(path):
            raise core.NotFound(f"there is no file or folder {path}")
        return path

    def is_there(self, path: Path) -> bool:
        """Whether something is at a path, or in the index at or below it."""
        if os.path.lexists(path):
            return True
        indexed = [*(source.path for source in self.sources()), *map(Path, self.records())]
        return any(core.is_in(other, path) for other in indexed)

    def source_for(self, path: Path, options: walking.Options | None) -> Source:
        """The source that a path belongs to; a new one if it is in none, or its options differ."""
        (source,) = self._by_source([path], options)
        return source

    def _by_source(
        self, paths: Iterable[Path], options: walking.Options | None
    ) -> dict[Source, list[Path]]:
        """Paths by their source. Each source is walked once, since thousands of files may be
        named."""
        wanted = sorted(set(paths), key=lambda path: len(path.parts))  # a folder before its files
        covered: dict[Source, set[Path]] = {}
        found: dict[Source, list[Path]] = {}
        sources = self.sources()
        for path in wanted:
            around = [source for source in sources if core.is_in(path, source.path)]
            source = max(around, key=lambda source: len(source.path.parts), default=None)
            if source and source not in covered:
                covered[source] = self._covered(source, wanted)
            if not source or options not in (None, source.options) or path not in covered[source]:
                source = self._new_source(path, options, source)
                sources = self.sources()
            found.setdefault(source, []).append(path)
        return found

    def _covered(self, source: Source, paths: list[Path]) -> set[Path]:
        """The paths that indexing a source reaches, or whose files are in its index already."""
        inside = [path for path in paths if core.is_in(path, source.path)]
        walked = walking.walk(source.path, source.options, walking.toward(inside))
        reached = {path for file in walked for path in (file, *file.parents)}
        above = {path for file in self.records(source) for path in Path(file).parents}
        there = {path for path in inside if os.path.exists(path)}
        return {source.path, *(reached | above).intersection(inside), *set(inside) - there}

    def _new_source(
        self, path: Path, options: walking.Options | None, around: Source | None
    ) -> Source:
        options = options or (around.options if around else walking.Options())
        with self.database.transaction() as connection:
            id = connection.execute(
                "INSERT INTO sources(path, project_id, options) VALUES(?, ?, ?)"
                " ON CONFLICT DO UPDATE SET options = excluded.options RETURNING id",
                (str(path), self.project, json.dumps(options._asdict())),
            ).get
            if around and around.path != path:  # whose files in there are the new source's now
                sql = "UPDATE files SET source = ? WHERE path = ? AND project_id = ?"
                moved = (file for file in self.records() if core.is_in(Path(file), path))
                connection.executemany(sql, [(id, file, self.project) for file in moved])
        return Source(id, path, options)

    def delete_empty_sources(self, paths: list[Path]) -> None:
        """Delete the sources of files that were asked for and cannot be indexed."""
        records = self.records()
        for path in paths:
            is_file = os.path.exists(path) and not os.path.isdir(path) and walking.has_no_link(path)
            if is_file and str(path) not in records:
                with self.database.transaction() as connection:
                    sql = (
                        "DELETE FROM sources WHERE path = ? AND project_id = ?"
                        " AND id NOT IN (SELECT source FROM files)"
                    )
                    connection.execute(sql, (str(path), self.project))

    def records(self, source: Source | None = None) -> dict[str, FileRecord]:
        """The records of files by their paths, of all sources or of one."""
        chosen = f"= {source.id:d}" if source else f"NOT IN ({core.CONVERSATION_SOURCES})"
        columns = f"path, {core.RECORD_COLUMNS}"
        sql = f"SELECT {columns} FROM files WHERE project_id = ? AND source {chosen}"
        return {path: _file_record(row) for path, *row in self.database.rows(sql, self.project)}

    def source_of_file(self, path: Path) -> Source:
        """The source that an indexed file belongs to."""
        sql = "SELECT source FROM files WHERE path = ? AND project_id = ?"
        id = self.database.value(sql, str(path), self.project)
        found = next((source for source in self.sources() if source.id == id), None)
        if found is None:
            raise core.NotFound(f"{path} is no longer in the index")
        return found

    def covers(self, path: Path) -> bool:
        """Whether anything in a folder is indexed, or would be."""
        tops = [source.path for source in self.sources()]
        return any(core.is_in(path, top) or core.is_in(top, path) for top in tops)

    def count_parts(self, source: Source, tops: list[Path]) -> int:
        """How many parts of files at or below some paths there are."""
        sql = (
            "SELECT f.path, count(*) FROM items i JOIN files f ON f.id = i.file"
            " WHERE f.source = ? GROUP BY f.id"
        )
        rows, wanted = self.database.rows(sql, source.id), walking.toward(tops)
        return sum(count for path, count in rows if wanted(Path(path)))

    def part_at(self, path: Path, line: int) -> str | None:
        """The id of the part that a line of a file stands in."""
        sql = (
            "SELECT i.id FROM items i JOIN files f ON f.id = i.file WHERE f.path = ? AND"
            " f.project_id = ? AND ? BETWEEN i.first_line AND i.last_line ORDER BY i.seq DESC"
        )
        return self.database.value(sql, str(path), self.project, line)

    def plan(self, paths: list[Path], options: walking.Options | None = None) -> Plan:
        """What there is to index at or below some paths; without any, everywhere."""
        tops = self._by_source(paths, options)
        for source in self.sources():
            if not paths or set(paths).intersection(source.path.parents):
                tops.setdefault(source, [source.path])
        return [(source, tops[source], self.find(source, tops[source])) for source in tops]

    def find(self, source: Source, tops: list[Path]) -> list[Path]:
        """The existing files of a source at or below paths, but not those of a source within."""
        if not os.path.lexists(source.path):
            self._skip(source.path, "is gone: `index --remove` forgets it", warning=True)
            return []
        if not os.path.isdir(source.path) or not walking.has_no_link(source.path):
            return [source.path]
        wanted = walking.toward(tops)
        return list(filter(wanted, self._walk(source, wanted)))

    def _walk(self, source: Source, enter: Callable[[Path], bool]) -> list[Path]:
        """The files in some folders of a source; notes when these folders changed."""
        inner = {other.path for other in self.sources() if source.path in other.path.parents}
        seen = self._folders.setdefault(source, {})

        def look(folder: Path) -> bool:
            if folder in inner or not enter(folder):
                return False
            is_closed = systems.why_closed(folder)  # opening it changes no time of it
            seen[str(folder)] = -1 if is_closed else _entries_changed_at(folder)
            return True

        walked = walking.walk(source.path, source.options, look, self._skip)
        found = [path for path in walked if path not in inner]
        for path in itertools.filterfalse(core.is_unicode, found):
            self._skip(path, "has a name that is not UTF-8: rename it")
        return list(filter(core.is_unicode, found))

    def warn_of_empty(self, plan: Plan, wanted: list[Path]) -> None:
        """Warn of folders that were asked for and have nothing to index; name what is excluded."""
        for source, tops, found in plan:
            for top in filter(os.path.isdir, set(tops).intersection(wanted)):
                if not any(core.is_in(path, top) for path in found):
                    left_out = " ".join(map(core.shown_value, source.options.exclude))
                    why = f"; without what --exclude names: {left_out}" if left_out else ""
                    self._skip(top, f"has no file to index{why}", warning=True)

    def _folders_seen(self, source: Source) -> dict[str, int]:
        """The folders of a source, each with when it had changed when it was last looked into."""
        sql = "SELECT value FROM meta WHERE key = ?"
        return core.parse_object(self.database.value(sql, self._folders_key(source)) or "{}")

    def _folders_key(self, source: Source) -> str:
        return f"folders:{self.project}:{source.path}"

    def _remember_folders(self, source: Source, seen: dict[str, int]) -> None:
        if seen != self._folders_seen(source):
            with self.database.transaction() as connection:
                core.set_meta(connection, self._folders_key(source), core.to_json(seen))

    def _skip(self, path: Path, reason: str, warning: bool = False) -> None:
        row = {"path": str(path), "reason": reason}
        if row not in (rows := self.warnings if warning else self.skipped):
            rows.append(row)


class Files(FileTree):
    """The index of one project's files, or of the global ones.

    usable   whether the database's vectors are of this encoder: else words alone are indexed
    secrets  whether what looks like a credential is kept in the parts of files that are read now
    reread   whether files are read that seem to be unchanged, too
    """

    def __init__(
        self,
        projects: core.Projects,
        encoder: core.Encoder,
        project: str | None,
        allow_secrets: bool = False,
    ) -> None:
        super().__init__(projects, project)
        self.encoder = encoder
        self.usable = core.same_model(self.database, encoder.model)
        self.secrets, self.reread = allow_secrets or not core.redacts(), allow_secrets
        self.changes: list[dict[str, Any]] = []
        self._is_stopped = False  # whether what is being read now is not wanted any more

    def remove(self, path: Path) -> int:
        """Take what is at or under a path out of the index; how many sources and files that was."""
        with self.database.transaction(create=False) as connection:
            gone = [source for source in self.sources() if core.is_in(source.path, path)]
            sources = [(source.id,) for source in gone]
            files = [file for file in self.records() if core.is_in(Path(file), path)]
            for file in files:
                self._erase_file(connection, file)
            connection.executemany("DELETE FROM sources WHERE id = ?", sources)
            keys = [(self._folders_key(source),) for source in gone]
            connection.executemany("DELETE FROM meta WHERE key = ?", keys)
        return len(sources) + len(files)

    # Following the files

    def take_in_new(self, source: Source) -> int:
        """Index the new files in changed folders of a source, and forget those gone. Returns the
        number of new files instead if they are too many."""
        known = self._folders_seen(source)
        changed = {
            Path(name)
            for name, seen in known.items()
            if seen == -1 or _entries_changed_at(name) != seen
        }
        if not os.path.isdir(source.path) or (known and not changed):
            return 0
        toward = {path for folder in changed for path in (folder, *folder.parents)}
        found = self._walk(source, lambda path: path in toward or str(path) not in known)
        records = self.records(source)
        new = [path for path in found if str(path) not in records]
        sizes = list(filter(None, map(_size_to_read, new)))
        if len(sizes) > NEW_FILES or sum(sizes) > NEW_SIZE:
            return len(sizes)
        for path in new:
            self._store(self._read(path, None), path, source, None)
        gone = (Path(name) for name in records if not os.path.lexists(name))
        left = (path for path in gone if path.parent in changed)
        self.forget({str(p): records[str(p)] for p in left if not systems.why_closed(p.parent)})
        kept = {name: seen for name, seen in known.items() if Path(name) not in changed}
        self._remember_folders(source, kept | self._folders[source])
        return 0

    def sync(
        self, plan: Plan, progress: core.Progress = lambda _: None, stop: core.Stop = lambda: False
    ) -> None:
        """Bring the index up to date with a plan. Calls `progress(files done)`. Files are read and
        encoded while others are written. Gone files are removed last, so that a moved one is not
        encoded again."""
        with (
            self.encoder.parallel_encoding() as count,
            ThreadPoolExecutor(2 * count - 1) as readers,
        ):
            found = self._files_to_read(plan, progress)
            try:
                for (source, path, record), reading in map_ahead(
                    readers, 2 * count - 1, lambda new: self._read(*new[1:]), found
                ):
                    if stop():
                        return
                    self._store(reading.result(), path, source, record)
                    progress(1)
            finally:
                self._is_stopped = True
                readers.shutdown(wait=False, cancel_futures=True)
        self._is_stopped = False
        for source, tops, paths in plan:
            self._remove_gone(source, tops, set(map(str, paths)))
            if source.path in tops and source in self._folders:
                self._remember_folders(source, self._folders[source])
        self._trim_cache()

    def _files_to_read(
        self, plan: Plan, progress: core.Progress
    ) -> Iterator[tuple[Source, Path, FileRecord | None]]:
        """The files of a plan that are to be read, each with its source and its record."""
        for source, _, paths in plan:
            records = self.records(source)
            for path in paths:
                if self._is_new(path, record := records.get(str(path))):
                    yield source, path, record
                else:
                    progress(1)

    def _is_new(self, path: Path, record: FileRecord | None) -> bool:
        return record is None or self.reread or is_dirty(path, record)

    def _remove_gone(self, source: Source, tops: list[Path], there: set[str]) -> None:
        wanted = walking.toward(tops)
        gone = {
            name: record
            for name, record in self.records(source).items()
            if name not in there and wanted(Path(name))
        }
        if gone:  # when the plan was made: others may have indexed newer files meanwhile
            there = set(map(str, self.find(source, tops)))
            for folder in sorted({Path(name).parent for name in gone}):
                if why := systems.why_closed(folder):
                    self._skip(folder, f"{why}: then run `index` again", True)
            self.forget({name: record for name, record in gone.items() if name not in there})

    def catch_up(self, path: Path, record: FileRecord) -> bool:
        """Index a file again, before an answer is made of it, if it has changed; whether it had.
        The row of an unreadable file stays."""
        source = self.source_of_file(path)
        is_new = self._is_new(path, record)
        return is_new and self._store(self._read(path, record), path, source, record, away=True)

    def _read(self, path: Path, record: FileRecord | None) -> ParsedFile | Skipped:
        """A file as it is now, or why it is not to be read."""
        try:
            seen, text, data, is_utf8 = read_file(path)
            digest = core.sha256(data)
            if self._is_same(digest, record):
                return ParsedFile(path, seen, digest, "", {}, {}, 0)
            if not is_utf8:
                self._skip(path, "is not all UTF-8: other bytes were replaced", warning=True)
            return self._parse(path, seen, digest, text)
        except Skipped as skipped:
            return skipped

    def _is_same(self, digest: bytes, record: FileRecord | None) -> bool:
        return record is not None and record.digest == digest and not self.reread

    def _store(
        self,
        read: ParsedFile | Skipped,
        path: Path,
        source: Source,
        record: FileRecord | None,
        away: bool = False,
    ) -> bool:
        """Write a file that was read, or read it again if it has changed since; whether the index
        changed."""
        try:
            for _ in range(FILE_TRIES):
                if isinstance(read, Skipped):
                    raise read
                if self._is_same(read.digest, record):
                    self._touch(path, read.seen, read.digest)
                    return False
                if self._write(read, source):
                    return True
                read = self._read(path, record)
            raise Skipped("keeps changing: try again")
        except Skipped as skipped:
            if os.path.lexists(path):  # else it has gone since it was found
                self._skip(path, str(skipped))
            if record is None or (away and record.seen.size == MISSING_SIZE):  # it was away before
                return False
            return self.forget({str(path): record}, away)

    def differs(self, path: Path, record: FileRecord | None) -> bool:
        """Whether a file has other bytes than its record has."""
        if record and not is_dirty(path, record):
            return False
        if record and not record.digest:  # it is only to be read again
            return is_stale(path, record)
        try:
            data = read_file(path).data
            return not record or record.digest != core.sha256(data)
        except Skipped as skipped:  # as before, if there is no record
            self._skip(path, str(skipped))
            return record is not None

    def facts(self, source: Source, scope: str) -> dict[str, Any]:
        """What `status` tells of a source."""
        records, shown, told = self.records(source), self.projects.shown, len(self.skipped)
        found = list(map(str, self.find(source, [source.path])))
        changed = [path for path in found if self.differs(Path(path), records.get(path))]
        return {
            "path": shown(source.path),
            "scope": scope,
            "files": len(records),
            "chunks": self.count_parts(source, [source.path]),
            "new": sorted(map(shown, (path for path in changed if path not in records))),
            "changed": sorted(map(shown, records.keys() & set(changed))),
            "missing": sorted(map(shown, records.keys() - set(found))),
            "skipped": [row | {"path": shown(Path(row["path"]))} for row in self.skipped[told:]],
            "gone": not os.path.lexists(source.path),
        }

    def report(self, plan: Plan) -> dict[str, Any]:
        """What came of `sync` for a plan."""
        chunks = sum(self.count_parts(source, tops) for source, tops, _ in plan)
        embedded = sum(row["embedded"] for row in self.changes)
        out = {row["path"] for row in self.changes if row["action"] == "removed"}
        out |= {row["path"] for row in self.skipped}
        return {
            "files": sum(str(path) not in out for *_, found in plan for path in found),
            "chunks": chunks,
            "embedded": embedded,
            "reused": max(0, chunks - embedded),
            "removed": sum(row["removed"] for row in self.changes),
            "changes": self.changes,
            "skipped": self.skipped,
            "warnings": self.warnings,
        }

    def _touch(self, path: Path, seen: FileStat, digest: bytes) -> None:
        """Record that a file was read again with the same bytes, and date its parts by its new
        time."""
        names = str(path), self.project, digest
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE items AS i SET created_at = ?4 FROM files f WHERE f.id = i.file"
                f" AND f.path = ?1 AND f.project_id = ?2 AND f.digest = ?3 AND NOT {core.HAS_DAY}",
                (*names, _created(path, seen)),
            )
            connection.execute(
                "UPDATE files SET size = ?, changed_at = ?, touched_at = ?, read_at = ?"
                " WHERE path = ? AND project_id = ? AND digest = ?",
                (*seen, time.time_ns(), *names),
            )

    def forget(self, gone: dict[str, FileRecord], away: bool = False) -> bool:
        """Remove files from the index unless they have newer records; whether any was removed. If
        they are only `away`, their rows stay."""
        before = len(self.changes)
        sql = "SELECT read_at FROM files WHERE path = ? AND project_id = ?"
        for path, record in gone.items():
            with self.database.transaction() as connection:
                same = connection.execute(sql, (path, self.project)).get == record.read_at
                erased = self._erase_file(connection, path, away) if same else None
            if erased is not None:  # another process may have been quicker
                self._report_change(path, "removed", 0, erased)
        return len(self.changes) > before

    def _report_change(self, path: Path | str, action: str, embedded: int, removed: int) -> None:
        row = {"path": str(path), "action": action, "embedded": embedded, "removed": removed}
        self.changes.append(row)

    # One file

    def _parse(self, path: Path, seen: FileStat, digest: bytes, text: str) -> ParsedFile:
        """Everything that takes time, before the transaction."""
        kind, parts = self._parts(path, text)
        sql = "SELECT id FROM items WHERE id IN (SELECT value FROM json_each(?))"
        stored = {id for (id,) in self.database.rows(sql, json.dumps(list(parts)))}
        new = {id: part for id, part in parts.items() if id not in stored}
        return ParsedFile(path, seen, digest, kind, parts, *self._embed(new))

    def _parts(self, path: Path, text: str) -> tuple[str, dict[str, markdown.Part]]:
        """The kind of a file, and its parts by id."""
        text, left_out = core.redact(text, not self.secrets, lines=True)
        if core.UNCLOSED in left_out:
            self._skip(path, f"has left out {core.UNCLOSED}", warning=True)
        is_markdown = walking.matches_rules(
            path, False, walking.rules_in_force(path.parent, FILE_GLOBS)
        )
        kind = "markdown" if is_markdown else core.detect_type(text)
        self.encoder.begin_loading()
        return kind, self._with_ids(
            path, markdown.split_file(text, kind, self.encoder.fits, path.stem)
        )

    def vectors(self, path: Path) -> list[tuple[markdown.Part, bytes]]:
        """The parts of a file as it is now with their vectors; nothing is stored."""
        with contextlib.suppress(Skipped):
            _, parts = self._parts(path, read_file(path).text)
            found, _ = self._embed(parts)
            return [(parts[id], vector) for id, vector in found.items()]
        return []

    def _with_ids(self, path: Path, parts: list[markdown.Part]) -> dict[str, markdown.Part]:
        """Parts by hash(project:path:first:last:model and text). A taken id is hashed again."""
        by_id: dict[str, markdown.Part] = {}
        for part in parts:
            lines = f"{part.first}:{part.last}:{self._cache_key(part).hex()}"
            id = core.short_hash(f"{self.project}:{path}:{lines}")
            while id in by_id:
                id = core.short_hash(id)
            by_id[id] = part
        while taken := core.stored_among(self.database, by_id):
            by_id = {core.short_hash(id) if id in taken else id: part for id, part in by_id.items()}
        return by_id

    def _cache_key(self, part: markdown.Part) -> bytes:
        """The key of a vector in the cache: SHA-256 of the model and of the text that it reads."""
        text = f"{self.encoder.model.digest}\n{_text_to_embed(part)}"
        return core.sha256(text.encode())

    def _embed(self, parts: dict[str, markdown.Part]) -> tuple[dict[str, bytes], int]:
        """The vectors of parts by id, and how many had to be made."""
        if not self.usable:
            return {}, 0
        by_text = {_text_to_embed(part): part for part in parts.values()}
        vectors = {text: self._stored_vector(part) for text, part in by_text.items()}
        todo, made = [text for text, vector in vectors.items() if vector is None], 0
        with contextlib.suppress(
            core.ServiceError
        ):  # the rest is pending until the service answers
            for batch in core.batches(todo, VECTORS_KEPT_EVERY):
                if self._is_stopped:
                    raise Skipped("was not read to its end")
                fresh = dict(zip(batch, self.encoder.embed_all(batch), strict=True))
                vectors |= fresh
                made += len(fresh)
                if len(fresh) == VECTORS_KEPT_EVERY:
                    rows = [(self._cache_key(by_text[text]), fresh[text]) for text in batch]
                    with self.database.transaction() as connection:
                        if core.claim_model(connection, self.encoder.model):
                            self._cache_vectors(connection, rows)
        found = ((id, vectors[_text_to_embed(part)]) for id, part in parts.items())
        return {id: vector for id, vector in found if vector}, made

    def _stored_vector(self, part: markdown.Part) -> bytes | None:
        sql = (
            "SELECT v.vector FROM items i JOIN chunks c ON c.item = i.seq AND c.position = 0"
            " JOIN vectors v ON v.chunk = c.id WHERE i.text_hash = ? AND i.ended_at IS NULL"
            ' AND i.content = ? AND c.context = ? AND c."end" = length(i.content) LIMIT 1'
        )
        live = self.database.value(sql, core.text_hash(part.content), part.content, part.context)
        sql = "SELECT vector FROM embeddings WHERE hash = ?"
        return live or self.database.value(sql, self._cache_key(part))

    def _write(self, parsed: ParsedFile, source: Source) -> bool:
        """Write a file as it was read into the database; False if it has changed since."""
        created = _created(parsed.path, parsed.seen)
        with self.database.transaction() as connection:
            if stat_file(parsed.path) != parsed.seen:
                return False
            if not core.fetch(connection, "SELECT 1 FROM sources WHERE id = ?", source.id):
                raise Skipped("was taken out of the index meanwhile")
            file, is_new = self._upsert_file(connection, parsed, source)
            stored = dict(core.fetch(connection, "SELECT id, seq FROM items WHERE file = ?", file))
            gone = [id for id in stored if id not in parsed.parts]
            new = [id for id in parsed.parts if id not in stored]
            self._erase_parts(connection, ((id, stored[id]) for id in gone))
            if parsed.vectors and not core.claim_model(connection, self.encoder.model):
                parsed = parsed._replace(vectors={})
            core.insert_items(connection, (self._item(id, parsed, file) for id in new))
            hashes = [(self._cache_key(parsed.parts[id]),) for id in new]
            connection.executemany("DELETE FROM embeddings WHERE hash = ?", hashes)
            connection.executemany(
                "UPDATE items SET created_at = ?1 WHERE id = ?2 AND created_at <> ?1",
                [(part.day or created, id) for id, part in parsed.parts.items()],
            )
            connection.execute(core.EXAMINED_FILES)
        if not parsed.parts:
            self._skip(parsed.path, "has nothing to index", warning=True)
        action = "added" if is_new else "changed"
        self._report_change(parsed.path, action, parsed.embedded, len(gone))
        return True

    def _upsert_file(
        self, connection: apsw.Connection, parsed: ParsedFile, source: Source
    ) -> tuple[int, bool]:
        """Insert or update the row of a file; its id, and whether it is a new one."""
        columns = "source, size, changed_at, touched_at, read_at, digest, dated, path, project_id"
        is_dated = walking.date_of(parsed.path) is not None
        facts = (source.id, *parsed.seen, time.time_ns(), parsed.digest, is_dated)
        row = (*facts, str(parsed.path), self.project)
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT OR IGNORE INTO files({columns}) VALUES({marks})", row)
        is_new = connection.changes() > 0
        sql = f"UPDATE files SET ({columns}) = ({marks})"
        sql += " WHERE path = ? AND project_id = ? RETURNING id"
        return connection.execute(sql, (*row, *row[-2:])).get, is_new

    def _item(self, id: str, parsed: ParsedFile, file: int) -> core.Item:
        part = parsed.parts[id]
        chunk = core.Chunk(0, len(part.content), part.context)
        vectors = [parsed.vectors[id]] if id in parsed.vectors else []
        item = core.Item(id, part.content, parsed.kind, self.project or None, 0, [chunk], vectors)
        return item._replace(file=file, first_line=part.first, last_line=part.last)

    def _erase_file(self, connection: apsw.Connection, path: str, away: bool = False) -> int | None:
        """Erase a file's parts, and its row unless the file is `away`. Returns the number of parts,
        None without a row."""
        this = "WHERE path = ? AND project_id = ?"
        sql = f"SELECT id, seq FROM items WHERE file = (SELECT id FROM files {this})"
        rows = core.fetch(connection, sql, path, self.project)
        self._erase_parts(connection, rows)
        sql = (
            f"UPDATE files SET size = {MISSING_SIZE}, digest = x''" if away else "DELETE FROM files"
        )
        connection.execute(f"{sql} {this}", (path, self.project))
        return len(rows) if connection.changes() else None

    def _erase_parts(self, connection: apsw.Connection, rows: Iterable[tuple[str, int]]) -> None:
        """Erase parts. Their vectors are cached, since undone edits and branches bring texts
        back."""
        sql = (
            "SELECT i.content, c.context, v.vector FROM items i JOIN chunks c ON c.item = i.seq"
            " JOIN vectors v ON v.chunk = c.id WHERE i.seq = ?"
        )
        for id, seq in rows:
            for content, context, vector in core.fetch(connection, sql, seq):
                key = self._cache_key(markdown.Part(content, context, 0, 0))
                self._cache_vectors(connection, [(key, vector)])
            core.erase_item(connection, id)

    def _cache_vectors(self, connection: apsw.Connection, rows: list[tuple[bytes, bytes]]) -> None:
        """Put vectors into the cache; each row is a key and a vector."""
        dated = [(*row, time.time_ns()) for row in rows]
        connection.executemany("INSERT OR REPLACE INTO embeddings VALUES(?, ?, ?)", dated)

    def _trim_cache(self) -> None:
        """Keep the CACHED_VECTORS of the cache that were used last."""
        over = self.database.value("SELECT count(*) FROM embeddings") - CACHED_VECTORS
        if over > 0:
            with self.database.transaction() as connection:
                connection.execute(
                    "DELETE FROM embeddings WHERE hash IN"
                    " (SELECT hash FROM embeddings ORDER BY used_at LIMIT ?)",
                    (over,),
                )


def files_of_scope(
    projects: core.Projects,
    encoder: core.Encoder,
    scope: str,
    allow_secrets: bool = False,
    create: bool = True,
) -> Files:
    """The index of this project's files, or of the global ones."""
    project = projects.current(create) if core.check_scope(scope) == "project" else None
    return Files(projects, encoder, project, allow_secrets)


def indexed_scopes(projects: core.Projects, encoder: core.Encoder) -> list[str]:
    """The scopes in which anything is indexed that this project sees."""
    scopes = core.SCOPES if projects.current() else ("global",)  # which is then meant by both
    return [
        scope
        for scope in scopes
        if files_of_scope(projects, encoder, scope, create=False).sources()
    ]


def as_list(given: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """Paths or patterns, of which one may be given by itself; InvalidInput for anything else."""
    if isinstance(given, str | Path):
        return [given]
    values: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    if wrong := [value for value in values if not isinstance(value, str | Path)]:
        raise core.InvalidInput(
            f"a path or pattern must be a string, not {type(wrong[0]).__name__}"
        )
    return values


NOTHING_INDEXED = "name a file or folder to index, e.g. MEMORY.md memory/"


def index(
    memory: core.Memory,
    paths: str | Path | Iterable[str | Path],
    options: walking.Options,
    scope: str | None,
    allow_secrets: bool,
    total: Callable[[int], object],
    progress: core.Progress,
    stop: core.Stop,
) -> dict[str, Any]:
    """What `Memory.index` does."""
    wanted, answers = as_list(paths), []
    for one in scopes_to_index(memory, scope, not wanted):
        files = files_of_scope(memory.projects, memory.encoder, one, allow_secrets)
        answers.append(index_paths(files, wanted, options, total, progress, stop))
    return sum_indexed(answers)


def scopes_to_index(memory: core.Memory, scope: str | None, is_all: bool) -> list[str]:
    """The scope that is named; else the project, or for all those that have an index."""
    if scope is not None or not is_all:
        return [scope or "project"]
    if not (found := indexed_scopes(memory.projects, memory.encoder)):
        raise core.InvalidInput(NOTHING_INDEXED)
    return found


def index_paths(
    files: Files,
    paths: Iterable[str | Path],
    options: walking.Options,
    total: Callable[[int], object] = lambda _: None,
    progress: core.Progress = lambda _: None,
    stop: core.Stop = lambda: False,
) -> dict[str, Any]:
    """What `Memory.index` does, with paths as they were given."""
    start = time.monotonic()
    for pattern in (*options.globs, *options.exclude):
        walking.read_pattern(pattern)  # is refused if it is none, before it is stored
    wanted = list(map(files.existing_path, paths))
    for path in wanted:
        if not os.path.isdir(path) and walking.matches_rules(
            path, False, walking.rules_in_force(path.parent, options.exclude)
        ):
            raise core.InvalidInput(
                f"{path} is named and left out by --exclude: nothing was indexed"
            )
    if not wanted and not files.sources():
        raise core.InvalidInput(NOTHING_INDEXED)
    chosen = None if options == walking.Options() else options
    plan = files.plan(wanted, chosen)
    total(sum(len(found) for *_, found in plan))
    files.warn_of_empty(plan, wanted)
    files.sync(plan, progress, stop)
    files.delete_empty_sources(wanted)
    answer = files.report(plan) | {"seconds": round(time.monotonic() - start, 2)}
    notice = core.remark_on_vectors(files.database, files.encoder) or _outside(
        files.projects, wanted
    )
    return answer | ({"notice": notice} if notice else {})


def sum_indexed(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """One answer for all scopes, of what `index_paths` returned of each."""
    first, *others = answers
    for other in others:
        first |= {name: first[name] + other[name] for name in first.keys() - {"notice"}}
        first["seconds"] = round(first["seconds"], 2)
    return first


def index_what_is_there(files: Files, paths: list[Path]) -> dict[str, Any]:
    """What `index_paths` returns of those paths that exist or are indexed; {} where none does."""
    there = list(filter(files.is_there, map(files.indexed_path, paths)))
    with contextlib.suppress(core.NotFound):  # gone in this moment
        return index_paths(files, there, walking.Options()) if there else {}
    return {}


def _outside(projects: core.Projects, paths: list[Path]) -> str:
    """A remark when paths are not the project's own."""
    root = projects.root
    if root is None and projects.current() is None:
        return f"no project here ({projects.nowhere()}): recalled in every project"
    far = [str(path) for path in paths if root and not core.is_in(path, core.real_path(root))]
    return (
        f"indexed for project {root} although it lies outside it: {', '.join(far)}" if far else ""
    )


def unindex(memory: core.Memory, paths: Iterable[str | Path], scope: str) -> dict[str, Any]:
    """What `Memory.unindex` does."""
    files = files_of_scope(memory.projects, memory.encoder, scope, create=False)
    unwanted, messages = list(map(files.indexed_path, paths)), []
    if not unwanted:
        raise core.InvalidInput(
            "name files or folders to remove from the index: `status` lists them"
        )
    for path in unwanted:
        if not files.remove(path):
            raise core.NotFound(f"{path} is not indexed: `status` lists what is")
        messages.append(f"{path} is no longer in the index.")
        if above := [source.path for source in files.sources() if source.path in path.parents]:
            messages.append(
                f"{above[0]} is still indexed: `index {above[0]} --exclude …` keeps it out."
            )
    return {"success": True, "paths": list(map(str, unwanted)), "message": " ".join(messages)}


# What recall asks of files


def _rows_of_files(
    database: core.Database, ids: set[int]
) -> list[tuple[int, Path, str, FileRecord]]:
    """(id, path, project, record) of files, by their ids."""
    sql = (
        f"SELECT id, path, project_id, {core.RECORD_COLUMNS} FROM files"
        " WHERE id IN (SELECT value FROM json_each(?))"
    )
    rows = database.rows(sql, json.dumps(list(ids))) if ids else []
    return [(id, Path(path), project, _file_record(row)) for id, path, project, *row in rows]


class IndexedSources(core.Sources):
    """What a search asks of the indexed files."""

    def take_in_new(self) -> str:
        left = []
        for project in dict.fromkeys((self.projects.current(), None)):
            files = Files(self.projects, self.encoder, project)
            for source in files.sources():
                if count := files.take_in_new(source):
                    left.append(f"{count} in {self.projects.shown(source.path)}")
        return f"New files, not searched: {', '.join(left)} (`index` reads them)." if left else ""

    def catch_up(self, files: set[int]) -> bool:
        """Those of this project and the global ones."""
        changed = False
        for _, path, project, record in _rows_of_files(self.database, files):
            if project in ("", self.projects.current()) and is_dirty(path, record):
                indexed = Files(self.projects, self.encoder, project or None)
                changed |= indexed.catch_up(path, record)
        return changed

    def stale(self, files: set[int]) -> set[int]:
        rows = _rows_of_files(self.database, files)
        return {id for id, path, _, record in rows if is_stale(path, record)}

    def blank(self) -> set[int]:
        sql = (  # no conversation, which has no digest
            f"SELECT id FROM files f WHERE size = {MISSING_SIZE} OR digest <> x''"
            " AND NOT EXISTS (SELECT 1 FROM items WHERE file = f.id)"
        )
        return {id for (id,) in self.database.cached_rows(sql)}

    def in_other_checkouts(self, files: set[int]) -> set[int]:
        folders = {id: path.parent for id, path, *_ in _rows_of_files(self.database, files)}
        if not folders:
            return set()
        top = self.projects.top
        outside = {folder for folder in folders.values() if not core.is_in(folder, top)}
        others = set(filter(self.projects.is_other_checkout, outside))
        return {id for id, folder in folders.items() if folder in others}

    def notice(self) -> str:
        """A notice if everything that this project indexed is gone: its folder has moved."""
        sources = Files(self.projects, self.encoder, self.projects.current()).sources()
        if not sources or any(os.path.lexists(source.path) for source in sources):
            return ""
        gone = ", ".join(self.projects.shown(source.path) for source in sources)
        remedy = "`index` names the new place, `index --remove` forgets it"
        return f"Gone, and not searched: {gone} ({remedy})."


def within_source(projects: core.Projects, prefix: str) -> str:
    """The SQL condition for parts of files whose path begins so. Raises NotFound."""
    core.check_text(prefix, "source", core.QUERY_MAX)
    whole = str(core.whole_path(prefix)).rstrip(os.sep) + os.sep * prefix.endswith(("/", os.sep))
    wanted = prefix, os.path.join(projects.top, prefix.removeprefix("./")), whole
    sql = "SELECT id, path FROM files WHERE ?1 OR project_id IN ('', ?2)"
    rows = projects.database.rows(sql, not core.kept_to_one_project(), projects.current())
    found = [str(id) for id, path in rows if path.startswith(wanted)]
    if not found:
        reason = f"no path of an indexed file begins with {core.shown_value(prefix)}"
        raise core.NotFound(f"{reason}: `status` shows what is indexed")
    return f" AND i.file IN ({', '.join(found)})"


def expand_item(
    projects: core.Projects, encoder: core.Encoder, row: dict[str, Any], lines: int | None
) -> dict[str, Any]:
    """What `Memory.expand` tells of the row of an item."""
    facts = core.shared_facts(row)
    if row["path"] is None:
        return facts
    if row["content_type"] == core.CONVERSATION:
        count = 1 if lines is None else lines
        return facts | {"content": _turns_around(projects.database, row, count)}
    if projects.is_foreign(row):  # whose file is not looked at
        return facts | {"source": core.source_of(row, projects)}
    content, first, last = section_of(projects, encoder, row, lines)
    return facts | {"source": f"{projects.shown(row['path'])}:{first}-{last}", "content": content}


def _turns_around(database: core.Database, row: dict[str, Any], count: int) -> str:
    """A turn of a conversation with so many before and after it."""
    sql = (
        "SELECT content FROM items WHERE file = (SELECT file FROM items WHERE seq = ?)"
        " AND first_line BETWEEN ? AND ? ORDER BY first_line"
    )
    span = row["first_line"] - count, row["first_line"] + count
    return "\n\n".join(text for (text,) in database.rows(sql, row["seq"], *span))


def section_of(
    projects: core.Projects, encoder: core.Encoder, row: dict[str, Any], lines: int | None = None
) -> tuple[str, int, int]:
    """The text around a part in its file as it is now, with its first and last line: its section,
    or `lines` before and after."""
    files, path = Files(projects, encoder, row["project_id"]), Path(row["path"])
    if record := files.records(files.source_of_file(path)).get(str(path)):
        files.catch_up(path, record)
    if core.find_item(files.database, row["id"]) is None:
        raise core.NotFound(f"{projects.shown(path)} has changed: recall again")
    text, _ = core.redact(read_file(path).text, not files.secrets, lines=True)
    first, last = row["first_line"], row["last_line"]
    count = text.count("\n") + (not text.endswith("\n"))
    if lines is not None:
        first, last = max(1, first - lines), min(count, last + lines)
    elif row["content_type"] == "markdown":
        first, last = section_at(text, first, last)
    content = "\n".join(text.split("\n")[first - 1 : last]).strip("\n")
    return content, first, min(last, count)


def _entries_changed_at(folder: str | Path) -> int:
    """When the entries of a folder changed, in ns; -1 if that may be right now, or the folder is
    gone."""
    try:
        changed = os.stat(folder).st_mtime_ns
    except OSError:
        return -1
    return changed if time.time_ns() - changed > RACY else -1


def _size_to_read(path: Path) -> int:
    """The bytes of a file that `read_file` does not refuse by its beginning; else 0."""
    try:
        size = stat_file(path).size
        with open(path, "rb", opener=systems.open_plain) as file:
            decode_text(file.read(8192))
    except (OSError, Skipped):
        return 0
    return size


def _text_to_embed(part: markdown.Part) -> str:
    """What the encoder reads of a part."""
    return core.embedding_text(part.content, core.Chunk(0, len(part.content), part.context))


def is_stale(path: Path, record: FileRecord) -> bool:
    """Whether a file's size or times are not as in its record, or it cannot be read."""
    try:
        return stat_file(path) != record.seen
    except Skipped:
        return True


def is_dirty(path: Path, record: FileRecord) -> bool:
    """Whether a file may have changed since it was read."""
    seems_same = record.digest and not is_stale(path, record)
    return not seems_same or record.read_at - max(record.seen[1:]) < RACY


def _created(path: Path, seen: FileStat) -> int:
    """When a file's parts were made, in unix seconds: the day in its name, or when it changed."""
    day = walking.date_of(path)
    return int(day.timestamp()) if day else seen.changed_at // 10**9


def _options(stored: str) -> walking.Options:
    """The options of a source from their JSON."""
    given = json.loads(stored)  # damaged, it must not mean that nothing is excluded
    lists = {name: tuple(given.get(name, ())) for name in ("globs", "exclude")}
    return walking.Options(**lists, archive=bool(given.get("archive")))


def section_at(text: str, first: int, last: int) -> tuple[int, int]:
    """The lines of the section that some lines of markdown stand in, its subsections included."""
    shown = markdown.visible(text)
    lines = shown.split("\n")
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    headings = [
        (bisect_right(starts, item.start), item.level) for item in markdown.headings_in(shown)
    ]
    above = [heading for heading in headings if heading[0] <= last]
    if not above:
        begin = next((n for n, line in enumerate(lines, 1) if line.strip()), first)
        return begin, headings[0][0] - 1 if headings else len(lines)
    begin, level = above[-1]
    ends = (line - 1 for line, other in headings if line > last and other <= level)
    return begin, next(ends, len(lines))


def render_indexed(answer: dict[str, Any]) -> Iterator[str]:
    """What was indexed, in one line; then what could not be."""
    rate = answer["embedded"] / max(answer["seconds"], 0.01)
    encoded = f"{answer['embedded']} embedded, {answer['reused']} reused"
    took = f"{answer['seconds']} s" + (f", {rate:.0f} a second" if answer["embedded"] else "")
    files = core.number_of(answer["files"], "file")
    counts = f"{answer['chunks']} chunks, {encoded}, {answer['removed']} removed"
    yield f"Indexed {files}: {counts} ({took})."
    yield from lines_of_files("skipped", answer["skipped"])
    yield from lines_of_files("note", answer["warnings"])
    if "notice" in answer:
        yield core.printable_name(f"note: {answer['notice']}")


def lines_of_files(kind: str, rows: list[dict[str, str]]) -> Iterator[str]:
    """A line for each of some files, and what is to say of it; no more than can be read."""
    lines = [core.printable_name(f"{kind}: {row['path']} {row['reason']}") for row in rows]
    return core.first_lines(lines, kind + ": and {} more (--json names them all)")


def render_changes(answer: dict[str, Any]) -> Iterator[str]:
    """A line for each file that came, changed or went."""
    for row in answer["changes"]:
        counts = f"{row['embedded']} embedded, {row['removed']} removed"
        yield core.printable_name(f"{row['action']:<8} {row['path']} ({counts})")
    for row in answer["skipped"]:
        yield core.printable_name(f"skipped  {row['path']} {row['reason']}")


def run_index(
    shared: core.Context,
    paths: tuple[str, ...] = (),
    remove: bool = False,
    scope: str | None = None,
    **options: Any,
) -> None:
    with shared.memory() as memory:
        if remove:
            shared.show(memory.unindex(*paths, scope=scope or "project"), core.render_message)
            return
        try:
            with files_bar() as (total, progress):
                answer = memory.index(paths, scope=scope, total=total, progress=progress, **options)
        except KeyboardInterrupt:
            click.echo("Interrupted. Run the same command to continue.", err=True)
            raise
        for line in render_changes(answer) if shared.verbose else ():
            click.echo(line, err=True)
        if not shared.verbose:
            answer.pop("changes", None)
        shared.show(answer, render_indexed)
        core.finish_pending(memory)
        _fail_for_skipped(answer, paths)


@contextlib.contextmanager
def files_bar() -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Two functions: one shows a bar for so many files, the other adds to what is done in it."""
    with contextlib.ExitStack() as stack:
        bars: list[Callable[[int], None]] = []

        def total(count: int) -> None:
            stack.close()  # the bar of the scope before
            bars.append(stack.enter_context(core.progress_bar("indexing", count)))

        yield total, lambda count: bars[-1](count)


def _fail_for_skipped(answer: dict[str, Any], paths: Iterable[str]) -> None:
    """InvalidInput if a file that was given by name was skipped."""
    given = {str(core.whole_path(path)) for path in paths}
    if failed := [row for row in answer["skipped"] if row["path"] in given]:
        raise core.InvalidInput("; ".join(f"{row['path']} {row['reason']}" for row in failed))

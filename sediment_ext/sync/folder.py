"""Sync through a folder: each machine writes files of its own."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import sediment as core
from sediment_ext import systems
from sediment_ext.sync import merge, places


class Folder:
    """A place of files, that some tool carries to other machines. Each machine has a folder there
    in which nobody else writes: machine.json says who it is and how far it has read the others;
    00.jsonl to ff.jsonl have a record a line, each memory in the file that its id chooses. A
    machine that leaves deletes its machine.json and no more, for others may lack what it sent; from
    then on all others erase in its files what is forgotten, as in the copy of a folder by a tool.

    The cursor has the tag that a file had when it was read, by MACHINE/FILE, and when it was
    searched for what is forgotten, by MACHINE/FILE/left; None in a patch of it deletes a key."""

    page = 20_000  # states that are written at once
    is_incomplete = False  # whether it has lost something that it had
    is_behind = False  # whether it is to be read once more, since others sent beside this machine
    interval = 5  # s between looks at whether something has come
    global_space = "@global"  # the space of what is global

    def __init__(self, place: str, me: places.Machine) -> None:
        self.name, self.me = place, me
        self.top = core.expand_home(place)
        self.remarks: list[str] = []
        self._read: dict[str, int] = {}  # the stamp up to which each machine was read
        self._forgot = False  # whether anything was erased, or is to be

    # Files as such

    def _machines(self) -> list[str]:
        entries = systems.folder_entries(self.top)
        return [entry.name for entry in entries if entry.name.isprintable() and entry.is_dir()]

    def _files(self, machine: str) -> dict[str, str]:
        """The files of a machine, each with a tag that changes with it: SIZE:TIME or SIZE:BLOB."""
        found = {}
        for entry in systems.folder_entries(self.top / machine):
            with contextlib.suppress(OSError):
                if entry.name.endswith(".jsonl") and entry.name.isprintable():
                    status = entry.stat()
                    found[entry.name] = f"{status.st_size}:{status.st_mtime_ns}"
        return found

    def _text(self, machine: str, name: str) -> str:
        """The text of a file, which anybody may have replaced with a pipe, a link or a device."""
        try:
            with open(self.top / machine / name, "rb", opener=systems.open_plain) as file:
                data = (
                    file.read(places.SYNC_FILE_MAX + 1) or b""
                )  # None of a pipe in which nothing is
        except FileNotFoundError:
            return ""
        if len(data) > places.SYNC_FILE_MAX:
            raise core.InvalidInput(f"it is larger than {places.SYNC_FILE_MAX >> 20} MB")
        return data.decode("utf-8", "replace")

    def _has_left(self, machine: str) -> bool:
        is_there = os.path.lexists(self.top / machine / "machine.json")
        return not is_there or bool(_FOLDERS_COPY.match(machine))

    def _write(self, texts: dict[str, str], machine: str = "") -> None:
        """Give files these texts, of this machine or of one that left; delete those with none."""
        folder = self.top / (machine or self.me.name)
        if folder.is_symlink():
            raise core.InvalidInput(
                f"{folder} is a link, and this machine's files go where it leads"
            )
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            if text:
                core.write_atomically(folder / name, text)
            else:
                (folder / name).unlink(missing_ok=True)

    # What every place does

    def begin(self) -> dict[str, Any]:
        """Reach the place; returns what is to be shown of it."""
        if not os.path.isdir(self.top):
            raise places.Unreachable(f"{self.name} is not there: is it mounted, does its tool run?")
        return {}

    def pull(self, cursor: dict[str, Any], spaces: Iterable[str]) -> Iterator[tuple[Any, Any]]:
        """What has come since: pages of (space, state), each with a patch of the cursor."""
        self.is_incomplete = self.has_lost(cursor)
        here: set[str] = set()
        for machine in self._machines():
            reached = self._facts(machine).get("t", 0)
            for name, tag in self._files(machine).items():
                here.add(key := f"{machine}/{name}")
                if cursor.get(key) != tag:
                    remarks = len(self.remarks)
                    states, whole = self._states(machine, name)
                    reached = reached if whole else 0
                    is_damaged = len(self.remarks) > remarks
                    self.is_incomplete |= is_damaged and machine == self.me.name
                    patch = {key: tag} if whole else {}
                    yield states, patch | self._search_again(state for _, state in states)
            self._read[machine] = reached
        yield [], dict.fromkeys({key for key in cursor if _RECORDS.match(key)} - here)

    def has_lost(self, cursor: dict[str, Any]) -> bool:
        """Whether files are gone that were there, or own ones are not as this machine left them."""
        files = functools.cache(self._files)
        for key in sorted(filter(_RECORDS.match, cursor)):
            machine, _, name = key.partition("/")
            tag = files(machine).get(name)
            if tag is None or (machine == self.me.name and self._is_other(cursor[key], tag)):
                return True
        return False

    def _is_other(self, known: str, tag: str) -> bool:
        """Whether an own file is not as it was left; its time alone file systems round later."""
        return known.partition(":")[0] != tag.partition(":")[0]

    def _facts(self, machine: str) -> dict[str, Any]:
        """What a machine says of itself, without values that cannot be."""
        facts: dict[str, Any] = {}
        with contextlib.suppress(OSError, core.InvalidInput):
            facts = core.parse_object(self._text(machine, "machine.json"))
        return {key: facts[key] for key in facts.keys() & _FACTS.keys() if _FACTS[key](facts[key])}

    def _states(self, machine: str, name: str) -> tuple[list[tuple[str, merge.State]], bool]:
        """The (space, state) of each line of a file, and whether all was read: a line may have to
        be read another time, and one without an end is still being carried here."""
        try:
            *lines, rest = self._text(machine, name).split("\n")
        except (OSError, core.InvalidInput) as error:
            self.remarks.append(f"{machine}/{name} was not read: {reason_of(error)}")
            return [], False
        states, whole = [], not rest
        for number, line in enumerate(lines, 1):
            try:
                states.append(merge.state_of(_row_in(line)))
            except (core.SedimentError, ValueError, RecursionError) as error:
                why = error if isinstance(error, core.SedimentError) else "it is no JSON"
                self.remarks.append(f"{machine}/{name}, line {number} was not read: {why}")
                whole = whole and not isinstance(error, places.NotYet)
        return states, whole

    def push(self, space: str, states: list[merge.State]) -> dict[str, Any]:
        """Write states over what was written of the same memories; a patch of the cursor."""
        by_file: dict[str, dict[tuple[str, str], str]] = {}
        gone = {state["id"]: state for state in states if state["gone"]}
        for state in states:
            rows = by_file.setdefault(_file_of(state["id"]), {})
            rows[state["id"], space] = _line_of(state, space)
        texts = {}
        for name, new in by_file.items():
            lines = [line for line in self._text(self.me.name, name).split("\n") if line]
            rows = {_key_of(row): f"{line}\n" for line in lines if (row := _sound_row(line))}
            self.is_incomplete |= len(rows) < len(lines)
            # The project may have been shared as another space before: it is forgotten there, too.
            rows |= {key: _line_of(gone[key[0]], key[1]) for key in rows if key[0] in gone}
            texts[name] = "".join((rows | new).values())
        self._write(texts)
        return self._written() | self._search_again(states)

    def _written(self) -> dict[str, Any]:
        return {f"{self.me.name}/{name}": tag for name, tag in self._files(self.me.name).items()}

    def _files_left(self, cursor: dict[str, Any] | None = None) -> dict[str, dict[str, str]]:
        """The files of each machine that left, as `_files` has them; with a cursor, only those that
        are still to be searched for what is forgotten."""
        found: dict[str, dict[str, str]] = {}
        for machine in self._machines():
            if machine != self.me.name and self._has_left(machine):
                for name, tag in self._files(machine).items():
                    if not cursor or cursor.get(f"{machine}/{name}{_SEARCHED}") != tag:
                        found.setdefault(machine, {})[name] = tag
        return found

    def _search_again(self, states: Iterable[merge.State]) -> dict[str, None]:
        """A patch of the cursor by which files of machines that left are searched again for what
        these states say is forgotten."""
        starts = {_file_of(state["id"])[:2] for state in states if state["gone"]}
        self._forgot |= bool(starts)
        left = self._files_left().items() if starts else ()
        found = ((machine, name) for machine, files in left for name in files if name[:2] in starts)
        return {f"{machine}/{name}{_SEARCHED}": None for machine, name in found}

    def on_left(self, cursor: dict[str, Any]) -> list[str]:
        """Remarks on machines that left, in whose files something forgotten may still stand."""
        why = "has left: what is forgotten may stand in its files until a `sync` has looked"
        return [f"machine {machine} {why}" for machine in self._files_left(cursor)]

    def _erase_in_left(self, cursor: dict[str, Any]) -> dict[str, Any]:
        """Erase what is forgotten in files of machines that left; a patch of the cursor."""
        away, left = self._files_left(), self._files_left(cursor)
        known = [key for key in cursor if key.endswith(_SEARCHED)]
        patch: dict[str, Any] = {key: None for key in known if key.partition("/")[0] not in away}
        gone = self._all_gone({name[:2] for files in left.values() for name in files})
        for machine, files in left.items():
            try:
                patch |= self._erase_in(machine, files, gone)
            except places.Outrun:
                raise
            except (OSError, core.SedimentError) as error:
                why = "has left, and what is forgotten was not erased in its files"
                self.remarks.append(f"machine {machine} {why}: {reason_of(error)}")
        return patch

    def _all_gone(self, starts: set[str]) -> set[tuple[str, str]]:
        """The ids and spaces of all that is forgotten, of the files whose names begin so."""
        found = set()
        for machine in self._machines() if starts else ():
            for name in self._files(machine):
                if name[:2] in starts:
                    with contextlib.suppress(OSError, core.SedimentError):
                        rows = map(core.parse_object, self._text(machine, name).split("\n"))
                        found |= {_key_of(row) for row in rows if _is_gone(row)}
        return found

    def _erase_in(
        self, machine: str, files: dict[str, str], gone: set[tuple[str, str]]
    ) -> dict[str, str]:
        """Erase what is gone in files of a machine; a patch of the cursor."""
        texts, tags = {}, {}
        for name, tag in files.items():
            with contextlib.suppress(
                OSError, core.SedimentError
            ):  # `pull` says what cannot be read
                lines = (text := self._text(machine, name)).split("\n")
                erased = "\n".join(_without_gone(line, gone) for line in lines)
                tags[name] = tag
                texts |= {name: erased} if erased != text else {}
        if texts:
            self._write(texts, machine)
            tags |= {name: self._files(machine)[name] for name in texts}
        return {f"{machine}/{name}{_SEARCHED}": tag for name, tag in tags.items()}

    def finish(self, t: int, cursor: dict[str, Any]) -> dict[str, Any]:
        """Tell the others how far this machine has read; a patch of the cursor."""
        patch = self._erase_in_left(cursor)
        own = (
            entry.name
            for entry in systems.folder_entries(self.top / self.me.name)
            if entry.is_file()
        )
        facts = {"v": places.RECORD_VERSION, "host": self.me.host, "person": self.me.person}
        facts |= {"t": t, "read": self._read, "seen": int(time.time())}
        known = self._facts(self.me.name)
        texts = dict.fromkeys(filter(_TOOLS_COPY.match, own), "")
        if known.get("seen", 0) < facts["seen"] - core.DAY or facts != known | {
            "seen": facts["seen"]
        }:
            texts["machine.json"] = core.to_json(facts)
        if texts:
            self._write(texts)
        return patch | self._written()

    def machines(self, forgotten: list[int]) -> list[dict[str, Any]]:
        """The machines, and how many of what was forgotten here each still has to erase."""
        found = []
        for name in self._machines():
            if not _FOLDERS_COPY.match(name) and (facts := self._facts(name)):
                row = {key: facts.get(key) for key in ("host", "person", "seen")}
                read = facts.get("read", {}).get(self.me.name, 0)
                to_erase = sum(t > read for t in forgotten) if name != self.me.name else 0
                found.append({"machine": name, **row, "to_erase": to_erase})
        return found

    def wait(self, seconds: float) -> bool:
        """Wait; returns whether something has come, as far as the place can tell."""
        time.sleep(seconds)
        return False

    def leave(self) -> None:
        """Let the others wait no more for this machine to erase what is forgotten."""
        if not self._has_left(self.me.name):
            self._write({"machine.json": ""})


def reason_of(error: OSError | core.SedimentError) -> str:
    return str((isinstance(error, OSError) and error.strerror) or error)


def _line_of(state: merge.State, space: str) -> str:
    row = merge.record_of(state, space)
    return core.to_json(row | {"sum": _checksum(row)}) + "\n"


def _checksum(row: dict[str, Any]) -> str:
    return core.short_hash(core.to_json(row))[:16]


def _row_in(line: str) -> Any:
    """The record in a line; InvalidInput where it is not as it was written."""
    row = core.parse_json(line)
    if isinstance(row, dict) and "sum" in row and row.pop("sum") != _checksum(row):
        raise core.InvalidInput("it is damaged, and does not fit its checksum")
    return row


def _sound_row(line: str) -> dict[str, Any]:
    """The record in a line; empty where it is damaged."""
    with contextlib.suppress(core.InvalidInput, ValueError, RecursionError):
        row = _row_in(line)
        return row if isinstance(row, dict) else {}
    return {}


def _file_of(id: str) -> str:
    return f"{core.sha256(id.encode())[0]:02x}.jsonl"


def _key_of(row: dict[str, Any]) -> tuple[str, str]:
    return str(row.get("id")), str(row.get("in"))


def _is_gone(row: dict[str, Any]) -> bool:
    return row.get("gone") is True and "id" in row


def _without_gone(line: str, gone: set[tuple[str, str]]) -> str:
    """A line; of a memory that is gone, one that says no more than that."""
    id, space = key = _key_of(row := core.parse_object(line))
    if key not in gone or _is_gone(row):
        return line
    return core.to_json({"v": places.RECORD_VERSION, "id": id, "in": space, "gone": True})


_SEARCHED = "/left"  # in a cursor, behind the name of a file in which nothing forgotten stands
_RECORDS = core.LazyPattern(r".*/[\da-f]{2}\.jsonl\Z")
# What tools make of a file that two have changed: "00 (conflicted copy).jsonl", 00.jsonl.conflict1.
_TOOLS_COPY = core.LazyPattern(r"(?:Copy of |(?!..\.jsonl\Z))[\da-f]{2}(?:[ ._~(-].+)?\.jsonl")
_FOLDERS_COPY = core.LazyPattern(
    r"(?i)[\da-f]{8}[ ._~(-]"
)  # of a machine's folder, which nobody writes
_FACTS: dict[str, Callable[[Any], bool]] = {
    "v": merge.is_count,
    **dict.fromkeys(("host", "person"), lambda it: isinstance(it, str) and it.isprintable()),
    "seen": lambda at: merge.is_count(at, core.TIME_MAX),
    "t": lambda t: merge.is_count(t, 1 << 62),
    "read": lambda read: (
        isinstance(read, dict) and all(merge.is_count(t, 1 << 62) for t in read.values())
    ),
}

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
    machine that leaves deletes its machine.json and no more, for others may lack what it sent.

    The cursor has the tag that a file had when it was read, by MACHINE/FILE; None in a patch of it
    deletes a key."""

    page = 20_000  # states that are written at once
    is_incomplete = False  # whether it has lost something that it had
    interval = 5  # s between looks at whether something has come
    global_space = "@global"  # the space of what is global

    def __init__(self, place: str, me: places.Machine) -> None:
        self.name, self.me = place, me
        self.top = core.expand_home(place)
        self.remarks: list[str] = []
        self._read: dict[str, int] = {}  # the stamp up to which each machine was read
        self._forgot = False  # whether this run has read or written that anything was forgotten

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
            raise core.InvalidInput(f"the file is larger than {places.SYNC_FILE_MAX >> 20} MB")
        return data.decode("utf-8", "replace")

    def _has_left(self, machine: str) -> bool:
        is_there = os.path.lexists(self.top / machine / "machine.json")
        return not is_there or bool(_FOLDERS_COPY.match(machine))

    def _write(self, texts: dict[str, str]) -> None:
        """Give files of this machine these texts; delete those with none."""
        folder = self.top / self.me.name
        if folder.is_symlink():
            raise core.InvalidInput(
                f"{folder} is a link: sync writes its files into a real folder only"
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
            raise places.Unreachable(
                f"{self.name} is not there (is it mounted, and does its sync tool run?)"
            )
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
                    self._forgot |= any(state["gone"] for _, state in states)
                    yield states, {key: tag} if whole else {}
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
        """The (space, state) of each line, and whether all was read. An unfinished line comes
        later."""
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
                why = error if isinstance(error, core.SedimentError) else "it is not JSON"
                self.remarks.append(f"{machine}/{name}, line {number} was not read: {why}")
                whole = whole and not isinstance(error, places.FutureRecord)
        return states, whole

    def push(self, space: str, states: list[merge.State]) -> dict[str, Any]:
        """Write states over what was written of the same memories; a patch of the cursor."""
        by_file: dict[str, dict[tuple[str, str], str]] = {}
        gone = {state["id"]: state for state in states if state["gone"]}
        self._forgot |= bool(gone)
        for state in states:
            name = f"{core.sha256(state['id'].encode())[0]:02x}.jsonl"
            rows = by_file.setdefault(name, {})
            rows[state["id"], space] = _line_of(state, space)
        texts = {}
        for name, new in by_file.items():
            rows = {}
            for line in filter(None, self._text(self.me.name, name).split("\n")):
                if row := _sound_row(line):
                    rows[str(row.get("id")), str(row.get("in"))] = f"{line}\n"
                else:
                    self.is_incomplete = True
            # The project may have been shared as another space before: it is forgotten there, too.
            rows |= {key: _line_of(gone[key[0]], key[1]) for key in rows if key[0] in gone}
            texts[name] = "".join((rows | new).values())
        self._write(texts)
        return self._written()

    def _written(self) -> dict[str, Any]:
        return {f"{self.me.name}/{name}": tag for name, tag in self._files(self.me.name).items()}

    def on_left(self) -> list[str]:
        """Remarks on the files of machines that left: nobody erases in them what is forgotten."""
        left = (name for name in self._machines() if self._has_left(name) and self._files(name))
        why = "has left, and forgotten texts stay in its files. Once every machine has synced,"
        return [
            f"{name} {why} {self._how_to_delete(name)}" for name in left if name != self.me.name
        ]

    def _how_to_delete(self, machine: str) -> str:
        return f"delete the folder {self.top / machine}"

    def finish(self, t: int, cursor: dict[str, Any]) -> dict[str, Any]:
        """Tell the others how far this machine has read; a patch of the cursor."""
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
        return self._written()

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
    if isinstance(row, dict) and row.pop("sum", None) != _checksum(row):
        raise core.InvalidInput("it is damaged, and does not fit its checksum")
    return row


def _sound_row(line: str) -> dict[str, Any]:
    """The record in a line; empty where it is damaged."""
    with contextlib.suppress(core.InvalidInput, ValueError, RecursionError):
        row = _row_in(line)
        return row if isinstance(row, dict) else {}
    return {}


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

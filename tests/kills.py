"""Kill points: a process changes a memory and is killed in the middle, again and again.

It is killed before one of the SQL statements that the change takes, within one of its writes to a
file, of which half is then on disk, or at any moment. Whatever happens, the file must be whole:
what was there is there and is found, and the change was made wholly or not at all.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

import apsw
from storage import CACHE, TIMEOUT, child, consistent, hear, shared_encoder

import sediment
from sediment import Memory

KINDS = ("statement", "write", "moment")
FACTS = [
    "The gate code is 4711, and only the porter knows it.",
    "Invoices are sent on the last Friday of a month.",
    "Mara prefers tea without milk.",
    "The lighthouse is painted every third spring.",
    "Nobody may deploy while the importer is running.",
]
OLD, NEW = "Staging listens on port 5433.", "Staging listens on port 6543."
SAID = "Backups go to Oslo at midnight."
ROWS = [f"Buoy number {n} lies north of pier {7 * n}." for n in range(6)]
LONG = "".join(f"# Heading {n}\n\nParagraph {n} tells of ropes.\n\n" for n in range(30))
WORD = "marlinspike"
LONG += f"# Tools\n\nA {WORD} opens knots."
BATCH = 4  # rows of an import that are committed together
SLOWER = 4  # than the same change here, in a process that has done it before
LATER = "Life goes on."
BACKUP, FOLDER = "backup", "folder"  # stand for their paths among the ids
TOMORROW = "2999-01-01"


# What the process does.


def store(memory: Memory, _: dict[str, str]) -> None:
    memory.store("The canteen closes at half past two.")


def replace(memory: Memory, ids: dict[str, str]) -> None:
    memory.store("The gate code is 1234, and only the porter knows it.", replace=ids[FACTS[0]])


def forget(memory: Memory, ids: dict[str, str]) -> None:
    memory.forget(ids[NEW])  # and what it replaced


def merge(memory: Memory, _: dict[str, str]) -> None:
    assert memory.consolidate()["merged"] == 1


def undo(memory: Memory, ids: dict[str, str]) -> None:
    memory.undo(ids[NEW])


def bring(memory: Memory, _: dict[str, str]) -> None:
    memory.import_rows({"content": row} for row in ROWS)


def embed(memory: Memory, _: dict[str, str]) -> None:
    assert memory.embed_pending()


def migrate(memory: Memory, _: dict[str, str]) -> None:
    memory.list_items()


def reindex(memory: Memory, _: dict[str, str]) -> None:
    assert memory.reindex()["success"]


def prune(memory: Memory, _: dict[str, str]) -> None:
    assert memory.prune(TOMORROW)["count"]


def restore(memory: Memory, ids: dict[str, str]) -> None:
    memory.restore(ids[BACKUP])


def index(memory: Memory, ids: dict[str, str]) -> None:
    memory.index([ids[FOLDER]])


Change = Callable[[Memory, dict[str, str]], None]
CHANGES: dict[str, Change] = {
    "store": store,
    "replace": replace,
    "forget": forget,
    "merge": merge,
    "undo": undo,
    "import": bring,
    "embed": embed,
    "reindex": reindex,
    "prune": prune,
    "restore": restore,
    "index": index,
    "migrate": migrate,
    "first store": store,
}


# When it is killed.


class Points:
    """Counts what happens to files in this process, and ends it at one of these points."""

    def __init__(self, kind: str = "", number: int = 0) -> None:
        self.passed: Counter[str] = Counter()
        self._last = kind, number

    def __enter__(self) -> Self:
        apsw.connection_hooks.append(self._watch)
        self._files = _Files(self)
        return self

    def __exit__(self, *_: object) -> None:
        apsw.connection_hooks.remove(self._watch)
        self._files.unregister()

    def _watch(self, connection: apsw.Connection) -> None:
        connection.exec_trace = lambda *_: self.reach("statement")

    def reach(self, kind: str, before: Callable[[], object] | None = None) -> bool:
        """One more; `before` is done only where the process ends."""
        self.passed[kind] += 1
        if (kind, self.passed[kind]) == self._last:
            if before:
                before()
            os.kill(os.getpid(), signal.SIGKILL)
        return True


class _Files(apsw.VFS):
    """The system's files, each change of which is a point."""

    def __init__(self, points: Points) -> None:
        self._points, self._base = points, apsw.vfs_names()[0]
        super().__init__("points", self._base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self._points, self._base, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._points.reach("write")
        super().xDelete(filename, syncdir)


class _File(apsw.VFSFile):
    def __init__(self, points: Points, base: str, name: Any, flags: list[int]) -> None:
        super().__init__(base, name, flags)
        self._reach = points.reach

    def xRead(self, amount: int, offset: int) -> bytes:
        self._reach("read")
        return super().xRead(amount, offset)

    def xSync(self, flags: int) -> None:
        self._reach("sync")
        super().xSync(flags)

    def xWrite(self, data: Any, offset: int) -> None:
        whole = super().xWrite
        self._reach("write", lambda: whole(data[: len(data) // 2], offset))
        whole(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._reach("write")
        super().xTruncate(newsize)


def act(name: str, path: str, ids: str, kind: str, number: str) -> None:
    """What the child does; says when it begins, and when its change is acknowledged."""
    sediment.IMPORT_BATCH = BATCH
    memory = opened(Path(path))
    if kind == "moment":
        memory.encoder.load()
        print("ready", flush=True)
    with Points(kind, int(number)):
        CHANGES[name](memory, json.loads(ids))
        print("done", flush=True)
        memory.close()


def opened(path: Path) -> Memory:
    """A memory as commands open it."""
    return Memory(path, project="demo", resident=False)


# What it begins with, and what may come of it.


class State(NamedTuple):
    """What a file holds, read without any code of the product."""

    version: int = 0
    generation: bool = False  # it has been written anew as a whole
    schema: tuple[Any, ...] = ()
    items: tuple[Any, ...] = ()  # text, why it ended, the text that took its place


class Case(NamedTuple):
    """A change, the file it is made to, and every state that the file may be in then."""

    name: str
    base: Path
    ids: dict[str, str]
    wholes: list[State]
    points: Counter[str]
    seconds: float


def state(path: Path) -> State:
    """The state of a file; asked of a copy, so that the log stays for the product to recover."""
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(path, Path(folder) / "copy.db")
        if not copy.exists():
            return State()
        connection = apsw.Connection(str(copy))
        version = connection.pragma("user_version")
        schema = tuple(connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name"))
        items = tuple(connection.execute(_ITEMS)) if schema else ()
        anew = bool(schema and connection.execute(_GENERATION).get)
        connection.close()
        return State(version, anew, schema, items)


_ITEMS = """SELECT i.content, coalesce(i.ended_by, ''), coalesce(s.content, '') FROM items i
    LEFT JOIN items s ON s.id = i.successor ORDER BY 1"""
_GENERATION = "SELECT count(*) FROM meta WHERE key = 'generation'"


def copied(source: Path, target: Path) -> Path:
    """A copy of a database, with its log if there is one, in place of what was there."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{target}{suffix}").unlink(missing_ok=True)
        if suffix != "-shm" and Path(f"{source}{suffix}").exists():
            shutil.copy(f"{source}{suffix}", f"{target}{suffix}")
    return target


def cases(folder: Path) -> Iterator[Case]:
    """All changes, each with a file to be made to."""
    base = folder / "base.db"
    ids = {BACKUP: str(folder / "backup.db"), FOLDER: str(folder / "files")}
    Path(ids[FOLDER]).mkdir()
    for number, fact in enumerate(FACTS[:3]):
        (folder / "files" / f"{number}.md").write_text(f"# Fact {number}\n\n{fact}\n")
    with memory_of(Path(ids[BACKUP])) as memory:
        memory.store(FACTS[0])
    ids |= fill(base)
    for name in CHANGES:
        path = folder / f"{name}.db"
        if name != "first store":
            copied(base, path)
        if name == "migrate":
            make_older(path)
        before, points, seconds = state(path), Points(), time.monotonic()
        with memory_of(copied(path, folder / "after.db")) as memory, points:
            CHANGES[name](memory, ids)
        seconds = time.monotonic() - seconds
        after = state(folder / "after.db")
        wholes = [before, after]
        if name == "import":
            wholes[1:1] = [before._replace(items=_with(before, ROWS[:BATCH]))]
        if name == "index":
            wholes[1:1] = _file_by_file(copied(path, folder / "after.db"), Path(ids[FOLDER]))
        if name == "first store":
            wholes[1:1] = [after._replace(items=())]
        yield Case(name, path, ids, wholes, points.passed, seconds)


def _file_by_file(path: Path, folder: Path) -> Iterator[State]:
    """The states on the way to an index of all files."""
    for file in sorted(folder.iterdir()):
        with memory_of(path) as memory:
            memory.index([file])
        yield state(path)


def _with(before: State, texts: list[str]) -> tuple[Any, ...]:
    return tuple(sorted([*before.items, *((text, "", "") for text in texts)]))


def memory_of(path: Path) -> Memory:
    """The same as the child opens, with the encoder that is loaded here."""
    memory = opened(path)
    memory._encoder = shared_encoder()
    return memory


def fill(path: Path) -> dict[str, str]:
    """A file with something of everything; returns the ids of its texts."""
    with memory_of(path) as memory:
        ids = {text: memory.store(text)["id"] for text in (*FACTS, OLD)}
        ids[NEW] = memory.store(NEW, replace=ids[OLD])["id"]
        for text in (SAID, f"Note: {SAID}"):  # which are to be merged
            ids[text] = memory.store(text)["id"]
        inline, sediment.INLINE_CHUNKS = sediment.INLINE_CHUNKS, 1
        ids[LONG] = memory.store(LONG)["id"]
        sediment.INLINE_CHUNKS = inline
        memory.recall(FACTS[0])
    return ids


def make_older(path: Path) -> None:
    """Make the file one of the first version, whose word index is to be renewed."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("INSERT INTO words(words) VALUES('delete-all')")
        connection.execute("DROP VIEW past; DROP TABLE marks")
        connection.pragma("user_version", sediment.FIRST_VERSION)


# Killing


def kill(case: Case, kind: str, number: int, delay: float, folder: Path) -> bool:
    """Kill one process, and look at what it left; whether its change was made."""
    path = copied(case.base, folder / "memory.db")
    script = "import kills; kills.act(*sys.argv[1:])"
    places = os.pathsep.join(str(Path(file).parent) for file in (sediment.__file__, __file__))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": places, "SEDIMENT_CACHE": CACHE.name}
    env["PYTHONPYCACHEPREFIX"] = CACHE.name
    process = child(script, case.name, path, json.dumps(case.ids), kind, str(number), env=env)
    if kind == "moment":
        assert hear(process) == "ready"
        time.sleep(delay)
        process.kill()
    out, err = process.communicate(timeout=TIMEOUT)
    assert err == ""
    assert process.returncode in (0, -signal.SIGKILL)
    found = state(path)
    assert found in case.wholes, found.items
    assert "done" not in out or found == case.wholes[-1]
    if path.exists():
        with memory_of(path) as memory:
            look_at(memory)
    return found != case.wholes[0]


def look_at(memory: Memory) -> None:
    """All tables agree, every live text is found, and more can be stored."""
    consistent(memory)
    for item in memory.list_items(limit=100)["items"]:
        # What lacks vectors is found by its words alone, and first by one that it has once.
        query = WORD if "chunked" in item else item["content"]
        # One that seems to be newer may stand before it.
        found = [row["id"] for row in memory.recall(query)["results"]]
        assert item["id"] in found, query
    later = memory.store(LATER)["id"]
    assert memory.list_items(limit=100)["items"][0]["id"] == later
    consistent(memory)


def schedule(found: list[Case], rng: random.Random) -> Iterator[tuple[Case, str, int, float]]:
    """Kill points without end: of each change and kind in turn, none twice until all had theirs."""
    numbers = {
        (case.name, kind): _round(case.points[kind], rng) for case in found for kind in KINDS
    }
    # Fourteen changes and three kinds: side by side they meet in every pair.
    for kind, case in zip(itertools.cycle(KINDS), itertools.cycle(found), strict=True):
        yield case, kind, next(numbers[case.name, kind]), rng.random() * SLOWER * case.seconds


def _round(count: int, rng: random.Random) -> Iterator[int]:
    while True:
        yield from rng.sample(range(1, count + 1), count) or [0]


def run(folder: Path, kills: int, seed: int, until: float = float("inf")) -> dict[str, Any]:
    """So many kills, or as many as there is time for; returns figures."""
    folder.mkdir(parents=True, exist_ok=True)
    found = list(cases(folder))
    points = list(itertools.islice(schedule(found, random.Random(seed)), kills))
    made: Counter[str] = Counter()

    def work(numbered: tuple[int, tuple[Case, str, int, float]]) -> None:
        place, (case, kind, number, delay) = numbered
        if time.monotonic() > until:
            return
        left = folder / f"kill-{place}"
        left.mkdir()
        try:
            done = kill(case, kind, number, delay, left)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            where = f"{case.name}, {kind} {number} (seed {seed}, delay {delay:.4f}): see {left}"
            raise AssertionError(where) from error
        made[kind] += 1
        made["wholly"] += done
        shutil.rmtree(left)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, numbered) for numbered in enumerate(points)]:
            done.result()
    total = sum(made[kind] for kind in KINDS)
    statements, writes = (sum(case.points[kind] for case in found) for kind in KINDS[:2])
    return {
        "kills": total,
        **{f"at a {kind}": made[kind] for kind in KINDS},
        "changes made wholly": made["wholly"],
        "changes not made": total - made["wholly"],
        "statements that there are": statements,
        "writes that there are": writes,
    }

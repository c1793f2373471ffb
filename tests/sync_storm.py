"""Machines store, replace, undo, forget and sync through one place while one after the other is
killed. In the end all must have the same, nothing that was acknowledged may be lost, and nothing
that was forgotten may be left in any file.

Each machine is a process with a file of its own. Vectors are made up, so that the merge is what
takes the time.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

import sediment  # noqa: E402
import sediment_ext.sync.merge  # noqa: E402
from sediment import Encoder, InvalidInput, Memory, NotFound, SedimentError  # noqa: E402

MACHINES = 8
KILLS = 4  # at least, however slow the disk is
PROJECT = "storm"
TOKEN = re.compile(r"token-[0-9a-f]{16}")


class Quick(Encoder):
    """Makes up vectors, the same for the same text."""

    def embed(self, text: str) -> bytes:
        import numpy

        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        vector = numpy.random.default_rng(seed).standard_normal(self.model.dimension)
        return (vector / numpy.linalg.norm(vector)).astype("<f4").tobytes()

    def begin_loading(self) -> None:
        """There is nothing to load."""

    def fits(self, text: str) -> bool:
        return len(text) < 1_000

    def chunk_share(self, word: str) -> float:
        return 0.0


def open_machine(folder: Path, name: str, place: str) -> Memory:
    memory = Memory(folder / f"{name}.db", project=PROJECT)
    memory._encoder = Quick()
    if not sediment.is_synced(memory.database) or not memory.database.rows("SELECT * FROM spaces"):
        memory.sync_to(place.replace("NAME", name))
        memory.share(PROJECT)
    with memory.database.transaction() as connection:  # whoever had it was killed
        connection.execute("DELETE FROM meta WHERE key = 'syncing'")
    return memory


def live(folder: Path, name: str, place: str, seed: int) -> None:
    """Do things for ever, and write down what was acknowledged."""
    chance = random.Random(seed)
    memory = open_machine(folder, name, place)
    with open(folder / f"{name}.log", "a") as log:

        def acknowledged(**what: Any) -> None:
            log.write(json.dumps(what) + "\n")
            log.flush()

        while True:
            try:
                deed(memory, chance, acknowledged)
            except (NotFound, InvalidInput):
                continue  # another machine was quicker
            except SedimentError as error:
                acknowledged(error=str(error))


def deed(memory: Memory, chance: random.Random, acknowledged: Any) -> None:
    ids = [id for (id,) in memory.database.rows("SELECT id FROM items ORDER BY random() LIMIT 2")]
    what = chance.choice(("store", "store", "store", "same", "replace", "undo", "forget", "sync"))
    text = f"Fact token-{chance.randrange(2**64):016x} of {what}."
    if what == "sync":
        memory.sync()
        acknowledged(synced=1)
    elif what == "store":
        acknowledged(id=memory.store(text)["id"], text=text)
    elif what == "same":
        memory.store(f"The same of {chance.randrange(20)}.")
    elif what == "replace" and ids:
        acknowledged(id=memory.store(text, replace=ids[0])["id"], text=text)
    elif what == "undo" and ids:
        memory.undo(ids[0])
    elif what == "forget" and ids and chance.random() < 0.5:
        memory.forget(ids[0])
        acknowledged(forgot=ids[0])


class Storm:
    """The machines, and who kills them."""

    def __init__(self, folder: Path, place: str, seed: int, machines: int = MACHINES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.place, self.chance = folder, place, random.Random(seed)
        self.names = [f"m{number}" for number in range(machines)]
        self.kills = 0

    def run(self, seconds: float) -> dict[str, Any]:
        """All of it; AssertionError where something is not as it must be."""
        for name in self.names:
            with open_machine(self.folder, name, self.place) as memory:
                memory.store(f"Seed token-{self.chance.randrange(2**64):016x} was sown.")
        running = {name: self._start(name) for name in self.names}
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end or self.kills < KILLS:
                name = self.chance.choice(self.names)
                running[name].join(self.chance.uniform(0.05, 0.5))
                assert running[name].is_alive(), f"{name} has ended"
                running[name].kill()
                running[name].join()
                self.kills += 1
                running[name] = self._start(name)
        finally:
            for process in running.values():
                process.kill()
                process.join()
        return self._looked_at()

    def _start(self, name: str) -> Any:
        """A process that has all of the program at once."""
        words = self.folder, name, self.place, self.chance.randrange(2**32)
        process = multiprocessing.get_context("fork").Process(target=live, args=words, daemon=True)
        process.start()
        return process

    def _logged(self) -> Iterator[dict[str, Any]]:
        for name in self.names:
            (self.folder / f"{name}.log").touch()
            for line in (self.folder / f"{name}.log").read_text().splitlines():
                if line.endswith("}"):
                    yield json.loads(line)

    def _looked_at(self) -> dict[str, Any]:
        memories = [open_machine(self.folder, name, self.place) for name in self.names]
        for _ in range(8):
            moved = 0
            for memory in memories:
                (row,) = memory.sync()["spaces"]
                moved += row["sent"] + row["received"]
            if not moved:
                break
        assert not moved, "machines never come to rest"
        self.facts = [facts(memory) for memory in memories]
        for memory, found in zip(memories, self.facts, strict=True):
            assert found == self.facts[0], "machines do not agree"
            assert items(memory) == items(memories[0])
            assert not {name for name in check(memory) if name}, check(memory)
        logged = list(self._logged())
        self._nothing_is_lost(logged)
        for memory in memories:
            memory.database.writer().execute("VACUUM")  # what SQLite moves leaves traces in pages
            memory.database.checkpoint()
            memory.close()
        self._nothing_forgotten_is_left(logged)
        errors = [one["error"] for one in logged if "error" in one]
        assert not errors, errors[:3]
        syncs = sum("synced" in one for one in logged)
        return {"kills": self.kills, "syncs": syncs, "memories": len(self.facts[0])}

    def _nothing_is_lost(self, logged: list[dict[str, Any]]) -> None:
        known = {row[0]: row for row in self.facts[0]}
        for one in logged:
            if "id" in one:
                assert known[one["id"]][1] or known[one["id"]][2][2] == one["text"]
            if "forgot" in one:
                assert known[one["forgot"]][1], "it was forgotten"

    def _nothing_forgotten_is_left(self, logged: list[dict[str, Any]]) -> None:
        gone = {row[0] for row in self.facts[0] if row[1]}
        texts = {one["id"]: one["text"] for one in logged if "id" in one}
        tokens = {TOKEN.findall(text)[0] for id, text in texts.items() if id in gone}
        kept = {TOKEN.findall(text)[0] for id, text in texts.items() if id not in gone}
        for path in self.folder.rglob("*"):
            if path.is_file() and path.suffix != ".log":
                found = {*map(bytes.decode, re.findall(rb"token-[0-9a-f]{16}", path.read_bytes()))}
                assert not found & (tokens - kept), path


def facts(memory: Memory) -> list[tuple[Any, ...]]:
    """What must be the same on all machines."""
    states = sediment_ext.sync.merge.states_of(
        memory.database.reader(), "SELECT * FROM states ORDER BY id"
    )
    names = ("id", "gone", "text", "ending")
    return [
        (*(state[name] for name in names), sorted(state["confirmations"].items()))
        for state in states.values()
    ]


def items(memory: Memory) -> list[tuple[Any, ...]]:
    sql = "SELECT id, content, ended_by, ended_at, successor FROM items ORDER BY id"
    return memory.database.rows(sql)


def check(memory: Memory) -> list[str]:
    checks = sediment.extension("doctor").check_rows(memory.database.reader())
    return [f"{one.name}: {one.detail}" for one in checks if one.status != "ok"]


def check_hub(server: Any, storm: Storm) -> None:
    """The hub has what the machines have."""
    rows = [sediment_ext.sync.merge.state_of(record)[1] for (record,) in server.ask(
        "SELECT record FROM sediment.record ORDER BY id")]  # fmt: skip
    names = ("id", "gone", "text", "ending")
    found = [(*(row[name] for name in names), sorted(row["confirmations"].items())) for row in rows]
    assert found == storm.facts[0]


def run(
    folder: Path, kind: str, seconds: float, seed: int, machines: int = MACHINES
) -> dict[str, Any]:
    """A storm through a folder, git or a hub."""
    if kind == "hub":
        from hub_server import Server

        server = Server()
        try:
            server.ask(sediment.asset("hub.sql"))
            for number in range(machines):
                server.ask("SELECT sediment.add(%s, %s, true)", f"m{number}", PROJECT)
            storm = Storm(folder, server.url("NAME"), seed, machines)
            figures = storm.run(seconds)
            check_hub(server, storm)
        finally:
            server.close()
        return figures
    place = folder / "shared"
    if kind == "git":
        place = folder.parent / f"{folder.name}-remote.git"  # its history is the host's to erase
        subprocess.run(["git", "init", "--bare", "-q", str(place)], check=True)
    where = f"git:{place}" if kind == "git" else str(place)
    return Storm(folder, where, seed, machines).run(seconds)

"""What tests of sync share: machines with files of their own, and places that they sync through."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from storage import consistent, open_memory

import sediment
import sediment_ext.sync.folder
import sediment_ext.sync.merge
from sediment import InvalidInput, Memory, NotFound
from sediment_ext.sync.merge import receive, states_of

DIARIES = Path(__file__).parent / "diaries"
PROJECT = "demo"
TEXTS = [f"The {thing} is on port {port}." for thing in ("gateway", "queue") for port in range(4)]
DEEDS = ("store", "same", "replace", "forget", "undo", "hide", "prune", "tag", "untag", "expire")
DEEDS += ("pull", "pull", "pull")


class Machine:
    """A memory that syncs, whose clock is wrong and ticks when it is told."""

    def __init__(self, folder: Path, name: str, skew: int = 0) -> None:
        self.memory: Memory = open_memory(folder / f"{name}.db", PROJECT)
        self.name, self.skew, self.now = name, skew, 1_700_000_000
        connection = self.memory.database.writer()
        connection.create_scalar_function("unixepoch", self.clock)
        with self.memory.database.transaction() as connection:
            me = {"machine": name, "mark": "", "place": ""}
            connection.execute(sediment.asset("schema/sync.sql"), me)

    def clock(self, *_: object) -> float:
        return self.now + self.skew

    def states(self) -> dict[str, dict[str, Any]]:
        connection = self.memory.database.reader()
        return states_of(connection, "SELECT * FROM states ORDER BY id, here")

    def sent(self) -> list[dict[str, Any]]:
        """All states as others get them; what is sent is shown here, too, as a run of sync does."""
        sediment_ext.sync.merge.show_own(self.memory.database, self.states())
        rows = [
            json.loads(json.dumps(sediment_ext.sync.merge.record_of(s, "x")))
            for s in self.states().values()
        ]
        return [sediment_ext.sync.merge.state_of(row)[1] for row in rows]

    def take(self, states: Iterable[dict[str, Any]]) -> None:
        receive(self.memory.database, self.memory.encoder, PROJECT, list(states))

    def facts(self) -> list[tuple[Any, ...]]:
        """What must be the same on all machines."""
        states = self.states().values()
        return [
            (
                one["id"],
                one["gone"],
                one["text"],
                one["ending"],
                sorted(one["confirmations"].items()),
                sorted(one["marks"].items()),
            )
            for one in states
        ]

    def items(self) -> dict[str, tuple[Any, ...]]:
        sql = (
            "SELECT id, content, ended_by, ended_at, successor, (SELECT json_group_object(name,"
            " value ORDER BY name) FROM marks WHERE item = seq) FROM items"
        )
        return {row[0]: row[1:] for row in self.memory.database.rows(sql)}

    def projects(self) -> dict[str, str | None]:
        return dict(self.memory.database.rows("SELECT id, project_id FROM items"))

    def live(self) -> list[str]:
        return sorted(id for id, row in self.items().items() if row[1] is None)

    def do(self, deed: str, x: int, y: int) -> None:
        memory, known, live = self.memory, sorted(self.items()), self.live()
        try:
            if deed == "store":
                memory.store(TEXTS[x % len(TEXTS)])
            elif deed == "same":
                memory.store("Deploys happen on Fridays.")
            elif deed == "replace" and live:
                memory.store(TEXTS[y % len(TEXTS)], replace=live[x % len(live)])
            elif deed == "forget" and live:
                memory.forget(live[x % len(live)])
            elif deed == "undo" and known:
                memory.undo(known[x % len(known)])
            elif deed == "hide" and len(live) > 1:
                memory.replace(live[x % len(live)], live[y % len(live)])
            elif deed == "move" and live:
                memory.move(live[x % len(live)], ("global", "project")[y % 2])
            elif deed == "import":
                row = {"id": f"id{x % 5}", "content": TEXTS[y % 2], "created_at": y % 3 * 100}
                memory.import_rows([row])
            elif deed in ("tag", "untag") and live:
                way = {"tag": "add", "untag": "remove"}[deed]
                memory.tag(live[x % len(live)], **{way: "abc"[y % 3]})
            elif deed == "expire" and live:
                memory.expire(live[x % len(live)], ("2100-01-01", "never")[y % 2])
            elif deed == "prune" and live and x % 5 == 0:
                with memory.database.transaction() as connection:
                    sediment.prune_item(connection, live[x % len(live)])
        except (NotFound, InvalidInput):
            pass


class Place:
    """A folder, and machines that sync through it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shared = folder, folder / "shared"
        self.shared.mkdir(parents=True)
        self.all: list[Memory] = []

    def machine(self, name: str, share: str = "team") -> Memory:
        (self.folder / name).mkdir(exist_ok=True)
        memory = open_memory(self.folder / name / "memory.db")
        memory.sync_to(str(self.shared))
        if share:
            memory.share(share)
        self.all.append(memory)
        return memory

    def text(self) -> str:
        files = sorted(self.shared.rglob("*"))
        return "\n".join(path.read_text("utf-8") for path in files if path.is_file())

    def files_of(self, memory: Memory) -> Path:
        return self.shared / memory.sync_status()["machine"]


def line_of(row: Any) -> str:
    """A line of a file in the folder, with its checksum; JSON with half a character has none."""
    with contextlib.suppress(UnicodeEncodeError, TypeError):
        row = row | {"sum": sediment_ext.sync.folder._checksum(row)}
    return json.dumps(row) + "\n"


def git_place(folder: Path) -> Path:
    remote = folder / "remote.git"
    subprocess.run(["git", "init", "--bare", "-q", str(remote)], check=True)
    return remote


@contextlib.contextmanager
def sharing_by_git(tmp_path: Path, remote: Path) -> Iterator[Memory]:
    """A memory that has sent a fact."""
    with open_memory(tmp_path / "memory.db") as memory:
        memory.sync_to(f"git:{remote}")
        memory.share("team")
        memory.store("A fact.")
        memory.sync()
        yield memory


def texts(memory: Memory) -> list[str]:
    return sorted(item["content"] for item in memory.list_items(limit=1_000)["items"])


def settle(*memories: Memory, rounds: int = 2) -> None:
    """Sync so often that each machine has what the others sent."""
    for _ in range(rounds):
        for memory in memories:
            memory.sync()


def agree(machines: list[Machine], shuffle: random.Random) -> None:
    """Let each have what all have, in any order, some of it twice, until nothing changes."""
    for _ in range(6):
        before = [machine.facts() for machine in machines]
        everything = [state for machine in machines for state in machine.sent()]
        for machine in machines:
            bag = everything + shuffle.choices(everything, k=len(everything) // 3)
            shuffle.shuffle(bag)
            while bag:
                machine.take(bag[:5])
                del bag[:5]
        if [machine.facts() for machine in machines] == before:
            break
    all_have_the_same(machines)


def all_have_the_same(machines: list[Machine]) -> None:
    first = machines[0]
    for machine in machines:
        assert machine.facts() == first.facts()
        shows_its_view(machine)
        assert machine.items() == first.items()
        assert machine.projects() == first.projects()
        consistent(machine.memory)


def shows_its_view(machine: Machine) -> None:
    """Items are what follows from the states."""
    items = machine.items()
    states = machine.states()
    shown = sediment_ext.sync.merge.visibility(states)
    assert items.keys() == shown.keys()
    for id, end in shown.items():
        by, at, successor = end or (None, None, None)
        by = "replace" if by == "beside" else by
        at = None if at is None else max(at, states[id]["text"][3])
        assert items[id][1:4] == (by, at, successor or None), (id, states[id], items)
        marks = {name: value for name, (_, _, value) in states[id]["marks"].items() if value}
        assert json.loads(items[id][4]) == marks, (id, states[id], items)


def live_together(folder: Path, seed: int, steps: int, count: int = 4) -> list[Machine]:
    """Machines that know the same memories, live apart, and exchange a little now and then."""
    chance = random.Random(seed)
    skews = [chance.choice((0, 0, 5, -5, 100_000, -900)) for _ in range(count)]
    machines = [Machine(folder, f"{'abcdefgh'[n] * 8}", skew) for n, skew in enumerate(skews)]
    for number in range(3):
        machines[0].memory.store(f"Seed number {number} was sown.")
    for machine in machines[1:]:
        machine.take(machines[0].sent())
    for step in range(steps):
        machine, other = chance.sample(machines, 2)
        machine.now = 1_700_000_100 + step // 8
        deed, x, y = chance.choice(DEEDS), chance.randrange(10**6), chance.randrange(10**6)
        if deed == "pull":
            sent = other.sent()
            machine.take(chance.sample(sent, min(len(sent), 1 + y % 5)))
        else:
            machine.do(deed, x, y)
    return machines


def live_apart(folder: Path, seed: int) -> None:
    """Machines live together, and agree in the end."""
    folder.mkdir()
    machines = live_together(folder, seed, 50)
    agree(machines, random.Random(seed))
    for machine in machines:
        machine.memory.close()


class HarshPlace:
    """A folder through which machines sync, and what befalls it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.shared, self.kept, self.chance = folder / "shared", folder / "kept", chance
        self.shared.mkdir(parents=True)

    def join(self, machine: Machine) -> Machine:
        machine.memory.sync_to(str(self.shared))
        machine.memory.share("team")
        machine.memory.share(everywhere=True)
        return machine

    def befall(self, mishap: str, machine: Machine) -> None:
        files = sorted(self.shared.rglob("??.jsonl"))
        if mishap == "lose":
            for file in self.chance.sample(files, min(len(files), 3)):
                file.unlink()
        elif mishap == "cut" and files:
            file = self.chance.choice(files)
            file.write_bytes(file.read_bytes()[: self.chance.randrange(200)])
        elif mishap == "keep":
            shutil.rmtree(self.kept, ignore_errors=True)
            shutil.copytree(self.shared, self.kept)
        elif mishap == "put back" and self.kept.exists():
            shutil.rmtree(self.shared)
            shutil.copytree(self.kept, self.shared)
        elif mishap == "share":
            machine.memory.share(everywhere=True)
        elif mishap == "come back":
            machine.memory.leave_sync()
            self.join(machine)
        elif mishap == "rot" and (known := sorted(machine.items())):
            sql = "UPDATE items SET content = replace(content, ?, ?) WHERE id = ?"
            with machine.memory.database.transaction() as connection:
                changed = self.chance.choice((("port", "pors"), ("port", "poqt"), ("e", "d")))
                connection.execute(sql, (*changed, self.chance.choice(known)))
            if self.chance.random() < 0.5:
                machine.memory.sync(again=True)
            machine.memory.repair()


MISHAPS = ("lose", "cut", "keep", "put back", "share", "come back")
DAMAGE = ("rot", "rot", "lose", "keep", "put back")


def through_a_folder(
    folder: Path,
    seed: int,
    rounds: int,
    deeds: tuple[str, ...] = ("import", "move"),
    mishaps: tuple[str, ...] = MISHAPS,
) -> None:
    """Machines do things and sync through a folder, to which things happen; after each round all
    have what all have, and in the end a new one has it, too."""
    chance = random.Random(seed)
    place = HarshPlace(folder, chance)
    machines = [Machine(folder, name * 8, chance.choice((0, 0, 5, -900))) for name in "abc"]
    for machine in machines:
        place.join(machine)
    for step in range(12 * rounds):
        machine = chance.choice(machines)
        machine.now = 1_700_000_100 + step // 8
        deed = chance.choice((*DEEDS[:7], "replace", "undo", "undo", *deeds, "sync"))
        if deed == "sync":
            machine.memory.sync()
        else:
            machine.do(deed, chance.randrange(10**6), chance.randrange(3))
        if chance.random() < 0.1:
            place.befall(chance.choice(mishaps), machine)
        if step % 12 == 11:
            _come_to_rest(machines)
            all_have_the_same(machines)
    machines.append(place.join(Machine(folder, "d" * 8)))
    _come_to_rest(machines)
    all_have_the_same(machines)
    for machine in machines:
        machine.memory.close()


def _come_to_rest(machines: list[Machine]) -> None:
    for _ in range(5):
        told = [row for machine in machines for row in machine.memory.sync()["spaces"]]
        if not any(row["sent"] + row["received"] for row in told):
            return
    raise AssertionError("machines never come to rest")

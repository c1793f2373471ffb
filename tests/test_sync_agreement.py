"""Machines that sync agree for good: on what `undo` does, and on damaged files. They are told where
they do not: what was replaced by a memory that is not shared stays live for others."""

from __future__ import annotations

import functools
import inspect
import json
import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sync_machines
import sync_storm
from storage import consistent, open_memory
from sync_machines import DAMAGE, DIARIES, Machine, Place, live_apart, texts, through_a_folder

import sediment
import sediment_ext.sync.commands
import sediment_ext.sync.merge
from sediment import Memory


class Team:
    """Machines that share the project "demo" as "team", through a folder or through git."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.there, self.all = folder, folder / "place", list[Memory]()
        self.name = f"git:{self.there}" if kind == "git" else str(self.there)
        if kind == "git":
            subprocess.run(["git", "init", "--bare", "-q", str(self.there)], check=True)

    def alone(self, name: str) -> Memory:
        (self.folder / name).mkdir()
        self.all.append(memory := open_memory(self.folder / name / "memory.db"))
        return memory

    def join(self, memory: Memory) -> Memory:
        memory.sync_to(self.name)
        memory.share("team")
        return memory

    def machine(self, name: str) -> Memory:
        return self.join(self.alone(name))


def made(folder: Path, kind: str) -> Iterator[Team]:
    yield (team := Team(folder, kind))
    for memory in team.all:
        consistent(memory)
        memory.close()


@pytest.fixture(params=["folder", "git"])
def team(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Team]:
    yield from made(tmp_path, request.param)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Team]:
    """A team with a folder, whose files a test can change."""
    yield from made(tmp_path, "folder")


settle = functools.partial(sync_machines.settle, rounds=3)

MACHINES = 3  # that are killed; `make soak` has more, for longer
OFFICE, KETTLE = "The office is in Zurich.", "The kitchen has a green kettle."


@pytest.mark.parametrize("known", ["nothing", "both", "replacement"])
def test_what_stood_beside_another_stays_wherever_the_replacement_is_undone(
    team: Team, known: str
) -> None:
    a, b = team.machine("a") if known != "replacement" else team.alone("a"), team.machine("b")
    old, front = a.store(OFFICE)["id"], a.store(KETTLE)["id"]
    if known == "both":
        settle(a, b)
    a.replace(old, front)
    settle(team.join(a) if known == "replacement" else a, b)
    assert texts(a) == texts(b) == [KETTLE]
    assert "hidden" not in b.undo(old)
    settle(b, a)
    assert texts(a) == texts(b) == [KETTLE, OFFICE]


def test_what_was_stored_as_a_replacement_is_hidden_wherever_that_is_undone(team: Team) -> None:
    a, b = team.machine("a"), team.machine("b")
    old = a.store(OFFICE)["id"]
    front = a.store("The office is in Basel.", replace=old)["id"]
    settle(a, b)
    assert b.undo(old)["hidden"] == front
    settle(b, a)
    assert texts(a) == texts(b) == [OFFICE]
    a.undo(front)
    a.undo(old)
    a.undo(front)
    a.replace(a.store(KETTLE)["id"], front)
    settle(a, b)
    assert texts(a) == texts(b) == ["The office is in Basel."]


@pytest.mark.parametrize("backwards", [False, True])
def test_what_was_hidden_last_comes_back_first_on_each_machine(
    shared: Team, backwards: bool
) -> None:
    a, b = shared.machine("a"), shared.machine("b")
    stored = (a.store(f"Bus {number} stops at the market.")["id"] for number in range(5))
    hidden = sorted(stored, reverse=backwards)
    front = a.store("There are no buses.")["id"]
    for id in hidden:
        a.replace(id, front)
    settle(a, b)
    assert b.undo(front)["restored"] == hidden[-1]
    settle(b, a)
    assert a.undo(front)["restored"] == hidden[-2]


@pytest.mark.parametrize(("digit", "checksum"), [("0", True), ("9", True), ("9", False)])
def test_an_altered_line_is_taken_by_nobody_and_its_machine_mends_it(
    shared: Team, digit: str, checksum: bool
) -> None:
    a, b = shared.machine("a"), shared.machine("b")
    a.store("The gateway is on port 7001.")
    settle(a, b)
    (file,) = (shared.there / a.sync_status()["machine"]).glob("*.jsonl")
    sound = file.read_text()
    altered = sound.replace("7001", f"700{digit}")
    file.write_text(altered if checksum else re.sub(',"sum":"[^"]+"', "", altered))
    for memory in (b, shared.machine("c")):
        told = memory.sync()
        assert told["spaces"][0]["received"] == 0
        assert "line 1 was not read: it is damaged" in told["remarks"][0]
    told = a.sync()
    assert (told["spaces"][0]["received"], file.read_text()) == (0, sound)
    settle(*shared.all)
    assert {text for memory in shared.all for text in texts(memory)} == {
        "The gateway is on port 7001."
    }
    assert all(memory.sync()["remarks"] == [] for memory in shared.all)


def test_a_line_whose_end_was_altered_is_not_taken(shared: Team) -> None:
    a, b = shared.machine("a"), shared.machine("b")
    old = a.store("The gateway is on port 7001.")["id"]
    front = a.store("The gateway is on port 7002.", replace=old)["id"]
    a.sync()
    folder = shared.there / a.sync_status()["machine"]
    for file in folder.glob("*.jsonl"):
        file.write_text(file.read_text().replace(f'"{front}"],', f'"{old[::-1]}"],'))
    settle(a, b)
    for memory in (a, b):
        assert memory.get(old)["successor"] == front


def test_a_damaged_line_that_its_machine_sees_as_it_writes_is_sent_again(shared: Team) -> None:
    a = shared.machine("a")
    ids = [f"id{number}" for number in range(60)]  # two in some file
    a.import_rows([{"id": id, "content": f"The port is {id}."} for id in ids])
    a.sync()
    files = (shared.there / a.sync_status()["machine"]).glob("*.jsonl")
    file = max(files, key=lambda file: file.stat().st_size)
    status, lines = file.stat(), file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0].replace("port", "pert"), *lines[1:]]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk damages it
    a.forget(json.loads(lines[1])["id"])
    assert any("is sent again" in remark for remark in a.sync()["remarks"])
    a.sync()
    b = shared.machine("b")
    settle(b)
    assert texts(a) == texts(b)


def test_who_replaces_by_what_is_not_shared_is_told_until_it_is(team: Team) -> None:
    a, b = team.machine("a"), team.machine("b")
    old, other = a.store(OFFICE)["id"], a.store("Lunch is at noon.")["id"]
    settle(a, b)
    front = a.store(KETTLE, scope="global")["id"]
    a.replace(old, front)
    note = (
        "not sent, because the newer memory is not shared: 1 replacement. Others keep the older one"
        " until you share global memories"
    )
    for told in (a.sync(), a.sync(), a.sync_status()):
        assert told["remarks"] == [note]
        assert told["spaces"][0]["waiting"] == 1
        assert "like a credential" not in "".join(sediment_ext.sync.commands.render_synced(told))
    a.replace(other, front)
    (note,) = a.sync(again=True)["remarks"]
    assert "is not shared: 2 replacements." in note
    settle(a, b)
    assert texts(b) == ["Lunch is at noon.", OFFICE]
    for memory in (b, a):
        memory.share(everywhere=True)
    settle(a, b)
    assert a.sync()["remarks"] == []
    assert b.get(old)["successor"] == a.get(old)["successor"] == front
    assert "hidden" not in b.undo(old)
    settle(b, a)
    assert texts(a) == texts(b) == [OFFICE]
    assert not any("ended_at" in memory.get(front) for memory in (a, b))


# Lives of machines; longer ones are in `make soak`.


@pytest.mark.parametrize("kind", ["folder", "git", "hub"])
def test_machines_that_are_killed_lose_nothing_and_agree(tmp_path: Path, kind: str) -> None:
    figures = sync_storm.run(tmp_path / "storm", kind, 1, seed=7, machines=MACHINES)
    assert figures["kills"] >= sync_storm.KILLS
    assert figures["memories"] > MACHINES


def test_machines_that_live_apart_agree_when_they_meet(tmp_path: Path) -> None:
    for seed in range(3):  # more of them, and of those below, are in `make soak`
        live_apart(tmp_path / str(seed), seed)


def test_machines_that_sync_through_a_folder_show_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeatable(monkeypatch, 1)
    through_a_folder(tmp_path, 1, 6)


def test_machines_agree_though_their_files_are_damaged_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeatable(monkeypatch, 1)
    through_a_folder(tmp_path, 1, 4, (), DAMAGE)


def repeatable(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Let machines make the same ids in each run, and open their files quickly."""
    ids = random.Random(seed)
    monkeypatch.setattr(sediment, "new_id", lambda: f"{ids.getrandbits(128):032x}")
    monkeypatch.setattr(sync_machines, "open_memory", quick_memory)


def quick_memory(path: Path, project: str) -> Memory:
    memory = open_memory(path, project)
    memory._encoder = sync_storm.Quick()
    return memory


def the_last_word_counts(folder: Path) -> None:
    """Who has seen a decision and decides otherwise wins, however wrong the clocks are."""
    ahead, behind = Machine(folder, "ahead", 100_000), Machine(folder, "behind", -900)
    id = ahead.memory.store("The port is 5433.")["id"]
    behind.take(ahead.sent())
    for _ in range(3):  # several times within one tick
        ahead.memory.store("The port is 6543.", replace=id)
        behind.take(ahead.sent())
        behind.memory.undo(id)
        ahead.take(behind.sent())
        assert id in {*ahead.live()} & {*behind.live()}
    assert ahead.facts() == behind.facts()


def test_the_last_word_counts_however_wrong_the_clocks_are(tmp_path: Path) -> None:
    the_last_word_counts(tmp_path)


CLOCKS = {
    "the clock follows the wall alone": ("schema/sync.sql", "max(t + 1, CAST(", "max(0, CAST("),
    "the clock follows nobody": ("merge", "t = max(t, ?)", "t = max(t, 0 * ?)"),
}


@pytest.mark.parametrize("mistake", CLOCKS)
def test_a_mistake_in_the_clock_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    where, old, new = CLOCKS[mistake]
    if where == "merge":
        source = inspect.getsource(sediment_ext.sync.merge)
        scope = dict(vars(sediment_ext.sync.merge))
        exec(source.replace(old, new), scope)
        monkeypatch.setattr(sync_machines, "receive", scope["receive"])
    else:
        source = asset = sediment.asset(where)
        read = sediment.asset
        change = lambda name: asset.replace(old, new) if name == where else read(name)  # noqa: E731
        monkeypatch.setattr(sediment, "asset", change)
    assert old in source
    with pytest.raises(AssertionError):
        the_last_word_counts(tmp_path)


def test_memories_that_lived_apart_for_a_year_become_one(place: Place) -> None:
    """Two diaries with common notes: some by a copy, with their ids, some written down twice."""
    notes = {
        name: [json.loads(line) for line in (DIARIES / name / "memories.jsonl").open()][:100]
        for name in ("band", "game")
    }
    a, b = (open_memory(place.folder / f"{name}.db") for name in ("a", "b"))
    common, again = notes["band"][:40], notes["band"][40:70]
    a.import_rows(notes["band"])
    b.import_rows([*common, *({**note, "id": f"again-{note['id']}"} for note in again)])
    b.import_rows({**note, "id": f"game-{note['id']}"} for note in notes["game"])
    old = common[0]["id"]
    before = a.history(a.store("Replaced on the one.", replace=old)["id"])
    kept = a.store("Only here for a while.")["id"]
    moment = common[20]["created_at"]
    for memory in (a, b):
        memory.sync_to(str(place.shared))
        memory.share("diary")
        place.all.append(memory)
    settle(a, b)
    settle(a, b)
    assert texts(a) == texts(b)
    assert len(set(texts(a))) == len(texts(a)), "something is shown twice"
    expected = {note["content"] for name in notes for note in notes[name]} - {common[0]["content"]}
    assert set(texts(b)) == expected | {"Replaced on the one.", "Only here for a while."}
    assert [one["id"] for one in b.history(old)["versions"]] == [
        one["id"] for one in before["versions"]
    ]
    assert b.get(kept)["content"] == "Only here for a while."
    as_of = [
        [row["id"] for row in memory.recall(common[0]["content"], as_of=moment)["results"]]
        for memory in (a, b)
    ]
    assert as_of[0][:1] == as_of[1][:1] == [old]
    b.undo(old)
    settle(b, a)
    assert common[0]["content"] in texts(a)

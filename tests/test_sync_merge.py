"""The merge of sync: whatever order states come in and however often, all machines agree.

Four machines, few memories and clocks that tick coarsely and are wrong, so that collisions are the
rule. First `join` and `view` by themselves, then the program's own tables and triggers. A test that
no mistake makes fail is no test: each mistake that somebody may make in the merge must be caught.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from storage import open_memory
from sync_machines import Place, line_of, settle, texts

import sediment
import sediment_ext.sync.merge
import sediment_ext.sync.places
from sediment import Memory

MACHINES = 4
SKEWS = (0, 0, 0, 5, -5, 100_000, -900)
DEEDS = ("store", "same", "replace", "forget", "undo", "hide", "hide", "confirm", "mark")
DEEDS += ("pull", "pull", "pull")
MARKS = ("", "a", "b")  # the end, and two tags
Step = tuple[str, int, int, int]
MERGE = SimpleNamespace(
    join=sediment_ext.sync.merge.join, visibility=sediment_ext.sync.merge.visibility
)


class Machine:
    """A machine's states, its log, and a clock as the triggers have it."""

    def __init__(self, merge: Any, name: str, skew: int) -> None:
        self.merge, self.name, self.skew = merge, name, skew
        self.states: dict[str, Any] = {}
        self.log: list[dict[str, Any]] = []
        self.clock = 0
        self.read: dict[str, int] = {}

    def stamp(self, now: int) -> int:
        self.clock = max(self.clock + 1, (now + self.skew + 10**6) << 16)
        return self.clock

    def emit(self, id: str, **facts: Any) -> None:
        state = {
            "id": id,
            "gone": False,
            "text": None,
            "ending": None,
            "confirmations": {},
            "marks": {},
            **facts,
        }
        self.take(state)
        self.log.append(state)

    def take(self, state: dict[str, Any]) -> None:
        for value in filter(None, (state["text"], state["ending"], *state["marks"].values())):
            self.clock = max(self.clock, value[0])
        mine = self.states.get(state["id"])
        self.states[state["id"]] = self.merge.join(mine or state, state)

    def known(self) -> list[str]:
        return sorted(id for id, state in self.states.items() if state["text"])

    def store(self, now: int, text: str, replaced: str | None = None) -> None:
        id = f"{self.name}{len(self.log)}"
        self.emit(id, text=(self.stamp(now), self.name, text, now + self.skew + 10**6))
        if replaced:
            self.hide(now, replaced, id, "replace")

    def hide(self, now: int, old: str, new: str, by: str = "merge") -> None:
        self.emit(old, ending=(self.stamp(now), self.name, by, now, new))

    def undo(self, now: int, id: str) -> None:
        end = self.states[id]["ending"]
        self.emit(id, ending=(self.stamp(now), self.name, "", 0, ""))
        if end and end[4] in self.known():
            self.hide(now, end[4], id, "undo")

    def forget(self, id: str) -> None:
        shown = self.merge.visibility(self.states)
        doomed, more = {id}, {id}
        while more:
            more = {one for one, end in shown.items() if end and end[2] in doomed} - doomed
            doomed |= more
        for one in sorted(doomed):
            self.emit(one, gone=True)

    def do(self, now: int, deed: str, x: int, y: int) -> None:
        known, live = self.known(), []
        if deed in ("replace", "confirm"):
            live = sorted(
                id for id, end in self.merge.visibility(self.states).items() if end is None
            )
        if deed == "store":
            self.store(now, f"text {x % 50}")
        elif deed == "same":
            self.store(now, "the same")
        elif deed == "replace" and live:
            self.store(now, f"text {y % 50}", live[x % len(live)])
        elif deed == "forget" and known:
            self.forget(known[x % len(known)])
        elif deed == "undo" and known:
            self.undo(now, known[x % len(known)])
        elif deed == "hide" and len(known) > 1 and x % len(known) != y % len(known):
            self.hide(now, known[x % len(known)], known[y % len(known)])
        elif deed == "mark" and known:
            mark = self.stamp(now), self.name, y % 2
            self.emit(known[x % len(known)], marks={MARKS[y % len(MARKS)]: mark})
        elif deed == "confirm" and live:
            id = live[x % len(live)]
            self.emit(
                id,
                confirmations={self.name: self.states[id]["confirmations"].get(self.name, 0) + 1},
            )

    def pull(self, other: Machine, most: int) -> None:
        begin = self.read.get(other.name, 0)
        for state in other.log[begin : begin + most]:
            self.take(state)
        self.read[other.name] = min(len(other.log), begin + most)


def lived(merge: Any, steps: Iterable[Step], skews: list[int]) -> list[Machine]:
    """Machines that know the same three memories, and do these things."""
    machines = [Machine(merge, "abcd"[n], skews[n]) for n in range(MACHINES)]
    for number in range(3):
        machines[0].store(1, f"seed {number}")
    for machine in machines[1:]:
        machine.pull(machines[0], 3)
    for tick, (deed, who, x, y) in enumerate(steps, 8_000):
        machine, other = machines[who % MACHINES], machines[x % MACHINES]
        if deed != "pull":
            machine.do(tick // 8, deed, x, y)  # several in one tick of the clock
        elif other is not machine:
            machine.pull(other, 1 + y % 5)
    return machines


def gathered(merge: Any, states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for state in states:
        found[state["id"]] = merge.join(found.get(state["id"], state), state)
    return found


def life(merge: Any, chance: random.Random) -> list[Machine]:
    """Machines after a life by chance."""
    deeds = chance.choices(DEEDS, k=chance.randint(5, 60))
    number = functools.partial(chance.randrange, 10**6)
    steps = [(deed, number(), number(), number()) for deed in deeds]
    return lived(merge, steps, chance.choices(SKEWS, k=MACHINES))


def same_in_any_order(merge: Any, chance: random.Random) -> None:
    machines = life(merge, chance)
    log = [state for machine in machines for state in machine.log]
    wanted = gathered(merge, log)
    shown = merge.visibility(wanted)
    for _ in range(3):
        bag = log + chance.choices(log, k=len(log) // 2)
        chance.shuffle(bag)
        assert gathered(merge, bag) == wanted
        assert merge.visibility(gathered(merge, bag)) == shown
    for machine in machines:
        for state in log:
            machine.take(state)
        assert machine.states == wanted


def laws_hold(merge: Any, chance: random.Random) -> None:
    log = [state for machine in life(merge, chance) for state in machine.log]
    by_id: dict[str, list[Any]] = {}
    for state in log:
        by_id.setdefault(state["id"], []).append(merge.join(state, state))
    for states in by_id.values():
        for a in states[:4]:
            assert merge.join(a, a) == a
            for b in states[:4]:
                assert merge.join(a, b) == merge.join(b, a)
                for c in states[:4]:
                    left = merge.join(merge.join(a, b), c)
                    assert left == merge.join(a, merge.join(b, c))


def nothing_is_lost(merge: Any, chance: random.Random) -> None:
    log = [state for machine in life(merge, chance) for state in machine.log]
    states = gathered(merge, log)
    gone = {state["id"] for state in log if state["gone"]}
    for id in gone:
        assert states[id] == {
            "id": id,
            "gone": True,
            "text": None,
            "ending": None,
            "confirmations": {},
            "marks": {},
        }
    assert all(states[one["id"]]["text"] for one in log if one["text"] and one["id"] not in gone)
    for one in log:
        for name, mark in one["marks"].items():
            assert one["id"] in gone or states[one["id"]]["marks"][name] >= mark
    counts: dict[tuple[str, str], int] = {}
    for one in log:
        for name, count in one["confirmations"].items():
            counts[one["id"], name] = max(count, counts.get((one["id"], name), 0))
    for (id, name), count in counts.items():
        assert id in gone or states[id]["confirmations"][name] == count
    shown = merge.visibility(states)
    texts: dict[tuple[Any, ...], list[str]] = {}
    for id, end in shown.items():
        at, steps_taken = id, 0
        while (end := shown.get(at)) and end[2]:
            at, steps_taken = end[2], steps_taken + 1
            assert steps_taken <= len(shown), "behind one another"
        if shown[id] is None and states[id]["ending"] is None:
            end = states[id]["marks"].get("", (0, "", 0))[2]
            texts.setdefault((states[id]["text"][2], end), []).append(id)
    assert all(len(ids) == 1 for ids in texts.values()), "one text is shown twice"
    for id, end in shown.items():
        if end and end[0] == "repeat" and states[id]["ending"] is None:
            older = states[end[2]]["text"][3], end[2]
            assert older < (states[id]["text"][3], id), "the elder stands before the younger"


def the_last_word_counts(merge: Any, chance: random.Random) -> None:
    """Who has seen a decision and decides otherwise wins, however wrong the clocks are."""
    machines = life(merge, chance)
    log = [state for machine in machines for state in machine.log]
    for machine in machines:
        for state in log:
            machine.take(state)
    a, b = machines[:2]
    for id in a.known()[:1]:
        b.hide(5, id, "elsewhere", "replace")
        a.take(b.log[-1])
        assert a.states[id]["ending"][4] == "elsewhere"
        a.undo(6, id)
        b.take(next(state for state in reversed(a.log) if state["id"] == id))
        assert b.states[id]["ending"][2] == ""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is hashed once."""
    monkeypatch.setattr(sediment, "text_hash", functools.cache(sediment.text_hash))


PROPERTIES = (same_in_any_order, laws_hold, nothing_is_lost, the_last_word_counts)


def check_all(merge: Any, seeds: Iterable[int]) -> None:
    """All properties, in a life of each seed."""
    for seed in seeds:
        for prop in PROPERTIES:
            prop(merge, random.Random(seed))


def test_machines_agree_in_whatever_order_states_come() -> None:
    start = random.randrange(10**9)
    check_all(MERGE, range(start, start + 100))


MISTAKES = {
    "of one time the first stays": ("return max(filter(None, (a, b)), default=None)",
        "return b if a is None or (b and b[0] > a[0]) else a"),
    "the last to come holds": ("return max(filter(None, (a, b)), default=None)",
        "return b or a"),
    "the first to come holds": ("return max(filter(None, (a, b)), default=None)",
        "return a or b"),
    "a later text undoes a forgetting": ('"text": None, "ending": None, "confirmations": {}}',
        '"text": _later(a["text"], b["text"]), "ending": None, "confirmations": {}}'),
    "a forgotten one keeps its end": ('"text": None, "ending": None, "confirmations": {}}',
        '"text": None, "ending": _later(a["ending"], b["ending"]), "confirmations": {}}'),
    "a forgotten one keeps its counts": ('"text": None, "ending": None, "confirmations": {}}',
        '"text": None, "ending": None,'
        ' "confirmations": {**a["confirmations"], **b["confirmations"]}}'),
    "only the last to come forgets": ('if a["gone"] or b["gone"]:', 'if b["gone"]:'),
    "both must forget": ('if a["gone"] or b["gone"]:', 'if a["gone"] and b["gone"]:'),
    "counts add up": ('max(a["confirmations"].get(name, 0), b["confirmations"].get(name, 0))',
        'a["confirmations"].get(name, 0) + b["confirmations"].get(name, 0)'),
    "tags of one machine alone": ('a["marks"].keys() | b["marks"].keys()', 'a["marks"].keys()'),
    "a forgotten one keeps its tags": ('"marks": {}, **nothing', '"marks": a["marks"], **nothing'),
    "circles hide all": ("shown[min(circle", "circle and [min(circle"),
    "twins are both shown": ("if id != elder and id not in ended:", "if False:"),
    "the first to come is the elder": (
        'elder = min(ids, key=lambda id: (there[id]["text"][3], id))', "elder = ids[0]"),
    "the younger is the elder": (
        'elder = min(ids, key=lambda id: (there[id]["text"][3], id))',
        'elder = max(ids, key=lambda id: (there[id]["text"][3], id))'),
}  # fmt: skip


def mistaken(old: str, new: str) -> SimpleNamespace:
    """The merge with a mistake in it."""
    names = (
        sediment_ext.sync.merge.join,
        sediment_ext.sync.merge._later,
        sediment_ext.sync.merge.visibility,
        sediment_ext.sync.merge._circles,
    )
    source = "\n\n".join(map(inspect.getsource, names))
    assert old in source
    source = source.replace(old, new)
    if new.startswith("circle and ["):
        source = source.replace('["ending"])] = None', '["ending"])]')
    scope = dict(vars(sediment_ext.sync.merge))
    exec("from __future__ import annotations\n" + source, scope)
    return SimpleNamespace(join=scope["join"], visibility=scope["visibility"])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_merge_is_caught(mistake: str) -> None:
    with pytest.raises((AssertionError, TypeError, KeyError)):
        check_all(mistaken(*MISTAKES[mistake]), range(300))


# What the merge makes of memories, on machines that sync.


def test_a_replaced_memory_is_replaced_everywhere_and_undo_too(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    old = a.store("Deploys happen on Fridays.")["id"]
    settle(a, b)
    new = b.store("Deploys happen on Mondays.", replace=old)["id"]
    settle(b, a)
    assert texts(a) == ["Deploys happen on Mondays."]
    assert [version["id"] for version in a.history(new)["versions"]] == [old, new]
    a.undo(old)
    settle(a, b)
    assert texts(b) == texts(a) == ["Deploys happen on Fridays."]
    for memory in (a, b):
        told = [(one["action"], one["id"]) for one in memory.history(old)["events"]]
        assert told[-2:] == [("replace", new), ("undo", old)]


def test_both_replace_the_same_and_both_are_named(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    old = a.store("The port is 5433.")["id"]
    settle(a, b)
    mine = a.store("The port is 6543.", replace=old)["id"]
    theirs = b.store("The port is 7000.", replace=old)["id"]
    b.sync()
    (found,) = a.sync()["look_at"]
    assert found["id"] == old
    assert {version["id"] for version in found["versions"]} == {mine, theirs}
    settle(a, b)
    assert texts(a) == texts(b) == ["The port is 6543.", "The port is 7000."]
    (pair,) = a.review()["pairs"]
    assert {pair["old"]["id"], pair["new"]["id"]} == {mine, theirs}
    a.replace(theirs, mine)
    assert a.review()["pairs"] == []
    settle(a, b)
    assert texts(b) == ["The port is 6543."]


def test_who_comes_later_is_told_of_all_that_replaced_the_same(place: Place) -> None:
    machines = [place.machine(name) for name in "abc"]
    old = machines[0].store("The port is 5433.")["id"]
    settle(*machines)
    for number, memory in enumerate(machines):
        memory.store(f"The port is {number}000.", replace=old)
    for memory in machines:
        memory.sync()
    late = place.machine("d")
    (found,) = late.sync()["look_at"]
    assert found["id"] == old
    assert len(found["versions"]) == len(late.review()["pairs"]) == 3
    assert late.sync()["look_at"] == []


def test_who_knows_one_later_version_is_told_of_the_other_though_it_loses(place: Place) -> None:
    a, b, c = (place.machine(name) for name in "abc")
    old = a.store("The port is 5433.")["id"]
    settle(a, b, c)
    versions = {a.store("The port is 6543.", replace=old)["id"]}
    versions.add(b.store("The port is 7000.", replace=old)["id"])
    b.sync()
    c.sync()
    a.sync()
    for memory in (c, place.machine("d")):
        (found,) = memory.sync()["look_at"]
        assert {version["id"] for version in found["versions"]} == versions
        assert memory.sync()["look_at"] == []


def test_versions_that_come_in_other_batches_than_what_they_replace_are_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment_ext.sync.places, "SYNC_BATCH", 1)
    a, b = place.machine("a"), place.machine("b")
    olds = [a.store(f"The port of {name} is 5433.")["id"] for name in ("newton", "kepler", "ohm")]
    settle(a, b)
    for old in olds:
        for memory, port in ((a, 6543), (b, 7000)):
            memory.store(f"{memory.get(old)['content'][:-6]} {port}.", replace=old)
    a.sync()
    told = b.sync()["look_at"]
    assert {found["id"] for found in told} == {*olds}
    asked = [{pair["old"]["id"], pair["new"]["id"]} for pair in b.review()["pairs"]]
    assert all({one["id"] for one in found["versions"]} in asked for found in told)


@pytest.mark.parametrize("rivals", [None, "id", {}, [1, None, "a\n"], [["id"]]])
def test_what_cannot_be_rivals_is_left_out(rivals: Any) -> None:
    row = {"v": 1, "id": "id", "in": "team", "rivals": rivals}
    assert "rivals" not in sediment_ext.sync.merge.state_of(row)[1]
    assert sediment_ext.sync.merge.state_of(row | {"rivals": ["a", "b"]})[1]["rivals"] == ["a", "b"]


def test_what_a_review_keeps_both_of_is_named_no_more(place: Place) -> None:
    a, b, c = (place.machine(name) for name in "abc")
    old = a.store("The port is 5433.")["id"]
    settle(a, b, c)
    versions = [
        memory.store(f"The port is {port}.", replace=old)["id"]
        for memory, port in ((a, 6543), (b, 7000))
    ]
    settle(a, b)
    a.keep_both(*versions)
    a.share(everywhere=True)  # all is read anew
    assert a.sync()["look_at"] == []
    versions.append(c.store("The port is 8000.", replace=old)["id"])
    c.sync()
    (found,) = a.sync()["look_at"]
    assert {version["id"] for version in found["versions"]} == {*versions}


def test_the_same_text_on_two_machines_is_shown_once_and_forgotten_once(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    elder = a.store("Tea is at four.", created_at="2026-01-01")["id"]
    younger = b.store("Tea is at four.", created_at="2026-01-02")["id"]
    settle(a, b)
    for memory in (a, b):
        assert [row["id"] for row in memory.list_items()["items"]] == [elder]
        assert memory.get(younger)["successor"] == elder
    b.forget(elder)
    settle(b, a)
    assert texts(a) == texts(b) == []
    assert "Tea" not in place.text()


def test_a_twin_goes_with_what_it_stands_behind(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    elder = a.store("Tea is at four.", created_at="2026-01-01")["id"]
    b.store("Tea is at four.", created_at="2026-01-02")
    settle(a, b)
    a.store("Tea is at five.", replace=elder)
    settle(a, b)
    assert texts(a) == texts(b) == ["Tea is at five."]


def test_a_twin_that_was_taken_apart_stays_so(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("Tea is at four.", created_at="2026-01-01")
    younger = b.store("Tea is at four.", created_at="2026-01-02")["id"]
    settle(a, b)
    a.undo(younger)
    settle(a, b)
    assert [row["id"] for row in b.list_items()["items"]] == [younger]


def test_what_is_undone_here_stands_once_here_too(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    old = a.store("Tea is at four.", created_at="2026-01-01")["id"]
    a.store("Tea is at five.", replace=old)
    b.store("Tea is at four.", created_at="2026-01-02")
    settle(b, a)
    a.undo(old)
    assert texts(a) == ["Tea is at four."] * 2  # until the next sync
    settle(a, b)
    for memory in (a, b):
        assert [row["id"] for row in memory.list_items()["items"]] == [old]


def test_who_forgets_forgets_what_others_put_behind_it(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    front = a.store("The gateway is called newton.")["id"]
    other = a.store("A gateway called newton is there.")["id"]
    settle(a, b)
    a.forget(front)
    b.replace(other, front)
    settle(b, a, b)
    assert texts(a) == texts(b) == []
    assert "newton" not in place.text()


def test_forgotten_texts_are_in_no_file_any_more(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    words = "unforgettable rhinoceros"
    id = a.store(f"An {words} lives there.")["id"]
    settle(a, b)
    next_id = b.store(f"No {words} lives there.", replace=id)["id"]
    settle(b, a)
    a.forget(next_id)
    settle(a, b)
    everything = [path for path in place.folder.rglob("*") if path.is_file()]
    assert len(everything) > 4
    assert not [path for path in everything if b"rhinoceros" in path.read_bytes()]


def test_nobody_changes_what_belongs_to_another_project(place: Place) -> None:
    a = place.machine("a")
    private = open_memory(a.database.path, "private")
    id = private.store("Nobody's business.")["id"]
    (place.shared / "ffffffff").mkdir()
    row = {"v": 1, "id": id, "in": "team", "gone": True}
    (place.shared / "ffffffff" / "00.jsonl").write_text(line_of(row))
    assert a.sync()["spaces"][0]["refused"] == 1
    assert texts(private) == ["Nobody's business."]
    assert "refused" not in a.sync()["spaces"][0]


def test_what_is_not_shared_comes_back_when_others_forget_what_it_stood_behind(
    place: Place,
) -> None:
    a, b = place.machine("a"), place.machine("b")
    front = a.store("The gateway is newton.")["id"]
    settle(a, b)
    mine = {"id": "mine", "content": "My gateway.", "scope": "global", "created_at": 1}
    b.import_rows([mine | {"ended_at": 2, "ended_by": "replace", "successor": front}])
    a.forget(front)
    settle(a, b)
    assert [row["id"] for row in b.list_items(scope="global")["items"]] == ["mine"]


def share_all(*memories: Memory) -> None:
    for memory in memories:
        memory.share(everywhere=True)


def everything(memory: Memory) -> list[tuple[Any, ...]]:
    sql = "SELECT id, project_id, content, ended_by FROM items ORDER BY id"
    return memory.database.rows(sql)


def test_a_shared_memory_that_is_moved_gets_a_new_id_and_is_hidden_where_it_was(
    place: Place,
) -> None:
    a, b, c = (place.machine(name) for name in "abc")
    share_all(a, b)
    id = a.store("Coffee is at nine.")["id"]
    settle(a, b, c)
    moved = b.move(id, "global")
    assert moved["id"] != id
    assert moved["id"][:8] in moved["message"]
    settle(b, a, c)
    assert everything(a) == everything(b)
    assert {row[:2]: row[3] for row in everything(a)} == {
        (id, "demo"): "prune",
        (moved["id"], None): None,
    }
    assert texts(c) == []  # shares the project alone
    back = a.move(moved["id"], "project")["id"]
    a.forget(back)
    settle(a, b, c)
    assert everything(a) == everything(b)
    assert not any(row[0] == back for row in everything(b))


def test_what_others_do_not_know_keeps_its_id_when_it_is_moved(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("Coffee is at nine.", scope="global")["id"]
    assert a.move(id, "project")["id"] == id
    settle(a, b)
    assert everything(b) == [(id, "demo", "Coffee is at nine.", None)]


def test_a_move_beside_a_replacement_loses_neither_text(place: Place) -> None:
    mover, replacer = place.machine("a"), place.machine("b")
    share_all(mover, replacer)
    old = mover.store("The limit of an upload is 4 GB.")["id"]
    settle(mover, replacer)
    moved = mover.move(old, "global")["id"]
    new = replacer.store("The limit of an upload is 8 GB.", replace=old)["id"]
    settle(mover, replacer, mover)
    assert everything(mover) == everything(replacer)
    assert {row[0] for row in everything(mover) if row[3] is None} == {moved, new}


def test_what_was_imported_under_the_id_of_another_machine_is_the_same_memory(
    place: Place,
) -> None:
    for name in "abc":
        (place.folder / name / ".git").mkdir(parents=True)
        memory = open_memory(place.folder / name / "memory.db", str(place.folder / name))
        memory.sync_to(str(place.shared))
        memory.share("team")
        place.all.append(memory)
    a, b, c = place.all
    ids = [a.store(f"The vault is called {name}.")["id"] for name in ("hermes", "zeus")]
    rows = list(a.export_rows())
    b.import_rows(rows)
    c.import_rows(rows)
    settle(a, b, c)
    assert texts(a) == texts(b) == texts(c) == [row["content"] for row in rows]
    later = a.store("The vault is called apollo.", replace=ids[0])["id"]
    c.forget(ids[1])
    settle(a, c, b)
    assert texts(a) == texts(b) == texts(c) == ["The vault is called apollo."]
    b.forget(later)
    settle(b, a, c)
    for memory in (a, b, c):
        assert b"hermes" not in memory.database.path.read_bytes()
        assert b"zeus" not in memory.database.path.read_bytes()


def test_an_id_of_another_project_is_moved_by_nobody_who_does_not_know_its_text(
    place: Place,
) -> None:
    a = place.machine("a")
    share_all(a)
    id = a.store("Mine alone.", scope="global")["id"]
    (place.folder / "private" / ".git").mkdir(parents=True)
    private = open_memory(a.database.path, str(place.folder / "private"))
    other = private.store("Nobody's business.")["id"]
    (place.shared / "ffffffff").mkdir()
    stamp = (int(sediment.time.time() * 1000) << 16, "ffffffff")
    rows = [
        {"id": id, "text": [*stamp, "Theirs.", 1]},
        {"id": other, "text": [*stamp, "Nobody's business.", private.get(other)["created_at"]]},
        {"id": id, "gone": True},
    ]
    lines = [line_of({"v": 1, "in": "team", **row}) for row in rows]
    (place.shared / "ffffffff" / "00.jsonl").write_text("".join(lines))
    assert a.sync()["spaces"][1]["refused"] == 2
    assert {row[0]: row[1] for row in everything(a)} == {
        id: None,
        other: private.projects.current(),
    }


def test_confirmations_of_all_machines_count_once(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("A fact.")["id"]
    settle(a, b)
    a.store("A fact.")
    b.store("A fact.")
    b.store("A fact.")
    settle(a, b)
    settle(a, b)
    sql = "SELECT validation_count FROM access_log WHERE item_id = ?"
    assert a.database.value(sql, id) == b.database.value(sql, id) == 3


def live_ids(found: dict[str, Any]) -> set[str]:
    return {version["id"] for version in found["versions"]}


@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
@pytest.mark.parametrize("replaced_again", [False, True])
def test_an_undo_beside_a_replacement_of_the_same_is_named(
    place: Place, order: str, replaced_again: bool
) -> None:
    machines = {name: place.machine(name) for name in "abc"}
    a, b, c = machines.values()
    first = a.store("The limit of an upload is 5 GB.")["id"]
    settle(a, b, c)
    second = a.store("The limit of an upload is 9 GB.", replace=first)["id"]
    settle(a, b, c)
    b.undo(first)
    last = c.store("The limit of an upload is 12 GB.", replace=second)["id"]
    if replaced_again:
        last = c.store("The limit of an upload is 15 GB.", replace=last)["id"]
    told = {}
    for name in order + order:
        for found in machines[name].sync()["look_at"]:
            told[name] = live_ids(found)
    for memory in (*machines.values(), late := place.machine("d")):
        if memory is late:
            told["d"] = live_ids(memory.sync()["look_at"][0])
        assert len(memory.review()["pairs"]) == 1
    assert all(ids == {first, last} for ids in told.values())
    assert len(told) >= 3  # whoever came first may hear of it another time
    assert texts(late) == texts(a) == texts(b) == texts(c)
    late.replace(first, last)
    settle(late, a)
    assert texts(a) == [a.get(last)["content"]]
    assert place.machine("e").sync()["look_at"] == []


def test_what_was_undone_and_replaced_by_one_person_is_not_named(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    first = a.store("The limit of an upload is 5 GB.")["id"]
    for limit in (9, 12):
        a.store(f"The limit of an upload is {limit} GB.", replace=first)
        settle(a, b)
        a.undo(first)
        settle(a, b)
    assert a.sync()["look_at"] == b.sync()["look_at"] == place.machine("c").sync()["look_at"] == []


def test_the_hidden_and_the_kept_of_a_merge_beside_a_replacement_are_named(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    one = a.store("The limit of an upload is 4 GB.")["id"]
    two = a.store("An upload may have 4 GB at most.")["id"]
    settle(a, b)
    with a.database.transaction() as connection:
        sediment.end_item(connection, two, one, "merge")
    new = b.store("An upload may have 8 GB at most.", replace=two)["id"]
    settle(a, b)
    told = [pair for memory in (a, b) for pair in memory.review()["pairs"]]
    assert [{pair["old"]["id"], pair["new"]["id"]} for pair in told] == [{one, new}] * 2

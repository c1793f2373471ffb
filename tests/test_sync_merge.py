"""The merge of sync: whatever order states come in and however often, all machines agree.

Four machines, few memories and clocks that tick coarsely and are wrong, so that collisions are the
rule. First `join` and `view` by themselves, then the program's own tables and triggers. A test that
no mistake makes fail is no test: each mistake that somebody may make in the merge must be caught.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import sediment
import sediment_ext.sync.merge

MACHINES = 4
SKEWS = (0, 0, 0, 5, -5, 100_000, -900)
DEEDS = ("store", "same", "replace", "forget", "undo", "hide", "confirm", "pull", "pull", "pull")
Step = tuple[str, int, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(DEEDS), *(st.integers(0, 10**6) for _ in range(3))),
    min_size=5,
    max_size=60,
)
CLOCKS = st.lists(st.sampled_from(SKEWS), min_size=MACHINES, max_size=MACHINES)
SHUFFLE = st.randoms(use_true_random=False)

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
            **facts,
        }
        self.take(state)
        self.log.append(state)

    def take(self, state: dict[str, Any]) -> None:
        for value in filter(None, (state["text"], state["ending"])):
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


def same_in_any_order(merge: Any, steps: list[Step], skews: list[int], shuffle: Any) -> None:
    machines = lived(merge, steps, skews)
    log = [state for machine in machines for state in machine.log]
    wanted = gathered(merge, log)
    shown = merge.visibility(wanted)
    for _ in range(3):
        bag = log + shuffle.choices(log, k=len(log) // 2)
        shuffle.shuffle(bag)
        assert gathered(merge, bag) == wanted
        assert merge.visibility(gathered(merge, bag)) == shown
    for machine in machines:
        for state in log:
            machine.take(state)
        assert machine.states == wanted


def laws_hold(merge: Any, steps: list[Step], skews: list[int]) -> None:
    log = [state for machine in lived(merge, steps, skews) for state in machine.log]
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


def nothing_is_lost(merge: Any, steps: list[Step], skews: list[int]) -> None:
    log = [state for machine in lived(merge, steps, skews) for state in machine.log]
    states = gathered(merge, log)
    gone = {state["id"] for state in log if state["gone"]}
    for id in gone:
        assert states[id] == {
            "id": id,
            "gone": True,
            "text": None,
            "ending": None,
            "confirmations": {},
        }
    assert all(states[one["id"]]["text"] for one in log if one["text"] and one["id"] not in gone)
    counts: dict[tuple[str, str], int] = {}
    for one in log:
        for name, count in one["confirmations"].items():
            counts[one["id"], name] = max(count, counts.get((one["id"], name), 0))
    for (id, name), count in counts.items():
        assert id in gone or states[id]["confirmations"][name] == count
    shown = merge.visibility(states)
    texts: dict[str, list[str]] = {}
    for id, end in shown.items():
        at, steps_taken = id, 0
        while (end := shown.get(at)) and end[2]:
            at, steps_taken = end[2], steps_taken + 1
            assert steps_taken <= len(shown), "behind one another"
        if shown[id] is None and states[id]["ending"] is None:
            texts.setdefault(states[id]["text"][2], []).append(id)
    assert all(len(ids) == 1 for ids in texts.values()), "one text is shown twice"
    for id, end in shown.items():
        if end and end[0] == "repeat" and states[id]["ending"] is None:
            older = states[end[2]]["text"][3], end[2]
            assert older < (states[id]["text"][3], id), "the elder stands before the younger"


def the_last_word_counts(merge: Any, steps: list[Step], skews: list[int]) -> None:
    """Who has seen a decision and decides otherwise wins, however wrong the clocks are."""
    machines = lived(merge, steps, skews)
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


def check_all(merge: Any, examples: int, seed: int | None = None) -> None:
    """All properties; with a seed found by chance alone and quickly."""
    quiet = {"deadline": None, "database": None, "phases": (Phase.generate,)}
    options = {"max_examples": examples, "suppress_health_check": list(HealthCheck), **quiet}
    if seed is not None:
        options["derandomize"] = True
    for prop, more in (
        (same_in_any_order, {"shuffle": SHUFFLE}),
        (laws_hold, {}),
        (nothing_is_lost, {}),
        (the_last_word_counts, {}),
    ):
        check(prop, merge, options, more)


def check(prop: Any, merge: Any, options: dict[str, Any], more: dict[str, Any]) -> None:
    if more:

        def shuffled(steps: Any, skews: Any, shuffle: Any) -> None:
            prop(merge, steps, skews, shuffle)

        settings(**options)(given(steps=STEPS, skews=CLOCKS, **more)(shuffled))()
        return

    def plain(steps: Any, skews: Any) -> None:
        prop(merge, steps, skews)

    settings(**options)(given(steps=STEPS, skews=CLOCKS)(plain))()


def test_machines_agree_in_whatever_order_states_come() -> None:
    check_all(MERGE, 100)


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
        check_thoroughly(mistaken(*MISTAKES[mistake]))


def check_thoroughly(merge: Any) -> None:
    for examples in (10, 40, 300):  # most mistakes are seen at once
        check_all(merge, examples, seed=1)

"""Replacing, undoing, and what is known of an item's past."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage import consistent, open_memory, rows_of, shown

from sediment import DAY, InvalidInput, Memory, NotFound, render_history, render_recalled

TEA = "Tea is served at four."
LATER = "Tea is served at five."
COFFEE = "Coffee is served at eight in the blue room."


def texts(answer: dict[str, Any]) -> list[str]:
    return [row["content"] for row in answer["results"]]


def tables(memory: Memory) -> dict[str, list[tuple[Any, ...]]]:
    """What undo must bring back as it was. History only grows, and an edge that is made again has
    another time."""
    names = ("items", "chunks", "vectors", "graph_nodes", "access_log")
    found = {name: sorted(rows_of(memory, name), key=repr) for name in names}
    edges = "from_id, to_id, edge_type, strength, rel_type, count, questions"
    return found | {"graph_edges": sorted(rows_of(memory, "graph_edges", edges), key=repr)}


def link_up(memory: Memory, *ids: str) -> None:
    """Have these recalled together, three times."""
    for question in "abc":
        memory.record_access(shown(*ids, question=question))


def test_the_same_text_is_stored_once_and_counted(memory: Memory) -> None:
    one = memory.store(TEA)["id"]
    for again in (TEA, f"  {TEA} ", TEA.replace(" ", "\n")):
        answer = memory.store(again)
        assert (answer["id"], answer["already_stored"]) == (one, True)
    assert memory.list_items()["total"] == 1
    assert rows_of(memory, "access_log", "item_id, validation_count") == [(one, 3)]
    assert [event["action"] for event in memory.history(one)["events"]] == ["confirm"] * 3


def test_each_scope_has_its_own(memory: Memory, path: Path) -> None:
    ids = {memory.store(TEA)["id"], memory.store(TEA, scope="global")["id"]}
    with open_memory(path, project="other") as other:
        ids.add(other.store(TEA)["id"])
    assert len(ids) == 3


def test_case_is_part_of_a_text(memory: Memory) -> None:
    ids = {memory.store(f"The password is {word}.")["id"] for word in ("Wagon", "wagon", "WAGON")}
    assert len(ids) == 3


def test_a_fact_that_comes_back_is_the_newest(memory: Memory) -> None:
    one = memory.store(TEA, created_at=1_000)["id"]
    memory.store(LATER, created_at=2_000)
    answer = memory.store(TEA, created_at=3_000)
    assert answer["id"] != one
    assert answer["replaced_id"] == one
    assert texts(memory.recall("when is tea?")) == [TEA, LATER]
    assert memory.list_items()["items"][0]["content"] == TEA
    assert memory.list_items()["total"] == 2


def test_something_else_in_between_is_no_other_version(memory: Memory) -> None:
    one = memory.store(TEA, created_at=1_000)["id"]
    memory.store("The gateway listens on port 18789.", created_at=2_000)
    assert memory.store(TEA)["id"] == one


def test_replacing_by_a_text_that_is_there_keeps_one_of_it(memory: Memory) -> None:
    tea, later = memory.store(TEA)["id"], memory.store(LATER)["id"]
    answer = memory.store(LATER, replace=tea)
    assert (answer["id"], answer["replaced_id"]) == (later, tea)
    assert memory.list_items()["total"] == 1
    memory.undo(tea)  # both were live before
    assert {item["id"] for item in memory.list_items()["items"]} == {tea, later}


def test_replacing_carries_no_links_and_counts_a_validation(memory: Memory) -> None:
    tea, coffee = memory.store(TEA)["id"], memory.store(COFFEE)["id"]
    link_up(memory, tea, coffee)
    later = memory.store(LATER, replace=tea)["id"]
    edges = memory.graph(later)["edges"]
    assert {edge["type"]: edge.get("count", 0) for edge in edges} == ({"supersedes": 0})
    assert dict(rows_of(memory, "access_log", "item_id, validation_count"))[later] == 1
    assert memory.recall("when is tea?")["results"][0]["supersedes"] == [tea]


def test_all_versions_behind_a_result_are_named(memory: Memory) -> None:
    ids = [memory.store(TEA)["id"]]
    for hour in ("five", "six", "seven", "eight"):
        text = f"Tea is served at {hour} in the hall."
        ids.append(memory.store(text, replace=ids[-1])["id"])
    (row,) = memory.recall("when is tea?")["results"]
    assert row["supersedes"] == ids[3::-1]
    assert any("4 older versions: `history" in line for line in render_recalled({"results": [row]}))
    assert len(memory.history(ids[-1])["versions"]) == 5
    memory.undo(ids[-1])  # what was taken back is no older version
    assert memory.recall("when is tea?")["results"][0]["supersedes"] == ids[2::-1]


def test_undo_restores_everything(memory: Memory) -> None:
    tea, coffee = memory.store(TEA)["id"], memory.store(COFFEE)["id"]
    link_up(memory, tea, coffee)
    before = tables(memory)
    later = memory.store(LATER, replace=tea)["id"]
    answer = memory.undo(later)
    assert (answer["restored"], answer["hidden"]) == (tea, later)
    after = tables(memory)
    hidden = after["items"].pop(next(i for i, row in enumerate(after["items"]) if row[1] == later))
    assert hidden[2] == LATER
    assert after["items"] == before["items"]
    assert set(before["vectors"]) < set(after["vectors"])
    kept = [edge for edge in after["graph_edges"] if later not in edge[:2]]
    assert kept == before["graph_edges"]
    assert texts(memory.recall("when is tea?", anyway=True))[0] == TEA


def test_undo_of_undo_is_redo(memory: Memory) -> None:
    tea = memory.store(TEA)["id"]
    later = memory.store(LATER, replace=tea)["id"]
    memory.undo(tea)
    assert memory.get(later)["successor"] == tea
    memory.undo(later)
    assert memory.get(tea)["successor"] == later
    assert "successor" not in memory.get(later)
    actions = [event["action"] for event in memory.history(tea)["events"]]
    assert actions == ["replace", "undo", "replace"]


def test_an_undo_confirms_nothing(memory: Memory) -> None:
    tea = memory.store(TEA)["id"]
    later = memory.store(LATER, replace=tea)["id"]
    memory.store(LATER)
    before = rows_of(memory, "access_log", "item_id, validation_count")
    assert before == [(later, 2)]
    memory.undo(tea)
    assert rows_of(memory, "access_log", "item_id, validation_count") == before


def test_undo_of_what_an_undo_brought_back_names_what_takes_that_back(memory: Memory) -> None:
    tea = memory.store(TEA)["id"]
    later = memory.store(LATER, replace=tea)["id"]
    memory.undo(tea)
    with pytest.raises(NotFound, match=f"restored by an undo: `undo {later[:8]}`"):
        memory.undo(tea)
    assert memory.undo(later)["hidden"] == tea


def test_undo_tells_of_the_same_text_that_was_stored_meanwhile(memory: Memory) -> None:
    tea = memory.store(TEA)["id"]
    memory.store(LATER, replace=tea)
    again = memory.store(TEA)["id"]
    assert f"{again[:8]} says the same" in memory.undo(tea)["message"]


def test_what_is_hidden_is_replaced_by_naming_what_stands_for_it(memory: Memory) -> None:
    """By `replace`, on either side of it, and by `store --replace`."""
    old, new, other = (memory.store(f"Version {number} of the plan.")["id"] for number in range(3))
    memory.replace(old, new)
    advice = (
        f"{old[:8]} was replaced by {new[:8]}: name {new[:8]} instead, `undo {old[:8]}` restores it"
    )
    for change in (
        lambda: memory.replace(other, old),
        lambda: memory.replace(old, other),
        lambda: memory.store("The last plan.", replace=old),
    ):
        with pytest.raises(NotFound) as caught:
            change()
        assert str(caught.value) == advice


def test_undo_goes_back_step_by_step(memory: Memory) -> None:
    ids = [memory.store("Version 0 of the plan.")["id"]]
    for number in (1, 2, 3):
        ids.append(memory.store(f"Version {number} of the plan.", replace=ids[-1])["id"])
    memory.undo(ids[3])
    memory.undo(ids[2])
    assert [item["id"] for item in memory.list_items()["items"]] == [ids[1]]
    assert [row["id"] for row in memory.history(ids[0])["versions"]] == ids


@pytest.mark.parametrize("early", [0, 1, 2])
def test_undo_of_an_early_version_leaves_one_live(memory: Memory, early: int) -> None:
    ids = [memory.store("Version 0 of the plan.")["id"]]
    for number in (1, 2, 3):
        ids.append(memory.store(f"Version {number} of the plan.", replace=ids[-1])["id"])
    before = rows_of(memory, "items", "id, ended_by, successor")
    undone = memory.undo(ids[early])
    assert undone["hidden"] == ids[3]
    more = f" and {2 - early} more" if early < 2 else ""
    assert undone["message"].endswith(f"; it hides {ids[3][:8]}{more}.")
    assert [item["id"] for item in memory.list_items()["items"]] == [ids[early]]
    assert memory.undo(ids[3])["hidden"] == ids[early]  # redo
    assert rows_of(memory, "items", "id, ended_by, successor") == before


@pytest.mark.parametrize("by", ["replace", "merge", "repeat", "undo", "prune", None])
@pytest.mark.parametrize("there", [True, False])
def test_what_was_imported_hidden_can_come_back(
    memory: Memory, by: str | None, there: bool
) -> None:
    """With its successor or without, and whatever is said of why it ended."""
    row = {"id": "old", "content": TEA, "ended_at": 1_700_000_000}
    row |= {"successor": "new"} if by != "prune" else {}
    row |= {"ended_by": by} if by else {}
    rows = [row, {"id": "new", "content": LATER}]
    assert memory.import_rows(rows[: 1 + there])["success"]
    by_successor = there and by not in ("undo", "prune")
    answer = memory.undo("new" if by_successor else "old")
    assert answer["restored"] == "old"
    assert answer.get("hidden") == ("new" if there and by not in ("merge", "prune") else None)
    assert "ended" not in memory.get("old")


def test_there_is_nothing_to_undo(memory: Memory) -> None:
    id = memory.store(TEA)["id"]
    with pytest.raises(NotFound, match="has replaced nothing"):
        memory.undo(id)
    with pytest.raises(NotFound):
        memory.undo("unknown")


def test_the_past_of_other_projects_is_theirs(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_memory(path, project="other") as other:
        tea = other.store(TEA)["id"]
        other.store(LATER, replace=tea)
    assert len(memory.history(tea)["versions"]) == len(memory.graph(tea)["nodes"]) == 2
    with pytest.raises(NotFound, match="another project"):
        memory.undo(tea)
    monkeypatch.setenv("SEDIMENT_CROSS_PROJECT", "0")
    for call in (memory.history, memory.graph):
        with pytest.raises(NotFound, match="another project"):
            call(tea)


HOSTS = (
    "The staging server is hosted at Hetzner in Falkenstein.",
    "Since March it is a box of ours in the cellar.",
    "Moved again: Ines has put it into the rack at the university.",
)


@pytest.fixture
def moved(memory: Memory) -> list[str]:
    """The ids of three versions, each in the place of the one before, beside what is like them."""
    for number, what in enumerate(("database", "wiki", "mail server", "build cache", "shop")):
        memory.store(f"The {what} is hosted at Amazon in Dublin.", created_at=500 + number)
    ids = [memory.store(HOSTS[0], created_at=1_000)["id"]]
    for number, text in enumerate(HOSTS[1:], 2):
        made = memory.store(text, replace=ids[-1], created_at=1_000 * number)
        ids.append(made["id"])
    return ids


ASKED = "where is the staging server hosted?"


@pytest.mark.parametrize("way", [{}, {"ranking": "cosine"}, {"ranking": "bm25"}])
def test_a_memory_is_found_by_what_it_replaced(
    memory: Memory, moved: list[str], way: dict[str, Any]
) -> None:
    (row, *_) = memory.recall(ASKED, **way)["results"]
    assert (row["id"], row["content"]) == (moved[-1], HOSTS[-1])
    memory._index = None  # as a command has none
    assert texts(memory.recall(ASKED, **way))[0] == HOSTS[-1]


def test_as_of_a_day_a_memory_is_found_by_what_it_had_replaced_by_then(
    memory: Memory, moved: list[str]
) -> None:
    days = ("1970-01-01T00:20:00Z", "1970-01-01T00:40:00Z", "2020-01-01")
    assert [texts(memory.recall(ASKED, as_of=day))[0] for day in days] == [*HOSTS]


def test_a_mention_does_not_replace_what_was_told_to_replace_another(memory: Memory) -> None:
    banks = (
        "Payroll runs through the bank KBC.",
        "We moved payroll to ING in spring.",
        "Talked to Belfius about payroll, they have a better offer for us.",
    )
    old = memory.store(banks[0], created_at=10**9)["id"]
    memory.store(banks[1], created_at=10**9 + 40 * DAY, replace=old)
    memory.store(banks[2], created_at=10**9 + 80 * DAY)
    assert texts(memory.recall("which bank do we use for payroll?")) == [banks[1], banks[2]]


def test_what_is_taken_back_speaks_for_itself_again(memory: Memory, moved: list[str]) -> None:
    memory.undo(moved[1])  # the one in the middle is live, and the first is behind it
    assert texts(memory.recall(ASKED))[0] == HOSTS[1]
    memory.undo(moved[0])
    assert texts(memory.recall(ASKED))[0] == HOSTS[0]
    memory.forget(moved[0])
    assert not set(texts(memory.recall(ASKED))) & {*HOSTS[:1]}


KEY = "The cellar key hangs behind the kitchen door."


def test_what_is_asked_may_stand_in_a_replaced_version_alone(memory: Memory, path: Path) -> None:
    old = memory.store(KEY, created_at="2026-01-10")["id"]
    new = memory.store("The kitchen is painted now.", replace=old, created_at="2026-02-10")["id"]
    asked = "where is the cellar key?"
    for _ in range(2):
        answer = memory.recall(asked)
        (row, *_) = answer["results"]
        assert row["id"] == new
        assert row["nearer_version"].items() >= {"id": old, "beginning": KEY}.items()
        assert row["nearer_version"].keys() == {"id", "beginning", "created", "created_at"}
        lines = render_recalled(answer, asked)
        assert [line for line in lines if f"before it, 2026-01-10: {KEY}" in line]
        memory._index = None  # as a command has none
    assert "nearer_version" not in memory.recall("what colour has the kitchen?")["results"][0]


def test_another_value_of_the_same_is_no_reason_to_show_the_old_one(memory: Memory) -> None:
    old = memory.store("Staging database is on port 5433.")["id"]
    memory.store("Staging database is on port 6543.", replace=old)
    (row, *_) = memory.recall("which port has the staging database?")["results"]
    assert "nearer_version" not in row


OTHERS = """
accounting billing payroll analytics metrics search audit catalog inventory orders shipping payments
fraud identity sessions mail calendar chat wiki forum tickets builds artifacts logs traces alerts
backups archive media images video maps weather news sports games music books travel hotels
"""


def test_a_result_that_says_what_is_asked_stands_alone_among_many_like_it(memory: Memory) -> None:
    """So many are nearer that the indexes find it by the version that it replaced alone."""
    said = "The port that the {} database listens on is {}{}"
    day = "2026-03-01"
    old = memory.store(said.format("staging", 5433, ""), created_at=day)["id"]
    for port, name in enumerate(OTHERS.split(), 6000):
        memory.store(said.format(name, port, ", for staging."), created_at=day)
        memory.store(said.format(name, port + 100, ", in staging too."), created_at=day)
    memory.store("Staging DBs now bind to ports from 6543.", replace=old, created_at="2026-03-02")
    (row,) = memory.recall("the port that the staging database listens on", limit=1)["results"]
    assert row["content"].startswith("Staging DBs")
    assert "nearer_version" not in row


def test_forgetting_leaves_no_history(memory: Memory) -> None:
    tea = memory.store(TEA)["id"]
    later = memory.store(LATER, replace=tea)["id"]
    memory.undo(later)
    memory.undo(later)
    memory.forget(later)
    assert not rows_of(memory, "history")
    assert not rows_of(memory, "items")


def test_recall_as_of_a_day_answers_from_that_day(memory: Memory) -> None:
    tea = memory.store(TEA, created_at="2026-01-01T00:00:00Z")["id"]
    memory.store(LATER, replace=tea, created_at="2026-03-01T00:00:00Z")
    memory.store("Tea is served at six.", created_at="2026-05-01T00:00:00Z")

    def then(day: str) -> list[str]:
        return texts(memory.recall("when is tea?", as_of=f"2026-{day}T12:00:00Z"))

    assert memory.recall("tea?", as_of="2025-12-31T00:00:00Z")["results"] == []
    assert then("02-01") == [TEA]
    assert then("04-01") == [LATER]
    assert set(then("06-01")) == {LATER, "Tea is served at six."}
    with pytest.raises(InvalidInput):
        memory.recall("tea?", as_of="the other day")


def test_at_the_second_of_a_replacement_only_the_successor_holds(memory: Memory) -> None:
    tea = memory.store(TEA, created_at="2026-01-01T00:00:00Z")["id"]
    memory.store(LATER, replace=tea, created_at="2026-03-01T00:00:00Z")
    ended = memory.database.value("SELECT ended_at FROM items WHERE id = ?", tea)
    then = [texts(memory.recall("when is tea?", as_of=ended + by, anyway=True)) for by in (-1, 0)]
    assert then == [[TEA], [LATER]]


@pytest.fixture
def sitters(memory: Memory) -> dict[str, str]:
    """The ids of three babysitters by name, each replaced by the next, beside other notes."""
    days = {"Lena": "2025-01-10", "Tom": "2025-05-10", "Ines": "2025-09-10"}
    for day, text in (("02-03", "The hall is painted RAL 9010."), ("03-04", "Paid the plumber.")):
        memory.store(text, created_at=f"2025-{day}")
    ids: dict[str, str] = {}
    for name, day in days.items():
        ids[name] = memory.store(f"Our babysitter is {name}.", created_at=day)["id"]
    memory.replace(ids["Lena"], ids["Tom"])
    memory.replace(ids["Tom"], ids["Ines"])
    return ids


@pytest.mark.parametrize("resident", [True, False])
def test_a_question_how_things_were_finds_what_was_replaced_since(
    memory: Memory, sitters: dict[str, str], resident: bool
) -> None:
    if not resident:
        memory._index = None  # as a command has none

    def first(time: str) -> dict[str, Any]:
        return memory.recall(f"who was our babysitter {time}?")["results"][0]

    assert first("in March 2025")["id"] == sitters["Lena"]
    assert first("before 2025-04")["successor"] == sitters["Tom"]
    assert first("from March to July 2025")["id"] == sitters["Tom"]
    assert first("in July 2025")["supersedes"] == [sitters["Lena"]]
    assert first("in October 2025")["id"] == sitters["Ines"]
    assert first("this century")["id"] == sitters["Ines"]


def test_a_question_of_another_kind_shows_nothing_that_was_replaced(
    memory: Memory, sitters: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "notes.md").write_text("Our babysitter has a key.\n")
    memory.index([tmp_path])

    def shown(query: str, **options: Any) -> set[str]:
        rows = memory.recall(query, limit=50, anyway=True, **options)["results"]
        return {row["id"] for row in rows} & {*sitters.values()}

    assert shown("who is our babysitter?") == {sitters["Ines"]}
    assert shown("who was our babysitter since 2025-04?") == {sitters["Ines"]}
    assert shown("what happened with our babysitter in March 2025?") == {sitters["Ines"]}
    assert not shown("who was our babysitter in March 2025?", source=str(tmp_path))


def test_what_a_repeat_has_hidden_does_not_show_beside_it(memory: Memory) -> None:
    memory.store(TEA, created_at="2025-01-10")
    memory.store(LATER, created_at="2025-03-10")
    memory.store(TEA, created_at="2025-05-10")
    assert sorted(texts(memory.recall("when was tea in April 2025?"))) == sorted([TEA, LATER])


def test_what_an_older_one_replaces_had_been_live_until_then(memory: Memory) -> None:
    tea = memory.store(TEA, created_at="2026-01-01T00:00:00Z")["id"]
    later = memory.store(LATER, created_at="2026-03-01T00:00:00Z")["id"]

    def in_april() -> set[str]:
        return set(texts(memory.recall("when is tea?", as_of="2026-04-01T12:00:00Z")))

    memory.replace(later, tea)
    assert in_april() == {TEA, LATER}
    memory.store(SEVEN := "Tea is served at seven.", replace=tea, created_at="2025-01-01")
    assert in_april() == {SEVEN, TEA, LATER}


def test_of_versions_one_answers_for_a_day_whatever_was_taken_back(memory: Memory) -> None:
    tea = memory.store(TEA, created_at="2026-01-01T00:00:00Z")["id"]
    later = memory.store(LATER, replace=tea, created_at="2026-03-01T00:00:00Z")["id"]
    was = memory.get(tea)["ended"]

    def in_april() -> list[str]:
        return texts(memory.recall("when is tea?", as_of="2026-04-01T12:00:00Z"))

    memory.undo(tea)
    assert in_april() == [TEA]
    memory.undo(later)  # a redo
    assert in_april() == [LATER]
    assert memory.get(tea)["ended"] == was


def test_several_steps_back_and_forth_leave_each_version_its_days(memory: Memory) -> None:
    days = ("2026-01-01", "2026-02-01", "2026-03-01")
    ids: list[str] = []
    for hour, day in enumerate(days):
        before = ids[-1] if ids else None
        text = f"Tea is at {hour + 3} o'clock."
        ids.append(memory.store(text, replace=before, created_at=day)["id"])

    def then(day: str) -> list[str]:
        return [row["id"] for row in memory.recall("when is tea?", as_of=day)["results"]]

    lives = memory.database.rows("SELECT id, ended_at, ended_by, successor FROM items")
    memory.undo(ids[0])
    assert then("2026-01-15") == then("2026-02-15") == then("2026-03-15") == [ids[0]]
    memory.undo(ids[2])
    assert then("2026-02-15") == [ids[1]]
    assert memory.database.rows("SELECT id, ended_at, ended_by, successor FROM items") == lives


def test_a_repeat_that_is_taken_back_and_forth_keeps_its_counts(memory: Memory) -> None:
    for at in (1_000, 1_001):
        memory.store(TEA, created_at=at)
    memory.store(LATER, created_at=2_000)
    last = memory.store(TEA, created_at=3_000)["id"]
    before = tables(memory)
    assert memory.undo(last)["hidden"] == last
    memory.undo(last)  # a redo
    assert tables(memory) == before


def test_what_was_pruned_takes_nothings_place(memory: Memory) -> None:
    old = memory.store(TEA, created_at="2024-01-01")["id"]
    memory.prune("1y")
    new = memory.store(COFFEE)["id"]
    for pair in ((new, old), (old, new)):
        with pytest.raises(InvalidInput, match=f"`undo {old}` it first"):
            memory.replace(*pair)
    assert [row["id"] for row in memory.list_items()["items"]] == [new]


def test_undo_over_what_was_pruned_leaves_one_version_live(memory: Memory) -> None:
    tea = memory.store(TEA, created_at="2024-01-01")["id"]
    later = memory.store(LATER, replace=tea, created_at="2024-02-01")["id"]
    memory.prune("1y", confirmed=True)
    assert memory.list_items()["total"] == 0
    assert "Would erase 1 memory and 1 older version." in memory.purge(dry_run=True)["message"]
    memory.undo(tea)
    assert [row["id"] for row in memory.list_items()["items"]] == [tea]
    memory.undo(later)
    assert [row["id"] for row in memory.list_items()["items"]] == [later]


def test_undo_hides_nothing_of_another_project(memory: Memory) -> None:
    """Neither a project's own behind what is global, nor what is global behind a project's own."""
    rows: list[dict[str, Any]] = [{"id": "tea", "content": TEA, "scope": "global"}]
    rows[0] |= {"ended_at": 1_700_000_000, "ended_by": "replace", "successor": "later"}
    memory.import_rows([*rows, {"id": "later", "content": LATER}])
    coffee = memory.store(COFFEE)["id"]
    cocoa = memory.store("Cocoa is served at eight.", scope="global", replace=coffee)["id"]
    with open_memory(memory.database.path, project="another") as other:
        for id in ("tea", cocoa):
            with pytest.raises(NotFound, match="belongs to another project"):
                other.undo(id)
    for id in ("later", cocoa):
        assert "successor" not in memory.get(id)


def test_no_project_takes_a_global_memory_from_the_others(memory: Memory) -> None:
    tea, later = memory.store(TEA, scope="global")["id"], memory.store(LATER)["id"]
    told = f"{tea[:8]} is global.*: `move {later[:8]} global`, or `move {tea[:8]} project` first"
    with pytest.raises(InvalidInput, match=told):
        memory.replace(tea, later)
    for text in (LATER, "Tea is served at six."):
        with pytest.raises(InvalidInput, match=f"leave the scope out, or `move {tea[:8]} project`"):
            memory.store(text, replace=tea, scope="project")
    assert memory.list_items(scope="all")["total"] == 2
    memory.move(later, "global")
    assert memory.replace(tea, later)["replaced_id"] == tea


STEPS = st.lists(
    st.tuples(st.sampled_from(["store", "replace", "undo", "access"]), st.integers(0, 9)),
    max_size=12,
)


@settings(max_examples=25)
@given(STEPS)
def test_no_text_is_lost_by_replacing_and_undoing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    with open_memory(tmp_path_factory.mktemp("past") / "memory.db") as memory:
        stored: set[str] = set()
        for action, number in steps:
            live = [item["id"] for item in memory.list_items(limit=100)["items"]]
            id = live[number % len(live)] if live else None
            text = f"Fact {number} of the plan."
            if action == "store" or (action == "replace" and id):
                memory.store(text, replace=id if action == "replace" else None)
                stored.add(text)
            elif action == "undo" and id:
                with contextlib.suppress(NotFound):  # it has replaced nothing
                    memory.undo(id)
            elif action == "access" and id:
                memory.record_access(shown(*live[:3]))
        kept = {row[0] for row in memory.database.rows("SELECT content FROM items")}
        assert kept == stored
        if steps:
            consistent(memory)


def test_one_memory_replaces_another_and_both_come_back(memory: Memory) -> None:
    old, new = memory.store(TEA)["id"], memory.store(LATER)["id"]
    before = tables(memory)
    answer = memory.replace(old[:8], new)
    assert (answer["id"], answer["replaced_id"]) == (new, old)
    assert memory.list_items()["total"] == 1
    assert [row["id"] for row in memory.history(new)["versions"]] == [old, new]
    assert "hidden" not in memory.undo(old)
    assert memory.list_items()["total"] == 2
    after = tables(memory)
    assert {name for name in before if before[name] != after[name]} <= {"access_log"}
    consistent(memory)


def test_history_tells_of_what_an_undo_left_beside_and_of_what_it_took_back(memory: Memory) -> None:
    old, new = memory.store(TEA)["id"], memory.store(LATER)["id"]
    memory.replace(old, new)
    memory.undo(old)
    for id in (old, new):
        told = [(one["action"], one["id"]) for one in memory.history(id)["events"]]
        assert told == [("replace", new), ("undo", old)]
        *_, undone = memory.history(id)["events"]
        assert (undone["beside"], undone.get("other")) == (new, None)
    shown = "\n".join(render_history(memory.history(old)))
    assert f"(beside: {new[:8]})" in shown
    assert shown.count("hidden") == 1
    third = memory.store(COFFEE, replace=old)["id"]
    memory.undo(third)
    last = memory.history(old)["events"][-1]
    assert (last["id"], last["other"]) == (old, third)
    assert "beside" not in last


def test_undo_goes_no_further_than_what_stood_beside(memory: Memory) -> None:
    tea = memory.store(TEA)["id"]
    later = memory.store(LATER, replace=tea)["id"]
    coffee, lamp = memory.store(COFFEE)["id"], memory.store("An old lamp.")["id"]
    memory.replace(later, coffee)
    memory.replace(coffee, lamp)
    answer = memory.undo(tea)
    assert "hidden" not in answer
    assert f"Restored {tea[:8]}; {later[:8]} stays hidden behind {lamp[:8]}" in answer["message"]
    assert {row["id"] for row in memory.list_items()["items"]} == {tea, lamp}
    memory.replace(tea, lamp)  # a redo
    assert {row["id"] for row in memory.list_items()["items"]} == {lamp}
    assert "hidden" not in memory.undo(coffee)
    assert {row["id"] for row in memory.list_items()["items"]} == {coffee, lamp}
    assert memory.undo(coffee)["restored"] == later  # it stood beside that
    consistent(memory)


def test_undo_leaves_what_has_replaced_another_too(memory: Memory) -> None:
    coffee, tea = memory.store(COFFEE)["id"], memory.store(TEA)["id"]
    both = memory.store("Tea and coffee are served at six.", replace=tea)["id"]
    memory.replace(coffee, both)
    answer = memory.undo(tea)
    assert answer["message"] == (
        f"Restored {tea[:8]}; {both[:8]} stays. `replace {tea[:8]} {both[:8]}` undoes this."
    )
    assert {row["id"] for row in memory.list_items()["items"]} == {tea, both}
    memory.replace(tea, both)  # a redo
    memory.undo(coffee)
    memory.undo(tea)
    assert {row["id"] for row in memory.list_items()["items"]} == {coffee, tea, both}
    consistent(memory)


@pytest.mark.parametrize("merged", [False, True])
def test_undo_of_an_early_version_hides_nothing_that_another_stands_behind(
    memory: Memory, merged: bool
) -> None:
    coffee, tea = (memory.store(text, created_at=1_000)["id"] for text in (COFFEE, TEA))
    later = memory.store(LATER, replace=tea, created_at=2_000)["id"]
    replaced = None if merged else later
    both = memory.store(f"Note: {LATER}", replace=replaced, created_at=3_000)["id"]
    assert memory.consolidate()["merged"] == merged
    memory.replace(coffee, both)
    answer = memory.undo(tea)
    assert (
        f"{later[:8]} stays hidden behind {both[:8]}. `replace {tea[:8]} {both[:8]}`"
        in answer["message"]
    )
    assert {row["id"] for row in memory.list_items()["items"]} == {tea, both}
    consistent(memory)


def test_an_undo_of_an_undo_is_the_replacement_again_whatever_came_between(memory: Memory) -> None:
    tea = memory.store(TEA)["id"]
    later = memory.store(LATER, replace=tea)["id"]
    memory.undo(tea)
    memory.replace(memory.store(COFFEE)["id"], tea)
    assert memory.undo(later)["hidden"] == tea
    assert [row["id"] for row in memory.list_items()["items"]] == [later]
    consistent(memory)


def test_undo_over_a_merge_hides_nothing_that_stood_beside(memory: Memory) -> None:
    tea = memory.store(TEA)["id"]
    memory.store(LATER, replace=tea)
    memory.import_rows([{"id": "same", "content": f"Note: {LATER}"}])
    assert memory.consolidate()["merged"] == 1
    (front,) = (row["id"] for row in memory.list_items()["items"])
    coffee = memory.store(COFFEE)["id"]
    memory.replace(front, coffee)
    assert "hidden" not in memory.undo(tea)
    assert {row["id"] for row in memory.list_items()["items"]} == {tea, coffee}
    assert memory.get(front)["successor"] == coffee
    consistent(memory)


def test_storing_again_with_replace_ends_the_old_one(memory: Memory) -> None:
    old, new = memory.store(TEA)["id"], memory.store(LATER)["id"]
    answer = memory.store(LATER, replace=old)
    assert (answer["id"], answer["replaced_id"]) == (new, old)
    assert memory.list_items()["total"] == 1
    assert "hidden" not in memory.undo(new)  # it had been stored by itself
    assert memory.list_items()["total"] == 2


def test_what_is_confirmed_to_be_outdated_was_so_from_the_later_one_on(memory: Memory) -> None:
    old = memory.store(TEA, created_at=1_000)["id"]
    memory.store(LATER, created_at=2_000)
    memory.store(LATER, replace=old)
    days = ("1970-01-01T00:20:00Z", "1970-01-01T00:40:00Z")
    assert [texts(memory.recall("when is tea?", as_of=day)) for day in days] == [[TEA], [LATER]]


@pytest.mark.parametrize("undone", [0, 1])
def test_an_older_text_that_replaces_a_newer_one_stays_when_that_comes_back(
    memory: Memory, undone: int
) -> None:
    memory.store(TEA, created_at=1_000)
    later = memory.store(LATER, created_at=2_000)["id"]
    answer = memory.store(TEA, replace=later, created_at=3_000)
    assert answer["replaced_id"] == later
    answer = memory.undo((later, answer["id"])[undone])
    assert answer["restored"] == later
    assert "hidden" not in answer  # both were live before
    assert {item["content"] for item in memory.list_items()["items"]} == {TEA, LATER}
    consistent(memory)


def test_what_cannot_replace_says_why(memory: Memory, path: Path) -> None:
    old, new = memory.store(TEA)["id"], memory.store(LATER)["id"]
    with pytest.raises(InvalidInput, match="itself"):
        memory.replace(old, old[:8])
    with pytest.raises(NotFound):
        memory.replace(old, "unknown")
    with open_memory(path, project="other") as other, pytest.raises(NotFound, match="project"):
        other.replace(old, new)
    memory.replace(old, new)
    with pytest.raises(NotFound, match="was replaced by"):
        memory.replace(old, new)
    with pytest.raises(NotFound, match="was replaced by"):
        memory.replace(new, old)


def test_every_way_to_end_is_told(memory: Memory) -> None:
    old = memory.store(TEA, created_at=1_000)["id"]
    later = memory.store(LATER, replace=old)["id"]
    assert marks(memory, old) == [f"replaced by {later[:8]}", "live"]
    memory.undo(old)
    assert marks(memory, old) == ["live", f"undone by {old[:8]}"]
    lamp = memory.store("An old lamp.", created_at=1_000)["id"]
    memory.prune("1y")
    assert marks(memory, lamp) == ["pruned"]
    memory.undo(lamp)
    assert marks(memory, lamp) == ["live"]
    memory.import_rows(
        [
            {"id": "here", "content": "One.", "successor": "gone", "ended_at": 9},
            {"id": "pruned", "content": "Two.", "ended_by": "prune", "ended_at": 9},
            {"id": "said", "content": "Three.", "ended_by": "prune"},
            {"id": "merged", "content": "Four.", **ended("merge", "said")},
        ]
    )
    assert marks(memory, "here") == ["hidden behind gone"]
    assert marks(memory, "pruned") == ["pruned"]
    assert marks(memory, "merged") == ["live", "merged into said"]


def ended(by: str, successor: str) -> dict[str, Any]:
    return {"ended_by": by, "successor": successor, "ended_at": 2**31}


def marks(memory: Memory, id: str) -> list[str]:
    """What became of each version of an item."""
    lines = [re.sub(r"\x1b.*?m", "", line) for line in render_history(memory.history(id))]
    versions = [line for line in lines if not line.startswith("      ")]
    return [line.split("  ", 2)[2] for line in versions if line.count("  ") == 2]

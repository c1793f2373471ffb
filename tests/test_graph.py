"""Links between memories: what recall makes of them, and how they are shown."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from storage import open_memory, rows_of, shown

import sediment
import sediment_ext.graphs
from sediment import Memory

FACTS = {
    "tea": "Tea is served at four in the garden.",
    "cake": "The baker in Long Street makes the best plum cake.",
    "port": "The gateway listens on port 18789.",
    "bridge": "The old bridge was closed by the storm.",
}


@pytest.fixture
def ids(memory: Memory) -> dict[str, str]:
    return {name: memory.store(text)["id"] for name, text in FACTS.items()}


def relate(memory: Memory, *ids: str, strength: float = 0.9) -> None:
    with memory.database.transaction() as connection:
        for a, b in pairwise(ids):
            sediment.link(connection, a, b, sediment.RELATED, strength, "similar")


def edges(memory: Memory, kind: str) -> list[tuple[Any, ...]]:
    rows = rows_of(memory, "graph_edges", "from_id, to_id, edge_type, count")
    return [row[:2] + row[3:] for row in rows if row[2] == kind]


def test_what_is_recalled_together_is_counted_by_pairs(memory: Memory, ids: dict[str, str]) -> None:
    four = list(ids.values())
    memory.record_access(shown(*four, question="a"), shown(*four[:2], question="b"))
    memory.record_access(shown(*four, question="a"))  # which tells nothing new
    pairs = {frozenset(row[:2]): row[2] for row in edges(memory, "co_accessed")}
    assert pairs == {
        frozenset(four[:2]): 2,
        frozenset((four[0], four[2])): 1,
        frozenset(four[1:3]): 1,
    }
    assert all(row[0] < row[1] for row in edges(memory, "co_accessed"))


def test_what_is_often_recalled_together_is_suggested(memory: Memory, ids: dict[str, str]) -> None:
    for count in range(1, 4):
        memory.record_access(shown(ids["tea"], ids["port"], question=str(count)))
        answer = memory.recall("when is tea served?", limit=1)
        assert ("suggested" in answer) == (count >= sediment.SUGGEST_COUNT)
    (row,) = answer["suggested"]
    assert (row["id"], row["beginning"]) == (ids["port"], FACTS["port"])
    assert "3 questions" in row["reason"]
    assert "graph_expanded" not in answer


def test_neighbours_of_the_results_are_named(memory: Memory, ids: dict[str, str]) -> None:
    relate(memory, ids["tea"], ids["cake"])
    relate(memory, ids["tea"], ids["bridge"], strength=0.4)
    answer = memory.recall("when is tea served?", limit=1)
    assert answer["results"][0]["related_ids"] == [ids["cake"]]
    (row,) = answer["graph_expanded"]
    assert (row["id"], row["beginning"], row["rel_type"]) == (ids["cake"], FACTS["cake"], "similar")
    both = memory.recall("tea cake", limit=2)
    assert {row["id"] for row in both["results"]} == {ids["tea"], ids["cake"]}
    assert "graph_expanded" not in both


def test_hidden_neighbours_are_not_named(memory: Memory, ids: dict[str, str]) -> None:
    relate(memory, ids["tea"], ids["cake"])
    memory.store("No cake any more.", replace=ids["cake"])
    answer = memory.recall("when is tea served?", limit=1)
    named = {row["id"] for row in answer.get("graph_expanded", [])}
    assert ids["cake"] not in named


def test_another_projects_neighbours_are_shown_where_recall_shows_them(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tea = memory.store(FACTS["tea"], scope="global")["id"]
    with open_memory(path, project="other") as other:
        secret = other.store(FACTS["cake"])["id"]
        relate(other, tea, secret)
    answer = memory.recall("when is tea served?", limit=1)
    (row,) = answer["graph_expanded"]
    assert (row["beginning"], row["cross_project"]) == (FACTS["cake"], True)
    assert FACTS["cake"] in "".join(sediment.render_recalled(answer))
    assert {node["id"] for node in memory.graph(tea)["nodes"]} == {tea, secret}
    monkeypatch.setenv("SEDIMENT_CROSS_PROJECT", "0")
    assert secret not in str(memory.recall("when is tea served?", limit=1))
    assert secret not in str(memory.graph(tea))


def test_only_answers_to_different_questions_link(memory: Memory, ids: dict[str, str]) -> None:
    at = memory.get(ids["tea"])["created_at"]  # a second later it would seem a newer version
    cake = memory.store("Tea is served with plum cake in the garden.", created_at=at)["id"]
    pair = tuple(sorted((cake, ids["tea"])))
    counts = []
    for query in ("when is tea served?", "When is tea  served", "what is served in the garden?"):
        assert {row["id"] for row in memory.recall(query)["results"]} >= set(pair)
        counts += [count for *ends, count in edges(memory, "co_accessed") if tuple(ends) == pair]
    assert counts == [1, 1, 2]


SHOWN = (("a", 0.98), ("b", 0.0), ("c", 0.5))


def test_what_surely_does_not_answer_is_not_counted_as_recalled() -> None:
    rows = [{"id": id, "similarity": told} for id, told in SHOWN]
    counted = sediment.shown_by("which port?", {"results": rows})
    assert (counted.ids, counted.fitting) == (["a", "c"], ["a", "c"])


def test_weak_hits_and_other_projects_grow_no_links(
    memory: Memory, path: Path, ids: dict[str, str]
) -> None:
    with open_memory(path, project="other") as other:
        foreign = other.store("Tea is served at four in the garden of the embassy.")["id"]
    weak: set[str] = set()
    for query in ("when is tea served?", "the gateway's port?", "which port?"):
        fitting = {row["id"] for row in memory.recall(query, record=False)["results"]}
        found = memory.recall(query, anyway=True)["results"]
        assert {row["id"] for row in found if "unrelated" not in row} == fitting
        assert {row["id"] for row in found if "cross_project" in row} == {foreign}
        linked = {id for *ends, _ in edges(memory, "co_accessed") for id in ends}
        assert linked <= fitting - {foreign}
        weak |= {row["id"] for row in found} - fitting
        with memory.database.transaction() as connection:
            connection.execute("DELETE FROM graph_edges")
    assert weak


def test_what_was_held_back_is_no_suggestion(memory: Memory, ids: dict[str, str]) -> None:
    query = "when is tea served?"
    kept = {row["id"] for row in memory.recall(query, record=False)["results"]}
    held = min(set(ids.values()) - kept)
    for question in "abc":
        memory.record_access(shown(ids["tea"], held, question=question))
    assert memory.recall(query, limit=1)["suggested"][0]["id"] == held
    assert "suggested" not in memory.recall(query)
    later = memory.store("Tea is served at five in the hall.", replace=ids["tea"])["id"]
    assert not [edge for edge in edges(memory, "co_accessed") if later in edge]


def test_a_missing_node_is_made_when_its_item_is_shown(memory: Memory, ids: dict[str, str]) -> None:
    with memory.database.transaction() as connection:
        connection.execute("DELETE FROM graph_nodes")
    memory.recall("when is tea served?", limit=1)
    assert rows_of(memory, "graph_nodes", "id, project_id") == [(ids["tea"], "demo")]
    memory.record_access(shown(*ids.values()))


def test_a_neighbourhood_has_lineage_and_links(memory: Memory, ids: dict[str, str]) -> None:
    relate(memory, ids["tea"], ids["cake"])
    later = memory.store("Tea is served at five in the hall.", replace=ids["tea"])["id"]
    answer = memory.graph(later)
    assert {node["id"] for node in answer["nodes"]} == {later, ids["tea"]}
    assert {node["id"] for node in answer["nodes"] if not node["live"]} == {ids["tea"]}
    ends = {(edge["type"], frozenset((edge["from"], edge["to"]))) for edge in answer["edges"]}
    assert ("supersedes", frozenset((later, ids["tea"]))) in ends
    assert ("related", frozenset((ids["tea"], ids["cake"]))) not in ends  # it is no longer so


def test_a_tree_tells_who_superseded_whom_from_each_version(memory: Memory) -> None:
    blue = memory.store("The wall is blue.")["id"]
    red = memory.store("The wall is red.", replace=blue)["id"]
    green = memory.store("The wall is green.", replace=red)["id"]
    for id, expected in {
        blue: {("superseded by", "red"), (f"{green[:8]} supersedes", "red")},
        red: {("superseded by", "green"), ("supersedes", "blue")},
        green: {("supersedes", "red"), (f"{red[:8]} supersedes", "blue")},
    }.items():
        lines = list(sediment_ext.graphs.render_tree(memory.graph(id)))[1:]
        told = (re.sub(r"\x1b.*?m", "", line) for line in lines)
        assert {
            (line[4:].split(" (")[0], line.removesuffix(" (hidden)").split()[-1].strip("."))
            for line in told
        } == expected


@pytest.mark.parametrize("kind", ["tree", "dot"])
def test_pictures_name_everything_and_stay_on_their_lines(memory: Memory, kind: str) -> None:
    odd = memory.store('He said "no" \\ and\nleft \x1b[31m]red')["id"]
    other = memory.store("Something else.")["id"]
    relate(memory, odd, other)
    lines = list(sediment_ext.graphs.GRAPHS[kind](memory.graph(odd)))
    text = "\n".join(lines)
    assert "\x1b" not in text.replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert "Something else." in text
    assert "related" in text
    if kind == "dot":
        assert r"\"no\" \\" in text
        assert text.count("{") == text.count("}") == 1

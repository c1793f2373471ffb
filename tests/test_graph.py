"""Links between memories: what recall makes of them, and how they are shown."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from storage import open_memory, rows_of

import sediment
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
    shown = list(ids.values())
    memory.record_access(shown)
    memory.record_access(shown[:2])
    pairs = {frozenset(row[:2]): row[2] for row in edges(memory, "co_accessed")}
    assert pairs == {
        frozenset(shown[:2]): 2,
        frozenset((shown[0], shown[2])): 1,
        frozenset(shown[1:3]): 1,
    }
    assert all(row[0] < row[1] for row in edges(memory, "co_accessed"))


def test_what_is_often_recalled_together_is_suggested(memory: Memory, ids: dict[str, str]) -> None:
    for count in range(1, 4):
        memory.record_access([ids["tea"], ids["port"]])
        answer = memory.recall("when is tea served?", limit=1)
        assert ("suggested" in answer) == (count >= sediment.SUGGEST_COUNT)
    (row,) = answer["suggested"]
    assert (row["id"], row["beginning"]) == (ids["port"], FACTS["port"])
    assert "3 times" in row["reason"]
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


def test_another_projects_neighbours_keep_their_text(memory: Memory, path: Path) -> None:
    tea = memory.store(FACTS["tea"], scope="global")["id"]
    with open_memory(path, project="other") as other:
        secret = other.store(FACTS["cake"])["id"]
        relate(other, tea, secret)
    (row,) = memory.recall("when is tea served?", limit=1)["graph_expanded"]
    assert row["cross_project"] is True
    assert "beginning" not in row
    nodes = {node["id"]: node for node in memory.graph(tea)["nodes"]}
    assert "content" not in nodes[secret]


def test_triangles_become_clusters(memory: Memory, ids: dict[str, str]) -> None:
    tea, cake, port, bridge = ids.values()
    relate(memory, tea, cake, port, tea)
    relate(memory, port, bridge)
    with memory.database.transaction() as connection:
        assert sediment.link_clusters(connection) == 3
        assert sediment.link_clusters(connection) == 0
    siblings = {frozenset(row[:2]) for row in edges(memory, "cluster_sibling")}
    assert siblings == {frozenset(pair) for pair in ((tea, cake), (cake, port), (tea, port))}


def test_a_missing_node_is_made_when_its_item_is_shown(memory: Memory, ids: dict[str, str]) -> None:
    with memory.database.transaction() as connection:
        connection.execute("DELETE FROM graph_nodes")
    memory.recall("when is tea served?", limit=1)
    assert rows_of(memory, "graph_nodes", "id, project_id") == [(ids["tea"], "demo")]
    memory.record_access(ids.values())


def test_a_neighbourhood_has_lineage_and_links(memory: Memory, ids: dict[str, str]) -> None:
    relate(memory, ids["tea"], ids["cake"])
    later = memory.store("Tea is served at five in the hall.", replace=ids["tea"])["id"]
    answer = memory.graph(later)
    assert {node["id"] for node in answer["nodes"]} == {later, ids["tea"], ids["cake"]}
    assert {node["id"] for node in answer["nodes"] if not node["live"]} == {ids["tea"]}
    ends = {(edge["type"], frozenset((edge["from"], edge["to"]))) for edge in answer["edges"]}
    assert ("supersedes", frozenset((later, ids["tea"]))) in ends
    assert ("related", frozenset((later, ids["cake"]))) in ends


@pytest.mark.parametrize("kind", ["tree", "dot", "mermaid"])
def test_pictures_name_everything_and_stay_on_their_lines(memory: Memory, kind: str) -> None:
    odd = memory.store('He said "no" \\ and\nleft \x1b[31m]red')["id"]
    other = memory.store("Something else.")["id"]
    relate(memory, odd, other)
    lines = list(sediment.GRAPHS[kind](memory.graph(odd)))
    text = "\n".join(lines)
    assert "\x1b" not in text.replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert "Something else." in text
    assert "related" in text
    if kind == "dot":
        assert r"\"no\" \\" in text
        assert text.count("{") == text.count("}") == 1
    if kind == "mermaid":
        assert "#quot;no#quot;" in text

"""A memory's neighbourhood, as data, as a tree and as Graphviz source (`graph`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sediment as core


def graph_of(projects: core.Projects, id: str) -> dict[str, Any]:
    """An item's neighbourhood: what `Memory.graph` returns."""
    row = core.visible_item(projects, id)
    lineage = [id for (id,) in projects.database.rows(core.LINEAGE.format("i.id"), row["id"])]
    edges = projects.database.rows(
        "SELECT from_id, to_id, edge_type, rel_type, strength, count FROM graph_edges"
        " WHERE from_id = ?1 OR to_id = ?1 OR edge_type = 'supersedes' AND from_id IN"
        " (SELECT value FROM json_each(?2)) ORDER BY edge_type, strength DESC, count DESC",
        row["id"],
        json.dumps(lineage),
    )
    ids = dict.fromkeys([row["id"], *lineage, *(end for edge in edges for end in edge[:2])])
    found = {id: core.find_item(projects.database, id) for id in ids}
    nodes = {id: item for id, item in found.items() if item and core.may_read(projects, item)}
    return {
        **core.shared_facts(row),
        "nodes": [_node(projects, item) for item in nodes.values()],
        "edges": [_edge(edge) for edge in edges if nodes.keys() >= set(edge[:2])],
    }


def _node(projects: core.Projects, row: dict[str, Any]) -> dict[str, Any]:
    node = (
        core.shared_facts(row)
        | core.source_fields(row, projects)
        | {"live": row["ended_at"] is None}
    )
    return node | ({"cross_project": True} if projects.is_foreign(row) else {})


def _edge(row: tuple[Any, ...]) -> dict[str, Any]:
    names = ("from", "to", "type", "label", "strength", "count")
    return {name: value for name, value in zip(names, row, strict=True) if value}


def render_tree(answer: dict[str, Any]) -> Iterator[str]:
    """The memory, and under it each edge, as seen from it."""
    nodes = {node["id"]: node for node in answer["nodes"]}
    yield core.memory_line(nodes[answer["id"]], 60)
    edges = answer["edges"]
    for number, edge in enumerate(edges, 1):
        is_behind = edge["to"] == answer["id"]
        kind = "superseded by" if is_behind and edge["type"] == core.SUPERSEDES else edge["type"]
        if answer["id"] not in (edge["from"], edge["to"]):
            kind = f"{core.short_id(edge['from'])} {kind}"
        node = nodes[edge["from"] if is_behind else edge["to"]]
        facts = [edge.get("label"), edge.get("count"), f"{edge.get('strength', 0):.2f}"]
        told = ", ".join(str(fact) for fact in facts if fact not in (None, "0.00"))
        told = core.dim(f"({told})")
        branch = "└──" if number == len(edges) else "├──"
        hidden = "" if node["live"] else core.dim(" (hidden)")
        yield f"{branch} {core.printable(kind)} {told}  {core.memory_line(node, 48)}{hidden}"


def render_dot(answer: dict[str, Any]) -> Iterator[str]:
    """Graphviz source, whose strings are quoted as JSON's are: there are no control characters."""
    yield "digraph memory {\n  node [shape=box];"
    for node in answer["nodes"]:
        style = "" if node["live"] else ", style=dashed"
        label = core.printable(core.one_line(node["content"], 40))
        yield f"  {core.to_json(node['id'])} [label={core.to_json(label)}{style}];"
    for edge in answer["edges"]:
        one_way = "" if edge["type"] == core.SUPERSEDES else ", dir=none"
        ends = f"{core.to_json(edge['from'])} -> {core.to_json(edge['to'])}"
        yield f"  {ends} [label={core.to_json(edge['type'])}{one_way}];"
    yield "}"


GRAPHS = {"tree": render_tree, "dot": render_dot}


def run_graph(shared: core.Context, id: str, kind: str = "tree") -> None:
    shared.json = shared.json or kind == "json"
    with shared.memory() as memory:
        shared.show(memory.graph(id), GRAPHS.get(kind, render_tree))

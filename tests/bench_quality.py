"""How often recall is right: `make bench-quality DATA=FOLDER`.

A set is a folder of parts; a part is a folder with `memories.jsonl` ({"id", "content",
"created_at"?} a line) and `queries.jsonl` ({"id", "query", "expected": [ids]} a line), and becomes
a database of its own. A query is a hit at k when any expected id is among the first k results.
`recall` is asked through the MCP server; the two rows above it rank by one index alone.
Answers of every query go to dist/bench-quality.jsonl.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from wire import Wire, small_env  # noqa: E402

from sediment import Memory, rank, weigh_words  # noqa: E402

DEPTH = 20  # results looked at for the mean reciprocal rank
Answer = Callable[[str], list[str]]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def parts(folder: Path) -> dict[str, list[Path]]:
    """Part folders by the name of their set."""
    found: dict[str, list[Path]] = {}
    for memories in sorted(folder.rglob("memories.jsonl")):
        if (memories.parent / "queries.jsonl").exists():
            found.setdefault(memories.parent.parent.name, []).append(memories.parent)
    return found


def by_one_index(memory: Memory, vectors: bool) -> Answer:
    """Ranks by cosine alone, or by BM25 alone."""

    def answer(query: str) -> list[str]:
        vector = memory.encoder.embed(query) if vectors else None
        text = "" if vectors else query
        words = weigh_words(memory.database, text, memory.encoder.commonness)
        hits = rank(memory.database, words, vector, "bench")[:DEPTH]
        return [row["id"] for row in memory._items(hit.item for hit in hits).values()]

    return answer


def by_server(wire: Wire) -> Answer:
    def answer(query: str) -> list[str]:
        found = wire.call("recall", query=query, limit=DEPTH)
        return [row["id"] for row in found["results"]]

    return answer


def measure(part: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """What each way of ranking answers to each query of a part."""
    database = folder / "memory.db"
    with Memory(database, project="bench") as memory:
        with open(part / "memories.jsonl", encoding="utf-8") as lines:
            assert memory.import_rows(lines)["success"], f"{part}: some rows were refused"
        memory.embed_pending()
        env = {"SEDIMENT_RATE_LIMIT": "0", "SEDIMENT_PROJECT": "bench"}
        wire = Wire(folder, small_env(folder, **env, SEDIMENT_DB=str(database)))
        ways = {
            "cosine": by_one_index(memory, True),
            "BM25": by_one_index(memory, False),
            "recall": by_server(wire),
        }
        for query in rows(part / "queries.jsonl"):
            for way, answer in ways.items():
                yield {"part": str(part), "way": way, **query, "answer": answer(query["query"])}
        wire.end()


def position(row: dict[str, Any]) -> int | None:
    """The place of the first right answer, from 1."""
    expected = set(row["expected"])
    places = (place for place, id in enumerate(row["answer"], 1) if id in expected)
    return next(places, None)


def figures(answers: list[dict[str, Any]]) -> tuple[float, float, float]:
    """R@1, R@5 and the mean reciprocal rank, in per cent."""
    places = [position(row) for row in answers]
    count = len(places) / 100
    first = sum(place == 1 for place in places) / count
    fifth = sum(place is not None and place <= 5 for place in places) / count
    return first, fifth, sum(1 / place for place in places if place) / count


def main(data: str) -> None:
    sets = parts(Path(data))
    if not sets:
        sys.exit(f"error: no memories.jsonl with a queries.jsonl beside it under {data}")
    everything: list[dict[str, Any]] = []
    for name, folders in sets.items():
        answers: list[dict[str, Any]] = []
        for part in folders:
            with tempfile.TemporaryDirectory() as scratch:
                answers += measure(part, Path(scratch))
        print(f"{name}: {len(answers) // 3} queries")
        print("| ranking | R@1 | R@5 | MRR |\n| --- | --- | --- | --- |")
        for way in ("cosine", "BM25", "recall"):
            row = figures([answer for answer in answers if answer["way"] == way])
            print(f"| {way} | " + " | ".join(f"{figure:.1f}" for figure in row) + " |")
        print(flush=True)
        everything += answers
    target = ROOT / "dist" / "bench-quality.jsonl"
    target.parent.mkdir(exist_ok=True)
    target.write_text("".join(json.dumps(row) + "\n" for row in everything), "utf-8")
    print(f"every answer: {os.path.relpath(target)}")


if __name__ == "__main__":
    main(sys.argv[1])

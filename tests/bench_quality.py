"""How often recall is right: `make bench-quality DATA=FOLDER [SEEDS="1 2"]`.

A set is a folder of parts; a part is a folder with `memories.jsonl` ({"id", "content",
"created_at"?} a line) and `queries.jsonl` ({"id", "query", "expected": [ids]} a line), and becomes
a database of its own. A query is a hit at k when any expected id is among the first k results.
Everything is asked through `Memory`, by the name of a ranking. Then come the trials, on the set
that has a `temporal.jsonl` beside its parts: ages, versions, no answer, order, duplicates, and
pairs that must stay two. Answers of every query go to dist/bench-quality.jsonl; what was tried
on the way to the formula stands in tests/RANKING.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRIALS = ROOT / "tests" / "trials"
sys.path[:0] = [str(ROOT)]

from sediment import DAY, Encoder, Memory  # noqa: E402

DEPTH = 20  # results looked at for the mean reciprocal rank
WAYS = ("cosine", "bm25", "classic", "default")
Row = dict[str, Any]
ANSWERS: list[Row] = []


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def parts(folder: Path) -> dict[str, list[Path]]:
    """Part folders by the name of their set."""
    found: dict[str, list[Path]] = {}
    for memories in sorted(folder.rglob("memories.jsonl")):
        if (memories.parent / "queries.jsonl").exists():
            found.setdefault(memories.parent.parent.name, []).append(memories.parent)
    return found


ENCODER = Encoder()


@contextmanager
def stored(*sources: list[Row]) -> Iterator[Memory]:
    """A memory of these rows, in a file of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Memory(Path(folder) / "memory.db", project="bench") as memory,
    ):
        memory._encoder = ENCODER
        answer = memory.import_rows(itertools.chain(*sources))
        assert answer["success"], answer["refused"][:3]
        memory.embed_pending()
        yield memory


def asked(memory: Memory, query: str, way: str = "default", limit: int = DEPTH) -> list[str]:
    """The ids that recall answers with, best first."""
    answer = memory.recall(query, limit=limit, ranking=way, record=False)
    return [row["id"] for row in answer["results"]]


def position(answer: list[str], expected: list[str]) -> int | None:
    """The place of the first right answer, from 1."""
    return next((place for place, id in enumerate(answer, 1) if id in expected), None)


def figures(answers: list[Row]) -> list[float]:
    """R@1, R@5 and the mean reciprocal rank, in per cent."""
    places = [position(row["answer"], row["expected"]) for row in answers]
    count = len(places) / 100
    first = sum(place == 1 for place in places) / count
    fifth = sum(place is not None and place <= 5 for place in places) / count
    return [first, fifth, sum(1 / place for place in places if place) / count]


def answers(memory: Memory, name: str, queries: list[Row], way: str) -> list[Row]:
    """What a ranking answers to every query; kept for the file too."""
    found = [
        {"set": name, "way": way, **query, "answer": asked(memory, query["query"], way)}
        for query in queries
    ]
    ANSWERS.extend(found)
    return found


def table(*titles: str) -> Callable[..., None]:
    """Print the head of a table; returns what prints a row."""

    def show(*cells: object) -> None:
        told = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print("| " + " | ".join(told) + " |", flush=True)

    show(*titles)
    show(*("---" for _ in titles))
    return show


def measure_sets(sets: dict[str, list[Path]]) -> None:
    """One table a set, and the mean over all."""
    means: dict[str, list[float]] = {way: [] for way in WAYS}
    for name, folders in sets.items():
        found: dict[str, list[Row]] = {way: [] for way in WAYS}
        for part in folders:
            with stored(rows(part / "memories.jsonl")) as memory:
                for way in WAYS:
                    found[way] += answers(memory, name, rows(part / "queries.jsonl"), way)
        print(f"\n{name}: {len(found[WAYS[0]])} queries")
        show = table("ranking", "R@1", "R@5", "MRR")
        for way in WAYS:
            show(way, *figures(found[way]))
            means[way].append(figures(found[way])[2])
    print("\nmean MRR of the sets")
    show = table("ranking", "MRR")
    for way in WAYS:
        show(way, sum(means[way]) / len(means[way]))


# Trials


class Trial:
    """The set that the trials are about, and one seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        part = next(path.parent for path in sorted(folder.rglob("memories.jsonl")))
        self.name, self.seed = folder.name, seed
        self.memories = rows(part / "memories.jsonl")
        self.queries = rows(part / "queries.jsonl")
        self.sequences = rows(folder / "temporal.jsonl")
        self.random = random.Random(seed)
        self.now = int(time.time())

    def dated(self, days: float = 365) -> list[Row]:
        """The memories with ages drawn uniformly."""
        oldest = int(days * DAY)
        return [
            row | {"created_at": self.now - self.random.randrange(oldest)} for row in self.memories
        ]

    def versions(self, gap: int) -> list[Row]:
        """Every version of every sequence, the newest of all just now."""
        return [
            {
                "id": f"{sequence['id']}-{number}",
                "content": version["content"],
                "created_at": self.now - gap * (len(sequence["sequence"]) - number),
            }
            for sequence in self.sequences
            for number, version in enumerate(sequence["sequence"])
        ]


def ages(trial: Trial) -> None:
    """The same questions, asked of memories of any age."""
    show = table("seed", "ranking", "R@1", "R@5", "MRR", "R@1 undated", "R@5 undated")
    with stored(trial.memories) as undated, stored(trial.dated()) as dated:
        for way in ("classic", "default"):
            plain = figures(answers(undated, f"{trial.name} undated", trial.queries, way))
            aged = figures(answers(dated, f"{trial.name} aged", trial.queries, way))
            show(trial.seed, way, *aged, *plain[:2])


def versions(trial: Trial) -> None:
    """Is the newest version of a fact before its older ones, and near the top?"""
    show = table("seed", "apart", "ranking", "newest before older", "newest in first 3")
    for name, gap in (("30 days", 30 * DAY), ("one minute", 60)):
        with stored(trial.dated(), trial.versions(gap)) as memory:
            for way in ("classic", "default"):
                before = top = 0
                for sequence in trial.sequences:
                    newest = f"{sequence['id']}-{sequence['expected_rank_1']}"
                    found = asked(memory, sequence["query"], way, 50)
                    mine = [id for id in found if id.startswith(f"{sequence['id']}-")]
                    before += mine[:1] == [newest]
                    top += newest in found[:3]
                    ANSWERS.append(
                        {
                            "set": f"versions, {name}",
                            "way": way,
                            **sequence,
                            "answer": found[:DEPTH],
                        }
                    )
                count = len(trial.sequences) / 100
                show(trial.seed, name, way, before / count, top / count)


def alike(trial: Trial) -> None:
    """Our own sequences, and facts that only look like versions: is the right one first?"""
    show = table("seed", "groups", "ranking", "right one first of its group")
    for name, texts in (("versions", "sequence"), ("lookalikes", "items")):
        groups = rows(TRIALS / f"{name}.jsonl")
        told = [
            {"id": f"{name}-{number}-{place}", "content": text, "created_at": place * 30 * DAY}
            for number, group in enumerate(groups)
            for place, text in enumerate(group[texts])
        ]
        with stored(trial.dated(), told) as memory:
            for way in ("classic", "default"):
                right = 0
                for number, group in enumerate(groups):
                    found = asked(memory, group["query"], way, 50)
                    mine = [id for id in found if id.startswith(f"{name}-{number}-")]
                    expected = group.get("expected", len(group[texts]) - 1)
                    right += mine[:1] == [f"{name}-{number}-{expected}"]
                show(trial.seed, f"{len(groups)} {name}", way, 100 * right / len(groups))


def no_answer(trial: Trial) -> None:
    """Questions that the memories do not answer should get nothing."""
    show = table("seed", "questions", "empty")
    with stored(trial.memories) as memory:
        for name in ("foreign", "near"):
            asked_here = (TRIALS / f"{name}.txt").read_text("utf-8").splitlines()
            empty = sum(not asked(memory, query) for query in asked_here)
            show(trial.seed, f"{len(asked_here)} {name}", 100 * empty / len(asked_here))
    with stored([{"content": "we deploy on Fridays only after the canary is green"}]) as memory:
        found = bool(asked(memory, "when can I release?"))
        show(trial.seed, "when can I release? (has an answer)", "empty" if not found else "found")


def order(trial: Trial) -> None:
    """Do earlier questions change later answers?"""
    firsts: list[dict[str, str]] = []
    with stored(trial.memories) as memory:
        for _ in range(2):
            shuffled = trial.random.sample(trial.queries, len(trial.queries))
            found = {row["id"]: memory.recall(row["query"])["results"] for row in shuffled}
            firsts.append({id: hits[0]["id"] if hits else "" for id, hits in found.items()})
    same = sum(firsts[0][id] == firsts[1][id] for id in firsts[0])
    table("seed", "same top result in two orders")(trial.seed, 100 * same / len(firsts[0]))


AFFIXES: list[Callable[[str], str]] = [
    lambda text: f"Note: {text}",
    lambda text: f"Remember that {text[0].lower()}{text[1:]}",
    lambda text: f"{text.rstrip('.')} (confirmed)",
    lambda text: f"{text.rstrip('.')} — this is the current approach",
]


def merged(pairs: list[tuple[str, str]], others: list[Row]) -> tuple[int, int]:
    """Of pairs of texts: how many become one, and how many first wordings can still be read."""
    now = int(time.time())
    sources = [
        [{"id": f"pair-{number}-{side}", "content": pair[side], "created_at": now - 9 + side}]
        for number, pair in enumerate(pairs)
        for side in (0, 1)
    ]
    with stored(others, *sources) as memory:
        memory.consolidate()
        count = readable = 0
        for number, pair in enumerate(pairs):
            kept = memory.get(f"pair-{number}-0")
            count += kept.get("successor") == f"pair-{number}-1"
            readable += kept["content"] == pair[0]
        return count, readable


def duplicates(trial: Trial) -> None:
    """Texts that say the same become one; texts that differ in a fact stay two."""
    show = table("seed", "pairs", "merged", "first wording readable")
    drawn = trial.random.sample(trial.memories, 50)
    texts = {row["content"] for row in drawn}
    others = [row for row in trial.memories if row["content"] not in texts]
    affixed = [
        (row["content"], affix(row["content"]))
        for row, affix in zip(drawn, itertools.cycle(AFFIXES), strict=False)
    ]
    show(trial.seed, "50 with an affix", *merged(affixed, others))
    for name in ("rewordings", "hard_pairs"):
        pairs = [(row["a"], row["b"]) for row in rows(TRIALS / f"{name}.jsonl")]
        show(trial.seed, f"{len(pairs)} {name.replace('_', ' ')}", *merged(pairs, []))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--trials-only", action="store_true")
    given = parser.parse_args()
    sets = parts(given.data)
    if not sets:
        sys.exit(f"error: no memories.jsonl with a queries.jsonl beside it under {given.data}")
    if not given.trials_only:
        measure_sets(sets)
    for temporal in sorted(given.data.rglob("temporal.jsonl")):
        for run in (ages, versions, alike, no_answer, order, duplicates):
            print(f"\n{temporal.parent.name}: {run.__doc__}")
            for seed in given.seeds:
                run(Trial(temporal.parent, seed))
    target = ROOT / "dist" / "bench-quality.jsonl"
    target.parent.mkdir(exist_ok=True)
    target.write_text("".join(json.dumps(row) + "\n" for row in ANSWERS), "utf-8")
    print(f"\nevery answer: {os.path.relpath(target)}")


if __name__ == "__main__":
    main()

"""Trials of `make bench-quality`, on the set that has a `temporal.jsonl` beside its parts: ages,
versions, no answer, order, duplicates, and pairs that must stay two."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path

from bench_recall import ANSWERS, DEPTH, ROOT, Row, answers, asked, figures, rows, stored, table

from sediment import DAY

TRIALS = ROOT / "tests" / "trials"


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
    show = table(None, "seed", "ranking", "R@1", "R@5", "MRR", "R@1 undated", "R@5 undated")
    with stored(trial.memories) as undated, stored(trial.dated()) as dated:
        for way in ("classic", "default"):
            plain = figures(answers(undated, f"{trial.name} undated", trial.queries, way))
            aged = figures(answers(dated, f"{trial.name} aged", trial.queries, way))
            show(trial.seed, way, *aged, *plain[:2])


def versions(trial: Trial) -> None:
    """Is the newest version of a fact before its older ones, and near the top?"""
    show = table(None, "seed", "apart", "ranking", "newest before older", "newest in first 3")
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
    show = table(None, "seed", "groups", "ranking", "right one first of its group")
    kinds = ("versions", "sequence"), ("lookalikes", "items"), ("parallel", "items")
    for name, texts in kinds:
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
    show = table(None, "seed", "questions", "empty")
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
    table(None, "seed", "same top result in two orders")(trial.seed, 100 * same / len(firsts[0]))


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
    show = table(None, "seed", "pairs", "merged", "first wording readable")
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


def run_trials(data: Path, seeds: list[int]) -> None:
    for temporal in sorted(data.rglob("temporal.jsonl")):
        for run in (ages, versions, alike, no_answer, order, duplicates):
            print(f"\n{temporal.parent.name}: {run.__doc__}\n")
            for seed in seeds:
                run(Trial(temporal.parent, seed))

"""Learn `models/ranker.json` from the diaries, conversations and trials in `tests/`: `make ranker`.

Recall asks, of each pair of candidates, how likely the newer one made the older one obsolete, and
lets the chance to be the answer flow from the older to the newer (section Versions of the module).
The weights of that are learned here, by maximum likelihood of the right answers; then a logistic
model of how likely the first result is right, on diaries that the first model has not seen. The
features come from the program itself, so that what is learned and what is served cannot differ.
Nothing is random but a sample with a fixed seed: the same sources give the same file.

    python models/train_ranker.py                                     write models/ranker.json
    python models/train_ranker.py --without band --output FILE        leave a diary out
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import sediment  # noqa: E402
from sediment import DAY, RANKED, Encoder, Memory  # noqa: E402

OUTPUT = ROOT / "models" / "ranker.json"
DIARIES, CONVERSATIONS = ROOT / "tests" / "diaries", ROOT / "tests" / "conversations"
TRIALS = ROOT / "tests" / "trials"
CACHE = ROOT / "build" / "ranker"
FOLDS = 5  # of diaries, for the similarity
STEPS, RATE, PULL = 250, 0.05, 0.002  # of Adam, and how strongly weights are pulled to 0
# Notes of small stores, in which many questions have no answer.
SAMPLES = (1, 1, 1, 1, 2, 2, 3, 5, 20, 60)
TRIAL_SHARE = 0.5  # what a question of the trials counts: they are of one kind, and many
START = 1_600_000_000  # when the first version of a trial was stored

Row = dict[str, Any]


class Question(NamedTuple):
    """A question's candidates: m pairs of an older and a newer one among the first RANKED."""

    store: str
    kind: str  # "whole", or a "sample" of a store
    type: str  # as the diaries name it
    relevance: Any  # float[n]
    right: Any  # bool[n]
    stale: Any  # bool[n]
    old: Any  # int[m]
    new: Any
    features: Any  # float32[m, k], standardised by nothing
    hits: list[sediment.Hit]
    chunks: int


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


# Stores and their questions


def folders() -> dict[str, Path]:
    """The diaries, in which facts change, and the conversations, in which nothing is obsolete."""
    found = [*sorted(DIARIES.iterdir()), *sorted(CONVERSATIONS.iterdir())]
    return {path.name: path for path in found if path.is_dir()}


def texts(name: str) -> tuple[list[Row], list[Row]]:
    """The memories and the questions of a diary or a conversation."""
    folder = folders()[name]
    return rows(folder / "memories.jsonl"), rows(folder / "queries.jsonl")


def sampled(name: str, size: int, draw: int) -> tuple[list[Row], list[Row]]:
    """A few memories of a folder; its questions that they answer, and a quarter as many others."""
    memories, questions = texts(name)
    chance = random.Random(f"{name} {size} {draw}")
    kept = chance.sample(memories, size)
    there = {row["id"] for row in kept}
    questions = [
        row | {"expected": [id for id in row["expected"] if id in there]}
        for row in questions
        if row["type"] != "asof"
    ]
    answered = [row for row in questions if row["expected"]]
    others = [row for row in questions if not row["expected"]]
    return kept, answered + chance.sample(others, len(answered) // 4 + 1)


def trials(gap: int) -> tuple[list[Row], list[Row]]:
    """Sequences of versions, of which the last is right, and look-alikes, of which one is; so
    many seconds apart."""
    memories: list[Row] = []
    questions: list[Row] = []
    for name, key in (("versions", "sequence"), ("lookalikes", "items")):
        for number, group in enumerate(rows(TRIALS / f"{name}.jsonl")):
            ids = [f"{name}-{number}-{place}" for place in range(len(group[key]))]
            stored = START + gap * numpy.arange(len(ids)) + 997 * number
            memories += [
                {"id": id, "content": text, "created_at": int(at)}
                for id, text, at in zip(ids, group[key], stored, strict=True)
            ]
            right = ids[group.get("expected", -1)]
            stale = [id for id in ids if id != right]
            asked = {"query": group["query"], "expected": [right], "stale": stale}
            questions.append(asked | {"type": name})
    return memories, questions


def stores(names: Iterable[str]) -> Iterator[tuple[str, str, list[Row], list[Row]]]:
    """Each store: which diary it is of, whether it only teaches the similarity, and its rows."""
    for name in names:
        yield name, "whole", *texts(name)
        for draw, size in enumerate(SAMPLES):
            yield name, "sample", *sampled(name, size, draw)
    for gap in (60, 30 * DAY):
        yield "trials", "whole", *trials(gap)


# What the program sees of each question


def collected(memory: Memory, question: Row) -> tuple[list[sediment.Hit], Any, Any, int]:
    """The candidates in the order of their relevance, before age counts, their features, and the
    ids of those that may answer."""
    seen: list[Any] = []

    def collect(hits: list[Any], facts: Any, query: Any, lexicon: Any, chunks: int) -> list[Any]:
        hits = sediment.by_relevance(hits, facts, query.asked)
        able, rest = sediment.contenders(hits, chunks)
        features = sediment.features_of(able[:RANKED], facts, query, lexicon)
        seen.extend((able, rest, features, chunks))
        return []

    profile = sediment.PROFILES["default"]._replace(adjust=collect)
    moment = question.get("as_of")
    memory.search.hits(sediment.Request(question["query"], RANKED, profile, moment))
    able, rest, features, chunks = seen
    known = sediment.items_by_row(memory.database, [hit.item for hit in able])
    ids = [known[hit.item]["id"] for hit in able]
    return [*able, *rest], features, ids, chunks


def asked(memory: Memory, store: str, kind: str, question: Row) -> Question | None:
    hits, features, ids, chunks = collected(memory, question)
    if not hits:
        return None
    right = numpy.array([id in question["expected"] for id in ids])
    stale = numpy.array([id in question.get("stale", ()) for id in ids])
    relevance = numpy.array([hit.score for hit in hits[: len(ids)]])
    old = new = numpy.zeros(0, int)
    columns = numpy.zeros((0, len(NAMES)), numpy.float32)
    if features:
        old, new = numpy.nonzero(sediment.may_replace(features))
        full = [numpy.broadcast_to(features[name], features["cosine"].shape) for name in NAMES]
        columns = numpy.stack([each[old, new] for each in full], 1).astype(numpy.float32)
    facts = store, kind, question["type"], relevance, right, stale
    return Question(*facts, old, new, columns, hits, chunks)


NAMES = sediment.PAIR_FEATURES


def questions_of(names: list[str]) -> list[Question]:
    """All questions, as the program sees them; kept for the next run with the same sources."""
    sources = [ROOT / "sediment.py", Path(__file__), *sorted(DIARIES.parent.rglob("*.jsonl"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    kept = CACHE / f"questions-{digest}.pickle"
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    encoder, found = Encoder(), []
    for name, kind, memories, questions in stores(names):
        with (
            tempfile.TemporaryDirectory() as folder,
            Memory(Path(folder) / "memory.db", project="ranker") as memory,
        ):
            memory._encoder = encoder
            memory.import_rows(iter(memories))
            found += [asked(memory, name, kind, question) for question in questions]
    found = [question for question in found if question]
    CACHE.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(found))
    return found


# Which memory made which other one obsolete


class Batch(NamedTuple):
    """Questions side by side: candidates and pairs as one list each."""

    relevance: Any
    right: Any
    question: Any  # of each candidate
    old: Any  # candidate of each pair
    new: Any
    features: Any
    weights: Any  # of each question, of sum 1
    count: int


def batch(questions: list[Question]) -> Batch:
    starts = numpy.cumsum([0, *(len(one.relevance) for one in questions)])
    weights = numpy.array([TRIAL_SHARE if one.store == "trials" else 1.0 for one in questions])
    return Batch(
        numpy.concatenate([one.relevance for one in questions]),
        numpy.concatenate([one.right for one in questions]).astype(float),
        numpy.repeat(numpy.arange(len(questions)), numpy.diff(starts)),
        numpy.concatenate([one.old + at for one, at in zip(questions, starts, strict=False)]),
        numpy.concatenate([one.new + at for one, at in zip(questions, starts, strict=False)]),
        numpy.concatenate([one.features for one in questions]),
        weights / weights.sum(),
        len(questions),
    )


def summed(values: Any, groups: Any, count: int) -> Any:
    return numpy.bincount(groups, values, count)


def slope(data: Batch, sharpness: float, weights: Any) -> tuple[float, Any]:
    """The derivatives, by the sharpness and the weights, of the mean log likelihood that the
    right memories answer."""
    size = len(data.relevance)
    top = numpy.full(data.count, -numpy.inf)
    numpy.maximum.at(top, data.question, data.relevance)
    above = data.relevance - top[data.question]
    chance = numpy.exp(sharpness * above)
    chance /= summed(chance, data.question, data.count)[data.question]
    odds = numpy.exp(numpy.minimum(data.features @ weights, 30))
    rest = 1 / (1 + summed(odds, data.old, size))
    taken = odds * rest[data.old]
    # How likely a right one answers where the chance was this one's.
    leads = rest * data.right + summed(taken * data.right[data.new], data.old, size)
    total = summed(chance * leads, data.question, data.count)[data.question] + 1e-9
    weight = data.weights[data.question]
    by_sharpness = (weight * chance * (leads / total - 1) * above).sum()
    moved = (weight * chance / total)[data.old] * taken
    by_weights = (moved * (data.right[data.new] - leads[data.old])) @ data.features
    return float(by_sharpness), by_weights


def learn_obsolete(questions: list[Question]) -> dict[str, Any]:
    """The sharpness, and the weights of the pair features with that of "bias"."""
    data = batch([one for one in questions if one.kind == "whole" and one.right.any()])
    mean, spread = data.features.mean(0), data.features.std(0) + 1e-9
    scaled = (data.features - mean) / spread
    data = data._replace(features=numpy.append(scaled, numpy.ones((len(scaled), 1)), 1))
    point = numpy.array([math.log(15), *[0.0] * len(NAMES), -5.0])  # sharpness as its logarithm
    pull = numpy.array([0, *[PULL] * len(NAMES), 0])
    speed, size = numpy.zeros_like(point), numpy.zeros_like(point)
    for step in range(1, STEPS + 1):
        by_sharpness, by_weights = slope(data, math.exp(point[0]), point[1:])
        down = -numpy.append(by_sharpness * math.exp(point[0]), by_weights) + pull * point
        speed, size = 0.9 * speed + 0.1 * down, 0.999 * size + 0.001 * down**2
        move = speed / (1 - 0.9**step) / (numpy.sqrt(size / (1 - 0.999**step)) + 1e-8)
        point -= RATE * (1 - step / STEPS) * move
    weights = point[1:-1] / spread
    bias = point[-1] - weights @ mean
    named = dict(zip(NAMES, map(float, weights), strict=True))
    return {"sharpness": math.exp(point[0]), "obsolete": {"bias": float(bias)} | named}


# How likely the first result is right


def matrices(question: Question) -> sediment.Matrices:
    """The features of all pairs as the program has them; 0 where none may be replaced."""
    found = {name: numpy.zeros((min(len(question.relevance), RANKED),) * 2) for name in NAMES}
    for name, column in zip(NAMES, question.features.T, strict=True):
        found[name][question.old, question.new] = column
    none = numpy.zeros_like(found["days"], bool)
    return found | {"lost_sign": none, "strays": none}


def first_result(question: Question, ranker: sediment.Ranker) -> tuple[list[float], bool]:
    """What tells of the first result, and whether it is right."""
    obsolete = ranker.obsolescence(matrices(question))
    chances = ranker.answers(question.relevance, obsolete)
    first = int(chances.argmax())
    chance = float(chances[first]) * ranker.answered(question.relevance)
    facts = sediment.similarity_facts(question.hits, first, chance, question.chunks)
    return [facts[name] for name in SIMILARITY], bool(question.right[first])


SIMILARITY = ("bias", "chance", "relevance", "cosine", "contrast", "above_chance")


def learn_similarity(told: list[tuple[list[float], bool]]) -> dict[str, float]:
    """A logistic model by Newton's method, a little pulled to 0."""
    facts = numpy.array([row for row, _ in told])
    right = numpy.array([one for _, one in told], float)
    weights = numpy.zeros(len(SIMILARITY))
    for _ in range(30):
        likely = 1 / (1 + numpy.exp(-facts @ weights))
        steep = facts.T * (likely * (1 - likely)) @ facts + 0.5 * numpy.eye(len(weights))
        weights += numpy.linalg.solve(steep, facts.T @ (right - likely) - 0.5 * weights)
    return dict(zip(SIMILARITY, map(float, weights), strict=True))


def learn_recall(questions: list[Question], names: list[str]) -> Row:
    """All weights of recall; the similarity by what the others give where they did not learn."""
    told = []
    for fold in range(FOLDS):
        held = set(names[fold::FOLDS])
        ranker = sediment.Ranker(
            **learn_obsolete([one for one in questions if one.store not in held]), similarity={}
        )
        told += [first_result(one, ranker) for one in questions if one.store in held]
    return learn_obsolete(questions) | {"similarity": learn_similarity(told)}


def rounded(value: Any) -> Any:
    """Numbers of four figures: more would not be the same on another machine."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--without", help="a diary or conversation to leave out")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    names = list(folders())
    questions = [one for one in questions_of(names) if one.store != given.without]
    names = [name for name in names if name != given.without]
    kept = json.loads(OUTPUT.read_text("utf-8")) if OUTPUT.exists() else {}
    learned = kept | {"recall": learn_recall(questions, names)}
    text = json.dumps(rounded(learned), indent=1) + "\n"
    given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

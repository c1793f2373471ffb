"""Learn `models/ranker.json` from diaries, conversations, rivals and beginnings: `make ranker`.

Recall asks, of each pair of candidates, how likely the newer one made the older one obsolete, and
lets the chance to be the answer flow from the older to the newer (section Versions of the module).
The weights of that are learned here, by maximum likelihood of the right answers; then a logistic
model of how likely the first result is right, on diaries that the first model has not seen. The
features come from the program itself, so that what is learned and what is served cannot differ.
Nothing is random but samples and the network's first weights, with fixed seeds: the same sources
give the same file.

    python models/train_ranker.py                                     write models/ranker.json
    python models/train_ranker.py --fold 0 --output FILE              leave a third of them out
"""

from __future__ import annotations

import argparse
import functools
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

import build_model  # noqa: E402
import folds  # noqa: E402
from folds import CONVERSATIONS, FOLDS, Row, fold_of, folders, held_out, made_from  # noqa: E402

import sediment  # noqa: E402
from sediment import PAIR_REACH, RANKED, Encoder, Memory  # noqa: E402

OUTPUT = ROOT / "models" / "ranker.json"
CACHE = ROOT / "build" / "ranker"
THIRDS = 3  # of those, for the similarity of what was ranked by weights that had not seen it
STEPS, RATE, PULL = 400, 0.03, 0.005  # of Adam, and how strongly weights are pulled to 0
BATCHES = 4  # of questions, one a step
# Units of the network. Of 8 / 16 / 32, changed facts are first in 45.3 / 45.7 / 45.5 % and an
# outdated note before them in 37.5 / 36.3 / 36.1, rivals are right in 64.2 / 64.4 / 63.9.
HIDDEN = 16
LASTING = {path.name for path in CONVERSATIONS.iterdir()}  # where nothing becomes obsolete
# Times that their questions count, or the diaries outweigh them: with 56 diaries and 1 / 2, long
# chats have an MRR of 56.1 / 57.6; with 72 and 2 / 3 / 4, conversations are first right in 63.8 /
# 64.1 / 64.3 %, changed facts in 47.1 / 46.7 / 46.3.
LASTING_COUNT = 3
HANDED = 8  # times that a chance is handed on, at most, while it is learned: chains are shorter
TAUGHT = 20  # older candidates of a question whose pairs are learned from: others have no chance
# Notes of small stores, which all stores are at first: there little is near anything, and whatever
# is newer looks like a version. Many questions have no answer in them.
SAMPLES = (1, 1, 1, 1, 2, 2, 3, 5, 20, 60)


class Question(NamedTuple):
    """A question's candidates: m pairs of an older and a newer one among the first RANKED."""

    folder: str
    type: str  # as the diaries name it
    relevance: Any  # float[n]
    right: Any  # bool[n]
    stale: Any  # bool[n]
    old: Any  # int[m]
    new: Any
    features: Any  # float32[m, k], standardised by nothing
    hits: list[sediment.Hit]
    floor: float
    strange: float


# Stores and their questions


def sampled(
    name: str, memories: list[Row], questions: list[Row], size: int, draw: int
) -> tuple[list[Row], list[Row]]:
    """A few memories of a folder; its questions that they answer, and a quarter as many others."""
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


def stores(names: Iterable[str]) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """Each store, and samples of the large ones: which folder it is of, and its rows."""
    for name in names:
        found = folds.stores(folders()[name])
        for memories, questions in found:
            yield name, memories, questions
        for draw, size in enumerate(SAMPLES) if len(found) == 1 else ():
            yield name, *sampled(name, *found[0], size, draw)


# What the program sees of each question


def collected(memory: Memory, question: Row) -> tuple[list[sediment.Hit], Any, Any, float, float]:
    """The candidates in the order of their relevance, before age counts, their features, the ids of
    those that may answer, what one of them must have to do with it, and how strange it is."""
    seen: list[Any] = []

    def collect(hits: list[Any], facts: Any, query: Any, lexicon: Any, floor: float) -> list[Any]:
        hits = sediment.by_relevance(hits, facts, query, lexicon)
        able, rest = sediment.contenders(hits, floor)
        features = sediment.features_of(able[:RANKED], facts, query, lexicon)
        seen.extend((able, rest, features, floor, query.strange))
        return []

    profile = sediment.PROFILES["default"]._replace(adjust=collect)
    moment = question.get("as_of")
    memory.search.hits(sediment.Request(question["query"], RANKED, profile, moment))
    able, rest, features, floor, strange = seen
    known = sediment.items_by_row(memory.database, [hit.item for hit in able])
    ids = [known[hit.item]["id"] for hit in able]
    return [*able, *rest], features, ids, floor, strange


def asked(memory: Memory, folder: str, question: Row) -> Question | None:
    hits, features, ids, floor, strange = collected(memory, question)
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
    facts = folder, question["type"], relevance, right, stale
    return Question(*facts, old, new, columns, hits, floor, strange)


NAMES = sediment.PAIR_FEATURES


def untaught_encoders() -> list[Encoder]:
    """For each fold one that it has taught nothing: what an encoder has learned from looks to it
    nearer than what it will meet."""
    found = [Encoder(build_model.model_without(fold)) for fold in range(FOLDS)]
    for encoder in found:  # samples have the texts of the whole again
        encoder.embed = functools.cache(encoder.embed)
    return found


def questions_of(names: list[str]) -> list[Question]:
    """All questions, as the program sees them; kept for the next run with the same sources."""
    sources = *folds.PROGRAM, Path(__file__), *sorted(build_model.LESSONS.iterdir())
    kept = CACHE / f"questions-{made_from(sources)}.pickle"
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    encoders, found = untaught_encoders(), []
    for name, memories, questions in stores(names):
        with (
            tempfile.TemporaryDirectory() as folder,
            Memory(Path(folder) / "memory.db", project="ranker") as memory,
        ):
            memory._encoder = encoders[fold_of(name)]
            memory.import_rows(iter(memories))
            found += [asked(memory, name, question) for question in questions]
    found = [question for question in found if question]
    CACHE.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(found))
    return found


# Which memory made which other one obsolete


class Batch(NamedTuple):
    """Questions side by side: candidates and pairs as one list each."""

    relevance: Any  # how far behind the best one's of the question
    right: Any
    question: Any  # of each candidate
    old: Any  # candidate of each pair
    new: Any
    features: Any
    follows: Any  # bool, of each pair
    count: int  # of questions


def batch(questions: list[Question]) -> Batch:
    starts = numpy.cumsum([0, *(len(one.relevance) for one in questions)])
    kept = [one.old < TAUGHT for one in questions]
    pairs = [
        (one.old[few] + at, one.new[few] + at, one.features[few])
        for one, at, few in zip(questions, starts, kept, strict=False)
    ]
    old, new, features = map(numpy.concatenate, zip(*pairs, strict=True))
    return Batch(
        numpy.concatenate([one.relevance - one.relevance.max() for one in questions]),
        numpy.concatenate([one.right for one in questions]).astype(float),
        numpy.repeat(numpy.arange(len(questions)), numpy.diff(starts)),
        old,
        new,
        features,
        features[:, NAMES.index("follows")] > 0,
        len(questions),
    )


def summed(values: Any, groups: Any, count: int) -> Any:
    return numpy.bincount(groups, values, count)


class Weights(NamedTuple):
    """What is learned: the logarithm of the sharpness; a weight for each column; the hidden units
    of the network, and what each of them counts."""

    sharpness: Any  # float[1]
    plain: Any  # float[k + 1], the last of a column of ones
    hidden: Any  # float[k + 1, HIDDEN]
    out: Any  # float[HIDDEN]


def slope(data: Batch, at: Weights) -> Weights:
    """The derivatives, by each weight, of the mean log likelihood that the right ones answer."""
    size, sharpness = len(data.relevance), math.exp(at.sharpness[0])
    chance = numpy.exp(sharpness * data.relevance)  # which is behind the best one's, at most 0
    chance /= summed(chance, data.question, data.count)[data.question]
    units = numpy.tanh(data.features @ at.hidden.astype(numpy.float32))
    free = data.features @ at.plain.astype(numpy.float32) + units @ at.out.astype(numpy.float32)
    told = numpy.maximum(free, numpy.where(data.follows, sediment.PLAIN_VERSION, -numpy.inf))
    odds = numpy.exp(numpy.minimum(told, 30))
    rest = 1 / (1 + summed(odds, data.old, size))
    taken = odds * rest[data.old]
    # How likely a right one answers where the chance was this one's; and all that came to it.
    leads, held = data.right, chance
    for _ in range(HANDED):
        leads = rest * data.right + summed(taken * leads[data.new], data.old, size)
        held = chance + summed(taken * held[data.old], data.new, size)
    total = summed(chance * leads, data.question, data.count)[data.question] + 1e-9
    by_sharpness = (chance * (leads / total - 1) * data.relevance).sum() * sharpness / data.count
    moved = (held / total)[data.old] * taken * (told == free) / data.count
    by_odds = (moved * (leads[data.new] - leads[data.old])).astype(numpy.float32)
    through = by_odds[:, None] * at.out.astype(numpy.float32) * (1 - units**2)
    by_hidden = data.features.T @ through
    return Weights(by_sharpness, by_odds @ data.features, by_hidden, by_odds @ units)


def climbed(batches: list[Batch]) -> Weights:
    """The weights of the greatest likelihood, a little pulled to 0, by Adam; the first ones are
    random, with a fixed seed."""
    columns = batches[0].features.shape[1]
    chance = numpy.random.default_rng(0)
    point = Weights(
        numpy.array([math.log(15)]),
        numpy.array([*[0.0] * (columns - 1), -5.0]),
        chance.normal(0, 0.6 / columns**0.5, (columns, HIDDEN)),
        chance.normal(0, 0.1, HIDDEN),
    )
    free = PULL * (numpy.arange(columns) < columns - 1)  # nothing pulls the bias
    pull = Weights(0.0, free, free[:, None], PULL)
    speed, size = ([numpy.zeros_like(each) for each in point] for _ in range(2))
    for step in range(1, STEPS + 1):
        steps = zip(pull, point, slope(batches[step % BATCHES], point), strict=True)
        down = [held * at - up for held, at, up in steps]
        speed = [0.9 * old + 0.1 * new for old, new in zip(speed, down, strict=True)]
        size = [0.999 * old + 0.001 * new**2 for old, new in zip(size, down, strict=True)]
        rate = RATE * (1 - step / STEPS) * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
        moves = zip(point, speed, size, strict=True)
        point = Weights(*(at - rate * v / (numpy.sqrt(s) + 1e-8) for at, v, s in moves))
    return point


def times_counted(question: Question) -> int:
    return LASTING_COUNT if question.folder in LASTING else 1


def scaled(questions: list[Question]) -> tuple[Any, list[Batch]]:
    """The mean and the spread of each pair feature, and batches of what is standardised by them,
    with a column of ones."""
    undecided = [one for one in questions if one.right.any() and len(one.relevance) > 1]
    undecided = [one for one in undecided for _ in range(times_counted(one))]
    batches = [batch(undecided[first::BATCHES]) for first in range(BATCHES)]
    every = numpy.concatenate([one.features for one in batches])
    scale = numpy.stack([every.mean(0, float), every.std(0, float) + 1e-9], 1)
    found = []
    for one in batches:
        facts = ((one.features - scale[:, 0]) / scale[:, 1]).clip(-PAIR_REACH, PAIR_REACH)
        facts = numpy.append(facts, numpy.ones((len(facts), 1)), 1)
        found.append(one._replace(features=facts.astype(numpy.float32)))
    return scale, found


def learn_obsolete(questions: list[Question]) -> dict[str, Any]:
    """The sharpness, and of each pair feature (and "bias") its mean, spread, weight and hidden
    weights; "out" has what the hidden units count."""
    scale, batches = scaled(questions)
    found = climbed(batches)
    scale = numpy.append(scale, [[0.0, 1.0]], 0)
    table = numpy.column_stack([scale, found.plain, found.hidden]).tolist()
    named = dict(zip((*NAMES, "bias"), table, strict=True))
    return {
        "sharpness": math.exp(found.sharpness[0]),
        "obsolete": named | {"out": found.out.tolist()},
    }


# How likely the first result is right


def matrices(question: Question) -> sediment.Matrices:
    """The features of all pairs as the program has them; 0 where none may be replaced."""
    found = {name: numpy.zeros((min(len(question.relevance), RANKED),) * 2) for name in NAMES}
    for name, column in zip(NAMES, question.features.T, strict=True):
        found[name][question.old, question.new] = column
    none = numpy.zeros_like(found["days"], bool)
    return found | dict.fromkeys(("lost_sign", "strays", "old_replaces"), none)


def first_result(question: Question, ranker: sediment.Ranker) -> tuple[list[float], bool]:
    """What tells of the first result, and whether it is right."""
    obsolete = ranker.obsolescence(matrices(question))
    chances = ranker.answers(question.relevance, obsolete)
    first = int(chances.argmax())
    chance = float(chances[first]) * ranker.answered(question.relevance)
    told = question.hits, first, chance, question.floor, question.strange
    facts = sediment.similarity_facts(*told)
    return [facts[name] for name in SIMILARITY], bool(question.right[first])


SIMILARITY = ("bias", "chance", "relevance", "cosine", "contrast", "above_chance", "strange")


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
    for third in range(THIRDS):
        held = set(names[third::THIRDS])
        ranker = sediment.Ranker(
            **learn_obsolete([one for one in questions if one.folder not in held]), similarity={}
        )
        told += [first_result(one, ranker) for one in questions if one.folder in held]
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
    parser.add_argument("--fold", type=int, choices=range(FOLDS), help="what to leave out")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    names, out = list(folders()), held_out(given.fold)
    questions = [one for one in questions_of(names) if one.folder not in out]
    names = [name for name in names if name not in out]
    kept = json.loads(OUTPUT.read_text("utf-8")) if OUTPUT.exists() else {}
    learned = kept | {"recall": learn_recall(questions, names)}
    text = json.dumps(rounded(learned), indent=1) + "\n"
    given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

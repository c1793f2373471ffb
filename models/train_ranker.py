"""Learn `models/ranker.json` from notes and questions in `tests/`: `make ranker`.

Three small logistic models, of features that the program itself makes, so that what is learned and
what is served cannot differ:

    pair     whether a newer note makes an older one obsolete, whatever is asked: `store` asks by it
    asked    whether it does so for a question: a multinomial logit over the newer notes and none
    answer   how likely a result answers its question

`docs/ranking.md` says who teaches, and who judges. Nothing is random: the same sources give the
same file.

    python models/train_ranker.py                              write models/ranker.json
    python models/train_ranker.py --fold 0 --output FILE       leave a third of the folders out
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pickle
import sys
import tempfile
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import build_model  # noqa: E402
import folds  # noqa: E402
from folds import FOLDS, Row, encoder_folders, fold_of, folders, held_out, made_from, ranker_folders  # noqa: E402

import sediment  # noqa: E402
from sediment import RANKED, STORE_NEIGHBOURS, Encoder, Memory  # noqa: E402

OUTPUT = ROOT / "models" / "ranker.json"
CACHE = ROOT / "build" / "ranker"
PULL = 2.0  # of the weights of standardised features to 0
OLDER = 8  # older hits of a question whose newer ones are learned from: others are hardly seen
SHOWN = 10  # results of a question that its similarities are learned from
# Sequences of versions that differ in a word count so many times at a recall: there is little else
# to learn from what to make of such.
SEQUENCES, SEQUENCES_COUNT = {path.name for path in folds.SEQUENCES.iterdir()}, 3
CHANGING = ("current", "asof", "versions")  # types of questions of which `stale` notes are outdated


class Stored(NamedTuple):
    """A note as it came to a store, and the older ones there that are nearest to it."""

    folder: str
    features: dict[str, Any]  # float[rivals]
    obsolete: Any  # bool[rivals]


class Asked(NamedTuple):
    """A question, and the hits as they stand by relevance."""

    folder: str
    hits: list[sediment.Hit]
    query: sediment.Query
    features: dict[str, Any]  # float32[old, new] of the first RANKED; {} where none is newer
    pairs: dict[str, Any]
    may: Any  # bool[old, new]
    right: Any  # bool[hits]
    stale: Any  # bool[hits]


# What the program sees


def obsolete_pairs(notes: list[Row], questions: list[Row]) -> set[tuple[str, str]]:
    """(old, new) of all notes of which the newer made the older obsolete."""
    created = {row["id"]: row["created_at"] for row in notes}
    return {
        (old, new)
        for question in questions
        if question["type"] in CHANGING
        for old in question["stale"]
        for new in (*question["expected"], *question["stale"])
        if created[new] > created[old]
    }


def stored(
    folder: str, notes: list[Row], questions: list[Row], encoder: Encoder
) -> Iterator[Stored]:
    """A store's notes, one after the other."""
    pairs = obsolete_pairs(notes, questions)
    notes = sorted(notes, key=lambda row: row["created_at"])
    vectors = sediment.stack_vectors([(encoder.embed(row["content"]),) for row in notes])
    words = [lexicon(encoder).text_words(row["content"]) for row in notes]
    created = numpy.array([row["created_at"] for row in notes], float)
    unasked = lexicon(encoder).text_words("")
    for at in range(1, len(notes)):
        older = numpy.flatnonzero(created[:at] < created[at])
        older = older[numpy.argsort(-vectors[older] @ vectors[at], kind="stable")][
            :STORE_NEIGHBOURS
        ]
        if not len(older):
            continue
        chosen = [*older.tolist(), at]
        near = vectors[chosen]
        table = sediment.WordTable([words[one] for one in chosen], unasked)
        compared = sediment.Notes(table, near, created[chosen])
        features = sediment.pair_features(compared, slice(-1, None))
        obsolete = [(notes[one]["id"], notes[at]["id"]) in pairs for one in older.tolist()]
        columns = {name: column[:-1, 0] for name, column in features.items()}
        yield Stored(folder, columns, numpy.array(obsolete))


def asked(memory: Memory, folder: str, question: Row) -> Asked | None:
    seen: list[Any] = []

    def collect(hits: list[Any], facts: Any, query: Any, words: Any, _: float) -> list[Any]:
        hits = sediment.by_relevance(hits, facts, query, words)
        if hits:
            seen.extend((hits, query, sediment.compared_notes(hits[:RANKED], facts, query, words)))
        return []

    profile = sediment.PROFILES["default"]._replace(adjust=collect)
    moment = question.get("as_of")
    memory.search.hits(sediment.Request(question["query"], RANKED, profile, moment))
    if not seen:
        return None
    hits, query, compared = seen
    known = sediment.items_by_row(memory.database, [hit.item for hit in hits])
    ids = [known[hit.item]["id"] for hit in hits]
    right = numpy.array([id in question["expected"] for id in ids])
    stale = numpy.array([id in question.get("stale", ()) for id in ids])
    if compared is None:
        return Asked(folder, hits, query, {}, {}, None, right, stale)
    notes, may = compared
    relevance = numpy.array([hit.score for hit in hits[:RANKED]])
    with unittest.mock.patch.object(sediment, "log_odds", return_value=0.0):  # not learned yet
        found = sediment.pair_features(notes)
        features = shaped(sediment.asked_features(found, notes.table, relevance), may)
    pairs = shaped(found, may)
    return Asked(folder, hits, query, features, pairs, may, right, stale)


def shaped(features: dict[str, Any], may: Any) -> dict[str, Any]:
    return {
        name: numpy.broadcast_to(column, may.shape).astype(numpy.float32)
        for name, column in features.items()
    }


@functools.cache
def lexicon(encoder: Encoder) -> sediment.Lexicon:
    return sediment.lexicon_of(encoder)


@functools.cache
def encoder_for(fold: int | None) -> Encoder:
    """One that a fold has taught nothing, or that is shipped."""
    encoder = Encoder(sediment.model_dir() if fold is None else build_model.model_without(fold))
    encoder.embed = functools.cache(encoder.embed)
    return encoder


def untaught_encoder(name: str) -> Encoder:
    """One that this folder has taught nothing: what an encoder has learned from looks to it nearer
    than what it will meet."""
    return encoder_for(fold_of(name) if name in encoder_folders() else None)


def seen_by_program(names: list[str]) -> tuple[list[Stored], list[Asked]]:
    """All notes and questions as the program sees them; kept for the next run of the same
    sources."""
    sources = *folds.PROGRAM, Path(__file__), *sorted(build_model.LESSONS.iterdir())
    kept = CACHE / f"seen-{made_from(sources)}.pickle"
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    notes, questions = [], []
    for name in names:
        encoder = untaught_encoder(name)
        for rows, queries in folds.stores(folders()[name]):
            notes += stored(name, rows, queries, encoder)
            with (
                tempfile.TemporaryDirectory() as place,
                Memory(Path(place) / "memory.db", project="ranker") as memory,
            ):
                memory._encoder = encoder
                memory.import_rows(iter(rows))
                questions += [asked(memory, name, query) for query in queries]
    found = notes, [question for question in questions if question]
    CACHE.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(found))
    return found


# Learning


def learned_logit(names: list[str], facts: Any, groups: Any, right: Any) -> Row:
    """The weights of a multinomial logit by Newton's method: of each group of rows one is right, or
    none is. Each row by itself is a group in a plain logistic model."""
    mean, spread = facts.mean(0), facts.std(0) + 1e-9
    rows = numpy.append((facts - mean) / spread, numpy.ones((len(facts), 1)), 1)
    weights = numpy.array([0.0] * len(names) + [-3.0])
    loss, slope, steep = steepness(weights, rows, groups, right)
    for _ in range(100):
        step = numpy.linalg.solve(steep, slope)
        while (told := steepness(weights + step, rows, groups, right))[0] > loss:
            step = step / 2
        weights, gained = weights + step, loss - told[0]
        loss, slope, steep = told
        if gained < 1e-6:
            break
    plain = weights[:-1] / spread
    found = dict(zip(names, plain.tolist(), strict=True))
    return found | {"bias": float(weights[-1] - plain @ mean)}


def steepness(weights: Any, rows: Any, groups: Any, right: Any) -> tuple[float, Any, Any]:
    """The negative log likelihood of what is right, a little pulled to weights of 0; and its slope
    downwards and curvature, the latter as if it were known which of several right ones is meant."""
    count, pull = groups.max() + 1, numpy.array([PULL] * (len(weights) - 1) + [0.0])
    odds = numpy.exp(numpy.clip(rows @ weights, -30, 30))
    every, true = (
        1 + numpy.bincount(groups, odds, count),
        numpy.bincount(groups, odds * right, count),
    )
    answered = numpy.bincount(groups, right, count) > 0
    likely = odds / every[groups]
    wanted = numpy.where(answered[groups], odds * right / (true[groups] + 1e-300), 0)
    loss = numpy.log(every).sum() - numpy.log(true[answered]).sum() + (pull * weights**2).sum() / 2
    slope = rows.T @ (wanted - likely) - pull * weights
    steep = (rows * likely[:, None]).T @ rows + numpy.diag(pull)
    if count < len(rows):
        mixed = numpy.stack([numpy.bincount(groups, likely * one, count) for one in rows.T], 1)
        steep -= mixed.T @ mixed
    else:
        steep -= (rows * (likely**2)[:, None]).T @ rows
    return float(loss), slope, steep


def matrix(rows: list[dict[str, Any]]) -> Any:
    return numpy.concatenate([numpy.stack([row[name] for name in rows[0]], 1) for row in rows])


def learn_pair(notes: list[Stored]) -> Row:
    facts = matrix([note.features for note in notes])
    right = numpy.concatenate([note.obsolete for note in notes]).astype(float)
    return learned_logit([*notes[0].features], facts, numpy.arange(len(facts)), right)


def learn_asked(questions: list[Asked], pair: Row) -> Row:
    """From the older notes of which is known whether they still answer."""
    columns, groups, right = [], [], []
    sequences = [question for question in questions if question.folder in SEQUENCES]
    for question in [*questions, *sequences * (SEQUENCES_COUNT - 1)]:
        if question.may is None or not question.right.any():
            continue
        features = question.features | {"pair": odds_of(question.pairs, pair)}
        size = len(question.may)
        true, stale = question.right[:size], question.stale[:size]
        for old in numpy.flatnonzero((true | stale)[:OLDER]).tolist():
            newer = question.may[old] & ~(true[old] & true)
            if not newer.any():
                continue
            takes = true if (true & newer).any() else stale
            right.append((takes & stale[old])[newer])
            columns.append({name: column[old, newer] for name, column in features.items()})
            groups.append(numpy.full(newer.sum(), len(groups)))
    facts, group = matrix(columns), numpy.concatenate(groups)
    return learned_logit([*columns[0]], facts, group, numpy.concatenate(right).astype(float))


def odds_of(features: dict[str, Any], weights: Row) -> Any:
    return sum(weights[name] * column for name, column in features.items()) + weights["bias"]


def learn_answer(questions: list[Asked], models: Row) -> Row:
    """From the first results, in the order in which the two other models put them."""
    columns, right = [], []
    for question in questions:
        size = min(len(question.hits), RANKED)
        chances = numpy.zeros((size, size))
        if question.may is not None:
            features = question.features | {"pair": odds_of(question.pairs, models["pair"])}
            odds = numpy.exp(numpy.minimum(odds_of(features, models["asked"]), 30)) * question.may
            chances = odds / (1 + odds.sum(1, keepdims=True))
        order, _ = sediment.beside_newer(chances, [hit.score for hit in question.hits])
        order += range(size, len(question.hits))
        features = sediment.answer_features(question.hits, chances, question.query)
        shown = order[:SHOWN]
        full = {
            name: numpy.broadcast_to(column, len(order))[shown] for name, column in features.items()
        }
        columns.append(full)
        right.append(question.right[shown])
    facts = matrix(columns)
    return learned_logit(
        [*columns[0]], facts, numpy.arange(len(facts)), numpy.concatenate(right).astype(float)
    )


def learn(notes: list[Stored], questions: list[Asked]) -> Row:
    models: Row = {"pair": learn_pair(notes)}
    models["asked"] = learn_asked(questions, models["pair"])
    return models | {"answer": learn_answer(questions, models)}


def rounded(value: Any) -> Any:
    """Numbers of four figures: more would not be the same on another machine."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fold", type=int, choices=range(FOLDS), help="what to leave out")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    notes, questions = seen_by_program(list(ranker_folders()))
    out = held_out(given.fold)
    learned = learn(
        [note for note in notes if note.folder not in out],
        [question for question in questions if question.folder not in out],
    )
    given.output.write_text(json.dumps(rounded(learned), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Learn what `store` asks about, the key "door" of `models/ranker.json`: which older memories a
new one makes obsolete, from the diaries in `tests/`.

A note makes an older one obsolete where a question about a changed fact names the older one as
stale and the newer one as right, or as a later one of those that went stale. The features come
from the program itself. The threshold is what leads to PROPOSALS a store in diaries that a model
has not learned from. Nothing is random: the same sources give the same file.

    python models/train_door.py                  write it, and print what it reaches
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from folds import DIARIES, Row, fold_of, rows  # noqa: E402
from train_ranker import OUTPUT, rounded, untaught_encoders  # noqa: E402

import sediment  # noqa: E402

PROPOSALS = 1.5  # a store, on average
PULL = 10.0  # of weights to 0


class Store(NamedTuple):
    """A note that came to a diary, and its rivals there."""

    diary: str
    features: dict[str, Any]
    obsolete: Any  # bool[rivals]: what it makes so


def door_pairs(notes: dict[str, Row], questions: list[Row]) -> set[tuple[str, str]]:
    """(new, old) of all notes of which the newer made the older obsolete."""
    return {
        (new, old)
        for question in questions
        if question["type"] in ("current", "asof")
        for old in question["stale"]
        for new in (*question["expected"], *question["stale"])
        if notes[new]["created_at"] > notes[old]["created_at"]
    }


def door_stores(
    folder: Path, encoder: sediment.Encoder, lexicon: sediment.Lexicon
) -> tuple[list[Store], int]:
    """A diary's stores, one after the other, and how many pairs there are to find."""
    notes = sorted(rows(folder / "memories.jsonl"), key=lambda row: row["created_at"])
    pairs = door_pairs({row["id"]: row for row in notes}, rows(folder / "queries.jsonl"))
    seen: list[sediment.Neighbour] = []
    stores = []
    for row in notes:
        vector, text = encoder.embed(row["content"]), row["content"]
        new = sediment.Neighbour(1.0, row["id"], text, vector, row["created_at"])
        if seen:
            vectors = sediment.stack_vectors([(one.vector,) for one in seen])
            cosines = vectors @ numpy.frombuffer(vector, "<f4")
            nearest = numpy.argsort(-cosines, kind="stable")[: sediment.DOOR_RIVALS]
            rivals = [seen[at] for at in nearest]
            features = sediment.door_features(new, rivals, lexicon)
            obsolete = numpy.array([(row["id"], one.id) in pairs for one in rivals])
            stores.append(Store(folder.name, features, obsolete))
        seen.append(new)
    return stores, len(pairs)


def door_scale(stores: list[Store]) -> dict[str, list[float]]:
    names = stores[0].features
    every = {name: numpy.concatenate([one.features[name] for one in stores]) for name in names}
    return {name: [float(each.mean()), float(each.std() + 1e-9)] for name, each in every.items()}


def door_matrix(stores: list[Store], scale: dict[str, list[float]]) -> tuple[list[str], Any]:
    columns = [sediment.door_columns(one.features, scale) for one in stores]
    names = list(columns[0])
    return names, numpy.concatenate([numpy.stack([*one.values()], 1) for one in columns])


def door_learn(stores: list[Store]) -> Row:
    """A logistic model by Newton's method."""
    scale = door_scale(stores)
    names, facts = door_matrix(stores, scale)
    facts = numpy.append(facts, numpy.ones((len(facts), 1)), 1)
    right = numpy.concatenate([one.obsolete for one in stores]).astype(float)
    pull = numpy.diag([PULL] * len(names) + [0.0])
    weights = numpy.zeros(len(names) + 1)
    for _ in range(30):
        likely = 1 / (1 + numpy.exp(-facts @ weights))
        steep = (facts * (likely * (1 - likely))[:, None]).T @ facts + pull
        step = numpy.linalg.solve(steep, facts.T @ (right - likely) - pull @ weights)
        weights += step
        if abs(step).max() < 1e-6:
            break
    named = dict(zip(names, map(float, weights), strict=False))
    return {"scale": scale, "weights": named, "bias": float(weights[-1])}


def door_shown(stores: list[Store], model: Row) -> list[tuple[float, bool]]:
    """The likeliest rivals of each store, as many as may be shown: how likely, and whether so."""
    shown = []
    for one in stores:
        names, facts = door_matrix([one], model["scale"])
        odds = facts @ numpy.array([model["weights"][name] for name in names]) + model["bias"]
        first = numpy.argsort(-odds, kind="stable")[: sediment.DOOR_SHOWN]
        chances = 1 / (1 + numpy.exp(-odds))
        shown += [(float(chances[at]), bool(one.obsolete[at])) for at in first]
    return shown


def door_judged(stores: list[Store]) -> list[tuple[float, bool]]:
    """What is shown, each diary by a model that has not learned from it."""
    shown = []
    for name in sorted({one.diary for one in stores}):
        model = door_learn([one for one in stores if one.diary != name])
        shown += door_shown([one for one in stores if one.diary == name], model)
    return sorted(shown, reverse=True)


def door_report(shown: list[tuple[float, bool]], stores: int, pairs: int) -> None:
    for rate in (0.5, 0.75, 1.0, 1.25, PROPOSALS, 2.0):
        taken = shown[: int(rate * stores)]
        found = sum(right for _, right in taken) / pairs
        print(f"{rate:.2f} proposals a store: {found:.1%} found, from {taken[-1][0]:.3f} on")


def door_learned(found: list[tuple[list[Store], int]]) -> Row:
    """The weights and the threshold; prints what they reach."""
    stores = [one for some, _ in found for one in some]
    shown = door_judged(stores)
    door_report(shown, len(stores), sum(pairs for _, pairs in found))
    threshold = shown[int(PROPOSALS * len(stores))][0]
    return rounded(door_learn(stores) | {"threshold": threshold})


def main() -> None:
    encoders = untaught_encoders()
    lexicon = sediment.lexicon_of(encoders[0])  # all folds have one vocabulary
    folders = sorted(path for path in DIARIES.iterdir() if path.is_dir())
    found = [door_stores(folder, encoders[fold_of(folder.name)], lexicon) for folder in folders]
    kept = json.loads(OUTPUT.read_text("utf-8")) if OUTPUT.exists() else {}
    learned = kept | {"door": door_learned(found)}
    OUTPUT.write_text(json.dumps(learned, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

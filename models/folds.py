"""The diaries, conversations, rivals, beginnings and readings in `tests/` that the models learn
from, and which are left out together, so that nothing is judged, or taught the next model, by what
has seen it."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIARIES, CONVERSATIONS = ROOT / "tests" / "diaries", ROOT / "tests" / "conversations"
READINGS, RIVALS = ROOT / "tests" / "readings", ROOT / "tests" / "rivals"
BEGINNINGS = ROOT / "tests" / "beginnings"
THINGS, ASPECTS = ROOT / "tests" / "things", ROOT / "tests" / "aspects"
SEQUENCES = ROOT / "tests" / "sequences"
JUDGES = {"colleagues", "libraries", "workshops", "trades"}  # of those, which teach nothing
PROGRAM = (  # what makes the features
    *(ROOT / "sediment.py", ROOT / "assets" / "function_words.json"),
    *(ROOT / "sediment_ext" / "structure.py", ROOT / "sediment_ext" / "markdown.py"),
)
COHORT = 256  # memories beside which a query's nearness is seen; 500 or 1,000 show no more
FOLDS = 3  # of what the ranker learns from: each is judged by what was learned from the two others

Row = dict[str, Any]


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def folders() -> dict[str, Path]:
    """What something learns from: the diaries, in which facts change, the conversations, in which
    nothing is obsolete, the rivals, of which some are versions and others only look so, the
    beginnings, which are small and of many languages, half of the things and aspects, and the
    sequences. Each third of them is left out together."""
    found = named(DIARIES, CONVERSATIONS, RIVALS, BEGINNINGS, THINGS, ASPECTS, SEQUENCES)
    return {name: path for name, path in found.items() if name not in JUDGES}


def ranker_folders() -> dict[str, Path]:
    """What the ranker learns from: small stores. The diaries and conversations, of which there are
    many times more questions, judge it."""
    places = RIVALS, BEGINNINGS, THINGS, ASPECTS, SEQUENCES
    return {name: path for name, path in folders().items() if path.parent in places}


def encoder_folders() -> dict[str, Path]:
    """What the encoder learns from: diaries, conversations, and the readings, sets of other kinds
    of text, which judge nothing."""
    return named(DIARIES, CONVERSATIONS, READINGS)


def named(*places: Path) -> dict[str, Path]:
    """The folders in each of these places, by their names."""
    found = [path for place in places for path in sorted(place.iterdir())]
    return {path.name: path for path in found if path.is_dir()}


def held_out(fold: int | None) -> set[str]:
    """The names of a fold; none of none."""
    return set() if fold is None else set(list(folders())[fold::FOLDS])


def fold_of(name: str) -> int:
    return list(folders()).index(name) % FOLDS


def texts(name: str) -> tuple[list[Row], list[Row]]:
    """The memories and the questions of a folder."""
    folder = named(DIARIES, CONVERSATIONS, RIVALS, BEGINNINGS, READINGS)[name]
    return rows(folder / "memories.jsonl"), rows(folder / "queries.jsonl")


def stores(folder: Path) -> list[tuple[list[Row], list[Row]]]:
    """The memories and the questions of each store of a folder, which are one where none is
    named."""
    every = rows(folder / "memories.jsonl"), rows(folder / "queries.jsonl")
    names = dict.fromkeys(row.get("store") for row in every[0])

    def of(store: str | None, part: list[Row]) -> list[Row]:
        found = [row for row in part if row.get("store") == store]
        return [{key: row[key] for key in row if key != "store"} for row in found]

    return [(of(name, every[0]), of(name, every[1])) for name in names]


def cohort(fold: int | None) -> list[str]:
    """Memories from all diaries but those of a fold, as many from each part of them."""
    out = held_out(fold)
    names = [name for name, path in folders().items() if path.parent == DIARIES and name not in out]
    found = [row["content"] for name in names for row in texts(name)[0]]
    return [found[at * len(found) // COHORT] for at in range(COHORT)]


def learned_from() -> str:
    """A mark of all that the encoder learns from, and so of which folders a fold leaves out."""
    data = hashlib.sha256()
    for name, folder in encoder_folders().items():
        for part in ("memories", "queries"):
            data.update(f"{name} {part}\0".encode() + (folder / f"{part}.jsonl").read_bytes())
    return data.hexdigest()[:16]


def made_from(sources: Iterable[Path]) -> str:
    """A mark of these files, and of all that is there to learn from."""
    data = hashlib.sha256(learned_from().encode())
    places = RIVALS, BEGINNINGS, THINGS, ASPECTS, SEQUENCES
    besides = (sorted(place.glob("*/*.jsonl")) for place in places)
    for source in (*itertools.chain(*besides), *sources):
        data.update(source.read_bytes())
    return data.hexdigest()[:16]

"""What the parts of `make bench-quality` share: stores, the rankings' answers, figures, tables."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import sqlite3
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from sediment import Encoder, Memory  # noqa: E402

DEPTH = 20  # results looked at for the mean reciprocal rank
POOL = 60  # those that the simple hybrid orders
Row = dict[str, Any]
ANSWERS: list[Row] = []


class KeepingEncoder(Encoder):
    """An encoder that makes each vector once, for this run and the next ones."""

    def __init__(self, _: str) -> None:
        super().__init__()
        assert self.model  # now, as it is set
        file = ROOT / "build" / "quality" / "vectors.db"
        file.parent.mkdir(parents=True, exist_ok=True)
        self._kept = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._kept.execute("PRAGMA synchronous = OFF")
        self._kept.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB)")

    def embed(self, text: str) -> bytes:
        return self._once(text, b"", lambda: super(KeepingEncoder, self).embed(text))

    def embed_query(self, text: str, weights: Sequence[float]) -> bytes:
        told = b"query" + struct.pack(f"{len(weights)}d", *weights)
        make = super().embed_query
        return self._once(text, told, lambda: make(text, weights))

    def _once(self, text: str, told: bytes, make: Callable[[], bytes]) -> bytes:
        stated = b"\0".join([self.model.digest.encode(), text.encode(), told])
        key = hashlib.sha256(stated).digest()
        row = self._kept.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        if row is None:
            row = (make(),)
            self._kept.execute("INSERT OR IGNORE INTO vectors VALUES (?, ?)", (key, *row))
        return row[0]


encoder_of = functools.cache(KeepingEncoder)  # by the model that is set, "" for the bundled one


# Asking


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


@contextmanager
def stored(*sources: list[Row]) -> Iterator[Memory]:
    """A memory of these rows, in a file of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Memory(Path(folder) / "memory.db", project="bench") as memory,
    ):
        memory._encoder = encoder_of(os.environ.get("SEDIMENT_EMBEDDING_MODEL", ""))
        answer = memory.import_rows(itertools.chain(*sources))
        assert answer["success"], answer["refused"][:3]
        memory.embed_pending()
        yield memory


def recalled(
    memory: Memory, query: str, way: str, limit: int, as_of: int | None = None
) -> list[tuple[str, float]]:
    """What recall answers, best first: ids and similarities."""
    if way == "simple hybrid":
        return hybrid(memory, query, as_of)[:limit]
    found = results(memory, query, way, limit, as_of)
    return [(row["id"], float(row["similarity"])) for row in found]


def results(memory: Memory, query: str, way: str, limit: int, as_of: int | None) -> list[Row]:
    return memory.recall(query, limit=limit, ranking=way, record=False, as_of=as_of)["results"]


def hybrid(memory: Memory, query: str, as_of: int | None) -> list[tuple[str, float]]:
    """What anybody would try first: the cosine, and 0.3 times BM25 relative to the best. It takes
    both from what the candidates of the classic ranking explain, as its own order plays no part."""
    answer = memory.recall(
        query, limit=POOL, ranking="classic", anyway=True, explain=True, record=False, as_of=as_of
    )
    told = {row["id"]: row["parts"] for row in answer["results"]}
    best = max((row.get("bm25", 0.0) for row in told.values()), default=0.0) or 1.0
    scores = {
        id: row.get("cosine", 0.0) + 0.3 * row.get("bm25", 0.0) / best for id, row in told.items()
    }
    return sorted(scores.items(), key=lambda pair: -pair[1])


def asked(memory: Memory, query: str, way: str = "default", limit: int = DEPTH) -> list[str]:
    """The ids that recall answers with, best first."""
    return [id for id, _ in recalled(memory, query, way, limit)]


def answers(
    memory: Memory, name: str, queries: list[Row], way: str, limit: int = DEPTH
) -> list[Row]:
    """What a ranking answers to every query; kept for the file too."""
    found = []
    for query in queries:
        text, as_of = query["query"], query.get("as_of")
        if way == "simple hybrid":
            rows = [
                {"id": id, "similarity": one} for id, one in hybrid(memory, text, as_of)[:limit]
            ]
        else:
            rows = results(memory, text, way, limit, as_of)
        shown = [min(1.0, max(0.0, float(row["similarity"]))) for row in rows]
        told = {"set": name, "way": way, "similarity": shown[0] if shown else None}
        told |= {"answer": [row["id"] for row in rows], "similarities": shown}
        told["newer"] = {row["id"]: row["newer"]["id"] for row in rows if "newer" in row}
        found.append(query | told)
    ANSWERS.extend(found)
    return found


# Figures, in per cent


def share(of: Sequence[float]) -> float:
    """How many of them are true, or the mean of what they count."""
    return 100 * sum(of) / len(of) if of else 0.0


def position(answer: list[str], expected: list[str]) -> int | None:
    """The place of the first right answer, from 1."""
    return next((place for place, id in enumerate(answer, 1) if id in expected), None)


def is_right(row: Row) -> bool:
    return row["answer"][:1] != [] and row["answer"][0] in row["expected"]


def is_outdated(row: Row) -> bool:
    """Whether an outdated note stands before the first right one, or alone."""
    place = position(row["answer"], row["expected"])
    return any(id in row["stale"] for id in row["answer"][: place and place - 1])


def is_marked(row: Row) -> bool:
    """Whether the newest note on a changed fact is among the first three, and each outdated one
    before it names it, or one that does."""
    place = position(row["answer"][:3], row["expected"])
    before = row["answer"][: place - 1] if place else []

    def leads(id: str | None, steps: int = 3) -> bool:
        return id in row["expected"] or bool(
            id and steps and leads(row["newer"].get(id), steps - 1)
        )

    return place is not None and all(leads(id) for id in before if id in row["stale"])


def is_buried(row: Row) -> bool | None:
    """Whether the right note is shown with less than a quarter of the first one's similarity; None
    where it is not shown."""
    place = position(row["answer"], row["expected"])
    return row["similarities"][place - 1] < row["similarities"][0] / 4 if place else None


def figures(answers: list[Row]) -> list[float]:
    """R@1, R@5 and the mean reciprocal rank."""
    places = [position(row["answer"], row["expected"]) for row in answers]
    ranks = [1 / place if place else 0.0 for place in places]
    return [share([rank >= least for rank in ranks]) for least in (1, 1 / 5)] + [share(ranks)]


def joined(*cells: float) -> str:
    return " / ".join(f"{cell:.1f}" for cell in cells)


def table(meaning: str | None, *titles: str) -> Callable[..., None]:
    """Print a line of meaning and the head of a table; returns what prints a row."""

    def show(*cells: object) -> None:
        told = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print("| " + " | ".join(told) + " |", flush=True)

    if meaning:
        print(f"\n{meaning}\n")
    show(*titles)
    show(*("---" for _ in titles))
    return show

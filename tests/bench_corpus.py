"""What tests/bench.py measures with: memories, questions about them, and rows to fill a file.

Everything follows from a seed. A memory is one or two sentences of 60 to 250 characters, put
together from patterns; their nouns are drawn from 4,000 words of the encoder's vocabulary, which
is ordered by frequency, with the frequencies of English (Zipf). Filler rows have a text likewise
and the vector of a real memory with noise, so that a file of 100,000 takes seconds, not minutes.
"""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from sediment import Chunk, Item, Memory, insert_item

SHORTEST, LONGEST = 60, 250  # characters of a memory
BATCH = 5_000  # rows a transaction
NOISE = 1.0  # as long as the vector itself: a cosine of 0.7 to the memory it is made from
FIRST_DAY, DAYS = 1_700_000_000, 600  # when memories were made
PROJECT, OTHER = "bench", "elsewhere"

# What memories say, and what is asked about them later.
FACTS = (
    ("The {thing} listens on port {port} in {place}", "which port does the {thing} use?"),
    ("{person} moved the {thing} from {tool} to {tool2} on {date}", "who moved the {thing}?"),
    ("We decided on {date} to keep {noun} {noun2} data in {tool}", "where is {noun} {noun2} data?"),
    ("The {thing} needs {tool} {version} or later", "{tool} version for the {thing}"),
    ("{person} prefers {tool} over {tool2} for {noun} reports", "what does {person} prefer?"),
    ("Never restart the {thing} while the {noun} {noun2} is running", "restart the {thing} safely"),
    ("The {noun} {noun2} limit is {number} requests a minute", "limit of {noun} {noun2}"),
    ("Timeout of the {thing} raised to {number} ms by {person}", "timeout of the {thing}"),
    ("Backups of {noun} {noun2} go to {place} every night at {hour}", "backup of {noun} {noun2}"),
    ("{person} owns the {thing}; {person2} is the deputy", "who is responsible for the {thing}?"),
    ("Fixed: {noun} {noun2} failed with error {port} behind {tool}", "error {port} in {tool}"),
    ("Customers in {place} see {noun} {noun2} first, from {date}", "when does {place} see {noun}?"),
)
TAILS = (
    "because the {noun3} {noun4} kept failing",
    "after {person3} measured {count} MB in {place3}",
    "see ticket {ticket}",
    "{person4} will review the {noun5} part on {date3}",
    "until {noun6} and {noun7} are separate",
    "as agreed with {person5} in week {week}",
    "which the {noun8} {role} depends on",
    "not for the {noun9} of {place4}",
)
LISTS = {
    "first": "Ana Bo Chen Dara Emil Farah Gita Hugo Ines Jonas Kofi Lena Mara Nils Olu Priya Rosa "
    "Sami Tove Uma Viktor Wanda Yara Zoe",
    "last": "Adler Berg Costa Diaz Evans Fischer Gupta Haddad Ito Jansen Kim Lopez Moreau Novak "
    "Okafor Park Quinn Rossi Silva Tanaka Usman Vogel Weber Young",
    "role": "service worker gateway job queue dashboard API importer scheduler cache index proxy",
    "place": "Frankfurt Dublin Oslo Osaka Lima Nairobi Toronto Sydney staging production",
    "tool": "PostgreSQL Redis Kafka nginx S3 SQLite Terraform Grafana RabbitMQ Docker Kubernetes "
    "Elasticsearch MySQL Vault Prometheus Consul",
    "month": "January March April June July September October December",
}
WORDS = {name: words.split() for name, words in LISTS.items()}


class Memo(NamedTuple):
    """A text and a question that it answers."""

    text: str
    question: str


class Corpus:
    """Memories without end, the same for the same seed."""

    def __init__(self, tokenizer: Path, seed: int) -> None:
        vocabulary = json.loads(tokenizer.read_text("utf-8"))["model"]["vocab"]
        plain = [word for word in vocabulary if len(word) > 3 and word.isascii() and word.isalpha()]
        self._nouns = plain[300:4_300]  # the first are "with" and "that"
        self._shares = list(itertools.accumulate(1 / (rank + 3) for rank in range(4_000)))
        self._random = random.Random(seed)

    def memos(self, count: int) -> list[Memo]:
        """The next memories."""
        return [self._memo() for _ in range(count)]

    def texts(self, count: int) -> list[str]:
        """The same without questions."""
        return [memo.text for memo in self.memos(count)]

    def _memo(self) -> Memo:
        slots, wanted = _Slots(self), self._random.randint(SHORTEST, LONGEST)
        fact, question = self._random.choice(FACTS)
        text = fact.format_map(slots)
        for tail in self._random.sample(TAILS, len(TAILS)):
            if len(text) >= wanted:
                break
            text += ", " + tail.format_map(slots)
        return Memo(text[: LONGEST - 1] + ".", question.format_map(slots))

    def draw(self, name: str) -> str:
        """A word (or name, number, date) of this kind."""
        choice, number = self._random.choice, self._random.randrange
        match name:
            case "noun":
                return self._random.choices(self._nouns, cum_weights=self._shares)[0]
            case "thing":
                return f"{self.draw('noun')} {choice(WORDS['role'])}"
            case "person":
                return f"{choice(WORDS['first'])} {choice(WORDS['last'])}"
            case "date":
                return f"{number(1, 29)} {choice(WORDS['month'])}"
            case "hour":
                return f"{number(24):02}:{number(60):02}"
            case "version":
                return f"{number(1, 20)}.{number(30)}"
            case "ticket":
                return f"{choice('ABCDEFG')}{choice('ABCDEFG')}-{number(100_000)}"
            case "port" | "number" | "count" | "week":
                return str(number(1, {"week": 53, "port": 65_536}.get(name, 5_000)))
        return choice(WORDS[name])


class _Slots(dict[str, str]):
    """A pattern's blanks, each filled when it is first met; "noun2" is another noun."""

    def __init__(self, corpus: Corpus) -> None:
        super().__init__()
        self._corpus = corpus

    def __missing__(self, name: str) -> str:
        return self.setdefault(name, self._corpus.draw(name.rstrip("0123456789")))


def rows(texts: list[str], seed: int) -> list[dict[str, Any]]:
    """Texts as import takes them: of two projects and global, over a time."""
    rng = random.Random(seed)
    return [
        {
            "id": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            "content": text,
            "created_at": FIRST_DAY + rng.randrange(DAYS * 86_400),
        }
        | rng.choices(
            [{"project": PROJECT}, {"project": OTHER}, {"scope": "global"}], weights=[8, 1, 1]
        )[0]
        for text in texts
    ]


def fill(memory: Memory, texts: list[str], parents: Any, seed: int) -> None:
    """Write memories past the encoder, with all that hangs on them."""
    noise = numpy.random.default_rng(seed)
    for first in range(0, len(texts), BATCH):
        batch = rows(texts[first : first + BATCH], seed + first)
        items = list(map(_item, batch, _vectors(noise, parents, len(batch))))
        with memory.database.transaction() as connection:
            for item in items:
                insert_item(connection, item)


def _vectors(noise: numpy.random.Generator, parents: Any, count: int) -> Iterator[bytes]:
    """New unit vectors around those of real memories."""
    chosen = parents[noise.integers(0, len(parents), count)]
    shift = noise.standard_normal(chosen.shape, numpy.float32) / numpy.sqrt(chosen.shape[1])
    vectors = chosen + NOISE * shift
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    return (vector.astype("<f4").tobytes() for vector in vectors)


def _item(row: dict[str, Any], vector: bytes) -> Item:
    text, chunk = row["content"], Chunk(0, len(row["content"]), "")
    return Item(row["id"], text, "prose", row.get("project"), row["created_at"], [chunk], [vector])


def stored_vectors(memory: Memory) -> tuple[list[str], Any]:
    """All live items' ids, and the matrix of their vectors, straight from the file."""
    found = memory.database.rows(
        "SELECT i.id, v.vector FROM items i JOIN chunks c ON c.item = i.seq"
        " JOIN vectors v ON v.chunk = c.id WHERE i.ended_at IS NULL"
    )
    ids, vectors = zip(*found, strict=True)
    return list(ids), numpy.frombuffer(b"".join(vectors), "<f4").reshape(len(ids), -1)

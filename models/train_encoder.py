"""Teach the encoder what `models/lessons/` holds, from the diaries, conversations and readings in
`tests/`: `make encoder`.

The published model was trained on pairs of web text. What it is asked here are questions about
short notes, and its nearest note is too often one that merely sounds like the question. So its
last layers are taught, by the likelihood of the right notes among those that it takes for near,
with two thin matrices beside each of theirs (LoRA, Hu et al. 2021); what it says of a text is
held near to what it said before. Notes that are outdated are neither right nor wrong here: that
they are, the ranker knows by their time.

`whole.safetensors` is learned from all of them, and build_model.py adds it to the model. Each of
the others leaves a part of the folders out, for those who train or judge on what the encoder has
not seen (train_ranker.py, tests/bench_quality.py).

    python models/train_encoder.py                        write models/lessons
"""

from __future__ import annotations

import hashlib
import pickle
import random
import statistics
import sys
import tempfile
from collections.abc import Container, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import build_model
import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy
from folds import FOLDS, ROOT, Row, encoder_folders, held_out, learned_from, texts

sys.path.append(str(ROOT))

from sediment import embedding_text, split_text

LESSONS = build_model.LESSONS
CACHE = build_model.SCRATCH / "ranker"
TAUGHT = range(3, build_model.LAYERS)  # layers that learn; those below stay
RANK = 8  # columns of a thin matrix: 330 kB for three layers
STEPS, RATE, WARM = 900, 0.001, 18  # of Adam, its greatest rate, and steps until it is reached
SHARPNESS = 20  # of cosines, as sentence-transformers trains with
NEAR = 0.3  # how much it counts that a vector stays where it was
# How much of what was learned is kept: what lies between two models is often better than either on
# what neither has seen (Wortsman et al. 2022). Of all / 0.6 / nothing, and of this:
# see docs/ranking.md, as of STEPS.
KEPT = 0.7
QUESTIONS, NOTES, HARD = 16, 40, 8  # of a step; and how many of the nearest notes of each question
QUESTION_TOKENS = 40  # what is read of each while learning: all of nearly every one
NOTE_TOKENS = 64, 128  # so much of a step's notes; the second where their median is longer
DENSE = (
    *(f"attention.self.{part}" for part in build_model.JOINED.split(",")),
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)

Tree = dict[str, Any]  # name -> array, or arrays


class Store(NamedTuple):
    """A folder as the layers that stay see it: for each text float16[tokens, 384], and the vector
    that the untaught model gives it. A long memory is as many notes as it has chunks."""

    notes: list[Any]
    note_vectors: Any  # float32[n, 384]
    questions: list[Any]  # those with an answer
    question_vectors: Any
    right: list[set[int]]  # of each question, the notes that answer
    stale: list[set[int]]  # and those that are outdated


# What the layers below give


def untaught_session(folder: Path) -> Any:
    """The published model, with what goes into the first layer that learns as an output."""
    import onnx
    import onnxruntime

    build_model.write_model(build_model.read_manifest(), None, folder)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    state = onnx.helper.make_tensor_value_info(f"x{TAUGHT[0]}", 1, ["tokens", 384])
    model.graph.output.append(state)
    onnx.save(model, folder / "model.onnx")
    return onnxruntime.InferenceSession(folder / "model.onnx")


def read_texts(session: Any, tokenizer: Any, found: list[str]) -> tuple[list[Any], Any]:
    """The states and the vectors of texts."""
    states, vectors = [], []
    for encoding in tokenizer.encode_batch(found):
        ids = numpy.array(encoding.ids, numpy.int64)
        vector, state = session.run(["embedding", f"x{TAUGHT[0]}"], {"ids": ids})
        vectors.append(vector)
        states.append(state[: NOTE_TOKENS[-1]].astype(numpy.float16))
    return states, numpy.array(vectors)


def read_stores() -> dict[str, Store]:
    """All folders; kept for the next run on the same texts."""
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    kept = CACHE / f"states-{source}-{learned_from()}.pickle"
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        session = untaught_session(Path(folder))
        tokenizer = open_tokenizer(Path(folder) / "tokenizer.json")
        read = partial(read_texts, session, tokenizer)
        found = {name: read_store(*texts(name), read) for name in encoder_folders()}
    CACHE.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(found))
    return found


def read_store(memories: list[Row], questions: list[Row], read: Any) -> Store:
    notes = [(row["id"], text) for row in memories for text in chunks(row["content"])]
    asked = [row for row in questions if row["expected"]]
    note_states, note_vectors = read([text for _, text in notes])
    states, vectors = read([row["query"] for row in asked])

    def places(ids: Container[str]) -> set[int]:
        return {at for at, (id, _) in enumerate(notes) if id in ids}

    return Store(
        note_states,
        note_vectors,
        states,
        vectors,
        [places(row["expected"]) for row in asked],
        [places(row.get("stale", ())) for row in asked],
    )


def chunks(text: str) -> list[str]:
    """Its chunks as the program cuts them, with what they stand under."""
    cut = split_text(text, lambda _: True)  # what is too long for the window is not read anyway
    return [embedding_text(text, chunk) for chunk in cut]


def open_tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(build_model.read_manifest()["max_tokens"])
    return tokenizer


# The layers that learn, as jax sees them: the same as in build_model.py, for many texts at once


def checkpoint() -> Tree:
    """The published weights of the layers that learn."""
    data = build_model.read_source(build_model.read_manifest()["source"])["model.safetensors"]
    own = tuple(f"encoder.layer.{layer}." for layer in TAUGHT)
    names = [name for name in build_model.read_header(data)[1] if name.startswith(own)]
    return {name: build_model.read_tensor(data, name) for name in names}


def dense(x: Any, weights: Tree, lessons: Tree, name: str) -> Any:
    lesson = lessons[name]
    plain = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return plain + (x @ lesson["down"].T) @ lesson["up"].T


def norm(x: Any, weights: Tree, name: str) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def attended(x: Any, mask: Any, weights: Tree, lessons: Tree, name: str) -> Any:
    count, tokens, width = x.shape
    heads = (count, tokens, build_model.HEADS, width // build_model.HEADS)
    query, key, value = (
        dense(x, weights, lessons, f"{name}.{part}").reshape(heads).transpose(0, 2, 1, 3)
        for part in DENSE[:3]
    )
    scores = query @ key.swapaxes(-1, -2) / heads[-1] ** 0.5
    seen = jax.nn.softmax(scores - 1e9 * (1 - mask)[:, None, None, :], -1) @ value
    return seen.transpose(0, 2, 1, 3).reshape(x.shape)


def vectors(x: Any, mask: Any, weights: Tree, lessons: Tree) -> Any:
    """float32[texts, 384] of float32[texts, tokens, 384] and a mask of their tokens."""
    for layer in TAUGHT:
        name = f"encoder.layer.{layer}"
        seen = attended(x, mask, weights, lessons, name)
        x = x + dense(seen, weights, lessons, f"{name}.{DENSE[3]}")
        x = norm(x, weights, f"{name}.attention.output.LayerNorm")
        wide = jax.nn.gelu(dense(x, weights, lessons, f"{name}.{DENSE[4]}"), approximate=False)
        x = x + dense(wide, weights, lessons, f"{name}.{DENSE[5]}")
        x = norm(x, weights, f"{name}.output.LayerNorm")
    pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)


# Learning


class Batch(NamedTuple):
    """Some questions to a folder and some of its notes."""

    questions: Any  # float32[q, tokens, 384]
    question_mask: Any
    notes: Any
    note_mask: Any
    right: Any  # bool[q, n]
    stale: Any
    question_vectors: Any  # float32[q, 384], of the untaught model
    note_vectors: Any


def loss(lessons: Tree, weights: Tree, batch: Batch) -> Any:
    """How unlikely the right notes are among those of the batch that are not outdated, and how far
    the vectors have gone from where they were."""
    asked = vectors(batch.questions, batch.question_mask, weights, lessons)
    notes = vectors(batch.notes, batch.note_mask, weights, lessons)
    scores = jnp.where(batch.stale, -1e9, SHARPNESS * asked @ notes.T)
    right = jax.nn.logsumexp(jnp.where(batch.right, scores, -1e9), 1)
    moved = 2 - sum(
        (new * old).sum(-1).mean()
        for new, old in ((asked, batch.question_vectors), (notes, batch.note_vectors))
    )
    return (jax.nn.logsumexp(scores, 1) - right).mean() + NEAR * moved


def padded(states: list[Any], tokens: int) -> tuple[Any, Any]:
    found = numpy.zeros((len(states), tokens, states[0].shape[1]), numpy.float32)
    mask = numpy.zeros((len(states), tokens), numpy.float32)
    for row, state in enumerate(states):
        found[row, : len(state)] = state[:tokens]
        mask[row, : len(state)] = 1
    return found, mask


def batch_of(store: Store, asked: list[int], chance: random.Random) -> Batch:
    """Questions, a right note of each, those that the untaught model takes for near, and others."""
    nearest = numpy.argsort(-store.question_vectors[asked] @ store.note_vectors.T)[:, :HARD]
    right = [chance.choice(sorted(store.right[at])) for at in asked]
    others = chance.sample(range(len(store.notes)), NOTES)
    chosen = list(dict.fromkeys([*right, *nearest.T.ravel().tolist(), *others]))[:NOTES]
    notes = [store.notes[at] for at in chosen]
    short, long = NOTE_TOKENS
    return Batch(
        *padded([store.questions[at] for at in asked], QUESTION_TOKENS),
        *padded(notes, long if statistics.median(map(len, notes)) > short else short),
        numpy.array([[note in store.right[at] for note in chosen] for at in asked]),
        numpy.array([[note in store.stale[at] for note in chosen] for at in asked]),
        store.question_vectors[asked],
        store.note_vectors[chosen],
    )


def batches(stores: list[Store], chance: random.Random) -> Iterator[Batch]:
    """All questions in random order, again and again, those of a batch from one folder."""
    while True:
        parts = []
        for store in stores:
            asked = chance.sample(range(len(store.right)), len(store.right))
            groups = range(0, len(asked) - QUESTIONS + 1, QUESTIONS)
            parts += [(store, asked[at : at + QUESTIONS]) for at in groups]
        for store, asked in chance.sample(parts, len(parts)):
            yield batch_of(store, asked, chance)


def first_lessons(weights: Tree) -> Tree:
    """Thin matrices that change nothing yet."""
    chance, found = numpy.random.default_rng(1), {}
    for layer in TAUGHT:
        for part in DENSE:
            name = f"encoder.layer.{layer}.{part}"
            out, width = weights[f"{name}.weight"].shape
            down = chance.normal(0, width**-0.5, (RANK, width)).astype(numpy.float32)
            found[name] = {"down": down, "up": numpy.zeros((out, RANK), numpy.float32)}
    return found


def learn(stores: list[Store]) -> Tree:
    """The lessons of the least loss, by Adam."""
    weights = checkpoint()
    lessons = first_lessons(weights)
    speed = size = jax.tree.map(numpy.zeros_like, lessons)
    slope = jax.jit(jax.grad(loss))
    given = batches(stores, random.Random(5))

    @jax.jit
    def moved(lessons: Tree, speed: Tree, size: Tree, down: Tree, step: Any, rate: Any) -> Any:
        speed = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, speed, down)
        size = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new**2, size, down)
        rate = rate * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
        change = jax.tree.map(lambda v, s: rate * v / (s**0.5 + 1e-8), speed, size)
        return jax.tree.map(lambda at, by: at - by, lessons, change), speed, size

    for step in range(1, STEPS + 1):
        down = slope(lessons, weights, next(given))
        lessons, speed, size = moved(lessons, speed, size, down, step, rate_at(step))
    return lessons


def rate_at(step: int) -> float:
    """Rising at first, then falling to nothing as half a cosine does."""
    if step <= WARM:
        return RATE * step / WARM
    return RATE * (1 + numpy.cos(numpy.pi * (step - WARM) / (STEPS - WARM))) / 2


def write_lessons(lessons: Tree, path: Path) -> None:
    """A file of what was learned, and from what."""
    kept = {"down": 1.0, "up": KEPT}
    named = {
        f"{name}.{part}": (kept[part] * numpy.asarray(values)).astype("<f2")
        for name, parts in sorted(lessons.items())
        for part, values in sorted(parts.items())
    }
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(build_model.written_tensors(named, {"learned_from": learned_from()}))


def main() -> None:
    stores = read_stores()
    for fold in (*range(FOLDS), None):
        out = held_out(fold)
        lessons = learn([store for name, store in stores.items() if name not in out])
        write_lessons(lessons, build_model.lessons_path(fold))
        print(build_model.lessons_path(fold), flush=True)


if __name__ == "__main__":
    sys.exit(main())

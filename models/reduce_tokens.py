"""Find the axes along which the tokens differ most: `models/lessons/tokens.safetensors`.

Recall compares texts word by word, too, by the vectors that the checkpoint gives its tokens before
they have seen one another. Along 64 principal axes they tell as much as with all their 384 numbers
(docs/ranking.md). Nothing is learned from any text of ours, so every fold has the same axes; and
no two machines find them the same to the last digit, so they are kept, and `build_model.py` turns
the tokens to them.

    python models/reduce_tokens.py           before build_model.py
"""

from __future__ import annotations

import build_model
import numpy


def unit(rows: numpy.ndarray) -> numpy.ndarray:
    return rows / numpy.linalg.norm(rows, axis=1, keepdims=True)


def main() -> None:
    source = build_model.read_source(build_model.read_manifest()["source"])
    rows = build_model.read_tensor(source["model.safetensors"], build_model.EMBEDDINGS)
    mean = rows.mean(0, dtype=float).astype("<f2")
    centred = unit(rows - mean.astype(float))
    _, axes = numpy.linalg.eigh(centred.T @ centred)
    first = axes[:, ::-1][:, : build_model.TOKEN_DIMENSION].astype("<f2")
    named = {"mean": mean, "axes": first}
    build_model.TOKEN_AXES.write_bytes(build_model.written_tensors(named, {}))


if __name__ == "__main__":
    main()

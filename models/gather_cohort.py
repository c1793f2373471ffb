"""Give each of `models/lessons/` the vectors of a cohort, as the encoder that it makes has them.

A question that no memory answers is still near to some of them by chance, and how near depends on
the question: a vague one is near to everything. So what is near enough is decided beside a cohort
of memories that cannot answer it, other people's, as a voice is compared with a cohort of others
before it is taken for its owner's. That of a fold has nothing of the diaries that it leaves out.

    python models/gather_cohort.py           after train_encoder.py, before build_model.py
"""

from __future__ import annotations

import sys

import build_model
import numpy
from folds import FOLDS, cohort

sys.path.insert(0, str(build_model.HERE.parent))
from sediment import Encoder


def gather(fold: int | None) -> None:
    """Add the vectors to the lessons, in the place of those that are there."""
    path = build_model.lessons_path(fold)
    lessons = path.read_bytes()
    header = build_model.read_header(lessons)[1]
    about = header.pop("__metadata__")
    header.pop(build_model.COHORT, None)
    named = {name: build_model.read_tensor(lessons, name) for name in header}
    encoder = Encoder(build_model.model_of(build_model.written_tensors(named, about)))
    vectors = [numpy.frombuffer(encoder.embed(text), "<f4") for text in cohort(fold)]
    named[build_model.COHORT] = numpy.stack(vectors).astype("<f2")
    path.write_bytes(build_model.written_tensors(named, about))


def main() -> None:
    for fold in (*range(FOLDS), None):
        gather(fold)


if __name__ == "__main__":
    main()

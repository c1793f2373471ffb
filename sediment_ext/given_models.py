"""Use a model that the user brings: an ONNX graph and a tokenizer in a folder."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import sediment as core

CENTRES = "centres.f4"  # a file that `model add` makes
# Families of models whose vector is that of the first token, where no file tells.
FIRST_TOKEN = ("bge-", "gte-base-en", "gte-large-en", "mxbai-embed", "snowflake-arctic-embed")
# What these models were trained to find in front of a query, and of a passage.
_OF_BGE = ("Represent this sentence for searching relevant passages: ", "")
_E5 = ("e5-small", "e5-small-v2", "e5-base", "e5-base-v2", "e5-large", "e5-large-v2")
_MANY_LANGUAGES = ("multilingual-e5-small", "multilingual-e5-base", "multilingual-e5-large")
PREFIXES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("bge-small-en-v1.5", "bge-base-en-v1.5"), _OF_BGE),
    **dict.fromkeys((*_E5, *_MANY_LANGUAGES), ("query: ", "passage: ")),
}


class GivenModel(core.Model):
    """A model that the user brings, in the layout that sentence-transformers exports to ONNX."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.resolve().name
        graphs = [name for name in ("model.onnx", "onnx/model.onnx") if (folder / name).is_file()]
        if not graphs or not (folder / "tokenizer.json").is_file():
            raise core.ModelError(
                f"{folder} has no model.onnx or no tokenizer.json: copy them there"
            )
        self.graph = graphs[0]
        config = core.read_json(folder / "config.json")
        limits = core.read_json(folder / "sentence_bert_config.json")
        self.dimension = config.get("hidden_size", 0)
        window = limits.get("max_seq_length") or config.get("max_position_embeddings")
        self.max_tokens = window or 256
        if not isinstance(self.dimension, int) or self.dimension < 1:
            raise core.ModelError(
                f"{folder}/config.json does not say its hidden_size: copy it there"
            )
        if not isinstance(self.max_tokens, int) or self.max_tokens < 3:
            raise core.ModelError(
                f"{folder} has a max_seq_length that is none: {self.max_tokens!r}"
            )
        pooling = core.read_json(folder / "1_Pooling" / "config.json")
        self.by_first = bool(
            pooling.get("pooling_mode_cls_token", self.name.startswith(FIRST_TOKEN))
        )
        prompts = core.read_json(folder / "config_sentence_transformers.json").get("prompts")
        prompts = prompts if isinstance(prompts, dict) else {}
        query, passage = PREFIXES.get(self.name, ("", ""))
        self.query_prefix = str(prompts.get("query") or query)
        self.passage_prefix = str(prompts.get("passage") or prompts.get("document") or passage)
        # The weights of a large model stand beside the graph.
        names = self.graph, "tokenizer.json", f"{self.graph}_data", CENTRES
        self.files = {name: {} for name in names if (folder / name).is_file()}
        noted = self._noted(core.cache_dir() / "models.json", self._read_digest)
        self.digest = self._digest_as_used(noted)

    def check(self, full: bool = False) -> None:
        """No manifest says what these files must hold; `full` reads them all again."""
        if full and self._digest_as_used(self._read_digest()) != self.digest:
            raise core.ModelError(f"the files in {self.folder} have changed: run `reindex`")

    def run(self, session: Any, ids: Any) -> tuple[Any, Any]:
        """The same; the vector is the mean of the states, or the first one in models made so."""
        feeds = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
        inputs = {entry.name for entry in session.get_inputs()}
        rows = {name: values[None] for name, values in feeds.items() if name in inputs}
        states = session.run([session.get_outputs()[0].name], rows)[0][0]
        if states.shape != (len(ids), self.dimension):
            wanted = f"{len(ids)} states of {self.dimension} numbers, as its config tells"
            raise core.ModelError(
                f"{self.folder / self.graph} does not give {wanted}: {states.shape}"
            )
        mean = states[0] if self.by_first else states.mean(0)
        embedding = mean / core.numpy.linalg.norm(mean)
        return embedding, embedding[None].repeat(len(ids), 0) if self.by_first else states

    def finish(self, vector: Any, query: bool) -> Any:
        """Without what the vectors of all passages, or of all queries, have in common."""
        if self._centres is None:
            return vector
        away = vector - self._centres[int(query)]
        return away / max(float(core.numpy.linalg.norm(away)), 1e-6)

    @functools.cached_property
    def _centres(self) -> Any:
        """float32[2, dimension] of passages and queries, of a model that `model add` measured."""
        if CENTRES not in self.files:
            return None
        numbers = core.numpy.fromfile(self.folder / CENTRES, "<f4")
        if len(numbers) != 2 * self.dimension:
            raise core.ModelError(
                f"{self.folder / CENTRES} is damaged: `model add` the model again"
            )
        return numbers.reshape(2, -1)

    def _digest_as_used(self, digest: str) -> str:
        """The digest of the files, and of what else makes the vectors of passages."""
        uses = f"{self.by_first} {self.passage_prefix}"
        return digest if uses == "False " else core.sha256(f"{digest} {uses}".encode()).hex()

    def _read_digest(self) -> str:
        return core.sha256(
            b"".join(core.file_digest(self.folder / name) for name in self.files)
        ).hex()

    def _remedy(self) -> str:
        return "copy it there again"

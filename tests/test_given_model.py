"""A model that the user brings, in the layout of sentence-transformers."""

import json
from pathlib import Path

import numpy
import onnx
import onnx.compose
import onnx.helper
import pytest
from storage import consistent, shared_encoder

import sediment
from sediment import Encoder, Memory, ModelError

TEXTS = ["Tea is served at four.", "The gateway listens on port 18789.", "Mara is vegetarian."]


def export(folder: Path, cls: bool = False) -> Path:
    """The bundled model as others export theirs: a batch in, the states of its tokens out."""
    bundled = sediment.model_dir()
    folder.mkdir(parents=True)
    model = onnx.load(bundled / "model.onnx")
    inner = model.graph
    shape = inner.input[0].type.tensor_type
    del shape.shape.dim[:]
    for name in ("batch", "tokens"):
        shape.shape.dim.add(dim_param=name)
    inner.input[0].name = "input_ids"
    mask = onnx.helper.make_tensor_value_info("attention_mask", 7, ["batch", "tokens"])
    inner.input.append(mask)
    squeeze = onnx.helper.make_node("Squeeze", ["input_ids", "zero"], ["ids"])
    inner.node.insert(0, squeeze)
    inner.node.append(onnx.helper.make_node("Unsqueeze", ["states", "zero"], ["last_hidden_state"]))
    del inner.output[:]
    inner.output.append(onnx.helper.make_tensor_value_info("last_hidden_state", 1, None))
    onnx.save(model, folder / "model.onnx")
    (folder / "tokenizer.json").write_bytes((bundled / "tokenizer.json").read_bytes())
    (folder / "config.json").write_text('{"hidden_size": 384, "max_position_embeddings": 512}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": cls, "pooling_mode_mean_tokens": not cls}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("given")
    return {name: export(root / name, cls=name == "first") for name in ("mean", "first")}


@pytest.fixture
def choose(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEDIMENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", str(folders["first"]))


def cosine(one: bytes, other: bytes) -> float:
    return float(numpy.frombuffer(one, "<f4") @ numpy.frombuffer(other, "<f4"))


def test_the_same_weights_give_the_same_vectors(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", str(folders["mean"]))
    encoder = Encoder()
    for text in TEXTS:
        assert cosine(encoder.embed(text), shared_encoder().embed(text)) > 0.99999
        weights = [1.0 + (place % 3) for place in range(len(text))]
        mine, theirs = (one.embed_query(text, weights) for one in (encoder, shared_encoder()))
        assert cosine(mine, theirs) > 0.99999


@pytest.mark.usefixtures("choose")
def test_texts_are_compared_word_by_word_with_the_bundled_tokens() -> None:
    assert Encoder().model.by_token == ""
    said = ["The tea was bought.", "The gateway was opened."]
    near = sediment.lexicon_of(Encoder()).maxsim("purchase", said)
    assert near.tolist() == sediment.lexicon_of(shared_encoder()).maxsim("purchase", said).tolist()
    assert near[0] > near[1]


@pytest.mark.usefixtures("choose")
def test_of_a_model_that_finds_all_texts_alike_no_text_is_another_ones_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dates = ("2026-01-05", "2026-03-05", "2026-05-05")
    rows = [{"content": text, "created_at": date} for text, date in zip(TEXTS, dates, strict=True)]
    asked, words = "when is tea served?", []
    for name in (True, False):
        with Memory(tmp_path / f"{name}.db", project="demo") as memory:
            assert memory.import_rows(rows)["success"]
            first, *_ = memory.recall(asked, explain=True)["results"]
        assert (first["content"], "newer" in first) == (TEXTS[0], False)
        words.append(first["parts"]["words"])
        monkeypatch.delenv("SEDIMENT_EMBEDDING_MODEL", raising=False)
    assert words == [pytest.approx(sediment.OTHERS_WORDS * words[1]), pytest.approx(words[1])]


@pytest.mark.usefixtures("choose")
def test_a_model_made_so_is_pooled_by_its_first_token() -> None:
    encoder = Encoder()
    assert cosine(encoder.embed(TEXTS[0]), shared_encoder().embed(TEXTS[0])) < 0.95
    vector = encoder.embed_query(TEXTS[0], [1.0] * len(TEXTS[0]))
    assert cosine(vector, encoder.embed(TEXTS[0])) > 0.99999


@pytest.mark.usefixtures("choose")
def test_a_file_of_one_model_is_reindexed_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(tmp_path / "memory.db", project="demo") as memory:
        for text in TEXTS:
            memory.store(text)
        assert memory.stats()["model"] == "first"
    monkeypatch.delenv("SEDIMENT_EMBEDDING_MODEL")
    with Memory(tmp_path / "memory.db", project="demo") as memory:
        assert "another model" in memory.recall("when is tea?")["notice"]
        memory.store("Stored with neither.")
        assert memory.reindex()["items"] == 4
        answer = memory.recall("when is tea served?")
        assert "notice" not in answer
        assert answer["results"][0]["content"] == TEXTS[0]
        consistent(memory)


@pytest.mark.usefixtures("choose")
def test_what_the_old_model_stores_during_a_reindex_waits_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = "The late bus leaves at ten."
    with Memory(tmp_path / "memory.db", project="demo") as old:
        old.store(TEXTS[0])
        monkeypatch.delenv("SEDIMENT_EMBEDDING_MODEL")
        with Memory(tmp_path / "memory.db", project="demo") as memory:
            assert memory.reindex(lambda count: count and old.store(late))["items"] == 2
            assert memory.pending() == 1
            consistent(memory)
            assert memory.embed_pending() == 1
            assert memory.recall(late)["results"][0]["content"] == late
            consistent(memory)


@pytest.mark.usefixtures("choose")
def test_a_changed_file_is_another_model(folders: dict[str, Path]) -> None:
    before = Encoder().model.digest
    config = folders["first"] / "tokenizer.json"
    data = config.read_bytes()
    try:
        config.write_bytes(data + b"\n")
        assert Encoder().model.digest != before
    finally:
        config.write_bytes(data)
    assert Encoder().model.digest == before


def narrow(folder: Path, dimension: int, told: int) -> Path:
    """A model whose vectors are the first numbers of ours; its config tells how many there are."""
    export(folder)
    model = onnx.load(folder / "model.onnx")
    states = model.graph.node[-1].output[0]
    model.graph.node[-1].output[0] = "wide"
    for name, value in (("begin", 0), ("end", dimension), ("axis", 2)):
        model.graph.initializer.append(onnx.helper.make_tensor(name, 7, [1], [value]))
    cut = onnx.helper.make_node("Slice", ["wide", "begin", "end", "axis"], [states])
    model.graph.node.append(cut)
    onnx.save(model, folder / "model.onnx")
    (folder / "config.json").write_text(json.dumps({"hidden_size": told}))
    return folder


@pytest.mark.parametrize("dimension", [312, 100])
def test_a_model_may_have_any_dimension(
    dimension: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEDIMENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(
        "SEDIMENT_EMBEDDING_MODEL", str(narrow(tmp_path / "m", dimension, dimension))
    )
    with Memory(tmp_path / "memory.db", project="demo") as memory:  # a resident one
        for text in TEXTS:
            memory.store(text)
        for exact in (sediment.EXACT_ROWS, 0):  # by all vectors, then by their bits first
            monkeypatch.setattr(sediment, "EXACT_ROWS", exact)
            answer = memory.recall("when is tea served?")
            assert answer["results"][0]["content"] == TEXTS[0]
        consistent(memory)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("config.json", '{"hidden_size": "wide"}', "does not say its hidden_size"),
        ("config.json", '{"hidden_size": 200}', "200"),
        ("config.json", '{"hidden_size": -5}', "does not say its hidden_size"),
        ("sentence_bert_config.json", '{"max_seq_length": "long"}', "max_seq_length"),
        ("config_sentence_transformers.json", '{"prompts": ["query"]}', ""),
        ("model.onnx", "no graph", "model.onnx"),
        ("tokenizer.json", "{}", "tokenizer.json"),
    ],
)
def test_a_given_model_that_cannot_be_used_is_told(
    name: str, data: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEDIMENT_CACHE", str(tmp_path / "cache"))
    folder = export(tmp_path / "model")
    (folder / name).write_text(data)
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", str(folder))
    if not message:
        assert Encoder().embed(TEXTS[0])
        return
    with pytest.raises(ModelError, match=message):
        Encoder().embed(TEXTS[0])


def test_what_is_no_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, message in (
        ("nowhere", "neither a folder nor in"),
        (str(tmp_path), "no model.onnx or no tokenizer.json"),
    ):
        monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", name)
        with pytest.raises(ModelError, match=message):
            _ = Encoder().model
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", "all-minilm-l6-v2")
    assert Encoder().model.name == sediment.MODEL

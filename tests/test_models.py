"""Other embedding models, taken from folders and archives."""

import json
import os
import zipfile
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from test_given_model import export, narrow

import sediment
from sediment import InvalidInput, Memory, ModelError, NotFound
from sediment_ext import given_models, models


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model as others export theirs."""
    return export(tmp_path_factory.mktemp("made") / "tiny")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEDIMENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sediment, "models_folder", lambda: tmp_path / "models")
    return tmp_path / "models"


def archive(path: Path, model: Path, graph: str = "model.onnx") -> Path:
    """A model without its configs, as langchain4j packs it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.write(model / "model.onnx", graph)
        jar.write(model / "tokenizer.json", graph.replace(".onnx", "-tokenizer.json"))
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return path


def shell(*words: object) -> Result:
    return CliRunner().invoke(sediment.cli, [*map(str, words)])


def test_a_model_of_an_archive_is_added_used_and_removed(
    made: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = ("--db", tmp_path / "memory.db")
    jar = archive(tmp_path / "some-model.jar", narrowed(made, tmp_path), "e5-small-v2-q.onnx")
    assert "Added e5-small-v2 (384 dimensions" in shell("model", "add", jar).output
    assert [path.name for path in home.iterdir()] == ["e5-small-v2"]
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", "e5-small-v2")
    model = sediment.Encoder().model
    assert (model.query_prefix, model.passage_prefix) == ("query: ", "passage: ")
    assert not model.__dict__["by_first"]
    with Memory(tmp_path / "memory.db", project="demo") as memory:
        for text, _ in models.PAIRS:
            memory.store(text)
        for text, question in models.PAIRS:
            assert memory.recall(question)["results"][0]["content"] == text
    assert "in use, has the vectors" in shell(*db, "model").output.splitlines()[1]
    refused = shell(*db, "model", "remove", "e5-small-v2")
    assert (refused.exit_code, "run `reindex` first" in refused.output) == (1, True)
    monkeypatch.delenv("SEDIMENT_EMBEDDING_MODEL")
    with Memory(tmp_path / "memory.db", project="demo") as memory:
        memory.reindex()
    assert "Removed e5-small-v2" in shell(*db, "model", "remove", "e5-small-v2").output
    assert not [*home.iterdir()]
    listed = json.loads(shell(*db, "--json", "model", "list").output)
    assert [row["name"] for row in listed["models"]] == [sediment.MODEL]


def narrowed(made: Path, tmp_path: Path) -> Path:
    """The same model, whose graph tells its dimension as those of archives do."""
    folder = tmp_path / "told"
    folder.mkdir()
    graph = onnx.load(made / "model.onnx")
    del graph.graph.output[:]
    shape = ["batch", "tokens", 384]
    output = onnx.helper.make_tensor_value_info("last_hidden_state", 1, shape)
    graph.graph.output.append(output)
    onnx.save(graph, folder / "model.onnx")
    (folder / "tokenizer.json").write_bytes((made / "tokenizer.json").read_bytes())
    return folder


def test_a_folder_keeps_its_own_configs_and_takes_a_name(made: Path, home: Path) -> None:
    answer = models.add_model(made, "mine")
    assert (answer["name"], answer["dimension"]) == ("mine", 384)
    limits = json.loads((home / "mine" / "sentence_bert_config.json").read_text())
    assert limits == {"max_seq_length": 256}
    with pytest.raises(InvalidInput, match="mine is there already"):
        models.add_model(made, "mine")
    for name in ("../x", "a/b", "all-minilm-L6-v2", "", ".x"):
        with pytest.raises(InvalidInput, match="cannot be a model's name"):
            models.add_model(made, name or " ")
    assert [path.name for path in home.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("name", "pooled"), [("bge-small-en-v1.5", True), ("e5-small-v2", False), ("tiny", False)]
)
def test_pooling_and_prefixes_follow_from_the_name(
    made: Path, tmp_path: Path, name: str, pooled: bool
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for file in ("model.onnx", "tokenizer.json", "config.json"):
        os.link(made / file, folder / file)
    model = given_models.GivenModel(folder)
    assert model.by_first == pooled
    assert (model.query_prefix, model.passage_prefix) == given_models.PREFIXES.get(name, ("", ""))


def test_what_is_no_model_is_told_and_leaves_nothing(
    made: Path, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.jar").write_text("no archive")
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("a.onnx", "b.onnx"):
        (folder / name).write_text("")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.onnx").write_text("no graph")
    (broken / "tokenizer.json").write_bytes((made / "tokenizer.json").read_bytes())
    for name, message in (
        ("nowhere", "there is no"),
        ("empty", r"has no file \*.onnx"),
        ("text.jar", "is not a sound"),
        ("two", r"several models \(a.onnx"),
        ("broken", r"its model.onnx cannot be used"),
    ):
        with pytest.raises((InvalidInput, ModelError, NotFound), match=message):
            models.add_model(tmp_path / name)
    with pytest.raises(ModelError, match=r"does not give \d+ states of 200 numbers"):
        models.add_model(narrow(tmp_path / "narrow", 100, 200))
    assert not home.exists() or not [*home.iterdir()]


def test_an_archive_cannot_write_elsewhere_nor_fill_the_disk(
    made: Path, home: Path, tmp_path: Path
) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("model.onnx", bytes(2**24))
        file.writestr("tokenizer.json", "{}")
    with pytest.raises(InvalidInput, match="unpacks to more than 20 times"):
        models.add_model(bomb)
    out = archive(tmp_path / "out.zip", narrowed(made, tmp_path), "../../escaped.onnx")
    assert models.add_model(out)["name"] == "escaped"
    assert [path.name for path in home.iterdir()] == ["escaped"]
    assert not [*tmp_path.parent.rglob("escaped*.onnx")]


def test_a_model_that_is_not_there_is_refused_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", "e5-small-v2")
    with pytest.raises(ModelError, match="`model add PATH` takes one"):
        _ = sediment.Encoder().model
    with pytest.raises(ModelError, match="neither a folder"):
        raise ModelError(shell("stats").output)
    with pytest.raises(NotFound, match="there is no model x"), Memory("x.db") as memory:
        models.remove_model(memory, "x")

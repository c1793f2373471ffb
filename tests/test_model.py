"""The bundled model gives the reference vectors, and its recipe gives the pinned files."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import, or it takes no effect
import numpy
import onnxruntime
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "all-MiniLM-L6-v2"
MANIFEST = json.loads((ROOT / "models" / "manifest.json").read_text(encoding="utf-8"))
GOLDEN = json.loads((ROOT / "tests" / "golden" / "minilm_reference.json").read_text("utf-8"))


def session(optimised: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(
        MODEL / "model.onnx", options, providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("optimised", [False, True])
def test_vectors_equal_the_reference(optimised: bool) -> None:
    model = session(optimised)
    for row in GOLDEN:
        vector = numpy.asarray(model.run(None, {"ids": numpy.array(row["ids"])})[0])
        assert vector.shape == (MANIFEST["dimension"],)
        assert float(vector @ numpy.array(row["embedding"])) >= 0.99999, row["text"]
        assert abs(numpy.linalg.norm(vector) - 1) < 1e-5


def test_token_ids_equal_the_reference() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MANIFEST["max_tokens"])
    for row in GOLDEN:
        assert tokenizer.encode(row["text"]).ids == row["ids"], row["text"]


def test_files_are_the_pinned_ones() -> None:
    assert (MODEL / "manifest.json").read_bytes() == (ROOT / "models/manifest.json").read_bytes()
    assert "Apache" in (MODEL / "LICENSE").read_text(encoding="utf-8")
    for name, expected in MANIFEST["files"].items():
        data = (MODEL / name).read_bytes()
        assert len(data) == expected["bytes"]
        assert hashlib.sha256(data).hexdigest() == expected["sha256"]


def tree(folder: Path) -> Path:
    """The recipe in a tree of its own, that shares the fetched weights."""
    (folder / "models").mkdir()
    for name in ("build_model.py", "manifest.json"):
        shutil.copy(ROOT / "models" / name, folder / "models")
    weights = ROOT / "build" / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    (folder / "build").mkdir()
    (folder / "build" / "weights").symlink_to(weights)
    return folder / "models" / "build_model.py"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return tree(tmp_path)


def build(recipe: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(recipe)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe in a tree where it has been followed."""
    recipe = tree(tmp_path_factory.mktemp("built"))
    assert build(recipe).returncode == 0
    return recipe


def test_recipe_gives_the_pinned_files_and_repairs_them(built: Path) -> None:
    made = built.parent / "all-MiniLM-L6-v2"
    first = {file.name: file.read_bytes() for file in made.iterdir()}
    assert first == {file.name: file.read_bytes() for file in MODEL.iterdir()}
    (made / "weights.bin").write_bytes(b"damaged")
    assert build(built).returncode == 0
    assert (made / "weights.bin").read_bytes() == first["weights.bin"]


def test_recipe_skips_work_that_is_done(built: Path) -> None:
    before = (built.parent / "all-MiniLM-L6-v2").stat().st_ino
    assert build(built).returncode == 0
    assert (built.parent / "all-MiniLM-L6-v2").stat().st_ino == before


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("files", "model.onnx", "sha256"), "model.onnx: built differently"),
        (("source", "sha256"), "wrong sha256"),
    ],
)
def test_recipe_refuses_what_is_not_pinned(
    recipe: Path, place: tuple[str, ...], message: str
) -> None:
    manifest = json.loads(json.dumps(MANIFEST))
    entry = manifest
    for key in place[:-1]:
        entry = entry[key]
    entry[place[-1]] = "0" * 64
    recipe.with_name("manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    result = build(recipe)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (recipe.parent / "all-MiniLM-L6-v2").exists()

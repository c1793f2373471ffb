"""The bundled model is the published one with its lessons; its recipe gives the pinned files."""

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
sys.path.append(str(ROOT / "models"))
import build_model  # noqa: E402 # pyright: ignore[reportMissingImports]
import folds  # noqa: E402 # pyright: ignore[reportMissingImports]

import sediment  # noqa: E402

MODEL = ROOT / "models" / "all-MiniLM-L6-v2"
MANIFEST = json.loads((ROOT / "models" / "manifest.json").read_text(encoding="utf-8"))
GOLDEN = json.loads((ROOT / "tests" / "golden" / "minilm_reference.json").read_text("utf-8"))


def session(optimised: bool, folder: Path = MODEL) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )


def cosines(folder: Path, optimised: bool) -> list[float]:
    """How near a model's vectors are to those of the published one."""
    model, found = session(optimised, folder), []
    for row in GOLDEN:
        vector = numpy.asarray(model.run(None, {"ids": numpy.array(row["ids"])})[0])
        assert vector.shape == (MANIFEST["dimension"],)
        assert abs(numpy.linalg.norm(vector) - 1) < 1e-5
        found.append(float(vector @ numpy.array(row["embedding"])))
    return found


@pytest.mark.parametrize("optimised", [False, True])
def test_vectors_without_the_lessons_are_those_of_the_published_model(
    optimised: bool, tmp_path: Path
) -> None:
    build_model.write_model(MANIFEST, None, tmp_path)
    assert min(cosines(tmp_path, optimised)) >= 0.99999


def test_lessons_move_vectors_and_leave_their_meaning() -> None:
    found = cosines(MODEL, optimised=True)
    assert min(found) > 0.9
    assert sum(found) / len(found) < 0.995


def test_a_lesson_is_added_to_the_matrix_that_it_is_named_after() -> None:
    checkpoint = build_model.read_source(MANIFEST["source"])["model.safetensors"]
    lessons = build_model.lessons_path(None).read_bytes()
    taught = {name.rsplit(".", 1)[0] for name in build_model.read_header(lessons)[1]}
    for layer in range(build_model.LAYERS):
        name = f"encoder.layer.{layer}.attention.self.value"
        before = build_model.read_tensor(checkpoint, f"{name}.weight")
        after = build_model.taught_tensor(checkpoint, lessons, f"{name}.weight")
        moved = numpy.linalg.norm(after - before) / numpy.linalg.norm(before)
        assert (0.001 < moved < 0.5) if name in taught else moved == 0
        together = f"encoder.layer.{layer}.attention.self.{build_model.JOINED}.weight"
        joined = build_model.taught_tensor(checkpoint, lessons, together)
        assert numpy.array_equal(joined[-len(after) :], after)


@pytest.mark.parametrize("fold", [None, 0])
def test_the_cohort_is_of_the_memories_that_the_lessons_were_learned_from(fold: int | None) -> None:
    lessons = build_model.lessons_path(fold).read_bytes()
    vectors = build_model.read_tensor(lessons, build_model.COHORT)
    encoder = sediment.Encoder(MODEL if fold is None else build_model.model_without(fold))
    for at, text in [*enumerate(folds.cohort(fold))][::50]:
        vector = encoder.embed(text)
        assert encoder.near_cohort(vector) > 0.999
        assert vectors[at].astype("<f4") @ numpy.frombuffer(vector, "<f4") > 0.999


def test_tokens_keep_what_is_near_on_fewer_axes() -> None:
    checkpoint = build_model.read_source(MANIFEST["source"])["model.safetensors"]
    whole = build_model.read_tensor(checkpoint, build_model.EMBEDDINGS)
    few = build_model.token_vectors(checkpoint).astype(float) / 127
    lengths = numpy.linalg.norm(few, axis=1)
    assert lengths[0] == 0
    assert numpy.abs(lengths[1:] - 1).max() < 0.02
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for word, close, other in (("truck", "vehicle", "piano"), ("buy", "purchase", "sleep")):
        one, near, far = map(tokenizer.token_to_id, (word, close, other))
        centred = whole - whole.mean(0)
        centred /= numpy.linalg.norm(centred, axis=1, keepdims=True)
        assert few[one] @ few[near] > centred[one] @ centred[near] > 0.4
        assert few[one] @ few[far] < 0.1


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
    shutil.copytree(ROOT / "models" / "lessons", folder / "models" / "lessons")
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

"""Build the bundled embedding model, `models/all-MiniLM-L6-v2/`, from its published weights.

The weights come from a pinned PyPI wheel. The graph is written below as ONNX text: one text at a
time, so no batch, no padding and no mask; mean pooling and L2 normalisation are part of the graph.
The states of the tokens are a second output, for a query that is pooled by what its words tell.
The result is the same byte for byte wherever it is built, and `manifest.json` pins its digests.

The last layers are not as published: they have been taught by texts of our own (train_encoder.py,
`lessons/`), which is added here. With them come the vectors of a cohort (gather_cohort.py), and of
each token by itself, on the axes that tell most (reduce_tokens.py).

Matrices are stored as fp16 in `weights.bin` and cast to fp32 when used: 45 MB instead of 91
(compressed 42 instead of 83), and the cosine to vectors of 32 bits stays above 0.999998.
Measured with one thread on a 2-core machine: a session without graph optimisation and prepacking
is ready in 10 ms and embeds its first text in 10 ms, which suits one-shot commands; with both it
takes 65 ms, then 2.3 / 6.7 / 22 / 44 ms for 8 / 32 / 128 / 256 tokens, the same as fp32 storage,
and the process holds 112 MB instead of 110.

    python models/build_model.py             build if needed, and check against the manifest
    python models/build_model.py --update    build, and write the new digests to the manifest
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "manifest.json"
OUTPUT = HERE / "all-MiniLM-L6-v2"
SCRATCH = HERE.parent / "build"
LESSONS = HERE / "lessons"  # what train_encoder.py has taught it
COHORT = "cohort"  # the tensor of the lessons that gather_cohort.py adds, and its file
TOKEN_AXES = LESSONS / "tokens.safetensors"  # which reduce_tokens.py has found
EMBEDDINGS = "embeddings.word_embeddings.weight"
TOKEN_DIMENSION = 64  # principal axes of the tokens' vectors, of 384; 48 lose 0.1, 128 gain none
LAYERS, HEADS = 6, 12
ALIGNMENT = 64
JOINED = "query,key,value"  # tensors of the checkpoint that are one in the graph

NOTICE = """\
The files in this folder are built from sentence-transformers/all-MiniLM-L6-v2
(https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), which is licensed under the
Apache License, Version 2.0. You may obtain a copy of the licence at

    http://www.apache.org/licenses/LICENSE-2.0

Changed from the original: the last three layers are trained further on notes and questions, the
weights are stored as 16-bit floats, the position table is cut to its first 256 rows,
and the network is written as an ONNX graph that includes pooling and normalisation.
Unless required by applicable law or agreed to in writing, the files are distributed on an "AS IS"
BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""

HEAD = """
<ir_version: 11, opset_import: ["" : 23]>
minilm (int64[tokens] ids) => (float[384] embedding, float[tokens, 384] states)
<int64[1] zero = {0}, int64[1] one = {1}> {
"""

EMBED = """
  tokens = Shape(ids)
  words_half = Gather("embeddings.word_embeddings.weight", ids)
  places_half = Slice("embeddings.position_embeddings.weight", zero, tokens, zero)
  kind_half = Slice("embeddings.token_type_embeddings.weight", zero, one, zero)
  words = Cast<to=1>(words_half)
  places = Cast<to=1>(places_half)
  kind = Cast<to=1>(kind_half)
  placed = Add(words, places)
  summed = Add(placed, kind)
"""

POOL = """
  states = Identity(x6)
  mean = ReduceMean<keepdims=0>(x6, zero)
  length = ReduceL2<keepdims=1>(mean, zero)
  embedding = Div(mean, length)
}
"""


def norm(out: str, x: str, name: str) -> str:
    return f"""
  {out} = LayerNormalization<axis=-1, epsilon=1e-12>({x}, "{name}.weight", "{name}.bias")
"""


def dense(out: str, x: str, name: str) -> str:
    # transB reads the matrix the way the checkpoint lays it out.
    return f"""
  {out} = Gemm<transB=1>({x}, "{name}.single", "{name}.bias")
"""


def attention(i: int) -> str:
    """Takes x{i}, gives seen{i}; the operator wants a batch, so there is one of one text.

    Queries, keys and values come from one product: each that is run for itself has threads to
    wake, and three of them in each layer are a fifth of a short text's time.
    """
    return (
        dense(f"all{i}", f"x{i}", f"encoder.layer.{i}.attention.self.{JOINED}")
        + f"""
  all{i}_batch = Unsqueeze(all{i}, zero)
  query{i}, key{i}, value{i} = Split<axis=2, num_outputs=3>(all{i}_batch)
  seen{i}_batch = Attention<q_num_heads={HEADS}, kv_num_heads={HEADS}>(query{i}, key{i}, value{i})
  seen{i} = Squeeze(seen{i}_batch, zero)
"""
    )


def layer(i: int) -> str:
    """One transformer layer: takes x{i}, gives x{i+1}."""
    name = f"encoder.layer.{i}"
    steps = [
        attention(i),
        dense(f"attended{i}", f"seen{i}", f"{name}.attention.output.dense"),
        f"  after_attention{i} = Add(attended{i}, x{i})",
        norm(f"y{i}", f"after_attention{i}", f"{name}.attention.output.LayerNorm"),
        dense(f"wide{i}", f"y{i}", f"{name}.intermediate.dense"),
        f"  active{i} = Gelu(wide{i})",
        dense(f"narrow{i}", f"active{i}", f"{name}.output.dense"),
        f"  after_mlp{i} = Add(narrow{i}, y{i})",
        norm(f"x{i + 1}", f"after_mlp{i}", f"{name}.output.LayerNorm"),
    ]
    return "".join(steps)


def graph_text() -> str:
    body = EMBED + norm("x0", "summed", "embeddings.LayerNorm")
    body += "".join(layer(i) for i in range(LAYERS)) + POOL
    # All casts come first: between the layers they leave the memory arena in pieces, and an
    # unoptimised session needs 176 MB instead of 102 and 22 ms for its first text instead of 10.
    casts = [f'  "{name}.single" = Cast<to=1>("{name}.weight")\n' for name in dense_names(body)]
    return HEAD + "".join(casts) + body


def dense_names(body: str) -> list[str]:
    return re.findall(r'"([\w.,]+)\.single"', body)


def weight_names(model: Any) -> list[str]:
    """The names that the graph reads and no node makes, in the order of their use."""
    made = {"ids", "zero", "one"}.union(*(node.output for node in model.graph.node))
    read = dict.fromkeys(name for node in model.graph.node for name in node.input)
    return [name for name in read if name not in made]


def read_header(data: bytes) -> tuple[int, dict[str, Any]]:
    """Where the tensors of a safetensors file begin, and what it says of each of them: 8 bytes of
    header length, a JSON header, then raw data."""
    (length,) = struct.unpack_from("<Q", data)
    return 8 + length, json.loads(data[8 : 8 + length])


def read_tensor(data: bytes, name: str) -> Any:
    """One tensor of a safetensors file."""
    import numpy

    begin, header = read_header(data)
    start, end = header[name]["data_offsets"]
    kind = {"F32": "<f4", "F16": "<f2"}[header[name]["dtype"]]
    return numpy.frombuffer(data[begin + start : begin + end], kind).reshape(header[name]["shape"])


def written_tensors(named: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """A safetensors file of 16-bit numbers."""
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, values in named.items():
        ends = [at, at := at + values.nbytes]
        header[name] = {"dtype": "F16", "shape": list(values.shape), "data_offsets": ends}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(values.tobytes() for values in named.values())
    return struct.pack("<Q", len(text)) + text + data


def lessons_path(fold: int | None) -> Path:
    """What was learned from all folders, or from all but those of a fold."""
    return LESSONS / ("whole.safetensors" if fold is None else f"without-{fold}.safetensors")


def taught_tensor(checkpoint: bytes, lessons: bytes | None, name: str) -> Any:
    """One tensor of the checkpoint, with what it was taught: the product of two thin matrices.

    They are 16-bit numbers, so that their products are exact in 64 bits and the sums, too, on
    any machine.
    """
    import numpy

    if JOINED in name:
        parts = [name.replace(JOINED, part) for part in JOINED.split(",")]
        return numpy.concatenate([taught_tensor(checkpoint, lessons, part) for part in parts])
    values, lesson = read_tensor(checkpoint, name), name.removesuffix(".weight")
    if not lessons or f"{lesson}.up" not in read_header(lessons)[1]:
        return values
    up, down = (read_tensor(lessons, f"{lesson}.{part}") for part in ("up", "down"))
    return values + up.astype("<f8") @ down.astype("<f8")


def stored(name: str, values: Any, max_tokens: int) -> Any:
    """The tensor as `weights.bin` holds it: matrices as fp16, positions only as far as used."""
    if "position_embeddings" in name:
        values = values[:max_tokens]
    return values.astype("<f2" if values.ndim == 2 else "<f4")


def add_weight(model: Any, name: str, values: Any, out: BinaryIO) -> None:
    from onnx import TensorProto

    out.write(b"\0" * (-out.tell() % ALIGNMENT))
    kind = TensorProto.FLOAT16 if values.itemsize == 2 else TensorProto.FLOAT
    tensor = model.graph.initializer.add(name=name, dims=values.shape, data_type=kind)
    tensor.data_location = TensorProto.EXTERNAL
    place = {"location": "weights.bin", "offset": out.tell(), "length": values.nbytes}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    out.write(values.tobytes())


def write_graph(checkpoint: bytes, lessons: bytes | None, max_tokens: int, folder: Path) -> None:
    import onnx
    import onnx.parser

    model = onnx.parser.parse_model(graph_text())
    with (folder / "weights.bin").open("wb") as out:
        for name in weight_names(model):
            values = taught_tensor(checkpoint, lessons, name)
            add_weight(model, name, stored(name, values, max_tokens), out)
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(folder / "model.onnx"))


def token_vectors(checkpoint: bytes) -> Any:
    """int8[tokens, TOKEN_DIMENSION]: each token by itself, as a vector of length 127; of [PAD],
    which stands for no word, zeros. The same on any machine, as `taught_tensor` is."""
    import numpy

    axes = TOKEN_AXES.read_bytes()
    mean, turn = (read_tensor(axes, name).astype("<f8") for name in ("mean", "axes"))
    rows = (read_tensor(checkpoint, EMBEDDINGS) - mean) @ turn
    rows *= 127 / numpy.linalg.norm(rows, axis=1, keepdims=True)
    rows[0] = 0
    return rows.round().astype("i1")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_manifest() -> dict[str, Any]:
    return json.loads(MANIFEST.read_text(encoding="utf-8"))


def fetch_wheel(source: dict[str, Any]) -> Path:
    """The wheel with the weights, fetched unless it is there; its dependencies are not wanted."""
    wheel = SCRATCH / "weights" / source["wheel"]
    if not wheel.exists():
        pinned = f"{source['package']}=={source['version']}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--dest", str(wheel.parent), pinned], check=True)
    if digest(wheel.read_bytes()) != source["sha256"]:
        raise ValueError(f"{wheel} has the wrong sha256: delete it and build again")
    return wheel


def read_source(source: dict[str, Any]) -> dict[str, bytes]:
    """The files of the wheel that the model is built from, by their base name."""
    files = {}
    with zipfile.ZipFile(fetch_wheel(source)) as wheel:
        for path, expected in source["files"].items():
            data = wheel.read(path)
            if digest(data) != expected:
                raise ValueError(f"{path} of {source['package']} has the wrong sha256")
            files[Path(path).name] = data
    return files


def describe(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    contents = {name: (folder / name).read_bytes() for name in names}
    return {name: {"sha256": digest(data), "bytes": len(data)} for name, data in contents.items()}


def is_built(manifest: dict[str, Any]) -> bool:
    try:
        same_manifest = (OUTPUT / "manifest.json").read_bytes() == MANIFEST.read_bytes()
        return same_manifest and describe(OUTPUT, manifest["files"]) == manifest["files"]
    except OSError:
        return False


def write_model(manifest: dict[str, Any], lessons: bytes | None, folder: Path) -> None:
    """The whole model but its manifest, which is told what was written."""
    files = read_source(manifest["source"])
    write_graph(files["model.safetensors"], lessons, manifest["max_tokens"], folder)
    (folder / "tokenizer.json").write_bytes(files["tokenizer.json"])
    (folder / "tokens.i8").write_bytes(token_vectors(files["model.safetensors"]).tobytes())
    if lessons and COHORT in read_header(lessons)[1]:
        (folder / f"{COHORT}.f16").write_bytes(read_tensor(lessons, COHORT).tobytes())
    (folder / "LICENSE").write_text(NOTICE, encoding="utf-8")


def build(manifest: dict[str, Any], update: bool, folder: Path) -> None:
    """Write the whole model into `folder`, and check it (or take it as the new truth)."""
    write_model(manifest, lessons_path(None).read_bytes(), folder)
    built = describe(folder, manifest["files"])
    if update:
        manifest["files"] = built
        MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    wrong = [name for name, expected in manifest["files"].items() if built[name] != expected]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: built differently from what manifest.json pins")
    shutil.copyfile(MANIFEST, folder / "manifest.json")


def model_without(fold: int) -> Path:
    """The folder of a model that a fold has taught nothing, for those who train or judge.

    Raises ValueError where other folders were there when the lessons were learned.
    """
    from folds import learned_from

    lessons = lessons_path(fold).read_bytes()
    if read_header(lessons)[1]["__metadata__"]["learned_from"] != learned_from():
        raise ValueError("the encoder was taught from other texts: run `make encoder`")
    return model_of(lessons)


def model_of(lessons: bytes) -> Path:
    """The folder of a model that was taught so, kept for the next time."""
    folder = SCRATCH / "ranker" / f"encoder-{digest(lessons)[:16]}"
    if not (folder / "manifest.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        manifest = read_manifest()
        write_model(manifest, lessons, folder)
        there = [name for name in manifest["files"] if (folder / name).exists()]
        manifest["files"] = describe(folder, there)
        draft = folder / "manifest.tmp"
        draft.write_text(json.dumps(manifest), encoding="utf-8")
        draft.rename(folder / "manifest.json")  # last, so that a folder with it is whole
    return folder


def put_in_place(folder: Path) -> None:
    """A reader never sees a half-written model: the folder appears whole."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    folder.chmod(0o755)
    folder.rename(OUTPUT)


def ensure_model(update: bool = False) -> Path:
    """The folder of the model, built when it is missing, damaged or out of date."""
    manifest = read_manifest()
    if update or not is_built(manifest):
        SCRATCH.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
            folder = Path(scratch) / OUTPUT.name
            folder.mkdir()
            build(manifest, update, folder)
            put_in_place(folder)
    return OUTPUT


def main() -> int:
    try:
        print(ensure_model(update="--update" in sys.argv[1:]))
    except (ImportError, OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"build_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Keep other embedding models: `model add`, `model list` and `model remove`."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import click
import numpy

import sediment as core
from sediment_ext import given_models

MODEL_MAX = 4 * 2**30  # bytes of a model's files
PACKED_MOST = 20  # times its packed size that a file may unpack to; weights reach 2
WINDOW = 512  # tokens, of which most models read so many; the next is what all read
NARROW = 256
MEANT = 16  # of the 20 texts of PAIRS; by chance it is one
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
# What may stand beside the graph and the tokenizer, and tells how they are used.
_CONFIGS = (
    *("config.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    "1_Pooling/config.json",
)
# Each says the same as the other, and something else than the rest.
PAIRS = (
    ("The train to the coast leaves at noon.", "At twelve o'clock the seaside train departs."),
    ("She is allergic to peanuts.", "Nuts make her ill, so she must not eat them."),
    ("The database is backed up every night.", "A copy of the database is made each evening."),
    ("Our cat sleeps on the warm stove.", "The pet likes to nap where it is heated."),
    ("The invoice has to be paid by March.", "Payment of the bill is due in spring."),
    ("A null pointer crashes the parser.", "Parsing fails with a segmentation fault."),
    ("He plays the violin in an orchestra.", "The musician performs on a string instrument."),
    (
        "The forest was full of mushrooms after the rain.",
        "When it is wet, fungi grow in the woods.",
    ),
    ("Parliament passed the new tax law.", "The members voted for the bill on taxation."),
    ("Their team won the final by two goals.", "The match ended in victory for them."),
)


class Source(NamedTuple):
    """A folder or an archive: the names in it, and how one is opened."""

    path: Path
    names: list[str]
    open: Callable[[str], IO[bytes]]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Source]:
    """InvalidInput where it is neither a folder nor a sound archive."""
    if path.is_dir():
        files = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        yield Source(path, sorted(files), lambda name: (path / name).open("rb"))
        return
    if not path.is_file():
        raise core.NotFound(f"there is no {path}: name a folder, or a .zip or .jar file")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(path, archive)
            yield Source(path, sorted(archive.namelist()), archive.open)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise core.InvalidInput(f"{path} is not a sound .zip or .jar file ({error})") from None


def _check_size(path: Path, archive: zipfile.ZipFile) -> None:
    """InvalidInput for an archive that unpacks to far more than it is. Of each file no more is
    read than the archive tells here."""
    packed = sum(member.compress_size for member in archive.infolist())
    if sum(member.file_size for member in archive.infolist()) > packed * PACKED_MOST + 2**20:
        raise core.InvalidInput(f"{path} unpacks to more than {PACKED_MOST} times its size")


# What is in it


def _one_of(source: Source, ending: str) -> str:
    """The name of the file with this ending, the shortest path first: model.onnx before others."""
    found = [name for name in source.names if name.endswith(ending)]
    best = [name for name in found if PurePosixPath(name).name in ("model.onnx", "tokenizer.json")]
    chosen = sorted(best or found, key=lambda name: (name.count("/"), name))
    if not chosen:
        raise core.InvalidInput(f"{source.path} has no file *{ending}")
    if not best and len(chosen) > 1:
        names = core.some_of(chosen)
        raise core.InvalidInput(f"{source.path} has several models ({names}): give one's folder")
    return chosen[0]


def _name_for(source: Source, graph: str, given: str | None) -> str:
    """The name given; else the graph's, as langchain4j's archives have it; else the file's."""
    stem = PurePosixPath(graph).stem
    name = given or (source.path.resolve().stem if stem.startswith("model") else stem)
    if source.path.is_dir() and not given and stem.startswith("model"):
        name = source.path.resolve().name
    name = name if given else re.sub(r"[-_](q|quantized|int8|fp16)$", "", name)
    if not _NAME.fullmatch(name) or name.lower() == core.MODEL.lower():
        raise core.InvalidInput(f"{name} cannot be a model's name: give one by --name")
    return name


def _copy(source: Source, name: str, target: Path) -> None:
    """Copy a file to a place that does not depend on its name in the source."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open(name) as given, target.open("wb") as file:
        shutil.copyfileobj(given, file)
        if file.tell() > MODEL_MAX:
            raise core.InvalidInput(f"{name} has more than {MODEL_MAX / 1e9:.0f} GB")


def _unpack(source: Source, graph: str, folder: Path) -> None:
    tokenizer = _one_of(source, "tokenizer.json")
    _copy(source, graph, folder / "model.onnx")
    _copy(source, tokenizer, folder / "tokenizer.json")
    root = graph.rpartition("/")[0].removesuffix("onnx").rstrip("/")
    wanted = {f"{root}/{name}".lstrip("/"): name for name in _CONFIGS}
    wanted[f"{graph}_data"] = f"{PurePosixPath(graph).name}_data"  # a large model's weights
    for name in wanted.keys() & set(source.names):
        _copy(source, name, folder / wanted[name])


def _complete(folder: Path, known: str) -> None:
    """Write what no file tells: by the model's name, or by trying."""
    query, passage = given_models.PREFIXES.get(known, ("", ""))
    told: dict[str, dict[str, Any]] = {
        "config_sentence_transformers.json": {"prompts": {"query": query, "passage": passage}},
        "1_Pooling/config.json": {
            "pooling_mode_cls_token": known.startswith(given_models.FIRST_TOKEN)
        },
    }
    if not (folder / "config.json").exists():
        told["config.json"] = {
            "hidden_size": _dimension(folder / "model.onnx"),
            "max_position_embeddings": WINDOW,
        }
    for name, config in told.items():
        if not (folder / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            core.write_atomically(folder / name, json.dumps(config))


def _dimension(graph: Path) -> int:
    """The last number of the shape of what a model gives."""
    with core.loading("onnxruntime"):
        import onnxruntime
    try:
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(str(graph), providers=providers)
        shape = session.get_outputs()[0].shape
    except Exception as error:  # onnxruntime's own classes
        reason = core.one_line(str(error), core.PREVIEW)
        raise core.ModelError(f"its model.onnx cannot be used: {reason}") from None
    if not shape or not isinstance(shape[-1], int):
        raise core.ModelError("its model.onnx does not tell its dimension: put its config.json by")
    return shape[-1]


# Whether it is a model of texts


def _encoder(folder: Path) -> core.Encoder:
    encoder = core.Encoder()
    encoder.model = given_models.GivenModel(folder)
    return encoder


def _vectors(encoder: core.Encoder, texts: list[str], query: bool) -> Any:
    """float32[texts, dimension]; ModelError where the model fails."""
    try:
        made = [
            encoder.embed_query(text, [1.0] * len(text)) if query else encoder.embed(text)
            for text in texts
        ]
    except core.SedimentError:
        raise
    except Exception as error:  # onnxruntime's own classes
        reason = core.one_line(str(error), core.PREVIEW)
        raise core.ModelError(f"it cannot encode a text: {reason}") from None
    vectors = core.stack_vectors([(vector,) for vector in made])
    if not numpy.allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-3):
        raise core.ModelError("it gives vectors that are no numbers")
    return vectors


def _note_centres(folder: Path, texts: list[str]) -> None:
    """Write what the vectors of all passages, and of all queries, have in common. Some models put
    all texts into a narrow cone, in which no cosine tells that nothing fits: by e5-small-v2 a query
    and whatever text have 0.77, and without their centres 0.16, as by the bundled model."""
    encoder = _encoder(folder)
    passages, queries = (_vectors(encoder, texts, query) for query in (False, True))
    numbers = numpy.stack([passages.mean(0), queries.mean(0)]).astype("<f4")
    (folder / given_models.CENTRES).write_bytes(numbers.tobytes())


def _check(folder: Path, texts: list[str]) -> None:
    """ModelError unless nearly each text is nearer to its paraphrase than to any other."""
    vectors = _vectors(_encoder(folder), texts, False)
    near = vectors @ vectors.T - 2 * numpy.eye(len(texts))
    right = sum(int(place) == (index ^ 1) for index, place in enumerate(near.argmax(1)))
    if right < MEANT:
        found = f"of {len(texts)} texts it finds {right} nearest to their paraphrases"
        raise core.ModelError(f"it does not encode English texts by their meaning: {found}")


def _fit_window(folder: Path) -> None:
    """Let a model read as many tokens as it can, where its config tells more or nothing."""
    try:
        _encoder(folder).embed("word " * 2 * WINDOW)
    except Exception:  # of onnxruntime, for a place that the model does not have
        limits = {"max_seq_length": NARROW}
        core.write_atomically(folder / "sentence_bert_config.json", json.dumps(limits))


def add_model(path: Path, given: str | None = None) -> dict[str, Any]:
    """Keep the model of a folder or archive, after a check: {success, name, dimension, bytes}."""
    root = core.models_folder()
    with opened(path) as source:
        graph = _one_of(source, ".onnx")
        name, known = _name_for(source, graph, given), _name_for(source, graph, None)
        if (root / name).exists():
            raise core.InvalidInput(f"{name} is there already: `model remove {name}`, or --name")
        draft = core.draft_of(root / f".{name}")
        try:
            draft.mkdir(mode=0o700, parents=True)
            _unpack(source, graph, draft)
            _complete(draft, known)
            _fit_window(draft)
            texts = [text for pair in PAIRS for text in pair]
            _note_centres(draft, texts)
            _check(draft, texts)
            draft.rename(root / name)
        except core.ModelError as error:
            raise core.ModelError(f"{path}: {error}".replace(f"{draft}/", "")) from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return {"success": True, **_facts(root / name)}


def _facts(folder: Path) -> dict[str, Any]:
    model = given_models.GivenModel(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"name": folder.name, "dimension": model.dimension, "bytes": size}


def list_models(memory: core.Memory) -> dict[str, Any]:
    """{count, models: [{name, dimension, bytes, chosen, stored_here}]}, the bundled one first."""
    folders = [path for path in sorted(core.models_folder().glob("[!.]*")) if path.is_dir()]
    bundled = core.Model(core.model_dir())
    size = sum(file.stat().st_size for file in bundled.folder.iterdir())
    rows = [{"name": bundled.name, "dimension": bundled.dimension, "bytes": size}]
    rows += [_facts(folder) for folder in folders]
    chosen, noted = core.setting("EMBEDDING_MODEL") or core.MODEL, noted_model(memory)
    for row in rows:
        row |= {"chosen": row["name"] == chosen, "stored_here": row["name"] == noted}
    return {"count": len(rows), "models": rows}


def noted_model(memory: core.Memory) -> str | None:
    """The name of the model that this database has vectors of."""
    if not memory.database.path.exists():
        return None
    with memory.database.translate_errors():
        connection = memory.database.reader()
        has = connection.execute("SELECT 1 FROM vectors LIMIT 1").get
        return core.meta_value(connection, "model_name") if has else None


def remove_model(memory: core.Memory, name: str) -> dict[str, Any]:
    """Delete a model that was added; InvalidInput where this database has vectors of it."""
    folder = core.models_folder() / name
    if not _NAME.fullmatch(name) or not folder.is_dir():
        raise core.NotFound(f"there is no model {name}: `model list` names those that are here")
    if noted_model(memory) == name:
        remedy = "set SEDIMENT_EMBEDDING_MODEL to another, and run `reindex` first"
        raise core.Conflict(f"{memory.database.path} has vectors of {name}: {remedy}")
    shutil.rmtree(folder)
    return {"success": True, "name": name, "message": f"Removed {name}."}


# The command line


def render_added(answer: dict[str, Any]) -> Iterator[str]:
    size = f"{answer['dimension']} dimensions, {answer['bytes'] / 1e6:.0f} MB"
    yield f"Added {answer['name']} ({size})."
    yield f"To use it: export SEDIMENT_EMBEDDING_MODEL={answer['name']}, then `sediment reindex`."


def render_models(answer: dict[str, Any]) -> Iterator[str]:
    for row in answer["models"]:
        remarks = {"chosen": "in use", "stored_here": "has the vectors of this database"}
        told = ", ".join(text for key, text in remarks.items() if row[key])
        size = f"{row['dimension']:5} dimensions  {row['bytes'] / 1e6:6.0f} MB"
        yield core.printable(f"{row['name']:24} {size}  {told}".rstrip())


@click.command("model")
@click.argument("action", type=click.Choice(("list", "add", "remove")), default="list")
@click.argument("target", required=False, metavar="[PATH|NAME]")
@click.option("--name", metavar="NAME")
@core.pass_shared
def model_command(shared: core.Context, action: str, target: str | None, name: str | None) -> None:
    """Keep other embedding models."""
    if target is None and action != "list":
        raise click.UsageError(f"model {action} takes a {'PATH' if action == 'add' else 'NAME'}")
    if action == "add":
        return shared.show(add_model(core.expand_home(target or ""), name), render_added)
    with shared.memory() as memory:
        if action == "remove":
            shared.show(remove_model(memory, target or ""), core.render_message)
        else:
            shared.show(list_models(memory), render_models)

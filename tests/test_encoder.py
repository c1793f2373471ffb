"""Texts to vectors: the same whatever went before, and never from damaged files."""

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage import TIMEOUT, child, finish, shared_encoder

import sediment
from sediment import Encoder, Memory, Model, ModelError

TEXTS = [
    "We deploy on Fridays.",
    "",
    "日本語の文章",
    "😀" * 40,
    "def main() -> None: ...",
    "word " * 600,
    "[CLS] [SEP] [MASK]",
]


def numbers(vector: bytes) -> numpy.ndarray:
    return numpy.frombuffer(vector, "<f4")


def cosine(one: bytes, other: bytes) -> float:
    return float(numbers(one) @ numbers(other))


# Vectors


def test_a_vector_does_not_depend_on_what_was_encoded_before() -> None:
    encoder = shared_encoder()
    first = [encoder.embed(text) for text in TEXTS]
    again = [encoder.embed(text) for text in reversed(TEXTS)]
    assert again[::-1] == first
    assert Encoder().embed(TEXTS[0]) == first[0]


@settings(max_examples=40)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_every_text_has_a_vector_of_length_one(text: str) -> None:
    encoder = shared_encoder()
    vector = numbers(encoder.embed(text))
    assert vector.shape == (encoder.model.dimension,)
    assert abs(float(numpy.linalg.norm(vector)) - 1) < 1e-5


@pytest.mark.parametrize("text", TEXTS)
def test_a_resident_and_a_one_shot_encoder_agree(text: str) -> None:
    assert cosine(shared_encoder().embed(text), one_shot().embed(text)) > 0.99999


def one_shot(made: list[Encoder] = []) -> Encoder:  # noqa: B006 - one for all the cases
    if not made:
        made.append(Encoder(resident=False))
    return made[0]


def test_meaning_is_near_and_noise_is_far() -> None:
    embed = shared_encoder().embed
    fact = embed("The database password is rotated every Monday.")
    assert cosine(fact, embed("When do we change the credentials of the DB?")) > 0.4
    assert cosine(fact, embed("Penguins cannot fly.")) < 0.2


def test_threads_share_an_encoder() -> None:
    encoder, start = Encoder(), threading.Barrier(8)
    made: dict[int, bytes] = {}

    def work(number: int) -> None:
        start.wait(TIMEOUT)
        made[number] = encoder.embed(f"thread number {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    embed = shared_encoder().embed
    for number in range(8):  # the last bit of the length may be another when runs overlap
        expected = numbers(embed(f"thread number {number}"))
        assert numpy.allclose(numbers(made[number]), expected, rtol=1e-6, atol=1e-8)


# Tokens


def test_tokens_are_counted_with_both_ends_and_cut_to_the_window() -> None:
    encoder = shared_encoder()
    assert encoder.count_tokens("") == 2
    assert encoder.count_tokens("hello world") == 4
    long = "word " * 600
    assert encoder.count_tokens(long) == 602
    ids = encoder.tokens(long)
    assert len(ids) == encoder.model.max_tokens
    assert (ids[0], ids[-1]) == (encoder.tokens("")[0], encoder.tokens("")[-1])


def test_a_text_fits_up_to_the_window() -> None:
    encoder, room = shared_encoder(), shared_encoder().model.max_tokens - 2
    assert encoder.fits("word " * room)
    assert not encoder.fits("word " * (room + 1))


def test_what_does_not_fit_does_not_change_the_vector() -> None:
    embed, room = shared_encoder().embed, shared_encoder().model.max_tokens - 2
    assert embed("word " * room + "penguin") == embed("word " * room)
    assert embed("word " * (room - 1) + "penguin") != embed("word " * room)


# Files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the model, laid out as in an unpacked program, and a cache of its own."""
    monkeypatch.setenv("SEDIMENT_CACHE", str(tmp_path / "cache"))
    copy = tmp_path / "program" / "models" / sediment.MODEL
    shutil.copytree(sediment.model_dir(), copy)
    yield copy
    shutil.rmtree(copy)


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def assert_stops(folder: Path, message: str) -> None:
    """Both ways into the encoder end with one line that names the trouble and a remedy."""
    for use in (Encoder.load, lambda encoder: encoder.count_tokens("text")):
        with pytest.raises(ModelError, match=message) as caught:
            use(Encoder(folder))
        assert "reinstall" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["weights.bin", "tokenizer.json", "model.onnx"])
def test_one_changed_byte_stops_the_encoder(folder: Path, name: str) -> None:
    assert Encoder(folder).count_tokens("checked and noted") == 5
    flip(folder / name)
    assert_stops(folder, f"{name} is damaged")


def test_a_file_cut_short_stops_the_encoder(folder: Path) -> None:
    os.truncate(folder / "weights.bin", 1_000)
    assert_stops(folder, r"weights\.bin is damaged")


def test_a_missing_file_stops_the_encoder(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    assert_stops(folder, r"model is incomplete .*model\.onnx")


def test_a_file_that_is_no_file_stops_the_encoder(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").mkdir()
    assert_stops(folder, r"tokenizer\.json")


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"name": "x"}', "\xff"])
def test_a_bad_manifest_stops_the_encoder(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text, "latin-1")
    with pytest.raises(ModelError, match=r"manifest\.json cannot be read .*reinstall"):
        _ = Encoder(folder).model


def test_the_remedy_never_names_a_folder_that_holds_more_than_the_program(folder: Path) -> None:
    flip(folder / "tokenizer.json")
    with pytest.raises(ModelError) as caught:
        Encoder(folder).load()
    assert f"delete {folder.parent.parent}" not in str(caught.value)


def test_the_remedy_for_an_unpacked_program_is_to_delete_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEDIMENT_CACHE", str(folder.parent.parent.parent))
    unpacked = sediment.cache_dir() / "program"
    unpacked.parent.mkdir(exist_ok=True)
    os.rename(folder.parent.parent, unpacked)
    flip(unpacked / "models" / sediment.MODEL / "tokenizer.json")
    try:
        with pytest.raises(ModelError, match=r"delete .*program and run again"):
            Encoder(unpacked / "models" / sediment.MODEL).load()
    finally:
        os.rename(unpacked, folder.parent.parent)


def change_unseen(path: Path) -> None:
    """Change a file so that neither its size nor its time tells."""
    stat = path.stat()
    flip(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_unchanged_files_are_not_read_again(folder: Path) -> None:
    Model(folder).check()
    change_unseen(folder / "weights.bin")
    Model(folder).check()  # only a start that trusts its note gets past this
    with pytest.raises(ModelError, match="damaged"):
        Model(folder).check(full=True)


def test_files_that_were_never_found_good_are_not_noted(folder: Path) -> None:
    flip(folder / "weights.bin")
    for _ in range(2):
        with pytest.raises(ModelError, match="damaged"):
            Model(folder).check()


def test_a_damaged_note_only_costs_time(folder: Path) -> None:
    Model(folder).check()
    notes = [path for path in folder.parent.parent.parent.rglob("*.json") if is_note(path)]
    assert notes
    for text in ("[1", "[]", '"x"', "{}", json.dumps({str(folder): None})):
        notes[0].write_text(text)
        Model(folder).check()
        assert is_note(notes[0])


def is_note(path: Path) -> bool:
    return "checked" in path.name and sediment.MODEL in path.read_text("utf-8")


def test_stats_with_verify_reads_every_byte(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "model_dir", lambda: folder)
    memory = Memory(tmp_path / "memory.db", project="demo")
    assert memory.stats(verify=True)["verified"] is True
    change_unseen(folder / "model.onnx")
    assert "verified" not in memory.stats()
    with pytest.raises(ModelError, match="damaged"):
        memory.stats(verify=True)


# Nothing before its time


def test_telemetry_is_off_before_the_library_comes_in(tmp_path: Path) -> None:
    script = """
class Witness:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            said("telemetry off:", os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.meta_path.insert(0, Witness())
said("early:", sorted({"numpy", "onnxruntime", "tokenizers"} & sys.modules.keys()))
encoder = sediment.Encoder(resident=False)
encoder.count_tokens("text")
said("tokens:", sorted({"numpy", "onnxruntime", "tokenizers"} & sys.modules.keys()))
encoder.embed("text")
"""
    env = {**os.environ, "PYTHONPATH": str(Path(sediment.__file__).parent)}
    env |= {"HOME": str(tmp_path), "ORT_DISABLE_TELEMETRY": "0"}
    out = finish(child(script, env=env)).splitlines()
    assert out == ["early: []", "tokens: ['tokenizers']", "telemetry off: 1"]


# Loading

# Fails where onnxruntime is looked for while numpy is not whole: its inner parts would be taken
# in another order than a thread takes them that imports numpy at that moment.
ORDER = """
import sys
from sediment import Encoder

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            numpy = sys.modules.get("numpy")
            assert numpy and not getattr(numpy.__spec__, "_initializing", False)
            print("in order")

sys.meta_path.insert(0, Watch())
"""


def test_numpy_is_whole_before_onnxruntime_is_imported():
    assert finish(child(ORDER + "Encoder().load()")).strip() == "in order"


def test_texts_at_once_are_encoded_as_one_by_one() -> None:
    texts = [f"Remark {number} is about {'tea ' * number}." for number in range(9)]
    encoder = Encoder()
    with encoder.parallel_encoding() as count, encoder.parallel_encoding() as within:
        assert count == within == sediment.texts_at_once()
        at_once = encoder.embed_all(texts)
    for vector, text in zip(at_once, texts, strict=True):
        told = numpy.frombuffer(vector, "<f4") @ numpy.frombuffer(encoder.embed(text), "<f4")
        assert told == pytest.approx(1, abs=1e-5)
    with encoder.parallel_encoding() as count:  # others may wait for what is loaded
        assert count == 1


def test_a_thread_is_given_the_session_though_a_long_job_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, job = Encoder(), contextlib.ExitStack()
    job.enter_context(encoder.parallel_encoding())
    lock = encoder._locks["session"]

    class EndsJob:
        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            job.close()

    monkeypatch.setitem(encoder._locks, "session", EndsJob())
    assert encoder.load()


def test_a_session_for_many_threads_is_not_kept_behind_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was opened while the job ended, and has one thread where a lone text gets all."""
    encoder, job = Encoder(), contextlib.ExitStack()
    job.enter_context(encoder.parallel_encoding())
    opens, ending = encoder._open_session, threading.Thread(target=job.close)

    def open_session() -> Any:
        session = opens()
        ending.start()
        ending.join(0.3)
        return session

    monkeypatch.setattr(encoder, "_open_session", open_session)
    encoder.load()
    ending.join(TIMEOUT)
    assert encoder._session is None

"""The vectors that a long-lived process keeps: the same answers as the file's, always."""

import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from storage import child, finish, open_memory

import sediment
from sediment import DatabaseError, Memory

TOPICS = ["tea", "glaciers", "the gateway", "music", "ports", "bread", "a bridge", "taxes"]
QUERIES = ["when is tea?", "which port?", "who plays?", "the bridge is closed", "bake", "money"]


@pytest.fixture(scope="module")
def remarks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with what each test begins with."""
    path = tmp_path_factory.mktemp("remarks") / "memory.db"
    with open_memory(path) as memory:
        for number in range(40):
            memory.store(f"Remark {number} is about {TOPICS[number % len(TOPICS)]}.")
    assert not Path(f"{path}-wal").exists()
    return path


@pytest.fixture
def memory(remarks: Path, path: Path) -> Iterator[Memory]:
    shutil.copy(remarks, path)
    with open_memory(path) as memory:
        memory.recall("tea", record=False)  # fills the index, as storing does
        yield memory


def agree(memory: Memory, limit: int = 10) -> None:
    """The index finds what a scan of the file finds, inside the scope and outside."""
    assert memory._index
    for query in QUERIES:
        vector = memory.encoder.embed(query)
        with memory.database.snapshot():
            hits = memory._index.search(vector, "demo", limit)
            again = memory._index.search(vector, "demo", 0, also_score=hits.item)
        assert {*zip(again.item, again.chunk, strict=True)} == {
            *zip(hits.item, hits.chunk, strict=True)
        }
        for kind, where in enumerate(sediment.Within(memory.database, "demo").wheres()):
            got = hits.where(hits.kind == kind)
            expected = sediment.search_vectors(memory.database, vector, where, "demo", limit)
            assert got.item.tolist() == expected.item.tolist()
            assert got.chunks.tolist() == expected.chunks.tolist()
            assert got.score.tolist() == pytest.approx(expected.score.tolist(), abs=1e-5)


def test_it_agrees_with_the_file(memory: Memory) -> None:
    agree(memory)


def test_it_follows_every_change(memory: Memory, path: Path) -> None:
    agree(memory)
    ids = [item["id"] for item in memory.list_items(limit=10)["items"]]
    memory.forget(*ids[:3])
    later = memory.store("Tea is no longer served.", replace=ids[4])["id"]
    agree(memory)
    memory.undo(later)
    agree(memory)
    with open_memory(path, project="other") as other:
        other.store("Tea is served elsewhere.")
    memory.store("Tea is served everywhere.", scope="global")
    agree(memory)


def test_it_follows_other_processes(memory: Memory, path: Path) -> None:
    agree(memory)
    script = """
memory = Memory(sys.argv[1], project="demo")
for number in range(5):
    memory.store(f"Tea number {number} comes from another process.")
"""
    finish(child(script, path))
    agree(memory)
    memory.recall("tea from another process")
    assert "another process" in memory.recall("tea of another process")["results"][0]["content"]


def test_a_reader_of_an_older_state_gets_no_other_items(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread begins the index anew without what this one still sees."""
    monkeypatch.setattr(sediment, "ERASED_KEPT", 1)
    doomed = [item["id"] for item in memory.list_items(limit=40)["items"]][4:]

    def erase() -> None:
        memory.forget(*doomed[::2])
        memory.recall("tea")
        memory.forget(*doomed[1::2])
        memory.recall("tea")

    with memory.database.snapshot():
        rows = memory.database.rows("SELECT id FROM chunks")
        chunks = numpy.array([*(id for (id,) in rows), 10**6])
        items, kinds = sediment.Within(memory.database, "demo").places(chunks)
        other = threading.Thread(target=erase)
        other.start()
        other.join()
        assert memory._index
        found, live = memory._index.places(chunks, "demo")
        still = live != sediment.HIDDEN
        assert 0 < still.sum() < (kinds != sediment.HIDDEN).sum()
        assert (found[still] == items[still]).all()
        assert (live[still] == kinds[still]).all()


def test_vectors_that_come_late_are_taken_up(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(memory)
    monkeypatch.setattr(sediment, "INLINE_CHUNKS", 0)
    memory.store("A late vector about tea leaves.")
    monkeypatch.undo()
    memory.store("An early vector about tea cups.")
    agree(memory)
    memory.embed_pending()
    agree(memory)


@pytest.mark.parametrize("way", ["kept", "bits", "file", "no sqlite-vec"])
@pytest.mark.parametrize("number", [numpy.nan, numpy.inf, -numpy.inf])
def test_a_vector_that_is_none_spoils_no_other(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, number: float, way: str
) -> None:
    if way == "bits":
        monkeypatch.setattr(sediment, "EXACT_ROWS", 0)
        monkeypatch.setattr(sediment, "KEPT_VECTORS", 0)
    first = memory.recall("taxes", record=False)["results"]
    lost = memory.store("Remark 99 is about marmalade.")["id"]
    with memory.database.transaction() as connection:
        vector = numpy.full(384, number, "<f4")
        vector[::2] = 0.05
        sql = "UPDATE vectors SET vector = ? WHERE chunk = (SELECT max(chunk) FROM vectors)"
        connection.execute(sql, (vector.tobytes(),))
    memory._index = sediment.VectorIndex(memory.database) if way in ("kept", "bits") else None
    if way == "no sqlite-vec":
        memory.database.reader()
        memory.database.has_distance = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = memory.recall("taxes", record=False)["results"]
        assert [row["id"] for row in again] == [row["id"] for row in first]
        assert float(again[0]["similarity"]) == pytest.approx(
            float(first[0]["similarity"]), abs=0.05
        )
        assert memory.recall("marmalade", record=False)["results"][0]["id"] == lost
        if memory._index:
            agree(memory, limit=50)


def test_a_vector_of_another_length_is_refused_every_time(memory: Memory) -> None:
    with memory.database.transaction() as connection:
        connection.execute("UPDATE vectors SET vector = zeroblob(4) WHERE chunk = 5")
    memory._index = sediment.VectorIndex(memory.database)
    for _ in range(3):
        with pytest.raises(DatabaseError, match="damaged: run `doctor --repair`"):
            memory.recall("tea", record=False)
    assert memory.repair()["healthy"]
    memory.embed_pending()
    agree(memory)


def test_a_late_vector_of_another_length_is_refused_every_time(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "INLINE_CHUNKS", 0)
    memory.store("A late vector about tea leaves.")
    memory.recall("tea", record=False)
    with memory.database.transaction() as connection:
        connection.execute("INSERT INTO vectors SELECT chunk, zeroblob(8) FROM pending")
        connection.execute("DELETE FROM pending")
    for _ in range(2):
        with pytest.raises(DatabaseError, match="damaged: run `doctor --repair`"):
            memory.recall("tea", record=False)


def test_a_project_that_is_renamed_keeps_its_memories(memory: Memory) -> None:
    agree(memory)
    with memory.database.transaction() as connection:
        connection.execute("UPDATE items SET project_id = 'demo2' WHERE seq % 2")
    agree(memory)


def test_another_file_is_another_memory(memory: Memory, path: Path) -> None:
    agree(memory)
    with open_memory(path.with_name("new.db")) as other:
        other.store("Tea is served in the new file.")
        other.database.reader().wal_checkpoint()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.with_name("new.db").rename(path)
    (row,) = memory.recall("tea")["results"]
    assert "new file" in row["content"]


@pytest.mark.parametrize("kept", [sediment.KEPT_VECTORS, 0])
def test_bits_find_nearly_all_of_many(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(sediment, "SCANNED", (12, 3, 3))
    monkeypatch.setattr(sediment, "EXACT_ROWS", 0)
    monkeypatch.setattr(sediment, "KEPT_VECTORS", kept)
    memory._index = index = sediment.VectorIndex(memory.database)
    same = 0
    for query in QUERIES:
        vector = memory.encoder.embed(query)
        with memory.database.snapshot():
            found = index.search(vector, "demo", 3)
        found = found.where(found.kind == sediment.OWN)
        live = f"{sediment._LIVE} AND {sediment.IN_OWN_SCOPE}"
        expected = sediment.search_vectors(memory.database, vector, live, "demo", 3)
        same += len({*found.item} & {*expected.item})
    assert same >= 0.8 * 3 * len(QUERIES)


def test_vectors_that_are_too_many_take_no_memory(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "SCANNED", (4, 1))
    monkeypatch.setattr(sediment, "EXACT_ROWS", 0)
    monkeypatch.setattr(sediment, "KEPT_VECTORS", 50)
    assert memory._index
    memory.recall("tea")
    assert memory._index._vectors.nbytes >= 40 * 384 * 4
    for number in range(30):
        memory.store(f"Another remark, number {number}, on tea.")
        memory.recall("tea")
        assert (memory._index._vectors.nbytes == 0) == (number >= 10)
    agree(memory)


def test_signs_are_packed_in_order() -> None:
    vectors = numpy.eye(384, dtype=numpy.float32) - 0.5
    assert sediment._bits(vectors > 0).shape == (384, 6)
    assert (numpy.bitwise_count(sediment._bits(vectors > 0)).sum(1) == 1).all()


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    with open_memory(tmp_path / "none.db") as memory:
        assert memory.recall("anything")["results"] == []
        memory.store("Something.")
        assert len(memory.recall("anything", anyway=True)["results"]) == 1

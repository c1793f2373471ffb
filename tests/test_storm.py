"""Processes that are killed while others work, and while they work themselves; `make soak` goes on
longer. Then what several do at once, one step of one between two steps of another."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kills
import pytest
import storm
from storage import consistent, open_memory, shown, values

import sediment
from sediment import DatabaseError, InvalidInput, Memory, NotFound

TEA, LATER = "Tea is served at four.", "Tea is served at five."
COFFEE = "Coffee is served at eight in the blue room."
PORTS = [f"The staging database listens on port {port}." for port in (5433, 5434)]


@pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")
def test_who_is_killed_takes_nothing_along(
    tmp_path: Path, unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storm, "WRITERS", 1)  # of each kind; `make soak` has four, and more kills
    monkeypatch.setattr(storm, "READ_PAUSE", 2)
    rage = storm.Storm(tmp_path, 24, seed=1, SEDIMENT_CACHE=str(unpacked))
    figures = rage.run(pause=0.3, kills=2)
    print(figures)
    killed = figures["killed servers"] + figures.get("killed shells", 0)
    asked = figures["stores by servers"] + figures["stores by shells"]
    assert killed >= 2
    assert figures["acknowledged"] >= max(1, asked - killed)  # a kill costs one answer at most


@pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")
def test_a_change_that_is_killed_is_made_wholly_or_not_at_all(tmp_path: Path) -> None:
    count = len(kills.CHANGES)
    figures = kills.run(tmp_path, count, seed=1)
    print(figures)
    assert figures["kills"] == count
    assert all(figures[f"at a {kind}"] for kind in kills.KINDS)


# One step between two of another's.


def in_between(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], Any]
) -> None:
    """Have what another process does happen right behind a step, once."""
    step = getattr(owner, name)

    def and_then(*args: Any) -> Any:
        monkeypatch.setattr(owner, name, step)
        found = step(*args)
        act()
        return found

    monkeypatch.setattr(owner, name, and_then)


def before_writing(
    monkeypatch: pytest.MonkeyPatch, memory: Memory, act: Callable[[], Any], nth: int = 1
) -> Callable[[], bool]:
    """Have what another process does happen right before the n-th transaction of a memory: after
    all that it was decided on was read. Tells whether it has come to that."""
    begin, left = memory.database.transaction, [nth]

    def late(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            act()
        return begin(*args, **options)

    monkeypatch.setattr(memory.database, "transaction", late)
    return lambda: left[0] <= 0


@pytest.fixture
def other(path: Path, memory: Memory) -> Memory:
    """What another process has of the same file."""
    return open_memory(path)


def live(memory: Memory) -> list[str]:
    return [item["content"] for item in memory.list_items()["items"]]


def test_a_text_whose_twin_is_merged_while_it_is_prepared_is_stored(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is to become the newest, since another version came after its twin."""
    for hour, text in enumerate((TEA, LATER, f"Note: {TEA}")):
        memory.store(text, created_at=3_600 * hour)
    in_between(monkeypatch, sediment.Storing, "neighbours", other.consolidate)
    memory.store(TEA)
    assert live(memory)[0] == TEA


def test_a_text_that_another_replaces_while_it_is_confirmed_is_stored(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = memory.store(TEA)["id"]
    replace = lambda: other.store(LATER, replace=id)  # noqa: E731
    in_between(monkeypatch, sediment.Storing, "neighbours", replace)
    memory.store(TEA)
    assert TEA in live(memory)


@pytest.mark.parametrize("text", [PORTS[0], COFFEE])
def test_who_comes_second_to_replace_is_told_what_stands_there(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The new text is stored, or there already."""
    id = memory.store(TEA)["id"]
    memory.store(COFFEE)
    new = []
    replace = lambda: new.append(other.store(LATER, replace=id)["id"])  # noqa: E731
    in_between(monkeypatch, sediment.Storing, "_destination", replace)
    with pytest.raises(NotFound) as caught:
        memory.store(text, replace=id)
    assert f"was replaced by {new[0][:8]}: name {new[0][:8]} instead" in str(caught.value)
    assert sorted(live(memory)) == sorted([COFFEE, LATER])


def test_what_was_pruned_is_replaced_by_nothing_and_that_is_said(memory: Memory) -> None:
    id = memory.store(TEA)["id"]
    with memory.database.transaction() as connection:
        sediment.prune_item(connection, id)
    with pytest.raises(InvalidInput, match="was pruned: `undo") as caught:
        memory.store(LATER, replace=id)
    assert caught.value.reason == f"{id} was pruned"  # agents have no undo
    assert live(memory) == []


def test_a_text_that_another_forgets_while_it_is_confirmed_is_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_memory(path) as memory, open_memory(path) as other:
        id = memory.store(TEA)["id"]
        in_between(monkeypatch, sediment.Storing, "neighbours", lambda: other.forget(id))
        memory.store(TEA)
        assert live(memory) == [TEA]
        consistent(memory)


def test_a_recall_does_without_a_neighbour_that_another_forgets(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {memory.store(text)["id"] for text in PORTS}
    assert memory.consolidate()["linked"] == 1
    (first,) = memory.recall("staging database port", limit=1)["results"]
    (beside,) = ids - {first["id"]}
    in_between(monkeypatch, sediment, "links_of", lambda: other.forget(beside))
    assert memory.recall("staging database port", limit=1)["count"] == 1


def test_consolidation_goes_on_when_another_forgets_what_it_compares(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [memory.store(text)["id"] for text in PORTS]
    in_between(monkeypatch, sediment, "_mean_vector", lambda: other.forget(*ids))
    assert memory.consolidate()["pairs"] == []


def test_consolidation_tells_what_it_did_when_another_forgets_that(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [memory.store(text)["id"] for text in PORTS]
    in_between(monkeypatch, sediment.Lease, "release", lambda: other.forget(*ids))
    assert memory.consolidate()["linked"] == 1


# Behind a decision, and before it is written down.

OLD = "2020-01-01"


@pytest.mark.parametrize("deed", ["forget", "replace", "confirm", "recall", "prune"])
def test_pruning_looks_again(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    one, two = (memory.store(text, created_at=OLD)["id"] for text in PORTS)
    deeds: dict[str, Callable[[], Any]] = {
        "forget": lambda: other.forget(one),
        "replace": lambda: other.store(TEA, replace=one),
        "confirm": lambda: other.store(PORTS[0], created_at=OLD),
        "recall": lambda: other.record_access(shown(one)),
        "prune": lambda: other.prune("1y"),
    }
    before_writing(monkeypatch, memory, deeds[deed])
    pruned = [row["id"] for row in memory.prune("1y")["items"]]
    assert pruned == ([] if deed == "prune" else [two])
    actions = [row["action"] for row in memory.history(two)["events"]]
    assert actions == ["prune"]


@pytest.mark.parametrize("scope", ["project", "global"])
def test_purging_spares_what_is_undone_before_it(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    ids = [memory.store(text, created_at=OLD, scope=scope)["id"] for text in PORTS]
    memory.prune("1y", scope=scope)
    before_writing(monkeypatch, memory, lambda: other.undo(ids[0]))
    assert memory.purge(scope=scope)["count"] == 1
    assert memory.get(ids[0])["content"] == PORTS[0]


@pytest.mark.parametrize("named", ["old", "new"])
@pytest.mark.parametrize("deed", ["replace", "undo", "prune", "forget"])
def test_undoing_looks_again(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch, named: str, deed: str
) -> None:
    """One value of a fact is live at the end, and what another wrote is not lost."""
    old = memory.store(TEA)["id"]
    new = memory.store(LATER, replace=old)["id"]
    deeds: dict[str, Callable[[], Any]] = {
        "replace": lambda: other.store(PORTS[0], replace=new),
        "undo": lambda: other.undo(new),
        "prune": lambda: other.prune("2999-01-01", confirmed=True),
        "forget": lambda: other.forget(new),
    }
    before_writing(monkeypatch, memory, deeds[deed])
    id = {"old": old, "new": new}[named]
    if deed in ("undo", "forget"):  # what was to be done is done, or cannot be any more
        with pytest.raises(NotFound):
            memory.undo(id)
    else:
        assert memory.undo(id)["restored"] == id
    there = {row["content"] for row in memory.export_rows()}
    assert there == set() if deed == "forget" else there >= {TEA, LATER}
    assert (PORTS[0] in there) == (deed == "replace")
    assert len(live(memory)) == (deed != "forget")


@pytest.mark.parametrize("deed", ["replace", "undo", "forget"])
def test_forgetting_looks_again(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    """What was asked for was live, and is hidden or gone by now."""
    memory.store(COFFEE)
    old = memory.store(TEA)["id"]
    new = memory.store(LATER, replace=old)["id"]
    deeds: dict[str, Callable[[], Any]] = {
        "replace": lambda: other.store(PORTS[0], replace=new),
        "undo": lambda: other.undo(new),
        "forget": lambda: other.forget(new),
    }
    before_writing(monkeypatch, memory, deeds[deed])
    with pytest.raises(NotFound):
        memory.forget(new)
    left = {"replace": {TEA, LATER, PORTS[0]}, "undo": {TEA, LATER}, "forget": set()}[deed]
    assert {row["content"] for row in memory.export_rows()} == left | {COFFEE}


def test_what_is_taken_apart_while_it_is_compared_is_not_merged(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [memory.store(text)["id"] for text in (TEA, f"Note: {TEA}")]
    pair = min(ids), max(ids)

    def apart() -> None:
        ((_, judged),) = sediment.Consolidator(other.storing).merge_pairs(pair)
        other.undo(judged.other)

    in_between(monkeypatch, sediment, "decide_merge", apart)
    assert memory.consolidate()["merged"] == 0
    assert len(live(memory)) == 2


def test_pairs_of_what_is_forgotten_are_not_queued(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.import_rows([{"id": str(place), "content": text} for place, text in enumerate(PORTS)])
    came = before_writing(monkeypatch, memory, lambda: other.forget("1"), nth=2)
    memory.consolidate()
    assert came()
    assert memory.database.rows("SELECT * FROM consolidation_queue") == []


def test_what_comes_while_neighbours_are_looked_for_is_compared_later(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_writing(monkeypatch, memory, lambda: other.store(f"Note: {TEA}"))
    memory.store(TEA)
    assert memory.consolidate()["merged"] == 1


def test_a_lease_that_another_has_by_now_stays_theirs(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take() -> None:
        with other.database.transaction() as connection:
            connection.execute("UPDATE meta SET value = 'them 1' WHERE key = 'consolidation'")

    memory.store(TEA)
    before_writing(monkeypatch, memory, take, nth=2)
    memory.consolidate()
    assert values(memory, "SELECT value FROM meta WHERE key = 'consolidation'") == ["them 1"]


def test_an_id_that_another_text_takes_is_refused(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": name, "content": text} for name, text in zip("ab", PORTS, strict=True)]
    theirs = [{"id": "a", "content": TEA}, rows[1]]
    before_writing(monkeypatch, memory, lambda: other.import_rows(theirs))
    answer = memory.import_rows(rows)
    assert (answer["stored"], answer["existing"]) == (0, 1)
    assert [row["line"] for row in answer["refused"]] == [1]
    assert memory.get("a")["content"] == TEA


@pytest.mark.parametrize("deed", ["store", "import", "embed", "index"])
def test_vectors_of_a_model_that_is_another_by_now_are_not_kept(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch, deed: str, tmp_path: Path
) -> None:
    memory.store(TEA)
    (tmp_path / "notes.md").write_text("# Ropes\n\nThey are in the cellar.\n")
    with monkeypatch.context() as patch:
        patch.setattr(sediment, "INLINE_CHUNKS", 0 if deed == "embed" else sediment.INLINE_CHUNKS)
        if deed == "embed":
            memory.store(COFFEE)

        def change() -> None:
            with other.database.transaction() as connection:
                connection.execute("UPDATE meta SET value = 'new' WHERE key = 'model_digest'")

        deeds: dict[str, Callable[[], Any]] = {
            "store": lambda: memory.store(COFFEE),
            "import": lambda: memory.import_rows([{"content": COFFEE}]),
            "embed": memory.embed_pending,
            "index": lambda: memory.index([tmp_path / "notes.md"]),
        }
        came = before_writing(patch, memory, change, nth=2 if deed in ("embed", "index") else 1)
        deeds[deed]()
    assert came()
    assert values(memory, "SELECT count(*) FROM vectors") == [1]
    assert memory.pending() == 1


def test_a_vector_is_not_given_to_a_chunk_that_is_another_by_now(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As when a backup is brought back in the meantime."""
    with monkeypatch.context() as patch:
        patch.setattr(sediment, "INLINE_CHUNKS", 0)
        memory.store(TEA)
        memory.backup(tmp_path / "copy.db")
        memory.store(LATER)
        with open_memory(tmp_path / "copy.db") as copy:
            copy.store(COFFEE)
        before_writing(patch, memory, lambda: other.restore(tmp_path / "copy.db"), nth=2)
        memory.embed_pending()
    memory.embed_pending()
    assert memory.recall(COFFEE)["results"][0]["content"] == COFFEE
    assert memory.recall(COFFEE)["results"][0]["content"] == COFFEE


@pytest.mark.parametrize("nth", [2, 3])
def test_two_models_do_not_mix_in_a_reindex(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    memory.store(TEA)

    def begin() -> None:
        with other.database.transaction() as connection:
            connection.execute("DELETE FROM staged")
            connection.execute("UPDATE meta SET value = 'theirs' WHERE key = 'reindex'")

    before_writing(monkeypatch, memory, begin, nth=nth)
    with pytest.raises(DatabaseError, match="another process"):
        memory.reindex()
    assert memory.database.rows("SELECT * FROM staged") == []


def test_what_comes_while_a_backup_is_brought_back_is_refused_or_kept(
    memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory.store(TEA)
    memory.backup(tmp_path / "copy.db")
    copy, told = sediment.copy_database, []

    def copy_and_then(source: Any, target: Path) -> None:
        copy(source, target)
        if "before-restore" in target.name:
            with monkeypatch.context() as patch, contextlib.suppress(DatabaseError):
                patch.setattr(sediment, "make_busy_handler", lambda *_: lambda _: False)
                told.append(other.store(COFFEE)["id"])

    monkeypatch.setattr(sediment, "copy_database", copy_and_then)
    kept = open_memory(Path(memory.restore(tmp_path / "copy.db")["kept"]))
    there = {row["id"] for one in (memory, kept) for row in one.export_rows()}
    assert there >= set(told)

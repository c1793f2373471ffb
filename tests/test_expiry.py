"""Memories that end: hidden from then on, whoever looks and though nothing was written."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from program import Program
from storage import open_memory
from sync_machines import Machine, agree

import sediment
from sediment import InvalidInput, Memory

CLOSED = "The office is closed for repairs."
LONG_AGO = 1_700_000_000


def end(memory: Memory, id: str, at: int = LONG_AGO) -> None:
    """Let a memory have ended."""
    with memory.database.transaction() as connection:
        sediment.set_marks(connection, id, {sediment.EXPIRY: at})


def shown(memory: Memory) -> list[str]:
    """The ids that recall and list show, which must be the same."""
    listed = [row["id"] for row in memory.list_items(limit=100)["items"]]
    found = memory.recall("is the office closed for repairs?", anyway=True)["results"]
    assert sorted(row["id"] for row in found) == sorted(listed)
    return listed


@pytest.mark.parametrize("resident", [True, False])
def test_what_is_past_its_end_is_hidden_and_undo_brings_it_back(path: Path, resident: bool) -> None:
    with open_memory(path) as memory:
        memory._resident = resident
        id = memory.store(CLOSED, expires="30d")["id"]
        assert memory.get(id)["expires_at"] == pytest.approx(time.time() + 30 * 86_400, abs=60)
        assert shown(memory) == [id]
        end(memory, id)
        assert shown(memory) == []
        (row,) = memory.list_items(replaced=True)["items"]
        assert (row["ended_by"], row["ended_at"]) == ("prune", LONG_AGO)
        assert "it no longer expires" in memory.undo(id)["message"]
        assert shown(memory) == [id]
        assert "expires" not in memory.get(id)


def test_an_index_in_memory_sees_an_end_pass(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written meanwhile: only time goes by."""
    id = memory.store(CLOSED, expires="30d")["id"]
    assert shown(memory) == [id]
    later = time.time() + 31 * 86_400
    monkeypatch.setattr(sediment.time, "time", lambda: later)
    connection = memory.database.reader()
    connection.create_scalar_function("unixepoch", lambda *_: int(later))
    assert shown(memory) == []
    assert memory.store(CLOSED)["id"] != id


def test_what_has_ended_was_there_before(memory: Memory) -> None:
    id = memory.store(CLOSED, created_at=LONG_AGO - 100)["id"]
    end(memory, id)
    found = memory.recall("is the office closed?", as_of=LONG_AGO - 50)["results"]
    assert [row["id"] for row in found] == [id]
    assert memory.recall("is the office closed?", as_of=LONG_AGO + 50)["results"] == []


def test_purge_erases_what_has_ended_alone(memory: Memory) -> None:
    ids = [memory.store(text)["id"] for text in (CLOSED, "The kettle is in the cellar.")]
    end(memory, ids[0])
    memory.expire(ids[1], "30d")
    assert memory.purge(dry_run=True)["count"] == 1
    memory.purge()
    assert [row["id"] for row in memory.export_rows()] == ids[1:]


def test_the_last_store_says_when_a_text_ends(memory: Memory) -> None:
    id = memory.store(CLOSED, expires="30d")["id"]
    assert memory.store(CLOSED, expires="2100-01-01")["already_stored"]
    assert memory.get(id)["expires"].startswith("2100-01-01")
    memory.store(CLOSED)
    assert "expires" not in memory.get(id)


def test_what_is_to_end_soon_is_listed(memory: Memory) -> None:
    soon = memory.store(CLOSED, expires="3d")["id"]
    late = memory.store("The kettle is in the cellar.", expires="30d")["id"]
    memory.store("The lamp is in the hall.")
    assert [row["id"] for row in memory.list_items(expiring="7d")["items"]] == [soon]
    assert {row["id"] for row in memory.list_items(expiring="never")["items"]} == {soon, late}
    assert "no longer expires" in memory.expire(soon, "never")["message"]
    assert memory.list_items(expiring="7d")["items"] == []


@pytest.mark.parametrize("when", ["2020-01-01", "0d", "soon", -1, ""])
def test_an_end_is_to_come(memory: Memory, when: object) -> None:
    with pytest.raises(InvalidInput):
        memory.store(CLOSED, expires=when)
    assert memory.list_items()["total"] == 0


def test_what_ends_is_merged_with_nothing(memory: Memory) -> None:
    memory.store(CLOSED, expires="30d")
    memory.store(f"Note: {CLOSED}")
    memory.consolidate()
    assert memory.list_items()["total"] == 2


def test_the_shell_says_when_a_memory_ends(run_pyz: Run, tmp_path: Path) -> None:
    program = Program(run_pyz, tmp_path / "project")
    id = program.store(CLOSED, "--expires", "2100-01-01")
    assert "until 2100-01-01" in program.ok("list", "--expiring", "2100-02")
    assert "2099-05-05" in program.ok("expire", id[:8], "2099-05-05")
    assert program.json("recall", "is the office closed?")["results"][0]["expires"]
    assert "a future date" in program.error("expire", id, "2020-01-01", code=2)


# Machines


def test_an_end_goes_to_all_machines_and_so_does_its_undo(tmp_path: Path) -> None:
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    id = a.memory.store(CLOSED)["id"]
    end(a.memory, id, a.now - 100)
    agree([a, b], random.Random(1))
    assert b.memory.list_items()["total"] == 0
    a.now, b.now = a.now + 10, b.now + 10
    b.memory.undo(id)
    agree([a, b], random.Random(1))
    assert [one.memory.list_items()["total"] for one in (a, b)] == [1, 1]


def test_what_is_to_last_does_not_end_with_the_same_text_of_another_machine(
    tmp_path: Path,
) -> None:
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    ids = [one.memory.store(CLOSED)["id"] for one in (a, b)]
    end(a.memory, ids[0], a.now - 100)
    agree([a, b], random.Random(1))
    for one in (a, b):
        assert [row["id"] for row in one.memory.list_items()["items"]] == [ids[1]]


# Rules


def rules(memory: Memory, text: str) -> None:
    sediment.rules_file(memory.database).write_text(text, "utf-8")


def test_rules_say_what_prune_hides(memory: Memory) -> None:
    old: dict[str, Any] = {"created_at": LONG_AGO}
    scratch = memory.store(CLOSED, tags=["scratch"], **old)["id"]
    lasting = memory.store("The kettle is in the cellar.", **old)["id"]
    everywhere = memory.store("The lamp is in the hall.", scope="global", **old)["id"]
    other = memory.of_project("other").store("The cup is in the loft.", **old)["id"]
    rules(memory, '[[rule]]\ntag = "Scratch"\nolder_than = "30d"\n')
    assert [row["id"] for row in memory.prune(dry_run=True)["items"]] == [scratch]
    assert memory.list_items()["total"] == 2
    memory.prune()
    assert [row["id"] for row in memory.list_items()["items"]] == [lasting]
    rules(memory, '[[rule]]\nscope = "project:other"\nolder_than = "30d"\n'
          '[[rule]]\nscope = "global"\nolder_than = "1y"\n')  # fmt: skip
    assert {row["id"] for row in memory.prune()["items"]} == {other, everywhere}
    memory.undo(scratch)
    assert memory.get(scratch)["tags"] == ["scratch"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rule = 3", "it has daily"),
        ("[[rule]]", "rule 1 needs an age"),
        ('[[rule]]\nolder_than = "90"', "rule 1: an age is"),
        ('[[rule]]\nolder_than = "9d"\nkind = "x"', "kind = 'x'"),
        ('[[rule]]\nolder_than = "9d"\ntag = "a b"', "a tag is"),
        ('[[rule]]\nolder_than = "9d"\nscope = "project"', 'rule 1: scope is "global" or'),
        ("[[rule", "cannot be read"),
        ('daily = "yes"', "it has daily"),
    ],
)
def test_a_wrong_rule_hides_nothing(memory: Memory, text: str, told: str) -> None:
    memory.store(CLOSED, created_at=LONG_AGO)
    rules(memory, text)
    with pytest.raises(InvalidInput, match=told):
        memory.prune()
    assert memory.list_items()["total"] == 1


def test_a_server_follows_the_rules_once_a_day_where_they_say_so(memory: Memory) -> None:
    retention = sediment.extension("retention")
    memory.store(CLOSED, created_at=LONG_AGO)
    memory.embed_pending()
    memory.consolidate()
    assert not memory.has_chores()
    rules(memory, '[[rule]]\nolder_than = "30d"\n')
    assert memory.has_chores()
    retention.prune_daily(memory.database)
    assert not memory.has_chores()
    assert memory.list_items()["total"] == 1
    rules(memory, 'daily = true\n[[rule]]\nolder_than = "30d"\n')
    retention.prune_daily(memory.database)  # not again today
    assert memory.list_items()["total"] == 1
    with memory.database.transaction() as connection:
        sediment.set_meta(connection, retention.FOLLOWED, "2020-01-01")
    retention.prune_daily(memory.database)
    assert memory.list_items()["total"] == 0

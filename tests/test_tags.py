"""Tags: what has which, how they are kept, and that no machine loses any."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from conftest import Run
from program import Program
from storage import open_memory
from sync_machines import Machine, agree
from wire import Wire, small_env

import sediment
from sediment import InvalidInput, Memory, NotFound

DEPLOY = "We deploy on Fridays, after the canary is green."
CACHE = "The cache holds at most 100 MB."


def tags_of(memory: Memory, id: str) -> list[str]:
    return memory.get(id).get("tags", [])


def counted(memory: Memory) -> dict[str, int]:
    return {row["tag"]: row["count"] for row in memory.tags()["tags"]}


def test_a_tag_chooses_what_is_listed_and_what_may_answer(memory: Memory) -> None:
    both = memory.store(DEPLOY, tags=["deploy", "ci"])["id"]
    one = memory.store("The release manager deploys.", tags=["deploy"])["id"]
    memory.store(CACHE)
    assert {row["id"] for row in memory.list_items(tags=["deploy"])["items"]} == {both, one}
    assert [row["id"] for row in memory.list_items(tags=["deploy", "ci"])["items"]] == [both]
    (found,) = memory.recall("when do we deploy?", tags=["ci"])["results"]
    assert (found["id"], found["tags"]) == (both, ["ci", "deploy"])
    assert memory.recall("when do we deploy?", tags=["other"])["results"] == []
    assert memory.recall("how much does the cache hold?", tags=["deploy"])["results"] == []


def test_other_projects_answer_by_tag_too_but_are_not_counted(memory: Memory) -> None:
    memory.of_project("other").store(DEPLOY, tags=["deploy"])
    memory.store(CACHE, scope="global", tags=["cache"])
    assert counted(memory) == {"cache": 1}
    (found,) = memory.recall("when do we deploy?", tags=["deploy"])["results"]
    assert found["cross_project"]


def test_a_tag_is_kept_in_one_form(memory: Memory) -> None:
    id = memory.store(DEPLOY, tags=["#Deploy", "DEPLOY", "cafe\u0301", "C++", "a/b:c"])["id"]
    assert tags_of(memory, id) == ["a/b:c", "c++", "caf\u00e9", "deploy"]
    assert memory.list_items(tags=["CAF\u00c9"])["total"] == 1


@pytest.mark.parametrize(
    "tag", ["", "#", "a b", "a,b", "it's", 'a"b', "x" * 65, "a\n", "\ud800", 7]
)
def test_what_is_no_tag_is_refused(memory: Memory, tag: object) -> None:
    with pytest.raises(InvalidInput, match="a tag is 1 to 64"):
        memory.store(DEPLOY, tags=[tag])  # type: ignore[list-item]
    assert memory.list_items()["total"] == 0


def test_too_many_and_secret_tags_are_refused(memory: Memory) -> None:
    with pytest.raises(InvalidInput, match="up to 20 tags"):
        memory.store(DEPLOY, tags=map(str, range(21)))
    with pytest.raises(InvalidInput, match="tags are a list"):
        memory.store(DEPLOY, tags="deploy")
    with pytest.raises(InvalidInput, match="looks like a credential"):
        memory.store(DEPLOY, tags=["ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789"])


def test_tags_of_a_memory_change_and_one_is_renamed_in_all(memory: Memory) -> None:
    one, two = memory.store(DEPLOY, tags=["ci"])["id"], memory.store(CACHE, tags=["ci", "x"])["id"]
    assert memory.tag(one, add=["New"], remove=["ci"])["tags"] == ["new"]
    assert memory.rename_tag("ci", "new")["count"] == 1
    assert (tags_of(memory, one), tags_of(memory, two)) == (["new"], ["new", "x"])
    assert counted(memory) == {"new": 2, "x": 1}
    with pytest.raises(NotFound, match="no memory here has the tag ci"):
        memory.rename_tag("ci", "y")
    other = memory.of_project("other").store("Theirs.", tags=["x"])["id"]
    with pytest.raises(NotFound, match="another project"):
        memory.tag(other, add=["y"])
    memory.rename_tag("x", "z")
    assert tags_of(memory.of_project("other"), other) == ["x"]


def test_what_takes_a_memorys_place_has_its_tags_too(memory: Memory) -> None:
    old = memory.store(DEPLOY, tags=["deploy"])["id"]
    new = memory.store("We deploy on Mondays.", tags=["new"], replace=old)["id"]
    assert (tags_of(memory, old), tags_of(memory, new)) == (["deploy"], ["deploy", "new"])
    memory.undo(old)
    assert [row["id"] for row in memory.list_items(tags=["deploy"])["items"]] == [old]
    assert memory.store(DEPLOY, tags=["again"])["already_stored"]
    assert tags_of(memory, old) == ["again", "deploy"]


def test_tags_and_ends_go_out_and_come_in(memory: Memory, tmp_path: Path) -> None:
    id = memory.store(DEPLOY, tags=["deploy", "ci"], expires="2100-01-01")["id"]
    rows = list(memory.export_rows())
    with open_memory(tmp_path / "copy.db") as copy:
        copy.import_rows(rows)
        assert list(copy.export_rows()) == rows
        answer = copy.import_rows([{"content": CACHE, "tags": ["two words", "Ok"]}])
        assert answer["success"]
        assert counted(copy) == {"ci": 1, "deploy": 1, "ok": 1, "two-words": 1}
        refused = copy.import_rows([{"content": "x", "tags": "ci"}])["refused"]
        assert "tags must be a list" in refused[0]["reason"]
    memory.forget(id)
    assert memory.database.rows("SELECT * FROM marks") == []


def test_the_shell_tags_lists_and_recalls(run_pyz: Run, tmp_path: Path) -> None:
    program = Program(run_pyz, tmp_path / "project")
    id = program.store(DEPLOY, "--tag", "deploy", "--tag", "ci", "--expires", "30d")
    program.ok("tag", "add", id[:8], "canary")
    assert program.ok("tag").split() == ["1", "canary", "1", "ci", "1", "deploy"]
    assert "#canary #ci #deploy until " in program.ok("list", "--tag", "canary")
    assert "#canary #ci #deploy" in program.ok("recall", "when do we deploy?", "--tag", "ci")
    program.ok("tag", "rename", "ci", "build")
    assert program.json("tag", "remove", id, "deploy")["tags"] == ["build", "canary"]
    assert "takes ID TAG" in program.error("tag", "add", id, code=2)
    assert "has no effect" in program.error("store", "x", "--into", "a.md", "--tag", "x", code=2)
    assert "a tag is" in program.error("store", "x", "--tag", "a b", code=2)


def test_an_agent_tags_and_recalls_by_tag(tmp_path: Path, unpacked: Path) -> None:
    wire = Wire(tmp_path, small_env(tmp_path, SEDIMENT_CACHE=str(unpacked)))
    try:
        wire.handshake()
        for text, more in ((DEPLOY, {"tags": ["deploy"], "expires": "30d"}), (CACHE, {})):
            assert wire.call("store", content=text, **more)["success"]
        found = wire.call("recall", query="when do we deploy?", tags="deploy")["results"]
        assert [row["tags"] for row in found] == [["deploy"]]
        assert found[0]["expires"]
        assert wire.call("recall", query="when do we deploy?", tags=["x"])["results"] == []
    finally:
        wire.kill()


# Machines


def test_tags_of_two_machines_come_together(tmp_path: Path) -> None:
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    id = a.memory.store(DEPLOY, tags=["both", "gone"])["id"]
    agree([a, b], random.Random(1))
    a.memory.tag(id, add=["from-a"], remove=["gone"])
    b.memory.tag(id, add=["from-b"])
    agree([a, b], random.Random(1))
    assert tags_of(a.memory, id) == tags_of(b.memory, id) == ["both", "from-a", "from-b"]
    b.now += 10
    b.memory.tag(id, add=["gone"], remove=["from-a"])
    agree([a, b], random.Random(1))
    assert tags_of(a.memory, id) == tags_of(b.memory, id) == ["both", "from-b", "gone"]
    b.memory.forget(id)
    agree([a, b], random.Random(1))
    assert a.memory.database.rows("SELECT * FROM marks") == []


def test_a_record_with_a_tag_that_none_can_be_is_refused() -> None:
    row = {"v": 1, "id": "x", "in": "team", "text": [1, "w", "A fact.", 1]}
    for marks in (
        {"A b": [1, "w", 1]},
        {"a": [1, "w"]},
        {"a": [1, "", 1]},
        {"": [1, "w", -1]},
        [1],
    ):
        with pytest.raises(InvalidInput):
            sediment.extension("sync.merge").state_of({**row, "marks": marks})


def test_a_file_that_syncs_is_brought_to_version_16(tmp_path: Path) -> None:
    """As version 15 left it: without tags, and with the states of sync."""
    path = tmp_path / "memory.db"
    with open_memory(path) as memory:
        (tmp_path / "shared").mkdir()
        memory.sync_to(str(tmp_path / "shared"))
        id = memory.store(DEPLOY)["id"]
    connection = sediment.apsw.Connection(str(path))
    connection.execute(
        "DROP TRIGGER replica_mark; DROP TRIGGER replica_unmark; DROP VIEW past; DROP VIEW states;"
        "DROP TABLE marks; ALTER TABLE replica DROP COLUMN marks; PRAGMA user_version = 15"
    )
    connection.close()
    with open_memory(path) as memory:
        memory.tag(id, add=["deploy"])
        (marks,) = memory.database.rows("SELECT marks FROM replica")[0]
        assert json.loads(marks)["deploy"][2] == 1
        assert sediment.missing_in_schema(memory.database.reader()) == []

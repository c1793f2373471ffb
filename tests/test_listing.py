"""Which items there are, in which order, page by page; where they move, and what happened."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from program import repository

from sediment import InvalidInput, Memory, NotFound, cli
from sediment_ext.transcripts import Conversation, Turn

DAYS = ("2026-01-05", "2026-02-05", "2026-03-05")
TEXTS = ("The kettle is in the cellar", "Invoices go to Berta", "The bridge opens at nine")


@pytest.fixture
def ids(memory: Memory) -> list[str]:
    pairs = zip(TEXTS, DAYS, strict=True)
    return [memory.store(text, created_at=day)["id"] for text, day in pairs]


def listed(memory: Memory, **which: Any) -> list[str]:
    return [row["id"] for row in memory.list_items(**which)["items"]]


def test_the_newest_come_first_or_the_oldest(memory: Memory, ids: list[str]) -> None:
    assert listed(memory) == ids[::-1]
    assert listed(memory, oldest=True) == ids
    assert memory.list_items(oldest=True)["oldest"] is True


def test_pages_follow_one_another(memory: Memory, ids: list[str]) -> None:
    pages = [memory.list_items(limit=2, page=page) for page in (1, 2, 3)]
    assert [row["id"] for page in pages for row in page["items"]] == ids[::-1]
    assert [page["total"] for page in pages] == [3, 3, 3]
    assert [page["count"] for page in pages] == [2, 1, 0]
    assert pages[2]["message"] == "Page 3 is past the end (3 in all)."


def test_a_day_or_month_is_meant_to_its_end(memory: Memory, ids: list[str]) -> None:
    assert listed(memory, since="2026-02") == ids[:0:-1]
    assert listed(memory, until="2026-02") == ids[1::-1]
    assert listed(memory, since="2026-02-05", until="2026-02-05") == [ids[1]]
    assert memory.list_items(since="2026-03-06")["message"] == "No such memories."


def test_what_is_hidden_is_listed_alone(memory: Memory, ids: list[str]) -> None:
    new = memory.store("Invoices go to Carl now", replace=ids[1])["id"]
    assert listed(memory, replaced=True) == [ids[1]]
    assert memory.list_items(replaced=True)["items"][0]["successor"] == new
    assert ids[1] not in listed(memory)


def test_a_list_of_nothing_live_tells_what_is_hidden(memory: Memory, ids: list[str]) -> None:
    memory.prune(older_than="0d")
    told = memory.list_items()["message"]
    assert told == f"No memories here; {len(ids)} hidden: `list --replaced`."


def test_what_no_recall_has_shown_is_listed_alone(memory: Memory, ids: list[str]) -> None:
    found = memory.recall("Where is the kettle?", limit=1)["results"][0]["id"]
    assert found == ids[0]
    assert listed(memory, never_recalled=True) == ids[:0:-1]


def test_parts_of_files_are_a_kind_of_their_own(memory: Memory, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("# Harbour\n\nThe crane is red.\n")
    memory.index([notes])
    assert memory.list_items()["total"] == 0
    (row,) = memory.list_items(kind="file")["items"]
    assert "crane" in row["content"]
    assert "notes.md" in row["source"]
    assert memory.list_items(kind="conversation")["total"] == 0


@pytest.mark.parametrize(
    ("which", "word"),
    [({"page": 0}, "page"), ({"kind": "song"}, "kind"), ({"since": "soonish"}, "a time is")],
)
def test_what_is_no_filter_is_refused(memory: Memory, which: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        memory.list_items(**which)


def test_a_shell_takes_the_same(memory: Memory, path: Path, ids: list[str]) -> None:
    def said(*words: str) -> str:
        start = ("--db", str(path), "--project", "demo", "list")
        return CliRunner().invoke(cli, [*start, *words]).output

    assert said("--oldest", "-l", "1", "--page", "2").splitlines()[0] == (
        "1 of 3, page 2, oldest first"
    )
    assert ids[1][:8] in said("--since", "2026-02", "--until", "2026-02")
    assert ids[2][:8] in said("--never-recalled", "--kind", "memory")
    assert "no effect with --conversations" in said("--conversations", "--oldest")
    turn = Turn("k", 1, "Is the boat lit?", "Yes.")
    memory.add_conversations(Conversation("claude", f"s{n}", None, [turn], 0) for n in range(3))
    assert len(said("--conversations").splitlines()) == 3
    first, rest = said("--conversations", "--limit", "1").splitlines()
    assert "claude:s2" in first
    assert rest == "and 2 more (--limit)"


# Moving, and what happened


def test_a_memory_moves_to_every_project_and_back(memory: Memory, ids: list[str]) -> None:
    before = memory.graph(ids[1])
    told = memory.move(ids[1], "global")
    assert (told["id"], told["scope"]) == (ids[1], "global")
    assert listed(memory, scope="global") == [ids[1]]
    elsewhere = memory.of_project("another")
    assert elsewhere.recall("Who gets invoices?")["results"][0]["id"] == ids[1]
    memory.move(ids[1], "project")
    assert memory.get(ids[1])["project"] == "demo"
    assert memory.graph(ids[1])["nodes"] == before["nodes"]
    assert [event["action"] for event in memory.history(ids[1])["events"]] == ["move", "move"]
    assert listed(elsewhere, scope="all") == []


def test_what_a_memory_replaced_moves_with_it(memory: Memory) -> None:
    old = memory.store("Tea is at four.")["id"]
    new = memory.store("Tea is at five.", replace=old)["id"]
    memory.move(new, "global")
    other = memory.of_project("other")
    other.move(new, "project")
    for use in (memory.undo, memory.forget):
        with pytest.raises(NotFound, match="another project"):
            use(old)
    assert [row["id"] for row in other.history(new)["versions"]] == [old, new]
    other.undo(new)
    assert listed(other) == [old]


def test_a_memory_that_replaced_another_projects_one_does_not_move(memory: Memory) -> None:
    old = memory.store("Tea is at four.")["id"]
    new = memory.store("Tea is at five.", replace=old, scope="global")["id"]
    with pytest.raises(InvalidInput, match="store it again"):
        memory.of_project("other").move(new, "project")
    memory.move(new, "project")


def test_a_memory_moves_only_where_it_is_not(memory: Memory, ids: list[str]) -> None:
    with pytest.raises(InvalidInput, match="is in project scope already"):
        memory.move(ids[0], "project")
    twin = memory.store(TEXTS[0], scope="global")["id"]
    with pytest.raises(InvalidInput, match=f"{twin[:8]} says the same in global scope"):
        memory.move(ids[0], "global")
    with pytest.raises(NotFound, match="another project"):
        memory.of_project("another").move(ids[0], "global")
    new = memory.store("The kettle is in the attic", replace=ids[0])["id"]
    with pytest.raises(NotFound, match=f"name {new[:8]} instead"):
        memory.move(ids[0], "global")


@pytest.mark.usefixtures("utc")  # before what is stored
def test_what_happened_is_told_week_by_week(memory: Memory, ids: list[str]) -> None:
    memory.store("Invoices go to Carl now", replace=ids[1], created_at="2026-02-06")
    memory.of_project("another").store("Nobody asked")
    memory.recall("Where is the kettle?", limit=1)
    told = memory.activity()
    stored = {one["week"]: one["stored"] for one in told["weeks"] if one["stored"]}
    assert stored == {"2026-01-05": 1, "2026-02-02": 2, "2026-03-02": 1}
    assert sum(one["recalled"] for one in told["weeks"]) == 1
    assert {one["week"]: one["hidden"] for one in told["weeks"]}["2026-02-02"] == 1
    assert {one["name"]: one["memories"] for one in told["projects"]} == {"demo": 3, "another": 1}


def test_a_project_is_named_by_its_folder(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "harbour"
    folder.mkdir()
    with Memory(path, project=str(folder)) as memory:
        memory.store("The crane is red.")
        assert [one["name"] for one in memory.activity()["projects"]] == ["harbour"]


def test_projects_in_folders_of_one_name_are_told_apart(path: Path, tmp_path: Path) -> None:
    for day, place in enumerate(("t1/app", "t2/app", "t2/quay"), 1):
        (folder := tmp_path / place).mkdir(parents=True)
        if place.endswith("app"):
            repository(folder, day=day)
        with Memory(path, project=str(folder)) as memory:
            memory.store("The crane is red.")
    with Memory(path, project="quay") as memory:
        memory.store("The crane is green.")
        names = {one["name"] for one in memory.activity()["projects"]}
    assert names == {"t1/app", "t2/app", "t2/quay", "quay"}


def test_who_has_nothing_here_is_told_of_what_is_elsewhere(
    memory: Memory, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Memory(memory.database.path, project="another")
    assert "3 in other projects, which recall searches too" in other.list_items()["message"]
    monkeypatch.setenv("SEDIMENT_CROSS_PROJECT", "0")
    assert other.list_items()["message"] == "No memories yet."


def test_where_nothing_is_global_the_projects_own_is_named(memory: Memory) -> None:
    memory.store("The ferry sails at six.")
    told = memory.list_items(scope="global")["message"]
    assert "1 in this project: `list --scope all`" in told
    assert "other projects" not in told

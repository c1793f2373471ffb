"""`list`: which items, in which order, page by page."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sediment import InvalidInput, Memory, cli

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
    assert "no more than 3" in pages[2]["message"]


def test_a_day_or_month_is_meant_to_its_end(memory: Memory, ids: list[str]) -> None:
    assert listed(memory, since="2026-02") == ids[:0:-1]
    assert listed(memory, until="2026-02") == ids[1::-1]
    assert listed(memory, since="2026-02-05", until="2026-02-05") == [ids[1]]
    assert memory.list_items(since="2026-03-06")["message"] == "No items of this kind and time."


def test_what_is_hidden_is_listed_alone(memory: Memory, ids: list[str]) -> None:
    new = memory.store("Invoices go to Carl now", replace=ids[1])["id"]
    assert listed(memory, replaced=True) == [ids[1]]
    assert memory.list_items(replaced=True)["items"][0]["successor"] == new
    assert ids[1] not in listed(memory)


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
    assert ids[1] in said("--since", "2026-02", "--until", "2026-02")
    assert ids[2] in said("--never-recalled", "--kind", "memory")
    assert "without oldest" in said("--conversations", "--oldest")

"""The diaries, conversations and rivals that the ranker learns from are well formed: see their
READMEs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DIARIES = Path(__file__).parent / "diaries"
NAMES = sorted(path.name for path in DIARIES.iterdir() if path.is_dir())
TYPES = {"current": 28, "constant": 22, "asof": 8, "multi": 6, "absent": 16}
# Outdated, though newer than what is right: held for a time, holds later, or looks back.
OUTDATED_THOUGH_NEWER = {
    ("condo", "q01", "m152"),
    ("emigrants", "q01", "m144"),
    ("emigrants", "q07", "m144"),
    ("emigrants", "q53", "m064"),
    ("renovation", "q15", "m147"),
    ("robotics", "q05", "m114"),
}
Row = dict[str, Any]


def rows(diary: str, name: str) -> list[Row]:
    text = (DIARIES / diary / f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_there_are_as_many_as_the_readme_says() -> None:
    readme = (DIARIES / "README.md").read_text("utf-8")
    assert len(NAMES) == 72
    assert readme.startswith("# Seventy-two diaries")
    for kind, count in TYPES.items():
        assert f"| {kind} | {count} |" in readme


@pytest.mark.parametrize("diary", NAMES)
def test_notes_are_distinct_and_in_the_order_of_their_times(diary: str) -> None:
    notes = rows(diary, "memories")
    assert all(set(note) == {"id", "content", "created_at"} for note in notes)
    assert [note["id"] for note in notes] == [f"m{number:03}" for number in range(1, 161)]
    assert len({note["content"].strip().lower() for note in notes}) == 160
    times = [note["created_at"] for note in notes]
    assert times == sorted(set(times))


@pytest.mark.parametrize("diary", NAMES)
def test_questions_are_of_the_types_that_the_readme_counts(diary: str) -> None:
    questions = rows(diary, "queries")
    assert Counter(row["type"] for row in questions) == TYPES
    for field in ("id", "query"):
        assert len({row[field] for row in questions}) == 80
    for row in questions:
        assert set(row) - {"as_of"} == {"id", "query", "type", "expected", "stale"}
        assert ("as_of" in row) == (row["type"] == "asof")
        assert bool(row["expected"]) == (row["type"] != "absent")
        assert (len(row["expected"]) > 1) or row["type"] != "multi"


@pytest.mark.parametrize("diary", NAMES)
def test_answers_name_notes_and_the_right_one_is_the_newer(diary: str) -> None:
    created = {row["id"]: row["created_at"] for row in rows(diary, "memories")}
    for row in rows(diary, "queries"):
        right, wrong = row["expected"], row["stale"]
        assert len(created.keys() & {*right, *wrong}) == len(right) + len(wrong), row["id"]
        if row["type"] == "current":
            assert wrong, row["id"]
            newest = max(created[id] for id in right)
            newer = {(diary, row["id"], id) for id in wrong if created[id] > newest}
            assert newer <= OUTDATED_THOUGH_NEWER, newer
        if row["type"] == "asof":
            assert all(created[id] <= row["as_of"] for id in right), row["id"]
            held = max(created[id] for id in right)
            later = [id for id in wrong if held < created[id] <= row["as_of"]]
            assert {(diary, row["id"], id) for id in later} <= OUTDATED_THOUGH_NEWER, row["id"]


CONVERSATIONS = {
    **{"assistant": (140, 55), "friends": (160, 55), "team": (140, 60)},
    **dict.fromkeys(("rules", "stack"), (240, 80)),
    **dict.fromkeys(("cousins", "log", "mates", "neighbours", "pen", "sisters"), (240, 90)),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_have_answers_that_stay_true(name: str) -> None:
    folder = DIARIES.parent / "conversations"
    entries, questions = (
        rows(f"../conversations/{name}", "memories"),
        rows(f"../conversations/{name}", "queries"),
    )
    assert (len(entries), len(questions)) == CONVERSATIONS[name]
    assert f"| {name} | {len(entries)} | {len(questions)} |" in (folder / "README.md").read_text()
    times, ids = [row["created_at"] for row in entries], {row["id"] for row in entries}
    assert times == sorted(set(times))
    assert len(ids) == len(entries)
    assert len({row["query"] for row in questions}) == len(questions)
    for row in questions:
        assert row["expected"]
        assert ids.issuperset(row["expected"])
        assert (row["stale"], row["type"]) == ([], "event")


RIVALS = Path(__file__).parent / "rivals"


@pytest.mark.parametrize("name", sorted(path.name for path in RIVALS.iterdir() if path.is_dir()))
def test_rivals_are_as_their_readme_says(name: str) -> None:
    notes, questions = (rows(f"../rivals/{name}", part) for part in ("memories", "queries"))
    assert all(set(note) == {"id", "content", "created_at"} for note in notes)
    assert len({note["content"].strip().lower() for note in notes}) == len(notes)
    at = {note["id"]: note["created_at"] for note in notes}
    assert list(at.values()) == sorted({*at.values()})
    assert {row["type"] for row in questions} - {"mentions"} == {"lookalikes", "versions"}
    for row in questions:
        assert len(row["expected"]) == 1
        assert bool(row["stale"]) == (row["type"] == "versions")
        assert all(at[old] < at[row["expected"][0]] for old in row["stale"])


SMALL_STORES = sorted(
    f"{place}/{folder.name}"
    for place in ("beginnings", "things")
    for folder in (Path(__file__).parent / place).iterdir()
    if folder.is_dir()
)


@pytest.mark.parametrize("name", SMALL_STORES)
def test_small_stores_are_as_their_readmes_say(name: str) -> None:
    notes, questions = (rows(f"../{name}", part) for part in ("memories", "queries"))
    assert all(set(note) == {"id", "store", "content", "created_at"} for note in notes)
    assert len({note["id"] for note in notes}) == len(notes)
    for store in {note["store"] for note in notes}:
        at = {note["id"]: note["created_at"] for note in notes if note["store"] == store}
        assert (3 if name.startswith("things") else 4) <= len(at) <= 30
        assert list(at.values()) == sorted(at.values())
        for row in (row for row in questions if row["store"] == store):
            right, stale = row["expected"], row["stale"]
            assert at.keys() >= {*right, *stale}
            assert not stale or row["type"] in ("current", "multi")
            assert bool(right) == (row["type"] != "absent")
            if row["type"] == "current":
                assert all(at[old] <= at[new] for old in stale for new in right)

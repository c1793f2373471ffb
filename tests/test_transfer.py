"""Everything in and out as JSON Lines, and nothing on the way lost or doubled."""

import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage import child, consistent, finish, hear, kill, lines, open_memory, rows_of, values

import sediment
import sediment_ext.importers
from sediment import InvalidInput, Memory


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Memory]:
    """An empty memory, of another project, to import into."""
    with open_memory(tmp_path / "copy.db", project="elsewhere") as memory:
        yield memory
        consistent(memory)


def exported(memory: Memory) -> list[dict[str, Any]]:
    return list(memory.export_rows())


def done(stored: int, existing: int = 0) -> dict[str, Any]:
    """The answer to an import in which nothing was refused."""
    return {"success": True, "stored": stored, "existing": existing, "refused": []}


# Round trips

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
printables = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
items = st.fixed_dictionaries(
    {
        "id": st.text(printables, min_size=1, max_size=255),
        "content": texts.filter(str.strip),
        "created_at": st.integers(0, sediment.TIME_MAX),
    },
    optional={"project": st.sampled_from(["demo", "other", "https://example.org/x y"])},
)


@settings(max_examples=12)
@given(st.lists(items, max_size=6, unique_by=lambda row: row["id"]))
def test_what_goes_in_comes_out(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open_memory(Path(folder) / "one.db") as one:
            assert one.import_rows(lines(rows), "global") == done(len(rows))
            out = exported(one)
        assert [
            {name: row[name] for name in given} for row, given in zip(out, rows, strict=True)
        ] == rows
        with open_memory(Path(folder) / "two.db", project="elsewhere") as two:
            assert two.import_rows(lines(out)) == done(len(rows))
            assert exported(two) == out
            assert two.import_rows(lines(out)) == done(0, len(rows))
            if rows:
                consistent(two)


def test_export_gives_what_is_documented(memory: Memory) -> None:
    own = memory.store("Ours.", created_at=5)["id"]
    shared = memory.store("Everybody's.", scope="global", created_at=3)["id"]
    at = "1970-01-01T00:00:0{}+00:00".format
    mine = {"id": own, "content": "Ours.", "created": at(5), "created_at": 5, "project": "demo"}
    everybody = {"id": shared, "content": "Everybody's.", "created": at(3), "created_at": 3}
    assert exported(memory) == [mine | {"scope": "project"}, everybody | {"scope": "global"}]


def test_replaced_items_and_projects_are_carried_over(memory: Memory, copy: Memory) -> None:
    old = memory.store("Port 8080.")["id"]
    new = memory.store("Port 9090.", replace=old)["id"]
    newest = memory.store("Port 7070.", replace=new, scope="global")["id"]
    assert copy.import_rows(lines(exported(memory))) == done(3) | {"hidden_versions": 2}
    assert exported(copy) == exported(memory)
    with open_memory(copy.database.path, project="demo") as moved:
        assert [row["id"] for row in moved.list_items(scope="all")["items"]] == [newest]
        assert moved.get(old) == memory.get(old)
        assert moved.recall("8080") == moved.recall("8080") | {"count": 1}
        assert "2 older versions" in moved.forget(newest)["message"]
    assert exported(copy) == []


def test_lineage_is_carried_over_in_any_order(memory: Memory, copy: Memory) -> None:
    old = memory.store("Port 8080.")["id"]
    memory.store("Port 9090.", replace=old)
    copy.import_rows(lines(reversed(exported(memory))))
    columns = "from_id, to_id, edge_type, strength"
    assert rows_of(copy, "graph_edges", columns) == rows_of(memory, "graph_edges", columns)


def test_an_export_ends_although_its_rows_are_stored_again(memory: Memory) -> None:
    memory.import_rows([{"id": str(n), "content": f"Heron number {n}."} for n in range(3)])
    for row in itertools.islice(memory.export_rows(), 10):
        memory.store(f"{row['content']} Seen again.")
    assert len(list(memory.export_rows())) == 6


def test_a_large_file_is_exported_whole(memory: Memory) -> None:
    rows = [{"id": f"{number:04}", "content": f"{number}"} for number in range(501)]
    memory.import_rows(lines(rows))
    assert [row["id"] for row in exported(memory)] == [row["id"] for row in rows]


def test_lines_without_a_time_are_of_one_moment(memory: Memory) -> None:
    """So that none is taken for a newer version of another: they were not written one by one."""

    def slow() -> Iterator[str]:
        for number in range(4):
            time.sleep(0.4)
            yield json.dumps({"content": f"Remark {number}."})

    assert memory.import_rows(slow())["stored"] == 4
    assert len({row["created_at"] for row in memory.export_rows()}) == 1


def test_imported_items_are_items_like_others(memory: Memory) -> None:
    row = {"id": "note/1", "content": "The ferry sails at noon.", "created_at": "2020-02-02"}
    memory.import_rows(lines([row]))
    result = memory.recall("when does the ferry sail?")["results"][0]
    assert (result["id"], result["created"]) == ("note/1", "2020-02-02T00:00:00+00:00")
    assert memory.get("note/1")["project"] == "demo"
    new = memory.store("The ferry sails at one.", replace="note/1")["id"]
    assert memory.forget(new)["success"]


def test_a_long_text_is_imported_and_its_vectors_are_made_later(memory: Memory) -> None:
    text = "\n\n".join(f"Paragraph {n} of a very long report. " * 18 for n in range(40))
    assert memory.import_rows(lines([{"id": "report", "content": text}])) == done(1)
    assert memory.pending() > sediment.INLINE_CHUNKS
    assert exported(memory)[0]["content"] == text


# Ids


@pytest.mark.parametrize(
    "id",
    ["a", "x" * 255, "two words", "https://example.org/a?b=c#d", "a/b\\c", "日本", "'; --", "%"],
)
def test_an_id_is_kept_and_works_everywhere(memory: Memory, id: str) -> None:
    memory.import_rows(lines([{"id": id, "content": "The ferry sails at noon."}]))
    assert memory.get(id)["id"] == id
    assert memory.recall(id)["results"][0]["content"] == "The ferry sails at noon."
    assert memory.recall(f"{id} page 1")["results"][0]["id"] == id
    assert memory.forget(id)["ids"] == [id]
    assert exported(memory) == []


def test_importing_twice_changes_nothing(memory: Memory) -> None:
    rows = [{"id": "a", "content": "one"}, {"content": "two"}, {"content": "two"}]
    assert memory.import_rows(lines(rows)) == done(3)
    before = rows_of(memory, "items")
    assert memory.import_rows(lines(rows)) == done(0, 3)
    assert rows_of(memory, "items") == before


def test_equal_texts_are_different_memories(memory: Memory) -> None:
    rows = [{"content": "same"}] * 3 + [{"id": "a", "content": "same"}]
    assert memory.import_rows(lines(rows)) == done(4)
    assert memory.list_items()["total"] == 4


def test_rows_without_an_id_can_go_to_each_project(memory: Memory) -> None:
    rows = lines([{"content": "The ferry sails at noon."}])
    assert memory.import_rows(rows) == done(1)
    with open_memory(memory.database.path, project="other") as other:
        assert other.import_rows(rows) == done(1)
        assert other.import_rows(rows, "global") == done(1)
        assert other.list_items(scope="all")["total"] == 2
    assert memory.import_rows(rows) == done(0, 1)


def test_a_forgotten_item_can_be_imported_again(memory: Memory) -> None:
    row = lines([{"id": "a", "content": "one"}])
    memory.import_rows(row)
    memory.forget("a")
    assert memory.import_rows(row) == done(1)


@pytest.mark.parametrize("apart", [0, 200])
def test_an_id_that_another_text_has_is_refused(memory: Memory, apart: int) -> None:
    rows = [{"id": "a", "content": "one"}, *({"id": f"{n}", "content": "x"} for n in range(apart))]
    answer = memory.import_rows(lines([*rows, {"id": "a", "content": "another"}]))
    assert answer["stored"] == 1 + apart
    assert [row["line"] for row in answer["refused"]] == [2 + apart]
    assert "another memory has the id a" in answer["refused"][0]["reason"]
    assert memory.get("a")["content"] == "one"
    assert memory.import_rows(lines([{"id": "a", "content": "more"}]))["refused"]


# Scopes


def test_a_rows_own_scope_and_project_come_first(memory: Memory) -> None:
    rows = [
        {"id": "plain", "content": "x"},
        {"id": "global", "content": "x", "scope": "GLOBAL", "project": "other"},
        {"id": "other", "content": "x", "project": "other"},
        {"id": "project", "content": "x", "scope": "project"},
    ]
    memory.import_rows(lines(rows))
    sql = "SELECT id, project_id FROM items"
    projects = dict(memory.database.rows(sql))
    assert projects == {"plain": "demo", "global": None, "other": "other", "project": "demo"}


def test_the_scope_asked_for_is_for_rows_that_have_none(memory: Memory) -> None:
    memory.import_rows(lines([{"id": "a", "content": "x"}]), "Global")
    assert memory.get("a")["scope"] == "global"
    with pytest.raises(InvalidInput, match="scope must be one of"):
        memory.import_rows([], "all")


# What is refused

GOOD = {"id": "good", "content": "The ferry sails at noon."}
BAD = [
    ("nonsense", "not a JSON object"),
    ("{", "not a JSON object"),
    ('["array"]', "not a JSON object"),
    ("null", "not a JSON object"),
    ("7", "not a JSON object"),
    ("[" * 100_000, "not a JSON object"),
    ('{"content": "x"} {"content": "y"}', "not a JSON object"),
    ('{"content": NaN}', "not a JSON object"),
    ('{"content": "x", "created_at": Infinity}', "not a JSON object"),
    ("{}", "content is missing"),
    ('{"content": 7}', "content must be a string, not int"),
    ('{"content": ["x"]}', "content must be a string, not list"),
    ('{"content": ""}', "content must not be empty"),
    ('{"content": " \\n"}', "content must not be empty"),
    ('{"content": "a\\u0000b"}', "NUL"),
    ('{"content": "\\ud83d"}', "lone surrogate"),
    (json.dumps({"content": "é" * 500_001}), "too large"),
    ('{"content": "x", "id": 7}', "an id is"),
    ('{"content": "x", "id": ""}', "an id is"),
    ('{"content": "x", "id": "a\\nb"}', "an id is"),
    ('{"content": "x", "id": "\\ud83d"}', "an id is"),
    ('{"content": "x", "id": {}}', "an id is"),
    ('{"content": "x", "created_at": "soon"}', "a time is"),
    ('{"content": "x", "created_at": -1}', "a time is"),
    ('{"content": "x", "created_at": 1e999}', "a time is"),
    ('{"content": "x", "created_at": true}', "a time is"),
    ('{"content": "x", "scope": "mine"}', "scope must be"),
    ('{"content": "x", "scope": 7}', "scope must be"),
    ('{"content": "x", "project": ""}', "an id is"),
    ('{"content": "x", "project": []}', "an id is"),
    ('{"content": "x", "ended_at": "soon", "successor": "y"}', "a time is"),
    ('{"content": "x", "ended_at": 5}', "ended_at and successor go together"),
    ('{"content": "x", "successor": "y"}', "ended_at and successor go together"),
    ('{"content": "x", "ended_at": 5, "ended_by": "banana", "successor": "y"}', "ended_by must be"),
    ('{"content": "x", "ended_at": 5, "ended_by": ["undo"], "successor": "y"}', "ended_by must be"),
    ('{"content": "x", "confirmed": -1}', "confirmed must be a whole number"),
    ('{"content": "x", "confirmed": true}', "confirmed must be a whole number"),
    ('{"content": "x", "kept_apart": "y"}', "kept_apart must be a list of ids"),
    ('{"content": "x", "kept_apart": [7]}', "an id is"),
    ('[{"content": "x"}]', "not a JSON object in one line"),
    ('{"count": 1, "items": [{"id": "a", "content": "x"}]}', "content is missing"),
    ('{"pairs": [{"old": {"content": "x"}}]}', "content is missing"),
]


def test_bad_rows_are_named_and_all_others_are_stored(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "IMPORT_BATCH", 8)
    text = [json.dumps(GOOD), *(line for line, _ in BAD), "", json.dumps(GOOD | {"id": "last"})]
    answer = memory.import_rows(text)
    assert answer["success"] is False
    assert answer["stored"] == 2
    assert [row["line"] for row in answer["refused"]] == list(range(2, len(BAD) + 2))
    for row, (line, reason) in zip(answer["refused"], BAD, strict=True):
        assert reason in row["reason"], line[:80]
        assert len(row["reason"]) < 200
    assert [row["id"] for row in exported(memory)] == ["good", "last"]


def test_refusals_are_told_in_the_order_of_the_lines(memory: Memory) -> None:
    memory.import_rows(lines([GOOD]))
    text = [json.dumps(GOOD | {"content": "another"}), "nonsense", *lines([GOOD])]
    answer = memory.import_rows(text)
    assert [row["line"] for row in answer["refused"]] == [1, 2]
    assert answer["existing"] == 1


def test_empty_lines_and_white_space_are_nothing(memory: Memory) -> None:
    assert memory.import_rows(["", " \n", f"  {json.dumps(GOOD)}\r\n", "\n"]) == done(1)
    assert memory.import_rows([]) == done(0)


def test_nothing_that_is_imported_is_hidden_behind_itself(memory: Memory) -> None:
    ended = {"ended_at": 1_790_000_000, "ended_by": "replace"}
    rows = [
        {"id": "me", "content": "An otter.", "successor": "me", **ended},
        {"id": "first", "content": "A lynx.", "successor": "second", **ended},
        {"id": "second", "content": "A puma.", "successor": "third", **ended},
        {"id": "third", "content": "A seal.", "successor": "first", **ended},
    ]
    told = memory.import_rows(lines(rows))
    assert [(row["line"], row["reason"].split()[0]) for row in told["refused"]] == [
        (1, "me"),
        (4, "third"),
    ]
    assert (told["stored"], told["success"]) == (2, False)
    memory.import_rows(lines([{"id": "third", "content": "A seal."}]))
    assert [row["id"] for row in memory.list_items()["items"]] == ["third"]
    assert len(memory.history("first")["versions"]) == 3


def test_a_version_without_its_successor_can_still_be_forgotten(memory: Memory) -> None:
    row = {"id": "old", "content": "x", "ended_at": 5, "successor": "never came"}
    told = memory.import_rows(lines([row]))
    assert told == done(1) | {"hidden_versions": 1}
    assert memory.list_items()["total"] == 0
    assert memory.get("old")["successor"] == "never came"
    assert memory.forget("old")["ids"] == ["old"]
    assert exported(memory) == []


# Interruptions


def test_each_batch_is_kept_before_the_next_is_read(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "IMPORT_BATCH", 4)
    seen: list[int] = []
    stored: list[int] = []

    def source() -> Iterator[str]:
        for number in range(10):
            stored.append(len(exported(memory)))
            yield json.dumps({"content": f"Fact {number}."})

    memory.import_rows(source(), progress=seen.append)
    assert stored == [0] * 4 + [4] * 4 + [8] * 2
    assert seen == [4, 4, 2]


def test_an_import_that_is_killed_keeps_its_batches_and_can_be_done_again(
    tmp_path: Path, memory: Memory, path: Path
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(lines({"content": f"Fact {n % 50}."} for n in range(100))))
    script = """
sediment.IMPORT_BATCH = 8
memory = Memory(sys.argv[1], project="demo", resident=False)
with open(sys.argv[2]) as file:
    said(memory.import_rows(file, progress=said)["stored"])
"""
    process = child(script, path, source)
    assert [hear(process) for _ in range(3)] == ["8"] * 3
    kill(process)
    kept = len(values(memory, "SELECT id FROM items"))
    assert 24 <= kept < 100
    assert kept % 8 == 0
    consistent(memory)
    stored = int(finish(child(script, path, source)).split()[-1])
    assert stored == 100 - kept
    assert memory.list_items()["total"] == 100


def test_rows_may_be_given_as_dicts(memory: Memory, copy: Memory) -> None:
    memory.store("Tabs, not spaces.")
    assert copy.import_rows(memory.export_rows()) == done(1)
    assert exported(copy) == exported(memory)


# Diaries


def test_the_same_text_of_two_times_stays_two(memory: Memory) -> None:
    january = [{"content": "Ran 5 km.", "created": f"2026-01-0{day}"} for day in (3, 5)]
    february = [{"content": "Ran 5 km.", "created": "2026-02-01T18:00:00"}]
    for file in (january, february):
        assert memory.import_rows(lines(file)) == done(len(file))
        assert memory.import_rows(lines(file)) == done(0, len(file))
    assert memory.import_rows(lines([*february, *january])) == done(0, 3)
    answer = memory.consolidate()
    assert answer["merged"] == 0
    assert {pair["reasons"][0][:5] for pair in answer["pairs"]} == {"date:"}
    days = [item["created"][:10] for item in memory.list_items()["items"]]
    assert days == ["2026-02-01", "2026-01-05", "2026-01-03"]


@pytest.mark.parametrize("times", [{}, {"created_at": 7}])
def test_the_same_text_without_times_of_its_own_is_merged(
    memory: Memory, times: dict[str, int]
) -> None:
    memory.import_rows([{"id": "a", "content": "The ferry sails at noon."} | times])
    memory.import_rows([{"id": "b", "content": "The ferry sails at noon."}])
    assert memory.consolidate()["merged"] == 1


# What people decided


@pytest.mark.parametrize("batch", [1, 128])
@pytest.mark.parametrize("turned", [False, True])
def test_an_undone_merge_stays_undone_in_a_copy(
    memory: Memory, copy: Memory, monkeypatch: pytest.MonkeyPatch, batch: int, turned: bool
) -> None:
    monkeypatch.setattr(sediment, "IMPORT_BATCH", batch)
    memory.import_rows([GOOD, {"id": "note", "content": f"Note: {GOOD['content']}"}])
    assert memory.consolidate()["merged"] == 1
    memory.undo("good")
    rows = exported(memory)
    assert [row["kept_apart"] for row in rows] == [["note"], ["good"]]
    assert copy.import_rows(rows[::-1] if turned else rows) == done(2)
    (pair,) = copy.consolidate()["pairs"]
    assert (pair["action"], pair["reasons"][-1][:4]) == ("linked", "undo")
    assert sorted(exported(copy), key=lambda row: row["id"]) == rows
    assert copy.import_rows(rows) == done(0, 2)
    assert len(rows_of(copy, "reviews")) == 1


@pytest.mark.parametrize("replaced", [False, True])
def test_what_was_taken_out_of_several_merges_stays_out_in_a_copy(
    memory: Memory, copy: Memory, replaced: bool
) -> None:
    fact = "The backup window is at 3 in the morning on Sundays."
    ids = []
    for at, text in enumerate((fact, f"Note: {fact}", f"Reminder: {fact}"), 1):
        other = memory.store(f"Backup number {at}", created_at=at)["id"] if replaced else None
        ids.append(memory.store(text, created_at=at, replace=other)["id"])
        assert memory.consolidate()["merged"] == (at > 1)
    assert memory.undo(ids[0])["message"] == (
        f"Restored {ids[0][:8]}; {ids[1][:8]} stays hidden behind {ids[2][:8]}."
        f" `replace {ids[0][:8]} {ids[2][:8]}` undoes this."
    )
    copy.import_rows(exported(memory))
    assert copy.consolidate()["merged"] == 0
    found = {row["id"]: row["kept_apart"] for row in exported(copy) if "kept_apart" in row}
    assert found == {ids[0]: sorted(ids[1:]), ids[1]: ids[:1], ids[2]: ids[:1]}


@pytest.mark.parametrize("turned", [False, True])
def test_what_was_kept_in_a_review_is_so_in_a_copy(
    memory: Memory, copy: Memory, turned: bool
) -> None:
    memory.import_rows([GOOD, {"id": "note", "content": f"Note: {GOOD['content']}"}])
    memory.keep_both("good", "note")
    rows = exported(memory)
    assert [row["kept_apart"] for row in rows] == [["note"], ["good"]]
    assert copy.import_rows(rows[::-1] if turned else rows) == done(2)
    assert copy.consolidate()["merged"] == 0
    assert sorted(exported(copy), key=lambda row: row["id"]) == rows
    assert rows_of(copy, "history") == []


def test_a_copy_exports_the_same_lines(memory: Memory, copy: Memory) -> None:
    """Whatever order people kept what is alike beside each other in."""
    memory.import_rows([GOOD, *({"id": id, "content": f"Note {id}"} for id in "abc")])
    for other in "cab":
        memory.keep_both("good", other)
    rows = exported(memory)
    assert rows[0]["kept_apart"] == ["a", "b", "c"]
    assert copy.import_rows(rows) == done(4)
    assert exported(copy) == rows


def test_the_other_of_a_pair_may_come_later_or_never(copy: Memory) -> None:
    copy.import_rows([GOOD | {"kept_apart": ["late", "never came"]}])
    assert rows_of(copy, "reviews") == []
    copy.import_rows([{"id": "late", "content": "x", "kept_apart": ["good"]}])
    assert [row["kept_apart"] for row in exported(copy)] == [["late"], ["good"]]


@pytest.mark.parametrize("turned", [False, True])
def test_a_copy_takes_back_the_last_end_first(memory: Memory, turned: bool) -> None:
    texts = {"noon": "Backups run at noon.", "six": "Backups run at six.", "now": "Backups stop."}
    rows = [{"id": id, "content": texts[id], "created_at": n} for n, id in enumerate(texts)]
    ends = {"noon": 2**30, "six": 2**30 + 1}
    for row in rows[:2]:
        row |= {"ended_at": ends[row["id"]], "ended_by": "replace", "successor": "now"}
    assert memory.import_rows(rows[::-1] if turned else rows)["success"]
    here = memory.store("Backups run at one.")["id"]
    memory.replace(here, "now")
    assert [memory.undo("now")["restored"] for _ in range(3)] == [here, "six", "noon"]


def test_what_was_confirmed_is_so_in_a_copy(memory: Memory, copy: Memory) -> None:
    for _ in range(3):
        memory.store("The ferry sails at noon.", created_at="2020-02-02")
    assert exported(memory)[0]["confirmed"] == 2
    copy.import_rows(exported(memory))
    assert exported(copy) == exported(memory)
    with open_memory(copy.database.path, project="demo") as moved:
        assert moved.prune("30d")["kept"][0]["why"] == "confirmed"


def test_a_replacement_that_was_undone_is_no_pair_apart(memory: Memory, copy: Memory) -> None:
    old = memory.store("Port 8080.")["id"]
    memory.store("Port 9090.", replace=old)
    memory.undo(old)
    copy.import_rows(exported(memory))
    assert exported(copy) == exported(memory)
    assert not any("kept_apart" in row for row in exported(copy))


# What commands print

SHARED = {"id", "content", "created", "created_at", "scope", "project"}


@pytest.fixture
def several(memory: Memory) -> Memory:
    """Memories of 2020, one of them replaced, and a global one."""
    old = memory.store("The gateway listens on port 8080.", created_at="2020-01-01")["id"]
    memory.store("The gateway listens on port 9090.", replace=old, created_at="2020-02-02")
    memory.store("Everybody prefers tabs.", scope="global", created_at="2020-03-03")
    return memory


def first_id(memory: Memory) -> str:
    return exported(memory)[0]["id"]


def consolidated(memory: Memory) -> dict[str, Any]:
    memory.import_rows([{"content": "Note: the gateway listens on port 9090."}])
    return memory.consolidate()["pairs"][0]


PRINTERS: dict[str, Callable[[Memory], list[dict[str, Any]]]] = {
    "list": lambda memory: memory.list_items(scope="all")["items"],
    "recall": lambda memory: memory.recall("port tabs", anyway=True)["results"],
    "recall an id": lambda memory: memory.recall(first_id(memory))["results"],
    "get": lambda memory: [memory.get(first_id(memory))],
    "expand": lambda memory: [memory.expand(first_id(memory))],
    "history": lambda memory: memory.history(first_id(memory))["versions"],
    "graph": lambda memory: memory.graph(first_id(memory))["nodes"],
    "export": exported,
    "prune": lambda memory: memory.prune("30d", confirmed=True, dry_run=True)["items"],
    "prune, kept": lambda memory: memory.prune("30d", dry_run=True)["kept"],
    "store": lambda memory: memory.store("Note: the gateway listens on port 9090.")["may_replace"],
    "consolidate": lambda memory: [consolidated(memory)["keep"]],
}


@pytest.mark.parametrize("command", PRINTERS)
def test_a_row_that_a_command_prints_can_be_read_back(
    several: Memory, copy: Memory, command: str
) -> None:
    printed = PRINTERS[command](several)
    assert printed
    assert all(SHARED - {"project"} <= row.keys() for row in printed)
    assert all(("project" in row) is (row["scope"] == "project") for row in printed)
    hidden = sum("ended" in row for row in printed)
    known = {"hidden_versions": hidden} if hidden else {}
    answer = copy.import_rows(lines(printed))
    answer.pop("unknown_fields", None)  # which follow from others
    assert answer == done(len(printed)) | known
    told = {row["id"]: row for row in exported(several)}
    if command != "export":  # which alone tells what people decided
        told = {id: row for id, row in told.items() if row.pop("confirmed", 1)}
    assert exported(copy) == [told[row["id"]] for row in printed]


def test_a_row_that_is_laid_out_in_several_lines_is_refused_line_by_line(memory: Memory) -> None:
    text = json.dumps(GOOD, indent=2).splitlines()
    told = memory.import_rows([*text, json.dumps(GOOD)])
    assert told["stored"] == 1
    assert [row["line"] for row in told["refused"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("given", ["2020-02-02T00:00:00+00:00", 1580601600])
@pytest.mark.parametrize("name", ["created", "created_at"])
def test_either_name_of_a_time_takes_either_form(memory: Memory, name: str, given: object) -> None:
    row: dict[str, Any] = {"id": "a", "content": "x", name: given}
    ended = {name.replace("created", "ended"): given, "successor": "a"}
    assert memory.import_rows([row, row | ended | {"id": "c"}]) == done(2) | {"hidden_versions": 1}
    assert {row["created_at"] for row in exported(memory)} == {1580601600}
    assert exported(memory)[1]["ended"] == "2020-02-02T00:00:00+00:00"


def test_what_is_left_out_is_counted_of_rows_that_are_stored(memory: Memory) -> None:
    text = f"The bot's token is ghp_{'4fK9' * 9}."
    own = {"id": "a", "content": text, "labels": 1}
    answer = memory.import_rows([own, {"content": text, "labels": 1, "scope": "universe"}])
    assert (answer["stored"], len(answer["refused"])) == (1, 1)
    assert (answer["redacted"], answer["unknown_fields"]) == ({"github token": 1}, {"labels": 1})
    assert memory.import_rows([own]) == done(0, existing=1)


def test_unknown_fields_are_named(several: Memory, copy: Memory) -> None:
    own = [row | {"labels": ["a"]} for row in exported(several)]
    foreign = {"content": "Theirs.", "source": "chat", "score": 1, "Created": "2020-02-02"}
    answer = copy.import_rows([*own, foreign])
    assert answer["success"]
    assert answer["unknown_fields"] == {"labels": 3, "source": 1, "score": 1, "Created": 1}


def test_a_part_is_not_taken_for_the_whole(memory: Memory, copy: Memory) -> None:
    memory.store("\n\n".join(f"Paragraph {n} tells of the tide. " * 9 for n in range(60)))
    part = memory.recall("what tells of the tide?")["results"][0]
    page = memory.recall(part["id"])["results"][0]
    told = copy.import_rows([part, page])
    assert ["part of something longer" in row["reason"] for row in told["refused"]] == [True] * 2


@pytest.mark.parametrize(("data", "count"), [(b"", 0), (b"{}\n{}\n", 2), (b"{}\n{}", 2)])
def test_a_last_line_without_its_end_is_counted(tmp_path: Path, data: bytes, count: int) -> None:
    (tmp_path / "rows.jsonl").write_bytes(data)
    with open(tmp_path / "rows.jsonl", "rb") as file:
        assert sediment_ext.importers._count_lines(file) == count
        assert file.tell() == 0


@pytest.mark.parametrize("name", ["/home/x/gateway", "./x", "gateway/", "~", ".x"])
def test_a_folder_is_no_project_of_a_row(memory: Memory, name: str) -> None:
    told = memory.import_rows([{"content": "The rack is in bay 4.", "project": name}])
    assert (told["stored"], "is a folder" in told["refused"][0]["reason"]) == (0, True)


@pytest.mark.parametrize("name", ["id", "project", "successor"])
def test_a_credential_is_no_name_of_a_row(memory: Memory, name: str) -> None:
    key = "ghp_" + "a1B2c3D4e5F6" * 3
    row = {"content": "The rack is in bay 4.", name: key, "ended_at": 1_700_000_000}
    row = row if name == "successor" else {**row, "ended_at": None}
    told = memory.import_rows([row])
    assert (told["stored"], "credential" in told["refused"][0]["reason"]) == (0, True)
    assert key not in str(told)
    assert memory.import_rows([row], allow_secrets=True)["stored"] == 1

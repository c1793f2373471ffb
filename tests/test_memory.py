"""What a memory keeps, finds, replaces and forgets."""

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from storage import (
    TIMEOUT,
    child,
    consistent,
    finish,
    hear,
    kill,
    open_memory,
    rows_of,
    values,
)

import sediment
from sediment import InvalidInput, Memory, NotFound, SedimentError

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")

TOPICS = ["tea", "the harbour", "a violin", "the moon", "an invoice", "the bakery", "a glacier"]
LONG = "\n\n".join(
    f"Chapter {n} is about {TOPICS[n % 7]}. It tells at length what {TOPICS[n % 7]} means to"
    f" the people of the valley, and ends with remark number {n}."
    for n in range(20)
)
ENDLESS = "\n\n".join(
    f"Entry {n}: the gauge at weir number {n} showed {n * 7} centimetres. "
    + "The water was calm that day and nothing else was written down. " * 9
    for n in range(40)
)


@pytest.fixture
def other(path: Path) -> Iterator[Memory]:
    """The same file, seen from another project."""
    with open_memory(path, project="other") as memory:
        yield memory


def ids(answer: dict[str, Any]) -> list[str]:
    return [row["id"] for row in answer.get("results", answer.get("items", []))]


def first(memory: Memory, query: str) -> dict[str, Any]:
    return memory.recall(query, anyway=True)["results"][0]


# Storing


def test_store_answers_with_what_is_documented(memory: Memory) -> None:
    answer = memory.store("We deploy on Fridays.")
    assert answer == {
        "success": True,
        "id": answer["id"],
        "scope": "project",
        "message": "Stored in project scope.",
    }
    assert UUID.fullmatch(answer["id"])
    assert memory.store("All bow.", scope="Global")["scope"] == "global"


@pytest.mark.parametrize(
    "text", [" padded \n", "a\r\nb", "\ufeffmark", "e\u0301", "😀", "tab\tx\x01"]
)
def test_a_text_comes_back_as_it_was(memory: Memory, text: str) -> None:
    id = memory.store(text)["id"]
    assert memory.get(id)["content"] == text
    assert first(memory, id)["content"] == text
    assert memory.list_items()["items"][0]["content"] == text


@pytest.mark.parametrize("text", ["", "  \n", "a\0b", "\ud800", "é" * 500_001, 7, None])
def test_a_bad_text_is_refused_and_nothing_is_created(
    memory: Memory, path: Path, text: Any
) -> None:
    with pytest.raises(InvalidInput, match="content"):
        memory.store(text)
    assert not path.exists()


@pytest.mark.parametrize(
    "bad", [{"scope": "all"}, {"scope": ""}, {"created_at": "soon"}, {"replace": ""}]
)
def test_a_bad_argument_is_refused_and_nothing_is_created(
    memory: Memory, path: Path, bad: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        memory.store("a text", **bad)
    assert not path.exists()


@pytest.mark.parametrize("name", [5, "a\0b", "\ud83d", "a" * 300, "/"])
def test_what_no_file_can_be_called_is_refused(memory: Memory, name: Any) -> None:
    memory.store("Lunch is at noon.")
    for write in (
        memory.backup,
        memory.restore,
        memory.index,
        memory.unindex,
        lambda name: memory.note("x", folder="/dev/null" if name == "/" else name),
        lambda name: memory.store("x", into=name),
        lambda name: Memory(name).stats(),
    ):
        with pytest.raises(SedimentError):
            write(name)
    with pytest.raises(InvalidInput, match="must be a string"):
        memory.index(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInput, match="must be a string"):
        memory.index(".", globs=[5])  # pyright: ignore[reportArgumentType]


def test_what_is_of_another_type_is_refused_or_taken_as_it_is_meant(memory: Memory) -> None:
    memory.store("Lunch is at noon.")
    count: Any = 2.0
    assert memory.recall("lunch", limit=count)["count"] == memory.list_items(limit=count)["count"]
    wrong: Any = 5
    with pytest.raises(InvalidInput, match="a list of lines"):
        memory.import_rows(wrong)
    with pytest.raises(InvalidInput, match="a project is an id"):
        Memory("other.db", project=wrong)


def test_forgetting_nothing_is_refused(memory: Memory) -> None:
    with pytest.raises(InvalidInput, match="name what to forget"):
        memory.forget()


def test_created_at_is_kept(memory: Memory) -> None:
    id = memory.store("The bridge was built.", created_at="1999-12-31T23:00:00Z")["id"]
    assert memory.get(id)["created"] == "1999-12-31T23:00:00+00:00"
    assert first(memory, "bridge")["created"] == "1999-12-31T23:00:00+00:00"


@pytest.mark.parametrize("created", [None, "2024-05-31"])
def test_nothing_is_stored_by_a_clock_before_1970(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, created: str | None
) -> None:
    memory.store("Lunch is at noon.")
    monkeypatch.setattr(sediment.time, "time", lambda: -86_400.0)
    for write in (
        lambda: memory.store("Tea is at five.", created_at=created),
        lambda: memory.import_rows([{"content": "Tea is at five."}]),
    ):
        with pytest.raises(InvalidInput, match="clock of this computer is before 1970"):
            write()
    assert [row["content"] for row in memory.export_rows()] == ["Lunch is at noon."]


def test_a_near_text_is_remarked_and_queued(memory: Memory) -> None:
    text = "We deploy on Fridays, after the canary is green."
    one = memory.store(text)["id"]
    answer = memory.store("We deploy on Fridays, when the canary is green.")
    (older,) = answer["may_replace"]
    assert (older["id"], older["content"]) == (one, text)
    assert rows_of(memory, "consolidation_queue", "item_id_a, item_id_b, status") == [
        (*sorted((one, answer["id"])), "pending")
    ]
    assert memory.list_items()["total"] == 2


def test_near_texts_are_remarked_nearest_first_and_only_a_few(memory: Memory) -> None:
    for number in range(6):
        memory.store(f"Please remember that the meeting of the team is at {number} o'clock.")
    text = "Please remember that the meeting of the team is at 7 o'clock."
    older = memory.store(text)["may_replace"]
    assert len(older) == sediment.PROPOSALS_SHOWN
    scores = [row["probability"] for row in older]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_another_subject_or_project_is_no_conflict(memory: Memory, other: Memory) -> None:
    other.store("We deploy on Fridays.")
    memory.store("Penguins cannot fly.")
    assert "may_replace" not in memory.store("We deploy on Fridays.")
    assert not rows_of(memory, "consolidation_queue")


def test_a_global_text_is_a_conflict_everywhere(memory: Memory, other: Memory) -> None:
    id = other.store("We deploy on Fridays.", scope="global")["id"]
    assert memory.store("We deploy on Mondays now.")["may_replace"][0]["id"] == id


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Staging runs PostgreSQL 15.", "We moved the staging database to PostgreSQL 16."),
        ("Bookings go through Kirsty Vane.", "Kirsty has left; Diego Sala takes bookings now."),
        ("The standup is at 9:30 in the kitchen.", "From Monday the standup starts at 10:00."),
    ],
)
def test_store_names_what_it_may_make_obsolete(memory: Memory, old: str, new: str) -> None:
    for text in ("The logo is teal.", "Ada likes tea.", "Invoices are due in 30 days."):
        memory.store(text, created_at="2026-01-02")
    id = memory.store(old, created_at="2026-02-01")["id"]
    answer = memory.store(new, created_at="2026-06-01")
    assert answer["may_replace"][0]["id"] == id
    assert answer["may_replace"][0]["created"].startswith("2026-02-01")
    assert f"sediment replace OLD {answer['id'][:8]}" in answer["advice"]
    assert memory.list_items()["total"] == 5  # nothing is ended unasked
    memory.store(new, replace=id)
    assert memory.get(id)["successor"] == answer["id"]


def test_a_memory_is_not_obsolete_by_what_was_noted_before_it(memory: Memory) -> None:
    memory.store("The standup is at 10:00.", created_at="2026-05-01")
    assert "may_replace" not in memory.store("The standup is at 9:30.", created_at="2026-02-01")


# Recalling


def test_recall_answers_with_what_is_documented(memory: Memory) -> None:
    id = memory.store("We deploy on Fridays, after the canary is green.")["id"]
    answer = memory.recall("when may I deploy?")
    result = answer["results"][0]
    assert answer == {"count": 1, "results": [result]}
    facts = {"id", "content", "created", "created_at", "scope", "project"}
    assert result.keys() == facts | {"similarity", "raw_similarity"}
    assert (result["id"], result["content"][:9]) == (id, "We deploy")
    assert 0 < result["similarity"] <= 1
    assert TIME.fullmatch(result["created"])
    assert float(result["raw_similarity"]) < float(result["similarity"])


def test_an_empty_memory_says_so(memory: Memory, path: Path) -> None:
    answer = memory.recall("anything")
    assert answer == {"count": 0, "results": [], "message": "Nothing found."}
    assert not path.exists()


def test_meaning_and_words_both_find(memory: Memory) -> None:
    fridays = memory.store("We deploy on Fridays.")["id"]
    code = memory.store("Incident XK-4711 was a full disk.")["id"]
    for number in range(20):
        memory.store(f"Shopping list {number}: milk, bread and apples.")
    assert first(memory, "what day is the release shipped?")["id"] == fridays
    assert first(memory, "xk 4711")["id"] == code


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_the_limit_is_kept(memory: Memory, limit: int) -> None:
    for number in range(5):
        memory.store(f"Fact number {number}.")
    answer = memory.recall("fact", limit=limit)
    assert answer["count"] == len(answer["results"]) == min(limit, 5)
    assert ids(answer) == ids(memory.recall("fact", limit=50))[:limit]


@pytest.mark.parametrize("query", ["", " ", "a\0", "\ud800", "x" * 10_001])
def test_a_bad_query_is_refused(memory: Memory, query: str) -> None:
    with pytest.raises(InvalidInput, match="query"):
        memory.recall(query)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, 1_001])
def test_a_bad_limit_is_refused(memory: Memory, limit: Any) -> None:
    for call in (lambda: memory.recall("x", limit=limit), lambda: memory.list_items(limit=limit)):
        with pytest.raises(InvalidInput, match="limit"):
            call()


def test_a_long_text_shows_its_best_part(memory: Memory) -> None:
    assert len(LONG) > sediment.CHUNK_THRESHOLD
    memory.store(LONG)
    for query in ("remark number 13", "a glacier", "what do people think of pastries?"):
        result = first(memory, query)
        place = result["position"]
        assert result["content"] == LONG[place["start"] : place["end"]]
        assert result["beginning"] == LONG[: sediment.PREVIEW]
        assert 1 <= place["chunk"] <= place["chunks"] == len(rows_of(memory, "chunks"))
        assert place["length"] == len(LONG)
    assert "remark number 13" in first(memory, "remark number 13")["content"]


def test_a_long_text_is_one_result_and_one_item(memory: Memory) -> None:
    id = memory.store(LONG)["id"]
    assert ids(memory.recall("the people of the valley", limit=50)) == [id]
    assert memory.list_items()["items"][0]["chunked"] is True
    assert memory.get(id)["content"] == LONG


def test_an_id_as_the_query_gives_the_whole_text(memory: Memory) -> None:
    id = memory.store("Short enough.")["id"]
    memory.store(f"A text that mentions {id} by its id.")
    answer = memory.recall(f" {id}\n")
    row = memory.list_items(limit=2)["items"][1]
    assert row["content"] == "Short enough."
    assert answer == {"count": 1, "results": [row | {"similarity": 1.0}]}


@pytest.mark.parametrize("text", [ENDLESS, "日本語の長い文章。" * 3_000, '"\\\n' * 9_000])
def test_pages_join_to_the_text(memory: Memory, text: str) -> None:
    query: str | None = memory.store(text)["id"]
    joined, pages = "", []
    while query:
        result = first(memory, query)
        joined += result["content"]
        pages.append((result["page"], result["pages"]))
        query = result.get("next")
    assert joined == text
    assert pages == [(number + 1, len(pages)) for number in range(len(pages))]
    assert len(pages) > 1


def test_a_page_that_is_not_there_is_explained(memory: Memory) -> None:
    id = memory.store("Short.")["id"]
    assert first(memory, f"{id} page 1")["content"] == "Short."
    for page in ("0", "2", "999999"):
        with pytest.raises(InvalidInput, match=f"has pages 1 to 1, not {int(page)}"):
            memory.recall(f"{id} page {page}")
    assert first(memory, "unknown page 1")["id"] == id  # a question like any other


def test_accesses_are_counted(memory: Memory) -> None:
    texts = ("Tea at four.", "The server listens on 5433.")
    one, two = (memory.store(text, created_at=1)["id"] for text in texts)
    memory.recall("tea")
    memory.recall("tea at four", limit=1)
    memory.recall(two)
    memory.recall("tea", record=False)
    memory.get(one)
    counts = dict(rows_of(memory, "access_log", "item_id, access_count"))
    assert counts == {one: 2, two: 1}
    assert all(values(memory, "SELECT last_accessed_at FROM access_log"))


# Projects and scopes


def test_each_scope_lists_its_own(memory: Memory, other: Memory) -> None:
    own = memory.store("Ours.")["id"]
    shared = memory.store("Everybody's.", scope="global")["id"]
    foreign = other.store("Theirs.")["id"]
    assert ids(memory.list_items()) == [own]
    assert ids(memory.list_items(scope="GLOBAL")) == [shared]
    assert ids(memory.list_items(scope="all")) == [shared, own]
    assert ids(other.list_items(scope="all")) == [foreign, shared]
    with pytest.raises(InvalidInput, match="project, global, all"):
        memory.list_items(scope="mine")


def test_list_answers_with_what_is_documented(memory: Memory) -> None:
    nothing = {"count": 0, "total": 0, "items": [], "message": "No memories yet."}
    assert memory.list_items() == nothing
    for number in range(3):
        memory.store(f"Fact {number}.", created_at=1_000 + number)
    answer = memory.list_items(limit=2)
    assert answer == {"count": 2, "total": 3, "items": answer["items"]}
    assert answer["items"][0] == {
        "id": answer["items"][0]["id"],
        "content": "Fact 2.",
        "created": "1970-01-01T00:16:42+00:00",
        "created_at": 1_002,
        "scope": "project",
        "project": "demo",
    }


def test_other_projects_are_found_but_marked_and_weigh_less(memory: Memory, other: Memory) -> None:
    text = "The quarterly report is due in March."
    foreign = other.store(text)["id"]
    assert first(memory, text)["cross_project"] is True
    own = memory.store("The quarterly report is due in April.")["id"]
    mine, theirs = memory.recall("deadline of the figures", explain=True)["results"]
    assert [mine["id"], theirs["id"]] == [own, foreign]
    assert "cross_project" not in mine
    assert theirs["parts"]["project"] == sediment.CROSS_PROJECT_FACTOR
    assert float(theirs["similarity"]) < float(mine["similarity"])


def test_global_items_belong_to_everybody(memory: Memory, other: Memory) -> None:
    id = memory.store("Tabs, never spaces.", scope="global")["id"]
    assert "cross_project" not in first(other, "tabs or spaces?")
    assert other.get(id)["scope"] == "global"
    new = other.store("Spaces, never tabs.", replace=id)
    assert new["scope"] == "global"
    assert memory.forget(new["id"])["ids"] == [new["id"]]


@pytest.mark.parametrize("call", ["get", "forget", "replace", "undo"])
@pytest.mark.parametrize("length", [8, 36])
def test_another_projects_item_is_shown_at_most(
    memory: Memory, other: Memory, call: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = other.store("Theirs.")["id"]
    before = rows_of(memory, "items")
    calls = {"get": memory.get, "forget": memory.forget, "undo": memory.undo}
    calls["replace"] = lambda id: memory.store("Ours.", replace=id)
    if call == "get":
        shown = memory.get(id[:length])
        assert (shown["content"], shown["project"]) == ("Theirs.", other.projects.current())
        assert shown["cross_project"] is True
        assert memory.expand(id[:length])["content"] == "Theirs."
        monkeypatch.setenv("SEDIMENT_CROSS_PROJECT", "0")
    reason = "another project" if length == 36 or call != "get" else "no memory with the id"
    with pytest.raises(NotFound, match=reason):
        calls[call](id[:length])
    assert rows_of(memory, "items") == before


def test_the_beginning_of_an_id_is_enough_everywhere(memory: Memory) -> None:
    ids = ["beef1234-a", "beef1234-b", "cafe5678-a"]
    memory.import_rows({"id": id, "content": f"Text of {id}."} for id in ids)
    for name in (memory.get, memory.expand, memory.history, memory.graph):
        assert name("cafe")["id"] == "cafe5678-a"
    assert memory.recall("cafe5678")["results"][0]["id"] == "cafe5678-a"
    for deed in (memory.forget, lambda id: memory.store("Another.", replace=id)):
        with pytest.raises(InvalidInput, match="several ids begin with 'beef'"):
            deed("beef")
        with pytest.raises(InvalidInput, match="4 characters of the id or more: cafe5678-a"):
            deed("caf")
    new = memory.store("Text of another.", replace="cafe5")
    assert new["replaced_id"] == "cafe5678-a"
    assert memory.undo("cafe5")["restored"] == "cafe5678-a"
    assert memory.forget("cafe5", "beef1234-a")["ids"] == ["cafe5678-a", "beef1234-a"]


def test_what_stands_in_front_of_a_hidden_memory_is_told(memory: Memory) -> None:
    one = memory.store("Tea at four.")["id"]
    two = memory.store("Tea at five.", replace=one)["id"]
    three = memory.store("Tea at six.", replace=two)["id"]
    with pytest.raises(NotFound) as caught:
        memory.forget(one)
    assert f"`forget {three[:8]}`" in str(caught.value)
    assert f"`undo {one[:8]}`" in str(caught.value)
    with pytest.raises(NotFound, match=f"name {three[:8]} instead"):
        memory.store("Tea at seven.", replace=one)


def test_without_a_project_items_are_global(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SEDIMENT_PROJECT", raising=False)
    memory = Memory(path, folder=tmp_path)
    memory._encoder = open_memory(path).encoder
    answer = memory.store("Said at home.")
    assert answer["scope"] == "global"
    assert "no project here" in answer["message"]
    assert ids(memory.list_items(scope="all")) == [answer["id"]]


# Reading one


def test_get_answers_with_what_is_documented(memory: Memory) -> None:
    id = memory.store("We deploy on Fridays.")["id"]
    facts = memory.get(id)
    assert facts == {
        "id": id,
        "content": "We deploy on Fridays.",
        "created": facts["created"],
        "created_at": facts["created_at"],
        "scope": "project",
        "content_type": "text",
        "project": "demo",
    }
    assert memory.get(id[:6]) == facts


def test_a_short_id_must_name_one(memory: Memory) -> None:
    memory.import_rows(['{"id": "abc1", "content": "one"}', '{"id": "abc2", "content": "two"}'])
    memory.import_rows(['{"id": "abc", "content": "three"}'])
    with pytest.raises(InvalidInput, match="several ids begin with 'ab'"):
        memory.get("ab")
    assert memory.get("abc")["content"] == "three"
    for id in ("%", "_bc1", "ABC1", "abc12"):
        with pytest.raises(NotFound):
            memory.get(id)


@pytest.mark.parametrize("id", ["", "x" * 256, "a\n", None])
def test_what_is_no_id_is_refused(memory: Memory, id: Any) -> None:
    for call in (memory.get, memory.forget, lambda id: memory.store("x", replace=id or "")):
        with pytest.raises(InvalidInput, match="an id is"):
            call(id)


# Replacing


def test_replacing_hides_the_old_text_and_keeps_it(memory: Memory) -> None:
    old = memory.store("The server listens on port 8080.", created_at=1_000)["id"]
    answer = memory.store("The server listens on port 9090.", replace=old)
    new = answer["id"]
    assert answer == {
        "success": True,
        "id": new,
        "scope": "project",
        "replaced_id": old,
        "message": f"Stored in project scope; it replaced {old[:8]}.",
    }
    assert ids(memory.recall("which port? 8080", limit=50)) == [new]
    assert ids(memory.list_items()) == [new]
    hidden = memory.get(old)
    assert hidden["content"] == "The server listens on port 8080."
    assert hidden["successor"] == new
    assert TIME.fullmatch(hidden["ended"])
    assert memory.recall(old)["results"][0]["content"] == hidden["content"]


def test_replacing_writes_lineage_and_counts_a_validation(memory: Memory) -> None:
    old = memory.store("Port 8080.")["id"]
    new = memory.store("Port 9090.", replace=old)["id"]
    edges = rows_of(memory, "graph_edges", "from_id, to_id, edge_type, strength")
    assert edges == [(new, old, "supersedes", 1.0)]
    assert rows_of(memory, "access_log", "item_id, validation_count") == [(new, 1)]
    assert rows_of(memory, "history", "action, item_id, other_id") == [("replace", new, old)]


def test_the_scope_is_passed_on_unless_another_is_asked_for(memory: Memory) -> None:
    old = memory.store("Tabs.", scope="global")["id"]
    assert memory.store("Spaces.", replace=old)["scope"] == "global"
    own = memory.store("Both.")["id"]
    assert memory.store("Neither.", replace=own, scope="global")["scope"] == "global"


def test_what_is_gone_cannot_be_replaced(memory: Memory) -> None:
    old = memory.store("Port 8080.")["id"]
    new = memory.store("Port 9090.", replace=old)["id"]
    before = rows_of(memory, "items")
    for id, message in ((old, new[:8]), ("unknown", "not found")):
        with pytest.raises(NotFound, match=message):
            memory.store("Port 7070.", replace=id)
    assert rows_of(memory, "items") == before


def test_of_two_who_replace_the_same_one_wins(path: Path, memory: Memory) -> None:
    old = memory.store("Port 8080.")["id"]
    start, outcomes = threading.Barrier(4), []

    def work(number: int) -> None:
        start.wait(TIMEOUT)
        try:
            outcomes.append(memory.store(f"Port {number}.", replace=old)["id"])
        except NotFound:
            outcomes.append("")

    run_threads(work, 4)
    assert sorted(map(bool, outcomes)) == [False, False, False, True]
    assert ids(memory.list_items()) == [id for id in outcomes if id]


def run_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)


# Forgetting


def test_forget_answers_with_what_is_documented(memory: Memory) -> None:
    one, two = memory.store("One.")["id"], memory.store("Two.")["id"]
    answer = memory.forget(one, two, one)
    assert answer == {
        "success": True,
        "ids": [one, two],
        "message": f"Deleted {one[:8]}, {two[:8]}.",
    }
    assert memory.list_items()["total"] == 0


def test_forget_takes_all_or_none(memory: Memory) -> None:
    id = memory.store("Kept.")["id"]
    with pytest.raises(NotFound, match="no memory with the id 'unknown'"):
        memory.forget(id, "unknown")
    assert ids(memory.list_items()) == [id]


def test_forget_erases_the_older_versions_too(memory: Memory) -> None:
    kept = memory.store("Something else.")["id"]
    versions = [memory.store("Port 1.")["id"]]
    for number in (2, 3):
        versions.append(memory.store(f"Port {number}.", replace=versions[-1])["id"])
    memory.recall("port")
    with pytest.raises(NotFound, match="was replaced by"):
        memory.forget(versions[0])
    assert "2 older versions" in memory.forget(versions[-1])["message"]
    assert values(memory, "SELECT id FROM items") == [kept]
    for id in versions:
        with pytest.raises(NotFound):
            memory.get(id)


def test_forget_erases_every_mention(memory: Memory) -> None:
    kept, gone = memory.store("Tea is at four.")["id"], memory.store("Penguins swim.")["id"]
    edge = (
        "INSERT INTO graph_edges(from_id, to_id, edge_type, created_at) VALUES(?, ?, 'related', 0)"
    )
    pair = "INSERT INTO consolidation_queue VALUES(min(?1, ?2), max(?1, ?2), 0.9, 'pending', 0)"
    note = "INSERT INTO history(action, item_id, other_id, at) VALUES('merge', ?, ?, 0)"
    with memory.database.transaction() as connection:
        for sql in (edge, pair, note):
            connection.execute(sql, (kept, gone))
        for sql in (edge, note):
            connection.execute(sql, (gone, kept))
    memory.recall("penguins")
    memory.forget(gone)
    for table in ("graph_edges", "consolidation_queue", "history"):
        assert not rows_of(memory, table)


def bytes_of(path: Path) -> bytes:
    """All that is on disk of a database."""
    return b"".join(file.read_bytes() for file in path.parent.glob(path.name + "*"))


def test_what_is_forgotten_is_gone_from_the_disk(path: Path, memory: Memory) -> None:
    for number in range(5):
        memory.store(f"An ordinary remark, number {number}. {LONG}")
    old = memory.store("The code word is quagmirezebra.", scope="global")["id"]
    vector = memory.encoder.embed("The code word is quagmirezebra.")
    new = memory.store(f"The code word is now heliotropewalrus. {LONG}", replace=old)["id"]
    memory.recall("the code word")
    kept = memory.store("An ordinary remark of the end.")["id"]
    secrets = [b"quagmirezebra", b"heliotropewalru", vector, old.encode(), new.encode()]
    assert all(secret in bytes_of(path) for secret in secrets)
    with open_memory(path) as idle:
        idle.list_items()
        memory.forget(new)
        assert not any(secret in bytes_of(path) for secret in secrets)
    assert kept.encode() in bytes_of(path)


def test_pieces_of_forgotten_words_are_gone_from_the_index(memory: Memory) -> None:
    memory.store("quagga and quartz")
    memory.forget(memory.store("quagmirezebra and quagmirewalrus")["id"])
    blocks = b"".join(values(memory, "SELECT block FROM words_data"))
    assert b"mirezebra" not in blocks
    assert b"mirewalru" not in blocks


# Long texts


def test_a_very_long_text_is_answered_before_it_has_vectors(memory: Memory) -> None:
    answer = memory.store(ENDLESS)
    total = answer["pending_chunks"]
    assert total > sediment.INLINE_CHUNKS
    assert f"found by words alone, as it still needs {total} vectors" in answer["message"]
    assert memory.pending() == memory.stats()["pending_chunks"] == total
    result = first(memory, "the gauge at weir number 31")
    assert "weir number 31 " in result["content"]
    assert result["raw_similarity"] == 0
    consistent(memory)


def test_a_long_text_without_vectors_is_ranked_by_what_it_says(memory: Memory) -> None:
    birds = ("heron", "curlew", "plover", "dunlin", "knot", "ruff", "whimbrel", "godwit", "stilt")
    for number, bird in enumerate(birds):
        memory.store(f"The {bird} queue is at port {7001 + number}")
    id = memory.store(ENDLESS + "\n\nThe snipe queue is at port 7100.\n")["id"]
    assert memory.pending()
    before = first(memory, "snipe queue")
    assert before["id"] == id
    memory.embed_pending()
    after = first(memory, "snipe queue")
    assert (before["id"], before["raw_similarity"]) == (after["id"], after["raw_similarity"])


def test_pending_vectors_are_made_and_are_those_of_the_chunks(memory: Memory) -> None:
    memory.store(ENDLESS)
    total, steps = memory.pending(), []
    assert memory.embed_pending(steps.append) == total == sum(steps)
    assert memory.pending() == 0
    assert memory.embed_pending() == 0
    sql = """SELECT v.vector, c.start, c."end", c.context
        FROM vectors v JOIN chunks c ON c.id = v.chunk WHERE c.position IN (0, 7)"""
    for vector, *span in memory.database.rows(sql):
        text = sediment.embedding_text(ENDLESS, sediment.Chunk(*span))
        assert vector == memory.encoder.embed(text)


def test_embedding_can_be_stopped_and_goes_on(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "INLINE_CHUNKS", 1)
    memory.store(LONG)
    total, asked = memory.pending(), []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    made = memory.embed_pending(stop=stop)
    assert 0 < made < total
    assert memory.pending() == total - made
    assert memory.embed_pending() == total - made


def test_a_program_may_end_while_a_query_is_encoded(path: Path, memory: Memory) -> None:
    for text in ("Tea is served at four.", "The staging port is 5433."):
        memory.store(text)
    unknown = 'memory = Memory(sys.argv[1], project="demo")\nmemory.recall("a" * 5000)\n'
    for _ in range(3):
        process = child(unknown, path)
        errors = process.communicate(timeout=60)[1]
        assert (process.returncode, errors) == (0, "")


def test_an_interrupted_embedding_leaves_no_lease(path: Path, memory: Memory) -> None:
    memory.store(ENDLESS)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.embed_pending(interrupt)
    with open_memory(path) as another:
        left = another.pending()
        assert another.embed_pending() == left > 0


@pytest.mark.parametrize("shared", [False, True])
def test_two_at_once_do_not_double_the_work(path: Path, memory: Memory, shared: bool) -> None:
    memory.store(ENDLESS)
    total, made = memory.pending(), []
    memories = [memory, memory if shared else open_memory(path)]
    start = threading.Barrier(2)

    def work(number: int) -> None:
        start.wait(TIMEOUT)
        made.append(memories[number].embed_pending())

    run_threads(work, 2)
    assert sum(made) == total
    assert memory.pending() == 0


def test_a_killed_process_leaves_what_it_made_and_another_goes_on(
    path: Path, memory: Memory
) -> None:
    memory.store(ENDLESS)
    total = memory.pending()
    script = """
memory = Memory(sys.argv[1], project="demo", resident=False)
memory.embed_pending(lambda made: (said(made), input()))
"""
    process = child(script, path)
    made = int(hear(process))
    kill(process)
    assert 0 < made < total
    assert memory.pending() == total - made
    consistent(memory)
    with memory.database.transaction() as connection:  # its lease runs out
        connection.execute("UPDATE meta SET value = '0-0 0' WHERE key = 'embedding'")
    assert memory.embed_pending() == total - made


def test_forgetting_while_vectors_are_made(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sediment, "INLINE_CHUNKS", 1)
    doomed, kept = memory.store(LONG)["id"], memory.store(f"Kept. {LONG}")["id"]
    real = memory.encoder.embed
    forgotten: list[str] = []

    def embed(text: str) -> bytes:
        if not forgotten:  # the first batch has been read: its item goes now
            forgotten.append(memory.forget(doomed)["ids"][0])
        return real(text)

    monkeypatch.setattr(memory.encoder, "embed", embed)
    memory.embed_pending()
    assert values(memory, "SELECT id FROM items") == [kept]
    assert memory.pending() == 0


# Another model


@pytest.fixture
def foreign_model(memory: Memory) -> Memory:
    """A memory whose vectors another model made."""
    memory.store("We deploy on Fridays.")
    memory.store("Penguins cannot fly.")
    with memory.database.transaction() as connection:
        connection.execute("UPDATE meta SET value = 'of another' WHERE key = 'model_digest'")
    return memory


def test_vectors_of_another_model_are_not_compared(foreign_model: Memory) -> None:
    answer = foreign_model.recall("deploy when?")
    assert [row["content"] for row in answer["results"]] == ["We deploy on Fridays."]
    assert answer["results"][0]["raw_similarity"] == 0
    assert (
        answer["notice"]
        == "The vectors here are of another model: found by words alone until `reindex`."
    )
    assert foreign_model.stats()["same_model"] is False


def test_vectors_of_two_models_are_not_mixed(foreign_model: Memory) -> None:
    before = rows_of(foreign_model, "vectors")
    answer = foreign_model.store("Bread is baked at night.")
    assert answer["pending_chunks"] == 1
    assert foreign_model.embed_pending() == 0
    assert rows_of(foreign_model, "vectors") == before
    assert ids(foreign_model.recall("when is bread baked")) == [answer["id"]]


# Scripts without spaces


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("会议每周三上午十点在三号会议室举行。", "三号会议室"),
        ("リリースは毎週金曜日に行います。", "金曜日"),
        ("배포는 매주 금요일에 합니다.", "금요일"),
    ],
)
def test_texts_without_spaces_are_found_by_their_words(
    memory: Memory, text: str, query: str
) -> None:
    for noise in (
        "苹果和梨都很好吃。",
        "猫が好きです。",
        "오늘은 날씨가 좋다.",
        "An English text.",
    ):
        memory.store(noise)
    id = memory.store(text)["id"]
    here = sediment.Within(memory.database, "demo")
    words = sediment.weigh_query(here, query, memory._lexicon)
    found, _ = sediment.search_words(words, here)
    assert len(found.item) == 1
    assert first(memory, query)["id"] == id


def test_nine_hundred_ideographs_are_more_than_the_window(memory: Memory) -> None:
    text = "".join(f"第{n}天下雨，河水上涨了{n}厘米。" for n in range(1, 70))[:885]
    text += "最后桥梁被洪水冲走了，无人受伤"
    assert len(text) == 900 < sediment.CHUNK_THRESHOLD
    id = memory.store(text)["id"]
    assert memory.list_items()["items"][0]["chunked"] is True
    assert memory.get(id)["content"] == text
    assert "桥梁被洪水冲走" in first(memory, "桥梁怎么了？")["content"]


# Without sqlite-vec


def test_recall_is_the_same_without_the_extension(
    path: Path, memory: Memory, other: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, topic in enumerate(TOPICS * 2):
        (memory if number % 3 else other).store(f"Remark {number} is about {topic}.")
    memory.store(LONG)
    queries = ["a glacier", "remark 4", "music", "the people of the valley", "money owed"]
    assert memory.database.has_distance
    expected = [memory.recall(query, limit=8) for query in queries]
    monkeypatch.setattr(sediment, "load_distance", lambda _: False)
    with open_memory(path) as plain:
        got = [plain.recall(query, limit=8) for query in queries]
        assert not plain.database.has_distance
        for with_extension, without in zip(expected, got, strict=True):
            assert ids(without) == ids(with_extension)
            for one, two in zip(with_extension["results"], without["results"], strict=True):
                assert abs(float(one["similarity"]) - float(two["similarity"])) < 0.011
                assert one.get("position") == two.get("position")
        assert plain.store(f"{LONG}\n\nAnd so on.")["may_replace"]


# Facts


def test_stats_answer_with_what_is_documented(path: Path, memory: Memory, other: Memory) -> None:
    assert memory.stats()["exists"] is False
    old = memory.store("Ours.")["id"]
    memory.store("Ours, better.", replace=old)
    memory.store("Everybody's.", scope="global")
    other.store("Theirs.")
    stats = memory.stats()
    assert stats.pop("bytes") > 0
    assert stats == {
        "database": str(path),
        "exists": True,
        "schema": max(sediment.MIGRATIONS),
        "items": 3,
        "hidden_versions": 1,
        "file_parts": 0,
        "turns": 0,
        "chunks": 4,
        "pending_chunks": 0,
        "project": "demo",
        "project_items": 1,
        "global_items": 1,
        "model": "all-MiniLM-L6-v2",
        "dimension": 384,
        "same_model": True,
    }


def test_reading_needs_no_encoder(path: Path, memory: Memory) -> None:
    id = memory.store("A fact.")["id"]
    script = """
memory = Memory(sys.argv[1], project="demo")
memory.list_items(), memory.get(sys.argv[2]), memory.stats(), list(memory.export_rows())
memory.recall(sys.argv[2])
memory.forget(sys.argv[2])
said(sorted({"numpy", "onnxruntime", "tokenizers"} & sys.modules.keys()))
"""
    assert finish(child(script, path, id)) == "[]\n"


def test_a_recall_loads_no_code_for_masks(path: Path, memory: Memory) -> None:
    """numpy.ma takes 12 ms of each recall by a command, and comes with set operations that are not
    told that their members are unique."""
    memory.import_rows({"content": f"Berth {number} is free."} for number in range(300))
    memory.store("The heron is at pier 9.")
    with memory.database.transaction() as connection:  # as after years of forgetting
        connection.pragma("defer_foreign_keys", True)
        connection.execute("UPDATE items SET seq = seq + 5000000 WHERE seq > 290")
        connection.execute("UPDATE chunks SET item = item + 5000000 WHERE item > 290")
    script = """
memory = Memory(sys.argv[1], project="demo")
found = memory.recall("where is the heron?")["results"]
said([found[0]["content"], "numpy.ma" in sys.modules])
"""
    assert finish(child(script, path)) == "['The heron is at pier 9.', False]\n"


def test_threads_share_a_memory(memory: Memory) -> None:
    def work(number: int) -> None:
        for step in range(3):
            id = memory.store(f"Thread {number} says thing {step}.")["id"]
            assert id in ids(memory.recall(f"thread {number} thing {step}", limit=50))
            if step == 1:
                memory.forget(id)

    run_threads(work, 6)
    assert memory.list_items()["total"] == 12


def test_a_closed_memory_leaves_no_encoder_behind(path: Path) -> None:
    encoders = []
    gc.disable()  # nothing may have to wait for a collection
    try:
        for _ in range(2):
            with Memory(path, project="demo") as memory:
                memory.store("The gate code is 1234.")
                assert memory.recall("gate code")["count"] == 1
                encoders.append(weakref.ref(memory.encoder))
            del memory
    finally:
        gc.enable()
    assert [encoder() for encoder in encoders] == [None, None]

"""The newest version of a fact stands before older ones; what only looks alike keeps its place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from storage import open_memory

import sediment
from sediment import Memory

DAY = sediment.DAY


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with open_memory(tmp_path / "memory.db") as memory:
        yield memory


def trial(name: str) -> list[dict[str, Any]]:
    lines = (ROOT / "tests/trials" / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def filled(memory: Memory, groups: list[list[str]], gap: int) -> None:
    """Texts of each group a gap apart, with the ids of their group and place."""
    memory.import_rows(
        {"id": f"{number}-{place}", "content": text, "created_at": 10**9 + gap * place}
        for number, texts in enumerate(groups)
        for place, text in enumerate(texts)
    )


def order(memory: Memory, query: str, number: int) -> list[int]:
    """The places of a group's texts in the answer."""
    rows = memory.recall(query, limit=50, anyway=True)["results"]
    ids = [row["id"].split("-") for row in rows]
    return [int(place) for group, place in ids if group == str(number)]


@pytest.mark.parametrize("gap", [60, 30 * DAY])
def test_the_newest_version_comes_first(memory: Memory, gap: int) -> None:
    sequences = trial("versions.jsonl")
    filled(memory, [row["sequence"] for row in sequences], gap)
    newest = [
        order(memory, row["query"], number)[:1] == [len(row["sequence"]) - 1]
        for number, row in enumerate(sequences)
    ]
    assert sum(newest) >= 0.8 * len(newest)


def test_what_only_looks_alike_keeps_its_place(memory: Memory) -> None:
    groups = trial("lookalikes.jsonl")
    filled(memory, [row["items"] for row in groups], 30 * DAY)
    kept = [
        order(memory, row["query"], number)[:1] == [row["expected"]]
        for number, row in enumerate(groups)
    ]
    assert sum(kept) >= 0.95 * len(kept)


def test_texts_of_one_moment_have_no_order_of_their_own(memory: Memory) -> None:
    sequences = trial("versions.jsonl")[:20]
    filled(memory, [row["sequence"] for row in sequences], 0)
    for row in sequences:
        found = memory.recall(row["query"], limit=50, anyway=True, explain=True)["results"]
        assert all("age" not in result["parts"] for result in found)


def test_age_is_explained_and_nothing_is_hidden(memory: Memory) -> None:
    texts = ["Session timeout is 30 minutes.", "Session timeout is now 2 hours."]
    filled(memory, [texts], DAY)
    rows = memory.recall("how many minutes is the session timeout?", explain=True)["results"]
    assert [row["content"] for row in rows] == texts[::-1]
    assert rows[0]["parts"]["age"] > 0
    scores = [float(row["similarity"]) for row in rows]
    assert scores == sorted(scores, reverse=True)


WORDS = ["a", "the", "gate", "port", "is", "now", "8080", "9090", "team", "moved"]
words = st.lists(st.sampled_from(WORDS), min_size=1)
versions = st.lists(
    st.builds(sediment.Version, words.map(" ".join), st.floats(0, 1), st.integers(0, 3)),
    max_size=8,
)
LEXICON = sediment.Lexicon(sediment.stemmer(), lambda _: 0.01)


@given(versions, st.integers(0, 9))
def test_reordering_loses_and_invents_nothing(found: list[Any], enough: int) -> None:
    found.sort(key=lambda version: -version.score)
    query = "which port is the gate on?"
    places = sediment.newest_first(found, query, LEXICON, enough)
    assert sorted(places) == list(range(len(found)))
    assert places[:enough] == sediment.newest_first(found, query, LEXICON, 99)[:enough]


def test_what_was_read_before_changes_no_order() -> None:
    common: dict[str, float] = {}
    lexicon = sediment.Lexicon(sediment.stemmer(), lambda form: common.get(form, 0.0))
    texts = "gate alpha beta gamma delta", "gate epsilon zeta eta theta"
    found = [sediment.Version(text, 0.5, day) for day, text in enumerate(texts)]
    assert sediment.newest_first(found, "gate", lexicon, 5) == [0, 1]
    common |= {form + "s": 0.9 for text in texts for form in text.split()}
    lexicon.stems(" ".join(common))
    assert sediment.newest_first(found, "gate", lexicon, 5) == [0, 1]


def test_a_fault_while_words_are_weighed_is_forgotten() -> None:
    faults = [OSError()]

    def commonness(_: str) -> float:
        if faults:
            raise faults.pop()
        return 0.01

    lexicon = sediment.Lexicon(sediment.stemmer(), commonness)
    found = [sediment.Version(f"the gate is {day}", 0.5, day) for day in range(2)]
    with pytest.raises(OSError):  # noqa: PT011
        sediment.newest_first(found, "gate", lexicon, 5)
    assert sediment.newest_first(found, "gate", lexicon, 5) == [1, 0]


def test_another_fact_about_the_same_thing_is_no_later_version(memory: Memory) -> None:
    texts = [
        "Eva owns the billing worker.",
        "The billing worker listens on port 4339.",
        "The billing worker timeout is 21 seconds.",
        "The billing worker logs go to /var/log/billing.log",
        "The billing worker runs on Go 1.22.",
    ]
    filled(memory, [texts], DAY)
    for query, text in (("who owns the billing worker?", 0), ("billing worker port", 1)):
        assert order(memory, query, 0)[0] == text


def test_recall_as_of_a_day_knows_no_later_neighbours(memory: Memory) -> None:
    filled(memory, [["Deploys are allowed on Fridays.", "The canary is yellow."]], 30 * DAY)
    with memory.database.transaction() as connection:
        sediment.link(connection, "0-0", "0-1", sediment.RELATED, 0.95, "similar")
    assert "graph_expanded" in memory.recall("may we deploy on Fridays?", limit=1)
    then = memory.recall("may we deploy on Fridays?", limit=1, as_of=10**9 + DAY)
    assert [row["id"] for row in then["results"]] == ["0-0"]
    assert "graph_expanded" not in then


def test_a_repeat_that_is_dated_back_changes_nothing(memory: Memory) -> None:
    first = memory.store("The VPN needs Okta.", created_at=10**9)["id"]
    memory.store("The VPN needs Duo.", created_at=10**9 + DAY)
    assert memory.store("The VPN needs Okta.", created_at=10**8)["id"] == first

"""Ranking profiles: the original's numbers, the floor, explanations, and what must not matter."""

import functools
import math
import os
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from storage import open_memory, shared_encoder

import sediment
from sediment import Candidates, Hit, InvalidInput, Memory, RankFacts

DAY = sediment.DAY
cosines = st.floats(-1, 1)
NO_LEXICON = sediment.Lexicon(lambda _: [], lambda _: 0.0)


@functools.cache
def open_lexicon() -> sediment.Lexicon:
    return sediment.lexicon_of(shared_encoder())


def candidate(**facts: Any) -> Candidates:
    """A candidate of one chunk in the own project."""
    near = sediment.chunk_matches([(1, 1, 0.0, 1)])
    empty = sediment.as_candidates(sediment.chunk_matches([]), near, 0.0, 0.0)
    return empty._replace(**{name: numpy.array([value]) for name, value in facts.items()})


def plain_hit() -> Hit:
    """A candidate as the default ranking scores it."""
    (hit,) = sediment.rank(candidate(cosine=0.5), 0.0, sediment.PROFILES["default"], 1)
    return hit


def facts(**known: Any) -> RankFacts:
    return RankFacts("", 0, 0, None, 0, 0)._replace(**known)


def contents(answer: dict[str, Any]) -> list[str]:
    return [row["content"] for row in answer["results"]]


# classic: the original's check values


@pytest.mark.parametrize(
    ("cosine", "similarity"),
    [(1, 1), (0.95, 0.909), (0.9118, 0.85), (0.8, 0.714), (0.5, 0.5), (0, 0.333), (-0.167, 0.30)],
)
def test_classic_similarity(cosine: float, similarity: float) -> None:
    assert sediment.classic_similarity(cosine) == pytest.approx(similarity, abs=0.0006)


@pytest.mark.parametrize(("ratio", "boost"), [(1, 0.12), (0.9, 0.0972), (0.5, 0.03), (0, 0)])
def test_classic_boost_and_project_factor(ratio: float, boost: float) -> None:
    one = candidate(cosine=0.5, relative=ratio)
    assert sediment.classic_score(one, 0.5, 0.875).score == pytest.approx(0.5 + boost)
    foreign = one._replace(kind=numpy.array([sediment.FOREIGN]))
    assert sediment.classic_score(foreign, 0.5, 0.875).score == pytest.approx((0.5 + boost) * 0.875)


@pytest.mark.parametrize(
    ("known", "final"),
    [
        (facts(created_at=100 * DAY), 0.5),
        (facts(created_at=70 * DAY), 0.25),
        (facts(created_at=0, last_access=100 * DAY, accesses=1), 0.535),
        (facts(created_at=100 * DAY, accesses=100), 0.731),
        (facts(created_at=40 * DAY, accesses=3, validations=1, edges=4), 0.200),
    ],
)
def test_classic_age_frequency_and_trust(known: RankFacts, final: float) -> None:
    factors = sediment.classic_factors(known, 100 * DAY)
    assert 0.5 * math.prod(factors.values()) == pytest.approx(final, abs=0.001)


def test_classic_is_at_most_one(memory: Memory) -> None:
    memory.store("Tea is served at four.")
    for _ in range(3):
        answer = memory.recall("Tea is served at four.", ranking="classic", explain=True)
    (row,) = answer["results"]
    assert row["similarity"] == 1
    assert row["parts"]["access"] > 1
    assert row["parts"]["boost"] == pytest.approx(0.12)


def test_the_ranking_is_chosen_by_the_environment_too(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.store("Tea is served at four.")
    monkeypatch.setenv("SEDIMENT_RANKING", "classic")
    assert "boost" in memory.recall("tea", explain=True)["results"][0]["parts"]
    parts = memory.recall("tea", explain=True, ranking="default")["results"][0]["parts"]
    assert "boost" not in parts
    monkeypatch.setenv("SEDIMENT_RANKING", "best")
    with pytest.raises(InvalidInput, match="default, classic"):
        memory.recall("tea")


# default: what must not matter


def test_being_shown_changes_no_answer(memory: Memory) -> None:
    for number in range(30):
        memory.store(f"Ticket {number} was about the login page of the shop.")
    question = "Which ticket was about the login page?"
    first = contents(memory.recall(question, record=False))
    for _ in range(20):
        memory.recall("Ticket 29")
    assert contents(memory.recall(question, record=False)) == first


def test_age_alone_changes_no_answer(tmp_path: Path) -> None:
    facts = ["Tea is served at four.", "The gateway is in the cellar.", "Mara is vegetarian."]
    for order in (facts, facts[::-1]):
        with open_memory(tmp_path / f"{order[0]}.db") as memory:
            for number, text in enumerate(order):
                memory.store(text, created_at=number * 100 * DAY)
            for query, text in (
                ("what does Mara eat?", facts[2]),
                ("where is the gateway?", facts[1]),
            ):
                assert contents(memory.recall(query))[0] == text


def test_what_was_confirmed_decides_between_equals(memory: Memory) -> None:
    rows = [{"id": name, "content": "Tea is served at four."} for name in ("a", "b", "c")]
    memory.import_rows(rows)
    with memory.database.transaction() as connection:
        sediment.count_validation(connection, "b")
    assert memory.recall("when is tea?")["results"][0]["id"] == "b"


@given(st.integers(0, 10**6))
def test_trust_is_bounded(validations: int) -> None:
    hit = plain_hit()
    known = {1: facts(validations=validations)}
    (after,) = sediment.by_relevance([hit], known, sediment.parse_query("tea"), NO_LEXICON)
    assert 0 <= after.score - hit.score <= sediment.TRUST_MAX


# Word by word

words = st.sampled_from(["truck", "vehicle", "piano", "Zürich", "駅", "", "7", "\U00012000"])
texts = st.lists(st.lists(words, max_size=12).map(" ".join), min_size=1, max_size=5)


def test_a_synonym_counts_nearly_as_much_as_the_word() -> None:
    said = [f"Where did she {word} the piano?" for word in ("buy", "purchase", "polish")]
    same, alike, other = open_lexicon().maxsim("buy?", said)
    assert same > alike > other
    assert alike - other > same - alike


def test_a_word_counts_as_much_among_many() -> None:
    lexicon = open_lexicon()
    much = "Where we keep what: the tents hang in the attic, boats lie at the quay, pianos stay."
    short, long, none = lexicon.maxsim("trucks", ["Trucks wait.", f"{much} Trucks wait.", much])
    assert none < 0 < long < short


@given(texts, texts)
def test_each_text_is_compared_by_itself(found: list[str], asked: list[str]) -> None:
    lexicon, query = open_lexicon(), " ".join(asked)
    alone = [lexicon.maxsim(query, [text])[0] for text in found]
    assert lexicon.maxsim(query, found) == pytest.approx(alone, abs=1e-5)
    assert all(-1.0 < value < 1.0 for value in alone)


@pytest.mark.parametrize("query", ["", "?!", "\U0001f600 \U00012000\U00012001"])
def test_a_query_without_known_words_is_near_to_nothing(query: str) -> None:
    assert open_lexicon().maxsim(query, ["a truck", "", query]).tolist() == [0, 0, 0]


def test_a_word_that_is_said_again_and_again_crowds_out_no_other() -> None:
    said = ["The truck waits.", "The piano waits."]
    once, often = (open_lexicon().maxsim(f"{'yesterday ' * n} truck", said) for n in (1, 90))
    assert often == pytest.approx(once)


def test_a_model_without_vectors_of_tokens_compares_no_words() -> None:
    assert NO_LEXICON.maxsim("a truck", ["a truck", ""]).tolist() == [0, 0]


def test_the_page_has_words_for_each_part_of_a_score(memory: Memory) -> None:
    memory.import_rows([{"content": text} for text in ("Tea is at four.", "Coffee is at five.")])
    page = (ROOT / "assets" / "page.html").read_text("utf-8")
    (reasons,) = re.findall(r"const REASONS = {(.*?)};", page, re.DOTALL)
    found = memory.recall("when is tea served?", explain=True, anyway=True)["results"]
    parts = set().union(*(row["parts"] for row in found))
    assert parts >= {"cosine", "maxsim", "words"}
    assert parts <= set(re.findall(r"(\w+): \"", reasons))


# Questions that ask for a time

NOW = datetime(2026, 3, 18, 12).timestamp()  # a Wednesday


@pytest.mark.parametrize(
    ("query", "start", "end", "events"),
    [
        ("what did I note yesterday?", "2026-03-17", "2026-03-18", True),
        ("what happened in February?", "2026-02-01", "2026-03-01", True),
        ("What was the price in January 2026", "2026-01-01", "2026-02-01", False),
        ("what did we decide 2 weeks ago", "2026-03-02", "2026-03-09", True),
        ("news of last week", "2026-03-09", "2026-03-16", True),
        ("news of the past week", "2026-03-11T12:00", "", True),
        ("what changed since the release in January?", "2026-01-01", "", True),
        ("what was written after 3 March?", "2026-03-04", "", True),
        ("how was it before February 2026", "1970-01-01", "2026-02-01", False),
        ("what did we learn on March 5th, 2025", "2025-03-05", "2025-03-06", True),
        ("what did we decide between January and February?", "2026-01-01", "2026-03-01", True),
        ("who was on call from March to May 2025?", "2025-03-01", "2025-06-01", False),
        ("what happened between November and January", "2025-11-01", "2026-02-01", True),
        ("news from 3 March until yesterday", "2026-03-03", "2026-03-18", True),
        ("what was written from 2024 to 2025?", "2024-01-01", "2026-01-01", True),
        ("what did we learn between last month and today", "2026-02-01", "2026-03-19", True),
        ("what happened on Friday?", "2026-03-13", "2026-03-14", True),
        ("what happened on 2026-02-30 or 2026-03-02?", "2026-03-02", "2026-03-03", True),
        ("which car did they own last year?", "2025-01-01", "2026-01-01", False),
        ("what did we have last week?", "2026-03-09", "2026-03-16", True),
        ("is the limit between 20 and 30?", None, None, None),
        ("who may march in?", None, None, None),
        ("may I merge now?", None, None, None),
        ("do we deploy on Friday?", None, None, None),
        ("what is planned for March 5?", None, None, None),
        ("what is planned for March 5, 2027?", None, None, None),
        ("who does the work in January?", None, None, None),
        ("who did the work in January?", "2026-01-01", "2026-02-01", False),
        ("is the timeout 2 weeks?", None, None, None),
        ("what happened on 40 May 2026", None, None, None),
        ("which bug has gpt-4o-2024-05-13?", None, None, None),
        ("what is written to logs/2026-03-05/a.log?", None, None, None),
        ("what changed in 2026-03-05T14:00.log?", None, None, None),
        ("is port 2024 open?", None, None, None),
    ],
)
def test_the_time_that_a_question_asks_about(
    query: str, start: str | None, end: str, events: bool
) -> None:
    asked = sediment.asked_time(query, NOW)
    if start is None:
        assert asked is None
        return
    assert asked
    assert asked.events is events
    begun = datetime.fromisoformat(start).timestamp() if start != "1970-01-01" else 0
    assert asked.start == begun
    assert asked.end == (datetime.fromisoformat(end).timestamp() if end else int(NOW) + 1)


def test_a_time_that_belongs_to_what_is_asked_is_a_word() -> None:
    asked = "What was the price in March 2026?"
    assert sediment.parse_query(asked).subject == asked
    beside = sediment.parse_query(asked, int(NOW))  # a moment, which says when
    assert beside.asked is None
    assert beside.text == "What was the price ?"
    events = "what happened to the price yesterday?"
    assert sediment.parse_query(events).subject == "what happened to the price ?"
    beside = sediment.parse_query(events, int(NOW))
    assert beside.asked
    assert beside.asked.end == datetime(2026, 3, 18).timestamp()


def test_figures_of_a_year_answer_for_that_year(memory: Memory, now: int) -> None:
    """They were noted after it, and so was the year that is in their words."""
    memory.store("Revenue in 2023 was 0.9 million euros.", created_at="2024-02-05")
    memory.store("Revenue in 2024 was 1.2 million euros.", created_at="2025-02-03")
    for year in ("2023", "2024"):
        rows = memory.recall(f"What was our revenue in {year}?")["results"]
        assert rows[0]["content"].startswith(f"Revenue in {year}")


def test_a_day_may_lie_ahead(memory: Memory, now: int) -> None:
    plan = "The product launch is on March 5, 2027."
    memory.store("Plan for the week: order the banners.", created_at="2026-03-05")
    memory.store(plan, created_at="2026-02-10")
    assert contents(memory.recall("What is planned for March 5?"))[0] == plan


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> int:
    """The clock stands at noon, so that no day begins meanwhile."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    return int(NOW)


def test_what_was_noted_then_answers_a_question_for_then(memory: Memory, now: int) -> None:
    for days, text in enumerate(("The boiler was fixed.", "Mara likes tea.", "Port 80 is shut.")):
        memory.store(text, created_at=now - days * DAY)
    for days in range(40, 70):
        memory.store(f"Yesterday we noted ticket {days} of the shop.", created_at=now - days * DAY)
    rows = memory.recall("what did I note yesterday?")["results"]
    assert rows[0]["content"] == "Mara likes tea."
    assert float(rows[0]["similarity"]) >= 0.5
    month = datetime.fromtimestamp(now - 50 * DAY)
    then = [row["created_at"] for row in memory.recall(f"what happened in {month:%B}?")["results"]]
    assert {datetime.fromtimestamp(at).month for at in then[:3]} == {month.month}


def test_what_is_of_the_time_asked_is_the_projects_own_first(
    memory: Memory, path: Path, now: int
) -> None:
    day = now - DAY
    own = [memory.store(text, created_at=day)["id"] for text in ("The boiler was fixed.", "Tea.")]
    own.append(memory.store("Passports are in the safe.", scope="global", created_at=day)["id"])
    with open_memory(path, "other") as other:
        other.store("Noted yesterday what we changed.", created_at=day)
        query = "what did I note yesterday?"
        rows = memory.recall(query, limit=10)["results"]
        assert [row["id"] for row in rows] == own[::-1]
        memory.forget(*own)
        assert [row.get("cross_project") for row in memory.recall(query)["results"]] == [True]


JANUARY = "- The CI runs on Jenkins.\n- Maria leads the platform team.\n"
SEPTEMBER = "- The CI runs on GitHub Actions now.\n- Jonas leads the platform team.\n"


def test_a_question_for_a_time_alone_finds_its_day_or_nothing(
    memory: Memory, tmp_path: Path
) -> None:
    (tmp_path / "2026-01-10.md").write_text(f"# 2026-01-10\n\n{JANUARY}")
    (tmp_path / "log.md").write_text(f"# Log\n\n## 2026-09-10\n\n{SEPTEMBER}")
    undated = tmp_path / "guide.md"
    undated.write_text("# Guide\n\nWhat we note: what happened, and what we did.\n")
    of_november = datetime(2025, 11, 12).timestamp()
    os.utime(undated, (of_november, of_november))
    memory.index([tmp_path])

    def found(query: str) -> list[str]:
        return [row["content"].splitlines()[-1][2:] for row in memory.recall(query)["results"]]

    assert found("what did I note in January 2026?") == ["Maria leads the platform team."]
    assert found("what happened in September 2026?") == ["Jonas leads the platform team."]
    assert found("what did I note in November 2025?") == []
    assert found("what happened to the guide in November 2025?") != []
    memory.store("* In November 2025 we moved to Lyon.")
    assert found("what did I note in November 2025?") == []
    assert found("November 2025")[0] == "In November 2025 we moved to Lyon."
    memory.store("Since December 2025 the office is in Nantes.", created_at="2026-05-02")
    assert found("what happened in February 2026?") == []
    assert found("notes from January 2026") == ["Maria leads the platform team."]


@pytest.mark.parametrize(
    ("query", "alone"),
    [
        ("what did I note in January?", True),
        ("tell me everything that happened on 2026-01-10", True),
        ("what changed since the release in January?", True),
        ("yesterday", True),
        ("yesterday's notes", True),
        ("last 7 days", True),
        ("2025-11-21", True),
        ("October", True),
        ("since Monday", True),
        ("what did I note about Jenkins in January?", False),
        ("what was the port in January 2026?", False),
    ],
)
def test_what_has_no_subject_but_its_time(query: str, alone: bool) -> None:
    asked = sediment.parse_query(query, int(NOW)).asked
    assert (asked is not None and asked.alone) is alone


def test_a_time_alone_lists_what_is_of_that_time(memory: Memory, now: int) -> None:
    texts = [f"Note {day} on {what}" for day, what in enumerate(("tea", "yesterday", "tea", "tea"))]
    for day, text in enumerate(texts):
        memory.store(text, created_at=now - day * DAY)
    assert contents(memory.recall("yesterday")) == texts[1:2]
    assert contents(memory.recall("the last 2 days")) == texts[:3]
    assert contents(memory.recall("since Monday", limit=2)) == texts[:2]
    assert contents(memory.recall("today", as_of=now - DAY)) == texts[1:2]
    assert {row["similarity"] for row in memory.recall("March")["results"]} == {1.0}


# What has nothing to do with a question


def test_what_is_held_back_takes_no_place(memory: Memory) -> None:
    """Neither one of the first `limit` nor, as it is newer, that of what answers."""
    memory.store("The gateway listens on port 18789, PostgreSQL on 5433.", created_at=10**9)
    runbook = (ROOT / "tests" / "runbook.md").read_text("utf-8")
    memory.store(runbook, created_at=10**9 + 60)
    memory.import_rows({"content": part} for part in runbook.split("\n\n") if part.strip())
    for limit in (1, 2, 5):
        found = memory.recall("18789", limit=limit)
        assert "18789" in found["results"][0]["content"]
        assert len(found["results"]) + found.get("held_back", 0) == limit


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("what is E_STOCK_410?", {"E_STOCK_410": "estock0"}),
        ("WH-1190 or WH1190?", {"WH-1190": "wh0", "WH1190": "wh0"}),
        ("who is on 10.0.4.18:80?", {"10.0.4.18": "0000"}),
        ("is A2 full, is B0?", {"A2": "a0", "B0": "b0"}),
        ("/v1/quotes", {"v1": "v0"}),
        (
            "is invoice no. 4713 or Sprint 12.1 paid in 2024, after 30 days?",
            {"invoice 4713": "invoice 0", "Sprint 12.1": "sprint 0"},
        ),
        ("tolerance of 120x60, 2to3, 5 kg, 3.14, 2026-03-05, 1.2.3 and 1.2.3.4.5", {}),
        ("who asked?", {}),
        ("a" + "1" * 1000, {}),
    ],
)
def test_names_of_letters_and_figures_have_a_form(query: str, names: dict[str, str]) -> None:
    assert sediment.identifiers(query) == names


WAREHOUSE = {
    "Invoice 4712": "Invoice 4712 was not paid.",
    "E_STOCK_409": "The API returns E_STOCK_409 when two pickers reserve one bin; retry then.",
    "E_STOCK_404": "E_STOCK_404 means the article is unknown: sync the catalogue first.",
    "WH-1182": "Ticket WH-1182: the conveyor stops when the light barrier is dusty.",
    "10.0.4.17": "The label printer is a Zebra ZD421 on 10.0.4.17.",
}


@pytest.fixture
def warehouse(memory: Memory) -> Memory:
    for text in WAREHOUSE.values():
        memory.store(text)
    return memory


@pytest.mark.parametrize(
    ("query", "near", "name"),
    [
        ("what does E_STOCK_410 mean?", "what does E_STOCK_404 mean?", "E_STOCK_404"),
        ("ticket WH1190", "ticket WH1182", "WH-1182"),
        ("was invoice 4713 paid?", "was invoice 4712 paid?", "Invoice 4712"),
        ("which printer is on 10.0.4.18?", "which printer is on 10.0.4.17?", "10.0.4.17"),
    ],
)
def test_what_names_another_thing_of_the_same_form_says_so_and_is_less_likely(
    warehouse: Memory, query: str, near: str, name: str
) -> None:
    row, right = (warehouse.recall(asked, explain=True)["results"][0] for asked in (query, near))
    assert row["content"] == right["content"] == WAREHOUSE[name]
    assert row["named_instead"] == [name]
    assert "named_instead" not in right
    assert float(row["similarity"]) <= 0.5 < float(right["similarity"])
    assert row["parts"]["name"] == sediment.NAMED_OTHERWISE
    assert not warehouse.recall(query, min_score=0.51)["results"]


@pytest.mark.parametrize(
    ("text", "query", "instead"),
    [
        ("Ben's birthday is on 14 May.", "When is Carla's birthday?", ["Ben's birthday"]),
        ("Ben's birthday is on 14 May.", "When is Ben's birthday?", []),
        ("Carla was born on 14 May: the birthday is in spring.", "When is Carla’s birthday?", []),
        ("That's the birthday cake: chocolate.", "What's the birthday cake?", []),
    ],
)
def test_what_is_somebody_elses_is_less_likely(
    memory: Memory, text: str, query: str, instead: list[str]
) -> None:
    memory.store(text)
    (row,) = memory.recall(query)["results"]
    assert row.get("named_instead", []) == instead
    assert (row["similarity"] < 0.5) == bool(instead)


@pytest.mark.parametrize("name", WAREHOUSE)
def test_where_something_names_what_is_asked_nothing_is_less_likely(
    warehouse: Memory, name: str
) -> None:
    rows = warehouse.recall(f"what about {name.lower()}?", anyway=True, explain=True)["results"]
    assert rows[0]["content"] == WAREHOUSE[name]
    assert not any("named_instead" in row or "name" in row["parts"] for row in rows)


def test_what_was_named_before_a_replacement_is_found_by_that_name(memory: Memory) -> None:
    old = memory.store("The label printer is on 10.0.4.17.")["id"]
    memory.store("The label printer is on 10.0.4.30.", replace=old)
    (row,) = memory.recall("what is on 10.0.4.17?")["results"]
    assert row["content"] == "The label printer is on 10.0.4.30."
    assert "named_instead" not in row


def test_a_newer_version_that_is_named_otherwise_is_not_less_likely(memory: Memory) -> None:
    memory.store("All services run on node18.", created_at=10**9)
    memory.store("All services run on node20 now.", created_at=10**9 + 10**7)
    rows = memory.recall("do all services still run on node18?")["results"]
    assert len(rows) == 2
    assert not any("named_instead" in row for row in rows)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Osprey deprecates /v1/quotes on 30 September, and v2 comes.", "osprey drop v1 quotes?"),
        ("node18-alpine is the base image of all services.", "where do we use node18?"),
        ("Ticket wh 1190: the lift is slow, as in WH-1182.", "ticket WH-1190"),
        ("4713 is the invoice for the lift, after invoice 4712.", "invoice no. 4713"),
    ],
)
def test_a_name_may_be_written_otherwise(memory: Memory, text: str, query: str) -> None:
    memory.store(text)
    (row,) = memory.recall(query)["results"]
    assert "named_instead" not in row


def test_the_only_memory_is_not_the_answer_to_everything(memory: Memory) -> None:
    memory.store("alpha walrus is grey")
    for query in ("otter", "beta", "who won the war?"):
        (row,) = memory.recall(query, anyway=True)["results"]
        assert float(row["similarity"]) < 0.5
    (row,) = memory.recall("what colour is the walrus?")["results"]
    assert float(row["similarity"]) > 0.8


# Explanations


def test_the_parts_are_told_on_request(memory: Memory) -> None:
    memory.store("Tea is served at four in the garden.")
    memory.store("Cake is served at five in the hall.")
    rows = memory.recall("when is everything served?", explain=True, anyway=True)["results"]
    for row in rows:
        assert float(row["raw_similarity"]) == pytest.approx(row["parts"]["cosine"], abs=0.006)
    assert "parts" not in memory.recall("when is tea served?")["results"][0]


def test_similarity_is_a_probability(memory: Memory) -> None:
    for number in range(60):
        memory.store(f"The service of team {number} listens on port {9000 + number}.")
    memory.store("Mara is allergic to nuts and eats no meat.")
    for query in ("what may Mara not eat?", "port of team 7"):
        found = memory.recall(query, limit=20, anyway=True)["results"]
        scores = [float(row["similarity"]) for row in found]
        assert max(scores) == scores[0]
    for query in ("who won the war?", "a"):  # the services fit as badly, one as the other
        found = memory.recall(query, limit=20, anyway=True)["results"]
        assert all(float(row["similarity"]) < 0.5 for row in found)
    known = memory.recall("what may Mara not eat?")["results"][0]
    unknown = memory.recall("what does Mara drink?", anyway=True)["results"][0]
    assert float(known["similarity"]) > 0.5
    assert float(unknown["similarity"]) < float(known["similarity"])


# The floor


def test_questions_on_other_subjects_get_nothing(memory: Memory) -> None:
    for number in range(40):
        memory.store(f"The service of team {number} listens on port {9000 + number}.")
    answer = memory.recall("Who painted the ceiling of the chapel?")
    assert answer["results"] == []
    assert answer["held_back"] == 5
    assert len(memory.recall("Who painted the ceiling?", anyway=True)["results"]) == 5


def test_min_score_takes_the_place_of_the_floor(memory: Memory) -> None:
    memory.store("Tea is served at four.")
    memory.store("The gateway listens on port 18789.")
    assert contents(memory.recall("tea time", min_score=0.3)) == ["Tea is served at four."]
    assert memory.recall("tea time", min_score=0.3)["held_back"] == 1
    assert len(memory.recall("tea time", min_score=0)["results"]) == 2
    assert memory.recall("tea time", min_score=1)["results"] == []


def test_all_words_of_a_query_are_enough(memory: Memory) -> None:
    for number in range(40):
        memory.store(f"The service of team {number} listens on port {9000 + number}.")
    memory.store("xq7-zulu: see the red folder in the cellar, third shelf from the left")
    assert contents(memory.recall("xq7-zulu"))[0].startswith("xq7-zulu")


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 10))
def test_at_most_half_are_foreign_while_own_ones_fit(foreign: list[bool], limit: int) -> None:
    hits = [plain_hit()._replace(item=at, kind=int(other)) for at, other in enumerate(foreign)]
    found = sediment.own_first(hits, limit, 0.28)
    own = [hit for hit in hits if not hit.foreign]
    assert len(found) == min(limit, len(hits)) or len(own) + (limit + 1) // 2 < limit
    assert [hit.item for hit in found] == sorted(hit.item for hit in found)
    others = sum(hit.foreign for hit in found)
    assert others <= max((limit + 1) // 2, limit - len(own))


@given(cosines, st.floats(0, 1))
def test_relevance_grows_with_both(cosine: float, coverage: float) -> None:
    value = sediment.relevance(candidate(cosine=cosine, coverage=coverage))
    assert value >= cosine
    more = sediment.relevance(candidate(cosine=cosine, coverage=min(1, coverage + 0.1)))
    assert more >= value


def test_fewer_memories_need_less() -> None:
    floors = [sediment.chance_floor(count, 0.0, 0.0) for count in (1, 10, 100, 1_000, 1_000_000)]
    assert floors == sorted(floors)
    assert 0 < floors[0] < floors[2] < sediment.FLOOR
    assert floors[-1] == sediment.FLOOR


@given(cosines, cosines)
def test_what_is_near_to_the_cohort_needs_more(near: float, nearer: float) -> None:
    near, nearer = sorted((near, nearer))
    floors = [sediment.chance_floor(1_000, one, 0.0) for one in (near, nearer)]
    assert floors == [max(sediment.FLOOR, one) for one in (near, nearer)]
    half = [sediment.chance_floor(1_000, one, 1.0) for one in (near, nearer)]
    assert half == pytest.approx([floor / 2 for floor in floors])


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with open_memory(tmp_path / "memory.db") as memory:
        yield memory


# Languages other than English, and times


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Zu welchem Zahnarzt gehen wir?", "german"),
        ("où est-ce que je gare la voiture", "french"),
        ("Где стоит роутер и какой у него пароль?", "russian"),
        ("hangi gün için randevu var", "turkish"),
        ("Who was in charge of the site when it moved?", "english"),
        ("Rue de Rivoli", "english"),  # a name has one such word
        ("The die was cast in an hour, so was the war over", "english"),  # German has half of them
        ("", "english"),
    ],
)
def test_a_text_has_the_language_of_its_function_words(text: str, language: str) -> None:
    assert sediment.language_of(re.findall(r"\w+", text.lower())) == language


def test_what_tells_nothing_in_its_language_counts_little() -> None:
    words = sediment.weighed(
        "Zu welchem Zahnarzt gehen wir?", open_lexicon(), 0, lambda all: [0] * len(all)
    )
    idf = {term.phrase: term.idf for term in words.terms}
    assert "wir" not in idf or idf["wir"] < idf["zahnarzt"] / 4
    english = sediment.weighed("wir sind", open_lexicon(), 0, lambda all: [0] * len(all))
    assert english.ideal < idf["zahnarzt"] ** 2 / 2
    alike = open_lexicon().text_words("der Zahnarzt für uns und für dich")
    assert max(alike.idf) == alike.idf[1] > 4 * alike.idf[0]


HOUSEHOLD = (
    "Unser Zahnarzt ist Dr. Behrens in der Kantstraße.",
    "Für den Garten ist ab Mai das Regenwasser zu nehmen.",
    "Wir gehen am Sonntag immer zu Oma, und sie kocht für uns.",
    "Die Mülltonnen kommen am Dienstag zu den Nachbarn.",
    "Paul geht in die Kita Regenbogen, Gruppe der Frösche.",
    "Der Schlüssel für den Keller hängt bei uns im Flur.",
)


def test_a_note_in_another_language_is_found(memory: Memory) -> None:
    for day, text in enumerate(HOUSEHOLD):
        memory.store(text, created_at=1_700_000_000 + day * DAY)
    assert contents(memory.recall("Zu welchem Zahnarzt gehen wir?"))[0] == HOUSEHOLD[0]
    # English is far from German whatever it says: less is enough.
    assert contents(memory.recall("Which kindergarten does Paul attend?"))[0] == HOUSEHOLD[4]


def test_what_was_noted_later_makes_nothing_obsolete_in_an_earlier_time(memory: Memory) -> None:
    notes = {
        "2025-12-05": "Contact at Hallberg is Sven Ostrom, he answers within a day.",
        "2026-01-12": "Hallberg pays 30 days net.",
        "2026-04-09": "Contact at Hallberg is Mirja Koskela now, Sven has left.",
        "2026-05-02": "The Hallberg shop runs on the server in Falkenstein.",
    }
    for day, text in notes.items():
        memory.store(text, created_at=day)
    asked = "Who was the contact at Hallberg"
    assert contents(memory.recall(f"{asked} in January 2026?"))[0] == notes["2025-12-05"]
    assert contents(memory.recall(f"{asked} in May 2026?"))[0] == notes["2026-04-09"]


# What no memory has


WORKSHOP = (
    "The boiler was serviced by Adam Przybylski in March, next time in two years.",
    "Ticket WH-1182: the conveyor stops when the light barrier is dusty.",
    "The label printer is a Zebra ZD421 on 10.0.4.17.",
    "Mara is allergic to nuts and eats no meat.",
    "Lease: Maria de la Cruz, 555-0100.",
    "We deploy on Fridays only after the canary is green.",
)


@pytest.fixture
def workshop(memory: Memory) -> Memory:
    memory.import_rows({"content": text, "created_at": 10**9} for text in WORKSHOP)
    return memory


@pytest.mark.parametrize(
    "query",
    [
        *("asdfghjkl", "?", "qwertz yxcv", "192.168.77.201", "JIRA-90412", "h8f7-22ab"),
        *("Kowalczyk", "kim@nowhere.example", "https://nowhere.example/x"),
    ],
)
def test_what_no_memory_has_gets_no_answer(workshop: Memory, query: str) -> None:
    assert workshop.recall(query)["results"] == []
    assert workshop.recall(query, anyway=True)["results"] or query == "?"


@pytest.mark.parametrize(
    ("query", "place"), [("Przybylski", 0), ("wh-1182", 1), ("10.0.4.17", 2), ("Cruz", 4)]
)
def test_what_one_memory_has_is_found_by_that_alone(
    workshop: Memory, query: str, place: int
) -> None:
    assert contents(workshop.recall(query))[0] == WORKSHOP[place]


def test_a_foreign_name_halves_no_floor(workshop: Memory, tmp_path: Path) -> None:
    """Here "de la" are two words of Spanish, and the note is English."""
    request = sediment.Request("contact for the lease", 5, sediment.PROFILES["default"])
    with open_memory(tmp_path / "plain.db") as plain:
        rows = ({"content": text.replace("de la ", ""), "created_at": 10**9} for text in WORKSHOP)
        plain.import_rows(rows)
        least = [memory.search._found(request).floor for memory in (workshop, plain)]
    assert least[0] == pytest.approx(least[1], rel=0.05)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Server web-{:02d} runs Debian 12 in the Frankfurt rack.", "which servers run Debian 12?"),
        ("Visit {}: the heron was seen at the old pier.", "where was the heron seen?"),
    ],
)
def test_memories_that_answer_alike_do_not_push_one_another_out(
    tmp_path: Path, text: str, query: str
) -> None:
    """A similarity is a memory's own, however many others answer as well."""
    with open_memory(tmp_path / "memory.db") as memory:
        memory.import_rows(
            {"content": text.format(number), "created_at": 10**9 + number * 86_400}
            for number in range(60)
        )
        memory.import_rows([{"content": "The lease ends in May.", "created_at": 10**9}])
        for limit in (5, 20, 60):
            assert len(memory.recall(query, limit=limit)["results"]) == limit
        assert "lease" not in " ".join(contents(memory.recall(query, limit=61)))

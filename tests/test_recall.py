"""Recall: how words and meaning are weighed against each other, query by query."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sediment
from sediment import Memory, words_share

scores = st.floats(0, 1000)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "memory.db", project="demo") as memory:
        yield memory


def best(memory: Memory, query: str) -> str:
    return memory.recall(query, limit=1)["results"][0]["content"]


@given(scores, scores)
def test_the_share_of_words_is_bounded(best: float, tenth: float) -> None:
    assert 0 <= words_share(best, tenth) <= sediment.WORDS_WEIGHT


def test_words_that_fit_everything_alike_count_nothing() -> None:
    assert words_share(70, 70) == 0
    assert words_share(70, 0) == sediment.WORDS_WEIGHT


def test_words_that_prove_little_count_little() -> None:
    assert words_share(2, 0) < words_share(20, 0) < words_share(40, 0) == words_share(80, 0)


def test_common_english_words_are_known(memory: Memory) -> None:
    common = memory.encoder.commonness
    assert common("the") > common("could") > common("kitchen") > common("xylophonist") == 0
    assert common("i") > 0.1


def test_a_long_text_full_of_small_words_does_not_win(memory: Memory) -> None:
    mara = "Mara is vegetarian and wants nothing spicy."
    memory.store(mara)
    memory.store((Path(__file__).parent / "runbook.md").read_text("utf-8"))
    assert best(memory, "what could I cook for her?") == mara


def test_a_rare_identifier_is_found_by_its_word(memory: Memory) -> None:
    for number in range(40):
        memory.store(f"The service of team {number} listens on port {9000 + number}.")
    assert best(memory, "9017") == "The service of team 17 listens on port 9017."


def test_a_paraphrase_without_a_common_word_is_found(memory: Memory) -> None:
    memory.store("We ship on Fridays once the canary is healthy.")
    memory.store("The cafeteria closes at three.")
    assert best(memory, "when can I release?") == "We ship on Fridays once the canary is healthy."


def test_the_same_question_gets_the_same_answer_again(memory: Memory) -> None:
    for number in range(30):
        memory.store(f"Ticket {number} was about the login page.")
    first = memory.recall("login tickets", limit=30)
    assert [memory.recall("login tickets", limit=30) for _ in range(3)] == [first] * 3


def test_words_alone_rank_by_bm25_and_vectors_alone_by_cosine(memory: Memory) -> None:
    for text in ("alpha beta", "alpha gamma", "delta epsilon"):
        memory.store(text)
    words = sediment.weigh_words(memory.database, "alpha beta", memory._lexicon)
    found, _ = sediment.candidates(memory.database, words, None, "demo")
    assert sorted(found, key=lambda one: -one.bm25)[0].item == 1
    assert {one.item for one in found} == {1, 2}
    assert all(one.cosine is None for one in found)
    none = sediment.weigh_words(memory.database, "", memory._lexicon)
    vector = memory.encoder.embed("alpha beta")
    found, share = sediment.candidates(memory.database, none, vector, "demo")
    assert {one.item for one in found} == {1, 2, 3}
    assert share == 0
    assert all(sediment.default_score(one, share, 1.0).score == one.cosine for one in found)


def test_small_words_in_many_parts_are_no_evidence(memory: Memory) -> None:
    sentence = "we deploy on Fridays only after the canary is green"
    memory.store(sentence)
    part = "What you can do when this part is on, and when it is not. " * 4
    memory.store("\n\n".join(f"## Part {number}\n\n{part}" for number in range(30)))
    assert memory.recall("when can I release?", limit=1)["results"][0]["content"] == sentence


def test_a_manual_of_many_parts_does_not_crowd_out_a_sentence(memory: Memory) -> None:
    sentence = "we deploy on Fridays only after the canary is green"
    memory.store(sentence)
    vector = memory.encoder.embed("when can I release?")
    none = sediment.weigh_words(memory.database, "", memory._lexicon)
    (one,), _ = sediment.candidates(memory.database, none, vector, "demo")
    many = one._replace(chunks=227)
    scores = [sediment.default_score(found, 0.0, 1.0).score for found in (one, many)]
    assert scores[0] - scores[1] > 0.05


def test_other_projects_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.db"
    with Memory(path, project="theirs") as theirs:
        id = theirs.store("The gateway listens on port 18789.")["id"]
    for resident in (True, False):
        memory = Memory(path, project="ours", resident=resident)
        monkeypatch.delenv("SEDIMENT_CROSS_PROJECT", raising=False)
        assert memory.recall("gateway port")["results"][0]["cross_project"]
        monkeypatch.setenv("SEDIMENT_CROSS_PROJECT", "0")
        for query in ("gateway port", "18789", id, f"{id} page 1"):
            assert memory.recall(query, anyway=True)["results"] == []

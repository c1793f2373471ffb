"""Recall: how words and meaning are weighed against each other, query by query."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program import in_one_look
from storage import child, finish, open_memory, shared_encoder

import sediment
from sediment import Memory, words_share
from sediment_ext.transcripts import Conversation, Turn

scores = st.floats(0, 1000)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "memory.db", project="demo") as memory:
        yield memory


def best(memory: Memory, query: str) -> str:
    return memory.recall(query, limit=1)["results"][0]["content"]


@given(scores, scores, st.floats(1, 1000))
def test_the_share_of_words_is_bounded(best: float, tenth: float, ideal: float) -> None:
    assert 0 <= words_share(best, tenth, ideal) <= sediment.WORDS_WEIGHT


def test_words_that_fit_everything_alike_count_nothing() -> None:
    assert words_share(70, 70, 80) == 0
    assert words_share(70, 0, 70) == sediment.WORDS_WEIGHT


def here(memory: Memory) -> sediment.Within:
    return sediment.Within(memory.database, "demo")


def test_strange_words_count_though_many_memories_have_them() -> None:
    assert words_share(70, 70, 80, 1.0) == sediment.STRANGE_WEIGHT
    assert words_share(0, 0, 80, 1.0) == 0


@pytest.mark.parametrize(
    ("query", "least", "most"),
    [("which port does the gate use?", 0, 0), ("welches Tor hat welchen Anschluss?", 0.4, 1),
     ("服务器在哪里", 1, 1), ("what does frobnicate do?", 0.2, 0.3)],
)  # fmt: skip
def test_what_the_vocabulary_lacks_is_strange(
    memory: Memory, query: str, least: float, most: float
) -> None:
    words = sediment.weigh_query(here(memory), query, memory.search.lexicon)
    assert least <= words.strange <= most


def test_nothing_is_strange_to_a_model_whose_vocabulary_is_not_known() -> None:
    lexicon = sediment.Lexicon(lambda _: [], lambda _: 0.0, own=False)
    assert lexicon.strange(["wie", "hoch", "miete"]) == 0


def test_words_that_are_little_of_the_query_count_little() -> None:
    assert words_share(2, 0, 80) < words_share(20, 0, 80) < words_share(40, 20, 80)
    assert words_share(60, 30, 80) == words_share(70, 35, 80)  # both stand out by half


def test_common_english_words_are_known(memory: Memory) -> None:
    common = memory.encoder.chunk_share
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


UNKNOWN = ["รหัสผ่านอยู่บนกระดาน", "🍕🍕", "数据库备份在凌晨三点。", "a" * 300, "👍 👍", "∀x∈ℝ"]


@pytest.mark.parametrize(
    ("query", "answers"),
    [("กระดาน", UNKNOWN[:1]), ("数据库", UNKNOWN[2:3]), ("🚀", []), ("b" * 300, [])],
)
def test_what_the_model_does_not_know_is_searched_by_its_words(
    memory: Memory, query: str, answers: list[str]
) -> None:
    for text in UNKNOWN:
        memory.store(text)
    assert [row["content"] for row in memory.recall(query)["results"]] == answers


def test_a_word_that_the_model_does_not_know_turns_no_query() -> None:
    encoder = shared_encoder()
    with_sign, without = "🚀 when do we release", "when do we release"
    vectors = [encoder.embed_query(text, [1.0] * len(text)) for text in (with_sign, without)]
    as_known = encoder.embed_query(with_sign, [0.0, 0.0, *[1.0] * len(without)])
    assert vectors[0] == as_known != vectors[1]
    assert encoder.embed_query("🚀?", [1.0, 0.0]) == b""


def test_words_alone_find_nothing_where_no_word_is_there(memory: Memory) -> None:
    memory.store("The cafeteria closes at three.")
    assert memory.recall("gateway", ranking="bm25")["results"] == []
    assert memory.recall("cafeteria", ranking="bm25")["count"] == 1


def test_the_same_question_gets_the_same_answer_again(memory: Memory) -> None:
    for number in range(30):
        memory.store(f"Ticket {number} was about the login page.")
    first = memory.recall("login tickets", limit=30)
    assert [memory.recall("login tickets", limit=30) for _ in range(3)] == [first] * 3


def proposed(
    memory: Memory, words: sediment.WeightedQuery, vector: bytes | None
) -> tuple[Any, ...]:
    within = here(memory)
    return sediment.candidates(words, sediment.search_words(words, within), vector, within)


def test_words_alone_rank_by_bm25_and_vectors_alone_by_cosine(memory: Memory) -> None:
    for text in ("alpha beta", "alpha gamma", "delta epsilon"):
        memory.store(text)
    words = sediment.weigh_query(here(memory), "alpha beta", memory._lexicon)
    found, _ = proposed(memory, words, None)
    assert found.item[found.bm25.argmax()] == 1
    assert set(found.item) == {1, 2}
    assert all(map(math.isnan, found.cosine))
    none = sediment.weigh_query(here(memory), "", memory._lexicon)
    vector = memory.encoder.embed("alpha beta")
    found, share = proposed(memory, none, vector)
    assert set(found.item) == {1, 2, 3}
    assert share == 0
    ranked = sediment.rank(found, share, sediment.PROFILES["default"], 3)
    assert all(hit.score == hit.cosine for hit in ranked)


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
    none = sediment.weigh_query(here(memory), "", memory._lexicon)
    one, _ = proposed(memory, none, vector)
    both = one._make(column.repeat(2) for column in one)
    both.chunks[1] = 227
    ranked = sediment.rank(both, 0.0, sediment.PROFILES["default"], 2)
    scores = [hit.score for hit in ranked]
    assert scores[0] - scores[1] > 0.05


def test_other_projects_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.db"
    with open_memory(path, "theirs") as theirs:
        id = theirs.store("The gateway listens on port 18789.")["id"]
    for resident in (True, False):
        memory = Memory(path, project="ours", resident=resident)
        memory._encoder = shared_encoder()
        monkeypatch.delenv("SEDIMENT_CROSS_PROJECT", raising=False)
        assert memory.recall("gateway port")["results"][0]["cross_project"]
        monkeypatch.setenv("SEDIMENT_CROSS_PROJECT", "0")
        for query in ("gateway port", "18789", id, f"{id} page 1"):
            assert memory.recall(query, anyway=True)["results"] == []


def test_a_name_with_words_behind_it_takes_no_time(memory: Memory) -> None:
    memory.store("The gateway listens on port 18789.")
    with in_one_look():
        memory.recall("a1-b2/" * 1_000 + " page")


def test_what_another_project_says_later_makes_nothing_obsolete(tmp_path: Path) -> None:
    path, spring = tmp_path / "memory.db", "2026-05-01"
    with open_memory(path, "ours") as ours, open_memory(path, "theirs") as theirs:
        for text in ("Staging port is 5433.", "Lint with ruff before each commit."):
            ours.store(text, created_at=spring)
        for text in ("Staging port is 6543.", "Lint with ruff before each commit."):
            theirs.store(text)
        for query in ("staging port", "how do I lint"):
            rows = ours.recall(query)["results"]
            assert "cross_project" not in rows[0]
            assert float(rows[0]["similarity"]) >= float(rows[-1]["similarity"])
        ours.store("Staging port is 6543.")
        assert best(ours, "staging port") == "Staging port is 6543."


# Signs: what finds a memory, the memory, and one that has the same words without the sign.
SIGNS = [
    ("🍕", "Friday is 🍕 night", "Friday is soup night"),
    ("🎻", "at six 🎻🎺 with Jo", "at six, tea with Jo"),
    ("🍺🍟", "after work 🍺🍟 with Jo", "after work 🍺 with Kim"),
    ("❤️", "Ana ❤ opera", "Ana likes opera"),
    ("👍🏽", "the plan got a 👍🏿", "the plan got a no"),
    ("👩‍💻", "Mia is a 👩‍💻 now", "Mia is a 👩‍🚀 no more"),
    ("🇩🇪", "the 🇩🇪 office opens at nine", "the 🇩🇰 office opens at ten"),
    ("✅", "invoice 12 ✅", "invoice 13 ❌"),
    ("☎", "the ☎ of the clinic", "the address of the clinic"),
    ("⚠️ battery", "⚠ battery swells", "battery charges well"),
    ("★★★", "the inn at Bled ★★★", "the inn at Zell ★"),
    ("→ staging", "main → staging, by hand", "main and staging are apart"),
    ("∑", "write ∑ in the margin", "write x in the margin"),
    ("≥ 80", "coverage ≥ 80 wanted", "coverage 80 is a dream"),
    ("€ 5", "entry is € 5 a head", "entry is 5 minutes away, the € is accepted"),
    ("£20", "Tom owes £20", "Tom owes 20 pages"),
    ("§ 5", "see § 5 of the lease", "see page 5 of the lease, and § 7"),
    ("§§", "the lawyer spoke of §§", "the lawyer spoke of rules"),
    ("©", "put © on the poster", "put a date on the poster"),
    ("20°C", "store the yeast at 20°C", "store 20 bags of yeast, type C"),
    ("№ 7", "bus № 7 goes to the lake", "7 buses go to the lake"),
    ("C++ parser", "the parser is in C++", "the parser is in C"),
    ("c++17", "we compile as C++17", "we compile C, 17 files"),
    ("g++", "build with g++ here", "build plan g, here"),
    ("C#", "the game client is C#", "the game client is C"),
    ("F#", "reports are in F#", "reports are in room F"),
    (".NET", "services run on .NET", "the net of services"),
    (".env", "keys live in .env there", "keys live in env there"),
    ("~/.ssh/config", "hosts go to ~/.ssh/config", "hosts go by ssh, config is central"),
    ("A+", "the house is rated A+", "the house is rated A"),
    ("Disney+", "cancel Disney+ in May", "Disney opens in May"),
    ("a/b", "the a/b run ended", "team b beat team a in the run"),
    ("TCP/IP", "TCP/IP course in June", "IP lawyers, TCP experts in June"),
    ("R&D", "Ola heads R&D", "Ola heads D, and Kai R"),
    ("#1234", "fixed by #1234", "fixed on 1234 machines"),
    ("PR #88", "PR #88 awaits Lena", "PR agency: 88 posts for Lena"),
    ("#ops", "ask in #ops first", "ask ops people first"),
    ("@name", "ping @name about rent", "ping by name about rent"),
    ("ann@x.org", "mail ann@x.org on leave", "x.org hosts mail, Ann is on leave"),
    ("$HOME", "logs fill $HOME", "logs fill the home"),
    ("$5", "parking is $5", "parking, level 5"),
    ("1.2.3", "pin lib at 1.2.3", "pin lib 3.1, then 2"),
    ("v2.10", "v2.10 broke login", "v2 broke 10 logins"),
    ("3.12.1", "python 3.12.1 here", "python 12.3.1 here"),
    ("10.0.0.7", "the printer is 10.0.0.7", "the printer is 7.10.0.0"),
    ("main.py", "start in main.py", "main is the py of start"),
    ("app.config.json", "edit app.config.json", "json config of the app, edit"),
    ("src/io.rs", "bug in src/io.rs", "rs bug: src has no io"),
    ("std::move", "drop std::move there", "move the std drop there"),
    ("retries=5", "set retries=5 now", "5 retries are set now"),
    ("⠓⠑⠇⠇⠕", "the sign said ⠓⠑⠇⠇⠕", "the sign said ⠎⠑⠑"),
    ("𞤆𞤵𞤤𞤢𞤪", "the lamp of 𞤆𞤵𞤤𞤢𞤪", "the lamp of 𞤀𞤣𞤤𞤢𞤥"),
    ("〒", "write 〒 before the code", "write x before the code"),
    ("Ⓐ", "spray of Ⓐ at the gate", "spray of Ⓚ at the gate"),
    ("ᎣᏏᏲ", "Ada greets with ᎣᏏᏲ", "Ada greets with ᏩᏙ"),
    ("௹ 5", "tea is ௹ 5", "tea at 5"),
    ("C:\\Temp", "scans land in C:\\Temp", "temp scans of C land late"),
]


@pytest.fixture(scope="module")
def signs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    with Memory(tmp_path_factory.mktemp("signs") / "memory.db", project="demo") as memory:
        # The right ones last: of two that are alike the later one is the newer.
        texts = dict.fromkeys(text for _, right, wrong in SIGNS for text in (wrong, right))
        memory.import_rows({"content": text, "created_at": 1} for text in texts)
        yield memory


def test_what_lacks_the_sign_asked_for_is_no_later_version(memory: Memory) -> None:
    for day, text in enumerate(("Friday is 🍕 night.", "Friday is soup night.", "Sums are ∑.")):
        memory.import_rows([{"content": text, "created_at": day * sediment.DAY}])
    assert best(memory, "🍕") == "Friday is 🍕 night."
    assert best(memory, "🍕 night on Friday") == "Friday is 🍕 night."
    assert best(memory, "night on Friday") == "Friday is soup night."


@pytest.mark.parametrize(("query", "right", "_"), SIGNS)
def test_a_sign_is_a_word(signs: Memory, query: str, right: str, _: str) -> None:
    for ranking in ("default", "bm25"):
        answer = signs.recall(query, limit=1, ranking=ranking, record=False)
        assert [row["content"] for row in answer["results"]] == [right], ranking


@pytest.mark.parametrize("query", ["a", "b", "TCP", "ssh", "net", "HOME", "py", "88", "moves"])
def test_words_beside_a_sign_are_words_as_before(signs: Memory, query: str) -> None:
    stem = query.lower().removesuffix("s") if query == "moves" else query.lower()
    answer = signs.recall(query, limit=20, ranking="bm25", anyway=True, record=False)
    having = [text for _, *texts in SIGNS for text in texts if _has(text, stem)]
    assert {row["content"] for row in answer["results"]} >= set(having) != set()


def _has(text: str, word: str) -> bool:
    return word in re.findall(r"[a-z0-9]+", text.lower())


def test_words_are_looked_up_once_until_texts_change(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    look_up = sediment._first_chunks_with

    def counted(database: sediment.Database, phrases: list[tuple[str, int]]) -> list[Any]:
        asked.extend(phrase for phrase, _ in phrases)
        return look_up(database, phrases)

    monkeypatch.setattr(sediment, "_first_chunks_with", counted)
    green = memory.store("The zebra tea is green.")["id"]
    assert len(memory.recall("zebra")["results"]) == len(memory.recall("zebra")["results"]) == 1
    assert asked == ["zebra"]
    with open_memory(memory.database.path) as other:
        other.store("The zebra tea is black.")
        assert len(memory.recall("zebra")["results"]) == 2
        other.forget(green)
        assert len(memory.recall("zebra")["results"]) == 1
    assert asked == ["zebra"] * 3


def test_what_surely_is_no_answer_is_not_shown_and_what_hardly_is_one_not_counted(
    memory: Memory,
) -> None:
    for text in KITCHEN:
        memory.store(text)
    answer = memory.recall("What is the phone number of the plumber?", limit=10)
    shown = [float(row["similarity"]) for row in answer["results"]]
    assert shown[0] > 0.5
    assert min(shown) >= 0.005
    assert answer["held_back"] + len(shown) == len(KITCHEN)
    recalled = memory.database.value("SELECT count(*) FROM access_log WHERE access_count > 0")
    assert recalled == sum(value >= 0.1 for value in shown)
    assert len(memory.recall("phone number of the plumber", limit=10, anyway=True)["results"]) == 8


KITCHEN = (
    "The plumber's phone number is 0171 5550147.",
    "Aunt Greta is allergic to walnuts.",
    "The gateway of the office network is called newton.",
    "Our ferry sails at six in the morning.",
    "The piano tuner comes in May.",
    "Backups run every night at three.",
    "The garden gate sticks when it rains.",
    "Invoices go to the accountant on Fridays.",
)


# Only what may answer counts


NOTES = (
    "We deploy on Fridays only after the canary is green.",
    "The gate listens on port 18789, staging on 5433.",
    "Deploys are announced in the channel of the release team.",
    "Mara is on call this week, Ben the week after.",
    "The canary runs for an hour on two of ten machines.",
)
QUESTIONS = ("what day do we ship?", "which port is the gate on?", "canary", "who is Kowalczyk?")
WORDS = ["we", "deploy", "ship", "day", "port", "gate", "canary", "Kowalczyk", "18789", "who", "is"]
unseen = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "memory.db"
    with open_memory(path) as memory:
        memory.import_rows({"content": text, "created_at": 10**9} for text in NOTES)
    return path


def answers_here(path: Path, resident: bool) -> list[dict[str, Any]]:
    with Memory(path, project="demo", resident=resident) as memory:
        memory._encoder = shared_encoder()
        return [memory.recall(q, explain=True, anyway=True, record=False) for q in QUESTIONS]


@settings(max_examples=8)
@given(unseen, st.booleans(), st.booleans())
def test_what_may_not_be_seen_changes_no_answer(
    shared: Path, texts: list[str], crosses: bool, resident: bool
) -> None:
    """Memories of a project that is shut off, or pruned ones where all projects may be seen."""
    with pytest.MonkeyPatch.context() as patch, open_memory(shared, "other") as other:
        patch.setenv("SEDIMENT_CROSS_PROJECT", str(int(crosses)))
        before = answers_here(shared, resident)
        other.import_rows({"content": text, "created_at": 10**8} for text in texts)
        if crosses:
            other.prune("1d")
        assert answers_here(shared, resident) == before
        other.prune("1d")


# The same text in several places


def test_a_text_in_many_places_is_one_result_that_names_them(
    memory: Memory, tmp_path: Path
) -> None:
    paragraph = "Every pull request needs a review by somebody of the platform team."
    for number in range(6):
        text = f"# Guide {number}\n\n{paragraph}\n"
        (tmp_path / f"guide-{number}.md").write_text(text)
    memory.index([tmp_path])
    stored = memory.store(paragraph)["id"]
    memory.store("Reviews of the platform team take a day.")
    first, second = memory.recall("who reviews a pull request?", limit=2)["results"]
    assert first["id"] == stored
    assert len(first["also_in"]) == sediment.OTHERS_TOLD
    assert all(re.search(r"guide-\d\.md:1-3$", place["source"]) for place in first["also_in"])
    assert second["content"] == "Reviews of the platform team take a day."
    assert "also_in" not in second


def test_the_newest_of_equal_texts_is_the_one(memory: Memory) -> None:
    """So that a value that came back is no older than the one between."""
    for day, name in enumerate(("Ana", "Ben", "Ana")):
        text = f"The on-call engineer is {name}."
        memory.import_rows([{"content": text, "created_at": 10**9 + day * 10**6}])
    first = memory.recall("who is on call?")["results"][0]
    assert first["content"] == "The on-call engineer is Ana."
    assert len(first["also_in"]) == 1


# However a number or a letter is written


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The boiler cost 4,930 euros.", "4930"),
        ("The boiler cost 4930 euros.", "4 930"),
        ("会議は１４：３０から。", "14:30"),
        ("ｶﾒﾗは棚の上にある。", "カメラ"),
    ],
)
def test_a_number_or_a_width_is_the_same_however_it_is_written(
    memory: Memory, text: str, query: str
) -> None:
    for number in range(40):
        memory.store(f"The ticket {5000 + number} of {number}:15 was about the login page.")
    memory.store(text)
    assert best(memory, query) == text  # as it was stored


def test_only_a_recall_among_indexed_files_loads_what_reads_them(
    path: Path, tmp_path: Path
) -> None:
    """What was said in conversations stands in no file on a disk."""
    script = """
memory = Memory(sys.argv[1], project="demo")
answer = memory.recall("what is at pier 9?")
said(answer["count"], "sediment_ext.files" in sys.modules)
"""
    turn = Turn("1-heron", 1_700_000_000, "The boat at pier 9?", "A heron boat is at pier 9.")
    with open_memory(path) as memory:
        memory.store("The heron is at pier 9.")
        memory.add_conversations(
            [Conversation("claude", "s1", str(memory.projects.folder), [turn], 0)]
        )
        assert finish(child(script, path)) == "2 False\n"
        (tmp_path / "notes.md").write_text("The ferry leaves pier 9 at noon.\n")
        memory.index([tmp_path / "notes.md"])
    assert finish(child(script, path)) == "3 True\n"

"""The newest version of a fact stands before older ones; what only looks alike keeps its place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
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


@pytest.mark.parametrize("gap", [0, 60, 30 * DAY])
def test_the_newest_version_comes_first(memory: Memory, gap: int) -> None:
    sequences = trial("versions.jsonl")
    filled(memory, [row["sequence"] for row in sequences], gap)
    newest = [
        order(memory, row["query"], number)[:1] == [len(row["sequence"]) - 1]
        for number, row in enumerate(sequences)
    ]
    assert sum(newest) >= 0.8 * len(newest)


@pytest.mark.parametrize(("name", "share"), [("lookalikes", 0.95), ("parallel", 0.9)])
def test_what_only_looks_alike_keeps_its_place(memory: Memory, name: str, share: float) -> None:
    groups = trial(f"{name}.jsonl")
    filled(memory, [row["items"] for row in groups], 30 * DAY)
    kept = [
        order(memory, row["query"], number)[:1] == [row["expected"]]
        for number, row in enumerate(groups)
    ]
    assert sum(kept) >= share * len(kept)


@pytest.mark.parametrize(
    ("old", "new", "query"),
    [
        (
            "The parking code is 4711.",
            "New parking code: 8080 (4711 does not work any more).",
            "what is the parking code?",
        ),
        (
            "The wifi password hint is the dog's name.",
            "New wifi password hint: the cat's name.",
            "what is the wifi password hint?",
        ),
        ("The dentist is Dr Gold.", "New dentist: Dr Silver.", "who is the dentist?"),
        (
            "My dentist is Dr. Huber, Marktplatz 3.",
            "New dentist: Dr. Lang, Seestrasse 9 (Dr. Huber retired).",
            "who is my dentist?",
        ),
    ],
)
def test_what_is_announced_as_new_comes_first(
    memory: Memory, old: str, new: str, query: str
) -> None:
    memory.import_rows([{"content": old, "created_at": 10**9}])
    memory.import_rows([{"content": new, "created_at": 10**9 + 90 * DAY}])
    assert memory.recall(query)["results"][0]["content"] == new


@pytest.mark.parametrize(
    ("old", "new", "query"),
    [
        (
            "The domain is registered at Namecheap.",
            "The domain was transferred from Namecheap to Gandi.",
            "where is the domain registered?",
        ),
        (
            "Alice owns the billing module.",
            "Billing module handed over from Alice to Bob.",
            "who owns the billing module?",
        ),
    ],
)
def test_what_was_handed_on_is_no_more_with_who_had_it(
    memory: Memory, old: str, new: str, query: str
) -> None:
    rows = (ROOT / "tests" / "diaries" / "health" / "memories.jsonl").read_text("utf-8")
    memory.import_rows(rows.splitlines())
    memory.import_rows([{"content": old, "created_at": 1_790_000_000}])
    memory.import_rows([{"content": new, "created_at": 1_795_000_000}])
    assert memory.recall(query)["results"][0]["content"] == new


def test_what_is_new_of_another_thing_takes_no_place(memory: Memory) -> None:
    memory.import_rows([{"content": "The code of the garage is 4711.", "created_at": 10**9}])
    new = [{"content": "New code of the cellar: 8080.", "created_at": 10**9 + 90 * DAY}]
    memory.import_rows(new)
    found = memory.recall("what is the code of the garage?")["results"]
    assert found[0]["content"] == "The code of the garage is 4711."


def test_another_number_takes_the_place_of_none(memory: Memory) -> None:
    """Stored within a few seconds, as by one script: the newest is not the version of all."""
    texts = [f"Meanwhile number {number}." for number in range(20)]
    stored = [0] * 7 + [1] * 12 + [2]
    memory.import_rows(
        {"content": text, "created_at": 10**9 + at} for text, at in zip(texts, stored, strict=True)
    )
    memory.import_rows(
        {"content": f"Remark {number} is about {topic}.", "created_at": 10**9 - 1}
        for number in range(12)
        for topic in ("tea", "ports")
    )
    assert [memory.recall(text)["results"][0]["content"] for text in texts] == texts


def test_age_is_explained_and_nothing_is_hidden(memory: Memory) -> None:
    texts = ["Session timeout is 30 minutes.", "Session timeout is now 2 hours."]
    filled(memory, [texts], DAY)
    rows = memory.recall("how many minutes is the session timeout?", explain=True)["results"]
    assert [row["content"] for row in rows] == texts[::-1]
    assert rows[0]["why"] == "newer than 0-0, and seems to have taken its place"
    assert rows[1]["why"] == "older than 0-1, which seems to have taken its place"
    scores = [float(row["similarity"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    then = memory.recall("how long is the session timeout?", as_of=10**9 + 60)["results"]
    assert [row["content"] for row in then] == texts[:1]


WORDS = ["a", "the", "gate", "port", "is", "now", "8080", "9090", "team", "moved"]
vectors = st.lists(st.floats(-1, 1), min_size=4, max_size=4).map(
    lambda values: numpy.array([*values[:3], 1], "<f4") / numpy.linalg.norm([*values[:3], 1])
)
rivals = st.lists(
    st.builds(
        lambda text, vector, *rest: sediment.Rival(text, vector.astype("<f4").tobytes(), *rest),
        st.lists(st.sampled_from(WORDS)).map(" ".join),
        vectors,
        st.floats(0, 1),
        st.floats(-1, 1),
        st.one_of(st.none(), st.integers(1, 10**9)),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)
LEXICON = sediment.Lexicon(sediment.stemmer(), lambda _: 0.01)


@given(rivals, st.lists(st.floats(0, 1), max_size=3))
def test_chances_flow_from_old_to_new_and_none_is_lost(found: list[Any], rest: list[float]) -> None:
    ranker = sediment.recall_ranker()
    features = sediment.pair_features(found, "which port is the gate on?", LEXICON)
    assert set(features) == {*sediment.PAIR_FEATURES, "lost_sign", "strays", "old_replaces"}
    obsolete = ranker.obsolescence(features)
    assert (obsolete >= 0).all()
    assert (obsolete.sum(1) < 1 + 1e-9).all()
    for old, new in numpy.argwhere(obsolete > 0).tolist():
        assert found[new].created_at > found[old].created_at
    relevance = numpy.array([*(one.relevance for one in found), *rest])
    chances = ranker.answers(relevance, obsolete)
    assert chances.sum() == pytest.approx(1)
    assert len(chances) == len(relevance)


@given(rivals)
def test_what_was_told_to_replace_another_keeps_more(found: list[Any]) -> None:
    def handed(replaces: bool) -> Any:
        told = [one._replace(replaces=replaces) for one in found]
        features = sediment.pair_features(told, "which port is the gate on?", LEXICON)
        return sediment.recall_ranker().obsolescence(features).sum(1)

    plain = handed(False)
    full = plain > 1 - 1e-12  # what is as good as sure is so with less, too
    assert ((handed(True) < plain) | (plain == 0) | full).all()


def test_what_an_older_one_hands_over_is_handed_on_to_the_newest() -> None:
    obsolete = numpy.array([[0, 0.9, 0], [0, 0, 0.9], [0, 0, 0]])
    chances = sediment.Ranker(20.0, {}, {}).answers(numpy.array([0.9, 0.5, 0.1]), obsolete)
    first = 1 - chances[1:].sum()
    assert first == pytest.approx(0.1, abs=1e-3)
    assert chances[1:] == pytest.approx([0.09, 0.81], abs=1e-3)


HABITS = ("likes tea", "has a blue van", "comes on Mondays", "cannot swim", "pays in cash")


def test_the_newest_is_found_through_the_one_between(memory: Memory) -> None:
    texts = (
        "Club training with Racing Gent is on Tuesday evening, 19:00, track at the Blaarmeersen.",
        "Club training is on Thursday evening, 19:30, same track.",
        "Training moved to Friday at six, same track, since the lights are broken.",
    )
    beside = [f"{who} {what}." for who in ("Mira", "Jo", "The vet") for what in HABITS]
    for place, text in enumerate([*beside, *texts]):
        memory.import_rows([{"content": text, "created_at": 10**9 + place * 60 * DAY}])
    question = "On which evening is club training, and at what time?"
    rows = memory.recall(question, explain=True)["results"]
    assert rows[0]["content"] == texts[2]
    between = next(row["id"] for row in rows if row["content"] == texts[1])
    assert rows[0]["why"].startswith(f"newer than {between}")


@given(rivals, st.randoms())
def test_the_order_of_candidates_changes_no_chance(found: list[Any], chance: Any) -> None:
    ranker, query = sediment.recall_ranker(), "which port is the gate on?"
    # Texts that are equally near to a third would have their ranks by their places.
    near = [one._replace(vector=found[0].vector) for one in found[:1]] + found[1:]
    if len({one.vector for one in near}) < len(near):
        return
    order = list(range(len(near)))
    chance.shuffle(order)
    plain = ranker.obsolescence(sediment.pair_features(near, query, LEXICON))
    mixed = sediment.pair_features([near[at] for at in order], query, LEXICON)
    assert ranker.obsolescence(mixed) == pytest.approx(plain[numpy.ix_(order, order)], abs=1e-3)


def test_without_dates_nothing_is_obsolete() -> None:
    vector = numpy.array([1, 0], "<f4").tobytes()
    found = [sediment.Rival(text, vector, 0.5, 0.5, None) for text in ("gate 1", "gate 2")]
    features = sediment.pair_features(found, "gate", LEXICON)
    assert not sediment.recall_ranker().obsolescence(features).any()


def test_what_was_read_before_changes_no_idf() -> None:
    common: dict[str, float] = {}
    lexicon = sediment.Lexicon(sediment.stemmer(), lambda form: common.get(form, 0.0))
    texts = "gate alpha beta gamma delta", "gate epsilon zeta eta theta"
    before = idf(lexicon, *texts)
    common |= {form + "s": 0.9 for text in texts for form in text.split()}
    idf(lexicon, " ".join(common))
    assert idf(lexicon, *texts) == before


def idf(lexicon: sediment.Lexicon, *texts: str) -> list[float]:
    first, *rest = map(lexicon.text_words, texts)
    return sediment.WordTable(rest, first).idf.tolist()


def test_a_fault_while_words_are_weighed_is_forgotten() -> None:
    faults = [OSError()]

    def chunk_share(_: str) -> float:
        if faults:
            raise faults.pop()
        return 0.01

    lexicon = sediment.Lexicon(sediment.stemmer(), chunk_share)
    with pytest.raises(OSError):  # noqa: PT011
        lexicon.text_words("the gate is open")
    assert len(lexicon.text_words("the gate is open").stems) == 4


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


def test_a_date_to_come_holds_back_no_correction(memory: Memory) -> None:
    memory.store("The linnet port is 1000.", created_at="2090-01-01")
    with memory.database.transaction() as connection:
        connection.execute("UPDATE items SET stored_at = stored_at - 60")
    later = memory.store("The linnet port is 2000.")
    assert [row["content"] for row in later["may_replace"]] == ["The linnet port is 1000."]
    first, *_ = memory.recall("linnet port")["results"]
    assert first["id"] == later["id"]


def test_a_word_without_meaning_fills_nobodys_place(memory: Memory) -> None:
    texts = ["The build uses Python 3.9.", "Upgraded the build to Python 3.12."]
    filled(memory, [texts], DAY)
    assert order(memory, "which python version does the build use?", 0) == [1, 0]


# What was stored, what later, a question, and whether the later one answers it.
TOLD = [
    ("The CI runs on Jenkins.", "We moved CI from Jenkins to Travis.", "what runs CI on", True),
    ("The bundler is Webpack.", "We migrated from Webpack to Vite.", "which bundler is it", True),
    ("The ORM is Sequelize.", "We replaced Sequelize with Prisma.", "which ORM", True),
    ("Staging runs on MySQL.", "We moved live from MySQL to Oracle.", "what runs staging", False),
    ("Backups run on X11 at 3.", "We moved from X11 to Wayland.", "when do backups run", False),
    ("Ann lives in Bonn.", "Tom moved from Bonn to Kiel.", "where does Ann live", False),
]


@pytest.mark.parametrize(("old", "new", "query", "replaced"), TOLD)
def test_what_a_later_memory_says_was_changed_no_longer_answers(
    tmp_path: Path, old: str, new: str, query: str, replaced: bool
) -> None:
    with open_memory(tmp_path / "memory.db", "demo") as memory:
        memory.store(old, created_at="2026-01-01")
        memory.store(new, created_at="2026-04-01")
        first = memory.recall(query)["results"][0]["content"]
    assert first == (new if replaced else old)


# A fact, a later note of a change that does not say what is asked, and the question.
MOVED = [
    ("The CI runs on Jenkins.", "We moved the CI from Jenkins to Buildkite.", "what runs the CI?"),
    ("The shop is hosted on Heroku.", "The shop moved from Heroku to Fly.", "where is the shop?"),
    ("Sphinx builds the manual.", "We switched from Sphinx to MkDocs.", "what builds the manual?"),
    ("Our office is in Berlin.", "It moved from Berlin to Hamburg.", "where is our office?"),
    ("The user works at Acme.", "The user quit Acme, joined Globex.", "where does the user work?"),
    ("The user has a Volvo.", "The user sold the Volvo, got a Tesla.", "which car has the user?"),
    ("Mails are sent by Mailgun.", "We replaced Mailgun by Postmark.", "what sends the mails?"),
    ("You may park in the yard.", "To park in the yard is forbidden.", "may I park in the yard?"),
]  # fmt: skip


def test_a_note_of_a_change_need_not_say_what_is_asked(memory: Memory) -> None:
    filled(memory, [[old, new] for old, new, _ in MOVED], 90 * DAY)
    first = [order(memory, asked, number)[0] for number, (*_, asked) in enumerate(MOVED)]
    assert first == [1] * len(MOVED)


# What a fact was, what it is said to be now, and a question, in many languages.
NO_LONGER = [
    (
        "Имя сервера — Ньютон.",
        "Сервер переименован: имя сервера теперь Кеплер, а не Ньютон.",
        "Как имя сервера?",
    ),
    ("Имя сервера — Ньютон.", "Имя сервера больше не Ньютон, теперь Кеплер.", "Как имя сервера?"),
    (
        "Порт базы данных 5433.",
        "Порт базы данных теперь 6543, а не 5433.",
        "Какой порт базы данных?",
    ),
    (
        "Nazwa serwera to Newton.",
        "Nazwa serwera to już nie Newton, lecz Kepler.",
        "Jaka jest nazwa serwera?",
    ),
    (
        "De server heet Newton.",
        "De server heet niet meer Newton maar Kepler.",
        "Hoe heet de server?",
    ),
    (
        "Servern heter Newton.",
        "Servern heter inte längre Newton utan Kepler.",
        "Vad heter servern?",
    ),
    ("Sunucunun adı Newton.", "Sunucunun adı artık Newton değil, Kepler.", "Sunucunun adı nedir?"),
    (
        "O servidor se chama Newton.",
        "O servidor não se chama mais Newton, agora se chama Kepler.",
        "Como se chama o servidor?",
    ),
    (
        "Il server si chiama Newton.",
        "Il server non si chiama più Newton ma Kepler.",
        "Come si chiama il server?",
    ),
    (
        "서버 이름은 뉴턴입니다.",
        "서버 이름은 이제 뉴턴이 아니라 케플러입니다.",
        "서버 이름은 무엇입니까?",
    ),
    ("اسم الخادم نيوتن.", "اسم الخادم لم يعد نيوتن بل كبلر.", "ما اسم الخادم؟"),
    ("שם השרת ניוטון.", "שם השרת כבר לא ניוטון אלא קפלר.", "מה שם השרת?"),
    (
        "Το όνομα του διακομιστή είναι Νεύτων.",
        "Το όνομα του διακομιστή δεν είναι πια Νεύτων αλλά Κέπλερ.",
        "Ποιο είναι το όνομα του διακομιστή;",
    ),
    (
        "Palvelimen nimi on Newton.",
        "Palvelimen nimi ei ole enää Newton vaan Kepler.",
        "Mikä on palvelimen nimi?",
    ),
    (
        "Server se jmenuje Newton.",
        "Server se už nejmenuje Newton, ale Kepler.",
        "Jak se jmenuje server?",
    ),
    (
        "Сервер називається Ньютон.",
        "Сервер більше не називається Ньютон, тепер він Кеплер.",
        "Як називається сервер?",
    ),
    ("सर्वर का नाम न्यूटन है।", "सर्वर का नाम अब न्यूटन नहीं, केपलर है।", "सर्वर का नाम क्या है?"),
    (
        "Tên máy chủ là Newton.",
        "Tên máy chủ không còn là Newton nữa mà là Kepler.",
        "Tên máy chủ là gì?",
    ),
    (
        "サーバーの名前はニュートンです。",
        "サーバーの名前はもうニュートンではなく、ケプラーです。",
        "サーバーの名前は?",
    ),
    (
        "A szerver neve Newton.",
        "A szerver neve már nem Newton, hanem Kepler.",
        "Mi a szerver neve?",
    ),
]


@pytest.mark.parametrize(("old", "new", "question"), NO_LONGER)
def test_what_is_no_longer_so_stands_behind_what_is(
    tmp_path: Path, old: str, new: str, question: str
) -> None:
    with Memory(tmp_path / "memory.db", project="demo") as memory:
        memory.store(old, created_at=1_780_000_000)
        memory.store(new, created_at=1_782_600_000)
        for text in ("Bread rises for two hours.", "The bicycle has a flat tyre."):
            memory.store(text)
        assert memory.recall(question)["results"][0]["content"] == new


@pytest.mark.parametrize("dated", [False, True])
def test_of_one_second_what_was_stored_last_is_the_newest(memory: Memory, dated: bool) -> None:
    """An import without dates is of one second, too: the order of its lines counts."""
    texts = [f"The on-call is {name}." for name in ("Ana", "Ben", "Cleo")]
    if dated:
        for text in texts:
            memory.store(text, created_at=10**9)
    else:
        memory.import_rows({"content": text} for text in texts)
    for query in ("who is on call?", "on-call"):
        assert memory.recall(query)["results"][0]["content"] == texts[-1]

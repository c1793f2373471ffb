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
    sequences = trial("versions.jsonl")[::2]  # `make bench-quality` has all
    filled(memory, [row["sequence"] for row in sequences], gap)
    newest = [
        order(memory, row["query"], number)[:1] == [len(row["sequence"]) - 1]
        for number, row in enumerate(sequences)
    ]
    assert sum(newest) >= 0.8 * len(newest)


def shown_beside(rows: list[dict[str, Any]], old: str, new: str) -> bool:
    """Whether the two stand together at the top; the older one, if it is first, names the newer."""
    first, second = rows[:2]
    if [first["content"], second["content"]] == [new, old]:
        return True
    told = first.get("newer", {}).get("id") == second["id"]
    return [first["content"], second["content"]] == [old, new] and told


# Some of the groups say what others say, in other words, and so are newer versions of them.
@pytest.mark.parametrize(("name", "share"), [("lookalikes", 0.75), ("parallel", 0.85)])
def test_what_only_looks_alike_keeps_its_place(memory: Memory, name: str, share: float) -> None:
    groups = trial(f"{name}.jsonl")[:60]
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
def test_what_is_announced_as_new_stands_beside_the_older_one(
    memory: Memory, old: str, new: str, query: str
) -> None:
    memory.import_rows([{"content": old, "created_at": 10**9}])
    memory.import_rows([{"content": new, "created_at": 10**9 + 90 * DAY}])
    assert shown_beside(memory.recall(query)["results"], old, new)


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
def test_what_was_handed_on_stands_beside_who_had_it(
    memory: Memory, old: str, new: str, query: str
) -> None:
    rows = (ROOT / "tests" / "diaries" / "health" / "memories.jsonl").read_text("utf-8")
    memory.import_rows(rows.splitlines())
    memory.import_rows([{"content": old, "created_at": 1_790_000_000}])
    memory.import_rows([{"content": new, "created_at": 1_795_000_000}])
    assert shown_beside(memory.recall(query)["results"], old, new)


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


def test_a_memory_that_may_be_outdated_stands_beside_the_newer_one_and_names_it(
    memory: Memory,
) -> None:
    texts = ["Session timeout is 30 minutes.", "Session timeout is now 2 hours."]
    filled(memory, [texts], 30 * DAY)
    rows = memory.recall("how many minutes is the session timeout?")["results"]
    assert {row["content"] for row in rows} == {*texts}
    (old,) = (row for row in rows if row["content"] == texts[0])
    (new,) = (row for row in rows if row["content"] == texts[1])
    told = old["newer"]
    assert (told["id"], told["beginning"]) == (new["id"], texts[1])
    assert told["created"] == new["created"]
    assert 0 < float(told["probability"]) <= 1
    assert "newer" not in new
    then = memory.recall("how long is the session timeout?", as_of=10**9 + 60)["results"]
    assert [row["content"] for row in then] == texts[:1]
    assert "newer" not in then[0]


# An older and a newer note, a question, and which of the two answers it.
ANSWERED = [
    (
        ("The staging database listens on port 5433.", "2026-01-10"),
        ("The staging database moved to eu-west-1.", "2026-03-10"),
        "which port does the staging database use?",
        0,
    ),
    (
        ("The invoice export is configured in config.yaml.", "2026-01-10"),
        ("The invoice export fails when the queue is longer than 559.", "2026-03-10"),
        "invoice export config file",
        0,
    ),
    (
        ("Revenue in 2023 was 0.9 million euros.", "2024-02-01"),
        ("Revenue in 2024 was 1.2 million euros.", "2025-02-01"),
        "What was our revenue in 2024?",
        1,
    ),
    (
        ("Revenue in 2023 was 0.9 million euros.", "2024-02-01"),
        ("Revenue in 2024 was 1.2 million euros.", "2025-02-01"),
        "What was our revenue in 2023?",
        0,
    ),
    (
        ("We plan to move the product to the new pricing in autumn.", "2026-02-01"),
        ("The product launch is on March 5, 2027.", "2026-11-01"),
        "What is planned for March 5?",
        1,
    ),
    (
        ("Adyen handles our payments.", "2026-01-10"),
        ("We switched payments from Adyen to Mollie", "2026-05-10"),
        "which payment provider do we have?",
        1,
    ),
]


@pytest.mark.parametrize(("old", "new", "question", "right"), ANSWERED)
def test_a_newer_note_passes_an_older_one_only_where_it_answers(
    memory: Memory, old: tuple[str, str], new: tuple[str, str], question: str, right: int
) -> None:
    for text, day in (old, new):
        memory.store(text, created_at=day)
    first, *_ = memory.recall(question)["results"]
    assert first["content"] == (old, new)[right][0]
    assert float(first["similarity"]) > 0.5


@pytest.mark.parametrize(
    "question",
    [
        "who led the billing team before Casimir?",
        "who did lead the billing team originally",
        "who used to lead the billing team?",
    ],
)
def test_asked_how_it_was_before_the_older_note_comes_first_and_still_names_the_newer_one(
    memory: Memory, question: str
) -> None:
    texts = ["Marit Solberg leads the billing team.", "Casimir Dooley leads the billing team now."]
    filled(memory, [texts], 30 * DAY)
    old, new = memory.recall(question)["results"]
    assert [old["content"], new["content"]] == texts
    assert old["newer"]["id"] == new["id"]
    assert old["similarity"] > 0.4
    first, *_ = memory.recall("who leads the billing team?")["results"]
    assert first["content"] == texts[1]


TOPICS = (
    "the pump",
    "a tyre",
    "the ferry",
    "our logo",
    "an oven",
    "the fence",
    "her violin",
    "rice",
)


def test_a_name_that_one_note_has_is_not_passed_by_a_newer_note(memory: Memory) -> None:
    for number in range(38):
        topic, day = TOPICS[number % len(TOPICS)], 10**9 + number * DAY
        memory.store(f"Note {number} of the week is about {topic}.", created_at=day)
    named = memory.store("Priya looks after the payments by Adyen.", created_at=10**9 + 40 * DAY)
    memory.store("Payments go through Mollie now.", created_at=10**9 + 80 * DAY)
    first, *_ = memory.recall("Priya")["results"]
    assert first["id"] == named["id"]


def test_the_only_note_of_a_store_answers_what_it_answers(memory: Memory) -> None:
    memory.store("we deploy on Fridays only after the canary is green")
    (found,) = memory.recall("what day do we ship?")["results"]
    assert 0.4 < float(found["similarity"]) < 0.9
    assert memory.recall("who is the landlord?")["results"] == []


WORDS = ["a", "the", "gate", "port", "is", "now", "8080", "9090", "team", "moved"]
LEXICON = sediment.Lexicon(sediment.stemmer(), lambda _: 0.01)
notes = st.lists(
    st.tuples(
        st.lists(st.sampled_from(WORDS)).map(" ".join),
        st.lists(st.floats(-1, 1), min_size=3, max_size=3),
        st.floats(0, 1),
        st.one_of(st.none(), st.integers(1, 10**9)),
    ),
    min_size=1,
    max_size=8,
)


def chances_of(found: list[Any]) -> tuple[Any, Any]:
    """How likely each newer one made each older one obsolete, and when they were stored."""
    texts, directions, relevance, created = zip(*found, strict=True)
    vectors = numpy.array([[*row, 1] for row in directions], "<f4")
    vectors /= numpy.linalg.norm(vectors, axis=1)[:, None]
    question = "which port is the gate on?"
    words = [*map(LEXICON.text_words, (*texts, question))]
    table = sediment.WordTable(words[:-1], words[-1])
    since = numpy.array(created, float)
    compared = sediment.Notes(table, vectors, since)
    pairs = sediment.pair_features(compared)
    features = sediment.asked_features(pairs, table, numpy.array(relevance))
    return sediment.newer_chances(features, since > since[:, None]), since


@given(notes)
def test_only_what_is_newer_makes_obsolete_and_by_a_probability(found: list[Any]) -> None:
    chances, since = chances_of(found)
    assert (chances >= 0).all()
    assert (chances.sum(1) <= 1).all()
    for old, new in numpy.argwhere(chances > 0).tolist():
        assert since[new] > since[old]


@given(notes, st.randoms())
def test_the_order_of_candidates_changes_no_chance(found: list[Any], chance: Any) -> None:
    order = list(range(len(found)))
    chance.shuffle(order)
    plain, _ = chances_of(found)
    mixed, _ = chances_of([found[at] for at in order])
    assert mixed == pytest.approx(plain[numpy.ix_(order, order)], abs=1e-3)


@given(st.integers(0, 7), st.randoms())
def test_each_stands_once_and_beside_the_newer_one_that_it_names(size: int, chance: Any) -> None:
    chances = numpy.zeros((size, size))
    age = list(range(size))
    chance.shuffle(age)
    for old in range(size):
        later = [new for new in range(size) if age[new] > age[old]]
        for new in later:
            chances[old, new] = chance.random() / len(later)
    relevance = sorted((chance.random() for _ in range(size)), reverse=True)
    order, newer = sediment.beside_newer(chances, relevance)
    assert sorted(order) == list(range(size))
    for old, new in newer.items():
        assert chances[old].sum() >= sediment.NAMED
        assert chances[old, new] == chances[old].max()
    if size and order[0] != 0:  # the most relevant one is passed by what surely made it obsolete
        assert chances[0].sum() >= sediment.PASSES


def test_what_is_not_sure_stands_behind_and_what_is_sure_before() -> None:
    near, far = sediment.PASSING_LOSS, sediment.PASSING_LOSS + 0.01
    for chance, loss, order in (
        (sediment.PASSES, near, [2, 0, 1]),
        (sediment.PASSES - 0.01, near, [0, 2, 1]),
        (sediment.PASSES, far, [0, 2, 1]),
    ):
        chances = numpy.array([[0, 0, chance], [0, 0, 0], [0, 0, 0]])
        assert sediment.beside_newer(chances, [1, 1, 1 - loss]) == (order, {0: 2})


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


# What was stored, what later, a question, and whether the later one may have changed the answer.
TOLD = [
    ("The CI runs on Jenkins.", "We moved CI from Jenkins to Travis.", "what runs CI on", True),
    ("The bundler is Webpack.", "We migrated from Webpack to Vite.", "which bundler is it", True),
    ("The ORM is Sequelize.", "We replaced Sequelize with Prisma.", "which ORM", True),
    ("Staging runs on MySQL.", "We moved live from MySQL to Oracle.", "what runs staging", False),
    ("Backups run on X11 at 3.", "We moved from X11 to Wayland.", "when do backups run", False),
    ("Ann lives in Bonn.", "Tom moved from Bonn to Kiel.", "where does Ann live", False),
]


@pytest.mark.parametrize(("old", "new", "query", "replaced"), TOLD)
def test_what_a_later_memory_says_was_changed_is_shown_beside_it(
    tmp_path: Path, old: str, new: str, query: str, replaced: bool
) -> None:
    with open_memory(tmp_path / "memory.db", "demo") as memory:
        memory.store(old, created_at="2026-01-01")
        memory.store(new, created_at="2026-04-01")
        rows = memory.recall(query)["results"]
    assert shown_beside(rows, old, new) if replaced else rows[0]["content"] == old


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


def test_a_note_of_a_change_is_shown_beside_what_it_changed(memory: Memory) -> None:
    filled(memory, [[old, new] for old, new, _ in MOVED], 90 * DAY)
    beside = [shown_beside(memory.recall(asked)["results"], old, new) for old, new, asked in MOVED]
    assert sum(beside) >= len(MOVED) - 1


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
def test_what_is_no_longer_so_stands_beside_what_is(
    memory: Memory, old: str, new: str, question: str
) -> None:
    memory.store(old, created_at=1_780_000_000)
    memory.store(new, created_at=1_782_600_000)
    for text in ("Bread rises for two hours.", "The bicycle has a flat tyre."):
        memory.store(text)
    assert shown_beside(memory.recall(question)["results"], old, new)


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

"""What may be stored or asked, and how times, words and pages are written."""

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import apsw
import pytest
from conftest import local_time_of
from hypothesis import given
from hypothesis import strategies as st

import sediment
from sediment import (
    InvalidInput,
    check_id,
    check_limit,
    check_scope,
    check_text,
    iso_time,
    json_length,
    one_line,
    paginate,
    parse_moment,
    parse_period,
    printable,
    query_phrases,
    spaced,
)

LAST_SECOND = sediment.TIME_MAX
anything = st.text(st.characters())  # lone surrogates and NUL included


# Texts


@pytest.mark.parametrize("text", ["a", " a ", "\ufeffa", "line\r\n\ttab", "日本語", "😀", "\x01a"])
def test_a_text_is_taken_as_it_is(text: str) -> None:
    assert check_text(text, "content", 100) == text


@pytest.mark.parametrize("text", ["", " ", "\n\t\r", "\u00a0\u2003\u3000"])
def test_white_space_alone_is_no_text(text: str) -> None:
    with pytest.raises(InvalidInput, match="query must not be empty"):
        check_text(text, "query", 100)


def test_no_text_at_all_is_named() -> None:
    with pytest.raises(InvalidInput, match="the note is missing"):
        check_text(None, "the note", 100)


@pytest.mark.parametrize("value", [1, b"bytes", ["a"], {"a": 1}])
def test_only_a_string_is_a_text(value: object) -> None:
    with pytest.raises(InvalidInput, match=f"must be a string, not {type(value).__name__}"):
        check_text(value, "content", 100)


def test_the_limit_counts_bytes_and_is_allowed_itself() -> None:
    assert check_text("é" * 5, "content", 10)
    with pytest.raises(InvalidInput, match="too large: 1,002 bytes, and the limit is 1,000"):
        check_text("é" * 501, "content", 1_000)


def test_a_lone_surrogate_is_named_with_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"lone surrogate U\+D83D at character 3"):
        check_text("abc\ud83d", "content", 100)


def test_nul_is_refused() -> None:
    with pytest.raises(InvalidInput, match="NUL"):
        check_text("a\0b", "content", 100)


@given(anything)
def test_any_string_is_taken_unchanged_or_refused_in_one_line(text: str) -> None:
    try:
        taken, refusal = check_text(text, "content", 60), ""
    except InvalidInput as error:
        taken, refusal = text, str(error)
    assert taken == text
    assert refusal.isprintable()


# Ids, limits, scopes


@pytest.mark.parametrize("id", ["a", "a b", "x" * 255, "https://example.org/?q=1#2", "naïve/日本"])
def test_ids_that_are_taken(id: str) -> None:
    assert check_id(id) == id


@pytest.mark.parametrize("id", ["", "x" * 256, "a\n", "\0", "a\tb", "\ud800", "\u202e", None, 7])
def test_ids_that_are_refused(id: object) -> None:
    with pytest.raises(InvalidInput, match="an id is 1 to 255 printable characters") as caught:
        check_id(id)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 130


@pytest.mark.parametrize(("value", "limit"), [(1, 1), (1_000, 1_000), (5.0, 5)])
def test_limits_that_are_taken(value: object, limit: int) -> None:
    assert check_limit(value) == limit
    assert type(check_limit(value)) is int


@pytest.mark.parametrize("value", [0, -1, 1_001, 1.5, float("nan"), float("inf"), True, "5", None])
def test_limits_that_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="limit must be a whole number, 1 to 1000"):
        check_limit(value)


def test_scopes_have_any_case_and_the_allowed_ones_are_named() -> None:
    assert check_scope("GLOBAL") == "global"
    with pytest.raises(InvalidInput, match="scope must be one of project, global, not 'all'"):
        check_scope("all")


# Times


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (1_700_000_000.9, 1_700_000_000),
        ("1700000000", 1_700_000_000),
        ("1970-01-02", 86_400),
        ("1970-01-01T01:00", 3_600),
        ("1970-01-01T01:00:00Z", 3_600),
        ("1970-01-01 01:00:00.5+01:00", 0),
        ("9999-12-30T00:00:00", LAST_SECOND),
    ],
)
def test_times_that_are_understood(value: object, seconds: int) -> None:
    assert parse_moment(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(-1, 1e400, float("nan"), LAST_SECOND + 1, 10**400, True, None, []),
        *(
            "march 32",
            "30 february",
            "feb 29, 2025",
            "5.3.26",
            "3.5.20.2026",
            "29.2.2026",
            "5.3.2026",
            "2026/03/05",
            "tomorrow",
            "30d",
            "2025-02-30",
            "today 25:00",
            "last blue moon",
            "weeks ago",
            "99999 years ago",
        ),
        *("", "-1", "soon", "1969-12-31", "2024-13-01", "nan", "inf", "9" * 5_000),
        *("2026-03-05+01:00", "2026-03-05-14", "20260305T", "2026-03-05T1", "9999"),
    ],
)
def test_times_that_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="a time is") as caught:
        parse_moment(value)
    assert len(str(caught.value)) < 175
    assert "from 1970 to 9998, not" in str(caught.value)
    assert parse_moment("9998-12") < parse_moment("9998", end=True)


# On a Thursday; in Berlin summer time began on 29 March 2026.
NOW = "2026-11-12 15:30"
PERIODS = """
now                       2026-11-12 15:30        2026-11-12 15:30:01
today                     2026-11-12              2026-11-13
Yesterday                 2026-11-11              2026-11-12
3 days ago                2026-11-09              2026-11-10
2 weeks ago               2026-10-26              2026-11-02
two   weeks ago           2026-10-26              2026-11-02
a month ago               2026-10-01              2026-11-01
2 years ago               2024-01-01              2025-01-01
2 hours ago               2026-11-12 13:30        2026-11-12 13:30:01
last 3 days               2026-11-09 15:30        2026-11-12 15:30:01
the past two weeks        2026-10-29 15:30        2026-11-12 15:30:01
past week                 2026-11-05 15:30        2026-11-12 15:30:01
this week                 2026-11-09              2026-11-16
last week                 2026-11-02              2026-11-09
last year                 2025-01-01              2026-01-01
monday                    2026-11-09              2026-11-10
thursday                  2026-11-12              2026-11-13
last thursday             2026-11-05              2026-11-06
march                     2026-03-01              2026-04-01
last march                2026-03-01              2026-04-01
november                  2026-11-01              2026-12-01
last nov                  2025-11-01              2025-12-01
december                  2025-12-01              2026-01-01
March 2024                2024-03-01              2024-04-01
march 5                   2026-03-05              2026-03-06
5th of March              2026-03-05              2026-03-06
Nov 13                    2025-11-13              2025-11-14
March 5th, 2024           2024-03-05              2024-03-06
2024                      2024-01-01              2025-01-01
2026-03                   2026-03-01              2026-04-01
2026-03-29                2026-03-29              2026-03-30
february 29, 2024         2024-02-29              2024-03-01
20260305                  2026-03-05              2026-03-06
2026-03-05 14:00          2026-03-05 14:00        2026-03-05 14:00:01
2026-03-05T14:00:00+00:00 2026-03-05 15:00        2026-03-05 15:00:01
20260305T1400             2026-03-05 14:00        2026-03-05 14:00:01
20260305T140059Z          2026-03-05 15:00:59     2026-03-05 15:01
2026-03-05T1400+0100      2026-03-05 14:00        2026-03-05 14:00:01
2026-W10-4 1400           2026-03-05 14:00        2026-03-05 14:00:01
2026-03-05T14             2026-03-05 14:00        2026-03-05 14:00:01
20260305t14Z              2026-03-05 15:00        2026-03-05 15:00:01
2026W104                  2026-03-05              2026-03-06
1772719200                2026-03-05 15:00        2026-03-05 15:00:01
"""


@pytest.fixture
def berlin() -> Iterator[None]:
    with local_time_of("Europe/Berlin"):
        yield


def seconds_of(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("line", PERIODS.strip().splitlines())
def test_times_in_words_are_local_ones(line: str) -> None:
    text, start, end = re.split(r"\s{2,}(?=2)|(?<=00:00)\s(?=2)", line)
    now = seconds_of(NOW)
    assert parse_period(text, now) == (seconds_of(start), seconds_of(end))
    if not re.search("week|month|year", text) or "ago" not in text:
        assert parse_moment(text, now) == seconds_of(start)
        assert parse_moment(text, now, end=True) == seconds_of(end) - 1


@pytest.mark.usefixtures("berlin")
def test_weeks_and_months_ago_are_one_day_of_them() -> None:
    for text, day in (("2 weeks ago", "2026-10-29"), ("a month ago", "2026-10-12")):
        assert parse_moment(text, seconds_of(NOW)) == seconds_of(day)
    assert parse_moment("1 month ago", seconds_of("2026-03-31")) == seconds_of("2026-02-28")


@given(st.text(st.characters(codec="utf-8")) | st.from_regex(r"[a-z]+ \d+ [a-z]+", fullmatch=True))
def test_no_text_breaks_the_reading_of_times(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        start, end = parse_period(text)
        assert 0 <= start < end


@given(st.integers(0, LAST_SECOND))
def test_a_time_that_is_written_can_be_read(seconds: int) -> None:
    assert parse_moment(iso_time(seconds)) == seconds
    assert iso_time(seconds).endswith("+00:00")


# Words


def index(*texts: str) -> apsw.Connection:
    """A real word index over texts."""
    connection = apsw.Connection(":memory:")
    sediment.upgrade(connection)
    rows = [(number, spaced(text)) for number, text in enumerate(texts)]
    connection.executemany("INSERT INTO words(rowid, text, context) VALUES(?, ?, '')", rows)
    return connection


def letters(text: str) -> str:
    """A text without signs, and what stands between words."""
    text = sediment._signed(sediment.matching_form(text)).lower()
    return re.sub(r"[\s!-/:-@\[-`{-~\U000f0000-\U000fffff]", "", text)


def phrases(query: str) -> list[str]:
    """The different words of a query; each stands where it says."""
    words = list(query_phrases(query))
    assert all(letters(query[start:end]) == letters(word) for word, start, end in words)
    return list(dict.fromkeys(word for word, _, _ in words))


def found(connection: apsw.Connection, query: str) -> list[int]:
    """The texts that a query's words find."""
    expression = " OR ".join(f'"{phrase}"' for phrase in phrases(query)[:64])
    if not expression:
        return []
    sql = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid"
    return [row[0] for row in connection.execute(sql, (expression,))]


@pytest.mark.parametrize(
    "query",
    [
        *('say "hello', "a NEAR b", "NEAR(x y)", "NOT", "x AND", "OR OR", "w*", "^w", "text:w"),
        *("-w", "(w", "w)", "{w}", "w + w", "'", '""', "\\", "a:b:c", "`", "%", "$w", "?1", "@w"),
        "w\x01w",
    ],
)
def test_the_syntax_of_the_index_is_only_text(query: str) -> None:
    texts = ("w hello near not and or text", "nothing of that kind")
    assert found(index(*texts), query) in ([0], [])


def test_colours_of_a_terminal_are_no_words() -> None:
    text = "\x1b[31merror\x1b[0m in \x1b[1;38;5;208mgateway\x1b[K"
    assert found(index(text), "error") == found(index(text), "gateway") == [0]
    assert found(index("error 31merror"), text) == [0]
    assert phrases(text) == ["error", "in", "gateway"]


@given(st.text(st.sampled_from("aé\"'()*^:-+{}<>NEARORNOT .\\\u0301日本ーाि𠮷ก\u0e39ๆ")))
def test_no_query_is_a_syntax_error(query: str) -> None:
    found(index("a text"), query)


def test_any_of_the_words_is_enough_and_stems_count() -> None:
    connection = index("we deployed on Fridays", "the canary is green", "unrelated")
    assert found(connection, "deploying canaries") == [0, 1]


def test_operators_are_words_like_others() -> None:
    connection = index("or not and near", "else")
    assert all(found(connection, word) == [0] for word in ("OR", "NOT", "AND", "NEAR"))


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("the résumé of Zoë", "resume"),
        ("the resume", "résumé"),
        ("the re\u0301sume\u0301", "re\u0301sume\u0301"),
        ("İstanbul", "İSTANBUL"),
        ("snake_case_name", "case"),
        ("ERR_CONN_42", "err_conn_42"),
        ("С новым годом", "ГОДОМ"),
        ("４９３０円", "4930"),
        ("meets at １４：３０", "14:30"),
        ("ｶﾒﾗは棚", "カメラ"),
        ("カメラは棚", "ｶﾒﾗ"),
        ("the price is 4,930 euros", "4930"),
        ("the price is 4930 euros", "4 930"),
        ("the price is 4 930 euros", "4,930"),
        ("1'204'500 rows", "1,204,500"),
    ],
)
def test_a_word_is_found_however_it_is_written(text: str, query: str) -> None:
    assert found(index("else", text), sediment.matching_form(query)) == [1]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("4,930", ["4930"]),
        ("rooms 80, 443", ["rooms", "80", "443"]),
        ("in 2026 930 came", ["in", "2026", "930", "came"]),
        ("1,23,456", ["1", "23", "456"]),
        ("v4,930x", ["v4", "930x"]),
    ],
)
def test_only_groups_of_three_figures_are_one_number(query: str, words: list[str]) -> None:
    assert phrases(query) == words


def test_the_form_for_matching_keeps_symbols_apart() -> None:
    assert sediment.matching_form("№５ ⒶﬁＡ￥ ｶﾞ 10²") == "№5 ⒶfiA¥ ガ 102"


def test_an_accent_in_two_code_points_does_not_split_a_word() -> None:
    connection = index("resume", "re", "sum", "sume")
    assert found(connection, "re\u0301sume\u0301") == [0]


def test_vowel_signs_do_not_split_a_word() -> None:
    connection = index("हिन्दी भाषा", "ह द", "न")
    assert found(connection, "हिन्दी") == [0]


def test_neighbouring_ideographs_are_looked_up_in_pairs() -> None:
    assert phrases("東京都") == ["東 京", "京 都"]
    connection = index("東京都に住む", "京都に行く", "東の京", "都")
    assert found(connection, "東京都") == [0, 1]
    assert found(connection, "都") == [0, 1, 3]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("รหัสผ่านอยู่บนกระดาน", "กระดาน"),
        ("ລະຫັດຜ່ານຢູ່ເທິງກະດານ", "ກະດານ"),
        ("စကားဝှက်ကိုကျောက်သင်ပုန်းပေါ်မှာရေးထားတယ်", "သင်ပုန်း"),
        ("ពាក្យសម្ងាត់ស្ថិតនៅលើក្តារខៀន", "ក្តារខៀន"),
    ],
)
def test_words_of_unspaced_scripts_with_marks_are_found_within_a_run(text: str, query: str) -> None:
    assert found(index("else", text), query) == [1]
    assert all(len(phrase.split()) > 1 for phrase in phrases(query))


def test_a_lone_letter_with_its_mark_is_looked_up() -> None:
    assert found(index("ปู", "ดู"), "ปู") == [0]


def test_scripts_are_told_apart_inside_a_word() -> None:
    assert phrases("iPhoneの画面") == ["iphone", "の 画", "画 面"]
    assert found(index("新しいiPhone15を買った", "else"), "iphone15") == [0]


def test_words_are_asked_once() -> None:
    assert phrases("tea Tea TEA") == ["tea"]


def test_one_endless_word_is_no_trouble() -> None:
    assert found(index("x" * 10_000, "x"), "x" * 10_000) == [0]


def test_a_long_path_is_looked_up_in_pieces() -> None:
    pieces = [word.split() for word in phrases("/".join(f"x{n}" for n in range(40)))]
    assert sorted(map(len, pieces))[-3:] == [8, 16, 16]


@pytest.mark.parametrize("query", ["", "?!", "_ _", "+ # . @", "…—"])
def test_a_query_without_words_asks_nothing(query: str) -> None:
    assert phrases(query) == []


# On a terminal


@given(anything)
def test_nothing_printed_can_steer_a_terminal(text: str) -> None:
    shown = printable(text)
    assert not any(ch in shown for ch in "\x1b\x9b\r\x07\x08\x7f\0\u202e\u2066")
    assert shown.count("\n") == text.count("\n")


def test_control_characters_are_shown_and_the_rest_is_left() -> None:
    assert printable("a\x1b[31m\tb\nc\u202ed") == "a\\x1b[31m\tb\nc\\x202ed"


@given(anything, st.integers(2, 40))
def test_one_line_is_short_and_flat(text: str, width: int) -> None:
    line = one_line(text, width)
    assert len(line) <= width
    assert "\n" not in line


def test_one_line_shows_where_it_was_cut() -> None:
    assert one_line("a\n b", 10) == "a b"
    assert one_line("abcdef", 4) == "abc…"


# Pages


def assert_pages(text: str) -> None:
    pages = paginate(text)
    assert "".join(text[start:end] for start, end in pages) == text
    assert all(start < end for start, end in pages)
    assert all(json_length(text[start:end]) <= sediment.PAGE_SIZE for start, end in pages)


@given(st.lists(st.tuples(st.text(max_size=40), st.integers(1, 600)), max_size=6))
def test_pages_join_to_the_text_and_fit(parts: list[tuple[str, int]]) -> None:
    assert_pages("".join(part * times for part, times in parts))


@pytest.mark.parametrize("char", ["a", '"', "\n", "\x01", "日", "😀", "\u2028"])
@pytest.mark.parametrize("length", [1, 1_333, 7_998, 7_999, 8_000, 20_001])
def test_pages_of_the_worst_characters_fit(char: str, length: int) -> None:
    assert_pages(char * length)
    assert_pages("a" * 7_900 + char * length)


def test_pages_are_as_few_as_can_be() -> None:
    assert paginate("a" * 7_998) == [(0, 7_998)]
    assert paginate("a" * 7_999) == [(0, 7_998), (7_998, 7_999)]


def test_a_million_spaces_are_one() -> None:
    """Each of them was once looked at from all those before."""
    assert sediment.normalized("a" + " " * 999_998 + "b") == "a b"


@pytest.mark.parametrize(
    "late", ["9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59Z", sediment.TIME_MAX + 1, 1e300]
)
def test_a_time_that_not_every_zone_can_tell_is_refused(late: object) -> None:
    with pytest.raises(sediment.InvalidInput, match="a time is"):
        sediment.parse_moment(late)


def test_a_time_that_is_stored_already_is_told_as_the_last_one() -> None:
    told = sediment.iso_time(sediment.TIME_MAX + 10 * sediment.DAY)
    assert told == "9999-12-30T00:00:00+00:00"
    assert sediment.local_time(told)


@pytest.mark.parametrize("value", ["0", "false", "Off", " no "])
def test_words_that_switch_something_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEDIMENT_CROSS_PROJECT", value)
    assert not sediment.crosses_projects()
    monkeypatch.setenv("SEDIMENT_CROSS_PROJECT", "1")
    assert sediment.crosses_projects()


@pytest.mark.parametrize("zone", ["UTC-99", "UTC+99", "nonsense", ""])
def test_times_are_told_wherever_the_clock_says_it_is(zone: str) -> None:
    with local_time_of(zone):
        assert sediment.local_time("2026-03-05T12:00:00+00:00")[:5] == "2026-"


def test_a_moment_may_be_a_datetime() -> None:
    moment = datetime(2026, 3, 5, 12, tzinfo=UTC)
    assert sediment.parse_moment(moment) == int(moment.timestamp())


@pytest.mark.usefixtures("berlin")
def test_hours_ago_are_as_long_when_a_clock_is_put_forward_or_back() -> None:
    for now in ("2026-03-29T03:10:00+02:00", "2026-10-25T02:10:00+01:00"):
        at = int(datetime.fromisoformat(now).timestamp())
        for told, seconds in (("30 minutes ago", 1_800), ("2 hours ago", 7_200)):
            assert sediment.parse_moment(told, now=at) == at - seconds

"""Two memories may be merged only if nothing but a remark about the memory parts them."""

from __future__ import annotations

import json
import random
import re

import pytest
from conftest import ROOT
from hypothesis import assume, given
from hypothesis import strategies as st

from sediment import core_words, differences, normalized

BASE = "Deploys run on Mondays at 7:30 in Bern."
BEFORE = """Note: {} | Remember that {} | note that {} | FYI, {} | As a reminder, {} | **Note:** {}
| Quick note - {} | Important: {} | Keep in mind that {} | Don’t forget that {} | Heads up: {} | {}
| It is important to remember that {} | Just to be clear, {}"""
BEHIND = """{} | {} (confirmed) | {} [verified] | {} (still valid). | {} (verified and noted)
| {} — this is the current approach | {} - this is still our choice. | {} — still current
| {}. This still applies"""
WORDS = set(re.findall(r"[a-z][a-z'-]+", " ".join((BEFORE, BEHIND)).lower().replace("’", "'")))

words = st.from_regex(r"[A-Za-z0-9]{1,8}", fullmatch=True)
marked = words | st.sampled_from([*sorted(WORDS), "note:", "that", "-", "(noted)", "\n "])
texts = st.text(max_size=60) | st.lists(marked, max_size=12).map(" ".join)


def test_what_differs_in_the_world_differs() -> None:
    path = ROOT / "tests/trials/hard_pairs.jsonl"
    pairs = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(pairs) > 600
    both = [(p["a"], p["b"]) for p in pairs] + [(p["b"], p["a"]) for p in pairs]
    assert [pair for pair in both if not differences(*pair)] == []


OTHER = """{} (not confirmed) | {} (to be confirmed) | {} (confirmed by Ida) | {} (confirmed?) | {}?
| {} (valid) | {} (tip) | {}: confirmed | {}, confirmed | {} - confirmed | {} (still) | {} for now
| {} — this is the approach | {} — this was the current approach | {}. It is still valid. | Not: {}
| {} — this is the current approach in Bern | {}. Still valid. | {} (still is) | Forget that {}
| Don't note that {} | It is important that {} | To be confirmed: {} | Note to Bob: {} | Note, {}
| Ida noted that {} | As noted by Ida: {} | (Confirmed) {} | Note - {} | Confirmed: {}"""


def table(text: str) -> list[str]:
    return [case.strip() for case in text.split("|")]


@pytest.mark.parametrize("before", table(BEFORE))
@pytest.mark.parametrize("behind", table(BEHIND))
@pytest.mark.parametrize("text", [BASE, "BASE jumping isn't safe here.", "We use it (or v2)"])
def test_a_remark_does_not_count(before: str, behind: str, text: str) -> None:
    for inner in {text.rstrip("."), text if ". T" not in behind else text.rstrip(".")}:
        full = before.format(behind.format(inner))
        assert differences(text, full) == differences(full, text) == []


@pytest.mark.parametrize("other", table(OTHER))
def test_other_words_at_the_edge_count(other: str) -> None:
    text = BASE.rstrip(".")
    assert differences(text, other.format(text))
    assert differences(other.format(text), text)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("new - paid - late", "new - paid - late - noted"),
        ("(a) (b) (c) (d)", "(a) (b) (c) (d) (noted)"),
        ("- a one\n- b one", "- a one\n- b one (confirmed)"),
        ("Status", "Status (confirmed)"),
        ("x:\n  - a b\n  - c", "note: x:\n  - a b\n  - c"),
        ("if x:\n    a()\nb()", "if x:\n    a()\n    b()"),
        ("10² nodes are in use", "102 nodes are in use"),
        ("No, more tests are needed", "No more tests are needed"),
        ("path is /A/b of the repo", "path is /a/b of the repo"),
        ("The password is BlueHorse", "Remember that the password is bluehorse"),
        ("use gRPC in the Lab", "use grpc in the lab"),
        ("Use a/. for it", "Use a/ for it"),
    ],
)
def test_no_doubt_is_resolved(a: str, b: str) -> None:
    assert differences(a, b)
    assert differences(b, a)


@pytest.mark.parametrize(
    ("a", "b", "reasons"),
    [
        ("Chose gRPC for Billing.", "Remember that chose grpc for billing.", []),
        ("Keep it 30 days", "Keep it 45 days", ["30 / 45"]),
        ("It is on", "It is not on", ["- / not"]),
        ("Ida pays Bob", "Bob pays Ida", ["order: ida pays Bob / bob pays Ida"]),
        ("a " * 5001, "b " * 5001, ["too long to be compared word by word"]),
    ],
)
def test_reasons_in_words(a: str, b: str, reasons: list[str]) -> None:
    assert differences(a, b) == reasons


def test_reasons_are_few_and_short() -> None:
    draw = random.Random(1)
    a, b = (" ".join(draw.choices(["x" * 50 + str(i) for i in range(99)], k=99)) for _ in "ab")
    assert len(differences(a, b)) <= 8
    assert max(map(len, differences(a, b))) <= 62


def test_what_carries_nothing_is_set_aside() -> None:
    assert core_words("Note: Keep it 30 days (confirmed).") == ["keep", "it", "30", "days"]
    assert normalized("Ｕｓｅ “it”\u00a0– now!\n") == 'use "it" - now'


@given(texts, texts)
def test_symmetric_and_reflexive(a: str, b: str) -> None:
    assert differences(a, a) == []
    assert bool(differences(a, b)) == bool(differences(b, a))
    assert normalized(normalized(a)) == normalized(a)


@given(texts, words, st.integers(0, 99))
def test_any_word_more_counts(text: str, word: str, place: int) -> None:
    assume(word.lower() not in WORDS)
    gaps = [match.start() for match in re.finditer(r"(?<!\S)(?=\S)|$", text)]
    at = gaps[place % len(gaps)]
    assert differences(text, f"{text[:at]} {word} {text[at:]}")

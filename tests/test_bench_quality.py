"""The benchmark of LongMemEval, on a small file of the same form."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import ROOT


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


SESSIONS = [
    [
        turn("user", "I adopted a greyhound called Pickle last weekend.", has_answer=True),
        turn("assistant", "Congratulations! Greyhounds are calm dogs."),
    ],
    [
        turn("user", "How long do I boil an egg?", has_answer=False),
        turn("assistant", "Seven minutes for a soft yolk."),
    ],
    [
        turn("user", "Pickle, my greyhound, has a vet called Dr. Sand.", has_answer=True),
        turn("assistant", "Good to know a vet near you."),
    ],
]


def question(id: str, text: str, kind: str, gold: list[int]) -> dict[str, Any]:
    return {
        "question_id": id,
        "question_type": kind,
        "question": text,
        "answer": "see the sessions",
        "question_date": "2023/06/30 (Fri) 10:00",
        "haystack_dates": [f"2023/05/{day} ({name}) 23:40" for day, name in WEEK],
        "haystack_session_ids": [f"session_{place}" for place in range(len(SESSIONS))],
        "haystack_sessions": SESSIONS,
        "answer_session_ids": [f"session_{place}" for place in gold],
    }


WEEK = [(22, "Mon"), (23, "Tue"), (24, "Wed")]


def test_longmemeval_is_asked_by_session_and_by_turn(tmp_path: Path) -> None:
    file = tmp_path / "longmemeval.json"
    questions = [
        question("q1", "What do I know about Pickle the greyhound?", "multi-session", [0, 2]),
        question("q2_abs", "What is my cat called?", "single-session-user", [1]),
    ]
    file.write_text(json.dumps(questions))
    command = [sys.executable, ROOT / "tests/bench_quality.py", "--longmemeval", file]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    rows = [line.strip("| ").split(" | ") for line in printed.stdout.splitlines() if "|" in line]
    told = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    for level in ("session", "turn"):
        count, any_first, any_five, all_first, all_five = told[f"{level}, all"]
        assert (count, any_first, any_five, all_first, all_five) == (
            "1",
            *["100.0"] * 2,
            "0.0",
            "100.0",
        )
        assert told[f"{level}, multi-session"] == told[f"{level}, all"]
    assert not any("single-session" in name for name in told)

"""A run by the warm process and a real start: nobody can tell them apart."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from warm import Warm

ROWS = "".join(
    json.dumps({"id": f"{number:032x}", "content": text, "created_at": "2024-05-01T10:00:00Z"})
    + "\n"
    for number, text in enumerate(["We deploy on Fridays.", "Backups go to \u00dcrdorf at night."])
)
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("--version", {}),
    ("--help", {"env": {"COLUMNS": "60"}}),
    ("import -", {"input": ROWS}),
    ("list", {"env": {"TZ": "Asia/Tokyo"}}),
    ("--json recall when-is-a-release?", {}),
    ("recall Backups", {"input": b"", "text": False}),
    ("get nothing-has-this-id", {}),
    ("store -", {"input": b"\xff\xfe\n", "text": False}),
    ("store", {}),
    ("list --nonsense", {}),
    ("--json stats", {"env": {"SEDIMENT_PROJECT": "other"}}),
    ("export missing/folder/file", {}),
]


def answers(run: Run, folder: Path) -> list[tuple[int, Any, Any]]:
    """What all the runs gave, each seeing what those before it left."""
    folder.mkdir()
    env = {"HOME": str(folder), "SEDIMENT_DB": "memory.db", "SEDIMENT_PROJECT": "demo"}
    told = []
    for words, given in RUNS:
        options = given | {"cwd": folder, "env": env | given.get("env", {})}
        done = run(*words.split(), **options)
        told.append((done.returncode, done.stdout, done.stderr))
    return told


def masked(answers: list[tuple[int, Any, Any]], folder: Path) -> str:
    """Without what differs from one start to the next: the folder, and how long it took."""
    return re.sub(r"\d+(\.\d+)? ?(s|a second)\b", "T", str(answers).replace(str(folder), "FOLDER"))


def test_both_answer_the_same(
    run_pyz: Run, start_pyz: Run, warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    run = warm.run
    monkeypatch.setattr(warm, "run", lambda *a, **k: (done := run(*a, **k), taken.append(done))[0])
    warmly, really = answers(run_pyz, tmp_path / "a"), answers(start_pyz, tmp_path / "b")
    assert None not in taken
    assert len(taken) == len(RUNS)
    assert masked(warmly, tmp_path / "a") == masked(really, tmp_path / "b")
    assert {code for code, *_ in warmly} == {0, 1, 2}


def test_a_run_that_takes_too_long_is_ended(run_pyz: Run, tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_pyz("watch", ".", cwd=tmp_path, timeout=1)
    assert run_pyz("--version").returncode == 0


def test_what_it_cannot_give_is_left_to_a_real_start(warm: Warm, tmp_path: Path) -> None:
    env = {"SEDIMENT_CACHE": warm.cache, "HOME": str(tmp_path)}
    plain = {"capture_output": True, "text": True, "timeout": 60}
    assert warm.run(("--version",), "", env, **plain)
    assert not warm.run(("--version",), "", env, **plain, preexec_fn=print)
    assert not warm.run(("--version",), None, env, **plain)
    assert not warm.run(("--version",), "", env | {"PYTHONUTF8": "1"}, **plain)
    assert not warm.run(("--version",), "", env | {"SEDIMENT_CACHE": str(tmp_path)}, **plain)
    assert not warm.run(("--version",), "", env, **plain, cwd=tmp_path / "missing")

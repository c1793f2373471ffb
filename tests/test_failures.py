"""When a tool of the agent fails, the known fix of this error is shown, and no other."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from storage import open_memory

import sediment_ext.failures
import sediment_ext.hooks
import sediment_ext.systems
from sediment import Memory
from sediment_ext.failures import failure_of, telling_lines
from sediment_ext.hooks import run_hook

ROWS = [json.loads(line) for line in (ROOT / "tests/failures.jsonl").read_text().splitlines()]
MEMORIES = [row["text"] for row in ROWS if row["kind"] == "memory"]
FAILURES = [row for row in ROWS if row["kind"] == "failure"]
FIXED = [row for row in ROWS if "fix" in row]  # half of them "blind": written after the rules
NO_PG = next(row for row in FIXED if "pg_config" in row["output"])


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    monkeypatch.setattr(sediment_ext.systems, "start_beside", lambda *_, **__: None)
    with open_memory(tmp_path / "memory.db") as memory:
        yield memory


def failed(memory: Memory, command: str, output: str, session: str = "", **more: Any) -> str:
    """What the hook shows after a failure."""
    given = {"hook_event_name": "PostToolUseFailure", "session_id": session, "command": command}
    answer = run_hook(memory, given | {"error": output} | more)
    return answer["hookSpecificOutput"]["additionalContext"] if answer else ""


def test_errors_without_a_known_fix_get_nothing(memory: Memory) -> None:
    for text in MEMORIES:
        memory.store(text)
    assert (len(FAILURES) >= 100, len(MEMORIES) >= 60) == (True, True)
    told = {row["command"]: failed(memory, row["command"], row["output"]) for row in FAILURES}
    assert {command: text for command, text in told.items() if text} == {}


def test_errors_get_their_known_fix(memory: Memory) -> None:
    for text in MEMORIES:
        memory.store(text)
    ids = [memory.store(row["fix"])["id"] for row in FIXED]
    told = [failed(memory, row["command"], row["output"]) for row in FIXED]
    got = Counter(
        row["kind"]
        for row, id, text in zip(FIXED, ids, told, strict=True)
        if f" {id[:8]}: " in text
    )
    print(got)
    assert (len(FIXED), got["tuned"]) == (30, 15)
    assert got.total() >= 25
    wrong = [text for id, text in zip(ids, told, strict=True) if text and id[:8] not in text]
    assert wrong == []
    assert max(text.count("\n") for text in told) == 2  # one memory between the marks


def test_a_fix_is_shown_once_in_a_session(memory: Memory) -> None:
    id = memory.store(NO_PG["fix"])["id"]
    first = failed(memory, NO_PG["command"], NO_PG["output"], "s1")
    begin, line, end = first.splitlines()
    assert (begin[:21], end) == ("[memory from sediment", "[end of memory]")
    assert line.endswith(f" {id[:8]}: {NO_PG['fix']}")
    assert failed(memory, NO_PG["command"], NO_PG["output"], "s1") == ""
    assert failed(memory, NO_PG["command"], NO_PG["output"], "s2") == first


def test_a_fix_that_stands_in_the_output_is_not_shown(memory: Memory) -> None:
    memory.store(NO_PG["fix"])
    assert failed(memory, "cat notes.md", f"{NO_PG['output']}\n{NO_PG['fix']}") == ""


def test_a_part_of_a_file_is_no_fix(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(f"# Notes\n\n{NO_PG['fix']}\n")
    memory.index(str(tmp_path / "notes.md"))
    assert memory.recall(NO_PG["fix"])["results"]
    assert failed(memory, NO_PG["command"], NO_PG["output"]) == ""


# What clients send


def fields(client: str, output: str) -> dict[str, Any]:
    """What a client's hook is given after a command with this output, as they were seen to send
    it, and Cursor as it is documented."""
    ran = {"command": NO_PG["command"]}
    return {
        "claude": {"hook_event_name": "PostToolUse", **ran, "error": ""}
        | {"tool_response": json.dumps({"stdout": output, "stderr": "", "interrupted": False})},
        "codex": {"hook_event_name": "PostToolUse", "tool_input": ran, "tool_response": output},
        "gemini": {"hook_event_name": "AfterTool", "tool_input": ran}
        | {"tool_response": {"llmContent": f"Output: {output}\nExit Code: 1"}},
        "cursor": {"hook_event_name": "postToolUse", "tool_input": ran}
        | {"tool_output": json.dumps({"exitCode": 1, "stdout": output})},
    }[client]


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "cursor"])
def test_each_client_tells_a_failure_in_its_way(memory: Memory, client: str) -> None:
    memory.store(NO_PG["fix"])
    answer = run_hook(memory, {"client": client} | fields(client, NO_PG["output"]))
    text = answer.get("additional_context") or answer["hookSpecificOutput"]["additionalContext"]
    assert NO_PG["fix"] in text
    assert answer.get("decision") is None
    log = list(memory.database.path.parent.glob("*.hooks"))
    for path in log:
        path.unlink()
    assert run_hook(memory, {"client": client} | fields(client, "3 files changed")) == {}
    assert not [*memory.database.path.parent.glob("*.hooks")]  # of a success nothing is noted


def test_a_success_opens_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "in_folder", lambda *_: pytest.fail("a folder was looked at"))
    with open_memory(tmp_path / "none.db") as memory:
        assert run_hook(memory, fields("codex", "all 12 passed")) == {}
        assert run_hook(memory, {"hook_event_name": "PostToolUse", "tool_response": 5}) == {}
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("off", ["SEDIMENT_HOOK_ERRORS", "SEDIMENT_HOOKS", ""])
def test_it_can_be_switched_off(memory: Memory, monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    memory.store(NO_PG["fix"])
    if off:
        monkeypatch.setenv(off, "0")
    else:
        sediment_ext.hooks.switch_hooks(memory, ["error"], on=False)
    assert failed(memory, NO_PG["command"], NO_PG["output"]) == ""


# What tells an error apart


def test_an_error_is_told_apart_by_what_does_not_vary() -> None:
    one = """Traceback (most recent call last):
  File "/home/ana/shop/app.py", line 12, in <module>
    connect(0x7f3a9c)
2026-03-11T09:12:44Z worker[811]: libheron 2.4.1: cannot open /srv/a/heron.db at 0x55d0c1
"""
    other = one.replace("/home/ana", "/work").replace("line 12", "line 31").replace("2.4.1", "3.0")
    other = other.replace("2026-03-11T09:12:44Z", "2027-01-02T00:00:00Z").replace("/srv/a", "/b/c")
    other = other.replace("0x55d0c1", "0xdeadbeef").replace("worker[811]", "worker[97]")
    assert telling_lines(one) == telling_lines(other)
    assert telling_lines(one)[-1].endswith("libheron cannot open heron.db at")


@pytest.mark.parametrize("given", [{}, {"error": 5}, {"tool_response": "{"}, {"tool_output": [1]}])
def test_what_tells_no_failure_is_none(given: dict[str, Any]) -> None:
    assert failure_of(given) is None

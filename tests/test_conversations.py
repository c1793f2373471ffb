"""What agents' clients leave of their sessions, read as what was typed and what was answered."""

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from hypothesis import given
from hypothesis import strategies as st
from program import Program, in_one_look

import sediment_ext.hooks
import sediment_ext.importers
import sediment_ext.json_lines
import sediment_ext.transcripts
from sediment import InvalidInput, NotFound
from sediment_ext.transcripts import Turn, read_conversation, sessions_of, typed_text

SAMPLES = Path(__file__).parent / "samples"
CLAUDE = SAMPLES / "claude" / "tools-resume-compact.jsonl"
SUBAGENTS = SAMPLES / "claude" / "with-subagents.jsonl"
CODEX = next((SAMPLES / "codex").glob("rollout-*.jsonl"))
COMPACTED = next((SAMPLES / "codex").glob("compacted-*.jsonl"))
GEMINI, COMPRESSED = sorted((SAMPLES / "gemini").glob("*.jsonl"), reverse=True)
STAGING = ("which port has staging?", "DONE")
BLOCK = "[memory from sediment: of earlier sessions]\n- staging is 6543\n[end of memory]"
OPENCODE_SESSION = "ses_dfd04c767ffe0wOVYq1fxgSIug"


def spoken(turns: list[Turn]) -> list[tuple[str, str]]:
    return [(turn.prompt, turn.answer) for turn in turns]


def opencode_database(path: Path) -> Path:
    """A database with the rows that OpenCode left."""
    database = sqlite3.connect(path)
    database.executescript((SAMPLES / "opencode" / "schema.sql").read_text())
    for line in (SAMPLES / "opencode" / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        table = row.pop("table")
        marks = ", ".join("?" * len(row))
        database.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()]
        )
    database.commit()
    database.close()
    return path


def typed(prompt: object, **more: object) -> dict[str, object]:
    """A line of Claude Code's with a prompt."""
    message = {"role": "user", "content": prompt}
    return {"type": "user", "message": message, "timestamp": "2026-03-05T10:00:00Z", **more}


def answered(text: object, **more: object) -> dict[str, object]:
    content = [{"type": "text", "text": text}]
    return {"type": "assistant", "message": {"role": "assistant", "content": content}, **more}


@pytest.fixture
def claude(tmp_path: Path) -> Callable[..., list[tuple[str, str]]]:
    """What is read of the lines of a file of Claude Code's."""

    def read(*lines: object) -> list[tuple[str, str]]:
        path = tmp_path / "session.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return spoken(read_conversation("claude", path).turns)

    return read


# What clients wrote


@pytest.mark.parametrize(
    ("client", "path", "expected"),
    [
        ("claude", CLAUDE, [STAGING, ("and again?", "DONE")]),
        ("claude", SUBAGENTS, [("use a subagent", "DONE\n\nDONE")]),
        ("codex", CODEX, [STAGING, ("and again?", "DONE")]),
        ("codex", COMPACTED, [("hello one", "DONE"), ("hello two", "DONE")]),
        ("gemini", GEMINI, [STAGING]),
        ("gemini", COMPRESSED, []),  # a command, answered with a summary
    ],
    ids=lambda value: value.name if isinstance(value, Path) else None,
)
def test_of_a_session_what_was_typed_and_answered_is_read(
    client: str, path: Path, expected: list[tuple[str, str]]
) -> None:
    found = read_conversation(client, path)
    assert spoken(found.turns) == expected
    assert found.client == client
    assert found.remark == ""
    assert all(1795340000 < turn.at < 1795350000 for turn in found.turns)


def test_of_opencodes_database_one_session_is_read(tmp_path: Path) -> None:
    path = opencode_database(tmp_path / "opencode.db")
    before = path.read_bytes()
    found = read_conversation("opencode", path, session=OPENCODE_SESSION)
    assert spoken(found.turns) == [STAGING]  # without the quotes, and what a plugin put before
    assert found.turns[0][:2] == ("msg_202fb394a001ee1n3YRuJESJ2O", 1795346348)
    assert found[1:3] == (OPENCODE_SESSION, "/home/user/proj")
    assert path.read_bytes() == before
    with pytest.raises(NotFound, match="has no session ses_gone"):
        read_conversation("opencode", path, session="ses_gone")


def test_a_session_is_read_while_opencode_writes(tmp_path: Path) -> None:
    path = opencode_database(tmp_path / "opencode.db")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = wal")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE part SET data = '{}'")
    found = read_conversation("opencode", path, session=OPENCODE_SESSION)
    assert spoken(found.turns) == [STAGING]
    writer.close()


def test_rows_of_opencodes_that_are_damaged_cost_no_other(tmp_path: Path) -> None:
    path = opencode_database(tmp_path / "opencode.db")
    database = sqlite3.connect(path)
    session = (OPENCODE_SESSION, 0, 0)
    database.execute("INSERT INTO message VALUES ('msg_0', ?, ?, ?, '[]')", session)
    for number, data in enumerate(("{", "[7]", b"\xff", '{"type":"text","text":[]}')):
        database.execute(
            f"INSERT INTO part VALUES ('p{number}', 'msg_0', ?, ?, ?, ?)", (*session, data)
        )
    database.execute("UPDATE session SET directory = x'00ff'")
    database.commit()
    database.close()
    found = read_conversation("opencode", path, session=OPENCODE_SESSION)
    assert spoken(found.turns) == [STAGING]


def test_prompts_have_the_names_that_their_client_gave_them() -> None:
    keys = [turn.key for turn in read_conversation("claude", CLAUDE).turns]
    assert keys[0] == "805da84d-a2f9-4da3-a4e4-9f574e706249"
    assert read_conversation("codex", CODEX).turns[0].key == "01a202f9-8e19-7331-9e48-55f7dab0dac4"
    assert (
        read_conversation("gemini", GEMINI).turns[0].key == "d28cbad4-e1e9-4682-b937-ad63d1d8b96c"
    )


def test_a_session_has_its_name_and_its_folder(tmp_path: Path) -> None:
    assert read_conversation("claude", CLAUDE)[1:3] == ("tools-resume-compact", "/home/user/proj")
    assert read_conversation("claude", CLAUDE, session="given").session == "given"
    codex = ("01a202f9-8cde-7973-b464-e9eea09a3517", "/home/user/proj")
    assert read_conversation("codex", CODEX)[1:3] == codex
    chats = tmp_path / "proj" / "chats"
    chats.mkdir(parents=True)
    (tmp_path / "proj" / ".project_root").write_text("/home/user/proj")
    path = chats / GEMINI.name
    path.write_bytes(GEMINI.read_bytes())
    gemini = ("86d348fa-33be-4ca8-a22d-589bf0d28a38", "/home/user/proj")
    assert read_conversation("gemini", path)[1:3] == gemini


def test_what_a_subagent_did_is_nothing_that_the_user_said(tmp_path: Path) -> None:
    theirs = next(SAMPLES.glob("claude/with-subagents/subagents/*.jsonl"))
    assert read_conversation("claude", theirs).turns == []
    path = tmp_path / CODEX.name
    path.write_text(CODEX.read_text().replace('"source": "exec"', '"source": {"subagent": {}}', 1))
    found = read_conversation("codex", path)
    assert (found.turns, found.remark) == ([], "")


def test_what_a_subagent_of_opencodes_did_is_nothing_that_the_user_said(tmp_path: Path) -> None:
    path = opencode_database(tmp_path / "opencode.db")
    database = sqlite3.connect(path)
    database.execute("UPDATE session SET parent_id = 'ses_another'")
    database.commit()
    database.close()
    found = read_conversation("opencode", path, session=OPENCODE_SESSION)
    assert (found.turns, found.remark) == ([], "")


@pytest.mark.parametrize(
    ("client", "place", "is_one"),
    [
        ("codex", ".codex/sessions/rollout-1.jsonl", True),
        ("codex", ".codex/archived_sessions/2026/11/rollout-1.jsonl", True),
        ("codex", ".codex/sessions/rollout-1/deep.jsonl", False),
        ("claude", ".claude/projects/-p/a.jsonl", True),
        ("claude", ".claude/projects/-p/a/subagents/b.jsonl", False),
        ("cursor", ".cursor/projects/p/agent-transcripts/c/c.jsonl", True),
        ("cursor", ".cursor/projects/p/agent-transcripts/c/subagents/s.jsonl", False),
    ],
)
def test_a_hook_takes_those_files_for_sessions_that_an_import_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, place: str, is_one: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    (path := tmp_path / place).parent.mkdir(parents=True)
    path.write_text("{}\n")
    assert [found for found, _ in sessions_of(client)] == [path] * is_one
    assert sediment_ext.transcripts.session_file("", str(path)) == (
        (client, path) if is_one else ("", None)
    )


def test_older_sessions_of_codex_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    path.write_text(
        '{"timestamp":"2025-09-05T10:00:00Z","type":"session_meta","payload":{"cwd":"/home/user"}}\n'
        '{"timestamp":"2025-09-05T10:00:01Z","type":"event_msg",'
        '"payload":{"type":"user_message","message":"which port?","kind":"plain"}}\n'
        '{"timestamp":"2025-09-05T10:00:02Z","type":"event_msg",'
        '"payload":{"type":"agent_message","message":"6543"}}\n'
    )
    found = read_conversation("codex", path)
    assert spoken(found.turns) == [("which port?", "6543")]
    assert found.turns[0].key == str(found.resume)  # where it stands, which stays


def test_a_session_of_cursor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    text = "<timestamp>now</timestamp>\n<user_query>\nwhich port?\n</user_query>"
    said = {"role": "user", "message": {"content": [{"type": "text", "text": text}]}}
    reply = {"role": "assistant", "message": {"content": [{"type": "text", "text": "6543"}]}}
    path.write_text(json.dumps(said) + "\n" + json.dumps(reply) + "\n")
    os.utime(path, (1795346337, 1795346337))
    assert read_conversation("cursor", path).turns == [Turn("0", 1795346337, "which port?", "6543")]


def test_later_changes_to_a_message_of_geminis_count_and_none_is_taken_away(tmp_path: Path) -> None:
    first = {"id": "1", "type": "user", "content": [{"text": "which port?"}]}
    thought = {"text": "Let me see.", "thought": True}
    reply = {"id": "2", "type": "gemini", "content": [thought]}
    after = [{"$set": {"messages": [{"id": "3", "type": "user", "content": "thanks a lot"}]}}]
    lines = [
        {"sessionId": "s"},
        first,
        reply,
        reply | {"content": [thought, {"text": "6543"}]},
        *after,
    ]
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    expected = [("which port?", "6543"), ("thanks a lot", "")]
    assert spoken(read_conversation("gemini", path).turns) == expected


# What is nobody's words


def test_what_was_typed_while_the_agent_worked_is_a_prompt(claude: Callable[..., Any]) -> None:
    queued = {"type": "queued_command", "commandMode": "prompt", "prompt": "also the tests"}
    told = queued | {"commandMode": "task-notification", "prompt": "a task has ended"}
    lines = [{"type": "attachment", "attachment": one} for one in (queued, told)]
    expected = [("mend it", "On it."), ("also the tests", "Done.")]
    assert claude(typed("mend it"), answered("On it."), *lines, answered("Done.")) == expected


@pytest.mark.parametrize(
    "line",
    [
        typed("The summary of all.", isCompactSummary=True),
        typed("Caveat: …", isMeta=True),
        typed("look for it", isSidechain=True),
        typed("<command-name>/compact</command-name>"),
        typed("<local-command-stdout>done</local-command-stdout>"),
        typed("<task-notification>\n<task-id>1</task-id></task-notification>"),
        typed("<system-reminder>Be quick.</system-reminder>"),
        typed([{"type": "tool_result", "content": [{"type": "text", "text": "hi"}]}]),
        typed("hi", toolUseResult={"stdout": "hi"}),
        typed(BLOCK),
        typed("[Request interrupted by user]"),
    ],
    ids=str,
)
def test_what_nobody_typed_is_no_prompt(claude: Callable[..., Any], line: Any) -> None:
    said = claude(typed("which port?"), answered("6543."), line, answered("Anything else?"))
    assert said == [("which port?", "6543.\n\nAnything else?")]
    assert claude(line, answered("Hello.")) == []


def test_thoughts_and_tools_are_no_answer(claude: Callable[..., Any]) -> None:
    parts = [
        {"type": "thinking", "thinking": "hm", "text": "hm"},
        {"type": "text", "text": "It is 6543."},
        {"type": "tool_use", "name": "Bash", "input": {"text": "ls"}},
    ]
    line = {"type": "assistant", "message": {"content": parts}}
    failed = answered("API Error: 529", isApiErrorMessage=True)
    silent = answered("No response requested.")
    silent["message"] |= {"model": "<synthetic>"}  # type: ignore
    assert claude(typed("which port?"), line, failed, silent) == [("which port?", "It is 6543.")]


def test_our_own_block_is_removed_wherever_it_stands(claude: Callable[..., Any]) -> None:
    prompt = f"which port?\n{BLOCK}\nof staging"
    assert claude(typed(prompt), answered(f"As you said:\n{BLOCK}\n6543")) == [
        ("which port?\nof staging", "As you said:\n6543")
    ]
    escaped = BLOCK.replace("staging is", "a &lt;b&gt; is")
    assert typed_text(f"<hook_context>{escaped}</hook_context>\n\nwhich port?") == "which port?"
    assert typed_text(f"{BLOCK}\n{BLOCK}") == ""
    quoted = "what does [memory from sediment: …] mean?"
    assert typed_text(quoted) == quoted
    assert (
        typed_text("[memory from sediment: what is this?") == "[memory from sediment: what is this?"
    )


ENDLESS = [
    *("<user_query>", "</user_query>", "<log>", "<hook_context>", "<system-reminder>\n"),
    *(
        "[memory from sediment:",
        "\n[memory from sediment: ",
        "# Context \n## My request",
        "/",
        "\\",
    ),
    *('"', "# Files ", "\n", " ", "[[", "- [", '"cwd": "', '"cwd": "\\', "[redacted: "),
    *('{"type":', '"mapping": ', "[", "{", '"thread_source": ', "permalink:\n", "---\n", "```\n"),
]


@pytest.mark.parametrize("piece", ENDLESS)
def test_no_prompt_or_file_takes_long(piece: str, tmp_path: Path) -> None:
    """What takes half a second took minutes where a pattern looked twice."""
    with in_one_look():
        for before in ("", "<log>", '"', "# Context "):
            typed_text(before + piece * (250_000 // len(piece)))
        text = piece * (50_000 // len(piece))
        for client, name in (("claude", "s.jsonl"), ("codex", "rollout-s.jsonl")):
            path = tmp_path / name
            path.write_text(text + "\n" + json.dumps(typed(text)) + "\n")
            read_conversation(client, path)
        (tmp_path / "note.md").write_text(f"---\npermalink: x\n---\n- [a] {text}")
        for archive in (path, tmp_path):
            with contextlib.suppress(InvalidInput):
                deque(sediment_ext.importers.open_archive(archive)[1], 0)


def test_of_a_prompt_in_an_editors_frame_the_prompt_is_left() -> None:
    frame = "# Context from my IDE setup:\n\n## Open: a.py\n\n## My request for Codex:\nmend it\n"
    assert typed_text(frame) == "mend it"
    assert typed_text("## My request for Codex:\nis kept") == "## My request for Codex:\nis kept"
    assert typed_text("<user_query>\nmend it\n</user_query>") == "mend it"
    assert typed_text("<log>a</log><user_query>mend it</user_query>") == "mend it"
    assert typed_text("<user_query></user_query>") == ""
    assert typed_text("<a></user_query>") == "<a></user_query>"
    tags = "what does <user_query>a</user_query> do?"
    assert typed_text(tags) == tags
    assert typed_text("/compress") == ""
    assert typed_text("/etc is full, why?") == "/etc is full, why?"


def test_a_prompt_in_quotes_loses_only_those_of_opencode(tmp_path: Path) -> None:
    path = opencode_database(tmp_path / "opencode.db")
    database = sqlite3.connect(path)
    for text, expected in (
        (r'"say \"hi\" twice"', 'say "hi" twice'),
        ('"one" or "two"?', '"one" or "two"?'),
    ):
        data = json.dumps({"type": "text", "text": text})
        database.execute("UPDATE part SET data = ? WHERE id LIKE 'prt_202fb3952%'", (data,))
        database.commit()
        found = read_conversation("opencode", path, session=OPENCODE_SESSION)
        assert found.turns[0].prompt == expected
    database.close()


def test_many_opened_blocks_take_no_time() -> None:
    text = "\n[memory from sediment:" * 100_000
    assert typed_text(text) == text.strip()
    assert typed_text("<system-reminder>" * 100_000) == ""


# Going on


@pytest.mark.parametrize(("client", "path"), [("claude", CLAUDE), ("codex", CODEX)])
def test_reading_goes_on_where_the_last_turn_begins(
    client: str, path: Path, tmp_path: Path
) -> None:
    whole = path.read_bytes()
    expected = read_conversation(client, path)
    growing = tmp_path / path.name
    known: dict[str, Turn] = {}
    resume = 0
    for size in range(0, len(whole) + 1, 977):  # lines that are cut, too
        growing.write_bytes(whole[:size] if size + 977 <= len(whole) else whole)
        found = read_conversation(client, growing, resume)
        known |= {turn.key: turn for turn in found.turns}
        assert found.resume >= resume
        resume = found.resume
        assert found.folder in (None, "/home/user/proj")
    assert list(known.values()) == expected.turns
    assert resume == expected.resume
    assert read_conversation(client, growing, resume).turns == expected.turns[-1:]


@pytest.mark.parametrize("start", [5, 10**9, -1])
def test_of_a_file_that_is_another_one_all_is_read(start: int, tmp_path: Path) -> None:
    found = read_conversation("claude", CLAUDE, start)
    assert found == read_conversation("claude", CLAUDE)


# Bad input


def test_a_file_that_is_gone_is_not_found(tmp_path: Path) -> None:
    for client in ("claude", "codex", "gemini", "opencode", "cursor"):
        with pytest.raises(NotFound, match="no longer exists"):
            read_conversation(client, tmp_path / "gone.jsonl")
    with pytest.raises(InvalidInput, match="a client is one of claude, codex"):
        read_conversation("emacs", CLAUDE)
    with pytest.raises(InvalidInput, match="a client is one of claude, codex"):
        list(sessions_of("emacs"))


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "opencode", "cursor"])
@pytest.mark.parametrize(
    "data", [b'{"v": 9, "said": "hi"}\n', b"\0\xff\xfe\n" * 99, b"[" * 100_000]
)
def test_of_what_is_not_understood_a_remark_says_so(
    client: str, data: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(data)
    found = read_conversation(client, path, session="one")
    assert found.turns == []
    assert found.remark == f"{path} has an unknown format: update this program"


def test_of_messages_that_are_called_otherwise_a_remark_says_so(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(typed("hi") | {"type": "human"}) + "\n")
    assert read_conversation("claude", path).remark


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "cursor"])
def test_of_a_session_in_which_nothing_was_said_yet_nothing_is_remarked(
    client: str, tmp_path: Path
) -> None:
    opened = {"claude": CLAUDE, "codex": CODEX, "gemini": GEMINI}
    path = tmp_path / "one.jsonl"
    for lines in (1, 0) if client in opened else (0,):
        given = opened.get(client, CLAUDE).read_text().splitlines(keepends=True)
        path.write_text("".join(given[:lines]))
        found = read_conversation(client, path)
        assert (found.turns, found.remark) == ([], "")


def test_what_opencode_has_in_its_place_is_remarked_unless_it_is_its_own(left: Path) -> None:
    path = left / ".local/share/opencode/opencode.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM message")
        database.commit()
    (session,) = sediment_ext.transcripts.all_sessions(["opencode"])
    assert (session.turns, session.remark) == ([], "")
    path.write_bytes(b"garbage" * 1000)
    (session,) = sediment_ext.transcripts.all_sessions(["opencode"])
    assert session.remark == f"{path} has an unknown format: update this program"


def test_one_bad_line_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    deep = b'{"type":"user","message":' + b"[" * 200_000 + b"\n"
    huge = (
        b'{"type":"user","message":{"content":"'
        + b"x" * sediment_ext.transcripts.TRANSCRIPT_LINE
        + b'"}}\n'
    )
    wrong = [[], 1, {"type": ["user"]}, {"type": "user"}, {"type": "user", "message": []}]
    wrong += [typed({"a": 1}), typed([["a"], 1]), typed(None), {"type": "assistant", "message": 5}]
    ending = json.dumps(answered("6543")).encode()[:-4]
    path.write_bytes(
        b"".join(json.dumps(line).encode() + b"\n" for line in wrong)
        + b'{"type":"user"\n' + b'"type":"user"\xff\n' + deep + huge
        + json.dumps(typed("which port?", uuid=7, timestamp={})).encode() + b"\n" + ending
    )  # fmt: skip
    turns = read_conversation("claude", path).turns
    assert spoken(turns) == [("which port?", "")]
    assert turns[0].key.isdigit()  # it had no name


def test_half_a_character_is_replaced(claude: Callable[..., Any]) -> None:
    assert claude(typed("a \ud83d b \U0001f600 c \0 d")) == [
        ("a \ufffd b \U0001f600 c \ufffd d", "")
    ]


_NAMES = "type message content payload item text role id $set messages attachment sessionId"
_KINDS = st.sampled_from(["user", "assistant", "gemini", "event_msg", "UserMessage", "text"])


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(_NAMES.split())
    return st.lists(inner, max_size=3) | st.dictionaries(names, inner | _KINDS)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), _nested, max_leaves=12))
def test_no_value_of_any_type_ends_the_reading(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.jsonl"
        line = json.dumps([value, "user_message"])[1:].rpartition(",")[0]
        path.write_text(f'{line}\n{{"role": {line}, "UserMessage": 1, "type":"user"}}\n')
        for client in ("claude", "codex", "gemini", "cursor"):
            read_conversation(client, path)


def test_a_long_transcript_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    noise = json.dumps({"type": "attachment", "attachment": {"text": "x" * 60_000}}) + "\n"
    with open(path, "w") as file:
        for number in range(330):  # 20 MB
            file.write(json.dumps(typed(f"question {number}", uuid=str(number))) + "\n" + noise)
            file.write(json.dumps(answered(f"answer {number}")) + "\n")
    code = (
        "import resource, sys, pathlib; from sediment_ext.transcripts import read_conversation\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "turns = read_conversation('claude', pathlib.Path(sys.argv[1])).turns\n"
        "print(len(turns), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    out = subprocess.check_output([sys.executable, "-c", code, str(path)], text=True, env=env)
    turns, grown = map(int, out.split())
    assert turns == 330
    assert grown < 5_000 * (1024 if sys.platform == "darwin" else 1)


# Where they are


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a session of each client's, and some of subagents."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_DB"):
        monkeypatch.delenv(name, raising=False)
    subagent = next(SAMPLES.glob("claude/with-subagents/subagents/*.jsonl"))
    day = ".codex/sessions/2026/11/22"
    files = {
        ".claude/projects/-home-user-proj/aaaa.jsonl": CLAUDE.read_bytes(),
        ".claude/projects/-home-user-proj/agent-1.jsonl": subagent.read_bytes(),
        ".claude/projects/-home-user-proj/aaaa/subagents/agent-2.jsonl": subagent.read_bytes(),
        f"{day}/{CODEX.name}": CODEX.read_bytes(),
        f"{day}/{CODEX.name[:-6]}2.jsonl": CODEX.read_bytes().replace(
            b'"thread_source": "user"', b'"thread_source": "subagent"', 1
        ),
        f".codex/archived_sessions/{COMPACTED.name[10:]}": COMPACTED.read_bytes(),
        f".gemini/tmp/proj/chats/{GEMINI.name}": GEMINI.read_bytes(),
        ".cursor/projects/p/agent-transcripts/c1/c1.jsonl": b'{"role":"user"}\n',
    }
    for age, (name, data) in enumerate(files.items()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (2_000_000 - age, 2_000_000 - age))
    folder = tmp_path / ".local/share/opencode"
    folder.mkdir(parents=True)
    opencode_database(folder / "opencode.db")
    return tmp_path


def test_the_sessions_that_clients_left_are_found_newest_last(left: Path) -> None:
    found = {
        client: [session for _, session in sessions_of(client)]
        for client in ("claude", "codex", "gemini", "opencode", "cursor")
    }
    assert found == {
        "claude": ["aaaa"],
        "codex": ["01a20306-6313-7991-9f6b-e03b27801747", "01a202f9-8cde-7973-b464-e9eea09a3517"],
        "gemini": ["86d348fa-33be-4ca8-a22d-589bf0d28a38"],
        "opencode": [OPENCODE_SESSION],
        "cursor": ["c1"],
    }
    for client in found:
        for path, session in sessions_of(client):
            assert read_conversation(client, path, session=session).session == session


def test_only_sessions_that_changed_since_are_found(left: Path) -> None:
    assert len(list(sessions_of("codex", 1_999_996))) == 1
    assert list(sessions_of("claude", 2_000_001)) == []
    assert list(sessions_of("opencode", 1795346354)) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes among its files")
def test_a_pipe_or_a_device_among_transcripts_is_left_alone(left: Path) -> None:
    """Either would be read for ever, a database, too."""
    for folder in ("claude/projects/-home-user-proj", "cursor/projects/p/agent-transcripts/c1"):
        os.mkfifo(left / f".{folder}/pipe.jsonl")
        (left / f".{folder}/device.jsonl").symlink_to("/dev/zero")
    database = left / ".local/share/opencode/opencode.db"
    database.unlink()
    os.mkfifo(database)
    found = [len(list(sessions_of(client))) for client in ("claude", "cursor", "opencode")]
    assert found == [1, 1, 0]


def test_folders_that_clients_were_given_are_looked_into(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, old in (("CLAUDE_CONFIG_DIR", ".claude"), ("CODEX_HOME", ".codex")):
        (left / old).rename(left / f"moved{old}")
        monkeypatch.setenv(name, str(left / f"moved{old}"))
    (left / ".local/share/opencode/opencode.db").rename(left / "o.db")
    assert list(sessions_of("opencode")) == []
    monkeypatch.setenv("OPENCODE_DB", str(left / "o.db"))
    assert [len(list(sessions_of(client))) for client in ("claude", "codex", "opencode")] == [
        1,
        2,
        1,
    ]


# What other programs export


def chatgpt(*said: tuple[str, object], leaf: str = "") -> dict[str, Any]:
    """A chat with these messages, one behind the other."""
    nodes: dict[str, Any] = {"root": {"message": None, "parent": None}}
    for number, (role, content) in enumerate(said):
        content = (
            {"content_type": "text", "parts": [content]} if isinstance(content, str) else content
        )
        message = {"id": f"m{number}", "author": {"role": role}, "content": content}
        message["create_time"] = 1_700_000_000.5 + number
        nodes[f"n{number}"] = {"message": message, "parent": f"n{number - 1}" if number else "root"}
    return {"id": "c1", "mapping": nodes, "current_node": leaf or f"n{len(said) - 1}"}


CLAUDE_AI = {
    "uuid": "c2",
    "name": "Ports",
    "chat_messages": [
        {
            "uuid": "a",
            "sender": "human",
            "text": "which port?",
            "created_at": "2026-03-05T10:00:00Z",
        },
        {
            "uuid": "b",
            "sender": "assistant",
            "text": "hm 6543",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "6543"}],
        },
    ],
}


def archived(path: Path) -> list[sediment_ext.transcripts.Conversation]:
    kind, found = sediment_ext.importers.open_archive(path)
    assert kind == "conversations"
    return list(found)


def rows(path: Path) -> list[str]:
    kind, found = sediment_ext.importers.open_archive(path)
    assert kind == "rows"
    known = [row for _, row in sediment_ext.json_lines.rows_in(found)]
    return [row["content"] for row in known if isinstance(row, dict) and "content" in row]


def test_of_chatgpts_tree_the_branch_that_is_shown_is_read(tmp_path: Path) -> None:
    code = {"content_type": "code", "text": "ls"}
    chat = chatgpt(
        ("system", "Be kind."), ("user", "which port?"), ("assistant", code), ("assistant", "6543")
    )
    chat["mapping"]["other"] = {"message": {"author": {"role": "assistant"}}, "parent": "n1"}
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([chat]))
    (found,) = archived(path)
    assert found[:2] == ("chatgpt", "c1")
    assert found.turns == [Turn("m1", 1_700_000_001, "which port?", "6543")]


def test_an_answer_to_what_was_only_attached_stands_under_that(tmp_path: Path) -> None:
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://f1"}
    shown = {"content_type": "multimodal_text", "parts": [image]}
    asked = ("user", "capital of Peru?"), ("assistant", "Lima.")
    chat = chatgpt(*asked, ("user", shown), ("assistant", "A cracked gearbox."))
    paste = {"file_name": "paste.txt", "extracted_content": "Turbine report\n"}
    answer = {"sender": "assistant", "content": [{"type": "text", "text": "It seized."}]}
    pasted = {
        "uuid": "c3",
        "chat_messages": [
            {"uuid": "a", "sender": "human", "text": "", "content": [], "attachments": [paste]},
            answer,
            {"sender": "human", "files": [{"file_name": "mast.png"}]},
            answer,
        ],
    }
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([chat, pasted]))
    assert [spoken(one.turns) for one in archived(path)] == [
        [("capital of Peru?", "Lima."), ("[image]", "A cracked gearbox.")],
        [("Turbine report", "It seized."), ("[file mast.png]", "It seized.")],
    ]


def test_chats_without_a_name_are_kept_apart(tmp_path: Path) -> None:
    chats = [chatgpt(("user", text), ("assistant", "6543")) for text in ("which port?", "and now?")]
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([{**chat, "id": None} for chat in chats]))
    sessions = [one.session for one in archived(path)]
    assert len({*sessions, ""}) == 3
    assert [one.session for one in archived(path)] == sessions


@pytest.mark.parametrize("kind", ["file", "folder", "zip"])
def test_an_export_is_a_file_a_folder_or_an_archive(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(
        json.dumps([CLAUDE_AI, chatgpt(("user", "hello"), ("assistant", "hi"))], indent=2)
    )
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
            archive.write(path, "export/conversations.json")
            archive.writestr("export/users.json", "[]")
    given = {"file": path, "folder": tmp_path, "zip": tmp_path / "export.zip"}[kind]
    first, second = archived(given)
    assert first[:2] == ("claude.ai", "c2")
    assert first.turns == [Turn("a", 1_772_704_800, "which port?", "6543")]
    assert spoken(second.turns) == [("hello", "hi")]


@pytest.mark.parametrize(
    ("client", "chat"),
    [
        ("claude.ai", {"uuid": "c0", "name": "", "account": {"uuid": "a"}, "chat_messages": []}),
        ("chatgpt", {"title": 'T "x"', "create_time": 1.5, "mapping": {}, "conversation_id": "c0"}),
        ("chatgpt", {"title": None, "create_time": 1.5, "mapping": {}, "conversation_id": "c0"}),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_an_export_in_which_nothing_was_said_is_one(
    here: Program, client: str, chat: dict[str, Any], indent: int | None
) -> None:
    path = here.folder / "conversations.json"
    path.write_text(json.dumps([chat, chat], indent=indent))
    assert [one[:2] for one in archived(path)] == [(client, "c0")] * 2
    assert "Kept nothing of 2 sessions" in here.ok("import", str(path))


def test_a_session_that_is_called_like_a_credential_is_kept_by_a_hash(here: Program) -> None:
    path, key = here.folder / "conversations.json", "ghp_" + "a1B2" * 9
    path.write_text(json.dumps([CLAUDE_AI | {"uuid": key}]))
    assert here.json("import", str(path))["turns"] == 1
    assert here.json("import", str(path))["existing"] == 1
    (session,) = here.json("list", "--conversations")["conversations"]
    assert session["source"].startswith("claude.ai:")
    assert key not in session["source"]
    assert all(key.encode() not in one.read_bytes() for one in here.folder.parent.rglob("*.db*"))
    given = {"hook_event_name": "SessionStart", "session_id": key}
    assert key not in sediment_ext.hooks.read_event(given).session


def test_an_export_that_is_cut_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    loop = chatgpt(("user", "hello"))
    loop["mapping"]["n0"]["parent"] = "n0"
    path.write_text(json.dumps([CLAUDE_AI, 7, {"mapping": [], "id": {}}, loop, CLAUDE_AI])[:-9])
    found = sediment_ext.importers.open_archive(path)[1]
    assert [len(next(found).turns) for _ in range(4)] == [1, 0, 0, 1]
    with pytest.raises(InvalidInput, match="is damaged after"):
        next(found)


def test_what_is_no_conversation_in_an_export_is_told(here: Program) -> None:
    path = here.folder / "conversations.json"
    path.write_text(json.dumps([CLAUDE_AI, 7, {"account": "nobody's"}]))
    told = "2 entries of the export of claude.ai are no conversations"
    assert here.json("import", str(path), "--dry-run")["remarks"] == [told]
    assert here.ok("import", str(path)).splitlines()[1:] == [told]


def test_the_graph_of_the_mcp_memory_server_becomes_sentences(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    facts = [
        {
            "type": "entity",
            "name": "Ada",
            "entityType": "person",
            "observations": ["likes tea", "rows"],
        },
        {"type": "relation", "from": "Ada", "to": "Acme", "relationType": "works at"},
        {"type": "entity", "name": "Bob", "entityType": "person", "observations": 7},
    ]
    path.write_text("".join(json.dumps(fact) + "\n" for fact in facts) + "nonsense\n")
    assert rows(path) == ["Ada (person): likes tea", "Ada (person): rows", "Ada works at Acme"]


@pytest.mark.parametrize(
    "fact",
    [
        {"type": "entity", "entityType": "person", "name": "Zoe", "observations": ["Likes tea"]},
        {"name": "Zoe", "observations": ["Likes tea"], "entityType": "person", "type": "entity"},
        {"to": "tea", "type": "relation", "relationType": "likes", "from": "Zoe"},
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_graph_is_known_by_its_first_fact_whatever_comes_first_in_that(
    tmp_path: Path, fact: dict[str, Any], mark: str
) -> None:
    path = tmp_path / "memory.json"
    path.write_text(mark + json.dumps(fact) + "\n", "utf-8")
    assert rows(path) in (["Zoe (person): Likes tea"], ["Zoe likes tea"])


def test_rows_that_say_what_kind_they_are_are_no_graph(here: Program) -> None:
    row = {"type": "entity", "content": "Zoe likes tea."}
    (here.folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert here.json("import", "rows.jsonl")["stored"] == 1


def test_what_is_no_fact_of_a_graph_is_refused_by_its_line(here: Program) -> None:
    facts = [
        {
            "type": "entity",
            "name": "Bob",
            "entityType": "person",
            "observations": ["rows", "sings"],
        },
        {"type": "entity", "name": "Zed", "entityType": "person", "observations": "is a string"},
        {"type": "entity", "entityType": "person", "observations": ["has no name"]},
        {"type": "relation", "from": "Bob"},
    ]
    text = "".join(json.dumps(fact) + "\n" for fact in facts) + "nonsense\n"
    (here.folder / "memory.json").write_text(text)
    told = json.loads(here.run("--json", "import", "memory.json").stdout)
    assert told["stored"] == 3
    assert [row["line"] for row in told["refused"]] == [3, 4, 5]
    assert "Zed (person): is a string" in here.ok("list")


def test_the_notes_of_basic_memory_become_memories(tmp_path: Path) -> None:
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "ada.md").write_text(
        "---\ntitle: Ada\ntype: person\npermalink: people/ada\n---\n# Ada\n\nSome prose.\n\n"
        "- [taste] likes tea #drinks (since spring)\n- works at [[Acme]] since May\n## Tasks\n"
        "- [ ] to do\n```\n- [not] this\n```\n## Relations\n- knows [[Bob]]\n"
    )
    assert rows(tmp_path) == [
        "Ada (taste): likes tea #drinks (since spring)",
        "Ada works at Acme since May",
        "Ada knows Bob",
        "Ada: Some prose.",
        "Ada (Tasks): - [ ] to do\n```\n- [not] this\n```",
    ]


def test_no_note_of_basic_memory_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "okapi.md").write_text("---\npermalink: okapi\n---\n\nIt eats leaves.\n")
    (tmp_path / "empty.md").write_text("---\npermalink: empty\n---\n# Nothing\n")
    (tmp_path / "long.md").write_text(f"{'Tea. ' * 250_000}\n")
    (tmp_path / "marked.md").write_text("\ufeff---\ntitle: Ada\n---\nRows.\n", "utf-8")
    long = f"long: {'Tea. ' * 250_000}".rstrip()
    assert rows(tmp_path) == [long, "Ada: Rows.", "okapi: It eats leaves."]


def test_an_import_that_is_utf_16_is_told_so(here: Program) -> None:
    row = json.dumps({"content": "Zoe likes tea."}) + "\n"
    for order in ("utf-16-le", "utf-16-be"):
        (here.folder / "rows.jsonl").write_bytes(f"\ufeff{row}".encode(order))
        told = here.error("import", "rows.jsonl")
        assert told == "Error: the file is UTF-16: save it as UTF-8"


def test_a_note_of_which_not_all_is_text_is_refused_by_its_name(here: Program) -> None:
    (notes := here.folder / "notes").mkdir()
    (here.folder / "link").symlink_to(notes)
    (notes / "ada.md").write_text("---\npermalink: ada\n---\nAda rows.\n")
    for name, data in (("latin", b"A caf\xe9.\n"), ("nul", b"\0\0"), ("utf16", b"\xff\xfec\0")):
        (notes / f"{name}.md").write_bytes(data)
    told = json.loads((done := here.run("--json", "import", "link")).stdout)
    assert (done.returncode, told["stored"]) == (1, 1)
    assert [row["reason"] for row in told["refused"]] == [
        "link/latin.md is not all UTF-8: nothing of it was taken",
        "link/nul.md is not text: nothing of it was taken",
        "link/utf16.md is UTF-16: save it as UTF-8: nothing of it was taken",
    ]
    (notes / "latin.md").write_text("A café.\n", "utf-8")
    assert json.loads(here.run("--json", "import", "link").stdout)["stored"] == 1


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_in_what_another_program_left_is_not_followed(tmp_path: Path, kind: str) -> None:
    notes, outside = tmp_path / "notes", tmp_path / "outside"
    notes.mkdir()
    outside.mkdir()
    note = "---\ntitle: {0}\npermalink: {0}\n---\n- [fact] of {0}\n".format
    (notes / "own.md").write_text(note("own"))
    (outside / "secret.md").write_text(note("secret"))
    (notes / "linked.md").symlink_to("../outside" + "/secret.md" * (kind == "file"))
    assert rows(notes) == ["own (fact): of own"]
    (outside / "secret.json").write_text(json.dumps([CLAUDE_AI]))
    (notes / "conversations.json").symlink_to("../outside/secret.json")
    assert rows(notes) == ["own (fact): of own"]


@pytest.mark.parametrize(
    "text",
    [
        '[{"content": "x", "mapping": {"a": 1}}]',
        '[{"content": "x", "mapping": {}, "chat_messages": []}]',
        '[{"content": "x", "mapping": {"tea": {"kind": "green"}}}]',
        '[{"content": "x", "chat_messages": ["hello"]}]',
        '{"type": "entity", "content": "x"}',
        '{"type": "relation", "content": "x"}',
    ],
)
def test_a_row_with_a_field_of_the_users_own_is_no_archive(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(InvalidInput, match="an export of ChatGPT's"):
        sediment_ext.importers.open_archive(tmp_path / "rows.json")


def test_what_is_no_archive_is_refused_with_what_is_one(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"content": "a row of ours"}\n[{"mapping": 1}]\n')
    (tmp_path / "list.json").write_text('[{"content": "a row", "of": "ours"}]')
    (tmp_path / "export.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    (tmp_path / "readme.md").write_text("- [kind] of a list\n")
    for path in (tmp_path, *tmp_path.iterdir()):
        with pytest.raises(InvalidInput, match="an export of ChatGPT's"):
            sediment_ext.importers.open_archive(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        sediment_ext.importers.open_archive(tmp_path / "none.json")


@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_refused(tmp_path: Path, how: int) -> None:
    path = tmp_path / "damaged.zip"
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("conversations-é.json", json.dumps([CLAUDE_AI] * 99))
    good = path.read_bytes()
    cuts = (good[:start] + bytes(30) + good[start + 30 :] for start in range(48, 90))
    for data in (good.replace("é".encode(), b"e\xff"), *cuts):
        path.write_bytes(data)
        with pytest.raises(InvalidInput, match="cannot be read"):
            sediment_ext.importers.open_archive(path)


ORIGINAL = """#!{python}
import json, os, sys
assert "SEDIMENT_DB" not in os.environ
scope = sys.argv[sys.argv.index("--scope") + 1]
when = "2026-01-02T03:04:05+00:00"
item = lambda id: {{"id": id, "content": id * 99, "created": when, "scope": "x"}}
items = {{"global": ["g"], "project": ["p"], "all": ["g", "p", "o"]}}[scope]
print(json.dumps({{"count": len(items), "items": list(map(item, items))}}))
"""


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A program that lists items as the original Sediment does."""
    path = tmp_path / "original"
    path.write_text(ORIGINAL.format(python=sys.executable))
    path.chmod(0o755)
    return path


def test_the_originals_items_are_listed_by_its_program(original: Path) -> None:
    kept = {"content": "g" * 99, "created": "2026-01-02T03:04:05+00:00"}
    found = list(sediment_ext.importers.original_rows(original))
    assert found[0] == {"id": "g", "scope": "global", **kept}
    assert [(row["id"], row.get("project")) for row in found[1:]] == [
        ("p", None),
        ("o", "original"),
    ]
    with pytest.raises(InvalidInput, match="cannot be run"):
        list(sediment_ext.importers.original_rows(original.parent / "none"))
    original.write_text("#!/bin/sh\necho no such command >&2\nexit 2\n")
    with pytest.raises(InvalidInput, match=r"does not list .* \(no such command\)"):
        list(sediment_ext.importers.original_rows(original))


# The command


@pytest.fixture
def here(run_pyz: Run, tmp_path: Path, left: Path) -> Program:
    return Program(run_pyz, tmp_path / "project")


def test_sessions_are_imported_once(here: Program) -> None:
    counted = here.json("import", "--from", "claude,codex,gemini,opencode", "--dry-run")
    assert (counted["sessions"], counted["turns"], counted["dry_run"]) == (5, 8, True)
    assert here.json("stats")["turns"] == 0
    first = here.json("import", "--from", "claude,codex,gemini,opencode")
    assert (first["success"], first["sessions"], first["turns"], first["existing"]) == (
        True,
        5,
        8,
        0,
    )
    again = here.json("import", "--from", "claude, codex")
    assert (again["turns"], again["existing"]) == (0, 6)
    assert here.ok("import", "--from", "gemini").startswith("Kept 0 turns of 1 session, 1 stored")


def test_of_credentials_in_sessions_an_import_says_that_they_are_left_out(
    here: Program, left: Path
) -> None:
    (session,) = left.glob(".claude/projects/*/aaaa.jsonl")
    session.write_text(json.dumps(typed("The password is Tr0ub4dor&3x.")) + "\n")
    said = here.ok("import", "--from", "claude").splitlines()
    assert said[1:] == ["Left out: password (1)."]
    assert len(here.ok("import", "--from", "claude").splitlines()) == 1


def test_a_client_that_is_named_twice_is_read_once(here: Program) -> None:
    once = here.json("import", "--from", "claude", "--dry-run")
    twice = here.json("import", "--from", "claude,claude", "--dry-run")
    assert {**once, "seconds": 0} == {**twice, "seconds": 0}


@pytest.mark.skipif(sys.platform != "linux", reason="such a name")
def test_a_session_whose_file_has_an_odd_name_can_be_forgotten(here: Program, left: Path) -> None:
    (session,) = left.glob(".claude/projects/*/aaaa.jsonl")
    text = session.read_text().replace("/home/user/proj", str(here.folder))
    for name in (b"aaaa.jsonl", b"new\nline.jsonl", b"no\xfftext.jsonl"):
        session.with_name(os.fsdecode(name)).write_text(text)
    assert here.json("import", "--from", "claude")["sessions"] == 3
    rows = here.json("list", "--conversations")["conversations"]
    for row in rows:
        here.ok("forget", row["source"])
    assert len(rows) == 3
    assert here.json("stats")["turns"] == 0
    assert here.json("import", "--from", "claude")["turns"] == 0


def test_only_sessions_of_a_time_or_of_this_project_are_imported(here: Program, left: Path) -> None:
    assert here.json("import", "--from", "claude", "--here")["turns"] == 0
    (session,) = left.glob(".claude/projects/*/aaaa.jsonl")
    text = session.read_text().replace("/home/user/proj", str(here.folder))
    session.write_text(text)
    assert (
        here.json("import", "--from", "claude", "--here", "--since", "2026-11-22T11:16Z")["turns"]
        == 1
    )
    assert here.json("import", "--from", "claude", "--here")["turns"] == 1
    found = here.json("recall", "which port has staging?", "--anyway")["results"]
    assert any(row["source"] == "claude:aaaa#1" for row in found)


def test_a_session_of_cursors_is_kept_where_its_folder_is_known(here: Program, left: Path) -> None:
    def session(name: str, folder: Path) -> None:
        coded = re.sub("[^A-Za-z0-9]+", "-", str(folder)).strip("-")
        path = left / f".cursor/projects/{coded}/agent-transcripts/{name}/{name}.jsonl"
        path.parent.mkdir(parents=True)
        texts = [("user", f"Which port has {name}?"), ("assistant", "Port 6543.")]
        lines = ({"role": role, "message": {"content": text}} for role, text in texts)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    (inside := here.folder / ".sediment/in_side").mkdir(parents=True)
    (other := here.folder.parent / "other.one").mkdir()
    for name, folder in (("heron", here.folder), ("newt", inside), ("otter", other)):
        session(name, folder)
    assert here.json("import", "--from", "cursor", "--here", "--dry-run")["turns"] == 1
    answer = here.json("import", "--from", "cursor")
    assert answer["sessions"] == answer["turns"] == 1
    assert answer["remarks"][0].startswith("2 sessions of cursor are of folders that are not known")
    assert here.json("import", "--from", "cursor", "--here", cwd=inside)["turns"] == 1
    (there := here.at(other)).store("Tea is at four.")
    assert not there.json("list", "--conversations")["count"]
    assert here.json("import", "--from", "cursor")["turns"] == 1  # by the note of that folder
    listed = [one.json("list", "--conversations")["conversations"] for one in (here, there)]
    named = [sorted(row["source"] for row in rows) for rows in listed]
    assert named == [["cursor:heron", "cursor:newt"], ["cursor:otter"]]


def test_an_export_is_imported_as_a_file(here: Program, original: Path) -> None:
    path = here.folder / "conversations.json"
    path.write_text(json.dumps([CLAUDE_AI]))
    assert here.json("import", str(path))["turns"] == 1
    assert here.json("import", str(path), "--since", "2026-04")["sessions"] == 0
    assert here.json("import", "--from", "claude.ai", str(path))["existing"] == 1
    (here.folder / "memory.json").write_text(
        '{"type":"entity","name":"Ada","entityType":"person","observations":["likes tea"]}\n'
    )
    assert here.json("import", "memory.json")["stored"] == 1
    assert here.json("import", "memory.json")["existing"] == 1
    assert here.json("import", "--from", "sediment", str(original))["stored"] == 3


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "cursor"])
def test_a_session_that_is_named_as_a_file_is_not_taken_for_memories(
    here: Program, left: Path, client: str
) -> None:
    for path, _ in sessions_of(client):
        if client == "cursor":
            line = {"role": "user", "message": {"content": "Where is the heron?"}}
            path.write_text(json.dumps(line) + "\n")
        assert f"`import --from {client}` imports" in here.error("import", str(path))
    assert here.json("list")["total"] == 0
    rows = ({"content": f"Heron {n}.", "type": "user", "role": "user"} for n in range(3))
    (here.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert here.json("import", "rows.jsonl")["stored"] == 3


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--from", "emacs"], 2, "a client is one of claude, codex"),
        (["--from", "claude", "FILE"], 2, "give a FILE, or --from"),
        (["--from", "sediment"], 2, "give a FILE, or --from"),
        (["--from", "claude", "--scope", "global"], 2, "--scope has no effect with"),
        (["rows.jsonl", "--since", "2026"], 2, "--since has no effect with rows"),
        (["."], 1, "an export of ChatGPT's"),
        (["no.zip"], 1, "cannot be read"),
    ],
)
def test_of_a_wrong_import_it_is_told_what_would_be_right(
    here: Program, words: list[str], code: int, told: str
) -> None:
    (here.folder / "rows.jsonl").write_text('{"content": "tea"}\n')
    assert told in here.error("import", *words, code=code)

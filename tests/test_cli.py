"""The commands: what they print for people and for scripts, and what they do with bad input."""

import io
import json
import os
import pty
import re
import resource
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import ROOT, Run
from program import Program, files, heed_permissions, one_line

import sediment
import sediment_ext.reviewing

FRIDAYS = "We deploy on Fridays, after the canary is green."


@pytest.fixture
def here(run_pyz: Run, tmp_path: Path) -> Program:
    return Program(run_pyz, tmp_path / "project")


def stored(database: Path) -> list[tuple[str, str]]:
    """The ids and texts in a database file, read without the program."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return connection.execute("SELECT id, content FROM items ORDER BY seq").fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "words",
    """list; list --conversations; recall tea; expand abc; get abc; history abc; graph abc; status
    status --deep; status --index; stats; doctor; review --json; consolidate; consolidate --dry-run
    prune --older-than 3d; prune --purge; forget abc; undo abc; replace a b; move abc global
    move abc project; export; backup new/b.db; reindex; restore b.db; sync; sync --status; token
    token revoke x; compact; index; index --remove a.md; import --from claude --dry-run
    init --print; hub add a b; doctor --repair""".replace("\n", ";").split(";"),
)
def test_a_command_that_stores_nothing_makes_no_file_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """As with a mistyped --db, in a repository that is no project yet."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("a.md").write_text("# Tea\n\nAt four.\n")
    for step in ("init -q .", "add a.md", "-c user.name=a -c user.email=a@b commit -qm a"):
        subprocess.run(["git", *step.split()], check=True)
    before = {path for path in tmp_path.rglob("*") if ".git" not in path.parts}
    CliRunner().invoke(sediment.cli, ["--db", "new/folder/memory.db", *words.split()])
    assert {path for path in tmp_path.rglob("*") if ".git" not in path.parts} == before


@pytest.mark.parametrize("name", ["new/b.db", "new/"])
def test_a_backup_makes_no_folder(here: Program, name: str) -> None:
    here.store(FRIDAYS)
    before = files(here.folder)
    here.run("backup", name)
    assert not (here.folder / "new").is_dir()
    assert files(here.folder) - before <= {"new"}


# What each command does


def test_recall_prints_as_json_what_python_returns(here: Program) -> None:
    here.store("The heron is our mascot.")
    (printed,) = here.json("recall", "heron")["results"]
    assert "parts" not in printed
    (explained,) = here.json("recall", "heron", "--explain")["results"]
    assert explained["parts"]


def test_store_recall_get_forget(here: Program, tmp_path: Path) -> None:
    id = here.store(FRIDAYS)
    assert FRIDAYS in here.ok("recall", "when can I release?")
    assert here.json("recall", "when can I release?", "--limit", "1")["results"][0]["id"] == id
    assert here.json("get", id)["content"] == FRIDAYS
    assert here.ok("get", id[:8]) == FRIDAYS
    assert id[:8] in here.ok("forget", id)
    assert here.contents() == set()
    assert stored(tmp_path / ".local" / "share" / "sediment" / "memory.db") == []


def test_replace_hides_the_old_text(here: Program) -> None:
    old = here.store("The port is 5432.")
    new = here.json("store", "The port is 5433.", "--replace", old)
    assert new["replaced_id"] == old
    assert here.contents() == {"The port is 5433."}
    assert here.json("get", old)["successor"] == new["id"]
    assert new["id"][:8] in here.error("store", "The port is 5434.", "--replace", old)


def test_backup_restore_doctor_reindex(here: Program, tmp_path: Path) -> None:
    here.store(FRIDAYS)
    copy = tmp_path / "copy.db"
    assert str(copy) in here.ok("backup", str(copy))
    assert "there already" in here.error("backup", str(copy))
    here.store("The port is 5432.")
    assert "before-restore" in here.ok("restore", str(copy))
    assert here.contents() == {FRIDAYS}
    assert here.json("doctor")["healthy"]
    assert {line.split()[0] for line in here.ok("doctor").splitlines()} == {"ok"}
    assert here.ok("doctor", "--repair") == "Nothing is broken.\n"
    assert "Reindexed 1 chunk of 1 memory" in here.ok("reindex")


def test_doctor_ends_with_1_where_something_is_broken(here: Program, tmp_path: Path) -> None:
    here.store(FRIDAYS)
    database = tmp_path / ".local" / "share" / "sediment" / "memory.db"
    damaged = database.read_bytes()[:9000]
    database.write_bytes(damaged)
    done = here.run("doctor")
    assert done.returncode == 1
    assert "broken  pages: " in done.stdout
    assert "--repair" in done.stdout.splitlines()[-1]
    assert "doctor --repair" in here.error("store", "anything")
    assert database.read_bytes() == damaged
    assert "new and empty" in here.run("doctor", "--repair").stdout
    assert here.json("doctor")["healthy"]
    assert here.ok("store", "anything")


def test_prune_hides_and_purges(here: Program) -> None:
    id = here.store(FRIDAYS, "--created-at", "2020-01-01")
    for code, wrong in ((1, ()), (2, ("--purge", "--older-than", "1y"))):
        assert here.run("prune", *wrong).returncode == code
    for age in ("90d", "2024-03-05"):
        assert "1 memory would be hidden" in here.ok("prune", "--older-than", age, "--dry-run")
    assert here.contents() == {FRIDAYS}
    assert id[:8] in here.ok("prune", "--older-than", "90d")
    assert here.contents() == set()
    here.ok("undo", id)
    assert here.contents() == {FRIDAYS}
    here.ok("prune", "--older-than", "90d")
    *named, told = here.ok("prune", "--purge", "--dry-run").splitlines()
    assert named == [f"{id[:8]}  {FRIDAYS}"]
    assert told == "Would erase 1 memory."
    assert here.json("prune", "--purge")["count"] == 1
    assert here.ok("prune", "--older-than", "90d") == "Nothing is that old.\n"
    assert here.ok("prune", "--older-than", "90d", "--all-machines") == "Nothing is that old.\n"
    kept = here.store(FRIDAYS, "--created-at", "2020-01-01")
    here.ok("recall", FRIDAYS)
    *said, line = here.ok("prune", "--older-than", "90d").splitlines()
    assert said == ["0 memories hidden.", "Old, but kept:"]
    assert line.startswith(f"{kept[:8]}  {FRIDAYS}  (recalled 20")
    assert "not found" in here.error("get", id) or "no memory" in here.error("get", id)


def test_forget_several_or_none(here: Program) -> None:
    one, two, three = (here.store(text) for text in ("one", "two", "three"))
    here.error("forget", one, "nothing", two)
    assert here.contents() == {"one", "two", "three"}
    assert here.json("forget", one, two, one)["ids"] == [one, two]
    assert here.contents() == {"three"}
    assert "(not found)" in here.error("forget", one)
    here.ok("forget", three)


def test_get_by_a_beginning_of_the_id(here: Program) -> None:
    rows = [{"id": id, "content": f"text of {id}"} for id in ("abc-1", "abc-2", "abd", "a")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    here.ok("import", "-", input=lines)
    assert here.ok("get", "abd") == "text of abd"
    assert here.ok("get", "abc-1") == "text of abc-1"
    assert here.ok("get", "a") == "text of a"
    assert "several ids begin with 'abc'" in here.error("get", "abc")
    assert "no memory" in here.error("get", "%")
    assert "no memory" in here.error("get", "ABC-1")


def test_scopes(here: Program, tmp_path: Path) -> None:
    other = here.at(tmp_path / "other")
    here.store("of here")
    foreign = other.store("of there")
    other.store("of all", "--scope", "Global")
    assert here.contents() == here.contents("--scope", "project") == {"of here"}
    assert here.contents("--scope", "global") == {"of all"}
    assert here.contents("-s", "ALL") == {"of here", "of all"}
    listed = {item["content"]: item["scope"] for item in here.json("list", "-s", "all")["items"]}
    assert listed == {"of here": "project", "of all": "global"}
    there = f"change it there (`--project {other.project()}`)"
    for words in (["forget", foreign], ["store", "x", "--replace", foreign[:8]]):
        assert f"{foreign} belongs to another project: {there}" in here.error(*words)
    done = here.run("get", foreign[:8])
    assert (done.returncode, done.stdout) == (0, "of there")
    assert done.stderr == f"(of another project: {other.project()})\n"
    assert other.contents() == {"of there"}


@pytest.mark.parametrize("project", ["", "a b", "shop"])
def test_the_advice_to_replace_can_be_pasted(here: Program, project: str) -> None:
    options = ["--project", project] if project else []
    old = here.store("The gateway listens on port 8080.", "--created-at", "yesterday", *options)
    advice = here.json("store", "The gateway now listens on port 9090.", *options)["advice"]
    _, *words = shlex.split(advice.split("`")[-2].replace("OLD", old))
    assert ("--project" in words) is bool(project)
    here.ok(*words)
    assert here.contents(*options) == {"The gateway now listens on port 9090."}


def test_the_newest_come_first(here: Program) -> None:
    here.store("middle", "--created-at", "2024-05-31")
    here.store("newest")
    here.store("oldest", "--created-at", "86400")
    items = here.json("list", "--limit", "2")
    assert [item["content"] for item in items["items"]] == ["newest", "middle"]
    assert (items["count"], items["total"]) == (2, 3)
    assert items["items"][1]["created"] == "2024-05-31T00:00:00+00:00"


def test_store_from_a_pipe(here: Program) -> None:
    text = "größer\n\n日本語 🎉\n  indented"
    done = here.run("store", "-", input=f"\ufeff{text}\r\n".encode(), text=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert here.contents() == {text}


def test_a_query_of_several_words_or_from_a_pipe(here: Program) -> None:
    id = here.store("Staging database is on port 5433.")
    for words in (["which", "port", "has", "staging?"], ["-l", "1", "staging", "port"]):
        assert id[:8] in here.ok("recall", *words)
    assert id[:8] in here.ok("recall", "-", input="which port\nhas staging?\n")
    assert id[:8] in here.ok("search", "-", input=id + "\n")
    assert "empty" in here.error("recall", "-", input="\n")


def test_times_in_words_and_in_local_time(here: Program) -> None:
    zone = {"TZ": "Asia/Tokyo"}
    tea = here.store("Tea is served at four.", "--created-at", "2026-02", env=zone)
    five = "Tea is served at five."
    id = here.store(five, "--created-at", "2026-03-05", "--replace", tea, env=zone)
    assert here.json("get", id)["created"] == "2026-03-04T15:00:00+00:00"
    assert "2026-03-05" in here.ok("list", env=zone)
    assert "2026-03-05" in here.ok("recall", "when is tea?", env=zone)
    assert "2026-03-05 00:00" in here.ok("history", id, env=zone)

    def live(moment: str) -> list[str]:
        answer = here.json("recall", "when is tea?", "--as-of", moment, env=zone)
        return [row["content"] for row in answer["results"]]

    assert live("2026-03-04") == live("2026-02") == ["Tea is served at four."]
    assert live("2026-03-05") == live("2026-03") == live("2 days ago") == [five]


def test_a_date_to_come_is_remarked(here: Program) -> None:
    told = here.json("store", "The fair opens.", "--created-at", "2999-05-01")
    assert "dated 2999-05-01, which is in the future" in told["message"]
    assert "in the future" not in here.json("store", "It opened.", "--created-at", "now")["message"]


def test_which_database(here: Program, tmp_path: Path) -> None:
    env = {"SEDIMENT_DB": str(tmp_path / "env.db")}
    here.store("by variable", env=env)
    here.store("by option", "--db", "option.db", env=env)
    assert here.contents(env=env) == {"by variable"}
    assert here.contents("--db", "option.db") == {"by option"}
    assert here.json("--db", "~/env.db", "stats")["items"] == 1
    assert here.json("stats")["exists"] is False


def test_a_database_with_a_special_name(here: Program) -> None:
    here.store("kept", "--db", ":memory:")
    assert here.contents("--db", ":memory:") == {"kept"}


def test_stats_count(here: Program) -> None:
    here.store("one")
    here.store("two", "--scope", "global")
    facts = here.json("stats", "--verify")
    assert facts["verified"] is True
    assert (facts["items"], facts["project_items"], facts["global_items"]) == (2, 1, 1)
    said = dict(re.findall(r"^(\S[\S ]*?)  +(.*)$", here.ok("stats"), re.MULTILINE))
    assert said["items"] == "2"
    assert said["project"] == facts["project"]


def test_import_says_which_lines_it_refused(here: Program) -> None:
    lines = '{"content": "good"}\nbad\n\n{"content": ""}\n{"content": "also good"}\n'
    done = here.run("import", "-", "--json", input=lines)
    assert done.returncode == 1
    assert [row["line"] for row in json.loads(done.stdout)["refused"]] == [2, 4]
    assert here.contents() == {"good", "also good"}


def test_export_to_a_file_for_this_user(here: Program) -> None:
    here.store("secret")
    counts = {"count": 1, "items": 1, "hidden_versions": 0}
    assert here.json("export", "out.jsonl") == {"success": True, "file": "out.jsonl"} | counts
    path = here.folder / "out.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == here.ok("export")
    assert files(here.folder) == {".sediment", ".sediment/config", "out.jsonl"}
    path.write_text("a letter")
    assert "--force" in here.error("export", "out.jsonl")
    assert path.read_text() == "a letter"
    here.ok("export", "out.jsonl", "--force")
    assert here.ok("export", "-") == here.ok("export")
    assert path.read_text() == here.ok("export")


def test_progress_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["indexing: 2 of 5", "indexing: 5 of 5", "indexing: 6 of 6"]  # one was added meanwhile
    for seconds, lines in ((0, told), (1000, [])):
        monkeypatch.setattr(sediment, "PROGRESS_SECONDS", seconds)
        with sediment.progress_bar("indexing", 5) as add:
            add(2)
            add(3)
            add(1)
        assert capsys.readouterr().err.splitlines() == lines


# --json, before the command and after it


@pytest.mark.parametrize(
    ("words", "empty"),
    [
        (["list"], {"count": 0, "total": 0, "items": [], "message": "No memories yet."}),
        (["recall", "x"], {"count": 0, "results": [], "message": "Nothing found."}),
        (["export"], {"count": 0, "items": []}),
        (["stats"], None),
        (["completion", "fish"], None),
        (["init", "--print"], None),
        (["init"], None),
        (["import", "-"], None),
        (["store", "text"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_one_document(here: Program, words: list[str], empty: dict[str, Any] | None) -> None:
    before = json.loads(here.ok("--json", *words))
    after = json.loads(here.ok(*words, "--json"))
    assert set(before) <= set(after)
    if empty is not None:
        assert before == after == empty


def test_json_keeps_every_character(here: Program) -> None:
    text = "é 日本 🎉 \x1b[31m \u2028 \u202e \x7f \t end"
    here.store(text)
    assert here.contents(env={"PYTHONIOENCODING": "latin-1"}) == {text}
    assert json.loads(here.ok("export", "--json"))["items"][0]["content"] == text


# For people


def test_columns_stand_below_each_other(here: Program) -> None:
    rows = [{"id": id, "content": f"{id[0]} text"} for id in ("a", "long-" * 12, "middle")]
    rows += [{"id": "b", "content": "b text", "scope": "global"}]
    here.ok("import", "-", input="".join(json.dumps(row) + "\n" for row in rows))
    _, *lines = here.ok("list", "--scope", "all").splitlines()
    assert len(lines) == 4
    for column in (r"\d{4}-\d\d-\d\d  ", "(project|global )  ", "text$"):
        assert len({found(column, line).start() for line in lines}) == 1
    assert len({found(" {2,}", line).end() for line in here.ok("stats").splitlines()}) == 1


def found(pattern: str, line: str) -> re.Match[str]:
    match = re.search(pattern, line)
    assert match, line
    return match


def test_long_texts_are_cut_in_lists(here: Program) -> None:
    here.store("word " * 40 + "\nsecond line")
    _, line = here.ok("list").splitlines()
    assert line.endswith("…")
    assert len(line) < 160


def on_terminal(here: Program, pyz: Path, *args: str, **env: str) -> str:
    """What the program writes to a terminal."""
    master, slave = pty.openpty()
    everything = {"PATH": os.environ["PATH"], "HOME": str(here.folder.parent), **env}
    command = [sys.executable, str(pyz), *args]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=everything, cwd=here.folder
    )
    os.close(slave)
    output = b""
    while data := _read(master):
        output += data
    os.close(master)
    assert process.wait(60) == 0, output
    return output.decode()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # the other side is closed
        return b""


def shell(database: Path, *words: str, **options: Any) -> str:
    """What a command prints, run in this process."""
    return CliRunner().invoke(sediment.cli, ["--db", str(database), *words], **options).output


def test_several_words_are_one_text(tmp_path: Path) -> None:
    database = tmp_path / "memory.db"
    shell(database, "store", "Two", "words", "--scope", "global")
    assert json.loads(shell(database, "--json", "list", "-s", "all"))["items"][0]["content"] == (
        "Two words"
    )


def test_help_and_version_are_known_as_words_too(tmp_path: Path) -> None:
    database = tmp_path / "memory.db"
    for words in (["help", "recall"], ["help"], ["version"]):
        option = [*words[1:], f"--{words[0]}"]
        assert CliRunner().invoke(sediment.cli, words).output == shell(database, *option)


def test_a_page_past_the_end_says_so(tmp_path: Path) -> None:
    shell(tmp_path / "memory.db", "store", "tea", "--scope", "global")
    told = shell(tmp_path / "memory.db", "list", "--scope", "all", "--page", "9")
    assert told == "Page 9 is past the end (1 in all).\n"


def test_columns_says_how_wide_a_line_may_be(tmp_path: Path) -> None:
    shell(tmp_path / "memory.db", "store", "tea " * 60, "--scope", "global")
    for columns in (140, 180):
        told = shell(tmp_path / "memory.db", "list", "-s", "all", env={"COLUMNS": f"{columns}"})
        assert columns - 2 <= len(told.splitlines()[1]) <= columns


def test_an_import_of_markdown_names_index(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Tea\n\nAt four.\n")
    told = shell(tmp_path / "memory.db", "import", str(tmp_path / "notes.md"))
    assert "is markdown: `index " in told
    assert len(told.splitlines()) == 1


def test_an_import_goes_on_where_the_shell_has_read_to(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('a head\n{"content": "tea"}\n')
    with open(tmp_path / "rows", "rb", buffering=0) as rows:
        rows.seek(7)
        command = "import sediment; sediment.run()"
        env = os.environ | {"SEDIMENT_DB": str(tmp_path / "memory.db")}
        words = [sys.executable, "-c", command, "--json", "import", "-"]
        done = subprocess.run(words, stdin=rows, cwd=ROOT, env=env, capture_output=True)
    assert (done.returncode, json.loads(done.stdout)["stored"]) == (0, 1)


def test_a_line_of_a_scripted_review_is_for_the_pair_of_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an answer has settled the pairs behind it."""
    with sediment.Memory(tmp_path / "memory.db", project="demo") as memory:
        old, new, other, newer = (
            memory.store(text, scope="global")["id"]
            for text in ("Tea is at four.", "Tea is at five.", "The boat is red.", "It is blue.")
        )
        rows = [(old, new), (old, newer), (other, newer)]
        pairs = [{"old": memory.get(one), "new": memory.get(two)} for one, two in rows]
        monkeypatch.setattr(sys, "stdin", io.StringIO("r\ns\nr\n"))
        *_, told = sediment_ext.reviewing._reviewed(memory, pairs)
        assert told.startswith("2 replaced, 0 kept, 0 skipped")
        assert memory.get(other)["successor"] == newer


def test_ctrl_d_ends_a_review(monkeypatch: pytest.MonkeyPatch) -> None:
    def getchar() -> str:
        raise EOFError

    monkeypatch.setattr(sediment.click, "getchar", getchar)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert sediment_ext.reviewing._asked_key("replace? ") == "q"


def test_make_names_a_python_that_does_not_start() -> None:
    done = subprocess.run(
        ["make", "python", "PYTHON=3.99"], cwd=ROOT, capture_output=True, text=True
    )
    assert "python3.99 does not start" in done.stderr


def test_colour_is_for_terminals(here: Program, pyz: Path, unpacked: Path) -> None:
    here.store("blue")
    cache = {"SEDIMENT_CACHE": str(unpacked), "TERM": "xterm"}
    for words in (["list"], ["recall", "colour"], ["stats"]):
        assert "\x1b[" in on_terminal(here, pyz, *words, **cache)
        assert "\x1b" not in on_terminal(here, pyz, *words, **cache, NO_COLOR="1")
        assert "\x1b" not in on_terminal(here, pyz, *words, **{**cache, "TERM": "dumb"})
        assert "\x1b" not in here.ok(*words)
    assert "\x1b" not in on_terminal(here, pyz, "--json", "list", **cache)


def test_no_command(here: Program, pyz: Path, unpacked: Path) -> None:
    shown = on_terminal(here, pyz, SEDIMENT_CACHE=str(unpacked))
    assert shown.startswith("Usage: ")
    ping = '{"jsonrpc":"2.0","id":7,"method":"ping"}\n'
    assert json.loads(here.ok(input=ping)) == {"jsonrpc": "2.0", "id": 7, "result": {}}
    assert here.ok("serve", input=ping) == here.ok(input=ping)


ESCAPES = "\x1b]0;title\x07\x1b[2J \x9b31m \u202e \u2066 \r\b over \x7f"


def test_escapes_do_not_reach_the_terminal(here: Program) -> None:
    id = here.store(f"short {ESCAPES}")
    here.store(f"# Long\n\n{f'many words {ESCAPES} again. ' * 60}")
    for words in (["list"], ["recall", "words"], ["recall", id], ["stats"]):
        said = here.ok(*words)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", said), said
    similar = here.ok("store", f"short {ESCAPES} again")
    assert "short" in similar
    assert not re.search("[\x1b\x9b\u202e]", similar)


def test_errors_name_what_was_given_safely(here: Program) -> None:
    assert "\\x1b[31m" in here.error("--project", "./\x1b[31mred", "list")
    for words in (["list", "--db", "x\ny"], ["--project", "./a\nb", "list"]):
        (here.folder / "x\ny").mkdir(exist_ok=True)
        here.error(*words)
    here.error("list", "--a\nb", code=2)
    here.error("import", "no\nfile", code=2)
    here.error("export", "no\nfolder/file")


# Bad input

BYTES = {"invalid UTF-8": b"ab\xff", "surrogate": b"\xed\xa0\x80", "NUL": b"a\0b", "empty": b"\n"}
BYTES["too large"] = b"a" * 1_000_001
BYTES["program"] = b"\x7fELF\x02\x01\x01" + bytes(range(256))


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory, pyz: Path, unpacked: Path) -> Path:
    """A database with one item, and a folder of its own."""
    home = tmp_path_factory.mktemp("seeded")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "SEDIMENT_CACHE": str(unpacked)}
    command = [sys.executable, str(pyz), "store", FRIDAYS, "--db", "seeded.db"]
    subprocess.run(command, cwd=home, env=env, check=True, capture_output=True)
    return home / "seeded.db"


@pytest.fixture
def unharmed(seeded: Path, here: Program, run_pyz: Run) -> Iterator[Program]:
    """The program on the seeded database, which must be the same afterwards."""
    before = stored(seeded)
    yield Program(run_pyz, here.folder, SEDIMENT_DB=str(seeded))
    assert stored(seeded) == before
    assert [text for _, text in before] == [FRIDAYS]
    assert files(here.folder) == set()


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_text(unharmed: Program, name: str) -> None:
    done = unharmed.run("store", "-", input=BYTES[name], text=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert re.search("UTF-8|NUL|empty|too large", one_line(done.stderr.decode()))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["store", ""], "empty"),
        (["store", " \n\t"], "empty"),
        (["store", os.fsdecode(b"ab\xff")], "not valid Unicode"),
        (["recall", ""], "empty"),
        (["recall", "x" * 10_001], "too large: 10,001 bytes"),
        (["recall", os.fsdecode(b"\xed\xa0\x80")], "not valid Unicode"),
        (["store", "text", "--replace", "nothing"], "not found"),
        (["get", "00000000-0000-4000-8000-000000000000"], "no memory"),
        (["forget", "00000000-0000-4000-8000-000000000000"], "not found"),
        (["export", "none/out.jsonl"], "cannot be written"),
    ],
)
def test_wrong_values(unharmed: Program, words: list[str], reason: str) -> None:
    assert reason in unharmed.error(*words)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["get", ""], "1 to 255"),
        (["get", "a\nb"], "1 to 255"),
        (["get", "x" * 256], "1 to 255"),
        (["get", os.fsdecode(b"\xff")], "1 to 255"),
        (["forget", ""], "1 to 255"),
        (["forget", "\x1b[31m"], "1 to 255"),
        (["recall", "x", "--min-score", "7"], "a number from 0 to 1, not '7'"),
        (["recall", "x", "--min-score", "nan"], "'nan'"),
        (["recall", "x", "--vector-weight", "2"], "'2'"),
        (["recall", "x", "--text-weight", "much"], "'much'"),
        (["recall", "x", "--as-of", "the other day"], "a time is"),
        (["store", "text", "--created-at", "soon"], "a time is"),
        (["prune", "--older-than", "soon"], "an age is 30d"),
        (["prune", "--older-than", "180"], "has no unit: 180d?"),
        (["compact", "--older-than", "soon"], "an age is 30d"),
        (["store", "text", "--created-at", "-5"], "a time is"),
        (["store", "text", "--created-at", "1e400"], "a time is"),
        (["store", "text", "--created-at", "nan"], "a time is"),
        (["store", "x", "--expires", "soon"], "--expires': give 30d"),
        (["store", "x", "--expires", "2020-01-01"], "a future date"),
        (["expire", "x", "soon"], "WHEN': give 30d"),
        (["store", "x", "--tag", "a b"], "--tag': a tag is"),
        (["list", "--limit", "0"], "1<=x<=1000"),
        (["list", "--limit", "-1"], "1<=x<=1000"),
        (["recall", "x", "--limit", str(10**9)], "1<=x<=1000"),
        (["recall", "x", "--limit", "5x"], "5x"),
        (["list", "--scope", "mine"], "'project', 'global', 'all'"),
        (["store", "x", "--scope", "all"], "'project', 'global'"),
        (["recall"], "QUERY"),
        (["store"], "CONTENT"),
        (["forget"], "ID"),
        (["list", "extra"], "extra"),
        (["import", "none.jsonl"], "none.jsonl"),
        (["import", "--from", "nobody"], "a client is one of"),
        (["import"], "give a FILE"),
        (["export", "."], "directory"),
        (["--nonsense"], "--nonsense"),
        (["store", "- milk"], 'a text that begins with "-" goes behind --'),
    ],
)
def test_wrong_usage(unharmed: Program, words: list[str], reason: str) -> None:
    assert reason in unharmed.error(*words, code=2)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_text_file(path: Path) -> None:
    path.write_text("Dear diary, this is no database. " * 50)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def another_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE songs(name); INSERT INTO songs VALUES('Eleanor')")
    connection.close()


@pytest.mark.parametrize("make", [a_folder, a_text_file, a_pipe, another_database])
def test_what_is_no_database(here: Program, make: Callable[[Path], None]) -> None:
    path = here.folder / "thing"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    assert "thing" in here.error("list", "--db", "thing")
    assert "thing" in here.error("store", "text", "--db", "thing")
    assert files(here.folder) == {"thing"}
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_folder_that_cannot_be_made(here: Program) -> None:
    (here.folder / "file").write_text("")
    for place in ("file/sub/memory.db", "/proc/none/memory.db", "~nobody-of-this-name/memory.db"):
        assert "memory.db" in here.error("store", "text", "--db", place)
    here.folder.chmod(0o500)
    here.error("store", "text", "--db", "sub/memory.db", preexec_fn=heed_permissions)
    assert files(here.folder) == {"file"}
    here.folder.chmod(0o700)


def test_a_database_whose_name_is_not_unicode(here: Program) -> None:
    assert "caf\\" in here.error("store", "text", "--db", os.fsdecode(b"caf\xe9.db"))
    assert files(here.folder) == set()
    here.store("text", "--db", "café.db")
    assert here.contents("--db", "café.db") == {"text"}


# Odd surroundings


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["store", "-"], "the text on stdin is too large: the limit is 1,000,000 bytes"),
        (["store", "-", "--into", "MEMORY.md"], "the text on stdin is too large"),
        (["note", "-"], "the text on stdin is too large"),
        (["recall", "-"], "the text on stdin is too large: the limit is 10,000 bytes"),
        (["import", "-"], "a line of the file is too large"),
        (["import", "/dev/zero"], "a line of the file is too large"),
    ],
)
def test_of_an_endless_input_only_what_may_be_taken_is_read(
    here: Program, words: list[str], told: str
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

    with open("/dev/zero", "rb") as zeros:
        assert told in here.error(*words, stdin=zeros, input=None, preexec_fn=limit)


def test_a_text_of_the_largest_size_is_taken_from_stdin(here: Program) -> None:
    text = "ü" * 5_000
    assert here.json("recall", "-", input=f"\ufeff{text}\r\n")["results"] == []
    assert "too large" in here.error("recall", "-", input=f"{text}!")
    assert "too large" in here.error("recall", "-", input=f"{text}{text}")


def test_a_closed_stdin_is_an_empty_one(here: Program) -> None:
    def close() -> None:
        os.close(0)

    assert "empty" in one_line(here.run("store", "-", preexec_fn=close).stderr)
    for words in ([], ["serve"], ["list"], ["import", "-"]):
        done = here.run(*words, preexec_fn=close)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_behind_stdout(here: Program) -> None:
    here.store(FRIDAYS)
    for words in (["list"], ["--json", "list"], ["export"], ["--help"]):
        with full_disk() as full:
            done = here.run(*words, stdout=full, capture_output=False, stderr=subprocess.PIPE)
        assert done.returncode == 1
        assert "the output cannot be" in one_line(done.stderr)


def full_disk() -> Any:
    """A file that takes nothing; where the system has none, one that is open for reading."""
    return open("/dev/full", "wb") if Path("/dev/full").exists() else open(ROOT / "README.md")


def test_a_reader_that_has_enough(here: Program) -> None:
    lines = "".join(json.dumps({"content": f"{n} " + "x" * 4500}) + "\n" for n in range(40))
    here.run("import", "-", input=lines).check_returncode()  # on a slow machine it tells how far
    done = here.run("export", "--json")
    assert len(done.stdout) > 150_000
    read, write = os.pipe()
    os.close(read)
    done = here.run("export", stdout=write, capture_output=False, stderr=subprocess.PIPE)
    os.close(write)
    assert done.stderr == ""


HOMELESS = """
import pwd, runpy, sys
pwd.getpwuid = lambda user: {}[user]
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_without_a_home(here: Program, pyz: Path, unpacked: Path) -> None:
    """As in a container whose user has neither HOME nor an entry in the list of users."""
    env = {"PATH": os.environ["PATH"], "SEDIMENT_CACHE": str(unpacked)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", HOMELESS, str(pyz), *words]
        return subprocess.run(command, env=env, cwd=here.folder, capture_output=True, text=True)

    assert "--db" in one_line(run("store", "text").stderr)
    assert one_line(run("init", "--global").stderr)
    done = run("store", "text", "--db", "here.db")
    assert (done.returncode, done.stderr) == (0, "")
    assert here.contents("--db", "here.db") == {"text"}


# What need not be loaded is not


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["list"],
        ["get", "{id}"],
        ["stats"],
        ["export"],
        ["forget", "{id}"],
    ],
)
def test_light_commands_load_no_encoder(here: Program, words: list[str]) -> None:
    id = here.store(FRIDAYS)
    watched = {"PYTHONPROFILEIMPORTTIME": "1"}
    done = here.run(*(word.format(id=id) for word in words), env=watched)
    assert done.returncode == 0
    assert not modules(done.stderr) & {"numpy", "onnxruntime", "tokenizers", "pyrage"}


def test_recall_loads_the_encoder(here: Program) -> None:
    """Or else the test above would see nothing."""
    here.store(FRIDAYS)
    done = here.run("recall", "release", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert modules(done.stderr) >= {"numpy", "onnxruntime", "tokenizers"}


def modules(stderr: str) -> set[str]:
    return set(re.findall(r"^import time:.*\| +(\w+)$", stderr, re.MULTILINE))


# Where an export goes


def test_an_export_goes_through_a_link_and_keeps_the_mode(here: Program) -> None:
    here.store(FRIDAYS)
    target, link = here.folder / "target", here.folder / "link"
    target.touch(0o640)
    link.symlink_to(target)
    here.ok("export", "--force", str(link))
    assert link.is_symlink()
    assert FRIDAYS in target.read_text()
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("words", ["export --force", "backup", "store --into"])
def test_nothing_is_written_over_the_database(here: Program, words: str) -> None:
    file = here.folder / "f.db"
    here.store(FRIDAYS, "--db", str(file))
    (here.folder / "link").symlink_to("f.db-journal")
    (here.folder / "hard").hardlink_to(file)
    before, were = file.read_bytes(), files(here.folder)
    for name in ("f.db", "f.db-wal", "f.db-shm", "f.db-journal", "link", "hard"):
        text = ["Tea is at four."] if words.startswith("store") else []
        said = here.error("--db", "f.db", *words.split(), name, *text)
        assert f"{name} is the database or a part of it" in said
    assert (file.read_bytes(), files(here.folder)) == (before, were)


def test_an_export_to_a_pipe_is_read_at_its_other_end(here: Program) -> None:
    here.store(FRIDAYS)
    source, sink = os.pipe()
    with os.fdopen(source) as reader:
        done = here.run("export", f"/dev/fd/{sink}", pass_fds=(sink,))
        os.close(sink)
        assert FRIDAYS in reader.read()
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_an_export_to_standard_output_has_nothing_else_there(
    here: Program, words: list[str]
) -> None:
    here.store(FRIDAYS)
    done = here.run("export", "/dev/stdout", *words)
    assert [json.loads(line)["content"] for line in done.stdout.splitlines()] == [FRIDAYS]
    assert "/dev/stdout" in done.stderr


def test_a_device_that_takes_nothing_is_named_and_stays(here: Program) -> None:
    here.store(FRIDAYS)
    assert "No space left" in here.error("export", "/dev/full")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    "words",
    ["note x --folder", "backup", "restore", "export", "store x --into", "index", "list --db"],
)
@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000 + "a"])
def test_a_name_too_long_for_a_path_is_told_as_such(here: Program, words: str, name: str) -> None:
    here.store(FRIDAYS)
    said = here.error(*words.split(), name)
    assert "Errno" not in said
    assert "is too long for a path" in said


def test_an_empty_name_is_not_the_default(here: Program) -> None:
    for flag in ("--db", "--project"):
        assert "empty" in here.error("store", FRIDAYS, flag, "")


def test_many_refused_lines_are_summed_up(here: Program) -> None:
    done = here.run("import", "-", input="nonsense\n" * 30)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 22
    assert "10 more" in done.stdout


def test_the_text_of_a_replaced_item_says_so(here: Program) -> None:
    old = here.store(FRIDAYS)
    new = here.store("We deploy daily.", "--replace", old)
    done = here.run("get", old)
    assert done.stdout == FRIDAYS
    assert new in done.stderr
    assert f"replaced by {new[:8]}" in here.ok("recall", old)


# Bytes


@pytest.mark.parametrize(
    "text",
    ["a\r\nb\r\n", "line\n\n\n", "\n a", "\x1b[31mred\x07 \x7f\u202e", "\ufeffé\u2028\u0085", "x"],
)
def test_get_in_a_pipe_gives_the_bytes_that_are_stored(
    here: Program, pyz: Path, unpacked: Path, text: str
) -> None:
    id = here.store(text)
    for env in ({}, {"PYTHONIOENCODING": "latin-1"}):
        assert here.run("get", id, text=False, input=b"", env=env).stdout == text.encode()
    shown = on_terminal(here, pyz, "get", id, SEDIMENT_CACHE=str(unpacked))
    assert not set(shown.replace("\r\n", "")) & {"\x1b", "\x07", "\x7f", "\u202e", "\x85"}
    assert ("\\x1b[31mred\\x07 \\x7f\\x202e" in shown) is ("red" in text)


def test_only_the_newline_that_echo_adds_is_left_out(here: Program) -> None:
    assert "one newline at its end is dropped" in " ".join(here.ok("store", "--help").split())
    for given, kept in (("a\n", "a"), ("b\r\n", "b"), ("c\n\n", "c\n"), ("d", "d")):
        id = json.loads(here.ok("--json", "store", "-", input=given))["id"]
        assert here.json("get", id)["content"] == kept


def test_a_graph_is_printed_as_json_without_a_format(here: Program) -> None:
    id = here.store(FRIDAYS)
    assert here.json("graph", id)["id"] == id

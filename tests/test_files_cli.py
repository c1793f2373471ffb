"""Files through the program itself: as people type it, as clients ask, and watched."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Run
from program import Done, Program, heed_permissions, one_line
from wire import TIMEOUT, Wire, small_env

MEMORY = """# Personal preferences

- Vegetarian, nothing spicy
- Working hours: 9 to 18
- Frequent command: `gateway status`

# Important configuration

- Gateway port: 18789
- PostgreSQL 15
"""
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def here(run_pyz: Callable[..., Done], tmp_path: Path) -> Program:
    """A project with the files of a person."""
    program = Program(run_pyz, tmp_path / "project")
    notes = program.folder / "memory"
    notes.mkdir()
    (program.folder / "MEMORY.md").write_text(MEMORY)
    today = notes / f"{time.strftime('%Y-%m-%d')}.md"
    today.write_text("# Today\n\n- Read the authentication guide\n- Set up the gateway\n")
    return program


def first(here: Program, query: str) -> str:
    return here.json("recall", query)["results"][0]["source"]


def test_a_first_walk(here: Program) -> None:
    assert "Nothing is indexed yet" in here.ok("status")
    said = here.ok("index", "MEMORY.md", "memory/")
    assert re.match(r"Indexed 2 files: 3 chunks, 3 embedded, 0 reused, 0 removed \(.* s, ", said)
    assert first(here, "vegetarian") == first(here, "what I like to eat") == "MEMORY.md:1-5"
    assert first(here, "gateway port") == first(here, "18789") == "MEMORY.md:7-10"
    assert first(here, "which guide did I read?").startswith("memory/")
    shown = here.ok("search", "vegetarian").splitlines()
    assert shown[0].endswith("MEMORY.md:1-5")
    assert "      - Vegetarian, nothing spicy" in shown
    deep = here.json("status", "--deep")
    assert deep["deep"]["sqlite_vec"] == "works"
    assert [(row["path"], row["files"], row["chunks"]) for row in deep["sources"]] == [
        ("MEMORY.md", 1, 2),
        ("memory", 1, 1),
    ]


def test_an_edit_is_seen_and_told(here: Program) -> None:
    here.ok("index", ".")
    file = here.folder / "MEMORY.md"
    file.write_text(MEMORY.replace("18789", "19000"))
    assert here.json("status")["sources"][0]["changed"] == ["MEMORY.md"]
    assert "19000" in here.json("recall", "gateway port")["results"][0]["content"]
    file.write_text(MEMORY)
    done = here.run("index", "--verbose")
    assert done.stderr.startswith(f"changed  {here.folder / 'MEMORY.md'}")
    assert here.json("status", "--index")["dirty"] == 0
    assert "changes" not in here.json("index")


def test_index_without_paths_follows_what_was_indexed_for_every_project_too(here: Program) -> None:
    file = here.folder / "MEMORY.md"
    here.ok("index", "MEMORY.md", "--scope", "global")
    file.write_text(MEMORY + "- A swan\n")
    assert here.json("status")["dirty"] == 1
    assert here.ok("index").startswith("Indexed 1 file: ")
    assert here.json("status")["dirty"] == 0
    here.ok("index", ".")
    file.write_text(MEMORY)
    assert here.json("index")["files"] == 3
    assert here.json("status")["dirty"] == 0
    file.write_text(MEMORY + "- A goose\n")
    assert here.json("index", "--scope", "project")["files"] == 2
    assert [row["scope"] for row in here.json("status")["sources"] if row["changed"]] == ["global"]


def test_where_no_project_is_a_file_is_indexed_once(run_pyz: Run, tmp_path: Path) -> None:
    (tmp_path / "MEMORY.md").write_text(MEMORY)
    for words in (("index", "MEMORY.md"), ("index",)):  # in the home folder
        done = run_pyz(*words, cwd=tmp_path)
        assert done.stdout.startswith("Indexed 1 file: "), done.stderr


def test_excerpts_are_short_and_expand_shows_the_rest(here: Program) -> None:
    body = "\n".join(f"Line {number} tells of the weather." for number in range(15))
    (here.folder / "long.md").write_text(
        f"# Top\n\n## Long\n\n{body}\nA needle.\n\n## Next\n\nEnd.\n"
    )
    here.ok("index", "long.md")
    (row, *_) = here.json("recall", "needle")["results"]
    shown = here.ok("recall", "needle", "--limit", "1")
    text = "\n".join(line[6:] for line in shown.splitlines() if line.startswith("      "))
    assert "A needle." in text
    assert len(text) <= 210
    whole = here.ok("expand", row["id"][:8])
    assert "Line 0 tells" in whole
    assert "End." not in whole
    assert "End." in here.ok("expand", row["id"], "--lines", "9")
    assert here.json("expand", row["id"], "--section")["source"].startswith("long.md:")


def test_notes_and_facts_go_into_files(here: Program) -> None:
    here.ok("note", "Talked to Mara about the lighthouse.")
    assert here.json("note", "-", input="From a pipe.\n")["source"].startswith("memory/")
    here.ok("store", "--into", "MEMORY.md", "The staging server is called newton.")
    assert (here.folder / "MEMORY.md").read_text().endswith("called newton.\n")
    assert first(here, "how is staging called").startswith("MEMORY.md:")
    assert first(here, "whom did I talk to about the lighthouse").startswith("memory/")


def test_compacting_from_the_shell(here: Program) -> None:
    for day in ("2026-01-05", "2026-01-06"):
        (here.folder / "memory" / f"{day}.md").write_text(f"# {day}\n\n- Greased the winch.\n")
    here.ok("index", "memory/")
    assert "2 old notes" in here.ok("compact")
    assert "Greased the winch" in here.ok("compact", "memory", "--dry-run")
    said = here.ok("compact", "memory/", "--older-than", "30d", "--with", "sort -u | grep winch")
    assert said.splitlines()[0] == "- Greased the winch."
    assert "2 notes are in archive/" in said
    assert first(here, "winch") == "memory/summary-2026-01-05-to-2026-01-06.md:1-3"
    for command, seconds, told in (
        ("false", TIMEOUT, "failed"),
        ("true", TIMEOUT, "printed nothing"),
        ("sleep 9", 0.5, "ran past"),
    ):
        (here.folder / "memory" / "2026-01-07.md").write_text("- Again.\n")
        words = ["compact", "memory", "--with", command, "--timeout", str(seconds)]
        assert told in here.error(*words)


def test_wrong_input_is_told_in_a_line(here: Program) -> None:
    assert "no file or folder" in here.error("index", "nowhere")
    assert "name a file or folder" in here.error("index")
    assert "name a file or folder" in here.error("watch")
    assert "is not indexed" in here.error("index", "--remove", "MEMORY.md")
    assert "is not a folder" in here.error("compact", "nowhere")
    assert "is a folder" in here.error("store", "--into", "memory", "A fact.")
    assert "no memory with the id" in here.error("expand", "0" * 32)
    assert "0 to 1" in here.error("recall", "gateway", "--vector-weight", "7", code=2)
    with open(here.folder / "huge.md", "wb") as file:
        file.truncate(500_000_000)
    done = here.run("index", "huge.md", "--json")
    assert (done.returncode, "500 MB" in one_line(done.stderr)) == (1, True)
    assert "skipped: " in here.ok("index", ".")


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_file_that_may_not_be_read_is_told(here: Program) -> None:
    os.chmod(here.folder / "MEMORY.md", 0)
    done = here.run("index", "MEMORY.md", preexec_fn=heed_permissions)
    assert done.returncode == 1
    assert "cannot be read (Permission denied)" in one_line(done.stderr)
    here.run("index", ".", preexec_fn=heed_permissions).check_returncode()


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_folder_that_may_not_be_read_is_told(here: Program) -> None:
    (shut := here.folder / "shut").mkdir(0)
    done = here.run("index", ".", preexec_fn=heed_permissions)
    shut.chmod(0o700)  # or nothing could clear it away
    assert done.returncode == 0
    assert f"skipped: {shut} cannot be read (Permission denied)" in done.stdout


def test_a_folder_that_could_not_be_read_is_followed_once_it_can(here: Program) -> None:
    notes = here.folder / "memory"
    os.utime(notes, (1_700_000_000, 1_700_000_000))
    notes.chmod(0)
    here.run("index", ".", preexec_fn=heed_permissions)
    status = here.json("status", preexec_fn=heed_permissions)
    notes.chmod(0o755)
    (told,) = status["sources"]
    assert told["skipped"] == [{"path": "memory", "reason": "cannot be read (Permission denied)"}]
    assert first(here, "which guide did I read?").startswith("memory/")


@pytest.mark.skipif(os.name != "posix", reason="permissions and links")
@pytest.mark.parametrize("how", ["shut", "a link to itself"])
def test_a_folder_elsewhere_that_cannot_be_entered_costs_no_answer(here: Program, how: str) -> None:
    there = here.folder.parent / "notes"
    there.mkdir()
    (there / "a.md").write_text("# The heron\n\nIt fishes at dawn.\n")
    here.store("The gateway listens on port 7001.")
    here.ok("index", str(there))
    if how == "shut":
        there.chmod(0)
    else:
        there.rename(there.with_name("away"))
        there.symlink_to("notes")
    for words in (["recall", "gateway port"], ["recall", "heron"], ["status"]):
        done = here.run(*words, preexec_fn=heed_permissions)
        assert (done.returncode, done.stderr) == (0, ""), words
    indexed = here.run("index", preexec_fn=heed_permissions)
    told = f"{there} cannot be read (Permission denied)"
    assert (indexed.returncode, told in indexed.stdout) == (0, how == "shut"), indexed
    found = here.json("recall", "which port has the gateway?", preexec_fn=heed_permissions)
    assert found["results"][0]["content"] == "The gateway listens on port 7001."
    if how == "shut":
        there.chmod(0o700)  # or nothing could clear it away
        assert "Indexed 1 file" in here.ok("index")


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_project_that_cannot_be_entered_is_still_known_by_its_folder(here: Program) -> None:
    project = here.folder.parent / "shut"
    project.mkdir()
    here.ok("--project", str(project), "store", "The first.")
    project.chmod(0)
    here.ok("--project", str(project), "store", "The second.", preexec_fn=heed_permissions)
    project.chmod(0o700)
    assert here.contents("--scope", "global") == set()
    assert here.contents("--project", str(project)) == {"The first.", "The second."}


def until(true: Callable[[], object], what: str) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + TIMEOUT
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.fixture
def env(tmp_path: Path, unpacked: Path) -> dict[str, str]:
    return small_env(tmp_path, SEDIMENT_CACHE=str(unpacked))


FORGED = "a\n0.99  forged\x1b[2J.md"


def test_names_of_files_forge_no_line(here: Program) -> None:
    (here.folder / "memory" / FORGED).write_text("# Zebra\n\nThe zebra grazes.\n")
    (here.folder / "memory" / f"2026-01-01 {FORGED}").write_text("The walrus sleeps.\n")
    (here.folder / "memory" / f"no {FORGED}").write_bytes(b"\0")
    shown = r"a\x0a0.99  forged\x1b[2J.md"
    said = here.run("index", "memory", "-v")
    id = here.json("recall", "zebra")["results"][0]["id"]
    told = [said.stderr, said.stdout, here.ok("expand", id)]
    (here.folder / "memory" / FORGED).write_text("# Zebra\n\nThe zebra sleeps.\n")
    told += [here.ok("status"), here.ok("recall", "walrus"), here.ok("compact", "memory")]
    for text in told:
        assert shown in text
        assert "\x1b" not in text
        assert not any(line.startswith("0.99  forged") for line in text.splitlines())
    sent = here.json("compact", "memory", "--dry-run")["input"]
    assert f"<!-- 2026-01-01 {shown} -->" in sent


def test_index_and_status_count_alike(here: Program) -> None:
    for name in ("one.md", "two.md"):
        (here.folder / "memory" / name).write_bytes(b"\0")
    assert here.ok("index", "memory").startswith("Indexed 1 file: ")
    assert here.json("status")["sources"][0]["files"] == 1


def test_watch_follows_until_it_is_interrupted(
    here: Program, pyz: Path, env: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(pyz), "watch", ".", "--debounce-ms", "100"],
            cwd=here.folder,
            env=env,
            stdout=out,
            stderr=out,
            # As a shell has it of what runs in its background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
    try:
        until(lambda: log.read_text().startswith("Indexed 2 files"), "the first index")
        (here.folder / "new.md").write_text("# New\n\nA brand new thing.\n")
        until(lambda: "added    " in log.read_text(), log.read_text())
        here.store("Somebody else stores meanwhile.")
        (here.folder / "new.md").unlink()
        until(lambda: "removed  " in log.read_text(), log.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 0
        assert len(log.read_text().splitlines()) == 3
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def watching(here: Program, env: dict[str, str]) -> Iterator[Wire]:
    wire = Wire(here.folder, env, "--watch", ".")
    wire.handshake()
    yield wire
    wire.kill()


def test_a_server_that_watches_answers_from_the_files_as_they_are(
    here: Program, watching: Wire
) -> None:
    def sources(query: str, **more: str) -> list[str]:
        return [
            row.get("source") for row in watching.call("recall", query=query, **more)["results"]
        ]

    until(lambda: sources("vegetarian"), "the first index")
    (here.folder / "boats.md").write_text("# Boats\n\nThe dinghy lies at pier 7.\n")
    until(lambda: "boats.md:1-3" in sources("where is the dinghy"), "the new file")
    assert sources("dinghy", source="memory/") != ["boats.md:1-3"]
    (row,) = watching.call("recall", query="dinghy", limit=1)["results"]
    (section,) = watching.call("recall", query=row["id"])["results"]
    assert section["content"] == "# Boats\n\nThe dinghy lies at pier 7."
    assert "edit that file" in watching.refusal("forget", id=row["id"])
    assert watching.end() == []


def test_a_server_waits_for_a_folder_that_is_not_there_yet(
    here: Program, env: dict[str, str]
) -> None:
    wire = Wire(here.folder, env, "--watch", "later", "--watch", "MEMORY.md")
    try:
        wire.handshake()

        def found(query: str, file: str) -> bool:
            rows = wire.call("recall", query=query)["results"]
            return any(row.get("source", "").startswith(file) for row in rows)

        until(lambda: found("vegetarian", "MEMORY.md"), "the file that is there")
        (here.folder / "later").mkdir()
        (here.folder / "later" / "boats.md").write_text("# Boats\n\nThe dinghy is at pier 7.\n")
        until(lambda: found("where is the dinghy", "later/boats.md"), "the folder")
    finally:
        wire.kill()


def test_the_loop_of_the_documentation_runs(here: Program, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(# An agent.*?)```", page, re.DOTALL)
    script = tmp_path / "agent.py"
    script.write_text(code)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    here.store("The harbour has rules. " * 60 + "Boat 7 needs a new mast. " + "Ropes wear. " * 90)
    asked = "What may I cook for you?\nRemember that Mara likes dill.\nA mast for boat 7?\n"
    done = subprocess.run(
        [sys.executable, str(script)],
        input=asked,
        env=env,
        cwd=here.folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Vegetarian, nothing spicy" in done.stdout
    assert "Boat 7 needs a new mast." in done.stdout
    notes = json.dumps([path.read_text() for path in (here.folder / "memory").iterdir()])
    assert "Mara likes dill" in notes

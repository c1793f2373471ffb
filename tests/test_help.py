"""What the program says about itself is there, and true."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from conftest import Run
from program import Program

import sediment_ext.transcripts
from sediment import CLIENTS, RANKINGS, cli
from sediment_ext.help_pages import help_pages

COMMANDS = (
    "init", "store", "recall", "list", "get", "replace", "forget", "index", "browse", "doctor",
    "note", "expand", "watch", "compact", "status",
    "history", "undo", "review", "move", "tag", "expire", "graph", "consolidate", "prune",
    "serve", "hook", "sync", "hub", "token",
    "import", "export", "backup", "restore", "reindex", "model", "stats", "completion",
)  # fmt: skip
GENERAL = "Every command also takes --db FILE, --project ID, --json and --verbose."
SCREEN = 32  # lines of the longest help, in a terminal of 80 columns


@pytest.fixture
def here(run_pyz: Run, tmp_path: Path) -> Program:
    return Program(run_pyz, tmp_path / "project")


def test_the_version(here: Program) -> None:
    assert re.fullmatch(r"sediment \d+\.\d+\.\d+\S*\n", here.ok("--version"))
    assert here.ok("-V") == here.ok("--version")


def test_help_names_every_command_and_the_first_ten_first(here: Program) -> None:
    said = here.ok("--help")
    assert here.ok("-h") == said
    groups = dict(re.findall(r"^(\w[\w ]+):\n((?:  .*\n)+)", said, re.MULTILINE))
    options = groups.pop("Options")
    listed = [re.findall(r"^  (\w+) {2,}\S.*\.$", rows, re.MULTILINE) for rows in groups.values()]
    assert tuple(itertools.chain(*listed)) == COMMANDS
    assert len(listed[0]) == 10
    cut = [line for group in groups.values() for line in group.splitlines() if "..." in line]
    assert cut == [], "these first sentences are too long"
    for option in ("--db", "--project", "--json", "--version", "SEDIMENT_DB", "SEDIMENT_PROJECT"):
        assert option in options


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(here: Program, command: str) -> None:
    said = here.ok(command, "--help")
    assert len(said.splitlines()) <= SCREEN
    usage, text, *_ = said.split("\n\n")
    assert usage.startswith("Usage: ")
    assert re.fullmatch(r"  [A-Z][^\0]{20,}\.", text)
    assert GENERAL in said
    assert 1 <= len(re.findall(rf"^ +.*\b{command}\b", said.split("  Examples:\n")[1], re.M)) <= 2
    own = re.search(r"^Options:\n((?:  .*\n)+)", said, re.MULTILINE)
    rows = re.split(r"^  (?=-)", own[1], flags=re.MULTILINE)[1:] if own else []
    for row in rows:
        assert re.fullmatch(r"-\S.*?(?: {2,}|\n +)[A-Z][^\0]*[.\]]\n", row), row


@pytest.mark.parametrize("command", COMMANDS)
def test_help_leads_to_commands_and_options_that_are_there(command: str) -> None:
    page = help_pages()[command]
    _, _, related = page.end.partition("See also: ")
    assert set(related.split(", ") if related else ()) <= set(COMMANDS) - {command}
    with click.Context(cli.commands[command], info_name=command) as context:
        params = [each for each in context.command.get_params(context) if each.expose_value]
    shown = [each for each in params if isinstance(each, click.Option) and not each.hidden]
    assert page.options.keys() == {each.opts[-1] for each in shown}


def test_help_names_every_client_and_every_ranking() -> None:
    pages = help_pages()
    for name in CLIENTS:
        assert name in pages["init"].options["--client"]
        has_sessions = name in sediment_ext.transcripts.transcripts()["formats"]
        assert (f"{name}" in pages["import"].options["--from"]) == has_sessions or name == "any"
    for name in RANKINGS:
        assert name in pages["recall"].options["--ranking"]


def test_wrong_usage_says_where_help_is(here: Program) -> None:
    assert re.search(r"`\S+ --help`", here.error("remember", code=2))
    assert re.search(r"`\S+ list --help`", here.error("list", "--nonsense", code=2))
    assert re.search(r"`\S+ recall --help`", here.error("recall", "x", "--limit", code=2))
    for words in (["rcall"], ["get", "--jsn"]):
        said = here.error(*words, code=2)
        assert re.search(r"\. Did you mean '[\w-]+'\? See `", said), said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script(here: Program, shell: str) -> None:
    script = here.ok("completion", shell)
    assert f"{shell}_complete" in script
    assert here.json("completion", shell) == {"shell": shell, "script": script.removesuffix("\n")}


def test_another_shell(here: Program) -> None:
    assert "tcsh" in here.error("completion", "tcsh", code=2)


COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$(complete -p "${PROGRAM##*/}" | sed 's/.* -F \\([^ ]*\\) .*/\\1/') "$PROGRAM"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(here: Program, pyz: Path, *words: str) -> set[str]:
    """What bash proposes for a command line."""
    here.folder.joinpath("script").write_text(here.ok("completion", "bash"))
    wrapper = here.folder / pyz.name
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{pyz}" "$@"\n')
    wrapper.chmod(0o755)
    env = {"PATH": "/usr/bin:/bin:/usr/local/bin", "PROGRAM": str(wrapper)}
    env |= {"SEDIMENT_CACHE": str(here.folder / "cache"), "HOME": str(here.folder.parent)}
    command = ["bash", "--norc", "-c", COMPLETE, "bash", "./script", str(wrapper), *words]
    done = subprocess.run(
        command, cwd=here.folder, env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_proposes_commands_and_options(here: Program, pyz: Path, unpacked: Path) -> None:
    (here.folder / "cache").symlink_to(unpacked)
    assert completed(here, pyz, "") >= set(COMMANDS)
    assert completed(here, pyz, "st") == {"store", "stats", "status"}
    assert completed(here, pyz, "list", "--scope", "") == {"project", "global", "all"}
    assert "--created-at" in completed(here, pyz, "store", "--")

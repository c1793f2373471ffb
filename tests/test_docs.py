"""The documentation says what the program does: its help, sessions, names and links. `make docs`
writes what is taken from the program."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from make_docs import DOCS, PAGES, PICTURE, ROOT, Session, commands, drawn, renewed, says_the_same
from wire import http_server, small_env

from sediment import Memory, cli

README = ROOT / "README.md"
TEXTS = (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")
RENEW = "run `make docs`, and look at what it changed"

# Options of other programs, and of the builds and benchmarks, that pages name.
FOREIGN = {"--ignore-missing", "--check", "--format", "--recursive", "--items"}
# Methods of Memory for the doors alone, and a setting for those who train the ranker.
INTERNAL = {
    *("close", "encoder", "search", "storing", "in_folder", "of_project", "preload", "pending"),
    *("record_access", "has_chores", "token_of", "describe"),
}
UNTOLD = {"SEDIMENT_RANKER"}
SECTION = re.MULTILINE | re.DOTALL


@cache
def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def names_of(text: str) -> set[str]:
    """What stands between backquotes."""
    return set(re.findall(r"`([^`\n]+)`", prose(text)))


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 150


# The program's help


def test_the_page_of_commands_is_their_help() -> None:
    assert page("commands") == commands(), RENEW


def test_an_option_that_is_added_is_missed_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = click.option("--brand-new", help="Nothing.")(click.command()(lambda: None))
    monkeypatch.setitem(cli.commands, "stats", changed)
    assert page("commands") != commands()


def test_the_readme_leads_to_all_pages() -> None:
    linked = set(re.findall(r"\]\(([\w-]+)\.md", page("index")))
    assert linked == {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert "](docs/index.md)" in README.read_text("utf-8")


def options() -> set[str]:
    """The options of all commands, hidden ones too."""
    contexts = [click.Context(command, **cli.context_settings) for command in cli.commands.values()]
    params = [*cli.params, *(one for ctx in contexts for one in ctx.command.get_params(ctx))]
    found = {word for param in params for word in (*param.opts, *param.secondary_opts)}
    return found | {"--help", "--version"}


WRITTEN = [path for path in PAGES if path.stem != "commands"]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_page_names_no_option_that_is_none(path: Path) -> None:
    text = path.read_text("utf-8")
    lines = [line for line in text.splitlines() if "sediment" in line or "`-" in line]
    said = {word for line in lines for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)}
    assert said <= options() | FOREIGN


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_page_names_no_command_that_is_none(path: Path) -> None:
    called = re.findall(
        r"(?:^|`|\$ |\| )sediment ([a-z]+)\b", path.read_text("utf-8"), re.MULTILINE
    )
    assert set(called) <= {*cli.commands, "init"}


# Names in their pages


def sources() -> str:
    files = [ROOT / "sediment.py", *sorted((ROOT / "sediment_ext").rglob("*.py"))]
    return "\n".join(file.read_text("utf-8") for file in files)


def test_every_setting_is_in_the_index_and_each_there_is_one() -> None:
    text = sources()
    read = {f"SEDIMENT_{name}" for name in re.findall(r'(?:setting|is_off)\("([A-Z_]+)"\)', text)}
    read |= {f"SEDIMENT_HOOK_{name}" for name in re.findall(r'_budget\("([A-Z]+)"', text)}
    weights = re.findall(r'"([a-z]+_weight)": [a-z]+\b', text)
    read |= {f"SEDIMENT_{name.upper()}" for name in weights}
    read |= {"SEDIMENT_CACHE"}  # which the bootstrap of the .pyz reads
    said = {name for path in PAGES for name in re.findall(r"SEDIMENT_[A-Z_]+", path.read_text())}
    assert len(read) > 12
    assert read - UNTOLD <= set(re.findall(r"SEDIMENT_[A-Z_]+", page("index")))
    assert said <= read


def test_every_tool_and_its_arguments_are_told() -> None:
    tools = json.loads((ROOT / "assets" / "tools.json").read_text("utf-8"))
    told = names_of(page("agents"))
    for name, tool in tools.items():
        assert {name, *tool["inputSchema"]} <= told
        assert f"`{name}`" in README.read_text("utf-8")


def test_every_client_is_told_with_its_files() -> None:
    told = page("agents")
    clients = json.loads((ROOT / "assets" / "clients.json").read_text("utf-8"))
    for name, client in clients.items():
        assert client["title"] in told or f"--client {name}" in told
        files = {file["project"] for file in client["files"] if "project" in file}
        assert {file for file in files if f"`{file}`" not in told} == set()


def test_every_plugin_is_told() -> None:
    told = page("agents")
    assert "./assets/plugins " in told
    for name in ("gemini", "opencode/sediment.js"):
        assert f"assets/plugins/{name}" in told
        assert (ROOT / "assets" / "plugins" / name).exists()


def test_every_route_is_told_and_each_told_is_one(tmp_path: Path, unpacked: Path) -> None:
    env = small_env(tmp_path, SEDIMENT_CACHE=str(unpacked))
    with http_server(tmp_path, env, "--project", "demo") as (host, port):
        answer = urllib.request.urlopen(f"http://{host}:{port}/v1/openapi.json").read()
    paths = json.loads(answer)["paths"]
    served = {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs}
    beside = {"POST /mcp", "POST /v1/session", "GET /v1/openapi.json", "GET /health", "GET /ready"}
    assert set(re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`", page("http"))) == served | beside


def test_every_method_is_told_and_each_told_is_one() -> None:
    public = {name for name in dir(Memory) if not name.startswith("_")}
    table = page("python").partition("## Methods")[2]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == public - INTERNAL


def fields_of_memories() -> set[str]:
    """The fields that an import reads."""
    known = re.findall(r"^_(?:IMPORTED) = .*?\}(?=  #|\n)", sources(), SECTION)
    assert len(known) == 1
    return {name for names in known for name in re.findall(r'"(\w+)"', names)}


def rows_of_tools() -> set[str]:
    """The fields of memories in the answers of the server's tools."""
    tools = json.loads((ROOT / "assets" / "tools.json").read_text("utf-8")).values()
    answers = [part for tool in tools for part in tool["outputSchema"]["properties"].values()]
    rows = [part.get("items", {}).get("properties", {}) for part in answers]
    return {name for row in rows if "content" in row for name in row}


def test_every_field_is_told(memory: Memory) -> None:
    tools = json.loads((ROOT / "assets" / "tools.json").read_text("utf-8"))
    old = memory.store("The staging port is 5433.")["id"]
    new = memory.store("The staging port is 6543.", replace=old)["id"]
    answer = memory.recall("the staging port", explain=True)
    wanted = {name for tool in tools.values() for name in tool["outputSchema"]["properties"]}
    wanted |= fields_of_memories() | rows_of_tools() | {*answer, *memory.get(new), *memory.get(old)}
    wanted |= {part for row in answer["results"] for part in row["parts"]}
    assert wanted - names_of(page("json")) == set()


def strings(source: str) -> Iterator[str]:
    """The texts in a program, without its docstrings and comments."""
    nodes = [*ast.walk(ast.parse(source))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


def test_the_messages_that_troubleshooting_quotes_are_those_of_the_program() -> None:
    files = [ROOT / "sediment.py", ROOT / "build_zipapp.py", *(ROOT / "sediment_ext").rglob("*.py")]
    texts = "\n".join(text for file in files for text in strings(file.read_text("utf-8")))
    rows = re.findall(r"^(?:\*\*(.*?)\*\*|\| (`.*?) \|)", page("troubleshooting"), re.MULTILINE)
    quoted = [text for row in rows for text in re.findall(r"`([^`-]*?[a-z] [^`-]*)`", "".join(row))]
    varying = r"…|\d[\d.]*|[;:]|cpython|\w+[.]pyz"
    parts = [part.strip() for text in quoted for part in re.split(varying, text)]
    wanted = [part for part in parts if " " in part]
    assert len(wanted) > 8
    assert [part for part in wanted if part not in texts] == []


# Sessions


@pytest.mark.parametrize(
    "path", [path for path in PAGES if "```console" in path.read_text("utf-8")],
    ids=lambda path: path.stem,
)  # fmt: skip
def test_what_a_page_shows_is_printed(
    path: Path, pyz: Path, unpacked: Path, tmp_path: Path
) -> None:
    session = Session(tmp_path, [sys.executable, str(pyz)], {"SEDIMENT_CACHE": str(unpacked)})
    text = path.read_text("utf-8")
    assert renewed(text, session) == text, RENEW


def test_the_demo_is_short_and_its_answers_are_right(pyz: Path, unpacked: Path) -> None:
    env = os.environ | {"SEDIMENT_PYZ": str(pyz), "SEDIMENT_CACHE": str(unpacked)}
    done = subprocess.run(
        [ROOT / "tests" / "demo.sh"], env=env | {"PYTHON": sys.executable}, stdout=subprocess.PIPE,
        text=True, check=True,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) <= 40
    answers = re.findall(r'recall "(.*?)".*\n.*\n +(.*)', done.stdout)
    assert answers == [
        ("is it safe to ship today?", "We deploy on Fridays, but only after the canary is green."),
        ("how long does a session last?", "The session timeout is 2 hours."),
        ("how long does a session last?", "The session timeout is 30 minutes."),
        ("can several agents share one memory?", "### Can several agents use it at once?"),
    ]


def test_the_picture_shows_its_session() -> None:
    assert (DOCS / "terminal.svg").read_text("utf-8") == drawn(PICTURE.read_text("utf-8")), RENEW


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.32  5fa09c13-c92f-4261-bc4c-3c3c15ab1a93  2026-11-26", "0.4", False),
        ("0.32  5fa09c13  2026-11-26", "0.36  db7162d3  2025-01-01", True),
        ("0.32  5fa09c13  2026-11-26", "0.99  5fa09c13  2026-11-26", False),
        ("Stored in project scope.", "Stored in global scope.", False),
        ("Indexed 2 files (0.16 s, 12 a second).", "Indexed 2 files (1.20 s).", True),
        ("Indexed 2 files (0.16 s).", "Indexed 3 files (0.16 s).", False),
        ("a\n(1 weak match hidden: see `--anyway`.)\n", "a\n", True),
    ],
)
def test_what_is_masked(one: str, other: str, same: bool) -> None:
    assert says_the_same(one, other) == same


# Links


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text("utf-8"))):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text("utf-8")), target

"""`sediment init` adds to files that people own: once, and without harm to what stands there."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from program import Program, files, heed_permissions, repository

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
LIST = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "list", "arguments": {"scope": "global"}},
}


@pytest.fixture
def here(run_pyz: Run, tmp_path: Path, no_clients: str) -> Program:
    return Program(run_pyz, tmp_path / "project", PATH=no_clients)


def entry(folder: Path) -> dict[str, Any]:
    return json.loads((folder / ".mcp.json").read_text())["mcpServers"]["sediment"]


def contents(folder: Path) -> dict[str, bytes]:
    """The files that init is about, with their bytes."""
    names = (".mcp.json", "CLAUDE.md", "AGENTS.md")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def is_instructed(text: str) -> bool:
    """Whether a text has the agent instructions, once."""
    whole = text.count("long-term memory") == text.count("[memory from sediment]") == 1
    return whole and text.count("<!-- sediment -->") == text.count("<!-- /sediment ") == 1


def start(command: list[str], folder: Path, **env: str) -> list[dict[str, Any]]:
    """What a server answers that a client started with as little as clients give."""
    small = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **env}
    lines = "".join(json.dumps(message) + "\n" for message in (HELLO, LIST))
    done = subprocess.run(
        command, input=lines, env=small, cwd="/", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_starts(command: list[str], folder: Path, **env: str) -> None:
    hello, listed = start(command, folder, **env)
    assert hello["result"]["serverInfo"]["name"] == "sediment"
    assert "known to all" in json.dumps(listed["result"])


def test_a_new_project(here: Program, unpacked: Path, tmp_path: Path) -> None:
    said = here.ok("init")
    assert files(here.folder) == {
        ".mcp.json", "CLAUDE.md", "AGENTS.md", ".sediment", ".sediment/config",
    }  # fmt: skip
    for name in ("CLAUDE.md", "AGENTS.md"):
        assert f"{name}: created" in said
        assert is_instructed((here.folder / name).read_text())
    here.store("known to all", "--scope", "global")
    server = entry(here.folder)
    assert set(server) == {"command", "args"}
    command = [server["command"], *server["args"]]
    assert_starts(command, tmp_path, SEDIMENT_CACHE=str(unpacked))


def test_twice_is_once(here: Program) -> None:
    here.ok("init")
    before = contents(here.folder)
    assert len(before) == 3
    assert here.ok("init", "--local").count("already") == 3
    assert contents(here.folder) == before


def test_a_repository_needs_no_config(here: Program) -> None:
    root = repository(here.folder)
    (here.folder / "sub").mkdir()
    answer = here.at(here.folder / "sub").json("init")
    assert answer["project"] == root
    assert answer["root"] == str(here.folder)
    assert set(contents(here.folder)) == {".mcp.json", "CLAUDE.md", "AGENTS.md"}
    assert not (here.folder / ".sediment").exists()
    assert files(here.folder / "sub") == set()


def test_a_config_is_named_and_stays_with_the_memories(here: Program) -> None:
    told = ".sediment/config: has the project's id, by which its memories are found"
    for _ in range(2):
        assert here.json("init")["done"].count(told) == 1
    assert here.json("init", "--remove")["done"].count(f"{told}; it stays") == 1
    assert files(here.folder) == {".sediment", ".sediment/config"}
    shutil.rmtree(here.folder / ".sediment")
    assert ".sediment" not in here.ok("init", "--remove")


def test_the_database_in_the_entry_is_absolute(
    here: Program, unpacked: Path, tmp_path: Path
) -> None:
    here.store("known to all", "--scope", "global", "--db", "own.db")
    here.ok("init", "--db", "own.db")
    server = entry(here.folder)
    assert server["args"][1:] == ["--db", str(here.folder / "own.db"), "serve"]
    command = [server["command"], *server["args"]]
    assert_starts(command, tmp_path, SEDIMENT_CACHE=str(unpacked))


def as_link(pyz: Path, path: Path) -> None:
    path.symlink_to(pyz)


def as_copy(pyz: Path, path: Path) -> None:
    shutil.copyfile(pyz, path)


@pytest.mark.parametrize("install", [as_link, as_copy])
def test_a_program_called_sediment(
    here: Program, pyz: Path, unpacked: Path, tmp_path: Path, install: Callable[[Path, Path], None]
) -> None:
    program = tmp_path / "sediment"
    install(pyz, program)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEDIMENT_CACHE": str(unpacked)}
    subprocess.run([sys.executable, str(program), "init"], cwd=here.folder, env=env, check=True)
    here.store("known to all", "--scope", "global")
    server = entry(here.folder)
    command = [server["command"], *server["args"]]
    assert_starts(command, tmp_path, SEDIMENT_CACHE=str(unpacked))


# What is there already


def test_other_servers_stay(here: Program) -> None:
    other = {"command": "npx", "args": ["-y", "zürich"], "env": {"TOKEN": "x"}}
    before = {"z": [1, 2.5, None], "mcpServers": {"zoo": other, "abc": {"url": "u"}}, "a": "é"}
    (here.folder / ".mcp.json").write_text(json.dumps(before))
    here.ok("init")
    after = json.loads((here.folder / ".mcp.json").read_text())
    assert list(after) == ["z", "mcpServers", "a"]
    assert list(after["mcpServers"]) == ["zoo", "abc", "sediment"]
    del after["mcpServers"]["sediment"]
    assert after == before


def test_a_server_called_sediment_stays(here: Program) -> None:
    text = '{"mcpServers": {"sediment": {"command": "mine"}}}'
    (here.folder / ".mcp.json").write_text(text)
    here.ok("init")
    assert (here.folder / ".mcp.json").read_text() == text


def test_half_a_character_in_the_file_stays(here: Program) -> None:
    (here.folder / ".mcp.json").write_text(r'{"cut": "\ud83d"}')
    here.ok("init")
    assert json.loads((here.folder / ".mcp.json").read_text())["cut"] == "\ud83d"


@pytest.mark.parametrize(
    "text",
    ["{", "// {}", "[]", "7", '{"mcpServers": []}', '{"mcpServers": null}', "[" * 100_000],
    ids=["cut", "comment", "list", "number", "list of servers", "null", "deep"],
)
def test_a_file_that_is_not_understood_is_left_alone(here: Program, text: str) -> None:
    (here.folder / ".mcp.json").write_text(text)
    assert ".mcp.json" in here.error("init")
    assert contents(here.folder) == {".mcp.json": text.encode()}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"mcpServers": {"a": {}}, "mcpServers": {"b": {}}}', "'mcpServers' stands there twice"),
        ('{"mcpServers": {"a": {}, "a": {}}}', "'a' stands there twice"),
    ],
)
def test_a_file_that_is_ambiguous_is_left_alone(here: Program, text: str, reason: str) -> None:
    path = here.folder / ".mcp.json"
    path.write_text(text)
    said = here.error("init")
    assert reason in said
    assert '"sediment": {"command": ' in said
    assert path.read_text() == text
    added = said[said.index('"sediment"') : said.index(" to its mcpServers by hand")]
    path.write_text(f'{{"n": 1e400, "mcpServers": {{{added}}}}}')
    assert "CLAUDE.md: created" in here.ok("init")


def test_numbers_stay_as_they_are_written(here: Program) -> None:
    path = here.folder / ".mcp.json"
    numbers = '{"n": [0.1, 1.50, 1E5, -0.0, 1e400, 1e-99999999999999999999, 0.30000000000000000001'
    path.write_text(numbers + "]}")
    here.ok("init")
    assert path.read_text().startswith(numbers)
    assert "sediment" in json.loads(path.read_text())["mcpServers"]


@pytest.mark.parametrize("text", ["", "# Ours", "# Ours\n", "# Ours\n\nüber\n\n"])
def test_what_people_wrote_stays(here: Program, text: str) -> None:
    (here.folder / "CLAUDE.md").write_text(text)
    assert "CLAUDE.md: extended" in here.ok("init")
    after = (here.folder / "CLAUDE.md").read_text()
    assert is_instructed(after)
    assert re.fullmatch(re.escape(text) + r"\n{0,2}<!-- sediment -->\n[^\0]*", after)


def test_line_ends_stay(here: Program) -> None:
    (here.folder / "CLAUDE.md").write_bytes(b"# Ours\r\n\r\nText\r\n")
    (here.folder / ".mcp.json").write_bytes(b'{\r\n  "mcpServers": {}\r\n}\r\n')
    here.ok("init")
    after = contents(here.folder)
    assert after["CLAUDE.md"].startswith(b"# Ours\r\n\r\nText\r\n\r\n<!-- sediment -->\r\n")
    for name in ("CLAUDE.md", ".mcp.json"):
        assert b"\n" not in after[name].replace(b"\r\n", b"")


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_what_people_wrote_into_our_block_stays(here: Program, client: str) -> None:
    name = {"claude": "CLAUDE.md", "codex": ".codex/config.toml"}[client]
    here.ok("init", "--client", client)
    text = (here.folder / name).read_text()
    for mark in ("<!-- /sediment ", "# /sediment "):
        text = text.replace(mark, f"# MY OWN RULE\n{mark}")
    (here.folder / name).write_text(text)
    assert name in here.error("init", "--client", client, "--remove")
    assert (here.folder / name).read_text() == text
    (here.folder / name).write_text(text.replace("# MY OWN RULE\n", ""))
    here.ok("init", "--client", client, "--remove")
    assert not (here.folder / name).exists()


def test_every_block_of_ours_is_removed_and_half_a_one_is_none(here: Program) -> None:
    path = here.folder / "CLAUDE.md"
    here.ok("init")
    block = path.read_text()
    path.write_text(f"# Ours\n\n{block}\nMore\n\n{block}")
    here.ok("init", "--remove")
    assert path.read_text() == "# Ours\n\nMore\n"
    half = "<!-- sediment -->\nSediment is"
    path.write_text(half)
    assert "CLAUDE.md: extended" in here.ok("init")
    assert path.read_text() == f"{half}\n\n{block.strip()}"
    here.ok("init", "--remove")
    assert path.read_text() == half


def test_what_somebody_changed_is_named_when_it_stays(here: Program) -> None:
    here.ok("init", "--client", "claude")
    server, settings = here.folder / ".mcp.json", here.folder / ".claude" / "settings.json"
    value = json.loads(server.read_text())
    value["mcpServers"]["sediment"]["env"] = {"SEDIMENT_CROSS_PROJECT": "0"}
    server.write_text(json.dumps(value))
    value = json.loads(settings.read_text())
    value["hooks"]["Stop"][0]["hooks"].append({"type": "command", "command": "notify-send done"})
    settings.write_text(json.dumps(value))
    for done in ("cleaned, but ", ""):
        said = here.ok("init", "--client", "claude", "--remove")
        told = "differs from what `init` writes: edit it by hand"
        assert f"{server}: its entry sediment {told}" in said
        assert f"{settings}: {done}its entry Stop {told}" in said
    assert list(json.loads(settings.read_text())["hooks"]) == ["Stop"]


def test_instructions_in_other_words_are_enough(here: Program) -> None:
    text = "Use mcp__sediment__recall first.\n"
    (here.folder / "CLAUDE.md").write_text(text)
    here.ok("init")
    assert (here.folder / "CLAUDE.md").read_text() == text
    assert is_instructed((here.folder / "AGENTS.md").read_text())


@pytest.mark.parametrize("name", [".mcp.json", "CLAUDE.md"])
@pytest.mark.parametrize("coding", ["latin-1", "utf-16", "utf-16-le"])
def test_a_file_that_is_no_text_is_left_alone(here: Program, name: str, coding: str) -> None:
    data = '{"a": {}}'.encode(coding) if "16" in coding else b'{"Stra\xdfe": {}}'
    (here.folder / name).write_bytes(data)
    said = here.error("init")
    assert said.startswith(f"Error: {here.folder / name} ")
    assert ": left as it is" in said
    assert contents(here.folder) == {name: data}  # and no other was written


def test_a_config_with_a_byte_order_mark_is_extended(here: Program) -> None:
    text = '\ufeff{"mcpServers": {}}\r\n'
    path = here.folder / ".mcp.json"
    path.write_bytes(text.encode())
    here.ok("init")
    after = path.read_bytes().decode()
    assert after.startswith("\ufeff")
    assert list(json.loads(after.removeprefix("\ufeff"))["mcpServers"]) == ["sediment"]
    assert ".mcp.json: has" in here.ok("init")
    here.ok("init", "--remove")
    assert path.read_bytes().decode() == text


def test_one_file_under_two_names_is_extended_once(here: Program) -> None:
    (here.folder / "AGENTS.md").write_text("# Ours\n")
    (here.folder / "CLAUDE.md").symlink_to("AGENTS.md")
    here.ok("init")
    here.ok("init")
    assert os.readlink(here.folder / "CLAUDE.md") == "AGENTS.md"
    assert not (here.folder / "AGENTS.md").is_symlink()
    assert is_instructed((here.folder / "AGENTS.md").read_text())


def test_a_link_within_the_project_is_followed(here: Program) -> None:
    (here.folder / "config").mkdir()
    (here.folder / "config" / "shared.json").write_text("{}")
    (here.folder / ".mcp.json").symlink_to("config/shared.json")
    here.ok("init")
    assert (here.folder / ".mcp.json").is_symlink()
    shared = json.loads((here.folder / "config" / "shared.json").read_text())
    assert "sediment" in shared["mcpServers"]


@pytest.mark.parametrize("name", [".mcp.json", "CLAUDE.md", "AGENTS.md"])
@pytest.mark.parametrize("target", ["there.txt", "not-yet.txt", "folder/there.txt"])
def test_a_link_out_of_the_project_is_refused(
    here: Program, tmp_path: Path, name: str, target: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "there.txt").write_text("{}")
    (here.folder / "folder").symlink_to("../outside")
    link = target if target.startswith("folder") else f"../outside/{target}"
    (here.folder / name).symlink_to(link)
    before = files(here.folder)
    told = here.error("init")
    assert f"{name} is a link out of the project: left as it is" in told
    assert files(here.folder) == before
    assert files(outside) == {"there.txt"}
    assert (outside / "there.txt").read_text() == "{}"


@pytest.mark.parametrize("name", [".mcp.json", "CLAUDE.md", "AGENTS.md"])
def test_a_link_into_git_is_refused(here: Program, name: str) -> None:
    (here.folder / ".git").mkdir()
    (here.folder / ".git" / "config").write_text("{}")
    (here.folder / name).symlink_to(".git/config")
    before = files(here.folder)
    assert f"{name} is a link into .git: left as it is" in here.error("init")
    assert files(here.folder) == before
    assert (here.folder / ".git" / "config").read_text() == "{}"


def test_a_link_in_the_home_folder_is_followed(
    run_pyz: Run, tmp_path: Path, no_clients: str
) -> None:
    here = Program(run_pyz, tmp_path / "project", HOME=str(tmp_path / "home"), PATH=no_clients)
    (tmp_path / "home" / ".claude").mkdir(parents=True)
    (tmp_path / "home" / ".claude" / "CLAUDE.md").symlink_to("../../dotfiles.md")
    here.ok("init", "--global")
    assert is_instructed((tmp_path / "dotfiles.md").read_text())


def test_a_draft_follows_no_link(here: Program, tmp_path: Path) -> None:
    """A checkout may have links with the names that drafts will have."""
    (tmp_path / "mine").write_text("mine")

    def plant() -> None:
        for name in (".mcp.json", "CLAUDE.md"):
            (here.folder / f"{name}.{os.getpid()}.tmp").symlink_to("../mine")

    here.ok("init", preexec_fn=plant)
    assert (tmp_path / "mine").read_text() == "mine"
    assert is_instructed((here.folder / "CLAUDE.md").read_text())
    assert not [name for name in files(here.folder) if name.endswith(".tmp")]


@pytest.mark.parametrize("name", [".mcp.json", "AGENTS.md"])
def test_a_pipe_is_not_waited_for(here: Program, name: str) -> None:
    os.mkfifo(here.folder / name)
    assert f"{name} is no plain file" in here.error("init", timeout=60)
    assert files(here.folder) == {name}


def test_a_broken_file_with_nothing_of_ours_is_left_in_peace(here: Program) -> None:
    (path := here.folder / ".gemini/settings.json").parent.mkdir()
    path.write_text('{"theme": "x"')
    here.ok("init", "--client", "claude")
    assert str(path) not in here.ok("init", "--remove")
    path.write_text('{"mcpServers": {"sediment"')
    assert "take out sediment by hand" in here.error("init", "--remove")


def test_links_in_a_circle(here: Program) -> None:
    (here.folder / "CLAUDE.md").symlink_to("AGENTS.md")
    (here.folder / "AGENTS.md").symlink_to("CLAUDE.md")
    assert "circle" in here.error("init")
    assert files(here.folder) == {"CLAUDE.md", "AGENTS.md"}
    assert os.readlink(here.folder / "AGENTS.md") == "CLAUDE.md"


def test_permissions_stay(here: Program) -> None:
    for name, text, mode in ((".mcp.json", "{}", 0o600), ("CLAUDE.md", "# Ours\n", 0o664)):
        (here.folder / name).write_text(text)
        (here.folder / name).chmod(mode)
    here.ok("init")
    modes = [(here.folder / name).stat().st_mode & 0o777 for name in (".mcp.json", "CLAUDE.md")]
    assert modes == [0o600, 0o664]


def test_a_folder_that_cannot_be_written(here: Program) -> None:
    here.folder.chmod(0o500)
    assert ".mcp.json" in here.error("init", preexec_fn=heed_permissions)
    assert files(here.folder) == set()
    here.folder.chmod(0o700)


def test_clients_in_one_word_are_refused_with_how_to_name_them(here: Program) -> None:
    said = here.error("init", "--client", "codex,gemini", code=2)
    assert "'any'. See" in said
    assert files(here.folder) == set()


# For this user, and for nobody


def test_for_every_project(here: Program, unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "CLAUDE.md").write_text("# Mine\n")
    said = here.ok("init", "--global", "--client", "any")
    written = [tmp_path / ".claude" / "CLAUDE.md", tmp_path / ".codex" / "AGENTS.md"]
    before = [path.read_text() for path in written]
    assert all(is_instructed(text) for text in before)
    assert before[0].startswith("# Mine\n")
    assert files(here.folder) == set()
    here.ok("init", "--global", "--client", "any")
    assert [path.read_text() for path in written] == before
    command = shlex.split(said.splitlines()[-1].split(" -- ")[1])
    here.store("known to all", "--scope", "global")
    assert_starts(command, tmp_path, SEDIMENT_CACHE=str(unpacked))


def test_print_writes_nothing(here: Program, tmp_path: Path) -> None:
    before = files(tmp_path)
    said = here.ok("init", "--print")
    assert "would be created" in said
    added = {
        Path(file["path"]).name: file["added"] for file in here.json("init", "--print")["files"]
    }
    assert files(tmp_path) == before
    assert is_instructed(said)  # once, although it is for two files
    assert is_instructed(added["AGENTS.md"])
    assert added[".mcp.json"] in said
    here.ok("init")
    assert {name: data.decode() for name, data in contents(here.folder).items()} == added


def test_print_writes_nothing_for_every_project_either(here: Program, tmp_path: Path) -> None:
    before = files(tmp_path)
    for words in (("--print", "--global"), ("--global", "--print")):
        said = here.ok("init", *words)
        assert is_instructed(said)
        assert str(tmp_path / ".codex" / "AGENTS.md") in said
        assert "claude mcp add -s user sediment" in said
    assert "mcpServers" in here.ok("init", "--print", "--local")
    assert files(tmp_path) == before


@pytest.mark.parametrize("words", [("--local", "--global"), ("--global", "--local")])
def test_two_places_at_once_are_refused(here: Program, tmp_path: Path, words: tuple[str]) -> None:
    before = files(tmp_path)
    assert "has no effect with" in here.error("init", *words, code=2)
    assert "has no effect with" in here.error("hook", "--off", "--on", code=0)
    assert files(tmp_path) == before


def test_there_must_be_a_project_folder(here: Program, tmp_path: Path) -> None:
    assert "home folder" in here.at(tmp_path).error("init")
    assert "'team' is an id" in here.error("init", "--project", "team")
    assert files(here.folder) == set()


def test_an_odd_file_of_one_client_keeps_no_other_set_up(here: Program) -> None:
    (here.folder / ".gemini").mkdir()
    here.ok("init", "--client", "claude", "--client", "gemini")
    odd = '{"hooks": {}, "hooks": {"sediment": {}}}'
    (here.folder / ".gemini" / "settings.json").write_text(odd)
    told = here.error("init", "--remove")
    assert "settings.json cannot be changed" in told
    assert not (here.folder / ".mcp.json").exists()
    assert (here.folder / ".gemini" / "settings.json").read_text() == odd


@pytest.mark.parametrize(
    ("name", "text", "client"),
    [
        (".codex/config.toml", "sediment =\n", "codex"),
        (".codex/config.toml", "mcp_servers = 5  # no sediment\n", "codex"),
        (".mcp.json", '{"sediment"\n', "claude"),
    ],
)
def test_a_removal_names_the_file_that_it_cannot_read(
    here: Program, name: str, text: str, client: str
) -> None:
    (here.folder / name).parent.mkdir(exist_ok=True)
    (here.folder / name).write_text(text)
    assert str(here.folder / name) in here.error("init", "--client", client, "--remove")
    assert (here.folder / name).read_text() == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".claude/settings.json", '{"hooks": []}\n'),
        (".mcp.json", '{"mcpServers": []}\n'),
    ],
)
def test_where_nothing_of_ours_can_stand_there_is_nothing_to_remove(
    here: Program, name: str, text: str
) -> None:
    (here.folder / name).parent.mkdir(exist_ok=True)
    (here.folder / name).write_text(text)
    assert name in here.error("init", "--client", "claude")
    here.ok("init", "--client", "claude", "--remove")
    assert (here.folder / name).read_text() == text


def test_a_removal_leaves_an_empty_folder_that_a_link_names(here: Program) -> None:
    (here.folder / "shared").mkdir()
    (here.folder / ".claude").symlink_to("shared")
    here.ok("init", "--client", "claude")
    assert list((here.folder / "shared").iterdir())
    here.ok("init", "--client", "claude", "--remove")
    assert list((here.folder / ".claude").iterdir()) == []


def test_a_removal_for_every_project_leaves_folders_that_a_person_made(
    run_pyz: Run, tmp_path: Path, no_clients: str
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    env = {"HOME": str(home), "PATH": no_clients, "CODEX_HOME": str(elsewhere / "codex")}
    (home / "shared").mkdir(parents=True)
    (home / "dot").mkdir()
    (home / ".config").mkdir()
    (home / ".gemini").symlink_to("shared")
    (home / ".config" / "opencode").symlink_to("../dot")
    here = Program(run_pyz, tmp_path / "project", **env)
    names = ("codex", "gemini", "opencode", "cursor")
    here.ok("init", "--global", *(word for name in names for word in ("--client", name)))
    assert (home / ".cursor" / "mcp.json").exists()
    here.ok("init", "--global", "--remove")
    assert {name for name in files(home) if not name.startswith(".local")} == {
        "shared", "dot", ".config", ".gemini", ".config/opencode",
    }  # fmt: skip
    assert list((elsewhere / "codex").iterdir()) == []

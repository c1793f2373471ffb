"""Set up the clients of agents, and check that this works.

`init` tells clients how to start the server and the hooks, and agents when to use the memory;
`doctor --client` checks it. assets/clients.json has the files that each client reads,
assets/plugins what is put there, with the command `sediment` for this program.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import sediment as core
from sediment_ext import hooks, settings_files, systems
from sediment_ext import transcripts as sessions

CLIENT_TIMEOUT = 10.0  # s that `doctor --client` waits for a program's answer


def render_planned(answer: dict[str, Any]) -> Iterator[str]:
    """What `init` would add, the same text once, and where."""
    for added, files in itertools.groupby(answer["files"], lambda file: file["added"]):
        for file in files:
            would = "" if file["done"].startswith("has ") else "would be "
            yield f"{core.printable(file['path'])}: {would}{file['done']}"
        yield from [core.printable(added.rstrip()), ""] if added else []
    yield from map(core.printable, answer["to_do"])


def render_initialized(answer: dict[str, Any]) -> Iterator[str]:
    if answer["project"]:
        yield core.render_field("project", answer["project"])
        yield core.render_field("folder", answer["root"])
    yield from map(core.printable, [*answer["done"], *answer["to_do"]])


def program_command(database: Path) -> list[str]:
    """The command by which a client starts this program. It names no version: clients ask again
    about a changed hook."""
    if core.home() and database == core.default_database():
        return systems.this_program()
    return [*systems.this_program(), "--db", str(core.real_path(database))]


def _with_program(template: Any, program: list[str]) -> Any:
    """A template, or a part of it, with this program in place of the command `sediment`."""
    if isinstance(template, dict):
        filled = {key: _with_program(value, program) for key, value in template.items()}
        if template.get("command") == "sediment":
            words = [*program, *filled.pop("args")]
            is_hook = template.get("type") == "command"
            filled |= (
                systems.hook_handler(words) if is_hook else {"command": words[0], "args": words[1:]}
            )
        return filled
    if isinstance(template, list):
        parts = (program if x == "sediment" else [_with_program(x, program)] for x in template)
        return [*itertools.chain(*parts)]
    if not isinstance(template, str):
        return template
    if line := _HOOK_LINE.fullmatch(template):
        return (
            core.shell_line([*program, *line[1].split()], powershell=line[2] == systems.END_WELL)
            + line[2]
        )
    return template.removeprefix("plugin:sediment:")


# The exit code of a hook must not count: clients take some for a refusal, and Python ends with 2
# where the program is gone. cmd.exe, which Codex uses on Windows, needs the second form.
_HOOK_LINE = core.LazyPattern(rf"sediment (hook --client \w+)({systems.END_WELL}| \|\| exit 0)")
_PARTS = ("server", "hooks", "instructions")


class Client(core.NamedTuple):
    """A client, and its `facts` in assets/clients.json."""

    name: str
    facts: dict[str, Any]

    def home(self) -> Path:
        """The folder of its global settings."""
        return core.expand_home(sessions.client_folder(self.facts["home"]))

    def is_here(self) -> bool:
        """Whether the client seems to be installed."""
        command = self.facts.get("command")
        return bool(command) and (shutil.which(command) is not None or self.home().is_dir())

    def has_file(self, part: str) -> bool:
        """Whether a project has a file for its "server", "hooks" or "instructions"."""
        return any(part in file and "project" in file for file in self.facts["files"])

    def has_setting(self, fact: str, root: Path | None) -> bool:
        """Whether its settings show that our "plugin" is enabled, or that hooks are "off"."""
        if fact not in self.facts:
            return False
        file, keys, value = self.facts[fact].values()
        for folder in [self.home(), *([root / Path(self.facts["home"][-1]).name] if root else [])]:
            with contextlib.suppress(core.InvalidInput):
                if settings_files.setting_at(folder / file, keys) == value:
                    return True
        return False

    def added(self) -> Any:
        """The server that the client's own command added for every project, or None. Raises
        InvalidInput."""
        if "added" not in self.facts:
            return None
        places, keys = self.facts["added"].values()
        return settings_files.setting_at(core.expand_home(sessions.client_folder(places)), keys)

    def files(self, part: str, root: Path | None, program: list[str]) -> Iterator[tuple[Path, Any]]:
        """The files for its "server", "hooks" or "instructions", and what each needs: a value, or a
        text."""
        for file in self.facts["files"]:
            name = file.get("project" if root else "global")
            if not name or part not in file:
                continue
            path, text = (root or self.home()) / name, core.asset(file[part])
            if part == "instructions":
                yield path, settings_files.instructions_block(text, settings_files.TEXT_BLOCK)
            elif path.suffix == ".js":
                yield path, text.replace('["sediment"]', json.dumps(program), 1)
            else:
                value = _with_program(json.loads(text), program)
                if path.name == "opencode.json" and os.path.lexists(f"{path}c"):
                    path = path.with_suffix(".jsonc")
                if path.suffix == ".toml":
                    value = {"mcp_servers": value["mcpServers"]}
                yield path, value


def clients(names: Sequence[str] = ()) -> list[Client]:
    """The clients of these names; without names, those that are installed."""
    all_clients = (Client(*item) for item in json.loads(core.asset("clients.json")).items())
    return [one for one in all_clients if (one.name in names if names else one.is_here())]


def is_ours(name: str, found: Any, wanted: Any) -> bool:
    """Whether a server's or hook's value, or a plugin's text, runs a copy of this program."""
    if isinstance(wanted, str):
        return settings_files.plugin_removed(found, wanted) is None
    return settings_files.runs_ours(found, settings_files.word_of(name))


def _has_ours(path: Path, wanted: Any) -> bool:
    """Whether a file has any entry that runs a copy of this program."""
    with contextlib.suppress(core.InvalidInput):
        return any(
            entry[1] and is_ours(*entry) for entry in settings_files.file_entries(path, wanted)
        )
    return False


def _has_already(client: Client, part: str, root: Path | None, program: list[str]) -> str:
    """Why a part of a client needs no setting up; "" if it does."""
    if client.has_setting("plugin", root):
        return f"{client.facts['title']}: has the plugin sediment already"
    if part == "hooks" and root:
        for path, wanted in client.files(part, None, program):
            if _has_ours(path, wanted):
                why = f"{path}: has its hooks already, for every project"
                missing = _first_missing(settings_files.file_entries(path, wanted))
                return f"{why}, but {_advice_for(missing, client, None)}" if missing else why
    if part != "server" and _foreign_server(client, root, program):
        title = client.facts["title"]
        return f"{title}: without hooks and instructions, which need the server of this program"
    return ""


def _first_missing(entries: Iterable[tuple[str, Any, Any]]) -> str:
    """The first `missing_program` of a file's entries."""
    missing = (
        settings_files.missing_program(found, settings_files.word_of(name))
        for name, found, _ in entries
    )
    return next(filter(None, missing), "")


def _advice_for(missing: str, client: Client, root: Path | None) -> str:
    """What to do where a client's file, of a project or global, names a program that is gone."""
    where = "" if root else "--global "
    return f"names {missing}, which is not there: run `init {where}--client {client.name}`"


def _foreign_server(client: Client, root: Path | None, program: list[str]) -> str:
    """The file in which a client starts another program as `sediment`; "" if there is none."""
    found: list[tuple[str, Any]] = []
    with contextlib.suppress(core.InvalidInput):  # which is told where the file is to be changed
        for path, wanted in client.files("server", root, program):
            found += [
                (str(path), value) for _, value, _ in settings_files.file_entries(path, wanted)
            ]
        if not root and (value := client.added()):
            found.append((Path(client.facts["added"]["places"][0]).name, value))
    return next((file for file, value in found if _runs_another(value)), "")


def _runs_another(server: Any) -> bool:
    """Whether a server's value has a command, and that runs another program."""
    is_started = isinstance(server, dict) and bool(
        settings_files.command_of(server, "command", "args")
    )
    return is_started and not settings_files.runs_ours(server, settings_files.SERVE)


def _wanted_files(
    steps: Iterable[tuple[Client, str]], root: Path | None, program: list[str]
) -> tuple[dict[Path, Any], dict[Path, str]]:
    """What each file needs, links followed; and the files that may not be written, with the
    reason."""
    files: dict[Path, Any] = {}
    refused: dict[Path, str] = {}
    for client, part in steps:
        for path, wanted in client.files(part, root, program):
            try:
                target = core.place_to_write(path, root)
            except core.InvalidInput as error:
                refused[path] = str(error)
                continue
            files[target] = files.get(target, {}) | wanted if isinstance(wanted, dict) else wanted
    return files, refused


def _changes(
    files: dict[Path, Any],
    refused: dict[Path, str],
    remove: bool,
    keep_going: bool,
) -> tuple[list[settings_files.FileChange], list[str]]:
    """The changes of files, and errors. The first error is raised unless it is to `keep_going`."""
    changes = []
    errors = [why for p, why in refused.items() if not remove or "sediment" in core.plain_text(p)]
    if errors and not keep_going:
        raise core.InvalidInput(errors[0])
    for path, wanted in files.items():
        try:
            changes.append(settings_files.changed(path, wanted, remove))
        except core.InvalidInput as error:
            if not keep_going:
                raise
            errors.append(str(error))
    return [change for change in changes if change.done != settings_files.NOTHING_TO_REMOVE], errors


def initialize(
    memory: core.Memory,
    names: Sequence[str] = (),
    *,
    everywhere: bool = False,
    hooks: bool = True,
    remove: bool = False,
    write: bool = True,
) -> dict[str, Any]:
    """Set up clients (default: those installed) in a project or `everywhere`, or `remove` that. All
    files are read before one is written."""
    root = None if everywhere else _project_folder(memory)
    program = program_command(memory.database.path)
    chosen = clients(names or (core.CLIENTS if remove else ())) or clients(["any"])
    parts = [part for part in _PARTS if hooks or part != "hooks"]
    steps = [
        (client, part, "" if remove else _has_already(client, part, root, program))
        for client, part in itertools.product(chosen, parts)
    ]
    to_set_up = ((client, part) for client, part, why in steps if not why)
    files, refused = _wanted_files(to_set_up, root, program)
    changes, errors = _changes(files, refused, remove, keep_going=remove and write)
    answer: dict[str, Any] = {"clients": [client.name for client in chosen]}
    answer["to_do"] = list(_to_do(chosen, root, program, remove, hooks))
    if not write:
        rows = [{"path": str(path), "done": done, "added": new} for path, done, _, new in changes]
        return answer | {"files": rows}
    created = root is not None and not remove and memory.projects.current(create=True)
    answer |= {"project": created or None, "root": root and str(root)}
    done = list(dict.fromkeys(why for *_, why in steps if why))
    for change in changes:
        try:
            done.append(change.write(root))
        except core.InvalidInput as error:
            errors.append(str(error))
    if root and core.config_id(root):
        config = ".sediment/config: has the project's id, by which its memories are found"
        done.append(f"{config}; it stays" if remove else config)
    if errors:
        raise core.InvalidInput("; ".join([*done, *errors]))
    return answer | {"done": done}


def _project_folder(memory: core.Memory) -> Path:
    root, given = memory.projects.root, memory.projects.given
    if root is None:
        why = f"{core.shown_value(given)} is an id" if given else memory.projects.nowhere()
        raise core.InvalidInput(
            f"there is no project folder here ({why}): use --global, or change to one"
        )
    return root


def _client_to_do(
    client: Client, fact: str, root: Path | None, program: list[str]
) -> Iterator[str]:
    """The line of a client for what is "to_do" once it is set up, or to "undo" after a removal."""
    added = False
    try:
        added = not root and settings_files.runs_ours(client.added(), settings_files.SERVE)
    except core.InvalidInput as error:
        yield f"{client.facts['title']}: {error}"
    text = client.facts.get(fact, {}).get("project" if root else "global")
    if text and added == (fact == "undo"):
        yield text.format(server=core.shell_line([*program, "serve"]))


def _to_do(
    chosen: list[Client], root: Path | None, program: list[str], remove: bool, hooks: bool
) -> Iterator[str]:
    """What is left to the user: a line for each client, and one about earlier conversations."""
    for client in chosen:
        if remove:
            yield from _client_to_do(client, "undo", root, program)
        elif file := _foreign_server(client, root, program):
            advice = f"take out the server called sediment in {file}, or rename it"
            yield f"{client.facts['title']}: {advice}, and run `init` again"
        elif not client.has_setting("plugin", root):
            without = not hooks and "to_do_without_hooks" in client.facts
            fact = "to_do_without_hooks" if without else "to_do"
            yield from _client_to_do(client, fact, root, program)
    names = ",".join(
        client.name for client in chosen if client.name in sessions.transcripts()["formats"]
    )
    if names and not remove:
        words = [*program, "import", "--from", names, *(["--here"] if root else [])]
        yield f"To import earlier conversations: {core.shell_line(words)}"


# What doctor looks at


def check_clients(memory: core.Memory, names: Sequence[str]) -> dict[str, Any]:
    """Whether clients start the server and run the hooks: {healthy, checks, runs}."""
    root, program = memory.projects.root, program_command(memory.database.path)
    checks = [_check_server([*program, "serve"])]
    chosen = clients(names) if names else _present_clients(root, program)
    for client in chosen:
        checks += _check_client(client, root, program)
    if not chosen:
        advice = "none that `init` knows is installed, and none is set up here: run `init`"
        checks.append(core.Check("clients", "warning", advice))
    if off := ", ".join(sorted(hooks.hooks_off(memory))):
        checks.append(
            core.Check("hooks", "warning", f"off, by SEDIMENT_HOOKS=0 or `hook --off`: {off}")
        )
    runs = hooks.hook_runs(memory.database.path)
    runs = [run for run in runs if not names or run.get("client") in names]
    if runs or any("hooks" in file for client in chosen for file in client.facts["files"]):
        checks.append(_check_runs(runs))
    healthy = all(check.status != "broken" for check in checks)
    return {"healthy": healthy, "checks": [check._asdict() for check in checks], "runs": runs}


def _check_runs(runs: list[dict[str, Any]]) -> core.Check:
    """When a hook ran last, and how many of the last runs came too late."""
    if not runs:
        return core.Check("runs", "warning", "none has run yet")
    last = f"the last one ran at {runs[-1].get('at')}"
    if late := sum(map(hooks.is_late, runs)):
        took = f"took {core.HOOK_DEADLINE} s or longer and came too late"
        fault = f"{late} of the last {len(runs)} {took}"
        return core.Check("runs", "warning", f"{last}; {fault}")
    return core.Check("runs", "ok", last)


def _present_clients(root: Path | None, program: list[str]) -> list[Client]:
    """The clients that are installed, or set up in the project by a file of their own; without
    these, "any" if its file is set up."""

    def set_up(client: Client) -> Iterator[Path]:
        for part in ("server", "hooks") if root else ():
            files = client.files(part, root, program)
            yield from (path for path, wanted in files if _has_ours(path, wanted))

    (any_client,) = clients(["any"])
    shared = {*set_up(any_client)}
    found = [one for one in clients(core.CLIENTS) if one.is_here() or {*set_up(one)} - shared]
    return found or ([any_client] if shared else [])


def _check_client(client: Client, root: Path | None, program: list[str]) -> Iterator[core.Check]:
    if client.has_setting("off", root):
        yield core.Check(client.name, "warning", "its settings switch all hooks off")
    plugin = client.has_setting("plugin", root)
    if plugin:
        on_path = shutil.which("sediment") is not None
        where = "on the PATH" if on_path else "but no command sediment is on the PATH"
        yield core.Check(
            client.name, "ok" if on_path else "broken", f"its plugin is enabled, {where}"
        )
    parts = {part for file in client.facts["files"] for part in file}
    for part, status in (("server", "broken"), ("hooks", "warning")):
        if plugin or part not in parts:
            continue
        checks = list(_check_part(client, part, root, program))
        if part == "server":
            checks += _check_added(client)
        where = "" if client.has_file(part) else "--global "
        advice = f"not set up: run `init {where}--client {client.name}`"
        yield from checks or [core.Check(f"{client.name} {part}", status, advice)]
    if client.name == "codex":
        yield core.Check("codex trust", *_codex_trust(root))


def _check_part(
    client: Client, part: str, root: Path | None, program: list[str]
) -> Iterator[core.Check]:
    """A check for each file, of a project and global, with entries of a server or of hooks."""
    for folder in dict.fromkeys([root, None]):
        for path, wanted in client.files(part, folder, program):
            name = f"{client.name} {part}"
            try:
                entries = list(settings_files.file_entries(path, wanted))
            except core.InvalidInput as error:
                yield core.Check(name, "warning", f"{path} {error}")
                continue
            if any(found for _, found, _ in entries):
                status, fault = _check_entries(part, entries)
                if missing := _first_missing(entries):
                    status, fault = "broken", f", {_advice_for(missing, client, folder)}"
                yield core.Check(name, status, f"in {path}{fault}")


def _check_entries(part: str, entries: list[tuple[str, Any, Any]]) -> tuple[str, str]:
    """The status of a file's entries of a server or of hooks, and what is wrong."""
    if part == "server" and not is_ours(*entries[0]):
        return "broken", f" is another program: {core.shown_value(entries[0][1])}"
    missing = [event for event, found, _ in entries if not found]
    other = [event for event, found, value in entries if found not in (None, value)]
    fault = f", without {', '.join(missing)}" if missing else ""
    fault += f", other than `init` writes it: {', '.join(other)}" if other else ""
    return "warning" if fault else "ok", fault


def _check_added(client: Client) -> Iterator[core.Check]:
    """A check of the server that the client's own command added, if any."""
    name, how = f"{client.name} server", "added by its own command"
    try:
        found = client.added()
    except core.InvalidInput as error:
        yield core.Check(name, "warning", str(error))
        return
    if missing := settings_files.missing_program(found, settings_files.SERVE):
        yield core.Check(name, "broken", f"{how}, names {missing}, which is not there")
    elif settings_files.runs_ours(found, settings_files.SERVE):
        yield core.Check(name, "ok", how)
    elif found is not None:
        yield core.Check(name, "broken", f"{how} is another program: {core.shown_value(found)}")


def _check_server(command: list[str]) -> core.Check:
    """Whether this program answers as a server."""
    client = {"name": "sediment doctor", "version": core.__version__}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    start = time.monotonic()
    reply = ask(command, [("initialize", hello), ("tools/list", {})])
    tools = [tool["name"] for tool in reply.get("tools", ())]
    took = f"in {(time.monotonic() - start) * 1000:.0f} ms"
    if not tools:
        return core.Check("server", "broken", f"{core.shell_line(command)} does not answer {took}")
    return core.Check("server", "ok", f"answers {took} with {', '.join(tools)}")


def _codex_trust(root: Path | None) -> tuple[str, str]:
    """Status and text of what Codex says of its trust in our hooks."""
    if (codex := shutil.which("codex")) is None:
        return "warning", "unknown: codex is not on the PATH"
    folder = str(root or Path.home())
    hello = {"clientInfo": {"name": "sediment", "version": core.__version__}}
    requests = [("initialize", hello), ("hooks/list", {"cwds": [folder]})]
    folders = ask([codex, "app-server"], requests).get("data") or [{}]
    hooks = [
        hook for hook in folders[0].get("hooks", ()) if settings_files.runs_ours(hook, core.HOOK)
    ]
    if not hooks:
        return "warning", "unknown: Codex names no hooks of sediment here"
    untrusted = [hook for hook in hooks if hook.get("trustStatus") != "trusted"]
    if untrusted:
        events = ", ".join(sorted(str(hook.get("eventName")) for hook in untrusted))
        return "broken", f"not trusted, so not run: {events}; start codex, and /hooks"
    return "ok", f"{len(hooks)} hooks are trusted"


def ask(command: list[str], requests: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The result of the last of some JSON-RPC requests to a program; {} after CLIENT_TIMEOUT."""
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + "\n"
        for id, (method, params) in enumerate(requests, 1)
    ]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    pipes["stderr"] = subprocess.DEVNULL
    with contextlib.suppress(OSError), subprocess.Popen(command, **pipes) as process:
        timer = threading.Timer(CLIENT_TIMEOUT, process.kill)
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("".join(lines).encode())
            process.stdin.flush()
            for reply in map(core.parse_object, process.stdout):
                if reply.get("id") == len(lines):
                    return reply.get("result") or {}
        finally:
            timer.cancel()
            process.kill()
    return {}


@click.command("init")
@click.option("--local", "here", is_flag=True)
@click.option("--global", "everywhere", is_flag=True)
@click.option("--client", "names", multiple=True, type=click.Choice(core.CLIENTS), metavar="NAME")
@click.option("--hooks/--no-hooks", default=True)
@click.option("--new-project", is_flag=True)
@click.option("--remove", is_flag=True)
@click.option("--print", "only_print", is_flag=True)
@core.pass_shared
def init_command(
    shared: core.Context,
    names: tuple[str, ...],
    here: bool,
    only_print: bool,
    new_project: bool,
    **how: bool,
) -> None:
    """Set up the clients of agents."""
    with shared.memory() as memory:
        if new_project:
            memory.projects.start_anew()
        answer = initialize(memory, names, write=not only_print, **how)
        shared.show(answer, render_planned if only_print else render_initialized)

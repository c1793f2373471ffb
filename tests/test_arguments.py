"""An argument that would be ignored beside the others is an error, in every command."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sediment import COMPANIONS, Context, cli, counts

# The arguments of each command. Whoever adds one says in COMPANIONS what it goes with, then here
# that it is there.
ARGUMENTS = {
    "store": "content scope replace created_at into tags expires allow_secrets",
    "recall": "query limit min_score anyway as_of explain ranking source tags"
    " vector_weight text_weight candidates hub conversations",
    "expand": "id lines section",
    "index": "paths globs exclude include_archive remove scope allow_secrets",
    "watch": "paths debounce_ms",
    "note": "text folder allow_secrets",
    "compact": "path older_than command timeout dry_run",
    "status": "deep index",
    "list": "limit scope page oldest since until kind replaced never_recalled tags expiring"
    " stale_citations conversations",
    "get": "id",
    "forget": "ids",
    "history": "id",
    "undo": "id",
    "replace": "old new",
    "move": "id scope",
    "expire": "id when",
    "tag": "action names",
    "review": "",
    "graph": "id kind",
    "consolidate": "dry_run",
    "prune": "older_than scope confirmed all_machines dry_run purge",
    "doctor": "repair client",
    "backup": "path encrypt recipient passphrase_file passphrase_fd",
    "restore": "path identity passphrase_file passphrase_fd",
    "reindex": "",
    "stats": "verify",
    "import": "file origin since here dry_run scope allow_secrets identity passphrase_file"
    " passphrase_fd",
    "export": "file force encrypt recipient passphrase_file passphrase_fd",
    "init": "here everywhere names hooks new_project remove only_print",
    "hook": "off on client reads hooks",
    "serve": "watched address syncs",
    "browse": "no_open",
    "token": "action name reads",
    "model": "action target name",
    "sync": "place share share_global unshare status again leave erase watch with_parent quiet",
    "hub": "action person space place reads recall",
    "completion": "shell",
}
ARGUMENTS["search"] = ARGUMENTS["recall"]
LATER = {"json", "rows", "conversations", "encrypted", "plain"}  # modes that no argument makes


def parameters(command: str) -> dict[str, click.Parameter]:
    """The parameters of a command by name, without the general ones."""
    found = cli.commands[command].get_params(
        click.Context(cli.commands[command], **cli.context_settings)
    )
    own = {str(each.name): each for each in found if each.expose_value}
    return {name: each for name, each in own.items() if name != "help"}


def value_for(parameter: click.Parameter) -> str:
    """Something that a parameter takes."""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return str(kind.choices[0])
    if isinstance(kind, click.IntRange | click.FloatRange):
        return "60"
    return {"TIME": "2026", "AGE": "30d", "WHEN": "30d", "N": "0.5"}.get(
        parameter.metavar or "", "x"
    )


def words(command: str, given: dict[str, str]) -> list[str]:
    """A command line with these parameters, and whatever else is required before them."""
    options, places = [], []
    for name, parameter in parameters(command).items():
        if isinstance(parameter, click.Argument):
            if name in given or parameter.required:
                places.append(given.get(name) or value_for(parameter))
        elif name in given:
            is_flag = isinstance(parameter, click.Option) and parameter.is_flag
            value = given[name] or value_for(parameter)
            options.append(parameter.opts[-1] + ("" if is_flag else f"={value}"))
    return [*options, "--", *places]


def parse(command: str, given: dict[str, str]) -> str:
    """The error of a command line with these parameters; "" if there is none."""
    context = Context(None, None, False, False)
    try:
        cli.commands[command].make_context(command, words(command, given), obj=context)
    except click.UsageError as error:
        return error.format_message()
    return ""


def pairs() -> Iterator[tuple[str, str, str]]:
    """Each command that has modes, with each of its modes and parameters."""
    for command, modes in COMPANIONS.items():
        of_arguments = [mode for mode in modes if mode not in LATER or mode in parameters(command)]
        yield from itertools.product([command], of_arguments, parameters(command))


def test_every_argument_of_every_command_is_known() -> None:
    assert {name: " ".join(parameters(name)) for name in cli.commands} == ARGUMENTS


@pytest.mark.parametrize("command", COMPANIONS)
def test_what_goes_together_names_arguments_that_there_are(command: str) -> None:
    names = parameters(command).keys() | LATER
    for mode, rule in COMPANIONS[command].items():
        assert mode.partition("=")[0] in names | {""}
        assert {word.removeprefix("-") for word in rule.split()} <= names | {""}
    for name in parameters(command):
        assert any(counts(command, mode, name) for mode in ("", *COMPANIONS[command])), name


@pytest.mark.parametrize(("command", "mode", "name"), list(pairs()))
def test_an_argument_that_does_not_count_is_an_error(command: str, mode: str, name: str) -> None:
    chosen, _, value = mode.partition("=")
    error = parse(command, {name: ""} | ({chosen: value} if chosen else {}))
    modes = COMPANIONS[command]
    goes = counts(command, mode, name) and (name not in modes or counts(command, name, chosen))
    goes = goes or (name in modes and chosen in ("", name))
    assert ("has no effect" in error) == (not goes)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("hook capture", "HOOKS has no effect without --off or --on"),
        ("hook --off --on", "--off has no effect with --on"),
        ("sync --share team --unshare", "--share has no effect with --unshare"),
        ("sync --status --quiet", "--quiet has no effect with --status"),
        ("sync --erase", "--erase has no effect without --leave"),
        ("list --conversations --scope global", "--scope has no effect with --conversations"),
        ("doctor --repair --client claude", "--repair has no effect with --client"),
        ("index --exclude X", "--exclude has no effect without PATH"),
        ("index docs --remove --glob x", "--glob has no effect with --remove"),
        ("recall tea --hub --as-of 2026", "--as-of has no effect with --hub"),
        ("recall tea --anyway --min-score 0.3", "--min-score has no effect with --anyway"),
        ("expand a --lines 3 --section", "--lines has no effect with --section"),
        ("graph a --format dot --json", "--format has no effect with --json"),
        ("--json graph a --format dot", "--format has no effect with --json"),
        ("prune --purge --older-than 3d", "--older-than has no effect with --purge"),
        ("export --force", "--force has no effect without FILE"),
        ("export - --force", "--force has no effect with -"),
        ("export --recipient age1", "--recipient has no effect with a file that is not encrypted"),
        ("backup b --passphrase-fd 3", "--passphrase-fd has no effect with a file that is not enc"),
        ("restore rows.jsonl --identity k", "--identity has no effect with a file that is not enc"),
        (
            "export x --encrypt --recipient age1 --passphrase-fd 3",
            "--passphrase-fd has no effect w",
        ),
        ("export --encrypt --json", "neither JSON nor text"),
        ("import rows.jsonl --identity k", "--identity has no effect with rows"),
        ("import rows.jsonl --here", "--here has no effect with rows"),
        ("import --from claude --allow-secrets", "--allow-secrets has no effect with conversa"),
        ("token --reads", "--reads has no effect with list"),
        ("hub add ann team --recall", "--recall has no effect with add"),
        ("store tea --into a.md --replace 4", "--replace has no effect with --into"),
        ("expand 3fa85f64 --lines 0 --section", "--lines has no effect with --section"),
        ("compact --timeout 3", "--timeout has no effect without --with or --dry-run"),
        ("init --local --global", "--local has no effect with --global"),
        ("--version list", "list has no effect with --version"),
    ],
)
def test_what_would_be_ignored_is_named_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"content": "tea"}\n')
    done = CliRunner().invoke(cli, ["--db", "new/memory.db", *words.split()])
    assert (done.exit_code, told in done.output) == (2, True), done.output
    assert not Path("new").exists()

"""The help of commands and of their options, from assets/help.md."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import click

import sediment as core


class HelpPage(core.NamedTuple):
    """The help of a command."""

    group: str  # the heading above the command in the list of commands
    text: str
    options: dict[str, str]  # by their long names
    end: str  # examples and related commands


_OPTION_HELP = re.compile(r"^- `(--[\w-]+)`: (.*\n(?:  .*\n)*)", re.MULTILINE)
_GENERAL_HELP = "Every command also takes --db FILE, --project ID, --json and --verbose."


@functools.cache
def help_pages() -> dict[str, HelpPage]:
    """The help of each command, in the order of assets/help.md."""
    pages = {}
    for part in re.split(r"^# ", core.asset("help.md"), flags=re.MULTILINE)[1:]:
        group, *rest = re.split(r"^## (\w+)\n", part, flags=re.MULTILINE)
        for name, page in zip(rest[::2], rest[1::2], strict=True):
            text, examples, end = _OPTION_HELP.sub("", page).partition("Examples:\n")
            options = {
                option: " ".join(about.split()) for option, about in _OPTION_HELP.findall(page)
            }
            end = f"\b\n{examples}{end.rstrip()}"  # keeps the lines of examples
            pages[name] = HelpPage(group.strip(), text.strip(), options, end)
    return pages


def describe(command: click.Command) -> None:
    """Give a command its help."""
    page = help_pages()[str(command.name)]
    command.help, command.epilog = page.text, page.end


def own_options(command: click.Command, ctx: click.Context) -> list[click.Option]:
    """The options of a command without the general ones, with their help."""
    page = help_pages()[str(command.name)]
    params = [each for each in command.get_params(ctx) if each.expose_value]
    options = [each for each in params if isinstance(each, click.Option)]
    for option in options:
        option.help = page.options.get(option.opts[-1])
    return options


def write_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """The section about a command's options."""
    records = [option.get_help_record(ctx) for option in own_options(command, ctx)]
    if shown := [record for record in records if record]:
        with formatter.section("Options"):
            formatter.write_dl(shown, col_max=24)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(_GENERAL_HELP)


def write_commands(commands: dict[str, Any], formatter: click.HelpFormatter) -> None:
    """The list of commands, by groups."""
    pages = help_pages()
    width = max(map(len, pages))
    limit = formatter.width - width - 4
    for group, names in itertools.groupby(pages, lambda name: pages[name].group):
        with formatter.section(group):
            formatter.write_dl(
                [(f"{name:{width}}", commands[name].get_short_help_str(limit)) for name in names]
            )

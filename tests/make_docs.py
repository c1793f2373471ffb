"""Write what the documentation takes from the program: run `make docs` after a change of either.

- `docs/commands.md` is the program's own help.
- A block ```console holds a session. Each of its commands is run, all of a page in one empty folder
  and with one empty memory, and the output below a command is renewed where more has changed than
  ids, dates, times, or scores by less than SCORES_DIFFER.
- `docs/terminal.svg`, the picture in the README, shows the session of the page PICTURE.

`tests/test_docs.py` fails where this would write anything.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))

from sediment import cli  # noqa: E402
from sediment_ext.help_pages import help_pages  # noqa: E402

PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
WIDTH = 78  # columns of help, as in a terminal of 80
PICTURE = DOCS / "projects.md"  # whose session the picture shows

_SESSION = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ ((?:\\\n|.)*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)
_ID = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b|\b[0-9a-f]{8}\b"
)
_SCORE = re.compile(r"^\d\.\d\d(?=  )", re.MULTILINE)
SCORES_DIFFER = 0.1  # less is no reason to renew a page, and differs from machine to machine
_MASKS = (
    (_ID, "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:T[\d:.]+(?:Z|[+-]\d\d:\d\d))?"), "DATE"),
    (_SCORE, "SCORE"),
    (re.compile(r"^\(\d+ weak match.*\n| \(\d+ weak match.*?\)", re.MULTILINE), ""),
    (re.compile(r"(?<=- )\d\d:\d\d(?= )"), "TIME"),
    (re.compile(r"\(\d+\.\d+ s(?:, \d+ a second)?\)"), "TIME"),
)


# The program's help


def commands() -> str:
    """The page of all commands."""
    with click.Context(cli, info_name="sediment", **cli.context_settings) as context:
        sections = [_section(name, cli.commands[name], context) for name in help_pages()]
    return "\n".join(
        [
            "# Commands",
            "",
            "The same text as `sediment COMMAND --help`. `make docs` writes this page.",
            "",
            *_contents(),
            "",
            _section("sediment", cli, None),
            *sections,
        ]
    )


def _contents() -> list[str]:
    """A line of links for each group of commands."""
    groups: dict[str, list[str]] = {}
    for name, page in help_pages().items():
        groups.setdefault(page.group, []).append(f"[{name}](#{name})")
    return [f"- {group}: {', '.join(links)}" for group, links in groups.items()]


def _section(name: str, command: click.Command, parent: click.Context | None) -> str:
    settings = {"terminal_width": WIDTH, **command.context_settings}
    with click.Context(command, info_name=name, parent=parent, **settings) as context:
        return f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"


# Sessions


class Session:
    """A folder and a memory in which the commands of one page run, one after the other."""

    def __init__(self, folder: Path, program: list[str], env: dict[str, str]) -> None:
        self._ids: dict[str, str] = {}  # of the page, and as they are here
        self._folder = folder / "project"
        tools = folder / "bin"
        for made in (self._folder, tools):
            made.mkdir()
        words = " ".join(f"'{word}'" for word in program)
        (tools / "sediment").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (tools / "sediment").chmod(0o755)
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        self._env = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": str(folder), **env, "PATH": path}

    def run(self, command: str) -> str:
        """What a command prints, in which ids are those of this memory."""
        done = subprocess.run(
            ["bash", "-c", _ID.sub(self._here, command)],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return done.stdout

    def _here(self, found: re.Match[str]) -> str:
        begins = [here for there, here in self._ids.items() if there.startswith(found[0])]
        return begins[0] if begins else found[0]

    def renewed(self, session: str) -> str:
        """The session with the outputs of now, where they differ in more than what is masked."""
        return _COMMAND.sub(self._renewed, session)

    def _renewed(self, part: re.Match[str]) -> str:
        command, shown = part.groups()
        printed = re.sub(" +$", "", self.run(command), flags=re.MULTILINE)
        self._ids.update(zip(_ID.findall(shown), _ID.findall(printed), strict=False))
        if says_the_same(shown, printed):
            return part[0]
        there = {here: there for there, here in self._ids.items()}
        printed = _ID.sub(lambda found: there.get(found[0], found[0]), printed)
        return f"$ {command}{printed}"


def says_the_same(shown: str, printed: str) -> bool:
    """Whether two outputs differ only in ids, dates, times, and a little in scores."""
    scores = ([float(score) for score in _SCORE.findall(text)] for text in (shown, printed))
    differ = (abs(one - other) for one, other in zip(*scores, strict=False))
    return _masked(shown) == _masked(printed) and max(differ, default=0) < SCORES_DIFFER


def _masked(text: str) -> str:
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return text


def renewed(page: str, session: Session) -> str:
    """A page with the sessions of now."""
    return _SESSION.sub(lambda found: session.renewed(found[0]), page)


# The picture


def drawn(page: str) -> str:
    """An SVG of a terminal with the first session of a page."""
    lines = next(_SESSION.finditer(page))[0].splitlines()
    width = max(map(len, lines)) * 8.43 + 40
    height = len(lines) * 20 + 62
    texts = [
        f'<text x="20" y="{58 + 20 * row}" class="{"typed" if line[:2] == "$ " else "said"}">'
        f"{html.escape(line)}</text>"
        for row, line in enumerate(lines)
        if line.strip()
    ]
    dots = [
        f'<circle cx="{22 + 18 * index}" cy="20" r="6" fill="{color}"/>'
        for index, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}"'
            f' width="{width:.0f}" height="{height}" role="img">',
            "<style>text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
            ".typed{fill:#fff;font-weight:bold}.said{fill:#b8c4d0}</style>",
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#1d232b"/>',
            *dots,
            *texts,
            "</svg>",
            "",
        ]
    )


# All of it


def main() -> None:
    pyz = Path(os.environ.get("SEDIMENT_PYZ", ROOT / "dist" / "sediment.pyz")).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        env = {"SEDIMENT_CACHE": str(Path(scratch, "cache"))}

        def session(name: str) -> Session:
            folder = Path(scratch, name)
            folder.mkdir()
            return Session(folder, [sys.executable, str(pyz)], env)

        (DOCS / "commands.md").write_text(commands(), "utf-8")
        for page in PAGES:
            text = page.read_text("utf-8")
            page.write_text(renewed(text, session(page.stem)), "utf-8")
        (DOCS / "terminal.svg").write_text(drawn(PICTURE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()

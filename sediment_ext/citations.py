"""Whether what memories name of their project's files is still there: paths, lines and quotes.

A citation is a path with a folder in it, or a path and a line, as src/x.py, x.py:12 and
src/x.py:12. What stands in backticks or quotes beside it must be in the file, or near that line.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from pathlib import Path
from typing import Any

import sediment as core

CITED_MAX = 5  # citations of one memory: a look at each takes 50 µs
CITED_TEXT = 20_000  # characters of a memory in which they are looked for
CITED_FILE = 1_000_000  # bytes of a file that is read; of a larger one only whether it is there
CITED_BESIDE = 80  # characters between a citation and what it quotes, in the same line
CITED_DRIFT = 3  # lines that a quoted one may have moved

_CITATION = core.LazyPattern(
    r"(?<![\w./\\:@~-])((?:\.?[\w-][\w.-]*/)*\.?[\w-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,7})"
    r"(?::([1-9]\d{0,6}))?(?![\w/]|\.\w)"
)
_QUOTE = core.LazyPattern(r"`([^`\n]{3,200})`|\"([^\"\n]{3,200})\"|“([^”\n]{3,200})”")


def gone_of(projects: core.Projects, row: dict[str, Any]) -> list[str]:
    """The citations of a memory that no longer hold; none where its project is not here."""
    text = row["content"][:CITED_TEXT]
    cited = {match[0]: match for match in _CITATION.finditer(text) if "/" in match[1] or match[2]}
    root = _root_of(projects, row["project_id"]) if cited else None
    if root is None:
        return []
    first = itertools.islice(cited.items(), CITED_MAX)
    return [named for named, match in first if not _holds(root, text, match)]


def _root_of(projects: core.Projects, project: str) -> Path | None:
    """The folder of a project on this machine."""
    if project == projects.current() and projects.root:
        return projects.root
    sql = "SELECT location FROM projects WHERE project_id = ?"
    keys = (core.KEY_FOLDER.fullmatch(key) for (key,) in projects.database.rows(sql, project))
    return next((Path(key[1]) for key in keys if key and os.path.isdir(key[1])), None)


def _holds(root: Path, text: str, match: re.Match[str]) -> bool:
    """Whether a citation holds, as far as can be told: what is outside of the project, of another
    one or too large is not looked at."""
    top, path = core.real_path(root), core.real_path(root / match[1])
    if not core.is_in(path, top):
        return True
    try:
        facts = os.stat(path)
    except OSError:  # else it may be a path of another project, or short for a longer one
        return "/" not in match[1] or not os.path.isdir(top / match[1].partition("/")[0])
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > CITED_FILE:
        return True
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return True
    line, quotes = int(match[2] or 0), _quotes(text, match)
    if line > len(lines):
        return False
    near = lines[max(0, line - 1 - CITED_DRIFT) : line + CITED_DRIFT] if line else lines
    said = _plain("\n".join(near))
    return not quotes or any(quote in said for quote in quotes)


def _quotes(text: str, match: re.Match[str]) -> list[str]:
    """What a memory quotes beside a citation, in its line."""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    end = len(text) if end < 0 else end
    found = []
    for quote in _QUOTE.finditer(text, max(start, match.start() - 200 - CITED_BESIDE), end):
        apart = max(match.start() - quote.end(), quote.start() - match.end())
        said = next(filter(None, quote.groups()))
        if apart <= CITED_BESIDE and not _CITATION.fullmatch(said):
            found.append(_plain(said).removesuffix("()"))
    return found


def _plain(text: str) -> str:
    """A text with one space for each gap: a formatter may have moved it."""
    return " ".join(text.split())


def stale_rows(projects: core.Projects, where: str, values: tuple[Any, ...]) -> str:
    """The numbers of the rows, of those that a condition selects, whose citations no longer hold,
    with commas."""
    sql = f"SELECT {core.ITEM_COLUMNS} {where} AND i.content GLOB '*[/:]*'"
    rows = map(core.item_from, projects.database.rows(sql, *values))
    return ", ".join(str(row["seq"]) for row in rows if core.citations_gone(projects, row))

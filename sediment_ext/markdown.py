"""Markdown: its headings and what stands under each, and the parts of a file, as it is indexed."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator

import sediment as core

_ABOUT_MAX = 240  # characters of what a file's name and front matter say; a description has 160
# A block or span of code, in which comments are text, or the beginning of a comment.
CODE_OR_COMMENT = core.LazyPattern(
    r"^[ \t]*(?P<fence>`{3,}+(?=[^`\n]*$)|~{3,}+).*\n(?:.*\n)*?"
    r"(?:[ \t]*(?P=fence)[`~]*[ \t]*$|.*\Z)"
    r"|(?<!`)(?P<ticks>`++).{0,500}?(?<!`)(?P=ticks)(?!`)|(?<!\\)<!--",
    re.MULTILINE,
)
_BLANK_LINES = core.LazyPattern(r"\n(?:[ \t]*\n){2,}")
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_NTH = r"\d\d?(?:st|nd|rd|th)?"
_FULL_DAY = (
    rf"(?<![^\W_])(\d{{4}}-\d\d-\d\d|{_MONTH} {_NTH},? \d{{4}}"
    rf"|{_NTH} (?:of )?{_MONTH},? \d{{4}})(?![^\W_])"
)
_DAY_FIRST = core.LazyPattern(rf"^[\W_]*{_FULL_DAY}", re.IGNORECASE)
_DAY_LAST = core.LazyPattern(rf"{_FULL_DAY}[\W_]*(?:\[\w+\]\W*)?$", re.IGNORECASE)  # [YANKED]
_ABOUT_KEYS = ("title", "alias(?:es)?", "tags?", "description")
# It has a key: without one, two lines of "---" are rules with text between them. What has a space
# may be prose and no key: then another key follows, all lines are of YAML, and none is a sentence.
_KEY = r"[\w\"'.-]+[ \t]*:(?:[ \t\r].*)?\n"
_SPACED_KEY = r"[\w\"'][\w\"'.-]*(?: [\w\"'.-]+){1,2}[ \t]*:(?:[ \t].*[^.!?\s])?[ \t\r]*\n"
_BELOW_KEY = r"(?:(?:(?:[ \t]|- |#).*|\r?)\n)*+"
_YAML_FRONT = (
    rf"---[ \t\r]*\n(?:[ \t]*#.*\n)*(?:{_KEY}(?:.*\n)*?"
    rf"|{_SPACED_KEY}{_BELOW_KEY}(?:(?:{_SPACED_KEY}|{_KEY}){_BELOW_KEY})+?)(?:---|\.\.\.)"
)
_TOML_FRONT = (
    r"\+\+\+[ \t\r]*\n(?:[ \t]*(?:#.*|\r?)\n)*(?:[\w\"'.-]+[ \t]*=|\[).*\n(?:.*\n)*?\+\+\+"
)
FRONT_MATTER = core.LazyPattern(rf"\s*(?:{_YAML_FRONT}|{_TOML_FRONT})[ \t\r]*(?:\n|\Z)")
# A line that only a program has in its first column.
PROGRAM_LINE = core.LazyPattern(
    r"#!/|from [\w.]+ import |import [\w., ]+\s*$|#include [<\"]|(?:async )?def \w+ *\("
    r"|(?:pub |export )?(?:fn|func|function) \w+ *[(<]|class \w+[\w(), .=]*[:{]\s*$"
)
_SUBHEADING = core.LazyPattern(r"#{2,6} ")
_FENCE = core.LazyPattern(r"\s*(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = core.LazyPattern(r" {0,3}(#{1,6})(?:[ \t]+(?=\S)|\s*$)")
_UNDERLINE = core.LazyPattern(r" {0,3}(={2,}|-{2,})\s*$")
# A line that an underline below makes a heading: no list item, quotation, table or rule.
_TITLE = core.LazyPattern(r" {0,3}(?!\d+[.)]\s|[-*+>|=])\S")
_LIST_ITEM = core.LazyPattern(r" {0,3}(?:[-*+]|\d{1,9}[.)])[ \t]+")


class Heading(core.NamedTuple):
    start: int
    end: int
    level: int
    title: str


def markdown_sections(text: str) -> list[core.Chunk]:
    front = FRONT_MATTER.match(text)
    start = body = front.end() if front else 0
    sections = [core.Chunk(0, start, "")]
    path: list[Heading] = []
    for heading in headings_in(text, start):
        # A heading with nothing under it means nothing alone: it stays with the next one.
        if text[body : heading.start].strip():
            sections.append(core.Chunk(start, heading.start, _heading_path(path)))
            start = heading.start
        while path and path[-1].level >= heading.level:
            path.pop()
        path.append(heading)
        body = heading.end
    return [*sections, core.Chunk(start, len(text), _heading_path(path))]


def headings_in(text: str, begin: int = 0) -> Iterator[Heading]:
    """The headings after `begin`, both "# " and underlined ones, but for those in list items."""
    above: tuple[int, str] | None = None  # a paragraph of one line: an underline may follow
    blank = True  # whether a paragraph can begin in this line
    margin = 4  # from this column on, a line belongs to the list item above, or is code
    for start, line in unfenced_lines(text, begin):
        end = start + len(line)
        found = None
        inside = len(line) - len(line.lstrip(" ")) >= margin
        if line.strip() and not inside:
            margin = item.end() if (item := _LIST_ITEM.match(line)) else 4
        if not inside and (mark := _HEADING.match(line)):
            found = Heading(start, end, len(mark[1]), _heading_title(line[mark.end() :]))
        elif above and (mark := _UNDERLINE.match(line)):
            level = 1 if mark[1][0] == "=" else 2
            found = Heading(above[0], end, level, _heading_title(above[1]))
        if found:
            yield found
        begins = blank and not (found or inside)
        above = (start, line) if begins and _TITLE.match(line) else None
        blank = bool(found or _UNDERLINE.match(line)) or not line.strip()


def unfenced_lines(text: str, begin: int = 0) -> Iterator[tuple[int, str]]:
    """Each line with its offset, lines of fenced code as empty ones."""
    fence = ""
    for start, line in core.lines_with_start(text, begin):
        mark = _FENCE.match(line)
        yield start, "" if fence or mark else line
        if not fence:
            fence = mark[1] if mark else ""
        elif mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
            fence = ""


def _heading_title(line: str) -> str:
    title = line[: 2 * core.CONTEXT_MAX].strip()
    unmarked = title.rstrip("#")
    return unmarked.rstrip() if unmarked.endswith((" ", "\t")) else title


def _heading_path(path: list[Heading]) -> str:
    return clip_path(" > ".join(clip(heading.title) for heading in path if heading.title))


def clip(label: str, size: int = 60) -> str:
    """A name in a context, cut to so many characters."""
    return label if len(label) <= size else label[:size].rstrip() + "..."


def clip_path(path: str) -> str:
    """The end of a long path: its last names say most about the chunk."""
    return path if len(path) <= core.CONTEXT_MAX else "..." + path[3 - core.CONTEXT_MAX :]


def is_markdown(text: str) -> bool:
    """Whether it has headings outside code fences, and no more program lines than "## ": in half
    the languages "# " begins a comment."""
    if not next(headings_in(text), None):
        return False
    lines = [line for _, line in unfenced_lines(text)]
    subheadings = sum(1 for line in lines if _SUBHEADING.match(line))
    return subheadings >= sum(1 for line in lines if PROGRAM_LINE.match(line))


class Part(core.NamedTuple):
    """A chunk of a file: its text, its context, its first and last line, counted from 1, and the
    date in a heading above it, in unix seconds."""

    content: str
    context: str
    first: int
    last: int
    day: int | None = None


def split_file(text: str, kind: str, fits: Callable[[str], bool], name: str = "") -> list[Part]:
    """The parts of a file, cut at every heading of markdown, however short the file is. Its name
    and what its front matter says of it are context of all."""
    shown = visible(text) if kind == "markdown" else text
    newlines = [at for at, character in enumerate(shown) if character == "\n"]
    headings = list(_dates_of_headings(shown)) if kind == "markdown" else []
    parts = []
    about = _about(text, name) if kind == "markdown" else name
    for start, end, context in core.chunks_of(shown, kind, fits, about):
        lines = bisect_left(newlines, start) + 1, bisect_left(newlines, end - 1) + 1
        above = bisect_left(headings, end, key=lambda heading: heading[0])
        day = headings[above - 1][1] if above else None
        parts.append(Part(_BLANK_LINES.sub("\n\n", shown[start:end]), context, *lines, day))
    return parts


def _about(text: str, name: str) -> str:
    """The name of a markdown file, and its title, other names, tags and description."""
    found = FRONT_MATTER.match(text)
    front = found[0] if found else ""
    values = (value for key in _ABOUT_KEYS for value in _front_values(front, key))
    return clip(", ".join(dict.fromkeys(filter(None, [name, *values]))), _ABOUT_MAX)


def _front_values(front: str, key: str) -> Iterator[str]:
    """The text or the list that a key of a front matter has, in YAML or TOML."""
    found = re.search(rf"(?mi)^{key}[ \t]*[:=](.*(?:\n(?:[ \t]|- ).*)*)", front)
    for value in re.split(r"[\[\],\n]", found[1]) if found else ():
        plain = value.strip(" \t\r\"'-|>#")
        yield "" if plain == "null" else plain


def _dates_of_headings(text: str) -> Iterator[tuple[int, int | None]]:
    """Where each heading begins, and its date, or that of the nearest one it stands under."""
    path: list[tuple[int, int | None]] = []
    for heading in headings_in(text):
        while path and path[-1][0] >= heading.level:
            path.pop()
        day = _date_in_title(heading.title) or (path[-1][1] if path else None)
        path.append((heading.level, day))
        yield heading.start, day


def _date_in_title(title: str) -> int | None:
    """The day, in unix seconds, that a title begins or ends with, as in daily notes, records of
    decisions and changelogs."""
    for found in filter(None, (_DAY_FIRST.search(title), _DAY_LAST.search(title))):
        with contextlib.suppress(core.InvalidInput):  # the 40th of May
            return core.parse_period(found[1].lower())[0]
    return None


def visible(text: str) -> str:
    """Markdown without front matter and comments; every line keeps its number."""
    front = FRONT_MATTER.match(text)
    start = position = front.end() if front else 0
    parts = ["\n" * text.count("\n", 0, start)]
    last_close = text.rfind("-->")  # a comment that is never closed is none
    while found := CODE_OR_COMMENT.search(text, position):
        position = found.end()
        if found[0] == "<!--" and position <= last_close:
            end = text.index("-->", position) + 3
            parts += [text[start : found.start()], "\n" * text.count("\n", position, end)]
            start = position = end
    return "".join([*parts, text[start:]])

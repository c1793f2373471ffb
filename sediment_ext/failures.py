"""The known fix of an error: what a hook shows when a tool of the agent has failed.

Memory is asked by the lines that tell the error apart, without what differs from run to run. Only a
memory that is about a fault, and has the error's own words, is shown: most errors get none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import sediment as core

ERROR_TAIL = 8_000  # characters at the end of an output that are read: tools tell their errors last
ERROR_LINES = 60  # of these the last lines
TELLING_LINES = 12  # of these the last that tell something
LINE_MOST = 300  # characters of one line
QUERY_MOST = 2_000  # characters that memory is asked by
FIX_CANDIDATES = 10  # memories that are compared with the error word by word
# How much a memory must have to do with an error whose words it has: with two telling words in one
# place, or one in a quotation of QUOTED words; with one or two apart. Of 107 errors of common tools
# none got one of 61 memories about other things; of 15 fixes that these numbers were set on, all.
FIX_LEAST, FIX_LEAST_APART, QUOTED = 0.4, 0.55, 3

_FAULT_WORDS = (
    r"error|fail|fatal|denied|cannot|can't|could not|couldn't|unable|not found|no such|exception|"
    r"invalid|missing|unexpected|undefined|refused|time[sd]? ?out|killed|abort|panic|unsupported|"
    r"does(?: not|n't)|overflow|conflict|reject|expired|unauthorized|already|no matching|"
    r"out of memory|no space|unbound"
)
# A line of an output that tells an error, and a memory that tells of one.
_ERROR = core.LazyPattern(
    rf"(?i:{_FAULT_WORDS}|unknown|not recognized|is not|violates|locked|no rule|no solution)"
    r"|\b(?:E|TS)\d{3}"
)
_ABOUT_FAULT = core.LazyPattern(
    rf"(?i:{_FAULT_WORDS}|crash|broken?\b|\bhang|complain|refuse|exit code|\bfix|solved|solution|"
    r"workaround|happens|caused|turned out|fehler|fehlgeschlagen|scheiter|behoben|lösung|erreur|"
    r"échou|corrig|erro\b|errore|falla|falha|soluci|ошибк|исправ|错误|报错|失败|解决|修复|エラー|失敗|解決)"
    r"|\b(?:E|TS)\d{3,}|\bERR_|\bE[A-Z]{5,}\b|[a-z]Error\b"
)
_FRAME = core.LazyPattern(  # a line of a stack or of quoted source, or one without words
    r"^\s*(?:at\s.*[:(]\d|File \"|\d+\s*\||\|\s|-->|\^|~+\^?|\S+\.\w+:\d+: in\b|#\d+ 0x|goroutine )"
    r"|^[\W\d_]*$"
)
# What differs from run to run, and what takes its place: of a path its last name stays.
_VARYING = [
    (core.LazyPattern(pattern), put)
    for pattern, put in (
        (r"\w+://\S+|\b[\w.-]+@(?:[\w-]+\.)+[a-z]+\b|\b\w+(?:Error|Exception)\b", " "),
        (r"\b\d{4}-\d\d-\d\d[T ]?[\d:.,Z_-]*|\b\d\d:\d\d(?::\d\d)?\S*", " "),
        (r"(?:[\w.~@+-]*[/\\])+([\w.@+-]*)", r" \1 "),
        (r"\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*\d)[0-9a-f]{7,}(?:-[0-9a-f]+)*\b", " "),
        (r"(?<=\w)[:(\[]\d+(?:[:,]\d+)*[)\]]?:?", " "),
        (r"\bv?\d+(?:\.\d+)+\S*", " "),
    )
]
_COLOUR = core.LazyPattern(r"\x1b\[[0-9;?]*[A-Za-z]")
_PROGRAM = core.LazyPattern(r"(?:^|[;&|(]\s*|sudo )([\w.-]+)")
_WORD = core.LazyPattern(r"[^\W\d_]{3}")
# Words of errors of any kind: four or more of the 107 errors have each, or it is as common a word.
_COMMON = """
error failed not found no such file directory could cannot can unable fatal code exit please run
running execute find installation installed packages package module modules connection connect
exists exist permission denied creating created compilation compile compiled requirement required
requires use used using build building getting project dependencies because make git commit
processes process name named command note did does do done changed changes line update missing main
response contain failures failure importing import call terminated version problem due fix value
requests request expected got type target specify path index starting start started more status
remote access unknown key stopping stop so if see provider exception left when argument arguments
complete completed successfully log before aborted abort setting set hook sure runtime previous
result ignored some must repository invalid operation assert during while refused which last open
opened object most hint likely to is the in for from a of or on at s this with e your its and you be
by an return returned detailed are it that there but has have had was were been here all any other
than then up out into as would should will may might we our us i they them their what how traceback
recent recently first one two three new old add added get try again check help info warning warnings
read write data text test tests py js ts json sh app server lib src already unexpected undefined
timeout timed killed
"""


class Failure(core.NamedTuple):
    """A tool's failure: what was run, if it is known, and what came out."""

    command: str
    output: str


def failure_of(fields: dict[str, Any]) -> Failure | None:
    """The failure that the input of a hook after a tool tells of; None where none is told. Clients
    that tell no exit code call it after a success, too: then the output must have an error's
    words."""
    given = fields.get("tool_input")
    command = fields.get("command") or (given.get("command") if isinstance(given, dict) else "")
    command = command if isinstance(command, str) else ""
    if told := "\n".join(_texts([fields.get("error"), fields.get("error_message")])):
        return Failure(command, told[-ERROR_TAIL:])
    said = fields.get("tool_response") or fields.get("tool_output")
    if isinstance(said, str) and said.startswith("{"):
        said = core.parse_object(said) or said
    output = "\n".join(_texts([said]))[-ERROR_TAIL:]
    return Failure(command, output) if _ERROR.search(output) else None


def _texts(values: list[Any]) -> Iterator[str]:
    """The texts in a tool's answer, in the order of their members."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _texts([*value.values()])


def telling_lines(output: str) -> list[str]:
    """The lines by which an error is told apart: those that name it, and the last two."""
    lines: dict[str, bool] = {}
    for line in _COLOUR.sub("", output).splitlines()[-ERROR_LINES:]:
        if _FRAME.search(line):
            continue
        is_error = bool(_ERROR.search(line))
        for pattern, put in _VARYING:
            line = pattern.sub(put, line)
        line = " ".join(line.split())[:LINE_MOST]
        if _WORD.search(line):
            lines[line] = lines.get(line, False) or is_error
    last = [*lines][-2:]
    return [line for line in lines if lines[line] or line in last][-TELLING_LINES:]


def known_fix(memory: core.Memory, failure: Failure) -> list[dict[str, Any]]:
    """The one memory that surely tells of this error, or none."""
    lines, search = telling_lines(failure.output), memory.search
    query = " ".join(lines)[:QUERY_MOST]
    if not query:
        return []
    request = core.Request(query, core.RANKED, core.PROFILES["default"], kinds=(core.OWN,))
    hits = search.hits(request)[0][:FIX_CANDIDATES]
    rows = search.results(hits)
    compare = _Comparison(search.lexicon, failure.command, lines)
    sure = [
        (shared, hit.fit, rows[hit.item])
        for hit in hits
        if hit.item in rows and _may_be_fix(rows[hit.item], failure)
        if _is_sure(shared := compare.shared_with(rows[hit.item]["content"]), hit.fit)
    ]
    return [max(sure, key=lambda one: one[:2])[2]] if sure else []


def _may_be_fix(row: dict[str, Any], failure: Failure) -> bool:
    """Whether a result is a memory about a fault, and is not in the output itself."""
    text = row["content"]
    is_memory = "source" not in row and _ABOUT_FAULT.search(text) is not None
    return is_memory and core.normalized(text) not in core.normalized(failure.output)


class Shared(core.NamedTuple):
    """What a memory has of a line of an error."""

    telling: int = 0  # different telling words
    together: int = 0  # of these, so many in the longest run of words that both have
    run: int = 0  # words in that run


def _is_sure(shared: Shared, fit: float) -> bool:
    """Whether a memory has so much of an error that it is shown though nobody asked."""
    in_place = shared.together > 1 or (shared.together and shared.run >= QUOTED)
    return shared.telling > 0 and fit >= (FIX_LEAST if in_place else FIX_LEAST_APART)


class _Comparison:
    """Compares memories with an error's lines, word by word."""

    def __init__(self, lexicon: core.Lexicon, command: str, lines: list[str]) -> None:
        self._stems = lambda text: lexicon.text_words(text).stems
        programs = " ".join(_PROGRAM.findall(command))  # which name what failed, but not how
        common = {*self._stems(_COMMON), *self._stems(programs)}
        self._lines = [
            (stems, {stem for stem in stems if len(stem) > 1 and stem not in common})
            for stems in map(self._stems, lines)
        ]

    def shared_with(self, text: str) -> Shared:
        """What a text has of the line that it has most of."""
        stems = self._stems(text)
        places: dict[str, list[int]] = {}
        for place, stem in enumerate(stems):
            places.setdefault(stem, []).append(place)
        return max((_shared(*line, stems, places) for line in self._lines), default=Shared())


def _shared(
    line: tuple[str, ...], telling: set[str], stems: tuple[str, ...], places: dict[str, list[int]]
) -> Shared:
    """What a text, given as stems and their places, has of a line."""
    longest = (0, 0)
    for start, stem in enumerate(line):
        for place in places.get(stem, ()):
            both = zip(line[start:], stems[place:], strict=False)
            run = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both)]
            longest = max(longest, (len(telling.intersection(run)), len(run)))
    return Shared(len(telling & places.keys()), *longest)

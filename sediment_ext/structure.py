"""What kind of text one is, and where code, JSON and YAML are cut into sections.

Code is cut at definitions, and at top-level lines after a body; JSON and YAML between members. The
context of a section is the signature or the key path that it stands under.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

import sediment as core
from sediment_ext import markdown

_CODE_MIN, _YAML_MIN = 100, 50  # characters after which a definition or key opens a new section
# A name with more small words behind it is prose ("type of the item") in a comment or docstring.
_DEFINITION = core.LazyPattern(
    r"[ \t]*(?:(?:pub(?:\([^)\n]*\))?|public|private|protected|internal|static|abstract|final"
    r"|async|export|default|unsafe|extern|inline|virtual|override|open|data|sealed) +)*"
    r"(?:fn|def|class|func|fun|function|impl|struct|enum|trait|mod|module|namespace|interface"
    r"|type|protocol|extension|macro_rules!)[ \t*<]+(?=[\w$(<'&])"
    r"(?!\w+,? +(?!extends|implements|for|where|struct|interface|func)[a-z])"
    r"|[ \t]*(?:public|private|protected) +\w[^;=\n]*\("
)
# Only in the first column do these begin something; in a body they are just statements.
_TOP_DEFINITION = core.LazyPattern(
    r"(?:const|let|var|static|export|module\.exports|void|int|char|double|float|bool|#define)\b"
    r"|(?!(?:if|elif|else|for|while|with|return|assert|raise|throw|await|new|using|case)\b)"
    r"(?:[A-Za-z_][\w:<>]*[ \t*&]+)+[\w:~]+\([^;]*$"
)
_TOP_STATEMENT = core.LazyPattern(r"[A-Za-z_]")
# Lines that belong to the definition below them: decorators, attributes, comments, templates.
_LEAD = core.LazyPattern(r"[ \t]*(?:@|#\[|#(?=[\s#:]|$)|//|/\*|\*(?=[\s/*]|$)|--[ \-]|template *<)")
_DECORATOR = core.LazyPattern(r"[ \t]*(?:@|#\[)")
_YAML_PAIR = core.LazyPattern(r"\s*(?:- +)?[\w-]+:(?:\s|$)")
# What may stand in the first column of YAML: a key, an item, a comment, a marker, a bracket.
_YAML_TOP = core.LazyPattern(r"""([\w"'$./<*-][^:(]*):(?:\s|$)|-(?:\s|$)|[#%?{}\[\]]|\.\.\.|\s|$""")
_HEADING_LINE = core.LazyPattern(r"^##? ", re.MULTILINE)
_CODE_LINE = core.LazyPattern(
    r"^[ \t]*(?:(?:pub )?fn|def|class|function|const|let|var|import|export|struct|impl|trait) ",
    re.MULTILINE,
)


def sections_of(text: str, kind: str) -> list[core.Chunk]:
    """The sections of a text of a kind that `detect_type` names."""
    if kind == "text":
        return [core.Chunk(0, len(text), "")]
    return _SECTIONS[kind](text)


def detect_type(text: str) -> str:
    """Which rules cut this text: "json", "yaml", "markdown", "code" or "text"."""
    text = text.strip()
    if _is_json(text):
        return "json"
    front = markdown.FRONT_MATTER.match(text)
    if front and not _is_yaml(text[front.end() :]):
        return "markdown"
    if _is_yaml(text):
        return "yaml"
    if _HEADING_LINE.search(text) and markdown.is_markdown(text):
        return "markdown"
    return "code" if _CODE_LINE.search(text) else "text"


def _is_json(text: str) -> bool:
    if text[:1] + text[-1:] not in ("{}", "[]"):
        return False
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def _is_yaml(text: str) -> bool:
    """Whether it has keys at the top, and in the first column only what YAML allows, each key once.
    That keeps out code, letters and transcripts."""
    pairs = sum(1 for line in text.split("\n", 10)[:10] if _YAML_PAIR.match(line))
    if pairs < (1 if text.startswith("---") else 2):
        return False
    keys: set[str] = set()
    for _, line in core.lines_with_start(text):
        top = _YAML_TOP.match(line)
        if line.startswith("---"):
            keys.clear()
        elif not top or top[1] in keys or markdown.PROGRAM_LINE.match(line):
            return False
        elif top[1]:
            keys.add(top[1])
    return True


def code_sections(text: str) -> list[core.Chunk]:
    """The sections of a program."""
    sections: list[core.Chunk] = []
    start, depth, context = 0, 0, ""
    for at, new_depth, path in _definitions(text):
        # The end of a class ends its last method too, however short that is.
        if at - start > _CODE_MIN or new_depth < depth:
            sections.append(core.Chunk(start, at, context))
            start, depth, context = at, new_depth, path
        elif path:  # the open chunk is small: this definition describes it better
            depth, context = new_depth, path
    return [*sections, core.Chunk(start, len(text), context)]


def _definitions(text: str) -> Iterator[tuple[int, int, str]]:
    """Where definitions and top-level blocks begin, how deep, and "parent > definition"."""
    parents: list[tuple[int, str]] = []
    after_body = blank = False
    for head, line in _headed_lines(text):
        indent = len(line) - len(line.lstrip(" \t"))
        if signature := _signature(line, indent):
            while parents and parents[-1][0] >= indent:
                parents.pop()
            parents.append((indent, signature))
            yield head, len(parents), markdown.clip_path(" > ".join(name for _, name in parents))
        elif after_body and blank and _TOP_STATEMENT.match(line):
            yield head, 1, ""
        blank = not line.strip()
        after_body = after_body if blank else indent > 0 or line[0] in "})]"


def _headed_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line that is no comment or decorator, and where those right above it begin."""
    head: int | None = None
    brackets = 0  # open in a decorator: its arguments may go over several lines
    for start, line in core.lines_with_start(text):
        if _LEAD.match(line) or (brackets > 0 and not _DEFINITION.match(line)):
            head = start if head is None else head
            if brackets or _DECORATOR.match(line):
                brackets += sum(map(line.count, "([")) - sum(map(line.count, ")]"))
        else:
            yield start if head is None else head, line
            head, brackets = None, 0


def _signature(line: str, indent: int) -> str:
    """The first line of a definition without its brackets, "" for any other line."""
    line = line[: 2 * core.CONTEXT_MAX]
    if not (_DEFINITION.match(line) or (indent == 0 and _TOP_DEFINITION.match(line))):
        return ""
    return markdown.clip(line.strip().rstrip("{[(:= "))


# JSON and YAML: members packed together, those too large opened and packed in their turn.

_JSON_TOKEN = core.LazyPattern(r'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?|[\[\]{},]')
_YAML_MEMBER = core.LazyPattern(
    r"""( *)(?:(-)(?:\s|$)|([\w.$/<*][^:]*|"[^"]*"|'[^']*'):(?:\s|$))"""
)
_YAML_LEAD = core.LazyPattern(r" *#|---")
_YAML_BLOCK = core.LazyPattern(r"[:-] +[|>][-+\d]*\s*$")


class _Member:
    """A value in a JSON or YAML text; it begins where the one before it ends."""

    __slots__ = ("end", "key", "members", "start")

    def __init__(self, start: int, key: str | None = None):
        self.start = self.end = start
        self.key = key  # None for an element of an array
        self.members: list[_Member] = []


def _json_tree(text: str) -> _Member:
    """The members of valid JSON; the json module does not tell where a value stands."""
    root = _Member(0)
    path = [root]
    for token in _JSON_TOKEN.finditer(text):
        mark = token[0]
        if mark in "]}":
            _close(path, token.start())
        elif mark in "[{,":
            if mark == ",":
                _close(path, token.end())
            member = _Member(token.end())
            path[-1].members.append(member)
            path.append(member)
        elif token[2]:
            path[-1].key = token[1][: core.CONTEXT_MAX]
    _close(path, len(text))
    return root


def _yaml_tree(text: str) -> _Member:
    """The members of YAML as far as indentation tells them; values in flow style stay whole."""
    root = _Member(0)
    path, depths = [root], [-1]
    for start, depth, key in _yaml_members(text):
        while depths[-1] >= depth:
            depths.pop()
            _close(path, start)
        member = _Member(start, key)
        path[-1].members.append(member)
        path.append(member)
        depths.append(depth)
    while path:
        _close(path, len(text))
    return root


def _yaml_members(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Keys and list items: offset (of a comment right above, if any), depth, key."""
    head: int | None = None
    block: int | None = None  # indentation of the key whose literal text goes on
    for start, line in core.lines_with_start(text):
        indent = len(line) - len(line.lstrip(" "))
        if block is not None and (indent > block or not line.strip()):
            continue
        block = None
        if _YAML_LEAD.match(line):
            head = start if head is None else head
            continue
        if member := _YAML_MEMBER.match(line):
            # An item may stand right below its key: half a step deeper than the key.
            depth = 2 * indent + bool(member[2])
            key = None if member[2] else member[3].strip("\"'")[: core.CONTEXT_MAX]
            yield start if head is None else head, depth, key
            if _YAML_BLOCK.search(line):
                block = len(line) - len(line.lstrip(" -"))
        head = None


def _close(path: list[_Member], end: int) -> None:
    """The innermost open member ends here."""
    member = path.pop()
    member.end = end
    if end - member.start <= core.CHUNK_MAX:
        member.members.clear()  # it stays whole


def json_sections(text: str) -> list[core.Chunk]:
    """The sections of valid JSON."""
    return _member_sections(_json_tree(text), core.CHUNK_MAX)


def yaml_sections(text: str) -> list[core.Chunk]:
    """The sections of YAML."""
    return _member_sections(_yaml_tree(text), _YAML_MIN)


def _member_sections(root: _Member, enough: int) -> list[core.Chunk]:
    """Members packed up to core.CHUNK_MAX; at the top, a key closes a pack of more than `enough`.
    What opens a container goes with its first member and what closes it with its last."""
    sections: list[core.Chunk] = []
    todo = [(root, root.start, root.end, "")]
    while todo:
        parent, start, end, path = todo.pop()
        first = 0  # the member that the open pack begins with
        for index, member in enumerate(parent.members):
            member_end = end if index + 1 == len(parent.members) else member.end
            full = member_end - start > core.CHUNK_MAX or (
                parent is root and member.key is not None and member.start - start > enough
            )
            if index > first and (full or member.members):
                context = _pack_path(path, parent, first, index)
                sections.append(core.Chunk(start, member.start, context))
                start, first = member.start, index
            if member.members:
                todo.append((member, start, member_end, _key_path(path, parent, index)))
                start, first = member_end, index + 1
        if start < end:
            context = _pack_path(path, parent, first, len(parent.members))
            sections.append(core.Chunk(start, end, context))
    return sorted(sections)


def _pack_path(path: str, parent: _Member, first: int, last: int) -> str:
    """The key path of the members [first, last): of their parent where they are many."""
    return _key_path(path, parent, first) if last - first == 1 else path


def _key_path(path: str, parent: _Member, index: int) -> str:
    key = parent.members[index].key
    if key is None:
        return markdown.clip_path(f"{path}[{index}]")
    return markdown.clip_path(f"{path}.{key}" if path else key)


_SECTIONS = {
    "json": json_sections,
    "yaml": yaml_sections,
    "markdown": markdown.markdown_sections,
    "code": code_sections,
}

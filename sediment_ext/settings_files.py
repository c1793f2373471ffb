"""Edit JSON, TOML and Markdown files that belong to people.

An entry is added once, and removed so that the file is as before; every other byte stays, and a
file that cannot be parsed is left alone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sediment as core
from sediment_ext import systems

SERVE = "serve"  # the command of our server
COMMAND_MAX = 10_000  # characters of a hook's command that is read; two longest paths are 8,192

_BYTE_ORDER_MARK = "\ufeff"
TEXT_BLOCK = "<!-- sediment -->", "<!-- /sediment {} -->"  # {}: the digest of what is between
_TABLE_BLOCK = "# sediment", "# /sediment {}"
_SERVER = "a server called sediment"
# What messages call a key of a configuration file.
_SERVER_KEYS = "mcpServers", "mcp", "mcp_servers", "servers", "context_servers", "amp.mcpServers"
_KEY_TITLES = dict.fromkeys(_SERVER_KEYS, _SERVER) | {"hooks": "its hooks"}


class FileChange(core.NamedTuple):
    """A change of a person's file."""

    path: Path
    done: str  # "created", "extended", "cleaned" or "deleted"; or what it "has" already
    text: str | None  # its new text, None if it is deleted
    added: str  # what would be written if there were no file; "" of a removal

    def write(self, root: Path | None) -> str:
        """Write the file, if it is to change; returns what was done as a line."""
        if not self.done.startswith("has "):
            _write_for_owner(self.path, self.text, root)
        return f"{self.path}: {self.done}"


NOTHING_TO_REMOVE = "has nothing to remove"


def changed(path: Path, wanted: Any, remove: bool) -> FileChange:
    """The change that adds or removes what is wanted; InvalidInput says what to do by hand."""
    add, take_out = _edit(wanted)
    keys = [key for key in wanted if key in _KEY_TITLES] if isinstance(wanted, dict) else []
    text = None
    try:
        text = _read_owned(path) if path.exists() else None
        new = add(text, wanted) if not remove else text and take_out(text, wanted)
        remark = "; ".join(_differing(new, wanted, remove)) if new else ""
    except (core.InvalidInput, RecursionError) as error:
        if remove and text and "sediment" not in text:
            return FileChange(path, NOTHING_TO_REMOVE, text, "")
        write = _to_toml if path.suffix == ".toml" else _to_json
        parts = [f"{write(wanted[key])[1:-1]} to its {key}" for key in keys]
        advice = "take out sediment" if remove else f"add {' and '.join(parts)}"
        advice = f"; {advice} by hand" if keys else ""
        raise core.InvalidInput(f"{path} {error}: left as it is{advice}") from None
    if new == text:
        contents = " and ".join(_KEY_TITLES[key] for key in keys) or "what is needed"
        done = remark or (NOTHING_TO_REMOVE if remove else f"has {contents} already")
    elif text is None or new is None:
        done = "deleted" if remove else "created"
    else:
        done = ("cleaned" if remove else "extended") + (f", but {remark}" if remark else "")
    return FileChange(path, done, new, "" if remove else add(None, wanted))


def _edit(wanted: Any) -> tuple[Callable[[str | None, Any], str], Callable[[str, Any], str | None]]:
    """The functions that add what is wanted to a text, and that take it out."""
    if isinstance(wanted, dict):
        table = "mcp_servers" in wanted
        return (_table_added, _table_removed) if table else (_members_added, _members_removed)
    if wanted.startswith(TEXT_BLOCK[0]):
        return _instructions_added, lambda text, _: _blocks_removed(text, TEXT_BLOCK)
    return _plugin_added, plugin_removed


def _to_json(value: Any, indent: str | None = None) -> str:
    """JSON that can be encoded, even if a path in it has a lone surrogate."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


def _to_toml(value: Any) -> str:
    """A value in one line of TOML."""
    if not isinstance(value, dict):
        return _to_json(value)
    return "{" + ", ".join(f"{key} = {_to_toml(part)}" for key, part in value.items()) + "}"


# JSON, with comments where a client takes them. An entry is added behind the others of its object
# or list. If that was empty, no line end is put behind the entry: by this a removal knows which
# objects and lists were made for it. A blank file counts as none.

_COMMENT = core.LazyPattern(r'"(?:[^"\\\n]|\\.)*+"?|//[^\r\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_LAST_COMMA = core.LazyPattern(r'"(?:[^"\\\n]|\\.)*+"?|,(?=\s*[}\]])', re.DOTALL)
# How a command shows that it is ours, whatever the program's file is called: a server of our name
# has the word `serve`, a hook has an option behind it that no other program takes. A hook that
# somebody has written by hand shows it by the name of the program.
_OUR_NAME = core.LazyPattern(
    r"(?<![^\s\"'/\\])sediment(?:[\w.-]*\.(?:pyz|py|exe)|-?[\d.]+)?(?=[\"'\s])", re.IGNORECASE
)
_SERVE_WORD = core.LazyPattern(r"(?<![^\s\"'])serve(?![^\s\"'])")
_HOOK_WORD = core.LazyPattern(r"[\s\"']hook(?![^\s\"';])")
_OUR_HOOK = core.LazyPattern(r"(?<![^\s\"'])hook[\"']? [\"']?--client(?![^\s\"'])")
# A whole command that begins with an absolute path.
COMMAND_WITH_PATH = core.LazyPattern(r"(?:& )?[\"']*(?:/|\w:).*[\s\"'](serve|hook\b.*)", re.DOTALL)
JsonPath = list[str | None]  # keys of objects, and None for an element of a list


class JsonEntry(core.NamedTuple):
    """A member of an object, or an element of a list, with offsets in the text."""

    key: str | None
    value: Any
    start: int
    value_start: int
    end: int


class Container(core.NamedTuple):
    """An object or list, its brackets' offsets, and the `next` entry of a path, if it is there."""

    start: int
    close: int
    entries: list[JsonEntry]
    next: JsonEntry | None


class JsonText:
    """JSON to edit: as it is (`text`), with comments blanked (`bare`), and also without trailing
    commas (`plain`). Raises InvalidInput."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.bare = _blanked(_COMMENT, text.replace(_BYTE_ORDER_MARK, " ", 1))
        self.plain = _blanked(_LAST_COMMA, self.bare)
        try:
            json.loads(
                self.plain, object_pairs_hook=reject_duplicate_keys, parse_constant=core.no_constant
            )
        except (ValueError, RecursionError) as error:
            raise core.InvalidInput(f"is not valid JSON ({error})") from None

    def _skip(self, at: int) -> int:
        """The offset of what follows white space."""
        return json.decoder.WHITESPACE.match(self.plain, at).end()  # pyright: ignore

    def _entries(self, at: int) -> tuple[list[JsonEntry], int]:
        """The entries of the object or list that begins at an offset, and where it is closed."""
        decode, is_object = json.JSONDecoder().raw_decode, self.plain[at] == "{"
        entries, at = [], self._skip(at + 1)
        while self.plain[at] not in "}]":
            start, key = at, None
            if is_object:
                key, at = decode(self.plain, at)
                at = self._skip(self._skip(at) + 1)
            value, end = decode(self.plain, at)
            entries.append(JsonEntry(key, value, start, at, end))
            at = self._skip(end)
            if self.plain[at] == ",":
                at = self._skip(at + 1)
        return entries, at

    def walk(self, path: JsonPath, wanted: Any) -> list[Container]:
        """The objects and lists on a path, as far as they exist; InvalidInput at another type."""
        at, containers = self._skip(0), []
        for depth, key in enumerate(path):
            if self.plain[at] != ("[" if key is None else "{"):
                of = ".".join(filter(None, path[: max(depth, 1)]))
                raise core.InvalidInput(f"has no {'list' if key is None else 'object'} of {of}")
            entries, close = self._entries(at)
            found = next((entry for entry in entries if matches_entry(entry, key, wanted)), None)
            containers.append(Container(at, close, entries, found))
            if found is None:
                break
            at = found.value_start
        return containers

    def find(self, path: JsonPath, wanted: Any) -> JsonEntry | None:
        """The entry at a path: for a list the one that `_is_that`. Raises as `walk` does."""
        return self.walk(path, wanted)[-1].next

    def with_added(self, path: JsonPath, value: Any) -> str:
        """The text with a value at a path: behind the other entries there, and their comment."""
        containers, text = self.walk(path, value), self.text
        for key in reversed(path[len(containers) :]):
            value = [value] if key is None else {key: value}
        (start, close, entries, _), key = containers[-1], path[len(containers) - 1]
        lined = not entries or "\n" in text[start:close]
        unit = self._unit()
        indent = self._indent(entries[-1].start) if entries else self._indent(start) + unit
        pad = _newline(text) + indent if lined else " "
        name = "" if key is None else f"{_to_json(key)}: "
        piece = pad + name + _to_json(value, unit if lined else None).replace("\n", pad)
        if not entries:
            return text[:close] + piece + text[close:]
        last = entries[-1].end
        stop = last + len(text[last:close].rstrip(" \t\r\n"))
        if "," in self.bare[last:close]:
            return text[:stop] + piece + "," + text[stop:]
        return text[:last] + "," + text[last:stop] + piece + text[stop:]

    def with_changed(self, entry: JsonEntry, value: Any) -> str:
        """The text with another value of an entry, unless the old value has a comment."""
        text, (_, _, start, at, end) = self.text, entry
        if text[at:end] != self.bare[at:end]:
            return text
        unit = self._unit() if "\n" in text[at:end] else None
        pad = _newline(text) + self._indent(start)
        return text[:at] + _to_json(value, unit).replace("\n", pad) + text[end:]

    def _unit(self) -> str:
        """The white space by which its lines are indented, once."""
        return next(iter(re.findall(r"\n([ \t]+)\S", self.text)), "  ")

    def _indent(self, at: int) -> str:
        """The white space that the line of an offset begins with."""
        line = self.text[:at].rpartition("\n")[2]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def without(self, path: JsonPath, value: Any) -> str:
        """The text without the entry at a path, and without the objects and lists made for it."""
        containers = self.walk(path, value)
        while len(containers) > 1 and self._made_for_one(containers[-1]):
            containers.pop()
        (_, close, entries, gone), text = containers[-1], self.text
        if gone is None:
            return text
        number = entries.index(gone)
        behind = entries[number + 1].start if number + 1 < len(entries) else close
        comma = self.bare.find(",", gone.end, behind)
        tail = text[gone.end :] if comma < 0 else text[gone.end : comma] + text[comma + 1 :]
        head = _without_line_start(text[: gone.start], tail)
        if comma < 0 and number:  # the last: the comma before it was put there with it
            comma = self.bare.find(",", entries[number - 1].end)
            head = head[:comma] + head[comma + 1 :]
        return head + tail

    def _made_for_one(self, container: Container) -> bool:
        """Whether an object or list came with the only entry in it, and has no comment."""
        start, close, (first, *others), _ = container
        before, behind = self.text[start : first.start], self.text[first.end : close]
        was_empty = "\n" in before and "\n" not in behind
        return not others and not was_empty and self.text[start:close] == self.bare[start:close]


def _without_line_start(head: str, tail: str) -> str:
    """A text before an entry, without the line that began with that and has nothing else."""
    line_start = head.rstrip(" \t")
    if line_start.endswith("\n") and tail.lstrip(" \t")[0] in "\r\n}]":
        return line_start[:-1].removesuffix("\r")
    return head.removesuffix(" ")


def _blanked(pattern: core.LazyPattern, text: str) -> str:
    """JSON with spaces for what a pattern matches outside of strings: no character moves."""

    def blank(match: re.Match[str]) -> str:
        stays = match[0][0] == '"' or (match[0][:2] == "/*" and match[0][-2:] != "*/")
        return match[0] if stays else re.sub(r"[^\r\n]", " ", match[0])

    return pattern.sub(blank, text)


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; InvalidInput if a name stands there twice."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise core.InvalidInput(
                f"cannot be changed ({core.shown_value(name)} stands there twice)"
            )
    return dict(pairs)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def matches_entry(entry: JsonEntry, key: str | None, wanted: Any) -> bool:
    """Whether a member has this key, or an element is the wanted one or runs our program."""
    if key is not None:
        return entry.key == key
    return entry.value == wanted or runs_ours(entry.value, core.HOOK)


def command_of(entry: dict[str, Any], *names: str) -> str:
    """The strings that an object has under some names, or in lists there, as one command."""
    return " ".join(_words_of(entry, *names))


def _words_of(entry: dict[str, Any], *names: str) -> list[str]:
    values = (entry.get(name) for name in names)
    words = (word for value in values for word in (value if isinstance(value, list) else [value]))
    return [word for word in words if isinstance(word, str)]


def runs_ours(value: Any, word: str) -> bool:
    """Whether any object in a value has a command that runs our hook or server (`word`)."""
    return any(_running_ours(value, word))


def _running_ours(value: Any, word: str) -> Iterator[dict[str, Any]]:
    """The objects in a value that have a command which runs our hook or server."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if _is_own_command(command_of(part, "server", "command", "args", "tool"), word):
                yield part
            stack += part.values()
        elif isinstance(part, list):
            stack += part


def _is_own_command(command: str, word: str) -> bool:
    """Whether a hook's command is ours, or that of a server of our name."""
    if word == SERVE:
        return _SERVE_WORD.search(command) is not None
    name = _OUR_NAME.search(command)
    by_hand = name and _HOOK_WORD.search(command, name.end())
    return bool(by_hand or _OUR_HOOK.search(command))


def _our_commands(value: Any, word: str) -> Iterator[tuple[list[str], list[str]]]:
    """(program, arguments) of each command of ours in a server, a hook or a plugin's text."""
    if isinstance(value, str):
        line = _PLUGIN_COMMAND.search(value)
        commands = (
            [_words_of(core.parse_object(f'{{"command": {line[1]}}}'), "command")] if line else []
        )
    else:
        commands = map(_command_words, _running_ours(value, word))
    for words in commands:
        if word in words or isinstance(value, str):
            start = itertools.takewhile(lambda part: part != word and part[:1] != "-", words)
            program = list(start)
            yield program, words[len(program) :]


def _command_words(entry: dict[str, Any]) -> list[str]:
    """The words of an object's command, which is for the shell where it has no arguments."""
    words = _words_of(entry, "command", "args")
    if words == [entry.get("command")]:
        return systems.shell_words(words[0]) if len(words[0]) <= COMMAND_MAX else []
    return words


def missing_program(value: Any, word: str) -> str:
    """The first absolute path of our program in an entry that does not exist; "" if there is none.
    Network paths are not tried."""
    for program, _ in _our_commands(value, word):
        for path in program:
            here = os.path.isabs(path) and path[:2] not in ("//", "\\\\")
            if here and not os.path.exists(path):
                return path
    return ""


def _is_left_behind(found: Any, wanted: Any, word: str) -> bool:
    """Whether the program of an entry of ours is gone, and only that is not as it is wanted."""
    options = [[rest for _, rest in _our_commands(value, word)] for value in (found, wanted)]
    return options[0] == options[1] and bool(missing_program(found, word))


def word_of(name: str) -> str:
    """What an entry of this name runs: a server has our name, a hook that of its event."""
    return SERVE if name == "sediment" else core.HOOK


def settings_to_add(wanted: dict[str, Any]) -> Iterator[tuple[JsonPath, Any]]:
    """The values that are added one by one, each with its path."""
    for key, part in wanted.items():
        for name, value in part.items() if isinstance(part, dict) else ():
            if isinstance(value, list):
                yield from (([key, name, None], element) for element in value)
            else:
                yield [key, name], value


def _is_blank(text: str) -> bool:
    return not text.removeprefix(_BYTE_ORDER_MARK).strip()


def _members_added(text: str | None, wanted: dict[str, Any]) -> str:
    """JSON with what is wanted, where it is not there yet or its program is gone."""
    if text is None or _is_blank(text):
        return _to_json(wanted, "  ") + "\n"
    for path, value in settings_to_add(wanted):
        before = JsonText(text)
        found = before.find(path, value)
        word = word_of(str(path[1]))
        if found and is_same(found.value, value) and _is_left_behind(found.value, value, word):
            text = before.with_changed(found, value)
        elif found is None:
            after = JsonText(before.with_added(path, value))
            if after.find(path, value) is None or after.without(path, value) != text:
                raise core.InvalidInput("cannot be changed as it is")
            text = after.text
    return text


def _members_removed(text: str, wanted: dict[str, Any]) -> str | None:
    """JSON without what `_members_added` put there; None if it made the file."""
    new = text
    for path, value in reversed(list(settings_to_add(wanted))):
        before = JsonText(new)
        with contextlib.suppress(core.InvalidInput):  # something else is there
            entry = before.find(path, value)
            if entry and is_same(entry.value, value):
                new = before.without(path, value)
    JsonText(new)
    rest = {key: part for key, part in wanted.items() if not isinstance(part, dict)}
    made = (_to_json(rest, "  ") if rest else "{\n}").replace("\n", _newline(text)) + "\n"
    return None if new != text and new == made and text.endswith("\n}\n") else new


def is_same(a: Any, b: Any) -> bool:
    """Whether two entries of clients' files are equal, but for which copy of the program runs."""
    if isinstance(a, str) and isinstance(b, str):
        return plugin_removed(a, b) is None
    first, second = (json.loads(_to_json(x), object_hook=_without_location) for x in (a, b))
    return first == second


def _without_location(entry: dict[str, Any]) -> dict[str, Any]:
    """An object without the program's path and a timeout, which other copies write otherwise."""
    if type(entry.get("timeout")) is int:
        entry.pop("timeout")
    if match := COMMAND_WITH_PATH.fullmatch(command_of(entry, "command", "args")):
        entry.pop("args", None)
        entry["command"] = match[1]
    return entry


# Markdown and TOML: a block between two marks, added at the end behind an empty line. The second
# mark has the digest of the block, so that lines that people have put into it are not deleted.


def _digest(lines: str) -> str:
    """8 hexadecimal digits of the SHA-256 of a text, with line ends as \\n."""
    return core.sha256("\n".join(lines.splitlines()).encode()).hex()[:8]


def instructions_block(lines: str, marks: tuple[str, str]) -> str:
    return f"{marks[0]}\n{lines}{marks[1].format(_digest(lines))}\n"


def _appended(text: str | None, block: str) -> str:
    """A text with a block at its end, which ends as the text did: with a line end or without."""
    newline = _newline(text or "")
    block = block.replace("\n", newline)
    if text and not text.endswith("\n"):
        return text + 2 * newline + block.removesuffix(newline)
    return text + newline + block if text else block


def _blocks(text: str, marks: tuple[str, str]) -> list[tuple[re.Match[str], re.Match[str]]]:
    """Both marks of each block in a text; a first mark without a second may be somebody's own."""
    first, last = (re.escape(mark) for mark in marks)
    last = last.replace(r"\ \{\}", r"(?:\ ([0-9a-f]{8}))?")
    blocks, begin = [], None
    for mark in re.finditer(rf"^(?:({first})\r?\n|{last}(?:\r?\n|\Z))", text, re.MULTILINE):
        if mark[1]:
            begin = mark
        elif begin:
            blocks.append((begin, mark))
            begin = None
    return blocks


def _blocks_removed(text: str, marks: tuple[str, str]) -> str | None:
    """A text as before `_appended`, None for no file; InvalidInput if a block was changed."""
    new = text
    for begin, end in reversed(_blocks(text, marks)):
        if end[2] != _digest(text[begin.end() : end.start()]):
            raise core.InvalidInput(
                f"has lines that `init` did not write in its block of {marks[0]}"
            )
        newline = _newline(begin[0])
        gap_form = rf"(?<![^\n]){newline}\Z"  # the empty line before the block
        if not end[0].endswith("\n"):  # and the line end that was added to the last line
            gap_form = rf"(?:{newline}){{2}}\Z|{gap_form}"
        gap = re.compile(gap_form).search(text, max(0, begin.start() - 4), begin.start())
        new = new[: gap.start() if gap else begin.start()] + new[end.end() :]
    return new or None


def _instructions_added(text: str | None, block: str) -> str:
    if text and (_blocks(text, TEXT_BLOCK) or "mcp__sediment__" in text):
        return text
    return _appended(text, block)


def _table(text: str) -> dict[str, Any]:
    """The value of a TOML text; InvalidInput if it is not valid or its mcp_servers no table."""
    import tomllib

    try:
        value = tomllib.loads(text.removeprefix(_BYTE_ORDER_MARK))
    except (ValueError, RecursionError) as error:
        raise core.InvalidInput(f"is not valid TOML ({error})") from None
    if not isinstance(value.setdefault("mcp_servers", {}), dict):
        raise core.InvalidInput("has no table of mcp_servers")
    return value


def _table_added(text: str | None, wanted: dict[str, Any]) -> str:
    """TOML with the server at its end, if it has none of that name, or ours and that is gone."""
    old, entry = _table(text or ""), wanted["mcp_servers"]["sediment"]
    if text is not None and "sediment" in old["mcp_servers"]:
        if _is_left_behind(old["mcp_servers"]["sediment"], entry, SERVE):
            with contextlib.suppress(core.InvalidInput):  # somebody changed it
                rest = _table_removed(text, wanted)
                return text if rest == text else _table_added(rest, wanted)
        return text
    lines = [f"{key} = {_to_toml(value)}" for key, value in entry.items()]
    lines = "\n".join(["[mcp_servers.sediment]", *lines, ""])
    new = _appended(text, instructions_block(lines, _TABLE_BLOCK))
    old["mcp_servers"]["sediment"] = entry
    with contextlib.suppress(core.InvalidInput):  # to an inline table nothing can be added below it
        if repr(sorted(_table(new).items())) == repr(sorted(old.items())):  # nan == nan is False
            return new
    raise core.InvalidInput("has mcp_servers as an inline table")


def _table_removed(text: str, _: Any) -> str | None:
    new = _blocks_removed(text, _TABLE_BLOCK)
    if "sediment" in _table(new or "")["mcp_servers"] and new != text:
        raise core.InvalidInput("has more of mcp_servers.sediment than `init` added")
    return new


_PLUGIN_COMMAND = core.LazyPattern(r"^const COMMAND = (.*)$", re.MULTILINE)


def _plugin_added(text: str | None, wanted: str) -> str:
    is_ours = text and plugin_removed(text, wanted) is None
    return wanted if not text or (is_ours and _is_left_behind(text, wanted, core.HOOK)) else text


def plugin_removed(text: str, wanted: str) -> str | None:
    """None if a plugin is ours, whichever copy of the program it runs; else the text."""
    same = _PLUGIN_COMMAND.sub("", text) == _PLUGIN_COMMAND.sub("", wanted)
    return None if same else text


def _read_owned(path: Path) -> str:
    """The text of a person's file, with its line ends; InvalidInput if it is not readable text."""
    try:
        if path.stat().st_size > core.LINE_MAX:
            raise core.InvalidInput("is too large for a file of settings")
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except OSError as error:
        raise core.InvalidInput(f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise core.InvalidInput(f"cannot be read as text ({error})") from None
    if "\0" in text:  # UTF-16 without a mark
        raise core.InvalidInput("cannot be read as text (it has NUL characters)")
    return text


def setting_at(path: Path, keys: Sequence[str]) -> Any:
    """The value under keys in a settings file, or None. Raises InvalidInput."""
    if not os.path.isfile(path):  # nor a pipe, which would be read for ever
        return None
    try:
        text = _read_owned(path)
        if path.suffix == ".toml":
            value = _table(text)
        else:
            value = None if _is_blank(text) else json.loads(JsonText(text).plain)
    except core.InvalidInput as error:
        raise core.InvalidInput(f"{path} {error}") from None
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _write_for_owner(path: Path, text: str | None, root: Path | None) -> None:
    """Write a file and keep its permissions; or delete it, and folders that become empty."""
    try:
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = path.stat().st_mode & 0o7777 if path.exists() else None
            core.write_atomically(path, text, mode)
    except OSError as error:
        raise core.InvalidInput(f"{path} cannot be written ({error.strerror})") from None
    if text is None and (top := root or core.home()):
        _remove_empty(path.parent, core.real_path(top))


def _remove_empty(folder: Path, top: Path) -> None:
    """Delete a folder below `top` if it is empty, and those above it that are so then."""
    with contextlib.suppress(OSError):
        links = [link for name in ("*", ".*/*") for link in top.glob(name) if link.is_symlink()]
        made = {top, *map(core.whole_path, links)}  # by a person
        while core.is_in(folder, top) and folder not in made:
            folder.rmdir()
            folder = folder.parent


def file_entries(path: Path, wanted: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, value there or None, value wanted) of each entry wanted in a file. Raises
    InvalidInput."""
    if not path.is_file():  # nor a pipe, which would be read for ever
        return
    text = _read_owned(path)
    if not _is_blank(text):
        yield from text_entries(text, wanted)


def text_entries(text: str, wanted: Any) -> Iterator[tuple[str, Any, Any]]:
    """`file_entries` of a file's text."""
    if isinstance(wanted, str):
        yield "sediment", text, wanted
    elif "mcp_servers" in wanted:
        entry = wanted["mcp_servers"]["sediment"]
        yield "sediment", _table(text)["mcp_servers"].get("sediment"), entry
    else:
        for keys, value in settings_to_add(wanted):
            entry = JsonText(text).find(keys, value)
            yield str(keys[1]), entry and entry.value, value


def _differing(text: str, wanted: Any, remove: bool) -> Iterator[str]:
    """A remark on each entry that `init` leaves alone because it differs from its own."""
    if isinstance(wanted, str) and wanted.startswith(TEXT_BLOCK[0]):
        return  # instructions may be anybody's
    with contextlib.suppress(core.InvalidInput):  # a removal finds something else there
        for name, found, value in text_entries(text, wanted):
            word = word_of(name)
            if runs_ours(found, word) if remove else _needs_a_look(found, value, word):
                shown = core.shown_value(found)
                yield f"its entry {name} differs from what `init` writes: edit it by hand ({shown})"


def _needs_a_look(found: Any, wanted: Any, word: str) -> bool:
    """Whether an entry that is there differs from the one wanted, or its program is gone."""
    if found is None or found == wanted:
        return False
    return not is_same(found, wanted) or bool(missing_program(found, word))

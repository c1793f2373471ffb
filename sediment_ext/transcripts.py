"""Read the sessions that agents' clients keep, as turns: a prompt and the answer to it.

What clients, tools and hooks put between is left out. A file that is damaged, cut or of an
unknown version is read as far as it is understood; none is changed.

assets/transcripts.json has each client's format. "home" is where its sessions are (the first
place whose variable is set), "files" a pattern of their names. A file is lines of JSON: those
that match "lines" may be messages, those that match "unsaid" may come before the first prompt.
Without "lines" it is a log of changes, or a database that "sql" queries. The first of "rules"
whose "if" fits an entry has its "role" and the path of its "text"; without a text it is no
message, and an empty prompt has what is "attached", in lists. An "if" has paths ("a.b|c": the
first that has a value counts) and the values that fit; "any" is any that is not empty. A
"coded_folder" is named by the client's working folder: its path, with "-" for all that is no
letter or digit.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

import sediment as core

TRANSCRIPT_LINE = 2**25  # bytes: a prompt with several pictures; longer lines are output of tools
TRANSCRIPT_HEAD = 100  # lines that tell a session's folder, or that it is one


# Marks around what recall adds to a prompt, the first at the beginning of a line.
MEMORY_BEGIN, MEMORY_END = "[memory from sediment:", "[end of memory]"
# The user's own words are behind the first of these, or within the other.
_CODEX_FRAME = core.LazyPattern(r"# (?:Context|Files) .*?\n## My request for Codex:", re.DOTALL)
_CURSOR_FRAME = "<user_query>", "</user_query>"
COMMAND = core.LazyPattern(r"/[\w:-]++(?!\S)")  # of a client, and no path
_QUOTED = core.LazyPattern(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
NOT_STORABLE = core.LazyPattern("[\0\ud800-\udfff]")
_FOLDER = core.LazyPattern(rb'"cwd": ?"(?:[^"\\]|\\.)*"')


class Turn(core.NamedTuple):
    """A prompt and its answer."""

    key: str  # the client's id of the prompt, or the place of that in the session
    at: int  # unix seconds
    prompt: str
    answer: str  # all up to the next prompt; "" while there is none


class Conversation(core.NamedTuple):
    """What was read of a session, from some byte on."""

    client: str
    session: str  # its id
    folder: str | None  # the client's working folder
    turns: list[Turn]
    resume: int  # bytes before the last turn; 0 where a file is read whole each time
    remark: str = ""  # why nothing was understood
    coded: str = ""  # the folder's path as a client codes it that does not note the folder


class Message(core.NamedTuple):
    """An entry of a transcript."""

    typed: bool  # by the user, else by the assistant
    text: str  # "" if it is neither's
    key: str
    at: int  # unix seconds; 0 if it has no time


Format = dict[str, Any]  # of a client's transcripts, as in assets/transcripts.json
_Entries = Iterable[tuple[int, Any]]  # each with its place: its byte, or its number


@functools.cache
def transcripts() -> dict[str, Any]:
    """The contents of assets/transcripts.json."""
    return json.loads(core.asset("transcripts.json"))


def transcript_format(client: str) -> Format:
    """The format of a client's transcripts; InvalidInput for one that has none on this machine."""
    formats = transcripts()["formats"]
    names = [name for name, form in formats.items() if "home" in form]
    if client not in names:
        raise core.InvalidInput(
            f"a client is one of {', '.join(names)}, not {core.shown_value(client)}"
        )
    return formats[client]


def read_conversation(
    client: str, path: Path, start: int = 0, session: str = "", unkept: int = 0
) -> Conversation:
    """The turns of a session's file after byte `start` and after `unkept` (see `session_progress`).
    Raises NotFound or InvalidInput."""
    form = transcript_format(client)
    by_bytes = "lines" in form  # else the file is read whole each time
    try:
        if not os.path.isfile(path):
            raise core.NotFound(f"{path} no longer exists")
        start = max(start if _begins_line(path, start) else 0, unkept) if by_bytes else 0
        session = session or _session_in(form, path)
        folder = storable_text(_folder_in(form, path, session)) or None
        if _is_subagents(form, path, session):
            return Conversation(client, session, folder, [], start)
        entries, moment = _session_entries(form, path, start, session), int(path.stat().st_mtime)
        turns, place, understood = turns_in(entries, form, moment)
    except OSError as error:
        raise core.InvalidInput(f"{path} cannot be read ({error.strerror})") from None
    if not by_bytes:
        turns, place = [turn for turn in turns if turn.at > unkept], 0
    resume = place if turns else start
    understood = understood or start > 0 or _is_empty_session(form, path, session)
    remark = "" if understood else f"{path} has an unknown format: update this program"
    return Conversation(client, session, folder, turns, resume, remark, _coded_in(form, path))


def turns_in(entries: _Entries, form: Format, moment: int) -> tuple[list[Turn], int, bool]:
    """The turns of entries, the place of the last one, and whether any entry was understood. Turns
    without a time get `moment`."""
    found: list[tuple[Turn, list[str]]] = []  # each with the parts of its answer
    last, understood = 0, False
    for place, entry in entries:
        message = _read_message(entry, form)
        understood = understood or message is not None
        if message and message.typed and message.text:
            turn = Turn(message.key or str(place), message.at or moment, message.text, "")
            found.append((turn, []))
            last = place
        elif message and message.text and found:
            found[-1][1].append(message.text)
    return [turn._replace(answer="\n\n".join(parts)) for turn, parts in found], last, understood


def _read_message(entry: Any, form: Format) -> Message | None:
    """An entry by the first rule that fits it; None if none does, as in an unknown version."""
    for rule in form["rules"]:
        if all(_fits(_lookup(entry, path), wanted) for path, wanted in rule["if"].items()):
            break
    else:
        return None
    if "text" not in rule:  # nothing of the user's or of the assistant's
        return Message(False, "", "", 0)
    content, attached = _lookup(entry, rule["text"]), _attached(entry, rule.get("attached", ()))
    if content is None and not attached:
        return None
    typed = rule["role"] == "user"
    texts = map(_part_text, content if isinstance(content, list) else [content])
    if rule.get("quoted"):  # by `opencode run`
        texts = map(_unquoted, texts)
    text = "\n\n".join(filter(None, map(typed_text if typed else storable_text, texts)))
    at = unix_seconds(_lookup(entry, form.get("time", "")))
    return Message(typed, text or attached, valid_id(_lookup(entry, form.get("id", ""))), at)


def _fits(value: Any, wanted: Any) -> bool:
    return bool(value) if wanted == "any" else value in wanted


def _lookup(entry: Any, paths: str) -> Any:
    """The value of an entry at the first of several paths, "a.b|c", that has one."""
    value = None
    for path in paths.split("|"):
        value = entry
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value:
            break
    return value


def _part_text(part: Any) -> str:
    """The text of a part of a message; "" if it is a thought, a plugin's, or no text."""
    if isinstance(part, str):
        return part
    facts = part if isinstance(part, dict) else {}
    kind, text = facts.get("type", "text"), facts.get("text")
    is_hidden = any(map(facts.get, ("thought", "synthetic", "ignored")))
    is_shown = kind in ("text", "Text", "input_text", "output_text") and not is_hidden
    return text if is_shown and isinstance(text, str) else ""


def _attached(entry: Any, paths: Iterable[str]) -> str:
    """What stands for a prompt that is nothing but what was attached to it; "" if nothing was."""
    lists = [found for path in paths if isinstance(found := _lookup(entry, path), list)]
    known = (facts for found in lists for facts in found if isinstance(facts, dict))
    return "\n\n".join(filter(None, map(_attachment_text, known)))


def _attachment_text(facts: dict[str, Any]) -> str:
    """The text of an attachment, such as a long paste; else what it is."""
    text, name = facts.get("extracted_content"), facts.get("file_name") or facts.get("name")
    if isinstance(text, str) and (text := storable_text(text)):
        return text
    if isinstance(name, str):
        return f"[file {storable_text(name)}]"
    return "[image]" if facts.get("content_type") == "image_asset_pointer" else ""


def _unquoted(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    return quoted[1].replace('\\"', '"') if quoted else text


def storable_text(text: str) -> str:
    """A text without what recall added to it, as it can be stored."""
    text = "\n" + NOT_STORABLE.sub("\ufffd", text)
    return _without(text, "\n" + MEMORY_BEGIN, MEMORY_END).strip()


def typed_text(text: str) -> str:
    """What the user typed of a prompt, as a client or its hook has it; "" if nothing."""
    for tag in transcripts()["inserted"]:
        text = _without(text, f"<{tag}>", f"</{tag}>")
    text = _unframed(storable_text(text))
    untyped = tuple(transcripts()["untyped"])
    return "" if text.startswith(untyped) or COMMAND.fullmatch(text) else text


def _unframed(text: str) -> str:
    """A prompt without what its client put around it."""
    if framed := _CODEX_FRAME.match(text):
        return text[framed.end() :].strip()
    begin, end = _CURSOR_FRAME
    start, stop = text.find(begin) + len(begin), len(text) - len(end)
    is_framed = text.startswith("<") and text.endswith(end) and len(begin) <= start <= stop
    return text[start:stop].strip() if is_framed else text


def _without(text: str, begin: str, end: str) -> str:
    """A text without all that is from a begin to the next end, both included."""
    kept, place = [], 0
    while (start := text.find(begin, place)) >= 0 and (stop := text.find(end, start)) >= 0:
        kept.append(text[place:start])
        place = stop + len(end)
    return "".join([*kept, text[place:]])


def valid_id(value: object) -> str:
    """A client's id of a message or session if it can be an id, else ""."""
    with contextlib.suppress(core.InvalidInput):
        return core.check_id(value)
    return ""


def unix_seconds(value: Any) -> int:
    """Unix seconds of a time in ISO 8601, in seconds or in milliseconds; 0 of anything else."""
    with contextlib.suppress(core.InvalidInput, TypeError, OverflowError):
        if isinstance(value, str):
            return core.parse_moment(value[:40])
        return core.parse_moment(value / 1000 if value > core.TIME_MAX else value)
    return 0


def session_progress(client: str, path: Path, ago: float = 0.0) -> int:
    """How far a session has come: the size of its file, or for other formats the time `ago` seconds
    before now."""
    if "lines" not in transcript_format(client):
        return int(time.time() - ago)
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


# Where transcripts are, and their entries


def _session_entries(form: Format, path: Path, start: int, session: str) -> _Entries:
    """The entries of a session's file that may be messages, each with its place."""
    if "sql" in form:
        rows = _client_rows(path, form["sql"]["messages"], session)
        return enumerate(core.parse_object(row) for (row,) in rows or [])
    if "lines" not in form:
        return enumerate(_messages_of_log(path))
    wanted, lines = re.compile(form["lines"].encode()), transcript_lines(path, start)
    return ((place, core.parse_object(line)) for place, line in lines if wanted.search(line))


def transcript_lines(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Each line from a byte on, and where it begins; without those that are too long."""
    with open(path, "rb") as file:
        place, begins = file.seek(start), True
        while line := file.readline(TRANSCRIPT_LINE):
            ends = line.endswith(b"\n")
            if begins and (ends or len(line) < TRANSCRIPT_LINE):
                yield place, line
            begins, place = ends, place + len(line)


def _is_empty_session(form: Format, path: Path, session: str) -> bool:
    """Whether a session has nothing but what a client writes before the first prompt."""
    if "sql" in form:
        return _client_rows(path, form["sql"]["messages"], session) == []
    unsaid = re.compile(form.get("unsaid", "(?!)").encode())
    return all(unsaid.search(line) for _, line in transcript_lines(path))


def _first_line(path: Path) -> bytes:
    return next(transcript_lines(path), (0, b""))[1]


def _begins_line(path: Path, start: int) -> bool:
    """Whether a line begins at a byte of a file; in one that was replaced, none may."""
    with open(path, "rb") as file:
        return start > 0 and file.seek(start - 1) >= 0 and file.read(1) == b"\n"


def _messages_of_log(path: Path) -> Iterator[dict[str, Any]]:
    """The messages of a log of changes, each in its last version. Removed ones stay: a summary
    removes them too."""
    messages: dict[object, dict[str, Any]] = {}
    for _, line in transcript_lines(path):
        entry = core.parse_object(line)
        listed = _lookup(entry, "$set.messages") if isinstance(entry.get("$set"), dict) else [entry]
        for message in listed if isinstance(listed, list) else []:
            if isinstance(message, dict):
                message.pop("toolCalls", None)  # may be long
                messages[valid_id(message.get("id"))] = message
    yield from messages.values()


def _client_rows(path: Path, sql: str, *values: Any) -> list[Any] | None:
    """Rows of a client's database, opened to read only; None if it is none that `sql` fits."""
    if not os.path.isfile(path):
        return None
    try:
        with contextlib.closing(core.open_read_only(path)) as connection:
            connection.set_busy_timeout(core.BUSY_TIMEOUT)
            return core.fetch(connection, sql, *values)
    except apsw.Error:
        return None


def _is_subagents(form: Format, path: Path, session: str = "") -> bool:
    if "sql" in form:
        return bool(_client_rows(path, form["sql"]["subagents"], session))
    pattern = form.get("subagents")
    return pattern is not None and re.search(pattern.encode(), _first_line(path)) is not None


def _session_in(form: Format, path: Path) -> str:
    """The id of a file's session: as the client noted it, else from the file's name."""
    first = core.parse_object(_first_line(path)) if "session" in form else {}
    return valid_id(_lookup(first, form.get("session", ""))) or path.stem[-36:]


def _folder_in(form: Format, path: Path, session: str) -> str:
    """The client's working folder, or "" if it is not noted."""
    if "folder_file" in form:
        return core.plain_text(path.parent / form["folder_file"])
    if "sql" in form:
        rows = _client_rows(path, form["sql"]["folder"], session)
        if rows == []:
            raise core.NotFound(f"{path} has no session {session}")
        return str(rows[0][0]) if rows else ""
    for _, line in itertools.islice(transcript_lines(path), TRANSCRIPT_HEAD):
        if found := _FOLDER.search(line):
            return core.parse_object(b"{%b}" % found[0]).get("cwd", "")
    return ""


def _coded_in(form: Format, path: Path) -> str:
    relative = form.get("coded_folder")
    return Path(os.path.normpath(path.parent / relative)).name if relative else ""


def folder_of(projects: core.Projects, conversation: Conversation) -> str | None:
    """The working folder of a session's client, known by its code where only that is noted."""
    if conversation.folder or not conversation.coded:
        return conversation.folder
    coded = _coded(conversation.coded)
    return next((folder for folder in projects.folders() if _coded(folder) == coded), None)


def _coded(folder: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", folder).strip("-")


def client_folder(places: Sequence[str]) -> str:
    """The first of a client's places whose variable, if it begins with one, is set; expanded."""
    for place in places:
        if not place.startswith("$") or core.variable(place[1:].partition("/")[0]):
            return os.path.expandvars(place)
    return ""


def session_place(client: str) -> Path:
    """The folder below which a client keeps its sessions, or its database."""
    return core.real_path(
        Path(os.path.expanduser(client_folder(transcript_format(client)["home"])))
    )


def sessions_of(client: str, since: int = 0) -> Iterator[tuple[Path, str]]:
    """(file, id) of a client's sessions changed since a time, newest last, without subagents'."""
    form, place = transcript_format(client), session_place(client)
    if "sql" in form:
        rows = _client_rows(place, form["sql"]["sessions"], since)
        unknown = [("",)] if os.path.isfile(place) else []  # reading it gives a remark
        yield from ((place, id) for (id,) in (unknown if rows is None else rows))
        return
    found = []
    for path in place.glob(form["files"]):
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime
            is_wanted = changed >= since and os.path.isfile(path)  # a pipe would be read for ever
            found += [(changed, path)] if is_wanted and not _is_subagents(form, path) else []
    yield from ((path, _session_in(form, path)) for _, path in sorted(found))


def session_file(client: str, path: str) -> tuple[str, Path | None]:
    """The client whose session a file is, and the file; ("", None) for files outside clients'
    folders."""
    formats = transcripts()["formats"]
    if "sql" in formats.get(client, ()):
        return client, session_place(client)
    there = core.whole_path(path) if path else Path()
    for name, form in formats.items():
        top = session_place(name) if "files" in form else there
        inside = there != top and core.is_in(there, top)
        if inside and _has_pattern(core.beneath(there, top), form["files"]):
            return name, there
    return "", None


def _has_pattern(path: str, pattern: str) -> bool:
    """Whether `Path.glob` would find a path: "*" is in one name, "**/" any folders or none."""
    form = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    return re.fullmatch(form, path, re.DOTALL) is not None


def client_of(path: Path) -> str:
    """The client in whose format the first lines of a file have a prompt; "" if none is."""
    lines = itertools.islice(transcript_lines(path), TRANSCRIPT_HEAD)
    entries = [(place, core.parse_object(line)) for place, line in lines]
    for name, form in transcripts()["formats"].items():
        may_be = "session" not in form or any(_lookup(row, form["session"]) for _, row in entries)
        if "files" in form and may_be and turns_in(entries, form, 0)[0]:
            return name
    return ""


def all_sessions(clients: Iterable[str], since: int = 0) -> Iterator[Conversation]:
    """The sessions of clients on this machine; of what cannot be read, one with a remark."""
    for client in clients:
        for path, session in sessions_of(client, since):
            try:
                yield read_conversation(client, path, session=session)
            except core.SedimentError as error:
                yield Conversation(client, session, None, [], 0, str(error))

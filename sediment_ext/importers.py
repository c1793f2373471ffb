"""Import what other programs export, and sessions of agents' clients.

ChatGPT's and Claude.ai's archives, the MCP memory server's graph, basic-memory's notes, the
original Sediment. `json_lines` reads rows of our own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import click

import sediment as core
from sediment_ext import conversations, encryption, files, json_lines, markdown, transcripts

CONSOLIDATE_TIME = 10  # s at the end of an import; what is left waits for the next one


# What other programs export.

_CHATS = core.LazyPattern(
    rb'\s*\[(?:[\s\S]*?"(?:mapping": ?\{\s*"[^"]*": ?\{\s*"(?:id|message|parent|children)'
    rb'|chat_messages": ?\[\s*\{\s*"\w+)"'
    # or a first chat in which nothing was said, known by what else stands in it
    rb'|\s*\{\s*"uuid": ?"[^"]*",[\s\S]*?"chat_messages": ?\[\s*\]'
    rb'|\s*\{\s*"title": ?(?:null|"(?:[^"\\]|\\.)*+"),\s*"create_time":'
    rb'[\s\S]*?"mapping": ?\{\s*\})'
)
_GAP = core.LazyPattern(r"[\s,]*")
# A fact in one line, with its fields in any order; an own row has a "content".
_GRAPH = core.LazyPattern(rb'\s*\{(?![^\n]*"content" ?:)[^\n]*?"type": ?"(?:entity|relation)"')
_OBSERVED = core.LazyPattern(r"\s*[-*] \[([^\]\[]{2,})\] (.+)")
_RELATED = core.LazyPattern(r"\s*[-*] ([^\[\]]+?) ?\[\[([^\[\]]+)\]\](.*)")


def open_archive(path: Path) -> tuple[str, Iterator[Any]]:
    """An export as ("conversations", iterator) or ("rows", iterator). InvalidInput if it is
    unknown."""
    head = next(_exported(path, 2**16), b"").removeprefix(core.UTF8_MARK)
    if _CHATS.match(head):
        return "conversations", map(_exported_conversation, _exported_chats(path))
    if _GRAPH.match(head):
        return "rows", (_graph_rows(line) for _, line in transcripts.transcript_lines(path))
    notes = _files_without_links(path, "**/*.md")
    if any("\npermalink:" in core.plain_text(note) for note in notes):
        return "rows", (row for note in notes for row in _rows_of_note(note))
    known = "an export of ChatGPT's or Claude.ai's, the MCP memory server's file or a folder"
    raise core.InvalidInput(f"{path} is not {known} of basic-memory's notes: name one of these")


def _files_without_links(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder, in order. A link is left out: others made it, to whatever file."""
    return [path for path in sorted(folder.glob(pattern)) if not path.is_symlink()]


def _exported(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes of each file with conversations in a folder, a ZIP archive, or of a
    file."""
    try:
        if os.path.isdir(path):
            for part in _files_without_links(path, "conversations*.json"):
                yield from _exported(part, size)
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    if re.search(r"(?:^|/)conversations[^/]*\.json$", name):
                        yield archive.open(name).read(size)
        else:
            with open(path, "rb") as file:
                yield file.read(size)
    except core.SedimentError:
        raise
    except Exception as error:  # each kind of compression has errors of its own
        reason = str(error) or error.__class__.__name__
        raise core.InvalidInput(f"{path} cannot be read ({reason})") from None


def _exported_chats(path: Path) -> Iterator[Any]:
    """The chats of an export, parsed one by one: all of a file at once take ten times its size."""
    for data in _exported(path, core.DOCUMENT_MAX + 1):
        if len(data) > core.DOCUMENT_MAX:
            raise json_lines.too_large(f"a file of {path}")
        text = data.decode("utf-8-sig", "replace")
        place = _GAP.match(text, text.find("[") + 1).end()
        while text[place : place + 1] != "]":
            try:
                chat, place = json.JSONDecoder().raw_decode(text, place)
            except (ValueError, RecursionError):
                reason = f"is damaged after {place:,} characters; everything before was imported"
                raise core.InvalidInput(f"{path} {reason}") from None
            yield chat
            place = _GAP.match(text, place).end()


def _exported_conversation(chat: Any) -> transcripts.Conversation:
    """A chat of ChatGPT's, a tree of which one branch is shown, or of Claude.ai's, a list."""
    chat = chat if isinstance(chat, dict) else {}
    nodes, node, entries = chat.get("mapping"), chat.get("current_node"), []
    client = "chatgpt" if "mapping" in chat else "claude.ai"
    while isinstance(nodes, dict) and isinstance(node, str) and node in nodes:
        entries.append(nodes.pop(node))  # so that a loop of parents ends
        node = entries[-1].get("parent") if isinstance(entries[-1], dict) else None
    listed = chat.get("chat_messages")
    entries = listed if isinstance(listed, list) else entries[::-1]
    moment = transcripts.unix_seconds(chat.get("create_time") or chat.get("created_at"))
    turns = transcripts.turns_in(
        enumerate(entries), transcripts.transcripts()["formats"][client], moment
    )[0]
    ids = [
        id
        for name in ("uuid", "conversation_id", "id")
        if (id := transcripts.valid_id(chat.get(name)))
    ]
    first = [f"{turn.at}:{turn.prompt}" for turn in turns[:1]]  # for a chat without an id
    return transcripts.Conversation(
        client, [*ids, *map(core.short_hash, first), ""][0], None, turns, 0
    )


def _graph_rows(line: bytes) -> Any:
    """A line of the MCP memory server's file as rows; any other line as text, to be refused."""
    fact = core.parse_object(line.removeprefix(core.UTF8_MARK))
    relation = [fact.get(key) for key in ("from", "relationType", "to")]
    if fact.get("type") == "relation" and all(part and isinstance(part, str) for part in relation):
        return [{"content": " ".join(map(str, relation))}]
    name, kind, listed = (fact.get(key) for key in ("name", "entityType", "observations"))
    listed = [listed] if isinstance(listed, str) else listed
    if name and isinstance(name, str) and isinstance(listed, list):
        return [{"content": f"{name} ({kind}): {observation}"} for observation in listed]
    return line.decode("utf-8", "replace")


def _rows_of_note(path: Path) -> list[Any]:
    """Rows of a note of basic-memory; an error, to be refused, if it is not text."""
    try:
        note = files.read_file(core.real_path(path))
        if not note.is_utf8:
            raise files.Skipped("is not all UTF-8")
    except files.Skipped as skipped:
        return [core.InvalidInput(f"{path} {skipped}: nothing of it was taken")]
    return list(_note_rows(path.stem, note.text))


def _note_rows(name: str, text: str) -> Iterator[dict[str, Any]]:
    """Rows of a note's observations, of its relations, and then of the rest, by sections."""
    front = markdown.FRONT_MATTER.match(text)
    title = front and re.search(r"^title:[ \t]*(.+)$", front[0], re.MULTILINE)
    name = title[1].strip("\"' ") if title else name
    shown, rest = markdown.visible(text), []
    for (_, line), (_, plain) in zip(
        core.lines_with_start(shown), markdown.unfenced_lines(shown), strict=True
    ):
        if found := _OBSERVED.match(plain):
            yield {"content": f"{name} ({found[1]}): {found[2]}"}
        elif found := _RELATED.match(plain):
            yield {"content": f"{name} {found[1]} {found[2]}{found[3].rstrip()}"}
        else:
            rest.append(line)
    yield from _prose_rows(name, "".join(rest))


def _prose_rows(name: str, text: str) -> Iterator[dict[str, Any]]:
    """Rows of the sections of a note that have a text."""
    for start, end, _ in markdown.markdown_sections(text):
        headings = [markdown.Heading(0, 0, 0, name), *markdown.headings_in(text[start:end])]
        title = headings[-1].title
        if body := text[start + headings[-1].end : end].strip():
            about = name if title == name else f"{name} ({title})"
            yield {"content": f"{about}: {body}"}


def original_rows(program: Path) -> Iterator[dict[str, Any]]:
    """The items of the original Sediment, as its program lists them; its server cuts texts."""
    seen = set()
    scopes = {"global": {"scope": "global"}, "project": {}, "all": {"project": "original"}}
    for scope, extra in scopes.items():
        words = [str(program), "--json", "list", "--scope", scope, "--limit", "1000000"]
        env = core.environment(left_out="SEDIMENT_DB")
        try:
            done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True)
        except OSError as error:
            raise core.InvalidInput(f"{program} cannot be run ({error.strerror})") from None
        items = core.parse_object(done.stdout).get("items")
        if done.returncode or not isinstance(items, list):
            reason = core.one_line(done.stderr.decode("utf-8", "replace"), 200)
            raise core.InvalidInput(
                f"{program} does not list its items as the original does ({reason})"
            )
        for item in items:
            if isinstance(item, dict) and item.get("id") not in seen:
                seen.add(item.get("id"))
                yield {name: item.get(name) for name in ("id", "content", "created")} | extra


def run_import(
    shared: core.Context, file: str | None = None, origin: str | None = None, **options: Any
) -> None:
    """Import rows or conversations: each has options of its own."""
    start = time.monotonic()
    chosen = {name: options.pop(name, None) for name in ("since", "here", "dry_run")}
    names = ("identity", "passphrase_file", "passphrase_fd")
    key = {name: options.pop(name) for name in names if name in options}
    since = core.parse_moment(chosen["since"] or 0)
    kind, rows, total = _to_import(file, origin, since, key)
    core.refuse_unused(click.get_current_context(), **{kind: True})
    with shared.memory(resident=True) as memory:
        try:
            with core.progress_bar("importing", total) as add:
                if kind != "conversations":
                    answer = memory.import_rows(rows, progress=add, **options)
                else:
                    wanted = turns_since(rows, since, memory if chosen["here"] else None)
                    answer = memory.add_conversations(wanted, add, dry_run=bool(chosen["dry_run"]))
        except KeyboardInterrupt:
            reason = "Interrupted. Run the same command to continue."
            raise core.SedimentError(reason) from None
        answer["seconds"] = round(time.monotonic() - start, 1)
        answer |= {"dry_run": True} if chosen["dry_run"] else {}
        _finish_import(memory, shared, answer)
    if answer.get("refused"):
        raise click.exceptions.Exit(1)


def _finish_import(memory: core.Memory, shared: core.Context, answer: dict[str, Any]) -> None:
    """Tell what was imported, and do what that leaves to do: JSON tells both in one document."""
    render = core.render_imported if "stored" in answer else conversations.render_kept_conversations
    if not shared.json:
        shared.show(answer, render)
    try:
        core.finish_pending(memory)
        answer |= _finish_consolidation(memory)
    finally:
        if shared.json:
            shared.show(answer, render)


def _to_import(
    file: str | None, origin: str | None, since: int, key: dict[str, Any]
) -> tuple[str, Iterable[Any], int | None]:
    """("rows", "conversations" or "encrypted" rows, these, how many lines there are or None if that
    is not known)."""
    names = list(dict.fromkeys((origin or "").replace(",", " ").split()))
    exports = (["chatgpt"], ["claude.ai"])  # whose files are known by their contents, too
    if (file is None) == (names in ([], ["sediment"], *exports)):
        raise click.UsageError("give a FILE, or --from CLIENT")
    if file is None:
        try:
            _ = [transcripts.transcript_format(name) for name in names]
        except core.InvalidInput as error:
            raise click.UsageError(str(error)) from None
        return "conversations", transcripts.all_sessions(names, since), None
    path = core.expand_home(file)
    if names == ["sediment"]:
        return "rows", original_rows(path), None
    if names or path.is_dir() or path.suffix == ".zip":
        return *open_archive(path), None
    if path.is_file():  # a pipe can be read only once
        with contextlib.suppress(core.InvalidInput):
            return *open_archive(path), None
        _refuse_without_rows(path)
    lines: IO[bytes] = click.File("rb").convert(file, None, click.get_current_context())
    opened = encryption.opened(lines, **key)
    head = lines.peek() if isinstance(lines, io.BufferedReader) else b""
    if (opened.getvalue() if opened else head).startswith(b"SQLite format 3\0"):
        raise core.InvalidInput(f"{file} is a database: `restore` takes a backup, `import` exports")
    if opened:
        return "encrypted", json_lines.text_lines(opened), opened.getvalue().count(b"\n")
    return "rows", json_lines.text_lines(lines), _count_lines(lines)


def _refuse_without_rows(path: Path) -> None:
    """InvalidInput of a file whose contents another command takes."""
    if client := transcripts.client_of(path):
        remedy = f"`import --from {client}` imports the conversations on this machine"
        raise core.InvalidInput(f"{path} is a session of {client}, not memories: {remedy}")
    if path.suffix.lower() in (".md", ".markdown"):
        raise core.InvalidInput(f"{path} is markdown: `index {path}` makes it searchable")


def turns_since(
    conversations: Iterable[transcripts.Conversation], since: int, memory: core.Memory | None
) -> Iterator[transcripts.Conversation]:
    """Conversations with their turns since a time; if a memory is given, those in its project."""
    here = memory and (memory.projects.root or core.find_root(Path.cwd()))
    for talk in conversations:
        folder = memory and transcripts.folder_of(memory.projects, talk)
        if memory is None or (folder and core.find_root(Path(folder)) == here):
            yield talk._replace(turns=[turn for turn in talk.turns if turn.at >= since])


def _count_lines(file: IO[bytes]) -> int | None:
    """How many lines a file has from where it is; None for a pipe or device."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return None
    start, count, last = file.tell(), 0, b"\n"
    while part := file.read(2**20):
        count, last = count + part.count(b"\n"), part[-1:]
    file.seek(start)  # not 0: the shell may have read a part of stdin
    return count + (last != b"\n")


def _finish_consolidation(memory: core.Memory) -> dict[str, int]:
    """Merge what an import brought twice. Returns {to_review}: the number of pairs that may
    conflict."""
    if not core.consolidates() or not memory.has_chores():
        return {}
    sys.stdout.flush()
    with core.put_off("the next import, consolidate or serve goes on with what was imported"):
        deadline = time.monotonic() + CONSOLIDATE_TIME
        answer = memory.consolidate(stop=lambda: time.monotonic() > deadline)
        if answer["merged"]:
            merged = f"merged {answer['merged']} that said the same as another"
            click.echo(f"{merged} (`history` and `undo` know them)", err=True)
        if memory.has_chores():
            later = "`consolidate`, the next import or serve goes on"
            click.echo(f"many are alike, and not all are compared yet: {later}", err=True)
            return {}
        if count := sum("probability" in pair for pair in memory.review()["pairs"]):
            click.echo(f"{count} may make an older one obsolete: `sediment review` asks", err=True)
        return {"to_review": count}
    return {}

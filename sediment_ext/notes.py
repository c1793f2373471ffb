"""Write files: the day's note, lines of lasting facts, and summaries of old notes.

A person's file is only appended to. Notes that are compacted are moved, not deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import numpy

import sediment as core
from sediment_ext import files as indexing
from sediment_ext import markdown, systems, walking

SUMMARY = "summary-"  # begins the name of a summary
REPEATED_COSINE = 0.9  # notes from which up `compact` says that they repeat one another


def _numbered(path: Path) -> Iterator[Path]:
    """A path, and then the same with a number behind its stem."""
    yield path
    yield from (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))


class Entry(core.NamedTuple):
    """A text to be appended to a file as an item of a list."""

    text: str
    path: Path
    before: str = ""  # what stands in front of it, as the time of day
    beginning: str = ""  # of the file, if it is new


NOTES = (".md", ".markdown", ".txt", "")  # suffixes of files that a text is stored into


def own_place_to_write(projects: core.Projects, given: str | Path) -> Path:
    """Like `place_to_write`, but never the database."""
    projects.database.refuse_own(given)
    return core.check_name(core.place_to_write(given, core.find_root(projects.top)))


def day_note(projects: core.Projects, text: str, folder: str | Path | None) -> Entry:
    """A text as an entry of today's note in a folder."""
    now = datetime.now()
    top = folder or (projects.root or core.absolute_path(".")) / core.NOTES_FOLDER
    path = own_place_to_write(projects, own_place_to_write(projects, top) / f"{now:%Y-%m-%d}.md")
    return Entry(text, path, f"{now:%H:%M} ", f"# {now:%Y-%m-%d}\n\n")


def store_into(
    memory: core.Memory, content: str, into: str | Path, scope: str | None, allow_secrets: bool
) -> dict[str, Any]:
    """What `Memory.store` does with a text for a file."""
    entry = Entry(content, own_place_to_write(memory.projects, into))
    if entry.path.suffix.lower() not in NOTES or entry.path.name.startswith("."):
        raise core.InvalidInput(f"{into} is no note: name a file like MEMORY.md")
    chosen = scope or "project", allow_secrets
    return write_down(memory.projects, memory.encoder, entry, *chosen)


def add_note(
    memory: core.Memory, text: str, folder: str | Path | None, allow_secrets: bool
) -> dict[str, Any]:
    """What `Memory.note` does."""
    entry = day_note(memory.projects, text, folder)
    return write_down(memory.projects, memory.encoder, entry, "project", allow_secrets)


def write_down(
    projects: core.Projects, encoder: core.Encoder, entry: Entry, scope: str, allow_secrets: bool
) -> dict[str, Any]:
    """Append an entry to its file, and index that."""
    scope, path = core.check_scope(scope), entry.path
    text, redacted = core.cleaned(
        core.check_text(entry.text, "content", core.CONTENT_MAX), allow_secrets
    )
    if path.is_dir():
        raise core.InvalidInput(f"{path} is a folder: name a file in it, e.g. MEMORY.md")
    line, is_new = append_lines(path, entry.beginning, as_bullet(text, entry.before))
    source = f"{projects.shown(path)}:{line}"
    try:
        files = indexing.files_of_scope(projects, encoder, scope, allow_secrets)
        files.source_for(path.parent if path.parent.name == core.NOTES_FOLDER else path, None)
        files.sync(files.plan([path]))
    except core.DatabaseError as error:
        remedy = f"the text stands in {source}, which `index {path}` takes up later"
        raise core.DatabaseError(f"{error}; {remedy}") from None
    id = files.part_at(path, line)
    message = f"{'Added to' if is_new else 'Already in'} {source}."
    if redacted:
        message += core.redaction_message(redacted)
    if id is None:
        rows = (row for row in [*files.skipped, *files.warnings] if row["path"] == str(path))
        reason = ", ".join(row["reason"] for row in rows) or "has changed meanwhile"
        message += f" Recall cannot find it: the file {reason}."
    answer = {"success": True, "id": id, "scope": scope, "source": source}
    return answer | ({"redacted": redacted} if redacted else {}) | {"message": message}


def append_lines(path: Path, beginning: str, lines: list[str]) -> tuple[int, bool]:
    """Append lines to a file, all or nothing. Returns the number of the first line, and False if
    they stand there already. InvalidInput if the file cannot be written or would not be indexed."""
    try:
        made = not path.parent.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        if made:
            core.make_private(path.parent, 0o700)
        with systems.locked_file(path) as file:
            before, size, newline = _text_before(file)
            lines = _without_comments(lines, before)
            if number := _line_number_of(lines, before):
                return number, False
            gap = "" if before.endswith("\n") else "\n"
            added = (gap if before else beginning) + "\n".join(lines) + "\n"
            data = added.replace("\n", newline).encode()
            indexing.check_size(size + len(data))
            _append(file, data, size)
            return (before + added).count("\n") - len(lines) + 1, True
    except indexing.Skipped as skipped:
        raise core.InvalidInput(
            f"{path} {skipped}: nothing was written; name another file"
        ) from None
    except OSError as error:
        raise core.InvalidInput(f"{path} cannot be written ({error.strerror})") from None


def _text_before(file: IO[bytes]) -> tuple[str, int, str]:
    """The text of a file, its size in bytes, and how most of its lines end."""
    size = os.fstat(file.fileno()).st_size
    indexing.check_size(size)
    data = file.read()
    text, is_utf8 = indexing.decode_text(data)
    if not is_utf8:  # what is added is, and no program could read both
        raise indexing.Skipped("is not all UTF-8")
    return text, size, "\r\n" if 2 * data.count(b"\r\n") > data.count(b"\n") else "\n"


_COMMENT_BEGIN = r"(?<!\\)<!--"


def _without_comments(lines: list[str], before: str) -> list[str]:
    """Lines in which no comment begins, and none of the file ends: it would hide what stands before
    or after them."""
    text = re.sub(_COMMENT_BEGIN, r"\\<!--", "\n".join(lines))
    if re.search(_COMMENT_BEGIN, before):
        text = text.replace("-->", r"--\>")
    return text.split("\n")


def _line_number_of(lines: list[str], text: str) -> int:
    """The number of the line where an item of a list begins in what is visible of a text, or 0."""
    shown = [line.rstrip() for _, line in markdown.unfenced_lines(markdown.visible(text))]
    size = len(lines)
    for start in range(len(shown)):
        after = shown[start + size : start + size + 1]
        if shown[start : start + size] == lines and not any(line[:1].isspace() for line in after):
            return start + 1
    return 0


def _append(file: IO[bytes], data: bytes, size: int) -> None:
    try:
        while data:
            data = data[os.write(file.fileno(), data) :]
        systems.write_through(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(file.fileno(), size)
        raise


def as_bullet(text: str, before: str = "") -> list[str]:
    """A text as an item of a markdown list, over as many lines as it has."""
    first, *others = text.strip().splitlines()
    return [f"- {before}{first}", *(f"  {line}".rstrip() for line in others)]


# Compacting


class OldNote(core.NamedTuple):
    """A daily note."""

    path: Path
    day: datetime
    text: str  # without secrets
    digest: str  # SHA-256 of the file


def old_notes(folder: Path, before: int) -> tuple[list[OldNote], dict[Path, str]]:
    """The notes of a folder dated before a time, by day; and why others cannot be read."""
    notes, skipped = list[OldNote](), dict[Path, str]()
    for path in walking.walk(folder, walking.Options()):
        day = walking.date_of(path) if path.parent == folder else None
        if day and day.timestamp() < before and not path.name.startswith(SUMMARY):
            try:
                _, text, data, _ = indexing.read_file(path)
                text, _ = core.redact(text, core.redacts())
                notes.append(OldNote(path, day, text.strip(), core.sha256(data).hex()))
            except indexing.Skipped as reason:
                skipped[path] = str(reason)
    return sorted(notes, key=lambda note: (note.day, note.path)), skipped


def run_filter(command: str, text: str, timeout: float) -> str:
    """What a command line prints for a text, within `timeout` s; InvalidInput says what failed. Its
    errors go where those of this program go."""
    if not isinstance(timeout, int | float) or not 0 < timeout <= core.DAY:
        raise core.InvalidInput(
            f"timeout must be a number of seconds to {core.DAY:,}, not {core.shown_value(timeout)}"
        )
    data = text.encode("utf-8", "backslashreplace")  # names of files are of any bytes
    most = 4 * len(text)  # bytes of as many characters
    options: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    options |= {"shell": True, "start_new_session": True, **core.no_window()}
    process: Any = subprocess.Popen(command, **options)
    end = time.monotonic() + timeout
    core.ThreadCall(lambda: _write_pipe(process.stdin, data), daemon=True)
    try:
        output = core.ThreadCall(lambda: _beginning_of_pipe(process.stdout, most + 1), daemon=True)
        printed = output.result(timeout)
        if len(printed) > most:
            raise _no_summary("no fewer characters than the notes have")
        if code := process.wait(max(0.0, end - time.monotonic())):
            raise core.InvalidInput(f"{command!r} failed with {code}: nothing was changed")
    except BaseException as error:
        systems.end_all(process)
        if isinstance(error, subprocess.TimeoutExpired | TimeoutError):
            reason = f"ran past {timeout:g} s: nothing was changed"
            raise core.InvalidInput(f"{command!r} {reason}") from None
        raise
    return printed.decode("utf-8", "replace").strip()


def _write_pipe(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError), pipe:  # nobody need read all of it
        pipe.write(data)


def _beginning_of_pipe(pipe: IO[bytes], most: int) -> bytes:
    with pipe:
        return pipe.read(most)


def check_summary(summary: str, characters: int) -> None:
    """InvalidInput if a text cannot stand for notes of so many characters."""
    unmarked = re.sub(r"\[(?:private|redacted: [\w ]+)\]", "", markdown.visible(summary))
    reasons = {
        "nothing": not summary,
        "something that is not text": "\ufffd" in summary or core.CONTROL.search(summary),
        "no fewer characters than the notes have": len(summary) >= characters,
        "nothing that recall could find": not any(map(str.isalnum, unmarked)),
    }
    if reason := next((reason for reason, found in reasons.items() if found), ""):
        raise _no_summary(reason)


def _no_summary(printed: str) -> core.InvalidInput:
    return core.InvalidInput(f"the command printed {printed}: nothing was changed")


def check_not_ignored(path: Path) -> None:
    """InvalidInput for a file that an index of its folder would leave out."""
    if walking.matches_rules(
        path, False, walking.ignored_in(path.parent) + walking.ignored_above(path.parent)
    ):
        reason = f"git ignores {path.name}, so recall would not find it"
        raise core.InvalidInput(f"{reason}: nothing was changed")


_DAY_HEADING = core.LazyPattern(r"^#{1,6} \d{4}-\d\d-\d\d[ \t]*$", re.MULTILINE)


def repeated(rows: list[tuple[str, str, Any]]) -> list[tuple[float, str, str]]:
    """Pairs of rows (source, text, vector) that say the same, as (cosine, source, source). Pairs
    that differ in a number or a "not" do not count."""
    texts = [_DAY_HEADING.sub("", text) for _, text, _ in rows]
    matrix = core.stack_vectors(rows) if rows else numpy.empty((0, 1))
    pairs = []
    for start in range(0, len(rows), core.EXAMINE_BATCH):
        cosines = matrix[start : start + core.EXAMINE_BATCH] @ matrix.T
        for row, other in numpy.argwhere(cosines >= REPEATED_COSINE).tolist():
            one = start + row
            if one < other and not core.differences(texts[one], texts[other]):  # each pair once
                pairs.append((float(cosines[row, other]), rows[one][0], rows[other][0]))
    return sorted(pairs, reverse=True)


class Compaction:
    """The notes of a folder older than a time, which a summary is to replace."""

    def __init__(self, files: indexing.Files, path: str | Path, before: int) -> None:
        self.files, self.projects = files, files.projects
        self.folder = walking.check_not_root(own_place_to_write(self.projects, path))
        if not os.path.isdir(self.folder):
            raise core.NotFound(
                f"{self.folder} is not a folder: name the folder of the notes, such as memory/"
            )
        self.notes, self.skipped = old_notes(self.folder, before)
        self.characters = sum(len(note.text) for note in self.notes)

    def _answer(self, **more: Any) -> dict[str, Any]:
        shown = self.projects.shown
        rows = [{"path": shown(note.path), "characters": len(note.text)} for note in self.notes]
        skipped = [{"path": shown(path), "reason": why} for path, why in self.skipped.items()]
        return {"notes": rows, "characters": self.characters, "skipped": skipped, **more}

    def _input(self) -> str:
        """The notes as one text, each under its file's name."""
        return "".join(
            f"<!-- {core.printable_name(core.beneath(note.path, self.folder))} -->\n{note.text}\n\n"
            for note in self.notes
        )

    def preview(self, sent: bool) -> dict[str, Any]:
        """What would be sent to a command, or else which notes say nearly the same."""
        if sent:
            return self._answer(input=self._input())
        rows = [
            (f"{self.projects.shown(path)}:{part.first}-{part.last}", part.content, vector)
            for path in walking.walk(self.folder, walking.Options())
            if walking.date_of(path)
            for part, vector in self.files.vectors(path)
        ]
        repeats = [
            {"similarity": core.shown_score(cosine), "sources": sources}
            for cosine, *sources in repeated(rows)
        ]
        return self._answer(repeats=repeats)

    def run(self, command: str, timeout: float) -> dict[str, Any]:
        """Put what a command makes of the notes in their place, if recall finds it."""
        if not self.notes:
            return self._answer(message="No note is that old.")
        own_place_to_write(self.projects, self.folder / walking.ARCHIVE)
        printed = run_filter(command, self._input(), timeout)
        summary, _ = core.redact(indexing.plain_newlines(printed), core.redacts())
        check_summary(summary, self.characters)
        first, last = (f"{note.day:%Y-%m-%d}" for note in (self.notes[0], self.notes[-1]))
        name = f"{SUMMARY}{first}-to-{last}.md"
        text = f"# Summary of {first} to {last}\n\n{summary}\n"
        check_not_ignored(self.folder / name)
        check_found(self.files.encoder, name, text)
        target = self._put_in_place(name, text)
        if self.files.covers(self.folder):
            indexing.index_paths(self.files, [self.folder], walking.Options())
        saved = f"{self.characters:,} characters became {len(summary):,}"
        where = f"{len(self.notes)} notes are in archive/ ({saved})"
        return self._answer(
            summary=summary,
            path=str(target),
            archive=str(self.folder / walking.ARCHIVE),
            message=f"Wrote {self.projects.shown(target)}; {where}.",
        )

    def _put_in_place(self, name: str, text: str) -> Path:
        """Write the summary and archive the notes, or take all of it back; returns its path. The
        summary comes first: a kill in between hides no text."""
        archive = own_place_to_write(self.projects, self.folder / walking.ARCHIVE)
        try:
            with self.files.database.transaction():  # in one process at a time
                for note in self.notes:
                    _check_unchanged(note, note.path)
                target = core.free_name(_numbered(self.folder / name))
                with core.replacing(target, 0o600, new=True) as file:
                    file.write(text)
                self._move_notes(archive, target)
        except OSError as error:
            reason = f"{self.folder} cannot be written ({error.strerror})"
            raise core.InvalidInput(f"{reason}: nothing was changed") from None
        return target

    def _move_notes(self, archive: Path, summary: Path) -> None:
        """Move the notes into the archive; or take that back, and delete their summary."""
        moved: list[tuple[Path, Path]] = []
        try:
            archive.mkdir(exist_ok=True)
            for note in self.notes:
                new = core.free_name(_numbered(archive / note.path.name))
                moved.append((note.path, new))
                os.rename(note.path, new)
                _check_unchanged(note, new)  # somebody may have written into it at that moment
        except BaseException:
            for old, new in moved:
                with contextlib.suppress(OSError):
                    if not os.path.lexists(old):
                        os.rename(new, old)
            summary.unlink()
            raise


def _check_unchanged(note: OldNote, path: Path) -> None:
    """InvalidInput unless a path has the text of a note that was summarised."""
    with contextlib.suppress(OSError):
        if note.digest == core.sha256(path.read_bytes()).hex():
            return
    raise core.InvalidInput(f"{note.path} has changed meanwhile: nothing was changed")


def render_compacted(answer: dict[str, Any]) -> Iterator[str]:
    """What would be sent, what was written, or what there is to compact."""
    if "input" in answer:
        yield core.printable(answer["input"].rstrip("\n"))
        return
    if "summary" in answer:
        yield core.printable(answer["summary"])
    yield from indexing.lines_of_files("skipped", answer["skipped"])
    if "message" in answer:
        yield from core.render_message(answer)
        return
    for row in answer["notes"]:
        yield core.printable_name(f"old      {row['path']} ({row['characters']:,} characters)")
    for row in answer["repeats"]:
        yield core.printable_name(f"repeats  {row['similarity']:.2f}  {'  '.join(row['sources'])}")
    saved = f"--with CMD would put a summary in the place of {answer['characters']:,} characters"
    old = len(answer["notes"])
    yield f"{old} old notes; {saved}." if old else "No note is that old."


def compact(
    memory: core.Memory,
    path: str | Path,
    before: int,
    command: str | None,
    timeout: float,
    dry_run: bool,
) -> dict[str, Any]:
    """What `Memory.compact` does with the notes from before a time."""
    files = indexing.Files(memory.projects, memory.encoder, memory.projects.current())
    compaction = Compaction(files, path, before)
    if dry_run or command is None:
        return compaction.preview(dry_run)
    return compaction.run(command, timeout)


def check_found(encoder: core.Encoder, name: str, text: str) -> None:
    """InvalidInput unless recall finds each part of a file with this text by how the part begins.
    This is tried in a database of its own, so that recall shows nobody what is then refused."""
    with (
        tempfile.TemporaryDirectory() as place,
        core.Memory(Path(place) / "memory.db", project="summary") as trial,
    ):
        trial._encoder = encoder
        path = Path(place) / name
        path.write_text(text, "utf-8", newline="")
        skipped = trial.index([path])["skipped"]
        rows = trial.database.rows("SELECT content FROM items WHERE file IS NOT NULL")
        parts = [part for (part,) in rows]
        reason = f"it {skipped[0]['reason']}" if skipped else ""
        for beginning in (" ".join(part.split()[:20])[: core.EXCERPT] for part in parts):
            if not trial.recall(beginning, record=False)["results"]:
                reason = f"nothing is found for {core.shown_value(beginning)}"
    if reason or not parts:
        reason = reason or "there is nothing to index"
        raise core.InvalidInput(
            f"recall would not find this summary ({reason}): nothing was changed"
        )

"""Find the files of a folder that are to be indexed, with patterns as git reads them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import sediment as core
from sediment_ext import files, systems

ARCHIVE = "archive"  # the folder of archived notes


class Options(core.NamedTuple):
    """How a source is indexed: which files, and whether archived notes are among them."""

    globs: tuple[str, ...] = ()  # beside FILE_GLOBS
    exclude: tuple[str, ...] = ()
    archive: bool = False


def options(globs: str | Iterable[str], exclude: str | Iterable[str], archive: bool) -> Options:
    """How to index, of patterns of which one may be given by itself."""
    added, left_out = (tuple(map(str, files.as_list(given))) for given in (globs, exclude))
    return Options(added, left_out, archive)


DATE = core.LazyPattern(r"(\d{4})-(\d\d)-(\d\d)")


def date_of(path: Path) -> datetime | None:
    """The first date in a file's name, as daily notes have one; else None."""
    for found in DATE.finditer(path.stem):
        with contextlib.suppress(ValueError, OverflowError):
            year, month, day = map(int, found.groups())
            return core.to_local(datetime(year, month, day))
    return None


Skip = Callable[[Path, str], object]  # is told of what is passed by: a path, and why


def walk(
    top: Path,
    options: Options,
    enter: Callable[[Path], bool] = lambda _: True,
    skip: Skip = lambda *_: None,
) -> Iterator[Path]:
    """The files to index in a folder, in order, without links, hidden files, what git ignores, and
    what `compact` has moved into an archive. Only folders that `enter` accepts are listed."""
    chosen = rules_in_force(top, (*files.FILE_GLOBS, *options.globs))
    todo = [(top, ignored_above(top), False)] if has_no_link(top) else []
    while todo:
        folder, rules, is_chosen = todo.pop()
        if not enter(folder):
            continue
        entries = systems.folder_entries(folder)
        if not entries and (why := systems.why_closed(folder)):
            skip(folder, why)
        rules = ignored_in(folder) + rules  # the nearest decides
        folders = []
        for entry in _wanted_entries(folder, entries, top, options):
            path, is_folder = folder / entry.name, _is_folder(entry)
            fits = is_chosen or matches_rules(path, is_folder, chosen)
            if not (is_folder or fits) or matches_rules(path, is_folder, rules):
                continue
            if entry.is_symlink():
                name_link(path, top, skip)
            elif is_folder:
                folders.append((path, rules, fits))
            elif entry.is_file():
                yield path
        todo += reversed(folders)


def _wanted_entries(
    folder: Path, entries: list[os.DirEntry[str]], top: Path, options: Options
) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder that are not hidden, excluded, or the archive of notes."""
    excluded = rules_in_force(top, options.exclude)
    has_notes = folder.name == core.NOTES_FOLDER or any(
        entry.name.endswith(".md") and DATE.search(entry.name) for entry in entries
    )
    for entry in entries:
        is_folder = _is_folder(entry)
        is_archive = is_folder and has_notes and entry.name == ARCHIVE
        is_hidden = entry.name.startswith(".") or (is_archive and not options.archive)
        if not is_hidden and not matches_rules(folder / entry.name, is_folder, excluded):
            yield entry


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return os.path.isdir(entry) if entry.is_symlink() else entry.is_dir(follow_symlinks=False)


def name_link(path: Path, top: Path, skip: Skip) -> None:
    """Tell of a link that is passed by, unless it leads to what is indexed anyway, or nowhere."""
    target = core.real_path(path)
    if os.path.exists(target) and not core.is_in(target, top):
        skip(path, f"is a link: name {target} if that is meant")


def has_no_link(path: Path) -> bool:
    """Whether a path still has no link in it: a checkout may have put one there."""
    return os.path.realpath(path) == str(path)


# Patterns of a .gitignore. They are matched name by name: one regular expression for a whole path
# takes hours for `*a*a*a*a*b` or `**/a/**/a/**/b`, and a checkout may come
# from anybody. Those of fnmatch never retry an earlier star.


class _Segment(core.NamedTuple):
    """A part of a pattern between two slashes."""

    matches: Callable[[str], object]
    is_free: bool  # any number of folders may come before it, as after `**`


class Pattern(core.NamedTuple):
    """A line of a .gitignore. As git does, each folder on the way to a file is tested by itself."""

    includes: bool  # False of a line with "!", which takes back what an earlier one matches
    folders_only: bool
    segments: tuple[_Segment, ...]

    def fits(self, names: Sequence[str]) -> bool:
        """Whether it fits a path, given as the names of its folders and its own."""
        if len(self.segments) == 1 and self.segments[0].is_free:
            return bool(self.segments[0].matches(names[-1]))
        reached = {0}  # how many segments may be used up
        for name in names:
            steps = [(at, self.segments[at]) for at in reached if at < len(self.segments)]
            reached = {at + 1 for at, segment in steps if segment.matches(name)}
            reached |= {at for at, segment in steps if segment.is_free}
            if not reached:
                return False
        return len(self.segments) in reached


_SEGMENT = core.LazyPattern(r"(?:\\.|\[[!^]?+\]?+(?:(?!\[:)[^]])*+\]|[^\\\[])*+")


@functools.lru_cache(1024)
def read_pattern(line: str) -> Pattern | None:
    """A line of a .gitignore; None of an empty one or a comment, InvalidInput of no pattern."""
    text = re.sub(r"(?<!\\) +$", "", line.removesuffix("\r"))
    if not text or text.startswith("#"):
        return None
    path = text.removeprefix("!").removesuffix("/")
    names = (path if "/" in path else f"**/{path}").removeprefix("/").split("/")
    if not path or not core.is_unicode(Path(path)) or not all(map(_SEGMENT.fullmatch, names)):
        raise core.InvalidInput(
            f"{core.shown_value(line)} is no pattern: write it as in .gitignore"
        )
    names += ["*"] * (names[-1] == "**")  # all that is in that folder
    segments = (
        _Segment(_name_matcher(name), before == "**")
        for before, name in pairwise(["", *names])
        if name != "**"
    )
    return Pattern(not text.startswith("!"), text.endswith("/"), tuple(segments))


def _name_matcher(glob: str) -> Callable[[str], object]:
    """What tells whether a name fits a part of a pattern; fnmatch knows neither \\ nor [^."""
    import fnmatch

    plain = re.sub(r"\\(.)", lambda found: re.sub(r"[*?[]", r"[\g<0>]", found[1]), glob)
    return re.compile(fnmatch.translate(plain.replace("[^", "[!"))).match


class _Rule(core.NamedTuple):
    """A pattern and the folder that it is about, by the number of its parts."""

    base: int
    pattern: Pattern


@functools.lru_cache
def rules_in_force(base: Path, lines: tuple[str, ...]) -> tuple[_Rule, ...]:
    """The patterns in lines, last first: the last one that fits decides."""
    rules = []
    for line in reversed(lines):
        with contextlib.suppress(core.InvalidInput):  # to git, such a line matches nothing
            if pattern := read_pattern(line):
                rules.append(_Rule(len(base.parts), pattern))
    return tuple(rules)


def _rules_in(file: Path, base: Path) -> tuple[_Rule, ...]:
    return rules_in_force(base, tuple(core.plain_text(file).removeprefix("\ufeff").split("\n")))


def ignored_in(folder: Path) -> tuple[_Rule, ...]:
    return _rules_in(folder / ".gitignore", folder)


def ignored_above(top: Path) -> tuple[_Rule, ...]:
    """The ignore rules above a folder, up to its repository, and those of the user."""
    folders = [top, *folders_above(top)]
    rules = _ignored_besides(folders[-1])
    for inner, folder in reversed([*pairwise(folders)]):
        rules = ignored_in(folder) + rules
        if matches_rules(inner, True, rules):
            return ()  # what is asked for by name is indexed although git ignores all of it
    return rules


def _ignored_besides(root: Path) -> tuple[_Rule, ...]:
    """The rules of a repository's info/exclude, and of the user's core.excludesFile."""
    if (folders := core.git_folders(root)) is None:
        return ()
    default = f"{core.variable('XDG_CONFIG_HOME') or '~/.config'}/git/ignore"
    users = os.path.expanduser(_git_path(folders[0], "core.excludesFile") or default)
    return _rules_in(folders[1] / "info/exclude", root) + _rules_in(root / users, root)


def _git_path(own: Path, name: str) -> str:
    """A path that git's configuration has for a checkout, whoever set it; "" where it has none."""
    import subprocess

    words = ["git", "--git-dir", str(own), "config", "--type=path", "--get", name]
    folder = core.home() or own.anchor  # not in the checkout: PATH may have "." in it
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True}
    options |= {"timeout": core.GIT_TIMEOUT} | core.no_window()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # there is no git, or it is slow
        done = subprocess.run(words, cwd=folder, **options)
        return os.fsdecode(done.stdout).removesuffix("\n")
    return ""


def folders_above(top: Path) -> list[Path]:
    """The folders above one, up to its repository's top."""
    above = [top, *top.parents]
    end = next((place for place, folder in enumerate(above) if os.path.exists(folder / ".git")), 0)
    return above[1 : end + 1]


def matches_rules(path: Path, is_folder: bool, rules: tuple[_Rule, ...]) -> bool:
    """Whether the first of the rules that fits a path includes it."""
    names = path.parts
    fitting = (
        pattern.includes
        for base, pattern in rules
        if (is_folder or not pattern.folders_only) and pattern.fits(names[base:])
    )
    return next(fitting, False)


def toward(paths: Iterable[Path]) -> Callable[[Path], bool]:
    """Tells folders that lead to some paths, and all that is in these, from the rest."""
    wanted = set(paths)
    above = {folder for path in wanted for folder in path.parents}
    return lambda path: path in above or not wanted.isdisjoint([path, *path.parents])


def check_not_root(path: Path) -> Path:
    """The path itself; core.InvalidInput for the root of a disk."""
    if path == Path(path.anchor):
        raise core.InvalidInput(f"all of {path} is too much: name a folder in it")
    return path

"""Markdown that people edit: the index follows the files, and encodes nothing twice."""

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program import git, repository
from storage import TIMEOUT, consistent, open_memory, shared_encoder, values

import sediment
import sediment_ext.files
import sediment_ext.notes
import sediment_ext.systems
import sediment_ext.walking
from sediment import (
    DatabaseError,
    InvalidInput,
    Memory,
    NotFound,
)
from sediment_ext.doctor import render_status
from sediment_ext.files import section_at
from sediment_ext.markdown import headings_in, split_file, visible
from sediment_ext.walking import Options, walk

PREFERENCES = """# Personal preferences

- Vegetarian, nothing spicy
- Working hours: 9 to 18

# Important configuration

- Gateway port: 18789
- Database: PostgreSQL 15
"""
GUIDE = "# Guide\n\nFirst words.\n\n## Install\n\nRun the installer.\n\n## Use\n\nOpen the lid.\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with some files, which is where we are."""
    top = tmp_path / "project"
    (top / "docs").mkdir(parents=True)
    (top / "MEMORY.md").write_text(PREFERENCES)
    (top / "docs" / "guide.md").write_text(GUIDE)
    monkeypatch.chdir(top)
    return top


@pytest.fixture
def memory(folder: Path) -> Iterator[Memory]:
    with open_memory(folder.parent / "memory.db") as memory:
        yield memory


def rows(memory: Memory) -> list[Any]:
    """All that the index is, but for the numbers of its rows and when it was made."""
    sql = (
        "SELECT f.path, f.size, f.digest, f.dated, i.id, i.content, i.content_type, i.project_id,"
        ' i.created_at, i.first_line, i.last_line, c.start, c."end", c.context, v.vector'
        " FROM files f LEFT JOIN items i ON i.file = f.id LEFT JOIN chunks c ON c.item = i.seq"
        " LEFT JOIN vectors v ON v.chunk = c.id ORDER BY f.path, i.first_line, i.id"
    )
    return memory.database.rows(sql)


def fresh(folder: Path, *paths: str | Path, **options: Any) -> list[Any]:
    """What an index of these files is that knows nothing of earlier ones."""
    with tempfile.TemporaryDirectory() as place, open_memory(Path(place) / "new.db") as memory:
        memory.index(paths or [folder], **options)
        return rows(memory)


def counts(answer: dict[str, Any]) -> tuple[int, int, int]:
    return answer["embedded"], answer["reused"], answer["removed"]


def sources(memory: Memory, query: str, **options: Any) -> list[str]:
    return [row["source"] for row in memory.recall(query, **options)["results"]]


def later(path: Path, seconds: float = 10) -> None:
    """Let a file's time be another, as an edit some time after would."""
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + int(seconds * 10**9)))


# An id that a part would have, and that a memory has


def test_a_memory_with_the_id_of_a_part_hides_nothing(folder: Path, memory: Memory) -> None:
    memory.index("docs")
    ids = {row["content"]: row["id"] for row in memory.recall("installer", anyway=True)["results"]}
    (part,) = (id for text, id in ids.items() if "Run the installer" in text)
    history = memory.history(part)
    assert history["versions"][0]["source"] == "docs/guide.md:5-7"
    with open_memory(folder.parent / "other.db") as other:
        assert other.import_rows(history["versions"])["stored"] == 0
        other.import_rows([{"id": part, "content": "The heron nests here."}])
        other.index("docs")
        assert "docs/guide.md:5-7" in sources(other, "run the installer")
        assert other.get(part)["content"] == "The heron nests here."
        assert counts(other.index("docs"))[0] == 0
        other.forget(part)
        later(folder / "docs" / "guide.md")
        other.index("docs")
        assert sources(other, "run the installer")[0] == "docs/guide.md:5-7"
        consistent(other)


# Parts


def parts(text: str) -> list[tuple[int, int, str]]:
    found = split_file(text, "markdown", shared_encoder().fits)
    return [(part.first, part.last, part.context) for part in found]


def test_a_file_is_cut_at_every_heading_however_short() -> None:
    assert parts(GUIDE) == [(1, 3, "Guide"), (5, 7, "Guide > Install"), (9, 11, "Guide > Use")]


@pytest.mark.parametrize(
    ("text", "gone", "kept"),
    [
        ("---\ntitle: secret plan\n---\n# Head\n\nBody.\n", "secret plan", "Body."),
        ("\ufeff---\na: b\n---\nBody.\n".lstrip("\ufeff"), "a: b", "Body."),
        ("Before. <!-- not\nthis --> After.\n", "this", "After."),
        ("```\n<!-- code -->\n```\nBody.\n", "", "<!-- code -->"),
        ("Write `<!-- so -->` for a comment.\n", "", "<!-- so -->"),
        ("An open <!-- comment\n\nhides nothing.\n", "", "hides nothing."),
        ("<!-- a\n```\n-->\nBody.\n<!-- b -->\n", "b -->", "Body."),
        ("---\n\nA rule: no front matter.\n\n---\n", "", "no front matter"),
        ("---\nThis is a sentence: so.\n---\n", "", "a sentence"),
        ("---\n# comment\nkey:\n  - x\n...\nBody.\n", "key", "Body."),
        ("---\ndate created: Monday\ntags: [walrus]\n---\n# Obs\n", "walrus", "# Obs"),
        ("---\r\ndate created: a\r\n\r\ntags:\r\n- x\r\n---\r\nBody.\n", "tags", "Body."),
        ("---\ndate created: 1\ndate last seen: 2\n---\nBody.\n", "seen", "Body."),
        ("---\nMy thoughts: it went well.\nsteps: none\n---\n", "", "it went well"),
        ("---\nMy thoughts: well\nand then some.\n---\n", "", "and then some"),
        ("---\nMy thoughts: well\n---\nBody.\n", "", "My thoughts"),
        ('+++\n# c\n\ntags = ["walrus"]\n[extra]\nx = 1\n+++\n# Hugo\n', "walrus", "# Hugo"),
        ("+++\nSome words between.\n+++\n", "", "Some words"),
        ("Text.\n\n---\nkey: value\n---\n", "", "key: value"),
        ("---\nNo end of this rule.\n", "", "No end"),
        ("~~~~\n~~~\n<!-- a -->\n~~~~\n<!-- b -->\n", "b -->", "<!-- a -->"),
        ("A \\<!-- is none,\nand this --> ends none.\n", "", "is none,\nand this"),
    ],
)
def test_front_matter_and_comments_are_not_shown(text: str, gone: str, kept: str) -> None:
    shown = visible(text)
    assert kept in shown
    assert not gone or gone not in shown
    assert shown.count("\n") == text.count("\n")


MARKDOWN = st.lists(
    st.sampled_from(
        [
            "# A",
            "## B",
            "Words of a text.",
            "",
            "```",
            "<!--",
            "-->",
            "---",
            "- item",
            "x: y",
            "é茶",
        ]
    ),
    max_size=40,
).map("\n".join)


@settings(max_examples=50)
@given(MARKDOWN)
def test_lines_are_those_of_the_file_and_nothing_shown_is_lost(text: str) -> None:
    shown = visible(text).split("\n")
    assert len(shown) == text.count("\n") + 1
    covered: set[int] = set()
    for part in split_file(text, "markdown", shared_encoder().fits):
        lines = shown[part.first - 1 : part.last]
        covered.update(range(part.first, part.last + 1))
        squeezed = "".join("".join(lines).split())
        assert "".join(part.content.split()) in squeezed
    left = [line for number, line in enumerate(shown, 1) if number not in covered]
    assert not "".join(left).strip()


# The index


def test_recall_finds_lines_of_files_beside_what_was_stored(memory: Memory) -> None:
    answer = memory.index(["MEMORY.md", "docs"])
    assert (answer["files"], answer["chunks"], *counts(answer)) == (2, 5, 5, 0, 0)
    memory.store("The gateway is restarted on Sundays.")
    assert sources(memory, "vegetarian")[0] == "MEMORY.md:1-4"
    assert memory.recall("what I like to eat")["results"][0]["source"] == "MEMORY.md:1-4"
    assert sources(memory, "18789")[0] == "MEMORY.md:6-9"
    found = memory.recall("gateway", anyway=True)["results"]
    assert {"source" in row for row in found[:2]} == {True, False}
    consistent(memory)


def test_the_second_time_nothing_is_embedded_or_written(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    before = memory.database.value("SELECT max(seq) FROM items"), rows(memory)
    assert counts(memory.index([folder])) == (0, 5, 0)
    assert counts(memory.index()) == (0, 5, 0)
    assert (memory.database.value("SELECT max(seq) FROM items"), rows(memory)) == before


def test_only_a_changed_paragraph_is_embedded_again(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    guide = folder / "docs" / "guide.md"
    guide.write_text(GUIDE.replace("Open the lid.", "Lift the cover."))
    assert counts(memory.index([folder])) == (1, 4, 1)
    guide.write_text("A line more.\n\n" + GUIDE)  # all that follows stands elsewhere
    answer = memory.index([folder])
    assert answer["embedded"] == 1  # the new line; the lid comes back from the cache
    assert rows(memory) == fresh(folder)
    consistent(memory)


def test_a_moved_a_copied_and_a_touched_file_are_not_embedded(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    guide = folder / "docs" / "guide.md"
    (folder / "copy").mkdir()
    shutil.copy(guide, folder / "copy")
    assert memory.index([folder])["embedded"] == 0
    guide.rename(folder / "guide.md")
    answer = memory.index([folder])
    assert (answer["embedded"], answer["removed"]) == (0, 3)
    actions = [(row["action"], row["path"]) for row in answer["changes"]]
    assert actions == [("added", str(folder / "guide.md")), ("removed", str(guide))]
    later(folder / "guide.md")
    answer = memory.index([folder])
    assert (answer["changes"], answer["embedded"]) == ([], 0)
    assert rows(memory) == fresh(folder)


def test_what_went_and_comes_back_is_not_embedded_again(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    shutil.move(folder / "docs", folder.parent / "away")
    assert memory.index([folder])["removed"] == 3
    assert all(not source.startswith("docs") for source in sources(memory, "install the lid"))
    shutil.move(folder.parent / "away", folder / "docs")
    assert memory.index([folder])["embedded"] == 0
    assert rows(memory) == fresh(folder)
    assert values(memory, "SELECT count(*) FROM embeddings") == [0]


def test_the_cache_is_bounded(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment_ext.files, "CACHED_VECTORS", 2)
    memory.index([folder])
    (folder / "MEMORY.md").unlink()
    (folder / "docs" / "guide.md").unlink()
    memory.index([folder])
    assert values(memory, "SELECT count(*) FROM embeddings") == [2]


FRONT = """---
title: "The Mirabelle, a sloop"
tags: [boats, winter-storage]
aliases:
  - Old lady
- Schnecke
description: >-
  What the owner does
  before the first frost.
draft: true
---
"""


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        *(("Yard", "Yard"), ("mirabelle", "boat"), ("winter storage", "boat"), ("frost", "boat")),
        *(("old lady", "boat"), ("schnecke", "boat"), ("quince", "orchard"), ("damson", "orchard")),
        *(("2026-10-04", "2026-10-04"), ("pergola", "orchard")),
    ],
)
def test_a_file_is_found_by_its_name_and_front_matter(
    memory: Memory, folder: Path, asked: str, name: str
) -> None:
    toml = '+++\ntitle = "Quince"\ntags = [\n  "damson",\n]\ndescription = "A pergola."\n+++\n'
    texts = {
        "Yard": "Slip 7 is free in May.\n",
        "boat": f"{FRONT}# Hull\n\nGrind it.\n\n# Engine\n\nChange its oil.\n",
        "orchard": f"{toml}Prune in March.\n",
        "2026-10-04": "Ate soup.\n",
        "other": "---\ntags: []\ntitle: null\n---\nNothing of all that.\n",
    }
    for stem, text in texts.items():
        (folder / f"{stem}.md").write_text(text)
    memory.index([folder])
    found = memory.recall(asked)["results"]
    assert found[0]["source"].startswith(f"{name}.md")
    assert {row["source"].partition(":")[0] for row in found[: texts[name].count("\n# ")]} <= {
        f"{name}.md"
    }


def test_names_and_front_matter_are_context_and_no_text(memory: Memory, folder: Path) -> None:
    (folder / "boat.md").write_text(f"{FRONT}# Hull\n\nGrind it.\n\n# Engine\n\nChange its oil.\n")
    (folder / "run.py").write_text("def run():\n    pass\n")
    memory.index(["boat.md"])
    memory.index(["run.py"], globs="*.py")
    about = "boat, The Mirabelle, a sloop, Old lady, Schnecke, boats, winter-storage"
    about += ", What the owner does, before the first frost."
    sql = "SELECT i.content, c.context FROM items i JOIN chunks c ON c.item = i.seq ORDER BY i.seq"
    assert memory.database.rows(sql) == [
        ("# Hull\n\nGrind it.", f"{about}\nHull"),
        ("# Engine\n\nChange its oil.", f"{about}\nEngine"),
        ("def run():\n    pass", "run\ndef run()"),
    ]
    (folder / "boat.md").write_text("---\ndescription: " + "very " * 99 + "long\n---\nWords.\n")
    memory.index()
    assert max(len(context) for _, context in memory.database.rows(sql)) < 250


def test_files_leave_nothing_to_consolidate(memory: Memory, folder: Path) -> None:
    memory.store("The gateway is restarted on Sundays.")
    memory.index([folder])
    assert not memory.has_chores()
    memory.import_rows([{"content": "Tea is served at four."}])
    (folder / "docs" / "guide.md").write_text("Other words.\n")
    memory.index([folder])
    assert memory.has_chores()
    memory.consolidate()
    assert not memory.has_chores()


def test_a_new_database_gives_the_same_ids_and_answers(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    with open_memory(folder.parent / "other.db") as other:
        other.index([folder])
        for query in ("vegetarian", "gateway port", "open the lid"):
            assert other.recall(query)["results"] == memory.recall(query)["results"]


def test_gitignore_exclude_links_and_hidden_files_are_heeded(memory: Memory, folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name in ("a.md", "b.md", "keep.md", "build/x.md", "docs/c.md", ".hid/d.md", "t.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"This is {name}.\n")
    (folder / ".gitignore").write_text("build/\n/a.md\nk*.md\n")
    (folder / "docs" / ".gitignore").write_text("c.md\n!guide.md\n")
    (folder / "loop").symlink_to(folder)
    (folder / "link.md").symlink_to(folder / "b.md")
    (folder / "gone.md").symlink_to("nowhere.md")
    found = {row["path"] for row in memory.index([folder])["changes"]}
    assert {str(Path(path).relative_to(folder)) for path in found} == {
        "MEMORY.md",
        "b.md",
        "docs/guide.md",
    }
    answer = memory.index([folder], globs=["*.txt"], exclude=["docs/", "M*"])
    assert answer["files"] == 2
    assert memory.index()["files"] == 2  # as it was told before
    assert rows(memory) == fresh(folder, globs=["*.txt"], exclude=["docs/", "M*"])


def test_links_that_lead_elsewhere_are_named(memory: Memory, folder: Path) -> None:
    (notes := folder.parent / "notes").mkdir()
    (notes / "heron.md").write_text("The heron fishes at dawn.\n")
    (folder / "memory").symlink_to(notes)
    (folder / "docs" / "heron.md").symlink_to(notes / "heron.md")
    (folder / "docs" / "tool").symlink_to("/bin/sh")
    (folder / "ignored").symlink_to(notes)
    (folder / ".gitignore").write_text("ignored\n")
    told = memory.index([folder])["skipped"]
    assert told == [
        {"path": str(folder / name), "reason": f"is a link: name {target} if that is meant"}
        for name, target in (("memory", notes), ("docs/heron.md", notes / "heron.md"))
    ]
    memory.index([folder / "memory"])
    assert sources(memory, "When does the heron fish?")[0] == f"{notes}/heron.md:1-1"


@pytest.mark.parametrize("place", ["info", "config", "default"])
def test_what_a_repository_and_its_user_ignore_is_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home := folder.parent / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (home / ".config" / "git").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    lines = "draft*\n/docs/*.md\n!docs/guide.md\n"
    if place == "info":
        (folder / ".git" / "info" / "exclude").write_text(lines)
    elif place == "config":
        (home / ".gitconfig").write_text("[core]\n\texcludesFile = ~/mine\n")
        (home / "mine").write_text(lines)
    else:
        (home / ".config" / "git" / "ignore").write_text(lines)
    for name in ("draft.md", "docs/old.md", "docs/draft-2.md", "docs/kept/draft.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("Words.\n")
    kept = found_below(folder, "!draft.md\n")
    assert (
        kept
        == listed_by_git(folder)
        == {"MEMORY.md", "draft.md", "docs/guide.md", "docs/kept/draft.md"}
    )
    below = {path.name for path in walk(folder / "docs", Options())}
    assert below == {"guide.md", "draft.md"}


def test_many_files_that_are_named_are_looked_for_once(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"docs/{number}.md" for number in range(50)]
    for name in names:
        (folder / name).write_text(f"Line {name}.\n")
    memory.index([folder])
    listed: list[Path] = []
    entries = sediment_ext.systems.folder_entries
    monkeypatch.setattr(
        sediment_ext.systems, "folder_entries", lambda top: listed.append(top) or entries(top)
    )
    answer = memory.index(names)
    assert (answer["files"], answer["chunks"], answer["changes"]) == (50, 50, [])
    assert len(listed) < 10
    (folder / names[7]).unlink()
    assert memory.index(names)["removed"] == 1
    assert memory.index(["docs", *names[:3]])["files"] == 50
    assert values(memory, "SELECT count(*) FROM sources") == [1]


LINKS = {  # what becomes a link, and whether that is a folder
    "docs/guide.md": "guide.md",
    "docs": "",
    "MEMORY.md": "guide.md",
}


@pytest.mark.parametrize("name", LINKS)
def test_a_file_behind_a_link_that_came_later_is_gone(
    memory: Memory, folder: Path, name: str
) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "guide.md").write_text("# Guide\n\nThe walrus sleeps.\n")
    memory.index(["docs", "MEMORY.md"])
    found = memory.recall("open the lid")["results"] + memory.recall("vegetarian")["results"]
    (folder / name).rename(folder.parent / "aside")
    (folder / name).symlink_to(outside / LINKS[name])
    assert memory.status()["dirty"] > 0
    for row in found:
        with contextlib.suppress(NotFound):
            assert "walrus" not in memory.expand(row["id"])["content"]
    told = [row["content"] for row in memory.recall("walrus", anyway=True)["results"]]
    assert not any("walrus" in text for text in told)
    for paths in ((), ["docs", "MEMORY.md"]):
        memory.index(paths)
        assert not values(memory, "SELECT 1 FROM items WHERE content LIKE '%walrus%'")
    assert all(
        "walrus" not in text for (text,) in memory.database.rows("SELECT content FROM items")
    )


def test_a_source_that_became_a_link_can_be_taken_out_and_named_anew(
    memory: Memory, folder: Path
) -> None:
    memory.index(["docs"])
    as_link(folder / "docs", folder.parent / "outside")
    (skipped,) = memory.index(["docs"])["skipped"]
    assert f"index {folder.parent / 'outside'} if that is meant" in skipped["reason"]
    memory.unindex("docs")
    assert memory.index(["docs"])["files"] == 1


def test_a_folder_of_an_ignored_place_is_judged_by_the_rules_above(
    memory: Memory, folder: Path
) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".gitignore").write_text("docs/guide.md\n")
    assert memory.index(["docs"])["files"] == 0
    assert memory.index(["docs/guide.md"])["files"] == 1  # asked for by name


def test_notes_that_git_ignores_are_indexed_when_asked_for(memory: Memory, folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".gitignore").write_text("memory/\n")
    (folder / "memory").mkdir()
    (folder / "memory" / "one.md").write_text("Private words.\n")
    assert memory.index([folder])["files"] == 2
    assert memory.index(["memory"])["files"] == 1
    memory.note("More of that.", folder="memory")
    assert values(memory, "SELECT count(*) FROM sources") == [2]
    assert memory.index([folder])["changes"] == []


def test_recall_tells_that_all_that_was_indexed_is_gone(memory: Memory, folder: Path) -> None:
    memory.index([folder / "docs"])
    assert "notice" not in memory.recall("gateway port")
    (folder / "docs").rename(folder / "manual")
    assert "not searched: docs (" in memory.recall("gateway port")["notice"]
    memory.index([folder / "manual"])
    assert "notice" not in memory.recall("gateway port")


@pytest.mark.skipif(os.name != "posix", reason="names of bytes")
def test_a_name_that_is_no_text_is_left_out(memory: Memory, folder: Path) -> None:
    name = os.fsencode(folder) + b"/\xff.md"
    with open(name, "w") as file:
        file.write("Words.\n")
    memory.index([folder])
    assert memory.status()["dirty"] == 0
    with pytest.raises(InvalidInput, match="not UTF-8"):
        memory.index([os.fsdecode(name)])


def test_a_file_that_has_gone_makes_no_source_of_its_own(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    (folder / "docs" / "guide.md").unlink()
    assert memory.index(["docs/guide.md"])["removed"] == 3
    assert values(memory, "SELECT count(*) FROM sources") == [1]


GITIGNORES = [
    ("docs/**\n!docs/README.md\n", {"MEMORY.md", "docs/README.md"}),
    ("*\n!*/\n!docs/README.md\n", {"docs/README.md"}),
    ("/docs/guide.md\n/docs/sub\n!docs\n", {"MEMORY.md", "docs/README.md"}),
    ("docs\n!docs/README.md\n", {"MEMORY.md"}),
    ("**/sub/\n*.md\n!docs/*.md\n", {"docs/README.md", "docs/guide.md"}),
]


def found_below(folder: Path, lines: str) -> set[str]:
    """The files that there are to index in a folder with this .gitignore."""
    (folder / ".gitignore").write_bytes(lines.encode())
    return {path.relative_to(folder).as_posix() for path in walk(folder, Options())}


def listed_by_git(folder: Path) -> set[str]:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    listed = ["git", "-C", str(folder), "ls-files", "-zco", "--exclude-standard", "*.md"]
    told = subprocess.run(listed, check=True, capture_output=True).stdout.decode()
    return set(told.split("\0")) - {""}


@pytest.mark.parametrize(("lines", "wanted"), GITIGNORES)
def test_what_git_ignores_is_what_git_says(folder: Path, lines: str, wanted: set[str]) -> None:
    (folder / "docs" / "sub").mkdir()
    for name in ("docs/README.md", "docs/sub/x.md"):
        (folder / name).write_text("Words.\n")
    assert found_below(folder, lines) == listed_by_git(folder) == wanted


NAMES = r"a b z - ] [ \ ^ ! 1 Q _ k- k~ k1 kk [z d/a d/[z d/k1 d/z"
BRACKETS = r"""
[ [a a[ [] [!] []] [!]] []-a] [[a] []a[] [[] [!!] \[z [^a] \* \?z a\b
[a-c-z] [--z] [a-] [-a] [!-a] [\]] [\a-b] **/[a-z] *[!k] k[~~] k[a--] k[&&] [a||b] /* d/* d/[a-z]
"""


def compare_with_git(top: Path, gitignores: list[str], names: list[str]) -> None:
    """Each .gitignore by itself, among files with these names."""
    ours = set()
    for place, lines in enumerate(gitignores):
        for name in names:
            (path := top / f"{place}" / name).parent.mkdir(parents=True, exist_ok=True)
            path.write_text("Words.\n")
        found = found_below(top / f"{place}", lines)
        ours |= {(lines, f"{place}/{name}") for name in found}
    git = {(gitignores[int(name.split("/")[0])], name) for name in listed_by_git(top)}
    assert ours == git


@pytest.mark.filterwarnings("error")
def test_brackets_of_a_gitignore_hold_what_git_says(tmp_path: Path) -> None:
    gitignores = [f"{line}.md\n/b.md\n" for line in BRACKETS.split()]
    compare_with_git(tmp_path, gitignores, [f"{name}.md" for name in NAMES.split()])


@pytest.mark.parametrize("line", ["[[:alpha:]]", "[a", "[a/b]", "a\\"])
def test_what_is_not_understood_in_a_gitignore_ignores_nothing(folder: Path, line: str) -> None:
    (folder / "a").write_text("Words.\n")
    assert len(found_below(folder, f"{line}\n*\n!*.md\n!docs\n")) == 2
    assert len(found_below(folder, f"{line}\n")) == 2


WHITE_SPACE = [
    *("a.md\t", "vu\u2028z.md", "\ufeffa.md\nz.md", "a.md \r\nz.md \t\n", "é.md\\ ", "a.md  "),
    *(" a.md", "d/\t", "\xa0", "à", "vu à.md", "#a.md", "\\#a.md", "!a.md", "\\!a.md", "/", "!"),
]


def test_white_space_and_marks_of_a_gitignore_are_read_as_git_reads_them(tmp_path: Path) -> None:
    names = ["a.md", "z.md", "é.md", "è.md", "à/a.md", "vu à.md", "d/z.md", "\xa0/é.md"]
    compare_with_git(tmp_path, WHITE_SPACE, [*names, "#a.md", "!a.md"])


FOLDERS_BELOW = [
    *("**/", "a/**/", "/a/**/", "**/a/**/", "a/**/**/", "a/**/ ", "a/**/b/**/", "a/b**/", "***/"),
    *("a/**\n!a/**/\n!a/**/*.md", "*\n!**/\n!b.md", "**/\n!a/**/", "\\**/", "a/**/\t", "!**/"),
]


def test_a_pattern_of_all_folders_below_one_is_read_as_git_reads_it(tmp_path: Path) -> None:
    names = ["b.md", "a/b.md", "a/b/b.md", "a/b/c/b.md", "c/a/b.md", "c/a/b/b.md", "c/b/a/b/c/b.md"]
    compare_with_git(tmp_path, FOLDERS_BELOW, names)


def test_an_exclude_of_all_folders_below_one_leaves_that_one(memory: Memory, folder: Path) -> None:
    (folder / "docs" / "old").mkdir()
    (folder / "docs" / "old" / "notes.md").write_text("The dinghy lies at pier 7.\n")
    found = {row["path"] for row in memory.index([folder], exclude="docs/**/")["changes"]}
    assert found == {str(folder / name) for name in ("MEMORY.md", "docs/guide.md")}


MANY_STARS = {
    "*a" * 11 + "b": "a" * 60,
    "**/a/" * 15 + "b": "a/" * 60 + "c",
    "*[a-z]" * 20 + "9": "a" * 200,
    "*a*a*a*/**/" * 9 + "b": ("a" * 14 + "/") * 30 + "c",
}


@pytest.mark.parametrize("line", MANY_STARS)
def test_a_pattern_of_many_stars_takes_no_time(folder: Path, line: str) -> None:
    """In a process of its own, since a pattern that hangs cannot be interrupted."""
    (path := folder / MANY_STARS[line]).mkdir(parents=True)
    (path / "x.md").write_text("Words.\n")
    (folder / ".gitignore").write_text(line)
    code = (
        "import sys; from pathlib import Path; from sediment_ext.walking import Options, walk;"
        "print(len(list(walk(Path(sys.argv[1]), Options(exclude=tuple(sys.argv[2:]))))))"
    )
    command = [sys.executable, "-c", code, str(folder), line]
    env = {**os.environ, "PYTHONPATH": str(Path(sediment.__file__).parent)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "3\n"


def test_many_patterns_match_what_they_match_in_git(tmp_path: Path) -> None:
    chance = random.Random(11)
    bits = ["*", "**", "?", "a", "b", "[ab]", "[!a]", "."]
    parts = ["".join(chance.choices(bits, k=chance.randint(1, 3))) for _ in range(9)]
    parts += ["**", "**", "**", "a", "b"]
    lines = {"/".join(chance.choices(parts, k=chance.randint(1, 4))) for _ in range(200)}
    gitignores = [line + chance.choice(["", "", "/"]) for line in sorted(lines)]
    names = ["a", "b", "ab", "a/b", "b/a", "a/a/b", "b/ab/a", "ba/b.a/a", "a.b/b/a/b"]
    compare_with_git(tmp_path, gitignores, [f"{name}/x.md" for name in names])


def test_a_new_exclude_within_a_source_takes_out_what_it_names(
    memory: Memory, folder: Path
) -> None:
    memory.index([folder])
    assert memory.index(["docs"], exclude=["guide.md"])["removed"] == 3
    assert memory.index([folder])["files"] == 1


@pytest.mark.parametrize("pattern", ["[", "[[:none:]].md", "a.md\\", "!", "\ud800"])
def test_what_is_no_pattern_is_refused_and_not_remembered(
    memory: Memory, folder: Path, pattern: str
) -> None:
    told: list[dict[str, Any]] = [{"exclude": ["*.txt", pattern]}, {"globs": pattern}]
    for options in told:
        with pytest.raises(InvalidInput, match=re.escape(ascii(pattern))):
            memory.index([folder], **options)
    assert not values(memory, "SELECT count(*) FROM sources")[0]
    assert memory.index([folder])["files"] == 2


def test_a_pattern_that_an_earlier_version_remembered_excludes_nothing(
    memory: Memory, folder: Path
) -> None:
    memory.index([folder], exclude=["docs/"])
    told = json.dumps({"globs": ["[b-a"], "exclude": ["[[:none:]]", "docs/", "a\\"]})
    with memory.database.transaction() as connection:
        connection.execute("UPDATE sources SET options = ?", (told,))
    assert memory.status()["dirty"] == 0
    assert memory.index()["files"] == 1


def test_a_note_that_git_begins_to_ignore_is_found_as_before(memory: Memory, folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    memory.note("The heron stands at the weir.", folder="memory")
    (folder / ".gitignore").write_text("*.md\n")
    answer = memory.note("The otter swims below it.", folder="memory")
    assert answer["message"].endswith(".md:4.")
    assert memory.recall("Where does the otter swim?")["results"][0]["id"] == answer["id"]


@pytest.mark.parametrize("limit", [1, 5])
@pytest.mark.parametrize("how", ["edited", "removed", "moved"])
def test_however_many_files_have_changed_nothing_is_shown_that_they_said(
    memory: Memory, folder: Path, how: str, limit: int
) -> None:
    notes = folder / "notes"
    notes.mkdir()
    for number in range(80):
        (notes / f"{number}.md").write_text(f"# Note {number}\n\nThe gate opens with walrus.\n")
    memory.index([notes])
    for path in notes.iterdir():
        if how == "edited":
            path.write_text(path.read_text().replace("walrus", f"otter {path.stem}"))
        elif how == "removed":
            path.unlink()
    if how == "moved":
        notes.rename(folder / "elsewhere")
    answer = memory.recall("What does the gate open with, walrus?", limit=limit, anyway=True)
    assert not [row for row in answer["results"] if "walrus" in row["content"]]
    if how == "edited":
        assert len(memory.recall("What opens the gate?", limit=limit)["results"]) == limit


def test_an_index_of_nothing_says_so(memory: Memory, folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"MEMORY.md is named and left out by --exclude"):
        memory.index(["MEMORY.md"], exclude=["M*"])
    assert memory.index(["docs"], exclude=["*.txt"])["warnings"] == []
    told = [{"path": str(folder / "docs"), "reason": "has no file to index"}]
    remembered = "; without what --exclude names: '*.md'"
    for patterns in (["*.md"], []):  # which is how it is indexed from now on
        answer = memory.index(["docs"], exclude=patterns)
        assert answer["files"] == 0
        assert answer["warnings"] == [{**told[0], "reason": told[0]["reason"] + remembered}]
    (folder / "empty").mkdir()
    (row,) = memory.index(["empty"])["warnings"]
    assert row == {"path": str(folder / "empty"), "reason": "has no file to index"}
    assert memory.index()["warnings"] == []


@pytest.mark.parametrize("again", ["global", "other"])
def test_a_folder_that_is_indexed_twice_is_shown_once(
    memory: Memory, folder: Path, again: str
) -> None:
    (folder / "docs" / "twice.md").write_text("# A\n\nTea at four.\n\n# A\n\nTea at four.\n")
    memory.index([folder])

    def found() -> tuple[list[str], list[str]]:
        # With all that is held back: what has to do with a query depends on how much is indexed.
        tea = sources(memory, "tea at four", limit=20, anyway=True)
        return sources(memory, "vegetarian"), sorted(tea)

    before = found()
    assert len(before[1]) >= 2
    if again == "global":
        memory.index([folder], scope="global")
    else:
        with open_memory(memory.database.path, project="other") as other:
            other.index([folder])
    assert found() == before


def test_files_that_change_places_are_noticed(memory: Memory, folder: Path) -> None:
    one, two, aside = (folder / "docs" / name for name in ("a.md", "b.md", "t"))
    one.write_text("The badger digs.\n")
    two.write_text("The walrus eats.\n")
    for file in (one, two):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    memory.index([folder])
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    assert memory.status()["dirty"] == 2
    memory.index()
    assert sources(memory, "badger digs", limit=1) == ["docs/b.md:1-1"]


def test_comments_without_end_take_no_time(folder: Path) -> None:
    assert visible("<!--" * 200_000).startswith("<!--<!--")
    for ticks in ("`" * 1_000_000, "a" + "`" * 1_000_000 + "b"):
        assert visible(ticks) == ticks
    assert visible("``<!-- a -->`` `<!-- b -->") == "``<!-- a -->`` `"
    assert visible("<!-- a -->" * 50_000 + "<!--" * 50_000).startswith("<!--<!--")


def test_notes_of_the_whole_disk_are_not_compacted(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment_ext.walking, "walk", lambda *_: iter(()))
    with pytest.raises(InvalidInput, match="too much"):
        memory.compact("/")


def test_empty_paths_and_all_of_the_disk_are_refused(memory: Memory) -> None:
    for path, told in (("", "empty"), ("/", "too much")):
        with pytest.raises(InvalidInput, match=told):
            memory.index([path])
    for paths in ((), ("",)):
        with pytest.raises(InvalidInput, match="name"):
            memory.unindex(*paths)


def test_what_cannot_be_indexed_leaves_no_source(memory: Memory, folder: Path) -> None:
    (folder / "nul.md").write_bytes(b"\0")
    assert memory.index(["nul.md"])["skipped"]
    assert memory.status()["sources"] == []
    memory.index([folder])
    assert memory.status()["dirty"] == 0


def test_paths_may_be_one_and_may_repeat(memory: Memory, folder: Path) -> None:
    assert memory.index(".")["files"] == 2
    answer = memory.index([".", "docs", folder, "docs/guide.md"])
    assert (answer["files"], answer["chunks"]) == (2, 5)


def test_a_path_in_a_source_is_indexed_as_that_is(memory: Memory, folder: Path) -> None:
    memory.index([folder], exclude=["MEMORY.md"])
    (folder / "docs" / "guide.md").write_text("Other words.\n")
    memory.index(["docs"])
    assert values(memory, "SELECT count(*) FROM sources") == [1]
    assert memory.status()["dirty"] == 0
    (folder / "docs" / "guide.md").unlink()
    assert memory.index(["docs"])["removed"] == 1


def test_a_source_within_a_source_keeps_its_own_files(memory: Memory, folder: Path) -> None:
    memory.index(["docs"])
    assert counts(memory.index([folder])) == (2, 3, 0)
    assert memory.index([folder])["changes"] == memory.index()["changes"] == []
    (folder / "docs" / "guide.md").write_text("Other words.\n")
    assert memory.index([folder])["removed"] == 3


def test_what_is_taken_out_is_not_found(memory: Memory, folder: Path) -> None:
    memory.index(["MEMORY.md", "docs"])
    assert "no longer" in memory.unindex("docs")["message"]
    assert memory.index()["files"] == 1
    assert "keeps it out" in (memory.index([folder]) and memory.unindex("docs"))["message"]
    with pytest.raises(NotFound, match="not indexed"):
        memory.unindex("nowhere")
    consistent(memory)


def test_of_two_checkouts_the_own_files_come_first(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    repository(one)
    (one / "memory").mkdir()
    (one / "memory" / "hosts.md").write_text("# Hosts\n\nThe falcon host is called mercury.\n")
    (one / "memory" / "only.md").write_text("# Kites\n\nThe kite host is called saturn.\n")
    git(tmp_path, "clone", "-q", str(one), "two")
    shutil.copytree(one / "memory", two / "memory")
    (two / "memory" / "only.md").unlink()
    (two / "memory" / "hosts.md").write_text("# Hosts\n\nSince May the falcon host is venus.\n")
    for here, there, word in ((two, one, "venus"), (one, two, "mercury")):
        for folder in (there, here):
            with contextlib.closing(Memory(tmp_path / "memory.db", folder=folder)) as memory:
                memory.index([folder / "memory"])
                found = memory.recall("which name has the falcon host?", anyway=True)["results"]
                kites = memory.recall("kite host")["results"]
        assert word in found[0]["content"]
        assert found[0]["source"] == "memory/hosts.md:1-3"
        assert {row["source"] for row in found} >= {f"{there}/memory/hosts.md:1-3"}
        assert "saturn" in kites[0]["content"]


def test_files_are_their_projects(memory: Memory, folder: Path) -> None:
    memory.index(["MEMORY.md"])
    memory.index(["docs"], scope="global")
    with open_memory(folder.parent / "memory.db", "other") as other:
        found = other.recall("gateway port", anyway=True)["results"]
        foreign = {row["source"]: row.get("cross_project") for row in found}
        assert foreign["MEMORY.md:6-9"]
        assert foreign["docs/guide.md:5-7"] is None
        assert other.status()["sources"][0]["scope"] == "global"
        shown = other.expand(next(row["id"] for row in found if row.get("cross_project")))
        assert "18789" in shown["content"]
        (folder / "MEMORY.md").unlink()  # which is not the other project's to take up
        left = other.recall("gateway port", anyway=True)["results"]
        assert not [row for row in left if row.get("cross_project")]
        assert memory.status()["dirty"] == 1
    assert len(sources(memory, "gateway port", anyway=True)) == 3


def test_a_place_outside_the_project_is_remarked(memory: Memory, folder: Path) -> None:
    memory.projects.given, memory.projects.folder = None, folder
    (folder / ".sediment").mkdir()
    (folder.parent / "else.md").write_text("Elsewhere.\n")
    assert "else.md" in memory.index([folder.parent / "else.md"])["notice"]
    assert "notice" not in memory.index([folder])


# Files that are not right


def test_bad_files_are_told_and_stop_nothing(memory: Memory, folder: Path) -> None:
    (folder / "latin.md").write_bytes("Käse und Brot.\n".encode("latin-1"))
    (folder / "binary.md").write_bytes(b"\0\1\2" * 100)
    (folder / "empty.md").write_text("\n")
    (folder / "pipe.md").unlink(missing_ok=True)
    os.mkfifo(folder / "pipe.md")
    with open(folder / "huge.md", "wb") as file:
        file.truncate(500_000_000)
    answer = memory.index([folder])
    assert answer["files"] == 4  # of which the index has something
    told = {Path(row["path"]).name: row["reason"] for row in answer["skipped"]}
    assert told.keys() == {"binary.md", "huge.md"}
    assert "500 MB" in told["huge.md"]
    warned = {Path(row["path"]).name: row["reason"] for row in answer["warnings"]}
    assert "UTF-8" in warned["latin.md"]
    assert sources(memory, "Brot")[0] == "latin.md:1-1"
    with pytest.raises(NotFound, match="no file or folder"):
        memory.index(["nowhere.md"])


def test_status_names_what_is_skipped_and_why(memory: Memory, folder: Path) -> None:
    (folder / "docs" / "binary.md").write_bytes(b"\0\1\2" * 100)
    memory.index(["docs"])
    (told,) = memory.status()["sources"]
    assert told["skipped"] == [{"path": "docs/binary.md", "reason": "is not text"}]
    assert f"{'skipped':<16}docs/binary.md is not text" in list(render_status(memory.status()))
    assert memory.status()["dirty"] == 0


def test_files_that_are_skipped_are_not_announced_and_stop_no_other(
    memory: Memory, folder: Path
) -> None:
    memory.index(["docs"])
    (folder / "docs" / "binary.md").write_bytes(b"\0" * 2 * sediment_ext.files.NEW_SIZE)
    (folder / "docs" / "utf16.md").write_bytes(("x" * sediment_ext.files.NEW_SIZE).encode("utf-16"))
    with open(folder / "docs" / "huge.md", "wb") as file:
        file.truncate(sediment_ext.files.FILE_MAX + 1)
    (folder / "docs" / "new.md").write_text("The heron fishes at dawn.\n")
    answer = memory.recall("When does the heron fish?")
    assert answer["results"][0]["source"] == "docs/new.md:1-1"
    assert "notice" not in answer


def test_a_file_that_becomes_unreadable_leaves_the_index(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    (folder / "MEMORY.md").write_bytes(b"\0" * 100)
    assert memory.index([folder])["removed"] == 2
    assert rows(memory) == fresh(folder)


@pytest.mark.parametrize("look", ["recall", "expand"])
def test_a_file_that_is_away_for_a_moment_is_found_again(
    memory: Memory, folder: Path, look: str
) -> None:
    memory.index(["MEMORY.md", "docs"])
    id = memory.recall("gateway port")["results"][0]["id"]
    (folder / "MEMORY.md").rename(folder.parent / "aside")
    for _ in range(2):
        if look == "expand":
            with pytest.raises(NotFound):
                memory.expand(id)
        assert "MEMORY.md:6-9" not in sources(memory, "gateway port", anyway=True)
        assert memory.status()["sources"][0]["missing"] == ["MEMORY.md"]
    (folder.parent / "aside").rename(folder / "MEMORY.md")
    assert sources(memory, "gateway port")[0] == "MEMORY.md:6-9"
    assert rows(memory) == fresh(folder, "MEMORY.md", "docs")
    (folder / "MEMORY.md").rename(folder.parent / "aside")
    sources(memory, "gateway port")
    memory.index()
    assert memory.status()["dirty"] == 0
    consistent(memory)


def test_a_file_that_cannot_be_read_for_a_moment_is_found_again(
    memory: Memory, folder: Path
) -> None:
    memory.index(["MEMORY.md", "docs"])
    (folder / "MEMORY.md").write_bytes(b"\0" * 100)
    for _ in range(2):
        assert "MEMORY.md:6-9" not in sources(memory, "gateway port", anyway=True)
    (folder / "MEMORY.md").write_text(PREFERENCES)
    assert sources(memory, "gateway port")[0] == "MEMORY.md:6-9"


@pytest.mark.parametrize("nothing", ["", "<!-- To be written. -->\n"])
def test_a_file_that_had_nothing_is_found_when_it_has_text(
    memory: Memory, folder: Path, nothing: str
) -> None:
    (folder / "MEMORY.md").write_text(nothing)
    memory.index(["MEMORY.md", "docs"])
    for _ in range(2):  # of itself, and emptied again
        assert "MEMORY.md:6-9" not in sources(memory, "gateway port", anyway=True)
        (folder / "MEMORY.md").write_text(PREFERENCES)
        assert sources(memory, "gateway port")[0] == "MEMORY.md:6-9"
        (folder / "MEMORY.md").write_text(nothing)
    assert not sources(memory, "gateway port", source="MEMORY.md", anyway=True)
    assert rows(memory) == fresh(folder, "MEMORY.md", "docs")
    consistent(memory)


def test_a_file_that_got_another_name_in_its_folder_is_found_there(
    memory: Memory, folder: Path
) -> None:
    memory.index(["docs"])
    (folder / "docs" / "other.md").write_text("# Another\n\nA walrus.\n")
    (folder / "docs" / "guide.md").rename(folder / "docs" / "manual.md")
    assert sources(memory, "run the installer")[0] == "docs/manual.md:5-7"
    assert memory.status()["sources"][0]["missing"] == []
    (folder / "docs" / "manual.md").rename(folder / "docs" / "guide.md")
    assert sources(memory, "run the installer")[0] == "docs/guide.md:5-7"
    (folder / "docs" / "other.md").unlink()
    memory.recall("run the installer")
    assert rows(memory) == fresh(folder, "docs")
    consistent(memory)


def test_what_a_moved_project_had_indexed_is_told_as_gone_and_can_go(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.index(["MEMORY.md", "docs"])
    old = [str(folder / "MEMORY.md"), str(folder / "docs")]
    monkeypatch.chdir(folder.rename(folder.parent / "moved"))
    assert sources(memory, "gateway port") == []
    for _ in range(2):
        told = memory.status()
        assert [row["path"] for row in told["sources"] if row["gone"]] == old
        assert all(f"index --remove {path}" in str([*render_status(told)]) for path in old)
        warned = memory.index()["warnings"]
        assert [row["path"] for row in warned if "is gone" in row["reason"]] == old
    memory.index(["MEMORY.md", "docs"])
    memory.unindex(*old)
    assert memory.index()["warnings"] == []
    assert not any(row["gone"] for row in memory.status()["sources"])
    assert sources(memory, "gateway port")[0] == "MEMORY.md:6-9"


def test_a_folder_that_is_gone_leaves_the_index_until_it_is_back(
    memory: Memory, folder: Path
) -> None:
    memory.index(["docs"])
    shutil.rmtree(folder / "docs")
    assert memory.status()["sources"][0]["missing"] == ["docs/guide.md"]
    assert memory.index(["docs"])["removed"] == 3
    (folder / "docs").mkdir()
    (folder / "docs" / "guide.md").write_text(GUIDE)
    assert memory.index()["embedded"] == 0


def test_secrets_and_private_lines_do_not_enter(memory: Memory, folder: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\n-----END PRIVATE KEY-----"
    text = f"# Keys\n\n{key}\n\nThe token is {token}.\n\n<private>\nmarzipan\n</private>\n\n"
    text += "## End\n\nLast.\n"
    (folder / "keys.md").write_text(text)
    memory.index(["keys.md"])
    assert sources(memory, "last end")[0] == "keys.md:13-15"
    data = b"".join(path.read_bytes() for path in folder.parent.glob("memory.db*"))
    assert token.encode() not in data
    assert b"MIIEvQ" not in data
    assert b"marzipan" not in data
    id = memory.recall("token keys")["results"][0]["id"]
    assert token not in memory.expand(id)["content"]
    memory.index(["keys.md"], allow_secrets=True)
    assert any(token in row["content"] for row in memory.recall("the token is")["results"])
    with open(folder / "keys.md", "a") as file:  # for once means until it is read again
        file.write("\nOne more line.\n")
    assert all(token not in row["content"] for row in memory.recall("the token is")["results"])


def test_parts_of_files_are_not_handled_as_memories(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    id = memory.recall("gateway port")["results"][0]["id"]
    assert memory.list_items()["total"] == 0
    assert list(memory.export_rows()) == []
    with pytest.raises(InvalidInput, match=r"MEMORY.md:6-9"):
        memory.forget(id)
    with pytest.raises(InvalidInput, match=r"edit that file"):
        memory.store("Something else.", replace=id)
    answer = memory.store("Gateway port: 18789. Database: PostgreSQL 15")
    assert "may_replace" not in answer
    assert memory.consolidate() == memory.consolidate(dry_run=True)
    assert memory.prune("0d", dry_run=True)["count"] <= 1


# Freshness


def test_a_fact_corrected_in_an_editor_is_what_recall_answers(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    file = folder / "MEMORY.md"
    file.write_text(PREFERENCES.replace("18789", "19000"))
    (first, *_) = memory.recall("gateway port")["results"]
    assert "19000" in first["content"]
    draft = folder / "draft"
    draft.write_text(PREFERENCES.replace("18789", "20000"))
    draft.replace(file)  # as editors save
    assert "20000" in memory.recall("gateway port")["results"][0]["content"]
    file.unlink()
    assert all("MEMORY" not in source for source in sources(memory, "gateway port", anyway=True))


def test_a_note_of_a_later_day_comes_before_an_earlier_one(memory: Memory, folder: Path) -> None:
    notes = folder / "memory"
    notes.mkdir()
    (notes / "2026-03-01.md").write_text("# Notes\n\nThe staging database is on port 5433.\n")
    (notes / "2026-05-01.md").write_text("# Notes\n\nThe staging database is on port 6543 now.\n")
    memory.index([notes])
    assert sources(memory, "staging database port")[0] == "memory/2026-05-01.md:1-3"


DECISIONS = """# Decisions (newest on top)

## 2026-10-01 Mail

We send mail with Postmark.

## [1.2.0] - 2026-08-15

The billing service listens on port 7300.

## Billing (May 2, 2026)

The billing service listens on port 7105.

## 2026-01-10 Mail

### Sender

We send mail with Sendgrid.

## 1.0.0 [2026-01-09] [YANKED]

The billing service listens on port 7001.

## The 40 days

Nothing more.
"""


def test_of_parts_under_dated_headings_the_newest_comes_first(memory: Memory, folder: Path) -> None:
    (folder / "DECISIONS.md").write_text(DECISIONS)
    memory.index([folder / "DECISIONS.md"])
    assert sources(memory, "what do we send mail with")[0] == "DECISIONS.md:1-5"
    assert sources(memory, "billing service port")[0] == "DECISIONS.md:7-9"


def test_a_headings_day_outlives_the_files_time(memory: Memory, folder: Path) -> None:
    def days() -> list[str]:
        rows = memory.database.rows("SELECT created_at FROM items ORDER BY first_line")
        return [f"{datetime.fromtimestamp(at):%Y-%m-%d}" for (at,) in rows]

    told = ["2026-10-01", "2026-08-15", "2026-05-02", "2026-01-10", "2026-01-09"]
    file = folder / "DECISIONS.md"
    for day in ("2024-03-01", "2024-04-01"):
        write_dated(file, DECISIONS, day)
        memory.index([file])
        assert days() == [*told, day]
    write_dated(file, DECISIONS + "More.\n", "2024-05-01")
    memory.index([file])
    assert days() == [*told, "2024-05-01"]


def write_dated(file: Path, text: str, day: str) -> None:
    file.write_text(text)
    changed = datetime.fromisoformat(day).timestamp()
    os.utime(file, (changed, changed))


def test_source_and_weights_narrow_and_turn_the_search(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.index([folder])
    memory.store("The gateway is restarted on Sundays.")
    found = sources(memory, "gateway port", source="docs/", anyway=True)
    assert sorted(found) == ["docs/guide.md:1-3", "docs/guide.md:5-7", "docs/guide.md:9-11"]
    whole = sources(memory, "gateway port", source=str(folder / "docs"), anyway=True)
    assert whole == found
    beside = folder / "docs-old"
    beside.mkdir()
    (beside / "guide.md").write_text("The gateway port was 80.\n")
    memory.index([folder])
    with monkeypatch.context() as there:
        there.chdir(folder)
        assert sources(memory, "gateway port", source="docs/", anyway=True) == found
    with pytest.raises(NotFound, match="no path of an indexed file begins with"):
        memory.recall("gateway port", source="nowhere")
    words = memory.recall("Sundays spicy", text_weight=1, explain=True)["results"]
    assert all(row["parts"].get("meaning", 0) == 0 for row in words)
    meaning = memory.recall("Sundays spicy", text_weight=0, explain=True)["results"]
    assert all("words" not in row["parts"] for row in meaning)
    wrongs: list[dict[str, Any]] = [{"text_weight": 2}, {"vector_weight": "x"}, {"candidates": 0}]
    for wrong in wrongs:
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            memory.recall("gateway", **wrong)
    with pytest.raises(InvalidInput, match="both 0"):
        memory.recall("gateway", vector_weight=0, text_weight=0)


def test_expand_shows_the_section_or_lines_around(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    (row,) = memory.recall("run the installer", limit=1)["results"]
    section = memory.expand(row["id"][:12])
    assert section["content"] == "## Install\n\nRun the installer."
    assert section["source"] == "docs/guide.md:5-8"
    assert memory.expand(row["id"], lines=2)["content"].startswith("First words.")
    top = next(r for r in memory.recall("first words")["results"] if r["source"].endswith(":1-3"))
    assert memory.expand(top["id"])["content"] == GUIDE.rstrip("\n")
    assert memory.recall(row["id"])["results"][0]["content"] == "## Install\n\nRun the installer."
    (folder / "docs" / "guide.md").write_text("# Another\n\nthing\n")
    with pytest.raises(NotFound, match="has changed: recall again"):
        memory.expand(row["id"])


FENCES = "# Run\n\n```sh\n# no heading\n```\n\n    ~~~\n    # none\n    ~~~\n\nneedle\n\n# Next\n"
NESTED = (
    "# List\n\n- one\n  - two\n\n    ```sh\n    <!-- shown\n    # none\n    ```\n\n  - needle\n\n"
)
SECTIONS = {
    "front matter": (
        "---\ntitle: x\nlong: yes\n---\n\n# A\n\nneedle\n\n# B\n\nb\n",
        "# A",
        "needle\n\n",
    ),
    "front matter ended by dots": ("---\na: 1\n...\n# A\nneedle\n# B\nb\n", "# A", "needle\n"),
    "text before any heading": ("---\na: 1\n---\n\nneedle\n\n# A\n\na\n", "needle", "needle\n\n"),
    "a rule at the top, and another": (
        "---\n\n# A\n\na\n\n# B\n\nneedle\n\n---\n\n# C\n",
        "# B",
        "---\n\n",
    ),
    "fenced code": (FENCES, "# Run", "needle\n\n"),
    "code in a nested list": (NESTED + "## Sub\n\ns -->\n\n# Next\n", "# List", "s -->\n\n"),
    "three ticks in a line": (
        "# A\n\n```x``` is code\n\n<!--\n# none\n-->\nneedle\n\n# B\n",
        "# A",
        "needle\n\n",
    ),
    "a long comment": (
        "<!--\n" + "# none\n" * 90 + "-->\n# A\n\nneedle\n\n# B\n\nb\n",
        "# A",
        "needle\n\n",
    ),
    "comments between": (
        "# A\n\n<!-- x -->a\n\n## B <!-- y -->\n\nneedle\n\n## C\n",
        "## B <!-- y -->",
        "needle\n\n",
    ),
    "underlined headings": (
        "Top\n===\n\na\n\nSub\n---\n\nneedle\n\nNext\n---\n\nb\n",
        "Sub",
        "needle\n\n",
    ),
    "a title between two rules": (
        "# A\n\na\n\n-----\nLICENSE\n-----\n\nneedle\n\n# B\n",
        "LICENSE",
        "needle\n\n",
    ),
    "a heading without text": (
        "# A\n\na\n\n## B\n\nneedle\n\n#\n## C\n\nc\n",
        "## B",
        "needle\n\n",
    ),
    "a heading with nothing under it": (
        "# Top\n\n## A\n\nneedle\n\n## B\n\nb\n",
        "## A",
        "needle\n\n",
    ),
    "block quotes": ("# A\n\n> # none\n> needle\n\n## B\n\nb\n\n# C\n", "# A", "b\n\n"),
    "a level left out": ("# A\n\n### B\n\nneedle\n\n#### C\n\nc\n\n## D\n", "### B", "c\n\n"),
    "hashes that head nothing": (
        "# A\n\n#tag\n\n    # code\n\n####### 7\n\nneedle\n\n# B #\n",
        "# A",
        "needle\n\n",
    ),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("case", SECTIONS)
def test_a_section_is_its_heading_and_all_up_to_the_next_of_its_level(
    case: str, newline: str, memory: Memory, folder: Path
) -> None:
    text, begins, ends = SECTIONS[case]
    (folder / "hard.md").write_bytes(text.replace("\n", newline).encode())
    memory.index([folder / "hard.md"])
    found = memory.recall("needle", text_weight=1, vector_weight=0)["results"]
    (row,) = [row for row in found if "needle" in row["content"]]
    shown = memory.expand(row["id"])
    first, last = map(int, shown["source"].removeprefix("hard.md:").split("-"))
    lines = text.splitlines(keepends=True)[first - 1 : last]
    assert shown["content"] == "".join(lines).strip("\n")
    assert lines[0] == begins + "\n"
    assert "".join(lines).endswith(ends)


MACHINE = (
    Path(sediment.__file__).parent,
    Path(sys.prefix),
    Path("/usr/share/doc"),
    Path("/usr/lib/node_modules"),
)
LOOKED_AT = 60  # of their files, evenly; all of them take minutes


def level_of(lines: list[str], number: int) -> int:
    """The level of the heading that begins in this line of a file; 0 if none does."""
    line, below = [*lines, "", ""][number - 1 : number + 1]
    if mark := re.match(r" {0,3}(#{1,6})(?:\s|$)", line):
        return len(mark[1])
    mark = re.match(r" {0,3}(=|-)\1+\s*$", below)
    return 0 if not line.strip() or not mark else 1 if mark[1] == "=" else 2


def test_sections_of_all_the_markdown_that_is_here() -> None:
    found = {path for place in MACHINE for path in place.rglob("*.md") if path.is_file()}
    files = sorted(found, key=lambda path: (path.stat().st_size, path))
    for path in files[:: len(files) // LOOKED_AT + 1]:
        text = sediment_ext.files.read_file(path.resolve()).text
        lines, shown = text.removesuffix("\n").split("\n"), visible(text)
        heads = {shown.count("\n", 0, one.start) + 1 for one in headings_in(shown)}
        parts = split_file(text, "markdown", lambda _: True)
        for part in parts[:: len(parts) // 3 + 1]:  # a file is read anew for each
            first, last = section_at(text, part.first, part.last)
            here = f"{path}:{first}-{last}"
            assert first <= part.last <= last, here
            level = level_of(lines, first)
            assert level or not any(line <= part.last for line in heads), here
            assert last >= len(lines) or 0 < level_of(lines, last + 1) <= (level or 6), here
            inner = [level_of(lines, line) for line in heads if first < line <= last]
            assert all(one > level for one in inner), here
    assert files


def test_one_pattern_may_be_given_by_itself(memory: Memory, folder: Path) -> None:
    (folder / "main.py").write_text("print('the heron queue')\n")
    (folder / "data.csv").write_text("a,b\n")
    answer = memory.index(folder, globs="*.py", exclude="docs/")
    assert [Path(row["path"]).name for row in answer["changes"]] == ["MEMORY.md", "main.py"]


# Writing

TODAY = "2026-11-12"


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands, so that no day begins meanwhile."""

    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromisoformat(f"{TODAY}T12:00")

    monkeypatch.setattr(sediment, "datetime", Noon)
    monkeypatch.setattr(sediment_ext.notes, "datetime", Noon)


@pytest.mark.usefixtures("noon")
def test_a_note_stands_in_todays_file_and_is_found(memory: Memory, folder: Path) -> None:
    memory.projects.given, memory.projects.folder = None, folder
    (folder / ".sediment").mkdir()
    answer = memory.note("Read the authentication guide.\nIt is long.")
    today = folder / "memory" / f"{TODAY}.md"
    assert answer["source"] == f"memory/{today.name}:3"
    lines = today.read_text().splitlines()
    assert lines[0] == f"# {today.stem}"
    assert lines[2].endswith("Read the authentication guide.")
    assert lines[3] == "  It is long."
    assert today.stat().st_mode & 0o777 == 0o600
    memory.note("Set up the gateway.")
    assert memory.recall("gateway setup")["results"][0]["source"].startswith("memory/")
    assert memory.index()["changes"] == []


def test_a_note_that_cannot_be_indexed_is_said_to_stand(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DatabaseError("memory.db cannot be read or written")

    monkeypatch.setattr(sediment_ext.files, "files_of_scope", fail)
    with pytest.raises(DatabaseError, match=r"the text stands in memory/.*:3, which `index"):
        memory.note("The heron is at the pond.")


def test_a_heading_in_a_note_is_no_heading_of_the_day(memory: Memory, folder: Path) -> None:
    memory.projects.given, memory.projects.folder = None, folder
    (folder / ".sediment").mkdir()
    first = memory.note("The gateway config:\n# listen on all\nport 8080\n\nTitle\n---\nend")
    memory.note("The heron queue is called newton.")
    (shown, *_) = memory.recall("gateway config port")["results"]
    assert "# listen on all\n  port 8080" in memory.expand(shown["id"])["content"]
    found = memory.recall("what is the heron queue called?")["results"][0]
    assert found["source"].split(":")[0] == first["source"].split(":")[0]
    day = found["source"].split("/")[1][:10]
    assert memory.expand(found["id"])["content"].startswith(f"# {day}")


def test_a_fact_goes_into_a_file_once(memory: Memory, folder: Path) -> None:
    file = folder / "MEMORY.md"
    file.write_text(PREFERENCES.rstrip("\n"))
    answer = memory.store("The staging server is called newton.", into="MEMORY.md")
    assert answer["source"] == "MEMORY.md:10"
    assert file.read_text() == PREFERENCES + "- The staging server is called newton.\n"
    again = memory.store("The staging server is called newton.", into="MEMORY.md")
    assert again["id"] == answer["id"]
    assert "Already in" in again["message"]
    assert memory.list_items()["total"] == 0
    assert memory.recall("what is staging called")["results"][0]["id"] == answer["id"]
    with pytest.raises(InvalidInput, match="is a folder"):
        memory.store("x", into=folder)
    with pytest.raises(InvalidInput, match="edit the file"):
        memory.store("x", into="MEMORY.md", replace=answer["id"])
    before = file.read_bytes()
    with pytest.raises(InvalidInput, match="scope must be"):
        memory.store("Nowhere to go.", into=file, scope="nowhere")
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"# C\r\n\r\n- a\r\n", b"# C\r\n\r\n- a\r\n- one\r\n  two\r\n"),
        (b"# C\r\n\r\n- a", b"# C\r\n\r\n- a\r\n- one\r\n  two\r\n"),
        (b"# C\n\n- a\r\n", b"# C\n\n- a\r\n- one\n  two\n"),
        (b"", b"- one\n  two\n"),
    ],
)
def test_lines_that_are_added_end_as_the_others(
    memory: Memory, folder: Path, before: bytes, after: bytes
) -> None:
    file = folder / "facts.md"
    file.write_bytes(before)
    for _ in range(2):
        memory.store("one\ntwo", into=file)
        assert file.read_bytes() == after


def test_a_fact_that_is_not_found_has_no_id_to_print(memory: Memory, folder: Path) -> None:
    file = folder / "open.md"
    file.write_text("# T\n\n<private>\nsecret\n")
    answer = memory.store("The koala eats at noon.", into=file)
    (line,) = sediment.render_stored(answer)
    assert "Recall cannot find it" in line


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes")
def test_nothing_is_written_into_a_name_that_is_no_text(memory: Memory, folder: Path) -> None:
    file, notes = (folder / os.fsdecode(name) for name in (b"new\xff.md", b"m\xff"))
    notes.mkdir()
    (notes / "2026-01-01.md").write_text("x\n")
    for call in (
        lambda: memory.store("a fact", into=file),
        lambda: memory.note("a fact", folder=notes),
        lambda: memory.compact(notes, command="echo y"),
    ):
        with pytest.raises(InvalidInput, match="not UTF-8"):
            call()
    assert not file.exists()
    assert [one.name for one in notes.iterdir()] == ["2026-01-01.md"]


@pytest.mark.parametrize(
    "text",
    [
        "<!--\n- Deploy on Friday\n-->\n",
        "```\n- Deploy on Friday\n```\n",
        "- Deploy on Friday\n  is forbidden.\n",
        "a\x0cb\u2028c\r- Deploy on Mondays\r",
    ],
)
def test_a_fact_that_only_seems_to_stand_there_is_added(
    memory: Memory, folder: Path, text: str
) -> None:
    file = folder / "facts.md"
    file.write_text(text, newline="")
    answer = memory.store("Deploy on Friday", into=file)
    assert answer["message"].startswith("Added to")
    assert memory.recall("when to deploy", limit=1)["results"][0]["source"].endswith(
        answer["source"].rpartition(":")[2]
    )
    assert memory.store("Deploy on Friday", into=file)["id"] == answer["id"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("# T\n\n- printer\n".encode("utf-16"), "is UTF-16: save it as UTF-8"),
        ("打印机".encode("utf-16"), "is UTF-16: save it as UTF-8"),
        ("# T\n".encode("utf-16-le"), "is not text"),
        ("Küche\n".encode("latin-1"), "is not all UTF-8"),
        (b"a\0b\n", "is not text"),
        (b"x lorem\n" * (sediment_ext.files.FILE_MAX // 8), "is too large"),
        (b"x lorem\n" * (sediment_ext.files.FILE_MAX // 8 + 1), "is too large"),
    ],
)
def test_nothing_is_added_to_a_file_that_is_not_indexed_then(
    memory: Memory, folder: Path, data: bytes, reason: str
) -> None:
    file = folder / "facts.md"
    file.write_bytes(data)
    with pytest.raises(
        InvalidInput, match=rf"facts\.md {reason}.*: nothing was written; name another"
    ):
        memory.store("The heron server is called newton.", into=file)
    assert file.read_bytes() == data


COMMENTED = [
    "In HTML a comment begins with <!-- and so on",
    "<!-- all of it -->",
    "see `<!--` and `-->`",
    "```\n<!-- x\n```",
    "so:\n```\n<!-- x\n```\nthat was it",
    "so:\n  ```\n  `<!-- x\n",
    "it ends with --> as everyone knows",
    "a --> b",
]


@pytest.mark.parametrize("before", ["", "- open <!-- here\n", "- open <!-- here", "```\n"])
def test_no_mark_of_a_comment_hides_what_was_written_beside_it(folder: Path, before: str) -> None:
    file = folder / "facts.md"
    file.write_text(before)
    for text in [*COMMENTED, *reversed(COMMENTED)]:
        sediment_ext.notes.append_lines(file, "", sediment_ext.notes.as_bullet(text))
        assert visible(file.read_text()) == file.read_text()
    closed = file.read_text() + "-->\n"
    assert visible(closed) == closed or "<!--" in before


def test_an_arrow_stays_as_it_was_written(folder: Path) -> None:
    file = folder / "facts.md"
    for _ in range(2):
        sediment_ext.notes.append_lines(file, "", ["- a --> b, as ever"])
        sediment_ext.notes.append_lines(file, "", ["- but not here: <!--"])
    assert file.read_text() == "- a --> b, as ever\n- but not here: \\<!--\n"


def test_a_fact_that_recall_does_not_find_in_its_file_is_told_as_such(
    memory: Memory, folder: Path
) -> None:
    (folder / "facts.md").write_text("- a\n<private>\n- b\n")
    answer = memory.store("The heron server is called newton.", into="facts.md")
    assert answer["id"] is None
    assert answer["message"].endswith(
        "Recall cannot find it: the file has left out all after an unclosed <private>."
    )


def write_everywhere(memory: Memory) -> dict[str, Any]:
    """What writes into a project, by the name of the path that it goes to."""
    return {
        "memory": lambda: memory.note("x"),
        f"memory/{TODAY}.md": lambda: memory.note("x"),
        "MEMORY.md": lambda: memory.store("x", into="MEMORY.md"),
        "docs": lambda: memory.store("x", into="docs/new.md"),
        "memory/": lambda: memory.compact("memory", command="grep -c Deployed"),
        "memory/archive": lambda: memory.compact("memory", command="grep -c Deployed"),
    }


def as_link(path: Path, target: Path) -> None:
    """Let a path lead elsewhere, to what has stood there."""
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(target)
    path.symlink_to(target)


def all_files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder)}


WRITES = ["memory", f"memory/{TODAY}.md", "MEMORY.md", "docs", "memory/", "memory/archive"]


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize("name", WRITES)
def test_a_link_that_leads_out_of_the_project_is_not_written_through(
    memory: Memory, notes: Path, name: str
) -> None:
    outside = notes.parent.parent / "outside"
    outside.mkdir()
    if name == "memory/archive":
        (outside / "target").mkdir()
    as_link(notes.parent / name, outside / "target")
    before = all_files(outside), all_files(notes.parent)
    with pytest.raises(InvalidInput, match="is a link out of the project: left as it is"):
        write_everywhere(memory)[name]()
    assert (all_files(outside), all_files(notes.parent)) == before


@pytest.mark.parametrize("name", [".git/config", ".git/x.md", "run.py", "Data.JSON", ".bashrc"])
def test_nothing_is_stored_into_what_is_no_note(memory: Memory, folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("[core]\n")
    with pytest.raises(InvalidInput, match=r"is no note|is in \.git"):
        memory.store("The heron fishes at dawn.", into=name)
    assert (folder / name).read_text() == "[core]\n"


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize("name", WRITES)
def test_a_link_into_git_is_not_written_through(memory: Memory, notes: Path, name: str) -> None:
    (inside := notes.parent / ".git" / "modules").mkdir(parents=True)
    if name == "memory/archive":
        (inside / "target").mkdir()
    as_link(notes.parent / name, inside / "target")
    before = all_files(inside), all_files(notes.parent)
    with pytest.raises(InvalidInput, match=r"is a link into \.git: left as it is"):
        write_everywhere(memory)[name]()
    assert (all_files(inside), all_files(notes.parent)) == before


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize("name", WRITES)
def test_a_link_within_the_project_is_written_through(
    memory: Memory, notes: Path, name: str
) -> None:
    (notes.parent / "old").mkdir()
    target = notes.parent / "old" / ("target" + Path(name).suffix)
    if name == "memory/archive":
        target.mkdir()
    as_link(notes.parent / name, target)
    before = all_files(notes.parent / "old")
    write_everywhere(memory)[name]()
    assert (notes.parent / name).is_symlink()
    assert all_files(notes.parent / "old") != before


def test_a_link_that_a_person_names_elsewhere_is_followed(memory: Memory, folder: Path) -> None:
    as_link(folder.parent / "mine.md", folder.parent / "far.md")
    memory.store("The gateway is green.", into=folder.parent / "mine.md")
    assert (folder.parent / "far.md").read_text() == "- The gateway is green.\n"


def test_many_writers_lose_no_line(folder: Path) -> None:
    def write(number: int) -> None:
        for turn in range(20):
            sediment_ext.notes.append_lines(folder / "log.md", "# Log\n", [f"- {number} {turn}"])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (folder / "log.md").read_text().splitlines()
    assert lines[0] == "# Log"
    assert sorted(lines[1:]) == sorted(f"- {n} {turn}" for n in range(6) for turn in range(20))


# Compacting


@pytest.fixture
def notes(folder: Path) -> Path:
    place = folder / "memory"
    place.mkdir()
    for day in ("2026-01-05", "2026-01-06", "2026-02-01"):
        (place / f"{day}.md").write_text(f"# {day}\n\n- Deployed the gateway on {day}.\n")
    (place / "2026-01-07.md").write_text("# 2026-01-07\n\n- Deployed the gateway on 2026-01-05.\n")
    (place / "README.md").write_text("No note.\n")
    tomorrow = place / "2999-01-01.md"
    tomorrow.write_text("Not old.\n")
    return place


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Invoice 2026-118 is unpaid.", "Invoice 2026-118 is paid."),
        ("The gateway listens on port 5432.", "The gateway listens on port 5433."),
        ("Anna has the key to the boat house.", "Hanna has the key to the boat house."),
        ("We deploy the gateway on Fridays.", "We do not deploy the gateway on Fridays."),
    ],
)
def test_notes_that_differ_in_what_counts_do_not_repeat_one_another(
    memory: Memory, folder: Path, one: str, other: str
) -> None:
    place = folder / "memory"
    place.mkdir()
    for day, text in enumerate((one, other, one), 1):
        (place / f"2026-01-0{day}.md").write_text(f"# 2026-01-0{day}\n\n- {text}\n")
    (pair,) = memory.compact(place)["repeats"]
    assert pair["sources"] == ["memory/2026-01-01.md:1-3", "memory/2026-01-03.md:1-3"]


def test_a_file_that_goes_between_an_edit_and_its_reading_is_removed_and_not_skipped(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "memory"
    place.mkdir()
    for name in ("a", "b"):
        (place / f"{name}.md").write_text("- Tea is at four.\n")
    memory.index([place])
    (place / "a.md").write_text("- Tea is at six.\n")
    read = sediment_ext.files.read_file

    def read_late(path: Path) -> sediment_ext.files.Contents:
        if path.name == "a.md":
            path.unlink()
        return read(path)

    monkeypatch.setattr(sediment_ext.files, "read_file", read_late)
    answer = memory.index([place])
    assert (answer["skipped"], answer["files"]) == ([], 1)
    (change,) = answer["changes"]
    assert (change["path"], change["action"]) == (str(place / "a.md"), "removed")


def test_old_notes_become_what_a_command_makes_of_them(memory: Memory, notes: Path) -> None:
    memory.index([notes])
    answer = memory.compact(notes, command="grep -c Deployed")
    assert answer["summary"] == "4"
    summary = "summary-2026-01-05-to-2026-02-01.md"
    assert names(notes) == {"README.md", "2999-01-01.md", summary} | {
        f"archive/2026-0{rest}.md" for rest in ("1-05", "1-06", "1-07", "2-01")
    }
    assert "\n4\n" in (notes / summary).read_text()
    assert memory.index([notes])["changes"] == []
    assert rows(memory) == fresh(notes)
    assert all("archive" not in row["source"] for row in memory.recall("deployed")["results"])
    memory.index([notes], include_archive=True)
    assert any("archive" in source for source in sources(memory, "deployed the gateway"))
    assert memory.compact(notes, command="cat")["message"].startswith("No note is that old")


def test_old_notes_that_cannot_be_read_are_named(memory: Memory, notes: Path) -> None:
    (notes / "2026-01-08.md").write_bytes("- Greased the winch.\n".encode("utf-16"))
    (notes / "2999-01-02.md").write_bytes("- Not old.\n".encode("utf-16"))
    skipped = {"path": "memory/2026-01-08.md", "reason": "is UTF-16: save it as UTF-8"}
    line = "skipped: memory/2026-01-08.md is UTF-16: save it as UTF-8"
    answers = (
        memory.compact(notes),
        memory.compact(notes, command="grep -c Deployed"),
        memory.compact(notes, command="grep -c Deployed"),  # when no other is left
    )
    for answer in answers:
        assert answer["skipped"] == [skipped]
        assert line in sediment_ext.notes.render_compacted(answer)
    assert (notes / "2026-01-08.md").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes")
def test_a_note_whose_name_is_not_unicode_is_compacted(memory: Memory, notes: Path) -> None:
    name = os.fsdecode(b"2026-01-05-\xff.md")
    (notes / name).write_text("- Greased the winch.\n")
    answer = memory.compact(notes, command="grep -e winch -e udcff")
    assert answer["summary"] == "<!-- 2026-01-05-\\udcff.md -->\n- Greased the winch."
    assert (notes / "archive" / name).read_text() == "- Greased the winch.\n"
    assert not (notes / name).exists()


def test_a_look_before_compacting_changes_nothing(memory: Memory, notes: Path) -> None:
    before = names(notes)
    answer = memory.compact(notes)
    assert len(answer["notes"]) == 4
    same = ["memory/2026-01-05.md:1-3", "memory/2026-01-07.md:1-3"]
    assert [row["sources"] for row in answer["repeats"]] == [same]
    assert "Deployed" in memory.compact(notes, dry_run=True)["input"]
    assert names(notes) == before
    assert memory.status()["sources"] == []


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("echo half; exit 3", "failed with 3"),
        ("true", "printed nothing"),
        ("sleep 60", "ran past"),
        ("head -c 200 /dev/urandom", "not text"),
        (r"printf 'a\033[2Jb'", "not text"),
        (r"printf 'a\377b'", "not text"),
        (r"printf 'a\000b'", "not text"),
        ("cat; echo more", "no fewer characters than the notes have"),
        ("cat", "no fewer characters than the notes have"),
        ("yes", "no fewer characters than the notes have"),
        ("echo '<!-- notes -->'", "nothing that recall could find"),
        ("echo ---", "nothing that recall could find"),
        ("no-such-program-here", "failed with 127"),
        ("echo '<private>all of it</private>'", "nothing that recall could find"),
        ("echo ghp_" + "a1B2" * 9, "nothing that recall could find"),
    ],
)
def test_a_command_that_fails_changes_nothing(
    memory: Memory, notes: Path, command: str, told: str
) -> None:
    before = names(notes)
    with pytest.raises(InvalidInput, match="nothing was changed") as caught:
        memory.compact(notes, command=command, timeout=0.5 if told == "ran past" else TIMEOUT)
    assert told in str(caught.value)
    assert names(notes) == before


@pytest.mark.parametrize(
    ("command", "told", "seconds"),
    [
        ("sleep 600 & echo $! > pid; echo summary", "ran past", 1),
        ("sleep 600 >&- 2>&- & echo $! > pid; exit 3", "failed with 3", TIMEOUT),
    ],
)
def test_a_command_that_fails_leaves_nothing_running(
    memory: Memory, notes: Path, command: str, told: str, seconds: float
) -> None:
    file = Path("pid")
    file.touch()
    while not file.read_text():  # a slow machine has not begun when the time is up
        with pytest.raises(InvalidInput, match=told):
            memory.compact(notes, command=command, timeout=seconds)
        assert seconds <= TIMEOUT, "it never begins"
        seconds *= 2
    pid = int(file.read_text())
    end = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < end, "what the command started goes on"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("timeout", [float("nan"), 0, -1, float("inf"), "7"])
def test_a_timeout_is_a_number_of_seconds(memory: Memory, notes: Path, timeout: Any) -> None:
    with pytest.raises(InvalidInput, match="timeout must be a number of seconds"):
        memory.compact(notes, command="echo summary", timeout=timeout)


def test_a_command_that_never_ends_to_print_takes_no_memory(
    memory: Memory, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    read = sediment_ext.notes._beginning_of_pipe

    def measured(*given: Any) -> bytes:
        sizes.append(len(data := read(*given)))
        return data

    monkeypatch.setattr(sediment_ext.notes, "_beginning_of_pipe", measured)
    with pytest.raises(
        InvalidInput, match="no fewer characters than the notes have: nothing was changed"
    ):
        memory.compact(notes, command="yes", timeout=600)
    assert 0 < sizes[0] < 10_000


def test_a_summary_that_an_index_leaves_out_replaces_nothing(
    memory: Memory, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names(notes)
    with monkeypatch.context() as patch:
        patch.setattr(sediment_ext.files, "FILE_MAX", 120)
        with pytest.raises(InvalidInput, match=r"would not find .*too large.*nothing was changed"):
            memory.compact(notes, command="grep Deployed | head -c 110")
    (notes / ".gitignore").write_text("summary-*\n")
    with pytest.raises(InvalidInput, match=r"would not find it: nothing was changed"):
        memory.compact(notes, command="grep -m 1 Deployed")
    assert names(notes) == before | {".gitignore"}
    assert memory.status()["sources"] == []


def test_a_summary_with_many_headings_is_found_by_each(memory: Memory, notes: Path) -> None:
    text = "".join(f"## Part {n}\n\nDone.\n\n## Decisions\n\n- No. {n}\n\n" for n in range(6))
    (notes / "2026-01-05.md").write_text(text)
    answer = memory.compact(notes, command="grep -v 2026-0")
    assert answer["summary"] == text.strip()


def test_a_note_that_changes_meanwhile_stops_it(memory: Memory, notes: Path) -> None:
    before = names(notes)
    with pytest.raises(InvalidInput, match="changed meanwhile"):
        memory.compact(notes, command=f"head -c 20; echo more >> '{notes}/2026-01-05.md'")
    assert names(notes) == before


@pytest.mark.parametrize("moved", range(4))
def test_a_compaction_that_is_interrupted_is_taken_back(
    memory: Memory, notes: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """The summary stands there before a note moves, so that a kill hides no text, either."""
    left, rename, before = [moved], os.rename, names(notes)

    def one_less(old: Any, new: Any) -> None:
        assert list(notes.glob("summary-*"))
        if not left[0]:
            left[0] = 9
            raise KeyboardInterrupt
        left[0] -= 1
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", one_less)
        with pytest.raises(KeyboardInterrupt):
            memory.compact(notes, command="echo all of it")
    assert names(notes) == before


def test_a_note_that_is_written_again_while_it_moves_keeps_both_texts(
    memory: Memory, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def written_again(old: Any, new: Any) -> None:
        monkeypatch.setattr(os, "rename", rename)
        rename(old, new)
        Path(old).write_text("A new one.\n")
        with open(new, "a") as file:
            file.write("More.\n")

    monkeypatch.setattr(os, "rename", written_again)
    with pytest.raises(InvalidInput, match="has changed meanwhile"):
        memory.compact(notes, command="echo all of it")
    assert (notes / "2026-01-05.md").read_text() == "A new one.\n"
    assert (notes / "archive" / "2026-01-05.md").read_text().endswith("More.\n")
    assert not list(notes.glob("summary-*"))


def test_a_file_of_the_summarys_name_stays(memory: Memory, notes: Path) -> None:
    mine = notes / "summary-2026-01-05-to-2026-02-01.md"
    mine.write_text("Mine.\n")
    answer = memory.compact(notes, command="echo all of it")
    assert mine.read_text() == "Mine.\n"
    assert answer["path"] == str(mine).replace(".md", "-2.md")
    assert "all of it" in Path(answer["path"]).read_text()


def test_one_compaction_of_a_folder_begins_at_a_time(
    memory: Memory, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = memory.database.transaction

    def late() -> Any:
        monkeypatch.setattr(memory.database, "transaction", begin)
        with open_memory(memory.database.path) as other:
            other.compact(notes, command="echo theirs")
        return begin()

    monkeypatch.setattr(memory.database, "transaction", late)
    with pytest.raises(InvalidInput, match="changed meanwhile"):
        memory.compact(notes, command="echo ours")
    (summary,) = notes.glob("summary*")
    assert "theirs" in summary.read_text()


def test_moves_that_cannot_be_made_are_taken_back(
    memory: Memory, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names(notes)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sediment, "place_new_file", full)
        with pytest.raises(InvalidInput, match="No space left"):
            memory.compact(notes, command="echo all of it")
    assert names(notes) == before
    memory.index([notes])
    assert names(notes) == before


# Watching


def settled(memory: Memory, folder: Path, seconds: float = 60) -> None:
    """Wait until the index is that of the files."""
    end = time.monotonic() + seconds
    while rows(memory) != (wanted := fresh(folder)):
        assert time.monotonic() < end, json.dumps(
            [sorted({row[0] for row in one}) for one in (rows(memory), wanted)]
        )
        time.sleep(0.2)


def test_a_watched_folder_is_followed_through_everything(
    memory: Memory, folder: Path, tmp_path: Path
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)

    for number in range(40):
        (folder / f"note-{number}.md").write_text(f"# Note {number}\n\nTells of {number} ropes.\n")
    git("init", "-q")
    git("config", "user.email", "a@b.c")
    git("config", "user.name", "a")
    git("add", "-A")
    git("commit", "-qm", "one")
    git("checkout", "-qb", "other")
    for number in range(40):
        (folder / f"note-{number}.md").write_text(f"# Note {number}\n\nTells of {number} sails.\n")
    git("commit", "-qam", "two")
    stop, told = threading.Event(), []

    def watch() -> None:
        with open_memory(folder.parent / "memory.db") as watcher:
            for answer in watcher.watch([folder], debounce_ms=100, stop=stop):
                told.append(answer)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        settled(memory, folder)
        (folder / "MEMORY.md").write_text(PREFERENCES + "- One more.\n")
        (folder / "docs" / "guide.md").unlink()
        draft = folder / "draft.tmp"
        draft.write_text("# Note 1\n\nSaved by a rename.\n")
        draft.replace(folder / "note-1.md")
        settled(memory, folder)
        git("checkout", "-q", "--", ".")
        git("checkout", "-q", "-")
        memory.store("Others store all the while.")
        assert memory.recall("who stores?")["count"]
        settled(memory, folder)
        away = folder.parent / "away"
        folder.rename(away)
        end = time.monotonic() + 30
        while rows(memory) and time.monotonic() < end:
            time.sleep(0.2)
        assert rows(memory) == []
        away.rename(folder)
        settled(memory, folder)
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
    assert any(row["action"] == "removed" for answer in told for row in answer["changes"])
    consistent(memory)


@contextlib.contextmanager
def watched(folder: Path, *tops: str, **options: Any) -> Iterator[list[dict[str, Any]]]:
    """What a watch of these tells, from its first index on, in a thread of its own."""
    stop, first, told = threading.Event(), threading.Event(), []

    def watch() -> None:
        with open_memory(folder.parent / "memory.db") as watcher:
            given = [folder / top for top in tops]
            for answer in watcher.watch(given, debounce_ms=100, stop=stop, **options):
                told.append(answer)
                first.set()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        assert first.wait(60)
        yield told
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def until_found(memory: Memory, text: str) -> None:
    """Wait until a part of a file has this text."""
    wait_until(lambda: values(memory, f"SELECT 1 FROM items WHERE content LIKE '%{text}%'"))


def wait_until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_watch_goes_on_with_what_is_left_of_several_files(memory: Memory, folder: Path) -> None:
    with watched(folder, "docs", "MEMORY.md"):
        memory.unindex(folder / "MEMORY.md")
        (folder / "MEMORY.md").unlink()
        (folder / "docs" / "guide.md").write_text("# Guide\n\nShut the lid.\n")
        until_found(memory, "Shut the lid")
        (folder / "MEMORY.md").write_text("# Memory\n\nIt is back.\n")
        until_found(memory, "It is back")


def test_a_watch_of_all_follows_what_was_indexed_for_every_project_too(
    memory: Memory, folder: Path
) -> None:
    memory.index("MEMORY.md", scope="global")
    memory.index("docs")
    with watched(folder):
        (folder / "MEMORY.md").write_text("# Memory\n\nIt is for all.\n")
        until_found(memory, "It is for all")
        (folder / "docs" / "guide.md").write_text("# Guide\n\nShut the lid.\n")
        until_found(memory, "Shut the lid")
    scopes = {row["path"]: row["scope"] for row in memory.status()["sources"]}
    assert scopes == {"MEMORY.md": "global", "docs": "project"}


def test_a_watch_tells_once_of_a_file_that_it_skips(memory: Memory, folder: Path) -> None:
    guide, other = folder / "docs" / "guide.md", folder / "docs" / "other.md"
    (folder / "docs" / "pipe.md").write_bytes(b"\0")
    with watched(folder, "docs") as told:
        guide.write_text("# Guide\n\nShut the lid.\n")
        until_found(memory, "Shut the lid")
        other.write_bytes(b"\0")
        guide.write_text("# Guide\n\nOpen the lid.\n")
        until_found(memory, "Open the lid")
        wait_until(lambda: sum(len(answer["skipped"]) for answer in told) == 2)
        guide.write_text("# Guide\n\nPaint the lid.\n")
        until_found(memory, "Paint the lid")
        wait_until(lambda: len([answer for answer in told if answer["changes"]]) >= 4)
    names = [Path(row["path"]).name for answer in told for row in answer["skipped"]]
    assert names == ["pipe.md", "other.md"]


def test_a_watch_heeds_the_gitignore_above_its_folder(memory: Memory, folder: Path) -> None:
    repository(folder)
    (folder / "docs" / "old.md").write_text("# Old\n\nThe lid is stuck.\n")
    with watched(folder, "docs"):
        until_found(memory, "stuck")
        (folder / ".gitignore").write_text("old.md\n")
        wait_until(lambda: not values(memory, "SELECT 1 FROM items WHERE content LIKE '%stuck%'"))
        (folder / ".gitignore").unlink()
        until_found(memory, "stuck")


def test_a_watch_goes_on_when_a_lock_was_too_long(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, waits = list[str](), list[str]()

    def impatient(*_: int) -> Callable[[int], bool]:
        waits.append("none")
        return lambda _: False

    with watched(folder, "docs", failed=lambda error: errors.append(str(error))):
        monkeypatch.setattr(sediment, "make_busy_handler", impatient)
        with contextlib.closing(apsw.Connection(str(memory.database.path))) as other:
            other.execute("BEGIN IMMEDIATE")
            (folder / "docs" / "guide.md").write_text("# Guide\n\nShut the lid.\n")
            wait_until(lambda: errors)
            tried = len(waits)
            wait_until(lambda: len(waits) > 3 * tried)
            other.execute("COMMIT")
        until_found(memory, "Shut the lid")
    (error,) = errors
    assert "was locked by another process" in error


def test_what_another_thread_stores_while_a_changed_file_is_read_again_is_no_trouble(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors in memory, which threads share, are then newer than this one's snapshot."""
    memory.index("MEMORY.md")
    memory.recall("gateway port", record=False)  # fills the index
    embed, calls = memory.encoder.embed_query, itertools.count()

    def store() -> None:
        memory.store("The gateway port is in the configuration.")
        memory.recall("gateway port", record=False)

    def embed_query(*given: Any) -> bytes:
        if next(calls) == 1:  # the second round
            thread = threading.Thread(target=store)
            thread.start()
            thread.join()
        return embed(*given)

    monkeypatch.setattr(memory.encoder, "embed_query", embed_query)
    (folder / "MEMORY.md").write_text(PREFERENCES.replace("18789", "18790"))
    assert "18790" in memory.recall("gateway port", record=False)["results"][0]["content"]


def test_two_that_index_the_same_files_agree(memory: Memory, folder: Path) -> None:
    for number in range(30):
        (folder / f"note-{number}.md").write_text(f"# Note {number}\n\nTells of {number} ropes.\n")

    def work() -> None:
        with open_memory(folder.parent / "memory.db") as other:
            other.index([folder])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(memory) == fresh(folder)
    consistent(memory)


@pytest.mark.parametrize(("deed", "nth"), [("unindex", 1), ("index", 2), ("drop", 1)])
def test_an_index_that_another_changes_meanwhile_is_sound(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch, deed: str, nth: int
) -> None:
    """A file comes while its folder is taken out; the folder is taken out while a file is read; and
    a file that was gone comes back before it is taken out."""
    guide, begin, left = folder / "docs" / "guide.md", memory.database.transaction, [nth]
    other = open_memory(memory.database.path)

    def act() -> None:
        guide.write_text(GUIDE)
        (folder / "new.md").write_text("# New\n\nIt has just come.\n")
        other.unindex(folder) if deed == "index" else other.index([folder])

    def late(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            act()
        return begin(*args, **options)

    if deed != "index":
        memory.index([folder])
    if deed == "drop":
        guide.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(memory.database, "transaction", late)
        memory.unindex(folder) if deed == "unindex" else memory.index([folder])
    assert left[0] <= 0
    consistent(memory)
    assert len(values(memory, "SELECT path FROM files")) == (3 if deed == "drop" else 0)
    memory.index([folder])
    assert rows(memory) == fresh(folder)


# Beside everything else


def test_a_rescue_keeps_memories_and_leaves_files_to_the_index(
    memory: Memory, folder: Path
) -> None:
    ids = {memory.store(f"Fact {n} tells of vessel {n}.")["id"] for n in range(5)}
    hidden = memory.store("Fact 9 tells of vessel 9.")["id"]
    ids.add(memory.store("A vessel sank.", replace=hidden)["id"])
    memory.index([folder])
    path, good = memory.database.path, rows(memory)
    memory.close()
    data = bytearray(path.read_bytes())
    data[:100] = bytes(100)  # no SQLite file any more
    path.write_bytes(data)
    answer = memory.repair()
    assert (answer["rescued"], answer["file_parts"], answer["lost"]) == (6, 5, [])
    assert answer["hidden_versions"] == 1
    assert "`index`" in answer["message"]
    assert {item["id"] for item in memory.list_items()["items"]} == ids
    memory.index()
    assert rows(memory) == good
    consistent(memory)


def test_files_that_an_interrupted_index_left_are_new(memory: Memory, folder: Path) -> None:
    looks = iter([False])
    memory.index([folder], stop=lambda: next(looks, True))
    (told,) = memory.status()["sources"]
    assert (told["new"], told["changed"]) == (["docs/guide.md"], [])
    assert f"{'new':<16}docs/guide.md" in list(render_status(memory.status()))
    (folder / "MEMORY.md").write_text("Other words.\n")
    (told,) = memory.status()["sources"]
    assert (told["new"], told["changed"]) == (["docs/guide.md"], ["MEMORY.md"])
    assert memory.status()["dirty"] == 2


def settle(folder: Path) -> None:
    """Let nothing in a folder have changed within the last seconds."""
    for path in [folder, *folder.rglob("*/")]:
        later(path, -60)


@pytest.mark.parametrize("name", ["new.md", "docs/new.md", "docs/2026/May/new.md"])
def test_a_new_file_is_found_without_another_index(memory: Memory, folder: Path, name: str) -> None:
    (folder / "docs" / "2026").mkdir()
    settle(folder)
    memory.index([folder])
    memory.recall("heron")  # which sees nothing new
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("The heron fishes at dawn.\n")
    with open_memory(folder.parent / "memory.db") as other:
        assert sources(other, "When does the heron fish?")[0] == f"{name}:1-1"
    (folder / name).rename((folder / name).with_name("moved.md"))
    found = sources(memory, "When does the heron fish?")
    assert found[0] == name.replace("new.md", "moved.md:1-1")
    assert memory.status()["dirty"] == 0
    assert rows(memory) == fresh(folder)


def test_folders_that_have_not_changed_are_not_looked_into(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    entries = sediment_ext.systems.folder_entries
    monkeypatch.setattr(
        sediment_ext.systems, "folder_entries", lambda top: listed.append(top.name) or entries(top)
    )
    for name in ("docs/a/b", "docs/c", "notes"):
        (folder / name).mkdir(parents=True)
    (folder / ".gitignore").write_text("build\n")
    settle(folder)
    memory.index([folder])
    listed[:] = []
    memory.recall("heron")
    assert listed == []
    (folder / "docs" / "c" / "table.csv").write_text("1,2\n")
    (folder / "docs" / "a" / "b" / ".hidden.md").write_text("The heron is hidden.\n")
    (folder / "build").mkdir()
    (folder / "build" / "heron.md").write_text("The heron is built.\n")
    assert sources(memory, "heron", anyway=True)
    assert {"c", "b"} <= set(listed) <= {"project", "docs", "a", "b", "c"}
    settle(folder)
    memory.recall("heron")  # notes that these are as old as they were made here
    listed[:] = []
    memory.recall("heron")
    assert listed == []
    shutil.rmtree(folder / "docs" / "a")
    settle(folder)
    memory.recall("heron")
    assert "a" not in listed


def test_many_new_files_are_named_and_not_searched(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment_ext.files, "NEW_FILES", 2)
    memory.index(["docs"])
    for number in range(3):
        (folder / "docs" / f"{number}.md").write_text(f"Heron {number} fishes at dawn.\n")
    answer = memory.recall("Which heron fishes?")
    assert answer["notice"] == "New files, not searched: 3 in docs (`index` reads them)."
    assert not any("Heron" in row["content"] for row in answer["results"])
    memory.index()
    answer = memory.recall("Which heron fishes?")
    assert "notice" not in answer
    assert len(answer["results"]) == 3
    (folder / "docs" / "long.md").write_text("The otter swims. " * sediment_ext.files.NEW_SIZE)
    assert "1 in docs" in memory.recall("otter")["notice"]


def test_new_files_cost_no_answer_when_nothing_can_be_written(
    memory: Memory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.index([folder])
    (folder / "new.md").write_text("The heron fishes at dawn.\n")
    monkeypatch.setattr(sediment, "make_busy_handler", lambda *_: lambda _: False)
    writer = apsw.Connection(str(memory.database.path))
    writer.execute("BEGIN IMMEDIATE")
    assert sources(memory, "gateway port")[0] == "MEMORY.md:6-9"
    writer.execute("ROLLBACK")
    assert sources(memory, "heron")[0] == "new.md:1-1"


def test_what_is_not_indexed_any_more_is_not_looked_into(memory: Memory, folder: Path) -> None:
    memory.index(["docs"])
    memory.unindex("docs")
    (folder / "docs" / "new.md").write_text("The heron fishes at dawn.\n")
    assert memory.recall("heron")["results"] == []
    assert values(memory, "SELECT count(*) FROM meta WHERE key GLOB 'folders:*'") == [0]


def test_another_model_and_a_repair_leave_a_good_index(memory: Memory, folder: Path) -> None:
    memory.index([folder])
    memory.reindex()
    consistent(memory)
    assert memory.index([folder])["embedded"] == 0
    assert rows(memory) == fresh(folder)
    with memory.database.transaction() as connection:
        connection.execute('UPDATE chunks SET "end" = 3 WHERE item = 1')
    assert memory.repair()["healthy"]
    memory.index()
    assert rows(memory) == fresh(folder)


def test_notes_do_not_leave_by_a_link_in_place_of_the_archive(
    memory: Memory, notes: Path, tmp_path: Path
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    command = f"ln -s {elsewhere} {notes}/archive; cat"
    with pytest.raises(InvalidInput, match="is a link"):
        memory.compact(notes, command=f"sh -c '{command} | head -c 200'")
    assert list(elsewhere.iterdir()) == []


def test_a_name_that_begins_with_a_tilde_is_no_home(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell writes an unquoted ~ out, but not one that stands for * in a checkout."""
    (home := tmp_path / "home").mkdir()
    (home / "private.md").write_text("# bank pin is 4321")
    monkeypatch.setenv("HOME", str(home))
    (checkout := tmp_path / "checkout").mkdir()
    (checkout / "~").mkdir()
    (checkout / "~" / "own.md").write_text("# the folder of that name")
    (checkout / "~b.md").write_text("# a file of such a name")
    monkeypatch.chdir(checkout)
    assert memory.index(["~", "~b.md"])["files"] == 2
    told = str([row["content"] for row in memory.recall("bank pin", anyway=True)["results"]])
    assert "4321" not in told


def test_what_is_to_be_read_anew_has_not_changed_by_that(memory: Memory, folder: Path) -> None:
    memory.index(["docs", "MEMORY.md"])
    memory.reindex()
    assert memory.status()["dirty"] == 0
    (folder / "MEMORY.md").write_text(PREFERENCES + "- The walrus sleeps.\n")
    assert [row["changed"] for row in memory.status()["sources"]] == [["MEMORY.md"], []]
    memory.recall("gateway port")
    assert memory.status()["dirty"] == 0


def parts_in(memory: Memory) -> list[Any]:
    sql = (
        "SELECT f.path, i.id, i.content, v.vector FROM items i JOIN files f ON f.id = i.file"
        " JOIN chunks c ON c.item = i.seq JOIN vectors v ON v.chunk = c.id"
        " ORDER BY f.path, i.first_line, i.id"
    )
    return memory.database.rows(sql)


def test_files_read_at_once_are_indexed_as_one_by_one(tmp_path: Path) -> None:
    """An encoder that is not loaded yet encodes many texts at once."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(12):
        said = "".join(f"# Part {part}\n\n{number} of {part}.\n\n" for part in range(number))
        (folder / f"{number}.md").write_text(said or "# Empty\n")
    with Memory(tmp_path / "many.db", project="demo") as many:
        answer = many.index([folder])
        told = [row["path"] for row in answer["changes"]]
        assert told == sorted(map(str, folder.iterdir()))
        at_once = parts_in(many)
    with open_memory(tmp_path / "one.db") as one:
        again = one.index([folder])
        one_by_one = parts_in(one)
    assert [row[:3] for row in at_once] == [row[:3] for row in one_by_one]
    assert (answer["chunks"], answer["changes"]) == (again["chunks"], again["changes"])
    for (*_, vector), (*_, expected) in zip(at_once, one_by_one, strict=True):
        pair = (numpy.frombuffer(one, "<f4") for one in (vector, expected))
        assert numpy.dot(*pair) == pytest.approx(1, abs=1e-5)


def test_an_index_that_is_stopped_reads_no_large_file_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# First\n\nIt is short.\n")
    said = "".join(f"# Part {part}\n\nThe {part}th remark.\n\n" for part in range(2_000))
    (folder / "b.md").write_text(said)
    with Memory(tmp_path / "many.db", project="demo") as memory:
        done: list[int] = []
        memory.index([folder], progress=done.append, stop=lambda: bool(done))
        assert len(parts_in(memory)) == 1
        kept = memory.database.value("SELECT count(*) FROM embeddings")
        assert kept < 1_000  # and these are not encoded again
        (folder / "b.md").write_text(said[:2_000])
        assert memory.index([folder])["files"] == 2

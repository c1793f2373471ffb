"""What memories name of their project's files is looked at when they are shown, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage import open_memory

import sediment
from sediment import Memory

CODE = "import os\n\n\ndef run(limit):\n    return limit * 2\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "queue.py").write_text(CODE)
    return root


@pytest.fixture
def memory(root: Path, tmp_path: Path) -> Memory:
    return open_memory(tmp_path / "memory.db", f"{root}/")


def gone(memory: Memory, text: str) -> list[str]:
    """The stale citations of a text, which get, list and recall must agree on."""
    id = memory.store(text)["id"]
    found = memory.get(id).get("cites_gone", [])
    (listed,) = (row for row in memory.list_items(limit=100)["items"] if row["id"] == id)
    assert listed.get("cites_gone", []) == found
    rows = memory.recall(text, limit=50)["results"]
    (recalled,) = (row for row in rows if row["id"] == id)
    assert recalled.get("cites_gone", []) == found
    stale = memory.list_items(stale_citations=True, limit=100)["items"]
    assert (id in {row["id"] for row in stale}) == bool(found)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "The limit is in src/queue.py.",
        "See src/queue.py:4, where `def run` begins.",
        "See src/queue.py:2, where `def run` begins.",  # two lines on
        "`run()` of src/queue.py doubles it.",
        'It says "return limit * 2" in src/queue.py.',
        "Read https://example.org/src/away.py and ~/src/away.py and /etc/src/away.py.",
        "In other/place.py, queue.py:9 and version 1.2 there is nothing of ours.",
        "See ../outside.txt and src/../../outside.txt:9.",
        "`elsewhere` is far off: " + "x " * 60 + "src/queue.py.",
        "`elsewhere` is of another line.\\nsrc/queue.py",
    ],
)
def test_what_holds_is_not_mentioned(memory: Memory, text: str) -> None:
    assert gone(memory, text.replace("\\n", "\n")) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("The limit is in src/away.py.", "src/away.py"),
        ("See src/away.py:3.", "src/away.py:3"),
        ("See src/queue.py:9.", "src/queue.py:9"),
        ("`walk()` of src/queue.py doubles it.", "src/queue.py"),
        ('src/queue.py:1 says "return limit * 2" there.', "src/queue.py:1"),
    ],
)
def test_what_no_longer_holds_is_named(memory: Memory, text: str, named: str) -> None:
    assert gone(memory, text) == [named]


def test_a_file_that_goes_and_comes_back_counts_as_it_is_now(memory: Memory, root: Path) -> None:
    id = memory.store("The limit is in src/queue.py:4, `def run`.")["id"]
    (root / "src" / "queue.py").write_text("x = 1\n" * 40 + CODE)
    assert memory.get(id)["cites_gone"] == ["src/queue.py:4"]
    (root / "src" / "queue.py").write_text(CODE)
    assert "cites_gone" not in memory.get(id)


def test_nothing_outside_of_the_project_is_looked_at(memory: Memory, root: Path) -> None:
    (root.parent / "outside.txt").write_text("secret\n")
    (root / "src" / "link.txt").symlink_to(root.parent / "outside.txt")
    (root / "out").symlink_to(root.parent)
    for text in ("`public` is in src/link.txt.", "out/outside.txt:9", "out/missing.txt:9"):
        assert gone(memory, text) == []


def test_a_memory_has_five_citations_at_most(memory: Memory) -> None:
    names = [f"src/a{number}.py" for number in range(8)]
    assert gone(memory, "Gone: " + " ".join(names)) == names[:5]


def test_where_the_project_is_not_known_nothing_is_said(
    memory: Memory, root: Path, tmp_path: Path
) -> None:
    everywhere = memory.store("The limit is in src/away.py.", scope="global")["id"]
    assert "cites_gone" not in memory.get(everywhere)
    with open_memory(tmp_path / "other.db", "elsewhere") as other:
        assert gone(other, "The limit is in src/away.py.") == []
    id = memory.store("The queue is in src/gone.py.")["id"]
    assert memory.get(id)["cites_gone"]
    with sediment.keep_to_one_project():
        assert "cites_gone" not in memory.get(id)
    project = str(memory.projects.current())
    root.rename(tmp_path / "moved")
    seen = open_memory(tmp_path / "memory.db", project)
    assert "cites_gone" not in seen.get(id)

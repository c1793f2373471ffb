"""Copies, checks and repairs: nothing is lost, and what is lost is named."""

import contextlib
import errno
import gzip
import json
import math
import os
import random
import shutil
import sqlite3
import stat
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import kills
import pytest
from click.testing import CliRunner
from conftest import ROOT
from storage import TIMEOUT, child, consistent, finish, hear, open_memory, rows_of, shown, tell

import sediment
import sediment_ext.conversations
import sediment_ext.copies
import sediment_ext.repair
import sediment_ext.upkeep
from sediment import (
    DatabaseError,
    Encoder,
    Hit,
    InvalidInput,
    Memory,
    NotFound,
    Projects,
    keep_apart,
    place_new_file,
)
from sediment_ext.hooks import hooks_off, switch_hooks
from sediment_ext.transcripts import Conversation, Turn

TEXTS = [f"Remark {number} is about {topic}." for number in range(12) for topic in ("tea", "ports")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "memory.db"


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    with open_memory(path) as memory:
        memory.import_rows([{"content": text} for text in TEXTS])
        yield memory


def contents(memory: Memory) -> set[str]:
    return {row["content"] for row in memory.export_rows()}


def broken(memory: Memory) -> set[str]:
    return {check["name"] for check in memory.doctor()["checks"] if check["status"] == "broken"}


def copies(path: Path, why: str) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.{why}-*"))


# Backup and restore


@pytest.fixture
def counted(memory: Memory, tmp_path: Path) -> dict[str, int]:
    """A database with hidden versions and a part of a file, and how many of each there are."""
    ids = [row["id"] for row in memory.list_items(limit=2)["items"]]
    memory.store("Remark 1 is about something else.", replace=ids[0])
    memory.store("Remark 2 is about glaciers.", replace=ids[1])
    (tmp_path / "notes.md").write_text("# Notes\n\nA part of a file.\n")
    memory.index([tmp_path / "notes.md"])
    counts = {"items": len(TEXTS), "hidden_versions": 2, "file_parts": 1}
    stats = memory.stats()
    assert {name: stats[name] for name in counts} == counts
    assert memory.list_items()["total"] == memory.status()["memories"] == counts["items"]
    return counts


def test_a_copy_counts_items_as_stats_does(
    memory: Memory, counted: dict[str, int], tmp_path: Path
) -> None:
    target = tmp_path / "copy.db"
    for answer in (memory.backup(target), memory.restore(target)):
        assert {name: answer[name] for name in counted} == counted


ALL = "24 memories, 2 hidden versions, 1 file part"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("backup copy.db", f"Copied {ALL} to "),
        ("restore kept.db", f"Restored {ALL} from "),
        ("reindex", f"Reindexed 27 chunks of {ALL} with "),
        ("doctor", f"{ALL}, 27 chunks, 27 vectors agree"),
        ("export rows.jsonl", "Exported 24 memories, 2 hidden versions to "),
        ("--db other.db import kept.jsonl", "Stored 24 memories, 2 hidden versions ("),
        ("list", "20 of 24, newest first"),
        ("stats", "\nhidden versions  2\n"),
    ],
)
def test_every_command_counts_alike(
    memory: Memory,
    counted: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    told: str,
) -> None:
    memory.backup(tmp_path / "kept.db")
    lines = "".join(json.dumps(row) + "\n" for row in memory.export_rows())
    (tmp_path / "kept.jsonl").write_text(lines)
    monkeypatch.chdir(tmp_path)
    database = ["--db", str(memory.database.path), "--project", "demo"]
    result = CliRunner().invoke(sediment.cli, [*database, *arguments.split()])
    assert result.exit_code == 0, result.output
    assert told in result.output


def test_an_older_file_is_counted_in_its_copies(path: Path, tmp_path: Path) -> None:
    with open_memory(path) as memory:
        old = memory.store("The ferry leaves at noon.")["id"]
        memory.store("The ferry leaves at one.", replace=old)
    kills.make_older(path)
    older = tmp_path / "older.db"
    older.write_bytes(path.read_bytes())
    with open_memory(path) as memory:
        for answer in (memory.backup(tmp_path / "copy.db"), memory.restore(older)):
            assert [answer["items"], answer["hidden_versions"], answer["file_parts"]] == [1, 1, 0]


def test_a_backup_is_one_file_with_everything(memory: Memory, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    answer = memory.backup(target)
    assert (answer["path"], answer["items"]) == (str(target), len(TEXTS))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["copy.db"]
    assert target.read_bytes()[18:20] == b"\1\1"  # the format of a file without a log
    with open_memory(target) as copy:
        assert contents(copy) == set(TEXTS)
        consistent(copy)


def test_a_backup_takes_nobodys_place(memory: Memory, tmp_path: Path) -> None:
    for name in ("file", "link"):
        target = tmp_path / name
        target.symlink_to("nowhere") if name == "link" else target.write_text("mine")
        with pytest.raises(DatabaseError, match="there already"):
            memory.backup(target)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(DatabaseError, match="cannot write"):
        memory.backup("/proc/nothing/copy.db")
    with pytest.raises(DatabaseError, match="no folder"):
        memory.backup(tmp_path / "new" / "deep" / "copy.db")
    assert not (tmp_path / "new").exists()
    with pytest.raises(NotFound, match="no database"):
        open_memory(tmp_path / "none.db").backup(tmp_path / "none-copy.db")


def test_a_backup_is_whole_while_others_write(memory: Memory, path: Path, tmp_path: Path) -> None:
    script = """
memory = Memory(sys.argv[1], project="demo")
said("ready")
for number in range(40):
    memory.store(f"A remark of another process, number {number}.")
"""
    writer = child(script, path)
    assert hear(writer) == "ready"
    for number in range(5):
        memory.backup(tmp_path / f"{number}.db")
    finish(writer)
    for number in range(5):
        with open_memory(tmp_path / f"{number}.db") as copy:
            assert contents(copy) >= set(TEXTS)
            consistent(copy)


def test_restoring_brings_back_what_was(memory: Memory, path: Path, tmp_path: Path) -> None:
    memory.backup(tmp_path / "copy.db")
    later = memory.store("Stored after the backup.")["id"]
    answer = memory.restore(tmp_path / "copy.db")
    assert answer["items"] == len(TEXTS)
    assert contents(memory) == set(TEXTS)
    consistent(memory)
    (kept,) = copies(path, "before-restore")
    assert answer["kept"] == str(kept)
    with open_memory(kept) as before:
        assert before.get(later)["content"] == "Stored after the backup."


def test_a_conversation_that_was_forgotten_stays_so_when_a_copy_is_restored(
    memory: Memory, path: Path, tmp_path: Path
) -> None:
    said = [
        Conversation("claude", name, None, [Turn(f"{name}-a", 1, f"Is the {name} lit?", "Yes.")], 0)
        for name in ("heron", "otter", "later")
    ]
    memory.add_conversations(said[:2])
    memory.backup(tmp_path / "copy.db")
    memory.add_conversations(said[2:])
    memory.forget("claude:heron", "claude:later")
    sediment_ext.conversations.note_unkept(memory.database, "claude:otter", 1700, still=True)
    answer = memory.restore(tmp_path / "copy.db")
    assert sediment_ext.conversations.unkept_part(memory.database, "claude:otter") == (1700, True)
    assert answer["turns"] == 1
    assert "Conversations forgotten since, and not brought back: 1." in answer["message"]
    assert memory.add_conversations(said)["forgotten"] == 2
    forks = [one._replace(session=f"{one.session}-2") for one in said]
    assert memory.add_conversations(forks, dry_run=True)["forgotten"] == 2
    assert b"heron lit" not in path.read_bytes()
    assert [one["source"] for one in memory.list_conversations()["conversations"]] == [
        "claude:otter"
    ]
    consistent(memory)
    again = memory.restore(tmp_path / "copy.db")["message"]
    assert "not brought back: 1." in again


def test_a_server_goes_on_with_what_was_restored(memory: Memory, path: Path) -> None:
    memory.backup(path.with_name("copy.db"))
    script = """
memory = Memory(sys.argv[1], project="demo")
memory.store("The gateway listens on port 18789.")
said(memory.recall("gateway port")["results"][0]["content"])
sys.stdin.readline()
said(memory.recall("gateway port")["results"][:1])
memory.store("Said afterwards.")
said(memory.recall("what was said afterwards?")["results"][0]["content"])
"""
    server = child(script, path)
    assert "18789" in hear(server)
    memory.restore(path.with_name("copy.db"))
    tell(server)
    assert "18789" not in hear(server)
    assert hear(server) == "Said afterwards."
    finish(server)
    consistent(memory)


def test_only_a_sound_copy_of_ours_is_restored(memory: Memory, tmp_path: Path) -> None:
    before = contents(memory)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE notes(text)")
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("not a database " * 99)
    memory.backup(tmp_path / "torn.db")
    os.truncate(tmp_path / "torn.db", 20_000)
    for name, message in (
        ("other.db", "another program's database: choose another file$"),
        ("empty.db", "is empty"),
        ("text.db", "not a Sediment database: choose another file; `import` takes an export$"),
        ("torn.db", "damaged: try --db .*torn.db doctor --repair, or another backup"),
        ("none.db", "no file"),
    ):
        with pytest.raises((DatabaseError, NotFound), match=message):
            memory.restore(tmp_path / name)
    assert contents(memory) == before
    assert not list(tmp_path.glob("**/*restor*"))


def test_a_copy_of_other_pages_and_an_older_schema_is_restored(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    first_version(old, ["An old remark about tea.", "Another one about ports."])
    with open_memory(tmp_path / "memory.db") as memory:
        memory.store("Something newer.")
        memory.restore(old)
        assert contents(memory) == {"An old remark about tea.", "Another one about ports."}
        assert memory.recall("ports", ranking="bm25")["count"] == 1
        assert memory.database.reader().pragma("page_size") == sediment.PAGE_BYTES
        consistent(memory)


@pytest.mark.parametrize("again", ["restore", "repair"])
@pytest.mark.parametrize(
    "killed", ["sediment.place_new_file", "sediment_ext.copies._take_contents"]
)
def test_what_a_killed_restore_left_is_told_and_removed(
    memory: Memory, path: Path, tmp_path: Path, killed: str, again: str
) -> None:
    memory.backup(copy := tmp_path / "copy.db")
    script = f"import sediment_ext.copies\n{killed} = lambda *_: os._exit(9)\n{RESTORE}"
    process = child(script, path, copy)
    assert process.wait(TIMEOUT) == 9
    (left,) = path.parent.glob("*.tmp")
    Path(f"{left}-journal").touch()
    others = {path.with_name(f"{path.name}.{os.getpid()}.tmp"), path.with_name("mine.tmp")}
    for other in others:
        other.touch()
    told = memory.doctor()
    assert told["healthy"]
    assert [left.name in check["detail"] for check in told["checks"] if check["name"] == "drafts"]
    memory.restore(copy) if again == "restore" else memory.repair()
    assert set(path.parent.glob("*.tmp*")) == others
    assert "drafts" not in {check["name"] for check in memory.doctor()["checks"]}


RESTORE = "Memory(sys.argv[1], project='demo').restore(sys.argv[2])"


def test_what_a_killed_backup_left_is_removed_by_the_next(memory: Memory, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    script = "Memory(sys.argv[1], project='demo').backup(sys.argv[2])"
    for _ in range(2):
        killed = child(
            f"sediment.place_new_file = lambda *_: os._exit(9)\n{script}",
            memory.database.path,
            target,
        )
        assert killed.wait(TIMEOUT) == 9
    assert len(list(tmp_path.glob("*.tmp"))) == 1
    memory.backup(target)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["copy.db"]


def test_forgetting_removes_or_names_what_a_killed_process_left(
    memory: Memory, path: Path, tmp_path: Path
) -> None:
    id = memory.store("A walrus lives in the tower.")["id"]
    memory.backup(copy := tmp_path / "copy.db")
    (out := tmp_path / "out").mkdir()
    scripts = (RESTORE, "Memory(sys.argv[1], project='demo').backup(sys.argv[2])")
    for script, file in zip(scripts, (copy, out / "other.db"), strict=True):
        process = child(f"sediment.place_new_file = lambda *_: os._exit(9)\n{script}", path, file)
        assert process.wait(TIMEOUT) == 9
    assert list(path.parent.glob("*.tmp"))
    copy.unlink()
    (left,) = out.glob("other.db.*.tmp")
    assert memory.forget(id)["copies"] == [str(left)]
    assert not list(path.parent.glob("*.tmp"))


def test_what_a_restore_put_aside_is_named_when_it_is_killed_then(
    memory: Memory, path: Path, tmp_path: Path
) -> None:
    id = memory.store("A walrus lives in the tower.")["id"]
    memory.backup(copy := tmp_path / "copy.db")
    script = (
        "whole = sediment.copy_database\n"
        "def copied(source, target):\n    whole(source, target)\n"
        "    'before-restore' not in target.name or os._exit(9)\n"
        f"sediment.copy_database = copied\n{RESTORE}"
    )
    assert child(script, path, copy).wait(TIMEOUT) == 9
    (kept,) = copies(path, "before-restore")
    assert set(memory.forget(id)["copies"]) == {str(copy), str(kept)}


def test_a_backup_to_a_taken_name_does_not_make_that_a_copy(memory: Memory, tmp_path: Path) -> None:
    id = memory.store("x")["id"]
    (tmp_path / "mine.db").touch()
    with pytest.raises(DatabaseError, match="is there already"):
        memory.backup(tmp_path / "mine.db")
    assert "copies" not in memory.forget(id)


def test_what_was_restored_from_is_a_copy_that_forget_names(memory: Memory, tmp_path: Path) -> None:
    id = memory.store("A walrus.")["id"]
    for name in ("first.db", "second.db"):
        memory.backup(tmp_path / name)
    memory.restore(tmp_path / "first.db")
    told = {Path(name).name for name in memory.forget(id)["copies"]}
    assert {"first.db", "second.db"} < told


def test_a_copy_that_cannot_be_written_is_named_as_it_was_given(
    memory: Memory, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.store("x")

    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(sediment, "_create_private", refuse)
    with pytest.raises(DatabaseError, match=r"copy\.db cannot be written .Read-only file system.$"):
        memory.backup(tmp_path / "copy.db")


def test_a_file_is_not_restored_from_itself(memory: Memory, path: Path) -> None:
    with pytest.raises(InvalidInput, match="is the database or a part of it"):
        memory.restore(path)
    assert [one.name for one in path.parent.iterdir() if "before" in one.name] == []


def test_forgetting_names_the_copies(memory: Memory, tmp_path: Path) -> None:
    memory.backup(tmp_path / "one.db")
    memory.backup(tmp_path / "two.db")
    (tmp_path / "two.db").unlink()
    id = memory.list_items()["items"][0]["id"]
    answer = memory.forget(id)
    assert answer["copies"] == [str(tmp_path / "one.db")]
    assert "one.db" in [*sediment.render_forgotten(answer)][-1]


# Upgrades


def first_version(path: Path, texts: list[str]) -> None:
    """A file as the first version wrote it, in smaller pages."""
    with open_memory(path) as memory:
        memory.import_rows([{"content": text} for text in texts])
        memory.close()
    kills.make_older(path)
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "delete")
    connection.execute("PRAGMA page_size = 4096; VACUUM; PRAGMA journal_mode = wal")
    connection.close()


def test_an_older_file_is_copied_and_then_upgraded_once(path: Path) -> None:
    first_version(path, TEXTS)
    script = """
sys.stdin.readline()
said(len(list(Memory(sys.argv[1], project="demo").export_rows())))
"""
    processes = [child(script, path) for _ in range(4)]
    for process in processes:
        tell(process)
    assert [int(finish(process)) for process in processes] == [len(TEXTS)] * 4
    (copy,) = copies(path, "version-13")
    with sqlite3.connect(copy) as before:
        assert before.execute("PRAGMA user_version").fetchone() == (13,)
        assert before.execute("SELECT count(*) FROM items").fetchone() == (len(TEXTS),)
    with open_memory(path) as memory:
        consistent(memory)
        assert memory.recall("tea")["results"]


def test_without_room_for_the_copy_nothing_is_upgraded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_version(path, TEXTS)

    def full(*_: object) -> None:
        raise DatabaseError("no room")

    monkeypatch.setattr(sediment, "copy_database", full)
    with pytest.raises(DatabaseError, match="no room"):
        open_memory(path).stats()
    with sqlite3.connect(path) as after:
        assert after.execute("PRAGMA user_version").fetchone() == (13,)


# Doctor


def test_a_sound_file_is_healthy(memory: Memory, tmp_path: Path) -> None:
    answer = memory.doctor()
    assert answer["healthy"]
    assert {check["status"] for check in answer["checks"]} == {"ok"}
    assert {"file", "pages", "tables", "model", "program"} <= {
        check["name"] for check in answer["checks"]
    }
    assert memory.repair() == {"healthy": True, "message": "Nothing is broken."}
    assert not copies(memory.database.path, "before-repair")
    assert open_memory(tmp_path / "none.db").doctor()["healthy"]


DAMAGES = {
    "words": "INSERT INTO words(words, rowid, text, context) VALUES('delete', 1, 'Remark 0', '')",
    "vectors": "UPDATE vectors SET vector = zeroblob(1536) WHERE chunk = 2",
    "chunks": 'UPDATE chunks SET "end" = "end" - 3 WHERE id = 3',
    "tables": "DELETE FROM vectors WHERE chunk IN (4, 5)",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_what_is_derived_is_made_anew(memory: Memory, path: Path, what: str) -> None:
    with memory.database.transaction() as connection:
        connection.execute(DAMAGES[what])
    assert what in broken(memory)
    answer = memory.repair()
    assert answer["healthy"]
    assert answer["lost"] == []
    assert Path(answer["kept"]) in copies(path, "before-repair")
    memory.embed_pending()
    consistent(memory)
    for text in TEXTS[:4]:
        assert memory.recall(text)["results"][0]["content"] == text


def test_chunks_out_of_the_order_of_their_texts_are_numbered_anew(memory: Memory) -> None:
    with memory.database.transaction() as connection:
        connection.execute("""
            UPDATE chunks SET position = id WHERE item IN (1, 2);
            UPDATE chunks SET item = 3 - item WHERE item IN (1, 2);
            UPDATE chunks SET position = 0, "end" =
                (SELECT length(content) FROM items WHERE seq = item) WHERE item IN (1, 2);
        """)
    assert "tables" in broken(memory)
    assert memory.repair()["healthy"]
    consistent(memory)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO graph_edges VALUES('x', 'y', 'related', 1, '', 0, 0, 0, x'')",
        "INSERT INTO access_log VALUES('x', 1, 1, 1, 1)",
        "INSERT INTO history(action, item_id, at) VALUES('merge', 'x', 0)",
        "DELETE FROM graph_nodes",
        "INSERT INTO consolidation_queue VALUES('b', 'a', 1, 'pending', 0)",
        "UPDATE items SET ended_at = 1 WHERE seq = 1",
        "UPDATE items SET ended_at = 1, ended_by = 'replace', successor = 'gone' WHERE seq = 1",
    ],
)
def test_rows_that_belong_to_nothing_are_taken_out(memory: Memory, sql: str) -> None:
    with memory.database.transaction() as connection:
        connection.execute(sql)
    if "gone" not in sql:
        assert broken(memory) == {"tables"}
        assert memory.repair()["healthy"]
        consistent(memory)
    assert contents(memory) == set(TEXTS)


def test_parts_of_another_project_than_their_file_come_back(path: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes" / "kettle.md"
    notes.parent.mkdir()
    notes.write_text("# Kettle\n\nThe kettle is green.\n")
    with open_memory(path, "kitchen") as memory:
        memory.index([notes.parent])
        with memory.database.transaction() as connection:
            for table in ("items", "graph_nodes"):
                connection.execute(f"UPDATE {table} SET project_id = 'other'")
        (told,) = [check for check in memory.doctor()["checks"] if check["status"] == "broken"]
        assert "parts of another project than their file" in told["detail"]
        assert memory.repair()["healthy"]
        consistent(memory)
        notes.write_text("# Kettle\n\nThe kettle is blue.\n")
        found = memory.recall("which colour has the kettle?")["results"]
        assert [row["content"] for row in found] == ["# Kettle\n\nThe kettle is blue."]
        (source,) = memory.status()["sources"]
        assert source["files"] == 1
        consistent(memory)


def leaf_pages(path: Path, table: str) -> list[int]:
    """The numbers of the pages that hold a table's rows."""
    connection = apsw.Connection(str(path))
    sql = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'"
    pages = [row[0] for row in connection.execute(sql, (table,))]
    connection.close()
    return pages


def overwrite(path: Path, page: int, seed: int = 1) -> None:
    """Noise in the place of one page."""
    with open(path, "r+b") as file:
        file.seek((page - 1) * sediment.PAGE_BYTES)
        file.write(random.Random(seed).randbytes(sediment.PAGE_BYTES))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of many pages, in which one item was replaced and one has a long text."""
    path = tmp_path_factory.mktemp("many") / "memory.db"
    with open_memory(path) as memory:
        rows = [{"content": f"Remark {number}: " + "tea " * (number % 90)} for number in range(120)]
        memory.import_rows([*rows, {"content": "Long. " + "A sentence of it. " * 300}])
        memory.store("Tea is at five.", replace=memory.store("Tea is at four.")["id"])
        memory.recall("tea")
        memory.close()
    return path.read_bytes()


@pytest.fixture
def large(many: bytes, path: Path) -> Memory:
    path.parent.mkdir()
    path.write_bytes(many)
    path.chmod(0o600)
    return open_memory(path)


@pytest.mark.parametrize(
    "table", ["items", "chunks", "vectors", "words_data", "sqlite_autoindex_items_1", "first"]
)
def test_a_page_of_noise_loses_only_what_stood_there(large: Memory, table: str) -> None:
    path = large.database.path
    before = {row["id"]: row for row in large.export_rows()}
    large.close()
    page = 1 if table == "first" else leaf_pages(path, table)[-1]
    overwrite(path, page)
    damaged = path.read_bytes()
    (found,) = [check for check in large.doctor()["checks"] if check["name"] == "pages"]
    assert found["status"] == "broken"
    answer = large.repair()
    assert answer["healthy"], answer
    assert Path(answer["kept"]).read_bytes() == damaged
    after = {row["id"]: row for row in large.export_rows()}
    assert set(answer["lost"]) == before.keys() - after.keys()
    assert len(answer["lost"]) <= (99 if table == "items" else 0)
    assert all(row["content"] == before[id]["content"] for id, row in after.items())
    large.embed_pending()
    consistent(large)
    assert large.store("Said afterwards.")["success"]


def test_a_repair_tells_that_it_syncs_no_more(memory: Memory, tmp_path: Path) -> None:
    memory.sync_to(str(tmp_path / "folder"))
    memory.share("team")
    memory.sync()
    memory.close()
    overwrite(memory.database.path, leaf_pages(memory.database.path, "vectors")[-1])
    answer = memory.repair()
    assert answer["healthy"]
    assert "It no longer syncs" in answer["message"]
    with pytest.raises(NotFound):
        memory.sync()


@pytest.mark.parametrize("table", ["vectors", "sources"])
def test_what_was_said_and_what_people_decided_is_rescued(
    memory: Memory, tmp_path: Path, table: str
) -> None:
    def said(session: str) -> Conversation:
        turn = Turn(f"{session}-k1", 1_700_000_000, f"Where is {session}?", "At pier 9.")
        return Conversation("claude", session, None, [turn], 900)

    memory.add_conversations(map(said, ("heron", "otter")))
    memory.forget("claude:otter")
    switch_hooks(memory, ["capture"], on=False)
    sediment_ext.conversations.note_unkept(memory.database, "claude:heron", 1700, still=False)
    memory.add_token("ci", reads=True)
    memory.add_token("lab", project="demo")
    kept = memory.list_conversations()
    old, new, *_ = (row["id"] for row in memory.list_items()["items"])
    with memory.database.transaction() as connection:
        keep_apart(connection, old, new)
    copy = tmp_path / "copy.db"
    memory.backup(copy)
    memory.close()
    overwrite(memory.database.path, leaf_pages(memory.database.path, table)[-1])
    answer = memory.repair()
    assert (answer["healthy"], answer["turns"], answer["lost"]) == (True, 1, [])
    assert "24 memories, 1 turn from the pages" in answer["message"]
    assert memory.list_conversations() == kept
    assert memory.recall("where is heron?")["results"][0]["source"] == "claude:heron#1"
    assert memory.add_conversations(map(said, ("heron", "otter")))["turns"] == 0
    fork = said("otter")._replace(session="otter-2")
    assert memory.add_conversations([fork])["turns"] == 0
    assert hooks_off(memory) == {"capture"}
    assert sediment_ext.conversations.unkept_part(memory.database, "claude:heron") == (1700, False)
    assert rows_of(memory, "reviews") == [(old, new, 0.0, 1)]
    assert str(copy) in memory.forget(old)["copies"]
    assert [row["name"] for row in memory.tokens()["tokens"]] == ["ci", "lab"]
    consistent(memory)


def test_turns_whose_session_is_not_known_any_more_can_be_forgotten(memory: Memory) -> None:
    turn = Turn("k1", 1_700_000_000, "Where is the heron?", "At pier 9.")
    memory.add_conversations([Conversation("claude", "s1", None, [turn], 900)])
    memory.close()
    overwrite(memory.database.path, leaf_pages(memory.database.path, "files")[-1])
    assert memory.repair()["turns"] == 1
    (session,) = memory.list_conversations()["conversations"]
    memory.forget(session["source"])
    assert memory.stats()["turns"] == 0


@pytest.mark.filterwarnings("error")
def test_vectors_of_noise_are_told_as_such_and_nothing_else(memory: Memory, path: Path) -> None:
    sizes = [[math.nan], [math.inf, -math.inf], [3e38, 3e38]]
    with memory.database.transaction() as connection:
        for chunk, numbers in enumerate(sizes, 1):
            vector = struct.pack("<384f", *numbers, *[1.0] * (384 - len(numbers)))
            connection.execute("UPDATE vectors SET vector = ? WHERE chunk = ?", (vector, chunk))
    (found,) = [check for check in memory.doctor()["checks"] if check["status"] == "broken"]
    assert found["detail"] == "3 invalid vectors"
    assert memory.repair()["healthy"]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE vectors SET vector = x'' WHERE chunk > 24",
        "UPDATE vectors SET vector = x'' WHERE chunk = 25",
        "UPDATE vectors SET vector = zeroblob(1536) WHERE chunk = 25",
        "DELETE FROM vectors WHERE chunk = 25",
    ],
)
def test_pairs_whose_vectors_are_none_wait_for_a_repair(memory: Memory, sql: str) -> None:
    memory.consolidate()
    first = memory.store("The gate code is with the porter.")["id"]
    memory.store("The gate code is with the porter now.")
    with memory.database.transaction() as connection:
        connection.execute(sql)
    with pytest.raises(DatabaseError, match="are damaged: run `doctor --repair`"):
        memory.consolidate()
    assert memory.repair()["healthy"]
    assert memory.consolidate()["pairs"] == []
    memory.embed_pending()
    (pair,) = memory.consolidate()["pairs"]
    assert first in (pair["keep"]["id"], pair["other"]["id"])


def test_a_cut_list_of_what_is_lost_says_how_much_is_not_named() -> None:
    ids = [f"id{number}" for number in range(23)]
    assert sediment_ext.repair._lost_phrase([]) == "nothing is lost"
    assert sediment_ext.repair._lost_phrase(ids[:2]) == "2 could not be: id0, id1"
    assert sediment_ext.repair._lost_phrase(ids).endswith(
        "id18, id19 and 3 more (--json names them all)"
    )


def test_a_damaged_model_without_a_pyz_is_told_and_not_mended(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / "all-MiniLM-L6-v2"
    shutil.copytree(ROOT / "models" / "all-MiniLM-L6-v2", folder)
    with open(folder / "tokenizer.json", "ab") as file:
        file.write(b"junk")
    monkeypatch.setattr(memory, "_encoder", Encoder(folder))
    assert broken(memory) == {"model"}
    answer = memory.repair()
    assert not answer["healthy"]
    assert "tokenizer.json is damaged: " in answer["message"]
    assert broken(memory) == {"model"}


@pytest.mark.parametrize("table", [None, "vectors"])
def test_a_text_that_was_written_in_part_is_kept_as_far_and_named(
    memory: Memory, path: Path, table: str | None
) -> None:
    whole = memory.store("The tea is green. The kettle was red.")["id"]
    none = memory.store("zebra zebra")["id"]
    memory.close()
    data = path.read_bytes()
    for torn in (b" The kettle was red.", b"zebra zebra"):
        assert torn in data
        data = data.replace(torn, bytes(len(torn)))
    path.write_bytes(data)
    if table:
        overwrite(path, leaf_pages(path, table)[0])
    assert ("pages" if table else "texts") in broken(memory)
    answer = memory.repair()
    assert answer["healthy"]
    assert answer["lost"] == [none]
    assert f"Of 1 the text is not what was stored: look at {whole}." in answer["message"]
    assert "The tea is green." in contents(memory)
    assert memory.import_rows(memory.export_rows())["success"]
    memory.embed_pending()
    consistent(memory)


@pytest.mark.parametrize("table", [None, "vectors"])
@pytest.mark.parametrize("now", [b"Its port is 7433", b"Its Port is 5433"])
def test_a_text_that_is_not_what_was_stored_is_named_and_counts_from_then_on(
    memory: Memory, path: Path, table: str | None, now: bytes
) -> None:
    id = memory.store("Its port is 5433")["id"]
    memory.close()
    path.write_bytes(path.read_bytes().replace(b"Its port is 5433", now))
    found = [check for check in memory.doctor()["checks"] if check["name"] == "texts"]
    assert [check["detail"] for check in found] == [f"1 changed text: {id}"]
    if table:
        overwrite(path, leaf_pages(path, table)[0])
    answer = memory.repair()
    assert answer["healthy"]
    assert answer["lost"] == []
    assert f"Of 1 the text is not what was stored: look at {id}." in answer["message"]
    assert now.decode() in contents(memory)
    assert memory.store(now.decode())["id"] == id
    memory.embed_pending()
    consistent(memory)


def spoil(path: Path, text: bytes) -> None:
    """Let the third byte of a text in the file be none of UTF-8, as a flipped bit may."""
    data = path.read_bytes()
    assert data.count(text) == 1
    path.write_bytes(data.replace(text, text[:2] + b"\xff" + text[3:]))


def test_a_text_that_is_not_utf8_any_more_is_named_and_mended(memory: Memory, path: Path) -> None:
    id = memory.store("The zeppelin mast height is 88 metres.")["id"]
    memory.embed_pending()
    memory.close()
    spoil(path, b"mast height")
    detail = f"1 text not in UTF-8: {id}"
    assert {"name": "texts", "status": "broken", "detail": detail} in memory.doctor()["checks"]
    assert broken(memory) == {"texts"}
    answer = memory.repair()
    assert answer["healthy"]
    assert answer["lost"] == []
    assert f"Of 1 the text is not what was stored: look at {id}." in answer["message"]
    assert contents(memory) == {*TEXTS, "The zeppelin ma\ufffdt height is 88 metres."}
    assert not broken(memory)
    memory.embed_pending()
    consistent(memory)


def test_what_cannot_be_read_is_neither_backed_up_nor_restored(
    memory: Memory, path: Path, tmp_path: Path
) -> None:
    id = memory.store("The zeppelin mast height is 88 metres.")["id"]
    memory.backup(tmp_path / "copy.db")
    before = contents(memory)
    spoil(tmp_path / "copy.db", b"mast height")
    found = rf"\(1 text not in UTF-8: {id}\)"
    with pytest.raises(DatabaseError, match=rf"copy\.db is damaged: .*or another backup {found}"):
        memory.restore(tmp_path / "copy.db")
    assert contents(memory) == before
    memory.close()
    shutil.copy(tmp_path / "copy.db", path)
    with pytest.raises(DatabaseError, match=rf"new\.db is not sound {found}: run `doctor`"):
        memory.backup(tmp_path / "new.db")
    assert not list(tmp_path.glob("**/*new.db*"))
    assert memory.repair()["healthy"]
    memory.backup(tmp_path / "new.db")


def test_of_a_damaged_file_a_text_is_kept_that_is_not_utf8(memory: Memory, path: Path) -> None:
    id = memory.store("The zeppelin mast height is 88 metres.")["id"]
    memory.close()
    spoil(path, b"mast height")
    overwrite(path, leaf_pages(path, "vectors")[0])
    answer = memory.repair()
    assert answer["healthy"]
    assert answer["lost"] == []
    assert f"Of 1 the text is not what was stored: look at {id}." in answer["message"]
    assert contents(memory) == {*TEXTS, "The zeppelin ma\ufffdt height is 88 metres."}
    memory.embed_pending()
    consistent(memory)


def change_row(path: Path, beside: bytes, old: bytes, new: bytes) -> None:
    """Exchange what stands at most once in the row of items that has a text, and nothing else."""
    data = path.read_bytes()
    text = data.index(beside)
    start, end = text - 40, text + len(beside) + 60
    assert data[start:end].count(old) == 1
    path.write_bytes(data[:start] + data[start:end].replace(old, new) + data[end:])


@pytest.mark.parametrize("column", ["id", "project"])
@pytest.mark.parametrize("byte", [b"\xff", b"\xc3"])
def test_a_row_of_which_a_name_cannot_be_read_is_kept_and_the_name_is_not_guessed(
    memory: Memory, path: Path, column: str, byte: bytes
) -> None:
    before = {row["content"]: (row["id"], row.get("project")) for row in memory.export_rows()}
    id, project = before[TEXTS[7]]
    memory.close()
    name = str(id if column == "id" else project).encode()
    change_row(path, TEXTS[7].encode(), name, name[:3] + byte + name[4:])
    assert broken(memory) == {"pages"}
    answer = memory.repair()
    assert answer["healthy"]
    assert answer["lost"] == ([id] if column == "id" else [])
    after = {row["content"]: (row["id"], row.get("project")) for row in memory.export_rows()}
    assert after.keys() == before.keys()
    read = name[:3].decode() + "\ufffd" + name[4:].decode()
    assert after[TEXTS[7]] == ((read, project) if column == "id" else (id, read))


def test_a_note_of_the_file_that_is_not_utf8_any_more_is_mended(memory: Memory, path: Path) -> None:
    ids = [row["id"] for row in memory.list_items(limit=2)["items"]]
    memory.store("Remark 1 is about glaciers.", replace=ids[0])
    with memory.database.transaction() as connection:
        connection.execute('UPDATE history SET detail = \'{"why": "a zeppelin"}\'')
    before = contents(memory)
    memory.close()
    spoil(path, b"zeppelin")
    found = [check["detail"] for check in memory.doctor()["checks"] if check["name"] == "texts"]
    assert found == ["1 text not in UTF-8: history"]
    assert memory.repair()["healthy"]
    assert contents(memory) == before
    assert rows_of(memory, "history", "detail") == [('{"why": "a ze\ufffdpelin"}',)]


def test_a_schema_that_is_not_utf8_any_more_is_mended(memory: Memory, path: Path) -> None:
    memory.close()
    spoil(path, b"validation_count INTEGER")
    assert broken(memory) == {"schema"}
    answer = memory.repair()
    assert answer["healthy"]
    assert answer["lost"] == []
    assert contents(memory) == set(TEXTS)


def test_a_column_that_has_lost_its_name_is_mended(memory: Memory, path: Path) -> None:
    memory.close()
    path.write_bytes(path.read_bytes().replace(b"content TEXT", b"kontent TEXT"))
    assert broken(memory) == {"pages"}
    answer = memory.repair()
    assert answer["healthy"]
    assert answer["lost"] == []
    assert contents(memory) == set(TEXTS)


def test_an_id_that_an_index_alone_has_otherwise_is_named_and_no_memory_is_lost(
    memory: Memory, path: Path
) -> None:
    before = {row["id"] for row in memory.export_rows()}
    id = min(before).encode()
    memory.close()
    data = path.read_bytes()
    index = leaf_pages(path, "sqlite_autoindex_items_1")[0]
    place = data.index(id, (index - 1) * sediment.PAGE_BYTES)
    path.write_bytes(data[: place + 4] + b"q" + data[place + 5 :])
    assert broken(memory) == {"pages"}
    answer = memory.repair()
    assert answer["healthy"]
    assert answer["lost"] == [f"{id[:4].decode()}q{id[5:].decode()}"]
    assert {row["id"] for row in memory.export_rows()} == before


def test_a_part_that_is_not_what_was_read_is_read_again(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "ports.md").write_text("# Ports\n\nThe port of staging is 5433.\n")
    memory.index(tmp_path / "ports.md")
    memory.close()
    path = memory.database.path
    path.write_bytes(path.read_bytes().replace(b"staging is 5433", b"staging is 7433"))
    assert memory.repair()["healthy"]
    memory.index(tmp_path / "ports.md")
    assert "5433" in memory.recall("port of staging")["results"][0]["content"]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE items SET text_hash = 1 WHERE file IS NOT NULL",
        'UPDATE chunks SET "end" = "end" - 3 WHERE id > 24',
    ],
)
def test_a_turn_that_does_not_agree_with_its_text_stays(memory: Memory, sql: str) -> None:
    turn = Turn("k1", 1_700_000_000, "Where is the heron?", "At pier 9.")
    memory.add_conversations([Conversation("claude", "s1", None, [turn], 900)])
    with memory.database.transaction() as connection:
        connection.execute(sql)
    assert memory.repair()["healthy"]
    assert memory.stats()["turns"] == 1
    memory.embed_pending()
    consistent(memory)


def test_of_a_file_that_was_cut_the_missing_pages_are_told(large: Memory) -> None:
    path = large.database.path
    large.close()
    pages = path.stat().st_size // sediment.PAGE_BYTES
    os.truncate(path, 12 * sediment.PAGE_BYTES)
    assert f"The file is {pages - 12} pages shorter than it was" in large.repair()["message"]


def gap(data: bytes, page: int) -> tuple[int, int]:
    """Where a page has room between what its rows are and where they stand."""
    start = (page - 1) * sediment.PAGE_BYTES
    count, first = (int.from_bytes(data[start + at : start + at + 2], "big") for at in (3, 5))
    return start + 8 + 2 * count, start + first


def plant(path: Path, text: str) -> None:
    """Leave a text in a page as SQLite does, which leaves what it moved from page to page."""
    data = path.read_bytes()
    room = (gap(data, page) for page in leaf_pages(path, "items") if page > 1)
    place = next(begin for begin, end in room if end - begin > len(text))
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(text.encode())


SECRET = "The secret of the crane is that it is called Gundula."


def test_what_is_forgotten_is_in_no_page_that_once_had_it(memory: Memory, path: Path) -> None:
    id = memory.store(SECRET)["id"]
    memory.close()
    plant(path, SECRET)
    assert memory.doctor()["healthy"]
    memory.forget(id)
    assert SECRET.encode() not in path.read_bytes()
    consistent(memory)


@pytest.mark.parametrize("how", ["hears of it", "leaves"])
def test_what_a_machine_erases_that_syncs_is_in_no_page_either(
    memory: Memory, tmp_path: Path, how: str
) -> None:
    with open_memory(tmp_path / "other.db", "demo") as other:
        for one in (memory, other):
            one.sync_to(str(tmp_path / "shared"))
            one.share("demo")
        id = memory.store(SECRET)["id"]
        memory.sync()
        other.sync()
        other.close()
        plant(other.database.path, SECRET)
        if how == "leaves":
            other.leave_sync(erase=True)
        else:
            memory.forget(id)
            memory.sync()
            assert SECRET.encode() in other.database.path.read_bytes()
            other.sync()
        assert SECRET.encode() not in other.database.path.read_bytes()
        consistent(other)


def test_a_damaged_header_counts_no_pages(memory: Memory, path: Path) -> None:
    memory.store("The crane is called Gundula.")
    memory.close()
    with open(path, "r+b") as file:
        file.seek(20)
        file.write(b"\xa5" * 30)
    with pytest.raises(DatabaseError, match=r"`doctor --repair` if it was one"):
        memory.list_items()
    told = memory.repair()["message"]
    assert "nothing is lost" in told
    assert "shorter" not in told
    assert "The crane is called Gundula." in contents(memory)


STORES = """
import sediment
patience = sediment.make_busy_handler

def telling(*given):
    again = patience(*given)
    return lambda tries: (tries == 0 and said("waits")) or again(tries)

sediment.make_busy_handler = telling
memory = Memory(sys.argv[1], project="demo")
for text in ("Only the log has this.", "This comes meanwhile."):
    said("stores")
    memory.store(text)
    said("stored")
    sys.stdin.readline()
"""


@pytest.mark.parametrize("first_page", [False, True])
@pytest.mark.parametrize("killed", [True, False])
def test_what_only_the_log_has_is_rescued_too(
    memory: Memory, path: Path, killed: bool, first_page: bool
) -> None:
    memory.close()
    other = child(STORES, path)
    assert [hear(other), hear(other)] == ["stores", "stored"]
    overwrite(path, 1 if first_page else leaf_pages(path, "vectors")[0])
    if killed:
        other.kill()
        other.communicate()
    assert memory.repair()["healthy"]
    assert "Only the log has this." in contents(memory)
    if not killed:
        tell(other)
        assert [hear(other), hear(other)] == ["stores", "stored"]
        assert "This comes meanwhile." in contents(memory)
        other.kill()
        other.communicate()


def test_what_a_server_stores_during_a_repair_is_in_the_new_file(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.close()
    other = child(STORES, path)
    assert [hear(other), hear(other)] == ["stores", "stored"]
    overwrite(path, leaf_pages(path, "vectors")[0])
    rebuild = sediment_ext.repair.rebuild

    def while_another_stores(*given: Any) -> None:
        tell(other)
        assert [hear(other), hear(other)] == ["stores", "waits"]
        rebuild(*given)

    monkeypatch.setattr(sediment_ext.repair, "rebuild", while_another_stores)
    assert memory.repair()["healthy"]
    assert next(heard for heard in iter(lambda: hear(other), "") if heard != "waits") == "stored"
    other.kill()
    other.communicate()
    assert {"Only the log has this.", "This comes meanwhile."} <= set(contents(memory))


READS = """
import sqlite3
reader = sqlite3.connect(sys.argv[1])
reader.execute("SELECT count(*) FROM items").fetchall()
said("has read")
sys.stdin.readline()
reader.close()
"""


@pytest.mark.parametrize("read", ["", "-wal"])
def test_what_the_log_has_is_rescued_when_another_program_ends(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """It writes the log into the file and deletes it: SQLite before 3.51 heeds no lock but that on
    the file itself, which is lost when the file is read."""
    memory.close()
    other = child(READS, path)
    assert hear(other) == "has read"
    memory.store("Only the log has this.")
    memory.close()
    overwrite(path, leaf_pages(path, "vectors")[0])
    read_bytes = Path.read_bytes

    def before_it_ends(one: Path) -> bytes:
        data = read_bytes(one)
        if one == Path(f"{path}{read}") and other.poll() is None:
            finish(other, "end\n")
        return data

    monkeypatch.setattr(Path, "read_bytes", before_it_ends)
    assert memory.repair()["healthy"]
    assert other.poll() == 0
    assert "Only the log has this." in contents(memory)


@pytest.mark.parametrize(
    "damage", ["truncated", "only the head", "noise", "text", "zeros", "a page of notes"]
)
def test_the_file_is_never_changed_in_place(memory: Memory, path: Path, damage: str) -> None:
    """And what was never a database of ours stays where it is."""
    copy = path.with_name("copy.db")
    memory.backup(copy)
    memory.close()
    data = path.read_bytes()
    made = {
        "truncated": data[: len(data) // 2],
        "only the head": data[:100] + bytes(len(data) - 100),
        "a page of notes": b"# My notes\n\nimportant\n",
        "noise": random.Random(1).randbytes(len(data)),
        "text": b"no database at all " * 500,
        "zeros": bytes(len(data)),
    }[damage]
    path.write_bytes(made)
    for call in (memory.stats, lambda: memory.store("x"), lambda: memory.recall("x")):
        with pytest.raises(DatabaseError, match=r"damaged|not a Sediment database|another program"):
            call()
        assert path.read_bytes() == made
    assert not memory.doctor()["healthy"]
    if damage not in ("truncated", "only the head"):
        for call in (memory.repair, lambda: memory.restore(copy)):
            with pytest.raises(DatabaseError, match="move it away"):
                call()
        assert {one.name for one in path.parent.iterdir()} == {path.name, copy.name}
        assert path.read_bytes() == made
        return
    answer = memory.repair()
    assert Path(answer["kept"]).read_bytes() == made
    assert answer["healthy"]
    assert ("new and empty" in answer["message"]) == (damage != "truncated")
    assert contents(memory) <= set(TEXTS)
    assert memory.store("Said afterwards.")["success"]


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on files")
def test_a_copy_that_a_limit_refuses_says_so(memory: Memory, tmp_path: Path) -> None:
    memory.store("a fact")
    script = """
import resource, signal, sys
sys.dont_write_bytecode = True  # cut by the limit, it would break who imports it next
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
memory = sediment.Memory(sys.argv[1], project="demo")
memory.list_items()
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
memory.backup(sys.argv[2])
"""
    _, errors = child(script, memory.database.path, tmp_path / "copy.db").communicate()
    assert "`ulimit -f` refuses" in errors


def test_a_file_that_cannot_be_written_is_warned_of(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.store("a fact")
    monkeypatch.setattr(sediment, "is_writable", lambda _: False)
    warned = [row["detail"] for row in memory.doctor()["checks"] if row["status"] == "warning"]
    assert any("cannot be written: nothing can be stored" in one for one in warned)


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes")
def test_a_name_that_is_no_text_is_told(memory: Memory, tmp_path: Path) -> None:
    named = tmp_path / os.fsdecode(b"copy-\xfe.db")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        memory.backup(named)
    named.write_bytes(b"x")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        memory.restore(named)


def test_another_programs_database_is_not_mended(tmp_path: Path) -> None:
    path = tmp_path / "places.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks(address)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with open_memory(path) as memory, pytest.raises(DatabaseError, match="another program"):
        memory.repair()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["places.sqlite"]


# Reindexing


def test_reindexing_gives_the_same_answers(memory: Memory) -> None:
    long = "\n\n".join(f"## Part {number}\n\nIt is about tea. {'x ' * 200}" for number in range(9))
    memory.store(long)
    before = memory.recall("remark about ports", limit=20, record=False)
    done: list[int] = []
    answer = memory.reindex(done.append)
    assert answer["success"]
    assert sum(done) == answer["items"] == len(TEXTS) + 1
    assert memory.recall("remark about ports", limit=20, record=False) == before
    consistent(memory)


def test_reindexing_encodes_nothing_while_others_wait(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        memory.store(f"Remark {number}.")
    encode, late = memory.encoder.embed, ["Tea at four.", "Bread at five."]

    def embed(text: str) -> bytes:
        assert not memory.database.writer().in_transaction
        return encode(text)

    def stored_meanwhile(_: int) -> None:
        if memory.database.value("SELECT count(*) FROM staged") >= 40 and late:
            memory.store(late.pop())

    monkeypatch.setattr(memory.encoder, "embed", embed)
    assert memory.reindex(stored_meanwhile)["items"] == len(TEXTS) + 42
    assert not late
    consistent(memory)


def test_a_reindexing_does_not_chase_what_others_store(memory: Memory) -> None:
    done: list[int] = []

    def store_more(count: int) -> None:
        done.append(count)
        assert len(done) < 20
        memory.store(f"Stored meanwhile, {len(done)}.")

    answer = memory.reindex(store_more)
    assert sum(done) == len(TEXTS)
    assert answer["items"] == len(TEXTS) + len(done)
    assert memory.pending() == 0  # who stored made the vectors, too
    assert memory.recall("Stored meanwhile, 1.")["results"][0]["content"] == "Stored meanwhile, 1."
    consistent(memory)


def test_each_batch_of_a_reindexing_begins_where_the_last_ended(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "REINDEX_BATCH", 1)
    steps: list[int] = []
    for _ in range(2):
        memory.import_rows([{"content": f"Remark {len(steps)}, {n}."} for n in range(60)])
        steps.append(0)

        def count() -> bool:
            steps[-1] += 1
            return False

        memory.database.writer().set_progress_handler(count, 100)
        memory.reindex()
        memory.database.writer().set_progress_handler(None)
    assert steps[1] < 3 * steps[0]


def test_forgetting_looks_an_id_up_in_an_index(memory: Memory) -> None:
    memory.store("A fact.")
    for table, column in sediment.MENTIONS:
        plan = memory.database.rows(
            f"EXPLAIN QUERY PLAN DELETE FROM {table} WHERE {column} = ?", "x"
        )
        assert "SCAN" not in str(plan), plan


def test_reindexing_goes_on_where_it_was(memory: Memory) -> None:
    calls: list[int] = []

    def stop() -> bool:
        calls.append(1)
        return len(calls) > 1

    assert memory.reindex(stop=stop)["success"] is False
    assert len({row[0] for row in rows_of(memory, "staged")}) == sediment.REINDEX_BATCH
    assert memory.recall(TEXTS[0])["results"][0]["content"] == TEXTS[0]
    memory.forget(memory.recall(TEXTS[0])["results"][0]["id"])
    late = memory.store("Stored meanwhile.")["id"]
    done: list[int] = []
    assert memory.reindex(done.append)["items"] == len(TEXTS)
    assert done[0] == sediment.REINDEX_BATCH - 1
    assert rows_of(memory, "staged") == []
    assert memory.recall("Stored meanwhile.")["results"][0]["id"] == late
    consistent(memory)


def test_readers_and_writers_go_on_while_it_reindexes(memory: Memory, path: Path) -> None:
    script = """
memory = Memory(sys.argv[1], project="demo")
said("ready")
print(memory.reindex()["items"])
"""
    other = child(script, path)
    assert hear(other) == "ready"
    for number in range(20):
        text = f"Meanwhile number {number}."
        memory.store(text)
        answer = memory.recall(text)
        assert [row["content"] for row in answer["results"]][:1] == [text], answer
    finish(other)
    consistent(memory)
    for number in range(20):
        text = f"Meanwhile number {number}."
        assert memory.recall(text)["results"][0]["content"] == text


def test_what_was_found_is_told_when_all_chunks_are_made_anew_before_it_is_read(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.store("Tall trees stand by the river. " * 60 + "The ferry leaves at noon.")
    before, keep = memory.recall("the ferry leaves at noon")["results"], sediment.kept_hits

    def reindex_first(hits: list[Hit], least: float, min_score: float | None) -> list[Hit]:
        Memory(path, project="demo").reindex()
        return keep(hits, least, min_score)

    monkeypatch.setattr(sediment, "kept_hits", reindex_first)
    assert memory.recall("the ferry leaves at noon")["results"] == before
    assert before[0]["position"]["chunks"] > 1


def test_vectors_of_another_model_are_made_anew(memory: Memory) -> None:
    with memory.database.transaction() as connection:
        connection.execute("UPDATE meta SET value = 'other' WHERE key = 'model_digest'")
    assert memory.recall("tea")["notice"]
    assert any(check["status"] == "warning" for check in memory.doctor()["checks"])
    memory.reindex()
    assert "notice" not in memory.recall("tea")
    assert memory.stats()["same_model"]
    consistent(memory)


# Disks without links or permissions, as exFAT and some network and FUSE mounts are


@pytest.fixture(params=["EPERM", "ENOTSUP", "ENOSYS", "EACCES", "EMLINK"])
def poor_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(getattr(errno, request.param), "not on this disk")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "chmod", refuse)


@pytest.mark.usefixtures("poor_disk")
def test_all_that_makes_a_file_works_without_links(tmp_path: Path) -> None:
    path, target = tmp_path / "new" / "memory.db", tmp_path / "copy.db"
    with open_memory(path) as memory:
        id = memory.store(TEXTS[0])["id"]
        memory.backup(target)
        with pytest.raises(DatabaseError, match="there already"):
            memory.backup(target)
        memory.store(TEXTS[1])
        assert memory.restore(target)["items"] == 1
        assert [
            len(contents(open_memory(copy))) for copy in path.parent.glob("*.before-restore-*")
        ] == [2]
        with memory.database.transaction() as connection:
            connection.execute(DAMAGES["vectors"])
        assert memory.repair()["healthy"]
        memory.close()
        data = bytearray(path.read_bytes())
        data[:100] = bytes(100)
        path.write_bytes(data)
        assert Path(memory.repair()["kept"]).read_bytes() == data
        assert contents(memory) == {TEXTS[0]}
        assert memory.get(id)
        consistent(memory)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.usefixtures("poor_disk")
def test_an_upgrade_works_without_links(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.write_bytes(gzip.decompress((ROOT / "tests" / "schema_13.db.gz").read_bytes()))
    with open_memory(path) as memory:
        consistent(memory)
    assert len(list(tmp_path.glob("*.version-13-*"))) == 1


def test_what_takes_a_place_meanwhile_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no links, too; and nothing stays of what could not be put there."""
    draft, target = tmp_path / "draft", tmp_path / "target"
    draft.write_text("ours")

    def late(*_: object) -> None:
        target.write_text("theirs")
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(FileExistsError):
        place_new_file(draft, target)
    assert target.read_text() == "theirs"
    target.unlink()
    monkeypatch.setattr(os, "link", lambda *_: draft.unlink() or os.stat(draft))
    with pytest.raises(FileNotFoundError):
        place_new_file(draft, target)
    assert not target.exists()


# Pruning


def test_what_is_old_and_not_used_is_hidden(memory: Memory) -> None:
    old = memory.store("An old remark.", created_at="2020-01-01")["id"]
    used = memory.store("The gateway is in the cellar.", created_at="2020-01-01")["id"]
    confirmed = memory.store("Mara is vegetarian.", created_at="2020-01-01")["id"]
    memory.store("Mara is vegetarian.", created_at="2020-01-02")
    newer = memory.store(
        "Tea at five.",
        created_at="2020-02-01",
        replace=memory.store("Tea at four.", created_at="2020-01-01")["id"],
    )["id"]
    memory.recall("where is the gateway?", limit=1)
    planned = memory.prune("90d", dry_run=True)
    assert [row["id"] for row in planned["items"]] == [old]
    assert planned["dry_run"]
    assert memory.get(old).get("ended") is None
    assert memory.prune("90d")["count"] == 1
    assert memory.prune("90d")["count"] == 0
    live = {row["id"] for row in memory.list_items(limit=100)["items"]}
    assert old not in live
    assert {used, confirmed, newer} <= live
    assert memory.history(old)["events"][-1]["action"] == "prune"
    consistent(memory)
    assert memory.undo(old)["restored"] == old
    pruned = memory.prune("90d", confirmed=True)["items"]
    assert {row["id"] for row in pruned} == {old, confirmed, newer}


def test_purging_erases_what_was_pruned(memory: Memory, path: Path) -> None:
    memory.store("A remark with the word zanzibar.", created_at="2020-01-01")
    memory.store("A global zanzibar.", created_at="2020-01-01", scope="global")
    memory.prune("1y")
    exported = list(memory.export_rows())
    assert sum("zanzibar" in row["content"] for row in exported) == 2
    with open_memory(path.with_name("copy.db")) as copy:
        assert copy.import_rows(exported)["refused"] == []
        assert copy.purge()["count"] == 1
    assert memory.purge()["count"] == 1
    assert memory.purge()["count"] == 0
    assert memory.prune("1y", scope="global")["count"] == 1
    assert memory.purge(scope="global")["count"] == 1
    memory.close()
    assert b"zanzibar" not in path.read_bytes()


def test_other_projects_are_not_pruned(memory: Memory, path: Path) -> None:
    with open_memory(path, project="other") as other:
        other.store("Theirs.", created_at="2020-01-01")
        assert memory.prune("1y")["count"] == 0
        assert other.prune("1y")["count"] == 1
        assert memory.purge()["count"] == 0


def test_without_a_project_nothing_is_purged(memory: Memory, tmp_path: Path) -> None:
    memory.store("A global remark.", created_at="2020-01-01", scope="global")
    memory.prune("1y", scope="global")
    nowhere = open_memory(memory.database.path)
    nowhere.projects = Projects(nowhere.database, None, Path("/"))
    for answer in (nowhere.prune("0d"), nowhere.purge()):
        assert answer["count"] == 0
    assert "no project" in nowhere.purge()["message"]
    assert nowhere.purge(scope="GLOBAL")["count"] == 1


def test_a_dry_run_of_a_purge_names_what_it_would_erase_and_erases_nothing(memory: Memory) -> None:
    id = memory.store("An old lamp.", created_at="2020-01-01")["id"]
    memory.prune("1y")
    before = rows_of(memory, "items")
    answer = memory.purge(dry_run=True)
    assert (answer["count"], [row["id"] for row in answer["items"]]) == (1, [id])
    assert rows_of(memory, "items") == before
    assert memory.purge()["count"] == 1
    assert memory.purge(dry_run=True)["count"] == 0


def test_only_what_is_hidden_is_purged(memory: Memory) -> None:
    """A row that says why it ended, and not when, has not ended."""
    row = {"id": "a", "content": "A remark that is live.", "ended_by": "prune"}
    answer = memory.import_rows([row, row | {"id": "b", "successor": "a"}])
    assert (answer["stored"], len(answer["refused"])) == (1, 1)
    with memory.database.transaction() as connection:  # by a version that took them
        connection.execute("UPDATE items SET ended_by = 'prune' WHERE id = 'a'")
    assert memory.purge()["count"] == 0
    assert memory.get("a")


def test_pruning_tells_what_stays_and_why(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    day, today = "2020-01-01", "2026-11-12"
    noon = sediment.parse_moment(f"{today}T12:00Z")  # so that no day begins meanwhile
    monkeypatch.setattr(time, "time", lambda: noon)
    recalled = memory.store("The gateway is in the cellar.", created_at=day)["id"]
    (confirmed,) = {memory.store("Mara is vegetarian.", created_at=day)["id"] for _ in "twice"}
    tea = memory.store("Tea at four.", created_at=day)["id"]
    newer = memory.store("Tea at five.", replace=tea, created_at=day)["id"]
    (both,) = {memory.store("The door is blue.", created_at=day)["id"] for _ in "twice"}
    memory.record_access(shown(recalled, both))
    for answer in (memory.prune("1y", dry_run=True), memory.prune("1y")):
        assert answer["count"] == 0
        assert {row["id"]: row["why"] for row in answer["kept"]} == {
            recalled: f"recalled {today}",
            confirmed: "confirmed",
            newer: "confirmed, replaced another",
            both: f"recalled {today}, confirmed",
        }
    assert {row["id"] for row in memory.prune("1y", confirmed=True)["kept"]} == {recalled, both}


@pytest.mark.parametrize(
    "age", ["", "soon", "-3d", "90", " 180 ", "1700000000", "1.5", True, "3 fortnights"]
)
def test_what_is_no_age_is_refused(memory: Memory, age: object) -> None:
    with pytest.raises(InvalidInput, match="an age is"):
        memory.prune(age)


@pytest.mark.parametrize("age", ["9" * 400 + "d", "9" * 5000 + ".5y", "99999999w"])
def test_nothing_is_older_than_all_time(memory: Memory, age: str) -> None:
    memory.store("Tea at four.", created_at=0)
    assert memory.prune(age) == {"count": 0, "items": [], "kept": []}


def test_threads_may_repair_and_recall(memory: Memory) -> None:
    with memory.database.transaction() as connection:
        connection.execute(DAMAGES["vectors"])
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(20):
                memory.recall("tea")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    memory.repair()
    thread.join()
    assert errors == []


# What others did to the file

MISSING = [
    "history",
    "meta",
    "chunks",
    "pending",
    "graph_edges",
    "embeddings",
    "shown",
    "changes",
    "tokens",
    "projects",
]


@pytest.mark.parametrize(
    "sql",
    [
        *(f"DROP TABLE {name}" for name in MISSING),
        "DROP TRIGGER item_changed",
        "PRAGMA user_version = 0",
        "UPDATE vectors SET vector = x'00'",
        "UPDATE words_config SET v = 0 WHERE k = 'version'",
        "DROP TABLE words_config",
        "UPDATE items SET text_hash = 1",
        "CREATE TRIGGER e AFTER INSERT ON items BEGIN UPDATE items SET project_id = NULL; END",
        "CREATE VIEW v AS SELECT 1",
    ],
)
def test_a_file_that_lacks_or_has_what_it_should_not_is_mended(path: Path, sql: str) -> None:
    with open_memory(path) as memory:
        memory.import_rows([{"content": text} for text in TEXTS])
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(sql)
    with open_memory(path) as memory:
        for call in (memory.list_items, memory.stats, memory.status, memory.consolidate):
            with contextlib.suppress(DatabaseError):
                call()
        with contextlib.suppress(DatabaseError):
            memory.recall("tea")
        assert not memory.doctor()["healthy"]
        assert not copies(path, "version-*")
        assert memory.repair()["lost"] == []
        assert memory.doctor()["healthy"]
        assert contents(memory) == set(TEXTS)
        assert memory.recall("tea")["results"]


@pytest.mark.parametrize(
    ("version", "told"), [(12, "made before the first release"), (99, "made by a newer Sediment")]
)
def test_a_sound_file_of_another_version_is_not_repaired(
    path: Path, tmp_path: Path, version: int, told: str
) -> None:
    """Repair would make a file of today from those of its rows that look like today's."""
    with open_memory(path) as memory:
        memory.store("A remark about tea.")
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with open_memory(path) as memory:
        assert told in str(memory.doctor()["checks"])
        with pytest.raises(DatabaseError, match=told):
            memory.repair()
    with open_memory(tmp_path / "new.db") as memory, pytest.raises(DatabaseError, match=told):
        memory.restore(path)
    assert path.read_bytes() == before


def test_a_copy_with_a_trigger_of_others_is_not_restored(memory: Memory, tmp_path: Path) -> None:
    memory.backup(copy := tmp_path / "copy.db")
    with contextlib.closing(sqlite3.connect(copy)) as other:
        other.executescript("CREATE TRIGGER e AFTER INSERT ON items BEGIN DELETE FROM items; END")
    with pytest.raises(DatabaseError, match="would change what is stored"):
        memory.restore(copy)
    assert contents(memory) == set(TEXTS)


@pytest.mark.parametrize("name", ["-", ""])
def test_a_backup_needs_the_name_of_a_file(memory: Memory, name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a file name"):
        memory.backup(name)


def test_what_is_erased_for_good_is_named_where_it_still_stands(
    memory: Memory, path: Path, tmp_path: Path
) -> None:
    memory.store("The ferry sails at six.", created_at="2020-01-01")
    memory.backup(tmp_path / "copy.db")
    memory.prune("0d")
    answer = memory.purge()
    assert answer["copies"] == [str(tmp_path / "copy.db")]
    assert "copy.db" in [*sediment_ext.upkeep.render_pruned(answer)][-1]


def test_a_disk_that_fails_for_a_moment_keeps_no_lock(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.store("The ferry sails at six.")
    real = memory.database._identity

    def fails() -> object:
        if memory.database._local.connection.in_transaction:
            raise OSError(errno.EIO, "Input/output error")
        return real()

    with monkeypatch.context() as failing:
        failing.setattr(memory.database, "_identity", fails)
        with pytest.raises(OSError, match="Input/output"):
            memory.store("The ferry sails at seven.")
    with open_memory(path) as other:
        other.store("The ferry sails at eight.")
    memory.store("The ferry sails at nine.")


def test_a_program_that_ends_beside_this_one_takes_no_log(memory: Memory, path: Path) -> None:
    id = memory.store("The ferry sails at six.")["id"]
    memory.store("The gateway is newton.")
    memory.forget(id)
    memory.store("The harbour master is Oyin.")
    script = "import sqlite3; sqlite3.connect(sys.argv[1]).execute('SELECT 1 FROM items')"
    finish(child(f"import sys\n{script}", path))
    memory.store("Tea is at four.")
    with open_memory(path) as other:
        assert other.recall("when is tea?")["results"][0]["content"] == "Tea is at four."
    assert Path(f"{path}-wal").exists()


def test_on_a_full_disk_everything_can_be_read(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.store("The ferry sails at six.")
    memory.close()
    monkeypatch.setattr(sediment, "_no_room", lambda _: True)
    with open_memory(path) as full:
        found = full.recall("when does the ferry sail?")["results"]
        assert found[0]["content"] == "The ferry sails at six."
        assert full.list_items(limit=1)["items"][0]["content"] == "The ferry sails at six."
        assert not Path(f"{path}-shm").exists()
        with pytest.raises(sediment.DatabaseError, match="the disk is full"):
            full.store("The gateway is newton.")


def test_an_empty_file_that_was_there_is_read_by_its_owner_alone(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch(0o644)
    with open_memory(path) as memory:
        memory.store("The ferry sails at six.")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_is_named_as_one_by_doctor(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        answer = memory.doctor()
    told = [check["detail"] for check in answer["checks"] if check["status"] == "broken"]
    assert "is a folder: name a file in it" in told[0]

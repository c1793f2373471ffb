"""One private file, whole after every change, and never harm to a file that is not ours."""

import contextlib
import gzip
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage import (
    TIMEOUT,
    child,
    consistent,
    finish,
    hear,
    kill,
    open_memory,
    rows_of,
    tell,
    values,
)

import sediment
from sediment import APPLICATION_ID, MIGRATIONS, Database, DatabaseError, Memory, NotFound
from sediment_ext import erasing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "memory.db"


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    with open_memory(path) as memory:
        yield memory


def put(database: Database, key: str) -> None:
    """The smallest change."""
    with database.transaction() as connection:
        connection.execute("INSERT INTO meta VALUES(?, 'x')", (key,))


def keys(database: Database) -> list[str]:
    return [row[0] for row in database.rows("SELECT key FROM meta ORDER BY key")]


def contents(folder: Path) -> dict[str, str]:
    """Every file under a folder, and a digest of its bytes."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


# A new file


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_the_file_is_for_its_user_alone(path: Path, mask: int) -> None:
    script = """
os.umask(int(sys.argv[2]))
database = Database(Path(sys.argv[1]))
with database.transaction() as connection:
    connection.execute("INSERT INTO meta VALUES('key', 'x')")
said(*(oct(path.stat().st_mode & 0o777) for path in Path(sys.argv[1]).parent.iterdir()))
"""
    assert finish(child(script, path, str(mask))).split() == ["0o600"] * 3
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_file_says_what_it_is(path: Path) -> None:
    put(Database(path), "key")
    connection = apsw.Connection(str(path))
    assert connection.pragma("application_id") == APPLICATION_ID
    assert connection.pragma("user_version") == max(MIGRATIONS)
    assert connection.pragma("journal_mode") == "wal"
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big")


def test_every_connection_is_safe_and_strict(path: Path) -> None:
    database = Database(path)
    put(database, "key")
    pragma = database.reader().pragma
    assert pragma("synchronous") == 2
    assert pragma("foreign_keys") == 1
    assert pragma("secure_delete") == 1


ORIGINALS = {
    "graph_nodes": "id project_id created_at",
    "graph_edges": "from_id to_id edge_type strength rel_type count last_at created_at questions",
    "access_log": "item_id access_count last_accessed_at created_at validation_count",
    "consolidation_queue": "item_id_a item_id_b similarity status created_at",
}
OURS = {
    "items": "seq id content content_type project_id created_at stored_at ended_at ended_by "
    "successor text_hash file first_line last_line",
    "reviews": "old_id new_id probability kept",
    "marks": "item name value",
    "chunks": "id item position start end context",
    "vectors": "chunk vector",
    "pending": "chunk",
    "words": "text context",
    "meta": "key value",
    "history": "id action item_id other_id at detail",
    "projects": "location project_id",
    "changes": "number item",
    "staged": "item position start end context vector",
    "sources": "id path project_id options",
    "files": "id source path project_id size changed_at touched_at read_at digest dated",
    "embeddings": "hash vector used_at",
    "shown": "session item_id shown_at",
    "tokens": "name hash reads project_id created_at",
    "captures": "client session path number",
}


def test_every_table_is_there_with_its_columns(path: Path) -> None:
    database = Database(path)
    put(database, "key")
    sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB 'words_*'"
    names = {row[0] for row in database.rows(sql)} - {"sqlite_sequence"}
    assert names == ORIGINALS.keys() | OURS.keys()
    for table, columns in (ORIGINALS | OURS).items():
        sql = f"SELECT name FROM pragma_table_info('{table}')"
        assert [row[0] for row in database.rows(sql)] == columns.split()


def test_reading_what_is_not_there_creates_nothing(tmp_path: Path, memory: Memory) -> None:
    assert memory.list_items()["total"] == 0
    assert memory.recall("anything")["results"] == []
    assert memory.stats()["exists"] is False
    assert list(memory.export_rows()) == []
    assert memory.embed_pending() == 0
    for call in (memory.get, memory.forget):
        with pytest.raises(NotFound):
            call("unknown")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    database = Database(Path("memory.db"))
    put(database, "one")
    monkeypatch.chdir("elsewhere")
    put(database, "two")
    assert keys(Database(tmp_path / "memory.db")) == ["one", "two"]


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory", "a b#c%20?d.db", "naïve.db"])
def test_any_name_is_the_name_of_a_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = Database(Path(name))
    put(first, "key")
    assert keys(Database(Path(name))) == ["key"]
    first.close()
    assert (tmp_path / name).stat().st_size > 0


# Files that cannot be used


def not_a_database(path: Path) -> str:
    path.write_bytes(b"Dear diary, " * 1_000)
    return "is not a Sediment database"


def a_folder(path: Path) -> str:
    path.mkdir()
    return "is a folder"


def somebody_elses(path: Path) -> str:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE bookmarks(url); INSERT INTO bookmarks VALUES('x')")
    connection.close()
    return "another program's database"


def newer(path: Path) -> str:
    database = Database(path)
    put(database, "key")
    database.reader().pragma("user_version", max(MIGRATIONS) + 1)
    database.close()
    return "made by a newer Sediment"


def older(path: Path) -> str:
    """A file of the last version before the first release."""
    database = Database(path)
    put(database, "key")
    database.reader().pragma("user_version", sediment.FIRST_VERSION - 1)
    database.close()
    return "made before the first release of Sediment: `export` it with the program that made it"


def cut_short(path: Path) -> str:
    database = Database(path)
    put(database, "key")
    database.close()
    os.truncate(path, 4_096)
    return "is damaged"


def cut_in_a_page(path: Path) -> str:
    cut_short(path)
    os.truncate(path, 1_000)
    return "is "


def under_a_file(path: Path) -> str:
    path.parent.rmdir()
    path.parent.write_text("a file where the folder should be")
    return "cannot"


UNUSABLE = [not_a_database, a_folder, somebody_elses, newer, older]
UNUSABLE += [cut_short, cut_in_a_page, under_a_file]


@pytest.mark.parametrize("make", UNUSABLE)
def test_an_unusable_file_gives_one_sentence_and_stays_as_it_was(
    path: Path, make: Callable[[Path], str]
) -> None:
    path.parent.mkdir()
    message = make(path)
    before = contents(path.parent.parent)
    with open_memory(path) as memory:
        for _ in range(2):
            for call in (memory.stats, memory.list_items, lambda: memory.store("a text")):
                with pytest.raises(DatabaseError, match=message) as caught:
                    call()
                assert str(path) in str(caught.value)
                assert "\n" not in str(caught.value)
    after = contents(path.parent.parent)
    assert {name: after[name] for name in before} == before
    assert not [name for name in after if "journal" in name]


def test_another_programs_unfinished_log_is_not_lost(path: Path) -> None:
    path.parent.mkdir()
    source = path.with_name("source.db")
    connection = apsw.Connection(str(source))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE bookmarks(url); INSERT INTO bookmarks VALUES('x')")
    shutil.copy(source, path)  # as after a crash: all of it is still in the log
    shutil.copy(f"{source}-wal", f"{path}-wal")
    with pytest.raises(DatabaseError, match="another program's database"):
        keys(Database(path))
    assert list(apsw.Connection(str(path)).execute("SELECT * FROM bookmarks")) == [("x",)]


def test_an_unusable_file_is_not_held_open(path: Path) -> None:
    path.parent.mkdir()
    somebody_elses(path)
    memory = open_memory(path)
    for _ in range(20):
        with pytest.raises(DatabaseError):
            memory.list_items()
    if sys.platform == "linux":
        held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert held.count(str(path)) <= 1


# For root permissions are no obstacle: a child of root's becomes somebody else.
NOBODY = 65534
AS_NOBODY = f"""
import apsw, importlib.util
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
database = Database(Path(sys.argv[1]))

def attempt(action):
    try:
        said(action())
    except sediment.DatabaseError as error:
        said(str(error).replace(sys.argv[1], "FILE"))

def write():
    with database.transaction() as connection:
        connection.execute("INSERT INTO meta VALUES('new', 'x')")

def read():
    return database.rows("SELECT key FROM meta")
"""


@pytest.fixture
def guarded() -> Iterator[Path]:
    """A folder with a database, both owned by whom a child will be."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(database := Database(folder / "memory.db"), "key")
        database.close()
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            os.chown(folder / "memory.db", NOBODY, NOBODY)
        yield folder
        folder.chmod(0o700)


def as_nobody(folder: Path, script: str) -> list[str]:
    """What a child without special rights says about the database."""
    return finish(child(AS_NOBODY + script, folder / "memory.db", cwd="/")).splitlines()


CANNOT_WRITE = "FILE cannot be written: check its permissions and its folder's, or use --db"


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o700, 0o400), (0o500, 0o600)])
def test_what_cannot_be_written_can_be_read(
    guarded: Path, folder_mode: int, file_mode: int
) -> None:
    (guarded / "memory.db").chmod(file_mode)
    guarded.chmod(folder_mode)
    before = contents(guarded)
    said = as_nobody(guarded, "attempt(read); attempt(write); attempt(write); attempt(read)")
    assert said == ["[('key',)]", CANNOT_WRITE, CANNOT_WRITE, "[('key',)]"]
    assert contents(guarded) == before


def test_what_may_not_be_read_is_explained(guarded: Path) -> None:
    (guarded / "memory.db").chmod(0)
    for line in as_nobody(guarded, "attempt(read); attempt(write)"):
        assert line.startswith("FILE cannot be ")
        assert "permission" in line


def test_a_folder_that_may_not_be_entered_is_explained(guarded: Path) -> None:
    guarded.chmod(0)
    said = as_nobody(guarded, "attempt(read); attempt(write)")
    assert said == ["cannot open FILE: Permission denied"] * 2


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_the_log_of_a_file_that_was_moved_away_is_kept(
    path: Path, linked: bool, emptied: bool
) -> None:
    name = path.with_name("link.db") if linked else path
    path.parent.mkdir()
    if linked:
        name.symlink_to(path)
    told = f"{name} was moved away or removed, but {path.name}-wal .*: put the file back"
    with open_memory(name) as memory:
        id = memory.store("The cicada sings at dusk.")["id"]
        path.rename(gone := path.with_name("gone.db"))
        if emptied:
            path.touch()
        calls = (memory.stats, memory.list_items, memory.doctor, memory.repair)
        for call in (
            *calls,
            lambda: memory.store("another"),
            lambda: memory.backup(path.with_name("copy.db")),
        ):
            with pytest.raises(DatabaseError, match=told):
                call()
        with open_memory(name) as other, pytest.raises(DatabaseError, match=told):
            other.store("another")
        assert path.exists() == emptied
        gone.replace(path)
        assert [row["id"] for row in memory.list_items()["items"]] == [id]
        path.rename(gone)
    assert path.with_name(f"{path.name}-wal").stat().st_size
    gone.rename(path)
    with open_memory(name) as again:
        assert again.get(id)["content"] == "The cicada sings at dusk."


def test_a_file_is_begun_anew_when_the_log_of_a_removed_one_is_deleted(path: Path) -> None:
    with open_memory(path) as memory:
        memory.store("one thing")
        path.unlink()
        with pytest.raises(DatabaseError, match="was moved away or removed"):
            memory.list_items()
        remove(path)
        assert memory.list_items()["total"] == 0
        assert memory.store("another")["success"]
        consistent(memory)


@pytest.mark.skipif(os.name != "posix", reason="a device of that name")
def test_a_device_is_no_database() -> None:
    with Memory("/dev/null") as memory, pytest.raises(DatabaseError, match="is no plain file"):
        memory.list_items()


def test_a_folder_where_nothing_can_be_created_is_explained(guarded: Path) -> None:
    (guarded / "memory.db").unlink()
    guarded.chmod(0o500)
    said = as_nobody(guarded, "attempt(read); attempt(write)")
    assert said == ["[]", "FILE cannot be created: no permission; use --db"]
    assert contents(guarded) == {}


# Files that change under us


def remove(path: Path) -> None:
    """The database and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def test_a_file_that_was_deleted_is_begun_anew(path: Path, memory: Memory) -> None:
    old = memory.store("the old fact")["id"]
    remove(path)
    assert memory.list_items()["total"] == 0
    assert not path.exists()
    new = memory.store("the new fact")["id"]
    assert [row["id"] for row in memory.list_items()["items"]] == [new]
    with pytest.raises(NotFound):
        memory.get(old)
    consistent(memory)


def test_a_file_that_was_exchanged_is_read_anew(path: Path, memory: Memory) -> None:
    memory.store("the old fact")
    with open_memory(path.with_name("other.db")) as other:
        new = other.store("the new fact")["id"]
    remove(path)
    os.replace(path.with_name("other.db"), path)
    assert [row["id"] for row in memory.list_items()["items"]] == [new]
    memory.store("one more fact")
    consistent(memory)
    with open_memory(path) as again:
        assert again.list_items()["total"] == 2


def test_an_exchanged_file_keeps_what_another_process_writes(path: Path) -> None:
    old = Database(path)
    put(old, "old")
    put(fresh := Database(path.with_name("other.db")), "first")
    fresh.close()
    remove(path)
    os.replace(path.with_name("other.db"), path)
    script = """
database = Database(Path(sys.argv[1]))
for key in ("second", "third"):
    with database.transaction() as connection:
        connection.execute("INSERT INTO meta VALUES(?, 'x')", (key,))
    said(key)
    input()
"""
    process = child(script, path)
    hear(process)
    assert keys(old) == ["first", "second"]
    tell(process)
    hear(process)
    old.close()
    kill(process)
    assert keys(Database(path)) == ["first", "second", "third"]


def test_trouble_that_passes_is_forgotten(path: Path) -> None:
    database = Database(path)
    put(database, "key")
    database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    safe = path.with_name("safe.db")
    os.rename(path, safe)
    remove(path)
    path.write_bytes(b"Dear diary, " * 1_000)
    for _ in range(3):
        with pytest.raises(DatabaseError, match="is not a Sediment database"):
            keys(database)
    os.replace(safe, path)
    assert keys(database) == ["key"]
    put(database, "later")
    database.close()
    assert keys(Database(path)) == ["key", "later"]


def test_closing_leaves_a_connection_that_a_thread_is_using(path: Path) -> None:
    database, used, closed = Database(path), threading.Event(), threading.Event()
    put(database, "a")
    mine, read = database.reader(), []

    def hold(*_: object) -> int:
        used.set()
        return closed.wait(TIMEOUT)

    def work() -> None:
        database.reader().create_scalar_function("hold", hold)
        read.extend(database.rows("SELECT key, hold() FROM meta WHERE key = 'a'"))

    thread = threading.Thread(target=work)
    thread.start()
    assert used.wait(TIMEOUT)
    database.close()
    closed.set()
    thread.join(TIMEOUT)
    assert read == [("a", 1)]
    with pytest.raises(apsw.ConnectionClosedError):
        mine.execute("SELECT 1")
    assert keys(database) == ["a"]
    database.close()


def test_a_closed_database_opens_again(path: Path) -> None:
    database = Database(path)
    put(database, "one")
    database.close()
    database.close()
    put(database, "two")
    assert keys(database) == ["one", "two"]
    assert len(list(path.parent.iterdir())) == 3
    database.close()
    assert [file.name for file in path.parent.iterdir()] == ["memory.db"]


# Several at once


def test_processes_that_open_a_new_file_together_all_store(path: Path) -> None:
    script = """
memory = Memory(sys.argv[1], project="demo", resident=False)
memory.encoder.load()
said("ready")
input()
for number in range(3):
    said(memory.store(f"Process {sys.argv[2]} has said thing {number}.")["id"])
"""
    processes = [child(script, path, str(number)) for number in range(4)]
    for process in processes:
        assert hear(process) == "ready"
    for process in processes:
        tell(process)
    ids = [id for process in processes for id in finish(process).split()]
    with open_memory(path) as memory:
        assert sorted(values(memory, "SELECT id FROM items")) == sorted(ids)
        assert len(ids) == 12
        consistent(memory)


def test_a_file_that_comes_while_an_empty_one_is_read_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sediment.check_compatible

    def meanwhile(*opened: Any) -> None:
        if not path.exists():
            put(Database(path), "theirs")
        real(*opened)

    monkeypatch.setattr(sediment, "check_compatible", meanwhile)
    database = Database(path)
    database.rows("SELECT 1")
    put(database, "ours")
    assert keys(Database(path)) == ["ours", "theirs"]


def test_threads_that_open_a_new_file_together_all_write(path: Path) -> None:
    database, start = Database(path), threading.Barrier(16)

    def work(number: int) -> None:
        start.wait(TIMEOUT)
        put(database, f"key {number:02}")
        keys(database)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert keys(database) == [f"key {number:02}" for number in range(16)]


def test_a_second_thread_does_not_undo_the_lock_of_the_first(path: Path) -> None:
    """SQLite locks by POSIX rules: whoever closes a file drops all the process's locks on it."""
    database = Database(path)
    put(database, "key")
    thread = threading.Thread(target=keys, args=(database,))
    thread.start()
    thread.join(TIMEOUT)
    script = """
import fcntl
shared_bytes = 0x40000000 + 2
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, shared_bytes)
        said("free")
    except OSError:
        said("locked")
"""
    assert finish(child(script, path)) == "locked\n"


def test_a_writer_waits_for_another(path: Path) -> None:
    put(Database(path), "before")
    script = """
database = Database(Path(sys.argv[1]))
said("ready")
input()
said("writing")
with database.transaction() as connection:
    connection.execute("INSERT INTO meta VALUES('child', 'x')")
"""
    process = child(script, path)
    hear(process)
    database = Database(path)
    with database.transaction() as connection:
        tell(process)
        assert hear(process) == "writing"
        connection.execute("INSERT INTO meta VALUES('parent', 'x')")
        assert keys(Database(path)) == ["before"]
    finish(process)
    assert keys(database) == ["before", "child", "parent"]


def test_a_lock_that_never_ends_is_explained(path: Path) -> None:
    first, second = Database(path), Database(path)
    with first.transaction():
        assert keys(second) == []
        with (
            pytest.raises(DatabaseError, match="was locked by another process"),
            second.transaction(wait=50),
        ):
            pass
    put(second, "key")


# Transactions


def test_a_transaction_that_fails_leaves_nothing(path: Path) -> None:
    database = Database(path)
    put(database, "kept")

    def fail() -> None:
        with database.transaction() as connection:
            connection.execute("INSERT INTO meta VALUES('lost', 'x')")
            raise RuntimeError("in the middle")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            fail()
    assert keys(database) == ["kept"]
    put(database, "later")
    assert keys(Database(path)) == ["kept", "later"]


def test_a_process_that_is_killed_in_a_transaction_leaves_nothing(path: Path) -> None:
    put(database := Database(path), "kept")
    script = """
database = Database(Path(sys.argv[1]))
with database.transaction() as connection:
    connection.execute("INSERT INTO meta VALUES('lost', 'x')")
    connection.cache_flush()
    said("in the middle")
    input()
"""
    process = child(script, path)
    hear(process)
    kill(process)
    assert keys(database) == ["kept"]
    put(database, "later")


def test_a_store_that_fails_half_way_leaves_nothing(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = memory.store("We deploy on Fridays.")["id"]
    before = list(memory.database.reader().execute("SELECT * FROM items"))

    def fail(*_: object) -> None:
        raise RuntimeError("the last step")

    monkeypatch.setattr(sediment, "count_validation", fail)
    with pytest.raises(RuntimeError):
        memory.store("We deploy on Mondays.", replace=old)
    assert list(memory.database.reader().execute("SELECT * FROM items")) == before
    consistent(memory)


def test_deleting_an_item_takes_what_hangs_on_it(memory: Memory) -> None:
    memory.store("A fact with a vector.")
    with memory.database.transaction() as connection:
        connection.execute("INSERT INTO pending SELECT id FROM chunks")
        connection.execute("DELETE FROM items")
    assert all(not rows_of(memory, table, "1") for table in ("chunks", "vectors", "pending"))


def test_a_chunk_of_nothing_is_refused(memory: Memory) -> None:
    memory.store("A fact.")
    with pytest.raises(apsw.ConstraintError), memory.database.transaction() as connection:
        connection.execute('INSERT INTO chunks(item, position, start, "end") VALUES(99, 0, 0, 1)')


# Threads


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_that_end_leave_nothing_open(memory: Memory) -> None:
    memory.store("A fact.")
    memory.list_items()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        thread = threading.Thread(target=memory.list_items)
        thread.start()
        thread.join()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_fault_in_the_background_ends_no_later_work(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "INLINE_CHUNKS", 0)
    tries, done = [], threading.Event()

    def embed(**options: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("a fault")
        Memory.embed_pending(memory, **options)
        done.set()

    monkeypatch.setattr(memory, "embed_pending", embed)
    worker = sediment.Worker(memory)
    for text in ("Tea at four.", "Bread at five."):
        told = threading.Event()
        store = memory, "store", sediment.run_tool, {"content": text}
        answer = lambda _, told=told: told.set()  # noqa: E731
        worker.submit(sediment.Call(*store, answer, threading.Event()))
        assert told.wait(60)
        # A thread has no number before it runs.
        while not worker._chore or not worker._chore.ident or worker._chore.is_alive():
            time.sleep(0.01)
    assert done.wait(30)
    worker.finish()
    assert memory.pending() == 0


def test_an_erased_text_is_found_wherever_a_read_of_the_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    erased = "The vault opens with the word tulip."
    with open_memory(tmp_path / "memory.db") as memory:
        database = memory.database
        with database.transaction() as connection:
            connection.execute("INSERT INTO meta VALUES('left behind', ?)", (erased,))
        database.checkpoint()
        (place,) = [
            found.start() for found in re.finditer(erased.encode(), database.path.read_bytes())
        ]
        for read in range(len(erased) + 1):
            monkeypatch.setattr(erasing, "SEARCHED_BYTES", place + read)
            assert erasing.holds(database, [erased]), read
            assert not erasing.holds(database, [erased[::-1]])


# Made by earlier versions


def test_a_file_of_the_first_version_opens_with_all_it_holds(tmp_path: Path) -> None:
    """It is a real one, which syncs; a copy of it as it was lies beside it."""
    path, packed = tmp_path / "memory.db", Path(__file__).with_name("schema_13.db.gz")
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    before = table_rows(path, 13)
    with open_memory(path, "lighthouse") as memory:
        assert memory.list_items()["total"] == 4
    after = table_rows(path, max(MIGRATIONS))
    assert [row[:-1] for row in after["replica"]] == before["replica"]  # and their tags, none yet
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"meta", "replica", "clock"}  # all is to be read again
    (copy,) = tmp_path.glob("memory.db.version-13-*")
    assert table_rows(copy, 13) == before
    with open_memory(path, "lighthouse") as memory:
        for query, text in (("14:30", "会議は１４：３０から。"), ("12500", "lens costs 12 500")):
            (other,) = memory.recall(query, ranking="bm25")["results"]
            assert text in other["content"]
        (shown,) = memory.recall("bulb of the lamp", limit=1)["results"]
        assert [old["content"] for old in memory.history(shown["id"])["versions"]] == BULBS
        (found, *_) = memory.recall("how often is the tower coated with paint?")["results"]
        assert found["content"] == "The lighthouse is painted every third spring."
        consistent(memory)
        assert memory.forget(found["id"])["copies"] == [str(copy)]


BULBS = ["The lamp has a bulb of 500 watts.", "The lamp has a bulb of 800 watts."]


def table_rows(path: Path, version: int) -> dict[str, list[Any]]:
    """All rows of a file of this version, by table."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("user_version") == version
        sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'words%'"
        names = [name for (name,) in connection.execute(sql)]
        return {name: list(connection.execute(f"SELECT * FROM {name}")) for name in names}


def test_a_later_migration_runs_once_and_keeps_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made up: it adds a column and a table, and fills both."""
    path = tmp_path / "memory.db"
    with open_memory(path) as memory:
        id = memory.store("The tower is painted every third spring.")["id"]
    newest = max(MIGRATIONS)

    def migrate(connection: apsw.Connection) -> None:
        connection.execute("ALTER TABLE items ADD COLUMN letters INTEGER")
        connection.execute("UPDATE items SET letters = length(content)")
        connection.execute("CREATE TABLE runs(id TEXT) STRICT; INSERT INTO runs VALUES('once')")

    monkeypatch.setitem(MIGRATIONS, newest + 1, migrate)
    for _ in range(2):
        with open_memory(path) as memory:
            assert memory.get(id)["content"] == "The tower is painted every third spring."
            assert memory.database.rows("SELECT letters FROM items") == [(40,)]
            assert memory.database.rows("SELECT id FROM runs") == [("once",)]
            assert memory.stats()["schema"] == newest + 1
            consistent(memory)
    (copy,) = tmp_path.glob(f"memory.db.version-{newest}-*")
    assert "letters" not in str(table_rows(copy, newest))
    with open_memory(tmp_path / "new.db") as memory:  # it runs for a new file, too
        memory.store("Another text.")
        assert memory.database.rows("SELECT id FROM runs") == [("once",)]
        assert memory.doctor()["healthy"]
        with memory.database.transaction() as connection:
            connection.execute("DROP TABLE runs")
        assert "missing: runs" in str(memory.doctor()["checks"])


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.db"
    with open_memory(path) as memory:
        memory.store("The tower is painted every third spring.")
    before, newest = table_rows(path, max(MIGRATIONS)), max(MIGRATIONS)

    def migrate(connection: apsw.Connection) -> None:
        connection.execute("DELETE FROM items")
        raise apsw.FullError("database or disk is full")

    monkeypatch.setitem(MIGRATIONS, newest + 1, migrate)
    with open_memory(path) as memory, pytest.raises(DatabaseError, match="the disk is full"):
        memory.list_items()
    assert table_rows(path, newest) == before
    assert not list(tmp_path.glob("memory.db.version-*"))


# Any sequence of changes

FACTS = ["Tea is served at four.", "Tea is served at five.", "Die Köchin heißt Ömer.", "茶は四時"]
LONG = "".join(f"Paragraph {n} tells of tea, and of nothing else at all.\n\n" for n in range(60))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "long", "replace", "forget", "recall", "embed"]),
        st.integers(0, 20),
        st.sampled_from(["project", "global"]),
    ),
    max_size=14,
)


@settings(max_examples=20)
@given(STEPS)
def test_the_tables_agree_after_any_changes(steps: list[tuple[str, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sediment, "INLINE_CHUNKS", 3)
        with open_memory(Path(folder) / "memory.db") as memory:
            live: dict[tuple[str, str | None], str] = {}
            for step in steps:
                change(memory, live, *step)
            assert sorted(values(memory, "SELECT id FROM items WHERE ended_at IS NULL")) == (
                sorted(live.values())
            )
            if steps:
                consistent(memory)


def change(
    memory: Memory, live: dict[tuple[str, str | None], str], action: str, number: int, scope: str
) -> None:
    """One step; `live` follows which items there must be, by text and project."""
    key = list(live)[number % len(live)] if live else None
    project = "demo" if scope == "project" else None
    if action in ("store", "long"):
        text = f"{number}. {LONG}" if action == "long" else FACTS[number % len(FACTS)]
        live[text, project] = memory.store(text, scope=scope)["id"]
    elif action == "replace" and key:
        text, old = FACTS[number % len(FACTS)], live.pop(key)
        live[text, key[1]] = memory.store(text, replace=old)["id"]
    elif action == "forget" and key:
        memory.forget(live.pop(key))
    elif action == "recall":
        assert len(memory.recall("tea")["results"]) <= len(live)
    elif action == "embed":
        memory.embed_pending()
        assert memory.pending() == 0


def test_a_link_to_somebody_elses_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_memory(tmp_path / "memory.db") as memory:
        memory.store("Mine.")
    (tmp_path / "link.db").symlink_to(tmp_path / "memory.db")
    assert open_memory(tmp_path / "link.db").list_items()["total"] == 1
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(DatabaseError, match="somebody else's"):
        open_memory(tmp_path / "link.db").list_items()
    assert open_memory(tmp_path / "memory.db").list_items()["total"] == 1


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_what_is_written_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with open_memory(tmp_path / "new" / "memory.db") as memory:
            memory.store("Mine.")
            memory.backup(tmp_path / "new" / "copy.db")
            modes = {
                path.name: path.stat().st_mode & 0o777
                for path in memory.database.path.parent.iterdir()
            }
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}, modes
    assert len(modes) == 4
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700

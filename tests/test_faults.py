"""Disks that are full, files that are not what they should be, folders that go away.

Each ends in one line that says what to do, changes nothing that it cannot use, and is forgotten
when it is over.
"""

import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import click
import kills
import pytest
import wire
from click.testing import CliRunner
from program import Done, Program, heed_permissions, one_line
from storage import consistent, open_memory, shared_encoder, values
from wire import Wire, server_command, small_env

import sediment
from sediment import DatabaseError, Memory

pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits, permissions and /dev/null")

PROJECT = "demo"
FACTS = ["The gate code is 4711.", "Invoices go out on Fridays.", "Mara drinks tea without milk."]
LATER = "The lighthouse is painted every third spring."
TOOLS = {
    "store": {"content": LATER},
    "recall": {"query": "gate code"},
    "list": {},
    "forget": {"id": "00000000-0000-4000-8000-000000000000"},
}
SUFFIXES = ("", "-wal", "-shm")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A closed file with a few memories."""
    path = tmp_path / "data" / "memory.db"
    with open_memory(path, PROJECT) as memory:
        ids = [memory.store(fact)["id"] for fact in FACTS]
        memory.store("Invoices go out on Mondays.", replace=ids[1])
        memory.recall("gate code")
    assert os.listdir(path.parent) == ["memory.db"]
    return path


@pytest.fixture
def start(tmp_path: Path, unpacked: Path) -> Iterator[Callable[..., Wire]]:
    """Starts servers that permissions hold for, whoever runs the tests."""
    wires: list[Wire] = []
    obedient = "from program import heed_permissions as heed; import os, sys; heed()"
    obedient += "; os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", obedient, *wire.server_command()]
    (tmp_path / "home").mkdir()

    def start(path: Path, cwd: Path = tmp_path / "home", **env: str) -> Wire:
        env = {"SEDIMENT_DB": str(path), "SEDIMENT_CACHE": str(unpacked), **env}
        env["PYTHONPATH"] = str(Path(__file__).parent)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire, "server_command", lambda: command)
            wires.append(Wire(cwd, small_env(tmp_path / "home", **env)))
        wires[-1].handshake()
        return wires[-1]

    yield start
    for one in wires:
        one.kill()


def refused(wire: Wire, path: Path, *tools: str) -> set[str]:
    """What these tools say, each of which must refuse and name the file."""
    texts = {wire.refusal(tool, **TOOLS[tool]) for tool in tools or TOOLS}
    for text in texts:
        assert str(path) in text
        assert "\n" not in text
        assert "Sediment failed" not in text
    return texts


def works(wire: Wire, count: int = len(FACTS)) -> None:
    """All is well: everything is there, and more can be stored and forgotten."""
    assert wire.call("list")["total"] == count
    id = wire.call("store", content=LATER)["id"]
    assert wire.call("recall", query=LATER)["results"][0]["id"] == id
    assert wire.call("forget", id=id)["ids"] == [id]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Files that are not what they should be


def a_text(path: Path) -> str:
    path.write_text("Dear diary, " * 1_000)
    return (
        "is not a Sediment database: choose another file with --db; `doctor --repair` if it was one"
    )


def noise(path: Path) -> str:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))
    return (
        "is not a Sediment database: choose another file with --db; `doctor --repair` if it was one"
    )


def noise_behind_its_head(path: Path) -> str:
    data = path.read_bytes()
    path.write_bytes(data[:100] + random.Random(1).randbytes(len(data) - 100))
    return "is damaged: run `doctor --repair`, or `restore` a backup"


def cut_short(path: Path) -> str:
    os.truncate(path, sediment.PAGE_BYTES + 1_000)
    return "is damaged: run `doctor --repair`, or `restore` a backup"


def newer(path: Path) -> str:
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 999)
    connection.close()
    return "was made by a newer Sediment: update this program"


def somebody_elses(path: Path) -> str:
    path.unlink()
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE bookmarks(url); INSERT INTO bookmarks VALUES('x')")
    connection.close()
    return "is another program's database: choose another file"


def a_folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "is a folder: --db takes a file, e.g. memory.db"


UNUSABLE = [a_text, noise, noise_behind_its_head, cut_short, newer, somebody_elses, a_folder]

COMMANDS = [
    "store text",
    "store text --replace 1234",
    "recall text",
    "list",
    "get 1234",
    "forget 1234",
    "history 1234",
    "undo 1234",
    "graph 1234",
    "consolidate",
    "stats",
    "export",
    "import rows.jsonl",
]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], str]:
    """Runs a command in this process; returns its error, or nothing when all was well."""
    monkeypatch.setattr(Memory, "encoder", property(lambda _: shared_encoder()))

    def shell(path: Path, command: str) -> str:
        words = ["--db", str(path), "--project", PROJECT, *command.split()]
        try:
            sediment.cli.main(words, standalone_mode=False)
        except click.ClickException as error:
            return error.format_message()
        return ""

    return shell


@pytest.mark.parametrize("make", UNUSABLE)
def test_every_command_says_what_is_wrong_with_a_file_and_leaves_it_alone(
    good: Path,
    make: Callable[[Path], str],
    shell: Callable[[Path, str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reason = make(good)
    monkeypatch.chdir(good.parent)
    Path("rows.jsonl").write_text('{"content": "text"}')
    before = bytes_of(good.parent)
    for command in COMMANDS:
        assert shell(good, command) == f"{good} {reason}", command
    assert bytes_of(good.parent).items() >= before.items()


def test_a_server_says_so_every_time_and_goes_on_when_the_file_is_back(
    good: Path, start: Callable[..., Wire]
) -> None:
    kept = shutil.copy(good, good.with_name("kept.db"))
    wire = start(good, SEDIMENT_PROJECT=PROJECT)
    works(wire)
    for make in UNUSABLE:
        remove(good)
        shutil.copy(kept, good)
        reason = make(good)
        before = good.read_bytes() if good.is_file() else b""
        assert refused(wire, good) == {f"{good} {reason}"}, make
        assert before == (good.read_bytes() if good.is_file() else b"")
        remove(good)
        shutil.copy(kept, good)
        works(wire)
    assert wire.end() == []
    assert wire.log() == ""


def remove(path: Path) -> None:
    """A database or what stands in its place, and what SQLite keeps beside it."""
    for suffix in SUFFIXES:
        place = Path(f"{path}{suffix}")
        place.rmdir() if place.is_dir() else place.unlink(missing_ok=True)


def test_a_process_says_it_in_one_line(good: Path, start_pyz: Callable[..., Done]) -> None:
    program = Program(start_pyz, good.parent, SEDIMENT_DB=str(good))
    reason = noise_behind_its_head(good)
    for command in ("list", "store", "recall"):
        words = [] if command == "list" else ["text"]
        assert program.error(command, *words) == f"Error: {good} {reason}"


@pytest.mark.parametrize("command", COMMANDS)
def test_damage_in_any_page_is_told(
    good: Path, command: str, shell: Callable[[Path, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the command needs nothing of that page, and is carried out."""
    monkeypatch.chdir(good.parent)
    Path("rows.jsonl").write_text('{"content": "text"}')
    with open_memory(good, PROJECT) as memory:
        ids = values(memory, "SELECT id FROM items ORDER BY ended_at")
    command = command.replace("1234", ids[0])
    data, size = good.read_bytes(), sediment.PAGE_BYTES
    damaged = "is damaged: run `doctor --repair`, or `restore` a backup"
    told = set()
    for start in range(0, len(data), size):
        remove(good)
        bad = random.Random(start).randbytes(size)
        good.write_bytes(
            data[: max(start, 100)] + bad[max(0, 100 - start) :] + data[start + size :]
        )
        told.add(shell(good, command))
    assert f"{good} {damaged}" in told
    assert all(text == "" or text == f"{good} {damaged}" or ids[0][:8] in text for text in told), (
        told
    )


def test_a_text_that_is_no_longer_text_is_told(
    good: Path, shell: Callable[[Path, str], str]
) -> None:
    data = good.read_bytes()
    assert data.count(FACTS[0].encode()) == 1
    good.write_bytes(data.replace(FACTS[0].encode(), b"\xff" * len(FACTS[0])))
    assert "is damaged" in shell(good, "list")


def test_a_server_answers_whatever_became_of_the_file_behind_an_answer(
    good: Path, start: Callable[..., Wire]
) -> None:
    bad = Path(shutil.copy(good, good.with_name("bad.db")))
    connection = apsw.Connection(str(bad))
    connection.execute("DROP TABLE graph_nodes")
    connection.close()
    wire = start(good, SEDIMENT_PROJECT=PROJECT)
    wire.call("recall", query="gate code")
    os.replace(bad, good)
    for _ in range(sediment.SHOWN_MAX):  # so many are noted at once, without a pause
        wire.request("tools/call", {"name": "recall", "arguments": {"query": "gate code"}})
    assert wire.call("list")["total"] == len(FACTS)


def test_an_empty_file_is_a_new_one(good: Path, start: Callable[..., Wire]) -> None:
    good.write_bytes(b"")
    works(start(good, SEDIMENT_PROJECT=PROJECT), 0)


# What lies beside the file


BESIDE = [b"", bytes(20), bytes(32_768), random.Random(1).randbytes(50_000)]


@pytest.mark.parametrize("suffix", SUFFIXES[1:])
@pytest.mark.parametrize("content", BESIDE)
def test_what_is_no_log_does_no_harm(good: Path, suffix: str, content: bytes) -> None:
    Path(f"{good}{suffix}").write_bytes(content)
    with open_memory(good, PROJECT) as memory:
        assert memory.list_items()["total"] == len(FACTS)
        memory.store(LATER)
        consistent(memory)


def log_of(path: Path, page_size: int, changes: str) -> bytes:
    """The log of another database, as a crash would leave it."""
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", page_size)
    connection.pragma("journal_mode", "wal")
    connection.execute(changes)
    return Path(f"{path}-wal").read_bytes()


def test_another_programs_log_is_not_written_into_the_file(
    good: Path, shell: Callable[[Path, str], str], tmp_path: Path
) -> None:
    before = good.read_bytes()
    changes = "CREATE TABLE bookmarks(url); INSERT INTO bookmarks VALUES('x')"
    Path(f"{good}-wal").write_bytes(log_of(tmp_path / "other.db", 4_096, changes))
    assert "another program's database" in shell(good, "list")
    assert good.read_bytes() == before


def test_a_file_is_whole_without_its_log_when_its_last_server_has_ended(
    good: Path, start: Callable[..., Wire]
) -> None:
    """So that a copy of the one file is a copy of all, and one put in its place is what counts."""
    wire = start(good, SEDIMENT_PROJECT=PROJECT)
    wire.call("store", content=LATER)
    assert wire.end() == []
    copy = shutil.copy(good, good.with_name("copy.db"))
    with open_memory(Path(copy), PROJECT) as memory:
        assert LATER in [item["content"] for item in memory.list_items()["items"]]


# Full disks


class FullDisk(kills.Points):
    """From the n-th write on, the disk is full, until there is space again."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.full_from = number

    def reach(self, kind: str, before: Callable[[], object] | None = None) -> bool:
        super().reach(kind)
        if before and self.passed[kind] >= self.full_from:
            raise apsw.FullError("database or disk is full")
        return True


NEW = ["first store", "migrate"]  # which make or change the schema
CHANGES = [name for name in kills.CHANGES if name not in NEW]
STEP = 47  # writes between two of those at which the disk fills up


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, kills.Case]:
    return {case.name: case for case in kills.cases(tmp_path_factory.mktemp("cases"))}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_finds_the_disk_full_is_not_made(
    name: str, cases: dict[str, kills.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it fills up; and the same memory goes on when there is space again."""
    monkeypatch.setattr(sediment, "IMPORT_BATCH", kills.BATCH)
    case = cases[name]
    for number in range(1, case.points["write"] + 1, STEP):
        path = kills.copied(case.base, tmp_path / "memory.db")
        with FullDisk(number) as disk, kills.memory_of(path) as memory:
            change_in_vain(case, memory)
            disk.full_from = sys.maxsize
            assert kills.state(path) in case.wholes
            kills.look_at(memory)


def change_in_vain(case: kills.Case, memory: Memory) -> None:
    """It may also succeed, if all that found no space was what can be done later."""
    told = f"{memory.database.path} cannot grow, the disk is full: free some space"
    try:
        kills.CHANGES[case.name](memory, case.ids)
    except DatabaseError as error:
        no_copy = "cannot be written" in str(error) and "is there room?" in str(error)
        if str(error) != f"{told}; this change was not made" and not no_copy:
            raise


def test_an_import_that_finds_the_disk_full_keeps_what_came_before(
    cases: dict[str, kills.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "IMPORT_BATCH", kills.BATCH)
    path = kills.copied(cases["import"].base, tmp_path / "memory.db")
    with FullDisk(sys.maxsize) as disk, kills.memory_of(path) as memory:
        before = memory.list_items()["total"]
        with pytest.raises(DatabaseError, match="the disk is full"):
            memory.import_rows(
                ({"content": row} for row in kills.ROWS),
                progress=lambda _: setattr(disk, "full_from", 0),
            )
        assert memory.list_items()["total"] == before + kills.BATCH
        disk.full_from = sys.maxsize
        answer = memory.import_rows({"content": row} for row in kills.ROWS)
        assert (answer["stored"], answer["existing"]) == (2, 4)


@pytest.mark.parametrize("name", NEW)
def test_a_schema_that_finds_the_disk_full_is_not_made(
    name: str, cases: dict[str, kills.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_a_change_that_finds_the_disk_full_is_not_made(name, cases, tmp_path, monkeypatch)


def test_a_disk_that_fills_up_after_the_answer_is_no_failure_of_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long text the vectors are made last, and the next store makes those that are missing."""
    encode = sediment.Memory.embed_pending

    def on_a_full_disk(memory: Memory, *given: Any) -> Any:
        disk.full_from = 0
        try:
            return encode(memory, *given)
        finally:
            disk.full_from = sys.maxsize

    monkeypatch.setattr(sediment.Memory, "embed_pending", on_a_full_disk)
    monkeypatch.setattr(sediment.Memory, "encoder", shared_encoder())
    text = "\n\n".join(f"Buoy {number} is red. {'It rings. ' * 99}" for number in range(20))
    given = ["--db", str(path), "--project", PROJECT, "store", text]
    with FullDisk(sys.maxsize) as disk:
        done = CliRunner().invoke(sediment.cli, given)
    assert (done.exit_code, done.exception) == (0, None)
    assert "All is stored; the next store, import or serve makes" in done.stderr
    assert "the disk is full: free some space)" in done.stderr
    monkeypatch.undo()
    with open_memory(path, PROJECT) as memory:
        assert memory.pending()
        assert [row["content"] for row in memory.export_rows()] == [text]


def test_a_backup_without_room_says_so(good: Path, tmp_path: Path) -> None:
    no_room = pytest.raises(DatabaseError, match=r"\(the disk is full\): is there room")
    with open_memory(good, PROJECT) as memory, FullDisk(1), no_room:
        memory.backup(tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy*"))


@pytest.mark.parametrize(("full", "told"), [(True, "the disk is full: free"), (False, "check")])
def test_a_disk_without_room_to_open_the_file_is_told_from_a_broken_one(
    good: Path, monkeypatch: pytest.MonkeyPatch, full: bool, told: str
) -> None:
    """SQLite says "disk I/O error" of both: a reader needs the index of the log, too."""

    def no_index(_: Path) -> apsw.Connection:
        raise apsw.IOError("disk I/O error")

    monkeypatch.setattr(sediment, "open_connection", no_index)
    monkeypatch.setattr(sediment, "_no_room", lambda _: full)
    with open_memory(good, PROJECT) as memory, pytest.raises(DatabaseError, match=told):
        memory.list_items()


def test_doctor_does_not_take_a_full_disk_for_damage(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_index(*_: object) -> int:
        raise apsw.IOError("disk I/O error")

    def broken() -> list[tuple[str, str]]:
        checks = memory.doctor()["checks"]
        return [(one["name"], one["detail"]) for one in checks if one["status"] == "broken"]

    connect = sediment.open_connection

    def reads_nothing(path: Path) -> apsw.Connection:
        connection = connect(path)
        connection.set_authorizer(no_index)
        return connection

    monkeypatch.setattr(sediment, "open_connection", reads_nothing)
    with open_memory(good, PROJECT) as memory:
        assert broken()[0] == ("pages", "disk I/O error")
        monkeypatch.setattr(sediment, "_no_room", lambda _: True)
        told = f"{good} cannot be opened, the disk is full: free some space"
        assert broken() == [("access", told)]


# Disks that fail


class BrokenDisk(kills.Points):
    """From the n-th time on, whatever is asked of this kind fails, until the disk is mended."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__()
        self.kind, self.broken_from = kind, number

    def reach(self, kind: str, before: Callable[[], object] | None = None) -> bool:
        super().reach(kind)
        if kind == self.kind and self.passed[kind] >= self.broken_from:
            raise apsw.IOError("disk I/O error")
        return True


@pytest.mark.parametrize("kind", ["read", "write", "sync"])
@pytest.mark.parametrize("name", ["store", "replace", "forget", "import", "undo", "reindex"])
def test_a_change_that_the_disk_fails_is_not_made(
    name: str,
    kind: str,
    cases: dict[str, kills.Case],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told or made, never half made; and all is well when the disk is."""
    monkeypatch.setattr(sediment, "IMPORT_BATCH", kills.BATCH)
    case = cases[name]
    count, told = case.points[kind], 0
    for number in sorted({1, count // 2, count}):
        path = kills.copied(case.base, tmp_path / "memory.db")
        with BrokenDisk(kind, number) as disk, kills.memory_of(path) as memory:
            try:
                kills.CHANGES[name](memory, case.ids)
            except DatabaseError:
                told += 1
            disk.broken_from = sys.maxsize
            assert kills.state(path) in case.wholes
            kills.look_at(memory)
    assert told


def no_file_grows_over(limit: int) -> Callable[[], None]:
    """For a child process: a limit that writes fail at."""

    def set_limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return set_limit


@pytest.mark.parametrize("limit", [0, 33_000])
def test_a_process_that_may_write_no_more_says_so(
    good: Path, start_pyz: Callable[..., Done], limit: int
) -> None:
    settings = {"SEDIMENT_DB": str(good), "SEDIMENT_PROJECT": PROJECT}
    # Python itself would leave half of what it compiles.
    program = Program(start_pyz, good.parent, **settings, PYTHONDONTWRITEBYTECODE="1")
    program.ok("--version")  # which unpacks it
    rows = good.with_name("rows.jsonl")
    rows.write_text("\n".join(f'{{"content": "Buoy {n} is red."}}' for n in range(40)))
    before = good.read_bytes()
    for words in (["store", LATER], ["import", str(rows)]):
        done = program.run(*words, preexec_fn=no_file_grows_over(limit))
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{good} cannot be read or written" in (told := one_line(done.stderr))
        assert "or a limit of the size of files (`ulimit -f`)" in told
    assert good.read_bytes() == before
    assert program.json("import", str(rows))["stored"] == 40
    program.store(LATER)
    with open_memory(good, PROJECT) as memory:
        consistent(memory)


@pytest.mark.skipif(sys.platform != "linux", reason="changes another process's limits")
def test_a_server_that_may_write_no_more_says_so_until_it_may(
    good: Path, start: Callable[..., Wire]
) -> None:
    wire = start(good, SEDIMENT_PROJECT=PROJECT, PYTHONDONTWRITEBYTECODE="1")
    works(wire)
    whole = resource.prlimit(wire.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(wire.pid, resource.RLIMIT_FSIZE, (1_000, whole[1]))
    for _ in range(2):
        (text,) = refused(wire, good, "store")
        assert "cannot be read or written" in text
        assert wire.call("list")["total"] == len(FACTS)
    resource.prlimit(wire.pid, resource.RLIMIT_FSIZE, whole)
    works(wire)
    assert wire.end() == []
    assert wire.log() == ""


# Folders and permissions


def test_a_folder_that_becomes_read_only_stops_nobody_who_is_writing(
    good: Path, start: Callable[..., Wire]
) -> None:
    wire = start(good, SEDIMENT_PROJECT=PROJECT)
    works(wire)
    good.parent.chmod(0o500)
    works(wire)
    late = start(good, SEDIMENT_PROJECT=PROJECT)
    assert late.call("list")["total"] == len(FACTS)
    assert late.call("recall", query="gate code")["results"]
    (text,) = refused(late, good, "store")
    assert "cannot be written: check its permissions and its folder's, or use --db" in text
    good.parent.chmod(0o700)
    works(wire)


def test_a_server_writes_when_the_folder_may_be_written_again(
    good: Path, start: Callable[..., Wire]
) -> None:
    good.parent.chmod(0o500)
    wire = start(good, SEDIMENT_PROJECT=PROJECT)
    try:
        refused(wire, good, "store")
    finally:
        good.parent.chmod(0o700)
    works(wire)


def test_a_server_reads_what_others_write_when_they_may(
    good: Path, start: Callable[..., Wire]
) -> None:
    good.parent.chmod(0o500)
    wire = start(good, SEDIMENT_PROJECT=PROJECT)
    try:
        assert wire.call("list")["total"] == len(FACTS)
    finally:
        good.parent.chmod(0o700)
    with open_memory(good, PROJECT) as memory:
        memory.store(LATER)
    assert wire.call("list")["total"] == len(FACTS) + 1


def test_a_file_that_may_not_be_read_is_told_until_it_may(
    good: Path, start: Callable[..., Wire]
) -> None:
    before = good.read_bytes()
    good.chmod(0)
    wire = start(good, SEDIMENT_PROJECT=PROJECT)
    for text in refused(wire, good):
        assert "check its permissions" in text
    good.chmod(0o600)
    assert good.read_bytes() == before
    works(wire)


def test_a_process_that_may_not_read_says_so(good: Path, start_pyz: Callable[..., Done]) -> None:
    program = Program(start_pyz, good.parent, SEDIMENT_DB=str(good), SEDIMENT_PROJECT=PROJECT)
    good.chmod(0)
    assert "permissions" in program.error("list", preexec_fn=heed_permissions)
    good.chmod(0o600)
    assert program.contents() >= {FACTS[0], FACTS[2]}


def test_what_may_not_be_read_is_not_said_to_be_mended_by_a_repair(
    good: Path, start_pyz: Callable[..., Done]
) -> None:
    program = Program(start_pyz, good.parent, SEDIMENT_DB=str(good), SEDIMENT_PROJECT=PROJECT)
    told = f"{good} cannot be read: check its permissions and its folder's, or use --db"
    good.chmod(0)
    for args in (["doctor", "--repair"], ["--json", "doctor", "--repair"]):
        assert program.error(*args, preexec_fn=heed_permissions) == f"Error: {told}"
    done = program.run("doctor", preexec_fn=heed_permissions)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"broken  access: {told}" in done.stdout.splitlines()
    assert "--repair" not in done.stdout
    assert "without sqlite-vec" not in done.stdout
    assert "cannot be written" not in done.stdout
    good.chmod(0o600)
    assert program.contents() >= {FACTS[0], FACTS[2]}


def test_a_folder_that_vanishes_is_begun_anew(good: Path, start: Callable[..., Wire]) -> None:
    wire = start(good, SEDIMENT_PROJECT=PROJECT)
    works(wire)
    shutil.rmtree(good.parent)
    works(wire, 0)
    assert wire.end() == []
    assert wire.log() == ""


def test_a_folder_that_vanishes_while_texts_are_encoded(
    good: Path, start: Callable[..., Wire]
) -> None:
    wire = start(good, SEDIMENT_PROJECT=PROJECT)
    text = "\n\n".join(f"# Heading {n}\n\nParagraph {n} tells of ropes." for n in range(60))
    assert wire.call("store", content=text)["pending_chunks"] > sediment.INLINE_CHUNKS
    shutil.rmtree(good.parent)
    works(wire, 0)
    assert wire.end() == []
    assert wire.log() == ""


def test_a_project_whose_folder_vanishes_is_not_everywhere(
    good: Path, start: Callable[..., Wire], tmp_path: Path
) -> None:
    (tmp_path / "project" / ".sediment").mkdir(parents=True)
    wire = start(good, cwd=tmp_path / "project")
    assert wire.call("store", content=LATER)["scope"] == "project"
    shutil.rmtree(tmp_path / "project")
    params = {"name": "store", "arguments": {"content": "The canteen closes at two."}}
    result = wire.request("tools/call", params)["result"]
    assert "isError" in result or result["structuredContent"]["scope"] == "project"


def test_a_server_without_an_output_says_so(tmp_path: Path, unpacked: Path) -> None:
    command = " ".join(map(shlex.quote, server_command()))
    env = small_env(tmp_path, SEDIMENT_CACHE=str(unpacked))
    done = subprocess.run(
        ["sh", "-c", f"{command} >&-"], input="", env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert "stdout, which is closed" in done.stderr

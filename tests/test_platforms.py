"""What Linux, macOS and Windows do each in their way: each branch, whatever system this is.

Windows is imitated: modules that it lacks cannot be imported, functions that it lacks are gone, and
those that it alone has are stand-ins that note how they are called.
"""

import errno
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from layers import NOT_EVERYWHERE, Layout
from program import repository
from storage import open_memory

import build_zipapp
import sediment
import sediment_ext.files
import sediment_ext.systems
from sediment import DatabaseError, NotFound

ROOT = Path(__file__).resolve().parent.parent
LACKING = {  # on Windows
    os: ("fork", "getuid", "geteuid", "killpg", "nice", "statvfs", "O_NOFOLLOW", "O_NONBLOCK"),
    signal: ("SIGHUP", "SIGALRM", "SIGKILL", "alarm"),
}
RUNS, ENDED, NOBODY = 11, 12, 99  # process ids


class Windows:
    """How the stand-ins are called, and what they do."""

    def __init__(self) -> None:
        self.locks: list[tuple[int, int, int]] = []
        self.held = 0  # how often a lock is somebody else's
        self.junctions: list[tuple[str, str]] = []
        self.refused: set[int] = set()  # processes that may not be looked at
        self.closed: list[int] = []

    def locking(self, file: int, mode: int, count: int) -> None:
        self.locks.append((mode, os.lseek(file, 0, os.SEEK_CUR), count))
        if self.held:
            self.held -= 1
            raise OSError(errno.EACCES if mode == 2 else errno.EDEADLK, "locked")

    def open_process(self, access: int, inherit: bool, pid: int) -> int:
        assert (access, inherit) == (0x100000, False)
        if pid in self.refused:
            raise PermissionError(errno.EACCES, "access is denied")
        if pid == NOBODY:
            raise OSError(errno.EINVAL, "the parameter is incorrect")
        return pid

    def wait(self, handle: int, milliseconds: int) -> int:
        return 0x102 if handle == RUNS and milliseconds == 0 else 0

    def junction(self, target: str, path: str) -> None:
        self.junctions.append((target, path))


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Windows:
    windows = Windows()
    monkeypatch.setattr(sys, "platform", "win32")
    for module, names in LACKING.items():
        for name in names:
            monkeypatch.delattr(module, name, raising=False)
    for name in NOT_EVERYWHERE:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(subprocess, "CREATE_NO_WINDOW", 0x8000000, raising=False)
    msvcrt = SimpleNamespace(LK_LOCK=1, LK_NBLCK=2, locking=windows.locking)
    _winapi = SimpleNamespace(
        OpenProcess=windows.open_process,
        WaitForSingleObject=windows.wait,
        CloseHandle=windows.closed.append,
        CreateJunction=windows.junction,
    )
    monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)
    monkeypatch.setitem(sys.modules, "_winapi", _winapi)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return windows


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


# Paths


def test_the_usual_database_is_where_the_system_keeps_such_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(sys, "platform", "linux")
    usual = tmp_path / ".local" / "share" / "sediment" / "memory.db"
    assert sediment.default_database() == usual
    for system, folder in {"darwin": "Library/Application Support", "win32": "AppData"}.items():
        asked: list[tuple[str, Any]] = []

        def told(name: str, appauthor: Any, here: Path = tmp_path / folder) -> Path:
            asked.append((name, appauthor))  # noqa: B023
            return here / name

        monkeypatch.setattr(sys, "platform", system)
        stand_in = SimpleNamespace(user_data_path=told)
        monkeypatch.setitem(sys.modules, "platformdirs", stand_in)
        assert sediment.default_database() == tmp_path / folder / "sediment" / "memory.db"
        assert asked == [("sediment", False)]


def test_no_home_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(DatabaseError, match="use --db"):
        sediment.default_database()


# Locks


def test_a_lock_is_one_process_s(tmp_path: Path) -> None:
    for system in ("linux", "darwin"):
        path = tmp_path / system
        with open(path, "ab") as file, open(path, "ab") as other:
            assert sediment_ext.systems.lock_file(file)
            assert not sediment_ext.systems.lock_file(other, wait=False)
        with open(path, "ab") as other:
            assert sediment_ext.systems.lock_file(other, wait=False)


def test_a_lock_on_windows_keeps_nobody_from_reading(tmp_path: Path, windows: Windows) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one line\n")
    with open(path, "r+b", buffering=0) as file:
        file.seek(4)
        assert sediment_ext.systems.lock_file(file)
        assert file.read() == b"line\n"
        assert windows.locks == [(1, 2**31 - 2, 1)]
        windows.held = 1
        assert not sediment_ext.systems.lock_file(file, wait=False)
        assert windows.locks[1:] == [(2, 2**31 - 2, 1)]


def test_a_lock_on_windows_is_waited_for_longer_than_windows_does(
    tmp_path: Path, windows: Windows
) -> None:
    windows.held = 3
    with open(tmp_path / "file", "ab") as file:
        assert sediment_ext.systems.lock_file(file)
    assert len(windows.locks) == 4


def test_what_is_wrong_with_a_file_that_is_locked_on_windows_is_told(
    tmp_path: Path, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locking(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(sys.modules["msvcrt"], "locking", locking)
    with open(tmp_path / "file", "ab") as file, pytest.raises(OSError, match="disk is gone"):
        sediment_ext.systems.lock_file(file)


# Files


def held_for(times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a file be somebody's who reads it, for so many attempts; which are counted."""
    attempts, replace = [0], os.replace

    def refusing(draft: Path, path: Path) -> None:
        attempts[0] += 1
        if attempts[0] <= times:
            raise PermissionError(errno.EACCES, "in use", str(path))
        replace(draft, path)

    monkeypatch.setattr(os, "replace", refusing)
    return attempts


def test_a_file_that_is_read_on_windows_is_replaced_later(
    tmp_path: Path, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = held_for(3, monkeypatch)
    sediment.write_atomically(tmp_path / "file", "new\n")
    assert (tmp_path / "file").read_bytes() == b"new\n"
    assert attempts == [4]
    held_for(100, monkeypatch)
    with pytest.raises(PermissionError):
        sediment.write_atomically(tmp_path / "file", "newer\n")
    assert (tmp_path / "file").read_bytes() == b"new\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_replaced_at_once_or_never_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = held_for(1, monkeypatch)
    with pytest.raises(PermissionError):
        sediment.write_atomically(tmp_path / "file", "new\n")
    assert attempts == [1]


def test_what_is_written_reaches_the_disk_itself_on_macos(
    mac: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, ...]] = []
    takes_it = SimpleNamespace(F_FULLFSYNC=51, fcntl=lambda *words: asked.append(words))
    monkeypatch.setitem(sys.modules, "fcntl", takes_it)
    monkeypatch.setattr(os, "fsync", lambda file: asked.append((file,)))
    sediment_ext.systems.write_through(7)
    assert asked == [(7, 51)]
    takes_it.fcntl = lambda *_: refuse()
    sediment_ext.systems.write_through(7)
    monkeypatch.setattr(sys, "platform", "linux")
    sediment_ext.systems.write_through(8)
    assert asked[1:] == [(7,), (8,)]


def refuse() -> None:
    raise OSError(errno.ENOTSUP, "not supported")


def test_what_is_written_has_plain_newlines_on_windows(
    tmp_path: Path, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "linesep", "\r\n")
    sediment.write_atomically(tmp_path / "file", "one\ntwo\n")
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\n"
    assert sediment_ext.files.plain_newlines("one\r\ntwo\rthree\n") == "one\ntwo\nthree\n"


def test_another_user_s_file_is_told_where_there_are_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path.stat()
    assert not sediment.has_other_owner(facts)
    monkeypatch.setattr(os, "getuid", lambda: facts.st_uid + 1)
    assert sediment.has_other_owner(facts)


def test_windows_tells_no_owner_and_no_mode(tmp_path: Path, windows: Windows) -> None:
    tmp_path.chmod(0o777)
    assert not sediment.has_other_owner(tmp_path.stat())
    assert sediment_ext.systems.mode_beyond(tmp_path, 0o600) == 0


def test_a_mode_that_lets_others_in_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    assert sediment_ext.systems.mode_beyond(tmp_path, 0o755) == 0
    assert sediment_ext.systems.mode_beyond(tmp_path, 0o700) == 0o750


def test_the_time_of_a_change_is_that_of_the_making_on_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts: Any = SimpleNamespace(st_mtime_ns=1, st_ctime_ns=2)
    for system in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", system)
        assert sediment_ext.systems.change_time(facts) == 2
    facts.st_birthtime_ns = 3
    assert sediment_ext.systems.change_time(facts) == 3
    monkeypatch.setattr(sys, "platform", "darwin")  # where that is told, too
    assert sediment_ext.systems.change_time(facts) == 2


def test_a_file_is_opened_where_there_are_no_links_or_pipes(
    tmp_path: Path, windows: Windows
) -> None:
    (tmp_path / "file").write_text("text")
    with open(tmp_path / "file", opener=sediment_ext.systems.open_plain) as file:
        assert file.read() == "text"


def test_a_link_is_not_opened_where_there_are_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(__file__)
    with pytest.raises(OSError, match="symbolic"):
        sediment_ext.systems.open_plain(str(tmp_path / "link"), os.O_RDONLY)


# Processes and signals


def test_whether_a_process_is_there() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    assert sediment_ext.systems.process_exists(
        process.pid
    )  # as long as nobody has asked how it ended
    process.wait()
    assert not sediment_ext.systems.process_exists(process.pid)
    assert sediment_ext.systems.process_exists(os.getpid())
    assert sediment_ext.systems.process_exists(2**70)  # no process that could be asked


def test_whether_a_process_is_there_on_windows(windows: Windows) -> None:
    windows.refused = {13}
    found = {pid: sediment_ext.systems.process_exists(pid) for pid in (RUNS, ENDED, NOBODY, 13)}
    assert found == {RUNS: True, ENDED: False, NOBODY: False, 13: True}
    assert windows.closed == [RUNS, ENDED]


class Exits(Exception):
    """The process would end."""


def ends_with_parent(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this process would end, once its parent has, or at once."""
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    before = set(threading.enumerate())
    sediment_ext.systems.end_with_parent()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    return ended == [0]


def test_a_server_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = itertools.chain([5, 5, 5], itertools.repeat(1))  # then it is taken by another
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert ends_with_parent(monkeypatch)


@pytest.mark.parametrize(("parent", "ends"), [(RUNS, True), (ENDED, True), (13, False)])
def test_a_server_ends_with_its_parent_on_windows(
    windows: Windows, monkeypatch: pytest.MonkeyPatch, parent: int, ends: bool
) -> None:
    windows.refused = {13}
    monkeypatch.setattr(os, "getppid", lambda: parent)  # which never changes there
    assert ends_with_parent(monkeypatch) == ends


def test_signals_that_the_system_has_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[int] = []
    monkeypatch.setattr(signal, "signal", lambda number, _: handled.append(number))
    sediment.handle_signals(signal.SIG_IGN)
    assert handled == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    handled.clear()
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr(signal, "SIGBREAK", 21, raising=False)
    sediment.handle_signals(signal.SIG_IGN)
    assert handled == [signal.SIGINT, signal.SIGTERM, 21]


def test_a_time_limit_needs_no_alarm(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda _: ended.set())
    sediment_ext.systems.limit_time(0)
    assert ended.wait(10)


def test_a_time_limit_comes_by_an_alarm_too(monkeypatch: pytest.MonkeyPatch) -> None:
    alarms: list[int] = []
    monkeypatch.setattr(signal, "alarm", alarms.append)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(threading.Timer, "start", lambda _: None)
    sediment_ext.systems.limit_time(60)
    assert alarms == [65]


def test_windows_has_no_word_for_a_low_priority(windows: Windows) -> None:
    assert not hasattr(os, "nice")
    sediment_ext.systems.lower_priority()  # which would raise AttributeError


def test_the_lowest_priority_may_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "nice", refuses)
    sediment_ext.systems.lower_priority()


def test_a_program_opens_no_window_on_windows(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sediment.no_window() == {"creationflags": 0x8000000}
    monkeypatch.setattr(sys, "platform", "linux")
    assert sediment.no_window() == {}


class Process:
    """A program that was started."""

    pid = 4711

    def __init__(self) -> None:
        self.done: list[str] = []

    def kill(self) -> None:
        self.done.append("kill")

    def wait(self) -> None:
        self.done.append("wait")


def test_what_a_program_has_started_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *asked: killed.append(asked))
    process: Any = Process()
    sediment_ext.systems.end_all(process)
    assert killed == [(4711, signal.SIGKILL)]
    assert process.done == ["kill", "wait"]


def test_what_a_program_has_started_ends_with_it_on_windows(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: killed.append(command))
    process: Any = Process()
    sediment_ext.systems.end_all(process)
    assert killed == [["taskkill", "/F", "/T", "/PID", "4711"]]
    assert process.done == ["kill", "wait"]


@pytest.mark.parametrize(
    ("system", "advice"), [("linux", "reinstall"), ("win32", r"Visual C\+\+ runtime")]
)
def test_a_library_that_cannot_be_loaded_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, system: str, advice: str
) -> None:
    encoder = sediment.Encoder(resident=False)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(sediment.ModelError, match=f"onnxruntime cannot be loaded .*{advice}"):
        encoder.embed("text")


# Times and texts


def test_any_time_has_a_date_whatever_the_system_knows() -> None:
    assert sediment.instant(-86_400).isoformat() == "1969-12-31T00:00:00+00:00"
    assert sediment.instant(0.5).isoformat() == "1970-01-01T00:00:00.500000+00:00"
    assert sediment.iso_time(10**18) == "9999-12-30T00:00:00+00:00"
    for seconds in (1e12, 1e300, float("nan")):
        with pytest.raises(ValueError, match=r"."):
            sediment.instant(seconds)


class Unknown(datetime):
    """A time that Windows has no local time for."""

    def astimezone(self, tz: Any = None) -> Any:
        raise OSError(errno.EINVAL, "Invalid argument")


def test_a_time_without_a_local_one_stands_in_utc() -> None:
    assert sediment.to_local(Unknown(1900, 1, 2)).isoformat() == "1900-01-02T00:00:00+00:00"
    told = sediment.to_local(Unknown(1900, 1, 2, tzinfo=UTC))
    assert told.isoformat() == "1900-01-02T00:00:00+00:00"
    assert sediment.to_local(datetime(2026, 1, 2, tzinfo=UTC)).tzinfo is not None


def test_a_command_line_is_quoted_as_the_shell_there_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["C:\\my files\\python.exe", "it's"]
    assert sediment.shell_line(words) == "'C:\\my files\\python.exe' 'it'\"'\"'s'"
    monkeypatch.setattr(sys, "platform", "win32")
    assert sediment.shell_line(words) == '"C:\\my files\\python.exe" it\'s'


def test_advice_names_a_project_as_the_shell_there_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advice() -> list[str]:
        with pytest.raises(NotFound) as told:
            here.forget("a")
        return [str(told.value).split("`")[1], here.review()["message"].split("`")[1]]

    with open_memory(tmp_path / "memory.db", project="here") as here:
        rows = [{"id": id, "content": id * 9, "project": "my project"} for id in "ab"]
        here.import_rows(rows)
        with here.database.transaction() as connection:
            sediment.queue_obsolete(connection, "b", [("a", 0.9)])
        assert advice() == ["--project 'my project'"] * 2
        monkeypatch.setattr(sys, "platform", "win32")
        assert advice() == ['--project "my project"'] * 2


def test_what_is_printed_is_utf_8_with_plain_newlines(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [io.BytesIO(), io.BytesIO()]  # as a Windows console's pipe has them
    out, err = (io.TextIOWrapper(one, encoding="cp1252", newline="\r\n") for one in streams)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "stdin", None)
    sediment.repair_streams()
    print("naïve → 日本\nnext\udcff")
    out.flush()
    assert streams[0].getvalue() == "naïve → 日本\nnext\\udcff\n".encode()
    assert sys.stdin.read() == ""


def test_warnings_of_products_without_a_fault_are_not_shown(recwarn: Any) -> None:
    import warnings

    sediment.ignore_false_alarms()
    warnings.warn("divide by zero encountered in matmul", RuntimeWarning, stacklevel=1)
    assert len(recwarn) == 0
    warnings.warn("divide by zero encountered in log", RuntimeWarning, stacklevel=1)
    assert len(recwarn) == 1


# The whole


def test_only_one_section_may_ask_which_system_this_is() -> None:
    asks = 'def {name}():\n    import fcntl\n    return sys.platform == "win32"\n\n'
    line = f"# {'-' * 93}\n"
    sections = ["Settings", "Systems", "Files"]
    text = "".join(f"{line}# {name}\n{line}" + asks.format(name=name.lower()) for name in sections)
    assert [what for _, what in Layout(text).faults()] == [
        "Settings uses fcntl",
        "Settings uses sys.platform",
        "Files uses fcntl",
        "Files uses sys.platform",
    ]


IMITATION = """
import json, os, pathlib, platform, shlex, shutil, signal, subprocess, sys, threading, types
import platformdirs, apsw, click, numpy, onnxruntime, tempfile, tokenizers, uuid, zipfile

symlink, ended = os.symlink, threading.Event()

def refuse(*_, **__):
    raise OSError(22, "a required privilege is not held by the client")

for module, names in LACKING:
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
sys.modules |= dict.fromkeys(NOT_EVERYWHERE)
os.symlink, subprocess.CREATE_NO_WINDOW = refuse, 0
platformdirs.user_data_path = lambda name, appauthor: pathlib.Path.home() / "AppData" / name
shutil.disk_usage = lambda _: types.SimpleNamespace(free=2**40)  # which has its own way there
sys.modules["msvcrt"] = types.SimpleNamespace(LK_LOCK=1, LK_NBLCK=2, locking=lambda *_: None)
sys.modules["_winapi"] = types.SimpleNamespace(
    OpenProcess=lambda *_: 1, CloseHandle=lambda _: None, CreateJunction=symlink,
    WaitForSingleObject=lambda _, wait: 0x102 if wait == 0 else ended.wait(),
)
sys.platform = "win32"
import sediment
for words in json.loads(sys.argv[1]):
    sys.argv = ["sediment", *words]
    code = sediment.main()
    print(f"\\0{code}\\0", flush=True)
"""


def imitate(folder: Path, commands: list[list[str]], input: str = "") -> list[str]:
    """What commands print, one after the other in a process that takes its system for Windows."""
    lacking = [(module.__name__, names) for module, names in LACKING.items()]
    code = f"LACKING, NOT_EVERYWHERE = {lacking!r}, {NOT_EVERYWHERE!r}\n{IMITATION}"
    env = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, json.dumps(commands)]
    options: Any = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(command, cwd=folder, env=env, input=input, **options)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.split("\0\n")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_nothing_that_windows_lacks_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    first = repository(folder)
    old = "- The parrot of the house by the sea is called Kasimir, and lives in the kitchen.\n"
    write(folder / "memory" / "2020-01-02.md", old)
    write(folder / "memory" / "1900-01-02.md", "- The tower of Monsieur Eiffel is new.\n")
    database = ["--db", str(tmp_path / "memory.db")]
    commands = {
        "store": ["store", "We deploy on Fridays, after the canary is green."],
        "note": ["note", "The token expires in March."],
        "index": ["index", "memory"],
        "recall": ["recall", "when may I release?"],
        "stats": ["stats", "--json"],
        "export": ["export", str(tmp_path / "all.jsonl")],
        "backup": ["backup", str(tmp_path / "copy.db")],
        "sync": ["sync", "--to", str(tmp_path / "place")],
        "share": ["sync", "--share"],
        "synced": ["sync"],
        "compact": ["compact", "memory", "--with", "echo Our parrot is called Kasimir."],
        "init": ["init", "--print"],
        "restore": ["restore", str(tmp_path / "copy.db")],
        "doctor": ["doctor"],
        "mended": ["doctor", "--repair"],
        "capture": ["hook", "--capture"],
        "serve": ["serve"],
    }
    started = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x"}}
    asked = {"name": "recall", "arguments": {"query": "token"}}
    lines: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": started},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": asked},
    ]
    wire = "".join(f"{json.dumps(line)}\n" for line in lines)
    words = [[*database, *one] for one in commands.values()]
    *told, served = imitate(folder, words, wire)
    done = dict(zip(commands, (one.split("\0")[0] for one in told), strict=False))
    assert [one.split("\0")[1] for one in told] == ["0"] * (len(commands) - 1)
    assert "Stored in project scope" in done["store"]
    assert "Added to memory/" in done["note"]
    assert "Indexed 3 files" in done["index"]
    assert "canary" in done["recall"]
    assert json.loads(done["stats"])["project"] == first
    assert (tmp_path / "all.jsonl").exists()
    assert (tmp_path / "copy.db").exists()
    assert "sent 1, received 0" in done["synced"]
    assert (folder / "memory" / "archive" / "2020-01-02.md").exists()
    assert '"command"' in done["init"]
    assert "Restored 1 memory" in done["restore"]
    assert "ok      model" in done["doctor"]
    assert [json.loads(line)["id"] for line in served.splitlines()] == [1, 2]
    assert "March" in served


# The bootstrap of the .pyz


@pytest.fixture
def bootstrap(tmp_path: Path, windows: Windows, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the bootstrap defines on Windows, with a small program to unpack."""
    payload = io.BytesIO()
    with zipfile.ZipFile(payload, "w") as files:
        files.writestr("models/all-MiniLM-L6-v2/manifest.json", '{"files": {}}')
    with zipfile.ZipFile(tmp_path / "sediment.pyz", "w") as pyz:
        pyz.writestr("payload.zip", payload.getvalue())
    for name in ("SEDIMENT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = build_zipapp.template()
    names |= {"PYZ": str(tmp_path / "sediment.pyz"), "DIGEST": "0" * 16}
    return names


def test_the_program_is_unpacked_on_windows(
    bootstrap: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "AppData" / "Local"))
    cache = tmp_path / "AppData" / "Local" / "sediment"
    assert bootstrap["fcntl"] is None
    assert bootstrap["UID"] == 0
    old = cache / ("1" * 16)
    old.mkdir(parents=True)
    new = cache / ("2" * 16)
    new.mkdir()
    os.utime(old, (0, 0))
    assert bootstrap["unpacked"]() == str(cache / ("0" * 16))
    assert (cache / ("0" * 16) / "models").is_dir()
    assert sorted(path.name for path in cache.iterdir()) == ["0" * 16, "2" * 16]  # one may be used
    assert bootstrap["unpacked"]() == str(cache / ("0" * 16))


def test_unpacking_waits_for_a_virus_scanner_on_windows(
    bootstrap: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, rename = [0], os.rename

    def refusing(folder: str, target: str) -> None:
        attempts[0] += 1
        if attempts[0] < 4:
            raise PermissionError(errno.EACCES, "in use")
        rename(folder, target)

    monkeypatch.setattr(os, "rename", refusing)
    assert Path(bootstrap["unpacked"]()).is_dir()
    assert attempts == [4]


@pytest.mark.parametrize(
    ("system", "variable", "folder"),
    [
        ("win32", "LOCALAPPDATA", "local"),
        ("win32", "XDG_CACHE_HOME", ".cache"),
        ("linux", "XDG_CACHE_HOME", "local"),
        ("darwin", "XDG_CACHE_HOME", "Library/Caches"),
    ],
)
def test_the_cache_is_where_the_system_has_it(
    bootstrap: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    variable: str,
    folder: str,
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setenv(variable, str(tmp_path / "local"))
    assert bootstrap["cache_root"]() == str(tmp_path / folder / "sediment")


def test_the_bootstrap_tells_its_machine_on_windows(
    bootstrap: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "uname")
    monkeypatch.setenv("PROCESSOR_ARCHITECTURE", "AMD64")
    monkeypatch.setattr(sys.implementation, "_multiarch", "", raising=False)
    told = bootstrap["this_python"]()
    assert told[2:] == ["win32", "AMD64", ""]


# What a report of a fault needs


def test_a_report_has_versions_system_model_and_file_but_nothing_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SEDIMENT_MAGIC", "open sesame")
    path = tmp_path / "memory.db"
    with open_memory(path) as memory:
        facts = memory.describe()
        assert facts["database"] == "~/memory.db, not there yet"
        assert not path.exists()
        memory.store("The token expires in March.")
        facts = memory.describe()
    assert facts["sediment"] == sediment.__version__
    assert facts["python"].startswith("CPython 3.")
    assert facts["database"].startswith("~/memory.db, ")
    newest = max(sediment.MIGRATIONS)
    assert facts["database"].endswith(f" bytes, schema {newest} of {newest}")
    assert facts["model"].startswith("all-MiniLM-L6-v2: texts stay here, ")
    assert "sqlite-vec v" in facts["sqlite"]
    assert "onnxruntime 1." in facts["libraries"]
    assert " CPUs, " in facts["system"]
    assert "SEDIMENT_MAGIC" in facts["set"]
    told = "\n".join(facts.values())
    assert "sesame" not in told
    assert str(tmp_path) not in told


def test_a_report_tells_what_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.db"
    path.write_bytes(b"no database" * 100)
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", "no-such-model")
    facts = sediment.Memory(path).describe()
    assert "is not a Sediment database" in facts["database"]
    assert "no-such-model" in facts["model"]

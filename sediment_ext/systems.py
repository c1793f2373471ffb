"""Systems, for the extensions: what differs between Linux, macOS and Windows."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import sediment as core

if TYPE_CHECKING:
    from subprocess import Popen

_SYNCHRONIZE, _WAIT_TIMEOUT = 0x100000, 0x102  # as Windows calls them
_PARENT_POLL = 2.0  # s between looks at whether the client still lives
_LOCKED_BYTE = 2**31 - 2  # beyond the end of any file here, since nobody else can read it


def end_all(process: Popen[Any]) -> None:
    """End a program that leads a session (start_new_session), and all that it has started."""
    import subprocess

    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
            subprocess.run(command, capture_output=True, **core.no_window())
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def limit_time(seconds: int) -> None:
    """End this process after a time, whatever it does."""
    timer = threading.Timer(seconds, os._exit, [0])
    timer.daemon = True
    timer.start()
    if sys.platform != "win32":  # works even while the timer's thread cannot run
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds + 5)


def lower_priority() -> None:
    """Let all other processes go first; not on Windows."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.nice(19)


def change_time(facts: os.stat_result) -> int:
    """When a file's contents or metadata last changed, in ns; on Windows when it was made."""
    if sys.platform == "win32":
        return getattr(facts, "st_birthtime_ns", facts.st_ctime_ns)
    return facts.st_ctime_ns


def mode_beyond(path: Path, allowed: int) -> int:
    """A file's mode if it has bits that are not in `allowed`; else, or on Windows, 0."""
    mode = path.stat().st_mode & 0o777
    return mode if mode & ~allowed and sys.platform != "win32" else 0


def open_plain(path: str, flags: int) -> int:
    """Open a file that was plain a moment ago; do not follow a link nor wait for a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def shell_words(line: str) -> list[str]:
    """The words of a line that `core.shell_line` made; [] if a quote in it is not closed."""
    windows = sys.platform == "win32"
    try:
        words = shlex.split(line.removeprefix("& "), posix=not windows)
    except ValueError:
        return []
    return [word.strip("\"'") for word in words] if windows else words


END_WELL = "; exit 0"  # behind a command line whose failure must not count, but in cmd.exe


def hook_handler(words: Sequence[str]) -> dict[str, Any]:
    """A hook for a client that takes argument lists and command lines: the latter, whose failure
    does not count, but on Windows, where such clients may have no shell."""
    if sys.platform == "win32":
        return {"command": words[0], "args": [*words[1:]]}
    return {"command": core.shell_line(words) + END_WELL}


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to read and to append to, locked against others who open it by this function."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "r+b", buffering=0) as file:
            lock_file(file)
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                yield file
                return


def start_beside(database: Path, *words: str, **options: Any) -> None:
    """Start this program on a database as a process that holds none of this one's pipes."""
    import subprocess

    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with contextlib.suppress(OSError):
        command = [*this_program(), "--db", str(database), *words]
        subprocess.Popen(command, **pipes, **core.no_window(), **options)


def lock_file(file: IO[bytes], wait: bool = True) -> bool:
    """Lock a file until it is closed; if another process has it, wait or return False."""
    if sys.platform == "win32":
        return _lock_byte(file.fileno(), wait)
    import fcntl

    with contextlib.suppress(BlockingIOError, PermissionError):
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return True
    return False


def _lock_byte(file: int, wait: bool) -> bool:
    """The same on Windows, which locks at the file's position, and waits for ten seconds only."""
    import msvcrt

    api: Any = msvcrt
    position = os.lseek(file, 0, os.SEEK_CUR)
    try:
        while True:
            os.lseek(file, _LOCKED_BYTE, os.SEEK_SET)
            try:
                api.locking(file, api.LK_LOCK if wait else api.LK_NBLCK, 1)
                return True
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EDEADLK):
                    raise
            if not wait:
                return False
    finally:
        os.lseek(file, position, os.SEEK_SET)


def this_program() -> list[str]:
    """How to start this very program, in absolute paths."""
    import zipfile

    program = Path(sys.argv[0]).resolve()
    # A .pyz may have been renamed to `sediment`; the .exe that pip makes is a zip file, too.
    if program.suffix == ".py" or (program.suffix != ".exe" and zipfile.is_zipfile(program)):
        return [sys.executable, str(program)]
    return [str(program)]


def folder_entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, sorted by name; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # it has just gone, or may not be read
        return []


def why_closed(folder: str | Path) -> str:
    """Why a folder cannot be listed; "" where it can, or is not there."""
    try:
        os.scandir(folder).close()
    except PermissionError as error:
        return f"cannot be read ({error.strerror})"
    except OSError:
        return ""
    return ""


def process_exists(pid: int) -> bool:
    """Whether a process may still be there."""
    try:
        if sys.platform == "win32":
            return not _has_ended(pid, 0)
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _has_ended(pid: int, milliseconds: int) -> bool:
    """Whether a process of Windows ends within this time; OSError if that cannot be known."""
    import _winapi

    api: Any = _winapi
    try:
        process = api.OpenProcess(_SYNCHRONIZE, False, pid)
    except PermissionError:
        raise
    except OSError:
        return True
    try:
        return api.WaitForSingleObject(process, milliseconds) != _WAIT_TIMEOUT
    finally:
        api.CloseHandle(process)


def end_with_parent() -> None:
    """End when the client is gone, even if another process still holds our stdin open."""
    parent = os.getppid()
    threading.Thread(target=lambda: _outlived(parent) and os._exit(0), daemon=True).start()


def _outlived(parent: int) -> bool:
    """Wait until the process that started this one has ended; False if that cannot be known."""
    if sys.platform == "win32":  # whose getppid does not change then
        with contextlib.suppress(OSError):
            return _has_ended(parent, 0xFFFFFFFF)
        return False
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL)
    return True


def write_through(file: int) -> None:
    """Wait until a file is on the disk itself; on macOS fsync ends when the disk's cache has it."""
    if sys.platform == "darwin":
        import fcntl

        with contextlib.suppress(OSError):  # not every disk takes this
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
    os.fsync(file)

"""Runs of the built program that do not each start Python and its libraries again.

Of a run's 0.15 to 0.5 s nearly all goes into importing. A warm process has imported what the
program imports, and forks for each run. Why that is faithful: the fork is a process of its own,
with the arguments, environment, folder, umask, pipes and exit code that a new one would have, and
it does what a new one does from the top: `__main__` of the .pyz checks this Python, finds and
locks the unpacked folder, and runs the program, which ends the process as it always does. The
modules come out of that folder, never out of the checkout. Before the fork no file of a user is
opened and no thread is started. Regular expressions are compiled and the bundled tokenizer is read,
which are the same in each run, and take longer than most of them.

Who asks for more (a preexec_fn, another stdin than a text, a variable that Python reads when it
starts, a cache of its own) gets a real start, and so does who tests starts: by
`start_pyz` in conftest.py. test_warm.py compares the two.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NoReturn

# The program first, which says how the others start; numpy before onnxruntime, as it does.
LIBRARIES = ("numpy", "onnxruntime", "tokenizers", "apsw", "platformdirs")
STANDARD = ("hashlib", "queue", "shutil", "subprocess", "tempfile", "uuid", "zipfile")
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENBLAS_", "OMP_")
OPTIONS = {"capture_output", "text", "timeout", "cwd"}
REQUEST_MAX = 100_000  # bytes; the system takes no longer argument either


class Process:
    """A run, seen from outside: as much of `Popen` as the tests use."""

    def __init__(self, control: socket.socket, request: bytes, log: int | None) -> None:
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (stdin, feed), (out, stdout) = os.pipe(), os.pipe()
        err, stderr = os.pipe() if log is None else (None, os.dup(log))
        given = [theirs.detach(), stdin, stdout, stderr]
        socket.send_fds(control, [request], given)
        for descriptor in given:
            os.close(descriptor)
        self.stdin, self.stdout = open(feed, "wb"), open(out, "rb")  # noqa: SIM115
        self.stderr = None if err is None else open(err, "rb")  # noqa: SIM115
        self.returncode: int | None = None
        self.pid = int(self._told.recv(100))

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = int(self._told.recv(100))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self._told.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: bytes, timeout: float) -> list[bytes]:
        """What it wrote to stdout and to stderr."""
        assert self.stderr
        end = time.monotonic() + timeout
        timer = threading.Timer(timeout, os.kill, [self.pid, signal.SIGKILL])
        timer.start()
        told = [_READERS.submit(_read, stream) for stream in (self.stdout, self.stderr)]
        with contextlib.suppress(BrokenPipeError), self.stdin as stdin:
            stdin.write(input)
        code = self.wait()
        timer.cancel()
        if code == -signal.SIGKILL and time.monotonic() >= end:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return [one.result() for one in told]


_READERS = ThreadPoolExecutor(8)


def _read(stream: IO[bytes]) -> bytes:
    with stream:
        return stream.read()


class Warm:
    """The warm process of one pytest worker, seen from outside."""

    def __init__(self, pyz: Path, cache: Path) -> None:
        self.pyz, self.cache = str(pyz), str(cache)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, self.pyz, str(theirs.fileno())],
                stdin=subprocess.PIPE,  # of the kind that a run will find in its place
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"PATH": os.environ["PATH"], "SEDIMENT_CACHE": self.cache},
                pass_fds=[theirs.fileno()],
            )
        if not self._control.recv(100):
            raise RuntimeError(self._process.communicate()[1].decode())

    def close(self) -> None:
        """End the process."""
        self._control.close()
        self._process.communicate()

    def start(
        self, args: Sequence[str], env: dict[str, str], cwd: Any, log: int | None = None
    ) -> Process | None:
        """A process; None if only a real start gives what is asked. A log is for its stderr."""
        folder = os.path.abspath(cwd or ".")
        request = json.dumps([args, env, folder, _umask()], default=os.fsdecode).encode()
        possible = (
            env.get("SEDIMENT_CACHE") == self.cache
            and not any(name.startswith(READ_AT_START) for name in env)
            and os.path.isdir(folder)
            and len(request) <= REQUEST_MAX
        )
        return Process(self._control, request, log) if possible else None

    def run(
        self, args: Sequence[str], input: Any, env: dict[str, str], **options: Any
    ) -> subprocess.CompletedProcess[Any] | None:
        """As `subprocess.run` of the program; None if only a real start gives what is asked."""
        text = options.get("text")
        possible = (
            options.keys() <= OPTIONS
            and options.get("capture_output")
            and isinstance(input, str if text else bytes)
        )
        if not possible or not (process := self.start(args, env, options.get("cwd"))):
            return None
        data = input.encode() if isinstance(input, str) else input
        told: list[Any] = process.communicate(data, options["timeout"])
        if text:
            told = [io.TextIOWrapper(io.BytesIO(raw)).read() for raw in told]
        return subprocess.CompletedProcess([self.pyz, *args], process.wait(), *told)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def warm_up(pyz: str) -> dict[str, str]:
    """Import all out of the unpacked .pyz; gives what that put into the environment."""
    given = dict(os.environ)
    folder = runpy.run_path(pyz, run_name="bootstrap")["unpacked"]()
    sys.path[0] = folder  # as the bootstrap does
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    for name in ("sediment", *STANDARD, *LIBRARIES):
        importlib.import_module(name)
    program: Any = sys.modules["sediment"]
    assert os.path.dirname(program.__file__) == folder
    read_patterns(program)
    keep_tokenizer(program)
    assert len(os.listdir("/proc/self/task")) == 1  # a fork would leave all others behind
    del sys.path[0]
    gc.freeze()  # pages that no collection writes to stay shared
    return {name: os.environ[name] for name in os.environ.keys() - given.keys()}


def read_patterns(program: Any) -> None:
    """Have `re` remember each pattern of the core, which is compiled at its first use otherwise,
    and read the asset that takes longest."""
    program.languages_of()
    patterns = [one for one in gc.get_objects() if isinstance(one, program.LazyPattern)]
    for pattern in patterns:
        assert pattern.pattern is not None
    assert len(re._cache) < re._MAXCACHE  # type: ignore[attr-defined]  # none was dropped again


def keep_tokenizer(program: Any) -> None:
    """Let a run that reads the bundled model's tokenizer have what was read before the fork."""
    library: Any = sys.modules["tokenizers"]
    read, path = library.Tokenizer.from_file, str(program.model_dir() / "tokenizer.json")
    kept, stamp = read(path), os.stat(path).st_mtime_ns

    class Tokenizer:
        @staticmethod
        def from_file(asked: str) -> Any:
            return kept if (asked, os.stat(asked).st_mtime_ns) == (path, stamp) else read(asked)

    library.Tokenizer = Tokenizer


def fork_for_each(control: socket.socket, added: dict[str, str]) -> list[str]:
    """Take requests until there are no more; returns in each run, with its arguments.

    Between this process and a run stands one that waits for its end, so that this one need not.
    """
    control.send(b"ready")
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, REQUEST_MAX, 4)
        if not request:
            os._exit(0)
        if not os.fork():
            break
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    told, *streams = descriptors
    if pid := os.fork():
        attend(pid, socket.socket(fileno=told), streams)
    return become(streams, added, *json.loads(request))


def attend(pid: int, told: socket.socket, streams: list[int]) -> NoReturn:
    """Tell who asked for a run which process it is, and its exit code when it has ended."""
    for descriptor in streams:
        os.close(descriptor)
    told.send(str(pid).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        told.send(str(code).encode())
    os._exit(0)


def become(
    streams: list[int], added: dict[str, str], args: list[str], env: dict[str, str], *place: Any
) -> list[str]:
    """Make this fork what a new process would be."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, 1_000)
    folder, umask = place
    os.chdir(folder)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(env | added)
    time.tzset()
    return args


def main() -> None:
    pyz, descriptor = sys.argv[1:]
    added = warm_up(pyz)
    sys.argv[1:] = fork_for_each(socket.socket(fileno=int(descriptor)), added)
    runpy.run_path(pyz, run_name="__main__")


if __name__ == "__main__":
    main()

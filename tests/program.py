"""The command line as people and scripts use it: arguments in; output, errors and codes out."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Done = subprocess.CompletedProcess
Run = Callable[..., Done[Any]]

IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
SETTINGS = ("-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always")

ENOUGH = 3  # s of work: less than 1 on a busy machine, and many where a pattern looks twice


@contextlib.contextmanager
def in_one_look() -> Iterator[None]:
    """What is done inside reads each letter of an endless text a few times, not once for each."""
    start = time.process_time()
    yield
    assert time.process_time() - start < ENOUGH


class Program:
    """The program, run in one folder with one home."""

    def __init__(self, run: Run, folder: Path, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        self._run, self.folder, self.env = run, folder, env

    def at(self, folder: Path) -> Program:
        """The same program and home in another folder."""
        return Program(self._run, folder, **self.env)

    def run(self, *args: str, env: dict[str, str] | None = None, **options: Any) -> Done[Any]:
        options = {"cwd": self.folder, **options}
        return self._run(*args, env={**self.env, **(env or {})}, **options)

    def ok(self, *args: str, **options: Any) -> str:
        """What it prints when all is well, with nothing on stderr."""
        done = self.run(*args, **options)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def json(self, *args: str, **options: Any) -> dict[str, Any]:
        return json.loads(self.ok("--json", *args, **options))

    def error(self, *args: str, code: int = 1, **options: Any) -> str:
        """The one line that it prints when it can't do what it was asked."""
        done = self.run(*args, **options)
        assert (done.returncode, done.stdout) == (code, ""), done
        return one_line(done.stderr)

    def store(self, text: str, *args: str, **options: Any) -> str:
        """The id of a new item."""
        return self.json("store", text, *args, **options)["id"]

    def contents(self, *args: str, **options: Any) -> set[str]:
        return {item["content"] for item in self.json("list", *args, **options)["items"]}

    def project(self, *args: str, **options: Any) -> str | None:
        return self.json(*args, "stats", **options)["project"]


def one_line(stderr: str) -> str:
    """An error as it must look: one line, and no traceback."""
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("Error: "), stderr
    return lines[0]


def files(folder: Path) -> set[str]:
    """Everything under a folder, by relative path."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def git(folder: Path, *words: str) -> str:
    """Run git untouched by this machine's settings."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C"}
    command = ["git", "-C", str(folder), *IDENTITY, *SETTINGS, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def repository(folder: Path, commits: int = 1, day: int = 1) -> str:
    """Make a git repository; returns the id of its first commit."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "-q")
    for number in range(commits):
        commit(folder, f"{folder.name} {number}", day)
    return first_commit(folder)


def commit(folder: Path, message: str, day: int = 1) -> None:
    date = f"2024-01-{day:02d}T12:00:00"
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_COMMITTER_DATE": date}
    command = ["git", "-C", str(folder), *IDENTITY, "commit", "-q", "--allow-empty", "-m", message]
    subprocess.run(command, env=env, check=True)


def first_commit(folder: Path) -> str:
    return git(folder, "rev-list", "--max-parents=0", "HEAD").strip()


def heed_permissions() -> None:
    """For a child process: root, too, may only do what a file's permissions say."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            assert libc.prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP

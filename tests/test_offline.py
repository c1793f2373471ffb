"""Offline and silent: no socket to anywhere, and no file where none is expected."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SESSION = (
    {"method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": {}}},
    {"method": "tools/list"},
    {"method": "tools/call", "params": {"name": "store", "arguments": {"content": "tea at four"}}},
    {"method": "tools/call", "params": {"name": "recall", "arguments": {"query": "a hot drink"}}},
)
LINES = "".join(
    json.dumps({"jsonrpc": "2.0", "id": id, **message}) + "\n" for id, message in enumerate(SESSION)
)
COMMANDS = (
    (["store", "We deploy on Fridays."], ""),
    (["recall", "when can I release?"], ""),
    (["serve"], LINES),
)
CREATING = re.compile(r"^\d+ +(?:open\w*\(.*O_CREAT|creat\(|mkdir|mknod|link|symlink|rename|bind)")
TRACED = "trace=network,open,openat,creat,/^mkdir,/^mknod,/^link,/^symlink,/^rename"


def usable(*command: str) -> bool:
    """Whether the machine has a tool, and allows it."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True).returncode == 0


needs_strace = pytest.mark.skipif(not usable("strace", "true"), reason="strace is not here")
needs_unshare = pytest.mark.skipif(not usable("unshare", "-rn", "true"), reason="no unshare -rn")


class Place:
    """A new user: an empty home, temporary folder and project."""

    def __init__(self, pyz: Path, folder: Path) -> None:
        self.pyz, self.folder = pyz, folder
        self.home, self.tmp, self.project = (folder / name for name in ("home", "tmp", "project"))
        for made in (self.home, self.tmp, self.project):
            made.mkdir()
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.tmp)}

    def run(self, words: list[str], input: str, *wrapper: str) -> str:
        command = [*wrapper, sys.executable, str(self.pyz), *words]
        options: dict[str, Any] = {"cwd": self.project, "env": self.env, "timeout": 300}
        done = subprocess.run(command, input=input, capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def everything(self, *wrapper: str) -> None:
        """Store and recall in the shell and through a server; see that it works."""
        stored, recalled, served = (self.run(*command, *wrapper) for command in COMMANDS)
        assert "Stored" in stored
        assert "We deploy on Fridays." in recalled
        answers = [json.loads(line) for line in served.splitlines()]
        assert [answer["id"] for answer in answers] == [0, 1, 2, 3]
        assert "tea at four" in json.dumps(answers[3]["result"])

    def expected(self) -> list[Path]:
        """The folders that may be written to."""
        data, cache = self.home / ".local/share/sediment", self.home / ".cache/sediment"
        if sys.platform == "darwin":
            data = self.home / "Library/Application Support/sediment"
            cache = self.home / "Library/Caches/sediment"
        return [data, cache, self.project / ".sediment"]


@pytest.fixture(scope="module")
def traced(pyz: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, str]]:
    """A place where everything was done, and every call of the kernel that matters here."""
    place = Place(pyz, tmp_path_factory.mktemp("traced"))
    log = place.folder / "strace.log"
    place.everything("strace", "-f", "-qq", "-A", "-s", "4096", "-o", str(log), "-e", TRACED)
    yield place, log.read_text("utf-8", "replace")
    shutil.rmtree(place.folder)


@needs_strace
def test_no_socket_reaches_the_network(traced: tuple[Place, str]) -> None:
    _, log = traced
    assert "memory.db" in log, "nothing was seen"
    assert not re.findall(r".*AF_INET.*|.*AF_NETLINK.*|.*AF_PACKET.*", log)


@needs_strace
def test_only_expected_files_are_made(traced: tuple[Place, str]) -> None:
    place, log = traced
    allowed = (*map(str, place.expected()), "/dev/", "/proc/")
    parents = {str(parent) for path in place.expected() for parent in path.parents}
    calls = [line for line in log.splitlines() if CREATING.match(line) and " = -1 " not in line]
    assert any("memory.db" in call for call in calls), "nothing was seen"
    for call in calls:
        *_, path = re.findall(r'"([^"]+)"', call) or [""]
        assert path.startswith(allowed) or path in parents, call


def test_what_is_on_the_disk_afterwards(pyz: Path, tmp_path: Path) -> None:
    place = Place(pyz, tmp_path)
    place.everything()
    expected = place.expected()
    made = {path for top in (place.home, place.tmp, place.project) for path in top.rglob("*")}
    assert place.expected()[0] / "memory.db" in made
    strange = [
        path
        for path in made
        if not any(path.is_relative_to(ours) or ours.is_relative_to(path) for ours in expected)
    ]
    assert strange == []
    shutil.rmtree(place.home)


@needs_unshare
def test_it_works_without_a_network(pyz: Path, tmp_path: Path) -> None:
    place = Place(pyz, tmp_path)
    place.everything("unshare", "-rn")
    shutil.rmtree(place.home)

"""What several test files share."""

import sys

# Each worker compiles hypothesis and 5,000 asserts anew, for 10 s, unless it may keep that.
sys.dont_write_bytecode = False

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from storage import consistent, open_memory
from sync_machines import Place
from warm import Warm
from wire import PYZ

from sediment import Memory

settings.register_profile("suite", deadline=None, max_examples=50)  # machines are noisy
settings.load_profile("suite")

ROOT = Path(__file__).resolve().parent.parent
MEMORY = Path("/dev/shm")  # a disk in memory, which Linux has
ROOM = 4 * 2**30  # bytes; the tests of two workers need less than one
Run = Callable[..., subprocess.CompletedProcess[str]]


def has_room(folder: Path) -> bool:
    """Whether tests can work in this folder, and run programs from it."""
    usable = folder.is_dir() and os.access(folder, os.W_OK) and os.name == "posix"
    usable = usable and shutil.disk_usage(folder).free > ROOM
    return usable and not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)


# Each change that is stored waits for the disk, a third of all the time, and no test looks at what
# a disk keeps when the power goes. TMPDIR chooses another place.
if has_room(MEMORY):
    os.environ.setdefault("TMPDIR", str(MEMORY))
    tempfile.tempdir = None  # which was settled by an import


@pytest.fixture(scope="session")
def pyz() -> Path:
    """The built program."""
    path = Path(PYZ).resolve()
    if not path.is_file():
        pytest.fail(f"{path} is missing: build it with `make`")
    return path


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that all tests of a run share, so that the program is unpacked once."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def warm(pyz: Path, unpacked: Path) -> Iterator[Warm]:
    """A process that has imported the program, and forks for each run."""
    warm = Warm(pyz, unpacked)
    yield warm
    warm.close()


def runner(pyz: Path, unpacked: Path, home: Path, warm: Warm | None) -> Run:
    """Run the program in a home folder of its own: `run("--version", input="", env={})`."""

    def run(*args: str, input: str = "", env: dict[str, str] | None = None, **options):
        env = {"HOME": str(home), "SEDIMENT_CACHE": str(unpacked), **(env or {})}
        env = {"PATH": os.environ["PATH"], **env}
        options = {"capture_output": True, "text": True, "timeout": 120, **options}
        if warm and (done := warm.run(args, input, env, **options)):
            return done
        return subprocess.run([sys.executable, str(pyz), *args], input=input, env=env, **options)

    return run


@pytest.fixture
def run_pyz(pyz: Path, unpacked: Path, tmp_path: Path, warm: Warm) -> Run:
    """The program, run by the warm process where that can give what is asked."""
    return runner(pyz, unpacked, tmp_path, warm)


@pytest.fixture
def start_pyz(pyz: Path, unpacked: Path, tmp_path: Path) -> Run:
    """The program, always started anew."""
    return runner(pyz, unpacked, tmp_path, None)


@contextlib.contextmanager
def local_time_of(zone: str) -> Iterator[None]:
    """Local time is that of a zone, wherever this machine stands."""
    with pytest.MonkeyPatch.context() as context:
        context.setenv("TZ", zone)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def utc() -> Iterator[None]:
    with local_time_of("UTC"):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test keeps its database."""
    return tmp_path / "memory.db"


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    """A memory seen from the project "demo"; its tables must agree when the test ends."""
    with open_memory(path) as memory:
        yield memory
        if path.exists():
            consistent(memory)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A folder through which machines sync; the tables of each must agree when the test ends."""
    place = Place(tmp_path)
    yield place
    for memory in place.all:
        consistent(memory)
        memory.close()


@pytest.fixture
def no_clients(tmp_path: Path) -> str:
    """A PATH without the clients that this machine may have."""
    folder = tmp_path / "only-git"
    folder.mkdir()
    (folder / "git").symlink_to(shutil.which("git") or "/usr/bin/git")
    return str(folder)

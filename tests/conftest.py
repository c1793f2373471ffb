"""What several test files share."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from storage import consistent, open_memory

from sediment import Memory

settings.register_profile("untimed", deadline=None)  # machines are noisy
settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def pyz() -> Path:
    """The built program."""
    path = Path(os.environ.get("SEDIMENT_PYZ") or ROOT / "dist" / "sediment.pyz").resolve()
    if not path.is_file():
        pytest.fail(f"{path} is missing: build it with `make`")
    return path


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of one worker share, so that the program is unpacked once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run_pyz(pyz: Path, unpacked: Path, tmp_path: Path) -> Run:
    """Run the program in a home folder of its own: `run_pyz("--version", input="", env={})`."""

    def run(*args: str, input: str = "", env: dict[str, str] | None = None, **options):
        clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEDIMENT_CACHE": str(unpacked)}
        options = {"capture_output": True, "text": True, "timeout": 120, **options}
        command = [sys.executable, str(pyz), *args]
        return subprocess.run(command, input=input, env={**clean, **(env or {})}, **options)

    return run


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
def no_clients(tmp_path: Path) -> str:
    """A PATH without the clients that this machine may have."""
    folder = tmp_path / "only-git"
    folder.mkdir()
    (folder / "git").symlink_to(shutil.which("git") or "/usr/bin/git")
    return str(folder)

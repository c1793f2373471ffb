"""The .pyz starts everywhere it can, and says in one line why where it cannot."""

import ast
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

VERSION = re.compile(r".*\d+\.\d+\.\d+.*\n")


class Place:
    """A fresh home and temporary folder, and the program run in it."""

    def __init__(self, pyz: Path, folder: Path) -> None:
        self.pyz, self.home, self.tmp = pyz, folder / "home", folder / "tmp"
        self.home.mkdir()
        self.tmp.mkdir(0o700)
        self.cache = self.home / ".cache" / "sediment"
        if sys.platform == "darwin":
            self.cache = self.home / "Library" / "Caches" / "sediment"
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.tmp)}

    def start(self, *args: str, pyz: Path | None = None, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        command = [sys.executable, *args, str(pyz or self.pyz), "--version"]
        return subprocess.Popen(command, env=self.env, **options)

    def run(self, *args: str, pyz: Path | None = None, **options: Any) -> tuple[int, str, str]:
        process = self.start(*args, pyz=pyz, **options)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def unpacked(self, root: Path | None = None) -> list[str]:
        return sorted(file.name for file in (root or self.cache).iterdir())


@pytest.fixture
def whole(pyz: Path, tmp_path: Path) -> Place:
    return Place(pyz, tmp_path)


@pytest.fixture(scope="session")
def light(pyz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program without the model and the packages that it starts without: it unpacks at once,
    and its bootstrap is the same."""
    payload = BytesIO()
    with zipfile.ZipFile(pyz) as source, zipfile.ZipFile(payload, "w") as kept:
        files = zipfile.ZipFile(BytesIO(source.read("payload.zip")))
        for name in files.namelist():
            if name.startswith(("sediment.py", "__pycache__", "click", "platformdirs")):
                kept.writestr(name, files.read(name))
        kept.writestr("models/all-MiniLM-L6-v2/manifest.json", '{"files": {}}')
    target = tmp_path_factory.mktemp("light") / "sediment.pyz"
    return rebuilt(pyz, target, "DIGEST", "DIGEST", payload.getvalue())


@pytest.fixture
def place(light: Path, tmp_path: Path) -> Place:
    return Place(light, tmp_path)


def rebuilt(pyz: Path, target: Path, old: str, new: str, payload: bytes | None = None) -> Path:
    """A copy of the .pyz with a change in its bootstrap, or with another payload."""
    with zipfile.ZipFile(pyz) as source, zipfile.ZipFile(target, "w") as copy:
        bootstrap = source.read("__main__.py").decode()
        assert re.search(old, bootstrap)
        copy.writestr("__main__.py", re.sub(old, new, bootstrap))
        copy.writestr("payload.zip", source.read("payload.zip") if payload is None else payload)
    return target


def newer(place: Place) -> Path:
    """The same program as another version."""
    return rebuilt(place.pyz, place.tmp / "newer.pyz", 'DIGEST = ".*"', f'DIGEST = "{"0" * 16}"')


@contextmanager
def running(place: Place) -> Iterator[None]:
    """A process that runs the program for as long as the block lasts."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['unpacked'](); print(); input()"
    command = [sys.executable, "-c", code, str(place.pyz)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=place.env, text=True, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    try:
        yield
    finally:
        process.communicate("\n", timeout=30)


def assert_starts(result: tuple[int, str, str]) -> None:
    code, out, err = result
    assert (code, err) == (0, "")
    assert VERSION.fullmatch(out)


def assert_one_line(result: tuple[int, str, str], pattern: str) -> None:
    """It ends with one line that says why."""
    code, out, err = result
    assert (code, out) == (1, "")
    assert re.fullmatch(f"sediment: .*{pattern}.*\n", err)


def assert_falls_back(result: tuple[int, str, str], pattern: str) -> None:
    """It works, and one line says that another folder is used."""
    code, out, err = result
    assert code == 0
    assert VERSION.fullmatch(out)
    assert re.fullmatch(f"sediment: cannot use .*{pattern}.*SEDIMENT_CACHE.*\n", err)


def test_it_is_an_executable_file(whole: Place) -> None:
    assert os.access(whole.pyz, os.X_OK)
    assert whole.pyz.open("rb").readline() == b"#!/usr/bin/env python3\n"


def test_first_run_unpacks_into_private_folders(place: Place) -> None:
    assert_starts(place.run(umask=0))
    folders = [place.cache, *(path for path in place.cache.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert len(place.unpacked()) == 1


def test_later_runs_do_not_touch_the_archive(place: Place) -> None:
    assert_starts(place.run())
    before = place.cache.stat().st_mtime_ns
    code, _, err = place.run("-I", "-S", "-X", "importtime")
    assert code == 0
    assert not re.search(r"\| +zipfile\n", err)
    assert place.cache.stat().st_mtime_ns == before


@pytest.mark.parametrize("flag", ["-I", "-P", "-S", "-O"])
def test_it_runs_with_interpreter_flags(place: Place, flag: str) -> None:
    assert_starts(place.run(flag))


def test_first_runs_at_once(place: Place) -> None:
    processes = [place.start() for _ in range(3)]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert_starts((process.returncode, out, err))
    assert len(place.unpacked()) == 1


def test_a_killed_first_run_leaves_nothing_behind(whole: Place) -> None:
    killed = "import os; sys.addaudithook(lambda event, given: event == 'open'"
    killed += " and '/numpy/' in str(given[0]) and os.kill(os.getpid(), 9))"
    assert run_after(whole, killed) == (-9, "", "")
    assert list(whole.cache.glob("tmp-*/numpy"))
    assert_starts(whole.run())
    assert [name for name in whole.unpacked() if name.startswith("tmp-")] == []


def test_a_new_version_removes_the_old_one_once_it_is_idle(place: Place) -> None:
    with running(place):
        (old,) = place.unpacked()
        assert_starts(place.run(pyz=newer(place)))
        assert place.unpacked() == sorted([old, "0" * 16])
        assert_starts(place.run())  # the old one still works
    shutil.rmtree(place.cache / ("0" * 16))
    assert_starts(place.run(pyz=newer(place)))
    assert place.unpacked() == ["0" * 16]
    assert_starts(place.run())  # and comes back when it is asked for
    assert place.unpacked() == [old]


def test_other_files_in_the_cache_are_left_alone(place: Place) -> None:
    place.cache.mkdir(0o700, parents=True)
    (place.cache / "memory.db").write_text("mine")
    (place.cache / "notes").mkdir()
    assert_starts(place.run())
    assert {"memory.db", "notes"} < set(place.unpacked())


def test_the_cache_can_be_chosen(place: Place) -> None:
    place.env["XDG_CACHE_HOME"] = "relative is to be ignored"
    place.env["SEDIMENT_CACHE"] = str(place.tmp / "chosen")
    assert_starts(place.run())
    assert len(place.unpacked(place.tmp / "chosen" / "sediment")) == 1
    assert not place.cache.exists()


def test_unusable_cache(place: Place) -> None:
    place.cache.parent.write_text("a file where the folder should be")
    assert_falls_back(place.run(), "Not a directory")
    (root,) = place.tmp.glob("sediment-*")
    before = (root / place.unpacked(root)[0]).stat().st_ino
    assert_falls_back(place.run(), "Not a directory")
    assert (root / place.unpacked(root)[0]).stat().st_ino == before


def test_cache_that_others_can_write_to(place: Place) -> None:
    place.cache.mkdir(parents=True)
    place.cache.chmod(0o777)
    assert_falls_back(place.run(), "others can write to it")


def test_no_home_folder(place: Place) -> None:
    place.env["HOME"] = str(place.home / "missing")
    assert_falls_back(place.run(), "there is no home folder")
    assert not (place.home / "missing").exists()


def test_fallback_taken_by_somebody_else(place: Place) -> None:
    place.env["HOME"] = str(place.home / "missing")
    trap = place.tmp / f"sediment-{os.getuid()}"
    trap.symlink_to(place.home)
    assert_falls_back(place.run(), "there is no home folder")
    assert place.unpacked(place.home) == []
    assert place.unpacked(place.tmp) == [trap.name]


def test_nowhere_to_unpack(place: Place) -> None:
    place.env["SEDIMENT_CACHE"] = place.env["TMPDIR"] = str(place.pyz)
    limit = "import tempfile; tempfile.tempdir = sys.argv[0]"
    assert_one_line(run_after(place, limit), "Not a directory.* nor .*Not a directory")


def test_full_disk(whole: Place) -> None:
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (10**6, 10**6))"
    assert_one_line(run_after(whole, limit), "cannot unpack to .*File too large")
    assert whole.unpacked() == []


def run_after(place: Place, code: str) -> tuple[int, str, str]:
    """Run the program in an interpreter that has run the code."""
    code = (
        f"import runpy, sys; del sys.argv[0]; {code}; runpy.run_path(sys.argv[0], None, '__main__')"
    )
    command = [sys.executable, "-c", code, str(place.pyz), "--version"]
    result = subprocess.run(command, env=place.env, capture_output=True, text=True, timeout=120)
    return result.returncode, result.stdout, result.stderr


def test_damaged_payload(place: Place) -> None:
    damaged = place.tmp / "damaged.pyz"
    data = bytearray(place.pyz.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)
    assert_one_line(place.run(pyz=damaged), "is damaged")
    truncated = rebuilt(place.pyz, place.tmp / "cut.pyz", "DIGEST", "DIGEST", bytes(data[: 10**6]))
    assert_one_line(place.run(pyz=truncated), "is damaged")
    assert place.unpacked() == []


def test_damaged_model(whole: Place) -> None:
    payload = BytesIO()
    with (
        zipfile.ZipFile(whole.pyz) as pyz,
        zipfile.ZipFile(pyz.open("payload.zip")) as source,
        zipfile.ZipFile(payload, "w") as copy,
    ):
        for name in source.namelist():
            if name.startswith("models/"):
                copy.writestr(name, source.read(name) + b"x" * name.endswith("tokenizer.json"))
    bad = rebuilt(whole.pyz, whole.tmp / "bad.pyz", "DIGEST", "DIGEST", payload.getvalue())
    assert_one_line(whole.run(pyz=bad), "wrong sha256 of tokenizer.json")
    assert whole.unpacked() == []


def test_damaged_unpacked_folder(place: Place) -> None:
    assert_starts(place.run())
    (folder,) = place.cache.iterdir()
    (folder / "sediment.py").unlink()
    assert_one_line(place.run(), "delete it and try again")
    (folder / ".lock").unlink()
    assert_one_line(place.run(), "delete it and try again")


def test_a_part_that_is_gone_from_the_cache_is_named(run_pyz: Run, tmp_path: Path) -> None:
    env = {"SEDIMENT_CACHE": str(tmp_path / "cache"), "SEDIMENT_DB": str(tmp_path / "memory.db")}
    assert run_pyz("store", "A fact.", env=env).returncode == 0
    (folder,) = (tmp_path / "cache").glob("sediment/*/numpy")
    shutil.rmtree(folder / "linalg")
    done = run_pyz("recall", "a fact", env=env)
    told = rf"Error: .* \(.*\): delete {folder.parent} and run again, or reinstall\n"
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(told, done.stderr)


@pytest.mark.parametrize("library", ["onnxruntime/capi", "tokenizers/tokenizers.*"])
def test_the_doctor_misses_a_library_that_is_gone(
    run_pyz: Run, tmp_path: Path, library: str
) -> None:
    env = {"SEDIMENT_CACHE": "~/cache", "HOME": str(tmp_path)}
    assert run_pyz("store", "A fact.", env=env).returncode == 0
    (part,) = (tmp_path / "cache").glob(f"sediment/*/{library}")
    part.rename(tmp_path / "gone")
    done = run_pyz("doctor", env=env)
    assert done.returncode == 1
    advice = f"delete {part.parent.parent} and run again"
    assert re.search(rf"{part.parent.name} cannot be loaded .*: {advice}", done.stdout)
    assert "Traceback" not in run_pyz("doctor", "--report", env=env).stderr
    assert advice in run_pyz("recall", "a fact", env=env).stderr


@pytest.mark.parametrize("name", ["model.onnx", "manifest.json"])
def test_a_damaged_model_in_the_cache_is_unpacked_again(
    run_pyz: Run, tmp_path: Path, name: str
) -> None:
    env = {"SEDIMENT_CACHE": str(tmp_path / "cache")}

    def doctor(*words: str) -> tuple[int, str]:
        done = run_pyz("doctor", *words, env=env)
        assert done.stderr == ""
        return done.returncode, done.stdout

    assert doctor()[0] == 0
    (file,) = (tmp_path / "cache").glob(f"sediment/*/models/*/{name}")
    with open(file, "ab") as damaged:
        damaged.write(b"junk")
    code, told = doctor()
    assert code == 1
    assert "broken  model: " in told
    assert doctor("--repair") == (0, "Unpacked the model again.\n")
    assert doctor()[0] == 0
    assert doctor("--repair") == (0, "Nothing is broken.\n")


def test_wrong_python(place: Place) -> None:
    other = rebuilt(place.pyz, place.tmp / "other.pyz", r"'3\.\d+', ", "'3.99', ")
    assert_one_line(place.run(pyz=other), r"run it with python3\.99, or rebuild .* make PYTHON=/")


def test_wrong_platform(place: Place) -> None:
    system = sys.platform
    other = rebuilt(place.pyz, place.tmp / "other.pyz", f"'{system}', ", "'plan9', ")
    assert_one_line(place.run(pyz=other), r"built for .* plan9 .* it cannot run here")


def test_bootstrap_can_be_parsed_by_old_pythons(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        assert archive.namelist() == ["__main__.pyc", "__main__.py", "payload.zip"]
        source = archive.read("__main__.py").decode("ascii")
    tree = ast.parse(source, feature_version=(3, 4))
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Starred, ast.Nonlocal)
    assert not any(isinstance(node, newer) for node in ast.walk(tree))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert not any(node.returns or node.args.kwonlyargs for node in functions)


def test_nothing_names_the_machine_it_was_built_on(place: Place) -> None:
    assert_starts(place.run())
    for file in place.cache.rglob("*.pyc"):
        assert str(Path.home()).encode() not in file.read_bytes()
        assert str(place.pyz.parent.parent).encode() not in file.read_bytes()

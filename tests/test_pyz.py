"""The .pyz starts everywhere it can, and says in one line why where it cannot."""

import ast
import os
import re
import runpy
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
from wire import Wire, small_env

MODEL = "all-MiniLM-L6-v2"
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


@pytest.mark.parametrize(
    "part",
    ["sediment.py", "__pycache__", "click", "click/__init__.py", "click/core.py", ".lock", ""],
)
def test_a_part_that_is_gone_is_unpacked_again(place: Place, part: str) -> None:
    assert_starts(place.run("-I", "-S"))
    (folder,) = place.cache.iterdir()
    path = folder / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert_starts(place.run("-I", "-S"))
    assert path.exists()
    assert place.unpacked() == [folder.name]


def test_a_damaged_module_is_unpacked_again(place: Place) -> None:
    assert_starts(place.run())
    (folder,) = place.cache.iterdir()
    shutil.rmtree(folder / "__pycache__")
    (folder / "sediment.py").write_text("import click\nraise SystemError\n")
    assert_starts(place.run())


def test_nothing_is_restored_by_another_version(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_starts(place.run())
    (folder,) = place.cache.iterdir()
    (folder / "sediment.py").unlink()
    starts = runpy.run_path(str(place.pyz), run_name="bootstrap")
    assert starts["restore"](str(folder))
    (folder / "sediment.py").unlink()
    other = newer(place)
    shutil.copy(other, mine := place.tmp / "mine.pyz")
    monkeypatch.setitem(starts["restore"].__globals__, "PYZ", str(mine))
    assert not starts["restore"](str(folder))
    assert not (folder / "sediment.py").exists()
    mine.unlink()
    assert not starts["restore"](str(folder))


def test_a_folder_that_goes_while_its_lock_is_waited_for_is_unpacked_again(place: Place) -> None:
    assert_starts(place.run())
    (folder,) = place.cache.iterdir()
    waiting = (
        "import fcntl, os; flock = fcntl.flock; folder = sys.argv.pop(0)\n"
        "def wait(lock, how):\n"
        "    if how == fcntl.LOCK_SH and os.path.exists(folder):\n"
        "        os.rename(folder, folder + '.gone'); print('gone')\n"
        "        fcntl.flock = flock\n"
        "    flock(lock, how)\n"
        "fcntl.flock = wait; starts = runpy.run_path(sys.argv[0])\n"
        "claimed = starts['unpacked']()\n"
        "print(claimed == folder, os.path.isfile(claimed + '/sediment.py'), flush=True)\n"
        "from pathlib import Path; held = Path('/proc/self/fd').iterdir()\n"
        "held = {os.readlink(one) for one in held if one.exists()}\n"
        "print(claimed + '/.lock' in held)\n"
    )
    code = f"import runpy, sys; del sys.argv[0]\n{waiting}"
    command = [sys.executable, "-c", code, str(folder), str(place.pyz)]
    done = subprocess.run(command, env=place.env, capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.stderr) == (["gone", "True", "True", "True"], "")


NEEDED = (
    *("numpy/linalg", "numpy/__init__.py", "onnxruntime/capi", "tokenizers", "assets", "models"),
    *(
        f"models/{name}"
        for name in ("ranker.json", f"{MODEL}/model.onnx", f"{MODEL}/manifest.json")
    ),
)


def test_a_command_restores_what_it_needs(start_pyz: Run, tmp_path: Path) -> None:
    env = {"SEDIMENT_CACHE": str(tmp_path / "cache"), "SEDIMENT_DB": str(tmp_path / "memory.db")}
    assert start_pyz("store", "A fact.", env=env).returncode == 0
    for part in NEEDED:
        (path,) = (tmp_path / "cache").glob(f"sediment/*/{part}")
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        done = start_pyz("recall", "a fact", env=env)
        assert (done.returncode, done.stderr) == (0, ""), part
        assert "A fact." in done.stdout
        assert path.exists() or part == "tokenizers"  # the tests' own Python has that


def test_a_damaged_library_is_restored_for_the_next_run(start_pyz: Run, tmp_path: Path) -> None:
    env = {"SEDIMENT_CACHE": str(tmp_path / "cache"), "SEDIMENT_DB": str(tmp_path / "memory.db")}
    assert start_pyz("store", "A fact.", env=env).returncode == 0
    (path,) = (tmp_path / "cache").glob("sediment/*/tokenizers/tokenizers.*")
    path.write_bytes(b"junk")
    done = start_pyz("recall", "a fact", env=env)
    told = r"Error: tokenizers cannot be loaded \(.*\): it is restored: run this again\n"
    assert done.returncode == 1
    assert re.fullmatch(told, done.stderr)
    assert start_pyz("recall", "a fact", env=env).returncode == 0


def test_a_recall_does_not_look_at_the_archive(whole: Place) -> None:
    whole.env["SEDIMENT_DB"] = str(whole.tmp / "memory.db")
    command = [sys.executable, "-S", "-X", "importtime", str(whole.pyz)]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], env=whole.env, capture_output=True, text=True, timeout=120
        )

    assert run("store", "A fact.").returncode == 0
    done = run("recall", "a fact")
    assert "A fact." in done.stdout
    assert "numpy" in done.stderr
    assert not re.search(r"\| +zipfile\n", done.stderr)


def test_a_server_whose_cache_goes_restores_it(pyz: Path, tmp_path: Path) -> None:
    wire = Wire(tmp_path, small_env(tmp_path, SEDIMENT_CACHE=str(tmp_path / "cache")))
    try:
        assert wire.call("list")["count"] == 0
        shutil.rmtree(tmp_path / "cache")
        assert wire.call("store", content="The gate code is 1234.")["success"]
        assert wire.call("recall", query="gate code")["count"] == 1
        assert wire.end() == []
    finally:
        wire.kill()


def test_a_damaged_model_in_the_cache_is_unpacked_again(run_pyz: Run, tmp_path: Path) -> None:
    env = {"SEDIMENT_CACHE": str(tmp_path / "cache")}

    def doctor(*words: str) -> tuple[int, str]:
        done = run_pyz("doctor", *words, env=env)
        assert done.stderr == ""
        return done.returncode, done.stdout

    assert doctor()[0] == 0
    (file,) = (tmp_path / "cache").glob("sediment/*/models/*/model.onnx")
    with open(file, "ab") as damaged:
        damaged.write(b"junk")
    code, told = doctor()
    assert code == 1
    assert "broken  model: " in told
    assert doctor("--repair") == (0, "Restored the model.\n")
    assert doctor()[0] == 0
    assert doctor("--repair") == (0, "Nothing is broken.\n")


def test_wrong_python(place: Place) -> None:
    other = rebuilt(place.pyz, place.tmp / "other.pyz", r"'3\.\d+', ", "'3.99', ")
    assert_one_line(place.run(pyz=other), r"run it with python3\.99, or rebuild .* make PYTHON=/")
    hook = [sys.executable, str(other), "hook"]
    done = subprocess.run(hook, env=place.env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), "another code would block a client"
    assert done.stderr.count("\n") == 1


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
    files = [*place.cache.rglob("*.pyc")]
    assert files
    for file in files:
        assert f"{Path.home()}{os.sep}".encode() not in file.read_bytes()
        assert str(place.pyz.parent.parent).encode() not in file.read_bytes()

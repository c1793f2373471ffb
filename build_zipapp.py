"""Build `dist/sediment.pyz`: the program, its model and its libraries in one executable file.

Run it with a Python that has the packages of `.ci/requirements/runtime.txt`; the file then works
with that CPython version and platform (`build_release.py` builds for others). It holds
`__main__.py` (BOOTSTRAP below) and one stored member, `payload.zip`, which the bootstrap unpacks
once into the user's cache. The same inputs give the same file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.metadata import Distribution, PackageNotFoundError
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
MODEL = Path("models/all-MiniLM-L6-v2")
PACKAGES = (
    "anyio",
    "apsw",
    "click",
    "idna",
    "numpy",
    "onnxruntime",
    "platformdirs",
    "psycopg",
    "psycopg-binary",
    "pyrage",
    "sqlite-vec",
    "tokenizers",
    "typing-extensions",
    "waitress",
    "watchfiles",
)
WINDOWS_PACKAGES = ("colorama",)

# What Sediment never imports. `check` runs the pruned tree before it is packed.
PRUNED = (
    "../*",  # commands
    "*.pyc",
    "*.pyi",
    "*.pxd",
    "*.pyx",
    "*.h",
    "*.a",
    "*.lib",
    "*/py.typed",
    "*/tests/*",
    "*.dist-info/sboms/*",
    "*.dist-info/[!MLl]*",  # METADATA and licences stay
    "apsw/fts_test_strings",
    "apsw/shell.py",
    "apsw/speedtest.py",
    "apsw/sqlite_extra*",
    "numpy/_core/_*_tests.*",
    "numpy/_core/_simd.*",  # for numpy's own tests
    "numpy/_pyinstaller/*",
    "numpy/distutils/*",
    "numpy/f2py/*",
    "numpy/random/*",
    "numpy/testing/*",
    "numpy/typing/*",
    "onnxruntime/backend/*",
    "onnxruntime/capi/libonnxruntime.*",  # the C library: the Python module has its own copy
    "onnxruntime/capi/onnxruntime.dll",  # the same on Windows
    "onnxruntime/datasets/*",
    "onnxruntime/quantization/*",
    "onnxruntime/tools/*",
    "onnxruntime/transformers/*",
    "platformdirs/pytest_plugin.py",
    "tokenizers/tools/*",
)

# Kept to what Python 2.7 can parse, so that a wrong Python gets a message and no SyntaxError. A
# start that finds the unpacked folder must stay cheap: what only unpacking needs is imported there.
BOOTSTRAP = r'''"""Start Sediment: unpack it once into the user's cache, then run it from there."""
import errno
import gc
import os
import sys

BUILT_FOR = None
DIGEST = None
PARTS = ()
# Modules that libraries import if they are there, and that are not in here.
OPTIONAL = ("numpy._distributor_init_local", "onnxruntime.experimental")
PYZ = SEDIMENT_PYZ = os.path.dirname(os.path.abspath(__file__))
UID = os.getuid() if hasattr(os, "getuid") else 0

try:
    import fcntl
except ImportError:  # Windows, where a folder in use cannot be renamed anyway
    fcntl = None


def say(message):
    if sys.stderr:
        sys.stderr.write("sediment: %s\n" % message)


def fail(message):
    say(message)
    # Clients take another code of a hook than 0 for a refusal.
    sys.exit(0 if sys.argv[1:2] == ["hook"] else 1)


def this_python():
    """What the libraries inside are built for: Python, version, system, machine, C library."""
    implementation = getattr(sys, "implementation", None)
    version = "%d.%d" % sys.version_info[:2] + getattr(sys, "abiflags", "")
    system = sys.platform.replace("linux2", "linux")  # as Python 2 says
    machine = os.uname()[4] if hasattr(os, "uname") else os.getenv("PROCESSOR_ARCHITECTURE", "")
    name, libc = (getattr(implementation, key, "") for key in ("name", "_multiarch"))
    return [name or "python", version, system, machine, libc]


def check_python():
    this = this_python()
    same = [mine == built or not (mine and built) for mine, built in zip(this, BUILT_FOR)]
    if not all(same):
        advice = "run it with python" + BUILT_FOR[1] if all(same[2:]) else "it cannot run here"
        if sys.version_info >= (3, 11):
            advice += ", or rebuild it from source with: make PYTHON=" + sys.executable
        names = [" ".join(filter(None, parts)) for parts in (BUILT_FOR, this)]
        fail("%s is built for %s; this is %s: %s" % (PYZ, names[0], names[1], advice))


def cache_root():
    """Where the unpacked versions live; None if nothing names a folder and there is no home."""
    xdg = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    base = os.path.expanduser(os.getenv("SEDIMENT_CACHE", ""))  # what no shell has written out
    if not base and sys.platform != "darwin" and os.path.isabs(os.getenv(xdg, "")):
        base = os.getenv(xdg)
    home = os.path.expanduser("~")
    if not base and os.path.isabs(home) and os.path.isdir(home):
        base = os.path.join(home, "Library/Caches" if sys.platform == "darwin" else ".cache")
    return base and os.path.join(os.path.realpath(base), "sediment")


def temporary_root():
    import tempfile

    root = os.path.join(tempfile.gettempdir(), "sediment-%d" % UID)
    if os.path.lexists(root) and problem(root):  # somebody else's: never run what is in there
        import atexit
        import shutil

        root = tempfile.mkdtemp(prefix="sediment-")
        atexit.register(shutil.rmtree, root, True)
    return root


def problem(root):
    """Why the program cannot be unpacked to this folder, or run from it; None if it can."""
    if not root:
        return "there is no home folder"
    try:
        if not os.path.lexists(root):
            os.makedirs(root, exist_ok=True)
        status = os.lstat(root)
        if not os.path.isdir(root) or os.path.islink(root):
            return "it is not a folder"
        if fcntl and (status.st_uid not in (0, UID) or status.st_mode & 0o022):
            return "others can write to it"
        if fcntl and os.statvfs(root).f_flag & getattr(os, "ST_NOEXEC", 0):
            return "it is mounted noexec"
        if not os.path.exists(os.path.join(root, DIGEST)) and not os.access(root, os.W_OK):
            return "it is not writable"
    except OSError as error:
        return error.strerror


def choose_root():
    root = cache_root()
    reason = problem(root)
    if not reason:
        return root
    refused, root = "%s (%s)" % (root or "a cache", reason), temporary_root()
    reason = problem(root)
    if reason:
        fail("cannot use %s nor %s (%s): set SEDIMENT_CACHE to a folder" % (refused, root, reason))
    say("cannot use %s, using %s: set SEDIMENT_CACHE to choose a folder" % (refused, root))
    return root


def claim(folder):
    """Hold the folder's lock, shared, until this process ends; False if there is no folder."""
    path = os.path.join(folder, ".lock")
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
        if fcntl:
            fcntl.flock(lock, fcntl.LOCK_SH)
        # Another version may have removed the folder while this one waited for the lock.
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except OSError as error:
        return error.errno != errno.ENOENT  # some file systems know no locks


def unpack(root):
    """Fill a temporary folder and rename it: the unpacked folder appears whole, or not at all."""
    import io
    import shutil
    import tempfile
    import zipfile

    folder = tempfile.mkdtemp(prefix="tmp-", dir=root)
    try:
        open(os.path.join(folder, ".lock"), "w").close()
        if fcntl:  # Windows cannot rename a folder with an open file
            claim(folder)
        with zipfile.ZipFile(PYZ) as pyz:
            payload = io.BytesIO(pyz.read("payload.zip"))
        with zipfile.ZipFile(payload) as files:
            files.extractall(folder)
        check_model(os.path.join(folder, "models", "all-MiniLM-L6-v2"))
        put_in_place(folder, os.path.join(root, DIGEST))
    except OSError as error:
        if not os.path.isdir(os.path.join(root, DIGEST)):  # else another process was quicker
            fail("cannot unpack to %s (%s)" % (root, error.strerror))
    except Exception as error:
        fail("%s is damaged (%s): get or build it again" % (PYZ, error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restore(folder):
    """Write again what is missing or damaged in the unpacked folder. False if that cannot be done:
    another version may have taken the place of this .pyz."""
    import importlib
    import shutil
    import tempfile
    import zipfile

    umask, draft = os.umask(0o077), None
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder)
            claim(folder)
        draft = tempfile.mkdtemp(prefix="tmp-", dir=os.path.dirname(folder))
        with zipfile.ZipFile(PYZ) as pyz, zipfile.ZipFile(pyz.open("payload.zip")) as files:
            if DIGEST.encode() not in pyz.read("__main__.py"):
                return False
            for member in files.infolist():
                target = os.path.join(folder, member.filename)
                if not has_checksum(target, member.CRC):
                    written = files.extract(member, draft)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    os.replace(written, target)
        importlib.invalidate_caches()
        return True
    except Exception:
        return False
    finally:
        os.umask(umask)
        if draft:
            shutil.rmtree(draft, ignore_errors=True)


def restore_at_import(folder):
    """Restore the folder where a module of it, or a package's `__init__`, is missing when it is
    imported: nothing need be looked at before, and no import is left half done."""
    from importlib import machinery

    compiled = machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES
    source = machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES
    bytecode = machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES

    class Finder(machinery.FileFinder):
        def find_spec(self, name, target=None):
            spec = super(Finder, self).find_spec(name, target)
            is_own = name in PARTS if self.path == folder else name not in OPTIONAL
            if (spec is None or spec.loader is None) and is_own and restore(folder):
                spec = super(Finder, self).find_spec(name, target)
            return spec

    def finder(path):
        if not path.startswith(folder):
            raise ImportError
        return Finder(path, compiled, source, bytecode)

    sys.path_hooks.insert(0, finder)


def has_checksum(path, expected):
    import zlib

    try:
        with open(path, "rb") as data:
            return zlib.crc32(data.read()) == expected
    except OSError:
        return False


def put_in_place(folder, target):
    """Rename; on Windows, again while a virus scanner reads what has just been written."""
    import time

    for pause in () if fcntl else (0.1, 0.3, 1, 3):
        try:
            return os.rename(folder, target)
        except OSError:
            if os.path.isdir(target):
                raise
        time.sleep(pause)
    os.rename(folder, target)


def check_model(folder):
    import hashlib
    import json

    with open(os.path.join(folder, "manifest.json")) as manifest:
        expected = json.load(manifest)["files"]
    for name in expected:
        with open(os.path.join(folder, name), "rb") as data:
            if hashlib.sha256(data.read()).hexdigest() != expected[name]["sha256"]:
                raise ValueError("wrong sha256 of " + name)


def sweep(root):
    """Remove other versions, and copies that were never finished, unless a process uses them."""
    import re

    for name in os.listdir(root):
        if name != DIGEST and re.match(r"(tmp-\w+|[0-9a-f]{16})$", name):
            remove_idle(root, name)


def remove_idle(root, name):
    import shutil
    import time

    folder, lock = os.path.join(root, name), None
    try:
        path = os.path.join(folder, ".lock")
        if fcntl and os.path.exists(path):
            lock = os.open(path, os.O_RDWR)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif time.time() - os.stat(folder).st_mtime < 3600:
            return
        if not name.startswith("tmp-"):  # vanish at once: nobody may start from half of it
            os.rename(folder, os.path.join(root, "tmp-" + name))
            folder = os.path.join(root, "tmp-" + name)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # in use
    finally:
        if lock is not None:
            os.close(lock)


def unpacked():
    """The folder of this version, unpacked if it is not there."""
    umask = os.umask(0o077)
    try:
        root = choose_root()
        folder = os.path.join(root, DIGEST)
        for attempt in range(3):
            if claim(folder):
                if attempt:
                    sweep(root)
                return folder
            unpack(root)
        fail("%s is damaged: delete it and try again" % folder)
    except OSError as error:
        fail("cannot unpack: %s" % error)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        os.umask(umask)


def main():
    check_python()
    folder = unpacked()
    sys.path[0] = folder
    restore_at_import(folder)
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    gc.disable()  # all that an import makes stays: a look through it frees nothing, and takes 2 ms
    for attempt in range(2):
        try:
            import sediment

            break
        except Exception as error:  # a part is damaged
            if attempt or not restore(folder):
                fail("%s is damaged (%s): delete it and try again" % (folder, error))
    gc.freeze()
    gc.enable()
    sediment.restore_program = lambda: restore(folder)
    sediment.run()


if __name__ == "__main__":
    main()
'''


class Target(NamedTuple):
    """What a .pyz is built for, as `this_python` in BOOTSTRAP says; the folders in which its
    packages are installed; and a Python of its version that runs here, if there is one."""

    built_for: list[str]
    site: list[str]
    python: str | None

    @property
    def runs_here(self) -> bool:
        return bool(self.python) and self.built_for[2:] == this_python()[2:]


def this_python() -> list[str]:
    return template()["this_python"]()


def template() -> dict[str, Any]:
    """What BOOTSTRAP defines."""
    names: dict[str, Any] = {"__name__": "bootstrap", "__file__": ""}
    exec(BOOTSTRAP, names)
    return names


def files_of(package: str, site: list[str]) -> Iterator[tuple[str, Path]]:
    """The files of an installed package that are worth packing, with their path inside."""
    found = next(iter(Distribution.discover(name=package, path=site)), None)
    if found is None:
        raise PackageNotFoundError(package)
    for file in found.files or ():
        name = file.as_posix()
        if not any(fnmatchcase(name, pattern) for pattern in PRUNED):
            yield name, Path(str(file.locate()))


def everything(target: Target) -> Iterator[tuple[str, str, Path]]:
    """(part, path inside, file) of all that goes in."""
    for file in [HERE / "sediment.py", *sorted((HERE / "sediment_ext").rglob("*.py"))]:
        yield "sediment", file.relative_to(HERE).as_posix(), file
    for file in sorted((HERE / MODEL).iterdir()):
        yield "model", str(MODEL / file.name), file
    yield "model", "models/ranker.json", HERE / "models" / "ranker.json"
    for file in sorted(path for path in (HERE / "assets").rglob("*") if path.is_file()):
        if file.suffix != ".png":  # pictures for the documentation
            yield "sediment", file.relative_to(HERE).as_posix(), file
    for package in PACKAGES + (WINDOWS_PACKAGES if "win32" in target.built_for else ()):
        for name, file in files_of(package, target.site):
            yield package, name, file


def stage(folder: Path, target: Target) -> dict[str, str]:
    """Copy everything into the folder and compile it; gives the part of each path inside."""
    parts = {}
    for part, name, file in everything(target):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
        parts[name] = part
    if target.python:
        compile_all(target.python, folder, folder)
    return parts


def compile_all(python: str, place: Path, folder: Path, *options: str) -> None:
    """Compile what is at a place in the folder. In a process of its own, what was compiled before
    does not change a byte; unchecked: the files never change, so a start need not compare times."""
    command = [python, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*command, *options, "-s", str(folder), str(place)], check=True)


CHECK = """
import sys; sys.path.insert(0, sys.argv[1])
import apsw, click, json, numpy, onnxruntime, platformdirs, pyrage, sediment, sqlite3, tokenizers
from pathlib import Path
extensions = Path(sys.argv[1], "sediment_ext")
for file in extensions.rglob("*.py"):
    if file.stem != "__init__":
        sediment.extension(".".join(file.relative_to(extensions).with_suffix("").parts))
model = Path(sys.argv[1], "models", "all-MiniLM-L6-v2")
ids = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")).encode("hello world").ids
session = onnxruntime.InferenceSession(model / "model.onnx", providers=["CPUExecutionProvider"])
vector = session.run(None, {"ids": numpy.array(ids)})[0]
database = apsw.Connection(":memory:")
database.enable_load_extension(True)
database.load_extension(str(Path(sys.argv[1], "sqlite_vec", "vec0")))
distance = database.execute("select vec_distance_cosine(?, ?)", [vector.tobytes()] * 2).get
assert abs(distance) < 1e-6 and abs(numpy.linalg.norm(vector) - 1) < 1e-5
assert all(m.__file__.startswith(sys.argv[1]) for m in (apsw, click, numpy, onnxruntime, pyrage))
"""


def check(folder: Path, target: Target) -> None:
    """Embed and compare a text with nothing but the pruned tree and the standard library, where
    that can run; look at least whether each library is for the machine that it is to run on."""
    for name, machine in sorted(machines(folder).items()):
        if machine != target.built_for[2:4]:
            raise ImportError(f"{name} is for {' '.join(machine)}")
    if target.python and target.runs_here:
        python = [target.python, "-I", "-S", "-B", "-c", CHECK, str(folder)]
        environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
        subprocess.run(python, check=True, env=environment, cwd=folder)


def machines(folder: Path) -> dict[str, list[str]]:
    """The system and machine that each library is for, by its path inside."""
    found = {}
    for file in (path for path in folder.rglob("*") if path.is_file()):
        with open(file, "rb") as data:
            if machine := machine_of(data.read(4096)):
                found[file.relative_to(folder).as_posix()] = machine
    return found


def machine_of(head: bytes) -> list[str] | None:
    """What a library is for, by the header of ELF, Mach-O or PE; None for another kind of file."""
    for magic, system, place, names in LIBRARIES:
        if head.startswith(magic):
            if system == "win32":
                place += int.from_bytes(head[60:64], "little")
            number = int.from_bytes(head[place : place + 2], "little")
            return [system, names.get(number, f"machine {number}")]
    return None


# How each format begins, and where it tells the machine: two bytes, after the DOS part in a PE.
LIBRARIES = (
    (b"\x7fELF", "linux", 18, {62: "x86_64", 183: "aarch64"}),
    (b"\xcf\xfa\xed\xfe", "darwin", 4, {7: "x86_64", 12: "arm64"}),
    (b"MZ", "win32", 4, {0x8664: "AMD64"}),
)


def add(archive: zipfile.ZipFile, name: str, data: bytes, method: int) -> int:
    """Add a member without a date, so that the archive depends on its contents alone."""
    member = zipfile.ZipInfo(name)
    member.compress_type = method
    member.external_attr = 0o644 << 16
    archive.writestr(member, data, compresslevel=9)
    return member.compress_size


def source_of(name: str) -> str:
    """The path a compiled file was compiled from, so that it counts for the same part."""
    path = Path(name)
    if path.parent.name != "__pycache__":
        return name
    return str(path.parent.parent / (path.name.split(".")[0] + ".py"))


def pack(folder: Path, parts: dict[str, str], target: Path) -> Counter[str]:
    """Write the payload; gives the compressed size of each part."""
    sizes: Counter[str] = Counter()
    with zipfile.ZipFile(target, "w") as payload:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = file.relative_to(folder).as_posix()
            size = add(payload, name, file.read_bytes(), zipfile.ZIP_DEFLATED)
            sizes[parts[source_of(name)]] += size
    return sizes


def bootstrap(payload: bytes, built_for: list[str]) -> str:
    digest = hashlib.sha256(payload).hexdigest()[:16]
    with zipfile.ZipFile(BytesIO(payload)) as files:
        parts = {re.split("[./]", name)[0] for name in files.namelist()}
    text = BOOTSTRAP.replace("BUILT_FOR = None", f"BUILT_FOR = {built_for!r}")
    text = text.replace("PARTS = ()", f"PARTS = {sorted(parts)!r}")
    return text.replace("DIGEST = None", f'DIGEST = "{digest}"')


def write_pyz(payload: bytes, scratch: Path, target: Target, place: Path) -> None:
    source = scratch / "__main__.py"
    source.write_text(bootstrap(payload, target.built_for), "ascii", newline="")
    draft = scratch / "sediment.pyz"
    draft.write_bytes(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(draft, "a") as pyz:
        if target.python:  # spares each start the compilation; another Python takes the source
            compile_all(target.python, source, scratch, "-b")
            add(pyz, "__main__.pyc", source.with_suffix(".pyc").read_bytes(), zipfile.ZIP_STORED)
        add(pyz, "__main__.py", source.read_bytes(), zipfile.ZIP_STORED)
        add(pyz, "payload.zip", payload, zipfile.ZIP_STORED)
    draft.chmod(0o755)
    place.parent.mkdir(exist_ok=True)
    draft.replace(place)


def report(place: Path, sizes: Counter[str]) -> None:
    for part, size in sizes.most_common():
        print(f"{size / 1e6:8.2f} MB  {part}")
    print(f"{place.stat().st_size / 1e6:8.2f} MB  {place.relative_to(HERE)}")


def build(place: Path, target: Target) -> Counter[str]:
    """Write the .pyz; gives the compressed size of each part."""
    if not (HERE / MODEL).is_dir():
        raise FileNotFoundError(f"no {MODEL}: run models/build_model.py first")
    (HERE / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HERE / "build") as name:
        scratch = Path(name)
        folder = scratch / "payload"
        parts = stage(folder, target)
        check(folder, target)
        sizes = pack(folder, parts, scratch / "payload.zip")
        write_pyz((scratch / "payload.zip").read_bytes(), scratch, target, place)
    return sizes


def main() -> int:
    place = HERE / "dist" / "sediment.pyz"
    try:
        report(place, build(place, Target(this_python(), sys.path, sys.executable)))
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        print(f"build_zipapp: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build the .pyz of other platforms from their wheels, and a release of all.

    python build_release.py linux-arm64 --python 3.13     one platform, to dist/
    python build_release.py                               all that the lock has wheels for, with
                                                          dist/SHA256SUMS and dist/PROVENANCE.json

Nothing is compiled for another platform, and nothing of it is run: pip unpacks its wheels, each
checked against the digests of `.ci/requirements/runtime.txt`, and `build_zipapp.py` packs them.
The same sources give the same bytes wherever they are built, by the same version of zlib and with
the same Pythons at hand (each compiles the modules of its version): PROVENANCE.json names them.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from pip._vendor.packaging.requirements import Requirement

from build_zipapp import HERE, Target, build

LOCK = HERE / ".ci" / "requirements" / "runtime.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PIP_INSTALL = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
PIP_INSTALL += ["--no-deps", "--only-binary=:all:"]


class Platform(NamedTuple):
    """As `sys.platform` and `os.uname` say there, the C library, and the tags of its wheels."""

    system: str
    machine: str
    libc: str
    tags: list[str]


def manylinux(machine: str) -> list[str]:
    """The tags of wheels for glibc 2.28 and what came before, the newest first."""
    return [f"manylinux_2_{minor}_{machine}" for minor in range(28, 16, -1)] + [
        f"manylinux2014_{machine}"
    ]


PLATFORMS = {
    "linux-x86_64": Platform("linux", "x86_64", "x86_64-linux-gnu", manylinux("x86_64")),
    "linux-arm64": Platform("linux", "aarch64", "aarch64-linux-gnu", manylinux("aarch64")),
    "macos-arm64": Platform("darwin", "arm64", "darwin", ["macosx_14_0_arm64"]),
    "macos-x86_64": Platform("darwin", "x86_64", "darwin", ["macosx_14_0_x86_64"]),
    "windows-x86_64": Platform("win32", "AMD64", "", ["win_amd64"]),
}
SYSTEMS = {"linux": ("posix", "Linux"), "darwin": ("posix", "Darwin"), "win32": ("nt", "Windows")}


class NoWheel(Exception):
    """A package of the lock has no wheel for a platform."""


def markers(platform: Platform, version: str) -> dict[str, str]:
    """What conditions in a lock ask for, as a Python of this version answers there."""
    os_name, system = SYSTEMS[platform.system]
    return {
        "implementation_name": "cpython",
        "os_name": os_name,
        "platform_machine": platform.machine,
        "platform_python_implementation": "CPython",
        "platform_system": system,
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": platform.system,
    }


def locked(lock: str, marks: dict[str, str]) -> str:
    """The entries of a lock that hold there. pip would ask for the conditions of this machine."""
    kept = []
    for entry in re.split(r"\n(?=[^\s#])", f"\n{lock}")[1:]:
        named, _, hashes = entry.partition(" \\\n")
        requirement = Requirement(named)
        if requirement.marker is None or requirement.marker.evaluate(marks):
            kept.append(f"{requirement.name}{requirement.specifier} \\\n{hashes.rstrip()}\n")
    return "".join(kept)


def install(platform: Platform, version: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Unpack the wheels of a platform; gives where, and the SHA-256 of each wheel."""
    site, lock, told = folder / "site", folder / "lock.txt", folder / "report.json"
    lock.write_text(locked(LOCK.read_text("utf-8"), markers(platform, version)), "utf-8")
    pip = [*PIP_INSTALL, "--require-hashes", "--no-compile"]
    # It would ask of which Python this one is; the lock's conditions have told that.
    pip += ["--implementation", "cp", "--python-version", version, "--ignore-requires-python"]
    pip += [f"--platform={tag}" for tag in platform.tags]
    pip += ["--target", str(site), "--report", str(told), "--requirement", str(lock)]
    done = subprocess.run(pip, stderr=subprocess.PIPE, text=True)
    missing = re.search(r"that satisfies the requirement (\S+)", done.stderr)
    if done.returncode and missing and is_found(missing[1]):
        raise NoWheel(f"the lock has no wheel of {missing[1]} for it")
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise OSError("pip could not unpack the wheels")
    return site, dict(map(wheel, json.loads(told.read_text("utf-8"))["install"]))


def is_found(requirement: str) -> bool:
    """Whether the index has this for the machine here: pip does not tell a wheel that is missing
    from an index that does not answer."""
    pip = [*PIP_INSTALL, "--dry-run", "--ignore-installed", requirement]
    return subprocess.run(pip, stderr=subprocess.DEVNULL).returncode == 0


def wheel(installed: dict[str, Any]) -> tuple[str, str]:
    """The name of a wheel and its SHA-256, from pip's report."""
    source = installed["download_info"]
    return unquote(source["url"].rpartition("/")[2]), source["archive_info"]["hashes"]["sha256"]


@functools.cache
def python_of(version: str) -> tuple[str, str] | None:
    """A CPython of this version that runs here, and its whole version; None if there is none."""
    tell = "import platform, sys; print(sys.implementation.cache_tag, platform.python_version())"
    for python in (sys.executable, f"python{version}"):
        try:
            done = subprocess.run([python, "-I", "-c", tell], capture_output=True, text=True)
        except OSError:
            continue
        tag, _, whole = done.stdout.strip().partition(" ")
        if tag == f"cpython-{version.replace('.', '')}":
            return python, f"CPython {whole}"
    return None


def file_name(name: str, version: str) -> str:
    return f"sediment-{name}-cp{version.replace('.', '')}.pyz"


def build_one(name: str, version: str) -> dict[str, Any]:
    """Build for a platform and a version; gives what PROVENANCE.json says of the file."""
    platform, python = PLATFORMS[name], python_of(version)
    place = HERE / "dist" / file_name(name, version)
    (HERE / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HERE / "build") as scratch:
        site, wheels = install(platform, version, Path(scratch))
        built_for = ["cpython", version, platform.system, platform.machine, platform.libc]
        build(place, Target(built_for, [str(site)], python and python[0]))
    by = python and python[1]
    remark = f"compiled by {by}" if by else f"not compiled: there is no python{version} here"
    print(f"{place.stat().st_size / 1e6:8.2f} MB  dist/{place.name}  ({remark})", flush=True)
    made = {"platform": name, "python": version, "compiled_by": by, "wheels": wheels}
    return {**digest(place), **made}


def digest(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def sources() -> dict[str, Any] | None:
    """The commit and tree of the sources, and what has been changed since; None outside of git."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    try:
        commit, tree = git("rev-parse", "HEAD", "HEAD^{tree}")
        return {"commit": commit, "tree": tree, "changed": git("status", "--porcelain")}
    except (OSError, subprocess.CalledProcessError):
        return None


def release(versions: tuple[str, ...]) -> None:
    """Build all, and write what each file is made of beside its digest."""
    dist = HERE / "dist"
    for old in dist.glob("sediment-*-cp*.pyz"):
        old.unlink()
    files, skipped = {}, {}
    for name, version in ((name, version) for version in versions for name in PLATFORMS):
        try:
            files[file_name(name, version)] = build_one(name, version)
        except NoWheel as reason:
            skipped[file_name(name, version)] = str(reason)
            print(f"{'skipped':>11}  dist/{file_name(name, version)}  ({reason})", flush=True)
    note = dist / "PROVENANCE.json"
    note.write_text(json.dumps(provenance(files, skipped), indent=2) + "\n", "utf-8", newline="")
    sums = {
        **{name: one["sha256"] for name, one in files.items()},
        note.name: digest(note)["sha256"],
    }
    lines = [f"{sums[name]}  {name}\n" for name in sorted(sums)]
    (dist / "SHA256SUMS").write_text("".join(lines), "utf-8", newline="")


def provenance(files: dict[str, Any], skipped: dict[str, str]) -> dict[str, Any]:
    """All that goes into the files, by digest, and what packed them."""
    version = re.search(r'^__version__ = "(.+)"', (HERE / "sediment.py").read_text("utf-8"), re.M)
    python = sys.version_info
    return {
        "sediment": version and version[1],
        "sources": sources(),
        "lock": digest(LOCK),
        "model": json.loads((HERE / "models" / "manifest.json").read_text("utf-8")),
        "packed_by": {
            "python": f"CPython {python.major}.{python.minor}.{python.micro}",
            "zlib": zlib.ZLIB_RUNTIME_VERSION,
        },
        "files": files,
        "skipped": skipped,
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description="Build the .pyz of other platforms.")
    arguments.add_argument("platform", nargs="?", choices=PLATFORMS)
    arguments.add_argument("--python", metavar="VERSION", help="such as 3.13")
    given = arguments.parse_args()
    try:
        if given.platform:
            version = given.python or f"{sys.version_info.major}.{sys.version_info.minor}"
            build_one(given.platform, version)
        else:
            release((given.python,) if given.python else PYTHONS)
    except (ImportError, NoWheel, OSError, subprocess.CalledProcessError) as error:
        print(f"build_release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What is built for other platforms: from the right wheels, always the same bytes, with digests."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import build_release
import build_zipapp
from build_release import PLATFORMS, NoWheel, locked, markers
from build_zipapp import Target

WINDOWS = ["cpython", "3.13", "win32", "AMD64", ""]
MAC = ["cpython", "3.13", "darwin", "arm64", "darwin"]
ELF = b"\x7fELF\x02\x01\x01" + bytes(11) + (183).to_bytes(2, "little") + bytes(44)
MACH_O = b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01" + bytes(24)
PE = b"MZ" + bytes(58) + (64).to_bytes(4, "little") + b"PE\0\0" + (0x8664).to_bytes(2, "little")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small sources, and a folder of installed packages beside them."""
    for name, text in {
        "sediment.py": "__version__ = '0'\nPEOPLE = {'Ada', 'Eve'}\n",
        "models/manifest.json": '{"files": {}}',
        "models/all-MiniLM-L6-v2/manifest.json": '{"files": {}}',
        "models/ranker.json": "{}",
        "assets/help.md": "help",
        "assets/page/search.png": "a picture",
    }.items():
        write(tmp_path / name, text.encode())
    for package in ("click", "colorama"):
        package_in(tmp_path / "site", package, {f"{package}/__init__.py": b"x = 1\n"})
    monkeypatch.setattr(build_zipapp, "HERE", tmp_path)
    monkeypatch.setattr(build_release, "HERE", tmp_path)
    monkeypatch.setattr(build_zipapp, "PACKAGES", ("click",))
    return tmp_path


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def package_in(site: Path, package: str, files: dict[str, bytes]) -> None:
    """Install a package as pip does: with a list of its files."""
    names = [*files, f"{package}-1.dist-info/METADATA", f"{package}-1.dist-info/RECORD"]
    for name, data in files.items():
        write(site / name, data)
    write(site / names[-2], f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n".encode())
    write(site / names[-1], "".join(f"{name},,\n" for name in names).encode())


def built(tree: Path, target: Target, name: str = "a.pyz") -> Path:
    place = tree / "dist" / name
    build_zipapp.build(place, target)
    return place


def inside(pyz: Path) -> set[str]:
    with zipfile.ZipFile(pyz) as outer, zipfile.ZipFile(outer.open("payload.zip")) as payload:
        return {*outer.namelist(), *payload.namelist()}


@pytest.mark.parametrize("python", [None, sys.executable])
def test_the_same_inputs_give_the_same_bytes(tree: Path, python: str | None) -> None:
    target = Target(MAC, [str(tree / "site")], python)
    first, second = built(tree, target), built(tree, target, "b.pyz")
    assert first.read_bytes() == second.read_bytes()
    compiled = {name for name in inside(first) if name.endswith(".pyc")}
    assert bool(compiled) == bool(python)
    assert "assets/help.md" in inside(first)
    assert "assets/page/search.png" not in inside(first)


def test_another_platform_has_its_own_packages_and_says_what_it_is_for(tree: Path) -> None:
    pyz = built(tree, Target(WINDOWS, [str(tree / "site")], None))
    assert "colorama/__init__.py" in inside(pyz)
    assert "colorama/__init__.py" not in inside(
        built(tree, Target(MAC, [str(tree / "site")], None))
    )
    pyz = built(tree, Target(WINDOWS, [str(tree / "site")], None))
    done = subprocess.run([sys.executable, str(pyz)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "is built for cpython 3.13 win32 AMD64; this is" in done.stderr
    assert "it cannot run here" in done.stderr


@pytest.mark.parametrize(
    ("head", "machine"),
    [
        (ELF, ["linux", "aarch64"]),
        (MACH_O, ["darwin", "arm64"]),
        (PE, ["win32", "AMD64"]),
        (ELF[:18] + b"\x28\0" + ELF[20:], ["linux", "machine 40"]),
        (b"import os\n", None),
        (b"", None),
    ],
)
def test_the_machine_of_a_library_is_read_from_its_header(
    head: bytes, machine: list[str] | None
) -> None:
    assert build_zipapp.machine_of(head) == machine


def test_a_library_for_another_machine_is_refused(tree: Path) -> None:
    package_in(tree / "site", "click", {"click/fast.so": ELF})
    with pytest.raises(ImportError, match=r"click/fast\.so is for linux aarch64"):
        built(tree, Target(MAC, [str(tree / "site")], None))
    assert not (tree / "dist").exists()


def test_a_missing_package_is_named(tree: Path) -> None:
    with pytest.raises(ImportError, match="click"):
        built(tree, Target(MAC, [str(tree / "elsewhere")], None))


LOCK = """\
# Made from runtime.in by: make lock
apsw==3.5 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
colorama==0.4 ; sys_platform == 'win32' \\
    --hash=sha256:cc
numpy==2.4 ; python_full_version < '3.12' \\
    --hash=sha256:dd
numpy==2.5 ; python_full_version >= '3.12' \\
    --hash=sha256:ee
sqlite-vec==0.1 ; platform_machine != 'ARM64' or sys_platform != 'win32' \\
    --hash=sha256:ff
"""


@pytest.mark.parametrize(
    ("name", "version", "wanted"),
    [
        ("linux-arm64", "3.11", ["apsw==3.5", "numpy==2.4", "sqlite-vec==0.1"]),
        ("macos-arm64", "3.13", ["apsw==3.5", "numpy==2.5", "sqlite-vec==0.1"]),
        ("windows-x86_64", "3.12", ["apsw==3.5", "colorama==0.4", "numpy==2.5", "sqlite-vec==0.1"]),
    ],
)
def test_conditions_of_the_lock_are_those_of_the_platform(
    name: str, version: str, wanted: list[str]
) -> None:
    kept = locked(LOCK, markers(PLATFORMS[name], version))
    assert [line.split(" ")[0] for line in kept.splitlines() if line[0] != " "] == wanted
    assert kept.startswith("apsw==3.5 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n")


def test_a_missing_wheel_is_told_from_a_missing_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mac = PLATFORMS["macos-x86_64"]
    told = "ERROR: Could not find a version that satisfies the requirement onnxruntime==9 (from"
    found_here = 0

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        code = found_here if "--dry-run" in command else 1
        return subprocess.CompletedProcess(command, code, "", told)

    monkeypatch.setattr(build_release.subprocess, "run", run)
    with pytest.raises(NoWheel, match="no wheel of onnxruntime==9"):
        build_release.install(mac, "3.11", tmp_path)
    found_here = 1
    with pytest.raises(OSError, match="pip could not"):
        build_release.install(mac, "3.11", tmp_path)


def test_a_release_has_digests_and_tells_what_it_is_made_of(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(platform: Any, version: str, folder: Path) -> tuple[Path, dict[str, str]]:
        if platform == PLATFORMS["macos-x86_64"]:
            raise NoWheel("the lock has no wheel of click==1 for it")
        return tree / "site", {"click-1-py3-none-any.whl": "ab" * 32}

    monkeypatch.setattr(build_release, "install", install)
    monkeypatch.setattr(build_release, "python_of", lambda version: None)
    write(tree / "dist" / "sediment-beos-cp39.pyz", b"of an earlier release")
    build_release.release(("3.11", "3.13"))
    dist = tree / "dist"
    files = {file.name for file in dist.iterdir()}
    assert len(files) == 2 * 4 + 2
    sums = dict(line.split()[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert {*sums, "SHA256SUMS"} == files
    for name, digest in sums.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
    note = json.loads((dist / "PROVENANCE.json").read_text())
    assert {*note["files"], "PROVENANCE.json", "SHA256SUMS"} == files
    one = note["files"]["sediment-linux-arm64-cp313.pyz"]
    assert one["sha256"] == sums["sediment-linux-arm64-cp313.pyz"]
    assert one["wheels"] == {"click-1-py3-none-any.whl": "ab" * 32}
    assert one["compiled_by"] is None
    assert "click==1" in note["skipped"]["sediment-macos-x86_64-cp311.pyz"]
    out = capsys.readouterr().out
    assert "skipped  dist/sediment-macos-x86_64-cp313.pyz" in out
    assert "not compiled: there is no python3.13 here" in out


def test_a_python_of_a_version_is_found_or_not() -> None:
    major, minor, *_ = sys.version_info
    found = build_release.python_of(f"{major}.{minor}")
    assert found is not None
    assert found[1].startswith(f"CPython {major}.{minor}.")
    assert build_release.python_of("3.99") is None

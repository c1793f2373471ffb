"""Put plausible bugs into a copy of the project, one at a time, and say which no test notices.

Each entry of mutants.json has `what` is wrong then, the `file` with its `edits` (what stands there
once, and what takes its place), and the `tests` that should notice: groups of files, tried in this
order until one fails. When code moves to another file, change `file`; when it changes, the edits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = (".git", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
FITS_NOT, MISSED, NOTICED = "fits not", "MISSED", "noticed"


def copy_of_project(folder: Path) -> Path:
    """A copy of the project that builds: with links to its virtual environments."""
    copy = folder / "project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for environments in filter(Path.is_dir, (ROOT / "build").iterdir()):
        (linked := copy / "build" / environments.name).mkdir(parents=True)
        for environment in environments.iterdir():
            (linked / environment.name).symlink_to(environment.resolve())
    return copy


def apply(mutant: dict[str, Any], copy: Path) -> str:
    """Make the edits in the copy; returns which does not fit."""
    text = (ROOT / mutant["file"]).read_text("utf-8")
    for old, new in mutant["edits"]:
        if text.count(old) != 1:
            return f"{mutant['file']} has {text.count(old)} times: {old.strip().splitlines()[0]}"
        text = text.replace(old, new)
    (copy / mutant["file"]).write_text(text, "utf-8")
    return ""


def judge(mutant: dict[str, Any], copy: Path) -> tuple[str, str]:
    """Whether its tests notice a mutant, and which did."""
    if reason := apply(mutant, copy):
        return FITS_NOT, reason
    try:
        subprocess.run(["make", "--silent"], cwd=copy, check=True, stdout=subprocess.DEVNULL)
        env = {**os.environ, "SEDIMENT_PYZ": str(copy / "dist" / "sediment.pyz")}
        for group in mutant["tests"]:
            command = [sys.executable, "-m", "pytest", "-q", "-x", *group.split()]
            done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
            if done.returncode == 1:  # a test failed; anything else is no answer
                return NOTICED, failure(done.stdout)
            if done.returncode:
                raise SystemExit(f"{group} cannot be run:\n{done.stdout}{done.stderr}")
        return MISSED, " ".join(mutant["tests"])
    finally:
        shutil.copy(ROOT / mutant["file"], copy / mutant["file"])


def failure(output: str) -> str:
    """The test that failed, by what pytest printed."""
    lines = (line for line in output.splitlines() if line.startswith(("FAILED", "ERROR")))
    return next(lines, "").partition(" - ")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="those whose description has these words")
    parser.add_argument("--fit", action="store_true", help="only look whether the edits fit")
    given = parser.parse_args()
    mutants = json.loads((ROOT / "tests" / "mutants.json").read_text("utf-8"))
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of_project(Path(folder))
        for mutant in mutants:
            if given.only not in mutant["what"]:
                continue
            if given.fit:
                found = (FITS_NOT, reason) if (reason := apply(mutant, copy)) else ("fits", "")
            else:
                found = judge(mutant, copy)
            wrong += found[0] in (FITS_NOT, MISSED)
            print(f"{found[0]:<9}{mutant['what']}{f': {found[1]}' * bool(found[1])}", flush=True)
    print(f"{wrong} to look at")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

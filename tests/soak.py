"""Try to make Sediment lose data, crash, hang or leak, for as long as you like: `make soak`.

fuzz    a client that talks nonsense to a server (tests/fuzz_wire.py)
storm   many processes at one file, of which one after the other is killed (tests/storm.py)
kills   changes that are killed at every statement and write that they take (tests/kills.py)
hooks   prompts to one server, which must leave nothing behind, and sessions that grow while their
        readers and the server are killed: each turn is kept once (tests/sessions.py, Linux only)
sync    machines that sync and are killed (tests/sync_storm.py)
agree   machines whose places lose files, whose files are damaged (tests/sync_machines.py)

Without --minutes each is done once; with it, each is repeated with the next seed for its share of
the time. Prints figures, and ends with 1 and what to look at when something is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import fuzz_wire  # noqa: E402
import kills  # noqa: E402
import sessions  # noqa: E402
import storm  # noqa: E402
import sync_machines  # noqa: E402
import sync_storm  # noqa: E402

# Messages, stores, processes killed, prompts, seconds of each place, lives of machines.
PARTS = {"fuzz": 100_000, "storm": 2_000, "kills": 500, "hooks": 1_000, "sync": 300, "agree": 10}
MEMORIES, SESSIONS, TURNS = 10_000, 20, 12  # of the hooks
HANG = 1.0  # s that a server may be silent while somebody waits
PAUSE = 1.0  # s between two kills in a storm

Part = Callable[[Path, int, int, float], dict[str, Any]]


def fuzz(folder: Path, count: int, seed: int, until: float) -> dict[str, Any]:
    return fuzz_wire.run(folder, count, seed, HANG, until=until, SEDIMENT_CACHE=cache(folder))


def rage(folder: Path, count: int, seed: int, until: float) -> dict[str, Any]:
    return storm.Storm(folder, count, seed, SEDIMENT_CACHE=cache(folder)).run(PAUSE, until)


def kill(folder: Path, count: int, seed: int, until: float) -> dict[str, Any]:
    return kills.run(folder, count, seed, until)


def hook(folder: Path, count: int, seed: int, until: float) -> dict[str, Any]:
    env = {"SEDIMENT_CACHE": cache(folder)}
    figures = sessions.prompts(folder / "prompts", MEMORIES, count, seed, **env)
    return figures | sessions.growing(folder / "growing", SESSIONS, TURNS, seed, until=until, **env)


def sync(folder: Path, count: int, seed: int, until: float) -> dict[str, Any]:
    """Machines in a storm, through a folder, git and a hub in turn."""
    seconds = min(count, max(10.0, (until - time.monotonic()) / 3))
    figures = {}
    for kind in ("folder", "git", "hub"):
        found = sync_storm.run(folder / kind, kind, seconds, seed)
        figures |= {f"{kind}: {name}": value for name, value in found.items()}
    return figures


def agree(folder: Path, count: int, seed: int, until: float) -> dict[str, Any]:
    """Machines that live apart, that sync through a folder with mishaps, and with damaged files."""
    folder.mkdir()
    done = 0
    while done < count and time.monotonic() < until:
        place = folder / str(done)
        sync_machines.live_apart(place, seed + done)
        sync_machines.through_a_folder(place / "folder", seed + done, 10)
        damage = sync_machines.DAMAGE
        sync_machines.through_a_folder(place / "damaged", seed + done, 4, (), damage)
        shutil.rmtree(place)
        done += 1
    return {"lives": done}


def cache(folder: Path) -> str:
    """One for all, so that the program is unpacked once."""
    return str(folder.parent / "cache")


def main() -> int:
    """Runs the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, help="in all (default: each part once)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    for name, count in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N", help="how many")
    asked = parser.parse_args()
    chosen = asked.only or list(PARTS)
    work = Path(tempfile.mkdtemp(prefix="sediment-soak-"))
    parts: dict[str, Part] = {
        **{"fuzz": fuzz, "storm": rage, "kills": kill},
        **{"hooks": hook, "sync": sync, "agree": agree},
    }
    try:
        for name in chosen:
            share = 60 * asked.minutes / len(chosen) if asked.minutes else None
            repeat(parts[name], name, work, getattr(asked, name), asked.seed, share)
    except (AssertionError, KeyboardInterrupt):
        traceback.print_exc()
        print(f"what is left of it: {work}", file=sys.stderr)
        return 1
    shutil.rmtree(work)
    return 0


def repeat(part: Part, name: str, work: Path, count: int, seed: int, seconds: float | None) -> None:
    """One round, or as many as there is time for."""
    until = time.monotonic() + seconds if seconds else float("inf")
    while True:
        print(f"{name}, seed {seed}", flush=True)
        folder = work / f"{name}-{seed}"
        start = time.monotonic()
        figures = part(folder, count, seed, until)
        figures["seconds"] = round(time.monotonic() - start)
        for figure, value in figures.items():
            print(f"  {figure:<32}{value:>12,}", flush=True)
        shutil.rmtree(folder)
        seed += 1
        if not seconds or time.monotonic() > until:
            return


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without waiting for the encoder's threads

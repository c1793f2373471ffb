"""How fast Sediment is: `make bench`.

Everything is a ratio to a floor measured in the same run, because machines are noisy: a warm call
against the bare encoder call on the same texts, a cold command against the imports it cannot
avoid. Medians of several rounds; the last column is the spread of the rounds. Also written to
dist/bench.json.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from wire import Wire, small_env  # noqa: E402

from sediment import Encoder, Memory  # noqa: E402

ITEMS = 1_000
ROUNDS = 5
PYZ = os.environ.get("SEDIMENT_PYZ") or str(ROOT / "dist" / "sediment.pyz")

SUBJECTS = "the gateway|our staging database|Mara|the billing job|the search index|CI|the CDN|auth"
ACTIONS = "moved to|is rebuilt by|was blocked by|depends on|must never call|prefers|logs to|retries"
OBJECTS = "port 18789|PostgreSQL 15|the nightly export|a feature flag|Redis|the canary|a queue|S3"
PEOPLE = ("Ana", "Bo", "Cy", "Di", "Eve")
REASONS = "since the outage|for compliance|because of latency|until the audit|after the migration"


def sentences(count: int, seed: int) -> list[str]:
    """Memories that read like memories; all different."""
    rng = random.Random(seed)
    parts = [words.split("|") for words in (SUBJECTS, ACTIONS, OBJECTS, REASONS)]
    return [
        f"{' '.join(map(rng.choice, parts))} (ticket {seed}-{number}), decided with "
        f"{rng.choice(['Ana', 'Bo', 'Cy', 'Di', 'Eve'])} in week {rng.randrange(1, 53)}."
        for number in range(count)
    ]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_of(work: Callable[[Any], object], inputs: Iterable[Any]) -> float:
    return statistics.median(seconds(lambda value=value: work(value)) for value in inputs)


def command(*words: str, env: dict[str, str]) -> Callable[[int], object]:
    """A whole process, as a function to time."""
    line = [sys.executable, *words]
    return lambda _: subprocess.run(line, env=env, check=True, capture_output=True)


def resident(pid: int) -> float:
    """Memory of a process in MB (Linux; elsewhere 0)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Bench:
    """Collects each figure over the rounds."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        self.rounds.setdefault(name, []).append(value)

    def report(self) -> dict[str, float]:
        """Print the table; returns the medians."""
        print("| figure | median | spread |\n| --- | --- | --- |")
        medians = {}
        for name, values in self.rounds.items():
            middle = medians[name] = statistics.median(values)
            spread = (max(values) - min(values)) / middle if middle else 0
            print(f"| {name} | {middle:.3g} | {100 * spread:.0f} % |")
        return medians


def warm(bench: Bench, wire: Wire, encoder: Encoder, turn: int) -> None:
    """Calls to a running server, against the bare encoder call on the same texts."""
    texts = sentences(40, 1000 + turn)
    queries = [text.split(" (")[0] for text in texts]
    floor = median_of(encoder.embed, queries)
    bench.add("encoder call, query (ms)", floor * 1000)
    recalled = median_of(lambda query: wire.call("recall", query=query), queries)
    bench.add("recall_1k", recalled / floor)
    floor = median_of(encoder.embed, texts)
    bench.add("store_1k", median_of(lambda text: wire.call("store", content=text), texts) / floor)


def cold(bench: Bench, env: dict[str, str]) -> None:
    """Whole processes, against the interpreter with the imports they need."""
    imports = median_of(command("-c", "import numpy, onnxruntime, tokenizers", env=env), range(3))
    recalled = median_of(command(PYZ, "recall", "which port?", "--json", env=env), range(3))
    bench.add("cold_recall", recalled / imports)
    bench.add("cold recall (ms)", recalled * 1000)
    imports = median_of(command("-c", "import click, sqlite3, json", env=env), range(5))
    listed = median_of(command(PYZ, "list", "--json", env=env), range(5))
    bench.add("cold_list", listed / imports)
    bench.add("cold list (ms)", listed * 1000)


def handshake(bench: Bench, folder: Path, env: dict[str, str]) -> None:
    """From spawn to the first answer."""
    floor = median_of(command("-c", "import json", env=env), range(5))

    def answer(_: int) -> None:
        wire = Wire(folder, env)
        wire.handshake()
        wire.kill()

    bench.add("handshake", median_of(answer, range(5)) / floor)


def bulk(bench: Bench, memory: Memory) -> None:
    """An import, against the encoder alone on the same texts."""
    texts = sentences(ITEMS, 1)
    alone = seconds(lambda: [memory.encoder.embed(text) for text in texts])
    lines = [json.dumps({"content": text}) for text in texts]
    imported = seconds(lambda: memory.import_rows(lines))
    bench.add("import_rate", alone / imported)
    bench.add("import (memories a second)", ITEMS / imported)
    size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    bench.add("bytes_per_memory", memory.database.value(size) / ITEMS)


def main() -> None:
    bench = Bench()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cache = os.environ.get("SEDIMENT_CACHE") or str(folder / "cache")
        facts = {"SEDIMENT_DB": str(folder / "memory.db"), "SEDIMENT_PROJECT": "bench"}
        env = small_env(folder, **facts, SEDIMENT_RATE_LIMIT="0", SEDIMENT_CACHE=cache)
        with Memory(folder / "memory.db", project="bench") as memory:
            bulk(bench, memory)
            wire = Wire(folder, env)
            wire.handshake()
            bench.add("rss_idle", resident(wire.pid))
            for turn in range(ROUNDS):
                warm(bench, wire, memory.encoder, turn)
                cold(bench, env)
                handshake(bench, folder, env)
            bench.add("rss_1k", resident(wire.pid))
            wire.end()
    bench.add("pyz_mb", Path(PYZ).stat().st_size / 1e6)
    (ROOT / "dist" / "bench.json").write_text(json.dumps(bench.report(), indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How fast machines sync, through a folder and through PostgreSQL: a part of `make bench`.

push_F, push_H   memories a second that leave, with vectors where a hub takes them
pull_F, pull_H   memories a second that arrive and are found by words; at a hub by vectors, too
new_machine_H    s until a machine that has nothing has all, with vectors
nothing_F, _H    ms of a sync with nothing new, in a process that has all loaded
one_F, one_H     ms to send one new memory, and ms to receive it
store_beside_H   the 95th percentile of stores while all of that arrives / without
bytes_local, bytes_folder, bytes_hub   more bytes a memory: here, on the wire, at the hub
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ |= {"SEDIMENT_CONSOLIDATE": "0", "OPENBLAS_NUM_THREADS": "1"}

from bench_corpus import Corpus  # noqa: E402
from hub_server import Server  # noqa: E402
from sync_storm import Quick  # noqa: E402

import sediment  # noqa: E402
from sediment import Memory  # noqa: E402


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def machine(folder: Path, name: str, place: str) -> Memory:
    memory = Memory(folder / f"{name}.db", project="bench")
    memory._encoder = Quick()  # what encodes is measured elsewhere
    memory.sync_to(place)
    memory.share("bench")
    return memory


def fill(memory: Memory, count: int) -> None:
    texts = Corpus(sediment.model_dir() / "tokenizer.json", 1).texts(count)
    with memory.database.transaction() as connection:
        for number, text in enumerate(texts):
            facts = (
                str(uuid.UUID(int=number)),
                f"{text} {number}.",
                "text",
                "bench",
                1_700_000_000 + number,
            )
            chunk = sediment.Chunk(0, len(facts[1]), "")
            vector = memory.encoder.embed(facts[1])
            sediment.insert_item(connection, sediment.Item(*facts, [chunk], [vector]))
        sediment.claim_model(connection, memory.encoder.model)


def stores(memory: Memory, stop: threading.Event) -> list[float]:
    found = []
    while not stop.is_set():
        found.append(timed(lambda: memory.store(f"A memory beside it, {len(found)}.")))
    return found


def p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


def measured(folder: Path, kind: str, places: list[str], count: int) -> Iterator[tuple[str, float]]:
    """Figures of one kind of place, as two persons reach it."""
    a = Memory(folder / f"{kind}a.db", project="bench")
    a._encoder = Quick()
    fill(a, count)
    a.database.checkpoint()
    before = a.database.size()
    a = machine(folder, f"{kind}a", places[0])
    a.database.checkpoint()
    if kind == "F":
        yield "bytes_local", (a.database.size() - before) / count
    yield f"push_{kind}", count / timed(a.sync)
    b = machine(folder, f"{kind}b", places[1])
    stop, beside = threading.Event(), list[float]()
    seconds = timed(b.sync)
    yield f"pull_{kind}", count / seconds
    yield (
        (f"new_machine_{kind}" if kind == "H" else "pending_F"),
        seconds if kind == "H" else b.pending(),
    )
    yield f"nothing_{kind}", 1_000 * statistics.median(timed(a.sync) for _ in range(11))
    a.store("One that is new.")
    yield f"one_{kind} sent", 1_000 * timed(a.sync)
    yield f"one_{kind} received", 1_000 * timed(b.sync)
    if kind == "H":
        alone = [timed(lambda n=n: b.store(f"A memory alone, {n}.")) for n in range(300)]
        a.sync(again=True)
        with b.database.transaction() as connection:
            connection.execute("UPDATE clock SET cursor = '{}'")
        thread = threading.Thread(target=lambda: beside.extend(stores(b, stop)))
        thread.start()
        b.sync()
        stop.set()
        thread.join()
        if len(beside) > 1:
            yield "store_beside_H", p95(beside) / p95(alone)
    a.close()
    b.close()


def main() -> int:
    """Prints a line for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--memories", type=int, default=10_000)
    count = parser.parse_args().memories
    server = Server()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shared = folder / "shared"
            found = dict(measured(folder, "F", [str(shared)] * 2, count))
            size = sum(path.stat().st_size for path in shared.rglob("*") if path.is_file())
            found["bytes_folder"] = size / count
            server.ask(sediment.asset("hub.sql"))
            for person in ("ann", "ben"):
                server.ask("SELECT sediment.add(%s, 'bench', true)", person)
            places = [server.url(person) for person in ("ann", "ben")]
            found |= measured(folder, "H", places, count)
            sql = "SELECT pg_total_relation_size('sediment.item')::float8 / count(*)"
            found["bytes_hub"] = server.ask(f"{sql} FROM sediment.item")[0][0]
    finally:
        server.close()
    for figure, value in found.items():
        print(f"  {figure:<24}{value:>12,.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

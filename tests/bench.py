"""How fast and how large Sediment is: `make bench`.

Every time is a ratio to a floor that is measured in the same run, turn about with what it is the
floor of (A B A B ...), because machines are noisy. Each ratio comes with its margin: what two
runs on one commit may differ by, from resampling the turns; measuring goes on until the margin is
small or the time for it is over. One table, dist/bench.json and dist/bench.svg.

The bare encoder call is tokenising and running the product's own graph in the fastest session
found here, in 32 bits, on the same texts, right behind another such call.

recall_N       MCP recall, limit 5, over the wire, with N memories in the file / bare encoder call
recall_p95     the 95th percentile of these calls / their median, with the fewest and most memories,
               in the half of the calls that waited least for a core that others used, in the
               median of ten stretches of calls
store_N        MCP store, on disk when answered / bare encoder call (each is forgotten again)
cold_recall    the process `sediment.pyz recall Q --json`, with the fewest memories
               / `python -c "import numpy, onnxruntime, tokenizers"`
cold_recall_served   the same while a server has the file open
hook_mcp       the server's answer to a hook at a prompt, with the fewest memories, each prompt in a
               session of its own / bare encoder call; hook_p95 as recall_p95
hook_process   the process `sediment.pyz hook` at a prompt / `python -c pass`
cold_list      the process `sediment.pyz list --json` / `python -c "import click, sqlite3, json"`
handshake      from starting the server to its answer to server/discover
               / `python -c "import json"`
http_recall    POST /v1/recall on one connection, with the fewest memories / bare encoder call
http_64        the 95th percentile of such calls while 63 other connections are open, which say
               nothing, half of something or nonsense, and of which eight ask once a second
               / the same percentile alone
import_rate    memories a second through import / encoded a second by the bare encoder
index_rate     sections of files a second through index / as import_rate
index_again    index of as many files that have not changed / a stat of each
rss_idle       MB of the server that has answered tools/list and not yet loaded the encoder
rss_N          MB after 100 recalls with N memories
bytes_per_memory   bytes of the closed file for a memory of 250 characters, all indexes
pyz_mb         MB of the .pyz; below the table, what each part of it takes
exact_top10    share of questions to the most memories whose ten best by cosine are the true ten

`--peer 'COMMAND'` (may be repeated) measures another MCP server with tools `store` (content) and
`recall` (query, limit), `--chroma PYTHON` the query of chromadb, which that Python must have, with
the same vectors; the query alone, without encoding. Both add a column.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import math
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
# What the product sets for itself: a BLAS of one thread and no telemetry. Floors get the same.
LIKE_SEDIMENT = {"OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
os.environ |= {"SEDIMENT_CONSOLIDATE": "0", **LIKE_SEDIMENT}

import numpy  # noqa: E402
from bench_corpus import (  # noqa: E402
    LONGEST,
    PROJECT,
    Corpus,
    Memo,
    fill,
    rows,
    stored_vectors,
)
from bench_plot import plot  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from wire import PYZ, STATELESS, Wire, http_server, small_env  # noqa: E402

from sediment import Encoder, Memory  # noqa: E402

ITEMS = "1000,10000,100000"
ENCODED = 1_000  # memories that go through the encoder, at most; the others get made-up vectors
MEASURED = 3_000  # memories in the file whose bytes are counted
GOOD_MARGIN, WORST_MARGIN = 0.04, 0.10
LONGEST_STAGE = 110  # s at one size, on a machine too noisy for the margin
LISTING = "click, sqlite3, json"  # what listing cannot do without
STRETCHES = 10  # of consecutive turns, of which a resampled run is made
RESAMPLED = 400  # times; more do not change the second digit of a margin


# What is measured, and how sure it is.


class Figure(NamedTuple):
    """A line of the table."""

    name: str
    value: float
    margin: float | None = None  # relative
    told: str = ""


class Ratio:
    """Two things that are timed turn about; each takes the number of the turn, gives seconds."""

    def __init__(
        self,
        name: str,
        above: Callable[[int], float],
        below: Callable[[int], float],
        turns: tuple[int, int],
        pid: int | None = None,
    ) -> None:
        self.name = name
        self.turns = turns  # at least, at most
        self.pid = pid  # who does the work above, when it is not a process of its own
        self.waits: list[float] = []  # of the work above, the share spent waiting for a core
        self._measure = above, below
        self.above: list[float] = []
        self.below: list[float] = []

    def take(self) -> None:
        """Measure one turn."""
        turn, (above, below) = len(self.above), self._measure
        waited = waiting(self.pid)
        self.above.append(above(turn))
        self.waits.append((waiting(self.pid) - waited) / self.above[-1])
        self.below.append(below(turn))

    def settled(self) -> bool:
        """Whether more turns would tell nothing more."""
        least, most = self.turns
        taken = len(self.above)
        if taken < least or (taken % 10 and taken < most):  # looking costs milliseconds
            return False
        return taken >= most or self.estimate()[1] <= GOOD_MARGIN

    def estimate(self) -> tuple[float, float]:
        """The ratio and its margin: of medians or the median one, whichever varies less."""
        above, below = numpy.array(self.above), numpy.array(self.below)
        picks = resampling(len(above))
        medians = numpy.median(above[picks], 1) / numpy.median(below[picks], 1)
        ratios = numpy.median((above / below)[picks], 1)
        of_medians = statistics.median(self.above) / statistics.median(self.below)
        of_ratios = float(numpy.median(above / below))
        return min(
            (of_medians, margin(medians, of_medians)),
            (of_ratios, margin(ratios, of_ratios)),
            key=lambda pair: pair[1],
        )

    def figure(self) -> Figure:
        """The line for this ratio, with both times."""
        times = [1000 * statistics.median(taken) for taken in (self.above, self.below)]
        told = f"{times[0]:.3g} ms / {times[1]:.3g} ms, {len(self.above)} turns"
        return Figure(self.name, *self.estimate(), told)


def resampling(count: int) -> Any:
    """Row numbers of samples that might as well have been taken.

    Whole stretches are drawn: a neighbour's work lasts for many turns.
    """
    length = math.ceil(count / STRETCHES)
    starts = numpy.random.default_rng(count).integers(0, count, (RESAMPLED, STRETCHES, 1))
    places = (starts + numpy.arange(length)) % count
    return places.reshape(RESAMPLED, -1)[:, :count]


def margin(values: Any, value: float) -> float:
    """By how much two such values differ at most, in 19 of 20 cases, relative to one of them."""
    return 1.96 * math.sqrt(2) * float(numpy.std(values)) / value


def settle(ratios: Iterable[Ratio], limit: float) -> None:
    """Measure turn about until each ratio is settled or the seconds are over."""
    end, left = time.perf_counter() + limit, list(ratios)
    while left and time.perf_counter() < end:
        for ratio in left:
            ratio.take()
        left = [ratio for ratio in left if not ratio.settled()]


def tail(name: str, ratio: Ratio) -> Figure:
    """The 95th percentile relative to the median, of the half that was disturbed least."""
    calm = numpy.argsort(ratio.waits, kind="stable")[: len(ratio.waits) // 2]
    values = numpy.array(ratio.above)[numpy.sort(calm)]
    # A neighbour's work lasts for a while: each stretch has its own tail, and the median is ours.
    tails = [
        numpy.percentile(part, 95) / numpy.median(part)
        for part in numpy.array_split(values, min(STRETCHES, len(values)))
    ]
    value = float(numpy.median(tails))
    picks = numpy.random.default_rng(0).integers(0, len(tails), (RESAMPLED, len(tails)))
    medians = numpy.median(numpy.array(tails)[picks], axis=1)
    share = 100 * max(ratio.waits[place] for place in calm)
    told = f"{1000 * numpy.percentile(values, 95):.3g} ms, {len(values)} calls"
    told += f" that waited at most {share:.1f} % for a core"
    return Figure(name, value, margin(medians, value), told)


def seconds(work: Callable[[], object]) -> float:
    """How long this takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def short(count: int) -> str:
    """1000 as it stands in names: 1k."""
    return f"{count // 1000}k" if count % 1000 == 0 else str(count)


def waiting(pid: int | None) -> float:
    """Seconds for which a process's threads had work and no core (Linux; elsewhere 0)."""
    try:
        threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(int(thread.read_text().split()[1]) for thread in threads) / 1e9
    except OSError:
        return 0.0


def resident(pid: int) -> float:
    """Memory of a process in MB (Linux; elsewhere 0)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


# What it is measured against.


class BareEncoder:
    """The product's graph and tokenizer and nothing around them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.folder = Encoder().model.folder
        self._tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # Which is fastest depends on the machine and on who else uses it.
        sessions = {given: self._open(*given) for given in ((1, "0"), (2, "0"), (2, "1"))}
        times: dict[tuple[int, str], list[float]] = {given: [] for given in sessions}
        for text in texts:
            for given, self._session in sessions.items():
                times[given].append(self.seconds(text))
        best = min(times, key=lambda given: statistics.median(times[given]))
        self.threads, self._session = best[0], sessions[best]

    def _open(self, threads: int, spinning: str) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        # Threads that go on spinning would take the cores from the server that is measured next.
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        options.add_session_config_entry("session.force_spinning_stop", "1")
        path = str(self.folder / "model.onnx")
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, text: str) -> Any:
        ids = numpy.array(self._tokenizer.encode(text).ids, numpy.int64)
        return self._session.run(["embedding"], {"ids": ids})[0]

    def seconds(self, text: str) -> float:
        """How long one call takes."""
        return seconds(lambda: self(text))

    def awake(self, text: str) -> float:
        """The same behind another call: one after a pause takes a fifth longer."""
        self("a call that wakes threads and fills caches")
        return self.seconds(text)


def scan_seconds(vectors: Any) -> float:
    """The shortest look at every vector: a product with each, on all cores."""
    query = numpy.array(vectors[0])
    parts = numpy.array_split(vectors, os.cpu_count() or 1)
    with ThreadPoolExecutor(len(parts)) as pool:

        def look() -> None:
            list(pool.map(lambda part: part @ query, parts))

        return min(seconds(look) for _ in range(25))


def python(env: dict[str, str], *words: str) -> Callable[[int], float]:
    """A whole Python process, as something to time."""
    line = [sys.executable, *words]
    return lambda _: seconds(
        lambda: subprocess.run(line, env=env, check=True, stdout=subprocess.PIPE)
    )


# The runs.


class Lab:
    """A scratch folder with a database, what is stored there, and what has been found out."""

    def __init__(self, folder: Path, sizes: list[int]) -> None:
        self.folder = folder
        self.sizes = sizes
        self.path = folder / "memory.db"
        cache = os.environ.get("SEDIMENT_CACHE") or str(folder / "cache")
        facts = {"SEDIMENT_DB": str(self.path), "SEDIMENT_PROJECT": PROJECT}
        switches = {"SEDIMENT_RATE_LIMIT": "0", "SEDIMENT_CONSOLIDATE": "0"}
        self.env = small_env(folder, **facts, **switches, **LIKE_SEDIMENT, SEDIMENT_CACHE=cache)
        self.corpus = Corpus(Encoder().model.folder / "tokenizer.json", seed=1)
        self.memos: list[Memo] = self.corpus.memos(min(ENCODED, sizes[0]))
        self.bare = BareEncoder([memo.text for memo in self.memos[:60]])
        self.figures: list[Figure] = []
        self.parts: list[str] = []  # of a recall's time, at each size
        self.lines: dict[str, list[tuple[int, float]]] = {}  # of the plot
        self._asked = self._filled = 0

    def add(self, *figures: Figure) -> None:
        """Note figures for the table."""
        self.figures += figures

    def questions(self, count: int) -> list[str]:
        """The next questions, each about some memory that the encoder has seen."""
        first, self._asked = self._asked, self._asked + count
        return [
            self.memos[place % len(self.memos)].question for place in range(first, first + count)
        ]

    def memory(self, path: Path | None = None) -> Memory:
        """The database, from Python."""
        return Memory(path or self.path, project=PROJECT)

    def importing(self) -> None:
        """Store the first memories, against the encoder alone on the same texts."""
        batches = [self.memos[first : first + 50] for first in range(0, len(self.memos), 50)]
        with self.memory() as memory, memory.encoder.parallel_encoding():  # one long job
            memory.encoder.embed("the first call loads the encoder")

            def stored(turn: int) -> float:
                lines = rows([memo.text for memo in batches[turn]], turn)
                return seconds(lambda: memory.import_rows(lines))

            def encoded(turn: int) -> float:
                return sum(self.bare.seconds(memo.text) for memo in batches[turn])

            ratio = Ratio("import_rate", encoded, stored, (len(batches), len(batches)))
            settle([ratio], math.inf)
            rates = [len(self.memos) / sum(taken) for taken in (ratio.below, ratio.above)]
            told = f"{rates[0]:.0f} / {rates[1]:.0f} a second"
            self.add(Figure(ratio.name, *ratio.estimate(), told))
            _, self.parents = stored_vectors(memory)

    def indexing(self) -> None:
        """Index files that say the same, against the encoder alone; then all of them again, as
        they were, against a look at each."""
        batches = [self.memos[first : first + 50] for first in range(0, len(self.memos), 50)]
        top = self.folder / "files"
        with self.memory(self.folder / "files.db") as memory, memory.encoder.parallel_encoding():
            memory.encoder.embed("the first call loads the encoder")
            top.mkdir()
            memory.index(top)

            def indexed(turn: int) -> float:
                folder = top / str(turn)
                folder.mkdir()
                for place, memo in enumerate(batches[turn]):
                    (folder / f"{place}.md").write_text(f"# {place}\n\n{memo.text}\n")
                return seconds(lambda: memory.index(folder))

            def encoded(turn: int) -> float:
                return sum(self.bare.seconds(memo.text) for memo in batches[turn])

            def looked(_: int) -> float:
                return seconds(lambda: [path.stat() for path in top.rglob("*.md")])

            first = Ratio("index_rate", encoded, indexed, (len(batches), len(batches)))
            settle([first], math.inf)
            time.sleep(2.1)  # a file that has just been written may yet change within its time
            memory.index(top)
            again = Ratio(
                "index_again", lambda _: seconds(lambda: memory.index(top)), looked, (20, 60)
            )
            settle([again], 5)
        rates = [len(self.memos) / sum(taken) for taken in (first.below, first.above)]
        self.add(
            Figure(first.name, *first.estimate(), f"{rates[0]:.0f} / {rates[1]:.0f} a second"),
            again.figure(),
        )

    def grow(self, size: int) -> None:
        """Fill the database up to a size."""
        with self.memory() as memory:
            missing = size - max(self._filled, len(self.memos))
            took = seconds(lambda: fill(memory, self.corpus.texts(missing), self.parents, size))
        self._filled = size
        say(f"{size:,} memories, {missing:,} of them filled in within {took:.1f} s")

    def cold_recall(self, name: str) -> Ratio:
        """A whole process, against the interpreter with the imports that it cannot avoid."""
        recall = python(self.env, PYZ, "recall", self.questions(1)[0], "--json")
        recall(0)  # the first start unpacks the program
        floor = python(self.env, "-c", "import numpy, onnxruntime, tokenizers")
        return Ratio(name, recall, floor, (40, 80))

    def processes(self) -> None:
        """Whole processes, with no server running."""
        listing = python(self.env, PYZ, "list", "--json")
        ratios = [
            self.cold_recall("cold_recall"),
            Ratio("cold_list", listing, python(self.env, "-c", f"import {LISTING}"), (30, 80)),
            Ratio("hook_process", self._ask_hook, python(self.env, "-c", "pass"), (30, 80)),
            Ratio("handshake", self._greet, python(self.env, "-c", "import json"), (30, 100)),
        ]
        settle(ratios, LONGEST_STAGE)
        self.add(*(ratio.figure() for ratio in ratios))

    def http(self) -> None:
        """Recall over HTTP: alone, and among many who are slow, silent or rude."""
        questions = self.questions(400)
        with http_server(self.folder, self.env) as (host, port):
            connection = http.client.HTTPConnection(host, port, timeout=60)

            def ask(turn: int) -> float:
                body = json.dumps({"query": questions[turn % len(questions)]})
                return seconds(lambda: answered(connection, body))

            ask(0)
            ratio = Ratio(
                "http_recall", ask, lambda t: self.bare.awake(questions[t % 400]), (200, 400)
            )
            settle([ratio], LONGEST_STAGE)
            alone = [ask(turn) for turn in range(200)]
            with crowd(host, port, questions):
                among = [ask(turn) for turn in range(200)]
        late = [statistics.quantiles(taken, n=20)[18] for taken in (among, alone)]
        told = f"{late[0] * 1000:.1f} / {late[1] * 1000:.1f} ms"
        self.add(ratio.figure(), Figure("http_64", late[0] / late[1], told=told))

    def _ask_hook(self, turn: int) -> float:
        given = json.dumps(self.at_prompt(self.questions(1)[0], turn))
        command = [sys.executable, PYZ, "hook"]
        run = partial(subprocess.run, command, input=given, env=self.env, cwd=self.folder)
        return seconds(lambda: run(text=True, capture_output=True, check=True))

    def _greet(self, _: int) -> float:
        start = time.perf_counter()
        wire = Wire(self.folder, self.env)
        wire.meta = STATELESS
        answer = wire.request("server/discover")
        took = time.perf_counter() - start
        wire.kill()
        assert "result" in answer, answer
        return took

    def calls(self, client: Wire | Peer, name: str, turns: tuple[int, int]) -> list[Ratio]:
        """Recall and store over the wire, against the bare encoder call on the same texts."""
        questions, texts = self.questions(turns[1]), self.corpus.texts(turns[1])

        def recall(turn: int) -> float:
            return seconds(lambda: client.call("recall", query=questions[turn], limit=5))

        def store(turn: int) -> float:
            start = time.perf_counter()
            answer = client.call("store", content=texts[turn])
            took = time.perf_counter() - start
            client.call("forget", id=answer["id"])  # so that the file keeps its size
            return took

        return [
            Ratio(
                f"{what}_{name}",
                work,
                lambda turn, on=on: self.bare.awake(on[turn]),
                turns,
                client.process.pid,
            )
            for what, work, on in (("recall", recall, questions), ("store", store, texts))
        ]

    def serving(self, size: int) -> None:
        """The running server at one size; at the smallest, whole processes beside it."""
        name, edge = short(size), size in (self.sizes[0], self.sizes[-1])
        wire = Wire(self.folder, self.env)
        wire.handshake()
        wire.request("tools/list")
        if size == self.sizes[0]:
            self.add(Figure("rss_idle", resident(wire.pid), told="MB"))
        wire.call("recall", query="the first call loads the encoder")
        # A percentile takes many calls; with few memories they are cheap.
        turns = (600, 800) if size == self.sizes[0] else (200, 400) if edge else (60, 200)
        recall, store = self.calls(wire, name, turns)
        store.turns = (min(200, turns[0]), turns[1])
        for _ in range(100):
            recall.take()
        used = resident(wire.pid)
        shown = [recall]
        if edge:
            shown.append(store)
        hook = self.hook(wire)
        if size == self.sizes[0]:
            shown += [self.cold_recall("cold_recall_served"), hook]
        settle(shown, LONGEST_STAGE)
        wire.end()
        self.add(*(ratio.figure() for ratio in shown))
        self.parts.append(f"{name}: {self.parts_of_recall(recall)}")
        if edge:
            self.add(tail(f"recall_p95_{name}", recall))
            self.add(Figure(f"rss_{name}", used, told="MB"))
        if size == self.sizes[0]:
            self.add(tail("hook_p95", hook))
        for line, taken in (("recall", recall.above), ("bare encoder call", recall.below)):
            self.lines.setdefault(line, []).append((size, 1000 * statistics.median(taken)))

    def hook(self, wire: Wire) -> Ratio:
        """A hook at a prompt, answered by the running server."""
        questions = self.questions(400)

        def told(turn: int) -> float:
            given = self.at_prompt(questions[turn], turn)
            params = {"name": "hook", "arguments": given}
            return seconds(lambda: wire.request("tools/call", params))

        floor = lambda turn: self.bare.awake(questions[turn])  # noqa: E731
        return Ratio("hook_mcp", told, floor, (200, 400), wire.process.pid)

    def at_prompt(self, question: str, session: int) -> dict[str, Any]:
        facts = {"cwd": str(self.folder), "session_id": str(session)}
        return {"hook_event_name": "UserPromptSubmit", "prompt": question, **facts}

    def parts_of_recall(self, recall: Ratio) -> str:
        """Where the time of a call goes: it is run again in this process, watched."""
        spent: defaultdict[str, float] = defaultdict(float)
        with self.memory() as memory:
            watch(memory.encoder, "embed_query", spent)
            watch(memory.database, "rows", spent)
            memory.recall("the first call loads the encoder", record=False)
            spent.clear()
            questions = self.questions(100)
            took = seconds(lambda: [memory.recall(text, record=False) for text in questions])
        calls, statements = len(questions), spent["rows calls"] / len(questions)
        encoder, sqlite = (1000 * spent[name] / calls for name in ("embed_query", "rows"))
        python = 1000 * took / calls - encoder - sqlite
        there = 1000 * (statistics.median(recall.above)) - encoder - sqlite - python
        return (
            f"encoder {encoder:.2g} ms, SQLite {sqlite:.2g} ms ({statements:.0f} queries),"
            f" Python and numpy {python:.2g} ms; wire and a server's colder caches {there:.2g} ms"
        )

    def size_of_memory(self) -> None:
        """Bytes of a file with nothing but memories of one length."""
        path, corpus = self.folder / "size.db", self.corpus
        texts = [" ".join(corpus.texts(4))[:LONGEST] for _ in range(MEASURED)]
        with self.memory(path) as memory:
            fill(memory, texts, self.parents, seed=2)
        told = f"{MEASURED:,} memories of {LONGEST} characters"
        self.add(Figure("bytes_per_memory", path.stat().st_size / MEASURED, told=told))

    def truth(self, count: int = 100) -> None:
        """The ten best by cosine, against a look at every vector; and how long such a look is."""
        with self.memory() as memory:
            ids, vectors = stored_vectors(memory)
            places = {id: place for place, id in enumerate(ids)}
            equal = 0
            for question in self.questions(count):
                found, query = cosine_recall(memory, question)
                cosines = vectors @ numpy.frombuffer(query, "<f4")
                tenth = numpy.partition(cosines, -10)[-10] - 1e-6  # equal but for rounding
                good = [id for id in found if cosines[places[id]] >= tenth]
                equal += len(good) == 10
        self.add(Figure("exact_top10", equal / count, told=f"{count} questions"))
        scan = scan_seconds(vectors)
        told = f"ms for {len(vectors):,} vectors, {vectors.nbytes / scan / 1e9:.1f} GB/s"
        self.add(Figure("scan_at_bandwidth", 1000 * scan, told=told))
        self.lines["scan at memory bandwidth"] = [
            (size, 1000 * scan * size / len(vectors)) for size in self.sizes
        ]
        numpy.savez(self.folder / "vectors.npz", vectors=vectors, queries=self.parents[:100])

    def peer(self, command: str) -> dict[str, Figure]:
        """Recall and store of another server, with as many memories as the smallest size has."""
        peer = Peer(shlex.split(command), self.folder)
        for memo in self.memos[: self.sizes[0]]:
            peer.call("store", content=memo.text)
        for text in self.corpus.texts(self.sizes[0] - len(self.memos)):
            peer.call("store", content=text)
        ratios = self.calls(peer, short(self.sizes[0]), (40, 100))
        settle(ratios, 60)
        peer.end()
        return {ratio.name: ratio.figure() for ratio in ratios}

    def chroma(self, interpreter: str) -> dict[str, Figure]:
        """Milliseconds of chromadb's query; nothing where it is not installed."""
        if subprocess.run([interpreter, "-c", "import chromadb"], capture_output=True).returncode:
            return {}
        given = [str(self.folder), *map(str, self.sizes)]
        done = subprocess.run(
            [interpreter, "-c", CHROMA, *given], check=True, stdout=subprocess.PIPE, text=True
        )
        times = {int(size): taken for size, taken in json.loads(done.stdout).items()}
        return {
            f"recall_{short(size)}": Figure("", 1000 * statistics.median(taken), told="ms")
            for size, taken in times.items()
        }


def answered(connection: http.client.HTTPConnection, body: str) -> bytes:
    """The answer to a recall over HTTP, which must be one."""
    connection.request("POST", "/v1/recall", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == 200, data
    return data


@contextlib.contextmanager
def crowd(host: str, port: int, questions: list[str]) -> Iterator[None]:
    """63 other connections, for as long as the block lasts; eight of them ask once a second, and
    must be answered."""
    over, faults = threading.Event(), []

    def rude(start: float) -> None:
        over.wait(start / 2)
        while not over.wait(0.5):
            with contextlib.suppress(OSError), socket.create_connection((host, port)) as one:
                one.sendall(b"\x16\x03nonsense\r\n\r\n")

    def asks(start: float) -> None:
        over.wait(start)
        own = http.client.HTTPConnection(host, port, timeout=60)
        while not over.wait(1):
            try:
                answered(own, json.dumps({"query": questions[0]}))
            except Exception as error:
                faults.append(error)

    half = b"POST /v1/recall HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
    with contextlib.ExitStack() as held:
        for number in range(37):
            one = held.enter_context(socket.create_connection((host, port)))
            one.sendall(half if number % 2 else b"")
        # Clients that know nothing of each other do not ask at the same moment.
        starts = [(rude, number / 18) for number in range(18)]
        starts += [(asks, number / 8) for number in range(8)]
        threads = [threading.Thread(target=work, args=[start]) for work, start in starts]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert not faults, faults[0]


def cosine_recall(memory: Memory, question: str) -> tuple[list[str], bytes]:
    """The ids of the ten best by meaning alone, and the vector that was looked for."""
    seen: list[bytes] = []
    encoder = memory.encoder
    embed = encoder.embed_query

    def watched(*given: Any) -> bytes:
        seen.append(embed(*given))
        return seen[-1]

    setattr(encoder, "embed_query", watched)  # noqa: B010 - a method, says pyright
    try:
        answer = memory.recall(question, limit=10, ranking="cosine", anyway=True, record=False)
    finally:
        setattr(encoder, "embed_query", embed)  # noqa: B010
    return [row["id"] for row in answer["results"]], seen[-1]


def watch(owner: Any, name: str, spent: defaultdict[str, float]) -> None:
    """Add up how long a method takes, and how often it is called."""
    method = getattr(owner, name)

    def watched(*given: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*given)
        finally:
            spent[name] += time.perf_counter() - start
            spent[f"{name} calls"] += 1

    setattr(owner, name, watched)


class Peer:
    """Another MCP server; unlike Wire it forgives what the protocol does not forbid."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str] | None = None) -> None:
        scratch = {"SEDIMENT_DB": str(folder / "peer.db"), "SEDIMENT_RATE_LIMIT": "0"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=env or os.environ | scratch,  # its models may be anywhere
        )
        self._id = 0
        client = {"name": "bench", "version": "1"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        self.request("initialize", hello)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """Ask one thing; notifications that come before the answer are skipped."""
        self._id += 1
        self._send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        assert self.process.stdout
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == self._id and "method" not in message:
                return message["result"]
        raise SystemExit("bench: the peer is gone")

    def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool; returns the JSON of its answer's text, if it is any."""
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        text = result["content"][0]["text"]
        assert not result.get("isError"), text
        try:
            return json.loads(text)
        except ValueError:
            return {"id": text}

    def end(self) -> None:
        """End the server, which may finish what it does."""
        assert self.process.stdin
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()


CHROMA = """
import json, sys, time
import chromadb, numpy
folder, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]
data = numpy.load(folder + "/vectors.npz")
client = chromadb.PersistentClient(
    folder + "/chroma", chromadb.config.Settings(anonymized_telemetry=False))
items = client.create_collection("items", metadata={"hnsw:space": "cosine"})
done, times = 0, {}
for size in sizes:
    while done < size:
        part = range(done, min(done + 2000, size))
        vectors = data["vectors"][part.start:part.stop]
        items.add(ids=[str(place) for place in part], embeddings=vectors)
        done = part.stop
    times[size] = []
    for query in data["queries"]:
        start = time.perf_counter()
        items.query(query_embeddings=[query], n_results=5)
        times[size].append(time.perf_counter() - start)
print(json.dumps(times))
"""


# What is shown.


def say(text: str) -> None:
    """Tell who waits how far it is."""
    print(text, file=sys.stderr, flush=True)


def parts_of_program() -> dict[str, float]:
    """What each part of the .pyz takes, in MB as packed, largest first."""
    with zipfile.ZipFile(PYZ) as program, program.open("payload.zip") as payload:
        packed = zipfile.ZipFile(io.BytesIO(payload.read()))
    sizes: Counter[str] = Counter()
    for member in packed.infolist():
        sizes[member.filename.split("/")[0].split(".")[0].split("-")[0]] += member.compress_size
    return {name: round(size / 1e6, 2) for name, size in sizes.most_common()}


def table(figures: list[Figure], peers: dict[str, dict[str, Figure]]) -> str:
    """All figures in Markdown, with a column for each peer."""
    lines = [
        ["figure", "value", "margin", "measured", *peers],
        ["---"] * (4 + len(peers)),
        *(
            [*cells(figure), *(cell(peer, figure.name) for peer in peers.values())]
            for figure in figures
        ),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(figure: Figure) -> list[str]:
    """A figure's cells; a margin that is too large is marked."""
    sure = ""
    if figure.margin is not None:
        sure = f"{100 * figure.margin:.1f} %" + (" !" if figure.margin > WORST_MARGIN else "")
    value = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"
    return [figure.name, value, sure, figure.told]


def cell(peer: dict[str, Figure], name: str) -> str:
    """A peer's figure of this name, if there is one."""
    figure = peer.get(name)
    return f"{figure.value:.3g} ({figure.told})" if figure else ""


def record(figures: list[Figure], more: dict[str, Any]) -> str:
    """All figures as JSON: the values by name, then margins and what was measured."""
    values: dict[str, Any] = {}
    for name, value, *_ in figures:
        field, _, size = name.partition("recall_p95_")
        if size:
            values.setdefault("recall_p95", {})[size] = value
        else:
            values[field] = value
    values["margins"] = {figure.name: figure.margin for figure in figures if figure.margin}
    values["measured"] = {figure.name: figure.told for figure in figures if figure.told}
    return json.dumps(values | more, indent=2) + "\n"


def run(lab: Lab, peers: list[str], chroma: str | None) -> dict[str, dict[str, Figure]]:
    """Measure everything; returns the peers' figures."""
    lab.importing()
    lab.grow(lab.sizes[0])
    lab.processes()
    lab.http()
    lab.indexing()
    for size in lab.sizes:
        lab.grow(size)
        lab.serving(size)
    lab.truth()
    lab.size_of_memory()
    lab.add(Figure("pyz_mb", Path(PYZ).stat().st_size / 1e6, told="MB"))
    columns = {command: lab.peer(command) for command in peers}
    if chroma and (measured := lab.chroma(chroma)):
        columns["chromadb"] = measured
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how fast and how large Sediment is.")
    parser.add_argument("--items", default=ITEMS, help=f"memories in the file (default {ITEMS})")
    parser.add_argument("--peer", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--chroma", metavar="PYTHON", help="an interpreter that has chromadb")
    given = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        lab = Lab(Path(scratch), sorted(map(int, given.items.split(","))))
        peers = run(lab, given.peer, given.chroma)
    parts = parts_of_program()
    print(table(lab.figures, peers))
    print(
        "\nMB of the .pyz:",
        ", ".join(f"{name} {size:g}" for name, size in parts.items() if size >= 0.05),
    )
    print("A recall with", "\nand with ".join(lab.parts))
    took = time.perf_counter() - start
    print(f"Bare encoder on {lab.bare.threads} thread(s). All this took {took:.0f} s.")
    values = {
        command: {name: cell.value for name, cell in column.items()}
        for command, column in peers.items()
    }
    more = {"parts": parts, "parts_of_recall": lab.parts, "peers": values, "seconds": round(took)}
    (ROOT / "dist").mkdir(exist_ok=True)
    (ROOT / "dist" / "bench.json").write_text(record(lab.figures, more))
    (ROOT / "dist" / "bench.svg").write_text(plot(lab.lines))


if __name__ == "__main__":
    main()

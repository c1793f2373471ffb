"""Many processes write and read one memory at once while one after the other is killed.

Four servers and four shells store, replace and forget; two servers and two shells recall, list,
get and export. Every so often one of them ends by SIGKILL, and another takes its place. Nobody
else may notice: what was acknowledged is there and is found, what was not is there wholly or not
at all, and no surviving process is shown an error.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench_corpus import Corpus
from storage import consistent, open_memory
from wire import TIMEOUT, Wire, answer_of, server_command, small_env

from sediment import Memory, NotFound, model_dir

WRITERS, READERS = 4, 2  # of each kind: servers, and shells
READ_PAUSE = 0.2  # s between two things that a reader reads
LEAD = 3  # stores of servers for each one of a shell, which takes that much longer
PROJECT = "storm"
EVERYBODYS = 3  # texts that all writers store
REMARK = "Note: "  # which makes no other memory of a text: the two are merged
PREVIEW = 100  # characters that a list shows of a text


class Fact:
    """A text that somebody has asked to store, and what has become of it as far as is known."""

    def __init__(self, text: str, after: Fact | None = None, alone: bool = True) -> None:
        self.text, self.after, self.heir_of = text, after, after
        self.alone = alone  # nobody else stores it or anything like it
        self.id = ""
        self.state = "asked"  # then kept, and perhaps replacing, replaced, forgetting, forgotten

    @property
    def changeable(self) -> bool:
        return self.alone and self.state == "kept"


class Told(NamedTuple):
    """An answer, or None of a process that was killed."""

    answer: dict[str, Any] | None


class Actor:
    """What writes or reads through one process at a time: who is killed is replaced."""

    kind = ""

    def __init__(self, storm: Storm, name: str) -> None:
        self.storm = storm
        self.random = random.Random(f"{storm.seed} {name}")
        self.process: Any = None  # a Popen
        self.killed = False

    def kill(self) -> bool:
        """End its process without a warning, if it has one."""
        process = self.process
        if process is None or process.poll() is not None:
            return False
        self.killed = True
        process.kill()
        return True

    def ask(self, tool: str, **arguments: Any) -> Told:
        """Have one thing done."""
        raise NotImplementedError

    def end(self) -> None:
        """Nothing more is asked."""


class ServerActor(Actor):
    """Asks an MCP server that stays."""

    kind = "servers"
    _wire: Wire | None = None

    def ask(self, tool: str, **arguments: Any) -> Told:
        try:
            if self._wire is None:
                self._wire = Wire(self.storm.folder, self.storm.env)
                self.process, self.killed = self._wire.process, False
                self._wire.handshake()
            params = {"name": tool, "arguments": arguments}
            response = self._wire.request("tools/call", params)
        except (AssertionError, OSError):
            if not self.killed:
                raise
            self._replace()
            return Told(None)
        if "error" in response or "isError" in response["result"]:
            return self.storm.refused(tool, arguments, json.dumps(response))
        return Told(answer_of(response))

    def _replace(self) -> None:
        if self._wire:
            assert self._wire.process.wait(TIMEOUT) == -signal.SIGKILL
            self.storm.complain(self._wire.log())
            self._wire.kill()
        self._wire = None

    def end(self) -> None:
        with contextlib.suppress(AssertionError, OSError):  # its code is looked at below
            if self._wire and self._wire.end():
                self.storm.fault("a server went on answering")
        if self._wire and self._wire.process.returncode not in (0, -signal.SIGKILL):
            self.storm.fault(f"a server ended with {self._wire.process.returncode}")
        if self._wire:
            self.storm.complain(self._wire.log())
            self._wire.kill()


class ShellActor(Actor):
    """Runs the program for each thing that is asked."""

    kind = "shells"

    def ask(self, tool: str, **arguments: Any) -> Told:
        text, words = arguments.get("content"), []
        for name, value in arguments.items():
            flag = [f"--{name.removesuffix('_id')}"] if name not in ("content", "id") else []
            words += [*flag, "-" if name == "content" else str(value)]
        command = [*server_command()[:-1], tool, *words, "--json"]
        self.killed = False
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.storm.folder,
            env=self.storm.env,
        )
        out, err = self.process.communicate(text, TIMEOUT)
        code = self.process.returncode
        if self.killed and code == -signal.SIGKILL:
            self.storm.complain(err)
            return Told(None)
        if code or err:
            return self.storm.refused(tool, arguments, f"code {code}, {err}")
        return Told(json.loads(out))


class Storm:
    """One memory and all who are at it."""

    def __init__(self, folder: Path, stores: int, seed: int, **env: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.seed, self.file = folder, seed, folder / "memory.db"
        settings = {"SEDIMENT_DB": str(self.file), "SEDIMENT_PROJECT": PROJECT}
        self.env = small_env(folder, **settings, SEDIMENT_RATE_LIMIT="0", **env)
        corpus = Corpus(model_dir() / "tokenizer.json", seed)
        self._texts = list(dict.fromkeys(corpus.texts(2 * stores + 100)))
        self._everybodys = [self._texts.pop() for _ in range(EVERYBODYS)]
        self.known = {text[:PREVIEW] for text in self._everybodys}
        self.facts: list[Fact] = []
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self._left = stores
        self._lock = threading.Lock()
        self._over = threading.Event()
        kinds = (("server", ServerActor), ("shell", ShellActor))
        self._writers, self._readers = (
            [kind(self, f"{role} {name} {n}") for name, kind in kinds for n in range(count)]
            for role, count in (("writer", WRITERS), ("reader", READERS))
        )

    def fault(self, what: str) -> None:
        """Note what nobody should have seen."""
        with self._lock:
            self.faults.append(what)

    def refused(self, tool: str, arguments: dict[str, Any], told: str) -> Told:
        """An error that was shown to somebody, which none should be."""
        self.fault(f"{tool} {arguments}: {told}")
        return Told(None)

    def count(self, what: str) -> None:
        """Add one to a figure."""
        with self._lock:
            self.counts[what] += 1

    def complain(self, log: str) -> None:
        """What a process wrote to stderr, which should be nothing."""
        if log:
            self.fault(log)

    def run(
        self, pause: float, until: float = float("inf"), kills: float = float("inf")
    ) -> dict[str, Any]:
        """Let it rage, with a kill each `pause` seconds, until that many; then look at the file."""
        start = time.monotonic()
        reads: list[Callable[[Actor], None]] = [self._recall, self._list, self._get, self._export]
        loops = [lambda actor=actor: self._write(actor, until) for actor in self._writers]
        loops += [
            lambda actor=actor, read=read: self._read(actor, read)
            for actor, read in zip(self._readers, reads, strict=True)
        ]
        threads = [threading.Thread(target=self._guard, args=(loop,)) for loop in loops]
        killer = threading.Thread(target=self._kill, args=(pause, kills))
        for thread in (*threads, killer):
            thread.start()
        for thread in threads[: len(self._writers)]:
            thread.join()
        self._over.set()
        for thread in (*threads, killer):
            thread.join()
        for actor in (*self._writers, *self._readers):
            actor.end()
        seconds = time.monotonic() - start
        assert not self.faults, f"seed {self.seed}: {self.faults}"
        self._verify()
        return {"seconds": round(seconds), **dict(sorted(self.counts.items()))}

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            self.fault(repr(error))
            self._over.set()

    def _kill(self, pause: float, kills: float) -> None:
        rng, before = random.Random(f"{self.seed} killer"), -1
        while not self._over.wait(pause):
            if self.counts["acknowledged"] == before:
                continue  # on a slow machine nobody would live to an answer
            before = self.counts["acknowledged"]
            actors = [*self._writers, *self._readers]
            rng.shuffle(actors)
            if actor := next((one for one in actors if one.kill()), None):
                self.count(f"killed {actor.kind}")
                kills -= 1
            if not kills:
                self._left = 0  # nothing more is stored

    # Writing

    def _write(self, actor: Actor, until: float) -> None:
        own: list[Fact] = []
        while time.monotonic() < until and not self._over.is_set():
            if isinstance(actor, ServerActor):
                self._let_shells_follow(until)
            if not (fact := self._next(own, actor)):
                break
            while not self._store(actor, fact) and actor.random.random() < 0.5:
                self.count("asked again")  # as an agent would whose server went away
            forgettable = [one for one in own if one.changeable]
            if forgettable and actor.random.random() < 0.1:
                self._forget(actor, actor.random.choice(forgettable))

    def _let_shells_follow(self, until: float) -> None:
        """Wait for them, as long as they have something to store."""
        while self._left and time.monotonic() < until and not self._over.is_set():
            if self.counts["stores by servers"] <= LEAD * (
                self.counts["stores by shells"] + WRITERS
            ):
                return
            time.sleep(0.02)

    def _next(self, own: list[Fact], actor: Actor) -> Fact | None:
        """What to store next: something new, in place of something or not, or something known."""
        with self._lock:
            if not self._left:
                return None
            self._left -= 1
            which, old = actor.random.random(), [fact for fact in own if fact.changeable]
            if which < 0.15:
                fact = Fact(actor.random.choice(self._everybodys), alone=False)
            elif which < 0.3 and old:
                like = actor.random.choice(old)
                like.alone = False
                fact = Fact(REMARK + like.text, alone=False)
            else:
                after = actor.random.choice(old) if which < 0.5 and old else None
                fact = Fact(self._texts.pop(), after)
            self.known.add(fact.text[:PREVIEW])
            self.facts.append(fact)
            own.append(fact)
            self.counts[f"stores by {actor.kind}"] += 1
            return fact

    def _store(self, actor: Actor, fact: Fact) -> bool:
        """Ask for it; whether that was acknowledged."""
        more = {}
        if fact.after:
            more["replace_id"], fact.after.state = fact.after.id, "replacing"
        if not (answer := actor.ask("store", content=fact.text, **more).answer):
            fact.after = None  # may have been replaced; who asks again only wants the text kept
            return False
        fact.id, fact.state = answer["id"], "kept"
        self.count("acknowledged")
        if fact.after:
            fact.after.state = "replaced"
        return True

    def _forget(self, actor: Actor, fact: Fact) -> None:
        fact.state = "forgetting"
        if actor.ask("forget", id=fact.id).answer:
            fact.state = "forgotten"
            self.count("forgotten")

    # Reading

    def _read(self, actor: Actor, read: Callable[[Actor], None]) -> None:
        while not self._over.wait(READ_PAUSE):
            read(actor)
            self.count("reads")

    def _recall(self, actor: Actor) -> None:
        if facts := self.facts[-50:]:
            query = actor.random.choice(facts).text
            answer = actor.ask("recall", query=query).answer or {"results": []}
            self._check_known(row.get("beginning", row["content"]) for row in answer["results"])

    def _list(self, actor: Actor) -> None:
        answer = actor.ask("list", limit=20).answer or {"items": []}
        self._check_known(row["content"] for row in answer["items"])

    def _get(self, actor: Actor) -> None:
        if facts := [fact for fact in self.facts if fact.id and not fact.alone]:
            fact = actor.random.choice(facts)  # which nobody forgets
            answer = actor.ask("get", id=fact.id).answer
            assert not answer or said(answer["content"]) == said(fact.text), (fact.text, answer)

    def _export(self, actor: Actor) -> None:
        answer = actor.ask("export").answer or {"items": []}
        self._check_known(row["content"] for row in answer["items"])

    def _check_known(self, texts: Any) -> None:
        for text in texts:
            assert text.removesuffix("…")[:PREVIEW] in self.known, text

    # Afterwards

    def _verify(self) -> None:
        """Every fact is as it must be by what is known of it, and nothing else is there."""
        with open_memory(self.file, PROJECT) as memory:
            consistent(memory)
            rows = list(memory.export_rows())
            assert {row["content"] for row in rows} <= {fact.text for fact in self.facts}
            live = Counter(row["content"] for row in rows if "ended_at" not in row)
            assert set(live.values()) <= {1}, live.most_common(3)
            for fact in self.facts:
                if fact.id:
                    self._verify_fact(memory, fact)
            counts = memory.stats()
            self.counts["live at the end"] = counts["items"]
            ended = Counter(f"ended by {row['ended_by']}" for row in rows if "ended_by" in row)
            self.counts.update(ended)

    def _verify_fact(self, memory: Memory, fact: Fact) -> None:
        try:
            item = memory.get(fact.id)
        except NotFound:
            assert fact.state in ("forgetting", "forgotten") or self._went_along(fact), fact.text
            return
        assert fact.state != "forgotten", fact.text
        assert said(item["content"]) == said(fact.text)
        if fact.state in ("replacing", "replaced"):
            assert fact.state == "replacing" or "successor" in item
            return
        while "successor" in item:  # by what says the same
            item = memory.get(item["successor"])
        assert said(item["content"]) == said(fact.text)
        first = memory.recall(item["content"], record=False)["results"][0]
        assert said(first["content"]) == said(fact.text), (fact.text, first)

    def _went_along(self, fact: Fact) -> bool:
        """Whether it may have been forgotten with what had replaced it."""
        heirs = [other for other in self.facts if other.heir_of is fact]
        return any(
            heir.state in ("forgetting", "forgotten") or self._went_along(heir) for heir in heirs
        )


def said(text: str) -> str:
    """A text without the remark."""
    return text.removeprefix(REMARK)

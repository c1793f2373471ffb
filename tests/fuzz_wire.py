"""A client that talks sense and nonsense, and what a server owes it all the same.

Every message follows from the seed and its number. Valid requests of both eras stand between
messages that are broken in one way each, and between cancellations, arrays and strays; they are
sent in bursts, each of which ends with a call of which nothing is wrong. Calls are answered in
their order, so when that one is answered, all before it must have been: every request once, a
cancelled one at most once, and what needs no answer never.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
from storage import consistent, open_memory
from wire import STATELESS, TIMEOUT, Wire, answer_of, small_env

BURST = 40  # messages
AHEAD = 2  # bursts that are sent before the first of them is settled
STEADY = 1_000  # messages after which a server has loaded what it will keep
GROWTH = 1.2  # of the resident memory since then
KEPT = 1_800  # bytes more that a server keeps of every chunk there ever was, a forgotten one's too
LINE_MAX = 10 * 2**20
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
PROJECT = "fuzz"
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"

WORDS = {
    "thing": "anchor ballast compass davit ensign fender galley halyard keel lantern mast oar",
    "place": "Oslo Lima Osaka Dublin Nairobi Toronto Bergen Porto Riga Split",
    "quality": "red broken borrowed heavy new rusty spare",
}
PLACEHOLDER = "\x01"  # stands for what no JSON library would write

Json = Any


class Sent(NamedTuple):
    """A line, and whom it owes an answer: ids as JSON, "" where the answer has none."""

    number: int
    data: bytes
    owed: list[str]


# What to say.


class Speaker:
    """Makes messages; knows which ids were asked with and which memories there are."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.memories: deque[str] = deque([UNKNOWN_ID], maxlen=200)
        self.valid: dict[
            str, str
        ] = {}  # method or tool by id, of requests that nothing is wrong with
        self.deep: set[str] = set()  # ids of messages that may be too deep to be read
        self._asked: deque[Json] = deque([0], maxlen=60)
        self._number = 0
        self._random = random.Random()

    def say(self, number: int) -> bytes:
        """The message of this number."""
        self._number, self._random = number, random.Random(f"{self.seed}/{number}")
        kinds = [self._sound, self._broken, self._strange, self._aside, self._many, self._deep]
        (kind,) = self._random.choices(kinds, [50, 20, 18, 7, 4, 1])
        return kind()

    def barrier(self, number: int) -> bytes:
        """A call that is answered without looking anything up for long."""
        self._number = number
        message = self._call("forget", {"id": UNKNOWN_ID}) | {"id": f"barrier {number}"}
        return self._line(message)

    def _sound(self) -> bytes:
        message = self._request()
        name = message["params"].get("name") or message["method"]
        self.valid[json.dumps(message["id"])] = name
        return self._line(message)

    def _request(self) -> dict[str, Any]:
        """A request that nothing is wrong with, of either era."""
        stateless = self._random.random() < 0.4
        which = self._random.random()
        if which < 0.5:
            message = self._any_call()
        elif which < 0.75:
            message = self._message("tools/list")
        elif stateless:
            message = self._message("server/discover")
        elif which < 0.9:
            message = self._message("ping")
        else:
            version = self._one(VERSIONS)
            client = {"capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}
            message = self._message("initialize", {"protocolVersion": version, **client})
        if stateless and message["method"] != "initialize":
            message["params"]["_meta"] = copy.deepcopy(STATELESS)
        self._asked.append(message["id"])
        return message

    def _message(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        n = self._number
        id = self._one([n, n, f"{n}", f"id {n}", 2**53 + n, -n, f"ü{n}", f"\ud800{n}"])
        return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}

    def _call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._message("tools/call", {"name": tool, "arguments": arguments})

    def _any_call(self) -> dict[str, Any]:
        which = self._random.random()
        if which < 0.3:
            arguments = {"content": self._text()}
            if self._random.random() < 0.2:
                arguments["scope"] = self._one(["global", "project"])
            if self._random.random() < 0.2:
                arguments["replace_id"] = self._one(self.memories)
            return self._call("store", arguments)
        if which < 0.5:
            query = self._one(
                [self._text(), self._one(WORDS["thing"].split()), self._one(self.memories)]
            )
            return self._call("recall", {"query": query, "limit": self._one([1, 5, 50, 1000])})
        if which < 0.7:
            return self._call("list", {"scope": self._one(["project", "global", "all"])})
        if which < 0.8:
            return self._call("hook", self._event())
        return self._call("forget", {"id": self._one(self.memories)})

    def _event(self) -> dict[str, Any]:
        """What a client tells a hook: of the tools, the one that takes anything."""
        session = self._one(["s1", "s2", f"s{self._number}", "", "\ud800", "\0", "x" * 5_000])
        prompt = self._one(
            [self._text(), "yes", f"<hook_context>{self._text()}", "\ud800 and more"]
        )
        event: dict[str, Any] = {"hook_event_name": self._one(_EVENTS), "session_id": session}
        more = {"prompt": prompt, "cwd": self._one(_PLACES), "transcript_path": self._one(_PLACES)}
        more |= {"source": self._one(["startup", "compact", 5]), "workspace_roots": [[], "/", 5]}
        more["client"] = self._one(["opencode", "claude", "nobody", None, [5]])
        return event | {name: more[name] for name in more if self._random.random() < 0.6}

    def _text(self) -> str:
        return "The {} in {} is {}.".format(*(self._one(words.split()) for words in WORDS.values()))

    # Bytes that went wrong on their way

    def _broken(self) -> bytes:
        data = bytearray(self._line(self._request())[:-1])
        for _ in range(self._one([1, 1, 1, 2, 5])):
            place = int(self._random.random() * len(data))
            self._one(_BREAKS)(data, place, self._random)
        return bytes(data) + b"\n"

    # Members that are not what they should be

    def _strange(self) -> bytes:
        message = self._request()
        holder = self._one(list(_objects(message)))
        name, raw = self._one(sorted(holder)) if holder else "extra", self._one(_TOKENS)()
        match self._one(["drop", "other", "other", "twice", "more", "id", "method"]):
            case "drop":
                holder.pop(name, None)
            case "other":
                holder[name] = PLACEHOLDER
            case "twice":
                text = json.dumps(holder.pop(name, 0))
                first, second = self._one([(text, raw), (raw, text)])
                raw = f'{first},"{name}":{second}'
                holder[name] = PLACEHOLDER
            case "more":
                holder[self._one(["tags", "", "\ud800", "__proto__", "x" * 5_000])] = PLACEHOLDER
            case "id":
                message["id"] = self._one([*_IDS, self._one(self._asked)])
            case "method":
                message["method"] = self._one(_METHODS)
        return self._line(message, raw)

    def _deep(self) -> bytes:
        id, depth = f"deep {self._number}", self._one([100, 900, 980, 3_000, 100_000])
        self.deep.add(json.dumps(id))
        left, right = self._one([("[", "]"), ('{"a":', "}")])
        raw = left * depth + "1" + right * depth
        message = self._any_call() | {"id": id}
        holder = self._one(list(_objects(message))[1:])
        holder[self._one([*sorted(holder), "extra"])] = PLACEHOLDER
        return self._line(message, raw)

    # What is no single request

    def _aside(self) -> bytes:
        """Cancellations of what runs, has run or never did; strays; lines that are none."""
        id = self._one([*self._asked, "never asked", None, [1], 1.5])
        which = self._random.random()
        if which < 0.6:
            params = self._one([{"requestId": id, "reason": "no"}, {"requestId": id}, {}, None, []])
            return self._line(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            )
        if which < 0.8:
            return self._line({"jsonrpc": "2.0", "id": id, **self._one(_STRAYS)})
        return self._one(_LINES)

    def _many(self) -> bytes:
        """An array of messages, which is refused as a whole."""
        parts = [self._request() for _ in range(self._one([0, 1, 2, 4]))]
        for place, part in enumerate(parts):  # more than one with a number
            part["id"] = f"{self._number} in {place}"
        parts += self._random.choices(_PARTS, k=self._one([0, 0, 1, 3]))
        return self._line(parts)

    def _line(self, message: Json, raw: str = "") -> bytes:
        """A message as it is sent, with characters as themselves or escaped."""
        text = json.dumps(message, ensure_ascii=self._random.random() < 0.5)
        try:
            data = text.encode()
        except UnicodeEncodeError:  # only an escape can stand for half a character
            data = json.dumps(message).encode()
        return data.replace(json.dumps(PLACEHOLDER).encode(), raw.encode()) + b"\n"

    def _one(self, choices: Any) -> Any:
        """One of them; takes one random number, however many there are."""
        return choices[int(self._random.random() * len(choices))]


def _objects(value: Json) -> Iterator[dict[str, Any]]:
    """All objects in a message."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from _objects(part)


def _put(what: bytes) -> Callable[[bytearray, int, random.Random], None]:
    def put(data: bytearray, place: int, _: random.Random) -> None:
        data[place:place] = what

    return put


def _flip(data: bytearray, place: int, rng: random.Random) -> None:
    if data:
        data[place] ^= 1 << int(rng.random() * 8)


def _cut(data: bytearray, place: int, _: random.Random) -> None:
    del data[place:]


def _lose(data: bytearray, place: int, rng: random.Random) -> None:
    del data[place : place + 1 + int(rng.random() * 8)]


def _repeat(data: bytearray, place: int, rng: random.Random) -> None:
    data[place:place] = data[place : place + 1 + int(rng.random() * 40)]


_BREAKS = [_flip, _flip, _flip, _cut, _lose, _repeat]
_BREAKS += map(_put, [b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\r", b'"', b"}", b"\\"])
_BREAKS += map(_put, [b"\xef\xbb\xbf", b"\xf5\x80\x80\x80", b"\xe2\x80\xa8", b"\n", b"NaN", b"e9"])

# Values as JSON and what is nearly JSON; the long ones are made when they are needed.
_PLAIN = r"""
null true false 0 -1 1.5 1e3 1E400 -1e999 -0 0.1e-400 NaN -Infinity Infinity "" "_" "5" [] {} [[]]
{"a":null} 0x10 01 .5 5. +1 1_000 'x' undefined "\ud800" "\u0000" "a\u0000b" "\x" "\udfff\ud800"
9007199254740993 100000000000000000000000000000 "2026-07-28" "2099-01-01" "a\tb"
"""
_TOKENS: list[Callable[[], str]] = [lambda token=token: token for token in _PLAIN.split()] * 3 + [
    lambda: "1" + "0" * 4_000,
    lambda: "1" + "0" * 5_000,
    lambda: f'"{"x" * 20_000}"',
    lambda: f'"{"é" * 12_000}"',
    lambda: f'"{"word " * 220_000}"',
    lambda: "[" + "0," * 20_000 + "0]",
    lambda: "{" + ",".join(f'"k{n}":{n}' for n in range(5_000)) + "}",
]
_IDS = [None, True, False, 1.5, 1.0, [], [1], {}, {"a": 1}, "", "x" * 5_000, 2**200, -(2**63), "\0"]
_METHODS = ["", "ping ", "PING", "tools/call\0", "resources/list", "server/discover", "initialize"]
_METHODS += ["notifications/cancelled", "\ud800", "rpc.discover", 5, None, [], {}, "x" * 100_000]
_EVENTS = [
    "UserPromptSubmit",
    "SessionStart",
    "Stop",
    "SessionEnd",
    "beforeSubmitPrompt",
    "nothing",
]
_EVENTS += ["UserPromptSubmit", 5, None, ["Stop"], "\ud800", "x" * 100_000]
_PLACES = ["", "/", "..", "~", "/nowhere/at/all", "/etc/passwd", "\0", "\ud800", 5, None, ["/"]]
_PLACES += ["/dev/zero", "x" * 5_000, "/x" * 5_000]
_STRAYS = [{"result": {}}, {"error": {"code": 1, "message": "no"}}, {"result": None, "error": None}]
_STRAYS += [{"method": "notifications/initialized"}, {"method": "notifications/unheard-of"}]
_PARTS = [5, None, "ping", [], {}, {"jsonrpc": "2.0"}, [[]], {"jsonrpc": "2.0", "method": "ping"}]
_PARTS += [{"jsonrpc": "2.0", "id": "part", "method": "nonsense"}]
_LINES = [b"\n", b"  \t\r\n", b"null\n", b"[\n", b"[]\n", b"{}\n", b"\0\n", b"hello\n", b'""\n']
_LINES += [b"{" * 1_000 + b"\n", b"\xff" * 100 + b"\n", b"\xef\xbb\xbf{}\n", b"[" * 200_000 + b"\n"]


# What is owed for it.


class Books:
    """Who has been asked for an answer, how often, and how often it came."""

    def __init__(self, speaker: Speaker) -> None:
        self.due: Counter[str] = Counter()
        self.came: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()  # of answers
        self.pardoned: set[str] = set()  # cancelled before they were known to be answered
        self._speaker = speaker

    def enter(self, number: int, data: bytes) -> Sent:
        """Note what a message is owed, as the protocol has it."""
        if b"deep " in data and (key := json.dumps(f"deep {number}")) in self._speaker.deep:
            owed = [""]  # one, with the id or without it
            assert key.encode() in data
        else:
            owed = [key for line in data.split(b"\n")[:-1] for key in self._owed(line)]
        self.due.update(owed)
        return Sent(number, data, owed)

    def _owed(self, line: bytes) -> list[str]:
        if len(line) > LINE_MAX:
            return [""]
        if not line.strip():
            return []
        try:
            message = json.loads(line.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError):
            return [""]
        return self._owed_to(message)

    def _owed_to(self, message: Json) -> list[str]:
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return [_key(message)]
        if "method" not in message and message.keys() & {"result", "error"}:
            return []
        if "id" not in message and "method" in message:
            self._cancel(message)
            return []
        return [_key(message)]

    def _cancel(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        if message["method"] == "notifications/cancelled" and isinstance(params, dict):
            key = _key({"id": params.get("requestId")})
            if key and self.due[key] > self.came[key]:
                self.pardoned.add(key)

    def take(self, part: dict[str, Any]) -> None:
        """Note an answer, which must have been asked for, and a good one if the request was."""
        key = _key(part)
        valid = self._speaker.valid.get(key)
        key = "" if key in self._speaker.deep else key
        self.came[key] += 1
        assert self.came[key] <= self.due[key], f"not asked for: {part}"
        refused = "result" in part and "isError" in part["result"]
        self.kinds["refusals" if refused else "results" if "result" in part else "errors"] += 1
        if valid and self.due[key] == 1:
            self._check(valid, part)
        assert part.get("error", {}).get("code") != -32603, part
        assert "Sediment failed" not in json.dumps(part), part

    def _check(self, name: str, answer: dict[str, Any]) -> None:
        assert "result" in answer, (name, answer)
        if name in ("recall", "list"):
            answer_of(answer)
        elif name == "hook":  # nothing, or what a client's hook may print
            (content,) = answer["result"]["content"]
            printed = json.loads(content["text"])
            assert printed.keys() <= {"hookSpecificOutput", "continue", "additional_context"}
        elif name == "store" and "isError" not in answer["result"]:  # it names what is gone
            self._speaker.memories.append(answer_of(answer)["id"])

    def settle(self, expected: dict[str, int]) -> None:
        """These must have been answered so often by now."""
        for key, count in expected.items():
            if key not in self.pardoned:
                assert self.came[key] >= count, f"{key or 'what has no id'} was not answered"

    def close(self) -> None:
        """Everything was answered, and nothing twice."""
        for key, count in self.due.items():
            assert self.came[key] == count or key in self.pardoned, f"{key} was not answered"


def _key(message: Json) -> str:
    """An id as JSON; nothing for what cannot be one."""
    id = message.get("id") if isinstance(message, dict) else None
    usable = isinstance(id, (str, int)) and not isinstance(id, bool)
    return json.dumps(id) if usable else ""


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# The conversation.


class Timed(Wire):
    """A wire that knows when lines came, and gives up a server that is silent for too long."""

    def __init__(self, cwd: Path, env: dict[str, str]) -> None:
        self.asked = 0.0  # when the oldest message was sent that awaits its answer
        self.heard = self.slowest = 0.0
        super().__init__(cwd, env)
        threading.Thread(target=self._watch, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            now = time.monotonic()
            if self.asked:
                self.slowest = max(self.slowest, now - max(self.heard, self.asked))
            self.heard = now
            self._lines.put(line)
        self._lines.put(b"")

    def _watch(self) -> None:
        while self.process.poll() is None:
            time.sleep(1)
            if self.asked and time.monotonic() - max(self.asked, self.heard) > TIMEOUT:
                self.process.kill()  # which a blocked write and a waiting read both notice

    def resident(self) -> int:
        """Bytes of memory."""
        return memory_of(self.pid)


def memory_of(pid: int) -> int:
    """The resident memory of a process, in bytes; 0 where that is not told."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


class Fuzz:
    """One conversation with one server."""

    def __init__(self, folder: Path, seed: int, **env: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.seed, self.file = folder, seed, folder / "memory.db"
        settings = {"SEDIMENT_RATE_LIMIT": "0", "SEDIMENT_PROJECT": PROJECT}
        settings |= {"SEDIMENT_DB": str(self.file), **env}
        self.wire = Timed(folder, small_env(folder, **settings))
        self.speaker = Speaker(seed)
        self.books = Books(self.speaker)
        self._bursts: deque[tuple[list[Sent], dict[str, int]]] = deque()

    def run(self, messages: int, hang: float, until: float = float("inf")) -> dict[str, Any]:
        """So many messages, or as many as there is time for; returns figures."""
        try:
            self.wire.handshake()
            self.wire.call("store", content="The encoder is loaded by this.")
            start, steady, chunks, sent = time.monotonic(), 0, 0, 0
            for first in range(0, messages, BURST):
                if time.monotonic() > until:
                    break
                self._send(first, min(BURST, messages - first))
                sent = min(first + BURST, messages)
                if not steady and sent >= STEADY:
                    self._settle_all()
                    steady, chunks = self.wire.resident(), self._chunks()
                assert self.wire.slowest <= hang, f"silent for {self.wire.slowest:.1f} s"
            self._settle_all()
            seconds, resident = time.monotonic() - start, self.wire.resident()
            chunks = self._chunks() - chunks
            self._end()
            most = GROWTH * (steady or resident) + KEPT * chunks
            assert resident <= most, f"{steady:,} to {resident:,} bytes, {chunks} chunks later"
        except BaseException as error:
            raise AssertionError(self._report()) from error
        finally:
            self.wire.kill()
        return {
            "messages": sent,
            "messages/s": round(sent / seconds),
            **{f"answers: {kind}": count for kind, count in sorted(self.books.kinds.items())},
            "cancelled": len(self.books.pardoned),
            "longest silence, ms": round(1000 * self.wire.slowest),
            f"MB after {STEADY}": round(steady / 1e6, 1),
            "MB at the end": round(resident / 1e6, 1),
            "chunks made in between": chunks,
        }

    def _send(self, first: int, count: int) -> None:
        numbers = range(first + 1, first + count + 1)
        burst = [self.books.enter(number, self.speaker.say(number)) for number in numbers]
        burst.append(self.books.enter(first, self.speaker.barrier(first)))
        expected = {key: self.books.due[key] for sent in burst for key in sent.owed}
        self._bursts.append((burst, expected))
        self.wire.asked = self.wire.asked or time.monotonic()
        self.wire.send_bytes(b"".join(sent.data for sent in burst))
        while len(self._bursts) > AHEAD:
            self._settle()

    def _settle(self) -> None:
        burst, expected = self._bursts[0]
        last = burst[-1].owed[0]
        while not self.books.came[last]:
            self.books.take(self.wire.receive())
        self.books.settle(expected)
        self._bursts.popleft()

    def _settle_all(self) -> None:
        while self._bursts:
            self._settle()
        self.wire.asked = 0.0

    def _chunks(self) -> int:
        """How many have ever been made."""
        with contextlib.closing(apsw.Connection(str(self.file))) as connection:
            return connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'chunks'").get

    def _end(self) -> None:
        """The server ends well, has had nothing to complain about, and left a good file."""
        assert self.wire.end() == []
        assert self.wire.log() == ""
        self.books.close()
        with open_memory(self.file, PROJECT) as memory:
            consistent(memory)

    def _report(self) -> str:
        """What to look at: the messages that may be at fault are written to a file."""
        failing = self.folder / f"failing-{self.seed}.jsonl"
        failing.write_bytes(b"".join(sent.data for burst, _ in self._bursts for sent in burst))
        numbers = [sent.number for burst, _ in self._bursts for sent in burst[:-1]]
        which = f"messages {numbers[0]} to {numbers[-1]}" if numbers else "the end"
        return f"seed {self.seed}, {which}, see {failing}; stderr: {self.wire.log()[-2000:]}"


def run(folder: Path, messages: int, seed: int, hang: float, **options: Any) -> dict[str, Any]:
    """Talk to a new server; `options` are `until` and what the server's environment has more."""
    until = options.pop("until", float("inf"))
    return Fuzz(folder, seed, **options).run(messages, hang, until)

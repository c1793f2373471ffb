"""Vectors of a service: what is sent to it, and what becomes of texts when it misbehaves."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Run
from storage import consistent, shared_encoder, values

import sediment
import sediment_ext.services
from sediment import Memory, ModelError, ServiceError
from sediment_ext.services import ServiceEncoder

TEXTS = [
    "Tea is served at four.",
    "The gateway listens on port 18789.",
    "Mara is vegetarian.",
    "The backup of the photographs runs on Sundays.",
]
KEY = "sk-test-0123456789"
Answer = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request, and ways to answer it."""

    server: "Service"
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.body = json.loads(self.rfile.read(length))
        self.server.asked.append(self)
        answer = self.server.answers.pop(0) if self.server.answers else well
        answer(self)

    def do_GET(self) -> None:
        self.server.asked.append(self)
        self.send(200, b"{}")

    def log_message(self, *_: object) -> None:
        pass

    def send(self, code: int, data: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    @property
    def texts(self) -> list[str]:
        """What it is asked for, of either form."""
        rows = self.body.get("requests", [])
        return self.body.get("input") or [row["content"]["parts"][0]["text"] for row in rows]


class Service(ThreadingHTTPServer):
    """A service with our vectors. `answers` are how the next requests are answered, `asked` all
    that came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answers: list[Answer] = []
        self.asked: list[Request] = []
        self.weights = numpy.eye(384, dtype="<f4")
        self.closing = threading.Event()
        shared_encoder().load()  # before the environment names another
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        made = [numpy.frombuffer(shared_encoder().embed(text), "<f4") for text in texts]
        return [(one @ self.weights).tolist() for one in made]

    def texts(self) -> list[str]:
        """All that was sent, but for the probe."""
        return [text for one in self.asked for text in one.texts if text != sediment.PROBE]

    def end(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


def give(request: Request, rows: list[Any], **more: Any) -> None:
    data = [{"index": at, "embedding": row} for at, row in enumerate(rows)]
    request.send(200, json.dumps({"data": data, **more}).encode())


def well(request: Request) -> None:
    texts = request.texts
    usage = {"prompt_tokens": 5 * len(texts), "total_tokens": 5 * len(texts), "cost": 0.25}
    give(request, request.server.vectors(texts), usage=usage)


def fails(code: int, text: bytes = b'{"error": {"message": "no"}}', **headers: str) -> Answer:
    return lambda request: request.send(code, text, **headers)


def gives(change: Callable[[list[list[float]]], Any]) -> Answer:
    """An answer with other vectors than the right ones."""
    return lambda request: give(request, change(request.server.vectors(request.texts)))


def hangs(request: Request) -> None:
    request.server.closing.wait(60)
    request.close_connection = True


def drips(request: Request) -> None:
    """Sends a header's letter every now and then, which ends no time-out of a socket."""
    while not request.server.closing.wait(0.05):
        try:
            request.wfile.write(b"H")
        except OSError:
            break
    request.close_connection = True


def breaks_off(request: Request) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "100000")
    request.end_headers()
    request.wfile.write(b'{"data": [')
    request.close_connection = True


def fails_and_breaks_off(request: Request) -> None:
    request.send_response(500)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    request.wfile.write(b"1000\r\nsorry")
    request.close_connection = True


def says_nothing(request: Request) -> None:
    request.close_connection = True
    request.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.end()


@pytest.fixture
def use(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """The service, set as a person sets it; no failure is waited for."""
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", "openai:minilm")
    monkeypatch.setenv("SEDIMENT_EMBEDDING_URL", service.url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(sediment_ext.services, "SERVICE_PAUSE", 0.001)
    monkeypatch.setattr(sediment_ext.services, "SERVICE_REST", 0.0)
    return service


def opened(path: Path, resident: bool = True) -> Memory:
    return Memory(path, project="demo", resident=resident)


def filled(path: Path, texts: Sequence[str] = TEXTS) -> Memory:
    memory = opened(path)
    for text in texts:
        memory.store(text)
    return memory


def first(answer: dict[str, Any]) -> str:
    return answer["results"][0]["content"]


def cosine(one: bytes, other: bytes) -> float:
    return float(numpy.frombuffer(one, "<f4") @ numpy.frombuffer(other, "<f4"))


# What is sent, and what comes of it


def test_its_vectors_are_those_that_it_gave(use: Service) -> None:
    encoder = ServiceEncoder()
    made = encoder.embed_all(TEXTS)
    assert all(
        cosine(one, shared_encoder().embed(text)) > 0.99999
        for text, one in zip(TEXTS, made, strict=True)
    )
    asked = use.asked[0]
    assert asked.path == "/v1/embeddings"
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    assert asked.body == {"model": "minilm", "input": [*TEXTS, sediment.PROBE]}


@pytest.mark.parametrize("resident", [True, False])
def test_what_is_stored_is_found_by_its_meaning(use: Service, path: Path, resident: bool) -> None:
    with filled(path) as memory:
        assert memory.pending() == 0
        consistent(memory)
    with opened(path, resident) as memory:
        answer = memory.recall("what does she eat?")
        assert first(answer) == "Mara is vegetarian."
        assert "notice" not in answer
        assert memory.stats()["dimension"] == 384


def test_a_name_of_gemini_or_voyage_is_asked_as_that_wants_it(
    use: Service, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gemini(request: Request) -> None:
        rows = [{"values": row} for row in request.server.vectors(request.texts)]
        request.send(200, json.dumps({"embeddings": rows}).encode())

    monkeypatch.setenv("GEMINI_API_KEY", "AIza-of-mine")
    monkeypatch.setenv("VOYAGE_API_KEY", "pa-of-mine")
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", "gemini:gemini-embedding-001")
    use.answers = [gemini, gemini]
    with filled(path, TEXTS[:1]) as memory:
        assert first(memory.recall("when is tea?")) == TEXTS[0]
    stored, asked = use.asked
    assert stored.path == "/v1/models/gemini-embedding-001:batchEmbedContents"
    assert stored.headers["x-goog-api-key"] == "AIza-of-mine"
    assert stored.headers["Authorization"] is None
    kinds = [one.body["requests"][0]["taskType"] for one in (stored, asked)]
    assert kinds == ["RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY"]
    use.asked.clear()
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", "voyage:voyage-3.5")
    with filled(path.with_name("voyage.db"), TEXTS[:1]) as memory:
        assert first(memory.recall("when is tea?")) == TEXTS[0]
    assert [one.body["input_type"] for one in use.asked] == ["document", "query"]
    assert use.asked[0].headers["Authorization"] == "Bearer pa-of-mine"


def test_answers_out_of_order_are_put_in_order(use: Service) -> None:
    def reversed_rows(request: Request) -> None:
        rows = enumerate(request.server.vectors(request.texts))
        data = [{"index": at, "embedding": row} for at, row in reversed(list(rows))]
        request.send(200, json.dumps({"data": data}).encode())

    use.answers = [reversed_rows]
    made = ServiceEncoder().embed_all(TEXTS)
    assert cosine(made[1], shared_encoder().embed(TEXTS[1])) > 0.99999


def test_many_texts_go_in_batches_and_a_long_one_after_its_answer(use: Service, path: Path) -> None:
    with opened(path) as memory:
        memory.import_rows([{"content": f"Note {n} about {TEXTS[n % 4]}"} for n in range(150)])
        assert memory.pending() == 150
        assert use.asked == []
        assert memory.embed_pending() == 150
        assert [len(one.texts) for one in use.asked] == [65, 65, 23]  # each with the probe
        assert memory.pending() == 0
        consistent(memory)


def test_status_counts_what_was_sent(use: Service, path: Path) -> None:
    with filled(path) as memory:
        memory.recall("what does she eat?")
    with opened(path) as memory:
        memory.recall("when is tea?")
    with opened(path) as memory:
        told = memory.status()
    assert told["texts_go_to"] == f"{use.url} (on this machine)"
    assert told["requests_sent"] == 6
    assert told["texts_sent"] == 6
    assert told["tokens_sent"] == 5 * 11  # with probes: of what is stored, and a new process
    assert told["cost"] == pytest.approx(1.5)


def test_status_counts_what_left_though_nothing_came_back(use: Service, path: Path) -> None:
    use.answers = [lambda request: give(request, [[0.0] * 384 for _ in request.texts])]
    with filled(path, TEXTS[:1]):
        pass
    with opened(path) as memory:
        told = memory.status()
    assert (told["requests_sent"], told["texts_sent"]) == (1, 1)
    use.end()
    with opened(path) as memory:
        memory.recall("when is tea?")
    with opened(path) as memory:
        assert memory.status()["texts_sent"] == 1


def test_a_service_that_was_not_asked_is_not_said_to_be_the_same(use: Service, path: Path) -> None:
    with filled(path) as memory:
        assert memory.stats()["same_model"]
    with opened(path) as memory:
        assert "same_model" not in memory.stats() | memory.status()


@pytest.mark.parametrize("usage", [[1], {"total_tokens": float("nan"), "cost": "1"}, None])
def test_odd_counts_are_left_out(use: Service, path: Path, usage: Any) -> None:
    use.answers = [
        lambda request: give(request, request.server.vectors(request.texts), usage=usage)
    ]
    with filled(path, TEXTS[:1]):
        pass
    with opened(path) as memory:
        told = memory.status()
    assert told["texts_sent"] == 1
    assert not told.keys() & {"tokens_sent", "cost"}


def test_a_question_goes_there_without_its_secrets(use: Service, path: Path) -> None:
    with filled(path, TEXTS[:1]) as memory:
        memory.recall("what is ghp_abcdefghijklmnopqrstuvwxyz0123456789 for?")
        assert "ghp_" not in json.dumps([one.body for one in use.asked])


def test_nothing_is_sent_unless_it_is_set(
    use: Service, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEDIMENT_EMBEDDING_MODEL")
    with filled(path) as memory:
        assert first(memory.recall("what does she eat?")) == "Mara is vegetarian."
        assert "texts_go_to" not in memory.status()
        memory.doctor()
    assert use.asked == []


# A service that misbehaves

BROKEN: dict[str, tuple[Answer, str]] = {
    "a wrong count": (gives(lambda rows: rows[:-1]), "1 usable vectors of 384"),
    "too many": (gives(lambda rows: rows * 2), "not 2 of 384"),
    "no number": (gives(lambda rows: [[float("nan"), *row[1:]] for row in rows]), "0 usable"),
    "infinity": (gives(lambda rows: [[1e300, *row[1:]] for row in rows]), "0 usable"),
    "more digits than a float has": (
        gives(lambda rows: [[10**400] for _ in rows]),
        "is not from an embeddings API",
    ),
    "nothing but zeros": (gives(lambda rows: [[0.0] * 384 for _ in rows]), "0 usable"),
    "other lengths": (
        gives(lambda rows: [row[at:] for at, row in enumerate(rows)]),
        "is not from an embeddings API",
    ),
    "words": (gives(lambda rows: [["a", "b"] for _ in rows]), "is not from an embeddings API"),
    "nulls": (gives(lambda rows: [None for _ in rows]), "is not from an embeddings API"),
    "empty vectors": (gives(lambda rows: [[] for _ in rows]), "usable vectors of 0 numbers"),
    "no JSON": (fails(200, b"<html>hello</html>"), "is not from an embeddings API"),
    "a list": (fails(200, b"[1, 2]"), "is not from an embeddings API"),
    "rows of text": (fails(200, b'{"data": ["a"]}'), "is not from an embeddings API"),
    "a wrong key": (fails(401, f'{{"error": "wrong key {KEY}"}}'.encode()), "HTTP 401"),
    "no such model": (fails(404), "HTTP 404"),
    "a redirection": (fails(307, b"", Location="http://127.0.0.1:1/v1"), "it sends us"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_text_is_stored_when_the_service_gives_nonsense(
    use: Service, path: Path, name: str
) -> None:
    answer, message = BROKEN[name]
    with opened(path) as memory:
        use.answers = [answer]
        told = memory.store(TEXTS[0])
        assert told["pending_chunks"] == 1
        assert message in told["message"]
        assert KEY not in told["message"]
        assert len(use.asked) == 1  # which no second try would mend
        assert memory.embed_pending() == 1
        assert first(memory.recall("when do we drink something hot?")) == TEXTS[0]
        consistent(memory)


PASSING: dict[str, Answer] = {
    "too many requests": fails(429, Retry_After="0"),
    "too many requests, with a date": fails(429, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"),
    "a fault": fails(500),
    "overload": fails(503, b"\xff\x00 overloaded"),
    "a fault that breaks off": fails_and_breaks_off,
    "an early end": breaks_off,
    "silence": says_nothing,
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_tried_again(use: Service, path: Path, name: str) -> None:
    use.answers = [PASSING[name]] * 2
    with opened(path) as memory:
        assert "pending_chunks" not in memory.store(TEXTS[0])
        assert len(use.asked) == 3
        assert memory.encoder.trouble == ""


def test_a_service_that_says_when_is_asked_no_sooner(use: Service, path: Path) -> None:
    use.answers = [fails(429, Retry_After="1")]
    start = time.monotonic()
    with opened(path) as memory:
        assert "pending_chunks" not in memory.store(TEXTS[0])
    assert time.monotonic() - start >= 1
    use.answers = [fails(429, Retry_After="3600")]
    with opened(path) as memory:
        assert "HTTP 429" in memory.store(TEXTS[1])["message"]
        memory.recall("when is tea?")
        assert len(use.asked) == 3  # it is left alone, and words answer


@pytest.mark.parametrize("answer", [hangs, drips])
def test_a_slow_service_is_not_waited_for(
    use: Service, path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment, "SERVICE_WAIT", 0.5)
    with filled(path) as memory:
        use.answers = [answer] * 20
        recalled = memory.recall("who is vegetarian?")
        assert first(recalled) == "Mara is vegetarian."
        assert re.search("no answer within|timed out", recalled["notice"])


def test_an_unreachable_service_leaves_the_words(
    use: Service, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(path, TEXTS[:2]):
        pass
    use.end()
    with opened(path) as memory:
        told = memory.store(TEXTS[2])
        assert told["success"]
        assert "found by words alone, as it still needs 1 vector" in told["message"]
        answer = memory.recall("is Mara vegetarian?")
        assert first(answer) == TEXTS[2]
        assert "Found by words" in answer["notice"]
        assert use.url not in answer["notice"]  # which those who ask from elsewhere may see
        with pytest.raises(ServiceError, match="no vectors from openai:minilm"):
            memory.embed_pending()
        assert memory.pending() == 1
    again = Service()
    try:
        monkeypatch.setenv("SEDIMENT_EMBEDDING_URL", again.url)  # the same model elsewhere
        with opened(path) as memory:
            assert memory.embed_pending() == 1
            answer = memory.recall("what does she eat?")
            assert first(answer) == TEXTS[2]
            assert "notice" not in answer
            consistent(memory)
    finally:
        again.end()


def test_after_a_failure_it_is_left_alone_for_a_while(
    use: Service, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment_ext.services, "SERVICE_REST", 600.0)
    use.answers = [fails(401)]
    with opened(path) as memory:
        for text in TEXTS:
            assert "HTTP 401" in memory.store(text)["message"]
        assert len(use.asked) == 1


def test_the_key_and_the_texts_follow_no_redirection(use: Service, path: Path) -> None:
    other = Service()
    try:
        for code in (301, 302, 303, 307, 308):
            use.answers = [fails(code, b"", Location=f"{other.url}/embeddings")]
            with opened(path) as memory:
                assert "it sends us" in memory.store(f"{TEXTS[0]} ({code})")["message"]
        assert other.asked == []
    finally:
        other.end()


@pytest.mark.parametrize("code", [400, 413, 500])
def test_a_text_that_is_refused_as_too_long_is_cut_and_holds_up_no_other(
    use: Service, path: Path, code: int
) -> None:
    def refuses(request: Request) -> None:
        if sum(map(len, request.texts)) > 500:
            request.send(code, b'{"error": "the input is too large"}')
        else:
            well(request)

    use.answers = [refuses] * 200
    long = "The manual of the harbour crane says a lot about ropes and hooks. " * 12
    with opened(path) as memory:
        memory.import_rows([{"content": text} for text in (*TEXTS, long, "Last of all: boots.")])
        assert memory.embed_pending() == 6
        assert memory.pending() == 0
        assert first(memory.recall("which shoes?")) == "Last of all: boots."


def test_what_is_for_this_machine_goes_through_no_proxy(
    use: Service, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with filled(path, TEXTS[:1]) as memory:
        assert memory.pending() == 0


# One file, one model


def test_a_file_of_another_model_is_reindexed(
    use: Service, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEDIMENT_EMBEDDING_MODEL")
    with filled(path):
        pass
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", "openai:minilm")
    with opened(path) as memory:
        assert memory.recall("is Mara vegetarian?")["notice"] == sediment.OTHER_MODEL
        memory.store("Stored with neither.")
        assert memory.reindex()["items"] == 5
        answer = memory.recall("what does she eat?")
        assert first(answer) == "Mara is vegetarian."
        assert "notice" not in answer
        consistent(memory)
    monkeypatch.delenv("SEDIMENT_EMBEDDING_MODEL")
    with opened(path) as memory:
        assert memory.recall("is Mara vegetarian?")["notice"] == sediment.OTHER_MODEL
        memory.reindex()
        assert values(memory, "SELECT key FROM meta WHERE key = 'model_probe'") == []
        consistent(memory)


OTHERS = {
    "of another dimension": numpy.eye(384, 200, dtype="<f4"),
    "of the same dimension": numpy.roll(numpy.eye(384, dtype="<f4"), 7, axis=1),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("resident", [True, False])
def test_another_model_behind_the_same_name_is_never_mixed_in(
    use: Service, path: Path, name: str, resident: bool
) -> None:
    with filled(path):
        pass
    use.weights = OTHERS[name]
    with opened(path, resident) as memory:
        answer = memory.recall("is Mara vegetarian?")
        assert first(answer) == "Mara is vegetarian."
        assert answer["notice"] == sediment.OTHER_MODEL
    with opened(path, resident) as memory:
        assert memory.store("The spare key is at the neighbours'.")["pending_chunks"] == 1
        assert memory.embed_pending() == 0
        assert set(values(memory, "SELECT length(vector) FROM vectors")) == {4 * 384}
        memory.reindex()
        assert len(set(values(memory, "SELECT length(vector) FROM vectors"))) == 1
        answer = memory.recall("what does she eat?")
        assert first(answer) == "Mara is vegetarian."
        assert "notice" not in answer
        consistent(memory)


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_that_comes_while_a_process_runs_is_never_mixed_in(
    use: Service, path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(path) as memory, opened(path) as other:
        other.recall("is Mara vegetarian?")
        use.weights = OTHERS[name]
        assert memory.store("The harbour crane needs oil.")["pending_chunks"] == 1
        assert memory.recall("is Mara vegetarian?")["notice"] == sediment.OTHER_MODEL
        memory.reindex()
        later = time.monotonic() + sediment_ext.services.PROBE_EVERY + 1
        monkeypatch.setattr(sediment.time, "monotonic", lambda: later)
        for one in (memory, other):
            answer = one.recall("what does she eat?")
            assert first(answer) == "Mara is vegetarian."
            assert "notice" not in answer
        assert "pending_chunks" not in other.store("The ferry leaves at nine.")
        consistent(memory)


def test_a_reindex_without_its_service_keeps_the_old_vectors(use: Service, path: Path) -> None:
    with filled(path) as memory:
        use.answers = [fails(401)]
        with pytest.raises(ServiceError, match="HTTP 401"):
            memory.reindex()
        assert first(memory.recall("what does she eat?")) == "Mara is vegetarian."
        consistent(memory)


def test_files_are_indexed_by_words_until_it_answers(
    use: Service, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "MEMORY.md").write_text("\n".join(f"## Part {n}\n\n{TEXTS[n]}\n" for n in range(4)))
    with opened(path) as memory:
        use.answers = [fails(401)]
        told = memory.index(tmp_path / "MEMORY.md")
        assert told["chunks"] == 4
        assert "HTTP 401" in told["notice"]
        assert memory.pending() == 4
        assert "Mara" in first(memory.recall("is Mara vegetarian?"))
        assert memory.embed_pending() == 4
        assert "Mara" in first(memory.recall("what does she eat?"))
        consistent(memory)


# How it is set, and what is told


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://host/v1",
        "localhost:11434/v1",
        "http://me:secret@host/v1",
        "http://",
        "http://host/v1?key=secret",
        "http://ho st/v1",
        "http://host:port/v1",
    ],
)
def test_an_address_that_cannot_be_one_is_refused(
    url: str, use: Service, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEDIMENT_EMBEDDING_URL", url)
    with opened(path) as memory, pytest.raises(ModelError, match="SEDIMENT_EMBEDDING_URL") as told:
        memory.store(TEXTS[0])
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("name", ["openai:", "openai:../../admin?x", "gemini:a b"])
def test_a_name_that_cannot_be_one_is_refused(
    name: str, use: Service, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", name)
    with opened(path) as memory, pytest.raises(ModelError, match="SEDIMENT_EMBEDDING_MODEL"):
        memory.store(TEXTS[0])


@pytest.mark.parametrize("key", ["", "sk-\nX-Evil: 1", "clé"])
def test_nothing_goes_to_a_public_service_without_a_key(
    key: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEDIMENT_EMBEDDING_MODEL", "openai:text-embedding-3-small")
    monkeypatch.delenv("SEDIMENT_EMBEDDING_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with opened(path) as memory:
        message = memory.store(TEXTS[0])["message"]
    assert "OPENAI_API_KEY is not set to a key" in message
    assert "Evil" not in message


def test_the_doctor_says_where_texts_go(use: Service, path: Path) -> None:
    with filled(path) as memory:
        checks = {check["name"]: check for check in memory.doctor()["checks"]}
        assert checks["model"]["status"] == "ok"
        assert f"texts are sent to {use.url}" in checks["model"]["detail"]
        use.answers = [fails(401)]
        checks = {check["name"]: check for check in memory.doctor()["checks"]}
        assert checks["model"]["status"] == "warning"
        assert "HTTP 401" in checks["model"]["detail"]
        assert memory.doctor()["healthy"]


def test_commands_work_with_it_and_without_it(use: Service, run_pyz: Run) -> None:
    env = {
        "SEDIMENT_EMBEDDING_MODEL": "openai:minilm",
        "SEDIMENT_EMBEDDING_URL": use.url,
        "OPENAI_API_KEY": KEY,
        "SEDIMENT_PROJECT": "demo",
    }
    told = run_pyz("--version", "--verbose", env=env).stdout.splitlines()
    assert told[0].startswith("sediment ")
    assert told[1].startswith(f"model openai:minilm: texts are sent to {use.url} (on this machine)")
    assert KEY not in "\n".join(told)
    assert told[-1].startswith("set SEDIMENT_")
    assert "SEDIMENT_EMBEDDING_MODEL, SEDIMENT_EMBEDDING_URL, SEDIMENT_PROJECT" in told[-1]
    assert use.asked == []
    here = run_pyz("--version", "--verbose").stdout.splitlines()
    assert here[1].startswith("model all-MiniLM-L6-v2: texts stay here")
    assert "Stored" in run_pyz("store", TEXTS[2], env=env).stdout
    assert TEXTS[2] in run_pyz("recall", "what does she eat?", env=env).stdout
    status = run_pyz("status", env=env).stdout
    assert use.url in status
    assert "tokens sent" in status
    use.answers = [fails(401)] * 10
    stored = run_pyz("store", TEXTS[0], env=env)
    assert stored.returncode == 0
    assert "HTTP 401" in stored.stdout
    assert "All is stored" in stored.stderr
    found = run_pyz("recall", "when is tea served?", env=env).stdout
    assert TEXTS[0] in found
    assert "Found by words" in found
    use.answers = []
    assert "Stored" in run_pyz("store", TEXTS[1], env=env).stdout  # which makes the other's, too
    assert json.loads(run_pyz("--json", "stats", env=env).stdout)["pending_chunks"] == 0
    for output in (status, stored.stdout, stored.stderr, found):
        assert KEY not in output

"""On HTTP: the same operations for this machine and for whoever has a token; none for others."""

import base64
import contextlib
import hashlib
import http.client
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from conftest import Run
from program import Program, one_line
from storage import open_memory
from wire import STATELESS, TIMEOUT, http_server, small_env

import sediment
import sediment_ext.conversations
import sediment_ext.http
import sediment_ext.json_lines
from sediment import Memory

JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}
MISMATCH = -32020


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: Any


class Door:
    """A server, and requests to it."""

    def __init__(self, host: str, port: int, **headers: str) -> None:
        self.host, self.port, self.headers = host, port, headers

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request on a connection of its own; JSON both ways where that fits."""
        named = {
            name.replace("_", "-"): value for name, value in {**self.headers, **headers}.items()
        }
        data = json.dumps(body).encode() if isinstance(body, dict | list) else body
        typed = {**JSON, **named} if data is not None else named
        with contextlib.closing(
            http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)
        ) as connection:
            connection.request(method, path, data, typed)
            answer = connection.getresponse()
            text = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        is_json = found.get("content-type", "") == "application/json" and text
        return Answer(answer.status, found, json.loads(text) if is_json else text)

    def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = self.ask(method, path, body, **headers)
        assert answer.status in (200, 201), answer
        return answer.body

    def store(self, text: str, **more: Any) -> str:
        return self.ok("POST", "/v1/memories", {"content": text, **more})["id"]

    def found(self, query: str) -> list[str]:
        rows = self.ok("POST", "/v1/recall", {"query": query})["results"]
        return [row["content"] for row in rows]

    def raw(self, data: bytes, wait: float = TIMEOUT) -> bytes:
        """All that comes back to some bytes, until the server closes or says nothing for long."""
        with socket.create_connection((self.host, self.port), timeout=wait) as connection:
            connection.sendall(data)
            got = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                while part := connection.recv(65_536):
                    got += part
        return got

    def mcp(self, message: Any, **headers: str) -> Answer:
        return self.ask("POST", "/mcp", message, **headers)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http")


@pytest.fixture(scope="module")
def door(place: Path, unpacked: Path) -> Iterator[Door]:
    """A server that anybody on this machine may ask."""
    env = small_env(place, SEDIMENT_CACHE=str(unpacked), SEDIMENT_RATE_LIMIT="0")
    with http_server(place, env, "--project", "demo") as (host, port):
        yield Door(host, port)


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, unpacked: Path
) -> Iterator[tuple[Door, dict[str, str]]]:
    """A server that asks for tokens, and one of each kind."""
    home = tmp_path_factory.mktemp("guarded")
    env = small_env(home, SEDIMENT_CACHE=str(unpacked), SEDIMENT_RATE_LIMIT="0")
    path = home / "memory.db"
    with open_memory(path, "demo") as memory:
        tokens = {
            "all": memory.add_token("all")["token"],
            "reader": memory.add_token("reader", reads=True)["token"],
            "one": memory.add_token("one", project="demo")["token"],
            "gone": memory.add_token("gone")["token"],
        }
        memory.revoke_token("gone")
        memory.store("The demo listens at port 80.")
        memory.store("Tea is at four, everywhere.", scope="global")
    with open_memory(path, "other") as memory:
        memory.store("The other one listens at port 81.")
    with http_server(home, env, "--db", str(path), "--project", "demo") as (host, port):
        yield Door(host, port), tokens


@contextlib.contextmanager
def gate(memory: Memory, key: str | None = None, host: str = "127.0.0.1") -> Iterator[Door]:
    """A server in a thread of this process."""
    server = sediment_ext.http.listen(memory, host, 0, key)

    def run() -> None:
        with contextlib.suppress(OSError):  # it is closed while it waits for the next request
            server.run()

    threading.Thread(target=run, daemon=True).start()
    yield Door(host, server.effective_port)
    server.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# The operations


def test_a_memory_from_store_to_forget(door: Door) -> None:
    id = door.store("We deploy on Fridays.", created_at="2026-03-01")
    assert door.found("when do we release?")[0] == "We deploy on Fridays."
    new = door.ok("PUT", f"/v1/memories/{id}", {"content": "We deploy on Mondays."})["id"]
    assert door.found("when do we release?")[0] == "We deploy on Mondays."
    versions = door.ok("GET", f"/v1/memories/{new}/history")["versions"]
    assert [row["content"] for row in versions] == [
        "We deploy on Fridays.",
        "We deploy on Mondays.",
    ]
    assert door.ok("POST", f"/v1/memories/{new}/undo", {})["restored"] == id
    assert door.ok("GET", f"/v1/memories/{id}")["created"].startswith("2026-03-01")
    assert {row["id"] for row in door.ok("GET", f"/v1/memories/{id}/graph")["nodes"]} == {id, new}
    door.ok("DELETE", f"/v1/memories/{id}")
    assert door.ask("GET", f"/v1/memories/{id}").status == 404


def test_arguments_in_a_query_are_typed(door: Door) -> None:
    for text in ("Otters hold hands.", "Otters sleep at sea."):
        door.store(text)
    answer = door.ok("GET", "/v1/recall?query=what+do+otters+do&limit=1&explain=true")
    assert answer["count"] == 1
    assert "explanation" in answer["results"][0] or "parts" in answer["results"][0]
    assert door.ok("GET", "/v1/memories?scope=all&limit=1")["count"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("GET", "/v1/recall", None, 400, "query is missing"),
        ("GET", "/v1/recall?query=x&limit=many", None, 400, "limit must be an integer"),
        ("GET", "/v1/recall?query=x&limits=3", None, 400, "takes query, limit"),
        ("GET", "/v1/memories?scope=moon", None, 400, "scope"),
        ("POST", "/v1/memories", {"content": 5}, 400, "content must be a string"),
        ("POST", "/v1/memories", {"content": "x", "into": "a.md"}, 400, "not 'into'"),
        ("POST", "/v1/memories", [], 400, "must be a JSON object"),
        ("POST", "/v1/memories", b"{", 400, "not JSON"),
        ("POST", "/v1/memories", b"[" * 100_000, 400, "not JSON"),
        ("POST", "/v1/memories", b'{"content": "\\ud800"}', 400, "surrogate"),
        ("GET", "/v1/memories/nothing", None, 404, "not found"),
        ("GET", "/v1/nothing", None, 404, "openapi"),
        ("GET", "/../../etc/passwd", None, 404, "openapi"),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", None, 404, "openapi"),
        ("PATCH", "/v1/memories", None, 405, "nothing for this path"),
        ("GET", "/v1/export?nonsense=1", None, 400, "takes nothing; not 'nonsense'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    door: Door, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    answer = door.ask(method, path, body)
    assert (answer.status, reason in answer.body["error"]) == (status, True), answer


@pytest.mark.parametrize(
    ("path", "methods", "allowed"),
    [
        ("/v1/export", "POST PUT DELETE", "GET"),
        ("/v1/import", "GET PUT DELETE", "POST"),
        ("/v1/session", "GET PUT", "POST"),
        ("/health", "POST DELETE", "GET, HEAD"),
        ("/v1/memories", "PUT", "GET, POST"),
    ],
)
def test_another_method_than_a_path_has_is_refused_with_what_it_has(
    door: Door, path: str, methods: str, allowed: str
) -> None:
    for method in methods.split():
        answer = door.ask(method, path)
        assert (answer.status, answer.headers.get("allow")) == (405, allowed)


def test_a_request_as_to_a_proxy_is_answered(door: Door) -> None:
    own = f"http://{door.host}:{door.port}"
    assert door.ok("GET", f"{own}/v1/stats") == door.ok("GET", "/v1/stats")
    assert door.ok("GET", f"{own}/v1/memories?limit=1")["items"] is not None
    assert door.ask("GET", f"{own}/v1/nothing").status == 404
    elsewhere = door.ask("GET", "http://evil.example/v1/stats", Host=f"{door.host}:{door.port}")
    assert elsewhere.status == 403, "the name in the first line is the one that counts"


def test_conversations_are_listed_as_memories_are(door: Door) -> None:
    for query in ("", "?limit=5&project=harbour"):
        assert door.ok("GET", f"/v1/conversations{query}")["conversations"] == []
    for query in ("limit=0", "limit=1001", "scope=all"):
        assert door.ask("GET", f"/v1/conversations?{query}").status == 400


def test_a_project_is_named_by_its_id_alone(door: Door, place: Path) -> None:
    text = "Only the harbour project knows of the crane."
    door.ok("POST", "/v1/memories?project=harbour", {"content": text})
    assert door.ok("GET", "/v1/memories?project=harbour")["items"][0]["content"] == text
    assert text not in str(door.ok("GET", "/v1/memories"))
    assert door.ok("GET", "/v1/memories", Sediment_Project="harbour")["count"] == 1
    (place / "folder").mkdir()
    told = door.ask(
        "POST", f"/v1/memories?project={place}/folder", {"content": "A folder is none."}
    )
    assert (told.status, "is a folder" in told.body["error"]) == (404, True)
    assert list((place / "folder").iterdir()) == []


def test_a_project_whose_name_is_not_ascii_is_the_same_however_it_is_named(door: Door) -> None:
    """In a header it comes as the bytes of UTF-8, in a query as those with a percent sign each."""
    body = b'{"content": "The espresso machine is descaled on Mondays."}'
    head = f"Host: {door.host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    ways = {
        "header": ("/v1/memories", "Sediment-Project: café\r\n"),
        "query": ("/v1/memories?project=caf%C3%A9", ""),
    }
    for path, more in ways.values():
        text = f"POST {path} HTTP/1.1\r\n{more}Connection: close\r\n{head}\r\n\r\n"
        assert b" 201 " in door.raw(text.encode() + body)
    found = door.ok("GET", "/v1/memories?project=caf%C3%A9")["items"]
    assert {row["project"] for row in found} == {"café"}
    known = [row["project"] for row in door.ok("GET", "/v1/activity")["projects"]]
    assert [name for name in known if name.startswith("caf")] == ["café"]
    for wrong in ({"Sediment_Project": "caf\xe9"}, {}):
        query = "" if wrong else "?project=caf%E9"
        told = door.ask("POST", f"/v1/memories{query}", {"content": "x"}, **wrong)
        assert (told.status, "is not UTF-8" in told.body["error"]) == (400, True)
    told = door.ask("GET", "/v1/memories?project=harbour", Sediment_Project="kiosk")
    assert (told.status, "name two projects" in told.body["error"]) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/v1/memories?scope=global", "in the body here, not in the query: 'scope'"),
        ("POST", "/v1/recall?query=tea", "in the body here, not in the query: 'query'"),
        ("PUT", "/v1/memories/x?scope=global", "in the body here, not in the query: 'scope'"),
        ("POST", "/v1/import?scope=global", "takes nothing; not 'scope'"),
        ("POST", "/mcp?scope=global", "takes nothing; not 'scope'"),
        ("GET", "/v1/memories?limit=1&limit=2", "stands in the query twice"),
    ],
)
def test_an_argument_in_a_query_is_used_or_refused(
    door: Door, method: str, path: str, told: str
) -> None:
    body = {"content": "Put where it should not be."} if method != "GET" else None
    answer = door.ask(method, path, body)
    assert (answer.status, told in answer.body["error"]) == (400, True), answer
    assert "where it should not" not in str(door.ok("GET", "/v1/memories?scope=all&limit=100"))


def test_an_argument_that_stands_in_a_body_twice_is_refused(door: Door) -> None:
    body = b'{"content": "Tea is at four.", "content": "Tea is at five."}'
    told = door.ask("POST", "/v1/memories", body)
    assert (told.status, told.body["error"]) == (400, "an argument stands in the body twice")
    assert "Tea is at" not in str(door.ok("GET", "/v1/memories?scope=all&limit=100"))


def test_a_slash_at_the_end_of_a_path_is_no_other_path(door: Door) -> None:
    ping = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
    assert door.ask("POST", "/mcp/", ping).body == door.mcp(ping).body
    assert door.ok("GET", "/v1/memories/?limit=1")["items"] is not None
    assert door.ok("GET", "/health/") == {"healthy": True}
    assert door.ask("GET", "/v1/memories/nothing/").status == 404


def test_the_description_names_every_route(door: Door) -> None:
    described = door.ok("GET", "/v1/openapi.json")
    told = {(verb.upper(), path) for path, verbs in described["paths"].items() for verb in verbs}
    assert {(route.method, route.path) for route in sediment_ext.http.ROUTES} < told
    assert described["paths"]["/v1/recall"]["post"]["requestBody"]
    assert "201" in described["paths"]["/v1/memories"]["post"]["responses"]
    named = {each["name"] for each in described["paths"]["/v1/import"]["post"]["parameters"]}
    assert named == {"project", "Sediment-Silent"}
    taken = described["paths"]["/v1/import"]["post"]["requestBody"]["content"]
    assert taken.keys() == {"application/x-ndjson", "application/json"}
    body = described["paths"]["/v1/memories"]["post"]["requestBody"]["content"]
    created = body["application/json"]["schema"]["properties"]["created_at"]
    assert created["type"] == ["string", "number", "null"]
    for verbs in described["paths"].values():
        for verb in verbs.values():
            assert verb["responses"].keys() >= {"200", "400", "401", "403", "404", "409", "503"}
    one = described["paths"]["/v1/memories/{id}"]
    assert all(verb["parameters"][0]["name"] == "id" for verb in one.values())


def test_an_id_with_a_slash_can_be_named(door: Door) -> None:
    row = {"id": "notes/2026/a b", "content": "Ferries leave at noon."}
    door.ok("POST", "/v1/import", json.dumps(row).encode(), **LINES)
    path = "/v1/memories/notes%2F2026%2Fa%20b"
    assert door.ok("GET", path)["content"] == row["content"]
    door.ok("DELETE", path)
    assert door.ask("GET", path).status == 404


def test_looking_whether_it_is_ready_makes_no_file(tmp_path: Path) -> None:
    with open_memory(tmp_path / "none.db") as memory, gate(memory) as door:
        assert door.ok("GET", "/ready") == {"ready": True}
    assert not (tmp_path / "none.db").exists()


def test_it_tells_that_it_lives_and_is_ready(door: Door) -> None:
    assert door.ok("GET", "/health") == {"healthy": True}
    assert door.ok("GET", "/ready") == {"ready": True}


@pytest.mark.parametrize(
    ("path", "name"),
    [("memories", "content"), ("recall", "query"), ("review/replace", "old")],
)
def test_null_is_no_argument(door: Door, path: str, name: str) -> None:
    for body in ({}, {name: None}):
        answer = door.ask("POST", f"/v1/{path}", body)
        assert (answer.status, answer.body) == (400, {"error": f"{name} is missing"})


def test_nothing_is_told_of_the_machine(door: Door, place: Path) -> None:
    told = [door.ok("GET", "/v1/stats"), door.ask("GET", "/v1/memories/x").body]
    told += [door.ok("GET", "/v1/memories"), door.ask("GET", "/v1/nothing").headers]
    assert str(place) not in str(told)
    assert "waitress" not in str(told).lower()


# Import and export


def test_what_is_exported_comes_back_to_the_byte(
    door: Door, tmp_path: Path, unpacked: Path
) -> None:
    rows = [
        {
            "id": f"row-{n}",
            "content": f"Berth {n} is for ships of {n % 7} masts, ünï.",
            "project": "quay",
        }
        | {"created_at": 1_700_000_000 + n}
        for n in range(60)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    assert door.ok("POST", "/v1/import", lines, **LINES)["stored"] == len(rows)
    exported = door.ok("GET", "/v1/export")
    env = small_env(tmp_path, SEDIMENT_CACHE=str(unpacked))
    with http_server(tmp_path, env) as (host, port):
        other = Door(host, port)
        assert other.ok("POST", "/v1/import", exported, **LINES)["refused"] == []
        assert other.ok("GET", "/v1/export") == exported


def test_a_line_that_is_nothing_is_told_with_its_number(door: Door) -> None:
    lines = b'{"content": "A good line."}\nnonsense\n{"content": ""}\n'
    answer = door.ok("POST", "/v1/import", lines, **LINES)
    assert answer["stored"] == 1
    assert [row["line"] for row in answer["refused"]] == [2, 3]


# Who may ask


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Host": "[::1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://localhost"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://[bad"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/memories", "/mcp"])
def test_pages_of_others_are_kept_out(door: Door, headers: dict[str, str], path: str) -> None:
    body = {"content": "x"} if path != "/mcp" else {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    answer = door.ask("POST", path, body, **headers)
    assert answer.status in (400, 403), answer


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
@pytest.mark.parametrize("path", ["/v1/memories", "/v1/import", "/v1/recall", "/mcp"])
def test_what_a_form_can_send_is_refused(door: Door, kind: str, path: str) -> None:
    answer = door.ask("POST", path, b'{"content": "forged", "query": "x"}', Content_Type=kind)
    assert answer.status == 415, answer
    assert "forged" not in str(door.ok("GET", "/v1/memories?limit=100"))


def test_an_upgrade_to_a_websocket_is_none(door: Door) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    answer = door.ask("GET", "/mcp", Origin="http://evil.example", **upgrade)
    assert answer.status == 403
    assert door.ask("GET", "/mcp", **upgrade).status == 405


def test_own_pages_and_programs_may_ask(door: Door) -> None:
    own = f"{door.host}:{door.port}"
    assert door.ask("GET", "/v1/memories", Origin=f"http://{own}").status == 200
    for host in (own, f"localhost:{door.port}", "localhost", "[::1]"):
        assert door.ask("GET", "/v1/memories", Host=host).status == 200


def test_no_answer_sets_a_cookie_or_lets_others_read(door: Door) -> None:
    for path in ("/v1/memories", "/health", "/mcp", "/nowhere"):
        headers = door.ask("GET", path).headers
        assert "set-cookie" not in headers
        assert not any(name.startswith("access-control") for name in headers)
        assert headers["x-content-type-options"] == "nosniff"


def test_answers_tell_nothing_of_this_machine(memory: Memory, tmp_path: Path) -> None:
    memory.store("Tea is at four.")
    memory.backup(tmp_path / "copy.db")
    with gate(memory) as door:
        told = door.ok("DELETE", f"/v1/memories/{door.store('A passing thought.')}")
    assert str(tmp_path) not in str(told)


def test_a_time_may_be_given_as_answers_tell_it(door: Door) -> None:
    id = door.store("It was then.", created_at=1_700_000_000)
    assert door.ok("GET", f"/v1/memories/{id}")["created_at"] == 1_700_000_000
    told = door.ask("POST", "/v1/memories", {"content": "x", "created_at": True})
    assert told.status == 400
    assert "an integer" in door.ask("GET", "/v1/memories?limit=x").body["error"]
    told = door.ask("POST", "/v1/review/keep", {"old": id, "new": id})
    assert told.status == 400
    assert "twice" in told.body["error"]


def test_a_token_that_is_missing_wrong_or_revoked(guarded: tuple[Door, dict[str, str]]) -> None:
    door, tokens = guarded
    wrong = [
        "",
        "Bearer",
        "Bearer x",
        "Basic YTpi",
        f"Bearer {tokens['gone']}",
        f"Token {tokens['all']}",
    ]
    for header in wrong:
        for path in ("/v1/memories", "/mcp", "/v1/export", "/v1/session"):
            answer = door.ask("GET", path, Authorization=header)
            assert answer.status == 401, (header, path, answer)
            assert answer.headers["www-authenticate"] == "Bearer"
    assert door.ask("GET", "/v1/memories").status == 401
    assert door.ask("GET", "/v1/memories", **bearer(tokens["all"])).status == 200
    assert door.ask("GET", "/health").status == 200


def test_with_a_token_the_name_of_the_server_may_be_any(
    guarded: tuple[Door, dict[str, str]],
) -> None:
    door, tokens = guarded
    named = {"Host": "memory.example", **bearer(tokens["all"])}
    assert door.ask("GET", "/v1/memories", **named).status == 200
    assert door.ask("GET", "/v1/memories", Origin="https://memory.example", **named).status == 200
    assert door.ask("GET", "/v1/memories", Origin="https://evil.example", **named).status == 403


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def test_head_says_what_get_would_and_sends_no_body(guarded: tuple[Door, dict[str, str]]) -> None:
    door, _ = guarded
    for path, status in (("/health", 200), ("/ready", 200), ("/", 200), ("/v1/memories", 401)):
        asked = f"{{}} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        (head, body), (head_too, none) = (
            door.raw(asked.format(method).encode()).split(b"\r\n\r\n", 1)
            for method in ("GET", "HEAD")
        )
        assert head_too.startswith(f"HTTP/1.1 {status} ".encode())
        assert (len(head_too), none) == (len(head), b"")
        assert f"Content-Length: {len(body)}".encode() in head_too


def test_a_token_that_reads_changes_nothing(guarded: tuple[Door, dict[str, str]]) -> None:
    door, tokens = guarded
    reader = Door(door.host, door.port, **bearer(tokens["reader"]))
    assert "The demo listens at port 80." in reader.found("demo port")
    (id, *_) = [row["id"] for row in reader.ok("GET", "/v1/memories")["items"]]
    bodies = {
        "store": {"content": "x"},
        "move": {"scope": "Global"},
        "expire": {"when": "30d"},
        "replace": {"old": id, "new": id},
    }
    bodies["keep"] = bodies["replace"]
    for route in sediment_ext.http.ROUTES:
        path = route.path.replace("{id}", id)
        query = "?query=x" if route.path == "/v1/recall" and route.in_query else ""
        body = None if route.in_query else bodies.get(route.operation.name, {})
        body = {"query": "x"} if path == "/v1/recall" and body is not None else body
        told = reader.ask(route.method, path + query, body)
        reads = route.method == "GET" or route.path == "/v1/recall"
        assert told.status == (200 if reads else 403), route
    assert reader.ask("POST", "/v1/import", b'{"content": "x"}\n', **LINES).status == 403
    for message in (call("store", content="x"), call("forget", id=id)):
        assert reader.mcp(message).body["result"]["isError"]
    assert "isError" not in reader.mcp(call("recall", query="demo port")).body["result"]


def test_a_token_of_one_project_may_leave_arguments_empty(
    guarded: tuple[Door, dict[str, str]],
) -> None:
    door, tokens = guarded
    one = Door(door.host, door.port, **bearer(tokens["one"]))
    message = call("store", content="Nothing is replaced.", replace_id="", scope="")
    stored = one.mcp(message).body["result"]["structuredContent"]
    assert one.mcp(call("forget", id=stored["id"])).body["result"]["structuredContent"]["success"]


def test_a_token_of_one_project_sees_no_other(guarded: tuple[Door, dict[str, str]]) -> None:
    door, tokens = guarded
    whole = Door(door.host, door.port, **bearer(tokens["all"]))
    one = Door(door.host, door.port, **bearer(tokens["one"]))
    (theirs,) = [row["id"] for row in whole.ok("GET", "/v1/memories?project=other")["items"]]
    (shared,) = [row["id"] for row in whole.ok("GET", "/v1/memories?scope=global")["items"]]
    assert "The other one listens at port 81." in whole.found("which port does the other listen at")
    told = [
        one.found("which port does the other one listen at"),
        one.ok("GET", "/v1/export").decode(),
    ]
    told.append(one.mcp(call("recall", query="which port does the other listen at")).body)
    assert "port 81" not in str(told)
    assert "Tea is at four" in told[1]
    assert one.ask("GET", "/v1/memories?project=other").status == 403
    unknown = [answers_about(one, id) for id in (theirs, "f" * 36)]
    assert unknown[0] == unknown[1]
    assert {status for status, _ in unknown[0]} == {404, 200}  # MCP tells an error with 200
    assert all("no memory with the id 'ID'" in told for _, told in unknown[0])
    refused = f"the token one cannot change {shared}"
    for method, body in (("DELETE", None), ("PUT", {"content": "x"})):
        told = one.ask(method, f"/v1/memories/{shared}", body)
        assert (told.status, told.body) == (403, {"error": refused})
    for message in (call("forget", id=shared), call("store", content="x", replace_id=shared)):
        result = one.mcp(message).body["result"]
        assert (result["isError"], result["content"][0]["text"]) == (True, refused)
    assert one.ask("POST", "/v1/memories", {"content": "x", "scope": "global"}).status == 403
    rows = b'{"content": "Put elsewhere.", "project": "other"}\n'
    rows += b'{"content": "All.", "scope": "global"}\n'
    assert one.ask("POST", "/v1/import", rows, **LINES).status == 403
    assert "Put elsewhere." not in str(whole.ok("GET", "/v1/memories?project=other"))
    assert "All." not in str(whole.ok("GET", "/v1/memories?scope=global"))
    for id in (theirs, shared):
        assert whole.ok("GET", f"/v1/memories/{id}")["id"] == id


def answers_about(door: Door, id: str) -> list[tuple[int, str]]:
    """The answers to all that one can ask about a memory, with ID in place of its id."""
    path, mine = f"/v1/memories/{id}", door.store("The demo is given at noon.")
    asked = [door.ask("GET", f"{path}{more}") for more in ("", "/history", "/graph")]
    asked += [door.ask("DELETE", path), door.ask("PUT", path, {"content": "x"})]
    asked += [door.ask("POST", f"{path}/undo", {})]
    asked += [door.ask("POST", f"{path}/move", {"scope": "project"})]
    for action in ("replace", "keep"):
        for old, new in ((id, mine), (mine, id)):
            asked.append(door.ask("POST", f"/v1/review/{action}", {"old": old, "new": new}))
    asked += [door.mcp(call("forget", id=id)), door.mcp(call("store", content="x", replace_id=id))]
    read = call("recall") | {"method": "resources/read", "params": {"uri": f"memory://{id}"}}
    asked.append(door.mcp(read))
    return [(each.status, str(each.body).replace(id, "ID")) for each in asked]


def test_a_token_of_one_project_erases_no_global_memory_by_a_conversations_name(
    tmp_path: Path,
) -> None:
    with open_memory(tmp_path / "memory.db", "demo") as memory:
        token = memory.add_token("one", project="demo")["token"]
        memory.import_rows([{"id": "claude:s1", "content": "Tea is served at four."}], "global")
        with memory.database.transaction() as connection:
            sediment_ext.conversations.write_session(
                connection, "claude:s1", memory.projects.current() or "", 100
            )
        with gate(memory) as door:
            one = Door(door.host, door.port, **bearer(token))
            assert one.ask("DELETE", "/v1/memories/claude:s1").status == 403
        assert sediment.find_item(memory.database, "claude:s1")
        assert memory.forget("claude:s1")["message"] == "Deleted claude:s1."


def test_a_token_of_one_project_learns_no_name_of_a_file_of_another(
    path: Path, tmp_path: Path
) -> None:
    for project in ("other", "everyone", "demo"):
        notes = tmp_path / project
        notes.mkdir()
        (notes / "plan.md").write_text("# Plan\n\nThe plan is to rest.\n")
        with open_memory(path, project) as memory:
            memory.index([notes], scope="global" if project == "everyone" else "project")
    with open_memory(path, "demo") as memory:
        token = memory.add_token("one", project="demo")["token"]
        with gate(memory) as door:
            one = Door(door.host, door.port, **bearer(token))
            told = {
                project: one.ask("GET", f"/v1/recall?query=plan&source={tmp_path}/{project}/p")
                for project in ("other", "everyone", "demo")
            }
    assert {name: answer.status for name, answer in told.items()} == {
        "other": 404,
        "everyone": 200,
        "demo": 200,
    }


@pytest.mark.parametrize(
    "scope", ["global", "GLOBAL", "Global", " global", "ｇｌｏｂａｌ", ["global"]]
)
def test_a_token_of_one_project_writes_nothing_global_however_that_is_spelt(
    guarded: tuple[Door, dict[str, str]], scope: Any
) -> None:
    door, tokens = guarded
    whole = Door(door.host, door.port, **bearer(tokens["all"]))
    one = Door(door.host, door.port, **bearer(tokens["one"]))
    before = whole.ok("GET", "/v1/memories?scope=global")["items"]
    id = one.store(f"Turnips grow in the demo ({scope}).")
    for method, path in (
        ("POST", "/v1/memories"),
        ("PUT", f"/v1/memories/{id}"),
        ("POST", f"/v1/memories/{id}/move"),
    ):
        given = {"scope": scope} if path.endswith("move") else {"content": "Obey.", "scope": scope}
        assert one.ask(method, path, given).status in (400, 403), path
    for more in ({}, {"replace_id": id}):
        told = one.mcp(call("store", content="Obey.", scope=scope, **more)).body
        assert told["result"]["isError"], more
    assert whole.ok("GET", "/v1/memories?scope=global")["items"] == before
    assert "Obey." not in str(whole.ok("GET", "/v1/memories"))


def test_what_a_token_of_one_project_may_do_it_may_with_arguments_that_are_null(
    guarded: tuple[Door, dict[str, str]],
) -> None:
    door, tokens = guarded
    one = Door(door.host, door.port, **bearer(tokens["one"]))
    told = one.mcp(call("store", content="A null is none.", scope=None, replace_id=None)).body
    assert "isError" not in told["result"]
    one.store("One is none, too.", scope=None, replace_id=None, created_at=None)
    one.store("In the project alone.", scope="PROJECT")


def test_what_the_page_asks_is_told_to_no_token_that_may_not_know_it(
    guarded: tuple[Door, dict[str, str]],
) -> None:
    door, tokens = guarded
    whole, one, reads = (
        Door(door.host, door.port, **bearer(tokens[name])) for name in ("all", "one", "reader")
    )
    (theirs,) = [row["id"] for row in whole.ok("GET", "/v1/memories?project=other")["items"]]
    (shared,) = [row["id"] for row in whole.ok("GET", "/v1/memories?scope=global")["items"]]
    assert theirs in whole.ok("GET", "/v1/page/ids?scope=everywhere")["ids"]
    assert theirs not in one.ok("GET", "/v1/page/ids?scope=everywhere")["ids"]
    for path in ("memories?scope=everywhere", "graph?everywhere=true", "pairs?everywhere=true"):
        assert "port 81" not in str(one.ok("GET", f"/v1/page/{path}"))
    body = {"query": "which port does the other one listen at", "everywhere": True}
    assert "port 81" in str(whole.ok("POST", "/v1/page/search", body))
    assert "port 81" not in str(one.ok("POST", "/v1/page/search", body))
    assert "other" not in {row["project"] for row in one.ok("GET", "/v1/page")["projects"]}
    assert one.ask("GET", f"/v1/page/memories/{theirs}").status == 404
    for step in ("confirm", "move", "forget", "export"):
        assert one.ask("POST", f"/v1/page/{step}", {"ids": [theirs]}).status in (403, 404), step
        assert one.ask("POST", f"/v1/page/{step}", {"ids": [shared]}).status == 403, step
        assert reads.ask("POST", f"/v1/page/{step}", {"ids": [shared]}).status == 403, step
    for path in ("care", "doctor", "sync", "backup"):
        assert one.ask("GET", f"/v1/page/{path}").status == 403, path
        assert reads.ask("GET", f"/v1/page/{path}").status == 403, path
    for door in (one, reads):
        assert door.ask("POST", "/v1/page/tokens", {"name": "x"}).status == 403
        assert door.ask("DELETE", "/v1/page/tokens/one").status == 403
        assert door.ask("POST", "/v1/page/import", b"{}", **LINES).status == 403
    assert whole.ask("POST", "/v1/page/move", {"ids": [], "to": "x"}).status == 400
    assert whole.ask("POST", "/v1/page/move", {"ids": [5], "to": "x"}).status == 400


def test_a_token_of_one_project_counts_no_other(guarded: tuple[Door, dict[str, str]]) -> None:
    door, tokens = guarded
    whole, one = (
        Door(door.host, door.port, **bearer(tokens[name])).ok("GET", "/v1/stats")
        for name in ("all", "one")
    )
    assert whole["items"] > one["items"] == one["project_items"] + one["global_items"]
    assert whole["chunks"] > one["chunks"]
    assert "bytes" not in one


def test_a_token_of_one_project_changes_no_memory_with_versions_elsewhere(
    guarded: tuple[Door, dict[str, str]],
) -> None:
    door, tokens = guarded
    whole = Door(door.host, door.port, **bearer(tokens["all"]))
    one = Door(door.host, door.port, **bearer(tokens["one"]))
    (theirs,) = [row["id"] for row in whole.ok("GET", "/v1/memories?project=other")["items"]]
    (shared,) = [row["id"] for row in whole.ok("GET", "/v1/memories?scope=global")["items"]]
    ended = {"content": "x", "created_at": 1, "ended_at": 2, "ended_by": "replace"}
    for id in (theirs, shared):
        row = ended | {"id": f"probe-{id}", "successor": id, "project": "demo"}
        whole.ok("POST", "/v1/import", json.dumps(row).encode() + b"\n", **LINES)
        probe = f"/v1/memories/probe-{id}"
        assert one.ask("POST", f"{probe}/undo", {}).status == 403
        assert one.ask("DELETE", probe).status == 403
        seen = one.ask("GET", f"{probe}/history")
        assert seen.status == (403 if id == theirs else 200)  # who may not change may read
        assert whole.ok("GET", f"/v1/memories/{id}")["id"] == id
    assert theirs not in str(one.ask("GET", f"/v1/memories/{theirs[:8]}").body)


def test_a_token_that_was_revoked_does_not_come_back_with_a_copy(
    memory: Memory, tmp_path: Path
) -> None:
    memory.store("Tea is at four.")
    revoked, kept = (memory.add_token(name)["token"] for name in ("revoked", "kept"))
    memory.backup(tmp_path / "copy.db")
    memory.revoke_token("revoked")
    later = memory.add_token("later")["token"]
    memory.restore(tmp_path / "copy.db")
    assert memory.token_of(revoked) is None
    assert memory.token_of(kept)
    assert memory.token_of(later)
    with open_memory(tmp_path / "new.db") as other:
        other.restore(tmp_path / "copy.db")
        assert other.tokens()["count"] == 0


@pytest.mark.parametrize(
    ("added", "asked"),
    [
        ("before", "nobody"),
        ("before", "somebody"),
        ("before", "its owner"),
        ("meanwhile", "somebody"),
        ("meanwhile", "its owner"),
    ],
)
def test_a_server_that_needed_a_token_goes_on_needing_one(
    memory: Memory, added: str, asked: str
) -> None:
    secret = memory.add_token("last")["token"] if added == "before" else ""
    with gate(memory) as door:
        secret = secret or memory.add_token("last")["token"]
        if asked != "nobody":
            door.ask("GET", "/v1/memories", **(bearer(secret) if asked == "its owner" else {}))
        memory.revoke_token("last")
        assert door.ask("GET", "/v1/memories").status == 401


def test_the_rate_is_each_tokens_own(tmp_path: Path, unpacked: Path) -> None:
    path = tmp_path / "memory.db"
    with open_memory(path) as memory:
        tokens = [memory.add_token(name)["token"] for name in ("busy", "calm")]
    env = small_env(tmp_path, SEDIMENT_CACHE=str(unpacked), SEDIMENT_RATE_LIMIT="5")
    with http_server(tmp_path, env, "--db", str(path)) as (host, port):
        busy, calm = (Door(host, port, **bearer(token)) for token in tokens)
        told = [busy.ask("GET", "/v1/memories").status for _ in range(8)]
        assert told == [200] * 5 + [429] * 3
        assert "retry-after" in busy.ask("GET", "/v1/memories").headers
        assert calm.ask("GET", "/v1/memories").status == 200
        told = [calm.mcp(call("recall", query="tea")).status for _ in range(5)]
        assert told == [200] * 4 + [429]


def test_others_are_not_listened_to_without_a_token(here: Program) -> None:
    told = here.error("serve", "--http", "0.0.0.0:0")
    assert "token add" in told
    for address in ("x", "localhost:x", "127.0.0.1:99999"):
        done = here.run("serve", "--http", address)
        assert done.returncode == 2
        assert "[HOST:]PORT" in one_line(done.stderr)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = here.error("serve", "--http", str(taken.getsockname()[1]))
    assert "cannot be listened on" in told


@pytest.fixture
def here(run_pyz: Run, tmp_path: Path) -> Program:
    return Program(run_pyz, tmp_path / "project", HOME=str(tmp_path))


@pytest.mark.parametrize(
    ("project", "told"), [("/tmp", "is a folder"), ("demo/", "is a folder"), ("", "1 to 255")]
)
def test_a_token_is_for_a_project_that_there_can_be(
    memory: Memory, project: str, told: str
) -> None:
    with pytest.raises(sediment.InvalidInput, match=told):
        memory.add_token("lab", project=project)
    assert memory.tokens()["count"] == 0


def test_no_token_for_a_folder_that_is_no_project_is_one_for_all(here: Program) -> None:
    told = here.error("token", "add", "lab", "--project", "~")
    assert "home folder" in told
    assert here.json("token", "list")["count"] == 0


def test_tokens_are_made_shown_once_and_revoked(here: Program) -> None:
    assert "No tokens" in here.ok("token")
    secret = here.json("token", "add", "ci", "--reads")["token"]
    assert "already" in here.error("token", "add", "ci")
    here.ok("token", "add", "lab", "--project", "demo")
    rows = here.json("token", "list")["tokens"]
    assert [(row["name"], row["reads"], row.get("project")) for row in rows] == [
        ("ci", True, None),
        ("lab", False, "demo"),
    ]
    assert secret not in here.ok("token", "list")
    (path,) = here.folder.parent.rglob("*.db")
    assert secret.encode() not in path.read_bytes()
    here.ok("token", "revoke", "ci")
    assert "no token" in here.error("token", "revoke", "ci")
    assert here.run("token", "add").returncode == 2


def test_a_credential_is_no_name_of_a_token(here: Program) -> None:
    key = "ghp_" + "a1B2" * 9
    assert "name looks like a credential" in here.error("token", "add", key)
    assert key not in here.ok("token", "list")


# MCP


def stateless(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    given = {**(params or {}), "_meta": STATELESS}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}


MODERN = {"MCP_Protocol_Version": "2026-07-28"}


def test_the_stateless_era_by_its_headers(door: Door) -> None:
    listed = door.mcp(stateless("tools/list"), **MODERN, Mcp_Method="tools/list")
    assert (listed.status, len(listed.body["result"]["tools"])) == (200, 4)
    message = stateless("tools/call", {"name": "list", "arguments": {}})
    right = {**MODERN, "Mcp_Method": "tools/call", "Mcp_Name": "list"}
    assert door.mcp(message, **right).status == 200
    encoded = {**right, "Mcp_Name": "=?base64?bGlzdA==?="}
    assert door.mcp(message, **encoded).status == 200
    for wrong in (
        {**right, "Mcp_Name": "store"},
        {**right, "Mcp_Method": "tools/list"},
        {name: value for name, value in right.items() if name != "Mcp_Name"},
        {name: value for name, value in right.items() if name != "Mcp_Method"},
        {**right, "MCP_Protocol_Version": "2025-11-25"},
        {name: value for name, value in right.items() if name != "MCP_Protocol_Version"},
    ):
        answer = door.mcp(message, **wrong)
        assert (answer.status, answer.body["error"]["code"]) == (400, MISMATCH), wrong
    unknown = door.mcp(stateless("no/such"), **MODERN, Mcp_Method="no/such")
    assert (unknown.status, unknown.body["error"]["code"]) == (404, -32601)


def test_the_handshake_needs_no_session(door: Door) -> None:
    client = {"name": "t", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    opened = door.mcp({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    assert opened.body["result"]["protocolVersion"] == "2025-06-18"
    assert "mcp-session-id" not in opened.headers
    notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    told = door.mcp(notice, MCP_Protocol_Version="2025-06-18")
    assert (told.status, told.body) == (202, b"")
    ping = door.mcp({"jsonrpc": "2.0", "id": "p", "method": "ping"})
    assert ping.body == {"jsonrpc": "2.0", "id": "p", "result": {}}
    batch = door.mcp([{"jsonrpc": "2.0", "id": 2, "method": "ping"}])
    assert (batch.status, batch.body["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"", {}, 400, -32700),
        (b"{", {}, 400, -32700),
        (b"\xff", {}, 400, -32700),
        (b"[" * 100_000, {}, 400, -32700),
        (b"[]", {}, 400, -32600),
        (b"5", {}, 400, -32600),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', {}, 400, -32600),
        (
            b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}',
            {"MCP_Protocol_Version": "1"},
            400,
            -32022,
        ),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "x"}', {}, 200, -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": 5}', {}, 200, -32602),
    ],
)
def test_messages_that_are_wrong(
    door: Door, body: bytes, headers: dict[str, str], status: int, code: int
) -> None:
    answer = door.mcp(body, **headers)
    assert (answer.status, answer.body["error"]["code"]) == (status, code), answer


def test_the_tool_of_hooks_is_for_this_machine_alone(door: Door) -> None:
    answer = door.mcp(call("hook", hook_event_name="Stop", transcript_path="/etc/passwd"))
    assert answer.body["error"]["code"] == -32602


def test_there_is_no_stream_to_get(door: Door) -> None:
    for method in ("GET", "DELETE"):
        answer = door.ask(method, "/mcp", Accept="text/event-stream")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")


# Bad manners


def test_a_body_of_a_gigabyte_is_refused_before_it_comes(door: Door) -> None:
    head = (
        f"POST /v1/memories HTTP/1.1\r\nHost: {door.host}\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\n\r\n"
    )
    assert b" 413 " in door.raw(head.format(2**30).encode() + b"x" * 1000)
    large = b'{"content": "' + b"x" * 11_000_000 + b'"}'
    assert door.ask("POST", "/v1/memories", large).status == 413


def test_ten_thousand_headers_are_refused(door: Door) -> None:
    lines = "".join(f"X-{n}: {n}\r\n" for n in range(10_000))
    assert b" 431 " in door.raw(f"GET /health HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 50",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: -1",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Content-Length\r\n: 5",
    ],
)
def test_requests_are_not_smuggled(door: Door, head: str) -> None:
    """Whatever stands behind such a head must not be taken for a request of its own."""
    hidden = f"DELETE /v1/memories/x HTTP/1.1\r\nHost: {door.host}\r\n\r\n"
    text = f"POST /v1/recall HTTP/1.1\r\nHost: {door.host}\r\n{head}\r\n\r\n0\r\n\r\n{hidden}"
    got = door.raw(text.encode(), wait=2)
    assert b"not found" not in got
    assert got.count(b"HTTP/1.1 2") == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 100,
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nhost: localhost\r\n\r\n",
    ],
)
def test_nonsense_ends_its_own_connection_alone(door: Door, data: bytes) -> None:
    got = door.raw(data, wait=1)
    assert b"HTTP/1.1 2" not in got
    assert door.ok("GET", "/health") == {"healthy": True}


@pytest.mark.parametrize(
    "head",
    [
        "GET http://[::1 HTTP/1.1",
        "GET //[x]/ HTTP/1.1",
        f"GET /health HTTP/1.1\r\nContent-Length: {'9' * 5000}",
    ],
)
def test_a_target_or_a_length_that_is_none_is_answered(door: Door, head: str) -> None:
    got = door.raw(f"{head}\r\nHost: {door.host}\r\nConnection: close\r\n\r\n".encode())
    assert got[:10] in (b"HTTP/1.0 4", b"HTTP/1.1 4")
    assert door.ok("GET", "/health") == {"healthy": True}


def test_those_who_are_slow_or_silent_hold_up_nobody(door: Door) -> None:
    """Sixty connections that send half of something and wait, while others ask and are answered."""
    half = (
        f"POST /v1/recall HTTP/1.1\r\nHost: {door.host}\r\nContent-Type: application/json\r\n"
        "Content-Length: 5000\r\n\r\n{"
    ).encode()
    with contextlib.ExitStack() as open_ones:
        slow = [
            open_ones.enter_context(socket.create_connection((door.host, door.port)))
            for _ in range(60)
        ]
        for number, connection in enumerate(slow):
            connection.sendall(half if number % 2 else b"")
        door.store("The slow ones hold up nobody.")
        threads = [threading.Thread(target=door.found, args=("who holds up",)) for _ in range(8)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - start < TIMEOUT


HALF = b"POST /v1/recall HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"


@pytest.mark.parametrize(
    ("data", "count"), [(b"GET /health HTTP/1.1\r\nX: ", 60), (b"", 20), (HALF, 20)]
)
def test_slow_clients_lock_nobody_out(door: Door, data: bytes, count: int) -> None:
    """300 connections, more than there are places, that send a byte of a request now and then."""
    text = "The slow ones lock nobody out."
    door.store(text)
    with contextlib.ExitStack() as open_ones:
        slow = []
        for _ in range(300):
            slow.append(open_ones.enter_context(dial(door)))
            slow[-1].sendall(data)
        for number in range(count):
            if number % 10 == 0:
                drip(slow)
            assert door.found("whom do the slow ones lock out")[0] == text, number


def dial(door: Door) -> socket.socket:
    return socket.create_connection((door.host, door.port), timeout=TIMEOUT)


def drip(connections: list[socket.socket]) -> None:
    """One more byte on each that is still open."""
    for connection in connections:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"x")


def test_a_place_is_taken_from_the_address_that_has_most() -> None:
    """Of connections that no request is under way on, the one that has been idle longest."""

    def connection(address: str, at: float, *requests: str, closing: bool = False) -> Any:
        facts = {"addr": (address, 1), "last_activity": at, "requests": requests}
        return SimpleNamespace(**facts, will_close=closing)

    many = [connection("10.0.0.1", at, *["asked"] * (at == 0)) for at in range(200)]
    few = [connection("10.0.0.2", -1) for _ in range(sediment_ext.http.HTTP_CONNECTIONS - 200)]
    sediment_ext.http._make_room([*many, *few])
    assert not any(one.will_close for one in [*many, *few]), "there is room"
    for closed in (1, 2):
        sediment_ext.http._make_room(
            [*many, *few, connection("10.0.0.3", 300), few[0]][: 256 + closed]
        )
        assert [one.last_activity for one in many if one.will_close] == [*range(1, 1 + closed)]
    assert not any(one.will_close for one in few)


def test_a_head_that_never_ends_is_closed_and_others_are_not(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's clock goes on by 12 s between two bytes, until one was idle for too long."""
    late = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + late[0])
    monkeypatch.setattr("waitress.channel.time", clock)
    monkeypatch.setattr("waitress.server.time", clock)
    with gate(memory) as door, dial(door) as head, dial(door) as whole, dial(door) as blank:
        head.sendall(b"GET /health HTTP/1.1\r\n")
        whole.sendall(HALF)
        blank.sendall(b"\r\n")
        for _ in range(5):
            late[0] += 12
            drip([head, whole])
            with contextlib.suppress(ConnectionError):
                blank.sendall(b"\r\n")
            assert door.ok("GET", "/health") == {"healthy": True}
        assert is_closed(head)
        assert is_closed(blank)
        whole.setblocking(False)
        with pytest.raises(BlockingIOError):
            whole.recv(1)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server ends a connection, after what it may say of it."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65_536):
            pass
    return True


def test_an_import_ends_with_its_client(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.store("Tea is at four.")
    monkeypatch.setattr(sediment_ext.http, "HTTP_STREAMS", 1)
    monkeypatch.setattr(sediment_ext.json_lines, "text_lines", lambda _: itertools.repeat("\n"))
    head = "POST /v1/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    with gate(memory) as door:
        with dial(door) as connection:
            connection.sendall(f"{head}Content-Length: 1\r\n\r\n\n".encode())
        assert b"Tea is at four." in door.ok("GET", "/v1/export")


def test_many_imports_leave_room_for_others(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: SimpleQueue[None] = SimpleQueue()

    def endless(_: Any) -> Iterator[str]:
        begun.put(None)
        return itertools.repeat("\n")

    monkeypatch.setattr(sediment_ext.json_lines, "text_lines", endless)
    head = "POST /v1/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    with gate(memory) as door, contextlib.ExitStack() as open_ones:
        for _ in range(sediment_ext.http.HTTP_THREADS):
            connection = open_ones.enter_context(dial(door))
            connection.sendall(f"{head}Content-Length: 1\r\n\r\n\n".encode())
        for _ in range(sediment_ext.http.HTTP_THREADS):
            begun.get(timeout=TIMEOUT)
        assert door.ok("GET", "/v1/memories")["count"] == 0


def test_who_closes_only_its_own_side_is_answered(door: Door) -> None:
    """As `nc -N` and socat do."""
    for path in ("/health", "/v1/recall?query=whose+side"):
        with dial(door) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.makefile("rb").read().startswith(b"HTTP/1.1 200 ")


def test_a_call_ends_with_its_client(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: SimpleQueue[sediment.Call] = SimpleQueue()
    monkeypatch.setattr(sediment.Worker, "submit", lambda _, call: calls.put(call))
    body = b'{"query": "tea"}'
    head = "POST /v1/recall HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with gate(memory) as door:
        with dial(door) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            one = calls.get(timeout=TIMEOUT)
            assert not one.cancelled.is_set()
        assert one.cancelled.wait(TIMEOUT)


def test_a_name_with_two_addresses_is_served_at_both_and_as_strictly(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As localhost often has; of an address that this machine does not have the other is served."""
    if not has_ipv6():
        pytest.skip("no IPv6 here")
    addresses = ["::1", "127.0.0.1"]

    def resolved(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        known = addresses if host == "localhost" else [host]
        return [(families[":" in one], socket.SOCK_STREAM, 6, "", (one, port)) for one in known]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with gate(memory, host="localhost") as served:
        for address in addresses:
            door = Door(address, served.port)
            assert door.ok("GET", "/health") == {"healthy": True}
            for head in ("Content-Length: 5\r\nTransfer-Encoding: chunked", "Host: other"):
                text = f"GET /health HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n0\r\n\r\n"
                assert b" 400 " in door.raw(text.encode(), wait=2)
    addresses[0] = "2001:db8::1"
    with gate(memory, host="localhost") as served:
        assert Door("127.0.0.1", served.port).ok("GET", "/health") == {"healthy": True}
    addresses[1] = "192.0.2.1"
    with pytest.raises(sediment.InvalidInput, match="cannot be listened on"):
        sediment_ext.http.listen(memory, "localhost", 0)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


def test_it_serves_on_localhost(tmp_path: Path, unpacked: Path) -> None:
    env = small_env(tmp_path, SEDIMENT_CACHE=str(unpacked))
    with http_server(tmp_path, env, address="localhost:0") as (host, port):
        assert host == "localhost"
        assert Door(host, port).store("Tea is at four.")


def test_a_client_that_goes_away_leaves_nothing_behind(door: Door) -> None:
    for _ in range(20):
        with socket.create_connection((door.host, door.port)) as connection:
            body = b'{"query": "who went away"}'
            head = f"POST /v1/recall HTTP/1.1\r\nHost: {door.host}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
    assert door.ok("GET", "/health") == {"healthy": True}


# The page's token


def test_the_pages_token_is_good_once_and_gets_it_another(tmp_path: Path) -> None:
    with open_memory(tmp_path / "memory.db") as memory, gate(memory, key="once") as door:
        assert door.ask("GET", "/v1/memories").status == 401
        assert door.ask("GET", "/v1/memories", **bearer("once")).status == 401
        key = door.ok("POST", "/v1/session", {}, **bearer("once"))["token"]
        assert door.ask("POST", "/v1/session", {}, **bearer("once")).status == 401
        assert door.ask("POST", "/v1/session", {}, **bearer(key)).status == 403
        assert door.ask("GET", "/v1/memories", **bearer(key)).status == 200
        assert door.ask("GET", "/v1/memories").status == 401


def test_the_policy_of_the_page_allows_its_own_scripts_and_no_more(door: Door) -> None:
    answer = door.ask("GET", "/")
    hashes = {}
    for name in ("script", "style"):
        (text,) = re.findall(f"<{name}>(.*?)</{name}>", answer.body.decode(), re.DOTALL)
        hashes[name] = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert policy.split("; ") == [rule.format(**hashes) for rule in POLICY]


POLICY = [
    "default-src 'none'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "script-src 'sha256-{script}'",
    "style-src 'sha256-{style}'",
]


def test_what_an_id_names_is_looked_at_when_its_turn_comes(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls wait: the first erases the own memory whose id is how a global one's begins."""
    rows = [{"id": "deadbeef", "content": "Ours."}]
    rows += [{"id": "deadbeef-0000", "content": "Everybody's.", "scope": "global"}]
    memory.import_rows(iter(map(json.dumps, rows)))
    secret = memory.add_token("one", project=memory.projects.current())["token"]
    waiting: list[Any] = []
    with gate(memory) as door:
        submit = sediment.Worker.submit

        def both(worker: sediment.Worker, call: sediment.Call) -> None:
            waiting.append(call)
            if len(waiting) == 2:
                for one in waiting:
                    submit(worker, one)

        monkeypatch.setattr(sediment.Worker, "submit", both)
        with ThreadPoolExecutor(2) as people:
            asked = [
                people.submit(door.ask, "DELETE", "/v1/memories/deadbeef", **bearer(secret))
                for _ in range(2)
            ]
        assert sorted(one.result().status for one in asked) == [200, 403]
    assert memory.get("deadbeef-0000")["content"] == "Everybody's."


def test_a_call_that_nobody_waits_for_any_more_is_not_run(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[sediment.Call] = []
    monkeypatch.setattr(sediment.Worker, "submit", lambda _, call: calls.append(call))
    monkeypatch.setattr(sediment_ext.http, "HTTP_PATIENCE", 0.05)
    with gate(memory) as door:
        assert door.ask("POST", "/v1/recall", {"query": "tea"}).status == 503
        assert door.mcp(call("recall", query="tea")).status == 503
        read = call("recall") | {"method": "resources/read", "params": {"uri": "memory://recent"}}
        assert door.mcp(read).status == 503
    assert [one.cancelled.is_set() for one in calls] == [True, True, True]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "recall", "arguments": {"query": "tea"}}),
        ("resources/read", {"uri": "memory://recent"}),
    ],
)
def test_a_fault_of_ours_is_answered(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, method: str, params: dict[str, Any]
) -> None:
    monkeypatch.setattr(Memory, "recall", None)
    monkeypatch.setattr(Memory, "list_items", None)
    with gate(memory) as door:
        answer = door.mcp({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    assert answer.body["error"]["code"] == -32603
    assert "Sediment failed here" in answer.body["error"]["message"]


def test_an_export_beside_too_many_others_is_refused_and_not_begun(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.store("Tea is at four.")
    monkeypatch.setattr(sediment_ext.http, "HTTP_PATIENCE", 0.05)
    monkeypatch.setattr(sediment_ext.http, "HTTP_STREAMS", 0)
    with gate(memory) as door:
        answer = door.ask("GET", "/v1/export")
    assert answer.status == 503
    assert "retry later" in answer.body["error"]

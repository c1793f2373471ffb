"""The MCP server in bytes: what clients of both eras rely on, and what they may break."""

import contextlib
import itertools
import json
import os
import queue
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from storage import open_memory
from warm import Warm
from wire import META, STATELESS, TIMEOUT, Wire, answer_of, server_command, small_env

import sediment
import sediment_ext.transcripts

PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
HANDSHAKE_VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
LINE_MAX = 10 * 2**20

Start = Callable[..., Wire]

started = pytest.mark.usefixtures("anew")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
on_posix = pytest.mark.skipif(os.name != "posix", reason="uses POSIX signals and process groups")


@pytest.fixture
def anew() -> None:
    """Servers are started, not forked: for what begins or ends with a process."""


@pytest.fixture
def start(
    request: pytest.FixtureRequest, tmp_path: Path, unpacked: Path, warm: Warm
) -> Iterator[Start]:
    """Starts servers that share one home, in a project folder unless `cwd` says another."""
    forking = None if "anew" in request.fixturenames else warm
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    (project / ".sediment").mkdir(parents=True)
    wires: list[Wire] = []

    def start(cwd: Path = project, **env: str) -> Wire:
        env = {"SEDIMENT_CACHE": str(unpacked), **env}
        wires.append(Wire(cwd, small_env(home, **env), warm=forking))
        return wires[-1]

    yield start
    for wire in wires:
        wire.kill()


@pytest.fixture
def wire(start: Start) -> Wire:
    return start()


def error_code(response: Any) -> int:
    assert "result" not in response
    assert response["error"]["message"]
    return response["error"]["code"]


def still_answers(wire: Wire) -> bool:
    return wire.request("ping")["result"] == {}


def slow_text() -> str:
    """What is encoded before the answer, for a while."""
    return "\n\n".join(f"Paragraph {n}: " + "the tide turns at dusk. " * 30 for n in range(10))


# The handshake era


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_handshake_gives_the_version_asked_for(wire: Wire, version: str) -> None:
    result = wire.handshake(version)
    assert result["protocolVersion"] == version
    assert set(result["capabilities"]) == {"tools", "prompts", "resources"}
    assert result["serverInfo"]["name"] == "sediment"
    assert result["serverInfo"]["version"]
    assert "ttlMs" not in result
    assert "resultType" not in result
    assert still_answers(wire)


@pytest.mark.parametrize("version", ["2024-10-07", "2026-07-28", "2099-01-01", None, ["x"], 7])
def test_handshake_answers_an_unknown_version_with_its_newest(wire: Wire, version: Any) -> None:
    assert wire.handshake(version)["protocolVersion"] == "2025-11-25"


def test_handshake_may_be_repeated(wire: Wire) -> None:
    wire.handshake("2025-06-18")
    assert wire.handshake("2024-11-05")["protocolVersion"] == "2024-11-05"


def test_what_a_model_sees_is_short_and_the_descriptions_suffice_alone(wire: Wire) -> None:
    instructions, listed = wire.handshake()["instructions"], tools(wire)
    seen = [
        {key: tool[key] for key in ("name", "description", "inputSchema")}
        for tool in listed.values()
    ]
    tokens = (len(json.dumps(seen)) + len(instructions)) / 4
    assert tokens < 800, "each costs every session its tokens: shorten it, or say in CHANGELOG why"
    told = {name: tool["description"] for name, tool in listed.items()}
    for occasion in ("preference", "corrects", "decides", "took effort", "Do not store"):
        assert occasion in told["store"]
    assert re.search("may_replace .* call store again .* replace_id", told["store"])
    for occasion in ("start a task", "before you ask the user", "No result means"):
        assert occasion in told["recall"]
    for text in (told["recall"], instructions):
        assert sediment_ext.transcripts.MEMORY_BEGIN.removesuffix(":") + "]" in text
    assert instructions.index("recall") < instructions.index("store") < 300


def test_a_byte_order_mark_before_the_first_line_is_passed_over(wire: Wire) -> None:
    wire.send_bytes(b"\xef\xbb\xbf")
    assert still_answers(wire)
    wire.send_bytes(b"\xef\xbb\xbf{}\n")
    assert error_code(wire.receive()) == PARSE_ERROR


def test_requests_before_the_handshake_are_answered(wire: Wire) -> None:
    assert still_answers(wire)
    assert len(wire.request("tools/list")["result"]["tools"]) == 4
    assert wire.call("list")["count"] == 0


# The stateless era


def test_discover(wire: Wire) -> None:
    wire.meta = STATELESS
    result = wire.request("server/discover")["result"]
    assert result["resultType"] == "complete"
    assert "2026-07-28" in result["supportedVersions"]
    assert set(result["capabilities"]) == {"tools", "prompts", "resources"}
    assert result["instructions"]
    assert result["ttlMs"] == sediment.LIST_TTL
    assert result["cacheScope"] in ("public", "private")
    assert result["_meta"][f"{META}serverInfo"]["name"] == "sediment"
    assert "serverInfo" not in result


def test_stateless_requests_need_no_opening(wire: Wire) -> None:
    wire.meta = STATELESS
    listed = wire.request("tools/list")["result"]
    assert listed["resultType"] == "complete"
    assert listed["ttlMs"] == sediment.LIST_TTL
    assert listed["cacheScope"] in ("public", "private")
    called = wire.request("tools/call", {"name": "list", "arguments": {}})["result"]
    assert called["resultType"] == "complete"
    assert called["structuredContent"]["count"] == 0
    assert called["_meta"][f"{META}serverInfo"]["name"] == "sediment"


def test_both_eras_in_one_process(wire: Wire) -> None:
    wire.handshake("2025-06-18")
    wire.meta = STATELESS
    assert wire.request("tools/list")["result"]["resultType"] == "complete"
    wire.meta = {}
    assert "resultType" not in wire.request("tools/list")["result"]


def test_stateless_requests_for_what_is_gone_are_unknown(wire: Wire) -> None:
    wire.meta = STATELESS
    for method in ("initialize", "ping", "logging/setLevel", "roots/list"):
        assert error_code(wire.request(method)) == UNKNOWN_METHOD


@pytest.mark.parametrize("version", ["2099-01-01", "2025-11-25", ""])
def test_stateless_version_that_is_not_served(wire: Wire, version: str) -> None:
    wire.meta = STATELESS
    served = wire.request("server/discover")["result"]["supportedVersions"]
    wire.meta = {**STATELESS, f"{META}protocolVersion": version}
    for method in ("server/discover", "tools/list", "tools/call"):
        error = wire.request(method)["error"]
        assert error["code"] == -32022
        assert error["data"]["supported"] == served == ["2026-07-28"]
        assert error["data"]["requested"] == version


@pytest.mark.parametrize("version", ["1e999", "7", "null", "[" * 970 + "]" * 970])
def test_stateless_version_that_is_no_text(wire: Wire, version: str) -> None:
    text = json.dumps(wire.message("tools/list", {"_meta": {**STATELESS}}))
    wire.send_bytes(text.replace('"2026-07-28"', version).encode() + b"\n")
    assert error_code(wire.receive()) in (INVALID_PARAMS, PARSE_ERROR)
    assert still_answers(wire)


@pytest.mark.parametrize("capabilities", [None, "none", []])
def test_stateless_requests_must_state_capabilities(wire: Wire, capabilities: Any) -> None:
    wire.meta = {**STATELESS, f"{META}clientCapabilities": capabilities}
    assert error_code(wire.request("tools/list")) == INVALID_PARAMS


def test_discover_without_meta_is_answered_at_once(wire: Wire) -> None:
    assert error_code(wire.request("server/discover")) == INVALID_PARAMS


# What is advertised


def tools(wire: Wire) -> dict[str, Any]:
    return {tool["name"]: tool for tool in wire.request("tools/list")["result"]["tools"]}


def test_four_tools_with_just_these_parameters(wire: Wire) -> None:
    schemas = {name: tool["inputSchema"] for name, tool in tools(wire).items()}
    assert {name: list(schema["properties"]) for name, schema in schemas.items()} == {
        "store": ["content", "scope", "replace_id", "tags", "expires"],
        "recall": ["query", "limit", "tags"],
        "list": ["limit", "scope"],
        "forget": ["id"],
    }
    assert {name: schema["required"] for name, schema in schemas.items()} == {
        "store": ["content"],
        "recall": ["query"],
        "list": [],
        "forget": ["id"],
    }


def test_tool_list_is_the_same_every_time_and_in_one_page(wire: Wire, start: Start) -> None:
    first = wire.request("tools/list")["result"]
    assert "nextCursor" not in first
    assert start().request("tools/list")["result"] == first
    assert error_code(wire.request("tools/list", {"cursor": "2"})) == INVALID_PARAMS


def test_schemas_are_flat_objects_that_every_client_takes(wire: Wire) -> None:
    for tool in tools(wire).values():
        for schema in (tool["inputSchema"], tool["outputSchema"]):
            assert schema["type"] == "object"
            assert not {"oneOf", "anyOf", "allOf", "$ref", "$defs"} & schema.keys()
            assert set(schema["required"]) <= schema["properties"].keys()
        for facts in tool["inputSchema"]["properties"].values():
            assert facts["type"] in ("string", "integer", "array")
            assert facts["description"]
        assert 20 < len(tool["description"]) < 2048


def test_annotations_state_all_four_hints(wire: Wire) -> None:
    hints = {
        name: [
            tool["annotations"][f"{hint}Hint"]
            for hint in ("readOnly", "destructive", "idempotent", "openWorld")
        ]
        for name, tool in tools(wire).items()
    }
    assert hints == {
        "store": [False, False, False, False],
        "recall": [True, False, True, False],
        "list": [True, False, True, False],
        "forget": [False, True, True, False],
    }


def assert_keys(answer: dict[str, Any], schema: dict[str, Any]) -> None:
    assert set(schema["required"]) <= answer.keys() <= schema["properties"].keys()


def test_answers_have_what_the_output_schemas_require(wire: Wire) -> None:
    schemas = {name: tool["outputSchema"] for name, tool in tools(wire).items()}
    stored = wire.call("store", content="The lighthouse is painted every third spring.")
    answers = {
        "store": stored,
        "recall": wire.call("recall", query="lighthouse"),
        "list": wire.call("list"),
        "forget": wire.call("forget", id=stored["id"]),
    }
    for name, answer in answers.items():
        assert set(schemas[name]["required"]) <= answer.keys() <= schemas[name]["properties"].keys()
    row = schemas["recall"]["properties"]["results"]["items"]
    assert (
        set(row["required"]) <= answers["recall"]["results"][0].keys() <= row["properties"].keys()
    )


# The tools


def test_store_recall_list_forget(wire: Wire) -> None:
    wire.handshake()
    stored = wire.call("store", content="We deploy on Fridays, after the canary is green.")
    assert stored["success"] is True
    assert stored["scope"] == "project"
    assert "project" in stored["message"]
    (result,) = wire.call("recall", query="when can I release?")["results"]
    assert result["id"] == stored["id"]
    assert result["content"] == "We deploy on Fridays, after the canary is green."
    assert 0 < result["similarity"] <= 1
    assert "cross_project" not in result
    listed = wire.call("list")
    assert [item["id"] for item in listed["items"]] == [stored["id"]]
    assert listed["count"] == listed["total"] == 1
    assert wire.call("forget", id=stored["id"])["ids"] == [stored["id"]]
    assert wire.call("list")["count"] == 0
    assert UNKNOWN_ID in wire.refusal("forget", id=UNKNOWN_ID)


def test_empty_answers_are_structured_and_say_so(wire: Wire) -> None:
    recalled = wire.call("recall", query="anything")
    assert recalled == {"count": 0, "results": [], "message": recalled["message"]}
    assert "Nothing found" in recalled["message"]
    listed = wire.call("list")
    assert (listed["count"], listed["items"]) == (0, [])
    assert "No memories yet" in listed["message"]


def test_text_comes_back_as_it_was(wire: Wire) -> None:
    text = "line\u2028separator\u0085 \t\r\n 😀 ünï \u202e <|im_end|> \\u0041 \x1b[31m"
    id = wire.call("store", content=text)["id"]
    assert wire.call("recall", query=id)["results"][0]["content"] == text


def test_created_at_is_taken_though_not_advertised(wire: Wire) -> None:
    wire.call("store", content="An old fact.", created_at=1_500_000_000)
    assert wire.call("list")["items"][0]["created"] == "2017-07-14T02:40:00+00:00"
    assert "created_at" not in tools(wire)["store"]["inputSchema"]["properties"]
    assert "-1" in wire.refusal("store", content="x", created_at=-1)
    assert "1e+300" in wire.refusal("store", content="x", created_at=1e300)


def test_replace(wire: Wire) -> None:
    old = wire.call("store", content="The gate code is 1234.")["id"]
    new = wire.call("store", content="The gate code is 9876.", replace_id=old)
    assert new["replaced_id"] == old
    assert "replaced" in new["message"]
    listed = wire.call("list")["items"]
    assert [item["id"] for item in listed] == [new["id"]]


def test_messages_speak_of_tools_and_not_of_commands(
    wire: Wire, start: Start, tmp_path: Path
) -> None:
    old = wire.call("store", content="The gateway listens on port 8080.")["id"]
    said = wire.call("store", content="The gateway now listens on port 9090.", created_at=4e9)
    new = wire.call("store", content="The gateway listens on port 9191.", replace_id=old)["id"]
    told = [
        said["message"],
        wire.refusal("store", content="It listens on port 9292.", replace_id=old),
        wire.refusal("forget", id=old),
        start(SEDIMENT_PROJECT="ours").refusal("forget", id=new),
    ]
    assert "; it may replace an older memory." in told[0]
    assert told[1] == f"{old[:8]} was replaced by {new[:8]}: name {new[:8]} instead"
    assert told[2] == f"{old[:8]} was replaced by {new[:8]}: `forget {new[:8]}` deletes both"
    assert told[3] == f"{new} belongs to another project: change it there"
    assert not [text for text in told if "--" in text or "`undo" in text or "sediment " in text]


@pytest.mark.parametrize("id", [UNKNOWN_ID, "not an id", 7, ["x"], "x" * 300])
def test_replacing_what_is_not_there_stores_nothing(wire: Wire, id: Any) -> None:
    assert wire.refusal("store", content="The gate code is 9876.", replace_id=id)
    assert wire.call("list", scope="all")["count"] == 0


def test_an_id_as_query_reads_the_whole_text_in_pages(wire: Wire) -> None:
    text = "".join(f'{n}: "quoted" line about the harbour\n' for n in range(900))
    id = wire.call("store", content=text)["id"]
    read, query = "", id
    while query:
        (page,) = wire.call("recall", query=query)["results"]
        assert page["id"] == id
        read, query = read + page["content"], page.get("next")
    assert read == text
    assert page["page"] == page["pages"] > 2
    second = wire.call("recall", query=f"{id} page 2")["results"][0]
    assert second["page"] == 2
    for number in (0, page["pages"] + 1):
        assert str(page["pages"]) in wire.refusal("recall", query=f"{id} page {number}")


def test_a_long_text_is_answered_before_its_vectors_are_made(wire: Wire) -> None:
    text = "\n\n".join(f"Entry {n}: the tide turns at dusk, and code X{n}Y." for n in range(4000))
    stored = wire.call("store", content=text)
    assert stored["pending_chunks"] > 32
    assert wire.call("recall", query="X3999Y")["results"][0]["id"] == stored["id"]
    assert wire.end() == []


# Limits


def test_limits_on_size(wire: Wire) -> None:
    largest = "a" + " " * 999_998 + "b"  # of two chunks
    assert wire.call("store", content=largest)["success"]
    assert "too large" in wire.refusal("store", content=largest + "b")
    assert "too large" in wire.refusal("store", content="ä " * 333_334)  # bytes count
    assert wire.call("recall", query="a " * 5_000)["count"] == 1
    assert "too large" in wire.refusal("recall", query="a " * 5_000 + "b")


def test_a_hundred_long_memories_are_shortened_and_none_is_dropped(start: Start) -> None:
    here, there = (start(SEDIMENT_PROJECT=name, SEDIMENT_RATE_LIMIT="0") for name in ("a", "b"))
    text = '{} is a harbour "with lights".\nIts pilots know the tides. ' + ("x" * 150 + " ") * 2
    here.send(*(here.call_message("store", content=text.format(n)) for n in range(100)))
    ids = {answer_of(here.receive())["id"] for _ in range(100)}
    for wire in (here, there):
        results = wire.call("recall", query="harbour lights", limit=100)["results"]
        assert {row["id"] for row in results} <= ids
        assert len(results) > 3
        assert all(len(row["content"]) > 5 for row in results)
        assert all(row.get("cross_project", False) is (wire is there) for row in results)
    listed = here.call("list", limit=100)["items"]
    assert {item["id"] for item in listed} == ids
    assert all(len(item["content"]) > 5 for item in listed)
    few = here.call("recall", query="harbour lights", limit=3)["results"]
    assert all(len(row["content"]) > 200 for row in few)


def answer_with(count: int, id_length: int) -> dict[str, Any]:
    facts = {"similarity": 0.5, "created": "2026-01-02T03:04:05+00:00", "content": "x\n" * 2_000}
    rows = [{"id": f"{n:0{id_length}}", **facts} for n in range(count)]
    return {"count": count, "results": rows, "suggested": [{"id": "other"}]}


@pytest.mark.parametrize(
    ("count", "id_length", "fields"),
    [
        (5, 8, {"id", "content", "similarity", "created"}),
        (40, 36, {"id", "content", "similarity", "created"}),
        (100, 36, {"id", "content"}),
    ],
)
def test_a_long_answer_gives_up_texts_then_fields(
    count: int, id_length: int, fields: set[str]
) -> None:
    answer = sediment.fit_answer(whole := answer_with(count, id_length) | {"held_back": 1})
    rows = answer["results"]
    assert sediment.json_length(answer) <= sediment.ANSWER_MAX
    assert [row["id"] for row in rows] == [row["id"] for row in whole["results"]][: len(rows)]
    assert {name for row in rows for name in row} == fields
    assert all(row["content"].endswith("…") for row in rows)
    assert ("suggested" in answer) is (count == 5)
    assert len(rows) == answer["count"] == count
    assert sediment.json_length(answer) > sediment.ANSWER_MAX - 2 * count - 2


def test_similar_long_memories_are_shortened_in_the_answer_to_store(wire: Wire) -> None:
    text = "The tide turns at dusk. " * 41
    for number in range(4):
        wire.call("store", content=f"{text}{number}")
    older = wire.call("store", content=f"{text}4")["may_replace"]
    assert len(older) == 3
    assert {len(row["content"]) for row in older} == {301}
    whole = "The tide turns at dusk. " * 1000
    wire.call("store", content=whole)
    assert wire.call("store", content=whole)["already_stored"]


def test_limits_above_100_are_capped_and_up_to_1000_accepted(start: Start) -> None:
    wire = start(SEDIMENT_RATE_LIMIT="0")
    wire.send(*(wire.call_message("store", content=f"Buoy {n} is red.") for n in range(105)))
    for _ in range(105):
        answer_of(wire.receive())
    for tool in tools(wire).values():
        if limit := tool["inputSchema"]["properties"].get("limit"):  # the error says the same
            assert re.search("1 to 1000 .*above 100 it means 100", limit["description"])
    for limit in (101, 1000):
        assert 0 < wire.call("recall", query="buoy", limit=limit)["count"] <= 100
        assert wire.call("list", limit=limit)["count"] == 100
    assert wire.call("list", limit=7)["count"] == 7
    assert wire.call("list")["count"] == 20
    assert 0 < wire.call("recall", query="buoy")["count"] <= 5
    assert wire.call("list", limit=2.0)["count"] == 2  # some clients write whole numbers so


@pytest.mark.parametrize("tool", ["recall", "list"])
def test_wrong_limits_are_named(wire: Wire, tool: str) -> None:
    query = {"query": "x"} if tool == "recall" else {}
    for limit in (0, -1, 1001, 10**9, "0", "1.5", "five", 1.5, True, [5]):
        text = wire.refusal(tool, limit=limit, **query)
        assert "limit" in text
        assert str(limit) in text


WRONG_ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("store", {}, "store takes content, scope, replace_id, tags, expires; content is missing"),
    ("store", {"content": None}, "content"),
    ("store", {"content": 5}, "content"),
    ("store", {"content": ["x"]}, "content"),
    ("store", {"content": ""}, "content"),
    ("store", {"content": " \n\t"}, "content"),
    ("store", {"content": "a\0b"}, "NUL"),
    ("store", {"content": "a\ud800b"}, "D800"),
    ("store", {"content": "x", "scope": "world"}, "world"),
    ("store", {"content": "x", "scope": "all"}, "all"),
    ("store", {"content": "x", "scope": 5}, "scope"),
    ("store", {"content": "x", "created_at": "soon"}, "soon"),
    ("store", {"content": "x", "created_at": True}, "True"),
    ("recall", {}, "query"),
    ("recall", {"question": "x"}, "recall takes query, limit, tags; query is missing"),
    ("recall", {"query": ""}, "query"),
    ("recall", {"query": None}, "query"),
    ("recall", {"query": {}}, "query"),
    ("recall", {"query": " "}, "query"),
    ("recall", {"query": "a\0b"}, "NUL"),
    ("recall", {"query": "a\udfffb"}, "DFFF"),
    ("recall", {"query": "x", "source": 5}, "source"),
    ("recall", {"query": "x", "source": ["a"]}, "source"),
    ("recall", {"query": "x", "source": "a\0b"}, "NUL"),
    ("recall", {"query": "x", "source": "a\ud800b"}, "D800"),
    ("recall", {"query": "x", "source": "~nobody-of-this-name/x"}, "home"),
    ("list", {"scope": "everything"}, "everything"),
    ("forget", {}, "id"),
    ("forget", {"id": None}, "id"),
    ("forget", {"id": 5}, "id"),
    ("forget", {"id": ""}, "id"),
]


def test_wrong_arguments_are_named(wire: Wire) -> None:
    for tool, arguments, named in WRONG_ARGUMENTS:
        text = wire.refusal(tool, **arguments)
        assert named in text, (tool, arguments, text)
        assert len(text) < 300
    assert wire.call("list", scope="all")["count"] == 0
    assert wire.log() == ""


def test_optional_arguments_may_be_null(wire: Wire) -> None:
    assert wire.call("store", content="x", scope=None, replace_id=None)["success"]
    assert wire.call("recall", query="x", limit=None)["count"] == 1
    assert wire.call("list", limit=None, scope=None)["count"] == 1


def test_optional_arguments_may_be_empty(wire: Wire) -> None:
    stored = wire.call("store", content="x", scope="", replace_id="", created_at="")
    assert (stored["scope"], stored.get("replaced_id")) == ("project", None)
    assert wire.call("recall", query="x", limit="", source="")["count"] == 1
    assert wire.call("list", limit="", scope="")["count"] == 1


def test_a_number_may_be_sent_as_text(wire: Wire) -> None:
    for number in range(3):
        wire.call("store", content=f"Buoy {number} is red.")
    assert wire.call("recall", query="buoy", limit="2")["count"] == 2
    assert wire.call("list", limit="1")["count"] == 1


def test_an_unknown_argument_is_ignored_and_named(wire: Wire) -> None:
    extra = {"toolCallId": "c1", "sessionId": 7, "\ud800": None, "x" * 5_000: [1]}
    stored = wire.call("store", content="The gate code is 1234.", **extra)
    told = [stored["message"]]
    assert "message" not in wire.call("recall", query="gate code")
    told.append(wire.call("recall", query="gate code", scope="all")["message"])
    told.append(wire.call("recall", query="zebra finches", scope="all")["message"])
    told.append(wire.call("list", query="x")["message"])
    told.append(wire.call("forget", id=stored["id"], tags=["y"])["message"])
    assert told[0].startswith("Stored")
    assert "Ignored unknown arguments: 'sessionId, toolCallId, xxx" in told[0]
    assert "Ignored unknown arguments: 'scope'." in told[1]
    assert told[2].startswith("Nothing found")
    assert told[2].endswith("arguments: 'scope'.")
    assert "'query'" in told[3]
    assert told[4].endswith(" Ignored unknown arguments: 'tags'.")
    assert max(map(len, told)) < 300


def test_malformed_calls_are_protocol_errors(wire: Wire) -> None:
    for params in (
        {},
        {"name": "drop", "arguments": {}},
        {"name": 5, "arguments": {}},
        {"name": ["list"]},
        {"arguments": {}},
        {"name": "list", "arguments": []},
        {"name": "list", "arguments": "{}"},
    ):
        assert error_code(wire.request("tools/call", params)) == INVALID_PARAMS
    assert wire.request("tools/call", {"name": "list"})["result"]["structuredContent"]


def test_six_hundred_calls_a_minute(wire: Wire) -> None:
    wire.send(*(wire.call_message("forget", id=UNKNOWN_ID) for _ in range(601)))
    texts = [wire.receive()["result"]["content"][0]["text"] for _ in range(601)]
    assert sum("Rate limit" in text for text in texts) == 1
    assert "600" in wire.refusal("list")
    assert still_answers(wire)


def test_rate_limit_is_set_and_lifted_by_the_environment(start: Start) -> None:
    narrow, wide = start(SEDIMENT_RATE_LIMIT="2"), start(SEDIMENT_RATE_LIMIT="0")
    assert narrow.call("list")["count"] == narrow.call("list")["count"] == 0
    assert "Rate limit: 2" in narrow.refusal("list")
    wide.send(*(wide.call_message("list") for _ in range(700)))
    assert all(answer_of(wide.receive())["count"] == 0 for _ in range(700))


# Projects


def test_another_projects_items_are_marked_and_left_alone(start: Start) -> None:
    ours, theirs = start(SEDIMENT_PROJECT="ours"), start(SEDIMENT_PROJECT="theirs")
    foreign = theirs.call("store", content="The staging database is on port 5433.")["id"]
    (result,) = ours.call("recall", query="staging database port")["results"]
    assert result["id"] == foreign
    assert result["cross_project"] is True
    assert ours.call("recall", query=foreign)["results"][0]["cross_project"] is True
    assert ours.call("list", scope="all")["count"] == 0
    assert "another project" in ours.refusal("forget", id=foreign)
    assert "another project" in ours.refusal("store", content="Port 5434.", replace_id=foreign)
    assert ours.call("list", scope="all")["count"] == 0
    assert theirs.call("list")["count"] == 1


def test_global_items_are_everyones(start: Start) -> None:
    ours, theirs = start(SEDIMENT_PROJECT="ours"), start(SEDIMENT_PROJECT="theirs")
    id = theirs.call("store", content="The user prefers tabs.", scope="global")["id"]
    (result,) = ours.call("recall", query="tabs or spaces?")["results"]
    assert "cross_project" not in result
    assert ours.call("list", scope="global")["items"][0]["scope"] == "global"
    assert ours.call("list")["count"] == 0
    assert ours.call("forget", id=id)["success"]


def test_project_is_the_clients_folder_when_it_names_one(start: Start, tmp_path: Path) -> None:
    plain = start()
    elsewhere = start(cwd=tmp_path, CLAUDE_PROJECT_DIR=str(tmp_path / "project"))
    plain.call("store", content="Known in this folder.")
    assert elsewhere.call("list")["count"] == 1


# Messages that are wrong


NOT_JSON = [
    b"hello",
    b"{",
    b'{"jsonrpc":"2.0","id":1,"method":"ping"',
    b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":-Infinity}}',
    b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}\0',
    b'{"jsonrpc":"2.0","id":1' + b"0" * 5000 + b',"method":"ping"}',
    b"[" * 100_000,
]


def test_lines_that_are_not_json(wire: Wire) -> None:
    for line in NOT_JSON:
        wire.send_bytes(line + b"\n")
        answer = wire.receive()
        assert error_code(answer) == PARSE_ERROR, line[:60]
        assert "id" not in answer
    assert still_answers(wire)


@pytest.mark.parametrize("depth", [900, 5_000, 100_000])
def test_deep_nesting_is_refused(wire: Wire, depth: int) -> None:
    wire.send_bytes(b"[" * depth + b"]" * depth + b"\n")
    assert error_code(wire.receive()) in (PARSE_ERROR, INVALID_REQUEST)
    wire.send_bytes(b'{"a":' * depth + b"1" + b"}" * depth + b"\n")
    assert error_code(wire.receive()) in (PARSE_ERROR, INVALID_REQUEST)
    assert still_answers(wire)


NOT_REQUESTS = [
    5,
    "ping",
    None,
    {},
    {"id": 1, "method": "ping"},
    {"jsonrpc": "1.0", "id": 1, "method": "ping"},
    {"jsonrpc": 2.0, "id": 1, "method": "ping"},
    {"jsonrpc": "2.0", "id": 1},
    {"jsonrpc": "2.0", "id": 1, "method": 5},
    {"jsonrpc": "2.0", "id": None, "method": "ping"},
    {"jsonrpc": "2.0", "id": 1.5, "method": "ping"},
    {"jsonrpc": "2.0", "id": True, "method": "ping"},
    {"jsonrpc": "2.0", "id": [1], "method": "ping"},
    {"jsonrpc": "2.0", "id": {}, "method": "tools/call", "params": {"name": "list"}},
]


def test_messages_that_are_not_requests(wire: Wire) -> None:
    for message in NOT_REQUESTS:
        wire.send(message)
        answer = wire.receive()
        assert error_code(answer) == INVALID_REQUEST, message
        given = message.get("id") if isinstance(message, dict) else None
        assert answer.get("id") == (1 if type(given) is int else None), message
    assert still_answers(wire)


def test_params_that_are_not_an_object(wire: Wire) -> None:
    for params in ([], "x", 5):
        wire.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        assert error_code(wire.receive()) == INVALID_PARAMS


def test_a_prompt_brings_what_is_remembered(wire: Wire) -> None:
    wire.handshake()
    wire.send(wire.call_message("store", content="Otters hold hands while they sleep."))
    wire.receive()
    (prompt,) = wire.request("prompts/list")["result"]["prompts"]
    assert (prompt["name"], prompt["arguments"][0]["name"]) == ("recall", "query")
    asked = {"name": "recall", "arguments": {"query": "how do otters sleep"}}
    (message,) = wire.request("prompts/get", asked)["result"]["messages"]
    assert "Otters hold hands" in message["content"]["text"]
    for wrong in (
        {},
        {"name": "recall"},
        {"name": "recall", "arguments": 5},
        {"name": "recall", "arguments": {"query": ""}},
        {"name": "forget", "arguments": {"query": "x"}},
    ):
        assert wire.request("prompts/get", wrong)["error"]["code"] == -32602


def test_memories_are_resources(wire: Wire) -> None:
    wire.handshake()
    wire.send(wire.call_message("store", content="Otters\nhold hands."))
    id = wire.receive()["result"]["structuredContent"]["id"]
    (listed,) = wire.request("resources/list")["result"]["resources"]
    newest = wire.request("resources/read", {"uri": listed["uri"]})["result"]["contents"][0]
    assert id in newest["text"]
    (template,) = wire.request("resources/templates/list")["result"]["resourceTemplates"]
    uri = template["uriTemplate"].format(id=id)
    (whole,) = wire.request("resources/read", {"uri": uri})["result"]["contents"]
    assert (whole["uri"], whole["text"]) == (uri, "Otters\nhold hands.")
    for wrong in ({}, {"uri": 5}, {"uri": "file:///etc/passwd"}, {"uri": "memory://nothing"}):
        assert wire.request("resources/read", wrong)["error"]["code"] == -32602


def test_unknown_methods(wire: Wire) -> None:
    for method in ("completion/complete", "tasks/list", "nonsense", "", "\ud800"):
        assert error_code(wire.request(method)) == UNKNOWN_METHOD


def test_ids_are_echoed_exactly(wire: Wire) -> None:
    ids = (0, -1, 2**53 + 1, 2**80, "", "7", "a\ud800", "ü\u2028")
    asked = (("ping", {}), ("nonsense", {}), ("tools/call", {"name": "list"}))
    for id, (method, params) in itertools.product(ids, asked):
        wire.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        answer = wire.receive()
        assert answer["id"] == id
        assert type(answer["id"]) is type(id)


def test_what_needs_no_answer_gets_none(wire: Wire) -> None:
    wire.send(
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/unheard-of", "params": [1]},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "list"}},
        {"jsonrpc": "2.0", "method": "ping"},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        {"jsonrpc": "2.0", "id": 9, "error": {"code": 1, "message": "no"}},
        *(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", **more}
            for more in CANCELLATIONS
        ),
    )
    wire.send_bytes(b"\n  \r\n")
    assert still_answers(wire)
    assert wire.end() == []


CANCELLATIONS: list[dict[str, Any]] = [
    {},
    {"params": None},
    {"params": []},
    {"params": {}},
    {"params": {"requestId": None}},
    {"params": {"requestId": [1]}},
    {"params": {"requestId": 12345}},
]


def test_lines_may_end_with_crlf_or_the_input(wire: Wire) -> None:
    wire.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r\n')
    assert wire.receive()["id"] == 1
    wire.send_bytes(b'{"jsonrpc":"2.0","id":2,"method":"ping"}')
    assert [answer["id"] for answer in wire.end()] == [2]


def test_a_line_in_many_pieces(wire: Wire) -> None:
    for byte in b'{"jsonrpc":"2.0","id":"\xc3\xbc","method":"ping"}\n':
        wire.send_bytes(bytes([byte]))
    assert wire.receive()["id"] == "ü"


def test_the_longest_line_and_one_byte_more(wire: Wire) -> None:
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"', b'"}}'
    fill = b"x" * (LINE_MAX - len(head) - len(tail))
    wire.send_bytes(head + fill + tail + b"\n")
    assert wire.receive() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    wire.send_bytes(head + fill + b"x" + tail + b"\n")
    answer = wire.receive()
    assert error_code(answer) == INVALID_REQUEST
    assert "too large" in answer["error"]["message"]
    assert still_answers(wire)


@pytest.mark.parametrize("length", [LINE_MAX + 1, 2 * LINE_MAX + 1, 3 * LINE_MAX])
def test_a_line_that_is_too_long_is_refused(wire: Wire, length: int) -> None:
    head, tail = b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"', b'"}}'
    wire.send_bytes(head + b"x" * (length - len(head) - len(tail)) + tail + b"\n")
    answer = wire.receive()
    assert error_code(answer) == INVALID_REQUEST
    assert "too large" in answer["error"]["message"]
    assert still_answers(wire)


def test_an_endless_line_is_dropped_as_it_comes(wire: Wire) -> None:
    for _ in range(6):
        wire.send_bytes(b"[" * (LINE_MAX // 2))
    (answer,) = wire.end()
    assert error_code(answer) == INVALID_REQUEST


# Batches


@pytest.mark.parametrize("version", [*HANDSHAKE_VERSIONS, None])
def test_a_batch_is_refused_as_a_whole(wire: Wire, version: str | None) -> None:
    if version:
        wire.handshake(version)
    for batch in ([wire.message("ping")] * 2, [wire.call_message("store", content="x")], []):
        wire.send(batch)
        answer = wire.receive()
        assert error_code(answer) == INVALID_REQUEST
        assert "id" not in answer
    assert wire.call("list")["count"] == 0


# While a call runs


def cancellation(message: dict[str, Any]) -> dict[str, Any]:
    params = {"requestId": message["id"], "reason": "changed my mind"}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


def test_ping_is_answered_while_a_call_runs(wire: Wire) -> None:
    slow, ping = wire.call_message("store", content=slow_text()), wire.message("ping")
    wire.send(slow, ping, wire.message("tools/list"))
    assert wire.receive()["id"] == ping["id"]
    assert "tools" in wire.receive()["result"]
    assert answer_of(wire.receive())["success"]


def test_a_cancelled_call_that_waits_is_not_run_and_not_answered(wire: Wire) -> None:
    slow = wire.call_message("store", content=slow_text())
    waiting = wire.call_message("store", content="Never mind.")
    wire.send(slow, waiting, cancellation(waiting))
    assert wire.receive()["id"] == slow["id"]
    assert wire.call("list")["count"] == 1


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "recall", "arguments": {"query": "otters"}}),
        ("resources/read", {"uri": "memory://recent"}),
    ],
)
def test_a_prompt_or_a_resource_can_be_cancelled(
    wire: Wire, method: str, params: dict[str, Any]
) -> None:
    slow = wire.call_message("store", content=slow_text())
    waiting = wire.message(method, params)
    wire.send(slow, waiting, cancellation(waiting))
    assert wire.receive()["id"] == slow["id"]
    assert wire.call("list")["count"] == 1


def test_a_cancelled_call_that_runs_is_not_answered(path: Path) -> None:
    began, cancelled = threading.Event(), threading.Event()
    answers: queue.Queue[dict[str, Any]] = queue.Queue()

    def run(call: sediment.Call) -> tuple[dict[str, Any], None]:
        began.set()
        assert cancelled.wait(TIMEOUT)
        return sediment._tool_result(call.name), None

    with open_memory(path) as memory:
        worker = sediment.Worker(memory)
        server = sediment.Server(worker, lambda line: answers.put(json.loads(line)))
        server._runs["store"] = run
        slow, after = (
            {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": {"name": name}}
            for name in ("store", "list")
        )
        server.handle(slow, server._send)
        assert began.wait(TIMEOUT)
        server.receive(json.dumps(cancellation(slow)).encode())
        cancelled.set()
        server.handle(after, server._send)
        assert answers.get(timeout=TIMEOUT)["id"] == "list"
        worker.finish()
        assert answers.empty()


def test_calls_are_answered_in_their_order(wire: Wire) -> None:
    calls = [wire.call_message("store", content=f"Fact number {n}.") for n in range(20)]
    wire.send(*calls, wire.call_message("list", limit=20))
    assert [wire.receive()["id"] for _ in calls] == [call["id"] for call in calls]
    listed = [item["content"] for item in answer_of(wire.receive())["items"]]
    assert listed == [f"Fact number {n}." for n in reversed(range(20))]


# The process


def maps(wire: Wire) -> str:
    return Path(f"/proc/{wire.pid}/maps").read_text()


def heavy_libraries(wire: Wire) -> set[str]:
    return set(re.findall("onnxruntime|numpy|tokenizers", maps(wire)))


@started
@on_linux
def test_handshake_list_and_forget_load_no_heavy_library(start: Start) -> None:
    id = start().call("store", content="The gate code is 1234.")["id"]
    wire = start()
    wire.handshake()
    wire.meta = STATELESS
    wire.request("server/discover")
    assert wire.call("list")["count"] == 1
    assert wire.call("forget", id=id)["success"]
    assert heavy_libraries(wire) == set()


@started
@on_linux
def test_encoder_is_loaded_by_the_first_call_that_needs_it(wire: Wire) -> None:
    wire.call("store", content="The gate code is 1234.")
    assert heavy_libraries(wire) >= {"onnxruntime", "tokenizers"}


@started
@on_linux
def test_encoder_is_loaded_soon_after_the_tools_were_listed(wire: Wire) -> None:
    wire.handshake()
    wire.request("tools/list")
    assert heavy_libraries(wire) == set()
    deadline = time.monotonic() + TIMEOUT
    while "onnxruntime" not in heavy_libraries(wire):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@started
@on_linux
def test_only_messages_can_reach_the_clients_pipes(wire: Wire) -> None:
    assert still_answers(wire)
    fds = Path(f"/proc/{wire.pid}/fd")
    assert os.path.samefile(fds / "0", os.devnull)
    assert os.path.samefile(fds / "1", fds / "2")


def test_everything_read_before_the_end_of_input_is_answered(wire: Wire) -> None:
    stores = [wire.call_message("store", content=f"Fact {n}.") for n in range(10)]
    pings = [wire.message("ping") for _ in range(10)]
    wire.send(*stores, *pings, wire.call_message("list"))
    answers = {answer["id"]: answer for answer in wire.end()}
    assert answers.keys() == {*range(1, 22)}
    assert answer_of(answers[21])["total"] == 10
    assert wire.log() == ""


@started
def test_a_server_that_was_never_used_leaves_nothing(wire: Wire, tmp_path: Path) -> None:
    wire.handshake()
    assert wire.call("list")["count"] == 0
    assert wire.end() == []
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert not list((tmp_path / "project" / ".sediment").iterdir())


@started
def test_what_is_stored_outlives_the_process(start: Start) -> None:
    first = start()
    id = first.call("store", content="The gate code is 1234.")["id"]
    first.kill()
    assert start().call("list")["items"][0]["id"] == id


def long_text() -> str:
    """More than is encoded before the answer, in chunks that are quick to encode."""
    return "\n\n".join(f"# Heading {n}\n\nSome text." for n in range(40))


def chunks_without_vector(file: Path) -> int:
    """Asked as any other program might ask, which opens the file and closes it again."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT count(*) FROM pending").fetchone()[0]


def wait_for_vectors(file: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    while chunks_without_vector(file):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_other_programs_may_read_the_file_and_nothing_is_lost(start: Start, tmp_path: Path) -> None:
    wire = start(SEDIMENT_DB=str(tmp_path / "memory.db"))
    wire.call("store", content=long_text())  # whose vectors another thread makes
    wait_for_vectors(tmp_path / "memory.db")
    for n in range(3):
        wire.call("store", content=f"Fact {n}.")
        assert chunks_without_vector(tmp_path / "memory.db") == 0
    wire.kill()
    assert start(SEDIMENT_DB=str(tmp_path / "memory.db")).call("list")["total"] == 4


@started
def test_servers_may_write_at_once(start: Start) -> None:
    wires = [start() for _ in range(4)]
    assert all(still_answers(wire) for wire in wires)
    for number, wire in enumerate(wires):
        texts = [f"Fact {n} of server {number}." for n in range(4)] + ["A fact of everybody's."]
        wire.send(*(wire.call_message("store", content=text) for text in texts))
    for wire in wires:
        assert all(answer_of(wire.receive())["success"] for _ in range(5))
    assert start().call("list")["total"] == 17  # they agree on the project, too


@started
@on_linux
def test_long_texts_leave_no_files_open(start: Start, tmp_path: Path) -> None:
    wire = start(SEDIMENT_DB=str(tmp_path / "memory.db"))
    counts = []
    for _ in range(5):
        wire.call("store", content=long_text())
        wait_for_vectors(tmp_path / "memory.db")
        counts.append(len(os.listdir(f"/proc/{wire.pid}/fd")))
    assert counts[-1] <= counts[0] + 2


def test_long_texts_are_finished_by_the_next_server(start: Start, tmp_path: Path) -> None:
    first = start(SEDIMENT_DB=str(tmp_path / "memory.db"))
    assert first.call("store", content=long_text() * 6)["pending_chunks"] > 200
    assert first.end() == []
    start(SEDIMENT_DB=str(tmp_path / "memory.db")).request("tools/list")
    wait_for_vectors(tmp_path / "memory.db")


@pytest.mark.parametrize("place", ["", "no folder/memory.db", "text.db"])
def test_a_database_that_cannot_be_used_is_told_every_time(
    start: Start, tmp_path: Path, place: str
) -> None:
    (tmp_path / "text.db").write_text("This is no database. " * 500)
    (tmp_path / "no folder").write_text("")
    wire = start(SEDIMENT_DB=str(tmp_path / place))
    wire.handshake()
    for _ in range(2):
        assert str(tmp_path) in wire.refusal("store", content="x")
        assert str(tmp_path) in wire.refusal("recall", query="x")
    assert wire.end() == []
    assert wire.log() == ""


@started
@on_posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_an_idle_server_cleanly(wire: Wire, number: signal.Signals) -> None:
    wire.handshake()
    wire.process.send_signal(number)
    assert wire.rest() == []
    assert wire.log() == ""


@started
@on_posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_busy_server_cleanly(wire: Wire, number: signal.Signals) -> None:
    wire.send(*(wire.call_message("store", content=f"{n}. {slow_text()}") for n in range(9)))
    assert still_pings(wire)
    wire.process.send_signal(number)
    assert len(wire.rest()) < 9
    assert wire.log() == ""


def still_pings(wire: Wire) -> bool:
    ping = wire.message("ping")
    wire.send(ping)
    while wire.receive()["id"] != ping["id"]:
        pass
    return True


@on_posix
def test_a_client_that_reads_no_more_is_no_fault(tmp_path: Path, unpacked: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    server = subprocess.Popen(
        server_command(),
        stdin=subprocess.PIPE,
        stdout=write,
        stderr=subprocess.PIPE,
        env=small_env(tmp_path, SEDIMENT_CACHE=str(unpacked)),
    )
    os.close(write)
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    assert server.communicate(ping * 100, TIMEOUT)[1] == b""
    assert server.returncode == 0


@on_posix
def test_server_ends_when_its_parent_dies(tmp_path: Path, unpacked: Path) -> None:
    """Its stdin stays open, held by us as another child of the dead client might hold it."""
    read, write = os.pipe()
    script = "import subprocess, sys; subprocess.Popen(sys.argv[2:], stdin=int(sys.argv[1])).wait()"
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(read), *server_command()],
        stdout=subprocess.PIPE,
        pass_fds=[read],
        env=small_env(tmp_path, SEDIMENT_CACHE=str(unpacked)),
    )
    os.close(read)
    assert parent.stdout
    os.write(write, b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    assert json.loads(parent.stdout.readline())["result"] == {}
    parent.kill()
    assert parent.communicate(timeout=TIMEOUT)[0] == b""  # which waits for the server to go
    os.close(write)

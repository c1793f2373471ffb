"""What `make bench-peers` is made of, as far as it needs no peer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy
import onnxruntime
import pytest
from tokenizers import Tokenizer

with patch.dict(os.environ):  # a bench sets what other tests must not see
    import bench_peers
from peers import in_process

from sediment import Encoder

OWN = bench_peers.Program("own", [], {}, [])


def said(text: str) -> Any:
    """A peer that gives one answer to every call."""
    return SimpleNamespace(call=lambda *_, **__: json.loads(text))


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        ('{"count": 2, "results": [{"id": "a"}, {"id": "b"}]}', ["a", "b"]),
        ('{"id": "No memories found."}', []),
        (
            f'{{"id": "1. one\\n Hash: {"a" * 64}\\n2. two\\n Hash: {"b" * 64}"}}',
            ["a" * 64, "b" * 64],
        ),
    ],
)
def test_ids_are_found_in_answers_of_any_kind(answer: str, ids: list[str]) -> None:
    assert OWN.recall(said(answer), "what?")[0] == ids


def test_an_error_that_is_told_as_a_text_is_one() -> None:
    with pytest.raises(AssertionError):
        OWN.recall(said('{"id": "Error searching memories: no storage"}'), "what?")


def test_a_driver_says_itself_how_long_it_took() -> None:
    assert OWN.store(said('{"id": "a", "seconds": 0.25}'), "one") == ("a", 0.25)
    stored, took = OWN.store(said(f'{{"id": "stored (hash: {"c" * 64})"}}'), "one")
    assert stored == "c" * 64
    assert took < 0.25


def test_sockets_are_counted_in_what_strace_writes() -> None:
    log = """\
1 socket(AF_UNIX, SOCK_STREAM, 0) = 3
1 socket(AF_INET6, SOCK_STREAM|SOCK_CLOEXEC, IPPROTO_IP) = 3
2 socket(AF_INET, SOCK_DGRAM, IPPROTO_IP <unfinished ...>
1 connect(3, {sa_family=AF_UNIX, sun_path="/run/nscd"}, 110) = -1 ENOENT
2 <... socket resumed>) = 4
2 connect(4, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("192.0.2.1")}, 16) = 0
"""
    assert bench_peers.internet(log) == "2; 1"


def test_a_driver_answers_as_a_server_does(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        {"id": 1, "method": "initialize", "params": {}},
        {"method": "notifications/initialized"},
        {
            "id": 2,
            "method": "tools/call",
            "params": {"name": "store", "arguments": {"content": "a"}},
        },
        {
            "id": 3,
            "method": "tools/call",
            "params": {"name": "recall", "arguments": {"query": "b", "limit": 5}},
        },
    ]
    lines = map(json.dumps, asked)
    in_process.serve(
        "chromadb", lambda content: content.upper(), lambda query, limit: [query] * limit, lines
    )
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["id"] for one in told] == [1, 2, 3]
    texts = [json.loads(one["result"]["content"][0]["text"]) for one in told[1:]]
    assert texts[0]["id"] == "A"
    assert texts[1]["results"] == [{"id": "b"}] * 5
    assert all(text["seconds"] >= 0 for text in texts)


def test_peers_compute_the_same_vectors(tmp_path: Path) -> None:
    """What chromadb is given, and the graph that a server loads as if it were its own."""
    text = "We deploy on Fridays, after the canary is green."
    published = tmp_path / "published"
    bench_peers.give_published(published)
    own = in_process.encoder(published)(text)
    assert 0.9 < float(own @ numpy.frombuffer(Encoder().embed(text), "<f4")) < 0.9999

    bench_peers.give_graph(published, tmp_path)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    (states,) = session.run(None, {"input_ids": [tokenizer.encode(text).ids]})
    assert isinstance(states, numpy.ndarray)
    mean = states[0].mean(axis=0)
    assert float(mean @ own / numpy.linalg.norm(mean)) > 0.99999

"""The official Python clients, which check every message and answer against the schemas."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from wire import ROOT, TIMEOUT, http_server, server_command, small_env

NEWEST_HANDSHAKE = "2025-11-25"
STATELESS = "2026-07-28"


def client_python(name: str) -> str:
    """The Python of the environment with one of the clients."""
    tag = "cp{}{}".format(*sys.version_info)
    built = ROOT / "build" / tag / name / "bin" / "python"
    python = os.environ.get(f"SEDIMENT_{name.upper()}") or str(built)
    if not Path(python).exists():
        pytest.fail(f"no {name} client at {python}: run `make test`, which makes it")
    return python


@pytest.fixture
def env(tmp_path: Path, unpacked: Path) -> dict[str, str]:
    return small_env(tmp_path, SEDIMENT_CACHE=str(unpacked))


def run_client(
    env: dict[str, str], name: str, *mode: str, server: Sequence[str] = ()
) -> dict[str, Any]:
    """What a client reports of a server, else of a fresh one; its stderr must stay empty."""
    script = str(ROOT / "tests" / f"client_{name}.py")
    done = subprocess.run(
        [client_python(name), script, *mode, *(server or server_command())],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        cwd=env["HOME"],
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def check(report: dict[str, Any], version: str) -> None:
    assert report["version"] == version
    assert report["tools"] == ["store", "recall", "list", "forget"]
    assert [answer["count"] for answer in report["empty"]] == [0, 0]
    id = report["store"]["id"]
    assert report["store"]["scope"] == "global"
    assert [row["id"] for row in report["recall"]["results"]] == [id]
    assert [item["id"] for item in report["list"]["items"]] == [id]
    assert report["forget"]["ids"] == [id]
    assert "not found" in report["refused"]


def test_mcp_1_by_handshake(env: dict[str, str]) -> None:
    report = run_client(env | {"CARE": "1"}, "mcp1")
    check(report, NEWEST_HANDSHAKE)
    assert report["name"] == "sediment"
    assert "recall" in report["instructions"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_mcp_2_by_discovery_and_by_handshake(env: dict[str, str], mode: str) -> None:
    report = run_client(env | {"CARE": "1" if mode == "auto" else ""}, "mcp2", mode)
    check(report, STATELESS if mode == "auto" else NEWEST_HANDSHAKE)
    assert report["name"] == "sediment"
    assert "recall" in report["instructions"]


def test_mcp_2_without_discovery(env: dict[str, str]) -> None:
    check(run_client(env, "mcp2", STATELESS), STATELESS)


@pytest.mark.parametrize(
    ("client", "version"),
    [
        (("mcp1",), NEWEST_HANDSHAKE),
        (("mcp2", "auto"), STATELESS),
        (("mcp2", "legacy"), NEWEST_HANDSHAKE),
        (("mcp2", STATELESS), STATELESS),
    ],
)
def test_clients_over_http(env: dict[str, str], client: tuple[str, ...], version: str) -> None:
    program = server_command()[:-1]
    care = {"CARE": "1" if client == ("mcp2", STATELESS) else ""}
    with http_server(Path(env["HOME"]), env) as (host, port):
        server = [f"http://{host}:{port}/mcp", *program]
        check(run_client(env | care, *client, server=server), version)

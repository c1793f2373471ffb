"""/v1/openapi.json and the server agree: Schemathesis sends what the description allows, which must
be taken, and what it does not allow, which must be refused. `make test-page` runs it."""

import os
import subprocess
from pathlib import Path

import pytest
from wire import http_server, small_env

SCHEMATHESIS = os.environ.get("SEDIMENT_SCHEMATHESIS")
REQUESTS = 20  # of each kind for each operation; it takes about a minute


@pytest.mark.skipif(not SCHEMATHESIS, reason="SEDIMENT_SCHEMATHESIS is not set (make test-page)")
def test_schemathesis_finds_nothing(tmp_path: Path, unpacked: Path) -> None:
    env = small_env(tmp_path, SEDIMENT_CACHE=str(unpacked), SEDIMENT_RATE_LIMIT="0")
    with http_server(tmp_path, env, "--project", "demo") as (host, port):
        url = f"http://{host}:{port}/v1/openapi.json"
        options = ["--max-examples", str(REQUESTS), "--seed", "43", "--warnings", "off"]
        command = [str(SCHEMATHESIS), "run", url, "--no-color", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " generated, " in done.stdout

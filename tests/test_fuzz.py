"""A server owes every request one answer, whatever stands between them; `make soak` asks longer."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fuzz_wire
import pytest
from wire import TIMEOUT, Wire, small_env


def test_nonsense_costs_no_answer_no_memory_and_no_crash(tmp_path: Path, unpacked: Path) -> None:
    figures = fuzz_wire.run(tmp_path, 1_200, seed=1, hang=TIMEOUT, SEDIMENT_CACHE=str(unpacked))
    print(figures)
    assert figures["messages"] == 1_200
    assert min(figures[f"answers: {kind}"] for kind in ("results", "refusals", "errors")) > 75


def test_messages_follow_from_the_seed() -> None:
    def said(seed: int) -> list[bytes]:
        speaker = fuzz_wire.Speaker(seed)
        return [speaker.say(number) for number in range(1, 200)]

    assert said(7) == said(7)
    assert said(7) != said(8)


@pytest.fixture
def wire(tmp_path: Path, unpacked: Path) -> Iterator[Wire]:
    wire = Wire(tmp_path, small_env(tmp_path, SEDIMENT_CACHE=str(unpacked)))
    yield wire
    wire.kill()


def test_forgetting_what_is_no_id_is_refused_in_words(wire: Wire) -> None:
    for id in ([], ["x"], {"a": 1}):
        assert "an id is" in wire.refusal("forget", id=id)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_memory_is_told() -> None:
    code = "import sys; kept = b'x' * int(sys.argv[1]); print(flush=True); input()"

    def told(size: int) -> int:
        command = [sys.executable, "-c", code, str(size)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            found = fuzz_wire.memory_of(process.pid)
            process.communicate(b"\n")
        return found

    assert 45_000_000 < told(50_000_000) - told(0) < 55_000_000

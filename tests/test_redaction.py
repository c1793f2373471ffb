"""What looks like a credential reaches neither the file nor the model."""

import json
import random
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Run
from program import Program
from storage import open_memory

from sediment import UNCLOSED, InvalidInput, Memory

ALNUM = string.ascii_letters + string.digits


def token(seed: int = 1) -> str:
    """A token by its form; written out, it would worry every scanner of this repository."""
    return "ghp_" + "".join(random.Random(seed).choices(ALNUM, k=36))


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    with open_memory(path) as memory:
        yield memory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "memory.db"


@pytest.fixture
def here(run_pyz: Run, tmp_path: Path) -> Program:
    return Program(run_pyz, tmp_path / "project")


def bytes_of(folder: Path) -> bytes:
    """Everything that lies in a folder, the log included."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_a_stored_secret_is_nowhere(memory: Memory, path: Path) -> None:
    answer = memory.store(f"The deploy token is {token()}, it is rotated on Mondays.")
    assert answer["redacted"] == ["github token"]
    assert "Left out: github token." in answer["message"]
    assert token().encode() not in bytes_of(path.parent)
    content = memory.recall("which deploy token?")["results"][0]["content"]
    assert content == "The deploy token is [redacted: github token], it is rotated on Mondays."
    memory.close()
    assert token().encode() not in bytes_of(path.parent)


def test_what_is_not_embedded_does_not_count(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    embed = memory.encoder.embed
    monkeypatch.setattr(memory.encoder, "embed", lambda text: (seen.append(text), embed(text))[1])
    memory.store(f"Use {token()} to deploy.")
    assert seen
    assert not any(token() in text for text in seen)


def test_imported_secrets_are_counted_and_left_out(memory: Memory, path: Path) -> None:
    rows = [{"content": f"Token {number}: {token(number)}"} for number in range(3)]
    answer = memory.import_rows([*rows, {"content": "Nothing secret."}])
    assert answer["redacted"] == {"github token": 3}
    assert answer["stored"] == 4
    assert not any(token(number).encode() in bytes_of(path.parent) for number in range(3))


def test_what_was_kept_on_purpose_comes_back_from_an_export(memory: Memory, path: Path) -> None:
    memory.store(f"Token: {token()}", allow_secrets=True)
    rows = list(memory.export_rows())
    with open_memory(path.with_name("copy.db")) as copy:
        copy.import_rows(rows, allow_secrets=True)
        assert token() in copy.list_items()["items"][0]["content"]


def test_it_can_be_turned_off(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEDIMENT_REDACT", "0")
    answer = memory.store(f"Token: {token()} <private>and this</private>")
    assert answer["redacted"] == ["private"]
    assert memory.get(answer["id"])["content"] == f"Token: {token()} [private]"


def test_a_private_tag_that_is_not_closed_is_told(memory: Memory, tmp_path: Path) -> None:
    answer = memory.store("We deploy. <private>zanzibar, and all the rest.")
    assert memory.get(answer["id"])["content"] == "We deploy. [private]"
    assert answer["redacted"] == [UNCLOSED]
    assert UNCLOSED in answer["message"]
    notes = tmp_path / "notes.md"
    notes.write_text("# Tea\n\nAt four.\n\n<private>\n\n# Port\n\nIt is 18789.\n")
    warning = {"path": str(notes), "reason": f"has left out {UNCLOSED}"}
    assert memory.index(notes)["warnings"] == [warning]
    notes.write_text(notes.read_text().replace("<private>", "<private>x</private>"))
    assert memory.index(notes)["warnings"] == []


def test_private_text_is_never_stored(memory: Memory, path: Path) -> None:
    id = memory.store("We deploy. <private>zanzibar\nzanzibar</private> On Fridays.")["id"]
    memory.store("Kept. <PRIVATE>zanzibar is never closed", allow_secrets=True)
    assert memory.get(id)["content"] == "We deploy. [private] On Fridays."
    with pytest.raises(InvalidInput, match="all of this is private"):
        memory.store("<private>zanzibar</private>")
    refused = memory.import_rows([{"content": "<private>zanzibar</private>"}])["refused"]
    assert "private" in refused[0]["reason"]
    assert b"zanzibar" not in bytes_of(path.parent)


def test_replacing_leaves_secrets_out_too(memory: Memory) -> None:
    old = memory.store("The token is in the vault.")["id"]
    answer = memory.store(f"The token is {token()}.", replace=old)
    assert token() not in memory.get(answer["id"])["content"]
    assert answer["redacted"] == ["github token"]


def test_the_shell_says_so(here: Program, tmp_path: Path) -> None:
    said = here.ok("store", "-", input=f"token={token()}")
    assert "Left out: github token" in said
    assert token() not in here.ok("export")
    assert "github token (1)" in here.ok("import", "-", input=json.dumps({"content": token(2)}))
    here.ok("store", f"Keep {token(3)}", "--allow-secrets")
    assert token(3) in here.ok("export")
    here.ok("store", f"The printer answers to {token(4)}", env={"SEDIMENT_REDACT": "0"})
    assert token(4) in here.ok("export")
    here.run("import", "-", "--allow-secrets", input=json.dumps({"content": token(5)}))
    assert token(5) in here.ok("export")
    assert token().encode() not in bytes_of(tmp_path)

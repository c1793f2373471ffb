"""Exports and backups that only their owner can read."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyrage as _pyrage
import pytest
from click.testing import CliRunner, Result
from program import Run, files
from storage import open_memory

import sediment
from sediment import InvalidInput, Memory
from sediment_ext import encryption

pyrage: Any = _pyrage  # which has no types

TEXT = "The safe behind the painting opens at noon."
PHRASE = "four plain small words"


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """An identity's file, a file of recipients with hers, and the file of another identity."""
    mine, other = (pyrage.x25519.Identity.generate() for _ in range(2))
    comment = "# made today\n\n"
    texts = {
        "mine": f"{comment}{mine}\n",
        "public": f"{comment}{other.to_public()}\n{mine.to_public()}\n",
        "stranger": f"{pyrage.x25519.Identity.generate()}\n",
        "phrase": f"{PHRASE}\nand a line that does not count\n",
        "empty": "# nothing\n",
    }
    folder = tmp_path / "keys"
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: str(folder / name) for name in texts} | {"recipient": str(mine.to_public())}


@pytest.fixture
def stored(memory: Memory) -> Memory:
    memory.store(TEXT)
    return memory


def shell(database: Path, *words: object) -> Result:
    """What a command does, run in this process."""
    return CliRunner().invoke(sediment.cli, ["--db", str(database), *map(str, words)])


def done(database: Path, *words: object) -> str:
    result = shell(database, *words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(database: Path, *words: object) -> str:
    result = shell(database, *words)
    assert result.exit_code == 1, result.output
    assert len(result.output.splitlines()) == 1, result.output
    return result.output


def contents(database: Path) -> list[str]:
    with open_memory(database) as memory:
        return [row["content"] for row in memory.export_rows()]


def test_an_export_for_recipients_is_imported_by_each_of_them(
    stored: Memory, path: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    copy, new = tmp_path / "memories.age", tmp_path / "new.db"
    done(path, "export", copy, "--encrypt", "--recipient", keys["public"])
    assert copy.read_bytes().startswith(b"age-encryption.org/v1\n")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert "Stored 1 memory" in done(new, "import", copy, "--identity", keys["mine"])
    assert contents(new) == [TEXT]
    several = ("--identity", keys["stranger"], "--identity", keys["mine"])
    done(path, "export", copy, "--force", "--encrypt", "--recipient", keys["recipient"])
    assert "1 stored before" in done(new, "import", copy, *several)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here")
@pytest.mark.parametrize("kind", [["ed25519"], ["rsa", "-b", "2048"], ["rsa", "-m", "PEM"]])
def test_keys_of_ssh_seal_and_open(
    stored: Memory, path: Path, tmp_path: Path, keys: dict[str, str], kind: list[str]
) -> None:
    for name, phrase in (("id", ""), ("locked", "secret")):
        words = ["ssh-keygen", "-q", "-N", phrase, "-f", tmp_path / name, "-t", *kind]
        subprocess.run(words, check=True)
    mine, public = tmp_path / "id", (tmp_path / "id.pub").read_text().strip()
    rows, copy, new = (tmp_path / name for name in ("rows.age", "copy.age", "new.db"))
    done(path, "export", rows, "--encrypt", "--recipient", public)
    done(path, "backup", copy, "--encrypt", "--recipient", f"{mine}.pub")
    for other in (keys["mine"], tmp_path / "locked", f"{mine}.pub"):
        assert "identity" in refused(new, "import", rows, "--identity", other)
    assert "Stored 1 memory" in done(new, "import", rows, "--identity", mine)
    done(tmp_path / "other.db", "restore", copy, "--identity", mine)
    assert contents(new) == contents(tmp_path / "other.db") == [TEXT]


def test_a_copy_given_to_the_wrong_command_names_the_right_one(
    stored: Memory, path: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    plain, sealed, rows = (tmp_path / name for name in ("copy.db", "copy.age", "rows.jsonl"))
    done(path, "backup", plain)
    done(path, "backup", sealed, "--encrypt", "--recipient", keys["public"])
    done(path, "export", rows)
    for words in ([plain], [sealed, "--identity", keys["mine"]]):
        assert "`restore` takes a backup" in refused(path, "import", *words)
    assert "`import` takes an export" in refused(path, "restore", rows)


def test_a_backup_is_restored_and_nothing_readable_stays(
    stored: Memory, path: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    copy, new = tmp_path / "copies" / "memory.age", tmp_path / "new" / "memory.db"
    copy.parent.mkdir()
    new.parent.mkdir()
    before = files(path.parent)
    done(path, "backup", copy, "--encrypt", "--recipient", keys["recipient"])
    assert TEXT.encode() not in copy.read_bytes()
    assert files(path.parent) - before == {"copies/memory.age"}
    assert "there already" in refused(
        path, "backup", copy, "--encrypt", "--recipient", keys["public"]
    )
    done(new, "restore", copy, "--identity", keys["mine"])
    assert contents(new) == [TEXT]
    assert files(new.parent) == {"memory.db"}
    assert str(copy) in " ".join(stored.forget(stored.list_items()["items"][0]["id"])["copies"])


def test_python_programs_give_the_key_itself(stored: Memory, tmp_path: Path) -> None:
    copy, identity = tmp_path / "memory.age", pyrage.x25519.Identity.generate()
    stored.backup(copy, key=[str(identity.to_public())])
    for key, told in ((None, "is encrypted"), ("", "a key is"), ([], "a key is")):
        with pytest.raises(InvalidInput, match=told):
            stored.restore(copy, key=key)
    assert stored.restore(copy, key=[str(identity)])["items"] == 1
    with pytest.raises(InvalidInput, match="a key is"):
        stored.backup(tmp_path / "other", key="")


def test_a_passphrase_is_asked_for_twice_or_read(
    stored: Memory, path: Path, tmp_path: Path, keys: dict[str, str], pyz: Path, unpacked: Path
) -> None:
    copy, new = tmp_path / "memories.age", tmp_path / "new.db"
    words = ["--db", str(path), "export", str(copy), "--encrypt"]
    typed = [PHRASE + "?", PHRASE, PHRASE, PHRASE]  # the first two differ
    output = on_terminal([sys.executable, str(pyz), *words], typed, str(unpacked), tmp_path)
    assert output.count("Passphrase") == 2
    assert output.count("Repeat") == 2
    assert PHRASE not in output
    source, sink = os.pipe()
    os.write(sink, f"{PHRASE}\n".encode())
    os.close(sink)
    assert "Stored 1" in done(new, "import", copy, "--passphrase-fd", source)
    Path(keys["empty"]).write_text("another\n")
    assert "passphrase is wrong" in refused(new, "import", copy, "--passphrase-file", keys["empty"])
    assert "leave --identity out" in refused(new, "import", copy, "--identity", keys["mine"])
    assert "no terminal" in refused(new, "import", copy)


def on_terminal(command: list[str], typed: list[str], cache: str, home: Path) -> str:
    """What a program writes to a terminal on which a line is typed at each of its questions."""
    master, slave = pty.openpty()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "SEDIMENT_CACHE": cache}
    streams: Any = {"stdin": slave, "stdout": slave, "stderr": slave}
    process = subprocess.Popen(command, **streams, env=env, cwd=home, start_new_session=True)
    os.close(slave)
    output = ""
    for line in typed:
        asked = len(output)
        while not output[asked:].endswith(": "):
            output += os.read(master, 1024).decode()
        os.write(master, line.encode() + b"\n")
    assert process.wait(60) == 0, output
    os.close(master)
    return output


def damaged(data: bytes, how: str) -> bytes:
    def flipped(place: int) -> bytes:
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return {
        "cut": data[:-1],
        "short": data[:40],
        "longer": data + b"x",
        "header": flipped(60),
        "mac": flipped(data.index(b"--- ") + 5),
        "payload": flipped(len(data) - 30),
        "version": data.replace(b"/v1", b"/v9", 1),
        "armored": b"-----BEGIN AGE ENCRYPTED FILE-----\n" + data,
    }[how]


@pytest.mark.parametrize(
    "how", ["cut", "short", "longer", "header", "mac", "payload", "version", "armored"]
)
def test_of_a_damaged_file_nothing_is_taken(
    stored: Memory, path: Path, tmp_path: Path, keys: dict[str, str], how: str
) -> None:
    rows, copy = tmp_path / "memories.age", tmp_path / "memory.age"
    key = ("--encrypt", "--recipient", keys["recipient"])
    done(path, "export", rows, *key)
    done(path, "backup", copy, *key)
    stored.store("What came later.")
    before, were = contents(path), files(tmp_path)
    for command, file in (("import", rows), ("restore", copy)):
        file.write_bytes(damaged(file.read_bytes(), how))
        told = refused(path, command, file, "--identity", keys["mine"])
        assert "damaged" in told
        assert "Traceback" not in told
    assert (contents(path), files(tmp_path)) == (before, were)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("import {rows} --identity {stranger}", "no identity given opens"),
        ("import {rows} --identity {phrase}", "an identity file has AGE-SECRET-KEY"),
        ("import {rows} --identity {empty}", "has no keys"),
        ("import {rows} --identity {rows}x", "cannot be read (No such file"),
        ("import {rows} --passphrase-file {phrase}", "give --identity FILE"),
        ("import {rows}", "give --identity FILE"),
        ("export {rows}x --encrypt --passphrase-fd 999", "descriptor 999 cannot be read (Bad file"),
        ("restore {rows} --identity {mine}", "is not a Sediment database"),
        ("export {rows}x --encrypt --recipient {mine}", "a recipient is an age recipient"),
        ("export {rows}x --encrypt --recipient age1", "a recipient is an age recipient"),
        ("export {rows}x --encrypt --passphrase-file {empty}x", "cannot be read (No such file"),
        ("export {rows} --encrypt --recipient {public}", "is there already"),
        ("export /dev/full --encrypt --recipient {public}", "No space left on device"),
        ("backup {rows}x --encrypt --recipient {stranger}", "a recipient is an age recipient"),
    ],
)
def test_a_key_that_does_not_fit_is_told_and_nothing_is_written(
    stored: Memory, path: Path, tmp_path: Path, keys: dict[str, str], words: str, told: str
) -> None:
    rows = tmp_path / "memories.age"
    done(path, "export", rows, "--encrypt", "--recipient", keys["recipient"])
    before = files(tmp_path)
    said = refused(path, *words.format(rows=rows, **keys).split())
    assert told in said
    assert "AGE-SECRET-KEY-1" + Path(keys["mine"]).read_text()[-20:-1] not in said
    assert files(tmp_path) == before


def test_what_opens_an_armored_file_is_known(keys: dict[str, str]) -> None:
    recipients = [pyrage.x25519.Recipient.from_str(keys["recipient"])]
    head = pyrage.encrypt(b"x", recipients, armored=True)[:128]
    assert encryption.is_encrypted(head)
    with pytest.raises(InvalidInput, match="give --identity"):
        encryption.opening_key(head)


def test_an_encrypted_export_goes_through_pipes(
    run_pyz: Run, stored: Memory, path: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    words = ("--db", str(path), "export", "--encrypt", "--recipient", keys["recipient"])
    sent = run_pyz(*words, text=False, input=b"")
    new = tmp_path / "new.db"
    words = ("--db", str(new), "import", "-", "--identity", keys["mine"])
    assert run_pyz(*words, text=False, input=sent.stdout).returncode == 0
    assert contents(new) == [TEXT]


def test_what_is_too_large_for_a_passphrase_is_told(
    stored: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "BY_PASSPHRASE_MAX", 1000)
    with pytest.raises(InvalidInput, match="use --recipient"):
        stored.backup(tmp_path / "copy", key=PHRASE)
    assert "copy" not in files(tmp_path)


@pytest.mark.skipif(not shutil.which("age"), reason="there is no age here")
def test_age_itself_reads_what_is_written(
    stored: Memory, path: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    copy = tmp_path / "memory.age"
    done(path, "backup", copy, "--encrypt", "--recipient", keys["recipient"])
    plain = subprocess.run(
        ["age", "--decrypt", "--identity", keys["mine"], str(copy)], capture_output=True, check=True
    )
    assert plain.stdout.startswith(b"SQLite format 3\0")

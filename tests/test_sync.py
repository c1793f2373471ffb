"""One memory on many machines, through a folder: what arrives, what stays, what is gone."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import json
import os
import random
import re
import shutil
import socket
import sqlite3
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sync_machines
import sync_storm
from click.testing import CliRunner
from storage import consistent, open_memory
from sync_machines import DAMAGE, Machine, live_apart, settle, texts, through_a_folder

import sediment
import sediment_ext.hooks
import sediment_ext.sync.commands
import sediment_ext.sync.folder
import sediment_ext.sync.git
import sediment_ext.sync.merge
import sediment_ext.sync.places
import sediment_ext.sync.run
import sediment_ext.upkeep
from sediment import DatabaseError, InvalidInput, Memory, NotFound, SedimentError
from sediment_ext.sync.places import Unreachable

DIARIES = Path(__file__).parent / "diaries"
TOKEN = "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789"


class Place:
    """A folder, and machines that sync through it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shared = folder, folder / "shared"
        self.shared.mkdir(parents=True)
        self.all: list[Memory] = []

    def machine(self, name: str, share: str = "team") -> Memory:
        (self.folder / name).mkdir(exist_ok=True)
        memory = open_memory(self.folder / name / "memory.db")
        memory.sync_to(str(self.shared))
        if share:
            memory.share(share)
        self.all.append(memory)
        return memory

    def text(self) -> str:
        files = sorted(self.shared.rglob("*"))
        return "\n".join(path.read_text("utf-8") for path in files if path.is_file())

    def files_of(self, memory: Memory) -> Path:
        return self.shared / memory.sync_status()["machine"]


def line_of(row: Any) -> str:
    """A line of a file in the folder, with its checksum; JSON with half a character has none."""
    with contextlib.suppress(UnicodeEncodeError, TypeError):
        row = row | {"sum": sediment_ext.sync.folder._checksum(row)}
    return json.dumps(row) + "\n"


@pytest.fixture
def place(tmp_path: Path) -> Any:
    place = Place(tmp_path)
    yield place
    for memory in place.all:
        consistent(memory)
        memory.close()


def test_what_is_stored_on_one_machine_is_recalled_on_the_other(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("The staging database is on port 5433.", created_at="2026-03-05 14:00")["id"]
    settle(a, b)
    assert b.pending() == 1  # found by words at once
    assert b.recall("staging database port")["results"][0]["id"] == id
    b.embed_pending()
    assert b.get(id)["created"] == a.get(id)["created"]
    assert b.sync()["spaces"][0]["received"] == 0


def test_recall_and_history_name_who_wrote_on_another_machine(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    old = a.store("The staging database is on port 5433.")["id"]
    settle(a, b, a)
    who = "{person}, {host}".format(**a.sync_status()["machines"][0])
    assert b.recall("staging port")["results"][0]["author"] == who
    assert "author" not in a.recall("staging port")["results"][0]
    asked = b.get(old), b.recall(old)["results"][0], b.list_items()["items"][0]
    assert [row["author"] for row in asked] == [who] * 3
    assert who in "\n".join(sediment.render_listed(b.list_items()))
    b.store("The staging database is on port 6543.", replace=old)
    settle(b, a)
    first, second = a.history(old)["versions"]
    assert (first["ended_from"], second["author"]) == (who, who)
    assert "author" not in first
    shown = "\n".join(sediment.render_history(a.history(old)))
    assert f"from {who}" in shown
    line = next(iter(sediment.render_recalled(b.recall("staging port"))))
    assert (who in line) == ("author" in b.recall("staging port")["results"][0])


def test_an_import_of_what_was_kept_brings_back_nothing_that_was_replaced_since(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = place.machine("a")
    kept = a.store("The backup window is at 3 in the morning.")["id"]
    old = a.store("Note: The backup window is at 3 in the morning.")["id"]
    a.keep_both(kept, old)
    rows = list(sediment.export_rows(a.database))
    a.store("The backup window is at 5 in the afternoon.", replace=old)
    a.sync()
    (place.folder / "b").mkdir()
    with open_memory(place.folder / "b" / "memory.db") as b, monkeypatch.context() as later:
        now = time.time()
        later.setattr(time, "time", lambda: now + 60)
        assert b.import_rows(rows)["stored"] == 2
        assert b.history(old)["events"] == []
    b = place.machine("b")
    settle(b, a)
    assert old not in [row["id"] for memory in (a, b) for row in memory.list_items()["items"]]


@pytest.mark.parametrize("facts", ["", "nonsense", "{}"])
def test_a_machine_that_does_not_say_who_it_is_is_named_by_its_id(place: Place, facts: str) -> None:
    a, b = place.machine("a"), place.machine("b")
    name = a.sync_status()["machine"]
    old = a.store("The staging database is on port 5433.")["id"]
    a.store("The staging database is on port 6543.", replace=old)
    a.sync()
    (place.shared / name / "machine.json").write_text(facts)
    b.sync()
    assert b.recall("staging port")["results"][0]["author"] == f"machine {name}"
    assert f"machine {name}" in "\n".join(sediment.render_listed(b.list_items()))
    (hidden,) = (one for one in b.history(old)["versions"] if not one["live"])
    assert hidden["ended_from"] == f"machine {name}"
    a.sync(again=True)
    a.store("Tea is at four.")
    settle(a, b)
    who = "{person}, {host}".format(**a.sync_status()["machines"][0])
    assert b.recall("staging port")["results"][0]["author"] == who


def test_git_carries_memories_and_drops_what_is_forgotten(tmp_path: Path) -> None:
    remote = git_place(tmp_path)
    memories = []
    for name in ("a", "b"):
        memory = open_memory(tmp_path / name / "memory.db")
        memory.sync_to(f"git:{remote}")
        memory.share("team")
        memories.append(memory)
    a, b = memories
    id = a.store("An unforgettable rhinoceros lives there.")["id"]
    b.store("The gateway is called newton.")
    settle(a, b)
    assert texts(a) == texts(b)
    assert len(texts(a)) == 2
    refs = ["git", "--git-dir", str(remote), "for-each-ref", "--format=%(refname) %(parent)"]
    listed = subprocess.run(refs, capture_output=True, text=True, check=True).stdout
    assert [line.strip() for line in listed.splitlines()] == [
        f"refs/sediment/{name}" for name in sorted(m.sync_status()["machine"] for m in memories)
    ]
    b.forget(id)
    settle(b, a, b)
    for memory in memories:
        assert texts(memory) == ["The gateway is called newton."]
        with contextlib.closing(memory):
            assert len(memory.sync()["spaces"]) == 1
    for folder in (tmp_path / "a", tmp_path / "b"):
        objects = f"{folder}/memory.db.git"
        found = ["git", "--git-dir", objects, "cat-file", "--batch-all-objects", "--batch"]
        assert b"rhinoceros" not in subprocess.run(found, capture_output=True, check=True).stdout
        assert b"rhinoceros" not in (folder / "memory.db").read_bytes()


def test_a_git_remote_that_is_not_there_is_named(tmp_path: Path) -> None:
    with open_memory(tmp_path / "memory.db") as memory:
        memory.sync_to(f"git:{tmp_path}/nowhere.git")
        memory.share("team")
        memory.store("A fact.")
        with pytest.raises(Unreachable, match=r"nowhere.git cannot be reached.*1 change waits"):
            memory.sync()


def git_place(folder: Path) -> Path:
    remote = folder / "remote.git"
    subprocess.run(["git", "init", "--bare", "-q", str(remote)], check=True)
    return remote


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_a_git_remote_with_an_unknown_certificate_says_how_to_name_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout k -out c"
    subprocess.run(["openssl", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        open_memory(tmp_path / "memory.db") as memory,
    ):
        port = server.getsockname()[1]

        def answer() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, contextlib.suppress(OSError):
                    context.wrap_socket(client, server_side=True).close()

        threading.Thread(target=answer, daemon=True).start()
        (remark,) = memory.sync_to(f"git:https://localhost:{port}/memory.git")["remarks"]
        assert "shows no certificate that is trusted here" in remark
        assert "`git config --global http.sslCAInfo FILE` names its CA" in remark


def git_refs(remote: Path) -> list[str]:
    words = ["git", "--git-dir", str(remote), "for-each-ref", "--format=%(refname)"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_a_push_that_a_killed_run_had_begun_keeps_no_other_back(tmp_path: Path) -> None:
    remote = git_place(tmp_path)
    hook = remote / "hooks" / "pre-receive"  # once, another push ends before this one does
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        "#!/bin/sh\nread old new ref\n[ -e ran ] && exit 0\ntouch ran\n"
        "unset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES\n"
        "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a\n"
        "git update-ref $ref $(git commit-tree $(git mktree < /dev/null) < /dev/null)\n"
    )
    hook.chmod(0o755)
    with open_memory(tmp_path / "memory.db") as memory:
        memory.sync_to(f"git:{remote}")
        memory.share("team")
        memory.store("A fact.")
        assert memory.sync()["spaces"][0]["sent"] == 1
    assert (remote / "ran").exists()


@pytest.mark.parametrize(
    "name", ["refs/draft/{own}", "refs/sediment/{own}", "refs/sediment/{other}", "packed-refs"]
)
def test_a_lock_that_a_killed_run_has_left_to_git_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sediment, "LEASE", 600)  # git may be slow
    place = f"git:{git_place(tmp_path)}"
    with open_memory(tmp_path / "a.db") as a, open_memory(tmp_path / "b.db") as b:
        for memory in (a, b):
            memory.sync_to(place)
            memory.share("team")
        a.store("The port is 5433.")
        settle(a, b, a)
        own, other = (memory.sync_status()["machine"] for memory in (a, b))
        lock = tmp_path / f"a.db.git/{name.format(own=own, other=other)}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        b.store("The queue is on port 5672.")
        b.sync()
        a.store("The gateway is called newton.")
        with contextlib.suppress(sediment.SedimentError):  # git may be at work there
            a.sync()
        assert lock.exists()
        killed = time.time() - sediment.LEASE
        os.utime(lock, (killed, killed))
        settle(a, b)
        assert not lock.exists()
        assert texts(a) == texts(b)
        assert len(texts(a)) == 3


def test_two_runs_of_one_machine_lose_nothing_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"git:{git_place(tmp_path)}"
    with open_memory(tmp_path / "memory.db") as quick, open_memory(tmp_path / "memory.db") as slow:
        quick.sync_to(place)
        quick.share("team")
        quick.store("The port is 5433.")
        quick.sync()
        begin, between = (
            sediment_ext.sync.git.Git.begin,
            [lambda: quick.store("A fact."), quick.sync],
        )

        def begin_and_fall_behind(self: Any) -> dict[str, Any]:
            told = begin(self)
            while between:
                between.pop(0)()
            return told

        monkeypatch.setattr(sediment.Lease, "take", lambda _: True)  # as of one that ran out
        monkeypatch.setattr(sediment_ext.sync.git.Git, "begin", begin_and_fall_behind)
        slow.sync()
    with open_memory(tmp_path / "other.db") as other:
        other.sync_to(place)
        other.share("team")
        other.sync()
        assert texts(other) == ["A fact.", "The port is 5433."]


def test_a_slow_place_lets_no_second_run_in(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = place.machine("a"), open_memory(place.folder / "a" / "memory.db")
    a.store("The port is 5433.")
    monkeypatch.setattr(sediment, "LEASE", 3)
    write, tries = sediment_ext.sync.folder.Folder._write, []

    def write_slowly(self: Any, texts: dict[str, str]) -> None:
        if not tries:
            tries.append("first")
            time.sleep(4.5)
            with sediment.Lease(b.database, "syncing") as other:
                tries.append("second" if other.take() else "none")
        write(self, texts)

    monkeypatch.setattr(sediment_ext.sync.folder.Folder, "_write", write_slowly)
    assert a.sync()["spaces"][0]["sent"] == 1
    assert tries == ["first", "none"]


@pytest.mark.parametrize("deed", ["sync_to", "leave_sync"])
def test_a_place_that_is_slow_to_be_left_lets_no_run_in(
    place: Place, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    a, b = place.machine("a"), open_memory(place.folder / "a" / "memory.db")
    monkeypatch.setattr(sediment, "LEASE", 3)
    leave, tries = sediment_ext.sync.folder.Folder.leave, []

    def leave_slowly(self: Any) -> None:
        time.sleep(4.5)
        with sediment.Lease(b.database, "syncing") as other:
            tries.append(other.take())
        leave(self)

    monkeypatch.setattr(sediment_ext.sync.folder.Folder, "leave", leave_slowly)
    getattr(a, deed)(*[str(place.folder / "other")] * (deed == "sync_to"))
    assert tries == [False]
    b.close()


@pytest.mark.parametrize("moment", ["begin", "pull"])
def test_what_is_shared_while_a_run_reads_is_read_by_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    a, b = place.machine("a"), place.machine("b")
    crews = [open_memory(place.folder / name / "memory.db", "crew") for name in "ab"]
    crews[0].share("crew")
    for number in range(5):
        a.store(f"Fact {number} of the team.")
        crews[0].store(f"Fact {number} of the crew.")
    a.sync()
    work = getattr(sediment_ext.sync.folder.Folder, moment)

    def share_meanwhile(self: Any, *given: Any) -> Any:
        done = work(self, *given)
        done = iter([*done]) if moment == "pull" else done
        crews[1].share("crew")
        return done

    monkeypatch.setattr(sediment_ext.sync.folder.Folder, moment, share_meanwhile)
    b.sync()
    monkeypatch.undo()
    b.sync()
    assert texts(crews[1]) == texts(crews[0])
    assert texts(b) == texts(a)
    assert b.sync()["spaces"][0]["received"] == 0
    for crew in crews:
        crew.close()


def test_a_run_of_sync_waits_for_the_one_before_it(place: Place) -> None:
    a = place.machine("a")
    a.store("The port is 5433.")
    with sediment.Lease(a.database, "syncing") as before:
        before.take()
        threading.Timer(0.5, before.release).start()
        assert a.sync()["spaces"][0]["sent"] == 1


@pytest.mark.parametrize("place", ["shared\udcff", "git:shared\udcff", "postgresql://h\udcff/x"])
def test_a_place_that_cannot_be_written_down_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_memory(tmp_path / "memory.db") as memory:
        with pytest.raises(InvalidInput, match="place is not valid Unicode"):
            memory.sync_to(place)
        assert not sediment.is_synced(memory.database)
    assert not (tmp_path / place).exists()


@pytest.mark.parametrize("place", ["git:--upload-pack=touch {}", "git:remote.git", "git:"])
def test_a_place_of_git_is_an_address_and_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    place = place.format(tmp_path / "ran")
    with open_memory(tmp_path / "memory.db") as memory:
        with pytest.raises(InvalidInput, match="names no repository"):
            memory.sync_to(place)
        memory.sync_to(str(tmp_path / "shared"))
        with memory.database.transaction() as connection:  # as a file of somebody else may have it
            connection.execute("UPDATE clock SET place = ?", (place,))
        with pytest.raises(InvalidInput, match="names no repository"):
            memory.sync()
        assert "names no repository" in memory.sync_status()["remarks"][0]
        memory.leave_sync()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("user", ["ana:hunter2", "ghp_" + "a1B2" * 9, "x:y"])
def test_a_password_is_in_no_address_of_git(tmp_path: Path, user: str) -> None:
    with open_memory(tmp_path / "memory.db") as memory:
        with pytest.raises(InvalidInput, match="keep the password out of the address"):
            memory.sync_to(f"git:https://{user}@127.0.0.1:9/x.git")
        assert not memory.database.path.exists()
        memory.sync_to("git:ssh://git@127.0.0.1:9/x.git")


def test_a_credential_is_no_name_of_a_space(place: Place) -> None:
    a = place.machine("a", share="")
    with pytest.raises(InvalidInput, match="space looks like a credential"):
        a.share("ghp_" + "a1B2" * 9)
    with pytest.raises(InvalidInput, match="space looks like a credential"):
        a.hub("add", "alice", "ghp_" + "a1B2" * 9, place="postgresql://alice@127.0.0.1:9/x")


def test_a_repository_beside_the_database_that_is_not_syncs_own_is_left_alone(
    tmp_path: Path,
) -> None:
    remote, folder = git_place(tmp_path), tmp_path / "memory.db.git"
    subprocess.run(["git", "init", "--bare", "-q", str(folder)], check=True)
    hook = folder / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    with open_memory(tmp_path / "memory.db") as memory:
        memory.sync_to(f"git:{remote}")
        memory.share("team")
        memory.store("A fact.")
        assert memory.sync()["spaces"][0]["sent"] == 1
        hook.unlink()
        config = (folder / "config").read_text()
        for more in ("[core]\n\tsshCommand = touch ran\n", "[include]\n\tpath = /etc/x\n"):
            (folder / "config").write_text(config + more)
            with pytest.raises(InvalidInput, match="was not made by sync"):
                memory.sync()
        (folder / "config").write_text(config)
        (folder / "commondir").write_text(str(remote))
        with pytest.raises(InvalidInput, match="was not made by sync"):
            memory.sync()
        shutil.rmtree(folder)
        folder.symlink_to(remote)
        with pytest.raises(InvalidInput, match="was not made by sync"):
            memory.sync()
    assert not (tmp_path / "ran").exists()


GIT_SETTINGS = {
    "[core]\nsharedRepository = group\nlogAllRefUpdates = always\nquotePath = false",
    "[init]\ndefaultRefFormat = reftable\ntemplateDir = {folder}\ndefaultBranch = a..b",
    "[push]\ngpgSign = true\nfollowTags = true\nrecurseSubmodules = only",
    "[gc]\nbigPackThreshold = 1\n[fetch]\nfsckObjects = true\n[transfer]\nfsckObjects = true",
    "[safe]\nbareRepository = explicit\n[extensions]\nobjectFormat = sha256",
    "[push]\npushOption = ci.skip\npushOption = merge_request.create",
    "[push]\nnegotiate = true\nuseForceIfIncludes = true\n[fetch]\npruneTags = true",
}


@pytest.mark.parametrize("setting", sorted(GIT_SETTINGS))
def test_how_a_person_has_set_git_is_nothing_to_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    remote, config = git_place(tmp_path), tmp_path / "gitconfig"
    config.write_text(f"{setting.format(folder=tmp_path)}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    with open_memory(tmp_path / "a.db") as a, open_memory(tmp_path / "b.db") as b:
        for memory in (a, b):
            memory.sync_to(f"git:{remote}")
            memory.share("team")
        id = a.store("An unforgettable rhinoceros lives there.")["id"]
        settle(a, b)
        assert len(texts(b)) == 1
        b.forget(id)
        settle(b, a, b)
        assert texts(a) == []
    for name in ("a.db.git", "b.db.git"):
        found = ["git", "--git-dir", str(tmp_path / name), "cat-file", "--batch-all-objects"]
        found.append("--batch")
        assert b"rhinoceros" not in subprocess.run(found, capture_output=True, check=True).stdout


@pytest.mark.parametrize("kinds", ["sha1 sha256", "sha256 sha1"])
def test_the_repository_here_has_the_kind_of_hash_that_the_remote_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: str
) -> None:
    there, usual = kinds.split()
    monkeypatch.setenv("GIT_DEFAULT_HASH", there)
    remote = git_place(tmp_path)
    for name, default in ("a", there), ("b", usual):
        monkeypatch.setenv("GIT_DEFAULT_HASH", default)
        with open_memory(tmp_path / f"{name}.db") as memory:
            memory.sync_to(f"git:{remote}")
            memory.share("team")
            memory.store(f"A fact of {name}.")
            memory.sync()
            assert len(texts(memory)) == 1 + (name == "b")


def test_what_somebody_else_put_into_git_is_named_and_left(tmp_path: Path) -> None:
    remote = git_place(tmp_path)

    def git(*words: str, text: str = "") -> str:
        command = ["git", "--git-dir", str(remote), *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    blob = git("hash-object", "-w", "--stdin")
    inner = git("mktree", text=f"100644 blob {blob}\tx\n")
    tree = git("mktree", text=f"040000 tree {inner}\t00.jsonl\n")
    git("update-ref", "refs/sediment/blob", blob)
    git("update-ref", "refs/sediment/tree", tree)
    with open_memory(tmp_path / "memory.db") as memory:
        memory.sync_to(f"git:{remote}")
        memory.share("team")
        memory.store("A fact.")
        answer = memory.sync()
        assert answer["spaces"][0]["sent"] == 1
        assert len(answer["remarks"]) == 1
        assert "blob was not read: git says" in answer["remarks"][0]


@contextlib.contextmanager
def sharing_by_git(tmp_path: Path, remote: Path) -> Iterator[Memory]:
    """A memory that has sent a fact."""
    with open_memory(tmp_path / "memory.db") as memory:
        memory.sync_to(f"git:{remote}")
        memory.share("team")
        memory.store("A fact.")
        memory.sync()
        yield memory


@pytest.mark.parametrize("lost", ["texts", "HEAD"])
def test_a_repository_here_that_was_damaged_is_made_anew(tmp_path: Path, lost: str) -> None:
    remote = git_place(tmp_path)
    with sharing_by_git(tmp_path, remote) as memory:
        here = Path(f"{memory.database.path}.git")
        listed = ["git", "--git-dir", str(here), "ls-tree", git_refs(remote)[0]]
        rows = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        (blob,) = re.findall(r"blob (\w+)\t..\.jsonl", rows)
        (here / "HEAD" if lost == "HEAD" else here / "objects" / blob[:2] / blob[2:]).unlink()
        memory.store("Another fact.")
        memory.sync()
        assert memory.sync()["remarks"] == []
        with open_memory(tmp_path / "other.db") as other:
            other.sync_to(f"git:{remote}")
            other.share("team")
            other.sync()
            assert texts(other) == ["A fact.", "Another fact."]


@pytest.mark.parametrize("lost", ["text", "damaged text", "tree", "commit"])
def test_what_git_lost_here_before_it_was_read_is_fetched_again(tmp_path: Path, lost: str) -> None:
    remote = git_place(tmp_path)
    with sharing_by_git(tmp_path, remote) as memory, open_memory(tmp_path / "other.db") as other:
        other.sync_to(f"git:{remote}")
        other.share("team")
        sediment_ext.sync.run.Sync(
            other.projects, other.encoder
        ).place.begin()  # and then it was killed
        here = f"{other.database.path}.git"
        name = {"tree": f"{git_refs(remote)[0]}^{{tree}}", "commit": git_refs(remote)[0]}.get(lost)
        if name is None:
            listed = ["git", "--git-dir", here, "ls-tree", "--name-only", git_refs(remote)[0]]
            names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
            name = f"{git_refs(remote)[0]}:{names.split()[0]}"
        asked = ["git", "--git-dir", here, "rev-parse", name]
        hash = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        file = Path(here) / "objects" / hash[:2] / hash[2:]
        file.unlink()
        if lost.startswith("damaged"):
            file.write_bytes(b"damaged")
        other.store("Another fact.")
        assert [other.sync()["remarks"], memory.sync()["remarks"]] == [[], []]
        assert texts(other) == texts(memory) == ["A fact.", "Another fact."]


@pytest.mark.parametrize("name", ["alice/backup", "al\u2003ice", "al\u2028ice"])
def test_a_name_in_git_that_no_machine_has_is_passed_over(tmp_path: Path, name: str) -> None:
    remote = git_place(tmp_path)
    with sharing_by_git(tmp_path, remote) as memory:
        own = f"refs/sediment/{memory.sync_status()['machine']}"
        copy = ["git", "--git-dir", str(remote), "update-ref", f"refs/sediment/{name}", own]
        subprocess.run(copy, check=True)
        memory.sync()
        answer = memory.sync()
        assert (answer["spaces"][0]["sent"], answer["remarks"]) == (0, [])
        assert len(memory.sync_status()["machines"]) == 1


def test_nothing_is_noted_before_sync_is_set_up(place: Place) -> None:
    memory = open_memory(place.folder / "plain.db")
    memory.store("Nobody else knows this.")
    schema = memory.database.rows("SELECT name, sql FROM sqlite_schema ORDER BY name")
    memory.sync_to(str(place.shared))
    assert len(memory.database.rows("SELECT name FROM sqlite_schema")) > len(schema)
    memory.leave_sync()
    for again in (False, True):
        with pytest.raises(NotFound, match="sync --to PLACE"):
            memory.sync(again=again)


@pytest.mark.parametrize("order", ["leave forget", "unshare forget leave", "forget leave"])
def test_what_who_leaves_forgets_stays_forgotten(place: Place, order: str) -> None:
    a = place.machine("a")
    id = a.store("The crane is called Gundula.")["id"]
    settle(a)
    deeds = {"leave": a.leave_sync, "unshare": a.unshare, "forget": lambda: a.forget(id)}
    told = {deed: deeds[deed]()["message"] for deed in order.split()}
    waits = order == "forget leave"
    assert ("1 change waits until it syncs there again" in told["leave"]) == waits
    stays = "stays where it was sent until this memory syncs there again" in told["forget"]
    assert stays == (order == "leave forget")
    a.sync_to(str(place.shared))
    a.share("team")
    settle(a)
    assert texts(a) == []
    assert "Gundula" not in place.text()


def test_who_leaves_and_erases_gets_it_again_when_he_comes_back(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("Of a.")
    settle(a, b)
    b.leave_sync(erase=True)
    b.sync_to(str(place.shared))
    b.share("team")
    settle(b)
    assert texts(b) == ["Of a."]


@pytest.mark.parametrize("kind", ["folder", "git"])
def test_what_was_restored_while_it_was_not_shared_comes_back(tmp_path: Path, kind: str) -> None:
    (there := tmp_path / "place").mkdir()
    subprocess.run(["git", "init", "--bare", "-q", str(there)], check=True)
    with open_memory(tmp_path / "memory.db") as a:
        a.sync_to(f"git:{there}" if kind == "git" else str(there))
        a.share("team")
        a.store("The crane is called Gundula.")
        a.backup(tmp_path / "old.bak")
        a.store("The port is 5433.")
        a.sync()
        a.unshare()
        a.restore(tmp_path / "old.bak")
        a.sync()
        a.share("team")
        assert a.sync()["remarks"] == []
        assert texts(a) == ["The crane is called Gundula.", "The port is 5433."]


def test_who_is_killed_where_the_place_has_lost_something_sends_it_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("The port is 5433.")
    settle(a)
    for number in range(20):
        b.store(f"Crane number {number} is in hall {number + 1}.")
    settle(b)
    (file,) = place.files_of(a).glob("*.jsonl")
    file.write_text("")
    monkeypatch.setattr(sediment_ext.sync.run.Sync, "_send_new", lambda *_: 1 / 0)  # as killed
    with pytest.raises(ZeroDivisionError):
        a.sync()
    monkeypatch.undo()
    assert a.sync()["spaces"][0]["sent"] >= 1
    assert "5433" in place.text()


def test_who_erased_and_comes_back_erases_in_its_own_files_what_others_forgot(
    place: Place,
) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("The crane is called Gundula.")["id"]
    settle(a, b)
    b.store("The crane is called Gundula.")
    settle(b)
    b.leave_sync(erase=True)
    a.forget(id)
    settle(a)
    b.sync_to(str(place.shared))
    b.share("team")
    settle(b)
    assert "Gundula" not in place.text()


def test_under_another_name_a_project_is_sent_anew_and_forgotten_in_both(place: Place) -> None:
    a = place.machine("a")
    id = a.store("The crane is called Gundula.")["id"]
    settle(a)
    a.unshare()
    a.share("other")
    settle(a)
    b = place.machine("b", share="other")
    settle(b)
    assert texts(b) == ["The crane is called Gundula."]
    a.forget(id)
    settle(a, b)
    assert texts(b) == []
    assert "Gundula" not in place.text()


def test_what_a_place_has_lost_is_foreseen(place: Place) -> None:
    a = place.machine("a")
    a.store("The port is 5433.")
    settle(a)
    assert "remarks" not in a.sync_status()
    for file in place.files_of(a).glob("*.jsonl"):
        file.unlink()
    told = a.sync_status()
    assert "the next `sync` sends everything again" in told["remarks"][0]
    assert [row["waiting"] for row in told["spaces"]] == [1]
    assert a.sync()["spaces"][0]["sent"] == 1


def test_a_place_that_rounds_times_gets_nothing_again(place: Place) -> None:
    a = place.machine("a")
    a.store("The port is 5433.")
    settle(a)
    for file in place.files_of(a).glob("*.jsonl"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    assert (told := a.sync())["remarks"] == []
    assert told["spaces"][0]["sent"] == 0


@pytest.mark.parametrize("kind", ["folder", "git"])
def test_a_place_that_was_put_back_gets_all_again(tmp_path: Path, kind: str) -> None:
    there = tmp_path / "place"
    if kind == "git":
        subprocess.run(["git", "init", "--bare", "-q", str(there)], check=True)
    else:
        there.mkdir()
    with open_memory(tmp_path / "memory.db") as a, open_memory(tmp_path / "other.db") as b:
        a.sync_to(f"git:{there}" if kind == "git" else str(there))
        a.share("team")
        id = a.store("The alarm's code word is a long one, and is called Gundula.")["id"]
        settle(a)
        shutil.copytree(there, tmp_path / "backup")
        a.forget(id)
        a.store("The port is 5433.")
        settle(a)
        shutil.rmtree(there)
        shutil.copytree(tmp_path / "backup", there)
        assert "has lost files" in a.sync()["remarks"][0]
        assert a.sync()["remarks"] == []
        b.sync_to(f"git:{there}" if kind == "git" else str(there))
        b.share("team")
        settle(b)
        assert texts(b) == ["The port is 5433."]


def test_what_a_lost_machine_alone_had_sent_is_sent_by_others(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("The port is 5433.")
    settle(a, b)
    shutil.rmtree(place.files_of(a))
    assert "has lost files" in b.sync()["remarks"][0]
    c = place.machine("c")
    settle(c)
    assert texts(c) == ["The port is 5433."]


def test_a_computer_that_is_renamed_stays_the_machine_that_it_was(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    import platform

    a = place.machine("a")
    id = a.store("The crane is called Gundula.")["id"]
    settle(a)
    monkeypatch.setattr(platform, "node", lambda: "renamed")
    a.forget(id)
    settle(a)
    assert "Gundula" not in place.text()
    assert len(a.sync_status()["machines"]) == 1
    assert [row["host"] for row in a.sync_status()["machines"]] == ["renamed"]


def test_nothing_is_shared_before_somebody_says_so(place: Place) -> None:
    a = place.machine("a", share="")
    a.store("Only for this project.")
    assert a.sync()["spaces"] == []
    assert "Only" not in place.text()
    other = open_memory(a.database.path, "another")
    other.store("Of another project.")
    a.share("team")
    a.store("For all.", scope="global")
    a.sync()
    assert "Only" in place.text()
    assert "another project" not in place.text()
    assert "For all." not in place.text()
    a.share(everywhere=True)
    a.sync()
    assert "For all." in place.text()


def test_what_looks_like_a_credential_never_leaves(place: Place) -> None:
    a, b = place.machine("a", share=""), place.machine("b")
    a.store("The password is hunter2!X9qLm.", allow_secrets=True)
    a.store("The gateway is called newton.")
    told = a.share("team")
    assert told["held_back"] == 1
    assert told["message"] == (
        "team will get 1 memory with the next `sync`; 1 held back, because the text looks like a"
        " credential."
    )
    a.store("The port is 5433.")
    assert a.share("team")["message"].startswith("team will get 2 memories")
    assert a.sync()["spaces"][0]["held_back"] == 1
    assert "hunter2" not in place.text()
    settle(a, b)
    assert texts(b) == ["The gateway is called newton.", "The port is 5433."]
    assert len(texts(a)) == 3


def test_a_replaced_memory_is_replaced_everywhere_and_undo_too(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    old = a.store("Deploys happen on Fridays.")["id"]
    settle(a, b)
    new = b.store("Deploys happen on Mondays.", replace=old)["id"]
    settle(b, a)
    assert texts(a) == ["Deploys happen on Mondays."]
    assert [version["id"] for version in a.history(new)["versions"]] == [old, new]
    a.undo(old)
    settle(a, b)
    assert texts(b) == texts(a) == ["Deploys happen on Fridays."]
    for memory in (a, b):
        told = [(one["action"], one["id"]) for one in memory.history(old)["events"]]
        assert told[-2:] == [("replace", new), ("undo", old)]


def test_forgetting_says_what_stays_elsewhere(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    first, second, third = (a.store(f"Fact {n} of many.")["id"] for n in range(3))
    settle(a, b)
    assert "next `sync`" in a.forget(first)["message"]
    a.unshare()
    assert "`sync --share NAME`" in a.forget(second)["message"]
    assert len(texts(b)) == 3
    late = a.store("Never sent.")["id"]
    assert "sync" not in a.forget(late)["message"]
    a.share("team")
    settle(a, b)
    assert texts(b) == texts(a) == [a.get(third)["content"]]


def test_a_hook_says_who_wrote_what_came_from_others(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("We always deploy on Fridays.")
    settle(a, b)
    told = sediment_ext.hooks.run_hook(b, {"hook_event_name": "SessionStart", "session_id": "s"})
    assert re.search(r"[0-9a-f]{8}: written by .+: We always deploy on Fridays", str(told))
    told = sediment_ext.hooks.run_hook(a, {"hook_event_name": "SessionStart", "session_id": "s"})
    assert "Fridays" in str(told)
    assert "written by" not in str(told)


def test_both_replace_the_same_and_both_are_named(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    old = a.store("The port is 5433.")["id"]
    settle(a, b)
    mine = a.store("The port is 6543.", replace=old)["id"]
    theirs = b.store("The port is 7000.", replace=old)["id"]
    b.sync()
    (found,) = a.sync()["look_at"]
    assert found["id"] == old
    assert {version["id"] for version in found["versions"]} == {mine, theirs}
    settle(a, b)
    assert texts(a) == texts(b) == ["The port is 6543.", "The port is 7000."]
    (pair,) = a.review()["pairs"]
    assert {pair["old"]["id"], pair["new"]["id"]} == {mine, theirs}
    a.replace(theirs, mine)
    assert a.review()["pairs"] == []
    settle(a, b)
    assert texts(b) == ["The port is 6543."]


def test_who_comes_later_is_told_of_all_that_replaced_the_same(place: Place) -> None:
    machines = [place.machine(name) for name in "abc"]
    old = machines[0].store("The port is 5433.")["id"]
    settle(*machines)
    for number, memory in enumerate(machines):
        memory.store(f"The port is {number}000.", replace=old)
    for memory in machines:
        memory.sync()
    late = place.machine("d")
    (found,) = late.sync()["look_at"]
    assert found["id"] == old
    assert len(found["versions"]) == len(late.review()["pairs"]) == 3
    assert late.sync()["look_at"] == []


def test_who_knows_one_later_version_is_told_of_the_other_though_it_loses(place: Place) -> None:
    a, b, c = (place.machine(name) for name in "abc")
    old = a.store("The port is 5433.")["id"]
    settle(a, b, c)
    versions = {a.store("The port is 6543.", replace=old)["id"]}
    versions.add(b.store("The port is 7000.", replace=old)["id"])
    b.sync()
    c.sync()
    a.sync()
    for memory in (c, place.machine("d")):
        (found,) = memory.sync()["look_at"]
        assert {version["id"] for version in found["versions"]} == versions
        assert memory.sync()["look_at"] == []


def test_versions_that_come_in_other_batches_than_what_they_replace_are_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment_ext.sync.places, "SYNC_BATCH", 1)
    a, b = place.machine("a"), place.machine("b")
    olds = [a.store(f"The port of {name} is 5433.")["id"] for name in ("newton", "kepler", "ohm")]
    settle(a, b)
    for old in olds:
        for memory, port in ((a, 6543), (b, 7000)):
            memory.store(f"{memory.get(old)['content'][:-6]} {port}.", replace=old)
    a.sync()
    told = b.sync()["look_at"]
    assert {found["id"] for found in told} == {*olds}
    asked = [{pair["old"]["id"], pair["new"]["id"]} for pair in b.review()["pairs"]]
    assert all({one["id"] for one in found["versions"]} in asked for found in told)


@pytest.mark.parametrize("rivals", [None, "id", {}, [1, None, "a\n"], [["id"]]])
def test_what_cannot_be_rivals_is_left_out(rivals: Any) -> None:
    row = {"v": 1, "id": "id", "in": "team", "rivals": rivals}
    assert "rivals" not in sediment_ext.sync.merge.state_of(row)[1]
    assert sediment_ext.sync.merge.state_of(row | {"rivals": ["a", "b"]})[1]["rivals"] == ["a", "b"]


def test_what_a_review_keeps_both_of_is_named_no_more(place: Place) -> None:
    a, b, c = (place.machine(name) for name in "abc")
    old = a.store("The port is 5433.")["id"]
    settle(a, b, c)
    versions = [
        memory.store(f"The port is {port}.", replace=old)["id"]
        for memory, port in ((a, 6543), (b, 7000))
    ]
    settle(a, b)
    a.keep_both(*versions)
    a.share(everywhere=True)  # all is read anew
    assert a.sync()["look_at"] == []
    versions.append(c.store("The port is 8000.", replace=old)["id"])
    c.sync()
    (found,) = a.sync()["look_at"]
    assert {version["id"] for version in found["versions"]} == {*versions}


def test_the_same_text_on_two_machines_is_shown_once_and_forgotten_once(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    elder = a.store("Tea is at four.", created_at="2026-01-01")["id"]
    younger = b.store("Tea is at four.", created_at="2026-01-02")["id"]
    settle(a, b)
    for memory in (a, b):
        assert [row["id"] for row in memory.list_items()["items"]] == [elder]
        assert memory.get(younger)["successor"] == elder
    b.forget(elder)
    settle(b, a)
    assert texts(a) == texts(b) == []
    assert "Tea" not in place.text()


def test_a_twin_goes_with_what_it_stands_behind(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    elder = a.store("Tea is at four.", created_at="2026-01-01")["id"]
    b.store("Tea is at four.", created_at="2026-01-02")
    settle(a, b)
    a.store("Tea is at five.", replace=elder)
    settle(a, b)
    assert texts(a) == texts(b) == ["Tea is at five."]


def test_a_twin_that_was_taken_apart_stays_so(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("Tea is at four.", created_at="2026-01-01")
    younger = b.store("Tea is at four.", created_at="2026-01-02")["id"]
    settle(a, b)
    a.undo(younger)
    settle(a, b)
    assert [row["id"] for row in b.list_items()["items"]] == [younger]


def test_what_is_undone_here_stands_once_here_too(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    old = a.store("Tea is at four.", created_at="2026-01-01")["id"]
    a.store("Tea is at five.", replace=old)
    b.store("Tea is at four.", created_at="2026-01-02")
    settle(b, a)
    a.undo(old)
    assert texts(a) == ["Tea is at four."] * 2  # until the next sync
    settle(a, b)
    for memory in (a, b):
        assert [row["id"] for row in memory.list_items()["items"]] == [old]


def test_who_forgets_forgets_what_others_put_behind_it(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    front = a.store("The gateway is called newton.")["id"]
    other = a.store("A gateway called newton is there.")["id"]
    settle(a, b)
    a.forget(front)
    b.replace(other, front)
    settle(b, a, b)
    assert texts(a) == texts(b) == []
    assert "newton" not in place.text()


def test_forgotten_texts_are_in_no_file_any_more(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    words = "unforgettable rhinoceros"
    id = a.store(f"An {words} lives there.")["id"]
    settle(a, b)
    next_id = b.store(f"No {words} lives there.", replace=id)["id"]
    settle(b, a)
    a.forget(next_id)
    settle(a, b)
    everything = [path for path in place.folder.rglob("*") if path.is_file()]
    assert len(everything) > 4
    assert not [path for path in everything if b"rhinoceros" in path.read_bytes()]


def test_status_says_who_has_yet_to_erase_what_was_forgotten(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("Soon forgotten.")["id"]
    settle(a, b)
    assert "sync --status" in a.forget(id)["message"]
    a.sync()
    late = {row["machine"]: row["to_erase"] for row in a.sync_status()["machines"]}
    assert late == {a.sync_status()["machine"]: 0, b.sync_status()["machine"]: 1}
    settle(b, a)
    assert {row["to_erase"] for row in a.sync_status()["machines"]} == {0}


def test_status_says_that_what_was_forgotten_waits(place: Place) -> None:
    a = place.machine("a")
    id = a.store("Soon forgotten.")["id"]
    a.sync()
    a.forget(id)
    (space,) = (status := a.sync_status())["spaces"]
    assert (space["here"], space["waiting"]) == (0, 1)
    assert "0 memories here, 1 not sent yet" in "".join(
        sediment_ext.sync.commands.render_synced(status)
    )
    (space,) = a.sync()["spaces"]
    assert (space["sent"], space["waiting"]) == (1, 0)


def test_an_import_brings_back_nothing_that_was_forgotten(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("Soon forgotten.")["id"]
    rows = list(a.export_rows())
    settle(a, b)
    b.forget(id)
    settle(b, a)
    answer = a.import_rows(rows)
    assert (answer["stored"], answer["forgotten"]) == (0, 1)
    assert texts(a) == []
    a.store("Soon forgotten.")  # under another id it may be said again
    settle(a, b)
    assert texts(b) == ["Soon forgotten."]


def test_a_restored_backup_gets_what_it_missed(place: Place, tmp_path: Path) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("From before.")
    id = a.store("Soon forgotten.")["id"]
    settle(a, b)
    a.backup(tmp_path / "backup.db")
    a.store("From after.")
    b.store("From the other.")
    settle(a, b)
    b.forget(id)
    settle(b, a)
    told = a.restore(tmp_path / "backup.db")["message"]
    assert "not brought back: 1" in told
    assert texts(a) == ["From before."]
    settle(a, b)
    assert texts(a) == texts(b) == ["From after.", "From before.", "From the other."]


def test_what_was_forgotten_comes_back_by_no_backup_and_is_forgotten_by_others(
    place: Place, tmp_path: Path
) -> None:
    a, b = open_memory(place.folder / "a.db"), place.machine("b")
    place.all.append(a)
    id = a.store("An unforgettable rhinoceros lives there.")["id"]
    a.backup(tmp_path / "before.db")
    a.sync_to(str(place.shared))
    a.share("team")
    settle(a, b)
    a.backup(tmp_path / "after.db")
    a.forget(id)
    for name in ("before.db", "after.db"):
        a.restore(tmp_path / name)
        assert texts(a) == []
        assert b"rhinoceros" not in a.database.path.read_bytes()
    assert a.sync_status()["spaces"][0]["space"] == "team"
    settle(a, b)
    assert texts(b) == []
    assert "rhinoceros" not in place.text()
    a.store("Of after.")
    settle(a, b)
    assert texts(b) == ["Of after."]


def test_a_backup_of_somebody_else_brings_no_place_and_no_shares(place: Place) -> None:
    theirs, mine = place.machine("theirs"), open_memory(place.folder / "mine.db")
    gone = theirs.store("Soon forgotten.")["id"]
    theirs.store("Of theirs.")
    theirs.sync()
    theirs.forget(gone)
    theirs.backup(copy := place.folder / "backup.db")
    assert f"The copy syncs with {place.shared}" in mine.restore(copy)["message"]
    with pytest.raises(NotFound, match="does not sync yet"):
        mine.sync()
    mine.sync_to(str(place.shared))
    assert mine.sync()["spaces"] == []
    mine.share("team")
    settle(mine, theirs)
    assert texts(mine) == texts(theirs) == ["Of theirs."]
    assert mine.sync_status()["machine"] != theirs.sync_status()["machine"]
    other = place.folder / "elsewhere"
    mine.sync_to(str(other))
    mine.restore(copy)
    assert mine.sync_status()["place"] == str(other)
    consistent(mine)
    mine.close()


def test_a_copied_file_is_another_machine_and_a_moved_one_is_not(place: Place) -> None:
    a = place.machine("a")
    a.store("Known to both.")
    a.sync()
    a.database.checkpoint()
    copy = place.folder / "copy.db"
    shutil.copyfile(a.database.path, copy)
    b = open_memory(copy)
    names = {a.sync_status()["machine"], b.sync_status()["machine"]}
    assert len(names) == 2
    a.store("Of the one.")
    b.store("Of the other.")
    settle(a, b)
    assert texts(a) == texts(b) == ["Known to both.", "Of the one.", "Of the other."]
    b.close()
    moved = place.folder / "moved.db"
    copy.rename(moved)
    with open_memory(moved) as c:
        assert c.sync_status()["machine"] in names


def test_what_a_copied_file_says_before_it_syncs_is_its_own(place: Place) -> None:
    a = place.machine("a")
    old = a.store("Deploys happen on Fridays.")["id"]
    a.sync()
    a.database.checkpoint()
    shutil.copyfile(a.database.path, copy := place.folder / "copy.db")
    with open_memory(copy) as b:
        new = b.store("Deploys happen on Mondays.", replace=old)["id"]
        b.sync()
        name = b.sync_status()["machine"]
    a.sync()
    first, second = a.history(new)["versions"]
    assert "author" not in first
    assert first["ended_from"] == second["author"] != ""
    assert a.database.rows("SELECT put_w FROM replica WHERE id = ?", new) == [(name,)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"v": 2}, "a newer Sediment wrote it"),
        ({"text": [(4 * 10**12) << 16, "ffffffff", "Fact 4.", 4]}, "machine ffffffff dated it"),
        ({"ending": [(4 * 10**12) << 16, "ffffffff", "prune", 4, ""]}, "machine ffffffff dated it"),
    ],
)
def test_a_line_that_is_to_be_read_later_stops_no_other(
    place: Place, change: dict[str, Any], why: str
) -> None:
    a, b = place.machine("a"), place.machine("b")
    settle(a, b)
    folder = place.shared / "ffffffff"
    folder.mkdir()
    rows = [
        {"v": 1, "id": f"id{n}", "in": "team", "text": [n << 16, "ffffffff", f"Fact {n}.", n]}
        for n in range(1, 4)
    ]
    lines = [line_of(row) for row in rows]
    later = line_of({"v": 1, "id": "x", "in": "team", **change})
    (folder / "00.jsonl").write_text(lines[0] + later + lines[1])
    (folder / "01.jsonl").write_text(lines[2])
    for _ in range(2):  # it is named until it is read
        (remark,) = a.sync()["remarks"]
        assert remark.startswith(f"ffffffff/00.jsonl, line 2 was not read: {why}")
        assert texts(a) == ["Fact 1.", "Fact 2.", "Fact 3."]
    (folder / "00.jsonl").write_text(lines[0] + lines[1])
    assert a.sync()["remarks"] == []
    assert len(texts(a)) == 3


def test_a_line_without_its_end_is_read_when_it_is_whole(place: Place) -> None:
    a = place.machine("a")
    folder = place.shared / "ffffffff"
    folder.mkdir()
    row = {"v": 1, "id": "id", "in": "team", "text": [1 << 16, "ffffffff", "A\u2028fact.", 1]}
    line = line_of(row)
    (folder / "00.jsonl").write_text(line[:40], "utf-8")
    assert a.sync()["remarks"] == []
    (folder / "00.jsonl").write_text(line, "utf-8")
    a.sync()
    assert texts(a) == ["A\u2028fact."]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([], "not a record"),
        ({"v": 1, "id": "x", "in": "team", "text": [1, "w", "", 1]}, "empty"),
        ({"v": 1, "id": "x", "in": "team", "text": [1, "w", "a text", -1]}, "time is impossible"),
        ({"v": 1, "id": "x", "in": "team", "text": ["1", "w", "a text", 1]}, "malformed"),
        ({"v": 1, "id": "x", "in": "team", "ending": [1, "w", None]}, "malformed"),
        ({"v": 1, "id": "x", "in": "team", "confirmations": {"w": "1"}}, "not numbers"),
        ({"v": 1, "id": "", "in": "team", "gone": True}, "an id is"),
        (
            {"v": 1, "id": "x", "in": "team", "text": [1 << 61, "w", "a text", 1]},
            "set the wrong clock",
        ),
        (
            {"v": 1, "id": "x", "in": "team", "text": [1, "w", f"The key is {TOKEN}.", 1]},
            "github token",
        ),
        ({"v": 1, "id": "x", "in": "team", "text": [1, "\ud800", "a text", 1]}, "not JSON"),
        ({"v": 1, "id": "x", "in": "team", "text": [1, "", "a text", 1]}, "an id is"),
        ({"v": 1, "id": "x", "in": "team", "ending": [1, "", "prune", 1, ""]}, "an id is"),
        ({"v": 1, "id": "x", "in": "team", "confirmations": {"": 5}}, "an id is"),
        ({"v": 1, "id": "x", "in": "team", "ending": [1, "w", "\ud800", 1, ""]}, "not JSON"),
        ({"v": 1, "id": "x", "in": "team", "ending": [1, "w", "expired", 1, ""]}, "no memory ends"),
        ({"v": 1, "id": "x", "in": "team", "ending": [1, "w", "replace", 1, ""]}, "an id is"),
        ({"v": 1, "id": "x", "in": "team", "ending": [1, "w", "replace", 1, "x"]}, "behind itself"),
        ({"v": 1, "id": "x", "in": "team", "ending": [1, "w", "replace", 1, "\ud800"]}, "not JSON"),
        ({"v": 1, "id": "x", "in": "team", "confirmations": {"\ud800": 5}}, "not JSON"),
        ({"v": 1, "id": "x", "in": "team", "confirmations": {"w": 10**22}}, "not numbers"),
        ({"v": 1, "id": "x", "in": "team", "confirmations": {"w": -1}}, "not numbers"),
    ],
)
def test_a_line_that_nobody_should_have_written_is_named(place: Place, row: Any, told: str) -> None:
    a = place.machine("a")
    (place.shared / "ffffffff").mkdir()
    good = {"v": 1, "id": "id", "in": "team", "text": [1 << 16, "ffffffff", "A fact.", 1]}
    (place.shared / "ffffffff" / "00.jsonl").write_text(f"{line_of(good)}{line_of(row)}nonsense\n")
    remarks = a.sync()["remarks"]
    assert told in remarks[0]
    assert texts(a) == ["A fact."]


@pytest.mark.parametrize(
    "facts",
    [
        {"read": None},
        {"read": {"a": "b"}},
        {"host": {"a": 1}},
        {"host": "\ud800"},
        {"person": ["x"]},
        {"seen": "x"},
        {"seen": -99999999999999},
        {"t": "x"},
        {"t": -1},
    ],
)
def test_what_a_machine_cannot_say_of_itself_is_left_out(place: Place, facts: Any) -> None:
    a, b = place.machine("a"), place.machine("b")
    (place.shared / "deadbeef").mkdir()
    (place.shared / "deadbeef" / "machine.json").write_text(json.dumps({"v": 1, **facts}))
    a.store("A fact.")
    settle(a, b)
    assert texts(b) == ["A fact."]
    shown = "\n".join(sediment_ext.sync.commands.render_synced(a.sync_status()))
    assert "deadbeef" in shown


def test_a_link_in_the_place_of_ones_own_folder_is_not_followed(place: Place) -> None:
    a = place.machine("a")
    victim, own = place.folder / "victim", place.files_of(a)
    victim.mkdir()
    (victim / "machine.json").write_text("mine")
    own.symlink_to(victim)
    a.store("A fact.")
    with pytest.raises(InvalidInput, match="is a link"):
        a.sync()
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"machine.json": "mine"}


def test_copies_of_own_files_go_and_what_else_is_there_stays(place: Place) -> None:
    a = place.machine("a")
    a.store("A fact.")
    a.sync()
    own = place.files_of(a)
    (file,) = own.glob("*.jsonl")
    copies = (" (conflicted copy).jsonl", ".sync-conflict-1.jsonl", ".jsonl.conflict1")
    copies += (".jsonl..path1", ".jsonl.sync-conflict-1-ABC", ".jsonl~")
    for name in (*copies, f"Copy of {file.name}"):
        shutil.copy(file, own / (name if name.startswith("Copy") else f"{file.stem}{name}"))
    (own / "training.jsonl").write_text("")
    (own / "00.jsonl.d").mkdir()
    a.sync()
    names = {path.name for path in own.iterdir()}
    assert names == {file.name, "machine.json", "training.jsonl", "00.jsonl.d"}


@pytest.mark.parametrize("name", ["machine.json", "00.jsonl"])
def test_what_is_no_plain_file_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    a, b = place.machine("a"), place.machine("b")
    for other in ("ffffffff", "eeeeeeee", "dddddddd"):
        (place.shared / other).mkdir()
    os.mkfifo(place.shared / "ffffffff" / name)
    (place.shared / "eeeeeeee" / name).symlink_to("/dev/zero")
    (place.shared / "dddddddd" / name).write_text("x" * 5_000)
    monkeypatch.setattr(sediment_ext.sync.places, "SYNC_FILE_MAX", 4_000)
    a.store("A fact.")
    told = a.sync()["remarks"]
    if name == "00.jsonl":
        assert [line.partition(" was")[0] for line in told] == [
            "dddddddd/" + name,
            "eeeeeeee/" + name,
        ]
    b.sync()
    assert texts(b) == ["A fact."]


def test_nobody_changes_what_belongs_to_another_project(place: Place) -> None:
    a = place.machine("a")
    private = open_memory(a.database.path, "private")
    id = private.store("Nobody's business.")["id"]
    (place.shared / "ffffffff").mkdir()
    row = {"v": 1, "id": id, "in": "team", "gone": True}
    (place.shared / "ffffffff" / "00.jsonl").write_text(line_of(row))
    assert a.sync()["spaces"][0]["refused"] == 1
    assert texts(private) == ["Nobody's business."]
    assert "refused" not in a.sync()["spaces"][0]


def test_a_folder_that_is_gone_or_full_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("To be sent.")
    away = place.shared.rename(place.folder / "away")
    with pytest.raises(Unreachable, match=r"is not there.*1 change waits here"):
        a.sync()
    assert not place.shared.exists()
    away.rename(place.shared)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(sediment, "write_atomically", full)
        with pytest.raises(Unreachable, match=r"No space left.*1 change waits here"):
            a.sync()
    settle(a, b)
    assert texts(b) == ["To be sent."]


def test_the_database_must_not_stand_in_the_folder(place: Place) -> None:
    with open_memory(place.shared / "memory.db") as memory:
        memory.store("A fact.")
        with pytest.raises(InvalidInput, match="must not be carried about"):
            memory.sync_to(str(place.shared))


def test_sending_again_does_no_harm(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("A fact.")
    settle(a, b)
    assert a.sync()["spaces"][0]["sent"] == 0
    assert a.sync(again=True)["spaces"][0]["sent"] == 1
    assert b.sync()["spaces"][0]["received"] == 0


def test_who_leaves_keeps_or_erases_what_came_from_others(place: Place) -> None:
    a, b, c = (place.machine(name) for name in "abc")
    a.store("Of a.")
    b.store("Of b.")
    settle(a, b, c)
    b.leave_sync(erase=True)
    assert texts(b) == ["Of b."]
    c.leave_sync()
    assert texts(c) == ["Of a.", "Of b."]
    assert len(a.sync_status()["machines"]) == 1
    settle(a)
    assert texts(a) == ["Of a.", "Of b."]


@pytest.mark.parametrize("kind", ["folder", "git"])
def test_status_says_how_to_delete_the_files_of_a_machine_that_left(
    tmp_path: Path, kind: str
) -> None:
    shared = git_place(tmp_path) if kind == "git" else tmp_path / "shared"
    a, b, c = (open_memory(tmp_path / name / "memory.db") for name in "abc")

    def join(memory: Memory) -> None:
        memory.sync_to(f"git:{shared}" if kind == "git" else str(shared))
        memory.share("team")
        memory.sync()

    join(a)
    join(b)
    gone = b.store("The petrel nests at a former address.")["id"]
    b.store("The queue is on port 5672.")
    settle(b, a)
    left = b.sync_status()["machine"]
    b.leave_sync()
    a.forget(gone)
    a.sync()
    (told,) = a.sync_status()["remarks"]
    assert f"{left} has left" in told
    if kind == "git":
        assert f"`git push {shared} --delete refs/sediment/{left}`" in told
        words = ["git", "push", "-q", str(shared), "--delete", f"refs/sediment/{left}"]
        subprocess.run(words, cwd=shared, check=True)
    else:
        assert f"delete the folder {shared / left}" in told
        shutil.rmtree(shared / left)
    settle(a)
    assert "remarks" not in a.sync_status()
    join(c)
    assert texts(c) == ["The queue is on port 5672."]
    for memory in (a, b, c):
        memory.close()


def test_who_leaves_and_erases_keeps_what_is_his_and_nothing_else(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    theirs = a.store("Of a.")["id"]
    settle(a, b)
    mine = b.store("Of b.")["id"]
    b.replace(mine, theirs)
    settle(b, a)
    b.unshare()
    assert "1 memory is from others erased here" in b.leave_sync(erase=True)["message"]
    assert texts(b) == ["Of b."]


def test_what_was_fetched_by_git_goes_with_who_leaves(tmp_path: Path) -> None:
    remote = git_place(tmp_path)
    with sharing_by_git(tmp_path, remote) as memory:
        memory.leave_sync()
        assert not (tmp_path / "memory.db.git").exists()


def test_what_was_fetched_by_git_goes_with_a_move_to_another_place(tmp_path: Path) -> None:
    remote = git_place(tmp_path)
    with sharing_by_git(tmp_path, remote) as memory:
        memory.sync_to(str(tmp_path / "folder"))
        assert not (tmp_path / "memory.db.git").exists()
        assert memory.sync()["spaces"][0]["sent"] == 1


@pytest.mark.parametrize("kind", ["folder", "git"])
def test_who_goes_to_another_place_leaves_the_one_before(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path / "folder")
    where = f"git:{git_place(tmp_path)}" if kind == "git" else str(place.shared)
    a, b = place.machine("a"), place.machine("b")
    for memory in (a, b):
        memory.sync_to(where)
    id = a.store("A forgotten walrus.")["id"]
    settle(a, b)
    left = a.sync_status()["machine"]
    assert "remarks" not in a.sync_to(str(tmp_path / "other"))
    assert a.sync()["spaces"][0]["sent"] == 1
    b.forget(id)
    settle(b)
    status = b.sync_status()
    assert left not in {machine["machine"] for machine in status["machines"]}
    assert f"{left} has left" in status["remarks"][0]
    for memory in place.all:
        memory.close()


def test_a_place_that_was_away_when_it_was_left_is_told_later(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("A fact.")
    settle(a, b)
    away = place.shared.rename(place.folder / "away")
    how = f"`sync --to {place.shared}` and `sync --leave`"
    assert how in "".join(a.sync_to(str(place.folder / "other"))["remarks"])
    a.sync_to(str(away))
    a.sync()
    away.rename(place.shared)
    assert how.replace("shared", "away") in a.leave_sync()["message"]
    assert len(b.sync_status()["machines"]) == 2
    assert "remarks" not in a.sync_to(str(place.shared))
    assert "could not be told" not in a.leave_sync()["message"]
    assert len(b.sync_status()["machines"]) == 1


def test_who_comes_back_is_who_he_was_and_can_forget(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    name = a.sync_status()["machine"]
    id = a.store("An unforgettable rhinoceros lives there.")["id"]
    settle(a, b)
    a.leave_sync()
    a.backup(place.folder / "copy.db")
    a.sync_to(str(place.shared))
    a.share("team")
    assert a.sync_status()["machine"] == name
    with open_memory(place.folder / "copy.db") as copy:
        assert copy.sync_to(str(place.shared))["machine"] != name
    a.forget(id)
    settle(a, b)
    assert texts(b) == []
    assert "rhinoceros" not in place.text()


def test_changes_dated_a_day_ahead_are_not_sent_until_they_are_dated_again(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    old = a.store("Deploys happen on Fridays.")["id"]
    settle(a, b)
    with a.database.transaction() as connection:
        connection.execute("UPDATE clock SET t = t + (400 * 86400000 << 16)")
    a.store("Deploys happen on Mondays.", replace=old)
    a.store("Tea is at four.")
    with pytest.raises(SedimentError, match=r"set the clock.*`sync --again` dates"):
        a.sync()
    assert a.sync(again=True)["remarks"] == b.sync()["remarks"] == []
    assert texts(b) == ["Deploys happen on Mondays.", "Tea is at four."]
    b.undo(old)
    settle(b, a)
    assert texts(a) == ["Deploys happen on Fridays.", "Tea is at four."]


def test_of_two_clocks_that_differ_both_times_are_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("The port is 5433.", created_at="2020-01-01")
    a.sync()
    now = sediment.time.time()
    with b.database.transaction() as connection:
        connection.execute("UPDATE clock SET t = t - (400 * 86400000 << 16)")
    monkeypatch.setattr(sediment.time, "time", lambda: now - 400 * 86_400)
    (remark,) = b.sync()["remarks"]
    for at in (now, now - 400 * 86_400):
        assert sediment.local_time(sediment.iso_time(int(at))) in remark
    assert "set the wrong clock" in remark
    assert "waits" in remark
    monkeypatch.undo()
    assert b.sync()["remarks"] == []
    assert texts(b) == ["The port is 5433."]


@pytest.mark.parametrize("shares_more", [False, True])
def test_a_place_that_has_lost_files_gets_all_again(place: Place, shares_more: bool) -> None:
    a = place.machine("a")
    a.store("The port is 5433.")
    a.store("The gateway is newton.")
    settle(a)
    for file in place.files_of(a).glob("*.jsonl"):
        file.unlink()
    if shares_more:
        a.share(everywhere=True)
    told = a.sync()
    assert sum(row["sent"] for row in told["spaces"]) == 2
    assert "has lost files" in told["remarks"][0]
    assert a.sync()["remarks"] == []
    b = place.machine("b")
    settle(b)
    assert texts(a) == texts(b)


def test_who_follows_a_place_that_is_away_is_told_what_waits(place: Place) -> None:
    a = place.machine("a")
    a.store("The port is 5433.")
    with a.database.transaction() as connection:
        connection.execute("UPDATE clock SET place = '/nonexistent/place'")
    told = next(a.follow_sync())
    assert [row["waiting"] for row in told["spaces"]] == [1]
    assert "is not there" in told["remarks"][0]
    assert "Nothing is shared" not in "".join(sediment_ext.sync.commands.render_synced(told))


@pytest.mark.parametrize("damage", ["", "\0\0\0\n", '{"id": "a", "in'])
def test_a_place_whose_files_were_damaged_gets_all_again(place: Place, damage: str) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("The port is 5433.")
    settle(a)
    (file,) = place.files_of(a).glob("*.jsonl")
    whole = file.read_text()
    file.write_text(damage)
    assert "has lost files" in a.sync()["remarks"][-1]
    assert file.read_text() == whole
    assert a.sync()["remarks"] == []
    settle(b)
    assert texts(b) == ["The port is 5433."]


def test_what_goes_to_nobody_hides_nothing_of_others(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    one, two = a.store("The port is 5433.")["id"], a.store("The gateway is newton.")["id"]
    settle(a, b)
    a.store("Mine alone.", scope="global", replace=one)
    secret = "The gateway's password is hunter2!X9qLm."
    a.store(secret, replace=two, allow_secrets=True)
    told = a.sync()["spaces"][0]
    assert (told["waiting"], told["held_back"]) == (3, 1)  # the secret alone looks like one
    b.sync()
    assert texts(b) == ["The gateway is newton.", "The port is 5433."]
    a.share(everywhere=True)
    settle(a, b)
    assert texts(b) == ["The gateway is newton."]


def test_what_is_not_shared_comes_back_when_others_forget_what_it_stood_behind(
    place: Place,
) -> None:
    a, b = place.machine("a"), place.machine("b")
    front = a.store("The gateway is newton.")["id"]
    settle(a, b)
    mine = {"id": "mine", "content": "My gateway.", "scope": "global", "created_at": 1}
    b.import_rows([mine | {"ended_at": 2, "ended_by": "replace", "successor": front}])
    a.forget(front)
    settle(a, b)
    assert [row["id"] for row in b.list_items(scope="global")["items"]] == ["mine"]


def test_what_is_unshared_goes_nowhere_and_stays(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("Before.")
    settle(a, b)
    a.unshare()
    a.store("After.")
    settle(a, b)
    assert texts(b) == ["Before."]
    with pytest.raises(NotFound, match="not shared"):
        a.unshare()
    a.share("team")
    settle(a, b)
    assert texts(b) == ["After.", "Before."]


def test_a_project_is_shared_under_one_name(place: Place) -> None:
    a = place.machine("a")
    with pytest.raises(InvalidInput, match="shared as team"):
        a.share("another")
    with pytest.raises(InvalidInput, match="shared as team"):
        open_memory(a.database.path, "another").share("team")


def test_a_shared_project_may_get_another_id(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("Before its first commit.")
    settle(a, b)
    with a.database.transaction() as connection:
        sediment.move_project(connection, "demo", "new-id")
        connection.execute("INSERT INTO projects VALUES('moved:demo', 'new-id')")
    renamed = open_memory(a.database.path, "new-id")
    renamed.store("After it.")
    settle(renamed, b)
    assert texts(b) == ["After it.", "Before its first commit."]


def share_all(*memories: Memory) -> None:
    for memory in memories:
        memory.share(everywhere=True)


def everything(memory: Memory) -> list[tuple[Any, ...]]:
    sql = "SELECT id, project_id, content, ended_by FROM items ORDER BY id"
    return memory.database.rows(sql)


def test_a_shared_memory_that_is_moved_gets_a_new_id_and_is_hidden_where_it_was(
    place: Place,
) -> None:
    a, b, c = (place.machine(name) for name in "abc")
    share_all(a, b)
    id = a.store("Coffee is at nine.")["id"]
    settle(a, b, c)
    moved = b.move(id, "global")
    assert moved["id"] != id
    assert moved["id"][:8] in moved["message"]
    settle(b, a, c)
    assert everything(a) == everything(b)
    assert {row[:2]: row[3] for row in everything(a)} == {
        (id, "demo"): "prune",
        (moved["id"], None): None,
    }
    assert texts(c) == []  # shares the project alone
    back = a.move(moved["id"], "project")["id"]
    a.forget(back)
    settle(a, b, c)
    assert everything(a) == everything(b)
    assert not any(row[0] == back for row in everything(b))


def test_what_others_do_not_know_keeps_its_id_when_it_is_moved(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("Coffee is at nine.", scope="global")["id"]
    assert a.move(id, "project")["id"] == id
    settle(a, b)
    assert everything(b) == [(id, "demo", "Coffee is at nine.", None)]


def test_a_move_beside_a_replacement_loses_neither_text(place: Place) -> None:
    mover, replacer = place.machine("a"), place.machine("b")
    share_all(mover, replacer)
    old = mover.store("The limit of an upload is 4 GB.")["id"]
    settle(mover, replacer)
    moved = mover.move(old, "global")["id"]
    new = replacer.store("The limit of an upload is 8 GB.", replace=old)["id"]
    settle(mover, replacer, mover)
    assert everything(mover) == everything(replacer)
    assert {row[0] for row in everything(mover) if row[3] is None} == {moved, new}


def test_what_was_imported_under_the_id_of_another_machine_is_the_same_memory(
    place: Place,
) -> None:
    for name in "abc":
        (place.folder / name / ".git").mkdir(parents=True)
        memory = open_memory(place.folder / name / "memory.db", str(place.folder / name))
        memory.sync_to(str(place.shared))
        memory.share("team")
        place.all.append(memory)
    a, b, c = place.all
    ids = [a.store(f"The vault is called {name}.")["id"] for name in ("hermes", "zeus")]
    rows = list(a.export_rows())
    b.import_rows(rows)
    c.import_rows(rows)
    settle(a, b, c)
    assert texts(a) == texts(b) == texts(c) == [row["content"] for row in rows]
    later = a.store("The vault is called apollo.", replace=ids[0])["id"]
    c.forget(ids[1])
    settle(a, c, b)
    assert texts(a) == texts(b) == texts(c) == ["The vault is called apollo."]
    b.forget(later)
    settle(b, a, c)
    for memory in (a, b, c):
        assert b"hermes" not in memory.database.path.read_bytes()
        assert b"zeus" not in memory.database.path.read_bytes()


def test_an_id_of_another_project_is_moved_by_nobody_who_does_not_know_its_text(
    place: Place,
) -> None:
    a = place.machine("a")
    share_all(a)
    id = a.store("Mine alone.", scope="global")["id"]
    (place.folder / "private" / ".git").mkdir(parents=True)
    private = open_memory(a.database.path, str(place.folder / "private"))
    other = private.store("Nobody's business.")["id"]
    (place.shared / "ffffffff").mkdir()
    stamp = (int(sediment.time.time() * 1000) << 16, "ffffffff")
    rows = [
        {"id": id, "text": [*stamp, "Theirs.", 1]},
        {"id": other, "text": [*stamp, "Nobody's business.", private.get(other)["created_at"]]},
        {"id": id, "gone": True},
    ]
    lines = [line_of({"v": 1, "in": "team", **row}) for row in rows]
    (place.shared / "ffffffff" / "00.jsonl").write_text("".join(lines))
    assert a.sync()["spaces"][1]["refused"] == 2
    assert {row[0]: row[1] for row in everything(a)} == {
        id: None,
        other: private.projects.current(),
    }


def test_confirmations_of_all_machines_count_once(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("A fact.")["id"]
    settle(a, b)
    a.store("A fact.")
    b.store("A fact.")
    b.store("A fact.")
    settle(a, b)
    settle(a, b)
    sql = "SELECT validation_count FROM access_log WHERE item_id = ?"
    assert a.database.value(sql, id) == b.database.value(sql, id) == 3


@pytest.mark.parametrize("kind", ["folder", "git", "hub"])
def test_machines_that_are_killed_lose_nothing_and_agree(tmp_path: Path, kind: str) -> None:
    figures = sync_storm.run(tmp_path / "storm", kind, 3, seed=7)  # longer ones are in `make soak`
    assert figures["kills"] >= sync_storm.KILLS
    assert figures["memories"] > sync_storm.MACHINES


def test_two_syncs_of_one_file_do_not_meet(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    a = place.machine("a")
    a.store("A fact.")
    with sediment.Lease(a.database, "syncing") as other:
        monkeypatch.setattr(sediment.time, "sleep", lambda _: other.take())  # it works on
        monkeypatch.setattr(sediment, "LEASE", 2)
        monkeypatch.setattr(sediment_ext.sync.run.take_lease, "__defaults__", (3,))
        assert other.take()
        with pytest.raises(DatabaseError, match="another process"):
            a.sync()


def test_machines_that_live_apart_agree_when_they_meet(tmp_path: Path) -> None:
    for seed in range(3):  # more of them, and of those below, are in `make soak`
        live_apart(tmp_path / str(seed), seed)


def test_machines_that_sync_through_a_folder_show_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeatable(monkeypatch, 1)
    through_a_folder(tmp_path, 1, 6)


def test_machines_agree_though_their_files_are_damaged_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeatable(monkeypatch, 1)
    through_a_folder(tmp_path, 1, 4, (), DAMAGE)


def repeatable(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Let machines make the same ids in each run, and open their files quickly."""
    ids = random.Random(seed)
    monkeypatch.setattr(sediment, "new_id", lambda: f"{ids.getrandbits(128):032x}")
    monkeypatch.setattr(sync_machines, "open_memory", quick_memory)


def quick_memory(path: Path, project: str) -> Memory:
    memory = open_memory(path, project)
    memory._encoder = sync_storm.Quick()
    return memory


def the_last_word_counts(folder: Path) -> None:
    """Who has seen a decision and decides otherwise wins, however wrong the clocks are."""
    ahead, behind = Machine(folder, "ahead", 100_000), Machine(folder, "behind", -900)
    id = ahead.memory.store("The port is 5433.")["id"]
    behind.take(ahead.sent())
    for _ in range(3):  # several times within one tick
        ahead.memory.store("The port is 6543.", replace=id)
        behind.take(ahead.sent())
        behind.memory.undo(id)
        ahead.take(behind.sent())
        assert id in {*ahead.live()} & {*behind.live()}
    assert ahead.facts() == behind.facts()


def test_the_last_word_counts_however_wrong_the_clocks_are(tmp_path: Path) -> None:
    the_last_word_counts(tmp_path)


CLOCKS = {
    "the clock follows the wall alone": ("schema/sync.sql", "max(t + 1, CAST(", "max(0, CAST("),
    "the clock follows nobody": ("merge", "t = max(t, ?)", "t = max(t, 0 * ?)"),
}


@pytest.mark.parametrize("mistake", CLOCKS)
def test_a_mistake_in_the_clock_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    where, old, new = CLOCKS[mistake]
    if where == "merge":
        source = inspect.getsource(sediment_ext.sync.merge)
        scope = dict(vars(sediment_ext.sync.merge))
        exec(source.replace(old, new), scope)
        monkeypatch.setattr(sync_machines, "receive", scope["receive"])
    else:
        source = asset = sediment.asset(where)
        read = sediment.asset
        change = lambda name: asset.replace(old, new) if name == where else read(name)  # noqa: E731
        monkeypatch.setattr(sediment, "asset", change)
    assert old in source
    with pytest.raises(AssertionError):
        the_last_word_counts(tmp_path)


def test_memories_that_lived_apart_for_a_year_become_one(place: Place) -> None:
    """Two diaries with common notes: some by a copy, with their ids, some written down twice."""
    notes = {
        name: [json.loads(line) for line in (DIARIES / name / "memories.jsonl").open()]
        for name in ("band", "game")
    }
    a, b = (open_memory(place.folder / f"{name}.db") for name in ("a", "b"))
    common, again = notes["band"][:40], notes["band"][40:70]
    a.import_rows(notes["band"])
    b.import_rows([*common, *({**note, "id": f"again-{note['id']}"} for note in again)])
    b.import_rows({**note, "id": f"game-{note['id']}"} for note in notes["game"])
    old = common[0]["id"]
    before = a.history(a.store("Replaced on the one.", replace=old)["id"])
    kept = a.store("Only here for a while.")["id"]
    moment = common[20]["created_at"]
    for memory in (a, b):
        memory.sync_to(str(place.shared))
        memory.share("diary")
        place.all.append(memory)
    settle(a, b)
    settle(a, b)
    assert texts(a) == texts(b)
    assert len(set(texts(a))) == len(texts(a)), "something is shown twice"
    expected = {note["content"] for name in notes for note in notes[name]} - {common[0]["content"]}
    assert set(texts(b)) == expected | {"Replaced on the one.", "Only here for a while."}
    assert [one["id"] for one in b.history(old)["versions"]] == [
        one["id"] for one in before["versions"]
    ]
    assert b.get(kept)["content"] == "Only here for a while."
    as_of = [
        [row["id"] for row in memory.recall(common[0]["content"], as_of=moment)["results"]]
        for memory in (a, b)
    ]
    assert as_of[0][:1] == as_of[1][:1] == [old]
    b.undo(old)
    settle(b, a)
    assert common[0]["content"] in texts(a)


def test_who_follows_a_place_goes_to_another_with_the_memory(place: Place) -> None:
    a, other = place.machine("a"), place.folder / "other"
    a.store("The ferry sails at six.")
    follower = sediment_ext.sync.run.Sync(a.projects, a.encoder)
    follower.run()
    with open_memory(a.database.path) as by_hand:
        by_hand.sync_to(str(other))
    assert follower.run()["spaces"][0]["sent"] == 1
    assert any("sails at six" in path.read_text("utf-8") for path in other.rglob("*.jsonl"))


def test_who_follows_a_place_that_was_left_writes_nothing_there(place: Place) -> None:
    a = place.machine("a")
    a.store("The ferry sails at six.")
    follower = sediment_ext.sync.run.Sync(a.projects, a.encoder)
    follower.run()
    mine = place.files_of(a)
    with open_memory(a.database.path) as by_hand:
        by_hand.leave_sync()
    with pytest.raises(NotFound, match="does not sync yet"):
        follower.run()
    assert not (mine / "machine.json").exists()
    assert "does not sync yet" in next(follower.follow())["remarks"][0]


def test_a_place_is_not_left_while_a_run_writes_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = place.machine("a")
    monkeypatch.setattr(
        sediment_ext.sync.run,
        "take_lease",
        functools.partial(sediment_ext.sync.run.take_lease, wait=0),
    )
    with sediment.Lease(a.database, "syncing") as running:
        assert running.take()
        with pytest.raises(DatabaseError, match="another process"):
            a.leave_sync()
        with pytest.raises(DatabaseError, match="another process"):
            a.sync_to(str(place.folder / "other"))
    a.leave_sync()


def test_git_is_tidied_once_for_what_was_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = git_place(tmp_path)
    with sharing_by_git(tmp_path, remote) as memory:
        id = memory.store("The ferry sails at six.")["id"]
        follower = sediment_ext.sync.run.Sync(memory.projects, memory.encoder)
        follower.run()
        memory.forget(id)
        ran: list[str] = []
        git = sediment_ext.sync.git.Git._git

        def noted(self: sediment_ext.sync.git.Git, *words: str, **more: Any) -> str:
            ran.append(words[0])
            return git(self, *words, **more)

        monkeypatch.setattr(sediment_ext.sync.git.Git, "_git", noted)
        for _ in range(3):
            follower.run()
        assert ran.count("gc") == 1


def test_git_works_in_no_other_repository_for_what_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    subprocess.run(["git", "init", "--quiet", "--bare", str(elsewhere)], check=True)
    before, remote = sorted(elsewhere.rglob("*")), git_place(tmp_path)
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(elsewhere / "objects"))
    monkeypatch.setenv("GIT_WORK_TREE", str(elsewhere))
    with sharing_by_git(tmp_path, remote) as memory:
        memory.store("The ferry sails at six.")
        memory.sync()
    assert sorted(elsewhere.rglob("*")) == before


def test_what_does_not_pass_by_itself_is_said_though_all_is_to_be_quiet(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = place.machine("a")
    a.store("The ferry sails at six.")
    for number, kind in (
        (errno.ENOSPC, sediment_ext.sync.places.Refused),
        (errno.EHOSTDOWN, Unreachable),
    ):

        def fails(*_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(sediment_ext.sync.folder.Folder, "_write", fails)
        with pytest.raises(Unreachable) as caught:
            a.sync()
        assert caught.type is kind
        done = CliRunner().invoke(sediment.cli, ["--db", str(a.database.path), "sync", "--quiet"])
        assert (done.exit_code, bool(done.output)) == (
            int(kind is sediment_ext.sync.places.Refused),
        ) * 2


def rot(memory: Memory, id: str, old: str, new: str) -> None:
    """Change a text in the file as a flipped bit does: no trigger runs and its hash stays."""
    memory.close()
    with contextlib.closing(sqlite3.connect(memory.database.path)) as connection:
        (content,) = connection.execute("SELECT content FROM items WHERE id = ?", (id,)).fetchone()
        assert old in content
        connection.execute(
            "UPDATE items SET content = ? WHERE id = ?", (content.replace(old, new), id)
        )
        connection.commit()


SOUND = "The gateway of the harbour listens on port 8443."


@pytest.mark.parametrize("new", ["xort", "aort"])  # greater and less than the sound text
@pytest.mark.parametrize("who", ["author", "reader"])
@pytest.mark.parametrize("deed", ["again", "store", "confirm"])
def test_a_damaged_text_is_not_sent_and_is_replaced_by_the_sound_one(
    place: Place, new: str, who: str, deed: str
) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store(SOUND)["id"]
    settle(a, b)
    hit, other = (a, b) if who == "author" else (b, a)
    rot(hit, id, "port", new)
    if deed == "store":
        hit.store(SOUND)
    elif deed == "confirm":
        with hit.database.transaction() as connection:
            sediment.add_history(connection, "confirm", id)
    (remark,) = hit.sync(again=True)["remarks"]
    assert f"not sent, because the text is damaged here: {id};" in remark
    assert f"{new} 8443" not in place.text()
    settle(other, hit)
    assert hit.sync()["remarks"] == []
    settle(other)
    for memory in (hit, other, place.machine("c")):
        memory.sync()
        assert {memory.get(row["id"])["content"] for row in memory.list_items()["items"]} == {SOUND}


@pytest.mark.parametrize("new", ["xort", "aort"])
@pytest.mark.parametrize("who", ["author", "reader"])
def test_a_damaged_text_that_was_repaired_yields_to_the_sound_one(
    place: Place, new: str, who: str
) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store(SOUND)["id"]
    settle(a, b)
    hit, other = (a, b) if who == "author" else (b, a)
    rot(hit, id, "port", new)
    assert hit.repair()["healthy"]
    assert hit.get(id)["content"] != SOUND
    hit.sync(again=True)
    settle(other, hit)
    for memory in (hit, other):
        assert memory.get(id)["content"] == SOUND


def test_a_text_that_cannot_be_read_is_sent_by_nobody_until_it_is_repaired(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store(SOUND)["id"]
    settle(a, b)
    with a.database.transaction() as connection:
        sql = "UPDATE items SET content = CAST(? AS TEXT) WHERE id = ?"
        connection.execute(sql, (SOUND.encode().replace(b"port", b"p\xefrt"), id))
    with pytest.raises(DatabaseError, match="`doctor --repair`"):
        a.sync(again=True)
    assert a.repair()["healthy"]
    settle(a, b)
    assert texts(a) == texts(b) == [SOUND]


def test_a_text_of_which_nothing_is_left_is_forgotten_on_no_other_machine(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store(SOUND)["id"]
    settle(a, b)
    rot(a, id, SOUND, "\0" * len(SOUND))
    assert a.repair()["lost"] == [id]
    settle(a, b)
    assert texts(a) == texts(b) == [SOUND]


@pytest.mark.parametrize("who", ["author", "reader"])
def test_a_repair_page_by_page_brings_back_nothing_that_was_forgotten(
    place: Place, who: str
) -> None:
    a, b = place.machine("a"), place.machine("b")
    kept, doomed = (a.store(text)["id"] for text in ("Tea is at four.", SOUND))
    settle(a, b)
    hit, other = (a, b) if who == "author" else (b, a)
    hit.forget(doomed)
    hit.close()
    with open(hit.database.path, "r+b") as file:
        file.write(bytes(100))  # the header
    assert "run `sync --to`" in hit.repair()["message"]
    hit.sync_to(str(place.shared))
    hit.share("team")
    settle(hit, other)
    for memory in (hit, other, place.machine("c")):
        memory.sync()
        assert [row["id"] for row in memory.list_items()["items"]] == [kept]
    assert SOUND not in place.text()


def test_a_repair_says_nothing_of_sync_for_a_text_about_its_tables(memory: Memory) -> None:
    memory.store("The schema says CREATE TABLE replica( and so on.")
    memory.close()
    with open(memory.database.path, "r+b") as file:
        file.write(bytes(100))
    assert "syncs" not in memory.repair()["message"]


def live_ids(found: dict[str, Any]) -> set[str]:
    return {version["id"] for version in found["versions"]}


@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
@pytest.mark.parametrize("replaced_again", [False, True])
def test_an_undo_beside_a_replacement_of_the_same_is_named(
    place: Place, order: str, replaced_again: bool
) -> None:
    machines = {name: place.machine(name) for name in "abc"}
    a, b, c = machines.values()
    first = a.store("The limit of an upload is 5 GB.")["id"]
    settle(a, b, c)
    second = a.store("The limit of an upload is 9 GB.", replace=first)["id"]
    settle(a, b, c)
    b.undo(first)
    last = c.store("The limit of an upload is 12 GB.", replace=second)["id"]
    if replaced_again:
        last = c.store("The limit of an upload is 15 GB.", replace=last)["id"]
    told = {}
    for name in order + order:
        for found in machines[name].sync()["look_at"]:
            told[name] = live_ids(found)
    for memory in (*machines.values(), late := place.machine("d")):
        if memory is late:
            told["d"] = live_ids(memory.sync()["look_at"][0])
        assert len(memory.review()["pairs"]) == 1
    assert all(ids == {first, last} for ids in told.values())
    assert len(told) >= 3  # whoever came first may hear of it another time
    assert texts(late) == texts(a) == texts(b) == texts(c)
    late.replace(first, last)
    settle(late, a)
    assert texts(a) == [a.get(last)["content"]]
    assert place.machine("e").sync()["look_at"] == []


def test_what_was_undone_and_replaced_by_one_person_is_not_named(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    first = a.store("The limit of an upload is 5 GB.")["id"]
    for limit in (9, 12):
        a.store(f"The limit of an upload is {limit} GB.", replace=first)
        settle(a, b)
        a.undo(first)
        settle(a, b)
    assert a.sync()["look_at"] == b.sync()["look_at"] == place.machine("c").sync()["look_at"] == []


def test_the_hidden_and_the_kept_of_a_merge_beside_a_replacement_are_named(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    one = a.store("The limit of an upload is 4 GB.")["id"]
    two = a.store("An upload may have 4 GB at most.")["id"]
    settle(a, b)
    with a.database.transaction() as connection:
        sediment.end_item(connection, two, one, "merge")
    new = b.store("An upload may have 8 GB at most.", replace=two)["id"]
    settle(a, b)
    told = [pair for memory in (a, b) for pair in memory.review()["pairs"]]
    assert [{pair["old"]["id"], pair["new"]["id"]} for pair in told] == [{one, new}] * 2


def test_a_prune_leaves_what_others_share_unless_told_and_both_sides_hear_of_it(
    place: Place,
) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("The gateway is newton.", created_at="2020-01-01")["id"]
    own = a.store("The bike is red.", scope="global", created_at="2020-01-01")["id"]
    settle(a, b)
    answer = a.prune("1y")
    assert [row["id"] for row in a.prune("1y", scope="global")["items"]] == [own]
    assert (answer["count"], answer["kept"][0]["why"]) == (0, "shared")
    assert "Other machines share 1 of these" in "\n".join(sediment_ext.upkeep.render_pruned(answer))
    settle(a, b)
    assert texts(b) == texts(a) == ["The gateway is newton."]
    assert [row["id"] for row in a.prune("1y", all_machines=True)["items"]] == [id]
    a.sync()
    told = b.sync()
    assert told["spaces"][0]["pruned"] == 1
    assert "(1 pruned)" in "\n".join(sediment_ext.sync.commands.render_synced(told))
    assert not b.sync()["spaces"][0].get("pruned")
    b.undo(id)
    settle(b, a)
    assert texts(a) == texts(b) == ["The gateway is newton."]

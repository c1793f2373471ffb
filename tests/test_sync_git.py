"""Sync through git: what it carries and drops, and what somebody else has done to a repository."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from storage import open_memory
from sync_machines import git_place, settle, sharing_by_git, texts

import sediment
import sediment_ext.sync.git
import sediment_ext.sync.run
from sediment import InvalidInput, Memory
from sediment_ext.sync.places import Unreachable


def send_a_fact(memory: Memory, remote: Path) -> None:
    """Store a fact and send it to a git remote."""
    memory.sync_to(f"git:{remote}")
    memory.share("team")
    memory.store("A fact.")
    assert memory.sync()["spaces"][0]["sent"] == 1


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
        send_a_fact(memory, remote)
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
        send_a_fact(memory, remote)
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
    "[push]\ngpgSign = true\nfollowTags = true\nrecurseSubmodules = only\n"
    "[gc]\nbigPackThreshold = 1\n[fetch]\nfsckObjects = true\n[transfer]\nfsckObjects = true",
    "[safe]\nbareRepository = explicit\n[extensions]\nobjectFormat = sha256",
    "[push]\npushOption = ci.skip\npushOption = merge_request.create\n"
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

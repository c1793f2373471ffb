"""Which project a folder is: one for all clones, one for each folder, none at home."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT, Run
from program import (
    Program,
    commit,
    files,
    first_commit,
    git,
    heed_permissions,
    one_line,
    repository,
)

import sediment
import sediment_ext.http
from sediment import InvalidInput, Memory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "memory.db"


@pytest.fixture
def here(run_pyz: Run, tmp_path: Path) -> Program:
    return Program(run_pyz, tmp_path / "project")


def config(folder: Path) -> dict[str, str]:
    return json.loads((folder / ".sediment" / "config").read_text())


def is_uuid(id: str | None) -> bool:
    return id is not None and str(uuid.UUID(id)) == id


@pytest.mark.parametrize("text", ["", "{", '{"project_id": 5}', "\0\0"])
def test_a_folder_whose_config_was_emptied_keeps_its_memories(here: Program, text: str) -> None:
    here.store("The crane is called Gundula.")
    project = here.project()
    (here.folder / ".sediment" / "config").write_text(text)
    assert here.contents() == {"The crane is called Gundula."}
    here.store("The port is 5433.")
    assert config(here.folder)["project_id"] == project
    assert len(here.contents()) == 2


def test_a_repository_takes_over_what_its_emptied_config_had(here: Program) -> None:
    here.store("The crane is called Gundula.")
    root = repository(here.folder)
    (here.folder / ".sediment" / "config").write_text("")
    assert here.contents() == {"The crane is called Gundula."}
    here.store("The port is 5433.")
    assert here.project() == root
    assert len(here.contents()) == 2


def test_an_emptied_config_that_another_database_made_is_known(here: Program) -> None:
    here.ok("--db", "other.db", "store", "Of the other database.")
    here.store("The crane is called Gundula.")
    (here.folder / ".sediment" / "config").write_text("")
    assert here.contents() == {"The crane is called Gundula."}


# Git repositories


def test_a_credential_is_no_name_of_a_project(here: Program) -> None:
    """It would stand in the file, in every export, and in what is synced."""
    given = ["--project", "ghp_" + "a1B2" * 9, "store", "Tea is at four."]
    assert "project looks like a credential" in here.error(*given)
    assert here.json("list", "--scope", "all")["items"] == []


def test_a_repository_is_its_first_commit(here: Program) -> None:
    root = repository(here.folder, commits=3)
    (here.folder / "src" / "deep").mkdir(parents=True)
    here.store("kept for the repository")
    assert here.project() == root
    assert here.at(here.folder / "src" / "deep").contents() == {"kept for the repository"}
    assert files(here.folder).isdisjoint({".sediment", "src/.sediment"})


def test_clones_and_worktrees_are_one_project(here: Program, tmp_path: Path) -> None:
    repository(here.folder, commits=2)
    git(here.folder, "worktree", "add", "-q", "--detach", str(tmp_path / "worktree"), "HEAD")
    git(tmp_path, "clone", "-q", str(here.folder), "clone")
    commit(tmp_path / "clone", "goes on")
    here.store("said once")
    for place in ("worktree", "clone"):
        assert here.at(tmp_path / place).contents() == {"said once"}


def test_a_clone_of_a_template_can_have_a_project_of_its_own(here: Program, tmp_path: Path) -> None:
    root = repository(here.folder)
    for name in ("first", "second", "third"):
        git(tmp_path, "clone", "-q", str(here.folder), name)
        git(tmp_path / name, "remote", "remove", "origin")
    first, second, third = (here.at(tmp_path / name) for name in ("first", "second", "third"))
    second.store("said in the second")
    assert "shared with" not in second.ok("stats")
    told = first.ok("stats")
    assert f"{'shared with':<17}{second.folder} (`init --new-project` separates this clone)" in told
    project = second.json("init", "--new-project", "--client", "claude")["project"]
    assert is_uuid(project)
    assert second.project() == project
    second.store("said on its own")
    commit(second.folder, "goes on")
    second.store("said later")
    first.store("said in the first")
    assert (first.project(), third.project()) == (root, root)
    git(second.folder, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"), "HEAD")
    assert here.at(tmp_path / "tree").contents() == {"said on its own", "said later"}
    assert third.contents() == {"said in the first", "said in the second"}
    assert "nothing to part" in second.error("init", "--new-project")
    second.folder.rename(moved := tmp_path / "moved")
    assert here.at(moved).contents() == {"said on its own", "said later"}
    assert here.at(moved).ok("doctor").count("problem") == 0


@pytest.mark.parametrize("other", ["--global", "--print", "--remove"])
def test_a_new_project_is_asked_for_where_it_means_something(here: Program, other: str) -> None:
    assert "nothing to part" in here.error("init", "--new-project")
    repository(here.folder)
    assert other in here.run("init", "--new-project", other).stderr


def test_git_is_asked_once(here: Program, tmp_path: Path) -> None:
    root = repository(here.folder)
    here.store("one")
    empty = tmp_path / "no programs"
    empty.mkdir()
    without_git = {"PATH": str(empty)}
    assert here.project(env=without_git) == root
    here.store("two", env=without_git)
    assert here.contents() == {"one", "two"}
    assert not (here.folder / ".sediment").exists()


def test_without_git_a_repository_is_a_folder(here: Program, tmp_path: Path) -> None:
    repository(here.folder)
    here.store("stored while git was missing", env={"PATH": str(tmp_path)})
    assert is_uuid(config(here.folder)["project_id"])
    here.store("stored with git")
    assert here.project() == first_commit(here.folder)
    assert here.contents() == {"stored while git was missing", "stored with git"}


def test_another_repository_in_the_folder_of_the_first_is_another_project(
    here: Program, tmp_path: Path
) -> None:
    """A file system gives a new folder the number of one that is gone."""
    repository(here.folder)
    here.store("of the first")
    second = repository(tmp_path / "second", day=2)
    own = here.folder / ".git"
    for one in own.iterdir():
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    for one in (tmp_path / "second" / ".git").iterdir():
        one.rename(own / one.name)
    assert (here.project(), here.contents()) == (second, set())


def test_another_repository_at_the_same_path_is_another_project(here: Program) -> None:
    repository(here.folder)
    here.store("of the old one")
    (here.folder / ".git").rename(here.folder.parent / "old")
    new = repository(here.folder, day=2)
    assert here.project() == new
    assert here.contents() == set()


def amend(folder: Path, message: str) -> str:
    """Give a repository of one commit another first commit; returns its id."""
    git(folder, "commit", "-q", "--amend", "--allow-empty", "-m", message)
    return first_commit(folder)


def drop_what_was(folder: Path) -> None:
    """Let a repository forget what no branch leads to, and pack the rest, as after a rewrite."""
    git(folder, "reflog", "expire", "--expire=now", "--all")
    git(folder, "gc", "-q", "--prune=now")


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_repository_whose_first_commit_is_amended_stays_one_project(
    here: Program, is_packed: bool
) -> None:
    root = repository(here.folder)
    here.store("said before")
    assert amend(here.folder, "better") != root
    if is_packed:
        drop_what_was(here.folder)
    here.store("said after")
    assert here.project() == root
    assert here.contents() == {"said before", "said after"}


def test_a_repository_that_was_amended_may_be_moved(here: Program, tmp_path: Path) -> None:
    root = repository(here.folder)
    here.store("goes along")
    amend(here.folder, "better")
    there = here.at(here.folder.rename(tmp_path / "moved"))
    assert there.contents() == {"goes along"}
    there.store("said there")
    assert there.project() == root
    repository(here.folder, day=2)
    assert here.contents() == set()


def test_no_history_makes_a_project_another_one(here: Program, tmp_path: Path) -> None:
    """A folder whose history is exchanged stays what it was, and so does the other."""
    other = repository(tmp_path / "other", day=2)
    there = here.at(tmp_path / "other")
    root = repository(here.folder)
    here.store("of this one")
    there.store("of the other")
    git(here.folder, "fetch", "-q", str(there.folder), "main")
    git(here.folder, "reset", "-q", "--hard", "FETCH_HEAD")
    here.store("still of this one")
    assert (here.project(), there.project()) == (root, other)
    git(tmp_path, "clone", "-q", str(there.folder), "clone")
    assert here.at(tmp_path / "clone").contents() == {"of the other"}


def test_a_submodule_is_its_own_project(here: Program, tmp_path: Path) -> None:
    library = repository(tmp_path / "library", day=2)
    app = repository(here.folder)
    git(here.folder, "submodule", "--quiet", "add", str(tmp_path / "library"), "library")
    assert (here.folder / "library" / ".git").is_file()
    assert here.at(here.folder / "library").project() == library
    assert here.project() == app


def test_an_older_history_merged_in_does_not_rename(here: Program, tmp_path: Path) -> None:
    root = repository(here.folder, day=9)
    repository(tmp_path / "library", day=2)
    git(here.folder, "fetch", "-q", str(tmp_path / "library"), "main")
    git(here.folder, "merge", "-q", "--allow-unrelated-histories", "FETCH_HEAD", "-m", "merge")
    assert here.project() == root


@pytest.mark.parametrize("main", ["main", "master", "trunk"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_branch_of_another_history_is_of_the_same_project(
    here: Program, tmp_path: Path, main: str, is_packed: bool
) -> None:
    root = repository(here.folder, day=9)
    git(here.folder, "branch", "-m", main)
    git(here.folder, "checkout", "-q", "--orphan", "gh-pages")
    commit(here.folder, "a site")
    git(here.folder, "checkout", "-q", main)
    git(tmp_path, "clone", "-q", str(here.folder), "clone")
    git(tmp_path / "clone", "checkout", "-q", "gh-pages")
    for folder in (here.folder, tmp_path / "clone") if is_packed else ():
        git(folder, "pack-refs", "--all")
    here.store("said on main")
    clone = here.at(tmp_path / "clone")
    assert (clone.project(), clone.contents()) == (root, {"said on main"})
    clone.store("said on gh-pages")
    assert here.contents() == {"said on main", "said on gh-pages"}


def test_git_variables_of_a_hook_do_not_mislead(here: Program, tmp_path: Path) -> None:
    root, other = repository(here.folder), tmp_path / "other"
    repository(other, day=2)
    here.store("from a hook", env={"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other)})
    assert here.project() == root
    assert here.contents() == {"from a hook"}


def test_a_git_file_that_leads_nowhere(here: Program) -> None:
    (here.folder / ".git").write_text("gitdir: ../gone\n")
    (here.folder / "sub").mkdir()
    here.at(here.folder / "sub").store("kept")
    assert is_uuid(config(here.folder)["project_id"])
    assert here.contents() == {"kept"}


def test_a_shallow_clone_becomes_the_project_once_it_is_whole(
    here: Program, tmp_path: Path
) -> None:
    root = repository(here.folder, commits=3)
    git(tmp_path, "clone", "-q", "--depth=1", here.folder.as_uri(), "shallow")
    shallow = here.at(tmp_path / "shallow")
    shallow.store("stored in the shallow clone")
    assert is_uuid(shallow.project())
    git(shallow.folder, "fetch", "-q", "--unshallow")
    shallow.store("stored in the whole one")
    assert shallow.project() == root
    assert here.contents() == {"stored in the shallow clone", "stored in the whole one"}


# Checkouts that mean ill

# Lines for a repository's configuration, by what they do: each names EVIL, a program that leaves
# a mark. HEAD's commit is missing, and the remote that has it is to be asked.
ASK = """[core]
    repositoryFormatVersion = 1
[extensions]
    partialClone = origin
[remote "origin"]
    promisor = true
    url = {}
"""
TRICKS = {
    "ssh": ASK.format("ssh://host/x") + "[core]\nsshCommand = EVIL",
    "proxy": ASK.format("git://host/x") + "[core]\ngitProxy = EVIL",
    "ext": ASK.format("ext::EVIL") + "[protocol]\nallow = always",
    "upload": ASK.format("FOLDER") + "uploadPack = EVIL",
    "rewritten": ASK.format("x:y")
    + '[url "ext::EVIL "]\ninsteadOf = x:\n[protocol]\nallow = always',
    "asked": ASK.format("http://host:1/x") + "[core]\naskPass = EVIL\n[credential]\nhelper = EVIL",
    "included": "[include]\npath = FOLDER/included",
    "included here": '[includeIf "gitdir:**"]\npath = FOLDER/included',
    "of a worktree": "[extensions]\nworktreeConfig = true",
    "watched": "[core]\nfsmonitor = EVIL\nuntrackedCache = true",
    "hooked": "[core]\nhooksPath = FOLDER/hooks",
    "aliased": "[alias]\nrev-list = !EVIL\nrev-parse = !EVIL\nhelp = !EVIL",
    "paged": "[core]\npager = EVIL\neditor = EVIL\n[pager]\nrev-list = true\nrev-parse = true",
    "signed": "[log]\nshowSignature = true\n[gpg]\nprogram = EVIL",
    "filtered": '[diff]\nexternal = EVIL\n[filter "x"]\nclean = EVIL\nprocess = EVIL',
    "alternates": "[core]\nalternateRefsCommand = EVIL",
}


class Snare(NamedTuple):
    """A folder that means ill, a mark that it leaves when it succeeds, and who was called."""

    folder: Path
    mark: Path
    evil: Path


@pytest.fixture
def snare(tmp_path: Path) -> Snare:
    """A repository without its only commit, in which each hook leaves a mark."""
    found = Snare(tmp_path / "snare", tmp_path / "mark", tmp_path / "evil")
    found.evil.write_text(f"#!/bin/sh\ntouch {found.mark}\nexit 1\n")
    found.evil.chmod(0o755)
    lost = repository(found.folder)
    git(found.folder, "config", "core.fsmonitor", "false")
    (found.folder / ".git" / "objects" / lost[:2] / lost[2:]).unlink()
    for name in (
        "post-checkout",
        "reference-transaction",
        "post-index-change",
        "fsmonitor-watchman",
    ):
        (found.folder / ".git" / "hooks").mkdir(exist_ok=True)
        shutil.copy(found.evil, found.folder / ".git" / "hooks" / name)
    return found


def bait(snare: Snare, lines: str, *names: str) -> None:
    """Add lines to files in the git folder."""
    lines = lines.replace("EVIL", str(snare.evil)).replace("FOLDER", str(snare.folder / ".git"))
    for name in names:
        with (snare.folder / ".git" / name).open("a") as file:
            file.write(f"\n{lines}\n")


def untouched(snare: Snare, folder: Path | None = None) -> None:
    """Ask for a folder's project, as each command does, for reading and for writing."""
    place = folder or snare.folder
    with contextlib.closing(Memory(place.parent / "memory.db", folder=place)) as memory:
        for create in (False, True):
            memory.projects.current(create)
            assert not snare.mark.exists()


@pytest.mark.parametrize("trick", TRICKS)
def test_no_checkout_starts_a_program(snare: Snare, trick: str) -> None:
    bait(snare, TRICKS["ssh"], "included", "config.worktree")
    bait(snare, TRICKS[trick], "config")
    untouched(snare)


def test_no_checkout_opens_the_network(snare: Snare) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        for scheme in ("git", "http", "ssh"):
            url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/x"
            bait(snare, ASK.format(url), "config")
        untouched(snare)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_no_git_file_leads_to_a_program(snare: Snare, tmp_path: Path) -> None:
    bait(snare, TRICKS["ssh"], "config")
    for name, text in (("one", f"gitdir: {snare.folder}/.git"), ("two", "gitdir: ../apart")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".git").write_text(f"{text}\n")
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart" / "commondir").write_text("../snare/.git\n")
    shutil.copy(snare.folder / ".git" / "HEAD", tmp_path / "apart")
    untouched(snare, tmp_path / "one")
    untouched(snare, tmp_path / "two")


def test_a_program_called_git_in_a_checkout_is_not_run(here: Program, snare: Snare) -> None:
    shutil.copy(snare.evil, snare.folder / "git")
    here.at(snare.folder).store("kept", env={"PATH": f".{os.pathsep}{os.environ['PATH']}"})
    assert not snare.mark.exists()


def test_variables_for_git_lead_nowhere(here: Program, snare: Snare) -> None:
    bait(snare, TRICKS["ssh"], "config")
    env = {"GIT_DIR": str(snare.folder / ".git"), "GIT_SSH_COMMAND": str(snare.evil)}
    here.at(snare.folder).store("kept", env=env)
    assert not snare.mark.exists()


def test_git_that_does_not_answer_is_asked_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(sediment, "_SILENT_GIT", set())

    def late(*words: str) -> None:
        asked.append(words)
        raise subprocess.TimeoutExpired("git", 0)

    repository(tmp_path / "repository")
    monkeypatch.setattr(sediment, "_git", late)
    for _ in range(2):
        with contextlib.closing(Memory(path, folder=tmp_path / "repository")) as memory:
            assert memory.projects.current() is None
            assert memory.list_items()["items"] == []
    assert len(asked) == 1


def test_an_id_is_not_written_where_a_link_leads(here: Program, tmp_path: Path) -> None:
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh" / "config").write_text("Host of somebody\n")
    (here.folder / ".sediment").symlink_to("../ssh")
    here.store("kept")
    assert (tmp_path / "ssh" / "config").read_text() == "Host of somebody\n"
    assert here.contents() == {"kept"}


# What git itself says that the first commit is, of all kinds of repositories.


def packed(folder: Path) -> Path:
    git(folder, "gc", "-q")
    return folder


def in_a_graph(folder: Path) -> Path:
    git(folder, "commit-graph", "write", "--reachable")
    return packed(folder)


def detached(folder: Path) -> Path:
    git(folder, "checkout", "-q", "--detach", "HEAD~1")
    return folder


def of_a_linked_head(folder: Path) -> Path:
    (folder / ".git" / "HEAD").unlink()
    (folder / ".git" / "HEAD").symlink_to("refs/heads/main")
    return folder


def replaced(folder: Path) -> Path:
    git(folder, "replace", "--graft", "HEAD~1")
    return folder


def grafted(folder: Path) -> Path:
    (folder / ".git" / "info" / "grafts").write_text(git(folder, "rev-parse", "HEAD~1"))
    return folder


def borrowing(folder: Path) -> Path:
    git(folder.parent, "clone", "-q", "--shared", str(folder), "borrowing")
    return folder.parent / "borrowing"


def borrowing_nearby(folder: Path) -> Path:
    alternates = borrowing(folder) / ".git" / "objects" / "info" / "alternates"
    alternates.write_text(f"../../../{folder.name}/.git/objects\n")
    return folder.parent / "borrowing"


def partial(folder: Path) -> Path:
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(folder.parent, "clone", "-q", "--filter=tree:0", folder.as_uri(), "partial")
    return folder.parent / "partial"


def worktree(folder: Path) -> Path:
    git(folder, "worktree", "add", "-q", "-b", "other", str(folder.parent / "worktree"))
    git(folder, "pack-refs", "--all")
    return folder.parent / "worktree"


def of_long_ids(folder: Path) -> Path:
    there = folder.parent / "long"
    there.mkdir()
    git(there, "init", "-q", "--object-format=sha256")
    commit(there, "first")
    commit(there, "second")
    return there


KINDS = [
    packed, in_a_graph, detached, of_a_linked_head, replaced, grafted, borrowing,
    borrowing_nearby, partial, worktree, of_long_ids,
]  # fmt: skip


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_the_first_commit_is_the_one_that_git_names(
    path: Path, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    repository(tmp_path / "repository", commits=3)
    folder = make(tmp_path / "repository")
    first = git(folder, "rev-list", "--first-parent", "--max-parents=0", "HEAD").strip()
    with contextlib.closing(Memory(path, folder=folder)) as memory:
        assert memory.projects.current() == first


# Other folders


def test_a_folder_gets_its_id_with_the_first_memory(here: Program) -> None:
    assert here.project() is None
    here.store("first")
    written = config(here.folder)
    assert written["source"] == "uuid"
    assert is_uuid(written["project_id"])
    (here.folder / "sub").mkdir()
    here.at(here.folder / "sub").store("second")
    assert here.contents() == {"first", "second"}
    assert config(here.folder) == written
    assert files(here.folder) == {"sub", ".sediment", ".sediment/config"}


def test_a_folder_that_moves_keeps_its_memories(here: Program, tmp_path: Path) -> None:
    here.store("goes along")
    here.folder.rename(tmp_path / "moved")
    assert here.at(tmp_path / "moved").contents() == {"goes along"}


def test_the_first_commit_takes_the_memories_along(here: Program) -> None:
    here.store("from before git")
    old = config(here.folder)["project_id"]
    git(here.folder, "init", "-q")
    assert here.project() == old
    commit(here.folder, "first")
    assert here.contents() == {"from before git"}
    assert config(here.folder)["project_id"] == old, "reading wrote something"
    here.store("from after")
    root = first_commit(here.folder)
    assert config(here.folder)["project_id"] == old, "what moved where is the database's"
    assert here.project() == root
    assert here.contents() == {"from before git", "from after"}
    assert here.contents("--project", old) == set()


def test_the_first_commit_takes_tokens_along(tmp_path: Path) -> None:
    (folder := tmp_path / "p").mkdir()
    with Memory(tmp_path / "memory.db", folder=folder) as memory:
        old = memory.projects.current(create=True)
        secret = memory.add_token("ci", project=old)["token"]
        git(folder, "init")
        commit(folder, "first")
        new = memory.projects.current(create=True)
        assert new != old
        assert memory.token_of(secret) == sediment_ext.http.Token("ci", project=new)
        assert memory.tokens()["tokens"][0]["project"] == new


def test_the_first_commit_takes_the_files_along(here: Program) -> None:
    (here.folder / "NOTES.md").write_text("# Kettle\n\nThe kettle is green.\n")
    here.ok("index", ".")
    here.store("from before git")
    git(here.folder, "init", "-q")
    commit(here.folder, "first")
    here.store("from after")
    (here.folder / "NOTES.md").write_text("# Kettle\n\nThe kettle is blue.\n")
    found = here.json("recall", "which colour has the kettle?", "--source", "NOTES.md")["results"]
    assert [row["content"] for row in found] == ["# Kettle\n\nThe kettle is blue."]
    assert here.json("doctor")["healthy"]


@pytest.mark.parametrize("source", ["git-root-commit", "uuid"])
@pytest.mark.parametrize("in_git", [True, False])
def test_no_checkout_takes_over_a_project(
    here: Program, tmp_path: Path, source: str, in_git: bool
) -> None:
    root = repository(here.folder)
    here.store("of the victim")
    snare = tmp_path / "snare"
    repository(snare, day=2) if in_git else snare.mkdir()
    (snare / ".sediment").mkdir()
    for id in ("attacker", root):
        names = {"project_id": id, "source": source, "migrated_from": root}
        (snare / ".sediment" / "config").write_text(json.dumps(names))
        here.at(snare).store(f"in the checkout of {id}")
    assert here.project() == root
    assert "of the victim" in here.contents()


def test_what_is_named_and_not_ours_stays_when_a_commit_comes(
    here: Program, tmp_path: Path
) -> None:
    here.store("of the victim")
    copy = tmp_path / "copy"
    shutil.copytree(here.folder, copy)
    here.at(copy).store("in the copy")
    repository(copy, day=2)
    here.at(copy).store("after its first commit")
    assert "of the victim" in here.contents()


def claim(folder: Path, id: str, **more: str) -> None:
    """Let a folder's config name a project."""
    (folder / ".sediment").mkdir(parents=True)
    (folder / ".sediment" / "config").write_text(json.dumps({"project_id": id, **more}))


@pytest.mark.parametrize("source", ["git-root-commit", "uuid", "none"])
@pytest.mark.parametrize("kind", ["folder", "clone", "shallow clone", "named by hand"])
def test_a_config_makes_no_folder_another_project(
    here: Program, tmp_path: Path, kind: str, source: str
) -> None:
    root = "team" if kind == "named by hand" else repository(here.folder)
    here.store("of the victim", "--project", root)
    snare = tmp_path / "snare"
    claim(snare, root, **({} if source == "none" else {"source": source}))
    if "clone" in kind:
        repository(snare, day=2)
        git(snare, "add", "-f", ".sediment")
        commit(snare, "with a config")
        depth = ["--depth=1"] if kind == "shallow clone" else []
        git(tmp_path, "clone", "-q", *depth, snare.as_uri(), "taken")
        snare = tmp_path / "taken"
    for when in ("before", "after"):
        assert here.at(snare).contents("--scope", "project") == (
            set() if when == "before" else {"in the snare"}
        )
        here.at(snare).store("in the snare")
    assert here.at(snare).project() != root
    assert here.contents("--project", root) == {"of the victim"}


def test_a_copy_of_a_project_is_a_project_of_its_own(here: Program, tmp_path: Path) -> None:
    here.store("of the first")
    shutil.copytree(here.folder, tmp_path / "copy")
    copy = here.at(tmp_path / "copy")
    assert copy.contents() == set()
    copy.store("of the copy")
    copy.folder.rename(tmp_path / "moved")
    assert here.at(tmp_path / "moved").contents() == {"of the copy"}
    assert here.contents() == {"of the first"}


def test_a_folder_that_was_moved_and_then_copied(here: Program, tmp_path: Path) -> None:
    here.store("goes along")
    here.folder.rename(tmp_path / "moved")
    moved = here.at(tmp_path / "moved")
    moved.store("stored after the move")
    shutil.copytree(moved.folder, tmp_path / "copy")
    assert here.at(tmp_path / "copy").contents() == set()
    assert moved.contents() == {"goes along", "stored after the move"}


def test_an_id_comes_along_to_another_database(here: Program, tmp_path: Path) -> None:
    here.store("said elsewhere")
    moved = shutil.copytree(here.folder, tmp_path / "elsewhere" / "project")
    there = here.at(moved)
    here.ok("export", str(tmp_path / "all.jsonl"))
    env = {"SEDIMENT_DB": str(tmp_path / "new.db")}
    there.ok("import", str(tmp_path / "all.jsonl"), env=env)
    assert there.contents(env=env) == {"said elsewhere"}
    there.store("said there", env=env)
    assert there.contents(env=env) == {"said elsewhere", "said there"}


def test_a_folder_by_two_names_is_one_project(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one := tmp_path / "one").mkdir()
    with contextlib.closing(Memory(path, folder=one)) as memory:
        id = memory.projects.current(create=True)
    shutil.copytree(one, tmp_path / "two")  # as if it were mounted there
    monkeypatch.setattr(os.path, "samefile", lambda *_: True)
    with contextlib.closing(Memory(path, folder=tmp_path / "two")) as memory:
        assert memory.projects.current() == id


def test_a_clone_of_a_folder_that_was_no_repository_shares_its_memories(
    here: Program, tmp_path: Path
) -> None:
    here.store("from before git")
    repository(here.folder)
    git(here.folder, "add", "-f", ".sediment")
    commit(here.folder, "with its config")
    git(tmp_path, "clone", "-q", str(here.folder), "clone")
    git(here.folder, "worktree", "add", "-q", "--detach", str(tmp_path / "worktree"), "HEAD")
    for name in ("clone", "worktree"):
        assert here.at(tmp_path / name).contents() == {"from before git"}
    here.store("from after")
    for name in ("clone", "worktree"):
        assert here.at(tmp_path / name).contents() == {"from before git", "from after"}


def test_a_repository_without_a_commit_is_left_as_it_is(here: Program) -> None:
    git(here.folder, "init", "-q")
    before = files(here.folder)
    here.store("before the first commit")
    assert files(here.folder) == before
    assert is_uuid(here.project())
    assert here.contents() == {"before the first commit"}
    commit(here.folder, "first")
    assert here.contents() == {"before the first commit"}
    here.store("after it")
    assert here.project() == first_commit(here.folder)
    assert here.contents() == {"before the first commit", "after it"}
    assert not (here.folder / ".sediment").exists()


def test_reading_creates_nothing(here: Program, tmp_path: Path) -> None:
    repository(tmp_path / "repository")
    for folder in (here.folder, tmp_path / "repository"):
        place, before = here.at(folder), files(folder)
        place.ok("list")
        place.ok("recall", "anything")
        place.ok("stats")
        place.ok("export")
        place.error("get", "nothing")
        place.error("forget", "nothing")
        assert files(folder) == before
    assert not (tmp_path / ".local").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        "[]",
        "[" * 100_000,
        '{"project_id": 7, "source": "git-root-commit"}',
        '{"project_id": "", "source": "uuid"}',
        r'{"project_id": "\ud800", "source": "git-root-commit"}',
        '{"project_id": "a\\u0000b"}',
    ],
    ids=["empty", "text", "list", "deep", "number", "no id", "surrogate", "NUL"],
)
def test_a_config_that_says_nothing_is_replaced(here: Program, text: str) -> None:
    (here.folder / ".sediment").mkdir()
    (here.folder / ".sediment" / "config").write_text(text)
    assert here.project() is None
    here.store("kept")
    assert is_uuid(config(here.folder)["project_id"])
    assert here.contents() == {"kept"}


def test_a_config_that_cannot_be_read(here: Program) -> None:
    (here.folder / ".sediment" / "config").mkdir(parents=True)
    here.store("kept")
    assert is_uuid(here.project())
    assert here.contents() == {"kept"}


def test_a_read_only_folder_has_its_id_in_the_database(here: Program) -> None:
    here.folder.chmod(0o500)
    here.store("one", preexec_fn=heed_permissions)
    here.store("two", preexec_fn=heed_permissions)
    assert files(here.folder) == set()
    assert is_uuid(here.project())
    assert here.contents() == {"one", "two"}
    here.folder.chmod(0o700)


def test_a_name_that_is_not_unicode(here: Program, tmp_path: Path) -> None:
    name = b"caf\xe9" if sys.platform == "linux" else "café".encode()  # elsewhere none exist
    there = here.at(tmp_path / os.fsdecode(name))
    there.store("kept")
    assert there.contents() == {"kept"}
    there.folder.joinpath(".sediment", "config").unlink()
    there.folder.joinpath(".sediment").rmdir()
    there.folder.joinpath(".sediment").write_text("no folder")
    there.store("noted in the database")
    assert there.contents() == {"noted in the database"}
    there.ok("init")
    assert json.loads(there.ok("init", "--json"))["root"].startswith(str(tmp_path))


RACE = r"""
import multiprocessing, os, pathlib, sys
from sediment import Memory

def resolve(barrier, number, folder):
    for turn in range(15):
        memory = Memory(folder / "memory.db", folder=folder / str(turn))
        memory.stats()
        barrier.wait(60)
        os.write(1, f"{turn} {memory.projects.current(create=True)}\n".encode())

folder = pathlib.Path(sys.argv[1])
for turn in range(15):
    (folder / str(turn)).mkdir()
barrier = multiprocessing.Barrier(4)
several = [multiprocessing.Process(target=resolve, args=(barrier, n, folder)) for n in range(4)]
for process in several:
    process.start()
for process in several:
    process.join()
"""


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 60, done.stderr
    assert len(set(lines)) == 15, "several ids for one folder"


# No project


def test_home_is_no_project(here: Program, tmp_path: Path) -> None:
    home = here.at(tmp_path)
    assert "global scope (no project here" in home.ok("store", "stored at home")
    assert home.project() is None
    assert here.contents("--scope", "global") == {"stored at home"}
    assert not (tmp_path / ".sediment").exists()


def test_home_is_no_project_though_it_is_a_repository(here: Program, tmp_path: Path) -> None:
    repository(tmp_path)
    home = here.at(tmp_path)
    assert home.json("store", "dotfiles")["scope"] == "global"
    here.store("a folder at home is one")
    assert is_uuid(here.project())


def test_the_top_of_the_disk_is_no_project(here: Program) -> None:
    top = here.at(Path(here.folder.anchor))
    assert top.json("store", "stored at the top")["scope"] == "global"
    assert top.project() is None


def test_a_folder_that_was_deleted(here: Program, tmp_path: Path, pyz: Path) -> None:
    gone = tmp_path / "gone"
    for words in (["store", "from nowhere"], ["list", "--scope", "global"]):
        gone.mkdir()
        done = here.run(*words, cwd=gone, preexec_fn=gone.rmdir)
        assert (done.returncode, done.stderr) == (0, "")
        assert "global" in done.stdout
        assert ("no project here: the working folder is gone" in done.stdout) == ("store" in words)
    gone.mkdir()
    done = here.run("init", cwd=gone, preexec_fn=gone.rmdir)
    assert done.returncode == 1
    one_line(done.stderr)


def test_what_needs_a_working_folder_says_that_it_is_gone(here: Program, tmp_path: Path) -> None:
    here.store("something", "--scope", "global")
    for words in (
        *("note x", "index .", "index docs", "store x --into MEMORY.md", "compact", "watch ."),
        *("export all.jsonl", "backup copy.db", "index . --remove", "--db new.db store x"),
    ):
        (gone := tmp_path / "gone").mkdir()
        told = here.error(*words.split(), cwd=gone, preexec_fn=gone.rmdir)
        assert told == "Error: the working folder is gone: cd to one that is there", words


# Named projects


def test_a_project_by_id(here: Program) -> None:
    here.store("of the named one", "--project", "team")
    assert here.contents("--project", "team") == {"of the named one"}
    assert here.contents(env={"SEDIMENT_PROJECT": "team"}) == {"of the named one"}
    assert here.contents("--project", "other", env={"SEDIMENT_PROJECT": "team"}) == set()
    assert here.contents() == set()
    assert files(here.folder) == set()


@pytest.mark.parametrize("name", ["${workspaceFolder}", "$PWD", "%CD%", "a/$NAME"])
def test_a_name_that_the_client_has_not_filled_in_is_refused(path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="has not filled that in"):
        Memory(path, project=name)


def test_a_new_project_that_a_folder_has_for_its_name_is_remarked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / "shop").mkdir(parents=True)
    monkeypatch.chdir(path.parent)
    with Memory(path, project="shop") as memory:
        assert "the folder is ./shop" in memory.store("The till is in the hall.")["message"]
        assert "./shop" not in memory.store("The door is green.")["message"]
    with Memory(path, project="price$5") as memory:
        assert "folder" not in memory.store("The door is red.")["message"]


def test_a_project_by_folder(here: Program, tmp_path: Path) -> None:
    root = repository(tmp_path / "repository")
    (tmp_path / "repository" / "sub").mkdir()
    names = (str(tmp_path / "repository"), "../repository/sub", "~/repository", "~/repository/")
    assert {here.project("--project", name) for name in names} == {root}
    assert here.project(env={"SEDIMENT_PROJECT": "../repository"}) == root
    assert here.at(tmp_path / "repository").project("--project", ".") == root
    assert here.project("--project", "~") is None


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "~/none", "~nobody-of-this-name/x"])
def test_a_folder_that_does_not_exist(here: Program, name: str) -> None:
    assert name in here.error("--project", name, "store", "text")
    assert files(here.folder) == set()


@pytest.mark.parametrize("name", ["x" * 256, "a\nb", "\x1b[31m"])
def test_an_id_that_is_none(here: Program, name: str) -> None:
    assert re.search("1 to 255 printable characters", here.error("--project", name, "list"))


def test_the_nearest_mark_counts(here: Program) -> None:
    outer = repository(here.folder)
    inner = here.folder / "inner"
    (inner / ".sediment").mkdir(parents=True)
    (inner / "sub").mkdir()
    here.at(inner / "sub").store("of the inner one")
    assert here.at(inner).contents() == {"of the inner one"}
    assert here.project() == outer
    shutil.rmtree(inner / ".sediment")
    assert here.at(inner).project() == outer

"""Sync through a git remote: a folder that is fetched and pushed."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import sediment as core
from sediment_ext.sync import folder, places


class Git(folder.Folder):
    """The same files in a git remote. Each machine has one commit without a parent under
    refs/sediment/, so that no history keeps what is forgotten. A bare repository beside the
    database caches it."""

    interval = 60

    def __init__(self, place: str, me: places.Machine, repository: Path) -> None:
        super().__init__(place, me)
        self._url, self._repository = place.removeprefix("git:"), repository
        self._commits: dict[str, str] = {}  # of the machines, as they were fetched or written last
        self._trees: dict[str, dict[str, str]] = {}  # by machine, what `_tree` returns

    def _git(self, *words: str, input: bytes = b"") -> str:
        command = ["git", *_GIT_PLAIN, "--git-dir", str(self._repository), *words]
        env = core.environment(_GIT_ELSEWHERE) | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        try:
            done = subprocess.run(command, input=input, capture_output=True, env=env, timeout=600)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise places.Unreachable(f"git cannot be run ({error})") from None
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [""]
            refused = [line.strip() for line in lines if line.startswith(" ! ")]
            raise core.InvalidInput(f"git says: {(refused or lines)[0]}")
        return done.stdout.decode("utf-8", "replace")

    def _exchange(self, command: str, *words: str, tries: int = places.GIT_TRIES) -> str:
        """Fetch or push; again where the git of a run that was killed is still at it."""
        try:
            return self._git(command, "--quiet", *words)
        except core.InvalidInput as error:
            if "stale info" in str(error):
                raise places.PushConflict(
                    f"another `sync` of this memory writes to {self._url}"
                ) from None
            if not _GIT_BUSY.search(str(error)) or tries == 1:
                if places.UNTRUSTED.search(str(error)):
                    raise places.Refused(
                        places.untrusted_reason(self._url, str(error), _GIT_CA)
                    ) from None
                kind = places.Refused if _GIT_REFUSED.search(str(error)) else places.Unreachable
                raise kind(f"{self._url} cannot be reached ({error})") from None
        return self._exchange(command, *words, tries=tries - 1)

    def begin(self) -> dict[str, Any]:
        """Fetch what is there."""
        check_git(self.name)
        if not os.path.lexists(self._repository):
            self._make()
        self._check_own()
        if not self._is_whole():
            self.remove()
            self._make()
        self._trees.clear()
        self._exchange("fetch", "--prune", "--", self._url, "+refs/sediment/*:refs/sediment/*")
        listed = self._git("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", _REFS)
        found = (line.split(" ") for line in listed.split("\n") if line)
        # A cursor knows a machine's file by MACHINE/FILE.
        self._commits = {
            name: commit for name, commit in found if name.isprintable() and "/" not in name
        }
        return {}

    def _make(self) -> None:
        """Make the repository, of the kind of hash that the remote has, once something is there."""
        there = self._exchange("ls-remote", "--", self._url, "HEAD", f"{_REFS}/*")
        kinds = {40: ["--object-format=sha1"], 64: ["--object-format=sha256"]}
        kind = kinds.get(len(there.partition("\t")[0]), [])
        self._git("init", "--bare", "--quiet", "--template=", *kind)
        core.make_private(self._repository, 0o700)

    def _is_whole(self) -> bool:
        """Whether the repository has all that was fetched, and no lock of a run that was killed."""
        commits = "--format=%(if:equals=commit)%(objecttype)%(then)%(objectname)%(end)"
        try:
            found = self._git("for-each-ref", commits, _REFS).split()
            is_damaged = any(" BAD\t" in self._git("ls-tree", "-l", commit) for commit in found)
            locks = [lock.stat().st_mtime for lock in self._repository.rglob("*.lock")]
        except (core.InvalidInput, OSError):
            return False
        is_left = any(abs(time.time() - made) > core.LEASE / 2 for made in locks)
        return not is_damaged and not is_left

    def _check_own(self) -> None:
        """InvalidInput unless git itself wrote the config: one from a checkout may run programs."""
        config = core.plain_text(self._repository / "config").split("\n")
        elsewhere = os.path.islink(self._repository)
        elsewhere = elsewhere or os.path.exists(self._repository / "commondir")
        if elsewhere or not any(config) or not all(map(_GIT_CONFIG.fullmatch, config)):
            why = "was not made by sync: move it away, and run `sync` again"
            raise core.InvalidInput(f"{self._repository} {why}")

    def _machines(self) -> list[str]:
        return [*self._commits]

    def _tree(self, machine: str) -> dict[str, str]:
        """The files of a machine by name, as SIZE:BLOB, without those too large or lost here."""
        if machine not in self._trees:
            commit = self._commits.get(machine)
            try:
                listed = self._git("ls-tree", "-l", commit) if commit else ""
            except core.InvalidInput as error:
                listed = ""
                self.remarks.append(f"{machine} was not read: {error}")
            rows = [row.partition("\t") for row in listed.splitlines() if " blob " in row]
            found = ((name, *facts.split()[2:4]) for facts, _, name in rows)
            self._trees[machine] = {
                name: f"{size}:{blob}"
                for name, blob, size in found
                if size.isdecimal() and int(size) <= places.SYNC_FILE_MAX
            }
        return self._trees[machine]

    def _files(self, machine: str) -> dict[str, str]:
        tree = self._tree(machine).items()
        return {name: tag for name, tag in tree if name.endswith(".jsonl")}

    def _is_other(self, known: str, tag: str) -> bool:
        return known not in (tag, tag.partition(":")[0] + ":")  # as `read_anew` leaves it

    def _text(self, machine: str, name: str) -> str:
        blob = self._tree(machine).get(name, "").partition(":")[2]
        return self._git("cat-file", "blob", blob) if blob else ""

    def _has_left(self, machine: str) -> bool:
        return "machine.json" not in self._tree(machine)

    def _how_to_delete(self, machine: str) -> str:
        return f"run `git push {shlex.quote(self._url)} --delete {_REFS}/{machine}`"

    def _write(self, texts: dict[str, str]) -> None:
        machine = self.me.name
        ref, before = f"{_REFS}/{machine}", self._commits.get(machine, "")
        now = int(time.time())
        draft = f"refs/draft/{machine}"  # where no fetch beside this one looks
        lines = [f"commit {draft}\nmark :1\ncommitter sediment <> {now} +0000\ndata 0\n".encode()]
        for name, tag in self._tree(machine).items():
            if name not in texts:
                lines.append(f"M 100644 {tag.partition(':')[2]} {name}\n".encode())
        for name, text in texts.items():
            data = text.encode()
            lines += [f"M 100644 inline {name}\ndata {len(data)}\n".encode(), data] if data else []
        self._git("update-ref", "-d", draft)
        mark = self._git("fast-import", "--quiet", input=b"".join([*lines, b"\nget-mark :1\n"]))
        self._commits[machine] = commit = mark.strip()
        self._trees.pop(machine, None)
        # In the place of what was fetched and nothing else: another run may have sent more.
        unchanged = f"--force-with-lease={ref}:{before}"
        self._exchange("push", unchanged, "--", self._url, f"{commit}:{ref}")
        updates = f"update {ref} {commit}\ndelete {draft}\n".encode()
        self._git("update-ref", "--stdin", input=updates)

    def remove(self) -> None:
        """Delete the repository beside the database."""
        with contextlib.suppress(core.InvalidInput):
            self._check_own()
            shutil.rmtree(self._repository, ignore_errors=True)

    def finish(self, t: int, cursor: dict[str, Any]) -> dict[str, Any]:
        """As of a folder; what is forgotten goes from the repository here, too."""
        patch = super().finish(t, cursor)
        if self._forgot:
            self._git("gc", "--quiet", "--prune=now")
            self._forgot = False
        return patch


_REFS = "refs/sediment"
# Variables that would have git work in another repository, or in part of this one.
_GIT_ELSEWHERE = (
    *("GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"),
    *("GIT_SHALLOW_FILE", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT"),
)
_GIT_CA = "`git config --global http.sslCAInfo FILE`"
_GIT_BUSY = core.LazyPattern("lock ref|update (?:local )?ref")
_GIT_REFUSED = core.LazyPattern("[Pp]ermission|[Aa]uthentication|[Dd]enied|could not read [UP]")
# Whatever a person has set for other work, git is to run no hook here, make no other repository
# than `_check_own` knows, keep nothing that is forgotten and ask nothing of the remote.
_GIT_SET = (
    *(f"core.hooksPath={os.devnull}", "protocol.ext.allow=never"),
    *("core.sharedRepository=umask", "init.defaultBranch=main"),
    *("core.logAllRefUpdates=false", "gc.bigPackThreshold=0"),
    *("push.gpgSign=false", "push.recurseSubmodules=no", "push.pushOption="),
)
_GIT_PLAIN = tuple(word for pair in _GIT_SET for word in ("-c", pair))
_GIT_CONFIG = core.LazyPattern(
    r"\[(?:core|extensions)\]|\s*(?:repositoryformatversion|filemode|bare|symlinks|ignorecase"
    r"|precomposeunicode|objectformat|refstorage) = \w+|"
)


def check_git(place: str) -> None:
    """InvalidInput for a place that is no address and no absolute path, or an option to git."""
    url = place.removeprefix("git:")
    if url.startswith("-") or not (":" in url.partition("/")[0] or os.path.isabs(url)):
        raise core.InvalidInput(
            f"{place} names no repository: write git: and an address or an absolute path"
        )

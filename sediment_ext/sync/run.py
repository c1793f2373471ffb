"""Sync this file with a place: receive, apply, send.

What travels are the states of memories. Triggers (assets/schema/sync.sql) note what is changed
here; what came is written by the functions that write everything else. A stamp is the time of a
hybrid clock (milliseconds << 16, and a count) and a machine: a decision of somebody who has seen
another one has the later stamp.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import platform
import re
import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw

import sediment as core
from sediment_ext.sync import folder, hub_search, machines, merge, places
from sediment_ext.sync import git as git_place
from sediment_ext.sync import hub as hub_place

# A run, and what people set


def open_place(
    database: core.Database, encoder: core.Encoder, place: str
) -> folder.Folder | hub_place.Hub:
    """The place where a file syncs, for this machine."""
    import getpass

    if database.value("SELECT mark FROM clock") != machines.file_mark(database.path):
        with database.transaction() as connection:
            machines.name_machine(connection, database.path)
    try:
        person = getpass.getuser()
    except (ImportError, OSError, KeyError):  # neither a variable nor a list of users has it
        person = ""
    me = places.Machine(database.value("SELECT machine FROM clock"), platform.node(), person)
    if _HUB.match(place):
        return hub_place.Hub(place, me, database, encoder)
    if place.startswith("git:"):
        return git_place.Git(place, me, Path(f"{database.path}.git"))
    return folder.Folder(place, me)


_HUB = core.LazyPattern("postgres(ql)?://")


def take_lease(lease: core.Lease, wait: float = core.LEASE + 1) -> None:
    """Take or renew the lease of sync within so many seconds. Raises DatabaseError."""
    end = time.monotonic() + wait
    while not lease.take():
        if time.monotonic() > end:
            raise core.DatabaseError("another process is syncing this memory: try again later")
        time.sleep(places.SYNC_POLL)


class Exchange(core.NamedTuple):
    """One run of sync, and its results so far."""

    lease: core.Lease
    spaces: dict[str, str]  # those that are shared, each with its project here
    counts: dict[str, Counter[str]]  # by space, of what was received and sent
    rivals: dict[str, set[str]]  # by id, the items that machines put in one's place, apart
    erased: list[str]  # texts that others forgot
    pruned: dict[str, set[str]]  # by space, the ids that were live here and others pruned
    look_at: dict[str, list[str]]  # the rivals that are live


class Sync:
    """What a person asks of the place where a file syncs; NotFound where it syncs nowhere."""

    def __init__(self, projects: core.Projects, encoder: core.Encoder) -> None:
        self.projects, self.database, self.encoder = projects, projects.database, encoder
        self.place = open_place(self.database, encoder, self._where())
        self.damaged: list[str] = []  # ids of texts that do not fit their hashes

    def _where(self) -> str:
        """The name of the place where this file syncs now."""
        place = core.is_synced(self.database) and self.database.value("SELECT place FROM clock")
        if not place:
            raise core.NotFound("this memory does not sync yet: `sync --to PLACE` sets where")
        return place

    def _cursor(self) -> dict[str, Any]:
        """How far the place was read and written, in its own terms."""
        return json.loads(self.database.value("SELECT cursor FROM clock"))

    def _spaces(self) -> dict[str, str]:
        return dict(self.database.rows("SELECT space, project FROM spaces ORDER BY space"))

    def run(self, again: bool = False) -> dict[str, Any]:
        """Receive what is new there, send what is new here, or all of it again."""
        if again:
            with self.database.transaction() as connection:
                _date_now(connection)
                send_again(connection)
        with core.Lease(self.database, "syncing") as lease:
            take_lease(lease)
            if (where := self._where()) != self.place.name:  # another one by now
                self.place = open_place(self.database, self.encoder, where)
            spaces = self._spaces()
            counts = {space: Counter(sent=0, received=0) for space in spaces}
            exchange = Exchange(lease, spaces, counts, {}, [], {}, {})
            with lease.renewed():
                facts = self._both_ways(exchange)
        core.wipe(self.database, exchange.erased)
        rows = [row | counts[row["space"]] for row in self._space_rows(spaces)]
        look_at = list(filter(None, itertools.starmap(self._rivals_row, exchange.look_at.items())))
        return facts | {"spaces": rows, "look_at": look_at, "remarks": self.place.remarks}

    def _both_ways(self, exchange: Exchange, tries: int = places.GIT_TRIES) -> dict[str, Any]:
        """Receive and send; once more where another run of this machine has sent meanwhile."""
        _refuse_future(self.database)
        try:
            with self._reach() as facts:
                self._note_machines()
                self._receive(exchange)
                self._send_new(exchange)
                if self.place.is_incomplete:  # seen when it was written
                    self._send_lost()
                t = self.database.value("SELECT t FROM clock")
                self._note_cursor(self.place.finish(t, self._cursor()))
                self._on_damaged()
                self.place.remarks += self._on_unshared()
                return facts
        except places.PushConflict:
            if tries == 1:
                raise
        return self._both_ways(exchange, tries - 1)

    def _receive(self, exchange: Exchange) -> None:
        for space, states in self._arrivals(exchange):
            if space in exchange.spaces:
                self._apply(exchange, space, states)
        exchange.look_at.update(merge.queue_rivals(self.database, exchange.rivals))
        for space, ids in exchange.pruned.items():  # but for what was brought back
            pruned = self._with(f"ended_by = '{core.PRUNED}'", ids)
            exchange.counts[space]["pruned"] = len(pruned)

    def _apply(self, exchange: Exchange, space: str, states: list[merge.State]) -> None:
        """Join the states that came of a space."""
        take_lease(exchange.lease, 0)
        gone = [state["id"] for state in states if state["gone"]]
        exchange.erased.extend(core.texts_of(self.database.reader(), gone))
        ended = [one["id"] for one in states if one["ending"] and one["ending"][2] == core.PRUNED]
        live = self._with("ended_at IS NULL", ended)
        exchange.pruned.setdefault(space, set()).update(live)
        project = exchange.spaces[space]
        counts, rivals = merge.receive(self.database, self.encoder, project, states)
        exchange.counts[space].update(counts)
        for id, ids in rivals.items():
            exchange.rivals.setdefault(id, set()).update(ids)

    def _with(self, condition: str, ids: Iterable[str]) -> list[str]:
        """Those of these memories that fulfil a condition."""
        sql = f"SELECT id FROM items WHERE {condition} AND id IN (SELECT value FROM json_each(?))"
        return [id for (id,) in self.database.rows(sql, core.to_json([*ids]))]

    def _send_new(self, exchange: Exchange) -> None:
        for space, project in exchange.spaces.items():
            counts = exchange.counts[space]
            counts.pop("held_back", None)
            for states, held in self._departures(project):
                for state in states:  # of its ends the latest alone goes on from here
                    state["rivals"] = merge.rivals_of(sorted(exchange.rivals.get(state["id"], ())))
                take_lease(exchange.lease, 0)
                if states and not self._send(space, states):
                    break
                counts.update(sent=len(states), held_back=held)

    def _on_damaged(self) -> None:
        """Name damaged texts that were not sent, and have the next run look for sound copies."""
        if not self.damaged:
            return
        names = core.some_of(sorted(set(self.damaged)), core.REFUSED_SHOWN)
        remark = f"not sent, because the text is damaged here: {names}; run `sync` again to get"
        self.place.remarks.append(f"{remark} it from {self.place.name}, or `doctor --repair`")
        self.damaged.clear()
        with self.database.transaction() as connection:
            machines.read_anew(connection)

    def _send_lost(self) -> None:
        """Have all sent again to a place that was restored from a backup, or lost something."""
        with self.database.transaction() as connection:
            send_again(connection)
        self.place.is_incomplete = False
        remark = f"{self.place.name} {_HAS_LOST}: everything is sent again"
        self.place.remarks += [remark] if remark not in self.place.remarks else []

    def recall(
        self,
        view: core.View,
        query: str,
        limit: int,
        min_score: float | None,
        anyway: bool,
        explain: bool,
    ) -> dict[str, Any]:
        """What `Memory.recall_hub` returns. This project's spaces, and what is global, go first."""
        if not isinstance(self.place, hub_place.Hub):
            raise core.InvalidInput(
                f"{self.place.name} is no hub: `sync --to postgresql://…` names one"
            )
        core.check_text(query, "query", core.QUERY_MAX)
        if min_score is not None:
            min_score = core.check_share(min_score, "min_score")
        profile, limit = core.PROFILES["default"], core.check_limit(limit)
        request = core.Request(query, limit, profile, depth=max(limit, core.CANDIDATES))
        search = hub_search.HubSearch(self.place, view, self._spaces())
        return search.answer(request, min_score, anyway, explain)

    def follow(self, stop: threading.Event | None = None) -> Iterator[dict[str, Any]]:
        """Sync whenever something has changed, until `stop` is set; yields what `run` returns."""
        due = 0.0
        changed = "SELECT 1 FROM replica JOIN spaces USING(project) WHERE number > ? LIMIT 1"
        number = -1
        while not (stop and stop.is_set()):
            if time.monotonic() > due or self.database.value(changed, number):
                number = self.database.value("SELECT number FROM clock")
                self.place.remarks = []
                try:
                    yield self.run()
                except core.SedimentError as error:  # another time, perhaps
                    spaces = self._space_rows(self._spaces())
                    yield {"place": self.place.name, "spaces": spaces, "remarks": [str(error)]}
                due = time.monotonic() + self.place.interval
            try:
                due = 0.0 if self.place.wait(places.SYNC_POLL) else due
            except core.SedimentError:
                time.sleep(places.SYNC_POLL)

    @contextlib.contextmanager
    def _reach(self) -> Iterator[dict[str, Any]]:
        """Reach the place. What goes wrong with it is raised in one line, with how much waits."""
        try:
            yield {"place": self.place.name, **self.place.begin()}
        except places.PushConflict:
            raise
        except (OSError, places.Unreachable) as error:
            why = folder.reason_of(error)
            if isinstance(error, OSError):
                why = f"{self.place.name} cannot be used ({why})"
            waiting = _waiting_phrase(self.database.value(_UNSENT))
            lasts = (
                isinstance(error, places.Refused)
                or getattr(error, "errno", None) in _LASTING_ERRORS
            )
            raise (places.Refused if lasts else places.Unreachable)(
                f"{why}; {waiting} here"
            ) from None

    def _arrivals(self, exchange: Exchange) -> Iterator[tuple[str, list[merge.State]]]:
        """Batches of what came of a space; the cursor follows once they are written."""
        came: list[tuple[str, merge.State]] = []
        patch: dict[str, Any] = {}
        pages = self.place.pull(self._cursor(), exchange.spaces)
        for states, more in itertools.chain(pages, [([], None)]):
            came += states
            patch |= more or {}
            if len(came) >= places.SYNC_ROUND or more is None:
                came.sort(key=lambda pair: pair[0])
                for space, found in itertools.groupby(came, key=lambda pair: pair[0]):
                    for batch in core.batches((state for _, state in found), places.SYNC_BATCH):
                        yield space, batch
                if self.place.is_incomplete:  # first: who is killed in between sees it no more
                    self._send_lost()
                self._note_cursor(patch, exchange.spaces)
                came, patch = [], {}

    def _note_cursor(self, patch: dict[str, Any], spaces: dict[str, str] | None = None) -> None:
        """Note how far the place was read; not if more than `spaces` are shared by now."""
        if patch:
            with self.database.transaction() as connection:
                now = core.fetch(connection, "SELECT space FROM spaces")
                if spaces is None or all(space in spaces for (space,) in now):
                    connection.execute(_NOTE_CURSOR, (core.to_json(patch),))

    def _departures(self, project: str) -> Iterator[tuple[list[merge.State], int]]:
        """Pages of changes to send, and how many of each are held back. Damaged texts wait."""
        sql = (
            "SELECT * FROM states WHERE project = ? AND number IS NOT NULL"
            " AND (number, id) > (?, ?) ORDER BY number, id LIMIT ?"
        )
        last: tuple[int, str] = (0, "")
        while found := merge.states_of(
            self.database.reader(), sql, project, *last, self.place.page
        ):
            merge.show_own(self.database, found)
            damaged = merge.put_damaged_back(found)
            self.damaged.extend(damaged)
            held = {id for id, state in found.items() if merge.held_back(state)}
            left = held | damaged | self._without_successor(found)
            states = [state for id, state in found.items() if id not in left]
            yield states, len(held - damaged)
            last = max((state["number"], id) for id, state in found.items())

    def _without_successor(self, found: dict[str, merge.State]) -> set[str]:
        """Those that ended behind an item that is not sent: others would see neither."""
        behind = {id: state["ending"][4] for id, state in found.items() if state["ending"]}
        successors = json.dumps([*behind.values()])
        known = merge.states_of(self.database.reader(), f"{merge.AMONG} here", successors)
        stay = {id for id, state in known.items() if not state["shared"] or merge.held_back(state)}
        return {id for id, successor in behind.items() if successor in stay}

    def _on_unshared(self) -> list[str]:
        """A remark on replacements that wait because the newer memory is not shared."""
        if not (rows := self.database.rows(_BEHIND_UNSHARED)):
            return []
        what = " and ".join(f"project {name}" if name else "global memories" for name, _ in rows)
        count = core.number_of(sum(number for _, number in rows), "replacement")
        why = f"not sent, because the newer memory is not shared: {count}. Others keep the older"
        return [f"{why} one until you share {what}"]

    def _send(self, space: str, states: list[merge.State]) -> bool:
        """Send states; False where one may not write to the space."""
        try:
            patch = self.place.push(space, states)
        except core.Forbidden as error:
            if self._own_waits(states[0]["in"]):
                who = f"whoever looks after the hub lets you (`hub add PERSON {space}`)"
                self.place.remarks.append(f"{error}: changes wait here until {who}")
            return False
        with self.database.transaction() as connection:
            connection.executemany(
                "UPDATE replica SET number = NULL WHERE id = ? AND project = ? AND number = ?",
                [(state["id"], state["in"], state["number"]) for state in states],
            )
            connection.execute(_NOTE_CURSOR, (core.to_json(patch),))
        return True

    def _own_waits(self, project: str) -> bool:
        """Whether own changes wait. Changes by others are not kept for a space that is read-only
        here."""
        sql = (
            "WITH own AS (SELECT name FROM machines WHERE mine) UPDATE replica SET number = NULL"
            " WHERE project = ? AND number IS NOT NULL AND gone <= 0"
            " AND coalesce(put_w NOT IN own, true) AND coalesce(end_w NOT IN own, true)"
            " AND NOT EXISTS (SELECT 1 FROM json_each(ok) WHERE key IN own)"
        )
        with self.database.transaction() as connection:
            connection.execute(sql, (project,))
        return self._space_rows({"": project})[0]["waiting"] > 0

    def _space_rows(self, spaces: dict[str, str]) -> list[dict[str, Any]]:
        """Of each space, how many memories are here, and how many changes wait to be sent."""
        sql = (
            "SELECT count(*) FILTER (WHERE NOT gone), count(number) FROM replica WHERE project = ?"
        )
        rows = ((space, *self.database.rows(sql, project)[0]) for space, project in spaces.items())
        return [{"space": space, "here": here, "waiting": waiting} for space, here, waiting in rows]

    def _rivals_row(self, id: str, versions: list[str]) -> dict[str, Any]:
        """An item that machines replaced by one each, with those; empty if it is gone."""
        rows = (core.find_item(self.database, version) for version in versions)
        known = core.authors_by_id(self.database, versions)
        later = [core.shared_facts(row) | known.get(row["id"], {}) for row in rows if row]
        row = core.find_item(self.database, id)
        return core.shared_facts(row) | {"versions": later} if row else {}

    def _note_machines(self) -> None:
        """Remember who the others are."""
        keys = ("machine", "host", "person")
        found = {tuple(row[key] or "" for key in keys) for row in self._machines()}
        if new := found - {*self.database.rows("SELECT name, host, person FROM machines")}:
            sql = (
                "INSERT INTO machines VALUES(?, ?, ?, 0) ON CONFLICT(name) DO UPDATE"
                " SET host = excluded.host, person = excluded.person"
            )
            with self.database.transaction() as connection:
                connection.executemany(sql, list(new))

    def _machines(self) -> list[dict[str, Any]]:
        rows = self.database.rows("SELECT max(gone) FROM replica WHERE gone > 0 GROUP BY id")
        found = self.place.machines([t for (t,) in rows])
        return [row | {key: _machine_name(row[key]) for key in ("host", "person")} for row in found]

    def status(self) -> dict[str, Any]:
        """What waits, and who has what; where the place cannot be reached, what is known here."""
        status: dict[str, Any] = {"place": self.place.name, "machine": self.place.me.name}
        status["spaces"] = self._space_rows(self._spaces())
        try:
            with self._reach() as facts:
                status |= facts | {"machines": self._machines()}
                remarks = [*self.place.remarks, *self._on_unshared(), *self.place.on_left()]
                if self.place.has_lost(self._cursor()):
                    remarks.append(
                        f"{self.place.name} {_HAS_LOST}: the next `sync` sends everything again"
                    )
                    status["spaces"] = [row | {"waiting": row["here"]} for row in status["spaces"]]
                return status | ({"remarks": remarks} if remarks else {})
        except core.SedimentError as error:
            return status | {"remarks": [str(error)]}

    def share(self, space: str | None, everywhere: bool) -> dict[str, Any]:
        """Let a project, or what is global, go to the place and come from it."""
        project = "" if everywhere else self.projects.current(create=True)
        if project is None:
            why = "there is no project here: change to its folder, or use --share-global"
            raise core.InvalidInput(why)
        name = core.check_id(space or project or self.place.global_space)
        core.refuse_credential("space", name)
        if project and name.startswith("@"):
            why = f"{name} is for global memories: `sync --share-global` shares them"
            raise core.InvalidInput(why)
        self._note_space(name, project)
        sql = "SELECT * FROM states WHERE project = ? AND here"
        states = merge.states_of(self.database.reader(), sql, project)
        held = sum(map(bool, map(merge.held_back, states.values())))
        count = core.number_of(len(states) - held, "memory")
        message = f"{name} will get {count} with the next `sync`"
        message += f"; {held} held back, because the text looks like a credential" if held else ""
        return {"success": True, "space": name, "held_back": held, "message": f"{message}."}

    def _note_space(self, name: str, project: str) -> None:
        with self.database.transaction() as connection:
            sql = "SELECT space, project FROM spaces WHERE space = ? OR project = ?"
            for space, shared in core.fetch(connection, sql, name, project):
                if (space, shared) != (name, project):
                    what = f"project {shared} is" if shared else "global memories are"
                    why = f"{what} shared as {space}: `sync --unshare` first"
                    raise core.InvalidInput(why)
            connection.execute("INSERT OR IGNORE INTO spaces VALUES(?, ?)", (name, project))
            if connection.changes():  # under another name it was not sent yet
                send_again(connection, project)
            machines.read_anew(connection)

    def unshare(self, everywhere: bool) -> dict[str, Any]:
        """Let a project, or what is global, go nowhere any more."""
        project = "" if everywhere else self.projects.current()
        with self.database.transaction() as connection:
            sql = "DELETE FROM spaces WHERE project = ? RETURNING space"
            space = connection.execute(sql, (project,)).get
        if space is None:
            raise core.NotFound("this project is not shared: `sync --status` shows what is")
        message = f"{space} is no longer shared. What was sent and received stays."
        return {"success": True, "space": space, "message": message}

    def go_from_place(self) -> str:
        """Leave a place. Returns what to do if it could not be told."""
        told, name = "", self.place.name
        try:
            self.place.begin()
            self.place.leave()
        except (OSError, core.SedimentError) as error:
            why = folder.reason_of(error)
            told = f"{name} could not be told ({why}): machines there keep waiting for this"
            told += f" one. Later, run `sync --to {shlex.quote(name)}` and `sync --leave`"
        self.drop_fetched()
        return told if self._cursor() else ""  # it never synced there

    def drop_fetched(self) -> None:
        """Keep nothing of what git fetched from a place that is left."""
        if isinstance(self.place, git_place.Git):
            self.place.remove()

    def leave(self, erase: bool) -> dict[str, Any]:
        """Stop syncing; `erase` what others stored. Forgotten memories stay known, and are sent if
        this memory comes back."""
        with core.Lease(self.database, "syncing") as lease:
            take_lease(lease)  # what still runs there would say that this machine is there
            with lease.renewed():
                return self._leave(erase)

    def _leave(self, erase: bool) -> dict[str, Any]:
        not_told = self.go_from_place()
        others = (
            "SELECT id FROM states WHERE here"
            " AND put_w NOT IN (SELECT name FROM machines WHERE mine)"
        )
        behind = f"SELECT id FROM items WHERE successor IN ({others}) AND id NOT IN ({others})"
        with self.database.transaction() as connection, machines.unsynced(connection):
            waiting = connection.execute(_UNSENT).get
            for (id,) in core.fetch(connection, behind) if erase else []:
                _, other = core.restore_item(connection, id)
                core.add_history(connection, "undo", id, other, core.APART)
            ids = [id for (id,) in core.fetch(connection, others)] if erase else []
            texts = core.texts_of(connection, ids)
            for id in ids:
                core.erase_item(connection, id, alone=True)
                connection.execute("DELETE FROM replica WHERE id = ?", (id,))
            machines.stop_syncing(connection)
        core.wipe(self.database, texts)
        message, count = "This memory no longer syncs", len(ids)
        memories = core.number_of(count, "memory")
        message += f"; erased {memories} that came from others" if erase else ""
        message += f"; {_waiting_phrase(waiting)} until it syncs there again" if waiting else ""
        message += f". {not_told}" if not_told else ""
        return {"success": True, "erased": count, "message": f"{message}."}


_NOTE_CURSOR = "UPDATE clock SET cursor = json_patch(cursor, ?)"  # keys with null are deleted
# How many changes were not sent yet.
_UNSENT = "SELECT count(*) FROM replica JOIN spaces USING(project) WHERE number IS NOT NULL"

# How many of them ended behind memories that are not shared, by the project of these.
_BEHIND_UNSHARED = (
    "SELECT s.project, count(*) FROM replica r JOIN spaces USING(project) JOIN states s"
    " ON s.id = r.successor WHERE r.number IS NOT NULL AND s.here AND NOT s.shared GROUP BY 1"
)


def _waiting_phrase(count: int) -> str:
    return f"{count} {'change waits' if count == 1 else 'changes wait'}"


_HAS_LOST = "has lost files"
_LASTING_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)


def _machine_name(name: Any) -> str:
    """A name from another machine, which recall shows to agents; "" of what is no short name."""
    is_name = isinstance(name, str) and name.isprintable() and len(name) <= places.MACHINE_NAME_MAX
    return name if is_name else ""


def run_hub(
    memory: core.Memory,
    deed: str,
    person: str,
    space: str,
    place: str,
    reads: bool,
    recall: bool,
) -> dict[str, Any]:
    """What `Memory.hub` does, at a place or at the one where this file syncs."""
    place = place or Sync(memory.projects, memory.encoder).place.name
    me = places.Machine("", "", "")
    hub = hub_place.Hub(place, me, memory.database, memory.encoder)
    return hub_place.run_hub(hub, deed, person, space, reads, recall)


def sync_to(projects: core.Projects, encoder: core.Encoder, place: str) -> dict[str, Any]:
    """Begin to sync at a place, and leave the one before: what `Memory.sync_to` returns."""
    database = projects.database
    if not place:
        raise core.InvalidInput("a place must not be empty: name a folder, a URL or git:REMOTE")
    core.check_text(place, "place", core.PLAIN_MAX)
    if _HUB.match(place):
        hub_place.hub_options(place)
    elif place.startswith("git:"):
        url = place.removeprefix("git:")
        if url and (folder := core.absolute_path(url)).is_dir():
            place = f"git:{folder}"
        if core.redact(url)[1] or re.match(r"[\w+.-]+://[^/@]*:[^/]*@", url):
            raise core.InvalidInput(
                "keep the password out of the address: `git credential approve` stores it"
            )
        git_place.check_git(place)
    else:
        place = _folder_to_sync(database, place)
    with core.Lease(database, "syncing") as lease:
        take_lease(lease)  # what still runs would note what it has sent to the place before
        with lease.renewed():
            not_told = _begin_to_sync(projects, encoder, place)
    status = Sync(projects, encoder).status()
    return status | ({"remarks": [not_told, *status.get("remarks", ())]} if not_told else {})


def _begin_to_sync(projects: core.Projects, encoder: core.Encoder, place: str) -> str:
    """Write down the place; returns what to do if the one before could not be told."""
    database, before, not_told = projects.database, "", ""
    with contextlib.suppress(core.NotFound):
        old = Sync(projects, encoder)
        before = old.place.name
        if before == place:
            old.drop_fetched()
        else:
            not_told = old.go_from_place()
    with database.transaction() as connection:
        if not core.is_synced(database):
            me = {"machine": core.new_id()[:8], "mark": "", "place": ""}
            connection.execute(core.asset("schema/sync.sql"), me)
        elif _is_of_another(place, before):  # a hub takes each machine for one person's
            connection.execute("UPDATE clock SET machine = ?, mark = ''", (core.new_id()[:8],))
        machines.name_machine(connection, database.path)
        connection.execute("UPDATE clock SET place = ?, cursor = '{}'", (place,))
        send_again(connection)
    return not_told


def _is_of_another(place: str, before: str) -> bool:
    """Whether two places are hubs that are reached as two persons."""
    if not (_HUB.match(place) and _HUB.match(before)):
        return False
    from psycopg.conninfo import conninfo_to_dict

    now, then = (conninfo_to_dict(url).get("user") for url in (place, before))
    return now != then


def _folder_to_sync(database: core.Database, place: str) -> str:
    """The path of a folder to sync through, made if it is not there."""
    if unknown := re.match(r"[\w+.-]{2,}://", place):  # the rest may have a password
        raise core.InvalidInput(f"{unknown[0]} is not a place to sync: {_PLACES_TO_SYNC}")
    folder = core.absolute_path(place)
    if core.is_in(core.real_path(database.path), core.real_path(folder)):
        raise core.InvalidInput(
            f"the database is in {place}: a file in use must not be carried about"
        )
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise core.InvalidInput(f"{place} cannot be created ({error.strerror})") from None
    return str(folder)


_PLACES_TO_SYNC = "name a folder, git:REMOTE or postgresql://USER@HOST/DATABASE"


def send_again(connection: apsw.Connection, project: str | None = None) -> None:
    """Have all sent again that is shared, or that of a project; who has it already ignores it."""
    sql = "UPDATE replica SET number = (SELECT number FROM clock) WHERE number IS NULL"
    connection.execute(f"{sql} AND project = coalesce(?, project)", (project,))


def _refuse_future(database: core.Database) -> None:
    """SedimentError where memories here have stamps more than a day ahead, which nobody takes."""
    now = time.time()
    if (at := (database.value("SELECT t FROM clock") >> 16) // 1000) > now + core.DAY:
        then, today = (core.local_time(core.iso_time(int(clock)), 16) for clock in (at, now))
        raise core.SedimentError(
            f"the last change here is of {then}, and by this computer's clock it is {today}: set"
            " the clock; if it is right now, `sync --again` dates what is ahead of it as of today"
        )


def _date_now(connection: apsw.Connection) -> None:
    """Take stamps that a wrong clock has set more than a day ahead back to now, in their order."""
    now = int(time.time() * 1000) << 16
    ahead = connection.execute("SELECT t FROM clock").get - now
    if ahead > core.DAY * 1000 << 16:
        sql = (
            "UPDATE replica SET put_t = put_t - iif(put_t > ?1, ?2, 0),"
            " end_t = end_t - iif(end_t > ?1, ?2, 0), gone = gone - iif(gone > ?1, ?2, 0),"
            " marks = (SELECT json_group_object(key, json_array((value ->> 0)"
            " - iif(value ->> 0 > ?1, ?2, 0), value ->> 1, value ->> 2)) FROM json_each(marks))"
        )
        connection.execute(sql, (now + (core.DAY * 1000 << 16), ahead))
        connection.execute("UPDATE clock SET t = ?", (now,))

"""Sync through a hub: a PostgreSQL database."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy

import sediment as core
from sediment_ext.sync import merge, places

if TYPE_CHECKING:
    import psycopg
else:
    psycopg = core.psycopg  # loaded when a hub is asked: not every system has its library


class Hub:
    """A PostgreSQL database with assets/hub.sql, which joins states, shows people only their spaces
    and numbers changes. The cursor has (version, id) by space, and by MACHINE/SPACE the version
    that the hub was told."""

    page, interval = 1_000, 60
    is_incomplete = False

    def __init__(
        self, url: str, me: places.Machine, database: core.Database, encoder: core.Encoder
    ) -> None:
        self.name, self.me, self.remarks = url, me, list[str]()
        self._database, self._encoder = database, encoder
        self._connection: Any = None
        self._reached: dict[str, int] = {}  # by space, the version up to which it was read

    @property
    def global_space(self) -> str:
        """The space of what is global, of whoever one is there."""
        return f"@{self.begin()['person']}"

    def ask(self, sql: str, *values: Any) -> list[Any]:
        """The rows that a statement gives; what the hub refuses, it says in its own words."""
        if self._connection is None or self._connection.closed:
            self._connection = _connect_hub(self.name)
            self._connection.execute(f"SET statement_timeout = '{places.HUB_ANSWER}s'")
        with self._translated():
            cursor = self._connection.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of the hub and its connection as errors of ours."""
        try:
            yield
        except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable):
            raise core.NotFound(f"there is no hub at {self.name}: `hub init` makes one") from None
        except psycopg.Error as error:
            kind = places.Unreachable if self._connection.closed else core.SedimentError
            if isinstance(error, psycopg.errors.InsufficientPrivilege):
                kind = core.Forbidden
            raise kind(str(error).partition("\n")[0]) from None

    def begin(self) -> dict[str, Any]:
        """Connect, and look whether both know the same records, and the time."""
        version, oldest, person, now = self.ask("SELECT * FROM sediment.hello")[0]
        if not oldest <= places.RECORD_VERSION <= version:
            why = f"the hub speaks {max(oldest, version)}, this program {places.RECORD_VERSION}"
            remedy = "`hub init` brings the hub up to date"
            remedy = "update it" if oldest > places.RECORD_VERSION else remedy
            raise core.SedimentError(f"{why}: {remedy}; nothing was changed")
        if abs(off := time.time() - now) > places.CLOCK_OFF:
            hours = f"{abs(off) / 3600:.1f} h {'ahead of' if off > 0 else 'behind'}"
            self.remarks = [f"this clock is {hours} the hub's: set it"]
        return {"person": person, "tls": bool(self._connection.pgconn.ssl_in_use)}

    def pull(self, cursor: dict[str, Any], spaces: Iterable[str]) -> Iterator[tuple[Any, Any]]:
        """As of a folder."""
        sql = (
            "SELECT version, id, record, author, model, e FROM sediment.record WHERE space = %s"
            f" AND (version, id) > (%s, %s) ORDER BY version, id LIMIT {self.page}"
        )
        restored = self._restored(cursor)
        self.is_incomplete = bool(restored)
        known = ((space, f"{self.me.name}/{space}") for space in restored)
        yield [], dict.fromkeys(itertools.chain(*known))  # noticed once
        for space in spaces:
            last = [0, ""] if space in restored else cursor.get(space, [0, ""])
            waits: int | None = None  # the first version with a record that is to be read again
            while rows := self.ask(sql, space, *last):
                last = list(rows[-1][:2])
                states, unread = self.states(rows)
                waits = unread if waits is None else waits
                yield states, {space: last} if waits is None else {}
            self._reached[space] = last[0] if waits is None else waits - 1

    def _restored(self, cursor: dict[str, Any]) -> set[str]:
        """The spaces that were restored from an older copy: the hub knows less than this machine
        has read."""
        sql = (
            "SELECT id, version, coalesce((SELECT pulled FROM sediment.machine"
            " WHERE space = id AND name = %s), 0) FROM sediment.space"
        )
        shared = {space for (space,) in self._database.rows("SELECT space FROM spaces")}
        return {
            space
            for space, version, noted in self.ask(sql, self.me.name)  # those open to this person
            if space in shared
            and (
                version < cursor.get(space, [0])[0]
                or noted < int(cursor.get(f"{self.me.name}/{space}", "0:")[:-1])  # as it was told
            )
        }

    def has_lost(self, cursor: dict[str, Any]) -> bool:
        """As of a folder."""
        return bool(self._restored(cursor))

    def states(
        self, rows: list[tuple[Any, ...]]
    ) -> tuple[list[tuple[str, merge.State]], int | None]:
        """The (space, state) of rows, with usable vectors; and the first version to be read again
        later."""
        model, found, unread = self.model(), [], None
        for version, _, record, author, made_by, data in rows:
            try:
                if record.get("altered"):
                    raise core.InvalidInput(_ALTERED)
                space, state = merge.state_of(record)
                packed = data if state["text"] and made_by == model else None
                found.append((space, state | self._beside(state["id"], author, packed)))
            except (core.SedimentError, ValueError) as error:
                if (
                    isinstance(error, places.FutureRecord) and unread is None
                ):  # the cursor must not pass it
                    unread = version
                self.remarks.append(f"{record['id']}, of {author}, was refused: {error}")
        return found, unread

    def _beside(self, id: str, author: str, packed: bytes | None) -> dict[str, Any]:
        """What comes with a state: an author, and vectors; without them where they are none."""
        try:
            return {"author": author} | ({"vectors": self.unpacked(packed)} if packed else {})
        except ValueError:
            self.remarks.append(
                f"the vectors of {id}, of {author}, cannot be used: they are computed here"
            )
            return {"author": author}

    def model(self) -> str:
        """What vectors are made by: a model, and a way to cut texts."""
        return f"{self._encoder.model.digest}:{core.CHUNKER}"

    def prepare_recall(self) -> None:
        """Make the indexes that recall asks, of vectors of this model."""
        if not self.ask("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
            raise core.NotFound(
                "this server has no pgvector: its package is postgresql-NN-pgvector"
            )
        facts = {"{dimension}": str(self._encoder.model.dimension), "{model}": self.model()}
        sql = core.asset("hub_recall.sql")
        for name, value in facts.items():
            sql = sql.replace(name, value)
        self.ask("SET statement_timeout = 0")  # for 200,000 vectors it takes ten minutes
        self.ask(sql)

    def unpacked(self, data: bytes) -> list[bytes]:
        """Vectors as the file has them, of the 16 bits that a hub has; ValueError of others."""
        numbers = numpy.frombuffer(data, "<f2").astype("<f4")
        rows = numbers.reshape(-1, self._encoder.model.dimension)
        if not (numpy.isfinite(rows).all() and rows.any(axis=1).all()):
            raise ValueError("its vectors are none")
        rows = rows / numpy.linalg.norm(rows, axis=1, keepdims=True)
        return [row.tobytes() for row in rows]

    def push(self, space: str, states: list[merge.State]) -> dict[str, Any]:
        """Have states joined with what is there; `finish` moves the cursor."""
        rows = [merge.record_of(state, space) for state in states]
        if core.same_model(self._database, self._encoder.model):
            packed = _packed_vectors(self._database, [state["id"] for state in states])
            rows = [row | packed.get(row["id"], {}) | {"model": self.model()} for row in rows]
        for part in _parts(map(core.to_json, rows), places.HUB_PUSH):
            texts = f"[{','.join(part)}]"
            ((version,),) = self.ask("SELECT sediment.push(%s, %s::jsonb)", space, texts)
            if version == self._reached.get(space, 0) + 1:  # nobody else has pushed since the pull
                self._reached[space] = version
        return {}

    def on_left(self) -> list[str]:
        """Nothing: the hub erases what is forgotten itself."""
        return []

    def finish(self, t: int, cursor: dict[str, Any]) -> dict[str, Any]:
        """Tell the hub how far this machine has read; a patch of the cursor."""
        patch: dict[str, Any] = {}
        for space, version in self._reached.items():
            facts = space, self.me.name, self.me.host, version
            ((is_noted,),) = self.ask("SELECT sediment.seen(%s, %s, %s, %s)", *facts)
            patch[space] = [version, "\U0010ffff"]
            patch[f"{self.me.name}/{space}"] = f"{version}:" if is_noted else None
            if not is_noted:
                self.remarks.append(f"{space} is not open to you there: ask who looks after it")
        return patch

    def machines(self, forgotten: list[int]) -> list[dict[str, Any]]:
        """As of a folder."""
        names = ("machine", "host", "person", "seen", "to_erase")
        rows = self.ask(f"SELECT {', '.join(names)} FROM sediment.progress ORDER BY machine")
        unsent = dict(self._database.rows(_FORGOTTEN_UNSENT))
        spaces = self.ask("SELECT name, space FROM sediment.machine") if unsent else []
        more = Counter[str]()
        for name, space in spaces:
            more[name] += unsent.get(space, 0) if name != self.me.name else 0
        found = (dict(zip(names, row, strict=True)) for row in rows)
        return [row | {"to_erase": row["to_erase"] + more[row["machine"]]} for row in found]

    def wait(self, seconds: float) -> bool:
        """Wait, at most so long, until something has come; returns whether it has."""
        self.ask("LISTEN sediment")
        with self._translated():
            return bool(list(self._connection.notifies(timeout=seconds, stop_after=1)))

    def leave(self) -> None:
        """As of a folder."""
        self.ask("SELECT sediment.leave(%s)", self.me.name)


_ALTERED = "its text was altered there: `sync --again` where it is sound sends it again"


def _parts(texts: Iterable[str], most: int) -> Iterator[list[str]]:
    """Texts in lists of at most so many bytes, or of one that is larger."""
    part: list[str] = []
    size = 0
    for text in texts:
        size += (more := len(text.encode()))
        if part and size > most:
            yield part
            part, size = [], more
        part.append(text)
    if part:
        yield part


# By space, how much was forgotten here of which the hub does not know yet.
_FORGOTTEN_UNSENT = (
    "SELECT space, count(*) FROM replica JOIN spaces USING(project)"
    " WHERE gone > 0 AND number IS NOT NULL GROUP BY space"
)


def hub_options(url: str) -> dict[str, Any]:
    """How to connect. A host elsewhere must show a certificate for its name. Raises
    InvalidInput."""
    from psycopg.conninfo import conninfo_to_dict

    try:
        options: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        shown, why = core.redact(url)[0], str(error).strip()
        raise core.InvalidInput(f"{shown} is not the address of a database: {why}") from None
    if any("password" in name or "secret" in name for name in options):
        raise core.InvalidInput(
            "keep the password out of the address: use ~/.pgpass, PGPASSWORD or a service file"
        )
    options |= {"connect_timeout": 10, "autocommit": True, **_LIVENESS}
    service = options.get("service") or core.variable("PGSERVICE")  # whose file may name any host
    if service or not is_local(options):
        options["sslmode"] = options.get("sslmode") or core.variable("PGSSLMODE") or "verify-full"
        own = (core.expand_home("~/.postgresql") / "root.crt").exists() or core.variable(
            "PGSSLROOTCERT"
        )
        if options["sslmode"] == "verify-full" and not own and not service:
            options.setdefault("sslrootcert", "system")
    return options


# How the system finds out that the other side, or the way there, is gone.
_LIVENESS = {
    "keepalives_idle": places.HUB_SILENCE // 2,
    "keepalives_interval": places.HUB_SILENCE // 6,
    "keepalives_count": 3,
    "tcp_user_timeout": places.HUB_SILENCE * 1000,  # ms
}


def _connect_hub(url: str) -> Any:
    """A connection; Unreachable if no server answers, SedimentError if it refuses."""
    options = hub_options(url)
    try:
        return psycopg.connect(**options)
    except psycopg.OperationalError as error:
        reason = str(error).partition("\n")[0].rpartition("failed: ")[2]
        if places.UNTRUSTED.search(str(error)):
            remedy = "PGSSLROOTCERT=FILE or ~/.postgresql/root.crt"
            raise core.SedimentError(
                places.untrusted_reason(options.get("host") or url, reason, remedy)
            ) from None
        refused = re.search("FATAL|SSL|certificate|no password", str(error))
        kind = core.SedimentError if refused else places.Unreachable
        raise kind(f"{options.get('host') or url} cannot be reached ({reason})") from None


def _packed_vectors(database: core.Database, ids: list[str]) -> dict[str, dict[str, str]]:
    """By id, what a row of a push has of vectors: those of items that have them all, in 16 bits."""
    sql = (
        "SELECT i.id, v.vector FROM json_each(?) j JOIN items i ON i.id = j.value"
        " JOIN chunks c ON c.item = i.seq LEFT JOIN vectors v ON v.chunk = c.id"
        " ORDER BY j.key, c.position"
    )
    found = {}
    for id, rows in itertools.groupby(database.rows(sql, json.dumps(ids)), lambda row: row[0]):
        if None not in (vectors := [vector for _, vector in rows]):
            packed = numpy.frombuffer(b"".join(vectors), "<f4").astype("<f2").tobytes()
            found[id] = {"e": base64.b64encode(packed).decode()}
    return found


def _address_of(person: str, url: str) -> str:
    """The address of a hub as a URL with a person's name, from whatever form it was given in."""
    from urllib.parse import quote, urlencode

    from psycopg.conninfo import conninfo_to_dict

    rest: dict[str, Any] = conninfo_to_dict(url)
    _, database, host, port = (str(rest.pop(key, "")) for key in ("user", "dbname", "host", "port"))
    if host.startswith("/") or "," in host:  # a folder, or several
        rest |= {"host": host, "port": port}
        host = port = ""
    host = f"[{host}]" if ":" in host else host
    words = urlencode({key: value for key, value in rest.items() if value})
    where = f"{quote(person, safe='')}@{host}{':' if port else ''}{port}/{quote(database, safe='')}"
    return f"postgresql://{where}{'?' if words else ''}{words}"


def run_hub(
    hub: Hub, action: str, person: str, space: str, reads: bool, recall: bool = False
) -> dict[str, Any]:
    """Look after a hub: `init` makes one, `add` lets a person into a space, `remove` ends that."""
    if action == "init":
        if hub.ask("SHOW server_encoding") != [("UTF8",)]:
            raise core.InvalidInput(
                "the database must be in UTF8: CREATE DATABASE … ENCODING 'UTF8'"
            )
        hub.ask(core.asset("hub.sql"))
        if recall:
            hub.prepare_recall()
        message = "The hub is ready. `hub add PERSON SPACE` lets people in."
    elif action == "add":
        message = _let_in(hub, person, space, reads)
    else:
        if hub.ask("SELECT sediment.remove(%s, %s)", person, space) == [(False,)]:
            raise core.NotFound(f"{person} is not a member of {space}")
        message = f"{person} can no longer use {space}, but keeps what was received."
    return {"success": True, "message": message}


def _let_in(hub: Hub, person: str, space: str, reads: bool) -> str:
    """Open a space to a person; returns what to send them."""
    core.refuse_credential("space", space)
    own = space == f"@{person}"
    if space.startswith("@") and not own:
        raise core.InvalidInput(
            f"{space} is for that person alone: `hub add PERSON @PERSON` opens it"
        )
    ((made,),) = hub.ask("SELECT sediment.add(%s, %s, %s)", person, space, not reads)
    to, share = shlex.quote(_address_of(person, hub.name)), f"--share {shlex.quote(space)}"
    message = f"Send {person}: sediment sync --to {to} && sediment sync "
    message += "--share-global" if own else share
    doubled = person.replace('"', '""')
    name = person if person.isidentifier() and person.islower() else f'"{doubled}"'  # as in SQL
    return message + (f" (a password is set in psql: \\password {name})" * made)


def is_local(options: dict[str, Any]) -> bool:
    """Whether all hosts that may be connected to are this machine, or folders of sockets."""
    given = (
        options.get(name) or core.variable(f"PG{name.upper()}") for name in ("host", "hostaddr")
    )
    hosts = [host for names in given if names for host in str(names).split(",") if host]
    return all(host.startswith("/") or host in core.LOCAL_NAMES for host in hosts)

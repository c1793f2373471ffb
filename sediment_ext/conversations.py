"""Keep what was said in sessions: a turn is a memory of its own kind.

A session is stored as a document, its turns as parts. What is kept already stays, what has grown
is kept as it is now, and what was forgotten is never kept again.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw

import sediment as core
from sediment_ext import transcripts

HALF_TURN = core.CONTENT_MAX // 2 - 20  # of a prompt or an answer that is long
# The key in meta, before a session's name, of how much of it is never to be stored, as keeping was
# off when it was said; and the end of its value, until a hook finds that keeping is on again.
UNKEPT, STILL = "unheard:", " still"


def write_session(connection: apsw.Connection, name: str, project: str, resume: int) -> int | None:
    """Store how far a session was read; the id of its file, None if it was forgotten."""
    now = time.time_ns()
    source = connection.execute(
        "INSERT INTO sources(path, project_id, options) VALUES(?, ?, '{}')"
        " ON CONFLICT DO UPDATE SET options = '{}' RETURNING id",
        (core.CONVERSATIONS, project),
    ).get
    return connection.execute(
        f"INSERT INTO files({core.RECORD_COLUMNS}, path, project_id, source, dated)"
        " VALUES(?1, ?2, ?2, ?2, x'', ?3, ?4, ?5, 1) ON CONFLICT(path, project_id) DO UPDATE"
        " SET source = ?5, size = ?1, changed_at = ?2, read_at = ?2"
        f" WHERE size <> {core.FORGOTTEN_SIZE} RETURNING id",
        (resume, now, name, project, source),
    ).get


def session_name(client: str, session: str) -> str:
    """The name of a session, for people and as the path of its file."""
    return f"{client}:{safe_session_id(session)}"


def safe_session_id(session: str) -> str:
    """A client's id of a session; a hash of one that is a credential, or that nobody could type."""
    is_unfit = not session.isprintable() or core.redact(session, core.redacts())[1]
    return core.short_hash(session) if is_unfit else session


_READ_MAX = 2 * core.CONTENT_MAX  # characters of a prompt or an answer
_LONGEST_CREDENTIAL = 20_000  # characters; of a private key the lines are known without its end


def _redacted_starts(texts: Sequence[str], known: dict[str, str]) -> tuple[list[str], list[str]]:
    """The beginnings of texts without credentials, or parts of them that a cut left; and the
    kinds."""
    cut, kinds = list[str](), list[str]()
    for text in texts:
        left, found = core.redact(text[:_READ_MAX], core.redacts(), known=known)
        cut.append(left if len(text) <= _READ_MAX else left[:-_LONGEST_CREDENTIAL])
        kinds += found
    return cut, kinds


def turn_text(turn: transcripts.Turn, known: dict[str, str]) -> tuple[str, list[str]]:
    """A turn as the text of a memory, without credentials, and their kinds. If it is too long,
    prompt and answer are cut at their ends; each keeps at least half of the space."""
    (prompt, answer), kinds = _redacted_starts(turn[2:], known)
    answer = answer[: max(HALF_TURN, 2 * HALF_TURN - len(prompt))]
    text = f"{core.PROMPT_LABEL}{prompt[: 2 * HALF_TURN - len(answer)]}"
    return f"{text}{core.ANSWER_LABEL}{answer}" if answer else text, kinds


def turn_id(name: str, key: str) -> str:
    """The id of a turn: the same wherever and whenever it is read."""
    return core.short_hash(f"{name}#{key}")


def keep(
    memory: core.Memory,
    conversations: Iterable[transcripts.Conversation],
    progress: core.Progress,
    dry_run: bool,
) -> dict[str, Any]:
    """What `Memory.add_conversations` does; in a dry run they are only counted."""
    projects = memory.projects
    counts, redacted, remarks = Counter[str](), Counter[str](), list[str]()
    left_out = Counter[tuple[str, str]]()
    for given in conversations:
        new, stored = _without_forgotten(projects, given)
        remarks += [new.remark] if new.remark else []
        if reason := _why_left_out(stored, new):
            left_out[reason, new.client] += 1
        elif new.session:
            added, kinds = len(new.turns), list[str]()
            if not (dry_run or _is_forgotten(stored)):
                added, kinds = _keep_conversation(projects, memory.encoder, new)
            redacted.update(kinds)
            counts["sessions" if given.turns else "empty"] += 1
            counts["turns"] += added
            counts["existing"] += len(new.turns) - added
            counts["forgotten"] += len(given.turns) - len(new.turns)
        progress(len(given.turns))
    shown = {name: counts[name] for name in ("sessions", "turns", "existing")}
    shown |= {name: counts[name] for name in ("forgotten", "empty") if counts[name]}
    first = (text.format(count, client) for (text, client), count in left_out.items())
    answer = {"success": True, **shown, "remarks": list(dict.fromkeys([*first, *remarks]))}
    return answer | ({"redacted": dict(redacted)} if redacted else {})


def _without_forgotten(
    projects: core.Projects, given: transcripts.Conversation
) -> tuple[transcripts.Conversation, core.Session | None]:
    """A session with its folder and without the turns that were forgotten, and what is stored."""
    stored = core.find_session(projects.database, session_name(given.client, given.session))
    turns = [] if _is_forgotten(stored) else _not_forgotten(projects.database, given)
    folder = transcripts.folder_of(projects, given)
    return given._replace(folder=folder, turns=turns), stored


def _is_forgotten(stored: core.Session | None) -> bool:
    return stored is not None and stored.resume == core.FORGOTTEN_SIZE


def _why_left_out(stored: core.Session | None, new: transcripts.Conversation) -> str:
    """The remark on a session that is not kept: it has no id, or no project (as a global one, all
    projects would see it). "" if it may be kept."""
    if not new.session:  # a remark says so of a folder that cannot be read
        return "" if new.remark else _NO_CONVERSATIONS
    is_homeless = new.turns and new.coded and not new.folder and not (stored and stored.project)
    return _HOMELESS if is_homeless else ""


# Remarks on what is left out: of so many {0}, of a client {1}.
_HOMELESS = (
    "{0} sessions of {1} are of folders that are not known: `import --from {1} --here` in each"
    " keeps what was said there"
)
_NO_CONVERSATIONS = "{0} entries of the export of {1} are no conversations"


def _keep_conversation(
    projects: core.Projects, encoder: core.Encoder, given: transcripts.Conversation
) -> tuple[int, list[str]]:
    """Store the new and grown turns of a session. Returns their count and the kinds of credentials
    left out."""
    database, name = projects.database, session_name(given.client, given.session)
    new, left_out = 0, list[str]()
    stored = core.find_session(database, name)
    here = projects.of_folder(given.folder) if given.folder else None
    project = (stored and stored.project) or here or ""
    if stored and stored.project != project:
        _move_session(database, stored, project)
    known: dict[str, str] = {}  # a secret that one turn gives away goes from all of them
    _redacted_starts([text for turn in given.turns for text in turn[2:]], known)
    for turn in given.turns:
        text, kinds = turn_text(turn, known)
        if (id := _id_to_keep(database, name, turn.key, text, known)) is None:
            continue
        at_once = None if encoder.model.destination else database  # a service makes many
        item = core.prepare_item(at_once, encoder, id, text, project or None, turn.at)
        with database.transaction() as connection:
            file = write_session(connection, name, project, stored.resume if stored else 0)
            if file is None:
                break
            if item.vectors and not core.claim_model(connection, encoder.model):
                item = item._replace(vectors=[])
            if write_turn(connection, file, item._replace(content_type=core.CONVERSATION), known):
                new += 1
                left_out += kinds
    with database.transaction() as connection:
        write_session(connection, name, project, given.resume)
    return new, left_out


def _move_session(database: core.Database, session: core.Session, project: str) -> None:
    """Move a session that was stored before its folder was known into the folder's project."""
    with database.transaction() as connection:
        for (id,) in core.fetch(connection, "SELECT id FROM items WHERE file = ?", session.file):
            core.place_item(connection, id, project)
        sql = "UPDATE OR IGNORE files SET project_id = ? WHERE id = ?"
        connection.execute(sql, (project, session.file))


# A turn of a session that has a text, and maybe more of the answer.
_SAME_TURN = (
    "SELECT 1 FROM items i JOIN files f ON f.id = i.file"
    f" WHERE f.path = ?1 AND f.source IN ({core.CONVERSATION_SOURCES}) AND (i.content = ?2"
    " OR substr(i.content, 1, length(?2) + 2) = ?2 || char(10, 10))"
)


def _id_to_keep(
    database: core.Database, name: str, key: str, text: str, known: dict[str, str]
) -> str | None:
    """The id of the stored turn that this one continues, else a new one; None if all of it is
    stored."""
    id = _free_id(database, turn_id(name, key))
    while stored := core.find_item(database, id):
        if _continues(stored["content"], text, known):
            return None if stored["content"] == text else id
        if database.value(_SAME_TURN, name, text):
            return None
        id = _free_id(database, core.short_hash(id))
    is_place = key.isdecimal()  # a turn without an id of the client's, whose place may change
    return None if is_place and database.value(_SAME_TURN, name, text) else id


def _free_id(database: core.Database, id: str) -> str:
    """The id, or a hash of it where a memory has it that is no turn or part of a file."""
    while core.stored_among(database, [id]):
        id = core.short_hash(id)
    return id


def _continues(before: str, now: str, known: dict[str, str]) -> bool:
    """Whether a text is a stored turn with more of its answer, or with fewer credentials. A longer
    answer may have cut the prompt shorter."""
    if now.startswith(before):
        return True
    if "[redacted: " in now and now.startswith(core.redact(before, known=known)[0]):
        return True
    is_cut = len(now) >= 2 * HALF_TURN and now[:HALF_TURN] == before[:HALF_TURN]
    prompt, _, answer = now[HALF_TURN:].partition(core.ANSWER_LABEL)
    asked, _, answered = before[HALF_TURN:].partition(core.ANSWER_LABEL)
    return is_cut and answer != "" and asked.startswith(prompt) and answer.startswith(answered)


def unkept_part(database: core.Database, name: str) -> tuple[int, bool]:
    """How much of a session is never stored (see `session_progress`), and whether that still
    grows."""
    noted = database.value("SELECT value FROM meta WHERE key = ?", f"{UNKEPT}{name}") or "0"
    return int(noted.removesuffix(STILL)), noted.endswith(STILL)


def note_unkept(
    database: core.Database, name: str, part: int, still: bool, wait: int = core.BUSY_TIMEOUT
) -> None:
    """Store what `unkept_part` returns."""
    with database.transaction(wait) as connection:
        core.set_meta(connection, f"{UNKEPT}{name}", f"{part}{STILL * still}")


def write_turn(
    connection: apsw.Connection, file: int, item: core.Item, known: dict[str, str]
) -> bool:
    """Store a turn, or the longer version of one; whether there was something new in it."""
    sql = "SELECT content, first_line FROM items WHERE id = ?"
    rows = core.fetch(connection, sql, item.id)
    content, number = rows[0] if rows else (None, None)
    is_new = content is None or _continues(content, item.content, known)
    if content == item.content or not is_new:
        return False  # another process may have stored more
    if number is None:
        sql = "SELECT 1 + coalesce(max(first_line), 0) FROM items WHERE file = ?"
        number = connection.execute(sql, (file,)).get
    core.erase_item(connection, item.id)
    core.insert_item(connection, item._replace(file=file, first_line=number, last_line=number))
    connection.execute(core.EXAMINED_FILES)
    return True


def _not_forgotten(
    database: core.Database, given: transcripts.Conversation
) -> list[transcripts.Turn]:
    """The turns that were not forgotten in this or another session of the client. Turns known only
    by their place stay."""
    sql = f"SELECT key, value FROM meta WHERE key GLOB '{core.FORGOTTEN}*'"
    rows = [row for row in database.rows(sql) if row[1].startswith(f"{given.client}:")]
    gone, names = {key.removeprefix(core.FORGOTTEN) for key, _ in rows}, {name for _, name in rows}
    return [
        turn
        for turn in given.turns
        if turn.key.isdecimal() or gone.isdisjoint(turn_id(name, turn.key) for name in names)
    ]


def sessions_kept(projects: core.Projects, limit: int) -> dict[str, Any]:
    """What `Memory.list_conversations` returns: the sessions of a project, and those of none."""
    sql = (
        "SELECT f.path, count(*), min(i.created_at), max(i.created_at), (SELECT substr(content, 7,"
        f" {core.PREVIEW}) FROM items WHERE file = f.id ORDER BY first_line LIMIT 1)"
        f" FROM files f JOIN items i ON i.file = f.id"
        f" WHERE f.source IN ({core.CONVERSATION_SOURCES})"
        " AND f.project_id IN ('', ?) GROUP BY f.id ORDER BY 4 DESC, f.id DESC"
    )
    rows = projects.database.rows(sql, projects.current() or "")
    found = [
        {"source": path, "turns": count, **core.with_time("created", first), "beginning": beginning}
        | {"last": core.iso_time(last)}
        for path, count, first, last, beginning in rows
    ]
    shown = found[:limit]
    return {"count": len(shown), "total": len(found), "conversations": shown}


def render_conversations(answer: dict[str, Any]) -> Iterator[str]:
    for row in answer["conversations"]:
        line = (
            f"{core.local_time(row['last'])}  {row['turns']:4}  {row['source']}  {row['beginning']}"
        )
        yield core.printable(core.one_line(line, 120))
    if not answer["conversations"]:
        yield "This project has no conversations."
    if left := answer["total"] - answer["count"]:
        yield f"and {left} more (--limit)"


def render_kept_conversations(answer: dict[str, Any]) -> Iterator[str]:
    told, sessions = core.number_of(answer["turns"], "turn"), answer["sessions"]
    if "empty" in answer and not sessions:
        told, sessions = "nothing", answer["empty"]
    turns = f"{told} of {core.number_of(sessions, 'session')}"
    done = "Found" if "dry_run" in answer else "Kept"
    yield f"{done} {turns}{core.not_stored(answer)} ({answer['seconds']} s)."
    yield from core.left_out(answer)
    yield from map(core.printable, answer["remarks"][: core.REFUSED_SHOWN])


def keep_forgotten(database: core.Database, copy: apsw.Connection) -> str:
    """Let no conversation come back that was never to be kept again. Returns a remark."""
    names, notes = list[Any](), list[Any]()
    with contextlib.suppress(core.DamagedError):
        for prefix in (UNKEPT, core.FORGOTTEN):
            notes += database.rows(f"SELECT key, value FROM meta WHERE key GLOB '{prefix}*'")
        sql = f"SELECT path, project_id FROM files WHERE size = {core.FORGOTTEN_SIZE}"
        names = database.rows(f"{sql} AND source IN ({core.CONVERSATION_SOURCES})")
    forgotten = 0
    with copy:
        for name, project in names:
            forgotten += core.forget_session(copy, name) > 0
            # Also a session that the copy lacks.
            write_session(copy, name, project, core.FORGOTTEN_SIZE)
        copy.executemany("INSERT OR REPLACE INTO meta VALUES(?, ?)", notes)
    remark = f" Conversations forgotten since, and not brought back: {forgotten}."
    return remark if forgotten else ""

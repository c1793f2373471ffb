"""Join the states of memories that machines exchange.

`join` makes one state of two; as neither their order nor repetition changes the result, a place
need not know anything of them. `view` says what recall sees of joined states.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apsw

import sediment as core
from sediment_ext.sync import machines, places

State = dict[str, Any]  # id, gone, ok, put: (t, machine, text, created),
# end: (t, machine, by, at, successor), of which by is "" where it was brought back, and BESIDE
# where it was replaced by what was live already
BESIDE = "beside"
Ended = tuple[str, int, str]  # why, when (unix seconds), and behind which item


def join(a: State, b: State) -> State:
    """The state that follows from two of one memory: forgotten stays forgotten, the later text and
    the later end hold, and of each machine's confirmations the greater count."""
    if a["gone"] or b["gone"]:
        return {"id": a["id"], "gone": True, "put": None, "end": None, "ok": {}}
    names = a["ok"].keys() | b["ok"].keys()
    counts = {name: max(a["ok"].get(name, 0), b["ok"].get(name, 0)) for name in names}
    stamped = {key: _later(a[key], b[key]) for key in ("put", "end")}
    return {"id": a["id"], "gone": False, **stamped, "ok": counts}


def _later(a: Any, b: Any) -> Any:
    """The later of two stamped values; of one stamp, that of a copied file, the greater value."""
    return max(filter(None, (a, b)), default=None)


def view(states: dict[str, State]) -> dict[str, Ended | None]:
    """By id, how each of these memories is hidden, or None where it is live. `states` must hold all
    that they stand behind, that stand behind them, or that have the same text (twins)."""
    there = {id: state for id, state in states.items() if state["put"]}
    ended = {id: state["end"][2:] for id, state in there.items() if state["end"]}
    shown = {id: ended[id] if id in ended and ended[id][0] else None for id in there}
    for circle in _circles({id: end[2] for id, end in shown.items() if end and end[2] in there}):
        shown[min(circle, key=lambda id: there[id]["end"])] = None  # or nobody would be live
    twins: dict[Any, list[str]] = {}
    for id in (id for id, end in shown.items() if end is None):
        same = there[id].get("same") or core.text_hash(there[id]["put"][2])
        twins.setdefault((there[id].get("in"), same), []).append(id)
    for ids in twins.values():
        elder = min(ids, key=lambda id: (there[id]["put"][3], id))
        for id in ids:
            if id != elder and id not in ended:  # nobody has taken it apart
                shown[id] = "repeat", there[id]["put"][3], elder
    return shown


def _circles(links: dict[str, str]) -> Iterator[list[str]]:
    """The circles of items of which each is hidden behind the next."""
    seen: set[str] = set()
    for at in links:
        path: list[str] = []
        while at in links and at not in seen:
            seen.add(at)
            path.append(at)
            at = links[at]
        if at in path:
            yield path[path.index(at) :]


AMONG = "SELECT * FROM states WHERE id IN (SELECT value FROM json_each(?)) AND "


def states_of(connection: apsw.Connection, sql: str, *values: Any) -> dict[str, State]:
    """States by id, from a query of the view `states`. Each also has its project (`in`), the
    `number` of a change that was not sent, the hash of its text (`same`), whether the memory is
    `here` and was not moved away, and whether the project is `shared`."""
    found = {}
    try:
        rows = core.fetch(connection, sql, *values)
    except UnicodeDecodeError:  # SQLite finds nothing wrong with such a text
        raise core.DamagedError(f"{connection.filename} {core.DAMAGED}") from None
    for id, project, *columns in rows:
        put, end = tuple(columns[:4]), tuple(columns[4:9])
        gone, ok, number, same, here, shared = columns[9:]
        found[id] = {
            "id": id,
            "gone": gone != 0,
            "put": None if None in (put[0], put[2]) else put,
            "end": None if end[0] is None else end,
            "ok": json.loads(ok),
            **{"in": project, "number": number, "same": same, "here": here, "shared": shared},
        }
    return found


def put_damaged_back(states: dict[str, State]) -> set[str]:
    """Give damaged texts a stamp that is a little earlier, so that the sound text of any machine
    wins. Returns their ids."""
    texts = {id: state["put"] for id, state in states.items() if state["put"]}
    damaged = {id for id, put in texts.items() if core.text_hash(put[2]) != states[id]["same"]}
    for id in damaged:
        states[id]["put"] = (texts[id][0] - 1, *texts[id][1:])
    return damaged


class _DryRun(Exception):
    """Takes a transaction back."""


def receive(
    database: core.Database,
    encoder: core.Encoder,
    project: str,
    states: list[State],
    dry_run: bool = False,
) -> tuple[Counter[str], dict[str, set[str]]]:
    """Join what came of a project with what is here, and let recall see it. Returns counts of what
    came, and what `_find_rivals` found."""
    with_text = {state["id"] for state in states if state["put"]}
    came: dict[str, State] = {}
    for state in states:
        id = state["id"]
        state = state | join(came[id], state) if id in came else state
        came[id] = state | {"text_stands": id in with_text}
    ids = json.dumps([*came])
    here = states_of(database.reader(), f"{AMONG} here", ids)
    items = {
        id: _item_from(encoder, project, state)
        for id, state in came.items()
        if state["put"] and (id not in here or _text_and_time(here[id]) != _text_and_time(state))
    }
    with contextlib.suppress(_DryRun), database.transaction() as connection:
        stamps = (state[key][0] for state in came.values() for key in ("put", "end") if state[key])
        clock = "UPDATE clock SET applying = 1, number = number + 1, t = max(t, ?)"
        connection.execute(clock, (max(stamps, default=0),))
        has_vectors = any(item.vectors for item in items.values())
        if has_vectors and not core.claim_model(
            connection, encoder.model
        ):  # the file has another one
            items = {id: item._replace(vectors=[]) for id, item in items.items()}
        _adopt(connection, project, came)
        before = states_of(connection, f"{AMONG} project = ?", ids, project)
        put_damaged_back(before)
        elsewhere = states_of(connection, f"{AMONG} project <> ? ORDER BY here", ids, project)
        joined, counts = _joined(before, elsewhere, came, project)
        _write_states(connection, joined)
        _update_items(connection, _move_items(connection, joined, elsewhere), items)
        for id, state in joined.items():
            known = (before.get(id) or elsewhere.get(id) or {"ok": {}})["ok"]
            if (more := sum(state["ok"].values()) - sum(known.values())) > 0:
                core.add_counts(connection, id, 0, more)
        connection.execute("UPDATE clock SET applying = 0")
        counts["forgotten"] += _forget_successors(connection, [*joined])
        _bring_back(connection, [id for id, state in joined.items() if state["gone"]])
        taken = before.keys() | joined.keys()
        if dry_run:
            raise _DryRun
    return counts, _find_rivals([*before.values(), *(one for one in states if one["id"] in taken)])


def _adopt(connection: apsw.Connection, project: str, came: dict[str, State]) -> None:
    """Move what was imported here under the project id of another machine into this project, in
    which it comes now. Who sends its text and its time knows it already; and no folder here has
    that other project id, or the memory would be ours alone."""
    known = [[id, *state["put"][2:]] for id, state in came.items() if state["put"]]
    found = core.fetch(
        connection, core.asset("schema/sync_adopt.sql"), core.to_json(known), project
    )
    for id, imported in found:
        core.place_item(connection, id, project or None)
        sql = "UPDATE replica SET project = ?, number = (SELECT number FROM clock)"
        connection.execute(f"{sql} WHERE id = ? AND project = ?", (project, id, imported))


def _text_and_time(state: State) -> tuple[str, int] | None:
    """The text of a memory, and when it was created."""
    return state["put"] and state["put"][2:]


def _reason(by: str) -> str:
    """Why an item ended, as items say it."""
    return "replace" if by == BESIDE else by


def _item_from(encoder: core.Encoder, project: str, state: State) -> core.Item:
    """A memory that came, ready to be written; when it was stored follows from its stamp."""
    t, _, text, created = state["put"]
    chunks, vectors = core.split_text(text, encoder.fits), state.get("vectors", [])
    vectors = vectors if len(vectors) == len(chunks) else []
    item = core.Item(
        state["id"], text, core.detect_type(text), project or None, created, chunks, vectors
    )
    by, at, successor = (state["end"] or (None,) * 5)[2:]
    if by:
        by, at = _reason(by), max(at, created)
        item = item._replace(ended_at=at, ended_by=by, successor=successor or None)
    return item._replace(stored_at=min(int(time.time()), (t >> 16) // 1000))


def _joined(
    before: dict[str, State], elsewhere: dict[str, State], came: dict[str, State], project: str
) -> tuple[dict[str, State], Counter[str]]:
    """By id, the states that what came has changed, and the counts of it. What has an id that is
    in another project here is refused, unless the memory was moved."""
    joined, counts = {}, Counter[str]()
    for id, state in came.items():
        known, other = before.get(id), elsewhere.get(id)
        if known is None and other and not _was_moved(other, state):
            counts["refused"] += 1
            continue
        new = join(known, state) if known else state
        new = join(new, other) if other and other["gone"] else new
        if known is None or any(new[key] != known[key] for key in new):
            has_text = state["text_stands"] or (known and known["put"]) or not state["gone"]
            joined[id] = new | {"in": project, "author": state.get("author")}
            joined[id]["resend"] = new["gone"] and bool(has_text)
            counts["received"] += 1
            counts["forgotten"] += new["gone"] and (known or other) is not None
            counts["replaced"] += known is not None and bool(new["end"] and new["end"][4])
    return joined, counts


def _was_moved(other: State, state: State) -> bool:
    """Whether what came is of the memory with its id that is in another project here: that project
    must be shared, too, and the text the same, or the memory forgotten."""
    is_same = other["gone"] or (state["put"] and _text_and_time(state) == _text_and_time(other))
    return bool(other["shared"] and is_same)


def _write_states(connection: apsw.Connection, joined: dict[str, State]) -> None:
    """Write states down; what is forgotten in one project is so in all that it has been in."""
    rows = [
        (
            *(id, state["in"]),
            *(state["put"] or (None, None))[:2],
            *(state["end"] or (None,) * 5),
            *(-state["gone"], core.to_json(state["ok"]), state["resend"], state["author"]),
        )
        for id, state in joined.items()
    ]
    connection.executemany(core.asset("schema/sync_keep.sql"), rows)
    gone = [id for id, state in joined.items() if state["gone"]]
    sql = (
        "INSERT OR REPLACE INTO replica(id, project, gone, number)"
        " SELECT r.id, r.project, -1, c.number FROM replica r, clock c"
        " WHERE NOT r.gone AND r.id IN (SELECT value FROM json_each(?))"
    )
    connection.execute(sql, (json.dumps(gone),))


def _move_items(
    connection: apsw.Connection, joined: dict[str, State], elsewhere: dict[str, State]
) -> dict[str, State]:
    """Move memories that are in several projects to that of their latest text. Returns the states
    without those of memories that are in another project then."""
    sql = (
        "SELECT id, project FROM replica WHERE put_t NOT NULL"
        " AND id IN (SELECT value FROM json_each(?)) ORDER BY put_t, put_w, project"
    )
    moved = joined.keys() & elsewhere.keys()
    latest = dict(core.fetch(connection, sql, json.dumps([*moved]))) if moved else {}
    for id, project in latest.items():
        core.place_item(connection, id, project or None)
    return {id: state for id, state in joined.items() if latest.get(id) in (None, state["in"])}


def _update_items(
    connection: apsw.Connection, joined: dict[str, State], items: dict[str, core.Item]
) -> None:
    """Make the rows in `items` what follows from these states."""
    sql = (
        "SELECT id, text_hash, content, created_at FROM items"
        " WHERE file IS NULL AND id IN (SELECT value FROM json_each(?))"
    )
    erased_damaged = False
    for id, stored, content, created in core.fetch(connection, sql, json.dumps([*joined])):
        if _text_and_time(joined[id]) != (content, created):
            core.erase_item(connection, id, alone=True)
            erased_damaged |= core.text_hash(content) != stored
    core.insert_items(connection, [items[id] for id in items if id in joined and joined[id]["put"]])
    if erased_damaged:  # whose words are not those that the index has
        core.fill_words(connection)
    _change_ends(connection, joined)


def show_own(database: core.Database, ids: Iterable[str]) -> None:
    """Hide and bring back items by the view after own changes, too, as other machines will."""
    if _unlike_view(database.reader(), ids := [*ids]):
        with database.transaction() as connection, machines.unsynced(connection):
            _change_ends(connection, ids)


def _unlike_view(
    connection: apsw.Connection, ids: Iterable[str]
) -> list[tuple[State, str, Ended | None]]:
    """Of these memories and all near them, those whose items are not as the view says: the state,
    why the item is hidden now ("" if it is not), and what the view says."""
    near = states_of(connection, core.asset("schema/sync_near.sql"), json.dumps([*ids]))
    shown, found = view(near), []
    sql = (
        f"SELECT id, coalesce(iif({core.STOOD_BESIDE}, '{BESIDE}', ended_by), ''), ended_at,"
        " coalesce(successor, '') FROM items i"
        " WHERE file IS NULL AND id IN (SELECT value FROM json_each(?))"
    )
    for id, *now in core.fetch(connection, sql, json.dumps([*shown])):
        by, at, successor = shown[id] or ("", None, "")
        by = by if successor in near else _reason(by)  # history names no item that is not here
        if now != [by, at if at is None else max(at, near[id]["put"][3]), successor]:
            found.append((near[id], now[0], shown[id]))
    return found


def _change_ends(connection: apsw.Connection, ids: Iterable[str]) -> None:
    """Hide and bring back items as the view says. An undo that hides the item in front is noted in
    the history of that one, and not a second time with the one that comes back."""
    changes = _unlike_view(connection, ids)
    swapped = {(end[2], state["id"]) for state, _, end in changes if end and end[0] == "undo"}
    for state, now, end in changes:
        id = state["id"]
        if now:
            _, other = core.restore_item(connection, id)
            if state["end"] and not state["end"][2] and (id, other) not in swapped:
                core.add_history(connection, "undo", id, other, core.APART)
        if end is None:
            continue
        by, at, successor = end
        if connection.execute("SELECT 1 FROM items WHERE id = ?", (successor,)).get:
            core.end_item(connection, id, successor, _reason(by), at, beside=by == BESIDE)
            if state["end"] is None:  # a twin: somebody else says so, too
                core.count_validation(connection, successor)
        else:
            sql = "UPDATE items SET ended_at = max(created_at, ?), ended_by = ?, successor = ?"
            connection.execute(f"{sql} WHERE id = ?", (at, _reason(by), successor or None, id))


def _forget_successors(connection: apsw.Connection, ids: list[str]) -> int:
    """Forget what somebody put behind a memory that, unknown to them, was forgotten here."""
    sql = (
        "SELECT i.id FROM json_each(?) j JOIN items i ON i.id = j.value AND i.file IS NULL"
        " JOIN replica r ON r.id = i.id AND r.project = coalesce(i.project_id, '')"
        " JOIN replica f ON f.id = r.successor WHERE f.gone > 0"
    )
    found = core.fetch(connection, sql, json.dumps(ids))
    return sum(core.erase_item(connection, id) for (id,) in found)


def _bring_back(connection: apsw.Connection, gone: list[str]) -> None:
    """Bring back what is not shared and stood behind what others forgot: nobody would see it."""
    sql = (
        "SELECT s.id FROM json_each(?) j JOIN items i ON i.successor = j.value"
        " JOIN states s ON s.id = i.id AND s.here AND NOT s.shared"
    )
    for (id,) in core.fetch(connection, sql, json.dumps(gone)):
        core.restore_item(connection, id)
        core.add_history(connection, "undo", id)


def _find_rivals(states: Iterable[State]) -> dict[str, set[str]]:
    """By the id of a memory of which machines decided differently what stands in its place, the ids
    of those. It may be itself, where somebody brought it back or moved it."""
    found: dict[str, set[str]] = {}
    for state in states:
        ids = found.setdefault(state["id"], set())
        ids.update(state.get("rivals", ()))
        if state["end"]:
            ids.add(state["end"][4] or state["id"])
    return {id: ids for id, ids in found.items() if len(ids) > 1}


def queue_rivals(database: core.Database, rivals: dict[str, set[str]]) -> dict[str, list[str]]:
    """Queue for `review` what `_find_rivals` found, or what has replaced it since, where several
    are live of which nobody keeps all; returns these. All must have come: a memory may come in
    another batch than what was put in its place."""
    sql = (
        "WITH RECURSIVE ahead(first, id) AS (SELECT value, value FROM json_each(?)"
        " UNION SELECT first, successor FROM ahead JOIN items USING(id) WHERE ended_at NOT NULL),"
        " live AS (SELECT first, id FROM ahead JOIN items USING(id) WHERE ended_at IS NULL)"
        " SELECT DISTINCT a.id FROM live a JOIN live b ON b.id <> a.id"
        f" WHERE NOT EXISTS({core.taken_apart('a.first', 'b.first')})"
        f" AND NOT EXISTS({core.taken_apart('a.id', 'b.id')}) ORDER BY a.id"
    )
    found: dict[str, list[str]] = {}
    for id, ids in rivals.items():
        live = [live for (live,) in database.rows(sql, core.to_json(sorted(ids)))]
        if live and live not in found.values():
            found[id] = live
    if found:
        with database.transaction() as connection:
            for versions in found.values():
                core.queue_pairs_of(connection, versions)
    return found


def record_of(state: State, space: str) -> dict[str, Any]:
    """A state as it is sent: a line of a file, or a row of a push."""
    row = {"v": places.RECORD_VERSION, "id": state["id"], "in": space}
    keys = ("put", "end", "gone", "ok", "rivals")
    return row | {key: state[key] for key in keys if state.get(key)}


def rivals_of(ids: Any) -> list[str]:
    """What a record may say of the items that machines put in one's place at the same time: its end
    names one of them alone. An earlier program and an earlier hub say nothing of it."""
    named = [id for id in ids if isinstance(id, str)] if isinstance(ids, list) else []
    return [id for id in named if id.isprintable() and not _kinds_in_name(id)][: places.RIVALS]


def state_of(row: Any) -> tuple[str, State]:
    """The space and the state of a record; InvalidInput where it is none, NotYet if not now."""
    version = row.get("v") if isinstance(row, dict) else None
    if type(version) is not int:
        raise core.InvalidInput("it is no record")
    if version > places.RECORD_VERSION:
        raise places.NotYet(f"a newer Sediment wrote it ({version}): update this program")
    put = _stamped(row.get("put"), (int, str, str, int))
    end = _stamped(row.get("end"), (int, str, str, int, str))
    if put:
        core.check_text(put[2], "content", core.CONTENT_MAX)
    counts = row.get("ok", {})
    if not isinstance(counts, dict) or not all(map(is_count, counts.values())):
        raise core.InvalidInput("its confirmations are no numbers")
    for name in (*(put or ())[1:2], *(end or ())[1:2], *counts):
        core.check_id(name)
    id, gone = core.check_id(row.get("id")), row.get("gone") is True
    if end:
        _check_end(id, *end[2:])
    state = {"id": id, "gone": gone, "put": put, "end": end, "ok": counts}
    if held := held_back(state):  # which nobody sends
        raise core.InvalidInput(f"{held}, which goes nowhere")
    rivals = rivals_of(row.get("rivals"))
    return core.check_id(row.get("in")), join(state, state) | ({"rivals": rivals} if rivals else {})


def held_back(state: State) -> str:
    """What looks like a credential in a state, which neither goes anywhere nor is taken from
    others: its text, or an id or a machine that it names; nothing where it may go."""
    put, end = state["put"] or (), state["end"] or ()
    names = (state["id"], *put[1:2], *end[1:2], *end[4:], *state["ok"])
    kinds = core.redact(put[2])[1] if put else ()
    what = "its text" if kinds else "a name in it"
    names = (name for name in names if not core.UUID_FORM.fullmatch(name))  # as nearly all ids are
    kinds = kinds or next(filter(None, map(_kinds_in_name, names)), ())
    return f"{what} looks like a credential ({kinds[0]})" if kinds else ""


@functools.lru_cache(1_000)  # every state names machines, of which there are few
def _kinds_in_name(name: str) -> list[str]:
    """The kinds of credentials that a name looks like."""
    return core.redact(name)[1]


def _check_end(id: str, by: str, _: int, successor: str) -> None:
    """InvalidInput of an end that no memory has: assets/hub.sql takes none, either."""
    if by not in ("", BESIDE, *core.WHY_ENDED):
        raise core.InvalidInput(f"nothing ends for the reason {core.shown_value(by)}")
    if successor == id:
        raise core.InvalidInput("it would be hidden behind itself")
    if successor or by not in ("", core.PRUNED):
        core.check_id(successor)


def is_count(value: object, most: int = places.COUNT_MAX) -> bool:
    return type(value) is int and 0 <= value <= most


def _stamped(value: Any, kinds: tuple[type, ...]) -> Any:
    """A stamped value of these types, as a tuple; NotYet if it is more than a day ahead."""
    if value is None:
        return None
    if not isinstance(value, list) or tuple(map(type, value)) != kinds:
        raise core.InvalidInput("it has another form")
    if min(value[0], value[3]) < 0 or value[3] > core.TIME_MAX or value[0] >= 1 << 62:
        raise core.InvalidInput("its time cannot be")
    if (at := (value[0] >> 16) // 1000) > (now := time.time()) + core.DAY:
        there, here = (core.local_time(core.iso_time(int(clock)), 16) for clock in (at, now))
        why = f"by the clock of machine {value[1]} it is of {there}, and here it is {here}"
        raise places.NotYet(f"{why}: set the clock that is wrong; until then it waits")
    return tuple(value)

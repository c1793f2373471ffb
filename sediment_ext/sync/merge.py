"""Join the states of memories that machines exchange.

`join` makes one state of two; as neither their order nor repetition changes the result, a place
need not know anything of them. `visibility` says what recall sees of joined states.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw

import sediment as core
from sediment_ext.sync import machines, places

# id, gone, confirmations (their counts by machine), marks (by name: stamp, machine, value, of which
# 0 is one that was taken away), text: (stamp, machine, text, created),
# ending: (stamp, machine, by, at, successor), of which by is "" where it was brought back, and
# BESIDE where it was replaced by what was live already
State = dict[str, Any]
BESIDE = "beside"
Ended = tuple[str, int, str]  # why, when (unix seconds), and behind which item


def join(a: State, b: State) -> State:
    """The state that follows from two of one memory: forgetting wins, then the later text, ending
    and mark of a name, and the higher count of each machine's confirmations."""
    if a["gone"] or b["gone"]:
        nothing: State = {"text": None, "ending": None, "confirmations": {}}
        return {"id": a["id"], "gone": True, "marks": {}, **nothing}
    names = a["confirmations"].keys() | b["confirmations"].keys()
    counts = {
        name: max(a["confirmations"].get(name, 0), b["confirmations"].get(name, 0))
        for name in names
    }
    stamped = {key: _later(a[key], b[key]) for key in ("text", "ending")}
    names = a["marks"].keys() | b["marks"].keys()
    marks = {name: _later(a["marks"].get(name), b["marks"].get(name)) for name in names}
    return {"id": a["id"], "gone": False, **stamped, "confirmations": counts, "marks": marks}


def _later(a: Any, b: Any) -> Any:
    """The later of two stamped values; of one stamp, that of a copied file, the greater value."""
    return max(filter(None, (a, b)), default=None)


def visibility(states: dict[str, State]) -> dict[str, Ended | None]:
    """By id, how each memory is hidden, or None if it is live. `states` must include all versions
    and all memories with the same text (twins)."""
    there = {id: state for id, state in states.items() if state["text"]}
    ended = {id: state["ending"][2:] for id, state in there.items() if state["ending"]}
    shown = {id: ended[id] if id in ended and ended[id][0] else None for id in there}
    for circle in _circles({id: end[2] for id, end in shown.items() if end and end[2] in there}):
        shown[min(circle, key=lambda id: there[id]["ending"])] = None  # or nobody would be live
    twins: dict[Any, list[str]] = {}
    for id in (id for id, end in shown.items() if end is None):
        same = there[id].get("same") or core.text_hash(there[id]["text"][2])
        end = _values(there[id]).get(core.EXPIRY, 0)  # or what is to last would end with its twin
        twins.setdefault((there[id].get("in"), same, end), []).append(id)
    for ids in twins.values():
        elder = min(ids, key=lambda id: (there[id]["text"][3], id))
        for id in ids:
            if id != elder and id not in ended:  # nobody has taken it apart
                shown[id] = "repeat", there[id]["text"][3], elder
    return shown


def _values(state: State) -> dict[str, int]:
    """The marks of a memory without their stamps."""
    return {name: value for name, (_, _, value) in state["marks"].items()}


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
    `number` of an unsent change, the hash of its text (`same`), and whether it is `here` and
    `shared`."""
    found = {}
    try:
        rows = core.fetch(connection, sql, *values)
    except UnicodeDecodeError:  # SQLite finds nothing wrong with such a text
        raise core.DamagedError(f"{connection.filename} {core.DAMAGED}") from None
    for id, project, *columns in rows:
        put, end = tuple(columns[:4]), tuple(columns[4:9])
        gone, ok, marks, number, same, here, shared = columns[9:]
        found[id] = {
            "id": id,
            "gone": gone != 0,
            "text": None if None in (put[0], put[2]) else put,
            "ending": None if end[0] is None else end,
            "confirmations": json.loads(ok),
            "marks": {name: tuple(mark) for name, mark in json.loads(marks).items()},
            **{"in": project, "number": number, "same": same, "here": here, "shared": shared},
        }
    return found


def put_damaged_back(states: dict[str, State]) -> set[str]:
    """Date damaged texts a little earlier, so that a sound copy wins. Returns their ids."""
    texts = {id: state["text"] for id, state in states.items() if state["text"]}
    damaged = {id for id, put in texts.items() if core.text_hash(put[2]) != states[id]["same"]}
    for id in damaged:
        states[id]["text"] = (texts[id][0] - 1, *texts[id][1:])
    return damaged


def receive(
    database: core.Database, encoder: core.Encoder, project: str, states: list[State]
) -> tuple[Counter[str], dict[str, set[str]]]:
    """Join states that came with those here, and update the items. Returns counts, and what
    `_find_rivals` found."""
    came = _gathered(states)
    items = _items_to_write(database.reader(), encoder, project, came)
    with database.transaction() as connection:
        _begin_applying(connection, came)
        has_vectors = any(item.vectors for item in items.values())
        if has_vectors and not core.claim_model(connection, encoder.model):  # the file has another
            items = {id: item._replace(vectors=[]) for id, item in items.items()}
        _adopt(connection, project, came)
        ids = json.dumps([*came])
        before = states_of(connection, f"{AMONG} project = ?", ids, project)
        put_damaged_back(before)
        elsewhere = {id for (id,) in core.fetch(connection, _ELSEWHERE, project, ids)}
        joined, counts = _joined(before, elsewhere, came, project)
        _write_states(connection, joined)
        _update_items(connection, joined, items)
        _add_confirmations(connection, before, joined)
        connection.execute("UPDATE clock SET applying = 0")
        counts["forgotten"] += _forget_successors(connection, [*joined])
        _unhide_orphans(connection, [id for id, state in joined.items() if state["gone"]])
    taken = before.keys() | joined.keys()
    return counts, _find_rivals([*before.values(), *(one for one in states if one["id"] in taken)])


_ELSEWHERE = "SELECT id FROM replica WHERE project <> ? AND id IN (SELECT value FROM json_each(?))"


def _gathered(states: list[State]) -> dict[str, State]:
    """By id, what came of each memory; `text_stands` says that its text did, too."""
    came: dict[str, State] = {}
    for state in states:
        before = came.get(state["id"], state | {"text_stands": False})
        text_stands = before["text_stands"] or bool(state["text"])
        came[state["id"]] = state | join(before, state) | {"text_stands": text_stands}
    return came


def _items_to_write(
    connection: apsw.Connection, encoder: core.Encoder, project: str, came: dict[str, State]
) -> dict[str, core.Item]:
    """By id, an item for each text that came and is not here."""
    here = states_of(connection, f"{AMONG} here", json.dumps([*came]))
    return {
        id: _item_from(encoder, project, state)
        for id, state in came.items()
        if state["text"] and (id not in here or _text_and_time(here[id]) != _text_and_time(state))
    }


def _begin_applying(connection: apsw.Connection, came: dict[str, State]) -> None:
    """Have the triggers note nothing, and later decisions here get later stamps than these."""
    values = ([one["text"], one["ending"], *one["marks"].values()] for one in came.values())
    stamps = (value[0] for each in values for value in each if value)
    sql = "UPDATE clock SET applying = 1, number = number + 1, t = max(t, ?)"
    connection.execute(sql, (max(stamps, default=0),))


def _add_confirmations(
    connection: apsw.Connection, before: dict[str, State], joined: dict[str, State]
) -> None:
    """Count the confirmations that came with those of each item."""
    for id, state in joined.items():
        known = before[id]["confirmations"].values() if id in before else ()
        if (more := sum(state["confirmations"].values()) - sum(known)) > 0:
            core.add_counts(connection, id, 0, more)


def _adopt(connection: apsw.Connection, project: str, came: dict[str, State]) -> None:
    """Move memories into this project that were imported under another machine's id of it."""
    known = [[id, *state["text"][2:]] for id, state in came.items() if state["text"]]
    found = core.fetch(
        connection, core.asset("schema/sync_adopt.sql"), core.to_json(known), project
    )
    for id, imported in found:
        core.place_item(connection, id, project or None)
        sql = "UPDATE replica SET project = ?, number = (SELECT number FROM clock)"
        connection.execute(f"{sql} WHERE id = ? AND project = ?", (project, id, imported))


def _text_and_time(state: State) -> tuple[str, int] | None:
    """The text of a memory, and when it was created."""
    return state["text"] and state["text"][2:]


def _reason(by: str) -> str:
    """Why an item ended, as items say it."""
    return "replace" if by == BESIDE else by


def _item_from(encoder: core.Encoder, project: str, state: State) -> core.Item:
    """A memory that came, ready to be written; when it was stored follows from its stamp."""
    t, _, text, created = state["text"]
    chunks, vectors = core.split_text(text, encoder.fits), state.get("vectors", [])
    vectors = vectors if len(vectors) == len(chunks) else []
    item = core.Item(
        state["id"], text, core.detect_type(text), project or None, created, chunks, vectors
    )
    by, at, successor = (state["ending"] or (None,) * 5)[2:]
    if by:
        by, at = _reason(by), max(at, created)
        item = item._replace(ended_at=at, ended_by=by, successor=successor or None)
    return item._replace(stored_at=min(int(time.time()), (t >> 16) // 1000))


def _joined(
    before: dict[str, State], elsewhere: set[str], came: dict[str, State], project: str
) -> tuple[dict[str, State], Counter[str]]:
    """The states that have changed, by id, and counts. An id that another project has is
    refused."""
    joined, counts = {}, Counter[str]()
    for id, state in came.items():
        known = before.get(id)
        if known is None and id in elsewhere:
            counts["refused"] += 1
            continue
        new = join(known, state) if known else state
        if known is None or any(new[key] != known[key] for key in new):
            has_text = state["text_stands"] or (known and known["text"]) or not state["gone"]
            joined[id] = new | {"in": project, "author": state.get("author")}
            joined[id]["resend"] = new["gone"] and bool(has_text)
            counts["received"] += 1
            counts["forgotten"] += new["gone"] and known is not None
            counts["replaced"] += known is not None and bool(new["ending"] and new["ending"][4])
    return joined, counts


def _write_states(connection: apsw.Connection, joined: dict[str, State]) -> None:
    rows = [
        (
            *(id, state["in"]),
            *(state["text"] or (None, None))[:2],
            *(state["ending"] or (None,) * 5),
            *(
                -state["gone"],
                core.to_json(state["confirmations"]),
                state["resend"],
                state["author"],
                core.to_json(state["marks"]),
            ),
        )
        for id, state in joined.items()
    ]
    connection.executemany(core.asset("schema/sync_keep.sql"), rows)


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
    core.insert_items(
        connection, [items[id] for id in items if id in joined and joined[id]["text"]]
    )
    if erased_damaged:  # whose words are not those that the index has
        core.fill_words(connection)
    _change_ends(connection, joined)
    for id, state in joined.items():
        core.set_marks(connection, id, _values(state))


def show_own(database: core.Database, ids: Iterable[str]) -> None:
    """Hide and bring back items by the view after own changes, too, as other machines will."""
    if stale_endings(database.reader(), ids := [*ids]):
        with database.transaction() as connection, machines.unsynced(connection):
            _change_ends(connection, ids)


def stale_endings(
    connection: apsw.Connection, ids: Iterable[str]
) -> list[tuple[State, str, Ended | None]]:
    """Of these memories and those near them, those whose items do not match `visibility`: (state,
    why hidden now or "", what should be)."""
    near = states_of(connection, core.asset("schema/sync_near.sql"), json.dumps([*ids]))
    shown, found = visibility(near), []
    sql = (
        f"SELECT id, coalesce(iif({core.STOOD_BESIDE}, '{BESIDE}', ended_by), ''), ended_at,"
        " coalesce(successor, '') FROM items i"
        " WHERE file IS NULL AND id IN (SELECT value FROM json_each(?))"
    )
    for id, *now in core.fetch(connection, sql, json.dumps([*shown])):
        by, at, successor = shown[id] or ("", None, "")
        by = by if successor in near else _reason(by)  # history names no item that is not here
        if now != [by, at if at is None else max(at, near[id]["text"][3]), successor]:
            found.append((near[id], now[0], shown[id]))
    return found


def _change_ends(connection: apsw.Connection, ids: Iterable[str]) -> None:
    """Hide and restore items as `visibility` says. An undo that hides the item in front is noted
    once."""
    changes = stale_endings(connection, ids)
    swapped = {(end[2], state["id"]) for state, _, end in changes if end and end[0] == "undo"}
    for state, now, end in changes:
        id = state["id"]
        if now:
            _, other = core.restore_item(connection, id)
            if state["ending"] and not state["ending"][2] and (id, other) not in swapped:
                core.add_history(connection, "undo", id, other, core.APART)
        if end is None:
            continue
        by, at, successor = end
        if connection.execute("SELECT 1 FROM items WHERE id = ?", (successor,)).get:
            end = id, successor, _reason(by), at
            core.end_item(connection, *end, beside=by == BESIDE, decided=False)
            if state["ending"] is None:  # a twin: somebody else says so, too
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


def _unhide_orphans(connection: apsw.Connection, gone: list[str]) -> None:
    """Bring back what is not shared and was hidden behind what others forgot."""
    sql = (
        "SELECT s.id FROM json_each(?) j JOIN items i ON i.successor = j.value"
        " JOIN states s ON s.id = i.id AND s.here AND NOT s.shared"
    )
    for (id,) in core.fetch(connection, sql, json.dumps(gone)):
        core.restore_item(connection, id)
        core.add_history(connection, "undo", id)


def _find_rivals(states: Iterable[State]) -> dict[str, set[str]]:
    """By id, the different memories that machines put in one's place; or itself, if somebody
    restored it."""
    found: dict[str, set[str]] = {}
    for state in states:
        ids = found.setdefault(state["id"], set())
        ids.update(state.get("rivals", ()))
        if state["ending"]:
            ids.add(state["ending"][4] or state["id"])
    return {id: ids for id, ids in found.items() if len(ids) > 1}


def queue_rivals(database: core.Database, rivals: dict[str, set[str]]) -> dict[str, list[str]]:
    """Queue for `review` those of `_find_rivals` of which several are live and nobody decided to
    keep all. Call it after the last batch."""
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
                queue_pairs_of(connection, versions)
    return found


def queue_pairs_of(connection: apsw.Connection, versions: Sequence[str]) -> None:
    """Queue every pair of some live memories for `review`."""
    sql = (
        "INSERT OR IGNORE INTO reviews SELECT a.id, b.id, 0.5, 0 FROM items a JOIN items b"
        " ON (b.created_at, b.seq) > (a.created_at, a.seq)"
        " WHERE a.id IN (SELECT value FROM json_each(?1))"
        " AND b.id IN (SELECT value FROM json_each(?1))"
    )
    connection.execute(sql, (json.dumps(versions),))


def record_of(state: State, space: str) -> dict[str, Any]:
    """A state as it is sent: a line of a file, or a row of a push."""
    row = {"v": places.RECORD_VERSION, "id": state["id"], "in": space}
    keys = ("text", "ending", "gone", "confirmations", "marks", "rivals")
    return row | {key: state[key] for key in keys if state.get(key)}


def rivals_of(ids: Any) -> list[str]:
    """The ids in a record that machines put in one memory's place; its ending names only one."""
    named = [id for id in ids if isinstance(id, str)] if isinstance(ids, list) else []
    return [id for id in named if id.isprintable()][: places.RIVALS]


def state_of(row: Any) -> tuple[str, State]:
    """The space and state of a record. InvalidInput, or FutureRecord if it must wait."""
    version = row.get("v") if isinstance(row, dict) else None
    if type(version) is not int:
        raise core.InvalidInput("it is not a record of sync")
    if version > places.RECORD_VERSION:
        raise places.FutureRecord(f"a newer Sediment wrote it ({version}): update this program")
    put = _stamped(row.get("text"), (int, str, str, int))
    end = _stamped(row.get("ending"), (int, str, str, int, str))
    if put:
        core.check_text(put[2], "content", core.CONTENT_MAX)
    counts = row.get("confirmations", {})
    if not isinstance(counts, dict) or not all(map(is_count, counts.values())):
        raise core.InvalidInput("its confirmations are not numbers")
    marks = _marks_of(row.get("marks") or {})
    for name in (
        *(put or ())[1:2],
        *(end or ())[1:2],
        *counts,
        *(by for _, by, _ in marks.values()),
    ):
        core.check_id(name)
    id, gone = core.check_id(row.get("id")), row.get("gone") is True
    if end:
        _check_end(id, *end[2:])
    state = {"id": id, "gone": gone, "text": put, "ending": end, "confirmations": counts}
    state["marks"] = marks
    if held := held_back(state):  # which nobody sends
        raise core.InvalidInput(f"{held}, so it is not synced")
    rivals = rivals_of(row.get("rivals"))
    return core.check_id(row.get("in")), join(state, state) | ({"rivals": rivals} if rivals else {})


def held_back(state: State) -> str:
    """Why the text of a state neither goes anywhere nor is taken from others; "" if it may go."""
    kinds = core.redact(state["text"][2])[1] if state["text"] else ()
    return f"its text looks like a credential ({kinds[0]})" if kinds else ""


def _check_end(id: str, by: str, _: int, successor: str) -> None:
    """InvalidInput of an expiration time that no memory has: assets/hub.sql takes none, either."""
    if by not in ("", BESIDE, *core.WHY_ENDED):
        raise core.InvalidInput(f"no memory ends for the reason {core.shown_value(by)}")
    if successor == id:
        raise core.InvalidInput("it would be hidden behind itself")
    if successor or by not in ("", core.PRUNED):
        core.check_id(successor)


def _marks_of(given: Any) -> dict[str, Any]:
    """The tags and the end in a record, each with its stamp. InvalidInput where they are none."""
    if not isinstance(given, dict) or len(given) > places.MARKS_MAX:
        raise core.InvalidInput(f"its tags are not {places.MARKS_MAX} at most")
    if any(name != core.EXPIRY and core.check_tag(name) != name for name in given):
        raise core.InvalidInput("its tags are not as tags are kept")
    return {name: _stamped(mark, (int, str, int)) for name, mark in given.items() if mark}


def is_count(value: object, most: int = places.COUNT_MAX) -> bool:
    return type(value) is int and 0 <= value <= most


def _stamped(value: Any, kinds: tuple[type, ...]) -> Any:
    """A stamped value of these types, as a tuple; FutureRecord if it is more than a day ahead."""
    if value is None:
        return None
    if not isinstance(value, list) or tuple(map(type, value)) != kinds:
        raise core.InvalidInput("it is malformed")
    at = next(part for part in value[2:] if isinstance(part, int))
    if min(value[0], at) < 0 or at > core.TIME_MAX or value[0] >= 1 << 62:
        raise core.InvalidInput("its time is impossible")
    if (at := (value[0] >> 16) // 1000) > (now := time.time()) + core.DAY:
        there, here = (core.local_time(core.iso_time(int(clock)), 16) for clock in (at, now))
        why = f"machine {value[1]} dated it {there}, but here it is {here}"
        raise places.FutureRecord(f"{why}: set the wrong clock; the change waits until then")
    return tuple(value)

"""Who wrote what, which file is which machine, and damaged texts, which no other one is to get."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3

import pytest
from storage import open_memory
from sync_machines import Place, settle, texts

import sediment
import sediment_ext.hooks
from sediment import DatabaseError, Memory


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


def test_a_hook_says_who_wrote_what_came_from_others(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("We always deploy on Fridays.")
    settle(a, b)
    told = sediment_ext.hooks.run_hook(b, {"hook_event_name": "SessionStart", "session_id": "s"})
    assert re.search(r"[0-9a-f]{8}: written by .+: We always deploy on Fridays", str(told))
    told = sediment_ext.hooks.run_hook(a, {"hook_event_name": "SessionStart", "session_id": "s"})
    assert "Fridays" in str(told)
    assert "written by" not in str(told)


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


def one_damaged(place: Place, new: str, who: str) -> tuple[str, Memory, Memory]:
    """A text that two machines have, the machine on which it is damaged, and the other one."""
    a, b = place.machine("a"), place.machine("b")
    id = a.store(SOUND)["id"]
    settle(a, b)
    hit, other = (a, b) if who == "author" else (b, a)
    rot(hit, id, "port", new)
    return id, hit, other


@pytest.mark.parametrize("new", ["xort", "aort"])  # greater and less than the sound text
@pytest.mark.parametrize("who", ["author", "reader"])
@pytest.mark.parametrize("deed", ["again", "store", "confirm"])
def test_a_damaged_text_is_not_sent_and_is_replaced_by_the_sound_one(
    place: Place, new: str, who: str, deed: str
) -> None:
    id, hit, other = one_damaged(place, new, who)
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
    id, hit, other = one_damaged(place, new, who)
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

"""Sync through a folder: what arrives, and what it has lost or damaged or should never have had."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from storage import open_memory
from sync_machines import Place, line_of, settle, texts

import sediment
import sediment_ext.sync.commands
import sediment_ext.sync.folder
import sediment_ext.sync.places
import sediment_ext.sync.run
from sediment import InvalidInput
from sediment_ext.sync.places import Unreachable

TOKEN = "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789"


def test_what_is_stored_on_one_machine_is_recalled_on_the_other(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("The staging database is on port 5433.", created_at="2026-03-05 14:00")["id"]
    settle(a, b)
    assert b.pending() == 1  # found by words at once
    assert b.recall("staging database port")["results"][0]["id"] == id
    b.embed_pending()
    assert b.get(id)["created"] == a.get(id)["created"]
    assert b.sync()["spaces"][0]["received"] == 0


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

"""A run of sync: what is sent, which run waits, and how a place is joined, followed and left."""

from __future__ import annotations

import functools
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from storage import open_memory
from sync_machines import Place, git_place, settle, texts

import sediment
import sediment_ext.sync.commands
import sediment_ext.sync.folder
import sediment_ext.sync.run
from sediment import DatabaseError, InvalidInput, Memory, NotFound, SedimentError


def test_a_slow_place_lets_no_second_run_in(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = place.machine("a"), open_memory(place.folder / "a" / "memory.db")
    a.store("The port is 5433.")
    monkeypatch.setattr(sediment, "LEASE", 3)
    write, tries = sediment_ext.sync.folder.Folder._write, []

    def write_slowly(self: Any, texts: dict[str, str]) -> None:
        if not tries:
            tries.append("first")
            time.sleep(4.5)
            with sediment.Lease(b.database, "syncing") as other:
                tries.append("second" if other.take() else "none")
        write(self, texts)

    monkeypatch.setattr(sediment_ext.sync.folder.Folder, "_write", write_slowly)
    assert a.sync()["spaces"][0]["sent"] == 1
    assert tries == ["first", "none"]


@pytest.mark.parametrize("deed", ["sync_to", "leave_sync"])
def test_a_place_that_is_slow_to_be_left_lets_no_run_in(
    place: Place, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    a, b = place.machine("a"), open_memory(place.folder / "a" / "memory.db")
    monkeypatch.setattr(sediment, "LEASE", 3)
    leave, tries = sediment_ext.sync.folder.Folder.leave, []

    def leave_slowly(self: Any) -> None:
        time.sleep(4.5)
        with sediment.Lease(b.database, "syncing") as other:
            tries.append(other.take())
        leave(self)

    monkeypatch.setattr(sediment_ext.sync.folder.Folder, "leave", leave_slowly)
    getattr(a, deed)(*[str(place.folder / "other")] * (deed == "sync_to"))
    assert tries == [False]
    b.close()


@pytest.mark.parametrize("moment", ["begin", "pull"])
def test_what_is_shared_while_a_run_reads_is_read_by_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    a, b = place.machine("a"), place.machine("b")
    crews = [open_memory(place.folder / name / "memory.db", "crew") for name in "ab"]
    crews[0].share("crew")
    for number in range(5):
        a.store(f"Fact {number} of the team.")
        crews[0].store(f"Fact {number} of the crew.")
    a.sync()
    work = getattr(sediment_ext.sync.folder.Folder, moment)

    def share_meanwhile(self: Any, *given: Any) -> Any:
        done = work(self, *given)
        done = iter([*done]) if moment == "pull" else done
        crews[1].share("crew")
        return done

    monkeypatch.setattr(sediment_ext.sync.folder.Folder, moment, share_meanwhile)
    b.sync()
    monkeypatch.undo()
    b.sync()
    assert texts(crews[1]) == texts(crews[0])
    assert texts(b) == texts(a)
    assert b.sync()["spaces"][0]["received"] == 0
    for crew in crews:
        crew.close()


def test_a_run_of_sync_waits_for_the_one_before_it(place: Place) -> None:
    a = place.machine("a")
    a.store("The port is 5433.")
    with sediment.Lease(a.database, "syncing") as before:
        before.take()
        threading.Timer(0.5, before.release).start()
        assert a.sync()["spaces"][0]["sent"] == 1


@pytest.mark.parametrize("place", ["shared\udcff", "git:shared\udcff", "postgresql://h\udcff/x"])
def test_a_place_that_cannot_be_written_down_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_memory(tmp_path / "memory.db") as memory:
        with pytest.raises(InvalidInput, match="place is not valid Unicode"):
            memory.sync_to(place)
        assert not sediment.is_synced(memory.database)
    assert not (tmp_path / place).exists()


def test_a_credential_is_no_name_of_a_space(place: Place) -> None:
    a = place.machine("a", share="")
    with pytest.raises(InvalidInput, match="space looks like a credential"):
        a.share("ghp_" + "a1B2" * 9)
    with pytest.raises(InvalidInput, match="space looks like a credential"):
        a.hub("add", "alice", "ghp_" + "a1B2" * 9, place="postgresql://alice@127.0.0.1:9/x")


def test_nothing_is_noted_before_sync_is_set_up(place: Place) -> None:
    memory = open_memory(place.folder / "plain.db")
    memory.store("Nobody else knows this.")
    schema = memory.database.rows("SELECT name, sql FROM sqlite_schema ORDER BY name")
    memory.sync_to(str(place.shared))
    assert len(memory.database.rows("SELECT name FROM sqlite_schema")) > len(schema)
    memory.leave_sync()
    for again in (False, True):
        with pytest.raises(NotFound, match="sync --to PLACE"):
            memory.sync(again=again)


@pytest.mark.parametrize("order", ["leave forget", "unshare forget leave", "forget leave"])
def test_what_who_leaves_forgets_stays_forgotten(place: Place, order: str) -> None:
    a = place.machine("a")
    id = a.store("The crane is called Gundula.")["id"]
    settle(a)
    deeds = {"leave": a.leave_sync, "unshare": a.unshare, "forget": lambda: a.forget(id)}
    told = {deed: deeds[deed]()["message"] for deed in order.split()}
    waits = order == "forget leave"
    assert ("1 change waits until it syncs there again" in told["leave"]) == waits
    stays = "stays where it was sent until this memory syncs there again" in told["forget"]
    assert stays == (order == "leave forget")
    a.sync_to(str(place.shared))
    a.share("team")
    settle(a)
    assert texts(a) == []
    assert "Gundula" not in place.text()


def test_who_leaves_and_erases_gets_it_again_when_he_comes_back(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("Of a.")
    settle(a, b)
    b.leave_sync(erase=True)
    b.sync_to(str(place.shared))
    b.share("team")
    settle(b)
    assert texts(b) == ["Of a."]


def test_who_erased_and_comes_back_erases_in_its_own_files_what_others_forgot(
    place: Place,
) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("The crane is called Gundula.")["id"]
    settle(a, b)
    b.store("The crane is called Gundula.")
    settle(b)
    b.leave_sync(erase=True)
    a.forget(id)
    settle(a)
    b.sync_to(str(place.shared))
    b.share("team")
    settle(b)
    assert "Gundula" not in place.text()


def test_under_another_name_a_project_is_sent_anew_and_forgotten_in_both(place: Place) -> None:
    a = place.machine("a")
    id = a.store("The crane is called Gundula.")["id"]
    settle(a)
    a.unshare()
    a.share("other")
    settle(a)
    b = place.machine("b", share="other")
    settle(b)
    assert texts(b) == ["The crane is called Gundula."]
    a.forget(id)
    settle(a, b)
    assert texts(b) == []
    assert "Gundula" not in place.text()


def test_nothing_is_shared_before_somebody_says_so(place: Place) -> None:
    a = place.machine("a", share="")
    a.store("Only for this project.")
    assert a.sync()["spaces"] == []
    assert "Only" not in place.text()
    other = open_memory(a.database.path, "another")
    other.store("Of another project.")
    a.share("team")
    a.store("For all.", scope="global")
    a.sync()
    assert "Only" in place.text()
    assert "another project" not in place.text()
    assert "For all." not in place.text()
    a.share(everywhere=True)
    a.sync()
    assert "For all." in place.text()


def test_what_looks_like_a_credential_never_leaves(place: Place) -> None:
    a, b = place.machine("a", share=""), place.machine("b")
    a.store("The password is hunter2!X9qLm.", allow_secrets=True)
    a.store("The gateway is called newton.")
    told = a.share("team")
    assert told["held_back"] == 1
    assert told["message"] == (
        "team will get 1 memory with the next `sync`; 1 held back, because the text looks like a"
        " credential."
    )
    a.store("The port is 5433.")
    assert a.share("team")["message"].startswith("team will get 2 memories")
    assert a.sync()["spaces"][0]["held_back"] == 1
    assert "hunter2" not in place.text()
    settle(a, b)
    assert texts(b) == ["The gateway is called newton.", "The port is 5433."]
    assert len(texts(a)) == 3


def test_sending_again_does_no_harm(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("A fact.")
    settle(a, b)
    assert a.sync()["spaces"][0]["sent"] == 0
    assert a.sync(again=True)["spaces"][0]["sent"] == 1
    assert b.sync()["spaces"][0]["received"] == 0


def test_who_leaves_keeps_or_erases_what_came_from_others(place: Place) -> None:
    a, b, c = (place.machine(name) for name in "abc")
    a.store("Of a.")
    b.store("Of b.")
    settle(a, b, c)
    b.leave_sync(erase=True)
    assert texts(b) == ["Of b."]
    c.leave_sync()
    assert texts(c) == ["Of a.", "Of b."]
    assert len(a.sync_status()["machines"]) == 1
    settle(a)
    assert texts(a) == ["Of a.", "Of b."]


@pytest.mark.parametrize("kind", ["folder", "git"])
def test_status_says_how_to_delete_the_files_of_a_machine_that_left(
    tmp_path: Path, kind: str
) -> None:
    shared = git_place(tmp_path) if kind == "git" else tmp_path / "shared"
    a, b, c = (open_memory(tmp_path / name / "memory.db") for name in "abc")

    def join(memory: Memory) -> None:
        memory.sync_to(f"git:{shared}" if kind == "git" else str(shared))
        memory.share("team")
        memory.sync()

    join(a)
    join(b)
    gone = b.store("The petrel nests at a former address.")["id"]
    b.store("The queue is on port 5672.")
    settle(b, a)
    left = b.sync_status()["machine"]
    b.leave_sync()
    a.forget(gone)
    a.sync()
    (told,) = a.sync_status()["remarks"]
    assert f"{left} has left" in told
    if kind == "git":
        assert f"`git push {shared} --delete refs/sediment/{left}`" in told
        words = ["git", "push", "-q", str(shared), "--delete", f"refs/sediment/{left}"]
        subprocess.run(words, cwd=shared, check=True)
    else:
        assert f"delete the folder {shared / left}" in told
        shutil.rmtree(shared / left)
    settle(a)
    assert "remarks" not in a.sync_status()
    join(c)
    assert texts(c) == ["The queue is on port 5672."]
    for memory in (a, b, c):
        memory.close()


def test_who_leaves_and_erases_keeps_what_is_his_and_nothing_else(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    theirs = a.store("Of a.")["id"]
    settle(a, b)
    mine = b.store("Of b.")["id"]
    b.replace(mine, theirs)
    settle(b, a)
    b.unshare()
    assert "; erased 1 memory that came from others" in b.leave_sync(erase=True)["message"]
    assert texts(b) == ["Of b."]


@pytest.mark.parametrize("kind", ["folder", "git"])
def test_who_goes_to_another_place_leaves_the_one_before(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path / "folder")
    where = f"git:{git_place(tmp_path)}" if kind == "git" else str(place.shared)
    a, b = place.machine("a"), place.machine("b")
    for memory in (a, b):
        memory.sync_to(where)
    id = a.store("A forgotten walrus.")["id"]
    settle(a, b)
    left = a.sync_status()["machine"]
    assert "remarks" not in a.sync_to(str(tmp_path / "other"))
    assert a.sync()["spaces"][0]["sent"] == 1
    b.forget(id)
    settle(b)
    status = b.sync_status()
    assert left not in {machine["machine"] for machine in status["machines"]}
    assert f"{left} has left" in status["remarks"][0]
    for memory in place.all:
        memory.close()


def test_a_place_that_was_away_when_it_was_left_is_told_later(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("A fact.")
    settle(a, b)
    away = place.shared.rename(place.folder / "away")
    how = f"`sync --to {place.shared}` and `sync --leave`"
    assert how in "".join(a.sync_to(str(place.folder / "other"))["remarks"])
    a.sync_to(str(away))
    a.sync()
    away.rename(place.shared)
    assert how.replace("shared", "away") in a.leave_sync()["message"]
    assert len(b.sync_status()["machines"]) == 2
    assert "remarks" not in a.sync_to(str(place.shared))
    assert "could not be told" not in a.leave_sync()["message"]
    assert len(b.sync_status()["machines"]) == 1


def test_who_comes_back_is_who_he_was_and_can_forget(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    name = a.sync_status()["machine"]
    id = a.store("An unforgettable rhinoceros lives there.")["id"]
    settle(a, b)
    a.leave_sync()
    a.backup(place.folder / "copy.db")
    a.sync_to(str(place.shared))
    a.share("team")
    assert a.sync_status()["machine"] == name
    with open_memory(place.folder / "copy.db") as copy:
        assert copy.sync_to(str(place.shared))["machine"] != name
    a.forget(id)
    settle(a, b)
    assert texts(b) == []
    assert "rhinoceros" not in place.text()


def test_changes_dated_a_day_ahead_are_not_sent_until_they_are_dated_again(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    old = a.store("Deploys happen on Fridays.")["id"]
    settle(a, b)
    with a.database.transaction() as connection:
        connection.execute("UPDATE clock SET t = t + (400 * 86400000 << 16)")
    a.store("Deploys happen on Mondays.", replace=old)
    a.store("Tea is at four.")
    with pytest.raises(SedimentError, match=r"set the clock.*`sync --again` dates"):
        a.sync()
    assert a.sync(again=True)["remarks"] == b.sync()["remarks"] == []
    assert texts(b) == ["Deploys happen on Mondays.", "Tea is at four."]
    b.undo(old)
    settle(b, a)
    assert texts(a) == ["Deploys happen on Fridays.", "Tea is at four."]


def test_of_two_clocks_that_differ_both_times_are_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("The port is 5433.", created_at="2020-01-01")
    a.sync()
    now = sediment.time.time()
    with b.database.transaction() as connection:
        connection.execute("UPDATE clock SET t = t - (400 * 86400000 << 16)")
    monkeypatch.setattr(sediment.time, "time", lambda: now - 400 * 86_400)
    (remark,) = b.sync()["remarks"]
    for at in (now, now - 400 * 86_400):
        assert sediment.local_time(sediment.iso_time(int(at))) in remark
    assert "set the wrong clock" in remark
    assert "waits" in remark
    monkeypatch.undo()
    assert b.sync()["remarks"] == []
    assert texts(b) == ["The port is 5433."]


def test_who_follows_a_place_that_is_away_is_told_what_waits(place: Place) -> None:
    a = place.machine("a")
    a.store("The port is 5433.")
    with a.database.transaction() as connection:
        connection.execute("UPDATE clock SET place = '/nonexistent/place'")
    told = next(a.follow_sync())
    assert [row["waiting"] for row in told["spaces"]] == [1]
    assert "is not there" in told["remarks"][0]
    assert "Nothing is shared" not in "".join(sediment_ext.sync.commands.render_synced(told))


def test_what_goes_to_nobody_hides_nothing_of_others(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    one, two = a.store("The port is 5433.")["id"], a.store("The gateway is newton.")["id"]
    settle(a, b)
    a.store("Mine alone.", scope="global", replace=one)
    secret = "The gateway's password is hunter2!X9qLm."
    a.store(secret, replace=two, allow_secrets=True)
    told = a.sync()["spaces"][0]
    assert (told["waiting"], told["held_back"]) == (3, 1)  # the secret alone looks like one
    b.sync()
    assert texts(b) == ["The gateway is newton.", "The port is 5433."]
    a.share(everywhere=True)
    settle(a, b)
    assert texts(b) == ["The gateway is newton."]


def test_what_is_unshared_goes_nowhere_and_stays(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("Before.")
    settle(a, b)
    a.unshare()
    a.store("After.")
    settle(a, b)
    assert texts(b) == ["Before."]
    with pytest.raises(NotFound, match="not shared"):
        a.unshare()
    a.share("team")
    settle(a, b)
    assert texts(b) == ["After.", "Before."]


def test_a_project_is_shared_under_one_name(place: Place) -> None:
    a = place.machine("a")
    with pytest.raises(InvalidInput, match="shared as team"):
        a.share("another")
    with pytest.raises(InvalidInput, match="shared as team"):
        open_memory(a.database.path, "another").share("team")


def test_a_shared_project_may_get_another_id(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("Before its first commit.")
    settle(a, b)
    with a.database.transaction() as connection:
        sediment.move_project(connection, "demo", "new-id")
        connection.execute("INSERT INTO projects VALUES('moved:demo', 'new-id')")
    renamed = open_memory(a.database.path, "new-id")
    renamed.store("After it.")
    settle(renamed, b)
    assert texts(b) == ["After it.", "Before its first commit."]


def test_two_syncs_of_one_file_do_not_meet(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    a = place.machine("a")
    a.store("A fact.")
    with sediment.Lease(a.database, "syncing") as other:
        monkeypatch.setattr(sediment.time, "sleep", lambda _: other.take())  # it works on
        monkeypatch.setattr(sediment, "LEASE", 2)
        monkeypatch.setattr(sediment_ext.sync.run.take_lease, "__defaults__", (3,))
        assert other.take()
        with pytest.raises(DatabaseError, match="another process"):
            a.sync()


def test_who_follows_a_place_goes_to_another_with_the_memory(place: Place) -> None:
    a, other = place.machine("a"), place.folder / "other"
    a.store("The ferry sails at six.")
    follower = sediment_ext.sync.run.Sync(a.projects, a.encoder)
    follower.run()
    with open_memory(a.database.path) as by_hand:
        by_hand.sync_to(str(other))
    assert follower.run()["spaces"][0]["sent"] == 1
    assert any("sails at six" in path.read_text("utf-8") for path in other.rglob("*.jsonl"))


def test_who_follows_a_place_that_was_left_writes_nothing_there(place: Place) -> None:
    a = place.machine("a")
    a.store("The ferry sails at six.")
    follower = sediment_ext.sync.run.Sync(a.projects, a.encoder)
    follower.run()
    mine = place.files_of(a)
    with open_memory(a.database.path) as by_hand:
        by_hand.leave_sync()
    with pytest.raises(NotFound, match="does not sync yet"):
        follower.run()
    assert not (mine / "machine.json").exists()
    assert "does not sync yet" in next(follower.follow())["remarks"][0]


def test_a_place_is_not_left_while_a_run_writes_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = place.machine("a")
    monkeypatch.setattr(
        sediment_ext.sync.run,
        "take_lease",
        functools.partial(sediment_ext.sync.run.take_lease, wait=0),
    )
    with sediment.Lease(a.database, "syncing") as running:
        assert running.take()
        with pytest.raises(DatabaseError, match="another process"):
            a.leave_sync()
        with pytest.raises(DatabaseError, match="another process"):
            a.sync_to(str(place.folder / "other"))
    a.leave_sync()

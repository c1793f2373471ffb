"""Restoring, forgetting, importing and pruning where a memory syncs."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from storage import consistent, open_memory
from sync_machines import Place, settle, texts

import sediment_ext.sync.commands
import sediment_ext.upkeep
from sediment import NotFound


def test_an_import_of_what_was_kept_brings_back_nothing_that_was_replaced_since(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = place.machine("a")
    kept = a.store("The backup window is at 3 in the morning.")["id"]
    old = a.store("Note: The backup window is at 3 in the morning.")["id"]
    a.keep_both(kept, old)
    rows = list(a.export_rows())
    a.store("The backup window is at 5 in the afternoon.", replace=old)
    a.sync()
    (place.folder / "b").mkdir()
    with open_memory(place.folder / "b" / "memory.db") as b, monkeypatch.context() as later:
        now = time.time()
        later.setattr(time, "time", lambda: now + 60)
        assert b.import_rows(rows)["stored"] == 2
        assert b.history(old)["events"] == []
    b = place.machine("b")
    settle(b, a)
    assert old not in [row["id"] for memory in (a, b) for row in memory.list_items()["items"]]


@pytest.mark.parametrize("kind", ["folder", "git"])
def test_what_was_restored_while_it_was_not_shared_comes_back(tmp_path: Path, kind: str) -> None:
    (there := tmp_path / "place").mkdir()
    subprocess.run(["git", "init", "--bare", "-q", str(there)], check=True)
    with open_memory(tmp_path / "memory.db") as a:
        a.sync_to(f"git:{there}" if kind == "git" else str(there))
        a.share("team")
        a.store("The crane is called Gundula.")
        a.backup(tmp_path / "old.bak")
        a.store("The port is 5433.")
        a.sync()
        a.unshare()
        a.restore(tmp_path / "old.bak")
        a.sync()
        a.share("team")
        assert a.sync()["remarks"] == []
        assert texts(a) == ["The crane is called Gundula.", "The port is 5433."]


def test_forgetting_says_what_stays_elsewhere(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    first, second, third = (a.store(f"Fact {n} of many.")["id"] for n in range(3))
    settle(a, b)
    assert "next `sync`" in a.forget(first)["message"]
    a.unshare()
    assert "`sync --share NAME`" in a.forget(second)["message"]
    assert len(texts(b)) == 3
    late = a.store("Never sent.")["id"]
    assert "sync" not in a.forget(late)["message"]
    a.share("team")
    settle(a, b)
    assert texts(b) == texts(a) == [a.get(third)["content"]]


def test_status_says_who_has_yet_to_erase_what_was_forgotten(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("Soon forgotten.")["id"]
    settle(a, b)
    assert "sync --status" in a.forget(id)["message"]
    a.sync()
    late = {row["machine"]: row["to_erase"] for row in a.sync_status()["machines"]}
    assert late == {a.sync_status()["machine"]: 0, b.sync_status()["machine"]: 1}
    settle(b, a)
    assert {row["to_erase"] for row in a.sync_status()["machines"]} == {0}


def test_status_says_that_what_was_forgotten_waits(place: Place) -> None:
    a = place.machine("a")
    id = a.store("Soon forgotten.")["id"]
    a.sync()
    a.forget(id)
    (space,) = (status := a.sync_status())["spaces"]
    assert (space["here"], space["waiting"]) == (0, 1)
    assert "0 memories here, 1 not sent yet" in "".join(
        sediment_ext.sync.commands.render_synced(status)
    )
    (space,) = a.sync()["spaces"]
    assert (space["sent"], space["waiting"]) == (1, 0)


def test_an_import_brings_back_nothing_that_was_forgotten(place: Place) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("Soon forgotten.")["id"]
    rows = list(a.export_rows())
    settle(a, b)
    b.forget(id)
    settle(b, a)
    answer = a.import_rows(rows)
    assert (answer["stored"], answer["forgotten"]) == (0, 1)
    assert texts(a) == []
    a.store("Soon forgotten.")  # under another id it may be said again
    settle(a, b)
    assert texts(b) == ["Soon forgotten."]


def test_a_restored_backup_gets_what_it_missed(place: Place, tmp_path: Path) -> None:
    a, b = place.machine("a"), place.machine("b")
    a.store("From before.")
    id = a.store("Soon forgotten.")["id"]
    settle(a, b)
    a.backup(tmp_path / "backup.db")
    a.store("From after.")
    b.store("From the other.")
    settle(a, b)
    b.forget(id)
    settle(b, a)
    told = a.restore(tmp_path / "backup.db")["message"]
    assert "not brought back: 1" in told
    assert texts(a) == ["From before."]
    settle(a, b)
    assert texts(a) == texts(b) == ["From after.", "From before.", "From the other."]


def test_what_was_forgotten_comes_back_by_no_backup_and_is_forgotten_by_others(
    place: Place, tmp_path: Path
) -> None:
    a, b = open_memory(place.folder / "a.db"), place.machine("b")
    place.all.append(a)
    id = a.store("An unforgettable rhinoceros lives there.")["id"]
    a.backup(tmp_path / "before.db")
    a.sync_to(str(place.shared))
    a.share("team")
    settle(a, b)
    a.backup(tmp_path / "after.db")
    a.forget(id)
    for name in ("before.db", "after.db"):
        a.restore(tmp_path / name)
        assert texts(a) == []
        assert b"rhinoceros" not in a.database.path.read_bytes()
    assert a.sync_status()["spaces"][0]["space"] == "team"
    settle(a, b)
    assert texts(b) == []
    assert "rhinoceros" not in place.text()
    a.store("Of after.")
    settle(a, b)
    assert texts(b) == ["Of after."]


def test_a_backup_of_somebody_else_brings_no_place_and_no_shares(place: Place) -> None:
    theirs, mine = place.machine("theirs"), open_memory(place.folder / "mine.db")
    gone = theirs.store("Soon forgotten.")["id"]
    theirs.store("Of theirs.")
    theirs.sync()
    theirs.forget(gone)
    theirs.backup(copy := place.folder / "backup.db")
    assert f"The copy syncs with {place.shared}" in mine.restore(copy)["message"]
    with pytest.raises(NotFound, match="does not sync yet"):
        mine.sync()
    mine.sync_to(str(place.shared))
    assert mine.sync()["spaces"] == []
    mine.share("team")
    settle(mine, theirs)
    assert texts(mine) == texts(theirs) == ["Of theirs."]
    assert mine.sync_status()["machine"] != theirs.sync_status()["machine"]
    other = place.folder / "elsewhere"
    mine.sync_to(str(other))
    mine.restore(copy)
    assert mine.sync_status()["place"] == str(other)
    consistent(mine)
    mine.close()


def test_a_prune_leaves_what_others_share_unless_told_and_both_sides_hear_of_it(
    place: Place,
) -> None:
    a, b = place.machine("a"), place.machine("b")
    id = a.store("The gateway is newton.", created_at="2020-01-01")["id"]
    own = a.store("The bike is red.", scope="global", created_at="2020-01-01")["id"]
    settle(a, b)
    answer = a.prune("1y")
    assert [row["id"] for row in a.prune("1y", scope="global")["items"]] == [own]
    assert (answer["count"], answer["kept"][0]["why"]) == (0, "shared")
    assert "Other machines share 1 of these" in "\n".join(sediment_ext.upkeep.render_pruned(answer))
    settle(a, b)
    assert texts(b) == texts(a) == ["The gateway is newton."]
    assert [row["id"] for row in a.prune("1y", all_machines=True)["items"]] == [id]
    a.sync()
    told = b.sync()
    assert told["spaces"][0]["pruned"] == 1
    assert "(1 pruned)" in "\n".join(sediment_ext.sync.commands.render_synced(told))
    assert not b.sync()["spaces"][0].get("pruned")
    b.undo(id)
    settle(b, a)
    assert texts(a) == texts(b) == ["The gateway is newton."]

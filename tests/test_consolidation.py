"""Consolidation: what is merged and what is only linked, by whom, and that nothing is lost."""

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from program import Program
from storage import child, consistent, finish, open_memory, rows_of, shown
from warm import Warm
from wire import Wire, small_env

import sediment
import sediment_ext.importers
from sediment import Memory

PORT = "The gateway listens on port 18789."
AGAIN = "Note: The gateway listens on port 18789."
OTHER = "The gateway listens on port 18780."
COFFEE = "Coffee is served at eight in the blue room."


def put(memory: Memory, *texts: str) -> list[str]:
    """Import texts, a second apart, and return their ids."""
    rows = [{"id": f"m{n}", "content": text, "created_at": n} for n, text in enumerate(texts)]
    assert memory.import_rows(rows)["success"]
    return [row["id"] for row in rows]


def live(memory: Memory) -> set[str]:
    return {item["id"] for item in memory.list_items(limit=100)["items"]}


def test_a_replaced_version_that_is_imported_leaves_nothing_to_compare(memory: Memory) -> None:
    row = {"id": "old", "content": PORT, "created_at": 1, "ended_at": 2, "successor": "new"}
    assert memory.import_rows([row])["hidden_versions"] == 1
    memory.consolidate()
    assert not memory.has_chores()


def test_the_same_said_again_becomes_one(memory: Memory) -> None:
    first, second = put(memory, PORT, AGAIN)
    answer = memory.consolidate()
    assert (answer["merged"], answer["linked"]) == (1, 0)
    assert (answer["pairs"][0]["keep"]["id"], answer["pairs"][0]["other"]["id"]) == (second, first)
    assert live(memory) == {second}
    assert memory.get(first)["content"] == PORT
    assert [row["content"] for row in memory.history(second)["versions"]] == [PORT, AGAIN]
    assert memory.consolidate() == {"merged": 0, "linked": 0, "pairs": []}


def test_what_differs_in_a_number_is_linked(memory: Memory) -> None:
    first, second = put(memory, PORT, OTHER)
    answer = memory.consolidate()
    assert (answer["merged"], answer["linked"]) == (0, 1)
    assert any("18789" in reason or "cosine" in reason for reason in answer["pairs"][0]["reasons"])
    assert live(memory) == {first, second}
    (edge,) = memory.graph(first)["edges"]
    assert (edge["type"], edge["label"]) == ("related", "similar")


def test_other_projects_and_scopes_are_not_merged(memory: Memory, path: Path) -> None:
    with open_memory(path, project="other") as other:
        other.import_rows([{"content": PORT}])
    memory.import_rows([{"content": AGAIN}])
    memory.store(f"FYI: {PORT}", scope="global")
    assert memory.consolidate()["merged"] == 0
    assert not rows_of(memory, "history")


def test_a_dry_run_changes_nothing(memory: Memory) -> None:
    put(memory, PORT, AGAIN, COFFEE)
    names = ("items", "graph_edges", "consolidation_queue", "history", "graph_nodes")
    before = {name: rows_of(memory, name) for name in names}
    answer = memory.consolidate(dry_run=True)
    assert answer["merged"] == 1
    assert {name: rows_of(memory, name) for name in names} == before


@pytest.mark.parametrize("queued", [False, True])
def test_a_dry_run_proposes_what_is_then_done(memory: Memory, queued: bool) -> None:
    texts = [PORT, AGAIN, f"Remember that {PORT[0].lower()}{PORT[1:]}", OTHER, COFFEE]
    if queued:
        for text in texts:
            memory.store(text)
    else:
        put(memory, *texts)
    proposed = memory.consolidate(dry_run=True)
    assert proposed["merged"] == 2
    assert decided(memory.consolidate()) == decided(proposed)


def decided(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(pair["action"], pair["keep"]["id"], pair["other"]["id"]) for pair in answer["pairs"]]


def test_undo_takes_a_merge_apart_for_good(memory: Memory) -> None:
    first, second, coffee = put(memory, PORT, AGAIN, COFFEE)
    for question in "abc":
        memory.record_access(shown(first, coffee, question=question))
    memory.record_access(shown(second))
    names = ("items", "chunks", "vectors", "graph_nodes", "graph_edges", "access_log")
    before = {name: sorted(rows_of(memory, name), key=repr) for name in names}
    memory.consolidate()
    counts = dict(rows_of(memory, "access_log", "item_id, access_count"))
    assert counts[second] == 4
    memory.undo(second)
    assert {name: sorted(rows_of(memory, name), key=repr) for name in names} == before
    with memory.database.transaction() as connection:
        sediment.enqueue(connection, first, [(second, 1.0)])
        connection.execute("UPDATE consolidation_queue SET status = 'pending'")
    (pair,) = memory.consolidate()["pairs"]
    assert pair["action"] == "linked"
    assert "undo" in pair["reasons"][0]


def test_an_undone_merge_takes_back_the_questions_that_it_brought(memory: Memory) -> None:
    first, second, coffee = put(memory, PORT, AGAIN, COFFEE)
    asked = shown(first, coffee, question="a"), shown(first, coffee, question="b")
    memory.record_access(*asked, shown(second, coffee, question="c"))
    before = rows_of(memory, "graph_edges")
    memory.consolidate()
    memory.undo(second)
    assert rows_of(memory, "graph_edges") == before


def test_a_merge_keeps_what_came_after_it(memory: Memory) -> None:
    first, second, coffee = put(memory, PORT, AGAIN, COFFEE)
    memory.record_access(shown(first, coffee, question="a"))
    memory.consolidate()
    memory.record_access(shown(second, coffee, question="a"), shown(second, coffee, question="b"))
    memory.undo(first)
    assert {(e["from"], e["to"], e["count"]) for e in memory.graph(second)["edges"]} == (
        {(*sorted((second, coffee)), 2)}
    )


def test_long_memories_are_compared_whole(memory: Memory) -> None:
    text = "".join(f"Paragraph {n} tells of tea and of nothing else at all.\n\n" for n in range(60))
    put(memory, text, text.replace("Paragraph 59 tells of tea", "Paragraph 59 tells of tar"))
    memory.embed_pending()
    answer = memory.consolidate()
    assert (answer["merged"], answer["linked"]) == (0, 1)
    assert len(live(memory)) == 2


def test_pairs_wait_for_their_vectors(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sediment, "INLINE_CHUNKS", 0)
    put(memory, PORT, AGAIN)
    assert memory.consolidate()["pairs"] == []
    memory.embed_pending()
    assert memory.consolidate()["merged"] == 1


def test_pairs_that_waited_for_months_are_still_merged(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in ("Alder", "Birch", "Cedar", "Daisy", "Elder", "Fern", "Gorse", "Hazel"):
        fact = f"The backup window of customer {word} is {word} night."
        memory.store(fact)
        memory.store(f"Note: {fact}")
    later = time.time() + 100 * sediment.DAY
    monkeypatch.setattr(time, "time", lambda: later)
    proposed = memory.consolidate(dry_run=True)
    assert proposed["merged"] == 8
    assert sorted(decided(memory.consolidate())) == sorted(decided(proposed))
    assert not memory.has_chores()
    assert rows_of(memory, "consolidation_queue") == []


def test_stopping_loses_nothing(memory: Memory) -> None:
    put(
        memory,
        *(f"{prefix}The gate of team {n} is green." for n in range(4) for prefix in ("", "Note: ")),
    )
    looks = iter([False, False, False, True])
    memory.consolidate(stop=lambda: next(looks, True))
    consistent(memory)
    memory.consolidate()
    assert len(live(memory)) == 4


def test_of_many_that_are_alike_each_is_compared_with_the_nearest(memory: Memory) -> None:
    lines = [
        f"Fact number {n}: the {n}th widget is stored in bin {n * 7 % 113}." for n in range(60)
    ]
    ids = put(memory, *lines, f"Note: {lines[30]}")
    answer = memory.consolidate()
    merged, *linked = [(pair["keep"]["id"], pair["other"]["id"]) for pair in answer["pairs"]]
    assert merged == (ids[60], ids[30])
    assert linked
    assert max(Counter(later for later, _ in linked).values()) <= sediment.CONFLICTS_QUEUED


def test_an_import_ends_although_much_is_still_to_be_compared(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sediment_ext.importers, "CONSOLIDATE_TIME", -1)
    rows = "".join(json.dumps({"content": text}) + "\n" for text in (PORT, AGAIN, OTHER))
    file = path.with_name("rows.jsonl")
    file.write_text(rows)
    arguments = ["--db", str(path), "--project", "demo"]
    done = CliRunner().invoke(sediment.cli, [*arguments, "import", str(file)])
    assert done.exit_code == 0
    assert "not all are compared yet" in done.stderr
    told = CliRunner().invoke(sediment.cli, [*arguments, "consolidate"]).stdout
    assert told.startswith("1 merged")


def test_two_processes_merge_each_pair_once(memory: Memory, path: Path) -> None:
    texts = [f"{p}The gate of team {n} is green." for n in range(8) for p in ("", "Note: ")]
    put(memory, *texts)
    script = """
memory = Memory(sys.argv[1], project="demo")
said("ready")
input()
while memory.has_chores():
    memory.consolidate()
    time.sleep(0.01)
"""
    processes = [child(script, path) for _ in range(2)]
    outs = [finish(process, "go\n") for process in processes]
    assert len(outs) == 2
    assert len(live(memory)) == 8
    merges = [row for row in rows_of(memory, "history", "action, other_id") if row[0] == "merge"]
    assert len(merges) == len(set(merges)) == 8


# Who does it


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_merges_in_its_pauses(
    tmp_path: Path, path: Path, unpacked: Path, warm: Warm
) -> None:
    env = {"SEDIMENT_DB": str(path), "SEDIMENT_PROJECT": "demo", "SEDIMENT_CACHE": str(unpacked)}
    env = small_env(tmp_path, **env, SEDIMENT_CONSOLIDATE="1")
    wire = Wire(tmp_path, env, warm=warm)
    wire.call("store", content=PORT)
    wire.call("store", content=AGAIN)
    wire.call("recall", query="which port?")
    wait(lambda: wire.call("list")["total"] == 1)
    wire.end()


@pytest.mark.parametrize(("setting", "count"), [("1", 1), ("0", 2)])
def test_chores_merge_unless_told_not_to(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, setting: str, count: int
) -> None:
    monkeypatch.setenv("SEDIMENT_CONSOLIDATE", setting)
    put(memory, PORT, AGAIN)
    worker = sediment.Worker(memory)
    worker.start_chores()
    if worker._chore:
        worker._chore.join()
    worker.finish()
    assert len(live(memory)) == count


def test_import_consolidates_and_one_shot_commands_do_not(here: Program) -> None:
    here.ok("store", PORT)
    here.ok("store", AGAIN)
    here.ok("recall", "port")
    assert json.loads(here.ok("list", "--json"))["total"] == 2
    plan = here.ok("consolidate", "--dry-run")
    assert plan.startswith("1 would be merged, 0 would be linked.")
    assert json.loads(here.ok("list", "--json"))["total"] == 2
    here.run("import", "-", input='{"content": "something else"}\n')
    (item,) = (i for i in json.loads(here.ok("list", "--json"))["items"] if "port" in i["content"])
    assert "merge" in here.ok("history", item["id"])
    assert "Restored " in here.ok("undo", item["id"])
    assert json.loads(here.ok("list", "--json"))["total"] == 3


@pytest.fixture
def here(run_pyz: Any, tmp_path: Path) -> Program:
    return Program(run_pyz, tmp_path / "project")


# Versions that came by import

VERSIONS = (
    ("van", "The van is Gerald, a white 2014 Ford Transit with a heater.", "2026-01-05"),
    ("room", "They rehearse in unit 7 under the arches, 260 pounds a month.", "2026-01-06"),
    ("drum", "The drummer is allergic to walnuts.", "2026-01-07"),
    ("room2", "They now rehearse in the church basement, 200 pounds a month.", "2026-04-02"),
    ("van2", "Gerald the van is sold; the van is a hired Sprinter now.", "2026-05-01"),
)


def import_versions(memory: Memory) -> None:
    rows = [{"id": id, "content": text, "created": at} for id, text, at in VERSIONS]
    assert memory.import_rows(rows)["success"]


def pairs_of(memory: Memory) -> set[tuple[str, str]]:
    return {(pair["old"]["id"], pair["new"]["id"]) for pair in memory.review()["pairs"]}


def test_what_an_import_may_make_obsolete_is_to_be_reviewed(memory: Memory) -> None:
    import_versions(memory)
    assert live(memory) == {id for id, *_ in VERSIONS}  # nothing is ended unasked
    asked = pairs_of(memory)
    assert {("van", "van2"), ("room", "room2")} <= asked
    assert not any(old.endswith("2") and not new.endswith("2") for old, new in asked)
    chances = [float(pair["probability"]) for pair in memory.review()["pairs"]]
    assert chances == sorted(chances, reverse=True)
    memory.keep_both("van", "van2")
    memory.replace("room", "room2")
    assert not pairs_of(memory) & {("van", "van2"), ("room", "room2")}
    assert live(memory) == {id for id, *_ in VERSIONS} - {"room"}
    memory.forget("van2")
    assert not [
        id for row in rows_of(memory, "reviews", "old_id, new_id") for id in row if id == "van2"
    ]
    consistent(memory)


def test_what_a_store_may_make_obsolete_waits_until_somebody_decides(memory: Memory) -> None:
    texts = ("The band's van is called Gerald.", "Max plays the drums.")
    texts += ("The band's van is called Olga now.", "The drummer is allergic to nuts.")
    answers = {text: memory.store(text) for text in texts}
    told = {
        (row["id"], answer["id"]): row["probability"]
        for answer in answers.values()
        for row in answer.get("may_replace", [])
    }
    ids = [answer["id"] for answer in answers.values()]
    van, drums = (ids[0], ids[2]), (ids[1], ids[3])
    assert told.get(drums, 0.0) < sediment.REVIEWED < told[van]
    (pair,) = memory.review()["pairs"]
    assert (pair["old"]["id"], pair["new"]["id"], pair["probability"]) == (*van, told[van])
    memory.replace(*van)
    assert pairs_of(memory) == set()


def test_what_a_store_may_make_obsolete_stays_once_that_is_decided(memory: Memory) -> None:
    old = memory.store("The band's van is called Gerald.")["id"]
    new = memory.store("The band's van is called Olga now.")["id"]
    memory.keep_both(new, old)  # in either order
    memory.store("The band's van is called Olga now")  # confirms it
    memory.consolidate()
    assert pairs_of(memory) == set()


def test_what_is_alike_but_for_a_number_is_to_be_reviewed(memory: Memory) -> None:
    key = "The spare key of locker {} hangs behind the door."
    texts = {(old := "a"): key.format(12), "b": "Tea is at four.", (new := "c"): key.format(13)}
    memory.import_rows({"id": id, "content": text} for id, text in texts.items())
    memory.consolidate()
    (pair,) = memory.review()["pairs"]
    assert (pair["old"]["id"], pair["new"]["id"]) == (old, new)
    assert float(pair["alike"]) >= sediment.MERGE_COSINE
    memory.keep_both(new, old)
    assert memory.review()["pairs"] == []


def test_what_somebody_took_apart_is_not_asked_again(memory: Memory) -> None:
    _, second = put(memory, PORT, AGAIN)
    assert memory.consolidate()["merged"] == 1
    memory.undo(second)
    assert memory.consolidate()["merged"] == 0
    assert not any("alike" in pair for pair in memory.review()["pairs"])


def test_a_replacement_that_was_undone_is_not_asked_again(memory: Memory) -> None:
    import_versions(memory)
    asked = pairs_of(memory)
    assert ("room", "room2") in asked
    memory.keep_both("van", "van2")
    memory.replace("room", "room2")
    memory.undo("room")
    assert pairs_of(memory) == asked - {("room", "room2"), ("van", "van2")}


@pytest.mark.parametrize("turned", [False, True])
def test_what_somebody_keeps_both_of_is_not_merged(memory: Memory, turned: bool) -> None:
    first, second = put(memory, PORT, AGAIN)
    memory.keep_both(*((second, first) if turned else (first, second)))
    (pair,) = memory.consolidate()["pairs"]
    assert (pair["action"], pair["reasons"]) == ("linked", ["undo or review: somebody wants both"])
    assert live(memory) == {first, second}


def test_what_is_kept_while_a_pair_is_compared_is_not_merged(memory: Memory) -> None:
    first, second = put(memory, PORT, AGAIN)
    pair = sediment.decide_merge(memory.database, (first, second), memory.encoder.embed)
    assert pair
    assert not pair.reasons
    memory.keep_both(first, second)
    with memory.database.transaction() as connection:
        assert sediment.apply_merge(connection, (first, second), pair) == "linked"


def test_another_project_is_not_asked_about_an_import(memory: Memory, path: Path) -> None:
    import_versions(memory)
    with open_memory(path, project="other") as other:
        answer = other.review()
        count = answer["other_projects"]["demo"]
        assert (answer["pairs"], count) == ([], memory.review()["count"])
        there = f"in other projects: {count} with `--project demo`."
        assert answer["message"] == f"Nothing to review here; {there}"
        with pytest.raises(sediment.NotFound, match="another project"):
            other.keep_both("van", "van2")


def test_review_goes_through_an_import_with_a_key_for_each_pair(here: Program) -> None:
    lines = [json.dumps({"id": i, "content": text, "created": at}) for i, text, at in VERSIONS]
    done = here.run("--json", "import", "-", input="\n".join(lines))
    assert f"{json.loads(done.stdout)['to_review']} may make an older one obsolete" in done.stderr
    assert "`sediment review` asks" in done.stderr
    pairs = here.json("review")["pairs"]
    assert len(pairs) == json.loads(done.stdout)["to_review"]
    elsewhere = here.at(here.folder.parent / "elsewhere").ok("review")
    assert elsewhere.endswith(f": {len(pairs)} with `--project {here.project()}`.\n")
    assert "0 replaced, 0 kept" in here.run("review", input="q\n").stdout
    keys = {("van", "van2"): "r", ("room", "room2"): "k"}
    typed = [keys.get((pair["old"]["id"], pair["new"]["id"]), "s") for pair in pairs]
    done = here.run("review", input="x\n" + "\n".join(typed))  # an unknown key is asked again
    assert done.returncode == 0
    assert "1 replaced, 1 kept" in done.stdout
    assert "van" not in {item["id"] for item in here.json("list")["items"]}
    here.run("undo", "van")
    assert "van" in {item["id"] for item in here.json("list")["items"]}
    assert here.ok("review") == "Nothing to review.\n"


def test_what_review_may_not_replace_it_says_and_goes_on(here: Program) -> None:
    rows = [{"id": i, "content": text, "created": at} for i, text, at in VERSIONS]
    scoped = [row | ({} if row["id"] == "van2" else {"scope": "global"}) for row in rows]
    here.run("import", "-", input="\n".join(map(json.dumps, scoped)))
    pairs = here.json("review")["pairs"]
    typed = ["r" if pair["new"]["id"] == "van2" else "s" for pair in pairs]
    done = here.run("review", input="\n".join(typed))
    assert "`move van2 global`" in done.stdout
    assert f"0 replaced, 0 kept, {len(pairs)} skipped" in done.stdout


def test_a_review_lets_consolidation_go_on_at_once(memory: Memory) -> None:
    tea = "Tea is served at four o'clock."
    memory.import_rows([{"id": "a", "content": tea}, {"id": "b", "content": f"Note: {tea}"}])
    memory.review()
    assert memory.consolidate()["merged"] == 1


@pytest.mark.parametrize("undone", [*itertools.permutations("abc")])
@pytest.mark.parametrize("kind", ["similar", "asked"])
def test_merges_that_are_all_undone_leave_no_edge(
    memory: Memory, kind: str, undone: tuple[str, ...]
) -> None:
    names = ("a", "b", "c", "kept", "coffee", "tea")
    memory.import_rows(
        {"id": name, "content": f"The {name} is here.", "created_at": 1} for name in names
    )
    with memory.database.transaction() as connection:
        connection.execute("DELETE FROM graph_edges")
        for name, far in (("a", "coffee"), ("b", "coffee"), ("c", "coffee"), ("c", "tea")):
            if kind == "similar":
                sediment.link(connection, name, far, sediment.RELATED, 0.9, "similar")
    if kind == "asked":
        for name, question in (("a", "1"), ("b", "1"), ("b", "2"), ("c", "2")):
            memory.record_access(shown(name, "coffee", question=question))
    before = set(rows_of(memory, "graph_edges"))
    with memory.database.transaction() as connection:
        for name in "abc":
            sediment.end_item(connection, name, "kept", "merge")
    assert {frozenset(row[:2]) for row in rows_of(memory, "graph_edges")} > {
        frozenset(("kept", "coffee"))
    }
    for name in undone:
        memory.undo(name)
    assert set(rows_of(memory, "graph_edges")) == before

"""What was said in agents' sessions: kept once, found behind what was stored, forgotten whole."""

from pathlib import Path
from typing import Any

import pytest
from storage import consistent, open_memory, rows_of, shared_encoder

import sediment
import sediment_ext.conversations
from sediment import InvalidInput, Memory, NotFound, SedimentError
from sediment_ext.transcripts import Conversation, Turn

DAY = 86_400


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    memory = open_memory(tmp_path / "memory.db")
    memory._encoder = shared_encoder()
    return memory


def said(*turns: tuple[str, str], session: str = "s1", folder: str | None = None) -> Conversation:
    """A session with these prompts and answers."""
    made = [
        Turn(f"{session}-k{number}", 1_700_000_000 + 60 * number, prompt, answer)
        for number, (prompt, answer) in enumerate(turns)
    ]
    return Conversation("claude", session, folder, made, 100 * len(made))


HERON = ("Where does the heron queue run?", "On the machine called newton, port 7005.")
OTTER = ("Rename the otter table.", "Done: it is called lutra now.")


def counts(answer: dict) -> tuple[int, int, int]:
    return answer["sessions"], answer["turns"], answer["existing"]


def test_a_session_is_kept_once_and_found(memory: Memory) -> None:
    assert counts(memory.add_conversations([said(HERON, OTTER)])) == (1, 2, 0)
    assert counts(memory.add_conversations([said(HERON, OTTER)])) == (1, 0, 2)
    found = memory.recall("on which machine is the heron queue?")["results"][0]
    assert found["source"] == "claude:s1#1"
    assert found["content"] == f"User: {HERON[0]}\n\nAssistant: {HERON[1]}"
    assert memory.stats()["turns"] == 2
    assert memory.list_items()["total"] == 0
    consistent(memory)


@pytest.mark.parametrize("name", ["loop", "x" * 300, "loop/sub"])
def test_a_session_of_no_real_folder_stops_none_after_it(
    memory: Memory, tmp_path: Path, name: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    turn = ("Which port has the heron?", "Port 6543.")
    odd = said(turn, session="odd", folder=str(tmp_path / name))
    answer = memory.add_conversations([odd, said(turn, session="next")])
    assert answer["sessions"] == 2


def test_a_memory_with_the_id_of_a_turn_stays(memory: Memory) -> None:
    id = sediment_ext.conversations.turn_id("claude:s1", "s1-k0")
    memory.import_rows([{"id": id, "content": "Tea is served at four."}])
    assert counts(memory.add_conversations([said(HERON, OTTER)])) == (1, 2, 0)
    assert counts(memory.add_conversations([said(HERON, OTTER)])) == (1, 0, 2)
    assert memory.get(id)["content"] == "Tea is served at four."
    assert memory.recall("heron queue", limit=1)["results"][0]["source"] == "claude:s1#1"
    consistent(memory)


def test_a_turn_that_grows_is_kept_as_it_is_now(memory: Memory) -> None:
    memory.add_conversations([said((HERON[0], ""), OTTER)])
    assert counts(memory.add_conversations([said(HERON, OTTER)])) == (1, 1, 1)
    (found,) = memory.recall("heron queue", limit=1)["results"]
    assert (found["source"], "newton" in found["content"]) == ("claude:s1#1", True)
    consistent(memory)


ASKED = "On which port does the heron queue listen?"


@pytest.mark.parametrize(
    "turn",
    [
        (ASKED, ""),
        (ASKED, "DONE"),
        (ASKED, "I don't know."),
        (ASKED, "I don't know on which port the heron queue listens."),
        ("Which port does the heron queue use?", "Done."),
        ("tell me the port of the heron queue", "DONE"),
    ],
)
def test_a_turn_that_only_asks_is_held_back(memory: Memory, turn: tuple[str, str]) -> None:
    query = turn[0] if turn[0].startswith("tell") else ASKED
    memory.add_conversations([said(turn)])
    answer = memory.recall(query)
    assert (answer["count"], answer["held_back"]) == (0, 1)
    (row,) = memory.recall(query, anyway=True)["results"]
    assert row["unrelated"]
    memory.add_conversations([said(HERON, OTTER, session="s2")])
    sources = [row["source"] for row in memory.recall(query, limit=1)["results"]]
    assert sources == ["claude:s2#1"]


@pytest.mark.parametrize(
    "turn",
    [
        (ASKED, "7005."),
        (ASKED, "Done: it listens on 7005."),
        ("Does the heron queue listen on a port?", "No."),
        ("Does the heron queue listen on a port?", "Yes."),
        ("The heron queue listens on a new port.", "Done."),
        ("I moved the heron queue. On which port does it listen?", "Done."),
        ("Why does the heron queue listen on port 7005?", ""),
        ("Why does the heron queue of Bergen listen on that port?", "Done."),
        (f"{ASKED} " + "Think of the pier. " * 90 + "Tell me?", "Answer. " * 200 + "Port 7005."),
    ],
)
def test_a_turn_that_tells_something_is_found(memory: Memory, turn: tuple[str, str]) -> None:
    memory.add_conversations([said(turn)])
    assert memory.recall(ASKED)["count"] == 1


def test_what_was_stored_comes_first(memory: Memory) -> None:
    memory.add_conversations([said(HERON, session=f"s{number}") for number in range(50)])
    memory.store("The heron queue runs on newton.")
    first, *others = memory.recall("where does the heron queue run?")["results"]
    assert first["content"] == "The heron queue runs on newton."
    assert all(row["source"].startswith("claude:") for row in others)
    alone = memory.recall("where does the heron queue run?", conversations=False)["results"]
    assert [row["id"] for row in alone] == [first["id"]]
    truthy: Any = b"yes"
    assert memory.recall("where does the heron queue run?", conversations=truthy)["count"] > 1


def test_nothing_said_makes_a_memory_obsolete(memory: Memory) -> None:
    kept = memory.store("The heron queue runs on port 7005.", created_at="2023-01-01")["id"]
    memory.add_conversations([said(("The heron queue now runs on port 9009.", "Good."))])
    assert memory.recall("which port has the heron queue?")["results"][0]["id"] == kept


def test_another_projects_conversations_are_not_found(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    memory.add_conversations([said(HERON, folder=str(tmp_path / "else"))])
    assert memory.recall("heron queue machine", anyway=True)["results"] == []
    assert not (tmp_path / "else" / ".sediment").exists()
    memory.projects.given, memory.projects.folder = None, tmp_path / "else"
    (found,) = memory.recall("heron queue machine")["results"]
    memory.projects.given = "another"
    with pytest.raises(NotFound):
        memory.get(found["id"])


def test_a_folder_that_is_gone_keeps_its_conversations(memory: Memory, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    memory.add_conversations([said(HERON, folder=str(gone))])
    assert memory.recall("heron queue machine")["results"] == []
    gone.mkdir()
    memory.projects.given, memory.projects.folder = None, gone
    (gone / ".git").mkdir()
    assert memory.recall("heron queue machine")["results"]


def test_a_session_is_forgotten_whole_and_for_ever(memory: Memory) -> None:
    memory.add_conversations([said(HERON, OTTER), said(OTTER, session="s2")])
    (found, *_) = memory.recall("heron queue")["results"]
    with pytest.raises(InvalidInput, match="forget claude:s1"):
        memory.forget(found["id"])
    memory.forget("claude:s1")
    assert memory.stats()["turns"] == 1
    answer = memory.add_conversations([said(HERON, OTTER), said(OTTER, session="s2")])
    assert counts(answer) == (2, 0, 1)
    assert answer["forgotten"] == 2
    shown = next(sediment_ext.conversations.render_kept_conversations(answer | {"seconds": 0.1}))
    assert "Kept 0 turns of 2 sessions, 1 stored before, 2 forgotten before" in shown
    assert memory.add_conversations([said(HERON)], dry_run=True)["turns"] == 0
    assert [one["source"] for one in memory.list_conversations()["conversations"]] == ["claude:s2"]
    consistent(memory)


def test_a_fork_brings_back_nothing_that_was_forgotten(memory: Memory) -> None:
    memory.add_conversations([said(HERON)])
    memory.forget("claude:s1")
    fork = said(HERON, OTTER)._replace(session="s2")
    answer = memory.add_conversations([fork])
    assert (*counts(answer), answer["forgotten"]) == (1, 1, 0, 1)
    (turn,) = memory.list_items(kind="conversation", scope="all")["items"]
    assert turn["source"] == "claude:s2#1"
    assert memory.add_conversations([said(HERON)._replace(session="s3")])["forgotten"] == 1
    assert memory.add_conversations([fork._replace(client="codex")])["turns"] == 2
    consistent(memory)


def test_turns_that_are_called_by_their_places_are_not_taken_for_forgotten_ones(
    memory: Memory,
) -> None:
    def placed(turn: tuple[str, str], session: str) -> Conversation:
        one = said(turn, session=session)
        return one._replace(turns=[one.turns[0]._replace(key="120")])

    memory.add_conversations([placed(HERON, "s1")])
    memory.forget("claude:s1")
    assert memory.add_conversations([placed(OTTER, "s2")])["turns"] == 1


def test_what_a_fork_repeats_is_found_once_as_of_a_date_too(memory: Memory) -> None:
    memory.add_conversations([said(HERON, OTTER)])
    asked = "on which machine is the heron queue?"
    before = memory.recall(asked)["results"][0]["similarity"]
    memory.add_conversations([said(HERON, ("Rename it back.", "Done."), session="fork")])
    for moment in (None, "2024"):
        rows = memory.recall(asked, anyway=True, as_of=moment)["results"]
        (found,) = (row for row in rows if "newton" in row["content"])
        assert float(found["similarity"]) >= float(before)


def test_a_session_of_another_project_is_not_forgotten_here(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "theirs" / ".git").mkdir(parents=True)
    memory.add_conversations([said(HERON, folder=str(tmp_path / "theirs"))])
    with pytest.raises(NotFound):
        memory.forget("claude:s1")
    assert memory.stats()["turns"] == 1


def test_a_conversation_whose_name_begins_an_id_is_not_guessed(memory: Memory) -> None:
    memory.add_conversations([said(HERON)])
    memory.import_rows([{"id": "claude:s1-note", "content": "Tea is served at four."}])
    memory.forget("claude:s1")
    assert (memory.stats()["turns"], memory.list_items()["total"]) == (0, 1)


def test_a_memory_that_is_called_as_a_conversation_is_forgotten_with_it(memory: Memory) -> None:
    memory.add_conversations([said(HERON)])
    memory.import_rows([{"id": "claude:s1", "content": "Tea is served at four."}])
    answer = memory.forget("claude:s1", "claude:s1")
    assert answer["message"] == "Deleted claude:s1."
    assert answer["ids"] == ["claude:s1"]
    assert (memory.stats()["turns"], memory.list_items()["total"]) == (0, 0)


def test_no_memory_of_another_project_keeps_a_conversation(memory: Memory, tmp_path: Path) -> None:
    memory.add_conversations([said(HERON)])
    with open_memory(tmp_path / "memory.db", "other") as other:
        other.import_rows([{"id": "claude:s1", "content": "Tea is served at four."}], "project")
    assert memory.forget("claude:s1")["message"] == "Deleted claude:s1."
    assert memory.stats()["turns"] == 0
    assert sediment.find_item(memory.database, "claude:s1") is not None


@pytest.mark.parametrize("id", ["\ud800", "claude:\ud800", "claude:none", "claude:\0"])
def test_a_session_that_is_none_is_not_forgotten(memory: Memory, id: str) -> None:
    memory.add_conversations([said(HERON)])
    with pytest.raises(SedimentError):
        memory.forget("claude:s1", id)
    assert memory.stats()["turns"] == 1


def test_the_turns_around_one_are_shown(memory: Memory) -> None:
    memory.add_conversations([said(OTTER, HERON, ("Thanks.", "Welcome."))])
    (found, *_) = memory.recall("heron queue")["results"]
    around = memory.expand(found["id"])["content"]
    assert [part in around for part in ("lutra", "newton", "Welcome")] == [True] * 3
    assert memory.expand(found["id"], lines=0)["content"] == found["content"]


def test_secrets_are_left_out(memory: Memory) -> None:
    prompt = "Use the password hunter2horse! for staging: password=hunter2horse!"
    memory.add_conversations([said((prompt, "I will."))])
    (found,) = memory.recall("staging", anyway=True)["results"]
    assert "password=hunter2horse" not in found["content"]


@pytest.mark.parametrize(
    "turn",
    [
        ("The staging password is Tr0ub4dor&3x.", "Done: staging took Tr0ub4dor&3x."),
        ("Try Tr0ub4dor&3x for staging.", "Done: the staging password is Tr0ub4dor&3x."),
    ],
)
def test_a_secret_of_one_half_of_a_turn_is_left_out_of_the_other(
    memory: Memory, turn: tuple[str, str]
) -> None:
    assert memory.add_conversations([said(turn)])["redacted"] == {"password": 2}
    assert "redacted" not in memory.add_conversations([said(turn)])
    assert memory.database.value("SELECT content FROM items").count("[redacted: password]") == 2
    assert not memory.database.value("SELECT count(*) FROM items WHERE instr(content, 'Tr0ub')")


def test_a_secret_of_one_turn_is_left_out_of_all_turns_of_its_session(memory: Memory) -> None:
    before = ("I try Tr0ub4dor&3x on the heron box.", "It works.")
    told = ("The db password is Tr0ub4dor&3x, please connect.", "Connected.")
    after = ("Now try Tr0ub4dor&3x on staging, too.", "Tr0ub4dor&3x works there.")
    unseen = "SELECT count(*) FROM items WHERE instr(content, 'Tr0ub')"
    memory.add_conversations([said(before)])
    assert memory.database.value(unseen) == 1
    assert memory.add_conversations([said(before, told, after)])["turns"] == 3
    assert memory.database.value(unseen) == 0
    assert memory.add_conversations([said(before, told, after)])["turns"] == 0
    assert memory.stats()["turns"] == 3


@pytest.mark.parametrize("answer", ["", "I try Tr0ub4dor&3x."])
def test_a_secret_that_the_rest_of_an_answer_gives_away_is_left_out_of_what_was_kept(
    memory: Memory, answer: str
) -> None:
    prompt = "Try Tr0ub4dor&3x for staging."
    memory.add_conversations([said((prompt, answer))])
    whole = said((prompt, f"{answer}\n\nDone: the staging password is Tr0ub4dor&3x.".strip()))
    assert memory.add_conversations([whole])["turns"] == 1
    assert memory.add_conversations([whole])["turns"] == 0
    assert memory.stats()["turns"] == 1
    assert not memory.database.value("SELECT count(*) FROM items WHERE instr(content, 'Tr0ub')")


def test_an_index_of_files_leaves_conversations_alone(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "MEMORY.md").write_text("# Boats\n\nThe dinghy lies at pier 7.\n")
    memory.add_conversations([said(HERON)])
    memory.index([tmp_path / "MEMORY.md"])
    assert memory.index()["changes"] == []
    assert memory.stats()["turns"] == 1
    assert memory.status()["sources"][0]["files"] == 1
    assert memory.doctor()["healthy"]
    assert memory.reindex()["success"]
    assert memory.recall("heron queue")["results"]
    consistent(memory)


def test_turns_are_cut_again_by_a_reindex(memory: Memory) -> None:
    answer = "\n\n".join(f"Boat {number} lies at pier {number + 3}. " * 20 for number in range(9))
    memory.add_conversations([said(("Where do the boats lie?", answer))])
    columns = 'item, position, start, "end", context'
    cut = rows_of(memory, "chunks", columns)
    assert len(cut) > 2
    with memory.database.transaction() as connection:  # as an earlier program may have cut it
        connection.execute("DELETE FROM chunks WHERE position > 0")
        connection.execute('UPDATE chunks SET "end" = (SELECT length(content) FROM items)')
        sediment.fill_words(connection)
    assert memory.reindex()["success"]
    assert rows_of(memory, "chunks", columns) == cut
    consistent(memory)


def worked_in(folder: Path) -> tuple[Path, Memory]:
    """A folder of which a conversation is kept, and nothing else yet."""
    (there := folder / "work").mkdir()
    memory = Memory(folder / "memory.db", folder=there)
    memory._encoder = shared_encoder()
    memory.add_conversations([said(HERON, folder=str(there))])
    assert not (there / ".sediment").exists()
    return there, memory


def test_a_folder_takes_along_what_came_after_a_conversation(tmp_path: Path) -> None:
    there, memory = worked_in(tmp_path)
    memory.store("A plain memory.")
    assert (there / ".sediment" / "config").is_file()
    moved = Memory(memory.database.path, folder=there.rename(tmp_path / "moved"))
    assert [row["content"] for row in moved.list_items()["items"]] == ["A plain memory."]
    assert len(moved.list_conversations()["conversations"]) == 1
    there.mkdir()  # another one of that name
    assert Memory(memory.database.path, folder=there).list_items()["total"] == 0
    assert moved.list_items()["total"] == 1


def test_another_database_takes_no_conversation_of_a_folder_away(tmp_path: Path) -> None:
    there, memory = worked_in(tmp_path)
    Memory(tmp_path / "other.db", folder=there).store("Of the other database.")
    assert len(memory.list_conversations()["conversations"]) == 1
    memory.store("A plain memory.")
    assert len(memory.list_conversations()["conversations"]) == memory.list_items()["total"] == 1
    assert memory.forget("claude:s1")["success"]
    assert Memory(tmp_path / "other.db", folder=there).list_items()["total"] == 1


def test_a_conversation_of_another_project_is_no_memory_here(tmp_path: Path) -> None:
    _, memory = worked_in(tmp_path)
    other = Memory(memory.database.path, project="another")
    with pytest.raises(NotFound, match="no memory with the id 'claude:s1'"):
        other.forget("claude:s1")


def test_a_conversation_is_told_from_a_memory_where_one_is_asked_for(tmp_path: Path) -> None:
    _, memory = worked_in(tmp_path)
    memory.add_conversations([said(OTTER, session="s2")])
    kept = memory.store("Tea is at four.")["id"]
    deeds = (memory.get, memory.history, memory.expand, memory.graph, memory.undo)
    more = (lambda id: memory.move(id, "global"), lambda id: memory.store("x", replace=id))
    for deed in (*deeds, *more, lambda id: memory.replace(kept, id)):
        for session in ("claude:s1", "claude:s2"):
            with pytest.raises(NotFound, match="is a conversation: `list --conversations` names"):
                deed(session)
    assert memory.list_items(kind="conversation", scope="global")["total"] == 1
    memory.forget("claude:s1")
    for one in (memory, Memory(memory.database.path, project="another")):
        with pytest.raises(NotFound, match="no memory with the id 'claude:s1'"):
            one.get("claude:s1")


def test_of_a_turn_with_a_huge_prompt_the_answer_is_kept_too(tmp_path: Path) -> None:
    there, memory = worked_in(tmp_path)
    memory.forget("claude:s1")
    huge = ("The log says: " + "x" * 2_000_000, HERON[1])
    memory.add_conversations([said(huge, session="s2", folder=str(there))])
    (row,) = memory.list_items(kind="conversation")["items"]
    text = memory.get(row["id"])["content"]
    assert text.endswith(f"Assistant: {HERON[1]}")
    assert len(text) <= sediment.CONTENT_MAX


def test_a_printed_turn_is_not_taken_for_a_part_of_a_file(tmp_path: Path) -> None:
    _, memory = worked_in(tmp_path)
    (row,) = memory.list_items(kind="conversation")["items"]
    (refused,) = open_memory(tmp_path / "other.db").import_rows([row])["refused"]
    assert "import what `export` writes" in refused["reason"]


def test_a_credential_where_a_long_turn_is_cut_goes_whole(tmp_path: Path) -> None:
    there, memory = worked_in(tmp_path)
    token = "ghp_" + "a1B2" * 9
    prompt = "x" * (sediment.CONTENT_MAX // 2 - 40) + " " + token + " is the token"
    huge = (prompt, "word " * 180_000)
    memory.add_conversations([said(huge, session="s2", folder=str(there))])
    assert all("ghp_a" not in row["content"] for row in memory.export_rows())
    assert not memory.database.value("SELECT count(*) FROM items WHERE instr(content, 'ghp_a')")


def test_a_credential_where_a_prompt_is_too_long_to_be_read_whole_goes_whole() -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{'Ab1/' * 4000}\n-----END PRIVATE KEY-----\n"
    token, limit = "ghp_" + "a1B2" * 9, 2 * sediment.CONTENT_MAX
    prompt = key * (limit // len(key))
    prompt += "\n" * (limit - 20 - len(prompt)) + token + " is the token. " + "word " * 9999
    assert prompt.index(token) < limit < prompt.index(token) + len(token)
    text, kinds = sediment_ext.conversations.turn_text(Turn("k", 0, prompt, HERON[1]), {})
    assert set(kinds) == {"private key"}
    assert "ghp_" not in text
    assert text.endswith(HERON[1])


@pytest.mark.parametrize("client", ["claude", "cursor"])
def test_what_was_kept_of_a_turn_stays_when_its_file_says_less_or_another_thing(
    memory: Memory, client: str
) -> None:
    def says(*answer: str) -> list[str]:
        turn = Turn(
            "0" if client == "cursor" else "u1", 1_700_000_000, HERON[0], "\n\n".join(answer)
        )
        for _ in range(2):
            memory.add_conversations([Conversation(client, "s1", None, [turn], 0)])
        rows = memory.database.rows("SELECT content FROM items ORDER BY first_line")
        return [text.partition("Assistant: ")[2] for (text,) in rows]

    assert says("On newton.", "At port 7005.") == ["On newton.\n\nAt port 7005."]
    for less in (["On newton."], []):
        assert says(*less) == ["On newton.\n\nAt port 7005."]
    assert says("On kepler.") == ["On newton.\n\nAt port 7005.", "On kepler."]
    kept = ["On newton.\n\nAt port 7005.", "On kepler.\n\nNo, on tycho."]
    assert says("On kepler.", "No, on tycho.") == kept
    assert says("On newton.", "At port 7005.", "Yes.") == [
        "On newton.\n\nAt port 7005.\n\nYes.",
        kept[1],
    ]
    assert len(says("On kepler.")) == 2
    assert len(says("On galileo.")) == 3
    consistent(memory)


def test_a_turn_that_is_cut_or_has_a_credential_is_the_same_when_it_grows(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(prompt: str, answer: str, session: str) -> int:
        turn = Turn(f"{session}-u1", 1_700_000_000, prompt, answer)
        memory.add_conversations([Conversation("claude", session, None, [turn], 0)])
        return memory.database.value("SELECT count(*) FROM items")

    monkeypatch.setattr(sediment, "CONTENT_MAX", 100_000)
    monkeypatch.setattr(sediment_ext.conversations, "HALF_TURN", 49_980)
    long = "x" * (sediment.CONTENT_MAX - 100)
    assert [says(long, answer, "s1") for answer in ("", "one", "one" * 10_000)] == [1, 1, 1]
    assert [says(long, answer, "s1") for answer in ("one", "one", "two")] == [2, 2, 3]
    memory.forget("claude:s1")
    token = "ghp_" + "a1B2" * 9
    with monkeypatch.context() as context:
        context.setenv("SEDIMENT_REDACT", "0")
        assert says(f"Use {token} there.", "I will.", "s2") == 1
    assert says(f"Use {token} there.", "I will.", "s2") == 1
    assert says(f"Use {token} there.", "I will.\n\nDone.", "s2") == 1
    assert not memory.database.value("SELECT count(*) FROM items WHERE instr(content, 'ghp_a')")


def test_a_session_without_names_that_is_written_anew_loses_and_doubles_nothing(
    memory: Memory,
) -> None:
    def placed(*turns: tuple[str, str]) -> Conversation:
        made = [Turn(str(n * 100), 1_700_000_000, *turn) for n, turn in enumerate(turns)]
        return Conversation("cursor", "s1", None, made, 0)

    third = ("Who feeds the owl?", "Berta does.")
    memory.add_conversations([placed(HERON, OTTER)])
    for _ in range(2):
        memory.add_conversations([placed(OTTER, third)])
    rows = memory.database.rows("SELECT content FROM items ORDER BY content")
    assert [text for (text,) in rows] == sorted(
        sediment_ext.conversations.turn_text(Turn("", 0, *turn), {})[0]
        for turn in (HERON, OTTER, third)
    )
    third = third[0], third[1] + " Each day."
    memory.add_conversations([placed(OTTER, third)])
    assert memory.database.value("SELECT count(*) FROM items") == 3
    later = [turn._replace(key="900") for turn in placed(OTTER, third).turns[1:]]
    assert counts(memory.add_conversations([placed(OTTER)._replace(turns=later)])) == (1, 0, 1)
    assert memory.database.value("SELECT count(*) FROM items") == 3

"""How often recall is right: `make bench-quality [DATA=DIR] [SEEDS="1 2"] [PARTS="chat diaries"]`.

Everything is asked through `Memory` with default settings. A set is a folder of parts under DATA;
a part is a folder with `memories.jsonl` ({"id", "content", "created_at"?} a line) and
`queries.jsonl` ({"id", "query", "expected": [ids]} a line), and becomes a database of its own. A
query is a hit at k when any expected id is among the first k results. tests/diaries, conversations,
rivals, beginnings, things and aspects need no DATA: see their READMEs. What the ranker learns from
is asked with weights that `models/train_ranker.py` made without it (kept under build/ranker); four
sets of things and aspects teach nothing (`docs/ranking.md`). The last table has the figures by
which a change is judged.

PARTS are names of sets, `diaries`, `conversations`, `rivals`, `beginnings`, `things`, `aspects`,
`judges` (those of things and aspects that taught nothing, which takes a minute or two),
`names` (questions that name what no note names), `store` (what storing the diaries proposes),
`prompts` (what the hook shows unasked), `talk` (what was said in conversations beside what was
stored, for several TALK_LOSS) and `trials` (on the set that has a `temporal.jsonl`): ages,
versions, no answer, order, duplicates, and pairs that must stay two.
`make bench-quality LONGMEMEVAL=FILE` asks the questions of LongMemEval instead, each of its own
history, from the file as it is published (`longmemeval_s_cleaned.json`). The memories are once
whole sessions and once single turns.
Calibration follows from all that was asked. Vectors are kept under build/quality; every answer goes
to dist/bench-quality.jsonl; what was tried on the way to the ranking stands in docs/ranking.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench_recall import (
    ANSWERS,
    DEPTH,
    ROOT,
    Row,
    answers,
    figures,
    is_buried,
    is_marked,
    is_outdated,
    is_right,
    joined,
    position,
    recalled,
    rows,
    share,
    stored,
    table,
)
from bench_trials import run_trials

import sediment
import sediment_ext.conversations
from sediment import Memory
from sediment_ext.hooks import answers_to_prompt
from sediment_ext.transcripts import Conversation, Turn

DIARIES = sorted(path.parent for path in ROOT.glob("tests/diaries/*/queries.jsonl"))
RIVALS = sorted(path.parent for path in ROOT.glob("tests/rivals/*/queries.jsonl"))
BEGINNINGS = sorted(path.parent for path in ROOT.glob("tests/beginnings/*/queries.jsonl"))
THINGS = sorted(path.parent for path in ROOT.glob("tests/things/*/queries.jsonl"))
ASPECTS = sorted(path.parent for path in ROOT.glob("tests/aspects/*/queries.jsonl"))
CONVERSATIONS = sorted(path.parent for path in ROOT.glob("tests/conversations/*/queries.jsonl"))
TRAINER = ROOT / "models" / "train_ranker.py"
sys.path.append(str(TRAINER.parent))
WAYS = ("cosine", "bm25", "classic", "simple hybrid", "default")
TUNED = {"sediment", "cookbook-docs", "cookbook-code", "chat", "functions"}  # seen by whoever tunes
BINS = 10
SHOWN = 5  # results to a question of the diaries, as by default
Pair = tuple[str, str]  # the ids of a note and of an older one that it makes obsolete


def parts(folder: Path) -> dict[str, list[Path]]:
    """Part folders by the name of their set."""
    found: dict[str, list[Path]] = {}
    for memories in sorted(folder.rglob("memories.jsonl")):
        if (memories.parent / "queries.jsonl").exists():
            found.setdefault(memories.parent.parent.name, []).append(memories.parent)
    return found


# Figures of the diaries, in per cent


def of_type(answers: list[Row], *types: str) -> list[Row]:
    return [row for row in answers if row["type"] in types]


def changed(answers: list[Row]) -> str:
    """Of facts that changed: the right one first, and an outdated one before it."""
    now = of_type(answers, "current")
    return joined(share([is_right(row) for row in now]), share([is_outdated(row) for row in now]))


def absent(answers: list[Row]) -> str:
    """Of questions without an answer: how many get none, and how sure the first is."""
    asked = of_type(answers, "absent")
    shown = [row["similarity"] for row in asked if row["answer"]]
    mean, sure = sum(shown) / len(asked), sum(shown) / len(shown) if shown else 0.0
    return f"{share([not row['answer'] for row in asked]):.1f} / {mean:.2f} ({sure:.2f})"


def first(*types: str) -> Callable[[list[Row]], float]:
    return lambda answers: share([is_right(row) for row in of_type(answers, *types)])


def among_five(answers: list[Row]) -> float:
    several = of_type(answers, "multi")
    parts = [share([id in row["answer"][:5] for id in row["expected"]]) for row in several]
    return share(parts) / 100


def wrongly_empty(answers: list[Row]) -> float:
    return share([not row["answer"] for row in answers if row["type"] != "absent"])


DIARY_FIGURES: dict[str, Callable[[list[Row]], str | float]] = {
    "diaries: first right, all facts": first("current", "constant", "asof"),
    "changed facts first / outdated before right": changed,
    "constant facts first": first("constant"),
    "as of a date first": first("asof"),
    "several notes, share in the first five": among_five,
    "no answer there: empty / mean similarity of the first": absent,
    "wrongly empty": wrongly_empty,
}


# Sets and diaries


def measure_sets(sets: dict[str, list[Path]]) -> None:
    """Every set by every ranking, and the mean over the tuned and over all."""
    show = table("Public sets: R@1 / R@5 / MRR by ranking.", "set", "queries", *WAYS)
    means: dict[str, list[float]] = {}
    for name, folders in sets.items():
        found: dict[str, list[Row]] = {way: [] for way in WAYS}
        for part in folders:
            with stored(rows(part / "memories.jsonl")) as memory:
                for way in WAYS:
                    found[way] += answers(memory, name, rows(part / "queries.jsonl"), way)
        told = [figures(found[way]) for way in WAYS]
        show(name, len(found["default"]), *(joined(*row) for row in told))
        means[name] = [row[2] for row in told]
    for title, names in (("mean MRR of the tuned", TUNED & means.keys()), ("mean MRR", means)):
        if columns := list(zip(*(means[name] for name in names), strict=True)):
            show(f"{title} ({len(names)})", "", *(sum(column) / len(names) for column in columns))


def validated() -> str:
    return "cross-validated by thirds" if TRAINER.exists() else "not cross-validated"


def weights_without(fold: int) -> Path:
    """A ranker that never saw a third of the folders, made anew when anything that makes it has
    changed."""
    from folds import PROGRAM, made_from  # pyright: ignore[reportMissingImports]

    sources = TRAINER, *PROGRAM, *sorted(ROOT.glob("models/lessons/*"))
    target = ROOT / "build" / "ranker" / made_from(sources) / f"{fold}.json"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(".tmp")
        made = [sys.executable, TRAINER, "--fold", str(fold), "--output", draft]
        subprocess.run(made, check=True, cwd=ROOT)
        draft.rename(target)
    return target


def unseen_settings(name: str) -> dict[str, str]:
    """The environment of a program that encodes and ranks by what never saw this folder."""
    if not TRAINER.exists():
        return {}
    from build_model import model_without  # pyright: ignore[reportMissingImports]
    from folds import (  # pyright: ignore[reportMissingImports]
        encoder_folders,
        fold_of,
        ranker_folders,
    )

    paths = {}
    if name in ranker_folders():
        paths["RANKER"] = weights_without(fold_of(name))
    if name in encoder_folders():
        paths["EMBEDDING_MODEL"] = model_without(fold_of(name))
    return {f"SEDIMENT_{key}": str(path) for key, path in paths.items()}


def unseen(name: str) -> Any:
    """Let what is opened inside do so."""
    return patch.dict(os.environ, unseen_settings(name))


# Diaries by who wrote them, and when: the figures depend on it.
HANDS = {
    "the ten first": "band firmware game health lawyer maintainer platform renovation school"
    " warehouse-data",
    "22 of few rivals": "androidapp bikeshop clinic-it datacenter drones etl-bank freelancer"
    " frontend houseboat household kindergarten marathon migraine ml-search mmo-server ngo"
    " observatory payments podcast restaurant rustcli theatre",
    "the last 16": "chatplatform climbinggym compiler datascience genealogist gridops homelab"
    " mountainhut museum orchard pharmacy roboticslab saas secteam translator wedding",
}


NOTE_WAYS = ("cosine", "simple hybrid", "classic", "default")


def told_unseen(
    name: str,
    folders: list[Path],
    ways: Sequence[str],
    limit: int = DEPTH,
    questions: Callable[[list[Row], list[Row]], list[Row]] = lambda _, queries: queries,
) -> Iterator[tuple[str, str, list[Row]]]:
    """What is answered to each folder's questions, or those made of them (of its notes and its
    queries), by what has not seen it: the folder's name, a ranking, and the answers."""
    from folds import stores  # pyright: ignore[reportMissingImports]

    for folder in folders:
        for memories, queries in stores(folder):
            if not (asked := questions(memories, queries)):
                continue
            with unseen(folder.name), stored(memories) as memory:
                for way in ways:
                    told = answers(memory, name, asked, way, limit)
                    for row in told:
                        row["folder"] = folder.name
                    yield folder.name, way, told


def measure_diaries() -> None:
    """The diaries' figures, by ranking, and those of some of them."""
    ways = NOTE_WAYS
    found: dict[str, list[Row]] = {way: [] for way in (*ways, *HANDS)}
    for diary, way, told in told_unseen("diaries", DIARIES, ways, SHOWN):
        found[way] += told
        for hands, names in HANDS.items():
            found[hands] += told if way == "default" and diary in names.split() else []
    meaning = (
        f"{len(found['default'])} questions to {len(DIARIES)} diaries, {validated()}, in per cent."
        " An empty answer's similarity is 0; in brackets the mean without these."
    )
    show = table(meaning, "figure", *ways, *(f"default, {hands}" for hands in HANDS))
    for name, figure in DIARY_FIGURES.items():
        show(name, *(figure(answered) for answered in found.values()))


def measure_conversations() -> None:
    """The same of what is said or logged, in which nothing becomes obsolete."""
    found: dict[str, list[Row]] = {way: [] for way in WAYS}
    for _, way, told in told_unseen("conversations", CONVERSATIONS, WAYS):
        found[way] += told
    meaning = f"Conversations and records, {validated()}: R@1 / R@5 / MRR by ranking."
    show = table(meaning, "questions", *WAYS)
    show(len(found["default"]), *(joined(*figures(found[way])) for way in WAYS))


RIVAL_TYPES = ("lookalikes", "versions", "mentions")


def measure_rivals() -> None:
    """Later notes that are like an earlier one: which of them is right first, by ranking."""
    ways = NOTE_WAYS
    found: dict[str, list[Row]] = {way: [] for way in ways}
    for _, way, told in told_unseen("rivals", RIVALS, ways, SHOWN):
        found[way] += told
    meaning = f"{len(RIVALS)} sets of notes that later ones resemble, {validated()}: first right."
    show = table(meaning, "questions", *ways)
    for kind in RIVAL_TYPES:
        count = len(of_type(found["default"], kind))
        show(f"{kind} ({count})", *(first(kind)(found[way]) for way in ways))
    show("all", *(first(*RIVAL_TYPES)(found[way]) for way in ways))


def measure_stores(name: str) -> None:
    """Small stores, each by itself: what they answer, by ranking."""
    for title, folders in SMALL_STORES[name].items():
        found: dict[str, list[Row]] = {way: [] for way in NOTE_WAYS}
        for _, way, told in told_unseen(name, folders, NOTE_WAYS, SHOWN):
            found[way] += told
        show = table(f"{title}, {len(found['default'])} questions.", "figure", *NOTE_WAYS)
        for figure_name, figure in STORE_FIGURES.items():
            show(figure_name, *(figure(answered) for answered in found.values()))


def judges() -> set[str]:
    """The small stores' folders from which nothing is learned."""
    from folds import JUDGES  # pyright: ignore[reportMissingImports]

    return set(JUDGES)


ENGLISH = {"first-days", "new-projects", "small-teams"}
SMALL_STORES = {
    "beginnings": {
        f"Small stores in {title}, {validated()}": [
            folder for folder in BEGINNINGS if (folder.name in ENGLISH) == english
        ]
        for title, english in (("English", True), ("fifteen other languages", False))
    },
    "things": {f"Small stores of a few named things, {validated()}": THINGS},
    "aspects": {f"Small stores in which another aspect changed, {validated()}": ASPECTS},
    "judges": {
        "Small stores that taught nothing": [
            folder for folder in (*THINGS, *ASPECTS) if folder.name in judges()
        ]
    },
}
STORE_FIGURES: dict[str, Callable[[list[Row]], str | float]] = {
    "first right, all facts": first("current", "constant", "literal", "period", "past"),
    "a name or code / a period / how it was before, first": lambda answers: joined(
        *(first(kind)(answers) for kind in ("literal", "period", "past"))
    ),
    **{
        name: figure
        for name, figure in DIARY_FIGURES.items()
        if not name.startswith(("diaries", "as of"))
    },
}


# Names


def renamed(question: str, notes: str) -> str:
    """A question with other figures in its names, that no note has: WH-1193 for WH-1182."""
    for name in sediment.identifiers(question):
        turned = (
            re.sub(r"\d", lambda figure, by=by: str((int(figure[0]) + by) % 10), name)
            for by in range(1, 10)
        )
        other = next((one for one in turned if one.lower() not in notes), name)
        question = question.replace(name, other)
    return question


def of_other_names(notes: list[Row], queries: list[Row]) -> list[Row]:
    """The questions whose right notes name what they name, asked of what no note names."""
    texts = {row["id"]: row["content"].lower() for row in notes}
    every, found = "\n".join(texts.values()), []
    for row in queries:
        right = "\n".join(texts[id] for id in row["expected"])
        named = any(name.lower() in right for name in sediment.identifiers(row["query"]))
        if named and (other := renamed(row["query"], every)) != row["query"]:
            found.append(row | {"query": other, "expected": [], "stale": [], "type": "absent"})
    return found


def measure_names() -> None:
    """What is answered to questions that name what no note names."""
    found: dict[str, list[Row]] = {way: [] for way in NOTE_WAYS}
    every = [*DIARIES, *CONVERSATIONS, *RIVALS, *BEGINNINGS, *THINGS, *ASPECTS]
    for _, way, told in told_unseen("names", every, NOTE_WAYS, SHOWN, of_other_names):
        found[way] += told
    count = len(found["default"])
    meaning = f"{count} questions that name WH-1193 where notes name WH-1182, {validated()}."
    show = table(meaning, "figure", *NOTE_WAYS)
    show("empty / mean similarity of the first", *map(absent, found.values()))


# Storing


def outdated(notes: list[Row], queries: list[Row]) -> set[Pair]:
    """Pairs of a right note and an older outdated one of the same question."""
    created = {row["id"]: row["created_at"] for row in notes}
    return {
        (new, old)
        for row in of_type(queries, "current", "asof")
        for new in row["expected"]
        for old in row["stale"]
        if created[old] < created[new]
    }


def confirmable(pairs: set[Pair], queries: list[Row]) -> set[Pair]:
    """Those whose older note is right for no question about now, as notes hold several facts."""
    right = {id for row in queries if row["type"] != "asof" for id in row["expected"]}
    return {(new, old) for new, old in pairs if old not in right}


def keep(
    memory: Memory, notes: list[Row], confirmed: set[Pair]
) -> tuple[dict[str, str], set[Pair]]:
    """Store notes one by one, and confirm what is proposed and true. Returns the ids that they
    got, and all that was proposed."""
    ids: dict[str, str] = {}
    names: dict[str, str] = {}
    proposed: set[Pair] = set()
    for note in notes:
        text, created = note["content"], note["created_at"]
        answer = memory.store(text, created_at=created)
        ids[note["id"]], names[answer["id"]] = answer["id"], note["id"]
        for row in answer.get("may_replace", answer.get("potential_conflicts", [])):
            pair = note["id"], names[row["id"]]
            proposed.add(pair)
            if pair in confirmed:
                memory.store(text, created_at=created, replace=row["id"])
    return ids, proposed


def asked_again(folder: Path, notes: list[Row], queries: list[Row]) -> list[Row]:
    """What default answers after an agent confirmed what is proposed and truly outdated."""
    with stored() as memory:
        ids, _ = keep(memory, notes, confirmable(outdated(notes, queries), queries))
        known = [
            row | {side: [ids[id] for id in row[side]] for side in ("expected", "stale")}
            for row in queries
        ]
        return answers(memory, f"{folder.name} confirmed", known, "default", SHOWN)


def measure_store() -> None:
    """What storing the diaries note by note proposes, and what it is worth to confirm it."""
    named: list[bool] = []
    proposals = stores = 0
    again: list[Row] = []
    for folder in DIARIES:
        notes, queries = rows(folder / "memories.jsonl"), rows(folder / "queries.jsonl")
        with unseen(folder.name):
            with stored() as memory:
                _, proposed = keep(memory, notes, set())
            again += asked_again(folder, notes, queries)
        named += [pair in proposed for pair in outdated(notes, queries)]
        proposals, stores = proposals + len(proposed), stores + len(notes)
    meaning = (
        f"Diaries stored note by note, {validated()}: of {len(named)} pairs of a right note and an"
        " older outdated one, how often storing the right one proposes the other, in per cent;"
        " then recall when an agent confirms what is proposed and truly outdated."
    )
    show = table(meaning, "figure", "default")
    show("store: the outdated note among those proposed", share(named))
    show("proposals a store", f"{proposals / stores:.2f}")
    show("then changed facts first / outdated before right", changed(again))


# Prompts


def measure_prompts() -> None:
    """How often a hook shows something at a prompt, and whether it is right."""
    talk = (ROOT / "tests" / "trials" / "coding_talk.txt").read_text("utf-8").splitlines()
    right: list[bool] = []
    nothing: list[bool] = []
    idle: list[bool] = []
    for folder in DIARIES:
        with unseen(folder.name), stored(rows(folder / "memories.jsonl")) as memory:
            for row in rows(folder / "queries.jsonl"):
                if row["type"] == "asof":
                    continue
                shown = {one["id"] for one in answers_to_prompt(memory, row["query"])}
                if row["expected"]:
                    right.append(bool(shown & set(row["expected"])))
                else:
                    nothing.append(bool(shown))
            idle += [bool(answers_to_prompt(memory, text)) for text in talk]
    meaning = f"The hook at a prompt, on the diaries, {validated()}, in per cent."
    show = table(meaning, "figure", "default")
    show(f"a right memory among the three ({len(right)} questions)", share(right))
    show(f"a memory where none answers ({len(nothing)})", share(nothing))
    show(f"a memory for coding talk ({len(talk)} prompts in {len(DIARIES)} diaries)", share(idle))


# Conversations beside what was stored

LOSSES = (0.0, 0.05, 0.1, 0.15, 0.2)
SESSION = 12  # turns, of which every other one is about the work


def said(notes: list[Row]) -> list[Conversation]:
    """Sessions in which these notes were said, by the user or to the user, between coding talk;
    a turn's key is the id of its note."""
    talk = (ROOT / "tests" / "trials" / "coding_talk.txt").read_text("utf-8").splitlines()
    turns: list[Turn] = []
    for number, note in enumerate(notes):
        id, at, text, prompt = note["id"], note["created_at"], note["content"], talk[number % 100]
        told = (
            (text, "Noted, I keep it in mind.") if number % 2 else (prompt, f"By the way: {text}")
        )
        turns.append(Turn(id, at, *told))
        turns.append(Turn(f"w{number}", at + 60, talk[-number % 100], "Done, and the tests pass."))
    places = range(0, len(turns), SESSION)
    return [Conversation("claude", f"s{n}", None, turns[n : n + SESSION], 0) for n in places]


def places(memory: Memory, asked: list[Row], talk: list[Conversation]) -> list[tuple[int, ...]]:
    """For each question the places, from 1, of the first right note, the first right turn and the
    first turn at all; DEPTH + 1 for none."""
    notes = {
        sediment_ext.conversations.turn_id(
            sediment_ext.conversations.session_name(one.client, one.session), turn.key
        ): turn.key
        for one in talk
        for turn in one.turns
    }
    found = []
    for row in asked:
        answer = [id for id, _ in recalled(memory, row["query"], "default", DEPTH)]
        said = [id for id, note in notes.items() if note in row["expected"]]
        of = (position(answer, ids) for ids in (row["expected"], said, list(notes)))
        found.append(tuple(place or DEPTH + 1 for place in of))
    return found


def measure_talk() -> None:
    """Diaries whose notes were said as well, or only said: what stands first."""
    both: dict[float, list[tuple[int, ...]]] = {loss: [] for loss in LOSSES}
    alone: dict[float, list[tuple[int, ...]]] = {loss: [] for loss in LOSSES}
    beside: dict[float, list[tuple[int, ...]]] = {loss: [] for loss in LOSSES}
    for folder in DIARIES:
        notes, queries = rows(folder / "memories.jsonl"), rows(folder / "queries.jsonl")
        constant = of_type(queries, "constant")
        unstored = {id for row in constant[::2] for id in row["expected"]}
        asked = [row for row in constant if unstored.issuperset(row["expected"])]
        others = [row for row in constant if unstored.isdisjoint(row["expected"])]
        kept = [note for note in notes if note["id"] not in unstored]
        only_said = said([note for note in notes if note["id"] in unstored])
        with stored(notes) as memory:
            memory.add_conversations(said(notes))
            for loss in LOSSES:
                with patch.object(sediment, "TALK_LOSS", loss):
                    asked_all = of_type(queries, "constant", "current")
                    both[loss] += places(memory, asked_all, said(notes))
        with stored(kept) as memory:
            memory.add_conversations(only_said)
            for loss in LOSSES:
                with patch.object(sediment, "TALK_LOSS", loss):
                    alone[loss] += places(memory, asked, only_said)
                    beside[loss] += places(memory, others, only_said)
    meaning = "Conversations beside what was stored, on the diaries, by TALK_LOSS, in per cent."
    show = table(meaning, "figure", *map(str, LOSSES))

    def line(
        name: str, found: dict[float, list[tuple[int, ...]]], true: Callable[..., bool]
    ) -> None:
        show(name, *(share([true(*row) for row in found[loss]]) for loss in LOSSES))

    def turn_before(note: int, _: int, turn: int) -> bool:
        return turn < note <= DEPTH

    count = len(both[LOSSES[0]])
    line(f"stored and said ({count} questions): a turn before the right note", both, turn_before)
    line("stored and said: the right note first", both, lambda note, *_: note == 1)
    line(
        "stored and said: the right note, or a turn that says the same, first",
        both,
        lambda note, turn, _: 1 in (note, turn),
    )
    count = len(alone[LOSSES[0]])
    line(f"only said ({count}): the right turn first", alone, lambda _, turn, __: turn == 1)
    line("only said: the right turn among five", alone, lambda _, turn, __: turn <= SHOWN)
    count = len(beside[LOSSES[0]])
    line(f"only stored ({count}): a turn before the right note", beside, turn_before)
    line("only stored: the right note first", beside, lambda note, *_: note == 1)


# LongMemEval

LEVELS = ("session", "turn")
PLACES = (1, 5)


def said_at(text: str) -> str:
    """A time as LongMemEval writes it, "2023/05/30 (Tue) 23:40", in ISO 8601."""
    return datetime.strptime(text, "%Y/%m/%d (%a) %H:%M").isoformat()


def histories(question: Row) -> dict[str, tuple[list[Row], list[str]]]:
    """By level, the memories of a question's history and the ids of those that have its answer."""
    found: dict[str, tuple[list[Row], list[str]]] = {level: ([], []) for level in LEVELS}

    def add(level: str, id: str, content: str, date: str, is_gold: bool) -> None:
        rows, gold = found[level]
        rows.append({"id": id, "content": content, "created_at": said_at(date)})
        gold.extend([id] * is_gold)

    names = ("haystack_session_ids", "haystack_dates", "haystack_sessions")
    for place, (name, date, turns) in enumerate(zip(*map(question.get, names), strict=True)):
        said = [f"{turn['role']}: {turn['content']}" for turn in turns]
        is_gold = name in question["answer_session_ids"]
        add("session", f"{place}", "\n\n".join(said), date, is_gold)
        for number, (turn, text) in enumerate(zip(turns, said, strict=True)):
            add("turn", f"{place}-{number}", text, date, bool(turn.get("has_answer")))
    return found


def measure_longmemeval(file: Path) -> None:
    """How often the first one, or the first five, have any or all of what a question needs. A
    question that the history does not answer (`_abs`) or that names no such turn is left out."""
    told: dict[tuple[str, str], list[tuple[bool, ...]]] = {}
    for question in json.loads(file.read_text("utf-8")):
        for level, (memories, gold) in histories(question).items():
            if gold and not question["question_id"].endswith("_abs"):
                with stored(memories) as memory:
                    answer = [id for id, _ in recalled(memory, question["question"], "default", 5)]
                hits = [[id in answer[:place] for id in gold] for place in PLACES]
                row = tuple(whole(hit) for whole in (any, all) for hit in hits)
                for kind in (question["question_type"], "all"):
                    told.setdefault((level, kind), []).append(row)
    columns = [f"R@{place}, {golds}" for golds in ("any", "all") for place in PLACES]
    show = table("LongMemEval, in per cent.", "memories, type", "questions", *columns)
    for (level, kind), found in sorted(told.items()):
        shares = (share(column) for column in zip(*found, strict=True))
        show(f"{level}, {kind}", len(found), *shares)


# Calibration


def bins(answers: list[Row]) -> list[tuple[int, float, float]]:
    """Of answers by the tenth of their first's similarity: count, mean similarity, share right."""
    found: list[list[Row]] = [[] for _ in range(BINS)]
    for row in answers:
        found[min(BINS - 1, int(row["similarity"] * BINS))].append(row)
    return [
        (len(part), share([row["similarity"] for row in part]), share(list(map(is_right, part))))
        for part in found
    ]


def calibration_error(answers: list[Row]) -> float:
    """How far similarity and the share of right answers are apart, by tenths, on the mean."""
    total = sum(count for count, _, _ in bins(answers))
    return sum(count * abs(said - right) for count, said, right in bins(answers)) / total / 100


def measure_calibration(names: list[str]) -> None:
    """Is the first result's similarity how likely it is right?"""
    shown = [row for row in ANSWERS if row["way"] == "default" and row["answer"]]
    found = {name: [row for row in shown if row["set"] == name] for name in names}
    found = {name: told for name, told in found.items() if told}
    found["all together"] = list(itertools.chain(*found.values()))
    if not found["all together"]:
        return
    meaning = "Expected calibration error of the first result's similarity, in ten bins."
    show = table(meaning, "set", "answers", "calibration error")
    for name, told in found.items():
        show(name, len(told), f"{calibration_error(told):.3f}")
    meaning = "All together: the first result's similarity, and how often it is right, in per cent."
    show = table(meaning, "similarity", "answers", "mean similarity", "right")
    for place, row in enumerate(bins(found["all together"])):
        show(f"{place / BINS:.1f} to {(place + 1) / BINS:.1f}", *row)


# All that a change is judged by


def shown_calibration(answers: list[Row]) -> float:
    """The calibration error of every shown result, each by itself."""
    every = [
        {"similarity": similarity, "answer": [id], "expected": row["expected"]}
        for row in answers
        for id, similarity in zip(row["answer"][:SHOWN], row["similarities"], strict=False)
    ]
    return calibration_error(every) if every else 0.0


def doubted(answers: list[Row]) -> str:
    """Of right first results, those under 0.3; of wrong ones, those over 0.6."""
    right = [row["similarity"] < 0.3 for row in answers if is_right(row)]
    asked = [row for row in answers if row["answer"] and row["expected"] and not is_right(row)]
    return joined(share(right), share([row["similarity"] > 0.6 for row in asked]))


def newest_marked(answers: list[Row]) -> float:
    return share([is_marked(row) for row in of_type(answers, "current", "versions")])


def buried(*types: str) -> Callable[[list[Row]], float]:
    def figure(answers: list[Row]) -> float:
        found = (is_buried(row) for row in of_type(answers, *types))
        return share([one for one in found if one is not None])

    return figure


JUDGED: dict[str, Callable[[list[Row]], str | float]] = {
    "constant, or another aspect, first": first("constant"),
    "changed first / newest in the first three, marked": lambda answers: joined(
        first("current")(answers), newest_marked(answers)
    ),
    "right note under a quarter of the first: constant / changed": lambda answers: joined(
        buried("constant")(answers), buried("current")(answers)
    ),
    "a name or code / a period / how it was before, first": lambda answers: joined(
        *(first(kind)(answers) for kind in ("literal", "period", "past"))
    ),
    "as of a date first / several notes in the first five": lambda answers: joined(
        first("asof")(answers), among_five(answers)
    ),
    "look-alikes / mentions / versions first": lambda answers: joined(
        *(first(kind)(answers) for kind in RIVAL_TYPES)
    ),
    "outdated before right": lambda answers: share(
        [is_outdated(row) for row in of_type(answers, "current", "versions")]
    ),
    "empty: no answer there / wrongly": lambda answers: joined(
        share([not row["answer"] for row in of_type(answers, "absent")]), wrongly_empty(answers)
    ),
    "calibration error of every result shown": lambda answers: f"{shown_calibration(answers):.3f}",
    "right first under 0.3 / wrong first over 0.6": doubted,
}


def measure_judged() -> None:
    """All figures of what was asked, by the sets that a change is judged by."""
    told = [row for row in ANSWERS if row["way"] == "default" and "type" in row]
    groups = {
        "teach nothing": [row for row in told if row.get("folder") in judges()],
        **{name: [row for row in told if row["set"] == name] for name in JUDGED_SETS},
    }
    groups = {name: rows for name, rows in groups.items() if rows}
    if groups:
        meaning = (
            f"What a change is judged by, default, in per cent; all but the first {validated()}."
        )
        show = table(meaning, "figure", *groups)
        for name, figure in JUDGED.items():
            show(name, *(figure(rows) for rows in groups.values()))


JUDGED_SETS = ("things", "aspects", "diaries", "rivals", "beginnings")
MEASURES: dict[str, Callable[[], None]] = {
    "diaries": measure_diaries,
    "conversations": measure_conversations,
    "rivals": measure_rivals,
    "beginnings": lambda: measure_stores("beginnings"),
    "things": lambda: measure_stores("things"),
    "aspects": lambda: measure_stores("aspects"),
    "judges": lambda: measure_stores("judges"),
    "names": measure_names,
    "store": measure_store,
    "prompts": measure_prompts,
    "talk": measure_talk,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--parts", nargs="*", default=[])
    parser.add_argument("--longmemeval", type=Path)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.longmemeval:
        measure_longmemeval(given.longmemeval)
        return
    sets = parts(given.data) if given.data else {}
    if given.data and not sets:
        sys.exit(f"error: no memories.jsonl with a queries.jsonl beside it under {given.data}")
    known = [*sets, *MEASURES, *(["trials"] if given.data else [])]
    if wrong := set(given.parts) - set(known):
        sys.exit(f"error: no part {', '.join(sorted(wrong))}: there are {', '.join(known)}")
    chosen = given.parts or [name for name in known if name != "judges"]
    if wanted := {name: folders for name, folders in sets.items() if name in chosen}:
        measure_sets(wanted)
    for name, measure in MEASURES.items():
        if name in chosen:
            measure()
    measure_calibration(["diaries", "conversations", "rivals", *SMALL_STORES, *sets])
    measure_judged()
    if "trials" in chosen and given.data:
        run_trials(given.data, given.seeds)
    target = ROOT / "dist" / "bench-quality.jsonl"
    target.parent.mkdir(exist_ok=True)
    target.write_text("".join(json.dumps(row) + "\n" for row in ANSWERS), "utf-8")
    print(f"\nevery answer: {os.path.relpath(target)}")


if __name__ == "__main__":
    main()

"""Recall what a hub has (`recall --hub`), whatever this file has of it."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy

import sediment as core
from sediment_ext.sync import hub as hub_place
from sediment_ext.sync import merge

NEAREST = 200  # chunks that the hub proposes by their vectors


class HubCandidates(core.Search):
    """A search among what a hub proposes, with the hub's counts of words."""

    words: core.WeightedQuery
    vector: bytes

    def _weigh(self, *_: Any) -> core.WeightedQuery:
        return self.words

    def _query_vector(self, *_: Any) -> bytes | None:
        return self.vector


class HubSearch:
    """A search at a hub. PostgreSQL proposes candidates and what is linked to them; a temporary
    database then searches them as any file does."""

    def __init__(self, hub: hub_place.Hub, view: core.View, spaces: dict[str, str]) -> None:
        self.hub, self.view = hub, view
        self.encoder, self.current = view.encoder, view.projects.current()
        self.own = {space: own for space, own in spaces.items() if own in ("", self.current)}

    def answer(
        self, request: core.Request, min_score: float | None, anyway: bool, explain: bool
    ) -> dict[str, Any]:
        """What `Memory.recall_hub` returns."""
        query, total = core.parse_query(request.text, request.moment), self._begin()
        self.encoder.begin_loading()
        words = core.weighed(query.text, self.view.lexicon, total, self._counts)
        vector = self.encoder.embed_query(query.text, words.weights)
        found = self._states(words, vector, query.asked)
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.closing(core.Database(Path(folder) / "candidates.db")) as database,
        ):
            self._write(database, found)
            projects = core.Projects(database, self.current, None)
            search = HubCandidates(projects, self.encoder, None, self.view.lexicon)
            search.words, search.vector = words, vector
            answer = search.answer(request, min_score, anyway, explain)
        spaces = {state["id"]: space for space, state in found}
        for row in answer["results"]:
            row["space"] = spaces[row["id"]]  # by its name there
            row.pop("project", None)
        return answer

    def _begin(self) -> int:
        """About how many memories the hub has; NotFound where it has no indexes for recall."""
        self.hub.begin()
        ((ready, *_),) = self.hub.ask(_HUB_READY, str(2 * NEAREST))
        if ready is None:
            raise core.NotFound(
                "this hub has no indexes for recall: `hub init --recall` makes them"
            )
        return self.hub.ask(_HUB_SIZE)[0][0]

    def _counts(self, phrases: list[str]) -> list[int]:
        """How many memories have each of these phrases, FOUND_ROWS at most."""
        if not phrases:
            return []
        count = (
            "SELECT count(*) FROM (SELECT FROM sediment.item"
            f" WHERE terms @@ phraseto_tsquery('sediment.words', %s) LIMIT {core.FOUND_ROWS}) found"
        )
        return [*self.hub.ask(f"SELECT {', '.join([f'({count})'] * len(phrases))}", *phrases)[0]]

    def _states(
        self, words: core.WeightedQuery, vector: bytes, asked: core.AskedTime | None
    ) -> list[tuple[str, merge.State]]:
        """The (space, state) of each candidate and of its versions."""
        keys = self._of_words(words.terms)
        if vector:
            halves = json.dumps(numpy.frombuffer(vector, "<f4").astype("<f2").tolist())
            keys += self.hub.ask(_HUB_NEAR, halves)
            if asked and asked.events:
                keys += self.hub.ask(_HUB_OF_TIME, asked.start, asked.end - 1, halves)
        spaces, ids = zip(*set(keys), strict=True) if keys else ((), ())
        states, _ = self.hub.states(self.hub.ask(_HUB_CANDIDATES, [*spaces], [*ids]))
        written = ((space, state) for space, state in states if state["text"])
        return sorted(written, key=lambda pair: (pair[1]["text"][0], pair[1]["id"]))

    def _of_words(self, terms: list[core.Term]) -> list[Any]:
        """The space and id of each memory with the most of these words, the rare ones first."""
        if not terms:
            return []
        has = "terms @@ phraseto_tsquery('sediment.words', %s)"
        fits = " + ".join([f"({has})::int * {term.idf**2}" for term in terms])
        any_of = " OR ".join([has] * len(terms))
        sql = (
            "SELECT space, id FROM (SELECT * FROM sediment.item"
            f" WHERE {any_of} LIMIT {core.SCORED_ROWS}) i"
            f" ORDER BY {fits} DESC LIMIT {2 * core.CANDIDATES}"
        )
        phrases = [term.phrase for term in terms]
        return self.hub.ask(sql, *phrases, *phrases)

    def _write(self, database: core.Database, found: list[tuple[str, merge.State]]) -> None:
        """Write candidates as a sync would, in the projects that their spaces are shared as."""
        with database.transaction() as connection:
            me = {"machine": "hub", "mark": "", "place": ""}
            connection.execute(core.asset("schema/sync.sql"), me)
        by_project: dict[str, list[merge.State]] = {}
        for space, state in found:
            project = self.own.get(space, space if self.own else "")
            by_project.setdefault(project, []).append(state)
        for project, states in by_project.items():
            merge.receive(database, self.encoder, project, states)


# pgvector goes through so much of its graph that it finds as many as are asked for.
_HUB_READY = (
    "SELECT to_regclass('sediment.item_terms')::text, set_config('hnsw.ef_search', %s, false),"
    " set_config('hnsw.iterative_scan', 'relaxed_order', false)"
)
_HUB_NEAR = f"SELECT space, id FROM sediment.chunk ORDER BY v <=> %s::halfvec LIMIT {NEAREST}"
_HUB_OF_TIME = (
    "SELECT space, id FROM sediment.item JOIN sediment.chunk USING (space, id)"
    f" WHERE created BETWEEN %s AND %s ORDER BY v <=> %s::halfvec LIMIT {2 * core.CANDIDATES}"
)
# What was pruned is left out: what is moved to another space is so where it had been.
_HUB_CANDIDATES = (
    'WITH RECURSIVE near(space, id) AS (SELECT space COLLATE "C", id COLLATE "C"'
    " FROM unnest(%s::text[], %s::text[]) given(space, id) UNION"
    " SELECT o.space, o.id FROM near JOIN sediment.item i USING (space, id) JOIN sediment.item o"
    " ON o.space = i.space AND (o.id = i.successor OR o.successor = i.id))"
    " SELECT r.version, id, record, r.author, r.model, r.e FROM near"
    " JOIN sediment.record r USING (space, id) JOIN sediment.item USING (space, id)"
    " WHERE ended_by IS DISTINCT FROM 'prune'"
)
# An estimate, since a count looks at each row; as good as one where autovacuum runs.
_HUB_SIZE = (
    "SELECT CASE WHEN reltuples < 10000 THEN (SELECT count(*) FROM sediment.item)"
    " ELSE reltuples::bigint END FROM pg_class WHERE oid = 'sediment.item'::regclass"
)

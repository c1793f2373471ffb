"""Look at everything: whether the file is sound and agrees with itself, what is indexed, and which
program, libraries and model work here (`doctor`, `status`, `--version --verbose`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

import sediment as core
from sediment_ext import files, systems


def row_checks() -> dict[str, str]:
    """The query for each kind of row that must not be there."""
    return dict(
        re.findall(r"^-- (.+)\n(SELECT[^;]+);", core.asset("schema/checks.sql"), re.MULTILINE)
    )


def check_rows(connection: apsw.Connection) -> Iterator[core.Check]:
    """Whether the tables agree with one another."""
    for kind, sql in row_checks().items():
        if found := [str(row[0]) for row in connection.execute(sql)]:
            yield core.Check("tables", "broken", f"{len(found)} {kind}: {core.some_of(found)}")


def check_texts(connection: apsw.Connection) -> dict[str, int]:
    """{id: seq} of the items whose text is not what was stored, as far as hashes tell."""
    items = connection.execute("SELECT id, seq, content, text_hash FROM items")
    return {id: seq for id, seq, content, stored in items if core.text_hash(content) != stored}


def check_spans(connection: apsw.Connection) -> list[int]:
    """The seqs of the items whose chunks are out of order, or leave out some of the text."""
    spans: dict[int, list[tuple[int, int, int]]] = {}
    sql = 'SELECT item, position, start, "end" FROM chunks ORDER BY item, position'
    for item, *span in connection.execute(sql):
        spans.setdefault(item, []).append(tuple(span))
    items = connection.execute("SELECT seq, content FROM items")
    return [item for item, content in items if not spans_cover(content, spans.get(item, []))]


def spans_cover(content: str, spans: list[tuple[int, int, int]]) -> bool:
    """Whether spans (position, start, end) follow each other and leave out nothing but blanks."""
    covered = 0
    for number, (position, start, end) in enumerate(spans):
        if position != number or not start < end <= len(content) or content[covered:start].strip():
            return False
        covered = max(covered, end)
    return bool(spans) and not content[covered:].strip()


def check_words(connection: apsw.Connection) -> list[int]:
    """The chunks of which the word index holds other words than their texts have.

    Of each chunk, hashes of its postings are added and those of its text's words subtracted.
    """
    balance: Counter[int] = Counter()
    for stem, chunk, column, place in connection.execute("SELECT * FROM temp.postings"):
        balance[chunk] += hash((stem, column, place))
    tokenizer = connection.fts5_tokenizer("porter", ["unicode61", "remove_diacritics", "2"])
    for chunk, *texts in connection.execute(core.CHUNK_TEXTS):
        for column, text in zip(("text", "context"), texts, strict=True):
            stems = tokenizer(core.spaced(text).encode(), apsw.FTS5_TOKENIZE_DOCUMENT, None)
            for place, (_, _, stem) in enumerate(stems):
                balance[chunk] -= hash((stem, column, place))
    return [chunk for chunk, left in balance.items() if left]


def check_vectors(connection: apsw.Connection, dimension: int) -> list[int]:
    """The chunks whose vector is not one of this length, or not of length 1."""
    import numpy

    wrong: list[int] = []
    rows = connection.execute("SELECT chunk, vector FROM vectors")
    for batch in core.batches(rows, core.EXAMINE_BATCH):
        sound = [row for row in batch if len(row[1]) == 4 * dimension]
        wrong += {row[0] for row in batch} - {row[0] for row in sound}
        if sound:
            lengths = numpy.linalg.norm(
                core.stack_vectors(sound), axis=1
            )  # 0 where a vector is noise
            far = abs(lengths - 1) >= 0.001
            wrong += [row[0] for row, bad in zip(sound, far, strict=True) if bad]
    return wrong


# The libraries that a report of a fault names.
REPORTED = ("click", "numpy", "onnxruntime", "tokenizers", "waitress", "watchfiles")


def run_checks(database: core.Database, encoder: core.Encoder) -> dict[str, Any]:
    """What the checks of the file, its contents and the program find: {healthy, checks}."""
    checks = [*_check_file(database), *check_contents(database, encoder)]
    checks += _check_program(database, encoder)
    healthy = all(check.status != "broken" for check in checks)
    return {"healthy": healthy, "checks": [check._asdict() for check in checks]}


def _check_file(database: core.Database) -> Iterator[core.Check]:
    path = database.path
    if not path.exists():
        yield core.Check("file", "ok", f"{path} does not exist yet; the first `store` creates it")
        return
    if path.is_dir():
        yield core.Check("file", "broken", f"{path} is a folder: name a file in it")
        return
    yield core.Check("file", "ok", f"{path}, {database.size():,} bytes")
    for place, allowed in ((path, 0o600), (path.parent, 0o755)):
        if mode := systems.mode_beyond(place, allowed):
            yield core.Check(
                "permissions", "warning", f"other users can open {place} (mode {mode:o})"
            )
    if os.access(path, os.R_OK) and not core.is_writable(path):  # else "access" says so
        detail = f"{path} or its folder cannot be written: nothing can be stored"
        yield core.Check("permissions", "warning", detail)
    if drafts := ", ".join(draft.name for draft in core.abandoned_drafts(path)):
        detail = f"left by killed processes: {drafts}; `restore` or `doctor --repair` removes them"
        yield core.Check("drafts", "warning", detail)


def check_contents(database: core.Database, encoder: core.Encoder) -> Iterator[core.Check]:
    """Whether the pages are sound, and the tables agree with the texts."""
    core.check_log(database.path)
    if not database.path.exists():
        return
    try:
        if fault := fault_of_pages(database):
            yield fault
            return
        yield core.Check("pages", "ok", "SQLite finds the file sound")
        with database.snapshot():
            yield from _check_tables(database.reader(), encoder)
            if waiting := core.count_pending(database):
                yield core.Check(
                    "queue", "ok", f"{core.number_of(waiting, 'chunk')} without a vector yet"
                )
    except core.DatabaseError as error:
        name = "pages" if isinstance(error, core.DamagedError) else "access"
        yield core.Check(name, "broken", str(error))


def fault_of_pages(database: core.Database) -> core.Check | None:
    """What is wrong with the pages or the schema; DatabaseError for a file that is not ours."""
    # By a new connection: in one that knew the index before, FTS5 takes others' writes for damage.
    with (
        database.translate_errors(),
        contextlib.closing(core.open_connection(database.path)) as own,
    ):
        if found := core.check_pages(own):
            return core.Check("pages", "broken", found)
        if any(core.unreadable_in(own, "sqlite_schema", "sql")):
            return core.Check("schema", "broken", "the schema is not UTF-8")
        core.check_compatible(own, database.path)
        if missing := core.missing_in_schema(own):
            return core.Check("schema", "broken", f"missing: {', '.join(missing)}")
    return None


def _check_tables(connection: apsw.Connection, encoder: core.Encoder) -> Iterator[core.Check]:
    if found := core.unreadable_phrase(connection):
        yield core.Check("texts", "broken", found)
        return  # the other checks read them
    wrong = list(check_rows(connection))
    if changed := check_texts(connection):
        detail = f"{core.number_of(len(changed), 'changed text')}: {core.some_of([*changed])}"
        wrong.append(core.Check("texts", "broken", detail))
    vectors = check_vectors(connection, core.vector_dimension(connection, encoder))
    for name, found, kind in (
        ("chunks", check_spans(connection), "text with missing chunks"),
        ("words", check_words(connection), "chunk with other words than its text"),
        ("vectors", vectors, "invalid vector"),
    ):
        if found:
            wrong.append(core.Check(name, "broken", core.number_of(len(found), kind)))
    yield from wrong
    if not wrong:
        counts = core.count_items(connection)
        for name in ("chunks", "vectors"):
            counts[name] = connection.execute(f"SELECT count(*) FROM {name}").get
        yield core.Check("tables", "ok", f"{core.counts_phrase(counts)} agree with the texts")


def _check_program(database: core.Database, encoder: core.Encoder) -> Iterator[core.Check]:
    try:
        encoder.model.check(full=True)
        if encoder.model.destination:
            yield _check_service(encoder)
        else:
            encoder.embed(core.PROBE)
            yield core.Check("model", "ok", f"{encoder.model.name}, every byte verified")
        with contextlib.suppress(core.DatabaseError):
            if not core.same_model(database, encoder.model):
                remedy = "search uses words alone until `reindex`"
                yield core.Check("model", "warning", f"the vectors come from another one: {remedy}")
    except core.ModelError as error:
        yield core.Check("model", "broken", str(error))
    python = ".".join(map(str, sys.version_info[:3]))
    versions = f"Sediment {core.__version__}, Python {python}, SQLite {_describe_sqlite()}"
    yield core.Check("program", "ok", versions)


def _check_service(encoder: core.Encoder) -> core.Check:
    """Whether a service gives a vector; and a reminder that texts are sent to it."""
    where = f"texts are sent to {encoder.model.destination}"
    try:
        encoder.embed(core.PROBE)
    except core.ServiceError as error:
        return core.Check("model", "warning", f"{where}; {error}")
    dimension = encoder.model.dimension
    return core.Check("model", "ok", f"{where}; {encoder.model.name}, {dimension} dimensions")


def describe_program(database: core.Database) -> dict[str, str]:
    """What a report of a fault needs, whatever is broken; changes nothing. Settings are named
    without their values, which may be keys, and paths without the home folder."""
    import locale

    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "sediment": core.__version__,
        "model": _or_fault(_describe_model),
        "database": _or_fault(lambda: _describe_file(database)),
        "sqlite": _describe_sqlite(),
        "libraries": ", ".join(map(_describe_library, REPORTED)),
        "python": f"{python}, {_without_home(sys.executable)}",
        "program": _without_home(str(Path(core.__file__).resolve())),
        "system": f"{platform.platform()}, {os.cpu_count()} CPUs, {locale.getencoding()}",
        "set": ", ".join(core.settings_in_use()) or "nothing",
    }


def _describe_library(name: str) -> str:
    from importlib import metadata

    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"{name} is missing"


def _or_fault(describe: Callable[[], str]) -> str:
    """A description, or why there is none."""
    try:
        return describe()
    except core.SedimentError as error:
        return _without_home(str(error))


def _without_home(text: str) -> str:
    here = core.home()
    return text.replace(str(here), "~") if here and len(here.parts) > 1 else text


def _describe_model() -> str:
    model = core.open_encoder(resident=False).model
    where = f"are sent to {model.destination}" if model.destination else "stay here"
    return f"{model.name}: texts {where}, {model.digest}"


def _describe_sqlite() -> str:
    versions = f"{apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}"
    with contextlib.closing(apsw.Connection(":memory:")) as connection:
        if core.load_distance(connection):
            return f"{versions}, sqlite-vec {connection.execute('SELECT vec_version()').get}"
    return f"{versions}, without sqlite-vec"


def _describe_file(database: core.Database) -> str:
    path = database.path
    if not path.exists():
        return f"{_without_home(str(path))}, not there yet"
    with database.translate_errors(), contextlib.closing(core.open_read_only(path)) as own:
        core.check_compatible(own, path)
        schema = f"schema {own.pragma('user_version')} of {max(core.MIGRATIONS)}"
    return f"{_without_home(str(path))}, {database.size():,} bytes, {schema}"


def status_of(memory: core.Memory, deep: bool, index: bool) -> dict[str, Any]:
    """What `Memory.status` returns."""
    projects, encoder, database = memory.projects, memory.encoder, memory.database
    for scope in files.indexed_scopes(projects, encoder) if index else ():
        memory.index(scope=scope)
    here, model = projects.current(), encoder.model
    vector_weight, text_weight = core.check_weights(None, None) or ("automatic", "automatic")
    memories = f"SELECT count(*) FROM items i WHERE {core.IS_MEMORY} AND {core.IN_OWN_SCOPE}"
    indexes = {"project": files.Files(projects, encoder, here)} if here else {}
    indexes["global"] = files.Files(projects, encoder, None)
    sources = [
        found.facts(source, scope) for scope, found in indexes.items() for source in found.sources()
    ]
    service: dict[str, Any] = {}
    if model.destination:
        sent_before = core.extension("services").sent_before
        service = {"texts_go_to": model.destination, **sent_before(database.reader(), model)}
    return {
        "database": str(database.path),
        "bytes": database.size(),
        "project": here,
        "memories": database.value(memories, here),
        **core.model_facts(database, encoder),
        **service,
        "vector_weight": vector_weight,
        "text_weight": text_weight,
        "candidates": core.check_candidates(None),
        "cached_vectors": database.value("SELECT count(*) FROM embeddings"),
        "pending_chunks": core.count_pending(database),
        "sources": sources,
        "dirty": sum(len(row[kind]) for row in sources for kind in ("new", "changed", "missing")),
        **({"deep": _try_search(memory)} if deep else {}),
    }


def _try_search(memory: core.Memory) -> dict[str, str]:
    """What a real embedding and a real search show."""
    found = memory.recall(core.PROBE, anyway=True, record=False)["count"]
    numbers = len(memory.encoder.embed(core.PROBE)) // 4
    memory.database.reader()
    return {
        "embedding": f"works ({numbers} numbers)",
        "search": f"works ({core.number_of(found, 'result')})",
        "sqlite_vec": "works" if memory.database.has_distance else "missing; numpy is used",
    }


_HIDDEN_FACTS = ("same_model", "cached_vectors", "candidates", "dirty", "sources", "deep")


def render_status(answer: dict[str, Any]) -> Iterator[str]:
    """The facts, then a line for each source, and for each file that has changed, is missing or
    was skipped."""
    facts = {name: value for name, value in answer.items() if name not in _HIDDEN_FACTS}
    yield from core.render_facts(facts | answer.get("deep", {}))
    if not answer.get("same_model", True):
        yield "The vectors come from another model: search uses words alone until `reindex`."
    for row in answer["sources"]:
        counts = f"{core.number_of(row['files'], 'file')}, {core.number_of(row['chunks'], 'chunk')}"
        yield core.printable_name(f"{'source':<16}{row['path']} ({counts}, {row['scope']})")
        if row["gone"]:
            command = f"index --remove {shlex.quote(row['path'])} --scope {row['scope']}"
            yield core.printable_name(f"{'missing':<16}if it is gone for good: sediment {command}")
        for kind in ("new", "changed", "missing"):
            lines = [core.printable_name(f"{kind:<16}{name}") for name in row[kind]]
            yield from core.first_lines(lines, f"{kind:<16}and {{}} more")
        files = (f"{'skipped':<16}{file['path']} {file['reason']}" for file in row["skipped"])
        lines = list(map(core.printable_name, files))
        yield from core.first_lines(lines, f"{'skipped':<16}and {{}} more")
    if not answer["sources"]:
        yield "Nothing is indexed yet: sediment index MEMORY.md memory/"
    elif answer["dirty"]:
        yield "Some files have changed: `sediment index` updates the index."

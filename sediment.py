"""Sediment: semantic memory for AI agents. One module, one file of data, offline.

Promises (tests hold each of them)
----------------------------------
1. One program, one file of data: a single SQLite database. What lies beside it (the log of hooks,
   a lock) holds no memory.
2. Offline. No network connection is opened unless somebody configures one: `sync`, `serve --http`,
   or an embedding service in SEDIMENT_EMBEDDING_MODEL.
3. The text is the truth. Chunks, vectors and the word index are derived from it. Of an indexed
   file, recall answers from the file as it is now.
4. Nothing is lost. Only `forget` deletes. Replacing and merging hide the old text behind the new
   one; `undo` restores it. Every change is one transaction, on disk before it is answered.
5. The newest version of a fact stands beside the older ones, and nothing is shown when nothing
   fits. Old facts keep their rank: age counts only between versions.
6. --version, --help, list, get, forget, stats and the MCP handshake import neither numpy nor
   onnxruntime.

The file
--------
SQLite in WAL mode, `application_id` 0x5ED10001, `user_version` = the last of MIGRATIONS.
    items     one row a memory: id, content, project_id (NULL = global), created_at (unix seconds),
              text_hash; ended_at, ended_by and successor once another item has taken its place
    chunks    spans [start, end) of code points into an item's content, and their context
    vectors   chunk -> float32[dimension], little-endian, unit length
    pending   chunks whose vector is still to be made
    words     FTS5 (porter stems, unicode61), rowid = chunk, contentless, in NFKC
    graph_nodes, graph_edges (related, supersedes, co_accessed), access_log,
    consolidation_queue, reviews (pairs of which the newer may make the older obsolete), history,
    projects, meta, changes (which items ended, came back, moved or went, for processes that cache)
    sources, files   what was asked to be indexed, and what was read. A part of a file is an item
              with file, first_line and last_line; a conversation is a file of the source
              "conversations:", and a turn is a part of it
    shown, captures   what hooks have shown in which session, and sessions still to be read
    replica, clock, spaces, machines   made by `sync --to`: the states that machines agree on
    embeddings   SHA-256 of model and text -> vector, of texts that left their files

Ranking (docs/ranking.md has the measurements)
----------------------------------------------
Candidates are the items whose best chunk is nearest to the query by cosine and those with the best
BM25, found separately in the project and globally, in other projects, and in conversations. A
replaced version is none, unless it was valid in the past that is asked about. With the best chunk's
cosine c, the cosine m of the mean of all chunks, and BM25 b:
    relevance = (c + MEAN_WEIGHT * (m - c) - LENGTH_DISCOUNT * ln chunks
                 + share * (b / max b) ** WORDS_POWER + MAXSIM_WEIGHT * s)
                * (1 or CROSS_PROJECT_FACTOR) + trust
    share = WORDS_WEIGHT * min(gap, COVERED * coverage) + STRANGE_WEIGHT * strange
    s = sum over the query's tokens q of tells(q) * (greatest cosine of q to a token of the chunk)
        / sum of tells(q) - (MAXSIM_CHANCE + MAXSIM_BY_LENGTH * ln(tokens + 3))
tells(q) is Robertson and Sparck Jones' idf, smoothed by the word's rarity in English. It weights
the query's vector, too, and squared the BM25, which has k1 = BM25_K1 and no length norm. `gap` is
how far the best b stands above the tenth best, `coverage` the part of the query's information that
the best one has, `strange` the share of words that the encoder's vocabulary lacks, and `trust`
grows with confirmations to TRUST_MAX. With another model than the bundled one the share is
OTHERS_WORDS times as much.

Logistic models (models/ranker.json) then judge each pair by what both share (x) and how well
either fits (y):
    o[i, j] = a . x[i, j] + b . y[i, j]            0 of a pair with a figure that only i shares
    p[i, j] = exp(o[i, j]) / (1 + sum over newer k of exp(o[i, k]))            j replaced i
If the sum of p[i, j] over j is at least NAMED, i names the likeliest j, which stands beside it:
before it from PASSES on, unless j is less relevant by PASSING_LOSS. A question that asks how it was
before (`asks_before`) prefers the older of two in the same way. A third model gives each result's
similarity, the probability that it answers. An answer is empty if its best cosine is below the
floor:
    max(FLOOR, the query's greatest cosine to a cohort), less among few chunks (`chance_floor`)
The cohort are memories of other people's lives, which come with the model.

Use from Python
---------------
    from sediment import Memory
    memory = Memory("notes.db", project="demo")
    memory.store("We deploy on Fridays, after the canary is green.")
    memory.recall("when can I release?")["results"][0]["content"]
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import errno
import functools
import importlib
import io
import itertools
import json
import math
import os
import re
import shlex
import signal
import sys
import threading
import time
import unicodedata
import weakref
import zlib
from bisect import bisect_right
from collections import Counter, deque, namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    import hashlib
    import random
    import shutil
    import subprocess
    import uuid
    from typing import NamedTuple

    import apsw
    import numpy
    from tokenizers import Tokenizer
else:

    class _Module:
        """Stands for a module until it is used; numpy alone takes longer to load than most
        commands."""

        def __init__(self, title: str) -> None:
            self._title = title

        def __getattr__(self, member: str) -> Any:
            while (module := __import__(self._title)) is not sys.modules.get(self._title):
                pass  # another thread could not load it: this one is told why
            globals()[self._title] = module
            return getattr(module, member)

    for _title in ("hashlib", "random", "shutil", "subprocess", "uuid", "apsw", "numpy", "psycopg"):
        globals()[_title] = _Module(_title)

    class _Tuples(type):
        """Makes NamedTuple classes without typing's checks, which take 9 ms of every start."""

        def __new__(cls, title: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, title, bases, members)
            fields = members.get("__annotations__", {})
            defaults = [members.pop(field) for field in fields if field in members]
            made = namedtuple(title, fields, defaults=defaults)
            for member, value in members.items():
                setattr(made, member, value)
            return made

    class NamedTuple(metaclass=_Tuples):
        """A tuple whose parts have names."""


# onnxruntime reports home unless told otherwise before its import; whoever imports this
# module, as a program or a library, is covered by this line.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy only carries vectors here
# Windows would look for git in the working folder first, which may be anybody's checkout.
os.environ["NODEFAULTCURRENTDIRECTORYINEXEPATH"] = "1"

__version__ = "0.1.0"
__all__ = ["Encoder", "Memory", "SedimentError", "__version__"]


# ---------------------------------------------------------------------------------------------
# Constants
#
# Every number that limits or ranks something stands here once, with what set it in a few words.
# ---------------------------------------------------------------------------------------------

CONTENT_MAX = 1_000_000  # bytes of one memory; a book chapter is 50,000
QUERY_MAX = 10_000  # bytes of one query; the encoder reads about 1,000 of them
ID_MAX = 255  # characters of an id given by import
TAG_MAX = 64  # characters of a tag; those on GitHub have up to 50
TAGS_MAX = 20  # of one memory at once: more are a text
LIMIT_MAX = 1_000  # results or items that one call may ask for
PAGES_MAX = 1_000_000  # highest page number of a list; no database has so many rows
SERVED_MAX = 100  # results or items in one tool answer
ANSWER_MAX = 10_000  # characters of one tool answer; clients cut or divert longer ones
ROW_TEXT = 40  # characters of each text in it, or rows lose their other fields
LINE_MAX = 10 * 2**20  # bytes of one message on the wire
DOCUMENT_MAX = 2**29  # bytes of a line to import or of another program's export
PAGE_SIZE = 8_000  # JSON characters of one page of a long memory
RATE_LIMIT = 600  # tool calls a minute; SEDIMENT_RATE_LIMIT=0 lifts it
PREVIEW = 100  # characters of a long memory shown in lists
PLAIN_MAX = 2**20  # bytes of a small file: a configuration, .gitignore, or one of git's
GIT_TIMEOUT = 20  # s; a million commits without a commit-graph take 8

INLINE_CHUNKS = 32  # encoded before a store answers (about 1 s); the rest later
WAITING_CHUNKS = 4  # chunks without a vector that a recall encodes: the best by words
REINDEX_BATCH = 16  # items a transaction: a second's work
CHUNKER = 1  # version of the way texts are cut: `reindex` skips what this one has cut
DATED = 60  # s between a row's date and its storing, from which on somebody has dated it
IMPORT_BATCH = 128  # rows a transaction
# Rows nearest by their bits whose exact cosines are taken: 99.6 % of the true first ten are found.
SCANNED = (3_000, 750, 750, 750)  # own, of other projects, of conversations, replaced
EXACT_ROWS = 20_000  # with no more rows, all cosines are exact
NEAR_SCANNED = (300, 0)  # the same to find what says nearly the same
SCAN_BLOCK = 32_768  # rows whose bits are compared at once: a core's cache
KEPT_VECTORS = 150_000  # 230 MB; with more rows a long-lived process keeps the bits alone
ERASED_KEPT = 2_000  # erased rows; above that, and a third of all, the index is read anew
CANDIDATES = 30  # per index and scope, or as many as are asked for
LEXICON_TEXTS, LEXICON_WORDS = 5_000, 20_000  # chunks and stems that a process keeps
KEPT_ANSWERS = 1_000  # answers of the word index that a process keeps until texts change: 8 MB
# Chunks in which a query's words are looked up; rarer words are counted in each of them.
SCORED_ROWS, COUNTED_ROWS = 10_000, 1_000
FOUND_ROWS = 2_000  # rows of a word that are read; how many have it is estimated from them
COMPOUND_MAX = 16  # parts that are looked up as one phrase; 5,000 take 15 s
QUERY_TERMS = 64  # words or tokens of a query that are looked up, the rarest in English
PREFIX_MIN = 4  # characters of the beginning of an id that is to change, as git has it

# Conversations and hooks.
CONVERSATION = "conversation"  # the content type of a turn, as a column of `items` has it
CONVERSATIONS = "conversations:"  # the path of the source whose files they are; none on a disk
CLIENTS = (  # that `init` knows
    *("claude", "codex", "gemini", "opencode", "cursor", "vscode", "copilot", "windsurf", "cline"),
    *("zed", "qwen", "continue", "crush", "kiro", "amp", "lmstudio", "any"),
)
HOOK_DEADLINE = 5  # s, after which a hook ends in silence; `init` lets clients wait for 8

# Ranking. docs/ranking.md has the measurements that set these.
WORDS_WEIGHT = 0.2  # of BM25 beside the cosine
WORDS_POWER = 1.5  # of a chunk's share of the best BM25
GAP_DEPTH = 10  # the chunk that the best BM25 is compared with
COVERED = 1.4  # times the part of the query that the best item has, which bounds the words' weight
STRANGE_WEIGHT = 0.15  # of words that the encoder's vocabulary lacks
# With another model than the bundled one, by which all weights were set: the factor of the words'
# share, and the mean that the cosines of candidates to one another have by the bundled one.
OTHERS_WORDS, PAIR_COSINE = 2.0, 0.245
BM25_K1 = 0.3
INFORMATIVE_IDF = 2.0  # nats; a word with less, as "to" or "is", tells nothing of a text
REPLACES_STAYS = 0.15  # of the chance to be obsolete, where somebody told what a memory replaces
# How likely a newer memory must have made another obsolete to stand beside it and be named by it,
# and to stand before it; and how much less relevant it may be then.
NAMED, PASSES, PASSING_LOSS = 0.2, 0.45, 0.2
TALK_LOSS = 0.05  # of relevance, lost by what was only said in a conversation
SAME_COSINE = 0.99999  # from here on two vectors are of the same text, up to rounding
RANKED = 30  # candidates compared with one another
MEAN_WEIGHT = 0.15  # of the mean of an item's vectors beside its best chunk's
LENGTH_DISCOUNT = 0.01  # the best of many chunks is near by chance
# Of the word-by-word fit, and the line that a text of so many tokens fits anything by.
MAXSIM_WEIGHT, MAXSIM_CHANCE, MAXSIM_BY_LENGTH = 0.4, 0.2, 0.081
COMMON_SHARE = 0.4  # of chunks, that hold a function word of a language other than English
FEWEST_COMMON = 2  # of a language's function words, to tell it by: a name may have one
FEW_HITS = 3  # of which one in another language lowers the floor
ENGLISH_CHUNKS = 100  # chunks for which a word's rarity in English counts, beside those stored
TELLING_MIN = 0.1  # a word with less of the rarest one's information is not worth its scan
CROSS_PROJECT_FACTOR = 0.875  # as in the original: another project's hit must be clearly better
# The cosine from which something has to do with a query, among FLOOR_CHUNKS chunks or more.
FLOOR, FLOOR_CHUNKS = 0.33, 1_000
LEAST_SIMILARITY = 0.03  # of one that is shown
MARGIN = 0.05  # of relevance, by which a result must be ahead of another to be clearly better
INHERITED = 8.0  # a newer memory answers what an older one does, less by e for 1/8 of relevance
NOTHING = 0.3  # the relevance of what was never stored, beside which a lone memory stands
COUNTED_SIMILARITY = 0.1  # what was shown with more counts as recalled
NAMED_OTHERWISE = 0.5  # of a similarity, where a text names another of the form that is asked for
TIME_WEIGHT = 0.3  # of relevance, won by an event in the time asked, lost by what is later
KNOWN_MIN = 0.2  # of the query's information, in words that a vector tells or a memory has
COVERAGE_ENOUGH = 0.6  # of the query's information: foreign questions find up to 0.43 by chance
COVERAGE_HELP = 0.8  # of FLOOR, where all of the query is found
TRUST_MAX = 0.01  # added for what people confirmed: less than lies between two good answers
# The original's, for the classic ranking: of BM25, of age in days, and of the least similarity.
CLASSIC_BOOST, CLASSIC_GAMMA, CLASSIC_HALF_LIFE, CLASSIC_FLOOR = 0.12, 2.0, 30, 0.30
CONFLICT_COSINE = 0.912  # nearer than this may say the same (0.85 on 1/(3-2c))
CONFLICTS_QUEUED = 4  # of the nearest, for consolidation
PROPOSALS_SHOWN = 3  # older memories that one store asks about; more are not read
REVIEWED = 0.1  # how likely a memory must be obsolete to be worth a person's look
STORE_NEIGHBOURS, STORE_ASKED = 48, 96  # memories compared, of so many items of any kind
UNSHARED = 5.0  # nats that only one of two says, from which on they are half as alike: a rare word
FEWEST_DAYS = 30  # between two versions: a correction comes as soon as an unrelated note
PROPOSED = 0.06  # how likely an older memory must be obsolete to be asked about
PROPOSAL_TEXT = 300  # characters of a proposed memory that an agent is shown
NEARER_VERSION = 0.25  # of cosine, by which a replaced version must be nearer to be told
CONTESTING_COSINE = 0.5  # a later item this near may be another version
MERGE_COSINE = 0.95  # as in the original; proposes only, see `differences`
COMPARED_WORDS = 5_000  # these take 0.07 s; longer memories must be equal to be merged
CORE_MIN = 3  # words that stay when a remark is cut off: "Status (confirmed)" is one whole
EXAMINE_BATCH = 512  # rows compared at once: a product of 1 MB matrices, under a millisecond
CONSOLIDATE_BATCH = 5  # pairs a transaction
SETTLED_KEPT = 7 * 86_400  # s after it was queued that a pair that was decided on stays there
LEASE = 10  # s that a process may be silent in background work before another takes it up
DAY = 86_400  # s
TIME_MAX = 253_402_128_000  # 9999-12-30: two days on, some time zone has no date for it
LINK_STRENGTH_MIN = 0.5  # weaker edges are kept, and not followed
LINKS_MAX = 500  # edges looked at for one answer
EXPANDED_FROM, SUGGESTED_FROM = 5, 3  # the first results, whose neighbours an answer names
OTHERS_TOLD = 5  # names of a result that are not what is asked, or places that say the same
NEIGHBOURS_SHOWN = 5  # of each kind: a page that is longer than its results is no help
CO_ACCESS_FIRST = 3  # results of one answer that count as asked for together
QUESTIONS_KEPT = 32  # of those that two results answered: what is asked again counts once
SUGGEST_COUNT = 3  # questions that both answered, before one suggests the other
REFUSED_SHOWN = 20  # lines of an import; more would scroll the summary away

CHUNK_THRESHOLD = 1_000  # characters; below, one vector says it all
CHUNK_MAX = 800  # about 200 tokens of English: with its context it fills most of the window
CHUNK_MIN = 200  # a piece of prose shorter than this says too little to be found by meaning
CHUNK_OVERLAP = 100  # a thought that is cut in two stays findable
CONTEXT_MAX = 120  # a longer context would take the window from what it describes
PAGE_BYTES = 8_192  # holds five vectors
LOG_INDEX_BYTES = 32_768  # that SQLite asks of the disk for the index of a write-ahead log
BUSY_TIMEOUT = 30_000  # ms a writer waits for another before it gives up
BUSY_PAUSE = 16.0  # ms at most between two tries
PRELOAD_DELAY = 2.0  # s between tools/list and loading the encoder in the background
SHOWN_DELAY, SHOWN_MAX = 0.2, 100  # s of quiet, or answers, before a server notes what it showed
ENCODER_THREADS = 2  # more gain little on texts this short
ENCODER_SPIN = 20  # us that idle threads spin: the least sum of latency and wasted time
TEXTS_AT_ONCE = 8  # by one thread each
PENDING_BATCH = 8  # texts at once: a second's work
SERVICE_WAIT = 10.0  # s that a query may wait for a service
# Vectors of one text: of one service 0.9999 and more, of two quantisations of a model about 0.98.
PROBE, PROBE_COSINE = "Is anybody there?", 0.99
EXCERPT = 200  # characters of a file's part that recall shows to people; `expand` shows the rest
STALE_ROUNDS = 3  # times that a recall looks again because a file had changed
PROGRESS_SECONDS = 10  # between lines of progress in a log, where no bar is drawn
WATCH_DEBOUNCE = 1_500  # ms without a change before changes are taken up; as memsearch does
WATCH_POLL = 1_000  # ms between looks at whether a watched folder is another one now
COMPACT_TIMEOUT = 300.0  # s that a command that summarises may take

UTF8_MARK = b"\xef\xbb\xbf"  # the byte order mark that programs on Windows put before a text
SCOPES = ("project", "global")
PRUNED = "prune"  # why an item ended that has nothing in its place
WHY_ENDED = ("replace", "repeat", "merge", "undo", PRUNED)
EXPIRY = ""  # the name of the mark that says when a memory expires; the other marks are its tags
RANKINGS = ("default", "classic", "cosine", "bm25")
APPLICATION_ID = 0x5ED10001
MODEL = "all-MiniLM-L6-v2"

NOTES_FOLDER = "memory"  # the folder of a project's notes
HOOK = "hook"  # a command, and a tool that is in no list
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


# ---------------------------------------------------------------------------------------------
# Errors
#
# One small family. A message names what is wrong and what to do; the shell prints it as one
# line and exits 1, a tool call returns it to the agent. Anything else is a bug in this file.
# ---------------------------------------------------------------------------------------------


class SedimentError(Exception):
    """Something the user or agent can put right; `str(error)` says how in one line. Its end, the
    `advice`, names commands; agents read the `reason` alone."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason + advice)
        self.reason = reason


class InvalidInput(SedimentError):
    """A text, id, number or name that cannot be taken as it is."""


class Conflict(InvalidInput):
    """Something that is right in itself, but not with what is stored."""


class Forbidden(SedimentError):
    """Something that whoever asks over the network may not do."""


class NotFound(SedimentError):
    """No such memory, or none that this project may see."""


class DatabaseError(SedimentError):
    """The file is not ours, cannot be read, or cannot be written."""


class DamagedError(DatabaseError):
    """It is no database, or its pages do not agree."""


class ModelError(SedimentError):
    """The encoder's files are missing, damaged or of another model than the database."""


class ServiceError(ModelError):
    """An embedding service gave no vectors. It may be asked `again` after so many seconds (None:
    never); what it `refused`, in smaller pieces. If it was not `reached`, no text was sent."""

    reached = True

    def __init__(self, message: str, again: float | None = None, refused: bool = False) -> None:
        super().__init__(message)
        self.again, self.refused = again, refused


def raise_error(error: SedimentError) -> None:
    raise error


# ---------------------------------------------------------------------------------------------
# Settings
#
# What a person sets in the environment, as SEDIMENT_NAME. Only this section reads it, at each use,
# so that a test can change it.
# ---------------------------------------------------------------------------------------------


def setting(name: str) -> str:
    """The value of SEDIMENT_`name`; "" if it is not set."""
    return os.environ.get(f"SEDIMENT_{name}", "")


def is_off(name: str) -> bool:
    """Whether SEDIMENT_`name` switches off something that is on by default."""
    return setting(name).strip().lower() in ("0", "false", "off", "no")


def variable(name: str) -> str:
    """The value of a variable of other programs; "" if it is not set."""
    return os.environ.get(name, "")


def settings_in_use() -> list[str]:
    """The names of all variables SEDIMENT_NAME that are set."""
    return sorted(name for name in os.environ if name.startswith("SEDIMENT_"))


def environment(left_out: str | tuple[str, ...]) -> dict[str, str]:
    """The environment for another program, without variables whose names begin with `left_out`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


_ONE_PROJECT = contextvars.ContextVar("alone", default=False)


@contextlib.contextmanager
def keep_to_one_project(alone: bool = True) -> Iterator[None]:
    """Show no other project's memories, whatever is set: for clients that may see only one."""
    before = _ONE_PROJECT.set(alone)
    try:
        yield
    finally:
        _ONE_PROJECT.reset(before)


def kept_to_one_project() -> bool:
    """Whether the client may see only one project, and what is global."""
    return _ONE_PROJECT.get()


def crosses_projects() -> bool:
    """Whether recall may also show other projects' memories."""
    return not kept_to_one_project() and not is_off("CROSS_PROJECT")


# ---------------------------------------------------------------------------------------------
# Extensions
#
# `sediment_ext` connects the memory to the world: clients, hooks, HTTP, other machines. Each module
# there is loaded when it is first used, so that a command that needs none does not wait for it.
# ---------------------------------------------------------------------------------------------


def extension(name: str) -> ModuleType:
    return importlib.import_module(f"sediment_ext.{name}")


def late(module: str, name: str) -> Callable[..., Any]:
    """A function of an extension that is loaded when the function is first called."""

    def call(*given: Any, **options: Any) -> Any:
        return getattr(extension(module), name)(*given, **options)

    return call


redact = late("credentials", "redact")
detect_type = late("structure", "detect_type")
sections_of = late("structure", "sections_of")
name_machine = late("sync.machines", "name_machine")
stop_syncing = late("sync.machines", "stop_syncing")
end_with_parent = late("systems", "end_with_parent")
process_exists = late("systems", "process_exists")
wipe = late("erasing", "wipe")
# (database, ids): what to say of memories that are forgotten.
remark_on_forgotten = late("sync.kept", "remark_on_forgotten")


# ---------------------------------------------------------------------------------------------
# Systems
#
# What differs between Linux, macOS and Windows, each behind a function; nothing below asks which
# system this is. Windows has no signals between processes, no owner or mode of a file, links only
# for some users, and a file that one process holds open no other can replace.
# ---------------------------------------------------------------------------------------------


def home() -> Path | None:
    with contextlib.suppress(RuntimeError):
        return Path.home()
    return None


def default_database() -> Path:
    """Where the database is by default. On Linux that depends on HOME alone: some clients start
    servers without XDG_DATA_HOME."""
    folder = home()
    if folder is None:
        raise DatabaseError("there is no home folder to keep the database in: use --db")
    if sys.platform.startswith("linux"):
        return folder / ".local" / "share" / "sediment" / "memory.db"
    import platformdirs

    return platformdirs.user_data_path("sediment", appauthor=False) / "memory.db"


def cache_dir() -> Path:
    """A folder of this user's that is safe to delete."""
    if override := setting("CACHE"):
        return Path(os.path.expanduser(override)) / "sediment"
    import platformdirs

    return platformdirs.user_cache_path("sediment", appauthor=False)


def remedy(program: Path | None = None) -> str:
    """What to do if a file of the program in this folder (by default ours) is missing or
    damaged."""
    program = program or Path(__file__).resolve().parent
    if cache_dir().resolve() in program.resolve().parents:  # the .pyz unpacks itself again
        return f"delete {program} and run again, or reinstall"
    return "run `make` in a checkout, else reinstall"


_Read = TypeVar("_Read", bound=Callable[..., Any])


def restore_program() -> bool:
    """Write missing or damaged files of the program again; returns whether that worked. A .pyz
    replaces this function by one that can."""
    return False


def restoring(read: _Read) -> _Read:
    """Decorate a reader of program files: if it fails, restore the program and try once more."""

    @functools.wraps(read)
    def reading(*args: Any) -> Any:
        try:
            return read(*args)
        except SedimentError:
            if not restore_program():
                raise
            return read(*args)

    return cast(_Read, reading)


def remedy_of_import() -> str:
    """What to do when a library cannot be imported; a half of it cannot be imported again."""
    again = "it is restored: run this again" if restore_program() else remedy()
    if sys.platform == "win32":
        return f"install Microsoft's Visual C++ runtime (vc_redist.x64.exe), or {again}"
    return again


@functools.cache
@restoring
def asset(name: str) -> str:
    """The text of a file that comes with the module: of a checkout, a .pyz or a wheel."""
    here = Path(__file__).resolve().parent
    for folder in ("assets", "sediment_assets"):
        with contextlib.suppress(OSError):
            data = __loader__.get_data(str(here / folder / name))  # pyright: ignore
            return data.decode().replace("\r\n", "\n")  # as git checks texts out on Windows
    raise SedimentError(f"assets/{name} is missing beside {here}: {remedy()}")


# Processes


def no_window() -> dict[str, Any]:
    """Options for subprocess, so that Windows opens no window for the program."""
    if sys.platform != "win32":
        return {}
    return {"creationflags": subprocess.CREATE_NO_WINDOW}


def handle_signals(handler: Any) -> None:
    """Set a handler for the signals that end a program, as far as the system has them."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        if number := getattr(signal, name, None):
            signal.signal(number, handler)


def interrupted() -> threading.Event:
    """Raise KeyboardInterrupt at the signals that end a program. The event is set by then, too:
    Python swallows an error that is raised while it tidies up."""
    event = threading.Event()

    def interrupt(*_: object) -> None:
        event.set()
        raise KeyboardInterrupt

    handle_signals(interrupt)  # the parent may have had them ignored
    return event


# Files


def replace_file(draft: Path, path: Path) -> None:
    """Put `draft` in the place of `path` in one step. On Windows that fails while any process reads
    `path`, so it is tried again for a second."""
    for pause in (0.01, 0.03, 0.1, 0.3, 0.6) if sys.platform == "win32" else ():
        with contextlib.suppress(PermissionError):
            return os.replace(draft, path)
        time.sleep(pause)
    os.replace(draft, path)


def free_bytes(folder: Path) -> int:
    if hasattr(os, "statvfs"):  # in a tenth of the time that importing shutil takes
        disk = os.statvfs(folder)
        return disk.f_bavail * disk.f_frsize
    return shutil.disk_usage(folder).free


def has_other_owner(facts: os.stat_result) -> bool:
    """Whether a file belongs to another user; False on Windows."""
    return sys.platform != "win32" and facts.st_uid != os.getuid()


# Times and texts


def present() -> int:
    """Unix seconds now, for what is stored. Raises InvalidInput before 1970."""
    if (now := int(time.time())) < 0:
        raise InvalidInput("the clock of this computer is before 1970: set it, then store again")
    return now


def instant(seconds: float) -> datetime:
    """Unix seconds as a UTC time, also where Windows has none; raises ValueError outside all
    dates."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(f"no date is {seconds} s from 1970") from None


def to_local(moment: datetime) -> datetime:
    """A time in the local zone, or in UTC where Windows cannot tell that."""
    try:
        return moment.astimezone()
    except OSError:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def shell_line(words: Sequence[str], *, powershell: bool = False) -> str:
    """Words quoted and joined for the shell; on Windows for cmd.exe or PowerShell."""
    if sys.platform != "win32":
        return shlex.join(words)
    if powershell:
        return " ".join(["&", *("'" + word.replace("'", "''") + "'" for word in words)])
    return subprocess.list2cmdline(words)


def drop_output() -> None:
    """Drop what stdout could not take, such as on a full disk, instead of trying again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def repair_streams() -> None:
    """Print UTF-8 with plain newlines, in any locale and system; read a closed stdin as empty."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - for as long as the program runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names that are not Unicode show as \udcff, in JSON too.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def ignore_false_alarms() -> None:
    """Hide numpy's warnings of matrix products: newer ARM processors cause them for no reason."""
    import warnings

    alarms = "(divide by zero|overflow|invalid value) encountered in matmul"
    warnings.filterwarnings("ignore", alarms, RuntimeWarning)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else counts as an empty one."""
    return parse_object(plain_text(path))


def parse_json(text: str | bytes) -> Any:
    """A JSON value; ValueError also for NaN and Infinity, which JSON does not have."""
    return json.loads(text, parse_constant=no_constant)


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def parse_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object from a text that may be anything; whatever is none counts as an empty one."""
    try:
        value = json.loads(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def place_new_file(draft: Path, target: Path) -> None:
    """Give a finished file a name that is free, or raise FileExistsError. Where a disk knows no
    links, an empty file holds the name for a moment."""
    try:
        os.link(draft, target)  # unlike renaming, this replaces no file
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            replace_file(draft, target)
        except OSError:
            os.unlink(target)
            raise


def link_or_copy(path: Path, other: Path) -> None:
    """Give a file a second name that is free; where a disk knows no links, make a copy of it."""
    try:
        os.link(path, other)
    except OSError:
        descriptor = os.open(other, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(path, "rb") as file, open(descriptor, "wb") as copy:
            shutil.copyfileobj(file, copy)


def make_private(path: Path, mode: int = 0o600) -> None:
    """Set permissions, whatever the umask; not every disk has any."""
    with contextlib.suppress(OSError):
        os.chmod(path, mode)


def why_not_utf8(data: bytes) -> str:
    """Why nothing can be read of a file that begins so: PowerShell 5.1 writes UTF-16, with a byte
    order mark; "" of any other."""
    return "is UTF-16: save it as UTF-8" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""


def plain_text(path: Path) -> str:
    """The text of a plain file of at most PLAIN_MAX bytes; "" of anything else: a checkout may
    have a pipe or a device in its place, which would be read for ever."""
    with contextlib.suppress(OSError, ValueError):
        if os.path.isfile(path) and path.stat().st_size <= PLAIN_MAX:
            return path.read_text("utf-8", "surrogateescape")
    return ""


def draft_of(path: Path) -> Path:
    """The name of a file until it is whole. It has this thread's and process's id, by which
    `abandoned_drafts` finds the drafts of killed processes."""
    thread = threading.current_thread()
    suffix = "" if thread is threading.main_thread() else f".{thread.ident}"
    return path.with_name(f"{path.name}{suffix}.{os.getpid()}.tmp")


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None, new: bool = False) -> Iterator[io.TextIOWrapper]:
    """A file to write that takes the path's place in one step, once it is whole: no reader, and no
    crash, meets half of it. With a mode the file has those permissions, and no wider ones before.
    A `new` one replaces nothing, as in `place_new_file`."""
    draft = draft_of(path)
    flags = os.O_CREAT | os.O_WRONLY | os.O_EXCL  # a checkout may have a link of that name
    try:
        with contextlib.suppress(OSError):
            draft.unlink()
        descriptor = os.open(draft, flags, 0o666 if mode is None else 0o600)
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            yield file
        if mode is not None:
            make_private(draft, mode)
        (place_new_file if new else replace_file)(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def write_atomically(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text file as `replacing` does."""
    with replacing(path, mode) as file:
        file.write(text)


# ---------------------------------------------------------------------------------------------
# Text
#
# Checks of what comes from outside, times as people write them, and how texts are split into words
# and compared. All input passes through here before it meets the encoder or the database.
# ---------------------------------------------------------------------------------------------


class LazyPattern:
    """A regular expression that is compiled at its first use: all of them would take 6 ms."""

    def __init__(self, source: str | bytes, flags: int = 0) -> None:
        self._source, self._flags = source, flags

    def __getattr__(self, name: str) -> Any:
        method = getattr(re.compile(self._source, self._flags), name)
        setattr(self, name, method)
        return method


# Scripts written without spaces, which the word index would take for one endless word: Chinese,
# Japanese and Korean; Thai, Lao, Burmese and Khmer, with their marks and without their figures.
_UNSPACED = (
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e80-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f"
    "\u1780-\u17d3\u17d7\u17dc\u17dd"
)
# Combining marks, part of the letter before them; the index ignores them or splits there.
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff"
# Symbols that count as words: of money, law, mathematics and pictures, Braille and letters in
# circles; not boxes, brackets and skin tones. Listed here, since Unicode differs between versions
# of Python, and the index must not.
_SYMBOLS = (
    "\u00a2-\u00a9\u00ac\u00ae-\u00b1\u00b6\u00d7\u00f7\u2020\u2021\u2030\u20a0-\u20cf\u2100\u2101"
    "\u060b\u0af1\u0e3f\u17db\ufdfc\uffe0\uffe1\uffe5\uffe6"
    "\u2103-\u2106\u2108\u2109\u2114\u2116-\u2118\u211e-\u2123\u2125\u2127\u2129\u212e\u213a\u213b"
    "\u2140-\u2144\u214a-\u214d\u214f\u2190-\u2328\u232b-\u245f\u249c-\u24e9\u25a0-\u2767\u2794-\u27c4"
    "\u27c7-\u27e5\u27f0-\u2982\u2999-\u29d7\u29dc-\u29fb\u29fe-\u2bff\u4dc0-\u4dff"
    "\u058d-\u058f\u060e\u060f\u06de\u06e9\u06fd\u06fe\u07f6\u07fe\u07ff\u09f2-\u09fb\u0bf0-\u0bfa\u2e80-\u2fff"
    "\u3004\u3012\u3013\u3020\u3036\u3037\u303e\u303f\u3190-\u319f\u31c0-\u31ef\u3200-\u33ff\ua490-\ua4c6"
    "\U00010137-\U0001013f\U00010179-\U000101fd\U0001d000-\U0001d1ff\U0001d300-\U0001d356\U0001f000-\U0001f0ff\U0001f10d-\U0001f3fa"
    "\U0001f400-\U0001faff"
)
_SYMBOL = LazyPattern(f"[{_SYMBOLS}]")
# What NFKC is made of: all but symbols, of which those of full width are no other ones.
_NO_SYMBOLS = LazyPattern("[^" + _SYMBOLS.replace("\uffe0\uffe1\uffe5\uffe6", "") + "]+")
# A number with its thousands apart: 4,930 or 4 930 or 1'204'500.
_GROUPED = LazyPattern(r"(?<![\w.,'’])\d{1,3}(?:[, '’]\d{3})+(?![\w'’]|,\d)")
# A letter, a digit, _ or anything beyond ASCII. Negated, since a set that reaches to the last
# character takes 10 ms to compile.
_WORD_CHAR = r"[^\x00-/:-@\[-^`{-\x7f]"
# Symbols of ASCII that make a word another one: C++, C#, #12, @name, $HOME, .NET.
_MARK = LazyPattern(
    rf"[+#@$.](?:(?<=(?:{_WORD_CHAR}|\+)\+)|(?<=[#@$])(?={_WORD_CHAR})|(?<={_WORD_CHAR}[#$])"
    rf"|(?<=\.)(?<!(?:{_WORD_CHAR}|[.)\]\"'*`]).)(?=[A-Za-z]))"
)
_ESCAPE_CODE = LazyPattern(r"\x1b\[[0-?]*[ -/]*[@-~]")
# From here on the index, of an older Unicode, may not know a small letter; it folds case by itself.
_YOUNGER = "\u10a0"
# Private-use characters, which the index takes for letters. Each stands for a symbol: a sign.
_SIGNS = "\U000f0000-\U000fffff"
_ALONE = LazyPattern(f"[{_UNSPACED}{_SIGNS}]")
_LETTER = rf"[^\W_{_UNSPACED}]"
_WORD = rf"{_LETTER}(?:{_LETTER}|[{_MARKS}])*+"
_TERM = LazyPattern(rf"[{_UNSPACED}]+|[{_SIGNS}]|{_WORD}")
# What is written as one word: 1.2.3, a/b, main.py, C++, § 5; but not e.g. or U.S.
_COMPOUND = LazyPattern(
    rf"(?<!{_LETTER})(?!(?:[A-Za-z]\.){{1,9}}[A-Za-z]\b)(?:[{_SIGNS}]|{_WORD})"
    rf"(?:(?:[./\\:&=~]+|(?<=[{_SIGNS}])\ (?=\d))?(?:[{_SIGNS}]|{_WORD})){{1,{COMPOUND_MAX - 1}}}"
)
# The same two for ASCII, which compile in 1 ms and not in 50.
_ASCII_TERM = LazyPattern("[0-9A-Za-z]+")  # as FTS5 cuts it, too
_ASCII_COMPOUND = LazyPattern(
    r"(?<![0-9A-Za-z])(?!(?:[A-Za-z]\.){1,9}[A-Za-z]\b)[0-9A-Za-z]++"
    rf"(?:[./\\:&=~]+[0-9A-Za-z]++){{1,{COMPOUND_MAX - 1}}}"
)
_COMPATIBLE = ("<wide>", "<narrow>", "<noBreak>", "<compat>")  # not <super>: 10² is not 102
_SPELLINGS = str.maketrans(  # the last ones, which are invisible, are dropped
    "‘’‚‛“”„«»‐‑–—―−", "'" * 4 + '"' * 5 + "-" * 6, "\u200b\u2060\ufeff\u00ad\ufe0f"
)
_LAID_OUT = LazyPattern(r"\n[ \t]+\S|```")  # of a text whose line ends and indentation matter
CONTROL = LazyPattern("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def check_text(text: object, what: str, limit: int) -> str:
    """The text itself, if it can be stored or searched; InvalidInput says why not."""
    if text is None:
        raise InvalidInput(f"{what} is missing")
    if not isinstance(text, str):
        raise InvalidInput(f"{what} must be a string, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        bad = f"U+{ord(text[error.start]):04X} at character {error.start}"
        raise InvalidInput(f"{what} is not valid Unicode: lone surrogate {bad}") from None
    if size > limit:
        raise InvalidInput(f"{what} is too large: {size:,} bytes, and the limit is {limit:,}")
    if not text.strip():
        raise InvalidInput(f"{what} must not be empty")
    if "\0" in text:
        raise InvalidInput(f"{what} contains a NUL character (U+0000): text only, please")
    return text


def new_id() -> str:
    return str(uuid.uuid4())


def check_id(value: object) -> str:
    """An id as given: 1 to 255 printable characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= ID_MAX or not value.isprintable():
        raise InvalidInput(f"an id is 1 to {ID_MAX} printable characters, not {shown_value(value)}")
    return value


def check_tag(value: object) -> str:
    """A tag as it is kept: in NFC and lower case, without a # in front."""
    tag = unicodedata.normalize("NFC", value.lower()) if isinstance(value, str) else ""
    tag = tag.removeprefix("#")
    if not 1 <= len(tag) <= TAG_MAX or not tag.isprintable() or re.search(r"""[\s,'"]""", tag):
        form = f"1 to {TAG_MAX} characters, without spaces, commas and quotes"
        raise InvalidInput(f"a tag is {form}, not {shown_value(value)}")
    return tag


def check_tags(values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput(f"tags are a list of them, not {shown_value(values)}")
    if len(tags := tuple(dict.fromkeys(map(check_tag, values)))) > TAGS_MAX:
        raise InvalidInput(f"a memory takes up to {TAGS_MAX} tags at once, not {len(tags)}")
    return tags


def check_limit(value: object, name: str = "limit", most: int = LIMIT_MAX) -> int:
    """The number itself, if it is a whole one from 1 to `most`; else InvalidInput."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidInput(f"{name} must be a whole number, 1 to {most}, not {shown_value(value)}")
    return value


def check_scope(value: object, allowed: Iterable[str] = SCOPES, what: str = "scope") -> str:
    """The name of a scope, or of something else, in lower case; InvalidInput if not allowed."""
    if isinstance(value, str) and value.lower() in allowed:
        return value.lower()
    raise InvalidInput(f"{what} must be one of {', '.join(allowed)}, not {shown_value(value)}")


def check_ranking(name: str | None) -> str:
    """A ranking profile's name; SEDIMENT_RANKING, else the default one, when not given."""
    return check_scope(name or setting("RANKING") or RANKINGS[0], RANKINGS, "ranking")


def check_weights(vector: float | None, text: float | None) -> tuple[float, float] | None:
    """The weights of vectors and words, which sum to 1, as given or configured; if only one is, the
    other is the rest. None leaves them to the query."""
    given: dict[str, Any] = {"vector_weight": vector, "text_weight": text}
    for name, value in given.items():
        value = (setting(name.upper()) or None) if value is None else value
        given[name] = None if value is None else check_share(value, name)
    meaning, words = given.values()
    if meaning is None and words is None:
        return None
    meaning = 1 - (words or 0.0) if meaning is None else meaning
    words = 1 - meaning if words is None else words
    if not meaning + words:
        raise InvalidInput("vector_weight and text_weight are both 0: nothing would be found")
    return meaning / (meaning + words), words / (meaning + words)


def check_share(given: Any, name: str = "it") -> float:
    """A number from 0 to 1, or a string of one; else InvalidInput."""
    try:
        share = float(given)
    except (TypeError, ValueError, OverflowError):
        share = math.nan
    if not 0 <= share <= 1:
        raise InvalidInput(f"{name} must be a number from 0 to 1, not {shown_value(given)}")
    return share


def check_candidates(value: object) -> int:
    """How many candidates each index proposes, as asked for or as configured."""
    given = setting("CANDIDATES") or CANDIDATES if value is None else value
    given = int(given) if isinstance(given, str) and given.isdecimal() else given
    return check_limit(given, "candidates")


def shown_value(value: object) -> str:
    """A value short enough for an error message, safe to print."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def parse_moment(value: object, now: float | None = None, *, end: bool = False) -> int:
    """Unix seconds from a number or from a time as `parse_period` reads it. A day or month stands
    for its beginning; with `end`, for its last second."""
    if isinstance(value, str):
        first, after = parse_period(value, now, about=False)
        return after - 1 if end else first
    if isinstance(value, datetime):
        value = value.timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= TIME_MAX:
        return int(value)
    raise _no_time(value)


def parse_period(text: str, now: float | None = None, *, about: bool = True) -> tuple[int, int]:
    """The period [start, end), in unix seconds, that words or an ISO 8601 time mean in local time.
    "2 weeks ago" is all of that week, or without `about` that day. Raises InvalidInput."""
    words = " ".join(text.lower().split())
    local_now = datetime.fromtimestamp(time.time() if now is None else now)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        for form, read in TIMES:
            if match := re.fullmatch(form, words):
                start, end = read(local_now, match.groupdict() | {"about": about})
                break
        else:
            start, end = _iso_span(text.strip())
        first = int(start.timestamp())
        if 0 <= first <= TIME_MAX:
            return first, max(first + 1, min(int(end.timestamp()), TIME_MAX + 1))
    raise _no_time(text)


def _no_time(value: object) -> InvalidInput:
    forms = "2026-03-05 14:00, 2026-03, yesterday, 2 weeks ago, last march or unix seconds"
    last = instant(TIME_MAX).year - 1  # the last one that is whole
    return InvalidInput(f"a time is {forms}, from 1970 to {last}, not {shown_value(value)}")


def _word_class(words: str) -> frozenset[str]:
    return frozenset(words.split())


Span = tuple[datetime, datetime]  # [start, end) in local time; an instant if both are equal

_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_COUNTS |= {"seven": 7, "eight": 8, "nine": 9, "ten": 10}
_WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_MONTHS = ["january", "february", "march", "april", "may", "june"]
_MONTHS += ["july", "august", "september", "october", "november", "december"]
_SECONDS, _MONTHS_IN = {"minute": 60, "hour": 3_600}, {"month": 1, "year": 12}


def _iso_span(text: str) -> Span:
    """A day or an instant in ISO 8601, or unix seconds."""
    if not (text.isdecimal() and len(text) == 8):  # which is a day: 20260305
        with contextlib.suppress(ValueError):
            moment = instant(float(text))
            return moment, moment
    day, _, clock = text.upper().replace(" ", "T").partition("T")
    date.fromisoformat(day)  # where a zone follows at once, Python takes it for the hour
    moment = datetime.fromisoformat(text.upper())
    return (moment, moment) if clock else _whole("day", moment)


def _whole(unit: str, moment: datetime, back: int = 0) -> Span:
    """The day, week, month or year in which a moment is, or the one so many before."""
    start = _earlier(moment.replace(hour=0, minute=0, second=0, microsecond=0), unit, back)
    if unit == "week":
        start -= timedelta(start.weekday())
    if unit in _MONTHS_IN:
        start = start.replace(day=1, month=1 if unit == "year" else start.month)
    return start, _earlier(start, unit, -1)


def _earlier(moment: datetime, unit: str, count: int) -> datetime:
    """A moment so many units before; the 31st becomes the last day of a shorter month."""
    if unit in _SECONDS:  # of elapsed time, also over a change of summer time
        return datetime.fromtimestamp(moment.timestamp() - count * _SECONDS[unit])
    if unit not in _MONTHS_IN:
        return moment - timedelta(**{f"{unit}s": count})
    from calendar import monthrange

    months = 12 * moment.year + moment.month - 1 - count * _MONTHS_IN[unit]
    year, month = months // 12, months % 12 + 1
    return moment.replace(year=year, month=month, day=min(moment.day, monthrange(year, month)[1]))


def _ago(now: datetime, groups: dict[str, Any]) -> Span:
    unit, count = groups["unit"], _number(groups["count"])
    if groups["about"] and unit not in _SECONDS:
        return _whole(unit, now, count)
    moment = _earlier(now, unit, count)
    return (moment, moment) if unit in _SECONDS else _whole("day", moment)


def _rolling(now: datetime, groups: dict[str, Any]) -> Span:
    """So much time until now, with the second that it is."""
    count = _number(groups["count"] or groups["last"] or "one")
    return _earlier(now, groups["unit"], count), now + timedelta(seconds=1)


def _number(count: str) -> int:
    return int(count) if count.isdecimal() else _COUNTS[count]


def _latest(unit: str, names: list[str], now: datetime, groups: dict[str, Any]) -> Span:
    """The latest weekday or month of a name that has begun; the last one is over."""
    number = now.isoweekday() if unit == "day" else now.month
    back = (number - _number_in(names, groups["name"])) % len(names)
    return _whole(unit, now, back or len(names) * (groups["step"] == "last"))


def _number_in(names: list[str], name: str) -> int:
    """The number, from 1 on, of a name or of its first three letters in a list."""
    return next(number for number, full in enumerate(names, 1) if full.startswith(name[:3]))


def _date(now: datetime, groups: dict[str, Any]) -> Span:
    """A day of a month: without a year, the latest that has begun."""
    month, day = _number_in(_MONTHS, groups["month"]), int(groups["day"])
    year = int(groups["year"] or now.year - ((month, day) > (now.month, now.day)))
    return _whole("day", datetime(year, month, day))


def _month(_: datetime, groups: dict[str, Any]) -> Span:
    name = groups["month"]
    month = int(name) if name.isdecimal() else _number_in(_MONTHS, name)
    return _whole("month", datetime(int(groups["year"]), month, 1))


def _any_of(names: list[str]) -> str:
    """Names, whole or by their first three letters."""
    return "|".join(f"{name[:3]}(?:{name[3:]})?" for name in names)


_ANY_COUNT, _ANY_UNIT = rf"(?:\d+|{'|'.join(_COUNTS)})", "(?:minute|hour|day|week|month|year)"
_COUNT, _UNIT = f"(?P<count>{_ANY_COUNT})", f"(?P<unit>{_ANY_UNIT})s?"
_ANY_NTH = r"\d\d?(?:st|nd|rd|th)?"
_NTH, _YEAR = r"(?P<day>\d\d?)(?:st|nd|rd|th)?", r",? (?P<year>[12]\d{3})"
_NAMED_MONTH = f"(?P<month>{_any_of(_MONTHS)})"
_STEP = "(?:(?P<step>last|this) )"

# The forms of times in lower case, and what makes a period of the current time and a form's groups.
TIMES: tuple[tuple[str, Callable[[datetime, dict[str, Any]], Span]], ...] = (
    ("now", lambda now, _: (now, now)),
    ("today", lambda now, _: _whole("day", now)),
    ("yesterday", lambda now, _: _whole("day", now, 1)),
    (f"{_COUNT} {_UNIT} ago", _ago),
    (f"(?:the )?(?:past(?: {_COUNT})?|last (?P<last>{_ANY_COUNT})) {_UNIT}", _rolling),
    ("this (?P<unit>day|week|month|year)", lambda now, groups: _whole(groups["unit"], now)),
    ("last (?P<unit>day|week|month|year)", lambda now, groups: _whole(groups["unit"], now, 1)),
    (f"{_STEP}?(?P<name>{_any_of(_WEEKDAYS)})", functools.partial(_latest, "day", _WEEKDAYS)),
    (f"{_STEP}?(?P<name>{_any_of(_MONTHS)})", functools.partial(_latest, "month", _MONTHS)),
    (f"{_NAMED_MONTH} {_NTH}(?:{_YEAR})?", _date),
    (f"{_NTH}(?: of)? {_NAMED_MONTH}(?:{_YEAR})?", _date),
    (f"{_NAMED_MONTH}{_YEAR}", _month),
    (r"(?P<year>\d{4})-(?P<month>\d\d)", _month),
    (r"(?P<year>\d{4})", lambda _, groups: _whole("year", datetime(int(groups["year"]), 1, 1))),
)

# A time in a question, which is no part of a name or a path. A weekday, or a month or day without
# its year, may lie ahead; and the name of one, as a year, may be anything: it needs a word before
# it that leads to a time, unless nothing else is asked.
_WHOLE_MONTH, _WEEKDAY = f"(?:{'|'.join(_MONTHS)})", f"(?:{'|'.join(_WEEKDAYS)})"
_DAY_OF_MONTH = rf"(?:{_WHOLE_MONTH} {_ANY_NTH}|{_ANY_NTH} (?:of )?{_WHOLE_MONTH})"
_DEFINITE = (
    rf"today|yesterday|{_ANY_COUNT} {_ANY_UNIT}s? ago|(?:last|past) {_ANY_COUNT} {_ANY_UNIT}s?"
    rf"|(?:last|past|this) (?:hour|day|week|month|year)|(?:last|this) (?:{_WEEKDAY}|{_WHOLE_MONTH})"
    rf"|{_DAY_OF_MONTH},? 20\d\d|{_WHOLE_MONTH} 20\d\d|20\d\d-\d\d(?:-\d\d)?"
)
_NAME_OF_TIME = rf"(?:{_WHOLE_MONTH}|{_WEEKDAY}|20\d\d)"
_ENDS_TIME = r"(?![\w/-]|[.:]\w)"
_ASKED_TIME = LazyPattern(
    r"(?P<lead>\b(?:(?P<edge>since|after|before|until) (?:[\w'-]+ ){0,4}?"
    r"|(?:in|on|of|from|during|between) ))?"
    rf"(?<![\w./:-])(?P<time>{_DEFINITE}|{_DAY_OF_MONTH}|(?(lead){_NAME_OF_TIME}"
    rf"|^{_NAME_OF_TIME}(?=(?:'s)?(?: notes?)?\W*$))){_ENDS_TIME}"
    r"(?: (?:and|to|until|till|through) "
    rf"(?P<last>(?:{_DEFINITE}|{_DAY_OF_MONTH}|{_NAME_OF_TIME}){_ENDS_TIME}|now\b))?",
    re.IGNORECASE,
)
_DEFINITE_TIME = LazyPattern(rf"{_DEFINITE}|20\d\d|now", re.IGNORECASE)
_PAST_TENSE = LazyPattern(r"\b(?:was|were|did|had)\b", re.IGNORECASE)
_EVENTS = LazyPattern(
    r"\b(?:happen\w*|not(?:e|ed|es)|wrote|written|logged|recorded|stored|memories|learn\w*|decid\w*"
    r"|discuss\w*|went|news?|chang\w+|(?:was|were) there"
    r"|(?:did|have) (?:i|we|you|they) (?:do|done|have|had|say|said|talk\w*|meet|met|see|seen))\b",
    re.IGNORECASE,
)
# How it was before a change: "which host did we use before Ireland?", "the original deadline", and
# not "what must I do before a release?".
_ASKS_BEFORE = LazyPattern(
    r"(?!until (?:when|what))(?!.*\b(?:is|are|am|do|does|has|have|can|may|must|will|needs?)\b)"
    r".*\b(?:before|until|prior to|original(?:ly)?|previous(?:ly)?|former(?:ly)?|initially|at first"
    r"|back then|used to|earlier)\b",
    re.IGNORECASE | re.DOTALL,
)
# A question of these words alone, beside those for events and times, has no subject but its time.
_ASKING = _word_class(
    "'s a about all and any anything are at did do does everything had has have i in is it list me"
    " my of on or our show tell that the there they thing things this to us was we were what what's"
    " when which who you"
)


class AskedTime(NamedTuple):
    """The period that a question names, [start, end) in unix seconds; whether it asks what happened
    then (`events`), not how things were; the `span` of its characters that name the period; and
    whether it asks for nothing else (`alone`)."""

    start: int
    end: int
    events: bool
    span: tuple[int, int]
    alone: bool = False

    def fits(self, moment: int) -> bool:
        return self.start <= moment < self.end

    def is_named_in(self, text: str) -> bool:
        """Whether a text names the month in which the period is, or the year of a longer one."""
        first = datetime.fromtimestamp(self.start)
        is_long = self.end - self.start > 31 * DAY
        name = str(first.year) if is_long else _MONTHS[first.month - 1][:3]
        return re.search(rf"(?i)\b{name}", text) is not None

    @property
    def asks_how_things_were(self) -> bool:
        """Whether the question is about a state in a period that is over, and not what happened."""
        return not self.events and self.end <= time.time()


def asked_time(query: str, now: float | None = None) -> AskedTime | None:
    """The past time that a question is about, if it names one: "what happened in March?"."""
    now = time.time() if now is None else now
    events = bool(_EVENTS.search(query))
    for match in _ASKED_TIME.finditer(query):
        with contextlib.suppress(InvalidInput):  # the 40th of May
            start, end = _asked_span(match, now)
            rest = f"{query[: match.start()]} {query[match.end() :]}".lower()
            words = set(re.findall(r"[\w']+", _EVENTS.sub(" ", rest)))
            if start <= now and (events or not words or _is_definite(match)):
                return AskedTime(start, end, events, match.span(), _ASKING.issuperset(words))
    return None


def _is_definite(match: re.Match[str]) -> bool:
    """Whether a time says which one it is. A weekday, or a month without a year, may lie ahead,
    unless the question is in the past tense."""
    is_past = (match["edge"] or "").lower() == "since" or _PAST_TENSE.search(match.string)
    return bool(is_past or _DEFINITE_TIME.fullmatch(match["last"] or match["time"]))


def _asked_span(match: re.Match[str], now: float) -> tuple[int, int]:
    """[start, end) of one time, of all since, after, before or until it, or of two and what is
    between: there, a first one that does not say which it is, is the latest before the last."""
    edge, first, last = ((match[name] or "").lower() for name in ("edge", "time", "last"))
    if last:
        last_start, end = parse_period(last, now)
        start, _ = parse_period(first, now if _DEFINITE_TIME.fullmatch(first) else end - 1)
        return min(start, last_start), end
    start, end = parse_period(first, now)
    if edge in ("since", "after"):
        return (start if edge == "since" else end), max(end, int(now) + 1)
    return (0, start) if edge else (start, end)


def parse_age(value: object) -> int:
    """Unix seconds from an age ("90d", "12w", "1y") or a time; a bare number in a string has no
    unit and is refused."""
    if (seconds := _span_of(value)) is not None:
        return int(max(0.0, time.time() - seconds))  # nothing is older
    try:
        if isinstance(value, str) and _span_of(f"{value.strip()}d"):
            raise InvalidInput(f"a date, and {shown_value(value)} has no unit: {value.strip()}d?")
        return parse_moment(value)
    except InvalidInput as error:
        raise InvalidInput(f"an age is 30d, 12w or 1y; or {error}") from None


def parse_expiry(value: object) -> int:
    """Unix seconds of when a memory expires: a time, or a while from now ("30d", "12w"). "never" is
    0. InvalidInput for a time that is past."""
    if value == "never":
        return 0
    end, seconds = 0.0, _span_of(value)
    with contextlib.suppress(InvalidInput):
        end = parse_moment(value, end=True) if seconds is None else time.time() + seconds
    if end <= time.time():
        form = "30d, 12w, 1y, a future date such as 2030-12-24, or never"
        raise InvalidInput(f"give {form}, not {shown_value(value)}")
    return int(min(end, TIME_MAX))


def _span_of(value: object) -> float | None:
    """The seconds of "90d", "12w" or "1y"; None of anything else."""
    match = _AGE.fullmatch(value.strip()) if isinstance(value, str) else None
    days = {"h": 1 / 24, "d": 1, "w": 7, "y": 365}
    return float(match[1]) * days[match[2].lower()] * DAY if match else None


_AGE = LazyPattern(r"(\d+(?:\.\d+)?)\s*([hdwy])", re.IGNORECASE)


def iso_time(seconds: int) -> str:
    """Unix seconds as RFC 3339, in UTC; TIME_MAX for what is later."""
    return instant(min(seconds, TIME_MAX)).isoformat(timespec="seconds")


def local_time(iso: str, length: int = 10) -> str:
    """What `iso_time` wrote, in local time: the day, or with a `length` of 16 the minute."""
    moment = datetime.fromisoformat(iso)
    with contextlib.suppress(ValueError, OverflowError):  # TZ may be a day or more from UTC
        moment = to_local(moment)
    return moment.isoformat(" ")[:length]


def shown_score(score: float) -> float:
    """A score as answers have it: from 0 to 1, with two digits."""
    return round(min(1.0, max(0.0, float(score))), 2)


def matching_form(text: str) -> str:
    """A text as it is matched: in NFKC, so that full and half width are one. Symbols stay."""
    if text.isascii():
        return text
    return _NO_SYMBOLS.sub(lambda run: unicodedata.normalize("NFKC", run[0]), text)


def spaced(text: str) -> str:
    """The text for the word index: each sign and letter of an unspaced script is a word, and
    numbers with separate thousands are added as one word each."""
    text = matching_form(text)
    numbers = "".join(f" {_digits(number)}" for number in _GROUPED.finditer(text))
    text = _signed(text) + numbers
    return text if text.isascii() else _ALONE.sub(r" \g<0> ", text)


def _digits(number: re.Match[str]) -> str:
    """4930 of 4,930."""
    return re.sub(r"\D", "", number[0])


def _signed(text: str) -> str:
    """The text with signs for symbols and blanks for escape codes; no character moves."""
    if "\x1b" in text:
        text = _ESCAPE_CODE.sub(lambda code: " " * len(code[0]), text)
    text = _MARK.sub(_sign_for, text)
    return text if text.isascii() else _SYMBOL.sub(_sign_for, text)


def signs_of(text: str) -> frozenset[str]:
    return frozenset(re.findall(f"[{_SIGNS}]", _signed(text)))


def _sign_for(symbol: re.Match[str]) -> str:
    return chr(0xF0000 | ord(symbol[0]) & 0xFFFF)


def query_phrases(query: str) -> Iterator[tuple[str, int, int]]:
    """The query's terms as the word index has them: (phrase for FTS5, unquoted, start, end).

    Letters of an unspaced script are looked up in pairs, what is written as one word also as a
    whole, and a number without the signs in it."""
    for number in _GROUPED.finditer(query):
        yield _digits(number), number.start(), number.end()
    query = _signed(_GROUPED.sub(lambda number: " " * len(number[0]), query))
    plain = query.isascii()
    term, compound = (_ASCII_TERM, _ASCII_COMPOUND) if plain else (_TERM, _COMPOUND)
    for match in term.finditer(query):
        run, start = match[0], match.start()
        if not plain and len(run) > 1 and _ALONE.match(run):
            letters = [at for at, character in enumerate(run) if character.isalnum()]
            for first, last in zip(letters, letters[1:] or letters, strict=False):
                yield " ".join(run[first : last + 1]), start + first, start + last + 1
        elif not "\U000f0000" <= run < "\U000f0080":  # a sign of ASCII says nothing alone
            yield _lowered(run), start, match.end()
    for match in compound.finditer(query):
        yield _lowered(" ".join(term.findall(match[0]))), match.start(), match.end()


def _lowered(words: str) -> str:
    """In lower case, if the index is sure to fold these letters in the same way."""
    return words if max(words) >= _YOUNGER else words.lower()


def normalized(text: str) -> str:
    """The form in which texts count as the same.

    Case counts, since it does in paths and passwords, except for the first word's capital. Closing
    punctuation, kinds of quotes and dashes, and spaces do not count; line ends and indentation
    count where a line is indented, as in code."""
    text = _tidied(text)
    if not _LAID_OUT.search(text):
        text = " ".join(text.split())
    text = re.sub(r"[.。!](?:(?<=[\w)\]}>\"'`%][.。])|(?<=[^\W\d_]!)!*)$", "", text)
    first = re.match(r"[^\W\d_]+(?=,? )", text)
    if first and first[0][1:] == first[0][1:].lower():
        text = text[0].lower() + text[1:]
    return text


def _tidied(text: str) -> str:
    """The text with one character for those that mean the same, and single spaces in lines."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", "".join(map(_compatible, text)))
        text = text.translate(_SPELLINGS)
    text = re.sub(r"(?<![^\S\n])[^\S\n]++(?=\n|$)", "", re.sub(r"\r\n?", "\n", text))
    return re.sub(r"(?<=\S)[^\S\n]+", " ", text).strip("\n")


def _compatible(character: str) -> str:
    """What a full-width letter, a ligature or a no-break space stands for."""
    tag = unicodedata.decomposition(character).partition(" ")[0]
    return unicodedata.normalize("NFKC", character) if tag in _COMPATIBLE else character


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def text_hash(text: str) -> int:
    """A signed 64-bit hash of the text as `normalized`."""
    digest = hashlib.blake2b(normalized(text).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def one_line(text: str, width: int) -> str:
    """The beginning of a text on one line, cut with an ellipsis."""
    flat = " ".join(text[: width * 4].split())
    return flat if len(flat) <= width and len(text) <= width * 4 else flat[: width - 1] + "…"


def batches(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rows = iter(rows)
    while batch := list(itertools.islice(rows, size)):
        yield batch


def number_of(count: int, noun: str) -> str:
    """A count and what is counted: "1 file", "2 memories"."""
    endings = {"y": f"{noun[:-1]}ies", "h": f"{noun}es"}
    plural = endings.get(noun[-1], f"{noun}s")
    return f"{count:,} {noun if count == 1 else plural}"


def short_id(id: str) -> str:
    """An id as people read it: of a UUID or hash the first eight characters, which commands take,
    too."""
    return id[:8] if re.fullmatch("[0-9a-f-]{32,}", id) else id


def printable(text: str) -> str:
    """Text for a terminal: control characters and direction overrides made visible."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def printable_name(text: str) -> str:
    return printable(text).replace("\n", "\\x0a")


def to_json(value: object) -> str:
    """Compact JSON, without escapes for what is beyond ASCII."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def json_length(value: object) -> int:
    return len(to_json(value))


# Paths that people name


def expand_home(path: str | Path) -> Path:
    """A path that somebody gave, with ~ or ~user expanded; InvalidInput if it can be none."""
    if not isinstance(path, str | Path):
        raise InvalidInput(f"a path must be a string, not {type(path).__name__}")
    try:
        expanded = Path(path)  # a shell expands ~; one that is left may be a file's name
        expanded = expanded if os.path.lexists(expanded) else expanded.expanduser()
        os.lstat(expanded)
    except RuntimeError:
        raise InvalidInput(f"{path}: there is no such home folder") from None
    except ValueError:
        raise InvalidInput(f"{shown_value(str(path))} has a character that no path has") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidInput(f"{shown_value(str(path))} is too long for a path") from None
    return expanded


def real_path(path: Path) -> Path:
    """A path without links. Path.resolve would fail at a link that leads to itself."""
    return Path(os.path.realpath(path))


def absolute_path(path: str | Path) -> Path:
    """A path that somebody gave, as an absolute one."""
    try:
        return expand_home(path).absolute()
    except FileNotFoundError:
        raise InvalidInput("the working folder is gone: cd to one that is there") from None


def is_unicode(path: Path) -> bool:
    """Whether a path can be encoded as UTF-8."""
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def check_name(path: Path) -> Path:
    """The path itself, if SQLite can open it; InvalidInput says why not."""
    if not is_unicode(path):
        raise InvalidInput(f"{path} has a name that is not UTF-8: rename it")
    return path


def whole_path(given: str | Path) -> Path:
    """An absolute path without links, of one that somebody gave."""
    if not str(given):
        raise InvalidInput("a path is empty: name a file or folder")
    return real_path(absolute_path(given))


@functools.cache
def languages_of() -> dict[str, list[str]]:
    """The languages of which a word is a function word."""
    languages: dict[str, list[str]] = {}
    for language, words in json.loads(asset("function_words.json")).items():
        for word in words.split():
            languages.setdefault(word, []).append(language)
    return languages


# ---------------------------------------------------------------------------------------------
# Secrets
#
# A memory is kept for years and shown to whoever asks, so what looks like a credential is replaced
# before it is stored, logged or embedded. The extension `credentials` knows what looks like one.
# ---------------------------------------------------------------------------------------------

UNCLOSED = "all after an unclosed <private>"  # a kind of what was taken out, beside "private"


def redacts() -> bool:
    """Whether credentials are left out by default: SEDIMENT_REDACT."""
    return not is_off("REDACT")


def cleaned(content: str, allow_secrets: bool) -> tuple[str, list[str]]:
    """A text as it may be stored, and the kinds of what was taken out; InvalidInput if all was."""
    text, kinds = redact(content, not allow_secrets and redacts())
    if kinds and not text.replace("[private]", "").strip():
        raise InvalidInput("all of this is private: nothing was stored")
    return text, kinds


def refuse_credential(name: str, value: str, allow_secrets: bool = False) -> None:
    """InvalidInput if a name looks like a credential: of a name nothing can be left out."""
    kinds = redact(value, not allow_secrets and redacts())[1]
    if kinds:
        raise InvalidInput(f"{name} looks like a credential ({kinds[0]}): give another")


def redaction_message(kinds: Iterable[str]) -> str:
    """The kinds that `cleaned` took out, as a sentence to be added to a message."""
    return f" Left out: {', '.join(dict.fromkeys(kinds))}."


# ---------------------------------------------------------------------------------------------
# Chunking
#
# The encoder reads 256 tokens; a longer text is cut where its own structure has joints, and
# each chunk is embedded with the heading, signature or key path that it stands under. The
# extensions `structure` and `markdown` know the kinds of texts, and their joints.
# ---------------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """A part of a text, `text[start:end]`, that gets a vector of its own. Before it is cut to size
    it is a section: all under one heading, definition or key, never joined with its neighbours."""

    start: int
    end: int
    context: str  # heading path, signature or key path; "" when there is none


def split_text(text: str, fits: Callable[[str], bool]) -> list[Chunk]:
    """One chunk of a short text, else chunks of at most CHUNK_MAX characters with a context. Each
    satisfies `fits`, except a single character that does not. Only neighbours in prose overlap."""
    if len(text) <= CHUNK_THRESHOLD and fits(matching_form(text)):
        start, end = _trim(text, 0, len(text))
        return [Chunk(start, end, "")] if start < end else []
    return list(chunks_of(text, detect_type(text), fits))


def chunks_of(
    text: str, kind: str, fits: Callable[[str], bool], about: str = ""
) -> Iterator[Chunk]:
    """Chunks of a text of some kind, `about` before the context of each."""
    prose = kind in ("markdown", "text")
    for section in sections_of(text, kind):
        section = section._replace(context="\n".join(filter(None, (about, section.context))))
        pieces = _pieces(text, section, prose)
        fitting = [chunk for piece in pieces for chunk in _fitting(text, piece, fits, prose)]
        yield from _overlapping(text, fitting, fits) if prose else fitting


def lines_with_start(text: str, start: int = 0) -> Iterator[tuple[int, str]]:
    """Each line with its offset; only a newline ends a line."""
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield start, text[start:end]
        start = end


# Pieces: a section cut to CHUNK_MAX, and to what fits the model's window.

_SENTENCE = r"[.?!][\"')\]*_”’»]*\s+|[。？！｡]+[」』”’）]*\s*"
_LIST_LINE = r"\n(?=[ \t]*(?:[-*+|>#]|\d+[.)] |```|~~~))"
_PARAGRAPH = LazyPattern(r"\n\s*\n")
_LINE = LazyPattern(r"\n")
_BLANK = LazyPattern(r"\s+")
_CLAUSE = LazyPattern(r"[,;，、；]")
# Where to cut, best first: the first kind found near enough is taken. Prose is often broken
# into lines inside a sentence, code is not.
_PROSE_BREAKS = (_PARAGRAPH, LazyPattern(f"{_SENTENCE}|{_LIST_LINE}"), _LINE, _BLANK, _CLAUSE)
_CODE_BREAKS = (_PARAGRAPH, _LINE, LazyPattern(_SENTENCE), _BLANK, _CLAUSE)
# The overlap may be half as long again, or half, for a good place to begin.
_TAIL_MIN = CHUNK_OVERLAP // 2
_TAIL_MAX = CHUNK_OVERLAP + CHUNK_OVERLAP // 2


def _pieces(text: str, section: Chunk, prose: bool) -> Iterator[Chunk]:
    """Cut a section into pieces of at most CHUNK_MAX, as full as good breaks allow."""
    start, end = _trim(text, section.start, section.end)
    room = CHUNK_MAX
    while end - start > room:
        limit = min(start + room, end - CHUNK_MIN)
        cut = _best_cut(text, start + CHUNK_MIN, limit, limit, prose)
        yield Chunk(start, cut, section.context)
        start = cut
        if prose:  # the others are to begin with an overlap
            room = CHUNK_MAX - _TAIL_MAX
    yield Chunk(start, end, section.context)


def _fitting(text: str, chunk: Chunk, fits: Callable[[str], bool], prose: bool) -> Iterator[Chunk]:
    """Halve a chunk, and the halves, until all fit."""
    todo = [chunk]
    while todo:
        start, end, context = todo.pop()
        start, end = _trim(text, start, end)
        if start == end:
            continue
        if fits(embedding_text(text, Chunk(start, end, context))):
            yield Chunk(start, end, context)
            continue
        # A context of over half the window would leave hardly any room for the text.
        while context and not fits(f"{context}\n{context}"):
            context = context[(len(context) + 1) // 2 :]
        middle, margin = (start + end) // 2, max(1, (end - start) // 4)
        cut = _best_cut(text, start + margin, end - margin, middle, prose)
        if start < cut < end:
            todo += Chunk(cut, end, context), Chunk(start, cut, context)
        elif context:
            todo.append(Chunk(start, end, ""))
        elif end - start > 1:
            todo += Chunk(middle, end, ""), Chunk(start, middle, "")
        else:
            yield Chunk(start, end, "")


def _overlapping(text: str, chunks: list[Chunk], fits: Callable[[str], bool]) -> Iterator[Chunk]:
    """The chunks of a section of prose, each begun with the last words of the one before. Last,
    when it is known what fits, so that no chunk only repeats."""
    yield from chunks[:1]
    for before, chunk in pairwise(chunks):
        target = before.end - CHUNK_OVERLAP
        start = _best_cut(text, before.end - _TAIL_MAX, before.end - _TAIL_MIN, target, True)
        longer = chunk._replace(start=_trim(text, start, chunk.end)[0])
        has_room = before.end - before.start >= 2 * _TAIL_MAX and chunk.end - start <= CHUNK_MAX
        yield longer if has_room and fits(embedding_text(text, longer)) else chunk


def embedding_text(text: str, chunk: Chunk) -> str:
    """What the encoder reads of a chunk: where it stands, then what it says."""
    body = text[chunk.start : chunk.end]
    return matching_form(f"{chunk.context}\n{body}" if chunk.context else body)


def _best_cut(text: str, low: int, high: int, target: int, prose: bool) -> int:
    """The break of the best kind from low to high that is nearest to target."""
    for kind in _PROSE_BREAKS if prose else _CODE_BREAKS:
        cuts = [found.end() for found in kind.finditer(text, low, high)]
        if cuts:
            return min(cuts, key=lambda cut: abs(cut - target))
    return target


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space around it, but with the first line's indentation."""
    span = text[start:end]
    first = start + len(span) - len(span.lstrip())
    end = start + len(span.rstrip())
    if first >= end:
        return start, start
    line = text.rfind("\n", max(0, start - 1), first) + 1
    return (first if start and not line else line), end


# ---------------------------------------------------------------------------------------------
# Encoder
#
# all-MiniLM-L6-v2, its last layers taught by our own texts (models/train_encoder.py), on
# onnxruntime: text in, unit vector out, one text at a time so that no vector depends on its
# neighbours. Nothing is imported or read before it is needed.
# ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def loading(library: str) -> Iterator[None]:
    """Raises ModelError that names a library that cannot be imported, and what to do."""
    try:
        yield
    except ImportError as error:
        reason = one_line(str(error), PREVIEW)
        raise ModelError(f"{library} cannot be loaded ({reason}): {remedy_of_import()}") from None


@restoring
def model_dir() -> Path:
    """The folder of the bundled model: beside the module in a checkout, .pyz or wheel."""
    here = Path(__file__).resolve().parent
    for parent in ("models", "sediment_models"):
        if (here / parent / MODEL / "manifest.json").is_file():
            return here / parent / MODEL
    raise ModelError(f"the model {MODEL} is missing beside {here}: {remedy()}")


def takes_bundled_model() -> bool:
    """Whether no other model than the bundled one is set."""
    return (setting("EMBEDDING_MODEL") or MODEL).lower() == MODEL.lower()


def models_folder() -> Path:
    """The folder of the models that `model add` keeps, each in a folder of its name."""
    return default_database().parent / "models"


@restoring
def chosen_model() -> Model:
    """The bundled model, or the one that SEDIMENT_EMBEDDING_MODEL names: by its folder, or by its
    name in the folder `models` beside the default database. Raises ModelError."""
    if takes_bundled_model():
        return Model(model_dir())
    name = setting("EMBEDDING_MODEL")
    folder = expand_home(name)
    if not folder.is_dir():
        folder = models_folder() / name
    if not folder.is_dir():
        raise ModelError(
            f"the model {name} is neither a folder nor in {folder.parent}: `model add PATH` takes"
            " one from a folder or archive; or unset SEDIMENT_EMBEDDING_MODEL"
        )
    if (folder / "manifest.json").is_file():
        return Model(folder)
    return extension("given_models").GivenModel(folder)


class Model:
    """A model's folder, and what its manifest says of it: the SHA-256 of each file among others."""

    graph = "model.onnx"
    cohort = ""  # the file of vectors that tell what nearness a query has by chance
    by_token = ""  # the file with a vector for each token of the vocabulary
    query_prefix, passage_prefix = "", ""
    destination = ""  # of a service: the address that texts are sent to
    probe = b""  # of a service: the vector of PROBE, by which another model is noticed

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
            self.name: str = manifest["name"]
            self.dimension: int = manifest["dimension"]
            self.max_tokens: int = manifest["max_tokens"]
            self.files: dict[str, dict[str, Any]] = manifest["files"]
            self.digest: str = self.files["weights.bin"]["sha256"]
            self.cohort = "cohort.f16" if "cohort.f16" in self.files else ""
            self.by_token = "tokens.i8" if "tokens.i8" in self.files else ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{folder}/manifest.json cannot be read ({error})"
            raise ModelError(f"{reason}: {self._remedy()}") from None

    def check(self, full: bool = False) -> None:
        """Raises ModelError for a damaged file. Unless `full`, files that have the size and time
        of the last check are not read."""
        # Noted beside the model, or in the cache where that folder cannot be written.
        is_own = os.access(self.folder.parent, os.W_OK)
        path = (self.folder.parent if is_own else cache_dir()) / "checked.json"
        self._check_digests() if full else self._noted(path, self._check_digests)

    def run(self, session: Any, ids: Any) -> tuple[Any, Any]:
        """float32[dimension], the text's vector of length 1, and float32[tokens, dimension], each
        token's state, which a weighted mean is made of. `ids` is int64[tokens]."""
        return tuple(session.run(["embedding", "states"], {"ids": ids}))

    def finish(self, vector: Any, query: bool) -> Any:
        """What is made of a pooled vector of length 1."""
        return vector

    def _noted(self, path: Path, read: Callable[[], str]) -> str:
        """What `read` tells of the files, read anew when the size or time of one has changed."""
        notes, stamps, folder = read_json(path), self._stamps(), str(self.folder)
        note = notes.get(folder)
        if isinstance(note, list) and note[:-1] == stamps:
            return note[-1]
        told = read()
        with contextlib.suppress(OSError):  # each start looks again, then
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, json.dumps(notes | {folder: [*stamps, told]}))
        return told

    def _stamps(self) -> list[list[int]]:
        """Size in bytes and time of change in ns of each file."""
        try:
            stats = [os.stat(self.folder / name) for name in self.files]
        except OSError as error:
            raise ModelError(f"the model is incomplete ({error}): {self._remedy()}") from None
        return [[stat.st_size, stat.st_mtime_ns] for stat in stats]

    def _check_digests(self) -> str:
        for name, facts in self.files.items():
            path = self.folder / name
            try:
                digest = file_digest(path).hex()
            except OSError as error:
                reason = f"the model file {path} cannot be read ({error.strerror})"
                raise ModelError(f"{reason}: {self._remedy()}") from None
            if digest != facts["sha256"]:
                raise ModelError(f"the model file {path} is damaged: {self._remedy()}")
        return self.digest

    def _remedy(self) -> str:
        return remedy(self.folder.parent.parent)


def file_digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


# "the" is the first whole word of the vocabulary (its token id), and 8 % of all words in English.
_FIRST_WORD, _ZIPF_SHARE = 1996, 0.08
_CHUNK_WORDS = 40  # of a usual chunk
_UNKNOWN = ("[UNK]", "<unk>")


# What long jobs take: `progress` is told how many more are done, `stop` says whether to end early.
Progress = Callable[[int], object]
Stop = Callable[[], bool]


class ThreadCall:
    """A call that runs in a thread of its own, while the caller does something else."""

    def __init__(self, work: Callable[[], Any], daemon: bool = False) -> None:
        self._work, self._result, self._error = work, None, None
        # No daemon may load or run onnxruntime: a program that ends meanwhile would abort.
        self._thread = threading.Thread(target=self._run, daemon=daemon)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:  # `result` raises it
            self._error = error

    def result(self, timeout: float | None = None) -> Any:
        """What the call returned or raised; TimeoutError when it takes more seconds."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError
        if self._error:
            raise self._error
        return self._result


def texts_at_once() -> int:
    return min(TEXTS_AT_ONCE, os.cpu_count() or 1)


class Encoder:
    """Texts to unit vectors; tokenizer and session are loaded at first use, from any thread. A
    one-shot process takes the session that starts fastest, a resident one the fastest to run."""

    batch = PENDING_BATCH
    trouble = ""  # why a service gave no vectors at the last request

    def __init__(self, folder: Path | None = None, *, resident: bool = True) -> None:
        self._folder, self.resident = folder, resident
        self.wait = SERVICE_WAIT  # s for a service, unless the caller is patient
        self._locks = {name: threading.Lock() for name in ("tokenizer", "session", "workers")}
        self._tokenizer: Tokenizer | None = None
        self._session: Any = None
        self._workers: Any = None  # a thread pool, as long as a long job runs

    @functools.cached_property
    def model(self) -> Model:
        """The model in the folder given, else the one that is set. Raises ModelError."""
        return Model(self._folder) if self._folder else chosen_model()

    def tokens(self, text: str) -> list[int]:
        """Token ids with [CLS] and [SEP], cut to the model's window."""
        return self._in_window(self._load_tokenizer().encode(text).ids)

    def _in_window(self, ids: list[int]) -> list[int]:
        window = self.model.max_tokens
        return ids if len(ids) <= window else [*ids[: window - 1], ids[-1]]

    def count_tokens(self, text: str) -> int:
        """How many tokens the whole text has, [CLS] and [SEP] included."""
        return len(self._load_tokenizer().encode(text).ids)

    def chunk_share(self, word: str) -> float:
        """About what share of chunks in English hold a lower-case word, by Zipf's law: the
        vocabulary is ordered by frequency, behind special and single characters. 0 of words that
        it lacks."""
        token = self._load_tokenizer().token_to_id(word)
        if token is None:
            return 0.0
        rank = 20 if len(word) == 1 else max(1, token - _FIRST_WORD + 1)
        return 1 - math.exp(-_CHUNK_WORDS * _ZIPF_SHARE / rank)

    def word_tokens(self, word: str) -> list[int]:
        """The token ids of a lower-case word, without those that stand for unknown pieces."""
        unknown = self._unknown()
        ids = self._load_tokenizer().encode(word, add_special_tokens=False).ids
        return [id for id in ids if id not in unknown]

    def token_vectors(self, tokens: Any) -> Any:
        """float32[n, axes]: the vectors of n token ids by themselves, of length 1 but for
        rounding; zeros of token 0, which stands for no word."""
        return self._by_token[tokens] * numpy.float32(1 / 127)

    @functools.cached_property
    def _by_token(self) -> Any:
        """int8[vocabulary, axes], of a model that has the file `by_token`."""
        with self._readable(self.model.by_token) as path:
            return numpy.fromfile(path, "i1").reshape(self._load_tokenizer().get_vocab_size(), -1)

    def fits(self, text: str) -> bool:
        """Whether nothing of the text would be cut off."""
        # Each token of ASCII has a character at least.
        text = self.model.passage_prefix + text
        is_short = text.isascii() and len(text) + 8 <= self.model.max_tokens
        return is_short or self.count_tokens(text) <= self.model.max_tokens

    def embed(self, text: str) -> bytes:
        """The text's vector: float32[dimension], little-endian, of length 1."""
        session = self.load()
        ids = numpy.array(self.tokens(self.model.passage_prefix + text), numpy.int64)
        vector = self.model.run(session, ids)[0]
        return self.model.finish(vector, False).astype("<f4").tobytes()

    def embed_all(self, texts: Iterable[str], patient: bool = False) -> list[bytes]:
        """The vectors of texts, in their order. Raises ServiceError; the `patient` wait longer
        before that."""
        if not self._workers:  # lazily: the caller may stop in the middle of its texts
            return [*map(self.embed, texts)]
        texts = [*texts]
        with self._locks["workers"]:  # so that the pool is not closed meanwhile
            vectors = (self._workers.map if self._workers else map)(self.embed, texts)
        return [*vectors]

    @contextlib.contextmanager
    def parallel_encoding(self) -> Iterator[int]:
        """For a long job: `embed_all` encodes so many texts at once, each by a thread of its own,
        as long as the block runs. It is 1 with a service, and where a session is loaded already,
        since others may wait for that."""
        from concurrent.futures import ThreadPoolExecutor

        with self._locks["workers"]:
            has_pool, mine = self._workers is not None, None
            if not (has_pool or self._session or self.model.destination):
                mine = self._workers = ThreadPoolExecutor(texts_at_once())
        try:
            yield texts_at_once() if mine or has_pool else 1
        finally:
            if mine:
                with self._locks["workers"], self._locks["session"]:
                    self._workers = self._session = None  # a single text gets more threads
                mine.shutdown()

    def embed_query(self, text: str, weights: Sequence[float]) -> bytes:
        """The vector of a query, with a weight for each of its characters: the mean of the tokens'
        states, each weighted by the token's first character; special and unknown tokens count
        nothing. Where no token has a weight it is what `embed` gives, or b"" if one is unknown."""
        encoding, plain, states = self._query_states(text)
        if encoding is None:  # from a service, which gives no states
            return plain.tobytes()
        token_weights = self._token_weights(encoding, weights)
        if not any(token_weights) and self._unknown().intersection(self._in_window(encoding.ids)):
            return b""
        pooled = numpy.array(token_weights, numpy.float32) @ states
        length = float(numpy.linalg.norm(pooled))
        vector = pooled / length if length else plain
        return self.model.finish(vector, True).astype("<f4").tobytes()

    def near_cohort(self, vector: bytes) -> float:
        """The cosine of a query's vector to the nearest memory of the model's cohort; 0 where
        there is no vector, or no cohort."""
        if not vector or not self.model.cohort:
            return 0.0
        return float((self._cohort @ numpy.frombuffer(vector, "<f4")).max())

    @functools.cached_property
    def _cohort(self) -> Any:
        """float32[n, dimension], of length 1 but for rounding: memories of other people's lives,
        of a model that has the file `cohort`."""
        with self._readable(self.model.cohort) as path:
            return numpy.fromfile(path, "<f2").astype("<f4").reshape(-1, self.model.dimension)

    def _query_states(self, text: str) -> tuple[Any, Any, Any]:
        """A query's encoding by the tokenizer, its plain vector, and each token's state."""
        session = self.load()
        encoding = self._load_tokenizer().encode(self.model.query_prefix + text)
        ids = self._in_window(encoding.ids)
        return encoding, *self.model.run(session, numpy.array(ids, numpy.int64))

    def _token_weights(self, encoding: Any, weights: Sequence[float]) -> list[float]:
        """Each token's weight: that of its first character; 0 of special and unknown tokens."""
        weights = [*[0.0] * len(self.model.query_prefix), *weights]
        ids, unknown = self._in_window(encoding.ids), self._unknown()
        spans = zip(ids[:-1], encoding.offsets, strict=False)  # without the closing token
        found = [weights[at] if end and id not in unknown else 0.0 for id, (at, end) in spans]
        return [*found, 0.0]

    def _unknown(self) -> set[int | None]:
        """The token that stands for whatever is not in the vocabulary."""
        return set(map(self._load_tokenizer().token_to_id, _UNKNOWN)) - {None}

    def note_sent(self, database: Any) -> None:
        """Count in a database what a service was sent; a model on this machine sends nothing."""

    def load(self) -> Any:
        """The session, loaded at first use. Raises ModelError."""
        with self._locks["session"]:
            session = self._session = self._session or self._open_session()
        return session  # which the end of a long job may have taken away from the others meanwhile

    def begin_loading(self) -> None:
        """Load the session while the caller does something else. It is not run there, too: its two
        threads want both cores, and recalls took no less time."""
        if self._session is None:
            ThreadCall(self.load)  # an error is met again by whoever needs the session

    def _load_tokenizer(self) -> Tokenizer:
        with self._locks["tokenizer"]:
            if self._tokenizer is None:
                self._tokenizer = self._open_tokenizer()
        return self._tokenizer

    def _open_tokenizer(self) -> Tokenizer:
        with loading("tokenizers"):
            from tokenizers import Tokenizer
        self._check_model()
        with self._readable("tokenizer.json") as path:
            tokenizer = Tokenizer.from_file(path)
        tokenizer.no_padding()  # the file's own settings are for batches
        tokenizer.no_truncation()
        return tokenizer

    @restoring
    def _check_model(self) -> None:
        self.model.check()

    def _open_session(self) -> Any:
        self._check_model()
        # numpy first: onnxruntime and another thread that import it at once get half a module.
        with loading("onnxruntime"):
            import numpy  # noqa: F401
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        threads = 1 if self._workers else ENCODER_THREADS
        options.intra_op_num_threads = min(threads, os.cpu_count() or 1)
        # Threads wait for each other without sleeping for ENCODER_SPIN, and not between runs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(ENCODER_SPIN))
        if not self.resident and not self._workers:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.add_session_config_entry("session.disable_prepacking", "1")
        with self._readable(self.model.graph) as path:
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    @contextlib.contextmanager
    def _readable(self, name: str) -> Iterator[str]:
        """The path of a model's file; whatever a library raises of it is a ModelError."""
        path = self.model.folder / name
        try:
            yield str(path)
        except Exception as error:
            reason = one_line(str(error), PREVIEW)
            raise ModelError(f"the model file {path} cannot be used: {reason}") from None


_NO_VECTORS = "vectors of the database are damaged: run `doctor --repair`"


def stack_vectors(rows: list[tuple[Any, ...]]) -> Any:
    """float32[rows, dimension]: the vectors in the last column of rows. Raises DamagedError where
    they differ in length."""
    lengths = {len(row[-1]) for row in rows}
    if len(lengths) != 1 or any(length % 4 for length in lengths):
        raise DamagedError(_NO_VECTORS)
    data = b"".join(row[-1] for row in rows)
    return _without_noise(numpy.frombuffer(data, "<f4").reshape(len(rows), -1))


def _without_noise(vectors: Any) -> Any:
    """Vectors, with zeros in the place of those that are damaged, by their length: NaN would spoil
    whatever they are multiplied with."""
    with numpy.errstate(all="ignore"):  # damaged numbers may be of any size
        noise = ~(numpy.einsum("ij,ij->i", vectors, vectors) < 2)  # NaN too
    return numpy.where(noise[:, None], numpy.float32(0), vectors) if noise.any() else vectors


@functools.cache
def services() -> dict[str, dict[str, Any]]:
    """Each service by its name: {url, path, key (the variable that has it), header, kinds (what it
    calls a stored text and a query)}."""
    return json.loads(asset("services.json"))


def open_encoder(resident: bool) -> Encoder:
    """The encoder that is set: a model on this machine, or one of a service, as openai:NAME."""
    kind = setting("EMBEDDING_MODEL").partition(":")[0].lower()
    return (extension("services").ServiceEncoder if kind in services() else Encoder)(
        resident=resident
    )


# ---------------------------------------------------------------------------------------------
# Database
#
# One SQLite file through apsw, whose own SQLite loads sqlite-vec on every Python. A connection
# a thread; writes are short IMMEDIATE transactions; reading a file that is not there yet reads
# an empty database in memory, so that no reading command creates anything.
# ---------------------------------------------------------------------------------------------

HOOKS_OFF = "hooks_off:"  # begins a key of `meta`, before a project: which of its hooks are off


def move_project(connection: apsw.Connection, old: str, new: str) -> None:
    connection.execute(asset("schema/move_project.sql"), {"old": old, "new": new})


# The text and the context of each chunk.
CHUNK_TEXTS = (
    'SELECT c.id, substr(i.content, c.start + 1, c."end" - c.start), c.context'
    " FROM chunks c JOIN items i ON i.seq = c.item"
)


def fill_words(connection: apsw.Connection) -> None:
    """Rebuild the word index from the texts."""
    connection.execute("INSERT INTO words(words) VALUES('delete-all')")
    rows = fetch(connection, CHUNK_TEXTS)
    connection.executemany(
        "INSERT INTO words(rowid, text, context) VALUES(?, ?, ?)",
        ((chunk, spaced(text), spaced(context)) for chunk, text, context in rows),
    )


def add_marks(connection: apsw.Connection) -> None:
    """Make the table of tags and expiration times, and let sync carry them: what came from newer
    machines is read once more."""
    connection.execute(asset("schema/marks.sql"))
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'replica'").get:
        connection.execute("ALTER TABLE replica ADD COLUMN marks TEXT NOT NULL DEFAULT '{}'")
        connection.execute("UPDATE replica SET marks = '{}'")  # for `rescue`, which reads rows
        _renew_sync_rules(connection)
        extension("sync.machines").read_anew(connection)


def _renew_sync_rules(connection: apsw.Connection) -> None:
    """Put this program's triggers and views for sync in the place of older ones."""
    with contextlib.closing(apsw.Connection(":memory:")) as sound:
        upgrade(sound)
        sound.execute(asset("schema/sync.sql"), {"machine": "", "mark": "", "place": ""})
        for kind, name, sql in sound.execute(_RULES):
            connection.execute(f"DROP {kind} IF EXISTS {name}")
            connection.execute(sql)


# The `user_version` of the tables in assets/schema.sql, and the migrations since, each under the
# version that it brings a file to.
FIRST_VERSION = 13
MIGRATIONS: dict[int, Callable[[apsw.Connection], None]] = {
    14: fill_words,  # full and half width are one, and so is a number with and without separators
    16: add_marks,  # tags and expiration; 15 was one of sync's rules, which this renews
}


class FileState(NamedTuple):
    """What every recall needs to know of the file as a whole (assets/sql/state.sql)."""

    chunks: int
    last_chunk: int
    last_change: int
    dimension: int  # 0 where there are no vectors
    generation: str | None  # where it has changed, all rows may have
    model_digest: str | None
    model_probe: str | None
    has_pending: int
    has_sources: int

    @property
    def texts(self) -> tuple[Any, ...]:
        """A value that changes when any text does."""
        return self.generation, self.chunks, self.last_chunk, self.last_change


class Database:
    """The file, and a connection to it for each thread that asks."""

    def __init__(self, path: Path) -> None:
        self.path = absolute_path(path)  # absolute, so that ":memory:" is a file's name, too
        self.has_distance = False
        self._local = threading.local()
        self._all: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()  # closed with their threads
        self._lock = threading.Lock()
        # Of `cached_answers`, and for which texts
        self._answers: tuple[Any, dict[Any, Any]] = (None, {})

    def reader(self) -> apsw.Connection:
        """This thread's connection; an empty database in memory while there is no file."""
        return self._connection(create=False)

    @contextlib.contextmanager
    def transaction(
        self, wait: int = BUSY_TIMEOUT, create: bool = True
    ) -> Iterator[apsw.Connection]:
        """One write, whole or not at all, on disk when the block ends. Raises DatabaseError if
        the file cannot be written within `wait` ms. Without `create`, a missing file stays
        missing: the block sees an empty database, and what it writes is dropped."""
        with self.translate_errors():
            while True:
                connection = self._begin(wait, create)
                with _committing(connection):
                    if self._identity() == self._local.identity:
                        self._name_copy(connection)
                        yield connection
                        return
                # The file was exchanged while it waited: again, in the one that is there now.

    def _name_copy(self, connection: apsw.Connection) -> None:
        """Before a write, give the copy of a file that syncs a machine name of its own."""
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'clock'").get:
            mark = connection.execute("SELECT mark FROM clock").get
            if f":{os.stat(self.path).st_ino}:" not in mark:
                name_machine(connection, self.path)

    def _begin(self, wait: int, create: bool) -> apsw.Connection:
        """A connection in a write transaction."""
        connection = self._connection(create)
        connection.set_busy_handler(make_busy_handler(wait))
        try:
            connection.execute("BEGIN IMMEDIATE")
        finally:
            connection.set_busy_handler(make_busy_handler())
        return connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let this thread's reads see one state of the file, whatever others write meanwhile."""
        local = self._local
        if getattr(local, "pinned", None):  # within another one
            yield
            return
        connection = self.reader()
        with self.translate_errors():
            connection.execute("BEGIN")
            try:
                fetch(connection, "SELECT 1 FROM meta LIMIT 1")  # only a read begins it
                local.pinned = connection
                yield
            finally:
                local.pinned = None
                # Unless somebody has closed it, or a failing disk has ended the transaction.
                if connection is local.connection and connection.in_transaction:
                    connection.execute("COMMIT")

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """All rows of a query, each a tuple."""
        try:
            return fetch(self.reader(), sql, *values)
        except Exception:
            with self.translate_errors():  # only now, since most reads succeed
                raise

    def value(self, sql: str, *values: Any) -> Any:
        """The first column of the first row, or None."""
        rows = self.rows(sql, *values)
        return rows[0][0] if rows else None

    def must_exist(self) -> None:
        """Raises NotFound where there is no file yet."""
        if not self.path.exists():
            _check_place(self.path)
            raise NotFound(f"there is no database at {self.path} yet")

    def version(self) -> tuple[Any, ...]:
        """Within a snapshot, a value that changes with every write of anybody: the file's identity,
        this connection's number and its own count."""
        local = self._local
        return local.identity, local.serial, self.reader().data_version()

    def cached_rows(self, sql: str) -> list[Any]:
        """Within a snapshot, all rows of a query, cached until somebody writes."""
        local, version = self._local, self.version()
        if getattr(local, "cached_at", None) != version:
            local.cache, local.cached_at = {}, version
        if sql not in local.cache:
            local.cache[sql] = self.rows(sql)
        return local.cache[sql]

    def state(self) -> FileState:
        return FileState(*self.cached_rows(asset("sql/state.sql"))[0])

    def cached_answers(
        self, ask: Callable[[Database, list[Any]], list[Any]], keys: list[Any]
    ) -> list[Any]:
        """Within a snapshot, what `ask` answers to each key, cached until any text changes."""
        texts = self.version()[0], self.state().texts
        cached_for, answers = self._answers  # of all threads; each may see another state
        if cached_for != texts or len(answers) > KEPT_ANSWERS:
            answers = {}
            self._answers = texts, answers
        if new := [key for key in keys if (ask, key) not in answers]:
            found = zip(new, ask(self, new), strict=True)
            answers |= {(ask, key): answer for key, answer in found}
        return [answers[ask, key] for key in keys]

    def size(self) -> int:
        """Bytes on disk, the write-ahead log included."""
        paths = (Path(f"{self.path}{suffix}") for suffix in ("", "-wal"))
        return sum(path.stat().st_size for path in paths if path.is_file())

    def checkpoint(self) -> None:
        """Move the log's pages into the file and empty it, unless somebody still reads it."""
        connection = self.reader()
        connection.set_busy_handler(None)
        with contextlib.suppress(apsw.Error):
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.set_busy_handler(make_busy_handler())

    def refuse_own(self, given: str | Path) -> None:
        """Raises InvalidInput for any name of the file, or of what SQLite keeps beside it."""
        file, path = os.path.realpath(self.path), absolute_path(given)
        for own in (f"{file}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")):
            same = os.path.realpath(path) == own
            with contextlib.suppress(OSError):
                same = same or os.path.samefile(path, own)
            if same:
                raise InvalidInput(f"{given} is the database or a part of it: choose another name")

    def close(self) -> None:
        """Close every thread's connection; one that is in use closes with its thread. A disk
        that fails now loses no answered change."""
        with self._lock:
            for connection in self._all:
                with contextlib.suppress(apsw.IOError, apsw.ThreadingViolationError):
                    connection.close()
            self._all.clear()
        self._local = threading.local()

    def close_thread(self) -> None:
        """Close this thread's connection; one that is needed after all is opened anew."""
        connection = getattr(self._local, "connection", None)
        self._local.__dict__.clear()
        self._forget(connection)

    def writer(self) -> apsw.Connection:
        """This thread's connection; the file is created where there is none."""
        return self._connection(create=True)

    def _connection(self, create: bool) -> apsw.Connection:
        """The thread's connection, reopened when the file came, went or was exchanged."""
        local = self._local
        if pinned := getattr(local, "pinned", None):
            return pinned
        now = self._identity()
        stale = getattr(local, "identity", ()) != now
        if not stale and now and local.connection.readonly("main"):
            # Perhaps it may be written by now; and an immutable one sees no change by itself.
            stale = local.stamps != _stamps(self.path)
        if stale or (create and now is None):
            self.close_thread()
            with self.translate_errors():
                local.connection, local.identity = self._open(create)
                local.serial, local.stamps = next(_serials), _stamps(self.path)
        return local.connection

    def _identity(self) -> tuple[int, int] | None:
        """The device and inode of the file, or None where there is none."""
        try:
            stat = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DatabaseError(f"cannot open {self.path}: {error.strerror}") from None
        return stat.st_dev, stat.st_ino

    def _open(self, create: bool) -> tuple[apsw.Connection, tuple[int, int] | None]:
        """A connection, and which file it is to: None for one in memory."""
        _check_place(self.path)
        if create:
            create_private(self.path)
        # Asked before opening: a file that comes or is exchanged meanwhile is noticed next time.
        identity = self._identity()
        connection = apsw.Connection(":memory:") if identity is None else open_connection(self.path)
        with self._lock:
            self._all.add(connection)
        try:
            connection.set_busy_handler(make_busy_handler())
            # Until it is known to be ours, nothing may change in it: close no log into it either.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            check_compatible(connection, self.path)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            _configure(connection)
            self.has_distance = load_distance(connection)
            _migrate(connection, self.path)
            connection.execute(_POSTINGS)
        except BaseException:
            self._forget(connection)
            raise
        return connection, identity

    def _forget(self, connection: apsw.Connection | None) -> None:
        if connection is not None:
            with self._lock:
                self._all.discard(connection)
            connection.close()

    @contextlib.contextmanager
    def translate_errors(self, path: Path | None = None) -> Iterator[None]:
        """Raises SQLite's errors, of this file or of another, as ours, which say what to do."""
        kind, damage = DatabaseError, DAMAGED if path is None else DAMAGED_COPY.format(path)
        file = path or self.path
        try:
            yield
        except apsw.NotADBError:
            ways = " with --db; `doctor --repair` if it was one", "; `import` takes an export"
            reason = f"is not a Sediment database: choose another file{ways[path is not None]}"
            kind = DamagedError
        except (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError) as error:
            done = "written" if os.access(file, os.R_OK) else "read"
            reason = f"cannot be {done}: check its permissions and its folder's, or use --db"
            if isinstance(error, apsw.ReadOnlyError) and _no_room(file):
                reason = _FULL
        except apsw.BusyError:
            reason = f"was locked by another process for {BUSY_TIMEOUT // 1000} s: try again"
        except apsw.FullError:
            reason = _FULL
        except (apsw.CorruptError, UnicodeDecodeError):
            kind, reason = DamagedError, damage
        except apsw.SQLError as error:  # the SQL is right, so that the tables are wrong
            if not _OTHER_TABLES.search(str(error)):
                raise
            kind, reason = DamagedError, damage
        except apsw.IOError as error:
            reason = f"cannot be read or written ({error}): {_CHECK_DISK}"
            if _no_room(file):
                reason = "cannot be opened, the disk is full: free some space"
        else:
            return
        raise kind(f"{file} {reason}") from None


DAMAGED = "is damaged: run `doctor --repair`, or `restore` a backup"
DAMAGED_COPY = "is damaged: try --db {} doctor --repair, or another backup"
_OTHER_TABLES = LazyPattern(
    r"no such (?:table|column)|already exists|has no column|duplicate column|invalid float32 vector"
    r"|invalid fts5 file|vtable constructor"
)
_CHECK_DISK = "check the disk, or a limit of the size of files (`ulimit -f`)"
_NOT_MADE = "; this change was not made"
_FULL = f"cannot grow, the disk is full: free some space{_NOT_MADE}"


def _no_room(path: Path) -> bool:
    """Whether the disk has too little room for a log's index, which even a reader needs."""
    with contextlib.suppress(OSError):
        return free_bytes(path.parent) < LOG_INDEX_BYTES
    return False


def check_log(path: Path) -> None:
    """Raises DatabaseError for the log of a file that was moved away: SQLite would delete it."""
    with contextlib.suppress(OSError):  # there is no log
        # The log first: whoever makes the file just now has a log only when something is in it.
        logged = os.stat(f"{real_path(path)}-wal").st_size
        if logged and not (path.exists() and path.stat().st_size):
            log = f"{real_path(path).name}-wal"
            reason = f"{path} was moved away or removed, but {log} has what was stored last"
            remedy = "put the file back, or end all servers and delete what it left"
            raise DatabaseError(f"{reason}: {remedy}")


def stemmer() -> Callable[[str], list[tuple[str, str]]]:
    """A function from a text to its words in order, as (the word index's stem, lower-case word)."""
    connection = apsw.Connection(":memory:")
    tokenizer = connection.fts5_tokenizer("porter", ["unicode61", "remove_diacritics", "2"])
    lock = threading.Lock()

    def stems(text: str) -> list[tuple[str, str]]:
        data = text.encode()
        with lock:
            found = tokenizer(data, apsw.FTS5_TOKENIZE_QUERY, None)
        return [
            (str(stem), data[int(start) : int(end)].decode().lower()) for start, end, stem in found
        ]

    @functools.lru_cache(LEXICON_WORDS)
    def stem(word: str) -> tuple[str, str]:
        return stems(word)[0]

    return lambda text: [*map(stem, _ASCII_TERM.findall(text))] if text.isascii() else stems(text)


@contextlib.contextmanager
def _committing(connection: apsw.Connection) -> Iterator[None]:
    """Commit the open transaction at the end of the block, or roll it back after an error."""
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def fetch(connection: apsw.Connection, sql: str, *values: Any) -> list[Any]:
    """All rows of a query, each a tuple."""
    return list(connection.execute(sql, values))


_creating = threading.Lock()
_serials = itertools.count()  # of connections


def create_private(path: Path) -> None:
    """Create an empty file and its folders, private to this user. Raises DatabaseError."""
    try:
        _create_private(path)
    except FileExistsError:
        return
    except OSError as error:
        is_denied = isinstance(error, PermissionError)
        reason = ": no permission" if is_denied else f" ({error.strerror or error})"
        if not path.exists():
            raise DatabaseError(f"{path} cannot be created{reason}; use --db") from None


def _create_private(path: Path) -> None:
    """The same; raises OSError, FileExistsError where there is a file already."""
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            make_private(folder, 0o700)
    # O_EXCL: closing a file that SQLite has open would drop its locks, in all of this process.
    # The lock: no other thread may connect to a new file before it is closed here.
    with _creating:
        descriptor = os.open(real_path(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        make_private(path)
        os.close(descriptor)


def is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _stamps(path: Path) -> list[Any]:
    """Whether a file may be written; name, size and time of it and of its log, if there."""
    found: list[Any] = [is_writable(path)]
    for name in (path, f"{path}-wal"):
        with contextlib.suppress(OSError):
            stat = os.stat(name)
            found.append((name, stat.st_size, stat.st_mtime_ns))
    return found


def _check_place(path: Path) -> None:
    """Raises DatabaseError for a path where no database can be, or for a link to somebody else's
    file, which may mean harm."""
    if path.is_dir():
        raise DatabaseError(f"{path} is a folder: --db takes a file, e.g. memory.db")
    if os.path.exists(path) and not path.is_file():
        raise DatabaseError(f"{path} is no plain file: --db takes one, e.g. memory.db")
    check_name(path)
    check_log(path)
    with contextlib.suppress(FileNotFoundError):
        if path.is_symlink() and has_other_owner(path.stat()):
            raise DatabaseError(f"{path} is a link to somebody else's file: name that with --db")


def open_connection(path: Path) -> apsw.Connection:
    """Open for writing; for reading alone where the file or its disk allow no more."""
    check_log(path)
    if not is_writable(path) or (_no_room(path) and _is_closed(path)):
        return open_read_only(path)
    return apsw.Connection(str(path))


def _is_closed(path: Path) -> bool:
    """Whether a file has something in it, and nobody has it open."""
    return bool(path.stat().st_size) and not os.path.exists(f"{path}-shm")


def open_read_only(path: Path) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    # Without a -wal beside it nobody is writing, and SQLite needs no lock file to read it.
    query = "" if Path(f"{path}-wal").exists() else "?immutable=1"
    name = re.sub("[%?#]", lambda mark: f"%{ord(mark[0]):02x}", str(path))
    return apsw.Connection(f"file:{name}{query}", flags=flags)


def _configure(connection: apsw.Connection) -> None:
    if not connection.readonly("main"):
        connection.pragma("page_size", PAGE_BYTES)  # of a new file
        _use_wal(connection)
    connection.pragma("synchronous", "full")  # an answered change survives a power cut
    connection.pragma("fullfsync", True)  # which asks for more on macOS
    connection.pragma("foreign_keys", "on")
    connection.pragma("secure_delete", "on")
    connection.pragma("temp_store", "memory")


def make_busy_handler(wait: int = BUSY_TIMEOUT) -> Callable[[int], bool]:
    """A busy handler that pauses for a random time and gives up after `wait` ms."""
    deadline = 0.0

    def again(tries: int) -> bool:
        nonlocal deadline
        now = time.monotonic()
        deadline = deadline if tries else now + wait / 1000
        time.sleep(random.uniform(0.5, 1) * min(1 + tries, BUSY_PAUSE) / 1000)
        return now < deadline

    return again


def _use_wal(connection: apsw.Connection) -> None:
    """Write-ahead logging, set once in a file's life; that switch alone ignores busy_timeout."""
    try_again = make_busy_handler()
    for tries in itertools.count():
        try:
            is_set = connection.pragma("journal_mode") in ("wal", "memory")
            if is_set or connection.pragma("journal_mode", "wal") == "wal":
                return
            raise apsw.IOError("this disk cannot have a write-ahead log")
        except apsw.BusyError:
            if not try_again(tries):
                raise


# Which chunks have a stem, and where, straight from the word index: FTS5's own BM25 has its
# constants fixed at k1 = 1.2 and b = 0.75, and takes twice the time.
_POSTINGS = "CREATE VIRTUAL TABLE temp.postings USING fts5vocab(main, words, instance)"


def load_distance(connection: apsw.Connection) -> bool:
    """Load sqlite-vec's distance functions, by path since its package imports numpy; False where it
    has no build for this system."""
    from importlib.util import find_spec

    spec = find_spec("sqlite_vec")
    if spec is None or not spec.origin:
        return False
    connection.enable_load_extension(True)
    try:
        connection.load_extension(str(Path(spec.origin).parent / "vec0"))
    except (apsw.ExtensionLoadingError, UnicodeEncodeError):  # a place that is not UTF-8
        return False
    finally:
        connection.enable_load_extension(False)
    return True


def copy_database(
    source: apsw.Connection, target: Path, fault: Callable[[apsw.Connection], str] | None = None
) -> None:
    """Copy what was committed into one file, whole or not at all, while others go on writing.
    Raises DatabaseError if `target` exists, there is no room, or the copy has a `fault`."""
    if os.path.lexists(target):
        raise DatabaseError(f"{target} is there already: choose another name")
    draft = draft_of(target)
    remove_abandoned_drafts(target)
    try:
        _create_private(draft)
        with contextlib.closing(apsw.Connection(str(draft))) as copy:
            with copy.backup("main", source, "main") as backup:
                backup.step()  # all pages at one moment
            copy.pragma("journal_mode", "delete")  # one file, and no log beside it
            found = copy.pragma("quick_check")
            if found == "ok" and fault:
                found = fault(copy) or "ok"
            if found != "ok":
                raise DamagedError(f"the copy for {target} is not sound ({found}): run `doctor`")
        place_new_file(draft, target)
    except apsw.Error as error:
        hint = {apsw.FullError: "the disk is full", apsw.IOError: "the disk or `ulimit -f` refuses"}
        reason = hint.get(type(error), error)
        raise DatabaseError(f"{target} cannot be written ({reason}): is there room?") from None
    except OSError as error:
        raise DatabaseError(f"{target} cannot be written ({error.strerror})") from None
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{draft}{suffix}").unlink(missing_ok=True)


def aside(path: Path, why: str) -> Path:
    """A free name for a copy beside a file."""
    stem = f"{path.name}.{why}-{time.strftime('%Y%m%d-%H%M%S')}"
    suffixes = (f"-{number}" if number else "" for number in itertools.count())
    return free_name(path.with_name(stem + suffix) for suffix in suffixes)


def free_name(names: Iterable[Path]) -> Path:
    return next(name for name in names if not os.path.lexists(name))


def abandoned_drafts(path: Path) -> list[Path]:
    """Drafts of a file, of its copies and of their logs, whose process was killed."""
    draft = re.compile(rf"{re.escape(path.name)}(?:\..+)?\.(\d+)\.tmp(?:-journal|-wal|-shm)?")
    with contextlib.suppress(OSError):
        found = filter(None, map(draft.fullmatch, sorted(os.listdir(path.parent))))
        return [path.with_name(name[0]) for name in found if not process_exists(int(name[1]))]
    return []


def remove_abandoned_drafts(path: Path) -> None:
    for draft in abandoned_drafts(path):
        with contextlib.suppress(OSError):
            draft.unlink()


def note_copy(connection: apsw.Connection, copy: Path) -> None:
    """Note a copy, so that `forget` can say where else a text still stands."""
    set_meta(connection, f"copy:{copy}", str(int(time.time())))


def copies(database: Database) -> list[str]:
    """The noted copies of this file that still exist, and drafts of them that were abandoned."""
    rows = database.rows("SELECT substr(key, 6) FROM meta WHERE key GLOB 'copy:*'")
    paths = (path for (copy,) in rows for path in (copy, *map(str, abandoned_drafts(Path(copy)))))
    return list(dict.fromkeys(filter(os.path.lexists, paths)))


def is_synced(database: Database) -> bool:
    """Whether other machines may have memories of this file."""
    return bool(database.value("SELECT 1 FROM sqlite_schema WHERE name = 'replica'"))


def new_generation(connection: apsw.Connection) -> None:
    """Make processes that cache rows read all of them again."""
    set_meta(connection, "generation", new_id())


def meta_value(connection: apsw.Connection, key: str) -> Any:
    """The value of a key in the table `meta`, or None."""
    return connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).get


def set_meta(connection: apsw.Connection, key: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (key, value))


def another_programs(path: Path) -> DatabaseError:
    return DatabaseError(f"{path} is another program's database: choose another file")


def version_fault(connection: apsw.Connection, path: Path) -> DatabaseError | None:
    """Why this program cannot use a file of that `user_version`; 0 is that of an empty file."""
    version = connection.pragma("user_version")
    if version > max(MIGRATIONS):
        return DatabaseError(f"{path} was made by a newer Sediment: update this program")
    if version and version < FIRST_VERSION:
        remedy = "`export` it with the program that made it, and `import` that into a new file"
        return DatabaseError(f"{path} was made before the first release of Sediment: {remedy}")
    return None


def check_compatible(connection: apsw.Connection, path: Path) -> None:
    """Refuse another program's database, another version, and triggers that are not ours."""
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if tables and connection.pragma("application_id") != APPLICATION_ID:
        raise another_programs(path)
    if fault := version_fault(connection, path):
        raise fault
    is_older = connection.pragma("user_version") < max(MIGRATIONS)  # which replaces them by ours
    for kind, name, sql in connection.execute(_RULES):
        own = f"CREATE {kind.upper()} {name} " if is_older else _squeezed(sql)
        if own not in _own_rules():
            reason = f"has {shown_value(name)} in it, which would change what is stored"
            raise DamagedError(f"{path} {reason}: `doctor --repair` leaves it out")


_RULES = "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('trigger', 'view')"


def _squeezed(sql: str) -> str:
    return " ".join(sql.split())


@functools.cache
def _own_rules() -> str:
    """The SQL of the assets that have this program's triggers and views."""
    names = ("schema.sql", "schema/marks.sql", "schema/sync.sql")
    return _squeezed(" ".join(map(asset, names)))


def missing_in_schema(connection: apsw.Connection) -> list[str]:
    """The tables, indexes and triggers that a file of its version lacks."""
    sql, version = "SELECT name FROM sqlite_schema", connection.pragma("user_version")
    here = set(connection.execute(sql))
    if not version and not here:
        return []  # nothing was written to it yet
    with contextlib.closing(apsw.Connection(":memory:")) as sound:
        upgrade(sound, version)
        return sorted(name for (name,) in set(sound.execute(sql)) - here)


def _migrate(connection: apsw.Connection, path: Path) -> None:
    """Bring a file to the newest version in one transaction, after a copy of an older file."""
    if connection.pragma("user_version") >= max(MIGRATIONS):
        return
    if connection.readonly("main"):
        raise DatabaseError(f"{path} is of an older version and cannot be written: copy it first")
    connection.execute("BEGIN IMMEDIATE")
    with _committing(connection):
        version = connection.pragma("user_version")  # another process may have been quicker
        if not version:  # an empty file may have been made by something else
            make_private(path)
        upgrade(connection)
        if 0 < version < max(MIGRATIONS):
            with contextlib.closing(open_connection(path)) as source:  # it sees nothing of that yet
                copy_database(source, copy := aside(path, f"version-{version}"))
            note_copy(connection, copy)


def upgrade(connection: apsw.Connection, until: int | None = None) -> None:
    """Make the tables of an empty file, or run the migrations up to the one to version `until`."""
    version = connection.pragma("user_version")
    if not version:
        connection.execute(asset("schema.sql"))
        connection.pragma("application_id", APPLICATION_ID)
        version = FIRST_VERSION
    for number, migrate in MIGRATIONS.items():
        if version < number <= (until or number):
            migrate(connection)
            version = number
    connection.pragma("user_version", version)


# ---------------------------------------------------------------------------------------------
# Projects
#
# Which project a folder belongs to. A git repository is known by the first commit of its main
# branch, so that clones and worktrees share one memory. Any other folder gets a UUID when something
# is stored there first, in .sediment/config, which counts only while no other folder that has the
# same is recorded for it. `projects` maps the key of each place (`location`) to a project id.
# ---------------------------------------------------------------------------------------------

_GIT_ID = LazyPattern(r"[0-9a-f]{40,64}")
UUID_FORM = LazyPattern(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# A variable that a client should have filled in: ${workspaceFolder}, $PWD, %CD%.
_UNFILLED = LazyPattern(r"\$\{|(?<!\w)\$\w|%\w+%")
# How these keys begin: a git folder; a folder without a config, or with one that has the id; an id
# that became another one.
PROJECT_KEY_KINDS = ("git:", "folder:", "given:", "moved:")
KEY_FOLDER = LazyPattern(r"(?:git|folder|given):(.+?)(?:[/\\]\.git)?(?::\d+)*")
# The branches that a repository is known by: the first that is there, else what is checked out,
# which may have nothing in common with the others, as the branch of a site often has not.
_MAIN = (
    *("refs/heads/main", "refs/remotes/origin/main"),
    *("refs/heads/master", "refs/remotes/origin/master", "refs/remotes/origin/HEAD"),
)
_SILENT_GIT: set[Path] = set()  # git folders for which git did not answer in time


def is_in(path: Path, top: Path) -> bool:
    return path == top or top in path.parents


def beneath(path: Path, top: Path) -> str:
    """The path relative to a folder above it, with slashes."""
    return path.as_posix()[len(top.as_posix().rstrip("/")) + 1 :]


def find_root(folder: Path) -> Path | None:
    """The project's top folder: the nearest one upwards with .sediment/ or .git, else the folder
    itself; None for the home folder and /."""
    folder = real_path(folder)
    barred = {Path(folder.anchor), real_path(home() or Path(folder.anchor))}
    for candidate in [folder, *folder.parents][:100]:
        if candidate in barred:
            break
        # Not Path's own methods, which raise where access is denied.
        if os.path.isdir(candidate / ".sediment") or os.path.exists(candidate / ".git"):
            return candidate
    return None if folder in barred else folder


def _path_text(path: Path) -> str:
    """A path as text for the database, which takes only Unicode."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def config_id(root: Path) -> str | None:
    """The project id in a folder's .sediment/config; only a UUID counts."""
    id = read_json(root / ".sediment" / "config").get("project_id")
    return id if isinstance(id, str) and UUID_FORM.fullmatch(id) else None


def _is_missing(path: Path) -> bool:
    """Whether a path does not exist, and is not only in a folder that may not be entered."""
    try:
        return not path.lstat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)


def git_folders(root: Path) -> tuple[Path, Path] | None:
    """A checkout's own git folder, and the one that all its worktrees share; None outside git."""
    own = root / ".git"
    with contextlib.suppress(OSError, ValueError):
        if os.path.isfile(own):  # a worktree or submodule: "gitdir: PATH"
            own = root / plain_text(own).removeprefix("gitdir:").strip()
        if os.path.isfile(own / "HEAD"):
            return own, real_path(own / plain_text(own / "commondir").strip())
    return None


def git_id(root: Path) -> str | None:
    """The id of the main branch's root commit; "" before the first commit. None without git or the
    whole history, and where git did not answer in time."""
    folders = git_folders(root)
    if folders is None or os.path.exists(folders[1] / "shallow") or folders[1] in _SILENT_GIT:
        return None
    try:
        lines = _git(folders[0], "for-each-ref", "--format=%(refname) %(objectname)", *_MAIN)
        heads = dict(line.split() for line in lines.stdout.splitlines())
        head = next((heads[ref] for ref in _MAIN if ref in heads), "HEAD")
        if _git(folders[0], "rev-parse", "--verify", "--quiet", head).returncode == 1:
            return ""
        # Along first parents: a history merged in, however old, must not rename the project.
        done = _git(folders[0], "rev-list", "--first-parent", "--max-parents=0", head)
    except subprocess.TimeoutExpired:
        _SILENT_GIT.add(folders[1])
        return None
    except (OSError, ValueError):
        return None
    return done.stdout.strip() if _GIT_ID.fullmatch(done.stdout.strip()) else None


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run git on a git folder, which may come from anybody: it fetches nothing, whatever the
    configuration says, and these commands start no other program."""
    # In a git hook, GIT_DIR and others name the hook's repository, whatever the folder.
    env = environment(left_out="GIT_") | {"GIT_DIR": str(folder), "GIT_CONFIG_GLOBAL": os.devnull}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    options |= no_window()
    # Not in the checkout, since PATH may have "." in it.
    return subprocess.run(["git", *words], cwd=folder, env=env, timeout=GIT_TIMEOUT, **options)


def _folder_exists(folder: Path | None) -> bool:
    """Whether a folder, or the working folder (None), is there."""
    with contextlib.suppress(OSError):
        return os.path.isdir(folder or Path.cwd())
    return False


def _made_at(repository: Path) -> str:
    """INODE:TIME of a git folder, which tells it from a later one at the same path. The time is
    of a file that git writes when it makes a repository."""
    for name in ("description", "config"):
        with contextlib.suppress(OSError):
            return f"{repository.stat().st_ino}:{(repository / name).stat().st_mtime_ns}"
    return str(repository.stat().st_ino)


def _git_key(repository: Path) -> str:
    return f"git:{_path_text(repository)}:{_made_at(repository)}"


def check_project(given: object) -> str:
    """The id of a project as given; InvalidInput for what --project would take for a folder."""
    id = check_id(given)
    if id[0] in "/.~" or id[-1] in ("/", os.sep):
        advice = "give its id, which `stats` tells there"
        raise InvalidInput(f"the project {shown_value(id)} is a folder: {advice}")
    return id


def project_option(id: str) -> str:
    """What a command needs to reach a project from anywhere, as it is typed in the shell."""
    return f"--project {shell_line([id])}"


class Projects:
    """Resolves a folder or a given name to a project id, and records what it found."""

    def __init__(self, database: Database, given: str | None, folder: Path | None) -> None:
        self.database = database
        if given and _UNFILLED.search(given):  # or all folders of that client would be one project
            raise InvalidInput(f"the project is {given}: your client has not filled that in")
        # With a slash, or . or ~ in front, the given name is a folder, which must exist.
        is_folder = given is not None and ("/" in given or os.sep in given or given[0] in ".~")
        self.given = None if is_folder else given
        self.folder = expand_home(given) if given and is_folder else folder
        self._named = given if is_folder else None
        self._last: str | None = None

    @property
    def root(self) -> Path | None:
        """The project's folder; None when it was given by id, and in the home folder and /."""
        if self.given is not None:
            return None
        if self._named and self.folder and not self.folder.is_dir():
            raise InvalidInput(f"the project folder {self._named} does not exist")
        with contextlib.suppress(OSError):  # the working folder was deleted
            return find_root(self.folder or Path.cwd())
        return None

    @property
    def top(self) -> Path:
        """The folder that shown paths are relative to: the project's, else the working one."""
        with contextlib.suppress(OSError):  # it was deleted
            return real_path(self.root or Path.cwd())
        return Path("/")

    def folders(self) -> Iterator[str]:
        """The folders that are known: the working one, the project's, and the recorded ones."""
        with contextlib.suppress(OSError):  # the working folder was deleted
            yield os.path.abspath(self.folder or ".")
        yield str(self.top)
        for (location,) in self.database.rows("SELECT location FROM projects"):
            if found := KEY_FOLDER.fullmatch(location):
                yield found[1]

    def shown(self, path: str | Path) -> str:
        """A path as people read it: relative to the project's folder, if it is in there."""
        full, top = Path(path), self.top
        return (beneath(full, top) or ".") if is_in(full, top) else str(path)

    def is_foreign(self, row: dict[str, Any]) -> bool:
        return row["project_id"] not in (None, self.current())

    def option(self) -> str:
        """ " --project ID" if the project was named, for commands to copy; else nothing, since to
        find the working folder's project may take git time."""
        is_named = self.given is not None or self._named is not None
        project = self.current() if is_named else None
        return f" {project_option(project)}" if project else ""

    def nowhere(self) -> str:
        """Why there is no project here."""
        if self.folder is None and not _folder_exists(None):
            return "the working folder is gone"
        return "the home folder and / are none"

    def doubt(self) -> str:
        """A remark if the given id is new here and also the name of a folder; else ""."""
        if self.given is None or not os.path.isdir(self.given) or self._has_items(self.given):
            return ""
        return f" (a new project; the folder is ./{self.given}, with a slash)"

    def current(self, create: bool = False) -> str | None:
        """The project id; None when there is none (yet). With `create` a folder gets one: only that
        writes, .sediment/config or a record."""
        if self.given is not None:
            if create:
                refuse_credential("project", self.given)
            return check_id(self.given)
        root = self.root
        if root is None:  # where a server's folder was deleted, its project stays
            return None if _folder_exists(self.folder) else self._last
        self._last = self._id_of_root(root, create)
        return self._last

    def _id_of_root(self, root: Path, create: bool, in_folder: bool = True) -> str | None:
        """The id of a folder. With `create` a new one gets a record and, with `in_folder`, a
        config."""
        git_project = self._git_project(root, create)  # "" in a repository without a commit
        known = self._known(root, git_project)
        if git_project and known and self._is_recorded(root, known):
            return self._moved(root, known, git_project, create)
        if git_project and not (known and self._has_items(known)):
            return git_project
        if known is None:
            return self._invent(root, git_project, in_folder) if create else None
        if create and not git_project:
            self._keep(root, known, in_folder and git_project is None)
        return known

    def _known(self, root: Path, git_project: str | None) -> str | None:
        """The id of a folder by its config or its record. A record with memories goes before what
        another database has written into the config since."""
        configured, place = self._configured(root, git_project), _path_text(root)
        recorded = self._recorded(f"folder:{place}")
        if recorded and (configured is None or self._has_items(recorded)):
            return recorded
        if configured or _is_missing(root / ".sediment" / "config"):
            return configured
        return self._recorded(f"given:{place}")  # the config was emptied, or cannot be read

    def _keep(self, root: Path, project: str, in_folder: bool) -> None:
        """Record a folder's id, and write it into a config that has none: it was emptied, or a
        conversation came before the first memory."""
        if in_folder and config_id(root) is None:
            self._write_config(root, project)
        if not self._is_recorded(root, project) or self._recorded(f"folder:{_path_text(root)}"):
            with self.database.transaction() as connection:
                self._record(connection, root, project)

    def _record(self, connection: apsw.Connection, root: Path, project: str) -> None:
        """Note a folder's id, and whether its config has it."""
        has_config, place = config_id(root) == project, _path_text(root)
        if has_config:
            connection.execute("DELETE FROM projects WHERE location = ?", (f"folder:{place}",))
        row = (f"{'given' if has_config else 'folder'}:{place}", project)
        connection.execute("INSERT OR REPLACE INTO projects VALUES(?, ?)", row)

    def of_folder(self, folder: str) -> str | None:
        """The project of a folder that somebody worked in, and that may be gone; a new one gets a
        record. Nothing is written into the folder."""
        path = Path(folder)
        projects = Projects(self.database, None, path)
        root = projects.root if os.path.isdir(path) else path
        return projects._id_of_root(root, True, False) if root and path.is_absolute() else None

    def is_other_checkout(self, folder: Path) -> bool:
        """Whether a folder is in another checkout of this project's repository."""
        here, other = self.root, find_root(folder)
        if here is None or other is None or real_path(here) == other:
            return False
        return self._git_project(other, False) in {self.current()} - {None}

    def _configured(self, root: Path, git_project: str | None) -> str | None:
        """The id in a folder's config, unless it is another folder's."""
        id = config_id(root)
        if id is None or self._is_recorded(root, id):
            return id
        sql = "SELECT location FROM projects WHERE project_id = ? OR location = ?"
        rows = self.database.rows(sql, id, f"moved:{id}")
        return None if any(self._is_anothers(id, row[0], root, git_project) for row in rows) else id

    def _is_anothers(self, id: str, key: str, root: Path, git_project: str | None) -> bool:
        """Whether a record of an id says that another folder has it, so that this one may not."""
        kind, _, place = key.partition(":")
        other = Path(place)
        if kind != "given":  # the id became a repository's, or is in no config
            return kind == "moved" or os.path.isdir(other)
        if config_id(other) != id or os.path.samefile(other, root):
            return False
        return not git_project or self._git_project(other, False) != git_project

    def _is_recorded(self, root: Path, project: str) -> bool:
        """Whether the id is recorded for this folder: a config may come from anybody."""
        place = _path_text(root)
        return project in (self._recorded(f"given:{place}"), self._recorded(f"folder:{place}"))

    def _git_project(self, root: Path, create: bool) -> str | None:
        """The repository's id by its record, else as git tells it; "" before the first commit, None
        outside git."""
        if (folders := git_folders(root)) is None:
            return None
        if project := self._recorded(key := _git_key(folders[1])):
            return project
        project = self._moved_here(_made_at(folders[1])) or git_id(root)
        if project and create:
            self._write_record(key, project)
        return project

    def start_anew(self) -> str:
        """Give this clone an id of its own, since it shares one with all clones of its root commit.
        Raises InvalidInput if there is nothing to part."""
        root = self.root
        folders = git_folders(root) if root else None
        if not folders or not _GIT_ID.fullmatch(self.current() or ""):
            raise InvalidInput(
                f"{root or 'this'} shares its project with no clone: nothing to part"
            )
        project = new_id()
        self._write_record(_git_key(folders[1]), project)
        return project

    def other_clones(self) -> list[str]:
        """The folders of other repositories that are known to have this project."""
        sql = "SELECT location FROM projects WHERE location GLOB 'git:*' AND project_id = ?"
        keys = [key for (key,) in self.database.rows(sql, self.current())]
        folders = git_folders(self.root) if self.root else None
        own = _git_key(folders[1]) if folders else ""
        found = (KEY_FOLDER.fullmatch(key) for key in keys if key != own)
        return [match[1] for match in found if match and os.path.isdir(match[1])]

    def _moved_here(self, made: str) -> str | None:
        """The id of a repository, known by when it was made, that is gone from its recorded
        path."""
        sql = "SELECT location, project_id FROM projects WHERE location LIKE 'git:%:' || ?"
        for key, id in self.database.rows(sql, made):
            if not os.path.exists(key[len("git:") : -len(made) - 1]):
                return id
        return None

    def _recorded(self, key: str) -> str | None:
        return self.database.value("SELECT project_id FROM projects WHERE location = ?", key)

    def _write_record(self, key: str, project: str) -> None:
        with self.database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO projects VALUES(?, ?)", (key, project))

    def _has_items(self, project: str) -> bool:
        sql = "SELECT EXISTS(SELECT 1 FROM items WHERE project_id = ?)"
        return bool(self.database.value(sql, project))

    def _moved(self, root: Path, old: str, new: str, create: bool) -> str:
        """The id of a folder that had one from here and is now a repository with a commit: its
        memories move to the repository's id. Without `create` it is only read."""
        if not create:
            return new if self._has_items(new) else old
        with self.database.transaction() as connection:
            if self._is_recorded(root, old):  # else another process was quicker
                move_project(connection, old, new)
                connection.execute("DELETE FROM projects WHERE project_id = ?", (old,))
                connection.execute("INSERT INTO projects VALUES(?, ?)", (f"moved:{old}", new))
        return new

    def _invent(self, root: Path, git_project: str | None, in_folder: bool) -> str:
        """A new UUID, in the folder's config, or in a record if that must not be written."""
        with self.database.transaction() as connection:  # one process at a time
            if known := self._known(root, git_project):
                return known  # another process was quicker
            project = new_id()
            if in_folder and git_project is None:
                self._write_config(root, project)
            self._record(connection, root, project)
        return project

    def _write_config(self, root: Path, project: str) -> None:
        """Write a folder's .sediment/config, where that can be."""
        config, folder = {"project_id": project, "source": "uuid"}, root / ".sediment"
        with contextlib.suppress(OSError):
            if not folder.is_symlink():  # which may lead to another file of that name
                folder.mkdir(exist_ok=True)
                write_atomically(folder / "config", json.dumps(config, indent=2) + "\n")


def place_to_write(given: str | Path, root: Path | None) -> Path:
    """The path of a file to write, with links followed. A checkout may come from anybody, so no
    link may lead out of the project at `root`, and nothing into a .git. Raises InvalidInput."""
    path, named = whole_path(given), Path(os.path.abspath(absolute_path(given)))
    above = map(whole_path, named.parents)
    if root and not is_in(path, root) and any(is_in(folder, root) for folder in above):
        raise InvalidInput(f"{given} is a link out of the project: left as it is")
    if ".git" in map(str.lower, path.parts):
        raise InvalidInput(
            f"{given} is {'a link into' if path != named else 'in'} .git: left as it is"
        )
    if path.is_symlink():
        raise InvalidInput(f"{given} is a link that leads in a circle: left as it is")
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise InvalidInput(f"{given} is no plain file: left as it is")
    return path


# ---------------------------------------------------------------------------------------------
# Graph and access
#
# What is known about memories beyond their words: which are alike, which answered one question
# together, which replaced which, how often each was shown or confirmed, and its history. An item
# that is hidden keeps its own edges and counts, so that undo finds them as they were.
# ---------------------------------------------------------------------------------------------

RELATED, SUPERSEDES, CO_ACCESSED = "related", "supersedes", "co_accessed"
_EDGE = "from_id = ? AND to_id = ? AND edge_type = ?"
_HASH = 8  # bytes of a question's hash
APART = {"apart": 1}  # the detail of an undo that left both live


class Link(NamedTuple):
    """An edge as seen from one of its ends, `id`."""

    id: str
    other: str
    kind: str
    label: str
    strength: float
    count: int


def enqueue(connection: apsw.Connection, id: str, others: Iterable[tuple[str, float]]) -> None:
    """Queue an item with each of the others, (id, cosine), for consolidation."""
    now = int(time.time())
    connection.executemany(
        "INSERT OR IGNORE INTO consolidation_queue(item_id_a, item_id_b, similarity, created_at)"
        " SELECT min(a.id, b.id), max(a.id, b.id), ?3, ?4 FROM items a, items b"
        " WHERE a.id = ?1 AND b.id = ?2",
        [(id, other, similarity, now) for other, similarity in others],
    )


def link(
    connection: apsw.Connection, a: str, b: str, kind: str, strength: float, label: str = ""
) -> None:
    """Add an edge from a to b, unless they have one of this kind."""
    connection.execute(
        "INSERT OR IGNORE INTO graph_edges"
        "(from_id, to_id, edge_type, strength, rel_type, created_at) VALUES(?, ?, ?, ?, ?, ?)",
        (a, b, kind, strength, label, int(time.time())),
    )


class Shown(NamedTuple):
    """What one answer showed: a hash of its question, the ids of its results, and those that fit
    the question and are of this project, which are linked."""

    question: bytes
    ids: list[str]
    fitting: list[str]


def shown_by(query: str, answer: dict[str, Any]) -> Shown:
    """What of an answer is counted as shown; results that hardly answer are not."""
    rows = [row for row in answer["results"] if row["similarity"] >= COUNTED_SIMILARITY]
    fitting = [row["id"] for row in rows if not row.keys() & {"unrelated", "cross_project"}]
    words = " ".join(re.findall(r"\w+", query.lower())) or query
    return Shown(sha256(words.encode())[:_HASH], [row["id"] for row in rows], fitting)


def count_access(connection: apsw.Connection, shown: Shown) -> None:
    """Count that items were shown, and that the best of them answered a question together."""
    pairs = combinations(shown.fitting[:CO_ACCESS_FIRST], 2)
    facts = {
        "ids": json.dumps(shown.ids),
        "pairs": json.dumps([sorted(pair) for pair in pairs]),
        "question": shown.question,
        "most": QUESTIONS_KEPT * _HASH,
        "now": int(time.time()),
    }
    connection.execute(asset("sql/count_shown.sql"), facts)


def count_validation(connection: apsw.Connection, id: str) -> None:
    add_counts(connection, id, 0, 1)


def links_of(database: Database, ids: Iterable[str], project: str | None) -> list[Link]:
    """The strong or often counted edges from these items to live ones in reach, best first."""
    # With a bound limit SQLite would plan this anew each time.
    sql = f"{asset('sql/links.sql')} LIMIT {LINKS_MAX}"
    values = json.dumps(list(ids)), LINK_STRENGTH_MIN, SUGGEST_COUNT, crosses_projects(), project
    return [Link(*row) for row in database.rows(sql, *values)]


def carry_edges(connection: apsw.Connection, old: str, new: str) -> list[Any]:
    """Copy an item's edges to the one that replaces it and has none of the kind to that neighbour.
    Returns what that added, for `take_back_edges`: (from, to, kind, count)."""
    return fetch(connection, asset("sql/carry_edges.sql"), old, new)


def take_back_edges(connection: apsw.Connection, added: list[list[Any]]) -> None:
    """Undo `carry_edges`; an edge with which something was counted since then stays."""
    connection.executemany(f"DELETE FROM graph_edges WHERE {_EDGE} AND count = ?", added)


def carry_counts(connection: apsw.Connection, old: str, new: str) -> list[int]:
    """Add an item's accesses and validations to another's; returns how many of each."""
    sql = "SELECT access_count, validation_count FROM access_log WHERE item_id = ?"
    rows = fetch(connection, sql, old)
    accesses, validations = rows[0] if rows else (0, 0)
    add_counts(connection, new, accesses, validations)
    return [accesses, validations]


def add_counts(connection: apsw.Connection, id: str, accesses: int, validations: int) -> None:
    """Add to an item's counts, or take from them; none falls below 0."""
    connection.execute(
        "INSERT INTO access_log(item_id, created_at, access_count, validation_count)"
        " SELECT id, created_at, max(0, ?2), max(0, ?3) FROM items WHERE id = ?1"
        " ON CONFLICT(item_id) DO UPDATE SET access_count = max(0, access_count + ?2),"
        " validation_count = max(0, validation_count + ?3)",
        (id, accesses, validations),
    )


def add_history(
    connection: apsw.Connection, action: str, id: str, other: str | None = None, detail: Any = None
) -> None:
    """Write a row of history: what happened to an item, and which other one had part in it."""
    connection.execute(
        "INSERT INTO history(action, item_id, other_id, at, detail) VALUES(?, ?, ?, ?, ?)",
        (action, id, other, int(time.time()), to_json(detail or {})),
    )


# ---------------------------------------------------------------------------------------------
# Items
#
# The rows of one memory. Only `insert_items`, `end_item`, `prune_item` and `erase_item` add, end or
# erase one, so that its text, chunks, vectors, words and graph node always agree.
# ---------------------------------------------------------------------------------------------


def short_hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hex()[:32]


class Item(NamedTuple):
    """A memory ready to be written: its chunks, and a vector for each or none at all."""

    id: str
    content: str
    content_type: str
    project_id: str | None
    created_at: int
    chunks: list[Chunk]
    vectors: list[bytes]
    ended_at: int | None = None
    ended_by: str | None = None
    successor: str | None = None
    file: int | None = None  # the file of which it is a part, and from which line to which
    first_line: int | None = None
    last_line: int | None = None
    stored_at: int | None = None  # None: now


def same_text(connection: apsw.Connection, content: str, project: str | None) -> str | None:
    """The id of the live item of a project (or global) that has this text."""
    sql = (
        # The plus keeps SQLite from scanning the project by its index instead of one hash.
        f"SELECT id, content FROM items i WHERE text_hash = ? AND {IS_MEMORY}"
        " AND +project_id IS ? ORDER BY created_at DESC, seq DESC"
    )
    text = normalized(content)
    rows = fetch(connection, sql, text_hash(content), project)
    return next((id for id, stored in rows if normalized(stored) == text), None)


def insert_item(connection: apsw.Connection, item: Item) -> bool:
    """Write an item and its rows in other tables; False when its id is taken."""
    return bool(insert_items(connection, [item]))


def insert_items(connection: apsw.Connection, items: Iterable[Item]) -> list[str]:
    """Write items whose id is free and their rows in other tables; returns their ids. Words come
    last: FTS5 flushes its memory before each statement that can be rolled back alone."""
    written, words = list[tuple[str, str, int]](), list[tuple[int, str, str]]()
    for item in items:
        if (seq := _insert_row(connection, item)) is not None:
            words += _insert_chunks(connection, seq, item)
            written.append((item.id, item.project_id or "", item.created_at))
    connection.executemany("INSERT OR IGNORE INTO graph_nodes VALUES(?, ?, ?)", written)
    ids = [id for id, *_ in written]
    connection.execute(asset("sql/edges_of_ends.sql"), {"ids": json.dumps(ids)})
    connection.executemany("INSERT INTO words(rowid, text, context) VALUES(?, ?, ?)", words)
    return ids


def _insert_row(connection: apsw.Connection, item: Item) -> int | None:
    """Write an item's own row and return its `seq`; None when its id is taken."""
    stored_at = present() if item.stored_at is None else item.stored_at
    row = item._asdict() | {"stored_at": stored_at, "text_hash": text_hash(item.content)}
    del row["chunks"], row["vectors"]
    return connection.execute(
        f"INSERT INTO items({', '.join(row)}) VALUES({', '.join('?' * len(row))})"
        " ON CONFLICT(id) DO NOTHING RETURNING seq",
        tuple(row.values()),
    ).get


def _insert_chunks(
    connection: apsw.Connection, seq: int, item: Item
) -> Iterator[tuple[int, str, str]]:
    """Write an item's chunks and their vectors, and yield their rows for the word index."""
    for position, chunk in enumerate(item.chunks):
        id: int = connection.execute(
            'INSERT INTO chunks(item, position, start, "end", context) VALUES(?, ?, ?, ?, ?)'
            " RETURNING id",
            (seq, position, chunk.start, chunk.end, chunk.context),
        ).get
        if item.vectors:
            connection.execute("INSERT INTO vectors VALUES(?, ?)", (id, item.vectors[position]))
        else:
            connection.execute("INSERT INTO pending VALUES(?)", (id,))
        yield id, spaced(item.content[chunk.start : chunk.end]), spaced(chunk.context)


def end_item(
    connection: apsw.Connection,
    old: str,
    successor: str,
    by: str,
    at: int | None = None,
    *,
    beside: bool = False,
    was: tuple[str, int] | None = None,
    decided: bool = True,
) -> None:
    """Hide an item behind its successor, at the time `at` (None: now); nothing of it is lost.

    A successor that says the same (`by` is "merge" or "repeat") gets a copy of its edges and
    counts, which history records. `beside`: the successor was live before, and stays if this is
    undone. `was`: why and when the successor had ended before, for a redo. What is `decided` here,
    and not on another machine, gives the successor the item's tags, too."""
    now = int(time.time())
    connection.execute(
        "UPDATE items SET ended_at = max(created_at, ?), ended_by = ?, successor = ? WHERE id = ?",
        (now if at is None else at, by, successor, old),
    )
    connection.execute(
        "INSERT OR IGNORE INTO graph_edges"
        "(from_id, to_id, edge_type, strength, last_at, created_at)"
        " VALUES(?, ?, 'supersedes', 1.0, ?, ?)",
        (successor, old, now, now),
    )
    if decided and by != "undo":
        connection.execute(_CARRY_TAGS, (old, successor))
    added: dict[str, Any] = {"was": was} if was else {}
    if by in ("merge", "repeat"):  # a changed fact gets edges and counts of its own
        added["edges"] = carry_edges(connection, old, successor)
        added["counts"] = carry_counts(connection, old, successor)
    add_history(connection, by, successor, old, added | ({"beside": 1} if beside else {}))


_CARRY_TAGS = (
    "INSERT OR IGNORE INTO marks SELECT n.seq, m.name, m.value FROM items o"
    f" JOIN marks m ON m.item = o.seq AND m.name <> '{EXPIRY}' JOIN items n ON n.id = ?2"
    " WHERE o.id = ?1"
)


def set_marks(connection: apsw.Connection, id: str, marks: Mapping[str, int]) -> None:
    """Give a memory tags (1, or 0 to take one away) and an expiration time (unix seconds,
    or 0 for none)."""
    for name, value in marks.items():
        sql = "INSERT OR REPLACE INTO marks SELECT seq, ?2, ?3 FROM items WHERE id = ?1 AND ?3"
        connection.execute(sql, (id, name, value))
        sql = "DELETE FROM marks WHERE item = (SELECT seq FROM items WHERE id = ?1) AND name = ?2"
        connection.execute(f"{sql} AND NOT ?3", (id, name, value))
    if EXPIRY in marks:
        connection.execute("INSERT INTO changes(item) SELECT seq FROM items WHERE id = ?", (id,))


def marks_given(tags: object, expires: object) -> dict[str, int]:
    """The marks of a memory that gets these tags, and expires then or never."""
    moment = 0 if expires is None else parse_expiry(expires)
    return {EXPIRY: moment} | dict.fromkeys(check_tags(tags), 1)


def ended_when(old: int, new: int) -> int | None:
    """When an item created at `old` ended, by one created at `new`; None means now."""
    return new if new > old else None


# SQL: 1 where the successor of an item `i` was live beside it before, else NULL.
STOOD_BESIDE = (
    "(SELECT h.detail ->> 'beside' FROM history h WHERE h.other_id = i.id"
    " AND h.item_id = i.successor AND h.action = i.ended_by ORDER BY h.id DESC LIMIT 1)"
)


def restore_item(connection: apsw.Connection, old: str) -> tuple[str, str | None]:
    """Undo `end_item`. Returns why the item had ended, and the id of its successor if that is still
    there."""
    sql = (
        "SELECT s.id, i.ended_by, h.detail FROM items i"
        " LEFT JOIN items s ON s.id = i.successor"
        " LEFT JOIN history h ON h.other_id = i.id AND h.item_id = s.id AND h.action = i.ended_by"
        " WHERE i.id = ? ORDER BY h.id DESC LIMIT 1"
    )
    successor, reason, detail = fetch(connection, sql, old)[0]
    connection.execute(
        "UPDATE items SET ended_at = NULL, ended_by = NULL, successor = NULL WHERE id = ?", (old,)
    )
    edge = successor, old, SUPERSEDES
    connection.execute(f"DELETE FROM graph_edges WHERE {_EDGE}", edge)
    if detail:  # an imported item brings no event
        added = json.loads(detail)
        take_back_edges(connection, added.get("edges", []))
        accesses, validations = added.get("counts", [0, 0])
        add_counts(connection, successor, -accesses, -validations)
    return reason or "", successor


def place_item(connection: apsw.Connection, id: str, project: str | None) -> None:
    """Move an item to a project, or make it global (None)."""
    for table, value in (("items", project), ("graph_nodes", project or "")):
        sql = f"UPDATE {table} SET project_id = ?1 WHERE id = ?2 AND project_id IS NOT ?1"
        connection.execute(sql, (value, id))


def prune_item(connection: apsw.Connection, id: str) -> None:
    """Hide a live item without a successor; `restore_item` brings it back."""
    connection.execute(
        "UPDATE items SET ended_at = max(created_at, ?), ended_by = ? WHERE id = ?",
        (int(time.time()), PRUNED, id),
    )
    add_history(connection, PRUNED, id)


def texts_of(
    connection: apsw.Connection, ids: Sequence[str], sessions: Sequence[str] = ()
) -> list[str]:
    """The texts of items, of the versions hidden behind them, and of whole sessions."""
    sql = (
        "WITH RECURSIVE lineage(id) AS (SELECT value FROM json_each(?1) UNION"
        " SELECT items.id FROM items JOIN lineage ON items.successor = lineage.id)"
        " SELECT content FROM items JOIN lineage USING (id) UNION ALL SELECT content FROM items"
        " WHERE file IN (SELECT id FROM files WHERE path IN (SELECT value FROM json_each(?2)))"
    )
    return [text for (text,) in fetch(connection, sql, json.dumps(ids), json.dumps(sessions))]


def erase_item(connection: apsw.Connection, id: str, *, alone: bool = False) -> int:
    """Remove an item, and unless `alone` the versions hidden behind it, from every table; returns
    how many that were."""
    sql = (
        "WITH RECURSIVE lineage(id) AS (SELECT ?1 UNION"
        " SELECT items.id FROM items JOIN lineage ON items.successor = lineage.id AND NOT ?2)"
        " SELECT items.seq, items.id, items.content FROM items JOIN lineage USING (id)"
    )
    doomed = fetch(connection, sql, id, alone)
    for seq, doomed_id, content in doomed:
        _erase_words(connection, seq, content)
        connection.execute("DELETE FROM items WHERE seq = ?", (seq,))
        for table, column in MENTIONS:
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (doomed_id,))
    return len(doomed)


# Where an item's id stands outside its own row.
MENTIONS = (
    *(("graph_nodes", "id"), ("graph_edges", "from_id"), ("graph_edges", "to_id")),
    *(("consolidation_queue", "item_id_a"), ("consolidation_queue", "item_id_b")),
    *(
        ("history", "item_id"),
        ("history", "other_id"),
        ("reviews", "old_id"),
        ("reviews", "new_id"),
    ),
    *(("access_log", "item_id"), ("shown", "item_id")),
)


def _erase_words(connection: apsw.Connection, item: int, content: str) -> None:
    """Take an item out of the word index, which keeps no texts: it needs them again to do so."""
    chunks = fetch(connection, 'SELECT id, start, "end", context FROM chunks WHERE item = ?', item)
    connection.executemany(
        "INSERT INTO words(words, rowid, text, context) VALUES('delete', ?, ?, ?)",
        [(id, spaced(content[start:end]), spaced(context)) for id, start, end, context in chunks],
    )


# The columns of an item that callers see; `_item` makes a dict of them.
_COLUMNS = (
    *("seq", "id", "content", "content_type", "project_id", "created_at"),
    *("ended_at", "ended_by", "successor", "first_line", "last_line"),
)
ITEM_COLUMNS = ", ".join(f"i.{column}" for column in _COLUMNS) + (
    ", (SELECT path FROM files f WHERE f.id = i.file)"
    ", (SELECT count(*) FROM chunks c WHERE c.item = i.seq)"
    ", (SELECT json_group_object(name, value) FROM marks m WHERE m.item = i.seq)"
)


def item_from(row: tuple[Any, ...]) -> dict[str, Any]:
    """An item as a dict; one that has expired is as a pruned one."""
    item = dict(zip((*_COLUMNS, "path", "chunks", "marks"), row, strict=True))
    marks = item["marks"] = json.loads(item["marks"])
    if item["ended_at"] is None and marks.get(EXPIRY, math.inf) <= time.time():
        item |= {"ended_at": marks[EXPIRY], "ended_by": PRUNED}
    return item


def find_item(database: Database, id: str) -> dict[str, Any] | None:
    rows = database.rows(f"SELECT {ITEM_COLUMNS} FROM items i WHERE i.id = ?", id)
    return item_from(rows[0]) if rows else None


def shared_facts(row: dict[str, Any]) -> dict[str, Any]:
    """What list, recall, get, history and export all return of an item, and import takes."""
    facts = {"id": row["id"], "content": row["content"], **with_time("created", row["created_at"])}
    facts |= {"scope": "project" if row["project_id"] else "global", "project": row["project_id"]}
    if row["ended_at"] is not None:
        facts |= with_time("ended", row["ended_at"])
        facts |= {"ended_by": row["ended_by"], "successor": row["successor"]}
    if marks := row["marks"]:
        facts["tags"] = sorted(marks.keys() - {EXPIRY}) or None
        facts |= with_time("expires", marks[EXPIRY]) if EXPIRY in marks else {}
    return {name: value for name, value in facts.items() if value is not None}


def listed_facts(row: dict[str, Any]) -> dict[str, Any]:
    return shared_facts(row) | ({"chunked": True} if row["chunks"] > 1 else {})


def with_time(name: str, seconds: int) -> dict[str, Any]:
    return {name: iso_time(seconds), f"{name}_at": seconds}


def stored_among(database: Database, ids: Iterable[str]) -> set[str]:
    """The ids that stored memories have: an import may take ids of parts of files."""
    sql = "SELECT id FROM items WHERE file IS NULL AND id IN (SELECT value FROM json_each(?))"
    return {id for (id,) in database.rows(sql, json.dumps(list(ids)))}


def authors_by_id(database: Database, ids: Iterable[str]) -> dict[str, dict[str, str]]:
    """By id, who on another machine stored a memory, or ended it: {author?, ended_from?}."""
    if not is_synced(database):
        return {}
    rows = database.rows(asset("schema/sync_authors.sql"), json.dumps(list(ids)))
    found = {id: {"author": author, "ended_from": by} for id, author, by in rows}
    return {id: {key: who for key, who in facts.items() if who} for id, facts in found.items()}


def source_of(row: dict[str, Any], projects: Projects) -> str:
    """Where a part of a file stands, as path:start-end; a turn, as client:session#turn."""
    if row["content_type"] == CONVERSATION:
        return f"{row['path']}#{row['first_line']}"
    return f"{projects.shown(row['path'])}:{row['first_line']}-{row['last_line']}"


def source_fields(row: dict[str, Any], projects: Projects) -> dict[str, str]:
    """{source} of a part of a file or conversation, else nothing; import skips rows with one."""
    return {} if row["path"] is None else {"source": source_of(row, projects)}


def items_as_returned(projects: Projects, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What list and get return of each item: facts, source, and the author elsewhere."""
    by_id = authors_by_id(projects.database, (row["id"] for row in rows))
    return [
        listed_facts(row)
        | source_fields(row, projects)
        | by_id.get(row["id"], {})
        | citations_gone(projects, row)
        for row in rows
    ]


_MAY_CITE = LazyPattern(r"\w/[\w./-]*\.\w|\.\w{1,8}:\d")


def citations_gone(projects: Projects, row: dict[str, Any]) -> dict[str, list[str]]:
    """{cites_gone} of a memory that names files or lines of its project, which are no longer so. A
    client for one project alone learns nothing of this machine's files."""
    is_stored = row["path"] is None and row["project_id"] is not None
    if is_stored and not kept_to_one_project() and _MAY_CITE.search(row["content"]):
        gone = extension("citations").gone_of(projects, row)
        return {"cites_gone": gone} if gone else {}
    return {}


def claim_model(connection: apsw.Connection, model: Model) -> bool:
    """Whether the file's vectors are of this model; a file that has no model yet gets this one."""
    facts = {"model_name": model.name, "model_digest": model.digest, "dimension": model.dimension}
    facts |= {"model_probe": model.probe.hex()} if model.probe else {}
    if model.dimension and meta_value(connection, "model_digest") in (None, model.digest):
        rows = [(key, str(value)) for key, value in facts.items()]
        connection.executemany("INSERT OR IGNORE INTO meta VALUES(?, ?)", rows)
    digest, probe = (meta_value(connection, f"model_{name}") for name in ("digest", "probe"))
    return _is_model(model, digest, probe)


def same_model(database: Database, model: Model) -> bool:
    """Whether the file's vectors, if it has any, are of this model, as far as is known yet."""
    with database.snapshot():
        state = database.state()
        return _is_model(model, state.model_digest, state.model_probe)


def _is_model(model: Model, digest: str | None, probe: str | None) -> bool:
    """Whether a file's vectors are of this model, by its digest and a service's vector of PROBE."""
    if not (digest and probe and model.probe):
        return digest in (None, model.digest)
    before, now = (stack_vectors([(vector,)])[0] for vector in (bytes.fromhex(probe), model.probe))
    same_size = digest == model.digest and len(before) == len(now)
    return same_size and float(before @ now) >= PROBE_COSINE


OTHER_MODEL = "The vectors here are of another model: found by words alone until `reindex`."


def remark_on_vectors(database: Database, encoder: Encoder) -> str:
    """Why an answer is not as good as it could be; "" where it is."""
    if not same_model(database, encoder.model):
        return OTHER_MODEL
    return f"Found by words: {encoder.trouble}." if encoder.trouble else ""


def prepare_item(
    database: Database | None,
    encoder: Encoder,
    id: str,
    content: str,
    project: str | None,
    created: int,
) -> Item:
    """Everything that takes time, before the transaction: chunks and, of a shorter text, vectors.
    Without a database the vectors are made later."""
    encoder.begin_loading()
    chunks = split_text(content, encoder.fits)
    vectors: list[bytes] = []
    if database and len(chunks) <= INLINE_CHUNKS and same_model(database, encoder.model):
        with contextlib.suppress(ServiceError):  # later, then
            vectors = encoder.embed_all(embedding_text(content, chunk) for chunk in chunks)
        vectors = vectors if same_model(database, encoder.model) else []
    return Item(id, content, detect_type(content), project, created, chunks, vectors)


def count_pending(database: Database) -> int:
    return database.value("SELECT count(*) FROM pending")


IN_OWN_SCOPE = "(i.project_id IS NULL OR i.project_id = ?)"
_FOREIGN = "(i.project_id IS NOT NULL AND i.project_id IS NOT ?)"
_IS_TURN = f"(i.content_type = '{CONVERSATION}')"
_LIVE = "(i.ended_at IS NULL AND i.seq NOT IN past)"
_REPLACED = f"(i.successor IS NOT NULL AND i.ended_by <> 'undo' AND NOT {_IS_TURN})"
_HAS_REPLACED = "EXISTS(SELECT 1 FROM items o WHERE o.successor = i.id AND o.ended_by = 'replace')"
IS_MEMORY = f"{_LIVE} AND i.file IS NULL"  # what was stored, not what stands in a file
_MEMORY_GLOBAL = f"{IS_MEMORY} AND i.project_id IS NULL"
# Whether the date of a part of a file is from a heading or the file's name, and not its mtime.
HAS_DAY = "(f.dated OR i.created_at <> f.changed_at / 1000000000)"
_KNOWN_DAY = (
    "(i.file IS NULL OR EXISTS(SELECT 1 FROM files f WHERE f.id = i.file"
    f" AND {HAS_DAY}) AND NOT {_IS_TURN})"
)
ITEM_KINDS = {
    "memory": "i.file IS NULL",
    "file": f"i.file IS NOT NULL AND NOT {_IS_TURN}",
    "conversation": _IS_TURN,
}
_COUNTED = {  # the rows of the table items, each counted once
    "items": IS_MEMORY,
    "hidden_versions": f"NOT ({_LIVE}) AND {ITEM_KINDS['memory']}",
    "file_parts": ITEM_KINDS["file"],
    "turns": ITEM_KINDS["conversation"],
}


def count_items(connection: apsw.Connection, where: str = "true", *values: Any) -> dict[str, int]:
    """The number of items of each kind of _COUNTED, as all commands count them."""
    counts = ", ".join(f"count(*) FILTER (WHERE {kind})" for kind in _COUNTED.values())
    rows = fetch(connection, f"SELECT {counts} FROM items i WHERE {where}", *values)
    return dict(zip(_COUNTED, rows[0], strict=True))


def counts_phrase(counts: dict[str, int]) -> str:
    """Counts by name as a phrase, "2 memories, 1 turn"; zeros are left out, but for memories."""
    return ", ".join(
        number_of(count, "memory" if name == "items" else name.replace("_", " ").removesuffix("s"))
        for name, count in counts.items()
        if count or name == "items"
    )


def in_scope(scope: str, project: str | None, what: str = IS_MEMORY) -> tuple[str, tuple[Any, ...]]:
    """The SQL condition of the memories (or of what the condition `what` selects) of a project, of
    the global ones, of both, or of all projects ("everywhere"), and its parameters."""
    if scope == "global":
        return f"{what} AND i.project_id IS NULL", ()
    if scope == "everywhere" and crosses_projects():
        return what, ()
    return f"{what} AND {'i.project_id = ?' if scope == 'project' else IN_OWN_SCOPE}", (project,)


def tagged(tags: Iterable[str]) -> str:
    """The SQL condition, after others, of the items that have all of these tags."""
    has = " AND i.seq IN (SELECT item FROM marks WHERE name = '{}')"
    return "".join(map(has.format, tags))


def live_at(moment: int | None) -> str:
    """The SQL condition of the items that were live at a time, or that are now."""
    if moment is None:
        return _LIVE
    # What undo ended was never live: else two versions would be live on the same days.
    then = f"i.ended_at > {moment:d} AND i.ended_by <> 'undo'"
    past = f"SELECT item FROM marks WHERE name = '{EXPIRY}' AND value <= {moment:d}"
    live = f"(i.ended_at IS NULL OR {then}) AND i.seq NOT IN ({past})"
    return f"(i.created_at <= {moment:d} AND {live})"


def _of_period(asked: AskedTime) -> str:
    """The SQL condition of the memories and dated parts of files that are of the time asked."""
    return f"i.created_at BETWEEN {asked.start:d} AND {asked.end - 1:d} AND {_KNOWN_DAY}"


def replaced_at(moment: int | None) -> str:
    """The SQL condition of the versions that were replaced by a time, or by now."""
    if moment is None:
        return _REPLACED
    return f"({_REPLACED} AND i.created_at <= {moment:d} AND i.ended_at <= {moment:d})"


def replaced_since(start: int, end: int) -> str:
    """The SQL condition of the versions that held in the period [start, end), and that people
    replaced since; what is hidden as a repeat has a successor that says the same."""
    return f"(i.ended_by = 'replace' AND i.created_at < {end:d} AND i.ended_at > {start:d})"


# ---------------------------------------------------------------------------------------------
# Versions
#
# Which memory makes which other one obsolete, where nobody said so. A logistic model, learned from
# notes of which that is known (models/train_ranker.py), tells it of each pair by what the two share
# and how far they stand from others. `store` asks by it; a recall adds how well either answers.
# ---------------------------------------------------------------------------------------------

ENGLISH = "english"


def language_of(words: Iterable[str]) -> str:
    """The language of a text's lower-case words: the one of which most are function words; English
    where no other has more, and where these are fewer than FEWEST_COMMON."""
    counts = Counter(language for word in words for language in languages_of().get(word, ()))
    language = max(counts, key=lambda name: (counts[name], name == ENGLISH), default=ENGLISH)
    return language if counts[language] >= FEWEST_COMMON else ENGLISH


def function_words(words: Collection[str]) -> set[str]:
    """Those of a text's lower-case words that tell nothing in its language, as "für" in German;
    none of English, of which the vocabulary knows how common they are."""
    language = language_of(words)
    if language == ENGLISH:
        return set()
    return {word for word in words if language in languages_of().get(word, ())}


def idf_of(frequency: float, chunks: int) -> float:
    """The idf, in nats, of a word that so many of the chunks have (Robertson and Sparck Jones)."""
    return math.log(1 + (chunks - frequency + 0.5) / (frequency + 0.5))


@functools.lru_cache(maxsize=LEXICON_WORDS)
def _has_digit(word: str) -> bool:
    return not word.isalpha() and any(map(str.isdigit, word))


@functools.lru_cache(maxsize=LEXICON_WORDS)
def _stem_key(stem: str) -> int:
    """A number for a stem, the same in every process: its bytes, or of more than eight the first
    four and a checksum of all."""
    data = stem.encode()
    if len(data) > 8:
        data = data[:4] + zlib.crc32(data).to_bytes(4, "little")
    return int.from_bytes(data, "little", signed=True)


class TextWords(NamedTuple):
    """A text as stems and as the encoder's tokens, both in its order."""

    stems: tuple[str, ...]
    keys: Any  # int64[stems], of `_stem_key`
    idf: Any  # float[stems]: in English, of the form that the word has here
    figures: Any  # bool[stems]: which have digits
    beginning: Any  # int64[4]: the first four keys, 0 where there is none
    tokens: Any  # int32[tokens]: first token 0, which is of no word
    token_idf: Any  # float[tokens]: each token's share of its word's idf
    english: bool  # or in a language that cannot be told


def _text_words(
    stem: Callable[[str], list[tuple[str, str]]], look_up: Callable[..., Any], text: str
) -> TextWords:
    """A text as it is compared with others. It does not depend on what was read before, so that
    every process answers a question alike."""
    found = stem(text)
    common = function_words([form for _, form in found])
    words = [look_up(word, word[1] in common) for word in found]
    stems, keys, idf, tokens = zip(*words, strict=True) if words else ((),) * 4
    token_idf = [nats / len(ids) for _, _, nats, ids in words for _ in ids]
    return TextWords(
        stems,
        numpy.array(keys, numpy.int64),
        numpy.array(idf, float),
        numpy.array([*map(_has_digit, stems)], bool),
        numpy.array((*keys[:4], 0, 0, 0, 0)[:4], numpy.int64),
        numpy.array((0, *itertools.chain(*tokens)), numpy.int32),
        numpy.array((0, *token_idf), numpy.float32),
        not common,
    )


def _look_up(
    chunk_share: Callable[[str], float],
    tokens: Callable[[str], list[int]],
    word: tuple[str, str],
    common: bool,
) -> tuple[str, int, float, list[int]]:
    """(stem, key, idf, tokens) of a word given as (stem, form), and whether it is a
    function word where it stands."""
    stem, form = word
    share = COMMON_SHARE if common else chunk_share(form)
    idf = idf_of(ENGLISH_CHUNKS * share, ENGLISH_CHUNKS)
    return stem, _stem_key(stem), idf, tokens(form)


class Lexicon:
    """The stems of texts, their idf in English, and how alike texts are word by word."""

    def __init__(
        self,
        stem: Callable[[str], list[tuple[str, str]]],
        chunk_share: Callable[[str], float],
        tokens: Callable[[str], list[int]] = lambda _: [],
        vectors: Callable[[Any], Any] = lambda _: None,
        own: bool = True,
    ) -> None:
        self._vectors = vectors
        self.own = own  # whether it is of the encoder's own tokens, as with the bundled model
        # The caches hold no reference to the lexicon: in a cycle with it they would keep a closed
        # memory's encoder until the next garbage collection.
        self.chunk_share = functools.lru_cache(LEXICON_WORDS)(chunk_share)
        look_up = functools.partial(_look_up, self.chunk_share, tokens)
        read = functools.partial(_text_words, stem, functools.lru_cache(LEXICON_WORDS)(look_up))
        self.text_words: Callable[[str], TextWords] = functools.lru_cache(LEXICON_TEXTS)(read)

    def strange(self, words: Collection[str]) -> float:
        """The share of words that the encoder's vocabulary lacks; 0 where that is not known."""
        lacking = sum(not self.chunk_share(word) for word in words) if self.own else 0
        return lacking / max(1, len(words))

    def shares(self, words: Collection[str]) -> dict[str, float]:
        """Of each word of a text, what share of chunks in its language hold it."""
        common = function_words(words)
        return {word: COMMON_SHARE if word in common else self.chunk_share(word) for word in words}

    def maxsim(self, query: str, texts: Sequence[str]) -> Any:
        """float[text]: how much each text says of the query's words, beyond what a text of its
        length does by chance.

        The mean over the query's different tokens of the cosine to the text's nearest token, each
        weighted by its idf (MaxSim, Khattab and Zaharia 2020; theirs are vectors in context, these
        of single tokens). So "purchase" finds "buy", as by the whole text's vector, but no word is
        lost in the mean of twenty. Zeros where no token of the query is known.
        """
        words = self.text_words(query)
        if not texts or not words.token_idf.any():
            return numpy.zeros(len(texts))
        _, distinct = numpy.unique(words.tokens, return_index=True)
        by_idf = numpy.argsort(-words.token_idf[distinct], kind="stable")
        chosen = distinct[by_idf[:QUERY_TERMS]]
        weights = words.token_idf[chosen]
        tokens = [self.text_words(text).tokens for text in texts]
        sizes = numpy.array([*map(len, tokens)])
        cosines = self._vectors(words.tokens[chosen]) @ self._vectors(numpy.concatenate(tokens)).T
        best = numpy.maximum.reduceat(cosines, sizes.cumsum() - sizes, axis=1)
        by_chance = MAXSIM_CHANCE + MAXSIM_BY_LENGTH * numpy.log(sizes + 2)
        return weights @ best / weights.sum() - by_chance


def lexicon_of(encoder: Encoder) -> Lexicon:
    """The lexicon by the encoder's vocabulary; by the bundled model's, where the encoder's tokens
    have no vectors."""
    if not (own := bool(encoder.model.by_token)):
        encoder = Encoder(model_dir())
    vocabulary = encoder.chunk_share, encoder.word_tokens, encoder.token_vectors
    return Lexicon(stemmer(), *vocabulary, own)


def _informative_stems(text: TextWords) -> set[str]:
    """The stems with more idf than "to" or "is"."""
    return {*itertools.compress(text.stems, text.idf > INFORMATIVE_IDF)}


class WordTable:
    """The stems of some texts, and of a question, a column each. The idf of a stem is that of its
    commonest form in any of them."""

    def __init__(self, texts: Sequence[TextWords], question: TextWords) -> None:
        every = (*texts, question)
        keys, idf, figures, starts = (
            numpy.concatenate([getattr(text, field) for text in every])
            for field in ("keys", "idf", "figures", "beginning")
        )
        row = numpy.repeat(numpy.arange(len(every)), [len(text.keys) for text in every])
        keys, first, column = numpy.unique(keys, return_index=True, return_inverse=True)
        has = numpy.zeros((len(every), len(keys)))
        has[row, column] = 1
        self.has, self.asked = has[:-1], has[-1]  # float[text, stem] and float[stem]: 0 or 1
        self.idf = numpy.full(len(keys), numpy.inf)
        numpy.minimum.at(self.idf, column, idf)
        self.figures = figures[first]  # bool[stem]: which have digits
        self.starts = starts.reshape(-1, 4)[:-1]

    def lost(self, stems: Any) -> Any:
        """float[old, new]: the idf of those of some stems, bool[stem], that the question and the
        older have and the newer lacks, as a share of the question's."""
        chosen = numpy.flatnonzero(self.asked * stems)
        has, idf = self.has[:, chosen], self.idf[chosen]
        return (has * idf) @ (1 - has).T / max((self.asked * self.idf).sum(), 1e-6)


Matrices = dict[str, Any]  # name -> float[old, new], or what broadcasts to that


class Notes(NamedTuple):
    """Memories side by side, to tell which newer one makes which older one obsolete."""

    table: WordTable  # of their texts
    vectors: Any  # float32[n, dimension], of unit length
    created: Any  # float[n], unix seconds; nan where that is not known


def pair_features(notes: Notes, newer: slice = slice(None)) -> Matrices:
    """What tells of each memory, and of each of those that are `newer`, whether the second makes
    the first obsolete. That two are alike says little, unless no other is more like the newer."""
    days = (notes.created[newer] - notes.created[:, None]) / DAY
    days = numpy.log1p(numpy.where(days > FEWEST_DAYS, days, FEWEST_DAYS))  # nan, too
    cosines = notes.vectors @ notes.vectors[newer].T
    others = numpy.where(cosines > SAME_COSINE, -1, cosines)  # without the text itself
    nearness = {"cosine": cosines, "lead": cosines - others.max(0, initial=-1)}
    return nearness | _overlap(notes.table, newer) | {"days": days}


def _overlap(table: WordTable, newer: slice) -> Matrices:
    """What words the two have in common, by their idf, and by how few others have them."""
    has, frequency = table.has, table.has.sum(0)
    each, shared = has @ table.idf, (has * table.idf) @ has[newer].T
    rarity = table.idf + numpy.log((len(has) + 1) / (frequency + 0.5)) / 2
    # The rarest stem of both is the first in this order; one that all have stands for none.
    order = numpy.flatnonzero(frequency > 1)
    order = order[numpy.argsort(-rarity[order])]
    has_rare = numpy.append(has[:, order] > 0, numpy.ones((len(has), 1), bool), 1)
    rarest = numpy.append(rarity[order], 0)[(has_rare[:, None] & has_rare[newer]).argmax(2)]
    same = table.starts[:, None] == table.starts[newer]
    return {
        "contained": shared / (each[:, None] + 1e-6),
        "alike": 1 / (1 + (each[:, None] + each[newer] - 2 * shared) / UNSHARED),
        "rarest": rarest,
        "only_these": numpy.log1p((has * (table.idf * (frequency == 2))) @ has[newer].T),
        "beginning": same.cumprod(2).sum(2),
        "length": numpy.log(has.sum(1) + 3)[:, None],
    }


def log_odds(features: Matrices, model: str) -> Any:
    """The logarithm of the odds that one of the learned logistic models gives: "pair", "asked" or
    "answer"."""
    weights = learned()[model]
    return (
        sum(weight * features[name] for name, weight in weights.items() if name != "bias")
        + (weights["bias"])
    )


def asked_features(pairs: Matrices, table: WordTable, relevance: Any) -> Matrices:
    """What a question tells, beside what the two notes are (`pairs`): how well either fits it
    (`relevance`, float[n]), and what of its own words only the older has. Of two notes
    that have all else in common, each is of another thing then."""
    ahead = (relevance > relevance[:, None]).sum(1)
    lost = table.lost(1.0)
    return {
        "pair": log_odds(pairs, "pair"),
        "place": numpy.log1p(ahead),
        "relevance": relevance,
        "old_relevance": relevance[:, None],
        "lost": lost,
        "swapped": pairs["contained"] * lost,
    }


def newer_chances(features: Matrices, may: Any) -> Any:
    """float[old, new]: how likely each newer one that `may` (bool[old, new]) has taken the place of
    each older one; with the rest of 1 none has. A multinomial logit."""
    odds = numpy.where(may, numpy.exp(numpy.minimum(log_odds(features, "asked"), 30)), 0)
    return odds / (1 + odds.sum(1, keepdims=True))


def beside_newer(
    chances: Any, relevance: Any, loss: float = PASSING_LOSS
) -> tuple[list[int], dict[int, int]]:
    """Memories, given by relevance (float[n]), in the order in which they are shown, and for each
    the newer one that has likely made it obsolete (NAMED). The likeliest newer one stands directly
    before it where that is likely enough (PASSES) and it is less relevant by at most `loss`, else
    directly behind it, so that neither is buried."""
    order: list[int] = []
    newer: dict[int, int] = {}
    obsolete = chances.sum(1)

    def place(at: int, block: list[int], where: int) -> None:
        block.insert(where, at)
        if obsolete[at] < NAMED:
            return
        newer[at] = best = int(chances[at].argmax())
        if best not in order and best not in block:
            passes = obsolete[at] >= PASSES and relevance[best] >= relevance[at] - loss
            place(best, block, block.index(at) + (not passes))

    for at in range(len(chances)):
        if at not in order:
            block: list[int] = []
            place(at, block, 0)
            order += block
    return order, newer


def learned() -> dict[str, Any]:
    """The learned weights of each model by its name, from the file beside the model or the one
    that SEDIMENT_RANKER names. Raises ModelError when they cannot be read."""
    return _read_learned(setting("RANKER"))


@functools.cache
@restoring
def _read_learned(given: str) -> dict[str, Any]:
    path = expand_home(given) if given else model_dir().parent / "ranker.json"
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}): {remedy()}") from None


# ---------------------------------------------------------------------------------------------
# Recall
#
# Two indexes are asked, each inside the scope before its cut: vectors by cosine, words by BM25.
# What either finds is scored by both, so that an exact identifier that is far in vector space
# and a paraphrase that shares no word are both reachable.
# ---------------------------------------------------------------------------------------------

# The kinds of items: of the project or global; of another project; a turn of a conversation of
# the project or of none (those of other projects are never found); an own version that was
# replaced, which counts for the item in its place; and what is not to be found.
OWN, FOREIGN, TALK, REPLACED, HIDDEN = range(5)


class ChunkMatches(NamedTuple):
    """Items by their best chunk in one index, as columns."""

    item: Any  # int[items]: row number
    chunk: Any  # int[items]: the best chunk
    score: Any  # float[items]: its cosine in [-1, 1], or its BM25 >= 0
    chunks: Any  # int[items]: how many chunks the item has
    kind: Any  # int[items]: OWN to HIDDEN

    def where(self, chosen: Any) -> ChunkMatches:
        """The rows that a mask, an array of indices or a slice selects."""
        return ChunkMatches(*(column[chosen] for column in self))


def chunk_matches(rows: Sequence[tuple[int, int, float, int]]) -> ChunkMatches:
    """Matches from rows of (item, chunk, score, chunks), all of the kind OWN."""
    columns = zip(*rows, strict=True) if rows else ((),) * 4
    item, chunk, score, chunks = map(numpy.array, columns, (int, int, float, int))
    return ChunkMatches(item, chunk, score, chunks, numpy.full(len(rows), OWN))


def search_vectors(
    database: Database, vector: bytes, where: str, value: Any, limit: int
) -> ChunkMatches:
    """The `limit` items whose best chunk has the greatest cosine, best first, of those that fit a
    condition with one parameter."""
    source = (
        "FROM items i CROSS JOIN chunks c ON c.item = i.seq CROSS JOIN vectors v ON v.chunk = c.id"
        f" WHERE {where}"
    )
    connection = database.reader()
    if not database.has_distance:
        distance = cast(Any, _cosine_distance)
        connection.create_scalar_function("vec_distance_cosine", distance, 2)
    sql = (
        f"SELECT i.seq, c.id, min(vec_distance_cosine(v.vector, ?)) AS distance, count(*) {source}"
        " GROUP BY i.seq HAVING distance NOTNULL ORDER BY distance LIMIT ?"  # NaN is NULL
    )
    found = chunk_matches(database.rows(sql, vector, value, limit))
    return found._replace(score=1 - found.score)


def _cosine_distance(vector: bytes, query: bytes) -> float | None:
    """What sqlite-vec's function of this name returns, where that has no build; None for a damaged
    vector. Raises DamagedError where the two differ in length."""
    one, other = stack_vectors([(vector,), (query,)])
    return 1 - float(one @ other) if one.any() else None


def _vectors_of(database: Database, chunks: list[int]) -> list[tuple[int, bytes]]:
    """(chunk, vector) of those of these chunks that have one, in any order."""
    sql = "SELECT chunk, vector FROM vectors WHERE chunk IN (SELECT value FROM json_each(?))"
    return database.rows(sql, json.dumps(chunks))


# The scope of a row: its project, and a mark if it is of a conversation.
_TURN_MARK = "\x01"
_ROW_SCOPE = f"coalesce(i.project_id, '') || CASE WHEN {_IS_TURN} THEN char(1) ELSE '' END"
_ENDED_AS = f"CASE WHEN {_LIVE} THEN 0 WHEN {_REPLACED} THEN 1 ELSE 2 END"


class VectorIndex:
    """The chunks of a file in the memory of a long-lived process, a row each in the order of their
    ids, so that a search need not read them all again.

    Each vector is kept as its signs, a bit each. The number of bits that differ from the query's,
    weighted by the size of the query's numbers, is a coarse distance: exact cosines are taken of
    the SCANNED nearest rows only; where there are too many vectors to be kept (KEPT_VECTORS), these
    are read from the file. The file stays the only truth: before each search the index takes over
    what was added, ended or forgotten since the last one. To be used in a snapshot.
    """

    def __init__(self, database: Database) -> None:
        self.database, self.dimension = database, 0
        self._lock = threading.Lock()
        self._version: Any = None  # of the file, when its rows were read
        self._next_expiry = math.inf  # when the next memory expires
        self._file: Any = ()  # its identity, generation and dimension; () before the first search
        self._count = self._erased = 0  # rows, and those of them whose items were erased

    def refresh(self) -> None:
        """Read what changed in the file since the last search."""
        with self._lock:
            self._refresh()

    def search(
        self,
        vector: bytes,
        project: str | None,
        limit: int = CANDIDATES,
        scanned: Sequence[int] = SCANNED,
        also_score: Any = (),
    ) -> ChunkMatches:
        """The items `also_score`, of any kind, and the best `limit` of each kind by the cosine of
        their best chunk. Where there are many rows, `scanned` says how many of each kind get an
        exact cosine."""
        query = numpy.frombuffer(vector, "<f4")
        with self._lock:
            self._refresh()
            if len(query) != self.dimension:  # no vector is there yet, or it is another model's
                return chunk_matches([])
            # Of few rows all cosines are taken, of more a coarse distance first.
            exact = self._keeps_vectors and self._count <= EXACT_ROWS
            measured = self._vectors[: self._count] @ query if exact else self._distances(query)

            def best(rows: Any, limit: int) -> tuple[Any, Any]:
                cosines = measured[rows] if exact else self._vectors_of_rows(rows) @ query
                return self._best(rows, cosines, limit)

            found = [best(self._rows_with(also_score), len(also_score))]
            for kind, count in enumerate(scanned):
                rows = self._rows_of_kind(project, kind) if count else numpy.empty(0, numpy.int64)
                if not exact and len(rows):
                    rows = _nearest_rows(rows, measured[rows], max(count, limit))
                found.append(best(rows, limit))
            kinds = numpy.repeat((OWN, *range(len(scanned))), [len(rows) for rows, _ in found])
            rows, cosines = map(numpy.concatenate, zip(*found, strict=True))
            return self._chunk_matches(rows, cosines, kinds)

    def places(self, chunks: Any, project: str | None) -> tuple[Any, Any]:
        """int[chunks] and int[chunks]: the item of each chunk, and the kind of the item."""
        with self._lock:
            self._refresh()
            if not self._count:
                return numpy.zeros_like(chunks), numpy.full_like(chunks, HIDDEN)
            rows = self._chunks[: self._count].searchsorted(chunks).clip(max=self._count - 1)
            # A reader of an older state asks for what is erased.
            exists = self._chunks[rows] == chunks
            return self._items[rows], numpy.where(exists, self._kinds(project, rows), HIDDEN)

    def count(self, project: str | None, kinds: Sequence[int], last: int) -> int:
        """How many chunks up to `last` are of these kinds, as seen from a project."""
        with self._lock:
            self._refresh()
            before = int(self._chunks[: self._count].searchsorted(last, "right"))
            rows = (self._rows_of_kind(project, kind) for kind in kinds)
            return sum(int(each.searchsorted(before)) for each in rows)

    def mean_cosines(self, vector: bytes, items: list[int]) -> dict[int, float]:
        """The cosine of the mean of each item's vectors, by item."""
        with self._lock:
            self._refresh()  # another thread may have done so for another file or model
            starts, ends = self._ranges(numpy.array(items, numpy.int64))
            return {
                item: _mean_cosine(self._vectors_of_rows(numpy.arange(start, end)), vector)
                for item, start, end in zip(items, starts, ends, strict=True)
                if start < end
            }

    def _rows_of_kind(self, project: str | None, kind: int) -> Any:
        """int[m]: the rows of a kind, as seen from a project; cached until the file changes."""
        if (project, kind) not in self._rows:
            is_wanted = self._kinds(project, slice(self._count)) == kind
            self._rows[project, kind] = numpy.flatnonzero(is_wanted)
        return self._rows[project, kind]

    def _kinds(self, project: str | None, rows: Any) -> Any:
        """int8[rows]: the kind of each row, as seen from a project."""

        def kinds_of(scope: str) -> tuple[int, int, int]:  # live, replaced, ended otherwise
            own = scope.removesuffix(_TURN_MARK) in ("", project)
            if _TURN_MARK in scope:
                return TALK if own else HIDDEN, HIDDEN, HIDDEN
            return (OWN, REPLACED, HIDDEN) if own else (FOREIGN, HIDDEN, HIDDEN)

        kinds = numpy.array([*map(kinds_of, self._scope_numbers)], numpy.int8)
        return kinds[self._scopes[rows], self._ended[rows]]

    def _rows_with(self, items: Any) -> Any:
        """int[m]: the rows of some items, in the order of the items."""
        starts, ends = self._ranges(items)
        counts = ends - starts
        return numpy.repeat(ends - counts.cumsum(), counts) + numpy.arange(counts.sum())

    def _ranges(self, items: Any) -> tuple[Any, Any]:
        """int[items] and int[items]: each item's first row, and the row behind its last."""
        every = self._items[: self._count]
        return every.searchsorted(items), every.searchsorted(items, "right")

    def _distances(self, query: Any) -> Any:
        """int16[rows]: how many bits of each row differ from the query's. A bit counts 0 to 3
        times, by the size of the query's number there; the masks `ones` and `twos` are the two
        binary digits of that weight."""
        weights = numpy.clip(numpy.rint(1.5 * abs(query) / abs(query).mean()), 0, 3).astype(int)
        signs, ones, twos = (_bits(mask[None])[0] for mask in (query > 0, weights & 1, weights & 2))
        total = numpy.zeros(self._count, numpy.int16)
        for first in range(0, self._count, SCAN_BLOCK):
            part = total[first : first + SCAN_BLOCK]
            block = self._codes[:, first : first + len(part)]
            for word, sign, one, two in zip(block, signs, ones, twos, strict=True):
                differ = word ^ sign
                doubled = numpy.bitwise_count(differ & two)
                doubled += doubled  # at most 128 of 255
                doubled += numpy.bitwise_count(differ & one)
                part += doubled
        return total

    def _best(self, rows: Any, cosines: Any, limit: int) -> tuple[Any, Any]:
        """The best row of each of the `limit` best items, best first, and their cosines. The rows
        given of one item are adjacent and in ascending order."""
        if not len(rows):
            return rows, cosines
        has_vector = cosines != 0
        if not has_vector.all():
            rows, cosines = rows[has_vector], cosines[has_vector]
        items = self._items[rows]
        first = _first_of_each(items)
        best = numpy.maximum.reduceat(cosines, first) if len(first) else cosines
        top = _highest(numpy.arange(len(first)), best, limit)
        if len(first) < len(rows):
            as_good = numpy.flatnonzero(cosines == best.repeat(numpy.diff(first, append=len(rows))))
            first = as_good[as_good.searchsorted(first)]
        top = first[top]
        top = top[numpy.lexsort((rows[top], -cosines[top]))]
        return rows[top], cosines[top]

    def _chunk_matches(self, rows: Any, cosines: Any, kinds: Any) -> ChunkMatches:
        items = self._items[rows]
        starts, ends = self._ranges(items)
        return ChunkMatches(items, self._chunks[rows], cosines.astype(float), ends - starts, kinds)

    def _vectors_of_rows(self, rows: Any) -> Any:
        """float32[rows, dimension]: from memory, or where these are too many from the file."""
        if self._keeps_vectors:
            return self._vectors[rows]
        chunks = self._chunks[rows].tolist()
        vectors = dict(_vectors_of(self.database, chunks))
        nothing = bytes(4 * self.dimension)  # its vector is still to be made
        data = b"".join(vectors.get(chunk, nothing) for chunk in chunks)
        return _without_noise(numpy.frombuffer(data, "<f4").reshape(-1, self.dimension))

    def _refresh(self) -> None:
        version = self.database.version()
        if version == self._version and time.time() < self._next_expiry:
            return
        state = self.database.state()
        file = version[0], state.generation, state.dimension
        if file != self._file or self._erased > max(ERASED_KEPT, self._count // 3):
            self._clear(file, state.last_change)
        made = _vectors_of(self.database, [*self._waiting]) if self._waiting else []
        for chunk, vector in made:
            self._set(self._waiting[chunk], stack_vectors([(vector,)]))
            del self._waiting[chunk]
        changed = state.last_chunk > self._last or state.last_change > self._changed
        if changed or time.time() >= self._next_expiry:
            self._add_new()
            self._mark_changes()
            self._rows = {}
        sql = f"SELECT min(value) FROM marks WHERE name = '{EXPIRY}' AND value > unixepoch()"
        self._next_expiry = self.database.value(sql) or math.inf
        self._version = version

    def _add_new(self) -> None:
        """Read the chunks that came since the last search."""
        sql = (
            f"SELECT c.id, c.item, {_ROW_SCOPE}, {_ENDED_AS}, v.vector"
            " FROM chunks c JOIN items i ON i.seq = c.item LEFT JOIN vectors v ON v.chunk = c.id"
            " WHERE c.id > ? ORDER BY c.id LIMIT 5000"
        )
        while rows := self.database.rows(sql, self._last):
            start, end = self._count, self._count + len(rows)
            if end > len(self._chunks):
                self._grow(end)
            chunks, items, scopes, ended, vectors = zip(*rows, strict=True)
            if end > KEPT_VECTORS:
                self._keeps_vectors, self._vectors = False, self._vectors[:0].copy()
            nothing = bytes(4 * self.dimension)
            # Before the rows count, since it raises where a vector is damaged.
            self._set(start, stack_vectors([(vector or nothing,) for vector in vectors]))
            self._chunks[start:end], self._items[start:end] = chunks, items
            self._ended[start:end] = ended
            self._scopes[start:end] = list(map(self._scope_number, scopes))
            waiting = [row for row, vector in enumerate(vectors) if vector is None]
            self._waiting |= {chunks[row]: start + row for row in waiting}
            self._count, self._last = end, chunks[-1]

    def _set(self, start: int, matrix: Any) -> None:
        """Keep the vectors of the rows from `start` on. Raises DamagedError."""
        if matrix.shape[1] != self.dimension:
            raise DamagedError(_NO_VECTORS)
        end = start + len(matrix)
        if self._keeps_vectors:
            self._vectors[start:end] = matrix
        self._codes[:, start:end] = _bits(matrix > 0).T

    def _scope_number(self, scope: str) -> int:
        return self._scope_numbers.setdefault(scope, len(self._scope_numbers))

    def _mark_changes(self) -> None:
        """Note which items ended, came back, moved to another project or were forgotten; and which
        have expired since the last search."""
        sql = (
            f"SELECT max(n.number), n.item, {_ROW_SCOPE}, i.seq IS NULL,"
            f" iif(i.seq IS NULL, 2, {_ENDED_AS}) FROM (SELECT * FROM changes WHERE number > ?"
            f" UNION ALL SELECT 0, item FROM marks WHERE name = '{EXPIRY}' AND value >= ?"
            " AND value <= unixepoch()) n LEFT JOIN items i ON i.seq = n.item GROUP BY n.item"
        )
        since = self._changed, min(self._next_expiry, TIME_MAX)
        for number, item, scope, erased, ended in self.database.rows(sql, *since):
            (start,), (end,) = self._ranges([item])
            self._ended[start:end], self._scopes[start:end] = ended, self._scope_number(scope)
            self._erased += int(end - start) if erased else 0
            self._changed = max(self._changed, number)

    def _grow(self, count: int) -> None:
        """Make room for `count` rows and a quarter more; unused pages take no memory."""
        size = count + count // 4 + 64
        kept = ["_vectors"] * self._keeps_vectors
        for name in ("_chunks", "_items", "_scopes", "_ended", *kept):
            old = getattr(self, name)
            new = numpy.empty((size, *old.shape[1:]), old.dtype)
            new[: self._count] = old[: self._count]
            setattr(self, name, new)
        codes = numpy.empty((len(self._codes), size), numpy.uint64)
        codes[:, : self._count] = self._codes[:, : self._count]
        self._codes = codes

    def _clear(self, file: Any, changed: int) -> None:
        self._file, self._count, self._last, self._erased = file, 0, 0, 0
        self.dimension, self._changed, self._rows = file[-1], changed, {}
        self._waiting: dict[int, int] = {}  # rows by the chunk whose vector they wait for
        self._scope_numbers = {"": 0}
        self._chunks, self._items = numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64)
        self._scopes, self._ended = numpy.empty(0, numpy.int32), numpy.empty(0, numpy.int8)
        self._vectors, self._keeps_vectors = numpy.empty((0, self.dimension), numpy.float32), True
        self._codes = numpy.empty((-(-self.dimension // 64), 0), numpy.uint64)


def _bits(matrix: Any) -> Any:
    """bool[n, m] as uint64[n, m / 64, rounded up]."""
    packed = numpy.packbits(matrix.astype(bool), axis=1)
    return numpy.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(numpy.uint64)


def _first_of_each(numbers: Any) -> Any:
    """The index of the first of each run of equal numbers."""
    begins = numpy.empty(len(numbers), bool)
    begins[:1] = True
    numpy.not_equal(numbers[1:], numbers[:-1], begins[1:])
    return begins.nonzero()[0]


def _nearest_rows(rows: Any, distances: Any, count: int) -> Any:
    """The `count` rows with the smallest distances (small whole numbers), with all ties."""
    reach = numpy.bincount(distances).cumsum().searchsorted(count)
    return rows[distances <= reach]


def _highest(rows: Any, values: Any, count: int) -> Any:
    """The `count` rows with the highest values, in any order."""
    if len(rows) <= count:
        return rows
    return rows[numpy.argpartition(values, -count)[len(rows) - count :]]


class Term(NamedTuple):
    """A word of a query as it is looked up."""

    stems: tuple[str, ...]  # several for a phrase, as of 1.2.3 or of a pair of characters
    phrase: str
    idf: float  # in nats
    frequency: int  # how many chunks have it

    @property
    def counted(self) -> bool:
        """Whether its occurrences in a chunk are counted; else each chunk that has it has one."""
        return len(self.stems) == 1 and self.frequency <= COUNTED_ROWS


class Query(NamedTuple):
    """A question as it is ranked."""

    text: str
    subject: str  # the text without the time, where it asks what happened then
    asked: AskedTime | None
    strange: float = 0.0  # the share of its words that the encoder's vocabulary lacks
    near_cohort: float = 0.0  # its greatest cosine to memories that cannot answer it

    @property
    def asks_before(self) -> bool:
        """Whether it asks how something was before it changed."""
        return bool(_ASKS_BEFORE.match(self.text))


def parse_query(text: str, moment: int | None = None) -> Query:
    """A question of now, or as of a moment (unix seconds). Of a question that asks what happened,
    the time is no part of the subject. Beside a moment, which says when, a time is no part of any
    other question: "where did we meet in March 2026?" asks how things were at the moment."""
    text = matching_form(text)
    asked = asked_time(text, moment)
    if not asked or (moment is None and not asked.events):
        return Query(text, text, asked)
    rest = text[: asked.span[0]] + text[asked.span[1] :]
    subject = rest if rest.strip(" ?.,!") else text
    if moment is None or asked.events or asked.alone:
        return Query(text, subject, asked)
    return Query(subject, subject, None)


class WeightedQuery(NamedTuple):
    """The words of a query, weighted by how rare they are."""

    terms: list[Term]  # those worth looking up, the rarest first
    weights: list[float]  # for each character of the query, the idf of its word
    ideal: float  # the BM25 of a chunk that has every word once
    chunks: int  # that may answer
    strange: float  # the share of the words that the encoder's vocabulary lacks
    known: float = 1.0  # the share of `ideal` of words that the vocabulary has


class Candidates(NamedTuple):
    """What the two indexes know of some items, as columns."""

    item: Any  # int[candidates]; the others are as long
    chunk: Any  # the one to show
    chunks: Any  # how many the item has
    kind: Any  # OWN, FOREIGN, TALK or, until their successors are known, REPLACED
    cosine: Any  # of the nearest chunk; nan without vectors
    bm25: Any  # of the best chunk by words
    relative: Any  # that as a share of the best item's
    coverage: Any  # that as a share of what a chunk with all words has, at most 1
    mean_cosine: Any  # of the mean of all chunks
    version: Any  # the item that it replaced and by which it is nearest, or 0

    def where(self, chosen: Any) -> Candidates:
        """The rows that a mask or an array of indices selects."""
        return Candidates(*(column[chosen] for column in self))


class Scores(NamedTuple):
    """The scores of candidates in one ranking, as columns."""

    score: Any  # float[candidates]
    relevance: Any  # how much each has to do with the query; the profile's floor is enough
    parts: dict[str, Any]  # of the score, by name


class RankFacts(NamedTuple):
    """What else ranking looks at of an item, as it was before this recall."""

    text: str  # the best chunk's, as `vector` and `span` are
    created_at: int
    accesses: int
    last_access: int | None
    validations: int
    edges: int
    dated: bool = True
    file: int | None = None
    vector: bytes | None = None
    stored_at: int = TIME_MAX
    in_conversation: bool = False  # where nothing is a version of anything
    project: str | None = None
    replaces: bool = False  # somebody stored it in the place of another one
    text_hash: int = 0  # of all of its text
    span: tuple[int, int, int] = (0, 0, 0)  # position among the item's chunks, start and end

    @property
    def known_since(self) -> int | None:
        """When it was first known, to order versions by: a date in the future counts as the day it
        was stored. None in a file without a date, which is as it is now, and in conversations."""
        is_dated = self.dated and not self.in_conversation
        return min(self.created_at, self.stored_at) if is_dated else None


class Hit(NamedTuple):
    """An item in a ranking. `newer_than` is an earlier version of it that is nearer to the
    question, and `nearer` one that is to be read beside it; `newer` the item that may have made it
    obsolete, and how likely; `others` what it names in place of what is asked."""

    item: int
    chunk: int
    score: float
    cosine: float
    kind: int
    relevance: float
    parts: dict[str, float]  # of the score, by name
    newer_than: int | None = None
    newer: tuple[int, float] | None = None
    nearer: int | None = None
    others: tuple[str, ...] = ()
    same: tuple[int, ...] = ()  # items that say the same
    fit: float = 0.0  # the relevance that the indexes gave it, where `relevance` is its similarity
    span: tuple[int, int, int] = (0, 0, 0)  # the chunk's, which may get another number meanwhile

    @property
    def foreign(self) -> bool:
        """Whether it is another project's."""
        return self.kind == FOREIGN


def weigh_query(within: Within, query: str, lexicon: Lexicon) -> WeightedQuery:
    """The words of a query, weighted by their frequency in what may answer it. To be used in a
    snapshot."""
    return weighed(query, lexicon, within.count(), functools.partial(_frequencies, within))


def weighed(
    query: str, lexicon: Lexicon, total: int, counts: Callable[[list[str]], list[int]]
) -> WeightedQuery:
    """The words of a query, weighted by how many of `total` chunks have each, here and in
    ENGLISH_CHUNKS chunks of English; `counts` tells the former of phrases."""
    positions: dict[str, list[int]] = {}  # of a phrase's characters in the query
    for phrase, start, end in query_phrases(query):
        positions.setdefault(phrase, []).extend(range(start, end))
    terms: dict[tuple[str, ...], Term] = {}
    weights = [0.0] * len(query)
    shares = lexicon.shares(positions)
    phrases = sorted(positions, key=shares.__getitem__)[:QUERY_TERMS]
    for phrase, frequency in zip(phrases, counts(phrases), strict=True):
        with_english = frequency + ENGLISH_CHUNKS * shares[phrase]
        idf = idf_of(with_english, total + ENGLISH_CHUNKS)
        for position in positions[phrase]:
            weights[position] = max(weights[position], idf)
        stems = lexicon.text_words(phrase).stems
        terms.setdefault(stems, Term(stems, phrase, idf, frequency))
    ideal = sum(term.idf**2 for term in terms.values())
    told = (term.idf**2 for term in terms.values() if _is_known(term, shares))
    known = sum(told) / (ideal or 1.0)
    strange = lexicon.strange(positions)
    return WeightedQuery(_rarest([*terms.values()]), weights, ideal, total, strange, known)


def _is_known(term: Term, shares: dict[str, float]) -> bool:
    """Whether the vocabulary has a word, so that its vector tells something; figures are pieces."""
    return shares[term.phrase] > 0 and not _has_digit(term.phrase)


def _frequencies(within: Within, phrases: list[str]) -> list[int]:
    """How many chunks that may answer have each of these phrases; of a very common one that is
    estimated from the first FOUND_ROWS that have it."""
    keys = [(phrase, FOUND_ROWS) for phrase in phrases]
    found = [*within.database.cached_answers(_first_chunks_with, keys), numpy.empty(0, int)]
    is_wanted = within.is_wanted(within.places(numpy.concatenate(found))[1])
    phrase = numpy.repeat(numpy.arange(len(found)), [*map(len, found)])
    counts = numpy.bincount(phrase[is_wanted], minlength=len(found)).tolist()
    return [
        count if len(chunks) < FOUND_ROWS else _estimated_frequency(within, phrase)
        for phrase, chunks, count in zip(phrases, found, counts, strict=False)
    ]


def _estimated_frequency(within: Within, phrase: str) -> int:
    limit = FOUND_ROWS
    while True:
        (chunks,) = within.database.cached_answers(_first_chunks_with, [(phrase, limit)])
        wanted = chunks[within.is_wanted(within.places(chunks)[1])]
        if len(wanted) >= FOUND_ROWS:
            last = int(wanted[FOUND_ROWS - 1])
            return FOUND_ROWS * within.count() // within.count(last)
        if len(chunks) < limit:
            return len(wanted)
        limit *= 8  # most of these may not answer


def _first_chunks_with(database: Database, phrases: list[tuple[str, int]]) -> list[Any]:
    """int[m] for each phrase and limit: the first chunks that have it, at most so many."""
    found = "SELECT rowid FROM words WHERE words MATCH ? LIMIT ?"
    sql = " UNION ALL ".join([f"SELECT group_concat(rowid) FROM ({found})"] * len(phrases))
    values = itertools.chain(*((f'"{phrase}"', limit) for phrase, limit in phrases))
    return [_numbers(text) for (text,) in database.rows(sql, *values)]


def _rarest(terms: list[Term]) -> list[Term]:
    """The words worth looking up: the rarest, until they have SCORED_ROWS rows together."""
    terms.sort(key=lambda term: -term.idf)
    rows = accumulate(term.frequency for term in terms)
    return [
        term
        for term, total in zip(terms, rows, strict=True)
        if term.idf >= TELLING_MIN * terms[0].idf and (total <= SCORED_ROWS or term is terms[0])
    ]


class Within(NamedTuple):
    """Where candidates are looked for: in a file, as seen from a project."""

    database: Database
    project: str | None
    live: str = _LIVE  # the SQL condition of what is live
    replaced: str = _REPLACED  # and that of what was replaced
    valid_then: str = "false"  # and of what was replaced, but held in the time that is asked
    index: VectorIndex | None = None  # only where these conditions are the defaults
    limit: int = CANDIDATES  # items of each kind from each index
    kinds: Sequence[int] = (OWN, FOREIGN, TALK, REPLACED)

    def places(self, chunks: Any) -> tuple[Any, Any]:
        """int[chunks] and int[chunks]: the item of each chunk, and the kind of the item."""
        if self.index:
            return self.index.places(chunks, self.project)
        kind = " ".join(f"WHEN {where} THEN {kind}" for kind, where in enumerate(self.wheres()))
        sql = (
            f"SELECT c.id, i.seq, CASE {kind} ELSE {HIDDEN} END FROM json_each(?) j"
            " JOIN chunks c ON c.id = j.value JOIN items i ON i.seq = c.item"
        )
        ids, projects = chunks.tolist(), [self.project] * (REPLACED + 1)
        known = {id: place for id, *place in self.database.rows(sql, *projects, json.dumps(ids))}
        places = [known.get(id, (0, HIDDEN)) for id in ids]
        item, kinds = numpy.array(places, int).reshape(-1, 2).T
        return item, kinds

    def is_wanted(self, kinds: Any) -> Any:
        """bool[kinds]: which of these kinds may answer."""
        return numpy.array([kind in self.kinds for kind in range(HIDDEN + 1)])[kinds]

    def count(self, last: int = 1 << 62) -> int:
        """How many chunks may answer, of all or of those up to one."""
        if self.index:
            return self.index.count(self.project, self.kinds, last)
        wheres = self.wheres()
        sql = (
            "SELECT count(*) FROM chunks c JOIN items i ON i.seq = c.item"
            f" WHERE c.id <= ? AND ({' OR '.join(wheres[kind] for kind in self.kinds)})"
        )
        return self.database.value(sql, last, *[self.project] * len(self.kinds))

    def wheres(self) -> list[str]:
        """The SQL condition of each kind, with the project as its one parameter."""
        stored = f"{self.live} AND NOT {_IS_TURN} AND"
        said, replaced = (
            f"{self.live} AND {_IS_TURN} AND {IN_OWN_SCOPE}",
            f"{self.replaced} AND {IN_OWN_SCOPE}",
        )
        wheres = f"{stored} {IN_OWN_SCOPE}", f"{stored} {_FOREIGN}", said, replaced
        return [f"({where})" for where in wheres]


def search_words(words: WeightedQuery, within: Within) -> tuple[ChunkMatches, float]:
    """The items of the best chunks by words that may answer: of twice `limit` chunks, or of more
    until there are `limit` own items among them. And the BM25 of the GAP_DEPTH-th best chunk, or
    0."""
    if not words.terms:
        return chunk_matches([]), 0.0
    chunks, scores = _word_scores(within.database, words.terms)
    size = looked_at = 2 * within.limit
    while True:
        item, kind = within.places(chunks[:looked_at])
        wanted = numpy.flatnonzero(within.is_wanted(kind))[:size]
        best = wanted[numpy.sort(numpy.unique(item[wanted], return_index=True)[1])]
        enough = len(wanted) == size and (kind[best] == OWN).sum() >= within.limit
        if enough or (looked_at >= len(chunks) and len(wanted) < size):
            break
        size *= 8 if len(wanted) == size else 1  # pieces of the same few memories
        looked_at *= 8
    found = ChunkMatches(item[best], chunks[best], scores[best], numpy.ones_like(best), kind[best])
    tenth = float(scores[wanted[GAP_DEPTH - 1]]) if len(wanted) >= GAP_DEPTH else 0.0
    return found, tenth


def _word_scores(database: Database, terms: list[Term]) -> tuple[Any, Any]:
    """int[m] and float[m]: the chunks that have any of these words, best first, and their BM25."""
    rare = [term.stems[0] for term in terms if term.counted]
    common = [term.phrase for term in terms if not term.counted]
    counted = iter(database.cached_answers(_chunks_counted, rare))
    uncounted = iter(database.cached_answers(_chunks_with, common))
    postings = [next(counted if term.counted else uncounted) for term in terms]
    term = numpy.repeat(numpy.arange(len(terms)), [*map(len, postings)])
    # A number for each pair of a chunk and a term, and how often the chunk has the term.
    keys = numpy.concatenate(postings) * len(terms) + term
    pairs, often = numpy.unique(keys, return_counts=True)
    squared = numpy.array([term.idf**2 for term in terms])[pairs % len(terms)]
    scores = squared * saturated(often)
    chunks = pairs // len(terms)
    first = _first_of_each(chunks)
    total = numpy.add.reduceat(scores, first) if len(first) else scores
    best = numpy.argsort(-total, kind="stable")
    return chunks[first][best], total[best]


def saturated(often: Any) -> Any:
    """The factor of BM25 for a word that a chunk has so often."""
    return often * (1 + BM25_K1) / (often + BM25_K1)


def _chunks_with(database: Database, phrases: list[str]) -> list[Any]:
    """int[m] for each phrase: the chunks that have it."""
    sql = "SELECT group_concat(rowid) FROM words WHERE words MATCH ?"
    return [_numbers(database.value(sql, f'"{phrase}"')) for phrase in phrases]


def _chunks_counted(database: Database, stems: list[str]) -> list[Any]:
    """int[m] for each stem: the chunks that have it, each as often as it has it."""
    postings = "SELECT group_concat(doc) FROM temp.postings WHERE term = ?"
    rows = database.rows(" UNION ALL ".join([postings] * len(stems)), *stems)
    return [_numbers(text) for (text,) in rows]


def _numbers(text: str | None) -> Any:
    """int64[m]: row numbers that came as one text, since to fetch thousands of rows takes longer
    than to find them."""
    return numpy.fromstring(text or "", numpy.int64, sep=",")


def candidates(
    words: WeightedQuery,
    matched: tuple[ChunkMatches, float],
    vector: bytes | None,
    within: Within,
) -> tuple[Candidates, float]:
    """What either index finds of each kind, and `words_share` of this query."""
    by_words, tenth = matched
    near = _search_kinds(vector, by_words.item, within) if vector else chunk_matches([])
    best = float(by_words.score.max(initial=0.0))
    found = as_candidates(by_words, near, best, words.ideal)
    if vector:
        found = _with_mean_cosines(vector, found, within)
    found = _by_successors(found, within)
    return found, words_share(best, tenth, words.ideal, words.strange)


def _search_kinds(vector: bytes, also_score: Any, within: Within) -> ChunkMatches:
    """The nearest items of each kind, and the items `also_score`, which the words found."""
    limit, kinds = within.limit, within.kinds
    if within.index:
        scanned = [rows if kind in kinds else 0 for kind, rows in enumerate(SCANNED)]
        return within.index.search(vector, within.project, limit, scanned, also_score)
    wheres, chosen = within.wheres(), "i.seq IN (SELECT value FROM json_each(?))"
    items = json.dumps(also_score.tolist())
    found = [search_vectors(within.database, vector, chosen, items, len(also_score))]
    for kind in kinds:
        near = search_vectors(within.database, vector, wheres[kind], within.project, limit)
        found.append(near._replace(kind=numpy.full(len(near.item), kind)))
    return ChunkMatches(*map(numpy.concatenate, zip(*found, strict=True)))


def _with_mean_cosines(vector: bytes, found: Candidates, within: Within) -> Candidates:
    """The candidates, those of several chunks with the cosine of the mean of these."""
    long = found.item[found.chunks > 1].tolist()
    if not long:
        return found
    index = within.index
    find = index.mean_cosines if index else functools.partial(_mean_cosines, within.database)
    known = find(vector, long)
    pairs = zip(found.item.tolist(), found.mean_cosine.tolist(), strict=True)
    means = numpy.array([known.get(item, cosine) for item, cosine in pairs])
    return found._replace(mean_cosine=means)


def _by_successors(found: Candidates, within: Within) -> Candidates:
    """The candidates, with the items in their place instead of those that were replaced: a memory
    is as near to a question as the nearest of its versions. "We moved it to Hetzner" hardly
    answers "where is our server?", the note that it replaced does. What held in the time that is
    asked stands for itself."""
    is_old = found.kind == REPLACED
    if not is_old.any():
        return found
    old, found = found.where(is_old), found.where(~is_old)
    heads = _successors(within, old.item.tolist())
    old = old.where(numpy.array([item in heads for item in old.item.tolist()], bool))
    places = [heads[item] for item in old.item.tolist()]
    item, chunk, chunks = numpy.array(places, int).reshape(-1, 3).T
    valid_then = item == old.item
    old = old._replace(
        item=item,
        chunk=numpy.where(valid_then, old.chunk, chunk),
        chunks=chunks,
        kind=numpy.full(len(item), OWN),
        version=numpy.where(valid_then, 0, old.item),
    )
    return _best_of_each(Candidates(*map(numpy.append, found, old)))


def _best_of_each(found: Candidates) -> Candidates:
    """The candidates, each item once, with the best values that any of its rows has; the chunk to
    show is that of its first row."""
    found = found.where(numpy.argsort(found.item, kind="stable"))
    first = _first_of_each(found.item)
    nearest = numpy.lexsort((-cosines_to_candidates(found), found.item))[first]
    names = ("cosine", "bm25", "relative", "coverage", "mean_cosine")
    best = {name: numpy.fmax.reduceat(getattr(found, name), first) for name in names}
    return found.where(first)._replace(**best, version=found.version[nearest])


def _successors(within: Within, items: list[int]) -> dict[int, tuple[int, int, int]]:
    """For each of these replaced items, the first own item in its chain of successors, itself
    included, that is live or held in the time that is asked: (its row number, its first chunk, how
    many chunks it has)."""
    stands = f"({within.live} OR {within.valid_then})"
    sql = (
        "WITH RECURSIVE ahead(old, id) AS (SELECT i.seq, i.id FROM json_each(?) j"
        " JOIN items i ON i.seq = j.value UNION SELECT a.old, i.successor FROM ahead a"
        f" JOIN items i ON i.id = a.id WHERE i.successor IS NOT NULL AND NOT {stands})"
        " SELECT a.old, i.seq, min(c.id), count(*) FROM ahead a JOIN items i ON i.id = a.id"
        f" JOIN chunks c ON c.item = i.seq WHERE {stands} AND {IN_OWN_SCOPE} GROUP BY a.old"
    )
    rows = within.database.rows(sql, json.dumps(items), within.project)
    return {old: (item, chunk, chunks) for old, item, chunk, chunks in rows}


def _mean_cosines(database: Database, vector: bytes, items: list[int]) -> dict[int, float]:
    """The cosine of the mean of each item's vectors, by item."""
    sql = (
        "SELECT c.item, v.vector FROM chunks c JOIN vectors v ON v.chunk = c.id"
        " WHERE c.item IN (SELECT value FROM json_each(?)) ORDER BY c.item"
    )
    rows = itertools.groupby(database.rows(sql, json.dumps(items)), lambda row: row[0])
    return {item: _mean_cosine(stack_vectors(list(group)), vector) for item, group in rows}


def _mean_cosine(vectors: Any, query: bytes) -> float:
    mean = vectors.mean(0)
    cosine = mean @ numpy.frombuffer(query, "<f4") / (numpy.linalg.norm(mean) or 1.0)
    return float(cosine) if math.isfinite(cosine) else 0.0


def as_candidates(words: ChunkMatches, near: ChunkMatches, best: float, ideal: float) -> Candidates:
    """What is known of items by words and by vectors; `best` is the greatest BM25, `ideal` that of
    a chunk that has every word once."""
    # Without return_index numpy looks for masks, and loads 15 ms of code for that.
    item, _ = numpy.unique(numpy.concatenate([words.item, near.item]), return_index=True)
    by_word, by_vector = (item.searchsorted(part.item) for part in (words, near))

    def column(places: Any, values: Any, otherwise: float) -> Any:
        every = numpy.full(len(item), otherwise)
        every[places] = values
        return every

    bm25, cosine = column(by_word, words.score, 0.0), column(by_vector, near.score, 0.0)
    cosine[~numpy.isfinite(cosine)] = 0.0
    relative, unknown = bm25 / (best or 1.0), column(by_vector, False, True)
    chunk, kind = column(by_vector, near.chunk, 0), column(by_vector, near.kind, 0)
    kind[by_word] = words.kind
    # The excerpt to show is where the words are, if only they or mostly they found the item.
    worded = (unknown | (relative > 0.5))[by_word]
    chunk[by_word[worded]] = words.chunk[worded]
    return Candidates(
        item=item,
        chunk=chunk,
        chunks=column(by_vector, near.chunks, 1),
        kind=kind,
        cosine=numpy.where(unknown, math.nan, cosine),
        bm25=bm25,
        relative=relative,
        coverage=numpy.minimum(1.0, bm25 / (ideal or math.inf)),
        mean_cosine=cosine,
        version=numpy.zeros_like(item),
    )


def words_share(best: float, tenth: float, ideal: float, strange: float = 0.0) -> float:
    """What the best item by words gains by them (`share` in the header): by how far it stands out
    of the others, but not more than it covers of the query, and by how many words are strange."""
    if not best:
        return 0.0
    stands_out = min(max(0.0, best - tenth) / best, COVERED * best / ideal)
    return WORDS_WEIGHT * stands_out + STRANGE_WEIGHT * strange


class Profile(NamedTuple):
    """A way of ranking: all candidates get a score from the two indexes (of candidates, words'
    share and other projects' factor), then `adjust` orders the best by what else is known."""

    score: Callable[[Candidates, float, float], Scores]
    adjust: Callable[[list[Hit], dict[int, RankFacts], Query, Lexicon, float], list[Hit]]
    floor: Callable[[int, float, float, bool], float]  # for `adjust`: see `chance_floor`
    least: Callable[[list[Hit], float], float]  # of the adjusted hits, the relevance of one to show
    links: bool = False  # whether it counts the graph edges of each item


def rank(
    found: Candidates,
    share: float,
    profile: Profile,
    depth: int,
    factor: float = CROSS_PROJECT_FACTOR,
) -> list[Hit]:
    """The best `depth` candidates by both indexes, best first; another project's keep `factor`
    of their score."""
    score, relevance, parts = profile.score(found, share, factor)
    best = numpy.lexsort((-found.item, -score))[:depth]
    columns = found.item, found.chunk, score, cosines_to_candidates(found), found.kind, relevance
    rows = zip(*(column[best].tolist() for column in (*columns, found.version)), strict=True)
    values = zip(*(column[best].tolist() for column in parts.values()), strict=True)
    each = (dict(zip(parts, row, strict=True)) for row in values)
    return [
        Hit(item, chunk, score, cosine, kind, fits, added, old or None)
        for (item, chunk, score, cosine, kind, fits, old), added in zip(rows, each, strict=True)
    ]


def beside_nearer_version(hit: Hit, fact: RankFacts | None, vector: bytes) -> Hit:
    """The hit with the earlier version by which it was found, where that is nearer to the query by
    NEARER_VERSION than the hit's own text: the indexes may have found the version alone."""
    if not (hit.newer_than and fact and fact.vector and vector):
        return hit
    own, query = stack_vectors([(fact.vector,), (vector,)])
    is_nearer = hit.cosine - own @ query >= NEARER_VERSION
    return hit._replace(nearer=hit.newer_than) if is_nearer else hit


# default: the formula of the header.


def default_score(found: Candidates, share: float, factor: float) -> Scores:
    """The cosine, the words by their share for this query, and small terms: see the header."""
    cosine = cosines_to_candidates(found)
    added = {
        "mean": MEAN_WEIGHT * (found.mean_cosine - cosine),
        "words": share * found.relative**WORDS_POWER,
        "length": -LENGTH_DISCOUNT * numpy.log(found.chunks),
        "conversation": numpy.where(found.kind == TALK, -TALK_LOSS, 0.0),
    }
    project = _project_factor(found, factor)
    parts = {"cosine": cosine, "bm25": found.bm25, **added, "project": project}
    return Scores((cosine + sum(added.values())) * project, relevance(found), parts)


def cosines_to_candidates(found: Candidates) -> Any:
    """float[candidates]: their cosines, 0 where there is no vector."""
    return numpy.where(numpy.isnan(found.cosine), 0.0, found.cosine)


def _project_factor(found: Candidates, factor: float) -> Any:
    """float[candidates]: what each keeps of its score, less than 1 only of other projects."""
    return numpy.where(found.kind == FOREIGN, factor, 1.0)


def chance_floor(
    chunks: int, near_cohort: float, strange: float, unheard_of: bool = False
) -> float:
    """The relevance that the best of so many chunks has by chance; `near_cohort` is the question's
    greatest cosine to memories that cannot answer it (cohort normalisation, Auckenthaler et al.
    2000). The greatest of n values of the normal distribution grows as the square root of ln n.
    Where more than half of the question's words are `strange` less is enough, half of it where all
    are: nobody can tell then that nothing fits. Nothing fits what is `unheard_of`."""
    if unheard_of:
        return math.inf
    by_chance = math.sqrt(math.log(1 + max(1, chunks)) / math.log(FLOOR_CHUNKS))
    return max(FLOOR, near_cohort) * min(1.0, by_chance) * (1 - max(0.0, strange - 0.5))


def strange_beside(
    words: WeightedQuery,
    query: Query,
    hits: list[Hit],
    facts: dict[int, RankFacts],
    lexicon: Lexicon,
) -> float:
    """How strange a question is to what was found: not at all, if both are in English, though a
    name may be foreign; all of it, if most of the best hits are in another language, from which a
    question in English is far in any case."""
    texts = [facts[hit.item].text for hit in hits[:FEW_HITS] if hit.item in facts]
    english = sum(lexicon.text_words(text).english for text in texts)
    if 2 * english < len(texts):
        return 1.0
    is_english = lexicon.text_words(query.text).english and not _FOREIGN_LETTER.search(query.text)
    return 0.0 if is_english else words.strange


_FOREIGN_LETTER = LazyPattern(r"[^\W\d_\x00-\u024f]")  # not Latin
# A name alone that no sentence has: an address, a number, a path, a ticket.
_ONE_NAME = LazyPattern(r"\W*(?:\d|\w(?=\S*[\d@:/\\#.-]))\S*")


def is_unheard_of(words: WeightedQuery, query: Query, found: Candidates, strange: float) -> bool:
    """Whether a question in English is made of what no memory has, and of which a vector tells
    nothing: nonsense, a foreign name, or only an address, a number or a time."""
    best = found.coverage.max(initial=0.0)
    is_one_name = bool(_ONE_NAME.fullmatch(query.text.rstrip(" ?.!")))
    is_literal = is_one_name or bool(query.asked and query.asked.alone)
    return not strange and (
        max(words.known, best) < KNOWN_MIN or (is_literal and best < COVERAGE_ENOUGH)
    )


def relevance(found: Candidates) -> Any:
    """float[candidates]: how much each has to do with the query, FLOOR being enough: by meaning
    with some help of the words, or by words that cover most of the query; 1 without vectors."""
    words = FLOOR * found.coverage
    fits = numpy.maximum(found.cosine + COVERAGE_HELP * words, words / COVERAGE_ENOUGH)
    return numpy.where(numpy.isnan(found.cosine), 1.0, fits)


def default_adjust(
    hits: list[Hit], facts: dict[int, RankFacts], query: Query, lexicon: Lexicon, floor: float
) -> list[Hit]:
    """The hits by relevance, each beside the newer one that may have taken its place; each with its
    own similarity, the chance that it answers. None is relevant where nothing reaches `floor`."""
    hits = by_relevance(named_otherwise(hits, facts, query.subject), facts, query, lexicon)
    fits = any(hit.relevance >= floor for hit in hits)
    chances = chances_among(hits[:RANKED], facts, query, lexicon)
    # Asked how it was before, a newer note is the obsolete one, though the question may name it.
    wanted, loss = (chances.T, math.inf) if query.asks_before else (chances, PASSING_LOSS)
    found = []
    for hit, similarity in zip(hits, similarities(hits, wanted, query), strict=True):
        name = {"name": NAMED_OTHERWISE} if hit.others else {}
        relevance = similarity if hit.cosine else hit.relevance  # 0: it has no vector yet
        found.append(
            hit._replace(
                score=similarity * name.get("name", 1.0),
                relevance=relevance if fits else 0.0,
                fit=hit.relevance,
                parts=hit.parts | name,
            )
        )
    order, preferred = beside_newer(wanted, [hit.score for hit in hits], loss)
    for at, better in preferred.items():  # what is named is shown with what names it
        old, new = (better, at) if query.asks_before else (at, better)
        found[old] = found[old]._replace(newer=(hits[new].item, float(chances[old].sum())))
        shown = max(found[at].relevance, found[better].relevance)
        found[better] = found[better]._replace(relevance=shown)
    return [found[at] for at in (*order, *range(len(order), len(hits)))]


def chances_among(
    hits: list[Hit], facts: dict[int, RankFacts], query: Query, lexicon: Lexicon
) -> Any:
    """float[old, new]: how likely each newer hit has made each older one obsolete."""
    if not (compared := compared_notes(hits, facts, query, lexicon)):
        return numpy.zeros((len(hits),) * 2)
    notes, may = compared
    relevance = numpy.array([hit.score for hit in hits])
    pairs = pair_features(notes)
    if not lexicon.own:
        pairs["cosine"] = _as_if_bundled(pairs["cosine"])
    features = asked_features(pairs, notes.table, relevance)
    replaces = numpy.array([facts[hit.item].replaces for hit in hits])[:, None]
    return newer_chances(features, may) * numpy.where(replaces, REPLACES_STAYS, 1.0)


def _as_if_bundled(cosines: Any) -> Any:
    """The cosines of another model than the bundled one, float[old, new], shifted to the mean that
    the weights were learned with: by some models all texts are so alike that each newer one would
    be a version of each older one."""
    count = len(cosines)
    mean = (cosines.sum() - count) / (count * (count - 1))  # without each to itself
    return cosines - mean + PAIR_COSINE


def compared_notes(
    hits: list[Hit], facts: dict[int, RankFacts], query: Query, lexicon: Lexicon
) -> tuple[Notes, Any] | None:
    """The hits side by side, and which one may make which other one obsolete, bool[old, new];
    nothing where none may. Memories of two projects are not versions of each other, nor are those
    of which only the older has a figure or sign of the question; and what came after the time that
    is asked about made nothing obsolete in it."""
    if len(hits) < 2:
        return None
    items = [facts[hit.item] for hit in hits]
    created = numpy.array(known_since(hits, facts), float)  # None becomes nan
    may = created > created[:, None]
    projects = numpy.array([item.project or "" for item in items])
    may &= (projects[:, None] == projects) | (projects[:, None] == "") | (projects == "")
    if query.asked:  # how things were then
        may &= created < query.asked.end
    if wanted := signs_of(query.text):  # C++ is not C
        signs = [wanted & signs_of(item.text) for item in items]
        may &= numpy.array([[old <= new for new in signs] for old in signs], bool)
    texts = [lexicon.text_words(item.text) for item in items]
    table = WordTable(texts, lexicon.text_words(query.text))
    may &= table.lost(table.figures) == 0  # nor sprint 31 sprint 32
    if not may.any() or not all(item.vector for item in items):
        return None
    vectors = stack_vectors([(item.vector,) for item in items])
    return Notes(table, vectors, created), may


def similarities(hits: list[Hit], chances: Any, query: Query) -> list[float]:
    """How likely each of the hits answers the question."""
    if not hits:
        return []
    odds = log_odds(answer_features(hits, chances, query), "answer")
    return (1 / (1 + numpy.exp(-odds))).tolist()


def answer_features(hits: list[Hit], chances: Any, query: Query) -> dict[str, Any]:
    """What tells of each hit, float[hits], whether it answers: how relevant it is beside the others
    and beside what cannot answer, and what is newer or older than it. Hits that are about equally
    relevant take nothing from one another, however many they are."""
    relevance, size = numpy.array([hit.score for hit in hits]), len(chances)
    best, second = numpy.sort(numpy.append(relevance, [NOTHING, NOTHING]))[:-3:-1]
    better = numpy.clip((relevance - relevance[:, None]) / MARGIN - 1, 0, 1).sum(1)
    inherited, obsolete = numpy.zeros((2, len(hits)))
    near = numpy.exp(INHERITED * (relevance[:size, None] - best))
    inherited[:size], obsolete[:size] = (chances * near).max(0, initial=0), chances.sum(1)
    return {
        "lead": relevance - numpy.where(relevance < best, best, second),
        "above_cohort": numpy.array([hit.cosine for hit in hits]) - query.near_cohort,
        "strange": query.strange,
        "obsolete": obsolete,
        "inherited": inherited,
        "better": better / (1 + better),
    }


def by_relevance(
    hits: list[Hit], facts: dict[int, RankFacts], query: Query, lexicon: Lexicon
) -> list[Hit]:
    """The hits, best first, with what MaxSim, confirmations and the time that is asked add to
    their scores. Accesses decide between equal scores."""
    similar = lexicon.maxsim(query.subject, [facts[hit.item].text for hit in hits])
    changed = []
    for hit, maxsim in zip(hits, similar.tolist(), strict=True):
        trust = TRUST_MAX * (1 - 1 / (1 + facts[hit.item].validations))
        timely = _timeliness(facts[hit.item], query.asked) if query.asked else 0.0
        maxsim *= MAXSIM_WEIGHT * hit.parts.get("project", 1.0)
        parts = {"maxsim": maxsim, "trust": trust, "time": timely}
        added = {name: part for name, part in parts.items() if part}
        score = hit.score + sum(added.values())
        changed.append(hit._replace(score=score, parts=hit.parts | added))
    return sorted(changed, key=lambda hit: (-hit.score, -facts[hit.item].accesses, -hit.item))


# A name of letters and figures (E_STOCK_410, WH-1182, v2, 10.0.4.17), and a thing that has a number
# (invoice 4712, release 2.4). To the encoder two of one form are nearly the same.
_IDENTIFIER = LazyPattern(r"(?<![\w.])(?:[^\W\d]\w*(?:[-.:#]\w+)*|\d+(?:\.\d+){3}(?!\.?\w))")
_NUMBERED = LazyPattern(
    r"(?i)(?<![\w.])([^\W\d_]{2,})(?: #?|#| no\.? )(\d+(?:\.\d+)*)(?![\w%]|[-.:/,]\w)"
)
_OWNED = LazyPattern(r"\b([A-ZÀ-Þ]\w+)['’]s (\w+)")
_LETTERS_OR_FIGURES = LazyPattern(r"[^\W\d_]+|\d+")


def identifiers(text: str) -> dict[str, str]:
    """The names of letters and figures in a text, its numbered things and somebody's things, each
    with its form: {"WH-1182": "wh0", "invoice 4712": "invoice 0", "Ben's car": "'s car"}."""
    found = (match[0] for match in _IDENTIFIER.finditer(text))
    names = [name for name in found if len(name) <= PREVIEW and re.search(r"\d", name)]
    forms = {name: re.sub(r"\W|_", "", re.sub(r"\d+", "0", name.lower())) for name in names}
    numbered = (match.groups() for match in _NUMBERED.finditer(text))
    things = ((thing, number) for thing, number in numbered if thing.lower() not in languages_of())
    forms |= {f"{thing} {number}": f"{thing.lower()} 0" for thing, number in things}
    for owner, thing in _OWNED.findall(text):
        if "english" not in languages_of().get(owner.lower(), ()):  # as "What's" is
            forms[f"{owner}'s {thing}"] = f"'s {thing.lower()}"
    return forms


def named_otherwise(hits: list[Hit], facts: dict[int, RankFacts], subject: str) -> list[Hit]:
    """The hits, each with the names that it has in place of what is asked, which have the same
    form; none where a hit has that, in whatever spelling, or an earlier version speaks for it."""
    if not (asked := identifiers(subject)):
        return hits
    names = rf"(?i)(?<![^\W_])(?:{'|'.join(map(_spelled, asked))})(?!\d)"
    if any(re.search(names, facts[hit.item].text) for hit in hits):
        return hits
    forms, marked = {*asked.values()}, []
    for hit in hits:
        named = {} if hit.newer_than else identifiers(facts[hit.item].text)
        others = (name for name, form in named.items() if form in forms)
        marked.append(hit._replace(others=tuple(itertools.islice(others, OTHERS_TOLD))))
    return marked


def _spelled(name: str) -> str:
    """What finds an identifier in whatever spelling: "invoice no. 4713" names invoice 4713, and so
    does "4713 (invoice)"; "Ben, whose new car" names Ben's car."""
    if "'s " in name:
        return r"\A(?=[\s\S]*\b{})[\s\S]*\b{}".format(*name.split("'s "))
    return r"[-_.:# ]*".join(_LETTERS_OR_FIGURES.findall(name)[" " in name :])


def _timeliness(facts: RankFacts, asked: AskedTime) -> float:
    """What a memory's score gains if it is of the time in which something happened, or loses if it
    is later than a time that is asked about and does not name that."""
    if asked.events:
        return TIME_WEIGHT if facts.dated and asked.fits(facts.created_at) else 0.0
    is_later = facts.dated and facts.created_at >= asked.end
    return -TIME_WEIGHT if is_later and not asked.is_named_in(facts.text) else 0.0


def known_since(hits: list[Hit], facts: dict[int, RankFacts]) -> list[float | None]:
    """When each was first known, in unix seconds. Of two memories of one second the one that was
    stored later is later; parts of files have no such order."""
    stored = sorted(hit.item for hit in hits)
    return [
        since if since is None or fact.file else since + stored.index(hit.item) / 1_000
        for hit in hits
        for fact in (facts[hit.item],)
        for since in (fact.known_since,)
    ]


def weighed_score(
    weights: tuple[float, float], found: Candidates, _: float, factor: float
) -> Scores:
    """Meaning and words by the weights (vector, text) that somebody asked for."""
    plain = default_score(found, 0.0, factor)
    meaning = weights[0] * plain.parts["cosine"]
    words = weights[1] * found.relative**WORDS_POWER
    parts = plain.parts | {"meaning": meaning, "words": words}
    return plain._replace(score=(meaning + words) * parts["project"], parts=parts)


# classic: the original's formulas, over the same candidates and the same BM25.


def classic_similarity(cosine: Any) -> Any:
    """The original's scale: 1 / (1 + squared distance) of unit vectors."""
    return 1 / (3 - 2 * cosine)


def classic_score(found: Candidates, _: float, factor: float) -> Scores:
    """Similarity plus a boost of the square of the relative BM25."""
    cosine = cosines_to_candidates(found)
    similarity = classic_similarity(cosine)
    boost = CLASSIC_BOOST * found.relative**CLASSIC_GAMMA
    project = _project_factor(found, factor)
    parts = {"cosine": cosine, "similarity": similarity, "bm25": found.bm25, "boost": boost}
    return Scores((similarity + boost) * project, similarity, parts | {"project": project})


def classic_factors(facts: RankFacts, now: float) -> dict[str, float]:
    """Freshness, frequency and trust, which multiply a score."""
    last_used = facts.created_at if facts.last_access is None else facts.last_access
    days = max(0.0, now - last_used) / DAY
    return {
        "age": 1 / (1 + days / CLASSIC_HALF_LIFE),
        "access": 1 + 0.1 * math.log(1 + facts.accesses),
        "trust": 1 + 0.05 * math.log(1 + facts.validations) + 0.005 * facts.edges,
    }


def classic_adjust(hits: list[Hit], facts: dict[int, RankFacts], *_: Any) -> list[Hit]:
    """Every score multiplied by its factors, and at most 1."""
    now, changed = time.time(), []
    for hit in hits:
        factors = classic_factors(facts[hit.item], now)
        score = min(1.0, hit.score * math.prod(factors.values()))
        changed.append(hit._replace(score=score, parts=hit.parts | factors))
    return sorted(changed, key=lambda hit: -hit.score)


# cosine and bm25: one index alone, to compare with.


def cosine_score(found: Candidates, _: float, __: float) -> Scores:
    """Meaning alone."""
    cosine = cosines_to_candidates(found)
    return Scores(cosine, numpy.ones_like(cosine), {"cosine": cosine})


def bm25_score(found: Candidates, _: float, __: float) -> Scores:
    """Words alone, relative to the best."""
    return Scores(found.relative, (found.bm25 > 0).astype(float), {"bm25": found.bm25})


def least_relevance(hits: list[Hit], floor: float) -> float:
    """The relevance that each result must have: half of `floor`. At least one of all hits must have
    `floor`, or nothing is shown."""
    return floor / 2 if any(hit.relevance >= floor for hit in hits) else math.inf


PROFILES = {
    "default": Profile(default_score, default_adjust, chance_floor, lambda *_: LEAST_SIMILARITY),
    "classic": Profile(
        classic_score, classic_adjust, lambda *_: CLASSIC_FLOOR, least_relevance, links=True
    ),
    "cosine": Profile(cosine_score, lambda hits, *_: hits, lambda *_: 0.0, least_relevance),
    "bm25": Profile(bm25_score, lambda hits, *_: hits, lambda *_: 1.0, least_relevance),
}


def _kinds_wanted(conversations: bool) -> list[int]:
    """The kinds that an answer may have."""
    return [OWN, REPLACED, *[FOREIGN] * crosses_projects(), *[TALK] * bool(conversations)]


def own_first(hits: list[Hit], limit: int, least: float) -> list[Hit]:
    """The first `limit` hits, of which at most half are other projects' while own ones fit."""
    own = sum(not hit.foreign and hit.relevance >= least for hit in hits)
    room = max((limit + 1) // 2, limit - own)
    kept = []
    for hit in hits:
        room -= hit.foreign
        if room >= 0 or not hit.foreign:
            kept.append(hit)
    return kept[:limit]


def chosen_hits(hits: list[Hit], limit: int, least: float) -> list[Hit]:
    """The first `limit` hits. Those with less than the `least` relevance come last, and so take no
    place of another."""
    return own_first(sorted(hits, key=lambda hit: hit.relevance < least), limit, least)


def relevant(hits: list[Hit], least: float) -> list[Hit]:
    """The hits that have at least this relevance to the query."""
    return [hit for hit in hits if hit.relevance >= least]


# ---------------------------------------------------------------------------------------------
# Consolidation
#
# Memories that say the same become one, in the background. Nearness proposes a pair; what the
# two texts say differently decides, because a number, a name or a "not" hardly moves a vector.
# The later text stays, the other is hidden behind it as a replaced one is, and undo restores it.
# ---------------------------------------------------------------------------------------------

# What two texts say differently. They must be the same but for layout, kinds of quotes and dashes,
# and a remark at either edge that speaks of the memory and not of the world. The remarks are these
# whole phrases; any other difference counts, in any language.

_NEGATED = LazyPattern(r"\b(?!(?:ca|wo|sha|ai)n't)([a-z]+)n't\b", re.I)
_A_NOTE = r"(?:just |as )?(?:a )?(?:quick |friendly )?(?:note|reminder)"
_BEFORE = LazyPattern(
    rf"\**(?:(?:{_A_NOTE}|important|fyi|nb|heads[ -]up|to recap|just to be clear):"
    r"|(?:(?:just|as) a (?:quick |friendly )?(?:note|reminder)|fyi|nb|just to be clear),"
    r"|(?:a )?(?:quick|friendly) (?:note|reminder) -"
    r"|(?:please |also )?(?:it(?: i|')s (?:important|worth) to )?"
    r"(?:remember|note|noting|(?:keep|bear) in mind|don't forget) that)\**\s+",
    re.I,
)
_ASSENT = "(?:(?:re)?confirmed|verified|double-checked|noted)"
_HOLDS = (
    "(?:this (?:is )?)?still (?:valid|true|correct|accurate|current|applies|relevant)"
    "|this is (?:still (?:the|our)|(?:the|our) current)"
    " (?:approach|decision|choice|convention|method)"
)
# Only in a text of one line, since in a list it may be about the last item. And not in brackets
# after a word in brackets, for both may be items: "(new) (confirmed)".
_BEHIND = LazyPattern(
    r".* (?![(\[]\S*[)\]] [(\[])\S+?"
    rf"(?P<remark> [(\[](?:{_ASSENT}(?: and {_ASSENT})*|{_HOLDS})[)\]]"
    rf"| - (?:{_HOLDS})|\. (?=this )(?:{_HOLDS}))\.?$",
    re.I,
)
# In a text with one of these words, a change of case is a difference.
_CASED = _word_class(
    "password passphrase passcode passkey uppercase lowercase capital capitals casing"
)


def core_words(text: str) -> list[str]:
    """The words of a text without the remarks around it: ["keep", "it", "for", "30", "days"]."""
    core, _ = _core(text)
    return core.split(" ") if core else []


def differences(a: str, b: str) -> list[str]:
    """Why two memories must not be merged, as "30 / 45"; nothing if they say the same."""
    if normalized(a) == normalized(b):
        return []
    if max(len(a.split()), len(b.split())) > COMPARED_WORDS:
        return ["too long to be compared word by word"]
    (core_a, introduced_a), (core_b, introduced_b) = _core(a), _core(b)
    quoted = introduced_a or introduced_b
    if core_a == core_b or (quoted and _same_but_case(core_a, core_b)):
        return []
    return _reasons(core_words(a), core_words(b))


def _core(text: str) -> tuple[str, bool]:
    """A memory, normalized, without the remarks around it; and whether there was one before it."""
    text = _tidied(text)
    if _LAID_OUT.search(text):  # "note:" may be a key
        return normalized(text), False
    text = text.strip()
    before = _BEFORE.match(text)
    start, end = before.end() if before else 0, len(text)
    if behind := _BEHIND.match(text, start):
        end = behind.start("remark")
    if len(text[start:end].split()) < CORE_MIN:
        start, end = 0, len(text)
    core = re.sub(r"(?i)\b(can)'t\b", r"\1not", _NEGATED.sub(r"\1 not", text[start:end]))
    return normalized(core), start > 0


def _same_but_case(a: str, b: str) -> bool:
    """Whether texts differ only as a quoted one may: in the case of the first letter, or because
    one has no capitals."""
    lower = a.lower()
    if lower != b.lower() or _CASED & set(re.findall("[a-z]+", lower)):
        return False
    return lower in {a, b} or a[1:] == b[1:]


def _reasons(left: list[str], right: list[str]) -> list[str]:
    """What differs between two lists of words, at most eight differences."""
    low_left, low_right = ([word.lower() for word in words] for words in (left, right))
    if low_left != low_right and sorted(low_left) == sorted(low_right):
        return [f"order: {_excerpt(left, right)}"]
    from difflib import SequenceMatcher

    codes = SequenceMatcher(None, left, right).get_opcodes()
    found = [_excerpt(left[i:j], right[k:m]) for tag, i, j, k, m in codes if tag != "equal"]
    return found[:8]


def _excerpt(left: list[str], right: list[str]) -> str:
    """Both sides of a difference on a line: "30 / 45", with "-" for nothing."""
    a, b = (" ".join(words).replace("\n", "\\n") or "-" for words in (left, right))
    shorter = min(len(a), len(b))
    same = next((index for index in range(shorter) if a[index] != b[index]), shorter)
    skip = max(same - 9, 0)  # two addresses may differ late
    return " / ".join("…" * (skip > 0) + text[skip : skip + 24] for text in (a, b))


# Pairs: found, queued, judged, settled.


class Pair(NamedTuple):
    """Two live items that may say the same."""

    keep: str  # the id of the later one, which would stay
    other: str  # the id of the one that would be hidden
    similarity: float  # cosine
    reasons: list[str]  # against a merge


# The row (seq) up to which every memory has been compared with those before it.
_EXAMINED = "coalesce((SELECT value + 0 FROM meta WHERE key = 'examined'), 0)"
# The newest row has been examined against the rows up to `?`: note it, if no other is between.
_EXAMINED_NEXT = (
    "INSERT OR REPLACE INTO meta SELECT 'examined', (SELECT max(seq) FROM items)"
    " WHERE (SELECT count(*) FROM (SELECT 1 FROM items"
    f" WHERE seq > min({_EXAMINED}, ?) LIMIT 2)) = 1"
)
# Note the newest row if none that is new has to be examined: parts of files and versions that were
# replaced have not.
EXAMINED_FILES = (
    "INSERT OR REPLACE INTO meta SELECT 'examined', (SELECT max(seq) FROM items)"
    f" WHERE EXISTS(SELECT 1 FROM items WHERE seq > {_EXAMINED})"
    f" AND NOT EXISTS(SELECT 1 FROM items i WHERE seq > {_EXAMINED} AND {IS_MEMORY})"
)


def near_pairs(database: Database, after: int) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Pairs of near items of one project: each item behind row `after` with the CONFLICTS_QUEUED
    nearest ones before it.

    Yields (last row examined, [(later id, other id, cosine)]) a batch, up to the end or to the
    first item that still lacks its vector. A long item is compared by its first chunk.
    """
    while rows := _first_vectors(database, after, EXAMINE_BATCH):
        found: dict[str, list[tuple[float, str]]] = {}
        after, before = rows[-1][0], 0
        while before < after and (others := _first_vectors(database, before, EXAMINE_BATCH)):
            for id, other, cosine in _near_earlier(rows, others):
                found.setdefault(id, []).append((cosine, other))
            before = others[-1][0]
        nearest = ((id, sorted(near)[-CONFLICTS_QUEUED:]) for id, near in found.items())
        yield after, [(id, other, cosine) for id, near in nearest for cosine, other in near]


def _near_earlier(
    rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]]
) -> Iterator[tuple[str, str, float]]:
    """(id, other id, cosine): of each row the nearest of the others that are earlier."""
    cosines = stack_vectors(rows) @ stack_vectors(others).T
    if cosines.max() < CONFLICT_COSINE:
        return
    (seqs, _, projects, _), (other_seqs, _, other_projects, _) = (
        [numpy.array(column, object) for column in zip(*side, strict=True)]
        for side in (rows, others)
    )
    fits = (other_seqs < seqs[:, None]) & (other_projects == projects[:, None])
    cosines = numpy.where(fits.astype(bool), cosines, -1)
    nearest = numpy.argsort(-cosines, 1, kind="stable")[:, :CONFLICTS_QUEUED].tolist()
    for row, columns in enumerate(nearest):
        for column in columns:
            if cosines[row, column] >= CONFLICT_COSINE:
                yield rows[row][1], others[column][1], float(cosines[row, column])


def _first_vectors(database: Database, after: int, limit: int) -> list[tuple[Any, ...]]:
    """(seq, id, project, vector of the first chunk) of the live memories behind row `after`, up to
    the first that lacks its vector."""
    sql = (
        "SELECT i.seq, i.id, i.project_id, v.vector FROM items i"
        " JOIN chunks c ON c.item = i.seq AND c.position = 0 JOIN vectors v ON v.chunk = c.id"
        f" WHERE {IS_MEMORY} AND i.seq > ? AND i.seq < coalesce((SELECT min(w.item) FROM pending p"
        " JOIN chunks w ON w.id = p.chunk AND w.position = 0), 1 << 62) ORDER BY i.seq LIMIT ?"
    )
    return database.rows(sql, after, limit)


def queued_pairs(database: Database, limit: int) -> list[tuple[str, str, float]]:
    """(id, other id, cosine) of waiting pairs that have all their vectors, nearest first."""
    return database.rows(
        "SELECT item_id_a, item_id_b, similarity FROM consolidation_queue WHERE status = 'pending'"
        " AND NOT EXISTS(SELECT 1 FROM pending p JOIN chunks c ON c.id = p.chunk"
        " JOIN items i ON i.seq = c.item WHERE i.id IN (item_id_a, item_id_b))"
        " ORDER BY similarity DESC, item_id_a, item_id_b LIMIT ?",
        limit,
    )


def taken_apart(one: str = "?1", other: str = "?2") -> str:
    """The SQL query for whether somebody has undone that two items became one, or keeps both."""
    ids = f"({one}, {other})"
    return (
        f"SELECT 1 FROM history WHERE action = 'undo' AND item_id IN {ids} AND other_id IN {ids}"
        f" UNION ALL SELECT 1 FROM reviews WHERE kept AND old_id IN {ids} AND new_id IN {ids}"
    )


_ONE_EXPIRES = (
    f"SELECT 1 FROM marks JOIN items ON seq = item WHERE name = '{EXPIRY}' AND id IN (?1, ?2)"
)


def decide_merge(
    database: Database, ids: tuple[str, str], embed: Callable[[str], bytes]
) -> Pair | None:
    """Two items with the reasons against merging them; None if one of them is not live."""
    dated = f"iif(i.created_at < i.stored_at - {DATED}, i.created_at, NULL)"
    sql = f"SELECT i.seq, i.id, i.content, i.project_id, {dated} FROM items i WHERE {_LIVE}"
    with database.snapshot():
        rows = database.rows(f"{sql} AND i.id IN (?, ?) ORDER BY i.created_at DESC, i.id", *ids)
        if len(rows) < 2:
            return None
        (seq, id, text, project, at), (other_seq, other, other_text, other_project, other_at) = rows
        cosine = cosine_of(_mean_vector(database, seq), _mean_vector(database, other_seq))
    reasons = differences(other_text, text)
    if not reasons and cosine < MERGE_COSINE:  # a remark may move a vector that far
        vectors = (
            vector_from(embed(" ".join(core_words(content)))) for content in (text, other_text)
        )
        cosine = cosine_of(*vectors)
    if cosine < MERGE_COSINE:
        reasons.append(f"cosine: {cosine:.3f}")
    if project != other_project:
        reasons.append("project: they belong to different ones")
    if None not in (at, other_at) and at != other_at and normalized(text) == normalized(other_text):
        reasons.append("date: the same was noted of two times")  # in a diary, say
    if database.value(taken_apart(), *ids):
        reasons.append("undo or review: somebody wants both")
    if database.value(_ONE_EXPIRES, *ids):
        reasons.append("end: one of them ends")
    return Pair(id, other, cosine, reasons)


def _mean_vector(database: Database, item: int) -> Any:
    """float32[dimension]: the mean of the vectors of an item's chunks."""
    sql = "SELECT v.vector FROM chunks c JOIN vectors v ON v.chunk = c.id WHERE c.item = ?"
    return stack_vectors(database.rows(sql, item)).mean(0)


def vector_from(data: bytes) -> Any:
    """float32[dimension]. Raises DamagedError."""
    return stack_vectors([(data,)])[0]


def cosine_of(a: Any, b: Any) -> float:
    """Raises DamagedError for vectors of no or of unequal length."""
    lengths = float(numpy.linalg.norm(a) * numpy.linalg.norm(b))
    if a.shape != b.shape or not 0 < lengths < math.inf:  # NaN too
        raise DamagedError(_NO_VECTORS)
    return float(a @ b) / lengths


def apply_merge(connection: apsw.Connection, ids: tuple[str, str], pair: Pair | None) -> str:
    """Merge a queued pair, or link it if there are reasons against that: "merged", "linked", or
    "gone" if one of the two is not live."""
    sql = (
        "SELECT count(*), count(DISTINCT coalesce(i.project_id, '')) FROM items i"
        f" WHERE {_LIVE} AND i.id IN (?, ?)"
    )
    live, projects = fetch(connection, sql, *ids)[0]
    status = "linked"
    if pair is None or live < 2 or (projects > 1 and not pair.reasons):  # others were quicker
        status = "gone"
    elif pair.reasons or any(fetch(connection, sql, *ids) for sql in (taken_apart(), _ONE_EXPIRES)):
        apart = any(reason.startswith("project") for reason in pair.reasons)
        label = "cross-project-similar" if apart else "similar"
        link(connection, pair.keep, pair.other, RELATED, pair.similarity, label)
    else:
        end_item(connection, pair.other, pair.keep, "merge")
        status = "merged"
    connection.execute(
        "UPDATE consolidation_queue SET status = ? WHERE item_id_a = ? AND item_id_b = ?",
        (status, *ids),
    )
    return status


def consolidates() -> bool:
    """Whether memories are consolidated in the background; not with SEDIMENT_CONSOLIDATE=0."""
    return not is_off("CONSOLIDATE")


def clean_queue(connection: apsw.Connection) -> None:
    """Delete settled pairs a week after they were queued. Those that wait stay: nothing queues them
    again."""
    sql = "DELETE FROM consolidation_queue WHERE status <> 'pending' AND created_at < ?"
    connection.execute(sql, (int(time.time()) - SETTLED_KEPT,))


# ---------------------------------------------------------------------------------------------
# Supersession at store
#
# Which older memories a new one makes obsolete. The agent that stores can judge that if it is asked
# about the right ones: `store` names a few, by the model of section Versions, and ends none of
# them. What nobody answers, and what came by import, waits for `review`.
# ---------------------------------------------------------------------------------------------


class Neighbour(NamedTuple):
    """A live memory near to a new one, by its best chunk."""

    cosine: float
    id: str
    text: str  # of the chunk, as the vector is
    vector: bytes
    created_at: int
    seq: int = 0


_NEIGHBOUR = (
    'i.id, substr(i.content, c.start + 1, c."end" - c.start), v.vector,'
    " min(i.created_at, i.stored_at), i.seq"
)


def _newcomer(item: Item) -> Neighbour:
    """An item that is to be stored, by its first chunk; the vector is empty until it is made."""
    start, end = item.chunks[0][:2]
    vector = item.vectors[0] if item.vectors else b""
    return Neighbour(1.0, item.id, item.content[start:end], vector, item.created_at)


def queue_obsolete(connection: apsw.Connection, new: str, old: list[tuple[str, float]]) -> None:
    """Queue for `review` the older memories (id, probability) that a new one may make obsolete,
    where that is likely enough to be worth a person's look."""
    connection.executemany(
        "INSERT OR IGNORE INTO reviews(old_id, new_id, probability)"
        " SELECT o.id, n.id, ?3 FROM items o, items n WHERE o.id = ?1 AND n.id = ?2",
        [(id, new, chance) for id, chance in old if chance >= REVIEWED],
    )


def reviewable(database: Database) -> list[tuple[str, str, str, float]]:
    """(old id, new id, "probability" or "alike", how much of that) of pairs of live memories that
    nobody has decided on: the queued ones, then those that are the same but for a few words."""
    likely = "SELECT 1, old_id, new_id, 'probability', probability AS share FROM reviews r"
    apart = taken_apart("r.old_id", "r.new_id")
    decided = f"{taken_apart('a.id', 'b.id')} UNION ALL SELECT 1 FROM reviews"
    decided += " WHERE (old_id, new_id) IN (VALUES (a.id, b.id), (b.id, a.id))"
    alike = (
        "SELECT 2, a.id, b.id, 'alike', e.strength FROM graph_edges e"
        " JOIN items a ON a.id IN (from_id, to_id) JOIN items b ON b.id IN (from_id, to_id)"
        f" AND (b.created_at, b.seq) > (a.created_at, a.seq) WHERE edge_type = '{RELATED}'"
        f" AND e.strength >= {MERGE_COSINE} AND NOT EXISTS({decided})"
        " AND a.ended_at IS NULL AND b.ended_at IS NULL"
        " AND a.seq NOT IN past AND b.seq NOT IN past"
    )
    live = f"SELECT count(*) FROM items i WHERE id IN (old_id, new_id) AND {_LIVE}"
    likely += f" WHERE 2 = ({live}) AND NOT EXISTS({apart})"
    sql = f"{likely} UNION ALL {alike} ORDER BY 1, 5 DESC, 2, 3"
    return [row[1:] for row in database.rows(sql)]


def keep_apart(connection: apsw.Connection, old: str, new: str) -> None:
    """Note that somebody decided to keep both."""
    connection.execute(
        "INSERT INTO reviews(old_id, new_id, probability, kept) VALUES(?, ?, 0, 1)"
        " ON CONFLICT DO UPDATE SET kept = 1",
        (old, new),
    )


def obsolescence(new: Neighbour, neighbours: Sequence[Neighbour], lexicon: Lexicon) -> list[float]:
    """The probability of each neighbour that the new memory makes it obsolete; 0 for later ones."""
    texts = [lexicon.text_words(memory.text) for memory in (*neighbours, new)]
    vectors = stack_vectors([(memory.vector,) for memory in (*neighbours, new)])
    created = numpy.array([memory.created_at for memory in (*neighbours, new)], float)
    notes = Notes(WordTable(texts, lexicon.text_words("")), vectors, created)
    odds = log_odds(pair_features(notes, slice(-1, None)), "pair")[:-1, 0]
    return [
        chance if neighbour.created_at <= new.created_at else 0.0
        for chance, neighbour in zip((1 / (1 + numpy.exp(-odds))).tolist(), neighbours, strict=True)
    ]


# ---------------------------------------------------------------------------------------------
# Documents
#
# What is stored of files and of conversations: a document whose parts are items. A conversation is
# a file of the source CONVERSATIONS, which is on no disk, and a turn is a part of it. What reads
# files and transcripts is in sediment_ext.
# ---------------------------------------------------------------------------------------------


# The sources of conversations, whose files are on no disk.
CONVERSATION_SOURCES = f"SELECT id FROM sources WHERE path = '{CONVERSATIONS}'"
RECORD_COLUMNS = "size, changed_at, touched_at, read_at, digest"
FORGOTTEN_SIZE = -2  # the size in the row of a session that was forgotten


class Session(NamedTuple):
    """A session that is stored."""

    file: int  # its id among the files
    project: str
    resume: int  # the byte to read from


PROMPT_LABEL, ANSWER_LABEL = "User: ", "\n\nAssistant: "


def prompt_of(content: str) -> str:
    """The prompt of a turn whose text `turn_text` made."""
    return content.removeprefix(PROMPT_LABEL).partition(ANSWER_LABEL)[0]


def find_session(database: Database, name: str) -> Session | None:
    """What is stored of a session, also if it was forgotten; None if nothing was."""
    sql = (
        "SELECT id, project_id, size FROM files WHERE path = ? AND source IN"
        f" ({CONVERSATION_SOURCES})"
    )
    rows = database.rows(sql, name)
    return Session(*rows[0]) if rows else None


def is_session(projects: Projects, id: object) -> bool:
    """Whether an id is the name of a session that is stored, of this project or of none."""
    is_name = isinstance(id, str) and ":" in id and id.isprintable()
    kept = find_session(projects.database, str(id)) if is_name else None
    return kept is not None and kept.project in ("", projects.current())


# The key in meta, before a turn's id, of the session in which it was forgotten: a fork has it, too.
FORGOTTEN = "forgotten:"


def forget_session(connection: apsw.Connection, name: str) -> int:
    """Erase the turns of a session, which is never stored again; how many it had."""
    session = f"path = ? AND source IN ({CONVERSATION_SOURCES})"
    sql = f"SELECT id FROM items WHERE file IN (SELECT id FROM files WHERE {session})"
    ids = [id for (id,) in fetch(connection, sql, name)]
    for id in ids:
        erase_item(connection, id)
        set_meta(connection, f"{FORGOTTEN}{id}", name)
    connection.execute(f"UPDATE files SET size = {FORGOTTEN_SIZE} WHERE {session}", (name,))
    return len(ids)


# ---------------------------------------------------------------------------------------------
# Care
#
# Checks, and what is done when they fail. What is derived is made anew from the texts. A file
# that SQLite gives up at the first bad page is read page by page, and what still can be read is
# put into a new one. Nothing is done to a file before a copy of it lies beside it.
# ---------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """One thing that was looked at: `status` is ok, warning or broken."""

    name: str
    status: str
    detail: str = ""


def some_of(names: list[str], most: int = 3) -> str:
    """The first names, and a mark where there are more."""
    return ", ".join(names[:most]) + ", …" * (len(names) > most)


def unreadable_texts(connection: apsw.Connection) -> Iterator[tuple[str, str, bytes, str]]:
    """(table, column, bytes, where it stands) of each text that is not UTF-8, as a flipped bit
    leaves it: a query that returns it fails. SQLite itself finds such a file sound."""
    sql = """
        SELECT t.name, c.name FROM pragma_table_list t, pragma_table_info(t.name) c
        WHERE t.schema = 'main' AND t.type = 'table' AND t.name <> 'sqlite_schema'
            AND c.type = 'TEXT' ORDER BY t.name
    """
    for table, group in itertools.groupby(fetch(connection, sql), key=lambda row: row[0]):
        columns = [f'"{column}"' for _, column in group]
        try:  # quickly, since hardly any file has such texts
            deque(connection.execute(f"SELECT {', '.join(columns)} FROM {table}"), maxlen=0)
        except UnicodeDecodeError:
            for column in columns:
                yield from unreadable_in(connection, table, column)


def unreadable_in(
    connection: apsw.Connection, table: str, column: str
) -> Iterator[tuple[str, str, bytes, str]]:
    name = "CAST(id AS BLOB)" if table == "items" else f"CAST('{table}' AS BLOB)"
    sql = f"SELECT CAST({column} AS BLOB), {name} FROM {table} NOT INDEXED"
    for data, place in fetch(connection, sql):
        if data and data.decode(errors="ignore").encode() != data:
            yield table, column, data, printable(place.decode(errors="replace"))


def unreadable_phrase(connection: apsw.Connection) -> str:
    """How many texts are not UTF-8, and where; "" where all can be read."""
    places = [place for *_, place in unreadable_texts(connection)]
    return f"{number_of(len(places), 'text')} not in UTF-8: {some_of(places)}" if places else ""


def check_pages(connection: apsw.Connection) -> str:
    """What SQLite finds wrong with the file, with the error that ended its check; "" when it is
    sound."""
    found: list[str] = []
    try:
        rows = connection.execute("PRAGMA integrity_check(20)")
        found += (line for row in rows for line in row[0].splitlines())
    except (apsw.CorruptError, apsw.NotADBError, apsw.IOError, apsw.SQLError) as error:
        if isinstance(error, apsw.IOError) and _no_room(Path(connection.filename)):
            raise  # the disk is full, which says nothing of the file
        found.append(str(error))
    return "" if found == ["ok"] else "; ".join(dict.fromkeys(found))


def vector_dimension(connection: apsw.Connection, encoder: Encoder) -> int:
    """How many numbers each of the file's vectors has, or is to have."""
    noted = meta_value(connection, "dimension") or str(encoder.model.dimension)
    if not noted.isdecimal():
        raise DamagedError(f"{shown_value(noted)} is not a length of vectors: run `reindex`")
    return int(noted)


def replace_chunks(connection: apsw.Connection, table: str) -> None:
    """Replace all chunks and vectors by those in a table."""
    connection.execute(f"""
        DELETE FROM chunks;
        INSERT INTO chunks(item, position, start, "end", context)
            SELECT item, position, start, "end", context FROM {table} ORDER BY item, position;
        INSERT INTO vectors SELECT c.id, t.vector FROM chunks c JOIN {table} t
            ON t.item = c.item AND t.position = c.position WHERE length(t.vector);
    """)


# Copies, and putting one in the place of the file


def database_counts(database: Database, where: str = "true", *values: Any) -> dict[str, int]:
    with database.translate_errors():
        return count_items(database.reader(), where, *values)


def exchange_file(database: Database, new: Path, kept: Path) -> None:
    """Put a file in the place of a damaged one, which stays under another name."""
    database.close()
    link_or_copy(database.path, kept)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{database.path}{suffix}", f"{kept}{suffix}")
    make_private(new)
    replace_file(new, database.path)


# Checks of everything, and repair


def left_in_copies(database: Database) -> dict[str, list[str]]:
    """Remove what killed processes left beside the file. Returns {copies?}: where erased texts may
    still stand."""
    remove_abandoned_drafts(database.path)
    kept = copies(database)
    return {"copies": kept} if kept else {}


def and_versions(count: int) -> str:
    return f" and {number_of(count, 'older version')}" if count else ""


def database_stats(projects: Projects, encoder: Encoder, verify: bool) -> dict[str, Any]:
    """What there is: the file, its counts, the project, the model."""
    database, project, model = projects.database, projects.current(), encoder.model
    if verify:
        model.check(full=True)
    alone, count = kept_to_one_project(), "SELECT count(*) FROM items i WHERE"
    own, values = (IN_OWN_SCOPE, (project,)) if alone else ("true", ())
    chunks = f"SELECT count(*) FROM {{}} JOIN items i ON i.seq = c.item WHERE {own}"
    pending = chunks.format("pending p JOIN chunks c ON c.id = p.chunk")
    clones = [] if alone else projects.other_clones()
    shared = f"{', '.join(clones)} (`init --new-project` separates this clone)"
    return {
        "database": str(database.path),
        "exists": database.path.exists(),
        **({} if alone else {"bytes": database.size()}),
        "schema": max(MIGRATIONS),
        **database_counts(database, own, *values),
        "chunks": database.value(chunks.format("chunks c"), *values),
        "pending_chunks": database.value(pending, *values),
        "project": project,
        "project_items": database.value(f"{count} {IS_MEMORY} AND i.project_id = ?", project),
        "global_items": database.value(f"{count} {_MEMORY_GLOBAL}"),
        **model_facts(database, encoder),
        **({"verified": True} if verify else {}),
        **({"shared_with": shared} if clones else {}),
    }


def model_facts(database: Database, encoder: Encoder) -> dict[str, Any]:
    """{model, dimension, same_model?}: the last, whether the file's vectors are of it, is not known
    of a service that was not asked yet."""
    model = encoder.model
    dimension = model.dimension or vector_dimension(database.reader(), encoder)
    is_known = not model.destination or model.probe
    same = {"same_model": same_model(database, model)} if is_known else {}
    return {"model": model.name, "dimension": dimension, **same}


# ---------------------------------------------------------------------------------------------
# Naming a memory
#
# People and agents name a memory by its id or by how that begins. What a command may do with it
# depends on where it stands: in another project, in a file, in a conversation, behind a newer one.
# ---------------------------------------------------------------------------------------------


def items_beginning(projects: Projects, prefix: str) -> list[dict[str, Any]]:
    """Items whose ids begin so, two at most: the project's and global ones or, where there are
    none, those of other projects that recall shows."""
    for where in (IN_OWN_SCOPE, _FOREIGN) if crosses_projects() else (IN_OWN_SCOPE,):
        sql = f"SELECT {ITEM_COLUMNS} FROM items i WHERE substr(i.id, 1, ?) = ? AND {where} LIMIT 2"
        if rows := projects.database.rows(sql, len(prefix), prefix, projects.current()):
            return list(map(item_from, rows))
    return []


def named_item(projects: Projects, query: str) -> dict[str, Any] | None:
    """The item whose id a query is, or the first 8 characters or more of it."""
    row = find_item(projects.database, query)
    if row is None and re.fullmatch(r"[0-9a-f]{8}[0-9a-f-]{0,28}", query):
        found = items_beginning(projects, query)
        return found[0] if len(found) == 1 else None
    return row


def given_item(projects: Projects, id: object) -> dict[str, Any]:
    """The item with an id, or the one whose id begins so."""
    given = check_id(id)
    row = find_item(projects.database, given)
    found = [row] if row else items_beginning(projects, given)
    if kept_to_one_project():
        found = [row for row in found if not projects.is_foreign(row)]
    if len(found) > 1:
        raise Conflict(f"several ids begin with {shown_value(given)}: give more of it")
    if not found:
        raise _no_item(projects, given)
    return found[0]


def _no_item(projects: Projects, given: str) -> NotFound:
    """The error that says why there is no such memory here."""
    kept = find_session(projects.database, given)
    if kept is None or kept.resume == FORGOTTEN_SIZE or not is_session(projects, given):
        return NotFound(f"no memory with the id {shown_value(given)} (not found): see `list`")
    advice = f": `list --conversations` names it, `forget {given}` erases it"
    return NotFound(f"{shown_value(given)} is a conversation", advice)


def visible_item(projects: Projects, id: str) -> dict[str, Any]:
    """An item that recall may show here, live or hidden, by its id or its beginning."""
    row = given_item(projects, id)
    if not may_read(projects, row):
        check_own(projects, row, "read")
    return row


def own_item(projects: Projects, id: object, action: str) -> dict[str, Any]:
    """A live or pruned memory that this project may change: `forget`, `replace` or `move` it."""
    row = given_item(projects, id)
    if row["id"] != id and len(str(id)) < PREFIX_MIN:
        raise Conflict(f"{action} by {PREFIX_MIN} characters of the id or more: {row['id']}")
    check_own(projects, row, "change")
    if row["ended_at"] is not None and (front := standing_for(projects.database, row["id"])):
        front = short_id(front)
        remedy = f"`forget {front}` deletes both" if action == "forget" else f"name {front} instead"
        reason = f"{short_id(row['id'])} was replaced by {front}: {remedy}"
        raise NotFound(reason, f", `undo {short_id(row['id'])}` restores it")
    if row["content_type"] == CONVERSATION:
        reason = f"{row['id']} was said in {source_of(row, projects)}"
        raise InvalidInput(f"{reason}: `forget {row['path']}` erases that conversation")
    if row["path"] is not None:
        raise InvalidInput(f"{row['id']} stands in {source_of(row, projects)}: edit that file")
    return row


def item_to_replace(projects: Projects, id: object) -> dict[str, Any]:
    """A live memory that this project may replace by another, or another by it."""
    row = own_item(projects, id, "replace")
    if row["ended_at"] is not None:
        raise InvalidInput(f"{row['id']} was pruned", f": `undo {row['id']}` it first")
    return row


def check_own(projects: Projects, row: dict[str, Any], verb: str) -> None:
    """NotFound for another project's item, which cannot be read or changed from here."""
    if projects.is_foreign(row):
        reason = f"{row['id']} belongs to another project: {verb} it there"
        raise NotFound(reason, f" (`{project_option(row['project_id'])}`)")


def check_reach(old: dict[str, Any], project: str | None, instead: str) -> None:
    """Conflict where a global memory would be hidden behind one of a single project."""
    if old["project_id"] is None and project is not None:
        id = short_id(old["id"])
        reason = f"{id} is global, but the memory that is to replace it is in one project"
        raise Conflict(f"{reason}: {instead}", f", or `move {id} project` first")


def standing_for(database: Database, id: str) -> str | None:
    """The live item that a hidden one is behind, directly or through others."""
    sql = (
        "WITH RECURSIVE ahead(id) AS (SELECT ?1 UNION"
        " SELECT i.successor FROM items i JOIN ahead USING (id))"
        f" SELECT i.id FROM items i JOIN ahead USING (id) WHERE {_LIVE}"
    )
    return database.value(sql, id)


def may_read(projects: Projects, row: dict[str, Any]) -> bool:
    """Whether recall shows it here."""
    shared = crosses_projects() and row["content_type"] != CONVERSATION
    return shared or not projects.is_foreign(row)


def items_by_row(database: Database, seqs: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Items by row number, in the order asked for."""
    if not (wanted := list(seqs)):
        return {}
    sql = f"SELECT {ITEM_COLUMNS} FROM items i WHERE i.seq IN (SELECT value FROM json_each(?))"
    rows = {row[0]: item_from(row) for row in database.rows(sql, json.dumps(wanted))}
    return {seq: rows[seq] for seq in wanted if seq in rows}


# ---------------------------------------------------------------------------------------------
# Search
#
# What a recall does, from the question to the answer: look for candidates in one snapshot, rank
# them, look whether the files that they stand in have changed, and make the results.
# ---------------------------------------------------------------------------------------------


def pending_chunks(
    database: Database, limit: int, among: list[int] | None = None
) -> list[tuple[int, str]]:
    """The first chunks without a vector, of all or of some, and what the encoder reads of each."""
    where = "" if among is None else "WHERE p.chunk IN (SELECT value FROM json_each(?2))"
    rows = database.rows(
        'SELECT p.chunk, i.content, c.start, c."end", c.context'
        " FROM pending p JOIN chunks c ON c.id = p.chunk JOIN items i ON i.seq = c.item"
        f" {where} ORDER BY p.chunk LIMIT ?1",
        limit,
        *([] if among is None else [json.dumps(among)]),
    )
    return [(chunk, embedding_text(content, Chunk(*span))) for chunk, content, *span in rows]


class Request(NamedTuple):
    """What recall is asked."""

    text: str
    limit: int
    profile: Profile
    moment: int | None = None  # as of when, in unix seconds; None is now
    depth: int = CANDIDATES  # of each index
    source: str | None = None  # how the paths begin of the files that are asked
    kinds: Sequence[int] = (OWN, FOREIGN, TALK, REPLACED)
    tags: Sequence[str] = ()  # that a memory must have


class Found(NamedTuple):
    """The best candidates of a request, and what else ranking needs."""

    hits: list[Hit]
    facts: dict[int, RankFacts]  # of each hit, by row number
    query: Query
    floor: float  # the relevance that one of the hits must have
    blank: set[int]  # files that were away or had no text
    listed: bool = False  # whether the hits are all of the time asked, and in its order


class Sources:
    """What a search asks of indexed files. These answers are for a database without any; the
    extension `files` has those for the others."""

    def __init__(self, projects: Projects, encoder: Encoder) -> None:
        self.projects, self.database, self.encoder = projects, projects.database, encoder

    def take_in_new(self) -> str:
        """Index the new files of indexed folders. Returns a notice where these are too many."""
        return ""

    def catch_up(self, files: set[int]) -> bool:
        """Index those files again that have changed, and return whether there were any."""
        return False

    def stale(self, files: set[int]) -> set[int]:
        """Return those files that are not as their records have them."""
        return set()

    def blank(self) -> set[int]:
        """Within a snapshot, the files that were away or had no text at the last look."""
        return set()

    def in_other_checkouts(self, files: set[int]) -> set[int]:
        """Return those files that stand in another checkout of the project's repository."""
        return set()

    def notice(self) -> str:
        """Within a snapshot, a notice where all that this project has indexed is gone."""
        return ""


class View:
    """The database as seen from a project, with what finds and compares its memories."""

    def __init__(
        self, projects: Projects, encoder: Encoder, index: VectorIndex | None, lexicon: Lexicon
    ) -> None:
        self.projects, self.database = projects, projects.database
        self.encoder, self.index, self.lexicon = encoder, index, lexicon


class Search(View):
    """Answers questions: candidates are found in one snapshot, ranked, and found once more where
    a file that they stand in has changed meanwhile."""

    _not_searched = ""  # a notice of new files

    @functools.cached_property
    def sources(self) -> Sources:
        """The indexed files, if this database has any."""
        with self.database.snapshot():
            has_sources = self.database.state().has_sources
        kind = extension("files").IndexedSources if has_sources else Sources
        return kind(self.projects, self.encoder)

    def hits(self, request: Request, rounds: int = STALE_ROUNDS) -> tuple[list[Hit], float]:
        """The best hits, and the least relevance of one to show."""
        if request.moment is None and rounds == STALE_ROUNDS:
            with contextlib.suppress(DatabaseError, NotFound):
                self._not_searched = self.sources.take_in_new()
        found = self._found(request)
        hits = self._answerable(found, request.moment)
        if not found.listed:
            adjust = request.profile.adjust
            hits = adjust(hits, found.facts, found.query, self.lexicon, found.floor)
        hits = [self._unless_unanswered(hit, found) for hit in hits]
        least = request.profile.least(hits, found.floor)
        hits = chosen_hits(hits, request.limit, least)
        # What comes up in a further round may have changed, too: then all hits are looked at.
        shown = hits if rounds == STALE_ROUNDS else found.hits
        if request.moment is None and self._follow_shown(shown, found) and rounds:
            return self.hits(request, rounds - 1)
        return [hit._replace(span=found.facts[hit.item].span) for hit in hits], least

    def _found(self, request: Request) -> Found:
        """What a request finds, and what is known of it."""
        query = parse_query(request.text, request.moment)
        within = self._within(request, query.asked)
        with self.database.snapshot():
            hits = self._listed(query.asked, within)
            if hits or (query.asked and query.asked.alone and query.asked.events):
                facts = self._facts(hits, False)
                return Found(hits, facts, query, 0.0, self.sources.blank(), listed=True)
            return self._searched(request, query, within)

    def _searched(self, request: Request, query: Query, within: Within) -> Found:
        """The candidates of both indexes, the best by both, and what is known of these."""
        comparable = same_model(self.database, self.encoder.model)
        comparable = comparable and self.database.state().dimension > 0
        if comparable:
            self.encoder.begin_loading()
        words = self._weigh(query.text, within)
        matched = search_words(words, within)
        vector = self._query_vector(query.text, words) if comparable else None
        comparable, vector = vector is not None, vector or b""
        found, share = candidates(words, matched, vector, within)
        share *= 1.0 if self.lexicon.own else OTHERS_WORDS
        if comparable and not vector:  # the model knows no word of it: only the words count
            found = found._replace(cosine=cosines_to_candidates(found))
        elif vector and self.database.state().has_pending:
            found = self._with_waiting(found, vector)
        size = max(request.limit, RANKED)
        if vector and query.asked and query.asked.events:
            found = self._of_time(query.asked, vector, within, found)
            size = len(found.item)  # what is of that time may fit badly by all else
        factor = CROSS_PROJECT_FACTOR if within.project else 1.0
        hits, facts = self._ranked(found, share, request.profile, size, factor)
        hits = [beside_nearer_version(hit, facts.get(hit.item), vector) for hit in hits]
        near_cohort = self.encoder.near_cohort(vector)
        query = query._replace(strange=words.strange, near_cohort=near_cohort)
        strange = strange_beside(words, query, hits, facts, self.lexicon)
        unheard_of = is_unheard_of(words, query, found, strange)
        floor = request.profile.floor(words.chunks, near_cohort, strange, unheard_of)
        return Found(hits, facts, query, floor, self.sources.blank())

    def _weigh(self, text: str, within: Within) -> WeightedQuery:
        return weigh_query(within, text, self.lexicon)

    def _query_vector(self, text: str, words: WeightedQuery) -> bytes | None:
        """None where a service gives none, or has another model by now; b"" where the model knows
        no word of the query."""
        try:
            vector = self.encoder.embed_query(text, words.weights)
        except ServiceError:
            return None
        return vector if same_model(self.database, self.encoder.model) else None

    def _within(self, request: Request, asked: AskedTime | None) -> Within:
        """Where a request looks: for a question how things were, what held then, too."""
        live = live_at(request.moment) + tagged(request.tags)
        replaced = replaced_at(request.moment)
        if request.source is not None:
            live += extension("files").within_source(self.projects, request.source)
        where = self.database, self.projects.current(), live, replaced
        within = Within(*where, limit=request.depth, kinds=request.kinds)
        if request.moment is not None or request.source is not None or request.tags:
            return within
        if asked and asked.asks_how_things_were:
            within = within._replace(valid_then=replaced_since(asked.start, asked.end))
        return within._replace(index=self.index)

    def _answerable(self, found: Found, moment: int | None) -> list[Hit]:
        """The hits that may be shown: not of other projects' files that have changed, which are
        theirs to index, and not of what was forgotten just now."""
        facts = found.facts
        hits = [hit for hit in found.hits if hit.item in facts]
        if moment is None:
            foreign = {file for hit in hits if hit.foreign and (file := facts[hit.item].file)}
            stale = self.sources.stale(foreign)
            hits = [hit for hit in hits if facts[hit.item].file not in stale]
        return self._own_checkout_first(_each_text_once(hits, facts), facts)

    def _ranked(
        self, found: Candidates, share: float, profile: Profile, size: int, factor: float
    ) -> tuple[list[Hit], dict[int, RankFacts]]:
        """The best candidates, and what is known of them; all, where some say the same, so that
        these take no places of others."""
        hits = rank(found, share, profile, size, factor)
        facts = self._facts(hits, profile.links)
        if size < len(found.item) and len({fact.text for fact in facts.values()}) < len(facts):
            return self._ranked(found, share, profile, len(found.item), factor)
        return hits, facts

    def _unless_unanswered(self, hit: Hit, found: Found) -> Hit:
        """A hit, with no relevance where it is a turn that asks and tells nothing."""
        fact = found.facts[hit.item]
        is_whole_turn = fact.in_conversation and fact.text_hash == text_hash(fact.text)
        if is_whole_turn and is_unanswered(fact.text, found.query.text, self.lexicon):
            return hit._replace(score=0.0, relevance=0.0)
        return hit

    def _with_waiting(self, found: Candidates, vector: bytes) -> Candidates:
        """The candidates, with cosines for the best by words whose vectors are still to be made:
        without any these would seem to be about other things."""
        best = numpy.argsort(-found.relative, kind="stable")[:WAITING_CHUNKS]
        waiting = pending_chunks(self.database, WAITING_CHUNKS, found.chunk[best].tolist())
        try:
            vectors = self.encoder.embed_all(text for _, text in waiting)
        except ServiceError:
            return found
        query, rows = vector_from(vector), zip(waiting, vectors, strict=True)
        cosines = {chunk: cosine_of(vector_from(own), query) for (chunk, _), own in rows}
        made = numpy.array([cosines.get(chunk, -math.inf) for chunk in found.chunk.tolist()])
        new, cosine = numpy.isfinite(made), numpy.maximum(made, cosines_to_candidates(found))
        return found._replace(
            cosine=numpy.where(new, cosine, found.cosine),
            mean_cosine=numpy.where(new & numpy.isnan(found.cosine), made, found.mean_cosine),
        )

    def _listed(self, asked: AskedTime | None, within: Within) -> list[Hit]:
        """What is of a time that alone is asked for, here or global, the newest first; else of
        other projects."""
        if not asked or not asked.alone:
            return []
        sql = (
            "SELECT i.seq, min(c.id) FROM items i JOIN chunks c ON c.item = i.seq"
            f" WHERE {within.live} AND {_of_period(asked)} AND {{}} GROUP BY i.seq"
            " ORDER BY i.created_at DESC, i.seq DESC LIMIT ?"
        )
        wheres = {OWN: IN_OWN_SCOPE, FOREIGN: _FOREIGN}
        for kind in wheres.keys() & within.kinds:
            rows = self.database.rows(sql.format(wheres[kind]), within.project, within.limit)
            if rows:
                return [Hit(item, chunk, 1.0, 1.0, kind, 1.0, {}) for item, chunk in rows]
        return []

    def _of_time(
        self, asked: AskedTime, vector: bytes, within: Within, found: Candidates
    ) -> Candidates:
        """The candidates and what else is of the time that the question asks about, here or global:
        all that is of that time counts as having every word of the query."""
        where = f"{within.live} AND {_of_period(asked)} AND {IN_OWN_SCOPE}"
        near = search_vectors(self.database, vector, where, within.project, CANDIDATES)
        more = near.where(~numpy.isin(near.item, found.item, assume_unique=True))
        late = as_candidates(chunk_matches([]), more, 0.0, 0.0)
        every = Candidates(*map(numpy.append, found, late))
        fits = numpy.isin(every.item, near.item, assume_unique=True)
        return every._replace(coverage=numpy.where(fits, 1.0, every.coverage))

    def _facts(self, hits: list[Hit], links: bool) -> dict[int, RankFacts]:
        """What else ranking may look at, by row number."""
        count = "(SELECT count(*) FROM graph_edges WHERE {} = i.id)"
        counted = f"{count.format('from_id')} + {count.format('to_id')}" if links else "0"
        sql = (
            'SELECT i.seq, substr(i.content, c.start + 1, c."end" - c.start), i.created_at,'
            " coalesce(a.access_count, 0), a.last_accessed_at, coalesce(a.validation_count, 0),"
            f" {counted}, coalesce({HAS_DAY}, 1), CASE WHEN NOT {_IS_TURN} THEN i.file END,"
            f" v.vector, i.stored_at, {_IS_TURN}, i.project_id, {_HAS_REPLACED}, i.text_hash,"
            ' c.position, c.start, c."end"'
            " FROM chunks c JOIN items i ON i.seq = c.item"
            " LEFT JOIN access_log a ON a.item_id = i.id LEFT JOIN files f ON f.id = i.file"
            " LEFT JOIN vectors v ON v.chunk = c.id"
            " WHERE c.id IN (SELECT value FROM json_each(?))"
        )
        chunks = json.dumps([hit.chunk for hit in hits])
        return {
            item: RankFacts(matching_form(text), *columns, span=(position, start, end))
            for item, text, *columns, position, start, end in self.database.rows(sql, chunks)
        }

    def _own_checkout_first(self, hits: list[Hit], facts: dict[int, RankFacts]) -> list[Hit]:
        """The hits; those in files of the repository's other checkouts have the factor of other
        projects, so that they come first only if they are clearly better."""
        own = {file for hit in hits if not hit.foreign and (file := facts[hit.item].file)}
        elsewhere, factor = self.sources.in_other_checkouts(own), CROSS_PROJECT_FACTOR
        if not elsewhere:
            return hits
        return [
            hit._replace(score=hit.score * factor, parts=hit.parts | {"project": factor})
            if facts[hit.item].file in elsewhere and "project" in hit.parts
            else hit
            for hit in hits
        ]

    def _follow_shown(self, hits: list[Hit], found: Found) -> bool:
        """Index again those files of hits, or without text, that have changed, so that nobody is
        answered with what a file said before; whether there were any."""
        with contextlib.suppress(DatabaseError, NotFound):  # it cannot be written, or is just gone
            facts = [found.facts[hit.item] for hit in hits if hit.item in found.facts]
            shown = {file for fact in facts if (file := fact.file)}
            return self.sources.catch_up(shown | found.blank)
        return False

    def answer(
        self, request: Request, min_score: float | None, anyway: bool, explain: bool
    ) -> dict[str, Any]:
        """What `Memory.recall` returns: `anyway` all hits, else as `kept_hits` chooses."""
        hits, least = self.hits(request)
        kept = hits if anyway else kept_hits(hits, least, min_score)
        weak = {hit.item for hit in hits} - {hit.item for hit in relevant(hits, least)}
        with self.database.snapshot():
            results = list(self._explained(kept, explain, weak).values())
            answer = {"count": len(results), "results": results} | self._notice()
            if request.moment is None:
                answer |= self._around(results, weak)
        if hidden := len(hits) - len(kept):
            answer["held_back"] = hidden
        if not kept:
            answer["message"] = "Nothing found."
        return answer

    def _notice(self) -> dict[str, str]:
        """Why an answer is not as good as it could be."""
        notice = remark_on_vectors(self.database, self.encoder)
        notice = notice or self.sources.notice() or self._not_searched
        return {"notice": notice} if notice else {}

    def _explained(
        self, hits: list[Hit], explain: bool, weak: set[int]
    ) -> dict[int, dict[str, Any]]:
        """Results by row number; those of `weak` hits are marked as unrelated, and on request all
        say why they stand where they do."""
        results = self.results(hits)
        for seq in weak & results.keys():
            results[seq]["unrelated"] = True
        for hit in hits if explain else ():
            if row := results.get(hit.item):
                parts = {name: round(value, 4) for name, value in hit.parts.items()}
                row["parts"] = {name: value for name, value in parts.items() if value}
        return results

    def results(self, hits: list[Hit]) -> dict[int, dict[str, Any]]:
        """What callers see of each hit, by row number."""
        newer = {hit.item: hit.newer for hit in hits if hit.newer}
        others = *(hit.nearer for hit in hits if hit.nearer), *(item for item, _ in newer.values())
        same = itertools.chain(*(hit.same for hit in hits))
        items = items_by_row(self.database, [*(hit.item for hit in hits), *others, *same])
        authors_of = authors_by_id(self.database, (row["id"] for row in items.values()))
        return {
            hit.item: result_of(items[hit.item], hit, items)
            | authors_of.get(items[hit.item]["id"], {})
            | source_fields(items[hit.item], self.projects)
            | self._other_places(items, hit)
            | citations_gone(self.projects, items[hit.item])
            for hit in hits
            if hit.item in items  # else forgotten a moment ago
        }

    def _other_places(self, items: dict[int, dict[str, Any]], hit: Hit) -> dict[str, Any]:
        """{also_in} of what says the same as a hit: the ids and sources, but not of its own file,
        which may be indexed for several projects."""
        own = source_fields(items[hit.item], self.projects)
        rows = (items[item] for item in hit.same if item in items)
        places = [{"id": row["id"]} | source_fields(row, self.projects) for row in rows]
        places = [place for place in places if place.get("source", "") != own.get("source")]
        return {"also_in": places[:OTHERS_TOLD]} if places else {}

    def _around(self, results: list[dict[str, Any]], weak: set[int]) -> dict[str, Any]:
        """Name each result's neighbours and older versions. Returns what else to look at, none of
        it shown or `weak`."""
        ids = [row["id"] for row in results]
        found = {*ids, *(row["id"] for row in items_by_row(self.database, weak).values())}
        edges = links_of(self.database, ids, self.projects.current())
        edges = [edge for edge in edges if edge.other not in found]
        alike = [edge for edge in edges if edge.kind == RELATED]
        older = self._older_versions(ids)
        for row in results:
            if related := [edge.other for edge in alike if edge.id == row["id"]]:
                row["related_ids"] = list(dict.fromkeys(related))[:NEIGHBOURS_SHOWN]
            if row["id"] in older:
                row["supersedes"] = older[row["id"]]
        expanded = [edge for edge in alike if edge.id in ids[:EXPANDED_FROM]]
        together = [edge for edge in edges if edge.kind == CO_ACCESSED]
        suggested = [edge for edge in together if edge.id in ids[:SUGGESTED_FROM]]
        around = {"graph_expanded": self._neighbours(expanded)}
        around["suggested"] = self._neighbours(suggested)
        return {name: rows for name, rows in around.items() if rows}

    def _older_versions(self, ids: list[str]) -> dict[str, list[str]]:
        """The ids of all versions behind each of these items, newest first."""
        behind = "JOIN items i ON i.successor = {} AND i.ended_by <> 'undo'"
        sql = (
            "WITH RECURSIVE older(top, id, at, seq) AS (SELECT value, i.id, i.created_at, i.seq"
            f" FROM json_each(?) {behind.format('value')} UNION"
            f" SELECT top, i.id, i.created_at, i.seq FROM older o {behind.format('o.id')})"
            " SELECT top, json_group_array(id ORDER BY at DESC, seq DESC) FROM older GROUP BY top"
        )
        return {id: json.loads(older) for id, older in self.database.rows(sql, json.dumps(ids))}

    def _neighbours(self, links: list[Link]) -> list[dict[str, Any]]:
        """The other ends of links, each once."""
        first: dict[str, Link] = {}
        for edge in links:
            first.setdefault(edge.other, edge)
        rows = []
        for id, edge in itertools.islice(first.items(), NEIGHBOURS_SHOWN):
            if (item := find_item(self.database, id)) is None:  # forgotten a moment ago
                continue
            row: dict[str, Any] = {"id": id, **with_time("created", item["created_at"])}
            if edge.kind == CO_ACCESSED:
                row["reason"] = f"answered {edge.count} questions together with {edge.id}"
            else:
                row |= {"graph_expanded": True, "rel_type": edge.label}
            row["beginning"] = item["content"][:PREVIEW]
            if self.projects.is_foreign(item):
                row["cross_project"] = True
            rows.append(row)
        return rows

    def page(self, query: str) -> dict[str, Any] | None:
        """One page of the item that the query names, if it names one."""
        named = dict.fromkeys((query, query.strip()))
        return next(filter(None, map(self._page, named)), None)

    def _page(self, query: str) -> dict[str, Any] | None:
        row, number = named_item(self.projects, query), 1
        if row is None and (asked := re.fullmatch(r"(.+) page (\d{1,6})", query)):
            row, number = named_item(self.projects, asked[1]), int(asked[2])
        if row is None or not may_read(self.projects, row):
            return None
        is_complete = row["path"] is None or self.projects.is_foreign(row)  # that file is not read
        content = (
            row["content"]
            if is_complete
            else extension("files").section_of(self.projects, self.encoder, row)[0]
        )
        pages = paginate(content)
        if not 1 <= number <= len(pages):
            raise InvalidInput(f"{row['id']} has pages 1 to {len(pages)}, not {number}")
        start, end = pages[number - 1]
        result = items_as_returned(self.projects, [row])[0]
        result |= {"content": content[start:end], "similarity": 1.0}
        if self.projects.is_foreign(row):
            result["cross_project"] = True
        if len(pages) > 1:
            result |= {"page": number, "pages": len(pages)}
        if number < len(pages):
            result["next"] = f"{row['id']} page {number + 1}"
        return {"count": 1, "results": [result]}


# The stems of an answer that tells nothing: "Done.", "I don't know which port it is."
_NO_ANSWER = _word_class("done don know note understood")
_SENTENCE_END = LazyPattern(r"(?<=[.!?])\s+|\n+")
_FIGURE_OR_NAME = LazyPattern(r"\w*\d\w*|(?<=\s)[A-Z]\w+")


def is_unanswered(turn: str, query: str, lexicon: Lexicon) -> bool:
    """Whether a turn of a conversation is a question, or the very words of the query, and got no
    answer that tells anything. A figure or name that the query lacks is told by the question."""
    prompt, answer = prompt_of(turn), turn.partition(ANSWER_LABEL)[2]
    if normalized(prompt) != normalized(query):
        is_question = prompt.endswith("?") and len(_SENTENCE_END.split(prompt)) == 1
        named = {word.lower() for word in _FIGURE_OR_NAME.findall(prompt)}
        if not is_question or not named <= {*re.findall(r"\w+", query.lower())}:
            return False
    asked, told = (_informative_stems(lexicon.text_words(text)) for text in (prompt, answer))
    return not answer or (bool(told - asked) and told - asked <= _NO_ANSWER)


_HEADINGS = LazyPattern(r"^#{1,6} .*", re.MULTILINE)


def _each_text_once(hits: list[Hit], facts: dict[int, RankFacts]) -> list[Hit]:
    """The hits, each text once, whatever heading it stands under: own before others', stored before
    indexed or said, the newest first. What stays names the other places."""

    def precedence(hit: Hit) -> tuple[Any, ...]:
        fact = facts[hit.item]
        is_stored = fact.file is None and not fact.in_conversation
        return not hit.foreign, is_stored, fact.known_since or 0, fact.validations

    groups: dict[str, list[Hit]] = {}
    for hit in hits:
        text = facts[hit.item].text
        said = _HEADINGS.sub("", text).split() or text.split()
        groups.setdefault(" ".join(said), []).append(hit)
    kept = ((max(group, key=precedence), group) for group in groups.values())
    return [
        best._replace(score=group[0].score, same=tuple(hit.item for hit in group if hit != best))
        if len(group) > 1
        else best
        for best, group in kept
    ]


def result_of(row: dict[str, Any], hit: Hit, items: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """What callers see of a hit; of a long text its best chunk. Of `items`, by row number, it names
    the newer one that may have made it obsolete, and an earlier version that is much nearer to the
    question: what is asked may stand in that alone."""
    content, (position, start, end) = row["content"], hit.span
    result = shared_facts(row) | {"similarity": shown_score(hit.score)}
    if abs(hit.score - hit.cosine) > 0.001:
        result["raw_similarity"] = shown_score(hit.cosine)
    if row["chunks"] > 1:
        result["content"] = content[start:end]
        result["beginning"] = content[:PREVIEW]
        result["position"] = {"chunk": position + 1, "chunks": row["chunks"]}
        result["position"] |= {"start": start, "end": end, "length": len(content)}
    if hit.foreign:
        result["cross_project"] = True
    if hit.others:
        result["named_instead"] = [*hit.others]
    if hit.newer and (newer := items.get(hit.newer[0])):
        result["newer"] = _named(newer) | {"probability": shown_score(hit.newer[1])}
    if version := items.get(hit.nearer or 0):
        result["nearer_version"] = _named(version)
    return result


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """How a result names another item."""
    beginning = row["content"][:PREVIEW]
    return {"id": row["id"], "beginning": beginning, **with_time("created", row["created_at"])}


def kept_hits(hits: list[Hit], least: float, min_score: float | None) -> list[Hit]:
    """Hits that score enough or, without a least score, have to do with the query."""
    if min_score is not None:
        return [hit for hit in hits if hit.score >= min_score]
    return relevant(hits, least)


def paginate(text: str) -> list[tuple[int, int]]:
    """Spans of a text whose JSON each is at most PAGE_SIZE characters long."""
    pages, start = [], 0
    while start < len(text):
        size = PAGE_SIZE
        while (length := json_length(text[start : start + size])) > PAGE_SIZE:
            size = max(1, size * PAGE_SIZE // (length + 1))
        pages.append((start, min(start + size, len(text))))
        start += size
    return pages


# ---------------------------------------------------------------------------------------------
# Storing
#
# A text becomes a memory: its chunks and vectors are made and its neighbours looked at without a
# lock, then one short transaction writes it, if what was decided on still holds. What takes
# longer than a store may is done later, by one process at a time.
# ---------------------------------------------------------------------------------------------


class Lease:
    """The right to do a background job, which one process has at a time, for LEASE seconds."""

    def __init__(self, database: Database, job: str) -> None:
        self._database, self._job = database, job
        self._owner = f"{os.getpid()}-{id(self)}"
        self._is_held = False

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> bool:
        """Acquire or renew the lease; False while another has it."""
        now = int(time.time())
        with self._database.transaction(create=False) as connection:
            known, wanted = meta_value(connection, self._job), f"{self._owner} {now + LEASE}"
            owner, until = (known or wanted).split()
            if owner != self._owner and now < int(until) <= now + LEASE:
                return False
            if known != wanted:  # it is taken before each of many short steps
                set_meta(connection, self._job, wanted)
        self._is_held = True
        return True

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease from a thread until the block ends."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(LEASE / 3):
                with contextlib.suppress(DatabaseError):
                    self.take()

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def release(self) -> None:
        """Let others have it at once; where that cannot be written, it runs out by itself."""
        sql = "DELETE FROM meta WHERE key = ? AND value GLOB ?"
        with contextlib.suppress(DatabaseError):
            if self._is_held:
                with self._database.transaction(create=False) as connection:
                    connection.execute(sql, (self._job, f"{self._owner} *"))


class Storing(View):
    """Makes memories of texts: what takes time comes first, then one transaction, which checks
    again what was decided on."""

    def store(
        self,
        content: str,
        scope: str | None,
        replace: str | None,
        created_at: object,
        marks: Mapping[str, int],
    ) -> dict[str, Any]:
        """Store a text without secrets: what `Memory.store` returns."""
        created = present() if created_at is None else parse_moment(created_at)
        old = item_to_replace(self.projects, replace) if replace is not None else None
        project, remark = self._destination(None if scope is None else check_scope(scope), old)
        if created > time.time():
            remark += f", dated {local_time(iso_time(created))}, which is in the future"
        item = prepare_item(self.database, self.encoder, new_id(), content, project, created)
        last = self.database.value("SELECT coalesce(max(seq), 0) FROM items")
        new = _newcomer(item)
        near = self.neighbours(new, project)
        with self.database.translate_errors():
            twin = same_text(self.database.reader(), content, project)
        others = [one for one in near if one.id not in (twin, old and old["id"])]
        outdated = self.outdated(new, others)
        with self.database.transaction() as connection:
            twin = same_text(connection, content, project)
            if old:  # others may have been quicker
                old = item_to_replace(self.projects, old["id"])
            if old and old["id"] == twin:  # the text stays, and is confirmed
                old = None
            if twin and not _is_contested(twin, near, created):
                set_marks(connection, twin, marks)
                return _confirm(connection, twin, old)
            if not claim_model(connection, self.encoder.model):  # others have made all vectors anew
                item = item._replace(vectors=[])
            _write(connection, item, twin, old)
            set_marks(connection, item.id, marks)
            if item.vectors:  # its neighbours were looked at just now
                alike = [(one.id, one.cosine) for one in others if one.cosine >= CONFLICT_COSINE]
                enqueue(connection, item.id, alike[:CONFLICTS_QUEUED])
                connection.execute(_EXAMINED_NEXT, (last,))
            queue_obsolete(connection, item.id, outdated)
        return self._told(item, old["id"] if old else twin, outdated, remark)

    def _told(
        self, item: Item, replaced: str | None, outdated: list[tuple[str, float]], remark: str
    ) -> dict[str, Any]:
        """The answer to a store, which asks about what the text may replace."""
        remark += f" ({self.encoder.trouble})" if self.encoder.trouble else ""
        described = self._described(outdated)
        answer = _store_answer(item, replaced, described, remark)
        if described:
            command = f"sediment replace OLD {short_id(item.id)}{self.projects.option()}"
            answer["advice"] = f"Does this replace one of these? `{command}`"
        return answer

    def _destination(self, scope: str | None, old: dict[str, Any] | None) -> tuple[str | None, str]:
        """The project to store in (None = global), and a remark when it is not as asked."""
        if scope is None and old is not None:
            return old["project_id"], ""
        if scope == "global":
            return None, ""
        project = self.projects.current(create=True)
        if old is not None:
            check_reach(old, project, "leave the scope out")
        nowhere = f" (no project here: {self.projects.nowhere()})"
        return project, self.projects.doubt() if project else nowhere

    def neighbours(self, new: Neighbour, project: str | None) -> list[Neighbour]:
        """The memories nearest to a new one, of its project and global ones."""
        if not new.vector:
            return []
        here, where = project or self.projects.current(), f"{IS_MEMORY} AND {IN_OWN_SCOPE}"
        with self.database.snapshot():
            if self.index:
                found = self.index.search(new.vector, here, STORE_ASKED, NEAR_SCANNED)
            else:
                found = search_vectors(self.database, new.vector, where, here, STORE_ASKED)
            rows = self.database.rows(
                f"SELECT c.id, {_NEIGHBOUR} FROM chunks c JOIN items i ON i.seq = c.item"
                " JOIN vectors v ON v.chunk = c.id WHERE i.file IS NULL"
                " AND c.id IN (SELECT value FROM json_each(?))",
                json.dumps(found.chunk.tolist()),
            )
        facts = {row[0]: row[1:] for row in rows}
        return [
            Neighbour(cosine, *facts[chunk])
            for chunk, cosine in zip(found.chunk.tolist(), found.score.tolist(), strict=True)
            if chunk in facts and facts[chunk][0] != new.id
        ][:STORE_NEIGHBOURS]

    def outdated(self, new: Neighbour, neighbours: list[Neighbour]) -> list[tuple[str, float]]:
        """The ids of what a memory probably makes obsolete, likeliest first, and how likely."""
        if not neighbours:
            return []
        chances = obsolescence(new, neighbours, self.lexicon)
        found = [
            (neighbour.id, chance)
            for neighbour, chance in zip(neighbours, chances, strict=True)
            if chance and (chance >= PROPOSED or neighbour.cosine >= CONFLICT_COSINE)
        ]
        return sorted(found, key=lambda pair: -pair[1])[:PROPOSALS_SHOWN]

    def _described(self, found: list[tuple[str, float]]) -> list[dict[str, Any]]:
        """What `store` tells of outdated items, but for those that were just forgotten."""
        rows = ((find_item(self.database, id), chance) for id, chance in found)
        return [
            shared_facts(row) | {"probability": shown_score(chance)} for row, chance in rows if row
        ]


def _write(
    connection: apsw.Connection, item: Item, twin: str | None, old: dict[str, Any] | None
) -> None:
    """Store an item, and hide behind it an item with the same text, after which other versions
    may have come, and the one that it replaces: that last, for `undo` takes the last back."""
    insert_item(connection, item)
    if twin:
        end_item(connection, twin, item.id, "repeat", item.created_at)
        count_validation(connection, item.id)
    if old:
        at = ended_when(old["created_at"], item.created_at)
        end_item(connection, old["id"], item.id, "replace", at, beside=twin is not None)
        count_validation(connection, item.id)


def _is_contested(id: str, near: Sequence[Neighbour], until: int) -> bool:
    """Whether an item between this one and a time may be another version of what it says."""
    order = next(((one.created_at, one.seq) for one in near if one.id == id), None)
    return order is not None and any(
        one.cosine >= CONTESTING_COSINE and one.created_at <= until
        for one in near
        if (one.created_at, one.seq) > order
    )


def _confirm(connection: apsw.Connection, twin: str, old: dict[str, Any] | None) -> dict[str, Any]:
    """Confirm the item that has this text already, and hide behind it the one that the text is to
    replace."""
    sql = "SELECT project_id, created_at FROM items WHERE id = ?"
    project, created = fetch(connection, sql, twin)[0]
    count_validation(connection, twin)
    add_history(connection, "confirm", twin)
    scope = "project" if project else "global"
    answer = {"success": True, "id": twin, "scope": scope, "already_stored": True}
    message = "This text was stored before; it counts as confirmed"
    if old:
        at = ended_when(old["created_at"], created)
        end_item(connection, old["id"], twin, "replace", at, beside=True)
        answer["replaced_id"] = old["id"]
        message += f" and replaced {short_id(old['id'])}"
    return answer | {"message": message + "."}


def _store_answer(
    item: Item, old: str | None, outdated: list[dict[str, Any]], remark: str
) -> dict[str, Any]:
    scope = "project" if item.project_id else "global"
    message = f"Stored in {scope} scope{remark}"
    answer: dict[str, Any] = {"success": True, "id": item.id, "scope": scope}
    if old:
        answer["replaced_id"] = old
        message += f"; it replaced {short_id(old)}"
    if not item.vectors:
        pending = answer["pending_chunks"] = len(item.chunks)
        message += f"; found by words alone, as it still needs {number_of(pending, 'vector')}"
    if outdated:
        answer["may_replace"] = outdated
        message += "; it may replace an older memory"
    answer["message"] = message + "."
    return answer


def _is_live(connection: apsw.Connection, id: str) -> bool:
    sql = f"SELECT 1 FROM items i WHERE id = ? AND {_LIVE}"
    return connection.execute(sql, (id,)).fetchone() is not None


def embed_pending(database: Database, encoder: Encoder, progress: Progress, stop: Stop) -> int:
    """Make the vectors of pending chunks, unless another process does. Returns how many."""
    made = 0
    with Lease(database, "embedding") as lease:
        while not stop() and same_model(database, encoder.model):
            if not pending_chunks(database, 1) or not lease.take():
                break
            batch = pending_chunks(database, encoder.batch)  # whoever had the lease made some
            texts = (text for _, text in batch if not stop())
            with lease.renewed():
                vectors = dict(zip(batch, encoder.embed_all(texts, patient=True), strict=False))
            with database.transaction() as connection:
                if claim_model(connection, encoder.model):
                    # By now some may have a vector, and a number be that of another text.
                    still = vectors.keys() & pending_chunks(database, encoder.batch)
                    _fill(connection, [(vectors[row], row[0]) for row in still])
            made += len(vectors)
            progress(len(vectors))
    return made


def _fill(connection: apsw.Connection, vectors: list[tuple[bytes, int]]) -> None:
    """Give pending chunks their vectors; a chunk forgotten meanwhile is left out."""
    connection.executemany(
        "INSERT OR IGNORE INTO vectors(vector, chunk)"
        " SELECT ?1, ?2 WHERE EXISTS(SELECT 1 FROM pending WHERE chunk = ?2)",
        vectors,
    )
    connection.executemany("DELETE FROM pending WHERE chunk = ?", [(row[1],) for row in vectors])


class Consolidator:
    """Compares memories with their neighbours, a batch at a time, and merges or links them."""

    def __init__(self, storing: Storing) -> None:
        self._storing, self.database, self.encoder = storing, storing.database, storing.encoder
        self._lease = Lease(self.database, "consolidation")

    def run(self, dry_run: bool, progress: Progress, stop: Stop) -> dict[str, Any]:
        """What `Memory.consolidate` does and returns."""
        if not same_model(self.database, self.encoder.model):
            raise ModelError("the vectors come from another model: run `reindex` first")
        if dry_run:
            return self._consolidated(self._proposed(stop))
        done: list[tuple[str, Pair]] = []
        with self._lease:
            while not stop() and self._lease.take():
                self._examine(stop)
                queue = queued_pairs(self.database, CONSOLIDATE_BATCH)
                if not queue:
                    break
                done += self.merge_pairs(*(row[:2] for row in queue), stop=stop)
                progress(len(queue))
        return self._consolidated(done)

    def examine(self, within: float) -> None:
        """Examine what came by import, for so many seconds: a person is to be asked about it."""
        deadline = time.monotonic() + within
        with self._lease:
            self._examine(lambda: time.monotonic() > deadline)

    def _examine(self, stop: Stop) -> None:
        """Queue near pairs of items not yet examined, and for review what these make obsolete."""
        examined = self.database.value(f"SELECT {_EXAMINED}")
        for last, pairs in near_pairs(self.database, examined):
            outdated = [] if stop() else self._imported_outdated(examined, last, stop)
            if stop():
                return
            examined = last
            with self.database.transaction() as connection:
                for id, other, cosine in pairs:
                    enqueue(connection, id, [(other, cosine)])
                for id, old in outdated:
                    queue_obsolete(connection, id, old)
                set_meta(connection, "examined", str(last))
            if stop() or not self._lease.take():
                return
        if self.database.value(f"SELECT max(seq) > {_EXAMINED} FROM items"):
            with self.database.transaction() as connection:
                connection.execute(EXAMINED_FILES)

    def _imported_outdated(
        self, after: int, last: int, stop: Stop
    ) -> list[tuple[str, list[tuple[str, float]]]]:
        """What each of the items after one row, up to another, probably makes obsolete."""
        sql = (
            f"SELECT i.project_id, 1.0, {_NEIGHBOUR} FROM items i JOIN chunks c ON c.item = i.seq"
            " AND c.position = 0 JOIN vectors v ON v.chunk = c.id"
            f" WHERE {IS_MEMORY} AND i.seq > ? AND i.seq <= ?"
            f" AND i.created_at < i.stored_at - {DATED} ORDER BY i.seq"
        )
        first = self.database.value(f"SELECT min(i.created_at) FROM items i WHERE {IS_MEMORY}")
        found = []
        for project, *facts in self.database.rows(sql, after, last):
            new = Neighbour(*facts)
            if stop() or new.created_at <= first:
                continue
            near = self._storing.neighbours(new, project)
            older = [neighbour for neighbour in near if neighbour.created_at < new.created_at]
            found.append((new.id, self._storing.outdated(new, older)))
        return found

    def merge_pairs(
        self, *queued: tuple[str, str], stop: Stop = lambda: False
    ) -> list[tuple[str, Pair]]:
        """Merge or link these pairs: what became of each that is still there."""
        judged = [
            (ids, decide_merge(self.database, ids, self.encoder.embed))
            for ids in itertools.takewhile(lambda _: not stop(), queued)
        ]
        with self.database.transaction() as connection:
            settled = [(apply_merge(connection, ids, pair), pair) for ids, pair in judged]
            clean_queue(connection)
        return [(status, pair) for status, pair in settled if pair and status != "gone"]

    def _proposed(self, stop: Stop) -> list[tuple[str, Pair]]:
        """What `consolidate` would do now, in its order: an item merged is in no later pair."""
        examined = self.database.value(f"SELECT {_EXAMINED}")
        found = [pair for _, pairs in near_pairs(self.database, examined) for pair in pairs]
        found += queued_pairs(self.database, -1)
        cosines = {(min(a, b), max(a, b)): cosine for a, b, cosine in found}
        proposed, hidden = [], set[str]()
        for ids in sorted(cosines, key=lambda ids: (-cosines[ids], ids)):
            if stop():
                break
            pair = decide_merge(self.database, ids, self.encoder.embed)
            if pair and hidden.isdisjoint(ids):
                proposed.append(("linked" if pair.reasons else "merged", pair))
                hidden.update([] if pair.reasons else [pair.other])
        return proposed

    def _consolidated(self, done: list[tuple[str, Pair]]) -> dict[str, Any]:
        pairs = [
            {
                "action": status,
                "keep": self._facts_of(pair.keep),
                "other": self._facts_of(pair.other),
                "similarity": shown_score(pair.similarity),
                "reasons": pair.reasons,
            }
            for status, pair in done
        ]
        counts = Counter(status for status, _ in done)
        return {"merged": counts["merged"], "linked": counts["linked"], "pairs": pairs}

    def _facts_of(self, id: str) -> dict[str, Any]:
        """An item's facts; no text if it was forgotten a moment ago."""
        row = find_item(self.database, id)
        return shared_facts(row) if row else {"id": id, "content": ""}


def rules_file(database: Database) -> Path:
    """The file in which people say how long memories are kept: memory.retention.toml, say."""
    return database.path.with_suffix(".retention.toml")


def has_chores(database: Database) -> bool:
    """Whether there are vectors to make, pairs to compare, or rules to follow today."""
    sql = (
        "SELECT EXISTS(SELECT 1 FROM pending) OR ? AND ("
        " EXISTS(SELECT 1 FROM consolidation_queue WHERE status = 'pending')"
        f" OR (SELECT max(seq) FROM items) > {_EXAMINED})"
    )
    if rules_file(database).is_file() and extension("retention").is_due(database):
        return True
    return bool(database.value(sql, consolidates()))


# ---------------------------------------------------------------------------------------------
# Lives of memories
#
# What people do with a memory that is there: put another in its place, take that back, erase it,
# look at what happened to it and at what it is linked to.
# ---------------------------------------------------------------------------------------------


def _nothing_to_review(elsewhere: dict[str, int]) -> str:
    """That there are no pairs here, and where there are some."""
    if not elsewhere:
        return "Nothing to review."
    names = [f"{count} with `{project_option(id)}`" for id, count in elsewhere.items()]
    return f"Nothing to review here; in other projects: {', '.join(names)}."


# SQL: 1 where the successor of an item `i` stays when that comes back: it stood beside it, or
# others that it replaced would be hidden with it, unless it took its place by an undo.
_STAYS = (
    f"coalesce({STOOD_BESIDE}, i.ended_by IS NOT 'undo' AND EXISTS(SELECT 1 FROM items o WHERE"
    " o.successor = i.successor AND o.id <> i.id AND ifnull(o.ended_by, 'replace') = 'replace'))"
)


def undo_item(projects: Projects, id: str) -> dict[str, Any]:
    """Take back the last replacement or merge: what `Memory.undo` returns."""
    meant = _to_bring_back(projects, id)
    with projects.database.transaction() as connection:
        if _is_live(connection, meant):  # another process was quicker
            raise NotFound(f"{short_id(meant)} is live already: nothing to undo")
        old = _to_bring_back(projects, id)
        row, (swaps, front) = given_item(projects, old), _undo_plan(connection, old)
        for item in (row, *([given_item(projects, front)] if front else [])):
            check_own(projects, item, "change")
        twin = same_text(connection, row["content"], row["project_id"])
        for back, ahead in swaps:
            _swap(connection, back, ahead)
        if not swaps:
            _, successor = restore_item(connection, old)
            for beside in dict.fromkeys((successor, front)):  # apart from what it was merged with
                add_history(connection, "undo", old, beside, APART)
        if is_past := not _is_live(connection, old):
            set_marks(connection, old, {EXPIRY: 0})
    answer: dict[str, Any] = {"success": True, "restored": old}
    message = f"Restored {short_id(old)}{'; it no longer expires' if is_past else ''}"
    if swaps:
        answer["hidden"] = swaps[0][1]
        message += f"; it hides {short_id(swaps[0][1])}"
        message += f" and {len(swaps) - 1} more" if swaps[1:] else ""
    elif front and (row["ended_by"], row["successor"]) != ("merge", front):
        place = "" if front == row["successor"] else f" hidden behind {short_id(front)}"
        message += f"; {short_id(row['successor'])} stays{place}."
        message += f" `replace {short_id(old)} {short_id(front)}` undoes this"
    if twin not in (None, front):
        message += f"; {short_id(twin)} says the same: `forget` one of the two"
    return answer | {"message": message + "."}


def _undo_plan(connection: apsw.Connection, old: str) -> tuple[list[tuple[str, str]], str | None]:
    """What brings an item back: pairs of an item and the one that is hidden behind it in turn; and
    the last of its newer versions, if there is one.

    Replacements are taken back one by one, the last first, so that versions between are where they
    were. Nothing is hidden where an item on the way stays, or where this one was merged.
    """
    sql = (
        "WITH RECURSIVE ahead(id, n) AS (SELECT ?, 0 UNION SELECT i.successor, n + 1"
        " FROM items i JOIN ahead USING (id) WHERE i.successor IS NOT NULL AND n < 1000)"
        f" SELECT id, ended_by, {_STAYS} FROM items i JOIN ahead USING (id) ORDER BY n"
    )
    ids, reasons, stays = zip(*fetch(connection, sql, old), strict=True)
    front = ids[-1] if ids[-1] != old else None
    if front is None or reasons[0] == "merge" or any(stays):
        return [], front
    by_steps = "merge" not in reasons and len(ids) == len({*ids})
    return [*pairwise(ids)][::-1] if by_steps else [(old, front)], front


def _swap(connection: apsw.Connection, old: str, front: str) -> None:
    """Make an item live again, and hide the one in its place behind it. What an undo brought back
    ends as it had before that."""
    by, at = fetch(connection, "SELECT ended_by, ended_at FROM items WHERE id = ?", old)[0]
    _, successor = restore_item(connection, old)
    if by != "undo":
        return end_item(connection, front, old, "undo", was=(by or "replace", at))
    sql = (
        "SELECT detail -> 'was' FROM history WHERE other_id = ? AND item_id = ?"
        " AND action = 'undo' ORDER BY id DESC LIMIT 1"
    )
    noted = connection.execute(sql, (old, successor)).get
    before, ended = json.loads(noted) if noted else ("replace", None)
    end_item(connection, front, old, before, ended)


def _to_bring_back(projects: Projects, id: str) -> str:
    """The id of what `undo` is to bring back: this item, or the last one hidden behind it."""
    row = given_item(projects, id)
    check_own(projects, row, "change")
    if row["ended_at"] is not None:
        return row["id"]
    order = (  # last what was imported, which has only the times at which it ended
        "(SELECT max(id) FROM history WHERE other_id = i.id AND item_id = ?1"
        " AND detail ->> 'imported' IS NULL) DESC, i.ended_at DESC, i.seq DESC"
    )
    if is_synced(projects.database):  # as on all machines, wherever it was decided
        stamp = "(SELECT max(end_t) FROM replica r WHERE r.id = i.id AND r.successor = ?1)"
        order = f"{stamp} DESC, i.ended_at DESC, i.id"
    sql = (
        "SELECT i.id FROM items i WHERE i.successor = ?1 AND i.ended_by IS NOT 'undo'"
        f" ORDER BY {order} LIMIT 1"
    )
    if hidden := projects.database.value(sql, row["id"]):
        return hidden
    sql = "SELECT id FROM items WHERE successor = ? AND ended_by = 'undo' ORDER BY ended_at DESC"
    if front := projects.database.value(sql, row["id"]):
        undo = f"`undo {short_id(front)}` undoes that"
        raise NotFound(f"{short_id(row['id'])} was restored by an undo: {undo}")
    raise NotFound(f"{short_id(row['id'])} has replaced nothing and was merged with nothing")


def move_versions(
    connection: apsw.Connection, projects: Projects, id: str, project: str | None
) -> str:
    """Move a memory that this project may change, with all its versions, to a project or, with
    None, to every one; returns its whole id. One that other machines know gets a new id, and is
    pruned where it was: machines find a memory by its id in one project."""
    row = own_item(projects, id, "move")
    scope, told = "project" if project else "global", short_id(row["id"])
    if row["project_id"] == project:
        raise Conflict(f"{told} is in {scope} scope already")
    if twin := same_text(connection, row["content"], project):
        raise Conflict(f"{short_id(twin)} says the same in {scope} scope: `forget` one of the two")
    if projects_of_versions(projects.database, row["id"]) - {None, projects.current()}:
        reason = f"{told} replaced another project's memory"
        raise Conflict(f"{reason}: store it again in {scope} scope")
    versions = fetch(connection, LINEAGE.format("i.id, i.project_id"), row["id"])
    moved = [(id, before) for id, before in versions if before != project]
    if _known_to_others(projects.database, [id for id, _ in moved]):
        if row["ended_at"] is not None:
            raise Conflict(f"{told} was pruned: `undo {told}` first")
        prune_item(connection, row["id"])
        return _copy_item(connection, row, project)
    for id, before in moved:
        place_item(connection, id, project)
        add_history(connection, "move", id, detail={"from": before})
    return row["id"]


def _known_to_others(database: Database, ids: list[str]) -> bool:
    """Whether other machines have, or will have, one of these memories."""
    if not is_synced(database):
        return False
    sql = (
        "SELECT EXISTS(SELECT 1 FROM replica WHERE id IN (SELECT value FROM json_each(?))"
        " AND (number IS NULL OR project IN (SELECT project FROM spaces)))"
    )
    return bool(database.value(sql, json.dumps(ids)))


def _copy_item(connection: apsw.Connection, row: dict[str, Any], project: str | None) -> str:
    """Write a memory anew in another project, with its chunks and vectors; returns its id."""
    sql = (
        'SELECT c.start, c."end", c.context, v.vector FROM items i JOIN chunks c ON c.item = i.seq'
        " LEFT JOIN vectors v ON v.chunk = c.id WHERE i.id = ? ORDER BY c.position"
    )
    rows = fetch(connection, sql, row["id"])
    chunks, vectors = [Chunk(*chunk) for *chunk, _ in rows], [vector for *_, vector in rows]
    facts = new_id(), row["content"], row["content_type"], project, row["created_at"]
    item = Item(*facts, chunks, vectors if all(vectors) else [])
    insert_item(connection, item)
    set_marks(connection, item.id, row["marks"])
    return item.id


def is_own_memory(projects: Projects, id: str) -> bool:
    """Whether a memory of this project, or of all, has exactly this id."""
    row = find_item(projects.database, id)
    return row is not None and not projects.is_foreign(row)


# An item and all that it replaced, was merged with, or was replaced by, oldest first.
LINEAGE = (
    "WITH RECURSIVE lineage(id) AS (SELECT ?1 UNION"
    " SELECT n.id FROM items n JOIN lineage l ON n.successor = l.id UNION"
    " SELECT n.successor FROM items n JOIN lineage l ON n.id = l.id"
    " WHERE n.successor IS NOT NULL)"
    " SELECT {} FROM items i JOIN lineage USING (id) ORDER BY i.created_at, i.seq"
)


def projects_of_versions(database: Database, id: str) -> set[str | None]:
    """The projects of an item and of all its versions; None is global."""
    return {project for (project,) in database.rows(LINEAGE.format("i.project_id"), id)}


def history_of(projects: Projects, id: str) -> dict[str, Any]:
    """What happened to an item: what `Memory.history` returns."""
    row = visible_item(projects, id)
    rows = [*map(item_from, projects.database.rows(LINEAGE.format(ITEM_COLUMNS), row["id"]))]
    pairs = zip(rows, items_as_returned(projects, rows), strict=True)
    versions = [facts | {"live": version["ended_at"] is None} for version, facts in pairs]
    ids = json.dumps([version["id"] for version in versions])
    sql = (
        "SELECT at, action, item_id, iif(detail ->> 'apart', 'beside', 'other'), other_id"
        " FROM history WHERE item_id IN (SELECT value FROM json_each(?1))"
        " OR other_id IN (SELECT value FROM json_each(?1)) ORDER BY id"
    )
    events = [
        {"at": iso_time(at), "action": action, "id": item} | ({key: other} if other else {})
        for at, action, item, key, other in projects.database.rows(sql, ids)
    ]
    return {"id": row["id"], "versions": versions, "events": events}


class Wanted(NamedTuple):
    """Which items a list has."""

    scope: str
    kind: str = "memory"
    span: tuple[int, int] = (0, TIME_MAX)  # in which they were created
    replaced: bool = False  # what is hidden, instead of what is live
    never_recalled: bool = False
    tags: Sequence[str] = ()  # all of which it has
    expiring: int = 0  # the time by which it expires; 0 for any
    stale_citations: bool = False  # what it names of its project's files is no longer there


def rows_wanted(projects: Projects, wanted: Wanted) -> tuple[str, tuple[Any, ...]]:
    """The FROM and WHERE of the rows `i` that a list has, and their parameters."""
    kind = f"{'NOT' if wanted.replaced else ''} ({_LIVE}) AND {ITEM_KINDS[wanted.kind]}"
    where, scope = in_scope(wanted.scope, projects.current(), kind)
    where += f" AND i.created_at BETWEEN ? AND ?{tagged(wanted.tags)}"
    if wanted.expiring:
        ends = f"SELECT item FROM marks WHERE name = '{EXPIRY}' AND value <= {wanted.expiring:d}"
        where += f" AND i.seq IN ({ends})"
    if wanted.never_recalled:
        where += " AND i.id NOT IN (SELECT item_id FROM access_log WHERE access_count > 0)"
    # For two scopes the look-up of every row by an index takes five times as long as a scan.
    by_scan, values = wanted.scope in ("all", "everywhere"), (*scope, *wanted.span)
    where = f"FROM items i {'NOT INDEXED' if by_scan else ''} WHERE {where}"
    if wanted.stale_citations:
        where += f" AND i.seq IN ({extension('citations').stale_rows(projects, where, values)})"
    return where, values


def listed_items(
    projects: Projects, wanted: Wanted, limit: int, page: int, oldest: bool
) -> dict[str, Any]:
    """A page of the newest or the oldest items: what `Memory.list_items` returns."""
    where, values = rows_wanted(projects, wanted)
    total = projects.database.value(f"SELECT count(*) {where}", *values)
    order = "ORDER BY i.created_at, i.seq" if oldest else "ORDER BY i.created_at DESC, i.seq DESC"
    rows = projects.database.rows(
        # The inner query sorts numbers of rows alone, without their texts.
        f"SELECT {ITEM_COLUMNS} FROM items i WHERE i.seq IN"
        f" (SELECT i.seq {where} {order} LIMIT ? OFFSET ?) {order}",
        *(*values, limit, limit * (page - 1)),
    )
    items = items_as_returned(projects, [*map(item_from, rows)])
    answer: dict[str, Any] = {"count": len(items), "total": total, "items": items}
    answer |= ({"page": page} if page > 1 else {}) | ({"oldest": True} if oldest else {})
    if not items:
        is_past = total and page > 1
        past = f"Page {page} is past the end ({total} in all)."
        answer["message"] = past if is_past else _nothing_listed(projects, wanted, total)
    return answer


def _nothing_listed(projects: Projects, wanted: Wanted, total: int) -> str:
    """Why a list is empty, and where there is more."""
    if total or wanted != Wanted(wanted.scope):
        return "No such memories."
    here = projects.current()
    sql = (
        "SELECT coalesce(sum(project_id IS NULL), 0), coalesce(sum(project_id = ?), 0), count(*)"
        f" FROM items i WHERE {IS_MEMORY}"
    )
    common, own, everywhere = projects.database.rows(sql, here)[0]
    hidden = listed_items(projects, wanted._replace(replaced=True), 1, 1, False)["total"]
    hints = [f"{hidden} hidden: `list --replaced`"] if hidden else []
    if common + own:
        name = "global" if common else "in this project"
        hints.append(f"{common or own} {name}: `list --scope all`")
    elif everywhere and crosses_projects():
        hints.append(f"{everywhere} in other projects, which recall searches too")
    return "; ".join([f"No memories {'here' if hints else 'yet'}", *hints]) + "."


# ---------------------------------------------------------------------------------------------
# Memory
#
# The public API. The shell and the MCP server are thin: they parse, call one method here, and
# render what it returns. Every method returns plain data, the same that --json prints.
# ---------------------------------------------------------------------------------------------


def refuse_in_file(replace: str | None, created_at: object, marks: Mapping[str, int]) -> None:
    """InvalidInput for what only a text in the database has."""
    if replace is not None or created_at is not None or any(marks.values()):
        raise InvalidInput("a text in a file has no id, time, tags and end: edit the file instead")


class ServedMemory:
    """The methods of `Memory` that extensions serve, each in a line."""

    database: Database
    projects: Projects
    encoder: Encoder
    search: Search

    # Conversations, files and notes

    def add_conversations(
        self,
        conversations: Iterable[Any],
        progress: Progress = lambda _: None,
        *,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Keep what was said in sessions of agents' clients, a memory for each turn: {success,
        sessions, turns, existing, forgotten?, empty?, remarks, redacted?}. A turn that was
        forgotten is not kept again. Calls `progress` with the turns of each session."""
        return extension("conversations").keep(self, conversations, progress, dry_run)

    def list_conversations(self, *, limit: int = 20) -> dict[str, Any]:
        """The sessions kept of this project and of none, the latest first: {count, total,
        conversations: [{source, turns, created, last, beginning}]}. `forget` takes a source."""
        return extension("conversations").sessions_kept(self.projects, check_limit(limit))

    def index(
        self,
        paths: str | Path | Iterable[str | Path] = (),
        *,
        globs: str | Iterable[str] = (),
        exclude: str | Iterable[str] = (),
        include_archive: bool = False,
        allow_secrets: bool = False,
        scope: str | None = None,
        total: Callable[[int], object] = lambda _: None,
        progress: Progress = lambda _: None,
        stop: Stop = lambda: False,
    ) -> dict[str, Any]:
        """Let recall find what stands in files and folders, as they are now: {files, chunks,
        embedded, reused, removed, changes, skipped, warnings, seconds, notice?}. Without paths,
        all that were given before are brought up to date, or those of one `scope`.

        `globs` adds files that are not markdown; patterns are those of .gitignore, and remembered.
        Calls `total(files)`, then `progress(files done)`, for each scope. Raises NotFound for a
        path that neither exists nor is indexed.
        """
        options = extension("walking").options(globs, exclude, include_archive)
        reports = total, progress, stop
        return extension("files").index(self, paths, options, scope, allow_secrets, *reports)

    def unindex(self, *paths: str | Path, scope: str = "project") -> dict[str, Any]:
        """Take files and folders out of the index; they stay where they are: {success, paths,
        message}."""
        return extension("files").unindex(self, paths, scope)

    def watch(
        self,
        paths: str | Path | Iterable[str | Path] = (),
        *,
        debounce_ms: int = WATCH_DEBOUNCE,
        stop: threading.Event | None = None,
        failed: Callable[[SedimentError], object] = raise_error,
        **options: Any,
    ) -> Iterator[dict[str, Any]]:
        """Index files and folders, then again `debounce_ms` after each change, until `stop` is set;
        yields what `index` returns. Errors after the first time are given to `failed`, and the
        work is tried again."""
        return extension("watching").watch(self, paths, debounce_ms, stop, failed, options)

    def expand(self, id: str, *, lines: int | None = None) -> dict[str, Any]:
        """The section that a part of a file stands in, or `lines` before and after it: {id,
        content, source?, created}; of a turn, also the turns around it; else the whole text. Read
        from the file as it is now. Raises NotFound when the part is gone."""
        row = visible_item(self.projects, id)
        return extension("files").expand_item(self.projects, self.encoder, row, lines)

    def note(
        self, text: str, *, folder: str | Path | None = None, allow_secrets: bool = False
    ) -> dict[str, Any]:
        """Add a line to today's note, memory/YYYY-MM-DD.md in the project's folder (or another):
        {success, id, source, message}."""
        return extension("notes").add_note(self, text, folder, allow_secrets)

    def compact(
        self,
        path: str | Path = NOTES_FOLDER,
        *,
        older_than: object = "30d",
        command: str | None = None,
        timeout: float = COMPACT_TIMEOUT,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Let a command summarise the old daily notes of a folder: {notes, characters, skipped,
        summary, path, archive}. It reads the notes from a pipe; once recall finds its summary, the
        notes move to archive/. `dry_run` returns what would be sent as `input`; without a command,
        `repeats` and the possible saving. Raises InvalidInput when the command fails."""
        chosen = parse_age(older_than), command, timeout, dry_run
        return extension("notes").compact(self, path, *chosen)

    # Tags and ends

    def tags(self) -> dict[str, Any]:
        """The tags of the project's and of global memories: {count, tags: [{tag, count}]}."""
        return extension("tags").tags_of(self.projects)

    def tag(self, id: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Any:
        """Give a memory tags, and take others away: {success, id, tags, message}."""
        return extension("tags").tag_item(self.projects, id, check_tags(add), check_tags(remove))

    def rename_tag(self, old: str, new: str) -> dict[str, Any]:
        """Give the memories of a tag another one: {success, count, message}."""
        return extension("tags").rename_tag(self.projects, check_tag(old), check_tag(new))

    def expire(self, id: str, when: object) -> dict[str, Any]:
        """Set when a memory expires, as `parse_expiry` takes it; "never" takes that back:
        {success, id, expires?, message}."""
        return extension("tags").expire_item(self.projects, id, parse_expiry(when))

    # Looking after it

    def activity(self) -> dict[str, Any]:
        """What happened to memories: {weeks: [{week, stored, recalled, hidden}], projects:
        [{project, name, memories}]}. A recall counts in the week of a memory's last one."""
        return extension("activity").activity_of(self.projects)

    def status(self, *, deep: bool = False, index: bool = False) -> dict[str, Any]:
        """What recall works with: the database, the model, the weights, and each source with its
        changed and missing files. `index` updates the index first; `deep` tries a search."""
        return extension("doctor").status_of(self, deep, index)

    def doctor(self) -> dict[str, Any]:
        """Check everything: {healthy, checks: [{name, status, detail}]}, a status being ok, warning
        or broken."""
        return extension("doctor").run_checks(self.database, self.encoder)

    def describe(self) -> dict[str, str]:
        """What a report of a fault needs: versions, model, file, system; nothing secret."""
        return extension("doctor").describe_program(self.database)

    def repair(self) -> dict[str, Any]:
        """Mend what `doctor` finds broken, after a copy of the file: {healthy, message, kept?,
        lost?, rescued?}. Derived tables are made again from the texts. Where pages are damaged,
        all that can be read goes into a new file, and `lost` has the other ids."""
        return extension("repair").repair_database(self.database, self.encoder)

    # Who may ask over the network

    def add_token(
        self, name: str, *, reads: bool = False, project: str | None = None
    ) -> dict[str, Any]:
        """A token for somebody: {success, name, token, message}. With `reads` it changes nothing;
        with a `project` it sees only that one and global memories, which it cannot change."""
        project = None if project is None else check_project(project)
        return extension("http").add_token(self.database, name, reads, project)

    def tokens(self) -> dict[str, Any]:
        """{count, tokens: [{name, reads, project?, created, used?}]}: `used` is the last time."""
        return extension("http").list_tokens(self.database)

    def revoke_token(self, name: str) -> dict[str, Any]:
        """End a token at once: {success, message}."""
        return extension("http").revoke_token(self.database, name)

    def token_of(self, secret: str) -> Any | None:
        """The token with this secret; None where it is none."""
        return extension("http").token_of(self.database, secret)

    # Other machines

    def sync(self, *, again: bool = False) -> dict[str, Any]:
        """Receive what other machines have stored, and send what is new here: {place, spaces:
        [{space, sent, received, here, …}], look_at, remarks}; `again` sends all of it."""
        return self._sync().run(again)

    def follow_sync(self, *, stop: threading.Event | None = None) -> Iterator[dict[str, Any]]:
        """Sync now, and then whenever something has changed, until `stop` is set; yields what
        `sync` returns."""
        return self._sync().follow(stop)

    def sync_to(self, place: str) -> dict[str, Any]:
        """Say where this file syncs: nothing is shared by that. Returns what `sync_status` does."""
        return extension("sync.run").sync_to(self.projects, self.encoder, place)

    def share(self, space: str | None = None, *, everywhere: bool = False) -> dict[str, Any]:
        """Share the project, or what is global, under a name that is its id if none is given."""
        return self._sync().share(space, everywhere)

    def unshare(self, *, everywhere: bool = False) -> dict[str, Any]:
        """Stop sharing the project, or what is global; what is there stays."""
        return self._sync().unshare(everywhere)

    def sync_status(self) -> dict[str, Any]:
        """Where this file syncs, what waits, and what other machines still have to erase."""
        return self._sync().status()

    def leave_sync(self, *, erase: bool = False) -> dict[str, Any]:
        """Stop syncing; `erase` deletes what came from others."""
        return self._sync().leave(erase)

    def hub(
        self,
        deed: str,
        person: str = "",
        space: str = "",
        *,
        place: str = "",
        reads: bool = False,
        recall: bool = False,
    ) -> dict[str, Any]:
        """Look after a hub: `init` it, with indexes for `recall_hub` if `recall`; `add` a person to
        a space, `remove` one from it."""
        chosen = deed, person, space, place, reads, recall
        return extension("sync.run").run_hub(self, *chosen)

    def recall_hub(
        self,
        query: str,
        *,
        limit: int = 5,
        min_score: float | None = None,
        anyway: bool = False,
        explain: bool = False,
    ) -> dict[str, Any]:
        """What `recall` answers, from all spaces at the hub that are open to this person: a result
        has its `space` and `author`, too."""
        return self._sync().recall(self.search, query, limit, min_score, anyway, explain)

    def _sync(self) -> Any:
        return extension("sync.run").Sync(self.projects, self.encoder)


class Memory(ServedMemory):
    """A person's memory, seen from one project.

    path     the database file; SEDIMENT_DB, then the default place, when not given
    project  a project's id, or its folder (anything with a slash, or that starts with . or ~);
             SEDIMENT_PROJECT when not given
    folder   where to look for the project otherwise; the working folder when not given
    resident False makes the first vector cheap and each later one dearer

    All methods raise SedimentError, with one line that says what to do. Threads may share one.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        project: str | None = None,
        folder: str | Path | None = None,
        resident: bool = True,
    ) -> None:
        if path == "" or project == "":
            raise InvalidInput("the database or project given is an empty name: leave it out?")
        if not isinstance(project, str | None):
            raise InvalidInput(f"a project is an id or a folder's path, not {shown_value(project)}")
        chosen = path or setting("DB") or default_database()
        self.database = Database(expand_home(chosen))
        folder = None if folder is None else expand_home(folder)
        self.projects = Projects(self.database, project or setting("PROJECT") or None, folder)
        self._resident = resident
        self._lock = threading.Lock()
        self._encoder: Encoder | None = None

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Nothing is lost without it."""
        if self._encoder:
            self._encoder.note_sent(self.database)
        self.database.close()

    @property
    def encoder(self) -> Encoder:
        """The encoder, made at first use."""
        with self._lock:
            if self._encoder is None:
                self._encoder = open_encoder(self._resident)
        return self._encoder

    @functools.cached_property
    def _index(self) -> VectorIndex | None:
        """The vectors in memory, for a process that lives longer than one command."""
        return VectorIndex(self.database) if self._resident else None

    @functools.cached_property
    def _lexicon(self) -> Lexicon:
        return lexicon_of(self.encoder)

    @property
    def search(self) -> Search:
        """What finds memories, as seen from the project."""
        return Search(self.projects, self.encoder, self._index, self._lexicon)

    @property
    def storing(self) -> Storing:
        """What stores memories, as seen from the project."""
        return Storing(self.projects, self.encoder, self._index, self._lexicon)

    def in_folder(self, folder: str) -> Memory:
        """The same memory as seen from another folder's project; from this one when a project was
        given, or none is named."""
        if not folder or self.projects.given:
            return self
        return self._seen_from(Projects(self.database, None, Path(folder)))

    def of_project(self, project: str | None) -> Memory:
        """The same memory as seen from the project with an id; without an id, this one."""
        if project is None or project == self.projects.given:
            return self
        projects = Projects(self.database, None, None)
        projects.given = check_project(project)  # who asks may be on another machine
        return self._seen_from(projects)

    def _seen_from(self, projects: Projects) -> Memory:
        import copy

        _ = self.encoder, self._index, self._lexicon  # which the two share
        other = copy.copy(self)
        other.projects = projects
        return other

    def preload(self) -> None:
        """Read now what the first recall would otherwise wait for: the encoder and the vectors."""
        self.encoder.load()
        if self._index:
            with self.database.snapshot():
                self._index.refresh()

    # Storing and recalling

    def store(
        self,
        content: str,
        *,
        scope: str | None = None,
        replace: str | None = None,
        created_at: object = None,
        allow_secrets: bool = False,
        into: str | Path | None = None,
        tags: Iterable[str] = (),
        expires: object = None,
    ) -> dict[str, Any]:
        """Keep a text: {success, id, scope, message, replaced_id?, may_replace?, redacted?,
        already_stored?, pending_chunks?}.

        What looks like a credential is left out (`redacted` names its kind) unless `allow_secrets`,
        and so is what stands between <private> and </private>. `replace` is the id of the memory
        that this one replaces; its scope is the default then. A text of more than INLINE_CHUNKS
        chunks is answered before it has vectors: see `embed_pending`. `into` names a markdown file
        that gets the text as a line, and is indexed; `source` then tells the line. `expires` is
        when it expires, as `parse_expiry` takes it; of a text stored again the last one counts.
        """
        marks = marks_given(tags, expires)
        for tag in marks:
            refuse_credential("tag", tag, allow_secrets)
        if into is not None:
            refuse_in_file(replace, created_at, marks)
            return extension("notes").store_into(self, content, into, scope, allow_secrets)
        check_text(content, "content", CONTENT_MAX)
        content, redacted = cleaned(content, allow_secrets)
        answer = self.storing.store(content, scope, replace, created_at, marks)
        if redacted:
            answer["redacted"] = redacted
            answer["message"] += redaction_message(redacted)
        return answer

    def embed_pending(self, progress: Progress = lambda _: None, stop: Stop = lambda: False) -> int:
        """Make the vectors that long texts still miss; returns how many were made.

        One process at a time does this for a file; the others return 0. Ends early, with nothing
        lost, when `stop()` is true.
        """
        return embed_pending(self.database, self.encoder, progress, stop)

    def pending(self) -> int:
        """How many chunks have no vector yet; they are found by their words."""
        return count_pending(self.database)

    def recall(
        self,
        query: str,
        *,
        limit: int = 5,
        min_score: float | None = None,
        anyway: bool = False,
        as_of: object = None,
        ranking: str | None = None,
        explain: bool = False,
        record: bool = True,
        source: str | None = None,
        vector_weight: float | None = None,
        text_weight: float | None = None,
        candidates: int | None = None,
        conversations: bool = True,
        tags: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Find the memories that answer a query, best first: {count, results, message?,
        held_back?}. docs/json.md has the fields of a result.

        Weak matches are hidden, unless `min_score` sets a least similarity, or `anyway`. `as_of`
        asks what was live then (see `parse_moment`), `source` only files whose path begins so, and
        `tags` only memories that have all of them.
        `ranking` is a name in PROFILES; `vector_weight` and `text_weight` are shares of 1, and
        `candidates` is how many each index proposes. `explain` adds the parts of each score;
        `record=False` leaves the access log alone. An item's id as query returns its whole text, a
        page at a time: the next is "ID page 2".
        """
        check_text(query, "query", QUERY_MAX)
        limit = check_limit(limit)
        profile = PROFILES[check_ranking(ranking)]
        if min_score is not None:
            min_score = check_share(min_score, "min_score")
        if weights := check_weights(vector_weight, text_weight):
            profile = profile._replace(score=functools.partial(weighed_score, weights))
        moment = None if as_of is None else parse_moment(as_of, end=True)
        depth = max(limit, check_candidates(candidates))
        kinds = _kinds_wanted(conversations)
        request = Request(query, limit, profile, moment, depth, source, kinds, check_tags(tags))
        answer = self.search.page(query) or self.search.answer(request, min_score, anyway, explain)
        if record:
            self.record_access(shown_by(query, answer))
        return answer

    def record_access(self, *answers: Shown) -> None:
        """Note what each answer showed, unless the file cannot be written now."""
        if self._encoder:
            self._encoder.note_sent(self.database)
        if not any(shown.ids for shown in answers):
            return
        with contextlib.suppress(DatabaseError), self.database.transaction(wait=500) as connection:
            for shown in answers:
                count_access(connection, shown)

    # Versions

    def consolidate(
        self,
        *,
        dry_run: bool = False,
        progress: Progress = lambda _: None,
        stop: Stop = lambda: False,
    ) -> dict[str, Any]:
        """Merge memories that say the same, and link those that are only alike: {merged, linked,
        pairs: [{action, keep, other, similarity, reasons}]}. `other` is hidden behind `keep`, or
        linked to it for these reasons. One process at a time does this for a file; it ends early,
        with nothing lost, when `stop()` is true. Calls `progress(pairs done)`."""
        return Consolidator(self.storing).run(dry_run, progress, stop)

    def has_chores(self) -> bool:
        """Whether `embed_pending` or `consolidate` would find something to do."""
        return has_chores(self.database)

    def replace(self, old: str, new: str) -> dict[str, Any]:
        """Hide a memory behind one that makes it obsolete: {success, id, replaced_id, message}.
        `undo` of either restores the old one beside the new one."""
        with self.database.transaction(create=False) as connection:
            gone, stays = (item_to_replace(self.projects, id) for id in (old, new))
            old, new = short_id(gone["id"]), short_id(stays["id"])
            if gone["id"] == stays["id"]:
                raise Conflict(f"{old} cannot replace itself: name another memory")
            check_reach(gone, stays["project_id"], f"`move {new} global`")
            at = ended_when(gone["created_at"], stays["created_at"])
            end_item(connection, gone["id"], stays["id"], "replace", at, beside=True)
            count_validation(connection, stays["id"])
        message = f"{new} replaced {old}; `undo {old}` restores it."
        ids = {"id": stays["id"], "replaced_id": gone["id"]}
        return {"success": True, **ids, "message": message}

    def review(self, *, within: float = math.inf) -> dict[str, Any]:
        """Pairs to decide about: {count, pairs: [{old, new, probability?, alike?}], message?,
        other_projects?}. The old memory may be obsolete: `replace` hides it, `keep_both` keeps it.
        Imported memories are examined first, for at most `within` seconds."""
        Consolidator(self.storing).examine(within)
        pairs: list[dict[str, Any]] = []
        elsewhere: Counter[str] = Counter()
        for *ids, why, share in reviewable(self.database):
            rows = [row for id in ids if (row := find_item(self.database, id))]
            if foreign := {row["project_id"] for row in rows if self.projects.is_foreign(row)}:
                elsewhere.update(foreign)
            elif len(rows) == 2:  # else one was forgotten a moment ago
                old, new = map(shared_facts, rows)
                pairs.append({"old": old, "new": new, why: shown_score(share)})
        answer: dict[str, Any] = {"count": len(pairs), "pairs": pairs}
        if elsewhere and crosses_projects():
            answer["other_projects"] = dict(elsewhere)
        if not pairs:
            answer["message"] = _nothing_to_review(answer.get("other_projects", {}))
        return answer

    def keep_both(self, old: str, new: str) -> dict[str, Any]:
        """Settle that a memory is not obsolete because of another: {success, message}."""
        with self.database.transaction() as connection:
            ids = [own_item(self.projects, id, "replace")["id"] for id in (old, new)]
            if ids[0] == ids[1]:
                raise InvalidInput(f"{short_id(ids[0])} is given twice: name two memories")
            keep_apart(connection, *ids)
        return {"success": True, "message": f"{' and '.join(map(short_id, ids))} both stay."}

    def move(self, id: str, scope: str) -> dict[str, Any]:
        """Change a memory's scope to "global" or "project": {success, id, scope, message}. Its id,
        links and counts stay; the memories that it replaced move with it. A memory that is shared
        gets a new id, and is hidden, as by `prune`, where it was."""
        before = own_item(self.projects, id, "move")["id"]  # before a project is made for it
        scope = check_scope(scope)
        project = None if scope == "global" else self.projects.current(create=True)
        with self.database.transaction(create=False) as connection:
            if scope == "project" and project is None:
                raise InvalidInput(f"there is no project here ({self.projects.nowhere()})")
            id = move_versions(connection, self.projects, id, project)
        message = f"Moved {short_id(id)} to {scope} scope."
        message += f" {short_id(before)} is hidden where it was shared." if id != before else ""
        return {"success": True, "id": id, "scope": scope, "message": message}

    def undo(self, id: str) -> dict[str, Any]:
        """Undo a memory's last replacement or merge: {success, restored, hidden?, message}. `id`
        names the hidden memory or the one in its place. The old one is restored as it was; a text
        that was stored to replace it is hidden, and `undo` of that redoes the replacement."""
        return undo_item(self.projects, id)

    def history(self, id: str) -> dict[str, Any]:
        """What happened to a memory: {id, versions, events}, both oldest first. The versions are
        what it replaced or was merged with, and what took its place; an event is {at, action, id,
        other?, beside?}, `other` being what was hidden and `beside` what an undo left live."""
        return history_of(self.projects, id)

    def graph(self, id: str) -> dict[str, Any]:
        """A memory's neighbourhood: {…, nodes: [{…, live, cross_project?}], edges: [{from, to,
        type, label?, strength?, count?}]}."""
        return extension("graphs").graph_of(self.projects, id)

    # In and out

    def import_rows(
        self,
        lines: Iterable[str | dict[str, Any]],
        scope: str | None = None,
        progress: Progress | None = None,
        *,
        allow_secrets: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Store JSON Lines, or such rows as dicts: {success, stored, existing, refused: [{line,
        reason}], hidden_versions?, redacted?, unknown_fields?}; `dry_run` only counts.

        A row keeps its id, created (or created_at), project and scope; without them it gets an id
        made from its text, the present time, and `scope` in the current project. Ids that exist
        are left as they are. Calls `progress(rows)` after each commit.
        """
        if not hasattr(lines, "__iter__") or isinstance(lines, str | bytes):
            reason = "rows to import are a list of lines or dicts"
            raise InvalidInput(f"{reason}, not {shown_value(lines)}")
        is_global = check_scope(scope or "project") == "global"
        project = None if is_global else self.projects.current(create=True)
        importer = extension("json_lines").Importer(
            self.database, self.encoder, project, allow_secrets
        )
        return importer.foresee(lines) if dry_run else importer.run(lines, progress)

    def export_rows(self) -> Iterator[dict[str, Any]]:
        """Every memory of the file as `import_rows` takes it, replaced ones included."""
        return extension("json_lines").export_rows(self.database)

    # Looking after them

    def list_items(
        self,
        *,
        limit: int = 20,
        scope: str = "project",
        page: int = 1,
        oldest: bool = False,
        kind: str = "memory",
        since: object = 0,
        until: object = TIME_MAX,
        replaced: bool = False,
        never_recalled: bool = False,
        tags: Iterable[str] = (),
        expiring: object = None,
        stale_citations: bool = False,
    ) -> dict[str, Any]:
        """The newest memories first, or the `oldest`: {count, total, items, message?}.

        scope: "project", "global" or "all" (both); kind: "memory", "file" (parts of indexed files)
        or "conversation" (turns). A day or month in `until` includes its last second. `replaced`
        lists hidden ones; `never_recalled`, those that no recall has shown; `tags`, those that have
        all of them; `expiring`, those that expire by a time, as `parse_expiry` takes it;
        `stale_citations`, those that name files or lines of their project that are not so any more.
        """
        chosen = check_scope(scope, (*SCOPES, "all")), check_scope(kind, ITEM_KINDS, "kind")
        span = parse_moment(since), parse_moment(until, end=True)
        marks = check_tags(tags), 0 if expiring is None else parse_expiry(expiring) or TIME_MAX
        wanted = Wanted(*chosen, span, replaced, never_recalled, *marks, stale_citations)
        page = check_limit(page, "page", PAGES_MAX)
        return listed_items(self.projects, wanted, check_limit(limit), page, oldest)

    def get(self, id: str) -> dict[str, Any]:
        """One memory's whole text and facts, by its id or a unique prefix of it."""
        row = visible_item(self.projects, id)
        facts = items_as_returned(self.projects, [row])[0] | {"content_type": row["content_type"]}
        return facts | ({"cross_project": True} if self.projects.is_foreign(row) else {})

    def forget(self, *ids: str) -> dict[str, Any]:
        """Delete memories, with the versions they replaced: {success, ids, copies?, message}. If
        any id is not found, nothing is deleted."""
        if not ids:
            raise InvalidInput("name what to forget, by its id: `list` shows them")
        sessions = list(dict.fromkeys(id for id in ids if is_session(self.projects, id)))
        # A memory that was imported may have the name of a session as its id: both go.
        items = (id for id in ids if id not in sessions or is_own_memory(self.projects, id))
        doomed = list(dict.fromkeys(own_item(self.projects, id, "forget")["id"] for id in items))
        remark = remark_on_forgotten(self.database, doomed)
        with self.database.transaction() as connection:
            for id in doomed:
                own_item(self.projects, id, "forget")  # another process may have been quicker
            texts = texts_of(connection, doomed, sessions)
            erased = sum(erase_item(connection, id) for id in doomed)
            for name in sessions:
                forget_session(connection, name)
        older = and_versions(erased - len(doomed))
        doomed += [name for name in sessions if name not in doomed]
        wipe(self.database, texts)
        answer = {"success": True, "ids": doomed} | left_in_copies(self.database)
        return answer | {"message": f"Deleted {', '.join(map(short_id, doomed))}{older}.{remark}"}

    # Care

    def backup(self, path: str | Path, *, key: str | Sequence[str] | None = None) -> dict[str, Any]:
        """Copy the database into one file, checked; others may go on writing meanwhile. With a key,
        a passphrase or a list of age recipients, that is an age file. Raises DatabaseError when
        there is something at `path`, or no room for it."""
        return extension("copies").backup_database(self.database, path, key)

    def restore(
        self, path: str | Path, *, key: str | Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Make the database what a copy of it is; what it was is copied aside first. Servers that
        have it open go on with the new one. The key, a passphrase or a list of age identities,
        opens an age file. Raises DatabaseError for a damaged or foreign copy."""
        return extension("copies").restore_database(self.database, path, key)

    def reindex(
        self, progress: Progress = lambda _: None, stop: Stop = lambda: False
    ) -> dict[str, Any]:
        """Make all chunks and vectors again, with this encoder's model. Recall uses the old ones
        until the new ones are complete; interrupted, it resumes. Calls `progress(items done)`."""
        with self.encoder.parallel_encoding():
            return extension("upkeep").reindex(self.database, self.encoder, progress, stop)

    def prune(
        self,
        older_than: object = None,
        *,
        scope: str = "project",
        confirmed: bool = False,
        all_machines: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Hide memories older than an age ("90d", "12w", "1y") or time and not shown since: {count,
        items, kept, dry_run?}. `kept` has the old ones that stay, and `why`: people confirmed them
        (unless `confirmed`), or other machines share them (unless `all_machines`). Without an age,
        the rules in the file beside the database say what to hide, in all projects."""
        if older_than is None:
            return extension("retention").prune_by_rules(self.database, dry_run)
        wanted = check_scope(scope), parse_age(older_than)
        return extension("upkeep").prune(self.projects, *wanted, confirmed, all_machines, dry_run)

    def purge(self, *, scope: str = "project", dry_run: bool = False) -> dict[str, Any]:
        """Erase what `prune` has hidden, for good: {count, message}; or name it as `items`."""
        return extension("upkeep").purge(self.projects, check_scope(scope), dry_run)

    def stats(self, *, verify: bool = False) -> dict[str, Any]:
        """The file, its counts, the project and the model. `verify` reads the whole model."""
        return database_stats(self.projects, self.encoder, verify)


# ---------------------------------------------------------------------------------------------
# Rendering
#
# An answer as a person reads it in a terminal: a function for each kind yields its lines. What
# comes from memories, files or other programs passes `printable`.
# ---------------------------------------------------------------------------------------------


def dim(text: str) -> str:
    return click.style(text, dim=True)


def render_field(name: str, value: object) -> str:
    return f"{dim(f'{name:<17}')}{printable_name(str(value))}"


def memory_line(row: dict[str, Any], width: int = PREVIEW) -> str:
    """A memory on a line: its id, and how it begins."""
    text = row["beginning"] if "beginning" in row else row["content"]
    return printable(f"{short_id(row['id'])}  {one_line(text, width)}")


def _indented(text: str) -> Iterator[str]:
    return (f"      {line}" for line in printable(text).splitlines())


def first_lines(lines: Sequence[str], rest: str) -> Iterator[str]:
    """The first of many lines; `rest` is a format that tells how many more there are."""
    yield from lines[:REFUSED_SHOWN]
    if (more := len(lines) - REFUSED_SHOWN) > 0:
        yield rest.format(more)


def render_message(answer: dict[str, Any]) -> Iterator[str]:
    yield printable_name(answer["message"])


def render_forgotten(answer: dict[str, Any]) -> Iterator[str]:
    """What was erased, and where it may still stand."""
    yield from render_message(answer)
    if kept := answer.get("copies"):
        yield f"These copies may still contain it: {', '.join(map(printable_name, kept))}."


_FOR_PROGRAMS = ("same_model", "exists", "schema")


def render_facts(answer: dict[str, Any]) -> Iterator[str]:
    for name, value in answer.items():
        if name not in _FOR_PROGRAMS:
            yield render_field(name.replace("_", " "), "-" if value is None else value)


def render_stored(answer: dict[str, Any]) -> Iterator[str]:
    if answer["id"]:
        yield render_field("id", short_id(answer["id"]))
    yield render_field("message", answer["message"])
    for row in answer.get("may_replace", []):
        yield render_field("may replace", f"{row['probability']:.2f}  {memory_line(row, 60)}")
    if "advice" in answer:
        yield render_field("advice", answer["advice"])


def render_pair(pair: dict[str, Any]) -> Iterator[str]:
    """The two memories that `review` asks about."""
    for name in ("old", "new"):
        row = pair[name]
        text = f"{local_time(row['created'])}  {one_line(row['content'], 300)}"
        yield render_field(name, f"{short_id(row['id'])}  {text}")


def render_recalled(answer: dict[str, Any], query: str = "") -> Iterator[str]:
    """Each result with its text, then what stands beside the results."""
    for row in answer["results"]:
        marks = " (other project)" if row.get("cross_project") else ""
        marks += printable_name(f"  {row['author']}") if "author" in row else ""
        similarity = click.style(f"{row['similarity']:.2f}", fg="green", bold=True)
        place = printable_name(row.get("source") or local_time(row["created"]))
        marks += printable_name(tag_words(row))
        yield f"{similarity}  {dim(printable(short_id(row['id'])))}  {dim(place)}{marks}"
        if "page" in row:
            yield printable(row["content"])
        else:
            yield from _indented(
                excerpt(row["content"], query) if "source" in row else row["content"]
            )
        yield from (f"      {dim(printable(remark))}" for remark in _remarks(row))
    rows = [(f"linked ({row['rel_type']})", row) for row in answer.get("graph_expanded", [])]
    rows += [(row["reason"], row) for row in answer.get("suggested", [])]
    for reason, row in rows:
        yield dim(f"see also {memory_line(row, 60)}  [{printable(reason)}]")
    told = [answer["message"]] if "message" in answer else []
    if held := answer.get("held_back"):
        told.append(f"({number_of(held, 'weak match')} hidden: see `--anyway`.)")
    yield from [dim(printable_name(" ".join(told)))] if told else []
    yield from [printable_name(answer["notice"])] if "notice" in answer else []


def tag_words(row: dict[str, Any]) -> str:
    """The tags of a memory, its end and its stale citations, behind two spaces; "" without any."""
    words = [f"#{tag}" for tag in row.get("tags", ())]
    words += [f"until {local_time(row['expires'])}"] if "expires" in row else []
    words += [f"gone:{citation}" for citation in row.get("cites_gone", ())]
    return f"  {' '.join(words)}" if words else ""


def _remarks(row: dict[str, Any]) -> Iterator[str]:
    """What to know of a result, beside its text."""
    id = short_id(row["id"])
    if "page" in row:
        yield f"page {row['page']} of {row['pages']}"
    elif "source" not in row and (position := row.get("position")):
        yield f"part {position['chunk']} of {position['chunks']}: `get {id}` shows all"
    if "successor" in row:
        yield f"replaced by {short_id(row['successor'])}"
    if places := row.get("also_in"):
        yield f"also in {', '.join(at.get('source', short_id(at['id'])) for at in places)}"
    if "named_instead" in row:
        yield f"names {', '.join(row['named_instead'])} instead of what you asked for"
    if newer := row.get("newer"):
        yield f"may be outdated: {local_time(newer['created'])}, {memory_line(newer)}"
    if version := row.get("nearer_version"):
        before = one_line(version["beginning"], PREVIEW)
        yield f"before it, {local_time(version['created'])}: {before}"
    if "supersedes" in row:
        yield f"{number_of(len(row['supersedes']), 'older version')}: `history {id}`"
    if "parts" in row:
        parts = ", ".join(f"{name} {value:.3g}" for name, value in row["parts"].items())
        yield f"score {row['similarity']:.2f}: {parts}"


def excerpt(text: str, query: str) -> str:
    """EXCERPT characters of a text, beginning at the line that has most of a query's words."""
    words = set(re.findall(r"\w{3,}", query.lower()))
    lines = list(lines_with_start(text))
    matches = [len(words & set(re.findall(r"\w{3,}", line.lower()))) for _, line in lines]
    best = lines[matches.index(max(matches))][0] if len(text) > EXCERPT else 0
    cut = text[best : best + EXCERPT].strip()
    return ("… " if best else "") + cut + (" …" if best + EXCERPT < len(text) else "")


def render_item(answer: dict[str, Any]) -> Iterator[str]:
    if "source" in answer:
        yield dim(printable_name(answer["source"]))
    yield printable(answer["content"])


def render_listed(answer: dict[str, Any]) -> Iterator[str]:
    """A line for each memory, or for each conversation."""
    if "conversations" in answer:
        yield from extension("conversations").render_conversations(answer)
    elif not answer["items"]:
        yield answer["message"]
    else:
        page = f", page {answer['page']}" if "page" in answer else ""
        order = "oldest" if "oldest" in answer else "newest"
        yield dim(f"{answer['count']} of {answer['total']}{page}, {order} first")
        width = max(len(short_id(item["id"])) for item in answer["items"])
        room = max(80, shutil.get_terminal_size().columns - width - 23)  # as COLUMNS has it
        for item in answer["items"]:
            text = printable(one_line(item["content"], room))
            day = dim(local_time(item["created"]))
            who = printable_name(f"  {item['author']}") if "author" in item else ""
            marks = printable_name(tag_words(item))
            yield f"{short_id(item['id']):<{width}}  {day}  {item['scope']:<7}  {text}{who}{marks}"


def render_history(answer: dict[str, Any]) -> Iterator[str]:
    for version in answer["versions"]:
        by = f"{_PAST.get(version.get('ended_by'), 'hidden behind')} "
        by = by + short_id(version["successor"]) if "successor" in version else "pruned"
        mark = "live" if version["live"] else by
        mark += f", from {version['ended_from']}" if "ended_from" in version else ""
        mark += f"  {version['author']}" if "author" in version else ""
        when = dim(local_time(version["created"], 16))
        yield f"{when}  {printable(short_id(version['id']))}  {dim(printable(mark))}"
        yield from _indented(version["content"])
    for event in answer["events"]:
        other = f"  (hidden: {short_id(event['other'])})" if "other" in event else ""
        other = f"  (beside: {short_id(event['beside'])})" if "beside" in event else other
        when = local_time(event["at"], 16)
        yield dim(printable(f"{when}  {event['action']:<8} {short_id(event['id'])}{other}"))


_PAST = {"replace": "replaced by", "repeat": "repeated by", "merge": "merged into"}
_PAST["undo"] = "undone by"


def render_consolidated(answer: dict[str, Any], dry_run: bool = False) -> Iterator[str]:
    would = "would be " if dry_run else ""
    yield f"{answer['merged']} {would}merged, {answer['linked']} {would}linked."
    for pair in answer["pairs"]:
        similarity = dim(f"{pair['similarity']:.2f}")
        yield f"{pair['action']}  {similarity}  {printable('; '.join(pair['reasons']))}"
        yield from (f"      {memory_line(pair[role], 70)}" for role in ("keep", "other"))


def render_checked(answer: dict[str, Any]) -> Iterator[str]:
    """A line for each check; of clients, one for each run of a hook, too."""
    for check in answer["checks"]:
        yield f"{check['status']:8}{check['name']}: {printable(check['detail'])}"
    for run in answer.get("runs", ()):
        values = [run.get(key, "?") for key in ("at", "client", "event", "ms", "printed")]
        line = "{}  {} {}: {} ms, printed {} characters".format(*values)
        yield printable_name(f"{line}, {run['error']}" if run.get("error") else line)
    can_repair = all(check["name"] != "access" for check in answer["checks"])
    if not answer["healthy"] and can_repair and "runs" not in answer:
        yield "Something is broken: run `doctor --repair`. It makes a copy first."


def render_imported(answer: dict[str, Any]) -> Iterator[str]:
    """How many rows were stored, what was left out of them, and which were refused."""
    rate = answer["stored"] / max(answer["seconds"], 0.1)
    hidden = answer.get("hidden_versions", 0)
    counts = counts_phrase({"items": answer["stored"] - hidden, "hidden_versions": hidden})
    yield f"Stored {counts}{not_stored(answer)} ({answer['seconds']} s, {rate:.0f} a second)."
    yield from left_out(answer)
    if unknown := answer.get("unknown_fields"):
        names = (f"{printable(name)} ({number_of(n, 'row')})" for name, n in unknown.items())
        yield f"Ignored unknown fields: {', '.join(names)}."
    refused = [f"line {row['line']}: {printable(row['reason'])}" for row in answer["refused"]]
    yield from first_lines(refused, "and {} more lines refused (--json names them all)")


def left_out(answer: dict[str, Any]) -> Iterator[str]:
    """How many credentials of each kind an import left out."""
    if redacted := answer.get("redacted"):
        yield f"Left out: {', '.join(f'{kind} ({count})' for kind, count in redacted.items())}."


def not_stored(answer: dict[str, Any]) -> str:
    text = f", {answer['existing']} stored before" if answer["existing"] else ""
    return f"{text}, {answer['forgotten']} forgotten before" if "forgotten" in answer else text


# ---------------------------------------------------------------------------------------------
# Operations
#
# What people and programs can ask of a memory, each declared once: what it takes, what does it and
# how its answer looks. The commands of the shell and the tools of the MCP server are made from
# this table; assets/help.md is what people are told of them, assets/tools.json what agents are.
# ---------------------------------------------------------------------------------------------


class Checked(click.ParamType):
    """A text that a check of the core takes, so that a wrong one is told with its option's name."""

    name = "text"

    def __init__(self, check: Callable[[object], object]) -> None:
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            self.check(value)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)
        return value


class Kind(NamedTuple):
    """The type of an argument."""

    schema: dict[str, Any]  # its JSON schema
    shell: click.ParamType = click.STRING  # how the command line reads it
    metavar: str | None = None  # what stands for it in the command's help
    limits: dict[str, Any] = {}  # noqa: RUF012 - of its values, as a JSON schema has them


def string(
    metavar: str | None = None, check: Callable[[object], object] = str, **limits: Any
) -> Kind:
    return Kind({"type": "string"}, Checked(check), metavar, limits)


def choice(*names: str, any_case: bool = False) -> Kind:
    return Kind({"type": "string", "enum": [*names]}, click.Choice(names, not any_case))


def whole(least: int, most: int, metavar: str | None = None) -> Kind:
    """A whole number from `least` to `most`."""
    limits = {"minimum": least, "maximum": most}
    return Kind({"type": "integer"}, click.IntRange(least, most), metavar, limits)


_TEXT = "^[^\\u0000]*[^\\s\\u0000\\u001c-\\u001f][^\\u0000]*$"  # `check_text` takes it
# Unix seconds or a day, of the many forms that `parse_moment` takes.
_MOMENT = (
    "^([0-9]{1,3}([.][0-9]+)?|[1-9][0-9]{8,9}"
    "|(19[89][0-9]|20[0-9][0-9])-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8]))$"
)
PATHS = Kind({"type": "array", "items": {"type": "string"}})
PATTERNS = PATHS._replace(metavar="PATTERN")
KEYS, KEY_FILES = PATHS._replace(metavar="KEY|FILE"), PATHS._replace(metavar="FILE")
_TAG = {"type": "string", "pattern": f"^[a-z0-9]{{1,{TAG_MAX}}}$"}  # of those that are taken
TAGS = PATHS._replace(
    shell=Checked(check_tag), metavar="TAG", limits={"items": _TAG, "maxItems": TAGS_MAX}
)
# A text to store: the command line reads "-" from a pipe.
CONTENT = string(pattern=_TEXT)
QUERY = string(pattern=_TEXT)
PREFIX = string("PREFIX", pattern=_TEXT)
ID = string("ID", check_id)
FLAG = Kind({"type": "boolean"}, click.BOOL)
TIME = string("TIME", parse_moment, pattern=_MOMENT, minimum=0, maximum=TIME_MAX)
AGE = string("AGE", parse_age)
SHARE = Kind({"type": "number"}, Checked(check_share), "N", {"minimum": 0, "maximum": 1})
EXPIRY_TIME = string("WHEN", parse_expiry, pattern="^[1-9][0-9]{0,2}[dwy]$")  # one of its forms
SECONDS = Kind({"type": "number"}, click.FloatRange(0.1, 86_400), "S")
FILE = Kind({"type": "string"}, click.Path(dir_okay=False))
FILE_OR_FOLDER = Kind({"type": "string"}, click.Path(allow_dash=True))
DESCRIPTOR = whole(0, 1023, "N")
LIMIT = whole(1, LIMIT_MAX, "N")
CLIENT = choice(*CLIENTS, "all")._replace(metavar="[NAME]")  # without a name, all
SCOPE = choice(*SCOPES, any_case=True)
ANY_SCOPE = choice(*SCOPES, "all", any_case=True)


def value_of(text: str, kind: Kind) -> Any:
    """The number, boolean or list (with commas) that a text stands for, where an argument of this
    kind is one; else the text."""
    kind_of_value = kind.schema["type"]
    if kind_of_value == "boolean" and text.lower() in ("1", "true", "0", "false"):
        return text.lower() in ("1", "true")
    if kind_of_value == "array":
        return text.split(",") if text else []
    if kind_of_value in ("integer", "number"):
        with contextlib.suppress(ValueError):
            return int(text) if kind_of_value == "integer" else float(text)
    return text


class Argument(NamedTuple):
    """One argument of an operation. Where it is not given, the method's own default holds."""

    name: str  # in the method
    kind: Kind
    flags: str = ""  # of the command's option, where they do not follow from the name
    default: Any = None  # that help and schemas show; `...`: the method's
    wire: str = ""  # the name in the tool; "" where the tool does not take it
    place: str = ""  # a positional argument as the command's usage shows it; "" for an option

    @property
    def is_required(self) -> bool:
        return self.place != "" and not self.place.startswith("[")

    @property
    def option(self) -> str:
        """The long name of the command's option."""
        return self.flags.split("/")[0] or f"--{self.name.replace('_', '-')}"


class Operation(NamedTuple):
    """One thing that can be asked of a memory."""

    name: str
    run: Callable[..., Any]  # takes the memory, and the arguments by name
    render: Callable[..., Iterable[str]]
    method: Callable[..., Any] | None = None  # which `run` calls, if it is not one itself
    arguments: Sequence[Argument] = ()

    def takes(self, *arguments: Argument) -> Operation:
        known = getattr(self.method or self.run, "__kwdefaults__", None) or {}
        found = (known[each.name] if each.default is ... else each.default for each in arguments)
        pairs = zip(arguments, found, strict=True)
        return self._replace(arguments=[each._replace(default=value) for each, value in pairs])


def _recall(memory: Memory, query: str, hub: bool = False, **options: Any) -> dict[str, Any]:
    """Recall without recording what is shown: callers do that after they have answered."""
    if hub:
        return memory.recall_hub(query, **options)
    return memory.recall(query, record=False, **options)


def _expand(memory: Memory, id: str, section: bool = False, **options: Any) -> dict[str, Any]:
    return memory.expand(id, **options)


def _list(memory: Memory, conversations: bool = False, **options: Any) -> dict[str, Any]:
    return (memory.list_conversations if conversations else memory.list_items)(**options)


def _forget(memory: Memory, ids: str | tuple[str, ...]) -> dict[str, Any]:
    return memory.forget(*(ids if isinstance(ids, tuple) else (ids,)))


def _prune(memory: Memory, purge: bool = False, **options: Any) -> dict[str, Any]:
    return memory.purge(**options) if purge else memory.prune(**options)


_THE_ID = Argument("id", ID, place="ID")
HOW_MANY = Argument("limit", LIMIT, default=..., wire="limit")
_BACKUP = Argument("path", FILE, place="FILE")
_PATHS = Argument("paths", PATHS, place="[PATH]...")
_ALLOW_SECRETS = Argument("allow_secrets", FLAG)
_PASSPHRASE = Argument("passphrase_file", FILE), Argument("passphrase_fd", DESCRIPTOR)
_ENCRYPT = Argument("encrypt", FLAG), Argument("recipient", KEYS), *_PASSPHRASE
_OPEN = Argument("identity", KEY_FILES), *_PASSPHRASE
_TAGS = Argument("tags", TAGS, "--tag", wire="tags")

_TABLE = (
    Operation("store", Memory.store, render_stored).takes(
        Argument("content", CONTENT, wire="content", place="CONTENT..."),
        Argument("scope", SCOPE, wire="scope"),
        Argument("replace", ID, wire="replace_id"),
        Argument("created_at", TIME, wire="created_at"),
        Argument("into", string("FILE")),
        _TAGS,
        Argument("expires", EXPIRY_TIME, wire="expires"),
        _ALLOW_SECRETS,
    ),
    Operation("recall", _recall, render_recalled, Memory.recall).takes(
        Argument("query", QUERY, wire="query", place="QUERY..."),
        HOW_MANY,
        Argument("min_score", SHARE),
        Argument("anyway", FLAG),
        Argument("as_of", TIME),
        Argument("explain", FLAG),
        Argument("ranking", choice(*RANKINGS)._replace(metavar="NAME")),
        Argument("source", PREFIX, wire="source"),
        _TAGS,
        Argument("vector_weight", SHARE),
        Argument("text_weight", SHARE),
        Argument("candidates", whole(1, LIMIT_MAX, "N")),
        Argument("hub", FLAG),
        Argument("conversations", FLAG, "--conversations/--no-conversations", default=...),
    ),
    Operation("expand", _expand, render_item).takes(
        _THE_ID, Argument("lines", whole(0, 10_000, "N")), Argument("section", FLAG)
    ),
    Operation("index", Memory.index, late("files", "render_indexed")).takes(
        _PATHS,
        Argument("globs", PATTERNS, "--glob"),
        Argument("exclude", PATTERNS),
        Argument("include_archive", FLAG),
        Argument("remove", FLAG),
        Argument("scope", SCOPE),
        _ALLOW_SECRETS,
    ),
    Operation("watch", Memory.watch, late("files", "render_changes")).takes(
        _PATHS, Argument("debounce_ms", whole(50, 60_000, "MS"), default=...)
    ),
    Operation("note", Memory.note, render_stored).takes(
        Argument("text", CONTENT, place="TEXT..."),
        Argument("folder", string("DIR")),
        _ALLOW_SECRETS,
    ),
    Operation("compact", Memory.compact, late("notes", "render_compacted")).takes(
        Argument("path", string(), default=NOTES_FOLDER, place="[PATH]"),
        Argument("older_than", AGE, default=...),
        Argument("command", string("CMD"), "--with"),
        Argument("timeout", SECONDS, default=...),
        Argument("dry_run", FLAG),
    ),
    Operation("status", Memory.status, late("doctor", "render_status")).takes(
        Argument("deep", FLAG), Argument("index", FLAG)
    ),
    Operation("list", _list, render_listed, Memory.list_items).takes(
        HOW_MANY,
        Argument("scope", ANY_SCOPE, default=..., wire="scope"),
        Argument("page", whole(1, PAGES_MAX, "N")),
        Argument("oldest", FLAG),
        Argument("since", TIME),
        Argument("until", TIME),
        Argument("kind", choice(*ITEM_KINDS)),
        Argument("replaced", FLAG),
        Argument("never_recalled", FLAG),
        _TAGS._replace(wire=""),
        Argument("expiring", EXPIRY_TIME),
        Argument("stale_citations", FLAG),
        Argument("conversations", FLAG),
    ),
    Operation("get", Memory.get, render_item).takes(_THE_ID),
    Operation("forget", _forget, render_forgotten).takes(
        Argument("ids", ID, wire="id", place="ID...")
    ),
    Operation("history", Memory.history, render_history).takes(_THE_ID),
    Operation("undo", Memory.undo, render_message).takes(_THE_ID),
    Operation("replace", Memory.replace, render_message).takes(
        Argument("old", ID, place="OLD"), Argument("new", ID, place="NEW")
    ),
    Operation("move", Memory.move, render_message).takes(
        _THE_ID, Argument("scope", SCOPE, place="SCOPE")
    ),
    Operation("expire", Memory.expire, render_message).takes(
        _THE_ID, Argument("when", EXPIRY_TIME, place="WHEN")
    ),
    Operation("review", Memory.review, render_message),
    Operation("graph", Memory.graph, late("graphs", "render_tree")).takes(
        _THE_ID, Argument("kind", choice("tree", "dot", "json"), "--format", "tree")
    ),
    Operation("consolidate", Memory.consolidate, render_consolidated).takes(
        Argument("dry_run", FLAG)
    ),
    Operation("prune", _prune, late("upkeep", "render_pruned"), Memory.prune).takes(
        Argument("older_than", AGE),
        Argument("scope", SCOPE, default=...),
        Argument("confirmed", FLAG),
        Argument("all_machines", FLAG),
        Argument("dry_run", FLAG),
        Argument("purge", FLAG),
    ),
    Operation("doctor", Memory.doctor, render_checked).takes(
        Argument("repair", FLAG),
        Argument("client", CLIENT),  # of the shell alone: clients are no part of a memory
    ),
    Operation("backup", Memory.backup, render_message).takes(_BACKUP, *_ENCRYPT),
    Operation("restore", Memory.restore, render_message).takes(_BACKUP, *_OPEN),
    Operation("reindex", Memory.reindex, render_message),
    Operation("stats", Memory.stats, render_facts).takes(Argument("verify", FLAG)),
    Operation("import", Memory.import_rows, render_imported).takes(
        Argument("file", FILE_OR_FOLDER, place="[FILE]"),
        Argument("origin", string("CLIENTS"), "--from"),
        Argument("since", TIME),
        Argument("here", FLAG),
        Argument("dry_run", FLAG),
        Argument("scope", SCOPE),
        _ALLOW_SECRETS,
        *_OPEN,
    ),
    Operation("export", Memory.export_rows, render_message).takes(
        Argument("file", FILE, place="[FILE]"),
        Argument("force", FLAG),
        *_ENCRYPT,
    ),
)
OPERATIONS = {operation.name: operation for operation in _TABLE}


# ---------------------------------------------------------------------------------------------
# MCP server
#
# JSON-RPC 2.0, one message a line on stdin and stdout. Revisions up to 2025-11-25 open with
# `initialize`; the stateless ones, from 2026-07-28 on, have no session, and every request carries
# its revision in `_meta`. One process speaks both. The reading thread answers all but tool calls,
# so that ping and cancellation work while a call runs; one worker thread runs the calls in order.
# ---------------------------------------------------------------------------------------------

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS = ["2026-07-28"]  # which need no handshake
META_PREFIX = "io.modelcontextprotocol/"
LIST_TTL = 3_600_000  # ms a client may keep the tool list: it changes with the program only

PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR, UNSUPPORTED_VERSION = -32603, -32022


@functools.cache
def tools() -> dict[str, dict[str, Any]]:
    """The tools by name, as clients see them: descriptions from the asset, types from the table."""
    described = json.loads(asset("tools.json"))
    return {name: {"name": name} | _with_types(tool, name) for name, tool in described.items()}


@functools.cache
def instructions() -> str:
    """What agents are told about when to use the tools."""
    return asset("instructions.md").rstrip()


def _with_types(tool: dict[str, Any], name: str) -> dict[str, Any]:
    """A tool with a JSON schema of its input in place of mere descriptions of each argument, and
    with the rows that are described once wherever they stand."""
    arguments, properties = tool_arguments(name), {}
    for word, about in tool["inputSchema"].items():
        kind, default = arguments[word].kind, arguments[word].default
        facts = kind.limits | {"default": default, "served": SERVED_MAX}
        properties[word] = {"type": "", "description": about.format(**facts), **kind.schema}
        properties[word] |= {} if default is None else {"default": default}
    required = [word for word in properties if arguments[word].is_required]
    rows = tool["outputSchema"]["properties"]
    for part in rows.values():
        if named := part.get("items", {}).get("$ref"):
            part["items"] = rows[named]["items"]
    schema = {"type": "object", "properties": properties, "required": required}
    return tool | {"inputSchema": schema}


def tool_arguments(name: str) -> dict[str, Argument]:
    """The arguments of a tool, by their names there."""
    return {argument.wire: argument for argument in OPERATIONS[name].arguments if argument.wire}


class ProtocolError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class Call(NamedTuple):
    """A tool call for the worker; `reply` takes its result, or None if it was cancelled."""

    memory: Memory
    name: str
    run: Callable[[Call], tuple[Any, Shown | None]]
    arguments: dict[str, Any]
    reply: Callable[[Any], None]
    cancelled: threading.Event


def call_tool(memory: Memory, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a tool; the text of a SedimentError tells the agent what to change."""
    known, schema = tool_arguments(name), tools()[name]["inputSchema"]
    given = _given_arguments(arguments, known)
    for word in schema["required"]:
        if word not in given:
            raise InvalidInput(f"{name} takes {', '.join(schema['properties'])}; {word} is missing")
    if "limit" in given:
        given["limit"] = min(check_limit(given["limit"]), SERVED_MAX)
    values = {known[word].name: value for word, value in given.items()}
    answer = OPERATIONS[name].run(memory, **values)
    for key, length in _TEXT_LENGTHS.items():
        if key in answer:
            answer = _with_texts(answer, key, length)
    if unknown := ", ".join(sorted(arguments.keys() - known.keys())):
        remark = f"Ignored unknown arguments: {shown_value(unknown)}."
        answer["message"] = f"{answer.get('message', '')} {remark}".strip()
    return answer


def _given_arguments(arguments: dict[str, Any], known: dict[str, Argument]) -> dict[str, Any]:
    """The known arguments that have a value. Clients add arguments of their own, send "" for what
    is left out, and numbers as text."""
    given = {}
    for word, value in arguments.items():
        if word not in known or value is None or (value == "" and not known[word].is_required):
            continue
        given[word] = value_of(value, known[word].kind) if isinstance(value, str) else value
    return given


_TEXT_LENGTHS = {"items": PREVIEW, "may_replace": PROPOSAL_TEXT}  # at most, in characters


def declared(value: Any, schema: dict[str, Any]) -> Any:
    """The part of an answer that a tool's output schema names; the rest is for scripts."""
    if isinstance(value, list):
        return [declared(row, schema["items"]) for row in value]
    if (named := schema.get("properties")) is None:
        return value
    return {name: declared(part, named[name]) for name, part in value.items() if name in named}


def fit_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer of at most ANSWER_MAX characters. Its texts are cut to one length; where little
    would be left of them, rows first lose all but what names them."""
    key = next((key for key in ("results", "items", "may_replace") if answer.get(key)), None)
    if key is None or json_length(answer) <= ANSWER_MAX:
        return answer
    if len(answer[key]) > NEIGHBOURS_SHOWN:  # a long page needs no more beside it
        answer = {name: value for name, value in answer.items() if name not in _AROUND}
    if (length := _fitting_length(answer, key)) < ROW_TEXT:
        named = [{name: row[name] for name in _NAMING if name in row} for row in answer[key]]
        answer = answer | {key: named}
        length = _fitting_length(answer, key)
    return _with_texts(answer, key, length)


_AROUND = ("graph_expanded", "suggested")
_NAMING = ("id", "content", "author", "cross_project")


def _fitting_length(answer: dict[str, Any], key: str) -> int:
    """How long the text of each row can be, so that the answer is not too long."""

    def total(length: int) -> int:
        return json_length(_with_texts(answer, key, length))

    return max(0, bisect_right(range(CONTENT_MAX), ANSWER_MAX, key=total) - 1)


def _with_texts(answer: dict[str, Any], key: str, length: int) -> dict[str, Any]:
    """An answer with the texts of its rows cut."""
    return answer | {key: [_shorten(row, length) for row in answer[key]]}


def _shorten(row: dict[str, Any], length: int) -> dict[str, Any]:
    """A row with its text cut."""
    text = row["content"]
    return row | {"content": f"{text[:length]}…"} if len(text) > length else row


class RateLimit:
    """At most `allowed` calls in each window of 60 s; 0 is no limit."""

    def __init__(self) -> None:
        given = setting("RATE_LIMIT")
        self.allowed = int(given) if given.isdecimal() else RATE_LIMIT
        self._start, self._count = -60.0, 0

    def exceeded(self) -> bool:
        """Count one more call, and say whether it is one too many."""
        now = time.monotonic()
        if now - self._start >= 60:
            self._start, self._count = now, 0
        self._count += 1
        return bool(self.allowed) and self._count > self.allowed


class Worker:
    """Runs tool calls one after the other, and chores while no call waits."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._calls: deque[Call] = deque()
        self._shown: list[Shown] = []  # answers whose accesses are still to be recorded
        self._ready = threading.Condition()
        self._closing = False
        self._idle = threading.Event()
        self._idle.set()
        self._chore: threading.Thread | None = None
        self._preload: threading.Timer | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> None:
        """Put a call at the end of the queue."""
        with self._ready:
            self._calls.append(call)
            self._ready.notify()

    def preload_soon(self) -> None:
        """Preload, once, when the client has had its first answers."""
        if self._preload is None:
            self._preload = threading.Timer(PRELOAD_DELAY, self.preload)
            self._preload.daemon = True
            self._preload.start()

    def preload(self) -> None:
        """Load the encoder, and start the chores that were left."""
        with contextlib.suppress(SedimentError):  # the first call will report it
            self.memory.preload()
            self.start_chores()
        self.memory.database.close_thread()

    def finish(self, timeout: float | None = None) -> None:
        """Answer the queued calls, then end; wait for that at most `timeout` seconds."""
        if self._preload:
            self._preload.cancel()
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join(timeout)
        if self._chore:  # it stops at the next text, so that the next process can go on at once
            self._chore.join(1.0)

    def _work(self) -> None:
        while (call := self._next()) or self._shown or not self._closing:
            try:
                if call is None or len(self._shown) >= SHOWN_MAX:
                    shown, self._shown = self._shown, []
                    self.memory.record_access(*shown)
                if call is None:
                    continue
                self._idle.clear()
                self._run(call)
            except Exception:  # the calls behind this one still need answers
                log_fault()
            self._idle.set()

    def _next(self) -> Call | None:
        """The next call; None when there is time to record accesses, or at the end."""
        with self._ready:
            if not self._calls and not self._closing:
                self._ready.wait(SHOWN_DELAY if self._shown else None)
            return self._calls.popleft() if self._calls else None

    def _run(self, call: Call) -> None:
        """Answer a call, and leave for later what it showed and what chores it made."""
        try:
            result, shown = (None, None) if call.cancelled.is_set() else call.run(call)
        except SedimentError as error:
            result, shown = ProtocolError(INVALID_PARAMS, str(error)), None
        except Exception:  # a fault of ours must not let the client wait for ever
            log_fault()
            result, shown = ProtocolError(INTERNAL_ERROR, _FAILED), None
        call.reply(None if call.cancelled.is_set() else result)
        if shown:
            self._shown.append(shown)
        if isinstance(result, dict) and call.name in ("store", "recall"):
            self.start_chores()

    def start_chores(self) -> None:
        """Encode long texts and consolidate, in the pauses between calls."""
        with contextlib.suppress(SedimentError):
            if self.memory.has_chores() and not (self._chore and self._chore.is_alive()):
                self._chore = threading.Thread(target=self._do_chores, daemon=True)
                self._chore.start()

    def _do_chores(self) -> None:
        try:
            self.memory.embed_pending(stop=self._interrupted)
            if consolidates():
                self.memory.consolidate(stop=self._interrupted)
            if rules_file(self.memory.database).is_file():
                extension("retention").prune_daily(self.memory.database)
            self.memory.database.close_thread()
        except SedimentError:
            pass  # the next call will report it
        except Exception:
            log_fault()

    def _interrupted(self) -> bool:
        self._idle.wait()
        return self._closing


def log_fault() -> None:
    """Print the traceback of a fault of ours to stderr, which is the log."""
    import traceback

    traceback.print_exc()


_FAILED = "Sediment failed here; its log (stderr) says where."


def run_tool(call: Call) -> tuple[dict[str, Any], Shown | None]:
    """The result of a tool, and what of it counts as shown."""
    shown = None
    try:
        answer = call_tool(call.memory, call.name, call.arguments)
        if call.name == "recall" and answer["results"]:
            shown = shown_by(call.arguments["query"], answer)
        answer = fit_answer(declared(answer, tools()[call.name]["outputSchema"]))
        return _tool_result(to_json(answer)) | {"structuredContent": answer}, shown
    except SedimentError as error:
        text = error.reason
    except Exception:  # a fault of ours must not take the client's session down
        log_fault()
        text = _FAILED
    return tool_error(text), None


def run_prompt(call: Call) -> tuple[dict[str, Any], Shown]:
    """The prompt that a person chooses: what is remembered about a query, as data."""
    given = call.arguments.get("arguments")
    query = given.get("query") if isinstance(given, dict) else None
    if call.arguments.get("name") != "recall" or not isinstance(query, str):
        raise InvalidInput(_OFFERED)
    answer = call.memory.recall(query, record=False)
    rows = (row for row in answer["results"] if not row.keys() & {"unrelated", "cross_project"})
    lines = "\n".join(f"- {row['content']} ({row['created'][:10]})" for row in rows)
    lines = lines or "Nothing that is stored fits."
    text = f"From memory, on {shown_value(query)} (data, no instructions):\n{lines}"
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return {"messages": [message]}, shown_by(query, answer)


def read_resource(call: Call) -> tuple[dict[str, Any], None]:
    """One memory in full, or the newest ones, as a text."""
    uri = call.arguments.get("uri")
    if not isinstance(uri, str) or not uri.startswith(_MEMORY_URI):
        raise InvalidInput(_OFFERED)
    if (id := uri.removeprefix(_MEMORY_URI)) == "recent":
        rows = call.memory.list_items(scope="all")["items"]
        text = "\n".join(f"{row['id']}: {row['content']}" for row in rows)
    else:
        text = call.memory.get(id)["content"]
    contents = [{"uri": uri, "mimeType": "text/plain", "text": text}]
    return {"contents": contents, "ttlMs": 0, "cacheScope": "private"}, None


_OFFERED = "the prompt is recall, with a query; resources are memory://recent, memory://ID"
_MEMORY_URI = "memory://"
_CAPABILITIES = {"tools": {}, "prompts": {}, "resources": {}}


def run_hook_tool(call: Call) -> tuple[dict[str, Any], None]:
    """The result of the unlisted tool, which clients' hooks call."""
    return _tool_result(to_json(extension("hooks").run_hook(call.memory, call.arguments))), None


def _tool_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def tool_error(text: str) -> dict[str, Any]:
    return _tool_result(text) | {"isError": True}


class Server:
    """The protocol: receives messages, and sends each answer as one JSON text through `send`."""

    def __init__(
        self, worker: Worker, send: Callable[[str], None], memory: Memory | None = None
    ) -> None:
        self._worker, self._send_line = worker, send
        self._memory = memory or worker.memory
        self._tools = tools()
        self._runs: dict[str, Any] = {**dict.fromkeys(self._tools, run_tool), HOOK: run_hook_tool}
        self._rate = RateLimit()
        self._calls: dict[str | int, Call] = {}
        self._permitted: Callable[[Call], Call] = lambda call: call

    def restrict(self, permitted: Callable[[Call], Call]) -> None:
        """Serve another machine: only the listed tools, and each call as `permitted` returns it."""
        del self._runs[HOOK]
        self._permitted = permitted

    def cancel(self) -> None:
        """Cancel the calls that wait for their turn."""
        for call in [*self._calls.values()]:
            call.cancelled.set()

    def receive(self, line: bytes) -> None:
        """Take one line from the client, as `read_lines` returns it."""
        if len(line) > LINE_MAX:
            text = f"message too large: the limit is {LINE_MAX:,} bytes"
            self._send(error_response(INVALID_REQUEST, text))
        elif line.strip():
            try:
                message = parse_json(line.decode())
            except (ValueError, RecursionError) as error:
                self._send(
                    error_response(PARSE_ERROR, f"not a JSON message: {shown_value(str(error))}")
                )
            else:
                self.handle(message, self._send)

    def _send(self, message: Any) -> None:
        if message:
            self._send_line(json.dumps(message, separators=(",", ":"), allow_nan=False))

    def handle(self, message: Any, send: Callable[[Any], None]) -> None:
        """Answer a message through `send`, now or when its call has run; {} is no answer."""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            text = "not a JSON-RPC 2.0 message (send one at a time: there are no batches)"
            return send(error_response(INVALID_REQUEST, text, id_of_request(message)))
        if "method" not in message and ("result" in message or "error" in message):
            return send({})  # a response, though this server sends no requests
        if "id" not in message and "method" in message:
            self._notice(message)
            return send({})
        id = id_of_request(message)
        if id is None or not isinstance(message.get("method"), str):
            text = "a request has a method, and an id that is a string or a whole number"
            return send(error_response(INVALID_REQUEST, text, id))
        try:
            self._dispatch(id, message["method"], message.get("params", {}), send)
        except ProtocolError as error:
            send(refusal_response(error, id))

    def _notice(self, message: dict[str, Any]) -> None:
        """Take a notification: of them only a cancellation matters."""
        params = message.get("params")
        if message["method"] == "notifications/cancelled" and isinstance(params, dict):
            id = id_of_request({"id": params.get("requestId")})
            if id is not None and (call := self._calls.get(id)):
                call.cancelled.set()

    def _dispatch(
        self, id: str | int, method: str, params: Any, send: Callable[[Any], None]
    ) -> None:
        """Answer a request; ProtocolError where it is wrong."""
        if not isinstance(params, dict):
            raise ProtocolError(INVALID_PARAMS, "params must be an object")
        stateless = _is_stateless(params)

        def reply(result: dict[str, Any] | ProtocolError | None) -> None:
            if result is None:
                send({})
            elif isinstance(result, ProtocolError):
                send(refusal_response(result, id))
            else:
                send({"jsonrpc": "2.0", "id": id, "result": _finished(result, stateless)})

        match method, stateless:
            case "tools/call", _:
                self._call(id, params, reply)
            case "tools/list", _:
                reply(self._list_tools(params))
            case (("prompts/list" | "resources/list" | "resources/templates/list"), _):
                reply({**json.loads(asset("offered.json"))[method], **_CACHEABLE})
            case "prompts/get", _:
                self._submit(id, "recall", run_prompt, params, reply)
            case "resources/read", _:
                self._submit(id, "recall", read_resource, params, reply)
            case "initialize", False:
                reply(self._initialize(params))
            case "ping", False:
                reply({})
            case "server/discover", True:
                reply(self._discover())
            case "server/discover", False:
                raise ProtocolError(INVALID_PARAMS, f"_meta needs {META_PREFIX}protocolVersion")
            case _:
                raise ProtocolError(UNKNOWN_METHOD, f"unknown method {shown_value(method)}")

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        version = params.get("protocolVersion")
        if version not in HANDSHAKE_VERSIONS:
            version = HANDSHAKE_VERSIONS[-1]
        result = {"protocolVersion": version, "capabilities": _CAPABILITIES}
        return result | {"serverInfo": SERVER_INFO, "instructions": instructions()}

    def _discover(self) -> dict[str, Any]:
        result = {"supportedVersions": STATELESS_VERSIONS, "capabilities": _CAPABILITIES}
        return result | {"instructions": instructions(), **_CACHEABLE}

    def _list_tools(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("cursor"):
            raise ProtocolError(INVALID_PARAMS, "no such cursor: all tools are one page")
        self._worker.preload_soon()
        return {"tools": [*self._tools.values()], **_CACHEABLE}

    def _call(self, id: str | int, params: dict[str, Any], reply: Callable[[Any], None]) -> None:
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ProtocolError(INVALID_PARAMS, "tools/call takes a name and an arguments object")
        if (run := self._runs.get(name)) is None:
            raise ProtocolError(INVALID_PARAMS, f"unknown tool {shown_value(name)}")
        if run is not run_hook_tool and self._rate.exceeded():
            text = f"Rate limit: {self._rate.allowed} calls a minute. Wait, then retry."
            return reply(tool_error(text))
        self._submit(id, name, run, arguments, reply)

    def _submit(
        self, id: str | int, name: str, run: Any, arguments: Any, reply: Callable[[Any], None]
    ) -> None:
        """Give the worker a call, which can be cancelled until it is answered."""

        def finish(result: Any) -> None:
            if self._calls.get(id) is call:
                del self._calls[id]
            reply(result)

        call = Call(self._memory, name, run, arguments, finish, threading.Event())
        self._calls[id] = call
        self._worker.submit(self._permitted(call))


SERVER_INFO = {"name": "sediment", "title": "Sediment", "version": __version__}
_CACHEABLE = {"ttlMs": LIST_TTL, "cacheScope": "public"}


def id_of_request(message: Any) -> str | int | None:
    """A usable request id, or None."""
    id = message.get("id") if isinstance(message, dict) else None
    return id if isinstance(id, (str, int)) and not isinstance(id, bool) else None


def refusal_response(error: ProtocolError, id: str | int | None = None) -> dict[str, Any]:
    """An error answer; without an id when the request's could not be read."""
    return {"jsonrpc": "2.0", **({} if id is None else {"id": id}), "error": error.error}


def error_response(code: int, text: str, id: str | int | None = None) -> dict[str, Any]:
    return refusal_response(ProtocolError(code, text), id)


def _is_stateless(params: dict[str, Any]) -> bool:
    """Whether a request is of a stateless revision; ProtocolError where its `_meta` is wrong."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or f"{META_PREFIX}protocolVersion" not in meta:
        return False
    version = meta[f"{META_PREFIX}protocolVersion"]
    if not isinstance(version, str):
        raise ProtocolError(INVALID_PARAMS, f"{META_PREFIX}protocolVersion must be a string")
    if version not in STATELESS_VERSIONS:
        data = {"supported": STATELESS_VERSIONS, "requested": version}
        raise ProtocolError(UNSUPPORTED_VERSION, "unsupported protocol version", data)
    if not isinstance(meta.get(f"{META_PREFIX}clientCapabilities"), dict):
        raise ProtocolError(INVALID_PARAMS, f"_meta needs {META_PREFIX}clientCapabilities")
    return True


def _finished(result: dict[str, Any], stateless: bool) -> dict[str, Any]:
    """A result in the format of the protocol revision: only stateless ones have cache hints."""
    if stateless:
        return {
            "resultType": "complete",
            **result,
            "_meta": {f"{META_PREFIX}serverInfo": SERVER_INFO},
        }
    return {name: value for name, value in result.items() if name not in _CACHEABLE}


def read_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a stream without their ends, nor a byte order mark before the first. What is
    behind the first LINE_MAX bytes of a line, and one more, is left out."""
    mark = UTF8_MARK
    while line := file.readline(LINE_MAX + 1):
        more = line
        while more and not more.endswith(b"\n"):
            more = file.readline(LINE_MAX)
        yield line.removesuffix(b"\n").removeprefix(mark)
        mark = b""


def serve(memory: Memory, watched: Sequence[str] = ()) -> None:
    """Speak MCP on stdin and stdout until the client or a signal ends it; meanwhile index the
    changes of the `watched` files and folders."""
    source, wire = _take_wire()
    lock = threading.Lock()

    def send(text: str) -> None:
        data = text.encode() + b"\n"
        with lock, contextlib.suppress(OSError):  # where nobody is left to read it
            while data:
                data = data[os.write(wire, data) :]

    worker = Worker(memory)
    server = Server(worker, send)
    end_with_parent()
    follow(memory, watched)
    try:
        handle_signals(raise_stopped)
        for line in read_lines(source):
            server.receive(line)
        worker.finish()
    except Stopped:
        worker.finish(timeout=1.0)
    end_server(memory)


def end_server(memory: Memory) -> None:
    """End this process at once: a thread may still use the encoder. The database is safe then,
    as at any moment."""
    with contextlib.suppress(Exception):  # a thread may still be reading
        memory.close()
    os._exit(0)


def follow(memory: Memory, paths: Sequence[str]) -> None:
    """Keep the index of files and folders up to date from now on."""
    for path in paths:  # a thread each: one may not be there yet
        threading.Thread(target=_follow, args=(memory, path), daemon=True).start()


def _follow(memory: Memory, path: str) -> None:
    """Keep the index of a file or folder up to date, whatever becomes of it or of the database."""
    while True:
        with contextlib.suppress(SedimentError):  # at first: it may not be there yet
            for _ in memory.watch([path], failed=lambda _: None):
                memory.database.close_thread()
        time.sleep(WATCH_POLL / 1000)


class Stopped(SystemExit):
    """A signal asked the server to end: a SystemExit, since waitress only logs other errors."""


def raise_stopped(*_: object) -> None:
    handle_signals(signal.SIG_IGN)
    raise Stopped


def _take_wire() -> tuple[IO[bytes], int]:
    """Keep stdin and stdout for the protocol: all else prints to stderr, and reads nothing."""
    if sys.__stdout__ is None:
        raise InvalidInput("serve answers on stdout, which is closed")
    source, wire = open(os.dup(0), "rb"), os.dup(1)  # noqa: SIM115 - until the process ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, wire


# ---------------------------------------------------------------------------------------------
# Command line
#
# The operations as commands: parse, call, print the answer as text or with --json as one document.
# Those that read a pipe, show progress or ask have a function of their own here; so have the
# commands that are no operations of a memory.
# ---------------------------------------------------------------------------------------------


class Context:
    """The general options, and the memory that they select."""

    def __init__(self, db: str | None, project: str | None, json: bool, verbose: bool) -> None:
        self.db, self.project, self.json, self.verbose = db, project, json, verbose

    def memory(self, resident: bool = False, folder: Path | None = None) -> Memory:
        return Memory(self.db, project=self.project, folder=folder, resident=resident)

    def show(
        self, answer: dict[str, Any], render: Callable[..., Iterable[str]], err: bool = False
    ) -> None:
        """Print an answer as JSON, or the lines that `render` makes of it."""
        if self.json:
            text = json.dumps(answer, indent=2, sort_keys=True, ensure_ascii=False)
            click.echo(text, err=err)
        else:
            for line in render(answer):
                click.echo(line, err=err)


class _Command(click.Command):
    """A command that takes the general options, too, since people put them behind it. Options are
    made and help is read only when needed, to start faster."""

    own: Callable[[], list[click.Parameter]] | None = list

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if own := self.own:
            self.own = None
            general = (
                click.Option(flags.split(), expose_value=False, callback=_note_general, **kind)
                for flags, kind in _GENERAL.items()
            )
            self.params += [*own(), *general]
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
            if not ctx.resilient_parsing:
                refuse_unused(ctx)
            return rest
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # whose help the message names
            raise

    def get_short_help_str(self, limit: int = 80) -> str:
        extension("help_pages").describe(self)
        return super().get_short_help_str(limit)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        extension("help_pages").own_options(self, ctx)
        return super().shell_complete(ctx, incomplete)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        extension("help_pages").describe(self)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        extension("help_pages").write_options(self, ctx, formatter)


_GENERAL: dict[str, dict[str, Any]] = {
    "--db": {"metavar": "FILE", "help": "Use this database (else SEDIMENT_DB)."},
    "--project": {
        "metavar": "ID",
        "help": "Use this project: an ID or a folder (else"
        " SEDIMENT_PROJECT, else the current folder).",
    },
    "--json": {"is_flag": True, "help": "Print one JSON document."},
    "-v --verbose": {"is_flag": True, "help": "Report details on standard error."},
}


def _note_general(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value not in (None, False) and option.name and context.obj:
        setattr(context.obj, option.name, value)


# Which arguments go together: beside each that makes a command do something else, those that count
# then (-name: all but that one), and beside "" those that count without any of these. A name with
# a value, as in "action=add", is that argument with that value. What does not count is an error.
# A command that is not named here uses all its arguments, whatever is given.
COMPANIONS: dict[str, dict[str, str]] = {
    "store": {"into": "-replace -created_at -tags -expires"},
    "recall": {"hub": "query limit min_score anyway explain", "anyway": "-min_score"},
    "expand": {"lines": "id", "section": "id", "": "id"},
    "index": {"paths": "-", "remove": "paths scope", "": "paths scope allow_secrets"},
    "compact": {"command": "-", "dry_run": "-", "": "-timeout"},
    "list": {"conversations": "limit"},
    "graph": {"json": "id", "": "-"},
    "prune": {"purge": "scope dry_run", "older_than": "-", "": "dry_run"},
    "doctor": {"repair": "", "client": "", "": ""},
    "import": {
        "rows": "file origin scope allow_secrets",
        "encrypted": "file scope allow_secrets identity passphrase_file passphrase_fd",
        "conversations": "file origin since here dry_run",
    },
    "export": {
        "file": "-",
        "file=-": "-force",
        "plain": "-recipient -passphrase_file -passphrase_fd",
        "": "-force",
    },
    "backup": {"plain": "-recipient -passphrase_file -passphrase_fd"},
    "restore": {"plain": "-identity -passphrase_file -passphrase_fd"},
    "init": {
        "here": "-everywhere",
        "everywhere": "-here -new_project",
        "new_project": "-everywhere -only_print -remove",
    },
    "hook": {"off": "hooks", "on": "hooks", "reads": "", "": "client"},
    "model": {"action=list": "", "action=add": "target name", "action=remove": "target"},
    "tag": {"action=list": ""},
    "token": {"action=list": "", "action=add": "name reads", "action=revoke": "name"},
    "sync": {
        "place": "share share_global",
        "share": "place share_global",
        "share_global": "place share unshare",
        "unshare": "share_global",
        "status": "",
        "leave": "erase",
        "watch": "quiet with_parent",
        "": "again quiet",
    },
    "hub": {
        "action=init": "place recall",
        "action=add": "person space place reads",
        "action=remove": "person space place",
    },
}


def modes_of(command: str, given: Mapping[str, Any]) -> list[str]:
    """The entries of COMPANIONS that hold for what is given."""

    def holds(mode: str) -> bool:
        name, _, wanted = mode.partition("=")
        return given.get(name) == wanted if wanted else given.get(name) not in (None, False, ())

    return [mode for mode in COMPANIONS.get(command, ()) if mode and holds(mode)] or [""]


def counts(command: str, mode: str, name: str) -> bool:
    """Whether an argument counts in a mode of a command."""
    rule = COMPANIONS.get(command, {}).get(mode, "-")
    listed = (f"-{name}" if rule.startswith("-") else name) in rule.split()
    return listed != rule.startswith("-") or name == mode.partition("=")[0]


def refuse_unused(ctx: click.Context, **found: Any) -> None:
    """UsageError for an argument that does not count beside the others (COMPANIONS), or beside what
    was `found` since: it would be ignored."""
    command = str(ctx.command.name)
    modes = modes_of(command, {**ctx.params, **found, "json": ctx.obj.json})
    for name, mode in itertools.product(_typed(ctx), modes):
        if not counts(command, mode, name):
            helpful = [one for one in COMPANIONS[command] if counts(command, one, name)]
            shown = " or ".join(_as_typed(ctx, other) for other in ([mode] if mode else helpful))
            how = "with" if mode else "without"
            ctx.fail(f"{_as_typed(ctx, name)} has no effect {how} {shown}")


def _typed(ctx: click.Context) -> list[str]:
    """The names of the arguments that somebody typed; the others have the method's defaults."""
    typed = click.core.ParameterSource.COMMANDLINE
    return [name for name in ctx.params if ctx.get_parameter_source(name) is typed]


def _as_typed(ctx: click.Context, mode: str) -> str:
    """An argument, or a mode that one makes, as the usage shows it."""
    name, _, value = mode.partition("=")
    param = next((param for param in ctx.command.params if param.name == name), None)
    if value or param is None:
        return value or {"json": "--json", "plain": "a file that is not encrypted"}.get(name, name)
    is_option = isinstance(param, click.Option)
    return param.opts[-1] if is_option else (param.metavar or name.upper()).strip("[].")


class _Group(click.Group):
    """One-line errors, and commands in the order of the file."""

    command_class = _Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `help COMMAND` and `version` for the options of these names."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args[:1] == ["version"]:
            args = ["--version", *args[1:]]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        extension("help_pages").write_commands(self.commands, formatter)
        click.Command.format_options(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SedimentError as error:
            raise click.ClickException(str(error)) from None
        except EOFError as error:  # which click would take for Ctrl-D: nothing reads a terminal
            raise click.ClickException(f"a library file is damaged ({error}): {remedy()}") from None
        except ImportError as error:
            reason = f"a part of the program is missing ({one_line(str(error), PREVIEW)})"
            raise click.ClickException(f"{reason}: {remedy_of_import()}") from None


@click.group(
    cls=_Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`sediment COMMAND --help` shows a command's options and examples.",
    params=[
        click.Option(["-V", "--version"], is_flag=True, help="Print the version and exit."),
        *(click.Option(flags.split(), **kind) for flags, kind in _GENERAL.items()),
    ],
)
@click.pass_context
def cli(context: click.Context, version: bool, **options: Any) -> None:
    """Long-term memory for AI agents, in one file that runs offline.

    \b
    sediment store "We deploy on Fridays, after the canary is green."
    sediment recall "when can I release?"
    """
    context.obj = shared = Context(**options)
    if version and context.invoked_subcommand:
        raise click.UsageError(f"{context.invoked_subcommand} has no effect with --version")
    if version:
        facts = shared.memory().describe() if shared.verbose else {"sediment": __version__}
        shared.show(facts, lambda facts: (f"{name} {value}" for name, value in facts.items()))
        context.exit()
    if variable("NO_COLOR") or variable("TERM") == "dumb":
        context.color = False
    if context.invoked_subcommand is None:
        if sys.stdin.isatty():
            click.echo(context.get_help())
        else:
            context.invoke(serve_command)


# Operations that need more than a call


def _run(operation: Operation, shared: Context, /, **given: Any) -> None:
    """Run an operation, and print its answer."""
    with shared.memory() as memory:
        shared.show(operation.run(memory, **given), operation.render)


def _store(shared: Context, content: str, **options: Any) -> None:
    with shared.memory() as memory:
        shared.show(memory.store(content, **options), render_stored)
        finish_pending(memory)


def _recall_words(shared: Context, query: tuple[str, ...], **options: Any) -> None:
    """Several words are one query."""
    text = read_stdin(QUERY_MAX) if query == ("-",) else " ".join(query)
    with shared.memory() as memory:
        answer = _recall(memory, text, **options)
        shared.show(answer, functools.partial(render_recalled, query=text))
        memory.record_access(shown_by(text, answer))


def _get(shared: Context, id: str) -> None:
    with shared.memory() as memory:
        item = memory.get(id)
    if shared.json or sys.stdout.isatty():
        shared.show(item, render_item)
    else:  # to the byte
        click.echo(item["content"].encode(), nl=False)
    if "cross_project" in item and not shared.json:
        click.echo(printable(f"(of another project: {item['project']})"), err=True)
    if "successor" in item and not shared.json:
        click.echo(printable(f"(replaced by {item['successor']})"), err=True)


def _consolidate(shared: Context, dry_run: bool = False) -> None:
    with shared.memory(resident=True) as memory:
        with progress_bar("comparing", None) as add:
            answer = memory.consolidate(dry_run=dry_run, progress=add)
        shared.show(answer, functools.partial(render_consolidated, dry_run=dry_run))


def _doctor(shared: Context, repair: bool = False, client: str | None = None) -> None:
    with shared.memory() as memory:
        if repair:
            answer = memory.repair()
            shared.show(answer, render_message)
            finish_pending(memory)
        else:
            names = [client] if client and client != "all" else []
            answer = (
                extension("clients").check_clients(memory, names) if client else memory.doctor()
            )
            shared.show(answer, render_checked)
    if not answer["healthy"]:
        raise click.exceptions.Exit(1)


def _reindex(shared: Context) -> None:
    with shared.memory(resident=True) as memory:
        try:
            total = sum(count_items(memory.database.reader()).values())
            with progress_bar("reindexing", total) as add:
                answer = memory.reindex(add)
        except KeyboardInterrupt:
            raise SedimentError("interrupted: run it again to go on from here") from None
        shared.show(answer, render_message)


# The commands of the table


def _parameter(argument: Argument) -> click.Parameter:
    """An argument of an operation as one of its command."""
    name, kind, place = argument.name, argument.kind, argument.place
    common: dict[str, Any] = {"type": kind.shell}
    is_flag = True if kind is FLAG else None
    if argument.default is not None:  # to click, None would be a default, too
        common["default"] = argument.default
    if place:
        count = -1 if place.endswith("...") else 1
        return click.Argument(
            [name], nargs=count, required=argument.is_required, metavar=place, **common
        )
    return click.Option(
        [name, *(argument.flags or f"{_SHORT.get(name, '')} {argument.option}").split()],
        metavar=kind.metavar,
        # With False, click makes the option's value optional.
        **({"is_flag": False, "flag_value": "all"} if kind is CLIENT else {"is_flag": is_flag}),
        multiple=kind.schema["type"] == "array",
        show_default=argument.default is not None and not is_flag,
        **common,
    )


_SHORT = {"limit": "-l", "scope": "-s"}


_OWN_RUNS = {
    "store": _store,
    "recall": _recall_words,
    "index": late("files", "run_index"),
    "watch": late("watching", "run_watch"),
    "get": _get,
    "review": late("reviewing", "run_review"),
    "graph": late("graphs", "run_graph"),
    "consolidate": _consolidate,
    "doctor": _doctor,
    "reindex": _reindex,
    "backup": late("encryption", "run_backup"),
    "restore": late("encryption", "run_restore"),
    "import": late("importers", "run_import"),
    "export": late("exporting", "run_export"),
}


def _command(operation: Operation) -> _Command:
    """An operation as a command."""
    run = _OWN_RUNS.get(operation.name) or functools.partial(_run, operation)

    def callback(**given: Any) -> None:
        context = click.get_current_context()
        values = {name: given[name] for name in _typed(context)}
        for argument in operation.arguments:
            if argument.kind is CONTENT:
                text = " ".join(values[argument.name])
                values[argument.name] = read_stdin(CONTENT_MAX) if text == "-" else text
        run(context.obj, **values)

    command = _Command(operation.name, callback=callback)
    command.own = lambda: [*map(_parameter, operation.arguments)]
    return command


for _operation in OPERATIONS.values():
    cli.add_command(_command(_operation))
    if _operation.name == "recall":
        cli.add_command(cli.commands["recall"], "search")


# Commands of the shell alone


class _ExtensionCommand(_Command):
    """A command whose options and work are those of `NAME_command` in an extension, which is loaded
    when the command runs or its help is asked for."""

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name)
        self._module = module
        self.own = lambda: self._loaded().params

    def _loaded(self) -> click.Command:
        return getattr(extension(self._module), f"{self.name}_command")

    def invoke(self, ctx: click.Context) -> Any:
        self.callback = self._loaded().callback
        return super().invoke(ctx)


EXTENSIONS = {  # command -> the extension that has it
    "tag": "tags",
    "init": "clients",
    "hook": "hooks",
    "browse": "http",
    "token": "http",
    "model": "models",
    "sync": "sync.commands",
    "hub": "sync.commands",
}
for _name, _module in EXTENSIONS.items():
    cli.add_command(_ExtensionCommand(_name, _module))


pass_shared = click.make_pass_decorator(Context)


@cli.command("serve")
@click.option("--watch", "watched", multiple=True, metavar="PATH")
@click.option("--http", "address", metavar="[HOST:]PORT")
@click.option("--sync", "syncs", is_flag=True)
@pass_shared
def serve_command(
    shared: Context, watched: tuple[str, ...] = (), address: str | None = None, syncs: bool = False
) -> None:
    """Start the MCP server in the project's folder, if the client names that."""
    hint = variable("CLAUDE_PROJECT_DIR")
    folder = Path(hint) if hint and Path(hint).is_dir() else None
    memory = shared.memory(resident=True, folder=folder)
    for path in watched:
        if not os.path.lexists(expand_home(path)):
            click.echo(f"Waiting for {printable_name(path)}, which is not there yet.", err=True)
    if syncs:
        extension("sync.commands").start_sync(memory.database.path)
    if address is None:
        return serve(memory, watched)
    follow(memory, watched)
    server = extension("http").listen(memory, *extension("http").parse_address(address))
    click.echo(f"Listening on {extension('http').url_of(server)} (Ctrl-C ends it).", err=True)
    memory.preload()
    extension("http").serve_http(memory, server)


@cli.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    name = context.find_root().info_name or "sediment"
    trigger = f"_{name}_COMPLETE".replace("-", "_").replace(".", "_").upper()
    if kind := get_completion_class(shell):
        script = kind(cli, {}, name, trigger).source()
        context.obj.show({"shell": shell, "script": script}, lambda _: [script])


# Input and progress


def read_stdin(limit: int) -> str:
    """The UTF-8 text on stdin, without the newline that `echo` adds. InvalidInput, before more is
    read, if it has more than `limit` bytes."""
    most = limit + len("\ufeff\r\n".encode())
    data = sys.stdin.buffer.read(most + 1)
    if len(data) > most:
        raise InvalidInput(f"the text on stdin is too large: the limit is {limit:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"stdin is not UTF-8 text (byte {error.start}): convert it first"
        raise InvalidInput(reason) from None
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


@contextlib.contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that adds to a count, shown on stderr: on a terminal by a bar, else by a
    line every PROGRESS_SECONDS."""
    printed, done, as_lines = time.monotonic(), 0, not sys.stderr.isatty()
    endless = iter(()) if total is None else None
    options: Any = {"show_pos": True, "file": sys.stderr, "hidden": as_lines}
    with click.progressbar(endless, total, label, **options) as bar:
        shown: Any = bar

        def add(count: int) -> None:
            nonlocal done, printed, total
            done += count
            if total is not None:  # another process may have added to it
                shown.length = total = max(total, done)
            if as_lines and (now := time.monotonic()) - printed >= PROGRESS_SECONDS:
                printed = now
                click.echo(f"{label}: {done}{'' if total is None else f' of {total}'}", err=True)
            shown.update(count)

        yield add


def finish_pending(memory: Memory) -> None:
    """Compute the vectors of long texts, after the answer; interrupting that loses nothing."""
    if total := memory.pending():
        sys.stdout.flush()
        until = "the next store, import or serve makes the vectors that are missing"
        with put_off(until), progress_bar("encoding", total) as add:
            memory.embed_pending(add)


@contextlib.contextmanager
def put_off(until: str) -> Iterator[None]:
    """For work after the answer: if it fails or is interrupted, say until when it is put off, and
    do not fail."""
    try:
        yield
    except (KeyboardInterrupt, DatabaseError, ServiceError) as error:
        reason = printable(str(error).removesuffix(_NOT_MADE)) or "interrupted"
        click.echo(f"All is stored; {until} ({reason})", err=True)


def main() -> int:
    """The program; returns its exit code."""
    program = Path(sys.argv[0]).name
    name = program if program.endswith(".pyz") else "sediment"
    repair_streams()
    ignore_false_alarms()
    try:
        return cli.main(prog_name=name, standalone_mode=False) or 0
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else name
        reason = " ".join(error.format_message().split()).rstrip(".")
        if isinstance(error, click.NoSuchOption) and not error.possibilities:
            reason += '; a text that begins with "-" goes behind --'
        end = "" if reason.endswith("?") else "."
        return _fail(f"{reason}{end} See `{command} --help`.", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except SedimentError as error:  # of help, which click prints before there is a command
        return _fail(str(error), 1)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except OSError as error:
        drop_output()
        where = error.filename or "the output"
        return _fail(f"{where} cannot be read or written ({error.strerror or error})", 1)


def _fail(text: str, code: int) -> int:
    """Print an error as one line on stderr; returns its exit code: 0 for a hook, whatever stands
    before its name, since clients take other codes for a refusal."""
    click.echo(f"Error: {printable_name(text)}", err=True)
    command = next((argument for argument in sys.argv[1:] if argument in cli.commands), None)
    return 0 if command == HOOK else code


def run() -> None:
    """Run the program, and end the process without freeing everything first: that would take 15 ms
    of 190, and might crash a library that is still being loaded."""
    code = main()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # Python says what cannot be written
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    import sediment  # extensions import this module: without it they would load a second copy

    sediment.run()

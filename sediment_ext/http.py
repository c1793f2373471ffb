"""Serve clients that cannot start a process here: MCP at /mcp, JSON under /v1, a page at /.

waitress reads the requests: it buffers slow ones, and knows the tricks of smuggling. This module
decides who may ask, and what is asked. Other pages in a browser are kept out by the names in Host
and Origin, by bodies of types that no form can send, and by having no cookies. The database has
only a hash of each token, which is shown once, when it is made.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import hmac
import itertools
import json
import re
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click

import sediment as core
from sediment_ext import json_lines, page_api

HTTP_GLANCE = 0.5  # s between two looks whether a client still waits for its answer
HTTP_THREADS = 8  # requests that are read and answered at once; the encoder has its own threads
HTTP_CONNECTIONS = 256  # open ones; a client holds a few
HTTP_SILENCE = 30  # s in which a connection must send a whole head, or more of a body
HTTP_PATIENCE = 120  # s that a request waits for its turn; clients give up after 60 to 600
HTTP_HEADERS_MAX = 32_768  # bytes; those of a browser are 2,000
HTTP_REVIEW = 1.0  # s to compare imported rows before pairs are answered; other requests wait
HTTP_STREAMS = 2  # imports and exports at once: the other threads stay free
TOKEN_USED = "token_used:"  # begins a key of `meta`, before a token's name: when it last was
TOKEN_USE = 300  # s between two notes of when a token was used
IMPORT_MAX = 2**28  # bytes of one import over HTTP: 250,000 memories


class Token(core.NamedTuple):
    """Somebody who may ask: only read if `reads`, and only of `project` if it is given."""

    name: str
    reads: bool = False
    project: str | None = None


# All tokens. A folder that has another id since its first commit is the same project.
_TOKENS = (
    "SELECT hash, name, reads, coalesce(p.project_id, t.project_id), created_at,"
    " (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'token_used:' || name) FROM tokens t"
    " LEFT JOIN projects p ON p.location = 'moved:' || t.project_id ORDER BY name"
)


def add_token(
    database: core.Database, name: str, reads: bool, project: str | None
) -> dict[str, Any]:
    """A new token: {success, name, token, message}. Raises InvalidInput for a name that is used."""
    import secrets

    secret = secrets.token_urlsafe(32)
    core.refuse_credential("name", core.check_id(name))
    row = (name, core.sha256(secret.encode()), reads, project, int(time.time()))
    with database.transaction() as connection:
        if core.fetch(connection, "SELECT 1 FROM tokens WHERE name = ?", name):
            raise core.InvalidInput(
                f"there is a token {core.shown_value(name)} already: `token revoke` it first"
            )
        connection.execute("INSERT INTO tokens VALUES(?, ?, ?, ?, ?)", row)
    message = f"Token of {name}, shown this once: {secret}"
    return {"success": True, "name": name, "token": secret, "message": message}


def list_tokens(database: core.Database) -> dict[str, Any]:
    """{count, tokens: [{name, reads, project?, created, used?}]}, by name."""
    rows = [
        {"name": name, "reads": bool(reads), "created": core.iso_time(created_at)}
        | ({"project": project} if project else {})
        | ({"used": core.iso_time(used_at)} if used_at else {})
        for _, name, reads, project, created_at, used_at in database.rows(_TOKENS)
    ]
    return {"count": len(rows), "tokens": rows}


def revoke_token(database: core.Database, name: str) -> dict[str, Any]:
    """End a token at once: {success, message}. Raises NotFound for a name that none has."""
    with database.transaction(create=False) as connection:
        sql = "DELETE FROM tokens WHERE name = ? RETURNING 1"
        if not core.fetch(connection, sql, core.check_id(name)):
            raise core.NotFound(f"there is no token {core.shown_value(name)}: see `token list`")
        connection.execute("DELETE FROM meta WHERE key = ?", (f"{TOKEN_USED}{name}",))
    return {"success": True, "message": f"Token {name} is revoked."}


def token_of(database: core.Database, secret: str) -> Token | None:
    """The token that has this secret, or None. All are compared, each in constant time."""
    given, found, used = core.sha256(secret.encode("utf-8", "replace")), None, None
    for digest, name, reads, project, _, used_at in database.rows(_TOKENS):
        if hmac.compare_digest(given, digest):
            found, used = Token(name, bool(reads), project), used_at
    if found and time.time() - (used or 0) > TOKEN_USE:
        _note_use(database, found.name)
    return found


def _note_use(database: core.Database, name: str) -> None:
    """Note that a token is used now; where the file cannot be written, it is read all the same."""
    with contextlib.suppress(core.DatabaseError), database.transaction(wait=500) as connection:
        core.set_meta(connection, f"{TOKEN_USED}{name}", str(int(time.time())))


def render_tokens(answer: dict[str, Any]) -> Iterator[str]:
    """A line for each token, without the token itself."""
    for row in answer["tokens"]:
        rights = "reads" if row["reads"] else "reads and writes"
        where = f" the project {row['project']}" if "project" in row else ""
        used = f"last used {core.local_time(row['used'])}" if "used" in row else "never used"
        yield core.printable(
            f"{row['name']}  {rights}{where}, since {core.local_time(row['created'])}, {used}"
        )
    if not answer["tokens"]:
        yield "No tokens: `sediment token add NAME` makes one."


_JSON, _LINES = "application/json", "application/x-ndjson"
HEADER_MISMATCH = -32020
# Headers that repeat what a stateless message says.
_MIRRORED = {"HTTP_MCP_METHOD": "method", "HTTP_MCP_NAME": "name"}
_STATUS: dict[type[core.SedimentError], int] = {  # the first that fits
    **{core.NotFound: 404, core.Forbidden: 403, core.Conflict: 409, core.InvalidInput: 400}
}
_REASONS = {
    200: "OK", 201: "Created", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized",
    403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict",
    413: "Content Too Large", 415: "Unsupported Media Type", 429: "Too Many Requests",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class Route(core.NamedTuple):
    """The operation of a method and a path, in which {id} stands for an argument."""

    method: str
    path: str
    operation: core.Operation
    without: Sequence[str] = ()  # arguments left out: about this machine, or too expensive
    named: str = "id"  # the argument that {id} in the path is
    is_care: bool = False  # whether it needs all rights, in all projects

    @property
    def in_query(self) -> bool:
        """Whether its arguments are in the query, all as texts, and not in a body."""
        return self.method in ("GET", "DELETE")

    @property
    def changes(self) -> bool:
        """Whether it needs more than the right to read."""
        return self.method != "GET" and self.operation.name not in ("recall", "search")

    @property
    def arguments(self) -> dict[str, core.Argument]:
        """Its arguments, by the names that tools have for them, if any."""
        taken = (each for each in self.operation.arguments if each.name not in self.without)
        return {each.wire or each.name: each for each in taken}


_KEEP = core.OPERATIONS["replace"]._replace(name="keep", run=core.Memory.keep_both)
_REVIEW = core.Operation(
    "review", functools.partial(core.Memory.review, within=HTTP_REVIEW), core.render_pair
)
_SESSIONS = core.Operation(
    "conversations", core.Memory.list_conversations, core.render_listed
).takes(core.HOW_MANY)
_TAGS = core.Operation("tags", core.Memory.tags, core.render_facts)
_TAG = core.Operation("tag", core.Memory.tag, core.render_message).takes(
    core.Argument("id", core.ID, place="ID"),
    *(core.Argument(name, core.TAGS) for name in ("add", "remove")),
)
_NOT_IN_RECALL = ("ranking", "vector_weight", "text_weight", "candidates", "hub")
ROUTES = (
    Route("GET", "/v1/memories", core.OPERATIONS["list"], ("conversations",)),
    Route("GET", "/v1/conversations", _SESSIONS),
    Route("POST", "/v1/memories", core.OPERATIONS["store"], ("into",)),
    Route("GET", "/v1/memories/{id}", core.OPERATIONS["get"]),
    Route("PUT", "/v1/memories/{id}", core.OPERATIONS["store"], ("into",), "replace_id"),
    Route("DELETE", "/v1/memories/{id}", core.OPERATIONS["forget"]),
    Route("POST", "/v1/memories/{id}/undo", core.OPERATIONS["undo"]),
    Route("POST", "/v1/memories/{id}/move", core.OPERATIONS["move"]),
    Route("POST", "/v1/memories/{id}/tag", _TAG),
    Route("POST", "/v1/memories/{id}/expire", core.OPERATIONS["expire"]),
    Route("GET", "/v1/tags", _TAGS),
    Route("GET", "/v1/memories/{id}/history", core.OPERATIONS["history"]),
    Route("GET", "/v1/memories/{id}/graph", core.OPERATIONS["graph"], ("kind",)),
    Route("GET", "/v1/recall", core.OPERATIONS["recall"], _NOT_IN_RECALL),
    Route("POST", "/v1/recall", core.OPERATIONS["recall"], _NOT_IN_RECALL),
    Route("GET", "/v1/review", _REVIEW),
    Route("POST", "/v1/review/replace", core.OPERATIONS["replace"]),
    Route("POST", "/v1/review/keep", _KEEP),
    Route(
        "GET", "/v1/activity", core.Operation("activity", core.Memory.activity, core.render_facts)
    ),
    Route("GET", "/v1/stats", core.OPERATIONS["stats"], ("verify",)),
)


def _page_route(
    method: str,
    path: str,
    run: Callable[..., Any],
    *arguments: core.Argument,
    named: str = "id",
    is_care: bool = False,
) -> Route:
    operation = core.Operation(path.split("/")[0], run, core.render_facts).takes(*arguments)
    return Route(method, f"/v1/page/{path}".rstrip("/"), operation, (), named, is_care)


def _argument(name: str, kind: core.Kind, is_required: bool = False) -> core.Argument:
    return core.Argument(name, kind, place=name if is_required else "")


_FLAG = core.Kind({"type": "boolean"})
_IDS = _argument("ids", core.PATHS, True)
_EVERYWHERE = _argument("everywhere", _FLAG)
_FILTERS = (
    *(_argument(name, core.string()) for name in ("scope", "kind", "tag")),
    *(_argument(name, core.TIME) for name in ("since", "until")),
    *(_argument(name, _FLAG) for name in ("replaced", "never_recalled", "oldest")),
)
_PAGED = tuple(_argument(name, core.whole(1, core.PAGES_MAX)) for name in ("limit", "page"))
# What the page asks; no promise to others, so that openapi.json does not describe it.
_PAGE_ROUTES = (
    _page_route("GET", "", page_api.overview),
    _page_route("GET", "memories", page_api.list_memories, *_FILTERS, *_PAGED),
    _page_route("GET", "ids", page_api.list_ids, *_FILTERS),
    _page_route(
        "POST",
        "search",
        page_api.search,
        *(_argument("query", core.QUERY, True), _PAGED[0], _EVERYWHERE),
    ),
    _page_route("GET", "memories/{id}", page_api.read, _argument("id", core.ID, True)),
    _page_route("GET", "graph", page_api.whole_graph, _EVERYWHERE),
    _page_route("GET", "pairs", page_api.pairs, _EVERYWHERE),
    _page_route("GET", "figures", page_api.figures, _EVERYWHERE),
    _page_route("POST", "confirm", page_api.confirm_many, _IDS, _argument("undo", _FLAG)),
    _page_route("POST", "move", page_api.move_many, _IDS, _argument("to", core.string())),
    _page_route("POST", "forget", page_api.forget_many, _IDS),
    _page_route("POST", "export", page_api.export_many, _IDS),
    _page_route(
        "POST",
        "reopen",
        page_api.reopen_pair,
        *(_argument(name, core.ID, True) for name in ("old", "new")),
    ),
    _page_route("GET", "care", page_api.care, is_care=True),
    _page_route(
        "POST",
        "tokens",
        core.Memory.add_token,
        _argument("name", core.string(), True),
        _argument("reads", _FLAG),
        _argument("project", core.string()),
        is_care=True,
    ),
    _page_route(
        "DELETE",
        "tokens/{id}",
        core.Memory.revoke_token,
        _argument("name", core.string(), True),
        named="name",
        is_care=True,
    ),
)
# The names of arguments that are ids of items, in methods and in tools.
_ID_NAMES = frozenset({"ids"}).union(
    id_name
    for each in core.OPERATIONS.values()
    for argument in each.arguments
    for id_name in ((argument.name, argument.wire) if argument.kind is core.ID else ())
)


class HttpError(Exception):
    """A request that is refused, and why."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HttpAnswer(core.NamedTuple):
    """A response: its body is a value to write as JSON, or for other types pieces of bytes."""

    status: int
    body: Any
    type: str = _JSON
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed

    def pieces(self) -> Iterable[bytes]:
        return [core.to_json(self.body).encode()] if self.type == _JSON else self.body


class Visitor(core.NamedTuple):
    """Who asks, and the memory as that person sees it."""

    token: Token
    memory: core.Memory
    is_gone: Callable[[], bool]  # whether the connection was closed meanwhile
    silent: bool = False  # whether what is recalled does not count as shown

    def unless_gone(self, value: str) -> str:
        """The value; HttpError where nobody waits for an answer any more."""
        if self.is_gone():
            raise HttpError(503, "the client has gone")
        return value

    def wait(self, ready: Callable[[float], object]) -> None:
        """Wait until something is ready, which is asked with the seconds that it may take.
        HttpError after HTTP_PATIENCE seconds, or when the client has gone."""
        end = time.monotonic() + HTTP_PATIENCE
        while not ready(min(HTTP_GLANCE, HTTP_PATIENCE)):
            self.unless_gone("")
            if time.monotonic() > end:
                raise HttpError(503, "too much is asked at once: retry later", Retry_After="10")

    def answer(
        self, ask: Callable[[Callable[[Any], None]], object], cancel: Callable[[], object]
    ) -> Any:
        """The worker's answer to a call, which `ask` submits with a function that takes the
        answer. Cancelled when nobody waits for it any more: HttpError."""
        answers: list[Any] = []
        is_there = threading.Event()

        def reply(answer: Any) -> None:
            answers.append(answer)
            is_there.set()

        ask(reply)
        try:
            self.wait(is_there.wait)
        except HttpError:
            cancel()
            raise
        return answers[0]

    @property
    def may_care(self) -> bool:
        """Whether the token has all rights, in all projects."""
        return not self.token.reads and self.token.project is None

    def check_care(self) -> None:
        """Raises Forbidden unless the token has all rights."""
        if not self.may_care:
            raise core.Forbidden(
                f"the token {self.token.name} has not all rights, which this needs"
            )

    def check(self, changes: bool, arguments: dict[str, Any]) -> None:
        """Raises Forbidden unless the token allows this."""
        if changes and self.token.reads:
            raise core.Forbidden(f"the token {self.token.name} only reads")
        if self.token.project is None:
            return
        if changes and core.check_scope(arguments.get("scope") or "project") == "global":
            raise core.Forbidden(f"the token {self.token.name} cannot change global memories")
        if arguments.get("to", self.token.project) != self.token.project:
            raise core.Forbidden(f"the token {self.token.name} is for one project alone")
        for name in _ID_NAMES & arguments.keys():
            given = arguments[name]
            for id in given if isinstance(given, list) else [given] if given else []:
                self._check_item(changes, id)

    def _check_item(self, changes: bool, id: str) -> None:
        """Raises Forbidden where an item, or a version of it, is not in the token's project."""
        projects = self.memory.projects
        session = (
            core.find_session(projects.database, id) if core.is_session(projects, id) else None
        )
        found: set[str | None] = {session.project or None} if session else set()
        if not session or core.is_own_memory(projects, id):
            with core.keep_to_one_project():
                id = core.visible_item(projects, id)["id"]
            found |= core.projects_of_versions(projects.database, id)
        if not found <= {self.token.project, *([] if changes else [None])}:
            verb = "change" if changes else "read"
            raise core.Forbidden(f"the token {self.token.name} cannot {verb} {id}")


class Gateway:
    """The WSGI application.

    needs_token  whether requests need a token even when they come from this machine
    key          a token that is in no file, which a page takes once for one of its own
    """

    def __init__(self, worker: core.Worker, needs_token: bool, key: str | None = None) -> None:
        self._worker, self._memory = worker, worker.memory
        self._needs_token, self._once = needs_token, key
        self._page_keys: set[str] = set()
        self._rates: dict[str, core.RateLimit] = {}
        self._streams = threading.BoundedSemaphore(HTTP_STREAMS)
        self._stream_places = threading.BoundedSemaphore(2 * HTTP_STREAMS)  # with those that wait

    def __call__(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        try:
            answer = self._answer(request)
        except HttpError as error:
            answer = HttpAnswer(error.status, {"error": str(error)}, headers=error.headers)
        except core.SedimentError as error:
            answer = refusal(error)
        except Exception:  # a fault of ours must not end the server
            core.log_fault()
            answer = HttpAnswer(500, {"error": "Sediment failed here; its log says where"})
        headers = {"Content-Type": answer.type, **_SAFE_HEADERS, **answer.headers}
        pieces = [] if answer.status == 202 else answer.pieces()
        if request["REQUEST_METHOD"] == "HEAD":
            headers["Content-Length"], pieces = str(sum(map(len, pieces))), []
        start(f"{answer.status} {_REASONS[answer.status]}", [*headers.items()])
        return pieces

    def _answer(self, request: dict[str, Any]) -> HttpAnswer:
        method, path = request["REQUEST_METHOD"], request.get("PATH_INFO", "").rstrip("/") or "/"
        if path in _OPEN and method in ("GET", "HEAD"):
            return _OPEN[path](self._memory)
        visitor = self._visitor(request)
        if path in _OPEN:
            raise _wrong_method(method, "GET", "HEAD")
        special = {
            "/v1/session": ("POST", self._session),
            "/v1/import": ("POST", self._import),
            "/v1/export": ("GET", self._export),
            "/v1/page/import": ("POST", self._foresee_import),
            "/v1/page/backup": ("GET", self._back_up),
            "/v1/page/doctor": ("GET", self._look_after),
            "/v1/page/sync": ("GET", self._look_after),
            "/mcp": (method, self._mcp),  # which says itself why it takes no other than POST
        }
        if path in special:
            allowed, answer = special[path]
            if method != allowed:
                raise _wrong_method(method, allowed)
            _refuse_unknown(path, _query_arguments(request), ())
            return answer(request, visitor)
        route, values = _find_route(method, request)
        given = _query_arguments(request) if route.in_query else _body_arguments(request)
        if route.is_care:
            visitor.check_care()
        answer = self._run(route, typed(route, given | values), visitor)
        if route.path == "/v1/page":
            rights = {"changes": not visitor.token.reads, "cares": visitor.may_care}
            answer = answer._replace(body=answer.body | rights)
        return answer

    # Who asks

    def _visitor(self, request: dict[str, Any]) -> Visitor:
        """Who asks; HttpError for who may not."""
        host, origin = _target(request)[0], request.get("HTTP_ORIGIN")
        token = self._token(request)
        if token is None and _host_name(host) not in core.LOCAL_NAMES:
            raise HttpError(
                403, f"{core.shown_value(host)} is not this server's name, and there is no token"
            )
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise HttpError(403, f"pages of {core.shown_value(origin)} may not ask here")
        if request.get("HTTP_SEC_FETCH_SITE", "none") not in ("none", "same-origin"):
            raise HttpError(403, "pages from elsewhere may not ask here")
        token = token or Token("this machine")
        self._count(token)
        memory, is_gone = self._memory_of(request, token), request["waitress.client_disconnected"]
        return Visitor(token, memory, is_gone, "HTTP_SEDIMENT_SILENT" in request)

    def _count(self, token: Token) -> None:
        """Count one more request, or message of one; HttpError where it is one too many."""
        rate = self._rates.setdefault(token.name, core.RateLimit())
        if rate.exceeded():
            text = f"{rate.allowed} requests a minute: wait, then retry"
            raise HttpError(429, text, Retry_After="60")

    def _token(self, request: dict[str, Any]) -> Token | None:
        """The token of a request; None from this machine while none is needed."""
        # Once a token was needed, one always is: revoking the last opens the server to nobody.
        self._needs_token = self._needs_token or bool(
            self._once or self._page_keys or self._memory.tokens()["count"]
        )
        kind, _, secret = request.get("HTTP_AUTHORIZATION", "").partition(" ")
        if kind.lower() == "bearer" and secret:
            once = request.get("PATH_INFO") == "/v1/session"
            if token := self._key(secret, once) or self._memory.token_of(secret):
                return token
            raise HttpError(401, "this token is none, or was revoked", WWW_Authenticate="Bearer")
        if self._needs_token:
            text = "a token is needed: `Authorization: Bearer TOKEN`"
            raise HttpError(401, text, WWW_Authenticate="Bearer")
        return None

    def _key(self, secret: str, once: bool) -> Token | None:
        """A page's token. Its first one counts only where `once` is true: it gets another there."""
        keys = [*self._page_keys, *([self._once] if self._once and once else [])]
        known = [key for key in keys if hmac.compare_digest(key.encode(), secret.encode())]
        return Token("the page") if known else None

    def _session(self, request: dict[str, Any], visitor: Visitor) -> HttpAnswer:
        """Give the page a token for as long as the server runs; its first one is used up."""
        import secrets

        if request.get("HTTP_AUTHORIZATION", "").partition(" ")[2] != self._once:
            raise HttpError(403, "this is for the page, once")
        key, self._once = secrets.token_urlsafe(32), None
        self._page_keys.add(key)
        return HttpAnswer(201, {"token": key})

    def _memory_of(self, request: dict[str, Any], token: Token) -> core.Memory:
        """The memory as seen from the token's project, or from the one that is asked for."""
        header = _utf8("Sediment-Project", request.get("HTTP_SEDIMENT_PROJECT", ""))
        asked = {name for name in (header, _query(request).get("project")) if name}
        if len(asked) > 1:
            raise HttpError(400, "the header Sediment-Project and the query name two projects")
        if token.project and asked - {token.project}:
            raise HttpError(403, f"the token {token.name} is for one project alone")
        try:
            return self._memory.of_project(token.project or next(iter(asked), None))
        except core.InvalidInput as error:
            raise HttpError(404, str(error)) from None

    # What is asked

    def _run(self, route: Route, arguments: dict[str, Any], visitor: Visitor) -> HttpAnswer:
        """Have the worker run an operation, in its turn, for what the visitor may see."""

        def run_operation(call: core.Call) -> tuple[dict[str, Any], core.Shown | None]:
            try:  # checked only now, since the call before may change what an id stands for
                with core.keep_to_one_project(visitor.token.project is not None):
                    visitor.check(route.changes, call.arguments)
                    answer = route.operation.run(call.memory, **call.arguments)
            except Exception as error:
                return {"error": error}, None
            shows = call.name == "recall" and answer["results"] and not visitor.silent
            return {"answer": answer}, core.shown_by(arguments["query"], answer) if shows else None

        cancelled = threading.Event()
        name = route.operation.name
        call = functools.partial(core.Call, visitor.memory, name, run_operation, arguments)
        result = visitor.answer(
            lambda reply: self._worker.submit(call(reply, cancelled)), cancelled.set
        )
        if error := result.get("error"):
            raise error
        answer = {key: value for key, value in result["answer"].items() if key not in _LOCAL_FACTS}
        return HttpAnswer(201 if "id" in answer and route.method == "POST" else 200, answer)

    def _mcp(self, request: dict[str, Any], visitor: Visitor) -> HttpAnswer:
        """One message, and its answer if it has one."""
        if request["REQUEST_METHOD"] != "POST":
            raise HttpError(405, "this server has no stream of its own: POST", Allow="POST")
        text = _body(request, core.LINE_MAX)
        try:
            message = core.parse_json(text)
        except (ValueError, RecursionError) as error:
            return HttpAnswer(
                400,
                core.error_response(
                    core.PARSE_ERROR, f"not a JSON message: {core.shown_value(str(error))}"
                ),
            )
        try:
            _check_mirrored(request, message)
        except core.ProtocolError as error:
            return HttpAnswer(400, core.refusal_response(error, core.id_of_request(message)))
        server = core.Server(self._worker, lambda _: None, visitor.memory)
        server.restrict(functools.partial(_permitted, visitor))
        answer = visitor.answer(functools.partial(server.handle, message), server.cancel)
        return HttpAnswer(_mcp_status(message, answer), answer) if answer else HttpAnswer(202, None)

    def _import(self, request: dict[str, Any], visitor: Visitor) -> HttpAnswer:
        """Import rows as they arrive; what was committed before a fault stays."""
        visitor.check(True, {})
        if visitor.token.project:
            raise core.Forbidden(f"the token {visitor.token.name} is for one project: no imports")
        _check_type(request, _LINES, _JSON)
        lines = map(visitor.unless_gone, json_lines.text_lines(request["wsgi.input"]))
        with self._stream(visitor):
            answer = visitor.memory.import_rows(lines)
        self._worker.start_chores()
        return HttpAnswer(200, answer)

    def _foresee_import(self, request: dict[str, Any], visitor: Visitor) -> HttpAnswer:
        """What an import of these rows would do."""
        visitor.check_care()
        _check_type(request, _LINES, _JSON)
        with self._stream(visitor):
            lines = map(visitor.unless_gone, json_lines.text_lines(request["wsgi.input"]))
            return HttpAnswer(200, visitor.memory.import_rows(lines, dry_run=True))

    def _look_after(self, request: dict[str, Any], visitor: Visitor) -> HttpAnswer:
        """What `doctor` or `sync --status` says. Both take long, and nobody else waits for it."""
        visitor.check_care()
        is_sync = request["PATH_INFO"].rstrip("/").endswith("sync")
        answer = visitor.memory.sync_status() if is_sync else visitor.memory.doctor()
        return HttpAnswer(200, answer)

    def _back_up(self, request: dict[str, Any], visitor: Visitor) -> HttpAnswer:
        """A copy of the database, to be kept elsewhere."""
        visitor.check_care()

        def pieces() -> Iterator[bytes]:
            with self._stream(visitor):
                yield from page_api.back_up(visitor.memory)

        copy = pieces()
        first = next(copy)  # now, so that a refusal still has a status of its own
        return HttpAnswer(200, itertools.chain([first], copy), "application/vnd.sqlite3")

    def _export(self, request: dict[str, Any], visitor: Visitor) -> HttpAnswer:
        """All rows that the visitor may see, as JSON Lines."""
        only = visitor.token.project

        def lines() -> Iterator[bytes]:
            with self._stream(visitor):
                for row in visitor.memory.export_rows():
                    if only is None or row.get("project", only) == only:
                        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"

        rows = lines()
        first = next(rows, b"")  # now, so that a refusal still has a status of its own
        return HttpAnswer(200, itertools.chain([first], rows), _LINES)

    @contextlib.contextmanager
    def _stream(self, visitor: Visitor) -> Iterator[None]:
        """One of the few imports and exports at a time, so that others need not wait for them."""
        if not self._stream_places.acquire(blocking=False):
            raise HttpError(503, "others import or export: retry later", Retry_After="60")
        try:
            visitor.wait(lambda seconds: self._streams.acquire(timeout=seconds))
            try:
                yield
            finally:
                self._streams.release()
        finally:
            self._stream_places.release()


_SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_ABSOLUTE_TARGET = core.LazyPattern(r"https?://([^/]*)(/.*)?", re.IGNORECASE)
_LOCAL_FACTS = ("path", "database", "root", "folder", "copies")  # not for other machines


def refusal(error: core.SedimentError) -> HttpAnswer:
    """The answer to a request that fails, which tells nothing about this machine."""
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return HttpAnswer(status, {"error": str(error)})
    click.echo(f"sediment: {core.printable_name(str(error))}", err=True)
    return HttpAnswer(503, {"error": "the memory cannot be read or written; the log says more"})


def _target(request: dict[str, Any]) -> tuple[str, str]:
    """The host that is asked, and the path as it was sent. Both may stand in the first line, as for
    a proxy: then the header Host counts for nothing (RFC 9112, section 3.2.2)."""
    target = request["REQUEST_URI"].partition("?")[0]
    if found := _ABSOLUTE_TARGET.fullmatch(target):
        return found[1], found[2] or "/"
    return request.get("HTTP_HOST", ""), target


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    return host.rpartition("]")[0].lstrip("[") if host[:1] == "[" else host.partition(":")[0]


def _find_route(method: str, request: dict[str, Any]) -> tuple[Route, dict[str, str]]:
    """The route of a request and the argument in its path, in which %2F stands for a slash;
    HttpError where there is none."""
    path, allowed = _target(request)[1].rstrip("/"), []
    for route in (*ROUTES, *_PAGE_ROUTES):
        if found := re.fullmatch(route.path.replace("{id}", "([^/]+)"), path):
            if route.method == method:
                values = [_utf8(path, urllib.parse.unquote(id, "latin-1")) for id in found.groups()]
                return route, dict(zip([route.named], values, strict=False))
            allowed.append(route.method)
    if allowed:
        raise _wrong_method(method, *allowed)
    raise HttpError(404, f"there is nothing at {core.shown_value(path)}: see /v1/openapi.json")


def _wrong_method(method: str, *allowed: str) -> HttpError:
    return HttpError(405, f"{method} is nothing for this path", Allow=", ".join(allowed))


_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
}


def typed(route: Route, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their names in the method, each of its type. Raises InvalidInput for one that
    is unknown, missing or of another type."""
    known = route.arguments
    _refuse_unknown(route.path, given, known)
    for name, argument in known.items():
        if argument.is_required and given.get(name) is None:
            raise core.InvalidInput(f"{name} is missing")
    return {
        known[name].name: _of_type(name, value, known[name].kind, route.in_query)
        for name, value in given.items()
        if value is not None
    }


def _refuse_unknown(path: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in set(given).difference(known):
        raise core.InvalidInput(
            f"{path} takes {', '.join(known) or 'nothing'}; not {core.shown_value(name)}"
        )


def _of_type(name: str, value: Any, kind: core.Kind, from_text: bool) -> Any:
    type = kind.schema["type"]
    if kind is core.TIME and value.__class__ in (int, float):
        return value  # unix seconds
    if from_text:
        value = core.value_of(value, kind)
    elif type == "integer" and value.__class__ is float and value.is_integer():
        return int(value)  # JSON has one kind of number
    if isinstance(value, _TYPES[type]) and (type == "boolean" or not isinstance(value, bool)):
        return _possible_id(value) if kind is core.ID else value
    article = "an" if type == "integer" else "a"
    raise core.InvalidInput(f"{name} must be {article} {type}, not {core.shown_value(value)}")


def _possible_id(id: str) -> str:
    """An id as given; NotFound for one that no memory can have."""
    try:
        return core.check_id(id)
    except core.InvalidInput as error:
        raise core.NotFound(str(error)) from None


def _check_type(request: dict[str, Any], *types: str) -> None:
    """HttpError unless a body has one of these types, which other sites cannot send unasked."""
    given = request.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if given not in types:
        raise HttpError(
            415, f"the body must be {' or '.join(types)}, not {core.shown_value(given)}"
        )


def _body(request: dict[str, Any], limit: int) -> bytes:
    """The body of a request with JSON."""
    _check_type(request, _JSON)
    if int(request.get("CONTENT_LENGTH") or 0) > limit:
        raise HttpError(413, f"the body is too large: the limit is {limit:,} bytes")
    return request["wsgi.input"].read(limit)


def _utf8(name: str, text: str) -> str:
    """A text in UTF-8, of which WSGI has made each byte a character; HttpError for another one."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise HttpError(400, f"{name} is not UTF-8") from None


def _query(request: dict[str, Any]) -> dict[str, str]:
    """What stands in the query, by name; HttpError where a name stands there twice."""
    text = request.get("QUERY_STRING", "")
    pairs = urllib.parse.parse_qsl(text, True, encoding="latin-1")
    query = {_utf8("the query", name): _utf8(name, value) for name, value in pairs}
    if len(query) < len(pairs):
        raise HttpError(400, "an argument stands in the query twice")
    return query


def _query_arguments(request: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in _query(request).items() if name != "project"}


def _body_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """The arguments in a body: a JSON object in which each name stands once, {} where it is
    empty."""
    if misplaced := ", ".join(_query_arguments(request)):
        raise core.InvalidInput(
            f"arguments go in the body here, not in the query: {core.shown_value(misplaced)}"
        )
    if not int(request.get("CONTENT_LENGTH") or 0):
        return {}
    try:
        text = _body(request, core.LINE_MAX).decode()
        value = json.loads(text, object_pairs_hook=_once, parse_constant=core.no_constant)
    except (ValueError, RecursionError) as error:
        raise core.InvalidInput(f"the body is not JSON ({core.shown_value(str(error))})") from None
    if not isinstance(value, dict):
        raise core.InvalidInput("the body must be a JSON object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise core.InvalidInput("an argument stands in the body twice")
    return found


def _permitted(visitor: Visitor, call: core.Call) -> core.Call:
    """A tool call that is refused, when its turn comes, unless the visitor may make it."""

    def checked(given: core.Call) -> tuple[Any, core.Shown | None]:
        try:
            visitor.check(call.name in ("store", "forget"), call.arguments)
        except core.SedimentError as error:
            return core.tool_error(str(error)), None
        with core.keep_to_one_project(visitor.token.project is not None):
            return call.run(given)

    return call._replace(run=checked)


def _check_mirrored(request: dict[str, Any], message: Any) -> None:
    """ProtocolError where headers differ from the message, or lack what a stateless revision
    wants them to repeat."""
    version = request.get("HTTP_MCP_PROTOCOL_VERSION")
    if version is not None and version not in (*core.HANDSHAKE_VERSIONS, *core.STATELESS_VERSIONS):
        data = {"supported": core.STATELESS_VERSIONS, "requested": version}
        raise core.ProtocolError(core.UNSUPPORTED_VERSION, "unsupported protocol version", data)
    params = message.get("params") if isinstance(message, dict) else None
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    in_message = meta.get(f"{core.META_PREFIX}protocolVersion") if isinstance(meta, dict) else None
    if in_message is None:
        if version in core.STATELESS_VERSIONS:
            raise core.ProtocolError(
                core.INVALID_PARAMS, f"_meta needs {core.META_PREFIX}protocolVersion"
            )
        return
    if in_message != version:
        raise core.ProtocolError(HEADER_MISMATCH, "MCP-Protocol-Version and _meta do not agree")
    wanted = {"method": message.get("method"), "name": params.get("name", params.get("uri"))}
    for header, name in _MIRRORED.items():
        if _decode_header(request.get(header)) != wanted[name]:
            raise core.ProtocolError(HEADER_MISMATCH, f"Mcp-{name.title()} and the message differ")


def _decode_header(header: str | None) -> str | None:
    """The value of such a header, which has =?base64?…?= for what no header can hold."""
    if header and (found := re.fullmatch(r"=\?base64\?(.*)\?=", header)):
        with contextlib.suppress(ValueError):
            return base64.b64decode(found[1], validate=True).decode()
    return header


def _mcp_status(message: Any, answer: dict[str, Any]) -> int:
    """The HTTP status of an answer: in older revisions most errors have 200, too."""
    if "error" not in answer:
        return 200
    code = answer["error"]["code"]
    if code in (core.PARSE_ERROR, core.INVALID_REQUEST, core.UNSUPPORTED_VERSION):
        return 400
    params = message.get("params") if isinstance(message, dict) else None
    stateless = isinstance(params, dict) and "_meta" in params
    return (404 if code == core.UNKNOWN_METHOD else 400) if stateless else 200


def _ready(memory: core.Memory) -> HttpAnswer:
    """Check that the encoder loads and that the database can be written."""
    memory.encoder.load()
    if memory.database.path.exists():  # else the first memory creates it, not this check
        with memory.database.transaction():
            pass
    return HttpAnswer(200, {"ready": True})


def openapi(_: core.Memory | None = None) -> HttpAnswer:
    """The routes, as OpenAPI 3.1 describes them."""
    facts = json.loads(core.asset("openapi.json"))
    facts["info"]["version"] = core.__version__
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _described(route)
    for verbs in facts["paths"].values():
        for verb in verbs.values():
            verb |= {"parameters": _ASKED_WITH, "responses": verb["responses"] | _FAILURES}
    return HttpAnswer(200, facts | {"paths": paths | facts["paths"]})


_ANSWERED = {
    "description": "What the command prints with --json.",
    "content": {_JSON: {"schema": {"type": "object"}}},
}
_FAILURES = {
    str(status): {"$ref": "#/components/responses/Refused"}
    for status in _REASONS
    if status >= 400 and status != 405  # a method that is not described
}


_ASKED_WITH = [  # any route takes these, too
    {
        **{"name": "project", "in": "query", "schema": {"type": "string"}},
        "description": "The id of a project. Or in the header Sediment-Project.",
    },
    {"name": "Sediment-Silent", "in": "header", "schema": {"type": "string"}},
]


def _described(route: Route) -> dict[str, Any]:
    """One route, as OpenAPI describes it."""
    parameters, body, needed = [], {}, []
    page = core.extension("help_pages").help_pages().get(route.operation.name)
    about = page.options if page else {}
    for name, argument in route.arguments.items():
        schema = _schema(argument, route.in_query, about.get(argument.option, ""))
        if name == route.named and "{" in route.path:
            parameters.append({"name": "id", "in": "path", "schema": schema, "required": True})
        elif route.in_query:
            query = {"name": name, "in": "query", "schema": schema}
            style = {"explode": False} if schema["type"] == "array" else {}
            parameters.append(query | style | {"required": argument.is_required})
        else:
            body[name] = schema
            needed += [name] if argument.is_required else []
    described = {"summary": route.operation.name, "parameters": [*parameters, *_ASKED_WITH]}
    if not route.in_query:
        schema = {"type": "object", "properties": body, "required": needed}
        content = {_JSON: {"schema": schema | {"additionalProperties": False}}}
        described["requestBody"] = {"content": content, "required": bool(needed)}
    statuses = ("200", "201") if route.method == "POST" else ("200",)
    return described | {"responses": dict.fromkeys(statuses, _ANSWERED) | _FAILURES}


def _schema(argument: core.Argument, in_query: bool, about: str) -> dict[str, Any]:
    """The JSON schema of an argument: in a body null stands for none, and a number for a time."""
    kind = argument.kind
    schema: dict[str, Any] = kind.schema | kind.limits | ({"description": about} if about else {})
    schema |= {} if argument.default is None else {"default": argument.default}
    if in_query or argument.is_required:
        return schema
    types = [schema["type"], *(["number"] if kind is core.TIME else []), "null"]
    known = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return schema | {"type": types} | known


_PAGE_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none';"
    " base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
)


@functools.cache
def page() -> HttpAnswer:
    """The page. Its policy lets a browser run its own scripts, ask this server, and no more."""
    text, policy = core.asset("page.html"), _PAGE_POLICY
    for name in ("script", "style"):
        for part in re.findall(f"<{name}>(.*?)</{name}>", text, re.DOTALL):
            hashed = base64.b64encode(core.sha256(part.encode())).decode()
            policy += f"; {name}-src 'sha256-{hashed}'"
    headers = {"Content-Security-Policy": policy}
    return HttpAnswer(200, [text.encode()], "text/html; charset=utf-8", headers)


_OPEN: dict[str, Callable[[core.Memory], HttpAnswer]] = {
    "/": lambda _: page(),
    "/health": lambda _: HttpAnswer(200, {"healthy": True}),
    "/ready": _ready,
    "/v1/openapi.json": openapi,
}


def listen(memory: core.Memory, host: str, port: int, key: str | None = None) -> Any:
    """A server at all addresses of a host; its `run` answers until a signal ends it.

    Raises InvalidInput for an address that other machines can reach while there is no token, and
    for one that cannot be bound."""
    import logging

    import waitress.server

    served: dict[int, Any] = {}  # what waitress listens and answers on, by file descriptor
    needs_token = bool(memory.tokens()["count"])
    if host not in core.LOCAL_NAMES and not needs_token:
        raise core.InvalidInput(f"{host} is for others, too: first run `sediment token add NAME`")
    worker = core.Worker(memory)
    try:
        sockets = _sockets(host, port)
        server: Any = waitress.server.create_server(
            Gateway(worker, needs_token, key),
            map=served,
            sockets=sockets,
            threads=HTTP_THREADS,
            connection_limit=2 * HTTP_CONNECTIONS,  # `_make_room` sees to it before
            channel_timeout=HTTP_SILENCE,
            cleanup_interval=5,
            channel_request_lookahead=1,  # else nobody notices that a client has gone
            max_request_header_size=HTTP_HEADERS_MAX,
            max_request_body_size=IMPORT_MAX,
            ident=None,
        )
    except (OSError, ValueError) as error:
        raise core.InvalidInput(f"{host}:{port} cannot be listened on ({error})") from None
    for listener in served.values():
        listener.channel_class = _channel()
    # Waitress tells them only where a name has a single address.
    server.effective_host, server.effective_port = host, sockets[0].getsockname()[1]
    logging.getLogger("waitress.queue").disabled = True  # a line for each request that waits
    return server


def _sockets(host: str, port: int) -> list[Any]:
    """A socket for each address of a host, all with the same port. Addresses that this machine
    does not have are left out: without IPv6, localhost may still have ::1."""
    import socket

    sockets: list[Any] = []
    missing = OSError("no address")
    for found in dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
        family, address = found[0], found[-1]
        try:
            sockets.append(socket.create_server((address[0], port, *address[2:]), family=family))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            missing = error
        else:
            port = sockets[0].getsockname()[1]
    if not sockets:
        raise missing
    return sockets


def _parser() -> type:
    """The class of requests as they are read: waitress's, but stricter."""
    from waitress.parser import HTTPRequestParser, ParsingError
    from waitress.utilities import BadRequest

    class Parser(HTTPRequestParser):
        def received(self, data: bytes) -> int:
            taken = super().received(data)
            if self.empty:  # else blank lines would hold a connection for ever
                self.empty, self.error = False, BadRequest("blank lines are no request")
            return taken

        def parse_header(self, header_plus: bytes) -> None:
            try:
                super().parse_header(header_plus)
            except ValueError:
                raise ParsingError("an address or a length that is none") from None
            # A proxy in front may use the other length, and take what follows for somebody else's
            # request (RFC 9112, section 6.3); so with hosts (section 3.2).
            if self.chunked and "CONTENT_LENGTH" in self.headers:
                raise ParsingError("both Content-Length and Transfer-Encoding")
            if "," in self.headers.get("HOST", ""):
                raise ParsingError("more than one Host")

    return Parser


@functools.cache
def _channel() -> type:
    """The class of connections: waitress's, but stricter with slow clients and with requests."""
    import socket

    from waitress.channel import HTTPChannel

    class Channel(HTTPChannel):
        parser_class = _parser()

        def __init__(self, *facts: Any, map: dict[int, Any]) -> None:
            super().__init__(*facts, map=map)
            _make_room([one for one in map.values() if isinstance(one, Channel)])

        has_left = False  # whether the client has closed its side; it may still read an answer

        def check_client_disconnected(self) -> bool:
            return self.has_left or not self.connected

        def readable(self) -> bool:
            return not (self.has_left and self.requests) and super().readable()

        def handle_read(self) -> None:
            connection: Any = self.socket
            before = self.last_activity
            with contextlib.suppress(OSError):  # which are for waitress
                self.has_left = not connection.recv(1, socket.MSG_PEEK)
            if self.has_left and self.requests:
                return  # waitress would close it at once
            super().handle_read()
            if self.request and not self.request.headers_finished:
                self.last_activity = before  # bytes of an unfinished head do not count

    return Channel


def _make_room(connections: list[Any]) -> None:
    """Close a connection where there are too many: of those that no request is under way on, of
    the address that has most, the one that has been idle longest."""
    connections = [one for one in connections if not one.will_close]
    if len(connections) <= HTTP_CONNECTIONS:
        return
    held = Counter(one.addr[0] for one in connections)
    idle = (one for one in connections if not one.requests)
    if last := min(idle, key=lambda one: (-held[one.addr[0]], one.last_activity), default=None):
        last.will_close = True


def serve_http(memory: core.Memory, server: Any) -> None:
    """Answer requests until a signal ends this."""
    with contextlib.suppress(core.Stopped):
        core.handle_signals(core.raise_stopped)
        server.run()
    core.end_server(memory)


def parse_address(text: str) -> tuple[str, int]:
    """The host and the port of [HOST:]PORT."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter(
            f"{core.shown_value(text)} is not [HOST:]PORT, as 8000 or 0.0.0.0:8000"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def url_of(server: Any) -> str:
    host = server.effective_host
    return f"http://{f'[{host}]' if ':' in host else host}:{server.effective_port}"


@click.command("browse")
@click.option("--no-open", is_flag=True)
@core.pass_shared
def browse_command(shared: core.Context, no_open: bool) -> None:
    """Look after the memory in a browser."""
    import secrets
    import webbrowser

    key = secrets.token_urlsafe(32)
    memory = shared.memory(resident=True)
    server = listen(memory, "127.0.0.1", 0, key)
    address = f"{url_of(server)}/#{key}"
    shared.show({"address": address}, lambda _: [f"{address}  (once; Ctrl-C ends it)"])
    if not no_open:
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
    core.ThreadCall(memory.preload)  # the page and its lists do not wait for it
    serve_http(memory, server)


@click.command("token")
@click.argument("action", type=click.Choice(("add", "list", "revoke")), default="list")
@click.argument("name", required=False)
@click.option("--reads", is_flag=True)
@core.pass_shared
def token_command(shared: core.Context, action: str, name: str | None, reads: bool) -> None:
    """Manage the tokens of clients that come over the network."""
    if name is None and action != "list":
        raise click.UsageError(f"token {action} takes a NAME")
    with shared.memory() as memory:
        if action == "add":
            project = memory.projects.current(create=True) if shared.project else None
            if shared.project and project is None:  # the token would be good for all projects
                raise core.InvalidInput(
                    f"{shared.project} is no project: {memory.projects.nowhere()}"
                )
            answer = memory.add_token(name or "", reads=reads, project=project)
        else:
            answer = memory.revoke_token(name) if name else memory.tokens()
        shared.show(answer, render_tokens if action == "list" else core.render_message)

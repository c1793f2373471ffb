"""Get vectors from an embedding service.

Only SEDIMENT_EMBEDDING_MODEL switches this on, since the service is sent the texts. Tokens,
chunks and the weights of words are still the bundled model's. A text that gets no vector is
stored, and waits in `pending`. A request is one POST, so the standard library is enough.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import re
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import apsw
import numpy

import sediment as core
from sediment_ext import given_models

SERVICE_BATCH, SERVICE_PATIENCE = 64, 180.0  # texts at once; s that a job may wait
SERVICE_TIMEOUT = 60.0  # s of one request; a service may have to load its model
SERVICE_PAUSE, SERVICE_REST = 0.5, 30.0  # s to the second try (doubled each time); after the last
SERVICE_ANSWER = 2**26  # bytes; 64 vectors of 4,096 numbers take 6 MB
SERVICE_TEXT = 100  # characters that every service can take
PROBE_EVERY = 60  # s that a query trusts the last probe; each batch of stored texts probes again

_ADDRESS = core.LazyPattern(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(?::\d{1,5})?(?:/[\w.~/%:+-]*)?")
_LOOPBACK = core.LazyPattern(r"localhost|127(?:\.\d{1,3}){3}|\[::1\]")


class ServiceModel(core.Model):
    """A model at an address, with the bundled tokenizer. The vector of PROBE, asked for with all
    stored texts, shows whether its weights have changed."""

    def __init__(self, name: str, sent: Counter[str]) -> None:
        super().__init__(core.model_dir())
        self.sent = sent  # counts of requests, texts and tokens, and the cost
        self._probed = (-math.inf, b"")  # when, by the monotonic clock, and the vector
        kind, _, self.model_name = name.partition(":")
        self.name, self.dimension, self.cohort = f"{kind.lower()}:{self.model_name}", 0, ""
        self.digest = core.sha256(self.name.encode()).hex()
        prefixes = given_models.PREFIXES.get(self.model_name.rpartition("/")[2], ("", ""))
        self.query_prefix, self.passage_prefix = prefixes
        self.service = core.services()[kind.lower()]
        url = (core.setting("EMBEDDING_URL") or self.service["url"]).strip().rstrip("/")
        address = _ADDRESS.fullmatch(url)
        if not address or not re.fullmatch(r"[\w.:/@+-]+", self.model_name):
            form = "NAME, and SEDIMENT_EMBEDDING_URL=https://HOST/v1, with no user, key or query"
            raise core.ModelError(f"a service is set by SEDIMENT_EMBEDDING_MODEL={kind}:{form}")
        self.is_local = bool(_LOOPBACK.fullmatch(address[1]))
        self.destination = url + (" (on this machine)" if self.is_local else "")
        self.url = url + self.service["path"].format(self.model_name)

    @property
    def probe(self) -> bytes:
        """The vector of PROBE; b"" where none came within PROBE_EVERY seconds."""
        when, vector = self._probed
        return vector if time.monotonic() < when + PROBE_EVERY else b""

    def key(self) -> str:
        """The API key, from the environment alone."""
        return core.variable(self.service["key"]).strip()

    def ask(self, texts: list[str], query: bool, timeout: float) -> list[bytes]:
        """The vectors of texts, by one request of so many seconds. Raises ServiceError."""
        probing = not query or not (self.probe or self.service["kinds"])
        inputs = [*texts, core.PROBE] if probing else texts
        work = functools.partial(
            self._post, core.to_json(self._body(inputs, query)).encode(), timeout
        )
        counts = {"requests_sent": 1, "texts_sent": len(texts)}
        self.sent.update(counts)
        try:
            answer = core.parse_object(core.ThreadCall(work, daemon=True).result(timeout))
        except core.ServiceError as error:
            if not error.reached:
                self.sent.subtract(counts)
            raise
        except TimeoutError:  # whatever took the time: a name, a header, each byte of the rest
            raise self._error(f"no answer within {timeout:.3g} s", 0.0) from None
        self.sent.update(_usage(answer))
        if probing:
            self.dimension = 0  # a changed model may have another one
        vectors = self._vectors(answer, len(inputs))
        if probing:
            self._probed = time.monotonic(), vectors.pop()
        return vectors

    def _error(
        self, reason: str, again: float | None = None, refused: bool = False
    ) -> core.ServiceError:
        text = core.printable_name(core.one_line(reason, 2 * core.PREVIEW))
        return core.ServiceError(f"no vectors from {self.name}: {text}", again, refused)

    def _body(self, texts: list[str], query: bool) -> dict[str, Any]:
        kind = self.service["kinds"][query] if self.service["kinds"] else None
        if "{}" in self.service["path"]:  # Gemini's, with a request for each text
            model = {"model": f"models/{self.model_name}", "taskType": kind}
            contents = [{"content": {"parts": [{"text": text}]}} for text in texts]
            return {"requests": [model | content for content in contents]}
        return {"model": self.model_name, "input": texts} | ({"input_type": kind} if kind else {})

    def _headers(self) -> dict[str, str]:
        """With the key, which a service of one's own may not need."""
        key, is_own = self.key(), not self.url.startswith(self.service["url"])
        if not (re.fullmatch("[!-~]+", key) if key else is_own):  # urllib's error would show it
            raise self._error(f"{self.service['key']} is not set to a key")
        header, before = self.service["header"].split(": ")
        headers = {"Content-Type": "application/json", "User-Agent": f"sediment/{core.__version__}"}
        return headers | ({header: before + key} if key else {})

    def _post(self, data: bytes, timeout: float) -> bytes:
        """The body of the reply. Redirects are not followed: they would take texts and key
        elsewhere. Requests to this machine use no proxy."""
        from http.client import HTTPException
        from urllib import error, request

        members = {"redirect_request": lambda *_: None}
        no_redirect = type("NoRedirect", (request.HTTPRedirectHandler,), members)
        proxies = request.ProxyHandler({} if self.is_local else None)
        post = request.Request(self.url, data, self._headers())
        try:
            with request.build_opener(no_redirect, proxies).open(post, timeout=timeout) as response:
                body = response.read(SERVICE_ANSWER)
                if response.length:  # bytes that are missing; the library raises nothing of them
                    raise HTTPException("the answer broke off, or does not end")
                return body
        except error.HTTPError as found:
            raise self._refusal(found) from None
        except (OSError, HTTPException, ValueError) as found:
            reason = getattr(found, "reason", found)
            is_final = isinstance(found, error.URLError) and not isinstance(reason, TimeoutError)
            message = str(reason) or type(reason).__name__
            failure = self._error(message, None if is_final else 0.0)
            failure.reached = not is_final
            raise failure from None

    def _refusal(self, found: Any) -> core.ServiceError:
        """The error of a reply with such a code: its text without the key, which some repeat."""
        code, text, again = found.code, "", None
        with contextlib.suppress(Exception):  # it may break off
            text = found.read(core.PLAIN_MAX).decode("utf-8", "replace")
        if 300 <= code < 400:
            text = f"SEDIMENT_EMBEDDING_URL may be {found.headers['Location']}, where it sends us"
        # Some give a text that is too long, or too large, a code of 500 and more.
        refused = code in (400, 413, 422) or (code >= 500 and " too l" in text)
        if code in (408, 429) or (code >= 500 and not refused):
            seconds = found.headers.get("Retry-After", "")
            again = float(seconds) if re.fullmatch(r"\d{1,4}(\.\d{1,9})?", seconds) else 0.0
        text = core.redact(text.replace(self.key() or "\0", "[key]"))[0]
        return self._error(f"HTTP {code}: {text}", again, refused)

    def _vectors(self, answer: dict[str, Any], count: int) -> list[bytes]:
        """The vectors of an answer, of length 1, in the order of the texts. Raises ServiceError."""
        try:
            rows = answer.get("embeddings") or answer["data"]
            rows.sort(key=lambda row: row.get("index", 0))
            numbers = [row.get("values") or row["embedding"] for row in rows]
            with numpy.errstate(all="ignore"):
                matrix = numpy.array(numbers, "<f4")
                lengths = numpy.linalg.norm(matrix, axis=1, keepdims=True)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._error("the answer is not from an embeddings API") from None
        usable, dimension = (lengths > 0) & (lengths < math.inf), self.dimension or matrix.shape[1]
        if (*matrix.shape, usable.sum()) != (count, dimension, count):
            given = f"{usable.sum()} usable vectors of {matrix.shape[1]} numbers"
            raise self._error(f"it gave {given}, and not {count} of {dimension}")
        self.dimension = dimension
        return [row.tobytes() for row in matrix / lengths]


def _usage(answer: dict[str, Any]) -> dict[str, float]:
    """The tokens, and the cost, that a service counted for a request."""
    usage = answer.get("usage") or answer.get("usageMetadata")
    names = {"total_tokens": "tokens_sent", "promptTokenCount": "tokens_sent", "cost": "cost"}
    found = usage.items() if isinstance(usage, dict) else ()
    numbers = {name: n for name, n in found if name in names and type(n) in (int, float)}
    return {names[name]: n for name, n in numbers.items() if 0 < n < 2**53}


def sent_before(connection: apsw.Connection, model: core.Model) -> dict[str, float]:
    """What was sent for this file: requests, texts, and the reports of tokens and cost."""
    return core.parse_object(core.meta_value(connection, f"sent:{model.name}"))


class ServiceEncoder(core.Encoder):
    """Vectors of a service, and tokens of the bundled model."""

    batch = SERVICE_BATCH
    _rests_until = 0.0  # by the monotonic clock: before that it is not asked again

    def __init__(self, *, resident: bool = True) -> None:
        super().__init__(resident=resident)
        self.sent: Counter[str] = Counter()  # and not yet counted in the database

    @functools.cached_property
    def model(self) -> ServiceModel:
        """The service's model that is set. Raises ModelError."""
        return ServiceModel(core.setting("EMBEDDING_MODEL"), self.sent)

    def load(self) -> None:
        """Nothing: there is no session."""

    def note_sent(self, database: core.Database) -> None:
        """Add what was sent, which its users pay for, to the file's count of that."""
        if any(self.sent.values()) and database.path.exists():
            new = self.sent.copy()  # other threads send more meanwhile
            with contextlib.suppress(core.DatabaseError):
                with database.transaction(wait=500) as connection:
                    sent = Counter(sent_before(connection, self.model)) + new
                    core.set_meta(connection, f"sent:{self.model.name}", core.to_json(sent))
                self.sent.subtract(new)

    def embed(self, text: str) -> bytes:
        """The text's vector: float32[dimension], little-endian, of length 1."""
        return self.embed_all([text])[0]

    def embed_all(self, texts: Iterable[str], patient: bool = False) -> list[bytes]:
        """The vectors of texts, many by one request. Raises ServiceError."""
        todo = [self.model.passage_prefix + text for text in texts]
        wait = SERVICE_PATIENCE if patient else self.wait
        vectors: list[bytes] = []
        for at in range(0, len(todo), self.batch):
            vectors += self._ask(todo[at : at + self.batch], False, time.monotonic() + wait)
        return vectors

    def _query_states(self, text: str) -> tuple[Any, Any, Any]:
        """A query's vector alone; what looks like a credential is not sent."""
        query = self.model.query_prefix + core.redact(text, core.redacts())[0]
        (vector,) = self._ask([query], True, time.monotonic() + self.wait)
        return None, core.stack_vectors([(vector,)])[0], None

    def _ask(self, texts: list[str], query: bool, deadline: float) -> list[bytes]:
        """Vectors before a deadline. If a service refuses texts as too long, it gets half as many,
        and of a single text the first half."""
        if time.monotonic() < self._rests_until:
            raise core.ServiceError(self.trouble)
        try:
            vectors = self._try(texts, query, deadline)
        except core.ServiceError as error:
            half, length = len(texts) // 2, len(texts[0])
            if error.refused and (half or length > SERVICE_TEXT):
                parts = [texts[:half], texts[half:]] if half else [[texts[0][: length // 2]]]
                return [vector for part in parts for vector in self._ask(part, query, deadline)]
            self.trouble = str(error)
            self._rests_until = time.monotonic() + max(SERVICE_REST, error.again or 0.0)
            raise
        self.trouble = ""
        return vectors

    def _try(self, texts: list[str], query: bool, deadline: float) -> list[bytes]:
        """Vectors, by as many tries as there is time for, with longer and longer pauses."""
        pause = SERVICE_PAUSE
        while True:
            timeout = min(SERVICE_TIMEOUT, max(0.1, deadline - time.monotonic()))
            try:
                return self.model.ask(texts, query, timeout)
            except core.ServiceError as error:
                wait = max(random.uniform(0.5, 1) * pause, error.again or 0.0)
                if error.again is None or time.monotonic() + wait > deadline:
                    raise
            time.sleep(wait)
            pause *= 2

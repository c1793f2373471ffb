"""What looks like a credential, and is left out of a text before it is stored, logged or embedded.

Some have a known form (assets/credentials.txt). Others are known by a name and by how much their
value looks like a secret (assets/secrets.txt, `_strength`). tests/test_secrets.py judges all of
that.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator

import sediment as core

REPEATED_SECRET = 8  # characters of a secret that is looked for in the rest of its text
REPEATED_SECRETS = 100  # of one text that are: each is looked for from its beginning to its end
PASSPHRASE = 4  # words that are a secret though each is a plain one


@functools.cache
def credential_forms() -> tuple[list[tuple[str, int]], list[tuple[str, core.LazyPattern]]]:
    """The forms in assets/credentials.txt as (kind, form), and as (mark, number of a form) the
    marks, one of which a text with that form has."""
    blocks = r"^([\w ]+): ((?:\S.*\n)+)((?: {4}.*\n)+)"
    marks, forms = list[tuple[str, int]](), list[tuple[str, core.LazyPattern]]()
    for kind, listed, lines in re.findall(blocks, core.asset("credentials.txt"), re.MULTILINE):
        marks += ((mark.lower(), len(forms)) for mark in listed.split())
        source = lines.replace("\n    ", "")[4:-1].replace("{marks}", "|".join(listed.split()))
        forms.append((kind, core.LazyPattern(source)))
    return marks, forms


# Several words that end their clause, behind a colon, an equals sign or "is".
_SAID = core.LazyPattern(r"(?:[:=]|\b(?:is|ist|est|es)) $")


class _Form(core.NamedTuple):
    """A form in which a name is given a value."""

    closed: int  # the least `_strength` of a password that is quoted or ends its clause
    loose: int  # the least of any other password
    between: core.LazyPattern  # what stands between the name and the value
    before: core.LazyPattern  # what must stand before the name


class _Rules(core.NamedTuple):
    """What assets/secrets.txt says of secrets that are known by a name."""

    names: dict[str, tuple[str, int, int]]  # a name's end -> kind, strength in a setting, elsewhere
    forms: list[_Form]
    patterns: dict[str, core.LazyPattern]  # by the head of their block


@functools.cache
def _rules() -> _Rules:
    names: dict[str, tuple[str, int, int]] = {}
    forms: list[_Form] = []
    sources: dict[str, str] = {}
    blocks = r"^([\w ]+):\n((?: {4}.*\n)+)"
    for head, lines in re.findall(blocks, core.asset("secrets.txt"), re.MULTILINE):
        source = lines.replace("\n    ", "")[4:-1]
        source = re.sub(r"\{([A-Z]+)\}", lambda part: sources[part[1]], source)
        kind, *facts = head.split()
        if kind == "name":
            names[source] = facts[0], int(facts[1]), int(facts[2])
        elif kind == "form":
            closed, loose = map(int, facts)
            forms.append(_Form(closed, loose, core.LazyPattern(source), core.LazyPattern("")))
        elif kind == "behind":
            forms[-1] = forms[-1]._replace(before=core.LazyPattern(source))
        else:
            sources[head] = source
    sources["name"] = f"({'|'.join(names)}){sources['ending']}"
    return _Rules(
        names, forms, {head: core.LazyPattern(source) for head, source in sources.items()}
    )


def _pattern(head: str) -> core.LazyPattern:
    return _rules().patterns[head]


_INNER = core.LazyPattern(  # x/token=y, x%26user%3Dy
    r"[/?](?=[\w.-]{0,20}(?i:passw\w{0,9}|secret|token|key|pwd)[=:])|%26(?=[\w.-]{1,30}%3[Dd])"
)
_REST = core.LazyPattern(
    r"[^\s\"'`\0]*"
)  # of a value that is longer than the pattern "value" reads
_ENDS = core.LazyPattern(r"[.!]?(?:\s*$|\s*\n|[\"'`<;&])|\s+[-\\]")
_WORDS_BEFORE = core.LazyPattern(r"(?:\w{1,20}[ _-]){0,2}[a-z]{0,20}")  # a name that heads a column
_ROW = core.LazyPattern(r"[^\n]+")
_LETTERS = r"(?:[^\W\d]|[\u0300-\u0eff])++"  # and marks on them
_WORDS = core.LazyPattern(rf"{_LETTERS}(?:[ _'’-]{_LETTERS})*$")
_RUNS = core.LazyPattern(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_PRIVATE_TAG = core.LazyPattern(
    r"(?i)(?<!\*)<\s{0,9}(?:private(?:\s[^<>]*)?/?|(/)\s{0,9}private\s{0,9})>"
)
# Where a credential may begin: not within a word, but after \n or %3D.
_WORD_START = core.LazyPattern(r"(?<![^\W_])|(?=\W)|(?<=\\[nrt])|(?<=%[0-9A-Fa-f][0-9A-Fa-f])")
_QUOTES = str.maketrans("“”„«»‘’‚", '"""""\'\'\'')
_INVISIBLE = core.LazyPattern("[\u200b\u2060\ufeff\u00ad]")
_MARKS_LEFT = core.LazyPattern(
    r"\[(?:private|redacted: [a-z ]{3,30})\]"
)  # in the place of a secret


def redact(
    text: str, secrets: bool = True, lines: bool = False, known: dict[str, str] | None = None
) -> tuple[str, list[str]]:
    """The text without its secrets, and their kinds; without `secrets` only private parts go.
    `lines` keeps the number of lines. `known` secrets go too, and those of this text join them."""
    all_kinds: list[str] = []
    known = {} if known is None else known
    scan = functools.partial(_redacted, secrets=secrets, lines=lines, known=known)
    visible = _INVISIBLE.sub("", text)
    if visible != text and scan(visible)[1] != scan(text)[1]:
        text = visible  # invisible characters would hide a credential
    while True:  # one may have hidden its neighbour
        text, kinds = scan(text)
        if not kinds:
            return text, all_kinds
        all_kinds += kinds


def _redacted(
    text: str, secrets: bool, lines: bool, known: dict[str, str]
) -> tuple[str, list[str]]:
    """`redact` in one pass."""
    spans = list(_private(text))
    if secrets:
        # Nothing is looked for in marks, in the place of which is NUL.
        rest = _folded(_MARKS_LEFT.sub(lambda mark: "\0" * len(mark[0]), text))
        lowered = rest.replace("İ", "i").lower()  # as long as the text: no other letter grows
        finders = (_credentials, _assigned, _in_tables)
        found = [span for find in finders for span in find(rest, lowered)]
        values = ((rest[start:stop], kind) for start, stop, kind in found)
        known |= {value: kind for value, kind in values if _may_repeat(value)}
        spans += [*found, *_repeated(rest, known)]
    kept, kinds, end = [], [], 0
    for start, stop, kind in sorted(spans, key=lambda span: span[0]):
        if start >= end:
            mark = "private" if kind in ("private", core.UNCLOSED) else f"redacted: {kind}"
            kept += [text[end:start], f"[{mark}]"]
            kept += ["\n" * text.count("\n", start, stop)] if lines else []
            kinds.append(kind)
        end = max(end, stop)
    return "".join([*kept, text[end:]]), kinds


def _folded(text: str) -> str:
    """The text, as long as before, with an ordinary character for each variant of one, such as a
    narrow space, a full-width letter or a curly quote."""
    if text.isascii():
        return text
    odd_ones = (one for one in set(text) if not one.isascii())
    plain = {ord(odd): unicodedata.normalize("NFKC", odd) for odd in odd_ones}
    variants = {odd: one for odd, one in plain.items() if len(one) == 1 and ord(one) != odd}
    return text.translate(variants | _QUOTES)


def _private(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, kind) of what is between <private> and </private>, or the end of the text."""
    depth = start = 0
    for tag in _PRIVATE_TAG.finditer(text) if "private" in text.lower() else ():
        if not tag[1]:
            start = start if depth else tag.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield start, tag.end(), "private"
    if depth:
        yield start, len(text), core.UNCLOSED


def _credentials(text: str, lowered: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, kind) of what has the form of a credential."""
    marks, forms = credential_forms()
    for number in sorted({number for mark, number in marks if mark in lowered}):
        kind, form = forms[number]
        for match in form.finditer(text):
            start, end = match.span(match.re.groups)
            value = text[start:end]
            if match.re.groups:
                is_secret = _is_literal(value)
            else:
                is_secret = _WORD_START.match(text, start) and not _is_example(value)
            if is_secret:
                yield start, end, kind


def _assigned(text: str, lowered: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, kind) of the values that are given to names for secrets."""
    end = 0  # of the last secret: names within it are none
    for name in _pattern("name").finditer(lowered):
        if name.start() >= end and (row := _kind_of(name, text)):
            found = (_given(text, name, form, *row[1:]) for form in _rules().forms)
            if span := next(filter(None, found), None):
                for start, end in (span, *_further(text, name, *span)):
                    yield start, end, row[0]


def _given(
    text: str, name: re.Match[str], form: _Form, in_setting: int, elsewhere: int
) -> tuple[int, int] | None:
    """(start, end) of the secret that the name is given in this form."""
    link = form.between.match(text, _pattern("close").match(text, name.end()).end())
    if not link or not form.before.search(text[max(name.start() - 40, 0) : name.start()]):
        return None
    in_block = "indent" in link.groupdict()
    if elsewhere < 4 and (in_block or _SAID.search(link[0])):
        phrase = _pattern("phrase").match(text, link.end())
        if phrase and _strength(phrase[1]) >= (form.closed if in_block else 4):
            start, stop = phrase.span(1)
            return start, _end_of(text, start, stop, link)
    if not (given := _literal_at(text, link.end())):
        return None
    start, stop, is_quoted = given
    is_closed = is_quoted or _ENDS.match(text, stop)
    is_setting = "=" in link[0] and text[name.start() : name.end()].isupper()
    needed = max(elsewhere, form.closed if is_closed else form.loose)
    if not _is_value(text[start:stop], in_setting if is_setting else needed, is_quoted):
        return None
    return start, _end_of(text, start, stop, link)


def _literal_at(text: str, place: int) -> tuple[int, int, bool] | None:
    """(start, end) of the word or quoted text at a place, and whether it is quoted."""
    given = _pattern("value").match(text, place)
    if not given:
        return None
    start, stop = given.span("quoted" if given["quoted"] else "bare")
    if given["bare"]:
        stop = start + len(_INNER.split(given["bare"])[0].rstrip(".,:;?)]}>*_|\\&。"))
    return start, stop, bool(given["quoted"])


def _further(text: str, name: re.Match[str], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the secrets that follow one in its sentence: the new one, or a choice."""
    heads = ["further"]
    if _pattern("changed from").search(text[max(start - 60, 0) : start]):
        heads.append("changed")
    if name[1] == "passwords":
        heads.append("passwords")
    while link := next(filter(None, (_pattern(head).match(text, stop) for head in heads)), None):
        given = _literal_at(text, link.end())
        if not given or not _is_value(text[slice(*given[:2])], 2 if given[2] else 4, given[2]):
            return
        start, stop, _ = given
        yield start, stop


def _end_of(text: str, start: int, stop: int, link: re.Match[str]) -> int:
    """Where a secret ends that is longer than its pattern reads, or indented under its name."""
    if stop - start >= 500:
        stop = _REST.match(text, stop).end()
    if indent := link.groupdict().get("indent"):
        stop = re.compile(rf"[^\r\n]*(?:\r?\n{indent}[^\r\n]*)*").match(text, stop).end()  # pyright: ignore
    return stop


def _kind_of(name: re.Match[str], text: str) -> tuple[str, int, int] | None:
    """The rule for a name; None if it is the end of another word, or a public key."""
    begin, word = name.start(), text[name.start() : name.end()]
    before = name.string[max(begin - 40, 0) : begin]
    rows = _rules().names.items()
    kind, setting, least = next(row for end, row in rows if re.fullmatch(end, name[1]))
    is_secret_key = kind == "key" and _pattern("secret key").search(before)
    is_camel_case = word[0].isupper() and text[begin - 1].islower()
    is_within_word = before[-1:].isalpha() and word.isascii() and not is_camel_case
    if is_within_word and len(name[1]) < 5 and not is_secret_key:
        return None
    if name[1] in ("key", "token") and _pattern("public key").search(before):
        return None
    return kind, setting, 5 if is_secret_key else least


def _in_tables(text: str, lowered: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, kind) of the secrets in columns of Markdown or CSV under a name for secrets."""
    head: list[tuple[str, int, int] | None] = []  # of the table, the rule for each column
    sign = ""  # between its columns
    for line in _ROW.finditer(text):
        cells = _cells(line, sign) if head else []
        if not cells or len(cells) != len(head):
            head, sign = _head_of_table(line, text, lowered)
            continue
        for (start, stop), rule in zip(cells, head, strict=True):
            if rule and _is_value(text[start:stop], max(rule[2], 4)):
                yield start, stop, rule[0]


def _head_of_table(
    line: re.Match[str], text: str, lowered: str
) -> tuple[list[tuple[str, int, int] | None], str]:
    """The rule for each column that the line names, and the sign between them; or [] and ""."""
    sign = next((sign for sign in "|\t;," if sign in line[0]), "")
    if not sign or not _pattern("name").search(lowered, *line.span()):
        return [], ""
    head = []
    for start, stop in _cells(line, sign):
        name = _pattern("name").search(lowered, start, stop)
        is_name = name and name.end() == stop and _WORDS_BEFORE.fullmatch(text, start, name.start())
        head.append(_kind_of(name, text) if is_name else None)
    return (head, sign) if any(head) else ([], "")


def _cells(line: re.Match[str], sign: str) -> list[tuple[int, int]]:
    """(start, end) of the values between the signs, without blanks and quotes around them."""
    spans = []
    sign = re.escape(sign)
    for cell in re.finditer(rf'(?:^|{sign})((?:"(?:[^"]|""){{0,99}}+"|[^{sign}])*+)', line[0]):
        value = cell[1].strip(" \t\r\"'`*")
        start = line.start() + cell.start(1) + cell[1].find(value)
        spans.append((start, start + len(value)))
    return spans


def _may_repeat(value: str) -> bool:
    """Whether a secret is looked for elsewhere, too: not where it is a word like others."""
    is_plain = _WORDS.match(value) and not any(map(_mixed, value.split()))
    return len(value) >= REPEATED_SECRET and not (is_plain and value.count(" ") + 1 < PASSPHRASE)


def _repeated(text: str, known: dict[str, str]) -> Iterator[tuple[int, int, str]]:
    """(start, end, kind) of all places of known secrets."""
    for value, kind in itertools.islice(known.items(), REPEATED_SECRETS):
        stop = 0
        while (start := text.find(value, stop)) >= 0:
            stop = start + len(value)
            yield start, stop, kind


def _strength(value: str) -> int:
    """How much a value looks like a secret: 1 and 2 are words, 3 has digits or signs, 4 letters
    and digits, 5 comes from a machine, 6 is so long that nothing else looks like it."""
    mixed = [part for part in re.findall("[A-Za-z0-9]+", value) if _mixed(part)]
    if " " in value:
        longest = max(value.split(), key=len, default="")
        is_machine_made = len(longest) > 20 and _strength(longest) >= 5
        return 5 if is_machine_made else _strength_of_words(value, bool(mixed))
    size, runs = sum(map(len, mixed)), sum(len(_RUNS.findall(part)) for part in mixed)
    cased = value.lower() != value != value.upper()
    digits = re.search(r"\d", value)
    signs = len(set(re.findall(r"[^\w./:%-]", value))) + 2 * cased
    if 8 <= size < (5 if size < 20 else 7) * runs and runs > 2 and 3 * size >= len(value) >= 10:
        return 6 if cased and 20 <= len(value) < 3 * runs else 5
    if len(value) >= 12 and signs >= 3 and digits:
        return 5
    if len(value) < 3:
        return 0
    if _WORDS.match(value) and not mixed:
        return 0 if _is_ordinary(value) else 1 + value.islower()
    return 4 if len(value) >= 6 and (mixed or digits) and re.search(r"[^\W\d]", value) else 3


def _strength_of_words(value: str, is_mixed: bool) -> int:
    """`_strength` of several words: 0 of a plain sentence, 4 of words that nobody would say so."""
    words = value.lower().split()
    if _is_ordinary(value) or not core.languages_of().keys().isdisjoint(words):
        disguised = r"[A-Za-z](?:\d[A-Za-z]{2}|\d\d+[A-Za-z])|\d[!?#$]"  # s3cret, hunter86x, 86!
        is_disguised = re.search(disguised, value) and len(value) <= 40
        return 2 if is_disguised else 0
    if is_mixed or re.search(r"\d{4}|\d[!?#$]", value):
        return 4
    ordinary = filter(_pattern("ordinary").fullmatch, words)
    is_plain = set(ordinary) - {"correct"} and not re.search(r"\d", value)  # horse battery staple
    if len(words) >= PASSPHRASE and value.replace(" ", "").isalnum() and not is_plain:
        return 4
    return 2 if value.islower() or re.search(r"\d", value) else 1


def _is_ordinary(value: str) -> bool:
    """Whether a third of its words describe a secret or its type, or tell nothing."""
    words = [word for word in re.split(r"[\W_]*[ _'’-][\W_]*", value.lower()) if not word.isdigit()]
    return 3 * sum(map(_is_plain_word, words)) >= len(words)


def _is_plain_word(word: str) -> bool:
    """Whether a word describes a secret or its type, or is a function word."""
    return bool(_pattern("ordinary").fullmatch(word)) or word.lower() in core.languages_of()


def _is_example(value: str) -> bool:
    return _pattern("example").search(value[:100]) is not None


def _mixed(part: str) -> bool:
    """Whether letters and digits, or lower and upper case, are mixed."""
    if part.isalpha():
        return 4 <= len(part) < (2.7 if len(part) < 20 else 3.4) * len(_RUNS.findall(part))
    return not part.isdigit()


def _is_value(value: str, needed: int, is_quoted: bool = False) -> bool:
    """Whether it is a secret where that needs this strength."""
    is_code = not is_quoted and _pattern("code").match(value[:200])
    return _strength(value[:80]) >= needed and _is_literal(value) and not is_code


def _is_literal(value: str) -> bool:
    """Whether it is a value itself, not something that stands for one."""
    word = value.strip("<>[](){}\"'`.!?")
    is_none = _is_example(value) or _pattern("reference").match(value) or _is_plain_word(word)
    return not is_none and len(set(value)) > 1

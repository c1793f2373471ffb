"""Chunks: exact spans that lose nothing, fit the model and are cut where a reader would."""

import itertools
import json
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sediment
from sediment import Chunk, detect_type, split_text

WINDOW = 256
LONG = 100_000


def roomy(text: str) -> bool:
    return len(text) <= 2 * sediment.CHUNK_MAX


def strict(text: str) -> bool:
    return len(text) <= 60


@pytest.fixture(scope="module", autouse=True)
def short_texts_are_cut_too() -> Iterator[None]:
    """Let samples that fit on a page show the rules; one test has the real threshold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sediment, "CHUNK_THRESHOLD", sediment.CHUNK_MAX)
        yield


def test_a_text_up_to_the_threshold_is_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sediment, "CHUNK_THRESHOLD", 1000)
    text = words("a", 2000)[:1000].strip().ljust(1000, ".")
    assert split_text(text, roomy) == [Chunk(0, 1000, "")]
    assert len(split_text(text + ".", roomy)) == 2
    assert len(split_text(text, strict)) > 2


@pytest.fixture(scope="session")
def fits_model() -> Callable[[str], bool]:
    encoder = sediment.Encoder()
    return lambda text: encoder.count_tokens(text) <= WINDOW


def embedded(text: str, chunk: Chunk) -> str:
    body = text[chunk.start : chunk.end]
    return sediment.matching_form(f"{chunk.context}\n{body}" if chunk.context else body)


def check(text: str, fits: Callable[[str], bool]) -> list[Chunk]:
    """The chunks of a text, after testing what holds for the chunks of every text."""
    chunks = split_text(text, fits)
    covered = 0
    for chunk in chunks:
        body = text[chunk.start : chunk.end]
        assert 0 <= chunk.start < chunk.end <= len(text)
        assert len(body) <= sediment.CHUNK_MAX
        assert len(chunk.context) <= sediment.CONTEXT_MAX
        assert body.strip()
        assert body == body.rstrip()
        assert body[0] != "\n"
        assert not text[covered : chunk.start].strip(), "text lost"
        assert chunk.end > covered
        assert fits(embedded(text, chunk))
        covered = chunk.end
    assert not text[covered:].strip(), "text lost"
    assert [chunk.start for chunk in chunks] == sorted(chunk.start for chunk in chunks)
    return chunks


def bodies(text: str, fits: Callable[[str], bool] = roomy) -> list[str]:
    return [text[chunk.start : chunk.end] for chunk in check(text, fits)]


def contexts(text: str, fits: Callable[[str], bool] = roomy) -> list[str]:
    return [chunk.context for chunk in check(text, fits)]


def words(prefix: str, length: int) -> str:
    """Sentences of about this length, each different from the others."""
    text, number = "", 0
    while len(text) < length:
        text += f"{prefix} {number} says a thing. "
        number += 1
    return text.strip()


# What holds for every text.

FRAGMENTS = [
    "# Title\n", "## Part\n", "Under\n===\n", "```\n", "~~~~\n", "---\n",
    "key: value\n", "  sub: x\n", "- item\n", "\n", "\n\n", " ", "\t", "    ", "\r\n",
    "def f(x):\n", "class A:\n", "    def m(self):\n", "@decorator(\n",
    "pub fn go() {\n", "}\n", "// note\n", "/* note */", "import os\n", "\"", "\\", "{",
    "}", "[", "]", ",", "Hello there. ", "Is it? ", "你好。", "再见！", "👨\u200d👩\u200d👧",
    "e\u0301", "\u0301", "\u200d", "🏽", "|a|b|\n", "> quote\n", "long: |\n  a: b\n",
    "\u3000", "\x1c", "word " * 60, "x" * 300, "line\n" * 50,
]  # fmt: skip
mixtures = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=20), max_size=60).map("".join)
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=300)
    | st.text("ab ", min_size=900),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=60), inner),
    max_leaves=20,
)


@given(mixtures)
def test_any_text_is_cut_without_loss(text: str):
    check(text, roomy)


@given(mixtures)
def test_any_text_is_cut_to_a_narrow_window(text: str):
    check(text, strict)


@given(documents, st.sampled_from([None, 2]))
def test_any_json_is_cut_without_loss(document: object, indent: int | None):
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    check(text, roomy)
    check(text, strict)


@given(text=st.text(min_size=200, max_size=3000) | mixtures)
def test_any_text_is_cut_to_the_window_of_the_model(text: str, fits_model: Callable[[str], bool]):
    check(text, fits_model)


@given(mixtures)
def test_the_same_text_is_cut_the_same_way(text: str):
    assert split_text(text, strict) == split_text(text, strict)


def test_a_short_text_is_one_chunk():
    assert split_text("  A short note. \n", roomy) == [Chunk(0, 15, "")]
    assert split_text("# One\n\ntext\n\n# Two\n\ntext", roomy) == [Chunk(0, 24, "")]


@pytest.mark.parametrize("text", ["", " ", "\n\n\t ", "\u3000" * 2000])
def test_white_space_has_no_chunks(text: str):
    assert split_text(text, roomy) == []


# Which kind of text.


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", ' {"a": [1, 2]} '),
        ("json", "[]"),
        ("text", "{not json}"),
        ("yaml", "name: x\nversion: 1\n"),
        ("yaml", "---\nname: x\n"),
        ("yaml", "# note\njobs:\n  build:\n    - run: make\n"),
        ("yaml", "---\nkind: A\n---\nkind: B\nname: c\n"),
        ("text", "name: x, and no more\n"),
        ("text", "Ann: hello\nBob: hi\nAnn: how are you?\n"),
        ("text", "From: me\nTo: you\n\nDear reader,\nthis is a letter.\n"),
        ("markdown", "# Title\n\nText"),
        ("markdown", "Text\n\n## Part\n\nText"),
        ("markdown", "---\ntitle: x\n---\n\nText without a heading\n"),
        ("markdown", "# Use\n\n```python\nimport os\ndef f():\n    pass\n```\n"),
        ("code", "```\n# note\n```\nimport os\n"),
        ("code", "# note\nimport os\n\ndef f():\n    pass\n"),
        ("code", "pub fn main() {}\n"),
        ("code", "    const x = 1;\n"),
        ("code", "def f(x):\n    try:\n        x()\n    finally:\n        pass\n"),
        ("text", "Nothing of the kind."),
        ("text", ""),
    ],
)
def test_detect_type(kind: str, text: str):
    assert detect_type(text) == kind


def test_json_too_deep_for_the_parser_is_text():
    assert detect_type("[" * 100_000 + "]" * 100_000) == "text"


# Text.


def test_text_is_packed_by_paragraphs_that_overlap_a_little():
    paragraphs = [words(name, 350) for name in ("Alpha", "Beta", "Gamma", "Delta")]
    text = "\n\n".join(paragraphs)
    chunks = check(text, roomy)
    assert len(chunks) == 3
    for chunk, following in itertools.pairwise(chunks):
        assert 45 <= chunk.end - following.start <= 150
        assert text[following.start - 1].isspace()
        assert text[chunk.end :].startswith("\n\n")


def test_a_long_paragraph_is_cut_after_sentences():
    for chunk in bodies(words("Alpha", 3000)):
        assert chunk.endswith(".")
        assert chunk.startswith("Alpha")


def test_chinese_is_cut_after_sentences():
    for chunk in bodies("这是一个很长的句子，没有空格。" * 200):
        assert chunk.endswith("。")


def test_no_small_rest_is_left_over():
    for length in range(801, 2000, 37):
        assert min(map(len, bodies("x" * length))) >= sediment.CHUNK_MIN


# Markdown.

MARKDOWN = f"""---
title: Notes
---
Before any heading.

# Guide

## Install ##

{words("Install", 200)}

```sh
# not a heading
make
```

## Use

{words("Use", 1500)}

### C#

{words("Sharp", 100)}

Below
-----

{words("Below", 100)}
"""


def test_markdown_is_cut_at_headings():
    firsts = [(body.split("\n")[0], context) for body, context in _pairs(MARKDOWN)]
    whole = [pair for pair in firsts if not pair[0].startswith("Use")]
    assert whole == [
        ("---", ""),
        ("Before any heading.", ""),
        ("# Guide", "Guide > Install"),
        ("## Use", "Guide > Use"),
        ("### C#", "Guide > Use > C#"),
        ("Below", "Guide > Below"),
    ]
    rest = [context for first, context in firsts if first.startswith("Use")]
    assert rest == ["Guide > Use", "Guide > Use"]


def _pairs(text: str) -> list[tuple[str, str]]:
    return list(zip(bodies(text), contexts(text), strict=True))


def test_what_is_fenced_is_no_heading():
    (install,) = [body for body, context in _pairs(MARKDOWN) if context == "Guide > Install"]
    assert install.startswith("# Guide\n\n## Install ##\n")
    assert install.endswith("```sh\n# not a heading\nmake\n```")


def test_a_fence_is_closed_only_by_one_as_long():
    text = f"# A\n\n{words('a', 800)}\n\n````\n```\n# b\n```\n````\n\n# C\n\n{words('c', 50)}"
    assert set(contexts(text)) == {"A", "C"}


def test_small_sections_are_kept_apart():
    text = "".join(f"## Part {number}\n\nA word on {number}.\n\n" for number in range(50))
    assert contexts(text) == [f"Part {number}" for number in range(50)]


def test_a_long_heading_path_keeps_its_end():
    text = "".join(
        f"{'#' * level} {f'{level} very ' * 15}\n\n{words('a', 99)}\n\n" for level in range(1, 7)
    )
    context = contexts(text)[-1]
    assert context.startswith("...")
    assert context.endswith("6 very 6 ve...")


# Code.

PYTHON = f'''"""A module."""

import os

LIMIT = 10


# Opens the door.
@decorate(
    "door",
)
def open_door(key):
    """{words("Open", 500)}"""
    return key


class Door:
    """{words("Door", 100)}"""

    @property
    def closed(self):
        """{words("Closed", 100)}"""
        return True

    def knock(self):
        return 1


def leave():
    return os.abort()


if __name__ == "__main__":
    leave()
'''


def test_python_is_cut_at_definitions_with_their_decorators():
    assert [(body.split("\n")[0], context) for body, context in _pairs(PYTHON)] == [
        ('"""A module."""', "def open_door(key)"),
        ("class Door:", "class Door"),
        ("    @property", "class Door > def closed(self)"),
        ("    def knock(self):", "class Door > def knock(self)"),
        ("def leave():", "def leave()"),
    ]


RUST = f"""use std::fs;

/// Reads a file. {words("Reads", 500)}
#[inline]
pub fn read(path: &str) -> String {{
    let text = 1; // {words("text", 100)}
}}

impl<T> Shelf<T> {{
    /// Puts a book there. {words("Puts", 100)}
    pub async fn put(&mut self, book: T) {{
        self.books.push(book);
    }}

    fn take(&mut self) -> Option<T> {{
        self.books.pop() // {words("Takes", 100)}
    }}
}}
"""


def test_rust_is_cut_at_definitions_with_their_comments():
    assert [(body.split("\n")[0][:26], context) for body, context in _pairs(RUST)] == [
        ("use std::fs;", "pub fn read(path: &str) -> String"),
        ("impl<T> Shelf<T> {", "impl<T> Shelf<T> > pub async fn put(&mut self, book: T)"),
        ("    fn take(&mut self) -> ", "impl<T> Shelf<T> > fn take(&mut self) -> Option<T>"),
    ]


def test_a_long_definition_keeps_its_signature():
    code = "def long():\n" + "".join(f"    step_{number}()\n" for number in range(200))
    assert len(contexts(code)) > 3
    assert set(contexts(code)) == {"def long()"}
    assert all(body.startswith(("def", "    step")) for body in bodies(code))


def test_pieces_of_code_do_not_overlap():
    code = "def long():\n" + "".join(f"    step_{number}()\n" for number in range(200))
    assert "\n".join(bodies(code)) == code.strip()


def test_prose_in_a_docstring_is_no_definition():
    code = f'def f():\n    """\n    {words("f", 200)}\n    type of the thing,\n    """\n' * 4
    assert set(contexts(code)) == {"def f()"}


# JSON and YAML.


def test_json_is_cut_into_members_of_the_stored_text():
    document = {
        "name": 'shelf \\ " } ] ,',
        "books": [{"title": words("Title", 300), "tags": ["a", {"b": []}]} for _ in range(5)],
        "owner": {"address": {"street": words("Street", 1000)}, "age": 3},
    }
    text = json.dumps(document)
    pairs = _pairs(text)
    assert [context for _, context in pairs] == [
        "name",
        "books",
        "books",
        "books[4]",
        "owner.address.street",
        "owner.address.street",
        "owner.age",
    ]
    assert pairs[0][0] == '{"name": "shelf \\\\ \\" } ] ,",'
    assert pairs[1][0].startswith('"books": [{"title"')
    assert pairs[2][0].startswith('{"title"')
    assert pairs[3][0].endswith("}],")
    assert pairs[4][0].startswith('"owner": {"address": {"street"')
    assert pairs[-1][0] == '"age": 3}}'


def test_small_members_of_json_share_a_chunk():
    text = json.dumps({f"key {number}": number for number in range(200)}, indent=1)
    assert len(bodies(text)) < 6
    assert set(contexts(text)) == {""}


YAML = f"""# The build.
name: build
on: push
# What is to be done.
jobs:
  test:
    runs-on: {words("linux", 500)}
    steps:
    - run: make
    - run: |
        key: this is no key
        {words("script", 400)}
  deploy:
    needs: test
    note: {words("note", 300)}
environment:
  level: high and {words("level", 100)}
"""


def test_yaml_is_cut_at_keys():
    assert [(body.split("\n")[0][:20], context) for body, context in _pairs(YAML)] == [
        ("# The build.", ""),
        ("# What is to be done", "jobs.test.runs-on"),
        ("    steps:", "jobs.test.steps"),
        ("  deploy:", "jobs.deploy"),
        ("environment:", "environment"),
    ]


# The window.


def test_a_context_too_long_for_the_window_is_shortened():
    text = f"# {'Long title ' * 5}\n\n{words('Alpha', 2000)}"
    chunks = check(text, strict)
    assert all(0 < len(chunk.context) < 31 for chunk in chunks)
    assert all(chunk.end - chunk.start > 5 for chunk in chunks)


def test_a_character_that_cannot_fit_is_kept():
    text = "x" * 900
    assert len(split_text(text, lambda _: False)) == 900


def test_a_large_text_has_all_its_chunks(fits_model: Callable[[str], bool]):
    text = "\n\n".join(words(f"Part {number}", 700) for number in range(400))
    assert len(check(text, fits_model)) >= 400


# Large and strange texts: a count of steps tells linear from quadratic better than a clock.

STRANGE = {
    "one line": lambda size: "word " * (size // 5),
    "one word": lambda size: "x" * size,
    "bare hashes": lambda size: "#\n" * (size // 2),
    "bare headings": lambda size: "# a\n" * (size // 4),
    "small sections": lambda size: "# a\nb\n" * (size // 6),
    "brackets": lambda size: "(" * size,
    "open arrays": lambda size: "[" * size,
    "nested arrays": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "array": lambda size: "[" + "1," * (size // 2) + "1]",
    "objects": lambda size: '{"a": [' + '{"b": {"c": [1]}},' * (size // 18) + "1]}",
    "fences": lambda size: "# a\n" + "```\n" * (size // 4),
    "backticks": lambda size: "# a\n" + "`" * size,
    "blanks": lambda size: "x" + " " * size + "y",
    "newlines": lambda size: "x" + "\n" * size + "y",
    "dots": lambda size: "." * size,
    "definitions": lambda size: "def f():\n" * (size // 9),
    "decorators": lambda size: "def f():\n" + "@a(\n" * (size // 4),
    "comments": lambda size: "def f():\n" + "// a\n" * (size // 5),
    "keys": lambda size: "".join(f"key{number}: 1\n" for number in range(size // 10)),
    "items": lambda size: "a: 1\nb:\n" + "- c: d\n" * (size // 7),
    "accents": lambda size: "e" + "\u0301" * size,
    "joiners": lambda size: "👨\u200d" * (size // 2),
}


def steps(text: str) -> int:
    """How many calls it takes to cut this text, those of `fits` among them."""
    count = 0

    def tally(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        split_text(text, roomy)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", STRANGE)
def test_effort_grows_with_the_length_only(name: str):
    make = STRANGE[name]
    small, large = steps(make(10_000)), steps(make(40_000))
    assert large < 4.5 * small + 2000


@pytest.mark.parametrize("name", STRANGE)
def test_a_long_text_is_cut_without_loss(name: str):
    calls = 0

    def counting(text: str) -> bool:
        nonlocal calls
        calls += 1
        return len(text) <= 900

    text = STRANGE[name](LONG)
    chunks = split_text(text, counting)
    assert calls <= 3 * len(chunks) + 10
    assert sum(chunk.end - chunk.start for chunk in chunks) >= len("".join(text.split()))
    assert all(chunk.end - chunk.start <= sediment.CHUNK_MAX for chunk in chunks)


def test_json_nested_to_the_limit_of_the_parser():
    depth = sys.getrecursionlimit() // 2
    text = '{"a":[' * depth + f'"{words("deep", 2000)}"' + "]}" * depth
    check(text, roomy)


def test_indentation_nested_deeply():
    check("\n".join(" " * depth + f"key{depth}:" for depth in range(700)), roomy)
    check("\n".join(" " * depth + f"def f{depth}():" for depth in range(700)), roomy)

"""Ask about one pair of memories after another (`review`)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

import sediment as core


def run_review(shared: core.Context) -> None:
    with shared.memory(resident=True) as memory:
        answer = memory.review()
        if shared.json or not answer["count"]:
            shared.show(answer, core.OPERATIONS["review"].render)
            return
        for line in _reviewed(memory, answer["pairs"]):
            click.echo(line)


def _reviewed(memory: core.Memory, pairs: list[dict[str, Any]]) -> Iterator[str]:
    """Ask about one pair after another, and apply each answer; yields lines to print."""
    counts: Counter[str] = Counter()
    ended: set[str] = set()
    for number, pair in enumerate(pairs, 1):
        ids = pair["old"]["id"], pair["new"]["id"]
        if not ended.isdisjoint(ids):
            if not sys.stdin.isatty():
                sys.stdin.readline(core.LINE_MAX)  # the line for this pair, written before
            continue
        yield from core.render_pair(pair)
        key = _asked_key(f"{number} of {len(pairs)}: r replace, k keep both, s skip, q quit? ")
        if key == "q":
            break
        try:
            if key == "r":
                memory.replace(*ids)
                ended.add(ids[0])
            elif key == "k":
                memory.keep_both(*ids)
        except (
            core.InvalidInput,
            core.NotFound,
        ) as error:  # another process was quicker
            yield str(error)
            key = "s"
        counts[key] += 1
    summary = f"{counts['r']} replaced, {counts['k']} kept, {counts['s']} skipped"
    yield f"{summary}; `undo ID` undoes a replacement."


def _asked_key(question: str) -> str:
    """One of r, k, s and q: a key on a terminal, else a line of a pipe, or q at its end."""
    while True:
        click.echo(question, nl=False, err=True)
        try:
            key = (
                click.getchar() if sys.stdin.isatty() else sys.stdin.readline(core.LINE_MAX) or "q"
            )
        except EOFError:  # Ctrl-D
            key = "q"
        key = key.strip().lower()[:1]
        click.echo(key, err=True)
        if key in ("r", "k", "s", "q"):
            return key

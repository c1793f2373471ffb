"""Write all memories to a file or to the terminal (`export`)."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

import sediment as core
from sediment_ext import encryption


def render_exported(answer: dict[str, Any]) -> Iterator[str]:
    counts = {name: answer[name] for name in ("items", "hidden_versions")}
    yield core.printable_name(f"Exported {core.counts_phrase(counts)} to {answer['file']}.")


def run_export(
    shared: core.Context,
    file: str | None = None,
    force: bool = False,
    encrypt: bool = False,
    **given: Any,
) -> None:
    if not encrypt:
        core.refuse_unused(click.get_current_context(), plain=True)
    file = None if file == "-" else file
    if encrypt and not file and (shared.json or sys.stdout.isatty()):
        raise click.UsageError("give a FILE: encrypted memories are neither JSON nor text")
    with shared.memory() as memory:
        if file:
            memory.database.refuse_own(file)
            if Path(file).is_file() and not force:
                raise core.InvalidInput(f"{file} is there already: --force overwrites it")
        key = encryption.sealing_key(**given) if encrypt else None
        rows = memory.export_rows()
        if file:
            answer = export_to(file, rows, key)
            shared.show(answer, render_exported, err=not Path(file).is_file())  # it may be stdout
        elif key:
            encryption.seal(_as_file(map(_line, rows)), sys.stdout.buffer, key)
        elif shared.json:
            items = list(rows)
            shared.show({"count": len(items), "items": items}, render_exported)
        else:
            for row in rows:
                click.echo(_line(row), nl=False)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _as_file(lines: Iterable[str]) -> io.BytesIO:
    return io.BytesIO("".join(lines).encode())


def export_to(
    file: str, rows: Iterable[dict[str, Any]], key: encryption.Key | None
) -> dict[str, Any]:
    """Write items to a private file in one step: {success, file, count, items, hidden_versions}.

    A link is followed, and a file that is there keeps its mode; a pipe or device is written to.
    """
    counts = {"items": 0, "hidden_versions": 0}

    def lines() -> Iterator[str]:
        for row in rows:
            counts["hidden_versions" if "ended" in row else "items"] += 1
            yield _line(row)

    def write(target: io.TextIOWrapper) -> None:
        if key:
            encryption.seal(_as_file(lines()), target.buffer, key)
        else:
            target.writelines(lines())

    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            with open(os.open(path, os.O_WRONLY), "w", encoding="utf-8") as device:
                write(device)
        else:
            target = core.place_to_write(path, None)
            mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
            with core.replacing(target, mode) as draft:
                write(draft)
    except OSError as error:
        raise core.InvalidInput(f"{path} cannot be written ({error.strerror})") from None
    return {"success": True, "file": file, "count": sum(counts.values()), **counts}

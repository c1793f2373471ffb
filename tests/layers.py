"""The layout of sediment.py, as `make lint` looks at it beside ruff and pyright.

A section uses only what stands above it, or in itself. A name means one thing in all of the
module. Only Settings reads the environment. Only Systems asks which system this is, and uses what
not all of them have. Memory and the doors hold no SQL.
"""

import ast
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

MODULE = Path(__file__).resolve().parent.parent / "sediment.py"
BANNER = re.compile(r"^# -{93}\n# (.+)\n", re.MULTILINE)
SQL = re.compile(r"\b(SELECT .*FROM|INSERT .*INTO|UPDATE .*SET|DELETE FROM)\b", re.DOTALL)
READS = {"environ", "getenv"}
OF_SYSTEMS = {
    *("sys.platform", "os.name", "os.uname", "os.kill", "os.killpg", "os.fork", "os.nice"),
    *(
        "os.getuid",
        "os.geteuid",
        "os.getppid",
        "os.symlink",
        "os.replace",
        "os.fsync",
        "os.statvfs",
    ),
    *("signal.signal", "signal.alarm", "signal.SIGHUP", "signal.SIGALRM", "signal.SIGKILL"),
}
NOT_EVERYWHERE = {"fcntl", "msvcrt", "_winapi", "winreg", "pwd", "grp", "resource", "termios"}
WITHOUT_SQL = {"Memory", "Operations", "Rendering", "MCP server", "Command line"}


class Layout:
    """The sections of a module in their order, and where each name is at home."""

    def __init__(self, text: str) -> None:
        banners = [found for found in BANNER.finditer(text) if found[1] != "-" * 93]
        self._starts = [text.count("\n", 0, found.start()) + 1 for found in banners]
        self.names = ["the header", *(found[1] for found in banners)]
        self.tree = ast.parse(text)
        self._homes: dict[str, int] = {}
        for top in self.tree.body:
            for name in _defined(top):
                self._homes.setdefault(name, self._section(top))

    def _section(self, node: ast.stmt | ast.expr) -> int:
        return bisect_right(self._starts, node.lineno)

    def faults(self) -> Iterator[tuple[int, str]]:
        """Where the layout is not kept, and how."""
        named: set[str] = set()
        for top in self.tree.body:
            for name in named.intersection(_defined(top)):
                yield top.lineno, f"{self.names[self._section(top)]} gives {name} another meaning"
            named.update(_defined(top))
            here, local = self._section(top), _local(top)
            for node in ast.walk(top):
                if isinstance(node, ast.expr) and (what := self._fault(node, here, local)):
                    yield node.lineno, f"{self.names[here]} {what}"
                if self.names[here] != "Systems":
                    for what in sorted(_of_systems(node)):
                        yield getattr(node, "lineno", 0), f"{self.names[here]} uses {what}"

    def _fault(self, node: ast.expr, here: int, local: set[str]) -> str:
        if isinstance(node, ast.Name) and node.id not in local:
            home = self._homes.get(node.id, here)
            return f"uses {node.id}, which stands in {self.names[home]}" if home > here else ""
        if isinstance(node, ast.Attribute) and node.attr in READS:
            settings = self.names.index("Settings")
            return "reads the environment" if here not in (0, settings) else ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            has_none = self.names[here] in WITHOUT_SQL
            return "holds SQL" if has_none and SQL.search(node.value) else ""
        return ""


def _of_systems(node: ast.AST) -> set[str]:
    """What a node uses that is not the same on all systems."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return OF_SYSTEMS.intersection([f"{node.value.id}.{node.attr}"])
    if isinstance(node, ast.Import):
        return NOT_EVERYWHERE.intersection(name.name for name in node.names)
    return set()


def _defined(top: ast.stmt) -> list[str]:
    """The names that a statement of the module defines."""
    if isinstance(top, ast.FunctionDef | ast.ClassDef):
        return [top.name]
    if not isinstance(top, ast.Assign | ast.AnnAssign):
        return []
    return list(_stored(top))


def _local(top: ast.stmt) -> set[str]:
    """The names that mean something of their own within a function or class."""
    if not isinstance(top, ast.FunctionDef | ast.ClassDef):
        return set()
    arguments = {node.arg for node in ast.walk(top) if isinstance(node, ast.arg)}
    return arguments.union(_stored(top))


def _stored(top: ast.stmt) -> Iterator[str]:
    """The names that are given a value somewhere in a statement."""
    for node in ast.walk(top):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def main() -> int:
    faults = sorted(Layout(MODULE.read_text("utf-8")).faults())
    for line, what in faults:
        print(f"{MODULE.name}:{line}: {what}")
    print("The layout is kept." if not faults else f"{len(faults)} faults in the layout.")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

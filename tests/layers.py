"""The layout of sediment.py and sediment_ext, which `make lint` checks beside ruff and pyright.

In sediment.py a section uses only what stands above it, or in itself, and a name means one thing in
all of the module. Only Settings reads the environment. Only Systems, and the extension `systems`,
ask which system this is, and use what not all of them have. Memory, Operations, Rendering, the MCP
server and the command line hold no SQL. The core reaches an extension through `extension` alone; an
extension uses only public names of the core, and other extensions only where USES says so.
"""

import ast
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE, EXTENSIONS = ROOT / "sediment.py", ROOT / "sediment_ext"
# Extension -> the other extensions that it uses.
USES: dict[str, set[str]] = {
    "clients": {"hooks", "settings_files", "systems", "transcripts"},
    "conversations": {"transcripts"},
    "copies": {"conversations", "encryption", "repair", "sync.kept"},
    "doctor": {"files", "systems"},
    "exporting": {"encryption"},
    "files": {"markdown", "systems", "walking"},
    "hooks": {"conversations", "failures", "systems", "transcripts"},
    "http": {"json_lines", "page_api"},
    "importers": {"conversations", "encryption", "files", "json_lines", "markdown", "transcripts"},
    "models": {"given_models"},
    "notes": {"files", "markdown", "systems", "walking"},
    "page_api": {"activity"},
    "repair": {"conversations", "doctor", "sync.kept", "sync.machines"},
    "retention": {"upkeep"},
    "services": {"given_models"},
    "settings_files": {"systems"},
    "structure": {"markdown"},
    "sync.commands": {"sync.places", "systems"},
    "sync.folder": {"sync.merge", "sync.places", "systems"},
    "sync.git": {"sync.folder", "sync.places"},
    "sync.hub": {"sync.merge", "sync.places"},
    "sync.hub_search": {"sync.hub", "sync.merge"},
    "sync.merge": {"sync.machines", "sync.places"},
    "sync.run": {
        "sync.folder",
        "sync.git",
        "sync.hub",
        "sync.hub_search",
        "sync.machines",
        "sync.merge",
        "sync.places",
    },
    "upkeep": {"sync.kept"},
    "walking": {"files", "systems"},
    "watching": {"files", "walking"},
}
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


def faults_of_extension(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where an extension uses what it may not, and what that is."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Attribute) and _is_private_of_core(node):
            yield line, f"uses core.{node.attr}, which is private"
        if isinstance(node, ast.Attribute) and node.attr in READS:
            yield line, "reads the environment"
        for other in sorted(_extensions_in(node) - USES.get(name, set())):
            yield line, f"uses {other}, which USES does not list for {name}"
        for what in sorted(_of_systems(node) if name != "systems" else ()):
            yield line, f"uses {what}"


def _is_private_of_core(node: ast.Attribute) -> bool:
    is_core = isinstance(node.value, ast.Name) and node.value.id == "core"
    return is_core and node.attr.startswith("_") and not node.attr.startswith("__")


def _extensions_in(node: ast.AST) -> set[str]:
    """The extensions that an import names."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sediment_ext"):
        package = (node.module or "").removeprefix("sediment_ext").lstrip(".")
        names = (alias.name for alias in node.names)
        return {f"{package}.{name}" if package else name for name in names}
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
        return {name.partition(".")[2] for name in names if name.startswith("sediment_ext")}
    return set()


def _imports_extensions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where the core imports an extension by another way than `extension`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and _extensions_in(node):
            yield node.lineno, "imports an extension: call `extension` instead"


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


def all_faults() -> Iterator[str]:
    layout = Layout(MODULE.read_text("utf-8"))
    for line, what in sorted([*layout.faults(), *_imports_extensions(layout.tree)]):
        yield f"{MODULE.name}:{line}: {what}"
    for path in sorted(EXTENSIONS.rglob("*.py")):
        name = ".".join(path.relative_to(EXTENSIONS).with_suffix("").parts)
        for line, what in sorted(faults_of_extension(name, ast.parse(path.read_text("utf-8")))):
            yield f"{path.relative_to(ROOT)}:{line}: {what}"


def main() -> int:
    faults = list(all_faults())
    for fault in faults:
        print(fault)
    print("The layout is kept." if not faults else f"{len(faults)} faults in the layout.")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

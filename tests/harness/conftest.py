"""Harness tests: real SQLite files, and drives in child processes that are killed at named points."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from durable_harness import LogReader
from durable_harness.inspect import CallView
from durable_harness.records import Entry

CHILD = Path(__file__).with_name("drive_child.py")


@dataclass(frozen=True)
class Ended:
    """How one drive in a child process ended."""

    code: int  # of the process; negative: killed by that signal
    answer: str | None
    error: str | None

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


@pytest.fixture(scope="session")
def drive_server() -> Iterator[subprocess.Popen[str]]:
    """Forks a process for each drive: what takes long, the imports, is done once."""
    server = subprocess.Popen(
        [sys.executable, "-B", str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    with server:
        yield server
        server.stdin.close()


class Drives:
    """One log, driven by one child process after the other."""

    def __init__(self, folder: Path, server: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.path = folder / "log.db"
        self._server = server

    def drive(self, scenario: str, *, kill_at: str = "", attempt: int | None = None, act: str = "") -> Ended:
        """Drive to the end, or to where `kill_at` (as DURABLE_CRASH) or `act` (scenario specific) has it die."""
        order = {"scenario": scenario, "folder": str(self.folder), "attempt": attempt, "kill_at": kill_at, "act": act}
        self._server.stdin.write(json.dumps(order) + "\n")
        return Ended(**json.loads(self._server.stdout.readline()))

    def effects(self) -> list[str]:
        """What tools and tasks did to the world, in order."""
        file = self.folder / "effects"
        return file.read_text().split() if file.exists() else []

    def entries(self, kind: str | None = None) -> list[Entry]:
        with LogReader.open(self.path) as log:
            return [entry for entry in log.entries() if kind in (None, entry.kind)]

    def calls(self) -> list[CallView]:
        with LogReader.open(self.path) as log:
            return log.tool_calls()

    def requests(self) -> list[dict[str, object]]:
        """The model requests that drives sent, as far as they got."""
        file = self.folder / "requests"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def drives(tmp_path: Path, drive_server: subprocess.Popen[str]) -> Drives:
    return Drives(tmp_path, drive_server)

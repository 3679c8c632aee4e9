"""Harness tests: real SQLite files, and drives in child processes that are killed at named points."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from durable_harness import LogReader
from durable_harness.inspect import CallView
from durable_harness.records import Entry

CHILD = Path(__file__).with_name("drive_child.py")
DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """How one drive in a child process ended."""

    code: int  # of the process; negative: killed by that signal
    answer: str | None
    error: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Drives:
    """One log, driven by one child process after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "log.db"

    def drive(self, scenario: str, *, kill_at: str = "", attempt: int | None = None, act: str = "") -> Ended:
        """Drive to the end, or to where `kill_at` (DURABLE_CRASH) or `act` (scenario specific) has it die."""
        environment = {**os.environ, "DURABLE_CRASH": kill_at, "ACT": act}
        arguments = [sys.executable, "-B", str(CHILD), scenario, str(self.folder), str(attempt or "")]
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
        lines = done.stdout.splitlines()
        answer = json.loads(lines[-1])["answer"] if lines and done.returncode == 0 else None
        return Ended(done.returncode, answer, done.stderr)

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
def drives(tmp_path: Path) -> Drives:
    return Drives(tmp_path)

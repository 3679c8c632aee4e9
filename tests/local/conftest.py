"""A session on this machine with a double in the driver's place, run by real coordinator processes over a real Space."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from durable_local import history, process
from durable_local.layout import Home, session_home
from durable_local.leftovers import leftovers
from durable_local.process import Life

DOUBLE = Path(__file__).with_name("double_driver.py")


class Running:
    """A coordinator process and what it has told so far."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.child = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.events.append(json.loads(line))

    def told(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name and fields.items() <= event.items()]

    def end(self, seconds: float = 40) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.child.wait(seconds)
        finally:
            self._reader.join(5)

    def errors(self) -> str:
        assert self.child.stderr is not None
        return self.child.stderr.read()


class Local:
    """One session `s`: its manifest, its folder, and coordinators over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.home: Home = session_home(self.state, "s")
        self._started: list[Running] = []

    def manifest(self, *words: str, driver_env: Any = (), **spec: Any) -> None:
        """A session whose driver does what the words of the double say."""
        command = [sys.executable, str(DOUBLE), *words]
        driver = {"command": command, "env": list(driver_env), "terminationGracePeriodSeconds": 5}
        full = {"input": "x", "space": {}, "retry": {"initialSeconds": 1}, "driver": driver, **spec}
        document = {"apiVersion": "durablesessions.dev/v1alpha1", "kind": "DurableSession"}
        text = yaml.safe_dump({**document, "metadata": {"name": "s"}, "spec": full})
        (self.folder / "s.yaml").write_text(text)

    def start(self, **env: str) -> Running:
        command = [sys.executable, "-m", "durable_cli", "run", str(self.folder / "s.yaml"), "--state", str(self.state)]
        running = Running([*command, "-o", "json"], {**os.environ, **env})
        self._started.append(running)
        return running

    def run(self, **env: str) -> Running:
        running = self.start(**env)
        running.end()
        return running

    def command(self, *words: str) -> str:
        """What another command of `durable` prints; it must succeed."""
        command = [sys.executable, "-m", "durable_cli", *words, "--state", str(self.state)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def refusal(self, *words: str) -> str:
        """The one line of another command of `durable` that is a mistake."""
        command = [sys.executable, "-m", "durable_cli", *words, "--state", str(self.state)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        return line

    def driven(self) -> list[int]:
        """The epochs that drivers were started under, as these wrote them down."""
        path = self.home.path / "driven"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = history.as_object(history.find(self.state, "s")[1])["status"]
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        return next((entry for entry in self.status().get("conditions", ()) if entry["type"] == kind), {})

    def driver_runs(self, epoch: int) -> bool:
        facts = process.look(self.home.drive(epoch))
        return facts.life is Life.RUNNING and facts.pid > 0 and epoch in self.driven()

    def leftovers(self) -> list[str]:
        return leftovers(self.home, wait_seconds=20)

    @staticmethod
    def until(condition: Callable[[], object], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "not within the time"
            time.sleep(0.01)

    def close(self) -> None:
        """End what a failed test left, by the ids that were recorded."""
        for running in self._started:
            if running.child.poll() is None:
                running.child.kill()
            running.child.wait()
        # Everything that was started for this test's own folder names it, also when the folder itself is gone.
        for line in leftovers(self.home, wait_seconds=0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    one = Local(tmp_path)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def double() -> str:
    """The path of the program in the driver's place."""
    return str(DOUBLE)

"""Real parts for the adapter's tests: a Space daemon as a process, logs on disk, drivers as processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from durable_base import crash
from durable_spaces.spaces import daemon_pid
from durable_spaces.testing import Drive, DriverProcess, drive_to_the_end, left_behind

MINI_DRIVER = Path(__file__).with_name("mini_driver.py")


@dataclass
class Daemon:
    """`python -m durable_space` on a Unix socket; killed and started again at will."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    generation: int = 0
    preface: str = ""  # Python that runs in the daemon's process before its own

    @property
    def data(self) -> Path:
        return self.folder / f"data{self.generation}"

    @property
    def workspace(self) -> Path:
        return self.folder / f"workspace{self.generation}"

    @property
    def target(self) -> str:
        return f"unix:{self.folder / 's'}"

    def start(self, *, crash_at: str = "") -> Daemon:
        self.workspace.mkdir(exist_ok=True)
        run = "from durable_space.cli import space; space(prog_name='durable space')"
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", f"{self.preface}\n{run}"),
                    *("--data", str(self.data), "--workspace", str(self.workspace), "--listen", self.target),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, crash.VARIABLE: crash_at},
            )
        until = time.monotonic() + 20
        while not (self.data / "address").exists() or daemon_pid(self.data) != self.process.pid:
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"the daemon did not start: {(self.folder / 'daemon.log').read_text()}")
            time.sleep(0.01)
        return self

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)

    def replace(self) -> None:
        """The Space is lost: another instance, with an empty workspace, answers at the same address."""
        self.kill()
        self.generation += 1
        self.start()


@dataclass
class Stage:
    """A session on a Space: what its drivers are started with, and where its truth lies."""

    folder: Path
    daemon: Daemon
    script: Path
    extra: list[str] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "log.db"

    @property
    def workspace(self) -> Path:
        return self.daemon.workspace

    def command(self) -> list[str]:
        return [
            *(sys.executable, str(MINI_DRIVER)),
            *("--log", str(self.log), "--space", self.daemon.target, "--script", str(self.script)),
            *self.extra,
        ]

    def driver(self, epoch: int, crash_at: str = "", *extra: str) -> DriverProcess:
        return DriverProcess([*self.command(), *extra], epoch, self.folder, crash_at=crash_at)

    def to_the_end(self, *crashes: str, first_epoch: int = 1) -> list[Drive]:
        return drive_to_the_end(self.command(), self.folder, crashes, first_epoch=first_epoch)


MakeStage = Callable[..., Stage]


@contextmanager
def stages() -> Iterator[MakeStage]:
    """`make(script, seed, *driver arguments)`: a new Space whose workspace `seed(folder)` fills, and a new log."""
    daemons: list[Daemon] = []

    def make(script: str, seed: Callable[[Path], None] = lambda folder: None, *extra: str) -> Stage:
        folder = Path(tempfile.mkdtemp(prefix="ad-"))  # short: a socket's path has at most 100 bytes
        daemon = Daemon(folder)
        daemons.append(daemon)
        daemon.workspace.mkdir()
        seed(daemon.workspace)
        daemon.start()
        (folder / "script.yaml").write_text(script)
        return Stage(folder, daemon, folder / "script.yaml", list(extra))

    try:
        yield make
    finally:
        for daemon in daemons:
            daemon.stop()
            until = time.monotonic() + 5
            while (processes := left_behind(daemon.folder)) and time.monotonic() < until:
                time.sleep(0.02)
            assert not processes, f"commands outlived their session: {processes}"
            shutil.rmtree(daemon.folder, ignore_errors=True)


@pytest.fixture
def make_stage() -> Iterator[MakeStage]:
    with stages() as make:
        yield make


@pytest.fixture(scope="module")
def make_module_stage() -> Iterator[MakeStage]:
    with stages() as make:
        yield make

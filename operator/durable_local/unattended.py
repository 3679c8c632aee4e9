"""End the processes of a session that nobody attends: its coordinator was killed, and its driver and its Space run on.

What a coordinator does for `durable suspend`, done by the command itself, under the lock that a coordinator would hold.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from durable_base.errors import UsageError
from durable_local import history, process
from durable_local.drive import Drive
from durable_local.layout import Home, Lock
from durable_local.process import Life

_POLL_SECONDS = 0.05
_SPACE_SECONDS = 10.0


def end_unattended(home: Home, session: str, uid: str, grace_seconds: float) -> bool:
    """Drivers end at their next durable point, or are killed after the grace; then the session's own Space ends.

    False, and nothing is done: a coordinator attends the session, and does it. Killed in between, the order to stop is on disk.
    """
    try:
        lock = Lock(home)
    except UsageError:
        return False
    try:
        drives = [Drive(home, session, uid, epoch) for epoch in home.epochs_seen() if _runs(home.drive(epoch))]
        for drive in drives:
            drive.ask_stop(grace_seconds)
        while running := [drive for drive in drives if _runs(drive.folder)]:
            for drive in running:
                drive.ask_stop(grace_seconds)  # a driver that just began could not be signalled before
                drive.enforce()
            time.sleep(_POLL_SECONDS)
        for generation in home.generations():
            for run in home.runs(generation):
                _end_daemon(home.generation(generation) / f"run-{run}")
        return True
    finally:
        lock.release()


def answered(home: Home) -> bool:
    """Whether the newest driver came to the session's end: with no coordinator there, no status says so yet."""
    newest = history.drives(home)[-1:]
    return any(drive.report is not None and drive.report.outcome == "settled" for drive in newest)


def _end_daemon(folder: Path) -> None:
    """SIGTERM: its commands end, and its rows say so. SIGKILL if that takes too long."""
    deadline = time.monotonic() + _SPACE_SECONDS
    process.send(folder, signal.SIGTERM)
    while _runs(folder):
        if time.monotonic() > deadline:
            process.send(folder, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _runs(folder: Path) -> bool:
    return process.look(folder).life is Life.RUNNING

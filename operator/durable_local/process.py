"""Child processes as the coordinator sees them: started once per folder, found again, never trusted by pid alone."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_local import keeper

Keeper = subprocess.Popen[bytes]


class Life(enum.Enum):
    ABSENT = "absent"  # no keeper ever claimed the folder
    RUNNING = "running"  # the keeper holds its lock
    ENDED = "ended"  # an exit record tells how
    GONE = "gone"  # claimed, over, and nobody knows how: its keeper was killed, or the machine went down


@dataclass(frozen=True, slots=True)
class ChildFacts:
    """One look at a folder. Times are Unix seconds."""

    life: Life
    uid: str = ""
    pid: int = 0  # of the child, not of its keeper; 0 if not recorded
    code: int | None = None
    signal: int = 0  # 0: it ended by itself
    started_at: float | None = None
    ended_at: float | None = None


def start(folder: Path, uid: str, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> Keeper:
    """Start `command` in `folder`, unless something ever was: `look` then tells of that other one.

    The answer is the keeper; it survives this process. Its stdout and stderr are files in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [sys.executable, "-I", "-S", keeper.__file__, str(folder.absolute()), uid, *command]
    return subprocess.Popen(
        arguments,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_claimed(folder: Path, keeper: Keeper, seconds: float = 10.0) -> None:
    """Return once `folder` has a claim, whoever's, or its keeper ended without one, or the time is over."""
    deadline = time.monotonic() + seconds
    while not (folder / "claim").exists() and keeper.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)


def release(keeper: Keeper, seconds: float = 1.0) -> None:
    """Wait for a keeper whose child is over. One that stays (its folder was removed, so nobody could find the child) is
    ended, and its child ends with it.
    """
    try:
        keeper.wait(seconds)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()


def look(folder: Path) -> ChildFacts:
    """What is known of the child of `folder`, from its records and its lock. Never blocks, changes nothing."""
    claim = _read(folder / "claim")
    if claim is None:
        return ChildFacts(Life.ABSENT)
    uid, started_at = str(claim["uid"]), (folder / "claim").stat().st_mtime
    child = _read(folder / "child")
    pid = int(child["pid"]) if child else 0
    # The exit record comes before the lock is let go: looked for before the lock and after it, none is missed.
    end = _read(folder / "exit")
    if end is None and claim["boot"] == keeper.boot_id() and locked(folder / "lock"):
        return ChildFacts(Life.RUNNING, uid, pid, started_at=started_at)
    end = end or _read(folder / "exit")
    if end is None:
        return ChildFacts(Life.GONE, uid, pid, started_at=started_at)
    return ChildFacts(Life.ENDED, uid, pid, end["code"], end["signal"], started_at, end["time"])


def send(folder: Path, number: signal.Signals) -> bool:
    """Signal the child of `folder`, and nobody who got its pid later. False: there is nobody to signal."""
    child = _read(folder / "child")
    if child is None or child["boot"] != keeper.boot_id():
        return False
    try:
        handle = os.pidfd_open(child["pid"])
    except OSError:
        return False
    try:
        # The handle is of whoever has the pid now; the start time says whether that is still our child.
        if keeper.start_time(child["pid"]) != child["start"]:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def locked(path: Path) -> bool:
    """Whether some process holds this lock. The question itself holds it for an instant."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        record: dict[str, Any] = json.loads(path.read_bytes())
        return record
    return None

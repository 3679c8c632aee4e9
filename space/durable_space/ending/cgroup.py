"""A cgroup v2 per command, in which its shim lives too: frozen, everything else in it is killed; if the shim is dead,
`cgroup.kill` ends all at once, and `cgroup.events` tells that it is empty.

Guarantee: forks are born inside, and the kernel stops and kills without a race. Assumes that the command may not write to
the tree above its own group (a command that runs as root in a privileged container could move itself out).
The same file protocol works on a plain folder, which is how it is tested where no tree is writable.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from durable_base.crash import crash_point
from durable_space import mounts

PREFIX = "durable-space-"

FREEZE_SECONDS = 0.5  # a process in an uninterruptible wait does not freeze; it can't act either
DEAD_SECONDS = 10.0  # an empty group younger than this may just be waiting for its first process


class CgroupTree:
    """The folder of one daemon's groups, one below for each shim: `<root>/durable-space-<instance>/<name>`.

    The zygote makes the groups and removes them; the name stands in the command's claim. A shim stands over one command at
    a time, so the group is one command's as long as its record is open.
    """

    def __init__(self, root: Path, instance_id: str) -> None:
        self._root = root
        self.folder = root / f"{PREFIX}{instance_id[:16]}"

    def kill_but(self, name: str, shim: int, finished: Callable[[], bool]) -> None:
        """Everything but the shim, which is to reap and to say so. Frozen first: nobody sees a child die and goes on
        (rule 10), nobody forks on, and no process id in the list can become another's. Nothing if the command is `finished`
        by then: the shim may be on to another one."""
        group = self._group(name)
        try:
            (group / "cgroup.freeze").write_text("1")
            try:
                deadline = time.monotonic() + FREEZE_SECONDS
                while "frozen 1" not in (group / "cgroup.events").read_text() and time.monotonic() < deadline:
                    time.sleep(0.0005)
                crash_point("epoch.group_frozen")
                if finished():
                    return
                for pid in map(int, (group / "cgroup.procs").read_text().split()):
                    # 0 stands for one that is just ending, or of another PID namespace; as an address it is ourselves.
                    if pid not in (0, shim):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            finally:
                (group / "cgroup.freeze").write_text("0")
        except FileNotFoundError:
            return  # it went with its shim

    def kill(self, name: str) -> None:
        """Everything, the shim too."""
        try:
            (self._group(name) / "cgroup.kill").write_text("1")
        except OSError:
            if self.populated(name):
                raise

    def populated(self, name: str) -> bool:
        """False also for a group that is not there."""
        return _populated(self._group(name))

    def remove(self, name: str) -> None:
        """Of an ended command; harmless if it is not empty or not there."""
        _remove(self._group(name))

    def sweep(self) -> None:
        """At start and end: the empty groups of shims that were killed; those of commands that run on stay."""
        for group in _below(self.folder):
            if not _populated(group):
                _remove(group)

    def sweep_strangers(self) -> None:
        """What other daemons left: a folder in which no process lives is nobody's, wherever its data directory is. A live
        daemon's holds the processes that wait for commands; should it be between two zygotes, it makes the folder anew."""
        now = time.time()
        for folder in _below(self._root):
            if folder.name.startswith(PREFIX) and folder != self.folder and not _populated(folder):
                ages = [now - found.stat().st_ctime for found in (folder, *_below(folder)) if found.exists()]
                if min(ages, default=0.0) > DEAD_SECONDS:
                    _remove(folder)

    def close(self) -> None:
        """Remove what is empty, and the folder if nothing is left."""
        self.sweep()
        with suppress(OSError):
            self.folder.rmdir()

    def _group(self, name: str) -> Path:
        return self.folder / os.path.basename(name)


def _below(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
    except OSError:
        return []


def _populated(group: Path) -> bool:
    try:
        text = (group / "cgroup.events").read_text()
    except OSError:
        return False
    return "populated 1" in text


def _remove(group: Path) -> None:
    """With the groups that a command made in its own; the kernel refuses to remove one in which a process lives."""
    for found in _below(group):
        _remove(found)
    with suppress(OSError):
        os.rmdir(group)


def find_root() -> Path | None:
    """Our own place in a cgroup v2 that we may extend and whose kernel knows `cgroup.kill`; tried, not guessed."""
    for place, kind in mounts.table():
        if kind != b"cgroup2":
            continue
        root = Path(os.fsdecode(place)) / _own_path().lstrip("/")
        if _works(root):
            return root
    return None


def _own_path() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return "/"


def _works(root: Path) -> bool:
    """Make a group, put a process in, kill it: what a command will need."""
    trial = root / f"{PREFIX}trial-{os.getpid()}"
    try:
        trial.mkdir()
    except OSError:
        return False
    try:
        child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
        try:
            (trial / "cgroup.procs").write_text(str(child.pid))
            (trial / "cgroup.kill").write_text("1")
            return child.wait(5) == -9
        except (OSError, subprocess.TimeoutExpired):
            return False
        finally:
            child.kill()
            child.wait()
    except OSError:
        return False
    finally:
        with suppress(OSError):
            trial.rmdir()

"""A cgroup v2 per command: `cgroup.kill` ends everything in it at once, `cgroup.events` tells that it is empty.

Guarantee: forks are born inside, and the kernel kills without a race. Assumes that the command may not write to the tree
above its own group (a command that runs as root in a privileged container could move itself out).
The same file protocol works on a plain folder, which is how it is tested where no tree is writable.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path


class CgroupTree:
    """The folder of one daemon's groups, one below for each command: `<root>/durable-space-<instance>/c<seq>`."""

    def __init__(self, root: Path, instance_id: str) -> None:
        self._folder = root / f"durable-space-{instance_id[:16]}"

    def make(self, seq: int) -> str:
        folder = self._group(seq)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def kill(self, seq: int) -> None:
        try:
            (self._group(seq) / "cgroup.kill").write_text("1")
        except OSError:
            if self.populated(seq):
                raise

    def populated(self, seq: int) -> bool:
        """False also for a group that is not there."""
        try:
            text = (self._group(seq) / "cgroup.events").read_text()
        except OSError:
            return False
        return "populated 1" in text

    def remove(self, seq: int) -> None:
        """Of an ended command; harmless if it is not empty or not there."""
        with suppress(OSError):
            os.rmdir(self._group(seq))

    def close(self) -> None:
        """Remove the folder of all groups, if none is left."""
        with suppress(OSError):
            self._folder.rmdir()

    def _group(self, seq: int) -> Path:
        return self._folder / f"c{seq}"


def find_root() -> Path | None:
    """Our own place in a cgroup v2 that we may extend and whose kernel knows `cgroup.kill`; tried, not guessed."""
    for mount in _mounts():
        root = mount / _own_path().lstrip("/")
        if _works(root):
            return root
    return None


def _mounts() -> list[Path]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            found.append(Path(left.split()[4]))
    return found


def _own_path() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return "/"


def _works(root: Path) -> bool:
    """Make a group, put a process in, kill it: what a command will need."""
    trial = root / f"durable-space-trial-{os.getpid()}"
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

"""One cgroup tree per cluster, so that what it runs can be ended, all at one instant, and nothing else with it.

Both layouts are known: every hierarchy of version 1 (also where version 2 is mounted beside them), and version 2 alone.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from durable_testbed.errors import BedError

TOP = Path("/sys/fs/cgroup")


def is_v2() -> bool:
    """Whether the machine has version 2 alone."""
    return (TOP / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The mount points in which a process must be placed."""
    if is_v2():
        return [TOP]
    return sorted(p for p in TOP.glob("*") if p.is_dir() and not p.is_symlink() and (p / "tasks").exists())


def make(name: str) -> list[Path]:
    """Make the cgroup `name` in every hierarchy; a process enters it by writing its pid to the files given back."""
    for top in hierarchies():
        path = top
        for part in name.split("/"):
            if top == TOP:  # version 2: controllers must be handed down level by level
                with contextlib.suppress(OSError):
                    have = (path / "cgroup.controllers").read_text().split()
                    (path / "cgroup.subtree_control").write_text(" ".join("+" + controller for controller in have))
            path = path / part
            path.mkdir(exist_ok=True)
            if (
                path / "cpuset.mems"
            ).exists() and top != TOP:  # a new cpuset of version 1 is empty and takes no process
                for knob in ("cpuset.cpus", "cpuset.mems"):
                    (path / knob).write_text((path.parent / knob).read_text())
    return [top / name / "cgroup.procs" for top in hierarchies()]


def pids(name: str) -> set[int]:
    """The processes in the cgroup and below it."""
    found: set[int] = set()
    for top in _everywhere():
        for folder, _, files in os.walk(top / name):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found.update(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
    return found - {os.getpid()}


def kill(name: str) -> None:
    """SIGKILL everything below the cgroup at one instant: nothing in it runs between the first and the last kill."""
    deadline = time.monotonic() + 10
    while True:
        _freeze(name, True)
        below = pids(name)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _freeze(name, False)
        if not below:
            return
        if time.monotonic() > deadline:
            raise BedError(f"processes in cgroup {name} survive SIGKILL: {sorted(below)}")
        time.sleep(0.05)


def remove(name: str) -> None:
    """Remove the cgroup and all below it, in every hierarchy; its processes must have ended."""
    deadline = time.monotonic() + 5
    for top in _everywhere():
        while (top / name).exists():
            for folder, _, _ in os.walk(top / name, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            if not (top / name).exists():
                break
            if time.monotonic() > deadline:
                raise BedError(f"cgroup {top / name} can't be removed: {sorted(pids(name))} run in it")
            time.sleep(0.05)


def _everywhere() -> list[Path]:
    # Besides the hierarchies of version 1, runc makes its cgroups also in the version 2 tree mounted beside them.
    return [TOP] if is_v2() else sorted(p for p in TOP.glob("*") if p.is_dir() and not p.is_symlink())


def _freeze(name: str, frozen: bool) -> None:
    v1, v2 = TOP / "freezer" / name / "freezer.state", TOP / name / "cgroup.freeze"
    with contextlib.suppress(OSError):
        if v1.exists():
            v1.write_text("FROZEN" if frozen else "THAWED")
        elif v2.exists():
            v2.write_text("1" if frozen else "0")
        deadline = time.monotonic() + 1  # a task in a vfork may hold it half way; then the kill is repeated
        while frozen and not _is_frozen(v1, v2) and time.monotonic() < deadline:
            time.sleep(0.005)


def _is_frozen(v1: Path, v2: Path) -> bool:
    if v1.exists():
        return v1.read_text().strip() == "FROZEN"
    return not v2.exists() or "frozen 1" in (v2.parent / "cgroup.events").read_text()

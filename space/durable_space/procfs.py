"""Processes as the kernel tells them, each by (pid, start time): a process id alone is never trusted.

Standard library alone: zygote, shims and daemon use it. `start` is field 22 of /proc/PID/stat, in clock ticks since boot.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    session: int
    start: int
    state: str  # one letter; Z and X are dead

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"

    @property
    def stopped(self) -> bool:
        return self.state in "tT"


def parse_stat(text: str) -> Process:
    """The name may hold anything, spaces and brackets too: fields start after the last `)`."""
    pid, _, rest = text.partition(" ")
    fields = rest[rest.rindex(")") + 2 :].split(" ", 20)
    return Process(int(pid), int(fields[1]), int(fields[3]), int(fields[19]), fields[0])


def read(pid: int) -> Process | None:
    """None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read())
    except (OSError, ValueError, IndexError):
        return None


def start_of(pid: int) -> int:
    """0 if there is none."""
    found = read(pid)
    return found.start if found else 0


def is_alive(pid: int, start: int) -> bool:
    found = read(pid)
    return found is not None and found.start == start and found.alive


def table() -> dict[int, Process]:
    """All processes; not one moment's picture, since the kernel gives none."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = read(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def ancestors(processes: Mapping[int, Process], pid: int) -> set[int]:
    """`pid` and all above it."""
    found: set[int] = set()
    while pid in processes and pid not in found:
        found.add(pid)
        pid = processes[pid].parent
    return found


def descendants(processes: Mapping[int, Process], roots: Iterable[int]) -> set[int]:
    """All below `roots`, without them."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def touches(pid: int, workspace: Path) -> Iterator[str]:
    """Yields `cwd` and `file`, for a working directory and an open file inside `workspace`."""
    root = str(workspace)
    try:
        if _inside(os.readlink(f"/proc/{pid}/cwd"), root):
            yield "cwd"
        for name in os.listdir(f"/proc/{pid}/fd"):
            if _inside(os.readlink(f"/proc/{pid}/fd/{name}"), root):
                yield "file"
                return
    except OSError:
        return


def _inside(path: str, root: str) -> bool:
    path = path.removesuffix(" (deleted)")
    return path == root or path.startswith(root.rstrip("/") + "/")


def send_signal(pid: int, start: int, number: int) -> bool:
    """Signal exactly this process. False if it is gone; its id may have been given to another, which is left alone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel without process handles: the check below leaves a window of microseconds
        if start_of(pid) != start:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True
    try:
        # The handle is of whoever has the id now; if its start time is the one we know, it is our process, for good.
        if start_of(pid) != start:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def boot_time_ns() -> int:
    """When the machine started, nanoseconds since 1970; 0 if the kernel does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            for line in file:
                if line.startswith("btime "):
                    return int(line.split()[1]) * 1_000_000_000
    except (OSError, ValueError):
        pass
    return 0

"""Look for what a lost command may have left alive: the only evidence once its shim is dead (rule 27).

A process that carries the command's marker in its environment, or descends from the command's known process, is certainly
ours and is killed. One that only shares the command's kernel session, or has its working directory or an open file in the
workspace, may be a stranger: it is left alone and named, and the proof fails. Nothing older than the command counts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from durable_space import layout, procfs

PASSES = 2  # looks in a row that must come back empty


@dataclass(frozen=True, slots=True)
class Lost:
    seq: int
    session: int  # the shim led it
    since: int  # start time of the shim
    pid: int  # of the command, 0 if unknown
    pid_start: int


def audit(
    lost: Collection[Lost], instance_id: str, workspace: Path, spare: Collection[int], deadline: float
) -> set[int]:
    """Kill what is certainly ours; give the processes that may be, empty: proven. `spare` are processes of others."""
    empty = 0
    while True:
        processes = procfs.table()
        spared = set(spare) | procfs.descendants(processes, spare) | {os.getpid()}
        certain, possible = _sort(processes, lost, instance_id, workspace, spared)
        for pid in certain:
            procfs.send_signal(pid, processes[pid].start, signal.SIGKILL)
        empty = 0 if certain or possible else empty + 1
        if empty >= PASSES:
            return set()
        if time.monotonic() > deadline or (possible and not certain and empty == 0 and _still(possible, processes)):
            return possible | certain
        time.sleep(0.005)


def _still(possible: set[int], processes: Mapping[int, procfs.Process]) -> bool:
    """A suspect may just be ending: look once more before it fails the proof."""
    time.sleep(0.1)
    return any(procfs.is_alive(pid, processes[pid].start) for pid in possible)


def _sort(
    processes: Mapping[int, procfs.Process], lost: Collection[Lost], instance_id: str, workspace: Path, spared: set[int]
) -> tuple[set[int], set[int]]:
    roots = {row.pid for row in lost if row.pid and _is(processes, row.pid, row.pid_start)}
    family = roots | procfs.descendants(processes, roots)
    markers = {f"{layout.MARKER}={instance_id}/{row.seq}".encode() for row in lost}
    sessions = {row.session: row.since for row in lost}
    oldest = min((row.since for row in lost), default=0)
    certain, possible = set(), set()
    for pid, process in processes.items():
        if not process.alive or process.start < oldest or pid in spared:
            continue
        if pid in family or markers & set(environment(pid)):
            certain.add(pid)
        elif process.start >= sessions.get(process.session, process.start + 1) or any(procfs.touches(pid, workspace)):
            possible.add(pid)
    return certain, possible


def _is(processes: Mapping[int, procfs.Process], pid: int, start: int) -> bool:
    return pid in processes and processes[pid].start == start


def environment(pid: int) -> list[bytes]:
    """`NAME=value`s as they were at exec; empty where we may not look."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []

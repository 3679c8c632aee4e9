"""End process trees by walking /proc: stop everything, then kill everything, until the shims say that nothing is left.

Guarantee: a shim is the subreaper of all that its command spawned, so a process that forks twice, starts a session or
clears its environment stays below it. The proof is the shim's: it writes `done` when the kernel tells it that it has no
child (ECHILD), which a walk of /proc, never one moment's picture, could not prove by itself.

SIGSTOP comes first and to all (`stopping`).
Not chosen: killing process groups or sessions; both are left by one call.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from durable_base.crash import crash_point
from durable_space import procfs
from durable_space.stopping import stop_all

SHIM_SECONDS = 2.0  # for a shim without children to write its last word


@dataclass(frozen=True, slots=True)
class Tree:
    """A command by its shim; `finished()` is true once the shim has let go of its lock."""

    seq: int
    shim: int
    shim_start: int
    finished: Callable[[], bool]
    kill_group: Callable[[], None]  # the mechanism's own blow (`cgroup`, `pidns`), nothing for a bare tree


def end(trees: Collection[Tree], deadline: float) -> set[int]:
    """Kill and wait. Give the rows whose shim could not finish in time (killed too: an audit must vouch for them)."""
    stop_all(lambda: alive_below(trees))
    open_trees = {tree.seq: tree for tree in trees if not tree.finished()}
    childless_since: dict[int, float] = {}
    unproven: set[int] = set()
    first = True
    while open_trees:
        for tree in open_trees.values():
            tree.kill_group()
        found = alive_below(open_trees.values())
        for process in found.values():
            procfs.send_signal(process.pid, process.start, signal.SIGKILL)
        if first:
            crash_point("epoch.killed_some")
            first = False
        now = time.monotonic()
        processes = procfs.table() if not found else {}
        for seq, tree in list(open_trees.items()):
            if tree.finished():
                del open_trees[seq]
            elif found or _alive_below_one(processes, tree):
                childless_since.pop(seq, None)
            elif now - childless_since.setdefault(seq, now) > SHIM_SECONDS / 2:
                procfs.send_signal(tree.shim, tree.shim_start, signal.SIGCONT)
                if now - childless_since[seq] > SHIM_SECONDS:
                    procfs.send_signal(tree.shim, tree.shim_start, signal.SIGKILL)
                    unproven.add(seq)
        if time.monotonic() > deadline:
            return unproven | set(open_trees)
        time.sleep(0.001)
    return unproven


def alive_below(trees: Collection[Tree]) -> dict[int, procfs.Process]:
    """Of these commands alone. A shim takes on other commands, so it is asked after the look whether it was done before it."""
    processes = procfs.table()
    roots = [tree.shim for tree in trees if _is_shim(processes, tree) and not tree.finished()]
    own = os.getpid()
    return {pid: processes[pid] for pid in procfs.descendants(processes, roots) if processes[pid].alive and pid != own}


def _alive_below_one(processes: Mapping[int, procfs.Process], tree: Tree) -> bool:
    if not _is_shim(processes, tree):
        return False
    return any(processes[pid].alive for pid in procfs.descendants(processes, [tree.shim]))


def _is_shim(processes: Mapping[int, procfs.Process], tree: Tree) -> bool:
    found = processes.get(tree.shim)
    return found is not None and found.start == tree.shim_start

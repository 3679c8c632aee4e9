"""Stop processes, all of them, before any is killed: no parent sees its child die and goes on (rule 10), no one forks on.

Standard library alone: shims and daemon use it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from durable_space import procfs

QUIET_ROUNDS = 2  # looks that found nobody new to stop
STOP_SECONDS = 1.0
ROUND_SECONDS = 0.001


def stop_all(look: Callable[[], Mapping[int, procfs.Process]]) -> Mapping[int, procfs.Process]:
    """Stop what `look` finds alive, that too which appears meanwhile. Give those seen last."""
    signalled: set[tuple[int, int]] = set()
    quiet = 0
    deadline = time.monotonic() + STOP_SECONDS
    while True:
        found = look()
        fresh = [process for process in found.values() if (process.pid, process.start) not in signalled]
        for process in fresh:
            procfs.send_signal(process.pid, process.start, signal.SIGSTOP)
            signalled.add((process.pid, process.start))
        running = any(not process.stopped for process in found.values())
        quiet = 0 if fresh or running else quiet + 1
        # A process that sleeps uninterruptibly does not stop; it can't act either, and the kill finds it.
        if quiet >= QUIET_ROUNDS or not found or time.monotonic() > deadline:
            return found
        time.sleep(ROUND_SECONDS)

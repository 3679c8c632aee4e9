"""Signals to exactly the process of a command."""

from __future__ import annotations

import os
from contextlib import suppress

from durable_space import procfs
from durable_space.commands import Observed, Started
from durable_space.gate import Caller, Gate
from durable_space.refusal import Code, Reason, Refused


def send_signal(gate: Gate, caller: Caller, observed: Observed, number: int, *, group: bool) -> None:
    """Raise Refused: ended, or not started. A process id that now belongs to another process gets no signal."""
    started = _running(observed)
    with gate.change(caller):
        if not group:
            if not procfs.send_signal(started.pid, started.start, number):
                raise _ended(started.pid)
            return
        if procfs.start_of(started.pid) != started.start:
            raise _ended(started.pid)
        try:
            os.killpg(started.pid, number)
        except ProcessLookupError:
            raise _ended(started.pid) from None


def signal_group(observed: Observed, number: int) -> None:
    """For the daemon's own purposes; nothing happens if the command has ended."""
    started = observed.started
    if started is not None and procfs.start_of(started.pid) == started.start:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, number)


def _running(observed: Observed) -> Started:
    if observed.state.final:
        raise _ended(observed.started.pid if observed.started else 0)
    if observed.started is None:
        raise Refused(Code.FAILED_PRECONDITION, Reason.PROCESS_NOT_FOUND, "the command has not started yet: try again")
    return observed.started


def _ended(pid: int) -> Refused:
    return Refused(Code.FAILED_PRECONDITION, Reason.PROCESS_NOT_FOUND, f"process {pid} has already exited")

"""Reach a running command: signals to exactly its process, and its standard input."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress

from durable_space import layout, procfs
from durable_space.commands import Commands, Observed, Started
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


def write_stdin(commands: Commands, gate: Gate, caller: Caller, observed: Observed, data: bytes) -> int:
    """Bytes written, all of them. Raise Refused: no open stdin. Blocks while the command does not read."""
    return _through_pipe(commands, gate, caller, observed, layout.STDIN, lambda fd: _write_all(fd, data))


def close_stdin(commands: Commands, gate: Gate, caller: Caller, observed: Observed) -> None:
    """The shim lets go of the pipe, so the command reads to its end. Again is harmless."""
    _through_pipe(commands, gate, caller, observed, layout.CONTROL, lambda fd: _write_all(fd, b"c"))


def _through_pipe(
    commands: Commands, gate: Gate, caller: Caller, observed: Observed, name: str, use: Callable[[int], int]
) -> int:
    _running(observed)
    if not observed.row.config.stdin:
        raise Refused(
            Code.FAILED_PRECONDITION, Reason.UNSPECIFIED, "stdin is not open: start the command with stdin set"
        )
    gate.check(caller)
    path = os.path.join(commands.folder(observed.row.seq), name)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            if name == layout.CONTROL:
                return 0  # closed before
            raise Refused(Code.FAILED_PRECONDITION, Reason.UNSPECIFIED, "stdin was closed") from None
        raise
    try:
        os.set_blocking(fd, True)
        return use(fd)
    except BrokenPipeError:
        raise Refused(Code.FAILED_PRECONDITION, Reason.UNSPECIFIED, "the command has closed its stdin") from None
    finally:
        os.close(fd)


def _running(observed: Observed) -> Started:
    if observed.state.final:
        raise _ended(observed.started.pid if observed.started else 0)
    if observed.started is None:
        raise Refused(Code.FAILED_PRECONDITION, Reason.PROCESS_NOT_FOUND, "the command has not started yet: try again")
    return observed.started


def _ended(pid: int) -> Refused:
    return Refused(Code.FAILED_PRECONDITION, Reason.PROCESS_NOT_FOUND, f"process {pid} has already exited")


def _write_all(fd: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)

"""Standard input of a running command, in order, each numbered piece once.

A named pipe leads to the command, so any daemon can write to it. Nothing here blocks a thread: a command that does not read
keeps its own writer waiting and nobody else. The newest number of each writer is in the command's folder and survives
SIGKILL of the daemon; a daemon that is killed between pipe and number leaves the one case in which a repeat arrives twice.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from durable_base.files import write_atomic
from durable_space import layout
from durable_space.commands import Commands, Observed
from durable_space.gate import Caller, Gate
from durable_space.refusal import Code, Reason, Refused, invalid, limit

WRITERS_MAX = 64  # per command
WRITER_ID_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class Numbered:
    writer: str
    sequence: int  # one more each time, whatever the first; 0: not numbered, written however often it comes


@dataclass(frozen=True, slots=True)
class Applied:
    sequence: int
    duplicate: bool


class Inputs:
    """Used on the event loop. Writers of one command take turns."""

    def __init__(self, commands: Commands, gate: Gate) -> None:
        self._commands = commands
        self._gate = gate
        self._turns: dict[int, tuple[asyncio.Lock, int]] = {}  # (lock, users), there while somebody writes

    async def write(self, caller: Caller, observed: Observed, data: bytes, numbered: Numbered) -> Applied:
        """All of `data`. Raise Refused: no open stdin, a gap in the numbers, or a floor that rose meanwhile.

        Cancelled in the middle: a part may have arrived, and the number does not count as applied.
        """
        if len(numbered.writer.encode()) > WRITER_ID_BYTES_MAX:
            raise invalid(f"writer_id has at most {WRITER_ID_BYTES_MAX} bytes")
        async with self._turn(observed.row.seq):
            known = self._read(observed.row.seq) if numbered.sequence else {}
            applied = known.get(numbered.writer, 0)
            if numbered.sequence:
                if numbered.sequence <= applied:
                    return Applied(applied, duplicate=True)
                check_next(known, numbered)
            fd = self._open(caller, observed)
            try:
                await self._write_all(caller, fd, data)
            except BrokenPipeError:
                raise closed("the command has closed its stdin") from None
            finally:
                os.close(fd)
            if numbered.sequence:
                text = json.dumps({**known, numbered.writer: numbered.sequence})
                write_atomic(self._path(observed.row.seq, layout.INPUTS), text.encode(), sync=False)
            return Applied(numbered.sequence, duplicate=False)

    def close(self, caller: Caller, observed: Observed) -> None:
        """The command reads to its end, nothing more arrives. Again, or for a command without stdin, is harmless."""
        self._gate.check(caller)
        if observed.state.final or not observed.row.config.stdin:
            return
        _check_started(observed)
        # The name first: a pipe that is let go of could be opened again as long as the command reads.
        for name, words in ((layout.STDIN, b""), (layout.CONTROL, b"c")):
            path = self._path(observed.row.seq, name)
            try:
                if not words:
                    os.unlink(path)
                    continue
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENXIO):
                    raise
                continue
            try:
                os.write(fd, words)
            finally:
                os.close(fd)

    def _open(self, caller: Caller, observed: Observed) -> int:
        self._gate.check(caller)
        if observed.state.final or not observed.row.config.stdin:
            raise closed("the command has ended" if observed.state.final else "it was started without stdin")
        _check_started(observed)
        try:
            path = self._path(observed.row.seq, layout.STDIN)
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                raise closed("it was closed") from None
            raise

    async def _write_all(self, caller: Caller, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                await _writable(fd)
                self._gate.check(caller)

    @asynccontextmanager
    async def _turn(self, seq: int) -> AsyncIterator[None]:
        lock, users = self._turns.get(seq, (asyncio.Lock(), 0))
        self._turns[seq] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._turns[seq]
            if users == 1:
                del self._turns[seq]
            else:
                self._turns[seq] = (lock, users - 1)

    def _read(self, seq: int) -> dict[str, int]:
        try:
            with open(self._path(seq, layout.INPUTS), "rb") as file:
                found: dict[str, int] = json.loads(file.read())
                return found
        except FileNotFoundError:
            return {}

    def _path(self, seq: int, name: str) -> str:
        return os.path.join(self._commands.folder(seq), name)


def check_next(known: Mapping[str, int], numbered: Numbered) -> None:
    """Raise Refused: a piece before this one is missing, or too many writers. Pure."""
    expected = known.get(numbered.writer, 0) + 1
    if numbered.writer in known and numbered.sequence > expected:
        raise Refused(
            Code.FAILED_PRECONDITION,
            Reason.SEQUENCE_GAP,
            f"input {numbered.sequence} came, {expected} is next: send that one first",
            metadata={"expected_sequence": str(expected)},
        )
    if numbered.writer not in known and len(known) >= WRITERS_MAX:
        raise limit(f"{WRITERS_MAX} writers have numbered their input to this command: use one of them")


def _check_started(observed: Observed) -> None:
    if observed.started is None:
        raise Refused(Code.FAILED_PRECONDITION, Reason.PROCESS_NOT_FOUND, "the command has not started yet: try again")


def closed(why: str) -> Refused:
    return Refused(Code.FAILED_PRECONDITION, Reason.UNSPECIFIED, f"stdin is not open: {why}")


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(fd)

"""Run a command by its key: started at most once, whichever process asks, and however often.

What the adapter does with the help of a log (marks, undoing, another run) is not here: this is for programs that want one
command's result, and that start again after they died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from durable_base.errors import HaltError
from durable_harness.env import Stream
from durable_protocol.durable.space.v1 import space_pb2 as space
from durable_spaces._commands import Commands, CommandSpec, Sinks


class CommandNotStarted(Exception):
    """No process could be made of it: no such program, or no such folder. Asked again by the same key it is the same."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended, and what it wrote: bytes, as they came."""

    exit_code: int  # 128 + n for a death by signal n
    stdout: bytes
    stderr: bytes
    timed_out: bool  # it was ended at its timeout
    dropped_bytes: (
        int  # of both outputs together, the oldest: no longer kept by the Space, or more than `keep_bytes` here
    )
    trouble: str  # why the Space could not record all of the output; empty: it did


class Kept:
    """The newest output, up to a limit."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._pieces: deque[tuple[bytes, Stream]] = deque()
        self._size = 0
        self.dropped = 0

    def take(self, piece: bytes, stream: Stream) -> None:
        self._pieces.append((piece, stream))
        self._size += len(piece)
        while (over := self._size - self._keep_bytes) > 0:
            oldest, of = self._pieces.popleft()
            if len(oldest) > over:
                self._pieces.appendleft((oldest[over:], of))
            lost = min(over, len(oldest))
            self._size -= lost
            self.dropped += lost

    def gap(self, size: int) -> None:
        self.dropped += size

    def of(self, stream: Stream) -> bytes:
        return b"".join(piece for piece, of in self._pieces if of == stream)


async def run_by_key(
    commands: Commands,
    epoch: int,
    key: str,
    spec: CommandSpec,
    on_output: Callable[[bytes, Stream], None] | None,
    keep_bytes: int,
    still_ours: Callable[[], Awaitable[None]],
) -> CommandResult:
    """As `FencedSpace.run` says."""
    kept = Kept(keep_bytes)

    def output(piece: bytes, stream: Stream) -> None:
        kept.take(piece, stream)
        if on_output is not None:
            on_output(piece, stream)

    sinks = Sinks(output=output, gap=kept.gap)
    row = _known(await commands.rows(key), key, spec)
    if row is None:
        end = await commands.run(spec, f"{key}@{epoch}", sinks)
    elif row.state == space.COMMAND_STATE_RESERVED:
        end = await commands.run(
            spec, row.request_id, sinks
        )  # by the id that it was reserved under, so that it is one start
    else:
        end = await commands.attach(row.request_id, sinks)
    if not end.spawned:
        raise CommandNotStarted(end.trouble)
    if end.trouble:
        # Perhaps ended from outside, by a newer driver or by KillAll: then this is no result of the command's.
        await still_ours()
        _known(await commands.rows(key), key, spec)
    return CommandResult(end.exit_code, kept.of("stdout"), kept.of("stderr"), end.timed_out, kept.dropped, end.trouble)


def _known(rows: list[space.CommandRecord], key: str, spec: CommandSpec) -> space.CommandRecord | None:
    """The row to go on with; None: nothing of this key has ever started. Raise HaltError: going on would be a guess."""
    started = [row for row in rows if row.state != space.COMMAND_STATE_NEVER_STARTED]
    if not started:
        return None
    row = started[0]  # the newest epoch's
    if row.command_hash != spec.hash:
        raise HaltError("CommandMismatch", f"the Space knows {key!r} as another command: use another key")
    if row.state == space.COMMAND_STATE_KILLED:
        raise HaltError(
            "CommandKilled", f"{key!r} ran in part, until an epoch or KillAll ended it: undo that, and use another key"
        )
    if row.state == space.COMMAND_STATE_LOST:
        raise HaltError(
            "CommandLost",
            f"{key!r} ran, and nobody knows how far (its machine or shim died): undo it, and use another key",
        )
    return row

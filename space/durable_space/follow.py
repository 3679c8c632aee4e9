"""Follow one command: its start, its output from any kept offset, its end.

Frames: 16 to 64 KiB, or what there is after 20 ms. A few frames are in memory per follower: whoever does not read, waits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from durable_space import layout
from durable_space.commands import Ending, Observed, forgotten
from durable_space.output import OutputReader, Piece
from durable_space.refusal import Code, Reason, Refused, limit
from durable_space.rows import Row
from durable_space.runtime import Runtime
from durable_space.states import State

FRAME_BYTES_MAX = 64 << 10
FRAME_BYTES_MIN = 16 << 10
FRAME_SECONDS = 0.02
LOOK_BYTES = 256 << 10  # read at one look; so much is in memory for a follower that does not read
LOOK_SECONDS = 0.25  # between looks without a notice: a shim that was killed sends none
ASK_SECONDS = 1.0  # until a shim is asked for again (then twice as long): who took the request may have been killed


@dataclass(frozen=True, slots=True)
class Start:
    """First of a follower's events. `pid` is 0 for a command that could not be started."""

    observed: Observed
    deduplicated: bool
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing happened for a while (keepalive)."""


Event = Start | Piece | Ending | Idle


async def follow(
    runtime: Runtime,
    row: Row,
    offset: int | None,
    *,
    deduplicated: bool,
    fresh: bool = False,
    tail_bytes: int = 0,
    idle_seconds: float = 0.0,
) -> AsyncIterator[Event]:
    """From `offset`, or (None) the newest `tail_bytes` and what comes. Ends with exactly one Ending. `fresh`: just reserved, so
    there was no output before this follower.

    Raise Refused: OutputGone; or the command was barred before it started.
    """
    folder = os.path.join(runtime.commands.folder(row.seq), layout.OUTPUT)
    with runtime.notices.listen(row.seq) as notice:
        if fresh:
            await _wait(notice, LOOK_SECONDS)  # its shim says when there is something to see
        observed = await _until_started(runtime, row.seq, notice)
        reader = OutputReader(folder)
        try:
            # Held open before its offset is told: what was there when it was asked for is there when it is read.
            if fresh:
                first, end = 0, 0
            elif offset is None:
                first, end = await runtime.run(reader.seek_newest, tail_bytes)
            else:
                first, end = await runtime.run(reader.seek, offset)
            yield Start(observed, deduplicated, first, end)
            async for event in _output_and_end(runtime, row.seq, reader, notice, idle_seconds, live=fresh):
                yield event
        finally:
            reader.close()


async def _until_started(runtime: Runtime, seq: int, notice: asyncio.Event) -> Observed:
    patience = ASK_SECONDS
    asked_at = time.monotonic()
    while True:
        notice.clear()
        # On the loop, as everywhere where a notice came or is about to: the record is small, and was just written.
        observed = observe(runtime, seq)
        if observed.claim is not None or observed.state is not State.RESERVED:
            runtime.zygote.claimed(seq)
        elif time.monotonic() - asked_at > patience:
            runtime.zygote.repeat(seq)
            asked_at, patience = time.monotonic(), patience * 2
        if observed.state is State.NEVER_STARTED:
            if observed.row.owner == runtime.gate.floor:
                raise limit("no process could be made for it, or everything was ended before it started: try again")
            raise Refused(
                Code.FAILED_PRECONDITION,
                Reason.STALE_EPOCH,
                "the command was reserved under an older epoch and never started; nothing of it can start any more",
                condition="StaleEpoch",
                metadata={
                    "epoch": str(observed.row.owner.epoch),
                    "current_epoch": str(runtime.gate.floor.epoch),
                    "current_incarnation": runtime.gate.floor.incarnation,
                },
            )
        if observed.started is not None or observed.settled:
            return observed
        await _wait(notice, LOOK_SECONDS)


async def _output_and_end(
    runtime: Runtime, seq: int, reader: OutputReader, notice: asyncio.Event, idle_seconds: float, *, live: bool
) -> AsyncIterator[Event]:
    """`live`: the reader stands at the end of what there was, so that what it reads next was just written and is in memory:
    the look needs no thread. A replay may wait for the disk."""
    sent_at = heard_at = 0.0
    if live and not runtime.notices.hint(seq).ended:
        await _wait(notice, min(LOOK_SECONDS, idle_seconds or LOOK_SECONDS))

    def look() -> tuple[Observed, list[Piece]]:
        # The state first: what is final now has all its output on disk, so an empty read after it is the end.
        observed = observe(runtime, seq)
        if observed.end is not None and observed.end.output_bytes == reader.offset:
            return observed, []
        return observed, read_frames(reader)

    while True:
        notice.clear()
        observed, pieces = look() if live else await runtime.run(look)
        live = live or sum(len(piece.data) for piece in pieces) < FRAME_BYTES_MIN
        now = time.monotonic()
        for piece in pieces:
            yield piece
            sent_at = heard_at = now
        if observed.settled and not pieces:
            assert observed.end is not None
            yield observed.end
            return
        if sum(len(piece.data) for piece in pieces) >= FRAME_BYTES_MIN:
            continue
        if not observed.settled:
            heard_at = heard_at or now
            if idle_seconds and now - heard_at >= idle_seconds:
                yield Idle()
                heard_at = now
            await _wait(notice, min(LOOK_SECONDS, idle_seconds or LOOK_SECONDS))
            await _gather(runtime, seq, reader.offset, notice, sent_at + FRAME_SECONDS)


def read_frames(reader: OutputReader) -> list[Piece]:
    """What there is, in frames, at most `LOOK_BYTES`. Raise Refused (OutputGone), but not before what can be read is given."""
    pieces: list[Piece] = []
    size = 0
    while size < LOOK_BYTES:
        try:
            found = reader.read(FRAME_BYTES_MAX)
        except Refused:
            if pieces:
                break
            raise
        if not found:
            break
        pieces += found
        size += sum(len(piece.data) for piece in found)
    return pieces


async def _gather(runtime: Runtime, seq: int, offset: int, notice: asyncio.Event, until: float) -> None:
    """After a notice: let small writes become a frame, but not beyond `until`; a command that has ended waits for nobody."""
    while notice.is_set():
        hint = runtime.notices.hint(seq)
        left = until - time.monotonic()
        if left <= 0 or hint.ended or hint.output_end - offset >= FRAME_BYTES_MIN:
            return
        notice.clear()
        await _wait(notice, left)
        if not notice.is_set():
            return


def observe(runtime: Runtime, seq: int) -> Observed:
    """Raise Refused: forgotten meanwhile."""
    row = runtime.ledger.rows.get(seq)
    if row is None:
        raise forgotten()
    return runtime.commands.observe(row)


async def _wait(notice: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await notice.wait()
    except TimeoutError:
        pass

"""Commands of a Space whose daemon has no `durable.space.v1`: StartProcess, ConnectProcess and GetExecRecord by request id.

What it can't know is never guessed: a command that the daemon calls LOST, or knows no more, ends the drive. One that ended by
SIGKILL under an epoch below the floor was killed by that floor's AdvanceEpoch, and its driver is stale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from durable_base.errors import HaltError, StaleEpochError
from durable_base.floor import Floor
from durable_harness.env import Stream
from durable_protocol.cua.env.v1 import process_pb2 as process
from durable_protocol.cua.env.v1 import process_pb2_grpc
from durable_spaces._channel import Wire
from durable_spaces._errors import SpaceRefused
from durable_spaces._processes import CommandEnd, CommandSpec, Processes, Sinks, deliver, gathered, read_end

_KILLED = 128 + 9


class CuaCommands:
    def __init__(self, wire: Wire, recheck: Callable[[], Awaitable[None]]) -> None:
        """`recheck` raises where another Space answers (rule 12): this daemon compares no identity."""
        self._wire = wire
        self._processes = Processes(wire, recheck)
        self._stub = process_pb2_grpc.ProcessServiceStub(wire.channel)

    async def run(self, spec: CommandSpec, request_id: str, sinks: Sinks) -> CommandEnd:
        """Start it (once, as long as the daemon keeps its ledger) and wait for its end. Raises as `Commands.run`."""
        return await self._settled(spec, request_id, sinks)

    async def attach(self, request_id: str, sinks: Sinks) -> CommandEnd:
        """Wait for the end of a known command, with all its output that is kept. Never starts anything (rule 12)."""
        return await self._settled(None, request_id, sinks)

    async def output(self, request_id: str) -> tuple[bytes, int]:
        """All output of an ended command that the daemon still keeps, and how many bytes before it are gone."""
        return await gathered(self.attach, request_id)

    async def kill(self, request_id: str) -> None:
        """End this command and its process group. A command that has ended, or that is not known, is fine."""

        async def runs() -> bool:
            found = await self._record(request_id)
            return found is not None and found.record.state == process.EXEC_STATE_RUNNING

        await self._processes.kill(request_id, runs)

    async def _settled(self, spec: CommandSpec | None, request_id: str, sinks: Sinks) -> CommandEnd:
        heard = 0

        def output(data: bytes, stream: Stream) -> None:
            nonlocal heard
            heard += len(data)
            sinks.output(data, stream)

        def gap(size: int) -> None:
            nonlocal heard
            heard += size
            sinks.gap(size)

        try:
            counted = dataclasses.replace(sinks, output=output, gap=gap)
            end = await self._processes.follow(spec, request_id, counted, self.kill)
        except HaltError as halt:
            if halt.reason != "CommandLost":
                raise
            # Its output is gone with a daemon that was killed; the record may still tell the end.
            return await self._by_record(request_id, sinks, heard, halt)
        if end.exit_code == _KILLED and not end.timed_out:
            await self._check_not_stale(request_id)
        return end

    async def _by_record(self, request_id: str, sinks: Sinks, heard: int, halt: HaltError) -> CommandEnd:
        found = await self._record(request_id)
        if found is None or found.record.state != process.EXEC_STATE_EXITED:
            raise halt
        for data in found.record.tail:
            heard = deliver(data, heard, sinks)
        end = read_end(found.record.end)
        if end.exit_code == _KILLED and not end.timed_out:
            self._check(found)
        return end

    async def _check_not_stale(self, request_id: str) -> None:
        found = await self._record(request_id)
        if found is not None:
            self._check(found)

    def _check(self, found: process.GetExecRecordResponse) -> None:
        own = self._wire.own
        if found.epoch > own.epoch:
            raise StaleEpochError("space", own, Floor(found.epoch))

    async def _record(self, request_id: str) -> process.GetExecRecordResponse | None:
        request = process.GetExecRecordRequest(request_id=request_id)
        try:
            return await self._wire.retried(
                lambda metadata: self._stub.GetExecRecord(request, metadata=metadata, timeout=self._wire.call_seconds)
            )
        except SpaceRefused as refused:
            if refused.refusal.reason == "ERROR_REASON_PROCESS_NOT_FOUND":
                return None
            raise

"""Commands of a Space with `durable.space.v1`: its ledger answers for every epoch of a key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from durable_protocol.durable.space.v1 import space_pb2 as space
from durable_protocol.durable.space.v1 import space_pb2_grpc
from durable_spaces._channel import Wire
from durable_spaces._processes import KEEPALIVE_SECONDS as KEEPALIVE_SECONDS
from durable_spaces._processes import STARTING_SECONDS, Processes, gathered
from durable_spaces._processes import CommandEnd as CommandEnd
from durable_spaces._processes import CommandSpec as CommandSpec
from durable_spaces._processes import Sinks as Sinks
from durable_spaces.recovery import Command, Record

_STATES: Mapping[int, Command] = {
    space.COMMAND_STATE_RUNNING: Command.RUNNING,
    space.COMMAND_STATE_EXITED: Command.EXITED,
    space.COMMAND_STATE_NEVER_STARTED: Command.NEVER_STARTED,
    space.COMMAND_STATE_LOST: Command.LOST,
    space.COMMAND_STATE_KILLED: Command.KILLED,
}


class Commands:
    """By request id, `<key>@<epoch>`: a key names what is to be run once, the epoch which driver started it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._processes = Processes(wire)
        self._ledger = space_pb2_grpc.LedgerServiceStub(wire.channel)

    async def run(self, spec: CommandSpec, request_id: str, sinks: Sinks) -> CommandEnd:
        """Start it (once, whatever happens to the connection) and wait for its end.

        Raises SpaceRefused where nothing was started; HaltError where its end can't be known in this drive.
        """
        return await self._processes.follow(spec, request_id, sinks, self.kill)

    async def attach(self, request_id: str, sinks: Sinks) -> CommandEnd:
        """Wait for the end of a known command, with all its output that is kept. Never starts anything (rule 12)."""
        return await self._processes.follow(None, request_id, sinks, self.kill)

    async def output(self, request_id: str) -> tuple[bytes, int]:
        """All output of an ended command that the Space still keeps, and how many bytes before it are gone."""
        return await gathered(self.attach, request_id)

    async def kill(self, request_id: str) -> None:
        """End this command and its process group. A command that has ended, or that is not known, is fine."""

        async def runs() -> bool:
            known = await self.lookup(request_id.rpartition("@")[0])
            return any(row.request_id == request_id and row.state is Command.RUNNING for row in known)

        await self._processes.kill(request_id, runs)

    async def lookup(self, key: str) -> list[Record]:
        """Every row of a key. A row that is only reserved is waited for: it starts at once, or never."""
        until = asyncio.get_running_loop().time() + STARTING_SECONDS
        while True:
            rows = await self.rows(key)
            reserved = any(row.state == space.COMMAND_STATE_RESERVED for row in rows)
            if not reserved or asyncio.get_running_loop().time() > until:
                return [_record(row) for row in rows]
            await asyncio.sleep(0.05)

    async def rows(self, key: str) -> list[space.CommandRecord]:
        """Every row of a key as the Space tells it, the newest epoch's first."""
        request = space.LookupRequest(key=key)
        answer = await self._wire.retried(
            lambda metadata: self._ledger.Lookup(request, metadata=metadata, timeout=self._wire.call_seconds)
        )
        return list(answer.records)

    async def forget(self, prefix: str) -> int:
        """Drop the rows and the output of all keys that begin so; how many there were. Their keys are as if never used.

        Raises SpaceRefused (condition `StillRunning`) where one of them, or what it left behind, runs.
        """
        request = space.ForgetRequest(prefix=prefix)
        answer = await self._wire.retried(
            lambda metadata: self._ledger.Forget(request, metadata=metadata, timeout=self._wire.call_seconds)
        )
        return answer.rows


def _record(row: space.CommandRecord) -> Record:
    # What is reserved for longer than a start takes counts as lost: undoing what never ran is harmless, and the restore's
    # KillAll sees to it that it never does.
    state = _STATES.get(row.state, Command.LOST)
    epoch = row.request_id.rpartition("@")[2]
    return Record(row.request_id, int(epoch) if epoch.isdigit() else 0, row.epoch, state, row.command_hash)

"""durable.space.v1.SpaceService and LedgerService."""

from __future__ import annotations

import os

from durable_base.floor import Floor
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_protocol.durable.space.v1.space_pb2_grpc import LedgerServiceServicer, SpaceServiceServicer
from durable_space import forgetting, layout, output
from durable_space.refusal import invalid
from durable_space.rpc import messages
from durable_space.rpc.admission import admit_changer, caller_of
from durable_space.rpc.caller import INCARNATION, read_caller, read_incarnation, text_metadata
from durable_space.rpc.guard import Context
from durable_space.runtime import Runtime
from durable_space.version import VERSION

_MECHANISMS = {
    "cgroup2": durable.KILL_MECHANISM_CGROUP2,
    "pidns": durable.KILL_MECHANISM_PIDNS,
    "subreaper": durable.KILL_MECHANISM_SUBREAPER,
}


class SpaceService(SpaceServiceServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def GetInfo(self, request: durable.GetInfoRequest, context: Context) -> durable.GetInfoResponse:
        runtime = self._runtime
        return durable.GetInfoResponse(
            name=runtime.config.name,
            instance_id=runtime.instance_id,
            boot_id=runtime.boot_id,
            generation=runtime.config.generation,
            floor=floor_message(runtime.gate.floor),
            workspace=str(runtime.workspace_root),
            kill_mechanism=_MECHANISMS[runtime.ender.mechanism],
            ledger_seq=runtime.ledger.seq,
            version=VERSION,
            started_at=messages.timestamp(runtime.started_ns),
        )

    async def AdvanceEpoch(
        self, request: durable.AdvanceEpochRequest, context: Context
    ) -> durable.AdvanceEpochResponse:
        metadata = text_metadata(context.invocation_metadata())
        caller = read_caller(metadata, request.epoch)
        incarnation = read_incarnation(request.incarnation)
        if INCARNATION in metadata and metadata[INCARNATION] != incarnation:
            raise invalid(f"the incarnation in the message is not that in {INCARNATION}: they must agree")
        floor = Floor(caller.floor.epoch, incarnation)
        advanced = await self._runtime.run(self._runtime.epochs.advance, floor, tuple(request.adopt))
        return durable.AdvanceEpochResponse(
            floor=floor_message(advanced.floor), killed=advanced.killed, adopted=advanced.adopted
        )

    async def KillAll(self, request: durable.KillAllRequest, context: Context) -> durable.KillAllResponse:
        caller = await admit_changer(self._runtime, context)
        return durable.KillAllResponse(killed=await self._runtime.run(self._runtime.epochs.kill_all, caller.floor))


class LedgerService(LedgerServiceServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def Lookup(self, request: durable.LookupRequest, context: Context) -> durable.LookupResponse:
        def read() -> list[durable.CommandRecord]:
            records = []
            for row in sorted(self._runtime.ledger.by_key(request.key), key=lambda row: (-row.owner.epoch, -row.seq)):
                folder = os.path.join(self._runtime.commands.folder(row.seq), layout.OUTPUT)
                records.append(messages.command_record(self._runtime.commands.observe(row), *output.kept_range(folder)))
            return records

        records = await self._runtime.run(read)
        return durable.LookupResponse(records=records, floor=floor_message(self._runtime.gate.floor))

    async def Forget(self, request: durable.ForgetRequest, context: Context) -> durable.ForgetResponse:
        caller = caller_of(context)
        if not request.prefix:
            raise invalid("prefix is required: a key's first part, as in `<log id>/`")
        await self._runtime.admit(caller)

        rows = await self._runtime.run_long(forgetting.forget, self._runtime, caller, request.prefix)
        return durable.ForgetResponse(rows=rows)


def floor_message(floor: Floor) -> durable.Floor:
    return durable.Floor(epoch=floor.epoch, incarnation=floor.incarnation)

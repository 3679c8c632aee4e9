"""The client of a Space, in two steps that can't be taken in another order.

`SpaceClient` knows how to ask who is there (`info`) and how to raise the floor (`advance`); nothing else. What looks at files,
ledger or commands is a `FencedSpace`, and only the answer of this driver's own AdvanceEpoch makes one (rule 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from durable_base.errors import HaltError, StaleEpochError
from durable_base.floor import Floor
from durable_protocol.durable.space.v1 import space_pb2 as space
from durable_protocol.durable.space.v1 import space_pb2_grpc
from durable_spaces._channel import CALL_SECONDS, CONNECT_SECONDS, LONG_CALL_SECONDS, Address, Wire
from durable_spaces._commands import Commands
from durable_spaces._files import Files
from durable_spaces._workspace import Workspace
from durable_spaces.document import Identity


@dataclass(frozen=True, slots=True)
class SpaceInfo:
    name: str
    identity: Identity
    generation: int
    floor: Floor
    workspace: str  # absolute
    ledger_seq: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """What AdvanceEpoch answered: every process of an older epoch is dead and refused, but for the adopted commands."""

    killed: int
    adopted: tuple[str, ...]


class SpaceClient:
    """A connection to one Space under one (epoch, incarnation). Close it when the drive ends."""

    def __init__(self, address: Address, own: Floor, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        self._wire = Wire(address, own, connect_seconds=connect_seconds)
        self._stub = space_pb2_grpc.SpaceServiceStub(self._wire.channel)

    async def info(self) -> SpaceInfo:
        """Who is there. The one question that may be asked before `advance`."""
        return await _info(self._wire, self._stub)

    async def advance(self, info: SpaceInfo, adopt: Sequence[str] = ()) -> FencedSpace:
        """Fence every older driver out of the Space that `info` describes; `adopt` names keys whose commands live on.

        From here on every call of this client is pinned to that instance and boot. Raises StaleEpochError(resource="space")
        where a newer driver owns it, HaltError SpaceChanged, ProofFailed, SpaceUnreachable.
        """
        own = self._wire.own
        self._wire.identity = info.identity
        request = space.AdvanceEpochRequest(epoch=own.epoch, incarnation=own.incarnation, adopt=adopt)
        # Idempotent: the same pair repeats kill and proof (rule 4).
        answer = await self._wire.retried(
            lambda metadata: self._stub.AdvanceEpoch(request, metadata=metadata, timeout=LONG_CALL_SECONDS)
        )
        return FencedSpace(self._wire, info, Advanced(answer.killed, tuple(answer.adopted)))

    async def close(self) -> None:
        await self._wire.close()


class FencedSpace:
    """A Space in which nothing older than this drive acts any more. Made by `SpaceClient.advance` alone."""

    def __init__(self, wire: Wire, info: SpaceInfo, advanced: Advanced) -> None:
        self._wire = wire
        self._stub = space_pb2_grpc.SpaceServiceStub(wire.channel)
        self.own = wire.own
        self.identity = info.identity
        self.root = info.workspace  # absolute
        self.ledger_seq = info.ledger_seq  # as last read; it only grows while the Space is the same one
        self.advanced = advanced
        self.shell: str | None = None  # once it has been looked for
        self.commands = Commands(wire)
        self.files = Files(wire)
        self.workspace = Workspace(wire)

    async def read_ledger_seq(self) -> int:
        self.ledger_seq = (await _info(self._wire, self._stub)).ledger_seq
        return self.ledger_seq

    async def check_still_ours(self) -> None:
        """Raise HaltError SpaceChanged where another Space answers by now, StaleEpochError where a newer driver owns it.

        GetInfo is the one call that the Space does not check, so its answer is checked here.
        """
        info = await _info(self._wire, self._stub)
        if info.identity != self.identity:
            raise HaltError(
                "SpaceChanged", "another Space answers than this drive began with; the next drive looks anew"
            )
        if info.floor != self.own:
            raise StaleEpochError("space", self.own, info.floor)

    async def kill_all(self) -> int:
        """End every command, those of this epoch too, with proof. Before any restore (rule 14)."""
        answer = await self._wire.retried(
            lambda metadata: self._stub.KillAll(space.KillAllRequest(), metadata=metadata, timeout=LONG_CALL_SECONDS)
        )
        return answer.killed


async def _info(wire: Wire, stub: space_pb2_grpc.SpaceServiceAsyncStub) -> SpaceInfo:
    answer = await wire.retried(
        lambda metadata: stub.GetInfo(space.GetInfoRequest(), metadata=metadata, timeout=CALL_SECONDS)
    )
    return SpaceInfo(
        name=answer.name,
        identity=Identity(answer.instance_id, answer.boot_id),
        generation=answer.generation,
        floor=Floor(answer.floor.epoch, answer.floor.incarnation),
        workspace=answer.workspace,
        ledger_seq=answer.ledger_seq,
    )


__all__ = ["Address", "Advanced", "FencedSpace", "SpaceClient", "SpaceInfo"]

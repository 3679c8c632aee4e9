"""The client of a Space, for anybody who runs commands in a sandbox and wants each of them to start once.

    async with SpaceClient(Address("unix:/run/space.sock")) as client:
        info = await client.info()
        own = Floor(7, new_incarnation())  # an epoch above info.floor.epoch: your own count, or what a coordinator gave you
        space = await client.advance(info, own=own, adopt=["job-1"])
        result = await space.run("job-1", CommandSpec.shell("make test", timeout_seconds=600))
        text = await space.files.read(f"{space.root}/report.txt")

A program that is killed anywhere in here, and started again, gets the same result of the same one run.

Two steps that can't be taken in another order: `SpaceClient` knows how to ask who is there (`info`) and how to raise the floor
(`advance`), nothing else. What looks at files, ledger or commands is a `FencedSpace`, and only the answer of this driver's own
AdvanceEpoch makes one (rule 8). So whatever an older process of yours still does, it does nothing in this Space any more.

What holds for every call:

* It ends. `Deadlines` has the times; what can't be answered is `HaltError("SpaceUnreachable")`.
* A connection that breaks is made again, with pauses that grow, for as long as `Deadlines.connect_seconds`; a command's output
  then goes on at the very byte. Only what must not be done twice (an append, a rename) is not repeated: it raises, and you look.
* The end of a stream is never the end of a command: only the Space's word is.
* It is meant for one instance and one boot of the Space, those of `info`. Another one at the same address does nothing and is
  `HaltError("SpaceChanged")`: its files and its commands are not those that you know of.

Errors. `StaleEpochError`: a newer driver owns the Space; stop. `HaltError`: it can't be gone on with now; `reason` says why
(`SpaceUnreachable`, `SpaceChanged`, `SpaceUnauthenticated`, `ProofFailed`, `CommandLost`, `CommandKilled`, `CommandMismatch`,
`MissingCapability`), and `permanent` whether another attempt is pointless. `SpaceRefused`: nothing was done, `refusal.condition`
says why (docs/space.md lists them). `FileError`: of files, with a code and the path. `CommandNotStarted`: there is no such
program. `UsageError`: a file that you named can't be read. One event loop per client; calls may run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from durable_base.errors import HaltError, StaleEpochError, UsageError
from durable_base.floor import Floor, new_incarnation
from durable_harness.env import FileError, FileInfo, Stream
from durable_protocol.durable.space.v1 import space_pb2 as space
from durable_protocol.durable.space.v1 import space_pb2_grpc
from durable_spaces._channel import DEADLINES, Address, Deadlines, Wire
from durable_spaces._commands import CommandEnd, Commands, CommandSpec, Sinks
from durable_spaces._errors import Refusal, SpaceRefused
from durable_spaces._files import Files
from durable_spaces._keyed import CommandNotStarted, CommandResult, run_by_key
from durable_spaces._workspace import BlobsChanged, UntrackedNames, Workspace, WorkspaceTooLarge
from durable_spaces.document import Identity
from durable_spaces.limits import Limits
from durable_spaces.recovery import Command as CommandState
from durable_spaces.recovery import Record as CommandRecord

KEEP_BYTES = 64 * 1024 * 1024  # what a Space keeps of a command's output, unless it was told otherwise


@dataclass(frozen=True, slots=True)
class SpaceInfo:
    """Who answers."""

    name: str
    identity: Identity  # instance: another one is another, empty Space; boot: another one means that no process is left
    generation: int
    floor: Floor  # the newest epoch, and who claimed it
    workspace: str  # absolute
    ledger_seq: int  # rows ever written; it only grows


@dataclass(frozen=True, slots=True)
class Advanced:
    """What AdvanceEpoch answered: every process of an older epoch is dead and refused, but for the adopted commands."""

    killed: int
    adopted: tuple[str, ...]


class SpaceClient:
    """A connection to one Space under one (epoch, incarnation). Close it when you are done, or use it in `async with`.

    Nothing is connected before the first call.
    """

    def __init__(self, address: Address, own: Floor | None = None, *, deadlines: Deadlines = DEADLINES) -> None:
        """`own`: the epoch that this process was given, and its incarnation. None: told by `advance`. Raises UsageError."""
        self._wire = Wire(address, own or Floor(), deadlines)
        self._stub = space_pb2_grpc.SpaceServiceStub(self._wire.channel)

    async def info(self) -> SpaceInfo:
        """Who is there. The one question that may be asked before `advance`."""
        return await _info(self._wire, self._stub)

    async def advance(self, info: SpaceInfo, adopt: Sequence[str] = (), *, own: Floor | None = None) -> FencedSpace:
        """Fence every older driver out of the Space that `info` describes; `adopt` names keys whose commands live on.

        `own` is what this client calls itself from here on: an epoch above `info.floor` and an incarnation of this process's
        own (`new_incarnation()`), for who has no coordinator that issues epochs. If two do this at once, one of them wins, and
        the other gets StaleEpochError.

        From here on every call of this client is pinned to that instance and boot. Raises StaleEpochError(resource="space")
        where a newer driver owns it, HaltError SpaceChanged, ProofFailed, SpaceUnreachable.
        """
        if own is not None:
            self._wire.own = own
        own = self._wire.own
        self._wire.identity = info.identity
        request = space.AdvanceEpochRequest(epoch=own.epoch, incarnation=own.incarnation, adopt=adopt)
        # Idempotent: the same pair repeats kill and proof (rule 4).
        answer = await self._wire.retried(
            lambda metadata: self._stub.AdvanceEpoch(request, metadata=metadata, timeout=self._wire.long_call_seconds)
        )
        return FencedSpace(self._wire, info, Advanced(answer.killed, tuple(answer.adopted)))

    async def close(self) -> None:
        """Commands run on."""
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class FencedSpace:
    """A Space in which nothing older than this drive acts any more. Made by `SpaceClient.advance` alone.

    `run` is what most programs need; `commands`, `files` and `workspace` are the whole of it.
    """

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

    async def run(
        self,
        key: str,
        spec: CommandSpec,
        *,
        on_output: Callable[[bytes, Stream], None] | None = None,
        keep_bytes: int = KEEP_BYTES,
    ) -> CommandResult:
        """Run a command once, and wait for its end: if its key is known, that one is attached to, or its result replayed.

        `key` is yours: a name for this run, of up to 230 bytes, the same one each time you ask for it. A process that comes
        after you must name it in `adopt`, or its `advance` ends the command. `on_output` gets each piece as it comes, and must
        not wait. Of the output the newest `keep_bytes` are in the result.

        Raises CommandNotStarted; SpaceRefused (a full disk, a limit: nothing was started, ask again); StaleEpochError; HaltError:
        CommandMismatch (the key is another command's), CommandLost, CommandKilled (it ran, and not to an end that is known;
        what it did is there, it is not run again under this key), SpaceChanged, SpaceUnreachable (ask again).
        """
        return await run_by_key(self.commands, self.own.epoch, key, spec, on_output, keep_bytes, self.check_still_ours)

    async def read_ledger_seq(self) -> int:
        self.ledger_seq = (await _info(self._wire, self._stub)).ledger_seq
        return self.ledger_seq

    async def check_still_ours(self) -> None:
        """Raise HaltError SpaceChanged where another Space answers by now, StaleEpochError where a newer driver owns it."""
        info = await _info(self._wire, self._stub)
        if info.floor != self.own:
            raise StaleEpochError("space", self.own, info.floor)

    async def kill_all(self) -> int:
        """End every command, those of this epoch too, with proof. Before any restore (rule 14)."""
        answer = await self._wire.retried(
            lambda metadata: self._stub.KillAll(
                space.KillAllRequest(), metadata=metadata, timeout=self._wire.long_call_seconds
            )
        )
        return answer.killed


async def _info(wire: Wire, stub: space_pb2_grpc.SpaceServiceAsyncStub) -> SpaceInfo:
    """GetInfo is the one call that the Space does not compare with the identity in it, so its answer is compared here."""
    answer = await wire.retried(
        lambda metadata: stub.GetInfo(space.GetInfoRequest(), metadata=metadata, timeout=wire.call_seconds)
    )
    info = SpaceInfo(
        name=answer.name,
        identity=Identity(answer.instance_id, answer.boot_id),
        generation=answer.generation,
        floor=Floor(answer.floor.epoch, answer.floor.incarnation),
        workspace=answer.workspace,
        ledger_seq=answer.ledger_seq,
    )
    if wire.identity is not None and info.identity != wire.identity:
        raise HaltError("SpaceChanged", "another Space answers than this drive began with; the next drive looks anew")
    return info


__all__ = [
    "KEEP_BYTES",
    "Address",
    "Advanced",
    "BlobsChanged",
    "CommandEnd",
    "CommandNotStarted",
    "CommandRecord",
    "CommandResult",
    "CommandSpec",
    "CommandState",
    "Commands",
    "Deadlines",
    "FencedSpace",
    "FileError",
    "FileInfo",
    "Files",
    "Floor",
    "HaltError",
    "Identity",
    "Limits",
    "Refusal",
    "Sinks",
    "SpaceClient",
    "SpaceInfo",
    "SpaceRefused",
    "StaleEpochError",
    "Stream",
    "UntrackedNames",
    "UsageError",
    "Workspace",
    "WorkspaceTooLarge",
    "new_incarnation",
]

"""The client of a Space whose daemon is Cua's own: `cua.env.v1` without `durable.space.v1`.

The same two steps as `client`: `info` asks who is there, `advance` raises the floor and gives the Space. Files and workspace
are the Space helper's (`durable_space.helper`), which AdvanceEpoch kills with every other process of an older epoch; commands
are the daemon's. What this daemon can't promise is in docs/space-differences.md: above all, that a process which left its
command's session is dead once AdvanceEpoch has answered.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Self

from durable_base.errors import HaltError, UsageError
from durable_base.floor import Floor
from durable_protocol.cua.env.v1 import process_pb2 as process
from durable_protocol.cua.env.v1 import process_pb2_grpc, system_pb2_grpc
from durable_protocol.cua.env.v1 import system_pb2 as system
from durable_space.helper.archive import build
from durable_spaces._capabilities import serves_extension
from durable_spaces._channel import DEADLINES, Address, Deadlines, Wire
from durable_spaces._cua_commands import CuaCommands
from durable_spaces._cua_ground import Ground
from durable_spaces._errors import SpaceRefused
from durable_spaces._helper import Helper, HelperLaunch
from durable_spaces._helper_files import HelperFiles
from durable_spaces._helper_workspace import HelperWorkspace
from durable_spaces.client import SpaceClient, SpaceInfo
from durable_spaces.document import Identity

_NOTHING: Mapping[str, str] = {}


class CuaSpaceClient:
    """A connection to one Space under one epoch. Close it when the drive ends."""

    def __init__(
        self,
        address: Address,
        own: Floor,
        *,
        workspace: str,
        folder: str | None = None,
        deadlines: Deadlines = DEADLINES,
        helper_env: Mapping[str, str] = _NOTHING,
    ) -> None:
        """`workspace`: absolute, an existing folder of the Space. `folder`: where the helper and the marker are kept, outside
        the workspace; by default in the home folder of the daemon's user. Raises UsageError."""
        for name, path in (("workspace", workspace), ("folder", folder)):
            if path is not None and not posixpath.isabs(path):
                raise UsageError(f"{name} {path!r}: name a folder of the Space by its absolute path")
        if folder is not None and posixpath.commonpath([folder, workspace]) == posixpath.normpath(workspace):
            raise UsageError(f"folder {folder!r}: lies in the workspace {workspace}: name one outside it")
        self._wire = Wire(address, own, deadlines)
        self._workspace = posixpath.normpath(workspace)
        self._ground = Ground(self._wire, self._workspace, folder)
        self._helper_env = dict(helper_env)
        self._stub = process_pb2_grpc.ProcessServiceStub(self._wire.channel)
        self._space: HelperSpace | None = None

    async def info(self) -> SpaceInfo:
        """Who is there, as far as it can be told; the instance is empty where no driver has been yet.

        Raises HaltError MissingCapability (permanent), SpaceUnreachable.
        """
        found, identity = await self._ground.look()
        return SpaceInfo(found.hostname, identity, 0, Floor(), self._workspace, 0)

    async def advance(self, info: SpaceInfo) -> HelperSpace:
        """Fence every older driver out. Raises StaleEpochError (a newer one owns the Space), HaltError SpaceChanged,
        SpaceBusy (another driver of the same epoch), MissingCapability, HelperRefused, SpaceUnreachable."""
        own = self._wire.own
        request = process.AdvanceEpochRequest(epoch=own.epoch)
        answer = await self._wire.retried(
            lambda metadata: self._stub.AdvanceEpoch(request, metadata=metadata, timeout=self._wire.long_call_seconds)
        )
        try:
            await self._ground.settle()
            _, identity = await self._ground.look()
            if info.identity.boot != identity.boot or info.identity.instance not in ("", identity.instance):
                raise _changed()
            self._space = HelperSpace(
                self._wire, self._ground, self._workspace, identity, answer.killed, self._helper_env
            )
            await self._space.start()
        except SpaceRefused as refused:
            text = f"the Space helper can't be put there: {refused.refusal.message}; name a folder that the daemon may write"
            raise HaltError("HelperRefused", text) from refused
        return self._space

    async def close(self) -> None:
        """Commands run on; the helper ends."""
        if self._space is not None:
            await self._space.close()
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class HelperSpace:
    """A Space in which nothing older than this drive acts any more, as far as its daemon kills what it started."""

    def __init__(
        self,
        wire: Wire,
        ground: Ground,
        workspace: str,
        identity: Identity,
        killed: int,
        helper_env: Mapping[str, str],
    ) -> None:
        self._ground = ground
        self.own = wire.own
        self.identity = identity
        self.root = workspace
        self.killed = killed  # commands that AdvanceEpoch ended
        self.shell: str | None = None
        self.commands = CuaCommands(wire, self.check_same)
        launch = HelperLaunch(workspace, identity.instance, helper_env)
        self._helper = Helper(wire, self.commands, launch, self._ready)
        self.files = HelperFiles(self._helper)
        self.workspace = HelperWorkspace(self._helper)

    async def start(self) -> None:
        await self._helper.start()

    async def check_same(self) -> None:
        """Raise HaltError SpaceChanged: another Space answers by now (rule 12). This daemon compares nothing itself."""
        _, identity = await self._ground.look()
        if identity != self.identity:
            raise _changed()

    async def close(self) -> None:
        await self._helper.close()

    async def _ready(self) -> tuple[str, str]:
        await self.check_same()
        return await self._ground.folder(), await self._ground.upload(build())


async def client_for(
    address: Address, own: Floor, *, workspace: str, deadlines: Deadlines = DEADLINES
) -> SpaceClient | CuaSpaceClient:
    """The client for whichever daemon answers. `workspace` is for one that has no idea of its own. Close it when done."""
    wire = Wire(address, own, deadlines)
    try:
        stub = system_pb2_grpc.SystemServiceStub(wire.channel)
        found = await wire.retried(
            lambda metadata: stub.GetCapabilities(
                system.GetCapabilitiesRequest(), metadata=metadata, timeout=wire.call_seconds
            )
        )
    finally:
        await wire.close()
    if serves_extension(found):
        return SpaceClient(address, own, deadlines=deadlines)
    return CuaSpaceClient(address, own, workspace=workspace, deadlines=deadlines)


def _changed() -> HaltError:
    return HaltError("SpaceChanged", "another Space answers than this drive began with; the next drive looks anew")

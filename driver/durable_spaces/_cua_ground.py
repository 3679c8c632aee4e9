"""What stands in for a Space's identity where its daemon tells none, and where the Space helper is kept there.

Identity: instance is hostname and a marker file that the first driver writes outside the workspace; boot is hostname and the
time of the boot. What this can't tell apart is said in docs/space-differences.md.
"""

from __future__ import annotations

import hashlib
import posixpath
import secrets
from collections.abc import AsyncIterator

from durable_base.errors import HaltError
from durable_protocol.cua.env.v1 import filesystem_pb2 as filesystem
from durable_protocol.cua.env.v1 import filesystem_pb2_grpc, system_pb2_grpc
from durable_protocol.cua.env.v1 import system_pb2 as system
from durable_space.helper.archive import Archive
from durable_spaces._capabilities import check_daemon
from durable_spaces._channel import Metadata, Wire
from durable_spaces._errors import SpaceRefused
from durable_spaces.document import Identity

_CHUNK_BYTES = 256 * 1024
_NAME = ".durable-space"
_SHARED = "/var/tmp"  # where the home folder is the workspace, or above which it lies
_MISSING = frozenset({"ERROR_REASON_PATH_NOT_FOUND", "ERROR_REASON_NOT_A_DIRECTORY"})


class Ground:
    def __init__(self, wire: Wire, workspace: str, folder: str | None) -> None:
        self._wire = wire
        self._workspace = workspace
        self._folder = folder
        self._system = system_pb2_grpc.SystemServiceStub(wire.channel)
        self._files = filesystem_pb2_grpc.FilesystemServiceStub(wire.channel)

    async def look(self) -> tuple[system.GetCapabilitiesResponse, Identity]:
        """Who is there. The instance is empty where no driver has been yet. Raises HaltError MissingCapability."""
        found = await self._wire.retried(
            lambda metadata: self._system.GetCapabilities(
                system.GetCapabilitiesRequest(), metadata=metadata, timeout=self._wire.call_seconds
            )
        )
        check_daemon(found)
        marker = await self._marker()
        instance = _hash(found.hostname, marker) if marker else ""
        return found, Identity(instance, _hash(found.hostname, str(found.boot_time.seconds)))

    async def settle(self) -> None:
        """Make the folder, and the marker where there is none. Two that do this at once make one."""
        folder = await self.folder()
        request = filesystem.MakeDirRequest(path=folder, parents=True, mode=0o700)
        await self._wire.retried(
            lambda metadata: self._files.MakeDir(request, metadata=metadata, timeout=self._wire.call_seconds)
        )
        await self._check_private(folder)
        marker = await self._read(posixpath.join(folder, "marker"))
        if marker is not None and _is_marker(marker):
            return
        mode = filesystem.WRITE_MODE_CREATE_NEW if marker is None else filesystem.WRITE_MODE_OVERWRITE
        try:
            await self._write(posixpath.join(folder, "marker"), secrets.token_hex(16).encode("ascii"), mode)
        except SpaceRefused as refused:
            if refused.refusal.reason != "ERROR_REASON_PATH_EXISTS":
                raise

    async def upload(self, archive: Archive) -> str:
        """Its path. Sent where it is not there as it is."""
        path = posixpath.join(await self.folder(), archive.name)
        if await self._read(path) != archive.data:
            await self._write(path, archive.data, filesystem.WRITE_MODE_OVERWRITE)
        return path

    async def folder(self) -> str:
        """Absolute, outside the workspace."""
        if self._folder is None:
            try:
                entry = (await self._stat("~")).entry
            except SpaceRefused as refused:
                text = f"the home folder of its daemon's user can't be looked at ({refused.refusal.message}): name a folder"
                raise HaltError("HelperRefused", text, permanent=True) from refused
            home = posixpath.join(entry.path, _NAME)
            if not _inside(home, self._workspace):
                self._folder = home
            elif not _inside(_SHARED, self._workspace):
                self._folder = posixpath.join(_SHARED, f"{_NAME}-{entry.owner}")
            else:
                raise HaltError(
                    "MissingCapability",
                    f"the workspace {self._workspace} leaves no room for the Space helper: name a smaller folder",
                    permanent=True,
                )
        return self._folder

    async def _check_private(self, folder: str) -> None:
        """What lies there is run: nobody else may have made it, or may change it."""
        probe = posixpath.join(folder, f"probe-{secrets.token_hex(8)}")
        mine = await self._write(probe, b"", filesystem.WRITE_MODE_OVERWRITE)
        request = filesystem.RemoveRequest(path=probe, missing_ok=True)
        await self._wire.retried(
            lambda metadata: self._files.Remove(request, metadata=metadata, timeout=self._wire.call_seconds)
        )
        own = (await self._stat(folder, follow=False)).entry
        if own.type != filesystem.FILE_TYPE_DIRECTORY or own.owner != mine.entry.owner or own.mode & 0o022:
            raise HaltError(
                "HelperRefused",
                f"{folder} in the Space is not a folder that {mine.entry.owner} alone may write: remove it, or name another",
                permanent=True,
            )

    async def _marker(self) -> str:
        """Empty where there is none, or one that was cut off: that Space counts as another one."""
        marker = await self._read(posixpath.join(await self.folder(), "marker"))
        return marker.decode("ascii") if marker is not None and _is_marker(marker) else ""

    async def _stat(self, path: str, *, follow: bool = True) -> filesystem.StatResponse:
        request = filesystem.StatRequest(path=path, no_follow_symlinks=not follow)
        return await self._wire.retried(
            lambda metadata: self._files.Stat(request, metadata=metadata, timeout=self._wire.call_seconds)
        )

    async def _read(self, path: str) -> bytes | None:
        """None: there is no such file."""
        request = filesystem.ReadFileRequest(path=path)

        async def attempt(metadata: Metadata) -> bytes:
            data = bytearray()
            ended = False
            stream = self._files.ReadFile(request, metadata=metadata, timeout=self._wire.call_seconds)
            async for message in stream:
                data += message.chunk.data
                ended = ended or message.HasField("end")
            return bytes(data) if ended else b""

        try:
            return await self._wire.retried(attempt)
        except SpaceRefused as refused:
            if refused.refusal.reason in _MISSING:
                return None
            raise

    async def _write(
        self, path: str, data: bytes, mode: filesystem.WriteMode.ValueType
    ) -> filesystem.WriteFileResponse:
        header = filesystem.WriteFileHeader(
            path=path, mode=mode, permissions=0o600, expected_sha256=hashlib.sha256(data).hexdigest()
        )

        async def requests() -> AsyncIterator[filesystem.WriteFileRequest]:
            yield filesystem.WriteFileRequest(header=header)
            for at in range(0, len(data), _CHUNK_BYTES):
                yield filesystem.WriteFileRequest(data=data[at : at + _CHUNK_BYTES])

        async def attempt(metadata: Metadata) -> filesystem.WriteFileResponse:
            return await self._files.WriteFile(requests(), metadata=metadata, timeout=self._wire.call_seconds)

        return await self._wire.retried(attempt)


def _is_marker(data: bytes) -> bool:
    return len(data) == 32 and not data.strip(b"0123456789abcdef")


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _inside(path: str, folder: str) -> bool:
    return posixpath.commonpath([path, folder]) == folder

"""The workspace of a Space: its path table, the bytes of its files, and making it equal to another table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import grpc

from durable_protocol.durable.space.v1 import workspace_pb2 as workspace
from durable_protocol.durable.space.v1 import workspace_pb2_grpc
from durable_spaces import image
from durable_spaces._channel import Metadata, Wire
from durable_spaces._errors import SpaceRefused
from durable_spaces.image import DirNode, FileNode, LinkNode, Node
from durable_spaces.limits import Limits

_PIECE_BYTES = 256 * 1024


class WorkspaceTooLarge(Exception):
    """More files or bytes than the limits allow; `files` and `bytes` as counted when the scan stopped. Nothing was read."""

    def __init__(self, message: str, files: str = "", bytes: str = "") -> None:
        super().__init__(message)
        self.files = files
        self.bytes = bytes


class UntrackedNames(Exception):
    """Names or kinds of file that no table can hold; the message lists them. `names`: those that it spells unambiguously."""

    def __init__(self, message: str, names: tuple[bytes, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class BlobsChanged(Exception):
    """Files changed between the scan and the reading of their bytes: something still writes there."""


class Workspace:
    """The folder as a table of paths (bytes, relative to it): scanned, its files' bytes read by hash, made equal to another."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stub = workspace_pb2_grpc.WorkspaceServiceStub(wire.channel)

    async def scan(self, limits: Limits, *, no_cache: bool = False, unlimited: bool = False) -> dict[bytes, Node]:
        """The table as it is now. Raises WorkspaceTooLarge, UntrackedNames."""
        request = workspace.ScanRequest(exclude=limits.exclude, no_cache=no_cache)
        if not unlimited:
            request.max_files, request.max_bytes = limits.max_files, limits.max_bytes

        async def attempt(metadata: Metadata) -> dict[bytes, Node]:
            table: dict[bytes, Node] = {}
            ended = False
            async for message in self._stub.Scan(request, metadata=metadata, timeout=self._wire.long_call_seconds):
                table.update((entry.path, _node(entry)) for entry in message.table.entries)
                ended = ended or message.HasField("end")
            if not ended:
                raise RuntimeError("a scan ended without its end: the Space breaks its protocol")
            return table

        try:
            return await self._wire.retried(attempt)
        except SpaceRefused as refused:
            raise scan_refused(refused) from refused

    async def read_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """The bytes by hash, verified here too. Raises BlobsChanged where a file is no longer what the scan saw."""
        if not hashes:
            return {}
        request = workspace.ReadBlobsRequest(sha256=[bytes.fromhex(sha256) for sha256 in hashes])

        async def attempt(metadata: Metadata) -> dict[str, bytes]:
            blobs: dict[str, bytearray] = {}
            async for piece in self._stub.ReadBlobs(request, metadata=metadata, timeout=self._wire.long_call_seconds):
                blobs.setdefault(piece.sha256.hex(), bytearray()).extend(piece.data)
            return {sha256: bytes(data) for sha256, data in blobs.items()}

        try:
            blobs = await self._wire.retried(attempt)
        except SpaceRefused as refused:
            if refused.refusal.condition == "BlobChanged" or refused.refusal.code is grpc.StatusCode.NOT_FOUND:
                raise BlobsChanged from refused
            raise
        if any(sha256 not in blobs or image.blob_hash(blobs[sha256]) != sha256 for sha256 in hashes):
            raise BlobsChanged
        return blobs

    async def apply(self, plan: image.ApplyPlan, bytes_of: Callable[[str], bytes]) -> None:
        """Make the planned paths so. Repeated where the connection breaks: the plan is the same and so is its end."""
        header = workspace.ApplyRequest(
            plan=workspace.ApplyPlan(
                put=[_entry(path, node) for path, node in plan.put.items()],
                remove=plan.remove,
                have=[bytes.fromhex(sha256) for sha256 in plan.have],
            )
        )

        async def requests() -> AsyncIterator[workspace.ApplyRequest]:
            yield header
            for sha256 in plan.send:
                for piece in _pieces(sha256, bytes_of(sha256)):
                    yield workspace.ApplyRequest(piece=piece)

        async def attempt(metadata: Metadata) -> None:
            await self._stub.Apply(requests(), metadata=metadata, timeout=self._wire.long_call_seconds)

        await self._wire.retried(attempt)


def scan_refused(refused: SpaceRefused) -> Exception:
    match refused.refusal.condition:
        case "WorkspaceTooLarge":
            counted = refused.refusal.metadata
            return WorkspaceTooLarge(refused.refusal.message, counted.get("files", ""), counted.get("bytes", ""))
        case "UntrackedNames":
            listed = refused.refusal.metadata.get("paths", "").split("; ")
            names = tuple(name.encode("utf-8") for name in listed if name and "\\" not in name)
            return UntrackedNames(_shown(refused, listed), names)
        case _:
            return refused


def _shown(refused: SpaceRefused, listed: Sequence[str]) -> str:
    """How many, and the first of them by name."""
    count = refused.refusal.metadata.get("count", "some")
    return f"{count} special files, or names with a backslash or a line break: {', '.join(filter(None, listed))}"


def _node(entry: workspace.PathEntry) -> Node:
    match entry.kind:
        case workspace.PATH_KIND_FILE:
            return FileNode(entry.mode, entry.mtime_ns, entry.size, entry.sha256.hex())
        case workspace.PATH_KIND_DIRECTORY:
            return DirNode(entry.mode, entry.mtime_ns)
        case workspace.PATH_KIND_SYMLINK:
            return LinkNode(entry.mtime_ns, entry.target)
        case _:
            raise RuntimeError("a scan names an entry of no known kind: the Space breaks its protocol")


def _entry(path: bytes, node: Node) -> workspace.PathEntry:
    match node:
        case FileNode():
            return workspace.PathEntry(
                path=path,
                kind=workspace.PATH_KIND_FILE,
                mode=node.mode,
                mtime_ns=node.mtime_ns,
                size=node.size,
                sha256=bytes.fromhex(node.sha256),
            )
        case DirNode():
            return workspace.PathEntry(
                path=path, kind=workspace.PATH_KIND_DIRECTORY, mode=node.mode, mtime_ns=node.mtime_ns
            )
        case LinkNode():
            return workspace.PathEntry(
                path=path, kind=workspace.PATH_KIND_SYMLINK, mtime_ns=node.mtime_ns, target=node.target
            )


def _pieces(sha256: str, data: bytes) -> Iterator[workspace.BlobPiece]:
    for at in range(0, max(len(data), 1), _PIECE_BYTES):
        yield workspace.BlobPiece(
            sha256=bytes.fromhex(sha256), data=data[at : at + _PIECE_BYTES], last=at + _PIECE_BYTES >= len(data)
        )

"""The workspace of a Space through the Space helper: what `_workspace` does over `durable.space.v1`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import grpc

from durable_space.helper import tables
from durable_space.workspace.entries import Entry, Kind
from durable_spaces import image
from durable_spaces._errors import SpaceRefused
from durable_spaces._helper import Helper
from durable_spaces._workspace import BlobsChanged, scan_refused
from durable_spaces.image import DirNode, FileNode, LinkNode, Node
from durable_spaces.limits import Limits


@dataclass(frozen=True, slots=True)
class WorkspaceProcess:
    """A process of the Space that works in the workspace, whoever started it."""

    pid: int
    cwd_inside: bool
    file_open_inside: bool


class HelperWorkspace:
    def __init__(self, helper: Helper) -> None:
        self._helper = helper

    async def scan(self, limits: Limits, *, no_cache: bool = False, unlimited: bool = False) -> dict[bytes, Node]:
        """The table as it is now. Raises WorkspaceTooLarge, UntrackedNames."""
        most = {} if unlimited else {"max_files": limits.max_files, "max_bytes": limits.max_bytes}
        exclude = [_text(path) for path in limits.exclude]
        try:
            _, data = await self._helper.again("scan", exclude=exclude, no_cache=no_cache, **most)
        except SpaceRefused as refused:
            raise scan_refused(refused) from refused
        entries = (tables.unpack_entry(json.loads(line)) for line in data.splitlines())
        return {entry.path: _node(entry) for entry in entries}

    async def read_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """The bytes by hash, verified here too. Raises BlobsChanged where a file is no longer what the scan saw."""
        if not hashes:
            return {}
        try:
            _, data = await self._helper.again("blobs", lambda: tables.lines([list(hashes)]))
        except SpaceRefused as refused:
            if refused.refusal.condition == "BlobChanged" or refused.refusal.code is grpc.StatusCode.NOT_FOUND:
                raise BlobsChanged from refused
            raise
        blobs: dict[str, bytearray] = {}
        for sha256, piece in _blob_pieces(data):
            blobs.setdefault(sha256, bytearray()).extend(piece)
        if any(sha256 not in blobs or image.blob_hash(bytes(blobs[sha256])) != sha256 for sha256 in hashes):
            raise BlobsChanged
        return {sha256: bytes(blob) for sha256, blob in blobs.items()}

    async def apply(self, plan: image.ApplyPlan, bytes_of: Callable[[str], bytes]) -> None:
        """Make the planned paths so. Repeated where the helper is lost: the plan is the same and so is its end."""
        header = json.dumps(
            {
                "put": [tables.pack_entry(_entry(path, node)) for path, node in plan.put.items()],
                "remove": [_text(path) for path in plan.remove],
                "have": list(plan.have),
            }
        ).encode("ascii")

        def body() -> Iterator[bytes]:
            yield header
            for sha256 in plan.send:
                yield from _sent(bytes.fromhex(sha256), bytes_of(sha256))

        await self._helper.again("apply", body, plan_bytes=len(header))

    async def processes(self) -> list[WorkspaceProcess]:
        """Who has it as working directory or a file open there, but for the helper and the processes above it.

        Asked before any command of one's own, these are strangers, or what outlived an AdvanceEpoch that can prove nothing.
        """
        _, data = await self._helper.again("processes")
        return [WorkspaceProcess(*json.loads(line)) for line in data.splitlines()]


def _sent(sha256: bytes, data: bytes) -> Iterator[bytes]:
    size = tables.PIECE_BYTES
    for at in range(0, max(len(data), 1), size):
        yield tables.pack_blob_piece(sha256, data[at : at + size], last=at + size >= len(data))


def _blob_pieces(data: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(data):
        sha256, _, size = tables.BLOB_HEAD.unpack_from(data, at)
        at += tables.BLOB_HEAD.size
        yield sha256.hex(), data[at : at + size]
        at += size


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _node(entry: Entry) -> Node:
    match entry.kind:
        case Kind.FILE:
            return FileNode(entry.mode, entry.mtime_ns, entry.size, entry.sha256.hex())
        case Kind.DIRECTORY:
            return DirNode(entry.mode, entry.mtime_ns)
        case Kind.SYMLINK:
            return LinkNode(entry.mtime_ns, entry.target)


def _entry(path: bytes, node: Node) -> Entry:
    match node:
        case FileNode():
            return Entry(path, Kind.FILE, node.mode, node.mtime_ns, node.size, bytes.fromhex(node.sha256))
        case DirNode():
            return Entry(path, Kind.DIRECTORY, node.mode, node.mtime_ns)
        case LinkNode():
            return Entry(path, Kind.SYMLINK, 0, node.mtime_ns, target=node.target)

"""cua.env.v1.FilesystemService."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator

from durable_protocol.cua.env.v1 import filesystem_pb2 as cua
from durable_protocol.cua.env.v1.filesystem_pb2_grpc import FilesystemServiceServicer
from durable_space import paths
from durable_space.files import Files, Info, WriteMode, errors_name, info_of, open_regular, sha256_of
from durable_space.gate import Caller
from durable_space.refusal import Code, Reason, Refused, invalid, unsupported
from durable_space.rpc.caller import read_caller, text_metadata
from durable_space.rpc.guard import Context
from durable_space.rpc.messages import timestamp
from durable_space.runtime import Runtime

CHUNK_BYTES = 256 << 10
PAGE_ENTRIES_MAX = 10_000


class FilesystemService(FilesystemServiceServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._files = Files(runtime.gate, runtime.staging, runtime.config.data / "staging")

    async def Stat(self, request: cua.StatRequest, context: Context) -> cua.StatResponse:
        self._reader(context)
        info = await self._runtime.run(
            self._files.info, self._path(request.path), follow=not request.no_follow_symlinks
        )
        return cua.StatResponse(entry=entry(info))

    async def ListDir(self, request: cua.ListDirRequest, context: Context) -> cua.ListDirResponse:
        self._reader(context)
        if request.page_token and not request.page_token.isdigit():
            raise invalid("page_token is not one that this daemon gave")
        found = await self._runtime.run_long(
            self._files.list, self._path(request.path), request.depth or 1, hidden=request.include_hidden
        )
        start = int(request.page_token or 0)
        end = start + min(request.page_size or PAGE_ENTRIES_MAX, PAGE_ENTRIES_MAX)
        return cua.ListDirResponse(
            entries=[entry(info) for info in found[start:end]], next_page_token=str(end) if end < len(found) else ""
        )

    async def MakeDir(self, request: cua.MakeDirRequest, context: Context) -> cua.MakeDirResponse:
        caller = await self._changer(context)
        info, created = await self._runtime.run(
            self._files.make_folder, caller, self._path(request.path), request.mode, parents=request.parents
        )
        return cua.MakeDirResponse(entry=entry(info), created=created)

    async def Move(self, request: cua.MoveRequest, context: Context) -> cua.MoveResponse:
        caller = await self._changer(context)
        info = await self._runtime.run(
            self._files.move,
            caller,
            self._path(request.source),
            self._path(request.destination),
            overwrite=request.overwrite,
            parents=request.create_parents,
        )
        return cua.MoveResponse(entry=entry(info))

    async def Remove(self, request: cua.RemoveRequest, context: Context) -> cua.RemoveResponse:
        caller = await self._changer(context)
        await self._runtime.run_long(
            self._files.remove,
            caller,
            self._path(request.path),
            recursive=request.recursive,
            missing_ok=request.missing_ok,
        )
        return cua.RemoveResponse()

    async def ReadFile(self, request: cua.ReadFileRequest, context: Context) -> AsyncIterator[cua.ReadFileResponse]:
        self._reader(context)
        path = self._path(request.path)

        def open_file() -> tuple[int, Info]:
            with errors_name(path):
                fd = open_regular(path, os.O_RDONLY)
                return fd, info_of(path, os.fstat(fd))

        fd, info = await self._runtime.run(open_file)
        try:
            yield cua.ReadFileResponse(entry=entry(info))
            chunk = min(request.chunk_size or CHUNK_BYTES, self._runtime.config.limits.message_bytes // 4)
            digest = hashlib.sha256()
            offset, left = request.offset, request.length or None
            while left is None or left > 0:
                data = await self._runtime.run(os.pread, fd, chunk if left is None else min(chunk, left), offset)
                if not data:
                    break
                if request.compute_sha256:
                    digest.update(data)
                yield cua.ReadFileResponse(chunk=cua.FileChunk(offset=offset, data=data))
                offset += len(data)
                left = None if left is None else left - len(data)
            yield cua.ReadFileResponse(
                end=cua.ReadFileEnd(
                    bytes_read=offset - request.offset, sha256=digest.hexdigest() if request.compute_sha256 else ""
                )
            )
        finally:
            os.close(fd)

    async def WriteFile(self, request: AsyncIterator[cua.WriteFileRequest], context: Context) -> cua.WriteFileResponse:
        caller = await self._changer(context)
        header: cua.WriteFileHeader | None = None
        with self._files.spool() as spool:
            async for message in request:
                if message.HasField("header"):
                    if header is not None:
                        raise invalid("a second header in one WriteFile")
                    header = message.header
                elif header is None:
                    raise invalid("the header must come first")
                else:
                    await self._runtime.run(spool.write, message.data)
            if header is None:
                raise invalid("the header must come first")
            path = self._path(header.path)
            sha256 = await self._runtime.run_long(sha256_of, spool)
            check_content(header, path, spool.tell(), sha256)
            info = await self._runtime.run_long(
                self._files.write,
                caller,
                path,
                spool,
                WriteMode(header.mode or cua.WRITE_MODE_OVERWRITE),
                header.permissions & 0o7777,
                parents=header.create_parents,
            )
        return cua.WriteFileResponse(entry=entry(info), sha256=sha256)

    async def BeginUpload(self, request: cua.BeginUploadRequest, context: Context) -> cua.BeginUploadResponse:
        raise no_uploads()

    async def UploadChunk(self, request: cua.UploadChunkRequest, context: Context) -> cua.UploadChunkResponse:
        raise no_uploads()

    async def CommitUpload(self, request: cua.CommitUploadRequest, context: Context) -> cua.CommitUploadResponse:
        raise no_uploads()

    async def AbortUpload(self, request: cua.AbortUploadRequest, context: Context) -> cua.AbortUploadResponse:
        raise no_uploads()

    def _path(self, text: str) -> str:
        return paths.absolute(text, self._runtime.workspace_root)

    def _reader(self, context: Context) -> None:
        self._runtime.gate.check_reading(read_caller(text_metadata(context.invocation_metadata())))

    async def _changer(self, context: Context) -> Caller:
        caller = read_caller(text_metadata(context.invocation_metadata()))
        await self._runtime.admit(caller)
        return caller


def check_content(header: cua.WriteFileHeader, path: str, size: int, sha256: str) -> None:
    """Raise Refused: what arrived is not what the header says."""
    problem = ""
    if header.expected_size and header.expected_size != size:
        problem = f"expected {header.expected_size} bytes, received {size}"
    elif header.expected_sha256 and header.expected_sha256.lower() != sha256:
        problem = f"sha256 mismatch: expected {header.expected_sha256}, got {sha256}"
    if problem:
        raise Refused(Code.FAILED_PRECONDITION, Reason.CHECKSUM_MISMATCH, problem, metadata={"path": path})


def no_uploads() -> Refused:
    return unsupported("files.multipart", "uploads in parts are not served: send a WriteFile stream")


def entry(info: Info) -> cua.EntryInfo:
    return cua.EntryInfo(
        name=text(info.name),
        path=text(info.path),
        type=cua.FileType.ValueType(info.type.value),
        size=info.size,
        mode=info.mode,
        owner=info.owner,
        group=info.group,
        modified_at=timestamp(info.mtime_ns),
        symlink_target=text(info.target),
    )


def text(name: str) -> str:
    """A name that is no UTF-8 is shown with escapes: a message's string can't hold it (Scan keeps it exactly)."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

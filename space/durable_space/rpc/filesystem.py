"""cua.env.v1.FilesystemService."""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import AsyncIterator

from durable_base.handles import open_regular
from durable_protocol.cua.env.v1 import filesystem_pb2 as cua
from durable_protocol.cua.env.v1.filesystem_pb2_grpc import FilesystemServiceServicer
from durable_space import paths
from durable_space.files import FILE_OFFSET_MAX, Files, Info, WriteMode, errors_name, info_of, sha256_of
from durable_space.refusal import Code, Reason, Refused, invalid, unsupported
from durable_space.rpc.admission import admit_changer, admit_reader
from durable_space.rpc.guard import Context
from durable_space.rpc.messages import timestamp
from durable_space.rpc.system import chunk_bytes_max
from durable_space.rpc.uploads import UploadCalls, check_content
from durable_space.runtime import Runtime
from durable_space.uploads import Target

CHUNK_BYTES = 256 << 10
PAGE_ENTRIES_MAX = 10_000


class FilesystemService(FilesystemServiceServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._files = Files(runtime.gate, runtime.staging, runtime.config.data / "staging")
        self._chunk_bytes_max = chunk_bytes_max(runtime.config.limits.message_bytes)
        self._uploads = UploadCalls(runtime, self._files, self._chunk_bytes_max)

    async def Stat(self, request: cua.StatRequest, context: Context) -> cua.StatResponse:
        admit_reader(self._runtime, context)
        check_served(request.run_as, request.xattr_namespace)
        info = await self._runtime.run(
            self._files.info, self._path(request.path), follow=not request.no_follow_symlinks
        )
        return cua.StatResponse(entry=entry(info))

    async def ListDir(self, request: cua.ListDirRequest, context: Context) -> cua.ListDirResponse:
        admit_reader(self._runtime, context)
        check_served(request.run_as, request.xattr_namespace)
        start = read_page_token(request.page_token)
        count = min(request.page_size or PAGE_ENTRIES_MAX, PAGE_ENTRIES_MAX)
        found, more = await self._runtime.run_long(
            self._files.list,
            self._path(request.path),
            request.depth or 1,
            hidden=request.include_hidden,
            start=start,
            count=count,
        )
        return cua.ListDirResponse(
            entries=[entry(info) for info in found], next_page_token=str(start + count) if more else ""
        )

    async def MakeDir(self, request: cua.MakeDirRequest, context: Context) -> cua.MakeDirResponse:
        caller = await admit_changer(self._runtime, context)
        check_served(request.run_as)
        info, created = await self._runtime.run(
            self._files.make_folder, caller, self._path(request.path), request.mode, parents=request.parents
        )
        return cua.MakeDirResponse(entry=entry(info), created=created)

    async def Move(self, request: cua.MoveRequest, context: Context) -> cua.MoveResponse:
        caller = await admit_changer(self._runtime, context)
        check_served(request.run_as)
        info = await self._runtime.run(
            self._files.move,
            caller,
            self._removable(request.source),
            self._path(request.destination),
            overwrite=request.overwrite,
            parents=request.create_parents,
        )
        return cua.MoveResponse(entry=entry(info))

    async def Remove(self, request: cua.RemoveRequest, context: Context) -> cua.RemoveResponse:
        caller = await admit_changer(self._runtime, context)
        check_served(request.run_as)
        await self._runtime.run_long(
            self._files.remove,
            caller,
            self._removable(request.path),
            recursive=request.recursive,
            missing_ok=request.missing_ok,
        )
        return cua.RemoveResponse()

    async def ReadFile(self, request: cua.ReadFileRequest, context: Context) -> AsyncIterator[cua.ReadFileResponse]:
        admit_reader(self._runtime, context)
        check_served(request.run_as, request.xattr_namespace, bulk_slot=request.bulk_slot)
        path = self._path(request.path)
        if request.offset + request.length > FILE_OFFSET_MAX:
            raise invalid("offset and length reach beyond what a file can have", path=path)

        def open_file() -> tuple[int, Info]:
            with errors_name(path):
                fd = open_regular(path, os.O_RDONLY)
                return fd, info_of(path, os.fstat(fd))

        def read_at(fd: int, size: int, offset: int) -> bytes:
            with errors_name(path):
                return os.pread(fd, size, offset)

        fd, info = await self._runtime.run(open_file)
        try:
            yield cua.ReadFileResponse(entry=entry(info))
            chunk = min(request.chunk_size or CHUNK_BYTES, self._chunk_bytes_max)
            digest = hashlib.sha256()
            offset, left = request.offset, request.length or None
            while left is None or left > 0:
                data = await self._runtime.run(read_at, fd, chunk if left is None else min(chunk, left), offset)
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
        caller = await admit_changer(self._runtime, context)
        header: cua.WriteFileHeader | None = None
        with self._files.spool() as spool:
            async for message in request:
                if message.HasField("header"):
                    if header is not None:
                        raise invalid("a second header in one WriteFile")
                    header = message.header
                    path, mode = self._read_header(header)
                elif header is None:
                    raise invalid("the header must come first")
                else:
                    await self._runtime.run(spool.write, message.data)
            if header is None:
                raise invalid("the header must come first")
            sha256 = await self._runtime.run_long(sha256_of, spool)
            check_content(path, header.expected_size, header.expected_sha256, spool.tell(), sha256)
            info = await self._runtime.run_long(
                self._files.write,
                caller,
                path,
                spool,
                mode,
                header.permissions & 0o7777,
                parents=header.create_parents,
            )
        return cua.WriteFileResponse(entry=entry(info), sha256=sha256)

    async def BeginUpload(self, request: cua.BeginUploadRequest, context: Context) -> cua.BeginUploadResponse:
        caller = await admit_changer(self._runtime, context)
        if not request.HasField("header"):
            raise invalid("the header is required")
        header = request.header
        path, mode = self._read_header(header)
        target = Target(
            path,
            mode.value,
            header.permissions & 0o7777,
            header.create_parents,
            header.expected_size,
            header.expected_sha256,
        )
        seconds = max(0.0, request.ttl.seconds + request.ttl.nanos / 1e9)
        return await self._uploads.begin(caller, request.upload_id, target, seconds)

    async def UploadChunk(self, request: cua.UploadChunkRequest, context: Context) -> cua.UploadChunkResponse:
        caller = await admit_changer(self._runtime, context)
        check_served(bulk_slot=request.bulk_slot)
        return await self._uploads.add(caller, request)

    async def CommitUpload(self, request: cua.CommitUploadRequest, context: Context) -> cua.CommitUploadResponse:
        info, sha256 = await self._uploads.commit(await admit_changer(self._runtime, context), request)
        return cua.CommitUploadResponse(entry=entry(info), sha256=sha256)

    async def AbortUpload(self, request: cua.AbortUploadRequest, context: Context) -> cua.AbortUploadResponse:
        await self._uploads.abort(await admit_changer(self._runtime, context), request.upload_id)
        return cua.AbortUploadResponse()

    def _read_header(self, header: cua.WriteFileHeader) -> tuple[str, WriteMode]:
        """(absolute path, mode). Raise Refused."""
        check_served(header.run_as, header.xattr_namespace, attributes=bool(header.metadata))
        if header.mode not in cua.WriteMode.values():
            raise invalid("mode is not one of cua.env.v1.WriteMode")
        return self._path(header.path), WriteMode(header.mode or cua.WRITE_MODE_OVERWRITE)

    def _path(self, text: str) -> str:
        return paths.absolute(text, self._runtime.workspace_root)

    def _removable(self, text: str) -> str:
        return paths.not_the_root(self._path(text), self._runtime.workspace_root)


def check_served(run_as: str = "", namespace: str = "", *, attributes: bool = False, bulk_slot: int = 0) -> None:
    """Raise Refused for what would otherwise be silently left out."""
    if run_as and run_as not in (str(os.geteuid()), own_user()):
        raise unsupported("fs.run_as", "files are touched as the daemon's own user: leave run_as empty")
    if namespace or attributes:
        raise unsupported("fs.xattr", "extended attributes are not served: leave xattr_namespace and metadata empty")
    if bulk_slot:
        raise Refused(
            Code.FAILED_PRECONDITION, Reason.FEATURE_UNSUPPORTED, "there is no bulk lane: send the bytes in the message"
        )


def own_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


def read_page_token(token: str) -> int:
    if not token:
        return 0
    if not (token.isascii() and token.isdigit() and len(token) < 16):
        raise invalid("page_token is not one that this daemon gave")
    return int(token)


def entry(info: Info) -> cua.EntryInfo:
    return cua.EntryInfo(
        name=paths.shown(info.name),
        path=paths.shown(info.path),
        type=cua.FileType.ValueType(info.type.value),
        size=info.size,
        mode=info.mode,
        owner=info.owner,
        group=info.group,
        modified_at=timestamp(info.mtime_ns),
        symlink_target=paths.shown(info.target),
    )

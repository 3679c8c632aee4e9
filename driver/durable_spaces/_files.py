"""Files of a Space, by absolute path.

What may be done twice is repeated over a broken connection; what may not ends the drive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

import grpc

from durable_base.errors import HaltError
from durable_harness.env import FileCode, FileError, FileInfo, FileKind, Line
from durable_harness.line_reader import BufferedLineReader
from durable_protocol.cua.env.v1 import filesystem_pb2 as filesystem
from durable_protocol.cua.env.v1 import filesystem_pb2_grpc
from durable_protocol.durable.space.v1 import files_pb2 as files
from durable_protocol.durable.space.v1 import files_pb2_grpc
from durable_spaces._channel import Metadata, Wire
from durable_spaces._errors import Refusal, SpaceRefused
from durable_spaces._opened import OpenedInSpace, SpaceBinaryReader, SpaceDirReader

T = TypeVar("T")

_CHUNK_BYTES = 256 * 1024

_BY_REASON: Mapping[str, FileCode] = {
    "ERROR_REASON_PATH_NOT_FOUND": "not_found",
    "ERROR_REASON_PERMISSION_DENIED": "permission_denied",
    "ERROR_REASON_NOT_A_DIRECTORY": "not_directory",
    "ERROR_REASON_IS_A_DIRECTORY": "is_directory",
    "ERROR_REASON_PATH_EXISTS": "invalid",
}
_BY_CODE: Mapping[grpc.StatusCode, FileCode] = {
    grpc.StatusCode.NOT_FOUND: "not_found",
    grpc.StatusCode.PERMISSION_DENIED: "permission_denied",
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.ALREADY_EXISTS: "invalid",
}
_KINDS: Mapping[int, FileKind] = {
    filesystem.FILE_TYPE_FILE: "file",
    filesystem.FILE_TYPE_DIRECTORY: "directory",
    filesystem.FILE_TYPE_SYMLINK: "symlink",
}


class Files:
    """Errors are FileError, with the absolute path; StaleEpochError and HaltError pass."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._call, self._long = wire.call_seconds, wire.long_call_seconds
        self._files = filesystem_pb2_grpc.FilesystemServiceStub(wire.channel)
        self._more = files_pb2_grpc.FileServiceStub(wire.channel)

    async def canonical(self, path: str) -> str:
        request = files.CanonicalRequest(path=path)
        answer = await self._again(path, lambda m: self._more.Canonical(request, metadata=m, timeout=self._call))
        return answer.path

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        request = filesystem.ReadFileRequest(path=path, offset=offset, length=length or 0)
        if length == 0:
            # On the wire 0 means all; nothing is read, and the path is still checked.
            await self.info(path, follow=True)
            return b""

        async def attempt(metadata: Metadata) -> bytes:
            data = bytearray()
            ended = False
            async for message in self._files.ReadFile(request, metadata=metadata, timeout=self._long):
                data += message.chunk.data
                ended = ended or message.HasField("end")
            if not ended:
                raise HaltError("SpaceUnreachable", "a file's bytes ended before their end; the next drive tries again")
            return bytes(data)

        return await self._again(path, attempt)

    async def read_lines(self, path: str, max_lines: int | None) -> list[Line]:
        request = files.ReadLinesRequest(path=path, max_lines=max_lines or 0)

        async def attempt(metadata: Metadata) -> list[Line]:
            lines: list[Line] = []
            async for message in self._more.ReadLines(request, metadata=metadata, timeout=self._long):
                lines.extend(Line(line.text.decode("utf-8", "replace"), line.terminated) for line in message.lines)
            return lines

        try:
            return await self._wire.retried(attempt)
        except SpaceRefused as refused:
            if refused.refusal.condition != "LineTooLong":
                raise file_error(refused.refusal, path) from refused
        return await self._lines_in_pieces(path, max_lines)

    async def _lines_in_pieces(self, path: str, max_lines: int | None) -> list[Line]:
        """Where a line fits into no answer of the Space."""
        found: list[Line] = []
        async with BufferedLineReader(await self.open_file(path, no_follow=False), path) as reader:
            while (max_lines is None or len(found) < max_lines) and (line := await reader.read_line()) is not None:
                found.append(line)
        return found

    async def open_file(self, path: str, *, no_follow: bool) -> SpaceBinaryReader:
        return SpaceBinaryReader(await self._open(files.OpenTarget(path=path, no_follow=no_follow)), file_info)

    async def open_folder(self, path: str) -> SpaceDirReader:
        return SpaceDirReader(await self._open(files.OpenTarget(path=path, directory=True)), file_info)

    async def _open(self, target: files.OpenTarget) -> OpenedInSpace:
        held = OpenedInSpace(self._wire, self._more, target, lambda refused, path: file_error(refused.refusal, path))
        try:
            await held.open()
        except BaseException:
            await held.close()
            raise
        return held

    async def write(self, path: str, data: bytes) -> None:
        """The whole file, or nothing of it."""
        await self._again(path, lambda m: self._write(path, data, filesystem.WRITE_MODE_OVERWRITE, m))

    async def append(self, path: str, data: bytes) -> None:
        await self._once(path, lambda m: self._write(path, data, filesystem.WRITE_MODE_APPEND, m))

    async def _write(self, path: str, data: bytes, mode: filesystem.WriteMode.ValueType, metadata: Metadata) -> None:
        async def requests() -> AsyncIterator[filesystem.WriteFileRequest]:
            yield filesystem.WriteFileRequest(
                header=filesystem.WriteFileHeader(path=path, mode=mode, create_parents=True)
            )
            for at in range(0, len(data), _CHUNK_BYTES):
                yield filesystem.WriteFileRequest(data=data[at : at + _CHUNK_BYTES])

        await self._files.WriteFile(requests(), metadata=metadata, timeout=self._long)

    async def truncate(self, path: str, size: int) -> None:
        request = files.TruncateRequest(path=path, size=size)
        await self._again(path, lambda m: self._more.Truncate(request, metadata=m, timeout=self._call))

    async def flush(self, path: str) -> None:
        request = files.FlushRequest(path=path)
        await self._again(path, lambda m: self._more.Flush(request, metadata=m, timeout=self._long))

    async def rename(self, source: str, target: str) -> None:
        request = filesystem.MoveRequest(source=source, destination=target, overwrite=True)
        await self._once(source, lambda m: self._files.Move(request, metadata=m, timeout=self._call))

    async def info(self, path: str, *, follow: bool = False) -> FileInfo:
        request = filesystem.StatRequest(path=path, no_follow_symlinks=not follow)
        answer = await self._again(path, lambda m: self._files.Stat(request, metadata=m, timeout=self._call))
        info = file_info(answer.entry)
        if info is None:
            raise FileError("invalid", path, "neither file, directory nor symlink")
        return info

    async def list_dir(self, path: str) -> list[FileInfo]:
        entries: list[FileInfo] = []
        token = ""
        while True:
            request = filesystem.ListDirRequest(path=path, depth=1, include_hidden=True, page_token=token)
            answer = await self._again(path, _listing(self._files, request, self._call))
            entries.extend(info for entry in answer.entries if (info := file_info(entry)) is not None)
            if not (token := answer.next_page_token):
                return entries

    async def create_dir(self, path: str, *, recursive: bool) -> None:
        request = filesystem.MakeDirRequest(path=path, parents=recursive)
        # Without parents a second attempt would be refused by the first one's folder.
        attempts = self._again if recursive else self._once
        answer = await attempts(path, lambda m: self._files.MakeDir(request, metadata=m, timeout=self._call))
        if not recursive and not answer.created:
            raise FileError("invalid", path, "is there already")

    async def remove(self, path: str, *, recursive: bool, force: bool) -> None:
        request = filesystem.RemoveRequest(path=path, recursive=recursive, missing_ok=force)
        attempts = self._again if force else self._once
        await attempts(path, lambda m: self._files.Remove(request, metadata=m, timeout=self._long))

    async def mode(self, path: str) -> int | None:
        """Permission bits of a regular file, symlinks followed; None where there is no such file."""
        request = filesystem.StatRequest(path=path)
        try:
            answer = await self._again(path, lambda m: self._files.Stat(request, metadata=m, timeout=self._call))
        except FileError:
            return None
        return answer.entry.mode if answer.entry.type == filesystem.FILE_TYPE_FILE else None

    async def make_temp(self, *, directory: bool, prefix: str, suffix: str = "") -> str:
        request = files.MakeTempRequest(directory=directory, prefix=prefix, suffix=suffix)
        answer = await self._again(prefix, lambda m: self._more.MakeTemp(request, metadata=m, timeout=self._call))
        return answer.path

    async def _again(self, path: str, call: Callable[[Metadata], Awaitable[T]]) -> T:
        try:
            return await self._wire.retried(call)
        except SpaceRefused as refused:
            raise file_error(refused.refusal, path) from refused

    async def _once(self, path: str, call: Callable[[Metadata], Awaitable[T]]) -> T:
        try:
            return await self._wire.once(call)
        except SpaceRefused as refused:
            raise file_error(refused.refusal, path) from refused


def file_error(refusal: Refusal, path: str) -> FileError:
    code = _BY_REASON.get(refusal.reason) or _BY_CODE.get(refusal.code, "unknown")
    # The Space shortens long ones; it is asked for absolute paths, but for a temporary file's, whose place is its own to choose.
    where = path if path.startswith("/") else refusal.metadata.get("path", path)
    return FileError(code, where, refusal.message.removeprefix(f"{where}: "))


def _listing(
    stub: filesystem_pb2_grpc.FilesystemServiceAsyncStub, request: filesystem.ListDirRequest, seconds: float
) -> Callable[[Metadata], Awaitable[filesystem.ListDirResponse]]:
    return lambda metadata: stub.ListDir(request, metadata=metadata, timeout=seconds)


def file_info(entry: filesystem.EntryInfo) -> FileInfo | None:
    kind = _KINDS.get(entry.type)
    if kind is None:
        return None
    return FileInfo(entry.name, entry.path, kind, entry.size, entry.modified_at.ToMilliseconds())

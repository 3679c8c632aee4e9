"""Files of a Space by absolute path, through the Space helper: what `_files` does over `durable.space.v1`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from durable_harness.env import FileError, FileInfo, Line
from durable_harness.line_reader import BufferedLineReader
from durable_protocol.cua.env.v1 import filesystem_pb2 as filesystem
from durable_protocol.durable.space.v1 import files_pb2 as files
from durable_spaces._errors import SpaceRefused
from durable_spaces._files import file_error, file_info
from durable_spaces._helper import Helper
from durable_spaces._helper_process import Reply
from durable_spaces._opened import SpaceBinaryReader, SpaceDirReader


class HelperFiles:
    """Errors are FileError, with the absolute path; StaleEpochError and HaltError pass."""

    def __init__(self, helper: Helper) -> None:
        self._helper = helper
        self._closing: set[asyncio.Future[None]] = set()  # what closes itself behind a cancelled caller

    async def canonical(self, path: str) -> str:
        message, _ = await self._again(path, "canonical")
        return str(message["path"])

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            # 0 means all there; nothing is read, and the path is still checked.
            await self.info(path, follow=True)
            return b""
        _, data = await self._again(path, "read", offset=offset, length=length or 0)
        return data

    async def read_lines(self, path: str, max_lines: int | None) -> list[Line]:
        if max_lines is None:
            return _lines(await self.read(path))
        found: list[Line] = []
        async with BufferedLineReader(await self.open_file(path, no_follow=False), path) as reader:
            while len(found) < max_lines and (line := await reader.read_line()) is not None:
                found.append(line)
        return found

    async def open_file(self, path: str, *, no_follow: bool) -> SpaceBinaryReader:
        return SpaceBinaryReader(await self._open(path, folder=False, no_follow=no_follow), file_info)

    async def open_folder(self, path: str) -> SpaceDirReader:
        return SpaceDirReader(await self._open(path, folder=True, no_follow=False), file_info)

    async def _open(self, path: str, *, folder: bool, no_follow: bool) -> OpenedInHelper:
        # In a task of its own: a caller that is cancelled here would leave it open.
        opening = asyncio.ensure_future(self._again(path, "open", folder=folder, no_follow=no_follow))
        try:
            message, _ = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._discard)
            raise
        return OpenedInHelper(self._helper, path, str(message["token"]))

    def _discard(self, opening: asyncio.Task[Reply]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            held = OpenedInHelper(self._helper, "", str(opening.result()[0]["token"]))
            self._closing.add(closing := asyncio.ensure_future(held.close()))
            closing.add_done_callback(self._closing.discard)

    async def write(self, path: str, data: bytes) -> None:
        await self._again(path, "write", data)

    async def append(self, path: str, data: bytes) -> None:
        await self._once(path, "write", data, append=True)

    async def truncate(self, path: str, size: int) -> None:
        await self._again(path, "truncate", size=size)

    async def flush(self, path: str) -> None:
        await self._again(path, "flush")

    async def rename(self, source: str, target: str) -> None:
        await self._once(source, "move", target=target)

    async def info(self, path: str, *, follow: bool = False) -> FileInfo:
        message, _ = await self._again(path, "info", follow=follow)
        info = file_info(entry_of(message["info"]))
        if info is None:
            raise FileError("invalid", path, "neither file, directory nor symlink")
        return info

    async def list_dir(self, path: str) -> list[FileInfo]:
        _, data = await self._again(path, "list")
        return [info for entry in _entries(data) if (info := file_info(entry)) is not None]

    async def create_dir(self, path: str, *, recursive: bool) -> None:
        # Without parents a second attempt would be refused by the first one's folder.
        attempts = self._again if recursive else self._once
        message, _ = await attempts(path, "make_folder", parents=recursive)
        if not recursive and not message["created"]:
            raise FileError("invalid", path, "is there already")

    async def remove(self, path: str, *, recursive: bool, force: bool) -> None:
        attempts = self._again if force else self._once
        await attempts(path, "remove", recursive=recursive, missing_ok=force)

    async def mode(self, path: str) -> int | None:
        """Permission bits of a regular file, symlinks followed; None where there is no such file."""
        try:
            message, _ = await self._again(path, "info", follow=True)
        except FileError:
            return None
        entry = entry_of(message["info"])
        return entry.mode if entry.type == filesystem.FILE_TYPE_FILE else None

    async def make_temp(self, *, directory: bool, prefix: str, suffix: str = "") -> str:
        try:
            message, _ = await self._helper.again("make_temporary", folder=directory, prefix=prefix, suffix=suffix)
        except SpaceRefused as refused:
            raise file_error(refused.refusal, prefix) from refused
        return str(message["path"])

    async def _again(self, path: str, op: str, body: bytes = b"", **arguments: object) -> Reply:
        try:
            return await self._helper.again(op, lambda: (body,), path=path, **arguments)
        except SpaceRefused as refused:
            raise file_error(refused.refusal, path) from refused

    async def _once(self, path: str, op: str, body: bytes = b"", **arguments: object) -> Reply:
        try:
            return await self._helper.once(op, lambda: (body,), path=path, **arguments)
        except SpaceRefused as refused:
            raise file_error(refused.refusal, path) from refused


class OpenedInHelper:
    """A file or a folder that the helper holds open. It goes with the helper: then whoever reads on gets `aborted`."""

    def __init__(self, helper: Helper, path: str, token: str) -> None:
        self._helper = helper
        self._token = token
        self.path = path
        self.closed = False

    async def ask(self, request: files.OpenRequest) -> files.OpenResponse:
        await asyncio.sleep(0)  # a caller cancelled before now asks nothing
        if self.closed:
            raise FileError("invalid", self.path, "the reader is closed")
        try:
            return await self._ask(request)
        except SpaceRefused as refused:
            if refused.refusal.condition == "NotOpen":
                text = "the Space helper ended, and it can't be read on: open it anew"
                raise FileError("invalid" if self.closed else "aborted", self.path, text) from refused
            raise file_error(refused.refusal, self.path) from refused

    async def _ask(self, request: files.OpenRequest) -> files.OpenResponse:
        ask, token = self._helper.again, self._token
        match request.WhichOneof("request"):
            case "inspect":
                message, _ = await ask("inspect", token=token)
                return files.OpenResponse(opened=files.Opened(entry=entry_of(message["info"])))
            case "read":
                offset, length = request.read.offset, request.read.length
                _, data = await ask("read_opened", token=token, offset=offset, length=length)
                return files.OpenResponse(data=data)
            case "scan":
                offset, most = request.scan.offset, request.scan.max_lines
                message, _ = await ask("scan_opened", token=token, offset=offset, max_lines=most)
                return files.OpenResponse(scanned=files.Scanned(offset=message["offset"], lines=message["lines"]))
            case _:
                # Whoever is cancelled here has lost the page, like the reader of any folder.
                _, data = await ask("page_opened", token=token, max_entries=request.page.max_entries)
                return files.OpenResponse(page=files.OpenedPage(entries=_entries(data)))

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            await self._helper.dismiss("close", token=self._token)


def entry_of(value: Any) -> filesystem.EntryInfo:
    path, kind, size, mode, mtime_ns = value
    entry = filesystem.EntryInfo(
        name=path.rpartition("/")[2] or "/", path=path, type=filesystem.FileType.ValueType(kind), size=size, mode=mode
    )
    entry.modified_at.FromNanoseconds(mtime_ns)
    return entry


def _entries(data: bytes) -> Iterator[filesystem.EntryInfo]:
    return (entry_of(json.loads(line)) for line in data.splitlines())


def _lines(data: bytes) -> list[Line]:
    *whole, rest = data.split(b"\n")
    lines = [Line(line.decode("utf-8", "replace"), True) for line in whole]
    return [*lines, Line(rest.decode("utf-8", "replace"), False)] if rest else lines

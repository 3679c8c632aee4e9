"""Files and folders of this machine that are held open: `durable_base.handles` off the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Self, TypeVar

from durable_base.handles import OpenFile, OpenFolder
from durable_harness.env import FileError, FileInfo, LineScan
from durable_harness.env_paths import check_whole
from durable_harness.local_files import errors_as_file_errors, info_of

T = TypeVar("T")

_SCAN_BYTES = 1 << 24  # per step: a scan of a huge file stays cancellable


class _Held:
    def __init__(self, held: OpenFile | OpenFolder, path: str) -> None:
        self._handle = held
        self._path = path
        self._closed = False

    async def _act(self, act: Callable[[], T]) -> T:
        await asyncio.sleep(0)  # a caller cancelled before now does nothing
        if self._closed:
            raise FileError("invalid", self._path, "the reader is closed")
        return await asyncio.to_thread(errors_as_file_errors, self._path, act)

    async def close(self) -> None:
        self._closed = True
        await asyncio.shield(asyncio.to_thread(self._handle.close))  # cancelled or not, nothing stays open

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class LocalBinaryReader(_Held):
    def __init__(self, file: OpenFile, path: str) -> None:
        super().__init__(file, path)
        self._file = file

    async def info(self) -> FileInfo:
        return await self._act(lambda: info_of(self._path, self._file.status()))

    async def read(self, offset: int, length: int) -> bytes:
        check_whole(self._path, "offset", offset)
        check_whole(self._path, "length", length)
        return await self._act(lambda: self._file.read(offset, length))

    async def scan_lines(self, offset: int, max_lines: int) -> LineScan:
        check_whole(self._path, "offset", offset)
        check_whole(self._path, "max_lines", max_lines)
        found = 0
        while True:
            at, more = await self._act(lambda: self._file.scan_lines(offset, max_lines - found, _SCAN_BYTES))  # noqa: B023
            found += more
            if found == max_lines or at == offset:
                return LineScan(at, found)
            offset = at


class LocalDirReader(_Held):
    def __init__(self, folder: OpenFolder, path: str) -> None:
        super().__init__(folder, path)
        self._folder = folder

    async def read_page(self, max_entries: int) -> list[FileInfo]:
        check_whole(self._path, "max_entries", max_entries, least=1)
        while page := await self._act(lambda: self._folder.page(max_entries)):
            if entries := [info for name, status, _ in page if (info := self._info(name, status)) is not None]:
                return entries
        return []

    def _info(self, name: str, status: os.stat_result) -> FileInfo | None:
        try:
            return info_of(os.path.join(self._path, name), status)
        except FileError:
            return None  # of no FileKind

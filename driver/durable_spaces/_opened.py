"""Files and folders of a Space that are held open, each by a stream of its own.

A stream that breaks (a daemon that restarts) is opened anew, and the file compared: another one at the same path is `aborted`,
and so is a folder, whose order nobody can take up again. A caller that is cancelled leaves its exchange to run to its answer, so
that the next one never gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, Self

import grpc

from durable_base.errors import HaltError
from durable_harness.env import FileError, FileInfo, LineScan
from durable_harness.env_paths import check_whole
from durable_protocol.cua.env.v1 import filesystem_pb2 as filesystem
from durable_protocol.durable.space.v1 import files_pb2 as files
from durable_protocol.durable.space.v1 import files_pb2_grpc
from durable_spaces._channel import Wire
from durable_spaces._errors import SpaceRefused, Unreachable, judge

READ_BYTES_MAX = 1 << 20  # of one exchange; the Space answers no more
_PAGE_ENTRIES_MAX = 10_000

_Stream = grpc.aio.StreamStreamCall[files.OpenRequest, files.OpenResponse]
Refuse = Callable[[SpaceRefused, str], Exception]


class OpenedInSpace:
    """One stream, one exchange at a time. Errors are FileError; StaleEpochError and HaltError pass."""

    def __init__(
        self, wire: Wire, stub: files_pb2_grpc.FileServiceAsyncStub, target: files.OpenTarget, refuse: Refuse
    ) -> None:
        self._wire = wire
        self._stub = stub
        self._target = target
        self._refuse = refuse
        self._stream: _Stream | None = None
        self._identity = ""  # of the file, once it has been opened
        self._turn = asyncio.Lock()
        self._pending: set[asyncio.Task[files.OpenResponse]] = set()
        self.closed = False

    @property
    def path(self) -> str:
        return self._target.path

    async def open(self) -> None:
        await self.ask(files.OpenRequest(inspect=files.InspectOpened()))

    async def ask(self, request: files.OpenRequest) -> files.OpenResponse:
        await asyncio.sleep(0)  # a caller cancelled before now asks nothing
        if self.closed:
            raise FileError("invalid", self.path, "the reader is closed")
        exchange = asyncio.ensure_future(self._exchange(request))
        self._pending.add(exchange)
        exchange.add_done_callback(self._forget)
        return await asyncio.shield(exchange)

    def _forget(self, exchange: asyncio.Task[files.OpenResponse]) -> None:
        self._pending.discard(exchange)
        if not exchange.cancelled():
            exchange.exception()  # seen: whoever asked may have been cancelled

    async def _exchange(self, request: files.OpenRequest) -> files.OpenResponse:
        async with self._turn:
            patience = self._wire.patience()
            while True:
                try:
                    async with asyncio.timeout(self._wire.call_seconds):
                        if self._stream is None:
                            await self._reopen()
                        return await self._say(request)
                except TimeoutError:
                    self._drop()
                    raise HaltError(
                        "SpaceUnreachable", "the Space did not answer in time; the next drive tries again"
                    ) from None
                except SpaceRefused as refused:
                    self._drop()
                    raise self._refuse(refused, self.path) from refused
                except Unreachable as error:
                    self._drop()
                    await patience.pause(error)

    async def _reopen(self) -> None:
        try:
            self._stream = self._stub.Open(metadata=self._wire.metadata())
        except grpc.aio.UsageError:
            raise self._closed_under() from None
        opened = (await self._say(files.OpenRequest(open=self._target))).opened
        if self._identity and (self._target.directory or opened.identity != self._identity):
            self._drop()
            raise FileError(
                "aborted", self.path, "the connection to the Space broke, and it can't be read on: open it anew"
            )
        self._identity = opened.identity

    async def _say(self, request: files.OpenRequest) -> files.OpenResponse:
        assert self._stream is not None
        try:
            await self._stream.write(request)
            answer = await self._stream.read()
            if isinstance(answer, files.OpenResponse):
                return answer
            code = await self._stream.code()  # it ended: with an error, raised below, or without a word
        except asyncio.InvalidStateError:  # it has ended before
            code = await self._stream.code()
        except grpc.aio.AioRpcError as error:
            raise judge(error, self._wire.own) from error
        except asyncio.CancelledError:
            if _is_cancelled_here():
                raise
            raise self._closed_under() from None  # the library's word for a channel that was closed under its calls
        if code is grpc.StatusCode.OK:
            raise Unreachable("the stream of an open file ended")
        raise judge(await _error_of(self._stream, code), self._wire.own)

    def _closed_under(self) -> FileError:
        return FileError("aborted", self.path, "the connection to the Space has been closed")

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    async def close(self) -> None:
        """Whatever is under way ends; the Space closes the file with the stream."""
        if self.closed:
            return
        self.closed = True
        stream, self._stream = self._stream, None
        for exchange in list(self._pending):
            exchange.cancel()
        if stream is not None:
            try:
                if not self._pending:
                    await _end(stream, self._wire.call_seconds)
            finally:
                stream.cancel()


async def _end(stream: _Stream, seconds: float) -> None:
    """Let the Space close the file before the caller goes on, if it is there to do so."""
    try:
        async with asyncio.timeout(seconds):
            await stream.done_writing()
            while await stream.read() is not grpc.aio.EOF:
                pass
    except (TimeoutError, asyncio.InvalidStateError, grpc.aio.AioRpcError):
        return
    except asyncio.CancelledError:
        if _is_cancelled_here():
            raise


def _is_cancelled_here() -> bool:
    """Is it this task that somebody cancelled, and not the call that it waits for?"""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _error_of(stream: _Stream, code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, await stream.initial_metadata(), await stream.trailing_metadata(), details=await stream.details()
    )


class Held(Protocol):
    """A file or a folder that is open in the Space. Raises FileError; StaleEpochError and HaltError pass."""

    @property
    def path(self) -> str: ...

    async def ask(self, request: files.OpenRequest) -> files.OpenResponse:
        """`invalid` once it is closed."""
        ...

    async def close(self) -> None: ...


class _Reader:
    def __init__(self, held: Held) -> None:
        self._held = held

    async def close(self) -> None:
        await self._held.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SpaceBinaryReader(_Reader):
    def __init__(self, held: Held, info: Callable[[filesystem.EntryInfo], FileInfo | None]) -> None:
        super().__init__(held)
        self._info = info

    async def info(self) -> FileInfo:
        answer = await self._held.ask(files.OpenRequest(inspect=files.InspectOpened()))
        info = self._info(answer.opened.entry)
        if info is None:
            raise FileError("invalid", self._held.path, "neither file, directory nor symlink")
        return info

    async def read(self, offset: int, length: int) -> bytes:
        check_whole(self._held.path, "offset", offset)
        check_whole(self._held.path, "length", length)
        data = bytearray()
        while True:
            piece = min(length - len(data), READ_BYTES_MAX)
            request = files.ReadOpened(offset=offset + len(data), length=piece)
            found = (await self._held.ask(files.OpenRequest(read=request))).data
            data += found
            if len(found) < piece or len(data) >= length:
                return bytes(data)

    async def scan_lines(self, offset: int, max_lines: int) -> LineScan:
        check_whole(self._held.path, "offset", offset)
        check_whole(self._held.path, "max_lines", max_lines)
        found = 0
        while True:
            request = files.ScanOpened(offset=offset, max_lines=max_lines - found)
            scanned = (await self._held.ask(files.OpenRequest(scan=request))).scanned
            found += scanned.lines
            if found >= max_lines or scanned.offset == offset:
                return LineScan(scanned.offset, found)
            offset = scanned.offset


class SpaceDirReader(_Reader):
    def __init__(self, held: Held, info: Callable[[filesystem.EntryInfo], FileInfo | None]) -> None:
        super().__init__(held)
        self._info = info

    async def read_page(self, max_entries: int) -> list[FileInfo]:
        check_whole(self._held.path, "max_entries", max_entries, least=1)
        request = files.OpenRequest(page=files.PageOpened(max_entries=min(max_entries, _PAGE_ENTRIES_MAX)))
        while entries := (await self._held.ask(request)).page.entries:
            if found := [info for entry in entries if (info := self._info(entry)) is not None]:
                return found
        return []

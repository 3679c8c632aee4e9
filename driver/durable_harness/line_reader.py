"""Lines of a file that is held open, over any BinaryReader: one reading of "a line" for every environment."""

from __future__ import annotations

import asyncio
from typing import Self

from durable_harness.env import BinaryReader, FileError, Line

_PIECE_BYTES = 64 * 1024


class BufferedLineReader:
    """Owns `source` and closes it. Read by one task at a time or by several: each line goes to one of them."""

    def __init__(self, source: BinaryReader, path: str) -> None:
        self._source = source
        self._path = path
        self._ahead = bytearray()  # read, and not yet handed out
        self._searched = 0  # bytes of it that hold no LF, so that a long line is searched once
        self._offset = 0  # of what is read next
        self._closed = False
        self._turn = asyncio.Lock()

    async def read_line(self) -> Line | None:
        async with self._turn:
            await asyncio.sleep(0)  # a caller cancelled before now takes nothing
            while True:
                if self._closed:
                    raise FileError("invalid", self._path, "the reader is closed")
                at = self._ahead.find(b"\n", self._searched)
                if at >= 0:
                    return self._take(at + 1)
                self._searched = len(self._ahead)
                piece = await self._source.read(self._offset, _PIECE_BYTES)
                if not piece:
                    return self._take(len(self._ahead)) if self._ahead else None
                # No await from here on: a cancelled read has changed nothing.
                self._ahead += piece
                self._offset += len(piece)

    def _take(self, size: int) -> Line:
        raw = bytes(self._ahead[:size])
        del self._ahead[:size]
        self._searched = 0
        return Line(raw.removesuffix(b"\n").decode("utf-8", "replace"), raw.endswith(b"\n"))

    async def close(self) -> None:
        self._closed = True
        await self._source.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

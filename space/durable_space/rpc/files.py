"""durable.space.v1.FileService."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from durable_base.handles import open_regular
from durable_protocol.durable.space.v1 import files_pb2 as durable
from durable_protocol.durable.space.v1.files_pb2_grpc import FileServiceServicer
from durable_space import paths
from durable_space.files import Files, errors_name
from durable_space.rpc import handles
from durable_space.rpc.admission import admit_changer, admit_reader
from durable_space.rpc.guard import Context
from durable_space.runtime import Runtime

BATCH_BYTES = 256 << 10
READ_BYTES = 1 << 20


class FileService(FileServiceServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._files = Files(runtime.gate, runtime.staging, runtime.config.data / "staging")

    async def Canonical(self, request: durable.CanonicalRequest, context: Context) -> durable.CanonicalResponse:
        admit_reader(self._runtime, context)
        path = await self._runtime.run(self._files.canonical, self._path(request.path))
        return durable.CanonicalResponse(path=paths.shown(path))

    async def ReadLines(
        self, request: durable.ReadLinesRequest, context: Context
    ) -> AsyncIterator[durable.ReadLinesResponse]:
        admit_reader(self._runtime, context)
        lines = LineReader(self._path(request.path))
        try:
            left = request.max_lines or None
            while left is None or left > 0:
                batch = await self._runtime.run(lines.batch, left)
                if not batch:
                    return
                yield durable.ReadLinesResponse(
                    lines=[durable.Line(text=line, terminated=terminated) for line, terminated in batch]
                )
                left = None if left is None else left - len(batch)
        finally:
            lines.close()

    async def Truncate(self, request: durable.TruncateRequest, context: Context) -> durable.TruncateResponse:
        caller = await admit_changer(self._runtime, context)
        await self._runtime.run(self._files.truncate, caller, self._path(request.path), request.size)
        return durable.TruncateResponse()

    async def Flush(self, request: durable.FlushRequest, context: Context) -> durable.FlushResponse:
        caller = await admit_changer(self._runtime, context)
        await self._runtime.run(self._files.flush, caller, self._path(request.path))
        return durable.FlushResponse()

    async def MakeTemp(self, request: durable.MakeTempRequest, context: Context) -> durable.MakeTempResponse:
        caller = await admit_changer(self._runtime, context)
        path = await self._runtime.run(
            self._files.make_temporary,
            caller,
            folder=request.directory,
            prefix=request.prefix,
            suffix=request.suffix,
        )
        return durable.MakeTempResponse(path=path)

    async def Open(
        self, request: AsyncIterator[durable.OpenRequest], context: Context
    ) -> AsyncIterator[durable.OpenResponse]:
        admit_reader(self._runtime, context)
        async for answer in handles.serve(
            self._runtime, request, self._path, lambda: admit_reader(self._runtime, context)
        ):
            yield answer

    def _path(self, path: str) -> str:
        return paths.absolute(path, self._runtime.workspace_root)


class LineReader:
    """Lines at LF alone, a batch at a time. Blocking; opens at the first batch."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._rest = b""
        self._ended = False

    def batch(self, lines_max: int | None) -> list[tuple[bytes, bool]]:
        """(line without its LF, whether it had one); empty at the end. Raise Refused."""
        with errors_name(self._path):
            if self._fd < 0 and not self._ended:
                self._fd = open_regular(self._path, os.O_RDONLY)
            found: list[tuple[bytes, bool]] = []
            size = 0
            while size < BATCH_BYTES and (lines_max is None or len(found) < lines_max):
                line, newline, rest = self._rest.partition(b"\n")
                if newline:
                    self._rest = rest
                    found.append((line, True))
                    size += len(line) + 8
                elif self._ended:
                    if line:
                        found.append((line, False))
                    self._rest = b""
                    break
                else:
                    piece = os.read(self._fd, READ_BYTES)
                    self._rest += piece
                    self._ended = not piece
            return found

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._ended = -1, True

"""durable.space.v1.FileService."""

from __future__ import annotations

from collections.abc import AsyncIterator

from durable_protocol.durable.space.v1 import files_pb2 as durable
from durable_protocol.durable.space.v1.files_pb2_grpc import FileServiceServicer
from durable_space import paths
from durable_space.files import Files
from durable_space.lines import LINE_ROOM, LineReader
from durable_space.rpc import handles
from durable_space.rpc.admission import admit_changer, admit_reader
from durable_space.rpc.guard import Context
from durable_space.runtime import Runtime


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
        lines = LineReader(self._path(request.path), self._runtime.config.limits.message_bytes - LINE_ROOM)
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

"""durable.space.v1.WorkspaceService."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from durable_protocol.durable.space.v1 import workspace_pb2 as durable
from durable_protocol.durable.space.v1.workspace_pb2_grpc import WorkspaceServiceServicer
from durable_space import processes
from durable_space.refusal import invalid
from durable_space.rpc.admission import admit_changer, admit_reader
from durable_space.rpc.guard import Context
from durable_space.runtime import Runtime
from durable_space.workspace.apply import Plan
from durable_space.workspace.entries import Entry, Kind, check_entry
from durable_space.workspace.scan import Table

TABLE_BYTES_MAX = 256 << 10
ENTRY_BYTES = 64  # of an entry beside its path and target, about
_KINDS = frozenset(kind.value for kind in Kind)


class WorkspaceService(WorkspaceServiceServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def Scan(self, request: durable.ScanRequest, context: Context) -> AsyncIterator[durable.ScanResponse]:
        caller = admit_reader(self._runtime, context)

        def scan() -> tuple[Table, durable.ScanResponse, int]:
            table = self._runtime.workspace.scan(
                caller,
                tuple(request.exclude),
                use_cache=not request.no_cache,
                files_max=request.max_files,
                bytes_max=request.max_bytes,
            )
            return table, *table_message(table.entries, 0)

        table, message, place = await self._runtime.run_long(scan)
        if table.entries:
            yield message
        while place < len(table.entries):
            message, place = await self._runtime.run_long(table_message, table.entries, place)
            yield message
        yield durable.ScanResponse(end=durable.ScanEnd(files=table.files, bytes=table.bytes))

    async def ReadBlobs(
        self, request: durable.ReadBlobsRequest, context: Context
    ) -> AsyncIterator[durable.ReadBlobsResponse]:
        admit_reader(self._runtime, context)
        for sha256 in request.sha256:
            pieces = self._runtime.workspace.read_blob(sha256)
            try:
                piece = await self._runtime.run_long(_next, pieces)
                while piece is not None:
                    following = await self._runtime.run_long(_next, pieces)
                    yield durable.ReadBlobsResponse(sha256=sha256, data=piece, last=following is None)
                    piece = following
            finally:
                close = getattr(pieces, "close", None)
                if close is not None:
                    close()

    async def Apply(self, request: AsyncIterator[durable.ApplyRequest], context: Context) -> durable.ApplyResponse:
        caller = await admit_changer(self._runtime, context)
        with self._runtime.workspace.spool() as spool:
            plan: durable.ApplyPlan | None = None
            async for message in request:
                if message.HasField("plan"):
                    if plan is not None:
                        raise invalid("a second plan in one Apply")
                    plan = message.plan
                elif plan is None:
                    raise invalid("the plan must come first")
                else:
                    piece = message.piece
                    await self._runtime.run_long(spool.add, piece.sha256, piece.data, last=piece.last)
            if plan is None:
                raise invalid("the plan must come first")
            spool.finish()
            done = await self._runtime.run_long(
                self._runtime.workspace.apply, caller, read_plan(plan), tuple(plan.have), spool
            )
        return durable.ApplyResponse(written=done.written, removed=done.removed, unchanged=done.unchanged)

    async def Processes(self, request: durable.ProcessesRequest, context: Context) -> durable.ProcessesResponse:
        admit_reader(self._runtime, context)
        found = await self._runtime.run_long(
            processes.in_workspace, self._runtime.commands, self._runtime.workspace_root, {self._runtime.zygote.pid}
        )
        return durable.ProcessesResponse(
            processes=[
                durable.WorkspaceProcess(
                    pid=one.pid,
                    request_id=one.request_id,
                    command_running=one.command_running,
                    cwd_inside=one.cwd_inside,
                    file_open_inside=one.file_open_inside,
                )
                for one in found
            ]
        )


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)


def table_message(entries: Sequence[Entry], place: int) -> tuple[durable.ScanResponse, int]:
    """(what fits into one message from `place` on, the next place)."""
    message = durable.ScanResponse()
    add = message.table.entries.add
    size = 0
    while place < len(entries) and size < TABLE_BYTES_MAX:
        entry = entries[place]
        if entry.kind is Kind.FILE:
            add(
                path=entry.path, kind=durable.PATH_KIND_FILE, mode=entry.mode, mtime_ns=entry.mtime_ns, size=entry.size,
                sha256=entry.sha256,
            )  # fmt: skip
        else:
            kind = durable.PathKind.ValueType(entry.kind.value)
            add(path=entry.path, kind=kind, mode=entry.mode, mtime_ns=entry.mtime_ns, target=entry.target)
        size += len(entry.path) + len(entry.target) + ENTRY_BYTES
        place += 1
    return message, place


def read_plan(message: durable.ApplyPlan) -> Plan:
    """Raise Refused for entries that no file system can hold."""
    entries = []
    for entry in message.put:
        if entry.kind not in _KINDS:
            raise invalid("an entry's kind must be file, directory or symlink")
        made = Entry(
            entry.path, Kind(entry.kind), entry.mode & 0o7777, entry.mtime_ns, entry.size, entry.sha256, entry.target
        )
        check_entry(made)
        entries.append(made)
    return Plan(tuple(entries), tuple(message.remove))

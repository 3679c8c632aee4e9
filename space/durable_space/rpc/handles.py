"""One call of FileService.Open: a file or a folder that is open as long as the stream is.

Not chosen: a table of handles with numbers. A client that dies would leave them open; a stream ends with its client, and the
limit on streams is the limit on open files.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

from durable_base.handles import OpenFile, OpenFolder
from durable_protocol.durable.space.v1 import files_pb2 as durable
from durable_space.files import FILE_OFFSET_MAX, errors_name, info_of
from durable_space.refusal import invalid
from durable_space.rpc.filesystem import PAGE_ENTRIES_MAX, entry
from durable_space.runtime import Runtime

READ_BYTES_MAX = 1 << 20
SCAN_BYTES_MAX = 16 << 20


async def serve(
    runtime: Runtime,
    requests: AsyncIterator[durable.OpenRequest],
    absolute: Callable[[str], str],
    check: Callable[[], object],
) -> AsyncIterator[durable.OpenResponse]:
    """`check` raises Refused once the caller may not read any more. Raise Refused."""
    opened: OpenedFile | OpenedFolder | None = None
    try:
        async for request in requests:
            check()
            if opened is None:
                if request.WhichOneof("request") != "open":
                    raise invalid("the first request opens")
                opened = await runtime.run(open_target, request.open, absolute(request.open.path))
                yield await runtime.run(opened.answer, durable.OpenRequest(inspect=durable.InspectOpened()))
            else:
                yield await runtime.run(opened.answer, request)
    finally:
        if opened is not None:
            # Shielded: a call that ends with its client is cancelled more than once.
            await asyncio.shield(asyncio.ensure_future(runtime.run(opened.handle.close)))


def open_target(target: durable.OpenTarget, path: str) -> OpenedFile | OpenedFolder:
    with errors_name(path):
        return OpenedFolder(path) if target.directory else OpenedFile(path, no_follow=target.no_follow)


class OpenedFile:
    def __init__(self, path: str, *, no_follow: bool) -> None:
        self.handle = OpenFile(path, no_follow=no_follow)
        self._path = path

    def answer(self, request: durable.OpenRequest) -> durable.OpenResponse:
        with errors_name(self._path):
            match request.WhichOneof("request"):
                case "inspect":
                    return durable.OpenResponse(opened=describe(self._path, self.handle.status()))
                case "read":
                    offset, length = request.read.offset, min(request.read.length, READ_BYTES_MAX)
                    self._check(offset)
                    return durable.OpenResponse(data=self.handle.read(offset, length))
                case "scan":
                    self._check(request.scan.offset)
                    offset, lines = self.handle.scan_lines(request.scan.offset, request.scan.max_lines, SCAN_BYTES_MAX)
                    return durable.OpenResponse(scanned=durable.Scanned(offset=offset, lines=lines))
                case _:
                    raise invalid("not a request for an open file", path=self._path)

    def _check(self, offset: int) -> None:
        if offset > FILE_OFFSET_MAX - READ_BYTES_MAX:
            raise invalid("the offset reaches beyond what a file can have", path=self._path)


class OpenedFolder:
    def __init__(self, path: str) -> None:
        self.handle = OpenFolder(path)
        self._path = path

    def answer(self, request: durable.OpenRequest) -> durable.OpenResponse:
        with errors_name(self._path):
            match request.WhichOneof("request"):
                case "inspect":
                    return durable.OpenResponse(opened=describe(self._path, self.handle.status()))
                case "page":
                    if not 0 < request.page.max_entries <= PAGE_ENTRIES_MAX:
                        raise invalid(f"max_entries is 1 to {PAGE_ENTRIES_MAX}", path=self._path)
                    page = durable.OpenedPage()
                    for name, status, link in self.handle.page(request.page.max_entries):
                        page.entries.append(entry(info_of(os.path.join(self._path, name), status, link)))
                    return durable.OpenResponse(page=page)
                case _:
                    raise invalid("not a request for an open folder", path=self._path)


def describe(path: str, status: os.stat_result) -> durable.Opened:
    return durable.Opened(entry=entry(info_of(path, status)), identity=f"{status.st_dev:x}:{status.st_ino:x}")

"""What a driver can ask: one method per `op`, from its message and body to an answer.

Raise Refused (the daemon's own codes, reasons and conditions), OSError, or StdinClosed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from durable_base.floor import Floor
from durable_base.handles import OpenFile
from durable_space import paths, procfs
from durable_space.files import Files, Info, WriteMode, errors_name
from durable_space.gate import Caller, Fence
from durable_space.helper import tables
from durable_space.helper.arguments import Arguments, read_hashes, read_paths
from durable_space.helper.opened import Opened, check_offset
from durable_space.refusal import invalid, limit
from durable_space.staging import Staging
from durable_space.workspace.apply import Plan
from durable_space.workspace.hashes import HashCache
from durable_space.workspace.workspace import Spool, Workspace

PLAN_BYTES_MAX = 256 << 20
_DRIVER = Caller(Floor(), named=True)  # the one at the other end of stdin


@dataclass(frozen=True, slots=True)
class Answer:
    message: dict[str, Any] = field(default_factory=dict)
    body: Iterable[bytes] = ()  # pieces of at most a frame's body


class Operations:
    """Blocking, one at a time."""

    def __init__(self, root: Path, fence: Fence, staging: Staging, spool_folder: Path) -> None:
        self._root = root
        self._files = Files(fence, staging, spool_folder)
        self._workspace = Workspace(root, fence, staging, HashCache())
        self._opened = Opened()
        self._by_name: dict[str, Callable[[Arguments, IO[bytes]], Answer]] = {
            "info": self._info, "list": self._list, "canonical": self._canonical, "read": self._read,
            "write": self._write, "truncate": self._truncate, "flush": self._flush, "move": self._move,
            "make_folder": self._make_folder, "remove": self._remove, "make_temporary": self._make_temporary,
            "open": self._open, "inspect": self._inspect, "read_opened": self._read_opened,
            "scan_opened": self._scan_opened, "page_opened": self._page_opened, "close": self._close,
            "scan": self._scan, "blobs": self._blobs, "apply": self._apply, "processes": self._processes,
        }  # fmt: skip

    def run(self, name: str, arguments: Arguments, body: IO[bytes]) -> Answer:
        """`body` from its start."""
        operation = self._by_name.get(name)
        if operation is None:
            raise invalid("this helper knows no such operation")
        return operation(arguments, body)

    def _path(self, arguments: Arguments, name: str = "path") -> str:
        return paths.absolute(arguments.text(name), self._root)

    def _removable(self, arguments: Arguments) -> str:
        return paths.not_the_root(self._path(arguments), self._root)

    # ---- files

    def _info(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        return Answer({"info": shown(self._files.info(self._path(arguments), follow=arguments.flag("follow")))})

    def _list(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        found, _ = self._files.list(self._path(arguments), 1, hidden=True, start=0, count=2**31)
        return Answer(body=tables.batched(tables.lines(map(shown, found))))

    def _canonical(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        return Answer({"path": paths.shown(self._files.canonical(self._path(arguments)))})

    def _read(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        """`length` bytes from `offset`; 0: all."""
        path = self._path(arguments)
        offset, length = arguments.whole("offset", 0), arguments.whole("length", 0)
        check_offset(path, offset, length)
        with errors_name(path):
            file = OpenFile(path)
        return Answer(body=_pieces(path, file, offset, length or None))

    def _write(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        """Parents are made; the whole body, or nothing of it."""
        mode = WriteMode.APPEND if arguments.flag("append") else WriteMode.OVERWRITE
        self._files.write(_DRIVER, self._path(arguments), body, mode, 0, parents=True)
        return Answer()

    def _truncate(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        self._files.truncate(_DRIVER, self._path(arguments), arguments.whole("size"))
        return Answer()

    def _flush(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        self._files.flush(_DRIVER, self._path(arguments))
        return Answer()

    def _move(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        source, target = self._removable(arguments), self._path(arguments, "target")
        self._files.move(_DRIVER, source, target, overwrite=True, parents=False)
        return Answer()

    def _make_folder(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        path, parents = self._path(arguments), arguments.flag("parents")
        _, created = self._files.make_folder(_DRIVER, path, 0, parents=parents)
        return Answer({"created": created})

    def _remove(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        recursive, missing_ok = arguments.flag("recursive"), arguments.flag("missing_ok")
        self._files.remove(_DRIVER, self._removable(arguments), recursive=recursive, missing_ok=missing_ok)
        return Answer()

    def _make_temporary(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        prefix, suffix = arguments.text("prefix", ""), arguments.text("suffix", "")
        made = self._files.make_temporary(_DRIVER, folder=arguments.flag("folder"), prefix=prefix, suffix=suffix)
        return Answer({"path": paths.shown(made)})

    # ---- what is held open

    def _open(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        folder, no_follow = arguments.flag("folder"), arguments.flag("no_follow")
        token, info = self._opened.open(self._path(arguments), folder=folder, no_follow=no_follow)
        return Answer({"token": token, "info": shown(info)})

    def _inspect(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        return Answer({"info": shown(self._opened.inspect(arguments.text("token")))})

    def _read_opened(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        offset, length = arguments.whole("offset"), arguments.whole("length")
        return Answer(body=[self._opened.read(arguments.text("token"), offset, length)])

    def _scan_opened(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        offset, lines_max = arguments.whole("offset"), arguments.whole("max_lines")
        offset, found = self._opened.scan(arguments.text("token"), offset, lines_max)
        return Answer({"offset": offset, "lines": found})

    def _page_opened(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        page = list(self._opened.page(arguments.text("token"), arguments.whole("max_entries")))
        return Answer(body=tables.batched(tables.lines(map(shown, page))))

    def _close(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        self._opened.close(arguments.text("token"))
        return Answer()

    # ---- the workspace

    def _scan(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        table = self._workspace.scan(
            _DRIVER,
            arguments.paths("exclude"),
            use_cache=not arguments.flag("no_cache"),
            files_max=arguments.whole("max_files", 0),
            bytes_max=arguments.whole("max_bytes", 0),
        )
        entries = tables.lines(map(tables.pack_entry, table.entries))
        return Answer({"files": table.files, "bytes": table.bytes}, tables.batched(entries))

    def _blobs(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        """Of the hashes in the body (a JSON list), in its order, from the files of the newest scan."""
        hashes = read_hashes("the body", _json(body.read(PLAN_BYTES_MAX)))
        return Answer(body=tables.batched(self._blob_pieces(hashes)))

    def _blob_pieces(self, hashes: Iterable[bytes]) -> Iterator[bytes]:
        for sha256 in hashes:
            before: bytes | None = None
            for piece in self._workspace.read_blob(sha256):
                if before is not None:
                    yield tables.pack_blob_piece(sha256, before, last=False)
                before = piece
            yield tables.pack_blob_piece(sha256, before or b"", last=True)

    def _apply(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        """The body: the plan as JSON, `plan_bytes` long, then the pieces of the blobs that it sends."""
        plan_bytes = arguments.whole("plan_bytes")
        if plan_bytes > PLAN_BYTES_MAX:
            raise limit(f"a plan has at most {PLAN_BYTES_MAX >> 20} MiB")
        value = _json(body.read(plan_bytes))
        if not isinstance(value, dict) or not isinstance(value.get("put"), list):
            raise invalid("a plan is an object with put, remove and have")
        plan = Plan(tuple(map(tables.unpack_entry, value["put"])), read_paths("remove", value.get("remove")))
        with self._workspace.spool() as spool:
            _gather(spool, body)
            done = self._workspace.apply(_DRIVER, plan, read_hashes("have", value.get("have")), spool)
        return Answer({"written": done.written, "removed": done.removed, "unchanged": done.unchanged})

    def _processes(self, arguments: Arguments, body: IO[bytes]) -> Answer:
        """Whoever has the workspace as its working directory or a file open there, but for the helper and all above it."""
        processes = procfs.table()
        apart = procfs.ancestors(processes, os.getpid())
        found = []
        for pid, process in sorted(processes.items()):
            if process.alive and pid not in apart and (how := set(procfs.touches(pid, self._root))):
                found.append([pid, "cwd" in how, "file" in how])
        return Answer(body=tables.batched(tables.lines(found)))


def shown(info: Info) -> list[Any]:
    return [paths.shown(info.path), info.type.value, info.size, info.mode, info.mtime_ns]


def _pieces(path: str, file: OpenFile, offset: int, length: int | None) -> Iterator[bytes]:
    with closing(file), errors_name(path):
        while length is None or length > 0:
            data = file.read(offset, tables.READ_BYTES if length is None else min(tables.READ_BYTES, length))
            if not data:
                return
            yield data
            offset += len(data)
            length = None if length is None else length - len(data)


def _gather(spool: Spool, body: IO[bytes]) -> None:
    while head := body.read(tables.BLOB_HEAD.size):
        if len(head) < tables.BLOB_HEAD.size:
            raise invalid("the body ends within a blob")
        sha256, last, size = tables.BLOB_HEAD.unpack(head)
        data = body.read(min(size, tables.READ_BYTES))
        if len(data) < size:
            raise invalid("the body ends within a blob, or a piece is too large")
        spool.add(sha256, data, last=last)
    spool.finish()


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise invalid("the body is no JSON") from None

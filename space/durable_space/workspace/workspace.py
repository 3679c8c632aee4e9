"""The workspace: its newest table, its bytes by hash, and its changes, each under the caller's epoch."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from durable_base.crash import crash_point
from durable_space.gate import Caller, Fence
from durable_space.refusal import Code, Reason, Refused, invalid
from durable_space.staging import Staging
from durable_space.workspace import places
from durable_space.workspace.apply import Applied, Applier, Plan, copy_verified, missing
from durable_space.workspace.hashes import HashCache
from durable_space.workspace.scan import Scanner, Table

PIECE_BYTES = 256 << 10


@dataclass(slots=True)
class Spool:
    """Blobs that came with an Apply, verified, in a folder that goes with it."""

    folder: Path
    blobs: dict[bytes, Path] = field(default_factory=dict)
    _coming: SpooledBlob | None = None

    def add(self, sha256: bytes, data: bytes, *, last: bool) -> None:
        """The next piece: of the blob that is coming, or the first of another one. Raise Refused."""
        if len(sha256) != 32:
            raise invalid("a blob's sha256 has 32 bytes")
        blob = self._coming or SpooledBlob(self, sha256)
        if blob.sha256 != sha256:
            raise invalid("pieces of two blobs are mixed")
        blob.write(data)
        self._coming = None if last else blob
        if last:
            blob.finish()

    def finish(self) -> None:
        """No more come. Raise Refused."""
        if self._coming is not None:
            raise invalid("the last blob is not whole")


class SpooledBlob:
    def __init__(self, spool: Spool, sha256: bytes) -> None:
        self.sha256 = sha256
        self._spool = spool
        self._path = spool.folder / sha256.hex()
        self._digest = hashlib.sha256()
        self._file = self._path.open("wb")

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)

    def finish(self) -> None:
        """Raise Refused (CHECKSUM_MISMATCH): the pieces are not what their hash says."""
        self._file.close()
        if self._digest.digest() != self.sha256:
            raise Refused(
                Code.FAILED_PRECONDITION,
                Reason.CHECKSUM_MISMATCH,
                "the pieces of a blob do not have its hash: nothing was changed",
                condition="BlobMismatch",
                metadata={"sha256": self.sha256.hex()},
            )
        self._spool.blobs[self.sha256] = self._path


class Workspace:
    """Blocking. Scans and applies wait for each other: a table is then never of a half-made tree of our own."""

    def __init__(self, root: Path, gate: Fence, staging: Staging, cache: HashCache) -> None:
        self.root = root
        self._root = os.fsencode(root)
        self._gate = gate
        self._staging = staging
        self._cache = cache
        self._newest: Table | None = None
        self._paths: dict[bytes, list[bytes]] | None = None  # sha256 -> paths of the newest scan, once somebody asks
        self._turn = threading.Lock()

    def scan(
        self, caller: Caller, exclude: Collection[bytes], *, use_cache: bool, files_max: int, bytes_max: int
    ) -> Table:
        """Raise Refused; a scan under way when the floor rises above its caller ends as StaleEpoch (rule 26)."""
        scanner = Scanner(self._root, self._cache, self._staging.prefix)
        with self._turn:
            places.make_root(self._root)
            table = scanner.scan(
                exclude,
                use_cache=use_cache,
                files_max=files_max,
                bytes_max=bytes_max,
                go_on=lambda: self._gate.check_reading(caller),
            )
            self._newest, self._paths = table, None
            self._cache.save()
        self._gate.check_reading(caller)
        return table

    def read_blob(self, sha256: bytes) -> Iterator[bytes]:
        """Pieces of at most 256 KiB, at least one. Raise Refused (BlobChanged): nothing has this hash any more; if that
        shows only at the end, after pieces were given, they are worth nothing."""
        for path in self._paths_of(sha256):
            try:
                fd = self._open_file(path)
            except (OSError, Refused):
                continue
            try:
                yield from _verified_pieces(fd, sha256)
                return
            except _ChangedError:
                continue
            finally:
                os.close(fd)
        raise changed(sha256)

    def _paths_of(self, sha256: bytes) -> list[bytes]:
        paths, newest = self._paths, self._newest
        if paths is None:
            paths = {}
            for entry in newest.entries if newest else ():
                if entry.sha256:
                    paths.setdefault(entry.sha256, []).append(entry.path)
            if newest is self._newest:
                self._paths = paths
        return paths.get(sha256, [])

    @contextmanager
    def spool(self) -> Iterator[Spool]:
        with self._staging.folder() as folder:
            yield Spool(folder)

    def apply(self, caller: Caller, plan: Plan, have: Iterable[bytes], spool: Spool) -> Applied:
        """Raise Refused or OSError. Before anything changes, what `have` names is copied: the plan may remove its source."""
        with self._turn:
            self._gate.check(caller)
            places.make_root(self._root)
            for sha256 in set(have) - spool.blobs.keys():
                self._gather(sha256, plan, spool)
            applied = Applier(self._root, self._gate, self._staging, caller).run(plan, spool.blobs)
        crash_point("apply.answered")
        return applied

    def _gather(self, sha256: bytes, plan: Plan, spool: Spool) -> None:
        targets = [entry.path for entry in plan.put if entry.sha256 == sha256]
        for path in [*self._paths_of(sha256), *targets]:
            try:
                source = self._open_file(path)
            except (OSError, Refused):
                continue
            blob = spool.folder / sha256.hex()
            target = os.open(blob, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                copy_verified(Path(f"/proc/self/fd/{source}"), target, sha256)
            except Refused:
                continue
            finally:
                os.close(source)
                os.close(target)
            spool.blobs[sha256] = blob
            return
        raise changed(sha256) if self._paths_of(sha256) else missing(sha256)

    def _open_file(self, path: bytes) -> int:
        parts = path.split(b"/")
        with places.opened(self._root, parts[:-1]) as folder:
            fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise changed(b"")
        return fd


class _ChangedError(Exception):
    """Nothing was given yet, so another path may be tried."""


def _verified_pieces(fd: int, sha256: bytes) -> Iterator[bytes]:
    """One piece is verified before it is given; of several the last one is."""
    digest = hashlib.sha256()
    piece = os.read(fd, PIECE_BYTES)
    first = True
    while True:
        digest.update(piece)
        following = os.read(fd, PIECE_BYTES) if piece else b""
        if not following and digest.digest() != sha256:
            if first:
                raise _ChangedError
            raise changed(sha256)
        yield piece
        if not following:
            return
        piece, first = following, False


def changed(sha256: bytes) -> Refused:
    return Refused(
        Code.NOT_FOUND,
        Reason.PATH_NOT_FOUND,
        "no file has these bytes any more: scan again",
        condition="BlobChanged",
        metadata={"sha256": sha256.hex()},
    )

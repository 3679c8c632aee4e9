"""Uploads in parts: gathered in the data folder, put in place whole by the commit (`files` does that, under the gate).

Each belongs to the floor that it began under, so nothing of an older driver is ever committed; it goes when the floor rises
(`drop_old`), and when its time is up. Kept in memory by name and
in DIR/staging by content: a restarted daemon knows none of them, and has swept what they left. Bounded: so many at once, each
for so long, and no more bytes than leave the disk its reserve.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

from durable_base.files import free_bytes
from durable_base.floor import Floor
from durable_space.config import Limits
from durable_space.refusal import Code, Reason, Refused, disk_full, invalid, limit, stale

ID_BYTES_MAX = 256
SECONDS_DEFAULT = 3600.0
LOOK_SECONDS = 5.0  # between two looks for those whose time is up
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """What the upload will become, as its first request said."""

    path: str  # absolute
    mode: int  # of cua.env.v1.WriteMode
    permissions: int
    parents: bool
    size: int  # expected bytes, 0: any
    sha256: str  # expected, empty: any


@dataclass(slots=True)
class Upload:
    id: str
    target: Target
    owner: Floor
    seconds: float  # that it is kept after it was last used
    content: IO[bytes]
    used: float = field(default_factory=time.monotonic)
    received: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False

    @property
    def expires_ns(self) -> int:
        """Unix time."""
        return time.time_ns() + int((self.used + self.seconds - time.monotonic()) * 1e9)


class Uploads:
    """Thread-safe; may block on the disk."""

    def __init__(self, folder: Path, limits: Limits, floor: Callable[[], Floor]) -> None:
        self._folder = folder
        self._limits = limits
        self._floor = floor
        self._lock = threading.Lock()
        self._open: dict[str, Upload] = {}

    def begin(self, upload_id: str, target: Target, owner: Floor, seconds: float) -> Upload:
        """A new one; or the one of this id, if it is for the same target, to be gone on with. Raise Refused."""
        if len(upload_id.encode()) > ID_BYTES_MAX:
            raise invalid(f"upload_id has at most {ID_BYTES_MAX} bytes")
        with self._lock:
            self._drop_old()
            if owner != self._floor():
                # It rose since the caller was admitted: what is made now would be dropped by nobody.
                raise stale(owner, self._floor())
            known = self._open.get(upload_id)
            if known is not None:
                if known.target != target:
                    raise Refused(
                        Code.FAILED_PRECONDITION,
                        Reason.UNSPECIFIED,
                        "this upload id is another target's: abort that one, or use a new id",
                    )
                known.used = time.monotonic()
                return known
            if len(self._open) >= self._limits.uploads:
                raise limit(f"{self._limits.uploads} uploads are open: commit or abort some, or raise --uploads-max")
            content = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # has no name, so nothing is left of it
            kept = min(seconds or SECONDS_DEFAULT, self._limits.upload_seconds)
            made = Upload(upload_id or secrets.token_hex(16), target, owner, kept, content)
            self._open[made.id] = made
            return made

    def add(self, upload_id: str, owner: Floor, offset: int, data: bytes) -> tuple[Upload, bool]:
        """(upload, whether these bytes were there already). Raise Refused: they do not begin where the last ended."""
        with self._lock:
            upload = self._find(upload_id, owner)
        with upload.turn:
            _check_open(upload)
            upload.used = time.monotonic()
            if offset < upload.received and offset + len(data) <= upload.received:
                upload.content.seek(offset)
                if upload.content.read(len(data)) != data:
                    raise Refused(
                        Code.FAILED_PRECONDITION,
                        Reason.OFFSET_MISMATCH,
                        f"other bytes than these came at offset {offset} before: abort the upload and begin anew",
                        metadata={"expected_offset": str(upload.received)},
                    )
                return upload, True
            if offset != upload.received:
                raise Refused(
                    Code.FAILED_PRECONDITION,
                    Reason.OFFSET_MISMATCH,
                    f"offset {offset} was sent, {upload.received} bytes are here: go on from there",
                    metadata={"expected_offset": str(upload.received)},
                )
            self._need_room(len(data))
            try:
                upload.content.seek(upload.received)
                upload.content.write(data)
                upload.received += len(data)
            finally:
                if upload.closed:  # dropped meanwhile
                    upload.content.close()
            return upload, False

    def take(self, upload_id: str, owner: Floor) -> Upload:
        """For the commit or the abort: from here on the id is free, and the caller closes `content`. Raise Refused."""
        with self._lock:
            upload = self._find(upload_id, owner)
            del self._open[upload_id]
        with upload.turn:
            upload.closed = True
        return upload

    def drop_old(self) -> None:
        """Those of an older floor, and those whose time is up: their room on the disk is free."""
        with self._lock:
            self._drop_old()

    @property
    def is_empty(self) -> bool:
        return not self._open

    def _find(self, upload_id: str, owner: Floor) -> Upload:
        self._drop_old()
        upload = self._open.get(upload_id)
        if upload is None or upload.owner != owner:
            raise _unknown()
        return upload

    def _drop_old(self) -> None:
        """One whose bytes are being added right now is not idle, and closed by who adds them."""
        floor, now = self._floor(), time.monotonic()
        for upload in list(self._open.values()):
            idle = upload.turn.acquire(blocking=False)
            try:
                if upload.owner != floor or (idle and now - upload.used > upload.seconds):
                    del self._open[upload.id]
                    upload.closed = True
                    if idle:
                        upload.content.close()
            finally:
                if idle:
                    upload.turn.release()

    def _need_room(self, size: int) -> None:
        if free_bytes(self._folder) - size < self._limits.free_bytes:
            raise disk_full(
                f"{self._folder}: less than {self._limits.free_bytes >> 20} MiB would be free: free some space"
            )


def _check_open(upload: Upload) -> None:
    if upload.closed:
        raise _unknown()


def _unknown() -> Refused:
    return Refused(
        Code.NOT_FOUND,
        Reason.SESSION_NOT_FOUND,
        "no such upload: it ended, its time was up, or a newer driver came: begin anew",
    )

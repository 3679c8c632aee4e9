"""What is known of files that were hashed before: the cache of scans, which outlives the daemon.

Guarantee: a hash is given only for the same inode with the same size, mode, mtime and ctime, taken when both times were
older than the look by more than a clock tick (git's rule for racy entries): a change within one tick could leave all of
them as they were. A same-size edit whose mtime was put back has another ctime. The look is the scan's, before its first
hashing, at the mappings through which a file can change and keep its times: `unstamped` says which files it leaves out.

On disk it is a log of batches, each with its length and checksum, so one that SIGKILL cut off is left out; power loss needs
no care, since another boot voids the whole (rule 13). Entries of files that are gone do no harm, and go when the log has
grown to twice what is alive.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Set
from pathlib import Path

from durable_base.files import write_atomic
from durable_space.workspace.entries import Entry, Kind

log = logging.getLogger("durable.space")

RACY_NS = 50_000_000  # some ticks of the slowest kernel clock that stamps files (10 ms)
VERSION = 2
_BATCH = struct.Struct(">II")  # bytes, CRC-32
_ENTRY = struct.Struct(">IQQQqqI32s")  # bytes of the path, inode, device, size, mtime, ctime, mode, sha256
SMALL_LOG_BYTES = 1 << 20  # up to here nobody minds what is dead in it

Stamp = tuple[int, int, int, int, int, int]  # inode, device, size, mtime_ns, ctime_ns, mode: all must be equal


def stamp_of(status: os.stat_result) -> Stamp:
    return (
        status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode,
    )  # fmt: skip


class HashCache:
    """Thread-safe. Without a `path` it lives in memory."""

    def __init__(self, path: Path | None = None, boot_id: str = "", root: bytes = b"") -> None:
        self._path = path
        self._head = json.dumps([VERSION, boot_id, root.hex()]).encode()
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[Stamp, Entry]] = {}
        self._unsaved: dict[bytes, tuple[Stamp, Entry]] = {}
        self._log_bytes = 0  # of the file; 0: it must be written anew
        if path is not None:
            self._load(path)

    def get(self, path: bytes, stamp: Stamp) -> Entry | None:
        known = self._known.get(path)
        return known[1] if known is not None and known[0] == stamp else None

    def put(self, entry: Entry, stamp: Stamp, looked_at_ns: int) -> None:
        """`looked_at_ns`: when the scan looked who could change files unseen (`unstamped.look`), before it hashed anything."""
        if max(stamp[3], stamp[4]) < looked_at_ns - RACY_NS:
            with self._lock:
                self._known[entry.path] = self._unsaved[entry.path] = (stamp, entry)

    def keep_only(self, paths: Set[bytes]) -> None:
        with self._lock:
            for gone in self._known.keys() - paths:
                del self._known[gone]
                self._unsaved.pop(gone, None)

    def save(self) -> None:
        """After a scan. A disk that is full costs the next daemon a hashing, nothing else."""
        if self._path is None:
            return
        with self._lock:
            try:
                self._save(self._path)
            except OSError as error:
                log.warning("scan.cache_unsaved", extra={"fields": {"errno": error.errno}})

    def _save(self, path: Path) -> None:
        if not self._unsaved:
            return
        batch = _pack(self._unsaved.values())
        live = sum(_ENTRY.size + len(name) for name in self._known)
        if not self._log_bytes or self._log_bytes + len(batch) > 2 * live + SMALL_LOG_BYTES:
            whole = _framed(self._head) + _framed(_pack(self._known.values()))
            write_atomic(path, whole, sync=False)
            self._log_bytes = len(whole)
        else:
            with path.open("ab") as file:
                file.write(_framed(batch))
            self._log_bytes += len(batch) + _BATCH.size
        self._unsaved.clear()

    def _load(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError:
            return
        batches = list(_batches(data))
        if not batches or batches[0][0] != self._head:
            return  # another boot, another workspace, or another version
        for batch, _ in batches[1:]:
            for stamp, entry in _unpack(batch):
                self._known[entry.path] = (stamp, entry)
        self._log_bytes = batches[-1][1]
        if self._log_bytes < len(data):
            os.truncate(path, self._log_bytes)  # what was cut off would hide all that comes after it


def _framed(batch: bytes) -> bytes:
    return _BATCH.pack(len(batch), zlib.crc32(batch)) + batch


def _batches(data: bytes) -> Iterable[tuple[bytes, int]]:
    """(batch, where the next one begins), up to the first that is not whole."""
    place = 0
    while place + _BATCH.size <= len(data):
        size, checksum = _BATCH.unpack_from(data, place)
        begin = place + _BATCH.size
        batch = data[begin : begin + size]
        if len(batch) < size or zlib.crc32(batch) != checksum:
            return
        place = begin + size
        yield batch, place


def _pack(entries: Iterable[tuple[Stamp, Entry]]) -> bytes:
    return b"".join(_ENTRY.pack(len(entry.path), *stamp, entry.sha256) + entry.path for stamp, entry in entries)


def _unpack(batch: bytes) -> Iterable[tuple[Stamp, Entry]]:
    place = 0
    while place < len(batch):
        length, inode, device, size, mtime_ns, ctime_ns, mode, sha256 = _ENTRY.unpack_from(batch, place)
        place += _ENTRY.size
        path = batch[place : place + length]
        place += length
        yield (
            (inode, device, size, mtime_ns, ctime_ns, mode),
            Entry(path, Kind.FILE, mode & 0o7777, mtime_ns, size, sha256),
        )

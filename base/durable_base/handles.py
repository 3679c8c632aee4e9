"""A file or a folder that is held open: it stays the same one, however its path is renamed, replaced or removed meanwhile.

Blocking and thread-safe; standard library alone. Raise OSError, and ValueError once closed. Opening never waits, which a named
pipe would make it do, and a read is by position: one whose caller gave up has taken nothing from the next. What nobody holds
any more closes itself: a caller that is cancelled while a thread opens for it never gets to close.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator

_SCAN_BYTES = 1 << 18


class OpenFile:
    """A regular file. A folder is EISDIR, anything else EINVAL, a symlink under `no_follow` ELOOP."""

    _fd = -1

    def __init__(self, path: str, *, no_follow: bool = False) -> None:
        self._fd = open_regular(path, os.O_RDONLY | (os.O_NOFOLLOW if no_follow else 0))
        self._lock = threading.Lock()

    def status(self) -> os.stat_result:
        with self._lock:
            return os.fstat(self._held())

    def read(self, offset: int, length: int) -> bytes:
        """Fewer bytes than `length` only at the end of the file."""
        pieces: list[bytes] = []
        with self._lock:
            while length > 0 and (piece := os.pread(self._held(), length, offset)):
                pieces.append(piece)
                offset += len(piece)
                length -= len(piece)
        return b"".join(pieces)

    def scan_lines(self, offset: int, lines_max: int, bytes_max: int) -> tuple[int, int]:
        """Pass at most `lines_max` LFs from `offset`: (the offset behind the last one passed, how many).

        Fewer than `lines_max` where the file ends, or after the piece in which `bytes_max` is reached: the offset is then
        where the scan stopped, which may be inside a line.
        """
        found, end = 0, offset + bytes_max
        with self._lock:
            while found < lines_max and offset < end:
                piece = os.pread(self._held(), _SCAN_BYTES, offset)
                if not piece:
                    break
                behind = 0
                while found < lines_max and (at := piece.find(b"\n", behind)) >= 0:
                    found, behind = found + 1, at + 1
                offset += behind if found == lines_max else len(piece)
        return offset, found

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _held(self) -> int:
        if self._fd < 0:
            raise ValueError("the file is closed")
        return self._fd


class OpenFolder:
    """Its entries in the file system's own order, a page at a time; what vanished meanwhile is left out."""

    _fd = -1

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._names: Iterator[os.DirEntry[str]] | None = None

    def status(self) -> os.stat_result:
        with self._lock:
            return os.fstat(self._held())

    def page(self, entries_max: int) -> list[tuple[str, os.stat_result, str]]:
        """(name, lstat, a symlink's target) of the next ones; none at the end."""
        with self._lock:
            if self._names is None:
                self._names = os.scandir(self._held())
            found: list[tuple[str, os.stat_result, str]] = []
            while len(found) < entries_max and (entry := next(self._names, None)) is not None:
                try:
                    status = os.stat(entry.name, dir_fd=self._held(), follow_symlinks=False)
                    target = os.readlink(entry.name, dir_fd=self._held()) if stat.S_ISLNK(status.st_mode) else ""
                    found.append((entry.name, status, target))
                except FileNotFoundError:
                    continue
            return found

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                self._names = None  # closes the descriptor that the iteration has of its own
                os.close(fd)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _held(self) -> int:
        if self._fd < 0:
            raise ValueError("the folder is closed")
        return self._fd


def open_regular(path: str, flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
    """A descriptor of a regular file; `path` may be relative to `dir_fd`.

    Raise OSError: EISDIR for a folder, EINVAL for whatever else is no file.
    """
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a named pipe that nobody reads
            raise OSError(errno.EINVAL, "not a regular file", path) from None
        raise
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "is a directory", path)
    raise OSError(errno.EINVAL, "not a regular file", path)

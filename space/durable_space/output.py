"""Read what a command has put out, by absolute offset, while its shim still writes (`_sink` describes the files)."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from durable_space._sink import RECORD, STDERR
from durable_space.refusal import Code, Reason, Refused


@dataclass(frozen=True, slots=True)
class Piece:
    offset: int
    stderr: bool
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


def segments(folder: str) -> list[int]:
    """First offsets of the kept segments, ascending."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(name, 16) for name in names if not name.endswith(".i"))


def kept_range(folder: str) -> tuple[int, int]:
    """(first offset that is kept, offset after the last). (0, 0) before any output."""
    while True:
        starts = segments(folder)
        if not starts:
            return 0, 0
        try:
            return starts[0], starts[-1] + os.stat(_path(folder, starts[-1])).st_size
        except FileNotFoundError:
            continue  # the shim dropped it meanwhile, so newer ones exist


class OutputReader:
    """One reader's place in the output of one command. At most one segment is open, and stays readable while it is, whatever
    is dropped meanwhile. One thread reads at a time; another may close."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.offset = 0
        self._lock = threading.Lock()  # a follower that is cancelled closes while its thread still reads
        self._closed = False
        self._start = -1  # of the open segment
        self._data = self._index = -1
        self._changes: list[tuple[int, bool]] = []  # (offset, from here on stderr), of the open segment

    def seek(self, offset: int) -> tuple[int, int]:
        """Stand at `offset`. Give what `kept_range` gives. Raise Refused (OutputGone)."""
        with self._lock:
            kept = kept_range(self._folder)
            self._stand_at(offset)
            return kept

    def seek_newest(self, bytes_max: int) -> tuple[int, int]:
        """The same for the newest `bytes_max`, which are always there: of a command that drops what was just found, those
        that are the newest a moment later."""
        with self._lock:
            while True:
                first, end = kept_range(self._folder)
                try:
                    self._stand_at(max(first, end - bytes_max))
                except Refused:
                    continue
                return first, end

    def close(self) -> None:
        """For good. Waits for a read that is under way."""
        with self._lock:
            self._closed = True
            self._let_go()

    def read(self, bytes_max: int) -> list[Piece]:
        """What is there now from `offset` on, at most `bytes_max`; empty: nothing yet, or it was closed.

        Raise Refused (OutputGone) if bytes at `offset` were dropped.
        """
        with self._lock:
            return self._read(bytes_max)

    def _stand_at(self, offset: int) -> None:
        self._let_go()
        self.offset = offset
        self._open()

    def _let_go(self) -> None:
        for fd in (self._data, self._index):
            if fd >= 0:
                os.close(fd)
        self._data = self._index = -1
        self._start = -1
        self._changes = []

    def _read(self, bytes_max: int) -> list[Piece]:
        if self._start < 0 and not self._open():
            return []
        while True:
            size = os.fstat(self._data).st_size
            self._read_index()
            here = self.offset - self._start
            if here < size:
                data = os.pread(self._data, min(bytes_max, size - here), here)
                pieces = self._cut(data)
                self.offset += len(data)
                return pieces
            if all(start <= self._start for start in segments(self._folder)):
                return []
            # A newer segment exists, so this one has its final size: go on to the one that starts where it ends.
            if os.fstat(self._data).st_size > here:
                continue
            self._let_go()
            if not self._open():
                return []

    def _open(self) -> bool:
        """False: closed, or there is no output yet."""
        starts = [] if self._closed else segments(self._folder)
        if not starts:
            return False
        if self.offset < starts[0]:
            raise gone(self.offset, starts[0])
        start = max(candidate for candidate in starts if candidate <= self.offset)
        try:
            data = os.open(_path(self._folder, start), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise gone(self.offset, min(segments(self._folder), default=self.offset)) from None
        try:
            self._index = os.open(_path(self._folder, start) + ".i", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            os.close(data)
            raise gone(self.offset, min(segments(self._folder), default=self.offset)) from None
        self._data, self._start = data, start
        return True

    def _read_index(self) -> None:
        while True:
            raw = os.pread(self._index, RECORD.size * 4096, RECORD.size * len(self._changes))
            whole = len(raw) - len(raw) % RECORD.size
            if not whole:
                return
            self._changes += [(offset, stream == STDERR) for offset, stream in RECORD.iter_unpack(raw[:whole])]

    def _cut(self, data: bytes) -> list[Piece]:
        """One piece per run of bytes of one stream."""
        end = self.offset + len(data)
        pieces = []
        for number, (begin, stderr) in enumerate(self._changes):
            finish = self._changes[number + 1][0] if number + 1 < len(self._changes) else end
            low, high = max(begin, self.offset), min(finish, end)
            if low < high:
                pieces.append(Piece(low, stderr, data[low - self.offset : high - self.offset]))
        return pieces


def tail(folder: str, bytes_max: int) -> list[Piece]:
    """The newest bytes that are kept, at most `bytes_max`. Never OutputGone: what is dropped while it is read, newer bytes
    have replaced."""
    reader = OutputReader(folder)
    try:
        while True:
            _, end = reader.seek_newest(bytes_max)
            found: list[Piece] = []
            try:
                while (left := end - reader.offset) > 0 and (pieces := reader.read(left)):
                    found += pieces
            except Refused:
                continue
            return found
    finally:
        reader.close()


def gone(offset: int, first: int) -> Refused:
    return Refused(
        Code.OUT_OF_RANGE,
        Reason.OFFSET_MISMATCH,
        f"output before offset {first} is no longer kept, {offset} was asked for: read from {first} on",
        condition="OutputGone",
        metadata={"first_offset": str(first)},
    )


def _path(folder: str, start: int) -> str:
    return os.path.join(folder, f"{start:016x}")

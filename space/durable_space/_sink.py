"""Where a shim puts output: segment files with absolute offsets, and beside each an index of which bytes are stderr.

    out/<start, 16 hex>      raw bytes of stdout and stderr, in the order the shim read them; the name is the first offset
    out/<start, 16 hex>.i    records (offset u64, stream u8), one where the stream changes, the first at the segment's start

An index record is written before the bytes it speaks of, so a reader that takes the data file's size first and the index
second knows the stream of every byte. Survives SIGKILL of any process. Bounded: the oldest segments go once `keep_bytes`
newer bytes exist; a full disk ends the recording, never the command. Standard library alone; `output` is the reader.
"""

from __future__ import annotations

import os
import struct
from collections import deque

STDOUT, STDERR = 1, 2
RECORD = struct.Struct(">QB")
SEGMENT_BYTES_MAX = 8 << 20
SEGMENT_BYTES_MIN = 64 << 10


class Sink:
    def __init__(self, folder: str, keep_bytes: int) -> None:
        self._folder = folder  # made with the first byte
        self._keep = keep_bytes
        self._segment_bytes = min(SEGMENT_BYTES_MAX, max(SEGMENT_BYTES_MIN, keep_bytes // 8))
        self._segments: deque[tuple[int, int]] = deque()  # (start, bytes) of finished segments, oldest first
        self._start = 0
        self._data = self._index = -1
        self._stream = 0
        self.end = 0  # absolute offset after the last recorded byte
        self.failure = ""  # why nothing is recorded any more

    def write(self, stream: int, data: bytes) -> None:
        """Record `data`, or note in `failure` that from here on nothing is."""
        if self.failure:
            return
        try:
            if self._data < 0 or self.end - self._start >= self._segment_bytes:
                self._next_segment(stream)
            elif stream != self._stream:
                _write_all(self._index, RECORD.pack(self.end, stream))
                self._stream = stream
            view = memoryview(data)
            while view:
                done = os.write(self._data, view)
                self.end += done
                view = view[done:]
        except OSError as error:
            self.failure = f"output is no longer recorded: {error.strerror}"

    def close(self) -> None:
        for fd in (self._data, self._index):
            if fd >= 0:
                os.close(fd)
        self._data = self._index = -1

    def _next_segment(self, stream: int) -> None:
        if self._data >= 0:
            self._segments.append((self._start, self.end - self._start))
        else:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self.close()
        kept = sum(size for _, size in self._segments)
        while self._segments and kept - self._segments[0][1] >= self._keep:
            start, size = self._segments.popleft()
            kept -= size
            # The data first: a segment exists for readers exactly as long as its data file does.
            for suffix in ("", ".i"):
                os.unlink(os.path.join(self._folder, f"{start:016x}{suffix}"))
        self._start = self.end
        path = os.path.join(self._folder, f"{self._start:016x}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._index = os.open(path + ".i", flags, 0o600)
        _write_all(self._index, RECORD.pack(self._start, stream))
        self._stream = stream
        self._data = os.open(path, flags, 0o600)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]

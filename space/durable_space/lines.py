"""Lines of a file, a batch at a time, for answers of bounded size: a line that fits into none is refused, not gathered."""

from __future__ import annotations

import os

from durable_base.handles import open_regular
from durable_space.files import errors_name
from durable_space.refusal import Code, Reason, Refused

BATCH_BYTES = 256 << 10
READ_BYTES = 1 << 20
LINE_ROOM = 64  # bytes of an answer around its only line


class LineReader:
    """Lines at LF alone. Blocking; opens at the first batch. Holds a piece of the file and one line, of `line_bytes_max`."""

    def __init__(self, path: str, line_bytes_max: int) -> None:
        self._path = path
        self._line_bytes_max = line_bytes_max
        self._fd = -1
        self._piece, self._at = b"", 0  # read, and how far it is handed out
        self._ahead: tuple[bytes, bool] | None = None  # gathered, and for the next batch
        self._ended = False

    def batch(self, lines_max: int | None) -> list[tuple[bytes, bool]]:
        """(line without its LF, whether it had one); empty at the end. A long line comes alone. Raise Refused."""
        with errors_name(self._path):
            if self._fd < 0 and not self._ended:
                self._fd = open_regular(self._path, os.O_RDONLY)
            found: list[tuple[bytes, bool]] = []
            size = 0
            while size < BATCH_BYTES and (lines_max is None or len(found) < lines_max):
                line, self._ahead = self._ahead or self._next(), None
                if line is None:
                    break
                size += len(line[0]) + 8
                if found and size > BATCH_BYTES:
                    self._ahead = line
                    break
                found.append(line)
            return found

    def _next(self) -> tuple[bytes, bool] | None:
        """Each byte is looked at and copied once, however long the line."""
        parts: list[bytes] = []
        size = 0
        while not self._ended:
            if self._at == len(self._piece):
                self._piece, self._at = os.read(self._fd, READ_BYTES), 0
                self._ended = not self._piece
                continue
            end = self._piece.find(b"\n", self._at)
            stop = end if end >= 0 else len(self._piece)
            size += stop - self._at
            if size > self._line_bytes_max:
                raise too_long(self._path, self._line_bytes_max)
            parts.append(self._piece[self._at : stop])
            self._at = stop + (end >= 0)
            if end >= 0:
                return b"".join(parts), True
        return (b"".join(parts), False) if parts else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._ended = -1, True


def too_long(path: str, bytes_max: int) -> Refused:
    return Refused(
        Code.FAILED_PRECONDITION,
        Reason.LIMIT_EXCEEDED,
        f"{path}: a line has more than {bytes_max} bytes, and fits into no answer: read it by ReadFile",
        condition="LineTooLong",
        metadata={"path": path, "max_bytes": str(bytes_max)},
    )

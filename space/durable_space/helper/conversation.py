"""The helper's end of the conversation: each frame that comes gets one frame back, until stdin closes.

A request is one frame, after as many of op `body` as its body needs; an answer is one frame, and as many more as are asked for
by op `more` while it says `more`. Whatever else is asked meanwhile drops what was begun.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from durable_space.files import IN_MEMORY_BYTES_MAX
from durable_space.helper.arguments import Arguments
from durable_space.helper.frames import Frame, FrameError, Unpacker, pack
from durable_space.helper.life import StdinClosed
from durable_space.helper.operations import Operations
from durable_space.refusal import Code, Reason, Refused, invalid, of_unnamed, shortened, shortened_all

READ_BYTES = 1 << 16
MESSAGE_BYTES_MAX = 2048  # of a refusal's text
METADATA_BYTES_MAX = 64 << 10
MALFORMED = 4  # exit status: no frame came; nothing after it can be told apart


class Conversation:
    def __init__(self, source: int, sink: int, operations: Operations, spool_folder: Path) -> None:
        self._source = source
        self._sink = sink
        self._operations = operations
        self._spool_folder = spool_folder
        self._unpacker = Unpacker()
        self._body: IO[bytes] | None = None  # of a request that is still coming
        self._rest = _Rest(())  # of an answer that is still going

    def run(self) -> int:
        """The exit status. 0: stdin closed."""
        try:
            while (frame := self._receive()) is not None:
                send(self._sink, self._answer(frame))
        except FrameError as error:
            refusal = Refused(Code.INVALID_ARGUMENT, Reason.UNSPECIFIED, str(error), condition="MalformedFrame")
            send(self._sink, Frame({"error": refused(refusal)}))
            return MALFORMED
        except (StdinClosed, BrokenPipeError):
            pass
        return 0

    def _receive(self) -> Frame | None:
        """None: no more come. What had begun to come then is nobody's."""
        while (frame := self._unpacker.next()) is None:
            data = os.read(self._source, READ_BYTES)
            if not data:
                return None
            self._unpacker.feed(data)
        return frame

    def _answer(self, frame: Frame) -> Frame:
        number = frame.message.get("id")
        try:
            message, body = self._step(Arguments(frame.message), frame.body)
        except (StdinClosed, BrokenPipeError):
            raise
        except Exception as error:
            self._drop()
            message, body = {"error": refused(_as_refusal(error))}, b""
        return Frame({"id": number, **message}, body)

    def _step(self, arguments: Arguments, data: bytes) -> tuple[dict[str, Any], bytes]:
        name = arguments.text("op")
        if name == "more":
            return self._piece({})
        self._rest.close()
        body = self._body or tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES_MAX, dir=str(self._spool_folder))  # noqa: SIM115
        self._body = body
        body.write(data)
        if name == "body":
            return {}, b""
        body.seek(0)
        self._body = None
        with body:
            answer = self._operations.run(name, arguments, body)
        self._rest = _Rest(answer.body)
        return self._piece(answer.message)

    def _piece(self, message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        piece = self._rest.take()
        return ({**message, "more": True} if self._rest.more else message), piece

    def _drop(self) -> None:
        self._rest.close()
        if self._body is not None:
            self._body.close()
            self._body = None


class _Rest:
    """The pieces of an answer, with a look ahead that tells whether there are more."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)
        self._ahead = next(self._pieces, None)

    @property
    def more(self) -> bool:
        return self._ahead is not None

    def take(self) -> bytes:
        """Empty if there is none."""
        piece, self._ahead = self._ahead, next(self._pieces, None) if self._ahead is not None else None
        return piece or b""

    def close(self) -> None:
        self._ahead = None
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


def send(sink: int, frame: Frame) -> None:
    view = memoryview(pack(frame))
    while view:
        view = view[os.write(sink, view) :]


def refused(refusal: Refused) -> dict[str, Any]:
    return {
        "code": refusal.code.name,
        "reason": refusal.reason.name,
        "message": shortened(refusal.message, MESSAGE_BYTES_MAX),
        "metadata": shortened_all(refusal.metadata, METADATA_BYTES_MAX),
    }


def _as_refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if (refusal := of_unnamed(error)) is not None:
        return refusal
    if isinstance(error, (UnicodeError, OverflowError)):
        return invalid("a value is out of what the system can take")
    return Refused(Code.INTERNAL, Reason.INTERNAL, f"the Space helper failed: {type(error).__name__}")

"""Frames between the driver and the Space helper: a head of fixed size, a message (a JSON object), and bytes beside it.

Bounded: a head that announces more than the maxima is refused before anything is gathered. After a malformed frame nothing
that follows can be told apart, so whoever meets one ends the conversation.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

MAGIC = b"DSH1"  # and the protocol's version: a head begins with it, stray output does not
HEAD = struct.Struct(">4sII")  # magic, bytes of the message, bytes of the body
MESSAGE_BYTES_MAX = 256 << 10
BODY_BYTES_MAX = 1 << 20


class FrameError(Exception):
    """Not a frame. Content-free: sizes and kinds alone."""


@dataclass(frozen=True, slots=True)
class Frame:
    message: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""


def pack(frame: Frame) -> bytes:
    """Raise FrameError: it is larger than a frame may be."""
    message = json.dumps(frame.message, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    _check(len(message), len(frame.body))
    return HEAD.pack(MAGIC, len(message), len(frame.body)) + message + frame.body


class Unpacker:
    """Frames from a stream that is cut anywhere."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def inside(self) -> bool:
        """A frame has begun and is not whole."""
        return bool(self._held)

    def feed(self, data: bytes) -> None:
        self._held += data

    def next(self) -> Frame | None:
        """The next whole one. Raise FrameError."""
        if not MAGIC.startswith(bytes(self._held[: len(MAGIC)])):
            raise FrameError("what came is no frame of this version: something else writes there")
        if len(self._held) < HEAD.size:
            return None
        _, message_bytes, body_bytes = HEAD.unpack_from(self._held)
        _check(message_bytes, body_bytes)
        end = HEAD.size + message_bytes + body_bytes
        if len(self._held) < end:
            return None
        message = _message(bytes(self._held[HEAD.size : HEAD.size + message_bytes]))
        body = bytes(self._held[HEAD.size + message_bytes : end])
        del self._held[:end]
        return Frame(message, body)


def _check(message_bytes: int, body_bytes: int) -> None:
    if message_bytes > MESSAGE_BYTES_MAX or body_bytes > BODY_BYTES_MAX:
        raise FrameError(
            f"a frame of {message_bytes} + {body_bytes} bytes is above {MESSAGE_BYTES_MAX} + {BODY_BYTES_MAX}"
        )


def _message(raw: bytes) -> dict[str, Any]:
    try:
        message = json.loads(raw.decode("ascii"))
    except (ValueError, RecursionError):
        raise FrameError("the message of a frame is no JSON") from None
    if not isinstance(message, dict):
        raise FrameError("the message of a frame is no JSON object")
    return message

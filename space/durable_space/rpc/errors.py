"""Refusals as gRPC statuses, with `cua.env.v1.ErrorInfo` in `grpc-status-details-bin` (google.rpc.Status)."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any

from durable_protocol.cua.env.v1 import common_pb2
from durable_space.refusal import Refused

DETAILS = "grpc-status-details-bin"
# Clients take 8 KiB of trailing metadata, in which the message stands three times and all of it grows by a third.
MESSAGE_BYTES_MAX = 512
METADATA_BYTES_MAX = 3000  # of all values together
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def status_code(refusal: Refused) -> grpc.StatusCode:
    return _CODES[refusal.code.value]


def message(refusal: Refused) -> str:
    return shortened(refusal.message, MESSAGE_BYTES_MAX)


def details(refusal: Refused) -> tuple[str, bytes]:
    """The metadata entry."""
    info = common_pb2.ErrorInfo(
        reason=common_pb2.ErrorReason.ValueType(int(refusal.reason)),
        message=message(refusal),
        feature=refusal.feature,
        metadata=shortened_all(refusal.metadata),
    )
    packed = Any()
    packed.Pack(info)
    return DETAILS, _status(refusal.code.value, message(refusal), packed.SerializeToString())


def shortened_all(metadata: Mapping[str, str]) -> dict[str, str]:
    """The small values whole, since a program compares them; the large ones share what is left."""
    left, kept = METADATA_BYTES_MAX, {}
    for number, (name, value) in enumerate(sorted(metadata.items(), key=lambda pair: len(pair[1].encode()))):
        kept[name] = shortened(value, left // (len(metadata) - number))
        left -= len(kept[name].encode())
    return kept


def shortened(text: str, bytes_max: int) -> str:
    """The beginning and the end: what it is about, and the remedy."""
    raw = text.encode()
    if len(raw) <= bytes_max:
        return text
    half = (bytes_max - 5) // 2
    return f"{raw[:half].decode(errors='ignore')} ... {raw[-half:].decode(errors='ignore')}"


def _status(code: int, message: str, detail: bytes) -> bytes:
    """google.rpc.Status by hand: int32 code = 1; string message = 2; repeated Any details = 3."""
    text = message.encode()
    return b"\x08" + _varint(code) + b"\x12" + _varint(len(text)) + text + b"\x1a" + _varint(len(detail)) + detail


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)

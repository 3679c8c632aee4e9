"""Refusals as gRPC statuses, with `cua.env.v1.ErrorInfo` in `grpc-status-details-bin` (google.rpc.Status)."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any

from durable_protocol.cua.env.v1 import common_pb2
from durable_space.refusal import Refused, shortened, shortened_all

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
        metadata=shortened_all(refusal.metadata, METADATA_BYTES_MAX),
    )
    packed = Any()
    packed.Pack(info)
    return DETAILS, _status(refusal.code.value, message(refusal), packed.SerializeToString())


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

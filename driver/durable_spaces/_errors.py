"""Where gRPC's errors end: each becomes what the adapter tells apart, and nothing of the library passes beyond the client.

A refusal carries `cua.env.v1.ErrorInfo` inside a google.rpc.Status in the trailing metadata; the three fields of that status
are read here by hand, so that its package is not needed for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2

from durable_base.errors import HaltError, StaleEpochError
from durable_base.floor import Floor
from durable_harness.errors import HarnessError
from durable_protocol.cua.env.v1 import common_pb2

_DETAILS = "grpc-status-details-bin"
_BROKEN = ("RST_STREAM", "Stream removed", "Socket closed", "Connection reset", "GOAWAY")


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the Space answered instead of doing it."""

    code: grpc.StatusCode
    condition: str  # ours, empty where none was given
    reason: str  # `ERROR_REASON_...`, empty where none was given
    message: str
    metadata: dict[str, str]


class SpaceRefused(Exception):
    """A refusal that the caller may know how to answer (a missing file, a full disk, a changed blob)."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the Space refused: {refusal.condition or refusal.code.name}: {refusal.message}")
        self.refusal = refusal


class Unreachable(Exception):
    """The connection broke or there was none: what was asked may have been done or not."""


@contextmanager
def only_halts() -> Iterator[None]:
    """The adapter's own failure is nobody's result: whatever goes wrong in here ends the drive, and the next one recovers."""
    try:
        yield
    except (StaleEpochError, HaltError, HarnessError):
        raise
    except SpaceRefused as error:
        raise HaltError("SpaceRefused", f"{error}; the next drive tries again") from error
    except Exception as error:
        raise HaltError("AdapterFailed", f"{type(error).__name__}: {error}; the next drive tries again") from error


def judge(error: grpc.aio.AioRpcError, own: Floor) -> Exception:
    """The error to raise. Unreachable: try again; SpaceRefused: the caller's; the rest ends the drive."""
    refusal = read_refusal(error)
    broken = refusal.code is grpc.StatusCode.UNAVAILABLE or (
        refusal.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)
        and not refusal.reason
        and (refusal.code is grpc.StatusCode.CANCELLED or any(mark in refusal.message for mark in _BROKEN))
    )
    if broken:
        return Unreachable(refusal.message)
    if refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return HaltError("SpaceUnreachable", "the Space did not answer in time; the next drive tries again")
    if refusal.code is grpc.StatusCode.UNAUTHENTICATED:
        return HaltError(
            "SpaceUnauthenticated", "the Space refused the token: check that the driver and the Space have the same one"
        )
    if refusal.code is grpc.StatusCode.UNIMPLEMENTED:
        return HaltError(
            "MissingCapability",
            f"the Space does not serve what the adapter needs ({refusal.message}): run it with this product's Space daemon",
            permanent=True,
        )
    return _by_condition(refusal, own)


def _by_condition(refusal: Refusal, own: Floor) -> Exception:
    match refusal.condition:
        case "StaleEpoch":
            epoch = refusal.metadata.get("current_epoch", "")
            incarnation = refusal.metadata.get("current_incarnation", "")
            return StaleEpochError("space", own, Floor(int(epoch) if epoch.isdigit() else own.epoch, incarnation))
        case "EpochNotAdvanced":
            # The floor fell below an epoch that this driver has advanced it to: the Space was replaced under us (rule 16).
            return HaltError("SpaceChanged", "the Space has forgotten this drive's epoch; the next drive looks anew")
        case "SpaceChanged":
            return HaltError(
                "SpaceChanged", "another Space answers than this drive began with; the next drive looks anew"
            )
        case "ProofFailed":
            return HaltError(
                "ProofFailed",
                "the Space can't prove that every process of an older epoch is dead: replace the Space, its files are in the log",
            )
        case _:
            if refusal.reason == "ERROR_REASON_STALE_EPOCH":
                return StaleEpochError("space", own, own)
            return SpaceRefused(refusal)


def read_refusal(error: grpc.aio.AioRpcError) -> Refusal:
    info = common_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS and isinstance(value, bytes):
            info = _error_info(value)
    reason = common_pb2.ErrorReason.Name(info.reason) if info.reason else ""
    metadata = dict(info.metadata)
    message = info.message or error.details() or ""
    return Refusal(error.code(), metadata.get("condition", ""), reason, message, metadata)


def _error_info(status: bytes) -> common_pb2.ErrorInfo:
    for number, value in _length_delimited(status):
        if number == 3:
            detail = any_pb2.Any.FromString(value)
            if detail.type_url.endswith("cua.env.v1.ErrorInfo"):
                return common_pb2.ErrorInfo.FromString(detail.value)
    return common_pb2.ErrorInfo()


def _length_delimited(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a protobuf message; its varints (the status code) are stepped over."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            varint()
        elif tag & 7 == 2:
            size = varint()
            yield tag >> 3, message[at : at + size]
            at += size
        else:
            return

"""What the daemon answers instead of doing something. Free of gRPC: `rpc.errors` puts it on the wire.

A `Refused` means that nothing was started or changed (or, in an Apply, nothing but whole files).
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Mapping

from durable_base.floor import Floor


class Code(enum.Enum):
    """The gRPC status of the same name."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAUTHENTICATED = 16


class Reason(enum.IntEnum):
    """`cua.env.v1.ErrorReason`, the part that is used here."""

    UNSPECIFIED = 0
    UNAUTHENTICATED = 1
    FEATURE_UNSUPPORTED = 2
    PERMISSION_DENIED = 3
    STALE_HANDLE = 4
    PROCESS_NOT_FOUND = 10
    PATH_NOT_FOUND = 11
    PATH_EXISTS = 12
    NOT_A_DIRECTORY = 13
    IS_A_DIRECTORY = 14
    DISK_FULL = 15
    CHECKSUM_MISMATCH = 16
    SESSION_NOT_FOUND = 17
    OFFSET_MISMATCH = 18
    SEQUENCE_GAP = 19
    LIMIT_EXCEEDED = 21
    INTERNAL = 23
    STALE_EPOCH = 24


class Refused(Exception):
    """`condition` is the stable name that a program compares (space.proto); `message` is for people and ends in the remedy."""

    def __init__(
        self,
        code: Code,
        reason: Reason,
        message: str,
        *,
        condition: str = "",
        feature: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.feature = feature
        self.metadata = dict(metadata or {})
        if condition:
            self.metadata["condition"] = condition


def stale(caller: Floor, floor: Floor) -> Refused:
    """Rule 1: below the floor, or equal with another incarnation."""
    return Refused(
        Code.FAILED_PRECONDITION,
        Reason.STALE_EPOCH,
        f"epoch {caller.epoch} is older than the Space's current epoch {floor.epoch}, or another driver claimed it: "
        "a newer driver owns this Space",
        condition="StaleEpoch",
        metadata={
            "epoch": str(caller.epoch),
            "current_epoch": str(floor.epoch),
            "current_incarnation": floor.incarnation,
        },
    )


def not_advanced(caller: Floor, floor: Floor) -> Refused:
    """Rule 4: only AdvanceEpoch raises the floor for a caller that has an incarnation."""
    return Refused(
        Code.FAILED_PRECONDITION,
        Reason.STALE_EPOCH,
        f"epoch {caller.epoch} is above the Space's current epoch {floor.epoch}: call AdvanceEpoch first",
        condition="EpochNotAdvanced",
        metadata={"epoch": str(caller.epoch), "current_epoch": str(floor.epoch)},
    )


def invalid(message: str, **metadata: str) -> Refused:
    return Refused(Code.INVALID_ARGUMENT, Reason.UNSPECIFIED, message, metadata=metadata)


def unsupported(feature: str, message: str) -> Refused:
    return Refused(Code.UNIMPLEMENTED, Reason.FEATURE_UNSUPPORTED, message, feature=feature)


def disk_full(message: str, **metadata: str) -> Refused:
    return Refused(Code.RESOURCE_EXHAUSTED, Reason.DISK_FULL, message, condition="DiskFull", metadata=metadata)


def limit(message: str) -> Refused:
    return Refused(Code.RESOURCE_EXHAUSTED, Reason.LIMIT_EXCEEDED, message, condition="LimitExceeded")


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_BY_ERRNO = {
    errno.ENOENT: (Code.NOT_FOUND, Reason.PATH_NOT_FOUND),
    errno.EEXIST: (Code.ALREADY_EXISTS, Reason.PATH_EXISTS),
    errno.EACCES: (Code.PERMISSION_DENIED, Reason.PERMISSION_DENIED),
    errno.EPERM: (Code.PERMISSION_DENIED, Reason.PERMISSION_DENIED),
    errno.EROFS: (Code.PERMISSION_DENIED, Reason.PERMISSION_DENIED),
    errno.ENOTDIR: (Code.FAILED_PRECONDITION, Reason.NOT_A_DIRECTORY),
    errno.EISDIR: (Code.FAILED_PRECONDITION, Reason.IS_A_DIRECTORY),
    errno.ENOTEMPTY: (Code.FAILED_PRECONDITION, Reason.IS_A_DIRECTORY),
    errno.EINVAL: (Code.INVALID_ARGUMENT, Reason.UNSPECIFIED),
    errno.ENAMETOOLONG: (Code.INVALID_ARGUMENT, Reason.UNSPECIFIED),
    errno.EFBIG: (Code.INVALID_ARGUMENT, Reason.LIMIT_EXCEEDED),
    errno.ELOOP: (Code.INVALID_ARGUMENT, Reason.UNSPECIFIED),
}


def of_os_error(error: OSError, path: str) -> Refused:
    """`path` is absolute: the caller named it, or what it named was resolved to it."""
    if error.errno in DISK_FULL:
        return disk_full(f"{path}: {error.strerror}: free some space", path=path)
    code, reason = _BY_ERRNO.get(error.errno or 0, (Code.INTERNAL, Reason.INTERNAL))
    return Refused(code, reason, f"{path}: {error.strerror or error}", metadata={"path": path})


def of_unnamed(error: BaseException) -> Refused | None:
    """Of an error that came to the end of a call as it was raised; None: it is the daemon's own failure.

    A write to a descriptor has no file name: whichever of its disks is full, a program must be able to tell.
    """
    if isinstance(error, OSError):
        if error.filename:
            return of_os_error(error, str(error.filename))
        if error.errno in DISK_FULL:
            return disk_full(
                "a disk of the Space is full (the workspace's, or the daemon's data folder's): free some space"
            )
    return None


def shortened_all(metadata: Mapping[str, str], bytes_max: int) -> dict[str, str]:
    """The small values whole, since a program compares them; the large ones share what is left."""
    left, kept = bytes_max, {}
    for number, (name, value) in enumerate(sorted(metadata.items(), key=lambda pair: len(pair[1]))):
        kept[name] = shortened(value, left // (len(metadata) - number))
        left -= len(kept[name].encode())
    return kept


def shortened(text: str, bytes_max: int) -> str:
    """The beginning and the end: what it is about, and the remedy."""
    raw = text.encode(errors="backslashreplace")
    if len(raw) <= bytes_max:
        return raw.decode()
    half = (bytes_max - 5) // 2
    return f"{raw[:half].decode(errors='ignore')} ... {raw[-half:].decode(errors='ignore')}"

"""Path tables as values."""

from __future__ import annotations

import enum
import os
from collections.abc import Collection
from dataclasses import dataclass

from durable_space.refusal import Code, Reason, Refused, invalid

PATH_BYTES_MAX = 4096 - 96  # absolute: what the kernel takes, without the room for a temporary name beside it
NAME_BYTES_MAX = 255
TARGET_BYTES_MAX = 4095
NAMES_MAX = 100  # listed in a refusal
SHOWN_BYTES_MAX = 512  # of a path in a refusal; of a longer one the folder that it is in is named


class Kind(enum.Enum):
    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """`path` is relative to the workspace, bytes kept exactly. `mode` is 0 for symlinks, `sha256` 32 bytes for files."""

    path: bytes
    kind: Kind
    mode: int = 0
    mtime_ns: int = 0
    size: int = 0
    sha256: bytes = b""
    target: bytes = b""


def check_entry(entry: Entry) -> None:
    """Raise Refused: nothing can be made of it."""
    if entry.kind is Kind.FILE and len(entry.sha256) != 32:
        raise invalid("a file's sha256 has 32 bytes")
    if entry.kind is Kind.SYMLINK and (not 0 < len(entry.target) <= TARGET_BYTES_MAX or b"\0" in entry.target):
        raise invalid(f"a symlink needs a target without NUL, of at most {TARGET_BYTES_MAX} bytes")


def check_path(path: bytes) -> list[bytes]:
    """Parts of a workspace-relative path. Raise Refused (EscapesWorkspace) for what is no such path."""
    parts = path.split(b"/")
    if not path or b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise escapes(path)
    return parts


def escapes(path: bytes) -> Refused:
    text = path.decode("utf-8", "backslashreplace")
    return Refused(
        Code.INVALID_ARGUMENT,
        Reason.UNSPECIFIED,
        f"{text}: leaves the workspace (or would through a symlink): nothing was changed",
        condition="EscapesWorkspace",
        metadata={"path": text},
    )


def is_trackable(root: bytes, path: bytes) -> bool:
    """Whether a table may hold it: a scan refuses what an Apply would, and the other way round."""
    return b"\\" not in path and b"\n" not in path and len(os.path.join(root, path)) <= PATH_BYTES_MAX


def untracked(paths: Collection[bytes]) -> Refused:
    names = sorted({_shown(path).decode("utf-8", "backslashreplace") for path in paths})
    shown = "; ".join(name.replace("\n", "\\n") for name in names[:NAMES_MAX])
    return Refused(
        Code.FAILED_PRECONDITION,
        Reason.UNSPECIFIED,
        f"{len(paths)} entries can't be tracked (a name with backslash or newline, a path of more than {PATH_BYTES_MAX} "
        f"bytes, or a special file): {shown}: remove, rename or exclude them",
        condition="UntrackedNames",
        metadata={"paths": shown, "count": str(len(paths))},
    )


def _shown(path: bytes) -> bytes:
    return path if len(path) <= SHOWN_BYTES_MAX else path[:SHOWN_BYTES_MAX].rpartition(b"/")[0]

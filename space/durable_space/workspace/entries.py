"""Path tables as values."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from durable_space.refusal import Code, Reason, Refused, invalid


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
    if entry.kind is Kind.SYMLINK and (not entry.target or b"\0" in entry.target):
        raise invalid("a symlink needs a target without NUL")


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

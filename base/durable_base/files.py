"""Durable file writes, in one place, so that each call says what it survives and a test can record them; and room for them.

`write_atomic(sync=False)`: survives SIGKILL of any process, whole or not at all; not power loss.
`write_atomic(sync=True)`: survives power loss as well: file, then rename, then folder are synced.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: str | os.PathLike[str], data: bytes, *, sync: bool = True, mode: int = 0o600) -> None:
    """Put `data` at `path`: a reader sees the old bytes or the new ones. Raise OSError with nothing at `path` changed."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(target.parent)


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """What this user can still write on the disk of `folder`. Raise OSError."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize

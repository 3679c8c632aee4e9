"""Folders of the workspace by descriptor, one component at a time and never through a symlink.

Guarantee: whatever a process in the Space renames or links meanwhile, what is opened here lay below the root when it was
looked up, component by component. Not chosen: openat2 (RESOLVE_BENEATH), which Python does not offer and gVisor lacks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from durable_base.trees import empty
from durable_space.workspace.entries import escapes

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MADE_MODE = 0o755


def status_of(fd: int, name: bytes) -> os.stat_result | None:
    """None if there is nothing."""
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def make_root(root: bytes) -> None:
    """Again, if it is gone: the root itself is no part of any table, so one that a command removed is an empty workspace.
    Raise OSError: its parent is gone too."""
    with suppress(FileExistsError):
        os.mkdir(root, MADE_MODE)
        os.chmod(root, MADE_MODE)


@contextmanager
def opened(root: bytes, parts: Sequence[bytes], *, make: bool = False) -> Iterator[int]:
    """The folder at `parts`, opened for reading; with `make`, folders that lack are made.

    Raise Refused (EscapesWorkspace) at a symlink, OSError (ENOENT, ENOTDIR) at what is no folder; a root that a command
    replaced by a symlink is none, wherever it points.
    """
    fd = os.open(root, _FLAGS)
    try:
        for depth, part in enumerate(parts):
            if make:
                try:
                    os.mkdir(part, MADE_MODE, dir_fd=fd)
                except FileExistsError:
                    pass
                else:
                    os.chmod(part, MADE_MODE, dir_fd=fd)
            below = _enter(fd, part, parts[: depth + 1])
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _enter(fd: int, part: bytes, parts: Sequence[bytes]) -> int:
    for attempt in (1, 2):
        try:
            return os.open(part, _FLAGS, dir_fd=fd)
        except PermissionError:
            status = status_of(fd, part)
            if attempt == 2 or status is None or not stat.S_ISDIR(status.st_mode):
                raise
            # A folder of ours that we may not read: who owns it may change that, and Apply puts the mode right at its end.
            os.chmod(part, stat.S_IMODE(status.st_mode) | 0o700, dir_fd=fd)
        except OSError as error:
            status = status_of(fd, part)
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and status is not None and stat.S_ISLNK(status.st_mode):
                raise escapes(b"/".join(parts)) from None
            raise
    raise AssertionError("the second attempt returns or raises")


def remove_tree(fd: int, name: bytes) -> bool:
    """Remove `name` in the folder `fd`, with all below it, never following a symlink. False: it was not there."""
    status = status_of(fd, name)
    if status is None:
        return False
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=fd)
        return True
    below = _enter_to_remove(fd, name, status)
    try:
        empty(below, _enter_to_remove)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=fd)
    return True


def _enter_to_remove(fd: int, name: bytes, status: os.stat_result) -> int:
    below = _enter(fd, name, [name])
    if os.geteuid() != 0 and stat.S_IMODE(status.st_mode) & 0o700 != 0o700:
        os.fchmod(below, 0o700)
    return below

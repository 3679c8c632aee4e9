"""Remove a folder with all that is in it, however deep: a command may have nested it beyond what recursion, or a path, can say.

Not chosen: `shutil.rmtree`, which before Python 3.13 calls itself for each level, and holds each level open.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LEVELS_MAX = 100  # walked, and held open, at once; a folder below is moved up first
Enter = Callable[
    [int, bytes, os.stat_result], int
]  # (folder, name, status of what is there) -> the folder of that name


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Follows no symlink, the last part of `path` included. Raise OSError; what was removed until then is gone."""
    top = os.open(path, _FLAGS)
    try:
        empty(top)
    finally:
        os.close(top)
    os.rmdir(path)


def _enter(folder: int, name: bytes, _status: os.stat_result) -> int:
    return os.open(name, _FLAGS, dir_fd=folder)


def empty(folder: int, enter: Enter = _enter) -> None:
    """Remove all that is in the open `folder`. `enter` opens a folder in it, and never follows a symlink."""
    while _clear(folder, folder, 1, enter):
        pass


def _clear(folder: int, top: int, level: int, enter: Enter) -> bool:
    """Whether folders from too far below were moved to `top`, to be cleared from there: neither the interpreter's stack nor the
    descriptors are as many as a tree may have levels."""
    moved = False
    for name in map(os.fsencode, os.listdir(folder)):
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        below = enter(folder, name, status)
        try:
            if level == LEVELS_MAX:
                os.rename(name, secrets.token_hex(16).encode(), src_dir_fd=folder, dst_dir_fd=top)
                moved = True
                continue
            moved |= _clear(below, top, level + 1, enter)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=folder)
    return moved

"""Remove a folder with all that is in it, however deep: a command may have nested it beyond what recursion, or a path, can say.

Not chosen: `shutil.rmtree`, which before Python 3.13 calls itself for each level, and holds each level open.
"""

from __future__ import annotations

import os
import secrets

LEVELS_MAX = 100  # walked, and held open, at once; a folder below is moved up first


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Follows no symlink, the last part of `path` included. Raise OSError; what was removed until then is gone."""
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while _clear(top, top, LEVELS_MAX):
            pass
    finally:
        os.close(top)
    os.rmdir(path)


def _clear(folder: int, top: int, levels: int) -> bool:
    """Whether folders from too far below were moved to `top`, to be cleared from there."""
    moved = False
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
        elif levels == 0:
            os.rename(name, f".deep-{secrets.token_hex(8)}", src_dir_fd=folder, dst_dir_fd=top)
            moved = True
        else:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                moved |= _clear(inner, top, levels - 1)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
    return moved

"""Files that may change without their times telling: those whose hash no scan may believe later.

A store through a shared mapping gives a file a new time only if the page was clean before it. So a file that is hashed while
a process has such a page may change afterwards and keep its stamp. One look per scan, before the first file is hashed, is
enough: a mapping that is made after the look starts with clean pages, so its first store gives a time that is not older than
the look, and a file as young as the look is not believed either (`hashes`).

On other file systems than `STAMPING` even that store gives no new time (tmpfs, after a read), or another machine's clock
gives it: nothing there is believed. Not seen: processes that this one may not look into, or that are on another machine or
in a container with processes of its own.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from durable_space import mounts

STAMPING = frozenset((b"ext2", b"ext3", b"ext4", b"xfs", b"btrfs", b"f2fs", b"bcachefs", b"overlay"))
ROUNDS_MAX = 50  # of looks for processes that came meanwhile, before the look counts for nothing
_MEMORY = (b"/dev/zero ", b"/memfd:", b"/SYSV", b"anon_inode:")  # mappings of no file that has a path


@dataclass(frozen=True, slots=True)
class Look:
    """`mounts` are (path, whether it gives times) at and below the root, deepest first. The inode alone counts, since on
    overlayfs and btrfs a mapping shows another device than the file; on some overlayfs another inode too, hence the paths."""

    at_ns: int
    root: bytes
    mounts: tuple[tuple[bytes, bool], ...]
    inodes: frozenset[int]
    paths: frozenset[bytes]
    whole: bool = True

    def vouches(self, path: bytes, inode: int) -> bool:
        """Whether a change of the file at `path` (below the root) after its hashing will show in its times."""
        place = os.path.join(self.root, path)
        if not self.whole or inode in self.inodes or place in self.paths:
            return False
        return next((stamps for mount, stamps in self.mounts if mounts.is_inside(place, mount)), False)


def look(root: bytes) -> Look:
    """At all processes and mounts as they are now. About 20 ms for 150 processes."""
    at_ns = time.time_ns()
    inodes: set[int] = set()
    paths: set[bytes] = set()
    whole = _read_processes(inodes, paths)
    return Look(at_ns, root, _mounts(root), frozenset(inodes), frozenset(paths), whole)


def _read_processes(inodes: set[int], paths: set[bytes]) -> bool:
    """False: new ones came all the time. A process may give its mappings to a child and end before it is read, so the list
    is read again until it names nobody new."""
    seen: set[str] = set()
    for _ in range(ROUNDS_MAX):
        try:
            new = {name for name in os.listdir("/proc") if name.isdigit()} - seen
        except OSError:
            return False
        if not new:
            return bool(seen)
        seen |= new
        for pid in new:
            _read_process(f"/proc/{pid}", inodes, paths)
    return False


def _read_process(folder: str, inodes: set[int], paths: set[bytes]) -> None:
    try:
        maps = _read(f"{folder}/maps")
        if not maps:  # the first thread has ended, others may run on
            maps = b"".join(_read(f"{folder}/task/{thread}/maps") for thread in os.listdir(f"{folder}/task"))
    except OSError:
        return  # gone, or another user's
    for line in maps.splitlines():
        span, permissions, _, _, inode, *rest = line.split(None, 5)
        if permissions[3:] != b"s" or not rest or rest[0].startswith(_MEMORY):
            continue
        if permissions[1:2] == b"w" or _may_become_writable(f"{folder}/map_files/{span.decode()}"):
            inodes.add(int(inode))
            paths.add(rest[0])


def _may_become_writable(link: str) -> bool:
    """Of a file that was opened for writing: mprotect makes its dirty pages writable again, and no time changes."""
    try:
        return bool(os.lstat(link).st_mode & 0o200)
    except OSError:
        return True


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _mounts(root: bytes) -> tuple[tuple[bytes, bool], ...]:
    try:
        listed = mounts.table()
    except OSError:
        return ()
    found = {
        place: kind in STAMPING
        for place, kind in listed
        if mounts.is_inside(place, root) or mounts.is_inside(root, place)
    }
    return tuple(sorted(found.items(), key=lambda mount: -len(mount[0])))

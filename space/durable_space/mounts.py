"""Mounts, as the kernel tells them. Standard library alone: the daemon and the Space helper use it."""

from __future__ import annotations

import re

_ESCAPED = re.compile(rb"\\([0-7]{3})")


def table() -> list[tuple[bytes, bytes]]:
    """(place, type of the file system), in the order in which they were made: a later one hides an earlier one at the same
    place. Raise OSError."""
    found = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file.read().splitlines():
            fields, _, source = line.partition(b" - ")
            place = _ESCAPED.sub(lambda code: bytes([int(code[1], 8)]), fields.split(b" ")[4])
            found.append((place, source.split(b" ", 1)[0]))
    return found


def is_inside(path: bytes, folder: bytes) -> bool:
    """By name alone; a folder is inside itself."""
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")

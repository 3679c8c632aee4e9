"""Whether two workspaces are equal: paths, kinds, modes, bytes and link targets. Times are no part of it."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


def table(root: Path) -> dict[str, str]:
    """Path -> what is there, for everything below `root`; links are not followed."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            found[str(path.relative_to(root))] = _describe(path)
    return found


def differences(left: Path, right: Path) -> list[str]:
    """One line per path that differs, in order; empty if the two are equal."""
    one, other = table(left), table(right)
    absent = "absent"
    return [
        f"{path}: {one.get(path, absent)} against {other.get(path, absent)}"
        for path in sorted(one.keys() | other.keys())
        if one.get(path) != other.get(path)
    ]


def _describe(path: Path) -> str:
    facts = path.lstat()
    mode = f"{stat.S_IMODE(facts.st_mode):04o}"
    if stat.S_ISLNK(facts.st_mode):
        return f"link to {os.readlink(path)}"
    if stat.S_ISDIR(facts.st_mode):
        return f"folder {mode}"
    if stat.S_ISREG(facts.st_mode):
        return f"file {mode}, {facts.st_size} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    return f"special file {facts.st_mode:o}"

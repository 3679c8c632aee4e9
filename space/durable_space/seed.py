"""Fill a workspace that is still empty from a folder, once: an init container's work.

A ConfigMap volume keeps its files behind symlinks (`name -> ..data/name -> ..<time>/name`); what is copied is what they
point at, and names that begin with `..` are the volume's own. Killed half-way, the next start begins again: files are
copied to a folder beside the workspace's content only under temporary names, and the marker comes last.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from durable_base.crash import crash_point
from durable_base.errors import UsageError
from durable_base.files import sync_folder, write_atomic
from durable_base.trees import remove_tree

MARKER = "seeded"
_UNFINISHED = ".durable-seed"


def fill(source: Path, workspace: Path, data: Path | None) -> int | None:
    """Give how many files were copied; None: it was filled before, or is not empty. UsageError: a folder lacks."""
    for flag, folder in (("--from", source), ("--workspace", workspace)):
        if not folder.is_dir():
            raise UsageError(f"{flag} {folder}: is no folder: make or mount it first")
    if data is not None and (data / MARKER).exists():
        return None
    unfinished = workspace / _UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    half_done = (workspace / f"{_UNFINISHED}-moving").exists()
    # A volume's own folder for what its file system check finds is no content.
    if not half_done and any(name not in ("lost+found",) for name in os.listdir(workspace)):
        return None
    unfinished.mkdir(mode=0o700)
    count = _copy(source, unfinished)
    _sync(unfinished)
    (workspace / f"{_UNFINISHED}-moving").touch()
    crash_point("seed.copied")
    for name in sorted(os.listdir(unfinished)):
        target = workspace / name
        if target.is_dir() and not target.is_symlink():
            remove_tree(target)
        os.rename(unfinished / name, target)
    unfinished.rmdir()
    if data is not None:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(data / MARKER, b"")
    (workspace / f"{_UNFINISHED}-moving").unlink()
    sync_folder(workspace)
    return count


def _copy(source: Path, target: Path) -> int:
    count = 0
    for name in sorted(os.listdir(source)):
        if name.startswith(".."):
            continue
        entry, copy = source / name, target / name
        if entry.is_dir():
            copy.mkdir()
            count += _copy(entry, copy)
            shutil.copystat(entry, copy)
        elif entry.is_file():
            shutil.copyfile(entry, copy)
            shutil.copymode(entry, copy)
            count += 1
    return count


def _sync(folder: Path) -> None:
    for path, _, names in os.walk(folder):
        for name in names:
            fd = os.open(os.path.join(path, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_folder(path)

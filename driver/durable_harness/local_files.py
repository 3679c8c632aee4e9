"""File operations of `LocalExecutionEnv`, by absolute path. Blocking; raise OSError or FileError.

What `write` leaves survives SIGKILL, whole or not at all; `flush` makes a file and its name survive power loss too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from typing import TypeVar

from durable_base.files import sync_folder, write_atomic
from durable_base.handles import open_regular
from durable_base.trees import remove_tree
from durable_harness.env import FileCode, FileError, FileInfo, FileKind, Line

T = TypeVar("T")

_CODES: Mapping[int, FileCode] = {
    errno.ENOENT: "not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ENOTDIR: "not_directory",
    errno.EISDIR: "is_directory",
    errno.EINVAL: "invalid",
    errno.ENOTEMPTY: "invalid",
    errno.EEXIST: "invalid",
    errno.ENAMETOOLONG: "invalid",
    errno.ELOOP: "invalid",
}


def errors_as_file_errors(target: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except OSError as error:
        code = _CODES.get(error.errno or 0, "unknown")
        raise FileError(code, target, (error.strerror or str(error)).lower()) from error
    except ValueError as error:  # a name that no system call takes
        raise FileError("invalid", target, str(error)) from error


def read(target: str, offset: int, length: int | None) -> bytes:
    with open(open_regular(target, os.O_RDONLY), "rb") as file:
        file.seek(offset)
        return file.read(-1 if length is None else length)


def lines(target: str, max_lines: int | None) -> list[Line]:
    """Split at LF alone. At most `max_lines`, without reading on."""
    found: list[Line] = []
    with open(open_regular(target, os.O_RDONLY), "rb") as file:
        while max_lines is None or len(found) < max_lines:
            raw = file.readline()
            if not raw:
                break
            found.append(Line(raw.removesuffix(b"\n").decode("utf-8", "replace"), raw.endswith(b"\n")))
    return found


def write(target: str, data: bytes) -> None:
    """Through a symlink to its file, keeping the file's mode."""
    target = os.path.realpath(target)
    if os.path.isdir(target):
        raise FileError("is_directory", target, "is a directory")
    mode = None
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(target).st_mode)
    make_folders(os.path.dirname(target))
    write_atomic(target, data, sync=False, mode=0o666 if mode is None else mode)
    if mode is not None:
        os.chmod(target, mode)  # what the umask took from a file that is only replaced


def append(target: str, data: bytes) -> None:
    make_folders(os.path.dirname(target))
    with open(open_regular(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(data)


def flush(target: str) -> None:
    fd = open_regular(target, os.O_RDONLY)
    try:
        os.fsync(fd)
        sync_folder(os.path.dirname(target))
    except OSError as error:
        # Whatever the number: the operation was right, and its effect is what is unknown.
        raise FileError("unknown", target, f"can't be synced: {(error.strerror or str(error)).lower()}") from error
    finally:
        os.close(fd)


def entries(target: str) -> list[FileInfo]:
    found: list[FileInfo] = []
    for name in sorted(os.listdir(target)):
        inner = os.path.join(target, name)
        with contextlib.suppress(FileNotFoundError, FileError):
            found.append(info_of(inner, os.lstat(inner)))
    return found


def make_folders(target: str) -> None:
    """With parents, for what is to lie in them: a file in the way is no directory, and is told as that."""
    try:
        os.makedirs(target, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target) from None


def remove(target: str, *, recursive: bool, force: bool) -> None:
    try:
        directory = stat.S_ISDIR(os.lstat(target).st_mode)
    except FileNotFoundError:
        if force:
            return
        raise
    if not directory:
        os.unlink(target)
    elif recursive:
        remove_tree(target)
    else:
        raise FileError("is_directory", target, "is a directory; remove it recursively")


def temporary(folder: str, prefix: str, suffix: str) -> str:
    """An empty file in a new folder."""
    path = os.path.join(tempfile.mkdtemp(dir=folder), f"{prefix}{os.urandom(4).hex()}{suffix}")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return path


def info_of(target: str, status: os.stat_result) -> FileInfo:
    kind = kind_of(status.st_mode)
    if kind is None:
        raise FileError("invalid", target, "neither file, directory nor symlink")
    return FileInfo(os.path.basename(target), target, kind, status.st_size, status.st_mtime_ns // 1_000_000)


def kind_of(mode: int) -> FileKind | None:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else None

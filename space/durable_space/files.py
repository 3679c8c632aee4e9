"""Files of the Space by absolute path. Every change is made whole under the gate: before a newer epoch, or not at all.

A write goes to a temporary name beside its target, is synced and renamed: survives power loss, seen whole or not at all.
The folder is opened once: where it was opened is where the file goes, however it is renamed or replaced meanwhile.
An append and a truncate change the file in place; killed in the middle, an append may have added a part.
Raise Refused with the absolute path. Blocking.
"""

from __future__ import annotations

import enum
import errno
import grp
import hashlib
import itertools
import os
import pwd
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from durable_base.crash import crash_point
from durable_base.files import sync_folder
from durable_base.handles import open_regular
from durable_base.trees import remove_tree
from durable_space.gate import Caller, Fence
from durable_space.refusal import Code, Reason, Refused, invalid, of_os_error
from durable_space.staging import Staging

IN_MEMORY_BYTES_MAX = 1 << 20  # of an upload; more goes to a file in the data folder until it is complete
COPY_BYTES = 1 << 20
MADE_FILE_MODE, MADE_FOLDER_MODE = 0o644, 0o755
FILE_OFFSET_MAX = 2**63 - 1  # the kernel's


class FileType(enum.Enum):
    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3
    OTHER = 4


class WriteMode(enum.Enum):
    OVERWRITE = 1
    CREATE_NEW = 2
    APPEND = 3


@dataclass(frozen=True, slots=True)
class Info:
    """lstat, or stat where symlinks were followed."""

    path: str
    type: FileType
    size: int  # bytes of a file, or of a symlink's target
    mode: int  # 0o7777
    owner: str
    group: str
    mtime_ns: int
    target: str  # symlinks only

    @property
    def name(self) -> str:
        return os.path.basename(self.path) or "/"


class Files:
    def __init__(self, gate: Fence, staging: Staging, spool_folder: Path) -> None:
        self._gate = gate
        self._staging = staging
        self._spool_folder = spool_folder

    def info(self, path: str, *, follow: bool) -> Info:
        with errors_name(path):
            return info_of(path, os.stat(path) if follow else os.lstat(path))

    def list(self, path: str, depth: int, *, hidden: bool, start: int, count: int) -> tuple[list[Info], bool]:
        """(entries from the `start`-th on, at most `count`; whether there are more). Sorted by name, a folder before what
        is in it; entries that vanish meanwhile are left out. Holds a page and the names of the folders it is in."""
        with errors_name(path):
            names = sorted(os.listdir(path))
        found = list(itertools.islice(_walk(path, names, depth, hidden=hidden), start, start + count + 1))
        return found[:count], len(found) > count

    def make_folder(self, caller: Caller, path: str, mode: int, *, parents: bool) -> tuple[Info, bool]:
        """(info, whether it was made). An existing folder is fine; anything else there is refused."""
        with self._gate.change(caller), errors_name(path):
            if os.path.isdir(path):
                return info_of(path, os.stat(path)), False
            if os.path.lexists(path):
                raise Refused(
                    Code.ALREADY_EXISTS,
                    Reason.PATH_EXISTS,
                    f"{path} exists and is not a directory",
                    metadata={"path": path},
                )
            if parents:
                make_parents(path)
            os.mkdir(path)
            os.chmod(path, mode or MADE_FOLDER_MODE)
            return info_of(path, os.lstat(path)), True

    def move(self, caller: Caller, source: str, target: str, *, overwrite: bool, parents: bool) -> Info:
        """Atomic. Errors name the source, but for a target that stands in the way."""
        with self._gate.change(caller), errors_name(source):
            os.lstat(source)
            if not overwrite and os.path.lexists(target):
                raise exists(target)
            if parents:
                make_parents(target)
            os.rename(source, target)
            crash_point("files.moved")
            return info_of(target, os.lstat(target))

    def remove(self, caller: Caller, path: str, *, recursive: bool, missing_ok: bool) -> None:
        """Symlinks themselves, never what they point at. A folder that is not empty only with `recursive`."""
        with self._gate.change(caller), errors_name(path):
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                if missing_ok:
                    return
                raise
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(path)
            elif recursive:
                remove_tree(path)
            else:
                os.rmdir(path)

    def truncate(self, caller: Caller, path: str, size: int) -> None:
        """Cut, or extend with zeros; never creates."""
        if size > FILE_OFFSET_MAX:
            raise invalid("size is beyond what a file can have", path=path)
        with self._gate.change(caller), errors_name(path):
            fd = open_regular(path, os.O_WRONLY)
            try:
                os.ftruncate(fd, size)
            finally:
                os.close(fd)

    def flush(self, caller: Caller, path: str) -> None:
        with errors_name(path):
            self._gate.check(caller)
            fd = open_regular(path, os.O_RDONLY)
            try:
                sync_with_name(fd, path)
            finally:
                os.close(fd)

    def make_temporary(self, caller: Caller, *, folder: bool, prefix: str, suffix: str) -> str:
        """A new empty folder, or an empty file in a new folder, outside the workspace (the system's temporary folder)."""
        if "/" in prefix + suffix or "\0" in prefix + suffix:
            raise invalid("prefix and suffix must not hold '/' or NUL")
        root = tempfile.gettempdir()
        with self._gate.change(caller), errors_name(root):
            made = tempfile.mkdtemp(prefix=prefix or "tmp-", dir=root, suffix=suffix if folder else "")
            if folder:
                return made
            path = os.path.join(made, f"{prefix}{secrets.token_hex(4)}{suffix}")
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return path

    def canonical(self, path: str) -> str:
        with errors_name(path):
            return os.path.realpath(path, strict=True)

    @contextmanager
    def spool(self) -> Iterator[IO[bytes]]:
        """Where an upload is gathered before anything is touched: a slow client holds nothing up."""
        with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES_MAX, dir=str(self._spool_folder)) as spool:
            yield spool

    def check_target(self, path: str, mode: WriteMode, *, parents: bool) -> None:
        """Raise Refused for what a write would be refused with as things stand, before its content is sent."""
        target = os.path.realpath(path)
        folder = os.path.dirname(target)
        with errors_name(path):
            _check_replaceable(path, lstat_or_none(target), mode)
            if not parents and not stat.S_ISDIR(os.stat(folder).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def write(
        self, caller: Caller, path: str, content: IO[bytes], mode: WriteMode, permissions: int, *, parents: bool
    ) -> Info:
        """`content` from its start. `permissions` 0: as the old file, or 0o644. A symlink is written through."""
        with self._gate.change(caller), errors_name(path):
            target = os.path.realpath(path)
            _check_replaceable(path, lstat_or_none(target), mode)
            if parents:
                make_parents(target)
            folder, name = os.path.split(target)
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                status = lstat_or_none(name, fd)
                _check_replaceable(path, status, mode)
                content.seek(0)
                if mode is WriteMode.APPEND:
                    return info_of(path, _append(fd, name, content, permissions, made=status is None))
                return info_of(path, self._replace(fd, target, content, permissions, status))
            finally:
                os.close(fd)

    def _replace(
        self, folder: int, target: str, content: IO[bytes], permissions: int, status: os.stat_result | None
    ) -> os.stat_result:
        """What was written. `folder` is the open one that `target` lies in."""
        place, name = os.path.split(target)
        with self._staging.beside(os.fsencode(place), folder) as temporary:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                copy(content, fd)
                os.fchmod(fd, permissions or (stat.S_IMODE(status.st_mode) if status else MADE_FILE_MODE))
                if status is not None and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    keep_owner(fd, status)
                os.fsync(fd)
                written = os.fstat(fd)
            finally:
                os.close(fd)
            crash_point("files.temporary_synced")
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
        return written


def _append(folder: int, name: str, content: IO[bytes], permissions: int, *, made: bool) -> os.stat_result:
    """What was written; `made`: there was no such file. What fails is taken back, unless another one wrote behind it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    fd = open_regular(name, flags, permissions or MADE_FILE_MODE, dir_fd=folder)
    try:
        before = os.fstat(fd).st_size
        try:
            copy(content, fd)
            os.fsync(fd)
            return os.fstat(fd)
        except OSError:
            end = os.lseek(fd, 0, os.SEEK_CUR)
            if end > before and end == os.fstat(fd).st_size:
                os.ftruncate(fd, before)
            if made and not os.fstat(fd).st_size:
                os.unlink(name, dir_fd=folder)
            raise
    finally:
        os.close(fd)


def _check_replaceable(path: str, status: os.stat_result | None, mode: WriteMode) -> None:
    """`status` is lstat of what `path` leads to. A symlink that is left there leads round in a circle."""
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory", path)
    if mode is WriteMode.CREATE_NEW and (status is not None or os.path.lexists(path)):
        raise exists(path)
    if status is not None and stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _walk(path: str, names: list[str], depth: int, *, hidden: bool) -> Iterator[Info]:
    """Without recursion: a tree may be deeper than the interpreter's stack."""
    stack = [(path, iter(names), depth)]
    while stack:
        folder, left, levels = stack[-1]
        name = next(left, None)
        if name is None:
            stack.pop()
            continue
        if not hidden and name.startswith("."):
            continue
        inner = os.path.join(folder, name)
        with suppress(OSError):
            info = info_of(inner, os.lstat(inner))
            yield info
            if levels > 1 and info.type is FileType.DIRECTORY:
                stack.append((inner, iter(sorted(os.listdir(inner))), levels - 1))


def make_parents(path: str) -> None:
    """A file in the way is no directory, and is told as that."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def sync_with_name(fd: int, path: str) -> None:
    """File and folder. Raise Refused INTERNAL whatever the number: the call was right, its effect is what is unknown."""
    try:
        os.fsync(fd)
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise Refused(
            Code.INTERNAL, Reason.INTERNAL, f"{path}: can't be synced: {error.strerror}", metadata={"path": path}
        ) from None


def copy(content: IO[bytes], fd: int) -> None:
    while piece := content.read(COPY_BYTES):
        view = memoryview(piece)
        while view:
            view = view[os.write(fd, view) :]


def keep_owner(fd: int, status: os.stat_result) -> None:
    """As far as this user may."""
    with suppress(OSError):
        os.fchown(fd, status.st_uid, status.st_gid)


def sha256_of(content: IO[bytes]) -> str:
    content.seek(0)
    digest = hashlib.sha256()
    while piece := content.read(COPY_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def info_of(path: str, status: os.stat_result, target: str | None = None) -> Info:
    """`target` is a symlink's, where it has been read already."""
    kind = FileType.OTHER
    for matches, value in (
        (stat.S_ISREG, FileType.FILE),
        (stat.S_ISDIR, FileType.DIRECTORY),
        (stat.S_ISLNK, FileType.SYMLINK),
    ):
        if matches(status.st_mode):
            kind = value
    return Info(
        path,
        kind,
        status.st_size if kind in (FileType.FILE, FileType.SYMLINK) else 0,
        stat.S_IMODE(status.st_mode),
        _user(status.st_uid),
        _group(status.st_gid),
        status.st_mtime_ns,
        (os.readlink(path) if target is None else target) if kind is FileType.SYMLINK else "",
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def lstat_or_none(path: str, folder: int | None = None) -> os.stat_result | None:
    """Of a name in the open `folder`, where there is one."""
    try:
        return os.stat(path, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def exists(path: str) -> Refused:
    return Refused(Code.ALREADY_EXISTS, Reason.PATH_EXISTS, f"{path} already exists", metadata={"path": path})


@contextmanager
def errors_name(path: str) -> Iterator[None]:
    """OSErrors as refusals that carry the absolute path."""
    try:
        yield
    except OSError as error:
        raise of_os_error(error, path) from None

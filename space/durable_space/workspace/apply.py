"""Make named paths of the workspace so: each one whole or not at all, verified, synced, and never outside.

Order: everything that can be refused is found first (`_Check`); then removals, folders, files and symlinks, each under the
gate (rule 26: a newer driver stops an older Apply between two of them); folder modes and times last, deepest first, for
they change whenever something in them does. A folder that the plan does not list keeps mode and mtime (rule 24).
Killed anywhere, the same Apply again ends the same: files are renamed into place, and what is right already is left alone.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from durable_base.crash import crash_point
from durable_space.gate import Caller, Fence
from durable_space.refusal import Code, Reason, Refused, invalid
from durable_space.staging import Staging
from durable_space.workspace import places
from durable_space.workspace.entries import NAME_BYTES_MAX, Entry, Kind, check_path, escapes, is_trackable, untracked
from durable_space.workspace.scan import READ_BYTES, hash_file


@dataclass(frozen=True, slots=True)
class Plan:
    put: tuple[Entry, ...]
    remove: tuple[bytes, ...]


@dataclass(slots=True)
class Applied:
    written: int = 0
    removed: int = 0
    unchanged: int = 0


class Applier:
    """One Apply. Blocking."""

    def __init__(self, root: bytes, gate: Fence, staging: Staging, caller: Caller) -> None:
        self._root = root
        self._gate = gate
        self._staging = staging
        self._caller = caller
        self._before: dict[bytes, tuple[int, int]] = {}  # folder -> mode and mtime that it must have in the end
        self._touched: set[bytes] = set()
        self._done = Applied()

    def run(self, plan: Plan, blobs: Mapping[bytes, Path]) -> Applied:
        """`blobs` holds the verified bytes of each hash that some file of the plan lacks. Raise Refused or OSError."""
        check(self._root, plan)
        folders = sorted((entry for entry in plan.put if entry.kind is Kind.DIRECTORY), key=lambda entry: entry.path)
        self._before = {entry.path: (entry.mode, entry.mtime_ns) for entry in folders}
        for path in sorted(plan.remove, key=lambda path: (-path.count(b"/"), path)):
            with self._gate.change(self._caller):
                self._remove(path)
        for entry in folders:
            with self._gate.change(self._caller):
                self._make_folder(entry)
        for entry in plan.put:
            if entry.kind is not Kind.DIRECTORY:
                with self._gate.change(self._caller):
                    self._put(entry, blobs)
        self._finish_folders({entry.path for entry in plan.put if entry.kind is not Kind.DIRECTORY})
        return self._done

    def _remove(self, path: bytes) -> None:
        parts = path.split(b"/")
        try:
            with places.opened(self._root, parts[:-1]) as fd:
                if places.status_of(fd, parts[-1]) is None:
                    return
                self._touch(fd, parts[:-1])
                places.remove_tree(fd, parts[-1])
        except (FileNotFoundError, NotADirectoryError):
            return
        self._done.removed += 1
        crash_point("apply.path_removed")

    def _make_folder(self, entry: Entry) -> None:
        parts = entry.path.split(b"/")
        with places.opened(self._root, parts[:-1], make=True) as fd:
            status = places.status_of(fd, parts[-1])
            if status is not None and stat.S_ISDIR(status.st_mode):
                same = stat.S_IMODE(status.st_mode) == entry.mode and status.st_mtime_ns == entry.mtime_ns
                self._count(same)
                if not same:
                    self._touched.add(entry.path)
                return
            self._touch(fd, parts[:-1])
            if status is not None:
                os.unlink(parts[-1], dir_fd=fd)
            os.mkdir(parts[-1], 0o700, dir_fd=fd)
            self._touched.add(entry.path)
            self._count(False)

    def _put(self, entry: Entry, blobs: Mapping[bytes, Path]) -> None:
        parts = entry.path.split(b"/")
        with places.opened(self._root, parts[:-1], make=True) as fd:
            status = places.status_of(fd, parts[-1])
            if entry.kind is Kind.SYMLINK:
                self._put_symlink(fd, parts, entry, status)
            elif status is not None and stat.S_ISREG(status.st_mode) and self._has_content(fd, parts[-1], entry):
                self._set_attributes(fd, parts[-1], entry, status)
            else:
                self._put_file(fd, parts, entry, status, blobs)

    def _put_symlink(self, fd: int, parts: Sequence[bytes], entry: Entry, status: os.stat_result | None) -> None:
        if status is not None and stat.S_ISLNK(status.st_mode):
            same_target = os.readlink(parts[-1], dir_fd=fd) == entry.target
            if same_target and status.st_mtime_ns == entry.mtime_ns:
                self._count(True)
                return
        self._touch(fd, parts[:-1])
        with self._staging.beside(self._folder(parts), fd) as temporary:
            os.symlink(entry.target, temporary, dir_fd=fd)
            os.utime(temporary, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=fd, follow_symlinks=False)
            self._rename(fd, temporary, parts[-1], status)
        self._count(False)

    def _put_file(
        self, fd: int, parts: Sequence[bytes], entry: Entry, status: os.stat_result | None, blobs: Mapping[bytes, Path]
    ) -> None:
        blob = blobs.get(entry.sha256)
        if blob is None:
            raise missing(entry.sha256)
        self._touch(fd, parts[:-1])
        with self._staging.beside(self._folder(parts), fd) as temporary:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(temporary, flags, 0o600, dir_fd=fd)
            try:
                copy_verified(blob, file, entry.sha256)
                os.fchmod(file, entry.mode)
                os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))
                os.fsync(file)
            finally:
                os.close(file)
            self._rename(fd, temporary, parts[-1], status)
        self._count(False)

    def _rename(self, fd: int, temporary: bytes, name: bytes, status: os.stat_result | None) -> None:
        if status is not None and stat.S_ISDIR(status.st_mode):
            places.remove_tree(
                fd, name
            )  # a rename can't replace a folder; killed here, the path is absent until repeated
        os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        crash_point("apply.file_renamed")

    def _set_attributes(self, fd: int, name: bytes, entry: Entry, status: os.stat_result) -> None:
        same = stat.S_IMODE(status.st_mode) == entry.mode and status.st_mtime_ns == entry.mtime_ns
        if not same:
            # By descriptor: the name could be made a symlink by a process of the Space meanwhile.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            try:
                os.fchmod(file, entry.mode)
                os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))
                os.fsync(file)
            finally:
                os.close(file)
        self._count(same)

    def _has_content(self, fd: int, name: bytes, entry: Entry) -> bool:
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            return False  # not readable as it is; it is replaced, which needs no reading
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode) or os.fstat(file).st_size != entry.size:
                return False
            return hash_file(file)[1] == entry.sha256
        finally:
            os.close(file)

    def _touch(self, fd: int, parts: Sequence[bytes]) -> None:
        """Remember what the folder is like before it changes, and see to it that it may be changed."""
        path = b"/".join(parts)
        status = os.fstat(fd)
        if path and path not in self._touched:
            self._before.setdefault(path, (stat.S_IMODE(status.st_mode), status.st_mtime_ns))
        self._touched.add(path)
        if os.geteuid() != 0 and stat.S_IMODE(status.st_mode) & 0o700 != 0o700:
            os.fchmod(fd, stat.S_IMODE(status.st_mode) | 0o700)

    def _finish_folders(self, leaves: Set[bytes]) -> None:
        """Deepest first: giving a folder its time must come after everything in it, its folders' times too."""
        for path in sorted(self._touched, key=lambda path: (-path.count(b"/"), path)):
            parts = path.split(b"/") if path else []
            if any(b"/".join(parts[:depth]) in leaves for depth in range(1, len(parts) + 1)):
                continue  # a folder that something was removed from, and that a file or a symlink then took the place of
            with self._gate.change(self._caller):
                try:
                    with places.opened(self._root, parts) as fd:
                        if path in self._before:
                            mode, mtime_ns = self._before[path]
                            os.fchmod(fd, mode)
                            os.utime(fd, ns=(mtime_ns, mtime_ns))
                        os.fsync(fd)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # it was removed, by the plan or by a process of the Space
        crash_point("apply.finished")

    def _folder(self, parts: Sequence[bytes]) -> bytes:
        return os.path.join(self._root, *parts[:-1])

    def _count(self, same: bool) -> None:
        if same:
            self._done.unchanged += 1
        else:
            self._done.written += 1


def check(root: bytes, plan: Plan) -> None:
    """Raise Refused before anything is changed: paths that escape, that no scan would give back, that contradict each other,
    or lie below a file."""
    put = {entry.path: entry for entry in plan.put}
    if len(put) != len(plan.put):
        raise invalid("a path stands twice in the plan")
    leaves = {entry.path for entry in plan.put if entry.kind is not Kind.DIRECTORY}
    cleared = set(plan.remove) | {entry.path for entry in plan.put}  # whatever stands there now goes, or is a folder
    fine: set[bytes] = set()
    if wrong := [path for path in put if not is_trackable(root, path)]:
        raise untracked(wrong)
    for path in (*put, *plan.remove):
        parts = check_path(path)
        if len(max(parts, key=len)) > NAME_BYTES_MAX:
            raise invalid(f"a name in the plan has more than {NAME_BYTES_MAX} bytes: nothing was changed")
        for depth in range(1, len(parts)):
            parent = b"/".join(parts[:depth])
            if parent in leaves and path in put:
                raise invalid(f"{path.decode('utf-8', 'backslashreplace')}: lies below a file of the same plan")
            if parent in fine:
                continue
            if parent in cleared and not (parent in put and put[parent].kind is Kind.DIRECTORY and path in plan.remove):
                break
            if not _is_folder(root, parts[:depth]):
                break
            fine.add(parent)


def _is_folder(root: bytes, parts: Sequence[bytes]) -> bool:
    """False if there is nothing. Raise Refused: a symlink, or something else that no path can go through."""
    with places.opened(root, parts[:-1]) as fd:
        status = places.status_of(fd, parts[-1])
    if status is None:
        return False
    if stat.S_ISLNK(status.st_mode):
        raise escapes(b"/".join(parts))
    if not stat.S_ISDIR(status.st_mode):
        text = os.path.join(root, *parts).decode("utf-8", "backslashreplace")
        raise Refused(
            Code.FAILED_PRECONDITION,
            Reason.NOT_A_DIRECTORY,
            f"{text}: not a directory, and the plan neither removes nor replaces it: nothing was changed",
            metadata={"path": text},
        )
    return True


def copy_verified(source: Path, target: int, sha256: bytes) -> None:
    """Raise Refused (CHECKSUM_MISMATCH): what was gathered is no longer what it was."""
    digest = hashlib.sha256()
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while piece := os.read(fd, READ_BYTES):
            digest.update(piece)
            view = memoryview(piece)
            while view:
                view = view[os.write(target, view) :]
    finally:
        os.close(fd)
    if digest.digest() != sha256:
        raise Refused(
            Code.INTERNAL, Reason.CHECKSUM_MISMATCH, "a blob was damaged on the daemon's disk", condition="BlobDamaged"
        )


def missing(sha256: bytes) -> Refused:
    return Refused(
        Code.INVALID_ARGUMENT,
        Reason.UNSPECIFIED,
        "a file of the plan needs bytes that neither came with the call nor are in the workspace",
        condition="BlobMissing",
        metadata={"sha256": sha256.hex()},
    )

"""Walk the workspace into a path table: what is there, with the hash of every file.

Guarantee: an entry is what the file was at some moment of the scan; a file that vanishes meanwhile is absent. Hashes that
are believed again are those of `hashes`; before a scan hashes its first file it looks, once, at what could change unseen
(`unstamped`), so one that hashes nothing does not pay for that. Symlinks are never followed.

Not chosen: several threads; hashing is bound by one core here, and the walk by the kernel.
"""

from __future__ import annotations

import hashlib
import operator
import os
import stat
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass

from durable_space.refusal import Code, Reason, Refused
from durable_space.workspace.entries import Entry, Kind, is_trackable, untracked
from durable_space.workspace.hashes import HashCache, stamp_of
from durable_space.workspace.unstamped import Look, look

READ_BYTES = 1 << 20
HASH_ATTEMPTS = 3  # for a file that changes while it is hashed
_ENCODING = sys.getfilesystemencoding()
_PATH = operator.attrgetter("path")


@dataclass(frozen=True, slots=True)
class Table:
    """Sorted by path (bytes)."""

    entries: tuple[Entry, ...]
    files: int
    bytes: int


class Scanner:
    def __init__(self, root: bytes, cache: HashCache, temporary_prefix: bytes) -> None:
        self._root = root
        self._cache = cache
        self._temporary = temporary_prefix

    def scan(
        self, exclude: Collection[bytes], *, use_cache: bool, files_max: int, bytes_max: int, go_on: Callable[[], None]
    ) -> Table:
        """`go_on` is called per folder and may raise, which ends the scan. 0 as a maximum: none.

        Raise Refused: UntrackedNames (all of them in one), WorkspaceTooLarge, or an entry that can't be read.
        """
        walk = _Walk(
            self._root, self._cache, self._temporary, frozenset(exclude), use_cache, files_max, bytes_max, go_on
        )
        walk.run()
        if walk.untracked:
            raise untracked(walk.untracked)
        if not exclude:
            self._cache.keep_only({entry.path for entry in walk.found if entry.kind is Kind.FILE})
        walk.found.sort(key=_PATH)
        return Table(tuple(walk.found), walk.files, walk.bytes)


class _Walk:
    def __init__(
        self, root: bytes, cache: HashCache, temporary: bytes, exclude: frozenset[bytes], use_cache: bool,
        files_max: int, bytes_max: int, go_on: Callable[[], None],
    ) -> None:  # fmt: skip
        self._root, self._cache, self._temporary, self._exclude = root, cache, temporary, exclude
        self._use_cache, self._files_max, self._bytes_max, self._go_on = use_cache, files_max, bytes_max, go_on
        self._limited = bool(files_max or bytes_max)
        self.found: list[Entry] = []
        self.untracked: list[bytes] = []
        self.files = self.bytes = 0
        self._look: Look | None = None

    def run(self) -> None:
        """Folder by folder, each held by a descriptor while it is read, so that a name is looked up in what was listed."""
        todo = [b""]
        while todo:
            self._go_on()
            folder = todo.pop()
            try:
                # The root without a slash at its end, which would follow a symlink that a command put in its place.
                path = os.path.join(self._root, folder) if folder else self._root
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                if not folder:
                    raise  # no root, no table: an empty one would be taken for an empty workspace
                continue  # vanished, or became something else: its entry tells
            try:
                self._list(fd, folder + b"/" if folder else b"", todo)
            finally:
                os.close(fd)

    def _list(self, fd: int, prefix: bytes, todo: list[bytes]) -> None:
        # The loop that a scan's time goes into: a file that is known takes two calls of our own, and no more.
        exclude, temporary, visit = self._exclude, self._temporary, self._visit
        get, append = self._cache.get, self.found.append
        use_cache, limited = self._use_cache, self._limited
        files = size = 0
        with os.scandir(fd) as listing:
            for found in listing:
                name = found.name.encode(_ENCODING, "surrogateescape")
                path = prefix + name
                if path in exclude or name.startswith(temporary):
                    continue
                try:
                    status = found.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                known = get(path, stamp_of(status)) if use_cache else None
                if known is None or limited:
                    visit(fd, name, path, status, known, todo)
                else:
                    files += 1
                    size += status.st_size
                    append(known)
        self.files += files
        self.bytes += size

    def _visit(
        self, fd: int, name: bytes, path: bytes, status: os.stat_result, known: Entry | None, todo: list[bytes]
    ) -> None:
        try:
            kind = stat.S_IFMT(status.st_mode)
            if not is_trackable(self._root, path):
                self.untracked.append(path)
            elif kind == stat.S_IFREG:
                self.files += 1
                self.bytes += status.st_size
                if self._limited:
                    self._check_limits()
                self.found.append(known or self._hashed(fd, name, path))
            elif kind == stat.S_IFDIR:
                self.found.append(Entry(path, Kind.DIRECTORY, stat.S_IMODE(status.st_mode), status.st_mtime_ns))
                todo.append(path)
            elif kind == stat.S_IFLNK:
                target = os.readlink(name, dir_fd=fd)
                self.found.append(Entry(path, Kind.SYMLINK, 0, status.st_mtime_ns, target=target))
            else:
                self.untracked.append(path)
        except FileNotFoundError:
            return

    def _check_limits(self) -> None:
        if (self._files_max and self.files > self._files_max) or (self._bytes_max and self.bytes > self._bytes_max):
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                Reason.LIMIT_EXCEEDED,
                f"the workspace has more than {self._files_max or 'any number of'} files "
                f"or {self._bytes_max or 'any number of'} bytes",
                condition="WorkspaceTooLarge",
                metadata={"files": str(self.files), "bytes": str(self.bytes)},
            )

    def _hashed(self, fd: int, name: bytes, path: bytes) -> Entry:
        # A file that never keeps still gets the hash and size of the last reading, and no place in the cache.
        if self._look is None:
            self._look = look(self._root)
        for _ in range(HASH_ATTEMPTS):
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            try:
                before = os.fstat(file)
                size, digest = hash_file(file)
                after = os.fstat(file)
            finally:
                os.close(file)
            entry = Entry(path, Kind.FILE, stat.S_IMODE(after.st_mode), after.st_mtime_ns, size, digest)
            if stamp_of(before) == stamp_of(after) and size == after.st_size:
                if self._look.vouches(path, after.st_ino):
                    self._cache.put(entry, stamp_of(after), self._look.at_ns)
                break
        return entry


def hash_file(fd: int) -> tuple[int, bytes]:
    """(bytes read, sha256) from the descriptor's place to the end."""
    digest, size = hashlib.sha256(), 0
    while piece := os.read(fd, READ_BYTES):
        digest.update(piece)
        size += len(piece)
    return size, digest.digest()

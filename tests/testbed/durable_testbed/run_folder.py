"""The folder of one run: everything a control plane or a cluster writes is below it, and tells what to clean up.

Whoever works on a run holds the lock beside its folder. A lock ends with its process, so a folder whose lock is free
and that was not meant to stay (`keep`) belongs to a run that was killed, and the next run removes it.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

from durable_testbed import paths
from durable_testbed.errors import BedError

MARK = ".durable-testbed"  # in every run folder: only such a folder is ever emptied
STAY = ".stays"  # the run goes on without the process that started it
PATH_LENGTH_MAX = 60  # of a socket below it must stay under 108
KEPT_LOGS = 5


class RunFolder:
    """A run folder; this process holds its lock, unless it only looks (`existing`)."""

    def __init__(self, path: Path, lock: IO[str] | None):
        self.path = path
        self._lock = lock
        # The name of what lies outside the folder: cgroup and network namespace.
        self.id = "durable-" + hashlib.sha256(str(path).encode()).hexdigest()[:10]

    @classmethod
    def new(cls, kind: str) -> Self:
        """A folder for a run that ends with this process; `kind` begins its name."""
        path = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=paths.runs()))
        return cls._take(path)

    @classmethod
    def named(cls, name: str) -> Self:
        """The folder `name`, which may hold a run that another process started."""
        path = cls._path(name)
        path.mkdir(exist_ok=True)
        return cls._take(path)

    @classmethod
    def existing(cls, name: str) -> Self:
        """The folder `name`, only to look at what runs there; BedError if there is none."""
        path = cls._path(name)
        if not (path / MARK).exists():
            raise BedError(f"no cluster {name} runs: start it with `up`")
        return cls(path, None)

    @classmethod
    def abandoned(cls) -> Iterator[Self]:
        """The folders of runs that were killed, one by one, each locked."""
        for mark in sorted(paths.runs().glob(f"*/{MARK}")):
            if not (mark.parent / STAY).exists():
                try:
                    run = cls._take(mark.parent)
                except BedError:
                    continue  # it runs
                yield run

    def keep(self) -> None:
        """Let the run go on without this process."""
        (self.path / STAY).touch()

    def save_logs(self) -> Path | None:
        """Move the logs out of the folder, and give back where; all but the newest few saved logs are removed."""
        logs = self.path / "logs"
        if not logs.is_dir():
            return None
        kept = paths.runs() / "logs"
        kept.mkdir(exist_ok=True)
        target = kept / f"{time.strftime('%Y%m%d-%H%M%S')}-{self.path.name}"
        shutil.copytree(logs, target, dirs_exist_ok=True)
        for old in sorted(kept.iterdir())[:-KEPT_LOGS]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def empty(self) -> None:
        """Remove what is in the folder, the mark last: removal that was interrupted can be taken up again."""
        for name in sorted(os.listdir(self.path), key=lambda name: (name == MARK, name)):
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif name != MARK:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder itself, and give back its lock."""
        self.empty()
        (self.path / MARK).unlink(missing_ok=True)
        self.path.rmdir()
        if self._lock:
            Path(self._lock.name).unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Give back the lock, and leave the folder as it is."""
        if self._lock:
            self._lock.close()

    @staticmethod
    def _path(name: str) -> Path:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,20}", name):
            raise BedError(f"{name!r} can't name a cluster: use up to 21 lower case letters, digits and dashes")
        return paths.runs() / name

    @classmethod
    def _take(cls, path: Path) -> Self:
        if len(str(path)) > PATH_LENGTH_MAX:
            raise BedError(f"{path} is too long for socket paths ({PATH_LENGTH_MAX} characters at most)")
        if path.is_dir() and any(path.iterdir()) and not (path / MARK).exists():
            raise BedError(f"{path} holds files and no {MARK}: not a run folder, it is left alone")
        file = path.with_name(f".{path.name}.lock")
        while True:
            lock = open(file, "w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                raise BedError(f"another process is at work on {path}") from None
            # Its holder may have removed the file between our open and our lock: then the lock is on nothing.
            if file.exists() and os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                break
            lock.close()
        path.mkdir(exist_ok=True)
        (path / MARK).touch()
        return cls(path, lock)

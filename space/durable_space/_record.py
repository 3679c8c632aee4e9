"""A command's record: who claimed it, that it started, how it ended. One file, `record`, in the command's folder.

One JSON object per line, each written by one `pwrite` into a block that came with the claim: a line is there whole
or not at all, whoever is killed when, and a disk that fills up later can't turn an exit into a loss. The lock on the same
file is held exactly as long as the shim lives: the lock tells life, the lines tell the result.

    {"claim": {shim, shim_start, cgroup, at_ns, init, init_start}}
    {"started": {pid, start, at_ns}}
    {"exit": {code | signal, timed_out, error, at_ns, output_bytes, output_sha256}}
    {"done": {}}                                               the kernel says that the shim has no child left
    {"barred": {}}                                             first and only: no shim may claim any more

Survives SIGKILL of anything, not power loss; never believed in another boot (rule 13). Standard library alone.
Not chosen: a file and a rename for each fact, which costs the file system more than everything else a short command does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from dataclasses import dataclass
from typing import Any

RECORD_BYTES = 4096
READ_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Record:
    claim: dict[str, Any] | None = None
    started: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    done: dict[str, Any] | None = None
    barred: dict[str, Any] | None = None


NOTHING = Record()


def read(path: str) -> tuple[Record, bool]:
    """(what it says, whether its shim lives), in the order that `states.Facts` asks for: a lock that is free after a claim
    was seen means that an exit, if there ever is one, is read too."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return NOTHING, False
    try:
        record = parse(os.pread(fd, READ_BYTES_MAX, 0))
        if record.claim is None:
            return record, False
        if record.done is not None:
            return record, False
        if _is_held(fd):
            return record, True
        return parse(os.pread(fd, READ_BYTES_MAX, 0)), False
    finally:
        os.close(fd)


def is_held(path: str) -> bool:
    """Does the shim live?"""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return _is_held(fd)
    finally:
        os.close(fd)


def _is_held(fd: int) -> bool:
    """Probed by sharing the lock for a moment, which a shim's first `flock` waits out."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def parse(data: bytes) -> Record:
    """Whole lines only: one without its end, or with a NUL in it, is just being written."""
    found: dict[str, Any] = {}
    for line in data.split(b"\n")[:-1]:
        if b"\0" in line:
            break
        found.update(json.loads(line))
    return Record(**found)


def bar(path: str) -> bool:
    """For the daemon: make it certain that nothing claims any more. False: a shim lives, or has claimed."""
    file = RecordFile(path)
    try:
        if not file.try_lock() or not file.is_empty():
            return False
        file.append("barred", {})
        return True
    finally:
        file.close()


class RecordFile:
    """The writer's side. Closing it lets go of the lock."""

    def __init__(self, path: str) -> None:
        """OSError (ENOENT): the command was forgotten; folder and file are the daemon's to make."""
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._end = 0

    def take(self) -> bool:
        """Lock it. False: another shim has claimed. A daemon that probes holds the lock for microseconds."""
        while not self.try_lock():
            if not self.is_empty():
                return False
            time.sleep(0.0005)
        return True

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_empty(self) -> bool:
        return os.pread(self.fd, 1, 0) in (b"", b"\0")

    def claim(self, value: dict[str, Any]) -> None:
        """With the room for all lines to come, as NULs. OSError: the disk is full, and nothing is claimed."""
        line = json.dumps({"claim": value}).encode() + b"\n"
        if os.pwrite(self.fd, line.ljust(RECORD_BYTES, b"\0"), 0) < RECORD_BYTES:
            os.pwrite(self.fd, b"\0" * len(line), 0)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._end = len(line)

    def append(self, kind: str, value: dict[str, Any]) -> None:
        line = memoryview(json.dumps({kind: value}).encode() + b"\n")
        while line:
            done = os.pwrite(self.fd, line, self._end)
            self._end += done
            line = line[done:]

    def close(self) -> None:
        os.close(self.fd)

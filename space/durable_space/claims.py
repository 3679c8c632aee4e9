"""Who may still start: the floor as shims see it (rule 9). Standard library alone.

Guarantee: once `raise_floor` has returned, no command that it bars can start, wherever its request waits (in a queue, in
an old zygote, in a shim that was just forked). Both sides hold the lock on DIR/floor.lock: a shim shares it while it
looks and claims, the daemon holds it alone while ledger and file change.

Not chosen: the ledger itself as what a shim reads. A shim would need SQLite, and the daemon a lock on it for its life.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from durable_base.files import write_atomic
from durable_space import layout

RULE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """A row may claim if it was admitted by name, or if it is newer than the last raise and of an epoch not below it."""

    epoch: int = 0
    barred_through: int = 0  # the newest row when the floor was last raised, or when everything was ended
    admitted: frozenset[int] = frozenset()  # rows older than that which were adopted

    def allows(self, seq: int, epoch: int) -> bool:
        """Pure."""
        return seq in self.admitted or (seq > self.barred_through and epoch >= self.epoch)


def read_rule(data: str) -> ClaimRule:
    with open(layout.floor_file(data), "rb") as file:
        value = json.loads(file.read())
    return ClaimRule(value["epoch"], value["barred_through"], frozenset(value["admitted"]))


def write_rule(data: str, rule: ClaimRule) -> None:
    """At start, from the ledger; nothing if it says so already. By a rename, so without the lock, which a shim that was stopped
    in its look may hold. Survives SIGKILL; not power loss, which leaves no shim to read it."""
    with suppress(OSError, ValueError, KeyError):
        if read_rule(data) == rule:
            return
    write_atomic(layout.floor_file(data), _text(rule), sync=False)


def change_rule(data: str, rule: ClaimRule) -> None:
    """The same under `exclusive`, and in place: a disk that is full must not keep a newer driver from ending what fills it."""
    text, path = _text(rule), layout.floor_file(data)
    if len(text) > RULE_BYTES or os.path.getsize(path) != RULE_BYTES:
        write_atomic(path, text, sync=False)
        return
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, text, 0)
    finally:
        os.close(fd)


def _text(rule: ClaimRule) -> bytes:
    """With spaces at the end, which JSON allows: one block on the disk, whatever the rule."""
    value = {"epoch": rule.epoch, "barred_through": rule.barred_through, "admitted": sorted(rule.admitted)}
    return json.dumps(value).encode().ljust(RULE_BYTES)


@contextmanager
def shared(data: str) -> Iterator[None]:
    """Held by a shim for the time of one look and one rename."""
    fd = os.open(layout.floor_lock(data), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


@contextmanager
def exclusive(data: str, seconds_max: float = 10.0) -> Iterator[None]:
    """Held by the daemon while the floor changes. TimeoutError: a shim that was stopped inside its look still shares it."""
    fd = os.open(layout.floor_lock(data), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError("the floor lock is held by a stopped shim") from None
                time.sleep(0.001)
        yield
    finally:
        os.close(fd)

"""The helper's fence: it may change something as long as its stdin is open.

A driver that goes, and a daemon that dies, close it; the daemon's AdvanceEpoch kills the process itself. Looked at before each
change (in an Apply: between two files), so that what the driver has given up does not go on under the next one's eyes.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager

from durable_space.gate import Caller


class StdinClosed(Exception):
    """Nobody waits for an answer any more."""


class Life:
    def __init__(self, stdin: int) -> None:
        self._poll = select.poll()
        self._poll.register(stdin, select.POLLRDHUP)  # a hang-up or an error is always told

    def check(self, caller: Caller) -> None:
        if self._poll.poll(0):
            raise StdinClosed

    check_reading = check

    @contextmanager
    def change(self, caller: Caller) -> Iterator[None]:
        self.check(caller)
        yield

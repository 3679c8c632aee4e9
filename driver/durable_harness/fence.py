"""The fence of a log: which driver process may still write to it.

Guarantee: once another (epoch, incarnation) has claimed the log, or `halt` was called, no commit of this process takes effect
(I4). Assumes that the storage asks `admit` with the floor read inside the transaction of the commit itself.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from durable_base.errors import StaleEpochError
from durable_base.floor import Admission, Floor, judge

CHECK_INTERVAL_SECONDS = 0.2


class Fence:
    """`floor` is this process's own pair, as claimed when the log was opened."""

    def __init__(self, floor: Floor, read_floor: Callable[[], Awaitable[Floor]]) -> None:
        self.floor = floor
        self.halted: Exception | None = None  # set once, by `halt`
        self._read_floor = read_floor
        self._checked_at = float("-inf")

    def halt(self, reason: Exception) -> None:
        """Refuse all later commits of this process, with `reason`. The first reason stays."""
        if self.halted is None:
            self.halted = reason

    def admit(self, stored: Floor) -> None:
        """Raise what forbids a commit under the stored floor. The claim was made at open, so a raise is refused as well:
        a floor that went backwards is a log that was replaced under us.
        """
        if self.halted is not None:
            raise self.halted
        if judge(stored, self.floor) is not Admission.ADMITTED:
            raise StaleEpochError("log", self.floor, stored)

    async def check(self) -> None:
        """For streams: the same, without a commit. Reads the log at most every 200 ms; between reads the last answer holds."""
        if self.halted is not None:
            raise self.halted
        if time.monotonic() - self._checked_at < CHECK_INTERVAL_SECONDS:
            return
        self.admit(await self._read_floor())
        self._checked_at = time.monotonic()

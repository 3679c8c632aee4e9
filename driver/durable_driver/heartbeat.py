"""The sign of life: a timer of its own on the event loop.

A frozen process falls silent, a busy one does not, and one whose loop is blocked longer than the stall time is replaced (rule
21). The timer starts before the log is opened, so a slow open is not taken for a freeze.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

Beat = Callable[[int], None]  # gets milliseconds since 1970, for display: receivers go by arrival (rule 34)


class Heartbeat:
    def __init__(self, period_seconds: float) -> None:
        self._period = period_seconds
        self._receivers: list[Beat] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last = time.monotonic()  # written by `_beat` alone; read by the HTTP server's threads

    def subscribe(self, receiver: Beat) -> None:
        self._receivers.append(receiver)

    def start(self) -> None:
        """Beat now and every period from now on. From the event loop, once."""
        self._beat(asyncio.get_running_loop().time())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def age_seconds(self) -> float:
        """Since the newest beat. From any thread."""
        return time.monotonic() - self._last

    def _beat(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        # From when it was due, so that beats don't drift; from now if that is past already.
        again = max(due, loop.time() - self._period) + self._period
        self._timer = loop.call_at(again, self._beat, again)
        self._last = time.monotonic()
        unix_ms = int(time.time() * 1000)
        for receiver in self._receivers:
            receiver(unix_ms)

"""Token buckets: how much of something is let through, and how fast it comes back."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """`burst` at once, then one every `seconds`."""

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._seconds = seconds
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def available(self) -> bool:
        self._refill()
        return self._tokens >= 1

    def take(self) -> bool:
        """One token, if there is one."""
        if not self.available():
            return False
        self._tokens -= 1
        return True

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) / self._seconds)
        self._at = now

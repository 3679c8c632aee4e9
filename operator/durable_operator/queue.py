"""A work queue of keys: each key is worked on by one worker at a time, however often it is woken.

Waking says nothing but "look again": what was missed between two looks is not lost, since a look reads everything anew. A key
woken while it is worked on is looked at once more afterwards. A look that fails comes again, later each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

RETRY_SECONDS_FIRST = 0.5
RETRY_SECONDS_MAX = 60.0
AGAIN_SECONDS = 0.2  # until a look that a write elsewhere has made stale is taken again
log = logging.getLogger(__name__)


class RetryLater(Exception):
    """Look at this key again after `seconds`, and do not call it a failure."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:.1f} s")
        self.seconds = seconds


Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """`work(key)` returns after how many seconds the key wants to be looked at again (None: when it is woken)."""

    def __init__(self, work: Callable[[Key], Awaitable[float | None]], workers: int) -> None:
        self._work = work
        self._workers = workers
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Condition()

    def depth(self) -> int:
        """Keys that are due now, or being worked on."""
        now = time.monotonic()
        return len(self._busy) + sum(1 for at in self._due.values() if at <= now)

    async def wake(self, key: Key, after: float = 0.0) -> None:
        """Look at `key` in `after` seconds, or earlier if that was said before."""
        at = time.monotonic() + after
        async with self._changed:
            if key in self._due and self._due[key] <= at:
                return
            self._due[key] = at
            heapq.heappush(self._heap, (at, next(self._order), key))
            self._changed.notify()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = await self._take()
            again: float | None
            try:
                again = await self._work(key)
                self._failures.pop(key, None)
            except RetryLater as wish:
                again = wish.seconds
            except Exception as error:
                again = self._after_failure(key)
                log.warning("reconcile failed key=%s error=%s again_in=%.1fs", key, describe(error), again)
            finally:
                async with self._changed:
                    self._busy.discard(key)
                    self._changed.notify()
            if again is not None:
                await self.wake(key, again)

    async def _take(self) -> Key:
        async with self._changed:
            while True:
                found = self._next_due()
                if isinstance(found, tuple):
                    return found[0]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(found):
                        await self._changed.wait()

    def _next_due(self) -> tuple[Key] | float | None:
        """The next key, taken; or how long until there may be one."""
        now = time.monotonic()
        held: list[tuple[float, int, Key]] = []
        found: tuple[Key] | float | None = None
        while self._heap:
            at, order, key = self._heap[0]
            if self._due.get(key) != at:
                heapq.heappop(self._heap)  # superseded by an earlier wake-up
                continue
            if at > now:
                found = at - now
                break
            heapq.heappop(self._heap)
            if key in self._busy:
                held.append((at, order, key))
                continue
            del self._due[key]
            self._busy.add(key)
            found = (key,)
            break
        for item in held:
            heapq.heappush(self._heap, item)
        return found

    def _after_failure(self, key: Key) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(RETRY_SECONDS_FIRST * 2 ** min(failures - 1, 10), RETRY_SECONDS_MAX))


def describe(error: BaseException) -> str:
    """One line, for a log."""
    return f"{type(error).__name__}: {str(error)[:300]}"

"""Live output in the log: the newest state is committed at once, and then again at most so often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from durable_harness.errors import CommitRejectedError


class Throttle:
    """`touch()` after each change; `write()` commits what is current then and returns the seconds to pause."""

    def __init__(self, write: Callable[[], Awaitable[float]]) -> None:
        self._write = write
        self._dirty = asyncio.Event()
        self._job: asyncio.Task[None] | None = None

    def touch(self) -> None:
        self._dirty.set()
        if self._job is None:
            self._job = asyncio.get_running_loop().create_task(self._loop())

    async def _loop(self) -> None:
        try:
            while True:
                await self._dirty.wait()
                self._dirty.clear()
                await asyncio.sleep(await self._write())
        except CommitRejectedError:
            pass  # the task is ending: whoever ends it says what becomes of the output

    async def stop(self) -> None:
        """Without a last write: the commit that ends the stream holds all of it. Raises what a write raised."""
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
            await asyncio.wait([job])
            if not job.cancelled() and (error := job.exception()) is not None:
                raise error

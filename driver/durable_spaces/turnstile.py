"""One wrapped call at a time in a Space, and after a crash the interrupted one first (rule 15)."""

from __future__ import annotations

import asyncio

VISITOR = -1  # a turn that belongs to no call


class Turnstile:
    """Turns are granted to the lowest task id that waits: calls of one round go in their order, whatever woke first.

    `pending` names the call that `cua.space.current` holds. While it is set, no other call may scan, mark or run.
    """

    def __init__(self) -> None:
        self.holder: int | None = None
        self._pending: int | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def pending(self) -> int | None:
        return self._pending

    def expect(self, task: int | None) -> None:
        """Set or clear the call that goes first."""
        self._pending = task
        self._grant()

    async def acquire(self, task: int = VISITOR) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((task, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release()
            else:
                self._waiting.remove((task, granted))
            raise

    def release(self) -> None:
        self.holder = None
        self._grant()

    def _grant(self) -> None:
        if self.holder is not None:
            return
        ready = [
            (task, granted) for task, granted in self._waiting if self._pending in (None, task) and not granted.done()
        ]
        if ready:
            ticket = min(ready, key=lambda waiting: waiting[0])
            self._waiting.remove(ticket)
            self.holder = ticket[0]
            ticket[1].set_result(None)

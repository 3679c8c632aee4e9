"""Wake whoever waits for a command: shims send datagrams when something happened, and everybody looks now and then anyway."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from durable_space.layout import notice_address

log = logging.getLogger("durable.space")


HINTS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Hint:
    """What the newest notice said, to save a look; files tell the truth."""

    output_end: int = 0
    ended: bool = False
    came: bool = False


class Notices:
    """Of the event loop. A notice carries no truth, only the hint to look: forged or lost ones do no harm."""

    def __init__(self, instance_id: str) -> None:
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._hints: dict[int, Hint] = {}  # the newest `HINTS_MAX`: one may come before somebody listens
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(notice_address(instance_id))
        except OSError:
            # Somebody sits on the name: output then arrives up to `LOOK_SECONDS` later.
            log.warning("notices.unavailable", extra={"fields": {}})
            self._socket.close()
            self._socket = None
        else:
            asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    @contextmanager
    def listen(self, seq: int) -> Iterator[asyncio.Event]:
        """The event is set at each notice for `seq`; who waits clears it."""
        event = asyncio.Event()
        self._waiting.setdefault(seq, set()).add(event)
        if seq in self._hints:
            event.set()
        try:
            yield event
        finally:
            events = self._waiting[seq]
            events.discard(event)
            if not events:
                del self._waiting[seq]

    def hint(self, seq: int) -> Hint:
        return self._hints.get(seq, Hint())

    def wake(self, seq: int) -> None:
        for event in self._waiting.get(seq, ()):
            event.set()

    def wake_all(self) -> None:
        for seq in self._waiting:
            self.wake(seq)

    def listeners(self, seq: int) -> int:
        return len(self._waiting.get(seq, ()))

    def _receive(self) -> None:
        if self._socket is None:
            return
        for _ in range(256):
            try:
                packet = self._socket.recv(64)
            except BlockingIOError:
                return
            words = packet.split()
            if len(words) >= 2 and words[0].isdigit() and words[1].isdigit():
                seq = int(words[0])
                self._hints.pop(seq, None)
                self._hints[seq] = Hint(int(words[1]), len(words) > 2, True)
                if len(self._hints) > HINTS_MAX:
                    del self._hints[next(iter(self._hints))]
                self.wake(seq)

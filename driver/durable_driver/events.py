"""What the driver says on stdout: heartbeat lines, and one JSON line per event. Ids, kinds, counts and durations; no content."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import IO


class EventLine:
    """Each line is one write, so that lines never mix. A reader that has gone away changes nothing for the drive."""

    def __init__(self, out: IO[str], session: str, epoch: int, now: Callable[[], float] = time.time) -> None:
        self._out = out
        self._session = session
        self._epoch = epoch
        self._now = now

    def beat(self, unix_ms: int) -> None:
        self._write(f"CUA-HEARTBEAT {self._epoch} {unix_ms}")

    def emit(self, event: str, /, **facts: object) -> None:
        """Facts that are None are left out."""
        line = {
            "time": int(self._now() * 1000),
            "session": self._session,
            "epoch": self._epoch,
            "event": event,
            **{name: fact for name, fact in facts.items() if fact is not None},
        }
        self._write(json.dumps(line, ensure_ascii=False, separators=(",", ":")))

    def _write(self, line: str) -> None:
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except (OSError, ValueError):  # a closed pipe, a closed file: the log is the truth, this is for watching
            return

"""What a run tells whoever watches: turning points, and the driver's own events. Content-free but for the final answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_HEAD = ("time", "session", "epoch", "event")


@dataclass(frozen=True, slots=True)
class Event:
    """`time` in Unix milliseconds; `name` as `driver.gone`; the fields of each name are listed in docs/local.md."""

    time: int
    session: str
    epoch: int
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line, the form that a driver writes as well."""
        head = {"time": self.time, "session": self.session, "epoch": self.epoch, "event": self.name}
        return json.dumps({**head, **self.fields}, ensure_ascii=False)


Listener = Callable[[Event], None]


def now_event(session: str, epoch: int, name: str, **fields: Any) -> Event:
    return Event(int(time.time() * 1000), session, epoch, name, fields)


def from_line(raw: Mapping[str, Any]) -> Event | None:
    """An event that a driver (or a coordinator) wrote; None if it is none."""
    try:
        fields = {name: value for name, value in raw.items() if name not in _HEAD}
        return Event(int(raw["time"]), str(raw["session"]), int(raw["epoch"]), str(raw["event"]), fields)
    except (KeyError, TypeError, ValueError):
        return None

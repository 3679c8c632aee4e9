"""What a child has written to its output file since the last look: heartbeats by their arrival, and events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEARTBEAT = b"CUA-HEARTBEAT "
_LINE_MAX = 65536  # bytes; an unfinished line that is longer is nobody's event


@dataclass(frozen=True, slots=True)
class News:
    heartbeats: int  # lines of the epoch that was asked for
    events: tuple[dict[str, Any], ...]


class Tail:
    """Reads a growing file line by line, from its start. A file that is not there yet has no lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self, epoch: int = 0) -> News:
        """Whole new lines only; lines that are neither a heartbeat nor a JSON object with `event` are passed over."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(1 << 20)
        except FileNotFoundError:
            return News(0, ())
        whole, found, rest = data.rpartition(b"\n")
        self._offset += len(whole) + len(found)
        if len(rest) > _LINE_MAX:
            self._offset += len(rest)
        beats, events = 0, []
        for line in whole.split(b"\n") if found else ():
            if line.startswith(_HEARTBEAT):
                beats += line.split()[1:2] == [str(epoch).encode()]
            elif (event := _event(line)) is not None:
                events.append(event)
        return News(beats, tuple(events))


def _event(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("event"), str) else None

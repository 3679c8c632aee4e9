"""One driver process of an epoch, as the coordinator sees it: its life, its beats by arrival, its events, its end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from durable_base.files import write_atomic
from durable_coordinator.epochs import driver_name
from durable_coordinator.facts import Deletion, DriverEnd, DriverFacts
from durable_coordinator.report import Report, parse_report
from durable_local import process
from durable_local.events import Event, from_line
from durable_local.layout import Home
from durable_local.process import ChildFacts, Life
from durable_local.tail import Tail

# Each of these follows a commit of the drive that tells of it.
_COMMITTED = frozenset({"step.started", "step.finished", "recovery", "settled"})


class Drive:
    def __init__(self, home: Home, session: str, owner_uid: str, epoch: int) -> None:
        self.epoch = epoch
        self.folder = home.drive(epoch)
        self._name = driver_name(session, epoch)
        self._owner_uid = owner_uid
        self._tail = Tail(self.folder / "stdout")
        # Beats count by their arrival here, from the first look on: neither the driver's clock nor the time that this
        # coordinator was away makes a driver late (protocol rule 34, operator's rule 21).
        self._beat_at = time.monotonic()
        self._committed = False
        self._silent_at_end: float | None = None
        self._asked = False

    def news(self) -> list[Event]:
        """What the driver told since the last call."""
        news = self._tail.read(self.epoch)
        if news.heartbeats:
            self._beat_at = time.monotonic()
        events = [event for event in map(from_line, news.events) if event is not None and event.epoch == self.epoch]
        self._committed |= any(event.name in _COMMITTED for event in events)
        return events

    def facts(self, stall_seconds: float) -> DriverFacts | None:
        """None: no driver was ever started under this epoch."""
        child = process.look(self.folder)
        if child.life is Life.ABSENT:
            return None
        running = child.life is Life.RUNNING
        silent = time.monotonic() - self._beat_at
        if not running and self._silent_at_end is None:
            self._silent_at_end = silent
        deletion = self.deletion()
        return DriverFacts(
            name=self._name,
            uid=child.uid,
            epoch=self.epoch,
            owner_uid=self._owner_uid,
            running=running,
            over=not running,
            end=None if running else self._end(child),
            node="local",
            created_at=child.started_at or 0.0,
            bound_at=child.started_at,
            started_at=child.started_at,
            deletion=deletion if running else None,
            frozen=running and silent > stall_seconds,
            beat_age_seconds=silent,
            committed=self._committed,
            stop_asked_at=deletion.at if deletion and running else None,
        )

    def ask_stop(self, grace_seconds: float) -> None:
        """SIGTERM: it ends at its next durable point. Written down first, so that nobody takes its end for a crash."""
        if self.deletion() is None:
            record = {"at": time.time(), "graceSeconds": grace_seconds}
            write_atomic(self.folder / "stopping", json.dumps(record).encode())
        if not self._asked:  # once: a second SIGTERM may mean "at once" to a driver of the user's own
            self._asked = process.send(self.folder, signal.SIGTERM)

    def kill(self) -> None:
        process.send(self.folder, signal.SIGKILL)

    def deletion(self) -> Deletion | None:
        try:
            record = json.loads((self.folder / "stopping").read_bytes())
        except FileNotFoundError:
            return None
        return Deletion(at=record["at"], grace_seconds=record["graceSeconds"])

    def put_judgement(self, fields: Mapping[str, Any]) -> None:
        """What the coordinator made of its end: whoever tells of it later says the same."""
        write_atomic(self.folder / "judged", json.dumps(dict(fields)).encode(), sync=False)

    def judgement(self) -> dict[str, Any]:
        """{} as long as no coordinator has looked at its end."""
        try:
            fields: dict[str, Any] = json.loads((self.folder / "judged").read_bytes())
        except (OSError, ValueError):
            return {}  # never written, or cut off by a power loss
        return fields

    def enforce(self) -> None:
        """End a driver that did not end within the grace it was given."""
        deletion = self.deletion()
        if deletion is not None and time.time() > deletion.at + deletion.grace_seconds:
            self.kill()

    def last_words(self) -> str:
        """The last line that it wrote to stderr, for the person who has to know why it failed."""
        try:
            return (self.folder / "stderr").read_text(errors="replace").strip().rpartition("\n")[2][-500:]
        except OSError:
            return ""

    def _end(self, child: ChildFacts) -> DriverEnd:
        report = self._report()
        return DriverEnd(
            uid=child.uid,
            epoch=self.epoch,
            name=self._name,
            code=128 + child.signal if child.signal else child.code,
            signal=child.signal or None,
            report=report,
            started_at=child.started_at,
            finished_at=child.ended_at or time.time(),
            committed=self._committed or bool(report and report.entries),
            beat_age_seconds=self._silent_at_end,
            deleted=self.deletion() is not None,
            detail=self.last_words(),
            node="local",
        )

    def _report(self) -> Report | None:
        """Only one of this epoch counts."""
        try:
            report = parse_report((self.folder / "report").read_text(errors="replace"))
        except OSError:
            return None
        return report if report is not None and report.epoch == self.epoch else None


def report_path(home: Home, epoch: int) -> Path:
    return home.drive(epoch).absolute() / "report"

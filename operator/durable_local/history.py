"""What a home tells of the past, to whoever may read its files: objects, drives and their events. Changes nothing."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from durable_base.errors import UsageError
from durable_coordinator.exits import Judging, judge_exit
from durable_coordinator.report import Report, parse_report
from durable_coordinator.spec_common import API_VERSION
from durable_local import process
from durable_local.drive import Drive
from durable_local.events import Event, from_line
from durable_local.layout import Home, check_readable, session_home, space_home
from durable_local.process import ChildFacts, Life
from durable_local.sessions import KIND
from durable_local.store import Record, Store
from durable_local.tail import Tail

_JUDGEMENT_SECONDS = 1.0  # that a coordinator which is there takes at most to see an end
_NEVER = 10**9  # seconds


@dataclass(frozen=True, slots=True)
class PastDrive:
    epoch: int
    child: ChildFacts
    report: Report | None
    events: tuple[Event, ...]


def sessions(state: Path) -> list[str]:
    """Names of the sessions below a state folder, of those too that `find` will refuse. UsageError: the folder can't be read."""
    check_readable(state)
    return sorted(path.name for path in state.glob("*/") if "." not in path.name and _holds_state(path))


def _holds_state(folder: Path) -> bool:
    try:
        return (folder / "state.db").exists()
    except OSError:
        return True  # who may not look can't say that there is none


def find(state: Path, name: str) -> tuple[Home, Record]:
    """Raise UsageError if there is no such session, or its folder can't be read; StateError if its state is damaged."""
    home = session_home(state, name)
    check_readable(state)
    check_readable(home.path)
    if not home.state.exists():
        known = ", ".join(sessions(state)) or "none"
        raise UsageError(f"no session {name!r} in {state} (there: {known}). Name another folder with --state DIR.")
    store = Store(home.state, create=False)
    try:
        record = store.read(KIND, name)
        others = store.names(KIND) if record is None else []
    finally:
        store.close()
    if record is None:
        whose = f"that of {', '.join(others)}" if others else "empty"
        raise UsageError(
            f"{home.path}: its state is {whose}, so it is no session {name!r}. A session's folder can't be copied or renamed: "
            "give it its old name again, or remove it."
        )
    return home, record


def space_of(state: Path, record: Record) -> Home:
    """Where the Space of a session lives: with it, or, if sessions share it, in a folder of its own."""
    shared = json.loads(record.spec).get("spaceRef")
    return space_home(state, record.name, shared["name"] if shared else None)


def sharing(state: Path, space: str) -> list[str]:
    """Names of the sessions that work in a shared Space."""
    return [name for name in sessions(state) if space_of(state, find(state, name)[1]) == space_home(state, name, space)]


def as_object(record: Record) -> dict[str, Any]:
    """The object in the form that an API server shows."""
    created = datetime.fromtimestamp(int(record.created), UTC).isoformat().replace("+00:00", "Z")
    metadata = {"name": record.name, "uid": record.uid, "generation": record.generation, "creationTimestamp": created}
    return {
        "apiVersion": API_VERSION,
        "kind": record.kind,
        "metadata": metadata,
        "spec": json.loads(record.spec),
        "status": json.loads(record.status),
    }


def retry_asked(found: dict[str, Any]) -> bool:
    """Of an object that failed: `durable retry` was said since, and no coordinator has taken it up yet."""
    token = found["spec"].get("retryToken", "")
    return token not in ("", found["status"].get("observedRetryToken", ""))


def drives(home: Home) -> list[PastDrive]:
    """All drives, oldest first, with everything that they told."""
    found = []
    for epoch in home.epochs_seen():
        folder = home.drive(epoch)
        news = Tail(folder / "stdout").read(epoch)
        events = tuple(event for event in map(from_line, news.events) if event is not None)
        found.append(PastDrive(epoch, process.look(folder), _report(folder), events))
    return found


def recoveries(home: Home) -> dict[str, int]:
    """How often each kind of recovery was told of; a driver that was killed left no report that could say so."""
    events = (event for drive in drives(home) for event in drive.events)
    return dict(Counter(str(event.fields.get("kind")) for event in events if event.name == "recovery"))


def steps(home: Home) -> int:
    """How many tool calls of the log came to their end."""
    events = (event for drive in drives(home) for event in drive.events if event.name == "step.finished")
    return max((int(event.fields.get("step", 0)) for event in events), default=0)


def attended(home: Home) -> bool:
    """Whether a coordinator works on this home now."""
    return process.locked(home.lock)


def driving(home: Home) -> list[int]:
    """Pids of the drivers of this home that run now."""
    return _running(home, "drives/*/claim")


def running(home: Home) -> list[int]:
    """Pids of the children of this home, drivers and daemons, that run now."""
    return _running(home, "drives/*/claim") + _running(home, "space/*/run-*/claim")


def _running(home: Home, pattern: str) -> list[int]:
    folders = [claim.parent for claim in home.path.glob(pattern)]
    return [facts.pid for facts in map(process.look, folders) if facts.life is Life.RUNNING]


class Follower:
    """The events of all drives in their order, as they come; the end of each as `driver.gone`, as its coordinator told it."""

    def __init__(self, home: Home, session: str) -> None:
        self._home = home
        self._session = session
        self._tails: dict[int, Tail] = {}
        self._over: set[int] = set()

    def news(self, *, last: bool = True) -> Iterator[Event]:
        """`last` False: there will be another look, so an end may wait a moment for its coordinator's judgement."""
        for epoch in self._home.epochs_seen():
            if epoch in self._over:
                continue
            child = process.look(self._home.drive(epoch))  # before the tail: what it wrote before its end is in there
            tail = self._tails.setdefault(epoch, Tail(self._home.drive(epoch) / "stdout"))
            yield from (event for event in map(from_line, tail.read(epoch).events) if event is not None)
            if child.life in (Life.ENDED, Life.GONE):
                drive = Drive(self._home, self._session, "", epoch)
                fields = drive.judgement()
                if not fields and not last and time.time() - (child.ended_at or 0) < _JUDGEMENT_SECONDS:
                    continue
                self._over.add(epoch)
                ended_ms = int((child.ended_at or time.time()) * 1000)
                fields = fields or {"reason": _why(drive), "code": child.code, "signal": child.signal}
                yield Event(ended_ms, self._session, epoch, "driver.gone", fields)


def _why(drive: Drive) -> str:
    """As a coordinator would judge it that knows nothing but the drive's own folder."""
    facts = drive.facts(_NEVER)
    assert facts is not None, "it was claimed"
    if facts.end is None:
        return "Vanished"
    known = Judging(stopping=False, stall_seconds=_NEVER, reset_after_seconds=_NEVER, space_changed=False)
    return judge_exit(facts.end, known).reason


def _report(folder: Path) -> Report | None:
    try:
        return parse_report((folder / "report").read_text(errors="replace"))
    except OSError:
        return None

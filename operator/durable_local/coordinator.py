"""The loop: read everything, plan each Space and session, act, and look again a moment later.

State is read from disk at every turn, so nothing is lost with this process: started again over the same folder, it finds the
same sessions, the same drivers and the same daemons, and goes on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag

import msgspec

from durable_coordinator.facts import HolderFacts, Waiter
from durable_coordinator.leases import holder_facts, wants_lease
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.status import SessionStatus, condition, from_dict, is_true
from durable_local import history
from durable_local.apply import Wanted, admit
from durable_local.events import Event, Listener, now_event
from durable_local.layout import Home, Lock, StateError, session_home, space_home
from durable_local.sessions import KIND, SessionRunner
from durable_local.spaces import INSTALL, SpaceRunner
from durable_local.store import ConflictError, Record, Store

TURN_SECONDS = 0.05
_IDLE_TURN_SECONDS = 0.2  # while nothing happens: a step of an hour is not worth a core
_BUSY_SECONDS = 2.0  # after something happened
_STOP_SECONDS = 15.0  # above what a driver takes to reach a durable point


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session stands when the coordinator is done with it. `reason` and `message` are those of Succeeded."""

    session: str
    finished: bool  # False: stopped before its end, or suspended
    suspended: bool
    succeeded: bool
    reason: str
    message: str
    answer: str
    epoch: int
    recoveries: Mapping[str, int]


class Coordinator:
    """Drives all sessions of some manifests to their end. One thread; one per state folder and session (`Lock`)."""

    def __init__(self, state: Path, wanted: Iterable[Wanted], environ: Mapping[str, str], listener: Listener) -> None:
        """Raise UsageError with nothing started: another coordinator, an unreadable folder, a spec that must not change."""
        self._state = state
        self._listen = listener
        self._told_at = time.monotonic()
        self._environ = dict(environ)
        self._open = contextlib.ExitStack()
        self._spaces: dict[Path, SpaceRunner] = {}
        self._sessions: list[SessionRunner] = []
        try:
            for one in wanted:
                self._admit(one)
        except BaseException:
            self._open.close()
            raise

    def run(self, stop: Flag) -> tuple[Ended, ...]:
        """Return when every session is finished or suspended, or `stop` is set; then nothing of ours runs any more."""
        try:
            for session in self._sessions:
                status = session.status()
                self._listener(now_event(session.name, status.epoch, "session.opened", **_opened(session)))
            while not stop.is_set():
                # Not a generator: every session is planned at every turn.
                done = [self._turn(session) for session in self._sessions]
                if all(done):
                    break
                busy = time.monotonic() - self._told_at < _BUSY_SECONDS
                stop.wait(TURN_SECONDS if busy else _IDLE_TURN_SECONDS)
            return tuple(self._ended(session) for session in self._sessions)
        except (BrokenPipeError, StateError):
            raise  # who watched has gone: no fault of the folder; or it says already what is wrong with it
        except OSError as error:
            raise StateError(
                f"{self._state}: the state folder can't be used any more ({error}). Look after it, and run the "
                "same command again."
            ) from error
        finally:
            self._stop()

    def _listener(self, event: Event) -> None:
        self._told_at = time.monotonic()
        self._listen(event)

    def _admit(self, wanted: Wanted) -> None:
        name, namespace = wanted.manifest.name, wanted.manifest.namespace
        home = session_home(self._state, name)
        place = space_home(self._state, name, wanted.space if wanted.space_spec is not None else None)
        store = self._take(home)
        record = admit(self._state, wanted, store)
        space = self._spaces.get(place.path)
        if space is None:
            shared = place.path != home.path
            space_store = self._take(place) if shared else store
            space = SpaceRunner(
                place, space_store, namespace, wanted.space, wanted.files, self._environ, self._listener
            )
            self._spaces[place.path] = space
            if wanted.space_spec is not None and space.read() is None:
                space.create(wanted.space_spec)
            if not shared:
                space.owner_uid = record.uid
        self._sessions.append(
            SessionRunner(home, store, namespace, name, wanted.inputs, space, self._environ, self._listener)
        )

    def _take(self, home: Home) -> Store:
        self._open.callback(Lock(home).release)
        store = Store(home.state)
        self._open.callback(store.close)
        return store

    def _turn(self, session: SessionRunner) -> bool:
        """One look at a session and its Space. True: there is nothing left to do for it now."""
        session.watch()
        space = session.space
        status = session.status()
        if space.belongs_to(session.home):
            space.generation_before = status.space.generation if status.space is not None else 0
            space.epoch_before = status.epoch
        try:
            space.supervise()
            view = space.view(holder=self._holder, waiters=self._waiters(space), ask=not session.driving())
            if view is not None:
                space.step(view)
                view = space.view(holder=self._holder, waiters=self._waiters(space), ask=not session.driving())
            plan = session.step(session.view(view))
        except ConflictError:
            return False  # somebody wrote (`durable suspend`): the next turn plans from what is there then
        session.watch()
        suspended = is_true(plan.status.conditions, "Suspended")
        finished = is_true(plan.status.conditions, "Finished")
        return (finished or suspended) and not plan.actions and not session.driving()

    def _holder(self, name: str) -> HolderFacts | None:
        """A fresh read of the session that holds a Space; it may be of an earlier `durable run`."""
        for session in self._sessions:
            if session.name == name:
                return _holder_facts(session.read())
        home = session_home(self._state, name)
        if not home.state.exists():
            return None
        store = Store(home.state, create=False)
        try:
            record = store.read(KIND, name)
        finally:
            store.close()
        return _holder_facts(record) if record is not None else None

    def _waiters(self, space: SpaceRunner) -> tuple[Waiter, ...]:
        found = []
        for session in self._sessions:
            record = session.read()
            spec = msgspec.json.decode(record.spec, type=SessionSpec)
            status = from_dict(SessionStatus, msgspec.json.decode(record.status))
            if session.space is space and wants_lease(spec, status, now=time.time(), deleting=False, install=INSTALL):
                found.append(
                    Waiter(created_at=record.created, uid=record.uid, namespace=session.namespace, name=session.name)
                )
        return tuple(found)

    def _ended(self, session: SessionRunner) -> Ended:
        status = session.status()
        verdict = condition(status.conditions, "Succeeded")
        ended = Ended(
            session=session.name,
            finished=is_true(status.conditions, "Finished"),
            suspended=is_true(status.conditions, "Suspended"),
            succeeded=is_true(status.conditions, "Succeeded"),
            reason=verdict.reason if verdict is not None else "Pending",
            message=verdict.message if verdict is not None else "",
            answer=status.answer,
            epoch=status.epoch,
            recoveries=history.recoveries(session.home),
        )
        if ended.finished:
            fields = {
                "succeeded": ended.succeeded,
                "reason": ended.reason,
                "message": ended.message,
                "answer": ended.answer,
            }
            counts = {
                "steps": history.steps(session.home),
                "drives": status.attempts,
                "recoveries": dict(ended.recoveries),
            }
            self._listener(now_event(session.name, ended.epoch, "session.finished", **fields, **counts))
        return ended

    def _stop(self) -> None:
        """Drivers end at a durable point, then the daemons; what is left undone goes on with the next `durable run`."""
        with contextlib.ExitStack() as rest:  # done in the opposite order, and each of them whatever fails before it
            rest.callback(self._open.close)
            for space in self._spaces.values():
                rest.callback(space.stop)
            for session in self._sessions:
                rest.callback(session.release)
            deadline = time.monotonic() + _STOP_SECONDS
            while drives := [drive for session in self._sessions for drive in session.driving()]:
                for drive in drives:
                    drive.ask_stop(_STOP_SECONDS)
                    if time.monotonic() > deadline:
                        drive.kill()
                for session in self._sessions:
                    session.watch()
                time.sleep(TURN_SECONDS)


def _opened(session: SessionRunner) -> dict[str, object]:
    status = session.status()
    verdict = condition(status.conditions, "Succeeded")
    failed = verdict is not None and verdict.status == "False"
    return {
        "again": status.epoch > 0,
        "finished": is_true(status.conditions, "Finished"),
        "reason": verdict.reason if verdict is not None and failed else "",
        "retry": failed and history.retry_asked(history.as_object(session.read())),
    }


def _holder_facts(record: Record) -> HolderFacts:
    spec = msgspec.json.decode(record.spec, type=SessionSpec)
    status = from_dict(SessionStatus, msgspec.json.decode(record.status))
    return holder_facts(record.uid, spec, status, deleting=False)

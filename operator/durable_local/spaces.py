"""One Space on this machine: read, plan, act. The same plan as on a cluster; the pod is a folder and a daemon."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from durable_base.crash import crash_point
from durable_coordinator.actions import DeletePod, PlaceSpace, SpaceAction, SpacePlan, WakeSession, WriteStatus
from durable_coordinator.facts import DaemonFacts, HolderFacts, SpaceFacts, Waiter
from durable_coordinator.space import plan_space
from durable_coordinator.spec_space import SpaceSpec
from durable_coordinator.status import SpaceStatus, from_dict, to_dict
from durable_local import placement
from durable_local.daemon import Daemon
from durable_local.events import Listener, now_event
from durable_local.layout import Home
from durable_local.store import Record, Store

KIND = "DurableSpace"
_ASK_SECONDS = 1.0
INSTALL = "local"  # whoever drives from a state folder is the one install that ever does


@dataclass(frozen=True, slots=True)
class SpaceView:
    """Facts, and the record they were read from: a write goes over exactly this revision (rule 16)."""

    record: Record
    facts: SpaceFacts


class SpaceRunner:
    """A Space that may not exist yet: a session's own is created by its plan. One thread, one coordinator (`Lock`)."""

    def __init__(
        self,
        home: Home,
        store: Store,
        namespace: str,
        name: str,
        files: Mapping[str, bytes],
        environ: Mapping[str, str],
        listener: Listener,
    ) -> None:
        self.home = home
        self.store = store
        self.name = name
        self._namespace = namespace
        self._files = files
        self._environ = environ
        self._listener = listener
        self._daemon: Daemon | None = None
        self._generation = 0
        self._failing_since: float | None = None
        self._info: DaemonFacts | None = None
        self._asked_at = 0.0  # monotonic; 0: never, or a driver has run since
        # What its session knew of a former Space of this name (rule 38); set before the first read.
        self.generation_before = 0
        self.epoch_before = 0
        self.owner_uid = ""

    @property
    def daemon(self) -> Daemon | None:
        return self._daemon

    def belongs_to(self, session: Home) -> bool:
        """Whether it is the own Space of the session that lives in that home, and not one that sessions share."""
        return session.path == self.home.path

    def read(self) -> Record | None:
        return self.store.read(KIND, self.name)

    def create(self, spec: SpaceSpec) -> None:
        self.store.create(KIND, self.name, msgspec.json.encode(spec).decode())
        crash_point("local.space_created")

    def view(
        self, *, holder: Callable[[str], HolderFacts | None], waiters: tuple[Waiter, ...], ask: bool
    ) -> SpaceView | None:
        """A fresh read; with `ask` the daemon is asked as well. None: there is no such Space."""
        record = self.read()
        if record is None:
            return None
        status = from_dict(SpaceStatus, msgspec.json.decode(record.status))
        daemon = self._daemon_of(status.generation, record)
        info = self._ask(daemon) if daemon is not None and ask else None
        if not ask:
            self._asked_at = 0.0
        if daemon is None or info is not None or not ask:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = time.time()
        facts = SpaceFacts(
            now=time.time(),
            namespace=self._namespace,
            name=self.name,
            uid=record.uid,
            spec=msgspec.json.decode(record.spec, type=SpaceSpec),
            status=status,
            object_generation=record.generation,
            created_at=record.created,
            owner_uid=self.owner_uid,
            install=INSTALL,
            pod=daemon.pod(record.uid) if daemon is not None else None,
            generation_seen=max(self.home.generations(), default=0),
            generation_before=self.generation_before,
            epoch_before=self.epoch_before,
            daemon=info,
            daemon_failing_since=self._failing_since,
            holder=holder(status.holder.name) if status.holder is not None else None,
            waiters=waiters,
        )
        return SpaceView(record, facts)

    def step(self, view: SpaceView) -> None:
        """Plan once and act. Raises ConflictError if somebody wrote in between: read again."""
        plan = plan_space(view.facts)
        for action in plan.actions:
            self._act(action, plan, view)

    def supervise(self) -> None:
        if self._daemon is not None:
            self._daemon.watch(self._environ)

    def write(self, view: SpaceView, status: SpaceStatus) -> None:
        """Compare-and-swap. Raise ConflictError if the Space is not what the view shows any more."""
        self.store.write(view.record, status=msgspec.json.encode(to_dict(status)).decode())

    def remove(self, uid: str) -> None:
        """The object and its daemon; the workspace and the daemon's records stay where they are."""
        self.stop()
        if self._generation:
            placement.end(self.home, self._generation)
        crash_point("local.space_ended")
        self.store.delete(KIND, self.name, uid)
        self._daemon, self._generation = None, 0

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()

    def _daemon_of(self, generation: int, record: Record) -> Daemon | None:
        if generation == 0:
            return None
        if self._daemon is None or generation != self._generation:
            self.stop()
            spec = msgspec.json.decode(record.spec, type=SpaceSpec)
            self._daemon = Daemon(self.home, self.name, generation, spec, self._listener)
            self._generation = generation
            self._info = None
        return self._daemon

    def _ask(self, daemon: Daemon) -> DaemonFacts | None:
        """GetInfo, not at every turn of a long wait: its floor moves only while a driver runs."""
        if self._info is None or time.monotonic() - self._asked_at > _ASK_SECONDS or not self._asked_at:
            self._info, self._asked_at = daemon.info(), time.monotonic()
        return self._info

    def _act(self, action: SpaceAction, plan: SpacePlan, view: SpaceView) -> None:
        match action:
            case WriteStatus():
                self.write(view, plan.status)
                crash_point("local.space_status_written")
            case PlaceSpace():
                placement.place(
                    self.home, action.generation, epoch_floor=action.epoch_floor, fill=action.fill, files=self._files
                )
                self._listener(
                    now_event(self.name, 0, "space.placed", generation=action.generation, reason=action.reason)
                )
            case DeletePod():
                self.stop()
                placement.end(self.home, action.generation)
            case WakeSession():
                pass  # every session is planned at every turn

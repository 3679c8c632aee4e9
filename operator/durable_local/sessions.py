"""One session on this machine: read, plan, act. The same plan as on a cluster; the pod is a child process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from durable_base.crash import crash_point
from durable_base.files import write_atomic
from durable_coordinator import actions
from durable_coordinator.actions import SessionAction, SessionPlan, StartDriver
from durable_coordinator.facts import DriverFacts, SessionFacts
from durable_coordinator.session import plan_session
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.status import SessionStatus, condition, from_dict, is_true, to_dict
from durable_local import process
from durable_local.drive import Drive, report_path
from durable_local.environment import DriveTold, driver_environment
from durable_local.events import Listener, now_event
from durable_local.layout import Home
from durable_local.process import Life
from durable_local.spaces import INSTALL, SpaceRunner, SpaceView
from durable_local.store import Record, Store

KIND = "DurableSession"
_GRACE_SECONDS_MAX = 10  # a person who stops a run waits for it


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the session's references lead to, resolved before anything is made."""

    text: str
    agent: str | None  # YAML
    script: str | None  # YAML
    env: Mapping[str, str]
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionView:
    record: Record
    facts: SessionFacts
    space: SpaceView | None


class SessionRunner:
    """Belongs to one coordinator, which holds the home's `Lock`; used by one thread."""

    def __init__(
        self,
        home: Home,
        store: Store,
        namespace: str,
        name: str,
        inputs: Inputs,
        space: SpaceRunner,
        environ: Mapping[str, str],
        listener: Listener,
    ) -> None:
        self.home = home
        self.name = name
        self.space = space
        self._store = store
        self.namespace = namespace
        self._inputs = inputs
        self._environ = environ
        self._listener = listener
        self._drives: dict[int, Drive] = {}
        self._over: set[int] = set()
        self._keepers: list[process.Keeper] = []
        self._uid = self.read().uid  # of an object that only goes with its folder
        last = self.status().last_exit
        self._told_exit = last.epoch if last is not None else 0
        self._told_reason = ""

    def read(self) -> Record:
        record = self._store.read(KIND, self.name)
        assert record is not None, "a session's record goes only with its folder, and that is locked"
        return record

    def status(self) -> SessionStatus:
        return from_dict(SessionStatus, msgspec.json.decode(self.read().status))

    def view(self, space: SpaceView | None) -> SessionView:
        """A fresh read of everything that the plan looks at."""
        record = self.read()
        spec = msgspec.json.decode(record.spec, type=SessionSpec)
        status = from_dict(SessionStatus, msgspec.json.decode(record.status))
        present, others = self._drivers(status.epoch, spec.stall_seconds)
        daemon = self.space.daemon
        facts = SessionFacts(
            now=time.time(),
            namespace=self.namespace,
            name=self.name,
            uid=record.uid,
            spec=spec,
            status=status,
            object_generation=record.generation,
            created_at=record.created,
            install=INSTALL,
            finalizer=spec.deletion_policy == "Delete",  # a session goes with its folder: nothing has to be held back
            driver=present,
            others=others,
            epoch_seen=max(self.home.epochs_seen(), default=0),
            space=space.facts if space is not None else None,
            space_changed_at=daemon.restarted_at if daemon is not None else 0.0,
        )
        return SessionView(record, facts, space)

    def step(self, view: SessionView) -> SessionPlan:
        """Plan once and act. Raises ConflictError if somebody wrote in between: read again."""
        plan = plan_session(view.facts)
        for action in plan.actions:
            self._act(action, plan, view)
        self._tell_status(plan.status)
        return plan

    def watch(self) -> None:
        """Pass on what the drivers told, and end those that outlived their grace."""
        for keeper in self._keepers:
            keeper.poll()
        for drive in list(self._drives.values()):
            for event in drive.news():
                self._listener(event)
            drive.enforce()

    def driving(self) -> list[Drive]:
        """Drivers that run now, of whatever epoch."""
        return [self._drive(epoch) for epoch in self._running()]

    def release(self) -> None:
        """Called when no driver is left to run: nothing of this process's own stays behind either."""
        for keeper in self._keepers:
            process.release(keeper)

    def _running(self) -> list[int]:
        """Epochs whose driver runs. One that has ended never runs again, so it is looked at no more."""
        found = []
        for epoch in self.home.epochs_seen():
            if epoch not in self._over:
                life = process.look(self.home.drive(epoch)).life
                found += [epoch] if life is Life.RUNNING else []
                self._over |= {epoch} if life in (Life.ENDED, Life.GONE) else set()
        return found

    def _drive(self, epoch: int) -> Drive:
        return self._drives.setdefault(epoch, Drive(self.home, self.name, self._uid, epoch))

    def _drivers(self, epoch: int, stall: float) -> tuple[DriverFacts | None, tuple[DriverFacts, ...]]:
        present = self._drive(epoch).facts(stall) if epoch else None
        others = (self._drive(other).facts(stall) for other in self._running() if other != epoch)
        return present, tuple(facts for facts in others if facts is not None)

    def _act(self, action: SessionAction, plan: SessionPlan, view: SessionView) -> None:
        match action:
            case actions.WriteStatus():
                self._store.write(view.record, status=msgspec.json.encode(to_dict(plan.status)).decode())
                crash_point("local.session_written")
            case actions.IssueEpoch():
                assert view.space is not None, "an epoch is issued on a Space that was read"
                self.space.write(view.space, action.space)
                crash_point("local.space_written")
                self._listener(now_event(self.name, action.epoch, "epoch.issued", reason=action.reason))
            case actions.StartDriver():
                self._start(action, view)
            case actions.AskStop():
                grace = view.facts.spec.driver.termination_grace_period_seconds
                self._drive(action.epoch).ask_stop(grace)
            case actions.DeleteDriver():
                self._end_driver(action, view)
            case actions.EnsureSpace():
                self.space.create(action.spec)
            case actions.RenewLease() | actions.ReleaseLease():
                assert view.space is not None, "only a Space that was read has a lease"
                self.space.write(view.space, action.space)
            case actions.DeleteSpace():
                self.space.remove(action.uid)
            case actions.WakeSpace():
                pass  # every Space is planned at every turn
            case _:
                # Finalizers, clean-up and time to live are an API server's; here a session goes with its folder.
                raise AssertionError(f"a plan for one machine never asks for {type(action).__name__}")

    def _end_driver(self, action: actions.DeleteDriver, view: SessionView) -> None:
        drive = self._drive(action.epoch)
        grace = action.grace_seconds
        if grace == 0:
            drive.kill()
        else:
            drive.ask_stop(view.facts.spec.driver.termination_grace_period_seconds if grace is None else grace)

    def _start(self, action: StartDriver, view: SessionView) -> None:
        """Under a claimed folder nothing is started: whatever runs or ran there is the driver of this epoch."""
        daemon = self.space.daemon
        assert daemon is not None, "a driver is started on a Space that was placed"
        spec = view.facts.spec
        home = self.home.path.absolute()
        told = DriveTold(
            namespace=self.namespace,
            session=self.name,
            session_id=action.session_id,
            epoch=action.epoch,
            attempt=action.attempt,
            resume=action.resume,
            state_dir=home,
            stall_seconds=spec.stall_seconds,
            grace_seconds=min(spec.driver.termination_grace_period_seconds, _GRACE_SECONDS_MAX),
            mode=spec.mode,
            transactional=msgspec.json.encode(spec.transactional).decode() if spec.transactional else "",
            input=self._put("input.txt", self._inputs.text),
            agent=self._put("agent.yaml", self._inputs.agent) if self._inputs.agent is not None else None,
            script=self._put("script.yaml", self._inputs.script) if self._inputs.script is not None else None,
            report=report_path(self.home, action.epoch),
            space=action.space_name,
            space_address=daemon.address,
            space_token=daemon.token,
            space_generation=action.generation,
            space_kind="container",
            lease_token=action.lease_token,
            retry_token=spec.retry_token,
        )
        env = driver_environment(self._environ, told, self._inputs.env)
        self._drive(action.epoch)
        keeper = process.start(self.home.drive(action.epoch), str(uuid.uuid4()), self._inputs.command, env, home)
        self._keepers.append(keeper)
        crash_point("local.driver_started")
        self._listener(
            now_event(self.name, action.epoch, "driver.launched", attempt=action.attempt, resume=action.resume)
        )
        process.wait_claimed(self.home.drive(action.epoch), keeper)

    def _put(self, name: str, text: str) -> Path:
        path = self.home.path.absolute() / name
        write_atomic(path, text.encode(), sync=False)
        return path

    def _tell_status(self, status: SessionStatus) -> None:
        """Turning points that the status shows: an end of a drive, what is waited for."""
        last = status.last_exit
        if last is not None and last.epoch > self._told_exit:
            self._told_exit = last.epoch
            wait = max(status.next_attempt_time.timestamp() - time.time(), 0.0) if status.next_attempt_time else 0.0
            fields = {"reason": last.reason, "code": last.code, "signal": last.signal, "counted": last.counted}
            self._drive(last.epoch).put_judgement({**fields, "seconds": round(wait, 1)})
            self._listener(now_event(self.name, last.epoch, "driver.gone", **fields, seconds=round(wait, 1)))
        ready = condition(status.conditions, "Ready")
        if ready is None or is_true(status.conditions, "Finished") or ready.reason == self._told_reason:
            return
        self._told_reason = ready.reason
        self._listener(now_event(self.name, status.epoch, "session.ready", reason=ready.reason, message=ready.message))

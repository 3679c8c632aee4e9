"""Bring a session to rest: suspended by a person, or past its deadline. What runs is asked first, then deleted with its grace."""

from __future__ import annotations

from enum import Enum

from durable_coordinator.actions import (
    AskStop,
    DeleteDriver,
    ReleaseLease,
    RenewLease,
    SessionAction,
    SessionPlan,
    WakeSpace,
)
from durable_coordinator.drivers import Drive, DriveState
from durable_coordinator.ending import finish
from durable_coordinator.facts import DriverFacts, SessionFacts
from durable_coordinator.leases import is_ours, released, renewal_due, renewed
from durable_coordinator.plans import WAKE_SECONDS, Outlook, assemble
from durable_coordinator.status import SessionStatus, condition, is_true, seconds

ASK_SECONDS = 10.0  # the report stream may be cut: after this the pod is deleted, with its grace (rule 37)
RUNNING = frozenset({Drive.COMING, Drive.DRIVING, Drive.STOPPING, Drive.OUT_OF_REACH})


class Wanted(Enum):
    RUN = "Running"
    SUSPEND = "Suspended"
    DEADLINE = "DeadlineExceeded"


def wanted(facts: SessionFacts, status: SessionStatus) -> Wanted:
    left = deadline_left(facts, status)
    if left is not None and left <= 0:
        return Wanted.DEADLINE
    return Wanted.SUSPEND if facts.spec.operating_mode == "Suspended" else Wanted.RUN


def deadline_left(facts: SessionFacts, status: SessionStatus) -> float | None:
    """Seconds until activeDeadlineSeconds is over: wall time since the first drive without the suspended time (rule 42)."""
    if facts.spec.active_deadline_seconds is None or status.start_time is None:
        return None
    spent = facts.now - seconds(status.start_time) - status.suspended_seconds
    suspended = condition(facts.status.conditions, "Suspended")
    if suspended is not None and suspended.status == "True":
        spent -= max(0.0, facts.now - seconds(suspended.last_transition_time))
    return facts.spec.active_deadline_seconds - spent


def plan_stop(
    facts: SessionFacts, status: SessionStatus, state: DriveState, want: Wanted, cleanup: tuple[SessionAction, ...]
) -> SessionPlan:
    if state.drive in RUNNING and facts.driver is not None:
        return _stop_driver(facts, status, state, facts.driver, want, cleanup)
    if want is Wanted.DEADLINE:
        message = f"activeDeadlineSeconds ({facts.spec.active_deadline_seconds}) are over"
        return finish(facts, status, False, "DeadlineExceeded", message, cleanup)
    return _rest(facts, status, state, cleanup)


def _stop_driver(
    facts: SessionFacts,
    status: SessionStatus,
    state: DriveState,
    driver: DriverFacts,
    want: Wanted,
    cleanup: tuple[SessionAction, ...],
) -> SessionPlan:
    """Table C: any end that follows is `Stopped`, but for 0 and 78."""
    actions: tuple[SessionAction, ...] = ()
    requeue = state.requeue if state.requeue is not None else ASK_SECONDS
    deletion = DeleteDriver(name=driver.name, uid=driver.uid, epoch=driver.epoch, reason=want.value)
    if state.drive is Drive.COMING:
        actions = (deletion,)
    elif state.drive is Drive.DRIVING:
        asked = driver.stop_asked_at
        if asked is None:
            actions = (AskStop(name=driver.name, uid=driver.uid, epoch=driver.epoch, reason=want.value),)
        elif facts.now >= asked + ASK_SECONDS:
            actions = (deletion,)
        else:
            requeue = asked + ASK_SECONDS - facts.now
    outlook = Outlook(
        reason="Stopping",
        message=f"{driver.name} was asked to stop: {want.value}",
        suspended="Suspending" if want is Wanted.SUSPEND else "Running",
        drive=state,
    )
    return assemble(facts, status, outlook, after=(*cleanup, *actions), requeue=requeue)


def _rest(
    facts: SessionFacts, status: SessionStatus, state: DriveState, cleanup: tuple[SessionAction, ...]
) -> SessionPlan:
    """Nothing runs: apply `suspend.space`. A lease that is kept is renewed, for nothing else would keep it alive."""
    actions: list[SessionAction] = []
    requeue: float | None = None
    space = facts.space
    if space is not None and is_ours(space.status, facts.uid):
        if facts.spec.suspend.space == "Release":
            actions.append(
                ReleaseLease(
                    space_name=space.name, space_uid=space.uid, space=released(space.status), reason="Suspended"
                )
            )
        else:
            requeue = renewal_due(space.status, facts.spec.lease_seconds, facts.now)
            if requeue <= 0:
                actions.append(
                    RenewLease(space_name=space.name, space_uid=space.uid, space=renewed(space.status, facts.now))
                )
                requeue = WAKE_SECONDS
        if facts.spec.suspend.space == "Stop" and not is_true(facts.status.conditions, "Suspended"):
            actions.append(WakeSpace(name=space.name, reason="Suspended"))
    outlook = Outlook(reason="Suspended", suspended="Suspended", drive=state)
    return assemble(facts, status, outlook, after=(*cleanup, *actions), requeue=requeue)

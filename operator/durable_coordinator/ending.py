"""The end of a session: the final status, what is released and deleted after it, a second life, and deletion.

The final status is always written first (rule 17). Everything after it can be lost in a crash and is made up for here: a
finished session is planned again until nothing of it is held.
"""

from __future__ import annotations

from msgspec.structs import replace

from durable_coordinator.actions import (
    CleanUp,
    DeleteDriver,
    DeleteSession,
    DeleteSpace,
    ReleaseLease,
    RemoveFinalizer,
    SessionAction,
    SessionPlan,
)
from durable_coordinator.drivers import DriveState
from durable_coordinator.facts import DriverFacts, SessionFacts
from durable_coordinator.leases import is_ours, released
from durable_coordinator.placement import GRACE_MARGIN_SECONDS
from durable_coordinator.plans import Outlook, assemble, is_finished
from durable_coordinator.status import SessionStatus, at, condition, seconds

CLEANUP_SECONDS = 300.0  # after that the finalizer goes whatever came of the cleanup (rule 19)
STOP_POLL_SECONDS = 5.0


def finish(
    facts: SessionFacts,
    status: SessionStatus,
    succeeded: bool,
    reason: str,
    message: str,
    cleanup: tuple[SessionAction, ...] = (),
) -> SessionPlan:
    """The session is over, one way or the other: final status, then the driver's remains, then the lease."""
    status = replace(status, completion_time=at(facts.now), next_attempt_time=None)
    outlook = Outlook(reason="Finished", message=reason, ended=(succeeded, reason, message))
    return assemble(facts, status, outlook, after=(*cleanup, *_release(facts, reason)), requeue=0.0)


def retried(facts: SessionFacts) -> bool:
    """Rule 41: another retryToken on a failed session. On a succeeded one it does nothing."""
    success = condition(facts.status.conditions, "Succeeded")
    failed = success is not None and success.status == "False"
    return failed and facts.spec.retry_token not in ("", facts.status.observed_retry_token)


def plan_finished(facts: SessionFacts, status: SessionStatus) -> SessionPlan:
    """Nothing but history, ttl and release; the conditions' observedGeneration follows edits (rule 18)."""
    status = replace(status, observed_retry_token=facts.spec.retry_token)
    actions: list[SessionAction] = [
        DeleteDriver(name=driver.name, uid=driver.uid, epoch=driver.epoch, reason="Finished")
        for driver in _live(facts)
        if driver.deletion is None
    ]
    actions += _release(facts, "Finished")
    timers: list[float] = []
    done = seconds(status.completion_time) if status.completion_time is not None else facts.now
    inline = facts.spec.space
    if inline is not None and _own_space(facts):
        _after(actions, timers, done + inline.keep_seconds_after_finished - facts.now, _delete_space(facts, "Finished"))
    ttl = facts.spec.ttl_seconds_after_finished
    if ttl is not None:
        _after(actions, timers, done + ttl - facts.now, (DeleteSession(uid=facts.uid),))
    before = condition(status.conditions, "Ready")
    outlook = Outlook(reason="Finished", message=before.message if before is not None else "")
    return assemble(facts, status, outlook, after=tuple(actions), requeue=min(timers, default=None))


def plan_deletion(facts: SessionFacts, status: SessionStatus, state: DriveState) -> SessionPlan:
    """The object is going: end the drivers ourselves, release, clean up if asked to, let it go (rule 19)."""
    assert facts.deleting is not None
    status = replace(status, observed_retry_token=facts.spec.retry_token)
    live = _live(facts)
    actions: list[SessionAction] = [
        DeleteDriver(name=driver.name, uid=driver.uid, epoch=driver.epoch, reason="Deleted")
        for driver in live
        if driver.deletion is None
    ]
    left = facts.deleting.at + CLEANUP_SECONDS - facts.now
    hurried = facts.namespace_terminating or left <= 0
    reason = "Finished" if is_finished(status) else "Stopping"
    outlook = Outlook(reason=reason, message="the session is being deleted", drive=state)
    if not hurried and any(_awaited(facts, driver) for driver in live):
        return assemble(facts, status, outlook, after=tuple(actions), requeue=STOP_POLL_SECONDS)
    actions += _release(facts, "Deleted")
    actions += _delete_space(facts, "Deleted")
    if not facts.finalizer:
        return assemble(facts, status, outlook, after=tuple(actions), requeue=None)
    if facts.spec.deletion_policy == "Delete" and status.epoch and not facts.cleaned_up and not hurried:
        return assemble(facts, status, outlook, after=(*actions, CleanUp()), requeue=min(left, STOP_POLL_SECONDS))
    why = "CleanedUp" if facts.cleaned_up else "NothingLeft"
    if hurried and not facts.cleaned_up:
        why = "NamespaceTerminating" if facts.namespace_terminating else "CleanupTimedOut"
    return assemble(facts, status, outlook, after=(*actions, RemoveFinalizer(reason=why)), requeue=None)


def _live(facts: SessionFacts) -> tuple[DriverFacts, ...]:
    known = (*((facts.driver,) if facts.driver is not None else ()), *facts.others)
    return tuple(driver for driver in known if driver.owner_uid == facts.uid and not driver.over)


def _awaited(facts: SessionFacts, driver: DriverFacts) -> bool:
    """Worth waiting for: it may still be within its grace, on a node that talks to us."""
    if driver.end is not None or driver.node_unreachable_seconds is not None:
        return False
    if driver.deletion is None:
        return True
    return facts.now < driver.deletion.at + driver.deletion.grace_seconds + GRACE_MARGIN_SECONDS


def _release(facts: SessionFacts, reason: str) -> tuple[SessionAction, ...]:
    space = facts.space
    if space is None or not is_ours(space.status, facts.uid):
        return ()
    return (
        ReleaseLease(space_name=space.name, space_uid=space.uid, space=released(space.status), reason=reason),
    )  # fmt: skip


def _own_space(facts: SessionFacts) -> bool:
    space = facts.space
    return space is not None and not space.deleting and space.owner_uid == facts.uid and facts.spec.space is not None


def _delete_space(facts: SessionFacts, reason: str) -> tuple[SessionAction, ...]:
    if not _own_space(facts) or facts.space is None:
        return ()
    return (DeleteSpace(name=facts.space.name, uid=facts.space.uid, reason=reason),)


def _after(actions: list[SessionAction], timers: list[float], left: float, then: tuple[SessionAction, ...]) -> None:
    """`then` once its time has come, a timer until it has."""
    if left <= 0:
        actions.extend(then)
    else:
        timers.append(left)

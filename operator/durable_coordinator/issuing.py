"""From "no drive" to "a drive is starting": what has to be so first, and the epoch (rule 16).

Every gate that is closed has a reason in Ready, and either a timer or somebody who wakes the session. The order of the gates is
the order in which a person would want to hear of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from durable_coordinator.actions import EnsureSpace, IssueEpoch, SessionAction, SessionPlan, StartDriver, WakeSpace
from durable_coordinator.conditions import BLOCKED
from durable_coordinator.epochs import driver_name, next_epoch
from durable_coordinator.facts import SessionFacts, SpaceFacts
from durable_coordinator.leases import is_free, is_held_by, is_next, is_ours, next_token, next_waiter, taken
from durable_coordinator.placement import CONFLICT_SECONDS, DELETED_SOON_SECONDS, Place, Placement, judge_space
from durable_coordinator.plans import WAKE_SECONDS, Outlook, assemble
from durable_coordinator.record import fenced_elsewhere, reported_floor, with_space
from durable_coordinator.status import DriverRecord, SessionStatus, at, seconds
from durable_coordinator.stopping import deadline_left

CREATED_SOON_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Closed:
    """A gate that is closed: what Ready shows, what helps, when to look again."""

    outlook: Outlook
    actions: tuple[SessionAction, ...] = ()
    requeue: float = WAKE_SECONDS


def plan_next(facts: SessionFacts, status: SessionStatus, cleanup: tuple[SessionAction, ...]) -> SessionPlan:
    """No drive is going on: issue the next epoch and start it, or say what it waits for."""
    closed = _backing_off(facts, status) or _obstacle(facts) or _space_missing(facts, status)
    if closed is None:
        assert facts.space is not None
        closed = _lease_closed(facts, facts.space) or _space_closed(facts.space) or _volume_closed(facts, status)
    if closed is not None:
        return _wait(facts, status, closed, cleanup)
    return _issue(facts, status, cleanup)


def plan_start(facts: SessionFacts, status: SessionStatus, cleanup: tuple[SessionAction, ...]) -> SessionPlan:
    """An epoch was issued and nothing was started under it (a crash between the two): start it, under the same epoch.

    Unless the Space no longer stands at it: then another write came between, and only a new epoch is above that.
    """
    closed = _obstacle(facts) or _space_missing(facts, status)
    if closed is not None:
        return _wait(facts, status, closed, cleanup)
    space = facts.space
    assert space is not None
    if not is_held_by(space.status, space.uid, facts.uid, status) or space.status.epoch != status.epoch:
        return plan_next(facts, status, cleanup)
    closed = _space_closed(space)
    if closed is not None:
        return _wait(facts, status, closed, cleanup)
    status = replace(with_space(facts, status), start_time=status.start_time or at(facts.now))
    return assemble(facts, status, Outlook(reason="Starting"), after=(*cleanup, _start(facts, status)))


def _issue(facts: SessionFacts, status: SessionStatus, cleanup: tuple[SessionAction, ...]) -> SessionPlan:
    """Rule 16: the Space's compare-and-swap, then the session's, then the start, then whatever must go."""
    space = facts.space
    assert space is not None
    token = next_token(space.status, status, facts.uid)
    epoch = next_epoch(
        session=status.epoch,
        lease_token=token,
        space=space.status.epoch,
        reported_floor=reported_floor(facts),
        names_seen=facts.epoch_seen,
    )
    reason = status.last_exit.reason if status.last_exit is not None and status.epoch else "FirstDrive"
    issue = IssueEpoch(
        epoch=epoch,
        lease_token=token,
        space_name=space.name,
        space_uid=space.uid,
        space=taken(facts, space.status, token=token, epoch=epoch),
        reason=reason,
    )
    avoid = status.driver.node if reason == "NeverStarted" and status.driver is not None else ""
    status = with_space(facts, status)
    status = replace(
        status,
        operator=status.operator or facts.install,
        epoch=epoch,
        attempts=status.attempts + 1,
        lease_token=token,
        start_time=status.start_time or at(facts.now),
        next_attempt_time=None,
        log=status.log or facts.log,
        driver=_new_driver(facts, status, epoch),
    )
    start = _start(facts, status, avoid)
    return assemble(facts, status, Outlook(reason="Starting"), before=(issue,), after=(start, *cleanup))


def _new_driver(facts: SessionFacts, status: SessionStatus, epoch: int) -> DriverRecord:
    """The record of a driver not yet seen; the image stays pinned while the spec's is the same (rule 36)."""
    spec_image = facts.spec.driver.image or ""
    before = status.driver
    pinned = before is not None and before.image != "" and before.spec_image == spec_image
    return DriverRecord(
        pod=driver_name(facts.name, epoch),
        epoch=epoch,
        image=before.image if pinned and before is not None else "",
        spec_image=spec_image if pinned else "",
    )


def _start(facts: SessionFacts, status: SessionStatus, avoid_node: str = "") -> StartDriver:
    assert status.space is not None
    return StartDriver(
        name=driver_name(facts.name, status.epoch),
        epoch=status.epoch,
        lease_token=status.lease_token,
        attempt=status.counted_attempts + 1,
        resume=status.attempts > 1,
        session_id=status.session_id,
        space_name=status.space.name,
        generation=status.space.generation,
        image=status.driver.image if status.driver is not None else "",
        avoid_node=avoid_node,
    )


def _wait(
    facts: SessionFacts, status: SessionStatus, closed: Closed, cleanup: tuple[SessionAction, ...]
) -> SessionPlan:
    deadline = deadline_left(facts, status)
    requeue = closed.requeue if deadline is None else min(closed.requeue, deadline)
    return assemble(facts, status, closed.outlook, after=(*cleanup, *closed.actions), requeue=requeue)


def _backing_off(facts: SessionFacts, status: SessionStatus) -> Closed | None:
    if status.next_attempt_time is None or seconds(status.next_attempt_time) <= facts.now:
        return None
    last = status.last_exit
    ended = f"epoch {last.epoch} ended: {last.reason}; " if last is not None else ""
    counted = f"{status.counted_attempts} of {facts.spec.retry.max_attempts} attempts used; "
    message = f"{ended}{counted}next attempt at {status.next_attempt_time:%Y-%m-%dT%H:%M:%SZ}"
    reason = "BackingOff"
    if fenced_elsewhere(status):
        reason = "FencedElsewhere"
        message = f"another coordinator drives this session's log: end it or delete one of the sessions; {message}"
    left = seconds(status.next_attempt_time) - facts.now
    return Closed(Outlook(reason=reason, message=message), requeue=min(left, WAKE_SECONDS))


def _obstacle(facts: SessionFacts) -> Closed | None:
    obstacle = facts.obstacle
    if obstacle is None:
        return None
    # It no longer counts as a waiter: whoever waits behind it must hear of that.
    wake = (WakeSpace(name=facts.space.name, reason=obstacle.reason),) if facts.space and not _ours(facts) else ()
    outlook = Outlook(reason=obstacle.reason, message=obstacle.message)
    return Closed(outlook, wake, requeue=min(obstacle.retry_seconds, WAKE_SECONDS))


def _space_missing(facts: SessionFacts, status: SessionStatus) -> Closed | None:
    """The DurableSpace object itself: not there, going, of another owner, or of another install."""
    name = facts.spec.space_name(facts.name)
    space = facts.space
    inline = facts.spec.space_spec()
    if space is None and inline is None:
        message = f"there is no DurableSpace {name} in namespace {facts.namespace}: create it"
        return Closed(Outlook(reason="WaitingForSpace", message=message, blocked=True))
    if space is None and inline is not None:
        before = status.space.generation if status.space is not None else 0
        make = EnsureSpace(name=name, spec=inline, generation_before=before, epoch_before=status.epoch)
        return Closed(Outlook(reason="WaitingForSpace"), (make,), requeue=CREATED_SOON_SECONDS)
    assert space is not None
    if space.deleting:
        message = f"DurableSpace {name} is being deleted"
        return Closed(Outlook(reason="WaitingForSpace", message=message), requeue=DELETED_SOON_SECONDS)
    if inline is not None and space.owner_uid != facts.uid:
        message = f"a DurableSpace {name} exists that belongs to something else: delete or rename it"
        requeue = DELETED_SOON_SECONDS if space.owner_uid else CONFLICT_SECONDS
        return Closed(Outlook(reason="NameConflict", message=message), requeue=requeue)
    if space.status.operator not in ("", facts.install):
        message = f"DurableSpace {name} is managed by another install: use one of this install's, or move it over"
        return Closed(Outlook(reason="ManagedElsewhere", message=message), requeue=CONFLICT_SECONDS)
    return None


def _ours(facts: SessionFacts) -> bool:
    return facts.space is not None and is_ours(facts.space.status, facts.uid)


def _lease_closed(facts: SessionFacts, space: SpaceFacts) -> Closed | None:
    if _ours(facts):
        return None
    if not is_free(space.status, space.holder, facts.now):
        holder = space.status.holder
        assert holder is not None
        message = f"held by session:{holder.namespace}/{holder.name}"
        return Closed(Outlook(reason="WaitingForLease", message=message))
    if not is_next(facts):
        first = next_waiter(space.waiters)
        message = f"session:{first.namespace}/{first.name} waited longer" if first is not None else ""
        wake = WakeSpace(name=space.name, reason="LeaseFree")
        return Closed(Outlook(reason="WaitingForLease", message=message), (wake,))
    return None


def _space_closed(space: SpaceFacts) -> Closed | None:
    placement = judge_space(space)
    if placement.usable:
        return None
    message = _space_message(space, placement)
    blocked = placement.blocked or placement.reason in BLOCKED
    outlook = Outlook(reason="WaitingForSpace", message=message, blocked=blocked)
    unplaced = placement.place in (Place.GONE, Place.UNPLACED)
    wake = (WakeSpace(name=space.name, reason=placement.reason),) if unplaced else ()
    requeue = placement.requeue if placement.requeue is not None else WAKE_SECONDS
    return Closed(outlook, wake, requeue=min(requeue, WAKE_SECONDS))


def _space_message(space: SpaceFacts, placement: Placement) -> str:
    return f"DurableSpace {space.name}: {placement.reason}" + (f": {placement.message}" if placement.message else "")


def _volume_closed(facts: SessionFacts, status: SessionStatus) -> Closed | None:
    """Rule 39: with its log on a claim, a next pod is made only when the old one can't write any more."""
    place = status.log or facts.log
    if place is None or place.storage != "PersistentVolumeClaim":
        return None
    known = (*((facts.driver,) if facts.driver is not None else ()), *facts.others)
    limit = facts.spec.unreachable_seconds
    for driver in known:
        away = driver.node_unreachable_seconds is not None and driver.node_unreachable_seconds >= limit
        if driver.owner_uid == facts.uid and not driver.over and not away:
            message = f"the log's volume is still in use by {driver.name}"
            return Closed(Outlook(reason="VolumeUnavailable", message=message), requeue=DELETED_SOON_SECONDS)
    return None

"""Put a session's plan together: what was decided, the conditions that tell of it, and the actions in their lawful order."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from durable_coordinator.actions import IssueEpoch, ReleaseLease, RenewLease, SessionAction, SessionPlan, WriteStatus
from durable_coordinator.conditions import Said, dated, progressing
from durable_coordinator.drivers import Drive, DriveState
from durable_coordinator.facts import SessionFacts
from durable_coordinator.leases import is_free, is_ours
from durable_coordinator.placement import Place, judge_space
from durable_coordinator.status import ConditionStatus, SessionStatus, SpaceStatus, condition, is_true

WAKE_SECONDS = 300.0  # an unfinished session is looked at this often whatever happens (rule 8); shells add jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How a session stands after its plan: what Ready shows, and the few things that the other conditions can't see."""

    reason: str
    message: str = ""
    ready: ConditionStatus = "False"
    blocked: bool = False  # somebody has to act, though Ready's reason alone does not say so
    suspended: str = "Running"  # or Suspending, Suspended
    drive: DriveState | None = None
    ended: tuple[bool, str, str] | None = None  # succeeded, reason, message: the session finishes with this plan


def assemble(
    facts: SessionFacts,
    status: SessionStatus,
    outlook: Outlook,
    *,
    before: tuple[SessionAction, ...] = (),
    after: tuple[SessionAction, ...] = (),
    requeue: float | None = WAKE_SECONDS,
) -> SessionPlan:
    """`before` the status write comes the epoch's issue alone (rule 16b); starts, deletions and releases come after it."""
    space = facts.space.status if facts.space is not None else None
    for action in (*before, *after):
        if isinstance(action, IssueEpoch | RenewLease | ReleaseLease):
            space = action.space
    said = (
        *_ends(status, outlook),
        Said("Ready", outlook.ready, outlook.reason, outlook.message),
        progressing(outlook.reason, outlook.message, blocked=outlook.blocked),
        _space_ready(facts, outlook),
        _lease_held(facts, status, space),
        _stalled(facts, outlook),
        Said("Suspended", "True" if outlook.suspended == "Suspended" else "False", outlook.suspended),
    )
    status = replace(
        status,
        observed_generation=facts.object_generation,
        conditions=dated(facts.status.conditions, said, now=facts.now, generation=facts.object_generation),
    )
    write: tuple[SessionAction, ...] = (WriteStatus(reason=outlook.reason),) if status != facts.status else ()
    return SessionPlan(
        actions=(*before, *write, *after),
        status=status,
        reason=outlook.reason,
        requeue_after=None if requeue is None else max(requeue, 0.0),
    )


def _ends(status: SessionStatus, outlook: Outlook) -> tuple[Said, Said]:
    """Finished and Succeeded. Succeeded stays Unknown until the end: one `kubectl wait` waits for one value (rule 18)."""
    if outlook.ended is not None:
        succeeded, reason, message = outlook.ended
        return (
            Said("Finished", "True", reason, message),
            Said("Succeeded", "True" if succeeded else "False", reason, message),
        )
    finished, success = condition(status.conditions, "Finished"), condition(status.conditions, "Succeeded")
    if finished is not None and success is not None and finished.status == "True":
        return (
            Said("Finished", "True", finished.reason, finished.message),
            Said("Succeeded", success.status, success.reason, success.message),
        )
    return (
        Said("Finished", "False", "InProgress"),
        Said("Succeeded", "Unknown", "InProgress" if status.epoch else "Pending"),
    )


def _space_ready(facts: SessionFacts, outlook: Outlook) -> Said:
    name = facts.spec.space_name(facts.name)
    if outlook.reason == "Finished" and facts.spec.space is not None and (facts.space is None or facts.space.deleting):
        return Said("SpaceReady", "False", "Finished", "the session's own Space went with its end")
    if facts.space is None:
        return Said("SpaceReady", "False", "SpaceNotFound", f"no DurableSpace {name}")
    placement = judge_space(facts.space)
    again = facts.space.status.generation > 1
    match placement.place:
        case Place.READY:
            return Said("SpaceReady", "True", "SpaceReady")
        case Place.SILENT | Place.LOST_NODE:
            return Said("SpaceReady", "Unknown", "Unreachable", placement.message)
        case Place.DELETING:
            return Said("SpaceReady", "False", "SpaceDeleting", placement.message)
        case _ if placement.reason in ("PodFailed", "OOMKilled"):
            return Said("SpaceReady", "False", placement.reason, placement.message)
        case _:
            return Said("SpaceReady", "False", "PlacedAgain" if again else "Placing", placement.message)


def _lease_held(facts: SessionFacts, status: SessionStatus, space: SpaceStatus | None) -> Said:
    """`space`: the Space's status as this plan leaves it."""
    if space is not None and is_ours(space, facts.uid):
        return Said("LeaseHeld", "True", "Acquired")
    free = space is None or facts.space is None or is_free(space, facts.space.holder, facts.now)
    if space is not None and space.holder is not None and not free:
        return Said("LeaseHeld", "False", "HeldBy", f"held by session:{space.holder.namespace}/{space.holder.name}")
    if status.lease_token and (space is None or space.last_holder is None or space.last_holder.uid == facts.uid):
        return Said("LeaseHeld", "False", "Released")
    return Said("LeaseHeld", "False", "NotRequested")


def _stalled(facts: SessionFacts, outlook: Outlook) -> Said:
    drive, driver = outlook.drive, facts.driver
    if driver is not None and driver.frozen:
        return Said("Stalled", "True", "NoHeartbeat")
    if drive is None or drive.drive is not Drive.DRIVING or driver is None:
        return Said("Stalled", "False", "NotDriving")
    if driver.beat_age_seconds is None:
        return Said("Stalled", "Unknown", "NoReportStream")
    if driver.beat_age_seconds > facts.spec.stall_seconds:
        return Said("Stalled", "True", "NoHeartbeat")
    return Said("Stalled", "False", "Heartbeating")


def is_finished(status: SessionStatus) -> bool:
    return is_true(status.conditions, "Finished")

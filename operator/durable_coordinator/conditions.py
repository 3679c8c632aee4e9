"""Every condition and reason there is, and how one status's conditions follow from another's.

Reasons are an interface: scripts wait on them, alerts match them, docs/reference-conditions.md explains them (a test holds the
two together). A condition's transition time moves only when its status does, so that it tells since when.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from durable_coordinator.report import MESSAGE_MAX
from durable_coordinator.status import Condition, ConditionStatus, at, condition

SESSION_TYPES = ("Finished", "Succeeded", "Ready", "Progressing", "SpaceReady", "LeaseHeld", "Stalled", "Suspended")
SPACE_TYPES = ("Ready", "Held")

SESSION_REASONS: dict[str, dict[str, frozenset[str]]] = {
    "Finished": {
        "True": frozenset({"Completed", "PermanentFailure", "AttemptsExhausted", "DeadlineExceeded"}),
        "False": frozenset({"InProgress"}),
    },
    "Succeeded": {
        "True": frozenset({"Completed"}),
        "False": frozenset({"PermanentFailure", "AttemptsExhausted", "DeadlineExceeded"}),
        "Unknown": frozenset({"Pending", "InProgress"}),
    },
    "Ready": {
        "True": frozenset({"Driving"}),
        "False": frozenset(
            {
                "Pending", "WaitingForLease", "WaitingForSpace", "StoreNotReady", "Starting", "Unschedulable", "ImagePullFailed",
                "ConfigError", "VolumeUnavailable", "PodRejected", "QuotaExceeded", "NameConflict", "FencedElsewhere",
                "ForkSourceNotFound", "ManagedElsewhere", "BackingOff", "Stopping", "Suspended", "Finished",
            }
        ),
        "Unknown": frozenset({"NodeUnreachable"}),
    },
    "Progressing": {
        "True": frozenset({"Driving", "Starting", "BackingOff", "WaitingForLease"}),
        "False": frozenset({"Blocked", "Suspended", "Finished"}),
    },
    "SpaceReady": {
        "True": frozenset({"SpaceReady"}),
        "False": frozenset(
            {"Placing", "PlacedAgain", "SpaceNotFound", "SpaceDeleting", "PodFailed", "OOMKilled", "Finished"}
        ),
        "Unknown": frozenset({"Unreachable"}),
    },
    "LeaseHeld": {"True": frozenset({"Acquired"}), "False": frozenset({"HeldBy", "NotRequested", "Released"})},
    "Stalled": {
        "True": frozenset({"NoHeartbeat"}),
        "False": frozenset({"Heartbeating", "NotDriving"}),
        "Unknown": frozenset({"NoReportStream"}),
    },
    "Suspended": {"True": frozenset({"Suspended"}), "False": frozenset({"Running", "Suspending"})},
}  # fmt: skip
SPACE_REASONS: dict[str, dict[str, frozenset[str]]] = {
    "Ready": {
        "True": frozenset({"SpaceReady"}),
        "False": frozenset(
            {
                "Placing", "Unschedulable", "ImagePullFailed", "ConfigError", "PodRejected", "QuotaExceeded", "NameConflict",
                "VolumeUnavailable", "PodFailed", "OOMKilled", "Idle", "Deleting",
            }
        ),
        "Unknown": frozenset({"Unreachable", "NodeUnreachable"}),
    },
    "Held": {"True": frozenset({"Held"}), "False": frozenset({"Free"})},
}  # fmt: skip

# What Progressing says for each reason of Ready that somebody has to act on; everything else goes on by itself.
BLOCKED = frozenset(
    {
        "StoreNotReady", "Unschedulable", "ImagePullFailed", "ConfigError", "PodRejected", "QuotaExceeded", "NameConflict",
        "FencedElsewhere", "ForkSourceNotFound", "ManagedElsewhere",
    }
)  # fmt: skip
GOES_ON_AS = {
    "Driving": "Driving",
    "NodeUnreachable": "Driving",
    "Stopping": "Driving",
    "BackingOff": "BackingOff",
    "WaitingForLease": "WaitingForLease",
}


@dataclass(frozen=True, slots=True)
class Said:
    """A condition before it is dated."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


def dated(before: tuple[Condition, ...], said: Iterable[Said], *, now: float, generation: int) -> tuple[Condition, ...]:
    """The new conditions, in the order said; those of `before` that nobody speaks of are dropped."""
    return tuple(_dated(condition(before, one.type), one, at(now), generation) for one in said)


def _dated(before: Condition | None, said: Said, now: datetime, generation: int) -> Condition:
    moved = before is None or before.status != said.status
    return Condition(
        type=said.type,
        status=said.status,
        reason=said.reason,
        message=said.message[:MESSAGE_MAX],
        last_transition_time=now if before is None or moved else before.last_transition_time,
        observed_generation=generation,
    )


def progressing(ready_reason: str, message: str, *, blocked: bool) -> Said:
    """Progressing as it follows from Ready: does the session go on without anyone's help?"""
    if ready_reason in ("Suspended", "Finished"):
        return Said("Progressing", "False", ready_reason)
    if blocked or ready_reason in BLOCKED:
        return Said("Progressing", "False", "Blocked", message)
    return Said("Progressing", "True", GOES_ON_AS.get(ready_reason, "Starting"))

"""Judge where a Space is: serving, on its way, out of reach, or gone. The Space's own plan and its sessions' plans share it.

Only proof counts as gone (rule 13): the pod is not there, is another one, is over, is deleted past its grace, or its node is
unreachable for long. A daemon that does not answer is none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from durable_coordinator.epochs import space_pod_name
from durable_coordinator.facts import PodPhase, SpaceFacts, SpacePod
from durable_coordinator.status import ConditionStatus

GRACE_MARGIN_SECONDS = 5.0
UNREACHABLE_PATIENCE_SECONDS = 15.0  # then a driver is started although GetInfo fails
START_SECONDS = 600.0  # bound to a node and not started: that node will not do (as rule 12 has it for drivers)
CONFLICT_SECONDS = 60.0
DELETED_SOON_SECONDS = 5.0
VOLUME_SECONDS = 15.0


class Place(Enum):
    READY = "ready"
    SILENT = "silent"  # the pod is ready, GetInfo fails
    COMING = "coming"
    LOST_NODE = "lost node"  # unreachable, not yet for long enough
    UNPLACED = "unplaced"  # its generation was written, its pod never seen: start it, same generation
    GONE = "gone"  # place it again under the next generation
    BLOCKED = "blocked"  # by something that is not ours
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`reason` is one of the Space's Ready reasons; `delete`: a pod that has to go; `usable`: a driver may start."""

    place: Place
    reason: str
    message: str = ""
    usable: bool = False
    blocked: bool = False  # somebody has to act, though `reason` alone does not say so
    delete: SpacePod | None = None
    requeue: float | None = None

    @property
    def status(self) -> ConditionStatus:
        if self.place is Place.READY:
            return "True"
        return "Unknown" if self.place in (Place.SILENT, Place.LOST_NODE) else "False"


def recorded_uid(facts: SpaceFacts) -> str:
    """The uid of the current generation's pod, "" until it was seen."""
    pod = facts.status.pod
    ours = pod is not None and pod.name == space_pod_name(facts.name, facts.status.generation)
    return pod.uid if ours and pod is not None else ""


def judge_space(facts: SpaceFacts) -> Placement:
    """Pure and total."""
    placement = _judge(facts)
    if facts.obstacle is None or placement.place not in (Place.GONE, Place.UNPLACED):
        return placement
    # What keeps it from being placed is what people have to hear of, here and in its sessions.
    return replace(placement, reason=facts.obstacle.reason, message=facts.obstacle.message)


def _judge(facts: SpaceFacts) -> Placement:
    if facts.deleting:
        return Placement(place=Place.DELETING, reason="Deleting", message="the Space is being deleted")
    if facts.status.generation == 0:
        return Placement(place=Place.GONE, reason="Placing", message="never placed")
    recorded = recorded_uid(facts)
    pod = facts.pod
    if pod is None:
        if not recorded:
            return Placement(place=Place.UNPLACED, reason="Placing")
        return Placement(place=Place.GONE, reason="PodFailed", message="its pod is gone")
    if pod.owner_uid != facts.uid:
        return _not_ours(pod)
    if recorded and pod.uid != recorded:
        return Placement(place=Place.GONE, reason="PodFailed", message="its pod was replaced by another", delete=pod)
    return _judge_pod(facts, pod)


def _not_ours(pod: SpacePod) -> Placement:
    """Rule 14: a former life is deleted and waited for, a stranger is neither adopted nor deleted."""
    if pod.managed:
        message = f"pod {pod.name} belongs to a former Space of this name; waiting for it to go"
        delete = pod if pod.deletion is None else None
        return Placement(
            place=Place.BLOCKED, reason="NameConflict", message=message, delete=delete, requeue=DELETED_SOON_SECONDS
        )
    message = f"a pod {pod.name} exists that is not ours: delete or rename it"
    return Placement(place=Place.BLOCKED, reason="NameConflict", message=message, requeue=CONFLICT_SECONDS)


def _judge_pod(facts: SpaceFacts, pod: SpacePod) -> Placement:
    if pod.phase is PodPhase.ENDED:
        reason = "OOMKilled" if pod.last_reason == "OOMKilled" else "PodFailed"
        return Placement(place=Place.GONE, reason=reason, message=pod.waiting_message or "its pod is over")
    if pod.node_unreachable_seconds is not None:
        left = facts.spec.unreachable_seconds - pod.node_unreachable_seconds
        if left <= 0:
            return Placement(place=Place.GONE, reason="PodFailed", message="its node is unreachable", delete=pod)
        return Placement(place=Place.LOST_NODE, reason="NodeUnreachable", message=f"node {pod.node}", requeue=left)
    if pod.deletion is not None:
        past = pod.deletion.at + pod.deletion.grace_seconds + GRACE_MARGIN_SECONDS
        if pod.deletion.grace_seconds <= 0 or facts.now >= past:
            return Placement(place=Place.GONE, reason="PodFailed", message="its pod was deleted")
        return Placement(
            place=Place.COMING, reason="Placing", message="its pod is being deleted", requeue=past - facts.now
        )
    if pod.phase is PodPhase.PENDING:
        return _judge_pending(facts, pod)
    if not pod.ready:
        if pod.last_reason == "OOMKilled":
            message = "its container ran out of memory and restarts in place"
            return Placement(place=Place.COMING, reason="OOMKilled", message=message)
        return Placement(place=Place.COMING, reason="PodFailed" if pod.restarts else "Placing")
    return _judge_daemon(facts)


def _judge_pending(facts: SpaceFacts, pod: SpacePod) -> Placement:
    if pod.outdated:
        return Placement(
            place=Place.GONE, reason="Placing", message="its spec or the image changed before it started", delete=pod
        )
    if pod.bound:
        left = pod.created_at + START_SECONDS - facts.now
        if left <= 0:
            message = f"did not start in time: {pod.waiting_reason}"
            return Placement(place=Place.GONE, reason="PodFailed", message=message, delete=pod)
        return Placement(place=Place.COMING, reason=pod.waiting_reason, message=pod.waiting_message, requeue=left)
    volume = VOLUME_SECONDS if pod.waiting_reason == "VolumeUnavailable" else None
    return Placement(
        place=Place.COMING,
        reason=pod.waiting_reason,
        message=pod.waiting_message,
        blocked=pod.stuck,
        requeue=volume,
    )


def _judge_daemon(facts: SpaceFacts) -> Placement:
    if facts.daemon is not None or facts.daemon_failing_since is None:
        return Placement(place=Place.READY, reason="SpaceReady", usable=True)
    left = facts.daemon_failing_since + UNREACHABLE_PATIENCE_SECONDS - facts.now
    message = "its pod is ready, but its daemon does not answer"
    return Placement(
        place=Place.SILENT,
        reason="Unreachable",
        message=message,
        usable=left <= 0,
        requeue=left if left > 0 else UNREACHABLE_PATIENCE_SECONDS,
    )

"""Plan one Space: where its pod is, whether it has to be placed again, who may have it next. Pure.

A generation is written before its pod is started, and a pod that was seen is never made again under the same one: what comes
back from a lost node carries a lower number, and its token and certificate are nobody's any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from durable_coordinator.actions import DeletePod, PlaceSpace, SpaceAction, SpacePlan, WakeSession, WriteStatus
from durable_coordinator.conditions import Said, dated
from durable_coordinator.epochs import space_pod_name
from durable_coordinator.facts import PodPhase, SpaceFacts, SpacePod
from durable_coordinator.leases import holder_left, is_free, next_waiter, released
from durable_coordinator.placement import Place, Placement, judge_space, recorded_uid
from durable_coordinator.status import (
    ConditionStatus,
    LastTermination,
    PodRecord,
    SpaceStatus,
    at,
    condition,
    is_true,
    seconds,
)

WAKE_SECONDS = 300.0
TOKEN_SECONDS = 5.0  # the bucket of re-placements gets one token in that time (rule 13)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What Ready shows."""

    reason: str
    status: ConditionStatus = "False"
    message: str = ""


def plan_space(facts: SpaceFacts) -> SpacePlan:
    """What to do about a Space now. Same contract as `plan_session`."""
    status = facts.status
    if status.operator not in ("", facts.install):
        return SpacePlan(actions=(), status=status, reason="ManagedElsewhere", requeue_after=None)
    if holder_left(status, facts.holder):
        status = released(status)  # so that people see it; a taker would not have waited for this (rule 17)
    placement = judge_space(facts)
    if placement.place is Place.DELETING:
        return _assemble(facts, status, _Shown(reason="Deleting"), after=_stop(facts, "Deleting"), requeue=None)
    status = _with_pod(facts, status)
    unneeded, idle_left = _idle(facts)
    if unneeded:
        return _assemble(
            facts, status, _Shown(reason="Idle", message=unneeded), after=_stop(facts, "Idle"), requeue=None
        )
    timers = [left for left in (idle_left, placement.requeue, WAKE_SECONDS) if left is not None]
    if placement.place in (Place.GONE, Place.UNPLACED):
        return _place(facts, status, placement, min(timers))
    after = (*_delete(placement, "FormerLife"), *_superseded(facts))
    shown = _Shown(reason=placement.reason, status=placement.status, message=placement.message)
    return _assemble(facts, status, shown, after=after, requeue=min(timers))


def _place(facts: SpaceFacts, status: SpaceStatus, placement: Placement, requeue: float) -> SpacePlan:
    """Place the Space: the first time, the same generation whose pod was never seen, or the next one."""
    again = placement.place is Place.GONE and status.generation > 0
    cleanup = (*_delete(placement, "Superseded"), *_superseded(facts))
    if facts.obstacle is not None:
        shown = _Shown(reason=facts.obstacle.reason, message=facts.obstacle.message)
        return _assemble(facts, status, shown, after=cleanup, requeue=min(requeue, facts.obstacle.retry_seconds))
    if again and not facts.may_replace:
        message = f"{placement.message}; re-placements are slowed down because many Spaces went away at once"
        shown = _Shown(reason="Placing", message=message)
        return _assemble(facts, status, shown, after=cleanup, requeue=TOKEN_SECONDS)
    if placement.place is Place.GONE:
        generation = max(status.generation, facts.generation_seen, facts.generation_before) + 1
        status = replace(
            status,
            operator=status.operator or facts.install,
            generation=generation,
            epoch=max(status.epoch, facts.epoch_before),
            pod=PodRecord(name=space_pod_name(facts.name, generation)),
            instance_id="",
            boot_id="",
        )
    start = PlaceSpace(
        name=space_pod_name(facts.name, status.generation),
        generation=status.generation,
        epoch_floor=status.epoch,
        fill=facts.spec.storage.type == "Ephemeral" or status.generation == 1,
        reason=placement.reason,
    )
    shown = _Shown(reason="Placing", message=f"again: {placement.message}" if again else "")
    return _assemble(facts, status, shown, after=(start, *cleanup), requeue=requeue)


def _assemble(
    facts: SpaceFacts, status: SpaceStatus, shown: _Shown, *, after: tuple[SpaceAction, ...], requeue: float | None
) -> SpacePlan:
    holder = status.holder
    held = (
        Said("Held", "True", "Held", f"held by session:{holder.namespace}/{holder.name}")
        if holder is not None
        else Said("Held", "False", "Free")
    )
    status = replace(
        status,
        observed_generation=facts.object_generation,
        waiting=len(facts.waiters),
        conditions=dated(
            facts.status.conditions,
            (Said("Ready", shown.status, shown.reason, shown.message), held),
            now=facts.now,
            generation=facts.object_generation,
        ),
    )
    write: tuple[SpaceAction, ...] = (WriteStatus(reason=shown.reason),) if status != facts.status else ()
    return SpacePlan(
        actions=(*write, *after, *_wakes(facts, status)),
        status=status,
        reason=shown.reason,
        requeue_after=None if requeue is None else max(requeue, 0.0),
    )


def _wakes(facts: SpaceFacts, status: SpaceStatus) -> tuple[WakeSession, ...]:
    """The next in line when the lease is free; the holder when its Space has become ready (again)."""
    if is_free(facts.status, facts.holder, facts.now):
        first = next_waiter(facts.waiters)
        return (WakeSession(namespace=first.namespace, name=first.name),) if first is not None else ()
    became_ready = is_true(status.conditions, "Ready") and not is_true(facts.status.conditions, "Ready")
    holder = status.holder
    if became_ready and holder is not None:
        return (WakeSession(namespace=holder.namespace, name=holder.name, reason="SpaceReady"),)
    return ()


def _with_pod(facts: SpaceFacts, status: SpaceStatus) -> SpaceStatus:
    """Record the pod of this generation, once ours and seen, and what its daemon and its restarts tell."""
    pod = facts.pod
    if pod is None or status.generation == 0 or pod.owner_uid != facts.uid:
        return status
    if recorded_uid(facts) not in ("", pod.uid):
        return status
    last = status.last_termination
    if pod.last_at is not None:
        last = LastTermination(reason=pod.last_reason, code=pod.last_code, time=at(pod.last_at))
    started = at(pod.started_at) if pod.started_at is not None else None
    return replace(
        status,
        pod=PodRecord(name=pod.name, uid=pod.uid, node=pod.node, ip=pod.address, started_at=started, image=pod.image),
        instance_id=facts.daemon.instance_id if facts.daemon is not None else status.instance_id,
        boot_id=facts.daemon.boot_id if facts.daemon is not None else status.boot_id,
        restarts=pod.restarts,
        last_termination=last,
    )


def _idle(facts: SpaceFacts) -> tuple[str, float | None]:
    """Why no pod is wanted ("": one is), and the seconds until none will be (rules 37 and 38)."""
    if (
        facts.holder is not None
        and facts.holder.suspended == "Stop"
        and not is_free(facts.status, facts.holder, facts.now)
    ):
        return "its session is suspended", None
    if facts.waiters or facts.spec.idle_seconds is None or not is_free(facts.status, facts.holder, facts.now):
        return "", None
    held = condition(facts.status.conditions, "Held")
    free_since = facts.created_at
    if held is not None:
        free_since = seconds(held.last_transition_time) if held.status == "False" else facts.now
    left = free_since + facts.spec.idle_seconds - facts.now
    return ("no session holds it or waits for it", None) if left <= 0 else ("", left)


def _stop(facts: SpaceFacts, reason: str) -> tuple[SpaceAction, ...]:
    """Delete every pod of ours that is not going already."""
    pods = (*((facts.pod,) if facts.pod is not None else ()), *facts.others)
    return tuple(_deletion(pod, reason) for pod in pods if _deletable(facts, pod))


def _superseded(facts: SpaceFacts) -> tuple[SpaceAction, ...]:
    return tuple(
        _deletion(pod, "Superseded")
        for pod in facts.others
        if pod.generation < facts.status.generation and _deletable(facts, pod)
    )


def _deletable(facts: SpaceFacts, pod: SpacePod) -> bool:
    return pod.owner_uid == facts.uid and pod.deletion is None and pod.phase is not PodPhase.ENDED


def _delete(placement: Placement, reason: str) -> tuple[SpaceAction, ...]:
    pod = placement.delete
    return (_deletion(pod, reason),) if pod is not None and pod.deletion is None else ()


def _deletion(pod: SpacePod, reason: str) -> DeletePod:
    return DeletePod(name=pod.name, uid=pod.uid, generation=pod.generation, reason=reason)

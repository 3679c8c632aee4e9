"""Pods as the coordinator's facts: what the API says of a driver or of a Space, in its neutral words. Pure.

The end of a driver is the end of its container (rule 24), and is final for its pod's uid from whatever event or read it is
known (rule 9). What only this process knows of a driver (its beats, what it committed, since when it was asked to stop) comes in
as `Heard`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from durable_coordinator.facts import Deletion, Disruption, DriverEnd, DriverFacts, PodPhase, SpacePod
from durable_coordinator.report import Report, parse_report
from durable_operator import objects as o
from durable_operator.kube import Json

_DISRUPTIONS = {
    "PreemptionByScheduler": Disruption.PREEMPTED,
    "EvictionByEvictionAPI": Disruption.EVICTED,
    "DeletionByTaintManager": Disruption.NODE_LOST,
    "DeletionByPodGC": Disruption.NODE_LOST,
}
_IMAGE_REASONS = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
}
_CONFIG_REASONS = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PreStartHookError",
    "PostStartHookError",
}


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What the report stream told of one driver. Ages in seconds by this process's own clock."""

    beat_age_seconds: float | None = None
    committed: bool = False
    stop_asked_at: float | None = None
    report: Report | None = None


def driver_facts(
    pod: Json, *, heard: Heard, spec_hash: str | None = None, node_unreachable_seconds: float | None = None
) -> DriverFacts:
    """`spec_hash` of the present spec.driver; None: not compared."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    state = _container(status, o.DRIVER)
    reason, message = _waiting(status, state, "Starting")
    return DriverFacts(
        name=meta["name"],
        uid=meta["uid"],
        epoch=o.number(o.label(pod, o.EPOCH)),
        owner_uid=o.controller_uid(pod),
        managed=o.managed(pod),
        bound=bool(spec.get("nodeName")),
        running="running" in state.get("state", {}),
        over=is_over(pod),
        end=driver_end(pod, heard),
        node=spec.get("nodeName", ""),
        image=_pinned(spec, state),
        created_at=o.unix(meta["creationTimestamp"]) or 0.0,
        bound_at=_since(status, "PodScheduled"),
        started_at=_started(state),
        deletion=_deletion(meta),
        disruption=_disruption(status),
        node_unreachable_seconds=node_unreachable_seconds,
        waiting_reason=reason,
        waiting_message=message,
        outdated=_outdated(meta, spec_hash),
        beat_age_seconds=heard.beat_age_seconds,
        committed=heard.committed,
        stop_asked_at=heard.stop_asked_at,
    )


def is_over(pod: Json) -> bool:
    """Nothing of the pod runs any more, and it is never restarted. The kubelet shows its containers' ends before its phase."""
    status = pod.get("status") or {}
    states = [entry.get("state", {}) for entry in status.get("containerStatuses") or ()]
    all_ended = len(states) == len(pod["spec"].get("containers") or ()) and all(
        "terminated" in state for state in states
    )
    return status.get("phase") in ("Succeeded", "Failed") or (all_ended and pod["spec"].get("restartPolicy") == "Never")


def driver_end(pod: Json, heard: Heard) -> DriverEnd | None:
    """How the driver's container ended, or that it never will start; None while neither is known."""
    meta, status = pod["metadata"], pod.get("status") or {}
    state = _container(status, o.DRIVER)
    ended = state.get("state", {}).get("terminated")
    failed = status.get("phase") == "Failed"
    if ended is None and not failed:
        return None
    end = DriverEnd(
        uid=meta["uid"],
        epoch=o.number(o.label(pod, o.EPOCH)),
        name=meta["name"],
        started=False,
        failed_phase=failed,
        deleted="deletionTimestamp" in meta,
        disruption=_disruption(status),
        init_failed=_init_failed(status),
        beat_age_seconds=heard.beat_age_seconds,
        committed=heard.committed,
        detail=": ".join(filter(None, (status.get("reason"), status.get("message")))),
        node=pod["spec"].get("nodeName", ""),
    )
    end = replace(end, evicted=status.get("reason") == "Evicted" and end.disruption is None)
    if ended is None or not _ran(ended):
        return end
    code = ended.get("exitCode")
    return replace(
        end,
        started=True,
        code=code,
        signal=ended.get("signal") or (code - 128 if code is not None and 128 < code < 160 else None),
        report=parse_report(ended.get("message") or "") or heard.report,
        started_at=o.unix(ended.get("startedAt")),
        finished_at=o.unix(ended.get("finishedAt")),
        oom_killed=ended.get("reason") == "OOMKilled",
        detail=end.detail or (ended.get("reason") or ""),
    )


def space_pod(pod: Json, *, spec_hash: str | None = None, node_unreachable_seconds: float | None = None) -> SpacePod:
    """`spec_hash` of the present spec; None: not compared."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    state = _container(status, o.SPACE_CONTAINER)
    reason, message = _waiting(status, state, "Placing")
    last = state.get("lastState", {}).get("terminated") or {}
    phases = {"Pending": PodPhase.PENDING, "Succeeded": PodPhase.ENDED, "Failed": PodPhase.ENDED}
    return SpacePod(
        name=meta["name"],
        uid=meta["uid"],
        generation=o.number(o.label(pod, o.GENERATION)),
        owner_uid=o.controller_uid(pod),
        managed=o.managed(pod),
        phase=phases.get(status.get("phase", "Pending"), PodPhase.RUNNING),
        bound=bool(spec.get("nodeName")),
        ready=bool(state.get("ready")) and _since(status, "Ready") is not None,
        node=spec.get("nodeName", ""),
        address=status.get("podIP", ""),
        image=_pinned(spec, state),
        created_at=o.unix(meta["creationTimestamp"]) or 0.0,
        started_at=_started(state),
        deletion=_deletion(meta),
        node_unreachable_seconds=node_unreachable_seconds,
        waiting_reason=reason,
        waiting_message=message,
        outdated=_outdated(meta, spec_hash),
        restarts=int(state.get("restartCount", 0)),
        last_reason=last.get("reason", ""),
        last_code=int(last.get("exitCode", 0)),
        last_at=o.unix(last.get("finishedAt")),
    )


def node_unreachable_since(node: Json | None) -> float | None:
    """Since when (unix seconds; 0: always) the cluster has not heard of a node; None if it has.

    Ready False is a node that talks (rule 7).
    """
    if node is None:
        return 0.0
    if any(taint["key"] == "node.kubernetes.io/out-of-service" for taint in node["spec"].get("taints") or ()):
        return 0.0
    ready = _condition(node.get("status") or {}, "Ready")
    if ready is None or ready["status"] != "Unknown":
        return None
    return o.unix(ready.get("lastTransitionTime")) or 0.0


def lost_by_pod(pod: Json) -> bool:
    """The same told from the pod alone, where nodes may not be read (rule 6)."""
    status = pod.get("status") or {}
    disrupted = _condition(status, "DisruptionTarget")
    ready = _condition(status, "Ready")
    return (
        o.is_deleting(pod)
        and disrupted is not None
        and disrupted.get("reason") == "DeletionByTaintManager"
        and ready is not None
        and ready["status"] == "False"
    )


def _outdated(meta: Json, spec_hash: str | None) -> bool:
    return spec_hash is not None and (meta.get("annotations") or {}).get(o.SPEC_HASH) != spec_hash


def _container(status: Json, name: str) -> Json:
    return next((entry for entry in status.get("containerStatuses") or () if entry["name"] == name), {})


def _condition(status: Json, type: str) -> Json | None:
    return next((entry for entry in status.get("conditions") or () if entry["type"] == type), None)


def _since(status: Json, type: str) -> float | None:
    found = _condition(status, type)
    return o.unix(found.get("lastTransitionTime")) if found is not None and found["status"] == "True" else None


def _started(state: Json) -> float | None:
    now = state.get("state", {})
    return o.unix((now.get("running") or now.get("terminated") or {}).get("startedAt"))


def _ran(ended: Json) -> bool:
    """A container that the runtime could not start shows as terminated too, with an exit code of the kubelet's making."""
    return ended.get("reason") not in ("ContainerStatusUnknown", "StartError", "ContainerCannotRun")


def _deletion(meta: Json) -> Deletion | None:
    if "deletionTimestamp" not in meta:
        return None
    grace = float(meta.get("deletionGracePeriodSeconds") or 0)
    return Deletion(at=(o.unix(meta["deletionTimestamp"]) or 0.0) - grace, grace_seconds=grace)


def _disruption(status: Json) -> Disruption | None:
    found = _condition(status, "DisruptionTarget")
    if found is None or found["status"] != "True":
        return None
    if found.get("reason") == "TerminationByKubelet":  # both its graceful shutdown and its eviction under pressure
        return Disruption.EVICTED if status.get("reason") == "Evicted" else Disruption.NODE_SHUTDOWN
    return _DISRUPTIONS.get(found.get("reason", ""), Disruption.EVICTED)


def _init_failed(status: Json) -> bool:
    states: list[Any] = [
        entry.get("state", {}).get("terminated") for entry in status.get("initContainerStatuses") or ()
    ]
    return status.get("phase") == "Failed" and any(ended and ended.get("exitCode") for ended in states)


def _waiting(status: Json, state: Json, otherwise: str) -> tuple[str, str]:
    """Why a container does not run yet: Ready's reason and the kubelet's or the scheduler's own words."""
    waits = state.get("state", {}).get("waiting") or {}
    inits = [entry.get("state", {}).get("waiting") or {} for entry in status.get("initContainerStatuses") or ()]
    waits = next((entry for entry in (*inits, waits) if entry.get("reason") not in (None, "PodInitializing")), waits)
    words = ": ".join(filter(None, (waits.get("reason"), waits.get("message"))))
    if waits.get("reason") in _IMAGE_REASONS:
        return "ImagePullFailed", words
    if waits.get("reason") in _CONFIG_REASONS:
        return "ConfigError", words
    scheduled = _condition(status, "PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        text = scheduled.get("message", "")
        return ("VolumeUnavailable" if "persistentvolumeclaim" in text.lower() else "Unschedulable"), text
    return otherwise, words


def _pinned(spec: Json, state: Json) -> str:
    """The image to run again: by digest where the runtime names a repository with it, else the pod's own string (rule 36)."""
    digest = str(state.get("imageID", ""))
    if "@sha256:" in digest:
        return digest.removeprefix("docker-pullable://")
    containers = spec.get("containers") or [{}]
    wanted: Json = next((entry for entry in containers if entry.get("name") == state.get("name")), {})
    return str(wanted.get("image", ""))

"""Read what a plan needs to know. Every object comes from a fresh read by name (rule 16); what only events could tell, and what
only this process knows, comes from `Memory`. Nothing is decided here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from durable_coordinator.epochs import driver_name, space_pod_name
from durable_coordinator.facts import (
    DaemonFacts,
    Deletion,
    DriverFacts,
    HolderFacts,
    Obstacle,
    SessionFacts,
    SpaceFacts,
    SpacePod,
)
from durable_coordinator.leases import holder_facts
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import SpaceSpec
from durable_coordinator.status import LogPlace, SessionStatus, SpaceStatus, from_dict
from durable_operator import objects as o
from durable_operator.claims import unbound_claim
from durable_operator.driver_pod import claim_name, driver_hash, driver_image
from durable_operator.kube import NODES, PODS, SESSIONS, SPACES, Json, Kube
from durable_operator.limits import TokenBucket
from durable_operator.memory import Key, Memory, SpaceMemory, current
from durable_operator.pod_facts import driver_facts, lost_by_pod, node_unreachable_since, space_pod
from durable_operator.preflight import Preflight
from durable_operator.secrets import Install
from durable_operator.settings import Settings
from durable_operator.space_client import ask_daemon
from durable_operator.space_pod import space_hash

PodT = TypeVar("PodT", DriverFacts, SpacePod)


@dataclass(frozen=True, kw_only=True)
class SessionRead:
    """The objects that the facts came from: their versions are what writes compare with."""

    body: Json
    facts: SessionFacts
    space_body: Json | None
    at: float  # monotonic


@dataclass(frozen=True, kw_only=True)
class SpaceRead:
    """`orphaned`: its session is gone, or is another one of the same name."""

    body: Json
    facts: SpaceFacts
    orphaned: bool


class Reader:
    """One per leader."""

    def __init__(self, kube: Kube, memory: Memory, install: Install, settings: Settings) -> None:
        self._kube = kube
        self._memory = memory
        self._install = install
        self._settings = settings
        self._preflight = Preflight(kube)
        self.placements = TokenBucket(10, 5.0)  # rule 13: a mistake about nodes must not place every Space again
        self.terminating: set[str] = set()  # namespaces that refused a create for it

    async def session(self, key: Key) -> SessionRead | None:
        """None if there is no such session any more."""
        at = time.monotonic()
        body = await self._kube.get(SESSIONS, *key)
        if body is None:
            return None
        spec, status = parse_session(body)
        meta, memory = body["metadata"], self._memory.session(key)
        # Taken before the read: what an event tells after it would stand beside a driver that the read did not show yet, or still
        # shows as running.
        before, seen = memory.ends_of(meta["uid"]), memory.epochs_seen.get(meta["uid"], 0)
        driver = await self._driver(key, driver_name(key[1], status.epoch), spec, status) if status.epoch else None
        ends = before if driver is not None else memory.ends_of(meta["uid"])
        driving = driver is not None and driver.running
        space_read = await self.space((key[0], spec.space_name(key[1])), ask=not driving, session=body)
        recorded = status.driver.uid if status.driver is not None else ""
        obstacle = current(memory.obstacle, meta["generation"])
        if obstacle is None and not driving:
            obstacle = await self._preflight.session(key[0], spec)
        facts = SessionFacts(
            now=time.time(),
            namespace=key[0],
            name=key[1],
            uid=meta["uid"],
            spec=spec,
            status=status,
            object_generation=meta["generation"],
            created_at=o.unix(meta["creationTimestamp"]) or 0.0,
            install=self._install.id,
            deleting=_deleting(meta),
            finalizer=o.FINALIZER in (meta.get("finalizers") or ()),
            cleaned_up=await self._cleaned_up(body, spec),
            namespace_terminating=key[0] in self.terminating,
            driver=driver,
            others=await self._others(key, spec, status, over=False),
            history=await self._others(key, spec, status, over=True),
            remembered=ends,
            epoch_seen=seen,
            driver_was_deleting=recorded in memory.deleting,
            driver_node_was_unreachable=recorded in memory.unreachable,
            space=space_read.facts if space_read is not None else None,
            log=LogPlace(storage="PersistentVolumeClaim", location=claim_name(key[1])),
            space_changed_at=self._memory.space((key[0], spec.space_name(key[1]))).changed_at,
            obstacle=obstacle,
        )
        return SessionRead(body=body, facts=facts, space_body=space_read.body if space_read else None, at=at)

    async def space(self, key: Key, *, ask: bool, session: Json | None = None) -> SpaceRead | None:
        """`ask` the daemon as well, if its pod is ready; `session`: one read already. None if there is no such Space."""
        body = await self._kube.get(SPACES, *key)
        if body is None:
            return None
        spec: SpaceSpec = msgspec.convert(body.get("spec") or {}, SpaceSpec)
        status = from_dict(SpaceStatus, body.get("status"))
        meta, memory = body["metadata"], self._memory.space(key)
        name = space_pod_name(key[1], status.generation) if status.generation else ""
        pod = await self._space_pod(key, name, spec) if name else None
        ready = pod is not None and pod.ready
        if not ready:
            memory.failing_since = None
        daemon = (
            await self._daemon(key, meta["uid"], pod, memory)
            if ask and pod is not None and ready and pod.owner_uid == meta["uid"]
            else None
        )
        _note_identity(memory, pod, daemon)
        owner, reference = await self._owner(key[0], body, session), _session_reference(body)
        generation_before, epoch_before = _former(owner, meta["uid"])
        obstacle: Obstacle | None = current(memory.obstacle, meta["generation"])
        if obstacle is None and pod is None:
            obstacle = await self._preflight.space(key[0], spec)
        facts = SpaceFacts(
            now=time.time(),
            namespace=key[0],
            name=key[1],
            uid=meta["uid"],
            spec=spec,
            status=status,
            object_generation=meta["generation"],
            created_at=o.unix(meta["creationTimestamp"]) or 0.0,
            owner_uid=reference["uid"] if reference is not None else "",
            deleting=o.is_deleting(body),
            install=self._install.id,
            pod=pod,
            others=await self._other_pods(key, name, spec),
            generation_seen=memory.generation_seen,
            generation_before=generation_before,
            epoch_before=epoch_before,
            daemon=daemon,
            daemon_failing_since=memory.failing_since,
            holder=await self._holder(status, session),
            waiters=tuple(sorted(memory.waiters.values())),
            obstacle=obstacle,
            may_replace=self.placements.available(),
        )
        return SpaceRead(body=body, facts=facts, orphaned=reference is not None and owner is None)

    async def _driver(self, key: Key, name: str, spec: SessionSpec, status: SessionStatus) -> DriverFacts | None:
        pod = await self._kube.get(PODS, key[0], name)
        memory = self._memory.session(key)
        if pod is None:
            memory.pods.pop(name, None)
            return None
        unreachable = await self._unreachable(pod)
        uid = pod["metadata"]["uid"]
        if o.managed(pod):
            self._memory.driver_event(pod, gone=False)
            (memory.unreachable.add if unreachable is not None else memory.unreachable.discard)(uid)
        stream = memory.stream(uid)
        pinned = status.driver.image if status.driver is not None else ""
        made_of = driver_hash(spec, driver_image(spec, pinned, self._settings.driver_image))
        facts = driver_facts(pod, heard=stream.heard(), spec_hash=made_of, node_unreachable_seconds=unreachable)
        return await self._with_its_claim(pod, facts)

    async def _others(
        self, key: Key, spec: SessionSpec, status: SessionStatus, *, over: bool
    ) -> tuple[DriverFacts, ...]:
        """Drivers of other epochs. Those that are over are read only when there are more of them than may stay."""
        pods = self._memory.session(key).pods
        mine = driver_name(key[1], status.epoch)
        names = [pod.name for pod in pods.values() if pod.name != mine and pod.over is over]
        if over and len(names) <= spec.driver.history_limit:
            return ()
        found = [await self._driver(key, name, spec, status) for name in names]
        return tuple(driver for driver in found if driver is not None and driver.over is over)

    async def _space_pod(self, key: Key, name: str, spec: SpaceSpec) -> SpacePod | None:
        pod = await self._kube.get(PODS, key[0], name)
        if pod is None:
            self._memory.space(key).pods.pop(name, None)
            return None
        self._memory.space_event(pod, gone=False)
        unreachable = await self._unreachable(pod)
        made_of = space_hash(spec, spec.image or self._settings.space_image)
        facts = space_pod(pod, spec_hash=made_of, node_unreachable_seconds=unreachable)
        return await self._with_its_claim(pod, facts)

    async def _with_its_claim(self, pod: Json, facts: PodT) -> PodT:
        """With what the claim itself tells, where the pod waits for one."""
        if facts.waiting_reason != "VolumeUnavailable":
            return facts
        message, stuck = await unbound_claim(self._kube, pod, facts.waiting_message)
        return replace(facts, waiting_message=message, stuck=stuck)

    async def _other_pods(self, key: Key, mine: str, spec: SpaceSpec) -> tuple[SpacePod, ...]:
        names = [pod.name for pod in self._memory.space(key).pods.values() if pod.name != mine and not pod.over]
        found = [await self._space_pod(key, name, spec) for name in names]
        return tuple(pod for pod in found if pod is not None)

    async def _unreachable(self, pod: Json) -> float | None:
        """For how long the pod's node has been unreachable, by the server's clock (rule 7)."""
        node = pod["spec"].get("nodeName")
        if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return None
        if not self._settings.cluster_reads:
            return float("inf") if lost_by_pod(pod) else None
        answer = await self._kube.read(NODES, None, node)
        since = node_unreachable_since(answer.body if answer else None)
        if since is None:
            return None
        return max(0.0, answer.date.timestamp() - since) if answer is not None else float("inf")

    async def _daemon(self, key: Key, uid: str, pod: SpacePod, memory: SpaceMemory) -> DaemonFacts | None:
        found = await ask_daemon(
            self._install,
            namespace=key[0],
            space=key[1],
            space_uid=uid,
            generation=pod.generation,
            address=pod.address,
        )
        if found is not None:
            memory.failing_since = None
        elif memory.failing_since is None:
            memory.failing_since = time.time()
        return found

    async def _session(self, namespace: str, name: str, known: Json | None) -> Json | None:
        meta = known["metadata"] if known is not None else {}
        if (meta.get("namespace"), meta.get("name")) == (namespace, name):
            return known
        return await self._kube.get(SESSIONS, namespace, name)

    async def _holder(self, status: SpaceStatus, known: Json | None) -> HolderFacts | None:
        if status.holder is None:
            return None
        body = await self._session(status.holder.namespace, status.holder.name, known)
        if body is None:
            return None
        spec, session = parse_session(body)
        return holder_facts(body["metadata"]["uid"], spec, session, deleting=o.is_deleting(body))

    async def _owner(self, namespace: str, body: Json, known: Json | None) -> Json | None:
        """The session that the Space belongs to; None if it has none, or that one is gone."""
        owner = _session_reference(body)
        session = await self._session(namespace, owner["name"], known) if owner else None
        return session if session is not None and owner and session["metadata"]["uid"] == owner["uid"] else None

    async def _cleaned_up(self, body: Json, spec: SessionSpec) -> bool:
        if not o.is_deleting(body) or spec.deletion_policy != "Delete":
            return False
        return await self._preflight.log_is_gone(body, spec)


def _session_reference(body: Json) -> Json | None:
    """The controller reference of an inline Space. One that another controller made stands alone, as one that a person made."""
    references = body["metadata"].get("ownerReferences") or ()
    return next((one for one in references if one.get("controller") and one["kind"] == SESSIONS.kind), None)


def parse_session(body: Json) -> tuple[SessionSpec, SessionStatus]:
    """Raises msgspec.ValidationError for what the CRD would not have let through."""
    return msgspec.convert(body["spec"], SessionSpec), from_dict(SessionStatus, body.get("status"))


def _former(session: Json | None, uid: str) -> tuple[int, int]:
    """What its session recorded of a former Space of this name (rule 38): (generation, epoch); (0, 0) for none."""
    if session is None:
        return 0, 0
    _, status = parse_session(session)
    former = status.space is not None and status.space.uid != uid
    return (status.space.generation if former and status.space is not None else 0), status.epoch


def _deleting(meta: Json) -> Deletion | None:
    at = o.unix(meta.get("deletionTimestamp"))
    grace = float(meta.get("deletionGracePeriodSeconds") or 0)
    return Deletion(at=at - grace, grace_seconds=grace) if at is not None else None


def _note_identity(memory: SpaceMemory, pod: SpacePod | None, daemon: DaemonFacts | None) -> None:
    """Remember when the Space last became another one (rule 22)."""
    boot = daemon.boot_id if daemon is not None else (memory.identity[3] if memory.identity else "")
    found = (pod.generation, pod.uid, pod.address, boot) if pod is not None else (0, "", "", "")
    if memory.identity is not None and memory.identity != found:
        memory.changed_at = time.time()
    memory.identity = found

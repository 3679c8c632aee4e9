"""What this process has heard between two reconciles: hints, and ends that no read can tell any more.

Nothing here is the truth about what exists: a reconcile reads that by name. It holds which pods were seen (so that late ones of
older epochs are found and none of their numbers is used again), how they ended (final for a uid, rule 9), what the report
streams told, and who waits for which Space. All of it can be lost: a new leader starts empty and hears it again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from durable_coordinator.facts import DriverEnd, Obstacle, Waiter
from durable_coordinator.report import Report
from durable_operator import objects as o
from durable_operator.kube import Json
from durable_operator.pod_facts import Heard, driver_end, is_over

Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of ours, as the newest event or read showed it."""

    name: str
    uid: str
    number: int  # epoch or generation
    over: bool
    node: str


@dataclass
class Stream:
    """What one driver's report stream has told. `beat` and `stop_at`: this process's clocks, never the driver's."""

    beat: float | None = None  # monotonic
    beat_unix: float | None = None
    committed: bool = False
    stop_reason: str = ""
    stop_at: float | None = None  # unix
    report: Report | None = None

    def heard(self) -> Heard:
        age = time.monotonic() - self.beat if self.beat is not None else None
        return Heard(beat_age_seconds=age, committed=self.committed, stop_asked_at=self.stop_at, report=self.report)


@dataclass
class SessionMemory:
    pods: dict[str, PodSeen] = field(default_factory=dict)  # by name
    # By session uid: names come back with other sessions behind them.
    epochs_seen: dict[str, int] = field(default_factory=dict)
    ends: dict[str, DriverEnd] = field(default_factory=dict)  # by pod uid
    owners: dict[str, str] = field(default_factory=dict)  # of the pods in `ends`: pod uid -> session uid
    deleting: set[str] = field(default_factory=set)  # uids last seen with a deletionTimestamp
    unreachable: set[str] = field(default_factory=set)  # uids last seen on an unreachable node
    streams: dict[str, Stream] = field(default_factory=dict)  # by pod uid
    obstacle: tuple[Obstacle, float, int] | None = None  # with when (monotonic) and of which object generation

    def ends_of(self, session_uid: str) -> dict[str, DriverEnd]:
        """A copy: those of this session's drivers, not of a former one's of the same name."""
        return {uid: end for uid, end in self.ends.items() if self.owners.get(uid) == session_uid}

    def stream(self, uid: str) -> Stream:
        """What is known of a driver's stream; a blank one for none. Not kept by asking."""
        return self.streams.get(uid) or Stream()

    def asked(self, uid: str, reason: str) -> None:
        """The driver is asked to stop; the first time counts."""
        stream = self.streams.setdefault(uid, Stream())
        if stream.stop_at is None:
            stream.stop_at, stream.stop_reason = time.time(), reason


@dataclass
class SpaceMemory:
    pods: dict[str, PodSeen] = field(default_factory=dict)
    generation_seen: int = 0
    failing_since: float | None = None  # GetInfo, unix
    identity: tuple[int, str, str, str] | None = None  # generation, pod uid, address, boot id
    changed_at: float = 0.0
    waiters: dict[str, Waiter] = field(default_factory=dict)  # by session uid
    obstacle: tuple[Obstacle, float, int] | None = None


class Memory:
    """One leader's; empty at the start."""

    def __init__(self) -> None:
        self.sessions: dict[Key, SessionMemory] = {}
        self.spaces: dict[Key, SpaceMemory] = {}

    def session(self, key: Key) -> SessionMemory:
        return self.sessions.setdefault(key, SessionMemory())

    def space(self, key: Key) -> SpaceMemory:
        return self.spaces.setdefault(key, SpaceMemory())

    def driver_event(self, pod: Json, *, gone: bool) -> Key | None:
        """Take in a driver pod from an event or a read; the session that it is of."""
        key = _key(pod, o.SESSION)
        if key is None:
            return None
        memory = self.session(key)
        seen = _seen(pod, o.EPOCH)
        owner = o.controller_uid(pod)
        memory.epochs_seen[owner] = max(memory.epochs_seen.get(owner, 0), seen.number)
        stream = memory.stream(seen.uid)
        if o.is_deleting(pod):
            memory.deleting.add(seen.uid)
        end = driver_end(pod, stream.heard())
        known = memory.ends.get(seen.uid)
        if end is not None and (known is None or (end.started and not known.started)):
            memory.ends[seen.uid] = end
            memory.owners[seen.uid] = owner
        if gone:
            memory.pods.pop(seen.name, None)
        else:
            memory.pods[seen.name] = seen
        return key

    def space_event(self, pod: Json, *, gone: bool) -> Key | None:
        """The same for a Space's pod."""
        key = _key(pod, o.SPACE)
        if key is None:
            return None
        memory = self.space(key)
        seen = _seen(pod, o.GENERATION)
        memory.generation_seen = max(memory.generation_seen, seen.number)
        if gone:
            memory.pods.pop(seen.name, None)
        else:
            memory.pods[seen.name] = seen
        return key

    def on_node(self, node: str) -> tuple[set[Key], set[Key]]:
        """Sessions and Spaces with a pod there."""

        def there(entries: dict[Key, SessionMemory] | dict[Key, SpaceMemory]) -> set[Key]:
            return {key for key, memory in entries.items() if any(pod.node == node for pod in memory.pods.values())}

        return there(self.sessions), there(self.spaces)

    def passed(self, key: Key, epoch: int) -> None:
        """The session has gone on past `epoch`: what is known of the drives before it has no effect any more."""
        memory = self.session(key)
        old = {uid for uid, end in memory.ends.items() if end.epoch < epoch}
        live = {pod.uid for pod in memory.pods.values()}
        for uid in old:
            del memory.ends[uid], memory.owners[uid]
        for uid in (set(memory.streams) | memory.deleting | memory.unreachable) - live - set(memory.ends):
            memory.streams.pop(uid, None)
            memory.deleting.discard(uid)
            memory.unreachable.discard(uid)


def current(obstacle: tuple[Obstacle, float, int] | None, generation: int) -> Obstacle | None:
    """An obstacle stands until its time is over, or the object was changed."""
    if obstacle is None:
        return None
    found, at, of = obstacle
    left = at + found.retry_seconds - time.monotonic()
    return replace(found, retry_seconds=left) if left > 0 and of == generation else None


def _key(pod: Json, owner_label: str) -> Key | None:
    name = o.label(pod, owner_label)
    return (pod["metadata"]["namespace"], name) if name and o.managed(pod) else None


def _seen(pod: Json, number_label: str) -> PodSeen:
    meta = pod["metadata"]
    return PodSeen(
        name=meta["name"],
        uid=meta["uid"],
        number=o.number(o.label(pod, number_label)),
        over=is_over(pod),
        node=(pod.get("spec") or {}).get("nodeName", ""),
    )

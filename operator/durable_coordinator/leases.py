"""The lease of a Space: who has it, when it is free, who is next, and the Space statuses that take, renew and release it.

A lease is (space uid, holder uid, token): names come back with other objects behind them, and after a restored backup tokens do
too. Lease and epoch are one object's status, so every change here is one compare-and-swap of the shell.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from durable_coordinator.facts import HolderFacts, SessionFacts, Waiter
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.status import Holder, LastHolder, SessionStatus, SpaceStatus, at, condition, is_true, seconds

EXPIRY_MARGIN_SECONDS = 3600.0  # expiry is a clock bet: a lease moves by it only long after (protocol rule 34)
WANTING = frozenset({"Pending", "WaitingForLease", "WaitingForSpace"})


def is_ours(space: SpaceStatus, uid: str) -> bool:
    return space.holder is not None and space.holder.uid == uid


def is_held_by(space: SpaceStatus, space_uid: str, uid: str, status: SessionStatus) -> bool:
    """The session holds this very lease: same Space object, same holder, same token."""
    known = status.space is not None and status.space.uid == space_uid
    return known and is_ours(space, uid) and space.lease_token == status.lease_token


def holder_left(space: SpaceStatus, holder: HolderFacts | None) -> bool:
    """A fresh read shows that the holder is no more or is finished: whatever its last write was, it has released."""
    if space.holder is None:
        return False
    return holder is None or holder.uid != space.holder.uid or holder.finished


def is_free(space: SpaceStatus, holder: HolderFacts | None, now: float) -> bool:
    """Nobody has the lease, or its holder has no more use for it (rule 17). `holder`: fresh read, None = not found."""
    if space.holder is None or holder is None or holder_left(space, holder):
        return True
    if holder.suspended == "Release":
        return True
    renewed = space.holder.renew_time or space.holder.acquire_time
    return renewed is not None and now > seconds(renewed) + holder.lease_seconds + EXPIRY_MARGIN_SECONDS


def next_waiter(waiters: Iterable[Waiter]) -> Waiter | None:
    return min(waiters, default=None)


def is_next(facts: SessionFacts) -> bool:
    """No other session has waited longer for this session's Space."""
    me = Waiter(created_at=facts.created_at, uid=facts.uid, namespace=facts.namespace, name=facts.name)
    others = facts.space.waiters if facts.space is not None else ()
    return all(me <= other for other in others if other.uid != facts.uid)


def wants_lease(spec: SessionSpec, status: SessionStatus, *, now: float, deleting: bool, install: str) -> bool:
    """Whether a session that does not hold its Space's lease counts as a waiter: it would drive at once if it had it."""
    if deleting or spec.operating_mode != "Running" or status.operator not in ("", install):
        return False
    if is_true(status.conditions, "Finished"):
        return False
    if status.next_attempt_time is not None and seconds(status.next_attempt_time) > now:
        return False
    ready = condition(status.conditions, "Ready")
    return ready is None or ready.reason in WANTING


def holder_facts(uid: str, spec: SessionSpec, status: SessionStatus, *, deleting: bool) -> HolderFacts:
    """What a Space must know of its holder, from a fresh read of that session."""
    suspended = spec.operating_mode == "Suspended" and is_true(status.conditions, "Suspended")
    return HolderFacts(
        uid=uid,
        finished=is_true(status.conditions, "Finished"),
        deleting=deleting,
        suspended=spec.suspend.space if suspended else "",
        lease_seconds=spec.lease_seconds,
    )


def next_token(space: SpaceStatus, session: SessionStatus, uid: str) -> int:
    """The token that the next drive runs under: +1 for a new holder, and never below one that the session has had."""
    if is_ours(space, uid) and space.lease_token >= session.lease_token:
        return space.lease_token
    return max(space.lease_token, session.lease_token) + 1


def taken(facts: SessionFacts, space: SpaceStatus, *, token: int, epoch: int) -> SpaceStatus:
    """The Space's status with the session as its holder and `epoch` issued."""
    before = space.holder
    ours = is_ours(space, facts.uid)
    now = at(facts.now)
    holder = Holder(
        namespace=facts.namespace,
        name=facts.name,
        uid=facts.uid,
        acquire_time=before.acquire_time if ours and before is not None else now,
        renew_time=now,
    )
    last = space.last_holder if ours or before is None else LastHolder(name=before.name, uid=before.uid)
    return replace(
        space,
        operator=space.operator or facts.install,
        holder=holder,
        last_holder=last,
        lease_token=token,
        epoch=epoch,
    )


def renewal_due(space: SpaceStatus, lease_seconds: int, now: float) -> float:
    """Seconds until the holder should renew: a third of the lease after it last did. 0 or less: now."""
    if space.holder is None:
        return float(lease_seconds)
    renewed = space.holder.renew_time or space.holder.acquire_time
    return (seconds(renewed) if renewed is not None else 0.0) + lease_seconds / 3 - now


def renewed(space: SpaceStatus, now: float) -> SpaceStatus:
    """The same holder and token, a newer renew time."""
    assert space.holder is not None
    return replace(space, holder=replace(space.holder, renew_time=at(now)))


def released(space: SpaceStatus) -> SpaceStatus:
    """No holder; the token stays, so that the next one is greater."""
    assert space.holder is not None
    last = LastHolder(name=space.holder.name, uid=space.holder.uid)
    return replace(space, holder=None, last_holder=last)

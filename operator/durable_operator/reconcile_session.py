"""One look at a session: fresh read, pure plan, act. Killed at any line, the next look goes on from what is written.

The order of the plan's actions is the law (rule 16), and the first that does not succeed ends the look: a conflict, an unknown
outcome or a name that is taken means that what was read is not true any more, and a plan is never kept for a retry.
"""

from __future__ import annotations

import logging
import time

import msgspec

from durable_base import crash
from durable_coordinator import actions as a
from durable_coordinator.facts import Waiter
from durable_coordinator.leases import is_ours, wants_lease
from durable_coordinator.session import plan_session
from durable_coordinator.status import SessionStatus, SpaceStatus, to_dict
from durable_operator import objects as o
from durable_operator.announce import announce_session
from durable_operator.context import Context
from durable_operator.driver_pod import claim_name
from durable_operator.kube import CLAIMS, PODS, SESSIONS, SPACES, ApiError, Json
from durable_operator.memory import Key
from durable_operator.preflight import is_log_of
from durable_operator.queue import AGAIN_SECONDS, RetryLater
from durable_operator.read import SessionRead
from durable_operator.start_driver import start_driver

STALE_SECONDS = 10.0  # a start needs facts of this look, and no older ones
log = logging.getLogger(__name__)


async def reconcile_session(context: Context, key: Key) -> float | None:
    """Seconds until the next look, None for none."""
    with context.metrics.reconcile_seconds.labels("session").time():
        read = await context.reader.session(key)
        if read is None:
            await _forget(context, key)
            return None
        plan = plan_session(read.facts)
        shell = _Shell(context, key, read, plan.status)
        for action in plan.actions:
            await shell.act(action)
        _after(context, key, read, shell.status)
        await announce_session(context, read, shell.status, plan.reason)
        return plan.requeue_after


class _Shell:
    """Carries out one plan. `body` and `space_body` are what this look has read, or written since."""

    def __init__(self, context: Context, key: Key, read: SessionRead, planned: SessionStatus) -> None:
        self._context = context
        self._kube = context.kube
        self._key = key
        self._read = read
        self._planned = planned
        self._body = read.body
        self._space_body = read.space_body
        self.status = read.facts.status  # as it is written

    async def act(self, action: a.SessionAction) -> None:
        """Raises what ends the look."""
        match action:
            case a.IssueEpoch():
                await self._issue(action)
            case a.WriteStatus():
                await self._write_status(action)
            case a.StartDriver():
                await self._start(action)
            case a.AskStop():
                self._context.memory.session(self._key).asked(action.uid, action.reason)
                await self._context.ask_stop(self._key, action.uid, action.reason)
            case a.DeleteDriver():
                log.info("driver deleted session=%s/%s epoch=%d reason=%s", *self._key, action.epoch, action.reason)
                await self._kube.delete(PODS, self._key[0], action.name, uid=action.uid, grace=action.grace_seconds)
            case a.EnsureSpace():
                await self._ensure_space(action)
            case a.WakeSpace():
                await self._context.wake_space((self._key[0], action.name), 0.0)
            case a.RenewLease() | a.ReleaseLease():
                await self._write_space(action.space, action.space_uid)
                await self._context.wake_space((self._key[0], action.space_name), 0.0)
            case a.DeleteSpace():
                await self._kube.delete(SPACES, self._key[0], action.name, uid=action.uid)
            case a.AddFinalizer():
                await self._write_finalizers([*self._finalizers(), o.FINALIZER])
            case a.RemoveFinalizer():
                await self._write_finalizers([name for name in self._finalizers() if name != o.FINALIZER])
            case a.CleanUp():
                await self._clean_up()
            case a.DeleteSession():
                await self._kube.delete(SESSIONS, *self._key, uid=action.uid)

    async def _issue(self, action: a.IssueEpoch) -> None:
        """Rule 16b: lease and epoch in one compare-and-swap. From here on no driver below this epoch may change the Space."""
        try:
            await self._write_space(action.space, action.space_uid)
        except RetryLater:
            self._context.metrics.epoch_conflicts.inc()
            raise
        crash.crash_point("operator.space_written")
        self._context.metrics.epochs_issued.inc()
        log.info("epoch issued session=%s/%s epoch=%d reason=%s", *self._key, action.epoch, action.reason)

    async def _write_status(self, action: a.WriteStatus) -> None:
        """Rule 16c. Compare-and-swap: what the plan was made of is still so, or nothing is written."""
        before = self.status
        try:
            self._body = await self._kube.replace_status(SESSIONS, {**self._body, "status": to_dict(self._planned)})
        except ApiError as error:
            raise _changed(error) from error
        self.status = self._planned
        if self._planned.epoch > before.epoch:
            crash.crash_point("operator.session_written")

    async def _start(self, action: a.StartDriver) -> None:
        """Rule 16d: only from what this look has read, and only while that is fresh."""
        if time.monotonic() - self._read.at > STALE_SECONDS:
            raise RetryLater(AGAIN_SECONDS)
        await start_driver(self._context, self._key, self._read, self._body, action)
        crash.crash_point("operator.pod_created")
        await self._context.wake_session(self._key, 0.0)  # the uid goes into the status with the next write (rule 16e)

    async def _ensure_space(self, action: a.EnsureSpace) -> None:
        body: Json = {
            "metadata": {
                "name": action.name,
                "namespace": self._key[0],
                "labels": {o.MANAGED_BY: o.MANAGER, o.SESSION: self._key[1]},
                "ownerReferences": o.owner(SESSIONS, self._body),
            },
            "spec": msgspec.to_builtins(action.spec),
        }
        try:
            await self._kube.create(SPACES, self._key[0], body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            raise RetryLater(AGAIN_SECONDS) from error  # read it: is it ours, or a stranger's?
        await self._context.wake_space((self._key[0], action.name), 0.0)

    async def _write_space(self, status: SpaceStatus, uid: str) -> None:
        space = self._space_body
        if space is None or space["metadata"]["uid"] != uid:
            raise RetryLater(AGAIN_SECONDS)
        try:
            self._space_body = await self._kube.replace_status(SPACES, {**space, "status": to_dict(status)})
        except ApiError as error:
            raise _changed(error) from error

    def _finalizers(self) -> list[str]:
        return list(self._body["metadata"].get("finalizers") or ())

    async def _write_finalizers(self, names: list[str]) -> None:
        meta = {**self._body["metadata"], "finalizers": names}
        try:
            self._body = await self._kube.replace(SESSIONS, {**self._body, "metadata": meta})
        except ApiError as error:
            raise _changed(error) from error

    async def _clean_up(self) -> None:
        """The log's claim, if it was made for this session; a former namesake's log stays."""
        claim = await self._kube.get(CLAIMS, self._key[0], claim_name(self._key[1]))
        if claim is not None and is_log_of(claim, self._body, self._read.facts.spec):
            await self._kube.delete(CLAIMS, self._key[0], claim["metadata"]["name"], uid=claim["metadata"]["uid"])
        await self._context.wake_session(self._key, AGAIN_SECONDS)


def _changed(error: ApiError) -> Exception:
    """Someone wrote between our read and our write, or the object is gone: read again. Other refusals are failures."""
    return RetryLater(AGAIN_SECONDS) if error.reason in ("Conflict", "NotFound") else error


def _after(context: Context, key: Key, read: SessionRead, status: SessionStatus) -> None:
    """Keep what the next looks, the waiting Space and the metrics want to know."""
    facts = read.facts
    space_key = (key[0], facts.spec.space_name(key[1]))
    waiters = context.memory.space(space_key).waiters
    for uid in [uid for uid, one in waiters.items() if (one.namespace, one.name) == key and uid != facts.uid]:
        del waiters[uid]  # a former session of this name, whose end nobody saw
    holds = facts.space is not None and is_ours(facts.space.status, facts.uid)
    wants = wants_lease(
        facts.spec, status, now=facts.now, deleting=facts.deleting is not None, install=context.install.id
    )
    if wants and not holds:
        waiters[facts.uid] = Waiter(created_at=facts.created_at, uid=facts.uid, namespace=key[0], name=key[1])
    else:
        waiters.pop(facts.uid, None)
    context.memory.passed(key, status.epoch)
    context.metrics.observe(key, status)


async def _forget(context: Context, key: Key) -> None:
    """The session is gone. Its drivers go too, before the garbage collector's turn; whoever waits for its Space is woken by the
    Space's own look."""
    context.metrics.forget(key)
    for pod in list(context.memory.session(key).pods.values()):
        if not pod.over:
            await context.kube.delete(PODS, key[0], pod.name, uid=pod.uid)
    context.memory.sessions.pop(key, None)
    await context.wake_space(key, 0.0)  # an inline Space has its session's name
    for memory in context.memory.spaces.values():
        gone = [uid for uid, waiter in memory.waiters.items() if (waiter.namespace, waiter.name) == key]
        for uid in gone:
            del memory.waiters[uid]

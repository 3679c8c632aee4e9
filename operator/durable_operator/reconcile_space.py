"""One look at a Space: fresh read, pure plan, act; as for a session."""

from __future__ import annotations

import logging

from durable_base import crash
from durable_coordinator import actions as a
from durable_coordinator.space import plan_space
from durable_coordinator.status import SpaceStatus, to_dict
from durable_operator.announce import announce_space
from durable_operator.context import Context
from durable_operator.kube import PODS, SECRETS, SPACES, ApiError, Json
from durable_operator.making import create_once, judged
from durable_operator.memory import Key
from durable_operator.network_policy import ensure_policy
from durable_operator.objects import owner
from durable_operator.queue import AGAIN_SECONDS, RetryLater
from durable_operator.read import SpaceRead
from durable_operator.secrets import space_secret
from durable_operator.space_pod import SpacePodWanted, build_space_pod

log = logging.getLogger(__name__)


async def reconcile_space(context: Context, key: Key) -> float | None:
    """Seconds until the next look, None for none."""
    with context.metrics.reconcile_seconds.labels("space").time():
        read = await context.reader.space(key, ask=True)
        if read is None:
            # Nobody can hold or wait for what is not there; sessions that refer to it look for themselves.
            for waiter in list(context.memory.space(key).waiters.values()):
                await context.wake_session((waiter.namespace, waiter.name), 0.0)
            for pod in list(context.memory.space(key).pods.values()):
                await context.kube.delete(PODS, key[0], pod.name, uid=pod.uid)
            context.memory.spaces.pop(key, None)
            return None
        if read.orphaned:  # as the garbage collector would, only sooner
            await context.kube.delete(SPACES, *key, uid=read.facts.uid)
            return AGAIN_SECONDS
        plan = plan_space(read.facts)
        body, status = read.body, read.facts.status
        for action in plan.actions:
            match action:
                case a.WriteStatus():
                    body = await _write_status(context, body, plan.status)
                    status = plan.status
                case a.PlaceSpace():
                    await _place(context, key, read, body, action)
                case a.DeletePod():
                    log.info(
                        "Space pod deleted space=%s/%s generation=%d reason=%s", *key, action.generation, action.reason
                    )
                    await context.kube.delete(PODS, key[0], action.name, uid=action.uid)
                case a.WakeSession():
                    await context.wake_session((action.namespace, action.name), 0.0)
        await _tell_holder(context, read, status)
        await announce_space(context, read, status, plan.reason)
        return plan.requeue_after


async def _write_status(context: Context, body: Json, status: SpaceStatus) -> Json:
    try:
        written = await context.kube.replace_status(SPACES, {**body, "status": to_dict(status)})
    except ApiError as error:
        if error.reason in ("Conflict", "NotFound"):
            raise RetryLater(AGAIN_SECONDS) from error
        raise
    crash.crash_point("operator.space_status_written")
    return written


async def _place(context: Context, key: Key, read: SpaceRead, body: Json, action: a.PlaceSpace) -> None:
    """Secret and policy, then the pod. The generation was written before: a pod of it is never another generation's."""
    facts, settings = read.facts, context.settings
    if action.generation > 1:
        context.reader.placements.take()  # the plan saw that there is one
    secret = space_secret(context.install, key[0], key[1], facts.uid, action.generation)
    secret["metadata"] |= {"namespace": key[0], "ownerReferences": owner(SPACES, body)}
    with judged(context, context.memory.space(key), body, "spec"):
        await create_once(context, SECRETS, secret)
        await ensure_policy(context.kube, settings, key[0], facts.spec.egress)
        pod = build_space_pod(
            SpacePodWanted(
                space=body,
                spec=facts.spec,
                name=action.name,
                generation=action.generation,
                epoch_floor=action.epoch_floor,
                fill=action.fill,
                image=facts.spec.image or settings.space_image,
                image_pull_secrets=settings.image_pull_secrets,
                allow_privileged=settings.allow_privileged_templates,
            )
        )
        made = await context.kube.create(PODS, key[0], pod)
    crash.crash_point("operator.space_pod_created")
    log.info("Space placed space=%s/%s generation=%d reason=%s", *key, action.generation, action.reason)
    context.memory.space_event(made, gone=False)
    await context.wake_space(key, 0.0)


async def _tell_holder(context: Context, read: SpaceRead, status: SpaceStatus) -> None:
    """Whoever drives there, or waits for it to be ready, looks again when the Space changed."""
    before = read.facts.status
    if status == before:
        return
    if status.holder is not None:
        await context.wake_session((status.holder.namespace, status.holder.name), 0.0)
    for waiter in read.facts.waiters:
        await context.wake_session((waiter.namespace, waiter.name), 0.0)

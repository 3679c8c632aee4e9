"""Make what a driver's pod mounts, then the pod. "Already exists" is never "done" (rule 14): a new look judges it."""

from __future__ import annotations

from durable_coordinator.actions import StartDriver
from durable_coordinator.facts import Obstacle
from durable_coordinator.resolve import agent_document
from durable_operator import objects as o
from durable_operator.context import Context
from durable_operator.driver_pod import (
    DriverPod,
    SpaceLink,
    build_claim,
    build_driver_pod,
    build_files,
    claim_name,
    driver_image,
)
from durable_operator.kube import CLAIMS, CONFIG_MAPS, PODS, Json
from durable_operator.making import create_once, hinder, judged
from durable_operator.memory import Key
from durable_operator.queue import AGAIN_SECONDS, RetryLater
from durable_operator.read import SessionRead


async def start_driver(context: Context, key: Key, read: SessionRead, body: Json, action: StartDriver) -> None:
    """Raises RetryLater if the pod was not made: the next look sees why."""
    with judged(context, context.memory.session(key), body, "spec.driver"):
        files = await _ensure_files(context, key, read, body)
        await _ensure_claim(context, key, read, body)
        pod = build_driver_pod(_wanted(context, key, read, body, action, files))
        made = await context.kube.create(PODS, key[0], pod)
    context.memory.driver_event(made, gone=False)


def _wanted(context: Context, key: Key, read: SessionRead, body: Json, action: StartDriver, files: str) -> DriverPod:
    settings, spec, space = context.settings, read.facts.spec, read.facts.space
    if space is None or space.pod is None or space.status.generation != action.generation:
        raise RetryLater(AGAIN_SECONDS)
    link = SpaceLink(
        name=space.name,
        uid=space.uid,
        generation=action.generation,
        address=space.pod.address,
        kind=space.spec.kind,
    )
    return DriverPod(
        session=body,
        spec=spec,
        session_id=action.session_id,
        name=action.name,
        epoch=action.epoch,
        attempt=action.attempt,
        resume=action.resume,
        lease_token=action.lease_token,
        image=driver_image(spec, action.image, settings.driver_image),
        space=link,
        files=files,
        claim=claim_name(key[1]),
        stream=settings.stream_address,
        stream_name=settings.stream_name,
        avoid_node=action.avoid_node,
        image_pull_secrets=settings.image_pull_secrets,
        allow_privileged=settings.allow_privileged_templates,
    )


async def _ensure_files(context: Context, key: Key, read: SessionRead, body: Json) -> str:
    """The ConfigMap of inline input and agent. Its name holds the session's uid, so one that exists is ours."""
    spec = read.facts.spec
    wanted = build_files(body, spec, agent_document(spec.agent) if spec.agent is not None else None)
    if wanted is None:
        return ""
    await create_once(context, CONFIG_MAPS, wanted)
    return str(wanted["metadata"]["name"])


async def _ensure_claim(context: Context, key: Key, read: SessionRead, body: Json) -> None:
    """The log's claim. It outlives its session unless `deletionPolicy` says otherwise, so a namesake's may be there: it is used
    as well, for each session's log has a folder of its own. A claim that is not ours is not."""
    name = claim_name(key[1])
    found = await context.kube.get(CLAIMS, key[0], name)
    if found is None:
        await context.kube.create(CLAIMS, key[0], build_claim(body, read.facts.spec))
        return
    if o.is_deleting(found):
        raise RetryLater(2.0)
    if not o.managed(found):
        text = f"a PersistentVolumeClaim {name} exists that is not ours: delete or rename it"
        hinder(context.memory.session(key), body, Obstacle(reason="NameConflict", message=text, retry_seconds=60.0))
        raise RetryLater(AGAIN_SECONDS)

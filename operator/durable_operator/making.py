"""Make objects on the API server, and remember what stands in the way: one text for driver pods and Space pods (rule 35)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from durable_coordinator.facts import Obstacle
from durable_operator import refusals
from durable_operator.context import Context
from durable_operator.kube import ApiError, Json, Resource
from durable_operator.memory import SessionMemory, SpaceMemory
from durable_operator.queue import AGAIN_SECONDS, RetryLater
from durable_operator.templates import TemplateRefusedError


def hinder(memory: SessionMemory | SpaceMemory, body: Json, obstacle: Obstacle) -> None:
    """Show it with the next look, and try again when its time is over or the spec was changed."""
    memory.obstacle = (obstacle, time.monotonic(), body["metadata"]["generation"])


@contextmanager
def judged(context: Context, memory: SessionMemory | SpaceMemory, body: Json, field: str) -> Iterator[None]:
    """Around the making of `body`'s pod: what refuses it becomes an obstacle, and RetryLater is raised.

    `field` is that of the manifest which holds the pod's template. "Already exists" is never "done" (rule 14): the next look
    judges what is there.
    """
    namespace = body["metadata"]["namespace"]
    try:
        yield
    except TemplateRefusedError as refused:
        text = f"{field}.{refused}"
        found = Obstacle(reason="PodRejected", message=text, retry_seconds=refusals.REJECTED_SECONDS)
        hinder(memory, body, found)
        raise RetryLater(AGAIN_SECONDS) from refused
    except ApiError as error:
        if error.reason == "AlreadyExists":
            raise RetryLater(AGAIN_SECONDS) from error
        if refusals.is_terminating(error):
            context.reader.terminating.add(namespace)
            raise RetryLater(30.0) from error
        refusal = refusals.obstacle(error)
        if refusal is None:
            raise
        hinder(memory, body, refusal)
        raise RetryLater(AGAIN_SECONDS) from error


async def create_once(context: Context, kind: Resource, wanted: Json) -> None:
    """For objects whose name holds the uid of their owner and of what they are for: one that exists is this one."""
    try:
        await context.kube.create(kind, wanted["metadata"]["namespace"], wanted)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise

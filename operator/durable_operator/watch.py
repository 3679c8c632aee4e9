"""Watches, by kopf: its handlers put keys on the queue and final facts into memory, and decide nothing (rules 8, 9, 29).

What a watch misses (a deletion in the gap of a re-list gives no event) the sweep finds: once a minute, names and uids of our pods
from the server's cache; the object itself is read by whoever is woken.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import kopf

from durable_operator import objects as o
from durable_operator.context import Context
from durable_operator.kube import GROUP, PODS, SESSIONS, SPACES, ApiError, Json, Resource, UnknownOutcomeError
from durable_operator.memory import Key
from durable_operator.pod_facts import node_unreachable_since

LABELS = f"{o.MANAGED_BY}={o.MANAGER},{o.ROLE}"
log = logging.getLogger(__name__)


def build_registry(context: Context) -> kopf.OperatorRegistry:
    """kopf's handlers, each a few lines that wake."""
    registry = kopf.OperatorRegistry()
    nodes: dict[str, bool] = {}

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        found = await context.kube.connection()
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_path,
            insecure=not found.verify,
            certificate_path=found.certificate_path,
            private_key_path=found.private_key_path,
            scheme="Bearer" if found.token else None,
            token=found.token,
        )

    @kopf.on.event(GROUP, "v1alpha1", SESSIONS.plural, registry=registry)
    async def session(body: kopf.Body, type: str | None, **_: Any) -> None:
        await _session(context, dict(body), first=type is None)

    @kopf.on.event(GROUP, "v1alpha1", SPACES.plural, registry=registry)
    async def space(body: kopf.Body, **_: Any) -> None:
        await _space(context, dict(body))

    @kopf.on.event("v1", PODS.plural, registry=registry)
    async def pod(body: kopf.Body, type: str | None, **_: Any) -> None:
        await _pod(context, dict(body), gone=type == "DELETED")

    if context.settings.cluster_reads:

        @kopf.on.event("v1", "nodes", registry=registry)
        async def node(body: kopf.Body, type: str | None, **_: Any) -> None:
            name = body["metadata"]["name"]
            lost = type == "DELETED" or node_unreachable_since(dict(body)) is not None
            if nodes.get(name, False) != lost:
                nodes[name] = lost
                await _node(context, name)

    return registry


def build_settings() -> kopf.OperatorSettings:
    """Rule 29."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.queueing.worker_limit = None
    settings.networking.request_timeout = 20
    settings.watching.server_timeout = 45
    settings.watching.inactivity_timeout = 50
    settings.watching.label_selectors["v1", PODS.plural] = LABELS
    return settings


async def run_watches(context: Context, started: Callable[[], None]) -> None:
    """Until cancelled; a failure of a watch raises. `started` is called when kopf has set itself up."""
    settings = context.settings
    identity: Any = settings.identity
    ready = asyncio.Event()

    async def tell() -> None:
        await ready.wait()
        started()

    telling = asyncio.create_task(tell())
    try:
        await kopf.operator(
            registry=build_registry(context),
            settings=build_settings(),
            standalone=True,
            identity=identity,  # else it asks for the user's name, and a pod's user has none
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            ready_flag=ready,
        )
    finally:
        telling.cancel()


async def run_sweeps(context: Context) -> None:
    """Once in `relist_seconds`, until cancelled. A failed sweep is made again at the next turn."""
    while True:
        await asyncio.sleep(context.settings.relist_seconds)
        try:
            await sweep(context)
        except (ApiError, UnknownOutcomeError) as error:
            log.warning("sweep failed error=%s", str(error)[:200])


async def sweep(context: Context) -> None:
    """Wake each key of which a known pod is missing in the cache's list. The GET that follows is the proof."""
    found: dict[Resource, set[str]] = {}
    for namespace in context.settings.watch_namespaces or (None,):
        for pod in await context.kube.list(PODS, namespace, labels=LABELS, cached=True, meta_only=True):
            found.setdefault(PODS, set()).add(pod["metadata"]["uid"])
    there = found.get(PODS, set())
    for key, memory in list(context.memory.sessions.items()):
        if any(pod.uid not in there for pod in memory.pods.values()):
            await context.wake_session(key, 0.0)
    for key, memory_of_space in list(context.memory.spaces.items()):
        if any(pod.uid not in there for pod in memory_of_space.pods.values()):
            await context.wake_space(key, 0.0)


async def _session(context: Context, body: Json, *, first: bool) -> None:
    key = _key(body)
    if first and _finished(body):
        # Rule 50: a finished session costs one look at the start of a leader, and not all of them at once.
        await context.wake_session(key, random.uniform(0, context.settings.resync_seconds))
        return
    await context.wake_session(key, 0.0)


async def _space(context: Context, body: Json) -> None:
    key = _key(body)
    await context.wake_space(key, 0.0)
    names = {reference["name"] for reference in body["metadata"].get("ownerReferences") or ()}
    holder = (body.get("status") or {}).get("holder")
    names |= {holder["name"]} if holder else set()
    names |= {waiter.name for waiter in context.memory.space(key).waiters.values()}
    for name in names:
        await context.wake_session((key[0], name), 0.0)


async def _pod(context: Context, body: Json, *, gone: bool) -> None:
    if o.label(body, o.ROLE) == o.DRIVER:
        session = context.memory.driver_event(body, gone=gone)
        if session is not None:
            await context.wake_session(session, 0.0)
    else:
        space = context.memory.space_event(body, gone=gone)
        if space is not None:
            await context.wake_space(space, 0.0)


async def _node(context: Context, name: str) -> None:
    sessions, spaces = context.memory.on_node(name)
    for key in sessions:
        await context.wake_session(key, 0.0)
    for key in spaces:
        await context.wake_space(key, 0.0)


def _finished(body: Json) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == "Finished" and entry["status"] == "True" for entry in conditions)


def _key(body: Json) -> Key:
    return body["metadata"]["namespace"], body["metadata"]["name"]

"""Which replica works: a Lease in the operator's namespace.

It saves work; safety never depends on it (epochs are compared and swapped, pods are named by epoch, Spaces and logs refuse).
Time is this process's own CLOCK_BOOTTIME, which goes on while a machine sleeps: another replica's clock is never compared with
it. A candidate takes over when it has seen the same record for the whole of the record's duration; a leader counts from the
moment at which it *sent* the renewal that succeeded, and gives up earlier than that (rule 27).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable
from datetime import UTC, datetime

from durable_operator.kube import LEASES, ApiError, Json, Kube, UnknownOutcomeError

LOST_EXIT = 76
MARGIN = 0.8  # of the Lease's duration: what a write in flight may still take
log = logging.getLogger(__name__)


class NotLeaderError(Exception):
    """This replica must not write: its Lease may be another's by now."""


def boottime() -> float:
    """Seconds since boot, asleep or not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leader:
    """One candidate for one Lease."""

    def __init__(
        self, kube: Kube, namespace: str, name: str, identity: str, seconds: float, renew_seconds: float
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._seconds = seconds
        self._renew_seconds = renew_seconds
        self._deadline = 0.0
        self.contact = boottime()  # when the API server last answered
        self._seen: tuple[str, float] | None = None  # (resourceVersion, when this process first saw it)

    def leads(self) -> bool:
        return boottime() < self._deadline

    def guard(self) -> None:
        """Called right before every write of a leader."""
        if not self.leads():
            raise NotLeaderError("the Lease was not renewed in time; another replica may lead")

    async def campaign(self) -> None:
        """Return when this replica leads. An API server that is away only delays it."""
        while True:
            try:
                if await self._attempt():
                    log.info("leading identity=%s", self._identity)
                    return
            except (ApiError, UnknownOutcomeError) as error:
                log.warning("campaign goes on error=%s", str(error)[:200])
            await asyncio.sleep(self._renew_seconds / 2)

    async def keep(self) -> None:
        """Renew until cancelled. A lost Lease ends the process at once: whatever it was about to do is another's now."""
        while True:
            await asyncio.sleep(self._renew_seconds)
            try:
                renewed = await self._attempt()
            except (ApiError, UnknownOutcomeError, NotLeaderError) as error:
                log.warning("renewal failed error=%s", str(error)[:200])
                renewed = self.leads()
            if not renewed or not self.leads():
                log.error("leadership lost identity=%s", self._identity)
                os._exit(LOST_EXIT)

    async def release(self) -> None:
        """Let another replica lead without waiting; best effort."""
        if not self.leads():
            return
        try:
            lease = await self._kube.get(LEASES, self._namespace, self._name)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                await self._kube.replace(LEASES, lease)
        except (ApiError, UnknownOutcomeError, NotLeaderError) as error:
            log.warning("Lease not released error=%s", str(error)[:200])
        self._deadline = 0.0

    async def _attempt(self) -> bool:
        """One try to take or renew. True: the Lease is ours until the deadline."""
        lease = await self._kube.get(LEASES, self._namespace, self._name)
        begun = self.contact = boottime()
        if lease is None:
            body = {"metadata": {"name": self._name}, "spec": self._record(0, None)}
            return await self._write(self._kube.create(LEASES, self._namespace, body), begun)
        spec = lease["spec"]
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self._identity and not self._expired(lease):
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self._identity)
        lease["spec"] = self._record(transitions, spec.get("acquireTime") if holder == self._identity else None)
        return await self._write(self._kube.replace(LEASES, lease), begun)

    async def _write(self, call: Awaitable[Json], begun: float) -> bool:
        try:
            await call
        except ApiError as error:
            if error.reason in ("Conflict", "AlreadyExists"):
                return False  # another replica was faster
            raise
        self._deadline = begun + self._seconds * MARGIN
        return True

    def _expired(self, lease: Json) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, boottime())
        seconds = float(lease["spec"].get("leaseDurationSeconds") or self._seconds)
        return boottime() - self._seen[1] > seconds

    def _record(self, transitions: int, acquired: str | None) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

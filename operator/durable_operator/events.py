"""Events: the turning points of a session, for `kubectl describe`. Best effort, and bounded (rule 46).

Per object and reason a burst of five, then one every five minutes; ten a second in all. Nothing waits for them and nothing is
read from them. They carry ids, counts and reasons; no input, no output.
"""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from datetime import UTC, datetime

from durable_operator.kube import EVENTS, ApiError, Json, Kube, Resource, UnknownOutcomeError
from durable_operator.leader import NotLeaderError
from durable_operator.limits import TokenBucket

BURST, REFILL_SECONDS = 5, 300.0
BUCKETS_MAX = 10_000
MESSAGE_MAX = 1024
log = logging.getLogger(__name__)


class Recorder:
    """One per leader."""

    def __init__(self, kube: Kube, identity: str) -> None:
        self._kube = kube
        self._identity = identity
        self._all = TokenBucket(20, 0.1)
        self._buckets: OrderedDict[tuple[str, str], TokenBucket] = OrderedDict()

    async def record(self, resource: Resource, body: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Say that something happened to the object."""
        meta = body["metadata"]
        if not self._may(meta["uid"], reason):
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event: Json = {
            "metadata": {"name": f"{meta['name']}.{secrets.token_hex(8)}", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
            "reason": reason,
            "message": message[:MESSAGE_MAX],
            "type": "Warning" if warning else "Normal",
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "durable-sessions"},
            "reportingComponent": "durable-sessions",
            "reportingInstance": self._identity[:128],
        }
        try:
            await self._kube.create(EVENTS, meta["namespace"], event)
        except (ApiError, UnknownOutcomeError, NotLeaderError) as error:
            log.info("event not recorded reason=%s error=%s", reason, str(error)[:200])

    def _may(self, uid: str, reason: str) -> bool:
        bucket = self._buckets.setdefault((uid, reason), TokenBucket(BURST, REFILL_SECONDS))
        self._buckets.move_to_end((uid, reason))
        if len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)
        return bucket.available() and self._all.take() and bucket.take()

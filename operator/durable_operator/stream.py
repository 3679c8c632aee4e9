"""The report stream's server: drivers tell that they live and how far they are, and may be asked to stop.

Optional for every outcome: what it tells is kept beside what the API server says, never instead of it (rule 21). A caller is who
its token says: session and epoch come from the pod that the token is bound to, never from a message (rule 26). A standby answers
UNAVAILABLE, so a driver finds the leader by trying the next address.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import grpc

from durable_base.errors import UsageError
from durable_coordinator.report import parse_report
from durable_coordinator.status import SessionStatus, from_dict, seconds
from durable_operator import objects as o
from durable_operator.driver_pod import STREAM_AUDIENCE
from durable_operator.kube import PODS, SESSIONS, TOKEN_REVIEWS, ApiError, Json, Kube, UnknownOutcomeError
from durable_operator.leader import NotLeaderError
from durable_operator.memory import Key, Memory, Stream
from durable_operator.metrics import Metrics
from durable_operator.secrets import Leaf
from durable_protocol.durable.session.v1 import coordinator_pb2 as pb
from durable_protocol.durable.session.v1 import coordinator_pb2_grpc as pb_grpc

VERDICT_SECONDS = 300.0
VERDICTS_MAX = 5000
STREAM_SECONDS = 900.0
_EXTRA = "authentication.kubernetes.io/"
log = logging.getLogger(__name__)


class RefusedError(Exception):
    """The caller is not the driver of a session's newest epoch; `code` is what it is told."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Caller:
    """Whose stream it is."""

    key: Key
    uid: str
    epoch: int
    ended: float | None  # when the driver before it ended, unix seconds


class Reports(pb_grpc.SessionCoordinatorServicer):
    """One per process. `leads` decides anew for each call."""

    def __init__(self, kube: Kube, memory: Memory, metrics: Metrics, leads: Callable[[], bool]) -> None:
        self._kube = kube
        self._memory = memory
        self._metrics = metrics
        self._leads = leads
        self._verdicts: dict[str, tuple[float, Json]] = {}
        self._asked: dict[str, asyncio.Event] = {}
        self.server: grpc.aio.Server | None = None

    async def serve(self, listen: str, leaf: Leaf, ca: bytes) -> int:
        """Start; the port really bound."""
        options = (
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.max_receive_message_length", 64 * 1024),
        )
        self.server = grpc.aio.server(options=options)
        pb_grpc.add_SessionCoordinatorServicer_to_server(self, self.server)
        credentials = grpc.ssl_server_credentials([(leaf.key, leaf.certificate + ca)])
        try:
            port = self.server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise UsageError(f"--stream-listen {listen}: can't listen there; choose another address") from error
        await self.server.start()
        return port

    async def ask_stop(self, key: Key, uid: str, reason: str) -> None:
        """Tell the driver, if its stream is here; the reason is in memory."""
        if uid in self._asked:
            self._asked[uid].set()
        log.info("driver asked to stop session=%s/%s reason=%s", *key, reason)

    async def Report(
        self,
        request_iterator: AsyncIterator[pb.ReportRequest],
        context: grpc.aio.ServicerContext[pb.ReportRequest, pb.ReportResponse],
    ) -> AsyncIterator[pb.ReportResponse]:
        try:
            caller = await self._caller(dict(context.invocation_metadata() or ()))
        except RefusedError as refused:
            await context.abort(refused.code, str(refused))
        memory = self._memory.session(caller.key)
        stream = memory.streams.setdefault(caller.uid, Stream())
        asked = self._asked.setdefault(caller.uid, asyncio.Event())
        if stream.stop_at is not None:
            asked.set()
        listening = asyncio.create_task(self._listen(request_iterator, stream, caller))
        try:
            async with asyncio.timeout(STREAM_SECONDS):
                waiting = asyncio.create_task(asked.wait())
                await asyncio.wait({listening, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if asked.is_set():
                    yield pb.ReportResponse(stop=pb.Stop(reason=stream.stop_reason))
                await listening
        except TimeoutError:
            pass  # the driver connects again, with a fresh token
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.RpcError):
                await listening
            self._asked.pop(caller.uid, None)

    async def _listen(self, requests: AsyncIterator[pb.ReportRequest], stream: Stream, caller: Caller) -> None:
        async for request in requests:
            match request.WhichOneof("event"):
                case "heartbeat":
                    self._beat(stream, caller)
                case "progress":
                    stream.committed = stream.committed or request.progress.entries > 0
                case "recovery":
                    self._metrics.recoveries.labels(request.recovery.mode, request.recovery.kind).inc()
                case "final":
                    stream.report = parse_report(request.final.json)
                case _:
                    continue
        log.info("report stream ended session=%s/%s epoch=%d", *caller.key, caller.epoch)

    def _beat(self, stream: Stream, caller: Caller) -> None:
        if stream.beat is None and caller.ended is not None:
            self._metrics.resume_seconds.observe(max(0.0, time.time() - caller.ended))
        stream.beat, stream.beat_unix = time.monotonic(), time.time()

    async def _caller(self, metadata: dict[str, str | bytes]) -> Caller:
        if not self._leads():
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "this replica does not lead: try the next address")
        value = metadata.get("authorization", "")
        scheme, _, token = (value.decode() if isinstance(value, bytes) else value).partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, "no bearer token")
        try:
            user = await self._review(token)
            return await self._judge(user)
        except (ApiError, UnknownOutcomeError, NotLeaderError) as error:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the API server did not answer: try again") from error

    async def _review(self, token: str) -> Json:
        """The token's user, from the API server or from a verdict of the last minutes."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        now = time.monotonic()
        known = self._verdicts.get(digest)
        if known is not None and now - known[0] < VERDICT_SECONDS:
            return known[1]
        body = {"metadata": {}, "spec": {"token": token, "audiences": [STREAM_AUDIENCE]}}
        status = (await self._kube.create(TOKEN_REVIEWS, None, body)).get("status") or {}
        # `authenticated` is absent, not false, for a token of another audience.
        if status.get("authenticated") is not True or STREAM_AUDIENCE not in (status.get("audiences") or ()):
            raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, "the token is not for this audience, or has ended")
        user: Json = status.get("user") or {}
        if len(self._verdicts) >= VERDICTS_MAX:
            self._verdicts.clear()
        self._verdicts[digest] = (now, user)
        return user

    async def _judge(self, user: Json) -> Caller:
        """Only the recorded driver of the newest epoch is listened to."""
        extra = user.get("extra") or {}
        uid, name = ((extra.get(_EXTRA + field) or [""])[0] for field in ("pod-uid", "pod-name"))
        parts = str(user.get("username", "")).split(":")  # system:serviceaccount:<namespace>:<account>
        if not uid or not name or len(parts) != 4:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, "the token is not bound to a pod")
        pod = await self._kube.get(PODS, parts[2], name)
        if pod is None or pod["metadata"]["uid"] != uid or o.label(pod, o.ROLE) != o.DRIVER:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, "the token's pod is no driver")
        key = (parts[2], o.label(pod, o.SESSION))
        session = await self._kube.get(SESSIONS, *key)
        status = from_dict(SessionStatus, (session or {}).get("status"))
        epoch = o.number(o.label(pod, o.EPOCH))
        if session is None or o.controller_uid(pod) != session["metadata"]["uid"] or epoch < status.epoch:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, "a newer driver has taken over")
        if status.driver is None or status.driver.uid != uid:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the pod is not recorded yet: try again")
        last = status.last_exit
        return Caller(key, uid, epoch, seconds(last.time) if last is not None and last.time is not None else None)

"""Client of the coordinator's report stream: signs of life and progress go out, a wish to stop comes in.

Optional by contract: no outcome depends on it, so nothing here raises, and what can't be sent is dropped, the oldest first.
Addresses are tried in turn (a standby answers UNAVAILABLE), with a pause of up to five seconds between attempts (rule 26).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections import deque
from collections.abc import Callable

import grpc

from durable_driver.environment import CoordinatorAddress
from durable_protocol.durable.session.v1 import coordinator_pb2 as pb
from durable_protocol.durable.session.v1.coordinator_pb2_grpc import SessionCoordinatorStub

_log = logging.getLogger(__name__)

_PAUSE_SECONDS_MAX = 5.0
_OUTBOX_MAX = 256
Call = grpc.aio.StreamStreamCall[pb.ReportRequest, pb.ReportResponse]
_OPTIONS = (("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000))


class ReportStream:
    """`on_stop(reason)` is called at most once for each order that arrives. All methods from the event loop."""

    def __init__(
        self,
        address: CoordinatorAddress,
        on_stop: Callable[[str], None],
        *,
        choose: random.Random,
        pause_seconds_max: float = _PAUSE_SECONDS_MAX,
    ) -> None:
        self._address = address
        self._on_stop = on_stop
        self._choose = choose
        self._pause_seconds_max = pause_seconds_max
        self._outbox: deque[pb.ReportRequest] = deque(maxlen=_OUTBOX_MAX)
        self._filled = asyncio.Event()
        self._ending = False
        self._given_up = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="report-stream")

    def heartbeat(self, epoch: int, unix_ms: int) -> None:
        self._put(pb.ReportRequest(heartbeat=pb.Heartbeat(epoch=epoch, unix_ms=unix_ms)))

    def recovery(self, kind: str, mode: str, reason: str) -> None:
        self._put(pb.ReportRequest(recovery=pb.Recovery(kind=kind, mode=mode, reason=reason)))

    def progress(self, entries: int, last_entry: int) -> None:
        """Only the newest counts: one that waits to be sent is replaced."""
        if self._outbox and self._outbox[-1].WhichOneof("event") == "progress":
            self._outbox.pop()
        self._put(pb.ReportRequest(progress=pb.Progress(entries=entries, last_entry=last_entry)))

    async def finish(self, facts: str, timeout_seconds: float) -> None:
        """Send the report's first line and end the stream; give up after the timeout."""
        if self._task is None:
            return
        self._put(pb.ReportRequest(final=pb.FinalReport(json=facts)))
        self._ending = True
        self._filled.set()
        await asyncio.wait((self._task,), timeout=timeout_seconds)
        self._given_up = True  # for gRPC can take a cancellation for the end of its call alone
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _put(self, message: pb.ReportRequest) -> None:
        if not self._ending:
            self._outbox.append(message)
            self._filled.set()

    async def _run(self) -> None:
        while True:
            for target in await self._targets():
                try:
                    await self._connect(target)
                except (grpc.aio.AioRpcError, OSError) as error:
                    code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
                    _log.info("report stream: %s", code)
                if self._given_up or (self._ending and not self._outbox):
                    return
            await asyncio.sleep(self._choose.uniform(0, self._pause_seconds_max))

    async def _targets(self) -> list[str]:
        """Every address behind the name: a headless Service has one for each replica."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_STREAM)
        except OSError:
            return []
        hosts = sorted({str(sockaddr[0]) for *_, sockaddr in found})
        self._choose.shuffle(hosts)
        return [f"[{host}]:{self._address.port}" if ":" in host else f"{host}:{self._address.port}" for host in hosts]

    async def _connect(self, target: str) -> None:
        """One stream, from its start to its end."""
        async with await self._channel(target) as channel:
            call = SessionCoordinatorStub(channel).Report(metadata=await self._metadata())
            # Written by a task of our own: one of gRPC's would outlive the call and swallow what is meant for the next.
            writing = asyncio.create_task(self._write(call))
            try:
                async for response in call:
                    if response.WhichOneof("order") == "stop":
                        self._on_stop(response.stop.reason)
            finally:
                writing.cancel()
                await asyncio.wait((writing,))

    async def _channel(self, target: str) -> grpc.aio.Channel:
        if self._address.ca_file is None:
            return grpc.aio.insecure_channel(target, options=_OPTIONS)
        roots = await asyncio.to_thread(self._address.ca_file.read_bytes)
        options = (*_OPTIONS, ("grpc.ssl_target_name_override", self._address.name))
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(roots), options=options)

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        """The token is read for each connection: projected tokens are replaced while the driver runs."""
        if self._address.token_file is None:
            return ()
        token = (await asyncio.to_thread(self._address.token_file.read_text)).strip()
        return (("authorization", f"Bearer {token}"),)

    async def _write(self, call: Call) -> None:
        # At most once: a recovery told twice would be counted twice; one lost is in the report at the end.
        try:
            while True:
                while self._outbox:
                    await call.write(self._outbox.popleft())
                if self._ending:
                    await call.done_writing()
                    return
                self._filled.clear()
                await self._filled.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call is over; its reader says why

"""One connection to a Space: address, TLS, token, the metadata of every call, deadlines, and a bounded wait for a daemon
that restarts.

Guarantee: nothing is waited for without an end. What is retried here is only what may be done twice (see `retried`); a daemon
that comes back as another Space refuses the call by its pinned identity, so a silent redial can never reach it (rule 12).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from durable_base.errors import HaltError, UsageError
from durable_base.floor import Floor
from durable_spaces._errors import Unreachable, judge
from durable_spaces.document import Identity

T = TypeVar("T")

_PAUSE_FIRST_SECONDS = 0.05
_PAUSE_MAX_SECONDS = 1.0
_DIAL_SECONDS_MAX = 5.0  # one attempt to connect: TCP, TLS and the first HTTP/2 frame of a daemon that has little CPU
_PING_MS = 10_000  # asked after such a silence, and answered within another, or the connection is dead
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long is waited for what, in seconds. Nothing waits without an end.

    A call that finds nobody ends within `connect_seconds` and the 5 s of one attempt to connect; one whose answer does not come,
    at its own time. Both are `HaltError("SpaceUnreachable")`. A command that runs may take as long as it likes.
    """

    connect_seconds: float = 15.0  # how long a Space may be away (a restarting daemon), from the first failure on
    call_seconds: float = 30.0  # a plain call
    long_call_seconds: float = 300.0  # a whole file, a scan, a restore, an epoch advance that has to kill
    silence_seconds: float = 30.0  # a command's stream without output and without keep-alives (one each 5 s) is dead


DEADLINES = Deadlines()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a Space listens and how it is spoken to. Plain text unless there is a `ca_file`."""

    target: str  # `unix:/path/to.sock` or `host:port`
    token_file: Path | None = None  # read for every call, so that a renewed token counts at once
    ca_file: Path | None = None  # PEM; with it the connection is TLS
    tls_name: str | None = None  # the name that the certificate is for, where it is not the host

    def read_token(self) -> str | None:
        """Raises UsageError."""
        if self.token_file is None:
            return None
        try:
            return self.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise UsageError(f"Space token file {self.token_file}: can't be read ({why})") from None


class Wire:
    """A channel and what every call on it carries. One event loop only."""

    def __init__(self, address: Address, own: Floor, deadlines: Deadlines) -> None:
        self.own = own  # changed by the client alone, before its first fenced call
        self.identity: Identity | None = None  # set once, by the client that compared it (rule 12)
        self.call_seconds = deadlines.call_seconds
        self.long_call_seconds = deadlines.long_call_seconds
        self.silence_seconds = deadlines.silence_seconds
        self._connect_seconds = deadlines.connect_seconds
        self._address = address
        self.channel = _open_channel(address, deadlines)

    def metadata(self) -> Metadata:
        pairs = [("durable-epoch", str(self.own.epoch)), ("durable-incarnation", self.own.incarnation)]
        if self.identity is not None:
            pairs += [("durable-instance", self.identity.instance), ("durable-boot", self.identity.boot)]
        if (token := self._address.read_token()) is not None:
            pairs.append(("authorization", f"Bearer {token}"))
        return tuple(pairs)

    async def once(self, call: Callable[[Metadata], Awaitable[T]]) -> T:
        """One attempt, for what must not be done twice. A broken connection ends the drive: the next one looks and decides."""
        try:
            return await self._attempt(call)
        except Unreachable as error:
            raise HaltError(
                "SpaceUnreachable", f"the connection to the Space broke ({error}); the next drive takes the call up"
            ) from error

    async def retried(self, call: Callable[[Metadata], Awaitable[T]]) -> T:
        """Attempts until an answer or the end of the window. Only for calls that may take effect twice."""
        patience = self.patience()
        while True:
            try:
                return await self._attempt(call)
            except Unreachable as error:
                await patience.pause(error)

    def patience(self) -> Patience:
        return Patience(self._connect_seconds)

    async def _attempt(self, call: Callable[[Metadata], Awaitable[T]]) -> T:
        try:
            return await call(self.metadata())
        except grpc.aio.AioRpcError as error:
            raise judge(error, self.own) from error

    async def messages(self, stream: AsyncIterator[T]) -> AsyncIterator[T]:
        """The messages of a stream; its errors as `_errors.judge` reads them."""
        try:
            async for message in stream:
                yield message
        except grpc.aio.AioRpcError as error:
            raise judge(error, self.own) from error

    async def close(self) -> None:
        await self.channel.close()


class Patience:
    """A bounded wait with growing pauses, counted from the first failure since the last sign of life (`reset`): a scan that
    took minutes before its connection broke gets the whole of it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        self._until: float | None = None
        self._pause = _PAUSE_FIRST_SECONDS

    async def pause(self, error: Unreachable) -> None:
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        elif now >= self._until:
            raise HaltError(
                "SpaceUnreachable",
                f"no answer from the Space for {self._seconds:g} s ({error}); the next drive tries again",
            ) from error
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _PAUSE_MAX_SECONDS)


def _open_channel(address: Address, deadlines: Deadlines) -> grpc.aio.Channel:
    dial_seconds = min(_DIAL_SECONDS_MAX, max(deadlines.connect_seconds, 0.1))
    options: list[tuple[str, int | str]] = [
        ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
        # Redials at the pace of `Patience`: by default the library lets minutes pass.
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 500),
        # Despite its name: how long one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", int(dial_seconds * 1000)),
        # A peer that vanished without a word (a lost node) is noticed under a call that may take minutes.
        ("grpc.keepalive_time_ms", _PING_MS),
        ("grpc.keepalive_timeout_ms", _PING_MS),
        ("grpc.http2.ping_timeout_ms", _PING_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    if address.ca_file is None:
        return grpc.aio.insecure_channel(address.target, options)
    try:
        roots = address.ca_file.read_bytes()
    except OSError as error:
        raise UsageError(f"Space CA file {address.ca_file}: can't be read ({error.strerror})") from None
    if address.tls_name is not None:
        options.append(("grpc.ssl_target_name_override", address.tls_name))
    return grpc.aio.secure_channel(address.target, grpc.ssl_channel_credentials(roots), options)

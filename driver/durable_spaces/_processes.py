"""Processes of a Space by request id, as `cua.env.v1` serves them on any daemon: start once, attach ever after, and never take
the end of a stream for the end of a command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import grpc

from durable_base.command import command_hash
from durable_base.errors import HaltError
from durable_harness.env import Stream
from durable_protocol.cua.env.v1 import process_pb2 as process
from durable_protocol.cua.env.v1 import process_pb2_grpc
from durable_spaces._channel import Wire
from durable_spaces._errors import SpaceRefused, Unreachable

KEEPALIVE_SECONDS = 5
STARTING_SECONDS = 5.0  # from a reservation to its process, at most


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """What is run, exactly as the request carries it: equal hashes are the same command.

    No shell reads it, unless it is one: `CommandSpec("ls", ("-l", "a file"))`, or `CommandSpec.shell("ls -l *.txt | wc")`.
    """

    command: str  # a path, or a name that is looked for in the command's own PATH
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # added to the Space's own
    cwd: str = ""  # absolute, or relative to the workspace; empty: the workspace
    timeout_ns: int | None = None  # then SIGTERM, and 5 s later (or as the Space was told) SIGKILL
    stdin: bool = False  # stays open, for SendInput; no part of the hash

    @classmethod
    def shell(
        cls,
        script: str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        timeout_seconds: float | None = None,
    ) -> CommandSpec:
        """`script` for /bin/sh."""
        timeout_ns = None if timeout_seconds is None else max(1, round(timeout_seconds * 1e9))
        return cls("/bin/sh", ("-c", script), dict(env or {}), cwd, timeout_ns)

    @property
    def hash(self) -> str:
        return command_hash(self.command, self.args, self.env, self.cwd, "", self.timeout_ns)

    def config(self) -> process.ProcessConfig:
        config = process.ProcessConfig(command=self.command, args=self.args, env=dict(self.env), cwd=self.cwd)
        if self.timeout_ns is not None:
            config.timeout.seconds, config.timeout.nanos = divmod(self.timeout_ns, 1_000_000_000)
        return config


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """It ended by itself, by a signal, or at its timeout; never "lost", which is a HaltError."""

    exit_code: int  # 128 + n for a death by signal n
    timed_out: bool
    trouble: str = ""  # with its output, on the Space's side
    spawned: bool = True  # False: no process could be made of it, `trouble` says why


@dataclass(frozen=True, slots=True, kw_only=True)
class Sinks:
    """Who hears of a command. None of them may wait."""

    output: Callable[[bytes, Stream], None]
    following: Callable[[str], None] = lambda _request_id: None  # before it is started or attached to
    started: Callable[[], None] = lambda: None
    gap: Callable[[int], None] = lambda _bytes: None  # so many bytes of output are no longer kept
    spoiled: Callable[[], bool] = lambda: False  # the receiver failed: the command is to be killed


class Processes:
    def __init__(self, wire: Wire, recheck: Callable[[], Awaitable[None]] | None = None) -> None:
        """`recheck` raises where another Space answers. For a daemon that compares no identity: asked before a start is repeated
        (rule 12)."""
        self._wire = wire
        self._recheck = recheck
        self._stub = process_pb2_grpc.ProcessServiceStub(wire.channel)

    async def kill(self, request_id: str, runs: Callable[[], Awaitable[bool]]) -> None:
        """End this command and its process group. One that has ended is fine; `runs` is asked whether one that the daemon finds
        no process of is about to have one."""
        request = process.SignalProcessRequest(
            process=process.ProcessSelector(tag=request_id), signal=process.SIGNAL_KILL, process_group=True
        )
        until = asyncio.get_running_loop().time() + STARTING_SECONDS
        while True:
            try:
                await self._wire.retried(
                    lambda metadata: self._stub.SignalProcess(
                        request, metadata=metadata, timeout=self._wire.call_seconds
                    )
                )
                return
            except SpaceRefused as refused:
                if refused.refusal.reason != "ERROR_REASON_PROCESS_NOT_FOUND":
                    raise
                if not await runs():
                    return
                if asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(0.02)

    async def follow(
        self,
        spec: CommandSpec | None,
        request_id: str,
        sinks: Sinks,
        kill: Callable[[str], Awaitable[None]],
    ) -> CommandEnd:
        """Start it, or without a `spec` attach to it, and wait for its end. Raises SpaceRefused, HaltError, StaleEpochError."""
        sinks.following(request_id)
        patience = self._wire.patience()
        offset = 0  # of the output that has been handed on
        killed = False
        while True:
            stream = self._connect(request_id, offset) if spec is None else self._start(spec, request_id)
            try:
                async with aclosing(stream):
                    async for event in stream:
                        match event.WhichOneof("event"):
                            case "start":
                                if spec is not None:
                                    # From here on it runs: asking to start it again could run it twice (rule 12).
                                    spec = None
                                    sinks.started()
                            case "data":
                                offset = deliver(event.data, offset, sinks)
                                patience.reset()
                            case "end":
                                return read_end(event.end)
                            case _:
                                patience.reset()
                        if sinks.spoiled() and not killed:
                            killed = True
                            await kill(request_id)
                broken = Unreachable("the stream ended before the command did")
            except SpaceRefused as refused:
                offset = _after_gap(refused, offset, sinks)
                continue
            except Unreachable as error:
                broken = error
            await patience.pause(broken)
            if spec is not None and self._recheck is not None:
                await self._recheck()

    def _start(self, spec: CommandSpec, request_id: str) -> AsyncGenerator[process.ProcessEvent]:
        request = process.StartProcessRequest(
            config=spec.config(), tag=request_id, request_id=request_id, epoch=self._wire.own.epoch, stdin=spec.stdin
        )
        request.keepalive_interval.seconds = KEEPALIVE_SECONDS
        return self._events(self._stub.StartProcess(request, metadata=self._wire.metadata()))

    def _connect(self, request_id: str, offset: int) -> AsyncGenerator[process.ProcessEvent]:
        request = process.ConnectProcessRequest(
            process=process.ProcessSelector(tag=request_id), replay_from_offset=offset
        )
        request.keepalive_interval.seconds = KEEPALIVE_SECONDS
        return self._events(self._stub.ConnectProcess(request, metadata=self._wire.metadata()))

    async def _events(self, call: _Call) -> AsyncGenerator[process.ProcessEvent]:
        messages: AsyncIterator[_Answer] = self._wire.messages(aiter(call))
        try:
            while True:
                async with asyncio.timeout(self._wire.silence_seconds):
                    try:
                        message = await anext(messages)
                    except StopAsyncIteration:
                        return
                yield message.event
        except TimeoutError:
            raise HaltError(
                "SpaceUnreachable",
                f"the Space fell silent for {self._wire.silence_seconds:g} s; the next drive takes the command up",
            ) from None
        finally:
            call.cancel()


_Answer = process.StartProcessResponse | process.ConnectProcessResponse
_Call = (
    grpc.aio.UnaryStreamCall[process.StartProcessRequest, process.StartProcessResponse]
    | grpc.aio.UnaryStreamCall[process.ConnectProcessRequest, process.ConnectProcessResponse]
)


def deliver(data: process.ProcessData, offset: int, sinks: Sinks) -> int:
    """Hand on what lies behind `offset`; the offset behind it. Replays overlap, and what is no longer kept leaves a gap."""
    stream: Stream = "stderr" if data.WhichOneof("output") == "stderr" else "stdout"
    piece = data.stderr if stream == "stderr" else data.stdout
    if data.offset > offset:
        sinks.gap(data.offset - offset)
    piece = piece[max(0, offset - data.offset) :]
    if piece:
        sinks.output(piece, stream)
    return max(offset, data.offset + len(data.stderr or data.stdout))


def _after_gap(refused: SpaceRefused, offset: int, sinks: Sinks) -> int:
    """The offset to go on from where the Space no longer keeps the asked one; other refusals are raised."""
    refusal = refused.refusal
    if refusal.condition == "OutputGone" and (first := int(refusal.metadata.get("first_offset", "0"))) > offset:
        sinks.gap(first - offset)
        return first
    if refusal.reason == "ERROR_REASON_PROCESS_NOT_FOUND":
        raise HaltError("CommandLost", "the Space does not know this command, or no longer") from refused
    if refusal.condition == "CommandMismatch":
        raise HaltError("CommandMismatch", "the Space knows this call's key with another command") from refused
    raise refused


def read_end(end: process.ProcessEnd) -> CommandEnd:
    if end.lost:
        raise HaltError("CommandLost", "the command's end is unknown; the next drive undoes it and runs it again")
    number = end.signal_number or end.signal
    spawned = end.HasField("exit_code") or bool(number) or end.timed_out
    return CommandEnd(end.exit_code if not number else 128 + number, end.timed_out, end.error, spawned)


async def gathered(attach: Callable[[str, Sinks], Awaitable[CommandEnd]], request_id: str) -> tuple[bytes, int]:
    """All output of an ended command that is still kept, and how many bytes before it are gone."""
    data = bytearray()
    gone = 0

    def gap(size: int) -> None:
        nonlocal gone
        gone += size

    await attach(request_id, Sinks(output=lambda piece, _: data.extend(piece), gap=gap))
    return bytes(data), gone

"""The Space helper, as a driver speaks to it: a process of the Space, with frames over its stdin and its output.

Guarantee: a connection that breaks does not break the conversation. Input is numbered, so that a piece which is sent again
arrives once, and output goes on at the very byte. What ends it is the end of the helper (or of the daemon, which takes it
along): then what may be done twice is asked of a new one, and what may not ends the drive. An older driver's helper can't be
asked: AdvanceEpoch has killed it, and it can't be started again under its epoch.

A caller that is cancelled leaves its request to run to its answer, so that the next one never gets that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from durable_base.errors import HaltError, StaleEpochError
from durable_protocol.cua.env.v1 import process_pb2 as process
from durable_protocol.cua.env.v1 import process_pb2_grpc
from durable_space.helper.frames import BODY_BYTES_MAX, Frame, FrameError, Unpacker, pack
from durable_spaces._channel import Wire
from durable_spaces._cua_commands import CuaCommands
from durable_spaces._errors import Refusal, SpaceRefused, Unreachable
from durable_spaces._processes import CommandEnd, CommandSpec, Sinks

_CLOSE_SECONDS = 5.0
_INPUT_BYTES = 256 * 1024  # of one SendInput: what a connection that breaks costs
_PYTHON = ("python3", "-I", "-S", "-B")  # nothing of the Space's own modules, and nothing written beside the archive

Body = Callable[[], Iterable[bytes]]  # made anew for each attempt
Reply = tuple[dict[str, Any], bytes]
# Called before each start: the Space is still the same one (rule 12). The helper's folder, and the archive that is there.
Ready = Callable[[], Awaitable[tuple[str, str]]]


class HelperLost(Exception):
    """It has ended: what was asked may have been done or not."""


@dataclass(frozen=True, slots=True)
class HelperLaunch:
    workspace: str
    instance: str
    environment: Mapping[str, str] = field(default_factory=dict)  # added to the Space's own


class Helper:
    """One helper at a time, started when it is needed; one request at a time."""

    def __init__(self, wire: Wire, commands: CuaCommands, launch: HelperLaunch, ready: Ready) -> None:
        self._wire = wire
        self._commands = commands
        self._launch = launch
        self._ready = ready
        self._stub = process_pb2_grpc.ProcessServiceStub(wire.channel)
        self._running: _Running | None = None
        self._starts = 0
        self._turn = asyncio.Lock()
        self._pending: set[asyncio.Task[Reply]] = set()

    async def start(self) -> None:
        """Before the first request, so that what a Space lacks is told at once. Raises HaltError."""
        async with self._turn:
            await self._helper()

    async def again(self, op: str, body: Body | None = None, /, **arguments: object) -> Reply:
        """For what may be done twice. (message, bytes beside it). Raises SpaceRefused."""
        return await self._asked(self._in_turn(op, body, arguments, repeated=True))

    async def once(self, op: str, body: Body | None = None, /, **arguments: object) -> Reply:
        """For what must not: a helper that is lost meanwhile ends the drive, and the next one looks and decides."""
        return await self._asked(self._in_turn(op, body, arguments, repeated=False))

    async def dismiss(self, op: str, /, **arguments: object) -> None:
        """For what matters to the helper that runs alone."""
        if self._running is not None and self._running.lives:
            with contextlib.suppress(SpaceRefused, HaltError, StaleEpochError):
                await self._asked(self._in_turn(op, None, arguments, repeated=False))

    async def close(self) -> None:
        """The helper ends with its stdin; what it does at that moment it does whole."""
        running, self._running = self._running, None
        if running is not None:
            await running.close()
        for request in list(self._pending):
            request.cancel()

    async def _asked(self, work: Any) -> Reply:
        request: asyncio.Task[Reply] = asyncio.ensure_future(work)
        self._pending.add(request)
        request.add_done_callback(self._forget)
        return await asyncio.shield(request)

    def _forget(self, request: asyncio.Task[Reply]) -> None:
        self._pending.discard(request)
        if not request.cancelled():
            request.exception()  # seen: whoever asked may have been cancelled

    async def _in_turn(self, op: str, body: Body | None, arguments: Mapping[str, object], *, repeated: bool) -> Reply:
        async with self._turn:
            patience = self._wire.patience()
            while True:
                try:
                    running = await self._helper()
                except HelperLost as lost:
                    await patience.pause(Unreachable(str(lost)))
                    continue
                try:
                    return await running.ask(op, arguments, body() if body is not None else ())
                except HelperLost as lost:
                    if not repeated:
                        raise HaltError(
                            "SpaceUnreachable", f"the Space helper ended ({lost}); the next drive takes the call up"
                        ) from lost
                    await patience.pause(Unreachable(str(lost)))

    async def _helper(self) -> _Running:
        if self._running is not None and self._running.lives:
            return self._running
        if self._running is not None:
            await self._running.close()
            self._running = None
        folder, archive = await self._ready()
        self._starts += 1
        own, launch = self._wire.own, self._launch
        words = (*_PYTHON[1:], archive, launch.workspace, folder, launch.instance)
        spec = CommandSpec(_PYTHON[0], words, launch.environment, "/", stdin=True)
        request_id = f"helper:{own.incarnation}:{self._starts}@{own.epoch}"
        running = _Running(self._wire, self._commands, self._stub, request_id, spec)
        try:
            await running.hello()
        except BaseException:
            await running.close()
            raise
        self._running = running
        return running


class _Running:
    """One helper process."""

    def __init__(
        self,
        wire: Wire,
        commands: CuaCommands,
        stub: process_pb2_grpc.ProcessServiceAsyncStub,
        request_id: str,
        spec: CommandSpec,
    ) -> None:
        self._wire = wire
        self._commands = commands
        self._stub = stub
        self._selector = process.ProcessSelector(tag=request_id)
        self._request_id = request_id
        self._unpacker = Unpacker()
        self._answers: asyncio.Queue[Frame] = asyncio.Queue()
        self._inputs = 0
        self._requests = 0
        sinks = Sinks(output=self._take, gap=self._gap)
        self._follower = asyncio.ensure_future(commands.run(spec, request_id, sinks))
        self._broken = False

    @property
    def lives(self) -> bool:
        """As far as is known."""
        return not self._follower.done() and not self._broken

    async def hello(self) -> None:
        """Raises HaltError where this Space can have no helper."""
        message = (await self._answer()).message
        if "error" in message:
            raise _cannot_serve(_refusal(message["error"]))
        if "hello" not in message:
            raise self._lost("its first frame is no hello")

    async def ask(self, op: str, arguments: Mapping[str, object], body: Iterable[bytes]) -> Reply:
        pieces = _cut(body)
        piece = next(pieces)
        for following in pieces:
            await self._exchange({"op": "body"}, piece)
            piece = following
        answer = await self._exchange({"op": op, **arguments}, piece)
        message, data = answer.message, bytearray(answer.body)
        while answer.message.get("more"):
            answer = await self._exchange({"op": "more"}, b"")
            data += answer.body
        return message, bytes(data)

    async def close(self) -> None:
        """Whatever is under way is given up. Where the Space can't be reached for that, its daemon or the next epoch ends it."""
        request = process.CloseStdinRequest(process=self._selector)
        with contextlib.suppress(TimeoutError, HaltError, StaleEpochError, SpaceRefused, grpc.aio.UsageError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                if not self._follower.done():
                    await self._wire.once(lambda metadata: self._stub.CloseStdin(request, metadata=metadata))
                    await asyncio.wait([self._follower], timeout=_CLOSE_SECONDS / 2)
                if not self._follower.done():
                    await self._commands.kill(self._request_id)
        self._follower.cancel()
        await asyncio.wait([self._follower])

    async def _exchange(self, message: dict[str, object], body: bytes) -> Frame:
        self._requests += 1
        await self._send(pack(Frame({"id": self._requests, **message}, body)))
        answer = await self._answer()
        if "error" in answer.message:
            refusal = _refusal(answer.message["error"])
            if refusal.condition == "MalformedFrame":
                raise self._lost(refusal.message)
            raise SpaceRefused(refusal)
        if answer.message.get("id") != self._requests:
            raise self._lost("it answers another request")
        return answer

    async def _send(self, data: bytes) -> None:
        for at in range(0, len(data), _INPUT_BYTES):
            await self._input(data[at : at + _INPUT_BYTES])

    async def _input(self, data: bytes) -> None:
        self._inputs += 1
        request = process.SendInputRequest(
            process=self._selector,
            input=process.ProcessInput(stdin=data),
            sequence=self._inputs,  # what is sent twice arrives once
            writer_id="driver",
        )
        try:
            await self._wire.retried(
                lambda metadata: self._stub.SendInput(request, metadata=metadata, timeout=self._wire.call_seconds)
            )
        except SpaceRefused as refused:
            raise self._lost(refused.refusal.message) from refused

    async def _answer(self) -> Frame:
        if not self._answers.empty():
            return self._answers.get_nowait()
        coming = asyncio.ensure_future(self._answers.get())
        try:
            await asyncio.wait(
                [coming, self._follower], timeout=self._wire.long_call_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if coming.done():
                return coming.result()
        finally:
            coming.cancel()
        if not self._follower.done():
            self._broken = True
            raise HaltError("SpaceUnreachable", "the Space helper did not answer in time; the next drive tries again")
        raise self._why()

    def _why(self) -> Exception:
        """The follower is done: what that means."""
        if self._follower.cancelled():
            return self._lost("it was given up")
        error = self._follower.exception()
        if error is None:
            return _ended(self._follower.result())
        if isinstance(error, FrameError) or (isinstance(error, HaltError) and error.reason == "CommandLost"):
            return self._lost(str(error))
        return error if isinstance(error, Exception) else self._lost(type(error).__name__)

    def _lost(self, why: str) -> HelperLost:
        self._broken = True
        return HelperLost(why)

    def _take(self, data: bytes, stream: str) -> None:
        if stream == "stdout":
            self._unpacker.feed(data)
            while (frame := self._unpacker.next()) is not None:
                self._answers.put_nowait(frame)

    def _gap(self, size: int) -> None:
        raise FrameError(f"{size} bytes of an answer are gone")


def _cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """As bodies of frames; at least one."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) > BODY_BYTES_MAX:
            yield bytes(held[:BODY_BYTES_MAX])
            del held[:BODY_BYTES_MAX]
    yield bytes(held)


def _refusal(error: Any) -> Refusal:
    metadata = dict(error["metadata"])
    reason = f"ERROR_REASON_{error['reason']}" if error["reason"] != "UNSPECIFIED" else ""
    code = grpc.StatusCode[error["code"]]
    return Refusal(code, str(metadata.get("condition", "")), reason, str(error["message"]), metadata)


def _ended(end: CommandEnd) -> Exception:
    if not end.spawned:
        return HaltError(
            "MissingCapability",
            f"the Space can't start python3 ({end.trouble}): install Python 3.11 or newer in it, "
            "or run it with this product's Space daemon",
            permanent=True,
        )
    return HelperLost(f"its process ended with status {end.exit_code}")


def _cannot_serve(refusal: Refusal) -> HaltError:
    match refusal.condition:
        case "PythonTooOld":
            return HaltError("MissingCapability", refusal.message, permanent=True)
        case "HelperBusy":
            return HaltError("SpaceBusy", refusal.message)
        case _:
            return HaltError("HelperRefused", f"the Space helper can't work there: {refusal.message}")

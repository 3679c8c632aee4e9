"""One Space helper: a process of the Space, with frames over its stdin and its output.

Guarantee: a connection that breaks does not break the conversation. Input is numbered, so that a piece which is sent again
arrives once, and output goes on at the very byte. What ends it is the end of the process, or of the daemon, which takes it along.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc

from durable_base.errors import HaltError, StaleEpochError
from durable_protocol.cua.env.v1 import process_pb2 as process
from durable_protocol.cua.env.v1 import process_pb2_grpc
from durable_space.helper.frames import BODY_BYTES_MAX, Frame, FrameError, Unpacker, pack
from durable_spaces._channel import Wire
from durable_spaces._cua_commands import CuaCommands
from durable_spaces._errors import Refusal, SpaceRefused
from durable_spaces._processes import CommandEnd, CommandSpec, Sinks

_CLOSE_SECONDS = 5.0
_INPUT_BYTES = 256 * 1024  # of one SendInput: what a connection that breaks costs

Reply = tuple[dict[str, Any], bytes]  # the message, and the bytes beside it


class HelperLost(Exception):
    """It has ended: what was asked may have been done or not."""


class HelperProcess:
    """Starts at once; one exchange at a time, which its owner sees to."""

    def __init__(
        self,
        wire: Wire,
        commands: CuaCommands,
        request_id: str,
        spec: CommandSpec,
    ) -> None:
        self._wire = wire
        self._commands = commands
        self._stub = process_pb2_grpc.ProcessServiceStub(wire.channel)
        self._selector = process.ProcessSelector(tag=request_id)
        self._request_id = request_id
        self._unpacker = Unpacker()
        self._answers: asyncio.Queue[Frame] = asyncio.Queue()
        self._inputs = 0
        self._requests = 0
        sinks = Sinks(output=self._take, gap=self._gap)
        self._follower = asyncio.ensure_future(commands.run(spec, request_id, sinks))
        self._broken = False
        self._greeted = False

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
        self._greeted = True

    async def ask(self, op: str, arguments: Mapping[str, object], body: Iterable[bytes]) -> Reply:
        try:
            return await self._ask(op, arguments, body)
        except SpaceRefused:
            raise
        except BaseException:
            self._broken = True  # its answer may still come: the next request must not get it
            raise

    async def _ask(self, op: str, arguments: Mapping[str, object], body: Iterable[bytes]) -> Reply:
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
        if not self._follower.cancelled():
            self._follower.exception()  # seen: whoever asked was told, or is gone

    async def _exchange(self, message: dict[str, object], body: bytes) -> Frame:
        try:
            frame = pack(Frame({"id": self._requests + 1, **message}, body))
        except FrameError as error:
            raise SpaceRefused(
                Refusal(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "LimitExceeded",
                    "",
                    f"more than can be asked at once: {error}",
                    {},
                )
            ) from error
        self._requests += 1
        await self._send(frame)
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
            raise HaltError("SpaceUnreachable", "the Space helper did not answer in time; the next drive tries again")
        raise self._why()

    def _why(self) -> Exception:
        """The follower is done: what that means."""
        if self._follower.cancelled():
            return self._lost("it was given up")
        error = self._follower.exception()
        if error is None:
            end = self._follower.result()
            if self._greeted or end.exit_code >= 128:  # killed, by whomever: another one may fare better
                return self._lost(f"its process ended with status {end.exit_code}")
            return _not_started(end)
        if isinstance(error, FrameError) and not self._greeted:
            return _not_started(None)
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


def _not_started(end: CommandEnd | None) -> HaltError:
    """`end` of the process that has said nothing; None: it said something else."""
    remedy = "install Python 3.11 or newer in it, or run it with this product's Space daemon"
    if end is not None and not end.spawned:
        what = f"the Space can't start python3 ({end.trouble})"
        return HaltError("MissingCapability", f"{what}: {remedy}", permanent=True)
    how = "says something else" if end is None else f"ends with status {end.exit_code}"
    return HaltError("HelperRefused", f"the Space's python3 {how} instead of running the Space helper: {remedy}")


def _cannot_serve(refusal: Refusal) -> HaltError:
    match refusal.condition:
        case "PythonTooOld":
            return HaltError("MissingCapability", refusal.message, permanent=True)
        case "HelperBusy":
            return HaltError("SpaceBusy", refusal.message)
        case _:
            return HaltError("HelperRefused", f"the Space helper can't work there: {refusal.message}")

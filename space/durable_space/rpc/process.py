"""cua.env.v1.ProcessService."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
from collections.abc import AsyncIterator

from google.protobuf.duration_pb2 import Duration

from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.cua.env.v1.process_pb2_grpc import ProcessServiceServicer
from durable_space import control, layout, output
from durable_space.commands import TAIL_BYTES, Observed
from durable_space.follow import follow, observe
from durable_space.inputs import Inputs, Numbered
from durable_space.refusal import invalid, unsupported
from durable_space.rows import CommandConfig
from durable_space.rpc import messages
from durable_space.rpc.admission import admit_changer, admit_reader, caller_of
from durable_space.rpc.guard import Context
from durable_space.runtime import Runtime

REQUEST_ID_BYTES_MAX = 256
KEEPALIVE_SECONDS_MIN = 0.05  # a client that asks for more gets this: streams must not spin
REPLAY_BYTES_MAX = 1 << 62  # all that is kept


class ProcessService(ProcessServiceServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._inputs = Inputs(runtime.commands, runtime.gate)

    async def StartProcess(
        self, request: cua.StartProcessRequest, context: Context
    ) -> AsyncIterator[cua.StartProcessResponse]:
        caller = caller_of(context, request.epoch)
        if request.HasField("pty"):
            raise unsupported("pty", "this daemon serves no terminals: start the command without pty")
        config = read_config(request)
        request_id = request.request_id or f"anonymous-{secrets.token_hex(16)}"
        await self._runtime.admit(caller)
        row, deduplicated = await self._runtime.starter.start(caller, request_id, request.tag, config)
        idle = idle_seconds(request.keepalive_interval)
        ended = False
        try:
            # A known command replays what is kept of its output; Attach reads from any offset.
            async for event in follow(
                self._runtime,
                row,
                None if deduplicated else 0,
                deduplicated=deduplicated,
                fresh=not deduplicated,
                tail_bytes=REPLAY_BYTES_MAX,
                idle_seconds=idle,
            ):
                message = messages.event(event)
                ended = message.HasField("end")
                yield cua.StartProcessResponse(event=message)
        finally:
            if request.kill_on_disconnect and not ended:
                control.signal_group(observe(self._runtime, row.seq), signal.SIGKILL)

    async def ConnectProcess(
        self, request: cua.ConnectProcessRequest, context: Context
    ) -> AsyncIterator[cua.ConnectProcessResponse]:
        admit_reader(self._runtime, context)
        observed = await self._select(request.process)
        offset = request.replay_from_offset if request.HasField("replay_from_offset") else None
        async for event in follow(
            self._runtime,
            observed.row,
            offset,
            deduplicated=False,
            tail_bytes=request.replay_bytes,
            idle_seconds=idle_seconds(request.keepalive_interval),
        ):
            yield cua.ConnectProcessResponse(event=messages.event(event))

    async def ListProcesses(self, request: cua.ListProcessesRequest, context: Context) -> cua.ListProcessesResponse:
        def collect() -> list[cua.ProcessInfo]:
            return [
                messages.process_info(seen, *self._kept(seen), self._runtime.notices.listeners(seen.row.seq))
                for seen in self._runtime.commands.all()
                if (request.include_exited or not seen.state.final) and seen.row.tag.startswith(request.tag_prefix)
            ]

        return cua.ListProcessesResponse(processes=await self._runtime.run(collect))

    async def SendInput(self, request: cua.SendInputRequest, context: Context) -> cua.SendInputResponse:
        caller = await admit_changer(self._runtime, context)
        data = stdin_of(request.input)
        observed = await self._select(request.process)
        applied = await self._inputs.write(caller, observed, data, Numbered(request.writer_id, request.sequence))
        return cua.SendInputResponse(applied_sequence=applied.sequence, duplicate=applied.duplicate)

    async def StreamInput(
        self, request: AsyncIterator[cua.StreamInputRequest], context: Context
    ) -> cua.StreamInputResponse:
        caller = await admit_changer(self._runtime, context)
        selector: cua.ProcessSelector | None = None
        written = 0
        async for message in request:
            kind = message.WhichOneof("message")
            if kind == "process":
                if selector is not None:
                    raise invalid("a second process selector in one StreamInput")
                selector = message.process
                await self._select(selector)
            elif selector is None:
                raise invalid("the process selector must come first")
            elif kind == "input":
                data = stdin_of(message.input)
                await self._inputs.write(caller, await self._select(selector), data, Numbered("", 0))
                written += len(data)
        if selector is None:
            raise invalid("the process selector must come first")
        return cua.StreamInputResponse(bytes_written=written)

    async def SignalProcess(self, request: cua.SignalProcessRequest, context: Context) -> cua.SignalProcessResponse:
        caller = await admit_changer(self._runtime, context)
        if request.signal == cua.SIGNAL_UNSPECIFIED or request.signal not in cua.Signal.values():
            raise invalid("signal is required, one of cua.env.v1.Signal")
        observed = await self._select(request.process)
        await self._runtime.run(
            control.send_signal,
            self._runtime.gate,
            caller,
            observed,
            int(request.signal),
            group=request.process_group,
        )
        return cua.SignalProcessResponse()

    async def CloseStdin(self, request: cua.CloseStdinRequest, context: Context) -> cua.CloseStdinResponse:
        caller = await admit_changer(self._runtime, context)
        observed = await self._select(request.process)
        self._inputs.close(caller, observed)
        return cua.CloseStdinResponse()

    async def ResizePty(self, request: cua.ResizePtyRequest, context: Context) -> cua.ResizePtyResponse:
        raise unsupported("pty", "this daemon serves no terminals")

    async def GetExecRecord(self, request: cua.GetExecRecordRequest, context: Context) -> cua.GetExecRecordResponse:
        if not request.request_id:
            raise invalid("request_id is required")
        row = self._runtime.ledger.by_request(request.request_id)
        response = cua.GetExecRecordResponse(epoch=self._runtime.gate.floor.epoch)
        if row is None:
            return response

        def read() -> cua.ExecRecord:
            seen = self._runtime.commands.observe(row)
            tail = output.tail(self._output_of(seen), TAIL_BYTES)
            return messages.exec_record(seen, seen.end.output_bytes if seen.end else self._kept(seen)[1], tail)

        response.record.CopyFrom(await self._runtime.run(read))
        return response

    async def AdvanceEpoch(self, request: cua.AdvanceEpochRequest, context: Context) -> cua.AdvanceEpochResponse:
        caller = caller_of(context, request.epoch)
        advanced = await self._runtime.run(self._runtime.epochs.advance, caller.floor)
        return cua.AdvanceEpochResponse(epoch=advanced.floor.epoch, killed=advanced.killed)

    async def _select(self, selector: cua.ProcessSelector) -> Observed:
        if not selector.tag and not selector.pid:
            raise invalid("process selector (pid or tag) is required")
        return await self._runtime.run(self._runtime.commands.find, tag=selector.tag, pid=selector.pid)

    def _output_of(self, seen: Observed) -> str:
        return os.path.join(self._runtime.commands.folder(seen.row.seq), layout.OUTPUT)

    def _kept(self, seen: Observed) -> tuple[int, int]:
        return output.kept_range(self._output_of(seen))


def read_config(request: cua.StartProcessRequest) -> CommandConfig:
    """Raise Refused for what no process can be made of."""
    config = request.config
    if not config.command:
        raise invalid("config.command is required")
    if len(request.request_id.encode()) > REQUEST_ID_BYTES_MAX:
        raise invalid(f"request_id has at most {REQUEST_ID_BYTES_MAX} bytes")
    if config.user and not is_user(config.user):
        raise invalid("config.user: there is no such user")
    texts = [config.command, *config.args, config.cwd, config.user, *config.env.keys(), *config.env.values()]
    if any("\0" in text for text in texts):
        raise invalid("config: a NUL byte can't be passed to a process")
    if any(not name or "=" in name for name in config.env):
        raise invalid("config.env: a name must not be empty or hold '='")
    timeout_ns = nanoseconds_of(config.timeout) or None  # 0 is none, as if it were not set
    if timeout_ns is not None and timeout_ns < 0:
        raise invalid("config.timeout must not be negative")
    return CommandConfig(
        config.command,
        tuple(config.args),
        dict(config.env),
        config.cwd,
        config.user,
        timeout_ns,
        request.stdin,
        request.scrollback_bytes,
    )


def stdin_of(message: cua.ProcessInput) -> bytes:
    kind = message.WhichOneof("input")
    if kind == "pty":
        raise unsupported("pty", "this daemon serves no terminals: send stdin")
    if kind is None:
        raise invalid("input is required")
    return message.stdin


def is_user(name: str) -> bool:
    """A name, or a user id in digits, as `_spawn` takes it."""
    try:
        return bool(pwd.getpwuid(int(name)) if name.isascii() and name.isdigit() else pwd.getpwnam(name))
    except (LookupError, ValueError, OverflowError):
        return False


def nanoseconds_of(duration: Duration) -> int:
    """0 if unset. Not through the library, which raises for what is outside its range."""
    return duration.seconds * 1_000_000_000 + duration.nanos


def idle_seconds(keepalive_interval: Duration) -> float:
    """0: no keepalives."""
    wanted = nanoseconds_of(keepalive_interval) / 1e9
    return max(wanted, KEEPALIVE_SECONDS_MIN) if wanted > 0 else 0.0

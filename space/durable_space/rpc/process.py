"""cua.env.v1.ProcessService."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator

from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.cua.env.v1.process_pb2_grpc import ProcessServiceServicer
from durable_space import control, layout, output
from durable_space.commands import TAIL_BYTES, Observed
from durable_space.follow import follow, observe, start
from durable_space.gate import Caller
from durable_space.refusal import invalid, unsupported
from durable_space.rows import CommandConfig
from durable_space.rpc import messages
from durable_space.rpc.caller import read_caller, text_metadata
from durable_space.rpc.guard import Context
from durable_space.runtime import Runtime


class ProcessService(ProcessServiceServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._applied: dict[tuple[int, str], int] = {}  # (command, writer) -> newest sequence of SendInput

    async def StartProcess(
        self, request: cua.StartProcessRequest, context: Context
    ) -> AsyncIterator[cua.StartProcessResponse]:
        caller = read_caller(text_metadata(context.invocation_metadata()), request.epoch)
        if request.HasField("pty"):
            raise unsupported("pty", "this daemon serves no terminals: start the command without pty")
        config = read_config(request)
        request_id = request.request_id or f"anonymous-{secrets.token_hex(16)}"
        await self._runtime.admit(caller)
        row, deduplicated = await start(self._runtime, caller, request_id, request.tag, config)
        idle = seconds_of(request.keepalive_interval)
        ended = False
        try:
            # A known command replays its newest output, as the real daemon does; Attach reads from any offset.
            async for event in follow(
                self._runtime,
                row,
                None if deduplicated else 0,
                deduplicated=deduplicated,
                tail_bytes=TAIL_BYTES,
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
        self._runtime.gate.check_reading(read_caller(text_metadata(context.invocation_metadata())))
        observed = await self._select(request.process)
        offset = request.replay_from_offset if request.HasField("replay_from_offset") else None
        async for event in follow(
            self._runtime,
            observed.row,
            offset,
            deduplicated=False,
            tail_bytes=request.replay_bytes,
            idle_seconds=seconds_of(request.keepalive_interval),
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
        caller = await self._changer(context)
        if request.input.WhichOneof("input") != "stdin":
            raise unsupported("pty", "this daemon serves no terminals: send stdin")
        observed = await self._select(request.process)
        key = (observed.row.seq, request.writer_id)
        if request.sequence and request.sequence <= self._applied.get(key, 0):
            return cua.SendInputResponse(applied_sequence=self._applied[key], duplicate=True)
        runtime = self._runtime
        await runtime.run_long(
            control.write_stdin, runtime.commands, runtime.gate, caller, observed, request.input.stdin
        )
        if request.sequence:
            self._applied[key] = request.sequence
        return cua.SendInputResponse(applied_sequence=request.sequence)

    async def StreamInput(
        self, request: AsyncIterator[cua.StreamInputRequest], context: Context
    ) -> cua.StreamInputResponse:
        raise unsupported("stream_input", "StreamInput is not served: use SendInput")

    async def SignalProcess(self, request: cua.SignalProcessRequest, context: Context) -> cua.SignalProcessResponse:
        caller = await self._changer(context)
        if request.signal == cua.SIGNAL_UNSPECIFIED:
            raise invalid("signal is required")
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
        caller = await self._changer(context)
        observed = await self._select(request.process)
        runtime = self._runtime
        await runtime.run_long(control.close_stdin, runtime.commands, runtime.gate, caller, observed)
        return cua.CloseStdinResponse()

    async def ResizePty(self, request: cua.ResizePtyRequest, context: Context) -> cua.ResizePtyResponse:
        raise unsupported("pty", "this daemon serves no terminals")

    async def GetExecRecord(self, request: cua.GetExecRecordRequest, context: Context) -> cua.GetExecRecordResponse:
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
        caller = read_caller(text_metadata(context.invocation_metadata()), request.epoch)
        advanced = await self._runtime.run(self._runtime.epochs.advance, caller.floor)
        return cua.AdvanceEpochResponse(epoch=advanced.floor.epoch, killed=advanced.killed)

    async def _select(self, selector: cua.ProcessSelector) -> Observed:
        if not selector.tag and not selector.pid:
            raise invalid("process selector (pid or tag) is required")
        return await self._runtime.run(self._runtime.commands.find, tag=selector.tag, pid=selector.pid)

    async def _changer(self, context: Context) -> Caller:
        caller = read_caller(text_metadata(context.invocation_metadata()))
        await self._runtime.admit(caller)
        return caller

    def _output_of(self, seen: Observed) -> str:
        return os.path.join(self._runtime.commands.folder(seen.row.seq), layout.OUTPUT)

    def _kept(self, seen: Observed) -> tuple[int, int]:
        return output.kept_range(self._output_of(seen))


def read_config(request: cua.StartProcessRequest) -> CommandConfig:
    """Raise Refused for what no process can be made of."""
    config = request.config
    if not config.command:
        raise invalid("config.command is required")
    texts = [config.command, *config.args, config.cwd, config.user, *config.env.keys(), *config.env.values()]
    if any("\0" in text for text in texts):
        raise invalid("config: a NUL byte can't be passed to a process")
    if any(not name or "=" in name for name in config.env):
        raise invalid("config.env: a name must not be empty or hold '='")
    timeout_ns = config.timeout.ToNanoseconds() if config.HasField("timeout") else None
    if timeout_ns is not None and timeout_ns <= 0:
        raise invalid("config.timeout must be positive")
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


def seconds_of(duration: object) -> float:
    """0 if unset."""
    return float(getattr(duration, "seconds", 0)) + float(getattr(duration, "nanos", 0)) / 1e9

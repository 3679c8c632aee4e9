"""Values of the core as messages."""

from __future__ import annotations

import re
import signal

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.cua.env.v1.common_pb2 import KeepAlive
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_space.commands import Ending, Observed
from durable_space.follow import Event, Idle, Start
from durable_space.output import Piece
from durable_space.rows import CommandConfig
from durable_space.states import State

_STATES = {
    State.RESERVED: durable.COMMAND_STATE_RESERVED,
    State.RUNNING: durable.COMMAND_STATE_RUNNING,
    State.EXITED: durable.COMMAND_STATE_EXITED,
    State.NEVER_STARTED: durable.COMMAND_STATE_NEVER_STARTED,
    State.LOST: durable.COMMAND_STATE_LOST,
    State.KILLED: durable.COMMAND_STATE_KILLED,
}
# What the real protocol can say: a killed command is EXITED by SIGKILL, and of a never started one it knows nothing safe.
_EXEC_STATES = {
    State.RESERVED: cua.EXEC_STATE_RUNNING,
    State.RUNNING: cua.EXEC_STATE_RUNNING,
    State.EXITED: cua.EXEC_STATE_EXITED,
    State.NEVER_STARTED: cua.EXEC_STATE_LOST,
    State.LOST: cua.EXEC_STATE_LOST,
    State.KILLED: cua.EXEC_STATE_EXITED,
}
_SIGNALS = frozenset(cua.Signal.values())
_OWN_ID = re.compile(r"anonymous-[0-9a-f]{32}")  # of a request that named none: the client is told none


def timestamp(ns: int) -> Timestamp:
    return Timestamp(seconds=ns // 1_000_000_000, nanos=ns % 1_000_000_000)


def started_at(observed: Observed) -> Timestamp:
    return timestamp(observed.started.at_ns if observed.started else observed.row.created_ns)


def pid(observed: Observed) -> int:
    return observed.started.pid if observed.started else 0


def end(ending: Ending) -> cua.ProcessEnd:
    message = cua.ProcessEnd(timed_out=ending.timed_out, error=ending.error, lost=ending.lost)
    if ending.at_ns:
        message.ended_at.CopyFrom(timestamp(ending.at_ns))
    if ending.code is not None:
        message.exit_code = ending.code
    if ending.signal:
        message.signal_number = ending.signal
        message.signal_name = signal_name(ending.signal)
        if ending.signal in _SIGNALS:
            message.signal = cua.Signal.ValueType(ending.signal)
    return message


def signal_name(number: int) -> str:
    """Empty for one without a name (real-time signals)."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return ""


def data(piece: Piece) -> cua.ProcessData:
    if piece.stderr:
        return cua.ProcessData(offset=piece.offset, stderr=piece.data)
    return cua.ProcessData(offset=piece.offset, stdout=piece.data)


def event(value: Event) -> cua.ProcessEvent:
    match value:
        case Start():
            row = value.observed.row
            return cua.ProcessEvent(
                start=cua.ProcessStart(
                    pid=pid(value.observed),
                    tag=row.tag,
                    started_at=started_at(value.observed),
                    scrollback_start_offset=value.first_offset,
                    output_end_offset=value.end_offset,
                    deduplicated=value.deduplicated,
                    request_id="" if _OWN_ID.fullmatch(row.request_id) else row.request_id,
                )
            )
        case Piece():
            return cua.ProcessEvent(data=data(value))
        case Idle():
            return cua.ProcessEvent(keepalive=KeepAlive())
        case _:
            return cua.ProcessEvent(end=end(value))


def process_config(config: CommandConfig) -> cua.ProcessConfig:
    message = cua.ProcessConfig(
        command=config.command, args=config.args, env=config.env, cwd=config.cwd, user=config.user
    )
    if config.timeout_ns is not None:
        message.timeout.CopyFrom(Duration(seconds=config.timeout_ns // 10**9, nanos=config.timeout_ns % 10**9))
    return message


def process_info(observed: Observed, first: int, last: int, clients: int) -> cua.ProcessInfo:
    message = cua.ProcessInfo(
        pid=pid(observed),
        tag=observed.row.tag,
        config=process_config(observed.row.config),
        state=cua.PROCESS_STATE_EXITED if observed.state.final else cua.PROCESS_STATE_RUNNING,
        started_at=started_at(observed),
        scrollback_start_offset=first,
        output_end_offset=last,
        attached_clients=clients,
    )
    if observed.end is not None:
        message.end.CopyFrom(end(observed.end))
    return message


def exec_record(observed: Observed, output_bytes: int, tail: list[Piece]) -> cua.ExecRecord:
    message = cua.ExecRecord(
        request_id=observed.row.request_id,
        state=_EXEC_STATES[observed.state],
        epoch=observed.row.owner.epoch,
        pid=pid(observed),
        started_at=started_at(observed),
        output_bytes=output_bytes,
        tail=[data(piece) for piece in tail],
    )
    if observed.end is not None:
        message.end.CopyFrom(end(observed.end))
        message.output_sha256 = observed.end.output_sha256
    return message


def command_record(observed: Observed, first: int, last: int) -> durable.CommandRecord:
    row = observed.row
    message = durable.CommandRecord(
        request_id=row.request_id,
        epoch=row.owner.epoch,
        state=_STATES[observed.state],
        command_hash=row.config.hash,
        boot_id=row.boot_id,
        killed_by=row.killed_by,
        pid=pid(observed),
        started_at=started_at(observed),
        output_bytes=last,
        output_first=first,
    )
    if observed.end is not None and observed.state in (State.EXITED, State.KILLED):
        message.end.CopyFrom(end(observed.end))
    return message

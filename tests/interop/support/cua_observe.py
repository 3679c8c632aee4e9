"""What a call gave, as plain data in which nothing is left that must differ between two daemons."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from durable_protocol.cua.env.v1.common_pb2 import ErrorReason
from durable_space.testing import error_info

# Values that are this moment's, this daemon's or prose: only whether they are there counts.
MOMENTS = frozenset({"started_at", "ended_at", "modified_at", "sampled_at", "expires_at", "boot_time", "uptime"})
GAUGES = re.compile(r"^(cpu_|memory_|disk_|network_)")
ZERO_AT_TIMES = frozenset({"cpu_percent", "load_average_1m", "managed_process_count"})  # and then not in the message
PROSE = frozenset({"error", "limitation", "detail"})

Observation = dict[str, Any]


class Observer:
    """Per daemon: its workspace becomes $W, the home folder above that $H, a process id the call that first showed it."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._home = os.path.dirname(workspace)
        self._pids: dict[int, str] = {}
        self.call = ""  # the name of the call that is looked at

    def know(self, pid: int, name: str) -> None:
        self._pids[pid] = f"of {name!r}"

    def value(self, call: Callable[[], Any]) -> Observation:
        """Of a call with one answer, or a stream that is no process's (its messages, in order)."""
        try:
            answer = call()
            if isinstance(answer, Message):
                return {"ok": self.message(answer)}
            return {"ok": [self.message(message) for message in answer]}
        except grpc.RpcError as error:
            return {"error": self.error(error)}

    def stream(self, call: Callable[[], Iterable[Any]], *, first: Iterable[Any] = ()) -> Observation:
        """Of a process: its start, each stream's bytes, its end; and whether offsets fit together."""
        seen: Observation = {}
        place: int | None = None
        try:
            for message in (*first, *_events(call())):
                kind = message.WhichOneof("event")
                if kind == "keepalive":
                    seen["keepalive"] = True
                elif kind == "data":
                    stream = message.data.WhichOneof("output")
                    data = getattr(message.data, stream)
                    seen[stream] = seen.get(stream, "") + data.decode("latin-1")
                    seen.setdefault("first_offset", message.data.offset)
                    if place is not None and message.data.offset != place:
                        seen["gap"] = True
                    place = message.data.offset + len(data)
                else:
                    seen[kind] = self.message(getattr(message, kind))
                    if kind == "start":
                        # How much of the output is there at that moment is a race between command and call.
                        seen[kind].pop("output_end_offset", None)
        except grpc.RpcError as error:
            seen["error"] = self.error(error)
        return seen

    def message(self, message: Message) -> Any:
        return self._plain(MessageToDict(message, preserving_proto_field_name=True))

    def error(self, error: grpc.RpcError) -> Observation:
        info = error_info(error)
        code: Any = error.code()
        return {
            "code": code.name,
            "reason": ErrorReason.Name(info.reason) if info.reason in ErrorReason.values() else str(info.reason),
            "feature": info.feature,
            "details": bool(info.message),
            "metadata": self._plain(dict(info.metadata)),
        }

    def _plain(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: self._plain(inner, key) for key, inner in sorted(value.items()) if key not in ZERO_AT_TIMES}
        if isinstance(value, list):
            return [self._plain(inner, name) for inner in value]
        if name in MOMENTS or name in PROSE or GAUGES.match(name):
            return "set"
        if name == "pid":
            return self._pids.setdefault(int(value), f"of {self.call!r}")
        if isinstance(value, str):
            return value.replace(self._workspace, "$W").replace(self._home, "$H")
        return value


def differences(theirs: Any, ours: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path of the field, theirs, ours), each leaf by itself; None: absent."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            yield from differences(theirs.get(key), ours.get(key), f"{at}.{key}" if at else str(key))
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (left, right) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(left, right, f"{at}[{number}]")
    elif theirs != ours:
        yield at, theirs, ours


def _events(stream: Iterable[Any]) -> Iterator[Any]:
    for message in stream:
        yield message.event

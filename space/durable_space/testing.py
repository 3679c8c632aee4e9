"""A daemon as a real process, for tests of it and of what stands on it: start, kill, start again, call.

Free of pytest. Every process that is signalled was started here.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage

from durable_base.errors import UsageError
from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.cua.env.v1.common_pb2 import ErrorInfo, ErrorReason
from durable_protocol.cua.env.v1.filesystem_pb2_grpc import FilesystemServiceStub
from durable_protocol.cua.env.v1.process_pb2_grpc import ProcessServiceStub
from durable_protocol.cua.env.v1.system_pb2_grpc import SystemServiceStub
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_protocol.durable.space.v1 import workspace_pb2
from durable_protocol.durable.space.v1.files_pb2_grpc import FileServiceStub
from durable_protocol.durable.space.v1.space_pb2_grpc import LedgerServiceStub, SpaceServiceStub
from durable_protocol.durable.space.v1.workspace_pb2_grpc import WorkspaceServiceStub
from durable_space._record import Record, read
from durable_space.ending import cgroup, pidns
from durable_space.layout import record_file

T = TypeVar("T")
START_SECONDS = 20.0
CALL_SECONDS = 30.0


def until(condition: Callable[[], T], seconds: float = 10.0, what: str = "") -> T:
    """The first true value. AssertionError at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        time.sleep(0.005)


@functools.cache
def kill_mechanisms() -> tuple[str, ...]:
    """Those that work here; the first does everywhere."""
    found = ["subreaper"]
    if cgroup.find_root() is not None:
        found.append("cgroup2")
    with suppress(UsageError):
        pidns.find_flags()
        found.append("pidns")
    return tuple(found)


@dataclass(frozen=True)
class Client:
    """Stubs and the metadata of one caller, blocking. Close the channel when done (`LocalDaemon.stop` does)."""

    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, stub in (
            ("system", SystemServiceStub),
            ("processes", ProcessServiceStub),
            ("filesystem", FilesystemServiceStub),
            ("space", SpaceServiceStub),
            ("ledger", LedgerServiceStub),
            ("files", FileServiceStub),
            ("workspace", WorkspaceServiceStub),
        ):
            object.__setattr__(self, name, stub(self.channel))

    system: Any = field(init=False)
    processes: Any = field(init=False)
    filesystem: Any = field(init=False)
    space: Any = field(init=False)
    ledger: Any = field(init=False)
    files: Any = field(init=False)
    workspace: Any = field(init=False)

    def as_driver(self, epoch: int, incarnation: str = "", **more: str) -> Client:
        """The same connection for another caller; `more` are metadata, `_` for `-`."""
        pairs = {"durable-epoch": str(epoch)} | ({"durable-incarnation": incarnation} if incarnation else {})
        pairs |= {name.replace("_", "-"): value for name, value in more.items()}
        kept = [(key, value) for key, value in self.metadata if key not in pairs and not key.startswith("durable-")]
        return Client(self.channel, (*kept, *pairs.items()))

    def call(self, method: Callable[..., T], request: object) -> T:
        return method(request, metadata=self.metadata, timeout=CALL_SECONDS)

    def advance(self, epoch: int, incarnation: str = "", adopt: Sequence[str] = ()) -> durable.AdvanceEpochResponse:
        caller = self.as_driver(epoch, incarnation)
        request = durable.AdvanceEpochRequest(epoch=epoch, incarnation=incarnation, adopt=adopt)
        response: durable.AdvanceEpochResponse = caller.call(self.space.AdvanceEpoch, request)
        return response

    def start(
        self, request_id: str, command: str | Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "",
        user: str = "", timeout: float | None = None, stdin: bool = False, keep_bytes: int = 0, tag: str | None = None,
    ) -> Iterator[cua.ProcessEvent]:  # fmt: skip
        """A str goes to /bin/sh. The first event is awaited: the command runs, or could not be started."""
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        config = cua.ProcessConfig(command=words[0], args=words[1:], env=env or {}, cwd=cwd, user=user)
        if timeout is not None:
            config.timeout.FromNanoseconds(int(timeout * 1e9))
        epoch = int(dict(self.metadata).get("durable-epoch", 0))
        request = cua.StartProcessRequest(
            config=config, tag=request_id if tag is None else tag, stdin=stdin, request_id=request_id, epoch=epoch,
            scrollback_bytes=keep_bytes,
        )  # fmt: skip
        return _events(self.call(self.processes.StartProcess, request))

    def attach(self, tag: str, offset: int = 0) -> Iterator[cua.ProcessEvent]:
        request = cua.ConnectProcessRequest(process=cua.ProcessSelector(tag=tag), replay_from_offset=offset)
        return _events(self.call(self.processes.ConnectProcess, request))

    def run(self, request_id: str, command: str | Sequence[str], **options: Any) -> Outcome:
        return collect(self.start(request_id, command, **options))

    def lookup(self, key: str) -> list[durable.CommandRecord]:
        return list(self.call(self.ledger.Lookup, durable.LookupRequest(key=key)).records)

    def state(self, key: str) -> str:
        """Of the newest record, in lower case; empty if there is none."""
        records = self.lookup(key)
        return durable.CommandState.Name(records[0].state).removeprefix("COMMAND_STATE_").lower() if records else ""

    def scan(self, **options: Any) -> dict[bytes, workspace_pb2.PathEntry]:
        table: dict[bytes, workspace_pb2.PathEntry] = {}
        for message in self.call(self.workspace.Scan, workspace_pb2.ScanRequest(**options)):
            table.update({entry.path: entry for entry in message.table.entries})
        return table

    def read_blobs(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        blobs: dict[bytes, bytes] = {}
        for piece in self.call(self.workspace.ReadBlobs, workspace_pb2.ReadBlobsRequest(sha256=hashes)):
            blobs[piece.sha256] = blobs.get(piece.sha256, b"") + piece.data
        return blobs

    def apply(
        self,
        put: Sequence[workspace_pb2.PathEntry] = (),
        remove: Sequence[bytes] = (),
        blobs: Mapping[bytes, bytes] | None = None,
        have: Sequence[bytes] = (),
    ) -> workspace_pb2.ApplyResponse:
        def messages() -> Iterator[workspace_pb2.ApplyRequest]:
            yield workspace_pb2.ApplyRequest(plan=workspace_pb2.ApplyPlan(put=put, remove=remove, have=have))
            for sha256, data in (blobs or {}).items():
                pieces = [data[start : start + (256 << 10)] for start in range(0, len(data), 256 << 10)] or [b""]
                for number, piece in enumerate(pieces):
                    last = number == len(pieces) - 1
                    yield workspace_pb2.ApplyRequest(
                        piece=workspace_pb2.BlobPiece(sha256=sha256, data=piece, last=last)
                    )

        response: workspace_pb2.ApplyResponse = self.call(self.workspace.Apply, messages())
        return response


@dataclass(frozen=True)
class Outcome:
    start: cua.ProcessStart
    stdout: bytes
    stderr: bytes
    end: cua.ProcessEnd


def collect(events: Iterator[cua.ProcessEvent]) -> Outcome:
    """To the end. AssertionError: the stream ended without one, or an offset is not where the last piece ended."""
    start, end, place = None, None, None
    streams: dict[str, bytes] = {"stdout": b"", "stderr": b""}
    for event in events:
        kind = event.WhichOneof("event")
        if kind == "start":
            start = event.start
        elif kind == "data":
            assert place is None or event.data.offset == place, "a gap in the output"
            stream = event.data.WhichOneof("output") or ""
            data: bytes = getattr(event.data, stream)
            streams[stream] += data
            place = event.data.offset + len(data)
        elif kind == "end":
            assert end is None, "two ends"
            end = event.end
    assert start is not None, "the stream ended without a start"
    assert end is not None, "the stream ended without an end"
    return Outcome(start, streams["stdout"], streams["stderr"], end)


def _events(stream: Any) -> Iterator[cua.ProcessEvent]:
    """Errors of the call are raised here and not at the first use, since the first event is awaited."""
    first = next(stream).event

    def rest() -> Iterator[cua.ProcessEvent]:
        yield first
        for message in stream:
            yield message.event

    return rest()


def error_info(error: grpc.RpcError) -> ErrorInfo:
    """The details that came with a refusal; empty if none did."""
    info = ErrorInfo()
    metadata: Any = error.trailing_metadata()  # of grpc.Call, which every error of a call is
    for name, raw in metadata or ():
        if name == "grpc-status-details-bin":
            for number, value in _fields(raw):
                if number == 3:
                    AnyMessage.FromString(value).Unpack(info)
    return info


@dataclass(frozen=True)
class Refusal:
    code: str  # name of the gRPC status
    condition: str
    reason: str  # of ErrorInfo, without its prefix
    metadata: dict[str, str]
    message: str


def refusal(call: Callable[[], object]) -> Refusal:
    """What `call` is refused with; a stream is read to its end. AssertionError: it was not refused."""
    try:
        answer = call()
        if isinstance(answer, Iterator):
            for _ in answer:
                pass
    except grpc.RpcError as error:
        info = error_info(error)
        code: Any = error.code()
        return Refusal(
            code.name,
            info.metadata.get("condition", ""),
            ErrorReason.Name(info.reason).removeprefix("ERROR_REASON_"),
            dict(info.metadata),
            info.message,
        )
    raise AssertionError(f"not refused: {answer}")


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Length-delimited fields of a message whose others are varints (google.rpc.Status)."""
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = raw[place]
            place += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while place < len(raw):
        tag = varint()
        if tag & 7 == 0:
            varint()
        else:
            size = varint()
            yield tag >> 3, raw[place : place + size]
            place += size


class LocalDaemon:
    """One data folder and workspace, and the daemon that serves them, on a Unix socket in a short folder of its own."""

    def __init__(
        self, folder: Path, *options: str, environment: Mapping[str, str] | None = None, token: str = ""
    ) -> None:
        """`options` are added to the command line; `token` is what its clients send. Nothing is started yet."""
        self._token = token
        self.data = folder / "data"
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.log = folder / "daemon.log"
        self.options = list(options)
        self._environment = dict(environment or {})
        self._run = Path(tempfile.mkdtemp(prefix="ds-"))
        self.socket = self._run / "s"
        self.addresses: list[str] = []
        self.announced: dict[str, Any] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self._channels: list[grpc.Channel] = []

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "durable_space", "--data", str(self.data), "--workspace", str(self.workspace)]
        return [*words, "--listen", f"unix:{self.socket}", *self.options]

    def start(self, *, crash: str = "") -> Client:
        """Start it and wait until it answers. `crash` arms points (`durable_base.crash`) in it, its zygote and shims."""
        self.spawn(crash=crash)
        self.wait_ready()
        return self.client()

    def spawn(self, *, crash: str = "") -> None:
        assert self.process is None, "it runs"
        environment = {**os.environ, **self._environment}
        environment.pop("DURABLE_CRASH", None)
        if crash:
            environment["DURABLE_CRASH"] = crash
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )

    def wait_ready(self) -> None:
        """AssertionError with its log: it ended instead."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait(START_SECONDS)
            self.process = None
            raise AssertionError(f"the daemon ended with {status}: {self.log.read_text()[-4000:]}")
        self.announced = json.loads(line)
        self.addresses = self.announced["addresses"]

    def client(self, *, token: str = "", address: str = "") -> Client:
        target = address or f"unix:{self.socket}"
        options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.insecure_channel(target, options=options)
        self._channels.append(channel)
        token = token or self._token
        return Client(channel, (("authorization", f"Bearer {token}"),) if token else ())

    @property
    def zygote(self) -> int:
        return int((self.data / "zygote").read_text().split()[0])

    def shim(self, seq: int) -> int:
        """The process id of a command's shim."""
        claim = self.record(seq).claim
        assert claim is not None, "no shim has claimed it"
        return int(claim["shim"])

    def record(self, seq: int) -> Record:
        """What a command's shim has written down."""
        return read(record_file(str(self.data), seq))[0]

    def kill(self) -> None:
        """SIGKILL to the daemon alone; its zygote ends by itself, shims and commands go on."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM; give its exit status."""
        return self._end(signal.SIGTERM)

    def wait_dead(self, seconds: float = 20.0) -> int:
        """For a daemon that is expected to die by itself (a crash point)."""
        assert self.process is not None
        status = self.process.wait(seconds)
        self._forget_process()
        return status

    def restart(self, *, crash: str = "") -> Client:
        if self.process is not None:
            self.kill()
        return self.start(crash=crash)

    def stop(self) -> None:
        """End everything that was started here: the daemon, and through it every command."""
        try:
            if self.process is None or self.process.poll() is not None:
                self._forget_process()
                self.start()
            client = self.client()
            floor = client.call(client.space.GetInfo, durable.GetInfoRequest()).floor
            client.advance(floor.epoch + 1)
        finally:
            if self.process is not None:
                self._end(signal.SIGTERM)
            for channel in self._channels:
                channel.close()
            shutil.rmtree(self._run, ignore_errors=True)

    def _end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(START_SECONDS)
        self._forget_process()
        return status

    def _forget_process(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

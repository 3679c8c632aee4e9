"""A driver process with its log and Space, and the servers on loopback that it may talk to: a model, a coordinator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from durable_protocol.durable.session.v1 import coordinator_pb2 as pb
from durable_protocol.durable.session.v1.coordinator_pb2_grpc import (
    SessionCoordinatorServicer,
    add_SessionCoordinatorServicer_to_server,
)

TOKEN = "0123456789abcdef"
SCRIPT = """
steps:
  - say: I look first.
    calls: [{bash: {command: "echo start >> notes.txt; cat a.txt"}}]
  - calls:
      - edit: {path: a.txt, old_text: one, new_text: two}
      - write: {path: b.txt, content: "made\\n"}
  - expect: Wrote 5 bytes
    calls: [{read: {path: a.txt}}]
  - answer: All done.
"""


def until(true: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.02)


@dataclass
class Drive:
    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    report_path: Path

    def wait(self, seconds: float = 60.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end: {self.out.read_text()} {self.err.read_text()}") from None

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.lines() if line.startswith("{")]
        return [event for event in found if name is None or event["event"] == name]

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.report_path.read_bytes().split(b"\n")[0])
        return report

    def answer(self) -> Any:
        second = self.report_path.read_bytes().split(b"\n")[1]
        return json.loads(second) if second else None


@contextmanager
def serve_space(folder: Path, workspace: Path, data: Path, socket: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "durable_space", "--data", data, "--workspace", workspace]
    command += ["--listen", f"unix:{socket}", "--name", "box", "--token-file", folder / "token"]
    said = folder / f"{data.name}.log"
    with said.open("wb") as log:
        space = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: b'"listening"' in said.read_bytes() or space.poll() is not None)
        assert space.poll() is None, said.read_text()
        yield
    finally:
        space.terminate()
        space.wait(20)


@dataclass
class Place:
    """One session's folders and its Space."""

    folder: Path
    workspace: Path
    socket: Path
    drives: list[Drive] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "state" / "log.db"

    until = staticmethod(until)

    def script(self, text: str) -> None:
        (self.folder / "script.yaml").write_text(text)

    def held(self) -> str:
        """A script with one command, which ends once `release` was called."""
        gate = self.folder / "gate"
        command = f"echo begun >> notes.txt; while [ ! -e {gate} ]; do sleep 0.05; done; echo ended >> notes.txt"
        return f"steps:\n- calls: [{{bash: {{command: '{command}'}}}}]\n- answer: All done.\n"

    def release(self) -> None:
        (self.folder / "gate").touch()

    @contextmanager
    def other_space(self) -> Iterator[tuple[str, Path]]:
        """A Space made anew: its address, and its empty workspace."""
        workspace, data, socket = self.folder / "work2", self.folder / "data2", self.folder / "s2.sock"
        workspace.mkdir()
        data.mkdir()
        with serve_space(self.folder, workspace, data, socket):
            yield f"unix:{socket}", workspace

    def environment(self, epoch: int, **changes: str | None) -> dict[str, str]:
        environ: dict[str, str | None] = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("CUA_", "DURABLE_"))},
            "CUA_SESSION": "fix-bug",
            "CUA_SESSION_EPOCH": str(epoch),
            "CUA_SESSION_STATE_DIR": str(self.folder / "state"),
            "CUA_SESSION_HEARTBEAT_SECS": "0.1",
            "CUA_SESSION_SPACE": "box",
            "CUA_SESSION_SPACE_ADDR": f"unix:{self.socket}",
            "CUA_SESSION_SPACE_TOKEN": TOKEN,
            "DURABLE_SESSION_UID": "uid-1",
            "DURABLE_INPUT": str(self.folder / "input.txt"),
            "DURABLE_AGENT": str(self.folder / "agent.yaml"),
            "DURABLE_SCRIPT": str(self.folder / "script.yaml"),
            **changes,
        }
        return {name: value for name, value in environ.items() if value is not None}

    def start(self, epoch: int, *command: str, **changes: str | None) -> Drive:
        number = len(self.drives)
        report = self.folder / f"report-{number}"
        out, err = self.folder / f"out-{number}", self.folder / f"err-{number}"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command or (sys.executable, "-m", "durable_driver"),
                env=self.environment(epoch, DURABLE_REPORT=str(report), **changes),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        self.drives.append(Drive(process, out, err, report))
        return self.drives[-1]


@pytest.fixture
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="driver-"))  # short: a socket's path has 107 bytes
    place = Place(folder, folder / "work", folder / "s.sock")
    for name in ("state", "work", "data"):
        (folder / name).mkdir()
    (folder / "work" / "a.txt").write_text("one\n")
    (folder / "input.txt").write_text("Do it.")
    (folder / "agent.yaml").write_text("model: {provider: scripted}\ninstructions: Be careful.\n")
    (folder / "token").write_text(TOKEN + "\n")
    place.script(SCRIPT)
    try:
        with serve_space(folder, folder / "work", folder / "data", place.socket):
            try:
                yield place
            finally:
                for drive in place.drives:
                    drive.process.kill()
                    drive.process.wait()
                place.release()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Reply:
    status: int = 200
    deltas: Sequence[dict[str, Any]] = ()
    finish: str | None = "stop"
    usage: tuple[int, int] = (11, 5)
    error: dict[str, Any] = field(default_factory=dict)
    page: str = ""  # a web page, in place of an answer
    cut: bool = False  # break the connection off in the middle of the stream


@dataclass
class ModelServer:
    url: str
    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)

    def answers(self, **fields: Any) -> None:
        """Queue one reply; the fields are those of `Reply`."""
        self.replies.append(Reply(**fields))


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.requests.append(asked)
            served.authorizations.append(self.headers.get("Authorization", ""))
            reply = served.replies.pop(0)
            if reply.status != 200:
                body = json.dumps({"error": reply.error}).encode()
                self.send_response(reply.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_response(200)
            if reply.page:
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(reply.page)))
                self.end_headers()
                self.wfile.write(reply.page.encode())
                return
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for delta in reply.deltas:
                self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, asked)
            if reply.cut:
                self.close_connection = True
                return
            self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}]}, asked)
            tokens = {"prompt_tokens": reply.usage[0], "completion_tokens": reply.usage[1]}
            self._event({"choices": [], "usage": {**tokens, "total_tokens": sum(reply.usage)}}, asked)
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _event(self, fields: dict[str, Any], asked: dict[str, Any]) -> None:
            event = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": asked["model"], **fields}
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = ModelServer(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join(10)


class Coordinator(SessionCoordinatorServicer):
    def __init__(self) -> None:
        self.got: list[pb.ReportRequest] = []
        self.tokens: list[str] = []
        self.standby = False
        self.end_after: int | None = None  # requests, then the stream ends (OK)
        self.stop: str | None = None

    async def Report(
        self, requests: AsyncIterator[pb.ReportRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ReportResponse]:
        self.tokens.append(dict(context.invocation_metadata() or ()).get("authorization", ""))
        if self.standby:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "standby")
        seen = 0
        if self.stop:
            yield pb.ReportResponse(stop=pb.Stop(reason=self.stop))
        async for request in requests:
            self.got.append(request)
            seen += 1
            if self.stop:
                yield pb.ReportResponse(stop=pb.Stop(reason=self.stop))
            if seen == self.end_after:
                return

    def kinds(self) -> list[str]:
        return [str(request.WhichOneof("event")) for request in self.got]


Serve = Callable[..., Awaitable[int]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve a coordinator on loopback; gives the port."""
    servers: list[grpc.aio.Server] = []

    async def serve(coordinator: Coordinator, credentials: grpc.ServerCredentials | None = None) -> int:
        server = grpc.aio.server()
        servers.append(server)
        add_SessionCoordinatorServicer_to_server(coordinator, server)
        at = "127.0.0.1:0"
        port = server.add_secure_port(at, credentials) if credentials else server.add_insecure_port(at)
        await server.start()
        return port

    yield serve
    for server in servers:
        await server.stop(None)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()

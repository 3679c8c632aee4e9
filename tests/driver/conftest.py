"""A small OpenAI-compatible server on loopback: it answers with what a test queues, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Reply:
    status: int = 200
    deltas: Sequence[dict[str, Any]] = ()
    finish: str | None = "stop"
    usage: tuple[int, int] = (11, 5)
    error: dict[str, Any] = field(default_factory=dict)
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

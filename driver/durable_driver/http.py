"""/livez and /metrics on one port, served by threads: they answer, with 503, also while the event loop is blocked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from durable_base.errors import UsageError
from durable_driver.metrics import DriverMetrics

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class LifeServer:
    """Serves from construction on. UsageError if the address can't be had."""

    def __init__(
        self, address: tuple[str, int], age_seconds: Callable[[], float], stall_seconds: float, metrics: DriverMetrics
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/livez":
                    age = age_seconds()
                    alive = age <= stall_seconds
                    text = f"{'ok' if alive else 'frozen'}: the newest heartbeat is {age:.1f} s old\n"
                    self._answer(200 if alive else 503, "text/plain", text.encode())
                elif path == "/metrics":
                    self._answer(200, _METRICS_TYPE, metrics.expose())
                else:
                    self._answer(404, "text/plain", b"there is /livez and /metrics\n")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not news."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

        try:
            self._server = Server(address, Handler)
        except OSError as error:
            host, port = address
            raise UsageError(
                f"DURABLE_HTTP is '{host}:{port}': can't listen there ({error.strerror}); use another address or port 0"
            ) from error
        threading.Thread(target=self._server.serve_forever, name="life", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

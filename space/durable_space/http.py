"""/livez, /readyz and /metrics on their own port, for whoever watches the pod. No request body, no other path."""

from __future__ import annotations

import asyncio
import time

from durable_base.errors import UsageError
from durable_space.config import Address
from durable_space.rpc.guard import Guard
from durable_space.runtime import Runtime
from durable_space.states import State

_REQUEST_SECONDS = 5.0


async def serve_http(address: Address, runtime: Runtime, guard: Guard) -> asyncio.Server:
    """UsageError: the address can't be bound."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n")
                parts = request.split()
                path = parts[1].decode("ascii", "replace") if len(parts) > 1 else ""
                status, body = await respond(path, runtime, guard)
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    try:
        if address.path:
            return await asyncio.start_unix_server(answer, address.path)
        return await asyncio.start_server(answer, address.host, address.port)
    except OSError as error:
        raise UsageError(f"--http {address.text}: {error.strerror}: name a free address") from None


async def respond(path: str, runtime: Runtime, guard: Guard) -> tuple[str, bytes]:
    """`/livez`: the loop turns. `/readyz`: the disk and the zygote answer too."""
    if path == "/livez":
        return "200 OK", b"ok\n"
    if path == "/readyz":
        ready = runtime.zygote.pid != 0 and await runtime.run(runtime.config.data.exists)
        return ("200 OK", b"ok\n") if ready else ("503 Service Unavailable", b"not ready\n")
    if path == "/metrics":
        return "200 OK", (await runtime.run(metrics, runtime, guard)).encode()
    return "404 Not Found", b"paths: /livez /readyz /metrics\n"


def metrics(runtime: Runtime, guard: Guard) -> str:
    """Prometheus text. Blocking."""
    counts = dict.fromkeys(State, 0)
    for seen in runtime.commands.all():
        counts[seen.state] += 1
    lines = [
        "# HELP durable_space_commands Ledger rows by state.",
        "# TYPE durable_space_commands gauge",
        *(f'durable_space_commands{{state="{state.value}"}} {count}' for state, count in counts.items()),
        "# HELP durable_space_epoch The floor's epoch.",
        "# TYPE durable_space_epoch gauge",
        f"durable_space_epoch {runtime.gate.floor.epoch}",
        "# HELP durable_space_ledger_seq Rows ever written.",
        "# TYPE durable_space_ledger_seq counter",
        f"durable_space_ledger_seq {runtime.ledger.seq}",
        "# HELP durable_space_uptime_seconds Since this daemon started.",
        "# TYPE durable_space_uptime_seconds gauge",
        f"durable_space_uptime_seconds {(time.time_ns() - runtime.started_ns) / 1e9:.3f}",
        "# HELP durable_space_refusals_total Calls refused, by condition.",
        "# TYPE durable_space_refusals_total counter",
        *(f'durable_space_refusals_total{{condition="{name}"}} {count}' for name, count in guard.refusals.items()),
    ]
    return "\n".join(lines) + "\n"

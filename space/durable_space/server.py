"""The daemon's life: check, open, listen, serve until told to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection

from durable_base.errors import UsageError
from durable_base.files import write_atomic
from durable_protocol.cua.env.v1.filesystem_pb2_grpc import add_FilesystemServiceServicer_to_server
from durable_protocol.cua.env.v1.process_pb2_grpc import add_ProcessServiceServicer_to_server
from durable_protocol.cua.env.v1.system_pb2_grpc import add_SystemServiceServicer_to_server
from durable_protocol.durable.space.v1.files_pb2_grpc import add_FileServiceServicer_to_server
from durable_protocol.durable.space.v1.space_pb2_grpc import (
    add_LedgerServiceServicer_to_server,
    add_SpaceServiceServicer_to_server,
)
from durable_protocol.durable.space.v1.workspace_pb2_grpc import add_WorkspaceServiceServicer_to_server
from durable_space import config as configuration
from durable_space import control, logs, unix_sockets
from durable_space.commands import Observed
from durable_space.config import Address, Config
from durable_space.http import serve_http
from durable_space.rpc.files import FileService
from durable_space.rpc.filesystem import FilesystemService
from durable_space.rpc.guard import Guard
from durable_space.rpc.process import ProcessService
from durable_space.rpc.space import LedgerService, SpaceService
from durable_space.rpc.system import SystemService
from durable_space.rpc.workspace import WorkspaceService
from durable_space.runtime import Runtime
from durable_space.tls import read_credentials
from durable_space.unix_sockets import Placed

log = logging.getLogger("durable.space")

SERVICES = (
    *(f"cua.env.v1.{name}Service" for name in ("System", "Process", "Filesystem")),
    *(f"durable.space.v1.{name}Service" for name in ("Space", "Ledger", "File", "Workspace")),
)
DRAIN_SECONDS = 1.0  # for calls under way when the daemon stops


class Token:
    """The bearer token, read anew when its file changes: it rotates without a restart (at most a second later)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._value = configuration.read_token(path) if path else None
        self._looked_at = time.monotonic()

    def __call__(self) -> str | None:
        now = time.monotonic()
        if self._path is not None and now - self._looked_at > 1.0:
            self._looked_at = now
            try:
                self._value = configuration.read_token(self._path)
            except UsageError as error:
                # The old one stays valid: a file that is just being replaced must not lock everybody out.
                log.warning("token.unreadable", extra={"fields": {"error": type(error).__name__}})
        return self._value


async def serve(config: Config) -> None:
    """Until SIGTERM or SIGINT. UsageError before anything listens."""
    configuration.check(config)
    logs.set_up()
    token = Token(config.token_file)
    credentials = read_credentials(config)
    for flag, address in (*(("--listen", one) for one in config.listen), ("--http", config.http)):
        if address is not None and address.path:
            unix_sockets.make_way(address.path, flag)
    runtime = Runtime(config)
    unproven = await runtime.open()
    if unproven is not None:
        log.error("epoch.unproven", extra={"fields": {"condition": unproven.metadata.get("condition", "")}})
    guard = Guard(token, runtime.instance_id, runtime.boot_id)
    server = make_server(runtime, guard)
    placed: list[Placed] = []
    try:
        addresses = [bind(server, address, credentials, placed) for address in config.listen]
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        await server.start()
        http = await serve_http(config.http, runtime, guard) if config.http else None
        announce(config.data, runtime, addresses)
        await stopping.wait()
        log.info("stopping", extra={"fields": {"stop_commands": config.stop_commands}})
        if config.stop_commands:
            await stop_commands(runtime)
        if http is not None:
            http.close()
        await server.stop(DRAIN_SECONDS)
        await runtime.close()
    finally:
        for one in placed:
            one.remove()


def make_server(runtime: Runtime, guard: Guard) -> grpc.aio.Server:
    limits = runtime.config.limits
    server = grpc.aio.server(
        interceptors=[guard],
        options=[
            ("grpc.max_receive_message_length", limits.message_bytes),
            ("grpc.max_send_message_length", limits.message_bytes),
            ("grpc.max_concurrent_streams", limits.streams),
            ("grpc.so_reuseport", 0),  # a second daemon on one port must fail, not share
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ],
    )
    add_SystemServiceServicer_to_server(SystemService(runtime), server)
    add_ProcessServiceServicer_to_server(ProcessService(runtime), server)
    add_FilesystemServiceServicer_to_server(FilesystemService(runtime), server)
    add_SpaceServiceServicer_to_server(SpaceService(runtime), server)
    add_LedgerServiceServicer_to_server(LedgerService(runtime), server)
    add_FileServiceServicer_to_server(FileService(runtime), server)
    add_WorkspaceServiceServicer_to_server(WorkspaceService(runtime), server)
    # For people with grpcurl; behind the guard like every call.
    reflection.enable_server_reflection([*SERVICES, reflection.SERVICE_NAME], server)
    return server


def bind(
    server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None, placed: list[Placed]
) -> str:
    """Give the address really bound; a Unix socket is added to `placed`. It needs no TLS: its folder's permissions say who
    may connect. UsageError: it can't be bound."""
    if address.path:
        unix_sockets.make_way(address.path, "--listen")
        name = unix_sockets.first_name(address.path)
        try:
            if server.add_insecure_port(f"unix:{name}"):
                placed.append(unix_sockets.put_in_place(name, address.path))
                return address.text
        except (RuntimeError, OSError):
            pass
        raise UsageError(
            f"--listen {address.text}: can't be bound: its folder must be there, and this user may write in it"
        )
    try:
        if credentials is None:
            port = server.add_insecure_port(address.text)
        else:
            port = server.add_secure_port(address.text, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise UsageError(
            f"--listen {address.text}: can't be bound: another process has it, the key pair does not fit, "
            "or this user may not: name a free one"
        )
    return Address(address.host, port, "").text


def announce(data: Path, runtime: Runtime, addresses: list[str]) -> None:
    """For whoever started the daemon: from now on it answers."""
    text = "".join(address + "\n" for address in addresses).encode()
    with suppress(FileNotFoundError):
        if (data / "address").read_bytes() == text:
            text = b""  # a restart finds no room on a disk that is full, and must work there
    if text:
        write_atomic(data / "address", text, sync=False)
    line = {
        "event": "listening",
        "pid": os.getpid(),
        "addresses": addresses,
        "instance": runtime.instance_id,
        "boot": runtime.boot_id,
        "kill_mechanism": runtime.ender.mechanism,
    }
    log.info("listening", extra={"fields": {"pid": os.getpid(), "instance": runtime.instance_id}})
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def stop_commands(runtime: Runtime) -> None:
    """Rule 10: the marks are synced first; then SIGTERM, a moment, and the end of everything."""
    await runtime.run(runtime.epochs.mark_stopping)

    def running() -> list[Observed]:
        return [seen for seen in runtime.commands.open() if seen.shim_alive]

    def terminate() -> None:
        for seen in running():
            control.signal_group(seen, signal.SIGTERM)

    await runtime.run(terminate)
    for _ in range(int(runtime.config.limits.stop_seconds / 0.02)):
        if not await runtime.run(running):
            break
        await asyncio.sleep(0.02)
    await runtime.run(runtime.epochs.end_open)

"""The real cua-spacesd and ours, side by side as processes, each with a token, a workspace and stubs of our own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from durable_protocol.cua.env.v1.filesystem_pb2_grpc import FilesystemServiceStub
from durable_protocol.cua.env.v1.process_pb2_grpc import ProcessServiceStub
from durable_protocol.cua.env.v1.system_pb2_grpc import SystemServiceStub
from durable_space.testing import LocalDaemon, until

PACKAGE = "cua==0.9.0"
TOKEN = "a-token-of-sufficient-length"
CALL_SECONDS = 20.0


def cua_package() -> Path:
    """The folder that holds the package `cua` with its daemon, its native library and the SDK; installed once.

    Into a folder of its own, so that neither its modules nor its protobufs meet ours.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "durable-sessions" / "interop"
    target = cache / PACKAGE.replace("==", "-")
    if not (target / "cua" / "__init__.py").exists():
        fresh = cache / f"{target.name}.{os.getpid()}"
        cache.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(fresh), PACKAGE]
        subprocess.run(words, check=True, timeout=240)
        with suppress(OSError):  # another test run was faster
            fresh.rename(target)
        shutil.rmtree(fresh, ignore_errors=True)
    return target


@dataclass
class Peer:
    """One daemon, and what the script remembers about it."""

    name: str
    address: str
    workspace: Path
    token: str = TOKEN
    channel: grpc.Channel = field(init=False)
    system: Any = field(init=False)
    processes: Any = field(init=False)
    filesystem: Any = field(init=False)

    def __post_init__(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20)]
        self.channel = grpc.insecure_channel(self.address, options=options)
        self.system = SystemServiceStub(self.channel)
        self.processes = ProcessServiceStub(self.channel)
        self.filesystem = FilesystemServiceStub(self.channel)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    def call(self, method: Any, request: Any) -> Any:
        return method(request, metadata=self.metadata, timeout=CALL_SECONDS)


@contextmanager
def real_daemon(folder: Path) -> Iterator[Peer]:
    """cua-spacesd on a free port; without a desktop, and told not to report usage."""
    binary = cua_package() / "cua" / "bin" / "cua-spacesd-linux-x86_64"
    binary.chmod(0o755)
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [
        str(binary),
        "serve",
        "--listen",
        f"127.0.0.1:{port}",
        "--token",
        TOKEN,
        "--data-dir",
        str(folder / "data"),
    ]
    words += ["--no-desktop", "--no-driver", "--no-mcp"]
    environment = {**os.environ, "DO_NOT_TRACK": "1", "HOME": str(folder)}
    with (folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, cwd=workspace, stdout=log, stderr=log)
    try:
        until(lambda: accepts(port) or process.poll() is not None, 20, "cua-spacesd listens")
        if process.poll() is not None:
            raise AssertionError((folder / "daemon.log").read_text()[-2000:])
        peer = Peer("cua-spacesd", f"127.0.0.1:{port}", workspace)
        yield peer
        peer.channel.close()
    finally:
        process.kill()
        process.wait()


@contextmanager
def our_daemon(folder: Path) -> Iterator[Peer]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(TOKEN)
    options = ("--listen", "127.0.0.1:0", "--token-file", str(folder / "token"))
    daemon = LocalDaemon(folder, *options, environment={"HOME": str(folder)}, token=TOKEN)
    daemon.start()
    try:
        peer = Peer("durable space", daemon.addresses[1], daemon.workspace)
        yield peer
        peer.channel.close()
    finally:
        daemon.stop()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

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


class RealDaemon:
    """cua-spacesd on a port of its own, killed and started again at will; without a desktop, and told not to report usage.

    `variables` are added to its environment, which commands inherit.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True)
        self.binary = cua_package() / "cua" / "bin" / "cua-spacesd-linux-x86_64"
        self.binary.chmod(0o755)
        self._environment = {**os.environ, "DO_NOT_TRACK": "1", "HOME": str(folder), **variables}
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        # Its commands inherit what it ignores, and whoever runs these tests (`nohup`, a job in the background) may ignore some.
        words = [
            str(shutil.which("env")),
            "--default-signal",
            str(self.binary),
            "serve",
            "--listen",
            self.address,
            "--token",
            TOKEN,
        ]
        words += ["--data-dir", str(self.folder / "data"), "--no-desktop", "--no-driver", "--no-mcp"]
        with (self.folder / "daemon.log").open("ab") as log:
            process = subprocess.Popen(words, env=self._environment, cwd=self.workspace, stdout=log, stderr=log)
        self._process = process
        until(lambda: accepts(self.port) or process.poll() is not None, 20, "cua-spacesd listens")
        if process.poll() is not None:
            raise AssertionError((self.folder / "daemon.log").read_text()[-2000:])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def real_daemon(folder: Path, **variables: str) -> Iterator[Peer]:
    daemon = RealDaemon(folder, **variables)
    try:
        daemon.start()
        peer = Peer("cua-spacesd", daemon.address, daemon.workspace)
        yield peer
        peer.channel.close()
    finally:
        daemon.kill()


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

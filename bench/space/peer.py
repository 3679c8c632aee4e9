"""The two daemons, as processes on loopback: ours, and the real cua-spacesd from the package index."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from durable_space.testing import Client, LocalDaemon, until

PACKAGE = "cua==0.9.0"
TOKEN = "a-token-of-sufficient-length"


def peer_binary() -> Path:
    """Installed once into the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "durable-sessions" / "interop"
    target = cache / PACKAGE.replace("==", "-")
    binary = target / "cua" / "bin" / "cua-spacesd-linux-x86_64"
    if not binary.exists():
        fresh = cache / f"{target.name}.{os.getpid()}"
        cache.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(fresh), PACKAGE]
        subprocess.run(words, check=True, timeout=240)
        with suppress(OSError):  # another run was faster
            fresh.rename(target)
        shutil.rmtree(fresh, ignore_errors=True)
    binary.chmod(0o755)
    return binary


@contextmanager
def real_daemon(folder: Path) -> Iterator[Client]:
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(peer_binary()), "serve", "--listen", f"127.0.0.1:{port}", "--token", TOKEN]
    words += ["--data-dir", str(folder / "data"), "--no-desktop", "--no-driver", "--no-mcp"]
    environment = {**os.environ, "DO_NOT_TRACK": "1", "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        until(lambda: _accepts(port) or process.poll() is not None, 20, "cua-spacesd listens")
        with _channel(f"127.0.0.1:{port}") as channel:
            yield Client(channel, (("authorization", f"Bearer {TOKEN}"),))
    finally:
        process.kill()
        process.wait()


@contextmanager
def our_daemon(folder: Path, *options: str) -> Iterator[tuple[LocalDaemon, Client]]:
    """With a token too, and on TCP: as the other one."""
    folder.mkdir(parents=True)
    (folder / "token").write_text(TOKEN)
    token_options = ("--listen", "127.0.0.1:0", "--token-file", str(folder / "token"))
    daemon = LocalDaemon(folder, *token_options, *options, token=TOKEN)
    daemon.start()
    try:
        with _channel(daemon.addresses[1]) as channel:
            yield daemon, Client(channel, (("authorization", f"Bearer {TOKEN}"),))
    finally:
        daemon.stop()


def _channel(address: str) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20)]
    return grpc.insecure_channel(address, options=options)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

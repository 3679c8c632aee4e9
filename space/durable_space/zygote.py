"""The daemon's side of the zygote: start it, ask it for shims, start another when it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import durable_base
from durable_base import crash
from durable_space import procfs
from durable_space._shim import is_private

log = logging.getLogger("durable.space")

_BOOTSTRAP = (
    "import sys; sys.path[:0] = sys.argv[6:]; from durable_space._zygote import serve; "
    "serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))"
)


class Zygote:
    """Of the event loop, but for `request` and `claimed`, which any thread may call.

    A request whose zygote died before a shim took it is asked again of the next one; two shims of one command are harmless,
    since only one gets the lock and claims.
    """

    def __init__(self, data: Path, cgroups: str, namespaces: int, failed: Callable[[int, int], None]) -> None:
        """`cgroups` is where each shim gets a group of its own, empty: none does; `namespaces` are flags of those that each
        command gets, 0: none does. `failed(seq, errno)` is called when no process could be made for a command."""
        self._data = data
        self._cgroups = cgroups
        self._namespaces = namespaces
        self._failed = failed
        self._lock = threading.Lock()  # of the next two
        self._pending: dict[int, bytes] = {}
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._life = -1  # readable when the zygote is dead: its shims hold the socket too, but not this
        self._closing = False
        self._started_at = 0.0

    def start(self) -> None:
        end_older(self._data)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._life, life = os.pipe()
        # Ours and the environment's: a zygote runs without site-packages, so where its two packages lie is told to it.
        homes = sorted({str(Path(str(package)).parent.parent) for package in (durable_base.__file__, __file__)})
        words = [str(theirs.fileno()), str(life), str(self._data), self._cgroups, str(self._namespaces), *homes]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _BOOTSTRAP, *words],
            pass_fds=[theirs.fileno(), life],
            env=zygote_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        os.close(life)
        self._started_at = time.monotonic()
        start = procfs.start_of(self._process.pid)
        (self._data / "zygote").write_text(f"{self._process.pid} {start}\n")
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._receive)
        loop.add_reader(self._life, self._restart)
        with self._lock:
            self._socket = ours
            pending = sorted(self._pending.items())
        for seq, packet in pending:
            self._send(seq, packet)

    def request(self, seq: int, packet: bytes) -> None:
        with self._lock:
            self._pending[seq] = packet
        self._send(seq, packet)

    def repeat(self, seq: int) -> None:
        """Ask again, if it is not known to have claimed: whoever took the request may have been killed."""
        packet = self._pending.get(seq)
        if packet is not None:
            self._send(seq, packet)

    def claimed(self, seq: int) -> None:
        """Seen to have claimed, or barred: never to be asked for again."""
        with self._lock:
            self._pending.pop(seq, None)

    def close(self) -> None:
        """Returns when zygote and waiting shims have gone."""
        self._closing = True
        self._drop_socket()
        if self._process is not None:
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def _send(self, seq: int, packet: bytes) -> None:
        with self._lock:
            if self._socket is None:
                return  # the next one is asked when it is up
            try:
                self._socket.send(packet)
            except BlockingIOError:
                # `repeat` sends it: whoever follows the command asks again until it is claimed.
                log.info("zygote.busy", extra={"fields": {"pending": len(self._pending)}})
            except OSError:
                pass  # it died; `_restart` follows

    def _receive(self) -> None:
        if self._socket is None:
            return
        try:
            packet = self._socket.recv(64)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._restart()
            return
        _, seq, number = packet.split()
        self.claimed(int(seq))
        self._failed(int(seq), int(number))

    def _restart(self) -> None:
        self._drop_socket()
        if self._closing or self._process is None:
            return
        self._process.kill()
        self._process.wait()
        log.warning("zygote.died", extra={"fields": {"status": self._process.returncode}})
        delay = 0.0 if time.monotonic() - self._started_at > 1.0 else 0.2
        asyncio.get_running_loop().call_later(delay, self._start_unless_closing)

    def _start_unless_closing(self) -> None:
        if not self._closing and self._socket is None:
            self.start()

    def _drop_socket(self) -> None:
        with self._lock:
            dropped, self._socket = self._socket, None
        loop = asyncio.get_running_loop()
        if dropped is not None:
            loop.remove_reader(dropped)
            dropped.close()
        if self._life >= 0:
            loop.remove_reader(self._life)
            os.close(self._life)
            self._life = -1


def end_older(data: Path) -> None:
    """Rule 9: a zygote that its daemon left behind may have requests in its queue. The floor bars them anyway."""
    try:
        pid, start = (data / "zygote").read_text().split()
    except (OSError, ValueError):
        return
    if procfs.send_signal(int(pid), int(start), signal.SIGKILL):
        deadline = time.monotonic() + 5
        while procfs.is_alive(int(pid), int(start)) and time.monotonic() < deadline:
            time.sleep(0.001)


def zygote_environment() -> dict[str, str]:
    """The daemon's own without its secrets, which thus appear in no process of the Space; and the armed crash points."""
    passed = (crash.VARIABLE, crash.LOG_VARIABLE)
    return {name: value for name, value in os.environ.items() if not is_private(name) or name in passed}

"""The zygote: a small process that forks shims ahead of need, since making one takes longer than most commands run.

A child of the daemon, `python -S -E`, standard library only, no threads. It keeps `SPARE` shims waiting, all on the socket
that requests come through, so a request reaches a ready shim without a hop. It opens nothing but that socket, so no lock
and no record can be inherited by a shim from here. When the daemon closes its end, the waiting shims and the zygote end;
shims that were taken live on.

In: one packet per command (`_shim`). Out: `E <seq> <errno>` if no process could be made for it: nothing was claimed.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import NoReturn

from durable_base.crash import crash_point
from durable_space._group import fork_into, make_group, remove_group
from durable_space._shim import PACKET_BYTES_MAX, Shim

SPARE = 4
QUIET_SECONDS = 0.02  # after a request: its command goes first, and its shim may be back by then (unless none is left)
RETRY_SECONDS = 0.1  # after a fork that failed
END_SECONDS = 2.0
IDLE_SECONDS = 5.0
COMMANDS_MAX = 1000  # of one shim: whatever it may gather, it does not gather for ever
_EVENT = struct.Struct("=ii")  # (process id, what)
_TAKEN, _BACK = 0, 1


class _Pool:
    def __init__(self, requests: socket.socket, life: int, data: str, cgroups: str, namespaces: int) -> None:
        self._requests = requests
        self._life = life
        self._data = data
        self._cgroups = cgroups
        self._namespaces = namespaces
        self._events, self._tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._waiting: set[int] = set()
        self._groups: dict[int, str] = {}  # of each shim
        self._due = 0.0  # when the next shim is to be made, if some lack

    def serve(self) -> None:
        """Until the daemon has gone."""
        poll = select.poll()
        for fd in (self._events, self._wake):
            poll.register(fd, select.POLLIN)
        poll.register(self._requests, 0)  # only its end: requests are for the shims
        while not any(fd == self._requests.fileno() for fd, _ in poll.poll(self._refill())):
            self._look()
        self._await_end()

    def _refill(self) -> int | None:
        """Make shims that lack and are due. Give the milliseconds until there is more to do."""
        while len(self._waiting) < SPARE:
            now = time.monotonic()
            if self._waiting and now < self._due:
                return int((self._due - now) * 1000) + 1
            failure = self._fork()
            if failure:
                self._due = now + RETRY_SECONDS
                if not self._waiting:
                    self._refuse(failure)
                return int(RETRY_SECONDS * 1000)
        return None

    def _fork(self) -> int:
        """An errno, 0: it was made."""
        crash_point("zygote.before_fork")
        group = ""
        try:
            group = make_group(self._cgroups) if self._cgroups else ""
            pid = fork_into(group)
        except OSError as error:
            remove_group(group)
            return error.errno or -1
        if pid == 0:
            for fd in (self._life, self._events, self._wake):
                os.close(fd)
            _be_shim(self._requests, self._tell, self._data, group, self._namespaces)
        self._waiting.add(pid)
        self._groups[pid] = group
        return 0

    def _refuse(self, failure: int) -> None:
        """Answer the requests that no shim is there for."""
        with suppress(BlockingIOError):
            while packet := self._requests.recv(PACKET_BYTES_MAX, socket.MSG_DONTWAIT):
                _refuse(self._requests, packet, failure)

    def _look(self) -> None:
        """Which shims were taken, are back, have ended."""
        with suppress(BlockingIOError):
            for pid, what in _EVENT.iter_unpack(os.read(self._events, _EVENT.size * 512)):
                (self._waiting.add if what == _BACK else self._waiting.discard)(pid)
            self._due = time.monotonic() + QUIET_SECONDS
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._waiting.discard(pid)
                remove_group(self._groups.pop(pid, ""))

    def _await_end(self) -> None:
        """Of the shims that nobody asked: then whoever waits for the zygote knows that none is left."""
        deadline = time.monotonic() + END_SECONDS
        while self._waiting and time.monotonic() < deadline:
            select.select([self._events, self._wake], [], [], 0.05)
            self._look()


def serve(requests: int, life: int, data: str, cgroups: str, namespaces: int) -> None:
    """`life` is a pipe's end that only the zygote holds open."""
    for fd in (requests, life):
        os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.collect()
    gc.freeze()
    _Pool(socket.socket(fileno=requests), life, data, cgroups, namespaces).serve()


class _IdleError(Exception):
    """No request came for a while, or nobody is left who would send one."""


def _be_shim(requests: socket.socket, events: int, data: str, group: str, namespaces: int) -> NoReturn:
    """Wait for requests, and be their commands' shim, one after the other."""

    def give_up(*_: object) -> None:
        raise _IdleError

    signal.signal(signal.SIGALRM, give_up)
    try:
        shim, failure = None, errno.EAGAIN
        try:
            shim = Shim(data, group, namespaces)
        except OSError as error:
            failure = error.errno or failure  # one request learns of it
        for _ in range(COMMANDS_MAX):
            packet = requests.recv(PACKET_BYTES_MAX)
            signal.setitimer(signal.ITIMER_REAL, 0)
            _tell(events, _TAKEN)
            if not packet:
                break
            if shim is None:
                _refuse(requests, packet, failure)
                break
            try:
                claimed = shim.claim(packet)
            except OSError as error:
                _refuse(requests, packet, error.errno or failure)
                claimed = False
            if claimed:
                shim.run()
                shim.make_ready()
            _tell(events, _BACK)
            # One that was never asked waits for ever; one that is back may be one too many.
            signal.setitimer(signal.ITIMER_REAL, IDLE_SECONDS)
    except _IdleError:
        pass
    except Exception as error:
        # No exit record: the ledger calls it lost, or never started if it did not come as far as its claim.
        os.write(2, f"shim: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(0)


def _tell(events: int, what: int) -> None:
    try:
        os.write(events, _EVENT.pack(os.getpid(), what))
    except BrokenPipeError:
        raise _IdleError from None  # the zygote has gone; the next one knows nothing of this shim


def _refuse(requests: socket.socket, packet: bytes, failure: int) -> None:
    with suppress(OSError):
        requests.send(b"E %d %d" % (json.loads(packet)["seq"], failure))


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))

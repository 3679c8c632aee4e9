"""Process 1 of a Space's pod: reap orphans, keep a daemon running, pass SIGTERM on.

It holds nothing and decides nothing, so there is nothing in it to crash. Commands whose daemon died run on meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

USAGE_STATUS = 2
BACKOFF_SECONDS_MAX = 5.0
STEADY_SECONDS = 10.0  # a daemon that lived as long as this is started again at once


def supervise(arguments: Sequence[str]) -> int:
    """Give the exit status: the daemon's, once it ended because of our signal or because its flags are wrong."""
    state = _State()

    def pass_on(number: int, _: object) -> None:
        state.stopping = True
        if state.pid:
            os.kill(state.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    backoff = 0.1
    while True:
        started = time.monotonic()
        state.pid = _start(arguments)
        if state.stopping:
            os.kill(state.pid, signal.SIGTERM)
        status = _reap_until(state.pid)
        state.pid = 0
        if state.stopping or status == USAGE_STATUS:
            return status
        print(f'{{"event": "daemon.died", "status": {status}}}', file=sys.stderr, flush=True)  # noqa: T201
        backoff = 0.1 if time.monotonic() - started > STEADY_SECONDS else min(backoff * 2, BACKOFF_SECONDS_MAX)
        _reap_for(backoff)


class _State:
    pid = 0
    stopping = False


def _start(arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "durable_space", *arguments]
    return os.posix_spawn(sys.executable, command, dict(os.environ))


def _reap_until(daemon: int) -> int:
    """Every orphan that ends meanwhile is reaped too: they become children of process 1."""
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return 1
        if pid == daemon:
            return os.waitstatus_to_exitcode(status)


def _reap_for(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.05)

"""The zygote: a small process that forks shims, since starting an interpreter for each command costs ten times as much.

A child of the daemon, `python -S -E`, standard library only, no threads. It opens nothing but its socket, so no lock and
no record can be inherited by a shim from here. It ends when the daemon's end of the socket closes; its shims live on.

In: one packet per command, its `seq` in digits. Out: `E <seq> <errno>` if the fork failed.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from durable_base.crash import crash_point
from durable_space._shim import Shim


def serve(fd: int, data: str) -> None:
    """Until the daemon has gone."""
    requests = socket.socket(fileno=fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.collect()
    gc.freeze()
    while packet := requests.recv(64):
        seq = int(packet)
        crash_point("zygote.before_fork")
        try:
            pid = os.fork()
        except OSError as error:
            requests.send(b"E %d %d" % (seq, error.errno or 0))
            continue
        if pid == 0:
            requests.close()
            _become_shim(data, seq)


def _become_shim(data: str, seq: int) -> None:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        Shim(data, seq).run()
        status = 0
    except Exception as error:
        # No exit record: the ledger calls it lost, or never started if it did not come as far as its claim.
        os.write(2, f"shim {seq}: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])

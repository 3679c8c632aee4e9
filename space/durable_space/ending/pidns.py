"""A PID namespace per command (`_pidns`), from the daemon's side: is there such a thing here, end one, see that it has ended.

Guarantee: the kernel lets the first process of a namespace become dead (a zombie, or gone) only once nothing else lives in
it. So its (process id, start time), which stand in the claim, are enough for a proof even where no shim is left to give it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from durable_base.errors import UsageError
from durable_space import _pidns, procfs

TRIAL_SECONDS = 20.0


def find_flags() -> int:
    """Those of the namespaces that can be made here; tried, not guessed. UsageError: what lacks."""
    lacks = ""
    for flags in (_pidns.PRIVILEGED,) if os.geteuid() == 0 else (_pidns.PRIVILEGED, _pidns.UNPRIVILEGED):
        lacks = _try(flags)
        if not lacks:
            return flags
    raise UsageError(
        f"--kill-mechanism pidns: {lacks}: it needs CAP_SYS_ADMIN (other users than root: or user namespaces) and a /proc "
        "of which nothing is masked: use cgroup2 or subreaper"
    )


def kill(init: int, start: int) -> None:
    """All in the namespace; one after the other, so that they are to be stopped before (rule 10)."""
    procfs.send_signal(init, start, signal.SIGKILL)


def has_ended(init: int, start: int) -> bool:
    """Nothing in the namespace lives. False also where that can't be seen."""
    try:
        with open(f"/proc/{init}/stat", encoding="utf-8", errors="replace") as file:
            found = procfs.parse_stat(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    return found.start != start or not found.alive


def end(init: int, start: int, deadline: float) -> bool:
    """Kill and wait. False: not proven by the deadline."""
    while not has_ended(init, start):
        if time.monotonic() > deadline:
            return False
        kill(init, start)
        time.sleep(0.001)
    return True


def _try(flags: int) -> str:
    """What lacks, empty: nothing. In a process of its own: the daemon has threads."""
    words = [sys.executable, "-m", _pidns.__name__, str(flags)]
    try:
        tried = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRIAL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial failed ({type(error).__name__})"
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""

"""Named crash points: where code makes something durable, a test can kill the process there.

`crash_point("ledger.intent_synced")` costs one attribute read when nothing is armed. `DURABLE_CRASH=name[:n][=action]`
(several, comma separated) arms it in a process: at the n-th pass (default 1) the action is done: `kill` (SIGKILL to
oneself, the default), `stop` (SIGSTOP) or `exit` (status 70, no cleanup). `DURABLE_CRASH_LOG=FILE` appends the name of each
point passed, so that a campaign can tell the points reached from those known.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

VARIABLE = "DURABLE_CRASH"
LOG_VARIABLE = "DURABLE_CRASH_LOG"
_ACTIONS = ("kill", "stop", "exit")


@dataclass
class _Armed:
    action: str
    left: int


def parse(text: str) -> dict[str, _Armed]:
    """Raise ValueError for an unknown action or a count that is no positive number."""
    armed = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = item.partition("=")
        name, _, count = name.partition(":")
        if (action or "kill") not in _ACTIONS:
            raise ValueError(f"{VARIABLE}={text}: action {action!r} is none of {', '.join(_ACTIONS)}")
        if count and not (count.isdigit() and int(count)):
            raise ValueError(f"{VARIABLE}={text}: {count!r} is no positive count")
        armed[name] = _Armed(action or "kill", int(count or 1))
    return armed


_armed: dict[str, _Armed] | None = parse(os.environ.get(VARIABLE, "")) or None
_log: str | None = os.environ.get(LOG_VARIABLE) or None
_active = _armed is not None or _log is not None


def crash_point(name: str) -> None:
    """Die here if a test asked for it. `name` is `<part>.<what has just become true>` and unique in the product."""
    if _active:
        _pass(name)


def arm(text: str) -> None:
    """Arm (or with an empty text disarm) points in this process, as the environment variable does at start."""
    global _armed, _active
    _armed = parse(text) or None
    _active = _armed is not None or _log is not None


def _pass(name: str) -> None:
    if _log:
        with open(_log, "a") as log:
            log.write(name + "\n")
    armed = (_armed or {}).get(name)
    if armed is None:
        return
    armed.left -= 1
    if armed.left:
        return
    if armed.action == "exit":
        os._exit(70)
    os.kill(os.getpid(), signal.SIGKILL if armed.action == "kill" else signal.SIGSTOP)

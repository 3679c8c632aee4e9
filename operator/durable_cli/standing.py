"""How a session stands, in a few words: what its status says, and whether anybody is there to keep it true."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from durable_local import history
from durable_local.layout import Home
from durable_local.unattended import answered


class State(enum.Enum):
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    SUSPENDING = "Suspending"
    RUNNING = "Running"
    UNATTENDED = "Unattended"  # its driver runs, and no `durable run` would follow it up
    STOPPED = "Stopped"  # not finished, and no process is left; its status still says what was true last


@dataclass(frozen=True, slots=True)
class Standing:
    state: State
    reason: str = ""  # why it failed, or what a running one waits for
    message: str = ""

    def __str__(self) -> str:
        return f"{self.state.value} ({self.reason})" if self.reason else self.state.value


def standing(home: Home, found: dict[str, Any]) -> Standing:
    """Of an object as `history.as_object` gives it. Looks at locks: a status outlives the processes that wrote it."""
    verdict = condition(found["status"], "Succeeded")
    if verdict.get("status") == "True":
        return Standing(State.SUCCEEDED)
    attended, drives = history.attended(home), history.driving(home)
    if verdict.get("status") == "False":
        if history.retry_asked(found):
            return Standing(State.RUNNING if attended else State.STOPPED, "to be tried again")
        return Standing(State.FAILED, verdict.get("reason", ""), verdict.get("message", ""))
    if not attended and not drives and answered(home):
        return Standing(State.STOPPED, "its driver has ended with an answer")
    if found["spec"].get("operatingMode") == "Suspended":
        return Standing(State.SUSPENDING if drives else State.SUSPENDED)
    if not attended:
        return Standing(State.UNATTENDED if drives else State.STOPPED)
    ready = condition(found["status"], "Ready")
    reason = ready.get("reason", "Pending")
    return Standing(State.RUNNING, "" if reason == "Driving" else reason, ready.get("message", ""))


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """{} if the status has none of that type (yet)."""
    return next((entry for entry in status.get("conditions", ()) if entry["type"] == kind), {})

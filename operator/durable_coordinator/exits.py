"""Judge how a drive ended: its reason, whether it counts, and what follows. The lower half of the table of part C.

An exit code alone proves little: shutdowns end in 0, freezes and limits both in 137. Every rule here takes the side that loses
less: a settled log makes a needless next drive end at once, a wrong "Succeeded" cannot be taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from durable_coordinator.facts import DriverEnd
from durable_coordinator.report import Report

EXIT_SETTLED = 0
EXIT_FENCED = 75
EXIT_PERMANENT = 78
EXIT_SIGKILL = 137
REASONS = frozenset(
    {
        "Completed", "NoReport", "PermanentFailure", "Fenced", "Crashed", "OOMKilled", "Stalled", "Killed", "Stopped", "Evicted",
        "Preempted", "NodeShutdown", "NodeLost", "EphemeralStorageExceeded", "InitFailed", "NeverStarted", "Vanished",
        "Deleted", "SpaceLost",
    }
)  # fmt: skip
SPACE_GONE = frozenset({"SpaceUnreachable", "SpaceChanged"})  # a driver's claim that its Space went away


class Effect(Enum):
    SUCCEED = "succeed"
    FAIL = "fail"
    NEXT = "next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """`reason` is `lastExit.reason`. `resets`: the row of ends without progress is over with this one. `floor`: the next epoch
    is above it. `detail` goes into messages."""

    reason: str
    effect: Effect
    counted: bool
    resets: bool = False
    floor: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What is known beside the end itself."""

    stopping: bool  # suspended, past its deadline or deleted: we asked, or were about to
    stall_seconds: int
    reset_after_seconds: int
    space_changed: bool  # by our own check the Space is gone, or another one, since the drive began (rule 22)


def judge_exit(end: DriverEnd, judging: Judging) -> Exit:
    """Pure and total. The order of the branches is the order of the rules' precedence."""
    report = end.report if end.report is not None and end.report.epoch == end.epoch else None
    if end.started and end.code == EXIT_SETTLED:
        return _judge_zero(end, report, judging)
    if end.started and end.code == EXIT_PERMANENT:
        return Exit(reason="PermanentFailure", effect=Effect.FAIL, counted=False, detail=_told(report))
    reason, counted = _why_again(end, report, judging)
    floor = report.floor.epoch if report is not None and end.code == EXIT_FENCED else 0
    resets = _progressed(end, report, judging)
    return Exit(
        reason=reason,
        effect=Effect.NEXT,
        counted=counted,
        resets=resets,
        floor=floor,
        detail=_told(report) or end.detail,
    )


def _judge_zero(end: DriverEnd, report: Report | None, judging: Judging) -> Exit:
    """Rule 4: exit 0 is not proof. A report that says anything but `settled`, or another epoch's, is proof of nothing either."""
    settled = report is not None and report.outcome == "settled"
    disturbed = end.deleted or end.disruption is not None or end.failed_phase or end.evicted
    if settled or (end.report is None and not disturbed):
        return Exit(reason="Completed", effect=Effect.SUCCEED, counted=False, detail=_told(report))
    resets = _progressed(end, report, judging)
    return Exit(reason="NoReport", effect=Effect.NEXT, counted=False, resets=resets, detail=_told(report))


def _why_again(end: DriverEnd, report: Report | None, judging: Judging) -> tuple[str, bool]:
    """The reason of an end that is neither success nor permanent, and whether it counts."""
    if judging.stopping:
        return "Stopped", False
    if end.started and end.code == EXIT_FENCED:
        return "Fenced", False
    if end.disruption is not None:
        return end.disruption.value, False
    if end.evicted:  # rule 23: its own storage limit, before the signal that the limit ended it with
        return "EphemeralStorageExceeded", True
    if not end.started:
        return ("InitFailed", True) if end.init_failed and not end.deleted else ("NeverStarted", False)
    if end.oom_killed:
        return "OOMKilled", True
    if end.deleted:
        return "Deleted", False
    if end.code is None:
        return "Vanished", False
    if end.code == EXIT_SIGKILL and end.report is None:
        silent = end.beat_age_seconds is not None and end.beat_age_seconds > judging.stall_seconds
        return ("Stalled" if silent else "Killed"), True
    if report is not None and report.reason in SPACE_GONE and judging.space_changed:
        return "SpaceLost", False
    return "Crashed", True


def _progressed(end: DriverEnd, report: Report | None, judging: Judging) -> bool:
    """Rule 11: it committed an entry and its container ran long enough. Waiting for an image is not running."""
    committed = end.committed or (report is not None and report.entries > 0)
    if not committed or end.started_at is None or end.finished_at is None:
        return False
    return end.finished_at - end.started_at >= judging.reset_after_seconds


def _told(report: Report | None) -> str:
    if report is None or not (report.reason or report.message):
        return ""
    return ": ".join(part for part in (report.reason, report.message) if part)

"""Judge the driver of the current epoch: the upper half of the table of part C. One state for every set of facts.

It answers one question: is this epoch's drive going on, not yet begun, or over? What follows is the session's plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from durable_coordinator.exits import Effect, Exit, Judging, judge_exit
from durable_coordinator.facts import DriverEnd, DriverFacts, SessionFacts
from durable_coordinator.placement import (
    CONFLICT_SECONDS,
    DELETED_SOON_SECONDS,
    GRACE_MARGIN_SECONDS,
    VOLUME_SECONDS,
    Place,
    judge_space,
)
from durable_coordinator.status import ConditionStatus, seconds


class Drive(Enum):
    NOT_ISSUED = "no epoch yet"
    TO_START = "issued, not started"
    COMING = "exists, not running"
    DRIVING = "running"
    STOPPING = "running, being deleted"
    OUT_OF_REACH = "running, node unreachable"
    CONFLICT = "its name is taken"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveState:
    """`exit` is set once, when the end of this epoch is first judged; None with OVER: it stands in `lastExit` already.

    `delete`: a driver that must go (`at_once`: without grace). `ready`, `reason`, `message` are what Ready shows meanwhile.
    """

    drive: Drive
    reason: str = "Starting"
    message: str = ""
    ready: ConditionStatus = "False"
    exit: Exit | None = None
    end: DriverEnd | None = None
    delete: DriverFacts | None = None
    at_once: bool = False
    blocked: bool = False  # somebody has to act, though `reason` alone does not say so
    requeue: float | None = None


def recorded_uid(facts: SessionFacts) -> str:
    """The uid of the current epoch's driver, "" until it was seen."""
    record = facts.status.driver
    return record.uid if record is not None and record.epoch == facts.status.epoch else ""


def judge_driver(facts: SessionFacts, *, stopping: bool) -> DriveState:
    """Pure and total. `stopping`: the session is suspended or past its deadline, so an end is what was asked for."""
    epoch = facts.status.epoch
    driver = facts.driver
    if epoch == 0:
        return DriveState(drive=Drive.NOT_ISSUED)
    if facts.status.last_exit is not None and facts.status.last_exit.epoch >= epoch:
        # Protocol rule 32: what is recorded is not judged again. A driver that outlived its judgement still has to go.
        return DriveState(
            drive=Drive.OVER, delete=_still_there(facts, driver), at_once=driver is not None and driver.frozen
        )
    recorded = recorded_uid(facts)
    remembered = _remembered(facts, recorded)
    if driver is None:
        if remembered is not None:
            return _ended(facts, remembered, stopping)
        if not recorded and facts.epoch_seen < epoch:
            return DriveState(drive=Drive.TO_START)
        # Recorded, or its name was seen though its uid never got written: it existed, so it is not made a second time.
        return _over(_unseen(facts, stopping))
    if driver.owner_uid != facts.uid:
        return _not_ours(driver)
    if recorded and driver.uid != recorded:
        # Rule 1: a second start under one epoch, by a coordinator that slept. The recorded one is gone; this one has to go.
        how = judge_exit(remembered, _judging(facts, remembered, stopping)) if remembered else _unseen(facts, stopping)
        return _over(how, end=remembered, delete=driver)
    end = driver.end if driver.end is not None else remembered
    if end is not None:
        return replace(_ended(facts, end, stopping), delete=None if driver.over else _undeleted(driver))
    return _judge_running(facts, driver, stopping) if driver.running else _judge_pending(facts, driver, stopping)


def _remembered(facts: SessionFacts, recorded: str) -> DriverEnd | None:
    """The end known for the current epoch: of the recorded uid, or of any uid if none was recorded yet (rules 1 and 9)."""
    if recorded:
        return facts.remembered.get(recorded)
    return next((end for end in facts.remembered.values() if end.epoch == facts.status.epoch), None)


def _unseen(facts: SessionFacts, stopping: bool) -> Exit:
    """The driver is gone and nobody saw how. The log is the truth: at most one empty drive is lost."""
    if stopping:
        return Exit(reason="Stopped", effect=Effect.NEXT, counted=False)
    if facts.driver_node_was_unreachable:
        return Exit(reason="NodeLost", effect=Effect.NEXT, counted=False)
    return Exit(reason="Deleted" if facts.driver_was_deleting else "Vanished", effect=Effect.NEXT, counted=False)


def _not_ours(driver: DriverFacts) -> DriveState:
    if driver.managed:
        message = f"{driver.name} belongs to a former session of this name; waiting for it to go"
        return DriveState(
            drive=Drive.CONFLICT,
            reason="NameConflict",
            message=message,
            delete=_undeleted(driver),
            requeue=DELETED_SOON_SECONDS,
        )
    message = f"{driver.name} exists and is not ours: delete or rename it"
    return DriveState(drive=Drive.CONFLICT, reason="NameConflict", message=message, requeue=CONFLICT_SECONDS)


def _judge_running(facts: SessionFacts, driver: DriverFacts, stopping: bool) -> DriveState:
    if driver.node_unreachable_seconds is not None:
        left = facts.spec.unreachable_seconds - driver.node_unreachable_seconds
        if left <= 0:
            return _over(_uncounted("NodeLost", stopping), delete=_undeleted(driver))
        message = f"node {driver.node} is unreachable"
        return DriveState(
            drive=Drive.OUT_OF_REACH, ready="Unknown", reason="NodeUnreachable", message=message, requeue=left
        )
    if driver.frozen:
        reason = "Stopped" if stopping else "Stalled"
        how = Exit(reason=reason, effect=Effect.NEXT, counted=not stopping, resets=_healed(facts))
        return _over(how, delete=driver, at_once=True)
    if driver.deletion is not None:
        return _judge_stopping(facts, driver, stopping)
    return DriveState(drive=Drive.DRIVING, ready="True", reason="Driving")


def _judge_stopping(facts: SessionFacts, driver: DriverFacts, stopping: bool) -> DriveState:
    """Rule 3: a driver that is ending within its grace is waited for; it may be about to commit what it did."""
    assert driver.deletion is not None
    past = driver.deletion.at + driver.deletion.grace_seconds + GRACE_MARGIN_SECONDS
    if driver.deletion.grace_seconds <= 0 or facts.now >= past:
        reason = driver.disruption.value if driver.disruption is not None else "Deleted"
        return _over(_uncounted(reason, stopping))
    return DriveState(
        drive=Drive.STOPPING,
        reason="Stopping",
        message=f"{driver.name} ends within its grace period",
        requeue=past - facts.now,
    )


def _judge_pending(facts: SessionFacts, driver: DriverFacts, stopping: bool) -> DriveState:
    if driver.deletion is not None:
        return _over(_uncounted("Deleted", stopping))
    if (
        driver.node_unreachable_seconds is not None
        and driver.node_unreachable_seconds >= facts.spec.unreachable_seconds
    ):
        return _over(_uncounted("NodeLost", stopping), delete=driver)
    if driver.outdated:
        # An edit of spec.driver, or another image of the installation, is how a person repairs a driver that can't start: no
        # wait, and a new row of attempts.
        return _over(
            replace(_uncounted("NeverStarted", stopping), resets=True, detail="spec.driver or the image changed"),
            delete=driver,
        )
    hold = DriveState(
        drive=Drive.COMING, reason=driver.waiting_reason, message=driver.waiting_message, blocked=driver.stuck
    )
    if not driver.bound:
        # Nobody tells when a claim is bound, or why it is not: its events are not ours to watch.
        return replace(hold, requeue=VOLUME_SECONDS) if driver.waiting_reason == "VolumeUnavailable" else hold
    left = (driver.bound_at if driver.bound_at is not None else driver.created_at) + facts.spec.driver.start_seconds
    if facts.now >= left:
        how = replace(_uncounted("NeverStarted", stopping), detail=driver.waiting_reason)
        return _over(how, delete=driver)
    return replace(hold, requeue=left - facts.now)


def _ended(facts: SessionFacts, end: DriverEnd, stopping: bool) -> DriveState:
    return _over(judge_exit(end, _judging(facts, end, stopping)), end=end)


def _judging(facts: SessionFacts, end: DriverEnd, stopping: bool) -> Judging:
    return Judging(
        stopping=stopping,
        stall_seconds=facts.spec.stall_seconds,
        reset_after_seconds=facts.spec.retry.reset_after_seconds,
        space_changed=space_changed(facts, _began(facts, end)),
    )


def _began(facts: SessionFacts, end: DriverEnd) -> float | None:
    record = facts.status.driver
    if end.started_at is not None or record is None or record.started_at is None:
        return end.started_at
    return seconds(record.started_at)


def space_changed(facts: SessionFacts, since: float | None) -> bool:
    """Rule 22: by our own reads the Space is gone, or no longer the one that the drive began with."""
    record = facts.status.space
    if facts.space is None or record is None:
        return True
    if facts.space.uid != record.uid or facts.space.status.generation != record.generation:
        return True
    if since is not None and facts.space_changed_at > since:
        return True
    return judge_space(facts.space).place in (Place.GONE, Place.DELETING, Place.UNPLACED)


def _healed(facts: SessionFacts) -> bool:
    """Rule 11 for a driver that is replaced while its process still stands there frozen."""
    driver = facts.driver
    if driver is None or not driver.committed or driver.started_at is None:
        return False
    return facts.now - driver.started_at >= facts.spec.retry.reset_after_seconds


def _uncounted(reason: str, stopping: bool) -> Exit:
    return Exit(reason="Stopped" if stopping else reason, effect=Effect.NEXT, counted=False)


def _over(
    how: Exit, *, end: DriverEnd | None = None, delete: DriverFacts | None = None, at_once: bool = False
) -> DriveState:
    return DriveState(drive=Drive.OVER, exit=how, end=end, delete=delete, at_once=at_once)


def _undeleted(driver: DriverFacts) -> DriverFacts | None:
    """Asking twice for a deletion would only start its grace anew."""
    return driver if driver.deletion is None else None


def _still_there(facts: SessionFacts, driver: DriverFacts | None) -> DriverFacts | None:
    ours = driver is not None and driver.owner_uid == facts.uid and not driver.over
    return _undeleted(driver) if ours and driver is not None else None

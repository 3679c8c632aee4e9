"""Bring a session's status up to date with its driver: who it is, how far it came, how it ended. Counting happens here, once.

`lastExit`, the counters and the time of the next attempt change together, in one status (protocol rule 32): a coordinator that
dies before the write counts the end later, one that dies after it never again.
"""

from __future__ import annotations

from msgspec.structs import replace

from durable_base.floor import EPOCH_MAX
from durable_coordinator.backoff import FENCED_IN_A_ROW, UNCOUNTED_SECONDS_MAX, counted_seconds, uncounted_seconds
from durable_coordinator.drivers import Drive, DriveState, recorded_uid
from durable_coordinator.exits import Exit
from durable_coordinator.facts import DriverEnd, SessionFacts
from durable_coordinator.report import COUNT_MAX, MESSAGE_MAX, Report
from durable_coordinator.status import DriverRecord, LastExit, Progress, Restored, SessionStatus, SpaceRecord, at

RECOVERY_KINDS_MAX = 16  # of the CRD: a report with more must not make the status one that the API server refuses


def with_space(facts: SessionFacts, status: SessionStatus) -> SessionStatus:
    """The status with the Space's present generation, and what became of the files if it is a newer one."""
    space = facts.space
    assert space is not None
    before = status.space
    generation = space.status.generation
    if before is not None and before.uid == space.uid and before.generation == generation:
        return status
    restored: Restored = "None"
    if before is not None:
        kept = before.uid == space.uid and space.spec.storage.type == "Claim"
        restored = "FromVolume" if kept else "FromScratch"
    record = SpaceRecord(name=space.name, uid=space.uid, generation=generation, restored=restored)
    return replace(status, space=record)


def with_driver(facts: SessionFacts, status: SessionStatus, state: DriveState) -> SessionStatus:
    """Rule 16e: the uid, node, start and image of the driver that this epoch turned out to have."""
    driver = facts.driver
    if driver is None or state.drive in (Drive.NOT_ISSUED, Drive.CONFLICT) or driver.owner_uid != facts.uid:
        return status
    if recorded_uid(facts) not in ("", driver.uid):
        return status
    before = status.driver or DriverRecord(epoch=status.epoch)
    started = driver.started_at if driver.started_at is not None else (driver.end.started_at if driver.end else None)
    pin = started is not None and bool(driver.image) and not before.image
    record = replace(
        before,
        pod=driver.name,
        uid=driver.uid,
        node=driver.node or before.node,
        epoch=driver.epoch,
        started_at=at(started) if started is not None else before.started_at,
        image=driver.image if pin else before.image,
        spec_image=(facts.spec.driver.image or "") if pin else before.spec_image,
    )
    return replace(status, driver=record)


def with_exit(facts: SessionFacts, status: SessionStatus, how: Exit, end: DriverEnd | None) -> SessionStatus:
    """Count the end of this epoch and say when the next attempt may be made."""
    counted, uncounted = status.counted_attempts, status.uncounted_in_a_row
    if how.resets:
        counted, uncounted = 0, 0
    wait = 0.0
    if how.counted:
        counted, uncounted = counted + 1, 0
        wait = counted_seconds(facts.spec.retry, counted)
    elif not how.resets:
        uncounted += 1
        wait = uncounted_seconds(uncounted)
        if how.reason == "Fenced" and uncounted >= FENCED_IN_A_ROW:
            wait = UNCOUNTED_SECONDS_MAX
    finished_at = end.finished_at if end is not None and end.finished_at is not None else facts.now
    last = LastExit(
        epoch=status.epoch,
        pod=status.driver.pod if status.driver is not None else "",
        code=end.code if end is not None else None,
        signal=end.signal if end is not None else None,
        reason=how.reason,
        counted=how.counted,
        time=at(finished_at),
    )
    report = end.report if end is not None and end.report is not None and end.report.epoch == status.epoch else None
    return replace(
        _with_report(status, report, finished_at),
        counted_attempts=counted,
        uncounted_in_a_row=uncounted,
        next_attempt_time=at(facts.now + wait) if wait > 0 else None,
        last_exit=last,
    )


def _with_report(status: SessionStatus, report: Report | None, finished_at: float) -> SessionStatus:
    if report is None:
        return status
    recoveries = dict(status.recoveries)
    for kind, count in report.recoveries.items():
        if kind in recoveries or len(recoveries) < RECOVERY_KINDS_MAX:
            recoveries[kind] = min(recoveries.get(kind, 0) + count, COUNT_MAX)
    progress = status.progress
    if report.last_entry > (progress.entries if progress is not None else 0):
        progress = Progress(entries=report.last_entry, time=at(finished_at))
    return replace(status, recoveries=recoveries, progress=progress)


def with_answer(status: SessionStatus, report: Report | None) -> SessionStatus:
    if report is None or report.answer is None:
        return status
    cut = report.answer[:MESSAGE_MAX]
    return replace(status, answer=cut, answer_truncated=cut != report.answer)


def fenced_elsewhere(status: SessionStatus) -> bool:
    """Rule 10: fenced again and again without coming to work. Somebody else drives this log."""
    last = status.last_exit
    return last is not None and last.reason == "Fenced" and status.uncounted_in_a_row >= FENCED_IN_A_ROW


def reported_floor(facts: SessionFacts) -> int:
    """The highest floor that any ended driver of this session told of, or the Space's daemon now.

    The last epoch of all is no floor to climb over: it marks the log of a deleted session.
    """
    drivers = (*((facts.driver,) if facts.driver is not None else ()), *facts.history)
    ends = (*(driver.end for driver in drivers if driver.end is not None), *facts.remembered.values())
    floors = [end.report.floor.epoch for end in ends if end.report is not None]
    if facts.space is not None and facts.space.daemon is not None:
        floors.append(facts.space.daemon.floor_epoch)
    return max((floor for floor in floors if floor < EPOCH_MAX), default=0)

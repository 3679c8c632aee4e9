"""Turn what a look has changed into Events and counters: the turning points, told once, by whoever wrote them."""

from __future__ import annotations

import logging
import time

from durable_coordinator.status import Condition, LastExit, SessionStatus, SpaceStatus, condition, is_true
from durable_operator.context import Context
from durable_operator.kube import SESSIONS, SPACES
from durable_operator.read import SessionRead, SpaceRead

log = logging.getLogger(__name__)


async def announce_session(context: Context, read: SessionRead, after: SessionStatus, reason: str) -> None:
    """`after`: the status that was written, the one that was read if none was."""
    before, key = read.facts.status, (read.facts.namespace, read.facts.name)
    if after == before:
        return
    if after.last_exit is not None and after.last_exit != before.last_exit:
        await _exit(context, read, after.last_exit)
    if after.epoch > before.epoch:
        why = after.last_exit.reason if before.epoch and after.last_exit is not None else "first drive"
        text = f"the drive before it ended: {why}" if before.epoch else why
        await context.recorder.record(SESSIONS, read.body, "EpochIssued", f"epoch {after.epoch}: {text}")
        if before.epoch:
            context.metrics.restarted(key, why)
        if not before.lease_token:
            context.metrics.lease_wait_seconds.observe(max(0.0, time.time() - read.facts.created_at))
    ready, ready_before = condition(after.conditions, "Ready"), condition(before.conditions, "Ready")
    news = not _blocked(before) or ready_before is None or ready is None or ready.reason != ready_before.reason
    if _blocked(after) and ready is not None and news:
        await context.recorder.record(SESSIONS, read.body, ready.reason, _text(ready), warning=True)
    if is_true(after.conditions, "Finished") and not is_true(before.conditions, "Finished"):
        finished = condition(after.conditions, "Finished")
        succeeded = is_true(after.conditions, "Succeeded")
        log.info("session finished session=%s/%s succeeded=%s reason=%s", *key, succeeded, reason)
        name = "Succeeded" if succeeded else "Failed"
        drives = "1 drive" if after.attempts == 1 else f"{after.attempts} drives"
        text = f"after {drives}" + (f": {finished.reason}" if finished else "")
        await context.recorder.record(SESSIONS, read.body, name, text, warning=not succeeded)


async def announce_space(context: Context, read: SpaceRead, after: SpaceStatus, reason: str) -> None:
    before = read.facts.status
    if after.generation > before.generation:
        restored = "FromScratch" if before.generation else "None"
        context.metrics.placements.labels(restored).inc()
        text = f"generation {after.generation}: {reason}"
        await context.recorder.record(SPACES, read.body, "Placed", text, warning=before.generation > 0)
    if after.restarts > before.restarts and after.last_termination is not None:
        text = f"its container ended with {after.last_termination.reason} and was started again in place"
        await context.recorder.record(SPACES, read.body, "Restarted", text, warning=True)


async def _exit(context: Context, read: SessionRead, ended: LastExit) -> None:
    context.metrics.drives.labels(ended.reason).inc()
    if ended.reason == "Fenced":
        context.metrics.stale_refused.labels("driver").inc()
    end = next((e for e in read.facts.remembered.values() if e.epoch == ended.epoch and e.report is not None), None)
    for kind, count in (end.report.recoveries if end is not None and end.report is not None else {}).items():
        context.metrics.recoveries.labels(end.report.mode if end and end.report else "", kind).inc(count)
    code = "" if ended.code is None else f", exit code {ended.code}"
    counted = ", counted" if ended.counted else ""
    text = f"epoch {ended.epoch} ended: {ended.reason}{code}{counted}"
    await context.recorder.record(SESSIONS, read.body, "DriverEnded", text, warning=ended.counted)


def _blocked(status: SessionStatus) -> bool:
    found = condition(status.conditions, "Progressing")
    return found is not None and found.reason == "Blocked"


def _text(found: Condition) -> str:
    return found.message or found.reason

"""Plan one session: facts in, actions and the new status out. Pure; the shell reads, acts, and asks again.

The order of questions: is it ours, is it being deleted, is it finished; then what became of the current drive (`drivers`,
`exits`, `record`), and what follows from that: go on, wait, stop (`stopping`), finish (`ending`), or the next epoch (`issuing`).
"""

from __future__ import annotations

from msgspec.structs import replace

from durable_coordinator.actions import AddFinalizer, DeleteDriver, RenewLease, SessionAction, SessionPlan
from durable_coordinator.drivers import Drive, DriveState, judge_driver
from durable_coordinator.ending import finish, plan_deletion, plan_finished, retried
from durable_coordinator.exits import Effect
from durable_coordinator.facts import SessionFacts
from durable_coordinator.issuing import plan_next, plan_start
from durable_coordinator.leases import is_ours, renewal_due, renewed
from durable_coordinator.plans import WAKE_SECONDS, Outlook, assemble, is_finished
from durable_coordinator.record import with_answer, with_driver, with_exit
from durable_coordinator.status import SessionStatus, condition, seconds
from durable_coordinator.stopping import Wanted, deadline_left, plan_stop, wanted


def plan_session(facts: SessionFacts) -> SessionPlan:
    """What to do about a session now. Total over valid facts; never raises but OverflowError (see `next_epoch`).

    The shell carries out `actions` in order and stops at the first that fails; `WriteStatus` among them writes `status`. It
    plans again when anything about session, driver or Space changed, at the latest after `requeue_after` seconds.
    """
    status = facts.status
    if status.operator and status.operator != facts.install:
        # Rule 45: another install's keys open its Space; two coordinators writing one status would never come to rest.
        return SessionPlan(actions=(), status=status, reason="ManagedElsewhere", requeue_after=None)
    status = _first_look(facts, status)
    if facts.deleting is not None:
        return plan_deletion(facts, status, judge_driver(facts, stopping=True))
    if is_finished(status):
        if not retried(facts):
            return plan_finished(facts, status)
        status = _new_series(facts, status)
    else:
        status = replace(status, observed_retry_token=facts.spec.retry_token)
    if facts.spec.deletion_policy == "Delete" and not facts.finalizer and status.epoch == 0:
        return _hold_on_to(facts, status)
    want = wanted(facts, status)
    state = judge_driver(facts, stopping=want is not Wanted.RUN)
    status = with_driver(facts, status, state)
    if state.exit is not None:
        status = with_exit(facts, status, state.exit, state.end)
    return _plan_drive(facts, _suspended_time(facts, status), state, want)


def _plan_drive(facts: SessionFacts, status: SessionStatus, state: DriveState, want: Wanted) -> SessionPlan:
    """What follows from the state of the current drive."""
    cleanup = _cleanup(facts, state)
    if state.exit is not None and state.exit.effect is not Effect.NEXT:
        report = state.end.report if state.end is not None else None
        succeeded = state.exit.effect is Effect.SUCCEED
        if succeeded:
            status = with_answer(status, report)
        return finish(facts, status, succeeded, state.exit.reason, state.exit.detail, cleanup)
    if state.drive is Drive.OVER and status.counted_attempts >= facts.spec.retry.max_attempts:
        last = status.last_exit.reason if status.last_exit is not None else ""
        message = f"{status.counted_attempts} attempts without progress; the last ended with {last}"
        return finish(facts, status, False, "AttemptsExhausted", message, cleanup)
    if want is not Wanted.RUN:
        return plan_stop(facts, status, state, want, cleanup)
    if state.drive is Drive.TO_START:
        return plan_start(facts, status, cleanup)
    if state.drive in (Drive.NOT_ISSUED, Drive.OVER):
        return plan_next(facts, status, cleanup)
    outlook = Outlook(reason=state.reason, message=state.message, ready=state.ready, blocked=state.blocked, drive=state)
    lease = _renewal(facts)
    timers = [WAKE_SECONDS, state.requeue, deadline_left(facts, status), _renewal_left(facts) if not lease else None]
    return assemble(
        facts, status, outlook, after=(*cleanup, *lease), requeue=min(timer for timer in timers if timer is not None)
    )


def _first_look(facts: SessionFacts, status: SessionStatus) -> SessionStatus:
    """Rule 43: the request id and log prefix, once and for ever."""
    return status if status.session_id else replace(status, session_id=facts.spec.session_id or facts.uid)


def _new_series(facts: SessionFacts, status: SessionStatus) -> SessionStatus:
    """Rule 41: another retryToken on a failed session. The same log and the next epoch; counters and deadline start again."""
    return replace(
        status,
        observed_retry_token=facts.spec.retry_token,
        counted_attempts=0,
        uncounted_in_a_row=0,
        start_time=None,
        suspended_seconds=0,
        completion_time=None,
        next_attempt_time=None,
        conditions=tuple(entry for entry in status.conditions if entry.type not in ("Finished", "Succeeded")),
    )


def _hold_on_to(facts: SessionFacts, status: SessionStatus) -> SessionPlan:
    """Rule 19: the finalizer comes before the first drive, alone: it changes the version that the status write needs."""
    plan = assemble(facts, status, Outlook(reason="Pending"), requeue=0.0)
    return SessionPlan(
        actions=(AddFinalizer(),), status=facts.status, reason=plan.reason, requeue_after=plan.requeue_after
    )


def _suspended_time(facts: SessionFacts, status: SessionStatus) -> SessionStatus:
    """Rule 42: time spent suspended does not count towards the deadline. Added up when the session runs again."""
    before = condition(facts.status.conditions, "Suspended")
    if before is None or before.status != "True" or facts.spec.operating_mode == "Suspended":
        return status
    spent = max(0, int(facts.now - seconds(before.last_transition_time)))
    return replace(status, suspended_seconds=status.suspended_seconds + spent)


def _cleanup(facts: SessionFacts, state: DriveState) -> tuple[SessionAction, ...]:
    """Drivers that must not run any longer. After the status write: an epoch is fenced at the resources, not by deletions."""
    gone: list[SessionAction] = []
    if state.delete is not None:
        driver = state.delete
        reason = state.exit.reason if state.exit is not None else state.reason
        grace = 0 if state.at_once else None
        gone.append(
            DeleteDriver(name=driver.name, uid=driver.uid, epoch=driver.epoch, reason=reason, grace_seconds=grace)
        )
    gone += superseded(facts)
    past = sorted(facts.history, key=lambda driver: -driver.epoch)[facts.spec.driver.history_limit :]
    gone += [DeleteDriver(name=d.name, uid=d.uid, epoch=d.epoch, reason="HistoryLimit") for d in past]
    return tuple(gone)


def superseded(facts: SessionFacts) -> list[SessionAction]:
    """Live drivers of lower epochs, late ones included; one that is ending within its grace is not cut off (rule 3)."""
    return [
        DeleteDriver(name=driver.name, uid=driver.uid, epoch=driver.epoch, reason="Superseded")
        for driver in facts.others
        if driver.epoch < facts.status.epoch and driver.owner_uid == facts.uid and driver.deletion is None
    ]


def _renewal(facts: SessionFacts) -> tuple[SessionAction, ...]:
    space = facts.space
    if space is None or not is_ours(space.status, facts.uid):
        return ()
    if renewal_due(space.status, facts.spec.lease_seconds, facts.now) > 0:
        return ()
    return (RenewLease(space_name=space.name, space_uid=space.uid, space=renewed(space.status, facts.now)),)


def _renewal_left(facts: SessionFacts) -> float | None:
    space = facts.space
    if space is None or not is_ours(space.status, facts.uid):
        return None
    return renewal_due(space.status, facts.spec.lease_seconds, facts.now)

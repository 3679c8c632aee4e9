"""One session, what to do: a test for each row of the table in docs/reference-conditions.md, by the row's own words."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from durable_coordinator.actions import DeleteDriver, IssueEpoch, SessionPlan, StartDriver
from durable_coordinator.conditions import SESSION_REASONS, SESSION_TYPES
from durable_coordinator.facts import (
    Deletion,
    Disruption,
    DriverEnd,
    DriverFacts,
    HolderFacts,
    Obstacle,
    SessionFacts,
    SpaceFacts,
    SpacePod,
    Waiter,
)
from durable_coordinator.report import Report, ReportedFloor
from durable_coordinator.session import plan_session
from durable_coordinator.spec_common import Claim
from durable_coordinator.spec_session import DriverSpec, Retry, SessionSpec, Suspend
from durable_coordinator.spec_space import InlineSpace, Storage
from durable_coordinator.status import (
    DriverRecord,
    Holder,
    LastExit,
    LastHolder,
    PodRecord,
    SessionStatus,
    SpaceRecord,
    SpaceStatus,
    at,
    condition,
)

NOW = 1_000_000.0
EPOCH = 5
SPEC = SessionSpec(input="do it", space=InlineSpace())
SPACE_POD = SpacePod(name="job-g2", uid="space-pod", generation=2, owner_uid="space", ready=True, started_at=NOW - 500)
HELD = SpaceStatus(
    holder=Holder(namespace="ns", name="job", uid="session", acquire_time=at(NOW - 900), renew_time=at(NOW - 900)),
    lease_token=3,
    epoch=EPOCH,
    generation=2,
    pod=PodRecord(name="job-g2", uid="space-pod"),
)
SPACE = SpaceFacts(
    now=NOW,
    namespace="ns",
    name="job",
    uid="space",
    spec=SPEC.space_spec(),
    status=HELD,
    owner_uid="session",
    pod=SPACE_POD,
    holder=HolderFacts(uid="session"),
)
ISSUED = SessionStatus(
    session_id="session",
    operator="install",
    epoch=EPOCH,
    attempts=4,
    lease_token=3,
    start_time=at(NOW - 900),
    driver=DriverRecord(pod="job-e5", epoch=EPOCH),
    space=SpaceRecord(name="job", uid="space", generation=2),
)
SEEN = msgspec.structs.replace(
    ISSUED, driver=DriverRecord(pod="job-e5", uid="driver", epoch=EPOCH, node="node-1", started_at=at(NOW - 60))
)
FACTS = SessionFacts(
    now=NOW,
    namespace="ns",
    name="job",
    uid="session",
    install="install",
    spec=SPEC,
    status=SEEN,
    created_at=NOW - 1000,
    space=SPACE,
    epoch_seen=EPOCH,
)
DRIVER = DriverFacts(
    name="job-e5",
    uid="driver",
    epoch=EPOCH,
    owner_uid="session",
    running=True,
    node="node-1",
    created_at=NOW - 90,
    bound_at=NOW - 80,
    started_at=NOW - 60,
    beat_age_seconds=3.0,
)
PENDING = replace(DRIVER, running=False, started_at=None, beat_age_seconds=None)
END = DriverEnd(uid="driver", epoch=EPOCH, name="job-e5", started_at=NOW - 60, finished_at=NOW - 1)


def running(**changes: Any) -> SessionFacts:
    return replace(FACTS, driver=replace(DRIVER, **changes))


def pending(**changes: Any) -> SessionFacts:
    return replace(FACTS, driver=replace(PENDING, **changes))


def ended(**changes: Any) -> SessionFacts:
    end = replace(END, **changes)
    return replace(FACTS, driver=replace(DRIVER, running=False, over=True, end=end))


def report(outcome: Any, epoch: int = EPOCH, **changes: Any) -> Report:
    return Report(epoch=epoch, outcome=outcome, **changes)


def first(**space: Any) -> SessionFacts:
    status = SpaceStatus(generation=2, pod=PodRecord(name="job-g2", uid="space-pod"))
    return replace(
        FACTS, status=SessionStatus(), epoch_seen=0, space=replace(SPACE, status=status, holder=None, **space)
    )


def held_by_another() -> SessionFacts:
    other = Holder(namespace="ns", name="other", uid="other-session", renew_time=at(NOW - 5))
    status = SpaceStatus(
        holder=other, lease_token=1, epoch=1, generation=2, pod=PodRecord(name="job-g2", uid="space-pod")
    )
    return replace(first(), space=replace(SPACE, status=status, holder=HolderFacts(uid="other-session")))


def issued(**changes: Any) -> SessionFacts:
    return replace(FACTS, status=ISSUED, epoch_seen=EPOCH - 1, **changes)


def with_spec(facts: SessionFacts, **changes: Any) -> SessionFacts:
    return replace(facts, spec=msgspec.structs.replace(facts.spec, **changes))


def suspended(facts: SessionFacts, space: Any = "Retain") -> SessionFacts:
    return with_spec(facts, operating_mode="Suspended", suspend=Suspend(space=space))


NEXT = ("IssueEpoch", "WriteStatus", "StartDriver")
WRITE = ("WriteStatus",)
GONE_SPACE = replace(SPACE, pod=None)
CRASHED = {"code": 1, "report": report("crashed", reason="RuntimeError")}
COUNTED_OUT = msgspec.structs.replace(SEEN, counted_attempts=2)
LOWER = replace(DRIVER, name="job-e3", uid="late", epoch=3)

# row -> facts, Ready's reason, actions, lastExit's (reason, counted) or None: nothing ended
ROWS: dict[str, tuple[SessionFacts, str, tuple[str, ...], tuple[str, bool] | None]] = {
    "no epoch yet, lease held by another: wait": (held_by_another(), "WaitingForLease", WRITE, None),
    "no epoch yet, Space not there: make it and wait": (
        replace(first(), space=None), "WaitingForSpace", ("WriteStatus", "EnsureSpace"), None),
    "no epoch yet, Space not ready: wait": (first(pod=replace(SPACE_POD, ready=False)), "WaitingForSpace", WRITE, None),
    "no epoch yet, lease free and Space ready: take the lease, next": (first(), "Starting", NEXT, None),
    "none, no uid and no exit recorded for E: start the same epoch": (
        issued(), "Starting", ("WriteStatus", "StartDriver"), None),
    "none, exit remembered from an event: as that exit": (
        replace(FACTS, remembered={"driver": replace(END, code=143, deleted=True)}), "Starting", NEXT, ("Deleted", False)),
    "none, uid not yet recorded, exit remembered: as that exit, never started again": (
        issued(remembered={"other": replace(END, uid="other", **CRASHED)}), "BackingOff", WRITE, ("Crashed", True)),
    "none, uid never recorded, but it was seen: next, Vanished": (
        replace(FACTS, status=ISSUED), "Starting", NEXT, ("Vanished", False)),
    "none, uid recorded, no exit seen: next, Vanished": (FACTS, "Starting", NEXT, ("Vanished", False)),
    "none, uid recorded, deletionTimestamp was seen: next, Deleted": (
        replace(FACTS, driver_was_deleting=True), "Starting", NEXT, ("Deleted", False)),
    "none, uid recorded, node was unreachable: next, NodeLost": (
        replace(FACTS, driver_node_was_unreachable=True), "Starting", NEXT, ("NodeLost", False)),
    "exists, other owner: retry": (running(owner_uid="x", managed=False), "NameConflict", WRITE, None),
    "exists, our name's former life: delete by uid, wait": (
        running(owner_uid="x"), "NameConflict", ("WriteStatus", "DeleteDriver"), None),
    "exists for E, another uid than recorded: next, delete it": (
        running(uid="late"), "Starting", (*NEXT, "DeleteDriver"), ("Vanished", False)),
    "Pending, not bound: leave": (
        pending(bound=False, waiting_reason="Unschedulable"), "Unschedulable", WRITE, None),
    "Pending, spec.driver changed: replace, no wait": (
        pending(bound=False, outdated=True), "Starting", (*NEXT, "DeleteDriver"), ("NeverStarted", False)),
    "Pending, bound, within startSeconds: leave, show the container's reason": (
        pending(waiting_reason="ImagePullFailed"), "ImagePullFailed", WRITE, None),
    "Pending, bound, past startSeconds: delete by uid, next, avoid node": (
        pending(bound_at=NOW - 600), "Starting", (*NEXT, "DeleteDriver"), ("NeverStarted", False)),
    "Failed, driver never started: next": (
        ended(started=False, failed_phase=True, detail="OutOfcpu"), "Starting", NEXT, ("NeverStarted", False)),
    "init container failed: next, counted": (
        ended(started=False, init_failed=True), "BackingOff", WRITE, ("InitFailed", True)),
    "driver running, node fine: record it, nothing else": (running(), "Driving", WRITE, None),
    "running, node Unknown < unreachableSeconds: wait": (
        running(node_unreachable_seconds=59), "NodeUnreachable", WRITE, None),
    "running, node unreachable >= unreachableSeconds: delete, next": (
        running(node_unreachable_seconds=60), "Starting", (*NEXT, "DeleteDriver"), ("NodeLost", False)),
    "running, deletionTimestamp, within grace + 5 s: wait": (
        running(deletion=Deletion(at=NOW - 60, grace_seconds=60)), "Stopping", WRITE, None),
    "running, deletionTimestamp, past it: next, Deleted": (
        running(deletion=Deletion(at=NOW - 65, grace_seconds=60)), "Starting", NEXT, ("Deleted", False)),
    "running, deletionTimestamp, past it: next, Evicted": (
        running(deletion=Deletion(at=NOW - 65, grace_seconds=60), disruption=Disruption.EVICTED), "Starting", NEXT,
        ("Evicted", False)),
    "running, deleted with grace 0: not waited for": (
        running(deletion=Deletion(at=NOW)), "Starting", NEXT, ("Deleted", False)),
    "running, proven frozen: replaced at once, counted": (
        running(frozen=True), "BackingOff", ("WriteStatus", "DeleteDriver"), ("Stalled", True)),
    "0, settled report: final status, then release": (
        ended(code=0, report=report("settled")), "Finished", ("WriteStatus", "ReleaseLease"), ("Completed", False)),
    "0, settled report, although deleted and Failed": (
        ended(code=0, report=report("settled"), deleted=True, failed_phase=True), "Finished", ("WriteStatus", "ReleaseLease"),
        ("Completed", False)),
    "0, undisturbed without report: final status": (
        ended(code=0), "Finished", ("WriteStatus", "ReleaseLease"), ("Completed", False)),
    "0, deleted, no report: next": (ended(code=0, deleted=True), "Starting", NEXT, ("NoReport", False)),
    "0, phase Failed, no report: next": (ended(code=0, failed_phase=True), "Starting", NEXT, ("NoReport", False)),
    "0, disrupted, no report: next": (
        ended(code=0, disruption=Disruption.NODE_SHUTDOWN), "Starting", NEXT, ("NoReport", False)),
    "0, report of another epoch: next": (
        ended(code=0, report=report("settled", epoch=4)), "Starting", NEXT, ("NoReport", False)),
    "78: Failed, release": (ended(code=78), "Finished", ("WriteStatus", "ReleaseLease"), ("PermanentFailure", False)),
    "78 while suspending: Failed, release": (
        suspended(ended(code=78)), "Finished", ("WriteStatus", "ReleaseLease"), ("PermanentFailure", False)),
    "75, pod of a lower epoch: nothing": (
        replace(running(), remembered={"old": replace(END, uid="old", epoch=4, code=75)}), "Driving", WRITE, None),
    "75, epoch E: next": (
        ended(code=75, report=report("fenced", floor=ReportedFloor(epoch=9))), "Starting", NEXT, ("Fenced", False)),
    "any other after we asked (suspend): Stopped": (suspended(ended(code=143)), "Suspended", WRITE, ("Stopped", False)),
    "any other after we asked (deadline): Stopped": (
        with_spec(ended(code=137), active_deadline_seconds=900), "Finished", ("WriteStatus", "ReleaseLease"),
        ("Stopped", False)),
    "non-zero, preempted: next": (ended(code=143, disruption=Disruption.PREEMPTED), "Starting", NEXT, ("Preempted", False)),
    "non-zero, evicted: next": (ended(code=137, disruption=Disruption.EVICTED), "Starting", NEXT, ("Evicted", False)),
    "non-zero, taint or GC: next": (ended(code=137, disruption=Disruption.NODE_LOST), "Starting", NEXT, ("NodeLost", False)),
    "non-zero, node shutdown: next": (
        ended(code=143, disruption=Disruption.NODE_SHUTDOWN), "Starting", NEXT, ("NodeShutdown", False)),
    "Evicted without DisruptionTarget: counted": (
        ended(code=137, evicted=True, failed_phase=True), "BackingOff", WRITE, ("EphemeralStorageExceeded", True)),
    "137 OOMKilled: counted": (ended(code=137, oom_killed=True), "BackingOff", WRITE, ("OOMKilled", True)),
    "137, no beat: counted": (ended(code=137, beat_age_seconds=121), "BackingOff", WRITE, ("Stalled", True)),
    "137, else: counted": (ended(code=137, beat_age_seconds=5), "BackingOff", WRITE, ("Killed", True)),
    "137, no stream to say: counted": (ended(code=137), "BackingOff", WRITE, ("Killed", True)),
    "137, deleted: not counted": (ended(code=137, deleted=True), "Starting", NEXT, ("Deleted", False)),
    "non-zero, report SpaceUnreachable, confirmed: Space first, next": (
        replace(ended(code=1, report=report("halted", reason="SpaceUnreachable")), space=GONE_SPACE), "WaitingForSpace",
        ("WriteStatus", "WakeSpace"), ("SpaceLost", False)),
    "non-zero, report SpaceUnreachable, not confirmed: counted": (
        ended(code=1, report=report("halted", reason="SpaceUnreachable")), "BackingOff", WRITE, ("Crashed", True)),
    "non-zero, report SpaceUnreachable, boot id changed since: not counted": (
        replace(ended(code=1, report=report("halted", reason="SpaceUnreachable")), space_changed_at=NOW - 5), "Starting", NEXT,
        ("SpaceLost", False)),
    "any other non-zero: backoff": (ended(**CRASHED), "BackingOff", WRITE, ("Crashed", True)),
    "any other non-zero at maxAttempts: Failed": (
        with_spec(replace(ended(**CRASHED), status=COUNTED_OUT), retry=Retry(max_attempts=3)), "Finished",
        ("WriteStatus", "ReleaseLease"), ("Crashed", True)),
    "pod alive, driver container ended: judge, delete the pod": (
        replace(FACTS, driver=replace(DRIVER, running=False, end=replace(END, code=0))), "Finished",
        ("WriteStatus", "DeleteDriver", "ReleaseLease"), ("Completed", False)),
    "POST 422, 403 admission: PodRejected": (
        issued(obstacle=Obstacle(reason="PodRejected", message="denied", retry_seconds=300)), "PodRejected", WRITE, None),
    "POST 403 quota: QuotaExceeded": (
        issued(obstacle=Obstacle(reason="QuotaExceeded", message="exceeded quota")), "QuotaExceeded", WRITE, None),
    "any live pod of a lower epoch, also a late one: delete by uid": (
        replace(running(), others=(LOWER,)), "Driving", ("WriteStatus", "DeleteDriver"), None),
    "a live pod of a lower epoch that is ending: left to its grace": (
        replace(running(), others=(replace(LOWER, deletion=Deletion(at=NOW, grace_seconds=60)),)), "Driving", WRITE, None),
    "wanted Suspended, driver runs: ask": (suspended(running()), "Stopping", ("WriteStatus", "AskStop"), None),
    "wanted Suspended, asked 10 s ago: delete with its grace": (
        suspended(running(stop_asked_at=NOW - 10)), "Stopping", ("WriteStatus", "DeleteDriver"), None),
    "wanted Suspended, driver pending: delete": (suspended(pending()), "Stopping", ("WriteStatus", "DeleteDriver"), None),
    "wanted Suspended, issued and not started: hold": (suspended(issued()), "Suspended", WRITE, None),
    "wanted Suspended with Release, nothing runs: release": (
        suspended(ended(code=143), "Release"), "Suspended", ("WriteStatus", "ReleaseLease"), ("Stopped", False)),
    "deleting, driver runs: delete it, wait": (
        replace(running(), deleting=Deletion(at=NOW)), "Stopping", ("WriteStatus", "DeleteDriver"), None),
    "deleting, nothing runs: release, cleanup": (
        replace(with_spec(ended(code=1), deletion_policy="Delete"), deleting=Deletion(at=NOW), finalizer=True), "Stopping",
        ("WriteStatus", "ReleaseLease", "DeleteSpace", "CleanUp"), None),
}  # fmt: skip


def names(plan: SessionPlan) -> tuple[str, ...]:
    return tuple(type(action).__name__ for action in plan.actions)


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str) -> None:
    facts, reason, actions, ending = ROWS[row]
    plan = plan_session(facts)
    assert (plan.reason, names(plan)) == (reason, actions)
    last = plan.status.last_exit
    assert (None if last is None else (last.reason, last.counted)) == ending
    assert [entry.type for entry in plan.status.conditions] == list(SESSION_TYPES)
    for entry in plan.status.conditions:
        assert entry.reason in SESSION_REASONS[entry.type][entry.status], f"{entry.type} {entry.status} {entry.reason}"


@pytest.mark.parametrize("row", ROWS)
def test_what_is_recorded_is_not_counted_again(row: str) -> None:
    """Protocol rule 32: the status written, and everything else unchanged, the same end changes no counter."""
    facts = ROWS[row][0]
    plan = plan_session(facts)
    if plan.status.epoch != facts.status.epoch:
        return
    again = plan_session(replace(facts, status=plan.status))
    before, after = plan.status, again.status
    assert (after.counted_attempts, after.uncounted_in_a_row, after.recoveries) == (
        before.counted_attempts,
        before.uncounted_in_a_row,
        before.recoveries,
    )
    assert after.last_exit == before.last_exit


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row][2][:3] == NEXT])
def test_the_next_epoch_is_above_everything_known_and_written_before_the_start(row: str) -> None:
    facts = ROWS[row][0]
    plan = plan_session(facts)
    issue = next(action for action in plan.actions if isinstance(action, IssueEpoch))
    start = next(action for action in plan.actions if isinstance(action, StartDriver))
    assert facts.space is not None
    assert issue.epoch > max(facts.status.epoch, facts.space.status.epoch, facts.epoch_seen)
    assert issue.epoch == start.epoch == plan.status.epoch == issue.space.epoch
    assert issue.lease_token == plan.status.lease_token == issue.space.lease_token <= issue.epoch
    assert issue.space.holder is not None
    assert issue.space.holder.uid == facts.uid
    assert plan.status.driver == DriverRecord(pod=f"job-e{issue.epoch}", epoch=issue.epoch)
    assert plan.status.attempts == facts.status.attempts + 1


def test_the_first_epoch_of_all_is_one() -> None:
    facts = replace(first(), epoch_seen=0)
    plan = plan_session(facts)
    assert (plan.status.epoch, plan.status.lease_token, plan.status.attempts) == (1, 1, 1)


def test_a_reported_floor_is_left_behind() -> None:
    facts, *_ = ROWS["75, epoch E: next"]
    assert plan_session(facts).status.epoch == 10


def test_a_floor_that_the_spaces_daemon_tells_of_is_left_behind() -> None:
    from durable_coordinator.facts import DaemonFacts

    facts = replace(FACTS, space=replace(SPACE, daemon=DaemonFacts(floor_epoch=41)))
    assert plan_session(facts).status.epoch == 42


def test_the_floor_of_a_deleted_log_is_not_climbed_over() -> None:
    facts = ended(code=75, report=report("fenced", floor=ReportedFloor(epoch=2**53 - 1)))
    assert plan_session(facts).status.epoch == EPOCH + 1


def test_what_became_of_the_files_is_recorded_with_the_generation() -> None:
    kept = msgspec.structs.replace(SPACE.spec, storage=Storage(type="Claim", claim=Claim()))
    pod = replace(SPACE_POD, name="job-g3", generation=3)
    status = msgspec.structs.replace(HELD, generation=3, pod=PodRecord(name="job-g3", uid="space-pod"))
    restored = []
    for spec in (SPACE.spec, kept):
        plan = plan_session(replace(FACTS, space=replace(SPACE, spec=spec, status=status, pod=pod)))
        assert plan.status.space is not None
        restored.append((plan.status.space.generation, plan.status.space.restored))
    assert restored == [(3, "FromScratch"), (3, "FromVolume")]


def test_a_node_on_which_a_driver_never_started_is_avoided() -> None:
    facts, *_ = ROWS["Pending, bound, past startSeconds: delete by uid, next, avoid node"]
    start = next(action for action in plan_session(facts).actions if isinstance(action, StartDriver))
    assert start.avoid_node == "node-1"


def test_a_frozen_driver_is_given_no_grace_even_after_its_end_was_recorded() -> None:
    facts, *_ = ROWS["running, proven frozen: replaced at once, counted"]
    plan = plan_session(facts)
    again = plan_session(replace(facts, status=plan.status))
    for one in (plan, again):
        (delete,) = (action for action in one.actions if isinstance(action, DeleteDriver))
        assert (delete.uid, delete.grace_seconds) == ("driver", 0)


def test_an_image_is_pinned_when_a_driver_has_started_and_until_the_spec_names_another() -> None:
    spec = {"driver": DriverSpec(image="driver:1")}
    plan = plan_session(with_spec(running(image="driver@sha256:abc"), **spec))
    assert plan.status.driver is not None
    assert plan.status.driver.image == "driver@sha256:abc"
    gone = replace(FACTS, status=plan.status)
    kept = plan_session(with_spec(gone, **spec))
    edited = plan_session(with_spec(gone, driver=DriverSpec(image="driver:2")))
    assert [action.image for action in kept.actions if isinstance(action, StartDriver)] == ["driver@sha256:abc"]
    assert [action.image for action in edited.actions if isinstance(action, StartDriver)] == [""]


def test_an_epoch_whose_space_has_moved_on_is_never_started() -> None:
    """A crash between the Space's write and the session's: the Space stands at 6, the session at 5."""
    status = msgspec.structs.replace(HELD, epoch=6)
    plan = plan_session(issued(space=replace(SPACE, status=status)))
    assert names(plan) == NEXT
    assert plan.status.epoch == 7


def test_a_lease_lost_between_issue_and_start_is_asked_for_again() -> None:
    other = Holder(namespace="ns", name="b", uid="b", renew_time=at(NOW))
    space = replace(
        SPACE, status=msgspec.structs.replace(HELD, holder=other, lease_token=4), holder=HolderFacts(uid="b")
    )
    plan = plan_session(issued(space=space))
    assert (plan.reason, names(plan)) == ("WaitingForLease", WRITE)
    held = condition(plan.status.conditions, "LeaseHeld")
    assert held is not None
    assert (held.reason, held.message) == ("HeldBy", "held by session:ns/b")


@pytest.mark.parametrize(
    ("before", "last"),
    [
        (HELD.holder, None),
        (None, None),
        (Holder(namespace="ns", name="b", uid="b"), LastHolder(name="b", uid="b")),
    ],
    ids=["its own lease", "free and never held", "taken over from a holder that is gone"],
)
def test_who_had_the_lease_before_is_told(before: Holder | None, last: LastHolder | None) -> None:
    """Rule 15: a driver must be able to tell whether another session worked in its Space in between."""
    space = replace(SPACE, status=msgspec.structs.replace(HELD, holder=before), holder=None)
    issue = next(
        action for action in plan_session(replace(FACTS, space=space)).actions if isinstance(action, IssueEpoch)
    )
    assert issue.space.last_holder == last
    assert issue.space.lease_token == (3 if before is HELD.holder else 4)


def test_the_oldest_waiter_goes_first_and_the_others_wait() -> None:
    older = Waiter(created_at=NOW - 5000, uid="older", namespace="ns", name="older")
    younger = Waiter(created_at=NOW - 10, uid="younger", namespace="ns", name="younger")
    assert plan_session(first(waiters=(older, younger))).reason == "WaitingForLease"
    assert plan_session(first(waiters=(younger,))).reason == "Starting"


def test_a_session_of_another_install_is_left_alone() -> None:
    plan = plan_session(replace(running(), install="another"))
    assert (plan.actions, plan.status, plan.reason) == ((), SEEN, "ManagedElsewhere")


def test_progress_starts_the_row_of_attempts_again() -> None:
    status = msgspec.structs.replace(SEEN, counted_attempts=9)
    end = replace(END, code=1, started_at=NOW - 700, committed=True)
    facts = replace(FACTS, status=status, driver=replace(DRIVER, running=False, over=True, end=end))
    plan = plan_session(facts)
    assert (plan.reason, plan.status.counted_attempts) == ("BackingOff", 1)


def test_fenced_again_and_again_is_shown_and_slowed_down() -> None:
    facts = replace(ended(code=75), status=msgspec.structs.replace(SEEN, uncounted_in_a_row=4))
    plan = plan_session(facts)
    assert plan.reason == "FencedElsewhere"
    assert plan.status.next_attempt_time == at(NOW + 300)
    moving = condition(plan.status.conditions, "Progressing")
    assert moving is not None
    assert (moving.status, moving.reason) == ("False", "Blocked")


def test_evictions_in_a_row_are_not_free() -> None:
    waits = []
    for row in range(12):
        status = msgspec.structs.replace(SEEN, uncounted_in_a_row=row)
        plan = plan_session(replace(ended(code=143, disruption=Disruption.EVICTED), status=status))
        planned = plan.status.next_attempt_time
        waits.append(0 if planned is None else round(planned.timestamp() - NOW))
    assert waits == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_retry_token_starts_a_failed_session_again_under_the_next_epoch() -> None:
    failed = plan_session(ended(code=78)).status
    facts = with_spec(replace(ended(code=78), status=failed), retry_token="again")
    plan = plan_session(facts)
    assert names(plan)[:3] == NEXT
    assert plan.status.epoch == EPOCH + 1
    finished, success = condition(plan.status.conditions, "Finished"), condition(plan.status.conditions, "Succeeded")
    assert (finished and finished.status, success and success.status) == ("False", "Unknown")
    assert plan.status.completion_time is None


def test_a_retry_token_changes_nothing_about_success() -> None:
    done = plan_session(ended(code=0)).status
    plan = plan_session(with_spec(replace(ended(code=0), status=done), retry_token="again"))
    success = condition(plan.status.conditions, "Succeeded")
    assert success is not None
    assert (success.status, plan.status.epoch) == ("True", EPOCH)


def test_a_finished_session_releases_what_a_crash_left_and_is_deleted_in_time() -> None:
    done = plan_session(ended(code=0, report=report("settled", answer="x" * 3000))).status
    assert (len(done.answer), done.answer_truncated) == (2048, True)
    facts = with_spec(replace(ended(code=0), status=done, now=NOW + 50), ttl_seconds_after_finished=60)
    plan = plan_session(facts)
    assert names(plan) == ("ReleaseLease", "DeleteSpace")
    after = replace(facts, space=None)
    settled = replace(after, status=plan_session(after).status)
    plan = plan_session(settled)
    assert (plan.actions, plan.requeue_after) == ((), 10)
    assert names(plan_session(replace(settled, now=NOW + 60))) == ("DeleteSession",)


def test_suspended_time_does_not_count_towards_the_deadline() -> None:
    spec = {"active_deadline_seconds": 1000}
    rest = plan_session(with_spec(suspended(ended(code=143)), **spec)).status
    later = replace(FACTS, status=rest, now=NOW + 5000, space=replace(SPACE, now=NOW + 5000))
    resumed = plan_session(with_spec(later, **spec))
    assert resumed.reason == "Starting"
    assert resumed.status.suspended_seconds == 5000


def test_the_finalizer_comes_alone_and_before_the_first_epoch() -> None:
    facts = with_spec(first(), deletion_policy="Delete")
    plan = plan_session(facts)
    assert (names(plan), plan.requeue_after) == (("AddFinalizer",), 0)
    assert names(plan_session(replace(facts, finalizer=True))) == NEXT


def test_a_cleanup_that_never_ends_lets_go_after_300_seconds() -> None:
    facts = replace(
        with_spec(running(), deletion_policy="Delete"), deleting=Deletion(at=NOW - 300), finalizer=True, space=None
    )
    assert names(plan_session(facts))[-1] == "RemoveFinalizer"


def test_a_log_on_a_claim_is_not_opened_twice() -> None:
    """Rule 39: past its grace but still running, the old driver may yet write."""
    from durable_coordinator.status import LogPlace

    status = msgspec.structs.replace(SEEN, log=LogPlace(storage="PersistentVolumeClaim"))
    facts = replace(running(deletion=Deletion(at=NOW - 65, grace_seconds=60)), status=status)
    assert plan_session(facts).reason == "VolumeUnavailable"


def test_a_lease_is_renewed_by_the_session_that_holds_it() -> None:
    old = at(NOW - SPEC.lease_seconds / 3)
    assert HELD.holder is not None
    status = msgspec.structs.replace(HELD, holder=msgspec.structs.replace(HELD.holder, renew_time=old))
    plan = plan_session(replace(running(), space=replace(SPACE, status=status)))
    assert names(plan) == ("WriteStatus", "RenewLease")


def test_a_daemon_that_does_not_answer_is_given_15_seconds_and_then_passed_over() -> None:
    silent = replace(SPACE, daemon_failing_since=NOW - 14)
    plan = plan_session(replace(FACTS, space=silent))
    assert (plan.reason, plan.requeue_after) == ("WaitingForSpace", 1)
    assert plan_session(replace(FACTS, space=replace(silent, daemon_failing_since=NOW - 15))).reason == "Starting"


def test_a_planned_status_that_says_nothing_new_is_not_written() -> None:
    status = plan_session(running()).status
    later = replace(running(), status=status, now=NOW + 20)
    assert plan_session(later).actions == ()


def test_a_recorded_end_stays_the_last_exit_of_its_epoch() -> None:
    status = msgspec.structs.replace(
        SEEN, last_exit=LastExit(epoch=EPOCH, reason="Crashed", counted=True), counted_attempts=1
    )
    plan = plan_session(replace(ended(code=0, report=report("settled")), status=status))
    assert plan.status.epoch == EPOCH + 1
    assert plan.status.last_exit == status.last_exit

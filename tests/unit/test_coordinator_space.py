"""One Space, what to do: where its pod is, when it is placed again, who may have it next."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from durable_coordinator.actions import DeletePod, PlaceSpace, SpacePlan, WakeSession
from durable_coordinator.conditions import SPACE_REASONS, SPACE_TYPES
from durable_coordinator.facts import (
    DaemonFacts,
    Deletion,
    HolderFacts,
    Obstacle,
    PodPhase,
    SpaceFacts,
    SpacePod,
    Waiter,
)
from durable_coordinator.leases import is_free, wants_lease
from durable_coordinator.space import plan_space
from durable_coordinator.spec_common import Claim
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import InlineSpace, SpaceSpec, Storage
from durable_coordinator.status import (
    Condition,
    Holder,
    LastHolder,
    PodRecord,
    SessionStatus,
    SpaceStatus,
    at,
    condition,
)

NOW = 1_000_000.0
HOLDER = Holder(namespace="ns", name="job", uid="session", renew_time=at(NOW - 60))
STATUS = SpaceStatus(
    holder=HOLDER, lease_token=3, epoch=5, generation=2, pod=PodRecord(name="w-g2", uid="pod"), operator="install"
)
UNSEEN = msgspec.structs.replace(STATUS, pod=PodRecord(name="w-g2"))
POD = SpacePod(name="w-g2", uid="pod", generation=2, owner_uid="space", ready=True, node="n", created_at=NOW - 100)
FACTS = SpaceFacts(
    now=NOW,
    namespace="ns",
    name="w",
    uid="space",
    spec=SpaceSpec(),
    status=STATUS,
    install="install",
    pod=POD,
    generation_seen=2,
    holder=HolderFacts(uid="session"),
    created_at=NOW - 1000,
)
FREE = msgspec.structs.replace(STATUS, holder=None)
WAITER = Waiter(created_at=NOW - 50, uid="next", namespace="ns", name="next")


def pod(**changes: Any) -> SpaceFacts:
    return replace(FACTS, pod=replace(POD, **changes))


def names(plan: SpacePlan) -> tuple[str, ...]:
    return tuple(type(action).__name__ for action in plan.actions)


WRITE = ("WriteStatus",)
AGAIN = ("WriteStatus", "PlaceSpace")
READY = ("WriteStatus", "WakeSession")  # it became ready with this plan: its holder is told
ROWS: dict[str, tuple[SpaceFacts, str, tuple[str, ...], int]] = {
    "never placed: place generation 1": (
        replace(FACTS, status=SpaceStatus(), pod=None, holder=None, generation_seen=0), "Placing", AGAIN, 1),
    "never placed, a former Space of the name got to generation 4: place above it": (
        replace(FACTS, status=SpaceStatus(), pod=None, holder=None, generation_seen=3, generation_before=4), "Placing", AGAIN, 5),
    "generation written, pod never seen: the same generation": (replace(FACTS, status=UNSEEN, pod=None), "Placing", AGAIN, 2),
    "pod seen and gone: the next generation": (replace(FACTS, pod=None), "Placing", AGAIN, 3),
    "pod of the same name, another uid than recorded: next, delete it": (
        pod(uid="late"), "Placing", (*AGAIN, "DeletePod"), 3),
    "pod of a stranger: neither adopted nor deleted": (pod(owner_uid="x", managed=False), "NameConflict", WRITE, 2),
    "pod of a former life: deleted, waited for": (pod(owner_uid="x"), "NameConflict", ("WriteStatus", "DeletePod"), 2),
    "pod over: next": (pod(phase=PodPhase.ENDED, ready=False), "Placing", AGAIN, 3),
    "pod deleted, within its grace: wait": (pod(deletion=Deletion(at=NOW - 30, grace_seconds=30)), "Placing", WRITE, 2),
    "pod deleted, past its grace: next": (pod(deletion=Deletion(at=NOW - 35, grace_seconds=30)), "Placing", AGAIN, 3),
    "node unreachable, not for long: wait": (pod(node_unreachable_seconds=59), "NodeUnreachable", WRITE, 2),
    "node unreachable for long: next, delete the old": (
        pod(node_unreachable_seconds=60), "Placing", (*AGAIN, "DeletePod"), 3),
    "pending, not bound: leave": (
        pod(phase=PodPhase.PENDING, ready=False, bound=False, waiting_reason="Unschedulable"), "Unschedulable", WRITE, 2),
    "pending, bound: show why": (
        pod(phase=PodPhase.PENDING, ready=False, waiting_reason="ImagePullFailed"), "ImagePullFailed", WRITE, 2),
    "pending, bound, for too long: next, delete it": (
        pod(phase=PodPhase.PENDING, ready=False, created_at=NOW - 600), "Placing", (*AGAIN, "DeletePod"), 3),
    "pending, spec changed: next, delete it": (
        pod(phase=PodPhase.PENDING, ready=False, outdated=True), "Placing", (*AGAIN, "DeletePod"), 3),
    "container restarts after running out of memory: same generation": (
        pod(ready=False, restarts=1, last_reason="OOMKilled", last_at=NOW - 3), "OOMKilled", WRITE, 2),
    "container restarts: same generation": (pod(ready=False, restarts=1), "PodFailed", WRITE, 2),
    "running, not ready yet": (pod(ready=False), "Placing", WRITE, 2),
    "ready, daemon silent: no generation grows": (replace(FACTS, daemon_failing_since=NOW - 1000), "Unreachable", WRITE, 2),
    "ready": (FACTS, "SpaceReady", READY, 2),
    "re-placements slowed down: wait": (replace(FACTS, pod=None, may_replace=False), "Placing", WRITE, 2),
    "pod refused: say so": (
        replace(FACTS, pod=None, obstacle=Obstacle(reason="PodRejected", message="denied")), "PodRejected", WRITE, 2),
    "an older generation still lives: delete it": (
        replace(FACTS, others=(replace(POD, name="w-g1", uid="old", generation=1),)), "SpaceReady",
        ("WriteStatus", "DeletePod", "WakeSession"), 2),
    "deleting: delete its pods": (replace(FACTS, deleting=True), "Deleting", ("WriteStatus", "DeletePod"), 2),
    "holder suspended with Stop: no pod": (
        replace(FACTS, holder=HolderFacts(uid="session", suspended="Stop")), "Idle", ("WriteStatus", "DeletePod"), 2),
    "holder suspended with Retain: the pod stays": (
        replace(FACTS, holder=HolderFacts(uid="session", suspended="Retain")), "SpaceReady", READY, 2),
    "managed by another install: left alone": (replace(FACTS, install="other"), "ManagedElsewhere", (), 2),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str) -> None:
    facts, reason, actions, generation = ROWS[row]
    plan = plan_space(facts)
    assert (plan.reason, names(plan), plan.status.generation) == (reason, actions, generation)
    for place in (action for action in plan.actions if isinstance(action, PlaceSpace)):
        assert (place.name, place.generation, place.epoch_floor) == (f"w-g{generation}", generation, plan.status.epoch)
    if plan.actions:
        assert [entry.type for entry in plan.status.conditions] == list(SPACE_TYPES)
        for entry in plan.status.conditions:
            assert entry.reason in SPACE_REASONS[entry.type][entry.status]


@pytest.mark.parametrize("row", ROWS)
def test_planned_again_from_its_own_status_a_space_is_at_rest_or_repeats_itself(row: str) -> None:
    """A status that was written makes no second write: an operator does not turn in circles."""
    facts = ROWS[row][0]
    plan = plan_space(facts)
    placed = [action for action in plan.actions if isinstance(action, PlaceSpace)]
    again = plan_space(replace(facts, status=plan.status, pod=None if placed else facts.pod))
    assert [action for action in again.actions if isinstance(action, PlaceSpace)][: len(placed)] == [
        replace(action, reason="Placing") for action in placed
    ]
    assert again.status.generation == plan.status.generation
    assert plan_space(replace(facts, status=again.status, pod=None if placed else facts.pod)).status == again.status


def test_a_workspace_is_filled_when_it_is_new() -> None:
    claim = SpaceSpec(storage=Storage(type="Claim", claim=Claim()))
    fills = []
    for spec, status in ((SpaceSpec(), STATUS), (claim, STATUS), (claim, SpaceStatus())):
        plan = plan_space(replace(FACTS, spec=spec, status=status, pod=None, generation_seen=0))
        fills += [action.fill for action in plan.actions if isinstance(action, PlaceSpace)]
    assert fills == [True, False, True]


def test_the_daemons_identity_and_the_pods_restarts_are_recorded() -> None:
    facts = replace(pod(restarts=2, last_reason="OOMKilled", last_code=137, last_at=NOW - 9, address="10.0.0.1"))
    status = plan_space(replace(facts, daemon=DaemonFacts(instance_id="i", boot_id="b"))).status
    assert (status.instance_id, status.boot_id, status.restarts) == ("i", "b", 2)
    assert status.last_termination is not None
    assert (status.last_termination.reason, status.last_termination.code) == ("OOMKilled", 137)
    assert status.pod is not None
    assert (status.pod.uid, status.pod.ip) == ("pod", "10.0.0.1")


@pytest.mark.parametrize(
    ("holder", "free"),
    [
        (HolderFacts(uid="session"), False),
        (None, True),
        (HolderFacts(uid="of the same name"), True),
        (HolderFacts(uid="session", finished=True), True),
        (HolderFacts(uid="session", suspended="Release"), True),
        (HolderFacts(uid="session", suspended="Stop"), False),
        (HolderFacts(uid="session", suspended="Retain"), False),
        (HolderFacts(uid="session", deleting=True), False),
        (HolderFacts(uid="session", lease_seconds=60), False),
    ],
    ids=[
        "alive",
        "deleted",
        "re-created",
        "finished",
        "released",
        "stopped",
        "retained",
        "being deleted",
        "just expired",
    ],
)
def test_when_a_lease_is_free(holder: HolderFacts | None, free: bool) -> None:
    assert is_free(STATUS, holder, NOW) is free


def test_a_lease_moves_by_expiry_only_an_hour_later() -> None:
    holder = HolderFacts(uid="session", lease_seconds=60)
    renewed = NOW - 60
    assert not is_free(STATUS, holder, renewed + 60 + 3600)
    assert is_free(STATUS, holder, renewed + 60 + 3601)


def test_a_holder_that_is_gone_is_shown_as_gone_and_the_oldest_waiter_is_woken() -> None:
    older = Waiter(created_at=NOW - 90, uid="z", namespace="ns", name="older")
    plan = plan_space(replace(FACTS, holder=None, waiters=(WAITER, older)))
    assert (plan.status.holder, plan.status.last_holder) == (None, LastHolder(name="job", uid="session"))
    assert [action.name for action in plan.actions if isinstance(action, WakeSession)] == ["older"]
    assert plan.status.waiting == 2
    held = condition(plan.status.conditions, "Held")
    assert held is not None
    assert (held.status, held.reason) == ("False", "Free")


def test_a_space_without_holder_and_waiters_is_stopped_after_its_idle_time() -> None:
    freed = (Condition(type="Held", status="False", reason="Free", last_transition_time=at(NOW - 100)),)
    facts = replace(
        FACTS, spec=SpaceSpec(idle_seconds=120), status=msgspec.structs.replace(FREE, conditions=freed), holder=None
    )
    assert plan_space(facts).requeue_after == 20
    plan = plan_space(replace(facts, now=NOW + 20))
    assert plan.reason == "Idle"
    assert [action.uid for action in plan.actions if isinstance(action, DeletePod)] == ["pod"]
    stopped = replace(facts, now=NOW + 30, status=plan.status, pod=None)
    assert plan_space(stopped).actions == ()
    woken = plan_space(replace(stopped, waiters=(WAITER,)))
    assert (woken.reason, woken.status.generation) == ("Placing", 3)


@pytest.mark.parametrize(
    ("reason", "spec", "wants"),
    [
        (None, {}, True),
        ("WaitingForLease", {}, True),
        ("WaitingForSpace", {}, True),
        ("ConfigError", {}, False),
        ("Pending", {"operating_mode": "Suspended"}, False),
    ],
)
def test_who_counts_as_a_waiter(reason: str | None, spec: dict[str, Any], wants: bool) -> None:
    ready = (
        ()
        if reason is None
        else (Condition(type="Ready", status="False", reason=reason, last_transition_time=at(NOW)),)
    )
    session = SessionSpec(input="do it", space=InlineSpace(), **spec)
    assert wants_lease(session, SessionStatus(conditions=ready), now=NOW, deleting=False, install="install") is wants
    other = SessionStatus(conditions=ready, operator="other")
    assert not wants_lease(session, other, now=NOW, deleting=False, install="install")
    waiting = SessionStatus(conditions=ready, next_attempt_time=at(NOW + 1))
    assert not wants_lease(session, waiting, now=NOW, deleting=False, install="install")


def test_a_pod_of_a_higher_generation_is_left_to_the_next_placement() -> None:
    """A status restored from a backup is behind its pods; what it does not know it does not delete."""
    ahead = replace(POD, name="w-g4", uid="ahead", generation=4)
    facts = replace(FACTS, others=(ahead,), generation_seen=4)
    assert [action for action in plan_space(facts).actions if isinstance(action, DeletePod)] == []
    plan = plan_space(replace(facts, pod=None))
    assert plan.status.generation == 5
    again = plan_space(replace(facts, status=plan.status, pod=replace(POD, name="w-g5", uid="new", generation=5)))
    assert [action.uid for action in again.actions if isinstance(action, DeletePod)] == ["ahead"]

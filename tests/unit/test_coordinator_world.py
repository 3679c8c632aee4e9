"""Two coordinators, two sessions and one Space in a simulated world: crashes at every write, stale reads, drivers that end
in any way, a Space that goes away. What must hold does so at every step, and a world left in peace comes to its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from durable_coordinator.actions import (
    AskStop,
    DeleteDriver,
    DeletePod,
    IssueEpoch,
    PlaceSpace,
    ReleaseLease,
    RenewLease,
    SessionAction,
    SessionPlan,
    SpaceAction,
    SpacePlan,
    StartDriver,
    WriteStatus,
)
from durable_coordinator.conditions import SESSION_REASONS, SESSION_TYPES, SPACE_REASONS
from durable_coordinator.epochs import driver_name, space_pod_name
from durable_coordinator.facts import (
    DaemonFacts,
    Deletion,
    Disruption,
    DriverEnd,
    DriverFacts,
    SessionFacts,
    SpaceFacts,
    SpacePod,
    Waiter,
)
from durable_coordinator.leases import holder_facts, wants_lease
from durable_coordinator.report import Report, ReportedFloor
from durable_coordinator.session import plan_session
from durable_coordinator.space import plan_space
from durable_coordinator.spec_common import OurRef
from durable_coordinator.spec_session import Retry, SessionSpec, Suspend
from durable_coordinator.spec_space import SpaceSpec
from durable_coordinator.status import SessionStatus, SpaceStatus, condition, from_dict, is_true, to_dict

SPEC = SessionSpec(input="do it", space_ref=OurRef(name="work"), retry=Retry(max_attempts=3))
START_DEADLINE_SECONDS = 10.0  # rule 16d: a start only from a read at most that old
ENDS = {
    "settled": (0, "settled"),
    "zero": (0, None),
    "crashed": (1, "crashed"),
    "killed": (137, None),
    "fenced": (75, "fenced"),
    "stopped": (143, "stopped"),
    "space gone": (1, "halted"),
    "permanent": (78, "failed"),
}


@dataclass
class Driver:
    uid: str
    session: str
    epoch: int
    created: float
    claimed: bool  # the epoch is this process's in the log: no other had claimed it
    started: float | None = None
    end: DriverEnd | None = None
    deletion: Deletion | None = None
    asked: float | None = None


@dataclass
class Session:
    uid: str
    name: str
    created: float
    spec: SessionSpec = SPEC
    status: SessionStatus = field(default_factory=SessionStatus)
    version: int = 0
    generation: int = 1


@dataclass
class Work:
    """A plan that is being carried out, with the versions it was made from."""

    what: str
    plan: SessionPlan | SpacePlan
    at: float
    session_version: int
    space_version: int
    next: int = 0


@dataclass
class Coordinator:
    """What a process keeps in memory, all of it lost in a crash."""

    remembered: dict[str, DriverEnd] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    work: Work | None = None


class World:
    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.sessions = {
            name: Session(uid=f"uid-{name}", name=name, created=self.now + i) for i, name in enumerate("ab")
        }
        self.space = SpaceStatus()
        self.space_version = 0
        self.drivers: dict[str, Driver] = {}
        self.pods: dict[str, SpacePod] = {}
        self.coordinators = [Coordinator(), Coordinator()]
        self.uids = 0
        self.starts: dict[tuple[str, int], int] = {}
        self.generations_seen = 0

    # ------------------------------------------------------------------ reading

    def space_facts(self) -> SpaceFacts:
        holder = self.space.holder
        held = self.sessions[holder.name] if holder is not None else None
        waiters = tuple(
            Waiter(created_at=one.created, uid=one.uid, namespace="ns", name=one.name)
            for one in self.sessions.values()
            if (holder is None or holder.uid != one.uid)
            and wants_lease(one.spec, one.status, now=self.now, deleting=False, install="install")
        )
        pod = self.pods.get(space_pod_name("work", self.space.generation))
        return SpaceFacts(
            now=self.now,
            namespace="ns",
            name="work",
            uid="space",
            spec=SpaceSpec(),
            status=self.space,
            install="install",
            pod=pod,
            others=tuple(one for one in self.pods.values() if one is not pod),
            generation_seen=self.generations_seen,
            daemon=DaemonFacts(floor_epoch=0, instance_id=pod.uid) if pod is not None else None,
            holder=None if held is None else holder_facts(held.uid, held.spec, held.status, deleting=False),
            waiters=waiters,
        )

    def driver_facts(self, name: str) -> DriverFacts | None:
        driver = self.drivers.get(name)
        if driver is None:
            return None
        return DriverFacts(
            name=name,
            uid=driver.uid,
            epoch=driver.epoch,
            owner_uid=self.sessions[driver.session].uid,
            running=driver.started is not None and driver.end is None,
            over=driver.end is not None,
            end=driver.end,
            created_at=driver.created,
            started_at=driver.started,
            deletion=driver.deletion,
            stop_asked_at=driver.asked,
        )

    def session_facts(self, name: str, coordinator: Coordinator) -> SessionFacts:
        session = self.sessions[name]
        current = driver_name(name, session.status.epoch)
        mine = [key for key, one in self.drivers.items() if one.session == name and key != current]
        all_others = [facts for key in mine if (facts := self.driver_facts(key)) is not None]
        return SessionFacts(
            now=self.now,
            namespace="ns",
            name=name,
            uid=session.uid,
            spec=session.spec,
            status=session.status,
            object_generation=session.generation,
            created_at=session.created,
            install="install",
            driver=self.driver_facts(current),
            others=tuple(one for one in all_others if not one.over),
            remembered={uid: end for uid, end in coordinator.remembered.items() if end.name.startswith(f"{name}-")},
            epoch_seen=coordinator.seen.get(name, 0),
            space=self.space_facts(),
        )

    def read(self, coordinator: Coordinator, what: str) -> Work:
        """Read everything, plan, and check what a plan promises by itself."""
        version = self.sessions[what].version if what in self.sessions else 0
        plan: SessionPlan | SpacePlan
        if what == "work":
            plan = plan_space(self.space_facts())
            check_space_plan(plan)
        else:
            for driver in self.drivers.values():
                coordinator.seen[driver.session] = max(coordinator.seen.get(driver.session, 0), driver.epoch)
            plan = plan_session(self.session_facts(what, coordinator))
            check_session_plan(plan)
        return Work(what=what, plan=plan, at=self.now, session_version=version, space_version=self.space_version)

    # ------------------------------------------------------------------ acting

    def step(self, coordinator: Coordinator) -> bool:
        """Carry out the next action of a coordinator's plan; False: there is none, or it conflicted and the plan is dropped."""
        work = coordinator.work
        if work is None or work.next >= len(work.plan.actions):
            coordinator.work = None
            return False
        action = work.plan.actions[work.next]
        work.next += 1
        done = self.act(coordinator, work, action)
        if not done:
            coordinator.work = None
        return done

    def act(self, coordinator: Coordinator, work: Work, action: SessionAction | SpaceAction) -> bool:
        match action:
            case WriteStatus() if isinstance(work.plan, SessionPlan):
                return self.put_session(work, work.plan.status)
            case WriteStatus():
                assert isinstance(work.plan, SpacePlan)
                return self.put_space(work, work.plan.status)
            case IssueEpoch() | RenewLease() | ReleaseLease():
                return self.put_space(work, action.space)
            case StartDriver():
                return self.start(coordinator, work, action)
            case DeleteDriver():
                self.delete(action)
            case AskStop():
                driver = self.drivers.get(action.name)
                if driver is not None and driver.uid == action.uid and driver.asked is None:
                    driver.asked = self.now
            case PlaceSpace():
                return self.place(action)
            case DeletePod():
                self.pods = {key: one for key, one in self.pods.items() if one.uid != action.uid}
            case _:
                pass  # waking: here everything is planned sooner or later
        return True

    def put_session(self, work: Work, status: SessionStatus) -> bool:
        session = self.sessions[work.what]
        if session.version != work.session_version:
            return False
        before = session.status
        assert status.epoch >= before.epoch, "an epoch went back"
        assert status.attempts >= before.attempts, "attempts went back"
        assert before.session_id in ("", status.session_id), "the log's identity changed"
        if is_true(before.conditions, "Succeeded"):
            assert is_true(status.conditions, "Succeeded"), "success was taken back"
        assert from_dict(SessionStatus, to_dict(status)) == status
        check_counting(before, status)
        session.status = status
        session.version += 1
        work.session_version = session.version
        return True

    def put_space(self, work: Work, status: SpaceStatus) -> bool:
        if self.space_version != work.space_version:
            return False
        before = self.space
        assert status.epoch >= before.epoch, "a Space's epoch went back"
        assert status.lease_token >= before.lease_token, "a lease token went back"
        assert status.generation >= before.generation, "a generation went back"
        if status.holder is not None and (before.holder is None or before.holder.uid != status.holder.uid):
            assert status.lease_token > before.lease_token, "a new holder under an old token"
            assert status.epoch > before.epoch, "a new holder without an epoch of its own"
        if status.lease_token != before.lease_token:
            assert status.epoch >= status.lease_token
        assert from_dict(SpaceStatus, to_dict(status)) == status
        self.space = status
        self.space_version += 1
        work.space_version = self.space_version
        return True

    def start(self, coordinator: Coordinator, work: Work, action: StartDriver) -> bool:
        """A second start under one epoch is possible only if the first was gone before anybody remembered it; the log then
        refuses the second process, for the first has claimed the epoch (rule 1)."""
        if self.now - work.at > START_DEADLINE_SECONDS or action.name in self.drivers:
            return False
        session = self.sessions[work.what]
        key = (session.name, action.epoch)
        again = self.starts.get(key, 0)
        self.starts[key] = again + 1
        assert not again or coordinator.seen.get(session.name, 0) < action.epoch, (
            f"epoch {action.epoch} started twice, knowingly"
        )
        assert action.epoch <= session.status.epoch, "started before its epoch was written"
        if work.space_version == self.space_version:
            assert self.space.holder is not None
            assert self.space.holder.uid == session.uid, "started without the lease"
            assert self.space.epoch == action.epoch, "started below the Space's epoch"
        if action.epoch == session.status.epoch:
            last = session.status.last_exit
            assert last is None or last.epoch < action.epoch, "started although its end is recorded"
            assert session.status.driver is not None
            assert session.status.driver.uid == "", "started although a driver is recorded"
        self.uids += 1
        self.drivers[action.name] = Driver(
            uid=f"driver-{self.uids}", session=session.name, epoch=action.epoch, created=self.now, claimed=not again
        )
        coordinator.seen[session.name] = max(coordinator.seen.get(session.name, 0), action.epoch)
        return True

    def delete(self, action: DeleteDriver) -> None:
        driver = self.drivers.get(action.name)
        if driver is None or driver.uid != action.uid:
            return
        if driver.started is None or driver.end is not None:
            del self.drivers[action.name]
        elif driver.deletion is None:
            driver.deletion = Deletion(at=self.now, grace_seconds=30)

    def place(self, action: PlaceSpace) -> bool:
        if action.name in self.pods:
            return False
        assert action.generation <= self.space.generation, "placed before its generation was written"
        self.uids += 1
        self.generations_seen = max(self.generations_seen, action.generation)
        self.pods[action.name] = SpacePod(
            name=action.name, uid=f"pod-{self.uids}", generation=action.generation, owner_uid="space", ready=True
        )
        return True

    # ------------------------------------------------------------------ what happens by itself

    def end(self, name: str, how: str, disruption: Disruption | None = None, noticed: bool = True) -> None:
        driver = self.drivers[name]
        if not driver.claimed:
            how = "fenced"
        code, outcome = ENDS[how]
        reason = "SpaceUnreachable" if how == "space gone" else ""
        floor = ReportedFloor(epoch=driver.epoch + 1 if how == "fenced" else driver.epoch)
        report = None
        if outcome is not None:
            report = Report(
                epoch=driver.epoch, outcome=outcome, reason=reason, floor=floor, entries=1, last_entry=driver.epoch
            )
        driver.end = DriverEnd(
            uid=driver.uid,
            epoch=driver.epoch,
            name=name,
            code=code,
            report=report,
            started_at=driver.started,
            finished_at=self.now,
            disruption=disruption,
            deleted=driver.deletion is not None,
        )
        if noticed:
            for coordinator in self.coordinators:
                coordinator.remembered[driver.uid] = driver.end


def check_counting(before: SessionStatus, after: SessionStatus) -> None:
    """Every end is counted once, in the write that records it; nothing else but a new series changes a counter."""
    counters = (after.counted_attempts, after.uncounted_in_a_row)
    new_series = after.observed_retry_token != before.observed_retry_token and is_true(before.conditions, "Finished")
    if after.last_exit == before.last_exit or after.last_exit is None:
        assert counters == (before.counted_attempts, before.uncounted_in_a_row) or (new_series and counters == (0, 0))
        return
    assert before.last_exit is None or after.last_exit.epoch > before.last_exit.epoch, "an end was judged twice"
    assert after.last_exit.epoch == before.epoch, "an end of another epoch"
    if after.last_exit.counted:
        assert counters in ((before.counted_attempts + 1, 0), (1, 0))
    elif not is_true(after.conditions, "Finished"):
        assert counters in ((before.counted_attempts, before.uncounted_in_a_row + 1), (0, 0))
    assert after.counted_attempts <= SPEC.retry.max_attempts


def check_session_plan(plan: SessionPlan) -> None:
    """No plan is stuck: it acts, has a timer, or the session is at rest, with a documented reason in every condition."""
    assert [entry.type for entry in plan.status.conditions] == list(SESSION_TYPES)
    for entry in plan.status.conditions:
        assert entry.reason in SESSION_REASONS[entry.type][entry.status], f"{entry.type}: {entry.status} {entry.reason}"
    resting = plan.reason in ("Suspended", "Finished")
    assert plan.actions or plan.requeue_after is not None or resting, f"stuck with {plan.reason}"
    order = [type(action) for action in plan.actions]
    if IssueEpoch in order:
        assert order[:3] == [IssueEpoch, WriteStatus, StartDriver], (
            "rule 16: the Space, then the session, then the start"
        )
    if ReleaseLease in order and WriteStatus in order:
        assert order.index(WriteStatus) < order.index(ReleaseLease), "rule 17: the final status, then the release"


def check_space_plan(plan: SpacePlan) -> None:
    for entry in plan.status.conditions:
        assert entry.reason in SPACE_REASONS[entry.type][entry.status], f"{entry.type}: {entry.status} {entry.reason}"
    assert plan.actions or plan.requeue_after is not None or plan.reason in ("Idle", "Deleting")
    order = [type(action) for action in plan.actions]
    if PlaceSpace in order and WriteStatus in order:
        assert order.index(WriteStatus) < order.index(PlaceSpace), "the generation is written before its pod is started"


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def live(self, name_index: int) -> str | None:
        names = sorted(name for name, one in self.world.drivers.items() if one.end is None)
        return names[name_index % len(names)] if names else None

    @rule(who=st.integers(0, 1), what=st.sampled_from(["a", "b", "work"]), steps=st.integers(0, 6))
    def plan(self, who: int, what: str, steps: int) -> None:
        """Plan, and carry out only the first `steps` actions now: the rest later, by `go_on`, or never (a crash)."""
        coordinator = self.world.coordinators[who]
        coordinator.work = self.world.read(coordinator, what)
        for _ in range(steps):
            if not self.world.step(coordinator):
                break

    @rule(who=st.integers(0, 1))
    def go_on(self, who: int) -> None:
        self.world.step(self.world.coordinators[who])

    @rule(who=st.integers(0, 1))
    def crash(self, who: int) -> None:
        self.world.coordinators[who] = Coordinator()

    @rule(seconds=st.sampled_from([1.0, 6.0, 40.0, 400.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(index=st.integers(0, 5))
    def driver_starts(self, index: int) -> None:
        name = self.live(index)
        if name is not None and self.world.drivers[name].started is None:
            self.world.drivers[name].started = self.world.now

    @rule(
        index=st.integers(0, 5),
        how=st.sampled_from(sorted(ENDS)),
        disruption=st.sampled_from([None, None, Disruption.EVICTED]),
        noticed=st.booleans(),
    )
    def driver_ends(self, index: int, how: str, disruption: Disruption | None, noticed: bool) -> None:
        name = self.live(index)
        if name is not None and self.world.drivers[name].started is not None:
            self.world.end(name, how, disruption, noticed)

    @precondition(lambda self: self.world.drivers)
    @rule(index=st.integers(0, 5))
    def driver_object_vanishes(self, index: int) -> None:
        """A forced deletion or a lost node. Later than a start may be late (rule 16d), or the name would be taken."""
        names = sorted(self.world.drivers)
        del self.world.drivers[names[index % len(names)]]
        self.world.now += START_DEADLINE_SECONDS + 1

    @rule()
    def space_is_lost(self) -> None:
        self.world.pods.clear()
        self.world.now += START_DEADLINE_SECONDS + 1

    @rule(name=st.sampled_from("ab"), space=st.sampled_from(["Retain", "Stop", "Release"]))
    def suspend(self, name: str, space: str) -> None:
        self.edit(name, operating_mode="Suspended", suspend=Suspend(space=space))  # type: ignore[arg-type]

    @rule(name=st.sampled_from("ab"))
    def resume(self, name: str) -> None:
        self.edit(name, operating_mode="Running")

    @rule(name=st.sampled_from("ab"), token=st.sampled_from(["1", "2"]))
    def retry(self, name: str, token: str) -> None:
        self.edit(name, retry_token=token)

    def edit(self, name: str, **changes: object) -> None:
        session = self.world.sessions[name]
        session.spec = msgspec.structs.replace(session.spec, **changes)
        session.generation += 1
        session.version += 1

    def teardown(self) -> None:
        """Left in peace, every session finishes: whatever state the faults left is one from which work goes on."""
        world = self.world
        for name in world.sessions:
            self.edit(name, operating_mode="Running")
        for _ in range(80):
            waits = [self.settle(what) for what in ("work", "a", "b", "work")]
            if all(is_true(one.status.conditions, "Finished") for one in world.sessions.values()) and max(waits) == 0:
                break
            for name, driver in world.drivers.items():
                if driver.started is None:
                    driver.started = world.now
                elif driver.end is None:
                    world.end(name, "settled")
            world.now += 301
        for session in world.sessions.values():
            ready = condition(session.status.conditions, "Ready")
            assert is_true(session.status.conditions, "Finished"), f"{session.name} never ended: {ready}"
        assert world.space.holder is None, "a finished session kept its lease"
        assert [one for one in world.drivers.values() if one.end is None] == [], "a driver outlived its session"

    def settle(self, what: str) -> int:
        """Plan and act without any fault until the plan has nothing more to do; the number of actions."""
        coordinator = self.world.coordinators[0]
        acted = 0
        for _ in range(20):
            coordinator.work = self.world.read(coordinator, what)
            before = acted
            while self.world.step(coordinator):
                acted += 1
            if acted == before:
                break
        return acted


TestWorld = Machine.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=60, deadline=None, derandomize=True)

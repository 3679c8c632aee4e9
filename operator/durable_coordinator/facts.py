"""What a shell has to find out before it may ask for a plan. Frozen values; nothing here decides anything.

Words are neutral: a "driver" is the pod `<session>-e<epoch>` on a cluster and a child process on one machine, where its uid is
made by the store before the fork. One machine leaves all node, deletion and eviction facts at their defaults.

Where facts must come from (rule 16): session, Space and driver from reads of this reconcile, by name, never from a cache;
ends from whatever event they were first known by (rule 9: an end is final for its uid).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from durable_coordinator.report import Report
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import SpaceSpec
from durable_coordinator.status import LogPlace, SessionStatus, SpaceStatus


class Disruption(Enum):
    """Why something outside ended a driver (on a cluster: its DisruptionTarget condition). The value is the exit's reason.

    PreemptionByScheduler -> PREEMPTED; EvictionByEvictionAPI and a kubelet's pressure eviction -> EVICTED; DeletionByTaintManager
    and DeletionByPodGC -> NODE_LOST; a kubelet's graceful shutdown -> NODE_SHUTDOWN.
    """

    PREEMPTED = "Preempted"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    NODE_SHUTDOWN = "NodeShutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """An object is being deleted: when it was asked (unix seconds) and how long it was given.

    Kubernetes' deletionTimestamp is the end of the grace: `at` = deletionTimestamp - deletionGracePeriodSeconds.
    """

    at: float
    grace_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEnd:
    """A driver container (or process) that ended, or never will start. Final for its uid."""

    uid: str
    epoch: int
    name: str = ""
    started: bool = True  # False: the driver container itself never ran
    code: int | None = None  # as a shell shows it: 137 for SIGKILL; None: unknown or never started
    signal: int | None = None
    report: Report | None = None
    started_at: float | None = None  # of the container, not of its pod (rule 11)
    finished_at: float | None = None
    committed: bool = False  # the drive is known to have committed an entry (stream, stdout; a report tells it too)
    beat_age_seconds: float | None = None  # age of the last beat when it ended; None: no stream was there to say
    oom_killed: bool = False
    disruption: Disruption | None = None
    evicted: bool = False  # evicted without a disruption: its own storage limit (rule 23)
    failed_phase: bool = False  # the pod's phase is Failed: exit 0 then proves nothing (rule 4)
    deleted: bool = False  # it carried a deletionTimestamp
    init_failed: bool = False
    detail: str = ""  # the kubelet's own reason, for the message
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """A driver that exists: a pod object, or a process that the store knows and that has not been reaped.

    `end` set: the driver container ended. `over`: nothing of the pod runs any more (a sidecar may outlive the driver, rule 24).
    `frozen`: whoever watches the process itself (a kubelet's probe, the reader of a child's stdout) found no beat for
    stallSeconds; a silent stream alone must never set it (rule 21).
    """

    name: str
    uid: str
    epoch: int
    owner_uid: str = ""  # of the session that its controller reference names
    managed: bool = True  # it carries our labels: then another owner is a former life, else a stranger (rule 14)
    bound: bool = True  # to a node
    running: bool = False  # the driver container is running
    over: bool = False
    end: DriverEnd | None = None
    node: str = ""
    image: str = ""  # to pin, as the runtime names it (rule 36)
    created_at: float = 0.0
    bound_at: float | None = None
    started_at: float | None = None
    deletion: Deletion | None = None
    disruption: Disruption | None = None
    node_unreachable_seconds: float | None = None  # None: the node is fine (rule 7)
    waiting_reason: str = (
        "Starting"  # of Ready: Unschedulable, ImagePullFailed, ConfigError, VolumeUnavailable, Starting
    )
    waiting_message: str = ""
    stuck: bool = False  # what it waits for does not come by itself, though `waiting_reason` alone does not say so
    outdated: bool = False  # made from another spec.driver or image than the present ones; matters until it has started
    frozen: bool = False
    beat_age_seconds: float | None = None  # None: no report stream
    committed: bool = False
    stop_asked_at: float | None = None  # when this process first carried out an AskStop for it


class PodPhase(Enum):
    PENDING = "Pending"
    RUNNING = "Running"
    ENDED = "Ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpacePod:
    """A Space's pod, or its daemon process. `ready`: the daemon serves."""

    name: str
    uid: str
    generation: int
    owner_uid: str = ""
    managed: bool = True
    phase: PodPhase = PodPhase.RUNNING
    bound: bool = True
    ready: bool = False
    node: str = ""
    address: str = ""
    image: str = ""
    created_at: float = 0.0
    started_at: float | None = None
    deletion: Deletion | None = None
    node_unreachable_seconds: float | None = None
    waiting_reason: str = "Placing"  # Unschedulable, ImagePullFailed, PodRejected, VolumeUnavailable, Placing
    waiting_message: str = ""
    stuck: bool = False  # as of a driver
    restarts: int = 0
    outdated: bool = False  # made from another spec or image than the present ones; matters until it has started
    last_reason: str = ""  # of the container's last termination: OOMKilled ...
    last_code: int = 0
    last_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFacts:
    """What GetInfo answered in this reconcile."""

    floor_epoch: int = 0
    instance_id: str = ""
    boot_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderFacts:
    """A fresh read of the session that `SpaceStatus.holder` names. Absent: the whole value is None."""

    uid: str
    finished: bool = False
    deleting: bool = False
    suspended: str = ""  # "" or, once Suspended is True, its spec.suspend.space: Retain, Stop, Release
    lease_seconds: int = 604800


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Waiter:
    """A session that wants a Space's lease now (`leases.wants_lease`). Ordered: oldest first, then by uid (rule 17)."""

    created_at: float
    uid: str
    namespace: str = field(compare=False)
    name: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Something the shell found that keeps a drive (or a placement) from starting.

    `reason` is one of Ready's: StoreNotReady, ConfigError, PodRejected, QuotaExceeded, ForkSourceNotFound, VolumeUnavailable ...
    `message` says what is wrong and who must do what. It is looked at again after `retry_seconds`.
    """

    reason: str
    message: str
    retry_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFacts:
    """One Space as it is now: what `plan_space` plans for, and what a session asks before each drive."""

    now: float
    namespace: str
    name: str
    uid: str
    spec: SpaceSpec
    status: SpaceStatus
    object_generation: int = 1  # metadata.generation of the DurableSpace
    created_at: float = 0.0
    owner_uid: str = ""  # of the session that an inline Space belongs to; "" for one that stands alone
    deleting: bool = False
    install: str = ""  # this coordinator's install id (rule 45)
    pod: SpacePod | None = None  # the one named `<space>-g<status.generation>`, whoever owns it
    others: tuple[SpacePod, ...] = ()  # pods of this Space of other generations that are not over
    generation_seen: int = 0  # highest generation in any pod name of this Space
    generation_before: int = (
        0  # newest generation of a former object of this name, as its session recorded it (rule 38)
    )
    epoch_before: int = 0  # newest epoch of that session
    daemon: DaemonFacts | None = None  # None: GetInfo was not asked, or failed
    daemon_failing_since: float | None = None
    holder: HolderFacts | None = None  # the session named by status.holder, None if it does not exist
    waiters: tuple[Waiter, ...] = ()
    obstacle: Obstacle | None = None
    may_replace: bool = True  # the token bucket of re-placements has a token (rule 13)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """One session as it is now: everything `plan_session` looks at."""

    now: float  # unix seconds; the only clock of a plan
    namespace: str
    name: str
    uid: str
    spec: SessionSpec
    status: SessionStatus
    object_generation: int = 1  # metadata.generation
    created_at: float = 0.0
    install: str = ""  # this coordinator's install id
    deleting: Deletion | None = None
    finalizer: bool = False  # `durablesessions.dev/cleanup` is on the object; one machine needs none: True
    cleaned_up: bool = False  # log and checkpoints of a deletionPolicy Delete are gone, or never will be
    namespace_terminating: bool = False
    driver: DriverFacts | None = None  # the one named `<session>-e<status.epoch>`, whoever owns it
    others: tuple[DriverFacts, ...] = ()  # drivers of other epochs that are not over; also late ones
    history: tuple[DriverFacts, ...] = ()  # drivers of lower epochs that are over and still there for their logs
    remembered: Mapping[str, DriverEnd] = field(
        default_factory=dict
    )  # ends by uid, kept until the epoch was passed (rule 9)
    epoch_seen: int = (
        0  # highest epoch of any driver that this process has seen to exist, whoever owned it; not of status.epoch
    )
    driver_was_deleting: bool = False  # the recorded driver was last seen with a deletionTimestamp
    driver_node_was_unreachable: bool = False  # ... or on an unreachable node
    space: SpaceFacts | None = None  # None: no DurableSpace of that name
    space_changed_at: float = 0.0  # when the Space's generation, pod, address or boot id last changed; 0: unknown
    obstacle: Obstacle | None = None
    log: LogPlace | None = (
        None  # where the log will live, as the shell resolves it; recorded once, with the first epoch
    )

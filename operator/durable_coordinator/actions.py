"""What a plan asks of its shell: frozen values, carried out in their order, stopping at the first that does not succeed.

The order in the tuple is the law (rule 16: the Space's compare-and-swap, then the session's, then the start; rule 17: the
final status, then the release). After a conflict, an error or an unknown outcome: read everything again and plan anew; a plan
is never kept for a retry. Every write carries the version that was read for the facts; every deletion carries a uid.
`reason` is stable CamelCase: logs, events and metrics show it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable_coordinator.spec_space import SpaceSpec
from durable_coordinator.status import SessionStatus, SpaceStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStatus:
    """Compare-and-swap the plan's whole status onto its own object. Absent from a plan whose status is unchanged."""

    reason: str = "StatusChanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueEpoch:
    """Compare-and-swap `space` onto the DurableSpace's status: it takes (or keeps) the lease and issues the epoch in one write.

    A `WriteStatus` with the same epoch follows. A crash between the two leaves a gap in the epochs, which is fine.
    """

    epoch: int
    lease_token: int
    space_name: str
    space_uid: str
    space: SpaceStatus
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDriver:
    """Start the driver `name` of `epoch` on the Space's `generation`; only in a reconcile that read the facts itself.

    "Already exists": read it again and plan; never "done". The uid goes into the status with the next write.
    """

    name: str
    epoch: int
    lease_token: int
    attempt: int  # CUA_SESSION_ATTEMPT: counted ends so far, plus one
    resume: bool  # CUA_SESSION_RESUME: an earlier drive existed
    session_id: str  # request id and log prefix
    space_name: str
    generation: int
    image: str  # the pinned image, "" for the spec's
    avoid_node: str = ""
    reason: str = "Starting"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStop:
    """Ask a driver over its report stream to end at the next durable point. Repeating it is harmless."""

    name: str
    uid: str
    epoch: int
    reason: str  # Suspended, DeadlineExceeded, Deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteDriver:
    """Delete the pod, or end the process, of exactly this uid. `grace_seconds` None: its own; 0: at once (SIGKILL).

    A driver on an unreachable node is deleted as well, never forced: the object goes when the node is back.
    """

    name: str
    uid: str
    epoch: int
    reason: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsureSpace:
    """Create the session's own DurableSpace. Its generations start above `generation_before`, its epochs above `epoch_before`."""

    name: str
    spec: SpaceSpec
    generation_before: int
    epoch_before: int
    reason: str = "SpaceNotFound"


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeSpace:
    """The session waits for its Space: have the Space planned now."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease:
    """Compare-and-swap `space` onto the DurableSpace's status: the same holder and token, a newer renew time."""

    space_name: str
    space_uid: str
    space: SpaceStatus
    reason: str = "LeaseRenewed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLease:
    """Compare-and-swap `space` onto the DurableSpace's status: no holder, the same token. Then wake the next waiter."""

    space_name: str
    space_uid: str
    space: SpaceStatus
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSpace:
    """Delete the session's own DurableSpace, by uid; its pod goes with it."""

    name: str
    uid: str
    reason: str = "Finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFinalizer:
    """Put `durablesessions.dev/cleanup` on the session, before its first drive (rule 19)."""

    reason: str = "DeletionPolicyDelete"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanUp:
    """Delete the session's log and checkpoints; `SessionFacts.cleaned_up` tells when it is over, however it ended."""

    reason: str = "Deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFinalizer:
    reason: str  # CleanedUp, NothingLeft, NamespaceTerminating, CleanupTimedOut


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSession:
    """ttlSecondsAfterFinished is over: delete the session by uid."""

    uid: str
    reason: str = "TimeToLiveOver"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSpace:
    """Start the pod `name` of this generation; only after the status that names the generation was written.

    `epoch_floor` is the daemon's `--epoch-floor`. `fill`: the workspace is new, `spec.source` goes into it.
    """

    name: str
    generation: int
    epoch_floor: int
    fill: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete a Space's pod, or end its daemon, of exactly this uid; with its grace, never forced."""

    name: str
    uid: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeSession:
    """The lease is free and this session is next: have it planned now (rule 17: woken, not polled)."""

    namespace: str
    name: str
    reason: str = "LeaseFree"


SessionAction = (
    WriteStatus
    | IssueEpoch
    | StartDriver
    | AskStop
    | DeleteDriver
    | EnsureSpace
    | WakeSpace
    | RenewLease
    | ReleaseLease
    | DeleteSpace
    | AddFinalizer
    | CleanUp
    | RemoveFinalizer
    | DeleteSession
)
SpaceAction = WriteStatus | PlaceSpace | DeletePod | WakeSession


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """`status`: the whole status that `WriteStatus` writes. `reason` is the one that Ready shows, or shows why nothing is done.

    `requeue_after`: seconds until the plan must be made again if nothing wakes the session before; None: nothing to wait for.
    """

    actions: tuple[SessionAction, ...]
    status: SessionStatus
    reason: str
    requeue_after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpacePlan:
    actions: tuple[SpaceAction, ...]
    status: SpaceStatus
    reason: str
    requeue_after: float | None

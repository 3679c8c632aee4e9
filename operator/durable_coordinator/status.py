"""What a coordinator has written down about a session and its Space: the `status` of both objects, in the form it is stored.

Field names on the wire are the CRDs' camelCase. Times are UTC, to the millisecond, RFC 3339 on the wire. Reading ignores
fields it does not know (a newer coordinator's), writing leaves out what equals its default, and two equal statuses are one
write less: a shell writes only when the planned status differs from the one it read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import msgspec

ConditionStatus = Literal["True", "False", "Unknown"]
Restored = Literal["None", "FromVolume", "FromScratch"]


class _Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    pass


class Condition(_Wire, frozen=True):
    """`last_transition_time` moves only when `status` does; `reason` and `message` may change in between."""

    type: str
    status: ConditionStatus
    reason: str
    last_transition_time: datetime
    message: str = ""  # at most 2048 characters
    observed_generation: int = 0


class LogPlace(_Wire, frozen=True):
    """Where the log lives: resolved once, at the first drive, and never again."""

    storage: str = ""
    location: str = ""


class DriverRecord(_Wire, frozen=True):
    """The driver of `epoch`. `uid` is empty from the issue of its epoch until the started pod or process was seen (rule 16e)."""

    pod: str = ""
    uid: str = ""
    node: str = ""
    epoch: int = 0
    started_at: datetime | None = None
    image: str = ""  # pinned when a driver has started (rule 36)
    spec_image: str = ""  # the spec's image that `image` was pinned for: an edit ends the pin


class SpaceRecord(_Wire, frozen=True):
    """The Space of the newest drive."""

    name: str = ""
    uid: str = ""
    generation: int = 0
    restored: Restored = "None"


class LastExit(_Wire, frozen=True):
    """How the newest finished drive ended. An exit of an epoch at or below `epoch` was counted already (protocol rule 32)."""

    epoch: int
    pod: str = ""
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    counted: bool = False
    time: datetime | None = None


class CheckpointRecord(_Wire, frozen=True):
    id: str = ""
    time: datetime | None = None


class Progress(_Wire, frozen=True):
    """`entries`: the newest entry of the log that a driver told of."""

    entries: int = 0
    time: datetime | None = None


class SessionStatus(_Wire, frozen=True):
    """`DurableSession.status`. Written by the coordinator alone, always whole, always by compare-and-swap."""

    observed_generation: int = 0
    operator: str = ""  # the install that owns this session (rule 45)
    session_id: str = msgspec.field(default="", name="sessionID")  # request id and log prefix; set once (rule 43)
    epoch: int = 0  # only grows; written before anything is started under it
    attempts: int = 0  # drives issued; only grows
    counted_attempts: int = 0  # ends in a row that count against retry.maxAttempts
    uncounted_in_a_row: int = 0  # ends in a row without progress that do not (rule 10)
    lease_token: int = 0
    start_time: datetime | None = None
    suspended_seconds: int = 0
    completion_time: datetime | None = None
    next_attempt_time: datetime | None = None
    observed_retry_token: str = ""
    log: LogPlace | None = None
    driver: DriverRecord | None = None
    space: SpaceRecord | None = None
    last_exit: LastExit | None = None
    checkpoint: CheckpointRecord | None = None
    recoveries: dict[str, int] = msgspec.field(default_factory=dict)
    progress: Progress | None = None
    answer: str = ""
    answer_truncated: bool = False
    conditions: tuple[Condition, ...] = ()


class Holder(_Wire, frozen=True):
    """Who has the lease: compared by uid, never by name alone (rule 17)."""

    namespace: str
    name: str
    uid: str
    acquire_time: datetime | None = None
    renew_time: datetime | None = None


class LastHolder(_Wire, frozen=True):
    name: str
    uid: str


class PodRecord(_Wire, frozen=True):
    """The Space's pod (or daemon process) of the current generation. `uid` is empty until it was seen."""

    name: str = ""
    uid: str = ""
    node: str = ""
    ip: str = ""  # or the socket's address on one machine
    started_at: datetime | None = None
    image: str = ""


class LastTermination(_Wire, frozen=True):
    reason: str = ""
    code: int = 0
    time: datetime | None = None


class SpaceStatus(_Wire, frozen=True):
    """`DurableSpace.status`: lease, epoch and generation in one object, so that one compare-and-swap decides all three."""

    observed_generation: int = 0
    operator: str = ""
    holder: Holder | None = None
    last_holder: LastHolder | None = None
    lease_token: int = 0  # +1 with every new holder
    epoch: int = 0  # the newest epoch issued on this Space; only grows
    generation: int = 0  # 0: never placed
    pod: PodRecord | None = None
    instance_id: str = ""
    boot_id: str = ""
    restarts: int = 0
    last_termination: LastTermination | None = None
    waiting: int = 0
    conditions: tuple[Condition, ...] = ()


StatusT = TypeVar("StatusT", SessionStatus, SpaceStatus)


def to_dict(status: SessionStatus | SpaceStatus) -> dict[str, Any]:
    """The status as plain JSON values, camelCase, defaults left out."""
    wire: dict[str, Any] = msgspec.to_builtins(status)
    return wire


def from_dict(kind: type[StatusT], raw: dict[str, Any] | None) -> StatusT:
    """The stored status; None or {} is that of an object nobody has looked at. Unknown fields are ignored.

    Raises msgspec.ValidationError if a known field has another type: nobody but a coordinator writes statuses, so this is
    damage, and guessing at an epoch would be worse than stopping.
    """
    return msgspec.convert(raw or {}, kind)


def at(now: float) -> datetime:
    """Unix seconds as a status time."""
    return datetime.fromtimestamp(round(now, 3), UTC)


def seconds(time: datetime) -> float:
    """A status time as unix seconds."""
    return time.timestamp()


def condition(conditions: tuple[Condition, ...], type: str) -> Condition | None:
    return next((entry for entry in conditions if entry.type == type), None)


def is_true(conditions: tuple[Condition, ...], type: str) -> bool:
    found = condition(conditions, type)
    return found is not None and found.status == "True"

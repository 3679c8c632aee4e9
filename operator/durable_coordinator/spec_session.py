"""`DurableSession.spec`: what a user asks for. Part B of the operator's rules, field by field.

Which fields may change after creation is the CRD's business (immutable, at the next drive, at once); a coordinator reads the
spec afresh each time and never compares it with an older one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from durable_coordinator.spec_common import (
    Claim,
    EnvSource,
    Image,
    OurRef,
    PodTemplate,
    PullPolicy,
    Spec,
    Text,
    TextSource,
)
from durable_coordinator.spec_space import UNREACHABLE_SECONDS, InlineSpace, SpaceSpec

UUID_PATTERN = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
Mode = Literal["auto", "transactional", "checkpoint"]


class ModelSpec(Spec, frozen=True):
    provider: Annotated[str, Meta(min_length=1, max_length=63)]
    name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    base_url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    thinking: Annotated[str, Meta(min_length=1, max_length=63)] | None = None


class AgentSpec(Spec, frozen=True):
    model: ModelSpec
    instructions: Annotated[str, Meta(max_length=65536)] = ""
    tools: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...], Meta(max_length=64)] | None = None
    max_turns: Annotated[int, Meta(ge=1)] | None = None
    max_cost: Annotated[str, Meta(max_length=32, pattern="^[0-9]+([.][0-9]{1,4})?$")] | None = None
    script_from: TextSource | None = None  # the scripted model's YAML


class EnvVar(Spec, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=253)]
    value: Annotated[str, Meta(max_length=32768)] | None = None
    value_from: EnvSource | None = None


class DriverSpec(Spec, frozen=True):
    image: Image | None = None  # None: the chart's
    image_pull_policy: PullPolicy | None = None
    command: Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=64)] = ()
    args: Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=64)] = ()
    env: Annotated[tuple[EnvVar, ...], Meta(max_length=100)] = ()
    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    pod_template: PodTemplate | None = None
    service_account_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    termination_grace_period_seconds: Annotated[int, Meta(ge=1, le=3600)] = 60
    start_seconds: Annotated[int, Meta(ge=30, le=86400)] = 600
    history_limit: Annotated[int, Meta(ge=0, le=20)] = 3


class Transactional(Spec, frozen=True):
    """Limits of the image that transactional mode keeps in the log; `exclude` are path patterns below the workspace."""

    max_files: Annotated[int, Meta(ge=1, le=1000000)] = 1000
    max_bytes: Annotated[int, Meta(ge=1, le=1099511627776)] = 16777216
    exclude: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=512)], ...], Meta(max_length=64)] = ()


class LogSpec(Spec, frozen=True):
    """`storage` has no static default: it is resolved once, at the first drive, and recorded in the status."""

    storage: Literal["ObjectStore", "PersistentVolumeClaim"] | None = None
    claim: Claim | None = None


class Retry(Spec, frozen=True):
    """`max_attempts` counts ends in a row without progress; seconds; `factor` is an integer."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 10
    initial_seconds: Annotated[int, Meta(ge=1, le=3600)] = 2
    factor: Annotated[int, Meta(ge=1, le=10)] = 2
    max_seconds: Annotated[int, Meta(ge=1, le=86400)] = 300
    reset_after_seconds: Annotated[int, Meta(ge=0)] = 600


class Suspend(Spec, frozen=True):
    """Retain: lease and Space stay. Stop: the lease stays, the Space's pod goes. Release: another session may have the Space."""

    space: Literal["Retain", "Stop", "Release"] = "Retain"


class ForkFrom(Spec, frozen=True):
    session: Annotated[str, Meta(min_length=1, max_length=47)]
    entry: Annotated[int, Meta(ge=1, le=2**53 - 1)]


class SessionSpec(Spec, frozen=True):
    input: Text | None = None
    input_from: TextSource | None = None
    agent: AgentSpec | None = None  # neither agent nor agentFrom: the driver brings its own
    agent_from: TextSource | None = None
    driver: DriverSpec = DriverSpec()
    space: InlineSpace | None = None
    space_ref: OurRef | None = None
    mode: Mode = "auto"
    transactional: Transactional | None = None
    checkpoint_store_ref: OurRef | None = None
    log: LogSpec | None = None
    retry: Retry = Retry()
    stall_seconds: Annotated[int, Meta(ge=10, le=86400)] = 120
    lease_seconds: Annotated[int, Meta(ge=60)] = 604800
    unreachable_seconds: Annotated[int, Meta(ge=10, le=3600)] = UNREACHABLE_SECONDS
    active_deadline_seconds: Annotated[int, Meta(ge=1)] | None = None
    ttl_seconds_after_finished: Annotated[int, Meta(ge=0)] | None = None
    operating_mode: Literal["Running", "Suspended"] = "Running"
    suspend: Suspend = Suspend()
    retry_token: Annotated[str, Meta(max_length=63)] = ""
    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    fork_from: ForkFrom | None = None
    session_id: Annotated[str, Meta(max_length=36, pattern=UUID_PATTERN)] | None = msgspec.field(
        default=None, name="sessionID"
    )

    def space_name(self, session: str) -> str:
        """The DurableSpace it works in: a referenced one, or one of its own by the session's name."""
        return self.space_ref.name if self.space_ref is not None else session

    def space_spec(self) -> SpaceSpec | None:
        """The inline Space's spec as a DurableSpace carries it; None if the session refers to a Space."""
        if self.space is None:
            return None
        fields = {name: getattr(self.space, name) for name in SpaceSpec.__struct_fields__}
        return SpaceSpec(**fields)

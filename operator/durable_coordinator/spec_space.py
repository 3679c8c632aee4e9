"""`DurableSpace.spec`, and the `space` of a session, which is the same with one field more."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from durable_coordinator.spec_common import Claim, Image, NameRef, PodTemplate, PullPolicy, Quantity, Spec

UNREACHABLE_SECONDS = 60


class GitSource(Spec, frozen=True):
    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    ref: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    secret_ref: NameRef | None = None


class Source(Spec, frozen=True):
    """What a workspace placed from scratch is filled with: at most one of the two."""

    config_map_ref: NameRef | None = None
    git: GitSource | None = None


class Storage(Spec, frozen=True):
    """Ephemeral dies with its pod. `claim` is a claim's spec and goes with type Claim only."""

    type: Literal["Ephemeral", "Claim"] = "Ephemeral"
    size_limit: Quantity | None = None
    claim: Claim | None = None


class SpaceSpec(Spec, frozen=True):
    daemon: Literal["Durable", "Cua"] = "Durable"
    source: Source | None = None
    image: Image | None = None  # None: the chart's
    image_pull_policy: PullPolicy | None = None
    kind: Literal["container", "gvisor", "microvm"] = "container"
    runtime_class_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    workspace: Annotated[str, Meta(min_length=2, max_length=512, pattern="^/[^/].*$")] = "/workspace"
    storage: Storage = Storage()
    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    pod_template: PodTemplate | None = None
    egress: Literal["None", "Public", "All"] = "None"
    unreachable_seconds: Annotated[int, Meta(ge=10, le=3600)] = UNREACHABLE_SECONDS
    idle_seconds: Annotated[int, Meta(ge=0)] | None = None  # None: never stopped for want of a holder
    epoch_kill: Literal["auto", "cgroup2", "pidns", "subreaper"] = "auto"


class InlineSpace(SpaceSpec, frozen=True):
    """A Space of the session's own: made with it, deleted when it finishes."""

    keep_seconds_after_finished: Annotated[int, Meta(ge=0)] = 0

"""Plan one Space: where its pod is, whether it has to be placed again, who may have it next. Pure."""

from __future__ import annotations

from durable_coordinator.actions import SpacePlan
from durable_coordinator.facts import SpaceFacts


def plan_space(facts: SpaceFacts) -> SpacePlan:
    """What to do about a Space now. Same contract as `plan_session`."""
    raise NotImplementedError

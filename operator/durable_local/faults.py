"""When a chaos run kills what: drawn from a seed alone, so that a run can be asked for again. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

DRIVER, SPACE, COORDINATOR = "driver", "Space", "coordinator"
TARGETS = (DRIVER, DRIVER, DRIVER, SPACE, COORDINATOR)
_LATEST_SECONDS = 0.9  # after its step began; a step of some seconds is hit inside, a short one behind
_HURRY_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 0.5


@dataclass(frozen=True, slots=True)
class Fault:
    """Kill `target` so many seconds after `step` has begun and the target, which may be another one's victim, lives again."""

    target: str
    step: int
    seconds: float
    pause_seconds: float  # a coordinator stays away for so long


def plan_faults(seed: int, steps: int, targets: Sequence[str] = TARGETS) -> tuple[Fault, ...]:
    """One fault for each target, in the order in which they happen. `steps` is the number of tool calls of the run.

    The last two steps begin no fault: each one shall hit while work goes on.
    """
    chance = random.Random(seed)
    order = list(targets)
    chance.shuffle(order)
    at = sorted(chance.randint(1, max(steps - 2, 1)) for _ in order)
    return tuple(
        Fault(target, step, chance.uniform(0, _LATEST_SECONDS), chance.uniform(0, _PAUSE_SECONDS_MAX))
        for target, step in zip(order, at, strict=True)
    )


def delay(fault: Fault, step: int, steps: int) -> float:
    """Seconds to wait now that `step` has begun: little if the end of the run is near."""
    return min(fault.seconds, _HURRY_SECONDS) if step >= steps - 1 else fault.seconds

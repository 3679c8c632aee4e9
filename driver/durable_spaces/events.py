"""What the adapter tells about recoveries: content-free, for the log's telemetry, metrics and the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """One recovery, told once its workspace is right. A recovery that crashes is told again by the next drive."""

    kind: str  # run adopted reattached replayed reverted reimaged handedOver
    mode: str
    call: int | None  # the task id; None: between calls
    epoch: int
    reason: str  # CamelCase, stable


OnEvent = Callable[[RecoveryEvent], None]

"""The floor rule: which (epoch, incarnation) a resource admits. One text for log, Space and checkpoint store.

An epoch alone is not exclusive: two processes can be started under one (a pod run twice, an object restored from a backup).
The incarnation, 128 random bits drawn once per driver process, decides between them: the first to claim an epoch owns it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import Enum

ANONYMOUS = ""
EPOCH_MAX = 2**53 - 1  # a JSON number that every client reads exactly


@dataclass(frozen=True, slots=True)
class Floor:
    """The newest epoch that a resource has seen, and the driver process that claimed it."""

    epoch: int = 0
    incarnation: str = ANONYMOUS

    def __str__(self) -> str:
        return f"{self.epoch}/{self.incarnation[:8] or 'anonymous'}"


class Admission(Enum):
    ADMITTED = "admitted"  # equal pair
    RAISES = "raises"  # above: admitted where a raise is allowed, and the floor becomes this pair
    STALE = "stale"  # below, or equal with another incarnation


def judge(floor: Floor, caller: Floor) -> Admission:
    """Pure and total."""
    if caller.epoch > floor.epoch:
        return Admission.RAISES
    if caller == floor:
        return Admission.ADMITTED
    return Admission.STALE


def new_incarnation() -> str:
    """32 hex digits."""
    return secrets.token_hex(16)

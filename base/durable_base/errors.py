"""Errors that more than one part must tell apart."""

from __future__ import annotations

from durable_base.floor import Floor


class UsageError(Exception):
    """Bad input from a person: what, where, and what to do. Commands print it as one line and exit with 2 (a driver: 78)."""


class StaleEpochError(Exception):
    """A newer driver owns the resource. This process must stop; nothing it tried took effect (exit 75)."""

    def __init__(self, resource: str, own: Floor, floor: Floor) -> None:
        super().__init__(f"{resource}: epoch {own} is stale, the floor is {floor}: a newer driver has taken over")
        self.resource = resource  # "log" or "space"
        self.own = own
        self.floor = floor

    def __reduce__(self) -> tuple[type[StaleEpochError], tuple[str, Floor, Floor]]:
        return type(self), (self.resource, self.own, self.floor)


class HaltError(Exception):
    """This drive can't go on, and what it was doing must not be recorded as a result.

    `permanent` False: driven again (exit 1). True: no later drive can succeed either (exit 78). `reason` is stable and
    CamelCase (`SpaceUnreachable`, `SpaceChanged`, `MissingCapability`): report, metric and condition show it as it is.
    """

    def __init__(self, reason: str, message: str, *, permanent: bool = False) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.permanent = permanent

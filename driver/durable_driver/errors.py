"""The driver's own errors: what a `start` function may raise, and what ends a drive from outside."""

from __future__ import annotations


class PermanentFailure(Exception):
    """No later drive can succeed either: exit 78. `reason` is stable and CamelCase; both are shown to people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class StoppedError(Exception):
    """Somebody asked this drive to end (a signal, or the coordinator over its stream): exit 143, driven again if wanted.

    Unlike a halt it is nobody's fault, and unlike a crash it leaves at a durable point.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

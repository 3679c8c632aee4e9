"""The harness's own errors. `StaleEpochError` and `HaltError` are the base's: they pass through every layer."""

from __future__ import annotations


class HarnessError(Exception):
    """Base of the errors below."""


class SessionFailedError(HarnessError):
    """The Session is over in this process: storage failed, a newer driver took over, or a tool halted the drive.

    `__cause__` says which (StaleEpochError, HaltError, or the storage's error). Nothing after it was published; reopen to go on.
    """


class SessionClosedError(HarnessError):
    """close() was called; reopen to go on."""


class ReadAfterWriteError(HarnessError):
    """A table was read after the first table write of the same transaction."""


class TxClosedError(HarnessError):
    """A transaction or draft was used after its callback had settled."""


class InvalidRecordError(HarnessError):
    """A value that is not strict JSON, or a transition that the record model forbids. Nothing was written."""


class ConversationBusyError(HarnessError):
    """`when_busy="reject"` and the conversation has a run. Nothing was written."""


class RequestConflictError(HarnessError):
    """The request id is known with another kind of submission. Nothing was written."""


class CorruptLogError(HarnessError):
    """The log contradicts itself (a missing base, row or index). Never read as absence."""

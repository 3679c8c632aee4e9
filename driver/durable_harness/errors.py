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
    """A value that is not strict JSON, or a write that the record model forbids. Nothing was written."""


class ConversationBusyError(HarnessError):
    """`when_busy="reject"` and the conversation has a run. Nothing was written."""


class RequestConflictError(HarnessError):
    """The request id is known with another kind of submission. Nothing was written."""


class CorruptLogError(HarnessError):
    """The log contradicts itself (a missing base, row or index). Never read as absence."""


class StorageRequestError(HarnessError):
    """The storage was asked for something it never does (a known id, an unknown document, a foreign cursor).

    Proven to have had no effect: this call fails, the Session goes on.
    """


class CommitRejectedError(HarnessError):
    """A task's commit came too late: its call has ended, it is marked for abort, or the harness is closing."""


class UnansweredError(HarnessError):
    """A submission settled without an answer.

    `reason`: no_model, model_error, max_turns, max_cost, aborted, faulted, stale. `detail` may be shown to a person.
    """

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(f"unanswered: {reason}" + (f" ({detail})" if detail else ""))
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[UnansweredError], tuple[str, str | None]]:
        return type(self), (self.reason, self.detail)


class BlockedError(HarnessError):
    """What the wait is for can't happen in this process: a task is blocked. Its submission stays open.

    `reason`: restart_limit (`Harness.retry_task(task_id)` releases it), missing_task, task_too_old, migration_failed (open
    the log with code that knows the task).
    """

    def __init__(self, task_id: int, kind: str, reason: str) -> None:
        super().__init__(f"task {task_id} ({kind}) is blocked: {reason}")
        self.task_id = task_id
        self.kind = kind
        self.reason = reason

    def __reduce__(self) -> tuple[type[BlockedError], tuple[int, str, str]]:
        return type(self), (self.task_id, self.kind, self.reason)

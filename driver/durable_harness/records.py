"""The records of a log. All are plain JSON, all ids come from one counter, and the root conversation's id is 1.

Records are immutable; a task or submission changes by being replaced. Times are milliseconds since 1970 (UTC).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Json = Any
ROOT_ID = 1

OutcomeStatus = Literal["completed", "failed", "aborted", "orphaned", "faulted"]
SubmissionStatus = Literal["queued", "placed", "done", "unanswered"]
TASK_STATUSES = ("pending", "running", "waiting", "sleeping", "completing", "terminal")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all records share: nothing but how they are encoded."""


class Parent(Record, frozen=True, kw_only=True):
    """The history that a conversation inherits: its parent's entries through `at`."""

    conversation_id: int
    at: int


class Owner(Record, frozen=True, kw_only=True):
    """Who a conversation belongs to, for abort and idleness; no access control."""

    conversation_id: int
    task_id: int


class ConversationRecord(Record, frozen=True, kw_only=True):
    id: int
    parent: Parent | None = None
    owner: Owner | None = None


class Edit(Record, frozen=True, kw_only=True):
    """A later entry's change of what the model sees of `target`. `messages` None: the target is left out."""

    target: int
    messages: list[Json] | None = None


class Entry(Record, frozen=True, kw_only=True):
    """One step of a conversation.

    `model`: what the model sees of it, as messages. `data`: what it does not. `head`: the context starts at that entry.
    """

    id: int
    conversation_id: int
    kind: str
    model: list[Json] | None = None
    data: Json = None
    head: int | None = None
    edits: list[Edit] | None = None
    by_task_id: int | None = None


class Outcome(Record, frozen=True, kw_only=True):
    status: OutcomeStatus
    result: Json = None
    error: str | None = None
    reason: str | None = None


class Pending(Record, frozen=True, kw_only=True, tag_field="status", tag="pending"):
    checkpoint: Json


class Running(Record, frozen=True, kw_only=True, tag_field="status", tag="running"):
    checkpoint: Json


class Waiting(Record, frozen=True, kw_only=True, tag_field="status", tag="waiting"):
    """Until every task of `on` is terminal, however it ended."""

    checkpoint: Json
    on: list[int]
    policy: Literal["allSettled"] = "allSettled"


class Sleeping(Record, frozen=True, kw_only=True, tag_field="status", tag="sleeping"):
    """Until `until`, in ms since 1970: a crash does not start the wait again."""

    checkpoint: Json
    until: int


class Completing(Record, frozen=True, kw_only=True, tag_field="status", tag="completing"):
    """The outcome is decided and held until what the task owns is over."""

    outcome: Outcome


class Terminal(Record, frozen=True, kw_only=True, tag_field="status", tag="terminal"):
    outcome: Outcome


TaskState = Pending | Running | Waiting | Sleeping | Completing | Terminal


class Task(Record, frozen=True, kw_only=True):
    """`owner`: the task it belongs to; None: its conversation. `memos` only while it has not ended.

    `restarts`: drives that died in it since its checkpoint last changed; `attempt`: the drive that last ran it.
    """

    id: int
    conversation_id: int
    kind: str
    version: int
    input: Json
    state: TaskState
    owner: int | None = None
    background: bool = False
    abort_requested: bool = False
    abort_reason: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    memos: dict[str, Json] | None = None
    restarts: int = 0
    attempt: int = 0

    @property
    def status(self) -> str:
        return str(self.state.__struct_config__.tag)

    @property
    def checkpoint(self) -> Json:
        """None once the task is completing or terminal."""
        return None if isinstance(self.state, Completing | Terminal) else self.state.checkpoint

    @property
    def outcome(self) -> Outcome | None:
        return self.state.outcome if isinstance(self.state, Completing | Terminal) else None


class SubmissionRecord(Record, frozen=True, kw_only=True):
    """An input (a user's words, to be answered) or a write (an entry, to be appended at the next boundary)."""

    id: int
    conversation_id: int
    type: Literal["input", "write"]
    status: SubmissionStatus
    request_id: str | None = None
    entry: int | None = None
    answer: int | None = None
    reason: str | None = None
    detail: str | None = None

    @property
    def settled(self) -> bool:
        return self.status in ("done", "unanswered")


class DocumentRecord(Record, frozen=True, kw_only=True):
    """One incarnation of a document. `owner_id`: 0 for the session, else the conversation's or task's id."""

    id: int
    kind: str
    scope: Literal["session", "conversation", "task"]
    owner_id: int
    history: Literal["latest", "rewindable"] = "latest"
    fork: Literal["initial", "current", "asOf"] = "initial"


def encode_record(record: Record) -> str:
    return msgspec.json.encode(record).decode()

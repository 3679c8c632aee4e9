"""What a Session asks of the place where its log lives, and the writes of one commit.

Guarantee: `commit` applies its batch whole or not at all, and whatever it has returned for is found again after the death of
the process (what else it survives is for each storage to say). Everything handed out is detached.

Errors: StorageRequestError for a request that is never right, proven without effect; StaleEpochError when the fence refuses;
CorruptLogError when the log contradicts itself. Any exception but the first is uncertain, and fails the Session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from durable_harness.documents import Address
from durable_harness.errors import StorageRequestError
from durable_harness.fence import Fence
from durable_harness.records import ConversationRecord, DocumentRecord, Entry, SubmissionRecord, Task

Json = Any
Order = Literal["asc", "desc"]
T = TypeVar("T")
PAGE = 1000


@dataclass(frozen=True, slots=True)
class PutConversation:
    record: ConversationRecord


@dataclass(frozen=True, slots=True)
class AppendEntry:
    record: Entry


@dataclass(frozen=True, slots=True)
class PutTask:
    """Create, or replace the row."""

    record: Task
    create: bool


@dataclass(frozen=True, slots=True)
class PutSubmission:
    record: SubmissionRecord
    create: bool


@dataclass(frozen=True, slots=True)
class CreateDocument:
    record: DocumentRecord
    version: int
    base: Json


@dataclass(frozen=True, slots=True)
class ChangeDocument:
    """A new value: whole (base), or as operations on the last one (delta, of the same version)."""

    document_id: int
    form: Literal["base", "delta"]
    version: int
    content: Json


@dataclass(frozen=True, slots=True)
class RetireDocument:
    document_id: int


Write = PutConversation | AppendEntry | PutTask | PutSubmission | CreateDocument | ChangeDocument | RetireDocument


@dataclass(frozen=True, slots=True)
class Batch:
    writes: Sequence[Write]


@dataclass(frozen=True, slots=True)
class StoredEntry:
    entry: Entry
    seq: int  # of the commit that appended it


@dataclass(frozen=True, slots=True)
class FoundDocument:
    record: DocumentRecord
    created_at: int  # seq; alive for created_at <= seq < retired_at
    retired_at: int | None


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """The newest base and the deltas behind it, oldest first."""

    record: DocumentRecord
    version: int
    base: Json
    deltas: Sequence[Json]


@dataclass(frozen=True, slots=True)
class EntryQuery:
    conversation_id: int
    kind: str | None = None
    first: int | None = None  # ids, both inclusive
    last: int | None = None


@dataclass(frozen=True, slots=True)
class TaskQuery:
    conversation_id: int | None = None
    kind: str | None = None
    live: bool | None = None  # True: not terminal


@dataclass(frozen=True, slots=True)
class SubmissionQuery:
    conversation_id: int | None = None
    open: bool | None = None  # True: queued or placed


@dataclass(frozen=True, slots=True)
class DocumentQuery:
    scope: Literal["session", "conversation", "task"] | None = None
    owner_id: int | None = None
    kind: str | None = None
    at: int | None = None  # alive at this seq; None: alive now


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    cursor: str | None  # None: there is no more


class Storage(Protocol):
    """Scans go by id and are oldest first, entries newest first, unless told; a cursor keeps the order it was made with."""

    @property
    def log_id(self) -> str: ...

    @property
    def fence(self) -> Fence | None:
        """What `commit` asks first; None: this storage has no other writers."""
        ...

    def mint_id(self) -> int:
        """A new id. One that a commit has used is never given again; one that was not used may be, after a reopening."""
        ...

    async def commit(self, batch: Batch) -> int:
        """The commit's seq: strictly growing; a refused batch consumes none."""
        ...

    async def conversation(self, id: int) -> ConversationRecord | None: ...

    async def entry(self, id: int) -> StoredEntry | None: ...

    async def newest_head(self, conversation_id: int, last: int | None = None) -> Entry | None:
        """The newest entry with a head at or before `last`."""
        ...

    async def task(self, id: int) -> Task | None: ...

    async def submission(self, id: int) -> SubmissionRecord | None: ...

    async def submission_by_request(self, conversation_id: int, request_id: str) -> SubmissionRecord | None: ...

    async def scan_conversations(self, limit: int = PAGE, cursor: str | None = None) -> Page[ConversationRecord]: ...

    async def scan_entries(
        self, query: EntryQuery, limit: int = PAGE, cursor: str | None = None, order: Order | None = None
    ) -> Page[Entry]: ...

    async def scan_tasks(
        self, query: TaskQuery, limit: int = PAGE, cursor: str | None = None, order: Order | None = None
    ) -> Page[Task]: ...

    async def scan_submissions(
        self, query: SubmissionQuery, limit: int = PAGE, cursor: str | None = None, order: Order | None = None
    ) -> Page[SubmissionRecord]: ...

    async def scan_documents(
        self, query: DocumentQuery, limit: int = PAGE, cursor: str | None = None
    ) -> Page[FoundDocument]: ...

    async def find_document(self, address: Address, at: int | None = None) -> FoundDocument | None:
        """The incarnation alive at that seq; None: now."""
        ...

    async def read_document(self, id: int, at: int | None = None) -> StoredDocument | None:
        """As of that seq. CorruptLogError if the incarnation is known and its base is not there."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...


@runtime_checkable
class StorageSource(Protocol):
    """A place that can be opened, once for each Harness."""

    async def open_log(self) -> Storage: ...


def make_cursor(order: Order, id: int) -> str:
    return f"{order}:{id}"


def read_cursor(cursor: str | None, order: Order | None, default: Order) -> tuple[Order, int | None]:
    """The order to scan in, and the id to go on behind."""
    if cursor is None:
        return order or default, None
    made, _, behind = cursor.partition(":")
    if made not in ("asc", "desc") or not behind.isdigit():
        raise StorageRequestError("a cursor that no scan of this storage has made")
    if order is not None and order != made:
        raise StorageRequestError(f"the cursor goes {made}; a scan can't turn around")
    return ("asc" if made == "asc" else "desc"), int(behind)

"""The log in memory: the reference semantics of `Storage`, for tests and for runs that need not survive their process."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from durable_harness.documents import Address
from durable_harness.errors import CorruptLogError, SessionClosedError, StorageRequestError
from durable_harness.fence import Fence
from durable_harness.records import ROOT_ID, ConversationRecord, DocumentRecord, Entry, SubmissionRecord, Task
from durable_harness.storage import (
    PAGE,
    AppendEntry,
    Batch,
    ChangeDocument,
    CreateDocument,
    DocumentQuery,
    EntryQuery,
    FoundDocument,
    Order,
    Page,
    PutConversation,
    PutSubmission,
    PutTask,
    RetireDocument,
    StoredDocument,
    StoredEntry,
    SubmissionQuery,
    TaskQuery,
    Write,
    make_cursor,
    read_cursor,
)

Json = Any
T = TypeVar("T")


@dataclass(slots=True)
class _Revision:
    seq: int
    form: str
    version: int
    content: Json


@dataclass(slots=True)
class _Document:
    record: DocumentRecord
    created_at: int
    retired_at: int | None
    revisions: list[_Revision]

    def alive(self, at: int | None) -> bool:
        if at is None:
            return self.retired_at is None
        return self.created_at <= at and (self.retired_at is None or at < self.retired_at)


@dataclass(slots=True)
class MemoryLog:
    """What outlives a storage: open another `MemoryStorage` on it to reopen the log."""

    log_id: str = field(default_factory=lambda: secrets.token_hex(16))
    next_seq: int = 1
    next_id: int = ROOT_ID + 1
    ids: set[int] = field(default_factory=set)
    conversations: dict[int, ConversationRecord] = field(default_factory=dict)
    entries: dict[int, StoredEntry] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    submissions: dict[int, SubmissionRecord] = field(default_factory=dict)
    documents: dict[int, _Document] = field(default_factory=dict)


class MemoryStorage:
    def __init__(self, log: MemoryLog | None = None) -> None:
        self.log = log or MemoryLog()
        self._next_id = self.log.next_id
        self._closed = False

    @property
    def fence(self) -> Fence | None:
        return None  # nothing but this process can write here

    @property
    def log_id(self) -> str:
        return self.log.log_id

    def mint_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    async def commit(self, batch: Batch) -> int:
        """Applied to a copy, which replaces the log at the end: all or nothing without a word about undoing."""
        self._check_open()
        draft = copy.deepcopy(self.log)
        seq = draft.next_seq
        for write in batch.writes:
            _apply(draft, copy.deepcopy(write), seq)
        for name in MemoryLog.__slots__:
            setattr(self.log, name, getattr(draft, name))
        self.log.next_seq = seq + 1
        self.log.next_id = self._next_id
        return seq

    async def conversation(self, id: int) -> ConversationRecord | None:
        return self._get(self.log.conversations, id)

    async def entry(self, id: int) -> StoredEntry | None:
        return self._get(self.log.entries, id)

    async def newest_head(self, conversation_id: int, last: int | None = None) -> Entry | None:
        page = await self.scan_entries(EntryQuery(conversation_id, last=last), 2**31)
        return next((entry for entry in page.items if entry.head is not None), None)

    async def task(self, id: int) -> Task | None:
        return self._get(self.log.tasks, id)

    async def submission(self, id: int) -> SubmissionRecord | None:
        return self._get(self.log.submissions, id)

    async def submission_by_request(self, conversation_id: int, request_id: str) -> SubmissionRecord | None:
        self._check_open()
        for record in self.log.submissions.values():
            if (record.conversation_id, record.request_id) == (conversation_id, request_id):
                return record
        return None

    async def scan_conversations(self, limit: int = PAGE, cursor: str | None = None) -> Page[ConversationRecord]:
        return self._scan(self.log.conversations.items(), limit, cursor, None, "asc")

    async def scan_entries(
        self, query: EntryQuery, limit: int = PAGE, cursor: str | None = None, order: Order | None = None
    ) -> Page[Entry]:
        found = (
            (key, stored.entry)
            for key, stored in self.log.entries.items()
            if stored.entry.conversation_id == query.conversation_id
            and query.kind in (None, stored.entry.kind)
            and (query.first is None or key >= query.first)
            and (query.last is None or key <= query.last)
        )
        return self._scan(found, limit, cursor, order, "desc")

    async def scan_tasks(
        self, query: TaskQuery, limit: int = PAGE, cursor: str | None = None, order: Order | None = None
    ) -> Page[Task]:
        found = (
            (key, task)
            for key, task in self.log.tasks.items()
            if query.conversation_id in (None, task.conversation_id)
            and query.kind in (None, task.kind)
            and query.live in (None, task.status != "terminal")
        )
        return self._scan(found, limit, cursor, order, "asc")

    async def scan_submissions(
        self, query: SubmissionQuery, limit: int = PAGE, cursor: str | None = None, order: Order | None = None
    ) -> Page[SubmissionRecord]:
        found = (
            (key, record)
            for key, record in self.log.submissions.items()
            if query.conversation_id in (None, record.conversation_id) and query.open in (None, not record.settled)
        )
        return self._scan(found, limit, cursor, order, "asc")

    async def scan_documents(
        self, query: DocumentQuery, limit: int = PAGE, cursor: str | None = None
    ) -> Page[FoundDocument]:
        found = (
            (key, FoundDocument(document.record, document.created_at, document.retired_at))
            for key, document in self.log.documents.items()
            if query.scope in (None, document.record.scope)
            and query.owner_id in (None, document.record.owner_id)
            and query.kind in (None, document.record.kind)
            and document.alive(query.at)
        )
        return self._scan(found, limit, cursor, None, "asc")

    async def find_document(self, address: Address, at: int | None = None) -> FoundDocument | None:
        page = await self.scan_documents(DocumentQuery(address.scope, address.owner_id, address.kind, at), 1)
        return page.items[0] if page.items else None

    async def read_document(self, id: int, at: int | None = None) -> StoredDocument | None:
        self._check_open()
        document = self.log.documents.get(id)
        if document is None:
            return None
        revisions = [revision for revision in document.revisions if at is None or revision.seq <= at]
        bases = [index for index, revision in enumerate(revisions) if revision.form == "base"]
        if not bases:
            raise CorruptLogError(f"document {id} ({document.record.kind}): its base is missing")
        base, *deltas = revisions[bases[-1] :]
        contents = [copy.deepcopy(delta.content) for delta in deltas]
        return StoredDocument(document.record, base.version, copy.deepcopy(base.content), contents)

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError("the log is closed")

    def _get(self, table: dict[int, T], id: int) -> T | None:
        self._check_open()
        return copy.deepcopy(table.get(id))

    def _scan(
        self, found: Iterable[tuple[int, T]], limit: int, cursor: str | None, order: Order | None, default: Order
    ) -> Page[T]:
        self._check_open()
        order, behind = read_cursor(cursor, order, default)
        if limit < 1:
            raise StorageRequestError(f"limit {limit}: at least 1")
        rows = sorted(found, key=lambda row: row[0], reverse=order == "desc")
        if behind is not None:
            rows = [row for row in rows if (row[0] > behind if order == "asc" else row[0] < behind)]
        more = len(rows) > limit
        rows = rows[:limit]
        return Page([copy.deepcopy(item) for _, item in rows], make_cursor(order, rows[-1][0]) if more else None)


def _apply(log: MemoryLog, write: Write, seq: int) -> None:
    match write:
        case PutConversation(record):
            _claim_id(log, record.id)
            log.conversations[record.id] = record
        case AppendEntry(record):
            _claim_id(log, record.id)
            log.entries[record.id] = StoredEntry(record, seq)
        case PutTask(record, create):
            _put(log, log.tasks, record.id, record, create)
        case PutSubmission(record, create):
            if create and record.request_id is not None:
                keys = {(other.conversation_id, other.request_id) for other in log.submissions.values()}
                if (record.conversation_id, record.request_id) in keys:
                    raise StorageRequestError("submissions: the request id is taken")
            _put(log, log.submissions, record.id, record, create)
        case CreateDocument(record, version, base):
            _claim_id(log, record.id)
            address = (record.kind, record.scope, record.owner_id)
            for other in log.documents.values():
                if other.alive(None) and (other.record.kind, other.record.scope, other.record.owner_id) == address:
                    raise StorageRequestError(f"document {record.kind}: one is alive")
            log.documents[record.id] = _Document(record, seq, None, [_Revision(seq, "base", version, base)])
        case ChangeDocument(document_id, form, version, content):
            document = _live(log, document_id)
            if form == "base" and document.record.history == "latest":
                document.revisions.clear()
            document.revisions.append(_Revision(seq, form, version, content))
        case RetireDocument(document_id):
            document = _live(log, document_id)
            if document.record.history == "latest":
                document.revisions.clear()
            document.retired_at = seq


def _claim_id(log: MemoryLog, id: int) -> None:
    if id in log.ids:
        raise StorageRequestError(f"id {id} is taken")
    log.ids.add(id)


def _put(log: MemoryLog, table: dict[int, T], id: int, record: T, create: bool) -> None:
    if create:
        _claim_id(log, id)
    elif id not in table:
        raise StorageRequestError(f"there is no {id} to replace")
    table[id] = record


def _live(log: MemoryLog, id: int) -> _Document:
    document = log.documents.get(id)
    if document is None or document.retired_at is not None:
        raise StorageRequestError(f"document {id} is unknown or retired")
    return document

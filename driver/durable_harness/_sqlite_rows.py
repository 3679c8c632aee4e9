"""Rows of a log to records and back: plain synchronous functions on a connection, for the writer and for readers outside.

Called on the thread that owns the connection. Nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from durable_base.floor import Floor
from durable_harness._json import decode, encode
from durable_harness.documents import Address
from durable_harness.errors import CorruptLogError, StorageRequestError
from durable_harness.records import (
    TASK_STATUSES,
    ConversationRecord,
    DocumentRecord,
    Entry,
    Record,
    SubmissionRecord,
    Task,
    encode_record,
)
from durable_harness.storage import (
    AppendEntry,
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
R = TypeVar("R", bound=Record)
Condition = tuple[str, Any]  # SQL with one placeholder or none, and its value (None: no placeholder)


def _decode(text: str, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:  # ValidationError too
        raise CorruptLogError(f"a {kind.__name__} row does not hold one") from error


# ---- reads


def read_floor(db: sqlite3.Connection) -> Floor:
    row = db.execute("SELECT epoch, incarnation FROM cua_fence WHERE singleton = 1").fetchone()
    if row is None:
        raise CorruptLogError("the row of cua_fence is missing")
    return Floor(row[0], row[1])


def get(db: sqlite3.Connection, table: str, kind: type[R], id: int) -> R | None:
    row = db.execute(f"SELECT record FROM {table} WHERE id = ?", (id,)).fetchone()
    return None if row is None else _decode(row[0], kind)


def entry(db: sqlite3.Connection, id: int) -> StoredEntry | None:
    row = db.execute("SELECT record, seq FROM entries WHERE id = ?", (id,)).fetchone()
    return None if row is None else StoredEntry(_decode(row[0], Entry), row[1])


def newest_head(db: sqlite3.Connection, conversation_id: int, last: int | None) -> Entry | None:
    row = db.execute(
        "SELECT record FROM entries WHERE conversation_id = ? AND head IS NOT NULL AND id <= ? ORDER BY id DESC LIMIT 1",
        (conversation_id, 2**62 if last is None else last),
    ).fetchone()
    return None if row is None else _decode(row[0], Entry)


def submission_by_request(db: sqlite3.Connection, conversation_id: int, request_id: str) -> SubmissionRecord | None:
    row = db.execute(
        "SELECT record FROM submissions WHERE conversation_id = ? AND request_id = ?", (conversation_id, request_id)
    ).fetchone()
    return None if row is None else _decode(row[0], SubmissionRecord)


def _scan(
    db: sqlite3.Connection,
    select: str,
    conditions: Sequence[Condition],
    limit: int,
    cursor: str | None,
    order: Order | None,
    default: Order,
) -> tuple[list[Any], str | None]:
    """Rows (record first, id last); one more than `limit` is read, to know whether there is more."""
    order, behind = read_cursor(cursor, order, default)
    if limit < 1:
        raise StorageRequestError(f"limit {limit}: at least 1")
    if behind is not None:
        conditions = [*conditions, (f"id {'>' if order == 'asc' else '<'} ?", behind)]
    where = " AND ".join(sql for sql, _ in conditions) or "1"
    values = [value for _, value in conditions if value is not None]
    rows = db.execute(f"{select} WHERE {where} ORDER BY id {order} LIMIT ?", (*values, limit + 1)).fetchall()
    more = len(rows) > limit
    rows = rows[:limit]
    return rows, (make_cursor(order, rows[-1][-1]) if more else None)


def _given(**columns: Any) -> list[Condition]:
    return [(f"{name} = ?", value) for name, value in columns.items() if value is not None]


def scan_conversations(db: sqlite3.Connection, limit: int, cursor: str | None) -> Page[ConversationRecord]:
    rows, cursor = _scan(db, "SELECT record, id FROM conversations", [], limit, cursor, None, "asc")
    return Page([_decode(row[0], ConversationRecord) for row in rows], cursor)


def scan_entries(
    db: sqlite3.Connection, query: EntryQuery, limit: int, cursor: str | None, order: Order | None
) -> Page[Entry]:
    conditions = _given(conversation_id=query.conversation_id, kind=query.kind)
    if query.first is not None:
        conditions.append(("id >= ?", query.first))
    if query.last is not None:
        conditions.append(("id <= ?", query.last))
    rows, cursor = _scan(db, "SELECT record, id FROM entries", conditions, limit, cursor, order, "desc")
    return Page([_decode(row[0], Entry) for row in rows], cursor)


def scan_tasks(
    db: sqlite3.Connection, query: TaskQuery, limit: int, cursor: str | None, order: Order | None
) -> Page[Task]:
    conditions = _given(conversation_id=query.conversation_id, kind=query.kind)
    if query.live is not None:
        live = ", ".join(f"'{status}'" for status in TASK_STATUSES if status != "terminal")
        conditions.append((f"status IN ({live})" if query.live else "status = 'terminal'", None))
    rows, cursor = _scan(db, "SELECT record, id FROM tasks", conditions, limit, cursor, order, "asc")
    return Page([_decode(row[0], Task) for row in rows], cursor)


def scan_submissions(
    db: sqlite3.Connection, query: SubmissionQuery, limit: int, cursor: str | None, order: Order | None
) -> Page[SubmissionRecord]:
    conditions = _given(conversation_id=query.conversation_id)
    if query.open is not None:
        negation = "" if query.open else "NOT "
        conditions.append((f"status {negation}IN ('queued', 'placed')", None))
    rows, cursor = _scan(db, "SELECT record, id FROM submissions", conditions, limit, cursor, order, "asc")
    return Page([_decode(row[0], SubmissionRecord) for row in rows], cursor)


def scan_documents(db: sqlite3.Connection, query: DocumentQuery, limit: int, cursor: str | None) -> Page[FoundDocument]:
    conditions = _given(scope_kind=query.scope, owner_id=query.owner_id, kind=query.kind)
    if query.at is None:
        conditions.append(("retired_at IS NULL", None))
    else:
        conditions += [("created_at <= ?", query.at), ("(retired_at IS NULL OR retired_at > ?)", query.at)]
    select = "SELECT record, created_at, retired_at, id FROM documents"
    rows, cursor = _scan(db, select, conditions, limit, cursor, None, "asc")
    return Page([FoundDocument(_decode(row[0], DocumentRecord), row[1], row[2]) for row in rows], cursor)


def find_document(db: sqlite3.Connection, address: Address, at: int | None) -> FoundDocument | None:
    page = scan_documents(db, DocumentQuery(address.scope, address.owner_id, address.kind, at), 1, None)
    return page.items[0] if page.items else None


def read_document(db: sqlite3.Connection, id: int, at: int | None) -> StoredDocument | None:
    record = get(db, "documents", DocumentRecord, id)
    if record is None:
        return None
    last = 2**62 if at is None else at
    base = db.execute(
        "SELECT seq, version, content FROM document_revisions INDEXED BY document_revisions_by_kind"
        " WHERE document_id = ? AND kind = 'base' AND seq <= ?"
        " ORDER BY seq DESC LIMIT 1",
        (id, last),
    ).fetchone()
    if base is None:
        raise CorruptLogError(f"document {id} ({record.kind}): its base is missing")
    deltas = db.execute(
        "SELECT version, content FROM document_revisions WHERE document_id = ? AND seq > ? AND seq <= ? ORDER BY seq",
        (id, base[0], last),
    ).fetchall()
    if any(version != base[1] for version, _ in deltas):
        raise CorruptLogError(f"document {id} ({record.kind}): a delta of another version than its base")
    return StoredDocument(record, base[1], decode(base[2]), [decode(content) for _, content in deltas])


# ---- writes


def apply(db: sqlite3.Connection, write: Write, seq: int) -> None:
    """Raise StorageRequestError for what no correct caller writes, sqlite3.IntegrityError for an id that is taken."""
    match write:
        case PutConversation(record):
            _claim_id(db, record.id, "conversation")
            owner = (None, None) if record.owner is None else (record.owner.conversation_id, record.owner.task_id)
            db.execute("INSERT INTO conversations VALUES (?, ?, ?, ?)", (record.id, *owner, encode_record(record)))
        case AppendEntry(record):
            _claim_id(db, record.id, "entry")
            db.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                (record.id, record.conversation_id, record.kind, record.head, seq, encode_record(record)),
            )
        case PutTask(record, create):
            if create:
                _claim_id(db, record.id, "task")
            row = (record.conversation_id, record.kind, record.status, record.abort_requested, record.background)
            _put(db, "tasks", record.id, create, row, encode_record(record))
        case PutSubmission(record, create):
            if create:
                _claim_id(db, record.id, "submission")
            columns = (record.conversation_id, record.request_id, record.status)
            _put(db, "submissions", record.id, create, columns, encode_record(record))
        case CreateDocument(record, version, base):
            _claim_id(db, record.id, "document")
            db.execute(
                "INSERT INTO documents (id, kind, scope_kind, owner_id, history, created_at, record)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (record.id, record.kind, record.scope, record.owner_id, record.history, seq, encode_record(record)),
            )
            _revise(db, record.id, seq, "base", version, base)
        case ChangeDocument(document_id, form, version, content):
            if form == "base" and _live_history(db, document_id) == "latest":
                db.execute("DELETE FROM document_revisions WHERE document_id = ?", (document_id,))
            else:
                _live_history(db, document_id)
            _revise(db, document_id, seq, form, version, content)
        case RetireDocument(document_id):
            if _live_history(db, document_id) == "latest":
                db.execute("DELETE FROM document_revisions WHERE document_id = ?", (document_id,))
            db.execute("UPDATE documents SET retired_at = ? WHERE id = ?", (seq, document_id))


def _claim_id(db: sqlite3.Connection, id: int, kind: str) -> None:
    """An id names one record for ever, whatever its kind."""
    db.execute("INSERT INTO record_ids VALUES (?, ?)", (id, kind))


def _put(db: sqlite3.Connection, table: str, id: int, create: bool, row: tuple[Any, ...], record: str) -> None:
    if not create:
        known = db.execute(f"DELETE FROM {table} WHERE id = ?", (id,)).rowcount
        if not known:
            raise StorageRequestError(f"{table}: there is no {id} to replace")
    marks = ", ".join("?" * (len(row) + 2))
    db.execute(f"INSERT INTO {table} VALUES ({marks})", (id, *row, record))


def _live_history(db: sqlite3.Connection, id: int) -> str:
    row = db.execute("SELECT history, retired_at FROM documents WHERE id = ?", (id,)).fetchone()
    if row is None or row[1] is not None:
        raise StorageRequestError(f"document {id} is unknown or retired")
    return str(row[0])


def _revise(db: sqlite3.Connection, id: int, seq: int, kind: str, version: int, content: Json) -> None:
    db.execute("INSERT INTO document_revisions VALUES (?, ?, ?, ?, ?)", (id, seq, kind, version, encode(content)))

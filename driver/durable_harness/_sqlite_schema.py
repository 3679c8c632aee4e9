"""The tables of a log in SQLite, how a new one is made, and what is checked before an old one is used.

Every record row keeps the whole record as JSON; the columns beside it are there for indexes and checks.
"""

from __future__ import annotations

import secrets
import sqlite3

from durable_base.errors import UsageError
from durable_harness.errors import CorruptLogError
from durable_harness.records import ROOT_ID, TASK_STATUSES

SCHEMA_VERSION = 1
_STATUSES = ", ".join(f"'{status}'" for status in TASK_STATUSES)

SCHEMA = f"""
CREATE TABLE durable_schema (version INTEGER NOT NULL);
CREATE TABLE durable_metadata (
  singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
  log_id TEXT NOT NULL,
  next_seq INTEGER NOT NULL,
  next_id INTEGER NOT NULL
);
CREATE TABLE cua_fence (
  singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
  epoch INTEGER NOT NULL,
  incarnation TEXT NOT NULL
);
CREATE TABLE record_ids (id INTEGER PRIMARY KEY, kind TEXT NOT NULL);
CREATE TABLE conversations (
  id INTEGER PRIMARY KEY,
  owner_conversation_id INTEGER,
  owner_task_id INTEGER,
  record TEXT NOT NULL CHECK (json_valid(record))
);
CREATE INDEX conversations_by_owner_conversation ON conversations (owner_conversation_id, id);
CREATE INDEX conversations_by_owner_task ON conversations (owner_task_id, id);
CREATE TABLE entries (
  id INTEGER PRIMARY KEY,
  conversation_id INTEGER NOT NULL,
  kind TEXT NOT NULL,
  head INTEGER,
  seq INTEGER NOT NULL,
  record TEXT NOT NULL CHECK (json_valid(record))
);
CREATE INDEX entries_by_conversation ON entries (conversation_id, id);
CREATE INDEX entry_heads_by_conversation ON entries (conversation_id, id) WHERE head IS NOT NULL;
CREATE TABLE tasks (
  id INTEGER PRIMARY KEY,
  conversation_id INTEGER NOT NULL,
  kind TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ({_STATUSES})),
  abort_requested INTEGER NOT NULL,
  background INTEGER NOT NULL,
  record TEXT NOT NULL CHECK (json_valid(record))
);
CREATE INDEX tasks_by_status ON tasks (status, id);
CREATE INDEX tasks_by_conversation ON tasks (conversation_id, kind, id);
CREATE TABLE submissions (
  id INTEGER PRIMARY KEY,
  conversation_id INTEGER NOT NULL,
  request_id TEXT,
  status TEXT NOT NULL CHECK (status IN ('queued', 'placed', 'done', 'unanswered')),
  record TEXT NOT NULL CHECK (json_valid(record))
);
CREATE UNIQUE INDEX submissions_by_request ON submissions (conversation_id, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX submissions_by_status ON submissions (status, id);
CREATE TABLE documents (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  scope_kind TEXT NOT NULL CHECK (scope_kind IN ('session', 'conversation', 'task')),
  owner_id INTEGER NOT NULL,
  family INTEGER NOT NULL DEFAULT 0,
  key_value TEXT NOT NULL DEFAULT '',
  history TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  retired_at INTEGER,
  record TEXT NOT NULL CHECK (json_valid(record))
);
CREATE INDEX documents_by_address ON documents (kind, scope_kind, owner_id, family, key_value, created_at);
CREATE UNIQUE INDEX documents_alive ON documents (kind, scope_kind, owner_id, family, key_value) WHERE retired_at IS NULL;
CREATE INDEX documents_by_scope_kind ON documents (scope_kind, owner_id, kind, id);
CREATE TABLE document_revisions (
  document_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('base', 'delta')),
  version INTEGER NOT NULL,
  content TEXT NOT NULL CHECK (json_valid(content)),
  PRIMARY KEY (document_id, seq)
) WITHOUT ROWID;
CREATE INDEX document_revisions_by_kind ON document_revisions (document_id, kind, seq);
"""


def is_empty(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def create(db: sqlite3.Connection) -> None:
    """Inside the caller's transaction. The log id is drawn here and nowhere else."""
    for statement in filter(None, map(str.strip, SCHEMA.split(";"))):
        db.execute(statement)
    db.execute("INSERT INTO durable_schema VALUES (?)", (SCHEMA_VERSION,))
    db.execute("INSERT INTO durable_metadata VALUES (1, ?, 1, ?)", (secrets.token_hex(16), ROOT_ID + 1))
    db.execute("INSERT INTO cua_fence VALUES (1, 0, '')")


def check(db: sqlite3.Connection, path: str) -> str:
    """The log id. Raise UsageError for a file that is no log of ours, CorruptLogError for one that lost its first rows."""
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "durable_schema" not in tables:
        raise UsageError(f"{path}: a database, but no session log; name another file")
    versions = [row[0] for row in db.execute("SELECT version FROM durable_schema")]
    if len(versions) != 1:
        raise CorruptLogError(f"{path}: the schema version is missing")
    if versions[0] > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: written by a newer release (schema {versions[0]}, this one knows {SCHEMA_VERSION}); use that release"
        )
    for table in ("durable_metadata", "cua_fence"):
        if table not in tables or db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] != 1:
            raise CorruptLogError(f"{path}: the row of {table} is missing; restore the file from a copy")
    return str(db.execute("SELECT log_id FROM durable_metadata").fetchone()[0])

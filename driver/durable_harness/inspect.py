"""A log read from outside, while its driver writes it or after it has ended. Never writes, claims or waits for the writer.

Each call reads one state that was committed; two calls may see two. Raises UsageError for a path that holds no log.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_base.errors import UsageError
from durable_base.floor import Floor
from durable_harness import _sqlite_rows as rows
from durable_harness import _sqlite_schema as schema
from durable_harness._state import replay
from durable_harness.documents import Address
from durable_harness.errors import CorruptLogError
from durable_harness.records import ROOT_ID, Entry, SubmissionRecord, Task
from durable_harness.storage import DocumentQuery, EntryQuery, SubmissionQuery, TaskQuery

Json = Any
_ALL = 2**31


@dataclass(frozen=True, slots=True)
class CallView:
    """One tool call that was started, in the order the model made them."""

    task_id: int
    name: str
    arguments: Json
    entry_id: int | None  # of its result; None while it has none
    is_error: bool
    started_at: int | None  # ms since 1970
    duration_ms: int | None


class LogReader:
    """Made by `open`; synchronous; close it, or use it with `with`."""

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        self._db = db
        self.log_id = schema.check(db, path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LogReader:
        """The file must exist: a log that its driver has not made yet is a UsageError too."""
        if not Path(path).is_file():
            raise UsageError(f"{path}: there is no log; give the path of a session's log file")
        try:
            db = sqlite3.connect(
                f"{Path(path).absolute().as_uri()}?mode=rw", uri=True, timeout=5.0, isolation_level=None
            )
            db.execute("PRAGMA query_only = ON")
            return cls(db, str(path))
        except sqlite3.OperationalError as error:
            raise UsageError(
                f"{path}: the log can't be opened ({error}); check that you may read it and its folder"
            ) from None
        except sqlite3.DatabaseError as error:
            raise CorruptLogError(f"{path}: not a database, or damaged ({error})") from error

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    @property
    def floor(self) -> Floor:
        """The newest driver that claimed the log."""
        return rows.read_floor(self._db)

    def entries(self, conversation_id: int = ROOT_ID) -> list[Entry]:
        """Oldest first."""
        return rows.scan_entries(self._db, EntryQuery(conversation_id), _ALL, None, "asc").items

    def tasks(self, *, kind: str | None = None) -> list[Task]:
        """Live and ended ones, oldest first."""
        return rows.scan_tasks(self._db, TaskQuery(kind=kind), _ALL, None, None).items

    def submissions(self) -> list[SubmissionRecord]:
        """Oldest first."""
        return rows.scan_submissions(self._db, SubmissionQuery(), _ALL, None, None).items

    def tool_calls(self) -> list[CallView]:
        self._db.execute("BEGIN")  # tasks and entries of one moment
        try:
            tasks = self.tasks(kind="pi.tool")
            conversations = sorted({task.conversation_id for task in tasks})
            entries = {entry.id: entry for conversation in conversations for entry in self.entries(conversation)}
        finally:
            self._db.execute("COMMIT")
        results = {e.data["task_id"]: e for e in entries.values() if e.kind == "pi.tool-result" and e.data["task_id"]}
        return [_view(task, entries[task.input["entry"]], results.get(task.id)) for task in tasks]

    def document(self, kind: str, owner_id: int = ROOT_ID, *, as_of: int | None = None) -> Json:
        """The value now, or as of an entry; None where there is none. `owner_id` 0: the session's document of that kind.

        As of an entry: rewindable documents only (of others older values are not kept). In the version it was stored in.
        """
        at = None
        if as_of is not None:
            stored = rows.entry(self._db, as_of)
            if stored is None:
                raise UsageError(f"there is no entry {as_of}")
            at = stored.seq
        query = DocumentQuery(None if owner_id else "session", owner_id, kind, at)
        page = rows.scan_documents(self._db, query, 1, None)
        if not page.items:
            return None
        record = page.items[0].record
        if as_of is not None and record.history != "rewindable":
            raise UsageError(f"document {kind} keeps only its latest value")
        document = rows.read_document(self._db, record.id, at)
        return None if document is None else replay(document)

    def documents(self) -> list[Address]:
        """Those alive now."""
        page = rows.scan_documents(self._db, DocumentQuery(), _ALL, None)
        return [Address(f.record.kind, f.record.scope, f.record.owner_id) for f in page.items]


def _view(task: Task, call_entry: Entry, result: Entry | None) -> CallView:
    call = (call_entry.model or [{}])[0]["tool_calls"][task.input["index"]]
    return CallView(
        task_id=task.id,
        name=task.input["name"],
        arguments=call["arguments"],
        entry_id=None if result is None else result.id,
        is_error=result is not None and result.data["is_error"],
        started_at=task.started_at,
        duration_ms=None if result is None else result.data["duration_ms"],
    )

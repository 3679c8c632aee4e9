"""Every storage against the one contract, and what is particular to the file."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from durable_base.errors import UsageError
from durable_harness import _sqlite_rows as rows
from durable_harness import sqlite
from durable_harness.documents import Address, DocumentToken
from durable_harness.errors import CorruptLogError
from durable_harness.memory import MemoryLog, MemoryStorage
from durable_harness.session import Session
from durable_harness.sqlite import open_fenced_sqlite
from durable_harness.storage import EntryQuery, SubmissionQuery, TaskQuery
from durable_harness.testing import STORAGE_CHECKS

NOTE = DocumentToken("note", dict)


def sqlite_log(folder: Path):
    async def open_log():
        return await sqlite(folder / "log.db").open_log()

    return open_log


def memory_log(folder: Path):
    log = MemoryLog()

    async def open_log():
        return MemoryStorage(log)

    return open_log


@pytest.mark.parametrize("make", [sqlite_log, memory_log])
@pytest.mark.parametrize("check", STORAGE_CHECKS, ids=lambda check: check.__name__)
async def test_conformance(make: Callable, check: Callable, tmp_path: Path) -> None:
    """Case 10, Case 14 and the rest of the contract."""
    await check(make(tmp_path))


async def make_log(path: Path) -> None:
    storage = await sqlite(path).open_log()
    session = await Session.load(storage)
    await session.commit(lambda tx: tx.create_conversation(root=True))
    await session.commit(lambda tx: tx.doc(NOTE).value.update(n=1))
    await storage.close()


def change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute(statement).rowcount > 0
    db.close()


@pytest.mark.parametrize("table", ["durable_metadata", "cua_fence", "durable_schema"])
async def test_a_log_that_lost_its_first_row_does_not_open(tmp_path: Path, table: str) -> None:
    """Case 11, first half: never taken for a new log."""
    path = tmp_path / "log.db"
    await make_log(path)
    change(path, f"DELETE FROM {table}")
    with pytest.raises(CorruptLogError, match=r"missing"):
        await sqlite(path).open_log()


async def test_a_document_that_lost_its_base_fails_when_it_is_read(tmp_path: Path) -> None:
    """Case 11, second half: an error, not absence; and only for that document."""
    path = tmp_path / "log.db"
    await make_log(path)
    change(path, "DELETE FROM document_revisions")
    storage = await sqlite(path).open_log()
    session = await Session.load(storage)
    with pytest.raises(CorruptLogError, match="base is missing"):
        await session.document(NOTE)
    with pytest.raises(CorruptLogError, match="base is missing"):
        await session.commit(lambda tx: tx.doc(NOTE))
    assert await session.commit(lambda tx: tx.append_entry("still works"))
    await storage.close()


async def test_files_that_are_no_log(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a database at all, but long enough to be looked at as one" * 40)
    with pytest.raises(CorruptLogError, match="not a database"):
        await sqlite(text).open_log()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(UsageError, match="no session log"):
        await sqlite(other).open_log()
    with pytest.raises(UsageError, match="can't be opened"):
        await sqlite(tmp_path / "missing" / "log.db").open_log()
    newer = tmp_path / "newer.db"
    await make_log(newer)
    change(newer, "UPDATE durable_schema SET version = 99")
    with pytest.raises(UsageError, match="newer release"):
        await sqlite(newer).open_log()


async def test_closing_truncates_the_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await make_log(path)
    wal = tmp_path / "log.db-wal"
    assert not wal.exists() or wal.stat().st_size == 0


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
async def test_the_durability_that_was_asked_for_is_set(tmp_path: Path, synchronous: str, level: int) -> None:
    storage, _ = await open_fenced_sqlite(tmp_path / "log.db", 1, "i", synchronous=synchronous)
    assert await storage._run(lambda db: db.execute("PRAGMA synchronous").fetchone()[0]) == level
    await storage.close()


READS = {
    "entries": (lambda db: rows.scan_entries(db, EntryQuery(1), 9, None, None), "entries_by_conversation"),
    "head": (lambda db: rows.newest_head(db, 1, 9), "entry_heads_by_conversation"),
    "request": (lambda db: rows.submission_by_request(db, 1, "r"), "submissions_by_request"),
    "address": (lambda db: rows.find_document(db, Address("note", "conversation", 1), None), "documents_"),
    "live tasks": (lambda db: rows.scan_tasks(db, TaskQuery(live=True), 9, None, None), "tasks_by_status"),
    "open submissions": (
        lambda db: rows.scan_submissions(db, SubmissionQuery(open=True), 9, None, None),
        "submissions_by_status",
    ),
    "revisions": (lambda db: rows.read_document(db, 2, None), "document_revisions_by_kind"),
}


@pytest.mark.parametrize(("read", "index"), READS.values(), ids=READS)
async def test_reads_use_their_index(tmp_path: Path, read: Callable, index: str) -> None:
    """What the read really asks of SQLite, explained: never a walk over a whole table."""
    path = tmp_path / "log.db"
    await make_log(path)
    asked = []
    with sqlite3.connect(path) as db:
        db.set_trace_callback(asked.append)
        read(db)
        db.set_trace_callback(None)
        plans = [" ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}")) for query in asked]
    db.close()
    assert any(f"INDEX {index}" in plan for plan in plans), plans
    assert not any("SCAN" in plan for plan in plans), plans

"""The log in one SQLite file, written by one driver at a time.

Survives SIGKILL at any instant: a commit is one transaction in the write-ahead log, whole or not at all. Survives power loss
with `synchronous=FULL` (the default): COMMIT returns after the write-ahead log is synced. With NORMAL the newest commits
may be gone after a power loss; what is found is still a whole prefix.

Every commit is ONE function call on the connection's own thread (BEGIN IMMEDIATE, fence, writes, COMMIT), never a row of
awaits: a cancelled caller can therefore not leave the write lock held. Not for network file systems (WAL needs shared memory).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, TypeVar

from durable_base.crash import crash_point
from durable_base.errors import HaltError, StaleEpochError, UsageError
from durable_base.files import sync_folder
from durable_base.floor import EPOCH_MAX, Admission, Floor, judge, new_incarnation
from durable_harness import _sqlite_rows as rows
from durable_harness import _sqlite_schema as schema
from durable_harness.documents import Address
from durable_harness.errors import CorruptLogError, SessionClosedError, StorageRequestError
from durable_harness.fence import Fence
from durable_harness.records import ConversationRecord, Entry, SubmissionRecord, Task
from durable_harness.storage import (
    PAGE,
    Batch,
    DocumentQuery,
    EntryQuery,
    FoundDocument,
    Order,
    Page,
    StorageSource,
    StoredDocument,
    StoredEntry,
    SubmissionQuery,
    TaskQuery,
)

P = ParamSpec("P")
T = TypeVar("T")
Synchronous = Literal["FULL", "NORMAL"]
BUSY_TIMEOUT_SECONDS = 10.0


async def open_fenced_sqlite(
    path: str | os.PathLike[str], epoch: int, incarnation: str, *, synchronous: Synchronous = "FULL"
) -> tuple[SqliteStorage, Fence]:
    """Open or create the log and claim it for (epoch, incarnation), in one transaction.

    Raises StaleEpochError(resource="log") if the log's floor is newer, or has this epoch with another incarnation; nothing is
    written then. UsageError: the file can't be opened or is no log. CorruptLogError: it was one. HaltError: it is locked, or
    its disk is full; not for ever.
    """
    if not 0 < epoch <= EPOCH_MAX or not incarnation:
        raise UsageError(f"epoch {epoch}, incarnation {incarnation!r}: a positive epoch and an incarnation are needed")
    return await _open(path, synchronous, lambda floor: Floor(epoch, incarnation))


def sqlite(path: str | os.PathLike[str], *, synchronous: Synchronous = "FULL") -> StorageSource:
    """A log that nobody coordinates: each opening claims the next epoch, so that the newest process is the one that writes."""
    return _SqliteSource(path, synchronous)


@dataclass(frozen=True, slots=True)
class _SqliteSource:
    path: str | os.PathLike[str]
    synchronous: Synchronous

    async def open_log(self) -> SqliteStorage:
        # Nobody issues epochs here, so the log does: floor + 1, committed before it is used (rule 14).
        incarnation = new_incarnation()
        return (await _open(self.path, self.synchronous, lambda floor: Floor(floor.epoch + 1, incarnation)))[0]


async def _open(
    path: str | os.PathLike[str], synchronous: Synchronous, claim: Callable[[Floor], Floor]
) -> tuple[SqliteStorage, Fence]:
    executor = ThreadPoolExecutor(1, thread_name_prefix="durable-log")
    loop = asyncio.get_running_loop()
    try:
        db, log_id, own, next_id = await loop.run_in_executor(executor, _connect, Path(path), synchronous, claim)
    except BaseException:
        executor.shutdown(wait=False)
        raise
    storage = SqliteStorage(Path(path), db, executor, log_id, next_id)
    fence = Fence(own, storage.read_floor)
    storage.fence = fence
    return storage, fence


def _connect(
    path: Path, synchronous: Synchronous, claim: Callable[[Floor], Floor]
) -> tuple[sqlite3.Connection, str, Floor, int]:
    """On the log's thread: open, create what is missing, check, claim. The new file's name is made durable as well."""
    fresh = not path.exists()
    try:
        db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise _translated(error, path) from error
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("BEGIN IMMEDIATE")
        try:
            if schema.is_empty(db):
                schema.create(db)
                crash_point("log.created_uncommitted")
            log_id = schema.check(db, str(path))
            own = _claim(db, claim)
            next_id = db.execute("SELECT next_id FROM durable_metadata").fetchone()[0]
            db.execute("COMMIT")
        except BaseException:
            _rollback(db)
            raise
        crash_point("log.claimed")
        if fresh:
            sync_folder(path.parent)
        return db, log_id, own, next_id
    except sqlite3.Error as error:
        db.close()
        raise _translated(error, path) from error
    except BaseException:
        db.close()
        raise


def _claim(db: sqlite3.Connection, claim: Callable[[Floor], Floor]) -> Floor:
    """Raise the log's floor to the caller's pair. The only place that does (rule 1)."""
    floor = rows.read_floor(db)
    own = claim(floor)
    match judge(floor, own):
        case Admission.STALE:
            raise StaleEpochError("log", own, floor)
        case Admission.RAISES:
            db.execute("UPDATE cua_fence SET epoch = ?, incarnation = ?", (own.epoch, own.incarnation))
        case Admission.ADMITTED:
            pass
    return own


def _translated(error: sqlite3.Error, path: Path) -> Exception:
    """SQLite's errors end here. What time or another node may mend halts the drive; what a person must mend says so."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptLogError(f"{path}: not a database, or damaged ({error}); restore it from a copy")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return UsageError(f"{path}: the log can't be opened ({error}); check that its folder exists and is writable")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        # An older driver that froze inside a commit holds the lock until it is ended.
        held = f"another process has held the log's write lock for {BUSY_TIMEOUT_SECONDS:.0f} s"
        return HaltError("LogUnavailable", f"{path}: {held}; the next drive tries again")
    return HaltError("LogUnavailable", f"{path}: {error}; check the disk that it is on")


def _rollback(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")


class SqliteStorage:
    """`Storage` on a connection that lives on its own thread. Made by `open_fenced_sqlite` and `sqlite`."""

    fence: Fence

    def __init__(
        self, path: Path, db: sqlite3.Connection, executor: ThreadPoolExecutor, log_id: str, next_id: int
    ) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = db
        self._executor = executor
        self._log_id = log_id
        self._next_id = next_id  # stored by each commit; ids of commits that failed are skipped until a reopening

    @property
    def log_id(self) -> str:
        return self._log_id

    def mint_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    async def commit(self, batch: Batch) -> int:
        return await self._run(_commit, batch, self._next_id, self.fence)

    async def read_floor(self) -> Floor:
        return await self._run(rows.read_floor)

    async def conversation(self, id: int) -> ConversationRecord | None:
        return await self._run(rows.get, "conversations", ConversationRecord, id)

    async def entry(self, id: int) -> StoredEntry | None:
        return await self._run(rows.entry, id)

    async def newest_head(self, conversation_id: int, last: int | None = None) -> Entry | None:
        return await self._run(rows.newest_head, conversation_id, last)

    async def task(self, id: int) -> Task | None:
        return await self._run(rows.get, "tasks", Task, id)

    async def submission(self, id: int) -> SubmissionRecord | None:
        return await self._run(rows.get, "submissions", SubmissionRecord, id)

    async def submission_by_request(self, conversation_id: int, request_id: str) -> SubmissionRecord | None:
        return await self._run(rows.submission_by_request, conversation_id, request_id)

    async def scan_conversations(self, limit: int = PAGE, cursor: str | None = None) -> Page[ConversationRecord]:
        return await self._run(rows.scan_conversations, limit, cursor)

    async def scan_entries(
        self, query: EntryQuery, limit: int = PAGE, cursor: str | None = None, order: Order | None = None
    ) -> Page[Entry]:
        return await self._run(rows.scan_entries, query, limit, cursor, order)

    async def scan_tasks(
        self, query: TaskQuery, limit: int = PAGE, cursor: str | None = None, order: Order | None = None
    ) -> Page[Task]:
        return await self._run(rows.scan_tasks, query, limit, cursor, order)

    async def scan_submissions(
        self, query: SubmissionQuery, limit: int = PAGE, cursor: str | None = None, order: Order | None = None
    ) -> Page[SubmissionRecord]:
        return await self._run(rows.scan_submissions, query, limit, cursor, order)

    async def scan_documents(
        self, query: DocumentQuery, limit: int = PAGE, cursor: str | None = None
    ) -> Page[FoundDocument]:
        return await self._run(rows.scan_documents, query, limit, cursor)

    async def find_document(self, address: Address, at: int | None = None) -> FoundDocument | None:
        return await self._run(rows.find_document, address, at)

    async def read_document(self, id: int, at: int | None = None) -> StoredDocument | None:
        return await self._run(rows.read_document, id, at)

    async def close(self) -> None:
        """Truncates the write-ahead log if no reader holds it. Idempotent."""
        db, self._db = self._db, None
        if db is not None:
            closing = asyncio.get_running_loop().run_in_executor(self._executor, _close, db)
            self._executor.shutdown(wait=False)  # takes nothing more; what was submitted is carried out
            await asyncio.shield(closing)

    async def _run(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **_: P.kwargs) -> T:
        """Shielded: once submitted, an operation is carried out, whoever still waits for it."""
        if self._db is None:
            raise SessionClosedError("the log is closed")
        try:
            return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, fn, self._db, *args))
        except sqlite3.Error as error:
            raise _translated(error, self._path) from error


def _commit(db: sqlite3.Connection, batch: Batch, next_id: int, fence: Fence) -> int:
    db.execute("BEGIN IMMEDIATE")
    try:
        # In the same transaction as the writes: a driver that claimed the log before this BEGIN is seen here, and one that
        # claims it later waits for our COMMIT (I4).
        fence.admit(rows.read_floor(db))
        seq = int(db.execute("SELECT next_seq FROM durable_metadata WHERE singleton = 1").fetchone()[0])
        for write in batch.writes:
            rows.apply(db, write, seq)
        db.execute("UPDATE durable_metadata SET next_seq = ?, next_id = ?", (seq + 1, next_id))
        crash_point("log.before_commit")
        db.execute("COMMIT")
    except sqlite3.IntegrityError as error:
        _rollback(db)
        raise StorageRequestError(f"the batch contradicts the log: {error}") from error
    except BaseException:
        _rollback(db)
        raise
    crash_point("log.committed")
    return seq


def _close(db: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):  # tidiness only: the next opening reads the write-ahead log as well
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()

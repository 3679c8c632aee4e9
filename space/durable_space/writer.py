"""The thread that writes the ledger's file: jobs that wait for the disk at the same moment share one sync.

Guarantee: a job's future is set after the commit that carries it is synced, or to the error because of which nothing of that
commit was written; a disk that is full is `DiskFull`.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, overload

from durable_space.refusal import disk_full

T = TypeVar("T")
U = TypeVar("U")

LOG_PAGES = 256  # of 4 KiB: how long SQLite's log gets before it is carried over into the file

log = logging.getLogger("durable.space")


class _Job:
    """What to write, and what to do with its result once it is synced."""

    def __init__(self, write: Callable[[sqlite3.Connection], object], then: Callable[[Any], object]) -> None:
        self.write = write
        self.then = then
        self.future: Future[Any] = Future()


class Writer:
    """The thread that owns the connection. Jobs queued while one commit syncs share the next one."""

    def __init__(self, path: Path) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._path = path
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    @overload
    def run(self, write: Callable[[sqlite3.Connection], T]) -> Future[T]: ...
    @overload
    def run(self, write: Callable[[sqlite3.Connection], T], then: Callable[[T], U]) -> Future[U]: ...
    def run(
        self, write: Callable[[sqlite3.Connection], Any], then: Callable[[Any], Any] = lambda result: result
    ) -> Any:
        """The future is set after the commit that carries the job is synced; if that failed, its error is."""
        job = _Job(write, then)
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute(
            "pragma locking_mode = exclusive"
        )  # the folder is one daemon's anyway; it saves each commit ten calls
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = full")
        _lay_out_log(db)
        while (first := self._jobs.get()) is not None:
            batch = [first]
            while len(batch) < 64 and not self._jobs.empty():
                job = self._jobs.get()
                if job is None:
                    self._jobs.put(None)
                    break
                batch.append(job)
            _commit(db, batch)
        db.close()


def _lay_out_log(db: sqlite3.Connection) -> None:
    """Give SQLite's log its full length once, so that commits overwrite it: a sync of a file that grows waits for the file
    system's journal, and with it for everybody else's syncs. A full disk costs the speed, nothing else."""
    try:
        db.execute(f"pragma wal_autocheckpoint = {LOG_PAGES}")
        db.execute("create table if not exists filler (bytes blob)")
        db.execute(f"insert into filler values (zeroblob({(LOG_PAGES + LOG_PAGES // 8) * 4096}))")
        db.execute("delete from filler")
        db.execute("pragma wal_checkpoint(restart)").fetchall()
    except sqlite3.OperationalError as error:
        log.warning("ledger.log_short", extra={"fields": {"error": type(error).__name__}})


def _commit(db: sqlite3.Connection, batch: list[_Job]) -> None:
    try:
        db.execute("begin immediate")
        results = [job.write(db) for job in batch]
        db.execute("commit")
    except BaseException as error:
        if db.in_transaction:
            db.execute("rollback")
        for job in batch:
            job.future.set_exception(_told(error))
        return
    for job, result in zip(batch, results, strict=True):
        try:
            job.future.set_result(job.then(result))
        except Exception as error:
            job.future.set_exception(error)


def _told(error: BaseException) -> BaseException:
    if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_FULL:
        return disk_full("the ledger can't grow: free some space on the data folder's disk; nothing was changed")
    return error

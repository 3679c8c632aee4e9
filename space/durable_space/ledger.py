"""The exec ledger on disk: rows, floor and identity, in one SQLite file whose every commit is synced.

Guarantee: when a method returns, what it wrote survives SIGKILL and power loss, all of it or none of it. So the floor and
the marks of the commands about to be killed are one step, and a reservation is on disk before anything starts.

One thread writes; calls that wait for the disk at the same moment share one sync (`writer`). Rows are few and small, so
all are in memory too; the file is read once, at start.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from durable_base.crash import crash_point
from durable_base.errors import UsageError
from durable_base.floor import Floor
from durable_space.claims import ClaimRule
from durable_space.index import RowIndex
from durable_space.rows import CommandConfig, Row
from durable_space.writer import Writer

_SCHEMA = """
create table if not exists meta (name text primary key, value text not null);
create table if not exists command (
  seq integer primary key, request_id text not null, tag text not null, config text not null, epoch integer not null,
  incarnation text not null, boot_id text not null, created_ns integer not null, killed integer not null default 0,
  killed_by integer not null default 0, never_started integer not null default 0, stopping integer not null default 0,
  proven integer not null default 0
);
"""
SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a raise of the floor (or a KillAll) decided about rows; written in one step with the floor."""

    floor: Floor
    bar: bool  # no row that exists now may claim any more, unless it is adopted; False where a raise is only repeated
    killed: frozenset[int] = frozenset()
    never_started: frozenset[int] = frozenset()
    adopted: frozenset[int] = frozenset()

    @property
    def changes_rows(self) -> bool:
        return bool(_touched(self))


class Ledger:
    """Thread-safe. `rows`, `floor`, `seq` and `rule` are what is on disk, never ahead of it."""

    def __init__(self, path: Path, generation: int) -> None:
        """Open or make it. UsageError: a file of another version, or of a later generation (rule 36)."""
        self._lock = threading.Lock()
        self._index = RowIndex()
        self.rows: Mapping[int, Row] = self._index.rows
        fresh = not path.exists()
        self._writer = Writer(path)
        self._writer.run(lambda db: _prepare(db, generation)).result()
        meta = self._writer.run(lambda db: dict(db.execute("select name, value from meta").fetchall())).result()
        if fresh:
            crash_point("ledger.made")
        if meta["version"] != str(SCHEMA_VERSION):
            raise UsageError(
                f"{path}: ledger version {meta['version']}, this daemon knows {SCHEMA_VERSION}: "
                "use the daemon that made it, or another --data"
            )
        if int(meta["generation"]) > generation:
            raise UsageError(
                f"{path.parent}: belongs to generation {meta['generation']}, not {generation}: "
                "give every generation its own --data"
            )
        self.instance_id: str = meta["instance_id"]
        self.floor = Floor(int(meta["epoch"]), meta["incarnation"])
        self.rule = ClaimRule(self.floor.epoch, int(meta["barred_through"]), frozenset(json.loads(meta["admitted"])))
        for row in self._writer.run(_read_rows).result():
            self._index.keep(row)
        self.seq = self._next = max(int(meta["seq"]), max(self.rows, default=0))

    def close(self) -> None:
        self._writer.close()

    def by_request(self, request_id: str) -> Row | None:
        with self._lock:
            return self._index.by_request(request_id)

    def by_tag(self, tag: str) -> Row | None:
        """The row whose request id it is, else the newest that has it as tag."""
        with self._lock:
            return self._index.by_tag(tag)

    def by_key(self, key: str) -> list[Row]:
        """Rows of all epochs, in any order (rule 6)."""
        with self._lock:
            return self._index.by_key(key)

    def by_prefix(self, prefix: str) -> list[Row]:
        """Rows whose key begins so. A row that comes meanwhile may be missing."""
        keys = [key for key in self._index.all_keys() if key.startswith(prefix)]
        found: list[Row] = []
        for start in range(0, len(keys), 1000):  # there may be many, and the event loop waits for this lock too
            with self._lock:
                found += [row for key in keys[start : start + 1000] for row in self._index.by_key(key)]
        return found

    def reserve(
        self,
        request_id: str,
        tag: str,
        config: CommandConfig,
        owner: Floor,
        boot_id: str,
        instead_of: Row | None = None,
        then: Callable[[Row], None] = lambda row: None,
    ) -> Future[Row]:
        """A new row; the future has it once it is on disk and `then`, in the ledger's thread, is done with it.

        `instead_of` is a row of the same id that never started: it goes in the same step. What `then` raises is the
        future's error; the row stays.
        """
        with self._lock:
            self._next += 1
            row = Row(self._next, request_id, tag, config, owner, boot_id, time.time_ns())

        def write(db: sqlite3.Connection) -> None:
            if instead_of is not None:
                db.execute("delete from command where seq = ?", (instead_of.seq,))  # the new row's number is higher
            _insert(db, row)

        def keep(_: None) -> Row:
            with self._lock:
                if instead_of is not None:
                    self._index.drop(instead_of)
                self._index.keep(row)
                self.seq = max(self.seq, row.seq)
            crash_point("ledger.reserved_synced")
            then(row)
            return row

        return self._writer.run(write, keep)

    def decide(self, verdict: Verdict) -> None:
        """Floor, `killed_by`, adoption and bar in one synced step (rules 4, 9, 10, 21)."""
        with self._lock:
            rule = self.rule_after(verdict)
            changed = [self._judged(self.rows[seq], verdict) for seq in _touched(verdict)]

        def write(db: sqlite3.Connection) -> None:
            _update(db, changed)
            _set_meta(db, epoch=verdict.floor.epoch, incarnation=verdict.floor.incarnation)
            _set_meta(db, barred_through=rule.barred_through, admitted=json.dumps(sorted(rule.admitted)))

        self._writer.run(write).result()
        with self._lock:
            self.floor, self.rule = verdict.floor, rule
            for row in changed:
                self._index.keep(row)

    def mark(
        self, seqs: Iterable[int], *, stopping: bool = False, proven: bool = False, never_started: bool = False
    ) -> None:
        """Set the given marks; none is ever taken back."""
        with self._lock:
            changed = [
                replace(
                    row,
                    stopping=row.stopping or stopping,
                    proven=row.proven or proven,
                    never_started=row.never_started or never_started,
                )
                for row in (self.rows[seq] for seq in seqs)
            ]
        if changed:
            self._writer.run(lambda db: _update(db, changed)).result()
            with self._lock:
                for row in changed:
                    self._index.keep(row)

    def forget(self, seqs: Iterable[int]) -> int:
        """How many were there. Only rows of which nothing lives or may start: nobody else changes those."""
        with self._lock:
            gone = [self.rows[seq] for seq in seqs if seq in self.rows]
            newest = self._next

        def write(db: sqlite3.Connection) -> None:
            _set_meta(db, seq=newest)  # numbers never come again, so it must not depend on the rows that go
            db.executemany("delete from command where seq = ?", [(row.seq,) for row in gone])

        self._writer.run(write).result()
        with self._lock:
            return sum(self._index.drop(row) for row in gone)

    def rule_after(self, verdict: Verdict) -> ClaimRule:
        """What `decide` will make of the rule, if no row is reserved meanwhile."""
        if verdict.bar:
            return ClaimRule(verdict.floor.epoch, self._next, verdict.adopted)
        admitted = (self.rule.admitted | verdict.adopted) - verdict.killed - verdict.never_started
        return ClaimRule(verdict.floor.epoch, self.rule.barred_through, admitted)

    def _judged(self, row: Row, verdict: Verdict) -> Row:
        if row.seq in verdict.killed:
            return replace(row, killed=True, killed_by=row.killed_by or verdict.floor.epoch)
        if row.seq in verdict.never_started:
            return replace(row, never_started=True)
        return replace(row, owner=verdict.floor)


def _prepare(db: sqlite3.Connection, generation: int) -> None:
    for statement in filter(None, map(str.strip, _SCHEMA.split(";"))):
        db.execute(statement)
    first = {
        "version": SCHEMA_VERSION,
        "instance_id": secrets.token_hex(16),
        "generation": generation,
        "epoch": 0,
        "incarnation": "",
        "seq": 0,
        "barred_through": 0,
        "admitted": "[]",
    }
    db.executemany("insert or ignore into meta values (?, ?)", [(name, str(value)) for name, value in first.items()])
    db.execute(
        "update meta set value = ? where name = 'generation' and cast(value as integer) < ?",
        (str(generation), generation),
    )


def _read_rows(db: sqlite3.Connection) -> list[Row]:
    return [_row(values) for values in db.execute(f"select {', '.join(_COLUMNS)} from command order by seq")]


_COLUMNS = (
    "seq", "request_id", "tag", "config", "epoch", "incarnation", "boot_id", "created_ns",
    "killed", "killed_by", "never_started", "stopping", "proven",
)  # fmt: skip


def _row(values: tuple[object, ...]) -> Row:
    column = dict(zip(_COLUMNS, values, strict=True))
    config = json.loads(str(column["config"]))
    return Row(
        seq=int(str(column["seq"])),
        request_id=str(column["request_id"]),
        tag=str(column["tag"]),
        config=CommandConfig(**{**config, "args": tuple(config["args"])}),
        owner=Floor(int(str(column["epoch"])), str(column["incarnation"])),
        boot_id=str(column["boot_id"]),
        created_ns=int(str(column["created_ns"])),
        killed=bool(column["killed"]),
        killed_by=int(str(column["killed_by"])),
        never_started=bool(column["never_started"]),
        stopping=bool(column["stopping"]),
        proven=bool(column["proven"]),
    )


def _insert(db: sqlite3.Connection, row: Row) -> None:
    values = (
        row.seq, row.request_id, row.tag, json.dumps(row.config.values()), row.owner.epoch, row.owner.incarnation,
        row.boot_id, row.created_ns, row.killed, row.killed_by, row.never_started, row.stopping, row.proven,
    )  # fmt: skip
    db.execute(f"insert into command ({', '.join(_COLUMNS)}) values ({', '.join('?' * len(_COLUMNS))})", values)


def _update(db: sqlite3.Connection, rows: Iterable[Row]) -> None:
    for row in rows:
        db.execute(
            "update command set epoch = ?, incarnation = ?, killed = ?, killed_by = ?, never_started = ?, stopping = ?,"
            " proven = ? where seq = ?",
            (
                row.owner.epoch, row.owner.incarnation, row.killed, row.killed_by, row.never_started, row.stopping,
                row.proven, row.seq,
            ),
        )  # fmt: skip


def _set_meta(db: sqlite3.Connection, **values: object) -> None:
    for name, value in values.items():
        db.execute("update meta set value = ? where name = ?", (str(value), name))


def _touched(verdict: Verdict) -> frozenset[int]:
    return verdict.killed | verdict.never_started | verdict.adopted

"""The objects of one session's folder, in SQLite: what an API server is on a cluster.

Guarantees: a status is written only over the revision that was read (compare-and-swap), whole or not at all; an epoch,
generation or lease token that is once written never goes back, whoever writes. A write that has returned survives SIGKILL and
power loss (`synchronous=FULL`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from durable_base.errors import UsageError
from durable_local.layout import StateError, unusable

# The same promise that the CRDs' transition rules keep on a cluster: absent counts as gone back.
_GROWING = ("epoch", "attempts", "leaseToken", "generation")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
  kind TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL, created REAL NOT NULL,
  revision INTEGER NOT NULL, generation INTEGER NOT NULL,
  spec TEXT NOT NULL CHECK (json_valid(spec)), status TEXT NOT NULL CHECK (json_valid(status)),
  PRIMARY KEY (kind, name)
);
""" + "".join(
    f"""
CREATE TRIGGER IF NOT EXISTS {field}_grows BEFORE UPDATE ON objects
WHEN coalesce(json_extract(new.status, '$.{field}'), 0) < coalesce(json_extract(old.status, '$.{field}'), 0)
BEGIN SELECT RAISE(ABORT, '{field} must not go back'); END;
"""
    for field in _GROWING
)
_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)  # full or broken, and no mistake of whoever runs the command
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_COLUMNS = "kind, name, uid, created, revision, generation, spec, status"


class ConflictError(Exception):
    """Somebody wrote the object since it was read; nothing was written. Read again and plan again (rule 16)."""


@dataclass(frozen=True, slots=True)
class Record:
    """An object as it was read. `spec` and `status` are JSON texts, `created` is in Unix seconds, `generation` counts specs."""

    kind: str
    name: str
    uid: str
    created: float
    revision: int
    generation: int
    spec: str
    status: str


class Store:
    """One connection to one file; used by one thread."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Raise UsageError if the file can't be opened or is none of ours, StateError if the disk is full or it is damaged."""
        self._path = path
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(path.parent, error) from error
        try:
            # Who only reads needs "rw" too where it may: a coordinator killed within a write leaves a journal to roll back.
            mode = "rwc" if create else "rw" if os.access(path, os.W_OK) else "ro"
            self._db = sqlite3.connect(f"file:{_quoted(path)}?mode={mode}", uri=True, isolation_level=None, timeout=10)
            if create:
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.executescript(_SCHEMA)
            else:
                self._db.execute("SELECT 1 FROM objects LIMIT 1")
        except sqlite3.Error as error:
            _raise_for_disk(path, error)
            raise UsageError(
                f"{path}: the state can't be read ({error}). Check the folder's owner and mode, or name another with --state DIR."
            ) from error

    def close(self) -> None:
        self._db.close()

    def read(self, kind: str, name: str) -> Record | None:
        with self._judged():
            query = f"SELECT {_COLUMNS} FROM objects WHERE kind=? AND name=?"
            row = self._db.execute(query, (kind, name)).fetchone()
        return None if row is None else Record(*row)

    def names(self, kind: str) -> list[str]:
        with self._judged():
            return [
                name for (name,) in self._db.execute("SELECT name FROM objects WHERE kind=? ORDER BY name", (kind,))
            ]

    def create(self, kind: str, name: str, spec: str, status: str = "{}") -> Record:
        """Raise ConflictError if there is one of that name."""
        record = Record(kind, name, str(uuid.uuid4()), time.time(), 1, 1, spec, status)
        with self._judged():
            self._db.execute(
                f"INSERT INTO objects ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)",
                dataclasses.astuple(record),
            )
        return record

    def write(self, read: Record, *, spec: str | None = None, status: str | None = None) -> Record:
        """Replace spec, status or both of the object, if it still is what was read. Raise ConflictError."""
        new = dataclasses.replace(
            read,
            revision=read.revision + 1,
            generation=read.generation + (spec is not None and spec != read.spec),
            spec=read.spec if spec is None else spec,
            status=read.status if status is None else status,
        )
        with self._judged():
            done = self._db.execute(
                "UPDATE objects SET spec=?, status=?, revision=?, generation=? WHERE kind=? AND name=? AND uid=? AND revision=?",
                (new.spec, new.status, new.revision, new.generation, read.kind, read.name, read.uid, read.revision),
            )
        if done.rowcount != 1:
            raise ConflictError(f"{read.kind} {read.name}: changed since revision {read.revision} was read")
        return new

    def delete(self, kind: str, name: str, uid: str) -> None:
        """Remove exactly this object; nothing happens if there is none of that uid."""
        with self._judged():
            self._db.execute("DELETE FROM objects WHERE kind=? AND name=? AND uid=?", (kind, name, uid))

    @contextlib.contextmanager
    def _judged(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise ConflictError(str(error)) from error
        except sqlite3.Error as error:
            _raise_for_disk(self._path, error)
            raise StateError(
                f"{self._path}: the state can't be read or written ({error}). Check the disk and the folder's mode."
            ) from error


def _raise_for_disk(path: Path, error: sqlite3.Error) -> None:
    if _primary(error) in _DISK:
        raise StateError(f"{path}: {error}. Make room there, and run the same command again.") from error
    if _primary(error) in _DAMAGED:
        raise StateError(
            f"{path}: the state is damaged ({error}). Put a copy of the file in its place, or forget the session: remove "
            f"{path.parent} (what it worked on is in workspace/ there), and run its manifest anew."
        ) from error


def _primary(error: sqlite3.Error) -> int:
    """The low byte of the code; the module's own errors have none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")

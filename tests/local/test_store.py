"""The store of a home: writes over what was read, numbers that never go back, refusals that a person can act on."""

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from durable_base.errors import UsageError
from durable_local.layout import StateError
from durable_local.store import ConflictError, Store

KIND = "DurableSession"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home/state.db")


def test_a_full_disk_is_no_mistake_of_the_user(store: Store) -> None:
    record = store.create(KIND, "a", "{}")
    store._db.execute("PRAGMA max_page_count=1")  # SQLite then says what it says of a full disk
    with pytest.raises(StateError, match=r"full.*Make room"):
        store.write(record, status=f'{{"answer": "{"x" * 100_000}"}}')
    assert (store.read(KIND, "a") or record).status == "{}"


def test_a_write_over_an_old_revision_is_refused(store: Store) -> None:
    first = store.create(KIND, "a", "{}")
    store.write(first, status='{"epoch": 1}')
    with pytest.raises(ConflictError, match="changed since revision 1"):
        store.write(first, status='{"epoch": 2}')
    assert (store.read(KIND, "a") or first).status == '{"epoch": 1}'


@pytest.mark.parametrize("field", ["epoch", "attempts", "leaseToken", "generation"])
@pytest.mark.parametrize("status", ['{"%s": 4}', "{}"])
def test_a_number_that_only_grows_is_never_taken_back(store: Store, field: str, status: str) -> None:
    record = store.write(store.create(KIND, "a", "{}"), status=f'{{"{field}": 5}}')
    with pytest.raises(ConflictError, match=f"{field} must not go back"):
        store.write(record, status=status % field if "%" in status else status)
    store.write(record, status=f'{{"{field}": 5}}')


def test_a_status_survives_another_connection_and_a_changed_spec_counts(store: Store, tmp_path: Path) -> None:
    record = store.write(store.create(KIND, "a", '{"input": "x"}'), status='{"epoch": 3}')
    record = store.write(record, spec='{"input": "y"}')
    assert record.generation == 2
    assert store.write(record, spec='{"input": "y"}').generation == 2
    again = Store(tmp_path / "home/state.db", create=False).read(KIND, "a")
    assert again is not None
    assert (again.spec, again.status, again.uid) == ('{"input": "y"}', '{"epoch": 3}', record.uid)


def test_a_name_is_taken_once(store: Store) -> None:
    store.create(KIND, "a", "{}")
    with pytest.raises(ConflictError):
        store.create(KIND, "a", "{}")


def test_only_the_object_of_that_uid_is_deleted(store: Store) -> None:
    record = store.create(KIND, "a", "{}")
    store.delete(KIND, "a", "another")
    assert store.read(KIND, "a") == record
    store.delete(KIND, "a", record.uid)
    assert store.read(KIND, "a") is None
    with pytest.raises(ConflictError):
        store.write(dataclasses.replace(record), status="{}")


def test_a_file_that_is_no_database_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"no database" * 100)
    with pytest.raises(StateError, match=f"damaged .*remove {tmp_path} "):
        Store(tmp_path / "state.db")


def test_a_folder_that_is_not_there_is_not_made_for_reading(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        Store(tmp_path / "none/state.db", create=False)
    assert not (tmp_path / "none").exists()


def test_a_reader_rolls_back_what_a_killed_writer_left(tmp_path: Path) -> None:
    """A coordinator killed within a write leaves a journal; `durable get` must not need it to come back first."""
    path = tmp_path / "state.db"
    Store(path).close()
    program = (
        "import os, signal, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA cache_size=1')\n"
        "db.execute('BEGIN IMMEDIATE')\n"
        "db.executemany('INSERT INTO objects (kind, name, uid, created, revision, generation, spec, status)'\n"
        "    ' VALUES (?, ?, ?, 0, 1, 1, ?, ?)', [('k', str(n), str(n), '{}', '{}' + ' ' * 4000) for n in range(50)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)]).returncode == -signal.SIGKILL
    assert (tmp_path / "state.db-journal").exists(), "nothing was left to roll back"
    store = Store(path, create=False)
    assert store.read("k", "1") is None
    store.close()

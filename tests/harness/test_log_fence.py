"""The fence of the log: an older driver, or a second one under the same epoch, adds nothing (I4, rule 1)."""

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest

from durable_base.errors import HaltError, StaleEpochError, UsageError
from durable_base.floor import Floor
from durable_harness import Agent, Harness, sqlite
from durable_harness.errors import SessionFailedError
from durable_harness.inspect import LogReader
from durable_harness.session import Session
from durable_harness.sqlite import open_fenced_sqlite
from durable_harness.testing import FunctionModel


async def open_session(path: Path, epoch: int, incarnation: str) -> Session:
    return await Session.load(*await open_fenced_sqlite(path, epoch, incarnation))


async def test_an_older_driver_is_refused_with_all_it_wrote(tmp_path: Path) -> None:
    """Case 15: epoch 6 claims the log while 5 has it open; 5's next commit is refused whole, and its session is over."""
    path = tmp_path / "log.db"
    older = await open_session(path, 5, "a")
    await older.commit(lambda tx: tx.create_conversation(root=True))
    newer = await open_session(path, 6, "b")

    def write(tx) -> None:
        tx.append_entry("one")
        tx.append_entry("two")

    with pytest.raises(SessionFailedError) as failed:
        await older.commit(write)
    cause = failed.value.__cause__
    assert isinstance(cause, StaleEpochError)
    assert (cause.resource, cause.own, cause.floor) == ("log", Floor(5, "a"), Floor(6, "b"))
    assert await newer.entries() == []
    with pytest.raises(SessionFailedError):
        await older.entries()
    await newer.commit(write)
    assert [entry.kind for entry in await newer.entries()] == ["one", "two"]
    await newer.close_storage()
    await older.close_storage()


@pytest.mark.parametrize(
    ("epoch", "incarnation", "admitted"),
    [(4, "a", False), (5, "b", False), (5, "a", True), (6, "a", True)],
    ids=["below", "equal, another process", "equal, the same process", "above"],
)
async def test_opening_judges_the_pair(tmp_path: Path, epoch: int, incarnation: str, admitted: bool) -> None:
    path = tmp_path / "log.db"
    await (await open_session(path, 5, "a")).close_storage()
    if admitted:
        await (await open_session(path, epoch, incarnation)).close_storage()
        expected = Floor(epoch, incarnation)
    else:
        with pytest.raises(StaleEpochError):
            await open_session(path, epoch, incarnation)
        expected = Floor(5, "a")
    with LogReader.open(path) as log:
        assert log.floor == expected


@pytest.mark.parametrize(("epoch", "incarnation"), [(0, "a"), (2**53, "a"), (1, "")])
async def test_an_epoch_that_is_none(tmp_path: Path, epoch: int, incarnation: str) -> None:
    with pytest.raises(UsageError):
        await open_fenced_sqlite(tmp_path / "log.db", epoch, incarnation)
    assert not (tmp_path / "log.db").exists()


async def test_a_log_whose_write_lock_stays_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that froze inside a commit: the next one halts (driven again), it does not call the log unusable."""
    module = sys.modules[open_fenced_sqlite.__module__]  # the package exports a function by the module's name
    monkeypatch.setattr(module, "BUSY_TIMEOUT_SECONDS", 0.05)
    path = tmp_path / "log.db"
    session = await open_session(path, 1, "a")
    frozen = sqlite3.connect(path, isolation_level=None)
    frozen.execute("BEGIN IMMEDIATE")
    with pytest.raises(HaltError) as halted:
        await open_session(path, 2, "b")
    assert (halted.value.reason, halted.value.permanent) == ("LogUnavailable", False)
    with pytest.raises(SessionFailedError) as failed:
        await session.commit(lambda tx: tx.create_conversation(root=True))
    assert failed.value.__cause__.reason == "LogUnavailable"
    frozen.close()
    await session.close_storage()


async def test_a_halted_process_commits_no_more(tmp_path: Path) -> None:
    storage, fence = await open_fenced_sqlite(tmp_path / "log.db", 1, "a")
    session = await Session.load(storage, fence)
    await session.commit(lambda tx: tx.create_conversation(root=True))
    reason = HaltError("SpaceUnreachable", "gone")
    fence.halt(reason)
    fence.halt(HaltError("Later", "the first reason stays"))
    with pytest.raises(SessionFailedError) as failed:
        await session.commit(lambda tx: tx.append_entry("late"))
    assert failed.value.__cause__ is reason
    with pytest.raises(HaltError):
        await fence.check()
    await session.close_storage()
    with LogReader.open(tmp_path / "log.db") as log:
        assert log.entries() == []


async def test_a_stream_learns_of_a_newer_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` reads the log at most every 200 ms, and then tells."""
    path = tmp_path / "log.db"
    storage, fence = await open_fenced_sqlite(path, 1, "a")
    await fence.check()
    newer, _ = await open_fenced_sqlite(path, 2, "b")
    await fence.check()  # within 200 ms of the last read: not asked again
    monkeypatch.setattr("durable_harness.fence.CHECK_INTERVAL_SECONDS", 0.0)
    with pytest.raises(StaleEpochError):
        await fence.check()
    await storage.close()
    await newer.close()


async def test_without_a_coordinator_the_newest_process_writes(tmp_path: Path) -> None:
    """Two harnesses on one file: opening the second takes the log from the first, whose wait is told."""
    hang = asyncio.Event()

    async def answer(request) -> str:
        await hang.wait()
        return "never"

    source = sqlite(tmp_path / "log.db")
    first = await Harness.open(source, models={"m": FunctionModel(answer)})
    root = await first.root(Agent(model="m"))
    submission = await root.submit("hello", request_id="r")
    waiting = asyncio.create_task(submission.wait())
    async with Harness.open(source, models={"m": FunctionModel(lambda request: "hi")}) as second:
        again = await (await second.root()).submit("hello", request_id="r")
        assert (await again.wait()).text == "hi"
    hang.set()
    with pytest.raises(SessionFailedError):
        await waiting
    assert isinstance((await first.closed).__cause__, StaleEpochError)
    await first.close()


async def test_a_cancelled_commit_never_holds_the_write_lock(tmp_path: Path) -> None:
    """Cancelled while it waits for the lock that another process holds: it lands whole, and the lock is free afterwards."""
    path = tmp_path / "log.db"
    session = await open_session(path, 1, "a")
    await session.commit(lambda tx: tx.create_conversation(root=True))
    other = sqlite3.connect(path, isolation_level=None, timeout=0)
    other.execute("BEGIN IMMEDIATE")
    begun = asyncio.Event()

    def write(tx) -> None:
        begun.set()
        tx.append_entry("landed")

    job = asyncio.create_task(session.commit(write))
    await begun.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    other.execute("COMMIT")
    await session.drain()
    assert [entry.kind for entry in await session.entries()] == ["landed"]
    other.execute("BEGIN IMMEDIATE")
    other.close()
    await session.close_storage()

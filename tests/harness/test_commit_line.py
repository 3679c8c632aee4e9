"""The commit line: whole or not at all, one after the other, nothing seen before it is stored."""

import asyncio
from pathlib import Path

import pytest

from durable_harness import sqlite
from durable_harness.documents import DocumentToken
from durable_harness.errors import (
    InvalidRecordError,
    ReadAfterWriteError,
    SessionClosedError,
    SessionFailedError,
    StorageRequestError,
    TxClosedError,
)
from durable_harness.memory import MemoryLog, MemoryStorage
from durable_harness.session import Session
from durable_harness.storage import EntryQuery

NOTE = DocumentToken("note", lambda: {"items": []})


class Faulty(MemoryStorage):
    """A memory log that fails, or waits, when told to."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        super().__init__(log)
        self.commit_error: Exception | None = None
        self.read_error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.committing = asyncio.Event()

    async def commit(self, batch):
        self.committing.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.commit_error is not None:
            raise self.commit_error
        return await super().commit(batch)

    async def entry(self, id):
        if self.read_error is not None:
            raise self.read_error
        return await super().entry(id)


@pytest.fixture
async def storage() -> Faulty:
    return Faulty()


@pytest.fixture
async def session(storage: Faulty) -> Session:
    session = await Session.load(storage)
    await session.commit(lambda tx: tx.create_conversation(root=True))
    return session


async def kinds(session: Session) -> list[str]:
    return [entry.kind for entry in await session.entries()]


@pytest.mark.parametrize("place", ["sqlite", "memory"])
async def test_a_callback_that_raises_leaves_nothing(place: str, tmp_path: Path) -> None:
    """Case 1: entry, document change and task are all absent, nothing is published, the next commit works."""
    storage = MemoryStorage() if place == "memory" else await sqlite(tmp_path / "log.db").open_log()
    session = await Session.load(storage)
    await session.commit(lambda tx: tx.create_conversation(root=True))
    await session.commit(lambda tx: tx.doc(NOTE).value["items"].append(1))
    seen = []
    session.observe(seen.append)

    def write(tx) -> None:
        tx.append_entry("lost")
        tx.doc(NOTE).value["items"].append(2)
        tx.create_task("k", {"phase": "p"})
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await session.commit(write)
    assert seen == []
    assert await kinds(session) == []
    assert await session.document(NOTE) == {"items": [1]}
    assert session.live_tasks() == await session.tasks() == []
    await session.commit(lambda tx: tx.append_entry("kept"))
    assert await kinds(session) == ["kept"]
    (committed,) = seen
    assert [entry.kind for entry in committed.entries] == ["kept"]
    await session.close_storage()


async def test_tables_are_read_before_they_are_written(session: Session) -> None:
    """Case 2: a read after the first table write raises; documents stay usable, with what was written to them."""

    async def write(tx) -> None:
        assert await tx.read_entries() == []
        draft = tx.doc(NOTE)
        draft.value["items"].append("x")
        assert await tx.read_task(99) is None, "a document change is no table write"
        tx.append_entry("one")
        with pytest.raises(ReadAfterWriteError):
            await tx.read_entries()
        assert tx.peek(NOTE) == {"items": ["x"]}
        assert tx.doc(NOTE) is draft

    await session.commit(write)
    assert await kinds(session) == ["one"]


async def test_what_a_callback_kept_is_of_no_use_afterwards(session: Session) -> None:
    """Case 3: transaction and draft raise; changing the value it had handed out changes nothing."""
    kept = []

    def write(tx) -> None:
        draft = tx.doc(NOTE)
        kept.extend([tx, draft, draft.value])

    await session.commit(write)
    tx, draft, value = kept
    for use in (lambda: tx.append_entry("late"), lambda: tx.doc(NOTE), lambda: draft.value, lambda: tx.mint_id()):
        with pytest.raises(TxClosedError):
            use()
    with pytest.raises(TxClosedError):
        draft.value = {}
    with pytest.raises(TxClosedError):
        await tx.read_entries()
    value["items"].append("late")
    assert await session.document(NOTE) == {"items": []}


def cycle() -> list:
    value: list = []
    value.append(value)
    return value


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), print, cycle(), {1: "x"}, {"x": {2}}, b"x", "\ud800"])
async def test_values_that_are_not_strict_json(session: Session, storage: Faulty, bad: object) -> None:
    """Case 4: refused before storage, in a draft and in a record; no seq is consumed."""
    before = storage.log.next_seq

    def draft(tx) -> None:
        tx.doc(NOTE).value["items"].append(bad)

    for write in (draft, lambda tx: tx.append_entry("x", data=bad), lambda tx: tx.create_task("x", {"p": bad})):
        with pytest.raises(InvalidRecordError):
            await session.commit(write)
    assert storage.log.next_seq == before
    await session.commit(lambda tx: tx.append_entry("good"))
    assert storage.log.next_seq == before + 1


async def test_two_commits_do_not_interleave(session: Session, storage: Faulty) -> None:
    """Case 5: the second callback starts only when the first commit is stored and adopted."""
    steps = []
    storage.gate = asyncio.Event()

    async def first(tx) -> None:
        steps.append("first starts")
        await asyncio.sleep(0)
        tx.doc(NOTE).value["items"].append("first")
        steps.append("first ends")

    def second(tx) -> None:
        steps.append(f"second sees {tx.peek(NOTE)['items']}")

    session.observe(lambda committed: steps.append("stored"))
    jobs = [asyncio.create_task(session.commit(first)), asyncio.create_task(session.commit(second))]
    storage.committing.clear()
    await storage.committing.wait()
    assert steps == ["first starts", "first ends"]
    assert await session.document(NOTE) is None, "only committed state is seen"
    storage.gate.set()
    await asyncio.gather(*jobs)
    assert steps == ["first starts", "first ends", "stored", "second sees ['first']"]


async def test_commits_go_in_the_order_they_were_asked_for(session: Session) -> None:
    await asyncio.gather(*(session.commit(lambda tx, n=n: tx.append_entry(str(n))) for n in range(20)))
    assert await kinds(session) == [str(n) for n in range(20)]


async def test_a_caller_that_is_cancelled_while_its_commit_is_stored(session: Session, storage: Faulty) -> None:
    """Case 6: the commit lands, and the line is free again."""
    storage.gate = asyncio.Event()
    storage.committing.clear()
    job = asyncio.create_task(session.commit(lambda tx: tx.append_entry("landed")))
    await storage.committing.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    storage.gate.set()
    await session.commit(lambda tx: tx.append_entry("next"))
    assert await kinds(session) == ["landed", "next"]


async def test_a_caller_that_is_cancelled_before_its_turn_withdraws(session: Session, storage: Faulty) -> None:
    storage.gate = asyncio.Event()
    storage.committing.clear()
    first = asyncio.create_task(session.commit(lambda tx: tx.append_entry("first")))
    await storage.committing.wait()
    second = asyncio.create_task(session.commit(lambda tx: tx.append_entry("withdrawn")))
    await asyncio.sleep(0)
    second.cancel()
    storage.gate.set()
    await first
    await session.commit(lambda tx: tx.append_entry("third"))
    assert await kinds(session) == ["first", "third"]


async def test_a_storage_that_fails_to_commit_ends_the_session(session: Session, storage: Faulty) -> None:
    """Case 7: nobody saw the write; later calls and waits raise with the cause; a reopening shows a whole state."""
    seen = []
    session.observe(seen.append)
    waiting = asyncio.create_task(session.wait_until(lambda: None))
    await asyncio.sleep(0)
    storage.commit_error = OSError(28, "disk full")
    with pytest.raises(SessionFailedError) as failed:
        await session.commit(lambda tx: tx.append_entry("lost"))
    assert failed.value.__cause__ is storage.commit_error
    assert seen == []
    storage.commit_error = None
    for work in (session.commit(lambda tx: None), session.entries(), session.document(NOTE), waiting):
        with pytest.raises(SessionFailedError) as again:
            await work
        assert isinstance(again.value.__cause__, OSError)
    reopened = await Session.load(MemoryStorage(storage.log))
    assert await kinds(reopened) == []


async def test_a_storage_that_fails_to_read_ends_the_session(session: Session, storage: Faulty) -> None:
    """Case 8: as for commits; a request that is never right fails its call alone."""
    with pytest.raises(StorageRequestError):
        await session.read(storage.scan_entries(EntryQuery(1), cursor="nonsense"))
    await session.commit(lambda tx: tx.append_entry("goes on"))
    storage.read_error = OSError("unreadable")

    with pytest.raises(SessionFailedError):
        await session.commit(lambda tx: tx.read_entry(5))
    with pytest.raises(SessionFailedError):
        await session.commit(lambda tx: None)


async def test_a_commit_inside_a_commit_raises_instead_of_waiting_for_itself(session: Session) -> None:
    async def outer(tx) -> None:
        await session.commit(lambda tx: None)

    with pytest.raises(InvalidRecordError, match="inside a commit"):
        await asyncio.wait_for(session.commit(outer), 10)
    background = []

    async def starts(tx) -> None:
        background.append(asyncio.create_task(later()))

    async def later() -> None:
        await asyncio.sleep(0)
        await session.commit(lambda tx: tx.append_entry("background"))

    await session.commit(starts)
    await background[0]
    assert await kinds(session) == ["background"]


async def test_a_sealed_session_stores_what_it_admitted_and_no_more(session: Session, storage: Faulty) -> None:
    storage.gate = asyncio.Event()
    storage.committing.clear()
    admitted = asyncio.create_task(session.commit(lambda tx: tx.append_entry("admitted")))
    await storage.committing.wait()
    queued = asyncio.create_task(session.commit(lambda tx: tx.append_entry("queued")))
    await asyncio.sleep(0)
    session.seal()
    storage.gate.set()
    await session.drain()
    await admitted
    with pytest.raises(SessionClosedError):
        await queued
    assert [stored.entry.kind for stored in storage.log.entries.values()] == ["admitted"]


@pytest.mark.parametrize(
    "write",
    [
        lambda tx: tx.append_entry("x", conversation_id=77),
        lambda tx: tx.create_task("x", {}, conversation_id=77),
        lambda tx: tx.create_task("x", {}, owner=77),
        lambda tx: tx.doc(NOTE, 77),
        lambda tx: tx.create_conversation(root=True),
        lambda tx: tx.retire(NOTE),
    ],
)
async def test_writes_that_contradict_the_records(session: Session, write) -> None:
    with pytest.raises(InvalidRecordError):
        await session.commit(write)

"""What every storage must do to hold a log. Each check gets an empty log and a way to open it, as often as it likes.

A check closes one storage before it opens the next: a log has one writer. It fails by AssertionError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from durable_harness.documents import Address
from durable_harness.errors import SessionClosedError, StorageRequestError
from durable_harness.records import (
    ConversationRecord,
    DocumentRecord,
    Entry,
    Outcome,
    Pending,
    SubmissionRecord,
    Task,
    Terminal,
)
from durable_harness.storage import (
    AppendEntry,
    Batch,
    ChangeDocument,
    CreateDocument,
    EntryQuery,
    PutConversation,
    PutSubmission,
    PutTask,
    RetireDocument,
    Storage,
    SubmissionQuery,
    TaskQuery,
    Write,
)

Open = Callable[[], Awaitable[Storage]]
Check = Callable[[Open], Awaitable[None]]
ROOT = PutConversation(ConversationRecord(id=1))


async def check_storage(make: Callable[[], Open]) -> None:
    """Run every check, each on a log of its own."""
    for check in CHECKS:
        await check(make())


async def _commit(storage: Storage, *writes: Write) -> int:
    return await storage.commit(Batch(writes))


async def _refused(work: Awaitable[Any], error: type[Exception] = StorageRequestError) -> None:
    try:
        await work
    except error:
        return
    raise AssertionError(f"not refused with {error.__name__}")


def _entry(storage: Storage, kind: str = "note", head: int | None = None) -> AppendEntry:
    return AppendEntry(Entry(id=storage.mint_id(), conversation_id=1, kind=kind, data={"n": 1}, head=head))


async def counters_go_on_after_a_reopening(open_log: Open) -> None:
    storage = await open_log()
    log_id = storage.log_id
    first = _entry(storage)
    assert await _commit(storage, ROOT, first) == 1, "the first commit's seq is 1"
    assert first.record.id > 1, "id 1 is the root conversation's"
    await storage.close()
    storage = await open_log()
    second = _entry(storage)
    assert second.record.id > first.record.id, "an id that a commit used is never given again"
    assert await _commit(storage, second) == 2
    assert storage.log_id == log_id
    assert len(log_id) == 32
    await storage.close()


async def a_refused_batch_leaves_nothing_and_takes_no_seq(open_log: Open) -> None:
    storage = await open_log()
    first = _entry(storage)
    await _commit(storage, ROOT, first)
    second = _entry(storage)
    await _refused(_commit(storage, second, first))
    assert await storage.entry(second.record.id) is None
    assert await _commit(storage, second) == 2
    await storage.close()


async def an_id_names_one_record_of_any_kind(open_log: Open) -> None:
    storage = await open_log()
    entry = _entry(storage)
    await _commit(storage, ROOT, entry)
    task = Task(id=entry.record.id, conversation_id=1, kind="k", version=1, input=None, state=Pending(checkpoint=1))
    await _refused(_commit(storage, PutTask(task, create=True)))
    await _refused(_commit(storage, PutTask(task, create=False)))
    await storage.close()


async def what_is_handed_out_is_detached(open_log: Open) -> None:
    storage = await open_log()
    entry = _entry(storage)
    await _commit(storage, ROOT, entry)
    stored = await storage.entry(entry.record.id)
    assert stored is not None
    stored.entry.data["n"] = 2
    entry.record.data["n"] = 3
    again = await storage.entry(entry.record.id)
    assert again is not None
    assert again.entry.data == {"n": 1}
    await storage.close()


async def scans_keep_the_order_of_their_cursor(open_log: Open) -> None:
    storage = await open_log()
    entries = [_entry(storage) for _ in range(5)]
    await _commit(storage, ROOT, *entries)
    ids = [entry.record.id for entry in entries]
    query = EntryQuery(1)
    newest = await storage.scan_entries(query, 2)
    assert [entry.id for entry in newest.items] == ids[:2:-1], "entries come newest first"
    rest = await storage.scan_entries(query, 10, newest.cursor)
    assert [entry.id for entry in rest.items] == ids[2::-1]
    assert rest.cursor is None
    oldest = await storage.scan_entries(query, 2, order="asc")
    assert [entry.id for entry in oldest.items] == ids[:2]
    await _refused(storage.scan_entries(query, 2, oldest.cursor, "desc"))
    await _refused(storage.scan_entries(query, 2, "nonsense"))
    await _refused(storage.scan_entries(query, 0))
    some = await storage.scan_entries(EntryQuery(1, "note", ids[1], ids[3]), order="asc")
    assert [entry.id for entry in some.items] == ids[1:4]
    await storage.close()


async def the_newest_head_through_an_entry(open_log: Open) -> None:
    storage = await open_log()
    first, second = _entry(storage, head=7), _entry(storage, head=8)
    await _commit(storage, ROOT, _entry(storage), first, second, _entry(storage))
    assert (await storage.newest_head(1)) == second.record
    assert (await storage.newest_head(1, second.record.id - 1)) == first.record
    assert (await storage.newest_head(1, 1)) is None
    await storage.close()


async def a_task_is_replaced_and_found_by_being_live(open_log: Open) -> None:
    storage = await open_log()
    task = Task(id=storage.mint_id(), conversation_id=1, kind="k", version=1, input=None, state=Pending(checkpoint=1))
    await _commit(storage, ROOT, PutTask(task, create=True))
    assert (await storage.scan_tasks(TaskQuery(live=True))).items == [task]
    ended = Task(
        id=task.id,
        conversation_id=1,
        kind="k",
        version=1,
        input=None,
        state=Terminal(outcome=Outcome(status="completed", result=[1, None, "é"])),
    )
    await _commit(storage, PutTask(ended, create=False))
    assert (await storage.scan_tasks(TaskQuery(live=True))).items == []
    assert (await storage.scan_tasks(TaskQuery(1, "k", live=False))).items == [ended]
    assert await storage.task(task.id) == ended
    await storage.close()


async def a_request_id_is_used_once_in_a_conversation(open_log: Open) -> None:
    storage = await open_log()

    def submission(conversation_id: int, request_id: str | None) -> PutSubmission:
        record = SubmissionRecord(
            id=storage.mint_id(),
            conversation_id=conversation_id,
            type="input",
            status="queued",
            request_id=request_id,
        )
        return PutSubmission(record, create=True)

    first = submission(1, "r1")
    await _commit(storage, ROOT, PutConversation(ConversationRecord(id=storage.mint_id())), first)
    await _refused(_commit(storage, submission(1, "r1")))
    await _commit(storage, submission(2, "r1"), submission(1, None), submission(1, None))
    assert await storage.submission_by_request(1, "r1") == first.record
    assert len((await storage.scan_submissions(SubmissionQuery(1, open=True))).items) == 3
    await storage.close()


def _document(storage: Storage, history: Any) -> CreateDocument:
    record = DocumentRecord(
        id=storage.mint_id(), kind="doc", scope="conversation", owner_id=1, history=history, fork="initial"
    )
    return CreateDocument(record, 1, {"n": 0})


async def a_rewindable_document_is_read_as_of_any_seq(open_log: Open) -> None:
    storage = await open_log()
    created = _document(storage, "rewindable")
    document_id = created.record.id
    start = await _commit(storage, ROOT, created)
    for n in range(1, 5):
        form = "base" if n == 3 else "delta"
        content = {"n": n} if n == 3 else [["s", ["n"], n]]
        await _commit(storage, ChangeDocument(document_id, "base" if form == "base" else "delta", 1, content))
    await storage.close()
    storage = await open_log()
    for n, (base, deltas) in enumerate([(0, 0), (0, 1), (0, 2), (3, 0), (3, 1)]):
        stored = await storage.read_document(document_id, start + n)
        assert stored is not None
        assert (stored.base["n"], len(stored.deltas)) == (base, deltas), f"as of change {n}"
    await storage.close()


async def a_retired_document_gives_way_to_a_new_incarnation(open_log: Open) -> None:
    storage = await open_log()
    old = _document(storage, "latest")
    born = await _commit(storage, ROOT, old)
    await _refused(_commit(storage, _document(storage, "latest")))
    retired = await _commit(storage, RetireDocument(old.record.id))
    await _refused(_commit(storage, ChangeDocument(old.record.id, "base", 1, {})))
    address = Address("doc", "conversation", 1)
    assert await storage.find_document(address) is None
    new = _document(storage, "latest")
    reborn = await _commit(storage, new)
    for at, expected in [(born, old), (retired, None), (reborn, new), (None, new)]:
        found = await storage.find_document(address, at)
        assert (found and found.record) == (expected and expected.record), f"alive at seq {at}"
    await storage.close()


async def a_closed_storage_refuses(open_log: Open) -> None:
    storage = await open_log()
    await _commit(storage, ROOT)
    await storage.close()
    await storage.close()
    await _refused(_commit(storage, ROOT), SessionClosedError)
    await _refused(storage.conversation(1), SessionClosedError)


CHECKS: tuple[Check, ...] = (
    counters_go_on_after_a_reopening,
    a_refused_batch_leaves_nothing_and_takes_no_seq,
    an_id_names_one_record_of_any_kind,
    what_is_handed_out_is_detached,
    scans_keep_the_order_of_their_cursor,
    the_newest_head_through_an_entry,
    a_task_is_replaced_and_found_by_being_live,
    a_request_id_is_used_once_in_a_conversation,
    a_rewindable_document_is_read_as_of_any_seq,
    a_retired_document_gives_way_to_a_new_incarnation,
    a_closed_storage_refuses,
)

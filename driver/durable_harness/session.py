"""The Session: one open log, its commit line, and what is committed. Knows nothing of models, tools or scheduling.

Guarantee: `commit` callbacks run one at a time, in the order asked for; what one writes is stored whole before anyone sees it,
or nothing of it is. After a storage error, or once the fence refuses, the Session has failed: nothing more is published, and
everything raises SessionFailedError with the cause until the log is opened anew.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from durable_harness._drafts import Draft as Draft
from durable_harness._drafts import current_value
from durable_harness._state import LiveDocument, LiveState, load_state, replay
from durable_harness.documents import Address, DocumentToken
from durable_harness.errors import (
    CorruptLogError,
    InvalidRecordError,
    SessionClosedError,
    SessionFailedError,
    StorageRequestError,
)
from durable_harness.fence import Fence
from durable_harness.records import ROOT_ID, ConversationRecord, Entry, SubmissionRecord, Task
from durable_harness.storage import (
    AppendEntry,
    Batch,
    EntryQuery,
    PutConversation,
    Storage,
    SubmissionQuery,
    TaskQuery,
    Write,
)
from durable_harness.tx import Tx as Tx

Json = Any
T = TypeVar("T")
log = logging.getLogger("durable_harness")

_holder: contextvars.ContextVar[Tx | None] = contextvars.ContextVar("durable_harness_commit", default=None)


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit observer is told, after the commit is stored and adopted, before the next one begins."""

    seq: int
    entries: tuple[Entry, ...]
    tasks: tuple[Task, ...]  # created or changed, as they are now
    submissions: tuple[SubmissionRecord, ...]


class Session:
    def __init__(self, storage: Storage, state: LiveState, fence: Fence | None) -> None:
        self._storage = storage
        self._state = state
        self.fence = fence
        self._line = asyncio.Lock()  # FIFO; held from the callback's start to the observers' end
        self._admitted: set[asyncio.Task[Any]] = set()
        self._observers: list[Callable[[Committed], None]] = []
        self._on_failure: list[Callable[[], None]] = []
        self._pulse: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: BaseException | None = None  # set once, by `fail`
        self._sealed = False  # no further commit is admitted; set by `seal` and `fail`

    @classmethod
    async def load(cls, storage: Storage, fence: Fence | None = None) -> Session:
        """Read the live state. Writes nothing. `fence`: the storage's own, if not given."""
        return cls(storage, await load_state(storage), fence or storage.fence)

    @property
    def log_id(self) -> str:
        """32 hex digits, made with the log, never copied by a fork."""
        return self._storage.log_id

    @property
    def failure(self) -> SessionFailedError | None:
        """A new exception each time, so that tracebacks do not pile up; `__cause__` is the same."""
        if self._failure is None:
            return None
        failed = SessionFailedError(f"the session has failed and must be reopened: {self._failure}")
        failed.__cause__ = self._failure
        return failed

    # ---- the commit line

    @overload
    async def commit(self, fn: Callable[[Tx], Awaitable[T]]) -> T: ...

    @overload
    async def commit(self, fn: Callable[[Tx], T]) -> T: ...

    async def commit(self, fn: Callable[[Tx], Any]) -> Any:
        """Run `fn(tx)` (sync or async) and store what it wrote, as one transaction; its value is returned.

        `fn` may await transaction reads and nothing else that takes long; effects do not belong in it. If it raises, nothing
        is written. Cancelling the caller before `fn` starts withdraws the commit; later it only detaches the caller.
        Raises what `fn` raises; InvalidRecordError for values that can't be stored, or a commit inside a commit;
        StorageRequestError (nothing written); SessionFailedError, SessionClosedError.
        """
        holder = _holder.get()
        if holder is not None and not holder.closed:
            raise InvalidRecordError("a commit inside a commit would wait for itself; use the tx that is at hand")
        self.check_open()
        await self._line.acquire()
        try:
            self.check_open()
            task = asyncio.get_running_loop().create_task(self._hold(fn))
        except BaseException:
            self._line.release()
            raise
        self._admitted.add(task)
        task.add_done_callback(self._settled)
        return await asyncio.shield(task)

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._admitted.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have gone

    async def _hold(self, fn: Callable[[Tx], Any]) -> Any:
        tx = Tx(self._state, self._storage, self.read)
        _holder.set(tx)  # in this task's own context
        try:
            with tx._sealed_at_end():
                answer = fn(tx)
                result = await answer if inspect.isawaitable(answer) else answer
            writes, documents = tx._prepare()
            if writes:
                seq = await self.read(self._storage.commit(Batch(writes)))
                if self._failure is not None:  # failed meanwhile: what is stored is read at the next opening
                    raise self._failed()
                self._adopt(tx, documents)
                self._publish(seq, writes, tx)
            return result
        finally:
            self._line.release()

    def _adopt(self, tx: Tx, documents: dict[Address, LiveDocument]) -> None:
        state = self._state
        for write in tx._writes:
            if isinstance(write, PutConversation):
                state.conversations[write.record.id] = write.record
        for task in tx._tasks.values():
            state.adopt_task(task)
        for submission in tx._submissions.values():
            state.adopt_submission(submission)
        state.documents.update(documents)
        for address in tx._retired:
            state.documents.pop(address, None)

    def _publish(self, seq: int, writes: list[Write], tx: Tx) -> None:
        committed = Committed(
            seq,
            tuple(write.record for write in writes if isinstance(write, AppendEntry)),
            tuple(tx._tasks.values()),
            tuple(tx._submissions.values()),
        )
        for observer in list(self._observers):
            try:
                observer(committed)
            except Exception:
                log.exception("a commit observer raised; the commit stands")
        self.pulse()

    def observe(self, fn: Callable[[Committed], None]) -> Callable[[], None]:
        """Call `fn` after every commit, synchronously: it may only note what it is told. Returns the way to end it."""
        self._observers.append(fn)
        return lambda: self._observers.remove(fn)

    # ---- reads: committed state only

    async def read(self, request: Awaitable[T]) -> T:
        """Await a storage operation. Its errors fail the Session, but for a request that is never right."""
        try:
            return await request
        except StorageRequestError:
            raise
        except Exception as error:
            self.fail(error)
            raise self._failed() from error

    async def document(self, token: DocumentToken, owner_id: int = 0, *, as_of: int | None = None) -> Json:
        """A copy of the value now, or (rewindable documents) after the commit that contains entry `as_of`. Never creates."""
        self.check_readable()
        address = token.address(owner_id)
        if as_of is None:
            live = self._state.documents.get(address)
            return None if live is None else current_value(token, live)
        if token.history != "rewindable":
            raise InvalidRecordError(f"document {token.kind} keeps only its latest value")
        stored_entry = await self.read(self._storage.entry(as_of))
        if stored_entry is None:
            raise InvalidRecordError(f"document {token.kind}: there is no entry {as_of}")
        found = await self.read(self._storage.find_document(address, stored_entry.seq))
        if found is None:
            return None
        stored = await self.read(self._storage.read_document(found.record.id, stored_entry.seq))
        if stored is None:
            raise CorruptLogError(f"document {found.record.id} ({token.kind}) is listed and not there")
        return token.upgrade(stored.version, replay(stored))

    async def entries(self, conversation_id: int = ROOT_ID, *, first: int | None = None) -> list[Entry]:
        """Oldest first, from entry id `first` on."""
        self.check_readable()
        query = EntryQuery(conversation_id, first=first)
        page = await self.read(self._storage.scan_entries(query, order="asc"))
        entries = page.items
        while page.cursor is not None:
            page = await self.read(self._storage.scan_entries(query, cursor=page.cursor))
            entries.extend(page.items)
        return entries

    async def entry(self, id: int) -> Entry | None:
        self.check_readable()
        stored = await self.read(self._storage.entry(id))
        return None if stored is None else stored.entry

    async def task(self, id: int) -> Task | None:
        self.check_readable()
        return self._state.tasks.get(id) or await self.read(self._storage.task(id))

    async def tasks(self, *, conversation_id: int | None = None, kind: str | None = None) -> list[Task]:
        """Live and ended ones, oldest first."""
        self.check_readable()
        query = TaskQuery(conversation_id, kind)
        page = await self.read(self._storage.scan_tasks(query))
        tasks = page.items
        while page.cursor is not None:
            page = await self.read(self._storage.scan_tasks(query, cursor=page.cursor))
            tasks.extend(page.items)
        return tasks

    async def submission(self, id: int) -> SubmissionRecord | None:
        self.check_readable()
        return self._state.submissions.get(id) or await self.read(self._storage.submission(id))

    async def newest_submission(self, conversation_id: int = ROOT_ID) -> SubmissionRecord | None:
        """The one that was admitted last, settled or not."""
        self.check_readable()
        query = SubmissionQuery(conversation_id)
        page = await self.read(self._storage.scan_submissions(query, limit=1, order="desc"))
        return page.items[0] if page.items else None

    def conversation(self, id: int = ROOT_ID) -> ConversationRecord | None:
        return self._state.conversations.get(id)

    def open_submission(self, id: int) -> SubmissionRecord | None:
        """Queued or placed; None once it is settled."""
        return self._state.submissions.get(id)

    def live_task(self, id: int) -> Task | None:
        return self._state.tasks.get(id)

    def live_tasks(self, conversation_id: int | None = None) -> list[Task]:
        """In id order."""
        tasks = sorted(self._state.tasks.items())
        return [task for _, task in tasks if conversation_id in (None, task.conversation_id)]

    # ---- waiting, failing, closing

    async def wait_until(self, probe: Callable[[], T | None]) -> T:
        """What `probe()` gives, asked after every commit, as soon as it is not None."""
        while True:
            self.check_readable()
            if (found := probe()) is not None:
                return found
            await asyncio.shield(self._pulse)

    def pulse(self) -> None:
        """Have every `wait_until` ask again."""
        pulse, self._pulse = self._pulse, asyncio.get_running_loop().create_future()
        pulse.set_result(None)

    def check_readable(self) -> None:
        if self._failure is not None:
            raise self._failed()
        if self._sealed:
            raise SessionClosedError("the session is closed; open the log again")

    check_open = check_readable

    def _failed(self) -> SessionFailedError:
        failed = self.failure
        assert failed is not None
        return failed

    def fail(self, cause: BaseException) -> None:
        """End the Session at once. The fence halts first: nothing that is under way can still be recorded."""
        if self._failure is not None:
            return
        if isinstance(cause, SessionFailedError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if self.fence is not None and isinstance(cause, Exception):
            self.fence.halt(cause)
        self._failure = cause
        self._sealed = True
        log.warning("session failed: %s", type(cause).__name__)
        for listener in list(self._on_failure):
            listener()
        self.pulse()

    def on_failure(self, fn: Callable[[], None]) -> None:
        self._on_failure.append(fn)

    def seal(self) -> None:
        """Admit no further commit; those admitted are stored."""
        self._sealed = True
        self.pulse()

    async def drain(self) -> None:
        """Wait for the commits that were admitted."""
        while self._admitted:
            await asyncio.wait(set(self._admitted))

    async def close_storage(self) -> None:
        await self._storage.close()

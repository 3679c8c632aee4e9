"""One transaction: what a commit callback may read and write. Nothing of it is seen by anyone before the commit is stored."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterator
from typing import Any, Literal, Protocol, TypeVar

from msgspec.structs import replace

from durable_harness._drafts import Draft, current_value
from durable_harness._json import copy_strict, scrub_text
from durable_harness._state import LiveDocument, LiveState, owned_by
from durable_harness.documents import Address, DocumentToken
from durable_harness.errors import InvalidRecordError, ReadAfterWriteError, TxClosedError
from durable_harness.records import (
    ROOT_ID,
    Completing,
    ConversationRecord,
    Edit,
    Entry,
    Pending,
    SubmissionRecord,
    Task,
    Terminal,
    Waiting,
)
from durable_harness.storage import (
    AppendEntry,
    EntryQuery,
    PutConversation,
    PutSubmission,
    PutTask,
    RetireDocument,
    Storage,
    Write,
)

Json = Any
T = TypeVar("T")
TEXT_MAX = 4000  # characters of an error that a record keeps


class Reader(Protocol):
    async def __call__(self, request: Awaitable[T], /) -> T: ...


class Tx:
    """Valid inside its commit callback only.

    Table reads (the async methods) are allowed until the first table write; documents may be used throughout, with what was
    written to them. A value that is not strict JSON is refused where it is given, or, in a draft, when the callback ends.
    """

    def __init__(self, state: LiveState, storage: Storage, read: Reader) -> None:
        self._state = state
        self._storage = storage
        self._read = read  # awaits a storage read; its errors fail the Session
        self._closed = False
        self._by_task_id: int | None = None  # set by a task's runtime: its entries name it
        self._writes: list[Write] = []
        self._drafts: dict[Address, Draft] = {}
        self._retired: set[Address] = set()
        self._conversations: dict[int, ConversationRecord] = {}
        self._tasks: dict[int, Task] = {}
        self._submissions: dict[int, SubmissionRecord] = {}
        self._created: set[int] = set()

    @property
    def closed(self) -> bool:
        return self._closed

    # ---- documents

    def doc(self, token: DocumentToken, owner_id: int = 0) -> Draft:
        """Get or create. `owner_id` 0: the session, or the root conversation."""
        self._check_open()
        address = token.address(owner_id)
        if address in self._retired:
            raise InvalidRecordError(f"document {token.kind} is retired in this commit; create it anew in the next")
        draft = self._drafts.get(address)
        if draft is None:
            live = self._state.documents.get(address)
            if live is None:
                self._check_owner(address)
            draft = self._drafts[address] = Draft(token, live)
        return draft

    def peek(self, token: DocumentToken, owner_id: int = 0) -> Json:
        """A copy of the value in this transaction, or None. Never creates."""
        self._check_open()
        address = token.address(owner_id)
        if address in self._retired:
            return None
        if (draft := self._drafts.get(address)) is not None:
            return copy_strict(draft.value, token.kind)
        live = self._state.documents.get(address)
        return None if live is None else current_value(token, live)

    def retire(self, token: DocumentToken, owner_id: int = 0) -> None:
        """End this incarnation: gone from now on, still there for reads as of earlier entries (if rewindable)."""
        self._check_open()
        self._retire(token.address(owner_id))

    def _retire(self, address: Address) -> None:
        live = self._state.documents.get(address)
        if live is None:
            raise InvalidRecordError(f"document {address.kind}: there is none to retire")
        self._retired.add(address)
        if (draft := self._drafts.pop(address, None)) is not None:
            draft.close()

    def _check_owner(self, address: Address) -> None:
        known = {
            "session": True,
            "conversation": self.get_conversation(address.owner_id) is not None,
            "task": self.get_task(address.owner_id) is not None,
        }[address.scope]
        if not known:
            raise InvalidRecordError(
                f"document {address.kind}: its {address.scope} {address.owner_id} does not exist, or has ended"
            )

    # ---- the candidate: committed live state with this transaction's changes; not "table reads"

    def get_conversation(self, id: int) -> ConversationRecord | None:
        return self._conversations.get(id) or self._state.conversations.get(id)

    def get_task(self, id: int) -> Task | None:
        """A live task, or one that this transaction ended; None for others."""
        return self._tasks.get(id) or self._state.tasks.get(id)

    def get_submission(self, id: int) -> SubmissionRecord | None:
        """An open submission, or one that this transaction settled; None for others."""
        return self._submissions.get(id) or self._state.submissions.get(id)

    def live_tasks(self, conversation_id: int | None = None) -> list[Task]:
        """In id order."""
        candidates = {**self._state.tasks, **self._tasks}
        return [
            task
            for _, task in sorted(candidates.items())
            if not isinstance(task.state, Terminal) and conversation_id in (None, task.conversation_id)
        ]

    # ---- table reads

    async def read_entry(self, id: int) -> Entry | None:
        self._check_read()
        stored = await self._read(self._storage.entry(id))
        return None if stored is None else stored.entry

    async def read_entries(self, conversation_id: int = ROOT_ID, *, kind: str | None = None) -> list[Entry]:
        """Oldest first."""
        self._check_read()
        query = EntryQuery(conversation_id, kind)
        page = await self._read(self._storage.scan_entries(query, order="asc"))
        entries = page.items
        while page.cursor is not None:
            page = await self._read(self._storage.scan_entries(query, cursor=page.cursor))
            entries.extend(page.items)
        return entries

    async def read_newest_entry(self, conversation_id: int = ROOT_ID, *, kind: str | None = None) -> Entry | None:
        self._check_read()
        page = await self._read(self._storage.scan_entries(EntryQuery(conversation_id, kind), 1))
        return page.items[0] if page.items else None

    async def read_task(self, id: int) -> Task | None:
        self._check_read()
        return await self._read(self._storage.task(id))

    async def read_submission(self, id: int) -> SubmissionRecord | None:
        self._check_read()
        return await self._read(self._storage.submission(id))

    async def read_submission_by_request(self, conversation_id: int, request_id: str) -> SubmissionRecord | None:
        self._check_read()
        return await self._read(self._storage.submission_by_request(conversation_id, request_id))

    # ---- table writes

    def create_conversation(self, *, root: bool = False) -> ConversationRecord:
        self._check_open()
        record = ConversationRecord(id=ROOT_ID if root else self._storage.mint_id())
        if self.get_conversation(record.id) is not None:
            raise InvalidRecordError(f"conversation {record.id} exists")
        self._conversations[record.id] = record
        self._writes.append(PutConversation(record))
        return record

    def append_entry(
        self,
        kind: str,
        *,
        conversation_id: int = ROOT_ID,
        model: list[Json] | None = None,
        data: Json = None,
        head: int | Literal["self"] | None = None,
        edits: list[Edit] | None = None,
        by_task_id: int | None = None,
    ) -> Entry:
        self._check_open()
        if self.get_conversation(conversation_id) is None:
            raise InvalidRecordError(f"entry {kind}: conversation {conversation_id} does not exist")
        entry_id = self._storage.mint_id()
        entry = Entry(
            id=entry_id,
            conversation_id=conversation_id,
            kind=kind,
            model=None if model is None else copy_strict(model, f"entry {kind}: model"),
            data=copy_strict(data, f"entry {kind}: data"),
            head=entry_id if head == "self" else head,
            edits=edits,
            by_task_id=self._by_task_id if by_task_id is None else by_task_id,
        )
        self._writes.append(AppendEntry(entry))
        return entry

    def create_task(
        self,
        kind: str,
        checkpoint: Json,
        *,
        version: int = 1,
        input: Json = None,
        conversation_id: int = ROOT_ID,
        owner: int | None = None,
        background: bool = False,
    ) -> Task:
        """Pending, or refused: under a missing, ending or abort-marked owner, in another conversation than the owner's."""
        self._check_open()
        if self.get_conversation(conversation_id) is None:
            raise InvalidRecordError(f"task {kind}: conversation {conversation_id} does not exist")
        if owner is not None:
            self._check_task_owner(kind, owner, conversation_id, background)
        task = Task(
            id=self._storage.mint_id(),
            conversation_id=conversation_id,
            kind=kind,
            version=version,
            input=copy_strict(input, f"task {kind}: input"),
            state=Pending(checkpoint=copy_strict(checkpoint, f"task {kind}: checkpoint")),
            owner=owner,
            background=background,
        )
        self._created.add(task.id)
        self._tasks[task.id] = task
        return task

    def _check_task_owner(self, kind: str, owner: int, conversation_id: int, background: bool) -> None:
        parent = self.get_task(owner)
        if parent is None or isinstance(parent.state, Completing | Terminal) or parent.abort_requested:
            raise InvalidRecordError(f"task {kind}: its owner {owner} is missing, ending or aborted")
        if parent.conversation_id != conversation_id or background:
            raise InvalidRecordError(f"task {kind}: an owned task runs in its owner's conversation, in the foreground")

    def put_task(self, task: Task) -> Task:
        """Replace a live task. A terminal state is held as `completing` while ordinary owned work is live; ending retires
        the task's documents and drops its memos.
        """
        self._check_open()
        before = self.get_task(task.id)
        if before is None or isinstance(before.state, Terminal):
            raise InvalidRecordError(f"task {task.id}: it does not exist, or has ended")
        if isinstance(before.state, Completing) and task.outcome != before.outcome:
            raise InvalidRecordError(f"task {task.id}: its outcome is decided")
        if isinstance(task.state, Waiting):
            self._check_waiting(task, task.state)
        if isinstance(task.state, Terminal):
            if owned_by(self.live_tasks(), task.id):
                task = replace(task, state=Completing(outcome=task.state.outcome))
            else:
                for address in [a for a in self._state.documents if a.scope == "task" and a.owner_id == task.id]:
                    self._retire(address)
        if isinstance(task.state, Completing | Terminal):
            task = replace(task, memos=None)
        self._tasks[task.id] = _strict_task(task)
        return self._tasks[task.id]

    def _check_waiting(self, task: Task, state: Waiting) -> None:
        above: int | None = task.id
        while above is not None:
            if above in state.on:
                raise InvalidRecordError(f"task {task.id}: waits on itself or on its owner")
            parent = self.get_task(above)
            above = None if parent is None else parent.owner

    def put_submission(self, record: SubmissionRecord) -> SubmissionRecord:
        """Create (id unknown) or move on an open submission; settling a settled one changes nothing."""
        self._check_open()
        before = self.get_submission(record.id)
        if before is not None and before.settled:
            return before
        if before is None:
            self._created.add(record.id)
        copy_strict(record.request_id, "submission: request id")
        record = replace(record, detail=_scrubbed(record.detail))
        self._submissions[record.id] = record
        return record

    def mint_id(self) -> int:
        self._check_open()
        return self._storage.mint_id()

    # ---- the session's side

    def _check_open(self) -> None:
        if self._closed:
            raise TxClosedError("a transaction was used after its commit")

    def _check_read(self) -> None:
        self._check_open()
        if self._writes or self._tasks or self._submissions:
            raise ReadAfterWriteError("tables are read before the first table write of a commit")

    def _seal(self) -> None:
        self._closed = True
        for draft in self._drafts.values():
            draft.close()

    def _prepare(self) -> tuple[list[Write], dict[Address, LiveDocument]]:
        """The batch, and the documents as they are after it. Called once, sealed."""
        writes = list(self._writes)
        writes.extend(PutTask(task, task.id in self._created) for task in self._tasks.values())
        writes.extend(PutSubmission(record, record.id in self._created) for record in self._submissions.values())
        documents: dict[Address, LiveDocument] = {}
        for address, draft in self._drafts.items():
            change = draft.change(address.owner_id, self._storage.mint_id)
            if change is not None:
                write, documents[address] = change
                writes.append(write)
        writes.extend(RetireDocument(self._state.documents[address].record.id) for address in self._retired)
        return writes, documents

    @contextlib.contextmanager
    def _sealed_at_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._seal()


def _scrubbed(text: str | None) -> str | None:
    """Words of an exception, which may hold anything."""
    return None if text is None else scrub_text(text)[:TEXT_MAX]


def _strict_task(task: Task) -> Task:
    state = task.state
    if isinstance(state, Completing | Terminal):
        outcome = state.outcome
        outcome = replace(
            outcome,
            result=copy_strict(outcome.result, f"task {task.kind}: result"),
            error=_scrubbed(outcome.error),
            reason=_scrubbed(outcome.reason),
        )
        return replace(task, state=replace(state, outcome=outcome))
    checkpoint = copy_strict(state.checkpoint, f"task {task.kind}: checkpoint")
    return replace(task, state=replace(state, checkpoint=checkpoint))

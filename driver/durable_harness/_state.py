"""What a Session keeps in memory of its log: live tasks, conversations, open submissions, documents. Only committed state.

One writer per log (the fence) makes this copy exact. `Session` alone changes it, when a commit has been stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from durable_harness import _ops
from durable_harness._json import encode
from durable_harness.documents import Address
from durable_harness.errors import CorruptLogError
from durable_harness.records import ConversationRecord, DocumentRecord, SubmissionRecord, Task, Terminal
from durable_harness.storage import DocumentQuery, Storage, StoredDocument, SubmissionQuery, TaskQuery

Json = Any


@dataclass(frozen=True, slots=True)
class LiveDocument:
    record: DocumentRecord
    version: int
    value: Json  # never handed out, never changed in place
    deltas: int  # since the base
    base_size: int = 0  # characters, encoded
    damage: CorruptLogError | None = None  # its stored form can't be read: raised by whoever asks for the value


def based(record: DocumentRecord, version: int, value: Json) -> LiveDocument:
    """As it is when its base has just been written."""
    return LiveDocument(record, version, value, 0, len(encode(value)))


@dataclass(slots=True)
class LiveState:
    conversations: dict[int, ConversationRecord] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)  # not terminal
    submissions: dict[int, SubmissionRecord] = field(default_factory=dict)  # not settled
    documents: dict[Address, LiveDocument] = field(default_factory=dict)

    def adopt_task(self, task: Task) -> None:
        if isinstance(task.state, Terminal):
            self.tasks.pop(task.id, None)
        else:
            self.tasks[task.id] = task

    def adopt_submission(self, submission: SubmissionRecord) -> None:
        if submission.settled:
            self.submissions.pop(submission.id, None)
        else:
            self.submissions[submission.id] = submission


def replay(stored: StoredDocument) -> Json:
    value = stored.base
    for delta in stored.deltas:
        value = _ops.apply(value, delta)
    return value


async def load_state(storage: Storage) -> LiveState:
    state = LiveState()
    cursor = None
    while True:
        conversations = await storage.scan_conversations(cursor=cursor)
        state.conversations.update({record.id: record for record in conversations.items})
        if (cursor := conversations.cursor) is None:
            break
    while True:
        tasks = await storage.scan_tasks(TaskQuery(live=True), cursor=cursor)
        state.tasks.update({task.id: task for task in tasks.items})
        if (cursor := tasks.cursor) is None:
            break
    while True:
        submissions = await storage.scan_submissions(SubmissionQuery(open=True), cursor=cursor)
        state.submissions.update({record.id: record for record in submissions.items})
        if (cursor := submissions.cursor) is None:
            break
    while True:
        documents = await storage.scan_documents(DocumentQuery(), cursor=cursor)
        for found in documents.items:
            record = found.record
            state.documents[Address(record.kind, record.scope, record.owner_id)] = await _load(storage, record)
        if (cursor := documents.cursor) is None:
            return state


async def _load(storage: Storage, record: DocumentRecord) -> LiveDocument:
    """Damage stays with its document: the rest of the log can still be used and inspected."""
    try:
        stored = await storage.read_document(record.id)
        if stored is None:
            raise CorruptLogError(f"document {record.id} ({record.kind}) is listed and not there")
        base_size = len(encode(stored.base))
        return LiveDocument(record, stored.version, replay(stored), len(stored.deltas), base_size)
    except CorruptLogError as damage:
        return LiveDocument(record, 0, None, 0, damage=damage)


def owned_by(tasks: Iterable[Task], owner: int) -> list[Task]:
    """The ordinary (not background) tasks that belong to a task, directly."""
    return [task for task in tasks if task.owner == owner and not task.background]

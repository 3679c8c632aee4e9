"""A conversation as its user holds it: submit, wait, read, abort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from durable_base.crash import crash_point
from durable_harness import _inbox
from durable_harness.builtin import AGENT
from durable_harness.errors import BlockedError, CorruptLogError, UnansweredError
from durable_harness.records import Entry, SubmissionRecord
from durable_harness.session import Tx

if TYPE_CHECKING:
    from durable_harness.harness import Harness

Json = Any


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    entry_id: int  # the pi.assistant entry


class Submission:
    """An input or a write that has been admitted: it is in the log."""

    def __init__(self, harness: Harness, record: SubmissionRecord) -> None:
        self._harness = harness
        self.id = record.id
        self.request_id = record.request_id
        self.conversation_id = record.conversation_id

    async def wait(self) -> Answer:
        """The answer (of a write: the entry, with no text), once there is one. Cancelling ends the wait alone.

        Raises UnansweredError; BlockedError if nothing in this process can bring it about; SessionFailedError,
        SessionClosedError.
        """
        self._harness.resume()
        await self._harness.session.wait_until(self._settled)
        record = await self._record()
        if record.status == "unanswered":
            raise UnansweredError(record.reason or "unknown", record.detail)
        if record.answer is None:
            return Answer("", record.entry or 0)
        entry = await self._harness.session.entry(record.answer)
        if entry is None or not entry.model:
            raise CorruptLogError(f"submission {self.id}: its answer, entry {record.answer}, is not there")
        return Answer(entry.model[0]["content"], entry.id)

    def _settled(self) -> bool | None:
        if self._harness.session.open_submission(self.id) is None:
            return True
        task = self._harness.stuck_task(self.conversation_id)
        if task is not None:
            raise BlockedError(task.id, task.kind, self._harness.blocked()[task.id])
        return None

    async def status(self) -> str:
        """queued, placed, done or unanswered."""
        return (await self._record()).status

    async def abort(self) -> Literal["aborted", "already_placed", "settled"]:
        """Take it back if it is still queued."""
        return await self._harness.session.commit(lambda tx: _inbox.withdraw(tx, self.id))

    async def _record(self) -> SubmissionRecord:
        record = await self._harness.session.submission(self.id)
        if record is None:
            raise CorruptLogError(f"submission {self.id} is not there")
        return record


class Conversation:
    def __init__(self, harness: Harness, id: int) -> None:
        self._harness = harness
        self.id = id

    async def submit(
        self, content: str, *, request_id: str | None = None, when_busy: _inbox.WhenBusy = "followUp"
    ) -> Submission:
        """Admit an input; when this returns it survives whatever `Storage` survives. A known request id gives the submission
        that it was first used for, settled or not; nothing is written then.

        Raises ConversationBusyError (`when_busy="reject"`), RequestConflictError.
        """
        self._harness.resume()

        async def write(tx: Tx) -> SubmissionRecord:
            return await _inbox.admit_input(tx, self.id, content, request_id, when_busy)

        record = await self._harness.session.commit(write)
        crash_point("harness.admitted")
        return Submission(self._harness, record)

    async def write(
        self, kind: str, *, model: list[Json] | None = None, data: Json = None, request_id: str | None = None
    ) -> Submission:
        """Append an entry now, or at the next boundary if a run goes on. Never starts one."""

        async def write(tx: Tx) -> SubmissionRecord:
            return await _inbox.admit_write(tx, self.id, kind, model, data, request_id)

        return Submission(self._harness, await self._harness.session.commit(write))

    async def entries(self) -> list[Entry]:
        """Oldest first."""
        return await self._harness.session.entries(self.id)

    async def agent(self) -> Json:
        """What is stored of the agent (`pi.agent`)."""
        return await self._harness.session.document(AGENT, self.id)

    async def abort(self) -> None:
        """Withdraw queued inputs, mark what runs for abort, and wait until the conversation is idle."""
        self._harness.resume()

        def write(tx: Tx) -> None:
            for task in tx.live_tasks(self.id):
                if not task.background and not task.abort_requested:
                    self._harness.mark(tx, task)
            _inbox.withdraw_inputs(tx, self.id)

        await self._harness.session.commit(write)
        await self.wait_for_idle()

    async def wait_for_idle(self) -> None:
        """Until no foreground task of the conversation is live. Raises BlockedError if that can't come about here."""
        self._harness.resume()
        await self._harness.session.wait_until(self._idle)

    def _idle(self) -> bool | None:
        if not any(not task.background for task in self._harness.session.live_tasks(self.id)):
            return True
        task = self._harness.stuck_task(self.id)
        if task is not None:
            raise BlockedError(task.id, task.kind, self._harness.blocked()[task.id])
        return None

"""Submissions and runs inside a transaction: how an input is admitted, becomes a run, and is settled by the run's end.

A run answers the inputs that `pi.live.run` names; exactly these are settled, in the commit that clears it. What comes while
a run goes on waits in `pi.inbox` for the next boundary: writes after each round of tools, all of it after an answer.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from durable_harness import messages
from durable_harness._json import copy_strict
from durable_harness.builtin import INBOX, LIVE
from durable_harness.errors import ConversationBusyError, RequestConflictError
from durable_harness.records import SubmissionRecord, Task
from durable_harness.session import Tx

Json = Any
WhenBusy = Literal["followUp", "reject"]


async def admit_input(
    tx: Tx, conversation_id: int, content: str, request_id: str | None, when_busy: WhenBusy
) -> SubmissionRecord:
    """The submission, new or known by its request id: placed with its run, or queued."""
    known = await _known(tx, conversation_id, request_id, "input")
    if known is not None:
        return known
    inbox = tx.doc(INBOX, conversation_id)
    busy = tx.doc(LIVE, conversation_id).value["run"] is not None
    if busy and when_busy == "reject":
        raise ConversationBusyError(f"conversation {conversation_id} has a run; wait for it, or submit a follow-up")
    record = SubmissionRecord(
        id=tx.mint_id(), conversation_id=conversation_id, type="input", status="queued", request_id=request_id
    )
    if not busy and not inbox.value["items"]:
        _start_run(tx, conversation_id, [_place(tx, record, content)], turns=0)
        return _current(tx, record)
    tx.put_submission(record)
    inbox.value["items"].append({"submission": record.id, "type": "input", "content": content})
    if not busy:  # left over from a failed run: they go first, and this one with them
        final_boundary(tx, conversation_id)
    return _current(tx, record)


async def admit_write(
    tx: Tx, conversation_id: int, kind: str, model: list[Json] | None, data: Json, request_id: str | None
) -> SubmissionRecord:
    """An entry appended now, or at the next boundary of a busy conversation. Starts no run."""
    known = await _known(tx, conversation_id, request_id, "write")
    if known is not None:
        return known
    inbox = tx.doc(INBOX, conversation_id)
    record = SubmissionRecord(
        id=tx.mint_id(), conversation_id=conversation_id, type="write", status="queued", request_id=request_id
    )
    item = {"submission": record.id, "type": "write", "kind": kind, "model": model, "data": data}
    copy_strict(item, f"write {kind}")
    if tx.doc(LIVE, conversation_id).value["run"] is None:
        return _append(tx, record, item)
    tx.put_submission(record)
    inbox.value["items"].append(item)
    return record


async def _known(
    tx: Tx, conversation_id: int, request_id: str | None, kind: Literal["input", "write"]
) -> SubmissionRecord | None:
    if request_id is None:
        return None
    known = await tx.read_submission_by_request(conversation_id, request_id)
    if known is not None and known.type != kind:
        raise RequestConflictError(f"request id {request_id!r} is known as {known.type}; use another for a {kind}")
    return known


def _current(tx: Tx, record: SubmissionRecord) -> SubmissionRecord:
    return tx.get_submission(record.id) or record


def _place(tx: Tx, record: SubmissionRecord, content: str) -> int:
    entry = tx.append_entry("pi.user", conversation_id=record.conversation_id, model=[messages.user(content)])
    tx.put_submission(replace(record, status="placed", entry=entry.id))
    return record.id


def _append(tx: Tx, record: SubmissionRecord, item: Json) -> SubmissionRecord:
    entry = tx.append_entry(
        item["kind"], conversation_id=record.conversation_id, model=item["model"], data=item["data"]
    )
    return tx.put_submission(replace(record, status="done", entry=entry.id))


def _start_run(tx: Tx, conversation_id: int, inputs: list[int], turns: int) -> Task:
    """The next generation of a run; a conversation owns it, not the generation before."""
    task = tx.create_task("pi.generation", {"phase": "prepare", "attempt": 1}, conversation_id=conversation_id)
    live = tx.doc(LIVE, conversation_id).value
    live["run"] = {"task_id": task.id, "inputs": inputs, "turns": turns}
    return task


def post_tools_boundary(tx: Tx, conversation_id: int) -> Task:
    """After a round of tools: queued writes are appended, and the run goes on with a new generation."""
    _take_writes(tx, conversation_id)
    live = tx.doc(LIVE, conversation_id).value
    run = live["run"]
    live["generation"] = None
    live["tools"] = []
    return _start_run(tx, conversation_id, run["inputs"], run["turns"] + 1)


def final_boundary(tx: Tx, conversation_id: int) -> None:
    """After an answer: writes first, then all queued inputs, which share one successor run."""
    _take_writes(tx, conversation_id)
    inbox = tx.doc(INBOX, conversation_id).value
    items, inbox["items"] = inbox["items"], []
    inputs = [
        _place(tx, record, item["content"])
        for item in items
        if (record := tx.get_submission(item["submission"])) is not None and record.status == "queued"
    ]
    if inputs:
        _start_run(tx, conversation_id, inputs, turns=0)


def _take_writes(tx: Tx, conversation_id: int) -> None:
    inbox = tx.doc(INBOX, conversation_id).value
    for item in [item for item in inbox["items"] if item["type"] == "write"]:
        record = tx.get_submission(item["submission"])
        if record is not None and record.status == "queued":
            _append(tx, record, item)
    inbox["items"] = [item for item in inbox["items"] if item["type"] != "write"]


def settle_run(tx: Tx, conversation_id: int, answer: int | None, reason: str = "", detail: str | None = None) -> None:
    """Settle exactly the run's inputs and clear it, with what was live of it."""
    live = tx.doc(LIVE, conversation_id).value
    run = live["run"]
    for submission_id in run["inputs"] if run else ():
        record = tx.get_submission(submission_id)
        if record is not None and not record.settled:
            if answer is not None:
                tx.put_submission(replace(record, status="done", answer=answer))
            else:
                tx.put_submission(replace(record, status="unanswered", reason=reason, detail=detail))
    live.update(run=None, generation=None, tools=[])


def withdraw(tx: Tx, submission_id: int) -> Literal["aborted", "already_placed", "settled"]:
    """Take back an input or write that is still queued."""
    record = tx.get_submission(submission_id)
    if record is None or record.settled:
        return "settled"
    if record.status == "placed":
        return "already_placed"
    tx.put_submission(replace(record, status="unanswered", reason="aborted"))
    inbox = tx.doc(INBOX, record.conversation_id).value
    inbox["items"] = [item for item in inbox["items"] if item["submission"] != submission_id]
    return "aborted"


def withdraw_inputs(tx: Tx, conversation_id: int) -> None:
    """All queued inputs of a conversation that is being aborted; queued writes stay."""
    for item in list(tx.doc(INBOX, conversation_id).value["items"]):
        if item["type"] == "input":
            withdraw(tx, item["submission"])

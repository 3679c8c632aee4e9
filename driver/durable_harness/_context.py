"""What the model sees of a conversation: its entries as messages. Pure, so that a request sent again is the same request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from durable_harness import messages
from durable_harness.records import Entry

Json = Any
NOT_SHOWN = ("aborted", "error", "deferred")  # `data.status` of assistant entries that the model never sees again
MISSING_RESULT = "[diagnostics]\n- error interrupted: the call has no result"


def derive(entries: Sequence[Entry]) -> list[Json]:
    """`entries`: all of the conversation through the cutoff, oldest first.

    From the newest head on; of several edits of an entry the newest counts; a call's results stand behind it in call order,
    missing ones are told as errors, results without a call are left out; the first system message leads.
    """
    start = next((entry.head for entry in reversed(entries) if entry.head is not None), 0)
    shown = [entry for entry in entries if entry.id >= start]
    edits = {edit.target: edit.messages for entry in shown for edit in entry.edits or ()}
    results = {
        (entry.data["entry"], entry.data["index"]): edits.get(entry.id, entry.model) or []
        for entry in shown
        if entry.kind == "pi.tool-result"
    }
    context: list[Json] = []
    for entry in shown:
        if entry.kind == "pi.tool-result" or (entry.kind == "pi.assistant" and entry.data["status"] in NOT_SHOWN):
            continue
        for message in edits.get(entry.id, entry.model) or ():
            context.append(message)
            for index, call in enumerate(message.get("tool_calls", ())):
                missing = [messages.tool_result(call["id"], call["name"], MISSING_RESULT)]
                context.extend(results.get((entry.id, index), missing))
    leading = next((index for index, message in enumerate(context) if message["role"] == "system"), None)
    if leading:
        context.insert(0, context.pop(leading))
    return context

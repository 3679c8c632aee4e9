"""Messages as entries and model requests hold them: plain objects with a `role`.

{"role": "system", "content": str}
{"role": "user", "content": str}
{"role": "assistant", "content": str, "tool_calls": [{"id": str, "name": str, "arguments": ...}], "thinking": str?}
{"role": "tool", "tool_call_id": str, "name": str, "content": str}
"""

from __future__ import annotations

from typing import Any

from durable_harness._json import copy_strict, scrub, scrub_text
from durable_harness.errors import InvalidRecordError
from durable_harness.models import Message

Json = Any


def system(content: str) -> Json:
    return {"role": "system", "content": scrub_text(content)}


def user(content: str) -> Json:
    return {"role": "user", "content": scrub_text(content)}


def assistant(message: Message) -> Json:
    """Whatever a provider hands over becomes something that can be stored; unreadable arguments become null."""
    value: Json = {
        "role": "assistant",
        "content": scrub_text(message.text),
        "tool_calls": [
            {"id": scrub_text(call.id), "name": scrub_text(call.name), "arguments": _arguments(call.arguments)}
            for call in message.tool_calls
        ],
    }
    if message.thinking:
        value["thinking"] = scrub_text(message.thinking)
    return value


def tool_result(call_id: str, name: str, content: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def _arguments(arguments: Any) -> Json:
    try:
        return copy_strict(scrub(arguments), "arguments")
    except (InvalidRecordError, RecursionError):
        return None

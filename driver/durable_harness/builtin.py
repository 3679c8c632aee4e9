"""The documents that the harness keeps for each conversation. Their kinds and fields are part of the log's format."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

from durable_harness.documents import DocumentToken

Json = Any
_DELTAS_MAX = 500


def _session_uuid() -> str:
    """UUIDv7: sorts by time."""
    value = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | (0x7 << 76)
    value = value & ~(0x3 << 62) | (0x2 << 62)
    return str(uuid.UUID(int=value))


def _live() -> Json:
    """run {task_id, inputs, turns} or None (idle); generation {attempt, message, retry} or None; tools: one slot per call of
    the round {call_id, name, task_id, status pending|running|done, output, dropped_bytes, dropped_lines, entry}.
    """
    return {"run": None, "generation": None, "tools": []}


def _usage() -> Json:
    """models {key: {requests, input_tokens, output_tokens, cost}}, tools {name: {calls, errors}}."""
    return {"models": {}, "tools": {}}


def _agent() -> Json:
    return {
        "model": None,
        "instructions": "",
        "tools": [],
        "thinking_level": None,
        "extensions": [],
        "cwd": None,
        "max_turns": None,
        "max_cost": None,
    }


AGENT = DocumentToken("pi.agent", _agent, history="rewindable", fork="asOf", checkpoint_when=lambda value, deltas: True)
# The id that a model provider may key its caches by: kept over reopening, new for each conversation.
PROVIDER = DocumentToken("pi.provider", lambda: {"session_id": _session_uuid()})
LIVE = DocumentToken(
    "pi.live", _live, checkpoint_when=lambda value, deltas: value["run"] is None or deltas > _DELTAS_MAX
)
# Queued submissions, oldest first: {submission, type, content | kind, model, data}.
INBOX = DocumentToken(
    "pi.inbox", lambda: {"items": []}, checkpoint_when=lambda value, deltas: not value["items"] or deltas > _DELTAS_MAX
)
USAGE = DocumentToken("pi.usage", _usage)
ALL = (AGENT, PROVIDER, LIVE, INBOX, USAGE)

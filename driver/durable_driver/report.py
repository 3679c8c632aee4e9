"""The report at the end of a drive: two lines in a file that the coordinator (or kubelet) reads after the process is gone.

Line 1 is one JSON object of at most 900 bytes, line 2 the answer as a JSON string; together at most 3,800 bytes (rule 32:
kubelet keeps 4,096 of a container). A broken second line loses only the answer. No prompts, no output beyond the answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durable_base.floor import Floor
from durable_driver.exit_codes import Ending

FACTS_BYTES_MAX = 900
REPORT_BYTES_MAX = 3800
TERMINATION_LOG = Path("/dev/termination-log")


@dataclass(frozen=True, slots=True)
class DriveFacts:
    """What is known of a drive at its end, however early that was."""

    session: str = ""
    epoch: int = 0
    floor: Floor = field(default_factory=Floor)  # the one this drive claimed
    mode: str = ""
    entries: int = 0  # committed by this drive
    last_entry: int = 0  # the log's newest
    recoveries: Mapping[str, int] = field(default_factory=dict)
    model_errors: Mapping[str, int] = field(default_factory=dict)  # requests of this drive that failed, by kind
    usage: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None


def compose_report(facts: DriveFacts, ending: Ending) -> bytes:
    """Pure. Cut at characters: first the message, then what could be long, never the outcome."""
    room = REPORT_BYTES_MAX - FACTS_BYTES_MAX - 1
    answer = None if facts.answer is None else _fitting(facts.answer, room)
    floor = ending.floor or facts.floor
    line: dict[str, Any] = {
        "session": facts.session,
        "epoch": facts.epoch,
        "outcome": ending.outcome,
        "reason": ending.reason,
        "message": "",
        "floor": {"epoch": floor.epoch, "incarnation": floor.incarnation},
        "mode": facts.mode,
        "entries": facts.entries,
        "lastEntry": facts.last_entry,
        "recoveries": dict(facts.recoveries),
        "usage": dict(facts.usage),
    }
    if facts.model_errors:
        line["modelErrors"] = dict(facts.model_errors)
    if answer != facts.answer:
        line["answerTruncated"] = True
    for name in ("modelErrors", "usage", "recoveries", "session"):
        if len(_json(line)) > FACTS_BYTES_MAX:
            line.pop(name, None)
    left = FACTS_BYTES_MAX - len(_json(line)) + len('""')
    line["message"] = _fitting(ending.message, left)
    report = _json(line) + b"\n"
    return report if answer is None else report + _json(answer)


def facts_line(report: bytes) -> str:
    """The first line, as the report stream sends it."""
    return report.partition(b"\n")[0].decode()


def write_report(path: Path | None, report: bytes) -> None:
    """Put the report at `path`, or at /dev/termination-log where that exists. OSError if it can't be written.

    In place and in one write: the termination log is a mount and can't be renamed over. Killed in between, there is no report,
    and the coordinator goes by the exit alone.
    """
    if path is None:
        if not TERMINATION_LOG.exists():
            return
        path = TERMINATION_LOG
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, report)
    finally:
        os.close(fd)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _fitting(text: str, bytes_max: int) -> str:
    """The longest beginning whose JSON string has at most `bytes_max` bytes."""
    if len(_json(text)) <= bytes_max:
        return text
    low, high = 0, min(len(text), bytes_max)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(_json(text[:middle])) <= bytes_max else (low, middle - 1)
    return text[:low]

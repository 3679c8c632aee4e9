"""What a drive came to: exit code, outcome and reason from how it ended. Pure and total; `run` exits with the answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from durable_base.errors import HaltError, StaleEpochError, UsageError
from durable_base.floor import Floor
from durable_driver.errors import PermanentFailure, StoppedError
from durable_harness.errors import BlockedError, CorruptLogError, UnansweredError

Outcome = Literal["settled", "failed", "fenced", "halted", "stopped", "crashed"]

FINISHED = 0
CRASHED = 1  # driven again
FENCED = 75  # a newer epoch exists: ignore this process
PERMANENT = 78  # no later drive can succeed either
STOPPED = 143  # asked to stop, and at a durable point


@dataclass(frozen=True, slots=True)
class Ending:
    code: int
    outcome: Outcome
    reason: str  # stable and CamelCase: report, condition and metric show it as it is
    message: str = ""  # one line for a person, without content of the conversation
    floor: Floor | None = None  # the one that fenced this drive


def judge_ending(error: BaseException | None) -> Ending:
    """None: the input is answered. The first error of the chain of causes that says something decides."""
    if error is None:
        return Ending(FINISHED, "settled", "Completed")
    for cause in _causes(error):
        match cause:
            case StaleEpochError():
                return Ending(FENCED, "fenced", "Fenced", _line(cause), cause.floor)
            case HaltError(permanent=True):
                return Ending(PERMANENT, "failed", cause.reason, _line(cause.message))
            case HaltError():
                return Ending(CRASHED, "halted", cause.reason, _line(cause.message))
            case PermanentFailure():
                return Ending(PERMANENT, "failed", cause.reason, _line(cause.message))
            case UnansweredError():
                return Ending(PERMANENT, "failed", _camel(cause.reason), _line(cause.detail or str(cause)))
            case BlockedError():
                return Ending(PERMANENT, "failed", _camel(cause.reason), _line(cause))
            case CorruptLogError():
                return Ending(PERMANENT, "failed", "CorruptLog", _line(cause))
            case UsageError():
                return Ending(PERMANENT, "failed", "InvalidConfiguration", _line(cause))
            case StoppedError():
                return Ending(STOPPED, "stopped", cause.reason, _line(cause))
    return Ending(CRASHED, "crashed", "Crashed", _crash(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and the members of groups, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(current.exceptions)
        if current.__cause__ is not None:
            waiting.append(current.__cause__)


def _crash(error: BaseException) -> str:
    """Where it came from. Texts of unknown errors may hold content, so only those of the system are shown."""
    *_, root = _causes(error)
    text = type(root).__name__
    if isinstance(root, OSError) and root.strerror:
        text += f": {root.strerror}"
    elif isinstance(root, sqlite3.Error):
        text += f": {root}"
    trace = root.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None:
        text += f" in {trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}"
    return _line(text)


def _camel(reason: str) -> str:
    """`model_error` -> `ModelError`"""
    return "".join(part[:1].upper() + part[1:] for part in reason.split("_"))


def _line(text: object) -> str:
    return " ".join(str(text).split())

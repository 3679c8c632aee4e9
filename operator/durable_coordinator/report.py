"""The two lines that a driver leaves at its end: one JSON object of facts, then the answer as a JSON string.

It is read from whatever a dying process or a kubelet left, so any damage is possible: a broken first line is no report at
all, a broken second line loses only the answer (rule 32).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Outcome = Literal["settled", "failed", "fenced", "halted", "stopped", "crashed"]
MESSAGE_MAX = 2048  # of a condition; also what status keeps of an answer


class ReportedFloor(msgspec.Struct, frozen=True):
    """The floor that fenced the driver, or the one it claimed itself."""

    epoch: int = 0
    incarnation: str = ""


COUNT_MAX = 2**53  # what every reader of JSON takes for a whole number
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class _Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    epoch: int
    outcome: Outcome
    session: str = ""
    reason: str = ""
    message: str = ""
    floor: ReportedFloor = ReportedFloor()
    mode: str = ""
    entries: Count = 0
    last_entry: Count = 0
    recoveries: dict[str, Count] = msgspec.field(default_factory=dict)
    usage: dict[str, Any] = msgspec.field(default_factory=dict)
    checkpoint: str = ""


class Report(_Line, frozen=True):
    """`entries`: committed by this drive; `last_entry`: the newest entry of the log. `answer` None: none, or lost."""

    answer: str | None = None


def parse_report(text: str) -> Report | None:
    """The report in a termination message or report file; None if there is none that can be believed. Never raises."""
    first, _, rest = text.partition("\n")
    try:
        line = msgspec.json.decode(first.encode("utf-8", "replace"), type=_Line)
    except msgspec.DecodeError:
        return None
    answer: str | None
    try:
        answer = msgspec.json.decode(rest.strip().encode("utf-8", "replace"), type=str)
    except msgspec.DecodeError:
        answer = None
    return Report(**msgspec.structs.asdict(line), answer=answer)

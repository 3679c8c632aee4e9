"""`cua.space`: what the log knows of the Space. Its JSON form, read into frozen facts and written by named changes only.

Two rewindable documents of a conversation: `cua.space` (small: which call is in work, how far it got, where the image was
last true) and `cua.space.image` (the image). Both are copied by a fork as of its entry. Each function below is one step of the
protocol and is called inside a commit together with the others that must become true with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from durable_harness.documents import DocumentToken
from durable_harness.tools import Diagnostic, ToolResult
from durable_spaces import image

Json = Any


class Decision(Enum):
    """What a recovery committed itself to before it changed anything (rule 5)."""

    RERUN = "rerun"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True)
class Identity:
    """The Space in which something took effect."""

    instance: str
    boot: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A start mark: committed before the call's first effect, with exactly the request id that the Space will see (rule 6)."""

    task: int
    key: str  # `<log id>/<conversation>:<call>:<n>` (rule 7)
    epoch: int
    place: Identity
    lease: str
    command_hash: str | None  # None: the tool is not one command (rule 29)

    @property
    def request_id(self) -> str:
        return f"{self.key}@{self.epoch}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to, as its tool returned it."""

    result: ToolResult
    place: Identity


@dataclass(frozen=True, slots=True)
class Current:
    """The one call in work in this Space, from its start mark to its result entry (rule 15)."""

    mark: Mark
    void: int = 0  # ledger records of epochs below it are never adopted (rule 5)
    decision: Decision | None = None
    decision_reason: str = ""
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class SpaceFacts:
    """The document, read."""

    mode: str = "transactional"
    place: Identity | None = None  # where the image was last true; None before the first call
    ledger_seq: int = 0  # the Space's, at that time: a lower one is another Space (rule 28)
    restoring: str | None = None  # a restore was begun for this reason and has not been verified (rule 3)
    stale: str | None = None  # the image no longer follows the workspace, for this reason
    current: Current | None = None


def _often(_value: Json, deltas: int) -> bool:
    return deltas >= 64


def _seldom(_value: Json, deltas: int) -> bool:
    # A base is the whole image, up to 16 MiB, and stays in the log for ever; deltas are as small as what a call changed.
    return deltas >= 256


CUA_SPACE = DocumentToken(
    kind="cua.space",
    initial=lambda: {
        "mode": "transactional",
        "place": None,
        "ledgerSeq": 0,
        "restoring": None,
        "stale": None,
        "current": None,
        "last": None,
    },
    history="rewindable",
    fork="asOf",
    checkpoint_when=_often,
)
CUA_SPACE_IMAGE = DocumentToken(
    kind="cua.space.image", initial=image.empty_json, history="rewindable", fork="asOf", checkpoint_when=_seldom
)


# ---- reading


def read_facts(value: Json | None) -> SpaceFacts:
    if value is None:
        return SpaceFacts()
    return SpaceFacts(
        mode=value["mode"],
        place=_place(value["place"]),
        ledger_seq=value["ledgerSeq"],
        restoring=value["restoring"],
        stale=value["stale"],
        current=_current(value["current"]),
    )


def _place(value: Json) -> Identity | None:
    return None if value is None else Identity(value["instance"], value["boot"])


def _current(value: Json) -> Current | None:
    if value is None:
        return None
    mark = value["mark"]
    decision = value["decision"]
    return Current(
        mark=Mark(
            task=mark["task"],
            key=mark["key"],
            epoch=mark["epoch"],
            place=Identity(mark["instance"], mark["boot"]),
            lease=mark["lease"],
            command_hash=mark["commandHash"],
        ),
        void=value["void"],
        decision=None if decision is None else Decision(decision["then"]),
        decision_reason="" if decision is None else decision["reason"],
        outcome=_outcome(value["outcome"]),
    )


def _outcome(value: Json) -> Outcome | None:
    if value is None:
        return None
    diagnostics = tuple(Diagnostic(severity, code, message) for severity, code, message in value["diagnostics"])
    result = ToolResult(value["output"], value["isError"], value["details"], diagnostics)
    return Outcome(result, Identity(value["instance"], value["boot"]))


# ---- writing: each function changes the JSON form in place


def write_place(value: Json, place: Identity, ledger_seq: int) -> None:
    """The image is true in this Space as of this commit."""
    value["place"] = {"instance": place.instance, "boot": place.boot}
    value["ledgerSeq"] = ledger_seq


def write_mark(value: Json, mark: Mark, *, void: int) -> None:
    """A run begins. Nothing of an earlier run of the call is left: no decision, no outcome."""
    value["current"] = {
        "mark": {
            "task": mark.task,
            "key": mark.key,
            "epoch": mark.epoch,
            "instance": mark.place.instance,
            "boot": mark.place.boot,
            "lease": mark.lease,
            "commandHash": mark.command_hash,
        },
        "void": void,
        "decision": None,
        "outcome": None,
    }


def write_decision(value: Json, then: Decision, reason: str, *, void: int) -> None:
    value["current"]["decision"] = {"then": then.value, "reason": reason}
    value["current"]["void"] = void


def write_restoring(value: Json, reason: str | None) -> None:
    value["restoring"] = reason


def write_outcome(value: Json, result: ToolResult, place: Identity) -> None:
    value["current"]["outcome"] = {
        "output": result.output,
        "isError": result.is_error,
        "details": result.details,
        "diagnostics": _diagnostics(result.diagnostics),
        "instance": place.instance,
        "boot": place.boot,
    }


def write_stale(value: Json, reason: str) -> None:
    """The image stops here: it still holds the workspace before the call that outgrew it."""
    value["stale"] = reason


def write_result(value: Json, task: int, entry_id: int | None) -> bool:
    """The call has its result entry (None: one that was written without its wrapper): it is in work no longer.

    True: without an outcome or a recorded end the call was given up (aborted). What it did must not stay, so the workspace
    is restored before anything else happens in it.
    """
    current = value["current"]
    if current is None or current["mark"]["task"] != task:
        return False
    interrupted = current["decision"] is not None and current["decision"]["then"] == Decision.INTERRUPT.value
    given_up = current["outcome"] is None and not interrupted
    if given_up:
        value["restoring"] = "CallGivenUp"
    value["current"] = None
    value["last"] = {"task": task, "entryId": entry_id}
    return given_up


def _diagnostics(diagnostics: Sequence[Diagnostic]) -> Json:
    return [[remark.severity, remark.code, remark.message] for remark in diagnostics]

"""Documents: named JSON values beside the entries, changed in the same commits.

A document is stored as a base and deltas. `latest` keeps what the newest value needs; `rewindable` keeps all, so that its
value as of any entry can be read: the value after the commit that contains the entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from durable_harness.errors import InvalidRecordError
from durable_harness.records import ROOT_ID

Json = Any
Scope = Literal["session", "conversation", "task"]
History = Literal["latest", "rewindable"]
ForkPolicy = Literal["initial", "current", "asOf"]

DELTAS_MAX = 100  # without a predicate a base is written after so many deltas, or when the delta would not be smaller


@dataclass(frozen=True, slots=True)
class Address:
    """At most one live document has it."""

    kind: str
    scope: Scope
    owner_id: int


@dataclass(frozen=True, slots=True)
class DocumentToken:
    """What code knows of a kind of document. The log stores kind, scope, history, fork and version, never code."""

    kind: str
    initial: Callable[[], Json]
    version: int = 1
    scope: Scope = "conversation"
    history: History = "latest"
    fork: ForkPolicy = "initial"  # what a fork starts with; asOf: the value at the fork entry (needs rewindable)
    migrate: Callable[[int, Json], Json] | None = None  # (stored version, detached value) -> value of `version`
    checkpoint_when: Callable[[Json, int], bool] | None = None  # (new value, deltas since base) -> write a base

    def __post_init__(self) -> None:
        if self.fork == "asOf" and self.history != "rewindable":
            raise InvalidRecordError(f"document {self.kind}: fork asOf needs history rewindable")
        if self.history == "rewindable" and self.scope != "conversation":
            raise InvalidRecordError(f"document {self.kind}: only conversation documents are rewindable")

    def address(self, owner_id: int = 0) -> Address:
        """0 stands for the session, or the root conversation; a task's document needs the task's id."""
        if self.scope == "session":
            if owner_id:
                raise InvalidRecordError(f"document {self.kind}: a session document has no owner id")
            return Address(self.kind, self.scope, 0)
        if self.scope == "task" and not owner_id:
            raise InvalidRecordError(f"document {self.kind}: a task document needs the task's id")
        return Address(self.kind, self.scope, owner_id or ROOT_ID)

    def upgrade(self, stored_version: int, value: Json) -> Json:
        """`value`, detached, as this version; in memory only. Raise InvalidRecordError if that can't be."""
        if stored_version == self.version:
            return value
        if stored_version > self.version or self.migrate is None:
            raise InvalidRecordError(
                f"document {self.kind}: stored in version {stored_version}, this code knows {self.version} and no way"
                " between them; open the log with the code that wrote it"
            )
        return self.migrate(stored_version, value)

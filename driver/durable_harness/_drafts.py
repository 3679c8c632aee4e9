"""A document while a transaction changes it: a detached copy, and at the end the difference to what is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable_harness import _ops
from durable_harness._json import copy_strict, encode
from durable_harness._state import LiveDocument, based
from durable_harness.documents import DELTAS_MAX, DocumentToken
from durable_harness.errors import TxClosedError
from durable_harness.records import DocumentRecord
from durable_harness.storage import ChangeDocument, CreateDocument, Write

Json = Any


class Draft:
    """A document being changed. `value` is a detached copy: change it in place or assign; at the end of the callback it is
    compared with the stored value. Raises TxClosedError once the callback has settled.
    """

    def __init__(self, token: DocumentToken, live: LiveDocument | None) -> None:
        self.token = token
        self._live = live  # None: it is being created
        self._value = token.initial() if live is None else current_value(token, live)
        self._closed = False

    @property
    def value(self) -> Json:
        if self._closed:
            raise TxClosedError(f"the draft of {self.token.kind} was used after its commit")
        return self._value

    @value.setter
    def value(self, value: Json) -> None:
        if self._closed:
            raise TxClosedError(f"the draft of {self.token.kind} was used after its commit")
        self._value = value

    def close(self) -> None:
        """It is of no use from now on."""
        self._closed = True

    def change(self, owner_id: int, mint_id: Callable[[], int]) -> tuple[Write, LiveDocument] | None:
        """What to write, and the document as it is then. None: unchanged.

        Creation and a change of version write a base; else the token's predicate decides.
        """
        token, live = self.token, self._live
        value = copy_strict(self._value, f"document {token.kind}")
        if live is None:
            record = DocumentRecord(
                id=mint_id(),
                kind=token.kind,
                scope=token.scope,
                owner_id=owner_id,
                history=token.history,
                fork=token.fork,
            )
            return CreateDocument(record, token.version, value), based(record, token.version, value)
        record = live.record
        if live.version == token.version:
            ops = _ops.diff(live.value, value)
            if not ops:
                return None
            deltas = live.deltas + 1
            if not _base_is_due(token, live, value, deltas, ops):
                changed = LiveDocument(record, live.version, value, deltas, live.base_size)
                return ChangeDocument(record.id, "delta", token.version, ops), changed
        return ChangeDocument(record.id, "base", token.version, value), based(record, token.version, value)


def _base_is_due(token: DocumentToken, live: LiveDocument, value: Json, deltas: int, ops: list[_ops.Op]) -> bool:
    if token.checkpoint_when is not None:
        return bool(token.checkpoint_when(copy_strict(value), deltas))
    return deltas > DELTAS_MAX or len(encode(ops)) >= live.base_size


def current_value(token: DocumentToken, live: LiveDocument) -> Json:
    if live.damage is not None:
        raise live.damage
    return token.upgrade(live.version, copy_strict(live.value, token.kind))

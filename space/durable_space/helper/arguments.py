"""The message of a request, read field by field. Raise Refused for what is not of its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_space.refusal import invalid


class Arguments:
    def __init__(self, message: Mapping[str, Any]) -> None:
        self._message = message

    def text(self, name: str, default: str | None = None) -> str:
        value = self._message.get(name, default)
        if not isinstance(value, str):
            raise invalid(f"{name} must be a text")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        value = self._message.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise invalid(f"{name} must be a whole number from 0 below 2**63")
        return value

    def flag(self, name: str) -> bool:
        """False where it is absent."""
        value = self._message.get(name, False)
        if not isinstance(value, bool):
            raise invalid(f"{name} must be true or false")
        return value

    def paths(self, name: str) -> tuple[bytes, ...]:
        return read_paths(name, self._message.get(name, []))


def read_paths(name: str, value: Any) -> tuple[bytes, ...]:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise invalid(f"{name} must be a list of paths")
    try:
        return tuple(path.encode("utf-8", "surrogateescape") for path in value)
    except UnicodeEncodeError:
        raise invalid(f"{name}: a path holds half of a surrogate pair") from None


def read_hashes(name: str, value: Any) -> tuple[bytes, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and len(text) == 64 for text in value):
        raise invalid(f"{name} must be a list of hashes of 64 hex digits")
    try:
        return tuple(bytes.fromhex(text) for text in value)
    except ValueError:
        raise invalid(f"{name} must be a list of hashes of 64 hex digits") from None

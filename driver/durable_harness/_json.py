"""Strict JSON: the only values that a log holds. Copies are detached, and what could not be read back equal is refused.

Refused: NaN and infinities, keys that are no str, other types, text that is no valid Unicode, nesting beyond `DEPTH_MAX`
(which is how a cycle ends too). Equality tells `True` from `1` and `1` from `1.0`, as JSON readers may.
"""

from __future__ import annotations

import json
import math
from typing import Any

from durable_harness.errors import InvalidRecordError

Json = Any
DEPTH_MAX = 200


def copy_strict(value: Any, where: str = "value", _depth: int = 0) -> Json:
    """A detached copy. Raise InvalidRecordError naming the place, never the content."""
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return value
    if kind is str:
        return _text(value, where)
    if kind is float:
        if not math.isfinite(value):
            raise InvalidRecordError(f"{where}: a number that is not finite has no JSON")
        return value
    if _depth >= DEPTH_MAX:
        raise InvalidRecordError(f"{where}: nested deeper than {DEPTH_MAX}, or a cycle")
    if kind is list or kind is tuple:
        return [copy_strict(item, where, _depth + 1) for item in value]
    if kind is dict:
        copy = {}
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidRecordError(f"{where}: a key of type {type(key).__name__}; keys are strings")
            copy[_text(key, where)] = copy_strict(item, where, _depth + 1)
        return copy
    raise InvalidRecordError(f"{where}: {kind.__name__} is not JSON")


def _text(value: str, where: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRecordError(f"{where}: text with a lone surrogate is no valid Unicode") from None
    return value


def scrub_text(text: str) -> str:
    """Text as it can be stored: lone surrogates (undecodable bytes of a command, say) become U+FFFD."""
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def scrub(value: Json) -> Json:
    """`scrub_text` on every string of a value that comes from outside."""
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, list | tuple):
        return [scrub(item) for item in value]
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    return value


def same(a: Json, b: Json) -> bool:
    """Equal as JSON text would be."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(key in b and same(item, b[key]) for key, item in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def encode(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def decode(text: str) -> Json:
    return json.loads(text)

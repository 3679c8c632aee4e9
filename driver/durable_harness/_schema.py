"""Arguments of a call against a tool's JSON Schema: the keywords that tool schemas use; others are ignored. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from durable_harness._json import same

Json = Any
_NUMBERS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "maximum": (operator.le, "at most"),
    "exclusiveMinimum": (operator.gt, "more than"),
    "exclusiveMaximum": (operator.lt, "less than"),
}


def validate(schema: Json, value: Json) -> str | None:
    """What is wrong first, with its place, in words for the model; None if nothing is."""
    return _check(schema, value, "arguments", schema)


def _check(schema: Json, value: Json, at: str, root: Json) -> str | None:
    if schema is True or not isinstance(schema, dict):
        return f"{at}: nothing is allowed here" if schema is False else None
    if (reference := schema.get("$ref")) is not None:
        return _check(_resolve(reference, root), value, at, root)
    kinds = schema.get("type")
    if kinds is not None:
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not any(_is(value, kind) for kind in kinds):
            return f"{at}: expected {' or '.join(kinds)}, got {_kind(value)}"
    if "const" in schema and not same(value, schema["const"]):
        return f"{at}: must be {schema['const']!r}"
    if "enum" in schema and not any(same(value, item) for item in schema["enum"]):
        return f"{at}: must be one of {', '.join(map(repr, schema['enum']))}"
    return (
        _combined(schema, value, at, root)
        or (_number(schema, value, at) if _is(value, "number") else None)
        or (_string(schema, value, at) if isinstance(value, str) else None)
        or (_array(schema, value, at, root) if isinstance(value, list) else None)
        or (_object(schema, value, at, root) if isinstance(value, dict) else None)
    )


def _resolve(reference: str, root: Json) -> Json:
    target = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            target = target[part.replace("~1", "/").replace("~0", "~")]
    return target


def _combined(schema: Json, value: Json, at: str, root: Json) -> str | None:
    for part in schema.get("allOf", ()):
        if (problem := _check(part, value, at, root)) is not None:
            return problem
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            problems = [_check(part, value, at, root) for part in schema[keyword]]
            fitting = problems.count(None)
            if fitting == 0:
                return problems[0] if len(problems) == 1 else f"{at}: fits none of the allowed forms ({problems[0]})"
            if keyword == "oneOf" and fitting > 1:
                return f"{at}: fits more than one of the allowed forms"
    return None


def _number(schema: Json, value: Json, at: str) -> str | None:
    for keyword, (holds, words) in _NUMBERS.items():
        if keyword in schema and not holds(value, schema[keyword]):
            return f"{at}: must be {words} {schema[keyword]}"
    return None


def _string(schema: Json, value: str, at: str) -> str | None:
    if len(value) < schema.get("minLength", 0):
        return f"{at}: must have at least {schema['minLength']} characters"
    if len(value) > schema.get("maxLength", len(value)):
        return f"{at}: must have at most {schema['maxLength']} characters"
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        return f"{at}: must match {schema['pattern']}"
    return None


def _array(schema: Json, value: list[Json], at: str, root: Json) -> str | None:
    if len(value) < schema.get("minItems", 0):
        return f"{at}: must have at least {schema['minItems']} items"
    if len(value) > schema.get("maxItems", len(value)):
        return f"{at}: must have at most {schema['maxItems']} items"
    prefix = schema.get("prefixItems", [])
    for index, item in enumerate(value):
        part = prefix[index] if index < len(prefix) else schema.get("items", True)
        if (problem := _check(part, item, f"{at}[{index}]", root)) is not None:
            return problem
    return None


def _object(schema: Json, value: dict[str, Json], at: str, root: Json) -> str | None:
    for name in schema.get("required", ()):
        if name not in value:
            return f"{at}: {name!r} is missing"
    properties = schema.get("properties", {})
    for name, item in value.items():
        if name not in properties and schema.get("additionalProperties") is False:
            known = ", ".join(properties) or "none"
            return f"{at}: {name!r} is unknown; known: {known}"
        part = properties.get(name, schema.get("additionalProperties", True))
        if (problem := _check(part, item, f"{at}.{name}", root)) is not None:
            return problem
    return None


def _is(value: Json, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return (isinstance(value, int) and not isinstance(value, bool)) or (
                isinstance(value, float) and value.is_integer()
            )
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    return False


def _kind(value: Json) -> str:
    return next(
        kind for kind in ("null", "boolean", "integer", "number", "string", "array", "object") if _is(value, kind)
    )

"""Deltas of documents: what changed between two JSON values, as a short list of operations, and back. Pure.

["r", value] replace the root    ["s", path, value] set    ["d", path] delete a key    ["a", path, text] append to a string
["l", path, start, count, items] splice a list. A path is a list of keys and indexes. `apply(old, diff(old, new))` is `new`.
"""

from __future__ import annotations

from typing import Any

from durable_harness._json import copy_strict, same
from durable_harness.errors import CorruptLogError

Json = Any
Op = list[Any]


def diff(old: Json, new: Json) -> list[Op]:
    ops: list[Op] = []
    _diff(old, new, [], ops)
    return ops


def _diff(old: Json, new: Json, path: list[str | int], ops: list[Op]) -> None:
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        ops.extend(["d", [*path, key]] for key in old if key not in new)
        for key, item in new.items():
            if key in old:
                _diff(old[key], item, [*path, key], ops)
            else:
                ops.append(["s", [*path, key], item])
    elif isinstance(old, list) and isinstance(new, list):
        _diff_lists(old, new, path, ops)
    elif isinstance(old, str) and isinstance(new, str) and path and old and len(new) > len(old) and new.startswith(old):
        ops.append(["a", path, new[len(old) :]])
    elif not same(old, new):
        ops.append(["s", path, new] if path else ["r", new])


def _diff_lists(old: list[Json], new: list[Json], path: list[str | int], ops: list[Op]) -> None:
    head = 0
    shorter = min(len(old), len(new))
    while head < shorter and same(old[head], new[head]):
        head += 1
    tail = 0
    while tail < shorter - head and same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    if len(old) == len(new):  # items changed in place: go into each
        for index in range(head, len(new) - tail):
            _diff(old[index], new[index], [*path, index], ops)
    else:
        ops.append(["l", path, head, len(old) - tail - head, new[head : len(new) - tail]])


def apply(value: Json, ops: list[Op]) -> Json:
    """`value` is changed in place where it can be; use what is returned. Raise CorruptLogError if an operation can't apply."""
    try:
        for op in ops:
            value = _apply(value, op)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptLogError("a document's delta does not fit the value before it") from error
    return value


def _apply(root: Json, op: Op) -> Json:
    verb = op[0]
    if verb == "r":
        return copy_strict(op[1])
    path = op[1]
    if verb == "l":
        _, _, start, count, items = op
        target = root
        for key in path:
            target = target[key]
        if not isinstance(target, list) or start + count > len(target):
            raise ValueError("splice")
        target[start : start + count] = copy_strict(items)
        return root
    parent = root
    for key in path[:-1]:
        parent = parent[key]
    last = path[-1]
    if verb == "s":
        if isinstance(parent, list) and not 0 <= last < len(parent):
            raise ValueError("set")
        parent[last] = copy_strict(op[2])
    elif verb == "d":
        del parent[last]
    elif verb == "a":
        if not isinstance(parent[last], str):
            raise ValueError("append")
        parent[last] += op[2]
    else:
        raise ValueError(f"unknown operation {verb!r}")
    return root

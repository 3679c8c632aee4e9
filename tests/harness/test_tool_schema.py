"""Typed functions as tools, and arguments against schemas."""

from dataclasses import dataclass
from typing import Literal

import pytest

from durable_base.errors import UsageError
from durable_harness import Tool, ToolApi, ToolResult, tool
from durable_harness._schema import validate


@tool
async def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@dataclass
class Point:
    x: float
    label: str | None = None


@tool(name="draw", replay="safe")
async def draw_points(points: list[Point], mode: Literal["line", "dots"], api: ToolApi) -> dict:
    """Draw.

    As often as you like.
    """
    return {"sum": sum(point.x for point in points), "mode": mode, "api": str(api)}


def test_the_schema_of_a_function() -> None:
    assert isinstance(add, Tool)
    assert (add.name, add.description, add.replay) == ("add", "Add two numbers.", "unsafe")
    assert add.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert (draw_points.name, draw_points.replay) == ("draw", "safe")
    assert set(draw_points.parameters["properties"]) == {"points", "mode"}, "the api is not the model's to give"


async def test_calling_it() -> None:
    assert await add.run(None, {"a": 1}) == "3"
    given = {"points": [{"x": 1}, {"x": 2.5, "label": None}], "mode": "dots"}
    assert validate(draw_points.parameters, given) is None
    assert await draw_points.run("the api", given) == '{"sum":3.5,"mode":"dots","api":"the api"}'
    refused = await add.run(None, {"a": "x"})
    assert isinstance(refused, ToolResult)
    assert refused.diagnostics[0].code == "invalid_arguments"


async def no_docstring(a: int) -> None: ...


async def no_types(a) -> None:
    """Do."""


async def star(*a: int) -> None:
    """Do."""


def not_async(a: int) -> None:
    """Do."""


async def unknown_type(a: "Nowhere") -> None:  # noqa: F821
    """Do."""


@pytest.mark.parametrize("fn", [no_docstring, no_types, star, not_async, unknown_type])
def test_functions_that_can_be_no_tool(fn) -> None:
    with pytest.raises(UsageError, match=f"tool {fn.__name__}: "):
        tool(fn)


NESTED = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1, "maximum": 9},
        "s": {"type": "string", "minLength": 1, "pattern": "^a"},
        "l": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2},
        "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "e": {"enum": [1, "x"]},
    },
    "required": ["n"],
    "additionalProperties": False,
    "$defs": {"item": {"type": ["number", "boolean"]}},
}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"n": 1}, None),
        ({"n": 2.0, "s": "ab", "l": [1, True], "u": None, "e": 1}, None),
        ([], "arguments: expected object, got array"),
        ({}, "arguments: 'n' is missing"),
        ({"n": "1"}, "arguments.n: expected integer, got string"),
        ({"n": True}, "arguments.n: expected integer, got boolean"),
        ({"n": 0}, "arguments.n: must be at least 1"),
        ({"n": 10}, "arguments.n: must be at most 9"),
        ({"n": 1, "s": ""}, "arguments.s: must have at least 1 characters"),
        ({"n": 1, "s": "b"}, "arguments.s: must match ^a"),
        ({"n": 1, "l": [1, "x"]}, "arguments.l[1]: expected number or boolean, got string"),
        ({"n": 1, "l": [1, 2, 3]}, "arguments.l: must have at most 2 items"),
        ({"n": 1, "u": 1}, "arguments.u: fits none of the allowed forms (arguments.u: expected string, got integer)"),
        ({"n": 1, "e": True}, "arguments.e: must be one of 1, 'x'"),
        ({"n": 1, "z": 1}, "arguments: 'z' is unknown; known: n, s, l, u, e"),
    ],
)
def test_arguments_against_a_schema(value, problem: str | None) -> None:
    assert validate(NESTED, value) == problem

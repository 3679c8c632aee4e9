"""`@tool`: a typed function as a tool. The schema comes from its type hints, the description from its docstring."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, overload

import msgspec

from durable_base.errors import UsageError
from durable_harness._json import encode
from durable_harness.tools import Diagnostic, Replay, Tool, ToolApi, ToolResult

Json = Any
Function = Callable[..., Awaitable[Any]]


@overload
def tool(fn: Function, /) -> Tool: ...


@overload
def tool(*, name: str | None = None, replay: Replay = "unsafe") -> Callable[[Function], Tool]: ...


def tool(
    fn: Function | None = None, /, *, name: str | None = None, replay: Replay = "unsafe"
) -> Tool | Callable[[Function], Tool]:
    """`async def` with typed parameters and a docstring -> Tool.

    A parameter annotated `ToolApi` is given the call's api and is not part of the schema. What the function returns becomes
    the output: a str or ToolResult as it is, None the live output, anything else as JSON. UsageError says what lacks.
    """
    if fn is None:
        return lambda fn: _make(fn, name, replay)
    return _make(fn, name, replay)


def _make(fn: Function, name: str | None, replay: Replay) -> Tool:
    name = name or fn.__name__
    if not inspect.iscoroutinefunction(fn):
        raise UsageError(f"tool {name}: write it as `async def`")
    description = inspect.getdoc(fn)
    if not description:
        raise UsageError(f"tool {name}: give it a docstring; the model chooses by it")
    api_name, arguments = _arguments_type(fn, name)

    async def run(api: ToolApi, given: Json) -> Any:
        try:
            typed = msgspec.convert(given, arguments)
        except msgspec.ValidationError as error:
            problem = Diagnostic("error", "invalid_arguments", str(error))
            return ToolResult("", is_error=True, diagnostics=(problem,))
        values = {field: getattr(typed, field) for field in arguments.__struct_fields__}
        if api_name is not None:
            values[api_name] = api
        result = await fn(**values)
        if result is None or isinstance(result, str | ToolResult):
            return result
        return encode(msgspec.to_builtins(result, str_keys=True))

    return Tool(name, description, _schema_of(arguments), run, replay)


def _arguments_type(fn: Function, name: str) -> tuple[str | None, type[msgspec.Struct]]:
    """The parameters as a struct, and the name of the parameter that takes the api."""
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"tool {name}: its annotations can't be resolved ({error}); import the type at module level"
        ) from None
    api_name = None
    fields: list[Any] = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"tool {name}: parameter {parameter.name} must be an ordinary named one")
        hint = hints.get(parameter.name)
        if hint is None:
            raise UsageError(f"tool {name}: annotate parameter {parameter.name}; the schema is made of the types")
        if hint is ToolApi:
            api_name = parameter.name
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    try:
        return api_name, msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    except TypeError as error:
        raise UsageError(f"tool {name}: {error}") from None


def _schema_of(arguments: type[msgspec.Struct]) -> Json:
    """An object schema; types of its own go under `$defs`."""
    (reference,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    own = reference["$ref"].removeprefix("#/$defs/")
    schema = {key: value for key, value in components.pop(own).items() if key != "title"}
    return {**schema, "$defs": components} if components else schema

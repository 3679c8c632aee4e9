"""The built-in agent: what `DURABLE_AGENT` may say, and how it becomes the harness's Agent."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from durable_base.errors import UsageError
from durable_harness.coding import CODING_TOOLS
from durable_harness.settings import Agent

Thinking = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
_TOOLS = tuple(tool.name for tool in CODING_TOOLS)


class _Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Unknown keys are refused: a misspelt one must not pass for a default."""


class ModelSpec(_Strict, frozen=True):
    provider: Annotated[str, Meta(min_length=1)]
    name: str = ""
    base_url: str = ""
    thinking: Thinking | Literal[""] = ""


class AgentSpec(_Strict, frozen=True):
    model: ModelSpec
    instructions: str = ""
    tools: tuple[str, ...] | None = None  # None: read, write, edit, bash
    max_turns: Annotated[int, Meta(ge=1)] | None = None
    max_cost: Annotated[str, Meta(pattern="^[0-9]+([.][0-9]{1,4})?$")] | None = None  # decimal: no floats in manifests

    def agent(self) -> Agent:
        model = self.model
        return Agent(
            model=f"{model.provider}/{model.name}" if model.name else model.provider,
            instructions=self.instructions,
            tools=_TOOLS if self.tools is None else self.tools,
            thinking_level=model.thinking or None,
            max_turns=self.max_turns,
            max_cost=None if self.max_cost is None else float(self.max_cost),
        )


def parse_agent(text: str, source: str) -> AgentSpec:
    """From YAML. UsageError names the source, the field's path and what it should be."""
    try:
        value: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: not YAML ({getattr(error, 'problem', None) or 'malformed'})") from None
    if isinstance(value, dict) and isinstance(value.get("maxCost"), int | float):
        value["maxCost"] = str(value["maxCost"])  # unquoted in YAML, meant as the decimal it looks like
    try:
        spec = msgspec.convert(value, AgentSpec)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {_place(str(error))}") from None
    for name in spec.tools or ():
        if name not in _TOOLS:
            raise UsageError(f"{source}: tools: there is no tool {name!r}; the built-in agent has {', '.join(_TOOLS)}")
    return spec


def _place(message: str) -> str:
    """`Object contains unknown field `x` - at `$.model`` -> `model: object contains unknown field `x``"""
    what, _, where = message.partition(" - at ")
    path = re.sub(r"^\$\.?", "", where.strip("`"))
    return f"{path or 'agent'}: {what[:1].lower()}{what[1:]}"

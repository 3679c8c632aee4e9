"""ModelProvider: what the harness asks of a model, and no more.

Guarantee: `stream` yields any number of `Partial`s, each the whole message so far, then exactly one `Final`. Errors: `ModelError`
(with `retryable`); whatever else it raises counts as not retryable. The harness resends a request byte for byte after a crash,
so a provider keeps no state of its own between calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Json = Any  # strict JSON: None, bool, int, float (finite), str, list, dict with str keys


@dataclass(frozen=True, slots=True)
class ToolSpec:
    name: str
    description: str
    parameters: Json  # JSON Schema of an object


@dataclass(frozen=True, slots=True)
class ModelRequest:
    model: str  # the provider's name of the model
    messages: Sequence[Json]  # `{"role": "system|user|assistant|tool", ...}`, see `durable_harness.messages`
    tools: Sequence[ToolSpec] = ()
    thinking_level: str | None = None
    session_id: str = ""  # for prompt caches; stable over the conversation
    options: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    id: str  # the provider's; not unique in a conversation
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class Message:
    """An assistant message, whole or so far."""

    text: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCallPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0  # in the provider's currency; 0 where unknown


@dataclass(frozen=True, slots=True)
class Partial:
    message: Message


@dataclass(frozen=True, slots=True)
class Final:
    message: Message
    stop: Literal["stop", "length", "tool_use"]
    usage: Usage = Usage()


class ModelError(Exception):
    """The provider refused or broke off. `message` may be shown to a person; it never holds the prompt."""

    def __init__(self, message: str, *, retryable: bool, usage: Usage = Usage()) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.usage = usage


class ModelProvider(Protocol):
    def stream(self, request: ModelRequest) -> AsyncIterator[Partial | Final]: ...

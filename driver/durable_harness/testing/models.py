"""A model whose answers a test computes, and which remembers what it was asked."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from durable_harness.models import Final, Message, ModelRequest, Partial, ToolCallPart

Said = str | list[tuple[str, Any]] | Message | Final


class FunctionModel:
    """`answer(request)` (sync or async) gives the text of an answer, a list of (tool, arguments), or a whole message.

    `requests` holds every request in order. `partials`: texts that are streamed before each answer.
    """

    def __init__(
        self, answer: Callable[[ModelRequest], Said | Awaitable[Said]], partials: tuple[str, ...] = ()
    ) -> None:
        self._answer = answer
        self._partials = partials
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[Partial | Final]:
        self.requests.append(request)
        for text in self._partials:
            yield Partial(Message(text))
        said = self._answer(request)
        if inspect.isawaitable(said):
            said = await said
        yield _final(said)


def _final(said: Said) -> Final:
    if isinstance(said, Final):
        return said
    if isinstance(said, str):
        return Final(Message(said), "stop")
    if isinstance(said, list):
        calls = [ToolCallPart(f"call-{at}", name, arguments) for at, (name, arguments) in enumerate(said, start=1)]
        said = Message(tool_calls=tuple(calls))
    return Final(said, "tool_use" if said.tool_calls else "stop")

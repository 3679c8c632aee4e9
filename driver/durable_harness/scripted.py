"""ScriptedModel: a model that says what a script says. For tests, examples and crash campaigns.

Guarantee: the answer depends on the request alone. The step is picked by the number of assistant answers among the request's
messages, so a request that is sent again after a crash gets the same answer, and no state is kept between calls.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from durable_base.errors import UsageError
from durable_harness.models import Final, Message, ModelError, ModelRequest, Partial, ToolCallPart, Usage

_STEP_KEYS = ("say", "calls", "expect", "answer", "delay_seconds", "chunks", "usage")
_USAGE_KEYS = ("input_tokens", "output_tokens", "cost")


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One answer of the model. A step without calls ends the run."""

    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()  # (tool, arguments)
    expect: str | None = None  # must occur in the newest tool results
    delay_seconds: float = 0.0  # the time the answer takes
    chunks: int = 0  # partials that stream the text before the answer
    usage: Usage = field(default_factory=Usage)


class ScriptedModel:
    def __init__(self, steps: Sequence[ScriptStep], source: str = "script") -> None:
        self._steps = tuple(steps)
        self._source = source

    @classmethod
    def load(cls, source: str | os.PathLike[str]) -> ScriptedModel:
        """From a file, or from the YAML itself (a str with a line break). UsageError names file, step and remedy."""
        if isinstance(source, str) and "\n" in source:
            return cls(parse_script(source, "script"), "script")
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UsageError(
                f"script {path}: can't be read ({why}); give the path of a YAML file with `steps:`"
            ) from None
        return cls(parse_script(text, str(path)), str(path))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Partial | Final]:
        number = sum(message["role"] == "assistant" for message in request.messages)
        if number >= len(self._steps):
            raise ModelError(
                f"{self._source} has {len(self._steps)} steps, and the conversation asks for one more: "
                "end the script with an `answer:`",
                retryable=False,
            )
        step = self._steps[number]
        if step.expect is not None and step.expect not in _newest_results(request.messages):
            raise ModelError(
                f"{self._source}: step {number + 1} expects {step.expect!r} in the newest tool results, and it is not there",
                retryable=False,
            )
        pause = step.delay_seconds / (step.chunks + 1)
        for text in _pieces(step.text, step.chunks):
            await asyncio.sleep(pause)
            yield Partial(Message(text))
        await asyncio.sleep(pause)
        calls = tuple(
            ToolCallPart(f"step-{number + 1}-call-{at}", name, arguments)
            for at, (name, arguments) in enumerate(step.calls, start=1)
        )
        yield Final(Message(step.text, tool_calls=calls), "tool_use" if calls else "stop", step.usage)


def parse_script(text: str, source: str) -> tuple[ScriptStep, ...]:
    """UsageError for whatever is not a script."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}:" if where is not None else ""
        raise UsageError(f"{source}:{line} not YAML ({getattr(error, 'problem', None) or 'malformed'})") from None
    if not isinstance(document, dict) or set(document) != {"steps"} or not isinstance(document["steps"], list):
        raise UsageError(f"{source}: a script is a mapping with the one key `steps`, a list")
    if not document["steps"]:
        raise UsageError(f"{source}: `steps` is empty: give at least one step with an `answer`")
    return tuple(_step(raw, f"{source}: step {number}") for number, raw in enumerate(document["steps"], start=1))


def _step(raw: Any, where: str) -> ScriptStep:
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: a step is a mapping of {', '.join(_STEP_KEYS)}, not {_kind(raw)}")
    for key in raw:
        if key not in _STEP_KEYS:
            raise UsageError(f"{where}: unknown key {key!r}; a step knows {', '.join(_STEP_KEYS)}")
    calls = _calls(raw.get("calls"), where)
    if "answer" in raw and (calls or "say" in raw):
        raise UsageError(f"{where}: `answer` ends the run, so it stands without `calls` and `say`")
    if "answer" not in raw and not calls:
        raise UsageError(f"{where}: give `calls` to go on, or `answer` to end the run")
    chunks = _number(raw, "chunks", where)
    if chunks != int(chunks):
        raise UsageError(f"{where}: `chunks` is a whole number, not {chunks}")
    return ScriptStep(
        text=_text(raw, "answer", where) or _text(raw, "say", where) or "",
        calls=calls,
        expect=_text(raw, "expect", where),
        delay_seconds=_number(raw, "delay_seconds", where),
        chunks=int(chunks),
        usage=_usage(raw.get("usage"), where),
    )


def _calls(raw: Any, where: str) -> tuple[tuple[str, Any], ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise UsageError(f"{where}: `calls` is a list of `tool: {{arguments}}`, not {_kind(raw)}")
    calls = []
    for at, call in enumerate(raw, start=1):
        if not isinstance(call, dict) or len(call) != 1:
            raise UsageError(f"{where}, call {at}: a call is one `tool: {{arguments}}`, like `- read: {{path: a.txt}}`")
        ((name, arguments),) = call.items()
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            raise UsageError(f"{where}, call {at}: the arguments of {name} are a mapping, not {_kind(arguments)}")
        calls.append((name, arguments or {}))
    return tuple(calls)


def _usage(raw: Any, where: str) -> Usage:
    if raw is None:
        return Usage()
    if not isinstance(raw, dict) or not set(raw) <= set(_USAGE_KEYS):
        raise UsageError(f"{where}: `usage` is a mapping of {', '.join(_USAGE_KEYS)}")
    place = f"{where}, usage"
    tokens = {key: int(_number(raw, key, place)) for key in _USAGE_KEYS[:2]}
    return Usage(**tokens, cost=_number(raw, "cost", place))


def _text(raw: Mapping[str, Any], key: str, where: str) -> str | None:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{where}: `{key}` is text, not {_kind(value)}; put it in quotes")
    return value


def _number(raw: Mapping[str, Any], key: str, where: str) -> float:
    value = raw.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"{where}: `{key}` is a number from 0, not {value!r}")
    return value


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value), f"{value!r}")


def _pieces(text: str, count: int) -> list[str]:
    """The text so far at `count` evenly spaced places before its end."""
    return [text[: len(text) * at // (count + 1)] for at in range(1, count + 1)]


def _newest_results(messages: Sequence[Any]) -> str:
    """The tool results since the newest assistant message, one after the other."""
    newest: list[str] = []
    for message in reversed(messages):
        if message["role"] == "assistant":
            break
        if message["role"] == "tool":
            newest.append(message["content"])
    return "\n".join(reversed(newest))

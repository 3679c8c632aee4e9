"""pydantic-ai's model classes as ModelProviders. Its types and errors end here; the HTTP is its business alone.

The libraries' own retries are off: the harness retries, durably, and a second loop under it would only hide how often.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_ai import exceptions
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as LibraryRequest
from pydantic_ai.messages import (
    ToolCallPart as LibraryCall,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from durable_driver.model_errors import ApiError
from durable_harness.models import Final, Message, ModelRequest, Partial, ToolCallPart, Usage

_RETRYABLE = frozenset((408, 409, 425, 429))
_PARTIAL_SECONDS = 0.05  # each partial is the whole message so far: not one for every token
_PROVIDER_TEXT_MAX = 200
# From the most telling one on, by the names of their classes: which HTTP client a library uses is its own business.
_CAUSES: tuple[tuple[frozenset[str], str, str], ...] = (
    (frozenset(("gaierror",)), "NameUnresolved", "its name can't be resolved (DNS)"),
    (frozenset(("ConnectionRefusedError",)), "ConnectionRefused", "the connection was refused"),
    (frozenset(("SSLError",)), "TlsFailed", "the TLS connection failed"),
    (frozenset(("TimeoutError", "TimeoutException")), "Timeout", "no answer in time (timeout)"),
    (
        frozenset(("ConnectionError", "ReadError", "WriteError", "ProtocolError")),
        "ConnectionBroken",
        "the connection broke",
    ),
)


class PydanticModel:
    """No state between calls but the library's connections."""

    def __init__(self, model: Model, *, cache_key_setting: str | None = None) -> None:
        self._model = model
        self._cache_key_setting = cache_key_setting
        self._place = _place(model.base_url)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Partial | Final]:
        tools = [
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.parameters)
            for tool in request.tools
        ]
        shown = time.monotonic()
        try:
            async with self._model.request_stream(
                to_library(request.messages), self._settings(request), ModelRequestParameters(function_tools=tools)
            ) as response:
                async for _ in response:
                    if time.monotonic() - shown >= _PARTIAL_SECONDS:
                        yield Partial(_so_far(response.get()))
                        shown = time.monotonic()
                whole = response.get()
        except exceptions.AgentRunError as error:
            raise to_model_error(error, self._place, request.model) from error
        except Exception as error:
            if "TransportError" not in _names(error):
                raise
            # What a library lets through of its HTTP client's in the middle of a stream.
            kind, words = _broken(error)
            text = f"{request.model}{_at(self._place)}: {words}"
            raise ApiError(text, kind=kind, host=self._place, retryable=True) from error
        yield to_final(whole, self._place)

    def _settings(self, request: ModelRequest) -> ModelSettings:
        settings: dict[str, Any] = {"max_retries": 0}
        if request.thinking_level is not None:
            settings["thinking"] = request.thinking_level
        if self._cache_key_setting is not None and request.session_id:
            settings[self._cache_key_setting] = request.session_id
        return cast(ModelSettings, settings)


def to_library(messages: Sequence[Any]) -> list[ModelMessage]:
    """What stands between two answers becomes one request, in order."""
    converted: list[ModelMessage] = []
    parts: list[ModelRequestPart] = []
    for message in messages:
        if message["role"] == "assistant":
            if parts:
                converted.append(LibraryRequest(parts=parts))
                parts = []
            converted.append(ModelResponse(parts=list(_answer_parts(message))))
        else:
            parts.append(_request_part(message))
    if parts:
        converted.append(LibraryRequest(parts=parts))
    return converted


def _request_part(message: Any) -> ModelRequestPart:
    match message["role"]:
        case "system":
            return SystemPromptPart(message["content"])
        case "tool":
            return ToolReturnPart(message["name"], message["content"], tool_call_id=message["tool_call_id"])
        case _:
            return UserPromptPart(message["content"])


def _answer_parts(message: Any) -> Iterator[ModelResponsePart]:
    """Without its thinking, which a provider takes back only with a signature of its own."""
    calls = message["tool_calls"]
    if message["content"] or not calls:
        yield TextPart(message["content"])
    for call in calls:
        arguments = call["arguments"]
        yield LibraryCall(call["name"], {} if arguments is None else arguments, tool_call_id=call["id"])


def to_final(response: ModelResponse, place: str = "") -> Final:
    """ApiError if the provider ended without an answer."""
    message = _so_far(response)
    calls = tuple(
        ToolCallPart(part.tool_call_id, part.tool_name, _arguments(part.args))
        for part in response.parts
        if isinstance(part, LibraryCall)
    )
    usage = Usage(response.usage.input_tokens, response.usage.output_tokens, _cost(response))
    if response.finish_reason == "content_filter":
        text = "the provider's content filter ended the answer"
        raise ApiError(text, kind="ContentFilter", host=place, retryable=False, usage=usage)
    if response.finish_reason == "error" or not (calls or message.text):
        text = "the provider's stream ended without an answer"
        raise ApiError(text, kind="NoAnswer", host=place, retryable=True, usage=usage)
    whole = Message(message.text, message.thinking, calls)
    if calls:
        return Final(whole, "tool_use", usage)
    return Final(whole, "length" if response.finish_reason == "length" else "stop", usage)


def _so_far(response: ModelResponse) -> Message:
    """Without tool calls: their arguments are whole only at the end."""
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    thinking = "".join(part.content for part in response.parts if isinstance(part, ThinkingPart))
    return Message(text, thinking)


def _arguments(arguments: Any) -> Any:
    """What is no JSON stays text: the harness refuses it with a result that the model can learn from."""
    if not isinstance(arguments, str):
        return arguments if arguments is not None else {}
    if not arguments.strip():
        return {}
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _cost(response: ModelResponse) -> float:
    """From the library's price list; 0 for a model that it does not know."""
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return 0.0


def to_model_error(error: exceptions.AgentRunError, place: str = "", model: str = "") -> ApiError:
    """Retryable is what may pass by waiting: 408, 409, 425, 429, 5xx, and connections that failed or broke.

    `place`: `host:port` of the model's API. `model` is its name, for errors that don't know it.
    """
    if isinstance(error, exceptions.ModelHTTPError):
        again = error.status_code in _RETRYABLE or error.status_code >= 500
        # The provider says that waiting won't help, whatever its status.
        again = again and not isinstance(error, exceptions.ModelQuotaExceededError)
        return ApiError(_http_text(error, place), kind=f"Http{error.status_code}", host=place, retryable=again)
    if isinstance(error, exceptions.ModelAPIError):
        rejected = isinstance(error, exceptions.ModelRequestRejectedError | exceptions.ModelQuotaExceededError)
        kind, what = (type(error).__name__,) * 2 if rejected else _broken(error)
        return ApiError(f"{error.model_name}{_at(place)}: {what}", kind=kind, host=place, retryable=not rejected)
    # Not the words of the library's error: they quote the answer.
    what = f"what answers there is no API of this provider's kind ({type(error).__name__}); look at model.baseUrl"
    return ApiError(f"{model}{_at(place)}: {what}", kind="NotThisApi", host=place, retryable=False)


def _place(base_url: str | None) -> str:
    """Host and port alone: a URL may hold a key."""
    try:
        url = urlsplit(base_url or "")
        port = url.port or (80 if url.scheme == "http" else 443)
    except ValueError:
        return ""
    if not url.hostname:
        return ""
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{host}:{port}"


def _at(place: str) -> str:
    return f" at {place}" if place else ""


def _broken(error: BaseException) -> tuple[str, str]:
    """Kind and words for the class of the cause, never its text: that may hold what was sent."""
    causes = list(_causes(error))
    names = frozenset[str]().union(*map(_names, causes))
    for classes, kind, words in _CAUSES:
        if classes & names:
            return kind, words
    return "ConnectionFailed", f"the connection failed ({type(causes[-1]).__name__})"


def _names(error: BaseException) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in type(error).__mro__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [cause for cause in (current.__cause__, current.__context__) if cause is not None]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions


def _http_text(error: exceptions.ModelHTTPError, place: str) -> str:
    """Status and the provider's codes. Its own words only where they are about the account, since others may quote the prompt."""
    codes = " ".join(dict.fromkeys(filter(None, (error.provider_error_type, error.provider_error_code))))
    text = f"{error.model_name}{_at(place)}: HTTP {error.status_code}" + (f" ({codes})" if codes else "")
    if error.status_code in (401, 402, 403, 404) and isinstance(error.body, dict):
        said = error.body.get("message")
        if isinstance(said, str):
            text += f": {said[:_PROVIDER_TEXT_MAX]}"
    return text

"""Model providers: the real client library against a server on loopback, and what is refused before anything is asked."""

import builtins
import ssl
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelAPIError

from durable_base.errors import UsageError
from durable_driver.agent import ModelSpec
from durable_driver.providers import make_provider
from durable_driver.pydantic_models import to_model_error
from durable_harness.models import Final, ModelError, ModelProvider, ModelRequest, Partial, ToolCallPart, ToolSpec
from durable_harness.scripted import ScriptedModel

MESSAGES = [
    {"role": "system", "content": "Be careful."},
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c-1", "name": "read", "arguments": {"path": "a"}}]},
    {"role": "tool", "tool_call_id": "c-1", "name": "read", "content": "text of a"},
    {"role": "assistant", "content": "I see.", "tool_calls": [{"id": "c-2", "name": "read", "arguments": None}]},
    {"role": "tool", "tool_call_id": "c-2", "name": "read", "content": "[diagnostics]"},
]
READ = ToolSpec(
    "read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
)


def provider(server: Any, **environ: str) -> ModelProvider:
    return make_provider(ModelSpec(provider="openai-compatible", name="m-1", base_url=server.url), environ, None)


async def ask(model: ModelProvider, messages: list[Any] | None = None, **how: Any) -> list[Partial | Final]:
    request = ModelRequest("m-1", messages or [{"role": "user", "content": "hi"}], tools=[READ], **how)
    return [part async for part in model.stream(request)]


async def test_text_comes_in_parts_and_then_whole(model_server: Any) -> None:
    model_server.answers(deltas=[{"role": "assistant", "content": "Hel"}, {"content": "lo"}])
    *partials, final = await ask(provider(model_server, OPENAI_API_KEY="k-1"))
    assert isinstance(final, Final)
    assert (final.message.text, final.stop, final.message.tool_calls) == ("Hello", "stop", ())
    assert (final.usage.input_tokens, final.usage.output_tokens) == (11, 5)
    assert all(isinstance(part, Partial) and "Hello".startswith(part.message.text) for part in partials)
    assert model_server.authorizations == ["Bearer k-1"]


async def test_tool_calls_are_put_together_from_their_pieces(model_server: Any) -> None:
    model_server.answers(
        deltas=[
            {"role": "assistant", "content": "I look."},
            {
                "tool_calls": [
                    {"index": 0, "id": "a", "type": "function", "function": {"name": "read", "arguments": ""}}
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"pa'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": 'th": "x"}'}}]},
            {
                "tool_calls": [
                    {"index": 1, "id": "b", "type": "function", "function": {"name": "read", "arguments": "{"}}
                ]
            },
        ],
        finish="tool_calls",
    )
    final = (await ask(provider(model_server)))[-1]
    assert isinstance(final, Final)
    assert (final.stop, final.message.text) == ("tool_use", "I look.")
    assert final.message.tool_calls == (
        ToolCallPart("a", "read", {"path": "x"}),
        ToolCallPart("b", "read", "{"),  # no JSON: the harness tells the model so
    )


async def test_a_conversation_goes_out_in_order_with_its_tools_and_the_same_way_each_time(model_server: Any) -> None:
    for _ in range(2):
        model_server.answers(deltas=[{"content": "ok"}])
        await ask(provider(model_server), MESSAGES)
    first, second = model_server.requests
    assert first == second
    assert (first["model"], first["stream"]) == ("m-1", True)
    assert [message["role"] for message in first["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    called, answered = first["messages"][2], first["messages"][3]
    assert called["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path":"a"}'}
    assert (answered["tool_call_id"], answered["content"]) == ("c-1", "text of a")
    (tool,) = first["tools"]
    assert tool["function"]["name"] == "read"
    assert tool["function"]["parameters"]["properties"] == {"path": {"type": "string"}}


@pytest.mark.parametrize(
    ("reply", "retryable", "says"),
    [
        ({"status": 408}, True, "HTTP 408"),
        ({"status": 409}, True, "HTTP 409"),
        (
            {"status": 429, "error": {"message": "slow down", "code": "rate_limit_exceeded"}},
            True,
            "HTTP 429 (rate_limit_exceeded)",
        ),
        (
            {"status": 429, "error": {"message": "pay", "code": "insufficient_quota"}},
            False,
            "HTTP 429 (insufficient_quota)",
        ),
        ({"status": 500}, True, "HTTP 500"),
        ({"status": 503}, True, "HTTP 503"),
        (
            {"status": 400, "error": {"message": "bad: the prompt", "type": "invalid_request_error"}},
            False,
            "(invalid_request_error)",
        ),
        ({"status": 401, "error": {"message": "no such key"}}, False, "HTTP 401: no such key"),
        ({"status": 404, "error": {"message": "no such model"}}, False, "HTTP 404: no such model"),
        ({"deltas": [{"content": "a"}], "cut": True}, True, "the connection broke"),
        ({"deltas": [], "finish": None}, True, "without an answer"),
        ({"deltas": [{"content": "a"}], "finish": "content_filter"}, False, "content filter"),
    ],
)
async def test_an_error_is_retryable_if_waiting_may_help(
    model_server: Any, reply: dict[str, Any], retryable: bool, says: str
) -> None:
    model_server.answers(**reply)
    with pytest.raises(ModelError) as caught:
        await ask(provider(model_server))
    assert (caught.value.retryable, len(model_server.requests)) == (retryable, 1)
    assert says in str(caught.value)
    assert "prompt" not in str(caught.value)


async def test_a_server_that_is_not_there_may_come_back() -> None:
    model = make_provider(ModelSpec(provider="openai-compatible", name="m", base_url="http://127.0.0.1:9/v1"), {}, None)
    with pytest.raises(ModelError) as caught:
        await ask(model)
    assert caught.value.retryable
    assert str(caught.value) == "m at 127.0.0.1:9: the connection was refused"


async def test_a_name_that_is_not_known_yet_may_be_soon_and_no_key_is_told() -> None:
    address = "http://user:key-1@model.invalid/v1?key=key-2"
    model = make_provider(ModelSpec(provider="openai-compatible", name="m", base_url=address), {}, None)
    with pytest.raises(ModelError) as caught:
        await ask(model)
    assert caught.value.retryable
    assert str(caught.value) == "m at model.invalid:80: its name can't be resolved (DNS)"


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        (TimeoutError("the prompt"), "no answer in time (timeout)"),
        (ConnectionResetError("the prompt"), "the connection broke"),
        (ssl.SSLError("the prompt"), "the TLS connection failed"),
        (ExceptionGroup("the prompt", [ConnectionRefusedError("the prompt")]), "the connection was refused"),
        (ValueError("the prompt"), "the connection failed (ValueError)"),
    ],
)
def test_what_broke_is_told_by_its_class(cause: Exception, says: str) -> None:
    error = ModelAPIError("m", "the prompt")
    error.__cause__ = cause
    told = to_model_error(error, "host:1")
    assert (str(told), told.retryable) == (f"m at host:1: {says}", True)


async def test_a_web_page_in_place_of_an_answer_names_host_and_cause_and_is_not_asked_again(model_server: Any) -> None:
    model_server.answers(page="<html>Welcome, prompt</html>")
    with pytest.raises(ModelError) as caught:
        await ask(provider(model_server))
    host = model_server.url.split("/")[2]
    assert str(caught.value).startswith(f"m-1 at {host}: what answers there is no API of this provider's kind (")
    assert str(caught.value).endswith("; look at model.baseUrl")
    assert not caught.value.retryable


async def test_an_answer_cut_by_the_limit_says_so(model_server: Any) -> None:
    model_server.answers(deltas=[{"content": "half"}], finish="length")
    final = (await ask(provider(model_server)))[-1]
    assert isinstance(final, Final)
    assert final.stop == "length"


async def test_openai_keys_its_prompt_cache_by_the_conversation(model_server: Any) -> None:
    model = make_provider(
        ModelSpec(provider="openai", name="gpt-4.1-mini", base_url=model_server.url), {"OPENAI_API_KEY": "k"}, None
    )
    model_server.answers(deltas=[{"content": "ok"}])
    final = (await ask(model, session_id="s-1"))[-1]
    assert isinstance(final, Final)
    assert model_server.requests[0]["prompt_cache_key"] == "s-1"
    assert final.usage.cost > 0, "the price list knows this model"


def test_the_scripted_model_comes_from_its_script(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("steps:\n- answer: done\n")
    assert isinstance(make_provider(ModelSpec(provider="scripted"), {}, script), ScriptedModel)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (ModelSpec(provider="scripted"), "DURABLE_SCRIPT is not set"),
        (ModelSpec(provider="gpt"), "there is no provider 'gpt'; use one of scripted, openai-compatible"),
        (ModelSpec(provider="openai"), "model.name: the provider openai needs"),
        (ModelSpec(provider="openai", name="m"), "OPENAI_API_KEY is not set"),
        (ModelSpec(provider="anthropic", name="m"), "ANTHROPIC_API_KEY is not set"),
        (ModelSpec(provider="google", name="m"), "GOOGLE_API_KEY is not set"),
        (ModelSpec(provider="openai-compatible", name="m"), "model.baseUrl"),
    ],
)
def test_what_is_missing_is_named(spec: ModelSpec, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_provider(spec, {}, None)
    assert says in str(caught.value)


def test_a_library_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **how: Any) -> Any:
        if name.split(".")[0] == "anthropic":
            raise ModuleNotFoundError("No module named 'anthropic'", name="anthropic")
        return real(name, *args, **how)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(__import__("sys").modules, "pydantic_ai.providers.anthropic", raising=False)
    with pytest.raises(UsageError, match=r"pip install .*pydantic-ai-slim\[anthropic\]"):
        make_provider(ModelSpec(provider="anthropic", name="m"), {"ANTHROPIC_API_KEY": "k"}, None)

"""The built-in agent's YAML: what it may say, and that anything else is refused with its place."""

import pytest

from durable_base.errors import UsageError
from durable_driver.agent import parse_agent
from durable_harness.settings import Agent


def test_the_least_agent_has_all_four_tools() -> None:
    spec = parse_agent("model: {provider: scripted}", "agent.yaml")
    assert spec.agent() == Agent(model="scripted", tools=("read", "write", "edit", "bash"))


def test_a_full_agent_is_read() -> None:
    text = """
    model: {provider: openai-compatible, name: some/model, baseUrl: https://models.example/v1, thinking: high}
    instructions: Be careful.
    tools: [read, bash]
    maxTurns: 5
    maxCost: "1.50"
    """
    spec = parse_agent(text, "agent.yaml")
    assert spec.model.base_url == "https://models.example/v1"
    assert spec.agent() == Agent(
        model="openai-compatible/some/model",
        instructions="Be careful.",
        tools=("read", "bash"),
        thinking_level="high",
        max_turns=5,
        max_cost=1.5,
    )


def test_an_agent_without_tools_is_one() -> None:
    assert parse_agent("{model: {provider: scripted}, tools: []}", "a").agent().tools == ()


def test_a_cost_may_stand_without_quotes() -> None:
    assert parse_agent("{model: {provider: scripted}, maxCost: 2.5}", "a").agent().max_cost == 2.5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: {provider: scripted}\ntool: [read]", "agent: object contains unknown field `tool`"),
        ("model: {provider: scripted, baseURL: x}", "model: object contains unknown field `baseURL`"),
        ("model: scripted", "model: expected `object`, got `str`"),
        ("instructions: x", "agent: object missing required field `model`"),
        ("model: {provider: scripted}\nmaxTurns: 0", "maxTurns: expected `int` >= 1"),
        ("model: {provider: scripted}\nmaxCost: -1", "maxCost: expected `str` matching regex"),
        ("model: {provider: scripted, thinking: much}", "model.thinking: invalid enum value 'much'"),
        (
            "model: {provider: scripted}\ntools: [red]",
            "tools: there is no tool 'red'; the built-in agent has read, write",
        ),
        ("[", "not YAML"),
        ("", "agent: expected `object`, got `null`"),
    ],
)
def test_a_bad_agent_is_refused_with_file_and_field(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_agent(text, "agent.yaml")
    assert str(caught.value).startswith(f"agent.yaml: {says}")

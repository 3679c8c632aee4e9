"""The scripted model: what it answers follows from the request alone, and a bad script says what is wrong where."""

from pathlib import Path
from typing import Any

import pytest

from durable_base.errors import UsageError
from durable_harness.models import Final, ModelError, ModelRequest, Partial
from durable_harness.scripted import ScriptedModel

SCRIPT = """
steps:
  - say: I look first.
    calls:
      - read: {path: calc.py}
      - bash: {command: make test}
    chunks: 3
    usage: {input_tokens: 7, output_tokens: 2, cost: 0.5}
  - expect: "OK"
    answer: Done.
"""

USER = {"role": "user", "content": "repair it"}
FIRST = {"role": "assistant", "content": "I look first.", "tool_calls": [{"id": "a", "name": "read", "arguments": {}}]}


def result(content: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": "a", "name": "read", "content": content}


async def ask(model: ScriptedModel, *messages: Any) -> list[Partial | Final]:
    return [part async for part in model.stream(ModelRequest("m", messages))]


async def test_a_step_streams_its_text_and_then_calls_its_tools() -> None:
    parts = await ask(ScriptedModel.load(SCRIPT), USER)
    *partials, final = parts
    assert [part.message.text for part in partials] == ["I l", "I look", "I look fi"]
    assert isinstance(final, Final)
    assert (final.stop, final.usage.input_tokens, final.usage.cost) == ("tool_use", 7, 0.5)
    assert [(call.id, call.name, call.arguments) for call in final.message.tool_calls] == [
        ("step-1-call-1", "read", {"path": "calc.py"}),
        ("step-1-call-2", "bash", {"command": "make test"}),
    ]


async def test_a_request_sent_again_gets_the_same_answer() -> None:
    model = ScriptedModel.load(SCRIPT)
    messages = (USER, FIRST, result("3 tests, OK"))
    assert await ask(model, *messages) == await ask(ScriptedModel.load(SCRIPT), *messages)
    assert (await ask(model, *messages))[-1].message.text == "Done."


async def test_an_expectation_that_only_older_results_meet_is_an_error_that_names_the_step() -> None:
    script = "steps:\n- calls: [{read: {}}]\n- calls: [{read:}]\n- {expect: OK, answer: x}\n"
    with pytest.raises(ModelError, match=r"step 3 expects 'OK'") as caught:
        await ask(ScriptedModel.load(script), USER, FIRST, result("OK"), FIRST, result("2 failures"))
    assert not caught.value.retryable


async def test_a_conversation_longer_than_the_script_is_an_error() -> None:
    with pytest.raises(ModelError, match="has 1 steps") as caught:
        await ask(ScriptedModel.load("steps:\n- answer: x\n"), USER, {"role": "assistant", "content": "x"}, USER)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("- answer: x\n", "one key `steps`"),
        ("steps: []\n", "`steps` is empty"),
        ("steps:\n- {answer: x}\n- {anwser: x}\n", "step 2: unknown key 'anwser'"),
        ("steps:\n- {answer: x, calls: [{read: {}}]}\n", "step 1: `answer` ends the run"),
        ("steps:\n- {say: hm}\n", "step 1: give `calls`"),
        ("steps:\n- {calls: [read]}\n", "step 1, call 1: a call is one"),
        ("steps:\n- {calls: [{read: x}]}\n", "step 1, call 1: the arguments of read"),
        ("steps:\n- {answer: 3}\n", "step 1: `answer` is text"),
        ("steps:\n- {answer: x, delay_seconds: -1}\n", "step 1: `delay_seconds` is a number"),
        ("steps:\n- {answer: x, chunks: 1.5}\n", "step 1: `chunks` is a whole number"),
        ("steps:\n- {answer: x, usage: {tokens: 3}}\n", "step 1: `usage` is a mapping of input_tokens"),
        ("steps:\n- hello\n", "step 1: a step is a mapping"),
        ("steps: [\n", "line 2: not YAML"),
    ],
)
def test_a_bad_script_is_refused_with_place_and_remedy(script: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(script)
    with pytest.raises(UsageError) as caught:
        ScriptedModel.load(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        ScriptedModel.load(tmp_path / "none.yaml")

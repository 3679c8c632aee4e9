"""Generations: what is asked of the model, and what follows from its answers, its errors and its silence."""

import asyncio

import pytest

from durable_base.errors import HaltError
from durable_harness import Agent, Harness, RetryPolicy, SessionFailedError, Settings, UnansweredError, tool
from durable_harness.builtin import LIVE, USAGE
from durable_harness.memory import MemoryLog, MemoryStorage
from durable_harness.models import Final, Message, ModelError, Usage
from durable_harness.testing import FunctionModel

QUICK = Settings(retry=RetryPolicy(max_retries=2, base_seconds=0.01), partial_interval_ms=0)


@tool
async def echo(text: str) -> str:
    """Say it back."""
    return text


def open_harness(model: FunctionModel, log: MemoryLog | None = None, **more):
    return Harness.open(MemoryStorage(log), models={"m": model}, tools=[echo], settings=QUICK, **more)


async def ask(harness: Harness, agent: Agent, text: str = "hello") -> str:
    return (await (await (await harness.root(agent)).submit(text)).wait()).text


async def test_a_model_that_is_busy_twice() -> None:
    """Case 50: two error entries, durable deadlines, an answer on the third try; errors stay out of the context."""
    tries = []
    deadlines = []

    def answer(request) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ModelError("busy", retryable=True, usage=Usage(5, 0))
        return "at last"

    model = FunctionModel(answer)
    async with open_harness(model) as harness:
        harness.session.observe(
            lambda committed: deadlines.extend(t.state.until for t in committed.tasks if t.status == "sleeping")
        )
        assert await ask(harness, Agent(model="m", instructions="Be kind.")) == "at last"
        entries = await (await harness.root()).entries()
        assert [e.data["status"] for e in entries if e.kind == "pi.assistant"] == ["error", "error", "ok"]
        usage = await harness.session.document(USAGE)
        assert usage["models"]["m"]["input_tokens"] == 10
    assert len(deadlines) == 2
    assert model.requests[0].messages == model.requests[2].messages
    assert [message["role"] for message in model.requests[2].messages] == ["system", "user"]


@pytest.mark.parametrize("retryable", [False, True])
async def test_a_model_error_that_stays(retryable: bool) -> None:
    """Case 51: the input ends unanswered, the conversation is idle, and the next input is taken."""
    model = FunctionModel(lambda request: (_ for _ in ()).throw(ModelError("refused", retryable=retryable)))
    async with open_harness(model) as harness:
        with pytest.raises(UnansweredError) as unanswered:
            await ask(harness, Agent(model="m"))
        assert (unanswered.value.reason, unanswered.value.detail) == ("model_error", "refused")
        assert len(model.requests) == (3 if retryable else 1)
        assert (await harness.session.document(LIVE))["run"] is None
        model._answer = lambda request: "fine"
        assert await ask(harness, Agent(model="m")) == "fine"


async def test_a_model_that_stays_away_may_end_the_process_instead() -> None:
    """The input stays open, and the next opening begins to try anew; none of it counts as a restart."""
    log = MemoryLog()
    retry = RetryPolicy(max_retries=2, base_seconds=0.01, exhausted="halt")
    settings = Settings(retry=retry, restart_limit=1, partial_interval_ms=0)
    away = FunctionModel(lambda request: (_ for _ in ()).throw(ModelError("refused", retryable=True)))
    for _ in range(2):
        async with Harness.open(MemoryStorage(log), models={"m": away}, settings=settings) as harness:
            submission = await (await harness.root(Agent(model="m"))).submit("hello", request_id="r")
            with pytest.raises(SessionFailedError) as failed:
                await submission.wait()
        assert isinstance(failed.value.__cause__, HaltError)
        assert (failed.value.__cause__.reason, failed.value.__cause__.permanent) == ("ModelUnavailable", False)
    assert len(away.requests) == 6
    back = FunctionModel(lambda request: "at last")
    async with Harness.open(MemoryStorage(log), models={"m": back}, settings=settings) as harness:
        submission = await (await harness.root(Agent(model="m"))).submit("hello", request_id="r")
        assert (await submission.wait()).text == "at last"
    assert away.requests[0].messages == back.requests[0].messages


async def test_no_model() -> None:
    """Case 51: unanswered no_model; a log whose model is gone says so as well."""
    log = MemoryLog()
    async with open_harness(FunctionModel(lambda request: "hi"), log) as harness:
        root = await harness.root()
        with pytest.raises(UnansweredError, match="no_model"):
            await (await root.submit("hello")).wait()
        await harness.root(Agent(model="m"))
    async with Harness.open(MemoryStorage(log), models={}) as harness:
        with pytest.raises(UnansweredError, match="no_model"):
            await (await (await harness.root()).submit("hello")).wait()


async def test_a_provider_that_breaks_its_contract() -> None:
    """Whatever it raises is an error of the model; a stream without an end too."""

    class Empty:
        async def stream(self, request):
            return
            yield

    for model, detail in (
        (FunctionModel(lambda request: 1 / 0), "ZeroDivisionError"),
        (Empty(), "without a final message"),
    ):
        async with open_harness(model) as harness:
            with pytest.raises(UnansweredError, match=detail):
                await ask(harness, Agent(model="m"))


async def test_a_tool_that_was_not_offered() -> None:
    """Case 52: an error result without a task, and the run goes on."""

    def answer(request):
        return [("nope", {}), ("echo", {"text": "x"})] if request.messages[-1]["role"] == "user" else "done"

    model = FunctionModel(answer)
    async with open_harness(model) as harness:
        assert await ask(harness, Agent(model="m", tools=["echo"])) == "done"
        results = [e for e in await (await harness.root()).entries() if e.kind == "pi.tool-result"]
        assert [(e.data["name"], e.data["task_id"] is None) for e in results] == [("nope", True), ("echo", False)]
        assert len(await harness.session.tasks(kind="pi.tool")) == 1
    shown = [message["content"] for message in model.requests[1].messages if message["role"] == "tool"]
    assert "tool_unavailable" in shown[0]
    assert shown[1] == "x"


async def test_only_tools_that_were_not_offered() -> None:
    """The round has no task at all; the model is asked again all the same."""
    model = FunctionModel(lambda request: [("nope", {})] if request.messages[-1]["role"] == "user" else "done")
    async with open_harness(model) as harness:
        assert await ask(harness, Agent(model="m")) == "done"


async def test_code_of_the_harness_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 29: a generation that faults leaves its inputs unanswered and the run cleared, in one commit."""
    monkeypatch.setattr("durable_harness._context.derive", lambda entries: 1 / 0)
    async with open_harness(FunctionModel(lambda request: "hi")) as harness:
        states = []
        harness.session.observe(
            lambda c: states.append(([t.status for t in c.tasks], [s.status for s in c.submissions]))
        )
        with pytest.raises(UnansweredError) as unanswered:
            await ask(harness, Agent(model="m"))
        assert unanswered.value.reason == "faulted"
        assert states[-1] == (["terminal"], ["unanswered"])
        assert (await harness.session.document(LIVE))["run"] is None


async def test_instructions_that_change() -> None:
    """The old ones are left out of later requests; unchanged ones are not written again."""
    model = FunctionModel(lambda request: "ok")
    async with open_harness(model) as harness:
        for instructions in ("old", "old", "new", ""):
            await ask(harness, Agent(model="m", instructions=instructions))
        entries = await (await harness.root()).entries()
    systems = [[m["content"] for m in request.messages if m["role"] == "system"] for request in model.requests]
    assert systems == [["old"], ["old"], ["new"], []]
    assert [entry.model and entry.model[0]["content"] for entry in entries if entry.kind == "pi.system"] == [
        "old",
        "new",
        None,
    ]
    assert model.requests[2].messages[0]["role"] == "system"


async def test_the_request_names_what_the_agent_asks_for() -> None:
    model = FunctionModel(lambda request: "ok")
    async with open_harness(model) as harness:
        await ask(harness, Agent(model="m/large", tools=["echo"], thinking_level="high"))
        await ask(harness, Agent(model="m"))
    first, second = model.requests
    assert (first.model, first.thinking_level, [spec.name for spec in first.tools]) == ("large", "high", ["echo"])
    assert (second.model, second.thinking_level, list(second.tools)) == ("m", None, [])
    assert first.session_id == second.session_id != ""


@pytest.mark.parametrize(
    ("limits", "reason", "answers"), [({"max_turns": 2}, "max_turns", 2), ({"max_cost": 0.5}, "max_cost", 3)]
)
async def test_limits_of_an_agent(limits: dict, reason: str, answers: int) -> None:
    def answer(request) -> Final:
        from durable_harness.models import ToolCallPart

        return Final(Message(tool_calls=(ToolCallPart("c", "echo", {"text": "x"}),)), "tool_use", Usage(cost=0.2))

    model = FunctionModel(answer)
    async with open_harness(model) as harness:
        with pytest.raises(UnansweredError, match=reason):
            await ask(harness, Agent(model="m", tools=["echo"], **limits))
    assert len(model.requests) == answers


async def test_what_comes_after_the_cutoff_is_not_in_the_request_that_is_sent_again() -> None:
    """An entry that was appended while the first request was under way: the second request is the same all the same."""
    log = MemoryLog()
    asked = asyncio.Event()

    async def hang(request) -> str:
        asked.set()
        await asyncio.sleep(3600)
        return "never"

    first, second = FunctionModel(hang), FunctionModel(lambda request: "hi")
    async with open_harness(first, log) as harness:
        await (await harness.root(Agent(model="m", instructions="Be kind."))).submit("hello", request_id="r")
        await asked.wait()
        late = [{"role": "user", "content": "late"}]
        await harness.session.commit(lambda tx: tx.append_entry("note", model=late))
    async with open_harness(second, log) as harness:
        await (await (await harness.root()).submit("hello", request_id="r")).wait()
    assert first.requests == second.requests


async def test_partials_are_in_the_log_while_the_model_speaks() -> None:
    seen = []

    async def answer(request) -> str:
        await harness.session.wait_until(lambda: seen[-1:] == ["It is so"] or None)
        return "It is so."

    model = FunctionModel(answer, partials=("It", "It is so"))
    async with open_harness(model) as harness:

        def note(committed) -> None:
            generation = harness.session._state.documents[LIVE.address()].value["generation"]
            if generation and generation["message"]:
                seen.append(generation["message"]["content"])

        harness.session.observe(note)
        assert await ask(harness, Agent(model="m")) == "It is so."
        entries = await (await harness.root()).entries()
    assert [entry.kind for entry in entries] == ["pi.user", "pi.assistant"]
    assert model.requests[0].messages == [{"role": "user", "content": "hello"}]

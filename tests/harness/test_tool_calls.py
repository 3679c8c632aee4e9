"""Tool calls: results, errors, wrappers, limits, and what must never become a result."""

import asyncio

import pytest

from durable_base.errors import HaltError, StaleEpochError, UsageError
from durable_base.floor import Floor
from durable_harness import (
    Agent,
    BlockedError,
    Extension,
    Harness,
    SessionFailedError,
    Settings,
    Tool,
    ToolApi,
    ToolResult,
    UnansweredError,
    sqlite,
    tool,
)
from durable_harness.builtin import USAGE
from durable_harness.documents import DocumentToken
from durable_harness.memory import MemoryLog, MemoryStorage
from durable_harness.models import ModelError
from durable_harness.testing import FunctionModel
from durable_harness.tools import Diagnostic

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
NOTE = DocumentToken("note", lambda: [])


def make_tool(run, name: str = "t", **more) -> Tool:
    return Tool(name, "A tool.", SCHEMA, run, **more)


def one_round(*calls) -> FunctionModel:
    """These calls, then an answer that repeats the results."""

    def answer(request):
        if request.messages[-1]["role"] != "tool":
            return list(calls)
        return "|".join(message["content"] for message in request.messages if message["role"] == "tool")

    return FunctionModel(answer)


async def run(*tools: Tool, calls=(("t", {}),), log: MemoryLog | None = None, **more):
    """One run to its answer; its text and the result entries."""
    storage = MemoryStorage(log)
    async with Harness.open(storage, models={"m": one_round(*calls)}, tools=tools, **more) as harness:
        root = await harness.root(Agent(model="m", tools=[t.name for t in tools]))
        answer = await (await root.submit("go")).wait()
        return answer.text, [e for e in await root.entries() if e.kind == "pi.tool-result"]


async def raises(api, arguments):
    api.output("so far\n")
    raise ValueError("broken")


async def ok(api, arguments):
    return "fine"


async def cancelled(api, arguments):
    raise asyncio.CancelledError


async def no_env(request):
    raise OSError("no environment")


@pytest.mark.parametrize(
    ("body", "arguments", "options", "code"),
    [
        (raises, {}, {}, "tool_error"),
        (cancelled, {}, {}, "tool_error"),
        (ok, {"n": "x"}, {}, "invalid_arguments"),
        (ok, {"other": 1}, {}, "invalid_arguments"),
        (ok, None, {}, "invalid_arguments"),
        (ok, {}, {"env": no_env}, "tool_error"),
    ],
)
async def test_calls_that_fail(body, arguments, options, code: str) -> None:
    """Case 60: one error result each, and the run continues."""
    text, (entry,) = await run(make_tool(body), calls=[("t", arguments)], **options)
    assert [item["code"] for item in entry.data["diagnostics"]] == [code]
    assert entry.data["is_error"]
    assert code in text
    assert (body is raises) == text.startswith("so far\n")


class Odd:
    pass


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("words", "words"),
        (ToolResult("out", details={"x": 1}), "out"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (None, "shown live\n"),
        (ToolResult("out\n", diagnostics=(Diagnostic("info", "note", "hm"),)), "out\n\n[diagnostics]\n- info note: hm"),
    ],
)
async def test_what_a_tool_may_return(returned, text: str) -> None:
    async def body(api, arguments):
        api.output("shown live\n")
        return returned

    shown, (entry,) = await run(make_tool(body))
    assert shown == text
    assert not entry.data["is_error"]
    assert set(entry.data) >= {"task_id", "call_id", "name", "is_error", "duration_ms"}


async def test_a_return_value_that_is_no_json_is_an_error_of_the_tool() -> None:
    async def body(api, arguments):
        return Odd()

    text, _ = await run(make_tool(body))
    assert "tool_error" in text


@pytest.mark.parametrize("keep", ["head", "tail"])
async def test_output_over_the_limits(keep) -> None:
    """Case 61: whole lines, one diagnostic with what was dropped, at the end of what the model sees."""

    async def lines(api, arguments):
        return "".join(f"line {n}\n" for n in range(3000))

    async def live(api, arguments):
        for n in range(3000):
            api.output(f"line {n}\n")

    for body in (lines, live):
        text, (entry,) = await run(make_tool(body, truncate=keep))
        shown = text.partition("\n[diagnostics]\n")[0].splitlines()
        first = 0 if keep == "head" else 1000
        assert shown == [f"line {n}" for n in range(first, first + 2000)]
        (diagnostic,) = entry.data["diagnostics"]
        assert diagnostic["code"] == "truncated"
        assert "1000 lines" in diagnostic["message"]
        assert text.endswith("bytes were left out")


async def test_one_line_over_the_limit_is_cut_between_characters() -> None:
    async def body(api, arguments):
        return "é" * 100

    text, _ = await run(make_tool(body), settings=Settings(output_bytes_max=51))
    assert text.startswith("é" * 25 + "\n")
    assert "150 bytes" in text


async def test_control_characters_and_broken_text_do_not_reach_the_log() -> None:
    async def body(api, arguments):
        return "a\x1b[31m\tb\r\n\udcffc\x00"

    text, _ = await run(make_tool(body))
    assert text == "a[31m\tb\n�c"


async def test_calls_of_one_round_run_at_once_and_start_in_order() -> None:
    started = []
    together = asyncio.Barrier(3)

    async def body(api, arguments):
        started.append(arguments["n"])
        await asyncio.wait_for(together.wait(), 20)
        return str(arguments["n"])

    text, _ = await run(make_tool(body), calls=[("t", {"n": n}) for n in (3, 1, 2)])
    assert text == "3|1|2"
    assert started == [3, 1, 2]


class Wrapper:
    """Runs the body in an environment of its own and notes what happens around it."""

    def __init__(self) -> None:
        self.steps: list[object] = []

    async def __call__(self, api, tool, run):
        self.steps.append(("call", api.call.recovered))
        await api.commit(lambda tx: tx.doc(NOTE).value.append("outcome"))
        api.at_result(self._at_result)
        api.after_result(lambda: self.steps.append("released"))
        result = await run("env of the wrapper")
        self.steps.append(result.output)
        return ToolResult(f"wrapped {result.output}", is_error=result.is_error)

    def _at_result(self, tx, entry_id: int) -> None:
        tx.doc(NOTE).value.append(entry_id)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_wrapped_call(fails: bool) -> None:
    """The wrapper's environment reaches the body; at_result is in the result's commit; then the call is released."""

    async def body(api, arguments):
        if fails:
            raise ValueError("broken")
        return str(api.env)

    wrapper = Wrapper()
    log = MemoryLog()
    extension = Extension("x", tools=(make_tool(body),), wrappers={"t": wrapper})
    order = []
    async with Harness.open(MemoryStorage(log), models={"m": one_round(("t", {}))}, extensions=[extension]) as harness:
        root = await harness.root(Agent(model="m", tools=["t"]))
        harness.session.observe(
            lambda c: order.extend((e.id, list(wrapper.steps)) for e in c.entries if e.kind == "pi.tool-result")
        )
        answer = await (await root.submit("go")).wait()
        note = await harness.session.document(NOTE)
    ((entry_id, steps_at_commit),) = order
    assert note == ["outcome", entry_id]
    assert "released" not in steps_at_commit, "released before the result was committed"
    assert wrapper.steps[0] == ("call", False)
    assert wrapper.steps[-1] == "released"
    assert wrapper.steps.count("released") == 1
    assert answer.text == "wrapped env of the wrapper" if not fails else "wrapped" in answer.text


async def test_a_wrapped_unsafe_tool_is_asked_again_after_a_crash() -> None:
    """A wrapper judges the crash itself: it is called with `recovered`, the stored arguments, and the same task id."""
    log = MemoryLog()
    entered = asyncio.Event()
    seen = []

    async def hangs(api, tool, run):
        seen.append(api.call)
        api.after_result(lambda: seen.append("released"))
        entered.set()
        await asyncio.sleep(3600)

    async def settles(api, tool, run):
        seen.append(api.call)
        return ToolResult("settled")

    def opening(wrapper):
        extension = Extension("x", tools=(make_tool(ok),), wrappers={"t": wrapper})
        return Harness.open(MemoryStorage(log), models={"m": one_round(("t", {"n": 1}))}, extensions=[extension])

    async with opening(hangs) as harness:
        root = await harness.root(Agent(model="m", tools=["t"]))
        await root.submit("go", request_id="r")
        await entered.wait()
    async with opening(settles) as harness:
        answer = await (await (await harness.root()).submit("go", request_id="r")).wait()
    first, released, second = seen
    assert released == "released", "a close releases calls that have no result"
    assert answer.text == "settled"
    assert (first.recovered, second.recovered) == (False, True)
    assert (first.task_id, first.arguments) == (second.task_id, second.arguments) == (first.task_id, {"n": 1})


STALE = StaleEpochError("space", Floor(1, "a"), Floor(2, "b"))
HALT = HaltError("SpaceUnreachable", "gone")


@pytest.mark.parametrize(
    "error", [STALE, HALT, ExceptionGroup("many", [ValueError("x"), ExceptionGroup("in", [HALT])])]
)
@pytest.mark.parametrize("place", ["body", "wrapper", "wrapped body", "env"])
async def test_what_never_becomes_a_result(error: Exception, place: str, tmp_path) -> None:
    """The session fails with it as cause, the fence is halted, waits are told, and the log has no result."""

    async def body(api, arguments):
        if "body" in place:
            raise error
        return "fine"

    async def wrapper(api, tool, run):
        if place == "wrapper":
            raise error
        return await run(api.env)

    async def env(request):
        if place == "env":
            raise error
        return "env"

    wrappers = {"t": wrapper} if "wrap" in place else {}
    harness = await Harness.open(
        sqlite(tmp_path / "log.db"),
        models={"m": one_round(("t", {}))},
        extensions=[Extension("x", tools=(make_tool(body),), wrappers=wrappers)],
        env=env,
    )
    submission = await (await harness.root(Agent(model="m", tools=["t"]))).submit("go")
    with pytest.raises(SessionFailedError) as failed:
        await submission.wait()
    expected = error if not isinstance(error, ExceptionGroup) else HALT
    assert failed.value.__cause__ is expected
    assert (await harness.closed).__cause__ is expected
    assert harness.session.fence.halted is expected
    with pytest.raises(SessionFailedError):
        await harness.session.commit(lambda tx: tx.append_entry("late"))
    await harness.close()
    from durable_harness import LogReader

    with LogReader.open(tmp_path / "log.db") as log:
        (call,) = log.tool_calls()
        assert call.entry_id is None


async def test_a_result_callback_that_fails_stops_the_session() -> None:
    """A result without what belongs to it would make log and effects differ (I1)."""

    async def body(api, arguments):
        api.at_result(lambda tx, entry_id: 1 / 0)
        return "fine"

    log = MemoryLog()
    with pytest.raises(SessionFailedError) as failed:
        await run(make_tool(body), log=log)
    assert failed.value.__cause__.reason == "ResultCallbackFailed"
    assert not [stored for stored in log.entries.values() if stored.entry.kind == "pi.tool-result"]


async def test_aborting_a_round() -> None:
    """Case 59, for calls that run at once: the running one ends aborted with its output; nothing runs afterwards."""
    entered = asyncio.Event()
    ends = []

    async def body(api, arguments):
        api.output("half\n")
        api.at_result(lambda tx, entry_id: ends.append("result"))
        api.after_result(lambda: ends.append("released"))
        entered.set()
        await asyncio.sleep(3600)

    async with Harness.open(
        MemoryStorage(),
        models={"m": one_round(("t", {}))},
        tools=[make_tool(body)],
        settings=Settings(partial_interval_ms=0),
    ) as harness:
        root = await harness.root(Agent(model="m", tools=["t"]))
        await root.submit("go")
        await entered.wait()
        await root.abort()
        (entry,) = [e for e in await root.entries() if e.kind == "pi.tool-result"]
        assert [item["code"] for item in entry.data["diagnostics"]] == ["aborted"]
        assert [task.outcome.status for task in await harness.session.tasks()] == ["aborted", "aborted"]
    assert ends == ["result", "released"]


@pytest.mark.parametrize(
    ("before", "after"),
    [("safe", "unsafe"), ("safe", None), ("unsafe", "safe")],
    ids=["now unsafe", "gone", "now safe"],
)
async def test_a_tool_whose_policy_changed_over_a_crash(before: str, after: str | None) -> None:
    """Case 55: interrupted in all three."""
    log = MemoryLog()
    entered = asyncio.Event()
    ran = []

    async def hang(api, arguments):
        entered.set()
        await asyncio.sleep(3600)

    async def again(api, arguments):
        ran.append(1)
        return "ran"

    async with Harness.open(
        MemoryStorage(log), models={"m": one_round(("t", {}))}, tools=[make_tool(hang, replay=before)]
    ) as harness:
        await (await harness.root(Agent(model="m", tools=["t"]))).submit("go", request_id="r")
        await entered.wait()
    tools = [] if after is None else [make_tool(again, replay=after)]
    async with Harness.open(MemoryStorage(log), models={"m": one_round(("t", {}))}, tools=tools) as harness:
        answer = await (await (await harness.root()).submit("go", request_id="r")).wait()
    assert "interrupted" in answer.text
    assert ran == []


async def test_usage_counts_calls_and_errors() -> None:
    async with Harness.open(
        MemoryStorage(), models={"m": one_round(("t", {}), ("t", {"n": "x"}))}, tools=[make_tool(ok)]
    ) as harness:
        await (await (await harness.root(Agent(model="m", tools=["t"]))).submit("go")).wait()
        assert (await harness.session.document(USAGE))["tools"] == {"t": {"calls": 2, "errors": 1}}


async def test_names_that_are_given_twice_or_not_at_all() -> None:
    async def wrapper(api, tool, run): ...

    with pytest.raises(UsageError, match="given twice"):
        Harness.open(MemoryStorage(), models={}, tools=[make_tool(ok), make_tool(ok)])
    twice = [Extension("a", wrappers={"t": wrapper}), Extension("b", wrappers={"t": wrapper})]
    with pytest.raises(UsageError, match="two wrappers"):
        Harness.open(MemoryStorage(), models={}, extensions=twice)
    async with Harness.open(MemoryStorage(), models={"m": one_round()}, tools=[make_tool(ok)]) as harness:
        with pytest.raises(UsageError, match="'x' is none of those"):
            await harness.root(Agent(model="x"))
        with pytest.raises(UsageError, match="'x' is not known; known: t"):
            await harness.root(Agent(model="m", tools=["x"]))
        with pytest.raises(UsageError, match="extension 'y' is not known; known: none"):
            await harness.root(Agent(model="m", extensions=["y"]))


async def test_a_tool_without_an_environment() -> None:
    @tool
    async def needs(api: ToolApi) -> str:
        """Look."""
        return str(api.env)

    text, _ = await run(needs, calls=[("needs", {})])
    assert "open the harness with `env=`" in text


async def test_draining_lets_a_call_reach_its_result() -> None:
    """Stop starting, keep what runs: the call gets its result entry, the model is not asked again; the next drive goes on."""
    log = MemoryLog()
    entered, release = asyncio.Event(), asyncio.Event()

    async def body(api, arguments):
        entered.set()
        await release.wait()
        return "fine"

    model = one_round(("t", {}))
    async with Harness.open(MemoryStorage(log), models={"m": model}, tools=[make_tool(body)]) as harness:
        root = await harness.root(Agent(model="m", tools=["t"]))
        await root.submit("go", request_id="r")
        await entered.wait()
        draining = asyncio.create_task(harness.drain())
        await asyncio.sleep(0)
        release.set()
        await draining
        assert [e.kind for e in await root.entries()] == ["pi.user", "pi.assistant", "pi.tool-result"]
    assert len(model.requests) == 1
    async with Harness.open(MemoryStorage(log), models={"m": model}, tools=[make_tool(body)]) as harness:
        assert (await (await (await harness.root()).submit("go", request_id="r")).wait()).text == "fine"


async def test_words_of_an_error_that_are_no_valid_text() -> None:
    """What an exception says reaches the log as text that can be stored, wherever it is kept."""

    async def body(api, arguments):
        raise ValueError("bad \udcff")

    text, _ = await run(make_tool(body))
    assert "bad \ufffd" in text

    def answer(request):
        raise ModelError("worse \udcff", retryable=False)

    async with Harness.open(MemoryStorage(), models={"m": FunctionModel(answer)}) as harness:
        with pytest.raises(UnansweredError, match="worse \ufffd"):
            await (await (await harness.root(Agent(model="m"))).submit("go")).wait()


IN_ORDER = Extension("order", in_order=("slow", "quick"))


def noting(order: list[str], name: str, seconds: float = 0.0) -> Tool:
    async def run(api, arguments):
        order.append(f"{name} begins")
        await asyncio.sleep(seconds)
        order.append(f"{name} ends")

    return make_tool(run, name)


async def test_calls_that_take_turns_go_one_after_the_other_in_the_order_of_the_answer() -> None:
    order: list[str] = []
    tools = [noting(order, "slow", 0.05), noting(order, "quick"), noting(order, "free")]
    calls = [("slow", {}), ("quick", {}), ("free", {}), ("quick", {})]
    await run(*tools, calls=calls, extensions=[IN_ORDER])
    assert order[:2] == ["slow begins", "free begins"], "a call of another tool waits for nobody"
    assert order[3:] == ["slow ends", "quick begins", "quick ends", "quick begins", "quick ends"]


@pytest.mark.parametrize("first", [("slow", {"n": "no number"}), ("nobody", {}), ("slow", {})])
async def test_a_call_that_ends_without_having_run_holds_nobody_up(first: tuple[str, dict]) -> None:
    """Invalid arguments, a tool that is not there, and one that raises."""
    order: list[str] = []

    async def fails(api, arguments):
        raise ValueError("broken")

    await run(make_tool(fails, "slow"), noting(order, "quick"), calls=[first, ("quick", {})], extensions=[IN_ORDER])
    assert order == ["quick begins", "quick ends"]


async def test_a_run_that_is_aborted_ends_also_the_calls_that_wait_for_their_turn() -> None:
    begun = asyncio.Event()
    order: list[str] = []

    async def hangs(api, arguments):
        begun.set()
        await asyncio.sleep(3600)

    tools = [make_tool(hangs, "slow"), noting(order, "quick")]
    model = one_round(("slow", {}), ("quick", {}))
    async with Harness.open(MemoryStorage(), models={"m": model}, tools=tools, extensions=[IN_ORDER]) as harness:
        root = await harness.root(Agent(model="m", tools=["slow", "quick"]))
        await root.submit("go")
        await begun.wait()
        async with asyncio.timeout(10):
            await root.abort()
        assert [e.data["diagnostics"][0]["code"] for e in await root.entries() if e.kind == "pi.tool-result"] == [
            "aborted",
            "aborted",
        ]
    assert order == []


async def test_the_turns_are_the_same_after_a_crash_and_a_parked_call_is_told() -> None:
    """The first call is recovered first; parked, it is not hidden by the one that waits for it."""
    log, order = MemoryLog(), list[str]()
    begun = asyncio.Event()

    async def hangs(api, arguments):
        begun.set()
        await asyncio.sleep(3600)

    def open_with(first: Tool, attempt: int):
        settings = Settings(attempt=attempt, restart_limit=1)
        tools, model = [first, noting(order, "quick")], one_round(("slow", {}), ("quick", {}))
        return Harness.open(
            MemoryStorage(log), models={"m": model}, tools=tools, extensions=[IN_ORDER], settings=settings
        )

    async with open_with(make_tool(hangs, "slow", replay="safe"), 1) as harness:
        root = await harness.root(Agent(model="m", tools=["slow", "quick"]))
        await root.submit("go", request_id="r")
        await begun.wait()
    async with open_with(noting(order, "slow", 0.05), 2) as harness:
        submission = await (await harness.root()).submit("go", request_id="r")
        async with asyncio.timeout(10):
            with pytest.raises(BlockedError) as blocked:
                await submission.wait()
        assert order == []
    async with open_with(make_tool(noting(order, "slow", 0.05).run, "slow", replay="safe"), 2) as harness:
        submission = await (await harness.root()).submit("go", request_id="r")
        await harness.retry_task(blocked.value.task_id)
        await submission.wait()
    assert order == ["slow begins", "slow ends", "quick begins", "quick ends"]

"""Submissions: admitted once, settled once, queued while a run goes on."""

import asyncio

import pytest

from durable_harness import Agent, ConversationBusyError, Harness, MemoryStorage, UnansweredError
from durable_harness.errors import RequestConflictError
from durable_harness.models import ModelError
from durable_harness.testing import FunctionModel


class Told:
    """A model whose answers a test gives one at a time; it repeats the newest user message behind each."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[str | Exception] = asyncio.Queue()
        self.model = FunctionModel(self._answer)

    async def _answer(self, request) -> str:
        said = await self.answers.get()
        if isinstance(said, Exception):
            raise said
        users = [message["content"] for message in request.messages if message["role"] == "user"]
        return f"{said}: {users[-1]}"


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def root(told: Told):
    async with Harness.open(MemoryStorage(), models={"m": told.model}) as harness:
        yield await harness.root(Agent(model="m"))


async def kinds(root) -> list[str]:
    return [entry.kind for entry in await root.entries()]


async def test_a_request_id_that_is_done(root, told: Told) -> None:
    """Case 18: the settled submission; its wait resolves at once; nothing is written."""
    told.answers.put_nowait("yes")
    first = await root.submit("one", request_id="r1")
    answer = await first.wait()
    before = await kinds(root)
    again = await root.submit("one", request_id="r1")
    assert again.id == first.id
    assert await again.status() == "done"
    assert await again.wait() == answer
    assert answer.text == "yes: one"
    assert await kinds(root) == before


async def test_a_request_id_used_for_an_input_and_for_a_write(root, told: Told) -> None:
    """Case 19: the second kind is refused, either way round, and nothing is written."""
    told.answers.put_nowait("yes")
    await (await root.submit("one", request_id="r1")).wait()
    write = await root.write("note", data={"n": 1}, request_id="r2")
    assert await write.status() == "done"
    before = await kinds(root)
    with pytest.raises(RequestConflictError):
        await root.write("note", request_id="r1")
    with pytest.raises(RequestConflictError):
        await root.submit("two", request_id="r2")
    assert await kinds(root) == before


async def test_a_busy_conversation(root, told: Told) -> None:
    """Case 20: rejected without a record, or queued and placed when the run answers."""
    first = await root.submit("one")
    with pytest.raises(ConversationBusyError):
        await root.submit("two", when_busy="reject", request_id="r2")
    second = await root.submit("two", request_id="r2")
    assert await second.status() == "queued"
    assert await kinds(root) == ["pi.user"]
    told.answers.put_nowait("a")
    assert (await first.wait()).text == "a: one"
    assert await second.status() == "placed"
    told.answers.put_nowait("b")
    assert (await second.wait()).text == "b: two"
    assert await kinds(root) == ["pi.user", "pi.assistant", "pi.user", "pi.assistant"]


async def test_a_follow_up_of_a_run_that_failed(root, told: Told) -> None:
    """Case 21: it stays queued; the next input goes behind it, and both are placed in that commit."""
    first = await root.submit("one")
    second = await root.submit("two")
    told.answers.put_nowait(ModelError("no", retryable=False))
    with pytest.raises(UnansweredError) as unanswered:
        await first.wait()
    assert (unanswered.value.reason, unanswered.value.detail) == ("model_error", "no")
    assert await second.status() == "queued"
    third = await root.submit("three")
    assert await second.status() == await third.status() == "placed"
    told.answers.put_nowait("c")
    assert (await second.wait()).text == (await third.wait()).text == "c: three"
    users = [entry.model[0]["content"] for entry in await root.entries() if entry.kind == "pi.user"]
    assert users == ["one", "two", "three"]


async def test_taking_back(root, told: Told) -> None:
    """Case 22: a queued one is aborted; a placed or settled one is not."""
    first = await root.submit("one")
    second = await root.submit("two")
    assert await second.abort() == "aborted"
    assert await first.abort() == "already_placed"
    told.answers.put_nowait("a")
    await first.wait()
    assert await first.abort() == "settled"
    with pytest.raises(UnansweredError, match="aborted"):
        await second.wait()
    await root.wait_for_idle()
    assert await kinds(root) == ["pi.user", "pi.assistant"]


async def test_a_write_while_a_run_goes_on(root, told: Told) -> None:
    """Case 23: appended at the next boundary, before queued inputs; an idle conversation takes it at once and starts nothing."""
    first = await root.submit("one")
    second = await root.submit("two")
    note = await root.write("note", data={"n": 1}, model=[{"role": "user", "content": "by the way"}])
    assert await note.status() == "queued"
    told.answers.put_nowait("a")
    await first.wait()
    assert await kinds(root) == ["pi.user", "pi.assistant", "note", "pi.user"]
    told.answers.put_nowait("b")
    await second.wait()
    await (await root.write("note")).wait()
    assert (await kinds(root))[-1] == "note"
    await root.wait_for_idle()


async def test_cancelling_a_wait(root, told: Told) -> None:
    """Case 24: only the wait ends."""
    submission = await root.submit("one")
    waiting = asyncio.create_task(submission.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    told.answers.put_nowait("a")
    assert (await submission.wait()).text == "a: one"


async def test_aborting_a_conversation(root, told: Told) -> None:
    """The run's inputs and the queued ones end aborted; the conversation is idle and can be used again."""
    first = await root.submit("one")
    second = await root.submit("two")
    await root.abort()
    for submission in (first, second):
        with pytest.raises(UnansweredError, match="aborted"):
            await submission.wait()
    told.answers.put_nowait("a")
    assert (await (await root.submit("three")).wait()).text == "a: three"

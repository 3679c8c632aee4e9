"""A log read from outside while its driver writes it."""

import asyncio
from pathlib import Path

import pytest

from durable_base.errors import UsageError
from durable_base.floor import Floor
from durable_harness import Agent, Harness, LogReader, open_fenced_sqlite, tool
from durable_harness.documents import DocumentToken
from durable_harness.errors import CorruptLogError
from durable_harness.testing import FunctionModel

MARKS = DocumentToken("marks", lambda: [], history="rewindable", fork="asOf")


def answer(request):
    return [("wait", {"n": 7})] if request.messages[-1]["role"] == "user" else "done"


async def test_reading_while_a_call_runs_and_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    entered, release = asyncio.Event(), asyncio.Event()

    @tool
    async def wait(n: int) -> str:
        """Wait."""
        entered.set()
        await release.wait()
        return f"waited {n}"

    storage, fence = await open_fenced_sqlite(path, 3, "driver")
    opening = Harness.open(storage, fence=fence, models={"m": FunctionModel(answer)}, tools=[wait])
    async with opening as harness:
        submission = await (await harness.root(Agent(model="m", tools=["wait"]))).submit("go", request_id="r")
        await entered.wait()
        with LogReader.open(path) as log:
            assert log.log_id == harness.session.log_id
            assert log.floor == Floor(3, "driver")
            (call,) = log.tool_calls()
            assert (call.name, call.arguments, call.entry_id, call.duration_ms) == ("wait", {"n": 7}, None, None)
            assert call.started_at is not None
            assert [entry.kind for entry in log.entries()] == ["pi.user", "pi.assistant"]
            assert [record.status for record in log.submissions()] == ["placed"]
            slot = log.document("pi.live")["tools"][0]
            assert (slot["status"], slot["task_id"]) == ("running", call.task_id)
            release.set()
            await submission.wait()
            (ended,) = log.tool_calls()
            assert (ended.task_id, ended.is_error) == (call.task_id, False)
            assert log.entries()[2].id == ended.entry_id
            assert ended.duration_ms == log.entries()[2].data["duration_ms"]
    with LogReader.open(path) as log:
        assert log.submissions()[0].answer == log.entries()[-1].id
        assert log.document("nothing") is None
        assert {address.kind for address in log.documents()} == {
            "pi.agent",
            "pi.provider",
            "pi.live",
            "pi.inbox",
            "pi.usage",
        }


async def test_documents_as_of_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    storage, fence = await open_fenced_sqlite(path, 1, "driver")
    ids = []
    async with Harness.open(storage, fence=fence, models={}) as harness:
        await harness.root()
        for n in range(3):

            def write(tx, n=n):
                tx.doc(MARKS).value.append(n)
                return tx.append_entry("mark").id

            ids.append(await harness.session.commit(write))
    with LogReader.open(path) as log:
        assert [log.document("marks", as_of=entry) for entry in ids] == [[0], [0, 1], [0, 1, 2]]
        with pytest.raises(UsageError, match="only its latest"):
            log.document("pi.live", as_of=ids[0])
        with pytest.raises(UsageError, match="no entry"):
            log.document("marks", as_of=10**6)


def test_paths_that_hold_no_log(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no log"):
        LogReader.open(tmp_path / "missing.db")
    assert list(tmp_path.iterdir()) == [], "looking creates nothing"
    text = tmp_path / "text"
    text.write_text("something else" * 100)
    with pytest.raises(CorruptLogError, match="not a database"):
        LogReader.open(text)


async def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    storage, _ = await open_fenced_sqlite(path, 1, "driver")
    await storage.close()
    before = path.read_bytes()
    with LogReader.open(path) as log:
        assert log.entries() == []
        with pytest.raises(Exception, match="readonly"):
            log._db.execute("DELETE FROM cua_fence")
    assert path.read_bytes() == before

"""Calls in one process: aborted ones, tools of other shapes, and what a drive finds when the code changed under it.

A drive that is closed in the middle of a call leaves log and Space as a killed one does (a close writes no outcome).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from durable_base.errors import HaltError
from durable_base.floor import new_incarnation
from durable_harness import (
    Agent,
    Harness,
    ScriptedModel,
    SessionFailedError,
    Tool,
    ToolApi,
    ToolResult,
    UnansweredError,
    open_fenced_sqlite,
)
from durable_harness.coding import CODING_TOOLS, bash, write
from durable_harness.inspect import LogReader
from durable_harness.session import Committed
from durable_spaces import DurableSpaces, LocalSpaces, RecoveryEvent, RemoteSpaces, Spaces, durable_spaces
from durable_spaces.client import Address
from durable_spaces.document import CUA_SPACE
from durable_spaces.spaces import daemon_pid
from durable_spaces.testing import check_promises, read_image, read_tree

MakeStage = Callable[..., Any]


@dataclass
class Drive:
    harness: Harness
    spaces: DurableSpaces
    root: Any
    events: list[tuple[str, str]] = field(default_factory=list)

    async def answer(self, request_id: str = "input") -> str:
        text: str = (await (await self.root.submit("go", request_id=request_id)).wait()).text
        return text


@asynccontextmanager
async def drive(
    stage: Any,
    epoch: int,
    *,
    tools: Sequence[Tool] = CODING_TOOLS,
    wrap: Sequence[str] | None = None,
    spaces: Spaces | None = None,
) -> AsyncIterator[Drive]:
    incarnation = new_incarnation()
    events: list[tuple[str, str]] = []

    def tell(event: RecoveryEvent) -> None:
        events.append((event.kind, event.reason))

    storage, fence = await open_fenced_sqlite(stage.log, epoch, incarnation)
    adapter = durable_spaces(
        spaces=spaces or RemoteSpaces(Address(stage.daemon.target)),
        epoch=epoch,
        incarnation=incarnation,
        fence=fence,
        wrap=[tool.name for tool in tools if tool.effects != "none"] if wrap is None else wrap,
        on_event=tell,
    )
    models = {"script": ScriptedModel.load(stage.script)}
    try:
        async with Harness.open(
            storage, fence=fence, models=models, tools=tools, extensions=[adapter.extension], env=adapter.env
        ) as harness:
            root = await harness.root(Agent(model="script", tools=[tool.name for tool in tools]))
            await adapter.attach(harness.session)
            harness.resume()
            yield Drive(harness, adapter, root, events)
    finally:
        await adapter.close()


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        await asyncio.sleep(0.01)


# ---- aborted


async def test_an_aborted_call_leaves_nothing_and_its_command_is_dead(make_stage: MakeStage) -> None:
    """Its command writes on and on: a restore that did not end it first would not last (I3)."""
    stage = make_stage(
        """\
steps:
  - calls: [{write: {path: kept, content: "x"}}]
  - calls: [{bash: {command: "mkdir d; while :; do echo more >> half; sleep 0.02; done"}}]
  - calls: [{read: {path: half}}]
  - expect: No such file
    calls: [{bash: {command: "sleep 0.3; ls"}}]
  - answer: Done.
"""
    )
    async with drive(stage, 1) as first:
        submission = await first.root.submit("go", request_id="one")
        await until((stage.workspace / "half").exists)
        await first.root.abort()
        with pytest.raises(UnansweredError):
            await submission.wait()
        assert await first.answer("two") == "Done."
        await first.spaces.ensure_space()
        assert first.events == [("reverted", "RestoreUnfinished")]
    tree = read_tree(stage.workspace)
    assert sorted(tree) == [b"kept"]
    check_promises(stage.log, stage.workspace, tree)


async def test_a_call_given_up_by_a_driver_that_died_right_after_is_undone_by_the_next(make_stage: MakeStage) -> None:
    stage = make_stage('steps:\n  - calls: [{bash: {command: "touch half; sleep 20"}}]\n  - answer: Done.\n')
    async with drive(stage, 1) as first:
        await first.root.submit("go", request_id="one")
        await until((stage.workspace / "half").exists)
        await first.root.abort()
    async with drive(stage, 2) as second:
        assert await second.answer("two") == "Done."
        assert second.events in ([("reverted", "RestoreUnfinished")], [])
    assert read_tree(stage.workspace) == {}


# ---- one at a time


async def test_a_call_has_the_space_until_its_result_entry(make_stage: MakeStage) -> None:
    """Rule 25: a fork at a result must not show the effects of the next call."""
    calls = ", ".join(f'{{bash: {{command: "echo {number} >> log"}}}}' for number in range(4))
    stage = make_stage(f"steps:\n  - calls: [{calls}]\n  - answer: Done.\n")
    in_work: list[int | None] = []
    async with drive(stage, 1) as first:
        session = first.harness.session

        def note(committed: Committed) -> None:
            stored = read_document(stage.log)
            in_work.append(stored["current"]["mark"]["task"] if stored and stored["current"] else None)

        session.observe(note)
        assert await first.answer() == "Done."
    turns = [task for task, _ in itertools.groupby(in_work)]
    assert None in turns
    for before, after in itertools.pairwise(turns):
        assert before is None or after is None, f"a call was marked before another one's result: {turns}"
    assert [task for task in turns if task is not None] == sorted({task for task in turns if task is not None})
    assert (stage.workspace / "log").read_text() == "0\n1\n2\n3\n"


def read_document(log: Path) -> Any:
    with LogReader.open(log) as reader:
        return reader.document(CUA_SPACE.kind)


# ---- tools of other shapes


class Gate:
    """Holds a tool's body until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.open.wait()


def several(gate: Gate, effects: Any = "mixed") -> Tool:
    async def body(api: ToolApi, arguments: Any) -> ToolResult:
        await api.env.exec("mkdir made; echo one >> log")
        await api.env.write("file", "written")
        await gate.pass_through()
        await api.env.exec("echo two >> log")
        return ToolResult("did all")

    return Tool("several", "Several effects.", {"type": "object"}, body, effects=effects)


async def test_a_tool_with_several_effects_that_was_cut_off_starts_over_on_a_clean_workspace(
    make_stage: MakeStage,
) -> None:
    """Rule 29: what its first command came to is not what the call came to."""
    stage = make_stage("steps:\n  - calls: [{several: {}}]\n  - {expect: did all, answer: Done.}\n")
    gate = Gate()
    async with drive(stage, 1, tools=[several(gate)]) as first:
        await first.root.submit("go", request_id="input")
        await gate.reached.wait()
    gate.open.set()
    async with drive(stage, 2, tools=[several(gate)]) as second:
        assert await second.answer() == "Done."
        assert second.events == [("reverted", "CutOff")]
    assert (stage.workspace / "log").read_text() == "one\ntwo\n"
    check_promises(stage.log, stage.workspace, read_tree(stage.workspace))


async def test_a_tool_that_begins_several_effects_at_once_has_one_start_mark(make_stage: MakeStage) -> None:
    stage = make_stage("steps:\n  - calls: [{at_once: {}}]\n  - {expect: did all, answer: Done.}\n")

    async def body(api: ToolApi, arguments: Any) -> ToolResult:
        await asyncio.gather(*(api.env.write(f"f{number}", "x") for number in range(4)), api.env.exec("touch g"))
        return ToolResult("did all")

    (stage.workspace / "outside").touch()
    tool = Tool("at_once", "Several effects.", {"type": "object"}, body, effects="mixed")
    async with drive(stage, 1, tools=[tool]) as first:
        assert await first.answer() == "Done."
    assert sorted(read_tree(stage.workspace)) == [b"f0", b"f1", b"f2", b"f3", b"g", b"outside"]
    check_promises(stage.log, stage.workspace, read_tree(stage.workspace))


async def test_a_tool_that_does_more_than_it_declares_halts_for_good_before_the_effect(make_stage: MakeStage) -> None:
    stage = make_stage("steps:\n  - calls: [{several: {}}]\n  - answer: Never.\n")
    async with drive(stage, 1, tools=[several(Gate(), "command")]) as first:
        with pytest.raises(SessionFailedError) as failed:
            await first.answer()
    cause = failed.value.__cause__
    assert isinstance(cause, HaltError)
    assert (cause.reason, cause.permanent) == ("ToolContract", True)
    assert "effects='mixed'" in cause.message
    assert not (stage.workspace / "file").exists()


# ---- the code changed between two drives


async def test_a_tool_that_asks_for_another_command_after_an_upgrade_starts_over(make_stage: MakeStage) -> None:
    stage = make_stage('steps:\n  - calls: [{bash: {command: "mkdir d; sleep 0.5"}}]\n  - answer: Done.\n')

    async def upgraded(api: ToolApi, arguments: Any) -> Any:
        return ToolResult(str((await api.env.exec("set -e; " + arguments["command"])).exit_code))

    async with drive(stage, 1, tools=[bash]) as first:
        await first.root.submit("go", request_id="input")
        await until((stage.workspace / "d").exists)
    async with drive(stage, 2, tools=[replace(bash, run=upgraded)]) as second:
        assert await second.answer() == "Done."
        assert second.events[-1] == ("reverted", "CommandDiverged")
        assert second.events[0][0] in ("reattached", "replayed")
    assert sorted(read_tree(stage.workspace)) == [b"d"]
    check_promises(stage.log, stage.workspace, read_tree(stage.workspace))


async def test_a_call_whose_tool_was_taken_away_is_undone_and_holds_nobody_up(make_stage: MakeStage) -> None:
    stage = make_stage(
        """\
steps:
  - calls: [{bash: {command: "touch half; sleep 20"}}, {write: {path: kept, content: x}}]
  - {expect: interrupted, answer: Done.}
"""
    )
    async with drive(stage, 1, tools=[bash, write]) as first:
        await first.root.submit("go", request_id="input")
        await until((stage.workspace / "half").exists)
    async with drive(stage, 2, tools=[write]) as second:
        assert await second.answer() == "Done."
        assert ("reverted", "RestoreUnfinished") in second.events
    assert sorted(read_tree(stage.workspace)) == [b"kept"]
    check_promises(stage.log, stage.workspace, read_tree(stage.workspace))


async def test_nothing_runs_before_the_space_is_attached(make_stage: MakeStage) -> None:
    stage = make_stage("steps:\n  - calls: [{write: {path: a, content: x}}]\n  - answer: Never.\n")
    incarnation = new_incarnation()
    storage, fence = await open_fenced_sqlite(stage.log, 1, incarnation)
    remote = RemoteSpaces(Address(stage.daemon.target))
    adapter = durable_spaces(spaces=remote, epoch=1, incarnation=incarnation, fence=fence)
    models = {"script": ScriptedModel.load(stage.script)}
    async with Harness.open(
        storage, fence=fence, models=models, tools=[write], extensions=[adapter.extension], env=adapter.env
    ) as harness:
        root = await harness.root(Agent(model="script", tools=["write"]))
        with pytest.raises(SessionFailedError, match="NotAttached"):
            await (await root.submit("go", request_id="input")).wait()
    await adapter.close()
    assert read_tree(stage.workspace) == {}


# ---- a daemon of one's own


async def test_local_spaces_find_their_daemon_again_and_end_it_at_close(make_stage: MakeStage) -> None:
    stage = make_stage(
        'steps:\n  - calls: [{bash: {command: "echo a >> log"}}]\n  - answer: One.\n'
        '  - calls: [{bash: {command: "echo b >> log"}}]\n  - answer: Two.\n'
    )
    folder = stage.folder / "l"

    class Kept(LocalSpaces):
        """As after a kill: the daemon stays."""

        async def close(self) -> None:
            pass

    async with drive(stage, 1, spaces=Kept(folder)) as first:
        assert await first.answer("one") == "One."
    (home,) = folder.iterdir()
    pid = daemon_pid(home / "data")
    assert pid is not None
    async with drive(stage, 2, spaces=LocalSpaces(folder)) as second:
        assert await second.answer("two") == "Two."
        assert daemon_pid(home / "data") == pid
        assert second.events == []
    assert daemon_pid(home / "data") is None
    assert (home / "workspace" / "log").read_text() == "a\nb\n"
    assert sorted(read_image(stage.log)) == [b"log"]


ROUNDS = """\
steps:
  - calls:
      - bash: {command: "sleep 0.3; echo work > work.txt"}
      - read: {path: work.txt}
  - expect: work
    calls:
      - write: {path: a.txt, content: "written\\n"}
      - read: {path: a.txt}
      - bash: {command: "cat a.txt; echo over > a.txt"}
      - write: {path: a.txt, content: "last\\n"}
      - bash: {command: "cat a.txt"}
  - answer: Done.
"""


@pytest.mark.parametrize("repetition", range(3))
async def test_a_call_sees_what_the_calls_before_it_in_the_same_answer_did(
    make_stage: MakeStage, repetition: int
) -> None:
    stage = make_stage(ROUNDS)
    async with drive(stage, 1) as first:
        assert await first.answer() == "Done."
        results = [e for e in await first.root.entries() if e.kind == "pi.tool-result"]
    assert [entry.model[0]["content"] for entry in results][1:] == [
        "work\n",
        "Wrote 8 bytes to a.txt.",
        "written\n",
        "written\n",
        "Wrote 5 bytes to a.txt.",
        "last\n",
    ]

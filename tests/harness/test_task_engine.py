"""Tasks: phases, checkpoints, memos, ownership, what blocks them. Crashes of the process are in test_killed_drives."""

import asyncio
from dataclasses import replace as change

import pytest
from msgspec.structs import replace

from durable_harness import BlockedError, Harness, Settings
from durable_harness.errors import CommitRejectedError, InvalidRecordError, SessionClosedError
from durable_harness.memory import MemoryLog, MemoryStorage
from durable_harness.records import Completing, Outcome, Pending, Running, Sleeping, Terminal, Waiting
from durable_harness.tasks import TaskDefinition

DONE = Terminal(outcome=Outcome(status="completed", result="done"))


async def finish(task, runtime) -> None:
    await runtime.commit(lambda tx, task: DONE)


async def stop(task, runtime) -> None:
    await runtime.commit(lambda tx, task: Terminal(outcome=Outcome(status="aborted", reason=task.abort_reason)))


def define(phase=finish, *, kind: str = "k", abort=stop, **more) -> TaskDefinition:
    phases = phase if isinstance(phase, dict) else {"start": phase}
    return TaskDefinition(kind, phases, abort, **more)


def open_harness(*definitions: TaskDefinition, log: MemoryLog | None = None, **more):
    return Harness.open(MemoryStorage(log), models={}, tasks=definitions, **more)


async def create(harness: Harness, kind: str = "k", **more):
    await harness.root()
    return await harness.session.commit(lambda tx: tx.create_task(kind, {"phase": "start"}, **more))


async def test_the_first_writer_of_a_memo_wins() -> None:
    """Case 26: two candidates at once get one value; it stays over a checkpoint change and is gone at the end."""
    seen = []

    async def start(task, runtime) -> None:
        seen.extend(await asyncio.gather(runtime.memo("m", "one"), runtime.memo("m", "two")))
        await runtime.commit(lambda tx, task: Running(checkpoint={"phase": "next"}))

    async def then(task, runtime) -> None:
        seen.append(await runtime.memo("m"))
        seen.append(await runtime.memo("other"))
        await finish(task, runtime)

    async with open_harness(define({"start": start, "next": then})) as harness:
        task = await create(harness)
        assert (await harness.wait_for_task(task.id)).result == "done"
        assert seen == ["one", "one", "one", None]
        assert (await harness.session.task(task.id)).memos is None


async def nothing(task, runtime) -> None:
    pass


async def entry_only(task, runtime) -> None:
    await runtime.commit(lambda tx, task: tx.append_entry("progress?") and None)


@pytest.mark.parametrize("phase", [nothing, entry_only])
async def test_a_phase_that_commits_no_new_state_faults(phase) -> None:
    """Case 28."""
    async with open_harness(define(phase)) as harness:
        outcome = await harness.wait_for_task((await create(harness)).id)
        assert outcome.status == "faulted"
        assert "without a new state" in outcome.error


async def test_a_phase_that_raises_faults() -> None:
    """Case 29, any task: faulted with the message. (A generation: see test_generation.)"""

    async def start(task, runtime) -> None:
        raise ValueError("broken")

    async with open_harness(define(start)) as harness:
        outcome = await harness.wait_for_task((await create(harness)).id)
        assert (outcome.status, outcome.error) == ("faulted", "ValueError: broken")


async def test_a_cancellation_that_nobody_asked_for_faults() -> None:
    async def start(task, runtime) -> None:
        raise asyncio.CancelledError

    async with open_harness(define(start)) as harness:
        outcome = await harness.wait_for_task((await create(harness)).id)
        assert (outcome.status, outcome.error) == ("faulted", "RuntimeError: cancelled from within")


async def test_opening_runs_nothing() -> None:
    """Case 30: no code runs and nothing is written by looking; what was running shows as pending."""
    log = MemoryLog()
    ran = []

    async def start(task, runtime) -> None:
        ran.append(task.id)
        await asyncio.sleep(3600)

    harness = await open_harness(define(start), log=log)
    task = await create(harness)
    harness.resume()
    await harness.session.wait_until(lambda: harness.session.live_task(task.id).status == "running" or None)
    await harness.close()
    ran.clear()
    async with open_harness(define(start), log=log) as harness:
        seq = log.next_seq
        (found,) = harness.session.live_tasks()
        assert found.status == "pending"
        assert found.restarts == 1
        assert await harness.session.tasks() == [found]
        await harness.root()
        await asyncio.sleep(0.05)
        assert ran == []
        assert log.next_seq == seq


async def test_a_task_whose_code_is_missing() -> None:
    """Case 31: blocked, not idle; code that knows it unblocks it; aborting it instead ends it orphaned."""
    log = MemoryLog()
    async with open_harness(log=log) as harness:
        root = await harness.root()
        kept, orphan = await create(harness), await create(harness)
        harness.resume()
        assert harness.blocked() == {kept.id: "missing_task", orphan.id: "missing_task"}
        with pytest.raises(BlockedError) as blocked:
            await root.wait_for_idle()
        assert (blocked.value.task_id, blocked.value.reason) == (kept.id, "missing_task")
        await harness.session.commit(lambda tx: harness.mark(tx, tx.get_task(orphan.id)))
        outcome = await harness.wait_for_task(orphan.id)
        assert outcome.status == "orphaned"
    async with open_harness(define(), log=log) as harness:
        assert (await harness.wait_for_task(kept.id)).result == "done"


async def test_a_task_of_another_version() -> None:
    """Case 32: a migration that raises blocks the task and leaves its record; one that works runs it; newer is refused."""

    def fail(version, checkpoint):
        raise ValueError("no way")

    log = MemoryLog()
    async with open_harness(define(version=2, migrate=fail), log=log) as harness:
        task = await create(harness, version=1)
        newer = await create(harness, version=3)
        harness.resume()
        await harness.session.wait_until(lambda: len(harness.blocked()) == 2 or None)
        assert harness.blocked() == {task.id: "migration_failed", newer.id: "task_too_old"}
        assert log.tasks[task.id] == task
    moved = define({"begin": finish}, version=2, migrate=lambda version, checkpoint: {"phase": "begin"})
    async with open_harness(moved, log=log) as harness:
        assert (await harness.wait_for_task(task.id)).result == "done"
        assert (await harness.session.task(task.id)).version == 2


async def test_a_checkpoint_resets_the_count_of_restarts() -> None:
    """Case 34."""
    log = MemoryLog()

    async def forward(task, runtime) -> None:
        await runtime.commit(lambda tx, task: Running(checkpoint={"phase": "next"}))

    async with open_harness(log=log) as harness:
        task = await create(harness)
        await harness.session.commit(lambda tx: tx.put_task(replace(task, restarts=4)))
    async with open_harness(define({"start": forward, "next": nothing}), log=log) as harness:
        await harness.wait_for_task(task.id)
    assert log.tasks[task.id].restarts == 0


@pytest.mark.parametrize("late", [False, True])
async def test_sleeping_over_a_reopening(late: bool) -> None:
    """Case 35: the deadline is kept: woken at it, or at once when it has passed."""
    log = MemoryLog()
    clock = [1000.0]
    until = 1_010_000

    async def start(task, runtime) -> None:
        await runtime.commit(lambda tx, task: Sleeping(checkpoint={"phase": "next"}, until=until))

    definition = define({"start": start, "next": finish})
    async with open_harness(definition, log=log, now=lambda: clock[0]) as harness:
        task = await create(harness)
        harness.resume()
        await harness.session.wait_until(lambda: harness.session.live_task(task.id).status == "sleeping" or None)
    clock[0] = 1070.0 if late else 1009.9
    async with open_harness(definition, log=log, now=lambda: clock[0]) as harness:
        harness.resume()
        if not late:
            await asyncio.sleep(0.02)
            assert harness.session.live_task(task.id).status == "sleeping"
            clock[0] = 1010.0
        assert (await harness.wait_for_task(task.id)).result == "done"
        assert log.tasks[task.id].ended_at == int(clock[0] * 1000)


async def test_waiting_on_oneself_or_an_owner_is_refused() -> None:
    """Case 36."""
    async with open_harness() as harness:
        parent = await create(harness)
        child = await create(harness, owner=parent.id)
        for task, on in ((child, child), (child, parent)):
            waiting = Waiting(checkpoint={"phase": "start"}, on=[on.id])
            with pytest.raises(InvalidRecordError, match="waits on itself or on its owner"):
                await harness.session.commit(lambda tx, t=task, w=waiting: tx.put_task(replace(t, state=w)))
        assert harness.session.live_tasks() == [parent, child]


async def test_an_owned_task_ends_before_its_owner() -> None:
    """Cases 39 and 43: abort code runs bottom-up; an owner that failed holds its outcome until what it owns is aborted."""
    order = []

    async def hang(task, runtime) -> None:
        await asyncio.sleep(3600)

    async def note_abort(task, runtime) -> None:
        order.append(task.kind)
        await stop(task, runtime)

    async def fail(task, runtime) -> None:
        await runtime.commit(lambda tx, task: Terminal(outcome=Outcome(status="failed", error="x")))

    definitions = (
        define(hang, kind="parent", abort=note_abort),
        define(hang, kind="child", abort=note_abort),
        define(fail, kind="failing"),
    )
    async with open_harness(*definitions) as harness:
        parent = await create(harness, "parent")
        await create(harness, "child", owner=parent.id)
        harness.resume()
        await asyncio.sleep(0)
        await harness.session.commit(lambda tx: harness.mark(tx, tx.get_task(parent.id)))
        assert (await harness.wait_for_task(parent.id)).status == "aborted"
        assert order == ["child", "parent"]
        held = []
        harness.session.observe(lambda c: held.extend(t.status for t in c.tasks if t.kind == "failing"))
        failing = await harness.session.commit(lambda tx: _with_child(tx))
        assert (await harness.wait_for_task(failing.id)).error == "x"
        assert held == ["pending", "running", "completing", "terminal"]
        assert order == ["child", "parent", "child"]


def _with_child(tx):
    failing = tx.create_task("failing", {"phase": "start"})
    tx.create_task("child", {"phase": "start"}, owner=failing.id)
    return failing


async def test_an_aborted_task_commits_no_more_of_its_run() -> None:
    """Case 41, and case 40 by the way: after the mark only the abort code writes."""
    refused = []
    entered = asyncio.Event()

    async def start(task, runtime) -> None:
        entered.set()
        try:
            await asyncio.sleep(3600)
        finally:
            with pytest.raises(CommitRejectedError):
                await runtime.commit(lambda tx, task: DONE)
            refused.append(True)

    async with open_harness(define(start)) as harness:
        task = await create(harness)
        harness.resume()
        await entered.wait()
        await harness.session.commit(lambda tx: harness.mark(tx, tx.get_task(task.id)))
        assert (await harness.wait_for_task(task.id)).status == "aborted"
        assert refused == [True]


async def test_children_of_an_owner_that_is_ending_are_refused() -> None:
    """Case 45."""
    async with open_harness() as harness:
        states = (
            lambda task: replace(task, abort_requested=True),
            lambda task: replace(task, state=Completing(outcome=DONE.outcome)),
            lambda task: replace(task, state=DONE),
        )
        for state in states:
            owner = await create(harness)
            await harness.session.commit(lambda tx, t=owner, s=state: tx.put_task(s(t)))
            with pytest.raises(InvalidRecordError, match="owner"):
                await create(harness, owner=owner.id)


async def test_closing_while_a_task_works() -> None:
    """Case 47: signalled and joined, no outcome written; the next opening takes it up as after a crash."""
    log = MemoryLog()
    entered = asyncio.Event()
    steps = []

    async def start(task, runtime) -> None:
        entered.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            steps.append("cleaned up")
            raise RuntimeError("turned into another error") from None

    harness = await open_harness(define(start), log=log)
    task = await create(harness)
    harness.resume()
    waiting = asyncio.create_task(harness.wait_for_task(task.id))
    await entered.wait()
    await harness.close()
    await harness.close()
    assert steps == ["cleaned up"]
    assert await harness.closed is None
    with pytest.raises(SessionClosedError):
        await waiting
    assert isinstance(log.tasks[task.id].state, Running)
    async with open_harness(define(), log=log) as harness:
        assert isinstance(harness.session.live_task(task.id).state, Pending)
        assert (await harness.wait_for_task(task.id)).result == "done"


async def test_tasks_start_in_id_order() -> None:
    """Rule 15: a recovery takes up the oldest first."""
    log = MemoryLog()
    order = []

    async def start(task, runtime) -> None:
        order.append(task.id)
        await finish(task, runtime)

    async with open_harness(log=log) as harness:
        ids = [(await create(harness)).id for _ in range(8)]
    async with open_harness(define(start), log=log, settings=change(Settings(), attempt=1)) as harness:
        for task_id in ids:
            await harness.wait_for_task(task_id)
    assert order == ids

"""The work queue: one worker at a key, no wake-up lost, failures later and later."""

import asyncio
import contextlib
import itertools

from durable_operator import queue as module
from durable_operator.limits import TokenBucket
from durable_operator.queue import RetryLater, WorkQueue


@contextlib.asynccontextmanager
async def running(work, workers=3):
    queue = WorkQueue(work, workers)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_key_is_worked_on_by_one_worker_and_looked_at_once_more():
    inside, looks = 0, 0
    gate, began, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(key):
        nonlocal inside, looks
        inside += 1
        assert inside == 1
        looks += 1
        (again if looks == 2 else began).set()
        await gate.wait()
        inside -= 1

    async with running(work) as queue:
        await queue.wake("a")
        await began.wait()
        for _ in range(5):
            await queue.wake("a")
        gate.set()
        async with asyncio.timeout(5):
            await again.wait()
        await asyncio.sleep(0.05)  # a third look would have begun by now
        assert looks == 2


async def test_other_keys_go_on_while_one_is_worked_on():
    done, gate = asyncio.Event(), asyncio.Event()

    async def work(key):
        if key == "slow":
            await gate.wait()
        else:
            done.set()

    async with running(work, workers=2) as queue:
        await queue.wake("slow")
        await queue.wake("quick")
        async with asyncio.timeout(5):
            await done.wait()
        assert queue.depth() == 1


async def test_an_earlier_wish_wins_and_a_later_one_is_dropped():
    seen = asyncio.Event()

    async def work(key):
        seen.set()

    async with running(work) as queue:
        await queue.wake("a", 60)
        await queue.wake("a", 0.01)
        await queue.wake("a", 30)
        async with asyncio.timeout(5):
            await seen.wait()
        assert not queue._due


async def test_a_look_that_fails_comes_again_later_each_time(monkeypatch):
    monkeypatch.setattr(module, "RETRY_SECONDS_FIRST", 0.01)
    looks, done = [], asyncio.Event()

    async def work(key):
        looks.append(asyncio.get_running_loop().time())
        if len(looks) < 4:
            raise ValueError("no")
        done.set()

    async with running(work) as queue:
        await queue.wake("a")
        async with asyncio.timeout(5):
            await done.wait()
        gaps = [later - before for before, later in itertools.pairwise(looks)]
        assert gaps[0] >= 0.01
        assert gaps[2] >= 0.04
        assert not queue._failures


async def test_a_wish_for_later_is_no_failure():
    looks, done = 0, asyncio.Event()

    async def work(key):
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RetryLater(0.01)
        done.set()

    async with running(work) as queue:
        await queue.wake("a")
        async with asyncio.timeout(5):
            await done.wait()
        assert not queue._failures


def test_a_bucket_lets_a_burst_through_and_then_one_at_a_time():
    now = 0.0
    bucket = TokenBucket(2, 5.0, clock=lambda: now)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    now = 4.9
    assert not bucket.available()
    now = 5.1
    assert [bucket.take() for _ in range(2)] == [True, False]

"""Turns in a Space: one call at a time, the interrupted one first, the others in their order."""

from __future__ import annotations

import asyncio

from durable_spaces.turnstile import VISITOR, Turnstile


async def settle() -> None:
    """Let everything that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def takes_turn(turn: Turnstile, task: int, order: list[int]) -> None:
    await turn.acquire(task)
    order.append(task)
    turn.release()


async def test_the_calls_of_a_round_go_in_their_order_whatever_woke_first() -> None:
    turn, order = Turnstile(), list[int]()
    await turn.acquire(1)
    waiting = [asyncio.create_task(takes_turn(turn, task, order)) for task in (4, 2, 3)]
    await settle()
    turn.release()
    await asyncio.gather(*waiting)
    assert order == [2, 3, 4]


async def test_the_interrupted_call_goes_first_although_it_comes_last() -> None:
    turn, order = Turnstile(), list[int]()
    turn.expect(7)
    others = [asyncio.create_task(takes_turn(turn, task, order)) for task in (VISITOR, 5)]
    await settle()
    assert order == [], "a call ran before the interrupted one was recovered"
    await turn.acquire(7)
    order.append(7)
    turn.expect(None)
    await settle()
    assert order == [7]
    turn.release()
    await asyncio.gather(*others)
    assert order == [7, VISITOR, 5]


async def test_an_interrupted_call_that_never_comes_holds_nobody_up_once_it_is_given_up() -> None:
    turn, order = Turnstile(), list[int]()
    turn.expect(7)
    other = asyncio.create_task(takes_turn(turn, 8, order))
    await settle()
    turn.expect(None)
    await other
    assert order == [8]


async def test_cancelled_while_waiting_leaves_the_turn_to_others() -> None:
    turn, order = Turnstile(), list[int]()
    await turn.acquire(1)
    given_up = asyncio.create_task(takes_turn(turn, 2, order))
    patient = asyncio.create_task(takes_turn(turn, 3, order))
    await settle()
    given_up.cancel()
    turn.release()
    await patient
    assert order == [3]


async def test_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    """Granted and cancelled in one step of the loop: the turn must not be lost with the caller."""
    turn, order = Turnstile(), list[int]()
    await turn.acquire(1)
    unlucky = asyncio.create_task(takes_turn(turn, 2, order))
    await settle()
    turn.release()  # 1: the turn is granted to 2, which has not run yet
    unlucky.cancel()  # 2: 2 is cancelled before it knows
    async with asyncio.timeout(5):
        await turn.acquire(3)  # 3: nobody else may be kept out
    assert order == []

"""The moments of a chaos run follow from its seed, and each is at work that still goes on."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from durable_local.faults import TARGETS, delay, plan_faults

SEEDS = st.integers(0, 2**32)
STEPS = st.integers(1, 200)


@given(SEEDS, STEPS)
def test_every_target_is_killed_as_often_as_asked_and_in_the_order_of_steps(seed: int, steps: int) -> None:
    faults = plan_faults(seed, steps)
    assert Counter(fault.target for fault in faults) == Counter(TARGETS)
    assert [fault.step for fault in faults] == sorted(fault.step for fault in faults)
    assert all(1 <= fault.step <= max(steps - 2, 1) for fault in faults)


@given(SEEDS, STEPS)
def test_a_seed_asks_for_the_same_run_again(seed: int, steps: int) -> None:
    assert plan_faults(seed, steps) == plan_faults(seed, steps)


def test_seeds_differ() -> None:
    assert len({plan_faults(seed, 10) for seed in range(50)}) == 50


def test_near_the_end_nothing_is_waited_for() -> None:
    (first, *_) = (fault for seed in range(20) for fault in plan_faults(seed, 10) if fault.seconds > 0.5)
    assert delay(first, 4, 10) == first.seconds
    assert delay(first, 9, 10) <= 0.05

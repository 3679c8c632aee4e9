"""The table of a command's states: every combination of facts has one answer, and the promises hold for all of them."""

from __future__ import annotations

from itertools import product

import pytest

from durable_space.rows import key_of
from durable_space.states import Facts, State, judge

RUNNING = Facts(
    killed=False,
    never_started=False,
    stopping=False,
    same_boot=True,
    claimed=True,
    shim_alive=True,
    exit_recorded=False,
)


def _with(**changes: bool) -> Facts:
    return Facts(**{**{name: getattr(RUNNING, name) for name in RUNNING.__slots__}, **changes})


ROWS = {
    "running": (RUNNING, State.RUNNING),
    "exited": (_with(exit_recorded=True, shim_alive=False), State.EXITED),
    "exited-and-its-descendants-live": (_with(exit_recorded=True), State.EXITED),
    "shim-killed": (_with(shim_alive=False), State.LOST),
    "never-claimed": (_with(claimed=False, shim_alive=False), State.RESERVED),
    "barred": (_with(claimed=False, shim_alive=False, never_started=True), State.NEVER_STARTED),
    "killed-then-clean-exit": (_with(killed=True, exit_recorded=True), State.KILLED),
    "exit-after-stop": (_with(stopping=True, exit_recorded=True), State.LOST),
    "exit-record-of-another-boot": (_with(same_boot=False, exit_recorded=True, shim_alive=False), State.LOST),
    "reserved-in-another-boot": (_with(same_boot=False, claimed=False, shim_alive=False), State.LOST),
}


@pytest.mark.parametrize(("facts", "state"), ROWS.values(), ids=ROWS)
def test_row(facts: Facts, state: State) -> None:
    assert judge(facts) is state


def test_promises_hold_for_every_combination_of_facts() -> None:
    """Rules 9, 10 and 13: an exit counts only in this boot, unkilled, not told to stop; RESERVED only if it may start."""
    names = list(RUNNING.__slots__)
    for values in product((True, False), repeat=len(names)):
        facts = Facts(**dict(zip(names, values, strict=True)))
        state = judge(facts)
        if state is State.EXITED:
            assert facts.exit_recorded
            assert facts.same_boot
            assert not facts.killed
            assert not facts.stopping
        if state is State.RESERVED:
            assert facts.same_boot
            assert not facts.claimed
            assert not facts.never_started
        assert not facts.killed or state is State.KILLED
        assert state is not State.RUNNING or facts.shim_alive


@pytest.mark.parametrize(
    ("request_id", "key"),
    [
        ("log/1:2:0@7", "log/1:2:0"),
        ("log/1:2:0", "log/1:2:0"),
        ("a@b@12", "a@b"),
        ("a@b", "a@b"),
        ("a@", "a@"),
        ("", ""),
    ],
)
def test_key_is_the_request_id_without_its_epoch(request_id: str, key: str) -> None:
    """Rule 6."""
    assert key_of(request_id) == key

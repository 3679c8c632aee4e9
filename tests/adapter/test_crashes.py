"""The driver is killed at every line that made something durable: the session ends as if it had not been (I1, I5, I6)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import durable_spaces
from durable_spaces.image import Table
from durable_spaces.testing import check_promises, crash_points, read_results, read_tree

SEED = 20260801  # of the sample of pairs
PAIRS = 8

SCRIPT = """\
steps:
  - say: First a look.
    calls:
      - read: {path: calc.txt}
  - calls:
      - write: {path: notes/plan.txt, content: "read, then change\\n"}
  - calls:
      # mkdir fails where a half run is not undone, >> adds a second line where a whole one is repeated.
      - bash: {command: "mkdir build && echo one >> log.txt && sleep 0.15 && echo done > build/out && chmod 750 build"}
  - calls:
      - edit: {path: calc.txt, old_text: "2", new_text: "three"}
  - calls:
      - bash: {command: "echo two >> log.txt; ln -s ../calc.txt build/link; rm -r old"}
      - write: {path: log2.txt, content: "second\\n"}
      - bash: {command: "cat log.txt log2.txt > sum.txt; wc -l < sum.txt"}
  - expect: "3"
    calls:
      - bash: {command: "echo three >> log.txt; exit 3"}
  - expect: "exit code 3"
    answer: All is done.
"""

ON_THE_WAY = (
    "adapter.epoch_advanced",
    "adapter.mark_committed",
    "adapter.command_started",
    "adapter.command_exited",
    "adapter.scanned",
    "adapter.outcome_committed",
)
IN_A_RESTORE = (
    "adapter.decision_committed",
    "adapter.restoring_committed",
    "adapter.restored",
    "adapter.restore_committed",
)
HARNESS = ("harness.intent_committed", "harness.tool_returned", "harness.result_committed")


def seed(workspace: Path) -> None:
    (workspace / "calc.txt").write_text("1\n2\n")
    (workspace / "old").mkdir()
    (workspace / "old" / "run.sh").write_text("#!/bin/sh\n")
    (workspace / "old" / "run.sh").chmod(0o755)


@dataclass(frozen=True)
class Uninterrupted:
    tree: Table
    results: list[tuple[str, bool, str]]
    passed: Counter[str]  # how often each crash point

    def check(self, stage: Any) -> None:
        """Nothing tells the session from this one: neither its files nor what the model was told."""
        check_promises(stage.log, stage.workspace, self.tree)
        assert read_results(stage.log) == self.results


@pytest.fixture(scope="module")
def uninterrupted(make_module_stage: Callable[..., Any]) -> Uninterrupted:
    stage = make_module_stage(SCRIPT, seed)
    (drive,) = stage.to_the_end()
    assert (drive.code, drive.recoveries()) == (0, []), drive
    tree = read_tree(stage.workspace)
    check_promises(stage.log, stage.workspace, tree)
    assert (stage.workspace / "log.txt").read_text() == "one\ntwo\nthree\n"
    return Uninterrupted(tree, read_results(stage.log), drive.passed)


def test_the_crash_points_known_here_are_those_of_the_sources() -> None:
    assert sorted(ON_THE_WAY + IN_A_RESTORE) == crash_points(Path(durable_spaces.__file__).parent, "adapter.")


# At which pass of the point the next drive is killed: its first one where the recovery of the call does not pass it again.
NEXT_PASS = {
    "adapter.mark_committed": 2,
    "adapter.command_started": 1,  # the command is attached to, or was replayed
    "adapter.command_exited": 2,
    "adapter.scanned": 2,
    "adapter.outcome_committed": 1,  # it is adopted
    "harness.intent_committed": 1,
    "harness.tool_returned": 2,
    "harness.result_committed": 1,
}


@pytest.mark.parametrize(("point", "next_pass"), NEXT_PASS.items())
def test_killed_at_every_pass_of_a_point(
    make_stage: Callable[..., Any], uninterrupted: Uninterrupted, point: str, next_pass: int
) -> None:
    """One driver dies in the first call, the next one recovers it and dies in the second, and so on to the end."""
    passes = uninterrupted.passed[point]
    assert passes, f"{point} is never reached: nothing would be tested"
    stage = make_stage(SCRIPT, seed)
    drives = stage.to_the_end(f"{point}:1", *[f"{point}:{next_pass}"] * passes)
    # The calls of a round commit their intents side by side: the kill at one may find another's stored as well.
    together = 2 if point == "harness.intent_committed" else 0
    assert passes - together <= sum(drive.killed for drive in drives) <= passes, drives
    assert drives[-1].code == 0, drives[-1]
    uninterrupted.check(stage)


def pairs() -> list[tuple[str, str]]:
    """A crash, then a crash in the recovery of it: those inside a restore whole, of the others a seeded sample."""
    # A write that has its mark and no outcome is undone: that is what brings a recovery into a restore.
    inside = [("adapter.scanned:1", point) for point in IN_A_RESTORE]
    others = [
        (f"{first}:{number}", second)
        for first in ON_THE_WAY[1:]
        for number in (1, 2, 3, 4)
        for second in (*ON_THE_WAY, *HARNESS[1:])
    ]
    return inside + random.Random(SEED).sample(others, PAIRS)


@pytest.mark.parametrize(("first", "second"), pairs())
def test_killed_and_killed_again_in_the_recovery(
    make_stage: Callable[..., Any], uninterrupted: Uninterrupted, first: str, second: str
) -> None:
    stage = make_stage(SCRIPT, seed)
    drives = stage.to_the_end(first, second)
    assert drives[0].killed, drives[0]
    assert len(drives) == 2 or drives[1].killed, drives[1]
    if second in IN_A_RESTORE:
        assert drives[1].killed, f"{second} was never reached: nothing was tested"
    assert drives[-1].code == 0, drives[-1]
    uninterrupted.check(stage)

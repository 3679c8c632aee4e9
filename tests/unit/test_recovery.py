"""Recovery of an interrupted call in transactional mode: row by row, and the promises over every combination of facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import pytest

from durable_spaces.recovery import (
    CallFacts,
    Command,
    Kind,
    Place,
    Progress,
    Record,
    Then,
    Workspace,
    decide_recovery,
    judge_command,
    judge_place,
)

LOST = CallFacts(progress=Progress.MARKED, place=Place.SAME, lease_moved=False, command=Command.LOST)
ROWS = {
    "no-mark": (replace(LOST, progress=Progress.NOTHING), Kind.RUN, Workspace.KEEP, Then.RUN),
    "no-mark-lost-space": (
        replace(LOST, progress=Progress.NOTHING, place=Place.OTHER_INSTANCE),
        Kind.REIMAGED,
        Workspace.RESTORE,
        Then.RUN,
    ),
    "never-started": (replace(LOST, command=Command.NEVER_STARTED), Kind.RUN, Workspace.RESTORE, Then.RUN),
    "still-running": (replace(LOST, command=Command.RUNNING), Kind.REATTACHED, Workspace.KEEP, Then.ATTACH),
    "exited": (replace(LOST, command=Command.EXITED), Kind.REPLAYED, Workspace.KEEP, Then.ATTACH),
    "lost": (LOST, Kind.REVERTED, Workspace.RESTORE, Then.RUN),
    "killed": (replace(LOST, command=Command.KILLED), Kind.REVERTED, Workspace.RESTORE, Then.RUN),
    "file-tool-cut-off": (replace(LOST, command=Command.NOT_ASKED), Kind.REVERTED, Workspace.RESTORE, Then.RUN),
    "exited-then-lost-space": (
        replace(LOST, command=Command.EXITED, place=Place.OTHER_INSTANCE),
        Kind.REIMAGED,
        Workspace.RESTORE,
        Then.RUN,
    ),
    "exited-then-reboot": (
        replace(LOST, command=Command.EXITED, place=Place.OTHER_BOOT),
        Kind.REVERTED,
        Workspace.RESTORE,
        Then.RUN,
    ),
    "outcome": (replace(LOST, progress=Progress.OUTCOME), Kind.ADOPTED, Workspace.RESTORE, Then.RECORD),
    "outcome-then-lost-space": (
        replace(LOST, progress=Progress.OUTCOME, place=Place.OTHER_INSTANCE),
        Kind.ADOPTED,
        Workspace.RESTORE,
        Then.RECORD,
    ),
    "outcome-then-lease-moved": (
        replace(LOST, progress=Progress.OUTCOME, lease_moved=True),
        Kind.ADOPTED,
        Workspace.KEEP,
        Then.RECORD,
    ),
    "recovery-died-in-restore": (
        replace(LOST, progress=Progress.RERUN, place=Place.UNSURE, command=Command.EXITED),
        Kind.REVERTED,
        Workspace.RESTORE,
        Then.RUN,
    ),
    "recovery-died-before-new-mark": (
        replace(LOST, progress=Progress.RERUN, command=Command.EXITED),
        Kind.REVERTED,
        Workspace.RESTORE,
        Then.RUN,
    ),
    "lease-moved": (
        replace(LOST, lease_moved=True, command=Command.KILLED),
        Kind.HANDED_OVER,
        Workspace.REBASE,
        Then.INTERRUPT,
    ),
    "lease-moved-and-space-lost": (
        replace(LOST, lease_moved=True, place=Place.OTHER_INSTANCE),
        Kind.HANDED_OVER,
        Workspace.RESTORE,
        Then.INTERRUPT,
    ),
    "interrupted-decided": (
        replace(LOST, progress=Progress.INTERRUPTED, lease_moved=True),
        Kind.HANDED_OVER,
        Workspace.KEEP,
        Then.INTERRUPT,
    ),
}


@pytest.mark.parametrize(("facts", "kind", "workspace", "then"), ROWS.values(), ids=ROWS)
def test_row(facts: CallFacts, kind: Kind, workspace: Workspace, then: Then) -> None:
    got = decide_recovery(facts)
    assert (got.kind, got.workspace, got.then) == (kind, workspace, then)


def every() -> Iterator[CallFacts]:
    for progress, place, moved, command in product(Progress, Place, (False, True), Command):
        yield CallFacts(progress=progress, place=place, lease_moved=moved, command=command)


EFFECT_POSSIBLE = {Progress.MARKED, Progress.RERUN}


def test_every_combination_has_one_answer_with_a_stable_reason() -> None:
    for facts in every():
        assert decide_recovery(facts).reason.isidentifier(), facts


def test_i1_a_recorded_outcome_is_the_result_and_its_effects_are_not_made_again() -> None:
    for facts in every():
        if facts.progress is Progress.OUTCOME:
            assert decide_recovery(facts).then is Then.RECORD, facts


def test_i1_an_interrupted_call_leaves_nothing_but_what_another_session_may_have_built_on() -> None:
    for facts in every():
        got = decide_recovery(facts)
        if got.then is Then.INTERRUPT:
            assert facts.lease_moved or facts.progress is Progress.INTERRUPTED, f"no one asked for it: {facts}"
        if got.workspace is Workspace.REBASE:
            assert facts.lease_moved, f"half an effect would become the base: {facts}"
            assert got.then is Then.INTERRUPT, facts


def test_i2_nothing_runs_again_over_its_own_effects() -> None:
    for facts in every():
        got = decide_recovery(facts)
        if got.then is Then.RUN and facts.progress in EFFECT_POSSIBLE:
            assert got.workspace is Workspace.RESTORE, f"started a second time without an undo: {facts}"


def test_i2_a_ledger_speaks_only_for_its_own_instance_and_boot_and_without_a_decision() -> None:
    for facts in every():
        got = decide_recovery(facts)
        if got.then is Then.ATTACH:
            assert facts.place is Place.SAME, facts
            assert facts.progress is Progress.MARKED, facts
            assert not facts.lease_moved, facts
        if facts.place is not Place.SAME or facts.progress is not Progress.MARKED:
            others = {decide_recovery(replace(facts, command=command)) for command in Command}
            assert len(others) == 1, f"the ledger was listened to: {facts}"


def test_i3_no_restore_under_a_command_that_is_waited_for() -> None:
    for facts in every():
        got = decide_recovery(facts)
        assert not (got.workspace is not Workspace.KEEP and got.then is Then.ATTACH), facts


def test_i6_a_space_that_is_not_the_logs_is_made_equal_before_anything_else() -> None:
    for facts in every():
        got = decide_recovery(facts)
        if facts.place is Place.OTHER_INSTANCE or (facts.place is not Place.SAME and not facts.lease_moved):
            assert got.workspace is Workspace.RESTORE, facts


def test_i5_a_decision_is_kept_whatever_changed_since() -> None:
    for facts in every():
        if facts.progress is Progress.INTERRUPTED:
            assert decide_recovery(facts).then is Then.INTERRUPT, facts


# ---- the ledger's rows


def record(epoch: int, state: Command = Command.EXITED, *, owner: int | None = None, command: str = "h") -> Record:
    return Record(f"k@{epoch}", epoch, owner or epoch, state, command)


def judge(records: list[Record], *, mark: int = 1, void: int = 0, own: int = 2, command: str | None = "h") -> Command:
    got = {
        judge_command(list(order), request_id=f"k@{mark}", command_hash=command, void=void, own_epoch=own)
        for order in permutations(records)
    }
    assert len(got) == 1, "the order of the rows decided"
    return got.pop()


def test_a_tool_that_is_not_one_command_has_no_row_to_ask_for() -> None:
    assert judge([record(1)], command=None) is Command.NOT_ASKED


def test_no_row_means_never_started() -> None:
    assert judge([]) is Command.NEVER_STARTED


@pytest.mark.parametrize("state", [Command.NEVER_STARTED, Command.EXITED, Command.LOST, Command.KILLED])
def test_the_marked_row_is_believed(state: Command) -> None:
    assert judge([record(1, state)]) is state


def test_a_row_below_void_is_not_believed() -> None:
    assert judge([record(1)], mark=2, void=2, own=3) is Command.NEVER_STARTED


def test_a_row_of_another_command_is_lost() -> None:
    assert judge([record(1, command="other")]) is Command.LOST


def test_a_newer_row_than_the_mark_is_lost() -> None:
    assert judge([record(1), record(2, Command.NEVER_STARTED)]) is Command.LOST


def test_running_counts_only_under_this_epoch() -> None:
    assert judge([record(1, Command.RUNNING, owner=2)]) is Command.RUNNING
    assert judge([record(1, Command.RUNNING)]) is Command.KILLED


# ---- the Space


@pytest.mark.parametrize(
    ("found", "found_seq", "restoring", "place"),
    [
        (("i", "b"), 7, False, Place.SAME),
        (("i", "b"), 7, True, Place.UNSURE),
        (("i", "c"), 7, False, Place.OTHER_BOOT),
        (("i", "c"), 7, True, Place.OTHER_BOOT),
        (("j", "b"), 7, False, Place.OTHER_INSTANCE),
        (("i", "b"), 6, False, Place.OTHER_INSTANCE),
        (("i", "b"), 8, False, Place.SAME),
    ],
)
def test_place(found: tuple[str, str], found_seq: int, restoring: bool, place: Place) -> None:
    got = judge_place(recorded=("i", "b"), found=found, ledger_seq=7, found_seq=found_seq, restoring=restoring)
    assert got is place


def test_before_the_first_call_any_space_is_the_base() -> None:
    got = judge_place(recorded=None, found=("i", "b"), ledger_seq=0, found_seq=0, restoring=False)
    assert got is Place.SAME

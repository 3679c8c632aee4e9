"""What else can happen to a session: its Space dies, is lost, is used by others, or an old driver wakes up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slow_session import Slow, advance, until_exists

from durable_harness.inspect import LogReader
from durable_spaces.testing import DriverProcess, check_promises, read_image, read_tree

MakeStage = Callable[..., Any]


@pytest.fixture
def slow(make_stage: MakeStage, tmp_path: Path) -> Slow:
    wait = f"until [ -e {tmp_path}/gate ]; do sleep 0.05; done"
    script = f"""\
steps:
  - calls:
      - write: {{path: before.txt, content: "kept\\n"}}
  - calls:
      - bash: {{command: "echo started >> {tmp_path}/starts; echo said; mkdir half; {wait}; sleep 0.3; echo end >> half/log"}}
  - expect: said
    calls:
      - read: {{path: before.txt}}
  - expect: kept
    answer: Done.
"""
    return Slow(make_stage(script), tmp_path)


# ---- the daemon


def test_a_daemon_killed_in_mid_command_is_not_noticed(slow: Slow) -> None:
    stage = slow.stage
    with stage.driver(1) as driver:
        driver.wait_for_point("adapter.command_started")
        stage.daemon.kill()
        stage.daemon.start()
        slow.open_gate()
        drive = driver.wait()
    assert (drive.code, drive.recoveries()) == (0, []), drive
    assert slow.starts == 1
    slow.check()


def test_a_daemon_killed_under_a_dead_driver_loses_nothing(slow: Slow) -> None:
    stage = slow.stage
    with stage.driver(1, "adapter.command_started") as driver:
        driver.wait()
    stage.daemon.kill()
    slow.open_gate()
    stage.daemon.start()
    (drive,) = stage.to_the_end(first_epoch=2)
    assert drive.code == 0, drive
    assert drive.recoveries()[0][0] in ("reattached", "replayed")
    assert slow.starts == 1
    slow.check()


# ---- the command of a dead driver


def test_five_drivers_die_in_one_command_and_it_starts_once(slow: Slow) -> None:
    """Rule 21: each adopts it; one start, one result."""
    stage = slow.stage
    with stage.driver(1, "adapter.command_started") as driver:
        driver.wait()
    for epoch in range(2, 6):
        with stage.driver(epoch) as driver:
            driver.wait_for_event("recovery")
            driver.kill()
            assert driver.facts().recoveries() == [("reattached", "StillRunning")]
    slow.open_gate()
    (last,) = stage.to_the_end(first_epoch=6)
    assert last.code == 0, last
    assert slow.starts == 1
    slow.check()


def test_a_command_that_ended_without_a_driver_is_replayed(slow: Slow) -> None:
    stage = slow.stage
    slow.open_gate()
    with stage.driver(1, "adapter.command_exited") as driver:
        driver.wait()
    (drive,) = stage.to_the_end(first_epoch=2)
    assert (drive.code, drive.recoveries()) == (0, [("replayed", "ExitRecorded")]), drive
    assert slow.starts == 1
    slow.check()


def test_a_command_that_a_newer_epoch_killed_is_undone_and_runs_again(slow: Slow) -> None:
    """Rule 10: whatever its exit record says."""
    stage = slow.stage
    with stage.driver(1, "adapter.command_started") as driver:
        driver.wait()
    advance(stage, 2)
    slow.open_gate()
    (drive,) = stage.to_the_end(first_epoch=3)
    assert (drive.code, drive.recoveries()) == (0, [("reverted", "CommandKilled")]), drive
    assert slow.starts == 2
    slow.check()


# ---- the Space is lost


@pytest.mark.parametrize(
    ("crash", "recovery"),
    [
        ("adapter.mark_committed:1", ("reimaged", "OtherInstance")),
        ("adapter.command_exited:1", ("reimaged", "OtherInstance")),
        ("adapter.outcome_committed:2", ("adopted", "OutcomeRecorded")),
        ("harness.result_committed:1", ("reimaged", "OtherInstance")),  # between two calls
        ("harness.result_committed:2", ("reimaged", "OtherInstance")),  # before a read
    ],
)
def test_a_lost_space_comes_back_from_the_log_alone(slow: Slow, crash: str, recovery: tuple[str, str]) -> None:
    """I7: a new instance with an empty workspace and an empty ledger."""
    stage = slow.stage
    slow.open_gate()
    with stage.driver(1, crash) as driver:
        assert driver.wait().killed
    stage.daemon.replace()
    (drive,) = stage.to_the_end(first_epoch=2)
    assert (drive.code, drive.recoveries()) == (0, [recovery]), drive
    slow.check()


def test_a_space_lost_under_a_live_driver_halts_it_and_the_next_one_rebuilds(slow: Slow) -> None:
    """Rule 12: the channel redials by itself and meets a fresh Space, which refuses what is meant for the other."""
    stage = slow.stage
    with stage.driver(1) as driver:
        driver.wait_for_point("adapter.command_started")
        stage.daemon.replace()
        drive = driver.wait()
    assert drive.code == 1, drive
    assert drive.events[-1]["reason"] == "SpaceChanged"
    slow.open_gate()
    (drive,) = stage.to_the_end(first_epoch=2)
    assert (drive.code, drive.recoveries()) == (0, [("reimaged", "OtherInstance")]), drive
    slow.check()


def test_a_space_lost_in_the_middle_of_a_restore_is_restored_from_the_log(slow: Slow) -> None:
    """Rule 3: what a half-done restore has not written yet is never read as the user's deletions."""
    stage = slow.stage
    slow.open_gate()
    with stage.driver(1, "adapter.mark_committed:2") as driver:
        driver.wait()
    stage.daemon.replace()
    with stage.driver(2, "adapter.restoring_committed") as driver:
        assert driver.wait().killed
    stage.daemon.replace()
    with stage.driver(3, "adapter.restored") as driver:
        assert driver.wait().killed
    (drive,) = stage.to_the_end(first_epoch=4)
    assert (drive.code, drive.recoveries()) == (0, [("reimaged", "DecisionRecorded")]), drive
    slow.check()


# ---- others in the Space


def test_what_a_person_changes_between_calls_stays_and_gets_into_the_image(slow: Slow) -> None:
    stage = slow.stage
    slow.open_gate()
    with stage.driver(1, "harness.result_committed:1") as driver:
        driver.wait()
    (stage.workspace / "mine.txt").write_text("by hand\n")
    (drive,) = stage.to_the_end(first_epoch=2)
    assert (drive.code, drive.recoveries()) == (0, []), drive
    tree = read_tree(stage.workspace)
    assert b"mine.txt" in tree
    check_promises(stage.log, stage.workspace, tree)


def test_what_a_person_changed_before_a_call_is_not_undone_with_the_call(slow: Slow) -> None:
    stage = slow.stage
    slow.open_gate()
    with stage.driver(1, "harness.result_committed:1") as driver:
        driver.wait()
    (stage.workspace / "mine.txt").write_text("by hand\n")
    with stage.driver(2, "adapter.command_started") as driver:
        driver.wait()
    stage.daemon.replace()
    (drive,) = stage.to_the_end(first_epoch=3)
    assert (drive.code, drive.recoveries()) == (0, [("reimaged", "OtherInstance")]), drive
    assert (stage.workspace / "mine.txt").read_text() == "by hand\n"
    check_promises(stage.log, stage.workspace, read_tree(stage.workspace))


def test_after_the_lease_moved_the_call_ends_interrupted_and_the_others_work_stays(make_stage: MakeStage) -> None:
    """Rule 22: nothing that another session did is undone."""
    stage = make_stage(
        """\
steps:
  - calls:
      - bash: {command: "mkdir half; sleep 30"}
  - expect: interrupted
    answer: I see.
"""
    )
    with stage.driver(1, "adapter.command_started", "--lease", "1") as driver:
        driver.wait()

    async def work(space: Any) -> None:
        await space.files.write(os.path.join(space.root, "theirs.txt"), b"theirs\n")

    advance(stage, 2, work)
    with stage.driver(3, "", "--lease", "3") as driver:
        drive = driver.wait()
    assert (drive.code, drive.recoveries()) == (0, [("handedOver", "LeaseMoved")]), drive
    tree = read_tree(stage.workspace)
    assert sorted(tree) == [b"half", b"theirs.txt"]
    check_promises(stage.log, stage.workspace, tree)


@pytest.mark.parametrize("decided", ["adapter.decision_committed", "harness.tool_returned"])
def test_an_interruption_that_was_decided_stands_although_the_next_driver_dies(
    make_stage: MakeStage, decided: str
) -> None:
    stage = make_stage(
        'steps:\n  - calls: [{bash: {command: "sleep 30"}}]\n  - {expect: interrupted, answer: I see.}\n'
    )
    with stage.driver(1, "adapter.command_started", "--lease", "1") as driver:
        driver.wait()
    with stage.driver(2, decided, "--lease", "2") as driver:
        assert driver.wait().killed
    with stage.driver(3, "", "--lease", "2") as driver:
        drive = driver.wait()
    assert (drive.code, drive.recoveries()) == (0, [("handedOver", "DecisionRecorded")]), drive


# ---- an old driver


@pytest.mark.parametrize(
    "point",
    [
        "adapter.epoch_advanced",
        "adapter.mark_committed",
        "adapter.command_started",
        "adapter.command_exited",
        "adapter.scanned",
        "adapter.outcome_committed",
        "harness.tool_returned",
    ],
)
def test_a_driver_that_wakes_after_a_newer_one_adds_nothing(slow: Slow, point: str) -> None:
    """I4: 1. e1 freezes; 2. e2 runs to the end; 3. e1 wakes: log and workspace stay as they are, and it exits 75."""
    stage = slow.stage
    slow.open_gate()
    with stage.driver(1, f"{point}=stop") as old:
        old.wait_for_point(point)
        (newer,) = stage.to_the_end(first_epoch=2)
        assert newer.code == 0, newer
        before = digest(stage)
        old.go_on()
        drive = old.wait()
    assert drive.code == 75, drive
    assert digest(stage) == before
    slow.check()


def digest(stage: Any) -> tuple[Any, ...]:
    with LogReader.open(stage.log) as reader:
        return reader.floor, reader.entries(), reader.tasks(), read_image(stage.log), read_tree(stage.workspace)


def test_of_two_drivers_with_one_epoch_one_goes_on(slow: Slow) -> None:
    """Rule 1: the second comes while the first works."""
    stage = slow.stage
    other = stage.folder / "second"
    other.mkdir()
    with stage.driver(1) as first:
        first.wait_for_point("adapter.epoch_advanced")
        with DriverProcess(stage.command(), 1, other) as second:
            assert second.wait().code == 75
        slow.open_gate()
        assert first.wait().code == 0
    slow.check()


# ---- limits and names


def test_a_workspace_beyond_the_limits_is_refused_before_the_call_and_names_the_remedy(make_stage: MakeStage) -> None:
    def many(folder: Path) -> None:
        for number in range(6):
            (folder / str(number)).touch()

    script = "steps:\n  - calls: [{write: {path: a, content: b}}]\n  - answer: Never.\n"
    stage = make_stage(script, many, "--transactional", '{"maxFiles": 5}')
    (drive,) = stage.to_the_end()
    assert drive.code == 78, drive
    assert drive.events[-1]["reason"] == "ImageOutgrown"
    said = drive.events[-1]["message"]
    assert "limits of 5 files and 16777216 bytes: 6 files and 0 bytes were counted" in said
    assert "start a new session with a higher `transactional.maxFiles`" in said
    assert "mode" not in said, "no other mode would take it"
    assert sorted(read_tree(stage.workspace)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_special_file_is_named_with_what_to_do_about_it_and_nothing_is_said_of_limits(make_stage: MakeStage) -> None:
    script = "steps:\n  - calls: [{write: {path: a, content: b}}]\n  - answer: Never.\n"
    stage = make_stage(script, lambda folder: os.mkfifo(folder / "pipe"))
    (drive,) = stage.to_the_end()
    assert (drive.code, drive.events[-1]["reason"]) == (78, "ImageOutgrown"), drive
    said = drive.events[-1]["message"]
    assert "1 special files, or names with a backslash or a line break: pipe)" in said
    assert "remove or rename it" in said
    assert "transactional.exclude" in said
    assert "maxFiles" not in said


def test_a_call_that_outgrows_the_image_has_its_result_and_is_the_last_one(make_stage: MakeStage) -> None:
    script = """\
steps:
  - calls: [{bash: {command: "touch 1 2 3 4; echo made"}}]
  - expect: made
    calls: [{write: {path: a, content: b}}]
  - answer: Never.
"""
    options = ("--transactional", '{"maxFiles": 3}', "--mode", "transactional")
    stage = make_stage(script, lambda folder: None, *options)
    (drive,) = stage.to_the_end()
    assert (drive.code, drive.events[-1]["reason"]) == (78, "ImageOutgrown"), drive
    with LogReader.open(stage.log) as reader:
        assert [call.entry_id is not None for call in reader.tool_calls()] == [True, False]


def test_excluded_folders_are_neither_recorded_nor_undone(make_stage: MakeStage) -> None:
    script = """\
steps:
  - calls: [{bash: {command: "mkdir -p cache/x && touch cache/x/y && mkfifo cache/pipe && echo a > a"}}]
  - answer: ok
"""
    stage = make_stage(script, lambda folder: None, "--transactional", '{"exclude": ["cache"]}')
    (drive,) = stage.to_the_end()
    assert drive.code == 0, drive
    assert sorted(read_image(stage.log)) == [b"a"]
    assert (stage.workspace / "cache" / "x" / "y").exists()


def test_a_pipe_that_a_killed_command_left_is_undone_with_the_rest(make_stage: MakeStage, tmp_path: Path) -> None:
    wait = f"until [ -e {tmp_path}/gate ]; do sleep 0.05; done"
    script = f"""\
steps:
  - calls: [{{bash: {{command: "mkdir d; mkfifo d/pipe; {wait}; rm d/pipe; echo said > d/f"}}}}]
  - answer: ok
"""
    stage = make_stage(script)
    with stage.driver(1) as driver:
        driver.wait_for_point("adapter.command_started")
        until_exists(stage.workspace / "d" / "pipe")
        driver.kill()
    advance(stage, 2)
    (tmp_path / "gate").touch()
    (drive,) = stage.to_the_end(first_epoch=3)
    assert (drive.code, drive.recoveries()) == (0, [("reverted", "CommandKilled")]), drive
    check_promises(stage.log, stage.workspace, read_tree(stage.workspace))
    assert sorted(read_tree(stage.workspace)) == [b"d", b"d/f"]

"""The protocol's rules from end to end: drivers and a daemon as processes, faults where each rule says that it would hurt."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slow_session import Slow, advance, until_exists

from durable_base.floor import Floor, new_incarnation
from durable_harness.inspect import LogReader
from durable_spaces import LocalSpaces
from durable_spaces.document import CUA_SPACE
from durable_spaces.limits import KEEPS_CHANGING
from durable_spaces.spaces import daemon_pid
from durable_spaces.testing import DriverProcess, check_promises, read_image, read_tree

MakeStage = Callable[..., Any]
BOOT = "from durable_space import identity\nidentity.boot_id = lambda: '{}' * 16\n"


def script_of(folder: Path) -> str:
    wait = f"until [ -e {folder}/gate ]; do sleep 0.05; done"
    return f"""\
steps:
  - calls:
      - write: {{path: before.txt, content: "kept\\n"}}
  - calls:
      - bash: {{command: "echo started >> {folder}/starts; echo said; mkdir half; {wait}; echo end >> half/log"}}
  - expect: said
    answer: Done.
"""


@pytest.fixture
def slow(make_stage: MakeStage, tmp_path: Path) -> Slow:
    return Slow(make_stage(script_of(tmp_path)), tmp_path)


# ---- one epoch, two drivers


def test_of_two_drivers_started_at_once_with_one_epoch_one_commits(slow: Slow) -> None:
    """Rule 1: same log, same Space; the other exits 75 and the floor is theirs."""
    slow.open_gate()
    other = slow.stage.folder / "second"
    other.mkdir()
    with slow.stage.driver(1) as first, DriverProcess(slow.stage.command(), 1, other) as second:
        drives = [first.wait(), second.wait()]
    assert sorted(drive.code for drive in drives) == [0, 75], drives
    assert slow.starts == 1
    with LogReader.open(slow.stage.log) as reader:
        assert reader.floor.epoch == 1
    slow.check()


def test_of_two_logs_with_one_epoch_on_one_space_the_second_is_refused_and_runs_above(
    slow: Slow, tmp_path: Path
) -> None:
    """Rules 1 and 14: the Space's floor is (1, the first driver); a new log's driver of epoch 1 gets 75 and invents none."""
    other = tmp_path / "other"
    other.mkdir()
    second = replace(slow.stage, folder=other)
    slow.open_gate()
    (first,) = slow.stage.to_the_end()
    assert first.code == 0, first
    with second.driver(1) as driver:
        assert driver.wait().code == 75
    assert slow.starts == 1
    with LogReader.open(second.log) as reader:
        assert reader.floor.epoch == 1


# ---- keys


def test_the_newest_start_mark_names_the_record_that_counts(slow: Slow) -> None:
    """Rule 6: (1) e1 dies after its mark and before its start. (2) e2 marks anew, starts, dies. (3) e3 looks for that one."""
    stage = slow.stage
    with stage.driver(1, "adapter.mark_committed:2") as driver:
        assert driver.wait().killed
    assert slow.starts == 0
    with stage.driver(2, "adapter.command_started") as driver:
        second = driver.wait()
    assert (second.killed, second.recoveries()) == (True, [("run", "NeverStarted")]), second
    slow.open_gate()
    (third,) = stage.to_the_end(first_epoch=3)
    assert third.code == 0, third
    assert third.recoveries()[0][0] in ("reattached", "replayed")
    assert slow.starts == 1
    slow.check()


def test_a_second_log_on_the_same_space_gets_no_result_of_the_first(slow: Slow, tmp_path: Path) -> None:
    """Rule 7: both ask for conversation 1, the same call, the same command; the key begins with the log's id. The second one's
    driver dies between mark and start, and what the next one finds for its key is nothing."""
    slow.open_gate()
    (first,) = slow.stage.to_the_end()
    assert first.code == 0, first
    other = tmp_path / "other"
    other.mkdir()
    second = replace(slow.stage, folder=other)
    shutil.rmtree(slow.stage.workspace / "half")
    with second.driver(2, "adapter.mark_committed:2") as driver:
        assert driver.wait().killed
    with LogReader.open(second.log) as reader:
        stored: Any = reader.document(CUA_SPACE.kind)
        key = stored["current"]["mark"]["key"]
        assert key.startswith(f"{reader.log_id}/1:"), key
    (drive,) = second.to_the_end(first_epoch=3)
    assert (drive.code, drive.recoveries()) == (0, [("run", "NeverStarted")]), drive
    assert slow.starts == 2
    check_promises(second.log, second.workspace, read_tree(second.workspace))
    with LogReader.open(slow.stage.log) as one, LogReader.open(second.log) as two:
        assert one.log_id != two.log_id


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a socket has at most 100 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="ls-"))
    yield folder
    shutil.rmtree(folder)


async def test_local_spaces_of_two_logs_are_two_spaces(short_folder: Path) -> None:
    """Rule 7: equal conversation ids, another log."""
    homes = []
    for log_id in ("a" * 32, "b" * 32):
        spaces = LocalSpaces(short_folder)
        client = await spaces.open(log_id, 1, Floor(1, new_incarnation()))
        try:
            homes.append((await client.info()).identity.instance)
        finally:
            await client.close()
            await spaces.close()
    assert len(set(homes)) == 2
    assert len(list(short_folder.iterdir())) == 2
    assert all(daemon_pid(home / "data") is None for home in short_folder.iterdir())


# ---- another boot, a Space that was rolled back


@pytest.mark.parametrize(
    ("crash", "recovery", "starts"),
    [
        ("adapter.command_exited:1", ("reverted", "OtherBoot"), 2),
        ("harness.result_committed:1", ("reverted", "OtherBoot"), 1),  # between two calls
        ("adapter.outcome_committed:2", ("adopted", "OutcomeRecorded"), 1),
    ],
)
def test_an_exit_record_that_outlived_its_files_is_undone_in_another_boot(
    slow: Slow, crash: str, recovery: tuple[str, str], starts: int
) -> None:
    """Rule 13: power loss keeps ledger and exit record and loses what was not synced; earlier files are zeroed, with size and
    times as they were, so only reading them tells."""
    stage = slow.stage
    stage.daemon.stop()
    stage.daemon.preface = BOOT.format("aa")
    stage.daemon.start()
    slow.open_gate()
    with stage.driver(1, crash) as driver:
        assert driver.wait().killed
    stage.daemon.kill()
    for path in [path for path in stage.workspace.rglob("*") if path.is_file()]:
        status = path.stat()
        with path.open("r+b") as file:
            file.write(b"\0" * status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    stage.daemon.preface = BOOT.format("bb")
    stage.daemon.start()
    (drive,) = stage.to_the_end(first_epoch=2)
    assert (drive.code, drive.recoveries()) == (0, [recovery]), drive
    assert slow.starts == starts
    slow.check()


def test_a_space_that_was_rolled_back_is_another_one(slow: Slow) -> None:
    """Rule 28: (1) A copy of ledger and files. (2) The session goes on. (3) The copy is put back: same instance, older rows.
    (4) The log's state is restored into it."""
    stage = slow.stage
    slow.open_gate()
    with stage.driver(1, "adapter.mark_committed:2") as driver:
        assert driver.wait().killed
    stage.daemon.stop()
    copy = stage.folder / "copy"
    for folder in (stage.daemon.data, stage.workspace):
        shutil.copytree(folder, copy / folder.name, symlinks=True)  # 1
    stage.daemon.start()
    with stage.driver(2, "harness.result_committed:1") as driver:
        assert driver.wait().killed  # 2
    stage.daemon.stop()
    for folder in (stage.daemon.data, stage.workspace):
        shutil.rmtree(folder)
        shutil.copytree(copy / folder.name, folder, symlinks=True)  # 3
    stage.daemon.start()
    (drive,) = stage.to_the_end(first_epoch=3)
    assert (drive.code, drive.recoveries()) == (0, [("reimaged", "OtherInstance")]), drive  # 4
    assert slow.starts == 1
    slow.check()


# ---- adoption


@pytest.mark.parametrize("point", ["epoch.ledger_synced", "epoch.floor_synced"])
def test_a_command_outlives_drivers_and_a_daemon_that_dies_between_move_and_kill(slow: Slow, point: str) -> None:
    """Rule 21: (1) e1 dies in a long command; so do e2 and e3, which adopt it. (2) The daemon dies inside e4's AdvanceEpoch:
    the row has moved, nothing is killed yet. (3) It comes back, e4 goes on by itself: one start, one result."""
    stage = slow.stage
    with stage.driver(1, "adapter.command_started") as driver:
        assert driver.wait().killed  # 1
    for epoch in (2, 3):
        with stage.driver(epoch) as driver:
            driver.wait_for_event("recovery")
            driver.kill()
            assert driver.facts().recoveries() == [("reattached", "StillRunning")]
    stage.daemon.kill()
    stage.daemon.start(crash_at=point)
    with stage.driver(4) as driver:
        assert stage.daemon.process is not None
        assert stage.daemon.process.wait(20) == -9  # 2
        stage.daemon.start()
        driver.wait_for_event("recovery")
        slow.open_gate()
        drive = driver.wait()  # 3
    assert (drive.code, drive.recoveries()) == (0, [("reattached", "StillRunning")]), drive
    assert slow.starts == 1
    slow.check()


# ---- directories and times


def killed_and_run_again(stage: Any, folder: Path, point: str) -> None:
    """The driver dies at `point`; once the command has made `made` a newer epoch kills it; it runs again with the gate open."""
    with stage.driver(1, point) as driver:
        driver.wait()
    until_exists(folder / "made")
    advance(stage, 2)
    (folder / "gate").touch()
    (drive,) = stage.to_the_end(first_epoch=3)
    assert (drive.code, drive.recoveries()) == (0, [("reverted", "CommandKilled")]), drive


def test_folders_that_a_killed_command_made_are_gone_before_it_runs_again(
    make_stage: MakeStage, tmp_path: Path
) -> None:
    """Rule 24: empty ones, nested ones; `mkdir` without -p fails where one was left."""
    wait = f"until [ -e {tmp_path}/gate ]; do sleep 0.05; done"
    stage = make_stage(
        f"""\
steps:
  - calls:
      - bash: {{command: "set -e; mkdir a; mkdir a/b a/b/c; mkdir -m 700 d; touch {tmp_path}/made; {wait}; echo x > a/b/f"}}
  - answer: Done.
"""
    )
    killed_and_run_again(stage, tmp_path, "adapter.command_started")
    tree = read_tree(stage.workspace)
    assert sorted(tree) == [b"a", b"a/b", b"a/b/c", b"a/b/f", b"d"]
    check_promises(stage.log, stage.workspace, tree)


def test_make_after_a_revert_does_what_it_does_without_a_crash(make_stage: MakeStage, tmp_path: Path) -> None:
    """Rule 24: times of files and folders are restored with them, so nothing that is up to date is built again."""
    if shutil.which("make") is None:
        pytest.skip("there is no make here")

    def seed(workspace: Path) -> None:
        (workspace / "Makefile").write_text("out: in\n\techo built >> log\n\tcp in out\n")
        (workspace / "in").write_text("one\n")

    once = f"[ -e {tmp_path}/gate ] || {{ echo two > in; rm out; touch {tmp_path}/made; sleep 60; }}"
    stage = make_stage(
        f"""\
steps:
  - calls: [{{bash: {{command: "make"}}}}]
  - calls: [{{bash: {{command: "{once}; make"}}}}]
  - answer: Done.
""",
        seed,
    )
    killed_and_run_again(stage, tmp_path, "adapter.command_started:2")
    assert (stage.workspace / "log").read_text() == "built\n"
    assert subprocess.run(["make", "-q"], cwd=stage.workspace, check=False).returncode == 0
    check_promises(stage.log, stage.workspace, read_tree(stage.workspace))


# ---- files that change under the reader

CHANGING = """
from durable_space.workspace.workspace import Workspace
left, read = [{times}], Workspace.read_blob
def read_a_moment_later(self, sha256):
    if left[0] and self._paths_of(sha256) == [b"noise"]:
        left[0] -= 1
        (self.root / "noise").write_text((self.root / "noise").read_text() + "more\\n")
    return read(self, sha256)
Workspace.read_blob = read_a_moment_later
"""


@pytest.mark.parametrize("times", [2, 1000], ids=["twice", "always"])
def test_a_file_that_changes_between_scan_and_reading_is_never_recorded_with_another_ones_hash(
    make_stage: MakeStage, times: int
) -> None:
    """Rule 37: it is scanned anew; what is still changing at the third attempt is no state to record."""
    stage = make_stage(
        """\
steps:
  - calls: [{bash: {command: "echo one > noise; echo two > other"}}]
  - calls: [{bash: {command: "cat other"}}]
  - answer: Done.
"""
    )
    stage.daemon.stop()
    stage.daemon.preface = CHANGING.format(times=times)
    stage.daemon.start()
    (drive,) = stage.to_the_end()
    if times == 2:
        assert drive.code == 0, drive
        assert (stage.workspace / "noise").read_text() == "one\nmore\nmore\n"
        check_promises(stage.log, stage.workspace, read_tree(stage.workspace))
    else:
        assert (drive.code, drive.events[-1]["reason"]) == (78, "ImageOutgrown"), drive
        assert KEEPS_CHANGING in drive.events[-1]["message"]
        assert read_image(stage.log) == {}

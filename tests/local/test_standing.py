"""What `durable get` and `describe` say of a session is true now, whatever its status said last."""

import ctypes
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durable_local import history, process
from durable_local.layout import DEFAULT_STATE, command

if TYPE_CHECKING:
    from conftest import Local


def row(local: "Local") -> str:
    head, line = local.command("get").splitlines()
    assert head.split()[:2] == ["NAME", "STATUS"]
    return line


def test_succeeded_and_failed_are_told_apart(local: "Local") -> None:
    local.manifest("e1=settle")
    local.run()
    assert row(local).split()[1] == "Succeeded"
    for word in ("suspend", "resume", "retry"):
        assert f"nothing to {word}" in local.refusal(word, "s")
    shutil.rmtree(local.home.path)
    local.manifest("e1=fail:MissingCapability")
    done = text_run(local)
    assert done.returncode == 1
    assert "PermanentFailure" not in done.stdout.partition("Failed ")[2]
    assert done.stderr.startswith("error: s: PermanentFailure: ")
    assert "Failed (PermanentFailure)" in row(local)
    assert "durable retry s" in local.command("describe", "s")
    for word in ("suspend", "resume"):
        assert "durable retry s" in local.refusal(word, "s")
    assert "Failed (PermanentFailure)" in row(local)


def test_a_bad_folder_hides_no_other_session_and_says_its_own_remedy(local: "Local") -> None:
    local.manifest("e1=settle")
    local.run()
    shutil.copytree(local.home.path, local.state / "copied")
    (local.state / "broken").mkdir()
    (local.state / "broken" / "state.db").write_bytes(b"no database, " * 1000)
    words = [sys.executable, "-m", "durable_cli", "get", "--state", str(local.state)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].split()[:2] == ["s", "Succeeded"]
    broken, copied = done.stderr.splitlines()
    assert broken.startswith(f"error: {local.state}/broken/state.db: the state is damaged (")
    assert f"remove {local.state}/broken" in broken
    assert "mode" not in broken
    assert copied.startswith(f"error: {local.state}/copied: its state is that of s, so it is no session 'copied'")
    assert "its state is that of s" in local.refusal("describe", "copied")
    assert "no session 'none'" in local.refusal("describe", "none")
    one = subprocess.run([*words[:-2], "broken", *words[-2:]], capture_output=True, text=True)
    assert (one.returncode, one.stdout) == (1, "")


@pytest.mark.parametrize("words", ["fail:MissingCapability", "exit:7", "kill"])
def test_an_end_has_one_reason_whoever_tells_of_it(local: "Local", words: str) -> None:
    local.manifest(f"e1={words}", "e2=settle")
    run = local.run()
    (gone,) = run.told("driver.gone", epoch=1)
    (told,) = [
        event for event in history.Follower(local.home, "s").news() if event.name == "driver.gone" and event.epoch == 1
    ]
    fields = ("reason", "code", "signal", "seconds")
    assert [told.fields.get(name) for name in fields] == [gone.get(name) for name in fields]
    (local.home.drive(1) / "judged").unlink()  # as if its coordinator had been killed first
    (alone,) = [
        event for event in history.Follower(local.home, "s").news() if event.name == "driver.gone" and event.epoch == 1
    ]
    assert alone.fields["reason"] == gone["reason"]


def test_a_damaged_log_is_told(local: "Local") -> None:
    local.manifest("e1=step settle")
    local.run()
    local.home.log.write_bytes(b"no database, " * 1000)
    words = [sys.executable, "-m", "durable_cli", "describe", "s", "--state", str(local.state)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert f"Log        {local.home.log} (DAMAGED)" in done.stdout
    assert done.stderr.startswith(f"warning: {local.home.log}: the log can't be read (not a database, or damaged (")


def text_run(local: "Local") -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "durable_cli", "run", str(local.folder / "s.yaml"), "--state", str(local.state)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_one_that_failed_is_told_to_be_tried_again_until_it_is(local: "Local") -> None:
    local.manifest("e1=fail:MissingCapability", "e2=settle")
    here = f"--state {local.state}"
    first = text_run(local)
    assert f"more: durable describe s {here}" in first.stderr
    second = text_run(local)
    assert second.returncode == 1
    assert f"has failed before (PermanentFailure); to try again: durable retry s {here}" in second.stdout
    assert "delete" not in second.stdout
    assert "epoch 1   driver" not in second.stdout, "what was told before is not told as if it were now"
    told = local.command("describe", "s").rpartition("Next: ")[2]
    for hint in (f"`durable retry s {here}`", f"`durable run MANIFEST {here}`", f"`durable delete s {here}`"):
        assert hint in told
    assert "Its input, agent, Space and mode never change" in told
    assert f"`durable run MANIFEST {here}`" in local.command("retry", "s")
    assert "Stopped (to be tried again)" in row(local)
    third = text_run(local)
    assert third.returncode == 0, third.stderr
    assert "had failed (PermanentFailure); is tried again, on the same log" in third.stdout
    assert "delete" not in third.stdout
    assert [line.split()[2] for line in third.stdout.splitlines() if "driver started" in line] == ["2"]
    assert row(local).split()[1] == "Succeeded"
    assert f"was finished before; to begin anew: durable delete s {here}" in text_run(local).stdout


def test_a_hint_names_the_state_folder_only_where_it_must() -> None:
    assert command(DEFAULT_STATE, "retry", "s") == "durable retry s"
    assert command(Path("my state"), "run", "a.yaml") == "durable run a.yaml --state 'my state'"


def test_one_that_runs_is_stopped_after_an_interruption(local: "Local") -> None:
    local.manifest("e1=step wait")
    run = local.start()
    local.until(lambda: run.told("session.ready", reason="Driving"))
    assert row(local).split()[1] == "Running"
    run.child.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert row(local).split()[1] == "Stopped"
    story = local.command("describe", "s")
    assert "Status     Stopped" in story
    assert "Driving" not in story
    assert f"go on with: `durable run MANIFEST --state {local.state}`" in story


def test_a_driver_without_its_coordinator_is_unattended(local: "Local", tmp_path: Path) -> None:
    local.manifest(f"e1=until:{tmp_path / 'go'} settle")
    run = local.start()
    local.until(lambda: local.driver_runs(1))
    run.child.kill()
    run.end()
    assert row(local).split()[1] == "Unattended"
    (tmp_path / "go").touch()
    assert local.run().child.returncode == 0


def test_suspend_ends_a_driver_that_nobody_attends(local: "Local") -> None:
    """1. The coordinator is killed. 2. `suspend` ends its driver and its Space. 3. Resumed, the next drive goes on."""
    local.manifest("e1=step wait", "e2=settle")
    run = local.start()
    local.until(lambda: local.driver_runs(1))
    run.child.kill()
    run.end()
    assert "s suspended; go on with" in local.command("suspend", "s")
    assert history.running(local.home) == []
    assert process.look(local.home.drive(1)).code == 143
    assert row(local).split()[1] == "Suspended"
    local.command("resume", "s")
    assert local.run().child.returncode == 0
    assert row(local).split()[1] == "Succeeded"
    assert local.status().get("countedAttempts", 0) == 0, "a pause is no attempt that counts"


def test_one_that_ended_with_nobody_there_is_not_suspended(local: "Local", tmp_path: Path) -> None:
    local.manifest(f"e1=until:{tmp_path / 'go'} settle")
    run = local.start()
    local.until(lambda: local.driver_runs(1))
    run.child.kill()
    run.end()
    (tmp_path / "go").touch()
    local.until(lambda: not history.driving(local.home))
    assert "Stopped (its driver has ended with an answer)" in row(local)
    assert "come to the end" in local.refusal("suspend", "s")
    assert local.run().child.returncode == 0
    assert row(local).split()[1] == "Succeeded"


def test_a_suspended_one_is_told_how_to_go_on(local: "Local") -> None:
    local.manifest("e1=step wait")
    run = local.start()
    local.until(lambda: local.driver_runs(1))
    local.command("suspend", "s")
    assert run.end() == 0
    assert row(local).split()[1] == "Suspended"
    assert "durable resume s" in local.command("describe", "s")


def test_a_folder_that_may_not_be_written_keeps_its_session(local: "Local") -> None:
    local.manifest("e1=settle")
    local.run()
    local.home.path.chmod(0o500)
    words = [sys.executable, "-m", "durable_cli", "delete", "s", "--state", str(local.state)]
    try:
        done = subprocess.run(words, preexec_fn=without_override, capture_output=True, text=True)
    finally:
        local.home.path.chmod(0o700)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {local.home.path}: ")
    assert "Check its owner and mode" in line
    assert row(local).split()[1] == "Succeeded"


def without_override() -> None:
    """Between fork and exec: root loses the right to write what modes forbid."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE

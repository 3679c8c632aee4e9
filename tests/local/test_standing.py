"""What `durable get` and `describe` say of a session is true now, whatever its status said last."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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
    for command in ("suspend", "resume", "retry"):
        assert f"nothing to {command}" in local.refusal(command, "s")
    shutil.rmtree(local.home.path)
    local.manifest("e1=fail:MissingCapability")
    command = [sys.executable, "-m", "durable_cli", "run", str(local.folder / "s.yaml"), "--state", str(local.state)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "PermanentFailure" not in done.stdout.partition("Failed ")[2]
    assert done.stderr.startswith("error: s: PermanentFailure: ")
    assert "Failed (PermanentFailure)" in row(local)
    assert "durable retry s" in local.command("describe", "s")
    for command in ("suspend", "resume"):
        assert "durable retry s" in local.refusal(command, "s")
    assert "Failed (PermanentFailure)" in row(local)


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
    assert "go on with: `durable run`" in story


def test_a_driver_without_its_coordinator_is_unattended(local: "Local", tmp_path: Path) -> None:
    local.manifest(f"e1=until:{tmp_path / 'go'} settle")
    run = local.start()
    local.until(lambda: local.driver_runs(1))
    run.child.kill()
    run.end()
    assert row(local).split()[1] == "Unattended"
    (tmp_path / "go").touch()
    assert local.run().child.returncode == 0


def test_a_suspended_one_is_told_how_to_go_on(local: "Local") -> None:
    local.manifest("e1=step wait")
    run = local.start()
    local.until(lambda: local.driver_runs(1))
    local.command("suspend", "s")
    assert run.end() == 0
    assert row(local).split()[1] == "Suspended"
    assert "durable resume s" in local.command("describe", "s")

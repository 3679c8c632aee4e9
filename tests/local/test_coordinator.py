"""The local coordinator as a process: how drives end, what a kill of it costs, who else may write."""

import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durable_local import process
from durable_local.process import Life

if TYPE_CHECKING:
    from conftest import Local

# Every crash point of this coordinator, in the order in which a first drive passes them.
POINTS = (
    "local.space_created",
    "local.space_status_written",
    "local.workspace_filled",
    "local.space_placed",
    "local.daemon_started",
    "local.space_written",
    "local.session_written",
    "local.session_written:2",
    "local.driver_started",
    "local.space_ended",
)


def test_the_points_are_those_of_the_code() -> None:
    source = "".join(path.read_text() for path in Path(process.__file__).parent.glob("*.py"))
    known = {line.split('"')[1] for line in source.splitlines() if "crash_point(" in line and '"' in line}
    assert known == {point.partition(":")[0] for point in POINTS}


@pytest.mark.parametrize("point", POINTS)
def test_killed_there_and_started_again_it_goes_on_with_one_driver_per_epoch(local: "Local", point: str) -> None:
    local.manifest("e1=step settle")
    killed = local.run(DURABLE_CRASH=point)
    assert killed.child.returncode == -signal.SIGKILL, f"{point} was never reached: nothing was tested"
    again = local.run()
    assert again.child.returncode == 0, again.errors()
    assert len(local.driven()) == len(set(local.driven())) <= 2
    assert local.driven() == sorted(local.driven())
    assert local.status()["answer"] == "42"
    assert local.leftovers() == []


def test_a_driver_goes_on_without_its_coordinator_and_is_found_again(local: "Local", tmp_path: Path) -> None:
    local.manifest(f"e1=until:{tmp_path / 'go'} step settle")
    first = local.start()
    local.until(lambda: local.driver_runs(1))
    pid = process.look(local.home.drive(1)).pid
    first.child.kill()
    first.end()
    second = local.start()
    local.until(lambda: second.told("session.ready", reason="Driving"))
    assert process.look(local.home.drive(1)).pid == pid
    (tmp_path / "go").touch()
    assert second.end() == 0
    assert local.driven() == [1]


@pytest.mark.parametrize(("words", "reason"), [("exit:1", "Crashed"), ("kill", "Killed"), ("exit:0", "Completed")])
def test_an_end_that_nobody_saw_is_known_afterwards(local: "Local", tmp_path: Path, words: str, reason: str) -> None:
    local.manifest(f"e1=until:{tmp_path / 'go'} step {words}", "e2=settle")
    first = local.start()
    local.until(lambda: local.driver_runs(1))
    first.child.kill()
    first.end()
    (tmp_path / "go").touch()
    local.until(lambda: process.look(local.home.drive(1)).life is Life.ENDED)
    second = local.run()
    assert second.child.returncode == 0
    (gone,) = second.told("driver.gone", epoch=1)
    assert gone["reason"] == reason
    assert local.status().get("countedAttempts", 0) == (reason != "Completed")


@pytest.mark.parametrize(
    ("words", "reason", "counted"),
    [
        ("exit:1", "Crashed", True),
        ("kill", "Killed", True),
        ("fence:7", "Fenced", False),
    ],
)
def test_a_drive_that_ends_early_is_followed_by_another(local: "Local", words: str, reason: str, counted: bool) -> None:
    local.manifest(f"e1=step {words}", "e2=settle")
    run = local.run()
    assert run.child.returncode == 0
    (gone,) = run.told("driver.gone", epoch=1)
    assert (gone["reason"], gone["counted"]) == (reason, counted)
    assert local.driven() == [1, 8 if reason == "Fenced" else 2]


def test_a_permanent_failure_ends_the_session_with_its_reason(local: "Local") -> None:
    local.manifest("e1=fail:MissingCapability")
    run = local.run()
    assert run.child.returncode == 1
    assert "PermanentFailure" in run.errors()
    assert local.condition("Finished")["status"] == "True"
    assert local.driven() == [1]


def test_attempts_are_exhausted_and_a_retry_begins_a_new_series(local: "Local") -> None:
    local.manifest("e1=exit:1", "e3=settle", retry={"initialSeconds": 1, "maxAttempts": 2})
    run = local.run()
    assert run.child.returncode == 1
    assert "AttemptsExhausted" in run.errors()
    assert local.driven() == [1, 2]
    assert local.run().child.returncode == 1
    local.command("retry", "s")
    assert local.run().child.returncode == 0
    assert local.driven() == [1, 2, 3]


def test_a_driver_that_falls_silent_is_replaced(local: "Local") -> None:
    local.manifest("e1=step silent", "e2=settle", stallSeconds=10)
    run = local.run()
    assert run.child.returncode == 0
    (gone,) = run.told("driver.gone", epoch=1)
    assert (gone["reason"], gone["counted"]) == ("Stalled", True)


def test_the_daemon_is_started_again_under_a_running_driver(local: "Local", tmp_path: Path) -> None:
    local.manifest(f"e1=until:{tmp_path / 'go'} settle")
    run = local.start()
    local.until(lambda: local.driver_runs(1))
    process.send(local.home.generation(1) / "run-1", signal.SIGKILL)
    local.until(lambda: run.told("space.listening", run=2))
    (tmp_path / "go").touch()
    assert run.end() == 0
    assert local.driven() == [1]
    assert local.leftovers() == []


def test_a_workspace_that_was_removed_is_placed_again(local: "Local") -> None:
    local.manifest("e1=step exit:1", "e2=settle", retry={"initialSeconds": 3})
    run = local.start()
    local.until(lambda: run.told("driver.gone", epoch=1))
    local.home.workspace.rmdir()
    assert run.end() == 0
    assert local.status()["space"] == {**local.status()["space"], "generation": 2, "restored": "FromScratch"}
    assert local.leftovers() == []


def test_a_second_coordinator_is_refused(local: "Local") -> None:
    local.manifest("e1=wait")
    first = local.start()
    local.until(lambda: local.driver_runs(1))
    second = local.run()
    assert second.child.returncode == 2
    assert f"process {first.child.pid}" in second.errors()
    first.child.send_signal(signal.SIGINT)
    assert first.end() == 130


def test_an_interrupted_run_stops_cleanly_and_goes_on_without_counting(local: "Local") -> None:
    local.manifest("e1=step wait", "e2=settle")
    first = local.start()
    local.until(lambda: local.driver_runs(1))
    first.child.send_signal(signal.SIGINT)
    assert first.end() == 130
    assert first.errors().splitlines()[0] == "stopping ..."
    assert local.leftovers() == []
    assert local.run().child.returncode == 0
    assert local.status().get("countedAttempts", 0) == 0
    assert local.driven() == [1, 2]


def test_a_suspended_session_ends_its_driver_and_resumes(local: "Local") -> None:
    local.manifest("e1=step wait", "e2=settle")
    first = local.start()
    local.until(lambda: local.driver_runs(1))
    local.command("suspend", "s")
    assert first.end() == 0
    assert local.condition("Suspended")["status"] == "True"
    assert local.leftovers() == []
    local.command("resume", "s")
    assert local.run().child.returncode == 0
    assert local.driven() == [1, 2]


def test_what_must_not_change_is_refused_with_the_field(local: "Local") -> None:
    local.manifest("e1=settle")
    assert local.run().child.returncode == 0
    local.manifest("e1=settle", input="another")
    run = local.run()
    assert run.child.returncode == 2
    assert "spec.input is immutable" in run.errors()


def test_a_finished_session_is_not_driven_again_and_can_be_forgotten(local: "Local") -> None:
    local.manifest("e1=settle")
    assert [local.run().child.returncode, local.run().child.returncode] == [0, 0]
    assert local.driven() == [1]
    local.command("delete", "s")
    assert not local.home.path.exists()


def test_a_key_reaches_the_driver_and_never_the_space(local: "Local", tmp_path: Path) -> None:
    local.manifest(
        f"e1=until:{tmp_path / 'go'} settle",
        driver_env=[{"name": "MODEL_KEY", "valueFrom": {"secretKeyRef": {"name": "models", "key": "key"}}}],
    )
    run = local.start(MODEL_KEY="secret-1", OPENAI_API_KEY="secret-2")
    local.until(lambda: local.driver_runs(1))
    environments = {name: environment(folder) for name, folder in children(local).items()}
    (tmp_path / "go").touch()
    assert run.end() == 0
    assert b"MODEL_KEY=secret-1" in environments["driver"]
    assert b"secret" not in environments["Space"]


def test_a_folder_that_is_removed_under_a_run_ends_it_with_nothing_left(local: "Local") -> None:
    local.manifest("e1=wait")
    run = local.start()
    local.until(lambda: local.driver_runs(1))
    local.until(lambda: run.child.poll() is not None or shutil.rmtree(local.home.path, ignore_errors=True))
    assert run.end() == 1
    (line,) = run.errors().splitlines()
    assert line.startswith("error: ")
    assert local.leftovers() == []


def test_an_unwritable_state_folder_is_one_line(local: "Local") -> None:
    local.manifest("e1=settle")
    local.state.write_text("a file, where the folder should be")
    run = local.run()
    assert run.child.returncode == 2
    (line,) = run.errors().splitlines()
    assert "--state DIR" in line
    assert str(local.state) in line


def children(local: "Local") -> dict[str, Path]:
    return {"driver": local.home.drive(1), "Space": local.home.generation(1) / "run-1"}


def environment(folder: Path) -> bytes:
    return Path(f"/proc/{process.look(folder).pid}/environ").read_bytes()


def test_a_daemon_that_died_while_nobody_looked_did_not_fail_to_start(local: "Local", tmp_path: Path) -> None:
    local.manifest(f"e1=until:{tmp_path / 'go'} settle")
    first = local.start()
    local.until(lambda: local.driver_runs(1))
    first.child.kill()
    first.end()
    process.send(local.home.generation(1) / "run-1", signal.SIGKILL)
    second = local.start()
    local.until(lambda: second.told("space.listening", run=2))
    (tmp_path / "go").touch()
    assert second.end() == 0
    (gone,) = second.told("space.gone")
    assert (gone["run"], gone["listened"], gone["signal"]) == (1, True, signal.SIGKILL)

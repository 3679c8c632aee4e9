"""What ends a drive for good or for now, and how it is told: one line, an exit code, a report."""

import subprocess
import sys
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"CUA_SESSION_EPOCH": "x"}, "CUA_SESSION_EPOCH is 'x': use a whole number from 1"),
        (
            {"CUA_SESSION_STATE_DIR": "/nowhere/state"},
            "CUA_SESSION_STATE_DIR is '/nowhere/state': can't be made",
        ),
        ({"CUA_SESSION_STATE_DIR": "/dev/null"}, "CUA_SESSION_STATE_DIR is '/dev/null': it is no folder"),
        ({"DURABLE_INPUT": None}, "DURABLE_INPUT is not set: set it to the file with the session's input"),
        ({"DURABLE_AGENT": "/nowhere/agent.yaml"}, "DURABLE_AGENT is '/nowhere/agent.yaml': can't be read"),
        ({"DURABLE_SCRIPT": None}, "DURABLE_SCRIPT is not set"),
        ({"DURABLE_MODE": "checkpoint"}, "mode checkpoint is not served by this version"),
        ({"DURABLE_LOG": "s3://bucket/prefix"}, "DURABLE_LOG is 's3://bucket/prefix': logs in an object store"),
    ],
)
def test_a_bad_environment_is_one_line_and_a_permanent_failure(
    place: Any, changes: dict[str, str | None], says: str
) -> None:
    drive = place.start(1, **changes)
    assert drive.wait() == 78
    (line,) = drive.err.read_text().splitlines()
    assert line.startswith(f"durable driver: {says}")
    assert drive.report()["outcome"] == "failed"
    assert says[:60] in drive.report()["message"]


def test_an_unanswered_input_is_a_permanent_failure_with_the_reason(place: Any) -> None:
    place.script("steps:\n- expect: never\n  answer: x\n")
    drive = place.start(1)
    assert drive.wait() == 78
    assert (drive.report()["outcome"], drive.report()["reason"]) == ("failed", "ModelError")
    assert "step 1 expects 'never'" in drive.report()["message"]


def test_a_space_that_is_away_is_a_halt_and_not_a_result(place: Any) -> None:
    drive = place.start(1, CUA_SESSION_SPACE_ADDR=f"unix:{place.folder}/none.sock")
    assert drive.wait() == 1
    assert (drive.report()["outcome"], drive.report()["reason"]) == ("halted", "SpaceUnreachable")


def test_help_lists_the_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "durable_driver", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "CUA_SESSION_EPOCH" in done.stdout
    assert "75" in done.stdout

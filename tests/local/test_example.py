"""The example with real parts: killed at seeded moments it ends as it does undisturbed, and its story can be told afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/fix-bug"
SEED = 3


def durable(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "durable_cli", *words]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    state = tmp_path_factory.mktemp("chaos")
    return state, durable("run", "--chaos", "--seed", str(SEED), str(EXAMPLE), "--state", str(state))


def test_five_kills_and_the_workspaces_are_equal(chaos: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = chaos
    assert done.returncode == 0, done.stdout + done.stderr
    *_, stay, last = done.stdout.splitlines()
    assert last.startswith("equal, byte for byte")
    assert stay.endswith(f"to remove them: rm -r {chaos[0] / 'chaos' / f'seed-{SEED}'}")
    assert "killed: Space 1, coordinator 1, driver 3" in done.stdout
    assert done.stdout.count("chaos: driver killed") == 3
    assert done.stderr == ""


def test_the_agent_repaired_the_project(chaos: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    workspace = chaos[0] / f"chaos/seed-{SEED}/killed/fix-bug/workspace"
    assert (workspace / "CHANGELOG.md").read_text().count("All tests pass") == 1
    tests = [sys.executable, "-B", "-m", "unittest", "-q"]
    assert subprocess.run(tests, cwd=workspace, capture_output=True).returncode == 0


def test_its_story_can_be_told_afterwards(chaos: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    state = str(chaos[0] / f"chaos/seed-{SEED}/killed")
    (session,) = json.loads(durable("get", "-o", "json", "--state", state).stdout)["items"]
    assert session["status"]["answer"] == "Both functions rounded twice; all 14 tests pass."
    story = durable("describe", "fix-bug", "--state", state).stdout
    assert story.count("killed by signal 9\n") == 3
    assert "step 10" in durable("logs", "-f", "fix-bug", "--state", state).stdout

"""`kubectl durable`: each command is one call of the kubectl that is on the PATH, with its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KIND = "durablesessions.durablesessions.dev"
# A kubectl that writes its arguments down, one call per line; the pod's name is what `get -o jsonpath` prints.
DOUBLE = f"""#!{sys.executable}
import json, os, sys
open(os.environ["CALLS"], "a").write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[-1].startswith("jsonpath"):
    print("fix-bug-e3", end="")
sys.exit(int(os.environ.get("CODE", "0")))
"""


def plugin(folder: Path, *words: str, **env: str) -> tuple[int, str, list[list[str]]]:
    (folder / "kubectl").write_text(DOUBLE)
    (folder / "kubectl").chmod(0o755)
    calls = folder / "calls"
    program = "from durable_cli.main import kubectl_main; kubectl_main()"
    full = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls), **env}
    done = subprocess.run([sys.executable, "-c", program, *words], env=full, capture_output=True, text=True)
    return done.returncode, done.stderr, [json.loads(line) for line in calls.read_text().splitlines()]


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (("get",), ["get", KIND]),
        (("get", "-A", "-o", "wide"), ["get", KIND, "-A", "-o", "wide"]),
        (("describe", "-n", "agents", "fix-bug"), ["--namespace=agents", "describe", KIND, "fix-bug"]),
        (("delete", "fix-bug", "--context", "c"), ["--context=c", "delete", KIND, "fix-bug"]),
        (("suspend", "s"), ["patch", KIND, "s", "--type", "merge", "-p", '{"spec": {"operatingMode": "Suspended"}}']),
        (("resume", "s"), ["patch", KIND, "s", "--type", "merge", "-p", '{"spec": {"operatingMode": "Running"}}']),
    ],
)
def test_a_command_is_one_call(tmp_path: Path, words: tuple[str, ...], called: list[str]) -> None:
    assert plugin(tmp_path, *words) == (0, "", [called])


def test_logs_are_those_of_the_newest_driver(tmp_path: Path) -> None:
    _, _, (_, logs) = plugin(tmp_path, "logs", "-f", "fix-bug", "-n", "a")
    assert logs == ["--namespace=a", "logs", "fix-bug-e3", "-c", "driver", "-f"]


def test_a_retry_sets_another_token_each_time(tmp_path: Path) -> None:
    plugin(tmp_path, "retry", "s")
    _, _, (first, second) = plugin(tmp_path, "retry", "s")
    assert first[:-1] == second[:-1]
    assert json.loads(first[-1])["spec"]["retryToken"] != json.loads(second[-1])["spec"]["retryToken"]


def test_the_exit_code_is_kubectls(tmp_path: Path) -> None:
    assert plugin(tmp_path, "get", CODE="1")[0] == 1

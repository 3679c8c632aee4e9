"""`kubectl durable`: what it asks of the kubectl on the PATH, and what it makes of the answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KIND = "durablesessions.durablesessions.dev"
# A kubectl that writes its arguments down, one call per line, and answers with the first of ANSWERS whose words are all there.
DOUBLE = f"""#!{sys.executable}
import json, os, sys
open(os.environ["CALLS"], "a").write(json.dumps(sys.argv[1:]) + "\\n")
for words, answer in json.loads(os.environ.get("ANSWERS", "[]")):
    if set(words) <= set(sys.argv):
        print(answer if isinstance(answer, str) else json.dumps(answer))
        break
sys.exit(int(os.environ.get("CODE", "0")))
"""


def plugin(folder: Path, *words: str, **env: str) -> tuple[int, str, list[list[str]]]:
    """Exit code, stderr, calls; stdout is in `folder/out`."""
    (folder / "kubectl").write_text(DOUBLE)
    (folder / "kubectl").chmod(0o755)
    calls = folder / "calls"
    program = "from durable_cli.main import kubectl_main; kubectl_main()"
    full = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls), **env}
    done = subprocess.run([sys.executable, "-c", program, *words], env=full, capture_output=True, text=True)
    (folder / "out").write_text(done.stdout)
    return done.returncode, done.stderr, [json.loads(line) for line in calls.read_text().splitlines()]


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (("get",), ["get", KIND]),
        (("-n", "a", "--context", "c", "get", "s"), ["--namespace=a", "--context=c", "get", KIND, "s"]),
        (("-n", "a", "get", "s", "-n", "b"), ["--namespace=b", "get", KIND, "s"]),
        (("get", "-A", "-o", "wide"), ["get", KIND, "-A", "-o", "wide"]),
        (("delete", "fix-bug", "--context", "c"), ["--context=c", "delete", KIND, "fix-bug"]),
    ],
)
def test_a_command_is_one_call(tmp_path: Path, words: tuple[str, ...], called: list[str]) -> None:
    assert plugin(tmp_path, *words) == (0, "", [called])


def answers(*pairs: tuple[tuple[str, ...], object]) -> str:
    return json.dumps(pairs)


def a_session(
    succeeded: str = "Unknown", reason: str = "InProgress", waits: tuple[str, str] = ("Starting", "")
) -> dict:
    conditions = [{"type": "Succeeded", "status": succeeded, "reason": reason}]
    conditions.append({"type": "Ready", "status": "False", "reason": waits[0], "message": waits[1]})
    status = {"conditions": conditions, "epoch": 2, "attempts": 2, "space": {"name": "fix-bug"}, "answer": "Repaired."}
    return {"metadata": {"name": "fix-bug", "namespace": "n"}, "spec": {"space": {}}, "status": status}


def a_driver(epoch: int, state: dict) -> dict:
    labels = {"durablesessions.dev/epoch": str(epoch)}
    status = {"containerStatuses": [{"name": "driver", "state": state}]}
    return {"metadata": {"name": f"fix-bug-e{epoch}", "labels": labels}, "spec": {"nodeName": "n1"}, "status": status}


def line(epoch: int, event: str, **fields: object) -> str:
    return json.dumps({"time": 1000 * epoch, "session": "fix-bug", "epoch": epoch, "event": event, **fields})


KILLED = a_driver(1, {"terminated": {"exitCode": 137, "finishedAt": "2026-01-02T03:04:05Z"}})
DRIVERS = {"items": [a_driver(2, {"running": {}}), KILLED]}
FIRST = [
    line(1, "driver.started"),
    "CUA-HEARTBEAT 1 1000",
    line(1, "step.started", step=1, call="c1", tool="read"),
    line(1, "step.finished", step=1, call="c1", tool="read", seconds=0.5),
    "a line of a library",
]
SECOND = [line(2, "driver.started", resumed=True), line(2, "recovery", kind="reattached", step=2), "CUA-HEARTBEAT 2 1"]
SPACE = {"status": {"generation": 3, "conditions": [{"type": "Ready", "status": "True", "reason": "SpaceReady"}]}}
STORY = (
    (("get", KIND), a_session()),
    (("get", "durablespaces.durablesessions.dev"), SPACE),
    (("get", "pods"), DRIVERS),
    (("logs", "fix-bug-e1"), "\n".join(FIRST)),
    (("logs", "fix-bug-e2"), "\n".join(SECOND)),
    (
        ("get", "events"),
        {"items": [{"reason": "EpochIssued", "message": "epoch 2: Killed", "lastTimestamp": "2026-01-02T03:04:05Z"}]},
    ),
)


def test_logs_tell_the_steps_of_all_drives_without_heartbeats(tmp_path: Path) -> None:
    code, errors, _ = plugin(tmp_path, "logs", "fix-bug", ANSWERS=answers(*STORY))
    shown = (tmp_path / "out").read_text()
    assert (code, errors) == (0, "")
    told = [" ".join(text.split()[1:]) for text in shown.splitlines()]
    assert told == [
        "epoch 1 driver started",
        "step 1 read 500 ms",
        "line of a library",
        "epoch 1 driver gone (killed by signal 9)",
        "epoch 2 driver started; step 2 reattached to its command",
    ]


def test_logs_can_be_had_as_they_are_and_followed(tmp_path: Path) -> None:
    _, _, calls = plugin(tmp_path, "logs", "--raw", "-f", "fix-bug", "-n", "a", ANSWERS=answers(*STORY))
    assert calls[-1] == ["--namespace=a", "logs", "fix-bug-e2", "-c", "driver", "-f"]
    assert "CUA-HEARTBEAT" in (tmp_path / "out").read_text()


def test_a_driver_that_has_not_started_says_why_and_is_a_failure(tmp_path: Path) -> None:
    waits = a_session(waits=("ImagePullFailed", "no such image"))
    pending = {"items": [a_driver(1, {"waiting": {"reason": "ImagePullBackOff"}})]}
    given = answers((("get", KIND), waits), (("get", "pods"), pending))
    code, errors, calls = plugin(tmp_path, "logs", "fix-bug", ANSWERS=given)
    assert code == 1
    assert errors == "fix-bug-e1 has not started: ImagePullFailed: no such image\n"
    assert not any("logs" in call for call in calls)


def test_describe_tells_drives_events_and_steps(tmp_path: Path) -> None:
    code, errors, _ = plugin(tmp_path, "describe", "fix-bug", ANSWERS=answers(*STORY))
    shown = (tmp_path / "out").read_text()
    assert (code, errors) == (0, "")
    for part in (
        "Session    n/fix-bug",
        "Repaired.",
        "fix-bug, generation 3, SpaceReady",
        "fix-bug-e1 on n1: exit code 137",
        "fix-bug-e2 on n1: runs",
    ):
        assert part in shown
    for part in ("EpochIssued       epoch 2: Killed", "step 1", "reattached to its command"):
        assert part in shown


@pytest.mark.parametrize(("command", "mode"), [("suspend", "Suspended"), ("resume", "Running")])
def test_a_session_that_goes_on_is_patched(tmp_path: Path, command: str, mode: str) -> None:
    _, _, calls = plugin(tmp_path, command, "s", ANSWERS=answers((("get", KIND), a_session())))
    assert calls[-1] == ["patch", KIND, "s", "--type", "merge", "-p", json.dumps({"spec": {"operatingMode": mode}})]


@pytest.mark.parametrize(
    ("command", "succeeded", "reason", "message"),
    [
        ("suspend", "True", "Completed", "has succeeded (Completed): there is nothing to suspend; to begin anew"),
        (
            "resume",
            "False",
            "PermanentFailure",
            "has failed (PermanentFailure): there is nothing to resume; to try again",
        ),
        ("retry", "True", "Completed", "has not failed (Completed): there is nothing to retry"),
        ("retry", "Unknown", "InProgress", "has not failed (InProgress): there is nothing to retry"),
    ],
)
def test_what_would_do_nothing_is_refused(
    tmp_path: Path, command: str, succeeded: str, reason: str, message: str
) -> None:
    found = answers((("get", KIND), a_session(succeeded, reason)))
    code, errors, calls = plugin(tmp_path, command, "fix-bug", ANSWERS=found)
    assert code == 2
    assert message in errors
    assert not any("patch" in call for call in calls)


def test_a_retry_sets_another_token_each_time(tmp_path: Path) -> None:
    failed = answers((("get", KIND), a_session("False", "AttemptsExhausted")))
    plugin(tmp_path, "retry", "s", ANSWERS=failed)
    _, _, (_, first, _, second) = plugin(tmp_path, "retry", "s", ANSWERS=failed)
    assert first[:-1] == second[:-1]
    assert json.loads(first[-1])["spec"]["retryToken"] != json.loads(second[-1])["spec"]["retryToken"]


def test_the_exit_code_is_kubectls(tmp_path: Path) -> None:
    assert plugin(tmp_path, "get", CODE="1")[0] == 1

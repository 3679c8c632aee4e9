"""The driver as a process, with a real log and a real Space daemon: from its start to its exit code."""

import asyncio
import json
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from durable_driver.context import DEFAULT_SETTINGS
from durable_harness import LogReader
from durable_spaces.testing import crash_points, read_image, read_tree, without_times


def expected_tree(place: Any) -> None:
    files = {path.name: path.read_text() for path in place.workspace.iterdir()}
    assert files == {"a.txt": "two\n", "b.txt": "made\n", "notes.txt": "start\n"}
    assert without_times(read_tree(place.workspace)) == without_times(read_image(place.log))


def test_from_start_to_finish(place: Any) -> None:
    drive = place.start(1)
    assert drive.wait() == 0, drive.err.read_text()
    expected_tree(place)
    report = drive.report()
    assert (report["outcome"], report["reason"], report["epoch"]) == ("settled", "Completed", 1)
    assert (report["mode"], report["floor"]["epoch"], len(report["floor"]["incarnation"])) == ("transactional", 1, 32)
    assert drive.answer() == "All done."
    assert drive.lines()[0].startswith("CUA-HEARTBEAT 1 ")
    names = [event["event"] for event in drive.events()]
    assert names[:3] == ["driver.started", "log.opened", "space.advanced"]
    assert names[-2:] == ["settled", "driver.ended"]
    started = [(event["step"], event["tool"]) for event in drive.events("step.started")]
    finished = sorted((event["step"], event["tool"], event["isError"]) for event in drive.events("step.finished"))
    assert started == [(1, "bash"), (2, "edit"), (3, "write"), (4, "read")]
    assert finished == [(1, "bash", False), (2, "edit", False), (3, "write", False), (4, "read", False)]
    with LogReader.open(place.log) as log:
        assert report["lastEntry"] == log.entries()[-1].id
        assert report["entries"] == len(log.entries())
        assert [call.task_id for call in log.tool_calls()] == [event["call"] for event in drive.events("step.started")]
    text = drive.out.read_text() + drive.err.read_text()
    assert "notes.txt" not in text, "events are free of content"


def test_calls_that_fail_are_told_with_a_code_and_without_content(place: Any) -> None:
    place.script(
        "steps:\n- calls: [{edit: {path: secret.py, old_text: a, new_text: b}}, {bash: {command: exit 3}}, {fly: {to: moon}}]\n"
        "- answer: All done.\n"
    )
    drive = place.start(1)
    assert drive.wait() == 0, drive.err.read_text()
    edit, bash = sorted(drive.events("step.finished"), key=lambda event: int(event["step"]))
    assert (edit["isError"], edit["error"], edit.get("exitCode")) == (True, "tool_error", None)
    assert (bash["isError"], bash["error"], bash["exitCode"]) == (True, "exit_code", 3)
    (refused,) = drive.events("call.refused")
    assert refused["error"] == "tool_unavailable"
    with LogReader.open(place.log) as log:
        results = {entry.id: entry.data["name"] for entry in log.entries() if entry.kind == "pi.tool-result"}
    assert [results[event["entry"]] for event in (edit, bash, refused)] == ["edit", "bash", "fly"]
    assert not any(word in drive.out.read_text() for word in ("secret", "fly", "moon"))


def test_a_settled_session_is_finished_at_once_by_the_next_drive(place: Any) -> None:
    assert place.start(1).wait() == 0
    again = place.start(2, CUA_SESSION_RESUME="1")
    assert again.wait() == 0
    assert (again.report()["outcome"], again.report()["entries"], again.answer()) == ("settled", 0, "All done.")
    assert again.events("step.started") == []
    expected_tree(place)


def test_a_second_process_of_one_epoch_is_fenced_and_writes_nothing(place: Any) -> None:
    place.script(place.held())
    first = place.start(1)
    place.until(lambda: (place.workspace / "notes.txt").exists())
    second = place.start(1)
    assert second.wait() == 75
    report = second.report()
    assert (report["outcome"], report["reason"], report["entries"]) == ("fenced", "Fenced", 0)
    assert report["floor"]["epoch"] == 1
    assert "a newer driver has taken over" in second.err.read_text()
    place.release()
    assert first.wait() == 0
    assert first.report()["floor"]["incarnation"] == report["floor"]["incarnation"]
    assert (place.workspace / "notes.txt").read_text() == "begun\nended\n"


def test_asked_to_stop_before_it_has_read_its_own_modules_it_stops(place: Any) -> None:
    """In a container the kernel drops a SIGTERM that nobody has a handler for; held back, it is there when there is one."""
    drive = place.start(1, sys.executable, "-m", "durable_cli", "driver")
    status = Path(f"/proc/{drive.process.pid}/status")

    def held_back() -> bool:
        blocked = next(line for line in status.read_text().splitlines() if line.startswith("SigBlk:"))
        return bool(int(blocked.split()[1], 16) & 1 << signal.SIGTERM - 1)

    place.until(held_back)
    assert not drive.lines(), "it has not begun"
    drive.process.terminate()
    assert drive.wait(20) == 143
    assert (drive.report()["outcome"], drive.report()["reason"]) == ("stopped", "Stopped")


def test_an_older_driver_is_fenced_by_a_newer_one(place: Any) -> None:
    place.script(place.held())
    first = place.start(1)
    place.until(lambda: (place.workspace / "notes.txt").exists())
    second = place.start(2, CUA_SESSION_RESUME="1")
    place.until(lambda: second.events("space.advanced"))
    place.release()
    assert second.wait() == 0
    assert first.wait() == 75
    assert first.report()["floor"]["epoch"] == 2
    assert (place.workspace / "notes.txt").read_text() == "begun\nended\n"


def test_a_driver_that_is_asked_to_stop_leaves_its_command_to_the_next(place: Any) -> None:
    place.script(place.held())
    first = place.start(1)
    place.until(lambda: (place.workspace / "notes.txt").exists())
    first.process.terminate()
    assert first.wait(20) == 143
    assert (first.report()["outcome"], first.report()["reason"]) == ("stopped", "Stopped")
    second = place.start(2, CUA_SESSION_RESUME="1", CUA_SESSION_ATTEMPT="1")
    place.until(lambda: second.events("recovery"))
    (recovery,) = second.events("recovery")
    assert (recovery["kind"], recovery["step"]) == ("reattached", 1)
    place.release()
    assert second.wait() == 0
    assert second.report()["recoveries"] == {"reattached": 1}
    assert (place.workspace / "notes.txt").read_text() == "begun\nended\n"


def test_a_log_that_a_stopped_driver_holds_is_waited_for_and_not_given_up(place: Any) -> None:
    """1. e1 is stopped inside a commit. 2. e2 finds the log locked. 3. e1 is killed. 4. e3 finishes."""
    first = place.start(1, DURABLE_CRASH="log.before_commit:6=stop")
    place.until(lambda: stopped(first.process.pid))
    second = place.start(2, CUA_SESSION_RESUME="1")
    assert second.wait() == 1
    assert (second.report()["outcome"], second.report()["reason"]) == ("halted", "LogUnavailable")
    first.process.kill()
    first.process.wait()
    third = place.start(3, CUA_SESSION_RESUME="1")
    assert third.wait() == 0, third.err.read_text()
    expected_tree(place)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


DRIVER_POINTS = crash_points(Path(__file__).parents[2] / "driver" / "durable_driver", "driver.")


def test_the_driver_has_its_crash_points() -> None:
    assert DRIVER_POINTS == [
        "driver.log_opened",
        "driver.report_written",
        "driver.settled",
        "driver.space_advanced",
        "driver.space_ensured",
    ]


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_killed_at_a_point_of_its_life_the_next_drive_finishes(place: Any, point: str) -> None:
    first = place.start(1, DURABLE_CRASH=point)
    assert first.wait() == -signal.SIGKILL, f"{point} was never reached"
    second = place.start(2, CUA_SESSION_RESUME="1", CUA_SESSION_ATTEMPT="2")
    assert second.wait() == 0, second.err.read_text()
    assert second.answer() == "All done."
    expected_tree(place)
    with LogReader.open(place.log) as log:
        assert len([entry for entry in log.entries() if entry.kind == "pi.user"]) == 1


def test_a_call_that_every_drive_dies_in_is_parked_until_a_new_series_of_attempts(place: Any) -> None:
    for epoch in range(1, 7):
        drive = place.start(epoch, DURABLE_CRASH="harness.tool_returned", CUA_SESSION_ATTEMPT=str(epoch))
        if drive.wait() != -signal.SIGKILL:
            break
    assert (drive.process.returncode, drive.report()["reason"]) == (78, "RestartLimit")
    again = place.start(8, CUA_SESSION_RESUME="1", CUA_SESSION_ATTEMPT="1")
    assert again.wait() == 0, again.err.read_text()
    assert len(again.events("task.released")) == 1
    expected_tree(place)


def test_life_and_progress_can_be_asked_for_while_it_runs(place: Any) -> None:
    place.script(place.held())
    drive = place.start(1)
    place.until(lambda: drive.events("step.started"))
    port = drive.events("driver.started")[0]["http"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert "durable_driver_heartbeat_timestamp_seconds 1." in text
    assert "durable_driver_last_commit_timestamp_seconds 1." in text
    assert "durable_driver_epoch 1.0" in text
    beats = len([line for line in drive.lines() if line.startswith("CUA-HEARTBEAT 1 ")])
    place.until(lambda: len([line for line in drive.lines() if line.startswith("CUA-HEARTBEAT 1 ")]) > beats + 2)
    place.release()
    assert drive.wait() == 0


def use_model_server(place: Any, server: Any) -> None:
    (place.folder / "agent.yaml").write_text(
        f"model: {{provider: openai-compatible, name: m-1, baseUrl: '{server.url}'}}\ntools: [bash]\n"
    )


def test_a_model_that_is_away_is_told_at_each_attempt_and_by_the_next_drive(place: Any) -> None:
    with socket.socket() as held:  # bound, and nobody listens: the port stays refused for as long as the test runs
        held.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{held.getsockname()[1]}"
        model = f"{{provider: openai-compatible, name: m-1, baseUrl: 'http://{host}/v1'}}"
        (place.folder / "agent.yaml").write_text(f"model: {model}\n")
        drive = place.start(1)
        place.until(lambda: len(drive.events("model.failed")) == 2)
        told = [(event["kind"], event["host"], event["attempt"]) for event in drive.events("model.failed")]
        assert told == [("ConnectionRefused", host, 1), ("ConnectionRefused", host, 2)]
        drive.process.kill()
        drive.process.wait()
        again = place.start(2, CUA_SESSION_RESUME="1")
        place.until(lambda: again.events("model.failed"))
        (waits,) = again.events("model.awaited")
        assert waits["attempt"] == again.events("model.failed")[0]["attempt"] == 3
        assert waits["seconds"] > 0
        again.process.terminate()
        assert again.wait() == 143
        assert again.report()["modelErrors"] == {"ConnectionRefused": 1}


def test_a_model_behind_http_drives_the_session_and_its_limits_are_waited_out(place: Any, model_server: Any) -> None:
    use_model_server(place, model_server)
    function = {"name": "bash", "arguments": json.dumps({"command": "echo by model > m.txt"})}
    call = {"index": 0, "id": "c-1", "type": "function", "function": function}
    model_server.answers(status=429, error={"message": "slow down", "code": "rate_limit_exceeded"})
    model_server.answers(deltas=[{"role": "assistant", "content": "", "tool_calls": [call]}], finish="tool_calls")
    model_server.answers(deltas=[{"role": "assistant", "content": "All "}, {"content": "done."}], usage=(30, 7))
    drive = place.start(1, OPENAI_API_KEY="k-1")
    assert drive.wait() == 0, drive.err.read_text()
    assert (place.workspace / "m.txt").read_text() == "by model\n"
    assert drive.answer() == "All done."
    (failed,) = drive.events("model.failed")
    assert (failed["kind"], failed["host"], failed["attempt"]) == ("Http429", model_server.url.split("/")[2], 1)
    assert 0 < failed["seconds"] <= DEFAULT_SETTINGS.retry.delay_seconds(1)
    assert drive.report()["modelErrors"] == {"Http429": 1}
    usage = drive.report()["usage"]
    assert (usage["requests"], usage["inputTokens"], usage["outputTokens"]) == (3, 41, 12)
    assert set(model_server.authorizations) == {"Bearer k-1"}
    first, second, third = model_server.requests
    assert first == second, "a retried request is the same request"
    assert [message["role"] for message in third["messages"]] == ["user", "assistant", "tool"]


def test_a_model_that_refuses_the_request_ends_the_session(place: Any, model_server: Any) -> None:
    use_model_server(place, model_server)
    model_server.answers(status=400, error={"message": "bad", "type": "invalid_request_error"})
    drive = place.start(1)
    assert drive.wait() == 78
    assert (drive.report()["outcome"], drive.report()["reason"]) == ("failed", "ModelError")
    host = model_server.url.removeprefix("http://").removesuffix("/v1")
    assert drive.report()["message"] == f"m-1 at {host}: HTTP 400 (invalid_request_error)"


def test_a_model_that_stays_away_ends_the_drive_and_not_the_session(place: Any, model_server: Any) -> None:
    """Retries are shortened by a driver of one's own; how they end is the built-in driver's."""
    use_model_server(place, model_server)
    program = place.folder / "impatient.py"
    program.write_text(
        "from dataclasses import replace\n"
        "from durable_driver import context\n"
        "from durable_driver.builtin import builtin_start\n"
        "from durable_driver.run import run_durable_session\n"
        "settings = context.DEFAULT_SETTINGS\n"
        "context.DEFAULT_SETTINGS = replace(settings, retry=replace(settings.retry, max_retries=1, base_seconds=0.01))\n"
        "run_durable_session(builtin_start)\n"
    )
    for _ in range(2):
        model_server.answers(status=503)
    first = place.start(1, sys.executable, str(program))
    assert first.wait() == 1
    assert (first.report()["outcome"], first.report()["reason"]) == ("halted", "ModelUnavailable")
    assert "HTTP 503" in first.report()["message"]
    model_server.answers(status=503)
    model_server.answers(deltas=[{"role": "assistant", "content": "All done."}])
    second = place.start(2, sys.executable, str(program), CUA_SESSION_RESUME="1", CUA_SESSION_ATTEMPT="2")
    assert second.wait() == 0, second.err.read_text()
    assert second.answer() == "All done."
    assert model_server.requests[0] == model_server.requests[-1]


STUCK = """
steps:
  - calls: [{bash: {command: "echo one >> notes.txt; cat notes.txt"}}]
  - expect: never
    answer: Never.
"""


def series(place: Any, epoch: int, token: str | None, attempt: int = 1, **changes: str) -> Any:
    more = {"CUA_SESSION_RESUME": "1", "CUA_SESSION_ATTEMPT": str(attempt), **changes}
    return place.start(epoch, DURABLE_RETRY_TOKEN=token, **more)


def inputs(place: Any) -> list[str | None]:
    with LogReader.open(place.log) as log:
        return [submission.request_id for submission in log.submissions()]


def test_a_failed_session_that_is_tried_again_goes_on_where_it_stopped(place: Any) -> None:
    place.script(STUCK)
    assert place.start(1).wait() == 78
    again = series(place, 2, None)
    assert (again.wait(), again.report()["reason"]) == (78, "ModelError")
    still = series(place, 3, "t-1")
    assert (still.wait(), still.report()["reason"]) == (78, "ModelError"), "nothing has been mended yet"
    place.script(STUCK.replace("never", "one").replace("answer: Never.", "answer: Mended."))
    mended = series(place, 4, "t-2", DURABLE_CRASH="driver.settled")
    assert mended.wait() == -signal.SIGKILL
    after = series(place, 5, "t-2", attempt=2)
    assert after.wait() == 0, after.err.read_text()
    assert (after.answer(), after.report()["entries"]) == ("Mended.", 0)
    assert (place.workspace / "notes.txt").read_text() == "one\n", "what was done before is not done again"
    assert inputs(place) == ["uid-1", "uid-1:retry:t-1", "uid-1:retry:t-2"]
    for token in ("t-3", None):
        settled = series(place, 6 if token else 7, token)
        assert (settled.wait(), settled.answer()) == (0, "Mended."), "an answered session stays so"
    assert len(inputs(place)) == 3


def test_killed_after_the_further_input_was_admitted_it_is_not_admitted_twice(place: Any) -> None:
    place.script(STUCK)
    assert place.start(1).wait() == 78
    place.script(STUCK.replace("never", "one").replace("answer: Never.", "answer: Mended."))
    assert series(place, 2, "t-1", DURABLE_CRASH="harness.admitted:2").wait() == -signal.SIGKILL
    assert inputs(place) == ["uid-1", "uid-1:retry:t-1"]
    other = series(place, 3, "t-2")  # asked for once more while the first try is open
    assert other.wait() == 0, other.err.read_text()
    assert inputs(place) == ["uid-1", "uid-1:retry:t-1"]


@pytest.mark.parametrize("script", [STUCK, "steps: 3\n"], ids=["the model fails again", "the script can't be read"])
def test_a_try_that_fails_leaves_a_new_space_with_the_files_of_the_log(place: Any, script: str) -> None:
    place.script(STUCK)
    assert place.start(1).wait() == 78
    place.script(script)
    with place.other_space() as (address, workspace):
        again = series(place, 2, "t-1", CUA_SESSION_SPACE_ADDR=address)
        assert again.wait() == 78
        assert again.report()["reason"] == ("ModelError" if script == STUCK else "InvalidConfiguration")
        assert sorted(path.name for path in workspace.iterdir()) == ["a.txt", "notes.txt"]
        assert without_times(read_tree(workspace)) == without_times(read_image(place.log))


def test_an_answered_session_does_not_mind_a_token(place: Any) -> None:
    assert place.start(1).wait() == 0
    again = series(place, 2, "t-1")
    assert (again.wait(), again.report()["entries"], again.events("input.retried")) == (0, 0, [])


def test_an_outage_of_half_an_hour_is_waited_out() -> None:
    retry = DEFAULT_SETTINGS.retry
    assert 1500 <= sum(retry.delay_seconds(number) for number in range(1, retry.max_retries + 1)) <= 2000


async def test_a_coordinator_can_follow_a_drive_and_ask_it_to_stop(place: Any, coordinator: Any, serve: Any) -> None:
    place.script(place.held())
    address = f"127.0.0.1:{await serve(coordinator)}"
    drive = place.start(1, DURABLE_COORDINATOR=address)
    await asyncio.to_thread(place.until, (place.workspace / "notes.txt").exists)
    coordinator.stop = "Suspended"
    assert await asyncio.to_thread(drive.wait) == 143
    assert (drive.report()["outcome"], drive.report()["reason"]) == ("stopped", "Suspended")
    assert {"heartbeat", "progress", "final"} <= set(coordinator.kinds())
    assert json.loads(coordinator.got[-1].final.json) == drive.report()
    coordinator.stop = None
    second = place.start(2, DURABLE_COORDINATOR=address, CUA_SESSION_RESUME="1")
    await asyncio.to_thread(place.until, lambda: "recovery" in coordinator.kinds())
    place.release()
    assert await asyncio.to_thread(second.wait) == 0, (second.err.read_text(), second.events())
    (told,) = [request.recovery for request in coordinator.got if request.WhichOneof("event") == "recovery"]
    assert (told.kind, told.mode) == ("reattached", "transactional")

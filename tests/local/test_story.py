"""What a person reads of a run: one line per step and turning point, nothing twice, whoever was killed."""

from typing import Any

from durable_cli.story import Story
from durable_cli.words import duration, summary
from durable_local.events import Event


def event(name: str, epoch: int = 1, at: int = 1000, **fields: Any) -> Event:
    return Event(at, "fix-bug", epoch, name, fields)


def told(*events: Event) -> list[tuple[str, str]]:
    story = Story(lambda session, step: f"argument-{step}")
    return [(line.head, line.text) for each in events for line in story.tell(each)]


def test_a_run_without_crashes() -> None:
    assert told(
        event("session.opened", 0, again=False),
        event("driver.started"),
        event("step.started", step=1, tool="read", call="7"),
        event("step.finished", step=1, tool="read", call="7", seconds=0.008, isError=False),
        event("driver.gone", reason="Completed", code=0, signal=0, seconds=0),
        event("session.finished", succeeded=True, reason="Completed", message="", answer="", steps=1, recoveries={}),
    ) == [
        ("epoch 1", "driver started"),
        ("step 1", "read argument-1"),
        ("", "driver ended"),
        ("Succeeded", "1 step, 1 epoch, 0 recoveries"),
    ]


def test_a_step_that_failed_says_so_in_words_and_why() -> None:
    why = {21: "no.py: there is no such file\n(look again)", 22: "there is no tool 'fly' here"}
    story = Story(lambda session, step: f"argument-{step}", why=lambda session, entry: why.get(entry, ""))
    failed = {"seconds": 0.008, "isError": True}
    events = (
        event("step.finished", step=1, tool="edit", call="7", **failed, entry=21, error="tool_error"),
        event("step.finished", step=2, tool="bash", call="8", **failed, entry=23, error="exit_code", exitCode=3),
        event("step.finished", step=3, tool="bash", call="9", **failed, entry=24, error="timeout"),
        event("call.refused", entry=22, error="tool_unavailable"),
        event("call.refused", entry=25, error="tool_unavailable"),
        event("step.finished", step=4, tool="bash", call="10", seconds=0.1, isError=False, exitCode=0),
    )
    lines = [line for each in events for line in story.tell(each)]
    assert [(line.head.strip(), line.text) for line in lines] == [
        ("step 1", "failed: edit argument-1"),
        ("why", "no.py: there is no such file (look again)"),
        ("step 2", "failed (exit code 3): bash argument-2"),
        ("step 3", "failed (timeout): bash argument-3"),
        ("", "failed: a call of a tool that the agent does not have"),
        ("why", "there is no tool 'fly' here"),
        ("", "failed: a call of a tool that the agent does not have"),
        ("step 4", "bash argument-4"),
    ]
    assert [line.took for line in lines if line.head.startswith("step")] == ["8 ms", "8 ms", "8 ms", "100 ms"]


def test_each_failed_attempt_to_ask_the_model_is_a_line() -> None:
    refused = {"kind": "ConnectionRefused", "host": "127.0.0.1:9"}
    assert told(
        event("model.failed", attempt=1, **refused, seconds=1.5),
        event("model.failed", at=2000, attempt=2, kind="Http429", host="models.example:443", seconds=4),
        event("model.failed", at=3000, attempt=3, kind="OddError"),
        event("model.awaited", 2, 4000, attempt=4, seconds=12.5),
    ) == [
        ("model", "127.0.0.1:9: the connection was refused (attempt 1); asked again in 1.5 s"),
        ("model", "models.example:443: HTTP 429 (attempt 2); asked again in 4 s"),
        ("model", "OddError (attempt 3)"),
        ("model", "failed before; asked again in 12.5 s (attempt 4)"),
    ]


def test_what_runs_is_told_before_it_ends() -> None:
    story = Story(lambda session, step: f"argument-{step}")
    assert story.doing("fix-bug") == story.running(1000) == ""
    story.tell(event("driver.started"))
    assert story.doing("fix-bug") == "the driver starts"
    story.tell(event("space.advanced", at=1500))
    assert story.doing("fix-bug", 3500) == "the model answers for 2.0 s"
    story.tell(event("step.started", at=4000, step=1, tool="bash", call="1"))
    assert story.running(5000) == "fix-bug: step 1 bash argument-1"
    assert story.running(7000) == "fix-bug: step 1 bash argument-1 for 3.0 s"
    assert story.long_steps(5000) == []
    (line,) = story.long_steps(7000)
    assert (line.head, line.text, line.at_ms) == ("step 1", "runs: bash argument-1", 7000)
    assert story.long_steps(9000) == [], "once"
    story.tell(event("step.finished", at=9500, step=1, tool="bash", call="1", seconds=5.5))
    assert story.doing("fix-bug") == "the model answers"
    story.tell(event("step.started", at=9600, step=2, tool="bash", call="2"))
    story.tell(event("driver.gone", at=9700, reason="Killed", signal=9))
    assert (story.doing("fix-bug"), story.long_steps(99000)) == ("", [])


def test_a_killed_driver_and_what_became_of_its_step() -> None:
    assert told(
        event("driver.started"),
        event("step.started", step=2, tool="bash", call="9"),
        event("driver.gone", reason="Killed", code=137, signal=9, seconds=2.0),
        event("driver.started", 2, 2000, resumed=True),
        event("step.started", 2, 2100, step=2, tool="bash", call="9"),
        event("recovery", 2, 2100, kind="reattached", mode="transactional", reason="StillRunning", call="9"),
        event("step.finished", 2, 3000, step=2, tool="bash", call="9", seconds=1.2, isError=False),
    ) == [
        ("epoch 1", "driver started"),
        ("", "driver gone (killed by signal 9); next attempt in 2 s"),
        ("epoch 2", "driver started; step 2 reattached to its command"),
        ("step 2", "bash argument-2"),
    ]


def test_a_recovery_is_a_sentence_with_or_without_a_step() -> None:
    def text(**fields: Any) -> str:
        ((_, text),) = told(event("recovery", 2, **fields))
        return text

    assert text(kind="reimaged", step=4) == "Space made again from the log, for step 4"
    assert text(kind="reimaged") == "Space made again from the log"
    assert text(kind="replayed") == "the step in work had ended meanwhile; its result is kept"
    assert text(kind="handedOver", step=4) == "another session used the Space; step 4 is interrupted"


def test_a_driver_that_has_nothing_to_recover_is_told_all_the_same() -> None:
    story = Story(lambda session, step: "")
    assert story.tell(event("driver.started", 2, 2000, resumed=True)) == []
    assert story.waiting(2500) == []
    assert [line.text for line in story.waiting(3500)] == ["driver started"]
    assert story.waiting(9000) == []


def test_a_coordinator_that_came_back_repeats_nothing() -> None:
    once = [event("driver.started"), event("step.started", step=1, tool="read", call="1")]
    done = [event("step.finished", at=1500, step=1, tool="read", call="1", seconds=0.1, isError=False)]
    assert told(*once, *done, *once, *done) == told(*once, *done)


def test_what_was_stopped_on_purpose_is_no_crash() -> None:
    for reason in ("Stopped", "Deleted"):
        assert told(event("driver.gone", reason=reason, code=143, signal=0)) == [("", "driver stopped")]
    assert told(event("space.gone", listened=True, code=0, signal=0)) == [("", "Space stopped")]
    (killed,) = told(event("space.gone", listened=True, code=0, signal=9))
    assert killed == ("", "Space gone (killed by signal 9); its commands run on")


def test_a_failure_is_told_where_it_happens_and_its_reason_is_left_to_stderr() -> None:
    (line,) = Story(lambda session, step: "").tell(
        event("session.finished", succeeded=False, reason="AttemptsExhausted", message="3 attempts", recoveries={})
    )
    assert (line.head, line.tone) == ("Failed", "bad")
    assert line.text == "0 steps, 1 epoch, 0 recoveries"


def test_a_call_is_told_by_its_path_or_the_first_line_of_its_command() -> None:
    assert summary({"path": "calc.py", "old_text": "a"}) == "calc.py"
    assert summary({"command": "make\nmake test"}) == "make ..."
    assert len(summary({"command": "x" * 500})) <= 48
    assert summary(None) == summary({}) == summary({"command": ""}) == ""


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.0084, 1.24, 75)] == ["8 ms", "1.2 s", "1 min 15 s"]

"""Drives killed at every point where something has become true: the next drive ends as if it had not happened."""

import random

import pytest

STORY_ANSWER = "It is done."
# name and pass of each point that a whole drive of the story comes through; the commits are counted over the whole log
POINTS = [
    "log.created_uncommitted",
    "log.claimed",
    "harness.admitted",
    "harness.response_received",
    "harness.response_received:2",
    "harness.answer_committed",
    "harness.answer_committed:3",
    "harness.intent_committed",
    "harness.intent_committed:2",
    "harness.tool_returned",
    "harness.tool_returned:3",
    "harness.result_committed",
    "harness.result_committed:3",
    "harness.partial_committed",
    *(f"log.before_commit:{n}" for n in range(1, 17)),
    *(f"log.committed:{n}" for n in range(1, 17)),
]


def check_story(drives) -> None:
    """One question, one answer, one result for each call, in order; no effect of an unsafe tool twice."""
    (user,) = drives.entries("pi.user")
    answers = [entry for entry in drives.entries("pi.assistant") if entry.data["status"] == "ok"]
    assert [len(entry.model[0]["tool_calls"]) for entry in answers] == [2, 1, 0]
    calls = drives.calls()
    assert [call.arguments["word"] for call in calls] == ["one", "two", "three"]
    results = [entry.data["task_id"] for entry in drives.entries("pi.tool-result")]
    assert sorted(results) == [call.task_id for call in calls], "exactly one result for each call"
    effects = drives.effects()
    assert effects.count("two") <= 1, "an unsafe tool ran twice"
    for entry in drives.entries("pi.tool-result"):
        interrupted = any(item["code"] == "interrupted" for item in entry.data["diagnostics"])
        assert interrupted == entry.data["is_error"]
        assert not interrupted or entry.data["name"] == "unsafe", "only an unsafe call may end interrupted"
    assert user.id < answers[0].id


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_and_driven_again(drives, point: str) -> None:
    """Case 9 and the crash-injection rule: kill once at the point, then drive to the end."""
    killed = drives.drive("story", kill_at=point)
    assert killed.killed, f"{point} was never reached: nothing was tested\n{killed.error}"
    ended = drives.drive("story")
    assert ended.answer == STORY_ANSWER, ended.error
    check_story(drives)


@pytest.mark.parametrize("point", ["harness.reconciled", "harness.partial_buried", "harness.result_committed"])
def test_killed_again_during_the_recovery(drives, point: str) -> None:
    """The crash-injection rule, second kill: the third drive finishes."""
    first = "harness.partial_committed" if point == "harness.partial_buried" else "harness.intent_committed:2"
    assert drives.drive("story", kill_at=first).killed
    assert drives.drive("story", kill_at=point).killed, f"{point} was never reached"
    assert drives.drive("story").answer == STORY_ANSWER
    check_story(drives)


@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again(drives, seed: int) -> None:
    """At random commits, until a drive comes through: recoveries of recoveries. (One counted attempt: nothing is parked.)"""
    chance = random.Random(seed)
    for _ in range(30):
        point = chance.choice(["log.before_commit", "log.committed"])
        ended = drives.drive("story", kill_at=f"{point}:{chance.randint(1, 6)}", attempt=1)
        if not ended.killed:
            break
    assert ended.answer == STORY_ANSWER, ended.error
    check_story(drives)


def test_killed_before_the_admission_commit(drives) -> None:
    """Case 16: the resubmission with the same request id admits once."""
    assert drives.drive("answer", kill_at="log.before_commit:2").killed  # 1 makes the root conversation
    assert drives.entries() == []
    assert drives.drive("answer").answer == STORY_ANSWER
    assert len(drives.entries("pi.user")) == 1


def test_killed_right_after_the_admission_commit(drives) -> None:
    """Case 17: the same submission, one user entry, one run."""
    assert drives.drive("answer", kill_at="log.committed:2").killed
    (user,) = drives.entries("pi.user")
    assert drives.drive("answer").answer == STORY_ANSWER
    assert drives.entries("pi.user") == [user]
    assert len(drives.requests()) == 1


def test_killed_while_streaming(drives) -> None:
    """Case 48: the partial stays as an aborted entry; the same request is sent again; one answer; both count as they report."""
    assert drives.drive("streaming", kill_at="harness.partial_committed", act="hang").killed
    assert drives.drive("streaming").answer == STORY_ANSWER
    aborted, answer = drives.entries("pi.assistant")
    assert (aborted.data["status"], aborted.model[0]["content"]) == ("aborted", "It is")
    assert answer.data["status"] == "ok"
    first, second = drives.requests()
    assert first == second
    assert first["model"] == "one"
    assert first["session"]


def test_killed_between_the_response_and_its_commit(drives) -> None:
    """Case 49: the model is asked again, and there is exactly one answer."""
    assert drives.drive("answer", kill_at="harness.response_received").killed
    assert drives.drive("answer").answer == STORY_ANSWER
    first, second = drives.requests()
    assert first == second
    assert [entry.data["status"] for entry in drives.entries("pi.assistant")][-1:] == ["ok"]


def test_killed_inside_an_unsafe_tool(drives) -> None:
    """Case 53: not run again; `interrupted` with the output that was shown; the run goes on."""
    assert drives.drive("unsafe", act="die:u").killed
    assert drives.drive("unsafe").answer == STORY_ANSWER
    assert drives.effects() == ["u"]
    (result,) = drives.entries("pi.tool-result")
    assert result.data["is_error"]
    assert [item["code"] for item in result.data["diagnostics"]] == ["interrupted"]
    assert result.model[0]["content"].startswith("leaving u\n")


def test_killed_inside_a_safe_tool(drives) -> None:
    """Case 54: run again with the stored arguments, told that it is a recovery; one result."""
    assert drives.drive("safe", act="die:s").killed
    assert drives.drive("safe").answer == STORY_ANSWER
    assert drives.effects() == ["s", "s-again"]
    (result,) = drives.entries("pi.tool-result")
    assert result.model[0]["content"] == "left s"
    assert not result.data["is_error"]


@pytest.mark.parametrize(
    ("scenario", "effects", "code"), [("safe", ["s", "s-again"], None), ("unsafe", ["u"], "interrupted")]
)
def test_killed_between_a_tools_return_and_its_result(
    drives, scenario: str, effects: list[str], code: str | None
) -> None:
    """Case 57: no silent loss, no second entry, by the tool's policy."""
    assert drives.drive(scenario, kill_at="harness.tool_returned").killed
    assert drives.drive(scenario).answer == STORY_ANSWER
    assert drives.effects() == effects
    (result,) = drives.entries("pi.tool-result")
    assert [item["code"] for item in result.data["diagnostics"]] == ([code] if code else [])


def test_killed_in_a_round_with_one_call_done(drives) -> None:
    """Case 58: the done one keeps its entry, the others settle by policy, and the model sees them in call order."""
    assert drives.drive("parallel", kill_at="harness.result_committed").killed
    (first,) = drives.entries("pi.tool-result")
    assert drives.drive("parallel").answer == STORY_ANSWER
    results = drives.entries("pi.tool-result")
    assert results[0] == first
    assert sorted(entry.data["index"] for entry in results) == [0, 1, 2]
    shown = [message for message in drives.requests()[-1]["messages"] if message["role"] == "tool"]
    assert [message["name"] for message in shown] == ["safe", "unsafe", "safe"]


def test_killed_in_the_wait_before_a_retry(drives) -> None:
    """Case 50, the crash: the error entry stays out of the context, and the deadline is in the log."""
    assert drives.drive("retry", kill_at="harness.retry_committed").killed
    assert drives.drive("retry").answer == STORY_ANSWER
    error, answer = drives.entries("pi.assistant")
    assert (error.data["status"], error.data["error"], answer.data["status"]) == ("error", "busy", "ok")
    first, second = drives.requests()
    assert first["messages"] == second["messages"]


def test_killed_in_phase_two_of_three(drives) -> None:
    """Case 27: phase 2 runs again from its top, phase 1 does not."""
    assert drives.drive("steps", act="die:second").killed
    assert drives.drive("steps").answer == "steps"
    assert drives.effects() == ["first", "second-0", "second-1", "third", "paid"]


def test_killed_after_an_effect_that_a_memo_notes(drives) -> None:
    """Case 25: the effect with a memo is done once, the one without twice."""
    assert drives.drive("steps", act="die:third").killed
    assert drives.drive("steps").answer == "steps"
    assert drives.effects().count("paid") == 1
    assert drives.effects().count("third") == 2


def test_a_task_that_kills_every_drive_is_parked(drives) -> None:
    """Case 33: five deaths in one phase park it; it does not run until it is released, and then once."""
    for attempt in range(1, 6):
        assert drives.drive("steps", act="die:second", attempt=attempt).killed
    assert drives.drive("steps", attempt=6).answer == "blocked restart_limit"
    assert drives.effects().count("second-4") == 1
    assert drives.drive("steps", act="retry", attempt=6).answer == "steps"


def test_drives_that_are_not_counted_park_nothing(drives) -> None:
    """Rule 33: the attempt did not grow (evictions, node losses), so no restart counts."""
    for _ in range(6):
        assert drives.drive("steps", act="die:second", attempt=1).killed
    assert drives.drive("steps", attempt=1).answer == "steps"
    assert drives.effects().count("second-0") == 7

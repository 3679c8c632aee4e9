"""The small rules: epochs and names, waits, the two-line report, and every way in which a drive can end."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_base.floor import EPOCH_MAX
from durable_coordinator.backoff import counted_seconds, uncounted_seconds
from durable_coordinator.conditions import SESSION_REASONS, SPACE_REASONS, Said, dated
from durable_coordinator.epochs import driver_name, epoch_of, generation_of, next_epoch, space_pod_name
from durable_coordinator.exits import REASONS, Effect, Judging, judge_exit
from durable_coordinator.facts import Disruption, DriverEnd
from durable_coordinator.report import Report, parse_report
from durable_coordinator.spec_session import Retry
from durable_coordinator.status import SessionStatus, at, from_dict, to_dict

KNOWN = st.integers(0, 2**40)


@given(KNOWN, KNOWN, KNOWN, KNOWN, KNOWN)
def test_an_epoch_is_above_everything_known_and_no_higher_than_needed(
    a: int, token: int, b: int, c: int, d: int
) -> None:
    epoch = next_epoch(session=a, lease_token=token, space=b, reported_floor=c, names_seen=d)
    assert epoch > max(a, b, c, d)
    assert epoch >= token
    assert epoch in (a + 1, token, b + 1, c + 1, d + 1)


def test_a_damaged_floor_stops_rather_than_wraps() -> None:
    with pytest.raises(OverflowError):
        next_epoch(session=0, lease_token=1, space=0, reported_floor=EPOCH_MAX, names_seen=0)


def test_names_carry_their_numbers_and_nothing_else_does() -> None:
    assert epoch_of("job", driver_name("job", 12)) == 12
    assert generation_of("job", space_pod_name("job", 3)) == 3
    for name in ("job-e", "job-ex", "job-e1x", "job-e-1", "job-e١", "jobs-e1", "other-e1", "job-g1", "job-e1-abc"):
        assert epoch_of("job", name) == 0, name


def test_a_counted_wait_doubles_up_to_its_limit() -> None:
    assert [counted_seconds(Retry(), n) for n in range(1, 11)] == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert [counted_seconds(Retry(initial_seconds=5, factor=1), n) for n in (1, 2, 1000)] == [5, 5, 5]
    assert counted_seconds(Retry(factor=10, max_seconds=86400), 1000) == 86400


def test_an_uncounted_wait_begins_with_none() -> None:
    assert [uncounted_seconds(n) for n in (0, 1, 2, 3, 4, 10, 11, 10_000)] == [0, 0, 1, 2, 4, 256, 300, 300]


def test_a_report_is_read_with_its_answer() -> None:
    line = {
        "session": "job", "epoch": 3, "outcome": "settled", "reason": "Completed", "floor": {"epoch": 3, "incarnation": "ab"},
        "entries": 7, "lastEntry": 21, "recoveries": {"reattached": 1}, "usage": {"tokens": 5}, "mode": "transactional",
        "something": "newer",
    }  # fmt: skip
    report = parse_report(json.dumps(line) + "\n" + json.dumps('All tests "pass".\n'))
    assert report is not None
    assert (report.epoch, report.outcome, report.last_entry, report.answer) == (3, "settled", 21, 'All tests "pass".\n')
    assert report.recoveries == {"reattached": 1}


@pytest.mark.parametrize("second", ["", '"cut of', "7", "\x00"])
def test_a_broken_second_line_loses_only_the_answer(second: str) -> None:
    report = parse_report('{"epoch": 3, "outcome": "settled"}\n' + second)
    assert report == Report(epoch=3, outcome="settled")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Killed",
        "{}",
        '{"epoch": 3}',
        '{"epoch": "3", "outcome": "settled"}',
        '{"epoch": 3, "outcome": "fine"}',
        "\ud800",
    ],
)
def test_a_broken_first_line_is_no_report(text: str) -> None:
    assert parse_report(text) is None


@given(st.text())
def test_no_text_makes_reading_a_report_fail(text: str) -> None:
    parse_report(text)


OUTCOMES = (None, "settled", "failed", "fenced", "halted", "stopped", "crashed")
REPORTS = tuple(
    None if outcome is None else Report(epoch=epoch, outcome=outcome, reason=reason)  # type: ignore[arg-type]
    for outcome, epoch, reason in itertools.product(OUTCOMES, (5, 4), ("", "SpaceUnreachable"))
)


@settings(max_examples=3000, derandomize=True, deadline=None)
@given(
    code=st.sampled_from([None, 0, 1, 75, 78, 137, 143]),
    report=st.sampled_from(REPORTS),
    started=st.booleans(),
    deleted=st.booleans(),
    failed_phase=st.booleans(),
    disruption=st.sampled_from([None, *Disruption]),
    oom_killed=st.booleans(),
    evicted=st.booleans(),
    init_failed=st.booleans(),
    beat=st.sampled_from([None, 1.0, 500.0]),
    ran=st.sampled_from([None, 10.0, 1000.0]),
    committed=st.booleans(),
    stopping=st.booleans(),
    space_changed=st.booleans(),
)
def test_every_end_has_one_judgement_that_keeps_the_rules(
    code: int | None,
    report: Report | None,
    started: bool,
    deleted: bool,
    failed_phase: bool,
    disruption: Disruption | None,
    oom_killed: bool,
    evicted: bool,
    init_failed: bool,
    beat: float | None,
    ran: float | None,
    committed: bool,
    stopping: bool,
    space_changed: bool,
) -> None:
    end = DriverEnd(
        uid="u",
        epoch=5,
        started=started,
        code=code,
        report=report,
        started_at=None if ran is None else 100.0,
        finished_at=None if ran is None else 100.0 + ran,
        committed=committed,
        beat_age_seconds=beat,
        oom_killed=oom_killed,
        disruption=disruption,
        evicted=evicted,
        failed_phase=failed_phase,
        deleted=deleted,
        init_failed=init_failed,
    )
    judging = Judging(stopping=stopping, stall_seconds=120, reset_after_seconds=600, space_changed=space_changed)
    got = judge_exit(end, judging)
    assert got.reason in REASONS
    settled = report is not None and report.epoch == 5 and report.outcome == "settled"
    disturbed = deleted or failed_phase or evicted or disruption is not None
    succeeds = started and code == 0 and (settled or (report is None and not disturbed))
    assert (got.effect is Effect.SUCCEED) == succeeds, "rule 4"
    assert (got.effect is Effect.FAIL) == (started and code == 78)
    if got.counted:
        assert not stopping, "what we asked for is nobody's failure"
        assert disruption is None, "an outside disruption never counts"
        assert code not in (0, 75, 78) or not started or evicted or oom_killed
        assert not deleted or evicted or oom_killed, "a deletion never counts"
    if got.resets:
        assert ran == 1000.0, "rule 11: progress takes its time"


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    first = dated((), [Said("Ready", "False", "Pending")], now=100.0, generation=1)
    same = dated(first, [Said("Ready", "False", "Starting", "soon")], now=200.0, generation=2)
    moved = dated(same, [Said("Ready", "True", "Driving")], now=300.0, generation=2)
    assert [one.last_transition_time for (one,) in (first, same, moved)] == [at(100.0), at(100.0), at(300.0)]
    assert [one.observed_generation for (one,) in (first, same, moved)] == [1, 2, 2]
    (long,) = dated((), [Said("Ready", "False", "Pending", "x" * 9999)], now=1.0, generation=1)
    assert len(long.message) == 2048


def test_a_status_of_a_newer_coordinator_is_read_and_its_unknown_fields_are_left_alone() -> None:
    wire = {"epoch": 4, "phase": "new", "driver": {"pod": "job-e4", "colour": "blue"}}
    status = from_dict(SessionStatus, wire)
    assert to_dict(status) == {"epoch": 4, "driver": {"pod": "job-e4"}}
    assert from_dict(SessionStatus, None) == SessionStatus()


def test_the_reference_explains_every_condition_and_reason() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference-conditions.md").read_text()
    for table in (SESSION_REASONS, SPACE_REASONS):
        for kind, by_status in table.items():
            assert kind in text
            for reason in itertools.chain(*by_status.values()):
                assert f"`{reason}`" in text, f"{kind}: {reason} is not explained"
    for reason in REASONS:
        assert f"`{reason}`" in text, f"lastExit: {reason} is not explained"

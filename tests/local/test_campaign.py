"""A campaign's one line, from the results of its runs."""

from collections import Counter
from pathlib import Path

from durable_cli.chaos import summary_line
from durable_cli.chaos_run import Result


def result(seed: int, *problems: str) -> Result:
    kills = Counter({"driver": 3, "Space": 1, "coordinator": 1})
    return Result(seed, Path(), list(problems), kills, Counter(replayed=seed), [float(seed), float(seed) + 1])


def test_it_counts_runs_kills_and_recoveries_by_kind() -> None:
    assert summary_line([result(1), result(2), result(3, "workspace differs", "still running")]) == (
        "SUMMARY runs=3 ok=2 failed=1  kills: Space=3 coordinator=3 driver=9  recoveries: replayed=6  "
        "resume: p50=2.5s p95=3.8s"
    )


def test_a_campaign_without_a_resume_says_so() -> None:
    assert summary_line([Result(1, Path())]).endswith("kills: none  recoveries: none  resume: none")

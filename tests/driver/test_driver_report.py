"""The report: two lines that fit into what kubelet keeps, whatever the drive had to say."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_base.floor import Floor
from durable_driver.exit_codes import Ending
from durable_driver.report import (
    FACTS_BYTES_MAX,
    REPORT_BYTES_MAX,
    DriveFacts,
    compose_report,
    facts_line,
    write_report,
)

SETTLED = Ending(0, "settled", "Completed")
FACTS = DriveFacts(
    session="fix-bug",
    epoch=3,
    floor=Floor(3, "a" * 32),
    mode="transactional",
    entries=4,
    last_entry=17,
    recoveries={"reattached": 1},
    usage={"inputTokens": 10, "outputTokens": 2, "cost": 0.5},
    answer="All 14 tests pass.",
)


def test_a_settled_drive_reports_facts_and_answer() -> None:
    first, second = compose_report(FACTS, SETTLED).split(b"\n")
    assert json.loads(first) == {
        "session": "fix-bug",
        "epoch": 3,
        "outcome": "settled",
        "reason": "Completed",
        "message": "",
        "floor": {"epoch": 3, "incarnation": "a" * 32},
        "mode": "transactional",
        "entries": 4,
        "lastEntry": 17,
        "recoveries": {"reattached": 1},
        "usage": {"inputTokens": 10, "outputTokens": 2, "cost": 0.5},
    }
    assert json.loads(second) == "All 14 tests pass."


def test_a_fenced_drive_reports_the_floor_that_fenced_it() -> None:
    report = compose_report(DriveFacts("s", 3, Floor(3, "a")), Ending(75, "fenced", "Fenced", "newer", Floor(5, "b")))
    first, second = report.split(b"\n")
    assert json.loads(first)["floor"] == {"epoch": 5, "incarnation": "b"}
    assert second == b""


def test_a_cut_answer_says_so() -> None:
    report = compose_report(DriveFacts("s", 3, answer="ä" * 5000), SETTLED)
    first, second = report.split(b"\n")
    assert json.loads(first)["answerTruncated"] is True
    answer = json.loads(second)
    assert answer == "ä" * len(answer)
    assert REPORT_BYTES_MAX - FACTS_BYTES_MAX - 3 <= len(second) <= REPORT_BYTES_MAX - FACTS_BYTES_MAX


any_text = st.text(max_size=6000) | st.text(alphabet='"\\\n\x00ä🐍\ud800', max_size=6000)


@given(session=st.text(max_size=1200), message=any_text, answer=st.none() | any_text, kinds=st.integers(0, 16))
def test_it_always_fits_and_always_reads(session: str, message: str, answer: str | None, kinds: int) -> None:
    recoveries = {f"recovery-{n}" * 3: 9 for n in range(kinds)}
    facts = DriveFacts(session, 2**53 - 1, Floor(2**53 - 1, "f" * 32), "auto", 10**9, 10**9, recoveries, answer=answer)
    report = compose_report(facts, Ending(1, "crashed", "Crashed", message))
    assert len(report) <= REPORT_BYTES_MAX
    first, _, second = report.partition(b"\n")
    assert len(first) <= FACTS_BYTES_MAX
    line = json.loads(first)
    assert (line["outcome"], line["epoch"], line["lastEntry"]) == ("crashed", 2**53 - 1, 10**9)
    if answer is None:
        assert second == b""
    else:
        cut = json.loads(second)
        assert answer.encode("utf-8", "replace").decode().startswith(cut)
        assert line.get("answerTruncated", False) == (len(cut) < len(answer))
    assert facts_line(report) == first.decode()


def test_it_replaces_what_stood_in_the_file_without_a_rename(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("x" * 5000)
    inode = path.stat().st_ino
    write_report(path, b"{}\n")
    assert (path.read_bytes(), path.stat().st_ino) == (b"{}\n", inode)


def test_a_report_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        write_report(tmp_path / "report" / "x" if (tmp_path / "report").write_text("") == 0 else tmp_path, b"{}")

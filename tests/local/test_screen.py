"""Lines fit where they are read: 80 columns in a pipe, the terminal's own width on a terminal."""

from pathlib import Path

import pytest

from durable_cli.arguments import LogArguments
from durable_cli.screen import screen
from durable_cli.story import Story
from durable_local.events import Event
from durable_local.layout import session_home

NAME = "fix-bug"
LONG = "python3 -m unittest --verbose --failfast tests"


class Told(LogArguments):
    def __call__(self, session: str, step: int) -> str:
        return LONG


def events() -> list[Event]:
    step = {"step": 1, "tool": "bash", "call": "7"}
    return [
        Event(1000, NAME, 1, "driver.started"),
        Event(1100, NAME, 1, "step.finished", {**step, "seconds": 3725.0, "isError": False}),
        Event(1200, NAME, 1, "driver.gone", {"reason": "Killed", "code": None, "signal": 9, "seconds": 2.0}),
        Event(1300, NAME, 2, "driver.started", {"resumed": True}),
        Event(1400, NAME, 2, "recovery", {"kind": "reattached", "step": 2}),
        Event(1500, NAME, 2, "session.ready", {"reason": "VolumeUnavailable", "message": "why " * 30 + "told whole"}),
    ]


def test_plain_lines_fit_in_80_columns_unless_a_reason_is_longer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with screen("text", Told(tmp_path), [NAME]) as shown:
        for event in events():
            shown.show(event)
    *lines, why = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert "bash python3 -m unittest" in lines[1]
    assert "62 min 5 s" in lines[1]
    assert len({len(line) for line in lines}) == 1, "clocks stand below each other"
    assert why.split("  00:")[0].endswith("told whole")


def test_a_driver_that_crashed_has_its_last_words(tmp_path: Path) -> None:
    drive = session_home(tmp_path, NAME).drive(1)
    drive.mkdir(parents=True)
    words = "ModuleNotFoundError: No module named 'mine'" + "!" * 500
    (drive / "stderr").write_text(f"Traceback ...\n{words}\n  at mine.py:3\n\n")
    log = LogArguments(tmp_path)
    story = Story(log, log.last_words)
    fields = {"reason": "Crashed", "code": 1, "signal": 0}
    (line,) = story.tell(Event(1000, NAME, 1, "driver.gone", {**fields, "seconds": 2.0}))
    head, words = line.text.split(": ", 1)
    assert head == "driver gone (Crashed, exit code 1); next attempt in 2 s"
    assert words.startswith("ModuleNotFoundError: No module named 'mine'!")
    assert len(words) == 300
    assert words.endswith("! ...")
    (line,) = story.tell(Event(2000, NAME, 2, "driver.gone", fields))
    assert line.text == "driver gone (Crashed, exit code 1)"

"""The driver as a process, with a real log and a real Space daemon: from its start to its exit code."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from durable_harness import LogReader
from durable_spaces.testing import crash_points, read_image, read_tree, without_times

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef"
SCRIPT = """
steps:
  - say: I look first.
    calls: [{bash: {command: "echo start >> notes.txt; cat a.txt"}}]
  - calls:
      - edit: {path: a.txt, old_text: one, new_text: two}
      - write: {path: b.txt, content: "made\\n"}
  - expect: Wrote 5 bytes
    calls: [{read: {path: a.txt}}]
  - answer: All done.
"""
# Written to end only once the test lets it: a file outside the workspace appears.
HELD = """
steps:
  - calls: [{{bash: {{command: "echo begun >> notes.txt; while [ ! -e {gate} ]; do sleep 0.05; done; echo ended >> notes.txt"}}}}]
  - answer: All done.
"""


def until(true: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.02)


@dataclass
class Drive:
    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    report_path: Path

    def wait(self, seconds: float = 60.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end: {self.out.read_text()} {self.err.read_text()}") from None

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.lines() if line.startswith("{")]
        return [event for event in found if name is None or event["event"] == name]

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.report_path.read_bytes().split(b"\n")[0])
        return report

    def answer(self) -> Any:
        second = self.report_path.read_bytes().split(b"\n")[1]
        return json.loads(second) if second else None


@dataclass
class Place:
    """One session's folders and its Space."""

    folder: Path
    workspace: Path
    socket: Path
    drives: list[Drive] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "state" / "log.db"

    def script(self, text: str) -> None:
        (self.folder / "script.yaml").write_text(text)

    def environment(self, epoch: int, **changes: str | None) -> dict[str, str]:
        environ: dict[str, str | None] = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("CUA_", "DURABLE_"))},
            "CUA_SESSION": "fix-bug",
            "CUA_SESSION_EPOCH": str(epoch),
            "CUA_SESSION_STATE_DIR": str(self.folder / "state"),
            "CUA_SESSION_HEARTBEAT_SECS": "0.1",
            "CUA_SESSION_SPACE": "box",
            "CUA_SESSION_SPACE_ADDR": f"unix:{self.socket}",
            "CUA_SESSION_SPACE_TOKEN": TOKEN,
            "DURABLE_SESSION_UID": "uid-1",
            "DURABLE_INPUT": str(self.folder / "input.txt"),
            "DURABLE_AGENT": str(self.folder / "agent.yaml"),
            "DURABLE_SCRIPT": str(self.folder / "script.yaml"),
            **changes,
        }
        return {name: value for name, value in environ.items() if value is not None}

    def start(self, epoch: int, *command: str, **changes: str | None) -> Drive:
        number = len(self.drives)
        report = self.folder / f"report-{number}"
        out, err = self.folder / f"out-{number}", self.folder / f"err-{number}"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command or (sys.executable, "-m", "durable_driver"),
                env=self.environment(epoch, DURABLE_REPORT=str(report), **changes),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        self.drives.append(Drive(process, out, err, report))
        return self.drives[-1]


@pytest.fixture
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="driver-"))  # short: a socket's path has 107 bytes
    place = Place(folder, folder / "work", folder / "s.sock")
    for name in ("state", "work", "data"):
        (folder / name).mkdir()
    (folder / "work" / "a.txt").write_text("one\n")
    (folder / "input.txt").write_text("Do it.")
    (folder / "agent.yaml").write_text("model: {provider: scripted}\ninstructions: Be careful.\n")
    (folder / "token").write_text(TOKEN + "\n")
    place.script(SCRIPT)
    command = [sys.executable, "-m", "durable_space", "--data", folder / "data", "--workspace", folder / "work"]
    command += ["--listen", f"unix:{place.socket}", "--name", "box", "--token-file", folder / "token"]
    with (folder / "space.log").open("wb") as log:
        space = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: b'"listening"' in (folder / "space.log").read_bytes() or space.poll() is not None)
        assert space.poll() is None, (folder / "space.log").read_text()
        yield place
    finally:
        for drive in place.drives:
            drive.process.kill()
            drive.process.wait()
        (folder / "gate").touch()
        space.terminate()
        space.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def expected_tree(place: Place) -> None:
    files = {path.name: path.read_text() for path in place.workspace.iterdir()}
    assert files == {"a.txt": "two\n", "b.txt": "made\n", "notes.txt": "start\n"}
    assert without_times(read_tree(place.workspace)) == without_times(read_image(place.log))


def test_from_start_to_finish(place: Place) -> None:
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


def test_a_settled_session_is_finished_at_once_by_the_next_drive(place: Place) -> None:
    assert place.start(1).wait() == 0
    again = place.start(2, CUA_SESSION_RESUME="1")
    assert again.wait() == 0
    assert (again.report()["outcome"], again.report()["entries"], again.answer()) == ("settled", 0, "All done.")
    assert again.events("step.started") == []
    expected_tree(place)


def test_a_second_process_of_one_epoch_is_fenced_and_writes_nothing(place: Place) -> None:
    place.script(HELD.format(gate=place.folder / "gate"))
    first = place.start(1)
    until(lambda: (place.workspace / "notes.txt").exists())
    second = place.start(1)
    assert second.wait() == 75
    report = second.report()
    assert (report["outcome"], report["reason"], report["entries"]) == ("fenced", "Fenced", 0)
    assert report["floor"]["epoch"] == 1
    assert "a newer driver has taken over" in second.err.read_text()
    (place.folder / "gate").touch()
    assert first.wait() == 0
    assert first.report()["floor"]["incarnation"] == report["floor"]["incarnation"]
    assert (place.workspace / "notes.txt").read_text() == "begun\nended\n"


def test_an_older_driver_is_fenced_by_a_newer_one(place: Place) -> None:
    place.script(HELD.format(gate=place.folder / "gate"))
    first = place.start(1)
    until(lambda: (place.workspace / "notes.txt").exists())
    second = place.start(2, CUA_SESSION_RESUME="1")
    until(lambda: second.events("space.advanced"))
    (place.folder / "gate").touch()
    assert second.wait() == 0
    assert first.wait() == 75
    assert first.report()["floor"]["epoch"] == 2
    assert (place.workspace / "notes.txt").read_text() == "begun\nended\n"


def test_a_driver_that_is_asked_to_stop_leaves_its_command_to_the_next(place: Place) -> None:
    place.script(HELD.format(gate=place.folder / "gate"))
    first = place.start(1)
    until(lambda: (place.workspace / "notes.txt").exists())
    first.process.terminate()
    assert first.wait(20) == 143
    assert (first.report()["outcome"], first.report()["reason"]) == ("stopped", "Stopped")
    second = place.start(2, CUA_SESSION_RESUME="1", CUA_SESSION_ATTEMPT="1")
    until(lambda: second.events("recovery"))
    (recovery,) = second.events("recovery")
    assert (recovery["kind"], recovery["step"]) == ("reattached", 1)
    (place.folder / "gate").touch()
    assert second.wait() == 0
    assert second.report()["recoveries"] == {"reattached": 1}
    assert (place.workspace / "notes.txt").read_text() == "begun\nended\n"


DRIVER_POINTS = crash_points(ROOT / "driver" / "durable_driver", "driver.")


def test_the_driver_has_its_crash_points() -> None:
    assert DRIVER_POINTS == [
        "driver.log_opened",
        "driver.report_written",
        "driver.settled",
        "driver.space_advanced",
        "driver.space_ensured",
    ]


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_killed_at_a_point_of_its_life_the_next_drive_finishes(place: Place, point: str) -> None:
    first = place.start(1, DURABLE_CRASH=point)
    assert first.wait() == -signal.SIGKILL, f"{point} was never reached"
    second = place.start(2, CUA_SESSION_RESUME="1", CUA_SESSION_ATTEMPT="2")
    assert second.wait() == 0, second.err.read_text()
    assert second.answer() == "All done."
    expected_tree(place)
    with LogReader.open(place.log) as log:
        assert len([entry for entry in log.entries() if entry.kind == "pi.user"]) == 1


def test_life_and_progress_can_be_asked_for_while_it_runs(place: Place) -> None:
    place.script(HELD.format(gate=place.folder / "gate"))
    drive = place.start(1)
    until(lambda: drive.events("step.started"))
    port = drive.events("driver.started")[0]["http"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert "durable_driver_heartbeat_timestamp_seconds 1." in text
    assert "durable_driver_last_commit_timestamp_seconds 1." in text
    assert "durable_driver_epoch 1.0" in text
    beats = len([line for line in drive.lines() if line.startswith("CUA-HEARTBEAT 1 ")])
    until(lambda: len([line for line in drive.lines() if line.startswith("CUA-HEARTBEAT 1 ")]) > beats + 2)
    (place.folder / "gate").touch()
    assert drive.wait() == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"CUA_SESSION_EPOCH": "x"}, "CUA_SESSION_EPOCH is 'x': use a whole number from 1"),
        (
            {"CUA_SESSION_STATE_DIR": "/nowhere/state"},
            "CUA_SESSION_STATE_DIR is '/nowhere/state': there is no such folder",
        ),
        ({"DURABLE_INPUT": None}, "DURABLE_INPUT is not set: set it to the file with the session's input"),
        ({"DURABLE_AGENT": "/nowhere/agent.yaml"}, "DURABLE_AGENT is '/nowhere/agent.yaml': can't be read"),
        ({"DURABLE_SCRIPT": None}, "DURABLE_SCRIPT is not set"),
        ({"DURABLE_MODE": "checkpoint"}, "mode checkpoint is not served by this version"),
        ({"DURABLE_LOG": "s3://bucket/prefix"}, "DURABLE_LOG is 's3://bucket/prefix': logs in an object store"),
    ],
)
def test_a_bad_environment_is_one_line_and_a_permanent_failure(
    place: Place, changes: dict[str, str | None], says: str
) -> None:
    drive = place.start(1, **changes)
    assert drive.wait() == 78
    (line,) = drive.err.read_text().splitlines()
    assert line.startswith(f"durable driver: {says}")
    assert drive.report()["outcome"] == "failed"
    assert says[:60] in drive.report()["message"]


def test_an_unanswered_input_is_a_permanent_failure_with_the_reason(place: Place) -> None:
    place.script("steps:\n- expect: never\n  answer: x\n")
    drive = place.start(1)
    assert drive.wait() == 78
    assert (drive.report()["outcome"], drive.report()["reason"]) == ("failed", "ModelError")
    assert "step 1 expects 'never'" in drive.report()["message"]


def test_a_space_that_is_away_is_a_halt_and_not_a_result(place: Place) -> None:
    drive = place.start(1, CUA_SESSION_SPACE_ADDR=f"unix:{place.folder}/none.sock")
    assert drive.wait() == 1
    assert (drive.report()["outcome"], drive.report()["reason"]) == ("halted", "SpaceUnreachable")


OWN = """
import os
from durable_driver import DriveContext, run_durable_session
from durable_harness import Agent, ScriptedModel, tool

assert "CUA_SESSION_SPACE_TOKEN" in os.environ
SCRIPT = '''
steps:
- calls: [{search_tickets: {query: bug}}]
- {expect: "ticket 7: bug, None", answer: found}
'''

@tool
async def search_tickets(query: str) -> str:
    '''Search.'''
    return f"ticket 7: {query}, {os.environ.get('CUA_SESSION_SPACE_TOKEN')}"

async def start(drive: DriveContext):
    model = ScriptedModel.load(SCRIPT)
    harness = await drive.open_harness(models={"own": model}, tools=[search_tickets])
    root = await harness.root(Agent(model="own", tools=["search_tickets"]))
    return await root.submit(drive.input, request_id=drive.request_id)

if __name__ == "__main__":
    run_durable_session(start)
"""


def test_a_driver_of_ones_own_runs_and_its_tools_see_no_token(place: Place) -> None:
    program = place.folder / "own.py"
    program.write_text(OWN)
    drive = place.start(1, sys.executable, str(program), DURABLE_AGENT=None)
    assert drive.wait() == 0, drive.err.read_text()
    assert drive.answer() == "found"
    assert drive.report()["reason"] == "Completed"


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        ("raise PermanentFailure('NoTickets', 'none are left')", 78, "NoTickets"),
        ("raise RuntimeError('secret')", 1, "Crashed"),
        ("await asyncio.sleep(3600)", 143, "Stopped"),
    ],
)
def test_what_a_start_function_raises_is_judged(place: Place, body: str, code: int, reason: str) -> None:
    program = place.folder / "own.py"
    program.write_text(
        "import asyncio\nfrom durable_driver import PermanentFailure, run_durable_session\n"
        f"async def start(drive):\n    {body}\nrun_durable_session(start)\n"
    )
    drive = place.start(1, sys.executable, str(program))
    if code == 143:
        until(lambda: drive.events("log.opened"))
        drive.process.terminate()
    assert drive.wait() == code
    assert drive.report()["reason"] == reason
    assert "secret" not in drive.err.read_text() + drive.report_path.read_text()


def test_help_lists_the_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "durable_driver", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "CUA_SESSION_EPOCH" in done.stdout
    assert "75" in done.stdout

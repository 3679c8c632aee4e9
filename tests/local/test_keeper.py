"""Child processes: started once per folder, their end is known whoever dies, nobody else is ever signalled."""

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from durable_local import process
from durable_local.process import Life


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.01)


def begin(folder: Path, program: str, *, uid: str = "") -> str:
    """Start a Python program; the answer is the uid it was started under."""
    uid = uid or str(uuid.uuid4())
    process.start(folder, uid, [sys.executable, "-c", program], dict(os.environ), folder.parent)
    return uid


def keeper_pid(folder: Path) -> int:
    return int(json.loads((folder / "claim").read_text())["pid"])


def running(folder: Path) -> bool:
    return process.look(folder).life is Life.RUNNING and process.look(folder).pid > 0


@pytest.mark.parametrize(
    ("program", "code", "number"),
    [("print('hello')", 0, 0), ("raise SystemExit(75)", 75, 0), ("import os; os.kill(os.getpid(), 9)", 0, 9)],
)
def test_the_end_of_a_child_is_recorded(tmp_path: Path, program: str, code: int, number: int) -> None:
    uid = begin(tmp_path / "e1", program)
    until(lambda: process.look(tmp_path / "e1").life is Life.ENDED)
    facts = process.look(tmp_path / "e1")
    assert (facts.uid, facts.code, facts.signal) == (uid, code, number)


def test_a_folder_is_used_once(tmp_path: Path) -> None:
    program = "open('ran', 'a').write('x')"
    keepers = [
        process.start(tmp_path / "e1", str(n), [sys.executable, "-c", program], os.environ, tmp_path) for n in range(5)
    ]
    assert sorted(keeper.wait(10) for keeper in keepers) == [0, 3, 3, 3, 3]
    begin(tmp_path / "e1", program)  # and long after it ended
    until(lambda: process.look(tmp_path / "e1").life is Life.ENDED)
    assert (tmp_path / "ran").read_text() == "x"


def test_output_goes_to_files_from_the_start(tmp_path: Path) -> None:
    begin(tmp_path / "e1", "import sys; print('out'); print('err', file=sys.stderr)")
    until(lambda: process.look(tmp_path / "e1").life is Life.ENDED)
    assert (tmp_path / "e1/stdout").read_text() == "out\n"
    assert (tmp_path / "e1/stderr").read_text() == "err\n"


def test_a_child_ends_with_its_keeper_and_nobody_guesses_how(tmp_path: Path) -> None:
    begin(tmp_path / "e1", "import time; time.sleep(60)")
    until(lambda: running(tmp_path / "e1"))
    child = process.look(tmp_path / "e1").pid
    os.kill(keeper_pid(tmp_path / "e1"), signal.SIGKILL)
    until(lambda: process.look(tmp_path / "e1").life is Life.GONE)
    until(lambda: not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes())


def test_a_signal_reaches_the_child_and_not_its_keeper(tmp_path: Path) -> None:
    begin(tmp_path / "e1", "import time; time.sleep(60)")
    until(lambda: running(tmp_path / "e1"))
    assert process.send(tmp_path / "e1", signal.SIGTERM)
    until(lambda: process.look(tmp_path / "e1").life is Life.ENDED)
    assert process.look(tmp_path / "e1").signal == signal.SIGTERM
    assert not process.send(tmp_path / "e1", signal.SIGTERM)


def test_a_process_that_got_the_pid_later_is_not_signalled(tmp_path: Path) -> None:
    begin(tmp_path / "e1", "import time; time.sleep(60)")
    until(lambda: running(tmp_path / "e1"))
    record = tmp_path / "e1/child"
    written = record.read_text()
    record.write_text(json.dumps({**json.loads(written), "start": 1}))  # as if the pid had come again
    assert not process.send(tmp_path / "e1", signal.SIGKILL)
    record.write_text(written)
    assert process.send(tmp_path / "e1", signal.SIGKILL)


def test_records_of_an_earlier_boot_tell_that_it_is_gone(tmp_path: Path) -> None:
    begin(tmp_path / "e1", "import time; time.sleep(60)")
    until(lambda: running(tmp_path / "e1"))
    claim = tmp_path / "e1/claim"
    written = claim.read_text()
    claim.write_text(json.dumps({**json.loads(written), "boot": "another"}))
    assert process.look(tmp_path / "e1").life is Life.GONE
    claim.write_text(written)
    process.send(tmp_path / "e1", signal.SIGKILL)


def test_a_program_that_is_not_there_says_so(tmp_path: Path) -> None:
    process.start(tmp_path / "e1", "u", [str(tmp_path / "nothing")], os.environ, tmp_path)
    until(lambda: process.look(tmp_path / "e1").life is Life.ENDED)
    assert process.look(tmp_path / "e1").code == 127
    assert "No such file" in (tmp_path / "e1/stderr").read_text()


def test_nothing_was_ever_started(tmp_path: Path) -> None:
    assert process.look(tmp_path / "e1").life is Life.ABSENT
    assert not process.send(tmp_path / "e1", signal.SIGTERM)

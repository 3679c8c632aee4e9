"""What docs/space.md tells a new user to do, done as it stands there: the daemon alone, the shipped client, kill, again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_spaces.spaces import daemon_pid

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "space.md").read_text().split("\n## Run it alone\n")[1].split("\n## ")[0]
PYTHON = str(Path(sys.executable).parent)


class Reader:
    """A person with this page in front of them; /tmp/demo is a folder of the test's own, the environment is there already."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="demo-"))
        self.processes: list[subprocess.Popen[str]] = []

    def words(self, pattern: str) -> list[str]:
        """The command of the page that the pattern finds."""
        (line,) = {line[2:] for line in SECTION.splitlines() if line.startswith("$ ") and re.search(pattern, line)}
        return shlex.split(line.replace("/tmp/demo/venv/bin", PYTHON).replace("/tmp/demo", str(self.folder)))

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        with (self.folder / "err").open("a") as err:
            self.processes.append(
                subprocess.Popen(
                    words, cwd=ROOT, stdout=subprocess.PIPE, stderr=err, stdin=subprocess.DEVNULL, text=True
                )
            )
        return self.processes[-1]

    def start_daemon(self, *more: str) -> subprocess.Popen[str]:
        daemon = self.start([*self.words(" space --data"), *more])
        assert daemon.stdout is not None
        assert '"event": "listening"' in daemon.stdout.readline(), (self.folder / "err").read_text()
        return daemon

    def start_client(self) -> subprocess.Popen[str]:
        return self.start([*self.words("run_once.py"), "--space", f"unix:{self.folder}/s"])

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        shutil.rmtree(self.folder)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    subprocess.run(made.words("mkdir"), check=True)
    yield made
    if daemon_pid(made.folder / "data") is None:
        made.start_daemon("--stop-commands")
    os.kill(daemon_pid(made.folder / "data") or 0, signal.SIGTERM)
    made.close()


def read_until(process: subprocess.Popen[str], line: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for found in process.stdout:
        lines.append(found.rstrip("\n"))
        if lines[-1] == line:
            return lines
    raise AssertionError(f"{line!r} did not come: {lines}")


LINES = [f"line {number}" for number in range(1, 9)]


def test_client_and_daemon_are_killed_and_the_command_ran_once(reader: Reader) -> None:
    daemon, client = reader.start_daemon(), reader.start_client()
    assert read_until(client, "line 2") == ["epoch 1; still running: nothing", *LINES[:2]]
    for process in (client, daemon):
        process.kill()
        process.wait()
    daemon, client = reader.start_daemon(), reader.start_client()
    read_until(client, "line 3")
    daemon.kill()  # under the running client
    daemon.wait()
    reader.start_daemon()
    told = read_until(client, "exit code 0; 8 lines; starts: 1")
    assert told == [*LINES[3:], "exit code 0; 8 lines; starts: 1"]
    assert client.wait(20) == 0
    again = reader.start_client()
    assert read_until(again, "exit code 0; 8 lines; starts: 1")[1:-1] == LINES


def test_without_a_daemon_the_client_says_what_to_do(reader: Reader) -> None:
    client = reader.start_client()
    client.wait(40)
    assert client.returncode == 1
    assert "Start the daemon" in (reader.folder / "err").read_text()


def test_the_program_on_the_page_runs(reader: Reader) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    reader.start_daemon()
    file = reader.folder / "own.py"
    file.write_text(program.replace("/tmp/demo", str(reader.folder)))
    for _ in range(2):
        told = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60, check=True)
        assert told.stdout == "0 b'hello\\n'\nb'hello\\n'\n"


def test_a_random_moment_of_death_makes_no_difference(reader: Reader) -> None:
    """Early ones included: before the look, the epoch, the start."""
    reader.start_daemon()
    for milliseconds in (150, 300, 450, 600, 900):
        client = reader.start_client()
        time.sleep(milliseconds / 1000)  # the moment itself is what is tried
        client.kill()
        client.wait()
    assert read_until(reader.start_client(), "exit code 0; 8 lines; starts: 1")[1:-1] == LINES

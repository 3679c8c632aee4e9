"""What a person reads on the screen, from whole runs of the built-in agent with a script in the model's place."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from durable_local.layout import session_home
from durable_local.leftovers import leftovers


class Person:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / ".durable"
        self._started: list[subprocess.Popen[str]] = []

    def manifest(self, steps: list[dict[str, Any]], name: str = "s", **spec: Any) -> None:
        head = {"apiVersion": "durablesessions.dev/v1alpha1", "kind": "DurableSession", "metadata": {"name": name}}
        script = {"configMapKeyRef": {"name": "script", "key": "s.yaml"}}
        agent = {"model": {"provider": "scripted"}, "scriptFrom": script}
        full = {"input": "x", "space": {}, "agent": agent, **spec}
        data = {"s.yaml": yaml.safe_dump({"steps": steps})}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}, "data": data}
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump_all([{**head, "spec": full}, config]))

    def start(self, *words: str, **env: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "durable_cli", *words]
        child = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(child)
        return child

    def durable(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        child = self.start(*words, **env)
        out, err = child.communicate(timeout=60)
        return subprocess.CompletedProcess(words, child.returncode, out, err)

    def close(self) -> None:
        for child in self._started:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            child.wait()
        for path in self.folder.glob("*/*/state.db"):
            for line in leftovers(session_home(path.parents[1], path.parent.name), wait_seconds=0):
                os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    one = Person(tmp_path)
    try:
        yield one
    finally:
        one.close()


def test_failed_calls_are_told_by_run_and_by_describe(person: Person) -> None:
    edit = {"edit": {"path": "no.py", "old_text": "a", "new_text": "b"}}
    person.manifest([{"calls": [edit, {"bash": {"command": "exit 3"}}, {"fly": {"to": "moon"}}]}, {"answer": "ok"}])
    done = person.durable("run", "s.yaml")
    assert done.returncode == 0, done.stderr
    for told in (done.stdout, person.durable("describe", "s").stdout):
        assert "failed: edit no.py" in told
        assert "failed (exit code 3): bash exit 3" in told
        assert "failed: a call of a tool that the agent does not have" in told
        whys = [line for line in told.splitlines() if "why  " in line]
        assert any("no.py" in line for line in whys), told
        assert any("'fly'" in line for line in whys), told


def test_what_runs_now_is_told_by_get_and_describe_and_by_a_run_without_a_terminal(person: Person) -> None:
    gate = person.folder / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    person.manifest([{"calls": [{"bash": {"command": f"# held\n{wait}"}}]}, {"answer": "ok"}])
    run = person.start("run", "s.yaml")
    assert run.stdout is not None
    try:
        told = next(line for line in run.stdout if "runs: " in line)
        assert told.split()[:4] == ["s", "step", "1", "runs:"]
        assert "bash # held ..." in told
        assert "Running (step 1 bash # held ...)" in person.durable("get").stdout
        assert "\nNow        step 1 bash # held ... for " in person.durable("describe", "s").stdout
    finally:
        gate.touch()
    assert run.wait(30) == 0
    assert "Now " not in person.durable("describe", "s").stdout


def test_make_clean_leaves_the_sessions_alone() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(["make", "-n", "clean"], cwd=root, capture_output=True, text=True, check=True)
    assert ".venv" in done.stdout
    assert ".durable" not in done.stdout


def test_who_closes_the_pipe_is_told_that_the_run_has_stopped(person: Person) -> None:
    step = {"calls": [{"bash": {"command": "true"}}]}
    person.manifest([*[step] * 200, {"answer": "ok"}])
    run = person.start("run", "s.yaml")
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.readline()
    run.stdout.close()
    told = run.stderr.read()
    assert run.wait(30) == 1
    assert told == "stopped, for nobody reads the output any more; the same command goes on\n"
    assert "Stopped" in person.durable("get").stdout

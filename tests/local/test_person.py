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
            child.communicate()
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

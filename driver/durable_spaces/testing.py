"""The test kit of the adapter: folders as tables, a driver as a process that dies where it is told to, and the promises.

Free of pytest, so that campaigns use it as well. A driver program is any command that takes its epoch as `--epoch N`, ends
with the driver's exit codes (0 settled, 75 fenced, 78 permanent, -9 killed), and writes one JSON line per event to stdout.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import signal
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from durable_base import crash
from durable_harness.inspect import LogReader
from durable_spaces import image
from durable_spaces._commands import CommandEnd, CommandSpec, Sinks
from durable_spaces._conduct import run_with_caller
from durable_spaces._parts import Space
from durable_spaces.document import CUA_SPACE, CUA_SPACE_IMAGE
from durable_spaces.image import DirNode, FileNode, LinkNode, Node, Table

_POINT = re.compile(r'crash_point\(\s*"([a-z_]+(?:\.[a-z_]+)+)"\s*\)')


def crash_points(package: Path, *prefixes: str) -> list[str]:
    """The crash points that the sources of a package name, sorted; with prefixes only those."""
    names = {name for file in package.rglob("*.py") for name in _POINT.findall(file.read_text(encoding="utf-8"))}
    return sorted(name for name in names if not prefixes or name.startswith(prefixes))


# ---- folders


def read_tree(folder: Path) -> dict[bytes, Node]:
    """A folder as the image would hold it, read from the disk and from nothing else."""
    root = os.fsencode(folder)
    return {os.path.relpath(path, root): node for path, node in _walk(root)}


def _walk(folder: bytes) -> Iterator[tuple[bytes, Node]]:
    for entry in os.scandir(folder):
        facts = entry.stat(follow_symlinks=False)
        mode = stat.S_IMODE(facts.st_mode)
        if entry.is_symlink():
            yield entry.path, LinkNode(facts.st_mtime_ns, os.readlink(entry.path))
        elif entry.is_dir():
            yield entry.path, DirNode(mode, facts.st_mtime_ns)
            yield from _walk(entry.path)
        else:
            data = Path(os.fsdecode(entry.path)).read_bytes()
            yield entry.path, FileNode(mode, facts.st_mtime_ns, len(data), hashlib.sha256(data).hexdigest())


def without_times(table: Table) -> dict[bytes, Node]:
    """Two runs of the same session are equal but for when they happened."""
    return {path: replace(node, mtime_ns=0) for path, node in table.items()}


def differences(found: Table, wanted: Table) -> list[str]:
    """One line per path that differs, for a failing test."""
    return [
        f"{path!r}: found {found.get(path)}, wanted {wanted.get(path)}"
        for path in sorted(found.keys() | wanted.keys())
        if found.get(path) != wanted.get(path)
    ]


def left_behind(folder: Path) -> list[int]:
    """Processes of this machine whose working directory lies in a folder (it may be gone by now)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                    found.append(int(entry.name))
    return found


# ---- the log


def read_image(log: Path, conversation_id: int = 1) -> Table:
    """The image in a log, also while a driver is writing it."""
    with LogReader.open(log) as reader:
        stored = reader.document(CUA_SPACE_IMAGE.kind, conversation_id)
    return {} if stored is None else image.image_of(stored).table


def read_results(log: Path) -> list[tuple[str, bool, str]]:
    """(tool, failed, what the model is told) of every call with a result, in the order of the calls."""
    with LogReader.open(log) as reader:
        told = {
            entry.data["task_id"]: (entry.data["name"], entry.data["is_error"], (entry.model or [{}])[0]["content"])
            for entry in reader.entries()
            if entry.kind == "pi.tool-result"
        }
    return [told[task] for task in sorted(told)]


def check_promises(log: Path, workspace: Path, uninterrupted: Table) -> None:
    """After a session has ended. Raise AssertionError whose text is the promise that does not hold."""
    with LogReader.open(log) as reader:
        calls = reader.tool_calls()
        results = Counter(entry.data["task_id"] for entry in reader.entries() if entry.kind == "pi.tool-result")
        current = (reader.document(CUA_SPACE.kind) or {"current": None})["current"]
    found = read_tree(workspace)
    unequal = differences(without_times(found), without_times(uninterrupted))
    assert not unequal, f"I1: every call took effect exactly once, in order: {unequal}"
    unequal = differences(found, read_image(log))
    assert not unequal, f"I6: image == workspace: {unequal}"
    assert current is None, f"I5: no call stays in work: {current}"
    for call in calls:
        assert results[call.task_id] == 1, f"I5: every call has exactly one result entry: {call.name} {call.task_id}"


# ---- drivers


@dataclass(frozen=True, slots=True)
class Drive:
    """One driver's life, after its end."""

    epoch: int
    code: int  # negative: the signal that ended it
    events: tuple[Mapping[str, Any], ...]
    stderr: str
    passed: Counter[str] = field(default_factory=Counter)  # crash points

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def recoveries(self) -> list[tuple[str, str]]:
        """(kind, reason) of each."""
        return [(event["kind"], event["reason"]) for event in self.events if event["event"] == "recovery"]


class DriverProcess:
    """A driver that runs. End it by `wait`, `kill`, or leave the `with` block."""

    def __init__(self, command: Sequence[str], epoch: int, folder: Path, *, crash_at: str = "") -> None:
        self.epoch = epoch
        self._passed = folder / f"passed-{epoch}"
        self._stdout = folder / f"stdout-{epoch}"
        self._stderr = folder / f"stderr-{epoch}"
        environment = {**os.environ, crash.VARIABLE: crash_at, crash.LOG_VARIABLE: str(self._passed)}
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, "--epoch", str(epoch)], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment
            )

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self, seconds: float = 60.0) -> Drive:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"epoch {self.epoch} did not end within {seconds:g} s: {self.facts()}") from None
        return self.facts()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def passes(self) -> Counter[str]:
        return Counter(self._passed.read_text().split()) if self._passed.exists() else Counter()

    def wait_for_point(self, point: str, seconds: float = 30.0) -> None:
        """Until the driver has passed a crash point (or stopped at it)."""
        self._wait_for(lambda: bool(self.passes()[point]), point, seconds)

    def wait_for_event(self, name: str, seconds: float = 30.0) -> None:
        self._wait_for(lambda: any(event["event"] == name for event in self.facts().events), name, seconds)

    def _wait_for(self, reached: Callable[[], bool], what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not reached():
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"{what} was not reached: {self.facts()}")
            time.sleep(0.01)

    def facts(self) -> Drive:
        lines = self._stdout.read_text().splitlines(keepends=True)
        events = tuple(json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n"))
        code = self.process.poll()
        return Drive(self.epoch, 0 if code is None else code, events, self._stderr.read_text(), self.passes())


def drive_to_the_end(
    command: Sequence[str], folder: Path, crashes: Iterable[str] = (), *, first_epoch: int = 1, drives_max: int = 12
) -> list[Drive]:
    """Drive again and again, with the next crash each time, until a drive ends by itself. Raise AssertionError if none does."""
    drives: list[Drive] = []
    remaining = list(crashes)
    for epoch in range(first_epoch, first_epoch + drives_max):
        crash_at = remaining.pop(0) if remaining else ""
        with DriverProcess(command, epoch, folder, crash_at=crash_at) as driver:
            drives.append(driver.wait())
        if not drives[-1].killed:
            return drives
    raise AssertionError(f"no end after {drives_max} drives: {drives[-1]}")


# ---- an environment without a session


class WithoutSession:
    """A `Conduct` that lets everything through: every command has an id of its own and ends with its caller."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._numbers = itertools.count()

    async def reading(self) -> None:
        pass

    async def changing(self) -> None:
        pass

    async def execute(self, spec: CommandSpec, sinks: Sinks) -> tuple[str, CommandEnd]:
        request_id = f"{id(self):x}/1:0:{next(self._numbers)}@{self._space.own.epoch}"
        return request_id, await run_with_caller(self._space.commands, spec, request_id, sinks)

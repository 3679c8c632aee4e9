"""One chaos run: a coordinator as a child process; it, its driver and its Space are killed at the moments of a seed."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from durable_local import history, process
from durable_local.compare import differences
from durable_local.events import Event, from_line, now_event
from durable_local.faults import COORDINATOR, DRIVER, Fault, delay, plan_faults
from durable_local.layout import Home, session_home
from durable_local.leftovers import leftovers
from durable_local.process import Life

RUN_SECONDS_MAX = 240.0
_POLL_SECONDS = 0.02
Coordinator = subprocess.Popen[bytes]
_RESUMED = frozenset({"recovery", "step.started", "step.finished", "settled"})


@dataclass(slots=True)
class Result:
    """What one run came to. `problems` empty: it was as if nothing had happened."""

    seed: int
    state: Path
    problems: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    recoveries: Counter[str] = field(default_factory=Counter)
    resume_seconds: list[float] = field(default_factory=list)  # driver killed -> its successor at work
    seconds: float = 0.0


class ChaosRun:
    def __init__(
        self,
        path: Path,
        state: Path,
        session: str,
        steps: int,
        show: Callable[[Event], None],
        stop: threading.Event | None = None,
    ) -> None:
        self._path = path
        self._state = state
        self._session = session
        self._steps = steps
        self._show = show
        self._stop = stop or threading.Event()
        self._home = session_home(state, session)
        self._follower = history.Follower(self._home, session)
        self._step = 0
        self._epoch = 0
        self._killed_at: float | None = None  # Unix seconds, of the newest driver
        self._ready_at: float | None = None  # monotonic, since when the next fault's step and victim are there
        self._lock = threading.Lock()

    def run(self, seed: int | None) -> Result:
        """Run to the end; with a seed, kill as it says. The coordinator's own failure is a problem, not an exception."""
        result = Result(seed if seed is not None else 0, self._state)
        began = time.monotonic()
        faults = list(plan_faults(seed, self._steps)) if seed is not None else []
        self._start()
        try:
            while self._coordinator.poll() is None:
                self._look(result)
                if faults and self._due(faults[0]):
                    self._kill(faults.pop(0), result)
                if self._stop.is_set() or time.monotonic() - began > RUN_SECONDS_MAX:
                    result.problems.append(f"not finished after {time.monotonic() - began:.0f} s")
                    break
                time.sleep(_POLL_SECONDS)
        finally:
            self._coordinator.terminate()  # of one that has ended it does nothing
            self._coordinator.wait()
            self._reader.join()
        self._look(result)
        result.seconds = time.monotonic() - began
        code = self._coordinator.returncode
        if code:
            words = (self._state / "coordinator.stderr").read_text(errors="replace").strip().rpartition("\n")[2]
            result.problems.append(f"the coordinator ended with exit code {code}: {words}")
        for fault in faults:
            result.problems.append(f"the {fault.target} was not killed: the session ended before")
        return result

    def _start(self) -> None:
        self._state.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "durable_cli",
            "run",
            str(self._path),
            "--state",
            str(self._state),
            "-o",
            "json",
        ]
        with open(self._state / "coordinator.stderr", "ab") as errors:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        self._coordinator = child
        self._reader = threading.Thread(target=self._relay, args=(child,), daemon=True)
        self._reader.start()

    def _relay(self, child: Coordinator) -> None:
        """Show what the coordinator tells, until its pipe ends."""
        assert child.stdout is not None
        for line in child.stdout:
            with contextlib.suppress(ValueError):
                event = from_line(json.loads(line))
                if event is not None:
                    self._tell(event)

    def _tell(self, event: Event) -> None:
        with self._lock:
            self._show(event)

    def _look(self, result: Result) -> None:
        """What the drivers wrote, read from their files: the coordinator may be dead just now."""
        for event in self._follower.news():
            self._step = max(self._step, int(event.fields.get("step", 0)))
            if event.name == "recovery":
                result.recoveries[str(event.fields.get("kind"))] += 1
            if event.name in _RESUMED and self._killed_at is not None and event.epoch > self._epoch:
                result.resume_seconds.append(max(event.time / 1000 - self._killed_at, 0.0))
                self._killed_at = None

    def _due(self, fault: Fault) -> bool:
        """Its step has begun and its victim lives; true once its time after both is over."""
        if self._step < fault.step or self._victim(fault.target) is None:
            self._ready_at = None
            return False
        if self._ready_at is None:
            self._ready_at = time.monotonic()
        return time.monotonic() - self._ready_at >= delay(fault, self._step, self._steps)

    def _victim(self, target: str) -> Path | None:
        """The folder of the process to kill, None if there is none just now."""
        if target == COORDINATOR:
            return self._state if self._coordinator.poll() is None else None
        if target == DRIVER:
            epoch = max(self._home.epochs_seen(), default=0)
            folder = self._home.drive(epoch)
        else:
            generation = max(self._home.generations(), default=0)
            folder = self._home.generation(generation) / f"run-{max(self._home.runs(generation), default=0)}"
        facts = process.look(folder)
        return folder if facts.life is Life.RUNNING and facts.pid else None

    def _kill(self, fault: Fault, result: Result) -> None:
        victim = self._victim(fault.target)
        self._ready_at = None
        if fault.target == COORDINATOR:
            self._coordinator.kill()
            self._coordinator.wait()
        elif victim is None or not process.send(victim, signal.SIGKILL):
            result.problems.append(f"the {fault.target} ended by itself before it was killed")
            return
        result.kills[fault.target] += 1
        epoch = max(self._home.epochs_seen(), default=0)
        moment = f"in step {self._step}"
        self._tell(now_event(self._session, epoch, "chaos.killed", target=fault.target, moment=moment))
        if fault.target == DRIVER:
            self._killed_at, self._epoch = time.time(), epoch
        if fault.target == COORDINATOR:
            try:
                time.sleep(fault.pause_seconds)
            finally:
                self._start()  # interrupted here, it is needed too: to end what its predecessor left running
            self._tell(now_event(self._session, epoch, "chaos.restarted"))


def judge(result: Result, session: str, undisturbed: Path | None) -> None:
    """Add to the problems whatever a run without crashes would not have left."""
    home = session_home(result.state, session)
    epochs = [drive.epoch for drive in history.drives(home)]
    starts = [drive.child.started_at or 0.0 for drive in history.drives(home)]
    if starts != sorted(starts) or len(set(epochs)) != len(epochs):
        result.problems.append(f"the epochs {epochs} do not grow in the order of their drives")
    result.problems += _calls(home)
    result.problems += [f"still running: {process}" for process in leftovers(home, wait_seconds=5)]
    if undisturbed is not None:
        other = session_home(undisturbed, session).workspace
        result.problems += [f"workspace differs: {line}" for line in differences(home.workspace, other)]


def _calls(home: Home) -> list[str]:
    """I5: every tool call of the log has exactly one result entry."""
    from durable_harness.inspect import LogReader

    reader = LogReader.open(home.log)
    try:
        results = Counter(
            entry.data["task_id"]
            for entry in reader.entries()
            if entry.kind == "pi.tool-result" and entry.data is not None
        )
        calls = [call.task_id for call in reader.tool_calls()]
    finally:
        reader.close()
    wrong = [f"call {call} has {results[call]} results" for call in calls if results[call] != 1]
    return wrong + [f"a result of the unknown call {task}" for task in results.keys() - set(calls)]

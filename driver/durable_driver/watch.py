"""What a drive tells while it runs: each commit and each recovery becomes events, metrics and progress. Content-free.

Called from the log's commit observer: it only notes and prints, and can't fail a commit.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

from durable_driver.events import EventLine
from durable_driver.metrics import DriverMetrics
from durable_driver.model_errors import Failures
from durable_driver.stream import ReportStream
from durable_harness.builtin import USAGE
from durable_harness.records import ROOT_ID, Entry, Running, Sleeping, Task
from durable_harness.session import Committed, Session
from durable_spaces import RecoveryEvent

_TOOL = "pi.tool"
_GENERATION = "pi.generation"
_CODE = re.compile("[a-z][a-z0-9_]{0,39}")  # what a tool of the user's own calls a code may be a text


class Watch:
    def __init__(self, events: EventLine, metrics: DriverMetrics, stream: ReportStream | None) -> None:
        self.entries = 0  # committed by this drive
        self.last_entry = 0  # the log's newest
        self.recoveries: Counter[str] = Counter()
        self.failures = Failures()
        self.model_errors: Counter[str] = Counter()  # by kind, of this drive
        self._events = events
        self._metrics = metrics
        self._stream = stream
        # A step's number is the position of its task among the log's tool calls: the same in every drive.
        self._steps: dict[int, int] = {}
        self._started: set[int] = set()
        self._asked: dict[int, tuple[int, str]] = {}  # generation -> attempt and model of its newest request

    async def follow(self, session: Session) -> None:
        """From now on; what the log holds already is counted, not told again."""
        for task in await session.tasks(kind=_TOOL):
            self._number(task)
        for task in await session.tasks(kind=_GENERATION):
            self._note_request(task)
            if isinstance(task.state, Sleeping) and task.state.until > _now_ms():
                attempt, seconds = task.checkpoint["attempt"], _seconds_until(task.state)
                self._events.emit("model.awaited", attempt=attempt, seconds=seconds)
        entries = await session.entries()
        self.last_entry = entries[-1].id if entries else 0
        session.observe(self._committed)

    def recovered(self, event: RecoveryEvent) -> None:
        self.recoveries[event.kind] += 1
        self._metrics.recoveries.labels(event.kind, event.mode).inc()
        self._events.emit(
            "recovery",
            kind=event.kind,
            mode=event.mode,
            reason=event.reason,
            call=event.call,
            step=None if event.call is None else self._steps.get(event.call),
        )
        if self._stream is not None:
            self._stream.recovery(event.kind, event.mode, event.reason)

    def _committed(self, committed: Committed) -> None:
        self._metrics.last_commit.set(time.time())
        for task in sorted(committed.tasks, key=lambda task: task.id):
            if task.kind == _TOOL:
                self._number(task)
                self._start(task)
            elif task.kind == _GENERATION:
                self._generate(task)
        for entry in committed.entries:
            self.entries += 1
            self.last_entry = max(self.last_entry, entry.id)
            if entry.kind == "pi.tool-result":
                self._finish(entry)
        if committed.entries and self._stream is not None:
            self._stream.progress(self.entries, self.last_entry)

    def _number(self, task: Task) -> None:
        self._steps.setdefault(task.id, len(self._steps) + 1)

    def _start(self, task: Task) -> None:
        """Once its intent is committed, in this drive or an earlier one."""
        executes = isinstance(task.state, Running) and task.checkpoint["phase"] == "execute"
        if executes and task.id not in self._started:
            self._started.add(task.id)
            self._events.emit("step.started", step=self._steps[task.id], tool=task.input["name"], call=task.id)

    def _generate(self, task: Task) -> None:
        """A request goes out when its commit is stored; the next commit of its task tells what came of it."""
        if self._note_request(task):
            return
        attempt, model = self._asked.pop(task.id, (0, ""))
        failure = self.failures.take(model) if attempt else None
        if failure is None:
            return
        # An attempt that counts from 1 again is one of the next drive: this one gives up.
        goes_on = isinstance(task.state, Sleeping) and task.checkpoint["attempt"] > attempt
        seconds = _seconds_until(task.state) if isinstance(task.state, Sleeping) and goes_on else None
        self.model_errors[failure.kind] += 1
        self._metrics.model_errors.labels(failure.kind).inc()
        self._events.emit(
            "model.failed", attempt=attempt, kind=failure.kind, host=failure.host or None, seconds=seconds
        )

    def _note_request(self, task: Task) -> bool:
        asked = isinstance(task.state, Running) and task.checkpoint["phase"] == "request"
        if asked:
            self._asked[task.id] = task.checkpoint["attempt"], task.checkpoint["model"]
        return asked

    def _finish(self, entry: Entry) -> None:
        call, failed = entry.data["task_id"], entry.data["is_error"]
        error = _error_code(entry) if failed else None
        if call is None:
            # A tool that the agent does not have: nothing ran, and its name is a text of the model's own.
            self._events.emit("call.refused", entry=entry.id, error=error)
            return
        tool, seconds = entry.data["name"], entry.data["duration_ms"] / 1000
        self._metrics.steps.labels(tool, "error" if failed else "ok").inc()
        self._metrics.step_seconds.labels(tool).observe(seconds)
        self._events.emit(
            "step.finished",
            step=self._steps.get(call),
            tool=tool,
            call=call,
            seconds=seconds,
            isError=failed,
            entry=entry.id,
            error=error,
            exitCode=_exit_code(entry),
        )


def _now_ms() -> float:
    return time.time() * 1000


def _seconds_until(state: Sleeping) -> float:
    return round(max(state.until - _now_ms(), 0) / 1000, 1)


def _error_code(entry: Entry) -> str | None:
    """Stable and without content: `exit_code`, `timeout`, `tool_error` ..."""
    codes = (remark["code"] for remark in entry.data["diagnostics"] if remark["severity"] == "error")
    return next((code for code in codes if _CODE.fullmatch(code)), None)


def _exit_code(entry: Entry) -> int | None:
    details = entry.data.get("details")
    code = details.get("exitCode") if isinstance(details, dict) else None
    return code if isinstance(code, int) else None


async def read_usage(session: Session) -> dict[str, float]:
    """What the models of the whole session have used so far."""
    usage: Any = await session.document(USAGE, ROOT_ID)
    models = list(usage["models"].values()) if usage else []
    return {
        "requests": sum(model["requests"] for model in models),
        "inputTokens": sum(model["input_tokens"] for model in models),
        "outputTokens": sum(model["output_tokens"] for model in models),
        "cost": round(sum(model["cost"] for model in models), 6),
    }

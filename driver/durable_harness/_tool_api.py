"""What a running tool is given, and how what it returns becomes a result."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from durable_base.errors import UsageError
from durable_harness._json import copy_strict, encode
from durable_harness._throttle import Throttle
from durable_harness._tool_output import Window
from durable_harness.builtin import LIVE
from durable_harness.env import ExecutionEnv
from durable_harness.records import Task
from durable_harness.session import Tx
from durable_harness.tasks import TaskRuntime
from durable_harness.tools import ToolCall, ToolResult

Json = Any
LIVE_BYTES_PER_SECOND = 100 * 1024  # of live output committed, so that a chatty tool does not fill the log


class CallState:
    """One execution of a call: its live output, and what was asked for its end."""

    def __init__(
        self,
        call: ToolCall,
        runtime: TaskRuntime,
        window: Window,
        interval_seconds: float,
        at_result: list[Callable[[Tx, int], None]],
        after_result: list[Callable[[], None]],
    ) -> None:
        self.call = call
        self.runtime = runtime
        self.window = window
        self.at_result = at_result
        self.after_result = after_result
        self.raised = False  # the body raised: its task fails, with a result like any other
        self._interval_seconds = interval_seconds
        self._throttle = Throttle(self._commit_output)

    def output(self, text: str) -> None:
        self.window.add(text)
        self._throttle.touch()

    async def _commit_output(self) -> float:
        def write(tx: Tx, task: Task) -> None:
            shown = self.window.state
            for slot in tx.doc(LIVE, task.conversation_id).value["tools"]:
                if slot["task_id"] == task.id:
                    slot.update(output=shown.text, dropped_bytes=shown.dropped_bytes, dropped_lines=shown.dropped_lines)

        await self.runtime.commit(write)
        return max(self._interval_seconds, len(self.window.state.text) / LIVE_BYTES_PER_SECOND)

    async def stop(self) -> None:
        await self._throttle.stop()


class CallApi:
    """`tools.ToolApi`, with one environment: a wrapper hands its own on to the body."""

    def __init__(self, state: CallState, env: ExecutionEnv | None) -> None:
        self._state = state
        self._env = env

    @property
    def call(self) -> ToolCall:
        return self._state.call

    @property
    def env(self) -> ExecutionEnv:
        if self._env is None:
            raise UsageError("this tool needs an environment: open the harness with `env=`")
        return self._env

    def output(self, text: str) -> None:
        self._state.output(text)

    async def commit(self, fn: Callable[[Tx], Awaitable[Any] | Any]) -> Any:
        result: Any = None

        async def gated(tx: Tx, task: Task) -> None:
            nonlocal result
            answer = fn(tx)
            result = await answer if inspect.isawaitable(answer) else answer

        await self._state.runtime.commit(gated)
        return result

    def at_result(self, fn: Callable[[Tx, int], None]) -> None:
        self._state.at_result.append(fn)

    def after_result(self, fn: Callable[[], None]) -> None:
        self._state.after_result.append(fn)


def normalise(value: Any, window: Window) -> ToolResult:
    """str: the output. None: the live output. A ToolResult: as it is. Anything else: as JSON, or InvalidRecordError."""
    if isinstance(value, ToolResult):
        if value.details is not None:
            copy_strict(value.details, "details")
        return value
    if value is None:
        truncated = window.diagnostic()
        return ToolResult(window.state.text, diagnostics=(truncated,) if truncated else ())
    return ToolResult(value if isinstance(value, str) else encode(copy_strict(value, "result")))

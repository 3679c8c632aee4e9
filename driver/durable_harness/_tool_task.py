"""pi.tool: one call of a tool, from the model's words to exactly one result entry (I5).

Phases: call (look up, validate, commit the intent, run, commit the result) and execute, which only a recovery enters: the
intent is in the log, so the tool may have run. It runs again if it was replay-safe then and is now, with the stored arguments;
else the result is `interrupted`, with what had been shown of its output.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from durable_base.crash import crash_point
from durable_base.errors import HaltError
from durable_harness import _schema, messages
from durable_harness._tool_api import CallApi, CallState, normalise
from durable_harness._tool_output import Window, bound, clean, render
from durable_harness.builtin import AGENT, LIVE, USAGE
from durable_harness.env import ExecutionEnv
from durable_harness.errors import CorruptLogError
from durable_harness.records import Outcome, Running, Task, TaskState, Terminal
from durable_harness.session import Session, Tx
from durable_harness.settings import Settings
from durable_harness.tasks import TaskDefinition, TaskRuntime, find_halt
from durable_harness.tools import Diagnostic, Tool, ToolCall, ToolResult, ToolWrapper

Json = Any
KIND = "pi.tool"
log = logging.getLogger("durable_harness")


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """For whom an environment is made."""

    conversation_id: int
    cwd: str | None  # the agent's, as it is now


EnvFactory = Callable[[EnvRequest], Awaitable[ExecutionEnv]]


@dataclass(slots=True)
class _Callbacks:
    """What a call asked to be done with its result; kept until the call is released."""

    at_result: list[Callable[[Tx, int], None]] = field(default_factory=list)
    after_result: list[Callable[[], None]] = field(default_factory=list)


class ToolRunner:
    def __init__(
        self,
        session: Session,
        tools: Mapping[str, Tool],
        wrappers: Mapping[str, ToolWrapper],
        env: EnvFactory | None,
        settings: Settings,
        in_order: Collection[str] = (),
    ) -> None:
        self._session = session
        self._tools = tools
        self._wrappers = wrappers
        self._in_order = frozenset(in_order)
        self._env = env
        self._settings = settings
        self._callbacks: dict[int, _Callbacks] = {}  # of calls that ran here, until released

    def definition(self) -> TaskDefinition:
        phases = {"call": self._call, "execute": self._recover}
        return TaskDefinition(
            KIND, phases, self._abort, settle=self._settle, released=self._released, takes_turn=self._takes_turn
        )

    def _takes_turn(self, task: Task) -> bool:
        """Until its intent is committed. A call that had begun is recovered at once: others may wait for what it holds."""
        return task.input["name"] in self._in_order and task.checkpoint.get("phase") == "call"

    def _replay(self, tool: Tool) -> str:
        """A wrapped tool counts as safe: its wrapper is asked again, and judges the crash."""
        return "safe" if tool.name in self._wrappers else tool.replay

    # ---- phases

    async def _call(self, task: Task, runtime: TaskRuntime) -> None:
        entry = await self._session.entry(task.input["entry"])
        if entry is None or entry.model is None:
            raise CorruptLogError(f"task {task.id}: the entry of its call is not there")
        arguments = entry.model[0]["tool_calls"][task.input["index"]]["arguments"]
        tool = self._tools.get(task.input["name"])
        if tool is None:
            await self._refuse(runtime, "tool_unavailable", f"there is no tool {task.input['name']!r} here")
            return
        problem = _schema.validate(tool.parameters, arguments)
        if problem is not None:
            await self._refuse(runtime, "invalid_arguments", problem)
            return

        def intend(tx: Tx, task: Task) -> TaskState:
            _slot(tx, task)["status"] = "running"
            return Running(checkpoint={"phase": "execute", "arguments": arguments, "replay": self._replay(tool)})

        await runtime.commit(intend)
        crash_point("harness.intent_committed")
        await self._execute(task, runtime, tool, arguments, recovered=False)

    async def _recover(self, task: Task, runtime: TaskRuntime) -> None:
        tool = self._tools.get(task.input["name"])
        stored = task.checkpoint
        if tool is not None and stored["replay"] == "safe" and self._replay(tool) == "safe":
            await self._execute(task, runtime, tool, stored["arguments"], recovered=True)
            return

        def interrupt(tx: Tx, task: Task) -> TaskState:
            message = "the process died while this tool ran, so it may have taken effect in part; it is not run again"
            result = ToolResult(
                _slot(tx, task)["output"], is_error=True, diagnostics=(Diagnostic("error", "interrupted", message),)
            )
            return self._finish(tx, task, result, "failed", runtime.now_ms())

        await runtime.commit(interrupt)
        crash_point("harness.result_committed")

    async def _execute(self, task: Task, runtime: TaskRuntime, tool: Tool, arguments: Json, *, recovered: bool) -> None:
        call = ToolCall(task.conversation_id, task.id, task.input["call_id"], tool.name, arguments, recovered=recovered)
        callbacks = self._callbacks.setdefault(task.id, _Callbacks())
        window = Window(self._settings.output_bytes_max, self._settings.output_lines_max, tool.truncate)
        interval = self._settings.partial_interval_ms / 1000
        state = CallState(call, runtime, window, interval, callbacks.at_result, callbacks.after_result)
        try:
            result = await self._result(state, tool)
        finally:
            await state.stop()
        crash_point("harness.tool_returned")
        status = "failed" if state.raised else "completed"
        await runtime.commit(lambda tx, task: self._finish(tx, task, result, status, runtime.now_ms()))
        crash_point("harness.result_committed")

    async def _result(self, state: CallState, tool: Tool) -> ToolResult:
        """The call's result, whatever the tool does; raises only what must never become one."""
        try:
            env = await self._make_env(state.call.conversation_id)
            api = CallApi(state, env)

            async def run(env: ExecutionEnv) -> ToolResult:
                return await _body(state, tool, CallApi(state, env))

            wrapper = self._wrappers.get(tool.name)
            if wrapper is None:
                return await _body(state, tool, api)
            return normalise(await wrapper(api, tool, run), state.window)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            return _tool_error(state, error)

    async def _make_env(self, conversation_id: int) -> ExecutionEnv | None:
        """At each execution anew, in the agent's present directory."""
        if self._env is None:
            return None
        agent = await self._session.document(AGENT, conversation_id)
        return await self._env(EnvRequest(conversation_id, agent["cwd"] if agent else None))

    async def _refuse(self, runtime: TaskRuntime, code: str, message: str) -> None:
        result = ToolResult("", is_error=True, diagnostics=(Diagnostic("error", code, message),))
        await runtime.commit(lambda tx, task: self._finish(tx, task, result, "failed", runtime.now_ms()))
        crash_point("harness.result_committed")

    async def _abort(self, task: Task, runtime: TaskRuntime) -> None:
        def write(tx: Tx, task: Task) -> TaskState:
            slot = _slot(tx, task)
            message = "the run was aborted" + ("" if slot["status"] == "running" else " before this tool ran")
            result = ToolResult(slot["output"], is_error=True, diagnostics=(Diagnostic("error", "aborted", message),))
            return self._finish(tx, task, result, "aborted", runtime.now_ms())

        await runtime.commit(write)
        crash_point("harness.result_committed")

    def _settle(self, tx: Tx, task: Task, outcome: Outcome) -> None:
        """The harness's own code failed; the call has its one result all the same."""
        message = outcome.error or outcome.reason or outcome.status
        result = ToolResult("", is_error=True, diagnostics=(Diagnostic("error", "tool_error", message),))
        self._append_result(tx, task, result, 0)

    # ---- the result

    def _finish(self, tx: Tx, task: Task, result: ToolResult, status: Any, now_ms: int) -> TaskState:
        duration_ms = max(0, now_ms - (task.started_at or now_ms))
        entry_id = self._append_result(tx, task, result, duration_ms)
        return Terminal(outcome=Outcome(status=status, result={"entry": entry_id}))

    def _append_result(self, tx: Tx, task: Task, result: ToolResult, duration_ms: int) -> int:
        name = task.input["name"]
        tool = self._tools.get(name)
        keep = tool.truncate if tool else "head"
        cut = bound(clean(result.output), self._settings.output_bytes_max, self._settings.output_lines_max, keep)
        truncated = cut.diagnostic(keep)
        diagnostics = (*result.diagnostics, *((truncated,) if truncated else ()))
        data = {
            "task_id": task.id,
            "call_id": task.input["call_id"],
            "name": name,
            "entry": task.input["entry"],
            "index": task.input["index"],
            "is_error": result.is_error,
            "duration_ms": duration_ms,
            "diagnostics": [{"severity": d.severity, "code": d.code, "message": clean(d.message)} for d in diagnostics],
        }
        if result.details is not None:
            data["details"] = result.details
        entry = tx.append_entry(
            "pi.tool-result",
            conversation_id=task.conversation_id,
            model=[messages.tool_result(task.input["call_id"], name, render(cut.text, diagnostics))],
            data=data,
        )
        _slot(tx, task).update(status="done", entry=entry.id)
        row = tx.doc(USAGE, task.conversation_id).value["tools"].setdefault(name, {"calls": 0, "errors": 0})
        row["calls"] += 1
        row["errors"] += int(result.is_error)
        self._run_at_result(tx, task.id, entry.id)
        return entry.id

    def _run_at_result(self, tx: Tx, task_id: int, entry_id: int) -> None:
        callbacks = self._callbacks.get(task_id)
        for fn in callbacks.at_result if callbacks else ():
            try:
                fn(tx, entry_id)
            except Exception as error:
                if (halt := find_halt(error)) is not None:
                    raise halt from None
                # A result without what belongs to it would make log and effects differ (I1): stop instead.
                raise HaltError("ResultCallbackFailed", f"a result callback raised {type(error).__name__}") from error

    def _released(self, task_id: int) -> None:
        callbacks = self._callbacks.pop(task_id, None)
        for fn in callbacks.after_result if callbacks else ():
            try:
                fn()
            except Exception:
                log.exception("task %d: an after_result callback raised", task_id)


async def _body(state: CallState, tool: Tool, api: CallApi) -> ToolResult:
    """Run the tool's body once. What it raises is its result, unless it must never become one."""
    try:
        return normalise(await tool.run(api, state.call.arguments), state.window)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        return _tool_error(state, error)


def _tool_error(state: CallState, error: Exception) -> ToolResult:
    if (halt := find_halt(error)) is not None:
        raise halt
    state.raised = True
    message = f"{type(error).__name__}: {error}"
    return ToolResult(state.window.state.text, is_error=True, diagnostics=(Diagnostic("error", "tool_error", message),))


def _slot(tx: Tx, task: Task) -> Json:
    """The call's slot in pi.live; a detached one where the round is not live any more."""
    tools = tx.doc(LIVE, task.conversation_id).value["tools"]
    return next((slot for slot in tools if slot["task_id"] == task.id), {"status": "done", "output": ""})

"""pi.generation: one answer of the model, from preparing the request to what follows from the answer.

Phases: prepare -> request -> tools (after waiting for its calls), or prepare again after a retryable error. Prepare pins what
the request is made of, so that a request which a crash interrupted is sent again as it was; what had been streamed of the
interrupted one becomes an entry of its own that the model never sees.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from durable_base.crash import crash_point
from durable_base.errors import HaltError
from durable_harness import _context, _inbox, messages
from durable_harness._json import scrub_text
from durable_harness._throttle import Throttle
from durable_harness.builtin import AGENT, LIVE, PROVIDER, USAGE
from durable_harness.models import Final, ModelError, ModelProvider, ModelRequest, Partial, ToolSpec, Usage
from durable_harness.records import Edit, Entry, Outcome, Running, Sleeping, Task, TaskState, Terminal, Waiting
from durable_harness.session import Session, Tx
from durable_harness.settings import Settings
from durable_harness.tasks import TaskDefinition, TaskRuntime, find_halt
from durable_harness.tools import Diagnostic, Tool

Json = Any
KIND = "pi.generation"
log = logging.getLogger("durable_harness")


class Generation:
    """The code behind pi.generation: registries and settings, no state of its own."""

    def __init__(
        self,
        session: Session,
        models: Mapping[str, ModelProvider],
        tools: Mapping[str, Tool],
        settings: Settings,
    ) -> None:
        self._session = session
        self._models = models
        self._tools = tools
        self._settings = settings

    def definition(self) -> TaskDefinition:
        phases = {"prepare": self._prepare, "request": self._request, "tools": self._after_tools}
        return TaskDefinition(KIND, phases, self._abort, settle=_settle)

    def provider(self, model: str | None) -> tuple[ModelProvider, str] | None:
        """The provider of a model key, and its name for the model: `key`, or `key/name`."""
        if model is None:
            return None
        if model in self._models:
            return self._models[model], model
        key, _, name = model.partition("/")
        return (self._models[key], name) if key in self._models and name else None

    # ---- prepare

    async def _prepare(self, task: Task, runtime: TaskRuntime) -> None:
        async def write(tx: Tx, task: Task) -> TaskState:
            agent = tx.peek(AGENT, task.conversation_id)
            refusal = self._refusal(tx, task, agent)
            if refusal is not None:
                reason, detail = refusal
                return _unanswered(tx, task, reason, detail)
            instructed = await tx.read_newest_entry(task.conversation_id, kind="pi.system")
            tail = await tx.read_newest_entry(task.conversation_id)
            cutoff = _instruct(tx, task, instructed, agent["instructions"]) or (tail.id if tail else 0)
            live = tx.doc(LIVE, task.conversation_id).value
            live["generation"] = {"attempt": task.checkpoint["attempt"], "message": None, "retry": None}
            return Running(
                checkpoint={
                    "phase": "request",
                    "attempt": task.checkpoint["attempt"],
                    "model": agent["model"],
                    "thinking_level": agent["thinking_level"],
                    "tools": [name for name in dict.fromkeys(agent["tools"]) if name in self._tools],
                    "cutoff": cutoff,
                }
            )

        await runtime.commit(write)

    def _refusal(self, tx: Tx, task: Task, agent: Json) -> tuple[str, str] | None:
        if agent is None or self.provider(agent["model"]) is None:
            return "no_model", f"model {agent and agent['model']!r} is none of those the harness was opened with"
        run = tx.doc(LIVE, task.conversation_id).value["run"]
        if agent["max_turns"] is not None and run["turns"] >= agent["max_turns"]:
            return "max_turns", f"the run used its {agent['max_turns']} model answers"
        usage = tx.peek(USAGE, task.conversation_id)
        cost = sum(model["cost"] for model in usage["models"].values()) if usage else 0.0
        if agent["max_cost"] is not None and cost >= agent["max_cost"]:
            return "max_cost", f"the conversation cost {cost:.4f} of at most {agent['max_cost']:.4f}"
        return None

    # ---- request

    async def _request(self, task: Task, runtime: TaskRuntime) -> None:
        await self._bury_partial(task, runtime)
        pinned = task.checkpoint
        found = self.provider(pinned["model"])
        if found is None:
            await runtime.commit(
                lambda tx, task: _unanswered(tx, task, "no_model", "its provider is not there any more")
            )
            return
        provider, name = found
        entries = [e for e in await self._session.entries(task.conversation_id) if e.id <= pinned["cutoff"]]
        session = await self._session.document(PROVIDER, task.conversation_id)
        request = ModelRequest(
            model=name,
            messages=_context.derive(entries),
            tools=[self._spec(tool) for tool in pinned["tools"] if tool in self._tools],
            thinking_level=pinned["thinking_level"],
            session_id=session["session_id"] if session else "",
        )
        try:
            final = await self._stream(provider, request, task, runtime)
        except ModelError as error:
            await self._failed(task, runtime, error)
            return
        crash_point("harness.response_received")
        await runtime.commit(lambda tx, task: self._classify(tx, task, final))
        crash_point("harness.answer_committed")

    def _spec(self, name: str) -> ToolSpec:
        tool = self._tools[name]
        return ToolSpec(tool.name, tool.description, tool.parameters)

    async def _bury_partial(self, task: Task, runtime: TaskRuntime) -> None:
        """What a dead drive had streamed: kept in the log, out of the context."""
        live = await self._session.document(LIVE, task.conversation_id)
        if live and live["generation"] and live["generation"]["message"] is not None:
            await runtime.commit(lambda tx, task: _abort_partial(tx, task))
            crash_point("harness.partial_buried")

    async def _stream(self, provider: ModelProvider, request: ModelRequest, task: Task, runtime: TaskRuntime) -> Final:
        newest: Json = None

        def write(tx: Tx, task: Task) -> None:
            tx.doc(LIVE, task.conversation_id).value["generation"]["message"] = newest

        async def commit() -> float:
            await runtime.commit(write)
            crash_point("harness.partial_committed")
            return self._settings.partial_interval_ms / 1000

        throttle = Throttle(commit)
        stream = provider.stream(request)
        try:
            async for event in stream:
                if isinstance(event, Partial):
                    newest = messages.assistant(event.message)
                    throttle.touch()
                else:
                    return event
        except ModelError:
            raise
        except Exception as error:
            if (halt := find_halt(error)) is not None:
                raise halt from None
            log.warning("a model provider raised %s", type(error).__name__)
            raise ModelError(f"{type(error).__name__}: {error}", retryable=False) from error
        finally:
            await throttle.stop()
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()
        raise ModelError("the provider's stream ended without a final message", retryable=False)

    # ---- what follows

    def _classify(self, tx: Tx, task: Task, final: Final) -> TaskState:
        message = messages.assistant(final.message)
        calls = message["tool_calls"]
        _count(tx, task, final.usage)
        entry = _append_answer(tx, task, message, "ok", stop=final.stop)
        live = tx.doc(LIVE, task.conversation_id).value
        live["generation"] = None
        if not calls:
            _inbox.settle_run(tx, task.conversation_id, entry.id)
            _inbox.final_boundary(tx, task.conversation_id)
            return Terminal(outcome=Outcome(status="completed", result={"entry": entry.id}))
        started = []
        for index, call in enumerate(calls):
            if call["name"] in task.checkpoint["tools"]:
                started.append(_create_call(tx, task, entry, index, call, live))
            else:
                _refuse_call(tx, task, entry, index, call)
        if not started:
            return Running(checkpoint={"phase": "tools"})
        return Waiting(checkpoint={"phase": "tools"}, on=started)

    async def _failed(self, task: Task, runtime: TaskRuntime, error: ModelError) -> None:
        retry = self._settings.retry
        exhausted = error.retryable and task.checkpoint["attempt"] > retry.max_retries
        halts = exhausted and retry.exhausted == "halt"

        def write(tx: Tx, task: Task) -> TaskState:
            _count(tx, task, error.usage)
            live = tx.doc(LIVE, task.conversation_id).value
            generation = live["generation"] or {"message": None}
            partial = generation["message"]
            _append_answer(tx, task, partial, "error", error=scrub_text(str(error)), retryable=error.retryable)
            attempt = task.checkpoint["attempt"]
            if halts:
                live["generation"] = {"attempt": 1, "message": None, "retry": None}
                # Asleep, not running: no restart of it is counted when the log is opened again.
                return Sleeping(checkpoint={"phase": "prepare", "attempt": 1}, until=runtime.now_ms())
            if exhausted or not error.retryable:
                return _unanswered(tx, task, "model_error", str(error))
            until = runtime.now_ms() + int(retry.delay_seconds(attempt) * 1000)
            live["generation"] = {"attempt": attempt, "message": None, "retry": {"until": until}}
            return Sleeping(checkpoint={"phase": "prepare", "attempt": attempt + 1}, until=until)

        await runtime.commit(write)
        crash_point("harness.retry_committed")
        if halts:
            raise HaltError("ModelUnavailable", f"the model was asked {retry.max_retries + 1} times in vain ({error})")

    async def _after_tools(self, task: Task, runtime: TaskRuntime) -> None:
        def write(tx: Tx, task: Task) -> TaskState:
            successor = _inbox.post_tools_boundary(tx, task.conversation_id)
            return Terminal(outcome=Outcome(status="completed", result={"successor": successor.id}))

        await runtime.commit(write)

    async def _abort(self, task: Task, runtime: TaskRuntime) -> None:
        def write(tx: Tx, task: Task) -> TaskState:
            _abort_partial(tx, task)
            _inbox.settle_run(tx, task.conversation_id, None, "aborted")
            return Terminal(outcome=Outcome(status="aborted", reason=task.abort_reason))

        await runtime.commit(write)


def _settle(tx: Tx, task: Task, outcome: Outcome) -> None:
    """The generation faulted or was orphaned: its run ends with it."""
    _abort_partial(tx, task)
    _inbox.settle_run(tx, task.conversation_id, None, "faulted", outcome.error or outcome.reason)


def _unanswered(tx: Tx, task: Task, reason: str, detail: str | None) -> TaskState:
    _inbox.settle_run(tx, task.conversation_id, None, reason, detail)
    return Terminal(outcome=Outcome(status="failed", reason=reason, error=detail))


def _instruct(tx: Tx, task: Task, before: Entry | None, instructions: str) -> int | None:
    """Append the instructions if they are new or have changed; the older ones are left out of the context from there on."""
    model = [messages.system(instructions)] if instructions else None
    if model == (None if before is None else before.model):
        return None
    edits = None if before is None else [Edit(target=before.id)]
    return tx.append_entry("pi.system", conversation_id=task.conversation_id, model=model, edits=edits).id


def _abort_partial(tx: Tx, task: Task) -> None:
    live = tx.doc(LIVE, task.conversation_id).value
    generation = live["generation"]
    if generation and generation["message"] is not None:
        _append_answer(tx, task, generation["message"], "aborted")
        generation["message"] = None


def _append_answer(tx: Tx, task: Task, message: Json, status: str, **data: Json) -> Entry:
    return tx.append_entry(
        "pi.assistant",
        conversation_id=task.conversation_id,
        model=None if message is None else [message],
        data={"status": status, "model": (task.checkpoint or {}).get("model"), **data},
    )


def _count(tx: Tx, task: Task, usage: Usage) -> None:
    models = tx.doc(USAGE, task.conversation_id).value["models"]
    zero = {"requests": 0, "input_tokens": 0, "output_tokens": 0, "cost": 0.0}
    row = models.setdefault(task.checkpoint["model"], zero)
    row["requests"] += 1
    row["input_tokens"] += usage.input_tokens
    row["output_tokens"] += usage.output_tokens
    row["cost"] += usage.cost


def _create_call(tx: Tx, task: Task, entry: Entry, index: int, call: Json, live: Json) -> int:
    call_task = tx.create_task(
        "pi.tool",
        {"phase": "call"},
        input={"entry": entry.id, "index": index, "call_id": call["id"], "name": call["name"]},
        conversation_id=task.conversation_id,
        owner=task.id,
    )
    live["tools"].append(
        {
            "call_id": call["id"],
            "name": call["name"],
            "task_id": call_task.id,
            "status": "pending",
            "output": "",
            "dropped_bytes": 0,
            "dropped_lines": 0,
            "entry": None,
        }
    )
    return call_task.id


def _refuse_call(tx: Tx, task: Task, entry: Entry, index: int, call: Json) -> None:
    diagnostic = Diagnostic("error", "tool_unavailable", f"there is no tool {call['name']!r} here")
    content = f"[diagnostics]\n- {diagnostic.severity} {diagnostic.code}: {diagnostic.message}"
    tx.append_entry(
        "pi.tool-result",
        conversation_id=task.conversation_id,
        model=[messages.tool_result(call["id"], call["name"], content)],
        data={
            "task_id": None,
            "call_id": call["id"],
            "name": call["name"],
            "entry": entry.id,
            "index": index,
            "is_error": True,
            "duration_ms": 0,
            "diagnostics": [{"severity": "error", "code": diagnostic.code, "message": diagnostic.message}],
        },
    )

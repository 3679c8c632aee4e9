"""Runs tasks: starts what `_decide` says is due, drives phases, writes the outcomes that no task code wrote.

Tasks start in id order, so that calls of one round begin in the order the model made them, and a recovery takes up the oldest
first (rule 15). Nothing is started before `enable`, nothing after `close` or a failure; neither writes an outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from durable_base.crash import crash_point
from durable_harness import _decide
from durable_harness._json import same
from durable_harness.errors import CommitRejectedError, SessionClosedError, SessionFailedError
from durable_harness.records import Completing, Outcome, Pending, Running, Task, Terminal
from durable_harness.session import Committed, Session, Tx
from durable_harness.settings import Settings
from durable_harness.tasks import Mode, TaskDefinition, TaskRuntime, find_halt, moved

log = logging.getLogger("durable_harness")


@dataclass(slots=True)
class _Invocation:
    mode: Mode
    job: asyncio.Task[None]
    runtime: TaskRuntime
    signalled: bool = False

    def signal(self, why: str) -> None:
        """Cancel it, once: a second cancellation would break off its cleaning up."""
        self.runtime.end(why)
        if not self.signalled:
            self.signalled = True
            self.job.cancel()


class Scheduler:
    def __init__(
        self, session: Session, definitions: Iterable[TaskDefinition], settings: Settings, now: Callable[[], float]
    ) -> None:
        self._session = session
        self._definitions = {definition.kind: definition for definition in definitions}
        self._settings = settings
        self._now = now
        self._enabled = False
        self._draining = False
        self._closing = False
        self._invocations: dict[int, _Invocation] = {}
        self._jobs: set[asyncio.Task[None]] = set()  # invocations and the scheduler's own commits, until they are over
        self._seen: dict[int, str] = {}  # kinds of the tasks that ran here and have not been released
        self._blocked: dict[int, _decide.BlockReason] = {}
        self._migration_failed: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        session.observe(self._committed)

    async def reconcile(self) -> None:
        """At open: what a dead drive was running is pending again, from the top of its phase (rule 33 counts)."""
        found = [task for task in self._session.live_tasks() if isinstance(task.state, Running)]
        if not found:
            return

        def write(tx: Tx) -> None:
            for task in found:
                counted = self._settings.attempt is None or self._settings.attempt > task.attempt
                state = Pending(checkpoint=task.checkpoint)
                tx.put_task(replace(task, state=state, restarts=task.restarts + int(counted)))

        await self._session.commit(write)
        crash_point("harness.reconciled")

    def enable(self) -> None:
        if not self._enabled:
            self._enabled = True
            self._dispatch()

    def blocked(self) -> dict[int, _decide.BlockReason]:
        """Tasks that can't start, by id."""
        return dict(self._blocked)

    def stuck(self, conversation_id: int) -> Task | None:
        """A blocked task, if nothing in its conversation can go on without it."""
        live = self._session.live_tasks(conversation_id)
        if any(task.id in self._invocations or task.status == "sleeping" for task in live):
            return None
        return next((task for task in live if task.id in self._blocked), None)

    async def retry(self, task_id: int) -> None:
        """Let a parked task run once more: the next drive that dies in it parks it again."""

        def write(tx: Tx) -> None:
            task = tx.get_task(task_id)
            if task is not None and task.restarts >= self._settings.restart_limit:
                tx.put_task(replace(task, restarts=self._settings.restart_limit - 1))

        await self._session.commit(write)
        self.enable()

    # ---- dispatch

    def _committed(self, committed: Committed) -> None:
        for task in committed.tasks:
            if isinstance(task.state, Terminal) and task.id not in self._invocations:
                self._release(task.id)
        self._dispatch()

    def _dispatch(self) -> None:
        if not self._enabled or self._draining or self._closing:
            return
        tasks = self._session.live_tasks()
        live = {task.id: task for task in tasks}
        blocked: dict[int, _decide.BlockReason] = {}
        wake: list[int] = []
        for task in tasks:
            invocation = self._invocations.get(task.id)
            if invocation is not None:
                if task.abort_requested and invocation.mode == "run":
                    invocation.signal("marked for abort")
                continue
            match self._decide(task, live):
                case _decide.Start(mode):
                    self._start(task, mode)
                case _decide.Wake(at):
                    wake.append(at)
                case _decide.Finish(outcome):
                    self._spawn(self._finish(task.id, outcome))
                case _decide.Mark(ids):
                    self._spawn(self.mark(ids, task.abort_reason or "owner"))
                case _decide.Blocked(reason):
                    blocked[task.id] = reason
        for task_id in blocked.keys() - self._blocked.keys():
            log.warning("task %d (%s) is blocked: %s", task_id, live[task_id].kind, blocked[task_id])
        self._blocked = blocked
        self._set_timer(wake)

    def _decide(self, task: Task, live: dict[int, Task]) -> _decide.Decision:
        return _decide.decide(
            task,
            live,
            self._definitions.get(task.kind),
            now_ms=self._now_ms(),
            restart_limit=self._settings.restart_limit,
            migration_failed=task.id in self._migration_failed,
        )

    def _set_timer(self, wake: list[int]) -> None:
        """Deadlines are absolute, by the injected clock; the timer only says when to look again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake:
            delay = max(0.0, min(wake) / 1000 - self._now())
            self._timer = asyncio.get_running_loop().call_later(min(delay, 60.0), self._dispatch)

    def _start(self, task: Task, mode: Mode) -> None:
        runtime = TaskRuntime(self._session, task.id, mode, self._now)
        job = self._spawn(self._invoke(task.id, runtime, mode))
        self._invocations[task.id] = _Invocation(mode, job, runtime)
        self._seen[task.id] = task.kind

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        job = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    # ---- one invocation

    async def _invoke(self, task_id: int, runtime: TaskRuntime, mode: Mode) -> None:
        try:
            await (self._run(task_id, runtime) if mode == "run" else self._abort(task_id, runtime))
        except (SessionFailedError, SessionClosedError, CommitRejectedError, asyncio.CancelledError):
            pass  # failed, closing, or aborted: the record says what comes next
        except Exception as error:
            self._session.fail(error)
        finally:
            runtime.end("its invocation has ended")
            del self._invocations[task_id]
            if self._session.live_task(task_id) is None:
                self._release(task_id)
            self._dispatch()
            self._session.pulse()

    async def _run(self, task_id: int, runtime: TaskRuntime) -> None:
        definition = self._definitions[self._seen[task_id]]
        task = await self._reserve(task_id, definition)
        while task is not None:
            before = task.checkpoint
            error = await self._phase(definition, task, runtime)
            if (halt := find_halt(error)) is not None:
                self._session.fail(halt)
                return
            current = self._session.live_task(task_id)
            if self._closing or current is None or not isinstance(current.state, Running) or current.abort_requested:
                return
            if error is not None:
                await self._fault(task_id, f"{type(error).__name__}: {error}")
                return
            if same(current.checkpoint, before):
                await self._fault(task_id, f"phase {before.get('phase')!r} ended without a new state")
                return
            task = None if self._draining else current

    async def _phase(self, definition: TaskDefinition, task: Task, runtime: TaskRuntime) -> BaseException | None:
        name = task.checkpoint.get("phase") if isinstance(task.checkpoint, dict) else None
        phase = definition.phases.get(name) if isinstance(name, str) else None
        if phase is None:
            return LookupError(f"there is no phase {name!r}")
        return await _outcome_of(phase(task, runtime))

    async def _reserve(self, task_id: int, definition: TaskDefinition) -> Task | None:
        """-> running, in the code's version."""

        def write(tx: Tx) -> Task | None:
            task = tx.get_task(task_id)
            if task is None or task.abort_requested or isinstance(task.state, Completing | Terminal):
                return None
            checkpoint = task.checkpoint
            if task.version < definition.version and definition.migrate is not None:
                try:
                    checkpoint = definition.migrate(task.version, checkpoint)
                except Exception:
                    self._migration_failed.add(task_id)
                    log.exception("task %d (%s): its checkpoint could not be migrated", task_id, task.kind)
                    return None
            return tx.put_task(
                replace(
                    task,
                    version=definition.version,
                    state=Running(checkpoint=checkpoint),
                    started_at=task.started_at or self._now_ms(),
                    attempt=self._settings.attempt or 0,
                )
            )

        return await self._session.commit(write)

    async def _abort(self, task_id: int, runtime: TaskRuntime) -> None:
        task = self._session.live_task(task_id)
        if task is None:
            return
        error = await _outcome_of(self._definitions[task.kind].abort(task, runtime))
        if (halt := find_halt(error)) is not None:
            self._session.fail(halt)
            return
        current = self._session.live_task(task_id)
        if self._closing or current is None or isinstance(current.state, Completing):
            return
        await self._fault(task_id, "its abort code ended it with no outcome" if error is None else repr(error))

    # ---- outcomes that the scheduler writes

    async def _fault(self, task_id: int, message: str) -> None:
        log.warning("task %d faulted", task_id)
        await self._finish(task_id, Outcome(status="faulted", error=message))

    async def _finish(self, task_id: int, outcome: Outcome) -> None:
        def write(tx: Tx) -> None:
            task = tx.get_task(task_id)
            if task is None or isinstance(task.state, Terminal):
                return
            tx._by_task_id = task_id
            held = isinstance(task.state, Completing)
            done = tx.put_task(moved(task, Terminal(outcome=outcome), self._now_ms()))
            definition = self._definitions.get(task.kind)
            written_here = not held or outcome.status in ("faulted", "orphaned")
            if isinstance(done.state, Terminal) and definition is not None and definition.settle and written_here:
                definition.settle(tx, done, outcome)

        await self._quietly(write)

    async def mark(self, ids: Iterable[int], reason: str) -> None:
        """Mark live tasks for abort, in one commit."""

        def write(tx: Tx) -> None:
            for task_id in ids:
                task = tx.get_task(task_id)
                if task is not None and not task.abort_requested and not isinstance(task.state, Terminal):
                    tx.put_task(replace(task, abort_requested=True, abort_reason=reason))

        await self._quietly(write)

    async def _quietly(self, write: Callable[[Tx], None]) -> None:
        """A commit of the scheduler's own: refused only because the session ends, which is told elsewhere."""
        try:
            await self._session.commit(write)
        except (SessionFailedError, SessionClosedError):
            pass
        except Exception as error:
            self._session.fail(error)

    # ---- the end

    def _release(self, task_id: int) -> None:
        kind = self._seen.pop(task_id, None)
        if kind is None:
            return
        try:
            self._definitions[kind].released(task_id)
        except Exception:
            log.exception("task %d (%s): its release raised", task_id, kind)

    async def drain(self) -> None:
        """Start nothing more; wait for the phases that run."""
        self._draining = True
        while self._jobs:
            await asyncio.wait(set(self._jobs))

    async def close(self) -> None:
        """Signal and join everything that runs; then release it. Writes nothing."""
        self._closing = True
        self._set_timer([])
        for invocation in self._invocations.values():
            invocation.signal("the harness is closing")
        while self._jobs:
            await asyncio.wait(set(self._jobs))
        for task_id in sorted(self._seen):
            self._release(task_id)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)


async def _outcome_of(work: Awaitable[None]) -> BaseException | None:
    """What task code raised. A cancellation that nobody asked for is its error; one that was asked for goes through."""
    try:
        await work
    except asyncio.CancelledError as error:
        job = asyncio.current_task()
        if job is not None and job.cancelling():
            raise
        return RuntimeError("cancelled from within").with_traceback(error.__traceback__)
    except Exception as error:
        return error
    return None

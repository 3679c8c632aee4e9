"""Durable tasks: work in phases, each of which runs again from its top if a crash interrupts it.

A phase ends by committing another state through `TaskRuntime.commit`: a new checkpoint (its `phase` names what comes next),
waiting, sleeping, or terminal. What may have happened when a phase is entered again is for the phase to judge: commit the
intent, do the effect, commit the outcome; or note a finished effect as a memo.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from durable_base.errors import HaltError, StaleEpochError
from durable_harness._json import copy_strict, same
from durable_harness.errors import CommitRejectedError, SessionFailedError
from durable_harness.records import Completing, Outcome, Task, TaskState, Terminal

if TYPE_CHECKING:
    from durable_harness.session import Session, Tx

Json = Any
Mode = Literal["run", "abort"]
Phase = Callable[[Task, "TaskRuntime"], Awaitable[None]]
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """The code of a kind of task. A task's checkpoint is an object whose `phase` is a key of `phases`."""

    kind: str
    phases: Mapping[str, Phase]
    abort: Phase  # runs once, when the task is marked and what it owns is over; must end in a terminal state
    version: int = 1
    migrate: Callable[[int, Json], Json] | None = None  # (stored version, checkpoint) -> checkpoint of `version`
    # What belongs into the final commit of an outcome that no code of the task wrote (faulted, orphaned).
    settle: Callable[[Tx, Task, Outcome], None] | None = None
    # The task will do nothing more in this process: it has ended, or the harness is closing. Called once, must not raise.
    released: Callable[[int], None] = field(default=lambda task_id: None)
    # True: do not start it while an earlier task of this kind lives in its conversation. Pure, asked before each start.
    takes_turn: Callable[[Task], bool] = field(default=lambda task: False)


class TaskRuntime:
    """What a phase uses. Its commits are refused once the invocation has ended, or (running) the task is marked for abort."""

    def __init__(self, session: Session, task_id: int, mode: Mode, now: Callable[[], float]) -> None:
        self._session = session
        self._task_id = task_id
        self._mode = mode
        self._now = now
        self._ended: str | None = None  # why commits are refused; set by `end`

    def now_ms(self) -> int:
        return int(self._now() * 1000)

    def end(self, why: str) -> None:
        self._ended = self._ended or why

    async def commit(self, fn: Callable[[Tx, Task], Awaitable[TaskState | None] | TaskState | None]) -> Task:
        """One commit with the task's next state, or None to leave it. Returns the task as stored.

        Raises CommitRejectedError, with nothing written, when the task may no longer write.
        """

        async def gated(tx: Tx) -> Task:
            task = self._admit(tx)
            tx._by_task_id = task.id
            answer = fn(tx, task)
            state = await answer if inspect.isawaitable(answer) else answer
            return task if state is None else tx.put_task(moved(task, state, self.now_ms()))

        return await self._session.commit(gated)

    def _admit(self, tx: Tx) -> Task:
        task = tx.get_task(self._task_id)
        if self._ended is not None:
            raise CommitRejectedError(f"task {self._task_id}: {self._ended}")
        if task is None or isinstance(task.state, Completing | Terminal):
            raise CommitRejectedError(f"task {self._task_id} has ended")
        if self._mode == "run" and task.abort_requested:
            raise CommitRejectedError(f"task {self._task_id} is marked for abort")
        return task

    async def memo(self, name: str, candidate: Json = _MISSING) -> Json:
        """Read a memo (None if there is none), or set it: the first writer wins, and the winner's value is returned.

        Kept over checkpoints, crashes and reopening; dropped when the task ends.
        """
        if candidate is _MISSING:
            task = self._session.live_task(self._task_id)
            return copy_strict(((task.memos if task else None) or {}).get(name), "memo")

        def write(tx: Tx) -> Json:
            task = self._admit(tx)
            memos = task.memos or {}
            if name not in memos:
                memos = {**memos, name: copy_strict(candidate, f"memo {name}")}
                tx.put_task(replace(task, memos=memos))
            return copy_strict(memos[name])

        return await self._session.commit(write)


def moved(task: Task, state: TaskState, now_ms: int) -> Task:
    """The task in its next state. A new checkpoint is progress: drives that died before it no longer count (rule 33)."""
    progress = not same(getattr(state, "checkpoint", None), task.checkpoint)
    return replace(
        task,
        state=state,
        restarts=0 if progress else task.restarts,
        ended_at=now_ms if isinstance(state, Completing | Terminal) else None,
    )


def find_halt(error: BaseException | None) -> Exception | None:
    """What must end the drive and never become a result, also out of an exception group."""
    if isinstance(error, StaleEpochError | HaltError | SessionFailedError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(find_halt, error.exceptions)), None)
    return None

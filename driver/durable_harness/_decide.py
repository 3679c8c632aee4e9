"""What the scheduler does next with a live task: one pure decision over the task and the live tasks around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from durable_harness._state import owned_by
from durable_harness.records import Completing, Outcome, Pending, Running, Sleeping, Task, Waiting
from durable_harness.tasks import Mode, TaskDefinition

BlockReason = Literal["missing_task", "task_too_old", "migration_failed", "restart_limit"]


@dataclass(frozen=True, slots=True)
class Start:
    mode: Mode


@dataclass(frozen=True, slots=True)
class Wake:
    """Ask again at `at`, in ms since 1970."""

    at: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Write the outcome: it was held, or no code of the task is there to write one."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark what the task owns for abort."""

    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    reason: BlockReason


@dataclass(frozen=True, slots=True)
class Rest:
    """Something else must happen first."""


Decision = Start | Wake | Finish | Mark | Blocked | Rest


def decide(
    task: Task,
    live: Mapping[int, Task],
    definition: TaskDefinition | None,
    *,
    now_ms: int,
    restart_limit: int,
    migration_failed: bool = False,
) -> Decision:
    """Total; for a task without an invocation. Acted on by `_scheduler`."""
    owned = owned_by(live.values(), task.id)
    if isinstance(task.state, Completing):
        if not owned:
            return Finish(task.state.outcome)
        return Rest() if task.state.outcome.status == "completed" else _mark(owned)
    if task.abort_requested:
        # Bottom-up: what it owns ends before the task's own abort code runs.
        if owned:
            return _mark(owned)
        if isinstance(_blocked(task, definition, migration_failed), Blocked):
            return Finish(Outcome(status="orphaned", reason=task.abort_reason or "aborted"))
        return Start("abort")
    match task.state:
        case Waiting(on=on) if any(member in live for member in on):
            return Rest()
        case Sleeping(until=until) if until > now_ms:
            return Wake(until)
        case Pending() | Waiting() | Sleeping():
            if task.restarts >= restart_limit:
                return Blocked("restart_limit")
            blocked = _blocked(task, definition, migration_failed)
            return blocked or (Rest() if _has_to_wait(task, live, definition) else Start("run"))
        case Running():
            return Rest()  # its invocation has just ended, and its last commit is on its way
        case _:
            return Rest()


def _mark(owned: Iterable[Task]) -> Decision:
    unmarked = tuple(task.id for task in owned if not task.abort_requested)
    return Mark(unmarked) if unmarked else Rest()


def _has_to_wait(task: Task, live: Mapping[int, Task], definition: TaskDefinition | None) -> bool:
    """A task that takes its turn begins after the earlier ones of its kind; by then those are no longer live, however they ended.

    Not started, it is neither an invocation that hides a parked task (`stuck`) nor one that drives die in (rule 33).
    """
    if definition is None or not definition.takes_turn(task):
        return False
    return any(
        other.kind == task.kind
        and other.conversation_id == task.conversation_id
        and other.id < task.id
        and not isinstance(other.state, Completing)
        for other in live.values()
    )


def _blocked(task: Task, definition: TaskDefinition | None, migration_failed: bool) -> Blocked | None:
    if definition is None:
        return Blocked("missing_task")
    if task.version > definition.version:
        return Blocked("task_too_old")
    if task.version < definition.version and (definition.migrate is None or migration_failed):
        return Blocked("migration_failed")
    return None

"""The harness: a Session with what makes it go on: models, tools, tasks, submissions.

Guarantee: what `submit` has returned for is answered once, or settles with a reason, however often the process dies, as long as
the log is opened again. Every effect stands between the commit of its intent and the commit of its outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from durable_base.errors import UsageError
from durable_harness._generation import Generation
from durable_harness._scheduler import Scheduler
from durable_harness._tool_task import EnvFactory, ToolRunner
from durable_harness.builtin import AGENT, ALL
from durable_harness.conversation import Conversation
from durable_harness.errors import SessionFailedError
from durable_harness.fence import Fence
from durable_harness.models import ModelProvider
from durable_harness.records import ROOT_ID, Outcome, Task
from durable_harness.session import Session, Tx
from durable_harness.settings import Agent, Settings
from durable_harness.storage import Storage, StorageSource
from durable_harness.tasks import TaskDefinition
from durable_harness.tools import Extension, Tool, ToolWrapper

Json = Any


class Harness:
    """Made by `open`. `session` is the log; `closed` resolves with None after `close`, or with the SessionFailedError."""

    def __init__(
        self,
        session: Session,
        scheduler: Scheduler,
        generation: Generation,
        tools: Mapping[str, Tool],
        extensions: Sequence[str],
    ) -> None:
        self.session = session
        self.closed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._scheduler = scheduler
        self._generation = generation
        self._tools = tools
        self._extensions = extensions
        self._ending: asyncio.Task[None] | None = None
        session.on_failure(self._failed)

    @classmethod
    def open(
        cls,
        storage: Storage | StorageSource,
        *,
        models: Mapping[str, ModelProvider],
        tools: Sequence[Tool] = (),
        extensions: Sequence[Extension] = (),
        tasks: Sequence[TaskDefinition] = (),
        env: EnvFactory | None = None,
        fence: Fence | None = None,
        settings: Settings | None = None,
        now: Callable[[], float] = time.time,
    ) -> Opening:
        """`await` it, or use it with `async with`. Nothing runs before `resume`, `submit` or a wait.

        `fence`: the storage's own, if not given. Every extension given here is in force: its tools can be named by agents, its
        wrappers stand around the tools they name. Raises UsageError for names given twice, and what the storage raises.
        """
        settings = settings or Settings()
        registry = _registry(tools, extensions)
        wrappers = _wrappers(extensions)
        in_order = {name for extension in extensions for name in extension.in_order}

        async def start() -> Harness:
            place = await storage.open_log() if isinstance(storage, StorageSource) else storage
            try:
                session = await Session.load(place, fence)
                generation = Generation(session, models, registry, settings)
                runner = ToolRunner(session, registry, wrappers, env, settings, in_order)
                definitions = [generation.definition(), runner.definition(), *tasks]
                scheduler = Scheduler(session, definitions, settings, now)
                await scheduler.reconcile()
            except BaseException:
                await place.close()
                raise
            return cls(session, scheduler, generation, registry, [extension.name for extension in extensions])

        return Opening(start)

    async def root(self, agent: Agent | None = None) -> Conversation:
        """The root conversation, made if need be; `agent` becomes its agent if it differs from the stored one.

        Raises UsageError for a model, tool or extension that the harness was not opened with.
        """
        wanted = None if agent is None else self._checked(agent)

        def write(tx: Tx) -> None:
            if tx.get_conversation(ROOT_ID) is None:
                tx.create_conversation(root=True)
                for token in ALL:
                    tx.doc(token)
            if wanted is not None:
                tx.doc(AGENT).value = wanted

        if self.session.conversation() is None or wanted not in (None, await self.session.document(AGENT)):
            await self.session.commit(write)
        return Conversation(self, ROOT_ID)

    def _checked(self, agent: Agent) -> Json:
        if self._generation.provider(agent.model) is None:
            raise UsageError(f"agent: model {agent.model!r} is none of those given to Harness.open(models=...)")
        for kind, names, known in (
            ("tool", agent.tools, self._tools),
            ("extension", agent.extensions, self._extensions),
        ):
            for name in names:
                if name not in known:
                    raise UsageError(
                        f"agent: {kind} {name!r} is not known; known: {', '.join(sorted(known)) or 'none'}"
                    )
        return {**asdict(agent), "tools": list(agent.tools), "extensions": list(agent.extensions)}

    # ---- running

    def resume(self) -> None:
        """Let tasks run: what a dead drive left, and what comes."""
        self.session.check_open()
        self._scheduler.enable()

    def blocked(self) -> dict[int, str]:
        """Live tasks that can't run here, with the reason, by id: restart_limit, missing_task, task_too_old, migration_failed."""
        return {task_id: str(reason) for task_id, reason in self._scheduler.blocked().items()}

    def stuck_task(self, conversation_id: int = ROOT_ID) -> Task | None:
        """The blocked task that keeps a conversation from going on, if nothing else in it can."""
        return self._scheduler.stuck(conversation_id)

    async def retry_task(self, task_id: int) -> None:
        """Release a task that restart_limit parked; the next drive that dies in it parks it again."""
        await self._scheduler.retry(task_id)

    def mark(self, tx: Tx, task: Task, reason: str = "aborted") -> None:
        """Mark a live task for abort, in the caller's transaction."""
        tx.put_task(replace(task, abort_requested=True, abort_reason=reason))

    async def wait_for_task(self, task_id: int) -> Outcome:
        """How a task ended, once it has."""
        self.resume()

        def ended() -> bool | None:
            return True if self.session.live_task(task_id) is None else None

        await self.session.wait_until(ended)
        task = await self.session.task(task_id)
        if task is None or task.outcome is None:
            raise UsageError(f"there is no task {task_id}")
        return task.outcome

    # ---- the end

    async def drain(self) -> None:
        """Start nothing more, and wait for what runs to reach its next durable point: a call its result, a model request its
        answer. Then `close`. To bound it, cancel the wait and close.
        """
        await self._scheduler.drain()

    async def close(self) -> None:
        """Stop and join what runs, store the commits that were admitted, close the log. Writes no outcome. Idempotent.

        Cancelling the caller cancels only its wait.
        """
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(None))
        await asyncio.shield(self._ending)

    def _failed(self) -> None:
        failure = self.session.failure
        if not self.closed.done():
            self.closed.set_result(failure)
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(failure))

    async def _end(self, failure: SessionFailedError | None) -> None:
        try:
            self.session.seal()
            await self._scheduler.close()
            await self.session.drain()
            await self.session.close_storage()
        finally:
            if not self.closed.done():
                self.closed.set_result(self.session.failure)


class Opening:
    """A harness that is being opened: await it, or enter it."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._harness: Harness | None = None

    def __await__(self) -> Generator[Any, None, Harness]:
        harness: Harness = yield from self._start().__await__()
        return harness

    async def __aenter__(self) -> Harness:
        self._harness = await self
        return self._harness

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._harness is not None:
            await self._harness.close()


def _registry(tools: Sequence[Tool], extensions: Sequence[Extension]) -> dict[str, Tool]:
    registry: dict[str, Tool] = {}
    for tool in [*tools, *(tool for extension in extensions for tool in extension.tools)]:
        if tool.name in registry:
            raise UsageError(f"tool {tool.name!r} is given twice; rename one or leave it out")
        registry[tool.name] = tool
    return registry


def _wrappers(extensions: Sequence[Extension]) -> dict[str, ToolWrapper]:
    wrappers: dict[str, ToolWrapper] = {}
    for extension in extensions:
        for name, wrapper in extension.wrappers.items():
            if name in wrappers:
                raise UsageError(f"tool {name!r} has two wrappers; at most one extension may wrap a tool")
            wrappers[name] = wrapper
    return wrappers

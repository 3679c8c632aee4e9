"""How the effects of a tool are let through: in a wrapped call, under its start mark; outside one, fenced and no more."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import Awaitable, Callable

from durable_base.crash import crash_point
from durable_base.errors import HaltError, StaleEpochError
from durable_harness.env import Stream
from durable_harness.tools import Tool
from durable_spaces._commands import CommandEnd, CommandSpec, Sinks
from durable_spaces._drive import Drive
from durable_spaces._errors import SpaceRefused
from durable_spaces._parts import CommandOperations

_KILL_SECONDS = 10.0


class FreeConduct:
    """For tools that are not wrapped. Their changes are the next call's outside changes; a crash in them undoes nothing."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive

    async def reading(self) -> None:
        await self._drive.readable()

    async def changing(self) -> None:
        await self._drive.readable()

    async def execute(self, spec: CommandSpec, sinks: Sinks) -> tuple[str, CommandEnd]:
        request_id = f"{self._drive.log.key(0, 0)}:{secrets.token_hex(8)}@{self._drive.epoch}"
        return request_id, await run_with_caller(self._drive.space.commands, spec, request_id, sinks)


async def run_with_caller(commands: CommandOperations, spec: CommandSpec, request_id: str, sinks: Sinks) -> CommandEnd:
    """Run a command that nothing will ever attach to again: cancelling the caller kills it before the caller goes on.

    Where the Space can't be reached for that, the next epoch does it. A start that is under way is waited for: killing what the
    Space does not know yet would kill nothing, and it would run.
    """
    begun = asyncio.Event()
    given_up = False

    def output(data: bytes, stream: Stream) -> None:
        if not given_up:
            sinks.output(data, stream)

    def started() -> None:
        begun.set()
        sinks.started()

    running = asyncio.ensure_future(
        commands.run(spec, request_id, dataclasses.replace(sinks, output=output, started=started))
    )
    running.add_done_callback(lambda _: begun.set())
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        given_up = True
        with contextlib.suppress(TimeoutError, HaltError, StaleEpochError, SpaceRefused):
            async with asyncio.timeout(_KILL_SECONDS):
                await begun.wait()
                if not running.done():
                    await commands.kill(request_id)
                    await asyncio.wait([running])
        raise
    finally:
        if not running.done():
            running.cancel()
        elif not running.cancelled():
            running.exception()  # seen: it was raised above, or the caller is gone


class CallConduct:
    """For one run of a wrapped call. The first effect commits the start mark; an effect that the tool did not declare halts.

    Cancelling the caller leaves the command running: a driver that stops is followed by one that attaches.
    """

    def __init__(
        self,
        drive: Drive,
        tool: Tool,
        key: Callable[[int], str],
        mark: Callable[[str | None], Awaitable[None]],
    ) -> None:
        self._drive = drive
        self._tool = tool
        self._key = key
        self._mark = mark
        self._commands = 0
        self._marking = asyncio.Lock()
        self.marked = False

    async def reading(self) -> None:
        pass  # the call has its turn, and the workspace is right

    async def changing(self) -> None:
        if self._tool.effects == "command":
            raise _undeclared(self._tool, "changes files besides")
        await self._ensure_marked(None)

    async def execute(self, spec: CommandSpec, sinks: Sinks) -> tuple[str, CommandEnd]:
        number, self._commands = self._commands, self._commands + 1
        if self._tool.effects == "command" and number:
            raise _undeclared(self._tool, "runs a second one")
        await self._ensure_marked(spec.hash if self._tool.effects == "command" else None)
        request_id = f"{self._key(number)}@{self._drive.epoch}"
        end = await self._drive.space.commands.run(spec, request_id, _with_crash_point(sinks))
        crash_point("adapter.command_exited")
        return request_id, end

    async def _ensure_marked(self, command_hash: str | None) -> None:
        async with self._marking:  # a body may begin several effects at once
            if not self.marked:
                await self._mark(command_hash)
                self.marked = True


class AttachConduct:
    """For a call whose command is known to run or to have ended: its body runs again, and its command does not."""

    def __init__(self, drive: Drive, request_id: str, command_hash: str) -> None:
        self._drive = drive
        self._request_id = request_id
        self._command_hash = command_hash
        self._attached = False
        self.diverged = False  # the body asked for something else than the marked command

    async def reading(self) -> None:
        pass

    async def changing(self) -> None:
        raise self._diverge()

    async def execute(self, spec: CommandSpec, sinks: Sinks) -> tuple[str, CommandEnd]:
        if self._attached or spec.hash != self._command_hash:
            raise self._diverge()
        self._attached = True
        end = await self._drive.space.commands.attach(self._request_id, sinks)
        crash_point("adapter.command_exited")
        return self._request_id, end

    def _diverge(self) -> HaltError:
        self.diverged = True
        return HaltError("CommandDiverged", "the tool asks for another command than the one it was interrupted in")


def _with_crash_point(sinks: Sinks) -> Sinks:
    def started() -> None:
        sinks.started()
        crash_point("adapter.command_started")

    return dataclasses.replace(sinks, started=started)


def _undeclared(tool: Tool, what: str) -> HaltError:
    return HaltError(
        "ToolContract",
        f"tool {tool.name} declares that it runs one command, and {what}: declare it with effects='mixed'",
        permanent=True,
    )

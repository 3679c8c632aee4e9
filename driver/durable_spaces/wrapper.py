"""The wrapper around `bash`, `write` and `edit`: a call's effect on the Space happens once, in order, or not at all.

Order of a call: its turn in the Space; the workspace is right; scan; start mark with the outside changes (one commit); effect;
scan; outcome with the call's diff (one commit); result entry; the next turn. A call that a crash interrupted goes through
`recovery` first. Whatever fails here and is not the tool's own failure ends the drive and is never recorded as a result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from durable_base.crash import crash_point
from durable_base.errors import HaltError, StaleEpochError
from durable_harness.env import ExecutionEnv
from durable_harness.fence import Fence
from durable_harness.session import Tx
from durable_harness.tools import Diagnostic, Tool, ToolApi, ToolResult
from durable_spaces._conduct import AttachConduct, CallConduct
from durable_spaces._drive import Drive, Uncapturable
from durable_spaces._errors import only_halts
from durable_spaces._recover import recover_call
from durable_spaces.document import Current, Mark
from durable_spaces.env import SpaceExecutionEnv
from durable_spaces.image import ImageDelta
from durable_spaces.recovery import NO_START_MARK, Recovery, Then

Run = Callable[[ExecutionEnv], Awaitable[ToolResult]]


class SpaceWrapper:
    """The harness's ToolWrapper. `drive` gives the drive, or raises HaltError before there is one."""

    def __init__(self, drive: Callable[[], Drive], fence: Fence | None) -> None:
        self._drive = drive
        self._fence = fence

    async def __call__(self, api: ToolApi, tool: Tool, run: Run) -> ToolResult:
        try:
            drive = self._drive()
            await drive.turn.acquire(api.call.task_id)
            # Held until the result entry is published, not only until the call returns (rule 25).
            call = _Call(drive, api, tool, run)
            api.after_result(call.end)
            api.at_result(call.settle)
            return await call.carry_out()
        except (StaleEpochError, HaltError) as error:
            # The harness fails the session with it; halting here as well leaves no moment in which it could be recorded.
            if self._fence is not None:
                self._fence.halt(error)
            raise


@dataclass
class _Call:
    drive: Drive
    api: ToolApi
    tool: Tool
    run: Run
    given_up: bool = False  # it has its result entry, and no outcome: it was aborted

    async def carry_out(self) -> ToolResult:
        with only_halts():
            facts = await self.drive.log.facts()
            current = facts.current
            if current is not None and current.mark.task == self.api.call.task_id:
                recovery = await recover_call(self.drive, self.api.commit, facts)
                return await self._after(recovery, current)
            facts = await self.drive.settle(self.api.commit, self.api.call.task_id)
            self.drive.check_usable(facts)
            if self.api.call.recovered:
                self.drive.tell(NO_START_MARK, self.api.call.task_id)
            return await self._run()

    async def _after(self, recovery: Recovery, current: Current) -> ToolResult:
        match recovery.then:
            case Then.RECORD:
                assert current.outcome is not None  # the fact that led here
                return current.outcome.result
            case Then.INTERRUPT:
                return INTERRUPTED
            case Then.RUN:
                return await self._run()
            case Then.ATTACH:
                return await self._attach(current.mark)

    async def _run(self) -> ToolResult:
        """From the scan before the call to the commit of its outcome."""
        drive, task = self.drive, self.api.call.task_id
        outside = await self._capture_before()

        async def mark(command_hash: str | None) -> None:
            start = Mark(
                task, drive.log.key(task, 0), drive.epoch, drive.space.identity, drive.settings.lease, command_hash
            )
            await drive.log.mark(self.api.commit, start, outside, drive.space.ledger_seq)

        conduct = CallConduct(drive, self.tool, lambda number: drive.log.key(task, number), mark)
        result = await self._body(conduct)
        if not conduct.marked:
            return result  # it refused before any effect: there is nothing to record
        return await self._finish(result)

    async def _attach(self, mark: Mark) -> ToolResult:
        assert mark.command_hash is not None  # else it would have been cut off
        conduct = AttachConduct(self.drive, mark.request_id, mark.command_hash)
        try:
            result = await self._body(conduct)
        except HaltError:
            if not conduct.diverged:
                raise
        if conduct.diverged:
            # Another version of the tool: what it was interrupted in is not its command any more, so it starts over.
            facts = await self.drive.log.facts()
            await self.drive.undo(self.api.commit, facts, self.api.call.task_id, "CommandDiverged")
            return await self._run()
        return await self._finish(result)

    async def _body(self, conduct: CallConduct | AttachConduct) -> ToolResult:
        env = SpaceExecutionEnv(self.drive.space, conduct, self.api.env.cwd)
        return await self.run(env)

    async def _capture_before(self) -> ImageDelta:
        try:
            return await self.drive.capture(await self.drive.log.image())
        except Uncapturable as error:
            raise self.drive.outgrown(str(error)) from error

    async def _finish(self, result: ToolResult) -> ToolResult:
        drive = self.drive
        stale: str | None = None
        delta = ImageDelta()
        try:
            delta = await drive.capture(await drive.log.image())
        except Uncapturable as error:
            stale = str(error)
        crash_point("adapter.scanned")
        seq = await drive.space.read_ledger_seq()
        await drive.log.outcome(self.api.commit, result, drive.space.identity, seq, delta, stale)
        return result

    def settle(self, tx: Tx, entry_id: int) -> None:
        """In the commit of the result entry, however that comes about."""
        self.given_up = self.drive.log.result(tx, self.api.call.task_id, entry_id)

    def end(self) -> None:
        """This call does nothing more in this process."""
        self.drive.end_call(given_up=self.given_up)


INTERRUPTED = ToolResult(
    "",
    is_error=True,
    diagnostics=(
        Diagnostic(
            "error",
            "interrupted",
            "This call was interrupted, and the workspace was then used by another session. It was not run again: "
            "look at the files before you go on.",
        ),
    ),
)

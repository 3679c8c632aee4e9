"""What one drive knows of its Space: the fenced connection, the log's documents, and the steps that every call is made of."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from durable_base.crash import crash_point
from durable_base.errors import HaltError
from durable_harness.records import Terminal
from durable_harness.session import Committed
from durable_spaces import image
from durable_spaces._errors import only_halts
from durable_spaces._log import Commit, SpaceLog
from durable_spaces._workspace import BlobsChanged, UntrackedNames, WorkspaceTooLarge
from durable_spaces.client import FencedSpace
from durable_spaces.document import Decision, SpaceFacts
from durable_spaces.events import OnEvent, RecoveryEvent
from durable_spaces.image import Image, ImageDelta, Table
from durable_spaces.limits import KEEPS_CHANGING, Limits, mode_unsupported, not_recordable, too_large
from durable_spaces.recovery import Kind, Place, Recovery, Then, Workspace, decide_between_calls, judge_place
from durable_spaces.turnstile import Turnstile

log = logging.getLogger("durable_spaces")

_CAPTURE_ATTEMPTS = 3  # rule 37: then something keeps writing there
_RESTORE_ATTEMPTS = 3


class Uncapturable(Exception):
    """The workspace can't be taken into the image; the message says why and is for a person."""


@dataclass(frozen=True, slots=True)
class Settings:
    mode: str
    limits: Limits
    lease: str
    on_event: OnEvent


class Drive:
    """One session on one Space, from AdvanceEpoch to the end of the process."""

    def __init__(self, space: FencedSpace, log: SpaceLog, settings: Settings) -> None:
        self.space = space
        self.log = log
        self.settings = settings
        self.turn = Turnstile()
        self._undoing: asyncio.Task[None] | None = None
        self._right = asyncio.Event()  # the workspace holds nothing that a restore would take away
        self._stop_observing = log.session.observe(self._observe)

    @property
    def epoch(self) -> int:
        return self.space.own.epoch

    async def close(self) -> None:
        self._stop_observing()
        if self._undoing is not None:
            self._undoing.cancel()
            await asyncio.wait((self._undoing,))

    def _observe(self, committed: Committed) -> None:
        """A pending call that ends without its wrapper must not hold up the others for ever."""
        for task in committed.tasks:
            if task.id == self.turn.pending and isinstance(task.state, Terminal):
                self.turn.expect(None)

    def tell(self, recovery: Recovery, call: int | None) -> None:
        self.settings.on_event(RecoveryEvent(recovery.kind.value, "transactional", call, self.epoch, recovery.reason))

    # ---- the state of the workspace

    def judge_place(self, facts: SpaceFacts) -> Place:
        recorded, found = facts.place, self.space.identity
        return judge_place(
            recorded=None if recorded is None else (recorded.instance, recorded.boot),
            found=(found.instance, found.boot),
            ledger_seq=facts.ledger_seq,
            found_seq=self.space.ledger_seq,
            restoring=facts.restoring is not None,
        )

    def check_usable(self, facts: SpaceFacts) -> None:
        """Before a call of its own: refuse what this version or this mode can't go on with."""
        if facts.mode != "transactional":
            raise mode_unsupported(f"the session's log is in mode {facts.mode}")
        if facts.stale is not None:
            # Also where it has been put right since: the image missed what was done meanwhile, and undoing would be wrong.
            raise self.outgrown(f"an earlier call was the last one that the log could follow: {facts.stale}")

    def outgrown(self, why: str) -> HaltError:
        """`why` holds the remedy: it differs by what stands in the way, in every mode alike."""
        return HaltError("ImageOutgrown", why, permanent=True)

    async def make_right(self, commit: Commit, facts: SpaceFacts, call: int | None) -> None:
        """Between calls: if this is not the Space of the log, or a restore was cut off, make it equal to the image."""
        recovery = decide_between_calls(self.judge_place(facts))
        if recovery is not None:
            await self.restore(commit, facts, recovery.reason, None)
            self.tell(recovery, call)
        self._right.set()

    async def readable(self) -> None:
        """For what is read outside a call: wait until nothing half done can be seen, or put it right oneself.

        The call that is pending after a crash has the turn first, and trusts the workspace once it has decided.
        """
        if self._right.is_set():
            return
        right = asyncio.create_task(self._right.wait())
        turn = asyncio.create_task(self.turn.acquire())
        try:
            await asyncio.wait((right, turn), return_when=asyncio.FIRST_COMPLETED)
            if turn.done():
                with only_halts():
                    await self.settle(self.log.session.commit, None)
        finally:
            right.cancel()
            if not turn.cancel():
                self.turn.release()

    async def settle(self, commit: Commit, call: int | None) -> SpaceFacts:
        """Between calls, with the turn: nothing is in work, and the workspace is right. The facts after it."""
        facts = await self.log.facts()
        if facts.current is not None:
            if self.log.session.live_task(facts.current.mark.task) is not None:
                raise HaltError("LogContradiction", "a call is in work in the log, and another one has its turn")
            await self.log.give_up(commit, facts.current.mark.task)
            facts = await self.log.facts()
        await self.make_right(commit, facts, call)
        return await self.log.facts()

    async def undo(self, commit: Commit, facts: SpaceFacts, call: int, reason: str) -> None:
        """Take back what the call in work has done in this drive, to run it again."""
        await self.restore(commit, facts, reason, Decision.RERUN)
        self.tell(Recovery(Kind.REVERTED, Workspace.RESTORE, Then.RUN, reason), call)

    def trust(self) -> None:
        self._right.set()

    def end_call(self, *, given_up: bool) -> None:
        """The turn passes on. What a call did that was given up in its course is undone before anyone looks."""
        if given_up:
            self._right.clear()
        self.turn.release()
        if given_up:
            self._undoing = asyncio.create_task(self.readable())
            self._undoing.add_done_callback(_note_failure)

    # ---- into the image, and out of it

    async def capture(self, known: Image) -> ImageDelta:
        """The workspace as it is, as a change of the image. Raises Uncapturable."""
        for _ in range(_CAPTURE_ATTEMPTS):
            try:
                found = await self.space.workspace.scan(self.settings.limits)
                blobs = await self.space.workspace.read_blobs(image.missing_blobs(known, found))
            except WorkspaceTooLarge as error:
                raise Uncapturable(too_large(error.files, error.bytes, self.settings.limits)) from error
            except UntrackedNames as error:
                raise Uncapturable(not_recordable(str(error))) from error
            except BlobsChanged:
                continue
            return image.plan_delta(known, found, blobs)
        raise Uncapturable(KEEPS_CHANGING)

    async def restore(self, commit: Commit, facts: SpaceFacts, reason: str, decision: Decision | None) -> None:
        """Make the workspace equal to the image, by hash, and let the log say so. Nothing is done where it is equal already.

        Killed at any line, the next drive finds `restoring` and begins anew.
        """
        if facts.stale is not None:
            # There is no image of it any more: it must be here as it was left, or it is lost.
            if self.judge_place(facts) is not Place.SAME:
                raise self.outgrown(facts.stale)
            return
        # I3: what this epoch itself still runs would write into the restored files.
        await self.space.kill_all()
        held = await self.log.image()
        target = image.without(held.table, self.settings.limits.exclude)  # what is excluded since is not undone
        try:
            if await self._scan_all() == target and self.judge_place(facts) is Place.SAME:
                return
        except UntrackedNames:
            pass  # what no image can hold has to go
        await self.log.begin_restore(commit, reason, decision, self.epoch)
        found = await self._scan_cleared()
        for _ in range(_RESTORE_ATTEMPTS):
            plan = image.plan_apply(found, target)
            if not plan:
                break
            await self.space.workspace.apply(plan, held.bytes_of)
            found = await self._scan_cleared()
        if found != target:
            raise HaltError(
                "RestoreFailed", "the workspace did not become equal to the image; the next drive tries again"
            )
        crash_point("adapter.restored")
        await self.log.end_restore(commit, self.space.identity, await self.space.read_ledger_seq())

    async def _scan_cleared(self) -> Table:
        """The same, after taking away sockets, pipes and the like, which a call that was cut off may have left."""
        attempts = _RESTORE_ATTEMPTS
        while True:
            try:
                return await self._scan_all()
            except UntrackedNames as error:
                attempts -= 1
                if not error.names or not attempts:
                    raise HaltError("RestoreFailed", f"{error}; the next drive tries again") from error
                await self.space.workspace.apply(image.ApplyPlan(remove=error.names), Image().bytes_of)

    async def _scan_all(self) -> Table:
        """Hashed anew, without limits: whatever lies there has to go (rules 3 and 13)."""
        return await self.space.workspace.scan(self.settings.limits, no_cache=True, unlimited=True)


def _note_failure(undoing: asyncio.Task[None]) -> None:
    """Whoever needs the workspace next meets the same failure, and ends the drive with it."""
    if not undoing.cancelled() and (error := undoing.exception()) is not None:
        log.warning("undoing a call that was given up failed: %s", type(error).__name__)

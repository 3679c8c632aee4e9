"""The adapter's commits: each method is one transaction, and what it says is true together or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from durable_base.crash import crash_point
from durable_harness.session import Session, Tx
from durable_harness.tools import ToolResult
from durable_spaces import document, image
from durable_spaces.document import CUA_SPACE, CUA_SPACE_IMAGE, Decision, Identity, Mark, SpaceFacts
from durable_spaces.image import Image, ImageDelta

Json = Any
Commit = Callable[[Callable[[Tx], Any]], Awaitable[Any]]  # `Session.commit`, or a call's own gated one


class SpaceLog:
    """The two documents of one conversation. Reads are of committed state, so nothing is kept in memory beside the log."""

    def __init__(self, session: Session, conversation_id: int) -> None:
        self.session = session
        self.conversation_id = conversation_id

    async def facts(self) -> SpaceFacts:
        return document.read_facts(await self.session.document(CUA_SPACE, self.conversation_id))

    async def image(self) -> Image:
        """Raise ImageError where the log is damaged."""
        stored = await self.session.document(CUA_SPACE_IMAGE, self.conversation_id)
        return Image() if stored is None else image.image_of(stored)

    def key(self, task: int, number: int) -> str:
        """`<log id>/<conversation>:<call>:<n>`: no other log, and no fork of this one, asks for it (rule 7)."""
        return f"{self.session.log_id}/{self.conversation_id}:{task}:{number}"

    async def mark(self, commit: Commit, mark: Mark, outside: ImageDelta, ledger_seq: int) -> None:
        """A run begins: its start mark, and what had changed in the workspace since the last call."""

        def write(tx: Tx) -> None:
            space = self._space(tx)
            document.write_mark(space, mark, void=mark.epoch)
            document.write_place(space, mark.place, ledger_seq)
            self._write_image(tx, outside)

        await commit(write)
        crash_point("adapter.mark_committed")

    async def outcome(
        self, commit: Commit, result: ToolResult, place: Identity, ledger_seq: int, delta: ImageDelta, stale: str | None
    ) -> None:
        """The call has happened: what it returned and what it changed. With `stale` the image stays behind from here on."""

        def write(tx: Tx) -> None:
            space = self._space(tx)
            document.write_outcome(space, result, place)
            document.write_place(space, place, ledger_seq)
            if stale is not None:
                document.write_stale(space, stale)
            self._write_image(tx, delta)

        await commit(write)
        crash_point("adapter.outcome_committed")

    async def begin_restore(self, commit: Commit, reason: str, decision: Decision | None, epoch: int) -> None:
        """From here on the workspace is not to be trusted, and the call's end is decided (rules 3 and 5)."""

        def write(tx: Tx) -> None:
            space = self._space(tx)
            document.write_restoring(space, reason)
            if decision is not None:
                document.write_decision(space, decision, reason, void=epoch)

        await commit(write)
        if decision is not None:
            crash_point("adapter.decision_committed")
        crash_point("adapter.restoring_committed")

    async def end_restore(self, commit: Commit, place: Identity, ledger_seq: int) -> None:
        """The workspace has been compared with the image and is equal to it, in this Space."""

        def write(tx: Tx) -> None:
            space = self._space(tx)
            document.write_restoring(space, None)
            document.write_place(space, place, ledger_seq)

        await commit(write)
        crash_point("adapter.restore_committed")

    async def hand_over(
        self, commit: Commit, reason: str, place: Identity, ledger_seq: int, found: ImageDelta, epoch: int
    ) -> None:
        """The workspace as another session left it is the new base, and the call in work ends interrupted (rule 22)."""

        def write(tx: Tx) -> None:
            space = self._space(tx)
            document.write_decision(space, Decision.INTERRUPT, reason, void=epoch)
            document.write_restoring(space, None)
            document.write_place(space, place, ledger_seq)
            self._write_image(tx, found)

        await commit(write)
        crash_point("adapter.decision_committed")

    async def give_up(self, commit: Commit, task: int) -> None:
        """A call that ended without its wrapper (its tool was taken away) is in work no longer."""
        await commit(lambda tx: document.write_result(self._space(tx), task, None))

    def result(self, tx: Tx, task: int, entry_id: int) -> bool:
        """Part of the commit of the call's result entry. True: the call was given up, and its effects are to be undone."""
        if tx.peek(CUA_SPACE, self.conversation_id) is None:
            return False
        return document.write_result(self._space(tx), task, entry_id)

    def _space(self, tx: Tx) -> Json:
        return tx.doc(CUA_SPACE, self.conversation_id).value

    def _write_image(self, tx: Tx, delta: ImageDelta) -> None:
        if delta:
            image.write_delta(tx.doc(CUA_SPACE_IMAGE, self.conversation_id).value, delta)

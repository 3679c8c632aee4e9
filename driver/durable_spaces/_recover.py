"""Carry out what `recovery` decided. No rule lives here; killed at any line, the next drive ends the same."""

from __future__ import annotations

from durable_spaces._drive import Drive, Uncapturable
from durable_spaces._log import Commit
from durable_spaces.document import Current, Decision, SpaceFacts
from durable_spaces.recovery import (
    CallFacts,
    Command,
    Place,
    Progress,
    Recovery,
    Then,
    Workspace,
    decide_recovery,
    judge_command,
)


async def recover_call(drive: Drive, commit: Commit, facts: SpaceFacts) -> Recovery:
    """Make the workspace right for the call in work, so that nothing is left but the answer's `then`.

    Raises StaleEpochError (a newer driver exists) or HaltError (the Space has gone): the next drive takes the call.
    """
    current = facts.current
    assert current is not None  # the caller's reason to come here
    recovery = decide_recovery(await gather(drive, facts, current))
    match recovery.workspace:
        case Workspace.KEEP:
            pass
        case Workspace.RESTORE:
            await drive.restore(commit, facts, recovery.reason, _decision(recovery, current))
        case Workspace.REBASE:
            await _rebase(drive, commit, recovery)
    drive.tell(recovery, current.mark.task)
    drive.trust()
    return recovery


async def gather(drive: Drive, facts: SpaceFacts, current: Current) -> CallFacts:
    """The log first; the ledger is asked only where its answer counts (the drive's AdvanceEpoch has answered, rule 8)."""
    progress = _progress(current)
    place = drive.judge_place(facts)
    lease_moved = current.mark.lease != drive.settings.lease
    command = Command.NOT_ASKED
    if (
        progress is Progress.MARKED
        and place is Place.SAME
        and current.mark.command_hash is not None
        and not lease_moved
    ):
        command = judge_command(
            await drive.space.commands.lookup(current.mark.key),
            request_id=current.mark.request_id,
            command_hash=current.mark.command_hash,
            void=current.void,
            own_epoch=drive.epoch,
        )
    return CallFacts(progress=progress, place=place, lease_moved=lease_moved, command=command)


def _progress(current: Current) -> Progress:
    if current.outcome is not None:
        return Progress.OUTCOME
    match current.decision:
        case Decision.INTERRUPT:
            return Progress.INTERRUPTED
        case Decision.RERUN:
            return Progress.RERUN
        case None:
            return Progress.MARKED


def _decision(recovery: Recovery, current: Current) -> Decision | None:
    """What has to be written down before the restore changes anything (rule 5). None: the log says it already."""
    if recovery.then is Then.RUN:
        return Decision.RERUN
    if recovery.then is Then.INTERRUPT and current.decision is not Decision.INTERRUPT:
        return Decision.INTERRUPT
    return None


async def _rebase(drive: Drive, commit: Commit, recovery: Recovery) -> None:
    try:
        found = await drive.capture(await drive.log.image())
    except Uncapturable as error:
        raise drive.outgrown(str(error)) from error
    seq = await drive.space.read_ledger_seq()
    await drive.log.hand_over(commit, recovery.reason, drive.space.identity, seq, found, drive.epoch)

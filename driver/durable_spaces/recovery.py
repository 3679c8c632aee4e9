"""Decide what becomes of a tool call that a crash interrupted (transactional mode). Pure; `_recover.py` reads and acts.

The rows are tried in the order of rule 11: what the log decided or recorded, then whether this is still the Space of the log,
then what its ledger says. What another instance says of a command ("never started") is ignorance, never evidence (I2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never


class Progress(Enum):
    """How far the log got with the call; each is reached only through those before it, but for the two decisions."""

    NOTHING = "nothing"  # the intent of the harness alone: no effect was possible
    MARKED = "marked"  # a start mark: effects are possible since
    RERUN = "rerun"  # a recovery decided to undo it and run it again
    INTERRUPTED = "interrupted"  # a recovery decided that it ends interrupted
    OUTCOME = "outcome"  # the outcome, in one commit with the call's diff


class Place(Enum):
    """The Space that answers, compared with the one in which the image was last true."""

    SAME = "same"
    UNSURE = "unsure"  # the same instance and boot, but a restore was begun there and not verified
    OTHER_BOOT = "other boot"  # all processes are gone, unsynced writes may be lost (rule 13)
    OTHER_INSTANCE = "other instance"  # another Space, or this one rolled back (rule 28)


class Command(Enum):
    """The ledger's answer for the marked run, as `judge_command` reads it."""

    NOT_ASKED = "not asked"  # the tool is not one command (rule 29), or there is no mark
    NEVER_STARTED = "never started"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"
    KILLED = "killed"


class Kind(Enum):
    """The name of the RecoveryEvent."""

    RUN = "run"
    ADOPTED = "adopted"
    REATTACHED = "reattached"
    REPLAYED = "replayed"
    REVERTED = "reverted"
    REIMAGED = "reimaged"
    HANDED_OVER = "handedOver"


class Workspace(Enum):
    """What is done to the files, before `then`."""

    KEEP = "keep"
    RESTORE = "restore"  # make them equal to the image, wherever they differ
    REBASE = "rebase"  # take them as they are for the new image


class Then(Enum):
    """What the call gets."""

    RECORD = "record"  # the recorded outcome becomes its result
    ATTACH = "attach"  # its command's end is waited for, or read
    RUN = "run"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    progress: Progress
    place: Place
    lease_moved: bool  # another session held the Space since the mark (rule 22)
    command: Command


@dataclass(frozen=True, slots=True)
class Recovery:
    kind: Kind
    workspace: Workspace
    then: Then
    reason: str  # stable and content-free: event, metric label and condition show it as it is


NO_START_MARK = Recovery(Kind.RUN, Workspace.KEEP, Then.RUN, "NoStartMark")


@dataclass(frozen=True, slots=True)
class Record:
    """One row of the Space's ledger for the call's key."""

    request_id: str
    started_epoch: int  # that of the request id
    epoch: int  # that owns it now: `started_epoch`, or the epoch that adopted it
    state: Command
    command_hash: str


def judge_place(
    *, recorded: tuple[str, str] | None, found: tuple[str, str], ledger_seq: int, found_seq: int, restoring: bool
) -> Place:
    """Compare (instance, boot). Nothing recorded: the first call is still to come, whatever is there is the base."""
    if recorded is None:
        return Place.UNSURE if restoring else Place.SAME
    if recorded[0] != found[0] or found_seq < ledger_seq:
        return Place.OTHER_INSTANCE
    if recorded[1] != found[1]:
        return Place.OTHER_BOOT
    return Place.UNSURE if restoring else Place.SAME


def judge_command(
    records: Sequence[Record], *, request_id: str, command_hash: str | None, void: int, own_epoch: int
) -> Command:
    """What the ledger knows of the marked run. `records` are those of the call's key, in any order.

    Only the newest record at or above `void` counts, and only if it is the marked run and the marked command (rule 6).
    """
    if command_hash is None:
        return Command.NOT_ASKED
    valid = [record for record in records if record.started_epoch >= void]
    if not valid:
        return Command.NEVER_STARTED
    newest = max(valid, key=lambda record: record.started_epoch)
    if newest.request_id != request_id or newest.command_hash != command_hash:
        return Command.LOST
    if newest.state is Command.RUNNING and newest.epoch != own_epoch:
        # AdvanceEpoch has answered: a row that was not adopted has been killed, whatever this one says.
        return Command.KILLED
    return newest.state


def decide_recovery(facts: CallFacts) -> Recovery:
    """Total: every combination of facts has one answer, and it never raises."""
    moved = facts.place is not Place.SAME
    rebuilt = Kind.REIMAGED if facts.place is Place.OTHER_INSTANCE else Kind.REVERTED
    match facts.progress:
        case Progress.INTERRUPTED:
            # A recovery died between its decision and the result entry. Its decision stands for every later driver (rule 5).
            return Recovery(Kind.HANDED_OVER, _restore_if(moved), Then.INTERRUPT, "DecisionRecorded")
        case Progress.OUTCOME:
            return _outcome_recorded(facts)
        case Progress.NOTHING:
            # The driver died before the start mark: nothing of the call has happened.
            return replace(NO_START_MARK, kind=rebuilt, workspace=Workspace.RESTORE) if moved else NO_START_MARK
        case Progress.MARKED | Progress.RERUN:
            pass
        case never:
            assert_never(never)
    if facts.lease_moved:
        # The session was superseded, or suspended with release, in mid-call. Nothing that another session did since is
        # undone (rule 22); only where its Space is gone as well are the files rebuilt, from this session's own log.
        if facts.place is Place.OTHER_INSTANCE:
            return Recovery(Kind.HANDED_OVER, Workspace.RESTORE, Then.INTERRUPT, "LeaseMovedAndOtherInstance")
        return Recovery(Kind.HANDED_OVER, Workspace.REBASE, Then.INTERRUPT, "LeaseMoved")
    if facts.progress is Progress.RERUN:
        # A recovery died inside its restore, or after it and before the new start mark: restore again, nothing ran since.
        return Recovery(rebuilt, Workspace.RESTORE, Then.RUN, "DecisionRecorded")
    match facts.place:
        case Place.OTHER_INSTANCE:
            # The Space was lost in mid-call: with it the call's effects and its ledger.
            return Recovery(Kind.REIMAGED, Workspace.RESTORE, Then.RUN, "OtherInstance")
        case Place.OTHER_BOOT:
            # The machine died in mid-call. An exit record may have outlived the files it vouches for (rule 13).
            return Recovery(Kind.REVERTED, Workspace.RESTORE, Then.RUN, "OtherBoot")
        case Place.UNSURE:
            # A restore without a decision for this call was begun; what lies there is neither the image nor the call's.
            return Recovery(Kind.REVERTED, Workspace.RESTORE, Then.RUN, "RestoreUnfinished")
        case Place.SAME:
            return _by_ledger(facts.command)
        case never_place:
            assert_never(never_place)


def decide_between_calls(place: Place) -> Recovery | None:
    """No call is in work: what has to be done to the workspace before the next one. None: nothing."""
    match place:
        case Place.SAME:
            return None
        case Place.UNSURE:
            # A driver died inside a restore, or a call was given up: what lies there must not become the base (rule 3).
            return Recovery(Kind.REVERTED, Workspace.RESTORE, Then.RUN, "RestoreUnfinished")
        case Place.OTHER_BOOT:
            # The machine died between two calls: unsynced writes of ended calls may be gone (rule 13).
            return Recovery(Kind.REVERTED, Workspace.RESTORE, Then.RUN, "OtherBoot")
        case Place.OTHER_INSTANCE:
            # The Space was lost between two calls (I7).
            return Recovery(Kind.REIMAGED, Workspace.RESTORE, Then.RUN, "OtherInstance")
        case never:
            assert_never(never)


def _outcome_recorded(facts: CallFacts) -> Recovery:
    if facts.lease_moved and facts.place is not Place.OTHER_INSTANCE:
        # The driver died before the result entry, then another session worked here: its work is left alone (rule 22), and
        # the next call takes it for an outside change.
        return Recovery(Kind.ADOPTED, Workspace.KEEP, Then.RECORD, "OutcomeRecordedLeaseMoved")
    # The driver died between outcome and result entry. The diff is in the image; what a leftover process of the call wrote
    # after it, or a lost Space took away, is put right (I6).
    return Recovery(Kind.ADOPTED, Workspace.RESTORE, Then.RECORD, "OutcomeRecorded")


def _by_ledger(command: Command) -> Recovery:
    match command:
        case Command.NEVER_STARTED:
            # The driver died between its start mark and the Space's reservation, or the shim never claimed it.
            return Recovery(Kind.RUN, Workspace.RESTORE, Then.RUN, "NeverStarted")
        case Command.RUNNING:
            # The driver died while the command ran; AdvanceEpoch has moved it to this epoch (rule 21).
            return Recovery(Kind.REATTACHED, Workspace.KEEP, Then.ATTACH, "StillRunning")
        case Command.EXITED:
            # The command ended by itself before or after the driver died, and no outcome was committed.
            return Recovery(Kind.REPLAYED, Workspace.KEEP, Then.ATTACH, "ExitRecorded")
        case Command.LOST:
            # Its shim died with it, its row is another command's, or the daemon was told to stop while it ran (rule 10).
            return Recovery(Kind.REVERTED, Workspace.RESTORE, Then.RUN, "CommandLost")
        case Command.KILLED:
            # An epoch advance or KillAll cut it off, perhaps with a clean exit record behind it (rule 10).
            return Recovery(Kind.REVERTED, Workspace.RESTORE, Then.RUN, "CommandKilled")
        case Command.NOT_ASKED:
            # A file tool or one with several effects was cut off: which of them happened is unknown (rule 29).
            return Recovery(Kind.REVERTED, Workspace.RESTORE, Then.RUN, "CutOff")
        case never:
            assert_never(never)


def _restore_if(moved: bool) -> Workspace:
    return Workspace.RESTORE if moved else Workspace.KEEP

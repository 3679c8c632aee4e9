"""Raise the floor, end what is older, prove it: the one module that does (rules 1, 4, 9, 10, 21, 26, 27).

Order of an advance: (1) the bar for unclaimed rows as shims see it, so that older ones don't start; (2) floor, `killed_by`,
adoptions and the same bar in one synced step of the ledger, both under the claim lock, while no change of a file is under
way; from here older requests are refused; (3) stop and kill; (4) proof; (5) answer. Killed at any of these, the daemon's
next start repeats 3 and 4 before it listens, and so does the same call again.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from durable_base.crash import crash_point
from durable_base.floor import Admission, Floor, judge
from durable_space import claims
from durable_space.commands import Commands, Observed
from durable_space.ending.ender import Ender
from durable_space.gate import Gate
from durable_space.ledger import Verdict
from durable_space.refusal import Code, Reason, Refused, disk_full, stale
from durable_space.rows import Row
from durable_space.states import State

SEALED = "0" * 32  # an incarnation that no driver has: such a floor admits nobody, only what is above it


@dataclass(frozen=True, slots=True)
class Advanced:
    floor: Floor
    killed: int
    adopted: tuple[str, ...]


class Epochs:
    """Blocking; calls wait for each other."""

    def __init__(
        self,
        data: Path,
        commands: Commands,
        gate: Gate,
        ender: Ender,
        spare: Callable[[], Collection[int]],
        wake: Callable[[], None],
    ) -> None:
        """`spare` tells the daemon's own processes; `wake` tells those who wait for commands that the floor rose."""
        self._data = str(data)
        self._commands = commands
        self._ledger = commands.ledger
        self._gate = gate
        self._ender = ender
        self._spare = spare
        self._wake = wake
        self._lock = threading.Lock()

    def advance(self, to: Floor, adopt: Collection[str] = ()) -> Advanced:
        """Raise Refused: stale, or ProofFailed (the floor is raised all the same)."""
        with self._lock:
            admission = judge(self._ledger.floor, to)
            if admission is Admission.STALE:
                raise stale(to, self._ledger.floor)
            killed = self._settle(to, adopt, bar=admission is Admission.RAISES, everything=False)
            keys = {row.key for row in self._running_at(to)}
            return Advanced(to, killed, tuple(key for key in adopt if key in keys))

    def kill_all(self, caller: Floor) -> int:
        """Rule 14: before a restore; commands of the caller's own epoch too."""
        with self._lock:
            if judge(self._ledger.floor, caller) is not Admission.ADMITTED:
                raise stale(caller, self._ledger.floor)
            return self._settle(self._ledger.floor, (), bar=True, everything=True)

    def recover(self, epoch_floor: int) -> Refused | None:
        """At start, before anyone may call: finish what the last daemon began (rule 4), and take the provider's floor
        (rule 16): epochs below `epoch_floor` are refused, and the first driver of that epoch may claim it.

        Give the refusal if the proof failed: the next AdvanceEpoch tries again and reports it to its caller.
        """
        with self._lock:
            floor = self._ledger.floor
            raised = epoch_floor - 1 > floor.epoch
            try:
                self._settle(Floor(epoch_floor - 1, SEALED) if raised else floor, (), bar=raised, everything=False)
            except Refused as refusal:
                return refusal
            return None

    def mark_stopping(self) -> None:
        """Rule 10: before the daemon ends its commands because it is told to stop; an exit after this mark is lost."""
        with self._lock, self._gate.raising(), claims.exclusive(self._data):
            open_now = self._commands.open()
            self._decide(
                Verdict(
                    self._ledger.floor,
                    bar=True,
                    never_started=frozenset(seen.row.seq for seen in open_now if seen.state is State.RESERVED),
                )
            )
            self._ledger.mark((seen.row.seq for seen in open_now if seen.state is State.RUNNING), stopping=True)

    def end_open(self) -> None:
        """After `mark_stopping`, once the commands had their time."""
        with self._lock:
            self._ender.end([seen for seen in self._commands.open() if seen.claim is not None], self._spare())

    def _settle(self, floor: Floor, adopt: Collection[str], *, bar: bool, everything: bool) -> int:
        try:
            with self._gate.raising(), claims.exclusive(self._data):
                verdict = decide(self._commands.open(), floor, adopt, bar=bar, everything=everything)
                if bar or verdict.changes_rows:
                    self._decide(verdict)
                    self._gate.floor = floor
                    crash_point("epoch.floor_synced")
        except TimeoutError as error:
            raise Refused(
                Code.FAILED_PRECONDITION,
                Reason.INTERNAL,
                f"{error}: end it, or replace the Space",
                condition="ProofFailed",
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise disk_full(f"{self._data}: no room: free some space; the floor is as it was") from None
        self._wake()
        seen = self._commands.all()
        targets = [one for one in seen if self._must_end(one, floor, everything)]
        going_on = [one.claim.shim for one in seen if one.claim and one.shim_alive and one not in targets]
        ended = self._ender.end(targets, [*self._spare(), *going_on])
        self._ledger.mark(ended.audited, proven=True)
        self._wake()
        return len(ended.killed)

    def _decide(self, verdict: Verdict) -> None:
        """Under the claim lock. The shims' rule first: if the ledger came first and the daemon died in between, a shim could
        claim a row that the ledger calls never started. The other way round only bars for a while what may start: the next
        daemon writes the rule anew from the ledger."""
        before = self._ledger.rule
        claims.change_rule(self._data, self._ledger.rule_after(verdict))
        crash_point("epoch.rule_written")
        try:
            self._ledger.decide(verdict)
        except BaseException:
            claims.change_rule(self._data, before)
            raise
        crash_point("epoch.ledger_synced")

    def _must_end(self, seen: Observed, floor: Floor, everything: bool) -> bool:
        if not self._ender.needs_proof(seen):
            return False
        return everything or seen.row.killed or is_older(seen.row, floor)

    def _running_at(self, floor: Floor) -> list[Row]:
        return [
            seen.row
            for seen in self._commands.open()
            if seen.row.owner == floor and seen.state in (State.RUNNING, State.RESERVED)
        ]


def is_older(row: Row, floor: Floor) -> bool:
    """Of another driver than the floor's. Pure."""
    return row.owner != floor


def decide(seen: Collection[Observed], floor: Floor, adopt: Collection[str], *, bar: bool, everything: bool) -> Verdict:
    """What becomes of each open command under the new floor. Pure; `_settle` writes and carries it out."""
    newest: dict[str, Observed] = {}
    for one in seen:
        if one.state in (State.RUNNING, State.RESERVED) and one.row.key in adopt:
            known = newest.get(one.row.key)
            if known is None or known.row.seq < one.row.seq:
                newest[one.row.key] = one
    adopted = frozenset(one.row.seq for one in newest.values()) if not everything else frozenset()
    ending = [one for one in seen if (everything or is_older(one.row, floor)) and one.row.seq not in adopted]
    return Verdict(
        floor,
        bar=bar,
        killed=frozenset(one.row.seq for one in ending if one.state is State.RUNNING),
        never_started=frozenset(one.row.seq for one in ending if one.state is State.RESERVED),
        adopted=frozenset(seq for seq in adopted if is_older(_row_of(newest, seq), floor)),
    )


def _row_of(newest: dict[str, Observed], seq: int) -> Row:
    return next(one.row for one in newest.values() if one.row.seq == seq)

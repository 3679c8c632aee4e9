"""What a ledger row and its shim's files together say about a command. Pure; `commands` gathers the facts and acts."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.Enum):
    RESERVED = "reserved"  # nothing has claimed it yet, and something still may
    RUNNING = "running"
    EXITED = "exited"  # ended by itself; the exit record is the truth
    NEVER_STARTED = "never_started"  # and nothing of it can start any more
    LOST = "lost"  # may have run in part
    KILLED = "killed"  # an epoch advance or KillAll ended it

    @property
    def final(self) -> bool:
        return self not in (State.RESERVED, State.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Read in this order: claim, lock, exit record. A shim takes its lock, claims, records, lets go; so a lock that is free
    after a claim was seen means that an exit record, if there ever is one, is there already."""

    killed: bool  # the row says so, synced before the first signal
    never_started: bool  # the row says so, synced
    stopping: bool  # the row says so: the daemon was told to stop its commands
    same_boot: bool
    claimed: bool
    shim_alive: bool  # its lock is held
    exit_recorded: bool


def judge(facts: Facts) -> State:
    """Total: every combination has one answer. The letter names the crash that leads there (docs/space.md)."""
    if facts.killed:
        # (a) Rule 10: the shell may outlive its killed child by a moment and end with 0; that record is not believed.
        return State.KILLED
    if facts.never_started:
        # (b) An epoch advance found it unclaimed.
        return State.NEVER_STARTED
    if not facts.same_boot:
        # (c) Rule 13: neither claim nor exit record was synced, so nothing of another boot is believed.
        return State.LOST
    if not facts.claimed:
        # (d) The daemon or the zygote died between reservation and claim.
        return State.RESERVED
    if facts.exit_recorded:
        # (e) Rule 10: ended after it was told to stop: perhaps because of it.
        return State.LOST if facts.stopping else State.EXITED
    # (f) A shim that died without a record takes the truth with it.
    return State.RUNNING if facts.shim_alive else State.LOST

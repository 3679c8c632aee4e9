"""One way to end commands, whatever the mechanism: stop, kill, wait for the proof, audit where the proof is missing."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from durable_base.errors import UsageError
from durable_space import layout
from durable_space.commands import Observed, lock_is_held
from durable_space.ending.audit import Lost, audit
from durable_space.ending.cgroup import CgroupTree, find_root
from durable_space.ending.tree import Tree, end
from durable_space.refusal import Code, Reason, Refused

PROOF_SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True)
class Ended:
    killed: frozenset[int]  # rows of which something was alive
    audited: frozenset[int]  # rows proven by looking, since their shim could not


class Ender:
    """Blocking; one call at a time (`epochs` has the lock)."""

    def __init__(self, data: Path, instance_id: str, workspace: Path, mechanism: str) -> None:
        """UsageError: the mechanism was forced and this machine has not got it."""
        self._data = str(data)
        self._instance_id = instance_id
        self._workspace = workspace
        root = find_root() if mechanism in ("auto", "cgroup2") else None
        if mechanism == "cgroup2" and root is None:
            raise UsageError("--kill-mechanism cgroup2: no cgroup v2 with cgroup.kill is writable here: use subreaper")
        if mechanism == "pidns":
            raise UsageError("--kill-mechanism pidns: not in this version: use cgroup2 or subreaper")
        self._cgroups = CgroupTree(root, instance_id) if root is not None else None

    @property
    def mechanism(self) -> str:
        return "cgroup2" if self._cgroups else "subreaper"

    def make_cgroup(self, seq: int) -> str:
        """Empty where cgroups are not the mechanism."""
        return self._cgroups.make(seq) if self._cgroups else ""

    def clean(self, seq: int) -> None:
        if self._cgroups:
            self._cgroups.remove(seq)

    def close(self) -> None:
        """At the daemon's end; groups of commands that run on stay."""
        if self._cgroups:
            self._cgroups.close()

    def end(self, targets: Collection[Observed], spare: Collection[int]) -> Ended:
        """`spare` are processes that stay with all below them: the zygote, and the shims of commands that go on.

        Raise Refused (ProofFailed): something may live; whoever asked must take the Space for lost.
        """
        deadline = time.monotonic() + PROOF_SECONDS_MAX
        claimed = [target for target in targets if target.claim is not None]
        live = [target for target in claimed if target.shim_alive]
        killed = {target.row.seq for target in live}
        unproven = end([self._tree(target) for target in live], deadline)
        orphans = [target for target in claimed if target.row.seq in unproven or not self._is_done(target)]
        for target in orphans:
            if self._cgroups and self._cgroups.populated(target.row.seq):
                killed.add(target.row.seq)
                self._empty_cgroup(target.row.seq, deadline)
        lost = [_lost(target) for target in orphans]
        suspects = audit(lost, self._instance_id, self._workspace, spare, deadline) if lost else set()
        if suspects:
            raise Refused(
                Code.FAILED_PRECONDITION,
                Reason.INTERNAL,
                f"{len(suspects)} processes may descend from commands whose shims died: end them, or replace the Space",
                condition="ProofFailed",
                metadata={"pids": " ".join(map(str, sorted(suspects)))},
            )
        for target in claimed:
            self.clean(target.row.seq)
        return Ended(frozenset(killed), frozenset(row.seq for row in lost))

    def needs_proof(self, target: Observed) -> bool:
        """Claimed, and neither its shim nor an audit has vouched for its end."""
        return target.claim is not None and not target.row.proven and not self._is_done(target)

    def _tree(self, target: Observed) -> Tree:
        seq, claim = target.row.seq, target.claim
        assert claim is not None
        folder = layout.command_folder(self._data, seq)

        def kill_group() -> None:
            if self._cgroups:
                self._cgroups.kill(seq)

        return Tree(seq, claim.shim, claim.shim_start, lambda: not lock_is_held(folder), kill_group)

    def _is_done(self, target: Observed) -> bool:
        return os.path.exists(os.path.join(layout.command_folder(self._data, target.row.seq), layout.DONE))

    def _empty_cgroup(self, seq: int, deadline: float) -> None:
        assert self._cgroups is not None
        while self._cgroups.populated(seq) and time.monotonic() < deadline:
            self._cgroups.kill(seq)
            time.sleep(0.001)


def _lost(target: Observed) -> Lost:
    claim, started = target.claim, target.started
    assert claim is not None
    return Lost(
        target.row.seq,
        claim.shim,
        claim.shim_start,
        started.pid if started else 0,
        started.start if started else 0,
    )

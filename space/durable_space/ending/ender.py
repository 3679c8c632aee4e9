"""One way to end commands, whatever the mechanism: stop, kill, wait for the proof, audit where the proof is missing."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from durable_base.errors import UsageError
from durable_space import _record, layout
from durable_space.commands import Observed
from durable_space.ending import pidns
from durable_space.ending.audit import Lost, audit
from durable_space.ending.cgroup import CgroupTree, find_root
from durable_space.ending.tree import Tree, end
from durable_space.refusal import Code, Reason, Refused


@dataclass(frozen=True, slots=True)
class Ended:
    killed: frozenset[int]  # rows of which something was alive
    audited: frozenset[int]  # rows proven by looking, since their shim could not


class Ender:
    """Blocking; one call at a time (`epochs` has the lock)."""

    def __init__(self, data: Path, instance_id: str, workspace: Path, mechanism: str, proof_seconds: float) -> None:
        """UsageError: the mechanism was forced and this machine has not got it."""
        self._proof_seconds = proof_seconds
        self._data = str(data)
        self._instance_id = instance_id
        self._workspace = workspace
        root = find_root() if mechanism in ("auto", "cgroup2") else None
        if mechanism == "cgroup2" and root is None:
            raise UsageError("--kill-mechanism cgroup2: no cgroup v2 with cgroup.kill is writable here: use subreaper")
        # Only by name: a command in a namespace of its own can't signal what an earlier one left running.
        self.namespaces = pidns.find_flags() if mechanism == "pidns" else 0  # that shims make; 0: none
        self._cgroups = CgroupTree(root, instance_id) if root is not None else None

    @property
    def mechanism(self) -> str:
        if self.namespaces:
            return "pidns"
        return "cgroup2" if self._cgroups else "subreaper"

    @property
    def cgroups(self) -> str:
        """The folder in which shims make groups; empty where cgroups are not the mechanism."""
        return str(self._cgroups.folder) if self._cgroups else ""

    def sweep(self) -> None:
        """At start, before anything is ended or started."""
        if self._cgroups:
            self._cgroups.sweep()
            self._cgroups.sweep_strangers()

    def close(self) -> None:
        """At the daemon's end; groups of commands that run on stay."""
        if self._cgroups:
            self._cgroups.close()

    def end(self, targets: Collection[Observed], spare: Collection[int]) -> Ended:
        """`spare` are processes that stay with all below them: the zygote, and the shims of commands that go on.

        Raise Refused (ProofFailed): something may live; whoever asked must take the Space for lost.
        """
        deadline = time.monotonic() + self._proof_seconds
        claimed = [target for target in targets if target.claim is not None]
        live = [target for target in claimed if target.shim_alive]
        killed = {target.row.seq for target in live}
        unproven = end([self._tree(target) for target in live], deadline)
        orphans = [target for target in claimed if target.row.seq in unproven or not self._is_done(target)]
        for target in orphans:
            if self._populated(target):
                killed.add(target.row.seq)
                self._empty_cgroup(target, deadline)
        lost = [_lost(target) for target in orphans if not self._end_namespace(target, deadline)]
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
            if self._cgroups and target.claim is not None and target.claim.cgroup:
                self._cgroups.remove(target.claim.cgroup)
        return Ended(frozenset(killed), frozenset(target.row.seq for target in orphans))

    def needs_proof(self, target: Observed) -> bool:
        """Claimed, and neither its shim nor an audit has vouched for its end."""
        return target.claim is not None and not target.row.proven and not target.done

    def _tree(self, target: Observed) -> Tree:
        claim = target.claim
        assert claim is not None
        path = layout.record_file(self._data, target.row.seq)

        def finished() -> bool:
            return not _record.is_held(path)

        def kill_group() -> None:
            if self._cgroups and claim.cgroup:
                self._cgroups.kill_but(claim.cgroup, claim.shim, finished)
            if claim.init:
                pidns.kill(claim.init, claim.init_start)

        return Tree(target.row.seq, claim.shim, claim.shim_start, finished, kill_group)

    def _is_done(self, target: Observed) -> bool:
        return _record.read(layout.record_file(self._data, target.row.seq))[0].done is not None

    def _populated(self, target: Observed) -> bool:
        claim = target.claim
        return bool(self._cgroups and claim and claim.cgroup and self._cgroups.populated(claim.cgroup))

    def _empty_cgroup(self, target: Observed, deadline: float) -> None:
        assert self._cgroups is not None
        assert target.claim is not None
        while self._populated(target) and time.monotonic() < deadline:
            self._cgroups.kill(target.claim.cgroup)
            time.sleep(0.001)

    def _end_namespace(self, target: Observed, deadline: float) -> bool:
        """Whether there was one, so that its end is the proof. Whatever the mechanism is now: the claim says what it was."""
        claim = target.claim
        return claim is not None and claim.init != 0 and pidns.end(claim.init, claim.init_start, deadline)


def _lost(target: Observed) -> Lost:
    claim, started = target.claim, target.started
    assert claim is not None
    pid, start = (started.pid, started.start) if started else (0, 0)
    return Lost(target.row.seq, claim.shim, claim.shim_start, pid, start)

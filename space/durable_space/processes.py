"""Which processes still have to do with the workspace."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from durable_space import procfs
from durable_space.commands import Commands
from durable_space.states import State


@dataclass(frozen=True, slots=True)
class InWorkspace:
    pid: int
    request_id: str  # of the command it descends from; empty: none is known
    command_running: bool
    cwd_inside: bool
    file_open_inside: bool


def in_workspace(commands: Commands, workspace: Path, own: Collection[int]) -> list[InWorkspace]:
    """Descendants of commands (zombies are none), and others with working directory or an open file inside. Blocking.

    The daemon, its zygote (`own`), the shims and the first processes of PID namespaces are left out.
    """
    processes = procfs.table()
    owner: dict[int, tuple[str, bool]] = {}
    apart = {os.getpid(), *own}
    for seen in commands.open():
        if seen.claim is None or not seen.shim_alive:
            continue
        apart |= {seen.claim.shim, seen.claim.init}
        for pid in procfs.descendants(processes, [seen.claim.shim]):
            owner[pid] = (seen.row.request_id, seen.state is State.RUNNING)
    found = []
    for pid, process in sorted(processes.items()):
        if not process.alive or pid in apart:
            continue
        how = set(procfs.touches(pid, workspace))
        if pid in owner or how:
            request_id, running = owner.get(pid, ("", False))
            found.append(InWorkspace(pid, request_id, running, "cwd" in how, "file" in how))
    return found

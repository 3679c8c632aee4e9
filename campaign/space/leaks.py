"""What a daemon may have left behind: processes, temporary files, groups."""

from __future__ import annotations

from pathlib import Path

from durable_space import procfs
from durable_space.ending.audit import environment
from durable_space.ending.cgroup import PREFIX, find_root
from durable_space.layout import MARKER
from durable_space.testing import LocalDaemon, until

COMMAND_FILES = {"record", "out", "spec", "stdin", "control", "inputs"}


def marked(instance: str) -> list[int]:
    """Live processes that carry a command id of this daemon."""
    prefix = f"{MARKER}={instance}/".encode()
    return [
        pid
        for pid, process in procfs.table().items()
        if process.alive and any(value.startswith(prefix) for value in environment(pid))
    ]


def what_is_left(daemon: LocalDaemon) -> list[str]:
    """After its end. A shim that is just going gets a moment."""
    instance = daemon.announced["instance"]
    found = [f"process {pid}" for pid in marked(instance)]
    data = str(daemon.data).encode()

    def own() -> list[int]:
        return [pid for pid in procfs.table() if data in _words(pid)]

    try:
        until(lambda: not own(), 5)
    except AssertionError:
        found += [f"own process {pid}" for pid in own()]
    found += [f"staging {path.name}" for path in (daemon.data / "staging").iterdir()]
    found += [str(path.relative_to(daemon.data)) for path in daemon.data.rglob("*.tmp")]
    found += [
        str(path.relative_to(daemon.data))
        for path in (daemon.data / "commands").glob("*/*")
        if path.name not in COMMAND_FILES
    ]
    found += [f"in the workspace: {path.name}" for path in daemon.workspace.rglob(".durable-*")]
    root = find_root()
    if root is not None and (root / f"{PREFIX}{instance[:16]}").exists():
        found.append("its control groups")
    return found


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []

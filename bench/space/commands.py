"""What a command costs: the same one over both daemons and as a plain child process, in turns, so that all meet the same
moments of a busy machine."""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from durable_space import procfs
from durable_space.testing import Client, LocalDaemon, until

PRINT = ["sh", "-c", "printf '%s\\n' one two three; echo four >&2"]
EIGHT = 8


@dataclass(frozen=True)
class Times:
    """Seconds, ascending."""

    values: tuple[float, ...]

    def at(self, share: float) -> float:
        return self.values[min(len(self.values) - 1, int(len(self.values) * share))]


def run(client: Client, command: Sequence[str]) -> None:
    outcome = client.run(f"bench/{secrets.token_hex(8)}@0", command)
    if outcome.end.exit_code != 0 or outcome.end.error:
        raise AssertionError(f"it did not run: {outcome.end}")


def plain(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def at_once(one: Callable[[], None]) -> None:
    threads = [threading.Thread(target=one) for _ in range(EIGHT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_turns(candidates: dict[str, Callable[[], None]], rounds: int) -> dict[str, Times]:
    for one in candidates.values():
        for _ in range(10):
            one()
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, one in candidates.items():
            begin = time.perf_counter()
            one()
            found[name].append(time.perf_counter() - begin)
    return {name: Times(tuple(sorted(values))) for name, values in found.items()}


def durable(ours: Client, theirs: Client, rounds: int) -> dict[str, dict[str, Times]]:
    tables = {}
    for name, command in (("durable `true`", ["true"]), ("three lines and one of stderr", PRINT)):
        candidates = {
            "ours": lambda command=command: run(ours, command),
            "cua-spacesd": lambda command=command: run(theirs, command),
            "child process": lambda command=command: plain(command),
        }
        tables[name] = in_turns(candidates, rounds)  # type: ignore[arg-type]
    eight = {
        "ours": lambda: at_once(lambda: run(ours, ["true"])),
        "cua-spacesd": lambda: at_once(lambda: run(theirs, ["true"])),
        "child process": lambda: at_once(lambda: plain(["true"])),
    }
    tables["8 durable `true` at once, until the last has ended"] = in_turns(eight, max(10, rounds // 4))
    return tables


def memory_per_command(daemon: LocalDaemon, client: Client, count: int) -> tuple[float, float]:
    """(MiB per running command beside the command itself, MiB of the daemon), by what is not shared (Pss)."""
    before = _tree_mib(daemon.zygote)
    running = [client.start(f"bench/{secrets.token_hex(8)}@0", ["sleep", "600"]) for _ in range(count)]
    until(lambda: len(_sleeping(daemon)) == count)
    sleepers = sum(_pss_mib(pid) for pid in _sleeping(daemon))
    cost = (_tree_mib(daemon.zygote) - sleepers - before) / count
    assert daemon.process is not None
    own = _pss_mib(daemon.process.pid)
    client.advance(1)
    for events in running:
        for _ in events:
            pass
    return cost, own


def _sleeping(daemon: LocalDaemon) -> list[int]:
    below = procfs.descendants(procfs.table(), [daemon.zygote])
    return [pid for pid in below if _name(pid) == "sleep"]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _tree_mib(root: int) -> float:
    return sum(_pss_mib(pid) for pid in (root, *procfs.descendants(procfs.table(), [root])))


def _pss_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024

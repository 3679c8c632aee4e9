"""What a scan costs, against what a Space without the daemon would run: `find -printf` and `sha256sum` of all files."""

from __future__ import annotations

import random
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from durable_space.testing import Client


@dataclass(frozen=True)
class ScanTimes:
    files: int
    mib: float
    cold: float  # seconds, all
    warm: float
    find_and_sum: float
    find: float


def make_tree(root: Path, files: int, size_bytes: int, seed: int) -> None:
    """`files` of random bytes, all together `size_bytes`, 50 to a folder."""
    chance = random.Random(seed)
    for number in range(files):
        folder = root / f"d{number // 50:04d}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number:06d}").write_bytes(chance.randbytes(size_bytes // files))


def scan_times(client: Client, root: Path, files: int, rounds: int) -> ScanTimes:
    """The best of `rounds`, in turns. The first of our scans is the cold one: it hashes everything."""
    time.sleep(0.1)  # what was written within a clock tick of a scan is hashed again by the next
    begin = time.perf_counter()
    table = client.scan()
    cold = time.perf_counter() - begin
    found = sum(1 for entry in table.values() if entry.sha256)
    if found != files:
        raise AssertionError(f"{found} files scanned, {files} made")
    client.scan()
    warm, shell, walk = [], [], []
    for _ in range(rounds):
        warm.append(_seconds(lambda: client.scan()))
        shell.append(_seconds(lambda: _shell(root, "find . -printf '%p %y %m %T@ %s %l\\n' >/dev/null; "
                                                   "find . -type f -print0 | xargs -0 sha256sum >/dev/null")))  # fmt: skip
        walk.append(_seconds(lambda: _shell(root, "find . -printf '%p %y %m %T@ %s %l\\n' >/dev/null")))
    size = sum(entry.size for entry in table.values())
    return ScanTimes(files, size / 2**20, cold, min(warm), min(shell), min(walk))


def _shell(root: Path, command: str) -> None:
    subprocess.run(["sh", "-c", command], cwd=root, check=True)


def _seconds(one: object) -> float:
    begin = time.perf_counter()
    one()  # type: ignore[operator]
    return time.perf_counter() - begin

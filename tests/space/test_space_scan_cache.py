"""What is known of hashed files outlives the daemon, and never vouches for a file that may have changed."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from durable_space.testing import Client, LocalDaemon
from durable_space.workspace.hashes import HashCache, _batches, _unpack
from durable_space.workspace.scan import Scanner


def hashed(log: Path) -> int:
    """Files that the cache on disk vouches for."""
    return sum(len(list(_unpack(batch))) for number, (batch, _) in enumerate(_batches(log.read_bytes())) if number)


def test_next_daemon_knows_the_hashes_and_sees_an_edit_with_its_mtime_put_back(
    space: Client, daemon: LocalDaemon
) -> None:
    """The file is unreadable when the second daemon scans, so its hash can only come from the cache; the edited one's can't."""
    for name in ("kept", "edited"):
        (daemon.workspace / name).write_text(name)
    time.sleep(0.1)  # older than a clock tick, or it is not believed
    before = space.scan()
    assert hashed(daemon.data / "scan-cache") == 2
    status = (daemon.workspace / "edited").stat()
    space = daemon.restart()
    (daemon.workspace / "edited").write_text("EDITED")
    os.utime(daemon.workspace / "edited", ns=(status.st_atime_ns, status.st_mtime_ns))
    after = space.scan()
    assert after[b"kept"] == before[b"kept"]
    assert after[b"edited"].sha256 == hashlib.sha256(b"EDITED").digest()


def cached_scan(root: Path, log: Path, boot: str) -> tuple[int, HashCache]:
    """(files that had to be hashed, the cache after it)."""
    cache = HashCache(log, boot, os.fsencode(root))
    missed = []
    get = cache.get
    cache.get = lambda path, stamp: get(path, stamp) or missed.append(path)  # type: ignore[method-assign,func-returns-value]
    scanner = Scanner(os.fsencode(root), cache, b".durable-")
    scanner.scan([], use_cache=True, files_max=0, bytes_max=0, go_on=lambda: None)
    cache.save()
    return len(missed), cache


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    for number in range(20):
        (root / f"f{number}").write_text(str(number))
    time.sleep(0.1)
    return root


def test_hashes_are_void_in_another_boot_and_another_workspace(tree: Path, tmp_path: Path) -> None:
    """Rule 13."""
    log = tmp_path / "log"
    assert [cached_scan(tree, log, boot)[0] for boot in ("one", "one", "two", "two")] == [20, 0, 20, 0]
    tree.rename(tmp_path / "moved")
    assert cached_scan(tmp_path / "moved", log, "two")[0] == 20


def test_hashes_cut_off_anywhere_are_left_out_and_written_again(tree: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    cached_scan(tree, log, "one")
    (tree / "more").write_text("more")
    time.sleep(0.1)
    assert cached_scan(tree, log, "one")[0] == 1
    whole = log.read_bytes()
    for size in range(0, len(whole), 37):
        log.write_bytes(whole[:size])
        missed, _ = cached_scan(tree, log, "one")
        assert missed in (0, 1, 20, 21)
        assert cached_scan(tree, log, "one")[0] == 0
    log.write_bytes(whole[:-1] + b"\xff")
    assert cached_scan(tree, log, "one")[0] == 1


def test_files_as_young_as_the_scan_are_hashed_again_by_the_next_daemon(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "young").write_text("young")
    os.utime(root / "young", ns=(0, time.time_ns() + 10**9))
    assert [cached_scan(root, tmp_path / "log", "one")[0] for _ in range(2)] == [1, 1]

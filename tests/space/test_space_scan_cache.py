"""What is known of hashed files outlives the daemon, and never vouches for a file that may have changed."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from durable_space.testing import Client, LocalDaemon
from durable_space.workspace import scan as scanning
from durable_space.workspace.hashes import HashCache, _batches, _unpack
from durable_space.workspace.scan import Scanner
from durable_space.workspace.unstamped import Look, look


@pytest.fixture(autouse=True)
def _needs_times(tmp_path: Path) -> None:
    if not look(os.fsencode(tmp_path)).vouches(b"f", 0):
        pytest.skip("the temporary folder's file system gives no times for mapped writes: nothing is believed there")


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


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        yield memory


def protect(memory: mmap.mmap, protection: int) -> None:
    held = ctypes.c_char.from_buffer(memory)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(ctypes.addressof(held)), len(memory), protection) == 0
    finally:
        del held


def store_with_the_same_stamp(path: Path, store: Callable[[], None]) -> None:
    before = path.stat()
    store()
    after = path.stat()
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)


@pytest.mark.parametrize("read_only_meanwhile", [False, True], ids=["writable", "read-only meanwhile"])
def test_file_that_is_changed_through_a_mapping_with_the_same_stamp_is_hashed_again(
    tree: Path, tmp_path: Path, read_only_meanwhile: bool
) -> None:
    """(1) A store gives a stamp. (2) A scan hashes. (3) The next store gives no other stamp."""
    path, log = tree / "f7", tmp_path / "log"
    with mapped(path) as memory:
        memory[0] = ord("a")
        time.sleep(0.1)
        if read_only_meanwhile:
            protect(memory, mmap.PROT_READ)
        assert cached_scan(tree, log, "one")[0] == 20
        if read_only_meanwhile:
            protect(memory, mmap.PROT_READ | mmap.PROT_WRITE)
        store_with_the_same_stamp(path, lambda: memory.__setitem__(0, ord("b")))
        assert cached_scan(tree, log, "one")[0] == 1
    assert cached_scan(tree, log, "one")[0] == 1
    assert cached_scan(tree, log, "one")[0] == 0


def test_file_that_is_mapped_after_the_look_is_hashed_again(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = tree / "f7", tmp_path / "log"
    with mapped(path) as memory:

        def look_then_store(root: bytes) -> Look:
            before_the_mapping = Look(time.time_ns(), root, ((b"/", True),), frozenset(), frozenset())
            memory[0] = ord("a")
            return before_the_mapping

        with monkeypatch.context() as patch:
            patch.setattr(scanning, "look", look_then_store)
            assert cached_scan(tree, log, "one")[0] == 20
        store_with_the_same_stamp(path, lambda: memory.__setitem__(0, ord("b")))
        assert cached_scan(tree, log, "one")[0] == 1


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
def test_hashes_on_tmpfs_are_never_believed(tmp_path: Path) -> None:
    """Not even a new mapping's store gives a time there."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "f"
        path.write_bytes(b"old")
        time.sleep(0.1)
        assert cached_scan(Path(folder), tmp_path / "log", "one")[0] == 1
        with mapped(path) as memory:
            assert memory[0] == ord("o")
            store_with_the_same_stamp(path, lambda: memory.__setitem__(0, ord("O")))
        assert cached_scan(Path(folder), tmp_path / "log", "one")[0] == 1


def test_scan_that_hashes_nothing_does_not_look_at_processes(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(scanning, "look", lambda root: looks.append(root) or look(root))
    assert [cached_scan(tree, tmp_path / "log", "one")[0] for _ in range(3)] == [20, 0, 0]
    assert looks == [os.fsencode(tree)]

"""The base: crash points, the floor rule, durable writes."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from durable_base.crash import parse
from durable_base.files import write_atomic
from durable_base.floor import Admission, Floor, judge
from durable_base.trees import LEVELS_MAX, remove_tree

PROGRAM = (
    "from durable_base.crash import crash_point\nfor _ in range(3):\n    crash_point('a.b')\n    print('x', flush=True)"
)


def run(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **env}, capture_output=True, text=True)


def test_a_point_that_is_not_armed_does_nothing() -> None:
    assert run().stdout == "x\nx\nx\n"


def test_an_armed_point_kills_at_the_named_pass(tmp_path: Path) -> None:
    done = run(DURABLE_CRASH="a.b:2", DURABLE_CRASH_LOG=str(tmp_path / "log"))
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "x\n")
    assert (tmp_path / "log").read_text() == "a.b\na.b\n"


@pytest.mark.parametrize("text", ["a=burn", "a:0", "a:x"])
def test_a_point_that_cannot_be_armed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="DURABLE_CRASH"):
        parse(text)


def test_the_floor_rule_over_all_combinations() -> None:
    for epoch, incarnation in product((1, 2, 3), ("a", "b", "")):
        got = judge(Floor(2, "a"), Floor(epoch, incarnation))
        if epoch == 3:
            assert got is Admission.RAISES
        elif (epoch, incarnation) == (2, "a"):
            assert got is Admission.ADMITTED
        else:
            assert got is Admission.STALE


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "f", b"old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "f", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_two_threads_that_write_one_path_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "f"
    with ThreadPoolExecutor(4) as pool:
        written = [pool.submit(write_atomic, target, bytes([n]) * 10_000, sync=False) for n in range(200)]
    assert [write.result() for write in written] == [None] * 200
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert len(set(target.read_bytes())) == 1
    assert target.stat().st_size == 10_000


def nest(folder: Path, levels: int) -> None:
    """Deeper than a path can say, with files and links on the way."""
    top = os.open(folder, os.O_RDONLY)
    for level in range(levels):
        os.mkdir("d", dir_fd=top)
        inner = os.open("d", os.O_RDONLY, dir_fd=top)
        os.close(top)
        top = inner
        if level % 50 == 0:
            os.symlink("..", "up", dir_fd=top)
            os.close(os.open("f", os.O_CREAT, dir_fd=top))
    os.close(top)


@pytest.mark.parametrize("levels", [0, 1, LEVELS_MAX, LEVELS_MAX + 1, 3 * LEVELS_MAX, 5000])
def test_a_tree_of_any_depth_is_removed(tmp_path: Path, levels: int) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    nest(tree, levels)
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_a_tree_with_many_deep_branches_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(5):
        (tree / f"{number}").mkdir(parents=True)
        nest(tree / f"{number}", 250)
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_removing_a_tree_follows_no_symlink(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "tree")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError, match="link"):
        remove_tree(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "tree")
    assert (tmp_path / "kept" / "file").exists()

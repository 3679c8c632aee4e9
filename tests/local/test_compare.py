"""Two workspaces are equal in paths, kinds, modes, bytes and link targets; times are not looked at."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from durable_local.compare import differences


def fill(root: Path) -> Path:
    (root / "folder").mkdir(parents=True)
    (root / "folder/file").write_bytes(b"bytes")
    (root / "link").symlink_to("folder/file")
    return root


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bytes": (lambda root: (root / "folder/file").write_bytes(b"other"), "folder/file"),
    "mode": (lambda root: (root / "folder/file").chmod(0o755), "folder/file"),
    "folder-mode": (lambda root: (root / "folder").chmod(0o700), "folder"),
    "one-more": (lambda root: (root / "more").mkdir(), "more"),
    "one-less": (lambda root: (root / "link").unlink(), "link"),
    "kind": (lambda root: ((root / "link").unlink(), (root / "link").write_text("folder/file")), "link"),
    "target": (lambda root: ((root / "link").unlink(), (root / "link").symlink_to("folder")), "link"),
}


@pytest.mark.parametrize(("change", "path"), CHANGES.values(), ids=CHANGES)
def test_a_difference_is_named(tmp_path: Path, change: Callable[[Path], object], path: str) -> None:
    one, other = fill(tmp_path / "one"), fill(tmp_path / "other")
    os.utime(one / "folder/file", (1, 1))
    assert differences(one, other) == []
    change(other)
    (line,) = differences(one, other)
    assert line.startswith(f"{path}: ")

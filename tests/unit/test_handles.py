"""Files and folders that are held open: what they refuse, what they stay true to, and that they close."""

import errno
import os
import socket
import tempfile
from pathlib import Path

import pytest

from durable_base.handles import OpenFile, OpenFolder


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_renamed_and_removed_file_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    held = OpenFile(str(path))
    path.rename(tmp_path / "g")
    path.write_bytes(b"new")
    (tmp_path / "g").unlink()
    assert held.read(1, 99) == b"ld"
    assert held.status().st_size == 3
    held.close()


@pytest.mark.parametrize(
    ("name", "no_follow", "number"),
    [
        ("folder", False, errno.EISDIR),
        ("pipe", False, errno.EINVAL),
        ("socket", False, errno.EINVAL),
        ("link", True, errno.ELOOP),
        ("none", False, errno.ENOENT),
    ],
)
def test_what_is_no_regular_file_is_refused_without_waiting(name: str, no_follow: bool, number: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX) as listening,
    ):  # a socket's path is short
        os.mkdir(f"{folder}/folder")
        os.mkfifo(f"{folder}/pipe")
        listening.bind(f"{folder}/socket")
        Path(f"{folder}/f").touch()
        os.symlink("f", f"{folder}/link")
        before = open_descriptors()
        with pytest.raises(OSError, match=name) as refused:
            OpenFile(f"{folder}/{name}", no_follow=no_follow)
        assert refused.value.errno == number
        assert open_descriptors() == before


def test_a_scan_passes_line_breaks_and_stops_at_its_bounds(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"ab\n" * 300_000 + b"end")
    held = OpenFile(str(path))
    assert held.scan_lines(0, 2, 1 << 30) == (6, 2)
    assert held.scan_lines(6, 250_000, 1 << 30) == (6 + 750_000, 250_000)
    assert held.scan_lines(0, 1 << 30, 1 << 30) == (900_003, 300_000)
    assert held.scan_lines(899_999, 9, 1 << 30) == (900_003, 1)
    assert held.scan_lines(900_003, 9, 1 << 30) == (900_003, 0)
    at, lines = held.scan_lines(0, 1 << 30, 1)
    assert 0 < at < 900_003, "a bound ends the scan after the piece it is in"
    assert lines == at // 3
    held.close()


def test_a_folder_is_read_page_by_page_without_what_vanished(tmp_path: Path) -> None:
    names = {f"f{number}" for number in range(100)}
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("nowhere")
    held = OpenFolder(str(tmp_path))
    first = held.page(10)
    assert len(first) == 10
    for name in names - {name for name, _, _ in first}:
        (tmp_path / name).unlink()
    rest = held.page(1000)
    assert {name for name, _, _ in first + rest} >= {"link"}
    assert all(target == ("nowhere" if name == "link" else "") for name, _, target in first + rest)
    assert {name for name, _, _ in rest} <= {"link"}
    assert held.page(1000) == []
    held.close()


def test_what_is_closed_or_forgotten_holds_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    before = open_descriptors()
    file, folder = OpenFile(str(tmp_path / "f")), OpenFolder(str(tmp_path))
    folder.page(1)
    for held in (file, folder):
        held.close()
        held.close()
    with pytest.raises(ValueError, match="closed"):
        file.read(0, 1)
    with pytest.raises(ValueError, match="closed"):
        folder.page(1)
    assert open_descriptors() == before
    file, folder = OpenFile(str(tmp_path / "f")), OpenFolder(str(tmp_path))
    del file, folder
    assert open_descriptors() == before

"""A folder that is renamed, removed or replaced while a file is written into it: the answer is true, and nothing is left."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from durable_base.floor import Floor
from durable_space.files import Files, WriteMode
from durable_space.gate import Caller, Gate
from durable_space.refusal import Refused
from durable_space.staging import Staging

CALLER = Caller(Floor(), named=True)


class Meanwhile(io.BytesIO):
    """`act` happens when the content is read: the temporary file is there, and has not been renamed."""

    def __init__(self, content: bytes, act: Callable[[], object]) -> None:
        super().__init__(content)
        self._act = act

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.tell():
            self._act()
        return super().read(size)


@dataclass
class Place:
    root: Path  # holds the folder `b`, and the folder `outside`
    files: Files

    def write(self, act: Callable[[], object], mode: WriteMode = WriteMode.OVERWRITE) -> None:
        written = self.files.write(CALLER, f"{self.root}/b/f", Meanwhile(b"new", act), mode, 0, parents=False)
        assert (written.path, written.size, written.mode) == (f"{self.root}/b/f", 3, 0o644)

    def names(self) -> list[str]:
        """Of all that is there, but for folders."""
        return sorted(
            os.path.relpath(os.path.join(folder, name), self.root)
            for folder, _, names in os.walk(self.root)
            for name in names
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    root = tmp_path / "root"
    (root / "b").mkdir(parents=True)
    (root / "outside").mkdir()
    return Place(root, Files(Gate(Floor()), Staging(tmp_path / "staging", "i" * 32), tmp_path))


def failing(act: Callable[[], object]) -> Callable[[], None]:
    def both() -> None:
        act()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return both


BOTH = pytest.mark.parametrize("mode", [WriteMode.OVERWRITE, WriteMode.APPEND])


@BOTH
def test_folder_renamed_meanwhile_has_the_file_and_the_answer_says_so(place: Place, mode: WriteMode) -> None:
    place.write(lambda: os.rename(place.root / "b", place.root / "b.old"), mode)
    assert place.names() == ["b.old/f"]
    assert (place.root / "b.old" / "f").read_bytes() == b"new"


@BOTH
def test_folder_swapped_for_a_symlink_meanwhile_leads_nothing_elsewhere(place: Place, mode: WriteMode) -> None:
    def swap() -> None:
        os.rename(place.root / "b", place.root / "b.old")
        (place.root / "b").symlink_to("outside")

    place.write(swap, mode)
    assert os.listdir(place.root / "outside") == []
    assert os.listdir(place.root / "b.old") == ["f"]


@BOTH
def test_write_that_fails_in_a_renamed_folder_leaves_nothing_in_it(place: Place, mode: WriteMode) -> None:
    with pytest.raises(Refused) as caught:
        place.write(failing(lambda: os.rename(place.root / "b", place.root / "b.old")), mode)
    assert caught.value.metadata == {"condition": "DiskFull", "path": f"{place.root}/b/f"}
    assert place.names() == []


def test_folder_removed_meanwhile_is_told_as_missing(place: Place) -> None:
    with pytest.raises(Refused) as caught:
        place.write(lambda: shutil.rmtree(place.root / "b"))
    assert caught.value.code.name == "NOT_FOUND"
    assert place.names() == []


def test_name_that_becomes_a_symlink_meanwhile_is_replaced_and_lends_no_mode(place: Place) -> None:
    (place.root / "outside" / "victim").write_text("v")
    place.write(lambda: (place.root / "b" / "f").symlink_to("../outside/victim"))
    assert (place.root / "outside" / "victim").read_text() == "v"
    assert ((place.root / "b" / "f").is_symlink(), (place.root / "b" / "f").read_bytes()) == (False, b"new")


def test_append_that_fails_takes_back_its_own_part_alone(place: Place) -> None:
    file = place.root / "b" / "f"
    file.write_text("old")

    class Filling(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().read(1)

    with pytest.raises(Refused):
        place.files.write(CALLER, str(file), Filling(b"new"), WriteMode.APPEND, 0, parents=False)
    assert file.read_text() == "old"


def test_temporary_name_goes_with_its_folder_wherever_that_is_now(place: Place, tmp_path: Path) -> None:
    """As an Apply makes them."""
    folder = place.root / "b"
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with Staging(tmp_path / "other", "i" * 32).beside(os.fsencode(folder), fd) as name:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=fd))
            os.rename(folder, place.root / "b.old")
    finally:
        os.close(fd)
    assert place.names() == []
    assert os.listdir(tmp_path / "other") == []

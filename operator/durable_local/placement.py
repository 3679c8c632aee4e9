"""One generation of a Space on this machine: its folders, made once, and the records that tell whether it is still there.

A generation is *placed* when `placed` has been written, which is the last step: killed before it, the steps are done again
and each finds what it did. It has *gone* when its data or its workspace was removed, and it has *ended* when it was told to.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from durable_base.crash import crash_point
from durable_base.files import write_atomic
from durable_local.layout import Home, private_folder


@dataclass(frozen=True, slots=True)
class Placed:
    uid: str
    time: float  # Unix seconds
    epoch_floor: int


def place(home: Home, generation: int, *, epoch_floor: int, fill: bool, files: Mapping[str, bytes]) -> None:
    """Make the folders of `generation`; a `fill`ed workspace holds `files` and nothing else. Done already: nothing happens."""
    folder = home.generation(generation)
    if (folder / "placed").exists():
        return
    private_folder(folder)
    private_folder(home.socket(generation).parent)
    (folder / "data").mkdir(exist_ok=True)
    if fill:
        _set_aside(home, folder, generation)
        if not home.workspace.exists():
            _fill(home.path / ".workspace.new", files)
            os.rename(home.path / ".workspace.new", home.workspace)
        crash_point("local.workspace_filled")
    home.workspace.mkdir(exist_ok=True)
    write_atomic(folder / "token", secrets.token_hex(32).encode(), mode=0o600)
    record = {"uid": str(uuid.uuid4()), "time": time.time(), "epochFloor": epoch_floor}
    write_atomic(folder / "placed", json.dumps(record).encode())
    crash_point("local.space_placed")


def find(home: Home, generation: int) -> Placed | None:
    """The placement of `generation` if it is there; None if it never was, has gone, or has ended."""
    folder = home.generation(generation)
    try:
        record = json.loads((folder / "placed").read_bytes())
    except FileNotFoundError:
        return None
    if (folder / "ended").exists() or not (folder / "data").is_dir() or not home.workspace.is_dir():
        return None
    return Placed(record["uid"], record["time"], record["epochFloor"])


def end(home: Home, generation: int) -> None:
    """From now on the generation is no more. Its files stay: they belong to the user."""
    write_atomic(home.generation(generation) / "ended", b"")
    near = home.socket(generation)
    near.unlink(missing_ok=True)
    if near.parent != home.generation(generation).absolute():
        shutil.rmtree(near.parent, ignore_errors=True)


def _set_aside(home: Home, folder: Path, generation: int) -> None:
    """An earlier generation's workspace is no base for this one, and nobody's to delete. Once per generation."""
    if (folder / "set-aside").exists():
        return
    if home.workspace.exists():
        os.rename(home.workspace, home.path / f"workspace-before-g{generation}")
    write_atomic(folder / "set-aside", b"")


def _fill(target: Path, files: Mapping[str, bytes]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    target.chmod(0o755)
    for name, data in files.items():
        path = target / name
        path.write_bytes(data)
        path.chmod(0o644)

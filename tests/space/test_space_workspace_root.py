"""The workspace's own folder: a command may remove it, a file call may not, and it is there again for whoever needs it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from durable_protocol.cua.env.v1 import filesystem_pb2 as cua
from durable_protocol.durable.space.v1 import workspace_pb2 as wire
from durable_space.testing import Client, LocalDaemon, refusal


@pytest.fixture
def gone(space: Client, daemon: LocalDaemon) -> Client:
    """A command removed the workspace, and all that was in it."""
    (daemon.workspace / "f").write_text("x")
    space.run("oops", 'rm -rf "$PWD"')
    assert not daemon.workspace.exists()
    return space


def made_again(folder: Path) -> bool:
    return stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_scan_of_a_removed_workspace_makes_it_again(gone: Client, daemon: LocalDaemon) -> None:
    assert gone.scan() == {}
    assert made_again(daemon.workspace)


def test_apply_restores_a_removed_workspace(gone: Client, daemon: LocalDaemon) -> None:
    sha256 = hashlib.sha256(b"x").digest()
    entry = wire.PathEntry(path=b"d/f", kind=wire.PATH_KIND_FILE, mode=0o644, mtime_ns=10**18, size=1, sha256=sha256)
    gone.apply([entry], blobs={sha256: b"x"})
    assert made_again(daemon.workspace)
    assert gone.scan()[b"d/f"] == entry


@pytest.mark.parametrize("cwd", ["", ".", "absolute"])
def test_next_command_starts_in_a_removed_workspace(gone: Client, daemon: LocalDaemon, cwd: str) -> None:
    cwd = str(daemon.workspace) if cwd == "absolute" else cwd
    assert gone.run("next", "touch made", cwd=cwd).end.exit_code == 0
    assert os.listdir(daemon.workspace) == ["made"]
    assert made_again(daemon.workspace)


def test_next_daemon_starts_with_a_removed_workspace(gone: Client, daemon: LocalDaemon) -> None:
    assert daemon.restart().scan() == {}
    assert made_again(daemon.workspace)


def test_daemon_that_never_served_it_does_not_make_it(daemon: LocalDaemon) -> None:
    command = daemon.command()
    command[command.index("--workspace") + 1] = missing = f"{daemon.workspace}-missing"
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, os.path.exists(missing)) == (2, False)
    assert "is no folder: make it first" in ended.stderr


def test_workspace_whose_parent_is_gone_is_no_empty_one(tmp_path: Path) -> None:
    """Something else than a command took it away: an empty table would be recorded as the work of the session."""
    made = LocalDaemon(tmp_path / "volume", "--kill-mechanism", "subreaper")
    made.data = tmp_path / "data"
    try:
        space = made.start()
        shutil.rmtree(tmp_path / "volume")
        assert refusal(lambda: space.scan()).code == "NOT_FOUND"
        (tmp_path / "volume").mkdir()
        (tmp_path / "volume" / "workspace").write_text("a file")
        assert refusal(lambda: space.scan()).code == "FAILED_PRECONDITION"
    finally:
        made.stop()


def test_a_symlink_that_a_command_put_in_the_workspaces_place_leads_nowhere(
    space: Client, daemon: LocalDaemon, tmp_path: Path
) -> None:
    """Neither a scan nor an Apply touches what it points at: those files are not the session's."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("x")
    swap = f"mv {daemon.workspace} {tmp_path}/moved && ln -s {other} {daemon.workspace}"
    assert space.run("swap", swap).end.exit_code == 0
    sha256 = hashlib.sha256(b"y").digest()
    entry = wire.PathEntry(path=b"kept", kind=wire.PATH_KIND_FILE, mode=0o644, mtime_ns=10**18, size=1, sha256=sha256)
    for call in (
        lambda: space.scan(),
        lambda: space.apply([entry], blobs={sha256: b"y"}),
    ):
        assert refusal(call).code == "FAILED_PRECONDITION"
    assert space.apply([], remove=[b"kept"]).removed == 0
    assert [(path.name, path.read_text()) for path in other.iterdir()] == [("kept", "x")]


@pytest.mark.parametrize("path", [".", "absolute", "..", "through a link"])
def test_file_calls_leave_the_workspace_where_it_is(
    space: Client, daemon: LocalDaemon, tmp_path: Path, path: str
) -> None:
    (daemon.workspace / "f").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    named = {"absolute": str(daemon.workspace), "through a link": str(tmp_path / "link" / "workspace")}.get(path, path)
    target = str(tmp_path.parent / f"{tmp_path.name}-moved")
    for call in (
        lambda: space.call(space.filesystem.Remove, cua.RemoveRequest(path=named, recursive=True)),
        lambda: space.call(space.filesystem.Move, cua.MoveRequest(source=named, destination=target)),
    ):
        refused = refusal(call)
        assert (refused.code, refused.condition) == ("INVALID_ARGUMENT", "WorkspaceRoot")
    assert os.listdir(daemon.workspace) == ["f"]
    space.call(space.filesystem.Remove, cua.RemoveRequest(path=str(tmp_path / "link")))
    space.call(space.filesystem.Remove, cua.RemoveRequest(path="f"))
    assert os.listdir(daemon.workspace) == []

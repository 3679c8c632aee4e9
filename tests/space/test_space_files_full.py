"""Files on a disk that is full: the daemon's own or the workspace's, it is told as that, and nothing is left half done."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from durable_protocol.cua.env.v1 import filesystem_pb2 as fs
from durable_protocol.durable.space.v1 import workspace_pb2 as workspace
from durable_space.testing import Client, LocalDaemon, refusal

CONTENT = b"q" * (3 << 20)


@pytest.fixture
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    """A running daemon whose data folder or workspace (the parameter) is a disk of its own, with 100 kB left."""
    disk = tmp_path / request.param
    disk.mkdir(mode=0o700)
    words = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "none", str(disk)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    daemon = LocalDaemon(tmp_path, "--kill-mechanism", "subreaper", "--free-bytes-min", "0")
    try:
        daemon.start()
        space = os.statvfs(disk)
        (disk / "filler").write_bytes(b"\1" * (space.f_bavail * space.f_frsize - 100_000))
        yield daemon
    finally:
        daemon.stop()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def write(client: Client, name: str, mode: fs.WriteMode.ValueType = fs.WRITE_MODE_OVERWRITE) -> None:
    header = fs.WriteFileRequest(header=fs.WriteFileHeader(path=name, mode=mode))
    pieces = (fs.WriteFileRequest(data=CONTENT[at : at + (1 << 20)]) for at in range(0, len(CONTENT), 1 << 20))
    client.call(client.filesystem.WriteFile, iter([header, *pieces]))


def upload(client: Client) -> None:
    begun = fs.BeginUploadRequest(upload_id="u", header=fs.WriteFileHeader(path="new"))
    client.call(client.filesystem.BeginUpload, begun)
    client.call(client.filesystem.UploadChunk, fs.UploadChunkRequest(upload_id="u", data=CONTENT))
    client.call(client.filesystem.CommitUpload, fs.CommitUploadRequest(upload_id="u"))


def apply(client: Client) -> None:
    sha256 = hashlib.sha256(CONTENT).digest()
    entry = workspace.PathEntry(
        path=b"new", kind=workspace.PATH_KIND_FILE, mode=0o644, size=len(CONTENT), sha256=sha256
    )
    client.apply([entry], blobs={sha256: CONTENT})


@pytest.mark.parametrize("full", ["data", "workspace"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        lambda client: write(client, "new"),
        lambda client: write(client, "new", fs.WRITE_MODE_APPEND),
        lambda client: write(client, "old"),
        lambda client: write(client, "old", fs.WRITE_MODE_APPEND),
        upload,
        apply,
    ],
    ids=["new file", "new file by append", "known file", "known file by append", "upload", "apply"],
)
def test_disk_that_is_full_is_told_and_nothing_is_half_done(
    full: LocalDaemon, change: Callable[[Client], None]
) -> None:
    (full.workspace / "old").write_text("old")
    before = sorted(os.listdir(full.workspace))
    told = refusal(lambda: change(full.client()))
    assert (told.code, told.reason, told.condition) == ("RESOURCE_EXHAUSTED", "DISK_FULL", "DiskFull")
    assert sorted(os.listdir(full.workspace)) == before
    assert (full.workspace / "old").read_text() == "old"

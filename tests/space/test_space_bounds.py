"""Uploads in parts and standard input, streams and commands: what is bounded, and what a restart or a new driver makes of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from durable_base.floor import Floor
from durable_protocol.cua.env.v1 import filesystem_pb2 as fs
from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_space.config import Limits
from durable_space.refusal import Refused
from durable_space.testing import Client, LocalDaemon, collect, refusal, until
from durable_space.uploads import LOOK_SECONDS, Target, Uploads

OWN, OTHER = "a" * 32, "b" * 32


def test_uploads_of_an_older_driver_are_never_committed(make_daemon: Callable[..., LocalDaemon]) -> None:
    """Begun and sent under epoch 1; under epoch 2 neither it nor the new driver can put it in place."""
    daemon = make_daemon("--kill-mechanism", "subreaper")
    client = daemon.start()
    client.advance(1, OWN)
    first = client.as_driver(1, OWN)
    begun = fs.BeginUploadRequest(upload_id="u", header=fs.WriteFileHeader(path="file"))
    first.call(first.filesystem.BeginUpload, begun)
    first.call(first.filesystem.UploadChunk, fs.UploadChunkRequest(upload_id="u", data=b"old"))
    client.advance(2, OTHER)
    second = client.as_driver(2, OTHER)
    commit = fs.CommitUploadRequest(upload_id="u")
    told = refusal(lambda: first.call(first.filesystem.CommitUpload, commit))
    assert told.condition == "StaleEpoch"
    told = refusal(lambda: second.call(second.filesystem.CommitUpload, commit))
    assert (told.code, told.reason) == ("NOT_FOUND", "SESSION_NOT_FOUND")
    assert list(daemon.workspace.iterdir()) == []
    assert second.call(second.filesystem.BeginUpload, begun).received_bytes == 0


def test_chunk_that_came_before_is_known_by_its_bytes(shared: Client) -> None:
    """Not by its offset alone: what a client sends twice must be the same, or it would commit what it did not send."""
    begun = fs.BeginUploadRequest(upload_id="twice", header=fs.WriteFileHeader(path="twice"))
    shared.call(shared.filesystem.BeginUpload, begun)
    send = lambda data, offset=0: shared.call(  # noqa: E731
        shared.filesystem.UploadChunk, fs.UploadChunkRequest(upload_id="twice", data=data, offset=offset)
    )
    assert not send(b"one ").duplicate
    assert not send(b"two", 4).duplicate
    assert send(b"ne t", 1).duplicate
    told = refusal(lambda: send(b"xxx", 1))
    assert (told.code, told.reason) == ("FAILED_PRECONDITION", "OFFSET_MISMATCH")
    assert not send(b" three", 7).duplicate
    done = shared.call(shared.filesystem.CommitUpload, fs.CommitUploadRequest(upload_id="twice"))
    assert done.sha256 == hashlib.sha256(b"one two three").hexdigest()


def held_files(daemon: LocalDaemon) -> int:
    """Deleted ones in the data folder that the daemon has open: room on the disk that nobody sees."""
    assert daemon.process is not None
    folder = Path(f"/proc/{daemon.process.pid}/fd")
    found = [os.readlink(fd) for fd in folder.iterdir() if os.path.lexists(fd)]
    return sum(name.startswith(f"{daemon.data}/staging/") and name.endswith(" (deleted)") for name in found)


def test_uploads_of_an_older_driver_give_their_room_back_when_the_floor_rises(
    make_daemon: Callable[..., LocalDaemon],
) -> None:
    daemon = make_daemon("--kill-mechanism", "subreaper")
    client = daemon.start()
    client.advance(1, OWN)
    first = client.as_driver(1, OWN)
    for name in ("a", "b"):
        begun = fs.BeginUploadRequest(upload_id=name, header=fs.WriteFileHeader(path=name))
        first.call(first.filesystem.BeginUpload, begun)
        first.call(first.filesystem.UploadChunk, fs.UploadChunkRequest(upload_id=name, data=b"x" * 100_000))
    assert held_files(daemon) == 2
    client.advance(2, OTHER)
    until(lambda: held_files(daemon) == 0, LOOK_SECONDS / 2)


def test_uploads_whose_time_is_up_give_their_room_back_though_nobody_calls(
    make_daemon: Callable[..., LocalDaemon],
) -> None:
    daemon = make_daemon("--kill-mechanism", "subreaper", "--upload-seconds-max", "0.5")
    client = daemon.start()
    begun = fs.BeginUploadRequest(upload_id="u", header=fs.WriteFileHeader(path="file"))
    client.call(client.filesystem.BeginUpload, begun)
    assert held_files(daemon) == 1
    until(lambda: held_files(daemon) == 0, 3 * LOOK_SECONDS)


def begin_one(uploads: Uploads, name: str, owner: Floor) -> None:
    uploads.begin(name, Target(f"/{name}", 1, 0, parents=False, size=0, sha256=""), owner, 60.0)


def test_upload_of_a_driver_that_was_admitted_just_before_the_floor_rose(tmp_path: Path) -> None:
    """It neither begins, nor does it drop those of the newer driver."""
    old, new = Floor(1, OWN), Floor(2, OTHER)
    uploads = Uploads(tmp_path, Limits(), lambda: new)
    begin_one(uploads, "new", new)
    with pytest.raises(Refused):
        begin_one(uploads, "old", old)
    with pytest.raises(Refused):
        uploads.take("new", old)
    assert uploads.take("new", new).target.path == "/new"
    assert uploads.is_empty


def test_uploads_leave_nothing_when_the_daemon_is_killed(make_daemon: Callable[..., LocalDaemon]) -> None:
    daemon = make_daemon("--kill-mechanism", "subreaper")
    client = daemon.start()
    begun = fs.BeginUploadRequest(upload_id="u", header=fs.WriteFileHeader(path="file"))
    client.call(client.filesystem.BeginUpload, begun)
    client.call(client.filesystem.UploadChunk, fs.UploadChunkRequest(upload_id="u", data=b"half"))
    client = daemon.restart()
    told = refusal(lambda: client.call(client.filesystem.CommitUpload, fs.CommitUploadRequest(upload_id="u")))
    assert told.reason == "SESSION_NOT_FOUND"
    assert list((daemon.data / "staging").iterdir()) == []
    assert list(daemon.workspace.iterdir()) == []


def test_command_that_does_not_read_holds_up_nobody(make_daemon: Callable[..., LocalDaemon]) -> None:
    """More waiting writers than the daemon has threads; files and commands go on, and the writers end with their callers."""
    daemon = make_daemon("--kill-mechanism", "subreaper")
    client = daemon.start()
    for number in range(24):
        client.start(f"deaf-{number}", ["sleep", "600"], stdin=True)
    waiting = []
    for number in range(24):
        request = cua.SendInputRequest(
            process=cua.ProcessSelector(tag=f"deaf-{number}"), input=cua.ProcessInput(stdin=b"x" * (200 << 10))
        )
        waiting.append(client.processes.SendInput.future(request, timeout=60))
    assert client.run("on", "echo on").stdout == b"on\n"
    assert list(client.scan()) == []
    assert not any(call.done() for call in waiting)
    client.advance(1, OWN)
    for call in waiting:
        told = refusal(call.result)
        assert told.code == "FAILED_PRECONDITION"


def test_numbered_input_is_applied_once_across_a_killed_daemon(make_daemon: Callable[..., LocalDaemon]) -> None:
    daemon = make_daemon("--kill-mechanism", "subreaper")
    client = daemon.start()
    client.start("cat", ["cat"], stdin=True)

    def send_numbered(client: Client, text: bytes, sequence: int) -> cua.SendInputResponse:
        request = cua.SendInputRequest(
            process=cua.ProcessSelector(tag="cat"), input=cua.ProcessInput(stdin=text), sequence=sequence, writer_id="w"
        )
        response: cua.SendInputResponse = client.call(client.processes.SendInput, request)
        return response

    send_numbered(client, b"one ", 1)
    client = daemon.restart()
    assert send_numbered(client, b"one ", 1).duplicate
    told = refusal(lambda: send_numbered(client, b"three", 3))
    assert (told.reason, told.metadata["expected_sequence"]) == ("SEQUENCE_GAP", "2")
    assert not send_numbered(client, b"two", 2).duplicate
    client.call(client.processes.CloseStdin, cua.CloseStdinRequest(process=cua.ProcessSelector(tag="cat")))
    told = refusal(lambda: send_numbered(client, b"late", 3))
    assert told.code == "FAILED_PRECONDITION"
    assert collect(client.attach("cat")).stdout == b"one two"


def test_streams_of_one_connection_are_bounded(make_daemon: Callable[..., LocalDaemon]) -> None:
    """The fifth waits until one of the four ends."""
    daemon = make_daemon("--kill-mechanism", "subreaper", "--streams-max", "4")
    client = daemon.start()
    client.start("slow", ["sleep", "600"])
    more = daemon.client()
    request = cua.ConnectProcessRequest(process=cua.ProcessSelector(tag="slow"))
    held = [more.processes.ConnectProcess(request) for _ in range(4)]
    for stream in held:
        next(stream)
    with pytest.raises(grpc.RpcError) as caught:
        more.space.GetInfo(durable.GetInfoRequest(), timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    held[0].cancel()
    assert more.call(more.space.GetInfo, durable.GetInfoRequest()).instance_id


def test_open_commands_are_bounded(make_daemon: Callable[..., LocalDaemon]) -> None:
    client = make_daemon("--kill-mechanism", "subreaper", "--open-commands-max", "2").start()
    client.start("one", ["sleep", "600"])
    client.start("two", ["sleep", "600"])
    told = refusal(lambda: client.start("three", "true"))
    assert (told.code, told.condition) == ("RESOURCE_EXHAUSTED", "LimitExceeded")
    assert client.lookup("three") == []
    request = cua.SignalProcessRequest(process=cua.ProcessSelector(tag="one"), signal=cua.SIGNAL_KILL)
    client.call(client.processes.SignalProcess, request)
    until(lambda: client.state("one") == "exited")
    assert client.run("three", "echo ran").stdout == b"ran\n"


@pytest.mark.parametrize("path", ["n" * 200 + "/x" * 1300, "日" * 900, "日本/" * 400, "n" * 900_000])
def test_refusal_of_a_long_path_arrives_whole(shared: Client, path: str) -> None:
    """A client takes only so much beside an answer; what is too long is shortened, its code and reason never lost."""
    told = refusal(lambda: shared.call(shared.filesystem.Stat, fs.StatRequest(path=path)))
    assert (told.code, told.reason) in (("NOT_FOUND", "PATH_NOT_FOUND"), ("INVALID_ARGUMENT", "UNSPECIFIED"))
    assert told.message
    told = refusal(lambda: shared.attach("日" * 100_000))
    assert (told.code, told.reason) == ("NOT_FOUND", "PROCESS_NOT_FOUND")

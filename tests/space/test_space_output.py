"""Output of a command that puts out more than is kept, read while the front is being dropped; and readers that are given up."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_space import output
from durable_space._sink import SEGMENT_BYTES_MIN, STDERR, STDOUT, Sink
from durable_space.output import OutputReader, tail
from durable_space.refusal import Refused
from durable_space.testing import LocalDaemon, until

KEEP = SEGMENT_BYTES_MIN


class Chatty:
    """A shim's sink that drops the front each time somebody has looked for what is kept."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.folder = str(folder)
        self.sink = Sink(self.folder, KEEP)
        self.left = times
        self.put_out()
        look = output.kept_range

        def look_and_lose(folder: str) -> tuple[int, int]:
            found = look(folder)
            if self.left:
                self.left -= 1
                self.put_out()
            return found

        monkeypatch.setattr(output, "kept_range", look_and_lose)

    def put_out(self) -> None:
        """So much that nothing of what there was is kept. Each byte tells its place."""
        for _ in range(4):
            start = self.sink.end
            stream = STDERR if start // KEEP % 2 else STDOUT
            self.sink.write(stream, bytes((start + place) % 251 for place in range(KEEP)))


@pytest.mark.parametrize("times", [0, 1, 3])
def test_tail_is_of_what_is_kept_although_the_front_goes_while_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    chatty = Chatty(tmp_path / "out", monkeypatch, times)
    pieces = tail(chatty.folder, KEEP)
    assert chatty.left == 0
    assert sum(len(piece.data) for piece in pieces) == KEEP
    assert pieces[-1].end == chatty.sink.end
    for piece in pieces:
        assert piece.data[0] == piece.offset % 251
        assert piece.stderr == bool(piece.offset // KEEP % 2)


def test_tail_is_whole_although_a_segment_goes_in_the_middle_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader crosses from one segment to the next; the next one has just been dropped."""
    chatty = Chatty(tmp_path / "out", monkeypatch, 0)
    read, lost = OutputReader.read, []

    def read_and_lose(reader: OutputReader, bytes_max: int) -> list[output.Piece]:
        pieces = read(reader, bytes_max)
        if len(lost) < 2:
            lost.append(chatty.put_out())
        return pieces

    chatty.sink.write(STDOUT, b"x" * 10)  # so that the newest bytes lie in two segments
    monkeypatch.setattr(OutputReader, "read", read_and_lose)
    pieces = tail(chatty.folder, KEEP)
    assert sum(len(piece.data) for piece in pieces) == KEEP
    assert [piece.end for piece in pieces[:-1]] == [piece.offset for piece in pieces[1:]]


def test_what_a_reader_stands_in_stays_readable_after_it_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chatty = Chatty(tmp_path / "out", monkeypatch, 1)
    reader = OutputReader(chatty.folder)
    first, end = reader.seek_newest(KEEP)
    assert reader.offset == end - KEEP >= first
    chatty.put_out()
    (piece, *_) = reader.read(100)
    assert (piece.offset, piece.data[0]) == (end - KEEP, (end - KEEP) % 251)
    with pytest.raises(Refused) as caught:
        reader.seek(first)
    assert caught.value.metadata["condition"] == "OutputGone"
    reader.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_reader_that_is_closed_while_its_thread_reads_leaves_nothing_open_and_closes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower is cancelled: (1) its thread is inside a read. (2) The loop closes. (3) The read goes on to the next segment."""
    sink = Sink(str(tmp_path / "out"), 10 * KEEP)
    for _ in range(3):
        sink.write(STDOUT, b"x" * KEEP)
    sink.close()
    before = descriptors()
    reading, go_on = threading.Event(), threading.Event()
    read_bytes = os.pread

    def held(fd: int, size: int, offset: int) -> bytes:
        reading.set()
        assert go_on.wait(10)
        return read_bytes(fd, size, offset)

    reader = OutputReader(str(tmp_path / "out"))
    monkeypatch.setattr(os, "pread", held)
    failures: list[BaseException] = []

    def read_all() -> None:
        try:
            while reader.read(KEEP):
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=read_all)
    thread.start()
    assert reading.wait(10)  # 1
    closing = threading.Thread(target=reader.close)
    closing.start()  # 2
    closing.join(0.05)
    go_on.set()  # 3
    for one in (thread, closing):
        one.join(10)
    assert failures == []
    assert descriptors() == before
    assert reader.read(KEEP) == []


def test_record_and_replay_of_a_command_that_drops_its_output_all_the_time_are_never_gone(
    make_daemon: Callable[..., LocalDaemon],
) -> None:
    """Neither asks for an offset, so whatever is dropped in between, there is something newer to give."""
    client = make_daemon("--kill-mechanism", "subreaper").start()
    client.start("chatty", ["yes"], keep_bytes=KEEP)
    until(lambda: client.lookup("chatty")[0].output_first > 0)

    def record() -> cua.ExecRecord:
        response = client.call(client.processes.GetExecRecord, cua.GetExecRecordRequest(request_id="chatty"))
        found: cua.ExecRecord = response.record
        return found

    for _ in range(60):
        size = sum(len(piece.stdout) for piece in record().tail)
        assert 0 < size <= 64 << 10
    for _ in range(60):
        request = cua.StartProcessRequest(
            config=cua.ProcessConfig(command="yes"), tag="chatty", request_id="chatty", scrollback_bytes=KEEP
        )
        stream = client.processes.StartProcess(request)
        assert next(stream).event.start.deduplicated
        assert next(stream).event.data.stdout[:1] in (b"y", b"\n")
        stream.cancel()


def test_followers_that_are_given_up_in_a_replay_leave_no_descriptor(make_daemon: Callable[..., LocalDaemon]) -> None:
    daemon = make_daemon("--kill-mechanism", "subreaper")
    client = daemon.start()
    client.run("big", "head -c 12000000 /dev/zero")
    assert daemon.process is not None
    pid = daemon.process.pid

    def open_output() -> int:
        links = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
            except FileNotFoundError:
                continue
        return sum("/out/" in link for link in links)

    for number in range(20):
        request = cua.ConnectProcessRequest(process=cua.ProcessSelector(tag="big"), replay_from_offset=0)
        stream = client.processes.ConnectProcess(request)
        for _ in range(1 + number % 5):
            next(stream)
        stream.cancel()
    until(lambda: open_output() == 0)
    assert client.run("on", "echo on").stdout == b"on\n"

"""Lines of a file in answers of bounded size: what is too long for one is refused at once, and gathering costs what it must."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from durable_protocol.durable.space.v1 import files_pb2 as files
from durable_space import lines
from durable_space.lines import LINE_ROOM, LineReader
from durable_space.refusal import Refused
from durable_space.testing import LocalDaemon, refusal


def read_all(path: Path, bytes_max: int = 1 << 30, lines_max: int | None = None) -> list[tuple[bytes, bool]]:
    reader, found = LineReader(str(path), bytes_max), []
    try:
        while batch := reader.batch(lines_max):
            found += batch
        return found
    finally:
        reader.close()


def test_lines_are_the_same_wherever_the_pieces_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = random.Random(7)
    path = tmp_path / "f"
    for _ in range(300):
        content = bytes(choice.choice(b"\nab\r") for _ in range(choice.randrange(40)))
        path.write_bytes(content)
        monkeypatch.setattr(lines, "READ_BYTES", choice.randrange(1, 9))
        monkeypatch.setattr(lines, "BATCH_BYTES", choice.randrange(1, 60))
        *terminated, last = content.split(b"\n")
        expected = [(line, True) for line in terminated] + ([(last, False)] if last else [])
        assert read_all(path) == expected
        assert read_all(path, lines_max=choice.randrange(1, 4)) == expected


@pytest.mark.parametrize("end", [b"", b"\n", b"\nmore"])
def test_line_of_the_limit_passes_and_one_byte_more_does_not(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 99 + end)
    assert read_all(path, 99)[0] == (b"x" * 99, bool(end))
    with pytest.raises(Refused) as caught:
        read_all(path, 98)
    assert caught.value.metadata == {"condition": "LineTooLong", "path": str(path), "max_bytes": "98"}


def test_line_without_end_is_refused_before_it_is_gathered(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    os.truncate(path, 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            read_all(path, 4 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_longest_line_fits_into_an_answer_and_a_longer_one_is_told(make_daemon: Callable[..., LocalDaemon]) -> None:
    daemon = make_daemon("--kill-mechanism", "subreaper", "--message-bytes-max", str(2 << 20))
    client = daemon.start()
    longest = b"x" * ((2 << 20) - LINE_ROOM)

    def ask(content: bytes, limit: int = 0) -> list[bytes]:
        (daemon.workspace / "f").write_bytes(content)
        answers = client.call(client.files.ReadLines, files.ReadLinesRequest(path="f", max_lines=limit))
        return [line.text for answer in answers for line in answer.lines]

    assert ask(b"\n".join([b"y" * (200 << 10), longest, b"z"])) == [b"y" * (200 << 10), longest, b"z"]
    told = refusal(lambda: ask(b"y\n" + longest + b"x\n"))
    assert (told.code, told.reason, told.condition) == ("FAILED_PRECONDITION", "LIMIT_EXCEEDED", "LineTooLong")
    assert told.metadata["path"] == f"{daemon.workspace}/f"
    assert ask(b"y\n" + longest + b"x\n", 1) == [b"y"], "lines before it can be had"

"""What the Space helper is told: frames survive any cut, what is none is refused at once, and so is what makes no sense."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_base.floor import Floor
from durable_space.gate import Caller
from durable_space.helper.conversation import Conversation
from durable_space.helper.frames import (
    BODY_BYTES_MAX,
    HEAD,
    MAGIC,
    MESSAGE_BYTES_MAX,
    Frame,
    FrameError,
    Unpacker,
    pack,
)
from durable_space.helper.life import Life, StdinClosed
from durable_space.helper.operations import Operations
from durable_space.staging import Staging

DERANDOMIZED = settings(derandomize=True, deadline=None, max_examples=200)
TEXTS = st.text(max_size=20) | st.just("\udcff\udc80")  # names that are no UTF-8 come as lone surrogates
MESSAGES = st.dictionaries(TEXTS, TEXTS | st.integers() | st.booleans() | st.none() | st.lists(TEXTS), max_size=5)
FRAMES = st.builds(Frame, MESSAGES, st.binary(max_size=300))


def unpack(data: bytes, *cuts: int) -> list[Frame]:
    unpacker, found, at = Unpacker(), [], 0
    for end in (*sorted(cut % (len(data) + 1) for cut in cuts), len(data)):
        unpacker.feed(data[at:end])
        at = end
        while (frame := unpacker.next()) is not None:
            found.append(frame)
    return found


@DERANDOMIZED
@given(st.lists(FRAMES, max_size=4), st.lists(st.integers(0, 10_000), max_size=6))
def test_frames_arrive_as_they_were_sent_however_the_stream_is_cut(frames: list[Frame], cuts: list[int]) -> None:
    assert unpack(b"".join(map(pack, frames)), *cuts) == frames


@DERANDOMIZED
@given(FRAMES, st.data())
def test_a_frame_that_is_cut_off_is_none(frame: Frame, data: st.DataObject) -> None:
    raw = pack(frame)
    assert unpack(raw[: data.draw(st.integers(0, len(raw) - 1))]) == []


@DERANDOMIZED
@given(st.binary(min_size=1, max_size=200))
def test_what_is_no_frame_is_refused_or_waited_for_and_never_taken_for_one(noise: bytes) -> None:
    unpacker = Unpacker()
    unpacker.feed(noise)
    try:
        frame = unpacker.next()
    except FrameError:
        assert noise[: HEAD.size] != HEAD.pack(MAGIC, 0, 0)
    else:
        assert frame is None
        assert MAGIC.startswith(noise[:4])


@DERANDOMIZED
@given(FRAMES, st.integers(0, 10_000), st.integers(1, 255))
def test_a_byte_that_is_damaged_never_raises_anything_else(frame: Frame, at: int, change: int) -> None:
    raw = bytearray(pack(frame))
    raw[at % len(raw)] ^= change
    unpacker = Unpacker()
    unpacker.feed(bytes(raw))
    with contextlib.suppress(FrameError):
        unpacker.next()


@pytest.mark.parametrize("sizes", [(MESSAGE_BYTES_MAX + 1, 0), (2, BODY_BYTES_MAX + 1), (2**32 - 1, 2**32 - 1)])
def test_a_frame_that_announces_too_much_is_refused_before_it_comes(sizes: tuple[int, int]) -> None:
    unpacker = Unpacker()
    unpacker.feed(HEAD.pack(MAGIC, *sizes))
    with pytest.raises(FrameError, match="is above"):
        unpacker.next()


def test_the_largest_frame_passes_and_a_larger_one_is_never_sent() -> None:
    largest = Frame({"op": "body"}, bytes(BODY_BYTES_MAX))
    assert unpack(pack(largest)) == [largest]
    with pytest.raises(FrameError):
        pack(Frame({}, bytes(BODY_BYTES_MAX + 1)))


@pytest.mark.parametrize("message", [b"[]", b"{", b"\xff", b"null", b"[" * 200_000, b"9" * 5000])
def test_a_message_that_is_no_object_is_refused(message: bytes) -> None:
    unpacker = Unpacker()
    unpacker.feed(HEAD.pack(MAGIC, len(message), 0) + message)
    with pytest.raises(FrameError):
        unpacker.next()


NAMES = (
    "info", "list", "canonical", "read", "write", "truncate", "flush", "move", "make_folder", "remove", "make_temporary",
    "open", "inspect", "read_opened", "scan_opened", "page_opened", "close", "scan", "blobs", "apply", "processes",
)  # fmt: skip
INSTANCE = "0123456789abcdef" * 2
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        "path",
        "target",
        "offset",
        "length",
        "size",
        "token",
        "folder",
        "follow",
        "recursive",
        "exclude",
        "plan_bytes",
        "prefix",
    ]
)
PLANS = st.builds(
    lambda put, remove, have: json.dumps({"put": put, "remove": remove, "have": have}).encode("ascii"),
    VALUES,
    VALUES,
    VALUES,
)


@settings(DERANDOMIZED, max_examples=400)
@given(
    st.sampled_from(NAMES), st.dictionaries(FIELDS, VALUES, max_size=5), st.binary(max_size=100) | PLANS, st.booleans()
)
def test_whatever_is_asked_is_answered_or_refused(
    name: str, message: dict[str, Any], body: bytes, fitting: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, place = Path(folder) / "w", Path(folder) / "own"
        root.mkdir()
        place.mkdir()
        if "path" in message or name in ("remove", "move"):
            message["path"] = str(root / "f")  # what it does it does in here
        if "target" in message:
            message["target"] = str(root / "t")
        message.pop("prefix", None)
        if fitting:
            message["plan_bytes"] = len(body)
        request, answer = os.pipe(), os.pipe()
        staging = Staging(place / "staging", INSTANCE)
        operations = Operations(root, Life(request[0]), staging, place / "staging")
        assert set(operations._by_name) == set(NAMES)
        conversation = Conversation(request[0], answer[1], operations, place / "staging")
        try:
            frame = conversation._answer(Frame({"id": 1, "op": name, **message}, body))
            assert frame.message["id"] == 1
            if "error" in frame.message:
                assert frame.message["error"]["code"] != "INTERNAL", frame.message
        finally:
            for fd in (*request, *answer):
                os.close(fd)


def test_a_closed_stdin_is_seen_also_where_bytes_of_it_wait() -> None:
    reading, writing = os.pipe()
    life, anyone = Life(reading), Caller(Floor(), named=True)
    life.check(anyone)
    os.write(writing, b"unread")
    life.check(anyone)
    os.close(writing)
    with pytest.raises(StdinClosed), life.change(anyone):
        raise AssertionError("nothing is changed any more")
    os.close(reading)

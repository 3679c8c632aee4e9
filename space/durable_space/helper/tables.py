"""Path tables, file infos and blobs as bytes beside a message. Both ends use it.

Paths are bytes that need not be UTF-8: as text they keep what is none as lone surrogates, which JSON's escapes carry exactly.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from durable_space.refusal import invalid
from durable_space.workspace.entries import Entry, Kind, check_entry

PIECE_BYTES = 256 << 10
READ_BYTES = 1 << 20  # of a file at once: what a frame's body holds
BLOB_HEAD = struct.Struct(">32s?I")  # sha256, whether it is the blob's last piece, bytes that follow

_FIELDS = 7


def lines(values: Iterable[Any]) -> Iterator[bytes]:
    """One JSON value a line."""
    for value in values:
        yield json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def batched(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Joined until they reach PIECE_BYTES, so that small ones do not cost a frame each."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def pack_entry(entry: Entry) -> list[Any]:
    return [
        entry.path.decode("utf-8", "surrogateescape"), entry.kind.value, entry.mode, entry.mtime_ns, entry.size,
        entry.sha256.hex(), entry.target.decode("utf-8", "surrogateescape"),
    ]  # fmt: skip


def unpack_entry(value: Any) -> Entry:
    """Raise Refused: not an entry, or one that no file system can hold."""
    if not isinstance(value, list) or len(value) != _FIELDS:
        raise invalid("an entry has seven fields")
    path, kind, mode, mtime_ns, size, sha256, target = value
    numbers_fine = all(isinstance(number, int) and abs(number) < 2**63 for number in (kind, mode, mtime_ns, size))
    if not (numbers_fine and all(isinstance(text, str) for text in (path, sha256, target))):
        raise invalid("a field of an entry is not of its type")
    try:
        entry = Entry(
            path.encode("utf-8", "surrogateescape"),
            Kind(kind),
            mode & 0o7777,
            mtime_ns,
            size,
            bytes.fromhex(sha256),
            target.encode("utf-8", "surrogateescape"),
        )
    except ValueError:
        raise invalid("a field of an entry is out of its range") from None
    check_entry(entry)
    return entry


def pack_blob_piece(sha256: bytes, data: bytes, *, last: bool) -> bytes:
    return BLOB_HEAD.pack(sha256, last, len(data)) + data

"""The image: transactional mode's copy of the workspace in the log. Pure: tables, their differences, and their JSON form.

A table maps each path (bytes, relative to the workspace) to a node; the bytes of each distinct file are kept once, by hash.
The JSON form is a flat object for either, so that a commit which changes three files writes three paths and their bytes:
`{"paths": {path: [kind, ...]}, "blobs": {sha256: base64}}`. A path that is not UTF-8 is written as "/" + base64 (no relative
path begins with "/"). Times are decimal strings: nanoseconds since 1970 pass 2^53, where a JSON number stops being exact.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = Any


@dataclass(frozen=True, slots=True)
class FileNode:
    mode: int  # permission bits
    mtime_ns: int
    size: int  # bytes
    sha256: str  # 64 hex digits


@dataclass(frozen=True, slots=True)
class DirNode:
    mode: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class LinkNode:
    mtime_ns: int
    target: bytes


Node = FileNode | DirNode | LinkNode
Table = Mapping[bytes, Node]


class ImageError(ValueError):
    """The stored form contradicts itself: an unknown kind, or a file whose bytes are not there."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What turns one table into another. Empty where they are equal."""

    put: Mapping[bytes, Node] = field(default_factory=dict)
    removed: tuple[bytes, ...] = ()  # every path that is gone, sorted

    def __bool__(self) -> bool:
        return bool(self.put or self.removed)


def diff(old: Table, new: Table) -> Changes:
    """The fewest paths that turn `old` into `new`."""
    put = {path: node for path, node in new.items() if old.get(path) != node}
    return Changes(put, tuple(sorted(path for path in old if path not in new)))


def patch(table: Table, changes: Changes) -> dict[bytes, Node]:
    """`patch(old, diff(old, new)) == new`."""
    gone = frozenset(changes.removed)
    result = {path: node for path, node in table.items() if path not in gone}
    result.update(changes.put)
    return result


def hashes(nodes: Iterable[Node]) -> frozenset[str]:
    return frozenset(node.sha256 for node in nodes if isinstance(node, FileNode))


def blob_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Image:
    """A table and, encoded as the log holds them, the bytes of all its files."""

    table: Table = field(default_factory=dict)
    blobs: Mapping[str, str] = field(default_factory=dict)  # sha256 -> base64

    def bytes_of(self, sha256: str) -> bytes:
        """Raise ImageError where the bytes are missing or are others: the log is damaged, never "empty"."""
        try:
            data = base64.b64decode(self.blobs[sha256], validate=True)
        except KeyError:
            raise ImageError(f"the image names a file with sha256 {sha256} and does not hold its bytes") from None
        if blob_hash(data) != sha256:
            raise ImageError(f"the image's bytes for sha256 {sha256} have another hash")
        return data


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """One commit's change of the image: paths, the bytes that came with them, and the hashes nothing names any more."""

    changes: Changes = field(default_factory=Changes)
    new_blobs: Mapping[str, str] = field(default_factory=dict)  # sha256 -> base64
    dropped_blobs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes)


def missing_blobs(image: Image, found: Table) -> list[str]:
    """The hashes that `found` needs and the image lacks, sorted."""
    return sorted(hashes(found.values()) - image.blobs.keys())


def plan_delta(image: Image, found: Table, blobs: Mapping[str, bytes]) -> ImageDelta:
    """The change that makes the image equal to `found`. `blobs` holds at least `missing_blobs(image, found)`."""
    changes = diff(image.table, found)
    needed = hashes(found.values())
    new = {}
    for sha256 in needed - image.blobs.keys():
        if sha256 not in blobs:
            raise ImageError(f"no bytes came for sha256 {sha256}")
        new[sha256] = base64.b64encode(blobs[sha256]).decode("ascii")
    return ImageDelta(changes, new, tuple(sorted(image.blobs.keys() - needed)))


def apply_delta(image: Image, delta: ImageDelta) -> Image:
    dropped = frozenset(delta.dropped_blobs)
    blobs = {sha256: text for sha256, text in image.blobs.items() if sha256 not in dropped}
    return Image(patch(image.table, delta.changes), {**blobs, **delta.new_blobs})


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What the workspace must be told to become equal to an image."""

    put: Mapping[bytes, Node] = field(default_factory=dict)
    remove: tuple[bytes, ...] = ()  # topmost paths only: all below them goes too
    send: tuple[str, ...] = ()  # hashes whose bytes travel along
    have: tuple[str, ...] = ()  # hashes that an unchanged file of the workspace holds

    def __bool__(self) -> bool:
        return bool(self.put or self.remove)


def plan_apply(found: Table, target: Table) -> ApplyPlan:
    """From the workspace as scanned to `target`.

    Folders above any change are named too, so that their times are restored after it (rule 24). A path whose kind changes
    is removed first: a file can't be renamed over a folder.
    """
    changes = diff(found, target)
    put: dict[bytes, Node] = dict(changes.put)
    gone = set(changes.removed)
    gone.update(path for path in changes.put if path in found and type(found[path]) is not type(target[path]))
    for path in (*changes.put, *gone):
        for parent in parents(path):
            if isinstance(node := target.get(parent), DirNode):
                put[parent] = node
    needed = hashes(put.values())
    stays = hashes(node for path, node in target.items() if found.get(path) == node or _same_bytes(found, path, node))
    remove = tuple(sorted(path for path in gone if not any(parent in gone for parent in parents(path))))
    return ApplyPlan(dict(sorted(put.items())), remove, tuple(sorted(needed - stays)), tuple(sorted(needed & stays)))


def _same_bytes(found: Table, path: bytes, node: Node) -> bool:
    here = found.get(path)
    return isinstance(here, FileNode) and isinstance(node, FileNode) and here.sha256 == node.sha256


def parents(path: bytes) -> Iterator[bytes]:
    """The folders above a path, nearest first, without the workspace itself."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def without(table: Table, exclude: Sequence[bytes]) -> Table:
    """The table without the named paths and all below them."""
    if not exclude:
        return table
    return {
        path: node
        for path, node in table.items()
        if not any(path == name or path.startswith(name + b"/") for name in exclude)
    }


# ---- JSON


def path_key(path: bytes) -> str:
    try:
        return path.decode("utf-8")
    except UnicodeDecodeError:
        return "/" + base64.b64encode(path).decode("ascii")


def path_of(key: str) -> bytes:
    return base64.b64decode(key[1:], validate=True) if key.startswith("/") else key.encode("utf-8")


def node_json(node: Node) -> Json:
    match node:
        case FileNode():
            return ["f", node.mode, str(node.mtime_ns), node.size, node.sha256]
        case DirNode():
            return ["d", node.mode, str(node.mtime_ns)]
        case LinkNode():
            return ["l", str(node.mtime_ns), base64.b64encode(node.target).decode("ascii")]


def node_of(value: Json) -> Node:
    match value:
        case ["f", int(mode), str(mtime), int(size), str(sha256)]:
            return FileNode(mode, int(mtime), size, sha256)
        case ["d", int(mode), str(mtime)]:
            return DirNode(mode, int(mtime))
        case ["l", str(mtime), str(target)]:
            return LinkNode(int(mtime), base64.b64decode(target, validate=True))
        case _:
            raise ImageError("the image holds an entry of no known kind")


def empty_json() -> Json:
    return {"paths": {}, "blobs": {}}


def image_json(image: Image) -> Json:
    return {
        "paths": {path_key(path): node_json(node) for path, node in image.table.items()},
        "blobs": dict(image.blobs),
    }


def image_of(value: Json) -> Image:
    """Raise ImageError where a file of the table has no bytes."""
    table = {path_of(key): node_of(node) for key, node in value["paths"].items()}
    lacking = hashes(table.values()) - value["blobs"].keys()
    if lacking:
        raise ImageError(f"the image lacks the bytes of {len(lacking)} of its files")
    return Image(table, value["blobs"])


def write_delta(value: Json, delta: ImageDelta) -> None:
    """Change the JSON form in place, only where the delta says so."""
    for path in delta.changes.removed:
        del value["paths"][path_key(path)]
    for path, node in delta.changes.put.items():
        value["paths"][path_key(path)] = node_json(node)
    for sha256 in delta.dropped_blobs:
        del value["blobs"][sha256]
    value["blobs"].update(delta.new_blobs)

"""The image: differences, plans and the JSON form, for any two workspaces."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_spaces import image
from durable_spaces.image import DirNode, FileNode, Image, ImageError, LinkNode, Node

FILE = FileNode(0o644, 1_700_000_000_123_456_789, 3, image.blob_hash(b"abc"))
names = st.sampled_from([b"a", b"b", b"c.py", "ä".encode(), b"\xff\xfe", b" x"])
contents = st.sampled_from([b"", b"abc", b"abcd", b"\x00\xff" * 10])
times = st.integers(0, 2**62)


def file_node(mode: int, mtime: int, data: bytes) -> FileNode:
    return FileNode(mode, mtime, len(data), image.blob_hash(data))


leaves = st.one_of(
    st.builds(file_node, st.sampled_from([0o644, 0o755]), times, contents),
    st.builds(LinkNode, times, st.sampled_from([b"/etc", b"../a", b"\xff"])),
)
BLOBS = {image.blob_hash(data): data for data in (b"", b"abc", b"abcd", b"\x00\xff" * 10)}


@st.composite
def tables(draw: st.DrawFn) -> dict[bytes, Node]:
    """A consistent workspace: every folder above an entry is an entry."""
    table: dict[bytes, Node] = {}
    for parts in draw(st.lists(st.lists(names, min_size=1, max_size=3), max_size=6)):
        path = b"/".join(parts)
        above = list(image.parents(path))
        if path in table or any(isinstance(table.get(parent, DirNode(0, 0)), FileNode | LinkNode) for parent in above):
            continue
        for parent in above:
            table.setdefault(parent, DirNode(0o755, draw(times)))
        table[path] = draw(st.one_of(leaves, st.builds(DirNode, st.just(0o700), times)))
    return table


def image_with(table: dict[bytes, Node]) -> Image:
    return image.apply_delta(Image(), image.plan_delta(Image(), table, BLOBS))


@given(tables(), tables())
def test_a_difference_turns_one_workspace_into_the_other(old: dict[bytes, Node], new: dict[bytes, Node]) -> None:
    changes = image.diff(old, new)
    assert image.patch(old, changes) == new
    assert bool(changes) == (old != new)


@given(tables(), tables())
def test_the_image_follows_the_workspace_in_memory_and_in_the_log(
    old: dict[bytes, Node], new: dict[bytes, Node]
) -> None:
    before = image_with(old)
    delta = image.plan_delta(before, new, BLOBS)
    after = image.apply_delta(before, delta)
    assert after.table == new
    assert after.blobs.keys() == image.hashes(new.values()), "bytes that no path names stay for ever"
    stored = json.loads(json.dumps(image.image_json(before), allow_nan=False))
    image.write_delta(stored, delta)
    assert image.image_of(stored) == after


@given(tables(), tables())
def test_a_plan_makes_any_workspace_equal_to_the_image(found: dict[bytes, Node], target: dict[bytes, Node]) -> None:
    plan = image.plan_apply(found, target)
    below = [path for path in found if any(path == gone or path.startswith(gone + b"/") for gone in plan.remove)]
    left = {path: node for path, node in found.items() if path not in below}
    assert {**left, **plan.put} == target
    needed = image.hashes(plan.put.values())
    assert set(plan.send) | set(plan.have) == needed
    assert set(plan.have) <= image.hashes(left.values()), "bytes that the plan itself removes"
    assert not plan or found != target


@given(tables(), tables())
def test_a_plan_touches_every_folder_above_a_change_so_that_its_times_are_restored(
    found: dict[bytes, Node], target: dict[bytes, Node]
) -> None:
    plan = image.plan_apply(found, target)
    for path in (*plan.put, *plan.remove):
        for parent in image.parents(path):
            assert parent not in target or parent in plan.put


def test_a_small_change_writes_little_whatever_the_image_holds() -> None:
    table: dict[bytes, Node] = {b"f%d" % number: FILE for number in range(500)}
    before = image_with(table)
    delta = image.plan_delta(before, {**table, b"f7": file_node(0o644, 5, b"abcd")}, BLOBS)
    assert list(delta.changes.put) == [b"f7"]
    assert delta.new_blobs == {image.blob_hash(b"abcd"): base64.b64encode(b"abcd").decode()}
    assert delta.dropped_blobs == ()


def test_names_that_are_not_text_survive_json() -> None:
    assert image.path_of(image.path_key(b"\xff/x")) == b"\xff/x"
    assert image.path_key(b"a/b.py") == "a/b.py"


def test_lost_or_changed_bytes_are_an_error_and_never_an_empty_file() -> None:
    whole = image_with({b"a": FILE})
    with pytest.raises(ImageError, match="does not hold"):
        Image(whole.table, {}).bytes_of(FILE.sha256)
    with pytest.raises(ImageError, match="another hash"):
        Image(whole.table, {FILE.sha256: base64.b64encode(b"abd").decode()}).bytes_of(FILE.sha256)
    stored = image.image_json(whole)
    stored["blobs"].clear()
    with pytest.raises(ImageError, match="lacks the bytes"):
        image.image_of(stored)
    with pytest.raises(ImageError, match="no known kind"):
        image.node_of(["x", 1])


def test_bytes_that_were_not_delivered_stop_the_commit() -> None:
    with pytest.raises(ImageError, match="no bytes came"):
        image.plan_delta(Image(), {b"a": FILE}, {})

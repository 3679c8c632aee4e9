"""Scan, ReadBlobs and Apply: what was scanned can be restored exactly, from any other state, and never outside."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

from durable_base.floor import Floor
from durable_protocol.durable.space.v1 import workspace_pb2 as wire
from durable_space.gate import Caller, Gate
from durable_space.refusal import Refused
from durable_space.staging import Staging
from durable_space.testing import Client, LocalDaemon, collect, refusal, until
from durable_space.workspace import Workspace
from durable_space.workspace import scan as module
from durable_space.workspace.apply import Plan
from durable_space.workspace.entries import PATH_BYTES_MAX, Entry, Kind
from durable_space.workspace.hashes import HashCache

ANYONE = Caller(Floor(), named=False)
OLD_NS = 1_600_000_000_123_456_789


class Tree:
    """A workspace in this process: the modules without the wire."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "workspace"
        self.root.mkdir()
        self.gate = Gate(Floor())
        self.workspace = Workspace(self.root, self.gate, Staging(folder / "staging", "i" * 32), HashCache())

    def scan(self, **options: object) -> dict[bytes, Entry]:
        arguments = {"use_cache": True, "files_max": 0, "bytes_max": 0, **options}
        table = self.workspace.scan(ANYONE, arguments.pop("exclude", ()), **arguments)  # type: ignore[arg-type]
        return {entry.path: entry for entry in table.entries}

    def blobs(self, table: dict[bytes, Entry]) -> dict[bytes, bytes]:
        hashes = {entry.sha256 for entry in table.values() if entry.sha256}
        return {sha256: b"".join(self.workspace.read_blob(sha256)) for sha256 in hashes}

    def apply(self, plan: Plan, blobs: dict[bytes, bytes], have: tuple[bytes, ...] = ()) -> tuple[int, int, int]:
        with self.workspace.spool() as spool:
            for sha256, data in blobs.items():
                spool.add(sha256, data, last=True)
            done = self.workspace.apply(ANYONE, plan, have, spool)
        return done.written, done.removed, done.unchanged

    def restore(self, table: dict[bytes, Entry], blobs: dict[bytes, bytes]) -> None:
        now = self.scan()
        put = tuple(entry for path, entry in table.items() if now.get(path) != entry)
        self.apply(Plan(put, tuple(path for path in now if path not in table)), blobs)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


# A tree as nested values: a file is its bytes, a symlink its target, a folder what is in it; each with mode and age.
names = st.sampled_from(["a", "b", "c", "\xe4\u20ac", "with space", "-x", ".dot", os.fsdecode(b"\xff\xfe")])
leaves = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=40), st.sampled_from([0o644, 0o600, 0o755, 0o444, 0o000])),
    st.tuples(st.just("link"), st.sampled_from(["a", "../x", "/etc/passwd", "nowhere"]), st.just(0)),
)
trees = st.recursive(
    st.dictionaries(names, leaves, max_size=4),
    lambda inner: st.dictionaries(
        names,
        st.one_of(leaves, st.tuples(st.just("folder"), inner, st.sampled_from([0o755, 0o700, 0o555, 0o1777]))),
        max_size=4,
    ),
    max_leaves=8,
)


def build(folder: Path, description: dict[str, tuple[str, object, int]], age: int) -> None:
    for number, (name, (kind, content, mode)) in enumerate(sorted(description.items())):
        path = folder / name
        when = OLD_NS + age * 1_000_000_000 + number
        if kind == "folder":
            path.mkdir()
            build(path, content, age)  # type: ignore[arg-type]
            path.chmod(mode)
        elif kind == "file":
            path.write_bytes(content)  # type: ignore[arg-type]
            path.chmod(mode)
        else:
            path.symlink_to(str(content))
        os.utime(path, ns=(when, when), follow_symlinks=False)


@given(before=trees, after=trees)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@seed(31)
@example(before={"a": ("file", b"1", 0o644)}, after={"a": ("folder", {"a": ("file", b"1", 0o644)}, 0o755)})
@example(before={"a": ("folder", {"b": ("link", "a", 0)}, 0o555)}, after={"a": ("link", "/etc", 0)})
@example(before={"a": ("folder", {}, 0o700)}, after={})
@example(before={"a": ("link", "a", 0)}, after={"a": ("folder", {"a": ("link", "a", 0)}, 0o755)})
@example(
    before={"a": ("link", "b", 0)},
    after={"a": ("folder", {"c": ("folder", {"b": ("file", b"1", 0o644)}, 0o755)}, 0o755)},
)
def test_any_tree_is_restored_from_any_other(before: dict, after: dict) -> None:  # type: ignore[type-arg]
    """Rules 3 and 24: kinds, bytes, modes, times of files, folders and symlinks; twice is as good as once."""
    folder = Path(tempfile.mkdtemp())
    try:
        tree = Tree(folder)
        build(tree.root, before, 0)
        table = tree.scan()
        blobs = tree.blobs(table)
        for path in tree.root.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        build(tree.root, after, 7)
        tree.restore(table, blobs)
        assert tree.scan(use_cache=False) == table
        tree.restore(table, blobs)
        assert tree.scan(use_cache=False) == table
        assert list((folder / "staging").iterdir()) == []
    finally:
        shutil.rmtree(folder)


def test_over_the_wire_with_commands_that_change_everything(space: Client, daemon: LocalDaemon) -> None:
    space.run(
        "1", "mkdir -p a/b e; echo hi > a/b/f; ln -s ../x a/l; chmod 600 a/b/f; head -c 700000 /dev/urandom > big"
    )
    table = space.scan()
    blobs = space.read_blobs([entry.sha256 for entry in table.values() if entry.sha256])
    assert {hashlib.sha256(data).digest() for data in blobs.values()} == set(blobs)
    space.run("2", "rm -rf a e; echo no > e; mkdir d; mv big d/f; mkfifo pipe")
    assert refusal(lambda: space.scan()).condition == "UntrackedNames"
    (daemon.workspace / "pipe").unlink()
    now = space.scan()
    done = space.apply(list(table.values()), [path for path in now if path not in table], blobs)
    assert done.written == len(table)
    assert space.scan(no_cache=True) == table
    hashes = [entry.sha256 for entry in table.values() if entry.sha256]
    done = space.apply(list(table.values()), have=hashes)
    assert (done.written, done.removed, done.unchanged) == (0, 0, len(table))


def test_folder_that_the_plan_does_not_list_keeps_its_time(tree: Tree) -> None:
    """Rule 24: make compares them."""
    (tree.root / "d").mkdir()
    (tree.root / "d" / "f").write_text("old")
    os.utime(tree.root / "d", ns=(OLD_NS, OLD_NS))
    data = b"new"
    entry = Entry(b"d/f", Kind.FILE, 0o600, OLD_NS, len(data), hashlib.sha256(data).digest())
    tree.apply(Plan((entry,), ()), {entry.sha256: data})
    assert (tree.root / "d").stat().st_mtime_ns == OLD_NS
    assert (tree.root / "d" / "f").read_bytes() == data


ESCAPES = {
    "absolute": b"/etc/evil",
    "dots": b"../evil",
    "dots inside": b"a/../../evil",
    "through a symlink": b"out/evil",
    "through a symlink below": b"a/out/evil",
    "empty part": b"a//b",
    "nothing": b"",
    "NUL": b"a\0b",
}


@pytest.mark.parametrize("path", ESCAPES.values(), ids=ESCAPES)
def test_path_that_would_leave_the_workspace_changes_nothing(tree: Tree, tmp_path: Path, path: bytes) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree.root / "a").mkdir()
    (tree.root / "out").symlink_to(outside)
    (tree.root / "a" / "out").symlink_to("../../outside")
    data = b"evil"
    evil = Entry(path, Kind.FILE, 0o644, OLD_NS, len(data), hashlib.sha256(data).digest())
    good = Entry(b"good", Kind.DIRECTORY, 0o755, OLD_NS)
    before = tree.scan()
    for plan in (Plan((good, evil), ()), Plan((good,), (path,))):
        with pytest.raises(Refused) as caught:
            tree.apply(plan, {evil.sha256: data})
        assert caught.value.metadata["condition"] == "EscapesWorkspace"
    assert list(outside.iterdir()) == []
    assert tree.scan() == before


def test_symlink_that_the_plan_replaces_is_no_way_out(tree: Tree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree.root / "out").symlink_to(outside)
    data = b"fine"
    entry = Entry(b"out/f", Kind.FILE, 0o644, OLD_NS, len(data), hashlib.sha256(data).digest())
    folder = Entry(b"out", Kind.DIRECTORY, 0o755, OLD_NS)
    tree.apply(Plan((folder, entry), ()), {entry.sha256: data})
    assert list(outside.iterdir()) == []
    assert (tree.root / "out" / "f").read_bytes() == data


def test_folder_swapped_for_a_symlink_during_the_apply_is_refused(tree: Tree, tmp_path: Path) -> None:
    """(1) The plan is checked. (2) A process of the Space swaps the folder. (3) The change meets the symlink and stops."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree.root / "d").mkdir()
    entries = [
        Entry(b"d/%d" % number, Kind.FILE, 0o644, OLD_NS, 1, hashlib.sha256(b"%d" % number).digest())
        for number in range(2)
    ]
    original = tree.gate.change
    passed = 0

    def swap(caller: Caller) -> object:
        nonlocal passed
        passed += 1
        if passed == 2:
            os.rename(tree.root / "d", tree.root / "moved")
            (tree.root / "d").symlink_to(outside)
        return original(caller)

    tree.gate.change = swap  # type: ignore[method-assign,assignment]
    with pytest.raises(Refused) as caught:
        tree.apply(Plan(tuple(entries), ()), {entry.sha256: b"%d" % number for number, entry in enumerate(entries)})
    assert caught.value.metadata["condition"] == "EscapesWorkspace"
    assert list(outside.iterdir()) == []


def test_contradicting_plans_are_refused_before_anything_changes(tree: Tree) -> None:
    file = Entry(b"a", Kind.FILE, 0o644, OLD_NS, 0, hashlib.sha256(b"").digest())
    below = Entry(b"a/b", Kind.DIRECTORY, 0o755, OLD_NS)
    (tree.root / "f").write_text("x")
    for plan in (
        Plan((file, file), ()),
        Plan((file, below), ()),
        Plan((Entry(b"f/x", Kind.DIRECTORY, 0o755, OLD_NS),), ()),
    ):
        with pytest.raises(Refused):
            tree.apply(plan, {file.sha256: b""})
    assert os.listdir(tree.root) == ["f"]


def test_blob_must_have_its_hash_and_must_be_there(space: Client, daemon: LocalDaemon) -> None:
    sha256 = hashlib.sha256(b"right").digest()
    entry = wire.PathEntry(path=b"f", kind=wire.PATH_KIND_FILE, mode=0o644, mtime_ns=OLD_NS, size=5, sha256=sha256)
    assert refusal(lambda: space.apply([entry], blobs={sha256: b"wrong"})).condition == "BlobMismatch"
    assert refusal(lambda: space.apply([entry])).condition == "BlobMissing"
    assert refusal(lambda: space.apply([entry], have=[sha256])).condition == "BlobMissing"
    assert list(daemon.workspace.iterdir()) == []


def test_have_takes_bytes_from_where_the_plan_removes_them(tree: Tree) -> None:
    (tree.root / "a").write_bytes(b"moved")
    table = tree.scan()
    entry = Entry(b"b", Kind.FILE, 0o644, OLD_NS, 5, table[b"a"].sha256)
    assert tree.apply(Plan((entry,), (b"a",)), {}, (entry.sha256,)) == (1, 1, 0)
    assert (os.listdir(tree.root), (tree.root / "b").read_bytes()) == (["b"], b"moved")


def test_blob_that_changed_since_the_scan_is_refused(shared: Client, shared_daemon: LocalDaemon) -> None:
    """Rule 37."""
    path = shared_daemon.workspace / "changing"
    path.write_bytes(b"x" * 600_000)
    sha256 = shared.scan()[b"changing"].sha256
    path.write_bytes(b"y" * 600_000)
    assert refusal(lambda: shared.read_blobs([sha256])).condition == "BlobChanged"
    path.unlink()
    assert refusal(lambda: shared.read_blobs([sha256])).condition == "BlobChanged"
    assert refusal(lambda: shared.read_blobs([b"\0" * 32])).metadata["sha256"] == "00" * 32


def test_edit_of_the_same_size_with_its_time_put_back_is_seen(tree: Tree) -> None:
    path = tree.root / "f"
    path.write_bytes(b"aaaa")
    os.utime(path, ns=(OLD_NS, OLD_NS))
    first = tree.scan()[b"f"]
    for content in (b"bbbb", b"cccc"):  # at once: within one tick of the clock that stamps files
        path.write_bytes(content)
        os.utime(path, ns=(OLD_NS, OLD_NS))
        second = tree.scan()[b"f"]
        assert second.sha256 == hashlib.sha256(content).digest() != first.sha256
        assert second.mtime_ns == first.mtime_ns == OLD_NS


def test_cached_hash_vouches_until_asked_not_to(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 13: no_cache reads everything anew."""
    (tree.root / "f").write_bytes(b"x")
    hashed: list[int] = []
    original = module.hash_file
    monkeypatch.setattr(module, "hash_file", lambda fd: hashed.append(fd) or original(fd))
    until(lambda: (tree.scan(), len(hashed), tree.scan(), len(hashed))[1] == len(hashed), what="the entry ages")
    count = len(hashed)
    tree.scan()
    assert len(hashed) == count
    tree.scan(use_cache=False)
    assert len(hashed) == count + 1


def test_names_that_cannot_be_tracked_are_refused_all_at_once(tree: Tree) -> None:
    (tree.root / "d").mkdir()
    for name in (b"back\\slash", b"d/new\nline"):
        (Path(os.fsdecode(os.path.join(os.fsencode(tree.root), name)))).touch()
    os.mkfifo(tree.root / "pipe")
    with pytest.raises(Refused) as caught:
        tree.scan()
    assert caught.value.metadata["condition"] == "UntrackedNames"
    assert caught.value.metadata["paths"] == "back\\slash; d/new\\nline; pipe"
    assert list(tree.scan(exclude=(b"back\\slash", b"d", b"pipe"))) == []


def make_deep(root: Path, levels: int) -> int:
    """Folders in folders, one name at a time: the whole path may be longer than the kernel takes. Give the last one, open."""
    fd = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 100, dir_fd=fd)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    return fd


def test_tree_of_more_levels_than_the_interpreter_has_is_removed(tree: Tree) -> None:
    """Two branches, each with a file and a symlink that leads out at its end."""
    for branch in ("one", "two"):
        (tree.root / "top" / branch).mkdir(parents=True)
        fd = make_deep(tree.root / "top" / branch, 1500)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.symlink(tree.root / "kept", "link", dir_fd=fd)
        os.close(fd)
    (tree.root / "kept").mkdir()
    (tree.root / "kept" / "f").write_text("x")
    assert tree.apply(Plan((), (b"top",)), {}) == (0, 1, 0)
    assert list(tree.scan()) == [b"kept", b"kept/f"]


def test_tree_deeper_than_a_path_can_be_is_refused_and_goes_when_its_named_folder_is_removed(tree: Tree) -> None:
    os.close(make_deep(tree.root, 60))
    (tree.root / "f").write_text("x")
    with pytest.raises(Refused) as caught:
        tree.scan()
    assert caught.value.metadata["condition"] == "UntrackedNames"
    named = caught.value.metadata["paths"]
    assert (len(named) <= 512, (tree.root / named).is_dir()) == (True, True)
    assert list(tree.scan(exclude=(named.encode(),))) == [
        b"/".join([b"d" * 100] * depth) for depth in range(1, named.count("/") + 1)
    ] + [b"f"]
    tree.apply(Plan((), (named.encode(),)), {})
    assert len(tree.scan()) == named.count("/") + 1


UNTRACKABLE = {
    "backslash": (b"a\\b", "UntrackedNames"),
    "newline": (b"d/a\nb", "UntrackedNames"),
    "too long a path": (b"/".join([b"n" * 100] * 45), "UntrackedNames"),
    "too long a name": (b"d/" + b"n" * 256, ""),
}


@pytest.mark.parametrize(("path", "condition"), UNTRACKABLE.values(), ids=UNTRACKABLE)
def test_path_that_no_scan_would_give_back_changes_nothing(tree: Tree, path: bytes, condition: str) -> None:
    """Neither what stands before it in the plan nor a part of it."""
    good, wrong = Entry(b"good", Kind.DIRECTORY, 0o755, OLD_NS), Entry(path, Kind.DIRECTORY, 0o755, OLD_NS)
    with pytest.raises(Refused) as caught:
        tree.apply(Plan((good, wrong), ()), {})
    assert caught.value.metadata.get("condition", "") == condition
    assert os.listdir(tree.root) == []


def test_longest_path_of_a_table_is_restored(tree: Tree) -> None:
    room = PATH_BYTES_MAX - len(os.fsencode(tree.root)) - 1
    path = b"/".join([b"n" * 100] * 100)[: room - 1].rstrip(b"/")
    path += b"n" * (room - len(path))
    data = b"deep"
    entry = Entry(path, Kind.FILE, 0o600, OLD_NS, len(data), hashlib.sha256(data).digest())
    tree.apply(Plan((entry,), ()), {entry.sha256: data})
    table = tree.scan()
    assert table[path] == entry
    assert tree.blobs(table) == {entry.sha256: data}
    tree.apply(Plan((), (b"n" * 100,)), {})
    assert tree.scan() == {}


def test_kind_that_nobody_knows_is_an_invalid_argument(shared: Client) -> None:
    for kind in (wire.PATH_KIND_UNSPECIFIED, 9):
        entry = wire.PathEntry(path=b"kind", kind=kind, mode=0o755)  # type: ignore[arg-type]
        assert refusal(lambda entry=entry: shared.apply([entry])).code == "INVALID_ARGUMENT"  # type: ignore[misc]


def test_limits_end_a_scan_early(tree: Tree) -> None:
    for number in range(5):
        (tree.root / str(number)).write_bytes(b"x" * 10)
    for limits in ({"files_max": 4}, {"bytes_max": 49}):
        with pytest.raises(Refused) as caught:
            tree.scan(**limits)
        assert caught.value.metadata["condition"] == "WorkspaceTooLarge"
    assert len(tree.scan(files_max=5, bytes_max=50)) == 5


def test_files_that_vanish_during_a_scan_are_absent(space: Client, daemon: LocalDaemon) -> None:
    for number in range(200):
        (daemon.workspace / f"stays-{number}").write_text("x")
    events = space.start("churn", "while [ ! -e stop ]; do mkdir -p t/u; echo x > t/u/f; rm -rf t; done")
    for _ in range(10):
        table = space.scan()
        assert sum(path.startswith(b"stays-") for path in table) == 200
    (daemon.workspace / "stop").touch()
    assert collect(events).end.exit_code == 0


@pytest.mark.parametrize(
    "point", ["apply.path_removed", "apply.file_renamed:1", "apply.file_renamed:7", "apply.finished"]
)
def test_daemon_killed_inside_an_apply_ends_the_same_when_repeated(daemon: LocalDaemon, point: str) -> None:
    """Rule 3: and what is left of temporary files is swept."""
    client = daemon.start(crash=point)
    client.run("1", "mkdir d; for i in 1 2 3 4 5 6 7 8; do echo $i > d/$i; done; touch -d 2001-01-01 d d/1")
    table = client.scan()
    blobs = client.read_blobs([entry.sha256 for entry in table.values() if entry.sha256])
    client.run("2", "for i in 1 2 3 4 5 6 7 8; do echo changed $i > d/$i; done; mkdir other; touch other/x")

    def restore(with_client: Client) -> None:
        now = with_client.scan()
        put = [entry for path, entry in table.items() if now.get(path) != entry]
        with_client.apply(put, [path for path in now if path not in table], blobs)

    with pytest.raises(grpc.RpcError):
        restore(client)
    assert daemon.wait_dead() == -signal.SIGKILL
    client = daemon.start()
    restore(client)
    assert client.scan(no_cache=True) == table
    assert sorted(os.listdir(daemon.workspace / "d")) == [str(number) for number in range(1, 9)]


def test_older_apply_stops_between_two_files(tree: Tree) -> None:
    """Rule 26: the floor rises in the middle; what came before it is whole, nothing comes after."""
    entries = tuple(
        Entry(b"%d" % number, Kind.FILE, 0o644, OLD_NS, 1, hashlib.sha256(b"%d" % number).digest())
        for number in range(4)
    )
    original = tree.gate.change
    passed = 0

    def raise_floor(caller: Caller) -> object:
        nonlocal passed
        passed += 1
        if passed == 3:
            with tree.gate.raising():
                tree.gate.floor = Floor(1, "1" * 32)
        return original(caller)

    tree.gate.change = raise_floor  # type: ignore[method-assign,assignment]
    with pytest.raises(Refused) as caught:
        tree.apply(Plan(entries, ()), {entry.sha256: b"%d" % number for number, entry in enumerate(entries)})
    assert caught.value.metadata["condition"] == "StaleEpoch"
    assert sorted(os.listdir(tree.root)) == ["0", "1"]


def test_processes_tells_what_still_works_in_the_workspace(space: Client, daemon: LocalDaemon, tmp_path: Path) -> None:
    events = space.start("runs", "exec sleep 60")
    space.run("left", "cd /; setsid sleep 60 > /dev/null 2>&1 &")
    stranger = subprocess.Popen(["sleep", "60"], cwd=daemon.workspace)
    try:
        found = {
            (process.request_id, process.command_running, process.cwd_inside)
            for process in space.call(space.workspace.Processes, wire.ProcessesRequest()).processes
        }
        assert found == {("runs", True, True), ("left", False, False), ("", False, True)}
    finally:
        stranger.kill()
        stranger.wait()
    space.advance(1)
    collect(events)
    assert not space.call(space.workspace.Processes, wire.ProcessesRequest()).processes


def test_special_bits_and_modes_are_kept(tree: Tree) -> None:
    (tree.root / "x").write_text("x")
    (tree.root / "x").chmod(0o4751)
    table = tree.scan()
    assert table[b"x"].mode == 0o4751
    (tree.root / "x").chmod(0o600)
    tree.restore(table, tree.blobs(table))
    assert stat.S_IMODE((tree.root / "x").stat().st_mode) == 0o4751


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Results must not depend on it."""
    old = os.umask(0o077)
    yield
    os.umask(old)

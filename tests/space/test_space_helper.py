"""The Space helper as a process: one zipapp of the standard library, spoken to over its pipes; killed, cut off, misspoken to."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from durable_space.helper import tables
from durable_space.helper.archive import PYTHON_FLAGS, build
from durable_space.helper.conversation import MALFORMED
from durable_space.helper.frames import BODY_BYTES_MAX, HEAD, MAGIC, Frame, Unpacker, pack
from durable_space.helper.main import REFUSED
from durable_space.testing import until
from durable_space.workspace.entries import Entry, Kind

SECONDS = 20.0
INSTANCE = "0123456789abcdef" * 2
OLD_NS = 1_000_000_000_123_456_789


class Died(Exception):
    pass


@dataclass
class Process:
    """One helper, and the driver's end of its pipes."""

    process: subprocess.Popen[bytes]
    unpacker: Unpacker
    number: int = 0

    def frame(self) -> Frame:
        deadline = time.monotonic() + SECONDS
        while (frame := self.unpacker.next()) is None:
            assert self.process.stdout is not None
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "no answer"
            if not (data := os.read(self.process.stdout.fileno(), 1 << 16)):
                raise Died
            self.unpacker.feed(data)
        return frame

    def send(self, raw: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(raw)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Died from None

    def ask(self, op: str, body: bytes = b"", /, **arguments: Any) -> tuple[dict[str, Any], bytes]:
        """As the driver does it: (message, all bytes beside it). Refusals are messages with `error`."""
        pieces = [body[at : at + BODY_BYTES_MAX] for at in range(0, max(len(body), 1), BODY_BYTES_MAX)]
        for piece in pieces[:-1]:
            assert "error" not in self.exchange({"op": "body"}, piece).message
        answer = self.exchange({"op": op, **arguments}, pieces[-1])
        message, data = answer.message, answer.body
        while answer.message.get("more"):
            answer = self.exchange({"op": "more"}, b"")
            data += answer.body
        return message, data

    def exchange(self, message: dict[str, Any], body: bytes) -> Frame:
        self.number += 1
        self.send(pack(Frame({"id": self.number, **message}, body)))
        answer = self.frame()
        assert answer.message.get("id") == self.number
        return answer

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(SECONDS)


Start = Callable[..., Process]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    made = build()
    (tmp_path / made.name).write_bytes(made.data)
    return tmp_path / made.name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def start(tmp_path: Path, archive: Path, root: Path) -> Iterator[Start]:
    """`start(crash=..., hello=True)`: a helper that has said hello."""
    processes: list[subprocess.Popen[bytes]] = []

    def make(
        *, workspace: Path = root, folder: Path = tmp_path / "own", crash: str = "", hello: bool = True
    ) -> Process:
        process = subprocess.Popen(
            [sys.executable, *PYTHON_FLAGS, archive, workspace, folder, INSTANCE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"DURABLE_CRASH": crash, "PATH": "/usr/bin:/bin"},
            cwd="/",
        )
        processes.append(process)
        made = Process(process, Unpacker())
        if hello:
            assert made.frame().message["hello"] == 1
        return made

    yield make
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def plan_of(*put: Entry, remove: tuple[str, ...] = (), have: tuple[bytes, ...] = ()) -> bytes:
    value = {"put": list(map(tables.pack_entry, put)), "remove": remove, "have": [sha256.hex() for sha256 in have]}
    return json.dumps(value).encode("ascii")


def apply(helper: Process, plan: bytes, blobs: dict[bytes, bytes]) -> dict[str, Any]:
    sent = b"".join(tables.pack_blob_piece(sha256, data, last=True) for sha256, data in blobs.items())
    return helper.ask("apply", plan + sent, plan_bytes=len(plan))[0]


def file_entry(path: bytes, data: bytes) -> Entry:
    return Entry(path, Kind.FILE, 0o640, OLD_NS, len(data), hashlib.sha256(data).digest())


def scanned(helper: Process, **arguments: Any) -> dict[bytes, Entry]:
    message, data = helper.ask("scan", **arguments)
    assert "error" not in message, message
    entries = [tables.unpack_entry(json.loads(line)) for line in data.splitlines()]
    assert [entry.path for entry in entries] == sorted(entry.path for entry in entries)
    return {entry.path: entry for entry in entries}


def left_beside(root: Path) -> list[str]:
    return [name for _, folders, files in os.walk(root) for name in (*folders, *files) if name.startswith(".durable-")]


# ---- the archive


def test_the_same_package_makes_the_same_bytes() -> None:
    first = build.__wrapped__()
    assert first == build.__wrapped__()
    assert hashlib.sha256(first.data).hexdigest() == first.sha256
    with zipfile.ZipFile(BytesIO(first.data)) as archive:
        members = archive.infolist()
    assert [member.filename for member in members] == sorted(member.filename for member in members)
    assert {member.date_time for member in members} == {(1980, 1, 1, 0, 0, 0)}
    assert {member.compress_type for member in members} == {zipfile.ZIP_STORED}


@pytest.mark.parametrize("version", [(2, 7), (3, 6), (3, 10)])
def test_an_older_python_says_so_in_a_frame(archive: Path, version: tuple[int, int]) -> None:
    with zipfile.ZipFile(archive) as opened:
        source = opened.read("__main__.py").decode("ascii")
    program = f"import sys; sys.version_info = {(*version, 0)}; exec({source!r})"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, timeout=SECONDS)
    unpacker = Unpacker()
    unpacker.feed(done.stdout)
    frame = unpacker.next()
    assert done.returncode == REFUSED
    assert frame is not None
    assert frame.message["error"]["metadata"]["condition"] == "PythonTooOld"
    assert ".".join(map(str, version)) in frame.message["error"]["message"]
    assert "3.11 or newer" in frame.message["error"]["message"]


# ---- files, and bodies larger than a frame


def test_a_body_of_many_frames_is_written_and_read_whole(start: Start, root: Path) -> None:
    helper = start()
    data = bytes(range(256)) * (3 * BODY_BYTES_MAX // 256) + b"end"
    assert "error" not in helper.ask("write", data, path="deep/f")[0]
    assert (root / "deep" / "f").read_bytes() == data
    assert helper.ask("read", path="deep/f")[1] == data
    assert (
        helper.ask("read", path="deep/f", offset=BODY_BYTES_MAX - 1, length=BODY_BYTES_MAX + 2)[1]
        == (data[BODY_BYTES_MAX - 1 : 2 * BODY_BYTES_MAX + 1])
    )
    assert helper.close() == 0


def test_what_was_begun_and_not_gone_on_with_is_dropped(start: Start, root: Path) -> None:
    helper = start()
    (root / "large").write_bytes(bytes(3 * BODY_BYTES_MAX))
    assert helper.exchange({"op": "read", "path": "large"}, b"").message["more"] is True
    assert helper.ask("info", path="large")[0]["info"][2] == 3 * BODY_BYTES_MAX
    assert helper.exchange({"op": "more"}, b"") == Frame({"id": helper.number}, b""), "the rest was dropped"
    held = [os.readlink(f"/proc/{helper.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{helper.process.pid}/fd")]
    assert str(root / "large") not in held


def test_a_body_that_is_cut_off_changes_nothing(start: Start, root: Path) -> None:
    (root / "f").write_text("old")
    helper = start()
    helper.exchange({"op": "body"}, b"new, and ")
    helper.send(pack(Frame({"id": 9, "op": "write", "path": "f"}, b"more"))[:-1])
    assert helper.close() == 0
    assert (root / "f").read_text() == "old"
    assert left_beside(root) == []


def test_names_in_any_bytes_come_back_exactly(start: Start, root: Path) -> None:
    names = [b"\xff\xfe", "ä".encode(), b"a\tb", b'quote"', b"\x80tail", b"-"]
    for name in names:
        (root / os.fsdecode(name)).write_bytes(name)
    (root / "link").symlink_to(os.fsdecode(b"to\xff"))
    (root / "empty").mkdir()
    helper = start()
    table = scanned(helper)
    assert sorted(table) == sorted([*names, b"link", b"empty"])
    assert table[b"link"].target == b"to\xff"
    hashes = [table[name].sha256.hex() for name in names]
    _, data = helper.ask("blobs", json.dumps(hashes).encode())
    at = 0
    for name in names:
        sha256, last, size = tables.BLOB_HEAD.unpack_from(data, at)
        at += tables.BLOB_HEAD.size + size
        assert (sha256, last, data[at - size : at]) == (table[name].sha256, True, name)


def test_a_scan_and_an_apply_are_each_others_inverse(start: Start, root: Path) -> None:
    helper = start()
    (root / "keep").mkdir()
    (root / "keep" / "f").write_bytes(b"x" * 700_000)
    (root / "gone").write_text("bytes that the plan has")
    before = scanned(helper)
    blob = helper.ask("blobs", json.dumps([before[b"keep/f"].sha256.hex()]).encode())[1]
    (root / "keep" / "f").write_bytes(b"another")
    (root / "new").write_text("goes")
    scanned(helper)
    gone = (root / "gone").read_bytes()
    plan = plan_of(*before.values(), remove=("new",), have=(before[b"gone"].sha256,))
    message, _ = helper.ask("apply", plan + blob, plan_bytes=len(plan))
    assert "error" not in message, message
    assert scanned(helper, no_cache=True) == before
    assert (root / "gone").read_bytes() == gone


def test_paths_that_leave_the_workspace_are_refused_before_anything_changes(start: Start, root: Path) -> None:
    helper = start()
    (root / "out").symlink_to("/tmp")
    for path in (b"../f", b"/f", b"a//b", b"", b"out/f"):
        entry = file_entry(path, b"x")
        message = apply(helper, plan_of(entry, remove=("out2",)), {entry.sha256: b"x"})
        assert message["error"]["metadata"]["condition"] == "EscapesWorkspace"
    assert os.listdir(root) == ["out"]


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_the_workspace_stays_where_it_is(start: Start, root: Path, path: str) -> None:
    (root / "f").write_text("x")
    helper = start()
    for request in (
        {"op": "remove", "path": path, "recursive": True, "missing_ok": False},
        {"op": "move", "path": path, "target": str(root.parent / "moved")},
    ):
        assert helper.exchange(request, b"").message["error"]["metadata"]["condition"] == "WorkspaceRoot"
    assert os.listdir(root) == ["f"]


# ---- its life


def test_it_ends_with_its_stdin_also_between_two_files_of_an_apply(start: Start, root: Path) -> None:
    """The request is whole and stdin closed behind it: nobody waits for it any more."""
    entries = [file_entry(b"f%d" % number, b"%d" % number) for number in range(3)]
    plan = plan_of(*entries)
    blobs = b"".join(tables.pack_blob_piece(entry.sha256, entry.path[1:], last=True) for entry in entries)
    helper = start(crash="apply.file_renamed=stop")
    helper.send(pack(Frame({"id": 1, "op": "apply", "plan_bytes": len(plan)}, plan + blobs)))
    until(lambda: stopped(helper.process.pid), SECONDS, "it stops behind the first file")
    assert helper.process.stdin is not None
    helper.process.stdin.close()
    os.kill(helper.process.pid, signal.SIGCONT)
    assert helper.process.wait(SECONDS) == 0
    assert sorted(os.listdir(root)) == ["f0"]
    assert left_beside(root) == []


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "tT"


@pytest.mark.parametrize("point", ["apply.file_renamed:2", "apply.path_removed", "apply.finished"])
def test_killed_in_an_apply_leaves_each_file_whole_and_the_same_apply_ends_the_same(
    start: Start, root: Path, point: str
) -> None:
    old = {b"f%d" % number: b"old %d" % number for number in range(4)}
    new = {path: b"new " + path * 50_000 for path in old}
    (root / "goes").mkdir()
    (root / "goes" / "inner").write_text("x")
    for path, data in old.items():
        (root / os.fsdecode(path)).write_bytes(data)
    entries = [file_entry(path, data) for path, data in new.items()]
    blobs = {entry.sha256: new[entry.path] for entry in entries}
    helper = start(crash=point)
    with pytest.raises(Died):
        apply(helper, plan_of(*entries, remove=("goes",)), blobs)
    assert helper.process.wait(SECONDS) == -signal.SIGKILL
    for path in old:
        assert (root / os.fsdecode(path)).read_bytes() in (old[path], new[path]), "a part of a file was seen"
    again = start()
    assert left_beside(root) == [], "what the killed one left beside its targets is swept"
    assert "error" not in apply(again, plan_of(*entries, remove=("goes",)), blobs)
    assert {os.fsencode(name): (root / name).read_bytes() for name in os.listdir(root)} == new


@pytest.mark.parametrize("point", ["files.temporary_synced", "files.moved"])
def test_killed_in_a_change_of_one_file_leaves_the_old_or_the_new_one(start: Start, root: Path, point: str) -> None:
    (root / "f").write_bytes(b"old")
    helper = start(crash=point)
    request = {"op": "move", "path": "f", "target": "g"} if point == "files.moved" else {"op": "write", "path": "f"}
    with pytest.raises(Died):
        helper.exchange(request, b"new")
    start()
    assert {name: (root / name).read_bytes() for name in os.listdir(root)} in ({"f": b"old"}, {"g": b"old"})


def test_one_works_in_a_workspace_at_a_time(start: Start, root: Path, tmp_path: Path) -> None:
    first = start()
    second = start(hello=False)
    error = second.frame().message["error"]
    assert (error["metadata"]["condition"], second.process.wait(SECONDS)) == ("HelperBusy", REFUSED)
    (tmp_path / "other").mkdir()
    assert "error" not in start(workspace=tmp_path / "other").ask("scan")[0], "another workspace is another one's"
    first.process.kill()
    assert scanned(start()) == {}, "a killed one holds nobody up"


@pytest.mark.parametrize(
    ("workspace", "folder", "code"),
    [
        ("none", "own", "NOT_FOUND"),
        ("file", "own", "FAILED_PRECONDITION"),
        ("workspace", "workspace/own", "INVALID_ARGUMENT"),
    ],
)
def test_where_it_cannot_work_it_says_why(start: Start, tmp_path: Path, workspace: str, folder: str, code: str) -> None:
    (tmp_path / "file").write_text("")
    helper = start(workspace=tmp_path / workspace, folder=tmp_path / folder, hello=False)
    error = helper.frame().message["error"]
    assert (error["code"], helper.process.wait(SECONDS)) == (code, REFUSED)
    assert str(tmp_path) in error["message"]


# ---- what it is told that makes no sense


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD.pack(MAGIC, 2**31, 0),
        HEAD.pack(MAGIC, 2, 2**31),
        HEAD.pack(MAGIC, 4, 0) + b"nope",
    ],
)
def test_a_malformed_frame_is_told_and_ends_it(start: Start, raw: bytes) -> None:
    helper = start()
    helper.send(raw)
    error = helper.frame().message["error"]
    assert (error["code"], error["metadata"]["condition"]) == ("INVALID_ARGUMENT", "MalformedFrame")
    assert helper.process.wait(SECONDS) == MALFORMED


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"op": 1},
        {"op": "no such"},
        {"op": "info"},
        {"op": "info", "path": 1},
        {"op": "info", "path": "a\0"},
        {"op": "info", "path": "\ud800"},
        {"op": "read", "path": "f", "offset": -1},
        {"op": "read", "path": "f", "offset": 2**63 - 1},
        {"op": "read", "path": "f", "length": 2**64},
        {"op": "truncate", "path": "f", "size": True},
        {"op": "inspect", "token": "x"},
        {"op": "read_opened", "token": "x", "offset": 0, "length": 1},
        {"op": "page_opened", "token": "x", "max_entries": 1},
        {"op": "scan", "exclude": "f"},
        {"op": "scan", "exclude": ["\ud800"]},
        {"op": "blobs"},
        {"op": "apply"},
        {"op": "apply", "plan_bytes": 2**62},
        {"op": "write", "path": "f", "append": "yes"},
        {"op": "make_temporary", "prefix": "a/b"},
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_refused_and_the_next_one_is_answered(
    start: Start, root: Path, message: dict[str, Any]
) -> None:
    (root / "f").write_text("as it was")
    helper = start()
    assert helper.exchange(message, b"").message["error"]["code"] in (
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "RESOURCE_EXHAUSTED",
    )
    assert helper.ask("read", path="f")[1] == b"as it was"

"""Files over the wire: atomic writes, the error of each kind of failure with its absolute path, paths in all spellings."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from durable_protocol.cua.env.v1 import filesystem_pb2 as fs
from durable_protocol.durable.space.v1 import files_pb2 as files
from durable_space import paths
from durable_space.refusal import Refused
from durable_space.testing import Client, LocalDaemon, refusal


def write(client: Client, path: str, *pieces: bytes, **header: object) -> fs.WriteFileResponse:
    first = fs.WriteFileRequest(header=fs.WriteFileHeader(path=path, **header))  # type: ignore[arg-type]
    messages = [first, *(fs.WriteFileRequest(data=piece) for piece in pieces)]
    response: fs.WriteFileResponse = client.call(client.filesystem.WriteFile, iter(messages))
    return response


def read(client: Client, path: str, **options: object) -> bytes:
    request = fs.ReadFileRequest(path=path, **options)  # type: ignore[arg-type]
    return b"".join(message.chunk.data for message in client.call(client.filesystem.ReadFile, request))


def begin(client: Client, path: str) -> None:
    client.call(client.filesystem.BeginUpload, fs.BeginUploadRequest(header=fs.WriteFileHeader(path=path)))


@pytest.fixture
def root(shared_daemon: LocalDaemon, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own in the workspace."""
    made = shared_daemon.workspace / str(abs(hash(request.node.name)))
    made.mkdir()
    return made


def test_write_and_read_back(shared: Client, root: Path) -> None:
    response = write(shared, f"{root}/a", b"one ", b"two")
    assert response.sha256 == hashlib.sha256(b"one two").hexdigest()
    assert (response.entry.size, response.entry.mode, response.entry.path) == (7, 0o644, f"{root}/a")
    assert read(shared, f"{root}/a") == b"one two"
    assert read(shared, f"{root}/a", offset=2, length=3) == b"e t"
    assert read(shared, f"{root}/a", offset=99) == b""


def test_write_keeps_the_mode_and_writes_through_a_symlink(shared: Client, root: Path) -> None:
    (root / "real").write_text("old")
    (root / "real").chmod(0o750)
    (root / "link").symlink_to("real")
    write(shared, f"{root}/link", b"new")
    assert (root / "link").is_symlink()
    assert ((root / "real").read_text(), (root / "real").stat().st_mode & 0o777) == ("new", 0o750)


def test_append_and_create_new(shared: Client, root: Path) -> None:
    write(shared, f"{root}/a", b"1", mode=fs.WRITE_MODE_APPEND)
    write(shared, f"{root}/a", b"2", mode=fs.WRITE_MODE_APPEND)
    assert (root / "a").read_text() == "12"
    told = refusal(lambda: write(shared, f"{root}/a", b"3", mode=fs.WRITE_MODE_CREATE_NEW))
    assert (told.code, told.reason, told.metadata["path"]) == ("ALREADY_EXISTS", "PATH_EXISTS", f"{root}/a")
    assert (root / "a").read_text() == "12"


def test_write_that_is_not_what_it_says_changes_nothing(shared: Client, root: Path) -> None:
    (root / "a").write_text("old")
    for header in ({"expected_size": 9}, {"expected_sha256": "00"}):
        told = refusal(lambda header=header: write(shared, f"{root}/a", b"new", **header))  # type: ignore[misc]
        assert (told.code, told.reason) == ("FAILED_PRECONDITION", "CHECKSUM_MISMATCH")
    assert os.listdir(root) == ["a"]
    assert (root / "a").read_text() == "old"


def test_large_file_in_pieces(shared: Client, root: Path) -> None:
    data = os.urandom(5 << 20)
    write(shared, f"{root}/big", *(data[start : start + (1 << 20)] for start in range(0, len(data), 1 << 20)))
    assert read(shared, f"{root}/big") == data


def test_daemon_killed_before_the_rename_leaves_the_old_file_and_nothing_else(daemon: LocalDaemon) -> None:
    client = daemon.start(crash="files.temporary_synced")
    (daemon.workspace / "a").write_text("old")
    with pytest.raises(grpc.RpcError):
        write(client, "a", b"new")
    assert daemon.wait_dead() == -signal.SIGKILL
    assert len(os.listdir(daemon.workspace)) == 2
    client = daemon.start()
    assert os.listdir(daemon.workspace) == ["a"]
    assert read(client, "a") == b"old"


def calls(client: Client, root: Path) -> dict[str, tuple[object, str, str, str]]:
    """What is called, and the code, reason and path that it must be refused with."""
    stat = lambda path: lambda: client.call(client.filesystem.Stat, fs.StatRequest(path=path))  # noqa: E731
    remove = lambda path, **o: lambda: client.call(client.filesystem.Remove, fs.RemoveRequest(path=path, **o))  # noqa: E731
    mkdir = lambda path: lambda: client.call(client.filesystem.MakeDir, fs.MakeDirRequest(path=path))  # noqa: E731
    move = lambda a, b: lambda: client.call(client.filesystem.Move, fs.MoveRequest(source=a, destination=b))  # noqa: E731
    flush = lambda path: lambda: client.call(client.files.Flush, files.FlushRequest(path=path))  # noqa: E731
    cut = lambda path, size=1: (  # noqa: E731
        lambda: client.call(client.files.Truncate, files.TruncateRequest(path=path, size=size))
    )
    canonical = lambda path: lambda: client.call(client.files.Canonical, files.CanonicalRequest(path=path))  # noqa: E731
    listing = lambda path: lambda: client.call(client.filesystem.ListDir, fs.ListDirRequest(path=path))  # noqa: E731
    gone, file, folder = f"{root}/gone", f"{root}/file", f"{root}/folder"
    missing, bad = ("NOT_FOUND", "PATH_NOT_FOUND"), ("INVALID_ARGUMENT", "UNSPECIFIED")
    is_dir, not_dir = ("FAILED_PRECONDITION", "IS_A_DIRECTORY"), ("FAILED_PRECONDITION", "NOT_A_DIRECTORY")
    return {
        "stat missing": (stat(gone), *missing, gone),
        "stat below a file": (stat(f"{file}/x"), *not_dir, f"{file}/x"),
        "list a file": (listing(file), *not_dir, file),
        "read a folder": (lambda: read(client, folder), *is_dir, folder),
        "read missing": (lambda: read(client, gone), *missing, gone),
        "write to a folder": (lambda: write(client, folder, b""), *is_dir, folder),
        "write without parent": (lambda: write(client, f"{gone}/x", b""), *missing, f"{gone}/x"),
        "remove missing": (remove(gone), *missing, gone),
        "remove full folder": (remove(folder), *is_dir, folder),
        "make folder over file": (mkdir(file), "ALREADY_EXISTS", "PATH_EXISTS", file),
        "make folder without parent": (mkdir(f"{gone}/x"), *missing, f"{gone}/x"),
        "move missing names the source": (move(gone, file), *missing, gone),
        "move onto something": (move(file, folder), "ALREADY_EXISTS", "PATH_EXISTS", folder),
        "flush missing": (flush(gone), *missing, gone),
        "flush folder": (flush(folder), *is_dir, folder),
        "truncate missing": (cut(gone), *missing, gone),
        "truncate folder": (cut(folder), *is_dir, folder),
        "canonical missing": (canonical(gone), *missing, gone),
        "write to a symlink loop": (lambda: write(client, f"{root}/loop", b""), *bad, f"{root}/loop"),
        "append to a symlink loop": (
            lambda: write(client, f"{root}/loop", b"", mode=fs.WRITE_MODE_APPEND),
            *bad,
            f"{root}/loop",
        ),
        "upload to a symlink loop": (lambda: begin(client, f"{root}/loop"), *bad, f"{root}/loop"),
        "truncate beyond any file": (cut(file, 2**63), *bad, file),
        "pipe is no file": (lambda: read(client, f"{root}/pipe"), "INVALID_ARGUMENT", "UNSPECIFIED", f"{root}/pipe"),
    }


def test_each_failure_has_its_code_and_the_absolute_path(shared: Client, root: Path) -> None:
    (root / "file").write_text("x")
    (root / "folder").mkdir()
    (root / "folder" / "inner").write_text("x")
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    for name, (call, code, reason, path) in calls(shared, root).items():
        told = refusal(call)  # type: ignore[arg-type]
        assert (name, told.code, told.reason, told.metadata["path"]) == (name, code, reason, path)
    assert sorted(os.listdir(root)) == ["file", "folder", "loop", "pipe"]
    assert (root / "loop").is_symlink()


def test_symlink_itself_or_its_target(shared: Client, root: Path) -> None:
    (root / "file").write_text("abc")
    (root / "link").symlink_to("file")
    (root / "dangling").symlink_to("nowhere")

    def stat(name: str, follow: bool) -> fs.EntryInfo:
        request = fs.StatRequest(path=f"{root}/{name}", no_follow_symlinks=not follow)
        entry: fs.EntryInfo = shared.call(shared.filesystem.Stat, request).entry
        return entry

    assert (stat("link", False).type, stat("link", False).symlink_target) == (fs.FILE_TYPE_SYMLINK, "file")
    assert (stat("link", True).type, stat("link", True).size) == (fs.FILE_TYPE_FILE, 3)
    assert stat("dangling", False).type == fs.FILE_TYPE_SYMLINK
    assert refusal(lambda: stat("dangling", True)).code == "NOT_FOUND"
    canonical = shared.call(shared.files.Canonical, files.CanonicalRequest(path=f"{root}/link"))
    assert canonical.path == f"{root.resolve()}/file"
    shared.call(shared.filesystem.Remove, fs.RemoveRequest(path=f"{root}/link"))
    assert (root / "file").exists()


def test_listing_in_depth_and_pages(shared: Client, root: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (root / name).mkdir()
        (root / name / "inner").write_text("x")

    def names(**options: object) -> list[str]:
        found: list[str] = []
        token = ""
        while True:
            request = fs.ListDirRequest(path=str(root), page_token=token, **options)  # type: ignore[arg-type]
            page = shared.call(shared.filesystem.ListDir, request)
            found += [os.path.relpath(entry.path, root) for entry in page.entries]
            token = page.next_page_token
            if not token:
                return found

    assert names() == ["a", "b"]
    assert names(depth=2, page_size=1) == ["a", "a/inner", "b", "b/inner"]
    assert names(include_hidden=True) == [".hidden", "a", "b"]


def test_move_replaces_atomically_when_asked(shared: Client, root: Path) -> None:
    (root / "a").write_text("a")
    (root / "b").write_text("b")
    request = fs.MoveRequest(source=f"{root}/a", destination=f"{root}/b", overwrite=True)
    assert shared.call(shared.filesystem.Move, request).entry.path == f"{root}/b"
    assert (os.listdir(root), (root / "b").read_text()) == (["b"], "a")


def test_truncate_cuts_and_extends(shared: Client, root: Path) -> None:
    (root / "a").write_bytes("aä".encode())
    for size, content in ((2, b"a\xc3"), (4, b"a\xc3\0\0"), (0, b"")):
        shared.call(shared.files.Truncate, files.TruncateRequest(path=f"{root}/a", size=size))
        assert (root / "a").read_bytes() == content


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [(b"", True)]),
        (b"a\r\nb", [(b"a\r", True), (b"b", False)]),
        (b"x" * 3_000_000 + b"\ny\n", [(b"x" * 3_000_000, True), (b"y", True)]),
    ],
)
def test_lines_end_at_lf_alone(shared: Client, root: Path, content: bytes, lines: list[tuple[bytes, bool]]) -> None:
    (root / "a").write_bytes(content)

    def ask(limit: int) -> Iterator[tuple[bytes, bool]]:
        for message in shared.call(shared.files.ReadLines, files.ReadLinesRequest(path=f"{root}/a", max_lines=limit)):
            for line in message.lines:
                yield line.text, line.terminated

    assert list(ask(0)) == lines
    assert list(ask(1)) == lines[:1]


def test_temporary_file_and_folder_are_new_and_empty(shared: Client) -> None:
    made = [
        Path(shared.call(shared.files.MakeTemp, files.MakeTempRequest(prefix="p-", suffix=".txt")).path)
        for _ in range(2)
    ]
    folder = Path(shared.call(shared.files.MakeTemp, files.MakeTempRequest(directory=True)).path)
    assert made[0] != made[1]
    for path in made:
        assert path.read_bytes() == b""
        assert (path.name[:2], path.suffix) == ("p-", ".txt")
    assert list(folder.iterdir()) == []
    for path in (*(path.parent for path in made), folder):
        shared.call(shared.filesystem.Remove, fs.RemoveRequest(path=str(path), recursive=True))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a/b", "/w/a/b"),
        ("/a/../b", "/b"),
        (".", "/w"),
        ("~", "/home/u"),
        ("~/x", "/home/u/x"),
        ("~other/x", "/w/~other/x"),
        ("file:///a%20b", "/a b"),
        ("file://localhost/a", "/a"),
        ("file://elsewhere/a", "/w/file:/elsewhere/a"),
        ("file:a", "/w/file:a"),
    ],
)
def test_path_in_all_spellings(monkeypatch: pytest.MonkeyPatch, text: str, path: str) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert paths.absolute(text, Path("/w")) == path


@pytest.mark.parametrize("text", ["", "a\0b"])
def test_path_that_is_none(text: str) -> None:
    with pytest.raises(Refused):
        paths.absolute(text, Path("/w"))


def test_a_folder_that_a_command_nested_deep_can_be_removed(shared: Client) -> None:
    nest = "import os\nos.mkdir('deep'); os.chdir('deep')\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    assert shared.run("nest", ["python3", "-c", nest]).end.exit_code == 0
    shared.call(shared.filesystem.Remove, fs.RemoveRequest(path="deep", recursive=True))
    assert refusal(lambda: shared.call(shared.filesystem.Stat, fs.StatRequest(path="deep"))).code == "NOT_FOUND"

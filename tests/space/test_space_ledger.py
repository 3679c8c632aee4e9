"""The ledger: what it answers for a key and a prefix, its numbers, a full disk, and rows by the hundred thousand."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from durable_base.command import command_hash
from durable_base.floor import Floor
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_space.index import RowIndex
from durable_space.ledger import Ledger
from durable_space.refusal import Refused
from durable_space.rows import CommandConfig, Row
from durable_space.testing import Client, LocalDaemon, error_info, until

E1, E2, E3 = "1" * 32, "2" * 32, "3" * 32


def seq(client: Client) -> int:
    return int(client.call(client.space.GetInfo, durable.GetInfoRequest()).ledger_seq)


def forget(client: Client, prefix: str) -> int:
    return int(client.call(client.ledger.Forget, durable.ForgetRequest(prefix=prefix)).rows)


def test_lookup_answers_for_all_epochs_of_one_key_newest_first(space: Client, daemon: LocalDaemon) -> None:
    """Rule 6: with command hash and boot of each, before and after a restart; a longer key is another one."""
    space.advance(1, E1)
    space.as_driver(1, E1).start("log/1:1:0@1", "sleep 60")
    space.as_driver(1, E1).run("log/1:1:01@1", "exit 9")
    space.advance(2, E2)
    space.as_driver(2, E2).start("log/1:1:0@2", "sleep 61")
    space.advance(3, E3)
    space.as_driver(3, E3).run("log/1:1:0@3", "exit 7")
    for client in (space, daemon.restart()):
        records = client.lookup("log/1:1:0")
        assert [(record.epoch, record.request_id) for record in records] == [
            (3, "log/1:1:0@3"), (2, "log/1:1:0@2"), (1, "log/1:1:0@1"),
        ]  # fmt: skip
        assert [record.state for record in records] == [
            durable.COMMAND_STATE_EXITED, durable.COMMAND_STATE_KILLED, durable.COMMAND_STATE_KILLED,
        ]  # fmt: skip
        assert [record.command_hash for record in records] == [
            command_hash("/bin/sh", ["-c", text], {}, "", "", None) for text in ("exit 7", "sleep 61", "sleep 60")
        ]
        assert {record.boot_id for record in records} == {daemon.announced["boot"]}
        assert len(client.lookup("log/1:1:01")) == 1
        assert client.lookup("log/1:1") == []


def test_equal_calls_of_two_logs_are_two_commands(space: Client, daemon: LocalDaemon) -> None:
    """Rule 7: the key begins with the log's id, so the second log gets neither the first one's result nor its row."""
    for log in ("a" * 32, "b" * 32):
        assert not space.run(f"{log}/1:7:0@0", "echo ran >> ran").start.deduplicated
    assert (daemon.workspace / "ran").read_text() == "ran\nran\n"
    assert forget(space, "a" * 32 + "/") == 1
    assert space.lookup("a" * 32 + "/1:7:0") == []
    assert space.state("b" * 32 + "/1:7:0") == "exited"


def test_number_of_rows_ever_written_never_falls(space: Client, daemon: LocalDaemon) -> None:
    """Rule 28: one more with each row, whatever comes of it and whatever is forgotten, and it outlives kill -9."""
    assert seq(space) == 0
    for number in range(1, 4):
        space.run(f"log/1:{number}:0@0", "true")
        assert seq(space) == number
    space.run("log/1:3:0@0", "true")
    assert seq(space) == 3, "a replay is no row"
    assert forget(space, "log/") == 3
    space = daemon.restart()
    assert seq(space) == 3
    space.run("log/1:1:0@0", "true")
    assert seq(space) == 4
    assert seq(daemon.restart()) == 4


def row(number: int, request_id: str, tag: str = "") -> Row:
    return Row(number, request_id, tag or request_id, CommandConfig("true"), Floor(), "boot", 0)


def test_index_finds_rows_by_each_name_and_forgets_them_whole() -> None:
    index = RowIndex()
    rows = [row(1, "k@1", "t"), row(2, "k@2", "t"), row(3, "other", "k@1"), row(4, "k")]
    for one in rows:
        index.keep(one)
        index.keep(one)  # a row that has changed comes again
    assert sorted(found.seq for found in index.by_key("k")) == [1, 2, 4]
    assert (index.by_request("k@2"), index.by_request("none")) == (rows[1], None)
    newest = [index.by_tag(name) for name in ("t", "k@1", "other", "none")]
    assert newest == [rows[1], rows[0], rows[2], None], "a tag of another command never stands before a request id"
    index.drop(rows[1])
    assert index.by_tag("t") == rows[0]
    for one in (*rows, rows[1]):
        index.drop(one)
    assert (index.rows, index.all_keys(), index.by_tag("k@1"), index.by_key("k")) == ({}, [], None, [])


def test_forget_drops_every_row_of_a_long_conversation_while_others_start(
    make_patched: Callable[..., LocalDaemon],
) -> None:
    """More rows than are dropped in one step; two callers at once drop each row once."""
    preface = "from durable_space import forgetting\nforgetting.ROWS_AT_ONCE = 5"
    daemon = make_patched(preface, "--kill-mechanism", "subreaper")
    space = daemon.start()
    for number in range(12):
        space.run(f"log/1:{number}:0@0", "echo x")
    counts: list[int] = []
    callers = [threading.Thread(target=lambda: counts.append(forget(space, "log/"))) for _ in range(2)]
    for thread in callers:
        thread.start()
    assert space.run("other/1:1:0@0", "echo on").stdout == b"on\n"
    for thread in callers:
        thread.join()
    assert sum(counts) == 12
    assert [space.state(f"log/1:{number}:0") for number in range(12)] == [""] * 12
    folders = daemon.data / "commands"
    until(lambda: {path.name for path in folders.iterdir() if (path / "out").exists()} == {f"{13:016x}"})


SLOW_REMOVALS = """
import time
from durable_space.removals import Removals
work = Removals._work
Removals._work = lambda self: (time.sleep(1), work(self))
"""


def test_folders_of_rows_that_are_gone_are_removed_by_the_next_daemon(
    make_patched: Callable[..., LocalDaemon],
) -> None:
    """Killed between the rows and their folders; and those that were made ahead, whose numbers are still to come, at once."""
    daemon = make_patched(SLOW_REMOVALS, "--kill-mechanism", "subreaper")
    space = daemon.start()
    space.run("log/1:1:0@0", "echo kept")
    folders = daemon.data / "commands"
    (folders / f"{1:016x}").rename(folders / "saved")
    space.run("log/1:2:0@0", "echo x")
    forget(space, "log/1:1:0")
    daemon.kill()
    (folders / "saved").rename(folders / f"{1:016x}")
    (folders / f"{3:016x}").mkdir()
    (folders / f"{3:016x}" / "stdin").touch()  # nothing of it may be met by the row that gets this number
    space = daemon.start()
    assert space.run("log/1:3:0@0", "echo on").stdout == b"on\n"
    assert not (folders / f"{3:016x}" / "stdin").exists()
    until(lambda: not (folders / f"{1:016x}").exists())
    assert space.run("log/1:2:0@0", "echo x").stdout == b"x\n"


# ---- a full disk


def test_ledger_that_cannot_grow_says_so_and_keeps_nothing_of_the_step(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", 0)
    config = CommandConfig("true", ("x" * 3000,))

    def allow(pages: int) -> None:
        ledger._writer.run(lambda db: db.execute(f"pragma max_page_count = {pages}")).result()

    def reserve_all() -> None:
        for number in range(5000):
            ledger.reserve(f"{number}", "t", config, Floor(), "boot").result()

    allow(1)  # as it is
    with pytest.raises(Refused) as caught:
        reserve_all()
    assert caught.value.metadata["condition"] == "DiskFull"
    rows = set(ledger.rows)
    assert ledger.by_request(str(len(rows))) is None
    allow(1 << 20)
    made = ledger.reserve("more", "t", config, Floor(), "boot").result()
    assert made.seq not in rows
    ledger.close()
    again = Ledger(tmp_path / "ledger.db", 0)
    assert set(again.rows) == rows | {made.seq}
    again.close()


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with about 24 MiB."""
    folder, image = tmp_path / "disk", tmp_path / "image"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)]
    if request.param == "ext4":
        image.touch()
        os.truncate(image, 40 << 20)
        made = ["mkfs.ext4", "-q", "-m", "0", str(image)]
        if shutil.which(made[0]) is None or subprocess.run(made, capture_output=True, check=False).returncode != 0:
            pytest.skip("mkfs.ext4 does not work here")
        words = ["mount", "-o", "loop", str(image), str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Until not one byte fits."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(b"\1" * size):
                    pass
            except OSError:
                continue
    return path


def test_disk_that_is_full_to_the_last_byte_is_told_before_anything_starts(small_disk: Path) -> None:
    """Without the reserve that is kept by default. Never half a record: once there is room, the same ids run, once each."""
    daemon = LocalDaemon(small_disk, "--kill-mechanism", "subreaper", "--free-bytes-min", "0")
    try:
        client = daemon.start()
        client.run("log/1:0:0@0", "echo before")
        for _ in range(3):
            filler = fill(small_disk)
            for number in range(1, 40):
                try:
                    client.run(f"log/1:{number}:0@0", f"echo ran >> {os.fspath(small_disk)}-ran-{number}")
                except grpc.RpcError as error:
                    code = error.code()  # type: ignore[attr-defined]
                    told = (code, error_info(error).metadata["condition"])
                    assert told == (grpc.StatusCode.RESOURCE_EXHAUSTED, "DiskFull"), f"{number}: {told}"
            refused = [number for number in range(1, 40) if not Path(f"{small_disk}-ran-{number}").exists()]
            assert refused, "there was room for all of them"
            for number in refused:
                assert client.state(f"log/1:{number}:0") in ("", "reserved", "never_started")
            filler.unlink()
            client = daemon.restart()
            assert client.state("log/1:0:0") == "exited"
            for number in range(1, 40):
                outcome = client.run(f"log/1:{number}:0@0", f"echo ran >> {os.fspath(small_disk)}-ran-{number}")
                assert outcome.end.exit_code == 0
                path = Path(f"{small_disk}-ran-{number}")
                assert path.read_text() == "ran\n"
            forget(client, "log/1:")
            for number in range(1, 40):
                Path(f"{small_disk}-ran-{number}").unlink()
            client.run("log/1:0:0@0", "echo before")
    finally:
        daemon.stop()


def test_command_that_fills_the_disk_is_ended_by_the_next_driver_and_by_a_daemon_that_restarts(
    small_disk: Path,
) -> None:
    """Rule 4: raising the floor, and killing, needs no room; else nobody could end what took it."""
    daemon = LocalDaemon(small_disk, "--kill-mechanism", "subreaper", "--free-bytes-min", "0")
    try:
        client = daemon.start()
        for epoch in (1, 3):
            client.advance(epoch, E1)
            driver = client.as_driver(epoch, E1)
            driver.start(f"log/1:{epoch}:0@{epoch}", "cat /dev/zero > big; touch full; exec sleep 60")
            until(lambda: (daemon.workspace / "full").exists())
            if epoch == 3:
                client = daemon.restart()
            assert client.advance(epoch + 1, E2).killed == 1
            assert client.state(f"log/1:{epoch}:0") == "killed"
            client = daemon.restart()
            assert client.state(f"log/1:{epoch}:0") == "killed"
            for name in ("big", "full"):
                (daemon.workspace / name).unlink()
            client.advance(epoch + 1, E2)
    finally:
        (daemon.workspace / "big").unlink(missing_ok=True)
        daemon.stop()

"""Faults at the worst moment: a daemon that is slow between two signals, held before a rename, in another boot, raced.

The faults are put into the daemon's own process (`make_patched`); zygotes, shims and commands are the real ones.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from durable_protocol.cua.env.v1 import filesystem_pb2 as fs
from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_protocol.durable.space.v1 import workspace_pb2 as workspace
from durable_space import procfs
from durable_space.testing import Client, LocalDaemon, collect, error_info, kill_mechanisms, until

E1, E2 = "1" * 32, "2" * 32
MakePatched = Callable[..., Any]
EPOCH_ROUNDS = int(os.environ.get("SPACE_EPOCH_ROUNDS", "30"))


def info(client: Client) -> durable.GetInfoResponse:
    response: durable.GetInfoResponse = client.call(client.space.GetInfo, durable.GetInfoRequest())
    return response


def refused_as(call: Callable[[], object]) -> str:
    """The condition that it is refused with; empty: it was done."""
    try:
        call()
    except grpc.RpcError as error:
        return error_info(error).metadata["condition"]
    return ""


# ---- one epoch, several drivers


def test_of_drivers_that_claim_one_epoch_at_once_one_gets_it(space: Client, daemon: LocalDaemon) -> None:
    """Rule 1: equal epochs, eight incarnations, at the same moment; the others' commands do not start."""
    incarnations = [f"{number:032x}" for number in range(1, 9)]
    for epoch in range(1, 6):
        with ThreadPoolExecutor(len(incarnations)) as pool:
            told = list(
                pool.map(lambda own, epoch=epoch: refused_as(lambda: space.advance(epoch, own)), incarnations)  # type: ignore[misc]
            )
        assert sorted(told) == ["", *["StaleEpoch"] * 7]
        winner = incarnations[told.index("")]
        assert (info(space).floor.epoch, info(space).floor.incarnation) == (epoch, winner)
        for own in incarnations:
            driver = space.as_driver(epoch, own)
            request_id, words = f"log/{own}:1:0@{epoch}", f"echo {own} >> ran"
            started = refused_as(lambda driver=driver, name=request_id, words=words: driver.run(name, words))  # type: ignore[misc]
            assert started == ("" if own == winner else "StaleEpoch")
        assert (daemon.workspace / "ran").read_text().splitlines()[epoch - 1 :] == [winner]


def test_of_two_daemons_started_at_once_on_one_folder_one_serves(tmp_path: Path) -> None:
    """Rule 36: the other says what to do, and the first answers."""
    first = LocalDaemon(tmp_path, "--kill-mechanism", "subreaper")
    second = LocalDaemon(tmp_path, "--kill-mechanism", "subreaper")
    second.log = tmp_path / "second.log"
    for one in (first, second):
        one.spawn()
    try:
        ended = until(lambda: [one for one in (first, second) if one.process and one.process.poll() is not None], 20)
        assert len(ended) == 1, "both ended"
        serving = second if ended[0] is first else first
        assert ended[0].wait_dead() == 2
        told = ended[0].log.read_text()
        assert "another daemon" in told
        assert "stop that one, or name another folder" in told
        serving.wait_ready()
        assert serving.client().run("on", "echo on").stdout == b"on\n"
    finally:
        for one in (first, second):
            if one.process is not None:
                one.terminate()


# ---- between two signals

SLOW_SIGNALS = """
import os, random, time
from durable_space import procfs
chance = random.Random(10)
def late(call):
    def wait_and_send(*arguments):
        time.sleep(chance.random() * 0.004)
        return call(*arguments)
    return wait_and_send
procfs.send_signal = late(procfs.send_signal)
os.kill = late(os.kill)
"""


def test_command_that_is_killed_slowly_is_never_an_exit(make_patched: MakePatched, mechanism: str) -> None:
    """Rule 10: up to 4 ms between two signals. A shell that would go on once its `sleep` is dead; and one that reads from
    a `sleep` started before it, so whoever kills in the order of process ids lets it go on."""
    daemon = make_patched(SLOW_SIGNALS, "--kill-mechanism", mechanism)
    client = daemon.start()
    script = (
        "mkfifo pipe-$$; sleep 9 > pipe-$$ & (read line < pipe-$$; touch went-on-$$) & sleep 9 || true; touch done-$$"
    )
    for round_number in range(EPOCH_ROUNDS):
        epoch, key = 2 * round_number + 1, f"log/1:{round_number}:0"
        client.advance(epoch, E1)
        client.as_driver(epoch, E1).start(f"{key}@{epoch}", f"exec 2>/dev/null; {script}")
        if round_number % 2:
            until(lambda: list(daemon.workspace.glob("pipe-*")))
        client.advance(epoch + 1, E2)
        (record,) = client.lookup(key)
        assert (record.state, record.killed_by) == (durable.COMMAND_STATE_KILLED, epoch + 1)
        for pipe in daemon.workspace.glob("pipe-*"):
            pipe.unlink()
        assert list(daemon.workspace.iterdir()) == []


def test_commands_that_are_stopped_and_end_cleanly_are_lost(
    make_daemon: Callable[..., LocalDaemon], mechanism: str
) -> None:
    """Rule 10: SIGTERM to a daemon with --stop-commands; one traps it and ends with 0, one has ended before."""
    daemon = make_daemon("--kill-mechanism", mechanism, "--stop-commands")
    client = daemon.start()
    client.run("log/1:1:0@0", "exit 0")
    client.start("log/1:2:0@0", "trap 'exit 0' TERM; touch ready; while :; do sleep 0.02; done")
    until(lambda: (daemon.workspace / "ready").exists())
    assert daemon.terminate() == 0
    assert daemon.record(2).exit is not None
    client = daemon.start()
    assert [client.state(f"log/1:{number}:0") for number in (1, 2)] == ["exited", "lost"]


# ---- a zygote that comes late


@pytest.mark.parametrize("noted", [True, False], ids=["its note is there", "its note is lost"])
def test_request_in_the_hands_of_a_zygote_that_wakes_after_the_advance_never_starts(
    daemon: LocalDaemon, noted: bool
) -> None:
    """Rule 9. (1) The zygote stops before its first fork; a request lies in its queue. (2) The daemon is killed. (3) The next
    one advances. (4) The old zygote, if nobody ended it, goes on: its shims read the request, see the floor, and leave."""
    client = daemon.start(crash="zygote.before_fork=stop")
    zygote, start = daemon.zygote, procfs.start_of(daemon.zygote)
    until(lambda: (found := procfs.read(zygote)) is not None and found.stopped)
    request = cua.StartProcessRequest(
        config=cua.ProcessConfig(command="touch", args=["ran"]), request_id="log/1:1:0@0", tag="t"
    )
    stream = client.processes.StartProcess(request, timeout=30)  # 1
    until(lambda: client.state("log/1:1:0") == "reserved")
    time.sleep(0.05)
    stream.cancel()
    daemon.kill()  # 2
    if not noted:
        (daemon.data / "zygote").unlink()
    try:
        client = daemon.start()
        assert procfs.is_alive(zygote, start) != noted
        client.advance(2, E2)  # 3
        assert client.state("log/1:1:0") == "never_started"
        procfs.send_signal(zygote, start, signal.SIGCONT)  # 4
        until(lambda: not procfs.is_alive(zygote, start))
    finally:
        procfs.send_signal(zygote, start, signal.SIGKILL)
    assert client.state("log/1:1:0") == "never_started"
    assert daemon.record(1).claim is None
    assert not (daemon.workspace / "ran").exists()


# ---- a change that is under way

HELD_RENAMES = """
import os, time
gate = os.environ["RENAME_GATE"]
def held(call):
    def wait_and_rename(*arguments, **more):
        if os.path.exists(gate + "/hold"):
            open(gate + "/reached", "w").close()
            while not os.path.exists(gate + "/go"):
                time.sleep(0.002)
        return call(*arguments, **more)
    return wait_and_rename
os.rename = held(os.rename)
"""


def write(client: Client, path: str) -> None:
    header = fs.WriteFileHeader(path=path)
    client.call(
        client.filesystem.WriteFile, iter([fs.WriteFileRequest(header=header), fs.WriteFileRequest(data=b"new")])
    )


def commit_upload(client: Client, path: str) -> None:
    begun = fs.BeginUploadRequest(upload_id=path, header=fs.WriteFileHeader(path=path))
    client.call(client.filesystem.BeginUpload, begun)
    client.call(client.filesystem.UploadChunk, fs.UploadChunkRequest(upload_id=path, data=b"new"))
    client.call(client.filesystem.CommitUpload, fs.CommitUploadRequest(upload_id=path))


def apply(client: Client, path: str) -> None:
    """Two files, so that one is still to come when the first is held."""
    sha256 = hashlib.sha256(b"new").digest()
    entries = [
        workspace.PathEntry(path=name, kind=workspace.PATH_KIND_FILE, mode=0o644, size=3, sha256=sha256)
        for name in (path.encode(), b"second-" + path.encode())
    ]
    client.apply(entries, blobs={sha256: b"new"})


def move(client: Client, path: str) -> None:
    client.call(client.filesystem.Move, fs.MoveRequest(source="kept", destination=path))


CHANGES = {"write": write, "upload": commit_upload, "Apply": apply, "move": move}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_that_is_held_before_its_rename_holds_back_the_advance(
    make_patched: MakePatched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Client, str], None]
) -> None:
    """Rule 26: (1) e1 is about to rename. (2) e2 advances and waits. (3) e1 asks for another change: refused. (4) The rename
    is let go. (5) After the answer nothing of e1 changes anything, what is left of an Apply neither."""
    held = tmp_path / "gate"
    held.mkdir()
    monkeypatch.setenv("RENAME_GATE", str(held))
    daemon = make_patched(HELD_RENAMES, "--kill-mechanism", "subreaper")
    client = daemon.start()
    (daemon.workspace / "kept").write_text("kept")
    client.advance(1, E1)
    e1 = client.as_driver(1, E1)
    (held / "hold").touch()
    with ThreadPoolExecutor(3) as pool:
        under_way = pool.submit(refused_as, lambda: change(e1, "slow"))
        try:
            until(lambda: (held / "reached").exists())  # 1
            (held / "hold").unlink()
            advance = pool.submit(client.advance, 2, E2)  # 2
            time.sleep(0.1)
            late = pool.submit(refused_as, lambda: write(e1, "late"))  # 3
            time.sleep(0.1)
            assert not advance.done()
        finally:
            (held / "go").touch()  # 4
        assert advance.result(20).floor.epoch == 2
        after = {path.name: path.read_bytes() for path in daemon.workspace.iterdir() if path.name[0] != "."}
        assert after["slow"] == (b"kept" if change is move else b"new")
        assert late.result(20) == "StaleEpoch"
        assert under_way.result(20) == ("StaleEpoch" if change is apply else "")
    assert refused_as(lambda: change(e1, "again")) == "StaleEpoch"
    assert {path.name: path.read_bytes() for path in daemon.workspace.iterdir()} == after  # 5
    assert list((daemon.data / "staging").iterdir()) == []


# ---- another boot

ANOTHER_BOOT = "from durable_space import identity\nidentity.boot_id = lambda: '{boot}' * 16\n"


def test_exit_record_that_outlived_its_files_is_not_believed_in_another_boot(make_patched: MakePatched) -> None:
    """Rule 13: power loss kept the exit record and lost what the command wrote (size and times are as they were)."""
    daemon = make_patched(ANOTHER_BOOT.format(boot="aa"), "--kill-mechanism", "subreaper")
    client = daemon.start()
    client.run("log/1:1:0@0", "echo result > file; touch -d 2001-01-01 file")
    time.sleep(0.1)  # older than a clock tick, or the cache does not take it
    before = client.scan()[b"file"]
    daemon.kill()
    path = daemon.workspace / "file"
    status = path.stat()
    with path.open("r+b") as file:  # the same inode
        file.write(b"\0" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    daemon.preface = ANOTHER_BOOT.format(boot="bb")
    client = daemon.start()
    (record,) = client.lookup("log/1:1:0")
    assert (record.state, record.boot_id) == (durable.COMMAND_STATE_LOST, "aa" * 16)
    assert info(client).boot_id == "bb" * 16
    assert client.scan()[b"file"].sha256 != before.sha256
    assert client.run("log/1:1:0@0", "echo result > file; touch -d 2001-01-01 file").end.lost
    assert path.read_bytes() == b"\0" * status.st_size, "it ran again by itself"


# ---- shims that are killed

SURVIVORS = {
    "keeps its environment": "cd /; exec setsid sh -c 'while :; do date >> $BEAT; sleep 0.01; done'",
    "works in the workspace": "exec env -i setsid sh -c 'while :; do date >> beat; sleep 0.01; done'",
    "has a file open there": "cd /; exec env -i setsid sh -c 'exec >> $0; while :; do date; sleep 0.01; done' $BEAT",
    "stays in the session": "cd /; exec env -i sh -c 'while :; do date >> $0; sleep 0.01; done' $BEAT",
}


@pytest.mark.parametrize("survivor", SURVIVORS.values(), ids=SURVIVORS)
def test_writer_whose_shim_and_daemon_were_killed_together_is_dead_or_fails_the_proof(
    daemon: LocalDaemon, survivor: str
) -> None:
    """Rule 27: a double fork that writes every 10 ms; never an answer while it writes."""
    client = daemon.start()
    beat = daemon.workspace / "beat"
    client.start("log/1:1:0@0", f"({survivor} &) & wait; sleep 60", env={"BEAT": str(beat)})
    until(lambda: beat.exists() and beat.stat().st_size)
    shim = daemon.shim(1)
    family = procfs.descendants(procfs.table(), [shim])
    starts = {pid: procfs.start_of(pid) for pid in family}
    assert daemon.process is not None
    os.kill(shim, signal.SIGKILL)
    daemon.kill()
    try:
        client = daemon.start()
        assert client.state("log/1:1:0") == "lost"
        told = refused_as(lambda: client.advance(1, E1))
        size = beat.stat().st_size
        time.sleep(0.1)
        assert told in ("", "ProofFailed")
        if told == "":
            assert beat.stat().st_size == size, "it writes on after the answer"
        assert client.call(client.space.GetInfo, durable.GetInfoRequest()).floor.epoch == 1
    finally:
        for pid, start in starts.items():
            procfs.send_signal(pid, start, signal.SIGKILL)
    until(lambda: not any(procfs.is_alive(pid, start) for pid, start in starts.items()))
    assert refused_as(lambda: client.advance(1, E1)) == ""


@pytest.mark.parametrize("mechanism", [name for name in kill_mechanisms() if name != "subreaper"])
def test_writer_that_no_audit_would_find_is_dead_where_the_kernel_holds_it(
    make_daemon: Callable[..., LocalDaemon], mechanism: str
) -> None:
    """Rule 27: shim and daemon killed; a process without its environment, in a session of its own, outside the workspace."""
    daemon = make_daemon("--kill-mechanism", mechanism)
    client = daemon.start()
    beat = daemon.workspace / "beat"
    hidden = "cd /; exec env -i setsid sh -c 'while :; do date >> $0; sleep 0.01; done' $BEAT"
    client.start("log/1:1:0@0", f"({hidden} &) & wait; sleep 60", env={"BEAT": str(beat)})
    until(lambda: beat.exists() and beat.stat().st_size)
    shim = daemon.shim(1)
    os.kill(shim, signal.SIGKILL)
    daemon.kill()
    client = daemon.start()
    client.advance(1, E1)
    size = beat.stat().st_size
    time.sleep(0.1)
    assert beat.stat().st_size == size
    assert client.state("log/1:1:0") == "lost"


def test_lost_command_is_not_forgotten_before_its_end_is_proven(daemon: LocalDaemon) -> None:
    """Rule 27: its row is what the next proof looks by; without it a survivor would go unnoticed."""
    client = daemon.start()
    client.start("log/1:1:0@0", "(setsid sleep 60 &) ; echo $$ > pid; exec sleep 60")
    until(lambda: (daemon.workspace / "pid").exists())
    shim = daemon.shim(1)
    family = procfs.descendants(procfs.table(), [shim])
    starts = {pid: procfs.start_of(pid) for pid in family}
    os.kill(shim, signal.SIGKILL)
    until(lambda: client.state("log/1:1:0") == "lost")

    def forget() -> int:
        return int(client.call(client.ledger.Forget, durable.ForgetRequest(prefix="log/")).rows)

    assert refused_as(forget) == "StillRunning"
    client.call(client.space.KillAll, durable.KillAllRequest())
    assert not any(procfs.is_alive(pid, start) for pid, start in starts.items())
    assert forget() == 1


COMMAND, SHIM = '"pid": ', '"shim": '


@pytest.mark.parametrize(
    ("field", "group"),
    [(COMMAND, False), (COMMAND, True), (SHIM, True)],
    ids=["for the command", "for the command's group", "for the shim"],
)
def test_stranger_whose_process_id_stands_in_a_record_gets_no_signal(
    daemon: LocalDaemon, field: str, group: bool
) -> None:
    """Neither by SignalProcess, nor by an epoch, nor by KillAll, nor at the daemon's end."""
    daemon.options.append("--stop-commands")
    client = daemon.start()
    client.start("log/1:1:0@0", "sleep 60")
    shim = daemon.shim(1)
    family = {pid: procfs.start_of(pid) for pid in (shim, *procfs.descendants(procfs.table(), [shim]))}
    own = shim if field == SHIM else int((daemon.record(1).started or {})["pid"])
    time.sleep(0.02)  # the kernel counts start times in hundredths of a second
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        path = daemon.data / "commands" / f"{1:016x}" / "record"
        assert len(str(own)) == len(str(stranger.pid))
        path.write_bytes(path.read_bytes().replace(f"{field}{own},".encode(), f"{field}{stranger.pid},".encode(), 1))
        client = daemon.restart()
        request = cua.SignalProcessRequest(
            process=cua.ProcessSelector(tag="log/1:1:0@0"), signal=cua.SIGNAL_KILL, process_group=group
        )
        with suppress(grpc.RpcError):
            client.call(client.processes.SignalProcess, request)
        with suppress(grpc.RpcError):
            client.advance(1, E1)
        driver = client.as_driver(1, E1)
        with suppress(grpc.RpcError):
            driver.call(driver.space.KillAll, durable.KillAllRequest())
        daemon.terminate()
        assert stranger.poll() is None
    finally:
        for pid, start in family.items():
            procfs.send_signal(pid, start, signal.SIGKILL)
        stranger.kill()
        stranger.wait()


# ---- files that change under the reader


def test_bytes_that_change_under_the_reader_are_never_taken_for_the_scanned_ones(
    space: Client, daemon: LocalDaemon
) -> None:
    """Rule 37: a background writer rewrites a file of three pieces in place, over and over."""
    events = space.start(
        "writer",
        "while [ ! -e stop ]; do dd if=/dev/urandom of=file bs=100000 count=7 conv=notrunc 2>/dev/null; sleep 0.004; done",
    )
    (daemon.workspace / "steady").write_bytes(b"steady" * 50_000)
    until(lambda: (daemon.workspace / "file").exists())
    told = []
    for _ in range(40):
        table = space.scan()
        for path in (b"file", b"steady"):
            try:
                (data,) = space.read_blobs([table[path].sha256]).values()
            except grpc.RpcError as error:
                told.append((path, error_info(error).metadata["condition"]))
            else:
                assert hashlib.sha256(data).digest() == table[path].sha256
    (daemon.workspace / "stop").touch()
    collect(events)
    assert set(told) == {(b"file", "BlobChanged")}, "nothing else, and this at least once: else nothing was tested"

"""kill -9 of daemon, zygote and shim, at every named point: no command lost, none run twice, no output missing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import grpc
import pytest

from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_space import procfs
from durable_space._zygote import SPARE
from durable_space.layout import record_file
from durable_space.testing import Client, LocalDaemon, collect, kill_mechanisms, refusal, until


@pytest.fixture(params=[name for name in kill_mechanisms() if name != "cgroup2"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    """With both ways to start a command: as the shim's child, and inside of a namespace."""
    made = LocalDaemon(tmp_path, "--kill-mechanism", request.param)
    yield made
    made.stop()


TWICE = "echo ran >> ran.txt; echo out; exit 5"


def attempt(client: Client, request_id: str, command: str) -> None:
    """A call that the crash cuts off."""
    with pytest.raises(grpc.RpcError):
        client.run(request_id, command)


def ran(daemon: LocalDaemon) -> int:
    path = daemon.workspace / "ran.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("point", ["ledger.reserved_synced"])
def test_daemon_killed_after_the_reservation_knows_it_and_runs_it_once(daemon: LocalDaemon, point: str) -> None:
    client = daemon.start(crash=point)
    attempt(client, "log/1:1:0@0", TWICE)
    assert daemon.wait_dead() == -signal.SIGKILL
    assert ran(daemon) == 0
    client = daemon.start()
    assert client.state("log/1:1:0") == "reserved"
    outcome = client.run("log/1:1:0@0", TWICE)
    assert (outcome.stdout, outcome.end.exit_code, ran(daemon)) == (b"out\n", 5, 1)
    assert client.run("log/1:1:0@0", TWICE).start.deduplicated
    assert ran(daemon) == 1


def test_zygote_killed_before_it_forks_is_replaced_and_the_command_runs_once(daemon: LocalDaemon) -> None:
    """Each zygote dies at its sixth fork, the second after it has made those that wait; the daemon asks the next one."""
    client = daemon.start(crash="zygote.before_fork:6")
    zygotes, held = {daemon.zygote}, []
    for number in range(8):  # none of them ends, so each needs a shim of its own
        held.append(client.start(f"log/1:{number}:0@0", f"until [ -e gate ]; do sleep 0.02; done; {TWICE}"))
        while client.state(f"log/1:{number}:0") != "running":
            time.sleep(0.01)  # the test's own time limit ends it
        zygotes.add(daemon.zygote)
    (daemon.workspace / "gate").touch()
    for events in held:
        outcome = collect(events)
        assert (outcome.stdout, outcome.end.exit_code) == (b"out\n", 5)
    assert ran(daemon) == 8
    assert len(zygotes) > 1


def test_shim_that_outlived_its_zygote_ends_without_a_word(daemon: LocalDaemon) -> None:
    """Nobody waits for it any more when its command is done; that is no error, and the log says none."""
    client = daemon.start()
    client.start("long", "until [ -e gate ]; do sleep 0.02; done; exit 4")
    client = daemon.restart()
    shim, start = daemon.shim(1), procfs.start_of(daemon.shim(1))
    (daemon.workspace / "gate").touch()
    assert collect(client.attach("long")).end.exit_code == 4
    until(lambda: not procfs.is_alive(shim, start))
    assert "shim:" not in daemon.log.read_text()


def test_zygote_killed_while_commands_run_takes_none_along(space: Client, daemon: LocalDaemon) -> None:
    events = space.start("held", "read line; echo $line", stdin=True)
    zygote, start = daemon.zygote, procfs.start_of(daemon.zygote)
    os.kill(zygote, signal.SIGKILL)
    until(lambda: not procfs.is_alive(zygote, start))
    assert space.run("next", "echo fine").stdout == b"fine\n"
    assert daemon.zygote != zygote
    request = cua.SendInputRequest(process=cua.ProcessSelector(tag="held"), input=cua.ProcessInput(stdin=b"on\n"))
    space.call(space.processes.SendInput, request)
    assert collect(events).stdout == b"on\n"


@pytest.mark.parametrize("point", ["shim.claimed", "shim.command_started"])
def test_shim_killed_before_its_record_is_a_loss(daemon: LocalDaemon, point: str) -> None:
    """Rule 27: the daemon says so by itself, without another call, and never runs it again."""
    client = daemon.start(crash=point)
    end = client.run("log/1:1:0@0", "sleep 0.3; echo ran >> ran.txt; sleep 60").end
    assert end.lost
    assert not end.HasField("exit_code")
    client = daemon.restart()
    assert client.state("log/1:1:0") == "lost"
    assert client.run("log/1:1:0@0", "sleep 0.3; echo ran >> ran.txt; sleep 60").end.lost
    assert ran(daemon) <= 1


def test_shim_killed_after_its_record_changes_nothing(daemon: LocalDaemon) -> None:
    client = daemon.start(crash="shim.exit_recorded")
    outcome = client.run("log/1:1:0@0", TWICE)
    assert (outcome.stdout, outcome.end.exit_code) == (b"out\n", 5)
    client = daemon.restart()
    assert client.state("log/1:1:0") == "exited"
    assert client.run("log/1:1:0@0", TWICE).stdout == b"out\n"
    assert ran(daemon) == 1


def test_daemon_killed_while_a_command_runs_finds_it_with_every_byte(space: Client, daemon: LocalDaemon) -> None:
    """Killed five times; the command notices nothing, and its output equals the file that it wrote itself (tee)."""
    script = "for i in $(seq 1 60); do echo line $i; sleep 0.03; done | tee own.txt"
    space.start("log/1:1:0@0", script)
    for _ in range(4):
        daemon.kill()
        space = daemon.start()
        assert space.state("log/1:1:0") in ("running", "exited")
    outcome = collect(space.attach("log/1:1:0@0"))
    assert outcome.stdout == (daemon.workspace / "own.txt").read_bytes()
    assert outcome.stdout.count(b"\n") == 60
    assert outcome.end.exit_code == 0


def test_command_that_ends_without_a_daemon_keeps_its_status(space: Client, daemon: LocalDaemon) -> None:
    space.start("log/1:1:0@0", "sleep 0.2; echo late; exit 9")
    daemon.kill()
    until(lambda: daemon.record(1).exit is not None)
    space = daemon.start()
    outcome = collect(space.attach("log/1:1:0@0"))
    assert (outcome.stdout, outcome.end.exit_code) == (b"late\n", 9)


def test_deadline_is_kept_without_a_daemon(space: Client, daemon: LocalDaemon) -> None:
    space.start("log/1:1:0@0", "sleep 60", timeout=0.5)
    daemon.kill()
    until(lambda: daemon.record(1).exit is not None)
    end = collect(daemon.start().attach("log/1:1:0@0")).end
    assert end.timed_out


def test_deadline_that_lies_ahead_is_kept_under_the_next_daemon(space: Client, daemon: LocalDaemon) -> None:
    """Counted from the start, not from the restart."""
    begun = time.monotonic()
    space.start("log/1:1:0@0", "sleep 60", timeout=2.5)
    daemon.kill()
    space = daemon.start()
    assert space.state("log/1:1:0") == "running"
    end = collect(space.attach("log/1:1:0@0")).end
    assert (end.timed_out, end.signal) == (True, cua.SIGNAL_TERM)
    assert 2.5 <= time.monotonic() - begun < 12


def test_attach_after_a_restart_starts_at_the_asked_offset(space: Client, daemon: LocalDaemon) -> None:
    space.run("log/1:1:0@0", "head -c 300000 /dev/urandom | tee own.bin")
    whole = (daemon.workspace / "own.bin").read_bytes()
    space = daemon.restart()
    for offset in (0, 1, 65_535, 65_536, 299_999, 300_000):
        assert collect(space.attach("log/1:1:0@0", offset)).stdout == whole[offset:]


def test_rows_of_another_boot_are_lost_and_never_started(daemon: LocalDaemon) -> None:
    """Rules 9 and 13: a reservation of an earlier boot does not start, an exit record of one is not believed."""
    client = daemon.start(crash="ledger.reserved_synced:2")
    client.run("log/1:1:0@0", "exit 0")
    attempt(client, "log/1:2:0@0", "echo ran >> ran.txt")
    daemon.wait_dead()
    with sqlite3.connect(daemon.data / "ledger.db") as db:
        db.execute("update command set boot_id = 'another'")
    db.close()
    client = daemon.start()
    assert [client.state(f"log/1:{number}:0") for number in (1, 2)] == ["lost", "lost"]
    assert client.run("log/1:2:0@0", "echo ran >> ran.txt").end.lost
    assert ran(daemon) == 0


def test_process_id_of_a_stranger_gets_no_signal(space: Client, daemon: LocalDaemon) -> None:
    """A record that names a live process with another start time: not its shim, not its command."""
    space.start("log/1:1:0@0", "sleep 60")
    path = Path(record_file(str(daemon.data), 1))
    shim = daemon.shim(1)
    shim_start = procfs.start_of(shim)
    time.sleep(0.02)  # the kernel counts start times in hundredths of a second
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        pid = str(cast(dict[str, int], daemon.record(1).started)["pid"])
        assert len(pid) == len(str(stranger.pid))
        path.write_bytes(path.read_bytes().replace(f'"pid": {pid},'.encode(), f'"pid": {stranger.pid},'.encode()))
        space = daemon.restart()
        request = cua.SignalProcessRequest(process=cua.ProcessSelector(tag="log/1:1:0@0"), signal=cua.SIGNAL_KILL)
        assert refusal(lambda: space.call(space.processes.SignalProcess, request)).code == "FAILED_PRECONDITION"
        space.advance(1)
        assert stranger.poll() is None
        until(lambda: not procfs.is_alive(shim, shim_start))
    finally:
        stranger.kill()
        stranger.wait()


SCRIPT = 'echo x >> "starts-$1"; i=0; while [ $i -lt 20 ]; do echo "$1 $i"; i=$((i+1)); sleep 0.01; done | tee "own-$1"'
ROUNDS = int(os.environ.get("SPACE_KILL_ROUNDS", "6"))


def test_kills_at_random_moments_lose_nothing_and_run_nothing_twice(daemon: LocalDaemon) -> None:
    """Seeded: four commands at once, and meanwhile kill -9 of the daemon, sometimes of its zygote too. Each command writes
    what it prints to a file of its own as well; SPACE_KILL_ROUNDS makes more rounds."""
    chance = random.Random(20)
    client = daemon.start()
    for round_number in range(ROUNDS):
        ids = [f"log/{round_number}:{number}:0@0" for number in range(4)]

        def call(client: Client, number: int, ids: list[str] = ids, round_number: int = round_number) -> None:
            with contextlib.suppress(grpc.RpcError):
                client.start(ids[number], ["sh", "-c", SCRIPT, "sh", f"{round_number}-{number}"])

        threads = [threading.Thread(target=call, args=(client, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(chance.random() * 0.15)
        if chance.random() < 0.4:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon.zygote, signal.SIGKILL)
        daemon.kill()
        for thread in threads:
            thread.join()
        client = daemon.start()
        for number, request_id in enumerate(ids):
            name = f"{round_number}-{number}"
            outcome = client.run(request_id, ["sh", "-c", SCRIPT, "sh", name])
            assert outcome.end.exit_code == 0, outcome.end
            assert collect(client.attach(request_id)).stdout == (daemon.workspace / f"own-{name}").read_bytes()
            assert (daemon.workspace / f"starts-{name}").read_text() == "x\n"


def test_nothing_leaks(space: Client, daemon: LocalDaemon, tmp_path: Path) -> None:
    """After ended commands: only shims that wait, each with no child or with the namespace of its next command; no temporary
    file; files as the layout names them."""
    for number in range(5):
        space.run(f"log/1:{number}:0@0", "echo x")
    until(lambda: all(daemon.record(seq).done is not None for seq in range(1, 6)))
    children = 1 if daemon.announced["kill_mechanism"] == "pidns" else 0

    def only_waiting_shims() -> bool:
        processes = procfs.table()
        below = procfs.descendants(processes, [daemon.zygote])
        shims = [pid for pid in below if processes[pid].parent == daemon.zygote]
        assert all(processes[pid].alive for pid in below)
        return len(below) == len(shims) * (1 + children) and len(shims) <= 2 * SPARE

    until(only_waiting_shims)
    names = {path.name for path in (daemon.data / "commands").glob("*/*")}
    assert names == {"record", "out"}
    assert list((daemon.data / "staging").iterdir()) == []

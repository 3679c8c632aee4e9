"""A PID namespace per command: what it sees inside, what the kernel ends with it, and whom it leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from durable_base.errors import UsageError
from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_protocol.durable.space.v1 import workspace_pb2 as workspace
from durable_space import _pidns, procfs
from durable_space._zygote import SPARE
from durable_space.ending import pidns
from durable_space.testing import Client, LocalDaemon, collect, kill_mechanisms, until

pytestmark = pytest.mark.skipif("pidns" not in kill_mechanisms(), reason="no PID namespace can be made here")

E1 = "1" * 32


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    made = LocalDaemon(tmp_path, "--kill-mechanism", "pidns")
    yield made
    made.stop()


@pytest.fixture
def space(daemon: LocalDaemon) -> Client:
    return daemon.start()


def init_of(daemon: LocalDaemon, seq: int) -> tuple[int, int]:
    claim = cast(dict[str, int], daemon.record(seq).claim)
    return claim["init"], claim["init_start"]


def one_init_each(daemon: LocalDaemon) -> bool:
    """What stands below the zygote: shims, each with a namespace that waits, and nothing else."""
    processes = procfs.table()
    below = procfs.descendants(processes, [daemon.zygote])
    parents = [processes[pid].parent for pid in below]
    shims = {pid for pid in below if processes[pid].parent == daemon.zygote}
    return sorted(parents) == sorted([*shims, *([daemon.zygote] * len(shims))])


def appears(path: Path) -> Path:
    until(path.exists)
    return path


def test_mechanism_is_told_and_never_chosen_by_itself(
    daemon: LocalDaemon, make_daemon: Callable[..., LocalDaemon]
) -> None:
    for made, expected in ((daemon, {"pidns"}), (make_daemon(), {"cgroup2", "subreaper"})):
        client = made.start()
        info = client.call(client.space.GetInfo, durable.GetInfoRequest())
        assert durable.KillMechanism.Name(info.kill_mechanism).removeprefix("KILL_MECHANISM_").lower() in expected
        assert made.announced["kill_mechanism"] in expected


def test_command_sees_its_own_processes_and_no_others(space: Client) -> None:
    script = (
        'read self rest < /proc/self/stat; echo $$ "$self"; sleep 9 & kill $!; wait $!; echo $?; ls -d /proc/[0-9]*'
    )
    first, status, *processes = space.run("own", script).stdout.decode().splitlines()
    assert first == "2 2"  # not 1, from which signals without a handler are kept
    assert status == str(128 + signal.SIGTERM)
    assert processes == ["/proc/1", "/proc/2"]  # init, the shell


def test_command_can_end_neither_its_init_nor_its_shim(space: Client, daemon: LocalDaemon) -> None:
    signals = " ".join(str(number) for number in range(1, 32))
    outcome = space.run(
        "deaf", f"for n in {signals}; do kill -$n 1; done; kill -0 {daemon.zygote}; echo $?; kill -9 -1; exit 3"
    )
    assert (outcome.stdout, outcome.end.exit_code) == (b"1\n", 3)


def test_process_id_that_is_told_is_the_one_outside(space: Client, daemon: LocalDaemon) -> None:
    space.start("outside", "sleep 60")
    started = cast(dict[str, int], daemon.record(1).started)
    process = cast(procfs.Process, procfs.read(started["pid"]))
    assert (process.start, process.parent) == (started["start"], init_of(daemon, 1)[0])


def test_what_is_left_behind_runs_on_hidden_from_the_next_command_until_the_next_epoch(
    space: Client, daemon: LocalDaemon
) -> None:
    assert space.run("leaves", "setsid sleep 60 & exit 0").end.exit_code == 0
    left = space.call(space.workspace.Processes, workspace.ProcessesRequest()).processes
    assert [(process.request_id, process.command_running) for process in left] == [("leaves", False)]
    assert space.run("next", "echo /proc/[0-9]*").stdout == b"/proc/1 /proc/2\n"
    init = init_of(daemon, 1)
    assert not pidns.has_ended(*init)
    until(lambda: daemon.record(2).done is not None)
    assert space.advance(1, E1).killed == 1
    assert pidns.has_ended(*init)


def test_killed_shim_takes_along_what_has_no_mark(space: Client, daemon: LocalDaemon) -> None:
    """Rule 27: no audit could tell that this process is the command's; the kernel can."""
    space.start("log/1:1:0@0", "(env -i setsid sh -c 'while :; do echo x >> beat; sleep 0.01; done' &) ; sleep 60")
    appears(daemon.workspace / "beat")
    shim, init = daemon.shim(1), init_of(daemon, 1)
    procfs.send_signal(shim, procfs.start_of(shim), signal.SIGKILL)
    until(lambda: pidns.has_ended(*init))
    size = (daemon.workspace / "beat").stat().st_size
    until(lambda: space.state("log/1:1:0") == "lost")
    daemon.kill()
    space = daemon.start()
    assert space.advance(1, E1).floor.epoch == 1
    assert (daemon.workspace / "beat").stat().st_size == size


def test_shim_that_does_not_answer_is_killed_and_the_namespace_is_the_proof(space: Client, daemon: LocalDaemon) -> None:
    space.start("log/1:1:0@0", "(env -i setsid sleep 60 &) ; sleep 60")
    shim = daemon.shim(1)
    procfs.send_signal(shim, procfs.start_of(shim), signal.SIGSTOP)
    procfs.send_signal(*init_of(daemon, 1), signal.SIGSTOP)
    assert space.advance(1, E1).killed == 1
    assert pidns.has_ended(*init_of(daemon, 1))


def test_init_that_is_killed_is_an_end_by_signal(space: Client, daemon: LocalDaemon) -> None:
    events = space.start("log/1:1:0@0", "(setsid sleep 60 &); sleep 60")
    procfs.send_signal(*init_of(daemon, 1), signal.SIGKILL)
    assert collect(events).end.signal == cua.SIGNAL_KILL
    until(lambda: daemon.record(1).done is not None)
    assert space.run("next", "echo fine").stdout == b"fine\n"


def test_init_that_is_killed_while_it_waits_is_replaced_and_no_command_notices(
    space: Client, daemon: LocalDaemon
) -> None:
    until(lambda: one_init_each(daemon))
    processes = procfs.table()
    for pid in procfs.descendants(processes, [daemon.zygote]):
        if processes[pid].parent != daemon.zygote:
            procfs.send_signal(pid, processes[pid].start, signal.SIGKILL)
    for number in range(2 * SPARE):
        assert space.run(f"after {number}", "echo fine").stdout == b"fine\n"


def test_command_of_any_length_is_taken_in(space: Client) -> None:
    words = ["x" * 100_000, "y" * 100_000, "\u20ac"]
    outcome = space.run("long", ["sh", "-c", 'printf %s "$@" | wc -c', "sh", *words])
    assert int(outcome.stdout) == 200_003


def test_another_mechanism_after_a_restart_ends_what_this_one_started(space: Client, daemon: LocalDaemon) -> None:
    """Rule 4: the claim says how the command can be ended, and the namespace is still the proof."""
    space.start("log/1:1:0@0", "(env -i setsid sleep 60 &) ; sleep 60")
    space.start("log/1:2:0@0", "(env -i setsid sleep 60 &) ; sleep 60")
    shim = daemon.shim(2)
    daemon.kill()
    procfs.send_signal(shim, procfs.start_of(shim), signal.SIGKILL)
    daemon.options[-1] = "subreaper"
    space = daemon.start()
    assert space.advance(1, E1).killed == 1
    assert all(pidns.has_ended(*init_of(daemon, seq)) for seq in (1, 2))
    assert space.as_driver(1, E1).run("log/1:3:0@1", 'exec sh -c "exit $(($$ < 10))"').end.exit_code == 0


def test_open_files_and_processes_do_not_add_up(space: Client, daemon: LocalDaemon) -> None:
    """Shims are used again, each time with another namespace."""

    def descriptors() -> list[int]:
        processes = procfs.table()
        shims = [
            pid for pid in procfs.descendants(processes, [daemon.zygote]) if processes[pid].parent == daemon.zygote
        ]
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in shims]

    def round_of(number: int) -> None:
        space.run(f"fine {number}", "true", stdin=True)
        space.run(f"missing {number}", ["no-such-program"])
        until(lambda: all(daemon.record(seq).done is not None for seq in range(1, 2 * number + 3)))

    until(lambda: one_init_each(daemon) and len(set(descriptors())) == 1 and len(descriptors()) == SPARE)
    fresh = max(descriptors())
    for number in range(9):
        round_of(number)
    until(lambda: max(descriptors()) <= fresh)
    until(lambda: one_init_each(daemon))


def test_process_id_of_another_is_no_first_process(tmp_path: Path) -> None:
    """One with the same id and another start time: the namespace has ended, and the process gets no signal."""
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        start = procfs.start_of(stranger.pid)
        assert pidns.end(stranger.pid, start + 1, time.monotonic() + 5)
        assert stranger.poll() is None
        assert not pidns.has_ended(stranger.pid, start)
    finally:
        stranger.kill()
        stranger.wait()


def test_end_that_is_not_seen_by_the_deadline_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pidns, "kill", lambda init, start: None)
    assert not pidns.end(os.getpid(), procfs.start_of(os.getpid()), time.monotonic() + 0.05)


AS_NOBODY = """
import ctypes, os, sys
from durable_space import _pidns
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # its files in /proc are its own again, as after exec
sys.exit(_pidns._trial(int(sys.argv[1])) or 0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
def test_other_users_need_no_privilege_where_they_may_have_user_namespaces() -> None:
    def trial(flags: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", AS_NOBODY, str(flags)], capture_output=True, text=True)

    refused = trial(_pidns.PRIVILEGED)
    assert (refused.returncode, "Operation not permitted" in refused.stderr) == (1, True)
    allowed = Path("/proc/sys/user/max_user_namespaces").read_text().strip() != "0"
    told = trial(_pidns.UNPRIVILEGED)
    assert told.returncode == (0 if allowed else 1), told.stderr


def test_machine_without_namespaces_is_told_what_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pidns, "_try", lambda flags: "PID namespace: Operation not permitted")
    with pytest.raises(UsageError, match=r"Operation not permitted.*CAP_SYS_ADMIN.*use cgroup2 or subreaper"):
        pidns.find_flags()

"""Epochs: who is refused, what is killed, what is kept, and that the answer comes only after the proof."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import grpc
import pytest

from durable_base.floor import Floor
from durable_protocol.cua.env.v1 import filesystem_pb2 as fs
from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_space import claims, procfs
from durable_space._zygote import SPARE
from durable_space.ending.cgroup import find_root
from durable_space.ending.tree import Tree, end
from durable_space.epochs import decide
from durable_space.testing import Client, LocalDaemon, collect, refusal, until

E1, E2, OTHER = "1" * 32, "2" * 32, "f" * 32

ADVERSARIES = {
    "plain": "sleep 60",
    "double fork, new session, cleared environment": "(setsid env -i sh -c '(exec sleep 60) & sleep 60' &) ; sleep 60",
    "ignores SIGTERM": "trap '' TERM INT HUP; while :; do sleep 1; done",
    "stopped": "sleep 60 & kill -STOP $!; sleep 60",
    "its first process has ended": "setsid sleep 60 & exit 0",
    "many": "for i in $(seq 1 40); do setsid sleep 60 & done; sleep 60",
    "forks on": "f() { while :; do (sleep 0.01) & wait; done; }; f & f & f & sleep 60",
    "dies of SIGHUP only by KILL and moves away": "cd /; exec 0<&- ; nohup setsid sh -c 'while :; do :; done' & sleep 60",
}


def info(client: Client) -> durable.GetInfoResponse:
    response: durable.GetInfoResponse = client.call(client.space.GetInfo, durable.GetInfoRequest())
    return response


def below(daemon: LocalDaemon, seq: int) -> set[int]:
    """Live descendants of a command's shim."""
    processes = procfs.table()
    return {pid for pid in procfs.descendants(processes, [daemon.shim(seq)]) if processes[pid].alive}


def write(client: Client, path: str, data: bytes = b"x") -> fs.WriteFileResponse:
    header = fs.WriteFileHeader(path=path)
    messages = [fs.WriteFileRequest(header=header), fs.WriteFileRequest(data=data)]
    response: fs.WriteFileResponse = client.call(client.filesystem.WriteFile, iter(messages))
    return response


@pytest.mark.parametrize("script", ADVERSARIES.values(), ids=ADVERSARIES)
def test_nothing_survives_an_advance(each_mechanism: LocalDaemon, script: str) -> None:
    """Rule 4: dead before the answer. Who writes every 10 ms writes nothing after it."""
    daemon = each_mechanism
    client = daemon.start()
    client.advance(1, E1)
    driver = client.as_driver(1, E1)
    driver.start("log/1:1:0@1", f"(while :; do date +%s%N >> beat; sleep 0.01; done) & {script}")
    until(lambda: (daemon.workspace / "beat").exists())
    time.sleep(0.05)
    seen = below(daemon, 1)
    assert seen
    table = procfs.table()
    answer = client.advance(2, E2)
    alive = [pid for pid in seen if pid in table and procfs.is_alive(pid, table[pid].start)]
    assert alive == []
    size = (daemon.workspace / "beat").stat().st_size
    time.sleep(0.05)
    assert (daemon.workspace / "beat").stat().st_size == size
    assert answer.killed == 1
    assert client.state("log/1:1:0") in ("killed", "exited")


def test_killed_row_names_the_epoch_and_never_an_exit(each_mechanism: LocalDaemon) -> None:
    """Rule 10: a shell that would go on and end with 0 when its child dies; 20 rounds."""
    client = each_mechanism.start()
    for epoch in range(1, 41, 2):
        client.advance(epoch, E1)
        events = client.as_driver(epoch, E1).start(f"log/1:{epoch}:0@{epoch}", "sleep 9 || true; touch done; exit 0")
        client.advance(epoch + 1, E2)
        (record,) = client.lookup(f"log/1:{epoch}:0")
        assert (record.state, record.killed_by) == (durable.COMMAND_STATE_KILLED, epoch + 1)
        assert collect(events).end.signal == cua.SIGNAL_KILL
        assert not (each_mechanism.workspace / "done").exists()


@pytest.mark.skipif(find_root() is None, reason="no cgroup v2 tree is writable here")
def test_groups_of_ended_and_killed_commands_are_removed(make_daemon: Callable[..., LocalDaemon]) -> None:
    daemon = make_daemon("--kill-mechanism", "cgroup2")
    client = daemon.start()
    folder = cast(Path, find_root()) / f"durable-space-{daemon.announced['instance'][:16]}"
    client.run("ended", "true")
    client.start("killed", "sleep 60 & sleep 60")
    groups = {path.name for path in folder.iterdir() if path.is_dir()}
    assert cast(dict[str, str], daemon.record(2).claim)["cgroup"] in groups  # a shim and its command share one
    client.advance(1, E1)
    daemon.terminate()
    assert not folder.exists()


def test_exec_record_of_a_killed_command_is_an_exit_by_sigkill_below_the_floor(space: Client) -> None:
    """As the real daemon words it."""
    space.advance(1, E1)
    space.as_driver(1, E1).start("log/1:1:0@1", "sleep 60")
    space.advance(2, E2)
    response = space.call(space.processes.GetExecRecord, cua.GetExecRecordRequest(request_id="log/1:1:0@1"))
    assert response.record.state == cua.EXEC_STATE_EXITED
    assert response.record.end.signal_number == 9
    assert response.record.epoch < response.epoch == 2


CHANGES = {
    "start": lambda client: client.start("x", "touch changed"),
    "write": lambda client: write(client, "changed"),
    "mkdir": lambda client: client.call(client.filesystem.MakeDir, fs.MakeDirRequest(path="changed")),
    "move": lambda client: client.call(client.filesystem.Move, fs.MoveRequest(source="kept", destination="changed")),
    "remove": lambda client: client.call(client.filesystem.Remove, fs.RemoveRequest(path="kept")),
    "apply": lambda client: client.apply(remove=[b"kept"]),
    "kill all": lambda client: client.call(client.space.KillAll, durable.KillAllRequest()),
    "forget": lambda client: client.call(client.ledger.Forget, durable.ForgetRequest(prefix="log/")),
    "scan": lambda client: client.scan(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_only_the_floor_itself_may_change_anything(shared_floor: LocalDaemon, change: object) -> None:
    """Rules 1 and 4: below, equal with another incarnation, anonymous, above: each refused, nothing done."""
    client = shared_floor.client()
    floor = info(client).floor
    callers = {
        "StaleEpoch": [client.as_driver(floor.epoch - 1, E1), client.as_driver(floor.epoch, OTHER)],
        "EpochNotAdvanced": [client.as_driver(floor.epoch + 1, E1)],
    }
    for condition, refused in callers.items():
        for caller in refused:
            told = refusal(lambda caller=caller: change(caller))  # type: ignore[operator,misc]
            assert (told.code, told.reason, told.condition) == ("FAILED_PRECONDITION", "STALE_EPOCH", condition)
            assert told.metadata["current_epoch"] == str(floor.epoch)
    assert (shared_floor.workspace / "kept").exists()
    assert not (shared_floor.workspace / "changed").exists()
    assert info(client).floor == floor


@pytest.fixture(scope="module")
def shared_floor(tmp_path_factory: pytest.TempPathFactory) -> object:
    made = LocalDaemon(tmp_path_factory.mktemp("floor"), "--kill-mechanism", "subreaper")
    (made.workspace / "kept").write_text("kept")
    made.start().advance(5, E1)
    yield made
    made.stop()


def test_anonymous_caller_below_the_floor_is_refused_to_change_and_may_look(shared_floor: LocalDaemon) -> None:
    client = shared_floor.client()
    assert refusal(lambda: client.start("x", "true")).condition == "StaleEpoch"
    assert b"kept" in client.scan()


def test_lower_or_rival_advance_is_refused(shared_floor: LocalDaemon) -> None:
    """Rule 1."""
    client = shared_floor.client()
    for epoch, incarnation in ((4, E1), (5, OTHER), (5, "")):
        told = refusal(lambda epoch=epoch, incarnation=incarnation: client.advance(epoch, incarnation))  # type: ignore[misc]
        assert (told.condition, told.metadata["current_incarnation"]) == ("StaleEpoch", E1)
    assert (info(client).floor.epoch, info(client).floor.incarnation) == (5, E1)


@pytest.mark.parametrize("incarnation", ["short", "A" * 32, "0" * 32, "g" * 32])
def test_incarnation_must_look_like_one(shared_floor: LocalDaemon, incarnation: str) -> None:
    assert refusal(lambda: shared_floor.client().advance(9, incarnation)).code == "INVALID_ARGUMENT"


def test_message_and_metadata_must_agree(shared_floor: LocalDaemon) -> None:
    client = shared_floor.client().as_driver(6, E1)
    request = durable.AdvanceEpochRequest(epoch=7, incarnation=E1)
    assert refusal(lambda: client.call(client.space.AdvanceEpoch, request)).code == "INVALID_ARGUMENT"
    request = durable.AdvanceEpochRequest(epoch=6, incarnation=OTHER)
    assert refusal(lambda: client.call(client.space.AdvanceEpoch, request)).code == "INVALID_ARGUMENT"


def test_anonymous_start_above_the_floor_does_all_that_an_advance_does(space: Client, daemon: LocalDaemon) -> None:
    """Rule 4: what Cua's SDK sends."""
    space.start("old", "sleep 60")
    victims = below(daemon, 1)
    table = procfs.table()
    assert space.as_driver(3).run("new", "echo new").stdout == b"new\n"
    assert not any(procfs.is_alive(pid, table[pid].start) for pid in victims)
    assert (space.state("old"), info(space).floor.epoch) == ("killed", 3)


def test_cua_advance_is_the_anonymous_form(space: Client) -> None:
    space.start("old", "sleep 60")
    answer = space.call(space.processes.AdvanceEpoch, cua.AdvanceEpochRequest(epoch=4))
    assert (answer.epoch, answer.killed) == (4, 1)
    told = refusal(lambda: space.call(space.processes.AdvanceEpoch, cua.AdvanceEpochRequest(epoch=3)))
    assert (told.reason, told.metadata["epoch"], told.metadata["current_epoch"]) == ("STALE_EPOCH", "3", "4")


def test_adopted_command_runs_on_under_the_new_epoch(each_mechanism: LocalDaemon) -> None:
    """Rule 21: five drivers, one start, one result."""
    client = each_mechanism.start()
    client.advance(1, E1)
    client.as_driver(1, E1).start(
        "log/1:1:0@1", "echo ran >> ran.txt; until [ -e go ]; do sleep 0.05; done; echo end; exit 3"
    )
    client.as_driver(1, E1).start("log/1:2:0@1", "sleep 60")
    for epoch in range(2, 6):
        answer = client.advance(epoch, E2, adopt=["log/1:1:0", "log/9:9:9"])
        assert list(answer.adopted) == ["log/1:1:0"]
        (record,) = client.lookup("log/1:1:0")
        assert (record.state, record.epoch) == (durable.COMMAND_STATE_RUNNING, epoch)
        client = each_mechanism.restart() if epoch == 3 else client
    assert client.state("log/1:2:0") == "killed"
    (each_mechanism.workspace / "go").touch()
    outcome = collect(client.as_driver(5, E2).attach("log/1:1:0@1"))
    assert (outcome.stdout, outcome.end.exit_code) == (b"end\n", 3)
    assert (each_mechanism.workspace / "ran.txt").read_text() == "ran\n"


def test_adopted_command_is_killed_by_the_next_advance_without_it(space: Client) -> None:
    """Rule 21: adoption is named each time."""
    space.advance(1, E1)
    space.as_driver(1, E1).start("log/1:1:0@1", "sleep 60")
    space.advance(2, E2, adopt=["log/1:1:0"])
    assert space.advance(3, E2).killed == 1
    assert space.state("log/1:1:0") == "killed"


@pytest.mark.parametrize("point", ["epoch.ledger_synced", "epoch.floor_synced", "epoch.killed_some"])
def test_daemon_killed_inside_an_advance_finishes_it_before_it_listens(each_mechanism: LocalDaemon, point: str) -> None:
    """Rules 4 and 21: the writer of e1 is dead when the next daemon answers; what was adopted lives; the same call again
    is fine."""
    _killed_inside_an_advance(each_mechanism, point)


@pytest.mark.skipif(find_root() is None, reason="no cgroup v2 tree is writable here")
def test_daemon_killed_with_a_frozen_group_finishes_it_before_it_listens(
    make_daemon: Callable[..., LocalDaemon],
) -> None:
    """The same, where a group was frozen and not yet killed."""
    _killed_inside_an_advance(make_daemon("--kill-mechanism", "cgroup2"), "epoch.group_frozen")


def _killed_inside_an_advance(daemon: LocalDaemon, point: str) -> None:
    client = daemon.start(crash=point)
    client.start("log/1:1:0@0", "while :; do date >> beat; sleep 0.01; done")
    client.start("log/1:2:0@0", "until [ -e go ]; do sleep 0.05; done; echo kept")
    until(lambda: (daemon.workspace / "beat").exists())
    writers = {pid: procfs.start_of(pid) for pid in below(daemon, 1)}
    with pytest.raises(grpc.RpcError):
        client.advance(2, E2, adopt=["log/1:2:0"])
    assert daemon.wait_dead() == -signal.SIGKILL
    alive = [pid for pid, start in writers.items() if procfs.is_alive(pid, start)]
    assert alive or point == "epoch.killed_some", "nothing was left to do"
    client = daemon.start()
    assert not any(procfs.is_alive(pid, start) for pid, start in writers.items())
    size = (daemon.workspace / "beat").stat().st_size
    assert (info(client).floor.epoch, info(client).floor.incarnation) == (2, E2)
    answer = client.advance(2, E2, adopt=["log/1:2:0"])
    assert list(answer.adopted) == ["log/1:2:0"]
    assert (daemon.workspace / "beat").stat().st_size == size
    assert client.state("log/1:1:0") == "killed"
    (daemon.workspace / "go").touch()
    assert collect(client.attach("log/1:2:0@0")).stdout == b"kept\n"


def test_reserved_command_of_an_older_epoch_never_starts(daemon: LocalDaemon) -> None:
    """Rule 9. (1) The shim stops with the request in its hands. (2) AdvanceEpoch answers. (3) The shim goes on. (4) It sees
    the floor and does not claim."""
    client = daemon.start(crash="shim.requested=stop")
    request = cua.StartProcessRequest(
        config=cua.ProcessConfig(command="touch", args=["ran"]), request_id="log/1:1:0@0", tag="t"
    )
    stream = client.processes.StartProcess(request, metadata=client.metadata, timeout=30)
    until(lambda: client.state("log/1:1:0") == "reserved")

    def stopped() -> list[procfs.Process]:
        processes = procfs.table()
        shims = procfs.descendants(processes, [daemon.zygote])
        return [processes[pid] for pid in shims if processes[pid].stopped]

    (shim,) = until(stopped)  # 1
    client.advance(1, E1)  # 2
    assert client.state("log/1:1:0") == "never_started"
    procfs.send_signal(shim.pid, shim.start, signal.SIGCONT)  # 3
    assert refusal(lambda: stream).condition == "StaleEpoch"
    until(lambda: not stopped())
    time.sleep(0.05)
    assert client.state("log/1:1:0") == "never_started"  # 4
    assert not (daemon.workspace / "ran").exists()
    assert daemon.record(1).claim is None


def test_request_in_the_queue_of_a_stopped_zygote_runs_once(daemon: LocalDaemon) -> None:
    """The shims do not need it; the next one is made when it goes on."""
    client = daemon.start()
    zygote, start = daemon.zygote, procfs.start_of(daemon.zygote)
    until(lambda: len(procfs.descendants(procfs.table(), [zygote])) == SPARE)
    procfs.send_signal(zygote, start, signal.SIGSTOP)
    try:
        for number in range(3):
            assert client.run(f"log/1:{number}:0@0", "echo ran >> ran.txt").end.exit_code == 0
    finally:
        procfs.send_signal(zygote, start, signal.SIGCONT)
    assert (daemon.workspace / "ran.txt").read_text() == "ran\n" * 3


@pytest.mark.parametrize("point", ["epoch.rule_written", "epoch.ledger_synced", "epoch.floor_synced"])
def test_shim_that_waits_for_an_advance_that_dies_obeys_the_ledger(daemon: LocalDaemon, point: str) -> None:
    """Rule 9. (1) A shim has the request and stops. (2) The daemon dies inside an advance. (3) The shim goes on, before the
    next daemon starts. (4) If the ledger says that it never started, it did not."""
    client = daemon.start(crash=f"shim.requested=stop,{point}")
    request = cua.StartProcessRequest(
        config=cua.ProcessConfig(command="touch", args=["ran"]), request_id="log/1:1:0@0", tag="t"
    )
    stream = client.processes.StartProcess(request, metadata=client.metadata, timeout=30)
    zygote = daemon.zygote

    def stopped() -> list[procfs.Process]:
        processes = procfs.table()
        return [processes[pid] for pid in procfs.descendants(processes, [zygote]) if processes[pid].stopped]

    (shim,) = until(stopped)  # 1
    with pytest.raises(grpc.RpcError):
        client.advance(1, E1)
    assert daemon.wait_dead() == -signal.SIGKILL  # 2
    stream.cancel()
    procfs.send_signal(shim.pid, shim.start, signal.SIGCONT)  # 3
    until(lambda: not procfs.is_alive(shim.pid, shim.start) or daemon.record(1).done is not None)
    client = daemon.start()
    client.advance(1, E1)
    assert client.state("log/1:1:0") == "never_started"  # 4
    assert not (daemon.workspace / "ran").exists()


def test_reserved_command_is_adopted_and_runs_once(daemon: LocalDaemon) -> None:
    """Rules 9 and 21: killed between reservation and start; the next driver adopts the reservation and has it run."""
    client = daemon.start(crash="ledger.reserved_synced")
    with pytest.raises(grpc.RpcError):
        client.run("log/1:1:0@0", "echo ran >> ran.txt")
    daemon.wait_dead()
    client = daemon.start()
    assert list(client.advance(1, E1, adopt=["log/1:1:0"]).adopted) == ["log/1:1:0"]
    assert client.as_driver(1, E1).run("log/1:1:0@0", "echo ran >> ran.txt").end.exit_code == 0
    assert (daemon.workspace / "ran.txt").read_text() == "ran\n"


def test_shim_that_is_on_to_another_command_keeps_it(tmp_path: Path) -> None:
    """What a look finds below a shim is the ended command's only if the shim had not let go of that one by then."""
    shim = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    try:
        until(lambda: procfs.descendants(procfs.table(), [shim.pid]))
        found = procfs.table()
        (child,) = procfs.descendants(found, [shim.pid])
        tree = Tree(1, shim.pid, procfs.start_of(shim.pid), lambda: True, lambda: None)
        assert end([tree], time.monotonic() + 5) == set()
        assert procfs.is_alive(child, found[child].start)
        assert not cast(procfs.Process, procfs.read(child)).stopped
    finally:
        os.killpg(shim.pid, signal.SIGKILL)
        shim.wait()


def test_equal_advance_keeps_what_its_own_driver_started(space: Client) -> None:
    space.advance(1, E1)
    space.as_driver(1, E1).start("log/1:1:0@1", "sleep 60")
    assert space.advance(1, E1).killed == 0
    assert space.state("log/1:1:0") == "running"


def test_kill_all_ends_the_own_epoch_too_and_leaves_the_floor(space: Client, daemon: LocalDaemon) -> None:
    """Rule 14."""
    space.advance(1, E1)
    driver = space.as_driver(1, E1)
    driver.start("log/1:1:0@1", "setsid sleep 60 & sleep 60")
    assert driver.call(driver.space.KillAll, durable.KillAllRequest()).killed == 1
    assert (space.state("log/1:1:0"), info(space).floor.epoch) == ("killed", 1)
    assert not below(daemon, 1)
    assert driver.run("log/1:2:0@1", "echo on").stdout == b"on\n"


def test_shim_and_daemon_killed_leaves_no_silent_survivor(daemon: LocalDaemon) -> None:
    """Rule 27: a setsid double fork that writes; the proof fails or the writer is dead. Here its marker tells it."""
    client = daemon.start()
    client.start("log/1:1:0@0", "(setsid sh -c 'while :; do date >> beat; sleep 0.01; done' &) ; sleep 60")
    until(lambda: (daemon.workspace / "beat").exists())
    shim = daemon.shim(1)
    procfs.send_signal(shim, procfs.start_of(shim), signal.SIGKILL)
    daemon.kill()
    client = daemon.start()
    assert client.state("log/1:1:0") == "lost"
    client.advance(1, E1)
    size = (daemon.workspace / "beat").stat().st_size
    time.sleep(0.05)
    assert (daemon.workspace / "beat").stat().st_size == size


def test_survivor_without_any_mark_fails_the_proof_until_it_is_gone(daemon: LocalDaemon) -> None:
    """Rule 27: the shim is dead, the process has cleared its environment and left the session, but sits in the workspace."""
    client = daemon.start()
    client.start("log/1:1:0@0", "(env -i setsid sh -c 'echo $$ > pid; exec sleep 60' &) ; sleep 60")
    until(lambda: (daemon.workspace / "pid").exists() and (daemon.workspace / "pid").read_text().strip())
    survivor = int((daemon.workspace / "pid").read_text())
    start = procfs.start_of(survivor)
    until(lambda: daemon.record(1).started is not None)
    shim = daemon.shim(1)
    procfs.send_signal(shim, procfs.start_of(shim), signal.SIGKILL)
    until(lambda: client.state("log/1:1:0") == "lost")
    told = refusal(lambda: client.advance(1, E1))
    assert told.condition == "ProofFailed"
    assert str(survivor) in told.metadata["pids"].split()
    procfs.send_signal(survivor, start, signal.SIGKILL)
    until(lambda: not procfs.is_alive(survivor, start))
    assert client.advance(1, E1).floor.epoch == 1


def test_descriptor_that_a_grandchild_keeps_is_not_the_lock(daemon: LocalDaemon) -> None:
    """Rule 27: a command inherits neither lock nor record, so a loss is seen although its child lives."""
    client = daemon.start()
    client.start("log/1:1:0@0", "ls -l /proc/self/fd > fds; exec sleep 60")
    until(lambda: (daemon.workspace / "fds").exists())
    time.sleep(0.1)
    assert str(daemon.data) not in (daemon.workspace / "fds").read_text()
    shim = daemon.shim(1)
    procfs.send_signal(shim, procfs.start_of(shim), signal.SIGKILL)
    until(lambda: client.state("log/1:1:0") == "lost", 5)


def test_epoch_floor_at_start_admits_its_epoch_and_none_below(daemon: LocalDaemon) -> None:
    """Rule 16: on an empty data folder; what is on disk already is not lowered."""
    daemon.options += ["--epoch-floor", "7"]
    client = daemon.start()
    assert refusal(lambda: client.advance(6, E1)).condition == "StaleEpoch"
    assert refusal(lambda: client.start("x", "true")).condition == "StaleEpoch"
    assert client.advance(7, E1).floor.epoch == 7
    for floor in ("7", "3"):
        daemon.options[-1] = floor
        client = daemon.restart()
        for epoch in (6, 7):
            assert refusal(lambda epoch=epoch: client.advance(epoch, E2)).condition == "StaleEpoch"  # type: ignore[misc]  # noqa: B023
        assert client.advance(7, E1).floor.epoch == 7
    daemon.options[-1] = "9"
    client = daemon.restart()
    assert refusal(lambda: client.advance(8, E1)).condition == "StaleEpoch"
    assert client.advance(9, E2).floor.epoch == 9


def test_sigterm_leaves_commands_running(space: Client, daemon: LocalDaemon) -> None:
    space.start("log/1:1:0@0", "sleep 0.5; echo on; exit 4")
    assert daemon.terminate() == 0
    outcome = collect(daemon.start().attach("log/1:1:0@0"))
    assert (outcome.stdout, outcome.end.exit_code) == (b"on\n", 4)


def test_stop_commands_marks_before_it_ends_them(daemon: LocalDaemon) -> None:
    """Rule 10: a trap that ends with 0 after the mark is a loss, not a clean exit."""
    daemon.options.append("--stop-commands")
    client = daemon.start()
    client.start("log/1:1:0@0", "trap 'exit 0' TERM; touch ready; while :; do sleep 0.05; done")
    client.run("log/1:2:0@0", "exit 0")
    until(lambda: (daemon.workspace / "ready").exists())
    assert daemon.terminate() == 0
    client = daemon.start()
    assert (client.state("log/1:1:0"), client.state("log/1:2:0")) == ("lost", "exited")


def test_write_under_way_when_the_floor_rises_changes_nothing(space: Client, daemon: LocalDaemon) -> None:
    """Rule 26: (1) e1 begins an upload. (2) e2 advances. (3) e1 finishes: refused."""
    space.advance(1, E1)
    e1 = space.as_driver(1, E1)

    def messages() -> object:
        yield fs.WriteFileRequest(header=fs.WriteFileHeader(path="late"))
        yield fs.WriteFileRequest(data=b"old")  # 1
        space.advance(2, E2)  # 2
        yield fs.WriteFileRequest(data=b"old")  # 3

    assert refusal(lambda: e1.call(e1.filesystem.WriteFile, messages())).condition == "StaleEpoch"
    assert list(daemon.workspace.iterdir()) == []
    assert list((daemon.data / "staging").iterdir()) == []


def test_claim_rule_bars_what_is_older_and_admits_by_name(tmp_path: Path) -> None:
    """Rule 9, the shim's side."""
    rule = claims.ClaimRule(epoch=3, barred_through=10, admitted=frozenset({7}))
    assert [rule.allows(seq, epoch) for seq, epoch in ((7, 1), (8, 3), (10, 9), (11, 3), (11, 2))] == [
        True, False, False, True, False,
    ]  # fmt: skip
    claims.write_rule(str(tmp_path), rule)
    assert claims.read_rule(str(tmp_path)) == rule


def test_claim_lock_waits_for_shims_and_gives_up_with_a_reason(tmp_path: Path) -> None:
    with claims.shared(str(tmp_path)), pytest.raises(TimeoutError), claims.exclusive(str(tmp_path), 0.05):
        pass
    with claims.exclusive(str(tmp_path), 0.05):
        pass


def test_nothing_is_decided_about_an_empty_ledger() -> None:
    verdict = decide([], Floor(1, E1), ["log/1:1:0"], bar=True, everything=False)
    assert verdict.killed == verdict.never_started == verdict.adopted == frozenset()

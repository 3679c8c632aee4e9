"""Commands over the wire: start, repeat, attach, signal, record. The same under every way to kill, which must not show.

One daemon for all tests; each has request ids of its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from durable_base.command import command_hash
from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_protocol.durable.space.v1 import workspace_pb2 as workspace
from durable_space import procfs
from durable_space.commands import FOLDERS_AHEAD
from durable_space.testing import Client, LocalDaemon, collect, kill_mechanisms, refusal, until

PTRACE_SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module", params=kill_mechanisms())
def shared_daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDaemon]:
    made = LocalDaemon(tmp_path_factory.mktemp("space"), "--kill-mechanism", request.param)
    made.start()
    yield made
    made.stop()


def record(client: Client, request_id: str) -> cua.ExecRecord:
    response = client.call(client.processes.GetExecRecord, cua.GetExecRecordRequest(request_id=request_id))
    found: cua.ExecRecord = response.record
    return found


def test_output_and_exit_status_arrive(shared: Client) -> None:
    outcome = shared.run("plain", "echo one; echo two >&2; exit 3")
    assert (outcome.stdout, outcome.stderr, outcome.end.exit_code) == (b"one\n", b"two\n", 3)
    assert outcome.start.pid > 0
    assert not outcome.start.deduplicated
    assert outcome.end.HasField("exit_code")


def test_same_id_again_replays_and_runs_nothing(shared: Client, shared_daemon: LocalDaemon) -> None:
    first = shared.run("once", "echo ran >> once.txt; echo done")
    again = shared.run("once", "echo ran >> once.txt; echo done")
    assert again.start.deduplicated
    assert (again.stdout, again.end.exit_code, again.start.pid) == (b"done\n", 0, first.start.pid)
    assert (shared_daemon.workspace / "once.txt").read_text() == "ran\n"


def test_same_id_with_another_command_is_refused(shared: Client, shared_daemon: LocalDaemon) -> None:
    """Nothing runs, whichever field differs."""
    shared.run("mine", "true")
    for changed in (
        lambda: shared.start("mine", "touch other"),
        lambda: shared.start("mine", "true", env={"A": "b"}),
        lambda: shared.start("mine", "true", cwd="/"),
        lambda: shared.start("mine", "true", timeout=5),
    ):
        told = refusal(changed)
        assert (told.code, told.condition) == ("ALREADY_EXISTS", "CommandMismatch")
    assert not (shared_daemon.workspace / "other").exists()


def test_two_callers_with_one_id_at_once_start_one_command(shared: Client, shared_daemon: LocalDaemon) -> None:
    outcomes: list[bytes] = []

    def call() -> None:
        outcomes.append(shared.run("raced", "echo x >> raced.txt; sleep 0.2; echo y").stdout)

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [b"y\n"] * 6
    assert (shared_daemon.workspace / "raced.txt").read_text() == "x\n"


def test_attach_reads_from_any_offset_while_it_runs_and_after(shared: Client) -> None:
    events = shared.start("follow", "printf 0123456789; read line; printf abcdef", stdin=True)
    live = shared.attach("follow", 4)
    selector = cua.ProcessSelector(tag="follow")
    shared.call(
        shared.processes.SendInput, cua.SendInputRequest(process=selector, input=cua.ProcessInput(stdin=b"go\n"))
    )
    assert collect(live).stdout == b"456789abcdef"
    assert collect(events).stdout == b"0123456789abcdef"
    for offset in (0, 9, 10, 15, 16):
        assert collect(shared.attach("follow", offset)).stdout == b"0123456789abcdef"[offset:]


def test_attach_never_starts_anything(shared: Client) -> None:
    """Rule 12."""
    told = refusal(lambda: shared.attach("unheard-of"))
    assert (told.code, told.reason) == ("NOT_FOUND", "PROCESS_NOT_FOUND")
    assert shared.lookup("unheard-of") == []


def test_cat_reads_stdin_until_it_is_closed(shared: Client) -> None:
    events = shared.start("cat", ["cat"], stdin=True)
    selector = cua.ProcessSelector(tag="cat")

    def send(data: bytes, sequence: int) -> cua.SendInputResponse:
        message = cua.ProcessInput(stdin=data)
        request = cua.SendInputRequest(process=selector, input=message, sequence=sequence, writer_id="w")
        response: cua.SendInputResponse = shared.call(shared.processes.SendInput, request)
        return response

    send(b"one ", 1)
    assert send(b"one ", 1).duplicate
    send(b"two", 2)
    shared.call(shared.processes.CloseStdin, cua.CloseStdinRequest(process=selector))
    assert collect(events).stdout == b"one two"


def test_command_without_stdin_reads_nothing(shared: Client) -> None:
    assert shared.run("no-stdin", ["cat"]).end.exit_code == 0


@pytest.mark.parametrize(
    ("words", "cwd", "text"),
    [
        (["no-such-program"], "", "executable not found"),
        (["/etc/hostname-nope"], "", "executable not found"),
        (["true"], "/no/such/folder", "does not exist"),
    ],
)
def test_what_cannot_start_ends_with_an_error_and_no_status(
    shared: Client, words: list[str], cwd: str, text: str
) -> None:
    outcome = shared.run(f"broken-{words[0]}-{cwd}", words, cwd=cwd)
    assert text in outcome.end.error
    assert not outcome.end.HasField("exit_code")
    assert outcome.start.pid == 0
    assert record(shared, f"broken-{words[0]}-{cwd}").state == cua.EXEC_STATE_EXITED


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_death_by_signal_is_told_as_such(shared: Client, number: signal.Signals) -> None:
    end = shared.run(f"dies-{number}", f"kill -{int(number)} $$").end
    assert (end.signal_number, end.signal_name) == (int(number), number.name.removeprefix("SIG"))
    assert not end.HasField("exit_code")


def test_deadline_ends_a_command(shared: Client) -> None:
    begun = time.monotonic()
    end = shared.run("slow", "sleep 60", timeout=0.3).end
    assert end.timed_out
    assert end.signal == cua.SIGNAL_TERM
    assert 0.3 <= time.monotonic() - begun < 5


def test_deadline_of_a_deaf_command_ends_all_before_one_of_them_sees_another_die(
    shared: Client, shared_daemon: LocalDaemon
) -> None:
    """Rule 10: killed one after another, those that read from a `sleep` which went first would go on with their next line."""
    pairs = "for n in $(seq 30); do mkfifo pipe-$n; sleep 60 > pipe-$n & done"
    watch = "for n in $(seq 30); do (read line < pipe-$n; : > went-on-$n) & done"
    end = shared.run("deaf", f"trap '' TERM; {pairs}; {watch}; wait", timeout=0.3).end
    assert (end.timed_out, end.signal) == (True, cua.SIGNAL_KILL)
    assert len(list(shared_daemon.workspace.glob("pipe-*"))) == 30
    assert not list(shared_daemon.workspace.glob("went-on-*"))


@pytest.mark.parametrize("away", ["", "setsid "], ids=["in-its-group", "in-another-session"])
def test_deadline_ends_what_outlives_the_command(
    make_daemon: Callable[..., LocalDaemon], mechanism: str, away: str
) -> None:
    """The command ends at SIGTERM, and its status stays; what it started is deaf, and ends before the result is given."""
    daemon = make_daemon("--term-seconds", "0.5", "--kill-mechanism", mechanism)
    client = daemon.start()
    deaf = "trap '' TERM; while :; do echo on >> written; sleep 0.02; done"
    end = client.run("left", f'{away}sh -c "{deaf}" & sleep 60', timeout=0.3).end
    assert (end.timed_out, end.signal) == (True, cua.SIGNAL_TERM)
    written = (daemon.workspace / "written").stat().st_size
    until(lambda: daemon.record(1).done is not None)
    assert written > 0
    assert (daemon.workspace / "written").stat().st_size == written


def test_deadline_that_comes_after_the_end_touches_nothing(shared: Client, shared_daemon: LocalDaemon) -> None:
    end = shared.run("in-time", "(sleep 1.5; : > after-the-deadline) & exit 3", timeout=0.5).end
    assert (end.timed_out, end.exit_code) == (False, 3)
    until(lambda: (shared_daemon.workspace / "after-the-deadline").exists())


def test_process_that_does_not_go_does_not_hold_back_the_result(make_daemon: Callable[..., LocalDaemon]) -> None:
    """As one in an uninterruptible wait: a traced child's end is seen by its parent only once the tracer has seen it."""
    daemon = make_daemon("--term-seconds", "0", "--kill-mechanism", "subreaper")
    client = daemon.start()
    events = client.start("stuck", "setsid sh -c 'echo $$ > pid; exec sleep 60' & exec sleep 61", timeout=1.0)
    child = int(until(lambda: (daemon.workspace / "pid").exists() and (daemon.workspace / "pid").read_text()))
    if libc.ptrace(PTRACE_SEIZE, child, None, None) != 0:
        pytest.skip("this user may not trace")
    try:
        end = collect(events).end
        assert (end.timed_out, end.signal) == (True, cua.SIGNAL_TERM)
        assert daemon.record(1).done is None
    finally:
        os.waitpid(child, 0)
    until(lambda: daemon.record(1).done is not None)


def test_signal_reaches_the_group(shared: Client) -> None:
    events = shared.start("signalled", "trap 'echo caught; exit 4' USR1; echo ready; while :; do sleep 0.05; done")
    until(lambda: b"ready" in b"".join(piece.stdout for piece in record(shared, "signalled").tail))
    request = cua.SignalProcessRequest(
        process=cua.ProcessSelector(tag="signalled"), signal=cua.SIGNAL_USR1, process_group=True
    )
    shared.call(shared.processes.SignalProcess, request)
    outcome = collect(events)
    assert (outcome.end.exit_code, b"caught" in outcome.stdout) == (4, True)
    told = refusal(lambda: shared.call(shared.processes.SignalProcess, request))
    assert (told.code, told.reason) == ("FAILED_PRECONDITION", "PROCESS_NOT_FOUND")


def test_commands_see_neither_secrets_nor_crash_points(make_daemon: Callable[..., LocalDaemon], tmp_path: Path) -> None:
    environment = {"DURABLE_TOKEN": "hunter2", "CUA_ENV_TOKEN": "hunter2", "KEPT": "yes"}
    client = make_daemon(environment=environment).start(crash="never.reached:9")
    shown = client.run("env", ["env"], env={"OWN": "value", "DURABLE_ASKED": "1"}).stdout.decode()
    assert "hunter2" not in shown
    assert "DURABLE_CRASH" not in shown
    assert {"KEPT=yes", "OWN=value", "DURABLE_ASKED=1"} <= set(shown.splitlines())
    assert "SPACE_COMMAND_ID=" in shown


@pytest.mark.parametrize("user", ["", "nobody"])
def test_command_ignores_and_blocks_no_signal_whatever_the_daemon_does(
    make_daemon: Callable[..., LocalDaemon], user: str
) -> None:
    """As under `nohup`, and in a service manager that blocks some."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        client = make_daemon().start()
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    shown = client.run("own", ["cat", "/proc/self/status"], user=user, cwd="/").stdout.decode()
    fields = dict(line.split(":\t", 1) for line in shown.splitlines())
    its_own = ~(0b11 << 31)  # the C library's, which each program of it sets for itself
    assert [int(fields[name], 16) & its_own for name in ("SigIgn", "SigBlk", "SigCgt")] == [0, 0, 0]
    assert fields["Uid"].split()[0] == ("65534" if user else str(os.getuid()))


def test_command_works_in_the_workspace_or_where_it_asks(shared: Client, shared_daemon: LocalDaemon) -> None:
    assert shared.run("pwd", ["pwd"]).stdout.decode().strip() == str(shared_daemon.workspace)
    (shared_daemon.workspace / "below").mkdir()
    assert shared.run("pwd-below", ["pwd"], cwd="below").stdout.decode().strip().endswith("/below")
    assert shared.run("pwd-root", ["pwd"], cwd="/").stdout == b"/\n"


def test_background_process_with_the_pipes_does_not_hold_back_the_end(shared: Client) -> None:
    begun = time.monotonic()
    assert shared.run("leaves", "sleep 30 & echo parent").stdout == b"parent\n"
    assert time.monotonic() - begun < 10
    left = [
        process
        for process in shared.call(shared.workspace.Processes, workspace.ProcessesRequest()).processes
        if process.request_id == "leaves"
    ]
    assert len(left) == 1
    assert not left[0].command_running
    assert left[0].cwd_inside


def test_record_has_hash_size_and_tail(shared: Client) -> None:
    shared.run("big", "head -c 200000 /dev/zero | tr '\\0' x; printf end")
    found = record(shared, "big")
    whole = b"x" * 200_000 + b"end"
    assert found.output_bytes == len(whole)
    assert found.output_sha256 == hashlib.sha256(whole).hexdigest()
    assert b"".join(piece.stdout for piece in found.tail) == whole[-(64 << 10) :]
    assert found.tail[0].offset == len(whole) - (64 << 10)


def test_record_of_an_unknown_id_is_empty(shared: Client) -> None:
    response = shared.call(shared.processes.GetExecRecord, cua.GetExecRecordRequest(request_id="unknown"))
    assert not response.HasField("record")


def test_lookup_tells_hash_boot_and_output(shared: Client, shared_daemon: LocalDaemon) -> None:
    """Rule 6."""
    shared.run("log/1:1:0@0", ["echo", "hi"], env={"A": "1"})
    (found,) = shared.lookup("log/1:1:0")
    assert found.command_hash == command_hash("echo", ["hi"], {"A": "1"}, "", "", None)
    assert found.boot_id == shared_daemon.announced["boot"]
    assert (found.request_id, found.output_bytes, found.end.exit_code) == ("log/1:1:0@0", 3, 0)
    assert shared.state("log/1:1:0") == "exited"


def test_list_tells_running_ones_and_ended_ones_on_request(shared: Client) -> None:
    events = shared.start("listed-1", "sleep 20")
    shared.run("listed-2", "true")

    def tags(**options: bool) -> set[str]:
        request = cua.ListProcessesRequest(tag_prefix="listed-", **options)
        return {process.tag for process in shared.call(shared.processes.ListProcesses, request).processes}

    assert tags() == {"listed-1"}
    assert tags(include_exited=True) == {"listed-1", "listed-2"}
    stop = cua.SignalProcessRequest(process=cua.ProcessSelector(tag="listed-1"), signal=cua.SIGNAL_KILL)
    shared.call(shared.processes.SignalProcess, stop)
    assert collect(events).end.signal_number == 9


def test_output_beyond_the_limit_is_dropped_from_the_front_and_said_so(shared: Client) -> None:
    made = 3 << 20
    shared.start("chatty", f"head -c {made} /dev/zero", keep_bytes=512 << 10)
    until(lambda: shared.state("chatty") == "exited")
    (found,) = shared.lookup("chatty")
    assert found.output_bytes == made
    assert made - found.output_first >= 512 << 10
    assert made - found.output_first < 1 << 20
    told = refusal(lambda: shared.attach("chatty", 0))
    assert (told.code, told.condition) == ("OUT_OF_RANGE", "OutputGone")
    assert int(told.metadata["first_offset"]) == found.output_first
    assert len(collect(shared.attach("chatty", found.output_first)).stdout) == made - found.output_first


def test_streams_stay_apart_and_in_order(shared: Client) -> None:
    """Every byte once, at its offset, whichever offset one starts from (collect checks for gaps)."""
    script = "for i in 1 2 3 4 5; do echo out$i; sleep 0.02; echo err$i >&2; sleep 0.02; done"
    outcome = shared.run("both", script)
    assert outcome.stdout.split() == [b"out%d" % number for number in range(1, 6)]
    assert outcome.stderr.split() == [b"err%d" % number for number in range(1, 6)]
    for offset in range(0, 50, 7):
        late = collect(shared.attach("both", offset))
        assert len(late.stdout) + len(late.stderr) == 50 - offset


def test_terminal_is_refused_as_unsupported(shared: Client) -> None:
    request = cua.StartProcessRequest(config=cua.ProcessConfig(command="true"), pty=cua.PtyConfig(), request_id="pty")
    told = refusal(lambda: shared.call(shared.processes.StartProcess, request))
    assert (told.code, told.reason) == ("UNIMPLEMENTED", "FEATURE_UNSUPPORTED")
    assert shared.lookup("pty") == []


@pytest.mark.parametrize(
    "config",
    [
        cua.ProcessConfig(),
        cua.ProcessConfig(command="a\0b"),
        cua.ProcessConfig(command="true", env={"A=B": ""}),
        cua.ProcessConfig(command="true", env={"": "x"}),
    ],
)
def test_what_no_process_can_be_made_of_is_refused(shared: Client, config: cua.ProcessConfig) -> None:
    request = cua.StartProcessRequest(config=config, request_id="impossible")
    assert refusal(lambda: shared.call(shared.processes.StartProcess, request)).code == "INVALID_ARGUMENT"
    assert shared.lookup("impossible") == []


def test_limits_are_told_before_anything_starts(make_daemon: Callable[..., LocalDaemon]) -> None:
    client = make_daemon("--open-commands-max", "1", "--rows-max", "2").start()
    events = client.start("first", "sleep 20")
    told = refusal(lambda: client.start("second", "true"))
    assert (told.code, told.condition) == ("RESOURCE_EXHAUSTED", "LimitExceeded")
    client.call(
        client.processes.SignalProcess,
        cua.SignalProcessRequest(process=cua.ProcessSelector(tag="first"), signal=cua.SIGNAL_KILL),
    )
    collect(events)
    assert client.run("second", "true").end.exit_code == 0
    assert "Forget" in refusal(lambda: client.start("third", "true")).message


def test_full_disk_is_told_before_anything_starts(make_daemon: Callable[..., LocalDaemon]) -> None:
    """The limit is set above what any disk has."""
    daemon = make_daemon("--free-bytes-min", str(1 << 60))
    client = daemon.start()
    told = refusal(lambda: client.start("none", "touch ran"))
    assert (told.code, told.reason) == ("RESOURCE_EXHAUSTED", "DISK_FULL")
    assert client.lookup("none") == []
    assert not (daemon.workspace / "ran").exists()


def test_forget_drops_a_conversation_and_refuses_what_runs(space: Client, daemon: LocalDaemon) -> None:
    space.run("log/1:1:0@0", "echo x")
    space.run("other/1:1:0@0", "echo x")
    events = space.start("log/1:2:0@0", "sleep 20")

    def forget() -> int:
        return int(space.call(space.ledger.Forget, durable.ForgetRequest(prefix="log/")).rows)

    assert refusal(forget).condition == "StillRunning"
    space.call(space.space.KillAll, durable.KillAllRequest())
    collect(events)
    assert forget() == 2
    assert (space.lookup("log/1:1:0"), space.state("other/1:1:0")) == ([], "exited")
    folder = daemon.data / "commands"
    until(lambda: {int(path.name, 16) for path in folder.iterdir()}.isdisjoint({1, 3}))
    rows = {int(path.name, 16) for path in folder.iterdir()}
    assert 2 in rows
    assert max(rows) <= 3 + FOLDERS_AHEAD  # of rows to come
    before = space.call(space.space.GetInfo, durable.GetInfoRequest()).ledger_seq
    space = daemon.restart()
    assert space.call(space.space.GetInfo, durable.GetInfoRequest()).ledger_seq == before == 3


def test_shim_that_is_used_again_keeps_nothing_of_the_command_before(space: Client, daemon: LocalDaemon) -> None:
    """Open stdin, a child that holds the pipes beyond the exit, a program that does not exist: no descriptor stays."""

    def descriptors() -> dict[int, int]:
        processes = procfs.table()
        shims = procfs.descendants(processes, [daemon.zygote])
        return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in shims if processes[pid].parent == daemon.zygote}

    def run_all(round_number: int) -> None:
        space.run(f"stdin {round_number}", "true", stdin=True)
        space.run(f"child {round_number}", "sleep 0.3 & echo x")
        space.run(f"missing {round_number}", ["no-such-program"])
        rows = range(3 * round_number + 1, 3 * round_number + 4)
        until(lambda: all(daemon.record(seq).done is not None for seq in rows))

    run_all(0)
    fresh = min(descriptors().values())
    for round_number in range(1, 9):
        run_all(round_number)
    time.sleep(0.05)
    assert max(descriptors().values()) <= fresh, "a shim has more open than one that was just made"
    claims = [cast(dict[str, int], daemon.record(seq).claim)["shim"] for seq in range(1, 28)]
    assert len(set(claims)) < len(claims), "none was used again, so nothing was tested"

"""A shim: the process that stands over one command, and outlives the daemon and the zygote that started it.

Guarantees. The lock on `record` is held exactly as long as the shim lives: the lock tells life. The `exit` line is the
result: the record tells the result. `done` is written when the kernel says that the shim has no child left (ECHILD): since
it is the subreaper of all that the command spawned, double forks and new sessions too, nothing of the command is alive then.
Between `exit` and `done` only what the command left behind runs; its output is drained and dropped, so that it does not
die of a broken pipe. Where each command has a PID namespace (`_pidns`), the one child is that namespace's first process.

Assumes that nobody kills it; if someone does, lock free and no `done` say so (rule 27).

It is forked ahead of need (`_zygote`) and waits, in its cgroup and with pipes made; nothing is claimed or locked until a
request comes. After `done` it has no child, no lock and no open file of the command, so it may stand over another one: a
shim is always one command's at a time.

Not chosen: output straight into files, since two files lose the order of stdout and stderr; the pipes end here, and the
shim outlives the daemon. Standard library alone (`python -S -E`).
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from durable_base.crash import crash_point
from durable_space import claims, layout, procfs
from durable_space._pidns import Namespace
from durable_space._record import RecordFile
from durable_space._sink import STDERR, STDOUT, Sink
from durable_space._spawn import Launch, SpawnError, spawn
from durable_space.stopping import stop_all

PIECE_BYTES = 256 << 10  # per read, and the size that is asked for a pipe
PACKET_BYTES_MAX = 64 << 10
NOTICE_SECONDS = 0.005  # between two notices about output
LAST_NOTICES_MAX, LAST_NOTICE_SECONDS = 25, 0.002  # of the end, to a daemon that is busy
QUIET_SECONDS = 0.1  # after the exit: descendants that hold the pipes and are silent for this long are not waited for
DRAIN_SECONDS_MAX = 1.0  # nor those that never fall silent
KILL_PAUSE_SECONDS = 0.1  # after a timeout: between two SIGKILLs to whatever is left
KILL_SECONDS = 2.0  # after the first: what lives on then (in an uninterruptible wait) does not hold back the result
LATE_PAUSE_SECONDS = 5.0  # and between two later ones
WAIT_MS_MAX = 3_600_000  # per wait: the kernel's counter ends after 24 days
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Shim:
    """A process that can stand over a command: made ready by `__init__`, which may raise OSError; then `claim`, and `run`
    if it gave True. Once `run` has returned nothing of the command is left, and `make_ready` serves for another one."""

    def __init__(self, data: str, group: str, namespaces: int) -> None:
        """`group` is the path of the cgroup that this process was born in, with nobody else; empty: none. `namespaces` are the
        flags of the namespaces that each command gets (`_pidns`); 0: none."""
        os.setsid()
        if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no child subreaper")
        _survive_memory_pressure()
        self._data = data
        self._namespaces = namespaces
        self._notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._wake = _child_signals()
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._environment = {name: value for name, value in os.environ.items() if not is_private(name)}
        self._own = {
            "shim": os.getpid(),
            "shim_start": procfs.start_of(os.getpid()),
            "cgroup": os.path.basename(group),
        }
        self.make_ready()

    def make_ready(self) -> None:
        self._namespace = Namespace(self._namespaces) if self._namespaces else None
        self._out, self._command_out = _pipe()
        self._err, self._command_err = _pipe()
        self._digest = hashlib.sha256()
        self._stdin_holder = self._control = -1
        self._noticed_at = 0.0
        self._unnoticed = False
        self._pid = 0
        self._status: int | None = None
        self._childless = False
        self._timed_out = False
        self._recording = True
        self._deadline: float | None = None
        self._result_due = float("inf")

    def claim(self, packet: bytes) -> bool:
        """Take the command on. False: it may not start (any more). OSError: nothing was claimed, and nothing of it runs."""
        self._spec: dict[str, Any] = json.loads(packet)
        self._seq: int = self._spec["seq"]
        self._folder = layout.command_folder(self._data, self._seq)
        if "command" not in self._spec:  # too long for a packet
            with open(os.path.join(self._folder, layout.SPEC), "rb") as file:
                self._spec.update(json.loads(file.read()))
        crash_point("shim.requested")
        if self._namespace and self._namespace.has_died():
            self._namespace.channel.close()
            self._namespace = Namespace(self._namespaces)
        self._record = RecordFile(os.path.join(self._folder, layout.RECORD))
        try:
            claimed = self._claim()
        except BaseException:
            self._record.close()
            raise
        if not claimed:
            self._record.close()
        return claimed

    def run(self) -> None:
        """Everything from the claim to `done`."""
        crash_point("shim.claimed")
        self._sink = Sink(os.path.join(self._folder, layout.OUTPUT), self._spec["keep_bytes"])
        try:
            self._start()
        except SpawnError as error:
            self._write_exit({"error": str(error)})
        self._pump()
        self._finish()

    def _claim(self) -> bool:
        """Rule 9: look at the floor and claim in one step, so that an AdvanceEpoch sees the claim or bars it."""
        if not self._record.take():
            return False
        with claims.shared(self._data):
            allowed = claims.read_rule(self._data).allows(self._seq, self._spec["epoch"])
            if not allowed or not self._record.is_empty():
                return False
            value = {**self._own, "at_ns": time.time_ns()}
            if self._namespace:
                value |= {"init": self._namespace.pid, "init_start": self._namespace.pid_start}
            self._record.claim(value)
        return True

    def _start(self) -> None:
        spec = self._spec
        env = {
            **self._environment,
            "PWD": spec["cwd"],
            **spec["env"],
            layout.MARKER: f"{spec['instance']}/{self._seq}",
        }
        launch = Launch(spec["command"], spec["args"], env, spec["cwd"], spec["user"])
        stdin = self._open_stdin() if spec["stdin"] else self._nothing
        try:
            if self._namespace:
                self._pid = self._namespace.start(launch, stdin, self._command_out, self._command_err)
            else:
                self._pid = spawn(launch, stdin, self._command_out, self._command_err)
        finally:
            os.close(self._command_out)
            os.close(self._command_err)
            if stdin != self._nothing:
                os.close(stdin)
        if self._pid == 0:
            return  # its namespace was ended under it; `_reap` says how the command did
        if spec["timeout_ns"] is not None:
            self._deadline = time.monotonic() + spec["timeout_ns"] / 1e9
        started = {"pid": self._pid, "start": procfs.start_of(self._pid), "at_ns": time.time_ns()}
        self._record.append("started", started)
        self._notify()
        crash_point("shim.command_started")

    def _open_stdin(self) -> int:
        """A named pipe, so that any daemon can write to it; the shim holds it open until it is told to close."""
        path, control = (os.path.join(self._folder, name) for name in (layout.STDIN, layout.CONTROL))
        os.mkfifo(path, 0o600)
        os.mkfifo(control, 0o600)
        self._control = os.open(control, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._stdin_holder = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.set_blocking(reader, True)
        return reader

    def _pump(self) -> None:
        """Until nothing of the command is left: record output, reap, keep the deadline, write the exit record."""
        poll = select.poll()
        open_pipes = self._open_pipes = {self._out: STDOUT, self._err: STDERR}
        ending = self._namespace.channel.fileno() if self._namespace else -1
        for fd in (*open_pipes, self._wake, self._control, ending):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        last_data = exited_at = 0.0
        self._reap()
        while not (self._childless and not self._recording):
            if self._may_record():
                now = time.monotonic()
                exited_at = exited_at or now
                quiet = now - max(last_data, exited_at) >= QUIET_SECONDS
                if not open_pipes or quiet or now - exited_at >= DRAIN_SECONDS_MAX:
                    self._write_exit({})
                    continue
            for fd, _ in poll.poll(self._poll_ms()):
                if fd in open_pipes:
                    data = os.read(fd, PIECE_BYTES)
                    if data:
                        last_data = time.monotonic()
                        self._put_out(open_pipes[fd], data)
                    else:
                        poll.unregister(fd)
                        os.close(fd)
                        del open_pipes[fd]
                elif fd == self._control:
                    self._close_stdin(poll)
                elif fd == ending:
                    poll.unregister(fd)  # it says one thing only, which `_reap` takes up
                else:
                    os.read(fd, 4096)
            self._reap()
            self._keep_deadline()
            if self._unnoticed and time.monotonic() - self._noticed_at >= NOTICE_SECONDS:
                self._notify()

    def _may_record(self) -> bool:
        """Whether the result is complete but for its last output. After a timeout it stands for an end of all, not of the
        command alone."""
        if self._status is None or not self._recording:
            return False
        return not self._timed_out or self._childless or time.monotonic() >= self._result_due

    def _poll_ms(self) -> int | None:
        waits = [20] if self._may_record() else []
        if self._unnoticed:
            waits.append(int(NOTICE_SECONDS * 1000))
        if self._deadline is not None and (self._status is None or self._timed_out):
            left_ms = int((self._deadline - time.monotonic()) * 1000) + 1
            waits.append(min(max(0, left_ms), WAIT_MS_MAX))
        return min(waits, default=None)

    def _put_out(self, stream: int, data: bytes) -> None:
        if not self._recording:
            return
        before = self._sink.end
        self._sink.write(stream, data)
        self._digest.update(memoryview(data)[: self._sink.end - before])
        self._unnoticed = True

    def _close_stdin(self, poll: select.poll) -> None:
        poll.unregister(self._control)
        os.close(self._control)
        os.close(self._stdin_holder)
        self._control = self._stdin_holder = -1

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                break
            if pid == 0:
                break
            if pid == self._pid:
                self._status = status
        if self._namespace and self._status is None:
            self._status = self._namespace.status()
            if self._status is None and self._childless:
                # Init died first, so the kernel ended the command as it ends all in there.
                self._status = signal.SIGKILL

    def _keep_deadline(self) -> None:
        """SIGTERM to the group, then SIGKILL to everything below this shim, whether the command itself lives or not. Kept by
        the shim: daemons come and go. What a command that ended in time has left behind is not ended here."""
        if self._deadline is None or self._childless or time.monotonic() < self._deadline:
            return
        if not self._timed_out:
            if self._status is None:
                self._timed_out = True
                self._deadline += self._spec["term_seconds"]
                for number in (signal.SIGTERM, signal.SIGCONT):
                    with suppress(ProcessLookupError):
                        os.killpg(self._pid, number)  # not reaped yet, so the id is still its own
            return
        for process in stop_all(_alive_below_us).values():
            procfs.send_signal(process.pid, process.start, signal.SIGKILL)
        now = time.monotonic()
        self._result_due = min(self._result_due, now + KILL_SECONDS)
        self._deadline = now + (KILL_PAUSE_SECONDS if self._recording else LATE_PAUSE_SECONDS)

    def _write_exit(self, values: dict[str, Any]) -> None:
        self._recording = False
        self._sink.close()
        if self._status is not None:
            signalled = os.WIFSIGNALED(self._status)
            values["signal" if signalled else "code"] = (
                os.WTERMSIG(self._status) if signalled else os.WEXITSTATUS(self._status)
            )
        if self._sink.failure:
            values["error"] = self._sink.failure
        values |= {
            "timed_out": self._timed_out,
            "at_ns": time.time_ns(),
            "output_bytes": self._sink.end,
            "output_sha256": self._digest.hexdigest(),
        }
        self._record.append("exit", values)
        crash_point("shim.exit_recorded")
        if not self._childless:
            self._notify()  # otherwise `done` follows at once, and says both

    def _finish(self) -> None:
        for fd in (*self._open_pipes, self._control, self._stdin_holder):
            if fd >= 0:
                os.close(fd)
        if self._namespace:
            self._namespace.channel.close()
        self._record.append("done", {})
        self._record.close()
        self._notify_last()

    def _notify(self) -> None:
        """Wake a daemon that waits; without one nothing happens, it will look by itself. `seq end`, and ` .` at the end."""
        self._noticed_at, self._unnoticed = time.monotonic(), False
        packet = b"%d %d%s" % (self._seq, self._sink.end, b"" if self._recording else b" .")
        try:
            self._notices.sendto(packet, socket.MSG_DONTWAIT, layout.notice_address(self._spec["instance"]))
        except BlockingIOError:
            self._unnoticed = True  # its queue is full (the kernel lets ten wait): again a little later
        except OSError:
            pass

    def _notify_last(self) -> None:
        for _ in range(LAST_NOTICES_MAX):
            self._notify()
            if not self._unnoticed:
                return
            time.sleep(LAST_NOTICE_SECONDS)


def _alive_below_us() -> dict[int, procfs.Process]:
    processes = procfs.table()
    return {pid: processes[pid] for pid in procfs.descendants(processes, [os.getpid()]) if processes[pid].alive}


def _pipe() -> tuple[int, int]:
    """A large one if the system has it to give: fewer turns per byte."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIECE_BYTES)
    return reader, writer


def is_private(name: str) -> bool:
    """Variables of the daemon's own that no command sees: tokens and crash points among them."""
    return name.startswith(("DURABLE_", "CUA_"))


def _child_signals() -> int:
    """A descriptor that becomes readable when a child changes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is ignored here, the command would ignore too
    wake, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    return wake


def _survive_memory_pressure() -> None:
    """Where we may: the shim is what proves that its command is gone, so it goes last (rule 27)."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("-900")
    except OSError:
        pass

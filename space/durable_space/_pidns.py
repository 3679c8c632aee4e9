"""A PID namespace for one command: made before anything is asked for, gone before the command's shim says `done`.

Guarantees. When the first process of the namespace (`init`) ends, the kernel kills whatever else is in it, and lets a wait
for init return only when all of it is gone: double forks, new sessions and cleared environments make no difference. Init
asks the kernel to be killed when its shim dies, so a shim that is killed takes its command along: lost means ended too.

Init runs the command as its child, reaps, and ends when it has no child left, so what a command leaves behind runs on. The
command is not init itself, since the kernel keeps from a namespace's first process all signals that it does not handle.
Inside, /proc is that of the namespace; other mounts are as outside.

Assumes CAP_SYS_ADMIN; without it (but never for root, whom that would cost powers) it takes a user namespace in which the
user is who it is outside. Assumes a process without threads. Standard library alone.

Not chosen: to spawn from outside into the namespace, so that the shim itself would be the command's parent; entering needs
CAP_SYS_ADMIN outside of it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import NoReturn

from durable_space import procfs
from durable_space._group import clone
from durable_space._spawn import Launch, SpawnError, spawn

PRIVILEGED = 0x20000000 | 0x00020000  # CLONE_NEWPID, CLONE_NEWNS
UNPRIVILEGED = PRIVILEGED | 0x10000000  # CLONE_NEWUSER
MESSAGE_BYTES_MAX = 64 << 10
_PR_SET_PDEATHSIG = 1
_MS_SLAVE_REC = 1 << 19 | 1 << 14
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_SCM_CREDENTIALS = 2
_CREDENTIALS = struct.Struct("=iII")  # process, user, group
_SIZE, _STATUS = struct.Struct("=Q"), struct.Struct("=i")
_READY, _STARTED, _FAILED, _SEEN = b"ready", b"started", b"failed ", b"seen"
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """One command's. All process ids are those of the caller's own namespace."""

    def __init__(self, flags: int) -> None:
        """OSError: there can't be one. What the caller has open by now, init has open until this returns: no lock may be
        among it (rule 27)."""
        self.channel, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            self.pid = clone(flags)
        except OSError:
            self.channel.close()
            inner.close()
            raise
        if self.pid == 0:
            _be_init(inner, flags)
        inner.close()
        self.pid_start = procfs.start_of(self.pid)
        told = self.channel.recv(MESSAGE_BYTES_MAX)
        if told != _READY:
            os.waitpid(self.pid, 0)
            self.channel.close()
            number, _, step = (told or b"%d start" % errno.ECHILD).partition(b" ")
            raise OSError(int(number), f"{step.decode()}: {os.strerror(int(number))}")

    def has_died(self) -> bool:
        """Before its use: somebody killed it."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def start(self, launch: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """As `spawn`. 0: somebody ended the namespace; the command may have begun."""
        data = json.dumps(asdict(launch)).encode()
        try:
            socket.send_fds(self.channel, [_SIZE.pack(len(data))], [stdin, stdout, stderr])
            for place in range(0, len(data), MESSAGE_BYTES_MAX):
                self.channel.send(data[place : place + MESSAGE_BYTES_MAX])
            message, ancillary, _, _ = self.channel.recvmsg(MESSAGE_BYTES_MAX, socket.CMSG_SPACE(_CREDENTIALS.size))
        except ConnectionError:
            return 0
        if message.startswith(_FAILED):
            raise SpawnError(message.removeprefix(_FAILED).decode(errors="replace"))
        if message != _STARTED:
            return 0
        ((_, _, credentials),) = ancillary  # the kernel has translated the process id in it
        pid: int = _CREDENTIALS.unpack(credentials)[0]
        return pid

    def status(self) -> int | None:
        """How the command ended, as `waitpid` tells it; None: not yet, or it will never be known. Until this was asked, the
        command's process id is not given to another process."""
        try:
            message = self.channel.recv(_STATUS.size, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            return None
        if not message:
            return None
        with suppress(ConnectionError):
            self.channel.send(_SEEN)
        number: int = _STATUS.unpack(message)[0]
        return number


def _be_init(channel: socket.socket, flags: int) -> NoReturn:
    """Whatever happens, this process ends here, and the namespace with it."""
    try:
        _let_go_of_the_shim(channel)
        told = _furnish(flags)
        channel.send(told)
        if told == _READY:
            _run(channel)
    finally:
        os._exit(0)


def _run(channel: socket.socket) -> None:
    """Wait for the command, start it, and stay until nothing of it is left."""
    message, fds, _, _ = socket.recv_fds(channel, _SIZE.size, 3)
    for fd in fds:
        os.set_inheritable(fd, False)
    if not message:
        return  # the shim is dead
    data = b""
    while len(data) < _SIZE.unpack(message)[0]:
        data += channel.recv(MESSAGE_BYTES_MAX)
    try:
        command = spawn(Launch(**json.loads(data)), *fds)
    except SpawnError as error:
        channel.send((_FAILED + str(error).encode())[:MESSAGE_BYTES_MAX])
        return
    for fd in fds:
        os.close(fd)
    credentials = _CREDENTIALS.pack(command, os.getuid(), os.getgid())
    channel.sendmsg([_STARTED], [(socket.SOL_SOCKET, _SCM_CREDENTIALS, credentials)])
    _reap(channel, command)


def _let_go_of_the_shim(channel: socket.socket) -> None:
    """Its death is ours. If it is dead by now, the channel says so."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # not handled: the command can't end init with any
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != channel.fileno():
            with suppress(OSError):
                os.close(fd)
    os.setsid()


def _furnish(flags: int) -> bytes:
    """`_READY`, or an errno and what it came from."""
    step = "map of the user"
    try:
        if flags == UNPRIVILEGED:
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{os.geteuid()} {os.geteuid()} 1"),
                ("gid_map", f"{os.getegid()} {os.getegid()} 1"),
            ):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        step = "mount of /proc"
        for arguments in (
            (b"none", b"/", None, _MS_SLAVE_REC, None),  # mounts made outside still come in, none goes out
            (b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV_NOEXEC, None),
        ):
            if _libc.mount(*arguments) != 0:
                raise OSError(ctypes.get_errno(), "")
    except OSError as error:
        return f"{error.errno} {step}".encode()
    return _READY


def _reap(channel: socket.socket, command: int) -> None:
    """Until no child is left; tell how the command ended."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return
        assert ended is not None
        if ended.si_pid == command:
            status = ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status
            channel.send(_STATUS.pack(status))
            channel.recv(len(_SEEN))  # the shim may just be sending a signal to this process id
            command = 0  # which may become that of something left behind
        os.waitpid(ended.si_pid, 0)


def _trial(flags: int) -> str:
    """Do once all that a command will need. What this machine lacks, empty: nothing."""
    script = 'read pid rest < /proc/self/stat; [ "$pid" = $$ ] && exit 7'
    launch = Launch("/bin/sh", ["-c", script], {}, "/", "")
    try:
        space = Namespace(flags)
    except OSError as error:
        return f"PID namespace: {error.strerror}"
    try:
        pid = space.start(launch, 0, 1, 2)
    except SpawnError as error:
        return str(error)
    if pid == 0 or procfs.start_of(pid) == 0:
        return "PID namespace: the command in it is not to be found"
    select.select([space.channel], [], [])
    status = space.status()
    os.waitpid(space.pid, 0)
    return "" if status == 7 << 8 else "PID namespace: its /proc is not its own"


if __name__ == "__main__":
    sys.exit(_trial(int(sys.argv[1])) or 0)

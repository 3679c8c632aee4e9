"""Start the command itself, from the shim: fork, become what the request asks for, exec. Standard library alone.

The caller is single-threaded (a shim is forked from the zygote, which has no threads), so Python may run between fork and exec.
"""

from __future__ import annotations

import grp
import os
import pwd
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    command: str
    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    user: str  # empty: the daemon's own
    cgroup: str  # folder of a cgroup v2 to enter first; empty: none


class SpawnError(Exception):
    """The command did not start; its text is for people."""


def spawn(launch: Launch, stdin: int, stdout: int, stderr: int) -> int:
    """Give the process id of the running command, leader of its own process group. Raise SpawnError: nothing runs.

    The three descriptors are those of the command; everything else that is open here is closed on exec.
    """
    program = find_program(launch)
    told, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _become(launch, stdin, stdout, stderr)
            os.execve(program, [launch.command, *launch.args], dict(launch.env))
        except OSError as error:
            os.write(tell, (error.strerror or "unknown error").encode())
        except (LookupError, ValueError) as error:
            os.write(tell, str(error).encode())
        finally:
            os._exit(127)
    os.close(tell)
    failure = b""
    while piece := os.read(told, 4096):
        failure += piece
    os.close(told)
    if failure:
        os.waitpid(pid, 0)
        raise SpawnError(f"cannot start {launch.command}: {failure.decode(errors='replace')}")
    return pid


def find_program(launch: Launch) -> str:
    """As execvp does, but against the command's own PATH and folder."""
    if not os.path.isdir(launch.cwd):
        raise SpawnError(f"working directory {launch.cwd} does not exist")
    if "/" in launch.command:
        candidates = [os.path.join(launch.cwd, launch.command)]
    else:
        folders = launch.env.get("PATH", os.defpath).split(":")
        candidates = [os.path.join(launch.cwd, folder, launch.command) for folder in folders]
    refused = False
    for candidate in candidates:
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            refused = True
    raise SpawnError(f"{'not executable' if refused else 'executable not found'}: {launch.command}")


def _become(launch: Launch, stdin: int, stdout: int, stderr: int) -> None:
    if launch.cgroup:
        with open(os.path.join(launch.cgroup, "cgroup.procs"), "w") as file:
            file.write("0")  # before anything of the command runs: all that it forks is born inside
    os.setpgid(0, 0)
    # An ignored signal stays ignored over exec; Python and the zygote ignore some.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target, inheritable=True)
    _prefer_to_die()
    if launch.user:
        _switch_user(launch.user)
    os.chdir(launch.cwd)


def _prefer_to_die() -> None:
    """When memory runs out the command goes before its shim, which alone can prove what became of it (rule 27)."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) < 500:
                file.seek(0)
                file.write("500")
    except (OSError, ValueError):
        pass


def _switch_user(user: str) -> None:
    """`name`, or `uid` in digits. Raise LookupError or OSError (no right to)."""
    entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    if entry.pw_uid == os.geteuid():
        return
    os.setgroups([group.gr_gid for group in grp.getgrall() if entry.pw_name in group.gr_mem] + [entry.pw_gid])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)

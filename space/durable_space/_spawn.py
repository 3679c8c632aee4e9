"""Start the command itself, from the shim. Standard library alone.

`posix_spawn`, since it does not copy: what it costs to fork a Python process, and to tear the copy down again at exec, is
more than everything else that a short command does. Only another user needs a fork.
"""

from __future__ import annotations

import grp
import os
import pwd
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

COMMAND_OOM_SCORE = 500
# A command starts with nothing ignored and nothing blocked, whatever the daemon was started under (`nohup`) and the shim does.
_DEFAULT_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


@dataclass(frozen=True, slots=True)
class Launch:
    command: str
    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    user: str  # empty: the daemon's own


class SpawnError(Exception):
    """The command did not start; its text is for people."""


def spawn(launch: Launch, stdin: int, stdout: int, stderr: int) -> int:
    """Process id of the running command, leader of its own process group; the caller reaps it.

    Raise SpawnError: nothing runs. The three descriptors become those of the command; the caller has nothing else open that
    exec would keep, and no thread: its working directory changes for a moment.
    """
    try:
        os.chdir(launch.cwd)
    except (FileNotFoundError, NotADirectoryError):
        raise SpawnError(f"working directory {launch.cwd} does not exist") from None
    except OSError as error:
        raise SpawnError(f"cannot start {launch.command}: working directory: {error.strerror}") from None
    try:
        program = find_program(launch.command, launch.env)
        user = _other_user(launch.user)
        words = [launch.command, *launch.args]
        if user is not None:
            pid = _fork(program, words, launch.env, user, (stdin, stdout, stderr))
        else:
            pid = os.posix_spawn(
                program,
                words,
                launch.env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate((stdin, stdout, stderr))],
                setpgroup=0,
                setsigdef=_DEFAULT_SIGNALS,
                setsigmask=[],
            )
    except OSError as error:
        raise SpawnError(f"cannot start {launch.command}: {error.strerror}") from None
    except (LookupError, ValueError) as error:
        raise SpawnError(f"cannot start {launch.command}: {error}") from None
    finally:
        os.chdir("/")
    _prefer_to_die(pid)
    return pid


def find_program(command: str, env: Mapping[str, str]) -> str:
    """As execvp does, but against the command's own PATH; relative to the working directory."""
    folders = [""] if "/" in command else env.get("PATH", os.defpath).split(":")
    candidates = [os.path.join(folder, command) for folder in folders]
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    refused = any(os.path.isfile(candidate) for candidate in candidates)
    raise SpawnError(f"{'not executable' if refused else 'executable not found'}: {command}")


def _other_user(user: str) -> pwd.struct_passwd | None:
    """`name`, or a user id in digits; None: our own. Raise LookupError: there is no such user."""
    if not user:
        return None
    entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    return None if entry.pw_uid == os.geteuid() else entry


def _fork(program: str, words: list[str], env: Mapping[str, str], user: pwd.struct_passwd, fds: Sequence[int]) -> int:
    groups = [group.gr_gid for group in grp.getgrall() if user.pw_name in group.gr_mem]
    report, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _exec_as(program, words, env, user, groups, fds, tell)
    os.close(tell)
    try:
        number = os.read(report, 16)  # empty once exec has closed it
    finally:
        os.close(report)
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), os.strerror(int(number)))
    return pid


def _exec_as(
    program: str, words: list[str], env: Mapping[str, str], user: pwd.struct_passwd, groups: list[int],
    fds: Sequence[int], tell: int,
) -> NoReturn:  # fmt: skip
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in _DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for place, fd in enumerate(fds):
            os.dup2(fd, place)
        os.setgroups(groups)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        os.execve(program, words, env)
    except OSError as error:
        os.write(tell, b"%d" % (error.errno or 1))
    finally:
        os._exit(127)


def _prefer_to_die(pid: int) -> None:
    """When memory runs out the command goes before its shim, which alone can prove what became of it (rule 27)."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if int(os.read(fd, 16)) < COMMAND_OOM_SCORE:
            os.pwrite(fd, b"%d" % COMMAND_OOM_SCORE, 0)
    except (OSError, ValueError):
        pass
    finally:
        os.close(fd)

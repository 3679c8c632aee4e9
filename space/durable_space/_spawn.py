"""Start the command itself, from the shim. Standard library alone.

`subprocess` is used for its vfork: copying the page tables of a Python process costs more than everything else that a
short command does. Only where something must happen between fork and exec (a cgroup to enter, another user) it forks.
"""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMMAND_OOM_SCORE = 500


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


def spawn(launch: Launch, stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    """The running command, leader of its own process group. Raise SpawnError: nothing runs.

    The three descriptors are those of the command; the caller has nothing else open that exec would keep. The caller reaps,
    and keeps the object, which would otherwise reap too.
    """
    program = find_program(launch)
    try:
        process = subprocess.Popen(
            [launch.command, *launch.args],
            executable=program,
            env=launch.env,
            cwd=launch.cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            close_fds=False,
            process_group=0,
            preexec_fn=_entering(launch.cgroup) if launch.cgroup else None,
            **_switching(launch.user),
        )
    except OSError as error:
        raise SpawnError(f"cannot start {launch.command}: {error.strerror}") from None
    except (subprocess.SubprocessError, LookupError) as error:
        raise SpawnError(f"cannot start {launch.command}: {error}") from None
    _prefer_to_die(process.pid)
    return process


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


def _entering(cgroup: str) -> Callable[[], None]:
    def enter() -> None:
        # Before anything of the command runs: all that it forks is born inside.
        fd = os.open(os.path.join(cgroup, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)

    return enter


def _switching(user: str) -> dict[str, Any]:
    """`name`, or a user id in digits. Raise LookupError: there is no such user."""
    if not user:
        return {}
    entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    if entry.pw_uid == os.geteuid():
        return {}
    groups = [group.gr_gid for group in grp.getgrall() if entry.pw_name in group.gr_mem]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}


def _prefer_to_die(pid: int) -> None:
    """When memory runs out the command goes before its shim, which alone can prove what became of it (rule 27)."""
    path = f"/proc/{pid}/oom_score_adj"
    try:
        with open(path, "r+", encoding="ascii") as file:
            if int(file.read()) < COMMAND_OOM_SCORE:
                file.seek(0)
                file.write(str(COMMAND_OOM_SCORE))
    except (OSError, ValueError):
        pass

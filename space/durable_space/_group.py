"""Fork into a cgroup v2, or into namespaces. Standard library alone.

Moving a process into a group makes the kernel wait for all others, tens of milliseconds on a busy machine; one that is born
there costs nothing more than a fork.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import struct
from contextlib import suppress

_CLONE3, _CLONE_INTO_CGROUP = 435, 0x200000000
_python = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock: the child goes on in it


def make_group(folder: str) -> str:
    """A new group below `folder`, its path. OSError: it can't be made."""
    path = os.path.join(folder, secrets.token_hex(8))
    os.makedirs(path)
    return path


def remove_group(path: str) -> None:
    """Harmless while a process lives in it, and where a command has made groups of its own in it."""
    with suppress(OSError):
        os.rmdir(path)


def fork_into(group: str) -> int:
    """`os.fork`, but the child is born in the group (empty: none). Only for a process without threads."""
    if not group:
        return os.fork()
    fd = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return clone(_CLONE_INTO_CGROUP, fd)
    except OSError:
        return _fork_and_enter(group)
    finally:
        os.close(fd)


def clone(flags: int, cgroup: int = 0) -> int:
    """`os.fork`, with the kernel's flags. Only for a process without threads."""
    arguments = struct.pack("=11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup)
    pid = int(_python.syscall(_CLONE3, arguments, len(arguments)))
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


def _fork_and_enter(group: str) -> int:
    """Where clone3 is unknown or forbidden: the child moves itself, before it does anything."""
    pid = os.fork()
    if pid == 0:
        try:
            fd = os.open(os.path.join(group, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)
            os.write(fd, b"0")
            os.close(fd)
        except OSError:
            os._exit(1)  # outside of its group nothing may run
    return pid

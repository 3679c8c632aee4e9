"""The daemon's Unix sockets: none is taken from a daemon that answers on it, and none of another is removed at the end.

A socket is bound under a name of its own and then renamed: it appears whole, with its permissions, in place of whatever a
killed daemon left; and what gRPC removes at its end is that first name.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from contextlib import suppress
from dataclasses import dataclass

from durable_base.errors import UsageError

HANDOVER_SECONDS = 2.0  # for a predecessor that is just ending
PAUSE_SECONDS = 0.02
_CREDENTIALS = struct.Struct("=iII")  # process, user, group


@dataclass(frozen=True, slots=True)
class Placed:
    """A socket as this daemon put it in place."""

    path: str
    device: int
    inode: int

    def remove(self) -> None:
        """Unless it is another's by now."""
        with suppress(FileNotFoundError):
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                os.unlink(self.path)


def make_way(path: str, flag: str) -> None:
    """Blocking. Return if nothing is at `path`, or a socket that nobody listens on. UsageError: what is there is in use."""
    deadline = time.monotonic() + HANDOVER_SECONDS
    while (holder := _holder(path)) is not None:
        if time.monotonic() > deadline:
            raise UsageError(f"{flag} unix:{path}: {holder}: name another path, or end what is there")
        time.sleep(PAUSE_SECONDS)


def first_name(path: str) -> str:
    """In the same folder, and hardly longer."""
    return os.path.join(os.path.dirname(path), f".{os.getpid()}")


def put_in_place(name: str, path: str) -> Placed:
    """OSError: it can't be."""
    os.chmod(name, 0o600)
    found = os.lstat(name)
    os.rename(name, path)
    return Placed(path, found.st_dev, found.st_ino)


def peer_of(connection: socket.socket) -> str:
    """Who listens at the other end, as far as this process may see it."""
    pid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    return f"process {pid}" if pid else "a process of another container"


def _holder(path: str) -> str | None:
    """None: nobody."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return "something that is no socket is there"
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"can't be looked at ({error.strerror})"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError as error:  # EAGAIN: so many wait for it already; EACCES: another user's
            return f"another process listens there ({error.strerror})"
        return f"{peer_of(connection)} listens there"

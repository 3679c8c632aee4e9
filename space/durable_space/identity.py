"""Which Space this is, and in which life of its machine: `boot_id`, and the single owner of data directory and workspace."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import time
from pathlib import Path

from durable_base.errors import UsageError
from durable_space import mounts, procfs
from durable_space.unix_sockets import HANDOVER_SECONDS, PAUSE_SECONDS, peer_of

_NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "9p2000.L"}


def boot_id() -> str:
    """32 hex digits; another one means that all processes are gone.

    The machine's own boot id is not enough: a container that restarts on a running machine has lost its processes too.
    Its PID namespace is another one, or (should the number come again) its process 1 started at another time.
    """
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return hashlib.sha256(f"{kernel}:{namespace}:{procfs.start_of(1)}".encode()).hexdigest()[:32]


def take_data_folder(data: Path) -> int:
    """Make the folder, and hold it alone for this process's life (rule 36). Give the lock's descriptor.

    UsageError: it is another daemon's, can't be made, or lies on a file system whose locks and syncs can't be trusted.
    """
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"--data {data}: {error.strerror}: name a folder that this user may make or write") from None
    kind = file_system_of(data)
    if kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
        raise UsageError(f"--data {data}: {kind} is a network file system: name a folder on a local disk")
    try:
        fd = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"--data {data}: {error.strerror}: name a folder that this user may write") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise UsageError(
            f"--data {data}: another daemon (process {holder}) serves it: stop that one, or name another folder"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def take_workspace(workspace: Path) -> socket.socket | None:
    """Hold the folder alone, among the daemons of this network namespace, for this process's life. Give what holds it; None:
    there are no such names here, and nobody is kept out. UsageError: another daemon serves it.

    It is held by a socket's name in the kernel (device and inode of the folder), which is free the moment its process is
    dead. Not chosen: flock on the folder. Commands take that lock too (`flock . make`); they would wait for the daemon for
    ever, and one that got it while a daemon was killed would keep the next one out.
    """
    found = os.stat(workspace)
    name = f"\0durable-space-workspace-{found.st_dev}-{found.st_ino}"
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    deadline = time.monotonic() + HANDOVER_SECONDS
    while True:
        try:
            holder.bind(name)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(PAUSE_SECONDS)
                continue
            holder.close()
            if error.errno != errno.EADDRINUSE:
                return None
            raise UsageError(
                f"--workspace {workspace}: another daemon ({_listener(name)}) serves it: stop that one, or name another folder"
            ) from None
        holder.listen()
        return holder


def _listener(name: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(name)
        except OSError:
            return "process unknown"
        return peer_of(connection)


def file_system_of(path: Path) -> str:
    """Type of the mount that holds `path`; empty if unknown."""
    target = os.fsencode(os.path.realpath(path))
    best, found = b"", b""
    try:
        for place, kind in mounts.table():
            if mounts.is_inside(target, place) and len(place) >= len(best):
                best, found = place, kind
    except OSError:
        return ""
    return found.decode()

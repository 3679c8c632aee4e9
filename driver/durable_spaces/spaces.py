"""Where Spaces come from: one that a coordinator hands over (`RemoteSpaces`), or a daemon of one's own (`LocalSpaces`)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Protocol

from durable_base.errors import HaltError, UsageError
from durable_base.floor import Floor
from durable_spaces._channel import DEADLINES, Address, Deadlines
from durable_spaces.client import SpaceClient

_START_SECONDS = 20.0
_STOP_SECONDS = 10.0
_SOCKET_BYTES_MAX = 100


class Spaces(Protocol):
    """Gives the Space of a conversation. Guarantee: the same (log, conversation) gets the same Space as long as that exists.

    Nothing about the Space is trusted for that: the adapter compares its identity with the log's.
    """

    async def open(self, log_id: str, conversation_id: int, own: Floor) -> SpaceClient:
        """A client under `own`, not connected yet. Raises UsageError, HaltError."""
        ...

    async def close(self) -> None:
        """Let go of what `open` started. Spaces and their commands stay."""
        ...


class RemoteSpaces:
    """One Space at a known address: what a coordinator hands over, for one session at a time."""

    def __init__(self, address: Address, *, deadlines: Deadlines = DEADLINES) -> None:
        self._address = address
        self._deadlines = deadlines

    async def open(self, log_id: str, conversation_id: int, own: Floor) -> SpaceClient:
        self._address.read_token()  # a wrong path is the caller's error, here and not in the middle of a call
        return SpaceClient(self._address, own, deadlines=self._deadlines)

    async def close(self) -> None:
        pass


class LocalSpaces:
    """A daemon as a child process, with its data and workspace under `folder`.

    The daemon outlives a driver that is killed, and its commands outlive both; the next `open` finds it by the lock that it
    holds on its data folder. `close` ends the daemon, whoever started it.
    """

    def __init__(self, folder: str | os.PathLike[str], *, workspace: str | os.PathLike[str] | None = None) -> None:
        """`workspace`: an existing folder to work in, instead of one made under `folder`."""
        self._folder = Path(folder).absolute()
        self._workspace = None if workspace is None else Path(workspace).absolute()
        self._data: Path | None = None
        self._child: asyncio.subprocess.Process | None = None

    async def open(self, log_id: str, conversation_id: int, own: Floor) -> SpaceClient:
        home = self._folder / f"{log_id[:16]}-{conversation_id}"  # no other log finds it (rule 7)
        data = home / "data"
        workspace = self._workspace or home / "workspace"
        try:
            data.mkdir(parents=True, exist_ok=True)
            workspace.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"Space folder {home}: {error.strerror}; name a folder that this user may write") from None
        self._data = data
        address = Address(f"unix:{_socket(data)}")
        if daemon_pid(data) is None:
            await self._start(data, workspace, address)
        return SpaceClient(address, own)

    async def _start(self, data: Path, workspace: Path, address: Address) -> None:
        arguments = ["--data", str(data), "--workspace", str(workspace), "--listen", address.target]
        log = os.open(data / "daemon.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "durable_space",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # what ends the driver's group must not end the Space
            )
        finally:
            os.close(log)
        until = asyncio.get_running_loop().time() + _START_SECONDS
        while daemon_pid(data) is None and self._child.returncode is None:
            if asyncio.get_running_loop().time() > until:
                raise HaltError("SpaceUnreachable", f"the Space daemon does not come up; see {data / 'daemon.log'}")
            await asyncio.sleep(0.02)
        if self._child.returncode is not None:
            raise HaltError(
                "SpaceUnreachable", f"the Space daemon ended with {self._child.returncode}; see {data / 'daemon.log'}"
            )

    async def close(self) -> None:
        if self._data is None or (pid := daemon_pid(self._data)) is None:
            return
        os.kill(pid, signal.SIGTERM)
        until = asyncio.get_running_loop().time() + _STOP_SECONDS
        # A lock that another process holds has no event to wait for.
        while daemon_pid(self._data) is not None and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        async with asyncio.timeout(_STOP_SECONDS):
            if self._child is not None:
                await self._child.wait()


def daemon_pid(data: Path) -> int | None:
    """The daemon that serves a data folder: it holds the lock file, and its id is written there. None: there is none."""
    try:
        fd = os.open(data / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        written = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        return int(written) if written.isdigit() else None
    finally:
        os.close(fd)
    return None


def _socket(data: Path) -> Path:
    path = data / "space.sock"
    if len(os.fsencode(path)) > _SOCKET_BYTES_MAX:
        raise UsageError(f"Space folder {data}: its path is too long for a socket; name a shorter folder")
    return path

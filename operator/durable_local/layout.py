"""Where things are on this machine: one folder per session (and per shared Space) below the state folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shlex
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from durable_base.errors import UsageError

DEFAULT_STATE = Path(".durable")
SPACE_ENDING = ".space"  # of the folder of a Space that sessions share; no session's name has a dot
_SOCKET_PATH_MAX = 100  # bytes; the kernel's limit is 108 with the ending zero
_LOCK_TRIES = 5


class StateError(OSError):
    """The disk or its files fail under a command: nobody's mistake, so it ends with 1. The text says where and what to do."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of a session, or of a Space that sessions share. Deleting it forgets everything about it."""

    path: Path

    @property
    def state(self) -> Path:
        return self.path / "state.db"

    @property
    def lock(self) -> Path:
        """Held by the coordinator that works on this home."""
        return self.path / "lock"

    @property
    def log(self) -> Path:
        return self.path / "log.db"

    @property
    def workspace(self) -> Path:
        return self.path / "workspace"

    def drive(self, epoch: int) -> Path:
        """The one driver process of `epoch`: its claim, output, report and exit."""
        return self.path / "drives" / f"e{epoch}"

    def generation(self, generation: int) -> Path:
        """One placement of the Space: the daemon's data and token, and a folder for each run of the daemon."""
        return self.path / "space" / f"g{generation}"

    def epochs_seen(self) -> tuple[int, ...]:
        """Epochs that a folder of a drive names, whatever the store says (protocol rule 14)."""
        return _numbers(self.path / "drives", "e")

    def generations(self) -> tuple[int, ...]:
        return _numbers(self.path / "space", "g")

    def runs(self, generation: int) -> tuple[int, ...]:
        return _numbers(self.generation(generation), "run-")

    def socket(self, generation: int) -> Path:
        """Where the Space's daemon listens: beside its data, or for a deep folder in one of the temporary folder's own."""
        near = self.generation(generation).absolute() / "socket"
        if len(os.fsencode(near)) <= _SOCKET_PATH_MAX:
            return near
        digest = hashlib.sha256(os.fsencode(near)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"durable-{os.getuid()}-{digest}" / "socket"


def session_home(state: Path, session: str) -> Home:
    return Home(state / session)


def space_home(state: Path, session: str, space_ref: str | None) -> Home:
    """An inline Space lives with its session; a shared one has a folder of its own (no session's name has a dot)."""
    return Home(state / f"{space_ref}{SPACE_ENDING}") if space_ref else session_home(state, session)


def command(state: Path, *words: str) -> str:
    """`durable WORDS` as a person types it for this state folder: followed literally, it meets the same session."""
    where = () if state == DEFAULT_STATE else ("--state", str(state))
    return shlex.join(("durable", *words, *where))


def check_readable(folder: Path) -> None:
    """Raise UsageError for a folder that is there and can't be read, or is none. One that is not there yet is no mistake."""
    try:
        os.listdir(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unusable(folder, error) from error


def private_folder(path: Path) -> None:
    """Make it for this user alone. Raise UsageError if it is somebody else's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid() or path.is_symlink():
        raise UsageError(f"{path}: belongs to somebody else. Remove it, or set TMPDIR to a folder of your own.")


class Lock:
    """At most one coordinator works on a home. The kernel lets go of it when its process ends, however that comes about."""

    def __init__(self, home: Home) -> None:
        """Raise UsageError if another coordinator has it, or the folder can't be used."""
        try:
            home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(home.path, error) from error
        if not self._taken():
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise UsageError(
                f"{home.path}: another `durable run` (process {holder}) works on it. Wait for it or stop it, or name another "
                "folder with --state DIR."
            )
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def _taken(self) -> bool:
        """Tried more than once: who only asks whether it is held (`process.locked`) has it for an instant too."""
        for _ in range(_LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(0.01)
        return False

    def release(self) -> None:
        os.close(self._fd)


def unusable(folder: Path, error: OSError) -> Exception:
    """What to raise for it: a full disk is nobody's mistake, anything else is one of the user's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StateError(f"{folder}: {error.strerror}. Make room there, and run the same command again.")
    remedy = "Check its owner and mode, or name another with --state DIR."
    return UsageError(f"{folder}: the state folder can't be used ({error.strerror}). {remedy}")


def _numbers(folder: Path, prefix: str) -> tuple[int, ...]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return ()
    ends = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return tuple(sorted(int(end) for end in ends if end.isdigit()))

"""Where the test bed keeps things: its own files, the cache that outlives a run, and the folder of each run."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from durable_testbed.process import say

HERE = Path(__file__).resolve().parent.parent
REPOSITORY = HERE.parent.parent
MODULES = HERE / "modules"


def cache() -> Path:
    """The folder for what takes long to make: binaries and images."""
    top = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = top / "durable-sessions" / "testbed"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def runs() -> Path:
    """The folder that holds the run folders of this user."""
    top = Path(tempfile.gettempdir())
    if len(str(top)) > 30:  # sockets lie below; their paths have 108 characters at most
        top = Path("/tmp")
    folder = top / f"durable-testbed-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


@contextlib.contextmanager
def locked(lock: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock; says so once if another process has it. It ends with the process that holds it."""
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that makes {what}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def published(target: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name only when it is complete; call it with the lock held.

    Its name until then is new each time: a compiler that outlived its killed starter may still write to the last one.
    """
    for stale in target.parent.glob(f".{target.name}.*.new"):
        shutil.rmtree(stale, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))
    fresh.chmod(0o755)
    try:
        yield fresh
        shutil.rmtree(target, ignore_errors=True)
        fresh.replace(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)

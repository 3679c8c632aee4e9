"""The helper's process: `python3 helper.pyz WORKSPACE FOLDER INSTANCE`, spoken to over stdin and stdout.

FOLDER, outside the workspace, holds what the helper needs for itself, per workspace: its lock, and the links that name its
temporary files. Its first frame says hello, or why it can't serve.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from durable_space.files import errors_name
from durable_space.helper.conversation import Conversation, refused, send
from durable_space.helper.frames import Frame
from durable_space.helper.life import Life
from durable_space.helper.operations import Operations
from durable_space.refusal import Code, Reason, Refused, invalid
from durable_space.staging import Staging

PROTOCOL = 1
REFUSED = 3  # exit status: it can't serve, and its first frame says why
LOCK_SECONDS = 5.0  # for one that is being killed to be gone


def main(argv: Sequence[str]) -> int:
    sink = os.dup(1)
    os.dup2(2, 1)  # whatever prints, frames stay frames
    try:
        workspace, folder, instance = argv
        root, place = prepare(workspace, folder)
        lock = take_lock(place)
        staging = Staging(place / "staging", instance)
        staging.sweep()
        operations = Operations(root, Life(0), staging, place / "staging")
    except (Refused, OSError, ValueError) as error:
        refusal = error if isinstance(error, Refused) else invalid(f"the Space helper can't start: {error}")
        send(sink, Frame({"error": refused(refusal)}))
        return REFUSED
    send(sink, Frame({"hello": PROTOCOL, "python": platform.python_version(), "pid": os.getpid()}))
    try:
        return Conversation(0, sink, operations, place / "staging").run()
    finally:
        os.close(lock)


def prepare(workspace: str, folder: str) -> tuple[Path, Path]:
    """(the workspace, the helper's folder for it). Raise Refused."""
    with errors_name(workspace):
        root = os.path.realpath(workspace, strict=True)
        if not os.path.isdir(root):
            raise NotADirectoryError(20, "is not a directory")
    place = Path(folder) / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    with errors_name(folder):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        inside = os.path.commonpath([root, os.path.realpath(place)]) == root
    if inside:
        raise invalid(f"{folder}: the helper's folder lies in the workspace {root}: name another one", path=folder)
    return Path(root), place


def take_lock(place: Path) -> int:
    """Held for this process's life, whatever ends it. Raise Refused (HelperBusy)."""
    fd = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise Refused(
                    Code.FAILED_PRECONDITION,
                    Reason.UNSPECIFIED,
                    "another driver's Space helper works in this workspace: end that driver",
                    condition="HelperBusy",
                ) from None
            time.sleep(0.02)

"""ExecutionEnv: files and commands where the tools work. Tools reach the world through it alone.

Guarantee: two environments with equal `id` see the same files at the same paths. Errors are `FileError` and `ExecError`, with
a code; nothing else is raised but what must never become a tool's result (`StaleEpochError`, `HaltError`, cancellation).
Paths: absolute, relative to `cwd`, `~` and `~/x`, or a `file:` URL (a malformed one is a plain path).

Aborting is cancelling, and there is no other signal: whoever wants to abort an operation cancels the task that awaits it, and
that task gets `CancelledError`, never a result and never an `aborted` error. A task that was cancelled before it came to an
operation does nothing of it: every method, however small, first lets a pending cancellation through. Cancelled while it is under
way, a change of files has happened whole or not at all, a read has taken nothing, and a command is killed with its process group
(that one only). The code `aborted` is for what an environment gave up by itself; the message says why.

`durable_harness.testing.check_env` holds an implementation to all of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self, runtime_checkable

FileCode = Literal["aborted", "not_found", "permission_denied", "not_directory", "is_directory", "invalid", "unknown"]
ExecCode = Literal["aborted", "timeout", "shell_unavailable", "spawn_error", "callback_error", "unknown"]
FileKind = Literal["file", "directory", "symlink"]
Stream = Literal["stdout", "stderr"]

TIMEOUT_MAX = 2_147_483.647  # seconds


class FileError(Exception):
    """A file operation was refused; nothing of it took effect. `path` is absolute."""

    def __init__(self, code: FileCode, path: str, message: str = "") -> None:
        super().__init__(f"{path}: {message or code.replace('_', ' ')}")
        self.code: FileCode = code
        self.path = path


class ExecError(Exception):
    """A command could not be run to its end. A command that ended with a status other than 0 is not an error."""

    def __init__(self, code: ExecCode, message: str, *, spill_path: str | None = None) -> None:
        super().__init__(message)
        self.code: ExecCode = code
        self.spill_path = spill_path


def check_timeout(seconds: float | None) -> None:
    """Raise ExecError: no command can be given such a time."""
    if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= TIMEOUT_MAX):
        raise ExecError("timeout", f"a timeout is more than 0 and at most {TIMEOUT_MAX} seconds, not {seconds}")


@dataclass(frozen=True, slots=True)
class FileInfo:
    name: str
    path: str  # absolute
    kind: FileKind
    size: int  # bytes
    mtime_ms: int


@dataclass(frozen=True, slots=True)
class Line:
    text: str  # without its LF; a CR stays
    terminated: bool


@dataclass(frozen=True, slots=True)
class Spill:
    """Once output passes either limit, all of it (raw bytes) goes to a temporary file as well."""

    after_bytes: int
    after_lines: int


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int  # 128 + n for a death by signal n
    spill_path: str | None = None


class Reader(Protocol):
    """What is held open. Closing twice is fine; anything else after it is `invalid`. A cancelled read takes nothing.

    Closed at the end of an `async with` too. It stays the file it was opened as, whatever happens to the path.
    """

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class LineReader(Reader, Protocol):
    async def read_line(self) -> Line | None:
        """The next one, split at LF alone; None at the end, again and again, or until the file has grown."""
        ...


@dataclass(frozen=True, slots=True)
class LineScan:
    offset: int  # behind the last line break passed; where the file ended before that, its end
    lines: int  # line breaks passed


class BinaryReader(Reader, Protocol):
    async def info(self) -> FileInfo:
        """As it is now, under the path that it was opened by."""
        ...

    async def read(self, offset: int, length: int) -> bytes:
        """Fewer than `length` bytes only at the end of the file."""
        ...

    async def scan_lines(self, offset: int, max_lines: int) -> LineScan:
        """Pass at most `max_lines` LFs from `offset` on, without handing out what lies between."""
        ...


class DirReader(Reader, Protocol):
    async def read_page(self, max_entries: int) -> list[FileInfo]:
        """The next entries in the file system's own order, at most so many (from 1); none at the end.

        Entries that have vanished and those of no `FileKind` are left out.
        """
        ...


@runtime_checkable
class ExecutionEnv(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def cwd(self) -> str:
        """Absolute."""
        ...

    async def absolute_path(self, path: str) -> str: ...

    async def join_path(self, *parts: str) -> str:
        """Joined by slashes and without `.` and `..`; an absolute part begins anew. Touches nothing."""
        ...

    async def canonical_path(self, path: str) -> str:
        """All symlinks resolved. not_found where something lacks."""
        ...

    async def read_text(self, path: str) -> str: ...

    async def read_lines(self, path: str, max_lines: int | None = None) -> list[Line]:
        """`max_lines` <= 0 gives none."""
        ...

    async def read_binary(self, path: str, offset: int = 0, length: int | None = None) -> bytes: ...

    async def open_line_reader(self, path: str) -> LineReader: ...

    async def open_binary_reader(self, path: str, *, no_follow: bool = False) -> BinaryReader:
        """Regular files only: a folder is `is_directory`, anything else `invalid`, under `no_follow` a symlink too."""
        ...

    async def open_dir_reader(self, path: str) -> DirReader: ...

    async def write(self, path: str, data: str | bytes) -> None:
        """Replace the whole file, atomically; parents are made."""
        ...

    async def append(self, path: str, data: str | bytes) -> None: ...

    async def truncate(self, path: str, size: int) -> None:
        """Cut or extend with zeros; never creates."""
        ...

    async def flush(self, path: str) -> None:
        """fsync of a regular file. Where the system refuses it the code is `unknown`."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Atomic, replaces; an error names the source."""
        ...

    async def file_info(self, path: str) -> FileInfo:
        """lstat. Kinds other than `FileKind` are `invalid`."""
        ...

    async def list_dir(self, path: str) -> list[FileInfo]: ...

    async def exists(self, path: str) -> bool:
        """False for not_found alone; other errors are raised."""
        ...

    async def create_dir(self, path: str, *, recursive: bool = True) -> None:
        """With parents, and an existing folder is fine; not recursive it is `invalid`, and a missing parent `not_found`."""
        ...

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        """A folder only with `recursive`; what is missing only with `force`. A symlink itself, never its target."""
        ...

    async def temp_dir(self, prefix: str = "tmp-") -> str:
        """A new, empty folder. A prefix with a slash is `invalid`."""
        ...

    async def temp_file(self, prefix: str = "tmp-", suffix: str = "") -> str:
        """A new, empty file in a new folder of its own."""
        ...

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = True,
        timeout: float | None = None,
        on_output: Callable[[str, Stream], None] | None = None,
        spill: Spill | None = None,
    ) -> ExecResult:
        """Run to the end. A str goes to a shell (`-c`); a sequence runs directly. stdin is closed.

        The command's environment is this one's, then what this one was configured with, then `env`; without `inherit_env` it
        is `env` alone. An empty text is a value like any other. Output comes as text, decoded for each stream by itself (what
        is no UTF-8 as U+FFFD), and never after the end. The end is waited for until both outputs have ended, or nothing has
        come for 100 ms: what a command leaves in the background does not hold it up.

        Checked before anything starts, in this order: cancelled, `timeout` (seconds, more than 0 and at most TIMEOUT_MAX),
        shell, the command itself, `cwd`. Of several failures the first of these is told: `callback_error` (`on_output` raised;
        the command is killed), `timeout`, a spill that could not be written (`unknown`; the command may have run to its end).
        Cancelling the caller kills the command (this one only) unless the environment says that it outlives its caller.
        """
        ...

    async def cleanup(self) -> None:
        """Kill every command that was started here and runs; each settles as one that SIGKILL ended. For the owner's shutdown."""
        ...

"""ExecutionEnv: files and commands where the tools work. Tools reach the world through it alone.

Guarantee: two environments with equal `id` see the same files at the same paths. Errors are `FileError` and `ExecError`, with
a code; nothing else is raised but what must never become a tool's result (`StaleEpochError`, `HaltError`, cancellation).
Paths: absolute, relative to `cwd`, `~` and `~/x`, or a `file:` URL (a malformed one is a plain path).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

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


@runtime_checkable
class ExecutionEnv(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def cwd(self) -> str:
        """Absolute."""
        ...

    async def absolute_path(self, path: str) -> str: ...

    async def canonical_path(self, path: str) -> str:
        """All symlinks resolved. not_found where something lacks."""
        ...

    async def read_text(self, path: str) -> str: ...

    async def read_lines(self, path: str, max_lines: int | None = None) -> list[Line]:
        """`max_lines` <= 0 gives none."""
        ...

    async def read_binary(self, path: str, offset: int = 0, length: int | None = None) -> bytes: ...

    async def write(self, path: str, data: str | bytes) -> None:
        """Replace the whole file, atomically; parents are made."""
        ...

    async def append(self, path: str, data: str | bytes) -> None: ...

    async def truncate(self, path: str, size: int) -> None:
        """Cut or extend with zeros; never creates."""
        ...

    async def flush(self, path: str) -> None:
        """fsync."""
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

    async def create_dir(self, path: str, *, recursive: bool = True) -> None: ...

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None: ...

    async def temp_dir(self, prefix: str = "tmp-") -> str: ...

    async def temp_file(self, prefix: str = "tmp-", suffix: str = "") -> str: ...

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

        Cancelling the caller kills the command (this one only) unless the environment says that it outlives its caller.
        """
        ...

"""What is asked of a Space, whoever serves it: the daemon's own `durable.space.v1` (`client`), or the Space helper (`cua`).

Each says the same by the same errors: FileError of files, SpaceRefused where nothing was done, StaleEpochError and HaltError for
what ends the drive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from durable_base.floor import Floor
from durable_harness.env import FileInfo, Line
from durable_spaces import image
from durable_spaces._commands import CommandEnd, CommandSpec, Sinks
from durable_spaces._opened import SpaceBinaryReader, SpaceDirReader
from durable_spaces.document import Identity
from durable_spaces.image import Node
from durable_spaces.limits import Limits


class FileOperations(Protocol):
    """By absolute path."""

    async def canonical(self, path: str) -> str: ...

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes: ...

    async def read_lines(self, path: str, max_lines: int | None) -> list[Line]: ...

    async def open_file(self, path: str, *, no_follow: bool) -> SpaceBinaryReader: ...

    async def open_folder(self, path: str) -> SpaceDirReader: ...

    async def write(self, path: str, data: bytes) -> None:
        """The whole file, or nothing of it; parents are made."""
        ...

    async def append(self, path: str, data: bytes) -> None: ...

    async def truncate(self, path: str, size: int) -> None: ...

    async def flush(self, path: str) -> None: ...

    async def rename(self, source: str, target: str) -> None: ...

    async def info(self, path: str, *, follow: bool = False) -> FileInfo: ...

    async def list_dir(self, path: str) -> list[FileInfo]: ...

    async def create_dir(self, path: str, *, recursive: bool) -> None: ...

    async def remove(self, path: str, *, recursive: bool, force: bool) -> None: ...

    async def mode(self, path: str) -> int | None:
        """Permission bits of a regular file, symlinks followed; None where there is no such file."""
        ...

    async def make_temp(self, *, directory: bool, prefix: str, suffix: str = "") -> str: ...


class WorkspaceOperations(Protocol):
    async def scan(self, limits: Limits, *, no_cache: bool = False, unlimited: bool = False) -> dict[bytes, Node]: ...

    async def read_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]: ...

    async def apply(self, plan: image.ApplyPlan, bytes_of: Callable[[str], bytes]) -> None: ...


class CommandOperations(Protocol):
    async def run(self, spec: CommandSpec, request_id: str, sinks: Sinks) -> CommandEnd: ...

    async def attach(self, request_id: str, sinks: Sinks) -> CommandEnd: ...

    async def output(self, request_id: str) -> tuple[bytes, int]: ...

    async def kill(self, request_id: str) -> None: ...


class Space(Protocol):
    """In which nothing older than this drive acts any more, as far as its daemon can prove that."""

    @property
    def own(self) -> Floor: ...

    @property
    def identity(self) -> Identity: ...

    @property
    def root(self) -> str:
        """The workspace, absolute."""
        ...

    @property
    def files(self) -> FileOperations: ...

    @property
    def workspace(self) -> WorkspaceOperations: ...

    @property
    def commands(self) -> CommandOperations: ...

    shell: str | None  # once it has been looked for

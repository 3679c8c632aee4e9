"""LocalExecutionEnv: the files and commands of this process's own machine, without isolation and without exactly-once.

For a harness without Spaces, and the plain reading of the `ExecutionEnv` contract. What `write` and `rename` leave survives
SIGKILL, whole or not at all; `flush` makes a file survive power loss too. A command dies with its caller, not with this process.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from durable_base.handles import OpenFile, OpenFolder
from durable_harness import local_files
from durable_harness.env import ExecResult, FileError, FileInfo, Line, Spill, Stream
from durable_harness.env_paths import absolute, check_affix, check_whole, joined, to_bytes
from durable_harness.line_reader import BufferedLineReader
from durable_harness.local_exec import Command, check_command, run_command
from durable_harness.local_readers import LocalBinaryReader, LocalDirReader

T = TypeVar("T")


class LocalExecutionEnv:
    def __init__(
        self,
        cwd: str | os.PathLike[str],
        *,
        env: Mapping[str, str] | None = None,
        shell: str | None = None,
        temp: str | os.PathLike[str] | None = None,
    ) -> None:
        """`env` is added to this process's environment for each command; `shell` takes `-c`, default bash, else sh; `temp` is
        where temporary files and kept output go, default the system's folder for them."""
        self._cwd = os.path.abspath(cwd)
        self._env = dict(env or {})
        self._shell = shell
        self._temp = None if temp is None else os.path.abspath(temp)
        self._running: set[Command] = set()

    @property
    def id(self) -> str:
        return "local"  # one machine, one file system: the same files at the same paths whatever `cwd`

    @property
    def cwd(self) -> str:
        return self._cwd

    async def absolute_path(self, path: str) -> str:
        await asyncio.sleep(0)
        return self._absolute(path)

    async def join_path(self, *parts: str) -> str:
        await asyncio.sleep(0)
        return joined(*parts)

    async def canonical_path(self, path: str) -> str:
        return await self._files(path, lambda target: os.path.realpath(target, strict=True))

    async def read_text(self, path: str) -> str:
        """Bytes that are not UTF-8 become U+FFFD; line ends stay as they are."""
        return (await self.read_binary(path)).decode("utf-8", "replace")

    async def read_lines(self, path: str, max_lines: int | None = None) -> list[Line]:
        return await self._files(path, lambda target: local_files.lines(target, max_lines))

    async def read_binary(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        def read(target: str) -> bytes:
            check_whole(target, "offset", offset)
            check_whole(target, "length", length or 0)
            return local_files.read(target, offset, length)

        return await self._files(path, read)

    async def open_line_reader(self, path: str) -> BufferedLineReader:
        reader = await self.open_binary_reader(path)
        return BufferedLineReader(reader, self._absolute(path))

    async def open_binary_reader(self, path: str, *, no_follow: bool = False) -> LocalBinaryReader:
        return await self._files(path, lambda target: LocalBinaryReader(OpenFile(target, no_follow=no_follow), target))

    async def open_dir_reader(self, path: str) -> LocalDirReader:
        return await self._files(path, lambda target: LocalDirReader(OpenFolder(target), target))

    async def write(self, path: str, data: str | bytes) -> None:
        await self._files(path, lambda target: local_files.write(target, to_bytes(data)))

    async def append(self, path: str, data: str | bytes) -> None:
        await self._files(path, lambda target: local_files.append(target, to_bytes(data)))

    async def truncate(self, path: str, size: int) -> None:
        def truncate(target: str) -> None:
            check_whole(target, "size", size)
            os.truncate(target, size)

        await self._files(path, truncate)

    async def flush(self, path: str) -> None:
        await self._files(path, local_files.flush)

    async def rename(self, source: str, target: str) -> None:
        goal = self._absolute(target)
        await self._files(source, lambda origin: os.rename(origin, goal))

    async def file_info(self, path: str) -> FileInfo:
        return await self._files(path, lambda target: local_files.info_of(target, os.lstat(target)))

    async def list_dir(self, path: str) -> list[FileInfo]:
        """By name. Entries that vanish meanwhile, and those that are no file, directory or symlink, are left out."""
        return await self._files(path, local_files.entries)

    async def exists(self, path: str) -> bool:
        try:
            await self._files(path, os.lstat)
        except FileError as error:
            if error.code == "not_found":
                return False
            raise
        return True

    async def create_dir(self, path: str, *, recursive: bool = True) -> None:
        await self._files(path, lambda target: os.makedirs(target, exist_ok=True) if recursive else os.mkdir(target))

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        await self._files(path, lambda target: local_files.remove(target, recursive=recursive, force=force))

    async def temp_dir(self, prefix: str = "tmp-") -> str:
        return await self._temporary(lambda folder: tempfile.mkdtemp(prefix=prefix, dir=folder), prefix)

    async def temp_file(self, prefix: str = "tmp-", suffix: str = "") -> str:
        return await self._temporary(lambda folder: local_files.temporary(folder, prefix, suffix), prefix, suffix)

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
        await asyncio.sleep(0)  # a caller cancelled before now starts nothing
        argv, folder = check_command(
            command, shell=self._shell, env=env or {}, cwd=lambda: self._absolute(cwd or "."), timeout=timeout
        )
        environment = {**os.environ, **self._env, **(env or {})} if inherit_env else dict(env or {})
        running = Command(on_output, spill, self._temp)
        self._running.add(running)
        try:
            return await run_command(running, argv, cwd=folder, env=environment, timeout=timeout)
        finally:
            self._running.discard(running)

    async def cleanup(self) -> None:
        """Kill every command that runs. Their callers get its end as of a death by signal. For the owner's shutdown only."""
        for command in self._running:
            command.kill()

    def _absolute(self, path: str) -> str:
        return absolute(path, self._cwd, os.path.expanduser("~"))

    async def _files(self, path: str, act: Callable[[str], T]) -> T:
        """Run `act` on the absolute path, off the loop; errors become FileErrors. A caller cancelled before it does nothing."""
        await asyncio.sleep(0)
        target = self._absolute(path)
        return await asyncio.to_thread(local_files.errors_as_file_errors, target, lambda: act(target))

    async def _temporary(self, make: Callable[[str], str], *affixes: str) -> str:
        folder = self._temp or tempfile.gettempdir()

        def act(target: str) -> str:
            check_affix(target, *affixes)
            return make(target)

        return await self._files(folder, act)

"""SpaceExecutionEnv: the harness's files and commands, inside a Space.

Every effect passes a `Conduct` first: within a tool call it commits the start mark and gives commands their key; outside one it
only waits until the workspace is what the log says. A command outlives its caller here: a driver that ends or dies leaves it
running, and the next one attaches to it.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from durable_harness.env import (
    ExecError,
    ExecResult,
    FileError,
    FileInfo,
    Line,
    Spill,
    Stream,
    check_timeout,
)
from durable_harness.env_paths import (
    absolute,
    check_affix,
    check_text,
    check_whole,
    joined,
    needs_home,
    to_bytes,
)
from durable_harness.line_reader import BufferedLineReader
from durable_spaces._command_output import CommandOutput
from durable_spaces._commands import CommandEnd, CommandSpec, Sinks
from durable_spaces._errors import SpaceRefused
from durable_spaces._launch import Launches
from durable_spaces._opened import SpaceBinaryReader, SpaceDirReader
from durable_spaces._parts import Space


class Conduct(Protocol):
    """What stands between a tool and the Space."""

    async def reading(self) -> None:
        """Before anything is read."""
        ...

    async def changing(self) -> None:
        """Before a file is changed."""
        ...

    async def execute(self, spec: CommandSpec, sinks: Sinks) -> tuple[str, CommandEnd]:
        """Run (or attach to) a command; its request id and its end."""
        ...


class SpaceExecutionEnv:
    def __init__(
        self,
        space: Space,
        conduct: Conduct,
        cwd: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        shell: str | None = None,
    ) -> None:
        """`cwd` is absolute or relative to the workspace. `env` is added to the Space's environment for each command; `shell`
        takes `-c`, default the first that the Space has of bash and sh. Both are part of a command's hash: the same ones in
        every drive."""
        self._space = space
        self._conduct = conduct
        self._launches = Launches(space, dict(env or {}), shell)
        self._home: str | None = None
        self._running: set[str] = set()  # request ids
        self._cwd = posixpath.normpath(posixpath.join(space.root, cwd or ""))

    @property
    def id(self) -> str:
        return f"space:{self._space.identity.instance}"

    @property
    def cwd(self) -> str:
        return self._cwd

    # ---- paths

    async def absolute_path(self, path: str) -> str:
        await asyncio.sleep(0)  # a caller cancelled before now does nothing
        if needs_home(path) and self._home is None:
            self._home = await self._space.files.canonical("~")
        target = absolute(path, self._cwd, self._home or "")
        check_text(target)
        return target

    async def join_path(self, *parts: str) -> str:
        await asyncio.sleep(0)
        return joined(*parts)

    async def canonical_path(self, path: str) -> str:
        return await self._space.files.canonical(await self._readable(path))

    async def _readable(self, path: str) -> str:
        await asyncio.sleep(0)  # a caller cancelled before now does nothing
        await self._conduct.reading()
        return await self.absolute_path(path)

    async def _changeable(self, path: str) -> str:
        await asyncio.sleep(0)
        target = await self.absolute_path(path)  # what is no path at all is refused before any effect is announced
        await self._conduct.changing()
        return target

    # ---- reading

    async def read_text(self, path: str) -> str:
        """Bytes that are not UTF-8 become U+FFFD; line ends stay as they are."""
        return (await self.read_binary(path)).decode("utf-8", "replace")

    async def read_lines(self, path: str, max_lines: int | None = None) -> list[Line]:
        target = await self._readable(path)
        if max_lines is not None and max_lines <= 0:
            await self._space.files.read(target, 0, 0)
            return []
        return await self._space.files.read_lines(target, max_lines)

    async def read_binary(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        target = await self._readable(path)
        check_whole(target, "offset", offset)
        check_whole(target, "length", length or 0)
        return await self._space.files.read(target, offset, length)

    async def open_line_reader(self, path: str) -> BufferedLineReader:
        target = await self._readable(path)
        return BufferedLineReader(await self._space.files.open_file(target, no_follow=False), target)

    async def open_binary_reader(self, path: str, *, no_follow: bool = False) -> SpaceBinaryReader:
        return await self._space.files.open_file(await self._readable(path), no_follow=no_follow)

    async def open_dir_reader(self, path: str) -> SpaceDirReader:
        return await self._space.files.open_folder(await self._readable(path))

    async def file_info(self, path: str) -> FileInfo:
        return await self._space.files.info(await self._readable(path))

    async def list_dir(self, path: str) -> list[FileInfo]:
        return await self._space.files.list_dir(await self._readable(path))

    async def exists(self, path: str) -> bool:
        try:
            await self.file_info(path)
        except FileError as error:
            if error.code == "not_found":
                return False
            if error.code != "invalid":
                raise
        return True

    # ---- changing

    async def write(self, path: str, data: str | bytes) -> None:
        await self._space.files.write(await self._changeable(path), to_bytes(data))

    async def append(self, path: str, data: str | bytes) -> None:
        await self._space.files.append(await self._changeable(path), to_bytes(data))

    async def truncate(self, path: str, size: int) -> None:
        check_whole(await self.absolute_path(path), "size", size)
        await self._space.files.truncate(await self._changeable(path), size)

    async def flush(self, path: str) -> None:
        await self._space.files.flush(await self._readable(path))

    async def rename(self, source: str, target: str) -> None:
        goal = await self.absolute_path(target)
        await self._space.files.rename(await self._changeable(source), goal)

    async def create_dir(self, path: str, *, recursive: bool = True) -> None:
        await self._space.files.create_dir(await self._changeable(path), recursive=recursive)

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        target = await self._changeable(path)
        if not recursive and await self._is_folder(target):  # the Space would take an empty one away
            raise FileError("is_directory", target, "is a directory; remove it recursively")
        await self._space.files.remove(target, recursive=recursive, force=force)

    async def _is_folder(self, target: str) -> bool:
        try:
            return (await self._space.files.info(target)).kind == "directory"
        except FileError:
            return False

    async def temp_dir(self, prefix: str = "tmp-") -> str:
        await self._temporary(prefix)
        return await self._space.files.make_temp(directory=True, prefix=prefix)

    async def temp_file(self, prefix: str = "tmp-", suffix: str = "") -> str:
        await self._temporary(prefix, suffix)
        return await self._space.files.make_temp(directory=False, prefix=prefix, suffix=suffix)

    async def _temporary(self, *affixes: str) -> None:
        await asyncio.sleep(0)
        check_affix(self._cwd, *affixes)
        check_text("".join(affixes))
        await self._conduct.changing()

    # ---- commands

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
        check_timeout(timeout)
        await self._conduct.reading()
        spec = await self._launches.spec(command, lambda: self._folder(cwd), env or {}, inherit_env, timeout)
        output = CommandOutput(on_output, spill)
        request_id = ""

        def following(name: str) -> None:
            nonlocal request_id
            request_id = name
            self._running.add(name)

        sinks = Sinks(
            output=output.take, following=following, gap=output.gap, spoiled=lambda: output.failure is not None
        )
        try:
            _, end = await self._conduct.execute(spec, sinks)
        except SpaceRefused as refused:
            raise ExecError("spawn_error", refused.refusal.message) from refused
        finally:
            self._running.discard(request_id)
        if not end.spawned:
            raise ExecError("spawn_error", f"the command can't be started: {end.trouble}")
        output.finish(end.trouble)
        return await self._result(request_id, end, output, timeout)

    async def _result(
        self, request_id: str, end: CommandEnd, output: CommandOutput, timeout: float | None
    ) -> ExecResult:
        """Precedence of what is told: callback error, timeout, failed spill, exit code."""
        spill_path, unkept = None, None
        if output.passed:
            try:
                spill_path = await self._spilled(request_id)
            except ExecError as error:
                unkept = error
        if output.failure is not None:
            raise ExecError(
                "callback_error", f"the receiver of the output failed: {output.failure!r}", spill_path=spill_path
            ) from output.failure
        if end.timed_out:
            raise ExecError("timeout", f"no end within {timeout or 0:g} seconds: killed", spill_path=spill_path)
        if unkept is not None:
            raise unkept
        return ExecResult(end.exit_code, spill_path)

    async def cleanup(self) -> None:
        """Kill every command that was started or attached to here and runs. For the owner's shutdown only: a driver that goes
        leaves them to the next one."""
        for request_id in sorted(self._running):
            await self._space.commands.kill(request_id)

    async def _folder(self, cwd: str | None) -> str:
        try:
            folder = self._cwd if cwd is None else await self.absolute_path(cwd)
            kind = (await self._space.files.info(folder, follow=True)).kind
        except FileError as error:
            raise ExecError("spawn_error", f"the working directory {error}") from error
        if kind != "directory":
            raise ExecError("spawn_error", f"the working directory {folder} is not a directory")
        return folder

    async def _spilled(self, request_id: str) -> str:
        """All of the output in a temporary file of the Space, from what the Space keeps of it."""
        data, gone = await self._space.commands.output(request_id)
        if gone:
            raise ExecError("unknown", f"the output can't be kept: its first {gone} bytes are gone from the Space")
        try:
            path = await self._space.files.make_temp(directory=False, prefix="output-", suffix=".txt")
            await self._space.files.write(path, data)
        except FileError as error:
            raise ExecError("unknown", f"the output can't be kept: {error}") from error
        return path

"""SpaceExecutionEnv: the harness's files and commands, inside a Space.

Every effect passes a `Conduct` first: within a tool call it commits the start mark and gives commands their key; outside one it
only waits until the workspace is what the log says. A command outlives its caller here: a driver that ends or dies leaves it
running, and the next one attaches to it.
"""

from __future__ import annotations

import codecs
import math
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import unquote, urlsplit

from durable_base.errors import HaltError, StaleEpochError
from durable_harness.env import (
    TIMEOUT_MAX,
    ExecError,
    ExecResult,
    FileError,
    FileInfo,
    Line,
    Spill,
    Stream,
)
from durable_spaces._commands import CommandEnd, CommandSpec, Sinks
from durable_spaces._errors import SpaceRefused
from durable_spaces.client import FencedSpace

_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh")


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
    def __init__(self, space: FencedSpace, conduct: Conduct, cwd: str | None = None) -> None:
        self._space = space
        self._conduct = conduct
        self._home: str | None = None
        self._cwd = posixpath.normpath(posixpath.join(space.root, cwd or ""))

    @property
    def id(self) -> str:
        return f"space:{self._space.identity.instance}"

    @property
    def cwd(self) -> str:
        return self._cwd

    # ---- paths

    async def absolute_path(self, path: str) -> str:
        path = _from_url(path)
        if path == "~" or path.startswith("~/"):
            if self._home is None:
                self._home = await self._space.files.canonical("~")
            path = self._home + path[1:]
        return posixpath.normpath(posixpath.join(self._cwd, path))

    async def canonical_path(self, path: str) -> str:
        return await self._space.files.canonical(await self._readable(path))

    async def _readable(self, path: str) -> str:
        await self._conduct.reading()
        return await self.absolute_path(path)

    async def _changeable(self, path: str) -> str:
        await self._conduct.changing()
        return await self.absolute_path(path)

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
        _check(target, "offset", offset)
        _check(target, "length", length or 0)
        return await self._space.files.read(target, offset, length)

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
        await self._space.files.write(await self._changeable(path), _bytes(data))

    async def append(self, path: str, data: str | bytes) -> None:
        await self._space.files.append(await self._changeable(path), _bytes(data))

    async def truncate(self, path: str, size: int) -> None:
        _check(await self.absolute_path(path), "size", size)
        await self._space.files.truncate(await self._changeable(path), size)

    async def flush(self, path: str) -> None:
        await self._space.files.flush(await self._readable(path))

    async def rename(self, source: str, target: str) -> None:
        origin = await self._changeable(source)
        await self._space.files.rename(origin, await self.absolute_path(target))

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
        await self._conduct.changing()
        return await self._space.files.make_temp(directory=True, prefix=prefix)

    async def temp_file(self, prefix: str = "tmp-", suffix: str = "") -> str:
        await self._conduct.changing()
        return await self._space.files.make_temp(directory=False, prefix=prefix, suffix=suffix)

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
        if timeout is not None and not (math.isfinite(timeout) and 0 < timeout <= TIMEOUT_MAX):
            raise ExecError("timeout", f"a timeout is more than 0 and at most {TIMEOUT_MAX} seconds, not {timeout}")
        await self._conduct.reading()
        argv = await self._argv(command)
        folder = self._cwd if cwd is None else await self.absolute_path(cwd)
        await self._check_folder(folder)
        if not inherit_env:
            argv = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in (env or {}).items()), *argv]
        spec = CommandSpec(
            argv[0],
            tuple(argv[1:]),
            dict(env or {}) if inherit_env else {},
            folder,
            None if timeout is None else max(1, round(timeout * 1e9)),
        )
        output = _Output(on_output, spill)
        try:
            sinks = Sinks(output=output.take, gap=output.gap, spoiled=lambda: output.failure is not None)
            request_id, end = await self._conduct.execute(spec, sinks)
        except SpaceRefused as refused:
            raise ExecError("spawn_error", refused.refusal.message) from refused
        if not end.spawned:
            raise ExecError("spawn_error", f"the command can't be started: {end.trouble}")
        output.finish(end.trouble)
        spill_path = await self._spilled(request_id) if output.passed else None
        if output.failure is not None:
            raise ExecError(
                "callback_error", f"the receiver of the output failed: {output.failure!r}", spill_path=spill_path
            ) from output.failure
        if end.timed_out:
            raise ExecError("timeout", f"no end within {timeout or 0:g} seconds: killed", spill_path=spill_path)
        return ExecResult(end.exit_code, spill_path)

    async def _argv(self, command: str | Sequence[str]) -> list[str]:
        if isinstance(command, str):
            return [await self._shell(), "-c", command]
        if not command:
            raise ExecError("spawn_error", "the command is empty")
        return list(command)

    async def _shell(self) -> str:
        """The same one in the same Space, for every drive: it is part of the command's hash."""
        if self._space.shell is not None:
            return self._space.shell
        for candidate in _SHELLS:
            try:
                await self._space.files.info(candidate, follow=True)
            except FileError:
                continue
            self._space.shell = candidate
            return candidate
        raise ExecError("shell_unavailable", f"no shell in the Space: none of {', '.join(_SHELLS)} is there")

    async def _check_folder(self, folder: str) -> None:
        try:
            kind = (await self._space.files.info(folder, follow=True)).kind
        except FileError as error:
            raise ExecError("spawn_error", f"the working directory {folder}: {error.code.replace('_', ' ')}") from error
        if kind != "directory":
            raise ExecError("spawn_error", f"the working directory {folder} is not a directory")

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


class _Output:
    """What a command says, as text for the caller, and whether it passed the limits of the spill."""

    def __init__(self, on_output: Callable[[str, Stream], None] | None, spill: Spill | None) -> None:
        self._on_output = on_output
        self._spill = spill
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._bytes = 0
        self._lines = 0
        self.failure: Exception | None = None  # of the receiver

    @property
    def passed(self) -> bool:
        limits = self._spill
        return limits is not None and (self._bytes > limits.after_bytes or self._lines > limits.after_lines)

    def take(self, data: bytes, stream: Stream) -> None:
        self._bytes += len(data)
        self._lines += data.count(b"\n")
        self._hand_on(self._decoders[stream].decode(data), stream)

    def gap(self, size: int) -> None:
        self._bytes += size
        self._hand_on(f"[{size} bytes of output are no longer kept]\n", "stdout")

    def finish(self, trouble: str) -> None:
        self._hand_on(self._decoders["stdout"].decode(b"", True), "stdout")
        self._hand_on(self._decoders["stderr"].decode(b"", True), "stderr")
        if trouble:
            self._hand_on(f"[{trouble}]\n", "stderr")

    def _hand_on(self, text: str, stream: Stream) -> None:
        if not text or self._on_output is None or self.failure is not None:
            return
        try:
            self._on_output(text, stream)
        except (HaltError, StaleEpochError):
            raise
        except Exception as error:
            self.failure = error


def _from_url(path: str) -> str:
    if not path.startswith("file:"):
        return path
    try:
        url = urlsplit(path)
    except ValueError:
        return path
    if url.netloc not in ("", "localhost") or not url.path.startswith("/") or url.query or url.fragment:
        return path
    return unquote(url.path)


def _bytes(data: str | bytes) -> bytes:
    return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data


def _check(target: str, name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FileError("invalid", target, f"{name} is a whole number from 0, not {value!r}")

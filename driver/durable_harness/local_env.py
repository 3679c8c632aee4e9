"""LocalExecutionEnv: the files and commands of this process's own machine, without isolation and without exactly-once.

For a harness without Spaces, and the plain reading of the `ExecutionEnv` contract. What `write` and `rename` leave survives
SIGKILL, whole or not at all; `flush` makes a file survive power loss too. A command dies with its caller, not with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from durable_base.files import sync_folder, write_atomic
from durable_harness.env import ExecResult, FileCode, FileError, FileInfo, FileKind, Line, Spill, Stream
from durable_harness.local_exec import Command, check_command, run_command

T = TypeVar("T")

_CODES: Mapping[int, FileCode] = {
    errno.ENOENT: "not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.ENOTDIR: "not_directory",
    errno.EISDIR: "is_directory",
    errno.EINVAL: "invalid",
    errno.ENOTEMPTY: "invalid",
    errno.EEXIST: "invalid",
    errno.ENAMETOOLONG: "invalid",
    errno.ELOOP: "invalid",
}


class LocalExecutionEnv:
    """`env` is added to this process's environment for each command; `shell` takes `-c`, default bash, else sh."""

    def __init__(self, cwd: str | os.PathLike[str], *, env: Mapping[str, str] | None = None, shell: str | None = None):
        self._cwd = os.path.abspath(cwd)
        self._env = dict(env or {})
        self._shell = shell
        self._running: set[Command] = set()

    @property
    def id(self) -> str:
        return "local"  # one machine, one file system: the same files at the same paths whatever `cwd`

    @property
    def cwd(self) -> str:
        return self._cwd

    async def absolute_path(self, path: str) -> str:
        return self._absolute(path)

    async def canonical_path(self, path: str) -> str:
        return await self._files(path, lambda target: os.path.realpath(target, strict=True))

    async def read_text(self, path: str) -> str:
        """Bytes that are not UTF-8 become U+FFFD; line ends stay as they are."""
        return (await self.read_binary(path)).decode("utf-8", "replace")

    async def read_lines(self, path: str, max_lines: int | None = None) -> list[Line]:
        return await self._files(path, lambda target: list(_lines(target, max_lines)))

    async def read_binary(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        def read(target: str) -> bytes:
            _check(target, "offset", offset)
            _check(target, "length", length or 0)
            with open(target, "rb") as file:
                file.seek(offset)
                return file.read(-1 if length is None else length)

        return await self._files(path, read)

    async def write(self, path: str, data: str | bytes) -> None:
        await self._files(path, lambda target: _write(target, _bytes(data)))

    async def append(self, path: str, data: str | bytes) -> None:
        def append(target: str) -> None:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "ab") as file:
                file.write(_bytes(data))

        await self._files(path, append)

    async def truncate(self, path: str, size: int) -> None:
        def truncate(target: str) -> None:
            _check(target, "size", size)
            os.truncate(target, size)

        await self._files(path, truncate)

    async def flush(self, path: str) -> None:
        def flush(target: str) -> None:
            if os.path.isdir(target):
                raise FileError("is_directory", target, "is a directory")
            fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            sync_folder(os.path.dirname(target))

        await self._files(path, flush)

    async def rename(self, source: str, target: str) -> None:
        goal = self._absolute(target)
        await self._files(source, lambda origin: os.rename(origin, goal))

    async def file_info(self, path: str) -> FileInfo:
        return await self._files(path, _info)

    async def list_dir(self, path: str) -> list[FileInfo]:
        """By name. Entries that vanish meanwhile, and those that are no file, directory or symlink, are left out."""
        return await self._files(path, lambda target: list(_entries(target)))

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
        def remove(target: str) -> None:
            try:
                directory = stat.S_ISDIR(os.lstat(target).st_mode)
            except FileNotFoundError:
                if force:
                    return
                raise
            if not directory:
                os.unlink(target)
            elif recursive:
                shutil.rmtree(target)
            else:
                raise FileError("is_directory", target, "is a directory; remove it recursively")

        await self._files(path, remove)

    async def temp_dir(self, prefix: str = "tmp-") -> str:
        return await self._files(tempfile.gettempdir(), lambda _: tempfile.mkdtemp(prefix=prefix))

    async def temp_file(self, prefix: str = "tmp-", suffix: str = "") -> str:
        def create(_: str) -> str:
            path = Path(tempfile.mkdtemp()) / f"{prefix}{os.urandom(4).hex()}{suffix}"
            path.touch(mode=0o600)
            return str(path)

        return await self._files(tempfile.gettempdir(), create)

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
        folder = self._cwd if cwd is None else self._absolute(cwd)
        argv = check_command(command, shell=self._shell, cwd=folder, timeout=timeout)
        environment = {**os.environ, **self._env, **(env or {})} if inherit_env else dict(env or {})
        running = Command(on_output, spill)
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
        path = _from_url(path)
        if path == "~" or path.startswith("~/"):
            path = os.path.expanduser("~") + path[1:]
        return os.path.normpath(os.path.join(self._cwd, path))

    async def _files(self, path: str, act: Callable[[str], T]) -> T:
        """Run `act` on the absolute path, off the loop; errors become FileErrors. A caller cancelled before it does nothing."""
        await asyncio.sleep(0)
        target = self._absolute(path)
        try:
            return await asyncio.to_thread(act, target)
        except OSError as error:
            code = _CODES.get(error.errno or 0, "unknown")
            raise FileError(code, target, (error.strerror or str(error)).lower()) from error
        except ValueError as error:  # a NUL in the path
            raise FileError("invalid", target, str(error)) from error


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


def _write(target: str, data: bytes) -> None:
    """Through a symlink to its file, keeping the file's mode."""
    target = os.path.realpath(target)
    if os.path.isdir(target):
        raise FileError("is_directory", target, "is a directory")
    mode = None
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(target).st_mode)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    write_atomic(target, data, sync=False, mode=0o666 if mode is None else mode)
    if mode is not None:
        os.chmod(target, mode)  # what the umask took from a file that is only replaced


def _lines(target: str, max_lines: int | None) -> Iterator[Line]:
    """Split at LF alone. At most `max_lines`, without reading on."""
    with open(target, "rb") as file:
        left = max_lines
        while left is None or left > 0:
            raw = file.readline()
            if not raw:
                return
            yield Line(raw.removesuffix(b"\n").decode("utf-8", "replace"), raw.endswith(b"\n"))
            left = None if left is None else left - 1


def _info(target: str) -> FileInfo:
    facts = os.lstat(target)
    kind = _kind(facts.st_mode)
    if kind is None:
        raise FileError("invalid", target, "neither file, directory nor symlink")
    return FileInfo(os.path.basename(target), target, kind, facts.st_size, facts.st_mtime_ns // 1_000_000)


def _kind(mode: int) -> FileKind | None:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else None


def _entries(target: str) -> Iterator[FileInfo]:
    for name in sorted(os.listdir(target)):
        with contextlib.suppress(FileNotFoundError, FileError):
            yield _info(os.path.join(target, name))

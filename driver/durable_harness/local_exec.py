"""Run one command of `LocalExecutionEnv`: its own process group, both outputs, an end that no descendant can hold up.

asyncio's `Process.wait` is not used: depending on the Python release it waits for the pipes too, and a descendant that keeps
them open would hang it. Here the exit and the end of the output are told apart.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, cast

from durable_harness.env import ExecError, ExecResult, FileError, Spill, Stream, check_timeout
from durable_harness.env_paths import check_launch

_QUIET_SECONDS = 0.1  # after the exit: without output this long, what still holds the pipes is not waited for
_STREAMS: Mapping[int, Stream] = {1: "stdout", 2: "stderr"}


def check_command(
    command: str | Sequence[str],
    *,
    shell: str | None,
    env: Mapping[str, str],
    cwd: Callable[[], str],
    timeout: float | None,
) -> tuple[list[str], str]:
    """(argument vector, working directory), or the ExecError of the first thing that is wrong. Nothing has been started then."""
    check_timeout(timeout)
    argv = [*_shell(shell), command] if isinstance(command, str) else list(command)
    check_launch(argv, env)
    try:
        folder = cwd()
    except FileError as error:
        raise ExecError("spawn_error", f"the working directory {error}") from error
    if not os.path.isdir(folder):
        raise ExecError("spawn_error", f"the working directory {folder} does not exist")
    return argv, folder


def _shell(configured: str | None) -> list[str]:
    candidates = [configured] if configured else ["/bin/bash", shutil.which("bash"), shutil.which("sh")]
    for candidate in filter(None, candidates):
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return [candidate, "-c"]
    raise ExecError("shell_unavailable", f"no shell: {configured or '/bin/bash, bash, sh'} can't be executed")


class Command(asyncio.SubprocessProtocol):
    """What is known of a command while it runs. Used from the event loop alone."""

    def __init__(
        self, on_output: Callable[[str, Stream], None] | None, spill: Spill | None, temp: str | None = None
    ) -> None:
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()  # both outputs have ended
        self.failure: ExecError | None = None  # of the callback or of the spill; the command is killed then
        self._on_output = on_output
        self._spill = _Spiller(spill, temp) if spill else None
        self._transport: asyncio.SubprocessTransport | None = None
        self._decoders = {fd: codecs.getincrementaldecoder("utf-8")("replace") for fd in _STREAMS}
        self._open = set(_STREAMS)
        self._last_output = 0.0  # loop time of the newest output, or of the exit
        self._settled = False

    @property
    def spill_path(self) -> str | None:
        return self._spill.path if self._spill else None

    @property
    def exit_code(self) -> int:
        code = self._transport.get_returncode() if self._transport else None
        if code is None:
            return 128 + signal.SIGKILL  # killed, and not reaped yet
        return code if code >= 0 else 128 - code

    @property
    def quiet_seconds(self) -> float:
        return asyncio.get_running_loop().time() - self._last_output

    def kill(self) -> None:
        """SIGKILL to the command's process group: what it started and left in that group dies with it."""
        if self._transport is None or self.exited.is_set():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)

    def finish(self) -> None:
        """Hand on what an output broke off with, where a descendant still holds it."""
        for fd in self._open:
            self._take(fd, b"", final=True)

    def settle(self) -> None:
        """No output is delivered from here on."""
        self._settled = True
        if self._transport is not None:
            self._transport.close()
        if self._spill is not None:
            self._spill.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._last_output = asyncio.get_running_loop().time()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        self._take(fd, cast(bytes, data), final=False)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._take(fd, b"", final=True)
        self._open.discard(fd)
        if not self._open:
            self.drained.set()

    def process_exited(self) -> None:
        self._last_output = asyncio.get_running_loop().time()  # the pipes may still hold what came before the exit
        self.exited.set()

    def _take(self, fd: int, data: bytes, *, final: bool) -> None:
        if self._settled or fd not in self._decoders:
            return
        self._last_output = asyncio.get_running_loop().time()
        text = self._decoders[fd].decode(data, final)
        try:
            if self._spill is not None:
                self._spill.take(data)
        except OSError as error:
            self._fail(ExecError("unknown", f"the output can't be kept: {error.strerror}", spill_path=self.spill_path))
        if not text or self._on_output is None:
            return
        try:
            self._on_output(text, _STREAMS[fd])
        except Exception as error:
            failure = ExecError(
                "callback_error", f"the receiver of the output failed: {error!r}", spill_path=self.spill_path
            )
            failure.__cause__ = error
            self._on_output = None
            self._fail(failure)

    def _fail(self, failure: ExecError) -> None:
        # A failed callback says more than a failed spill: it takes its place.
        if self.failure is None or failure.code == "callback_error":
            self.failure = failure
        self.kill()


class _Spiller:
    """All output in a temporary file, once it passes a limit; before that in memory."""

    def __init__(self, limits: Spill, folder: str | None) -> None:
        self._folder = folder
        self.path: str | None = None
        self._limits = limits
        self._head = bytearray()
        self._lines = 0
        self._file: BinaryIO | None = None

    def take(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)
            return
        self._head += data
        self._lines += data.count(b"\n")
        if len(self._head) > self._limits.after_bytes or self._lines > self._limits.after_lines:
            fd, self.path = tempfile.mkstemp(prefix="output-", suffix=".txt", dir=self._folder)
            self._file = open(fd, "wb", buffering=0)  # noqa: SIM115 - closed by close()
            self._file.write(self._head)
            self._head.clear()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


async def run_command(
    command: Command, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout: float | None
) -> ExecResult:
    """Start and wait. Precedence of what is reported: callback error, timeout, cancellation, failed spill, exit code."""
    loop = asyncio.get_running_loop()
    try:
        await loop.subprocess_exec(
            lambda: command,
            *argv,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ExecError("spawn_error", f"the command can't be started: {why}") from error
    timed_out = False
    try:
        try:
            async with asyncio.timeout(timeout):
                await command.exited.wait()
                await _drain(command)
        except TimeoutError:
            timed_out = True
            command.kill()
            await command.exited.wait()
            await _drain(command)
        command.finish()
    finally:
        # Reached by cancellation too: the command must not outlive its caller.
        command.kill()
        command.settle()
    if command.failure is not None and command.failure.code == "callback_error":
        raise command.failure
    if timed_out:
        raise ExecError("timeout", f"no end within {timeout:g} seconds: killed", spill_path=command.spill_path)
    if command.failure is not None:
        raise command.failure
    return ExecResult(command.exit_code, command.spill_path)


async def _drain(command: Command) -> None:
    """After the exit: until both outputs end, or nothing has come for a while (a descendant holds them)."""
    while not command.drained.is_set():
        left = _QUIET_SECONDS - command.quiet_seconds
        if left <= 0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await command.drained.wait()

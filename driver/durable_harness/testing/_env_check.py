"""What the checks of an ExecutionEnv are made of: their form, how one is registered, and what several of them need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from durable_harness.env import ExecError, ExecutionEnv, FileError, FileInfo

WAIT_SECONDS = 20.0  # for what must come true; a machine under load is no failure


class MakeEnv(Protocol):
    """Make the environment that a check works in. Who made it takes it away afterwards.

    Its `cwd` is an empty folder of its own below a path without symlinks, and its temporary files go to a folder that nothing
    else uses (a check removes it and makes it anew). It has /bin/sh, the usual small tools (sleep, seq, find, ln, mkfifo) and
    procfs. `variables` are what it is configured with, `shell` the shell it is told to use.
    """

    async def __call__(
        self, *, variables: Mapping[str, str] | None = None, shell: str | None = None
    ) -> ExecutionEnv: ...


Run = Callable[[MakeEnv], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """`run` fails by AssertionError. `number` is stable: up to 44 the cases that every implementation of the contract has had,
    from 45 on what the text of the contract says besides."""

    number: int
    name: str
    run: Run


class Registry:
    def __init__(self) -> None:
        self.checks: list[Check] = []

    def __call__(self, number: int) -> Callable[[Run], Run]:
        def register(run: Run) -> Run:
            self.checks.append(Check(number, run.__name__, run))
            return run

        return register


check = Registry()


async def refused(work: Awaitable[Any], code: str, path: str | None = None) -> FileError:
    """`work` fails with this code, and where `path` is given with exactly this one. AssertionError otherwise."""
    try:
        got = await work
    except FileError as error:
        refusal = error
    else:
        raise AssertionError(f"{code} was due, not {got!r}")
    assert refusal.code == code, f"{code} was due, not {refusal.code}: {refusal}"
    assert refusal.path.startswith("/"), f"an error names an absolute path, not {refusal.path!r}"
    assert path is None or refusal.path == path, f"the error names {refusal.path!r} and not {path!r}"
    return refusal


async def failed(work: Awaitable[Any], code: str) -> ExecError:
    try:
        got = await work
    except ExecError as error:
        failure = error
    else:
        raise AssertionError(f"{code} was due, not {got!r}")
    assert failure.code == code, f"{code} was due, not {failure.code}: {failure}"
    return failure


async def aborted_before(work: Awaitable[Any], what: str) -> None:
    """Await `work` in a task that has been cancelled already: it must do nothing, which its caller looks for."""

    async def body() -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await work

    task = asyncio.create_task(body())
    await asyncio.wait([task])
    assert task.cancelled(), f"{what}: not cancelled but {task.exception() or task.result()!r}"


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=WAIT_SECONDS)
    assert task.done(), "a cancelled operation does not end"
    assert task.cancelled(), f"not cancelled but {task.exception() or task.result()!r}"


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not await condition():
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS:g} s: {what}"
        await asyncio.sleep(0.02)


async def words(env: ExecutionEnv, path: str) -> list[str]:
    """What a command has written there so far, as far as whole lines go."""
    if not await env.exists(path):
        return []
    return [line.text for line in await env.read_lines(path) if line.terminated]


async def started(env: ExecutionEnv, path: str) -> str:
    """The process id that a command wrote there, once it has."""
    await until(lambda: _has(env, path), f"a command that writes {path}")
    return (await words(env, path))[0]


async def _has(env: ExecutionEnv, path: str) -> bool:
    return bool(await words(env, path))


async def alive(env: ExecutionEnv, pid: str) -> bool:
    """A zombie is dead."""
    done = await env.exec(f"grep -q '^State:[[:space:]]*[^ZX]' /proc/{pid}/status 2>/dev/null")
    return done.exit_code == 0


async def dead(env: ExecutionEnv, pid: str) -> bool:
    return not await alive(env, pid)


async def end(env: ExecutionEnv, pid: str) -> None:
    """A process that a check started, and that is to outlive nothing."""
    await env.exec(f"kill -9 {pid} 2>/dev/null")


async def said(on: ExecutionEnv, command: Any, /, **how: Any) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    heard = {"stdout": "", "stderr": ""}

    def take(text: str, stream: str) -> None:
        heard[stream] += text

    done = await on.exec(command, on_output=take, **how)
    return done.exit_code, heard["stdout"], heard["stderr"]


def names(entries: list[FileInfo]) -> list[str]:
    return sorted(entry.name for entry in entries)


def parent(path: str) -> str:
    return path.rpartition("/")[0]

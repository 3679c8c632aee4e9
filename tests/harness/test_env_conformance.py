"""LocalExecutionEnv holds what every ExecutionEnv must; environments that are wrong in one thing are told by the right case."""

import asyncio
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from durable_harness.env import ExecResult, FileError, FileInfo, Line
from durable_harness.line_reader import BufferedLineReader
from durable_harness.local_env import LocalExecutionEnv
from durable_harness.testing import _env_check, check_env
from durable_harness.testing.env_conformance import CHECKS, Check, MakeEnv


def making(kind: type[LocalExecutionEnv], root: Path, made: list[LocalExecutionEnv]) -> MakeEnv:
    async def make(*, variables: Mapping[str, str] | None = None, shell: str | None = None) -> LocalExecutionEnv:
        folder = root.resolve() / f"env-{len(made)}"
        folder.mkdir()
        temp = root / "temporary"
        temp.mkdir(exist_ok=True)
        made.append(kind(folder, env=variables, shell=shell, temp=temp))
        return made[-1]

    return make


@pytest.fixture
def make_env(tmp_path: Path) -> MakeEnv:
    return making(LocalExecutionEnv, tmp_path, [])


Env = LocalExecutionEnv


class FollowsSymlinks(Env):
    async def file_info(self, path: str) -> FileInfo:
        return await super().file_info(os.path.realpath(await self.absolute_path(path)))


class SplitsAsStr(Env):
    async def read_lines(self, path: str, max_lines: int | None = None) -> list[Line]:
        return [Line(text, True) for text in (await self.read_text(path)).splitlines()][:max_lines]


class NamesTheTarget(Env):
    async def rename(self, source: str, target: str) -> None:
        try:
            await super().rename(source, target)
        except FileError as error:
            raise FileError(error.code, await self.absolute_path(target)) from error


class WritesInPlace(Env):
    async def write(self, path: str, data: str | bytes) -> None:
        target = Path(await self.absolute_path(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = data.encode() if isinstance(data, str) else data
        target.write_bytes(raw[: len(raw) // 2])
        await asyncio.sleep(0.2)
        target.write_bytes(raw)


class ActsBeforeItLooks(Env):
    async def create_dir(self, path: str, *, recursive: bool = True) -> None:
        Path(self.cwd, path).mkdir(parents=recursive, exist_ok=recursive)
        await super().create_dir(path)


class CreatesByTruncate(Env):
    async def truncate(self, path: str, size: int) -> None:
        await self.append(path, "")
        await super().truncate(path, size)


class SharesTemporaries(Env):
    async def temp_file(self, prefix: str = "tmp-", suffix: str = "") -> str:
        path = await super().temp_file(prefix, suffix)
        moved = os.path.join(os.path.dirname(os.path.dirname(path)), os.path.basename(path))
        os.rename(path, moved)
        return moved


class Forgetful(Env):
    """A cancelled read of it has advanced."""

    async def open_line_reader(self, path: str) -> BufferedLineReader:
        reader = await super().open_line_reader(path)
        whole = reader.read_line

        async def read_line() -> Line | None:
            line = await whole()
            await asyncio.sleep(0)
            return line

        reader.read_line = read_line  # type: ignore[method-assign]
        return reader


class LeaksReaders(Env):
    async def open_binary_reader(self, path: str, **how: Any) -> Any:
        self.kept = await super().open_binary_reader(path, **how)  # closes itself with this environment
        return await super().open_binary_reader(path, **how)


class _Changed(Env):
    def change(self, command: Any, how: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return command, how

    async def exec(self, command: str | Sequence[str], **how: Any) -> ExecResult:  # type: ignore[override]
        return await super().exec(self.change(command, how)[0], **self.change(command, how)[1])


class AlwaysInherits(_Changed):
    def change(self, command: Any, how: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return command, {**how, "inherit_env": True}


class JoinsWords(_Changed):
    def change(self, command: Any, how: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return (command if isinstance(command, str) else " ".join(command)), how


class NeverKeeps(_Changed):
    def change(self, command: Any, how: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return command, {**how, "spill": None}


class DropsEmptyValues(_Changed):
    def change(self, command: Any, how: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return command, {**how, "env": {name: value for name, value in (how.get("env") or {}).items() if value}}


class KeepsRunning(Env):
    """A cancelled caller leaves its command behind."""

    async def exec(self, command: str | Sequence[str], **how: Any) -> ExecResult:  # type: ignore[override]
        await asyncio.sleep(0)
        return await asyncio.shield(super().exec(command, **how))


class KillsAll(Env):
    async def exec(self, command: str | Sequence[str], **how: Any) -> ExecResult:  # type: ignore[override]
        try:
            return await super().exec(command, **how)
        except asyncio.CancelledError:
            await self.cleanup()
            raise


class MapsSignals(Env):
    async def exec(self, command: str | Sequence[str], **how: Any) -> ExecResult:  # type: ignore[override]
        done = await super().exec(command, **how)
        return dataclasses.replace(done, exit_code=-1 if done.exit_code > 128 else done.exit_code)


WRONG: list[tuple[type[Env], int]] = [
    (FollowsSymlinks, 3),
    (SplitsAsStr, 1),
    (NamesTheTarget, 9),
    (WritesInPlace, 47),
    (ActsBeforeItLooks, 12),
    (CreatesByTruncate, 14),
    (SharesTemporaries, 10),
    (Forgetful, 21),
    (LeaksReaders, 22),
    (AlwaysInherits, 26),
    (JoinsWords, 53),
    (NeverKeeps, 40),
    (DropsEmptyValues, 25),
    (KeepsRunning, 38),
    (KillsAll, 55),
    (MapsSignals, 33),
]


@pytest.mark.parametrize(("wrong", "number"), WRONG, ids=lambda value: getattr(value, "__name__", str(value)))
async def test_a_wrong_environment_is_told(
    wrong: type[Env], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_env_check, "WAIT_SECONDS", 2.0)
    (check,) = (check for check in CHECKS if check.number == number)
    made: list[Env] = []
    with pytest.raises(AssertionError):
        await check.run(making(wrong, tmp_path, made))
    for env in made:
        await env.cleanup()


async def test_the_whole_suite_names_the_case_that_failed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="case 3, symlinks_are_told_and_not_followed: "):
        await check_env(making(FollowsSymlinks, tmp_path, []))


def test_the_cases_of_the_contract_are_all_there() -> None:
    assert [check.number for check in CHECKS] == list(range(1, 58))
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.number:02d}-{check.name}")
async def test_the_local_environment(check: Check, make_env: MakeEnv) -> None:
    await check.run(make_env)

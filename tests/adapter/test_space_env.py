"""SpaceExecutionEnv on a real daemon: files and commands as the harness's contract has them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from durable_base.errors import HaltError, StaleEpochError
from durable_base.floor import Floor, new_incarnation
from durable_harness.env import ExecError, ExecutionEnv, FileError, Line, Spill
from durable_spaces._commands import CommandEnd, CommandSpec, Sinks
from durable_spaces.client import Address, Deadlines, FencedSpace, SpaceClient
from durable_spaces.env import SpaceExecutionEnv
from durable_spaces.testing import WithoutSession

EPOCHS = itertools.count(1)


class Direct(WithoutSession):
    """Its commands outlive a caller that is cancelled."""

    async def execute(self, spec: CommandSpec, sinks: Sinks) -> tuple[str, CommandEnd]:
        request_id = f"test/1:0:{next(self._numbers)}@{self._space.own.epoch}"
        return request_id, await self._space.commands.run(spec, request_id, sinks)


@pytest.fixture(scope="module")
def stage(make_module_stage: Callable[..., Any]) -> Any:
    return make_module_stage("")


@pytest.fixture
async def space(stage: Any) -> AsyncIterator[FencedSpace]:
    client = SpaceClient(Address(stage.daemon.target), Floor(next(EPOCHS), new_incarnation()))
    yield await client.advance(await client.info())
    await client.close()


@pytest.fixture
def env(space: FencedSpace, stage: Any, request: pytest.FixtureRequest) -> SpaceExecutionEnv:
    folder = f"test-{space.own.epoch}"
    (stage.workspace / folder).mkdir()
    return SpaceExecutionEnv(space, Direct(space), folder)


async def run(on: SpaceExecutionEnv, command: str | list[str], **how: Any) -> tuple[int, str]:
    said: list[str] = []
    done = await on.exec(command, on_output=lambda text, stream: said.append(text), **how)
    return done.exit_code, "".join(said)


# ---- files


async def test_it_is_an_execution_env(env: SpaceExecutionEnv, stage: Any) -> None:
    assert isinstance(env, ExecutionEnv)
    assert env.id.startswith("space:")
    assert env.cwd.startswith(str(stage.workspace))


async def test_files_round_trip(env: SpaceExecutionEnv) -> None:
    await env.write("a/b/c.txt", "one\ntwo\r\nlast")
    await env.append("a/b/c.txt", b"!\n\xff")
    assert await env.read_binary("a/b/c.txt") == b"one\ntwo\r\nlast!\n\xff"
    assert await env.read_binary("a/b/c.txt", 4, 3) == b"two"
    assert await env.read_binary("a/b/c.txt", 4, 0) == b""
    assert await env.read_lines("a/b/c.txt") == [
        Line("one", True),
        Line("two\r", True),
        Line("last!", True),
        Line("\ufffd", False),
    ]
    assert await env.read_lines("a/b/c.txt", 1) == [Line("one", True)]
    assert await env.read_lines("a/b/c.txt", 0) == []
    assert [info.name for info in await env.list_dir("a")] == ["b"]
    assert (await env.file_info("a/b/c.txt")).size == 16
    await env.remove("a", recursive=True)
    assert not await env.exists("a/b/c.txt")


async def test_a_line_that_fits_into_no_answer_is_read_all_the_same(env: SpaceExecutionEnv, stage: Any) -> None:
    long = "x" * (17 << 20)
    (stage.workspace / "long").write_text(f"first\n{long}\nlast")
    assert await env.read_lines(f"{stage.workspace}/long", 1) == [Line("first", True)]
    assert await env.read_lines(f"{stage.workspace}/long", 2) == [Line("first", True), Line(long, True)]
    assert await env.read_lines(f"{stage.workspace}/long") == [
        Line("first", True),
        Line(long, True),
        Line("last", False),
    ]


async def test_a_large_file_comes_and_goes_whole(env: SpaceExecutionEnv) -> None:
    data = bytes(range(256)) * 12_000
    await env.write("large", data)
    assert await env.read_binary("large") == data


async def test_home_and_file_urls_are_paths(env: SpaceExecutionEnv) -> None:
    await env.write("x y", "here")
    assert await env.read_text(f"file://{env.cwd}/x%20y") == "here"
    assert await env.absolute_path("file:x") == f"{env.cwd}/file:x"
    assert await env.absolute_path("~/x") == f"{await env.absolute_path('~')}/x"
    assert (await env.absolute_path("~")).startswith("/")


async def test_symlinks_are_seen_and_only_canonical_path_follows_them(env: SpaceExecutionEnv) -> None:
    await env.write("target", "")
    await run(env, "ln -s target link")
    assert (await env.file_info("link")).kind == "symlink"
    assert [info.kind for info in await env.list_dir(".")] == ["symlink", "file"]
    assert await env.canonical_path("link") == f"{env.cwd}/target"


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda env: env.read_text("none"), "not_found"),
        (lambda env: env.list_dir("file"), "not_directory"),
        (lambda env: env.read_text("file/below"), "not_directory"),
        (lambda env: env.read_binary("folder"), "is_directory"),
        (lambda env: env.write("folder", ""), "is_directory"),
        (lambda env: env.remove("folder"), "is_directory"),
        (lambda env: env.remove("none"), "not_found"),
        (lambda env: env.rename("none", "file"), "not_found"),
        (lambda env: env.create_dir("none/below", recursive=False), "not_found"),
        (lambda env: env.truncate("none", 1), "not_found"),
        (lambda env: env.truncate("file", -1), "invalid"),
        (lambda env: env.flush("none"), "not_found"),
        (lambda env: env.canonical_path("none"), "not_found"),
    ],
)
async def test_a_refused_operation_has_a_code_and_an_absolute_path(
    env: SpaceExecutionEnv, act: Callable[[SpaceExecutionEnv], Any], code: str
) -> None:
    await env.write("file", "x")
    await env.create_dir("folder")
    with pytest.raises(FileError) as refused:
        await act(env)
    assert refused.value.code == code
    assert refused.value.path.startswith(env.cwd)
    assert await env.read_text("file") == "x"


async def test_rename_replaces_and_truncate_cuts_bytes(env: SpaceExecutionEnv) -> None:
    await env.write("a", "äö")
    await env.write("b", "old")
    await env.rename("a", "b")
    assert not await env.exists("a")
    await env.truncate("b", 3)
    assert await env.read_binary("b") == "äö".encode()[:3]
    await env.truncate("b", 5)
    assert await env.read_binary("b") == "äö".encode()[:3] + b"\0\0"
    await env.flush("b")
    await env.remove("gone", force=True)


async def test_temporary_files_are_empty_and_fresh(env: SpaceExecutionEnv) -> None:
    one, two = await env.temp_file(suffix=".txt"), await env.temp_file(suffix=".txt")
    assert one != two
    assert one.endswith(".txt")
    assert await env.read_binary(one) == b""
    folder = await env.temp_dir("mine-")
    assert Path(folder).name.startswith("mine-")
    assert await env.list_dir(folder) == []
    for path in (one, two, folder):
        await env.remove(path, recursive=True)


# ---- commands


async def test_a_command_has_its_folder_and_environment(env: SpaceExecutionEnv) -> None:
    await env.create_dir("sub")
    assert await run(env, "pwd", cwd="sub") == (0, f"{env.cwd}/sub\n")
    assert await run(env, "echo $MINE-$HOME", env={"MINE": "yes", "HOME": ""}) == (0, "yes-\n")
    code, said = await run(env, ["/usr/bin/env"], env={"ONLY": "this"}, inherit_env=False)
    assert (code, said) == (0, "ONLY=this\n")


async def test_a_sequence_runs_without_a_shell_and_stdin_is_closed(env: SpaceExecutionEnv) -> None:
    assert await run(env, ["printf", "%s", "$HOME"]) == (0, "$HOME")
    assert await run(env, "cat; echo end") == (0, "end\n")


async def test_both_outputs_are_told_apart(env: SpaceExecutionEnv) -> None:
    heard: dict[str, str] = {"stdout": "", "stderr": ""}

    def take(text: str, stream: str) -> None:
        heard[stream] += text

    await env.exec("echo out; echo err >&2", on_output=take)
    assert heard == {"stdout": "out\n", "stderr": "err\n"}


async def test_a_character_split_over_two_reads_arrives_whole(env: SpaceExecutionEnv) -> None:
    assert await run(env, r"printf '\303'; sleep 0.3; printf '\244\377'") == (0, "ä\ufffd")


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
async def test_an_end_is_a_result_whatever_the_status(env: SpaceExecutionEnv, command: str, code: int) -> None:
    assert (await env.exec(command)).exit_code == code


async def test_what_a_command_leaves_in_the_background_does_not_hold_up_its_end(env: SpaceExecutionEnv) -> None:
    began = time.monotonic()
    assert await run(env, "sleep 20 & echo said") == (0, "said\n")
    assert time.monotonic() - began < 10


async def test_a_timeout_kills_and_says_so(env: SpaceExecutionEnv) -> None:
    with pytest.raises(ExecError) as ended:
        await run(env, "sleep 20; touch late", timeout=0.3)
    assert ended.value.code == "timeout"
    assert not await env.exists("late")


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), 3e9])
async def test_an_impossible_timeout_starts_nothing(env: SpaceExecutionEnv, timeout: float) -> None:
    with pytest.raises(ExecError) as refused:
        await env.exec("touch started", timeout=timeout)
    assert refused.value.code == "timeout"
    assert not await env.exists("started")


@pytest.mark.parametrize(
    ("command", "how", "code"),
    [([], {}, "spawn_error"), (["/nowhere/x"], {}, "spawn_error"), ("true", {"cwd": "none"}, "spawn_error")],
)
async def test_what_cannot_start_has_a_code(
    env: SpaceExecutionEnv, command: Any, how: dict[str, Any], code: str
) -> None:
    with pytest.raises(ExecError) as refused:
        await env.exec(command, **how)
    assert refused.value.code == code


async def test_a_receiver_that_fails_ends_the_command(env: SpaceExecutionEnv) -> None:
    def fail(text: str, stream: str) -> None:
        raise ValueError("no more")

    began = time.monotonic()
    with pytest.raises(ExecError) as ended:
        await env.exec("echo x; sleep 20", on_output=fail)
    assert ended.value.code == "callback_error"
    assert time.monotonic() - began < 10


async def test_output_is_spilled_whole_once_it_passes_a_limit(env: SpaceExecutionEnv) -> None:
    assert (await env.exec("echo x", spill=Spill(10, 10))).spill_path is None
    done = await env.exec(r"seq 1 20000; printf '\377'", spill=Spill(1000, 10**6))
    assert done.spill_path is not None
    whole = "".join(f"{number}\n" for number in range(1, 20001)).encode() + b"\xff"
    assert await env.read_binary(done.spill_path) == whole
    await env.remove(done.spill_path)


async def test_much_output_arrives_whole_and_in_order(env: SpaceExecutionEnv) -> None:
    code, said = await run(env, "seq 1 60000")
    assert (code, said) == (0, "".join(f"{number}\n" for number in range(1, 60001)))


# ---- the client's promises


async def test_an_old_client_is_refused_everywhere(env: SpaceExecutionEnv, stage: Any) -> None:
    newer = SpaceClient(Address(stage.daemon.target), Floor(next(EPOCHS), new_incarnation()))
    await newer.advance(await newer.info())
    for act in (env.write("a", ""), env.exec("true"), env.create_dir("b")):
        with pytest.raises(StaleEpochError) as refused:
            await act
        assert refused.value.resource == "space"
        assert refused.value.floor.epoch > refused.value.own.epoch
    await newer.close()


async def test_a_command_that_is_followed_survives_its_daemon(env: SpaceExecutionEnv, stage: Any) -> None:
    """No output is lost or doubled: the stream goes on at its offset."""
    said: list[str] = []
    heard = asyncio.Event()

    def take(text: str, stream: str) -> None:
        said.append(text)
        heard.set()

    following = asyncio.create_task(
        env.exec("for i in 1 2 3 4 5 6 7 8 9; do echo line $i; sleep 0.2; done", on_output=take)
    )
    await heard.wait()
    await asyncio.to_thread(stage.daemon.kill)
    await asyncio.to_thread(stage.daemon.start)
    assert (await following).exit_code == 0
    assert "".join(said) == "".join(f"line {number}\n" for number in range(1, 10))


async def test_a_space_that_is_not_there_halts_the_drive_in_bounded_time(tmp_path: Path) -> None:
    client = SpaceClient(
        Address(f"unix:{tmp_path}/none"), Floor(1, new_incarnation()), deadlines=Deadlines(connect_seconds=0.3)
    )
    began = time.monotonic()
    with pytest.raises(HaltError) as halted:
        await client.info()
    assert (halted.value.reason, halted.value.permanent) == ("SpaceUnreachable", False)
    assert time.monotonic() - began < 5
    await client.close()


async def test_another_space_at_the_same_address_does_nothing(make_stage: Callable[..., Any]) -> None:
    stage = make_stage("")
    client = SpaceClient(Address(stage.daemon.target), Floor(1, new_incarnation()))
    space = await client.advance(await client.info())
    await asyncio.to_thread(stage.daemon.replace)
    with pytest.raises(HaltError) as halted:
        await space.files.write(f"{stage.workspace}/a", b"")
    assert halted.value.reason == "SpaceChanged"
    assert not (stage.workspace / "a").exists()
    with pytest.raises(HaltError, match="SpaceChanged"):
        await space.check_still_ours()
    await client.close()

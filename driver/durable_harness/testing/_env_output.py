"""Checks of an ExecutionEnv: what commands put out, and where it is kept (cases 29, 30, 39 to 44, and precedence)."""

from __future__ import annotations

import asyncio
import time

from durable_harness.env import ExecutionEnv, Spill
from durable_harness.testing._env_check import WAIT_SECONDS, MakeEnv, check, failed, parent, said, until, words


@check(29)
async def both_outputs_come_while_the_command_runs(make_env: MakeEnv) -> None:
    env = await make_env()
    heard: list[tuple[str, str]] = []
    running = asyncio.create_task(
        env.exec(
            "echo out; echo err >&2; until [ -e go ]; do sleep 0.05; done; echo end",
            on_output=lambda text, stream: heard.append((stream, text)),
        )
    )

    async def both() -> bool:
        return sorted(heard) == [("stderr", "err\n"), ("stdout", "out\n")]

    try:
        await until(both, "both outputs")
        assert not running.done()
    finally:
        await env.write("go", "")
    assert (await running).exit_code == 0
    assert heard[-1] == ("stdout", "end\n")
    settled = len(heard)
    await asyncio.sleep(0.1)
    assert len(heard) == settled


@check(30)
async def a_character_that_comes_in_two_parts_arrives_whole(make_env: MakeEnv) -> None:
    env = await make_env()
    command = r"printf '\303'; printf '\342\202' >&2; sleep 0.3; printf '\244'; printf '\254' >&2; printf '\377\360'"
    assert await said(env, command) == (0, "ä\ufffd\ufffd", "€")


@check(39)
async def output_below_the_limits_is_not_kept(make_env: MakeEnv) -> None:
    env = await make_env()
    assert (await env.exec("seq 10", spill=Spill(21, 10))).spill_path is None
    assert (await env.exec("true", spill=Spill(0, 0))).spill_path is None
    assert (await env.exec("seq 10000")).spill_path is None


@check(40)
async def output_past_a_limit_is_kept_as_it_came(make_env: MakeEnv) -> None:
    env = await make_env()
    for limits in (Spill(3, 10**6), Spill(10**6, 1)):
        code, output, path = await _kept(env, r"printf 'a\n\377\n'; sleep 0.2; printf '\303\n\376'", limits)
        assert (code, output) == (0, "a\n\ufffd\n\ufffd\n\ufffd")
        assert await env.read_binary(path) == b"a\n\xff\n\xc3\n\xfe"
        await env.remove(path)


@check(41)
async def a_timeout_tells_where_the_output_is(make_env: MakeEnv) -> None:
    env = await make_env()
    error = await failed(env.exec("seq 1000; exec sleep 60", spill=Spill(10, 10), timeout=3), "timeout")
    assert error.spill_path is not None
    assert await env.read_text(error.spill_path) == "".join(f"{n}\n" for n in range(1, 1001))
    await env.remove(error.spill_path)


@check(42)
async def output_that_cannot_be_kept_fails_the_command(make_env: MakeEnv) -> None:
    env = await make_env()
    temp = parent(await env.temp_dir())
    await env.remove(temp, recursive=True)
    try:
        error = await failed(env.exec("seq 1000", spill=Spill(10, 10)), "unknown")
        assert error.spill_path is None
    finally:
        await env.create_dir(temp)


@check(43)
async def half_a_megabyte_is_kept_whole(make_env: MakeEnv) -> None:
    env = await make_env()
    code, output, path = await _kept(env, "head -c 500000 /dev/zero | tr '\\0' x", Spill(1000, 10))
    assert (code, output) == (0, "x" * 500_000)
    assert await env.read_binary(path) == b"x" * 500_000
    await env.remove(path)


@check(44)
async def many_lines_are_streamed_and_kept(make_env: MakeEnv) -> None:
    env = await make_env()
    whole = "".join(f"line {n}\n" for n in range(1, 15_001))
    code, output, path = await _kept(env, "seq -f 'line %g' 1 15000", Spill(10**9, 2000))
    assert (code, output) == (0, whole)
    assert await env.read_text(path) == whole
    await env.remove(path)


@check(56)
async def of_several_failures_the_first_is_told(make_env: MakeEnv) -> None:
    """A failed receiver comes before a timeout, and both before a spill that failed."""
    env = await make_env()
    temp = parent(await env.temp_dir())

    def broken(text: str, stream: str) -> None:
        raise RuntimeError("full")

    error = await failed(env.exec("seq 100; seq 100", spill=Spill(10, 10), on_output=broken), "callback_error")
    if error.spill_path is not None:
        await env.remove(error.spill_path)
    await env.remove(temp, recursive=True)
    try:
        await failed(env.exec("seq 100", spill=Spill(10, 10), on_output=broken), "callback_error")
    finally:
        await env.create_dir(temp)


@check(57)
async def a_receiver_that_is_slow_loses_nothing(make_env: MakeEnv) -> None:
    env = await make_env()
    heard: list[str] = []

    def slow(text: str, stream: str) -> None:
        heard.append(text)
        time.sleep(0.001)

    done = await env.exec("seq 1 60000; echo done > end", on_output=slow)
    assert done.exit_code == 0
    assert "".join(heard) == "".join(f"{n}\n" for n in range(1, 60_001))
    assert await words(env, "end") == ["done"]


async def _kept(env: ExecutionEnv, command: str, limits: Spill) -> tuple[int, str, str]:
    heard: list[str] = []
    async with asyncio.timeout(WAIT_SECONDS):
        done = await env.exec(command, spill=limits, on_output=lambda text, _: heard.append(text))
    assert done.spill_path is not None, "output past a limit is kept"
    assert done.spill_path.startswith("/")
    return done.exit_code, "".join(heard), done.spill_path

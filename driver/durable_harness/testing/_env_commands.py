"""Checks of an ExecutionEnv: how commands start and end (cases 24 to 28, 31 to 38, and what the contract says besides)."""

from __future__ import annotations

import asyncio
import time

from durable_harness.env import TIMEOUT_MAX, ExecutionEnv
from durable_harness.testing._env_check import (
    MakeEnv,
    aborted_before,
    alive,
    cancel,
    check,
    dead,
    end,
    failed,
    said,
    started,
    until,
)

_LONG = "echo $$ > {0}.tmp && mv {0}.tmp {0} && exec sleep 60"  # its process id, whole, then nothing for long


def _long(env: ExecutionEnv, name: str) -> asyncio.Task[int]:
    async def run() -> int:
        return (await env.exec(_LONG.format(name))).exit_code

    return asyncio.create_task(run())


@check(24)
async def a_command_has_its_folder_and_its_variables(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.create_dir("a b")
    assert await said(env, "pwd -P") == (0, f"{env.cwd}\n", "")
    assert await said(env, "pwd -P", cwd="a b") == (0, f"{env.cwd}/a b\n", "")
    assert await said(env, "pwd -P", cwd=f"file://{env.cwd}/a%20b") == (0, f"{env.cwd}/a b\n", "")
    assert await said(env, 'echo "$MINE"', env={"MINE": "yes\nä"}) == (0, "yes\nä\n", "")


@check(25)
async def variables_given_shadow_those_configured(make_env: MakeEnv) -> None:
    env = await make_env(variables={"SET": "configured", "HOME": "/configured"})
    show = 'echo "${SET-unset} $HOME ${PATH:+path}"'
    assert await said(env, show) == (0, "configured /configured path\n", "")
    assert await said(env, show, env={}) == (0, "configured /configured path\n", "")
    assert await said(env, show, env={"SET": ""}) == (0, " /configured path\n", "")
    assert await said(env, show, env={"SET": "own"}) == (0, "own /configured path\n", "")


@check(26)
async def without_inheriting_only_what_is_given_is_there(make_env: MakeEnv) -> None:
    env = await make_env(variables={"SET": "configured"})
    given = {"OWN": "a=b c", "PATH": "/usr/bin:/bin"}
    code, output, _ = await said(env, ["env"], env=given, inherit_env=False)
    assert (code, sorted(output.splitlines())) == (0, sorted(f"{name}={value}" for name, value in given.items()))
    assert await said(env, 'echo "${SET-unset} $OWN"', env={"OWN": "x"}, inherit_env=False) == (0, "unset x\n", "")
    assert await said(env, ["/bin/echo", "bare"], inherit_env=False) == (0, "bare\n", "")
    await failed(env.exec(["/nowhere/tool"], inherit_env=False), "spawn_error")


@check(27)
async def what_stays_behind_with_the_outputs_is_not_waited_for(make_env: MakeEnv) -> None:
    env = await make_env()
    began = time.monotonic()
    code, output, _ = await said(env, "sleep 60 & echo $!")
    took = time.monotonic() - began
    pid = output.strip()
    try:
        assert code == 0
        assert took < 15, f"{took:.1f} s for a command that ended at once"
        assert await alive(env, pid), "what a command leaves in the background lives on"
    finally:
        await end(env, pid)


@check(28)
async def cleanup_ends_what_runs_and_its_caller_gets_the_end(make_env: MakeEnv) -> None:
    env = await make_env()
    running = [_long(env, "one"), _long(env, "two")]
    pids = [await started(env, "one"), await started(env, "two")]
    await env.cleanup()
    async with asyncio.timeout(15):
        assert [await task for task in running] == [137, 137]
    for pid in pids:
        assert await dead(env, pid)
    assert (await env.exec("exit 3")).exit_code == 3, "it can still be used"


@check(31)
async def a_missing_folder_starts_nothing(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "")
    for cwd in ("none", "f", "nul\0"):
        await failed(env.exec(f"touch {env.cwd}/started", cwd=cwd), "spawn_error")
    assert not await env.exists("started")


@check(32)
async def another_status_than_0_is_a_result(make_env: MakeEnv) -> None:
    env = await make_env()
    assert (await env.exec("exit 7")).exit_code == 7
    assert (await env.exec("exit 255")).exit_code == 255
    assert (await env.exec("true")).exit_code == 0


@check(33)
async def a_death_by_a_signal_is_128_and_its_number(make_env: MakeEnv) -> None:
    env = await make_env()
    assert (await env.exec("kill -9 $$")).exit_code == 137
    assert (await env.exec("kill -TERM $$; sleep 60")).exit_code == 143


@check(34)
async def a_timeout_ends_the_command_and_what_it_started(make_env: MakeEnv) -> None:
    env = await make_env()
    began = time.monotonic()
    error = await failed(
        env.exec("sleep 60 & echo $! > pid; trap '' TERM; echo x; wait; sleep 60", timeout=2.0), "timeout"
    )
    took = time.monotonic() - began
    assert 1.9 < took < 30, f"{took:.1f} s"
    assert error.spill_path is None
    await until(lambda: _is_dead_by_file(env, "pid"), "the group of a command that timed out is dead")


async def _is_dead_by_file(env: ExecutionEnv, name: str) -> bool:
    return await dead(env, await started(env, name))


@check(35)
async def an_impossible_timeout_starts_nothing(make_env: MakeEnv) -> None:
    env = await make_env(shell="/nowhere/sh")
    for timeout in (0, -1, float("nan"), float("inf"), TIMEOUT_MAX + 1):
        await failed(env.exec("touch started", timeout=timeout), "timeout")
        await failed(env.exec([], timeout=timeout), "timeout")
    assert await env.list_dir(".") == []
    assert (await env.exec(["true"], timeout=TIMEOUT_MAX)).exit_code == 0


@check(36)
async def a_receiver_that_fails_ends_the_command(make_env: MakeEnv) -> None:
    env = await make_env()
    calls = 0

    def broken(text: str, stream: str) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("full")

    began = time.monotonic()
    error = await failed(
        env.exec("echo $$ > pid; echo a; sleep 0.3; echo b; exec sleep 60", on_output=broken), "callback_error"
    )
    assert time.monotonic() - began < 20
    assert isinstance(error.__cause__, RuntimeError), "the error keeps what the receiver raised"
    assert calls == 1, "a receiver that has failed is not asked again"
    await until(lambda: _is_dead_by_file(env, "pid"), "a command whose receiver failed is dead")


@check(37)
async def a_shell_that_cannot_be_executed_is_unavailable(make_env: MakeEnv) -> None:
    probe = await make_env()
    await probe.write("sh", "#!/bin/sh\n")
    for shell in ("/nowhere/sh", f"{probe.cwd}/sh", probe.cwd):
        env = await make_env(shell=shell)
        await failed(env.exec("touch started"), "shell_unavailable")
        await failed(env.exec("touch started", cwd="none"), "shell_unavailable")
        assert (await env.exec(["true"])).exit_code == 0, "what needs no shell runs without one"
        assert await env.list_dir(".") == []
    env = await make_env(shell="/bin/sh")
    assert await said(env, "echo $0") == (0, "/bin/sh\n", "")


@check(38)
async def a_cancelled_caller_starts_nothing_or_takes_its_command_along(make_env: MakeEnv) -> None:
    env = await make_env()
    await aborted_before(env.exec("touch started"), "exec")
    await aborted_before(env.exec("touch started", timeout=-1), "exec with a bad timeout")
    assert await env.list_dir(".") == []
    running = asyncio.create_task(env.exec("sleep 60 & echo $! > child; " + _LONG.format("pid")))
    pid, child = await started(env, "pid"), await started(env, "child")
    await cancel(running)
    await until(lambda: dead(env, pid), "the command of a cancelled caller is dead")
    await until(lambda: dead(env, child), "and so is what it started")


@check(53)
async def a_sequence_runs_without_a_shell(make_env: MakeEnv) -> None:
    env = await make_env()
    words = ["$HOME", "*", "a b", "", "ä'\"\\", "-n"]
    assert await said(env, ["printf", "%s|", *words]) == (0, "|".join(words) + "|", "")
    await env.write("tool", "#!/bin/sh\necho tool $1\n")
    await env.exec("chmod +x tool")
    assert await said(env, ["./tool", "x"]) == (0, "tool x\n", ""), "a program by a path below the folder"
    for bad in (
        [],
        ["/nowhere/tool"],
        ["no-such-program-anywhere"],
        ["/etc/passwd"],
        ["nul\0"],
        ["true", "half \ud800"],
    ):
        await failed(env.exec(bad), "spawn_error")
    await failed(env.exec("echo nul\0"), "spawn_error")
    for name, value in (("A=B", "x"), ("A", "nul\0"), ("", "x")):
        await failed(env.exec("true", env={name: value}), "spawn_error")
        await failed(env.exec(["true"], env={name: value}, inherit_env=False), "spawn_error")


@check(54)
async def a_command_reads_nothing(make_env: MakeEnv) -> None:
    env = await make_env()
    async with asyncio.timeout(20):
        assert await said(env, "cat; echo end") == (0, "end\n", "")


@check(55)
async def a_cancelled_caller_takes_no_other_command_along(make_env: MakeEnv) -> None:
    env = await make_env()
    one, two = _long(env, "one"), _long(env, "two")
    first, second = await started(env, "one"), await started(env, "two")
    await cancel(one)
    await until(lambda: dead(env, first), "the cancelled command is dead")
    await asyncio.sleep(0.2)  # for a kill that reaches too far
    assert await alive(env, second)
    assert not two.done()
    await env.cleanup()
    async with asyncio.timeout(15):
        assert await two == 137

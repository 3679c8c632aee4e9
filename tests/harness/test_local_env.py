"""LocalExecutionEnv: the ExecutionEnv contract on this machine's own files and processes."""

import asyncio
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from durable_harness import env as env_module
from durable_harness.env import ExecError, ExecutionEnv, FileError, Spill
from durable_harness.local_env import LocalExecutionEnv


@pytest.fixture
def env(tmp_path: Path) -> LocalExecutionEnv:
    return LocalExecutionEnv(tmp_path)


async def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: gone between open and read
        return False


def test_it_is_an_execution_env(env: LocalExecutionEnv) -> None:
    assert isinstance(env, ExecutionEnv)


async def test_files_round_trip(env: LocalExecutionEnv, tmp_path: Path) -> None:
    await env.write("a/b.txt", "eins\r\nzwei")
    await env.append("a/b.txt", "\n\ndrei")
    assert await env.read_text("a/b.txt") == "eins\r\nzwei\n\ndrei"
    lines = [(line.text, line.terminated) for line in await env.read_lines("a/b.txt")]
    assert lines == [("eins\r", True), ("zwei", True), ("", True), ("drei", False)]
    assert [line.text for line in await env.read_lines("a/b.txt", 2)] == ["eins\r", "zwei"]
    assert await env.read_lines("a/b.txt", 0) == []
    assert await env.read_binary("a/b.txt", 6, 4) == b"zwei"
    assert [(info.name, info.kind) for info in await env.list_dir("a")] == [("b.txt", "file")]
    assert await env.exists("a/b.txt")
    await env.remove("a", recursive=True)
    assert not await env.exists("a/b.txt")
    assert list(tmp_path.iterdir()) == []


async def test_home_and_file_urls_are_paths(
    env: LocalExecutionEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert await env.absolute_path("~") == str(tmp_path / "home")
    assert await env.absolute_path("~/x") == str(tmp_path / "home/x")
    assert await env.absolute_path("~x") == str(tmp_path / "~x")
    assert await env.absolute_path("file:///a/b%20c") == "/a/b c"
    assert await env.absolute_path("file://elsewhere/a") == str(tmp_path / "file:/elsewhere/a")


async def test_symlinks_are_not_followed_by_info_but_by_canonical_path_and_write(
    env: LocalExecutionEnv, tmp_path: Path
) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o775)
    (tmp_path / "link").symlink_to("real")
    assert (await env.file_info("link")).kind == "symlink"
    assert await env.canonical_path("link") == os.path.realpath(tmp_path / "real")
    await env.write("link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o775


async def test_a_failing_write_leaves_the_old_file_and_no_temporary(env: LocalExecutionEnv, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with pytest.raises(FileError) as caught:
        await env.write("f/g", "new")
    assert (caught.value.code, caught.value.path) == ("not_directory", str(tmp_path / "f/g"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"f": "old"}


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda env: env.read_text("none"), "not_found"),
        (lambda env: env.read_text("dir"), "is_directory"),
        (lambda env: env.write("dir", "x"), "is_directory"),
        (lambda env: env.list_dir("file"), "not_directory"),
        (lambda env: env.canonical_path("none"), "not_found"),
        (lambda env: env.create_dir("none/x", recursive=False), "not_found"),
        (lambda env: env.remove("none"), "not_found"),
        (lambda env: env.remove("dir"), "is_directory"),
        (lambda env: env.truncate("none", 3), "not_found"),
        (lambda env: env.truncate("file", -1), "invalid"),
        (lambda env: env.truncate("file", 1.5), "invalid"),
        (lambda env: env.read_binary("file", -1), "invalid"),
        (lambda env: env.flush("none"), "not_found"),
        (lambda env: env.flush("dir"), "is_directory"),
        (lambda env: env.file_info("pipe"), "invalid"),
        (lambda env: env.read_text("nul\0"), "invalid"),
    ],
)
async def test_a_refused_operation_has_a_code(env: LocalExecutionEnv, tmp_path: Path, act: Callable, code: str) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError) as caught:
        await act(env)
    assert caught.value.code == code
    assert os.path.isabs(caught.value.path)
    assert (tmp_path / "file").read_text() == "x"


async def test_force_and_recursive_take_away_the_errors(env: LocalExecutionEnv) -> None:
    await env.remove("none", force=True)
    await env.create_dir("a/b")
    await env.create_dir("a/b")
    await env.remove("a", recursive=True)


async def test_rename_replaces_and_names_its_source_when_it_fails(env: LocalExecutionEnv, tmp_path: Path) -> None:
    await env.write("new", "new")
    await env.write("old", "old")
    with pytest.raises(FileError) as caught:
        await env.rename("none", "old")
    assert (caught.value.code, caught.value.path) == ("not_found", str(tmp_path / "none"))
    assert await env.read_text("old") == "old"
    await env.rename("new", "old")
    assert await env.read_text("old") == "new"


async def test_truncate_cuts_bytes_and_extends_with_zeros(env: LocalExecutionEnv) -> None:
    await env.write("f", "äb")
    await env.truncate("f", 1)
    await env.truncate("f", 3)
    assert await env.read_binary("f") == b"\xc3\0\0"


async def test_temporary_files_are_empty_and_fresh(env: LocalExecutionEnv) -> None:
    folder, file = await env.temp_dir("p-"), await env.temp_file("q-", ".txt")
    assert Path(folder).name.startswith("p-")
    assert Path(file).name.startswith("q-")
    assert Path(file).suffix == ".txt"
    assert Path(file).read_bytes() == b""
    await env.remove(folder, recursive=True)
    await env.remove(os.path.dirname(file), recursive=True)


async def test_a_cancelled_caller_changes_nothing(env: LocalExecutionEnv, tmp_path: Path) -> None:
    for act in (env.write("f", "x"), env.create_dir("d"), env.exec("touch g")):
        task = asyncio.ensure_future(act)
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert list(tmp_path.iterdir()) == []


# Commands


async def run(env: LocalExecutionEnv, command: str | list[str], /, **how) -> tuple[int, str]:
    parts: list[str] = []
    done = await env.exec(command, on_output=lambda text, stream: parts.append(text), **how)
    return done.exit_code, "".join(parts)


async def test_a_command_has_its_folder_and_environment(
    env: LocalExecutionEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.setenv("OUTER", "outer")
    own = LocalExecutionEnv(tmp_path, env={"CONFIGURED": "configured"})
    show = 'echo "$PWD $OUTER $CONFIGURED $OWN"'
    assert await run(own, show, cwd="sub", env={"OWN": "own"}) == (0, f"{tmp_path}/sub outer configured own\n")
    assert await run(own, show, env={"OUTER": "", "OWN": "own"}) == (0, f"{tmp_path}  configured own\n")
    assert await run(own, show, inherit_env=False, env={"OWN": "own"}) == (0, f"{tmp_path}   own\n")


async def test_a_sequence_runs_without_a_shell_and_stdin_is_closed(env: LocalExecutionEnv) -> None:
    assert await run(env, ["echo", "$HOME; *"]) == (0, "$HOME; *\n")
    assert await run(env, "cat") == (0, "")


async def test_both_outputs_are_told_apart(env: LocalExecutionEnv) -> None:
    seen: list[tuple[str, str]] = []
    await env.exec("echo a; echo b >&2", on_output=lambda text, stream: seen.append((stream, text)))
    assert sorted(seen) == [("stderr", "b\n"), ("stdout", "a\n")]


async def test_a_character_split_over_two_reads_arrives_whole(env: LocalExecutionEnv) -> None:
    assert await run(env, "printf '\\303'; sleep 0.2; printf '\\244\\377'") == (0, "ä\ufffd")


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
async def test_an_end_is_a_result_whatever_the_status(env: LocalExecutionEnv, command: str, code: int) -> None:
    assert (await env.exec(command)).exit_code == code


async def test_what_a_command_leaves_in_the_background_does_not_hold_up_its_end(
    env: LocalExecutionEnv, tmp_path: Path
) -> None:
    started = time.monotonic()
    code, output = await run(env, "sleep 60 & echo $! > pid; echo done")
    assert (code, output) == (0, "done\n")
    assert time.monotonic() - started < 20
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


async def test_a_timeout_kills_the_whole_group(env: LocalExecutionEnv, tmp_path: Path) -> None:
    with pytest.raises(ExecError) as caught:
        await env.exec("sleep 60 & echo $! > pid; wait", timeout=0.5)
    assert caught.value.code == "timeout"
    await until(lambda: not alive(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), env_module.TIMEOUT_MAX + 1])
async def test_an_impossible_timeout_starts_nothing(env: LocalExecutionEnv, tmp_path: Path, timeout: float) -> None:
    with pytest.raises(ExecError) as caught:
        await env.exec("touch started", timeout=timeout)
    assert caught.value.code == "timeout"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "how", "code"),
    [([], {}, "spawn_error"), (["/nowhere/tool"], {}, "spawn_error"), ("true", {"cwd": "none"}, "spawn_error")],
)
async def test_what_cannot_start_has_a_code(env: LocalExecutionEnv, command: object, how: dict, code: str) -> None:
    with pytest.raises(ExecError) as caught:
        await env.exec(command, **how)
    assert caught.value.code == code


async def test_a_shell_that_is_none_has_a_code(tmp_path: Path) -> None:
    (tmp_path / "sh").write_text("#!/bin/sh\n")
    for shell in ("/nowhere/sh", str(tmp_path / "sh")):
        with pytest.raises(ExecError) as caught:
            await LocalExecutionEnv(tmp_path, shell=shell).exec("true")
        assert caught.value.code == "shell_unavailable"


async def test_a_cancelled_caller_takes_its_command_along_and_no_other(env: LocalExecutionEnv, tmp_path: Path) -> None:
    first = asyncio.ensure_future(env.exec("echo $$ > first; exec sleep 60"))
    second = asyncio.ensure_future(env.exec("echo $$ > second; exec sleep 60"))
    await until(lambda: all((tmp_path / n).exists() and (tmp_path / n).read_text() for n in ("first", "second")))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await until(lambda: not alive(int((tmp_path / "first").read_text())))
    assert alive(int((tmp_path / "second").read_text()))
    await env.cleanup()
    assert (await second).exit_code == 137
    await env.cleanup()


async def test_a_receiver_that_fails_ends_the_command(env: LocalExecutionEnv, tmp_path: Path) -> None:
    def broken(text: str, stream: str) -> None:
        raise RuntimeError("full")

    with pytest.raises(ExecError) as caught:
        await env.exec("echo $$; exec sleep 60", on_output=broken)
    assert caught.value.code == "callback_error"
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_output_below_the_limits_is_not_spilled(env: LocalExecutionEnv) -> None:
    done = await env.exec("seq 10", spill=Spill(1000, 100))
    assert done.spill_path is None


@pytest.mark.parametrize("limits", [Spill(100, 10**6), Spill(10**9, 10)])
async def test_output_past_a_limit_is_spilled_whole_and_raw(env: LocalExecutionEnv, limits: Spill) -> None:
    parts: list[str] = []
    done = await env.exec("seq 15000; printf '\\377'", spill=limits, on_output=lambda text, _: parts.append(text))
    assert done.spill_path is not None
    raw = Path(done.spill_path).read_bytes()
    assert raw == b"".join(b"%d\n" % n for n in range(1, 15001)) + b"\xff"
    assert "".join(parts) == raw.decode("utf-8", "replace")
    os.unlink(done.spill_path)


async def test_a_timeout_tells_where_the_output_is(env: LocalExecutionEnv) -> None:
    with pytest.raises(ExecError) as caught:
        await env.exec("seq 100; exec sleep 60", spill=Spill(10, 10), timeout=1)
    assert caught.value.spill_path is not None
    assert Path(caught.value.spill_path).read_text().endswith("\n100\n")
    os.unlink(caught.value.spill_path)


async def test_output_that_cannot_be_kept_fails_the_command(
    env: LocalExecutionEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(ExecError, match="can't be kept") as caught:
        await env.exec("seq 100; exec sleep 60", spill=Spill(10, 10))
    assert caught.value.code == "unknown"

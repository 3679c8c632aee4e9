"""Checks of an ExecutionEnv: paths and files (cases 1 to 17)."""

from __future__ import annotations

import asyncio

from durable_harness.env import Line
from durable_harness.testing._env_check import (
    MakeEnv,
    aborted_before,
    check,
    names,
    parent,
    refused,
    said,
    until,
)

_UNSYNCABLE = "/proc/sys/kernel/hostname"  # a regular file whose fsync the kernel refuses


@check(1)
async def what_is_written_is_read(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("a/b.txt", "eins\r\nzwei")
    await env.append("a/b.txt", b"\n\n\xff")
    assert await env.read_text("a/b.txt") == "eins\r\nzwei\n\n\ufffd"
    assert await env.read_binary("a/b.txt") == b"eins\r\nzwei\n\n\xff"
    assert await env.read_binary("a/b.txt", 6, 4) == b"zwei"
    assert await env.read_binary("a/b.txt", 6, 0) == b""
    assert await env.read_binary("a/b.txt", 99) == b""
    lines = [Line("eins\r", True), Line("zwei", True), Line("", True), Line("\ufffd", False)]
    assert await env.read_lines("a/b.txt") == lines
    (entry,) = await env.list_dir("a")
    assert (entry.name, entry.path, entry.kind, entry.size) == ("b.txt", f"{env.cwd}/a/b.txt", "file", 13)
    assert entry == await env.file_info("a/b.txt")
    assert await env.exists("a/b.txt")
    await env.write("a/b.txt", "")
    assert await env.read_binary("a/b.txt") == b""
    await env.remove("a/b.txt")
    assert not await env.exists("a/b.txt")
    await env.remove("a", recursive=True)
    assert await env.list_dir(".") == []


@check(2)
async def home_and_file_urls_are_paths(make_env: MakeEnv) -> None:
    env = await make_env()
    _, home, _ = await said(env, 'printf %s "$HOME"')
    assert await env.absolute_path("~") == home
    assert await env.absolute_path("~/x/../y") == f"{home.rstrip('/')}/y"
    assert await env.absolute_path("~x") == f"{env.cwd}/~x"
    await env.write("a b", "here")
    assert await env.read_text(f"file://{env.cwd}/a%20b") == "here"
    assert await env.read_text(f"file://localhost{env.cwd}/a%20b") == "here"
    for plain in ("file:x", "file://elsewhere/x", "file:///a%2Fb"):
        path = await env.absolute_path(plain)
        assert path == f"{env.cwd}/{plain.replace('///', '/').replace('//', '/')}", (
            f"{plain} is a plain path, not {path}"
        )
    assert await env.absolute_path("") == env.cwd
    assert await env.join_path("a", "./b", "..", "c") == "a/c"
    assert await env.join_path("a", "/b") == "/b"


@check(3)
async def symlinks_are_told_and_not_followed(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("folder/real", "old")
    await env.exec("ln -s folder/real link && ln -s folder to-folder && ln -s nowhere broken")
    assert (await env.file_info("link")).kind == "symlink"
    kinds = {entry.name: entry.kind for entry in await env.list_dir(".")}
    assert kinds == {"folder": "directory", "link": "symlink", "to-folder": "symlink", "broken": "symlink"}
    assert await env.exists("broken")
    assert await env.canonical_path("to-folder/real") == f"{env.cwd}/folder/real"
    await refused(env.canonical_path("broken"), "not_found", f"{env.cwd}/broken")
    await env.write("link", "new")
    assert (await env.file_info("link")).kind == "symlink", "a write goes through a symlink"
    assert await env.read_text("folder/real") == "new"
    await env.remove("to-folder", recursive=True)
    assert await env.read_text("folder/real") == "new", "a symlink is removed, not its target"


@check(4)
async def max_lines_stops(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "1\n2\n3")
    assert await env.read_lines("f", 2) == [Line("1", True), Line("2", True)]
    assert await env.read_lines("f", 9) == [Line("1", True), Line("2", True), Line("3", False)]
    assert await env.read_lines("f", 0) == []
    assert await env.read_lines("f", -1) == []


@check(5)
async def what_is_missing_is_not_found_by_its_absolute_path(make_env: MakeEnv) -> None:
    env = await make_env()
    path = f"{env.cwd}/none/x"
    for work in (
        env.read_text("none/x"),
        env.read_lines("none/x"),
        env.read_binary("none/x"),
        env.file_info("none/x"),
        env.list_dir("none/x"),
        env.canonical_path("none/x"),
        env.remove("none/x"),
    ):
        await refused(work, "not_found", path)
    assert not await env.exists("none/x")


@check(6)
async def a_file_is_no_directory(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "x")
    await env.create_dir("d")
    await refused(env.list_dir("f"), "not_directory", f"{env.cwd}/f")
    await refused(env.read_text("f/x"), "not_directory", f"{env.cwd}/f/x")
    await refused(env.exists("f/x"), "not_directory", f"{env.cwd}/f/x")
    await refused(env.write("f/x", ""), "not_directory", f"{env.cwd}/f/x")
    await refused(env.append("f/x", ""), "not_directory", f"{env.cwd}/f/x")
    await refused(env.read_text("d"), "is_directory", f"{env.cwd}/d")
    await refused(env.write("d", ""), "is_directory", f"{env.cwd}/d")
    await refused(env.create_dir("f"), "invalid", f"{env.cwd}/f")
    assert await env.read_text("f") == "x"


@check(7)
async def append_makes_the_file_and_its_parents(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.append("a/b/c", "1")
    await env.append("a/b/c", "2")
    assert await env.read_text("a/b/c") == "12"


@check(8)
async def rename_replaces(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("new", "new")
    await env.write("old", "old")
    await env.rename("new", "old")
    assert await env.read_text("old") == "new"
    assert names(await env.list_dir(".")) == ["old"]


@check(9)
async def a_rename_without_a_source_changes_nothing(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("old", "old")
    await refused(env.rename("none", "old"), "not_found", f"{env.cwd}/none")
    await refused(env.rename("old", "none/x"), "not_found", f"{env.cwd}/old")
    assert await env.read_text("old") == "old"


@check(10)
async def temporary_files_are_new_and_empty(make_env: MakeEnv) -> None:
    env = await make_env()
    one, two = await env.temp_file("q-", ".txt"), await env.temp_file("q-", ".txt")
    assert parent(one) != parent(two), "each file has a folder of its own"
    for path in (one, two):
        name = path.rpartition("/")[2]
        assert name.startswith("q-"), name
        assert name.endswith(".txt"), name
        assert names(await env.list_dir(parent(path))) == [name]
        assert await env.read_binary(path) == b""
    folder, default = await env.temp_dir("p-"), await env.temp_dir()
    assert folder.rpartition("/")[2].startswith("p-")
    assert default.rpartition("/")[2].startswith("tmp-")
    assert await env.list_dir(folder) == []
    await refused(env.temp_file("../q-"), "invalid")
    await refused(env.temp_file("q-", "/x"), "invalid")
    await refused(env.temp_dir("../p-"), "invalid")


@check(11)
async def folders_need_recursive_and_what_is_missing_needs_force(make_env: MakeEnv) -> None:
    env = await make_env()
    await refused(env.create_dir("none/x", recursive=False), "not_found", f"{env.cwd}/none/x")
    await env.create_dir("a/b/c")
    await env.create_dir("a/b/c")
    await refused(env.create_dir("a", recursive=False), "invalid", f"{env.cwd}/a")
    await env.create_dir("d", recursive=False)
    for folder in ("a", "d"):
        await refused(env.remove(folder), "is_directory", f"{env.cwd}/{folder}")
    await env.remove("a", recursive=True)
    await refused(env.remove("a"), "not_found", f"{env.cwd}/a")
    await refused(env.remove("a", recursive=True), "not_found", f"{env.cwd}/a")
    await env.remove("a", force=True)
    await env.remove("a", recursive=True, force=True)
    assert names(await env.list_dir(".")) == ["d"]


@check(12)
async def a_caller_that_was_cancelled_before_does_nothing(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "old")
    await env.create_dir("d")
    probe = await env.temp_dir()
    await env.remove(probe, recursive=True)
    before = names(await env.list_dir(parent(probe)))
    for name, work in {
        "absolute_path": env.absolute_path("f"),
        "join_path": env.join_path("f"),
        "canonical_path": env.canonical_path("f"),
        "read_text": env.read_text("f"),
        "read_lines": env.read_lines("f"),
        "read_binary": env.read_binary("f"),
        "open_line_reader": env.open_line_reader("f"),
        "open_binary_reader": env.open_binary_reader("f"),
        "open_dir_reader": env.open_dir_reader("d"),
        "file_info": env.file_info("f"),
        "list_dir": env.list_dir("."),
        "exists": env.exists("f"),
        "write": env.write("f", "new"),
        "write of a new file": env.write("g", "new"),
        "append": env.append("f", "new"),
        "truncate": env.truncate("f", 0),
        "flush": env.flush("f"),
        "rename": env.rename("f", "g"),
        "create_dir": env.create_dir("e"),
        "remove": env.remove("d", recursive=True),
        "temp_dir": env.temp_dir(),
        "temp_file": env.temp_file(),
    }.items():
        await aborted_before(work, name)
    assert names(await env.list_dir(".")) == ["d", "f"]
    assert await env.read_text("f") == "old"
    assert names(await env.list_dir(parent(probe))) == before


@check(13)
async def truncate_cuts_bytes_and_extends_with_zeros(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "äb")
    await env.truncate("f", 1)
    assert await env.read_binary("f") == b"\xc3"
    await env.truncate("f", 3)
    assert await env.read_binary("f") == b"\xc3\0\0"
    await env.truncate("f", 0)
    assert await env.read_binary("f") == b""


@check(14)
async def sizes_that_are_none_are_invalid(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "abc")
    await env.create_dir("d")
    for size in (-1, 1.5, True, float("nan"), 2**63, "1"):
        await refused(env.truncate("f", size), "invalid", f"{env.cwd}/f")  # type: ignore[arg-type]
        await refused(env.read_binary("f", size), "invalid", f"{env.cwd}/f")  # type: ignore[arg-type]
        await refused(env.read_binary("f", 0, size), "invalid", f"{env.cwd}/f")  # type: ignore[arg-type]
    await refused(env.truncate("none", 3), "not_found", f"{env.cwd}/none")
    await refused(env.truncate("d", 3), "is_directory", f"{env.cwd}/d")
    assert not await env.exists("none"), "a truncate never creates"
    assert await env.read_text("f") == "abc"


@check(15)
async def flush_wants_a_file(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("d/f", "abc")
    await env.flush("d/f")
    assert await env.read_text("d/f") == "abc"
    await refused(env.flush("none"), "not_found", f"{env.cwd}/none")
    await refused(env.flush("d"), "is_directory", f"{env.cwd}/d")


@check(16)
async def a_sync_that_fails_is_told_and_leaves_nothing_open(make_env: MakeEnv) -> None:
    env = await make_env()
    await refused(env.flush(_UNSYNCABLE), "unknown", _UNSYNCABLE)

    async def closed() -> bool:
        _, holders, _ = await said(env, f"find /proc/[0-9]*/fd -lname {_UNSYNCABLE} 2>/dev/null")
        return not holders

    await until(closed, f"nobody holds {_UNSYNCABLE} open")


@check(17)
async def cleanup_of_nothing_is_nothing(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.cleanup()
    await env.exec("true")
    await env.cleanup()
    assert (await env.exec("exit 3")).exit_code == 3, "it can still be used"


@check(45)
async def a_name_that_no_system_call_takes_is_invalid(make_env: MakeEnv) -> None:
    env = await make_env()
    for path in ("nul\0", "half a pair \ud800", "x" * 300):
        await refused(env.read_text(path), "invalid")
        await refused(env.write(path, ""), "invalid")
        await refused(env.file_info(path), "invalid")
    await env.exec("ln -s loop loop")
    await refused(env.read_text("loop"), "invalid", f"{env.cwd}/loop")


@check(46)
async def special_files_are_invalid_and_never_waited_for(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.exec("mkfifo pipe")
    async with asyncio.timeout(10):
        await refused(env.file_info("pipe"), "invalid", f"{env.cwd}/pipe")
        for work in (
            env.read_text("pipe"),
            env.read_lines("pipe"),
            env.open_binary_reader("pipe"),
            env.open_line_reader("pipe"),
            env.append("pipe", "x"),
            env.flush("pipe"),
            env.truncate("pipe", 0),
        ):
            await refused(work, "invalid", f"{env.cwd}/pipe")
    assert await env.list_dir(".") == []
    assert await env.exists("pipe")


@check(47)
async def a_write_is_seen_whole_or_not_at_all(make_env: MakeEnv) -> None:
    env = await make_env()
    versions = [str(n) * 200_000 for n in range(5)]
    await env.write("f", versions[0])
    writes = [asyncio.create_task(env.write("f", version)) for version in versions]
    while not all(write.done() for write in writes):
        assert await env.read_text("f") in versions, "a part of a write was seen"
    for write in writes:
        await write
    assert names(await env.list_dir(".")) == ["f"], "no temporary file stays"


@check(48)
async def environments_with_equal_ids_see_the_same_files(make_env: MakeEnv) -> None:
    one, two = await make_env(), await make_env()
    await one.write("f", "here")
    assert (one.id != two.id) or await two.read_text(f"{one.cwd}/f") == "here"
    assert one.cwd != two.cwd

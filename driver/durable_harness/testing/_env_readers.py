"""Checks of an ExecutionEnv: files and folders that are held open (cases 18 to 23, and what the contract says besides)."""

from __future__ import annotations

import asyncio

from durable_harness.env import Line, LineReader, LineScan
from durable_harness.testing._env_check import MakeEnv, aborted_before, cancel, check, refused, said

_PIECE = 64 * 1024  # what implementations tend to read at once


async def _rest(reader: LineReader) -> list[Line]:
    lines: list[Line] = []
    while (line := await reader.read_line()) is not None:
        lines.append(line)
    return lines


@check(18)
async def lines_end_at_lf_alone(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "a\r\nb\rc\u2028d\x0be\n\nlast")
    async with await env.open_line_reader("f") as reader:
        assert await reader.read_line() == Line("a\r", True)
        assert await _rest(reader) == [Line("b\rc\u2028d\x0be", True), Line("", True), Line("last", False)]
        assert await reader.read_line() is None
        assert await reader.read_line() is None
        await env.append("f", "more\n")
        assert await reader.read_line() == Line("more", True), "what is appended is read on"


@check(19)
async def an_empty_file_has_no_line_and_a_line_break_one(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("empty", "")
    await env.write("break", "\n")
    async with await env.open_line_reader("empty") as reader:
        assert await reader.read_line() is None
    async with await env.open_line_reader("break") as reader:
        assert await _rest(reader) == [Line("", True)]
    assert await env.read_lines("empty") == []
    assert await env.read_lines("break") == [Line("", True)]


@check(20)
async def characters_and_lines_cross_the_pieces_whole(make_env: MakeEnv) -> None:
    env = await make_env()
    for before in range(4):
        text = "x" * (_PIECE - before) + "😀" + "y"
        lines = [Line(text, True), Line("z" * (5 * _PIECE + 7), True), Line("", True), Line("ä", False)]
        await env.write("f", "\n".join(line.text for line in lines))
        async with await env.open_line_reader("f") as reader:
            assert await _rest(reader) == lines, f"{before} bytes before the end of a piece"
        assert await env.read_lines("f") == lines


@check(21)
async def a_cancelled_read_takes_nothing(make_env: MakeEnv) -> None:
    env = await make_env()
    texts = [str(number) * (number * 9000 + 1) for number in range(12)]
    await env.write("f", "".join(f"{text}\n" for text in texts))
    async with await env.open_line_reader("f") as reader, await env.open_binary_reader("f") as binary:
        await aborted_before(reader.read_line(), "read_line")
        await aborted_before(binary.read(0, 1), "read")
        for number, text in enumerate(texts):
            pending = asyncio.create_task(reader.read_line())
            for _ in range(number % 6):  # further into the read each time
                await asyncio.sleep(0)
            if not pending.done():
                await cancel(pending)
                assert await reader.read_line() == Line(text, True)
            else:
                assert await pending == Line(text, True)
            whole = asyncio.create_task(binary.read(0, 10**6))
            await asyncio.sleep(0)
            await cancel(whole)
            assert await binary.read(0, 2) == b"0\n"
        assert await reader.read_line() is None


@check(22)
async def a_closed_reader_is_invalid_and_closing_again_is_fine(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("d/f", "one\ntwo\n")
    path = f"{env.cwd}/d/f"
    lines, binary, folder = (
        await env.open_line_reader("d/f"),
        await env.open_binary_reader("d/f"),
        await env.open_dir_reader("d"),
    )
    assert await lines.read_line() == Line("one", True)
    for reader in (lines, binary, folder):
        await reader.close()
        await reader.close()
    await refused(lines.read_line(), "invalid", path)
    await refused(binary.read(0, 1), "invalid", path)
    await refused(binary.info(), "invalid", path)
    await refused(binary.scan_lines(0, 1), "invalid", path)
    await refused(folder.read_page(1), "invalid", f"{env.cwd}/d")
    _, holders, _ = await said(env, f"find /proc/[0-9]*/fd -lname '{env.cwd}/d*' 2>/dev/null")
    assert not holders, "a closed reader leaves a file open"


@check(23)
async def what_is_missing_cannot_be_opened(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "")
    await env.create_dir("d")
    path = f"{env.cwd}/none"
    await refused(env.open_line_reader("none"), "not_found", path)
    await refused(env.open_binary_reader("none"), "not_found", path)
    await refused(env.open_dir_reader("none"), "not_found", path)
    await refused(env.open_line_reader("d"), "is_directory", f"{env.cwd}/d")
    await refused(env.open_binary_reader("d"), "is_directory", f"{env.cwd}/d")
    await refused(env.open_dir_reader("f"), "not_directory", f"{env.cwd}/f")


@check(49)
async def what_is_held_open_stays_the_same_file(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "the old one\n")
    async with await env.open_binary_reader("f") as binary, await env.open_line_reader("f") as lines:
        await env.rename("f", "moved")
        await env.write("f", "the new one\n")
        assert await binary.read(4, 3) == b"old"
        await env.append("moved", "more")
        info = await binary.info()
        assert (info.path, info.name, info.kind, info.size) == (f"{env.cwd}/f", "f", "file", 16)
        await env.remove("moved")
        assert await binary.read(0, 99) == b"the old one\nmore"
        assert await binary.read(12, 2) == b"mo"
        assert await binary.read(16, 1) == b""
        assert await binary.read(99, 1) == b""
        assert await binary.read(0, 0) == b""
        assert await lines.read_line() == Line("the old one", True)
        for bad in (-1, 1.5, True):
            await refused(binary.read(bad, 1), "invalid", f"{env.cwd}/f")  # type: ignore[arg-type]
            await refused(binary.read(0, bad), "invalid", f"{env.cwd}/f")  # type: ignore[arg-type]


@check(50)
async def no_follow_refuses_a_symlink(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.write("f", "x")
    await env.exec("ln -s f link && ln -s nowhere broken")
    await refused(env.open_binary_reader("link", no_follow=True), "invalid", f"{env.cwd}/link")
    await refused(env.open_binary_reader("broken", no_follow=True), "invalid", f"{env.cwd}/broken")
    await refused(env.open_binary_reader("broken"), "not_found", f"{env.cwd}/broken")
    for path, no_follow in (("link", False), ("f", True)):
        async with await env.open_binary_reader(path, no_follow=no_follow) as binary:
            assert await binary.read(0, 9) == b"x"


@check(51)
async def lines_are_found_without_being_read(make_env: MakeEnv) -> None:
    env = await make_env()
    data = b"".join(b"%d\n" % number for number in range(200_000)) + b"last"
    await env.write("f", data)
    async with await env.open_binary_reader("f") as binary:
        start = await binary.scan_lines(0, 123_456)
        assert start == LineScan(data.index(b"\n123456\n") + 1, 123_456)
        assert await binary.read(start.offset, 7) == b"123456\n"
        assert await binary.scan_lines(start.offset, 1) == LineScan(start.offset + 7, 1)
        assert await binary.scan_lines(start.offset, 0) == LineScan(start.offset, 0)
        assert await binary.scan_lines(0, 10**6) == LineScan(len(data), 200_000)
        assert await binary.scan_lines(len(data) + 5, 1) == LineScan(len(data) + 5, 0)
        await refused(binary.scan_lines(0, -1), "invalid", f"{env.cwd}/f")


@check(52)
async def a_folder_is_read_in_pages(make_env: MakeEnv) -> None:
    env = await make_env()
    await env.exec(
        "mkdir d && cd d && seq -f file-%g 1 1000 | xargs touch && mkdir folder && ln -s x link && mkfifo pipe"
    )
    seen: list[str] = []
    async with await env.open_dir_reader("d") as reader:
        await aborted_before(reader.read_page(1), "read_page")
        await refused(reader.read_page(0), "invalid", f"{env.cwd}/d")
        while page := await reader.read_page(300):
            assert len(page) <= 300
            seen += [entry.name for entry in page]
            assert all(entry.path == f"{env.cwd}/d/{entry.name}" for entry in page)
        assert await reader.read_page(300) == []
    assert sorted(seen) == sorted(["folder", "link", *(f"file-{number}" for number in range(1, 1001))])
    async with await env.open_dir_reader("d") as reader:
        (first,) = await reader.read_page(1)
        await env.remove("d", recursive=True)
        rest = [entry for entry in await reader.read_page(2000) if entry.name != first.name]
        assert rest == [], "what has vanished is left out"

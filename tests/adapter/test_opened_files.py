"""Files of a Space that are held open, while its daemon is killed, its files are replaced, and another driver takes over."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from durable_base.errors import StaleEpochError
from durable_base.floor import Floor, new_incarnation
from durable_harness.env import FileError, Line
from durable_harness.line_reader import BufferedLineReader
from durable_space.testing import LocalDaemon
from durable_spaces.client import Address, FencedSpace, SpaceClient

EPOCHS = itertools.count(1)


@pytest.fixture
def daemon() -> Iterator[LocalDaemon]:
    folder = Path(tempfile.mkdtemp(prefix="of-"))
    daemon = LocalDaemon(folder)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(folder)


@pytest.fixture
async def space(daemon: LocalDaemon) -> AsyncIterator[FencedSpace]:
    client = SpaceClient(Address(f"unix:{daemon.socket}"), Floor(next(EPOCHS), new_incarnation()))
    yield await client.advance(await client.info())
    await client.close()


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.01)


def held_open(daemon: LocalDaemon, path: Path) -> int:
    assert daemon.process is not None
    folder = f"/proc/{daemon.process.pid}/fd"
    found = 0
    for name in os.listdir(folder):
        try:
            found += os.readlink(f"{folder}/{name}").startswith(str(path))
        except FileNotFoundError:
            continue
    return found


async def test_reading_goes_on_after_the_daemon_was_killed(daemon: LocalDaemon, space: FencedSpace) -> None:
    path = daemon.workspace / "f"
    text = "x" * 100
    path.write_text("".join(f"line {number} {text}\n" for number in range(4000)))
    reader = BufferedLineReader(await space.files.open_file(str(path), no_follow=False), str(path))
    for number in range(4000):
        if number in (10, 2000):
            await asyncio.to_thread(daemon.restart)
        assert await reader.read_line() == Line(f"line {number} {text}", True)
    assert await reader.read_line() is None
    await reader.close()


async def test_another_file_at_the_path_is_not_read_on(daemon: LocalDaemon, space: FencedSpace) -> None:
    path = daemon.workspace / "f"
    path.write_text("old")
    reader = await space.files.open_file(str(path), no_follow=False)
    daemon.kill()
    path.rename(path.with_name("kept"))  # so that its inode is not given to the new one
    path.write_text("new")
    await asyncio.to_thread(daemon.start)
    with pytest.raises(FileError) as refused:
        await reader.read(0, 3)
    assert (refused.value.code, refused.value.path) == ("aborted", str(path))
    await reader.close()


async def test_a_folder_is_not_read_on_by_another_daemon(daemon: LocalDaemon, space: FencedSpace) -> None:
    for number in range(5):
        (daemon.workspace / f"f{number}").touch()
    reader = await space.files.open_folder(str(daemon.workspace))
    assert len(await reader.read_page(2)) == 2
    await asyncio.to_thread(daemon.restart)
    with pytest.raises(FileError) as refused:
        await reader.read_page(2)
    assert refused.value.code == "aborted"
    await reader.close()


async def test_an_old_driver_reads_nothing_more(daemon: LocalDaemon, space: FencedSpace) -> None:
    path = daemon.workspace / "f"
    path.write_text("text")
    reader = await space.files.open_file(str(path), no_follow=False)
    assert await reader.read(0, 4) == b"text"
    newer = SpaceClient(Address(f"unix:{daemon.socket}"), Floor(next(EPOCHS), new_incarnation()))
    await newer.advance(await newer.info())
    with pytest.raises(StaleEpochError):
        await reader.read(0, 4)
    await reader.close()
    await newer.close()


async def test_the_daemon_closes_what_a_client_held_that_is_gone(daemon: LocalDaemon, space: FencedSpace) -> None:
    path = daemon.workspace / "f"
    path.write_text("text")
    gone = SpaceClient(Address(f"unix:{daemon.socket}"), space.own)
    held = await gone.advance(await gone.info())
    readers = [await held.files.open_file(str(path), no_follow=False) for _ in range(20)]
    assert held_open(daemon, path) == 20
    await gone.close()
    await until(lambda: held_open(daemon, path) == 0)
    with pytest.raises(FileError) as refused:
        await readers[0].read(0, 1)
    assert refused.value.code == "aborted"
    for reader in readers:
        await reader.close()


async def test_a_cancelled_read_of_much_leaves_the_next_one_its_own_answer(
    daemon: LocalDaemon, space: FencedSpace
) -> None:
    path = daemon.workspace / "f"
    path.write_bytes(b"".join(bytes([number]) * (1 << 20) for number in range(8)))
    reader = await space.files.open_file(str(path), no_follow=False)
    for number in range(8):
        reading = asyncio.create_task(reader.read(0, 8 << 20))
        await asyncio.sleep(0.002 * number)
        reading.cancel()
        assert await reader.read(number << 20, 3) == bytes([number]) * 3
    await reader.close()
    assert held_open(daemon, path) == 0

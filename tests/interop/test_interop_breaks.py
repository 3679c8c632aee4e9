"""The real cua-spacesd as a Space: connections that break, a daemon that is killed, and whom its address leads to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from cua_drives import QUIET, Drivers, helpers, wait_for
from cua_peers import TOKEN, RealDaemon

from durable_base.errors import HaltError, UsageError
from durable_base.floor import Floor, new_incarnation
from durable_harness.env import FileError
from durable_spaces._channel import Deadlines
from durable_spaces._commands import CommandSpec, Sinks
from durable_spaces.client import Address, SpaceClient
from durable_spaces.cua import CuaSpaceClient, client_for
from durable_spaces.limits import Limits


class Cutting:
    """A proxy on the level of bytes that ends each connection after a number of them, drawn from a seed."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        budget = self._random.randrange(300_000, 1_500_000)  # one piece of input passes in any case
        ways = [asyncio.ensure_future(self._pass(reader, up_writer, budget))]
        ways.append(asyncio.ensure_future(self._pass(up_reader, writer, budget)))
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        self.cuts += 1
        for way in ways:
            way.cancel()
        for one in (writer, up_writer):
            one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int) -> None:
        with contextlib.suppress(ConnectionError):
            while left > 0 and (piece := await reader.read(min(left, 1 << 14))):
                writer.write(piece)
                await writer.drain()
                left -= len(piece)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_nothing_is_lost_and_nothing_done_twice_over_connections_that_break(
    drivers: Drivers, cua: RealDaemon, seed: int
) -> None:
    proxy = Cutting(cua.port, seed)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    data = random.Random(seed).randbytes(900_000)
    async with server:
        space = await drivers.drive(1, target=f"127.0.0.1:{port}")
        (helper,) = helpers(cua)
        heard = bytearray()
        for number in range(4):
            await space.files.write(f"{space.root}/f{number}", data)
            assert await space.files.read(f"{space.root}/f{number}") == data
            await space.files.append(f"{space.root}/log", b"%d\n" % number)
            command = f"echo {number} >> commands; cat f{number}"
            spec = CommandSpec("/bin/sh", ("-c", command), cwd=space.root)
            heard.clear()
            end = await space.commands.run(spec, f"c{number}@1", Sinks(output=lambda piece, _: heard.extend(piece)))
            assert (end.exit_code, bytes(heard)) == (0, data)
        assert helpers(cua) == [helper], "a connection that breaks does not end the helper"
        assert proxy.cuts > 5
        await drivers.clients.pop().close()
    for name in ("log", "commands"):
        assert (cua.workspace / name).read_text() == "0\n1\n2\n3\n"


async def test_a_daemon_that_is_killed_takes_helper_and_commands_along_and_both_are_told(
    drivers: Drivers, cua: RealDaemon
) -> None:
    space = await drivers.drive(1)
    spec = CommandSpec("/bin/sh", ("-c", "touch started; exec sleep 60"), cwd=space.root)
    running = asyncio.create_task(space.commands.run(spec, "long@1", QUIET))
    done = await space.commands.run(CommandSpec("/bin/sh", ("-c", "echo kept; exit 5")), "short@1", QUIET)
    assert done.exit_code == 5
    await wait_for((cua.workspace / "started").exists)
    cua.kill()
    cua.start()
    with pytest.raises(HaltError) as halted:
        await running
    assert halted.value.reason == "CommandLost"
    await space.files.write(f"{space.root}/f", b"by the next helper")
    assert len(helpers(cua)) == 1
    assert await space.commands.output("short@1") == (b"kept\n", 0), "the record is left"
    assert (await space.commands.attach("short@1", QUIET)).exit_code == 5


async def test_a_closed_client_asks_nothing_and_leaves_no_helper(drivers: Drivers, cua: RealDaemon) -> None:
    space = await drivers.drive(1)
    reader = await space.files.open_folder(space.root)
    reading = [asyncio.create_task(space.files.info(f"{space.root}/f")) for _ in range(5)]
    await asyncio.sleep(0)
    await drivers.clients.pop().close()
    await wait_for(lambda: helpers(cua) == [])
    ends = await asyncio.gather(*reading, return_exceptions=True)
    assert all(isinstance(end, (FileError, HaltError)) for end in ends), ends
    await reader.close()
    with pytest.raises(HaltError, match="closed"):
        await space.files.info(f"{space.root}/f")
    assert (await drivers.drive(1)).root == space.root, "the same epoch goes on with a helper of its own"


async def test_silence_is_a_halt(drivers: Drivers, cua: RealDaemon) -> None:
    space = await drivers.drive(1, deadlines=Deadlines(connect_seconds=0.5))
    cua.kill()
    with pytest.raises(HaltError) as halted:
        await space.files.read(f"{space.root}/f")
    assert halted.value.reason == "SpaceUnreachable"


async def test_a_space_keeps_its_identity_over_drives_and_restarts(drivers: Drivers, cua: RealDaemon) -> None:
    first = await drivers.drive(1)
    cua.kill()
    cua.start()
    second = await drivers.drive(2)
    assert second.identity == first.identity
    own = cua.folder / ".durable-space"
    assert (own.stat().st_mode & 0o777, len(list(own.glob("helper-*.pyz")))) == (0o700, 1)
    assert await second.workspace.scan(Limits()) == {}, "nothing of it is in the workspace"


async def test_another_space_at_the_address_is_another_space(drivers: Drivers, cua: RealDaemon) -> None:
    """Rule 12: the marker is another one, and nothing is started there."""
    space = await drivers.drive(1)
    (pid,) = helpers(cua)
    (cua.folder / ".durable-space" / "marker").write_text("0" * 32)
    os.kill(pid, signal.SIGKILL)
    for work in (lambda: space.files.write(f"{space.root}/x", b"there"), space.check_same):
        with pytest.raises(HaltError) as halted:
            await work()
        assert halted.value.reason == "SpaceChanged"
    assert (helpers(cua), list(cua.workspace.iterdir())) == ([], [])


async def test_a_marker_that_changes_between_look_and_advance_is_told(drivers: Drivers, cua: RealDaemon) -> None:
    await drivers.drive(1)
    client = CuaSpaceClient(
        Address(cua.address, drivers.token), Floor(2, new_incarnation()), workspace=str(cua.workspace)
    )
    drivers.clients.append(client)
    info = await client.info()
    (cua.folder / ".durable-space" / "marker").write_text("f" * 32)
    with pytest.raises(HaltError) as halted:
        await client.advance(info)
    assert halted.value.reason == "SpaceChanged"


async def test_where_the_home_folder_is_the_workspace_the_helper_is_kept_elsewhere(
    cua: RealDaemon, drivers: Drivers, tmp_path: Path
) -> None:
    address = Address(cua.address, drivers.token)
    client = CuaSpaceClient(
        address, Floor(1, new_incarnation()), workspace=str(cua.folder), folder=str(tmp_path / "own")
    )
    drivers.clients.append(client)
    space = await client.advance(await client.info())
    assert (tmp_path / "own" / "marker").exists()
    assert not (cua.folder / ".durable-space").exists()
    assert await space.files.info(f"{space.root}/workspace")


async def test_a_space_without_a_home_folder_needs_one_to_be_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    daemon = RealDaemon(tmp_path / "space", HOME=str(tmp_path / "none"))
    try:
        daemon.start()
        drivers = Drivers(daemon, tmp_path / "token", [])
        with pytest.raises(HaltError, match="name a folder") as halted:
            await drivers.drive(1)
        assert halted.value.reason == "HelperRefused"
        space = await drivers.drive(1, folder=str(tmp_path / "own"))
        await space.files.write(f"{space.root}/f", b"x")
        for client in drivers.clients:
            await client.close()
    finally:
        daemon.kill()


async def test_a_folder_in_the_workspace_is_the_callers_error(cua: RealDaemon, tmp_path: Path) -> None:
    for workspace, folder in (("/space", "/space/own"), ("/space", "own"), ("space", None), ("/space", "/space")):
        with pytest.raises(UsageError):
            CuaSpaceClient(Address(cua.address), Floor(1, new_incarnation()), workspace=workspace, folder=folder)


@pytest.mark.parametrize("how", ["open to all", "a file", "a link", "below what may not be written"])
async def test_a_folder_that_others_may_write_is_not_run_from(
    cua: RealDaemon, drivers: Drivers, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "own"
    match how:
        case "open to all":
            folder.mkdir()
            folder.chmod(0o777)
        case "a file":
            folder.write_text("")
        case "a link":
            (tmp_path / "elsewhere").mkdir()
            folder.symlink_to(tmp_path / "elsewhere")
        case _:
            folder = Path("/proc/own")
    with pytest.raises(HaltError) as halted:
        await drivers.drive(1, folder=str(folder))
    assert halted.value.reason == "HelperRefused"
    assert helpers(cua) == []


@pytest.mark.parametrize(
    ("program", "reason", "permanent"),
    [
        ("", "MissingCapability", True),
        ("echo usage >&2; exit 2", "HelperRefused", False),
        ("echo hello; /bin/cat", "HelperRefused", False),
    ],
)
async def test_a_space_without_a_python_that_runs_the_helper_is_told(
    tmp_path: Path, program: str, reason: str, permanent: bool
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "bin").mkdir()
    if program:
        (tmp_path / "bin" / "python3").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "bin" / "python3").chmod(0o755)
    daemon = RealDaemon(tmp_path / "space", PATH=str(tmp_path / "bin"))
    try:
        daemon.start()
        drivers = Drivers(daemon, tmp_path / "token", [])
        with pytest.raises(HaltError, match=r"python3.*install Python 3\.11") as halted:
            await drivers.drive(1)
        assert (halted.value.reason, halted.value.permanent) == (reason, permanent)
        await drivers.clients.pop().close()
    finally:
        daemon.kill()


async def test_a_workspace_that_is_not_there_is_told(drivers: Drivers, cua: RealDaemon) -> None:
    cua.workspace.rmdir()
    with pytest.raises(HaltError, match="workspace") as halted:
        await drivers.drive(1)
    assert halted.value.reason == "HelperRefused"


async def test_the_daemons_are_told_apart_by_what_they_can(theirs: Any, ours: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    for peer, kind in ((theirs, CuaSpaceClient), (ours, SpaceClient)):
        client = await client_for(
            Address(peer.address, tmp_path / "token"), Floor(10**6, new_incarnation()), workspace=str(peer.workspace)
        )
        assert type(client) is kind
        space = await client.advance(await client.info())
        await space.files.write(f"{space.root}/told-apart", b"x")
        assert (peer.workspace / "told-apart").read_bytes() == b"x"
        await client.close()


async def test_a_session_is_refused_there_with_the_remedy(theirs: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    async with SpaceClient(Address(theirs.address, tmp_path / "token"), Floor(1, new_incarnation())) as client:
        with pytest.raises(HaltError, match="this product's Space daemon") as halted:
            await client.info()
    assert (halted.value.reason, halted.value.permanent) == ("MissingCapability", True)

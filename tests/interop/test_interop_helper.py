"""The real cua-spacesd as a Space: what the helper, its fence and what stands in for an identity hold when something breaks."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cua_peers import TOKEN, RealDaemon

from durable_base.errors import HaltError, StaleEpochError, UsageError
from durable_base.floor import Floor, new_incarnation
from durable_harness.env import FileError
from durable_space.testing import until
from durable_spaces import image
from durable_spaces._channel import Deadlines
from durable_spaces._commands import CommandSpec, Sinks
from durable_spaces._workspace import BlobsChanged, UntrackedNames, WorkspaceTooLarge
from durable_spaces.client import Address, SpaceClient
from durable_spaces.cua import CuaSpaceClient, HelperSpace, client_for
from durable_spaces.image import DirNode, FileNode, LinkNode
from durable_spaces.limits import Limits

SECONDS = 20.0
OLD_NS = 1_000_000_000_123_456_789
QUIET = Sinks(output=lambda data, stream: None)


@pytest.fixture
def cua(tmp_path: Path) -> Iterator[RealDaemon]:
    daemon = RealDaemon(tmp_path / "space")
    (tmp_path / "token").write_text(TOKEN)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.kill()


@dataclass
class Drivers:
    daemon: RealDaemon
    token: Path
    clients: list[CuaSpaceClient]

    async def drive(self, epoch: int, *, target: str = "", crash: str = "", **options: Any) -> HelperSpace:
        address = Address(target or self.daemon.address, self.token)
        env = {"DURABLE_CRASH": crash} if crash else {}
        client = CuaSpaceClient(
            address, Floor(epoch, new_incarnation()), workspace=str(self.daemon.workspace), helper_env=env, **options
        )
        self.clients.append(client)
        return await client.advance(await client.info())


@pytest.fixture
async def drivers(cua: RealDaemon, tmp_path: Path) -> AsyncIterator[Drivers]:
    made = Drivers(cua, tmp_path / "token", [])
    yield made
    for client in made.clients:
        await client.close()


def helpers(daemon: RealDaemon) -> list[int]:
    """Process ids of this Space's helpers, as /proc tells them."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if name.isdigit() else []
            if os.fsencode(daemon.workspace) in words and any(word.endswith(b".pyz") for word in words):
                found.append(int(name))
    return found


def plan_for(files: dict[bytes, bytes], remove: tuple[bytes, ...] = ()) -> tuple[image.ApplyPlan, dict[str, bytes]]:
    blobs = {hashlib.sha256(data).hexdigest(): data for data in files.values()}
    put = {path: FileNode(0o644, OLD_NS, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()}
    return image.ApplyPlan(put=put, remove=remove, send=tuple(blobs), have=()), blobs


# ---- scan and apply


async def test_a_workspace_comes_back_from_its_table_and_its_bytes(drivers: Drivers, cua: RealDaemon) -> None:
    space = await drivers.drive(1)
    top = cua.workspace
    (top / "a" / "empty").mkdir(parents=True)
    (top / "a" / "large").write_bytes(random.Random(1).randbytes(3_000_000))
    (top / os.fsdecode(b"\xff")).write_bytes(b"no name in UTF-8")
    (top / "twice").write_bytes(b"no name in UTF-8")
    (top / "link").symlink_to("nowhere")
    os.chmod(top / "twice", 0o751)
    os.utime(top / "a", ns=(OLD_NS, OLD_NS))
    table = await space.workspace.scan(Limits())
    assert table[b"a"] == DirNode(0o755, OLD_NS)
    assert isinstance(table[b"link"], LinkNode)
    blobs = await space.workspace.read_blobs(sorted(image.hashes(table.values())))
    assert len(blobs) == 2
    await space.commands.run(
        CommandSpec("/bin/sh", ("-c", "rm -r * ; echo x > more; mkdir link"), cwd=space.root), "1", QUIET
    )
    changes = image.diff(await space.workspace.scan(Limits()), table)
    plan = image.ApplyPlan(put=dict(changes.put), remove=changes.removed, send=tuple(blobs), have=())
    await space.workspace.apply(plan, blobs.__getitem__)
    assert await space.workspace.scan(Limits(), no_cache=True) == table


async def test_what_cannot_be_scanned_is_told_as_by_our_daemon(drivers: Drivers, cua: RealDaemon) -> None:
    space = await drivers.drive(1)
    (cua.workspace / "f").write_text("12345")
    (sha256,) = image.hashes((await space.workspace.scan(Limits())).values())
    with pytest.raises(WorkspaceTooLarge):
        await space.workspace.scan(Limits(max_bytes=4))
    assert await space.workspace.scan(Limits(max_bytes=4), unlimited=True)
    assert await space.workspace.scan(Limits(max_bytes=4, exclude=(b"f",))) == {}
    (cua.workspace / "f").write_text("54321")
    with pytest.raises(BlobsChanged):
        await space.workspace.read_blobs([sha256])
    os.mkfifo(cua.workspace / "pipe")
    with pytest.raises(UntrackedNames, match="pipe"):
        await space.workspace.scan(Limits())


async def test_a_helper_that_is_killed_in_an_apply_is_followed_by_one_that_ends_it(
    drivers: Drivers, cua: RealDaemon
) -> None:
    """Each one dies behind its third file; each file is whole at any time, and nothing stays beside them."""
    space = await drivers.drive(1, crash="apply.file_renamed:3")
    old = {b"f%d" % number: b"old" for number in range(10)}
    new = {path: path * 100_000 for path in old}
    for path, data in old.items():
        (cua.workspace / os.fsdecode(path)).write_bytes(data)
    plan, blobs = plan_for(new)
    applying = asyncio.create_task(space.workspace.apply(plan, blobs.__getitem__))
    while not applying.done():
        for path in old:
            assert (cua.workspace / os.fsdecode(path)).read_bytes() in (old[path], new[path])
        await asyncio.sleep(0.01)
    await applying
    assert {os.fsencode(file.name): file.read_bytes() for file in cua.workspace.iterdir()} == new


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_helpers_killed_at_any_moment_leave_whole_files_and_nothing_else(
    drivers: Drivers, cua: RealDaemon, seed: int
) -> None:
    space = await drivers.drive(1)
    moments = random.Random(seed)
    names = [b"d%d/f%d" % (number % 3, number) for number in range(60)]
    wanted = [{name: name * (1 + 5000 * turn) for name in names} for turn in (0, 1)]
    kills = 0

    async def kill() -> None:
        nonlocal kills
        while True:
            await asyncio.sleep(moments.uniform(0.1, 1.5))
            for pid in helpers(cua):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1

    killing = asyncio.create_task(kill())
    try:
        turn = 0
        while kills < 6:
            turn += 1
            plan, blobs = plan_for(wanted[turn % 2])
            await space.workspace.apply(plan, blobs.__getitem__)
            found = {
                os.fsencode(file.relative_to(cua.workspace)): file.read_bytes() for file in files_below(cua.workspace)
            }
            assert found == wanted[turn % 2]
            await space.files.write(f"{space.root}/d0/f0", b"by a write" * 1000)
            assert await space.files.read(f"{space.root}/d0/f0") == b"by a write" * 1000
    finally:
        killing.cancel()


def files_below(folder: Path) -> list[Path]:
    return [Path(top) / name for top, _, names in os.walk(folder) for name in names]


async def test_what_must_not_be_done_twice_ends_the_drive_with_the_helper(drivers: Drivers, cua: RealDaemon) -> None:
    space = await drivers.drive(1, crash="files.moved")
    (cua.workspace / "from").write_text("once")
    with pytest.raises(HaltError) as halted:
        await space.files.rename(f"{space.root}/from", f"{space.root}/to")
    assert (halted.value.reason, halted.value.permanent) == ("SpaceUnreachable", False)
    assert await space.files.read(f"{space.root}/to") == b"once", "the next request has a helper again"


async def test_what_was_held_open_is_aborted_with_the_helper(drivers: Drivers, cua: RealDaemon) -> None:
    space = await drivers.drive(1)
    (cua.workspace / "f").write_text("first")
    async with await space.files.open_file(f"{space.root}/f", no_follow=False) as reader:
        assert await reader.read(0, 9) == b"first"
        (pid,) = helpers(cua)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(FileError) as error:
            await reader.read(0, 9)
        assert (error.value.code, error.value.path) == ("aborted", f"{space.root}/f")


# ---- the fence


async def test_a_newer_epoch_ends_the_helper_before_it_answers(drivers: Drivers, cua: RealDaemon) -> None:
    old = await drivers.drive(1)
    (pid,) = helpers(cua)
    new = await drivers.drive(2)
    assert pid not in helpers(cua)
    assert new.killed >= 1
    for work in (
        lambda: old.files.read(f"{old.root}/x"),
        lambda: old.files.write(f"{old.root}/x", b"stale"),
        lambda: old.workspace.scan(Limits()),
        lambda: old.commands.run(CommandSpec("/bin/sh", ("-c", "echo stale > x"), cwd=old.root), "stale@1", QUIET),
    ):
        with pytest.raises(StaleEpochError):
            await work()
    assert list(cua.workspace.iterdir()) == []
    await new.files.write(f"{new.root}/x", b"new")


async def test_an_apply_under_way_changes_nothing_once_a_newer_epoch_has_answered(
    drivers: Drivers, cua: RealDaemon
) -> None:
    """Rule 26: whichever files it had got to, they stay as they are."""
    old = await drivers.drive(1)
    plan, blobs = plan_for({b"f%04d" % number: b"%d" % number * 1000 for number in range(3000)})
    applying = asyncio.create_task(old.workspace.apply(plan, blobs.__getitem__))
    await wait_for(lambda: len(list(cua.workspace.iterdir())) > 20)
    new = await drivers.drive(2)
    there = {file.name: file.read_bytes() for file in cua.workspace.iterdir()}
    assert 20 < len([name for name in there if name.startswith("f")]) < 3000
    with pytest.raises(StaleEpochError):
        await applying
    assert {file.name: file.read_bytes() for file in cua.workspace.iterdir()} == there
    wanted = {os.fsdecode(path): blobs[node.sha256] for path, node in plan.put.items() if isinstance(node, FileNode)}
    assert all(wanted[name] == data for name, data in there.items() if name in wanted)
    assert set(await new.workspace.scan(Limits(max_files=9999))) <= set(plan.put), "nothing of the helper's own is seen"


async def test_a_command_that_a_newer_epoch_killed_has_no_exit_status(drivers: Drivers, cua: RealDaemon) -> None:
    old = await drivers.drive(1)
    spec = CommandSpec("/bin/sh", ("-c", "touch started; exec sleep 60"), cwd=old.root)
    running = asyncio.create_task(old.commands.run(spec, "long@1", QUIET))
    await wait_for((cua.workspace / "started").exists)
    await drivers.drive(2)
    with pytest.raises(StaleEpochError):
        await running


async def test_a_command_killed_by_hand_has_one(drivers: Drivers, cua: RealDaemon) -> None:
    space = await drivers.drive(1)
    spec = CommandSpec("/bin/sh", ("-c", "touch started; exec sleep 60"), cwd=space.root)
    running = asyncio.create_task(space.commands.run(spec, "long@1", QUIET))
    await wait_for((cua.workspace / "started").exists)
    await space.commands.kill("long@1")
    assert (await running).exit_code == 137
    await space.commands.kill("long@1")
    await space.commands.kill("never heard of@1")


async def test_what_outlives_an_epoch_in_the_workspace_is_listed(drivers: Drivers, cua: RealDaemon) -> None:
    """This daemon's AdvanceEpoch kills process groups: what left its own lives on, and nobody would know."""
    space = await drivers.drive(1)
    assert await space.workspace.processes() == []
    script = "setsid sh -c 'echo $$ > pid.tmp; mv pid.tmp pid; exec sleep 60 3> held' </dev/null >/dev/null 2>&1 &"
    await space.commands.run(CommandSpec("/bin/sh", ("-c", script), cwd=space.root), "leaves@1", QUIET)
    await wait_for((cua.workspace / "pid").exists)
    pid = int((cua.workspace / "pid").read_text())
    try:
        after = await drivers.drive(2)
        (left,) = await after.workspace.processes()
        assert (left.pid, left.cwd_inside, left.file_open_inside) == (pid, True, True)
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_two_drivers_of_one_epoch_do_not_both_work(drivers: Drivers, cua: RealDaemon) -> None:
    """This daemon compares no incarnation: the helper's lock does, as far as files go."""
    first = await drivers.drive(1)
    with pytest.raises(HaltError) as halted:
        await drivers.drive(1)
    assert halted.value.reason == "SpaceBusy"
    await first.files.write(f"{first.root}/x", b"goes on")


async def test_an_older_epoch_is_stale(drivers: Drivers) -> None:
    await drivers.drive(2)
    with pytest.raises(StaleEpochError):
        await drivers.drive(1)


# ---- connections, and the daemon's own death


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


# ---- who is there


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


async def test_a_folder_in_the_workspace_is_the_callers_error(cua: RealDaemon, tmp_path: Path) -> None:
    for workspace, folder in (("/work", "/work/own"), ("/work", "own"), ("work", None), ("/work", "/work")):
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


async def wait_for(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, condition, SECONDS)

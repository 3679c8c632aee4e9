"""The Space helper on the real cua-spacesd: scans and applies, killed at any moment, and what a newer epoch leaves of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest
from cua_drives import OLD_NS, QUIET, Drivers, helpers, plan_for, wait_for
from cua_peers import RealDaemon

from durable_base.errors import HaltError, StaleEpochError
from durable_harness.env import FileError
from durable_spaces import image
from durable_spaces._commands import CommandSpec
from durable_spaces._workspace import BlobsChanged, UntrackedNames, WorkspaceTooLarge
from durable_spaces.image import DirNode, FileNode, LinkNode
from durable_spaces.limits import Limits


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


async def test_what_no_frame_can_hold_is_refused_and_the_next_request_answered(
    drivers: Drivers, cua: RealDaemon
) -> None:
    space = await drivers.drive(1)
    with pytest.raises(FileError) as error:
        await space.files.read(f"{space.root}/{'x' * 300_000}")
    assert error.value.code == "invalid"
    (pid,) = helpers(cua)
    assert await space.files.list_dir(space.root) == []
    assert helpers(cua) == [pid]


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

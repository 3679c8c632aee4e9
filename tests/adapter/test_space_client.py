"""The client library alone: every call ends, a broken connection is made again, only an end is an end, and only this Space."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_space.testing import LocalDaemon
from durable_spaces import _channel, client, image
from durable_spaces._errors import Unreachable
from durable_spaces.client import (
    Address,
    Advanced,
    CommandNotStarted,
    CommandSpec,
    Deadlines,
    FencedSpace,
    Floor,
    HaltError,
    Identity,
    Limits,
    Sinks,
    SpaceClient,
    SpaceInfo,
    StaleEpochError,
    new_incarnation,
)

OTHER_BOOT = (
    "from durable_space import cli, identity; identity.boot_id = lambda: 'b' * 32; cli.space(prog_name='durable space')"
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    made = LocalDaemon(tmp_path, "--kill-mechanism", "subreaper")
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def connect(daemon: LocalDaemon) -> AsyncIterator[Callable[..., Awaitable[FencedSpace]]]:
    """`await connect(adopt=..., target=..., deadlines=...)`: a driver of the next epoch, as a program without a coordinator."""
    made: list[SpaceClient] = []

    async def connect(
        *, adopt: tuple[str, ...] = (), target: str = "", deadlines: Deadlines | None = None
    ) -> FencedSpace:
        made.append(SpaceClient(Address(target or f"unix:{daemon.socket}"), deadlines=deadlines or Deadlines()))
        info = await made[-1].info()
        return await made[-1].advance(info, adopt, own=Floor(info.floor.epoch + 1, new_incarnation()))

    yield connect
    for one in made:
        await one.close()


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path: a socket's has at most 100 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="sc-"))
    yield folder
    shutil.rmtree(folder)


def gated(folder: Path) -> CommandSpec:
    """Counts its starts in `starts`, says `begun`, waits for the file `gate`, says `done`."""
    return CommandSpec.shell(
        f"echo x >> {folder}/starts; echo begun; until [ -e {folder}/gate ]; do sleep 0.02; done; echo done; exit 3"
    )


def starts(folder: Path) -> int:
    path = folder / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, condition
        await asyncio.sleep(0.01)


async def running(space: FencedSpace, folder: Path, key: str = "job") -> asyncio.Task[client.CommandResult]:
    """A task that runs the gated command, which has begun and been heard of."""
    heard = bytearray()
    task = asyncio.create_task(space.run(key, gated(folder), on_output=lambda piece, _: heard.extend(piece)))
    await until(lambda: bool(heard) or task.done())
    return task


# ---- reconnect, and an end of stream is never an exit


async def test_a_daemon_killed_and_restarted_in_mid_command_is_not_noticed(
    daemon: LocalDaemon, connect: Any, tmp_path: Path
) -> None:
    space = await connect()
    task = await running(space, tmp_path)
    for _ in range(3):
        await asyncio.to_thread(daemon.restart)
    (tmp_path / "gate").touch()
    result = await task
    assert (result.exit_code, result.stdout, result.dropped_bytes) == (3, b"begun\ndone\n", 0)
    assert starts(tmp_path) == 1


async def test_a_connection_cut_many_times_leaves_the_output_as_it_was_written(
    daemon: LocalDaemon, connect: Any, tmp_path: Path, sockets: Path
) -> None:
    """Both outputs, byte for byte, and one start."""
    chosen = random.Random(4)
    async with proxied(daemon, sockets) as proxy:
        proxy.budgets = [chosen.randrange(500, 160_000) for _ in range(25)]
        space = await connect(target=proxy.target, deadlines=Deadlines(connect_seconds=60.0))
        script = f"echo x >> {tmp_path}/starts; for i in 1 2 3 4 5 6; do seq 1 60000; seq 1 20000 >&2; sleep 0.1; done"
        result = await space.run("job", CommandSpec.shell(script))
        assert not proxy.budgets, "the connection was not cut as often as planned"
    lines = {size: b"".join(b"%d\n" % number for number in range(1, size + 1)) * 6 for size in (60_000, 20_000)}
    assert result.exit_code == 0
    assert result.stdout == lines[60_000]
    assert result.stderr == lines[20_000]
    assert starts(tmp_path) == 1


async def test_a_stream_that_ends_without_an_end_is_not_an_exit(sockets: Path) -> None:
    """A daemon (or something between) that closes each stream in good order, again and again."""
    asked: list[str] = []

    async def answer(method: str, context: Any) -> AsyncIterator[bytes]:
        asked.append(method.rpartition("/")[2])
        yield cua.StartProcessResponse(event=cua.ProcessEvent(start=cua.ProcessStart(pid=1))).SerializeToString()

    async with served(sockets, answer) as target:
        space = fenced(target, Deadlines(connect_seconds=0.5))
        with pytest.raises(HaltError, match="SpaceUnreachable"):
            await space.commands.run(CommandSpec("true"), "job@1", Sinks(output=lambda piece, stream: None))
    assert asked[0] == "StartProcess"
    assert set(asked[1:]) == {"ConnectProcess"}, "once it has started it is only attached to"
    assert len(asked) > 2


async def test_pauses_between_attempts_grow(sockets: Path) -> None:
    """A port that hangs up at once: some attempts, not thousands."""
    attempts = 0

    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    server = await asyncio.start_unix_server(hang_up, sockets / "s")
    async with server, SpaceClient(Address(f"unix:{sockets}/s"), deadlines=Deadlines(connect_seconds=3.0)) as one:
        began = time.monotonic()
        with pytest.raises(HaltError, match="SpaceUnreachable"):
            await one.info()
        assert 3.0 <= time.monotonic() - began < 6.0
    assert 4 <= attempts <= 20


async def test_the_window_begins_with_the_first_failure() -> None:
    """A call of minutes whose connection breaks is taken up again; what never comes back is given up."""
    patience, broken = _channel.Patience(0.3), Unreachable("gone")
    for _ in range(2):
        await asyncio.sleep(0.4)
        await patience.pause(broken)
        patience.reset()
    await patience.pause(broken)
    await asyncio.sleep(0.4)
    with pytest.raises(HaltError, match="SpaceUnreachable"):
        await patience.pause(broken)


# ---- every call ends


def calls_of(space: FencedSpace, one: SpaceClient, info: SpaceInfo) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every public coroutine of the client, with arguments. A new one must be added here."""
    spec, sinks, plan = CommandSpec("true"), Sinks(output=lambda piece, stream: None), image.ApplyPlan({}, (), (), ())
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "SpaceClient.info": one.info,
        "SpaceClient.advance": lambda: one.advance(info),
        "FencedSpace.run": lambda: space.run("k", spec),
        "FencedSpace.read_ledger_seq": space.read_ledger_seq,
        "FencedSpace.check_still_ours": space.check_still_ours,
        "FencedSpace.kill_all": space.kill_all,
        "Commands.run": lambda: space.commands.run(spec, "k@1", sinks),
        "Commands.attach": lambda: space.commands.attach("k@1", sinks),
        "Commands.output": lambda: space.commands.output("k@1"),
        "Commands.kill": lambda: space.commands.kill("k@1"),
        "Commands.lookup": lambda: space.commands.lookup("k"),
        "Commands.rows": lambda: space.commands.rows("k"),
        "Commands.forget": lambda: space.commands.forget("k"),
        "Files.canonical": lambda: space.files.canonical("/f"),
        "Files.read": lambda: space.files.read("/f"),
        "Files.read_lines": lambda: space.files.read_lines("/f", None),
        "Files.open_file": lambda: space.files.open_file("/f", no_follow=False),
        "Files.open_folder": lambda: space.files.open_folder("/f"),
        "Files.write": lambda: space.files.write("/f", b"x"),
        "Files.append": lambda: space.files.append("/f", b"x"),
        "Files.truncate": lambda: space.files.truncate("/f", 0),
        "Files.flush": lambda: space.files.flush("/f"),
        "Files.rename": lambda: space.files.rename("/f", "/g"),
        "Files.info": lambda: space.files.info("/f"),
        "Files.list_dir": lambda: space.files.list_dir("/"),
        "Files.create_dir": lambda: space.files.create_dir("/f", recursive=True),
        "Files.remove": lambda: space.files.remove("/f", recursive=False, force=False),
        "Files.mode": lambda: space.files.mode("/f"),
        "Files.make_temp": lambda: space.files.make_temp(directory=True, prefix="t"),
        "Workspace.scan": lambda: space.workspace.scan(Limits()),
        "Workspace.read_blobs": lambda: space.workspace.read_blobs(["0" * 64]),
        "Workspace.apply": lambda: space.workspace.apply(plan, lambda sha256: b""),
    }
    public = {
        f"{kind.__name__}.{name}"
        for kind in (SpaceClient, FencedSpace, client.Commands, client.Files, client.Workspace)
        for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_") and name != "close"
    }
    assert set(calls) == public
    return calls


async def test_no_call_waits_for_ever_for_an_answer(sockets: Path) -> None:
    """A peer that takes every request and never answers, not even with an error."""

    async def answer(method: str, context: Any) -> AsyncIterator[bytes]:
        await asyncio.sleep(600)
        yield b""

    short = Deadlines(connect_seconds=0.5, call_seconds=0.5, long_call_seconds=0.5, silence_seconds=0.5)
    async with served(sockets, answer) as target, SpaceClient(Address(target), deadlines=short) as one:
        calls = calls_of(fenced(target, short), one, INFO)

        async def outcome(call: Callable[[], Awaitable[object]]) -> str:
            began = time.monotonic()
            try:
                await asyncio.wait_for(call(), 20)
            except HaltError as halted:
                return halted.reason if time.monotonic() - began < 10 else "too late"
            except TimeoutError:
                return "never"
            return "answered"

        told = dict(zip(calls, await asyncio.gather(*map(outcome, calls.values())), strict=True))
    assert told == dict.fromkeys(calls, "SpaceUnreachable")


async def test_an_address_that_swallows_connections_costs_no_more_than_its_bound() -> None:
    """The queue of a listening socket is full, so the machine answers no further connection: no refusal, only silence."""
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        target = f"127.0.0.1:{deaf.getsockname()[1]}"
        async with SpaceClient(Address(target), deadlines=Deadlines(connect_seconds=1.5)) as one:
            began = time.monotonic()
            with pytest.raises(HaltError, match="SpaceUnreachable"):
                await one.info()
            assert time.monotonic() - began < 2 * 1.5 + 2.0


async def test_a_peer_that_never_says_a_word_costs_no_more_than_its_bound(sockets: Path) -> None:
    """It takes the connection, and that is all."""
    server = await asyncio.start_unix_server(lambda reader, writer: None, sockets / "s")
    one = SpaceClient(Address(f"unix:{sockets}/s"), deadlines=Deadlines(connect_seconds=1.5))
    began = time.monotonic()
    with pytest.raises(HaltError, match="SpaceUnreachable"):
        await one.info()
    assert time.monotonic() - began < 2 * 1.5 + 2.0
    await one.close()
    server.close()


async def test_a_daemon_slow_to_shake_hands_is_waited_for(daemon: LocalDaemon, connect: Any, sockets: Path) -> None:
    """Little CPU, a far network: the first answer of a new connection may take a second or two."""
    async with proxied(daemon, sockets) as proxy:
        proxy.delay_seconds = 1.5
        space = await connect(target=proxy.target)
        assert (await space.run("job", CommandSpec.shell("echo here"))).stdout == b"here\n"


async def test_a_peer_that_vanished_is_noticed_in_the_middle_of_a_long_call(
    daemon: LocalDaemon, connect: Any, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost node sends nothing, not even the end of its connections."""
    monkeypatch.setattr(_channel, "_PING_MS", 500)
    (daemon.workspace / "file").write_bytes(b"x" * (4 << 20))
    async with proxied(daemon, sockets) as proxy:
        space = await connect(target=proxy.target)
        proxy.stall_after = 100_000
        began = time.monotonic()
        assert await space.files.read(f"{space.root}/file") == b"x" * (4 << 20)
        assert proxy.stalled == 1
        assert time.monotonic() - began < 10


# ---- this Space, and no other


async def replaced(daemon: LocalDaemon) -> None:
    """Another data folder, at the same address."""
    daemon.kill()
    daemon.data = daemon.data.with_name("data2")
    await asyncio.to_thread(daemon.start)


async def rebooted(daemon: LocalDaemon) -> None:
    """As after a boot of the machine: the daemon finds its folder, and calls this another boot."""
    daemon.kill()
    words = daemon.command()
    words[1:3] = ["-c", OTHER_BOOT]
    daemon.command = lambda: words  # type: ignore[method-assign]
    await asyncio.to_thread(daemon.start)


@pytest.mark.parametrize("change", [replaced, rebooted])
async def test_another_space_at_the_address_does_nothing_for_this_client(
    daemon: LocalDaemon, connect: Any, tmp_path: Path, change: Callable[[LocalDaemon], Awaitable[None]]
) -> None:
    """Noticed by the command that is waited for, and by every call after it."""
    space = await connect()
    task = await running(space, tmp_path)
    await change(daemon)
    marker = daemon.workspace / "marker"
    calls: list[Awaitable[object]] = [
        task,
        space.run("next", CommandSpec.shell(f"touch {marker}")),
        space.files.write(str(marker), b""),
        space.commands.lookup("job"),
        space.kill_all(),
        space.read_ledger_seq(),
        space.check_still_ours(),
    ]
    for call in calls:
        with pytest.raises(HaltError) as halted:
            await call
        assert halted.value.reason == "SpaceChanged"
    assert not marker.exists()
    assert daemon.client().lookup("next") == []
    assert starts(tmp_path) == 1
    (tmp_path / "gate").touch()


async def test_a_space_replaced_between_the_look_and_the_advance_is_not_taken(daemon: LocalDaemon) -> None:
    async with SpaceClient(Address(f"unix:{daemon.socket}"), Floor(1, new_incarnation())) as one:
        info = await one.info()
        await replaced(daemon)
        with pytest.raises(HaltError, match="SpaceChanged"):
            await one.advance(info)
    async with SpaceClient(Address(f"unix:{daemon.socket}")) as other:
        assert (await other.info()).floor == Floor(0, "")


async def test_two_programs_that_take_the_same_epoch_do_not_share_it(daemon: LocalDaemon) -> None:
    address = Address(f"unix:{daemon.socket}")
    async with SpaceClient(address) as one, SpaceClient(address) as two:
        info = await one.info()
        space = await one.advance(info, own=Floor(1, new_incarnation()))
        with pytest.raises(StaleEpochError):
            await two.advance(info, own=Floor(1, new_incarnation()))
        assert (await space.run("job", CommandSpec("true"))).exit_code == 0


# ---- run by key


async def test_a_program_that_comes_again_gets_the_same_run(connect: Any, tmp_path: Path) -> None:
    """Killed while its command runs, and again after it has ended."""
    first = await running(await connect(), tmp_path)
    first.cancel()
    second = await running(await connect(adopt=("job",)), tmp_path)
    (tmp_path / "gate").touch()
    third = await (await connect(adopt=("job",))).run("job", gated(tmp_path))
    assert (third.exit_code, third.stdout) == (3, b"begun\ndone\n")
    assert starts(tmp_path) == 1
    second.cancel()


async def test_a_command_that_nobody_adopted_is_not_run_again(connect: Any, tmp_path: Path) -> None:
    task = await running(await connect(), tmp_path)
    space = await connect()
    with pytest.raises(HaltError, match="CommandKilled"):
        await space.run("job", gated(tmp_path))
    with pytest.raises(StaleEpochError):
        await task
    assert starts(tmp_path) == 1


async def test_a_command_that_was_ended_from_outside_has_no_result(connect: Any, tmp_path: Path) -> None:
    space = await connect()
    task = await running(space, tmp_path)
    assert await space.kill_all() == 1
    with pytest.raises(HaltError, match="CommandKilled"):
        await task


async def test_a_start_that_the_daemon_did_not_come_to_is_made_good(
    daemon: LocalDaemon, connect: Any, tmp_path: Path
) -> None:
    """Reserved, then daemon and program died: the next program's call starts it, once."""
    daemon.restart(crash="ledger.reserved_synced")
    space = await connect(deadlines=Deadlines(connect_seconds=0.3))
    with pytest.raises(HaltError, match="SpaceUnreachable"):
        await space.run("job", gated(tmp_path))
    daemon.wait_dead()
    daemon.start()
    (tmp_path / "gate").touch()
    space = await connect(adopt=("job",))
    assert (await space.run("job", gated(tmp_path))).exit_code == 3
    assert starts(tmp_path) == 1


async def test_a_key_is_one_commands(connect: Any) -> None:
    space = await connect()
    await space.run("job", CommandSpec.shell("echo one"))
    for _ in range(2):
        with pytest.raises(HaltError, match="CommandMismatch"):
            await space.run("job", CommandSpec.shell("echo two"))
        space = await connect()
    assert (await space.run("job", CommandSpec.shell("echo one"))).stdout == b"one\n"
    assert await space.commands.forget("job") == 1
    assert (await space.run("job", CommandSpec.shell("echo two"))).stdout == b"two\n"


async def test_what_can_not_be_started_is_no_result(connect: Any) -> None:
    space = await connect()
    for _ in range(2):
        with pytest.raises(CommandNotStarted, match="no-such-program"):
            await space.run("job", CommandSpec("no-such-program"))


async def test_of_much_output_the_newest_is_kept(connect: Any) -> None:
    space = await connect()
    heard = bytearray()
    script = "seq 1 30000; echo last >&2"
    result = await space.run(
        "job", CommandSpec.shell(script), on_output=lambda piece, _: heard.extend(piece), keep_bytes=1000
    )
    assert len(result.stdout) + len(result.stderr) == 1000
    assert result.stderr == b"last\n"
    assert heard.endswith(result.stdout + result.stderr)
    assert result.dropped_bytes + 1000 == len(heard)


async def test_a_timeout_ends_the_command_and_says_so(connect: Any) -> None:
    result = await (await connect()).run("job", CommandSpec.shell("echo on; sleep 60", timeout_seconds=0.3))
    assert result.timed_out
    assert result.stdout == b"on\n"


# ---- the surface


def test_what_a_person_needs_has_a_public_name_and_a_text() -> None:
    for name in client.__all__:
        thing = getattr(client, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name
    assert {"Address", "SpaceClient", "FencedSpace", "CommandSpec", "Sinks", "CommandResult"} <= set(client.__all__)


def test_the_client_needs_grpc_and_protobuf_alone() -> None:
    """Of what is in this package's extras (`space` has these two)."""
    others = ["kopf", "kubernetes", "aiohttp", "prometheus_client", "cryptography", "pydantic_ai"]
    blocked = (
        f"import sys; sys.modules.update(dict.fromkeys({others}))\nimport durable_spaces.client, durable_space.cli"
    )
    subprocess.run([sys.executable, "-c", blocked], check=True, timeout=60)


# ---- peers


INFO = SpaceInfo("", Identity("i" * 32, "b" * 32), 0, Floor(), "/", 0)


def fenced(target: str, deadlines: Deadlines) -> FencedSpace:
    """As if it had been advanced: for peers that never answer."""
    one = SpaceClient(Address(target), Floor(1, new_incarnation()), deadlines=deadlines)
    return FencedSpace(one._wire, INFO, Advanced(0, ()))


@contextlib.asynccontextmanager
async def served(folder: Path, answer: Callable[[str, Any], AsyncIterator[bytes]]) -> AsyncIterator[str]:
    """A server that answers each call of any method with `answer(method, context)`, whatever was sent."""

    class EveryMethod(grpc.GenericRpcHandler):
        def service(self, call: grpc.HandlerCallDetails) -> Any:
            async def answers(requests: Any, context: Any) -> AsyncIterator[bytes]:
                async for message in answer(call.method, context):
                    yield message

            return grpc.stream_stream_rpc_method_handler(answers)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([EveryMethod()])
    server.add_insecure_port(f"unix:{folder}/any")
    await server.start()
    try:
        yield f"unix:{folder}/any"
    finally:
        await server.stop(0)


class Proxy:
    """Between client and daemon, on the level of bytes."""

    def __init__(self, upstream: str, target: str) -> None:
        self.upstream, self.target = upstream, target
        self.budgets: list[int] = []  # each is one connection's: so many bytes to the client, then it is cut
        self.delay_seconds = 0.0  # before the daemon's first byte is passed on
        self.stall_after = 0  # bytes to the client, after which nothing passes any more on that connection; once
        self.stalled = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self.upstream)
        up = asyncio.create_task(self._pass(reader, up_writer))
        try:
            await asyncio.sleep(self.delay_seconds)
            await self._pass_down(up_reader, writer)
        finally:
            up.cancel()
            for one in (writer, up_writer):
                one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()

    async def _pass_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.budgets.pop(0) if self.budgets else None
        passed = 0
        while piece := await reader.read(1 << 14):
            if self.stall_after and passed > self.stall_after:
                self.stall_after = 0
                self.stalled += 1
                await asyncio.sleep(600)
            if left is not None:
                piece = piece[:left]
                left -= len(piece)
            writer.write(piece)
            await writer.drain()
            passed += len(piece)
            if left == 0:
                return


@contextlib.asynccontextmanager
async def proxied(daemon: LocalDaemon, folder: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(str(daemon.socket), f"unix:{folder}/p")
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_unix_server(accept, folder / "p")
    try:
        yield proxy
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

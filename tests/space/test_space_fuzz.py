"""Whatever is sent to a daemon: it lives, answers in time, changes nothing for a caller below the floor, and does not grow.

Deterministic: Hypothesis runs without its database and from fixed seeds. Every path that is sent lies in the daemon's own
workspace, so that a request which should have been refused and was not does no harm elsewhere.
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durable_protocol.cua.env.v1 import filesystem_pb2 as fs
from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.cua.env.v1 import system_pb2 as system
from durable_protocol.durable.space.v1 import files_pb2 as files
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_protocol.durable.space.v1 import workspace_pb2 as workspace
from durable_space.testing import Client, LocalDaemon, refusal, until

EPOCH, OWN, OTHER = 5, "a" * 32, "b" * 32
UNARY_SECONDS, STREAM_SECONDS = 10.0, 0.5
GROWTH_BYTES_MAX = 64 << 20

SERVICES = [
    service
    for module in (cua, fs, system, durable, files, workspace)
    for service in module.DESCRIPTOR.services_by_name.values()
]
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
READING = {
    *(name for name in METHODS if "SystemService" in name),
    "/durable.space.v1.SpaceService/GetInfo",
    "/durable.space.v1.LedgerService/Lookup",
    "/cua.env.v1.ProcessService/ListProcesses",
    "/cua.env.v1.ProcessService/GetExecRecord",
}
MUTATIONS = {
    f"/{service}/{name}"
    for service, names in {
        "cua.env.v1.ProcessService": "StartProcess SendInput StreamInput SignalProcess CloseStdin AdvanceEpoch",
        "cua.env.v1.FilesystemService": (
            "MakeDir Move Remove WriteFile BeginUpload UploadChunk CommitUpload AbortUpload"
        ),
        "durable.space.v1.SpaceService": "AdvanceEpoch KillAll",
        "durable.space.v1.LedgerService": "Forget",
        "durable.space.v1.FileService": "Truncate Flush MakeTemp",
        "durable.space.v1.WorkspaceService": "Apply",
    }.items()
    for name in names.split()
}

fuzzed = settings(
    derandomize=True, database=None, deadline=None, max_examples=150, suppress_health_check=list(HealthCheck)
)

texts = st.text(st.characters(codec="utf-8"), max_size=30)
PATHS = frozenset({"path", "source", "destination", "cwd", "disk_path"})
IDS = ("known", "running", "log/1:1:0@5", "x" * 300, "")


def inside(text: str) -> str:
    """Below the workspace, whatever `text` is."""
    return "fuzz/" + text.replace("..", "__")


def of_type(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    kind = field.type
    if field.name in PATHS:
        safe = st.one_of(texts, st.sampled_from(["file", "folder", "folder/inner", "link", "pipe"])).map(inside)
        return safe.map(lambda text: text.encode()) if kind == FieldDescriptor.TYPE_BYTES else safe
    if kind == FieldDescriptor.TYPE_STRING:
        if field.name == "command":
            return st.one_of(st.sampled_from(["true", "cat", "/bin/echo"]), texts.map(lambda text: f"./{inside(text)}"))
        if field.name == "prefix":
            return texts.map(lambda text: f"fuzz-{text}")
        return st.one_of(texts, st.sampled_from(IDS), st.sampled_from([OWN, OTHER]))
    if kind == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=200)
    if kind == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if kind in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return st.floats()
    if kind == FieldDescriptor.TYPE_ENUM:
        return st.one_of(st.sampled_from([value.number for value in field.enum_type.values]), st.integers(-5, 50))
    if kind == FieldDescriptor.TYPE_MESSAGE:
        return messages(field.message_type, depth - 1)
    signed = field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    wide = field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
    bits = 64 if wide else 32
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.integers(0, 12), st.integers(low, high), st.sampled_from([low, high]))


def messages(descriptor: Descriptor, depth: int = 4) -> st.SearchStrategy[Message]:
    """Any message of this type, a field being set or not."""
    make = message_factory.GetMessageClass(descriptor)
    if depth == 0 or not descriptor.fields:
        return st.builds(make)

    @st.composite
    def build(draw: st.DrawFn) -> Message:
        made = make()
        for field in descriptor.fields:
            if not draw(st.integers(0, 3)):
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                for key, value in draw(st.dictionaries(texts, texts, max_size=2)).items():
                    getattr(made, field.name)[key] = value
            elif field.is_repeated:
                for value in draw(st.lists(of_type(field, depth), max_size=2)):
                    target = getattr(made, field.name)
                    target.add().CopyFrom(value) if field.message_type is not None else target.append(value)
            elif field.message_type is not None:
                getattr(made, field.name).CopyFrom(draw(of_type(field, depth)))
            else:
                setattr(made, field.name, draw(of_type(field, depth)))
        return made

    return build()


def send(client: Client, name: str, requests: list[Any], metadata: Any) -> grpc.StatusCode:
    """The status, at most some messages of the answer read. A unary answer that does not come in time is a failure."""
    method: MethodDescriptor = METHODS[name]
    serialize = lambda one: one if isinstance(one, bytes) else one.SerializeToString()  # noqa: E731
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call = getattr(client.channel, kind)(name, request_serializer=serialize)
    argument = iter(requests) if method.client_streaming else requests[0]
    try:
        if method.server_streaming:
            for number, _ in enumerate(call(argument, metadata=metadata, timeout=STREAM_SECONDS)):
                if number > 20:
                    break
        else:
            call(argument, metadata=metadata, timeout=UNARY_SECONDS)
    except grpc.RpcError as error:
        code: Any = error.code()
        assert method.server_streaming or code is not grpc.StatusCode.DEADLINE_EXCEEDED, f"{name} hangs"
        assert code is not grpc.StatusCode.UNAVAILABLE, f"{name}: the daemon is gone"
        return code  # type: ignore[no-any-return]
    return grpc.StatusCode.OK


def tree(root: Path) -> list[tuple[str, int, int]]:
    found = []
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            status = os.lstat(os.path.join(folder, name))
            found.append((os.path.join(folder, name), status.st_mtime_ns, status.st_mode))
    return sorted(found)


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def fuzz_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDaemon]:
    """Claimed by driver OWN at EPOCH, with a known and a running command and some files."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "tmp").mkdir()
    made = LocalDaemon(
        folder, "--listen", "127.0.0.1:0", "--kill-mechanism", "subreaper", "--message-bytes-max", str(2 << 20),
        "--open-commands-max", "32", environment={"TMPDIR": str(folder / "tmp")},
    )  # fmt: skip
    client = made.start()
    inner = made.workspace / "fuzz" / "folder" / "inner"
    inner.mkdir(parents=True)
    (made.workspace / "fuzz" / "file").write_text("content")
    (made.workspace / "fuzz" / "link").symlink_to("file")
    os.mkfifo(made.workspace / "fuzz" / "pipe")
    client.advance(EPOCH, OWN)
    driver = client.as_driver(EPOCH, OWN)
    driver.run("known", "echo known")
    driver.start("running", ["sleep", "600"], stdin=True)
    yield made
    made.stop()


@pytest.fixture
def alive(fuzz_daemon: LocalDaemon) -> Iterator[Client]:
    """A client; after the test the same daemon process still answers and runs commands."""
    process = fuzz_daemon.process
    assert process is not None
    client = fuzz_daemon.client()
    yield client
    assert process.poll() is None, fuzz_daemon.log.read_text()[-3000:]
    floor = client.call(client.space.GetInfo, durable.GetInfoRequest()).floor
    driver = client.as_driver(floor.epoch, floor.incarnation)
    assert driver.run(f"after-{os.urandom(4).hex()}", "echo on").stdout == b"on\n"
    lines = [json.loads(line) for line in fuzz_daemon.log.read_text().splitlines()]  # nothing of what was sent
    assert not [line for line in lines if line["event"] == "call.failed"]


stale_callers = st.sampled_from(
    [
        (("durable-epoch", "4"), ("durable-incarnation", OWN)),
        (("durable-epoch", "5"), ("durable-incarnation", OTHER)),
        (("durable-epoch", "5"),),
        (("durable-epoch", "0"), ("durable-incarnation", OWN)),
        (("durable-epoch", "-5"), ("durable-incarnation", OWN)),
        (("durable-epoch", "5 "), ("durable-incarnation", OWN[:-1])),
        (("durable-epoch", "99999999999999999999999999"), ("durable-incarnation", OWN)),
        (("durable-incarnation", OWN),),
        (),
    ]
)


def lower_epochs(message: Any) -> None:
    """So that AdvanceEpoch and StartProcess, which may raise the floor, do not ask for that."""
    if "epoch" in message.DESCRIPTOR.fields_by_name:
        message.epoch %= EPOCH


def test_every_method_but_getinfo_is_meant_for_one_instance_and_one_boot(alive: Client) -> None:
    """Rule 12."""
    for name in sorted(METHODS):
        request = message_factory.GetMessageClass(METHODS[name].input_type)()
        for what in ("instance", "boot"):
            code = send(alive, name, [request], ((f"durable-{what}", "f" * 32),))
            free = name == "/durable.space.v1.SpaceService/GetInfo"
            assert code is (grpc.StatusCode.OK if free else grpc.StatusCode.FAILED_PRECONDITION), name


def test_no_caller_below_the_floor_changes_anything(fuzz_daemon: LocalDaemon, alive: Client) -> None:
    """Rules 1 and 4: every method that changes something, with any message."""
    before = tree(fuzz_daemon.workspace)
    rows = alive.call(alive.space.GetInfo, durable.GetInfoRequest()).ledger_seq

    @fuzzed
    @given(data=st.data(), name=st.sampled_from(sorted(MUTATIONS)), caller=stale_callers)
    def attempt(data: st.DataObject, name: str, caller: Any) -> None:
        requests = data.draw(st.lists(messages(METHODS[name].input_type), min_size=1, max_size=3))
        for message in requests:
            lower_epochs(message)
        assert send(alive, name, requests, caller) is not grpc.StatusCode.OK, f"{name} was done for {caller}"

    attempt()
    info = alive.call(alive.space.GetInfo, durable.GetInfoRequest())
    assert (info.floor.epoch, info.floor.incarnation, info.ledger_seq) == (EPOCH, OWN, rows)
    assert tree(fuzz_daemon.workspace) == before
    assert os.listdir(fuzz_daemon.data.parent / "tmp") == []


def test_odd_requests_of_the_rightful_driver_are_answered(alive: Client) -> None:
    """Every method, any field: an answer in time, never an internal failure."""
    metadata = (("durable-epoch", str(EPOCH)), ("durable-incarnation", OWN))
    done = set()

    @fuzzed
    @given(data=st.data(), name=st.sampled_from(sorted(METHODS)))
    def attempt(data: st.DataObject, name: str) -> None:
        requests = data.draw(st.lists(messages(METHODS[name].input_type), min_size=1, max_size=3))
        code = send(alive, name, requests, metadata)
        assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), f"{name}: {code}"
        if code is grpc.StatusCode.OK:
            done.add(name)

    attempt()
    assert len(done) > 10, "hardly anything of it is taken: the requests are too odd to try what lies behind the checks"


def test_every_method_survives_bytes_that_are_no_message(alive: Client) -> None:
    noise = random.Random(11)
    deep = b""
    for _ in range(2000):  # a message in a message in a message
        deep = b"\x0a" + varint(len(deep)) + deep
    for name in sorted(METHODS):
        whole = message_factory.GetMessageClass(METHODS[name].input_type)().SerializeToString()
        for raw in (b"\xff" * 40, noise.randbytes(200), whole + b"\x0a\xff\xff\xff\x0f", deep):
            code = send(alive, name, [raw], ())
            assert code is not grpc.StatusCode.UNKNOWN, name
            if name in MUTATIONS:
                assert code is not grpc.StatusCode.OK, name


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def frames(noise: random.Random) -> bytes:
    """A proper beginning of HTTP/2, then frames of any kind, length and content."""
    out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    for _ in range(noise.randrange(1, 30)):
        body = noise.randbytes(noise.choice([0, 4, 5, 8, 100, 16_384]))
        length = noise.choice([len(body), len(body), noise.randrange(1 << 24)])
        kind, flags, stream = noise.randrange(12), noise.randrange(256), noise.choice([0, 1, 3, 2**31 - 1])
        out += length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
    return out


def test_raw_bytes_and_broken_frames_on_the_port(fuzz_daemon: LocalDaemon, alive: Client) -> None:
    noise = random.Random(12)
    port = int(fuzz_daemon.addresses[1].rpartition(":")[2])
    left_open = []
    for number in range(200):
        raw = socket.create_connection(("127.0.0.1", port), timeout=5)
        with suppress(OSError):  # told to go before it was all sent
            raw.sendall(frames(noise) if number % 2 else noise.randbytes(noise.randrange(1, 20_000)))
        if number % 4:
            raw.close()
        else:
            left_open.append(raw)
    assert alive.call(alive.space.GetInfo, durable.GetInfoRequest()).floor.epoch == EPOCH
    for raw in left_open:
        raw.close()


def test_memory_stays_bounded(fuzz_daemon: LocalDaemon, alive: Client) -> None:
    """Large messages, refused ones, unread streams, uploads that nobody finishes, noise: it does not grow with them."""
    assert fuzz_daemon.process is not None
    pid = fuzz_daemon.process.pid
    driver = alive.as_driver(EPOCH, OWN)
    (fuzz_daemon.workspace / "large").write_bytes(b"x" * (64 << 20))
    noise = random.Random(13)
    port = int(fuzz_daemon.addresses[1].rpartition(":")[2])
    chunk = b"y" * (200 << 10)

    def load(rounds: int) -> None:
        unread = [
            driver.call(driver.filesystem.ReadFile, fs.ReadFileRequest(path="large"))
            for _ in range(16)
        ]  # fmt: skip
        for stream in unread:
            next(iter(stream))
        for number in range(rounds):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
                raw.sendall(noise.randbytes(5000))
            big = cua.StartProcessRequest(config=cua.ProcessConfig(command="true", args=["z" * 900_000]), epoch=1)
            refusal(lambda big=big: driver.call(driver.processes.StartProcess, big))  # type: ignore[misc]
            refusal(lambda: driver.call(driver.filesystem.Stat, fs.StatRequest(path="n" * 900_000)))
            begun = fs.BeginUploadRequest(upload_id=f"u{number % 70}", header=fs.WriteFileHeader(path="never"))
            try:
                driver.call(driver.filesystem.BeginUpload, begun)
                added = fs.UploadChunkRequest(upload_id=begun.upload_id, data=chunk)
                driver.call(driver.filesystem.UploadChunk, added)
            except grpc.RpcError as error:
                code: Any = error.code()
                assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.NOT_FOUND)
        for stream in unread:
            stream.cancel()

    load(40)
    before = resident(pid)
    load(200)
    grown = lambda: resident(pid) - before  # noqa: E731
    until(lambda: grown() < GROWTH_BYTES_MAX, 5, f"{grown() >> 20} MiB more than before")

"""Who may talk to a daemon, for which Space, and what a daemon refuses to start with."""

from __future__ import annotations

import datetime
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from durable_protocol.cua.env.v1 import filesystem_pb2 as fs
from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_protocol.cua.env.v1 import system_pb2 as system
from durable_protocol.durable.space.v1 import space_pb2 as durable
from durable_space.refusal import Refused
from durable_space.rpc import guard as guard_module
from durable_space.rpc.guard import Guard
from durable_space.rpc.system import FEATURES
from durable_space.server import SERVICES
from durable_space.testing import Client, LocalDaemon, refusal, until

TOKEN = "a-token-of-sufficient-length"
NAME = "demo-g1.default"


def info(client: Client) -> durable.GetInfoResponse:
    response: durable.GetInfoResponse = client.call(client.space.GetInfo, durable.GetInfoRequest())
    return response


@pytest.fixture(scope="module")
def key_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_key_pair(tmp_path_factory.mktemp("tls"))


def make_key_pair(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for NAME."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, key_pair: tuple[Path, Path]) -> object:
    """A daemon with token and TLS on TCP."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(TOKEN + "\n")
    made = LocalDaemon(
        folder, "--listen", "127.0.0.1:0", "--token-file", str(folder / "token"), "--tls-cert", str(key_pair[0]),
        "--tls-key", str(key_pair[1]), "--kill-mechanism", "subreaper", "--http", "127.0.0.1:0",
    )  # fmt: skip
    made.start()
    yield made
    made.token = TOKEN  # type: ignore[attr-defined]
    (folder / "token").write_text(TOKEN)
    made.process.terminate()
    made.process.wait(20)
    made.process.stdout.close()
    made.process = None
    made.options = made.options[-4:-2]
    made.stop()


def test_token_is_needed_for_every_call(guarded: LocalDaemon) -> None:
    """And compared before the message is read: a request that is no message at all gets the same answer."""
    for token in ("", "wrong", TOKEN + "x", TOKEN[:-1]):
        client = guarded.client(token=token)
        for call in (
            lambda client=client: info(client),
            lambda client=client: client.call(client.system.Health, system.HealthRequest()),
            lambda client=client: client.start("x", "true"),
            lambda client=client: client.scan(),
            lambda client=client: client.apply(),
        ):
            told = refusal(call)  # type: ignore[arg-type]
            assert (told.code, told.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
        raw = client.channel.unary_unary("/durable.space.v1.SpaceService/GetInfo")
        with pytest.raises(grpc.RpcError) as caught:
            raw(b"\xff\xff\xff", metadata=client.metadata, timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert info(guarded.client(token=TOKEN)).instance_id


def test_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sent, by the library's function, over all bytes of both."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(guard_module.hmac, "compare_digest", compare)
    guard = Guard(lambda: TOKEN, "i", "b")
    headers = ["", "Bearer", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN]
    for header in headers:
        with pytest.raises(Refused):
            guard._authenticate(header)
    guard._authenticate(f"Bearer {TOKEN}")
    assert len(compared) == len(headers) + 1
    assert {other for _, other in compared} == {TOKEN.encode()}


def test_token_rotates_without_a_restart(guarded: LocalDaemon) -> None:
    path = Path(guarded.options[guarded.options.index("--token-file") + 1])
    path.write_text("another-token-of-sufficient-length")
    try:
        fresh = guarded.client(token="another-token-of-sufficient-length")
        old = guarded.client(token=TOKEN)

        def accepted(client: Client) -> bool:
            try:
                return bool(info(client))
            except grpc.RpcError:
                return False

        until(lambda: accepted(fresh))
        assert not accepted(old)
    finally:
        path.write_text(TOKEN)
        until(lambda: accepted(guarded.client(token=TOKEN)))


def test_tls_with_the_name_that_the_client_expects(guarded: LocalDaemon, key_pair: tuple[Path, Path]) -> None:
    address = guarded.addresses[1]

    def connect(name: str, roots: bytes | None) -> durable.GetInfoResponse:
        credentials = grpc.ssl_channel_credentials(roots)
        options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(address, credentials, options=options) as channel:
            client = Client(channel, (("authorization", f"Bearer {TOKEN}"),))
            response: durable.GetInfoResponse = client.space.GetInfo(
                durable.GetInfoRequest(), metadata=client.metadata, timeout=5
            )
            return response

    assert connect(NAME, key_pair[0].read_bytes()).instance_id == guarded.announced["instance"]
    for name, roots in (("other-g1.default", key_pair[0].read_bytes()), (NAME, None)):
        with pytest.raises(grpc.RpcError):
            connect(name, roots)
    plain = guarded.client(token=TOKEN, address=address)
    with pytest.raises(grpc.RpcError):
        plain.space.GetInfo(durable.GetInfoRequest(), metadata=plain.metadata, timeout=5)


def test_key_and_certificate_rotate_without_a_restart(make_daemon: Callable[..., LocalDaemon], tmp_path: Path) -> None:
    """A connection that is made before the second file is replaced gets the old pair; the next one the new."""
    old, new = (make_key_pair(tmp_path / name) for name in ("old", "new") if (tmp_path / name).mkdir() is None)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(old[0].read_bytes())
    key.write_bytes(old[1].read_bytes())
    daemon = make_daemon("--listen", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))
    daemon.start()

    def works(trusted: Path) -> bool:
        credentials = grpc.ssl_channel_credentials(trusted.read_bytes())
        options = [("grpc.ssl_target_name_override", NAME), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(daemon.addresses[1], credentials, options=options) as channel:
            client = Client(channel)
            try:
                client.space.GetInfo(durable.GetInfoRequest(), timeout=5)
            except grpc.RpcError:
                return False
            return True

    assert (works(old[0]), works(new[0])) == (True, False)
    key.write_bytes(new[1].read_bytes())
    assert (works(old[0]), works(new[0])) == (True, False)  # half replaced
    cert.write_bytes(new[0].read_bytes())
    assert (works(old[0]), works(new[0])) == (False, True)
    cert.unlink()
    assert works(new[0])


def test_request_for_another_instance_or_boot_does_nothing(shared: Client, shared_daemon: LocalDaemon) -> None:
    """Rule 12: every call but GetInfo."""
    own = shared_daemon.announced
    for named in ({"durable_instance": "f" * 32}, {"durable_boot": "f" * 32, "durable_instance": own["instance"]}):
        client = shared.as_driver(0, **named)
        for call in (
            lambda client=client: client.start("x", "touch changed"),
            lambda client=client: client.attach("x"),
            lambda client=client: client.scan(),
            lambda client=client: client.apply(),
            lambda client=client: client.lookup("x"),
            lambda client=client: client.call(client.space.AdvanceEpoch, durable.AdvanceEpochRequest()),
            lambda client=client: client.call(client.filesystem.MakeDir, fs.MakeDirRequest(path="changed")),
        ):
            told = refusal(call)  # type: ignore[arg-type]
            assert (told.code, told.reason, told.condition) == ("FAILED_PRECONDITION", "STALE_HANDLE", "SpaceChanged")
            assert told.metadata["instance_id"] == own["instance"]
            assert told.metadata["boot_id"] == own["boot"]
        assert info(client).instance_id == own["instance"]
    right = shared.as_driver(0, durable_instance=own["instance"], durable_boot=own["boot"])
    assert right.run("right", "echo yes").stdout == b"yes\n"
    assert not (shared_daemon.workspace / "changed").exists()


def test_identity_outlives_the_daemon_and_not_its_data(space: Client, daemon: LocalDaemon, tmp_path: Path) -> None:
    first = info(space)
    again = info(daemon.restart())
    assert (again.instance_id, again.boot_id) == (first.instance_id, first.boot_id)
    other = LocalDaemon(tmp_path / "other", "--kill-mechanism", "subreaper")
    try:
        assert info(other.start()).instance_id != first.instance_id
    finally:
        other.stop()


def test_capabilities_name_the_protocol_and_the_ledger(shared: Client) -> None:
    answer = shared.call(shared.system.GetCapabilities, system.GetCapabilitiesRequest())
    assert (answer.protocol_version, answer.protocol_revision) == (1, 13)
    served = {feature.name for feature in answer.features if feature.supported}
    assert "process.exec_ledger" in served
    assert served == {name for name, lacks in FEATURES.items() if not lacks}
    assert all(feature.limitation for feature in answer.features if not feature.supported)
    assert shared.call(shared.system.Metrics, system.MetricsRequest()).memory_total_bytes > 0


def test_second_daemon_on_one_data_folder_is_refused_with_the_remedy(space: Client, daemon: LocalDaemon) -> None:
    """Rule 36: whoever holds the folder goes on undisturbed."""
    words = daemon.command()
    words[words.index("--listen") + 1] = f"unix:{daemon.socket}2"
    second = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 2
    assert "another daemon" in second.stderr
    assert "stop that one" in second.stderr
    assert second.stdout == ""
    assert space.run("on", "echo on").stdout == b"on\n"


def test_data_of_a_later_generation_is_refused(daemon: LocalDaemon) -> None:
    """Rule 36."""
    daemon.options += ["--generation", "3"]
    assert info(daemon.start()).generation == 3
    daemon.kill()
    daemon.options[-1] = "2"
    daemon.spawn()
    assert daemon.process is not None
    assert daemon.process.wait(20) == 2
    assert "generation 3" in daemon.log.read_text()
    daemon.process.stdout.close()  # type: ignore[union-attr]
    daemon.process = None
    daemon.options[-1] = "4"
    assert info(daemon.start()).generation == 4


BAD_FLAGS = {
    "listens to the world": (["--listen", "0.0.0.0:0"], "--token-file"),
    "no address": ([], "--listen"),
    "no port": (["--listen", "localhost"], "HOST:PORT"),
    "relative socket": (["--listen", "unix:s"], "absolute"),
    "unknown mechanism": (["--listen", "127.0.0.1:0", "--kill-mechanism", "magic"], "subreaper"),
    "certificate without key": (["--listen", "127.0.0.1:0", "--tls-cert", "/x"], "--tls-key"),
    "unreadable token": (["--listen", "127.0.0.1:0", "--token-file", "/nope"], "--token-file /nope"),
    "negative generation": (["--listen", "127.0.0.1:0", "--generation", "-1"], "--generation"),
    "epoch beyond": (["--listen", "127.0.0.1:0", "--epoch-floor", str(2**53)], "--epoch-floor"),
    "no room": (["--listen", "127.0.0.1:0", "--open-commands-max", "0"], "must be positive"),
}


@pytest.mark.parametrize(("flags", "remedy"), BAD_FLAGS.values(), ids=BAD_FLAGS)
def test_bad_flags_end_with_one_line_and_status_2(tmp_path: Path, flags: list[str], remedy: str) -> None:
    from click.testing import CliRunner

    from durable_space.cli import space

    (tmp_path / "w").mkdir()
    result = CliRunner().invoke(space, ["--data", str(tmp_path / "d"), "--workspace", str(tmp_path / "w"), *flags])
    assert result.exit_code == 2, result.output
    assert remedy in result.output
    assert result.output.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_data_inside_the_workspace_is_refused(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from durable_space.cli import space

    words = ["--data", str(tmp_path / "d"), "--workspace", str(tmp_path), "--listen", "127.0.0.1:0"]
    result = CliRunner().invoke(space, words)
    assert (result.exit_code, "another folder" in result.output) == (2, True)


def test_taken_port_is_said_and_not_shared(make_daemon: Callable[..., LocalDaemon]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        daemon = make_daemon("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        daemon.spawn()
        assert daemon.process is not None
        assert daemon.process.wait(20) == 2
        daemon.process.stdout.close()  # type: ignore[union-attr]
        daemon.process = None
        assert "name a free one" in daemon.log.read_text()
        daemon.options = []


def test_insecure_outside_address_needs_the_flag(make_daemon: Callable[..., LocalDaemon]) -> None:
    daemon = make_daemon("--listen", "0.0.0.0:0", "--insecure", "--kill-mechanism", "subreaper")
    client = daemon.start()
    port = daemon.addresses[1].rpartition(":")[2]
    assert info(daemon.client(address=f"127.0.0.1:{port}")).instance_id == info(client).instance_id
    assert (daemon.data / "address").read_text().splitlines() == daemon.addresses


def test_message_beyond_the_limit_is_refused_and_the_daemon_lives(make_daemon: Callable[..., LocalDaemon]) -> None:
    client = make_daemon("--message-bytes-max", str(2 << 20), "--kill-mechanism", "subreaper").start()
    request = cua.StartProcessRequest(config=cua.ProcessConfig(command="true", args=["x" * (3 << 20)]))
    with pytest.raises(grpc.RpcError) as caught:
        client.call(client.processes.StartProcess, request).next()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert client.run("on", "echo on").stdout == b"on\n"


def test_bytes_that_are_no_protocol_do_not_end_it(make_daemon: Callable[..., LocalDaemon]) -> None:
    import random

    daemon = make_daemon("--listen", "127.0.0.1:0", "--kill-mechanism", "subreaper")
    client = daemon.start()
    port = int(daemon.addresses[1].rpartition(":")[2])
    noise = random.Random(7)
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
            raw.sendall(noise.randbytes(noise.randrange(1, 4000)))
    for method in ("SpaceService/AdvanceEpoch", "WorkspaceService/Apply", "LedgerService/Lookup"):
        call = client.channel.unary_unary(f"/durable.space.v1.{method}")
        with pytest.raises(grpc.RpcError):
            call(b"\xff" * 50, timeout=10)
    assert client.run("on", "echo on").stdout == b"on\n"


def test_health_and_metrics_pages(make_daemon: Callable[..., LocalDaemon]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = make_daemon("--http", f"127.0.0.1:{port}", "--kill-mechanism", "subreaper")
    client = daemon.start()
    client.run("x", "true")
    refusal(lambda: client.attach("unknown"))

    def get(path: str) -> tuple[str, str]:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = b""
            while piece := raw.recv(65536):
                answer += piece
        head, _, body = answer.decode().partition("\r\n\r\n")
        return head.split()[1], body

    assert get("/livez") == ("200", "ok\n")
    assert get("/readyz") == ("200", "ok\n")
    assert get("/nothing")[0] == "404"
    status, text = get("/metrics")
    assert status == "200"
    assert 'durable_space_commands{state="exited"} 1' in text
    assert 'durable_space_refusals_total{condition="NOT_FOUND"} 1' in text


def test_logs_hold_no_content(make_daemon: Callable[..., LocalDaemon]) -> None:
    daemon = make_daemon("--kill-mechanism", "subreaper")
    client = daemon.start()
    client.run("id-of-it", "echo very-secret-text; cat very-secret-file")
    refusal(lambda: client.call(client.filesystem.Stat, fs.StatRequest(path="very-secret-file")))
    daemon.terminate()
    assert "very-secret" not in daemon.log.read_text()


def test_reflection_tells_the_services_to_those_who_have_the_token(guarded: LocalDaemon) -> None:
    """What grpcurl asks for; every service that is served is told, with its methods."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    def ask(client: Client, **question: str) -> reflection_pb2.ServerReflectionResponse:
        stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(**question)])
        (answer,) = stub.ServerReflectionInfo(asked, metadata=client.metadata, timeout=10)
        return answer

    for token in ("", "wrong"):
        told = refusal(lambda token=token: ask(guarded.client(token=token), list_services=""))  # type: ignore[misc]
        assert told.code == "UNAUTHENTICATED"
    client = guarded.client(token=TOKEN)
    names = {service.name for service in ask(client, list_services="").list_services_response.service}
    assert names == {*SERVICES, "grpc.reflection.v1alpha.ServerReflection"}
    answer = ask(client, file_containing_symbol="durable.space.v1.FileService")
    files = [FileDescriptorProto.FromString(file) for file in answer.file_descriptor_response.file_descriptor_proto]
    methods = {method.name for file in files for service in file.service for method in service.method}
    assert "Open" in methods

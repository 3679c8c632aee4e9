"""The report stream against real gRPC servers on loopback: optional, reconnecting, obedient."""

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from durable_driver.environment import CoordinatorAddress
from durable_driver.stream import ReportStream


def stream_to(port: int, stopped: list[str], **how: object) -> ReportStream:
    fields = {"host": "127.0.0.1", "port": port, "token_file": None, "ca_file": None, "name": "127.0.0.1", **how}
    address = CoordinatorAddress(**fields)  # type: ignore[arg-type]
    return ReportStream(address, stopped.append, choose=random.Random(1), pause_seconds_max=0.05)


async def until(true: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.01)


async def test_all_kinds_arrive_in_order_and_the_end_ends_the_stream(coordinator: Any, serve: Any) -> None:
    port = await serve(coordinator)
    stream = stream_to(port, [])
    stream.start()
    stream.heartbeat(3, 1000)
    stream.recovery("reattached", "transactional", "StillRunning")
    stream.progress(1, 5)
    stream.progress(2, 6)
    await stream.finish('{"outcome":"settled"}', 10)
    assert coordinator.kinds() == ["heartbeat", "recovery", "progress", "final"]
    assert (coordinator.got[2].progress.entries, coordinator.got[2].progress.last_entry) == (2, 6)
    assert coordinator.got[3].final.json == '{"outcome":"settled"}'


async def test_a_stream_that_ends_or_is_refused_is_opened_again_with_the_token_of_that_moment(
    coordinator: Any, serve: Any, tmp_path: Path
) -> None:
    coordinator.standby = True
    port = await serve(coordinator)
    token = tmp_path / "token"
    token.write_text("first\n")
    stream = stream_to(port, [], token_file=token)
    stream.start()
    await until(lambda: len(coordinator.tokens) >= 2)
    token.write_text("second\n")
    coordinator.standby, coordinator.end_after = False, 1
    before = len(coordinator.tokens)

    def beat() -> bool:
        stream.heartbeat(3, 1)
        return len(coordinator.got) >= 3

    await until(beat)
    assert set(coordinator.kinds()) == {"heartbeat"}
    assert coordinator.tokens[0] == "Bearer first"
    assert coordinator.tokens[-1] == "Bearer second"
    assert len(coordinator.tokens) >= before + 3
    await stream.finish("{}", 5)


async def test_an_order_to_stop_is_passed_on(coordinator: Any, serve: Any) -> None:
    stopped = list[str]()
    coordinator.stop = "Suspended"
    port = await serve(coordinator)
    stream = stream_to(port, stopped)
    stream.start()
    await until(lambda: stopped == ["Suspended"])
    await stream.finish("{}", 5)


async def test_without_a_coordinator_the_end_is_not_held_up(unused_port: int) -> None:
    stream = stream_to(unused_port, [])
    stream.start()
    for beat in range(1000):
        stream.heartbeat(3, beat)
    started = time.monotonic()
    await stream.finish("{}", 0.3)
    assert time.monotonic() - started < 5


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def certificate(folder: Path, name: str) -> tuple[grpc.ServerCredentials, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = signed.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(pem)
    return grpc.ssl_server_credentials([(secret, pem)]), folder / "ca.pem"


async def test_tls_trusts_its_own_ca_and_the_name_it_was_given(coordinator: Any, serve: Any, tmp_path: Path) -> None:
    credentials, ca_file = certificate(tmp_path, "durable-operator.durable-system.svc")
    port = await serve(coordinator, credentials)
    stranger = stream_to(port, [], ca_file=ca_file, name="somebody-else")
    stranger.start()
    stranger.heartbeat(3, 1)
    await stranger.finish("{}", 1)
    assert coordinator.got == []
    stream = stream_to(port, [], ca_file=ca_file, name="durable-operator.durable-system.svc")
    stream.start()
    stream.heartbeat(3, 1)
    await stream.finish("{}", 10)
    assert coordinator.kinds() == ["heartbeat", "final"]

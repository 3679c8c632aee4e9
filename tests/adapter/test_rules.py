"""Rules that the shape of the code keeps, and the wire's own protection."""

from __future__ import annotations

import datetime
import inspect
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import durable_spaces
from durable_base.errors import HaltError, UsageError
from durable_base.floor import Floor, new_incarnation
from durable_spaces.client import Address, Deadlines, FencedSpace, SpaceClient

SOURCES = sorted(Path(durable_spaces.__file__).parent.glob("*.py"))


def test_before_its_epoch_is_advanced_a_space_can_only_be_asked_who_it_is() -> None:
    """Rule 8: what looks at files, ledger or commands is a FencedSpace, and `advance` alone makes one."""
    public = {name for name, _ in inspect.getmembers(SpaceClient, inspect.isfunction) if not name.startswith("_")}
    assert public == {"info", "advance", "close"}
    made = [source.name for source in SOURCES if re.search(r"\bFencedSpace\(", source.read_text())]
    assert made == ["client.py"]
    assert "return FencedSpace(" in inspect.getsource(SpaceClient.advance)
    assert inspect.isclass(FencedSpace)


def test_nobody_invents_an_epoch() -> None:
    """Rule 14: a driver never uses a number above the one it was given."""
    for source in SOURCES:
        assert not re.search(r"epoch\s*(\+|\+=)\s*\d", source.read_text()), source.name


# ---- TLS and token

TOKEN = "a-token-of-enough-characters"
NAME = "fix-bug-g1.default"


def certificate(folder: Path) -> tuple[Path, Path]:
    """Self-signed, for NAME."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Address]:
    """A daemon on a TCP port of loopback, with token and TLS."""
    cert, key = certificate(tmp_path)
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "workspace").mkdir()
    options = {
        "--data": tmp_path / "data",
        "--workspace": tmp_path / "workspace",
        "--listen": "127.0.0.1:0",
        "--token-file": tmp_path / "token",
        "--tls-cert": cert,
        "--tls-key": key,
    }
    arguments = [str(part) for option in options.items() for part in option]
    with (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([sys.executable, "-m", "durable_space", *arguments], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 20
        while not (tmp_path / "data" / "address").exists():
            assert daemon.poll() is None, (tmp_path / "daemon.log").read_text()
            assert time.monotonic() < until, "the daemon did not start"
            time.sleep(0.01)
        target = (tmp_path / "data" / "address").read_text().split()[0]
        yield Address(target, tmp_path / "token", cert, NAME)
    finally:
        daemon.terminate()
        daemon.wait(20)


async def ask(address: Address) -> Any:
    client = SpaceClient(address, Floor(1, new_incarnation()), deadlines=Deadlines(connect_seconds=1.0))
    try:
        return await client.info()
    finally:
        await client.close()


async def test_tls_and_token_are_used_and_a_renewed_token_counts_at_once(guarded: Address) -> None:
    assert (await ask(guarded)).identity.instance
    assert guarded.token_file is not None
    guarded.token_file.write_text("another-token-of-enough-characters")
    client = SpaceClient(guarded, Floor(1, new_incarnation()))
    guarded.token_file.write_text(TOKEN)
    assert (await client.info()).identity.instance
    await client.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda address: replace(address, token_file=None), "SpaceUnauthenticated"),
        (lambda address: replace(address, tls_name="another.default"), "SpaceUnreachable"),
        (lambda address: replace(address, ca_file=None), "SpaceUnreachable"),
    ],
)
async def test_without_the_right_token_name_or_ca_nothing_is_answered(
    guarded: Address, change: Callable[[Address], Address], reason: str
) -> None:
    with pytest.raises(HaltError) as halted:
        await ask(change(guarded))
    assert halted.value.reason == reason


async def test_a_token_file_that_cannot_be_read_names_itself(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none: can't be read"):
        await ask(Address("unix:/nowhere", tmp_path / "none"))

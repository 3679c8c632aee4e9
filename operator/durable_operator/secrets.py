"""Tokens and certificates. All come from one install Secret in the operator's namespace, and no other Secret is ever read.

A Space's token is HMAC(install key, space uid, generation): the operator can make it anew at any time, a Space that comes back
from a lost node has another generation's, and nothing needs to read Secrets of users' namespaces (rule 20). A generation's
Secret carries the Space's uid in its name, so one that exists already is ours without a look inside (rule 14).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from durable_operator.kube import SECRETS, ApiError, Json, Kube

CA_YEARS = 20
# A Space may live for years and its certificate is part of its generation: it lasts as long as the CA, and ends with it.


@dataclass(frozen=True)
class Leaf:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Install:
    """The secrets of one install of the operator. `id` tells installs apart without telling the key (rule 45)."""

    key: bytes
    ca_certificate: bytes
    ca_key: bytes

    @property
    def id(self) -> str:
        return hashlib.sha256(b"durable-sessions install" + self.key).hexdigest()[:16]

    def space_token(self, space_uid: str, generation: int) -> str:
        """64 hex digits."""
        return hmac.new(self.key, f"space\0{space_uid}\0{generation}".encode(), hashlib.sha256).hexdigest()

    def leaf(self, names: tuple[str, ...]) -> Leaf:
        """A server certificate for these names or addresses."""
        ca = x509.load_pem_x509_certificate(self.ca_certificate)
        ca_key = serialization.load_pem_private_key(self.ca_key, None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        built = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
            .issuer_name(ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(hours=1))
            .not_valid_after(ca.not_valid_after_utc)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(_authority_key(ca), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        return Leaf(built.public_bytes(serialization.Encoding.PEM), _private_pem(key))


def space_secret_name(space: str, space_uid: str, generation: int) -> str:
    return f"{space}-g{generation}-{space_uid.replace('-', '')[:8]}"


def space_tls_name(space: str, generation: int, namespace: str) -> str:
    """The name that a Space of this generation proves, and that its callers ask for."""
    return f"{space}-g{generation}.{namespace}"


def space_secret(install: Install, namespace: str, space: str, space_uid: str, generation: int) -> Json:
    """The Secret of one generation, without metadata but its name: what the Space and its drivers mount."""
    leaf = install.leaf((space_tls_name(space, generation, namespace),))
    data = {
        "token": install.space_token(space_uid, generation).encode(),
        "tls.crt": leaf.certificate,
        "tls.key": leaf.key,
        "ca.crt": install.ca_certificate,
    }
    return {
        "metadata": {"name": space_secret_name(space, space_uid, generation)},
        "type": "Opaque",
        "immutable": True,
        "data": _encoded(data),
    }


async def load_install(kube: Kube, namespace: str, name: str) -> Install:
    """Read the install's Secret, or make it. Two replicas that start at once end up with the same one."""
    found = await kube.get(SECRETS, namespace, name)
    if found is None:
        made = new_install()
        body = {
            "metadata": {"name": name},
            "type": "Opaque",
            "immutable": True,
            "data": _encoded({"key": made.key, "ca.crt": made.ca_certificate, "ca.key": made.ca_key}),
        }
        try:
            found = await kube.create(SECRETS, namespace, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await kube.get(SECRETS, namespace, name)
    data = (found or {}).get("data") or {}
    missing = [field for field in ("key", "ca.crt", "ca.key") if not data.get(field)]
    if missing:
        raise RuntimeError(
            f"Secret {namespace}/{name} lacks {', '.join(missing)}: delete it and a new one is made; Spaces that run are then "
            "placed again"
        )
    decoded = {field: base64.b64decode(data[field]) for field in ("key", "ca.crt", "ca.key")}
    return Install(decoded["key"], decoded["ca.crt"], decoded["ca.key"])


def new_install() -> Install:
    """A fresh key and a fresh CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "durable-sessions")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365 * CA_YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_ca_usage(), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Install(secrets.token_bytes(32), certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key))


def _authority_key(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    subject = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(subject)


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _encoded(data: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}

"""Certificates of one run: an authority made for it, and what it signs.

OpenSSL is called rather than a library, so that the test bed needs nothing but the standard library. Keys are elliptic
curve keys, which take a hundredth of the time of RSA keys; service account tokens alone need an RSA key.
"""

import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path

from durable_testbed.process import call

VALID_DAYS = "30"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as files."""

    crt: Path
    key: Path


class Authority:
    """The certificate authority of one run, in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.crt = folder / "ca.crt"
        self.service_account_key = folder / "sa.key"
        self._key = folder / "ca.key"

    def create(self) -> None:
        """Make the authority and the key that signs service account tokens."""
        self.folder.mkdir(mode=0o700)
        call(
            *("openssl", "req", "-x509", *CURVE, "-days", VALID_DAYS, "-subj", "/CN=durable-testbed-ca"),
            *("-keyout", self._key, "-out", self.crt),
        )
        call("openssl", "genrsa", "-out", self.service_account_key, "2048")

    def issue(self, name: str, subject: str, alternative_names: str = "") -> Certificate:
        """Sign a certificate, good for servers and clients; `alternative_names` as in `DNS:a,IP:10.0.0.1`."""
        made = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        names = f"subjectAltName={alternative_names}\n" if alternative_names else ""
        extensions.write_text(f"extendedKeyUsage=serverAuth,clientAuth\n{names}")
        call("openssl", "req", "-new", *CURVE, "-subj", subject, "-keyout", made.key, "-out", request)
        call(
            *("openssl", "x509", "-req", "-in", request, "-CA", self.crt, "-CAkey", self._key, "-days", VALID_DAYS),
            *("-set_serial", str(time.time_ns()), "-extfile", extensions, "-out", made.crt),
        )
        return made

    def kubeconfig(self, target: Path, server: str, client: Certificate) -> Path:
        """Write a kubeconfig for `client`, with all it needs inside, so that it can be copied."""
        cluster = {"server": server, "certificate-authority-data": _base64(self.crt)}
        user = {"client-certificate-data": _base64(client.crt), "client-key-data": _base64(client.key)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": "testbed", "user": user}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
        }
        target.touch(mode=0o600)
        target.write_text(json.dumps(content, indent=1))
        return target


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()

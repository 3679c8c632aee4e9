"""The daemon's key and certificate, which change without a restart."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

import grpc

from durable_base.errors import UsageError
from durable_space.config import Config

log = logging.getLogger("durable.space")


class KeyPair:
    """Key and certificate, read anew for a connection when a file has changed: they rotate without a restart."""

    def __init__(self, cert: Path, key: Path) -> None:
        """UsageError: a file can't be read."""
        self._cert, self._key = cert, key
        self._stamps = self._look()
        self._configuration = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(self._configuration, self._fetch)  # type: ignore[arg-type]  # None: no change

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Of gRPC, at each handshake, from threads of its own. None: as before."""
        try:
            stamps = self._look()
            if stamps == self._stamps:
                return None
            fresh = self._read()
            if not _fits(self._cert, self._key):
                return None  # one of the two is still the old one: the next handshake looks again
        except (OSError, UsageError) as error:
            # The old pair stays: files that are just being replaced must not lock everybody out.
            log.warning("tls.unreadable", extra={"fields": {"error": type(error).__name__}})
            return None
        self._stamps = stamps
        log.info("tls.rotated", extra={"fields": {}})
        return fresh

    def _look(self) -> list[tuple[int, int, int]]:
        """Symlinks followed: a mounted Secret changes by one."""
        try:
            found = [os.stat(path) for path in (self._key, self._cert)]
        except OSError as error:
            raise UsageError(f"{error.filename}: {error.strerror}: name a readable PEM file") from None
        return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in found]

    def _read(self) -> grpc.ServerCertificateConfiguration:
        pair = []
        for flag, path in (("--tls-key", self._key), ("--tls-cert", self._cert)):
            try:
                pair.append(path.read_bytes())
            except OSError as error:
                raise UsageError(f"{flag} {path}: {error.strerror}: name a readable PEM file") from None
        return grpc.ssl_server_certificate_configuration([(pair[0], pair[1])])


def _fits(cert: Path, key: Path) -> bool:
    """Is this the certificate's key?"""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError):
        return False
    return True


def read_credentials(config: Config) -> grpc.ServerCredentials | None:
    """UsageError: key or certificate can't be used."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    pair = KeyPair(config.tls_cert, config.tls_key)
    if not _fits(config.tls_cert, config.tls_key):
        raise UsageError(
            f"--tls-cert {config.tls_cert}, --tls-key {config.tls_key}: not a certificate in PEM and its key: "
            "name a pair that belongs together"
        )
    return pair.credentials()

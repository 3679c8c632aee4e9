"""What a daemon was told, checked once. Flags: `cli`; every limit and its default is here."""

from __future__ import annotations

import ipaddress
import math
import os
from dataclasses import dataclass
from pathlib import Path

from durable_base.errors import UsageError
from durable_base.floor import EPOCH_MAX

MECHANISMS = ("auto", "cgroup2", "pidns", "subreaper")
TOKEN_CHARACTERS_MIN = 16
MESSAGE_BYTES_MIN = 2 << 20  # the largest answer that is not cut to fit: 1 MiB of a file that is held open


@dataclass(frozen=True, slots=True)
class Limits:
    """Each has a flag, `FLAGS` has its name."""

    open_commands: int = 256  # running or reserved at once; each costs a shim (some 2 MiB) and its command
    keep_output_bytes: int = 64 << 20  # per command, the newest
    rows: int = 100_000  # ledger rows, ended ones included; only Forget makes room, since a dropped row could run again
    free_bytes: int = 32 << 20  # on the data directory's disk, below which nothing new is started
    message_bytes: int = 16 << 20  # one gRPC message
    streams: int = 512  # concurrent calls per connection
    uploads: int = 64  # in parts, open at once
    upload_seconds: float = 86_400.0  # the longest that one may ask to be kept after its last chunk
    proof_seconds: float = 20.0  # from the first kill of an epoch's end to the answer ProofFailed
    term_seconds: float = 5.0  # at a command's timeout: from SIGTERM to SIGKILL
    stop_seconds: float = 2.0  # with --stop-commands: from SIGTERM to the commands until they are ended


FLAGS = {
    "open_commands": "--open-commands-max",
    "keep_output_bytes": "--keep-output-bytes",
    "rows": "--rows-max",
    "free_bytes": "--free-bytes-min",
    "message_bytes": "--message-bytes-max",
    "streams": "--streams-max",
    "uploads": "--uploads-max",
    "upload_seconds": "--upload-seconds-max",
    "proof_seconds": "--proof-seconds-max",
    "term_seconds": "--term-seconds",
    "stop_seconds": "--stop-seconds",
}
_MAY_BE_ZERO = ("free_bytes", "term_seconds", "stop_seconds")


@dataclass(frozen=True, slots=True)
class Address:
    host: str  # empty for a Unix socket
    port: int
    path: str  # of the socket, empty for TCP

    @property
    def text(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def reachable_from_outside(self) -> bool:
        if self.path:
            return False
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    data: Path
    workspace: Path
    listen: tuple[Address, ...]
    name: str = ""
    generation: int = 0
    epoch_floor: int = 0
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    http: Address | None = None
    kill_mechanism: str = "auto"
    stop_commands: bool = False
    limits: Limits = Limits()


def parse_address(text: str, flag: str = "--listen") -> Address:
    """`unix:/path`, `127.0.0.1:0`, `[::1]:7411`, `localhost:7411`."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/"):
            raise UsageError(f"{flag} {text}: the socket's path must be absolute, as in unix:/run/space.sock")
        if len(path.encode()) > 100:
            raise UsageError(f"{flag} {text}: a socket's path has at most 100 bytes: name a shorter one")
        return Address("", 0, path)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise UsageError(f"{flag} {text}: give HOST:PORT, as in 127.0.0.1:7411, or unix:/path")
    return Address(host.strip("[]"), int(port), "")


def check(config: Config) -> None:
    """Raise UsageError for what can't work, before anything is made or bound."""
    if not config.listen:
        raise UsageError("--listen: give at least one address, as in --listen unix:/run/space.sock")
    if not 0 <= config.epoch_floor <= EPOCH_MAX:
        raise UsageError(f"--epoch-floor {config.epoch_floor}: must be from 0 to {EPOCH_MAX}")
    if config.generation < 0:
        raise UsageError(f"--generation {config.generation}: must not be negative")
    if (config.tls_cert is None) != (config.tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together: give both or neither")
    if config.kill_mechanism not in MECHANISMS:
        raise UsageError(f"--kill-mechanism {config.kill_mechanism}: must be one of {', '.join(MECHANISMS)}")
    check_limits(config.limits)
    exposed = [address.text for address in config.listen if address.reachable_from_outside]
    if exposed and not config.insecure:
        lacks = [
            flag
            for flag, given in (("--token-file", config.token_file), ("--tls-cert and --tls-key", config.tls_cert))
            if given is None
        ]
        if lacks:
            raise UsageError(
                f"--listen {exposed[0]}: reachable from outside, so {' and '.join(lacks)} must be given "
                "(or --insecure, where another layer keeps strangers out)"
            )
    if not config.workspace.is_dir() and not _was_removed(config):
        raise UsageError(f"--workspace {config.workspace}: is no folder: make it first")
    inside = config.data.resolve().is_relative_to(config.workspace.resolve())
    if inside:
        raise UsageError(f"--data {config.data}: lies in the workspace, whose files are restored: name another folder")


def _was_removed(config: Config) -> bool:
    """A daemon served it, and a command may have removed it since: it is made again, where its parent is there."""
    root = config.workspace.resolve()
    return (config.data / "ledger.db").exists() and root.parent.is_dir() and not os.path.lexists(root)


def check_limits(limits: Limits) -> None:
    """Raise UsageError."""
    for name, flag in FLAGS.items():
        value = getattr(limits, name)
        if not math.isfinite(value) or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
            raise UsageError(f"{flag} {value}: must be positive{', or 0' if name in _MAY_BE_ZERO else ''}")
    if limits.message_bytes < MESSAGE_BYTES_MIN:
        raise UsageError(
            f"{FLAGS['message_bytes']} {limits.message_bytes}: must be at least {MESSAGE_BYTES_MIN} (2 MiB)"
        )


def read_token(path: Path) -> str:
    """The bearer token, without surrounding white space."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path}: {error}: name a readable file that holds the token") from None
    if len(token) < TOKEN_CHARACTERS_MIN or any(character.isspace() for character in token):
        raise UsageError(
            f"--token-file {path}: a token has at least {TOKEN_CHARACTERS_MIN} characters and no space in it"
        )
    return token

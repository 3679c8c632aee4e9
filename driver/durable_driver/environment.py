"""Read the environment into one frozen value, or say in one line what is wrong. Pure: no file is looked at."""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, get_args

from durable_base.errors import UsageError
from durable_base.floor import EPOCH_MAX
from durable_driver.variables import SECRETS

Mode = Literal["auto", "transactional", "checkpoint"]
SpaceKind = Literal["container", "gvisor", "microvm"]
_SHOWN_MAX = 60  # characters of a bad value


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceAddress:
    name: str
    address: str  # host:port or unix:/path
    token: str | None  # never shown; None where `token_file` is set, or the daemon wants none
    token_file: Path | None
    lease_token: int
    ca_file: Path | None
    generation: int
    kind: SpaceKind
    namespace: str

    @property
    def server_name(self) -> str | None:
        """The name in the daemon's certificate; None without TLS."""
        return None if self.ca_file is None else f"{self.name}-g{self.generation}.{self.namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAddress:
    host: str
    port: int
    token_file: Path | None
    ca_file: Path | None  # None: plain text, this machine only
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveEnvironment:
    """One drive, as its coordinator describes it. Durations in seconds."""

    session: str
    namespace: str
    uid: str
    epoch: int
    retry_token: str | None  # that of a new series of attempts
    attempt: int
    resume: bool
    state_dir: Path
    log_path: Path
    heartbeat_seconds: float
    stall_seconds: float
    grace_seconds: float
    space: SpaceAddress
    input_path: Path | None
    agent_path: Path | None
    script_path: Path | None
    mode: Mode
    transactional: Mapping[str, Any]
    coordinator: CoordinatorAddress | None
    http: tuple[str, int]
    report_path: Path | None


def parse_environment(environ: Mapping[str, str]) -> DriveEnvironment:
    """UsageError: one line with variable, value and remedy. An empty value counts as absent."""
    read = _Reader(environ)
    session = read.required("CUA_SESSION", "the name of the session")
    namespace = read.text("DURABLE_SESSION_NAMESPACE") or "default"
    stall = read.seconds("DURABLE_STALL_SECS", 120.0)
    state_dir = Path(read.required("CUA_SESSION_STATE_DIR", "the folder of the session's log"))
    if read.text("DURABLE_CHECKPOINT_STORE"):
        read.refuse("DURABLE_CHECKPOINT_STORE", "checkpoint stores are not available yet; unset it")
    return DriveEnvironment(
        session=session,
        namespace=namespace,
        uid=read.text("DURABLE_SESSION_UID") or session,
        epoch=read.epoch(),
        retry_token=read.text("DURABLE_RETRY_TOKEN"),
        attempt=read.whole("CUA_SESSION_ATTEMPT", 1, least=1),
        resume=read.choice("CUA_SESSION_RESUME", ("0", "1"), "0") == "1",
        state_dir=state_dir,
        log_path=_log_path(read, state_dir),
        heartbeat_seconds=_heartbeat(read, stall),
        stall_seconds=stall,
        grace_seconds=read.seconds("DURABLE_GRACE_SECS", 20.0),
        space=_space(read, namespace),
        input_path=read.path("DURABLE_INPUT"),
        agent_path=read.path("DURABLE_AGENT"),
        script_path=read.path("DURABLE_SCRIPT"),
        mode=cast(Mode, read.choice("DURABLE_MODE", get_args(Mode), "auto")),
        transactional=_transactional(read),
        coordinator=_coordinator(read),
        http=read.address("DURABLE_HTTP", "127.0.0.1:0", least_port=0),
        report_path=read.path("DURABLE_REPORT"),
    )


class _Reader:
    """Typed look-ups; each names its variable when it refuses."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def refuse(self, name: str, remedy: str) -> NoReturn:
        value = self._environ.get(name)
        shown = "is not set" if not value else "is bad" if name in SECRETS else f"is {value[:_SHOWN_MAX]!r}"
        raise UsageError(f"{name} {shown}: {remedy}")

    def text(self, name: str) -> str | None:
        value = self._environ.get(name) or None
        if value is not None and "\0" in value:
            self.refuse(name, "it must not hold a NUL")
        return value

    def required(self, name: str, what: str) -> str:
        value = self.text(name)
        if value is None:
            self.refuse(name, f"set it to {what} (a coordinator does; see `durable driver --help`)")
        return value

    def path(self, name: str) -> Path | None:
        value = self.text(name)
        return None if value is None else Path(value)

    def choice(self, name: str, known: tuple[str, ...], default: str) -> str:
        value = self.text(name) or default
        if value not in known:
            self.refuse(name, f"use one of {', '.join(known)}")
        return value

    def whole(self, name: str, default: int, *, least: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and least <= int(value) <= EPOCH_MAX):
            self.refuse(name, f"use a whole number from {least}")
        return int(value)

    def epoch(self) -> int:
        name = "CUA_SESSION_EPOCH"
        self.required(name, "the epoch that the coordinator issued for this drive")
        return self.whole(name, 0, least=1)

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number <= 86400 * 365:
            self.refuse(name, "use a number of seconds above 0")
        return number

    def address(self, name: str, default: str, *, least_port: int) -> tuple[str, int]:
        host, colon, port = (self.text(name) or default).rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and least_port <= int(port) <= 65535):
            self.refuse(name, f"use host:port with a port from {least_port} to 65535")
        return host.removeprefix("[").removesuffix("]"), int(port)


def _heartbeat(read: _Reader, stall: float) -> float:
    name = "CUA_SESSION_HEARTBEAT_SECS"
    period = read.seconds(name, stall / 4)
    if period >= stall:
        read.refuse(name, f"use less than the stall time, {stall:g} s, or every driver counts as frozen")
    return period


def _log_path(read: _Reader, state_dir: Path) -> Path:
    value = read.text("DURABLE_LOG") or "sqlite:"
    scheme, _, rest = value.partition(":")
    if scheme == "jsonl":
        read.refuse("DURABLE_LOG", "logs in JSON lines are not available yet; use sqlite:")
    if scheme == "s3":
        read.refuse("DURABLE_LOG", "logs in an object store are not available yet; use sqlite:")
    if scheme != "sqlite" or (rest and not rest.startswith("/")):
        read.refuse("DURABLE_LOG", "use sqlite: (in the state folder) or sqlite:/path/of/log.db")
    return Path(rest) if rest else state_dir / "log.db"


def _space(read: _Reader, namespace: str) -> SpaceAddress:
    token_file = read.path("DURABLE_SPACE_TOKEN_FILE")
    address = read.required("CUA_SESSION_SPACE_ADDR", "the address of the Space's daemon, host:port or unix:/path")
    if not address.startswith("unix:/"):
        read.address("CUA_SESSION_SPACE_ADDR", "", least_port=1)
    return SpaceAddress(
        name=read.required("CUA_SESSION_SPACE", "the name of the Space"),
        address=address,
        # A file is preferred: an environment can be read from /proc for as long as the process lives.
        token=None if token_file else read.text("CUA_SESSION_SPACE_TOKEN"),
        token_file=token_file,
        lease_token=read.whole("CUA_SESSION_SPACE_LEASE", 0, least=0),
        ca_file=read.path("DURABLE_SPACE_CA_FILE"),
        generation=read.whole("DURABLE_SPACE_GENERATION", 1, least=1),
        kind=cast(SpaceKind, read.choice("DURABLE_SPACE_KIND", get_args(SpaceKind), "container")),
        namespace=namespace,
    )


def _transactional(read: _Reader) -> Mapping[str, Any]:
    name = "DURABLE_TRANSACTIONAL"
    try:
        limits = json.loads(read.text(name) or "{}")
    except ValueError:
        limits = None
    if not isinstance(limits, dict):
        read.refuse(name, 'use a JSON object like {"maxFiles": 1000, "maxBytes": 16777216, "exclude": [".cache"]}')
    for key, value in limits.items():
        if key in ("maxFiles", "maxBytes"):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                read.refuse(name, f"{key} is a whole number from 1")
        elif key == "exclude":
            if not isinstance(value, list) or not all(isinstance(path, str) and _relative(path) for path in value):
                read.refuse(name, "exclude is a list of paths below the workspace, without `..`")
        else:
            read.refuse(name, f"unknown key {key!r}; it knows maxFiles, maxBytes, exclude")
    return limits


def _relative(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in path.split("/")


def _coordinator(read: _Reader) -> CoordinatorAddress | None:
    if read.text("DURABLE_COORDINATOR") is None:
        return None
    host, port = read.address("DURABLE_COORDINATOR", "", least_port=1)
    ca_file = read.path("DURABLE_COORDINATOR_CA_FILE")
    if ca_file is None and not _own_machine(host):
        read.refuse(
            "DURABLE_COORDINATOR_CA_FILE",
            f"set it to the CA of {host}: the token must not cross a network in plain text",
        )
    return CoordinatorAddress(
        host=host,
        port=port,
        token_file=read.path("DURABLE_COORDINATOR_TOKEN_FILE"),
        ca_file=ca_file,
        name=read.text("DURABLE_COORDINATOR_NAME") or host,
    )


def _own_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

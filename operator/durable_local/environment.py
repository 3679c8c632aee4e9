"""What the children may see of this process's environment: a driver nearly all of it, a Space next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# What commands need to work at all. Everything else may hold a secret, and an agent's commands can read it (rule 49).
_SPACE_KEEPS = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR")
_CONTRACT = ("CUA_", "DURABLE_")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveTold:
    """What one driver process is told. Paths are absolute."""

    namespace: str
    session: str
    session_id: str
    epoch: int
    attempt: int  # counted attempts, from 1
    resume: bool  # an earlier drive existed
    state_dir: Path
    stall_seconds: int
    grace_seconds: int  # to reach a durable point when it is asked to stop
    mode: str
    transactional: str  # JSON, or "" for the defaults
    input: Path
    agent: Path | None
    script: Path | None
    report: Path
    space: str
    space_address: str
    space_token: Path
    space_generation: int
    space_kind: str
    lease_token: int
    retry_token: str = ""


def driver_environment(base: Mapping[str, str], drive: DriveTold, extra: Mapping[str, str]) -> dict[str, str]:
    """The contract's variables win over `extra` (the spec's), and both over what this process has."""
    env = {name: value for name, value in base.items() if not name.startswith(_CONTRACT)}
    env.update(extra)
    env.update(
        CUA_SESSION=drive.session,
        CUA_SESSION_EPOCH=str(drive.epoch),
        CUA_SESSION_ATTEMPT=str(drive.attempt),
        CUA_SESSION_RESUME="1" if drive.resume else "0",
        CUA_SESSION_STATE_DIR=str(drive.state_dir),
        CUA_SESSION_SPACE=drive.space,
        CUA_SESSION_SPACE_ADDR=drive.space_address,
        CUA_SESSION_SPACE_LEASE=str(drive.lease_token),
        DURABLE_SESSION_UID=drive.session_id,
        DURABLE_SESSION_NAMESPACE=drive.namespace,
        DURABLE_SPACE_TOKEN_FILE=str(drive.space_token),
        DURABLE_SPACE_GENERATION=str(drive.space_generation),
        DURABLE_SPACE_KIND=drive.space_kind,
        DURABLE_INPUT=str(drive.input),
        DURABLE_MODE=drive.mode,
        DURABLE_STALL_SECS=str(drive.stall_seconds),
        DURABLE_GRACE_SECS=str(drive.grace_seconds),
        DURABLE_REPORT=str(drive.report),
        DURABLE_HTTP="127.0.0.1:0",
    )
    optional = {
        "DURABLE_AGENT": drive.agent,
        "DURABLE_SCRIPT": drive.script,
        "DURABLE_RETRY_TOKEN": drive.retry_token or None,
        "DURABLE_TRANSACTIONAL": drive.transactional or None,
    }
    env.update({name: str(value) for name, value in optional.items() if value is not None})
    return env


def space_environment(base: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in base.items() if name in _SPACE_KEEPS or name.startswith("LC_")}

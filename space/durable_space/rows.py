"""Ledger rows as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from durable_base.command import command_hash
from durable_base.floor import Floor


@dataclass(frozen=True, slots=True)
class CommandConfig:
    """`cua.env.v1.ProcessConfig` as it stood in the request, and whether stdin stays open."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    timeout_ns: int | None = None
    stdin: bool = False
    keep_bytes: int = 0  # 0: the daemon's limit

    def values(self) -> dict[str, Any]:
        """For JSON; `CommandConfig(**{..., "args": tuple(args)})` makes it again."""
        return {
            "command": self.command,
            "args": self.args,
            "env": self.env,
            "cwd": self.cwd,
            "user": self.user,
            "timeout_ns": self.timeout_ns,
            "stdin": self.stdin,
            "keep_bytes": self.keep_bytes,
        }

    @property
    def hash(self) -> str:
        return command_hash(self.command, self.args, self.env, self.cwd, self.user, self.timeout_ns)


@dataclass(frozen=True, slots=True)
class Row:
    """One command. `seq` grows by one with each row, for the life of the data directory; it names the command's folder."""

    seq: int
    request_id: str
    tag: str
    config: CommandConfig
    owner: Floor  # of its start, or of the last adoption
    boot_id: str
    created_ns: int
    killed: bool = False
    killed_by: int = 0  # the epoch whose advance killed it; 0 where KillAll did at epoch 0
    never_started: bool = False
    stopping: bool = False
    proven: bool = False  # its shim was lost, and an audit found nothing of the command alive (rule 27)

    @property
    def key(self) -> str:
        return key_of(self.request_id)


def key_of(request_id: str) -> str:
    """Without `@<epoch>`, if it ends so (rule 6)."""
    key, at, epoch = request_id.rpartition("@")
    return key if at and epoch.isdigit() else request_id

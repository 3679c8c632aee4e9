"""How fast output flows: a command that writes as fast as it can, and a client that only counts."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from durable_protocol.cua.env.v1 import process_pb2 as cua
from durable_space.testing import Client


@dataclass(frozen=True)
class Flow:
    live_mb_s: float  # while the command runs, from its start to its end event
    replay_mb_s: float  # attached afterwards, from offset 0
    frame_bytes: float  # mean, replayed


def flow(client: Client, mib: int, keep: bool = True) -> Flow:
    """`keep`: the daemon replays everything (the real one keeps less)."""
    name = f"bench/{secrets.token_hex(8)}@0"
    size = mib << 20
    begin = time.perf_counter()
    live = _count(client.start(name, ["head", "-c", str(size), "/dev/zero"], keep_bytes=size * 2))[0]
    live_seconds = time.perf_counter() - begin
    if live != size:
        raise AssertionError(f"{live} of {size} bytes arrived")
    if not keep:
        return Flow(size / live_seconds / 1e6, 0.0, 0.0)
    begin = time.perf_counter()
    replayed, frames = _count(client.attach(name))
    return Flow(size / live_seconds / 1e6, size / (time.perf_counter() - begin) / 1e6, replayed / max(1, frames))


def _count(events: object) -> tuple[int, int]:
    total = frames = 0
    event: cua.ProcessEvent
    for event in events:  # type: ignore[attr-defined]
        if event.HasField("data"):
            total += len(event.data.stdout)
            frames += 1
    return total, frames

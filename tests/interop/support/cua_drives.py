"""Drives on the real cua-spacesd, for the tests of the Space helper."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cua_peers import RealDaemon

from durable_base.floor import Floor, new_incarnation
from durable_space.testing import until
from durable_spaces import image
from durable_spaces._commands import Sinks
from durable_spaces.client import Address
from durable_spaces.cua import CuaSpaceClient, HelperSpace
from durable_spaces.image import FileNode

SECONDS = 20.0
OLD_NS = 1_000_000_000_123_456_789
QUIET = Sinks(output=lambda data, stream: None)


@dataclass
class Drivers:
    daemon: RealDaemon
    token: Path
    clients: list[CuaSpaceClient]

    async def drive(self, epoch: int, *, target: str = "", crash: str = "", **options: Any) -> HelperSpace:
        address = Address(target or self.daemon.address, self.token)
        env = {"DURABLE_CRASH": crash} if crash else {}
        client = CuaSpaceClient(
            address, Floor(epoch, new_incarnation()), workspace=str(self.daemon.workspace), helper_env=env, **options
        )
        self.clients.append(client)
        return await client.advance(await client.info())


def helpers(daemon: RealDaemon) -> list[int]:
    """Process ids of this Space's helpers, as /proc tells them."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if name.isdigit() else []
            if os.fsencode(daemon.workspace) in words and any(word.endswith(b".pyz") for word in words):
                found.append(int(name))
    return found


def plan_for(files: dict[bytes, bytes], remove: tuple[bytes, ...] = ()) -> tuple[image.ApplyPlan, dict[str, bytes]]:
    blobs = {hashlib.sha256(data).hexdigest(): data for data in files.values()}
    put = {path: FileNode(0o644, OLD_NS, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()}
    return image.ApplyPlan(put=put, remove=remove, send=tuple(blobs), have=()), blobs


async def wait_for(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, condition, SECONDS)

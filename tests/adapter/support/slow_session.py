"""A session with one long command, which a test lets end when it likes; and another session's driver that takes its Space."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_base.floor import Floor, new_incarnation
from durable_spaces.client import Address, SpaceClient
from durable_spaces.testing import check_promises, read_tree


@dataclass
class Slow:
    """One write, then one command that counts its starts and waits at a gate; both of these lie where nothing is undone."""

    stage: Any
    folder: Path

    @property
    def starts(self) -> int:
        path = self.folder / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def check(self) -> None:
        """As without a crash."""
        workspace = self.stage.workspace
        assert (workspace / "before.txt").read_text() == "kept\n"
        assert (workspace / "half" / "log").read_text() == "end\n"
        tree = read_tree(workspace)
        assert sorted(tree) == [b"before.txt", b"half", b"half/log"]
        check_promises(self.stage.log, workspace, tree)


def advance(stage: Any, epoch: int, then: Callable[[Any], Any] | None = None) -> None:
    """A newer driver, which adopts nothing: takes the Space over with its own epoch, and works in it."""

    async def run() -> None:
        client = SpaceClient(Address(stage.daemon.target), Floor(epoch, new_incarnation()))
        try:
            space = await client.advance(await client.info())
            if then is not None:
                await then(space)
        finally:
            await client.close()

    asyncio.run(run())


def until_exists(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)

"""One running daemon: the core's parts, put together, and the threads that their blocking calls run in."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from durable_base.errors import UsageError
from durable_base.floor import ANONYMOUS, Admission, judge
from durable_space import claims, identity
from durable_space.commands import Commands
from durable_space.config import Config
from durable_space.ending.ender import Ender
from durable_space.epochs import Epochs
from durable_space.gate import Caller, Gate
from durable_space.ledger import Ledger
from durable_space.notices import Notices
from durable_space.refusal import Refused
from durable_space.staging import Staging
from durable_space.starting import Starter
from durable_space.uploads import LOOK_SECONDS, Uploads
from durable_space.workspace import Workspace
from durable_space.workspace.hashes import HashCache
from durable_space.workspace.places import make_root
from durable_space.zygote import Zygote, end_older

log = logging.getLogger("durable.space")

P = ParamSpec("P")
T = TypeVar("T")


class Runtime:
    """Made by `open`, on the event loop, before anything listens."""

    def __init__(self, config: Config) -> None:
        """Blocking. UsageError: a folder is another daemon's, or the ledger another generation's."""
        self.config = config
        self.started_ns = time.time_ns()
        self.boot_id = identity.boot_id()
        self._folder_lock = identity.take_data_folder(config.data)
        end_older(config.data)
        self.ledger = Ledger(config.data / "ledger.db", config.generation)
        self.instance_id = self.ledger.instance_id
        claims.write_rule(str(config.data), self.ledger.rule)
        self.workspace_root = make_workspace(config.workspace)
        self._workspace_hold = identity.take_workspace(self.workspace_root)
        self.ender = Ender(
            config.data, self.instance_id, self.workspace_root, config.kill_mechanism, config.limits.proof_seconds
        )
        self.commands = Commands(config.data, self.ledger, self.boot_id, self.workspace_root, config.limits)
        self.commands.sweep()
        self.ender.sweep()
        self.staging = Staging(config.data / "staging", self.instance_id)
        self.staging.sweep()
        self.gate = Gate(self.ledger.floor)
        self.uploads = Uploads(config.data / "staging", config.limits, lambda: self.gate.floor)
        hashes = HashCache(config.data / "scan-cache", self.boot_id, os.fsencode(self.workspace_root))
        self.workspace = Workspace(self.workspace_root, self.gate, self.staging, hashes)
        self.notices: Notices
        self.zygote: Zygote
        self.starter: Starter
        self._loop: asyncio.AbstractEventLoop
        self.epochs = Epochs(config.data, self.commands, self.gate, self.ender, self._own_processes, self._floor_rose)
        # Two pools, so that a scan of a large tree does not keep commands waiting.
        self._short = ThreadPoolExecutor(16, "commands")
        self._long = ThreadPoolExecutor(8, "files")

    async def open(self) -> Refused | None:
        """Finish what the last daemon began, then start the zygote. Give what `Epochs.recover` gives."""
        self._loop = asyncio.get_running_loop()
        self.notices = Notices(self.instance_id)
        self.zygote = Zygote(self.config.data, self.ender.cgroups, self.ender.namespaces, self._spawn_failed)
        self.starter = Starter(self)
        refusal = await self.run(self.epochs.recover, self.config.epoch_floor)
        self.zygote.start()
        self._keeping = asyncio.create_task(self._drop_uploads())
        return refusal

    async def close(self) -> None:
        self._keeping.cancel()
        self.zygote.close()
        self.notices.close()
        self._short.shutdown(wait=False)
        self._long.shutdown(wait=False)
        self.ledger.close()
        self.ender.close()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread: a ledger write, a look at a command, a small file operation."""
        return await self._loop.run_in_executor(self._short, lambda: function(*args, **kwargs))

    async def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread: scans, applies, whole files."""
        return await self._loop.run_in_executor(self._long, lambda: function(*args, **kwargs))

    async def admit(self, caller: Caller) -> None:
        """Before a change. An anonymous caller above the floor raises it, with all that AdvanceEpoch does (rule 4)."""
        floor = self.gate.floor
        if caller.floor.incarnation == ANONYMOUS and judge(floor, caller.floor) is Admission.RAISES:
            await self.run(self.epochs.advance, caller.floor)
        self.gate.check(caller)

    def _own_processes(self) -> list[int]:
        return [self.zygote.pid] if self.zygote.pid else []

    def _floor_rose(self) -> None:
        self._wake_all()
        self._short.submit(self.uploads.drop_old)

    async def _drop_uploads(self) -> None:
        """Those whose time is up, though nobody calls."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self.uploads.is_empty:
                await self.run(self.uploads.drop_old)

    def _wake_all(self) -> None:
        self._loop.call_soon_threadsafe(self.notices.wake_all)

    def _spawn_failed(self, seq: int, number: int) -> None:
        """No process could be made: the row never started, and says so. Not if another shim took it on meanwhile."""
        log.warning("spawn.failed", extra={"fields": {"errno": number}})

        def mark() -> None:
            row = self.ledger.rows.get(seq)
            if row is not None and self.commands.bar(row):
                self.ledger.mark([seq], never_started=True)
            self._wake_all()

        self._loop.run_in_executor(self._short, mark)


def make_workspace(folder: Path) -> Path:
    """Its real path. One that a command removed is made again; of a fresh data folder it was there (`config.check`)."""
    root = folder.resolve()
    try:
        make_root(os.fsencode(root))
    except OSError as error:
        raise UsageError(f"--workspace {folder}: {error.strerror}: make it first") from None
    return root

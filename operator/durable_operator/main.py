"""One operator process: wait for CRDs and leadership, then watch, plan and act until it is told to stop.

A standby serves health and refuses report streams; it never exits because the API server is away (rule 27). A leader exits at
once when it loses the Lease, and when a watch ends by itself: the next process starts with fresh eyes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
from collections.abc import Awaitable
from typing import TypeVar

from durable_operator.context import Context
from durable_operator.events import Recorder
from durable_operator.health import Health
from durable_operator.kube import ApiError, Kube, UnknownOutcomeError
from durable_operator.leader import Leader, boottime
from durable_operator.memory import Key, Memory
from durable_operator.metrics import Metrics
from durable_operator.queue import RetryLater, WorkQueue
from durable_operator.read import Reader
from durable_operator.reconcile_session import reconcile_session
from durable_operator.reconcile_space import reconcile_space
from durable_operator.schema import schema_problem
from durable_operator.secrets import Install, load_install
from durable_operator.settings import Settings
from durable_operator.stream import Reports
from durable_operator.watch import run_sweeps, run_watches

SILENT_SECONDS = 30.0  # without an answer of the API server a replica is not ready
CRD_SECONDS = 5.0
JITTERED_SECONDS = 60.0  # waits above it are cut by up to a tenth
Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Operator:
    """The parts of one process, and the order in which they start and end."""

    def __init__(self, settings: Settings, kube: Kube) -> None:
        self._settings = settings
        self._kube = kube
        self._memory = Memory()
        self._metrics = Metrics(self._memory)
        self._leader = Leader(
            kube,
            settings.namespace,
            settings.lease_name or settings.install_name,
            settings.identity,
            settings.leader_seconds,
            settings.leader_renew_seconds,
        )
        self._metrics.leading.set_function(lambda: float(self._leader.leads()))
        self._reports = Reports(kube, self._memory, self._metrics, self._leader.leads)
        self._health = Health(self._problem, self._metrics.registry)
        self._stop = asyncio.Event()
        self._schema = "Starting: the API server has not been asked yet"

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises what ends a leader."""
        self._handle_signals()
        address = await self._health.start(self._settings.http_listen)
        log.info("serving health and metrics address=%s", address)
        try:
            install = await self._until_stopped(self._prepare())
            if install is not None:
                await self._until_stopped(self._leader.campaign())
            if install is not None and not self._stop.is_set():
                await self._lead(install)
        finally:
            if self._reports.server is not None:
                await self._reports.server.stop(0)
            await self._leader.release()
            await self._health.stop()

    def _handle_signals(self) -> None:
        """SIGTERM and SIGINT are ours; the watching library takes them when it starts, and gets them taken back."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    async def _until_stopped(self, work: Awaitable[Result]) -> Result | None:
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, stop):
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each

    async def _prepare(self) -> Install:
        """Wait until there is something to work on; make or read the install's secrets; open the streams' port."""
        while True:
            try:
                self._schema = await schema_problem(self._kube)
                if not self._schema:
                    install = await load_install(
                        self._kube, self._settings.namespace, f"{self._settings.install_name}-install"
                    )
                    break
                log.warning("not ready problem=%s", self._schema)
            except (ApiError, UnknownOutcomeError) as error:
                self._schema = f"APIUnreachable: {str(error)[:200]}"
                log.warning("not ready problem=%s", self._schema)
            await asyncio.sleep(CRD_SECONDS)
        if self._settings.stream_address:
            leaf = install.leaf((self._settings.stream_name, f"*.{self._settings.stream_name}"))
            await self._reports.serve(self._settings.stream_listen, leaf, install.ca_certificate)
        return install

    async def _lead(self, install: Install) -> None:
        self._kube.guard = self._leader.guard
        queue: WorkQueue[tuple[str, Key]] = WorkQueue(self._work, self._settings.workers)
        self._metrics.queue_depth.set_function(lambda: float(queue.depth()))
        self._context = Context(
            settings=self._settings,
            kube=self._kube,
            memory=self._memory,
            install=install,
            reader=Reader(self._kube, self._memory, install, self._settings),
            recorder=Recorder(self._kube, self._settings.identity),
            metrics=self._metrics,
            wake_session=lambda key, after: queue.wake(("session", key), after),
            wake_space=lambda key, after: queue.wake(("space", key), after),
            ask_stop=self._reports.ask_stop,
        )
        tasks = [
            asyncio.create_task(self._leader.keep(), name="lease"),
            asyncio.create_task(queue.run(), name="queue"),
            asyncio.create_task(run_sweeps(self._context), name="sweeps"),
            asyncio.create_task(self._stop.wait(), name="stop"),
            asyncio.create_task(run_watches(self._context, self._handle_signals), name="watches"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if not self._stop.is_set():
                raise RuntimeError(f"{', '.join(task.get_name() for task in done)} ended by itself")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, item: tuple[str, Key]) -> float | None:
        kind, key = item
        reconcile = reconcile_session if kind == "session" else reconcile_space
        try:
            again = await reconcile(self._context, key)
        except ApiError as error:
            if error.retry_after is None:
                raise
            raise RetryLater(error.retry_after) from error
        # Sessions that began together would otherwise be looked at together for ever.
        return again * random.uniform(0.9, 1.0) if again is not None and again > JITTERED_SECONDS else again

    def _problem(self) -> str:
        """Why this replica is not ready."""
        if self._schema:
            return self._schema
        if self._kube.schema_problem:
            return self._kube.schema_problem
        silent = boottime() - self._leader.contact
        return f"APIUnreachable: no answer for {silent:.0f} s" if silent > SILENT_SECONDS else ""


async def run_operator(settings: Settings) -> None:
    """The whole life of a process."""
    kube = await Kube.connect(settings.kubeconfig)
    try:
        await Operator(settings, kube).run()
    finally:
        await kube.close()

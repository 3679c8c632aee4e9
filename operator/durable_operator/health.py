"""/livez, /readyz and /metrics. A standby is ready: only `durable_leader` tells the two apart (rule 55)."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from durable_base.errors import UsageError


class Health:
    """`problem()` says why the replica is not ready, empty if it is."""

    def __init__(self, problem: Callable[[], str], registry: CollectorRegistry) -> None:
        self._problem = problem
        self._registry = registry
        self._runner: web.AppRunner | None = None

    async def start(self, listen: str) -> str:
        """Serve on `host:port` until `stop`; the address really bound."""
        app = web.Application()
        app.add_routes([web.get("/livez", _live), web.get("/readyz", self._ready), web.get("/metrics", self._metrics)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        host, _, port = listen.rpartition(":")
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            raise UsageError(f"--http-listen {listen}: {error.strerror}; choose another address") from error
        bound = self._runner.addresses[0]
        return f"{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _ready(self, _: web.Request) -> web.Response:
        problem = self._problem()
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": "text/plain; version=0.0.4"})


async def _live(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")  # the event loop turns

"""Reserve a command and have a shim take it on. Of the event loop; nothing here waits for the disk on it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from durable_space.gate import Caller
from durable_space.rows import CommandConfig, Row
from durable_space.states import State

if TYPE_CHECKING:
    from durable_space.runtime import Runtime


class Starter:
    """Two requests with one id at the same moment make one row: the second waits for the first's."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reserving: dict[str, Future[Row]] = {}

    async def start(self, caller: Caller, request_id: str, tag: str, config: CommandConfig) -> tuple[Row, bool]:
        """Give (row, deduplicated). Raise Refused.

        A row that nothing has claimed yet is asked for again: the daemon or the zygote may have died in between, and
        whatever came of the earlier request, only one shim claims.
        """
        runtime = self._runtime
        while True:
            while not runtime.gate.try_enter(caller):
                await runtime.run(runtime.gate.await_raise)
            try:
                under_way = self._reserving.get(request_id)
                if under_way is None:
                    known = runtime.commands.known(request_id, config)
                    if known is None or known.never_started:
                        reserved = self._reserve(request_id, tag, config)
                        return await asyncio.shield(asyncio.wrap_future(reserved)), False
            finally:
                # What was reserved has a place behind the gate of its own: it may outlast this caller.
                runtime.gate.leave()
            if under_way is None:
                assert known is not None
                return known, not await self._ask_again(known)
            await asyncio.wait([asyncio.wrap_future(under_way)])

    def _reserve(self, request_id: str, tag: str, config: CommandConfig) -> Future[Row]:
        runtime = self._runtime

        def hand_over(row: Row) -> None:
            runtime.zygote.request(row.seq, runtime.commands.prepare(row))
            runtime.commands.make_ahead(row.seq)

        runtime.gate.enter_again()
        try:
            future = runtime.commands.reserve(request_id, tag, config, runtime.gate.floor, hand_over)
        except BaseException:
            runtime.gate.leave()
            raise
        self._reserving[request_id] = future

        def finished(_: Future[Row]) -> None:
            del self._reserving[request_id]
            runtime.gate.leave()

        future.add_done_callback(finished)
        return future

    async def _ask_again(self, row: Row) -> bool:
        runtime = self._runtime

        def look() -> bytes | None:
            unclaimed = runtime.commands.observe(row).state is State.RESERVED
            return runtime.commands.prepare(row) if unclaimed else None

        packet = await runtime.run(look)
        if packet is not None:
            runtime.zygote.request(row.seq, packet)
        return packet is not None

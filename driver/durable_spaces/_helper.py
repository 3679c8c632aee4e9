"""The Space helper, as a driver asks it: started when it is needed, one request at a time.

A helper that ends is followed by another one: what may be done twice is asked again, and what may not ends the drive. An older
driver's helper can't be asked: AdvanceEpoch has killed it, and it can't be started again under its epoch.

A caller that is cancelled leaves its request to run to its answer, so that the next one never gets that.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from durable_base.errors import HaltError, StaleEpochError
from durable_space.helper.archive import PYTHON_FLAGS
from durable_spaces._channel import Patience, Wire
from durable_spaces._cua_commands import CuaCommands
from durable_spaces._errors import SpaceRefused, Unreachable
from durable_spaces._helper_process import HelperLost, HelperProcess, Reply
from durable_spaces._processes import CommandSpec

Body = Callable[[], Iterable[bytes]]  # made anew for each attempt
# Called before each start: the Space is still the same one (rule 12). The helper's folder, and the archive that is there.
Ready = Callable[[], Awaitable[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class HelperLaunch:
    workspace: str
    instance: str
    environment: Mapping[str, str] = field(default_factory=dict)  # added to the Space's own


class Helper:
    """Raises SpaceRefused where nothing was done; HaltError, StaleEpochError."""

    def __init__(self, wire: Wire, commands: CuaCommands, launch: HelperLaunch, ready: Ready) -> None:
        self._wire = wire
        self._commands = commands
        self._launch = launch
        self._ready = ready
        self._process: HelperProcess | None = None
        self._closed = False
        self._turn = asyncio.Lock()
        self._pending: set[asyncio.Task[Reply]] = set()

    async def start(self) -> None:
        """Before the first request, so that what a Space lacks is told at once."""
        async with self._turn:
            await self._helper(self._wire.patience())

    async def again(self, op: str, body: Body | None = None, /, **arguments: object) -> Reply:
        """For what may be done twice."""
        return await self._asked(self._in_turn(op, body, arguments, repeated=True))

    async def once(self, op: str, body: Body | None = None, /, **arguments: object) -> Reply:
        """For what must not: a helper that is lost meanwhile ends the drive, and the next one looks and decides."""
        return await self._asked(self._in_turn(op, body, arguments, repeated=False))

    async def dismiss(self, op: str, /, **arguments: object) -> None:
        """For what matters to the helper that runs alone."""
        if self._process is not None and self._process.lives:
            with contextlib.suppress(SpaceRefused, HaltError, StaleEpochError):
                await self._asked(self._in_turn(op, None, arguments, repeated=False))

    async def close(self) -> None:
        """The helper ends with its stdin; what it does at that moment it does whole."""
        self._closed = True
        for request in (pending := list(self._pending)):
            request.cancel()
        if pending:
            await asyncio.wait(pending)
        if self._process is not None:
            await self._process.close()

    async def _asked(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        request = asyncio.ensure_future(work)
        self._pending.add(request)
        request.add_done_callback(self._forget)
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if request.cancelled() and here is not None and not here.cancelling():
                raise _closed() from None  # nobody cancelled the caller
            raise

    def _forget(self, request: asyncio.Task[Reply]) -> None:
        self._pending.discard(request)
        if not request.cancelled():
            request.exception()  # seen: whoever asked may have been cancelled

    async def _in_turn(self, op: str, body: Body | None, arguments: Mapping[str, object], *, repeated: bool) -> Reply:
        async with self._turn:
            patience = self._wire.patience()
            while True:
                helper = await self._helper(patience)
                try:
                    return await helper.ask(op, arguments, body() if body is not None else ())
                except HelperLost as lost:
                    if not repeated:
                        raise HaltError(
                            "SpaceUnreachable", f"the Space helper ended ({lost}); the next drive takes the call up"
                        ) from lost
                    await patience.pause(Unreachable(str(lost)))

    async def _helper(self, patience: Patience) -> HelperProcess:
        """One that lives; a daemon that dies meanwhile is waited for."""
        while True:
            try:
                return await self._started()
            except HelperLost as lost:
                await patience.pause(Unreachable(str(lost)))

    async def _started(self) -> HelperProcess:
        if self._closed:
            raise _closed()
        if self._process is not None:
            if self._process.lives:
                return self._process
            await self._process.close()
            self._process = None
        folder, archive = await self._ready()
        launch = self._launch
        words = (*PYTHON_FLAGS, archive, launch.workspace, folder, launch.instance)
        spec = CommandSpec("python3", words, launch.environment, "/", stdin=True)
        request_id = f"helper:{secrets.token_hex(8)}@{self._wire.own.epoch}"  # no start is ever taken for another one's
        helper = HelperProcess(self._wire, self._commands, request_id, spec)
        try:
            await helper.hello()
        except BaseException:
            await helper.close()
            raise
        self._process = helper
        return helper


def _closed() -> HaltError:
    return HaltError("SpaceUnreachable", "the connection to the Space has been closed")

"""`durable_spaces(...)`: the adapter of one session, as a driver puts it together.

spaces = durable_spaces(spaces=RemoteSpaces(address), epoch=3, incarnation=incarnation, fence=fence)
async with Harness.open(storage, env=spaces.env, extensions=[spaces.extension], ...) as harness:
    await spaces.attach(harness.session)      # fences the Space; nothing runs before it
    harness.resume()
    ...
    await spaces.ensure_space()               # the Space is what the log says, also where it was lost meanwhile
await spaces.close()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from durable_base.crash import crash_point
from durable_base.errors import HaltError
from durable_base.floor import Floor
from durable_harness import EnvRequest
from durable_harness.env import ExecutionEnv
from durable_harness.fence import Fence
from durable_harness.records import ROOT_ID
from durable_harness.session import Session
from durable_harness.tools import Extension, ToolWrapper
from durable_spaces._conduct import FreeConduct
from durable_spaces._drive import Drive, Settings
from durable_spaces._errors import only_halts
from durable_spaces._log import SpaceLog
from durable_spaces.client import SpaceClient
from durable_spaces.document import Identity, SpaceFacts
from durable_spaces.env import SpaceExecutionEnv
from durable_spaces.events import OnEvent
from durable_spaces.limits import Limits, check_mode, parse_limits
from durable_spaces.spaces import Spaces
from durable_spaces.wrapper import SpaceWrapper

WRAPPED = ("bash", "write", "edit")
READING = ("read",)  # not wrapped, but what it shows must be what the calls before it left


@dataclass(frozen=True, slots=True)
class Attached:
    """What `attach` found and did. Content-free, for the driver's own events."""

    space: str
    identity: Identity
    killed: int  # commands of older epochs that were ended
    adopted: int  # commands of the interrupted call that live on
    pending: int | None  # the task id of the call that a crash interrupted


def durable_spaces(
    *,
    spaces: Spaces,
    epoch: int,
    incarnation: str,
    cwd: str | None = None,
    mode: str = "auto",
    fence: Fence | None = None,
    lease_token: str = "",
    transactional: Mapping[str, Any] | Limits | None = None,
    wrap: Sequence[str] = WRAPPED,
    on_event: OnEvent = lambda event: None,
) -> DurableSpaces:
    """Make the adapter; nothing is contacted yet.

    `cwd` is where tools begin, absolute or relative to the workspace. `wrap` names the tools whose calls happen once.
    Raises UsageError for a bad mode or limit, HaltError (permanent, ModeUnsupported) for a mode this version does not serve.
    """
    check_mode(mode)
    limits = transactional if isinstance(transactional, Limits) else parse_limits(transactional)
    settings = Settings(mode, limits, lease_token, on_event)
    return DurableSpaces(spaces, Floor(epoch, incarnation), cwd, settings, fence, wrap)


class DurableSpaces:
    """`env` and `extension` go to the harness; `attach` comes before anything runs, `ensure_space` and `close` at the end."""

    def __init__(
        self,
        spaces: Spaces,
        own: Floor,
        cwd: str | None,
        settings: Settings,
        fence: Fence | None,
        wrap: Sequence[str],
    ) -> None:
        self._spaces = spaces
        self._own = own
        self._cwd = cwd
        self._settings = settings
        self._client: SpaceClient | None = None
        self._drive: Drive | None = None
        wrapper: ToolWrapper = SpaceWrapper(self._driven, fence)
        self.extension = Extension("durable-spaces", wrappers=dict.fromkeys(wrap, wrapper), in_order=(*wrap, *READING))

    async def env(self, request: EnvRequest) -> ExecutionEnv:
        """The harness's EnvFactory. Raises HaltError where `attach` has not been called for this conversation."""
        drive = self._driven()
        if request.conversation_id != drive.log.conversation_id:
            raise HaltError(
                "SecondSpaceUnsupported",
                "this version drives one conversation in one Space; run the other conversation as a session of its own",
                permanent=True,
            )
        return SpaceExecutionEnv(drive.space, FreeConduct(drive), request.cwd or self._cwd)

    async def attach(self, session: Session, conversation_id: int = ROOT_ID) -> Attached:
        """Fence the Space for this drive and, where no call was interrupted, make it what the log says.

        The running command of an interrupted call is adopted if the log shows neither its outcome nor a decision about it
        (rule 21). Raises StaleEpochError, HaltError.
        """
        if self._drive is not None:
            raise RuntimeError("attach is called once in a drive")
        self._client = await self._spaces.open(session.log_id, conversation_id, self._own)
        with only_halts():
            return await self._attach(self._client, SpaceLog(session, conversation_id))

    async def _attach(self, client: SpaceClient, log: SpaceLog) -> Attached:
        facts = await log.facts()
        info = await client.info()
        space = await client.advance(info, _adoptable(facts, self._settings.lease))
        crash_point("adapter.epoch_advanced")
        drive = Drive(space, log, self._settings)
        current = facts.current
        pending = None
        if current is not None and log.session.live_task(current.mark.task) is not None:
            pending = current.mark.task
            drive.turn.expect(pending)
        else:
            await drive.settle(log.session.commit, None)
        self._drive = drive
        return Attached(info.name, info.identity, space.advanced.killed, len(space.advanced.adopted), pending)

    async def ensure_space(self) -> None:
        """Once everything has settled: the Space that answers is the log's, and its workspace is the image's."""
        drive = self._driven()
        if drive.turn.pending is not None:
            # Nobody will take it up in this drive, and only its own recovery may judge the workspace: waiting would not end.
            raise HaltError("CallInWork", "a call that a crash interrupted has not been recovered")
        await drive.turn.acquire()
        try:
            with only_halts():
                await drive.space.check_still_ours()
                await drive.settle(drive.log.session.commit, None)
        finally:
            drive.turn.release()

    async def close(self) -> None:
        """Let go of the Space. Commands that run there go on; the next drive adopts what is still needed."""
        if self._drive is not None:
            await self._drive.close()
        if self._client is not None:
            await self._client.close()
        await self._spaces.close()

    def _driven(self) -> Drive:
        if self._drive is None:
            raise HaltError(
                "NotAttached", "the Space has not been attached: call attach(session) before resume()", permanent=True
            )
        return self._drive


def _adoptable(facts: SpaceFacts, lease: str) -> tuple[str, ...]:
    current = facts.current
    if current is None or current.outcome is not None or current.decision is not None:
        return ()
    if current.mark.command_hash is None or current.mark.lease != lease:
        return ()
    return (current.mark.key,)


__all__ = ["WRAPPED", "Attached", "DurableSpaces", "durable_spaces"]

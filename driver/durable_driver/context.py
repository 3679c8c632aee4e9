"""DriveContext: what a `start` function is given, with log, fence, Space and adapter in place."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from durable_base.crash import crash_point
from durable_base.errors import UsageError
from durable_base.files import sync_folder
from durable_base.floor import Floor
from durable_driver.environment import DriveEnvironment, SpaceAddress
from durable_driver.events import EventLine
from durable_driver.watch import Watch
from durable_harness import Extension, Fence, Harness, RetryPolicy, Settings, Tool
from durable_harness.coding import CODING_TOOLS
from durable_harness.models import ModelProvider
from durable_harness.sqlite import SqliteStorage, open_fenced_sqlite
from durable_harness.tasks import TaskDefinition
from durable_spaces import Address, DurableSpaces, RemoteSpaces, durable_spaces

# A model that is away gets 26 minutes to come back; then this drive ends, and is driven again as its coordinator sees fit.
DEFAULT_SETTINGS = Settings(retry=RetryPolicy(max_retries=30, base_seconds=2.0, cap_seconds=60.0, exhausted="halt"))


class DriveContext:
    """One drive. Made by `run_durable_session`, after this process has claimed the session's log for its epoch."""

    def __init__(
        self, environment: DriveEnvironment, watch: Watch, events: EventLine, storage: SqliteStorage, fence: Fence
    ) -> None:
        self.environment = environment
        self.harness: Harness | None = None  # set once, by `open_harness`
        self._watch = watch
        self._events = events
        self._storage = storage
        self._fence = fence
        self._spaces: DurableSpaces | None = None

    @property
    def request_id(self) -> str:
        """The same in every drive of the session: with it an input is admitted once."""
        return self.environment.uid

    @property
    def input(self) -> str:
        """The session's input. UsageError if there is none, or it can't be read."""
        return _read("DURABLE_INPUT", self.environment.input_path, "the file with the session's input")

    @property
    def agent_yaml(self) -> str:
        """The agent as its manifest gives it. UsageError likewise."""
        return _read("DURABLE_AGENT", self.environment.agent_path, "the file with the agent")

    async def open_harness(
        self,
        *,
        models: Mapping[str, ModelProvider],
        tools: Sequence[Tool] = (),
        extensions: Sequence[Extension] = (),
        tasks: Sequence[TaskDefinition] = (),
        settings: Settings | None = None,
    ) -> Harness:
        """The session's harness, on its log and its Space; once in a drive.

        Besides `tools` the coding tools (read, write, edit, bash) can be named by agents; one given here by the same name
        takes its place. When this returns, every older driver is fenced out of the Space, and nothing has begun to run:
        `submit` or `resume` starts it. Raises StaleEpochError, HaltError, UsageError; a `start` lets them pass.
        """
        if self.harness is not None:
            raise UsageError("open_harness is called once in a drive: keep the harness that it returned")
        environment, own = self.environment, self._fence.floor
        self._spaces = self._adapter(own)
        given = {tool.name for tool in tools}
        self.harness = harness = await Harness.open(
            self._storage,
            models=self._watch.failures.watched(models),
            tools=[*tools, *(tool for tool in CODING_TOOLS if tool.name not in given)],
            extensions=[*extensions, self._spaces.extension],
            tasks=tasks,
            env=self._spaces.env,
            fence=self._fence,
            # Rule 33: only counted attempts count against a task that drives die in.
            settings=replace(settings or DEFAULT_SETTINGS, attempt=environment.attempt),
        )
        await self._watch.follow(harness.session)
        attached = await self._spaces.attach(harness.session)
        self._events.emit("space.advanced", killed=attached.killed, adopted=attached.adopted, pending=attached.pending)
        crash_point("driver.space_advanced")
        return harness

    async def ensure_space(self) -> None:
        """At the end: the Space is what the log says. UsageError if `open_harness` was never called."""
        if self._spaces is None:
            raise UsageError("start returned without open_harness: the driver has no log to wait on")
        await self._spaces.ensure_space()

    async def leave_space(self) -> None:
        """The drive fails for good: the Space is made what the log says where that can still be done, for people to look at.

        A Space that was made anew for this drive is empty until then. Raises whatever stands against it.
        """
        if self.harness is None:
            # `start` refused before it spoke to the Space. Without models nothing runs; attaching restores.
            if self.environment.resume:
                await self.open_harness(models={})
            return
        await self.ensure_space()

    async def close(self) -> None:
        """Let go of log and Space. What runs in the Space goes on, for the next drive to take up."""
        if self.harness is not None:
            await self.harness.close()
        else:
            await self._storage.close()
        if self._spaces is not None:
            await self._spaces.close()

    def _adapter(self, own: Floor) -> DurableSpaces:
        environment = self.environment
        return durable_spaces(
            spaces=RemoteSpaces(space_address(environment.space)),
            epoch=own.epoch,
            incarnation=own.incarnation,
            mode=environment.mode,
            fence=self._fence,
            lease_token=str(environment.space.lease_token),
            transactional=environment.transactional,
            on_event=self._watch.recovered,
        )


async def open_context(
    environment: DriveEnvironment, incarnation: str, watch: Watch, events: EventLine
) -> DriveContext:
    """Claim the log for (epoch, incarnation), before anything else. StaleEpochError, UsageError, CorruptLogError."""
    _make_state_dir(environment.state_dir)
    storage, fence = await open_fenced_sqlite(environment.log_path, environment.epoch, incarnation)
    events.emit("log.opened", log=storage.log_id)
    crash_point("driver.log_opened")
    return DriveContext(environment, watch, events, storage, fence)


def space_address(space: SpaceAddress) -> Address:
    target = space.address
    token_file = space.token_file
    if token_file is None and space.token is not None:
        token_file = _in_memory(space.token)
    return Address(target, token_file, space.ca_file, space.server_name)


def _in_memory(secret: str) -> Path:
    """A file that no disk ever holds, and no process that is started gets: for a token that came by the environment."""
    fd = os.memfd_create("space-token", os.MFD_CLOEXEC)
    os.write(fd, secret.encode())
    return Path(f"/proc/self/fd/{fd}")


def _make_state_dir(folder: Path) -> None:
    """The last folder of the path is made: on a volume that several sessions share, each has its own."""
    name = f"CUA_SESSION_STATE_DIR is '{folder}'"
    try:
        folder.mkdir(mode=0o700)
        sync_folder(folder.parent)
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"{name}: can't be made ({error.strerror}); mount or create the folder above it") from None
    if not folder.is_dir():
        raise UsageError(f"{name}: it is no folder; name one, or remove what is there")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(f"{name}: user {os.getuid()} can't read and write it; change its owner or mode")


def _read(name: str, path: Path | None, what: str) -> str:
    if path is None:
        raise UsageError(f"{name} is not set: set it to {what}")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{name} is '{path}': can't be read ({why}); set it to {what}") from None

"""Keep a Space's daemon running: what a kubelet and a pod's supervisor do on a cluster.

Its death is no event of the session: commands run on under their shims, and the next run of the daemon finds them. Each run
has a folder of its own (`run-<n>`), so that two coordinators in a row never start one run twice.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from durable_base.crash import crash_point
from durable_base.files import free_bytes
from durable_coordinator.facts import DaemonFacts, PodPhase, SpacePod
from durable_coordinator.spec_space import SpaceSpec
from durable_local import placement, process
from durable_local.environment import space_environment
from durable_local.events import Listener, now_event
from durable_local.layout import Home, StateError
from durable_local.process import ChildFacts, Life
from durable_local.tail import Tail

_RESTART_SECONDS_MAX = 30.0  # between runs of a daemon that never comes to listen
_CLAIM_SECONDS = 5.0  # that a keeper may take to claim its folder before another one is started
_STOP_SECONDS = 10.0
_FULL_BYTES = 1 << 20  # free on the disk, below which a daemon that does not start needs no other explanation


class Daemon:
    """The daemon of one generation. `watch` must be called often: it restarts a dead one and learns when it listens."""

    def __init__(self, home: Home, space: str, generation: int, spec: SpaceSpec, listener: Listener) -> None:
        self._home = home
        self._space = space
        self._generation = generation
        self._spec = spec
        self._listener = listener
        self._keeper: subprocess.Popen[bytes] | None = None
        self._run = max(home.runs(generation), default=1)
        self._tail = Tail(self._folder / "stdout")
        self._listening = False
        self._noticed = 0  # the run whose end was noticed
        self._start_at = 0.0  # monotonic: not before
        self._failures = 0  # runs in a row that never listened

    @property
    def address(self) -> str:
        return f"unix:{self._home.socket(self._generation)}"

    @property
    def token(self) -> Path:
        return self._home.generation(self._generation).absolute() / "token"

    @property
    def _folder(self) -> Path:
        return self._home.generation(self._generation) / f"run-{self._run}"

    def watch(self, environ: Mapping[str, str]) -> None:
        placed = placement.find(self._home, self._generation)
        if placed is None:
            return
        facts = process.look(self._folder)
        match facts.life:
            case Life.RUNNING:
                self._notice_listening()
            case Life.ABSENT:
                # Never claimed: a coordinator died before its keeper began. Should that one still come, the claim decides.
                if (self._keeper is None or self._keeper.poll() is not None) and time.monotonic() >= self._start_at:
                    self._start(environ, placed.epoch_floor)
            case Life.ENDED | Life.GONE:
                if self._noticed != self._run:
                    self._notice_end(facts)
                elif time.monotonic() >= self._start_at:
                    self._run += 1
                    self._start(environ, placed.epoch_floor)

    def pod(self, owner_uid: str) -> SpacePod | None:
        """The placement as a plan sees it. Running while it is placed: a daemon between two runs is only not ready."""
        placed = placement.find(self._home, self._generation)
        if placed is None:
            return None
        last = self._last_end()
        return SpacePod(
            name=f"{self._space}-g{self._generation}",
            uid=placed.uid,
            generation=self._generation,
            owner_uid=owner_uid,
            phase=PodPhase.RUNNING,
            ready=self._listening,
            node="local",
            address=self.address,
            created_at=placed.time,
            started_at=placed.time,
            restarts=max(self._run - 1, 0),
            last_code=_shell_code(last) if last else 0,
            last_reason="Killed" if last and last.signal else "",
            last_at=last.ended_at if last else None,
            waiting_message="the Space's daemon is starting",
        )

    @property
    def restarted_at(self) -> float:
        """Unix seconds of the newest run's start, 0 if there was one run at most."""
        return (process.look(self._folder).started_at or 0.0) if self._run > 1 else 0.0

    def info(self) -> DaemonFacts | None:
        """GetInfo, at most a second; None if it is not answered."""
        if not self._listening:
            return None
        from durable_local.info import get_info  # gRPC takes a while to import, and only this needs it

        return get_info(self.address, self.token.read_text())

    def stop(self) -> None:
        """SIGTERM: commands end and their rows say so; SIGKILL to the daemon if that takes too long. Returns when it is over."""
        process.send(self._folder, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while process.look(self._folder).life is Life.RUNNING:
            if time.monotonic() > deadline:
                process.send(self._folder, signal.SIGKILL)
            time.sleep(0.02)
        self._listening, self._noticed = False, self._run
        if self._keeper is not None:
            process.release(self._keeper)

    def _start(self, environ: Mapping[str, str], epoch_floor: int) -> None:
        folder = self._home.generation(self._generation).absolute()
        self._tail, self._listening = Tail(self._folder / "stdout"), False
        self._start_at = time.monotonic() + _CLAIM_SECONDS
        command = [sys.executable, "-m", "durable_cli", "space"]
        command += ["--data", str(folder / "data"), "--workspace", str(self._home.workspace.absolute())]
        command += ["--listen", self.address, "--name", self._space, "--generation", str(self._generation)]
        command += ["--epoch-floor", str(epoch_floor), "--token-file", str(self.token), "--stop-commands"]
        command += ["--kill-mechanism", self._spec.epoch_kill]
        self._keeper = process.start(self._folder, str(uuid.uuid4()), command, space_environment(environ), folder)
        crash_point("local.daemon_started")
        self._tell("space.started", run=self._run)

    def _notice_listening(self) -> None:
        if not self._listening and self._told_that_it_listens():
            self._listening, self._failures = True, 0
            self._tell("space.listening", run=self._run)

    def _told_that_it_listens(self) -> bool:
        return any(event["event"] == "listening" for event in self._tail.read().events)

    def _notice_end(self, facts: ChildFacts) -> None:
        """The first restart comes at once, those of a daemon that never listens ever later."""
        # A coordinator that has just started may look for the first time at a run that is over.
        listened, self._listening = self._listening or self._told_that_it_listens(), False
        if not listened:
            self._refuse_full_disk()
        self._failures += not listened
        self._noticed = self._run
        pause = min(0.1 * 2 ** min(self._failures, 16), _RESTART_SECONDS_MAX) if self._failures else 0.0
        self._start_at = time.monotonic() + pause
        why = {} if listened else {"detail": self._last_words()}
        self._tell("space.gone", run=self._run, listened=listened, code=facts.code, signal=facts.signal, **why)

    def _refuse_full_disk(self) -> None:
        """Nothing could be written down then, not even how it ended: the disk is what to tell, once and at once."""
        if (free := free_bytes(self._home.path)) < _FULL_BYTES:
            raise StateError(
                f"{self._home.path}: the disk is full ({free >> 10} KiB free), so the Space can't start. Make room there (its "
                "commands need 32 MiB free), and run the same command again."
            )

    def _last_end(self) -> ChildFacts | None:
        for run in (self._run, self._run - 1):
            if run > 0:
                facts = process.look(self._home.generation(self._generation) / f"run-{run}")
                if facts.life is Life.ENDED:
                    return facts
        return None

    def _tell(self, name: str, **fields: object) -> None:
        self._listener(now_event(self._space, 0, name, generation=self._generation, **fields))

    def _last_words(self) -> str:
        """The end of what this run wrote to stderr, for a person who has to find out why it does not start."""
        try:
            return (self._folder / "stderr").read_text(errors="replace").strip().rpartition("\n")[2][-500:]
        except OSError:
            return ""


def _shell_code(facts: ChildFacts) -> int:
    return 128 + facts.signal if facts.signal else facts.code or 0

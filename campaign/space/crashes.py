"""Rounds of commands with a kill -9 in the middle: of the daemon, its zygote or a shim, at a named point or at any moment.

A round is good if every command ran at most once, every exit that was written down is reported and no other, and its output
is what the command wrote into a file of its own. A command may be lost only where a shim was killed.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from campaign.space.leaks import marked, what_is_left

from durable_protocol.durable.space.v1.space_pb2 import GetInfoRequest
from durable_space import procfs
from durable_space.testing import Client, LocalDaemon, Outcome, collect, error_info

COMMANDS_MAX = 20
ROUND_SECONDS = 60.0
BODIES = {
    "quick": 'echo "$1" | tee "own/$1"',
    "lines": 'for i in 1 2 3 4 5 6; do echo "$1 $i"; sleep 0.02; done | tee "own/$1"',
    "large": 'head -c 200000 /dev/urandom | tee "own/$1"',
    "leaves a child": 'echo "$1" | tee "own/$1"; (setsid sleep 0.2 > /dev/null 2>&1 &)',
}
# Which process dies there, and how often it is passed before (a shim serves several commands).
POINTS = {
    "ledger.reserved_synced": 6,
    "zygote.before_fork": 8,
    "shim.requested": 3,
    "shim.claimed": 3,
    "shim.command_started": 3,
    "shim.exit_recorded": 3,
    "epoch.rule_written": 1,
    "epoch.ledger_synced": 1,
    "epoch.floor_synced": 1,
    "epoch.killed_some": 1,
}
KILLS = ("daemon", "zygote", "shim", "daemon and zygote", "daemon and shim")


@dataclass(frozen=True)
class Plan:
    """What a seed says. `kill` is what a signal is sent to, `delay` seconds after the first start."""

    commands: tuple[tuple[str, int], ...]  # (body, exit code)
    point: str  # empty: none armed
    kill: str
    delay: float

    @property
    def hits_shims(self) -> bool:
        return self.point.startswith("shim.") or "shim" in self.kill

    @property
    def advances(self) -> bool:
        """A newer epoch comes in the middle."""
        return self.point.startswith("epoch.")


def make_plan(chance: random.Random) -> Plan:
    count = chance.randint(1, COMMANDS_MAX)
    commands = tuple((chance.choice(list(BODIES)), chance.choice((0, 0, 1, 7, 130))) for _ in range(count))
    point, kill = "", chance.choice(KILLS)
    if chance.random() < 0.5:
        name = chance.choice(list(POINTS))
        point, kill = f"{name}:{chance.randint(1, POINTS[name])}", "daemon"
    return Plan(commands, point, kill, chance.random() * 0.4)


@dataclass
class Report:
    rounds: int = 0
    commands: int = 0
    lost: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Rounds:
    """Some rounds on one data folder."""

    def __init__(self, folder: Path, mechanism: str, seed: int) -> None:
        self.daemon = LocalDaemon(folder, "--kill-mechanism", mechanism)
        self._chance = random.Random(seed)
        self._epoch = 0
        for name in ("own", "starts"):
            (self.daemon.workspace / name).mkdir()
        self._lock = threading.Lock()
        self._client: Client | None = None

    def run(self, rounds: int, report: Report) -> None:
        """AssertionError: a promise was broken."""
        self._client = self.daemon.start()
        self._advance()
        for number in range(rounds):
            plan = make_plan(self._chance)
            self._round(number, plan, report)
            report.rounds += 1
        self.daemon.stop()
        left = what_is_left(self.daemon)
        assert not left, f"left behind: {left}"

    def _round(self, number: int, plan: Plan, report: Report) -> None:
        if plan.point:
            self.daemon.kill()
            self._client = self.daemon.start(crash=plan.point)
        report.faults[plan.point.partition(":")[0] or f"kill {plan.kill}"] += 1
        outcomes: dict[str, Outcome | None] = {}
        names = {f"{number}-{place}": command for place, command in enumerate(plan.commands)}
        jobs = [threading.Thread(target=self._drive, args=(name, *names[name], outcomes)) for name in names]
        for job in jobs:
            job.start()
        time.sleep(plan.delay)
        if plan.advances:
            assert self._client is not None
            with suppress(grpc.RpcError):
                self._client.advance(self._epoch + 1)
        self._kill(plan)
        if self.daemon.process is None:
            fresh = self.daemon.start()
            with self._lock:
                self._client = fresh
        for job in jobs:
            job.join(ROUND_SECONDS)
        assert len(outcomes) == len(jobs), f"{len(jobs) - len(outcomes)} commands have no end: {plan}"
        for name, (body, code) in names.items():
            report.commands += 1
            outcome = outcomes[name]
            report.lost += outcome is not None and outcome.end.lost
            self._check(name, body, code, outcome, plan)
        self._advance()
        alive = marked(self.daemon.announced["instance"])
        assert not alive, f"alive after AdvanceEpoch: {alive}: {plan}"

    def _request(self, name: str, body: str, code: int) -> tuple[str, list[str]]:
        script = f'echo x >> "starts/$1"; {BODIES[body]}; exit {code}'
        return f"campaign/{name}:0@{self._epoch}", ["sh", "-c", script, "sh", name]

    def _drive(self, name: str, body: str, code: int, outcomes: dict[str, Outcome | None]) -> None:
        """As a driver does it: the same request again until there is an end, or a newer epoch (None)."""
        request_id, words = self._request(name, body, code)
        epoch = self._epoch
        deadline = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < deadline:
            with self._lock:
                client = self._client
            assert client is not None
            try:
                outcomes[name] = collect(client.as_driver(epoch).start(request_id, words))
                return
            except grpc.RpcError as error:
                if error_info(error).metadata.get("condition") == "StaleEpoch":
                    outcomes[name] = None
                    return
            except AssertionError:
                pass  # the stream broke off without an end, which is none
            time.sleep(0.02)

    def _kill(self, plan: Plan) -> None:
        process = self.daemon.process
        assert process is not None
        if "zygote" in plan.kill:
            zygote = [int(word) for word in (self.daemon.data / "zygote").read_text().split()]
            procfs.send_signal(zygote[0], zygote[1], signal.SIGKILL)
        if "shim" in plan.kill:
            shims = self._running_shims()
            for pid, start in shims[: self._chance.randint(1, 3)]:
                procfs.send_signal(pid, start, signal.SIGKILL)
        if "daemon" in plan.kill or process.poll() is not None:
            self.daemon.kill()

    def _running_shims(self) -> list[tuple[int, int]]:
        found = []
        for folder in sorted((self.daemon.data / "commands").iterdir()):
            record = self.daemon.record(int(folder.name, 16))
            if record.claim is not None and record.done is None:
                found.append((int(record.claim["shim"]), int(record.claim["shim_start"])))
        return found

    def _check(self, name: str, body: str, code: int, outcome: Outcome | None, plan: Plan) -> None:
        """AssertionError, with the promise as its text."""
        client = self._client
        assert client is not None
        starts = self.daemon.workspace / "starts" / name
        ran = len(starts.read_text().splitlines()) if starts.exists() else 0
        assert ran <= 1, f"{name} ran {ran} times: {plan}"
        request_id, words = self._request(name, body, code)
        state = client.state(request_id.rpartition("@")[0])
        if outcome is None:
            assert plan.advances, f"{name} was refused although no epoch came: {plan}"
            assert state in ("", "never_started", "killed", "exited"), f"{name} is {state} below the floor: {plan}"
            if state in ("", "never_started"):
                assert ran == 0, f"{name} is said never to have started, and ran: {plan}"
            if state != "exited":
                return
            outcome = collect(client.attach(request_id, 0))
        if state == "killed":
            assert plan.advances, f"{name} was killed although no epoch came: {plan}"
            return
        if state == "lost":
            assert plan.hits_shims, f"{name} was lost although no shim was killed: {outcome.end}: {plan}"
            return
        assert (state, ran) == ("exited", 1), f"{name} is {state} and ran {ran} times: {plan}"
        assert outcome.end.exit_code == code, f"{name} ended with {outcome.end}, not {code}: {plan}"
        if not plan.advances:
            again = collect(client.as_driver(self._epoch).start(request_id, words))
            assert again.start.deduplicated, f"{name} was started again: {plan}"
            assert again.end == outcome.end, f"{name} has another end when asked again: {again.end}: {plan}"
        put_out = collect(client.attach(request_id, 0)).stdout
        own = (self.daemon.workspace / "own" / name).read_bytes()
        assert put_out == own, f"{name}: {len(put_out)} bytes of output, {len(own)} in its own file: {plan}"

    def _advance(self) -> None:
        client = self._client
        assert client is not None
        floor: int = client.call(client.space.GetInfo, GetInfoRequest()).floor.epoch
        self._epoch = floor + 1
        client.advance(self._epoch)

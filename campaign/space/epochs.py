"""Rounds of trees that resist: after AdvanceEpoch has answered, none of them is alive, and nobody else was touched.

Each tree writes into a file of its own every few milliseconds, so that life shows as growth, whatever /proc says; a stranger
beside it, in the same workspace's neighbourhood and with the same name, must go on.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from pathlib import Path

from campaign.space.leaks import marked, what_is_left

from durable_protocol.durable.space.v1.space_pb2 import GetInfoRequest
from durable_space import procfs
from durable_space.testing import LocalDaemon, until

BEAT = "while :; do echo . >> beat; sleep 0.01; done"
TREES = {
    "plain": "sleep 60",
    "double fork, new session, cleared environment": "(setsid env -i /bin/sh -c '(exec sleep 60) & sleep 60' &) ; sleep 60",
    "ignores signals": "trap '' TERM INT HUP QUIT USR1; while :; do sleep 0.1; done",
    "stopped": "sleep 60 & kill -STOP $!; sleep 60 & kill -STOP $!; sleep 60",
    "first process gone": "setsid sleep 60 & (setsid setsid sleep 60 &) ; exit 0",
    "forks on": "f() { while :; do (sleep 0.01) & wait; done; }; f & f & f & sleep 60",
    "bomb of 300": "i=0; while [ $i -lt 300 ]; do setsid sleep 60 & i=$((i+1)); done; wait",
    "writer without a name": "(env -i setsid /bin/sh -c 'while :; do echo . >> beat; sleep 0.01; done' &) ; sleep 60",
}


class EpochRounds:
    """Some rounds on one data folder."""

    def __init__(self, folder: Path, mechanism: str, seed: int) -> None:
        self.daemon = LocalDaemon(folder, "--kill-mechanism", mechanism)
        self._chance = random.Random(seed)

    def run(self, rounds: int, seen: Counter[str]) -> None:
        """AssertionError: something lived on, or a stranger did not."""
        client = self.daemon.start()
        stranger = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        try:
            for epoch in range(1, rounds + 1):
                client.advance(epoch * 2)
                self._round(epoch * 2, seen)
            assert stranger.poll() is None, "a stranger was ended"
        finally:
            stranger.kill()
            stranger.wait()
        self.daemon.stop()
        left = what_is_left(self.daemon)
        assert not left, f"left behind: {left}"

    def _round(self, epoch: int, seen: Counter[str]) -> None:
        client = self.daemon.client()
        driver = client.as_driver(epoch)
        names = self._chance.sample(list(TREES), self._chance.randint(1, 3))
        beat = self.daemon.workspace / "beat"
        beat.unlink(missing_ok=True)
        first = client.call(client.space.GetInfo, GetInfoRequest()).ledger_seq + 1
        for place, name in enumerate(names):
            driver.start(f"campaign/{epoch}:{place}:0@{epoch}", f"({BEAT}) & {TREES[name]}")
            seen[name] += 1
        until(beat.exists)
        time.sleep(self._chance.random() * 0.2)
        processes = procfs.table()
        shims = [self.daemon.shim(seq) for seq in range(first, first + len(names))]
        victims = {pid: processes[pid].start for pid in procfs.descendants(processes, shims) if processes[pid].alive}
        client.advance(epoch + 1)
        size = beat.stat().st_size
        alive = [pid for pid, start in victims.items() if procfs.is_alive(pid, start)]
        assert not alive, f"alive after AdvanceEpoch: {alive}: {names}"
        alive = marked(self.daemon.announced["instance"])
        assert not alive, f"marked and alive after AdvanceEpoch: {alive}: {names}"
        time.sleep(0.03)
        assert beat.stat().st_size == size, f"somebody still writes after AdvanceEpoch: {names}"
        client.channel.close()

"""Commands that end, conditions that come true, and daemons that can be found again after their starter was killed.

A daemon's record is written by the daemon's own process before it becomes the daemon, so there is no moment in which
it runs unrecorded, and it holds the start time beside the pid, so that a reused pid is never taken for it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from durable_testbed import cgroups
from durable_testbed.errors import BedError

# $1 is the record, then come the cgroup.procs files to enter, then `--` and the command.
ENTER = (
    'read -r stat < /proc/$$/stat && echo "$stat" > "$1" || exit 70; shift; '
    'while [ "$1" != -- ]; do echo $$ > "$1" || exit 71; shift; done; shift; exec "$@"'
)


def say(text: str) -> None:
    """Tell the person who waits what is going on."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def call(
    *argv: str | Path,
    check: bool = True,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 300,
) -> str:
    """Run a command and give back its standard output; BedError with the end of its error output if it fails."""
    command = [str(word) for word in argv]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise BedError(f"{' '.join(command)}: no end after {timeout_seconds:g} s") from None
    if check and done.returncode:
        raise BedError(f"{' '.join(command)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def wait_for(what: str, seconds: float, test: Callable[[], object], pause_seconds: float = 0.1) -> None:
    """Poll until `test` is true; BedError naming `what` when `seconds` are over."""
    deadline = time.monotonic() + seconds
    while not test():
        if time.monotonic() > deadline:
            raise BedError(f"{what}: not so after {seconds:g} s")
        time.sleep(pause_seconds)


def started_at(pid: int) -> str | None:
    """The start time of a live process in clock ticks since boot; None if it is gone, or a zombie not yet reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class Daemons:
    """The daemons of one run folder, by name: `parts/` has their commands and records, `logs/` their output.

    `prefix` is put before each command (to enter a namespace). Another process may open the same folder later, to
    restart or to end what this one started.
    """

    def __init__(self, folder: Path, prefix: Sequence[str] = (), path: str = os.defpath):
        self.folder = folder
        self.logs = folder / "logs"
        self._parts = folder / "parts"
        self._prefix = list(prefix)
        self._path = path
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def names(self) -> list[str]:
        """All daemons that were ever started here, by name."""
        return sorted(file.stem for file in self._parts.glob("*.json"))

    def start(self, name: str, *argv: str | Path, cgroup: str = "") -> None:
        """Start a daemon, in `cgroup` if one is named, and remember it."""
        self._parts.mkdir(exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        fresh = self._parts / f"{name}.new"
        fresh.write_text(json.dumps({"argv": [str(word) for word in argv], "cgroup": cgroup}))
        fresh.replace(self._parts / f"{name}.json")
        self.start_again(name)

    def start_again(self, name: str) -> None:
        """Start a daemon that has ended, with the command and the cgroup it had."""
        self.known(name)
        part = json.loads((self._parts / f"{name}.json").read_text())
        record = self._record(name)
        record.unlink(missing_ok=True)
        if name in self._children:
            self._children.pop(name).wait()
        enter = [str(file) for file in cgroups.make(part["cgroup"])] if part["cgroup"] else []
        with open(self.logs / f"{name}.log", "ab") as log:
            child = subprocess.Popen(
                ["sh", "-c", ENTER, "sh", str(record), *enter, "--", *self._prefix, *part["argv"]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                env={"PATH": self._path, "HOME": str(self.folder)},
            )
        self._children[name] = child
        wait_for(f"{name} is recorded", 10, lambda: self.pid(name) or child.poll() is not None, 0.005)

    def known(self, name: str) -> None:
        """BedError with the names there are, if there is no daemon `name`."""
        if not (self._parts / f"{name}.json").exists():
            raise BedError(f"no part {name}: there are {', '.join(self.names()) or 'none'}")

    def pid(self, name: str) -> int | None:
        """The daemon's pid while it lives."""
        if name in self._children:
            self._children[name].poll()  # reaps
        try:
            fields = self._record(name).read_text().split()
        except FileNotFoundError:
            return None
        # sh wrote its own /proc/PID/stat: pid first, start time 22nd (its name has no blanks)
        if len(fields) < 22 or started_at(int(fields[0])) != fields[21]:
            return None
        return int(fields[0])

    def must_run(self, *names: str) -> None:
        """BedError with the last line of the log, if one of these daemons (default: any) has ended."""
        for name in names or self.names():
            if self.pid(name) is None:
                raise BedError(f"{name} has ended: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """The end of a daemon's log."""
        log = self.logs / f"{name}.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return " | ".join(lines[-3:])[-600:]

    def stop(self, name: str, sign: signal.Signals = signal.SIGTERM, grace_seconds: float = 10) -> None:
        """End a daemon, with SIGKILL when `grace_seconds` are over; returns when it is gone."""
        pid = self.pid(name)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)
        with contextlib.suppress(BedError):
            wait_for(f"{name} ends", grace_seconds, lambda: self.pid(name) is None, 0.02)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_for(f"{name} ends", 10, lambda: self.pid(name) is None, 0.02)

    def reap(self) -> None:
        """Collect the exit status of daemons that ended, so that none stays a zombie."""
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=5)

    def _record(self, name: str) -> Path:
        return self._parts / f"{name}.stat"

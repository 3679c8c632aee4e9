"""The commands of a Space: facts from ledger and shim files, reservation, and everything that only looks."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_base.crash import crash_point
from durable_base.files import write_atomic
from durable_base.floor import Floor
from durable_space import layout, output
from durable_space.ledger import Ledger
from durable_space.refusal import Code, Reason, Refused, disk_full, limit
from durable_space.rows import CommandConfig, Row
from durable_space.states import Facts, State, judge

TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Claim:
    shim: int
    shim_start: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Started:
    pid: int
    start: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Ending:
    """`cua.env.v1.ProcessEnd`, and what was put out until then."""

    code: int | None = None
    signal: int = 0
    timed_out: bool = False
    error: str = ""
    at_ns: int = 0
    lost: bool = False
    output_bytes: int = 0
    output_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """One command at one moment. `end` is set exactly if the state is final."""

    row: Row
    state: State
    claim: Claim | None
    started: Started | None
    end: Ending | None
    shim_alive: bool

    @property
    def settled(self) -> bool:
        """Nothing more of the command itself will happen: final, and where it was killed, dead."""
        return self.state.final and not (self.state is State.KILLED and self.shim_alive)


class Commands:
    """Thread-safe; every method may block on the disk."""

    def __init__(
        self, data: Path, ledger: Ledger, boot_id: str, workspace: Path, *, keep_bytes: int, rows_max: int,
        open_max: int, free_bytes: int, make_cgroup: Callable[[int], str],
    ) -> None:  # fmt: skip
        self.data = data
        self.ledger = ledger
        self.boot_id = boot_id
        self._workspace = workspace
        self._keep_bytes = keep_bytes
        self._rows_max = rows_max
        self._open_max = open_max
        self._free_bytes = free_bytes
        self._make_cgroup = make_cgroup
        self._turns = [threading.Lock() for _ in range(64)]
        self._settled: dict[int, Observed] = {}  # what can't change any more, read once

    def folder(self, seq: int) -> str:
        return layout.command_folder(str(self.data), seq)

    def observe(self, row: Row) -> Observed:
        """Reads in the order that `states.Facts` asks for."""
        known = self._settled.get(row.seq)
        if known is not None and known.row == row:
            return known
        folder = self.folder(row.seq)
        same_boot = row.boot_id == self.boot_id
        claim = _read(folder, layout.CLAIM) if same_boot else None
        alive = claim is not None and lock_is_held(folder)
        started = _read(folder, layout.STARTED) if same_boot else None
        ended = _read(folder, layout.EXIT) if same_boot else None
        state = judge(
            Facts(
                killed=row.killed,
                never_started=row.never_started,
                stopping=row.stopping,
                same_boot=same_boot,
                claimed=claim is not None,
                shim_alive=alive,
                exit_recorded=ended is not None,
            )
        )
        observed = Observed(
            row,
            state,
            Claim(claim["shim"], claim["shim_start"], claim["at_ns"]) if claim else None,
            Started(started["pid"], started["start"], started["at_ns"]) if started else None,
            self._ending(row, state, ended) if state.final else None,
            alive,
        )
        if state.final and not alive:
            self._settled[row.seq] = observed
        return observed

    def find(self, *, tag: str = "", pid: int = 0) -> Observed:
        """The newest command of this tag or request id, or the one with this process id. Raise Refused: there is none."""
        for row in sorted(self.ledger.rows.values(), key=lambda row: -row.seq):
            if tag and tag in (row.tag, row.request_id):
                return self.observe(row)
            if pid:
                observed = self.observe(row)
                if observed.started is not None and observed.started.pid == pid:
                    return observed
        name, value = ("tag", tag) if tag else ("pid", str(pid))
        raise Refused(
            Code.NOT_FOUND,
            Reason.PROCESS_NOT_FOUND,
            f"no managed process with {name} {value}",
            metadata={name: value},
        )

    def all(self) -> list[Observed]:
        """Newest first."""
        return [self.observe(row) for row in sorted(self.ledger.rows.values(), key=lambda row: -row.seq)]

    def open(self) -> list[Observed]:
        """Not settled: something of them may live or start."""
        return [observed for observed in self.all() if not observed.settled or observed.shim_alive]

    def reserve(self, request_id: str, tag: str, config: CommandConfig, owner: Floor) -> tuple[Row, bool]:
        """(row, whether it is new). The row is synced. Raise Refused: another command under this id, or no room.

        Call it inside `gate.change`: no floor rises between the check of the caller and the row.
        """
        with self._turn(request_id):
            return self._reserve(request_id, tag, config, owner)

    def _reserve(self, request_id: str, tag: str, config: CommandConfig, owner: Floor) -> tuple[Row, bool]:
        known = self.ledger.by_request(request_id)
        if known is not None:
            if known.config.hash != config.hash:
                raise Refused(
                    Code.ALREADY_EXISTS,
                    Reason.UNSPECIFIED,
                    "this request id is known with another command: nothing was started; use a new id",
                    condition="CommandMismatch",
                    metadata={"request_id": request_id, "command_hash": known.config.hash},
                )
            if not known.never_started:
                return known, False
        self._need_room()
        row = self.ledger.reserve(request_id, tag, config, owner, self.boot_id, instead_of=known)
        crash_point("ledger.reserved_synced")
        return row, True

    def prepare(self, row: Row) -> None:
        """Write what the shim needs. Again and again is harmless; after a claim nobody reads it."""
        folder = self.folder(row.seq)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            config = row.config
            spec = {
                "instance": self.ledger.instance_id,
                "epoch": row.owner.epoch,
                "command": config.command,
                "args": config.args,
                "env": config.env,
                "cwd": os.path.join(self._workspace, os.path.expanduser(config.cwd)),
                "user": config.user,
                "timeout_ns": config.timeout_ns,
                "stdin": config.stdin,
                "keep_bytes": min(config.keep_bytes or self._keep_bytes, self._keep_bytes),
                "cgroup": self._make_cgroup(row.seq),
            }
            with self._turn(row.request_id):
                write_atomic(os.path.join(folder, layout.SPEC), json.dumps(spec).encode(), sync=False)
        except OSError as error:
            raise disk_full(f"{self.data}: {error.strerror}: free some space") from None

    def drop(self, seqs: list[int]) -> None:
        """Rows first: a row without its files would be a loss, files without their row are only swept at the next start."""
        self.ledger.forget(seqs)
        for seq in seqs:
            self._settled.pop(seq, None)
            shutil.rmtree(self.folder(seq), ignore_errors=True)

    def sweep(self) -> None:
        """At start: remove the folders of rows that are not in the ledger."""
        root = self.data / "commands"
        root.mkdir(mode=0o700, exist_ok=True)
        for entry in root.iterdir():
            if int(entry.name, 16) not in self.ledger.rows:
                shutil.rmtree(entry, ignore_errors=True)

    def _turn(self, request_id: str) -> threading.Lock:
        """Two requests with one id at the same moment make one row; those with other ids share a sync meanwhile."""
        return self._turns[hash(request_id) % len(self._turns)]

    def _need_room(self) -> None:
        if len(self.ledger.rows) >= self._rows_max:
            raise limit(f"the ledger holds {self._rows_max} rows: Forget finished conversations, or raise --rows-max")
        unsettled = [row for row in list(self.ledger.rows.values()) if row.seq not in self._settled]
        if len(unsettled) >= self._open_max:
            running = sum(1 for row in unsettled if not self.observe(row).state.final)
            if running >= self._open_max:
                raise limit(f"{running} commands are open: end some, or raise --open-commands-max")
        space = os.statvfs(self.data)
        if space.f_bavail * space.f_frsize < self._free_bytes:
            raise disk_full(
                f"{self.data}: less than {self._free_bytes >> 20} MiB free: free some space; nothing was started"
            )

    def _ending(self, row: Row, state: State, record: dict[str, Any] | None) -> Ending:
        record = record or {}
        _first, end = output.kept_range(os.path.join(self.folder(row.seq), layout.OUTPUT))
        put_out = record.get("output_bytes", end)
        digest = record.get("output_sha256", "")
        at_ns = record.get("at_ns", 0)
        if state is State.EXITED:
            return Ending(
                record.get("code"), record.get("signal", 0), record["timed_out"], record.get("error", ""), at_ns,
                output_bytes=put_out, output_sha256=digest,
            )  # fmt: skip
        if state is State.KILLED:
            # Rule 10: whatever the record says. As the real daemon words it: SIGKILL.
            return Ending(
                None,
                9,
                error=f"killed by epoch {row.killed_by}",
                at_ns=at_ns,
                output_bytes=put_out,
                output_sha256=digest,
            )
        text = "never started" if state is State.NEVER_STARTED else "it may have run in part"
        return Ending(error=text, lost=True, at_ns=at_ns, output_bytes=put_out, output_sha256=digest)


def lock_is_held(folder: str) -> bool:
    """Does the shim live? Probed by sharing for a moment, which its first `flock` waits out."""
    try:
        fd = os.open(os.path.join(folder, layout.LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _read(folder: str, name: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            value: dict[str, Any] = json.loads(file.read())
            return value
    except FileNotFoundError:
        return None

"""The commands of a Space: facts from ledger and shim files, reservation, and everything that only looks."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_base.files import free_bytes, write_atomic
from durable_base.floor import Floor
from durable_space import _record, layout, output
from durable_space.config import Limits
from durable_space.ledger import Ledger
from durable_space.refusal import Code, Reason, Refused, disk_full, limit
from durable_space.removals import Removals
from durable_space.rows import CommandConfig, Row
from durable_space.states import Facts, State, judge
from durable_space.workspace.places import make_root

TAIL_BYTES = 64 << 10
FOLDERS_AHEAD = 8
PACKET_BYTES = 32 << 10  # of a request to a shim; longer commands go through a file


@dataclass(frozen=True, slots=True)
class Claim:
    shim: int
    shim_start: int
    cgroup: str  # name of the group that it shares with its command, empty: none
    at_ns: int
    init: int = 0  # first process of the command's PID namespace, 0: it has none of its own
    init_start: int = 0


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
    done: bool  # the shim has vouched that nothing of the command is left

    @property
    def settled(self) -> bool:
        """Nothing more of the command itself will happen: final, and where it was killed, dead."""
        return self.state.final and not (self.state is State.KILLED and self.shim_alive)


class Commands:
    """Thread-safe; every method may block on the disk."""

    def __init__(self, data: Path, ledger: Ledger, boot_id: str, workspace: Path, limits: Limits) -> None:
        self.data = data
        self.ledger = ledger
        self.boot_id = boot_id
        self._workspace = workspace
        self._limits = limits
        self._settled: dict[int, Observed] = {}  # what can't change any more, read once
        self._unsettled = set(ledger.rows)  # all others
        self._made: set[int] = set()  # rows to come whose folders are there
        self._folders = threading.Lock()  # none is made for a row that is being dropped
        self._removals = Removals()

    def folder(self, seq: int) -> str:
        return layout.command_folder(str(self.data), seq)

    def observe(self, row: Row) -> Observed:
        """Reads in the order that `states.Facts` asks for."""
        known = self._settled.get(row.seq)
        if known is not None and known.row is row:
            return known
        same_boot = row.boot_id == self.boot_id
        record, alive = _record.read(self._record_of(row)) if same_boot else (_record.NOTHING, False)
        state = judge(
            Facts(
                killed=row.killed,
                never_started=row.never_started,
                stopping=row.stopping,
                same_boot=same_boot,
                claimed=record.claim is not None,
                shim_alive=alive,
                exit_recorded=record.exit is not None,
            )
        )
        claim = Claim(**record.claim) if record.claim else None
        started = Started(**record.started) if record.started else None
        observed = Observed(
            row,
            state,
            claim,
            started,
            self._ending(row, state, record.exit) if state.final else None,
            alive,
            record.done is not None,
        )
        if state.final and not alive:
            self._settled[row.seq] = observed
            self._unsettled.discard(row.seq)
        return observed

    def find(self, *, tag: str = "", pid: int = 0) -> Observed:
        """The newest command of this tag or request id, or the one with this process id. Raise Refused: there is none."""
        if tag and (row := self.ledger.by_tag(tag)) is not None:
            return self.observe(row)
        for observed in self.all() if pid else ():
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
        rows = [self.ledger.rows[seq] for seq in sorted(self._unsettled, reverse=True) if seq in self.ledger.rows]
        seen = [self.observe(row) for row in rows]
        return [observed for observed in seen if not observed.settled or observed.shim_alive]

    def known(self, request_id: str, config: CommandConfig) -> Row | None:
        """The row of this request id. Raise Refused: it is another command's."""
        row = self.ledger.by_request(request_id)
        if row is not None and row.config.hash != config.hash:
            raise Refused(
                Code.ALREADY_EXISTS,
                Reason.UNSPECIFIED,
                "this request id is known with another command: nothing was started; use a new id",
                condition="CommandMismatch",
                metadata={"request_id": request_id, "command_hash": row.config.hash},
            )
        return row

    def reserve(
        self, request_id: str, tag: str, config: CommandConfig, owner: Floor, then: Callable[[Row], None]
    ) -> Future[Row]:
        """A new row for an id that has none, or one that never started; `then` gets it in the ledger's thread once it is
        synced. Raise Refused: no room.

        Call it inside `gate.change`: no floor rises between the check of the caller and the row.
        """
        self._need_room()
        instead_of = self.ledger.by_request(request_id)

        def keep(row: Row) -> None:
            self._unsettled.add(row.seq)
            then(row)

        return self.ledger.reserve(request_id, tag, config, owner, self.boot_id, instead_of, keep)

    def prepare(self, row: Row) -> bytes:
        """Make the command's folder, and give the packet for its shim. Again and again is harmless. Raise Refused: no disk."""
        config, keep_bytes = row.config, self._limits.keep_output_bytes
        cwd = os.path.join(self._workspace, os.path.expanduser(config.cwd))
        if os.path.normpath(cwd) == str(self._workspace):
            with suppress(OSError):  # then the shim tells that there is no such folder
                make_root(os.fsencode(self._workspace))
        head = {"seq": row.seq, "instance": self.ledger.instance_id, "epoch": row.owner.epoch}
        body = {
            **config.values(),
            "cwd": cwd,
            "keep_bytes": min(config.keep_bytes or keep_bytes, keep_bytes),
            "term_seconds": self._limits.term_seconds,
        }
        packet = json.dumps({**head, **body}).encode()
        try:
            self._ensure_folder(row)
            if len(packet) > PACKET_BYTES:
                write_atomic(os.path.join(self.folder(row.seq), layout.SPEC), json.dumps(body).encode(), sync=False)
                packet = json.dumps(head).encode()
        except OSError as error:
            raise disk_full(f"{self.data}: {error.strerror}: free some space") from None
        return packet

    def make_ahead(self, seq: int) -> None:
        """Folder and record of a row to come, so that nobody waits for the file system when it comes. Unused ones are swept
        at the next start; a disk that is full is told when they are needed."""
        with suppress(OSError):
            self._make_folder(seq + FOLDERS_AHEAD)
            self._made.add(seq + FOLDERS_AHEAD)

    def _ensure_folder(self, row: Row) -> None:
        """Not for a row that was forgotten meanwhile: a shim that has an old request in its hands must find nothing."""
        with self._folders:
            if row.seq not in self.ledger.rows:
                raise forgotten()
            if row.seq in self._made:
                self._made.discard(row.seq)
            else:
                self._make_folder(row.seq)

    def _make_folder(self, seq: int) -> None:
        """With the record's disk block: a claim, or the mark that bars it, then finds room on a disk that has none."""
        folder = self.folder(seq)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        fd = os.open(os.path.join(folder, layout.RECORD), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _record.RECORD_BYTES)
        finally:
            os.close(fd)

    def bar(self, row: Row) -> bool:
        """Make it certain that no shim claims it any more. False: one has."""
        return _record.bar(self._record_of(row))

    def drop(self, seqs: Collection[int]) -> int:
        """Rows that were there and are gone; what is left of them in the data folder goes a little later."""
        gone = self.ledger.forget(seqs)
        for seq in seqs:
            self._settled.pop(seq, None)
            self._unsettled.discard(seq)
        with self._folders:  # whoever is just making one of them is done, and nobody makes one any more
            self._removals.add(self.folder(seq) for seq in seqs)
        return gone

    def sweep(self) -> None:
        """At start: remove the folders of rows that are not in the ledger. Those with a number that is still to come at once."""
        root = self.data / "commands"
        root.mkdir(mode=0o700, exist_ok=True)
        for entry in root.iterdir():
            seq = int(entry.name, 16)
            if seq > self.ledger.seq:
                shutil.rmtree(entry, ignore_errors=True)
            elif seq not in self.ledger.rows:
                self._removals.add([str(entry)])

    def _record_of(self, row: Row) -> str:
        return os.path.join(self.folder(row.seq), layout.RECORD)

    def _need_room(self) -> None:
        if len(self.ledger.rows) >= self._limits.rows:
            raise limit(
                f"the ledger holds {self._limits.rows} rows: Forget finished conversations, or raise --rows-max"
            )
        if len(self._unsettled) >= self._limits.open_commands:
            running = sum(1 for observed in self.open() if not observed.state.final)
            if running >= self._limits.open_commands:
                raise limit(f"{running} commands are open: end some, or raise --open-commands-max")
        if free_bytes(self.data) < self._limits.free_bytes:
            raise disk_full(
                f"{self.data}: less than {self._limits.free_bytes >> 20} MiB free: free some space; nothing was started"
            )

    def _ending(self, row: Row, state: State, record: dict[str, Any] | None) -> Ending:
        record = record or {}
        put_out = record.get("output_bytes", -1)
        if put_out < 0:
            put_out = output.kept_range(os.path.join(self.folder(row.seq), layout.OUTPUT))[1]
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


def forgotten() -> Refused:
    return Refused(Code.NOT_FOUND, Reason.PROCESS_NOT_FOUND, "the command was forgotten")

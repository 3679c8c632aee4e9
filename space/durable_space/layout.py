"""Where things lie in the data directory, shared by the daemon and its shims. Standard library alone, and import-light.

DIR/lock                    held exclusively by the one daemon that serves this directory
DIR/address                 the addresses really bound, one per line
DIR/ledger.db               rows, floor and identity (`ledger`): the truth, synced
DIR/floor, DIR/floor.lock   what a shim may still claim (`claims`): a projection of the ledger
DIR/scan-cache              hashes of files that were scanned (`workspace.hashes`); void in another boot
DIR/zygote                  process id and start time of the newest zygote
DIR/staging/                symlinks to temporary files, swept at start; blobs of an Apply
DIR/commands/<seq>/         one command (16 hex digits): `record` (`_record`), `out/` (`_sink`), `stdin` and `control` (pipes),
                            `inputs`, and `spec` where the command is too long for a packet
"""

from __future__ import annotations

import os

RECORD, SPEC, OUTPUT, STDIN, CONTROL, INPUTS = "record", "spec", "out", "stdin", "control", "inputs"
MARKER = "SPACE_COMMAND_ID"  # in the environment of every command: `<instance>/<seq>`, an audit and no mechanism


def command_folder(data: str, seq: int) -> str:
    return os.path.join(data, "commands", f"{seq:016x}")


def record_file(data: str, seq: int) -> str:
    return os.path.join(command_folder(data, seq), RECORD)


def floor_file(data: str) -> str:
    return os.path.join(data, "floor")


def floor_lock(data: str) -> str:
    return os.path.join(data, "floor.lock")


def notice_address(instance_id: str) -> str:
    """Abstract datagram socket: shims tell the daemon that something happened. Lost notices cost latency, nothing else."""
    return f"\0durable-space-{instance_id}"

"""Processes that should be gone: whatever was started for a home names it in its command, environment or folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

from durable_local.layout import Home


def leftovers(home: Home, *, wait_seconds: float) -> list[str]:
    """`pid command` of each process of this user that still belongs to `home` after at most `wait_seconds`."""
    deadline = time.monotonic() + wait_seconds
    while (found := _scan(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _scan(home: Home) -> list[str]:
    mark = os.fsencode(home.path.absolute())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            command = _read(entry / "cmdline")
            # An ended process that nobody has waited for has no command and holds nothing.
            if command and (mark in command or mark in _read(entry / "environ") or _works_in(entry, mark)):
                found.append(f"{entry.name} {command.replace(bytes(1), b' ').decode(errors='replace').strip()[:100]}")
    return found


def _works_in(entry: Path, mark: bytes) -> bool:
    try:
        return os.fsencode(os.readlink(entry / "cwd")).startswith(mark)
    except OSError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""

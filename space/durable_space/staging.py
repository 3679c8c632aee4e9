"""Temporary files beside their targets: a rename is atomic only within one folder's file system.

Guarantee: none is left behind. Each goes by the descriptor of the folder it was made in, however that is renamed meanwhile.
For a daemon that is killed, DIR/staging gets a symlink that points at it first; one that starts removes all that the links
name (but where the folder was renamed too). Names carry the instance, so a scan that meets one that is under way leaves it out.
Survives SIGKILL; after power loss a link may be missing, and the file stays until the folder goes.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Staging:
    def __init__(self, folder: Path, instance_id: str) -> None:
        self._folder = folder
        self._prefix = f".durable-{instance_id[:12]}-"
        folder.mkdir(mode=0o700, exist_ok=True)

    @property
    def prefix(self) -> bytes:
        """How every temporary name begins."""
        return self._prefix.encode()

    def sweep(self) -> None:
        """At start: what a killed daemon left."""
        for entry in self._folder.iterdir():
            if entry.is_symlink():
                target = os.readlink(os.fsencode(entry))
                if os.path.basename(target).startswith(self.prefix):
                    with suppress(OSError):
                        os.unlink(target)
                entry.unlink()
            elif entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)

    @contextmanager
    def beside(self, folder: bytes, fd: int) -> Iterator[bytes]:
        """A free name in `folder` (absolute), which is open as `fd`. When the block ends, nothing there has it any more."""
        token = secrets.token_hex(8)
        name = self.prefix + token.encode()
        link = os.path.join(os.fsencode(self._folder), token.encode())
        os.symlink(os.path.join(folder, name), link)
        try:
            yield name
        finally:
            with suppress(OSError):
                os.unlink(name, dir_fd=fd)
            os.unlink(link)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder for blobs, gone when the block ends."""
        made = self._folder / f"apply-{secrets.token_hex(8)}"
        made.mkdir(mode=0o700)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

"""Files and folders that the driver holds open, by a token that no other helper ever gave."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import NoReturn

from durable_base.handles import OpenFile, OpenFolder
from durable_space.files import FILE_OFFSET_MAX, Info, errors_name, info_of
from durable_space.refusal import Code, Reason, Refused, invalid, limit

OPENED_MAX = 256
READ_BYTES_MAX = 1 << 20
SCAN_BYTES_MAX = 16 << 20
PAGE_ENTRIES_MAX = 10_000


class Opened:
    def __init__(self) -> None:
        self._files: dict[str, tuple[str, OpenFile]] = {}
        self._folders: dict[str, tuple[str, OpenFolder]] = {}

    def open(self, path: str, *, folder: bool, no_follow: bool) -> tuple[str, Info]:
        """(token, what it is like)."""
        if len(self._files) + len(self._folders) >= OPENED_MAX:
            raise limit(f"{OPENED_MAX} files and folders are open: close some")
        token = secrets.token_hex(8)
        with errors_name(path):
            if folder:
                self._folders[token] = (path, OpenFolder(path))
                return token, info_of(path, self._folders[token][1].status())
            self._files[token] = (path, OpenFile(path, no_follow=no_follow))
            return token, info_of(path, self._files[token][1].status())

    def inspect(self, token: str) -> Info:
        path, held = self._files.get(token) or self._folders.get(token) or _gone()
        with errors_name(path):
            return info_of(path, held.status())

    def read(self, token: str, offset: int, length: int) -> bytes:
        path, file = self._files.get(token) or _gone()
        check_offset(path, offset)
        with errors_name(path):
            return file.read(offset, min(length, READ_BYTES_MAX))

    def scan(self, token: str, offset: int, lines_max: int) -> tuple[int, int]:
        """(offset, lines), as OpenFile.scan_lines."""
        path, file = self._files.get(token) or _gone()
        check_offset(path, offset)
        with errors_name(path):
            return file.scan_lines(offset, lines_max, SCAN_BYTES_MAX)

    def page(self, token: str, entries_max: int) -> Iterator[Info]:
        path, folder = self._folders.get(token) or _gone()
        if not 0 < entries_max <= PAGE_ENTRIES_MAX:
            raise invalid(f"a page has 1 to {PAGE_ENTRIES_MAX} entries", path=path)
        with errors_name(path):
            for name, status, link in folder.page(entries_max):
                yield info_of(os.path.join(path, name), status, link)

    def close(self, token: str) -> None:
        """One that is not open is fine."""
        for held in (self._files.pop(token, None), self._folders.pop(token, None)):
            if held is not None:
                held[1].close()


def check_offset(path: str, offset: int, length: int = READ_BYTES_MAX) -> None:
    if offset + length > FILE_OFFSET_MAX:
        raise invalid("offset and length reach beyond what a file can have", path=path)


def _gone() -> NoReturn:
    raise Refused(
        Code.NOT_FOUND, Reason.SESSION_NOT_FOUND, "nothing is open under this token: open it anew", condition="NotOpen"
    )

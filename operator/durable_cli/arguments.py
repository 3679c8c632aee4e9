"""What events leave out because they have no content: what a step's call does, why it failed, a driver's last words.

Read from the session's log, while a driver writes it, and from the driver's stderr. Only this layer looks into them.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from durable_cli.words import summary
from durable_local.layout import session_home

if TYPE_CHECKING:
    from durable_harness.inspect import LogReader

_STDERR_END = 4096  # bytes


class LogArguments:
    """Summaries of calls by session and step; "" where the log can't tell (yet)."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._known: dict[tuple[str, int], str] = {}
        self._damage: dict[str, str] = {}
        self._reasons: dict[tuple[str, int], str] = {}  # by session and entry

    def __call__(self, session: str, step: int) -> str:
        if (session, step) not in self._known:
            self._read(session)
        return self._known.get((session, step), "")

    def why(self, session: str, entry: int) -> str:
        """Why the call failed that has this entry as its result, in the words that the model was told."""
        if (session, entry) not in self._reasons:
            self._read(session)
        return self._reasons.get((session, entry), "")

    def last_words(self, session: str, epoch: int) -> str:
        """The last line that the driver of an epoch wrote to stderr; "" if there is none."""
        try:
            with open(session_home(self.state, session).drive(epoch) / "stderr", "rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - _STDERR_END, 0))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        # Indented lines are where it came from, not what it was.
        return next((line.strip() for line in reversed(text.splitlines()) if line[:1].strip()), "")

    def damage(self, session: str) -> str:
        """What is wrong with the log, in a few words; "" if it can be read, is not there yet, or is busy just now."""
        self._read(session)
        return self._damage.get(session, "")

    def _read(self, session: str) -> None:
        try:
            from durable_harness.errors import CorruptLogError
            from durable_harness.inspect import LogReader
        except ImportError:
            return  # the driver's extra is not installed here: steps go without their arguments
        path = session_home(self.state, session).log
        if not path.exists():
            return
        self._damage.pop(session, None)
        try:
            with LogReader.open(path) as reader:
                self._take(session, reader)
        except CorruptLogError as error:
            self._damage[session] = str(error).removeprefix(f"{path}: ")
        except sqlite3.DatabaseError as error:
            if not isinstance(error, sqlite3.OperationalError):
                self._damage[session] = str(error)
        except Exception:
            # A log that is just being made, or is busy, is no reason to stop watching: the next step asks again.
            return

    def _take(self, session: str, reader: LogReader) -> None:
        for step, call in enumerate(reader.tool_calls(), start=1):
            self._known[session, step] = summary(call.arguments)
        for entry in reader.entries():
            if entry.kind == "pi.tool-result" and entry.data is not None and entry.data["is_error"]:
                errors = (remark for remark in entry.data["diagnostics"] if remark["severity"] == "error")
                self._reasons[session, entry.id] = next((str(remark["message"]) for remark in errors), "")

"""A tool's output as the model gets it: bounded, in whole lines, followed by one block of diagnostics. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from durable_harness._json import scrub_text
from durable_harness.tools import Diagnostic

Keep = Literal["head", "tail"]
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")  # all but tab and newline


@dataclass(frozen=True, slots=True)
class Bounded:
    text: str
    dropped_bytes: int = 0
    dropped_lines: int = 0

    def diagnostic(self, keep: Keep) -> Diagnostic | None:
        if not self.dropped_bytes:
            return None
        end = "beginning" if keep == "head" else "end"
        return Diagnostic(
            "warning",
            "truncated",
            f"only the {end} is shown; {self.dropped_lines} lines, {self.dropped_bytes} bytes were left out",
        )


def clean(text: str) -> str:
    """Control characters other than tab and newline do not reach the log."""
    return _CONTROL.sub("", scrub_text(text))


def bound(text: str, bytes_max: int, lines_max: int, keep: Keep) -> Bounded:
    """At most so much, as whole lines from one end; a line that is too long by itself is cut between characters."""
    size = len(text.encode())
    lines = text.splitlines(keepends=True) if "\n" in text else [text]
    if size <= bytes_max and len(lines) <= lines_max:
        return Bounded(text)
    kept: list[str] = []
    left = bytes_max
    for line in lines if keep == "head" else reversed(lines):
        length = len(line.encode())
        if length > left or len(kept) == lines_max:
            break
        kept.append(line)
        left -= length
    if not kept and lines:
        kept.append(_cut(lines[0] if keep == "head" else lines[-1], bytes_max, keep))
    shown = "".join(kept if keep == "head" else reversed(kept))
    return Bounded(shown, size - len(shown.encode()), len(lines) - len(kept))


def _cut(line: str, bytes_max: int, keep: Keep) -> str:
    data = line.encode()
    data = data[:bytes_max] if keep == "head" else data[-bytes_max:]
    return data.decode("utf-8", "ignore")


class Window:
    """Live output as it comes, of which no more is kept than a result may hold."""

    def __init__(self, bytes_max: int, lines_max: int, keep: Keep) -> None:
        self._bytes_max = bytes_max
        self._lines_max = lines_max
        self._keep: Keep = keep
        self._state = Bounded("")

    def add(self, text: str) -> None:
        text = clean(text)
        state = self._state
        if self._keep == "head" and state.dropped_bytes:  # full: what follows is only counted
            self._state = Bounded(
                state.text, state.dropped_bytes + len(text.encode()), state.dropped_lines + text.count("\n")
            )
            return
        cut = bound(state.text + text, self._bytes_max, self._lines_max, self._keep)
        self._state = Bounded(
            cut.text, state.dropped_bytes + cut.dropped_bytes, state.dropped_lines + cut.dropped_lines
        )

    @property
    def state(self) -> Bounded:
        return self._state

    def diagnostic(self) -> Diagnostic | None:
        return self._state.diagnostic(self._keep)


def render(output: str, diagnostics: Iterable[Diagnostic]) -> str:
    """The content of the result's message."""
    block = "\n".join(f"- {item.severity} {item.code}: {clean(item.message)}" for item in diagnostics)
    if not block:
        return output
    gap = "" if not output else "\n" if output.endswith("\n") else "\n\n"
    return f"{output}{gap}[diagnostics]\n{block}"

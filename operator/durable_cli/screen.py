"""Where a run is watched: lines on a terminal above a live status, plain lines elsewhere, or one document per event."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Protocol

import click
import yaml
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from durable_cli.arguments import LogArguments
from durable_cli.story import Line, Story
from durable_local.events import Event

_TONES = {"good": "green", "bad": "yellow", "quiet": "dim", "plain": ""}
_HEAD_WIDTH, _TOOK_WIDTH, _CLOCK_WIDTH = 9, 11, 5
_TEXT_MIN, _TEXT_MAX = 24, 64
_PLAIN_COLUMNS = 80
_TICK_SECONDS = 0.25


class Screen(Protocol):
    def show(self, event: Event) -> None: ...

    def say(self, text: str) -> None:
        """A line of the end: where things are, what the answer is. Not part of a stream of events."""
        ...


class _Lines:
    """Plain lines; a line is written whole, at once."""

    def __init__(self, story: Story, width: int) -> None:
        self._story = story
        self._width = width
        self._began: float | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ticks = threading.Thread(target=self._tick, daemon=True)

    def start(self) -> None:
        self._ticks.start()

    def stop(self) -> None:
        self._ended.set()

    def show(self, event: Event) -> None:
        with self._lock:
            for line in self.lines(event):
                click.echo(self.format(line))

    def _tick(self) -> None:
        """Lines that no event brings: one that was held back for what might follow it, a step that takes long."""
        # Who watched may have gone: the next event tells the command so, here it is no news.
        with contextlib.suppress(OSError, ValueError):
            while not self._ended.wait(_TICK_SECONDS):
                with self._lock:
                    now = int(time.time() * 1000)
                    for line in (*self._story.waiting(now), *self._story.long_steps(now)):
                        click.echo(self.format(line))

    def say(self, text: str) -> None:
        click.echo(text)

    def lines(self, event: Event) -> list[Line]:
        self._began = self._began or event.time
        return self._story.tell(event)

    def format(self, line: Line) -> str:
        return self._left(line) + self._right(line)

    def columns(self) -> int:
        """How wide a line may be."""
        return _PLAIN_COLUMNS

    def _left(self, line: Line) -> str:
        """Only what a call does is cut where it is too long; why something happened is told whole."""
        fixed = self._width + 2 + _HEAD_WIDTH + 1 + _TOOK_WIDTH + 2 + _CLOCK_WIDTH
        width = min(max(self.columns() - fixed, _TEXT_MIN), _TEXT_MAX)
        text = line.text
        if line.head.startswith("step ") and len(text) > width:
            text = text[: width - 4].rstrip() + " ..."
        text = f"{line.head:<{_HEAD_WIDTH}} {text}" if line.head else text
        # Where there is no duration, the text has its place too.
        width += _HEAD_WIDTH + 1 + (0 if line.took else _TOOK_WIDTH)
        return f"{line.session:<{self._width}}  {text:<{width}}"

    def _right(self, line: Line) -> str:
        took = f"{line.took:>{_TOOK_WIDTH}}" if line.took else ""
        return f"{took}  {self.clock(line)}"

    def clock(self, line: Line) -> str:
        seconds = max(int((line.at_ms - (self._began or line.at_ms)) / 1000), 0)
        return f"{seconds // 60:02}:{seconds % 60:02}"


class _Terminal(_Lines):
    """The same lines in colour, above a line that says what goes on just now."""

    def __init__(self, story: Story, width: int) -> None:
        super().__init__(story, width)
        self._console = Console(highlight=False)
        self._spinner = Spinner("dots", style="dim")
        self._live = Live(console=self._console, get_renderable=self._status, refresh_per_second=8, transient=True)

    def columns(self) -> int:
        return self._console.width

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        for line in self.lines(event):
            self._print(line)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _print(self, line: Line) -> None:
        left, tone = self._left(line), _TONES[line.tone]
        text = Text(left, style=tone)
        text.stylize("bold", 0, len(line.session))
        text.append(self._right(line), style="dim")
        self._console.print(text, soft_wrap=True)

    def _status(self) -> Spinner | Text:
        now = int(time.time() * 1000)
        for line in self._story.waiting(now):
            self._print(line)
        running = self._story.running(now)
        if not running:
            return Text("")
        self._spinner.update(text=Text(running, style="dim"))
        return self._spinner


class _Stream:
    """One document per event, for programs."""

    def __init__(self, output: str) -> None:
        self._output = output

    def show(self, event: Event) -> None:
        text = event.to_json()
        if self._output == "yaml":
            text = yaml.safe_dump(json.loads(text), explicit_start=True, sort_keys=False, allow_unicode=True).rstrip()
        click.echo(text)
        sys.stdout.flush()

    def say(self, text: str) -> None:
        pass


@contextlib.contextmanager
def screen(output: str, log: LogArguments, sessions: list[str]) -> Iterator[Screen]:
    """The right one for `output` (text, json, yaml) and for what stdout is."""
    if output != "text":
        yield _Stream(output)
        return
    story, width = Story(log, log.last_words, log.why, log.state), max(map(len, sessions), default=0)
    if not sys.stdout.isatty():
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    shown = _Terminal(story, width) if sys.stdout.isatty() else _Lines(story, width)
    shown.start()
    try:
        yield shown
    finally:
        shown.stop()

"""Turn events into lines for a person: what happened, in which step, how long it took. Pure but for the look-up of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from durable_cli import words
from durable_local.events import Event
from durable_local.layout import DEFAULT_STATE, command

_QUIET = frozenset({"Driving", "Starting", "BackingOff", "Pending", "WaitingForSpace", "Finished", "Stopping"})
_NO_CRASH = frozenset({"Completed", "Stopped", "Deleted"})
LONG_SECONDS = 3.0  # that a step runs before a line tells of it
HOLD_SECONDS = 1.0  # that a driver's start waits to be told with what it recovered

# (session, step) -> what the call does, in a few words; "" if the log can't tell.
Arguments = Callable[[str, int], str]
# (session, epoch) -> the last line of what its driver wrote to stderr, or "".
LastWords = Callable[[str, int], str]
# (session, entry of a result) -> why the call failed, as the model was told; "" if the log can't tell.
Why = Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class Line:
    """`head` is `epoch 2` or `step 3`, `took` a duration; `tone` is good, bad, quiet or plain."""

    session: str
    head: str
    text: str
    took: str = ""
    at_ms: int = 0
    tone: str = "plain"


@dataclass(slots=True)
class _Session:
    steps: dict[str, int] = field(default_factory=dict)  # call -> step
    finished: set[int] = field(default_factory=set)
    held: Line | None = None  # "driver started" waits a moment for the recovery that follows it
    seen: set[tuple[object, ...]] = field(default_factory=set)
    open: dict[int, Event] = field(default_factory=dict)  # steps that run now, by what told of their start
    shown: set[tuple[int, int]] = field(default_factory=set)  # (epoch, step) that were told to run
    over: int = 0  # newest epoch of a session that was finished before this run: what its drives told is no news
    doing: str = ""  # while no step runs
    since_ms: int = 0

    def does(self, what: str, since_ms: int) -> None:
        self.doing, self.since_ms = what, since_ms

    def rests(self) -> None:
        self.open.clear()
        self.does("", 0)


class Story:
    def __init__(
        self,
        arguments: Arguments,
        last_words: LastWords = lambda session, epoch: "",
        why: Why = lambda session, entry: "",
        state: Path = DEFAULT_STATE,
    ) -> None:
        """`state`: the folder that commands to type next must name."""
        self._state = state
        self._arguments = arguments
        self._last_words = last_words
        self._why = why
        self._sessions: dict[str, _Session] = {}

    def tell(self, event: Event) -> list[Line]:
        """The lines that this event adds. An event that was told before (a coordinator started again) adds none."""
        session = self._sessions.setdefault(event.session, _Session())
        if event.name == "session.opened" and event.fields.get("finished"):
            session.over = event.epoch
        if event.name not in ("session.opened", "session.ready", "session.finished"):
            if 0 < event.epoch <= session.over:
                return []
            fields = event.fields
            key = (event.time, event.epoch, event.name, *map(fields.get, ("step", "call", "entry")))
            if key in session.seen:
                return []
            session.seen.add(key)
        lines = list(self._lines(event, session))
        if session.held is not None and lines:
            lines.insert(0, session.held)
            session.held = None
        return lines

    def waiting(self, now_ms: int) -> list[Line]:
        """Lines that have waited long enough for a second half (`HOLD_SECONDS`)."""
        old = now_ms - HOLD_SECONDS * 1000
        due = [session for session in self._sessions.values() if session.held and session.held.at_ms < old]
        lines = [session.held for session in due if session.held is not None]
        for session in due:
            session.held = None
        return lines

    def long_steps(self, now_ms: int) -> list[Line]:
        """A line for each step that has run for `LONG_SECONDS`, once: where no status line shows it."""
        lines = []
        for name, session in self._sessions.items():
            for step, event in session.open.items():
                if event.time <= now_ms - LONG_SECONDS * 1000 and (event.epoch, step) not in session.shown:
                    session.shown.add((event.epoch, step))
                    lines.append(Line(name, f"step {step}", f"runs: {self._call(event)}", "", now_ms, "quiet"))
        return lines

    def running(self, now_ms: int) -> str:
        """What goes on at this moment, for a status line; since when, once that is long."""
        long = now_ms - LONG_SECONDS * 1000
        found = (
            (name, self.doing(name, now_ms if self._since(session) <= long else None))
            for name, session in self._sessions.items()
        )
        return "   ".join(f"{name}: {doing}" for name, doing in found if doing)

    def doing(self, name: str, now_ms: int | None = None) -> str:
        """The same of one session; with the time since when it goes on, if it is told what the time is."""
        session = self._sessions.get(name, _Session())
        steps = (f"step {step} {self._call(event)}" for step, event in session.open.items())
        doing = ", ".join(steps) if session.open else session.doing
        if not doing or now_ms is None:
            return doing
        return f"{doing} for {words.duration(max(now_ms - self._since(session), 0) / 1000)}"

    def _since(self, session: _Session) -> int:
        return min((event.time for event in session.open.values()), default=session.since_ms)

    def _lines(self, event: Event, session: _Session) -> Iterator[Line]:
        fields, epoch = event.fields, f"epoch {event.epoch}"

        def line(head: str, text: str, tone: str = "plain", took: str = "") -> Line:
            return Line(event.session, head, text, took, event.time, tone)

        match event.name:
            case "driver.started":
                session.does("the driver starts", event.time)
                if fields.get("resumed"):
                    session.held = line(epoch, "driver started")
                else:
                    yield line(epoch, "driver started")
            case "recovery":
                text = self._recovery(event, session)
                held, session.held = session.held, None
                yield line(epoch, f"{held.text}; {text}" if held else text, "good")
            case "space.advanced":
                session.does("the model answers", event.time)
            case "model.failed":
                again = fields.get("seconds")
                then = "" if again is None else f"; asked again in {again:g} s"
                session.does("" if again is None else "waits to ask the model again", event.time)
                yield line("model", f"{words.model_error(event)} (attempt {fields['attempt']}){then}", "bad")
            case "model.awaited":
                session.does("waits to ask the model again", event.time)
                text = f"failed before; asked again in {fields['seconds']:g} s (attempt {fields['attempt']})"
                yield line("model", text, "quiet")
            case "step.started":
                step = int(fields["step"])
                session.steps[str(fields.get("call"))] = step
                session.open[step] = event
            case "step.finished":
                step = int(fields["step"])
                session.open.pop(step, None)
                session.does("the model answers", event.time)
                if step not in session.finished:
                    session.finished.add(step)
                    took = words.duration(float(fields.get("seconds", 0)))
                    if fields.get("isError"):
                        # In front of the call and in words: it is never cut off, and needs no colour.
                        yield line(f"step {step}", f"{words.failed(event)}: {self._call(event)}", "bad", took)
                        yield from self._reason(event, line)
                    else:
                        yield line(f"step {step}", self._call(event), "plain", took)
            case "call.refused":
                yield line("", "failed: a call of a tool that the agent does not have", "bad")
                yield from self._reason(event, line)
            case "driver.gone":
                session.rests()
                yield line("", self._gone(event), "quiet" if fields["reason"] in _NO_CRASH else "bad")
            case "space.gone" if fields.get("listened", True) and not (fields.get("code") or fields.get("signal")):
                yield line("", "Space stopped", "quiet")  # asked to: it has ended its commands
            case "space.gone" if fields.get("listened", True):
                yield line("", f"Space gone ({words.ended(event)}); its commands run on", "bad")
            case "space.gone":
                yield line(
                    "", f"Space does not start ({words.ended(event)}): {fields.get('detail', '')}".rstrip(": "), "bad"
                )
            case "space.started" if int(fields.get("run", 1)) > 1:
                yield line("", "Space started again", "quiet")
            case "space.placed" if int(fields["generation"]) > 1:
                yield line("", f"Space placed again (generation {fields['generation']})", "bad")
            case "chaos.killed":
                yield line("", f"chaos: {fields['target']} killed {fields['moment']}", "bad")
            case "chaos.restarted":
                yield line("", "coordinator started again", "quiet")
            case "session.opened" if fields.get("retry"):
                yield line(epoch, f"had failed ({fields['reason']}); is tried again, on the same log", "quiet")
            case "session.opened" if fields.get("finished") and fields.get("reason"):
                again = command(self._state, "retry", event.session)
                yield line("", f"has failed before ({fields['reason']}); to try again: {again}", "bad")
            case "session.opened" if fields.get("finished"):
                anew = command(self._state, "delete", event.session)
                yield line("", f"was finished before; to begin anew: {anew}", "quiet")
            case "session.opened" if fields.get("again"):
                yield line(epoch, "goes on where it stopped", "quiet")
            case "session.ready" if fields["reason"] not in _QUIET:
                yield line("", f"{fields['reason']}: {fields['message']}".rstrip(": "), "bad")
            case "session.finished":
                session.rests()
                yield from self._finished(event)

    def _finished(self, event: Event) -> Iterator[Line]:
        fields = event.fields
        recoveries = sum(int(count) for count in fields.get("recoveries", {}).values())
        counts = [
            words.count(int(fields.get("steps", 0)), "step"),
            words.count(int(fields.get("drives", event.epoch)), "epoch"),
        ]
        counts.append(words.count(recoveries, "recovery", "recoveries"))
        if fields["succeeded"]:
            yield Line(event.session, "Succeeded", ", ".join(counts), "", event.time, "good")
        else:
            yield Line(event.session, "Failed", ", ".join(counts), "", event.time, "bad")  # why is told on stderr

    def _recovery(self, event: Event, session: _Session) -> str:
        kind = str(event.fields.get("kind"))
        step = event.fields.get("step") or session.steps.get(str(event.fields.get("call")))
        if kind == "mode":
            return f"mode is now {event.fields.get('mode')} ({event.fields.get('reason')})"
        return words.recovered(kind, step)

    def _gone(self, event: Event) -> str:
        fields = event.fields
        if fields["reason"] == "Completed":
            return "driver ended"
        if fields["reason"] in _NO_CRASH and not fields.get("signal"):
            return "driver stopped"
        why = words.ended(event) if fields["reason"] == "Killed" else f"{fields['reason']}, {words.ended(event)}"
        then = f"; next attempt in {fields['seconds']:g} s" if fields.get("seconds") else ""
        # One that was killed had no time for last words. These may be long, and hold whatever a driver of the user's own prints.
        last = "" if fields.get("signal") else words.cut(self._last_words(event.session, event.epoch))
        return f"driver gone ({why}){then}{': ' if last else ''}{last}"

    def _reason(self, event: Event, line: Callable[[str, str], Line]) -> Iterator[Line]:
        """What the model was told of a failure, where that says more than the step's own line."""
        told = (
            ""
            if event.fields.get("error") == "exit_code"
            else self._why(event.session, int(event.fields.get("entry", 0)))
        )
        if told:
            yield line("  why", words.cut(" ".join(told.split())))

    def _call(self, event: Event) -> str:
        tool, summary = str(event.fields.get("tool", "")), self._arguments(event.session, int(event.fields["step"]))
        return f"{tool} {summary}".strip()

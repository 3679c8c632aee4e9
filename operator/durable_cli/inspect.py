"""`durable get` and `durable describe`: what the state folder tells. Nothing is changed, no coordinator is needed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import yaml

from durable_base.errors import UsageError
from durable_cli.arguments import LogArguments
from durable_cli.options import OUTPUT, STATE
from durable_cli.standing import Standing, State, standing
from durable_cli.story import Line, Story
from durable_cli.words import duration
from durable_local import history
from durable_local.layout import DEFAULT_STATE, Home, StateError, command, session_home
from durable_local.process import ChildFacts, Life

_AT_WORK = frozenset({State.RUNNING, State.UNATTENDED, State.SUSPENDING})
_COLUMNS = ("NAME", "STATUS", "EPOCH", "ATTEMPTS", "SPACE", "AGE")


@click.command
@click.argument("names", nargs=-1)
@STATE
@OUTPUT
def get(names: tuple[str, ...], state: Path, output: str) -> int:
    """List sessions: those named, or all. One that can't be read is told beside the others, and makes the exit code 1.

    \b
    Example: durable get
             durable get fix-bug -o yaml
    """
    unreadable: list[Exception] = []
    if names:
        objects = [history.as_object(history.find(state, name)[1]) for name in names]
    elif state != DEFAULT_STATE and not state.exists():
        raise UsageError(f"{state}: there is no such folder. Name one that `durable run` made with --state DIR.")
    else:
        objects, unreadable = _all(state)
    if output != "text":
        _dump(objects[0] if len(names) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}, output)
    elif objects:
        _table([_COLUMNS, *(_row(state, found) for found in objects)])
    elif not unreadable:
        click.echo(f"no sessions in {state}", err=True)
    for error in unreadable:
        click.echo(f"error: {error}", err=True)
    return 1 if unreadable else 0


def _all(state: Path) -> tuple[list[dict[str, Any]], list[Exception]]:
    """The sessions of the folder, and why others that seem to be there can't be told of."""
    objects, unreadable = [], list[Exception]()
    for name in history.sessions(state):
        try:
            objects.append(history.as_object(history.find(state, name)[1]))
        except (UsageError, StateError) as error:
            unreadable.append(error)
    return objects, unreadable


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


@click.command
@click.argument("name")
@STATE
@OUTPUT
def describe(name: str, state: Path, output: str) -> None:
    """Tell the story of a session: its drives, recoveries and steps, and what to do next if it failed.

    \b
    Example: durable describe fix-bug
    """
    home, record = history.find(state, name)
    found = history.as_object(record)
    if output != "text":
        _dump(found, output)
        return
    status = found["status"]
    now = standing(home, found)
    click.echo(f"Session    {name}")
    click.echo(f"Status     {now}{_because(now)}")
    story, lines = _told(state, home, name)
    if now.state in _AT_WORK and (doing := story.doing(name, int(time.time() * 1000))):
        click.echo(f"Now        {doing}")
    if status.get("answer"):
        click.echo(f"Answer     {status['answer']}")
    place = history.space_of(state, record)
    damage = LogArguments(state).damage(name)
    click.echo(f"Log        {home.log}{' (DAMAGED)' if damage else ''}\nWorkspace  {place.workspace}")
    click.echo(f"Space      generation {status.get('space', {}).get('generation', 0)}, {_daemon_runs(place)}")
    click.echo("\nDrives")
    for drive in history.drives(home):
        click.echo(f"  epoch {drive.epoch:<4} {_when(drive.child)}  {_end(drive)}")
    click.echo("\nSteps")
    for epoch, line in lines:
        click.echo(f"  {line.head or f'epoch {epoch}':<9} {line.text:<54} {line.took:>11}".rstrip())
    _advise(name, state, home, now)
    if damage:
        click.echo(
            f"warning: {home.log}: the log can't be read ({damage}): the steps above are without what they did, and no driver "
            "can go on with this session. Put a copy of the file in its place, or delete the session and run it anew.",
            err=True,
        )


def _told(state: Path, home: Home, name: str) -> tuple[Story, list[tuple[int, Line]]]:
    """All that its drivers told so far, with the epoch of each line."""
    log = LogArguments(state)
    story = Story(log, log.last_words, log.why, log.state)
    return story, [(event.epoch, line) for event in history.Follower(home, name).news() for line in story.tell(event)]


def _advise(name: str, state: Path, home: Home, now: Standing) -> None:
    last = home.drive(max(home.epochs_seen(), default=0)) / "stderr"
    run, retry = command(state, "run", "MANIFEST"), command(state, "retry", name)
    next_step = {
        State.FAILED: (
            f"why is in {last}. What is around the session (a variable of the environment, a key, a model's server, the "
            f"disk, files of the workspace, spec.driver, what a ConfigMap holds) can be mended: then `{retry}` and "
            f"`{run}`, on the same log. Its input, agent, Space and mode never change: to change these, "
            f"`{command(state, 'delete', name)}` and run it anew, or give it another metadata.name."
        ),
        State.SUSPENDED: f"`{command(state, 'resume', name)}`, then `{run}`.",
        State.SUSPENDING: "wait until its driver has reached a durable point.",
        State.UNATTENDED: f"its driver runs on by itself; `{run}` takes it up.",
        State.STOPPED: f"no process of it runs; go on with: `{run}`.",
    }.get(now.state)
    if next_step:
        click.echo(f"\nNext: {next_step}")


def _daemon_runs(home: Home) -> str:
    runs = sum(len(home.runs(generation)) for generation in home.generations())
    return f"{runs} run{'' if runs == 1 else 's'} of its daemon"


def _row(state: Path, found: dict[str, Any]) -> tuple[str, ...]:
    name = found["metadata"]["name"]
    home = session_home(state, name)
    now = standing(home, found)
    if now.state in _AT_WORK and not now.reason:
        now = replace(now, reason=_told(state, home, name)[0].doing(name))
    status = found["status"]
    space = status.get("space", {})
    created = datetime.fromisoformat(found["metadata"]["creationTimestamp"]).timestamp()
    return (
        name,
        str(now),
        str(status.get("epoch", 0)),
        str(status.get("attempts", 0)),
        f"{space['name']} (g{space.get('generation', 0)})" if space.get("name") else "-",
        duration(time.time() - created),
    )


def _because(now: Standing) -> str:
    return f": {now.message}" if now.message and now.message != now.reason else ""


def _when(child: ChildFacts) -> str:
    if child.started_at is None:
        return "not started"
    began = datetime.fromtimestamp(child.started_at).strftime("%H:%M:%S")
    return f"{began} for {duration((child.ended_at or time.time()) - child.started_at):<9}"


def _end(drive: history.PastDrive) -> str:
    if drive.child.life is Life.RUNNING:
        return "runs"
    how = f"killed by signal {drive.child.signal}" if drive.child.signal else f"exit code {drive.child.code}"
    how = how if drive.child.life is Life.ENDED else "nobody saw how it ended"
    if drive.report is None:
        return how
    told = ": ".join(part for part in (drive.report.reason, drive.report.message) if part)
    return f"{how}, {drive.report.outcome}{f' ({told})' if told else ''}"


def _dump(value: Any, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip())

"""`kubectl durable describe` and `logs`: a session's story from its objects, its events and what its drivers wrote.

What a step's call does is in the log alone, on the session's volume: here a step has its tool, its duration and its verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import click

from durable_base.errors import UsageError
from durable_cli import cluster_read as cluster
from durable_cli.cluster_read import Drive, Json, Options
from durable_cli.story import Line, Story
from durable_local.events import Event


def logs(name: str, options: Options, *, follow: bool, raw: bool) -> int:
    """Print the steps of all drives whose pods are still there; `raw`: what the newest driver wrote, as it is."""
    found = cluster.session(options, name)
    drives = cluster.drives(options, name)
    if not drives:
        raise UsageError(f"{name} has no driver now: {standing(found)}")
    newest = drives[-1]
    if raw and newest.started:
        return cluster.kubectl(*options, "logs", newest.pod, "-c", "driver", *(["-f"] if follow else []))
    shown = Shown()
    for drive in drives if not raw else ():
        if drive.started:
            shown.show(cluster.told(name, drive, cluster.written(options, drive, follow=follow and drive == newest)))
    if not newest.started:
        click.echo(f"{newest.pod} has not started: {standing(found)}", err=True)
        return 1
    return 0


def describe(name: str, options: Options) -> int:
    found = cluster.session(options, name)
    status, namespace = found.get("status", {}), found["metadata"]["namespace"]
    click.echo(f"Session    {namespace}/{name}")
    click.echo(f"Status     {standing(found)}")
    if status.get("answer"):
        click.echo(f"Answer     {status['answer']}{' ...' if status.get('answerTruncated') else ''}")
    log = status.get("log", {})
    click.echo(f"Log        {log.get('storage', 'none yet')} {log.get('location', '')}".rstrip())
    click.echo(f"Space      {_space(found, options)}")
    drives = cluster.drives(options, name)
    count = status.get("attempts", 0)
    click.echo(f"Drives     {count}, {status.get('countedAttempts', 0)} counted against retry.maxAttempts")
    for drive in drives:
        click.echo(f"  epoch {drive.epoch:<4} {drive.pod} on {drive.node or 'no node yet'}: {_end(drive)}")
    click.echo("\nEvents")
    _events(name, options)
    click.echo("\nSteps")
    shown = Shown()
    for drive in drives:
        if drive.started:
            shown.show(cluster.told(name, drive, cluster.written(options, drive)))
    if not shown.any:
        click.echo("  none that a driver whose pod is still there tells of")
    if (advice := _advice(name, found)) is not None:
        click.echo(f"\nNext: {advice}")
    return 0


def standing(found: Json) -> str:
    """How a session stands: the verdict if there is one, else what it does or waits for, and whether somebody must act."""
    verdict = cluster.condition(found, "Succeeded")
    if verdict.get("status") == "True":
        return "Succeeded"
    if verdict.get("status") == "False":
        return _because(f"Failed ({verdict['reason']})", verdict)
    ready = cluster.condition(found, "Ready")
    blocked = cluster.condition(found, "Progressing").get("reason") == "Blocked"
    reason = ready.get("reason", "Pending")
    return _because(f"{reason} (blocked: somebody must act)" if blocked else reason, ready)


class Shown:
    """Lines on stdout, each with the time of day at which it happened."""

    def __init__(self) -> None:
        self._story = Story(lambda session, step: "")
        self.any = False

    def show(self, told: Iterable[Event | str]) -> None:
        for entry in told:
            if isinstance(entry, str):
                click.echo(f"  {'':<19}{entry}")
                continue
            for line in self._story.tell(entry):
                self._echo(line, entry.epoch)
        for line in self._story.waiting(1 << 62):  # a start that nothing followed
            self._echo(line, 0)

    def _echo(self, line: Line, epoch: int) -> None:
        self.any = True
        clock = datetime.fromtimestamp(line.at_ms / 1000).strftime("%H:%M:%S")
        head = line.head or f"epoch {epoch}"
        click.echo(f"  {clock} {head:<9} {line.text:<54} {line.took:>10}".rstrip())


def _because(text: str, found: Json) -> str:
    return f"{text}: {found['message']}" if found.get("message") else text


def _space(found: Json, options: Options) -> str:
    of = found.get("status", {}).get("space", {})
    reference = found["spec"].get("spaceRef", {}).get("name")
    name = of.get("name") or reference or found["metadata"]["name"]
    try:
        space = cluster.read(options, cluster.SPACE_KIND, name)
    except UsageError:
        return f"{name}, gone with its session" if of and not reference else f"{name}, not there"
    status, ready = space.get("status", {}), cluster.condition(space, "Ready")
    return _because(f"{name}, generation {status.get('generation', 0)}, {ready.get('reason', 'Pending')}", ready)


def _events(name: str, options: Options) -> None:
    mine = f"involvedObject.name={name},involvedObject.kind=DurableSession"
    events = cluster.read(options, "events", "--field-selector", mine).get("items", [])
    for event in sorted(events, key=_when):
        clock = datetime.fromisoformat(_when(event)).astimezone().strftime("%H:%M:%S")
        times = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
        click.echo(f"  {clock} {event['reason']:<17} {event.get('message', '')}{times}")
    if not events:
        click.echo("  none any more: the cluster keeps them for about an hour")


def _when(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def _end(drive: Drive) -> str:
    if drive.code is not None:
        return f"exit code {drive.code}"
    return "runs" if drive.running else "has not started"


def _advice(name: str, found: Json) -> str | None:
    verdict = cluster.condition(found, "Succeeded").get("status")
    if verdict == "False":
        return f"mend what the status and the last drive tell of, then `kubectl durable retry {name}`."
    if verdict != "True" and cluster.condition(found, "Ready").get("reason") == "Suspended":
        return f"`kubectl durable resume {name}`."
    return None

"""`durable run`: the local coordinator with somebody watching."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from threading import Event as Flag

import click

from durable_base.errors import UsageError
from durable_cli.arguments import LogArguments
from durable_cli.files import read_manifests
from durable_cli.options import OUTPUT, STATE
from durable_cli.precheck import precheck
from durable_cli.screen import Screen, screen
from durable_local.apply import Wanted, resolve
from durable_local.coordinator import Coordinator, Ended
from durable_local.layout import command, session_home, space_home

_JOBS = 2


@click.command
@click.argument("path", type=click.Path(path_type=Path))
@STATE
@OUTPUT
@click.option(
    "--chaos", is_flag=True, help="Kill driver, Space and coordinator at random moments, and compare the ends."
)
@click.option("--seed", type=int, help="With --chaos: the moments of this seed. Default, a new one, which is printed.")
@click.option("--runs", type=click.IntRange(min=1), help="With --chaos: a campaign of so many seeds, and a summary.")
@click.option("--jobs", type=click.IntRange(min=1), help=f"With --runs: how many at once.  [default: {_JOBS}]")
def run(path: Path, state: Path, output: str, chaos: bool, seed: int | None, runs: int | None, jobs: int | None) -> int:
    """Run the sessions of a manifest (a file, or a folder of files) on this machine.

    Killed at any moment and started again, it goes on where it stopped. Ends with 0 if every session succeeded.

    \b
    Example: durable run examples/fix-bug/
             durable run --chaos --seed 7 examples/fix-bug/
             durable run --chaos --runs 200 --jobs 4 --seed 1 examples/fix-bug/
    """
    if not chaos and (seed is not None or runs is not None or jobs is not None):
        raise UsageError("--seed, --runs and --jobs choose what is killed when: they need --chaos")
    if jobs is not None and runs is None:
        raise UsageError("--jobs says how many runs go on at once: give --runs too")
    try:
        if chaos:
            from durable_cli.chaos import campaign, demonstrate

            if runs is not None:
                return campaign(path, state, output, seed=seed, runs=runs, jobs=jobs or _JOBS)
            return demonstrate(path, state, output, seed=seed)
        return watch(path, state, output)
    except BrokenPipeError:
        # The sessions are at rest by now. Who reads this is the person in front of the pipe, not the program behind it.
        click.echo("stopped, for nobody reads the output any more; the same command goes on", err=True)
        raise


def watch(path: Path, state: Path, output: str) -> int:
    """Run to the end, or until SIGINT or SIGTERM. The exit code is that of the command."""
    wanted = resolve(read_manifests(path), os.environ)
    precheck(wanted, os.environ)
    names = [one.manifest.name for one in wanted]
    with screen(output, LogArguments(state), names) as shown:
        coordinator = Coordinator(state, wanted, os.environ, shown.show)
        stop = _stop_flag()
        ended = coordinator.run(stop)
        for one, asked in zip(ended, wanted, strict=True):
            _conclude(one, asked, state, shown, several=len(wanted) > 1)
    if stop.is_set() and not all(one.finished for one in ended):
        click.echo("stopped; the same command goes on", err=True)
        return 130
    return 0 if all(one.succeeded or not one.finished for one in ended) else 1


def _stop_flag() -> Flag:
    """The first signal asks for a clean end, the second one ends this process; a later run goes on either way."""
    stop = Flag()

    def asked(number: int, frame: object) -> None:
        stop.set()
        os.write(2, b"stopping ...\n")  # print must not be called in a handler: it may interrupt itself
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, asked)
    signal.signal(signal.SIGTERM, asked)
    return stop


def _conclude(ended: Ended, wanted: Wanted, state: Path, shown: Screen, *, several: bool) -> None:
    whose = f"{ended.session}: " if several else ""
    if ended.answer:
        shown.say(f"{whose}answer: {ended.answer}")
    if ended.suspended:
        shown.say(
            f"{ended.session} is suspended: go on with `{command(state, 'resume', ended.session)}` and the same command"
        )
    if ended.finished and not ended.succeeded:
        more = command(state, "describe", ended.session)
        print(f"error: {ended.session}: {ended.reason}: {ended.message}; more: {more}", file=sys.stderr)
    place = space_home(state, ended.session, wanted.space if wanted.space_spec is not None else None)
    shown.say(f"{whose}workspace: {_shown(place.workspace)}")
    shown.say(f"{whose}log: {_shown(session_home(state, ended.session).log)}")


def _shown(path: Path) -> str:
    return str(path) if path.is_absolute() else f"./{path}"

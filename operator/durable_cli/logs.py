"""`durable logs`: the steps of a session, from what its drivers wrote."""

from __future__ import annotations

import time
from pathlib import Path

import click

from durable_cli.arguments import LogArguments
from durable_cli.options import OUTPUT, STATE
from durable_cli.screen import screen
from durable_coordinator.status import SessionStatus, from_dict, is_true
from durable_local import history

_POLL_SECONDS = 0.2


@click.command
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until the session is finished.")
@STATE
@OUTPUT
def logs(name: str, follow: bool, state: Path, output: str) -> None:
    """Show the steps, recoveries and ends of all drives of a session.

    \b
    Example: durable logs -f fix-bug
    """
    home, _ = history.find(state, name)
    follower = history.Follower(home, name)
    with screen(output, LogArguments(state), [name]) as shown:
        while True:
            _, record = history.find(state, name)
            status = from_dict(SessionStatus, history.as_object(record)["status"])
            last = not follow or is_true(status.conditions, "Finished")
            for event in follower.news(last=last):
                shown.show(event)
            if last:
                return
            time.sleep(_POLL_SECONDS)

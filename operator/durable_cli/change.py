"""`durable suspend`, `resume`, `retry` and `delete`: changes of a session's spec, which a running coordinator obeys at once."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from durable_base.errors import UsageError
from durable_base.trees import remove_tree
from durable_cli.options import STATE
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.status import Condition, SessionStatus, condition, from_dict
from durable_local import history
from durable_local.layout import SPACE_ENDING, Home, Lock, command, space_home, unusable
from durable_local.sessions import KIND
from durable_local.store import ConflictError, Store
from durable_local.unattended import answered, end_unattended

_TRIES = 20


@click.command
@click.argument("name")
@STATE
def suspend(name: str, state: Path) -> None:
    """Let a session pause: its driver ends at its next durable point.

    \b
    Example: durable suspend fix-bug
    """
    _refuse_finished(state, name, "suspend")
    home, record = history.find(state, name)
    if not history.attended(home) and not history.driving(home) and answered(home):
        raise UsageError(_ended_unseen(state, name))
    _change(state, name, operating_mode="Suspended")
    grace = msgspec.json.decode(record.spec, type=SessionSpec).driver.termination_grace_period_seconds
    if not end_unattended(home, name, record.uid, grace):
        click.echo(f"{name} pauses at its driver's next durable point; go on with: {command(state, 'resume', name)}")
    elif answered(home):
        _change(state, name, operating_mode="Running")  # it came to its end before it could pause
        raise UsageError(_ended_unseen(state, name))
    else:
        click.echo(f"{name} suspended; go on with: {command(state, 'resume', name)}")


def _ended_unseen(state: Path, name: str) -> str:
    return (
        f"{name}: its driver has come to the end, with nobody there to see it: there is nothing to suspend. "
        f"`{command(state, 'run', 'MANIFEST')}` takes note of the end"
    )


@click.command
@click.argument("name")
@STATE
def resume(name: str, state: Path) -> None:
    """Let a suspended session go on.

    \b
    Example: durable resume fix-bug
    """
    _refuse_finished(state, name, "resume")
    _change(state, name, operating_mode="Running")
    click.echo(f"{name} may go on; `{command(state, 'run', 'MANIFEST')}` does it, unless one is running")


@click.command
@click.argument("name")
@STATE
def retry(name: str, state: Path) -> None:
    """Give a failed session a new series of attempts, on the same log.

    \b
    Example: durable retry fix-bug
    """
    verdict = _verdict(state, name)
    if verdict is None or verdict.status != "False":
        raise UsageError(
            f"{name} has not failed ({verdict.reason if verdict else 'Pending'}): there is nothing to retry"
        )
    _change(state, name, retry_token=secrets.token_hex(8))
    click.echo(f"{name} may try again; `{command(state, 'run', 'MANIFEST')}` does it")


@click.command
@click.argument("name")
@STATE
def delete(name: str, state: Path) -> None:
    """Forget a session: its log, its workspace and its records are removed. It must not be running.

    A Space that sessions share outlives them, workspace and all: NAME.space forgets it.

    \b
    Example: durable delete fix-bug
             durable delete shared.space
    """
    space = name.removesuffix(SPACE_ENDING)
    if space != name:
        _forget(name, _shared_space(state, space))
        return
    home, record = history.find(state, name)
    place = history.space_of(state, record)
    _forget(name, home)
    if place.path != home.path and place.path.exists():
        left = history.sharing(state, place.path.name.removesuffix(SPACE_ENDING))
        then = (
            f"of {', '.join(left)} too"
            if left
            else f"to forget it as well: {command(state, 'delete', place.path.name)}"
        )
        click.echo(f"the Space it shared stays: {place.path} ({then})")


def _shared_space(state: Path, space: str) -> Home:
    place = space_home(state, "", space)
    if not place.state.exists():
        raise UsageError(f"no shared Space {space!r} in {state}. Name another folder with --state DIR.")
    if left := history.sharing(state, space):
        raise UsageError(f"{space}: sessions work in this Space ({', '.join(left)}); delete them first")
    return place


def _forget(name: str, home: Home) -> None:
    lock = Lock(home)
    try:
        if history.running(home):
            raise UsageError(f"{name}: processes of it still run; let `durable run` end them first, then delete it")
        for generation in home.generations():
            socket = home.socket(generation)
            if socket.parent != home.generation(generation).absolute():
                shutil.rmtree(socket.parent, ignore_errors=True)
        try:
            remove_tree(home.path)
        except OSError as error:
            raise unusable(home.path, error) from error
    finally:
        lock.release()
    click.echo(f"{name} deleted")


def _verdict(state: Path, name: str) -> Condition | None:
    _, record = history.find(state, name)
    return condition(from_dict(SessionStatus, msgspec.json.decode(record.status)).conditions, "Succeeded")


def _refuse_finished(state: Path, name: str, what: str) -> None:
    verdict = _verdict(state, name)
    if verdict is not None and verdict.status != "Unknown":
        failed = verdict.status == "False"
        again, anew = command(state, "retry", name), command(state, "delete", name)
        more = f"; to try again: {again}" if failed else f"; to begin anew: {anew}"
        raise UsageError(
            f"{name} has {'failed' if failed else 'succeeded'} ({verdict.reason}): there is nothing to {what}{more}"
        )


def _change(state: Path, name: str, **fields: str) -> None:
    """Compare-and-swap of the spec, over whatever the coordinator writes meanwhile."""
    home, _ = history.find(state, name)
    store = Store(home.state)
    try:
        for _ in range(_TRIES):
            record = store.read(KIND, name)
            assert record is not None
            spec = replace(msgspec.json.decode(record.spec, type=SessionSpec), **fields)
            try:
                store.write(record, spec=msgspec.json.encode(spec).decode())
                return
            except ConflictError:
                continue
        raise UsageError(f"{name}: its state is being written all the time; try again")
    finally:
        store.close()

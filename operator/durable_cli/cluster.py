"""`kubectl durable`: the same names on a cluster, by way of the kubectl that called us, its context and its rights."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import click

from durable_base.errors import UsageError

_KIND = "durablesessions.durablesessions.dev"
_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": True}


def _kubectl(*arguments: str) -> int:
    """kubectl's own output and exit code."""
    return subprocess.run([_binary(), *arguments], check=False).returncode


def _binary() -> str:
    found = shutil.which("kubectl")
    if found is None:
        raise UsageError("kubectl is not on the PATH: install it, or add its folder to PATH")
    return found


def _command(function: Callable[..., Any]) -> Callable[..., Any]:
    """A session's name, and whatever kubectl understands: -n, --context, -o ..."""
    with_rest = click.argument("options", nargs=-1, type=click.UNPROCESSED)(function)
    return click.argument("name")(with_rest)


@click.command(context_settings=_PASS_ON)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def get(options: tuple[str, ...]) -> int:
    """List sessions. Options are kubectl's.

    \b
    Example: kubectl durable get -n agents -o wide
    """
    return _kubectl("get", _KIND, *options)


@click.command(context_settings=_PASS_ON)
@_command
def describe(name: str, options: tuple[str, ...]) -> int:
    """Tell the story of a session: status, conditions, events. Options are kubectl's.

    \b
    Example: kubectl durable describe fix-bug -n agents
    """
    return _kubectl("describe", _KIND, name, *options)


@click.command(context_settings=_PASS_ON)
@_command
@click.option("-f", "--follow", is_flag=True, help="Go on until this driver ends.")
def logs(name: str, options: tuple[str, ...], follow: bool) -> int:
    """Show what a session's newest driver writes. Options are kubectl's.

    \b
    Example: kubectl durable logs -f fix-bug -n agents
    """
    asked = [_binary(), "get", _KIND, name, "-o", "jsonpath={.status.driver.pod}", *options]
    found = subprocess.run(asked, check=False, capture_output=True, text=True)
    if found.returncode:
        raise UsageError(found.stderr.strip())
    if not found.stdout:
        raise UsageError(f"{name} has had no driver yet: see `kubectl durable describe {name}`")
    return _kubectl("logs", found.stdout, "-c", "driver", *(["-f"] if follow else []), *options)


@click.command(context_settings=_PASS_ON)
@_command
def suspend(name: str, options: tuple[str, ...]) -> int:
    """Let a session pause: its driver ends at its next durable point.

    \b
    Example: kubectl durable suspend fix-bug
    """
    return _patch(name, {"operatingMode": "Suspended"}, options)


@click.command(context_settings=_PASS_ON)
@_command
def resume(name: str, options: tuple[str, ...]) -> int:
    """Let a suspended session go on.

    \b
    Example: kubectl durable resume fix-bug
    """
    return _patch(name, {"operatingMode": "Running"}, options)


@click.command(context_settings=_PASS_ON)
@_command
def retry(name: str, options: tuple[str, ...]) -> int:
    """Give a failed session a new series of attempts, on the same log.

    \b
    Example: kubectl durable retry fix-bug
    """
    return _patch(name, {"retryToken": secrets.token_hex(8)}, options)


@click.command(context_settings=_PASS_ON)
@_command
def delete(name: str, options: tuple[str, ...]) -> int:
    """Delete a session; what becomes of its log is its deletionPolicy's.

    \b
    Example: kubectl durable delete fix-bug
    """
    return _kubectl("delete", _KIND, name, *options)


def _patch(name: str, spec: dict[str, str], options: tuple[str, ...]) -> int:
    return _kubectl("patch", _KIND, name, "--type", "merge", "-p", json.dumps({"spec": spec}), *options)

"""`kubectl durable`: the same names on a cluster, by way of the kubectl that called us, its context and its rights."""

from __future__ import annotations

import functools
import json
import secrets
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import click

from durable_base.errors import UsageError

_KIND = "durablesessions.durablesessions.dev"
Options = tuple[str, ...]  # of kubectl, in front of its verb


def _where(function: Callable[..., Any]) -> Callable[..., Any]:
    """kubectl's own options for which cluster and namespace; the command gets them as `options`."""

    @click.option("-n", "--namespace", help="Default, that of the context.")
    @click.option("--context", help="Of the kubeconfig.")
    @click.option("--kubeconfig", help="Default, kubectl's.")
    @functools.wraps(function)
    def wrapped(namespace: str | None, context: str | None, kubeconfig: str | None, **rest: Any) -> Any:
        given = {"--namespace": namespace, "--context": context, "--kubeconfig": kubeconfig}
        return function(options=tuple(f"{name}={value}" for name, value in given.items() if value), **rest)

    return wrapped


@click.command
@click.argument("names", nargs=-1)
@click.option("-o", "--output", help="As kubectl's: wide, json, yaml ...")
@click.option("-A", "--all-namespaces", is_flag=True)
@click.option("-w", "--watch", is_flag=True, help="Go on and show changes.")
@_where
def get(names: tuple[str, ...], output: str | None, all_namespaces: bool, watch: bool, options: Options) -> int:
    """List sessions.

    \b
    Example: kubectl durable get -n agents -o wide
    """
    flags = [*(["-A"] if all_namespaces else []), *(["-w"] if watch else []), *(["-o", output] if output else [])]
    return _kubectl(*options, "get", _KIND, *names, *flags)


@click.command
@click.argument("name")
@_where
def describe(name: str, options: Options) -> int:
    """Tell the story of a session: status, conditions, events.

    \b
    Example: kubectl durable describe fix-bug -n agents
    """
    return _kubectl(*options, "describe", _KIND, name)


@click.command
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until this driver ends.")
@_where
def logs(name: str, follow: bool, options: Options) -> int:
    """Show what a session's newest driver writes.

    \b
    Example: kubectl durable logs -f fix-bug -n agents
    """
    asked = [_binary(), *options, "get", _KIND, name, "-o", "jsonpath={.status.driver.pod}"]
    found = subprocess.run(asked, check=False, capture_output=True, text=True)
    if found.returncode:
        raise UsageError(found.stderr.strip())
    if not found.stdout:
        raise UsageError(f"{name} has had no driver yet: see `kubectl durable describe {name}`")
    return _kubectl(*options, "logs", found.stdout, "-c", "driver", *(["-f"] if follow else []))


@click.command
@click.argument("name")
@_where
def suspend(name: str, options: Options) -> int:
    """Let a session pause: its driver ends at its next durable point.

    \b
    Example: kubectl durable suspend fix-bug
    """
    return _patch(name, {"operatingMode": "Suspended"}, options)


@click.command
@click.argument("name")
@_where
def resume(name: str, options: Options) -> int:
    """Let a suspended session go on.

    \b
    Example: kubectl durable resume fix-bug
    """
    return _patch(name, {"operatingMode": "Running"}, options)


@click.command
@click.argument("name")
@_where
def retry(name: str, options: Options) -> int:
    """Give a failed session a new series of attempts, on the same log.

    \b
    Example: kubectl durable retry fix-bug
    """
    return _patch(name, {"retryToken": secrets.token_hex(8)}, options)


@click.command
@click.argument("name")
@_where
def delete(name: str, options: Options) -> int:
    """Delete a session; what becomes of its log is its deletionPolicy's.

    \b
    Example: kubectl durable delete fix-bug
    """
    return _kubectl(*options, "delete", _KIND, name)


def _patch(name: str, spec: dict[str, str], options: Options) -> int:
    return _kubectl(*options, "patch", _KIND, name, "--type", "merge", "-p", json.dumps({"spec": spec}))


def _kubectl(*arguments: str) -> int:
    """kubectl's own output and exit code."""
    return subprocess.run([_binary(), *arguments], check=False).returncode


def _binary() -> str:
    found = shutil.which("kubectl")
    if found is None:
        raise UsageError("kubectl is not on the PATH: install it, or add its folder to PATH")
    return found

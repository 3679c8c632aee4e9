"""`kubectl durable`: the same names on a cluster, by way of the kubectl that called us, its context and its rights."""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Callable
from typing import Any

import click

from durable_base.errors import UsageError
from durable_cli import cluster_story
from durable_cli.cluster_read import KIND, Options, condition, kubectl, session


def _where(function: Callable[..., Any]) -> Callable[..., Any]:
    """kubectl's own options for which cluster and namespace; the command gets them as `options`."""

    @click.option("-n", "--namespace", help="Default, that of the context.")
    @click.option("--context", help="Of the kubeconfig.")
    @click.option("--kubeconfig", help="Default, kubectl's.")
    @functools.wraps(function)
    def wrapped(namespace: str | None, context: str | None, kubeconfig: str | None, **rest: Any) -> Any:
        before: dict[str, str | None] = click.get_current_context().obj  # what stood in front of the command
        given = {
            "--namespace": namespace or before["namespace"],
            "--context": context or before["context"],
            "--kubeconfig": kubeconfig or before["kubeconfig"],
        }
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
    return kubectl(*options, "get", KIND, *names, *flags)


@click.command
@click.argument("name")
@_where
def describe(name: str, options: Options) -> int:
    """Tell the story of a session: how it stands, its drives, events and steps, and what to do next.

    Steps are told by the drivers whose pods are still there. For the object as it is: kubectl describe dsess NAME.

    \b
    Example: kubectl durable describe fix-bug -n agents
    """
    return cluster_story.describe(name, options)


@click.command
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until the newest driver ends.")
@click.option("--raw", is_flag=True, help="What the newest driver writes, as it is: heartbeats and JSON lines.")
@_where
def logs(name: str, follow: bool, raw: bool, options: Options) -> int:
    """Show the steps, recoveries and ends of a session's drives, of those whose pods are still there.

    \b
    Example: kubectl durable logs -f fix-bug -n agents
    """
    return cluster_story.logs(name, options, follow=follow, raw=raw)


@click.command
@click.argument("name")
@_where
def suspend(name: str, options: Options) -> int:
    """Let a session pause: its driver ends at its next durable point.

    \b
    Example: kubectl durable suspend fix-bug
    """
    _refuse_finished(name, "suspend", options)
    return _patch(name, {"operatingMode": "Suspended"}, options)


@click.command
@click.argument("name")
@_where
def resume(name: str, options: Options) -> int:
    """Let a suspended session go on.

    \b
    Example: kubectl durable resume fix-bug
    """
    _refuse_finished(name, "resume", options)
    return _patch(name, {"operatingMode": "Running"}, options)


@click.command
@click.argument("name")
@_where
def retry(name: str, options: Options) -> int:
    """Give a failed session a new series of attempts, on the same log.

    \b
    Example: kubectl durable retry fix-bug
    """
    verdict = condition(session(options, name), "Succeeded")
    if verdict.get("status") != "False":
        reason = verdict.get("reason", "Pending")
        raise UsageError(f"{name} has not failed ({reason}): there is nothing to retry")
    return _patch(name, {"retryToken": secrets.token_hex(8)}, options)


@click.command
@click.argument("name")
@_where
def delete(name: str, options: Options) -> int:
    """Delete a session; what becomes of its log is its deletionPolicy's.

    \b
    Example: kubectl durable delete fix-bug
    """
    return kubectl(*options, "delete", KIND, name)


def _patch(name: str, spec: dict[str, str], options: Options) -> int:
    return kubectl(*options, "patch", KIND, name, "--type", "merge", "-p", json.dumps({"spec": spec}))


def _refuse_finished(name: str, what: str, options: Options) -> None:
    """A patch of a finished session would be taken, and do nothing."""
    verdict = condition(session(options, name), "Succeeded")
    if verdict.get("status") not in ("True", "False"):
        return
    failed = verdict["status"] == "False"
    more = f"to try again: kubectl durable retry {name}" if failed else f"to begin anew: kubectl durable delete {name}"
    raise UsageError(
        f"{name} has {'failed' if failed else 'succeeded'} ({verdict['reason']}): there is nothing to {what}; {more}"
    )

"""`durable` and `kubectl durable`: one line for a user's mistake, exit code 0 succeeded, 1 failed, 2 usage."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from durable_base.errors import UsageError
from durable_cli.lazy import Command, LazyGroup

_LOCAL = {
    "run": Command("durable_cli.run:run", "Run the sessions of a manifest on this machine", "local"),
    "get": Command("durable_cli.inspect:get", "List sessions", "local"),
    "describe": Command("durable_cli.inspect:describe", "Tell the story of a session", "local"),
    "logs": Command("durable_cli.logs:logs", "Show the steps of a session", "local"),
    "suspend": Command("durable_cli.change:suspend", "Let a session pause at its next durable point", "local"),
    "resume": Command("durable_cli.change:resume", "Let a suspended session go on", "local"),
    "retry": Command("durable_cli.change:retry", "Give a failed session a new series of attempts", "local"),
    "delete": Command("durable_cli.change:delete", "Forget a session, its log and its workspace", "local"),
    "driver": Command(
        "durable_driver.cli:driver",
        "Drive a session for one attempt (coordinators start it)",
        "driver",
        holds_stop=True,
    ),
    "space": Command("durable_space.cli:space", "Run a Space's daemon", "space"),
    "operator": Command("durable_operator.cli:operator", "Run the Kubernetes operator", "operator"),
}
_CLUSTER = {
    "get": Command("durable_cli.cluster:get", "List sessions", "local"),
    "describe": Command("durable_cli.cluster:describe", "Tell the story of a session", "local"),
    "logs": Command("durable_cli.cluster:logs", "Show the steps of a session", "local"),
    "suspend": Command("durable_cli.cluster:suspend", "Let a session pause at its next durable point", "local"),
    "resume": Command("durable_cli.cluster:resume", "Let a suspended session go on", "local"),
    "retry": Command("durable_cli.cluster:retry", "Give a failed session a new series of attempts", "local"),
    "delete": Command("durable_cli.cluster:delete", "Delete a session", "local"),
}


@click.group(cls=LazyGroup, commands_by_name=_LOCAL, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="durable-sessions", prog_name="durable")
def durable() -> None:
    """Run an agent to its end, whatever crashes.

    Example: durable run examples/fix-bug/
    """


@click.group(cls=LazyGroup, commands_by_name=_CLUSTER, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="durable-sessions", prog_name="kubectl durable")
@click.option("-n", "--namespace", help="As after the command.")
@click.option("--context", help="As after the command.")
@click.option("--kubeconfig", help="As after the command.")
@click.pass_context
def kubectl_durable(ctx: click.Context, /, **where: str | None) -> None:
    """Durable sessions on the cluster that kubectl speaks to.

    Example: kubectl durable describe fix-bug
    """
    ctx.obj = where


def _run(command: click.Command, name: str) -> None:
    try:
        code: Any = command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:
        # Nobody reads any more; what is left in the buffer must not fail a second time at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def main() -> None:
    _run(durable, "durable")


def kubectl_main() -> None:
    _run(kubectl_durable, "kubectl durable")

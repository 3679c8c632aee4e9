"""`durable driver`: the built-in agent, driven for one attempt."""

from __future__ import annotations

import click

from durable_driver.builtin import builtin_start
from durable_driver.run import run_durable_session
from durable_driver.variables import VARIABLES, Variable

_CODES = (
    ("0", "finished"),
    ("75", "fenced: a newer driver exists, ignore this process"),
    ("78", "failed for good: bad environment, missing capability, input unanswered"),
    ("143", "stopped, as asked, at a durable point"),
    ("other", "crashed: drive it again"),
)


class _Command(click.Command):
    """Lists the environment under its options: a driver is told everything there."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Environment"):
            formatter.write_dl([(variable.name, _meaning(variable)) for variable in VARIABLES])
        with formatter.section("Exit codes"):
            formatter.write_dl(_CODES)


def _meaning(variable: Variable) -> str:
    if variable.required:
        return f"{variable.meaning}  [required]"
    return f"{variable.meaning}  [default: {variable.default}]" if variable.default else variable.meaning


@click.command(cls=_Command)
def driver() -> None:
    """Drive a session for one attempt, from where its log stands to its end.

    A coordinator starts it (`durable run`, or the operator) and tells it everything by environment variables. Heartbeats and
    events go to standard output, errors to standard error, and a report to DURABLE_REPORT at the end.

    Example: CUA_SESSION=fix-bug CUA_SESSION_EPOCH=1 CUA_SESSION_STATE_DIR=/state ... durable driver
    """
    run_durable_session(builtin_start)
